# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (programs as text)
"""A real worker in a real container: every attack hits its wall, and its harmless counterpart works.

See driver.py for what it needs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

driver = pytest.importorskip("driver", reason="cloudpickle and msgpack are not installed")
pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
pytest.importorskip("msgpack", reason="msgpack is not installed")

from driver import (  # noqa: E402
    END_SLOT,
    RAISED,
    RESULT,
    SLOT_GONE,
    UNENCODABLE,
    Cell,
    Exit,
    Frame,
    Reply,
    Worker,
)

TIME, CPU, MEMORY, PIDS, DISK = 1, 2, 3, 4, 5
ONE, TWO = b"1" * 32, b"2" * 32  # identities


def podman_works() -> bool:
    if not driver.RUNTIME:
        return False
    try:
        return (
            subprocess.run([*driver.PODMAN, "image", "exists", driver.IMAGE], timeout=60).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


pytestmark = pytest.mark.skipif(
    not podman_works(),
    reason="needs Podman with the base image: HUTCH_TEST_PODMAN, HUTCH_TEST_RUNTIME, HUTCH_TEST_IMAGE",
)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(MEMORY_KB=200 << 10, DISK_KB=32 << 10, PIDS=20) as made:
        made.ready()
        yield made


@pytest.fixture
def cell(worker: Worker) -> Iterator[Cell]:
    made = worker.cell()
    made.arm(10_000)
    made_id = made.id
    yield made
    if not any(frame.kind == driver.CELL_EXIT and frame.id == made_id for frame in worker.inbox):
        worker.tell(Frame(driver.KILL, id=made_id))
        if not made.gone:
            made.exit()


def ended(cell: Cell, timeout: float = 20) -> Exit:
    report = cell.exit(timeout)
    cell.gone = True
    return report


def run(cell: Cell, source: str, **meta: object) -> Reply:
    reply = cell.program(source, **meta)
    assert reply is not None, "the cell died"
    assert reply.kind == RESULT, reply.value
    return reply


# ---- calls ----


def test_function_returns_data_and_its_output_is_kept_apart(cell: Cell) -> None:
    def add(a, b=0):  # type: ignore[no-untyped-def]
        import sys

        print("out")
        print("err", file=sys.stderr)
        return {"sum": a + b}

    reply = cell.call(add, 2, b=3)
    assert reply is not None and reply.kind == RESULT and reply.value == {"sum": 5}
    assert (reply.output, reply.errors) == ("out\n", "err\n")


def test_exception_comes_with_the_users_own_frames_only(cell: Cell) -> None:
    def fails(x):  # type: ignore[no-untyped-def]
        return x / 0

    reply = cell.call(fails, 1)
    assert reply is not None and reply.kind == RAISED
    assert reply.value["type"] == "ZeroDivisionError"
    assert reply.value["bases"][:2] == ["ZeroDivisionError", "ArithmeticError"]
    assert "in fails" in reply.value["traceback"] and "/opt/hutch" not in reply.value["traceback"]


def test_program_error_shows_its_own_lines(cell: Cell) -> None:
    reply = cell.program("def f():\n    return [][1]\nf()\n", filename="mine.py")
    assert reply is not None and reply.kind == RAISED
    assert reply.value["line"] == 2 and "return [][1]" in reply.value["traceback"]


@pytest.mark.parametrize(
    "line",
    ["exec('1 / 0')", "exec('\\n\\n\\n1 / 0')", "eval('1 / 0')", "import json; json.loads('{')"],
)
def test_error_of_text_that_a_program_runs_has_the_programs_line(cell: Cell, line: str) -> None:
    reply = cell.program(f"x = 1\n{line}\n", filename="mine.py")
    assert reply is not None and reply.value["line"] == 2


def test_a_program_of_a_command_line_has_no_file(cell: Cell) -> None:
    source = "import os, sys\nprint(sys.argv, '__file__' in globals(), os.listdir())\n1 / 0"
    reply = cell.program(source, filename="-c")
    assert reply is not None and reply.output == "['-c'] False []\n"
    assert 'File "<string>", line 3' in reply.value["traceback"]


def test_syntax_error_names_its_line(cell: Cell) -> None:
    reply = cell.program("x = 1\ny = (\n", filename="mine.py")
    assert reply is not None and reply.value["type"] == "SyntaxError" and reply.value["line"] == 2


def test_program_has_main_arguments_input_and_files(cell: Cell) -> None:
    source = "import sys\nassert __name__ == '__main__'\nprint(input(), sys.argv[1:], open('a/b.txt').read())"
    assert (
        run(cell, source, stdin="line\n", args=["x"], files={"a/b.txt": "text"}).output
        == "line ['x'] text\n"
    )


VALUES = [
    *(None, True, False, 0.5, -0.0, float("inf"), 10**400, -(10**400), 1j),
    *(sign * ((1 << bits) + more) for bits in range(65) for more in (-1, 0, 1) for sign in (1, -1)),
    *("x" * size for size in (0, 1, 31, 32, 255, 256, 4096, 4097, 70_000)),
    *("é" * 20, "\ud800", b"\xff", [1, "a"], {"a": (1,)}, {1}, 1 << 31, "\0"),
    *(b"x" * size for size in (1, 255, 256, 4096, 4097, 70_000)),
]


def test_short_and_long_way_of_a_call_answer_with_the_same_bytes(worker: Worker) -> None:
    import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

    code = cloudpickle.dumps(lambda value: value, 5)  # small: what comes as a descriptor goes long
    shared = {"mode": "function", "keep": "1"}
    both = []
    for plain in (False, True):
        cell = worker.cell()
        cell.arm(20_000)
        answers = []
        for value in VALUES:
            cell.send_call(code, shared, (value,), identity=ONE, mark=b"K" * plain)
            reply = cell.reply()
            assert reply is not None and reply.kind == RESULT, (value, reply)
            answers.append(reply.raw)
        both.append(answers)
        cell.kill()
    assert both[0] == both[1]


PROGRAMS = {
    "nothing": "pass",
    "names": "import sys\ndef f(x):\n    return x + 1\ny = f(1)\nprint(sorted(globals()), sys.argv, sys.path[0])",
    "main": "import sys\nm = sys.modules['__main__']\nprint(m is sys.modules[__name__], vars(m) is globals(), repr(m.__spec__), __file__, __annotations__, __builtins__)",
    "replaced main": "import sys\ndel sys.modules['__main__']\nprint('gone')",
    "input": "import sys\nprint(repr(sys.stdin.read()))",
    "raises": "def f():\n    return 1 / 0\n\nf()",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, a[2].tb_lineno)\n1 / 0",
    "exits": "import sys\nprint('a')\nsys.exit(3)",
    "exits with text": "raise SystemExit('so it is')",
    "exits with nothing": "raise SystemExit",
    "no syntax": "x = (\n",
    "warning": "x = 1\nprint(x is 1)",
    "exit functions": "import atexit\natexit.register(print, 'at exit')\nprint('first')",
    "exit function that fails": "import atexit\natexit.register(int, 'x')",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')",
    "one-line thread": "__import__('threading').Thread(target=lambda: (__import__('time').sleep(0.1), print('thread'))).start()",
    "late log": "import logging, logging.handlers\nlogging.getLogger().addHandler(logging.handlers.MemoryHandler(9, target=logging.StreamHandler()))\nlogging.error('late')",
    "finalizer": "class A:\n    def __del__(self): print('deleted')\na = A()",
    "generator": "def g():\n    try: yield\n    finally: print('closed')\nx = g()\nnext(x)",
    "open file": "f = open('out', 'w')\nf.write('x' * 10)",
    "no newline": "import sys\nsys.stdout.write('a')\nsys.stderr.write('b')",
    "closed stream": "import sys\nprint('a')\nsys.stdout.close()",
    "killed": "import os\nos.kill(os.getpid(), 9)",
    "fork": "import os\npid = os.fork()\nprint('child' if pid == 0 else os.waitpid(pid, 0)[1])",
    "memory": "x = bytearray(1 << 40)",
}


def answer(cell: Cell) -> tuple[Any, ...]:
    """All of a reply that does not depend on time, or how the cell ended without one."""
    reply = cell.reply()
    if reply is None:
        end = ended(cell)
        return end.exit_code, end.signal, end.limit
    return reply.kind, reply.raw, reply.output, reply.errors, reply.usage["limit"]


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_answers_the_same_in_c_and_in_python(worker: Worker, source: str) -> None:
    answers = []
    for mark in (b"", b"R"):
        cell = worker.cell()
        for kind in (driver.LOAD, driver.CALL):
            cell.arm(10_000)
            meta = {"mode": "program"}
            cell.send_call(source.encode(), meta, kind=kind, identity=ONE, mark=mark, marshalled=())
        answers.append(answer(cell))
        if not cell.gone:
            cell.kill()
    assert answers[0] == answers[1]


def chunks() -> dict[str, tuple[Any, int, int]]:
    """Functions that travel by value, how many items each is called for, and the reply."""

    def of_each_kind(i: int) -> object:
        if i % 10 == 7:
            raise ValueError(f"number {i}")
        kinds = (i, -i * 1.5, str(i), b"x" * i, None, True, [i, {"a": (i,)}], 1 << i, "\ud800", {i})
        return kinds[i % 10]

    def exits_at_five(i: int) -> int:
        print(i)
        if i == 5:
            raise SystemExit(3)
        return i

    return {
        "plain": (lambda i: 2 * i, 50, RESULT),
        "of each kind": (of_each_kind, 30, RESULT),
        "before the first error": (of_each_kind, 6, RESULT),
        "long": (lambda i: "é" * (100 * i), 60, RESULT),
        "printing": (exits_at_five, 5, RESULT),
        "exiting": (exits_at_five, 9, RAISED),
        "of no items": (exits_at_five, 0, RESULT),
        "out of memory": (lambda i: len(bytearray(1 << (10 * i))), 5, RAISED),
        "no data": (lambda i: print if i == 3 else i, 5, UNENCODABLE),
    }


@pytest.mark.parametrize("name", chunks())
def test_a_chunk_answers_the_same_in_c_and_in_python(worker: Worker, name: str) -> None:
    """The same values: Python writes a long list of numbers as an array, C never does."""
    import cloudpickle

    from hutch import _core

    function, count, expected = chunks()[name]
    code = cloudpickle.dumps(function, 5)
    answers = []
    for mark in (b"", b"C"):
        cell = worker.cell()
        cell.arm(10_000)
        items = [(i,) for i in range(count)]
        cell.send_call(code, {"mode": "chunk", "sources": {}}, mark=mark, marshalled=items)
        kind, raw, *others = answer(cell)
        assert kind == expected, raw
        answers.append([_core.decode(raw, len(raw), {}, 1 << 24), *others])
        cell.kill()
    assert answers[0] == answers[1]


def wait_for_affinity(process: int, cpus: list[int]) -> None:
    end = time.monotonic() + 10
    while sorted(os.sched_getaffinity(process)) != cpus:
        assert time.monotonic() < end, os.sched_getaffinity(process)
        time.sleep(0.01)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
def test_quick_call_runs_on_the_cpu_that_it_is_given_and_a_long_one_leaves_it(cell: Cell) -> None:
    import cloudpickle

    def where(seconds: float) -> list[object]:
        import ctypes
        import os
        import time

        time.sleep(seconds)
        return [ctypes.CDLL(None).sched_getcpu(), sorted(os.sched_getaffinity(0))]

    code = cloudpickle.dumps(where, 5)
    process = cell.worker.user_process()
    every = sorted(os.sched_getaffinity(process))

    def call(cpu: int, seconds: float) -> list[object]:
        cell.send_call(code, {"mode": "function", "keep": "1"}, (seconds,), identity=ONE, cpu=cpu)
        reply = cell.reply()
        assert reply is not None and reply.kind == RESULT
        return list(reply.value)

    call(-1, 0.1)
    wait_for_affinity(process, every)
    for cpu in [*every, *every]:
        assert call(cpu, 0) == [cpu, [cpu]]
    elsewhere = max(every) + 1
    assert call(elsewhere, 0.1)[0] in every


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
@pytest.mark.parametrize("plain", [False, True])
def test_cell_that_loads_a_quick_function_waits_where_its_caller_is(
    worker: Worker, plain: bool
) -> None:
    import cloudpickle

    code = cloudpickle.dumps(os.getpid, 5)
    for cpu in os.sched_getaffinity(0):
        cell = worker.cell()
        meta = {"mode": "function"}
        cell.send_call(code, meta, kind=driver.LOAD, identity=ONE, cpu=cpu, mark=b"P" * plain)
        wait_for_affinity(cell.worker.user_process(), [cpu])
        cell.kill()


@pytest.mark.parametrize("plain", [False, True])
def test_function_that_marshal_wrote(cell: Cell, plain: bool) -> None:
    import marshal

    space = {"__name__": "mine", "__package__": None}
    function = eval("lambda a, b=0: [a + b, __name__, max(a, b), bool(__builtins__)]")
    code = b"\x81" + marshal.dumps((function.__code__, space, (3,)), 2)
    cell.send_call(code, {"mode": "function"}, (1,), mark=b"P" * plain)
    reply = cell.reply()
    assert reply is not None and reply.value == [4, "mine", 3, True]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("section", ["function", "arguments"])
def test_what_does_not_load_is_the_calls_error(cell: Cell, plain: bool, section: str) -> None:
    import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

    class Bad:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return eval, ("1 // 0",)

    code = cloudpickle.dumps(Bad() if section == "function" else len, 5)
    args = (Bad(),) if section == "arguments" else ("",)
    cell.send_call(code, {"mode": "function"}, args, mark=b"P" * plain)
    reply = cell.reply()
    assert reply is not None and reply.kind == RAISED
    assert reply.value["type"] == "ZeroDivisionError"


@pytest.mark.parametrize("plain", [False, True])
def test_what_is_printed_comes_before_the_answer_however_it_ends(cell: Cell, plain: bool) -> None:
    import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

    def speak():  # type: ignore[no-untyped-def]
        import io
        import sys

        sys.stdout.write("no newline")
        sys.stderr.write("nor here")
        sys.stdout = io.StringIO()
        raise SystemExit(3)

    cell.send_call(cloudpickle.dumps(speak, 5), {"mode": "function"}, mark=b"P" * plain)
    reply = cell.reply()
    assert reply is not None and reply.kind == RAISED and reply.value["type"] == "SystemExit"
    assert (reply.output, reply.errors) == ("no newline", "nor here")


def test_async_function_is_awaited(cell: Cell) -> None:
    async def f(x):  # type: ignore[no-untyped-def]
        import asyncio

        await asyncio.sleep(0)
        return x

    reply = cell.call(f, 7)
    assert reply is not None and reply.value == 7


def test_function_from_source(cell: Cell) -> None:
    cell.send_call(
        b"K = 3\ndef solve(x):\n    return x * K\n",
        {"mode": "function_source", "name": "solve"},
        (5,),
    )
    reply = cell.reply()
    assert reply is not None and reply.value == 15


def test_environment_of_policy_and_call_is_all_there_is(worker: Worker) -> None:
    with Worker(ENV='{"POLICY": "p\u00e9"}', uid=1007) as other:
        other.ready()
        cell = other.cell()
        cell.arm(5000)
        source = "import os, pwd; print(os.environ['POLICY'], os.environ['CALL'], os.getuid())"
        source += "; print(pwd.getpwuid(os.getuid()).pw_name, os.path.expanduser('~'), os.getcwd())"
        reply = run(cell, source, env={"CALL": "c"})
        assert reply.output == "p\u00e9 c 1007\ncell /work /work\n"
        cell.kill()


def test_slow_load_restarts_the_calls_clock(cell: Cell) -> None:
    class Slow:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            import time

            return time.sleep, (0.05,)

    import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

    cell.send_call(cloudpickle.dumps(lambda x: 1, 5), {"mode": "function"}, (Slow(),))
    frame = driver.receive(cell.socket)
    assert frame is not None and frame.kind == driver.STARTED and frame.id == cell.id
    reply = cell.reply()
    assert reply is not None and reply.kind == RESULT


def test_large_arguments_and_results_travel_in_shared_memory(cell: Cell) -> None:
    def double(data):  # type: ignore[no-untyped-def]
        data[0:1] = b"b"  # writable, and ours
        return bytes(data) + b"c" * 3_000_000

    import pickle

    reply = cell.call(double, pickle.PickleBuffer(bytearray(b"a" * 2_000_000)))
    assert reply is not None and reply.kind == RESULT
    assert len(reply.raw) >= 5_000_000


def test_result_that_is_no_data_is_named(cell: Cell) -> None:
    reply = cell.call(lambda: {"a": [1, lambda: 0]})
    assert reply is not None and reply.kind == UNENCODABLE and reply.value["type"] == "function"


def host_root() -> bool:
    return os.geteuid() == 0


# ---- deaths ----


@pytest.mark.parametrize("code", [3, 255])
def test_exit_code_is_measured_outside(cell: Cell, code: int) -> None:
    assert cell.program(f"import sys; print('bye'); sys.exit({code})") is None
    assert driver.drain(cell.out) == "bye\n"
    report = ended(cell)
    assert (report.exit_code, report.signal, report.end) == (code, 0, 0)


@pytest.mark.parametrize(
    "source,number",
    [
        ("import ctypes; ctypes.string_at(0)", signal.SIGSEGV),
        ("import os; os.abort()", signal.SIGABRT),
        ("import os; os.kill(os.getpid(), 9)", signal.SIGKILL),
        ("import os; os.kill(0, 15)", signal.SIGTERM),
        ("import os; os.kill(os.getpid(), 19)", signal.SIGSTOP),
        (
            "import sys; sys.setrecursionlimit(10**9)\ndef f(): return list(map(lambda _: f(), [1]))\nf()",
            signal.SIGSEGV,
        ),
    ],
)
def test_signal_is_measured_outside(cell: Cell, source: str, number: int) -> None:
    assert cell.program(source) is None
    report = ended(cell)
    assert (report.exit_code, report.signal) == (-1, number)


def test_a_sigkill_is_told_once_the_warden_has_outlived_it(cell: Cell) -> None:
    """Until then it may be the first of a container that is killed process by process."""
    begun = time.monotonic()
    assert cell.program("import os; os.kill(os.getpid(), 9)") is None
    assert ended(cell).end == 0
    assert time.monotonic() - begun >= 0.05


@pytest.mark.skipif(not host_root(), reason="needs root, to kill the worker's processes")
def test_a_user_process_that_dies_just_before_its_slot_is_lost() -> None:
    with Worker() as worker:
        worker.ready()
        for _ in range(20):
            cell = worker.cell(0)
            cell.arm(20_000)
            cell.send_call(b"while True: pass", {"mode": "program"})
            slot, user = worker.process_ids()["slots"][0], worker.user_process()
            init = Path(f"/proc/{user}/stat").read_text().rsplit(")", 1)[1].split()[1]
            os.kill(user, signal.SIGKILL)
            while Path("/proc", init).exists():  # the warden has not heard of it yet
                pass
            os.kill(slot, signal.SIGKILL)
            end = cell.exit().end
            assert worker.expect(driver.FAILED).a == 0
            worker.slots.clear()
            if end == 2:
                return
        raise AssertionError("each was told as the end of its code")


def test_parent_and_everything_else_survive_signals_from_a_cell(cell: Cell) -> None:
    source = """
