# SPDX-License-Identifier: Apache-2.0
"""Bad ends: each limit bites and says so, each death is reported, and the next call works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import until

import hutch
from hutch import sandbox


@sandbox
def honest(x: int) -> int:
    return x + 1


@pytest.fixture(autouse=True)
def the_next_call_works() -> Iterator[None]:
    yield
    assert honest(1) == 2


def test_an_endless_loop_hits_the_time_limit() -> None:
    @sandbox(timeout_sec=1)
    def loop() -> None:
        while True:
            pass

    start = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        loop()
    assert isinstance(caught.value, hutch.SandboxTimeoutError)
    assert (caught.value.limit, caught.value.allowed) == ("time", 1)
    assert caught.value.used is not None and 1 <= caught.value.used < 30
    assert "timeout_sec=1" in str(caught.value) and "timeout_sec=2" in caught.value.hint
    assert time.monotonic() - start < 30


def test_a_time_limit_tells_what_the_warden_measured_till_then() -> None:
    @sandbox(timeout_sec=3)
    def hold_and_spin() -> None:
        held = bytearray(100 << 20)
        while held:
            pass

    usage = hold_and_spin.run().usage
    assert usage.source == "warden" and usage.wall_sec >= 3
    assert usage.cpu_sec > 0 and usage.peak_memory_bytes >= 100 << 20


def test_usage_counts_child_processes() -> None:
    text = """
import subprocess, sys
child = "import time; x = bytearray(100 << 20)\\nwhile time.process_time() < 0.3: pass"
subprocess.run([sys.executable, "-c", child], check=True)
"""
    usage = hutch.run(text).usage
    assert usage.cpu_sec >= 0.3 and usage.peak_memory_bytes >= 100 << 20


def test_cpu_time_is_limited_apart_from_wall_time() -> None:
    @sandbox(cpu_sec=0.5, timeout_sec=20)
    def burn() -> None:
        while True:
            pass

    outcome = burn.run()
    assert (outcome.status, outcome.limit) == ("limit", "cpu_time")
    assert outcome.usage.suggested["cpu_sec"] >= 1

    @sandbox(cpu_sec=0.5, timeout_sec=20)
    def rest() -> str:
        import time

        time.sleep(1)
        return "rested"

    assert rest() == "rested"


@pytest.mark.parametrize("touch", [True, False])
def test_ten_gigabytes_in_one_process_hit_the_memory_limit(touch: bool) -> None:
    @sandbox(memory_mb=256, timeout_sec=60)
    def allocate(touch: bool) -> None:
        hoard = []
        while True:
            hoard.append(b"\1" * (16 << 20) if touch else bytearray(16 << 20))

    with pytest.raises(MemoryError) as caught:
        allocate(touch)
    assert isinstance(caught.value, hutch.SandboxMemoryError)
    assert caught.value.limit == "memory" and caught.value.allowed == 256
    assert "memory_mb=512" in caught.value.hint


def test_a_memory_error_of_the_codes_own_making_is_no_limit() -> None:
    @sandbox
    def make_up() -> None:
        raise MemoryError("made up")

    @sandbox(memory_mb=256)
    def wrap() -> None:
        try:
            bytearray(10 << 30)
        except MemoryError as error:
            raise MemoryError("said better") from error

    outcome = make_up.run()
    assert outcome.status == "raised" and outcome.error is not None
    assert outcome.error.type == "MemoryError" and outcome.limit is None
    with pytest.raises(hutch.SandboxExecutionError) as caught:
        make_up()
    assert not isinstance(caught.value, MemoryError)
    chunked = list(make_up.starmap([(), ()], on_error="outcome", chunksize=2))
    assert [one.status for one in chunked] == ["raised", "raised"]
    assert wrap.run().limit == "memory"


@pytest.mark.parametrize("isolation", ["cell", "gvisor"])
@pytest.mark.parametrize(
    "text",
    [
        "raise OSError(28, 'my quota')",
        "raise OSError(12, 'mine')",
        'raise RuntimeError("can\'t start new thread")',
        "raise BlockingIOError(11, 'mine')",
        "open('/dev/full', 'w').write('x' * 9999)",
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (100 << 20, 100 << 20))\n"
        "bytearray(200 << 20)",
    ],
)
def test_what_is_no_limit_of_the_call_is_not_reported_as_one(text: str, isolation: Any) -> None:
    if isolation == "gvisor" and "resource" in text:
        pytest.skip("gVisor's own address space is not limited by that")
    outcome = hutch.run(text, isolation=isolation)
    assert (outcome.status, outcome.limit) == ("raised", None), str(outcome)


ODD = """
class Odd:
    def __eq__(self, other): return self
    def __bool__(self): raise ValueError("the truth value is ambiguous")
    def __str__(self): raise SystemExit(7)
    __hash__ = None
