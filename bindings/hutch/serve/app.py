# SPDX-License-Identifier: Apache-2.0
"""The routes, and what all requests have in common: a key, a turn, an end with their client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hutch._errors import SandboxBusy
from hutch._outcome import SandboxError
from hutch._remote.wire import failure_to_wire
from hutch.serve import fields, fusion, keys, metrics, notebook, openapi, piston, protocol
from hutch.serve.body import Asked, Bodies
from hutch.serve.figures import Figures
from hutch.serve.gate import Refused, client_of
from hutch.serve.keys import Keys
from hutch.serve.own import OwnProtocol, fault_of
from hutch.serve.queue import FairQueue, Full, TooLate
from hutch.serve.room import Room, Shares, Unsent
from hutch.serve.runner import Ended, Job, Runner
from hutch.serve.settings import Client, Settings
from hutch.serve.works import Works, in_flight

_RETRY = {"Retry-After": "1"}
_MOST_SCRIPTS = 10_000
_PART = 256 << 10  # bytes of an answer that are handed over at once
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
            self._get("/v1/ping", self._ping, open_to_all=True),
            self._get("/health", self._health, open_to_all=True),
            self._get("/openapi.json", self._openapi, open_to_all=True),
            self._get("/metrics", self._metrics),
            self._get("/api/v2/runtimes", self._runtimes),
        ]

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
            outcomes, files, took = await notebook.run_cells(
                job, cells, each, settings, asked.client
            )
        return notebook.fusion_answer(outcomes, len(cells), files, took)

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

    async def _ping(self, request: Request) -> Response:
        return JSONResponse("pong")

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(openapi.document())

    async def _runtimes(self, request: Request) -> Response:
        return JSONResponse(piston.runtimes())

    async def _metrics(self, request: Request) -> Response:
        client = client_of(request, self.settings)
        return PlainTextResponse(await metrics.text(self.figures, client, self.settings))

    # ---- what all have in common

    def _get(self, path: str, answer: Any, open_to_all: bool = False) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                # Whether it is there may be asked without a key, by nobody's web page.
                client_of(request, self.settings, open_to_all)
            except Refused as error:
                return self._refusal(error)
            response: Response = await answer(request)
            return response

        return Route(path, endpoint, methods=["GET"])

    def _post(self, path: str, answer: Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                client = client_of(request, self.settings)
                if self._answers.is_full(client):
                    text = f"this client has {self.settings.bodies_mb} MiB of answers to read"
                    raise Refused(503, text, _RETRY)
                with self._bodies.room(client) as room:
                    body = await self._bodies.read(request, room)
                    work = self._works.begin(answer(Asked(body, client, request, room)), room)
                    found = await _while_connected(request, work)
                    if isinstance(found, AsyncGenerator):
                        return self._counted(Lines(found, room))
                    return self._counted(response_of(found, Unsent(self._answers, client)))
            except Refused as error:
                return self._refusal(error)
            except Full:
                return self._refusal(Refused(429, "too many requests wait already", _RETRY))
            except (TooLate, SandboxBusy):
                return self._refusal(Refused(504, "there was no room in time", _RETRY))
            except SandboxError as error:
                return self._fault(error)

        return Route(path, endpoint, methods=["POST"])

    def _fault(self, error: SandboxError) -> Response:
        """With a time to repeat it after only where it certainly did not run."""
        outcome = fault_of(error)
        status, headers = (500, {}) if outcome.may_have_run else (503, _RETRY)
        found = {**_refused(str(error)), "failure": failure_to_wire(error)}
        return self._counted(JSONResponse(found, status, headers))

    def _refusal(self, error: Refused) -> Response:
        return self._counted(JSONResponse(_refused(error.text), error.status, error.headers))

    def _counted(self, response: Response) -> Response:
        self.figures.count(response.status_code)
        return response


class Lines(StreamingResponse):
    """Lines that are made as they are taken; `room` is held until the last of them."""

    def __init__(self, lines: AsyncGenerator[bytes, None], room: Room) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._lines = lines
        self._room = room
        room.hold()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._room.leave()
            await self._lines.aclose()


class Whole(Response):
    """A body that is sent as fast as it is taken, and holds its room until the last of it."""

    def __init__(self, body: bytes, status: int, headers: dict[str, str], unsent: Unsent) -> None:
        super().__init__(body, status, headers, media_type="application/json")
        self._unsent = unsent
        unsent.add(len(body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        with self._unsent:
            await send({**start, "headers": self.raw_headers})
            for place in range(0, len(self.body), _PART):
                part = self.body[place : place + _PART]
                more = place + _PART < len(self.body)
                await send({"type": "http.response.body", "body": part, "more_body": more})


def response_of(found: Any, unsent: Unsent) -> Response:
    """Of an answer, or of its status and its bytes. A text may hold half of a surrogate pair."""
    status, body = found if type(found) is tuple else (200, json.dumps(found).encode())
    headers = _RETRY if status == 503 else {}
    return Whole(body, status, headers, unsent)


def _refused(text: str) -> dict[str, Any]:
    return {"status": "SandboxError", "message": text, "detail": text}


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


def make_app(settings: Settings) -> Starlette:
    server = Server(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        yield
        await server.end()

    app = Starlette(routes=server.routes(), lifespan=lifespan)
    app.router.redirect_slashes = False  # to the Host of a request that nobody has checked
    app.state.settings = settings
    app.state.figures = server.figures
    return app
