# SPDX-License-Identifier: Apache-2.0
"""What is printed costs what it does in a pipe, is seen at once, and none of it is lost or moved,
however quickly it comes.
"""

from __future__ import annotations

from typing import Any

import pytest

import hutch
from hutch import Session, sandbox

MANY = "for i in range(3000): print(i)\n"
PRINTED = "".join(f"{i}\n" for i in range(3000))
SMALL = {"memory_mb": 64, "disk_mb": 16, "pids": 16}


def rest(outcome: hutch.Outcome[Any]) -> str:
    """What was printed after MANY, of which nothing is missing."""
    assert outcome.stdout.startswith(PRINTED), outcome
    return outcome.stdout[len(PRINTED) :]


def calls_to_write(before: str) -> int:
    outcome = hutch.run(
        f"{before}\nfor i in range(100_000): print(i)\n"
        "import sys; sys.stderr.write(open('/proc/self/io').read())"
    )
    assert outcome.ok, outcome
    return int(outcome.stderr.split("syscw: ")[1].split()[0])


def test_many_lines_take_few_system_calls() -> None:
    assert calls_to_write("") < 5_000


def test_whoever_has_what_is_below_the_stream_gets_one_for_each_line() -> None:
    assert calls_to_write("import sys; below = sys.stdout.buffer") >= 100_000


ENDS = {
    "the last line": ("pass", "returned"),
    "sys.exit": ("import sys; sys.exit(3)", "died"),
    "os._exit": ("import os; os._exit(3)", "died"),
    "SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "died"),
    "a segfault": ("import ctypes; ctypes.string_at(0)", "died"),
    "os.abort": ("import os; os.abort()", "died"),
    "an exception": ("1 / 0", "raised"),
    "another program": ("import os; os.execv('/bin/true', ['true'])", "died"),
    "a stop": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "died"),
    "children that go on": (
        "import os, time\nif os.fork() == 0: time.sleep(60)\nos._exit(0)",
        "died",
    ),
    "the time limit": ("while True: pass", "limit"),
    "the memory limit": ("kept = []\nwhile True: kept.append(b'x' * (1 << 22) + b'y')", "limit"),
    "the disk limit": ("open('a', 'wb').write(b'x' * (1 << 26))", "limit"),
    "the limit of processes": ("import os\nwhile True: os.fork()", "limit"),
    "the limit of CPU time": ("import os\nwhile True: os.urandom(9)", "limit"),
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_lost_by_an_end(end: str) -> None:
    code, status = ENDS[end]
    limits = {"timeout_sec": 2} if end == "the time limit" else {"timeout_sec": 30, "cpu_sec": 2}
    outcome = hutch.run(MANY + code, **SMALL, **limits)  # type: ignore[arg-type]
    assert rest(outcome) == ""
    assert outcome.status == status, outcome


BESIDE = {
    "os.system": "import os; os.system('echo x')",
    "subprocess": "import subprocess; subprocess.run(['echo', 'x'])",
    "posix_spawn": "import os; os.waitpid(os.posix_spawn('/bin/echo', ['echo', 'x'], {}), 0)",
    "a fork": "import os\nif os.fork() == 0: os.write(1, b'x\\n'); os._exit(0)\nos.wait()",
    "a fork that prints": (
        "import os\nif os.fork() == 0: print('x', flush=True); os._exit(0)\nos.wait()"
    ),
    "spawned": (
        "import multiprocessing as m\ndef f(): print('x')\n"
        "if __name__ == '__main__':\n"
        "    p = m.get_context('spawn').Process(target=f); p.start(); p.join()"
    ),
    "the buffer": "import sys; sys.stdout.buffer.write(b'x\\n')",
    "the descriptor": "import os, sys; os.write(sys.stdout.fileno(), b'x\\n')",
    "a second stream": "with open(1, 'w', closefd=False) as f: f.write('x\\n')",
    "the file": "with open('/dev/stdout', 'w') as f: f.write('x\\n')",
    "a change of encoding": "import sys; sys.stdout.reconfigure(encoding='latin-1'); print('x')",
    "a new stream": "import io, sys; b = sys.stdout.detach(); b.write(b'x\\n'); b.flush()",
    "another descriptor": (
        "import os, sys; sys.stdout.flush(); os.dup2(os.open('a', os.O_CREAT | os.O_RDWR), 1)\n"
        "for i in range(3000): print('lost')\nsys.stderr.write('x')"
    ),
}


# The lines of each thread of two, of pieces, as print() writes them.
PIECES = (
    "import sys, threading\n"
    "def f(k):\n    for i in range(20_000): print(k, i)\n"
    "ts = [threading.Thread(target=f, args=(k,)) for k in range(2)]\n"
    "for t in ts: t.start()\n{meanwhile}\nfor t in ts: t.join()\n"
)