import os, signal
for target in (1, -1, os.getppid(), os.getpgid(1)):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGKILL):
        if target != -1 or number not in (signal.SIGSTOP,):
            try: os.kill(target, number) if target != 0 else None
            except OSError: pass
print("alive")
"""
    assert run(cell, source).output == "alive\n"


# ---- limits ----


def test_endless_loop_hits_the_time_limit(worker: Worker) -> None:
    cell = worker.cell()
    cell.arm(wall_ms=100)
    cell.send_call(b"while True: pass", {"mode": "program"})
    report = cell.exit()
    assert (report.limit, report.end) == (TIME, 1)


def test_busy_children_hit_the_cpu_limit(worker: Worker) -> None:
    cell = worker.cell()
    cell.arm(cpu_ms=300)
    cell.send_call(b"import os\nos.fork()\nwhile True: pass", {"mode": "program"})
    assert cell.exit().limit == CPU


def test_one_allocation_above_the_limit_is_a_memory_error(cell: Cell) -> None:
    reply = cell.program("x = bytearray(10 << 30)")
    assert (
        reply is not None
        and reply.value["type"] == "MemoryError"
        and reply.usage["limit"] == MEMORY
    )


def test_memory_error_caught_inside_is_no_limit(cell: Cell) -> None:
    source = "try: bytearray(10 << 30)\nexcept MemoryError: print('went on')"
    reply = run(cell, source)
    assert reply.output == "went on\n" and reply.usage["limit"] == 0


@pytest.mark.parametrize("dumpable", [1, 0])
def test_six_processes_hit_the_memory_limit_together(worker: Worker, dumpable: int) -> None:
    cell = worker.cell()
    cell.arm()
    source = f"""
