# SPDX-License-Identifier: Apache-2.0
"""The routes, and what all requests have in common: a key, a turn, an end with their client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from hutch._errors import SandboxBusy
from hutch._outcome import SandboxError
from hutch._status import metrics_aio
from hutch.serve import fields, fusion, notebook, piston
from hutch.serve.gate import Refused, client_of, json_of
from hutch.serve.queue import FairQueue, Full, TooLate
from hutch.serve.runner import Ended, Job, Runner
from hutch.serve.settings import Client, Settings

_RETRY = {"Retry-After": "1"}
_MOST_SCRIPTS = 10_000
Answer = Callable[[dict[str, Any], Client], Awaitable[Any]]


class Server:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._runner = Runner(settings)
        self._queue = FairQueue(settings.concurrency, settings.queue, settings.queue_sec)
        self._answered: dict[int, int] = {}  # by status

    def routes(self) -> list[Route]:
        return [
            self._post("/run_code", self._run_code),
            self._post("/run_jupyter", self._run_jupyter),
            self._post("/execute_batch", self._execute_batch),
            self._post("/api/v2/execute", self._piston),
            self._post("/v1/run", self._run),
            self._get("/v1/ping", self._ping, open_to_all=True),
            self._get("/health", self._health, open_to_all=True),
            self._get("/metrics", self._metrics),
            self._get("/api/v2/runtimes", self._runtimes),
        ]

    # ---- what each answers

    async def _run_code(self, body: dict[str, Any], client: Client) -> Any:
        job = fusion.job_of(body, self.settings)
        if isinstance(job, str):
            return fusion.fault(job)
        return fusion.answer(await self._ended(job, client))

    async def _run_jupyter(self, body: dict[str, Any], client: Client) -> Any:
        settings = self.settings
        cells = fields.texts(body.get("cells"), "cells", _MOST_SCRIPTS)
        fetch = fields.texts(body.get("fetch_files"), "fetch_files", settings.files)
        most = fields.seconds(body.get("total_timeout", 45), "total_timeout", settings.timeout_sec)
        job = Job(
            source="",
            timeout_sec=most,
            memory_mb=fields.memory_mb(
                body.get("memory_limit_MB"), "memory_limit_MB", settings.memory_mb
            ),
            files=fields.files(body, settings),
            fetch=[fields.path(one, "fetch_files") for one in fetch],
        )
        each = fields.seconds(body.get("cell_timeout"), "cell_timeout", most)
        async with self._queue.turn(client):
            outcomes, files, took = await asyncio.to_thread(
                notebook.run_cells, job, cells, each, settings, client
            )
        return notebook.fusion_answer(outcomes, len(cells), files, took)

    async def _execute_batch(self, body: dict[str, Any], client: Client) -> Any:
        scripts = fields.texts(body.get("scripts"), "scripts", _MOST_SCRIPTS)
        languages = fields.texts(body.get("languages"), "languages", _MOST_SCRIPTS)
        if any(one != "python" for one in languages):
            raise Refused(422, "languages may have python only")
        timeout = fields.seconds(body.get("timeout"), "timeout", self.settings.timeout_sec)

        async def one(script: str) -> Any:
            job = Job(script, timeout, self.settings.memory_mb)
            async with self._queue.turn(client):
                return await asyncio.to_thread(notebook.e2b_answer, job, self.settings, client)

        return await asyncio.gather(*map(one, scripts))

    async def _piston(self, body: dict[str, Any], client: Client) -> Any:
        ended = await self._ended(piston.job_of(body, self.settings), client)
        if ended.fault:
            raise Refused(503, ended.fault, _RETRY)
        return piston.answer(ended)

    async def _run(self, body: dict[str, Any], client: Client) -> Any:
        """Hutch's own: the whole Outcome."""
        settings = self.settings
        stdin = body.get("stdin")
        job = Job(
            source=fields.text(body, "source"),
            timeout_sec=fields.seconds(
                body.get("timeout_sec"), "timeout_sec", settings.timeout_sec
            ),
            memory_mb=fields.memory_mb(body.get("memory_mb"), "memory_mb", settings.memory_mb),
            stdin=None if stdin is None else fields.text(body, "stdin"),
            args=fields.texts(body.get("args"), "args", 1000),
            files=fields.files(body, settings),
        )
        return (await self._ended(job, client)).outcome.to_dict()

    async def _ended(self, job: Job, client: Client) -> Ended:
        async with self._queue.turn(client):
            return await self._runner.run(job, client)

    async def _ping(self, request: Request) -> Response:
        return JSONResponse("pong")

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _runtimes(self, request: Request) -> Response:
        return JSONResponse(piston.runtimes())

    async def _metrics(self, request: Request) -> Response:
        lines = [
            "# HELP hutch_serve_running Requests that run.",
            "# TYPE hutch_serve_running gauge",
            f"hutch_serve_running {self._queue.running}",
            "# HELP hutch_serve_waiting Requests that wait for their turn.",
            "# TYPE hutch_serve_waiting gauge",
            f"hutch_serve_waiting {self._queue.waiting}",
            "# HELP hutch_serve_answers_total Answers, by their status.",
            "# TYPE hutch_serve_answers_total counter",
            *(
                f'hutch_serve_answers_total{{status="{status}"}} {count}'
                for status, count in sorted(self._answered.items())
            ),
        ]
        return PlainTextResponse("\n".join(lines) + "\n" + await metrics_aio())

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
                body = await json_of(request, self.settings)
                found = await _while_connected(request, answer(body, client))
            except Refused as error:
                return self._refusal(error)
            except Full:
                return self._refusal(Refused(429, "too many requests wait already", _RETRY))
            except (TooLate, SandboxBusy):
                return self._refusal(Refused(504, "there was no room in time", _RETRY))
            except SandboxError as error:
                return self._refusal(Refused(503, str(error), _RETRY))
            return self._counted(JSONResponse(found))

        return Route(path, endpoint, methods=["POST"])

    def _refusal(self, error: Refused) -> Response:
        body = {"status": "SandboxError", "message": error.text, "detail": error.text}
        return self._counted(JSONResponse(body, error.status, error.headers))

    def _counted(self, response: Response) -> Response:
        self._answered[response.status_code] = self._answered.get(response.status_code, 0) + 1
        return response


async def _while_connected(request: Request, work: Awaitable[Any]) -> Any:
    """Cancels the work, and so kills its cell, when the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refused(499, "the client has gone")
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(settings: Settings) -> Starlette:
    return Starlette(routes=Server(settings).routes())
