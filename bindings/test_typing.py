# SPDX-License-Identifier: Apache-2.0
"""What a type checker says of a user's program: what is right passes, what is wrong does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

RIGHT = """
from __future__ import annotations
from collections.abc import Iterator
from typing import Any
import hutch
from hutch import AsyncSession, Executor, Outcome, Program, SandboxFuture, Session, sandbox
from typing_extensions import assert_type

@sandbox
def double(x: int, *, times: int = 2) -> int:
    return x * times

@sandbox(dependencies=["pandas"], timeout_sec=5, memory_mb=512, pool=hutch.Pool(warm=2))
def name(x: int) -> str:
    return str(x)

@sandbox(timeout_sec=None)
async def wait(x: int) -> float:
    return x / 2

class Shop:
    @sandbox
    def price(self, item: str) -> float:
        return 1.5

    @sandbox
    async def order(self, item: str) -> bytes:
        return b""

assert_type(Shop().price("x"), float)
assert_type(Shop().price.run("x"), Outcome[float])
assert_type(Shop().order.run("x"), Outcome[bytes])
assert_type(Shop.price(Shop(), "x"), float)
assert_type(double(3, times=4), int)
assert_type(name(1), str)
assert_type(double.run(3), Outcome[int])
assert_type(double.run(3).unwrap(), int)
assert_type(double.submit(3), SandboxFuture[int])
assert_type(double.map([1, 2]), Iterator[int])
assert_type(double.map([1, 2], on_error="outcome"), Iterator[Outcome[int]])
assert_type(name.options(timeout_sec=3)(4), str)
assert_type(name.local(4), str)
assert_type(wait.run(3), Outcome[float])
assert_type(hutch.run("print()", stdin="x"), Outcome[None])
assert_type(hutch.function("def f(): ...", "f", timeout_sec=3)(1, 2), Any)

async def main() -> None:
    assert_type(await wait(3), float)
    assert_type(await double.aio(3), int)
    assert_type(await Shop().order("x"), bytes)
    assert_type([x async for x in double.map_aio([1])], list[int])
    assert_type([x async for x in double.map_aio([1], on_error="outcome")], list[Outcome[int]])

async def session() -> None:
    async with AsyncSession(files={"a": "b"}, idle_sec=3, timeout_sec=5) as s:
        assert_type(await s.exec("1", timeout_sec=3, on_stdout=print), Outcome[Any])
        assert_type(await s.bash("ls", cwd="a", cpu_sec=None), Outcome[None])
        assert_type(await s.files.read("a"), str)
        assert_type(await s.files.list(), list[str])
        assert_type(await s.files.changed(), dict[str, str])
        assert_type(await s.files.scan(), list[hutch.FileEntry])
        assert_type([step async for step in s.files.walk()], list[tuple[str, list[str], list[str]]])
        await s.files.write("a", open("b", "rb"))
        assert_type(await s.complete("x."), hutch.Completion)
        assert_type((await s.inspect("x")).doc, str)
        assert_type(await (await s.child()).variables(modules=True), list[hutch.Variable])
        assert_type(await s.snapshot(), bytes)
        assert_type((await s.child()).session, AsyncSession)
        process = await s.start(["cat"])
        assert_type([line async for line in process.lines()], list[str])

def later(outcome: Outcome[int]) -> None:
    if outcome.error is not None:
        print(outcome.error.type, outcome.error.line, outcome.usage.suggested)
    double.options(**outcome.usage.suggested)

with Executor(max_workers=2, timeout_sec=5) as executor:
    assert_type(executor.submit(len, "x").result(), int)
try:
    double(1)
except hutch.LimitExceeded as error:
    print(error.limit, error.allowed, error.used, error.hint)
"""

WRONG = """
from hutch import AsyncSession, Session, sandbox

@sandbox(timeout_secs=5)
def f(x: int) -> int: return x

@sandbox
def g(x: int) -> int: return x

g("x")
g.run()
y: str = g(1)

async def main() -> None:
    async with AsyncSession(idle_secs=3) as s:
        await s.exec("1", timeout_secs=3)
        await s.files.readd("a")
        text: bytes = await s.files.read("a")

Session().exec("1", memory_mb=3)
"""


def mypy(tmp_path: Path, source: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )


def test_a_users_program_is_typed(tmp_path: Path) -> None:
    done = mypy(tmp_path, RIGHT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_users_mistakes_are_seen(tmp_path: Path) -> None:
    done = mypy(tmp_path, WRONG)
    for line in (4, 10, 11, 12, 15, 16, 17, 18, 20):
        assert f"program.py:{line}: error" in done.stdout, done.stdout
