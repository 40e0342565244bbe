# SPDX-License-Identifier: Apache-2.0
"""Whatever a request's body holds, it is a job within the server's limits or it is refused."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as how, strategies as st
from starlette.requests import Request

from hutch import _strict_json
from hutch.serve import fields, fusion, own, piston, sessions
from hutch.serve.body import Asked, parsed
from hutch.serve.gate import Refused
from hutch.serve.room import Room, Shares
from hutch.serve.runner import Job
from hutch.serve.settings import Client, Settings

SETTINGS = Settings(files=20, memory_mb=1000)
FEW = how(derandomize=True, max_examples=150, deadline=None)

TEXTS = [
    "python",
    "a",
    "./a",
    "a/b",
    "..",
    "b/../..",
    "/a",
    "a\0",
    "\ud800",
    "a/",
    "x" * 300,
    "./" * 40 + "../x",
]
NUMBERS = [0, -1, 10**9, 10**400, -(10**400), 1e308, 5e-324, math.nan, math.inf, True]
HOSTILE = [
    *TEXTS,
    *NUMBERS,
    None,
    *([one] for one in [*TEXTS, *NUMBERS]),
    *({one: ""} for one in TEXTS),
    *({"source": one} for one in TEXTS),
    {"a": "", "a/b": ""},
    {"a": "", "./a": ""},
    [{"content": "1"}, {"name": "a", "content": ""}, {"name": "a/b", "content": ""}],
    *([{"content": "1"}, {"name": one, "content": "1"}] for one in TEXTS),
    *([{"args": [one], "stdin": one}] for one in TEXTS),
]
texts = st.one_of(st.sampled_from(TEXTS), st.text(st.characters(), max_size=8))
numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(), st.floats())
values = st.recursive(
    st.one_of(st.none(), texts, numbers),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
lists = st.lists(texts, max_size=3)
maps = st.dictionaries(texts, st.sampled_from(["", "YQ==", "a", None]), max_size=3)
programs = st.fixed_dictionaries({}, optional={"source": texts, "stdin": texts, "args": lists})
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("code", "source", "language", "stdin", "stdin_base64"), texts),
    **dict.fromkeys(("run_timeout", "timeout_sec", "memory_limit_MB", "memory_mb"), numbers),
    "run_memory_limit": numbers,
    "args": lists,
    "fetch_files": lists,
    "files": maps | st.lists(st.fixed_dictionaries({"content": texts}), max_size=2),
    "items": st.lists(programs, max_size=3),
    "labels": st.dictionaries(texts, texts, max_size=3),
    "ordered": st.booleans(),
}
bodies = st.fixed_dictionaries(
    {}, optional={name: likely | values for name, likely in LIKELY.items()}
)


def jobs_of_map(body: Mapping[str, Any], settings: Settings) -> list[Job]:
    own.labels_of(body.get("labels"))
    return own.jobs_of(body, settings)[0]


READERS: list[Callable[[dict[str, Any], Settings], Any]] = [
    fusion.job_of,
    piston.job_of,
    own.job_of,
    jobs_of_map,
]


@pytest.mark.parametrize("read", READERS)
def test_a_hostile_value_of_a_field_is_within_the_limits_or_refused(read: Any) -> None:
    for name in LIKELY:
        for value in HOSTILE:
            check(read, {name: value})


@pytest.mark.parametrize("read", READERS)
@FEW
@given(body=bodies)
def test_a_body_is_jobs_within_the_limits_or_refused(read: Any, body: dict[str, Any]) -> None:
    check(read, body)


def check(read: Any, body: dict[str, Any]) -> None:
    likely = {"code": "1", "source": "1", "language": "python", "items": [{}], "files": {}, **body}
    if read is own.job_of:
        likely.pop("items")
    if read in (own.job_of, jobs_of_map):
        likely = {name: value for name, value in likely.items() if name in own.MAP_FIELDS}
    if read is piston.job_of and not body.get("files"):
        likely["files"] = [{"content": "1"}]
    try:
        found = read(likely, SETTINGS)
    except Refused as error:
        assert 400 <= error.status < 500 and len(error.text) < 1000
        error.text.encode("utf-8", "backslashreplace")
        return
    for job in found if type(found) is list else [found]:
        if isinstance(job, str):  # why this language has no job
            continue
        assert 0 < job.timeout_sec <= SETTINGS.timeout_sec
        assert 0 < job.memory_mb <= SETTINGS.memory_mb
        assert type(job.memory_mb) is int and len(job.files) <= SETTINGS.files
        for text in (job.source, *job.args, *job.files, *job.fetch):
            text.encode()
            assert "\0" not in text or text == job.source
        for name in job.files:
            assert ".." not in name.split("/") and not name.startswith("/")


@FEW
@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=4))))
def test_mutants_of_a_body_are_objects_or_refused(
    start: bytes, changes: list[tuple[int, bytes]]
) -> None:
    body = bytearray(b'{"code": "print(\\"1\\")", "files": {"a": null}, "x": [1, 2.5e3, true]}')
    for place, change in changes:
        body[place : place + 1] = change
    for one in (bytes(body), start, start + bytes(body)):
        try:
            assert type(parsed(one)) is dict
        except Refused as error:
            assert error.status == 400


def test_the_memory_of_what_is_parsed_is_known_before() -> None:
    objects = json.dumps([{"a": 1}] * 100_000).encode()
    tracemalloc.start()
    found = json.loads(objects)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 100_000 and taken > 4 * len(objects)
    assert taken < _strict_json.memory(objects) < 10 * taken
    for text in ("1, 2, [3], {}" * 100_000, '",' * 100_000):  # commas of a program are no values
        data = json.dumps({"code": text}).encode()
        assert len(data) <= _strict_json.memory(data) < len(data) + 10_000
    wide = json.dumps({"code": "x" * 100_000 + "😀"}, ensure_ascii=False).encode()
    assert _strict_json.memory(wide) > 400_000


def test_sizes_of_memory_are_few() -> None:
    sizes = {fields.memory_mb(one, "memory", 1000) for one in range(-1, 2000)}
    assert sizes == {64, 128, 256, 512, 1000}
    for wrong in (float("inf"), math.nan, "1", True, [1]):
        with pytest.raises(Refused):
            fields.memory_mb(wrong, "memory", 1000)


class Recorded(dict[str, Any]):
    """An object that knows which of its fields were asked for."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: set[str] = set()

    def get(self, name: str, usual: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, usual)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


