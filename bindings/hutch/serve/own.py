# SPDX-License-Identifier: Apache-2.0
"""Hutch's own protocol: `POST /v1/run` and `POST /v1/map`. Outcomes are whole, limits are as asked
for or refused, and a field that is not known is refused.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from hutch._errors import SandboxBusy, SandboxStartupError
from hutch._outcome import Outcome, SandboxError
from hutch._remote.wire import to_wire
from hutch.serve import fields
from hutch.serve.aside import Aside
from hutch.serve.body import Asked
from hutch.serve.encode import encoded
from hutch.serve.gate import Refused
from hutch.serve.kept import Answer
from hutch.serve.keys import Keys
from hutch.serve.public import public
from hutch.serve.queue import FairQueue, Full, TooLate
from hutch.serve.room import Shares, Unsent
from hutch.serve.runner import Job, Runner
from hutch.serve.settings import Client, Settings
from hutch.serve.works import Works, in_flight

T = TypeVar("T")
MOST_ITEMS = 10_000
ITEM_FIELDS = ("source", "stdin", "stdin_base64", "args", "files")
RUN_FIELDS = (*ITEM_FIELDS, "timeout_sec", "memory_mb", "labels")
MAP_FIELDS = (*RUN_FIELDS, "items", "ordered")
_MOST_LABELS = 8
_MOST_OF_LABEL = 100  # characters
_LABELS_IDLE_SEC = 600.0  # after which their workers are gone too


class OwnProtocol:
    """Belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        runner: Runner,
        queue: FairQueue,
        keys: Keys,
        works: Works,
        answers: Shares,
        aside: Aside,
    ) -> None:
        self.settings = settings
        self._aside = aside
        self._runner = runner
        self._queue = queue
        self._keys = keys
        self._works = works
        self._answers = answers
        self._labels: dict[Client, dict[Any, float]] = {}  # sets of them, and when last used

    async def run(self, asked: Asked, key: str) -> Answer:
        """Raises Refused, Full, TooLate, SandboxError."""
        job = await self._made(asked, lambda: job_of(asked.body, self.settings))
        runs_as = self.labelled(asked.client, asked.body.get("labels"))
        if not key:
            return answer_of(await self._outcome(job, asked.client, runs_as))
        request = await self._made(asked, lambda: request_hash("/v1/run", asked.body))
        return await self._once(key, request, job, asked, runs_as)

    async def map(self, asked: Asked, key: str) -> AsyncGenerator[bytes, None]:
        """Lines of `{"index": …, "outcome": …}`. Raises Refused."""
        client = asked.client
        jobs, ordered = await self._made(asked, lambda: jobs_of(asked.body, self.settings))
        runs_as = self.labelled(client, asked.body.get("labels"))
        request = b""
        if key:  # its items have keys of their own
            request = await self._made(asked, lambda: request_hash("/v1/map", asked.body))
            self._keys.claim(client, key, request, (200, b""))

        unsent = Unsent(self._answers, client)

        async def one(index: int) -> bytes:
            try:
                if key:
                    own = f"{key}\n{index}"
                    _, found = await self._once(own, request, jobs[index], asked, runs_as)
                else:
                    found = answer_of(await self._outcome(jobs[index], client, runs_as))[1]
            except (Full, TooLate):
                found = answer_of(fault_of(SandboxBusy("there was no room in time")))[1]
            except SandboxError as error:
                found = answer_of(fault_of(error))[1]
            except Refused as error:
                ran = error.status in (410, 500)
                found = answer_of(fault_of(SandboxStartupError(error.text, may_have_run=ran)))[1]
            line = b'{"index": %d, "outcome": %s}\n' % (index, found)
            unsent.add(len(line))
            return line

        def begin(index: int) -> asyncio.Task[bytes]:
            return self._works.begin(one(index), asked.room)

        async def lines() -> AsyncGenerator[bytes, None]:
            found = in_flight(len(jobs), begin, ordered, self.settings.concurrency)
            with unsent:
                try:
                    async for line in found:
                        yield line
                        unsent.add(-len(line))
                finally:
                    await found.aclose()

        return lines()

    async def _made(self, asked: Asked, make: Callable[[], T]) -> T:
        return await self._aside.do(asked.client, asked.size, make)

    async def _outcome(self, job: Job, client: Client, runs_as: Client) -> Outcome[Any]:
        async with self._queue.turn(client):
            try:
                return (await self._runner.run(job, runs_as)).outcome
            except SandboxError as error:
                raise public(error, self.settings) from None

    async def _once(
        self, key: str, request: bytes, job: Job, asked: Asked, runs_as: Client
    ) -> Answer:
        """The first answer under this key. It runs to its end, whether or not its client stays."""
        client = asked.client
        found = await self._keys.wait(client, key, request)
        if found is not None:
            return found

        async def run() -> Answer:
            ran = SandboxStartupError("the server failed while it ran", may_have_run=True)
            answer = answer_of(fault_of(ran))
            try:
                answer = answer_of(await self._outcome(job, client, runs_as))
            except (Full, TooLate, SandboxError):
                self._keys.release(client, key)
                raise
            except BaseException:
                self._keys.keep(client, key, answer)
                raise
            self._keys.keep(client, key, answer)
            return answer

        return await asyncio.shield(self._works.begin(run(), asked.room))

    def labelled(self, client: Client, found: Any) -> Client:
        """The client with a request's labels beside its own. Raises Refused."""
        labels = labels_of(found)
        if not labels:
            return client
        own = dict(client.labels)
        for name in labels:
            if name in self.settings.tenant_labels and labels[name] != own.get(name):
                raise Refused(422, f"labels may not set {name!r}, which chooses a tenant")
        now = asyncio.get_running_loop().time()
        known = self._labels.setdefault(client, {})
        pairs = tuple(sorted({**labels, **own}.items()))
        if pairs not in known and len(known) >= self.settings.label_sets:
            for old in [one for one, used in known.items() if used < now - _LABELS_IDLE_SEC]:
                del known[old]
        if pairs not in known and len(known) >= self.settings.label_sets:
            raise Refused(
                422,
                f"labels has had {len(known)} values of late, each with workers of its own: use "
                "fewer, or raise label_sets in [serve] of agent.toml",
            )
        known[pairs] = now
        return replace(client, labels=pairs)