import ctypes, os, time
ctypes.CDLL(None).prctl(4, {dumpable})
for _ in range(5):
    if os.fork() == 0: break
x = []
for _ in range(15):
    x.append(bytearray(b"x" * (10 << 20)))
    time.sleep(0.02)
time.sleep(20)
"""
    cell.send_call(source.encode(), {"mode": "program"})
    report = cell.exit()
    assert report.limit == MEMORY and report.peak_kb > report.memory_limit_kb


def test_shared_memory_hits_the_memory_limit(worker: Worker) -> None:
    cell = worker.cell()
    cell.arm()
    source = "import mmap, time\nm = mmap.mmap(-1, 600 << 20)\nfor i in range(0, len(m), 4096): m[i] = 1\ntime.sleep(20)"
    cell.send_call(source.encode(), {"mode": "program"})
    assert cell.exit().limit == MEMORY


def test_forked_copies_are_not_counted_twice(cell: Cell) -> None:
    source = """
import os, time
x = bytearray(b"x" * (60 << 20))
children = []
for _ in range(8):
    pid = os.fork()
    if pid == 0: time.sleep(0.5); os._exit(0)
for _ in range(8): os.wait()
print("fine")
"""
    assert run(cell, source).output == "fine\n"


def test_fork_bomb_hits_the_process_limit(cell: Cell) -> None:
    reply = cell.program("import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(30)")
    assert reply is not None and reply.kind == RAISED
    assert reply.value["type"] == "BlockingIOError" and reply.usage["limit"] == PIDS


def test_threads_hit_the_process_limit(cell: Cell) -> None:
    source = "import threading, time\nfor _ in range(10000): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()"
    reply = cell.program(source)
    assert reply is not None and reply.usage["limit"] == PIDS


def test_full_scratch_is_the_disk_limit(cell: Cell) -> None:
    reply = cell.program("f = open('/tmp/x', 'wb')\nwhile True: f.write(bytes(1 << 20))")
    assert reply is not None and reply.usage["limit"] == DISK


def test_the_next_cell_finds_an_empty_scratch(worker: Worker) -> None:
    for _ in range(2):
        cell = worker.cell()
        cell.arm(5000)
        reply = run(
            cell,
            "import os\nprint([os.listdir(p) for p in ('/tmp', '/work', '/dev/shm')])\nopen('/tmp/left', 'w')",
        )
        assert reply.output == "[[], [], []]\n"
        cell.kill()


def test_five_hundred_zombies_are_reaped(worker: Worker) -> None:
    cell = worker.cell()
    cell.arm(10_000)
    source = """
