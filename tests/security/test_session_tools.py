# SPDX-License-Identifier: Apache-2.0
"""What code inside sends of its own make, while async tools run, costs the host no more than honest
code does.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import hutch
from hutch import AsyncSession, Tool
from hutch._core import FRAME_VERSION as VERSION

ANSWER_BYTES = 200_000  # too much for a frame
MOST_ANSWERS = 17  # one that is not read, and so many tools at once

FORGE = f"""
import gc, os, socket, struct, _hutch_cell as cell
talk = next(o for o in gc.get_objects() if type(o).__name__ == 'Dialogue')
encode = type(talk).ask.__globals__['encoding']
s = socket.socket(fileno=os.dup(3))
def put(*content, kind=cell.ASK):
    payload = encode.encode(list(content), cell.MOST_IN_PARTS, False)
    data = b''.join(bytes(chunk) for _, chunk in payload.chunks())
    talk.number += 1
    size = len(payload.body)
    head = struct.pack('<HBBIQQQ', 0x4348, {VERSION}, kind, size, talk.call_id, talk.number,
                       len(data))
    s.send(head + data)
"""


def test_answers_that_are_not_read_are_no_more_than_tools_may_run() -> None:
    made = 0

    def at_once(size: int) -> bytes:
        nonlocal made
        made += 1
        return bytes(size)

    async def later(size: int) -> bytes:
        return at_once(size)

    async def main() -> None:
        nonlocal made
        async with AsyncSession(memory_mb=256, timeout_sec=20, tools=[later, at_once]) as s:
            await s.exec(FORGE)
            for name in ("later", "at_once"):
                made = 0
                forged = f"for _ in range(60): put('tool', '{name}', [{ANSWER_BYTES}], {{}})"
                assert (await s.exec(forged)).ok
                assert 0 < made <= MOST_ANSWERS
            honest = (
                f"import asyncio\nsizes = [{ANSWER_BYTES}] * 60\n"
                "sum(map(len, [*await asyncio.gather(*map(later, sizes)), *map(at_once, sizes)]))"
            )
            assert (await s.exec(honest)).value == 120 * ANSWER_BYTES

    asyncio.run(main())


@pytest.mark.parametrize("topic", ["cancel", "begun", "got"])
@pytest.mark.parametrize("number", ["numpy.arange(3)", "decimal.Decimal('sNaN')", "[2]", "True"])
def test_a_number_that_is_none_is_nobodys(topic: str, number: str) -> None:
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async def main() -> None:
        async with AsyncSession(
            memory_mb=256, timeout_sec=20, tools=[double], dependencies=["numpy"]
        ) as s:
            await s.exec("import asyncio, decimal, numpy\n" + FORGE)
            outcome = await s.exec(
                f"task = asyncio.create_task(double(4))\nawait asyncio.sleep(0)\n"
                f"put('{topic}', {number}, kind=cell.SAY)\nawait task"
            )
            assert outcome.value == 8, outcome

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["cell", "container"])
def test_a_program_gets_no_more_from_async_tools_than_a_session(isolation: Any) -> None:
    made = begun = 0

    async def later(size: int) -> bytes:
        nonlocal made
        made += 1
        return bytes(size)

    async def stay() -> None:
        nonlocal begun
        begun += 1
        await asyncio.Event().wait()

    async def main() -> None:
        nonlocal made

        async def run(source: str) -> hutch.Outcome[None]:
            tools = [later, stay]
            return await hutch.run_aio(
                source, memory_mb=256, timeout_sec=20, tools=tools, isolation=isolation
            )

        assert (await run(FORGE + "for _ in range(60): put('tool', 'stay', [], {})")).ok
        assert 0 < begun <= 16
        forged = f"for _ in range(60): put('tool', 'later', [{ANSWER_BYTES}], {{}})"
        assert (await run(FORGE + forged)).ok
        assert 0 < made <= MOST_ANSWERS
        for topic in ("cancel", "begun", "got", "nested", "ended", "kv"):
            outcome = await run(
                f"{FORGE}put({topic!r}, 1, kind=cell.SAY)\nput({topic!r}, [2])\n"
                f"put({topic!r}, 1, 'returned', b'', 0)"
            )
            assert outcome.status in ("returned", "died"), (topic, outcome)
        sizes = [ANSWER_BYTES] * 60
        honest = (
            "import asyncio\nasync def main():\n"
            f"    print(sum(map(len, await asyncio.gather(*map(later, {sizes})))))\n"
            "asyncio.run(main())"
        )
        made = 0
        assert (await run(honest)).stdout == f"{60 * ANSWER_BYTES}\n"
        assert made == 60

    asyncio.run(main())


class Count:
    """Of calls of a tool that blocks, for so long."""

    def __init__(self, sec: float) -> None:
        self.sec = sec
        self.now = self.most = self.all = 0
        self._lock = threading.Lock()

    def block(self) -> int:
        with self._lock:
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)
        time.sleep(self.sec)
        with self._lock:
            self.now -= 1
        return 1


async def nothing() -> int:
    return 0


async def yes(_name: str, _arguments: Any) -> bool:
    return True


def in_session(source: str, *tools: Any) -> Any:
    async def main() -> Any:
        async with AsyncSession(memory_mb=256, timeout_sec=30, tools=tools) as s:
            return await s.exec("from hutch_tools import *\n" + source)

    return asyncio.run(main())


def in_program(source: str, *tools: Any) -> Any:
    return asyncio.run(hutch.run_aio(source, memory_mb=256, timeout_sec=30, tools=tools))


ASK_AND_LEAVE = """
import time
for _ in range(40):
    begun = talk.number
    for _ in range(16):
        put('tool', 'block', [], {})
    for number in range(begun + 1, begun + 17):
        put('cancel', number, kind=cell.SAY)
    time.sleep(0.02)
