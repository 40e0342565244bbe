# SPDX-License-Identifier: Apache-2.0
"""Commands that a tool has its session run: each has its own output, limits and Outcome, as any
other, and ends with the call that waits for the tool.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hutch import AsyncSession, Outcome, Session, SessionBusy, StopExec, Tool

# Calls the tool from four threads at once.
FROM_THREADS = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as threads:
    found = list(threads.map(tool, ["a", "b", "c", "d"]))
found
"""
SAYS = "for i in 1 2 3; do echo out {0}; echo err {0} >&2; sleep 0.02; done"


class Tools:
    """A session with the tool `tool(text)`, which does what `act` is."""

    def __init__(self, **keywords: Any) -> None:
        self.act: Callable[[str], Any] = lambda text: text
        tools = [Tool(lambda text: self.act(text), name="tool", input_schema=ANY)]
        self.session = Session(memory_mb=256, timeout_sec=20, tools=tools, **keywords)


ANY = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.fixture
def t() -> Iterator[Tools]:
    tools = Tools()
    with tools.session:
        yield tools


def alone(outcomes: list[Outcome[None]]) -> list[str]:
    """What each printed, which is the same line three times on either stream."""
    found = []
    for one in outcomes:
        lines = one.stdout.splitlines()
        assert len(lines) == 3 and len(set(lines)) == 1, one.stdout
        assert one.stderr == one.stdout.replace("out", "err")
        found.append(lines[0][4:])
    return sorted(found)


def test_commands_of_tools_that_threads_call_have_their_own_output(t: Tools) -> None:
    outcomes: list[Outcome[None]] = []

    def act(text: str) -> str:
        outcomes.append(t.session.bash(SAYS.format(text)))
        return text

    t.act = act
    whole = t.session.exec(FROM_THREADS)
    assert whole.unwrap() == ["a", "b", "c", "d"] and whole.stdout == whole.stderr == ""
    assert alone(outcomes) == ["a", "b", "c", "d"]
    assert all(one.usage.wall_sec > 0 for one in outcomes)


def test_within_code_of_a_tool_too(t: Tools) -> None:
    """Where a thread waits for code that a tool has run, another one may call a tool meanwhile."""
    outcomes: list[Outcome[None]] = []

    def act(text: str) -> str:
        if len(text) == 1:
            return str(t.session.exec(f"import time; time.sleep(0.05); tool('of {text}')").value)
        outcomes.append(t.session.bash(SAYS.format(text[3:])))
        return text[3:]

    t.act = act
    assert t.session.exec(FROM_THREADS).unwrap() == ["a", "b", "c", "d"]
    assert alone(outcomes) == ["a", "b", "c", "d"]


def test_commands_of_async_tools_have_their_own_output_and_run_at_the_same_time() -> None:
    async def main() -> None:
        outcomes: list[Outcome[None]] = []

        async def tool(text: str) -> str:
            texts = [SAYS.format(text + one) for one in "12"]
            outcomes.extend(await asyncio.gather(*map(s.bash, texts)))
            return text

        async def meet(text: str) -> list[str]:
            def waits(mine: str, other: str) -> str:
                return f"touch {mine}; until [ -e {other} ]; do sleep 0.01; done; echo {mine}"

            both = await asyncio.gather(s.bash(waits("x", "y")), s.bash(waits("y", "x")))
            return [one.stdout for one in both]

        async with AsyncSession(memory_mb=256, timeout_sec=20, tools=[tool, meet]) as s:
            whole = await s.exec(FROM_THREADS)
            assert whole.unwrap() == ["a", "b", "c", "d"] and whole.stdout == whole.stderr == ""
            assert (await s.exec("meet('')")).unwrap() == ["x\n", "y\n"]
        assert alone(outcomes) == sorted(a + b for a in "abcd" for b in "12")

    asyncio.run(main())


def test_what_a_tool_s_bash_leaves_is_the_code_s(t: Tools) -> None:
    def act(_: str) -> str:
        t.session.bash("mkdir -p sub; cd sub; export WHO=me").unwrap()
        return t.session.command(["sh", "-c", "basename $PWD; echo $WHO"]).stdout

    t.act = act
    source = "import os\ntool(''), os.path.basename(os.getcwd()), os.environ['WHO']"
    outcome = t.session.exec(source)
    assert outcome.unwrap() == ("sub\nme\n", "sub", "me")