def are_whole(text: str) -> bool:
    lines = text.splitlines()
    return (
        all(
            [line for line in lines if line.startswith(k)] == [f"{k} {i}" for i in range(20_000)]
            for k in "01"
        )
        and len(lines) == 40_000
    )


@pytest.mark.parametrize("kind", BESIDE)
def test_others_that_write_there_come_after_it(kind: str) -> None:
    guarded = MANY if kind != "spawned" else f"if __name__ == '__main__':\n  {MANY}"
    outcome = hutch.run(f"{guarded}{BESIDE[kind]}")
    assert outcome.ok, outcome
    assert rest(outcome) + outcome.stderr == ("x" if kind == "another descriptor" else "x\n")


def test_texts_of_all_kinds_keep_their_order() -> None:
    texts = [
        "é\n",
        "\U0001f600",
        "\ud800\n",
        "x" * 5000,
        "\n",
        "",
        "y" * 4092,
        "z\n" * 2000,
        "\r\n",
    ]
    outcome = hutch.run(
        f"texts = {texts!a}\nimport sys\nfor _ in range(50):\n"
        "    for i in range(30): print(i)\n    for text in texts: sys.stdout.write(text)"
    )
    part = "".join(f"{i}\n" for i in range(30)) + "".join(texts).replace("\ud800", "\\ud800")
    assert outcome.stdout == part * 50


def test_a_reader_sees_it_while_the_code_holds_the_interpreter() -> None:
    with Session(memory_mb=256) as s:

        def hear(text: str) -> None:
            if text.endswith("2999\n"):
                s.interrupt()

        held = "import re; re.match('(a+)+$', 'a' * 64 + 'b')"
        outcome = s.exec(MANY + held, on_stdout=hear, timeout_sec=60)
        assert (rest(outcome), outcome.status) == ("", "raised"), outcome
        assert outcome.error is not None and outcome.error.type == "KeyboardInterrupt"


def test_it_is_seen_before_code_asks() -> None:
    heard: list[str] = []
    seen: list[str] = []

    def answer(prompt: str) -> str:
        seen.append("".join(heard))
        return "y"

    with Session(memory_mb=256, on_input=answer) as s:
        s.exec(MANY + "a = input()\n" + MANY + "b = input()", on_stdout=heard.append).unwrap()
    assert seen == [PRINTED, PRINTED * 2]


def test_threads_print_whole_lines() -> None:
    outcome = hutch.run(
        "import threading\n"
        "def f(k):\n    for i in range(3000): sys.stdout.write(f'{k} {i}\\n')\n"
        "import sys\nts = [threading.Thread(target=f, args=(k,)) for k in range(4)]\n"
        "for t in ts: t.start()\nfor t in ts: t.join()"
    )
    lines = [line.split() for line in outcome.stdout.splitlines()]
    for k in "0123":
        assert [int(i) for name, i in lines if name == k] == list(range(3000))


@pytest.mark.parametrize("meanwhile", ["", "while ts[0].is_alive(): open('/dev/null').close()"])
def test_what_threads_print_in_pieces_is_whole(meanwhile: str) -> None:
    assert are_whole(hutch.run(PIECES.format(meanwhile=meanwhile)).stdout)


def test_a_pipe_of_its_own_keeps_nothing_waiting() -> None:
    """A thread of the code reads it, which needs the interpreter, while others print and fork."""
    fork = "import os\nwhile ts[0].is_alive():\n    if os.fork() == 0: os._exit(0)\n    os.wait()"
    outcome = hutch.run(
        "import os, sys, threading\nr, w = os.pipe()\nown = os.dup(1)\n"
        f"{MANY}sys.stdout.flush()\nos.dup2(w, 1); os.close(w)\n"
        "got = []\n"
        "def read():\n    while part := os.read(r, 1000): got.append(part)\n"
        f"reader = threading.Thread(target=read); reader.start()\n{PIECES.format(meanwhile=fork)}"
        "sys.stdout.flush()\nos.dup2(own, 1)\nreader.join()\n"
        "os.write(1, b''.join(got))"
    )
    assert are_whole(rest(outcome))


