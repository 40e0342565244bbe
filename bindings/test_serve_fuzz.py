# SPDX-License-Identifier: Apache-2.0
"""Requests made of what is right and what is not: each is a job, or it is refused. HUTCH_FUZZ_CASES
says how many are tried.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from starlette.requests import Request

from hutch.serve import fusion, gate, own, piston
from hutch.serve.body import parsed
from hutch.serve.encode import encoded, size_of
from hutch.serve.gate import Refused
from hutch.serve.settings import Client, Settings

CASES = int(os.environ.get("HUTCH_FUZZ_CASES", 3000))
SETTINGS = Settings(files=20, memory_mb=1000)
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 512, 512.0, 1e308, -1e-308, 10**30, -(10**400), 1.5, "", "x",
    "python", "bash", "nodejs", "pytest", "3", "*", ">=3.10 || <2", "a" * 5000, "\0", "\ud83d",
    "../x", "a/b", "/", "./" * 40 + "x", "eHh4", "====", "utf8", "hex", [], [""], ["x", 1], {},
    {"x": "eHh4"}, {"x": None}, {"x": {"y": []}}, [[[]]], [{"content": "print(1)"}],
    {"": ""}, "é", "\U0001f600", "python3", "main.py", [None], [{}], {"a": 1, "b": [2]},
]  # fmt: skip
FIELDS = (
    "code", "language", "run_timeout", "compile_timeout", "memory_limit_MB", "stdin", "args",
    "files", "fetch_files", "cells", "cell_timeout", "total_timeout", "kernel", "source", "items",
    "ordered", "stdin_base64", "timeout_sec", "memory_mb", "labels", "version", "run_memory_limit",
    "compile_memory_limit", "content", "name", "encoding", "more",
)  # fmt: skip
GOOD: list[dict[str, Any]] = [
    {"code": "print(1)", "language": "python", "files": {"x": "eHh4"}, "fetch_files": ["x"]},
    {"cells": ["1"], "total_timeout": 5, "files": {"x": "eHh4"}},
    {"source": "1", "timeout_sec": 1, "args": ["a"], "labels": {"a": "b"}, "memory_mb": 512},
    {"items": [{"source": "1"}, {"source": "2", "stdin": "x"}], "ordered": False},
    {"language": "python", "version": "3", "files": [{"content": "1", "name": "a.py"}]},
]
MODELS = (fusion.job_of, fusion.notebook_of, own.job_of, own.jobs_of, piston.job_of)


def changed(random: random.Random, value: Any) -> Any:
    """With something in it that is another thing."""
    if type(value) is dict and random.random() < 0.9:
        value = dict(value)
        for _ in range(random.randint(1, 3)):
            name = random.choice([*value, *FIELDS])
            value[name] = changed(random, value.get(name))
        if random.random() < 0.2:
            value.pop(random.choice([*value]))
        return value
    if type(value) is list and value and random.random() < 0.7:
        value = list(value)
        value[random.randrange(len(value))] = changed(random, random.choice(value))
        return value * random.choice((1, 1, 1, 50))
    return random.choice(VALUES)


def test_whatever_a_body_says_it_is_a_job_or_refused() -> None:
    chosen = random.Random(1)
    jobs = 0
    for _ in range(CASES):
        body = changed(chosen, chosen.choice(GOOD))
        if type(body) is not dict:
            continue
        size_of(body)
        for model in MODELS:
            try:
                model(body, SETTINGS)
                jobs += 1
            except Refused as error:
                assert 400 <= error.status < 500
                encoded({"message": error.text})
    assert jobs > CASES // 10


def test_whatever_bytes_a_body_has_it_is_parsed_or_refused() -> None:
    chosen = random.Random(2)
    whole = 0
    texts = [json.dumps(one, ensure_ascii=False).encode() for one in GOOD]
    for _ in range(CASES):
        text = bytearray(chosen.choice(texts))
        for _ in range(chosen.randint(0, 3)):
            place = chosen.randrange(len(text) + 1)
            with_more = chosen.choice((b'"', b"\\", b"\\ud83d", b"\xff", b",", b"[" * 40, b"1e999",
                                       b"NaN", b"{}", b"\0", b":", b"9" * 1200))  # fmt: skip
            text[place : place + chosen.randint(0, 2)] = with_more
        try:
            parsed(bytes(text))
            whole += 1
        except Refused as error:
            assert error.status == 400 and error.text.startswith("the body ")
    assert whole > CASES // 10


KEYED = Settings(keys=((b"0" * 32, Client("a")),), hosts=("runner",), allow_from=("10.0.0.0/8",))
HEADERS = (b"host", b"origin", b"authorization", b"x-api-key", b"idempotency-key", b"forwarded")
TEXTS = (
    b"", b"localhost", b"127.0.0.1:80", b"[::1]", b"[::1", b"evil.example", b"runner:99999",
    b"\xff", b"Bearer x", b"Bearer ", b"bearer\t", b"x" * 5000, b"http://localhost", b"null",
    b"::ffff:10.0.0.1",
)  # fmt: skip
PEERS = (None, ("127.0.0.1", 1), ("10.1.2.3", 1), ("::ffff:10.0.0.1", 1), ("8.8.8.8", 1), ("", 1))


@pytest.mark.parametrize(
    ("settings", "let_in"),
    [(SETTINGS, {"127.0.0.1"}), (KEYED, {"10.1.2.3", "::ffff:10.0.0.1"})],
    ids=["no keys", "keys"],
)
def test_whoever_asks_is_let_in_or_refused(settings: Settings, let_in: set[str]) -> None:
    chosen = random.Random(3)
    seen = set()
    for _ in range(CASES):
        names = chosen.choices(HEADERS, k=chosen.randint(0, 4))
        scope = {
            "type": "http", "method": "POST", "path": "/run_code",
            "headers": [(name, chosen.choice(TEXTS)) for name in names],
            "client": chosen.choice(PEERS),
            "path_params": chosen.choice(({}, {"key": "x"}, {"key": ""})),
        }  # fmt: skip
        peer, is_open = scope["client"], chosen.random() < 0.1
        try:
            found = gate.client_of(Request(scope), settings, without_key=is_open)
        except Refused as error:
            assert error.status in (401, 403, 421)
        else:
            assert found.name == ""  # nobody has sent a key that is known
            assert is_open or (peer is not None and peer[0] in let_in)
            seen.add(peer)
    assert len(seen) > 1