"""


@pytest.mark.parametrize("isolation", ["cell", "container", "shared"])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("raise RuntimeError(Odd())", "RuntimeError"),
        ("raise OSError(Odd(), 'x')", "OSError"),
        ("error = OSError(28, 'x'); error.errno = Odd()\nraise error", "OSError"),
        ("__name__ = Odd()\nraise OSError(28, 'x')", "OSError"),
        ("class E(RuntimeError):\n    args = property(lambda self: 1 / 0)\nraise E('x')", "E"),
        ("raise RuntimeError('text')", "RuntimeError"),  # the harmless counterpart
    ],
)
def test_an_error_that_holds_any_object_is_that_error(text: str, kind: str, isolation: Any) -> None:
    outcome = hutch.run(ODD + text, isolation=isolation)
    assert (outcome.status, outcome.limit) == ("raised", None), str(outcome)
    assert outcome.error is not None and outcome.error.type.rpartition(".")[2] == kind


def test_an_error_that_holds_any_object_is_that_error_in_a_chunk() -> None:
    @sandbox
    def fail(kind: int) -> int:
        class Odd:
            def __eq__(self, other: object) -> bool:
                raise SystemExit(7)

            __hash__ = None  # type: ignore[assignment]

        if kind:
            raise RuntimeError(Odd())
        return 7

    outcomes = list(fail.map([0, 1, 0], chunksize=3, on_error="outcome"))
    assert [one.status for one in outcomes] == ["returned", "raised", "returned"]
    assert [one.limit for one in outcomes] == [None, None, None]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("import mmap; mmap.mmap(-1, 1 << 46)", "memory"),
        ("open('x', 'wb').write(bytes(64 << 20))", "disk"),
        (
            "import subprocess\nsubprocess.run('dd if=/dev/zero of=x bs=1M count=64', shell=True)\n"
            "with open('y', 'wb') as file: file.write(bytes(10))",
            "disk",
        ),
        (
            "import multiprocessing\ndef fill(n):\n    open(str(n), 'wb').write(bytes(64 << 20))\n"
            "multiprocessing.get_context('fork').Pool(1).map(fill, [1])",
            "disk",
        ),
        (
            "import threading, time\n"
            "for _ in range(99):\n"
            "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "pids",
        ),
    ],
)
def test_what_the_kernel_refused_is_a_limit_however_it_was_asked(text: str, limit: str) -> None:
    outcome = hutch.run(text, disk_mb=8, timeout_sec=60)
    assert (outcome.status, outcome.limit) == ("limit", limit), str(outcome)


def test_ten_gigabytes_in_six_processes_hit_the_memory_limit() -> None:
    @sandbox(memory_mb=256, timeout_sec=60)
    def allocate() -> None:
        import os
        import time

        for _ in range(6):
            if os.fork() == 0:
                hoard = []
                for _ in range(100):
                    hoard.append(b"\1" * (8 << 20))
                    time.sleep(0.01)
                time.sleep(60)
        time.sleep(60)

    outcome = allocate.run()
    assert (outcome.status, outcome.limit) == ("limit", "memory")
    assert outcome.usage.source == "warden" and outcome.usage.peak_memory_bytes > 200 << 20


def test_nothing_is_suggested_that_cannot_be_had() -> None:
    @sandbox(memory_mb=600_000)
    def allocate() -> None:
        bytearray(1 << 50)

    outcome = allocate.run()
    assert outcome.limit == "memory" and outcome.usage.suggested == {}
    with pytest.raises(ValueError, match="pids"):
        allocate.options(pids=32769)


def test_a_fork_bomb_hits_the_process_limit() -> None:
    @sandbox(pids=16, timeout_sec=30)
    def bomb() -> None:
        import os
        import time

        for _ in range(1000):
            if os.fork() == 0:
                time.sleep(60)

    outcome = bomb.run()
    assert (outcome.status, outcome.limit) == ("limit", "pids")
    assert outcome.usage.suggested == {"pids": 32}


def test_a_large_file_hits_the_disk_limit() -> None:
    @sandbox(disk_mb=8, timeout_sec=30)
    def fill() -> None:
        with open("/tmp/x", "wb") as file:
            for _ in range(64):
                file.write(b"x" * (1 << 20))

    outcome = fill.run()
    assert (outcome.status, outcome.limit) == ("limit", "disk")
    assert outcome.usage.suggested["disk_mb"] == 16


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import subprocess; subprocess.run(['node', '--version'])", "no program node"),
        ("open('missing.txt')", "files="),
        ("import socket\na, b = socket.socketpair()\na.setblocking(False)\na.recv(1)", ""),
        ("import pty; pty.openpty()", "pipes"),
        ("files = [open('/dev/null') for _ in range(2000)]", "1,024"),
        ("import os; os.kill(1, 9)", "privilege"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "nothing listens"),
        ("import socket; socket.create_connection(('192.0.2.1', 9))", "no network"),
        ("import socket; socket.getaddrinfo('host.example', 9)", "no network"),
        ("raise ConnectionError('db down')", ""),
        (
            "import os, tempfile\nwith tempfile.TemporaryDirectory() as place:\n"
            "    open(place + '/x', 'wb').write(bytes(64 << 20))",
            "disk_mb=",
        ),
    ],
)
def test_an_error_has_the_hint_that_its_cause_wants(text: str, says: str) -> None:
    outcome = hutch.run(text, disk_mb=8)
    assert outcome.status == "raised" and outcome.error is not None
    assert says in outcome.error.hint if says else outcome.error.hint == ""


def test_a_limit_has_no_hint_of_another() -> None:
    text = (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()"
    )
    outcome = hutch.run(text, pids=8)
    assert outcome.limit == "pids" and outcome.error is not None
    assert "pids=" in outcome.error.hint and "memory" not in str(outcome).split("Traceback")[0]
    outcome = hutch.run("x = bytearray(1 << 40)")
    assert outcome.limit == "memory" and outcome.error is not None and outcome.error.hint == ""
    assert "pids" not in str(outcome)


FILES = """
import os
for number in range(200_000): os.close(os.open(f"/tmp/{number}", os.O_CREAT))
"""


def test_the_number_of_files_is_a_limit_and_is_reported_as_one() -> None:
    outcome = hutch.run(FILES, disk_mb=8, timeout_sec=60)
    assert (outcome.status, outcome.limit) == ("limit", "disk")
    with pytest.raises(hutch.LimitExceeded, match="1,024 files allowed with disk_mb=8") as caught:
        outcome.unwrap()
    assert caught.value.used is None and "MiB of scratch" not in str(caught.value)
    assert outcome.usage.suggested == {"disk_mb": 16}
    most = hutch.run(FILES, disk_mb=600, timeout_sec=60)
    assert most.limit == "disk" and most.usage.suggested == {}
    assert "65,536 files" in str(most) and "make fewer files" in str(most)


def test_a_hundred_megabytes_of_output_are_cut_and_counted() -> None:
    @sandbox(timeout_sec=60)
    def shout() -> str:
        for _ in range(1000):
            print("x" * 100_000)
        return "done"

    outcome = shout.run()
    assert outcome.ok and outcome.value == "done"
    assert outcome.stdout_size == 1000 * 100_001
    assert outcome.stdout_truncated and len(outcome.stdout) <= 1 << 20


def test_a_result_that_is_too_large_hits_the_result_limit() -> None:
    @sandbox(result_mb=1, timeout_sec=60)
    def large() -> bytes:
        return b"x" * (5 << 20)

    with pytest.raises(hutch.LimitExceeded) as caught:
        large()
    assert caught.value.limit == "result" and caught.value.used == pytest.approx(5, abs=0.1)
    assert large.options(**large.run().usage.suggested)() == b"x" * (5 << 20)


def test_a_result_of_too_many_small_dicts_is_refused_with_what_to_return_instead() -> None:
    @sandbox(result_mb=2, timeout_sec=300)
    def many() -> list[dict[str, int]]:
        return [{} for _ in range(1_000_000)]

    outcome = many.run()
    assert outcome.error is not None and "too much memory here" in outcome.error.message
    assert "return columns" in outcome.error.hint and "result_mb" in outcome.error.hint


def exits() -> None:
    import os

    os._exit(3)


def aborts() -> None:
    import os

    os.abort()


def segfaults() -> None:
    import ctypes

    ctypes.string_at(0)


def kills_itself() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def stops_itself() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize(
    ("function", "number"), [(aborts, signal.SIGABRT), (segfaults, signal.SIGSEGV),
                             (kills_itself, signal.SIGKILL)],
)  # fmt: skip
def test_a_death_by_signal_is_reported(function: Callable[[], None], number: int) -> None:
    with pytest.raises(hutch.SandboxDied, match=signal.Signals(number).name) as caught:
        sandbox(function)()
    assert caught.value.signal == number
    assert caught.value.outcome is not None and caught.value.outcome.status == "died"


def test_leaving_the_process_is_reported_with_its_exit_code() -> None:
    outcome = sandbox(exits).run()
    assert (outcome.status, outcome.exit_code) == ("died", 3)


def test_a_call_that_stops_itself_ends_within_its_time() -> None:
    outcome = sandbox(stops_itself, timeout_sec=1).run()
    assert outcome.status in ("died", "limit")


def test_killing_the_parent_harms_nobody_else() -> None:
    @sandbox(timeout_sec=5)
    def attack() -> str:
        import os
        import signal

        os.kill(os.getppid(), signal.SIGKILL)
        return "sent"

    assert attack.run().status in ("returned", "raised", "died")


def test_closing_every_descriptor_ends_in_one_outcome() -> None:
    @sandbox(timeout_sec=5)
    def close_all() -> None:
        import os

        os.closerange(0, 1024)

    assert close_all.run().status in ("died", "limit", "raised")


def test_a_grandchild_that_holds_every_descriptor_does_not_delay_the_result() -> None:
    @sandbox(timeout_sec=20)
    def leave_behind() -> str:
        import os
        import time

        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(15)
            os._exit(0)
        os.wait()
        return "done"

    start = time.monotonic()
    assert leave_behind() == "done"
    assert time.monotonic() - start < 12


def test_five_hundred_zombies_are_reaped_or_limited() -> None:
    @sandbox(timeout_sec=30, pids=64)
    def zombies() -> str:
        import os

        for _ in range(500):
            if os.fork() == 0:
                if os.fork() == 0:
                    os._exit(0)
                os._exit(0)
            os.wait()
        return "done"

    outcome = zombies.run()
    assert outcome.ok or outcome.limit == "pids"


@pytest.mark.parametrize(
    ("source", "path", "kind"),
    [
        ("lambda: 0", "result", "function"),
        ("[1, lambda: 0]", "result[1]", "function"),
        ('{"models": [1, 2, open("/dev/null")]}', 'result["models"][2]', "TextIOWrapper"),
        ("object()", "result", "object"),
        ("(x for x in [])", "result", "generator"),
    ],
)
def test_a_result_that_is_no_data_is_named_by_path_and_type(
    source: str, path: str, kind: str
) -> None:
    with pytest.raises(hutch.SerializationError) as caught:
        hutch.function(f"def f():\n    return {source}\n", "f")()
    assert caught.value.path == path and kind in caught.value.type_name
    assert caught.value.hint


def test_a_list_that_holds_itself_is_a_clear_error() -> None:
    source = "def f():\n    x = []\n    x.append(x)\n    return x\n"
    with pytest.raises(hutch.SerializationError, match="list"):
        hutch.function(source, "f")()


CTRL_C = """
import os, signal, sys, threading, time
from hutch import sandbox

