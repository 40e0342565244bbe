# SPDX-License-Identifier: Apache-2.0
"""Rows of sessions, tools, generators and what is printed."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import processes
import session_floors as floors
from calls import PACE, Bench
from floors import PARKED
from table import BYTES, RATE, Row

import hutch
from hutch import AsyncSession, Session
from hutch.cli import measure
from hutch.cli.measure import Echo, Times, each, in_turns


def exec_(bench: Bench) -> Iterator[Row]:
    part = bench.many // 10
    function = bench.function()
    with Session() as s, Echo() as echo:
        s.exec("x=1")

        def run(_: int) -> object:
            return s.exec("x=1")

        ours, floor = in_turns(10, lambda: each(run, part), lambda: each(echo, part))
        paced, fresh = in_turns(
            10, lambda: each(run, part, 1 / PACE), lambda: each(function, part, 1 / PACE)
        )
    yield Row(
        "exec",
        's.exec("x=1"), back to back',
        ours.p50,
        p99=ours.p99,
        floor=floor.p50,
        floor_is="echo",
        floor_p99=floor.p99,
        target="≤ 0.1 ms",
        met=ours.p50 <= 0.0001,
    )
    yield Row(
        "exec-paced",
        f"the same, {PACE} a second",
        paced.p50,
        p99=paced.p99,
        floor=fresh.p50,
        floor_is="warm call",
        floor_p99=fresh.p99,
        target="≤ 1.2 × a warm call",
        met=paced.p50 <= 1.2 * fresh.p50,
    )


AT_ONCE = 50


def on_a_loop(bench: Bench) -> Iterator[Row]:
    """Of one session, and of many at once, which no thread waits for."""
    part = bench.many // 10

    async def measured() -> tuple[Times, Times, Times]:
        ours, floor, all_ = Times(), Times(), Times()
        async with contextlib.AsyncExitStack() as stack:
            made = [AsyncSession(memory_mb=64) for _ in range(AT_ONCE)]
            for s in made:
                await stack.enter_async_context(s)
                await s.exec("x=1")
            echo = stack.enter_context(Echo())

            async def run(s: AsyncSession, count: int) -> list[float]:
                taken = []
                for _ in range(count):
                    begun = time.perf_counter()
                    await s.exec("x=1")
                    taken.append(time.perf_counter() - begun)
                return taken

            for _ in range(10):
                ours.add(Times(await run(made[0], part)))
                floor.add(each(echo, part))
            begun = time.perf_counter()
            taken = await asyncio.gather(*(run(s, max(1, part // 10)) for s in made))
            all_.add(Times([t for one in taken for t in one], time.perf_counter() - begun))
        return ours, floor, all_

    ours, floor, all_ = asyncio.run(measured())
    yield Row("exec-async", "the same of an AsyncSession, back to back", ours.p50, p99=ours.p99,
              floor=floor.p50, floor_is="echo", floor_p99=floor.p99)  # fmt: skip
    yield Row("execs-async", f"execs of {AT_ONCE} sessions at once, on one loop", all_.rate, RATE,
              floor=1 / floor.p50, floor_is="echo", takes_all=True)  # fmt: skip


def life(bench: Bench) -> Iterator[Row]:
    count = 5 if bench.quick else 30
    function = bench.function()

    def start(_: int) -> None:
        s = Session()
        s.exec("1")
        opened.append(s)

    opened: list[Session] = []
    started, floor = Times(), Times()
    with bench.parked() as parked:
        for _ in range(count):
            measure.parked(function)
            started.add(each(start, 1))
            opened.pop().close()
            floor.add(each(parked, 1))
    yield Row(
        "session-start", "a session's first exec, from a parked cell", started.p50,
        p99=started.p99, floor=floor.p50, floor_is=PARKED, target="≤ 2 ms",
        met=started.p50 <= 0.002,
    )  # fmt: skip
    yield from ends(bench, count)
    yield from ends(bench, count, "pandas")


def ends(bench: Bench, count: int, *dependencies: str) -> Iterator[Row]:
    resets, deaths, kills, forked = Times(), Times(), Times(), Times()
    bench.function(*dependencies)
    session = Session(dependencies=list(dependencies))
    with session as s, bench.forks(1, *dependencies) as forks:
        s.exec("1")
        for _ in range(count):
            resets.add(each(lambda _: s.reset(), 1))
            s.exec("1")
            deaths.add(each(lambda _: s.exec("import os; os._exit(1)"), 1))
            kills.add(each(lambda _: s.exec("1"), 1))
            forked.add(forks(0.02))
        assert s.info()["restarts"] == 2 * count
    of = "".join(f", {name}" for name in dependencies)
    rows = (
        ("session-reset", "reset()", resets, 40 if of else 10),
        ("session-crash", "an exec that ends its interpreter", deaths, 40 if of else 20),
        ("session-restart", "the first exec after it", kills, 40 if of else 20),
    )
    for key, what, times, most in rows:
        key, met = "-".join([key, *dependencies]), times.p50 <= most / 1000
        yield Row(key, what + of, times.p50, p99=times.p99, floor=forked.p50,
                  floor_is="fork + exit + wait", floor_p99=forked.p99, target=f"≤ {most} ms",
                  met=met)  # fmt: skip


def interrupts(bench: Bench) -> Iterator[Row]:
    taken, count = Times(), 3 if bench.quick else 20
    with Session() as s:
        s.exec("import time")
        for _ in range(count):
            asked = [0.0]

            def interrupt(asked: list[float] = asked) -> None:
                asked[0] = time.perf_counter()
                s.interrupt()

            timer = threading.Timer(0.05, interrupt)
            timer.start()
            outcome = s.exec("while True: pass")
            taken.taken.append(time.perf_counter() - asked[0])
            assert outcome.error is not None and outcome.error.type == "KeyboardInterrupt"
            timer.join()
    floor = floors.interrupted(count)
    yield Row("interrupt", "interrupt() until exec returns", taken.p50, p99=taken.p99,
              floor=floor.p50, floor_is=floors.SIGNAL, floor_p99=floor.p99,
              target="≤ 20 ms", met=taken.p50 <= 0.02)  # fmt: skip


def tools(bench: Bench) -> Iterator[Row]:
    count = bench.many

    def add(x: int, y: int = 1) -> int:
        return x + y

    code = f"import time\nt = time.perf_counter()\nfor i in range({count}): add(i)\n"
    code += f"(time.perf_counter() - t) / {count}"
    with Session(tools=[add], timeout_sec=300) as s, Echo() as echo:
        ours, floor = in_turns(
            3, lambda: Times([s.exec(code).unwrap()]), lambda: each(echo, bench.many)
        )
    yield Row("tool", "a tool's round trip", ours.p50, floor=floor.p50, floor_is="echo",
              target="≤ 0.15 ms", met=ours.p50 <= 0.00015)  # fmt: skip


def kv(bench: Bench) -> Iterator[Row]:
    count = min(bench.many, 450)  # two requests each: more than 1000 at once are refused
    code = "from hutch_tools import kv\nimport time\nt = time.perf_counter()\n"
    code += f"for i in range({count}): kv.set('a', str(i)); kv.get('a')\n"
    code += f"(time.perf_counter() - t) / {2 * count}"

    def inside() -> Times:
        with Session(timeout_sec=300) as s:
            s.exec("1")
            return Times([s.exec(code).unwrap()])

    with Session() as s, Echo() as echo:

        def outside(i: int) -> object:
            s.kv.set("a", str(i))
            return s.kv.get("a")

        ours, floor = in_turns(3, inside, lambda: each(echo, bench.many))
        host = each(outside, bench.many)
    yield Row("kv", "kv.set or kv.get of code inside", ours.p50, floor=floor.p50, floor_is="echo",
              target="≤ 0.5 ms", met=ours.p50 <= 0.0005)  # fmt: skip
    yield Row("kv-host", "s.kv.set and s.kv.get", host.p50, p99=host.p99, target="≤ 0.3 ms",
              met=host.p50 <= 0.0003)  # fmt: skip


def items(bench: Bench) -> Iterator[Row]:
    @hutch.sandbox(timeout_sec=300)
    def made(count: int, size: int) -> Iterator[bytes]:
        for _ in range(count):
            yield bytes(size)

    def once(count: int, size: int) -> Times:
        return each(lambda _: sum(map(len, made(count, size))), 1)

    once(10, 1)
    small, large = 10 * bench.many, bench.many
    taken = min(once(small, 1).whole for _ in range(3))
    floor = min(floors.items(small, 1) for _ in range(3))
    yield Row("yields", "small items of a generator", small / taken, RATE, floor=small / floor,
              floor_is=floors.SENT, target="≥ 20,000/s", met=small / taken >= 20_000)  # fmt: skip
    taken = min(once(large, 64 << 10).whole for _ in range(3))
    floor = min(floors.items(large, 64 << 10) for _ in range(3))
    rate = (large << 16) / taken
    yield Row("yields-64k", "items of 64 KiB", rate, BYTES, floor=(large << 16) / floor,
              floor_is=floors.SENT, target="≥ 200 MB/s", met=rate >= 200e6,
              note="bytes per second")  # fmt: skip


def output(bench: Bench) -> Iterator[Row]:
    size = (16 if bench.quick else 256) << 20
    got = [0]

    def take(text: str) -> None:
        got[0] += len(text)

    code = f"import os\nblock = b'x' * (1 << 20)\nfor _ in range({size >> 20}): os.write(1, block)"
    with Session(timeout_sec=300, echo=False) as s:
        s.exec("1")
        times = [each(lambda _: s.exec(code, on_stdout=take), 1) for _ in range(3)]
    assert got[0] == 3 * size
    rate = size / min(one.whole for one in times)
    floor = size / min(floors.piped(size) for _ in range(3))
    yield Row("on-stdout", "what is printed, to on_stdout=", rate, BYTES, floor=floor,
              floor_is=floors.PIPED, target="≥ 1 GB/s", met=rate >= 1e9,
              note="bytes per second")  # fmt: skip


def files(bench: Bench) -> Iterator[Row]:
    size, count = (10 << 20, 500) if bench.quick else (100_000_000, 10_000)
    with tempfile.TemporaryDirectory() as top, contextlib.ExitStack() as stack:
        large, tree = Path(top, "large"), Path(top, "tree")
        back, all_back = Path(top, "back"), Path(top, "all_back")
        large.write_bytes(bytes(size))
        tree.mkdir()
        for i in range(count):
            (tree / f"{i}.txt").write_text(f"file {i}\n" * 10)
        s = stack.enter_context(Session(timeout_sec=300, disk_mb=512, memory_mb=2048))
        s.exec("1")
        moves = (
            ("file-up", f"upload of {size // 1000000} MB", large, 0.3,
             lambda: s.files.upload(large)),
            ("file-down", "its download", large, 0.3, lambda: s.files.download("large", back)),
            ("files-up", f"upload of {count:,} small files", tree, 2,
             lambda: s.files.upload(tree)),
            ("files-down", "their download", tree, 2, lambda: s.files.download("tree", all_back)),
        )  # fmt: skip
        for key, what, source, most, move in moves:
            begun = time.perf_counter()
            move()
            taken = time.perf_counter() - begun
            floor = floors.copied(source, Path(top, "copy"))
            yield Row(key, what, taken, floor=floor, floor_is=floors.COPIED, target=f"≤ {most} s",
                      met=None if bench.quick else taken <= most)  # fmt: skip


def idle(bench: Bench) -> Iterator[Row]:
    count = 20 if bench.quick else 200
    row = Row("idle-sessions", f"{count} idle sessions, private memory of each", unit=BYTES,
              target="≤ 3 MB; ≤ 3 % of a core")  # fmt: skip
    try:
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(Session(idle_sec=None)) for _ in range(count)]
            for s in sessions:
                s.exec("x = 1")
            time.sleep(2)
            wardens = [int(one["Pid"]) for one in processes.containers("worker")]
            agent = int(processes.containers("agent")[0]["Pid"])
            trees = [processes.worker_tree(pid) for pid in wardens if processes.is_warden(pid)]
            made = sum(len(tree.cells) for tree in trees)
            cells = [pid for tree in trees for pid in tree.slots + tree.cells]
            row.value = sum(map(processes.private, cells)) / made
            watched = [agent, *wardens]
            before, begun = sum(map(cpu_sec, watched)), time.monotonic()
            time.sleep(10)
            share = (sum(map(cpu_sec, watched)) - before) / (time.monotonic() - begun)
            row.note = f"agent and wardens take {share:.1%} of a core"
            row.met = row.value <= 3e6 and share <= 0.03
    except (OSError, hutch.SandboxError) as error:
        row.skipped = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    yield row


def cpu_sec(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def back_again(bench: Bench) -> Iterator[Row]:
    """What an exec takes of the time between its code's end and its Outcome."""
    with Session() as s:
        s.exec("import time")
        ends = Times()
        for _ in range(bench.many // 10):
            ended = s.exec("time.time()").unwrap()
            ends.taken.append(time.time() - ended)
    what = "from an exec's last expression to its Outcome"
    yield Row("exec-end", what, ends.p50, p99=ends.p99)


ROWS = {
    "exec": exec_,
    "exec-async": on_a_loop,
    "exec-end": back_again,
    "session-life": life,
    "interrupt": interrupts,
    "tool": tools,
    "kv": kv,
    "yields": items,
    "on-stdout": output,
    "session-files": files,
    "idle-sessions": idle,
}
