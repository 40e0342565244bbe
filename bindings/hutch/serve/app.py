# SPDX-License-Identifier: Apache-2.0
"""The routes, and what all requests have in common: a key, a turn, an end with their client."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from hutch._outcome import SandboxError
from hutch.serve import (
    between,
    fields,
    fusion,
    keys,
    log,
    metrics,
    notebook,
    openapi,
    piston,
    protocol,
)
from hutch.serve.aside import Aside
from hutch.serve.batch import Batch
from hutch.serve.body import Asked, Bodies
from hutch.serve.encode import encoded, size_of
from hutch.serve.figures import Figures
from hutch.serve.gate import Refused, client_of, tenant_named
from hutch.serve.keys import Keys
from hutch.serve.memory import most_held
from hutch.serve.own import OwnProtocol
from hutch.serve.queue import FairQueue
from hutch.serve.responses import RETRY, Lines, answer_to, response_of
from hutch.serve.room import Shares, Total, Unsent
from hutch.serve.runner import Ended, Job, Runner
from hutch.serve.sessions import VERBS, Sessions, process_of
from hutch.serve.settings import Client, Settings
from hutch.serve.works import Works, in_flight

T = TypeVar("T")
Answer = Callable[[Asked], Coroutine[Any, Any, Any]]


class Server:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._aside = Aside()
        self._runner = Runner(settings, self._aside)
        total = Total(most_held(settings), lambda: self._queue.serve())
        self._answers = Shares(settings.bodies_mb << 20, total)
        self._queue = FairQueue(
            settings.concurrency,
            settings.queue,
            settings.queue_sec,
            lambda: self.figures.changed(),
            lambda client: not self._answers.is_full(client),
        )
        self._bodies = Bodies(settings, total, self._aside)
        self._works = Works()
        self._keys = Keys(settings)
        self.own = OwnProtocol(
            settings,
            self._runner,
            self._queue,
            self._keys,
            self._works,
            self._answers,
            self._aside,
        )
        self._sessions = Sessions(settings, self._queue, self._answers, self._aside)
        self._between = between.Between(
            self._asked_by_another, lambda error: answer_to(error, self.settings), self._aside
        )
        self._is_ending = False
        self.figures = Figures(
            {
                "running": lambda: self._queue.running,
                "waiting": lambda: self._queue.waiting,
                "connections": lambda: len(protocol.connections),
                "half_open": lambda: len(protocol.half_open),
                "pipelined": protocol.pipelined,
                "sessions": lambda: self._sessions.count,
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
            self._post("/v1/sessions", self._open_session),
            *(self._post(f"/v1/sessions/{{id}}/{verb}", self._session(verb)) for verb in VERBS),
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
            settings = self.settings.with_askers_of(again())
        except (OSError, ValueError) as error:
            log.SERVER.error("agent.toml is refused, what it said before holds: %s", error)
        else:
            for one in (self, self.own, self._sessions, self._runner):
                one.settings = settings
            log.SERVER.warning("agent.toml is read again, keys: %d", len(settings.keys))

    async def begin(self) -> None:
        await self._between.start()

    def end_soon(self) -> None:
        """What waits for its turn is refused, and what runs has `drain_sec` from now on."""
        if not self._is_ending:
            self._is_ending = True
            self._ends_at = asyncio.get_running_loop().time() + self.settings.drain_sec
            self._queue.end()

    async def end(self) -> None:
        """Waits for what runs although its client has gone. Sessions end."""
        self.end_soon()
        left = self._ends_at - asyncio.get_running_loop().time()
        await self._works.end(max(0.0, left))
        self._between.end()
        await self._sessions.end()
        self._keys.close()

    # ---- what each answers

    async def _run_code(self, asked: Asked) -> Any:
        job = await self._made(asked, fusion.job_of)
        if isinstance(job, str):
            return fusion.fault(job)
        return fusion.answer(await self._ended(job, asked.client, fusion.patience_sec(asked.body)))

    async def _run_jupyter(self, asked: Asked) -> Any:
        job, cells, each = await self._made(asked, fusion.notebook_of)
        async with self._queue.turn(asked.client, fusion.patience_sec(asked.body)):
            ran = await notebook.run_cells(
                job, cells, each, self.settings, self._aside, asked.client
            )
        return notebook.fusion_answer(ran, len(cells))

    async def _execute_batch(self, asked: Asked) -> Any:
        body = asked.body
        scripts = fields.required_texts(body, "scripts", fields.MOST_SCRIPTS)
        languages = fields.texts(body.get("languages"), "languages", fields.MOST_SCRIPTS)
        if languages and len(languages) != len(scripts):
            counts = f"{len(languages)} languages for {len(scripts)} scripts"
            raise Refused(422, f"languages must have one for each script, not {counts}")
        timeout = fields.seconds(body.get("timeout"), "timeout", self.settings.timeout_sec)

        batch = Batch(self.settings, self._queue, self._aside, asked.client, len(scripts), timeout)

        def begin(index: int) -> asyncio.Task[bytes]:
            language = languages[index] if languages else "python"
            return self._works.begin(batch.answer(scripts[index], language), asked.room)

        found = []
        with Unsent(self._answers, asked.client) as unsent:
            async for answer in in_flight(len(scripts), begin, True, self.settings.concurrency):
                found.append(answer)
                unsent.add(len(answer))
        return 200, b"[" + b", ".join(found) + b"]"

    async def _piston(self, asked: Asked) -> Any:
        try:
            job = await self._made(asked, piston.job_of)
        except Refused as error:
            raise Refused(400, error.text) from None  # as Piston says it
        return piston.answer(await self._ended(job, asked.client))

    async def _run(self, asked: Asked) -> Any:
        return await self.own.run(asked, _key_of(asked.request))

    async def _map(self, asked: Asked) -> Any:
        return await self.own.map(asked, _key_of(asked.request))

    async def _open_session(self, asked: Asked) -> Any:
        runs_as = self.own.labelled(asked.client, asked.body.get("labels"))
        return await self._sessions.open(asked.client, runs_as, asked.body)

    def _session(self, verb: str) -> Answer:
        async def answer(asked: Asked) -> Any:
            id = asked.request.path_params["id"]
            process = process_of(id)
            if process == os.getpid():
                return await self._sessions.do(asked.client, id, verb, asked.body)
            what = {"client": asked.client.name, "id": id, "verb": verb, "body": asked.body}
            size = asked.size
            message = await self._aside.do(asked.client, size, lambda: encoded(what))
            return await between.asked_of(process, message)

        return answer

    async def _asked_by_another(self, asked: between.Asked) -> Any:
        client = tenant_named(asked["client"], self.settings)
        return await self._sessions.do(client, asked["id"], asked["verb"], asked["body"])

    async def _made(self, asked: Asked, job_of: Callable[[dict[str, Any], Settings], T]) -> T:
        size, settings = asked.size, self.settings
        return await self._aside.do(asked.client, size, lambda: job_of(asked.body, settings))

    async def _encoded(self, answer: Answer, asked: Asked) -> Any:
        """Its status and its bytes, or lines."""
        found = await answer(asked)
        if type(found) is not dict:
            return found
        return 200, await self._aside.do(asked.client, size_of(found), lambda: encoded(found))

    async def _ended(self, job: Job, client: Client, patience_sec: float = math.inf) -> Ended:
        """Raises SandboxError where it is not known how it ended."""
        async with self._queue.turn(client, patience_sec):
            ended = await self._runner.run(job, client)
        if ended.outcome.status == "fault":
            ended.outcome.unwrap()
        return ended

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
                body, size = await self._bodies.read(request, room)
                asked = Asked(body, size, client, request, room)
                del body
                work = self._works.begin(self._encoded(answer, asked), room)
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
                response = answer_to(error, self.settings)
                if response.status_code == 500 and not isinstance(error, (SandboxError, Refused)):
                    entry.fail(error)
            except asyncio.CancelledError:
                if not self._is_ending:
                    raise
                failed = Refused(500, "the server ended while this ran, which may have run")
                response = answer_to(failed, self.settings)
            if method == "POST" or failed is not None:
                self.figures.count(response.status_code)
            entry.end(response, failed, self.settings.log_requests)
            return response

        return Route(path, endpoint, methods=[method])

    async def _not_served(self, request: Request, error: Exception) -> Response:
        """No route is that, or not by this method."""
        entry = log.Entry(request, "no route")
        status = error.status_code if isinstance(error, HTTPException) else 404
        text = f"{request.method} {request.url.path[:100]} is not served: GET / says what is"
        refused = Refused(status, text, getattr(error, "headers", None))
        try:
            client_of(request, self.settings, without_key=True)
        except Refused as unwanted:
            refused = unwanted
        response = answer_to(refused, self.settings)
        self.figures.count(response.status_code)
        entry.end(response, refused, self.settings.log_requests)
        return response


def _with_slash(route: Route) -> Route:
    methods = [one for one in route.methods or () if one != "HEAD"]
    return Route(f"{route.path}/", route.endpoint, methods=methods)


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
        await server.begin()
        yield
        await server.end()

    plain = server.routes()
    # A client of Piston's ends its paths with a slash.
    routes = [*plain, *(_with_slash(one) for one in plain if one.path != "/")]
    app = Starlette(
        routes=[*routes, Mount("/key/{key}", routes=routes)],
        lifespan=lifespan,
        exception_handlers={404: server._not_served, 405: server._not_served},
    )
    app.state.end_soon = server.end_soon
    app.router.redirect_slashes = False  # to the Host of a request that nobody has checked
    app.state.settings = settings
    app.state.figures = server.figures
    return app