import os, time
def orphans():
    if os.fork() == 0:
        for _ in range(5):
            if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.wait()
for _ in range(100): orphans()
time.sleep(0.1)
print(len([p for p in os.listdir("/proc") if p.isdigit()]))
"""
    assert run(cell, source).output == "2\n"
    cell.kill()


def test_grandchild_that_holds_everything_does_not_hold_the_result(cell: Cell) -> None:
    source = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\nprint('done')"
    assert run(cell, source).output == "done\n"


def test_closing_every_descriptor_ends_in_a_death(worker: Worker) -> None:
    cell = worker.cell()
    cell.arm(2000)
    assert cell.program("import os\nos.closerange(0, 1024)") is None
    cell.exit()


# ---- walls ----


def test_posture(cell: Cell) -> None:
    source = """
import os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Pid"):
    print(key, status[key].lstrip("0 ") or 0)
print(sorted(os.listdir("/proc/self/fd"))[:4], os.getuid(), open("/proc/self/uid_map").read().split()[2])
"""
    assert run(cell, source).output.splitlines() == [
        *[f"{c} 0" for c in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
        "NoNewPrivs 1",
        "Seccomp 2",
        "Seccomp_filters 2",
        "Pid 2",
        "['0', '1', '2', '3'] 1000 1",
    ]


REFUSED_CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(number, *args)
    assert result == -1 and ctypes.get_errno() in (1, 38, 93, 97), (name, result, ctypes.get_errno())
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    refused("clone", 56, flag | 17, 0, 0, 0, 0)
    refused("unshare", 272, flag)
refused("clone3", 435, 0, 0)
refused("setns", 308, 0, 0)
refused("mount", 165, b"none", b"/tmp", b"tmpfs", 0, 0)
refused("umount2", 166, b"/proc", 2)
refused("pivot_root", 155, b".", b".")
refused("chroot", 161, b"/tmp")
for number in (430, 431, 432, 433, 428, 429, 442, 457, 458): refused("mount api", number, 0, 0, 0, 0, 0)
refused("ptrace", 101, 0, 0, 0, 0)
refused("process_vm_readv", 310, 1, 0, 0, 0, 0, 0)
refused("pidfd_getfd", 438, 0, 0, 0)
refused("kcmp", 312, 1, 2, 0, 0, 0)
for number in (248, 249, 250): refused("keys", number, 0, 0, 0, 0, 0)
for number in (321, 298, 323, 425, 426, 427): refused("bpf, perf, uffd, io_uring", number, 0, 0, 0, 0, 0)
for number in (319, 447, 29, 68, 240): refused("hidden memory", number, 0, 0, 0)
for number in (303, 304, 300, 253, 294): refused("handles, events", number, 0, 0, 0, 0, 0)
for number in (103, 169, 246, 175, 167, 163, 172, 173, 154): refused("machine", number, 0, 0, 0, 0, 0)
refused("personality", 135, 0x0040000)
for family in {*range(46)} - {1, 2, 10, 16}: refused("socket", 41, family, 3, 0)
for protocol in range(1, 23): refused("netlink", 41, 16, 3, protocol)
assert libc.syscall(41, 2, 3, 1) == -1 and ctypes.get_errno() == 93, "raw"
for request in (0x5412, 0x541c, 0x540e): refused("tiocsti", 16, 0, request, 0)
"""


