# SPDX-License-Identifier: Apache-2.0
"""`fetch=`: files of a program come back, however it ended, and nothing else is different."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import hutch
from hutch._program_files import MOST_FILES
from hutch._remote import wire

WRITE = "open('a.txt', 'w').write('x')\n"
LATE = ("the time limit", "stubborn", "another program")

ENDS = {
    "a return": "",
    "sys.exit": "import sys; sys.exit(3)",
    "an exception": "1 / 0",
    "os._exit": "import os; os._exit(0)",
    "a SIGINT of its own": "import os, time; os.kill(os.getpid(), 2); time.sleep(9)",
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "the time limit": "import re; re.match('(a+)+$', 'a' * 64 + 'b')",
    "stubborn": "import time\nwhile True:\n  try: time.sleep(9)\n  except BaseException: pass",
    "the memory limit": "kept = []\nwhile True: kept.append(b'x' * (1 << 22) + b'y')",
    "another program": "import os; os.execv('/bin/sleep', ['sleep', '100'])",
    "threads": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(.1), open('b.txt', 'w').write('y'))).start()",
    "atexit": "import atexit; atexit.register(lambda: open('b.txt', 'w').write('y'))",
    "a file left open": "left = open('b.txt', 'w'); left.write('y')",
}


@pytest.mark.parametrize("end", ENDS)
def test_files_come_back_however_it_ended_and_the_rest_is_the_same(end: str) -> None:
    source = f"{WRITE}print('printed')\n{ENDS[end]}"
    small: dict[str, Any] = {"memory_mb": 64, "timeout_sec": 2 if end in LATE else 60}
    plain = hutch.run(source, **small)
    fetched = hutch.run(source, fetch=["*.txt", "none.txt"], **small)
    writes = end in ("threads", "atexit", "a file left open")
    assert fetched.files == ({"a.txt": b"x", "b.txt": b"y"} if writes else {"a.txt": b"x"})
    assert plain.files == {}

    def told(one: hutch.Outcome[None]) -> list[object]:
        error = one.error and (one.error.type, one.error.message, one.error.line)
        failure = None if one.ok else str(one.exception()).split(":")[0]  # figures differ
        return [one.status, one.value, one.limit, one.exit_code, one.signal, one.stdout, error,
                failure, one.restarted, one.display]  # fmt: skip

    assert told(fetched) == told(plain)


def test_a_program_finds_what_it_finds_without_it() -> None:
    source = (
        "import sys\nprint(sys.argv, sys.stdin.read(), __name__, __file__, open('in').read())\n"
        "print(sorted(k for k in globals() if k[0] != '_'))\n"
        "try: display\nexcept NameError: print('a program')\n"
    )
    given: dict[str, Any] = {"args": ["a"], "stdin": "hello", "files": {"in": "q"}}
    with_it = hutch.run(source, fetch="in", **given)
    assert with_it.stdout == hutch.run(source, **given).stdout
    assert with_it.files == {"in": b"q"}


def test_other_languages_tools_and_loops() -> None:
    bash = hutch.run("echo hi > x.txt; exit 4", language="bash", fetch="*.txt")
    assert (bash.files, bash.exit_code) == ({"x.txt": b"hi\n"}, 4)
    script = "require('fs').writeFileSync('j.txt', 'js')"
    assert hutch.run(script, language="javascript", fetch="j.txt").files == {"j.txt": b"js"}

    def add(x: int) -> int:
        return x + 1

    assert hutch.run("open('a', 'w').write(str(add(4)))", tools=[add], fetch="a").files["a"] == b"5"
    assert asyncio.run(hutch.run_aio(WRITE, fetch="a.txt")).files == {"a.txt": b"x"}


def test_which_files() -> None:
    source = (
        "import os\nos.makedirs('d/e')\n"
        "for name in ('a.csv', 'b.txt', 'd/c.csv', 'd/e/f.csv', '.hidden', 'ö \\n.csv'):\n"
        "    open(name, 'w').write(name)\n"
        "os.mkfifo('fifo.csv'); os.symlink('a.csv', 'link.csv'); os.symlink('no', 'lost.csv')\n"
        "os.mkdir('z.csv')\n"
    )

    def names(*fetch: str) -> list[str]:
        return sorted(hutch.run(source, fetch=fetch).files)

    assert names("*.csv") == ["a.csv", "link.csv", "ö \n.csv"]
    assert names("d/**") == ["d/c.csv", "d/e/f.csv"]
    assert names("d", "none", "d/e/f.csv") == ["d/e/f.csv"]
    assert names(".hidden") == [".hidden"]


def test_what_is_more_than_a_result_may_be_is_a_limit() -> None:
    source = "open('a', 'w').write('x')\nopen('b', 'wb').truncate(1 << 40)"
    outcome = hutch.run(source, fetch=["a", "b"])
    assert (outcome.status, outcome.limit, outcome.files) == ("limit", "result", {"a": b"x"})
    assert outcome.error is not None and "result_mb" in outcome.error.message
    with pytest.raises(hutch.LimitExceeded, match="result_mb"):
        outcome.unwrap()


def test_so_many_files_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_FILES == 10_000
    monkeypatch.setattr("hutch._program_files.MOST_FILES", 2)
    outcome = hutch.run("for i in range(3): open(str(i), 'w')", fetch="*")
    assert outcome.limit == "result" and len(outcome.files) == 2


def test_what_is_not_to_be_read_is_left_out() -> None:
    source = (
        "import os\nfor name in 'abc': open(name, 'w').write(name)\nos.chmod('a', 0)\n"
        "os.mkdir('d'); open('d/e', 'w'); os.chmod('d', 0)"
    )
    outcome = hutch.run(source, fetch=["*", "d/e"])
    assert (outcome.status, outcome.files) == ("returned", {"b": b"b", "c": b"c"})


# What the program leaves is a limit of its outcome, and never an error of fetch=.
TOO_MUCH_TO_LIST = {
    "names": ("for i in range(6000): open(f'{i:0200}', 'w')", "result"),
    "links to itself": ("import os\nfor name in 'bc': os.symlink('.', name)", "time"),
}


@pytest.mark.parametrize("what", TOO_MUCH_TO_LIST)
def test_files_that_cannot_be_listed_are_a_limit(what: str) -> None:
    code, limit = TOO_MUCH_TO_LIST[what]
    seconds = 2 if limit == "time" else 60
    outcome = hutch.run(f"{WRITE}{code}", fetch=["a.txt", "**"], result_mb=1, timeout_sec=seconds)
    assert (outcome.status, outcome.limit, outcome.files) == ("limit", limit, {"a.txt": b"x"})
    with pytest.raises(hutch.LimitExceeded):
        outcome.unwrap()


def test_what_cannot_be_asked_for_is_refused_before_it_runs() -> None:
    for wrong in ("/etc/passwd", "../x", "a/../../b", "", "a\0", "\ud800"):
        with pytest.raises(ValueError, match="fetch="):
            hutch.run("1", fetch=[wrong])
    with pytest.raises(TypeError, match="fetch="):
        hutch.run("1", fetch=[3])  # type: ignore[list-item]
    for isolation in ("shared", "gvisor"):
        with pytest.raises(ValueError, match="fetch="):
            hutch.run("1", fetch="a", isolation=isolation)  # type: ignore[arg-type]


def test_code_chooses_no_name_outside_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = ["/etc/passwd", "../up", "d/../../up", "", "\ud800", "a.txt"]
    monkeypatch.setattr("hutch._session_files.SessionFiles.glob", lambda self, pattern: claims)
    assert hutch.run(WRITE, fetch="*").files == {"a.txt": b"x"}


def test_nothing_of_the_program_reads_its_files() -> None:
    """What it has replaced in its process, and what it has left running, is gone."""
    source = (
        f"{WRITE}import builtins, os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    while True: open('a.txt', 'w').write('mine')\n"
        "builtins.open = os.stat = os.open = os.listdir = None\n"
    )
    outcome = hutch.run(source, fetch="a.txt")
    assert outcome.ok and outcome.files["a.txt"] in (b"x", b"mine", b"")


def test_the_outcome_travels_with_them() -> None:
    outcome = hutch.run("open('a', 'wb').write(b'\\xff')", fetch="a")
    as_json = json.loads(json.dumps(wire.to_wire(outcome)))
    assert as_json["files"] == {"a": "/w=="}
    assert wire.from_wire(as_json).files == {"a": b"\xff"}
    for wrong in ({"a": 1}, {"a": "="}, []):
        with pytest.raises(ValueError):
            wire.from_wire({**as_json, "files": wrong})


def test_an_await_that_is_cancelled_ends_the_program() -> None:
    async def begin_and_cancel() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(
            hutch.run_aio(
                "print('begun', flush=True)\nimport time; time.sleep(600)",
                fetch="a", timeout_sec=900,
                on_stdout=lambda _: loop.call_soon_threadsafe(begun.set),
            )
        )  # fmt: skip
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(begin_and_cancel())  # waits for its threads