def test_the_document_has_every_route_and_every_field() -> None:
    from hutch.serve import openapi
    from hutch.serve.app import Server

    document = openapi.document()
    json.dumps(document, allow_nan=False)
    routes = {route.path: route for route in Server(SETTINGS).routes()}
    assert {
        (path, method.upper()) for path, ways in document["paths"].items() for method in ways
    } == {(path, next(iter(set(route.methods or ()) - {"HEAD"}))) for path, route in routes.items()}
    schemas = document["components"]["schemas"]
    used = set()
    for text in json.dumps(document).split('"$ref": "#/components/schemas/')[1:]:
        used.add(text.partition('"')[0])
    assert used == schemas.keys()

    def properties(path: str) -> dict[str, Any]:
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        found: dict[str, Any] = schemas[body["schema"]["$ref"].rpartition("/")[2]]["properties"]
        return found

    full = {"code": "1", "language": "python", "cells": ["1"], "scripts": ["1"]}
    read = Recorded(full)
    fusion.job_of(read, SETTINGS)
    fusion.patience_sec(read)
    assert read.asked == properties("/run_code").keys()
    read = Recorded({"language": "python", "files": [{"content": "1"}]})
    piston.job_of(read, SETTINGS)
    assert read.asked == properties("/api/v2/execute").keys()
    assert set(own.RUN_FIELDS) == properties("/v1/run").keys()
    assert set(own.MAP_FIELDS) == properties("/v1/map").keys()
    assert set(own.ITEM_FIELDS) == properties("/v1/map")["items"]["items"]["properties"].keys()
    assert set(sessions.OPEN_FIELDS) == properties("/v1/sessions").keys()
    assert set(sessions.EXEC_FIELDS) == properties("/v1/sessions/{id}/exec").keys()
    assert set(sessions.BASH_FIELDS) == properties("/v1/sessions/{id}/bash").keys()
    for path, names in (("/run_jupyter", "_run_jupyter"), ("/execute_batch", "_execute_batch")):
        read = Recorded(full)
        asyncio.run(answered(names, read))
        assert read.asked == properties(path).keys()


async def answered(name: str, body: dict[str, Any]) -> None:
    """Of a server at whose place nothing runs."""
    from hutch import Outcome
    from hutch.serve import notebook
    from hutch.serve.app import Server

    async def run_nothing(*given: Any) -> Any:
        return notebook.Ran([Outcome("returned")])

    runs = notebook.run_cells
    notebook.run_cells = run_nothing
    try:
        request = Request({"type": "http", "headers": []})
        with Room(Shares(1), Client()) as room:
            await getattr(Server(SETTINGS), name)(Asked(body, 0, Client(), request, room))
    finally:
        notebook.run_cells = runs


def test_the_document_says_which_paths_are_taken() -> None:
    from hutch.serve import openapi

    pattern = re.compile(openapi._PATH["pattern"].removesuffix("$"))
    for size in range(6):
        for letters in itertools.product("/.a\0", repeat=size):
            text = "".join(letters)
            try:
                fields.path(text, "files")
                is_taken = True
            except Refused:
                is_taken = False
            assert bool(pattern.fullmatch(text)) == is_taken, text
    assert fields.path("./" * 40 + "a", "files") == "a"
    with pytest.raises(Refused):
        fields.path("./" * 40 + "../a", "files")


@pytest.mark.parametrize("wrong", [{"files": 1}, {"compile_timeout": "x"}, {"args": ["\0"]}])
def test_a_wrong_request_is_refused_whatever_its_language(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        fusion.job_of({"code": "1", "language": "cobol", **wrong}, SETTINGS)
    assert "'cobol'" in str(fusion.job_of({"code": "1", "language": "cobol"}, SETTINGS))


def test_the_document_has_every_field_of_an_outcome() -> None:
    from hutch import Outcome
    from hutch._outcome import ErrorInfo, Usage
    from hutch._remote.wire import to_wire
    from hutch.serve import openapi

    schemas = openapi.SCHEMAS
    assert to_wire(Outcome[Any]("returned")).keys() == schemas["Outcome"]["properties"].keys()
    assert set(ErrorInfo.__slots__) == schemas["Error"]["properties"].keys()
    assert set(Usage.__slots__) == schemas["Usage"]["properties"].keys()


def test_the_page_names_every_route_field_and_setting() -> None:
    from hutch.serve import openapi
    from hutch.serve.settings import _KEYS

    page = (Path(__file__).parents[1] / "docs" / "serve.md").read_text()
    words = set(re.findall(r"[\w.]+", page))
    for path, (_, body, answer) in openapi.ROUTES.items():
        assert re.search(f"[ `]{re.escape(path)}`", page), path
        for schema in (body, answer):
            if schema not in ("Outcome", "Document"):  # which other pages have
                missing = set(openapi.SCHEMAS.get(schema, {}).get("properties", ())) - words
                assert not missing, (path, missing)
    assert not _KEYS - words