def test_refused_system_calls(cell: Cell) -> None:
    run(cell, REFUSED_CALLS)


def test_foreign_instruction_set_is_killed(cell: Cell) -> None:
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
    source = f"import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write({code!r})\n"
    source += "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    assert cell.program(source) is None
    assert ended(cell).signal == signal.SIGSYS


def test_honest_programs_work(cell: Cell) -> None:
    source = """
import subprocess, threading, multiprocessing, sqlite3, tempfile, socket, os
assert subprocess.run(["sh", "-c", "echo hi"], capture_output=True, text=True).stdout == "hi\\n"
t = threading.Thread(target=lambda: None); t.start(); t.join()
with multiprocessing.get_context("fork").Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
db = sqlite3.connect("x.db"); db.execute("create table t(a)"); db.commit()
tempfile.NamedTemporaryFile().write(b"x")
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    server = socket.create_server((address, 0), family=family)
    client = socket.create_connection(server.getsockname()[:2])
    peer, _ = server.accept(); client.send(b"x"); assert peer.recv(1) == b"x"
assert socket.gethostname() == "cell" and os.cpu_count() >= 1
assert os.sched_getaffinity(0) and len(os.sched_getaffinity(0)) == 1
import ctypes; libc = ctypes.CDLL(None); assert libc.sched_getcpu() in os.sched_getaffinity(0)
assert threading.get_native_id() == os.getpid() == 2
"""
    run(cell, source)


def test_nothing_but_loopback(cell: Cell) -> None:
    source = """
import errno, socket, time
assert [l.split(":")[0].strip() for l in open("/proc/net/dev").readlines()[2:]] == ["lo"]
for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"), (socket.AF_INET, "169.254.169.254")):
    s = socket.socket(family, socket.SOCK_DGRAM)
    try: s.connect((address, 53))
    except OSError as e: assert e.errno == errno.ENETUNREACH, e
    else: raise AssertionError(address)
start = time.monotonic()
try: socket.getaddrinfo("example.org", 443)
except socket.gaierror: pass
else: raise AssertionError("resolved")
assert time.monotonic() - start < 1
"""
    run(cell, source)


def test_no_host_in_what_can_be_read(cell: Cell) -> None:
    source = """
import os
mounts = open("/proc/self/mountinfo").read()
assert len(mounts.splitlines()) < 40, len(mounts.splitlines())
for word in ("home", "containers", "storage", "var/lib", "hutch-worker", "/run/", "shared:", "master:"): assert word not in mounts, word
for line in mounts.splitlines():
    path, flags = line.split()[4:6]
    if "rw" in flags.split(",") and not path.startswith("/dev/"): assert "nosuid" in flags and "nodev" in flags, line
    if path in ("/dev/shm",): assert "nodev" in flags
for path in ("/opt/hutch", "/run/hutch", "/home", "/root", "/sys", "/dev/tty", "/dev/ptmx", "/dev/kvm", "/etc/resolv.conf", "/etc/machine-id"):
    assert not os.path.exists(path), path
for name in ("cmdline", "keys", "key-users", "kallsyms", "config.gz"):
    path = "/proc/" + name
    assert not os.path.exists(path) or open(path).read() == "", path
for name in ("kcore", "timer_list", "sched_debug", "kmsg", "sysrq-trigger", "vmallocinfo"):
    try: data = open("/proc/" + name, "rb").read(1)
    except OSError: data = b""
    assert data == b"", name
assert open("/proc/sys/kernel/random/boot_id").read().startswith("00000000")
assert os.uname().nodename == "cell"
assert sorted(os.environ) == sorted(["PATH", "LANG", "HOME", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "OMP_NUM_THREADS",
  "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS"]), sorted(os.environ)
block = open("/proc/self/environ").read()
assert "HUTCH" not in block and "t" * 32 not in block
pids = [p for p in os.listdir("/proc") if p.isdigit()]
assert pids == ["1", "2"], pids
for path in ("mem", "root", "environ", "fd", "maps"):
    try: os.listdir("/proc/1/" + path) if path in ("fd", "root") else open("/proc/1/" + path).read(1)
    except OSError: pass
    else: raise AssertionError(path)
"""
    run(cell, source)


def test_nothing_but_the_scratch_can_be_written(cell: Cell) -> None:
    source = """
import os
for base in ("/", "/etc", "/usr", "/usr/lib", "/opt", "/opt/python", "/opt/env", "/dev", "/var", "/run", "/proc", "/etc/ssl"):
    for act in (lambda p: open(p, "w"), os.mkdir):
        try: act(os.path.join(base, "new"))
        except OSError: pass
        else: raise AssertionError(base)
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/user/max_user_namespaces", "/proc/sysrq-trigger", "/proc/1/oom_score_adj",
             "/etc/passwd", "/proc/sys/kernel/hostname"):
    try: open(path, "w").write("1")
    except OSError: pass
    else: raise AssertionError(path)
try: os.mknod("/tmp/null", 0o20666, os.makedev(1, 3))
except OSError: pass
else: open("/tmp/null").read() and None
for path in ("x", "/tmp/x", "/dev/shm/x"): open(path, "w").write("x")
"""
    run(cell, source)