def test_they_take_what_commands_take_and_have_an_outcome_as_these(t: Tools) -> None:
    heard: list[str] = []

    def act(_: str) -> None:
        s = t.session
        assert s.bash("cat; printf '\\377'", input="x", as_bytes=True).stdout == b"x\xff"
        assert s.bash("echo live; exit 3", on_stdout=heard.append).exit_code == 3
        late = s.bash("echo begun; sleep 555", timeout_sec=0.3)
        assert (late.limit, late.stdout) == ("time", "begun\n")
        assert s.bash("while :; do :; done", cpu_sec=0.5).limit == "cpu_time"
        assert s.command(["nosuchprogram"]).exit_code == 127
        assert s.bash("pgrep -c sleep").stdout == "0\n"

    t.act = act
    assert t.session.exec("tool('')\n'went on'").unwrap() == "went on"
    assert heard == ["live\n"]


def test_a_tool_finds_no_more_than_sixteen_at_once() -> None:
    async def main() -> None:
        async def tool() -> list[str]:
            await s.bash("mkfifo gate")
            up = asyncio.Event()
            wait = [asyncio.ensure_future(s.bash("cat gate")) for _ in range(16)]
            await asyncio.sleep(0)
            with pytest.raises(SessionBusy, match="16 commands"):
                await s.bash("true")
            up.set()
            for one in wait:
                one.cancel()
            await asyncio.gather(*wait, return_exceptions=True)
            return [(await s.bash("echo free")).stdout]

        async with AsyncSession(memory_mb=256, timeout_sec=20, tools=[tool]) as s:
            assert (await s.exec("tool()")).unwrap() == ["free\n"]

    asyncio.run(main())


# ---- they end with the call


def kept(act: Callable[[str], Any], ended: list[type]) -> Callable[[str], Any]:
    def acts(text: str) -> Any:
        try:
            return act(text)
        except BaseException as error:
            ended.append(type(error))
            raise

    return acts


def test_the_time_limit_of_the_exec_ends_them_and_costs_no_names(t: Tools) -> None:
    ended: list[type] = []
    s = t.session
    t.act = kept(lambda _: s.bash("setsid sleep 555 & sleep 555"), ended)
    s["kept"] = 1
    late = s.exec("tool('')\nx = 'not reached'", timeout_sec=0.5)
    assert late.limit == "time" and not late.restarted and ended == [StopExec]
    assert s.names() == ["kept"] and s.bash("pgrep -c sleep").stdout == "0\n"


def test_a_tool_that_goes_on_after_the_limit_runs_no_more(t: Tools) -> None:
    s, seen = t.session, []

    def act(_: str) -> None:
        with contextlib.suppress(StopExec):
            s.bash("sleep 555")
        with pytest.raises(StopExec):
            s.bash("echo x > more")
        seen.append(1)

    t.act = act
    assert s.exec("tool('')", timeout_sec=0.5).limit == "time"
    assert seen == [1] and not s.files.exists("more")
    assert s.exec("2").value == 2


@pytest.mark.parametrize("text", ["kill -9 $PPID; sleep 555", "touch up; sleep 555"])
def test_the_end_of_the_interpreter_ends_the_tool(t: Tools, text: str) -> None:
    ended: list[type] = []
    s = t.session
    t.act = kept(lambda _: s.bash(text), ended)
    outcome = s.exec(
        "import os, threading, time\ndef end():\n"
        "  while not os.path.exists('up'): time.sleep(0.01)\n"
        "  os._exit(3)\nthreading.Thread(target=end, daemon=True).start()\ntool('')"
    )
    assert (outcome.status, outcome.restarted) == ("died", True)
    assert (outcome.signal, outcome.exit_code) == ((9, None) if "kill" in text else (None, 3))
    assert ended == [StopExec]
    assert s.bash("echo again").stdout == "again\n"


def test_an_async_tool_is_ended_by_limit_and_crash() -> None:
    async def main() -> None:
        ended: list[type] = []

        async def tool(text: str) -> str:
            try:
                return (await s.bash(text)).stdout
            except BaseException as error:
                ended.append(type(error))
                raise

        async with AsyncSession(memory_mb=256, timeout_sec=20, tools=[tool]) as s:
            await s.set("kept", 1)
            late = await s.exec("tool('sleep 555')", timeout_sec=0.5)
            assert late.limit == "time" and not late.restarted and await s.names() == ["kept"]
            assert (await s.exec("tool('kill -9 $PPID; sleep 555')")).status == "died"
            assert ended == [StopExec, StopExec]
            assert (await s.exec("tool('pgrep -c sleep')")).value == "0\n"

    asyncio.run(main())