"""
# What an honest one may do: the calls of a tool that is not async take turns.
IN_THREADS = """
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(8) as threads:
    print(sum(threads.map(lambda _: block(), range(8))))
"""


@pytest.mark.parametrize("run", [in_session, in_program])
def test_calls_that_are_left_begin_no_threads_without_end(run: Any) -> None:
    count = Count(2.0)
    assert run(FORGE + ASK_AND_LEAVE, nothing, Tool(count.block, timeout_sec=10)).ok
    assert 0 < count.most <= 16
    honest = Count(0.0)
    assert run(IN_THREADS, nothing, Tool(honest.block, timeout_sec=10)).stdout == "8\n"


@pytest.mark.parametrize("run", [in_session, in_program])
@pytest.mark.parametrize("approve", [yes, lambda *given: yes(*given)])
def test_a_tool_that_is_not_async_never_runs_beside_itself(run: Any, approve: Any) -> None:
    for topic in ("cancel", "nothing"):
        count = Count(0.002)
        source = FORGE + ASK_AND_LEAVE.replace("cancel", topic)
        assert run(source, nothing, Tool(count.block, approve=approve)).ok
        assert count.most == 1 or (count.most == 0 and topic == "cancel")
    honest = Count(0.0)
    assert run(IN_THREADS, nothing, Tool(honest.block, approve=yes)).stdout == "8\n"


@pytest.mark.parametrize("run", [in_session, in_program])
def test_what_tools_are_asked_with_at_once_is_bounded(run: Any) -> None:
    held, most, total = 0, 0, 0

    async def hold(data: bytes) -> int:
        nonlocal held, most, total
        held, total = held + len(data), total + len(data)
        most = max(most, held)
        try:
            await asyncio.sleep(0.2)
        finally:
            held -= len(data)
        return 1

    ask = """
encoded = talk._encoded(['tool', 'hold', [bytes(1_000_000)], {}])
for _ in range(40):
    talk._send_encoded(cell.ASK, encoded)
s.recv(70_000)  # that one is too much
"""
    assert run(FORGE + ask, hold).ok
    assert 0 < most <= 8 << 20
    total = 0
    honest = """
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(20) as threads:
    print(sum(threads.map(hold, [bytes(1_000_000)] * 40)))
"""
    assert run(honest, hold).stdout == "40\n"
    assert most <= 8 << 20 and total == 40_000_000