def test_two_cells_at_once_cannot_meet(worker: Worker) -> None:
    one, two = worker.cell(0), worker.cell(1)
    one.arm(10_000)
    two.arm(10_000)
    hold = """
import fcntl, os, socket, sys
a = socket.socket(socket.AF_UNIX); a.bind("\\0meet"); a.listen()
b = socket.socket(); b.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); b.bind(("127.0.0.1", 7777)); b.listen()
held = []
for path in ("/opt/python/bin/python3", "/usr/bin/sh", "/opt/env", "/proc/self/exe", "/etc/passwd", "/dev/null", "/etc/ssl/certs"):
    f = os.open(path, os.O_RDONLY); held.append(f)
    try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print("locked", path)
    except OSError: print("no lock", path)
    try: fcntl.lockf(os.open(path, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError: pass
print("ready", flush=True)
import time; time.sleep(5)
"""
    look = """
import fcntl, os, socket, struct
for s, address in ((socket.socket(socket.AF_UNIX), "\\0meet"), (socket.socket(), ("127.0.0.1", 7777))):
    try: s.connect(address)
    except OSError: pass
    else: raise AssertionError(address)
for path in ("/opt/python/bin/python3", "/usr/bin/sh", "/opt/env", "/etc/passwd", "/etc/ssl/certs"):
    f = os.open(path, os.O_RDONLY); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    query = fcntl.fcntl(f, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)) if os.path.isfile(path) else b"\\2\\0"
    assert struct.unpack_from("h", query)[0] == fcntl.F_UNLCK, path
f = os.open("/proc/self/exe", os.O_RDONLY)
try: fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
except OSError: pass
else: raise AssertionError("exe")
query = struct.unpack("hhqqi4x", fcntl.fcntl(f, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 5, 1, 0)))
assert query[:4] == (fcntl.F_RDLCK, 0, 0, 0), query
"""
    one.send_call(hold.encode(), {"mode": "program"})
    end = time.monotonic() + 5
    said = ""
    while "ready" not in said and time.monotonic() < end:
        said += driver.drain(one.out)
    assert "locked /usr/bin/sh" in said and "no lock /proc/self/exe" in said, said
    run(two, look)
    one.kill()
    two.kill()


def test_every_cell_has_its_own_random_numbers(worker: Worker) -> None:
    source = """
import os, random, ssl, sys, uuid
draws = [random.random(), os.urandom(8).hex(), uuid.uuid4().hex, ssl.RAND_bytes(8).hex(), random.SystemRandom().random()]
r, w = os.pipe()
if os.fork() == 0:
    os.write(w, f"{random.random()} {ssl.RAND_bytes(8).hex()}".encode()); os._exit(0)
draws += os.read(r, 100).decode().split()
if "numpy" in sys.modules:
    import numpy; draws += [numpy.random.rand(), numpy.random.default_rng().random()]
print(*draws)
"""
    drawn: list[list[str]] = []
    with Worker(PRELOAD="ssl,random,uuid,numpy") as other:
        other.ready()
        for i in range(6):
            cell = other.cell(i % 2)
            cell.arm(5000)
            drawn.append(run(cell, source).output.split())
            cell.kill()
    for column in zip(*drawn):
        assert len(set(column)) == len(column), column


# ---- the worker's own faults ----


def test_preloads_that_fail_hang_crash_or_start_threads_are_skipped_and_said() -> None:
    modules = {
        "modules/good.py": b"x = 1",
        "modules/raises.py": b"1/0",
        "modules/hangs.py": b"while True: pass",
        "modules/crashes.py": b"import ctypes; ctypes.string_at(0)",
        "modules/exits.py": b"import os; os._exit(0)",
        "modules/threads.py": b"import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "modules/json.py": b"raise SystemError('shadowed')",
        "modules/call.py": b"name = 'theirs'",
    }
    names = "good,raises,hangs,crashes,exits,threads,call"
    with Worker(PRELOAD=names, PRELOAD_SEC=1, MODULES="/opt/modules", files=modules) as worker:
        notes = worker.ready()
        assert sorted(notes["preloaded"]) == ["call", "good"], notes
        assert sorted(notes["skipped"]) == ["crashes", "exits", "hangs", "raises", "threads"], notes
        cell = worker.cell()
        cell.arm(5000)
        run(cell, "import json, good, call; assert call.name == 'theirs' and json.loads('1') == 1")


HOLDER = """
import atexit, functools, multiprocessing.util, os, tempfile, weakref
here = os.path.dirname(__file__)
text = open(os.path.join(here, "data.txt"))
first = text.buffer.raw.read(4)
raw = os.open(os.path.join(here, "data.txt"), os.O_RDONLY)
os.lseek(raw, 2, os.SEEK_SET)
null = open(os.devnull, "r+b", buffering=0)
random = open("/dev/urandom", "rb", buffering=0)

@atexit.register
def end():
    print("handler of the zygote")

atexit.register(functools.partial(print, "another"))
atexit.register("a third {}".format)
class Kept: pass
kept = Kept()
weakref.finalize(kept, print, "a finalizer of the zygote")
"""


def test_files_that_a_package_holds_open_are_each_cells_own() -> None:
    modules = {"modules/holder.py": HOLDER.encode(), "modules/data.txt": b"0123456789"}
    with Worker(PRELOAD="holder", MODULES="/opt/modules", files=modules) as worker:
        assert worker.ready()["skipped"] == {}
        for _ in range(2):  # the first changes nothing for the second
            cell = worker.cell()
            cell.arm(5000)
            ran = run(
                cell,
                "import fcntl, holder, os\n"
                "print(holder.first, holder.text.read(3), os.read(holder.raw, 2))\n"
                "fcntl.flock(holder.raw, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
                "print(holder.null.write(b'x'), len(holder.random.read(4)))\n"
                "print(os.get_inheritable(holder.raw), os.fstat(holder.raw).st_size)\n",
            )
            assert ran.output.splitlines() == ["b'0123' 456 b'23'", "1 4", "False 10"]
            cell.kill()


def test_handlers_of_the_zygote_do_not_run_in_calls_and_those_of_a_call_do() -> None:
    modules = {"modules/holder.py": HOLDER.encode(), "modules/data.txt": b"0123456789"}
    with Worker(PRELOAD="holder", MODULES="/opt/modules", files=modules) as worker:
        worker.ready()
        cell = worker.cell()
        cell.arm(5000)
        ran = run(
            cell,
            "import atexit, holder, multiprocessing.util, weakref\n"
            "atexit.register(print, 'its own')\n"
            "weakref.finalize(holder.kept, print, 'and this')\n"
            "multiprocessing.util.Finalize(None, print, ['the library'], exitpriority=1)\n",
        )
        assert sorted(ran.output.splitlines()) == ["and this", "its own", "the library"]