def test_a_cancelled_exec_kills_the_command_of_its_tool() -> None:
    async def main() -> None:
        up = asyncio.Event()

        async def tool() -> None:
            await s.bash("echo up; setsid sleep 555 & sleep 555", on_stdout=lambda _: up.set())

        async with AsyncSession(memory_mb=256, timeout_sec=20, tools=[tool]) as s:
            await s.set("kept", 1)
            call = asyncio.ensure_future(s.exec("tool()"))
            await up.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await s.get("kept") == 1
            assert (await s.bash("pgrep -c sleep")).stdout == "0\n"

    asyncio.run(main())


def test_an_interrupt_kills_the_command_and_ends_the_code(t: Tools) -> None:
    s, up, seen = t.session, threading.Event(), []

    def act(_: str) -> None:
        seen.append(s.bash("echo up; sleep 555", on_stdout=lambda _: up.set()))

    t.act = act
    s["kept"] = 1
    thread = threading.Thread(target=lambda: up.wait(20) and s.interrupt())
    thread.start()
    outcome = s.exec("tool('')\nx = 'not reached'")
    thread.join()
    assert outcome.error is not None and outcome.error.type == "KeyboardInterrupt"
    assert seen[0].error.type == "KeyboardInterrupt" and seen[0].stdout == "up\n"
    assert s.names() == ["kept"]


def test_ctrl_c_kills_the_command_and_costs_no_names(t: Tools) -> None:
    s = t.session
    t.act = lambda _: s.bash("sleep 555", on_stdout=None)
    s["kept"] = 1
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        s.exec("tool('')\nx = 'not reached'")
    assert s.names() == ["kept"] and s.bash("pgrep -c sleep").stdout == "0\n"


def test_stop_exec_after_a_command_ends_the_exec(t: Tools) -> None:
    def act(_: str) -> None:
        assert t.session.bash("echo x").stdout == "x\n"
        raise StopExec

    t.act = act
    assert t.session.exec("tool('')\nx = 1").ok and t.session.names() == []


def test_with_the_time_of_tools_excluded_that_of_their_commands_counts() -> None:
    t = Tools(tool_time="excluded")

    def act(text: str) -> str:
        time.sleep(1.6)
        printed = t.session.bash(text).stdout
        time.sleep(1.6)
        return printed

    t.act = act
    with t.session as s:
        assert s.exec("tool('echo 5')", timeout_sec=3).value == "5\n"
        late = s.exec("tool('sleep 555')", timeout_sec=1)
        assert late.limit == "time" and not late.restarted


def test_the_history_has_them_within_their_tool(t: Tools) -> None:
    t.act = lambda _: t.session.bash("exit 4").exit_code
    t.session.exec("tool('')").unwrap()
    code, tool, bash = t.session.history()
    assert (code.within, tool.within, bash.within) == (None, code.id, tool.id)
    assert (bash.kind, bash.status, bash.exit_code) == ("bash", "raised", 4)


def test_what_an_async_tool_leaves_under_way_is_a_command_as_any_other() -> None:
    async def main() -> None:
        left: list[asyncio.Task[Outcome[None]]] = []

        async def tool() -> None:
            begun = asyncio.Event()
            text = "echo up; until [ -e go ]; do sleep 0.01; done; echo done"
            left.append(asyncio.ensure_future(s.bash(text, on_stdout=lambda _: begun.set())))
            await begun.wait()

        async with AsyncSession(memory_mb=256, timeout_sec=20, tools=[tool]) as s:
            await s.exec("tool()\nopen('go', 'w').close()")
            assert (await left[0]).stdout == "up\ndone\n"

    asyncio.run(main())


def test_a_command_whose_channel_the_code_closes_ends_no_more_than_itself(t: Tools) -> None:
    def act(_: str) -> str:
        return str(t.session.bash("echo x").exit_code)

    t.act = act
    closes = (
        "import os, _thread, _hutch_cell as cell\n"
        "def run(*descriptors):\n  for fd in descriptors: os.close(fd)\n"
        "cell.commands_by(_thread.start_new_thread, _thread.stack_size, run)\n"
    )
    assert t.session.exec(f"{closes}tool('')").value == "None"