def test_a_signal_is_heard_where_a_pipe_of_its_own_is_full() -> None:
    outcome = hutch.run(
        "import os, signal, sys\nr, w = os.pipe()\nown = os.dup(1)\n"
        f"{MANY}sys.stdout.flush()\nos.dup2(w, 1)\n"
        "def alarm(*_): raise TimeoutError\n"
        "signal.signal(signal.SIGALRM, alarm); signal.setitimer(signal.ITIMER_REAL, 0.2)\n"
        "try:\n    while True: print('x')\nexcept TimeoutError: sys.stderr.write('heard')\n"
        "os.dup2(own, 1)",
        timeout_sec=10,
    )
    assert (outcome.status, outcome.stderr) == ("returned", "heard")


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_what_goes_to_another_file_comes_nowhere_else_when_it_ends(end: str) -> None:
    with Session(memory_mb=256) as s:
        place = (
            "import os, sys\nsys.stdout.flush()\nos.dup2(os.open('a', os.O_CREAT | os.O_RDWR), 1)\n"
        )
        assert rest(s.exec(f"{MANY}{place}{MANY}{end}")) == ""
        assert s.files.read("a") == PRINTED


def test_a_fork_has_no_part_in_what_its_parent_prints() -> None:
    outcome = hutch.run(
        "import os, warnings\nwarnings.simplefilter('error')\n"
        f"{MANY}pid = os.fork()\n"
        "for i in range(3000): print('child' if pid == 0 else 'parent', i)\n"
        "if pid == 0:\n    import sys; sys.stdout.flush(); os._exit(0)\nos.waitpid(pid, 0)"
    )
    lines = [line.split() for line in rest(outcome).splitlines()]
    for who in ("child", "parent"):
        assert [int(i) for name, i in lines if name == who] == list(range(3000))


def test_it_takes_no_place_of_a_thread() -> None:
    count = (
        "import threading\nend, n = threading.Event(), 0\n"
        "try:\n    while True:\n        threading.Thread(target=end.wait).start(); n += 1\n"
        "except RuntimeError: end.set()\nprint(n)"
    )
    plain, printing = (hutch.run(before + count, pids=12) for before in ("", MANY))
    assert int(plain.stdout) <= int(rest(printing))


def test_each_exec_and_each_process_has_its_own() -> None:
    with Session(memory_mb=256) as s:
        assert rest(s.exec(MANY)) == ""
        assert rest(s.exec(MANY + "import os; os._exit(3)")) == ""
        assert s.exec("print('x')").stdout == "x\n"
        assert rest(s.exec(MANY + "!echo x\nprint('y')")) == "x\ny\n"


@pytest.mark.parametrize("isolation", ["shared", "container"])
def test_each_call_has_its_own(isolation: Any) -> None:
    @sandbox(isolation=isolation, labels={"test": "printing"})
    def numbers(name: str) -> None:
        for i in range(3000):
            print(name, i)

    for name in ("a", "b"):
        assert numbers.run(name).stdout == "".join(f"{name} {i}\n" for i in range(3000))


def test_the_stream_is_what_it_is_elsewhere() -> None:
    outcome = hutch.run(
        "import io, sys\no = sys.stdout\n"
        "assert isinstance(o, io.TextIOWrapper) and o is sys.__stdout__\n"
        "assert repr(type(o)) == repr(io.TextIOWrapper), type(o)\n"
        "assert (o.name, o.mode, o.encoding, o.errors) == "
        "('<stdout>', 'w', 'utf-8', 'backslashreplace')\n"
        "assert o.line_buffering and o.writable() and not o.closed and not o.isatty()\n"
        "assert o.write('é') == 1\n"
        "make, what = o.__reduce_ex__(4)\nassert make(*what) is o\n"
        "class Mine(type(o)): pass\n"
        "mine = Mine(io.BytesIO(), encoding='utf-8')\nmine.write('x'); mine.flush()\n"
        "assert mine.buffer.getvalue() == b'x'\n"
        "try: o.write(1)\nexcept TypeError as error: print(error)\n"
        "assert o.fileno() == 1\no.close()\n"
        "try: print('x')\nexcept ValueError as error: sys.stderr.write(str(error))\n"
    )
    assert outcome.stdout == "éwrite() argument must be str, not int\n", outcome
    assert outcome.stderr == "I/O operation on closed file."


def test_what_nobody_reads_any_more_is_an_error() -> None:
    outcome = hutch.run(
        "import os, sys\nr, w = os.pipe()\nos.dup2(w, 1)\nos.close(w)\nos.close(r)\n"
        "try:\n    while True: print('x')\nexcept BrokenPipeError: sys.stderr.write('broken')"
    )
    assert outcome.stderr == "broken", outcome


def test_a_full_pipe_loses_nothing() -> None:
    """It holds one page, so that there is seldom room for the next."""
    with Session(memory_mb=256) as s:
        outcome = s.exec(
            "import fcntl, os; os.set_blocking(1, False); size = fcntl.fcntl(1, 1031, 4096)\n"
            "for i in range(100_000): print(i)\nsize"
        )
    assert outcome.stdout == "".join(f"{i}\n" for i in range(100_000))
    assert outcome.value == 4096