@pytest.mark.parametrize(
    "held",
    [
        "socket.socket()",
        "os.pipe()",
        "select.epoll()",
        "open('/tmp/written', 'w')",
        "tempfile.TemporaryFile()",
        "os.open('/tmp', os.O_RDONLY)",
    ],
)
def test_package_that_holds_open_what_no_cell_can_have_is_left_to_the_call(held: str) -> None:
    source = f"import os, select, socket, tempfile\nheld = {held}\n"
    with Worker(
        PRELOAD="holder", MODULES="/opt/modules", files={"modules/holder.py": source.encode()}
    ) as worker:
        notes = worker.ready()
        assert "holds open" in notes["skipped"]["holder"], notes


@pytest.mark.parametrize(
    "source",
    [
        "import os; os.write(3, b'no frame')",
        f"import os; os.write(3, b'HC' + bytes([{driver.VERSION}, 131]) + bytes(28))",
        "import socket; socket.socket(fileno=os.dup(3)).close()\nimport _hutch_cell",
        "import os; os.closerange(3, 100); import time; time.sleep(1)",
        "x = bytearray(b'x' * (600 << 20)); import time; time.sleep(5)",
    ],
)
def test_hostile_package_ends_its_worker_and_nothing_else(source: str) -> None:
    files = {"modules/hostile.py": source.encode()}
    limits = {"WORKER_KB": 300 << 10, "PRELOAD_SEC": 2}
    with Worker(PRELOAD="hostile", MODULES="/opt/modules", files=files, **limits) as worker:
        frame = worker.expect(driver.ZYGOTE_DIED, driver.ZYGOTE_READY, timeout=20)
        if frame.kind == driver.ZYGOTE_READY:
            skipped = frame.payload.split(b"skipped")[1]
            assert b"hostile" in skipped and b"ModuleNotFound" not in skipped
        else:
            worker.process.wait(10)


@pytest.mark.skipif(not host_root(), reason="needs root, to kill the worker's processes")
def test_zygote_killed_during_a_call_is_reported_and_ends_the_worker() -> None:
    with Worker() as worker:
        worker.ready()
        cell = worker.cell()
        cell.arm(20_000)
        cell.send_call(b"while True: pass", {"mode": "program"})
        os.kill(worker.process_ids()["zygote"][0], signal.SIGKILL)
        died = worker.expect(driver.ZYGOTE_DIED)
        assert died.a == signal.SIGKILL
        assert cell.exit().end == 2
        worker.process.wait(10)


@pytest.mark.skipif(not host_root(), reason="needs root, to kill the worker's processes")
def test_slot_that_is_ended_goes_and_its_number_is_free() -> None:
    with Worker() as worker:
        worker.ready()
        worker.cell(0).kill()
        worker.cell(1)
        before = worker.process_ids()["slots"]
        for _ in range(2):  # the second time there is none
            worker.tell(Frame(END_SLOT, a=0))
            assert worker.expect(SLOT_GONE).a == 0
        worker.slots.discard(0)
        assert len(worker.process_ids()["slots"]) == len(before) - 1
        assert run(worker.cell(0), "print('again')").output == "again\n"


def test_slot_with_a_cell_is_not_ended() -> None:
    with Worker() as worker:
        worker.ready()
        worker.cell(0)
        worker.tell(Frame(END_SLOT, a=0))
        with pytest.raises(ConnectionError):
            worker.expect(SLOT_GONE)


def test_slot_killed_is_reported_and_can_be_made_again() -> None:
    with Worker() as worker:
        worker.ready()
        cell = worker.cell(0)
        cell.arm(20_000)
        cell.send_call(b"while True: pass", {"mode": "program"})
        os.kill(worker.process_ids()["slots"][0], signal.SIGKILL)
        assert cell.exit().end == 2
        assert worker.expect(driver.FAILED).a == 0
        worker.slots.clear()
        assert worker.cell(0).call(lambda: 1).value == 1  # type: ignore[union-attr]


def test_hooks_for_forks_run_in_each_cell() -> None:
    import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

    def setup():  # type: ignore[no-untyped-def]
        import builtins
        import os

        builtins.told = []  # type: ignore[attr-defined]
        for name in ("before", "after_in_child"):
            os.register_at_fork(**{name: lambda name=name: builtins.told.append(name)})  # type: ignore[attr-defined,misc]

    with Worker(
        SETUP="/run/hutch/setup.pickle", files={"setup.pickle": cloudpickle.dumps(setup)}
    ) as worker:
        worker.ready()
        for _ in range(2):
            cell = worker.cell()
            cell.arm(5000)
            ran = cell.call(lambda: told[-2:]).value  # type: ignore[name-defined,union-attr]  # noqa: F821
            assert ran == ["before", "after_in_child"]
            cell.kill()


def test_function_loaded_ahead_is_the_one_that_is_called(cell: Cell) -> None:
    import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

    def loaded(name):  # type: ignore[no-untyped-def]
        class Loaded:
            def __reduce__(self):  # type: ignore[no-untyped-def]
                return eval, (f"print('loading {name}') or (lambda: '{name}')",)

        return cloudpickle.dumps(Loaded(), 5)

    meta = {"mode": "function"}
    cell.send_call(loaded("one"), meta, kind=driver.LOAD, identity=ONE)
    cell.send_call(loaded("two"), meta, identity=ONE)
    reply = cell.reply()
    assert reply is not None and (reply.value, reply.output) == ("one", "loading one\n")


def test_what_could_not_be_loaded_ahead_is_the_calls_error(cell: Cell) -> None:
    meta = {"mode": "function"}
    cell.send_call(b"no pickle", meta, kind=driver.LOAD, identity=ONE)
    cell.send_call(b"no pickle", meta, identity=ONE)
    reply = cell.reply()
    assert reply is not None and reply.kind == RAISED
    assert reply.value["type"] == "UnpicklingError"