@sandbox(timeout_sec=60)
def loop():
    import time
    print("started", flush=True)
    time.sleep(50)

threading.Timer(60, lambda: os._exit(9)).start()
try:
    loop()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(0)
"""


def test_ctrl_c_ends_the_call() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CTRL_C)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    assert process.stdout.readline() == "interrupted\n"
    assert time.monotonic() - start < 10
    process.stdout.close()
    assert process.wait(20) == 0


AT_EXIT = """
from hutch import sandbox

@sandbox(timeout_sec=60)
def loop():
    import time
    time.sleep(50)

loop.warm()
future = loop.submit()
import time
time.sleep(0.5)
print("leaving", flush=True)
"""


def test_leaving_the_interpreter_cancels_calls_in_flight() -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "leaving\n" and time.monotonic() - start < 40


def test_a_process_that_dies_takes_its_calls_with_it() -> None:
    code = CTRL_C.replace("except KeyboardInterrupt", "except ZeroDivisionError")
    before = hutch.status().get("clients", 1)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait(20)
    until(lambda: hutch.status().get("clients", before + 1) <= before)


class _SlowToLoad:
    """Unpickling takes longer than the call may: the clock runs from the start of the function."""

    def __reduce__(self) -> tuple[object, ...]:
        import time

        return (time.sleep, (2.6,))


def test_a_slow_load_leaves_the_function_its_whole_time() -> None:
    @sandbox(timeout_sec=4)
    def work(_: object) -> str:
        import time

        time.sleep(2)  # past what the warden allowed before it heard of the start: 0.5 s more
        return "done"

    assert work(_SlowToLoad()) == "done"