def job_of(body: Mapping[str, Any], settings: Settings) -> Job:
    """Raises Refused."""
    fields.known(body, RUN_FIELDS)
    return Job(**{**_limits(body, settings), "source": fields.text(body, "source"),
                  **_given(body, settings)})  # fmt: skip


def jobs_of(body: Mapping[str, Any], settings: Settings) -> tuple[list[Job], bool]:
    """And whether they are answered in their order. Raises Refused."""
    fields.known(body, MAP_FIELDS)
    items, ordered = body.get("items"), fields.flag(body, "ordered", True)
    if type(items) is not list or not all(type(one) is dict for one in items):
        raise Refused(422, "items must be a list of objects")
    if not 1 <= len(items) <= MOST_ITEMS:
        raise Refused(422, f"items must have from 1 to {MOST_ITEMS} of them")
    usual = {**_limits(body, settings), **_given(body, settings)}
    if "source" in body:
        usual["source"] = fields.text(body, "source")
    jobs = []
    for number, item in enumerate(items):
        fields.known(item, ITEM_FIELDS, f"items[{number}]")
        own = {**usual, **_given(item, settings)}
        if "source" in item or "source" not in own:
            own["source"] = fields.text(item, "source")
        jobs.append(Job(**own))
    return jobs, ordered


def _limits(body: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    return {
        "timeout_sec": fields.exact_seconds(
            body.get("timeout_sec"), "timeout_sec", settings.timeout_sec
        ),
        "memory_mb": fields.exact_memory_mb(body.get("memory_mb"), settings),
    }


def _given(body: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """What is there of a program's input."""
    given: dict[str, Any] = {}
    if body.get("stdin") is not None:
        given["stdin"] = fields.text(body, "stdin")
    if body.get("stdin_base64") is not None:
        if "stdin" in given:
            raise Refused(422, "stdin and stdin_base64 are both there")
        try:
            text = fields.text(body, "stdin_base64")
            given["stdin"] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise Refused(422, "stdin_base64 is not base64") from None
    if body.get("args") is not None:
        given["args"] = fields.words(body["args"], "args")
    if body.get("files") is not None:
        given["files"] = fields.files(body, settings)
    return given


def labels_of(found: Any) -> dict[str, str]:
    """Raises Refused."""
    if found is None:
        return {}
    pairs = list(found.items()) if type(found) is dict else [("", None)]
    for one in (text for pair in pairs for text in pair):
        if type(one) is not str or not 0 < len(one) <= _MOST_OF_LABEL or not one.isprintable():
            raise Refused(422, f"labels must be an object of texts up to {_MOST_OF_LABEL} long")
    if len(pairs) > _MOST_LABELS:
        raise Refused(422, f"labels has more than {_MOST_LABELS} names")
    return dict(pairs)


def request_hash(path: str, body: Mapping[str, Any]) -> bytes:
    """The same for requests that ask for the same."""
    text = json.dumps([path, body], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def fault_of(error: SandboxError) -> Outcome[Any]:
    if error.outcome is not None:
        return error.outcome
    ran = isinstance(error, SandboxStartupError) and error.may_have_run
    return Outcome[Any]("fault", may_have_run=ran).fail(error)


def answer_of(outcome: Outcome[Any]) -> Answer:
    """A fault is 503 where it certainly did not run, and 500 where it may have."""
    status = 200
    if outcome.status == "fault":
        status = 500 if outcome.may_have_run else 503
    return status, encoded(to_wire(outcome))
