# SPDX-License-Identifier: Apache-2.0
"""The routes, and what all requests have in common: a key, a turn, an end with their client."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from hutch._outcome import SandboxError
from hutch.serve import fields, fusion, keys, log, metrics, notebook, openapi, piston, protocol
from hutch.serve.body import Asked, Bodies
from hutch.serve.figures import Figures
from hutch.serve.gate import Refused, client_of
from hutch.serve.keys import Keys
from hutch.serve.own import OwnProtocol
from hutch.serve.queue import FairQueue
from hutch.serve.responses import RETRY, Lines, answer_to, response_of
from hutch.serve.room import Shares, Unsent
from hutch.serve.runner import Ended, Job, Runner
from hutch.serve.settings import Client, Settings
from hutch.serve.works import Works, in_flight

_MOST_SCRIPTS = 10_000
Answer = Callable[[Asked], Coroutine[Any, Any, Any]]


class Server:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._runner = Runner(settings)
        self._answers = Shares(settings.bodies_mb << 20, lambda: self._queue.serve())
        self._queue = FairQueue(
            settings.concurrency,
            settings.queue,
            settings.queue_sec,
            lambda: self.figures.changed(),
            lambda client: not self._answers.is_full(client),
        )
        self._bodies = Bodies(settings)
        self._works = Works()
        self._keys = Keys(settings)
        self.own = OwnProtocol(
            settings, self._runner, self._queue, self._keys, self._works, self._answers
        )
        self.figures = Figures(
            {
                "running": lambda: self._queue.running,
                "waiting": lambda: self._queue.waiting,
                "connections": lambda: len(protocol.connections),
                "half_open": lambda: len(protocol.half_open),
                "pipelined": protocol.pipelined,
            }
        )

    def routes(self) -> list[Route]:
        return [
            self._post("/run_code", self._run_code),
            self._post("/run_jupyter", self._run_jupyter),
            self._post("/execute_batch", self._execute_batch),
            self._post("/api/v2/execute", self._piston),
            self._post("/v1/run", self._run),
            self._post("/v1/map", self._map),
            self._get("/", self._index, open_to_all=True),
            self._get("/v1/ping", self._ping, open_to_all=True),
            self._get("/health", self._health, open_to_all=True),
            self._get("/openapi.json", self._openapi, open_to_all=True),
            self._get("/metrics", self._metrics),
            self._get("/api/v2/runtimes", self._runtimes),
        ]

    def reload(self, again: Callable[[], Settings]) -> None:
        """Takes what the file says now of who may ask; the rest holds from start to end."""
        try:
            self.settings = self.own.settings = self.settings.with_askers_of(again())
        except (OSError, ValueError) as error:
            log.SERVER.error("agent.toml is refused, what it said before holds: %s", error)
        else:
            log.SERVER.warning("agent.toml is read again, keys: %d", len(self.settings.keys))

    async def end(self) -> None:
        """Waits for what runs although its client has gone."""
        await self._works.end(self.settings.drain_sec)
        self._keys.close()

    # ---- what each answers

    async def _run_code(self, asked: Asked) -> Any:
        job = fusion.job_of(asked.body, self.settings)
        if isinstance(job, str):
            return fusion.fault(job)
        return fusion.answer(await self._ended(job, asked.client))

    async def _run_jupyter(self, asked: Asked) -> Any:
        body, settings = asked.body, self.settings
        cells = fields.texts(body.get("cells"), "cells", _MOST_SCRIPTS)
        most = fields.seconds(body.get("total_timeout", 45), "total_timeout", settings.timeout_sec)
        job = Job(
            source="",
            timeout_sec=most,
            memory_mb=fields.memory_mb(
                body.get("memory_limit_MB"), "memory_limit_MB", settings.memory_mb
            ),
            files=fields.files(body, settings),
            fetch=fields.paths(body.get("fetch_files"), "fetch_files", settings.files),
        )
        each = fields.seconds(body.get("cell_timeout"), "cell_timeout", most)
        async with self._queue.turn(asked.client):
            ran = await notebook.run_cells(job, cells, each, settings, asked.client)
        return notebook.fusion_answer(ran, len(cells))

    async def _execute_batch(self, asked: Asked) -> Any:
        body = asked.body
        scripts = fields.texts(body.get("scripts"), "scripts", _MOST_SCRIPTS)
        languages = fields.texts(body.get("languages"), "languages", _MOST_SCRIPTS)
        if any(one != "python" for one in languages):
            raise Refused(422, "languages may have python only")
        if languages and len(languages) != len(scripts):
            counts = f"{len(languages)} languages for {len(scripts)} scripts"
            raise Refused(422, f"languages must have one for each script, not {counts}")
        timeout = fields.seconds(body.get("timeout"), "timeout", self.settings.timeout_sec)

        room = self.settings.body_mb << 20  # of all answers, which are there at once

        async def one(script: str) -> bytes:
            nonlocal room
            job = Job(script, timeout, self.settings.memory_mb)
            found = notebook.no_room(self.settings)
            if room > 0:
                async with self._queue.turn(asked.client):
                    found = await notebook.e2b_answer(job, self.settings, asked.client)
            answer = json.dumps(found).encode()
            room -= len(answer)
            return answer if room > 0 else json.dumps(notebook.no_room(self.settings)).encode()

        def begin(index: int) -> asyncio.Task[bytes]:
            return self._works.begin(one(scripts[index]), asked.room)

        found = []
        with Unsent(self._answers, asked.client) as unsent:
            async for answer in in_flight(len(scripts), begin, True, self.settings.concurrency):
                found.append(answer)
                unsent.add(len(answer))
        return 200, b"[" + b", ".join(found) + b"]"

    async def _piston(self, asked: Asked) -> Any:
        ended = await self._ended(piston.job_of(asked.body, self.settings), asked.client)
        if ended.fault:
            ended.outcome.unwrap()
        return piston.answer(ended)

    async def _run(self, asked: Asked) -> Any:
        return await self.own.run(asked, _key_of(asked.request))

    async def _map(self, asked: Asked) -> Any:
        return self.own.map(asked, _key_of(asked.request))

    async def _ended(self, job: Job, client: Client) -> Ended:
        async with self._queue.turn(client):
            return await self._runner.run(job, client)

    async def _index(self, request: Request) -> Response:
        return PlainTextResponse(openapi.index())

    async def _ping(self, request: Request) -> Response:
        return JSONResponse("pong")

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(openapi.document())

    async def _runtimes(self, request: Request) -> Response:
        return JSONResponse(piston.runtimes())

    async def _metrics(self, request: Request) -> Response:
        client = request.state.client
        return PlainTextResponse(await metrics.text(self.figures, client, self.settings))

    # ---- what all have in common

    def _get(self, path: str, answer: Any, open_to_all: bool = False) -> Route:
        async def respond(request: Request) -> Response:
            # Whether it is there may be asked without a key, by nobody's web page.
            request.state.client = client_of(request, self.settings, open_to_all)
            response: Response = await answer(request)
            return response

        return self._route(path, respond, "GET")

    def _post(self, path: str, answer: Answer) -> Route:
        async def respond(request: Request) -> Response:
            client = request.state.client = client_of(request, self.settings)
            if self._answers.is_full(client):
                text = f"this client has {self.settings.bodies_mb} MiB of answers to read"
                raise Refused(503, text, RETRY)
            with self._bodies.room(client) as room:
                body = await self._bodies.read(request, room)
                work = self._works.begin(answer(Asked(body, client, request, room)), room)
                found = await _while_connected(request, work)
                if isinstance(found, AsyncGenerator):
                    return Lines(found, room)
                return response_of(found, Unsent(self._answers, client))

        return self._route(path, respond, "POST")

    def _route(
        self, path: str, respond: Callable[[Request], Coroutine[Any, Any, Response]], method: str
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            entry = log.Entry(request, path)
            failed: Exception | None = None
            try:
                response = await respond(request)
            except Exception as error:
                failed = error
                response = answer_to(error)
                if response.status_code == 500 and not isinstance(error, SandboxError):
                    entry.fail(error)
            if method == "POST" or failed is not None:
                self.figures.count(response.status_code)
            entry.end(response, failed, self.settings.log_requests)
            return response

        return Route(path, endpoint, methods=[method])


def _key_of(request: Request) -> str:
    key = request.headers.get("idempotency-key")
    return "" if key is None else keys.checked(key)


async def _while_connected(request: Request, work: asyncio.Task[Any]) -> Any:
    """Cancels the work, and so kills its cell, when the client goes away, and waits for its end."""
    gone = asyncio.ensure_future(_gone(request))
    gone.add_done_callback(lambda _: work.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        if gone.done() and not gone.cancelled():
            raise Refused(499, "the client has gone") from None
        raise
    finally:
        gone.cancel()
        work.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(settings: Settings, again: Callable[[], Settings] | None = None) -> Starlette:
    """`again`: reads the settings, for SIGHUP."""
    server = Server(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        if again is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, server.reload, again)
        yield
        await server.end()

    routes = server.routes()
    app = Starlette(routes=[*routes, Mount("/key/{key}", routes=routes)], lifespan=lifespan)
    app.router.redirect_slashes = False  # to the Host of a request that nobody has checked
    app.state.settings = settings
    app.state.figures = server.figures
    return app
