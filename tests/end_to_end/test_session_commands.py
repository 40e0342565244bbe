# SPDX-License-Identifier: Apache-2.0
"""Commands of a session: what bash and programs answer, leave, and cost."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import until

import hutch
from hutch import AsyncSession, Session

WORK = "/work"  # the directory of a cell


def processes(session: Session) -> list[str]:
    """The command lines of all that runs there but the question."""
    source = (
        "import os\nfound = []\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n        with open(f'/proc/{pid}/cmdline') as file:\n"
        "            found.append(file.read().replace(chr(0), ' ').strip())\n"
        "    except OSError:\n        pass\nfound"
    )
    found: list[str] = session.exec(source).unwrap()
    return found


# ---- what comes out


def test_stdout_and_stderr_come_apart_with_the_exit_code(s: Session) -> None:
    outcome = s.bash("echo out; echo err >&2; exit 3")
    assert (outcome.stdout, outcome.stderr, outcome.exit_code) == ("out\n", "err\n", 3)
    assert outcome.status == "raised" and not outcome.restarted
    fine = s.command(["printf", "%s|", "a b", "$HOME", "*"])
    assert (fine.stdout, fine.exit_code, fine.status) == ("a b|$HOME|*|", 0, "returned")
    assert fine.unwrap() is None


def test_unwrap_raises_a_command_error(s: Session) -> None:
    with pytest.raises(hutch.CommandError, match=r"ended with exit code 4: no luck") as caught:
        s.bash("echo no luck >&2; exit 4").unwrap()
    assert isinstance(caught.value, hutch.SandboxExecutionError)
    same = pickle.loads(pickle.dumps(caught.value))
    assert type(same) is hutch.CommandError and same.exit_code == 4
    assert same.error_type == "CommandError" and same.outcome.stderr == "no luck\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("nosuchprogram", 127),
        ("/etc/passwd", 126),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("set -e; false; echo not here", 1),
        ("set -u; echo $NOSUCH", 127),
        ("if", 2),
        ("exec sh -c 'exit 5'", 5),
        ("(exit 6)", 6),
        ("trap 'echo own' EXIT; exit 7", 7),
        ("set -o pipefail; false | true", 1),
        ("exec 0<&- 1>&- 2>&-; exit 8", 8),
        ("set -e; exec 10>&-; exit 9", 9),
        ("true", 0),
    ],
)
def test_the_exit_code_is_that_of_bash(s: Session, text: str, code: int) -> None:
    assert s.bash(text).exit_code == code


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["nosuchprogram"], 127),
        (["./nosuchprogram"], 127),
        (["/etc/passwd"], 126),
        ([WORK], 126),
        (["sh", "-c", "kill -11 $$"], 139),
        (["setsid", "sh", "-c", "exit 7"], 7),
        (["bash", "-l", "-c", "exit 4"], 4),
        (["sh", "-lc", "exit 5"], 5),
        ("echo a | grep -q b", 1),
        ("exit 12", 12),
    ],
)
def test_the_exit_code_is_that_of_the_program(s: Session, command: Any, code: int) -> None:
    outcome = s.command(command)
    assert outcome.exit_code == code
    if code == 127:
        assert "not found" in outcome.stderr and "dependencies=" in str(outcome)


@pytest.mark.parametrize("path", ["/nowhere", "", "/etc/passwd:relative"])
def test_a_path_that_leads_nowhere_is_repaired_by_bash(s: Session, path: str) -> None:
    good = s.bash("echo $PATH").stdout.strip()
    s.bash(f"export PATH={path}").unwrap()
    assert s.bash("ls").exit_code == 127
    assert s.command("echo sh; ls").stdout == "sh\n"
    assert list(s.start("echo started").lines()) == ["started"]
    assert s.exec("said = !echo line\nsaid").value == ["line"]
    s.bash(f"export PATH={good}").unwrap()
    assert s.bash("ls").ok


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("pip install six", "Session.install"),
        ("cd /tmp && npm install", "Session.node"),
        ("node -e 1", "Session.node"),
        ("curl http://host.example", "allow_network="),
        ("sudo ls", "no sudo"),
        ("python -m pip install six", "Session.install"),
        ("pip list", "importlib.metadata"),
        ("python -m pip freeze", "importlib.metadata"),
        ("python -c 'import pip'", "Session.install"),
        ("nosuchprogram", "dependencies="),
        ("./nosuchprogram", "dependencies="),
    ],
)
def test_a_program_that_is_missing_has_a_hint_of_what_is_instead(
    s: Session, text: str, hint: str
) -> None:
    error = s.bash(text).error
    assert error is not None and hint in error.hint


@pytest.mark.parametrize("text", ["set -u; echo $NOSUCH", "exit 127"])
def test_an_exit_code_of_127_alone_has_no_hint(s: Session, text: str) -> None:
    error = s.bash(text).error
    assert error is not None and error.hint == ""


@pytest.mark.skipif(not shutil.which("git"), reason="the host has no git")
def test_git_that_is_to_reach_a_network_has_a_hint(s: Session) -> None:
    for address in ("https://host.example/a.git", "http://host.example/a.git"):
        error = s.bash(f"git clone {address}").error
        assert error is not None and "files=" in error.hint, error
    error = s.bash("git clone nowhere").error
    assert error is not None and error.hint == ""


@pytest.mark.skipif(not shutil.which("git"), reason="the host has no git")
def test_git_commits_with_an_address_in_env() -> None:
    with Session(env={"EMAIL": "me@example.org"}) as s:
        out = s.bash("git init -q . && touch a && git add a && git commit -qm x && git log")
        assert "<me@example.org>" in out.stdout, out


def test_bytes_come_as_they_are(s: Session) -> None:
    outcome: Any = s.command(["printf", r"\377\000\n"], as_bytes=True)
    assert (outcome.stdout, outcome.stderr) == (b"\xff\x00\n", b"")
    assert s.command(["cat"], input=b"\xfe\x00", as_bytes=True).stdout == b"\xfe\x00"
    assert s.command(["printf", r"\377"]).stdout == r"\xff"


def test_input_is_what_it_reads_and_ends(s: Session) -> None:
    assert s.bash("cat").stdout == ""  # at once
    assert s.bash("read a; echo $a; cat", input="one\ntwo\n").stdout == "one\ntwo\n"
    large = "x" * 1_000_000
    assert s.command(["wc", "-c"], input=large).stdout.strip() == "1000000"


def test_output_comes_as_it_is_printed() -> None:
    came: list[str] = []
    seen = threading.Event()

    def on_stdout(text: str) -> None:
        came.append(text)
        if "first" in text:
            seen.set()

    with Session() as other:
        thread = threading.Thread(
            target=lambda: other.bash("echo first; sleep 60", on_stdout=on_stdout)
        )
        thread.start()
        assert seen.wait(60)
        other.interrupt()
        thread.join()
    assert came == ["first\n"]


def test_what_is_too_much_is_cut_and_reported(s: Session) -> None:
    outcome = s.bash("head -c 3000000 /dev/zero | tr '\\0' x", output_mb=1)
    assert outcome.stdout_truncated and outcome.stdout_size == 3_000_000 and outcome.ok
    whole: Any = s.bash("head -c 10485760 /dev/zero", output_mb=10, as_bytes=True)
    assert whole.stdout == bytes(10 << 20) and not whole.stdout_truncated
    cut: Any = s.bash("head -c 3000000 /dev/zero", output_mb=1, as_bytes=True)
    assert cut.stdout == bytes(1 << 20) and cut.stdout_truncated


# ---- what lasts


def test_directory_and_exported_variables_last_and_the_directory_is_pythons(s: Session) -> None:
    odd = "a'b\"c$d`e\\f\ng\th\x01é"
    s.bash("mkdir -p sub/dir && cd sub && export KEPT=$GIVEN UNSEEN=1; unset UNSEEN; local=3",
           env={"GIVEN": odd}).unwrap()  # fmt: skip
    assert (
        s.bash('printf %s "$KEPT"; echo ":$local:$GIVEN"; pwd').stdout == f"{odd}::\n{WORK}/sub\n"
    )
    assert s.exec("os.getcwd(), os.environ['KEPT']").value == (f"{WORK}/sub", odd)
    s.exec("os.chdir('dir'); os.environ['OF_PYTHON'] = 'p'")
    assert s.bash("pwd; echo $OF_PYTHON; cd ..").stdout == f"{WORK}/sub/dir\np\n"
    assert s.bash("cd - >/dev/null; pwd; cd - >/dev/null").stdout == f"{WORK}/sub/dir\n"
    s.bash("unset KEPT; exit 3")
    assert s.bash("echo ${KEPT-gone}").stdout == "gone\n"
    assert s.command("pwd").stdout == f"{WORK}/sub\n"


def test_cwd_and_env_are_of_one_command(s: Session) -> None:
    s.bash("mkdir -p place")
    assert (
        s.bash("pwd; echo $V; cd /tmp", cwd="place", env={"V": "1"}).stdout == f"{WORK}/place\n1\n"
    )
    assert s.bash("pwd; echo ${V-none}").stdout == f"{WORK}\nnone\n"
    assert s.command(["pwd"], cwd="place").stdout == f"{WORK}/place\n"
    wrong = s.command(["pwd"], cwd="nowhere")
    assert wrong.error is not None and wrong.error.type == "FileNotFoundError"
    assert "nowhere" in wrong.error.message and wrong.exit_code is None


def test_a_bash_env_of_ones_own_is_sourced(s: Session) -> None:
    s.files.write("mine.sh", "greeting=hello")
    assert s.bash("echo $greeting $BASH_ENV", env={"BASH_ENV": f"{WORK}/mine.sh"}).stdout == (
        f"hello {WORK}/mine.sh\n"
    )


def test_a_directory_that_is_deleted_is_left(s: Session) -> None:
    outcome = s.bash("mkdir gone; cd gone; rmdir ../gone")
    assert outcome.exit_code == 0 and f"still {WORK}" in outcome.stderr
    s.bash("mkdir gone; cd gone")
    s.exec(f"os.rmdir('{WORK}/gone')")
    outcome = s.bash("pwd")
    assert outcome.stdout == f"{WORK}\n" and "was deleted" in outcome.stderr


# ---- its end


def test_it_returns_when_its_child_has_ended_though_others_hold_the_pipes(s: Session) -> None:
    assert s.bash("sleep 100 & echo started").stdout == "started\n"
    while not any(one.startswith("sleep 100") for one in processes(s)):
        assert any("sleep 100" in one for one in processes(s))  # bash, which becomes it


TREES = [
    "sleep 555",
    "setsid sleep 555 & wait",
    "(setsid nohup sleep 555 >/dev/null 2>&1 &); (sleep 555 &); sleep 555",
    "for i in 1 2 3 4 5 6 7 8; do (env -i sleep 555 & wait) & done; wait",
    "trap '' TERM INT HUP; sleep 555; sleep 555",
    "read x </dev/tty; exec 0<&- 1>&- 2>&- sleep 555",
]


def test_a_time_limit_kills_the_whole_tree_and_keeps_what_was_printed(
    rung: Any, sessions: Callable[[], Session]
) -> None:
    def killed(text: str) -> None:
        outcome = s.bash(f"echo printed; {text}", timeout_sec=3)
        assert outcome.limit == "time" and outcome.stdout == "printed\n" and not outcome.restarted
        assert "bash(…, timeout_sec=6)" in str(outcome)

    # Under gVisor one that takes longer to be killed than an interrupt may ends the session.
    at_once = 1 if rung == "gvisor" else len(TREES)
    for first in range(0, len(TREES), at_once):
        s = sessions()
        s.exec("kept = 1").unwrap()
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(killed, TREES[first : first + at_once]))
        if rung != "gvisor" or not s.info()["closed"]:
            until(lambda s=s: not [one for one in processes(s) if "555" in one])
            assert s["kept"] == 1


def test_a_command_that_makes_processes_without_end_is_killed_with_all_of_them() -> None:
    with Session() as s:
        for text in ("while true; do (sleep 555 &); done", "kill -STOP $$; sleep 555"):
            outcome = s.bash(f"echo printed; {text}", timeout_sec=1)
            assert outcome.limit == "time" and outcome.stdout == "printed\n"
            until(lambda: not [one for one in processes(s) if "555" in one])


def test_what_another_command_left_is_not_killed_with_it(s: Session) -> None:
    s.bash("sleep 777 &")
    assert s.bash("sleep 555", timeout_sec=0.5).limit == "time"
    assert [one for one in processes(s) if "777" in one]


def test_a_command_that_is_interrupted_is_killed(s: Session, once_printed: Any) -> None:
    outcome = s.bash("echo here; sleep 555", on_stdout=once_printed(s.interrupt))
    assert outcome.status == "raised" and outcome.stdout == "here\n" and not outcome.restarted
    assert outcome.error is not None and outcome.error.type == "KeyboardInterrupt"
    until(lambda: not [one for one in processes(s) if "555" in one])


def test_a_cancelled_await_kills_the_tree(cancelled: Any) -> None:
    async def main() -> None:
        async with AsyncSession() as s:
            await cancelled(s, "echo x; setsid sleep 555 & sleep 555")
            assert "555" not in (await s.bash("ps -ef | grep sleep | grep -v grep")).stdout
            with pytest.raises(hutch.CommandError):
                (await s.command(["false"])).unwrap()
            assert (await s.command(["echo", "a"], as_bytes=True)).stdout == b"a\n"  # type: ignore[comparison-overlap]

    asyncio.run(main())


def test_a_program_that_ignores_no_signal_gets_the_usual_ones(s: Session) -> None:
    assert s.command("yes | head -1").stdout == "y\n"  # Python ignores SIGPIPE
    if "SigIgn" not in s.bash("cat /proc/self/status").stdout:
        return  # gVisor does not tell
    said = s.bash("grep -E '^Sig(Ign|Blk)' /proc/self/status | sort -u").stdout.split()
    assert said[::2] == ["SigBlk:", "SigIgn:"]
    own = 3 << 31  # signals 32 and 33, which the C library keeps to itself, are as they came
    assert [int(mask, 16) & ~own for mask in said[1::2]] == [0, 0]


# ---- hostile ones


def test_a_command_that_kills_its_session_costs_names_alone() -> None:
    with Session() as s:
        s.exec("x = 1")
        s.files.write("kept", "k")
        dead = s.bash("kill -9 $PPID; sleep 5")
        assert dead.status == "died" and dead.signal == 9 and dead.restarted
        assert s.bash("cat kept").stdout == "k" and s.lost == ["x"]


def test_more_processes_than_allowed_are_refused_and_cost_nothing() -> None:
    with Session(pids=32) as s:
        s.exec("x = 1")
        s.files.write(
            "many.py",
            "import os, time\ntry:\n    for made in range(1000):\n"
            "        if os.fork() == 0: time.sleep(555); os._exit(0)\n"
            "except BlockingIOError: print('refused', made < 32)\ntime.sleep(555)",
        )
        outcome = s.command(["python", "many.py"], timeout_sec=2)
        assert outcome.limit == "time" and not outcome.restarted
        assert s.bash("echo alive").stdout == "alive\n" and s["x"] == 1
        until(lambda: not [one for one in processes(s) if "many" in one])


def test_a_gigabyte_is_printed_and_not_kept() -> None:
    with Session(timeout_sec=50) as s:
        outcome = s.bash("head -c 1000000000 /dev/zero; echo end >&2")
    assert outcome.stdout_size == 1_000_000_000 and outcome.stdout_truncated
    assert len(outcome.stdout) < 2 << 20 and outcome.stderr == "end\n"


def test_a_full_scratch_stops_no_command() -> None:
    with Session(disk_mb=4) as s:
        s.bash("head -c 10000000 /dev/zero > big")
        assert s.bash("rm big; echo room").stdout == "room\n"
        assert s.bash("cd /tmp").exit_code == 0 and s.bash("pwd").stdout == "/tmp\n"


def test_what_stands_in_for_a_command_is_not_believed() -> None:
    with Session() as other:
        for lie in ("'0'", "-1", "True", "256", "[0]"):
            other.exec(f"import sys; sys.modules['_hutch_commands'].answer = lambda *_: {lie}")
            outcome = other.command(["true"])
            assert outcome.status == "raised" and outcome.exit_code is None
            with pytest.raises(hutch.SerializationError, match="has replaced"):
                outcome.unwrap()


# ---- what is refused


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda s: s.bash("a\0b"), ValueError, "zero byte"),
        (lambda s: s.bash("x" * 200_000), ValueError, "at most 131,071"),
        (lambda s: s.bash(["ls"]), TypeError, "takes text"),
        (lambda s: s.command([]), TypeError, "a program and its arguments"),
        (lambda s: s.command(["a\0"]), ValueError, "zero byte"),
        (lambda s: s.command(["a", 1]), TypeError, "int"),
        (lambda s: s.bash("", input=1), TypeError, "input="),
        (lambda s: s.bash("", cwd=""), ValueError, "cwd="),
        (lambda s: s.bash("", env={"A=": "b"}), ValueError, "env="),
        (lambda s: s.bash("", env={"A": 1}), TypeError, "env="),
        (lambda s: s.bash("", timeout=1), TypeError, "timeout_sec"),
        (lambda s: s.bash("", memory_mb=1), TypeError, "hold for the session"),
    ],
)
def test_bad_input_gets_one_clear_error(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call(Session())


def test_one_call_at_a_time_and_within_a_tool() -> None:
    sessions: list[Session] = []

    def look() -> str:
        outcome = sessions[0].bash("echo from bash; cd /tmp")
        raw: Any = sessions[0].command(["printf", r"\377"], as_bytes=True)
        assert raw.stdout == b"\xff"
        return outcome.stdout

    with Session(tools=[look]) as s:
        sessions.append(s)
        outcome = s.exec("import os\nlook(), os.getcwd()")
        assert outcome.unwrap() == ("from bash\n", "/tmp")


def test_a_command_that_takes_too_much_memory_hits_the_limit() -> None:
    with Session(memory_mb=128) as s:
        outcome = s.command(["python", "-c", "x = [bytearray(1 << 20) for _ in range(4000)]"])
        assert outcome.limit == "memory" or "MemoryError" in outcome.stderr
        assert s.bash("echo alive").stdout == "alive\n"


# ---- lines of code


def test_a_line_that_begins_with_an_exclamation_mark_is_a_command(s: Session) -> None:
    outcome = s.exec(
        "print('first', end=' ')\n"
        "def f(n):\n    if n:\n        !echo second; mkdir -p deep/er; cd deep; exit 3\n"
        "f(1)\n"
        "text = '''\n!echo not a command\n'''\n"
        "%cd er\n"
        "code = _exit_code\n"
        "!exit 0\n"
        "code, _exit_code, os.getcwd(), text"
    )
    assert outcome.unwrap() == (3, 0, f"{WORK}/deep/er", "\n!echo not a command\n")
    assert outcome.stdout == f"first second\n{WORK}/deep/er\n"
    assert "_exit_code" not in s.names() and s.exec("!ls").value is None
    wrong = s.exec("x = 1\n!true\n1 / 0")
    assert wrong.error is not None and wrong.error.line == 3


def test_values_of_python_are_put_into_a_command_and_its_output_into_names(s: Session) -> None:
    outcome = s.exec(
        "names = {'n': 3}\n"
        "def f(last):\n"
        "    lines = !seq {names['n']} $last; echo unseen >&2; exit 4\n"
        "    return lines\n"
        "names['found'] = !echo $HOME {names['n'] + 1} $n\n"
        "(f(4), names['found'], _exit_code)"
    )
    assert outcome.unwrap() == (["3", "4"], [f"{WORK} 4"], 4)
    assert (outcome.stdout, outcome.stderr) == ("", "unseen\n")


def test_a_line_that_is_a_command_is_killed_at_the_time_limit(s: Session) -> None:
    s.exec("before = 1")
    outcome = s.exec("!echo here; setsid sleep 555 & sleep 555", timeout_sec=1)
    assert outcome.limit == "time" and outcome.stdout == "here\n"
    until(lambda: not [one for one in processes(s) if "555" in one])


def test_bash_makes_room_where_there_is_none(rung: Any) -> None:
    """Its directory and variables, which would take some, do not last."""
    fill = "with open('big', 'wb', 0) as file:\n    while True: file.write(b'x' * 65536)"
    with Session(disk_mb=16, isolation=rung) as full:
        assert full.exec(fill).limit == "disk"
        made = full.bash("rm big; echo $((6 * 7))")
        assert made.exit_code == 0 and made.stdout == "42\n", made
        assert full.bash("export V=1; cd /tmp").ok
        assert full.bash("echo $V $PWD").stdout == "1 /tmp\n"