@pytest.mark.parametrize("identity", [TWO, driver.NO_IDENTITY, ONE[:31] + b"x", b"x" + ONE[1:]])
@pytest.mark.parametrize("kind", [driver.CALL, driver.LOAD])
@pytest.mark.parametrize("loaded", ["function", "program", "nothing that loads"])
def test_cell_that_was_loaded_serves_nothing_else(
    cell: Cell, loaded: str, kind: int, identity: bytes
) -> None:
    import cloudpickle

    code = {
        "function": cloudpickle.dumps(lambda: print("loaded"), 5),
        "program": b"print('loaded')",
        "nothing that loads": b"no pickle",
    }[loaded]
    mode = "program" if loaded == "program" else "function"
    cell.send_call(code, {"mode": mode}, kind=driver.LOAD, identity=ONE)
    cell.send_call(b"print('other')", {"mode": "program"}, kind=kind, identity=identity)
    frame = driver.receive(cell.socket)
    assert frame is not None and (frame.kind, frame.payload) == (driver.MISDIRECTED, b"")
    assert driver.receive(cell.socket) is None
    assert driver.drain(cell.out) == ""
    assert ended(cell).exit_code == 73


def test_program_that_was_loaded_ahead_is_given_what_its_call_brings(worker: Worker) -> None:
    source = b"import sys\nprint(sys.argv[1:], sys.stdin.read(), open('data').read())"
    for given in ({"args": ["a"], "stdin": b"in", "files": {"data": b"file"}}, {}):
        cell = worker.cell()
        cell.arm(10_000)
        for kind in (driver.LOAD, driver.CALL):
            cell.send_call(
                source,
                {"mode": "program"},
                kind=kind,
                identity=ONE,
                mark=b"R",
                given=given if kind == driver.CALL else None,
            )
        reply = cell.reply()
        assert reply is not None
        if given:
            assert (reply.kind, reply.output) == (RESULT, "['a'] in file\n")
        else:
            assert reply.kind == RAISED and reply.value["type"] == "FileNotFoundError"
        cell.kill()


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("while True: pass", CPU),
        (
            "import os\nfor _ in range(8):\n  if os.fork() == 0:\n    x = bytearray(40 << 20)\n    while True: os.getppid()",
            MEMORY,
        ),
    ],
    ids=["cpu", "memory"],
)
def test_what_is_loaded_ahead_is_held_to_the_limits(text: str, limit: int) -> None:
    import cloudpickle

    class Loads:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return exec, (text,)

    with Worker(MEMORY_KB=200 << 10) as worker:
        worker.ready()
        cell = worker.cell()
        cell.arm(cpu_ms=300 if limit == CPU else 60_000, loading=True)
        code = cloudpickle.dumps(Loads(), 5)
        cell.send_call(code, {"mode": "function"}, kind=driver.LOAD, identity=ONE)
        assert ended(cell).limit == limit
        # The same slot serves the next call.
        reply = worker.cell().program("print('fine')")
        assert reply is not None and reply.output == "fine\n"


def test_cell_that_waits_loaded_is_not_ended(cell: Cell) -> None:
    import cloudpickle

    cell.arm(cpu_ms=60_000, loading=True)
    code = cloudpickle.dumps(lambda x: x + 1, 5)
    cell.send_call(code, {"mode": "function"}, kind=driver.LOAD, identity=ONE)
    time.sleep(2.5)
    cell.send_call(code, {"mode": "function"}, (1,), identity=ONE)
    reply = cell.reply()
    assert reply is not None and reply.value == 2


def test_setup_function_is_shared_by_calls() -> None:
    import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

    def setup():  # type: ignore[no-untyped-def]
        import builtins

        builtins.loaded = [1, 2, 3]  # type: ignore[attr-defined]

    with Worker(
        SETUP="/run/hutch/setup.pickle", files={"setup.pickle": cloudpickle.dumps(setup)}
    ) as worker:
        assert "setup" not in worker.ready()
        for _ in range(2):
            cell = worker.cell()
            cell.arm(5000)
            assert run(cell, "print(loaded); loaded.append(4)").output == "[1, 2, 3]\n"
            cell.kill()


def test_retired_worker_exits_at_once() -> None:
    with Worker() as worker:
        worker.ready()
        worker.cell()
        worker.tell(Frame(driver.RETIRE))
        assert worker.process.wait(10) == 0


def test_worker_finds_its_agent_again_and_tells_it_everything() -> None:
    with Worker() as worker:
        worker.ready()
        worker.slot(0)
        worker.slot(1)
        cell = worker.cell(1)
        worker.agent.close()
        worker.agent = worker.accept()
        worker.ready()
        assert worker.expect(driver.SLOT_READY).a == 0
        assert worker.expect(driver.CELL_READY).id == cell.id
        cell.arm(5000)
        assert cell.call(lambda: 1).value == 1  # type: ignore[union-attr]
        cell.kill()


def rate_of_making(worker: Worker, slots: int, count: int) -> float:
    """Cells a second, each made, killed as soon as it is ready, and reaped; every slot always at work."""
    pipe = os.open("/dev/null", os.O_WRONLY)
    kept = {}
    made = gone = 0

    def make(slot: int) -> None:
        nonlocal made
        made += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept[made] = ours
        worker.tell(Frame(driver.MAKE_CELL, a=slot, id=made), [theirs.fileno(), pipe, pipe])
        theirs.close()

    for number in range(slots):
        worker.slot(number)
    begin = time.perf_counter()
    for number in range(slots):
        make(number)
    while gone < count:
        frame = worker.expect(driver.CELL_READY, driver.CELL_EXIT)
        if frame.kind == driver.CELL_READY:
            worker.tell(Frame(driver.KILL, id=frame.id))
            continue
        gone += 1
        kept.pop(frame.id).close()
        if made < count:
            make(frame.a)
    os.close(pipe)
    worker.cells = made
    return count / (time.perf_counter() - begin)


def test_numbers() -> None:
    """Prints, asserts no time."""
    with Worker() as worker:
        worker.ready()
        rate = rate_of_making(worker, slots=3, count=400)
        import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

        payload = cloudpickle.dumps(lambda x: x + 1, 5)
        times = []
        for _ in range(100):
            cell = worker.cell(0)
            begin = time.perf_counter()
            cell.send_call(payload, {"mode": "function"}, (1,))
            reply = cell.reply()
            times.append(time.perf_counter() - begin)
            cell.kill()
        times.sort()
        assert reply is not None
        print(
            f"\ncells/s {rate:.0f}; call p50 {times[50] * 1e6:.0f} us, p90 {times[90] * 1e6:.0f}; made in {cell.made.b} us;",
            end=" ",
        )
        print(f"faults {reply.usage['faults']}; host load {os.getloadavg()[0]}")
