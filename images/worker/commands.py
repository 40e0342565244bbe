# SPDX-License-Identifier: Apache-2.0
"""Commands of a session: programs that its user process starts, and waits for.

What bash leaves as its directory and its exported variables becomes the user process's, and so
those of the next command. Any number at once, each in its own thread: each begins with what there
is then, and of what several change, that of the last to end stays.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from _hutch_cell import (  # type: ignore[import-not-found,unused-ignore]
    end_tree as _end_tree,
    spawn,
)
from session_files import nameless_file, write_all

Environment = dict[bytes, bytes]

MOST_STATE = 4 << 20  # bytes of what bash says of its directory and its variables
NOT_FOUND, NOT_EXECUTABLE, OF_SIGNAL = 127, 126, 128
# Sourced by bash before the text, which is then what `bash -c` is given: its messages, its line
# numbers and its exit code are its own. Nothing that it starts has the file open.
AT_EXIT = (
    'trap \'{{ builtin declare -px; builtin printf "\\0"; builtin pwd; }} 2>/dev/null >>{file}'
    " || builtin :' EXIT\n"
)
LOST = "other code of the session has waited for the command: its exit code is lost"
MOST_LOOKS, PAUSE_SEC = 1000, 0.0002  # at what is to be killed, which may start processes meanwhile
SHELLS = (b"bash", b"sh")  # found whatever PATH is, which only they can set anew
PLACES = [b"/usr/local/bin", b"/usr/bin", b"/bin"]  # of these
OF_BASH = (b"BASH_ENV", b"SHLVL", b"_")  # variables that each bash sets anew
NAME = re.compile(rb"[A-Za-z_]\w*", re.ASCII)
# A line of `declare -px`.
DECLARED = re.compile(
    rb"""declare -\w*x\w* (\w+)(?:=(?:"((?:[^"\\]|\\.)*)"|\$'((?:[^'\\]|\\.)*)'))?\n""",
    re.ASCII | re.DOTALL,
)
ESCAPED = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
ESCAPES = {b"E": b"\x1b", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r",
           b"t": b"\t", b"v": b"\v"}  # fmt: skip
_mask = signal.pthread_sigmask
_taking = threading.Lock()  # what a bash leaves


class Runner:
    """Of the thread that runs calls: a command has the descriptors of the code for what it prints.
    `out`: another one for its stdout. What is said of it goes where the code's errors go.
    """

    err = 2
    lifts_cpu_limit = False

    def __init__(self, out: int = 1) -> None:
        self.out = out

    def wait(self, pid: int, mask: Any) -> int:
        """Its exit code, once it has ended, whatever it has left in the background. Where it is
        interrupted, it is killed with all that it has started. `mask`: the signals that are
        blocked meanwhile.
        """
        try:
            _mask(signal.SIG_SETMASK, mask)
            return code_of(pid)
        except BaseException:
            _mask(signal.SIG_BLOCK, {signal.SIGINT})
            end_tree(pid)
            raise

    def tell(self, text: str) -> None:
        """To those that read the command's errors."""
        try:
            print(text, file=sys.stderr, flush=True)
        except Exception:
            pass  # the code has closed or replaced it


OF_CALLS = Runner()


def answer(
    verb: str, cwd: str, flush: Callable[[], None], args: Any, runner: Runner = OF_CALLS
) -> int:
    """The exit code of a command of the client's; `cwd`: the directory of the session."""
    what, given, directory, env = args
    flush()
    require_directory(cwd, runner)
    if verb == "bash":
        return bash(os.fsencode(what), given, directory, env, runner)
    if isinstance(what, str):
        what = ["sh", "-c", what]
    return run([os.fsencode(one) for one in what], given, directory, environment_with(env), runner)


def require_directory(cwd: str, runner: Runner = OF_CALLS) -> None:
    """Goes to `cwd` where the directory of the user process was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.makedirs(cwd, exist_ok=True)
        os.chdir(cwd)
        runner.tell(f"the working directory was deleted: this is {cwd}")


def environment_with(env: Mapping[str, str]) -> Environment:
    environment = {}
    for name in os.environb:
        value = os.environb.get(name)  # other threads change it
        if value is not None:
            environment[name] = value
    environment.update((os.fsencode(name), os.fsencode(value)) for name, value in env.items())
    return environment


def bash(
    text: bytes,
    given: bytes | None,
    directory: str | None,
    env: Mapping[str, str],
    runner: Runner,
) -> int:
    environment, begun_in = environment_with(env), os.getcwdb()
    own = environment.get(b"BASH_ENV")
    before = b"unset BASH_ENV\n" if own is None else b"BASH_ENV=%b\n. $BASH_ENV\n" % quoted(own)
    state = -1
    try:
        state = nameless_file(b"")
        file = f"/proc/{os.getpid()}/fd/{state}"
        before += AT_EXIT.format(file=file).encode()
        write_all(state, memoryview(before))
    except OSError as error:  # where the scratch is full, what makes room has to run
        if state >= 0:
            os.close(state)
        runner.tell(f"{error.strerror}: the directory and the variables of this bash will not last")
        return run([b"bash", b"-c", text], given, directory, environment, runner)
    try:
        variables = {**environment, b"BASH_ENV": file.encode()}
        code = run([b"bash", b"-c", text], given, directory, variables, runner)
        said = os.pread(state, MOST_STATE, len(before))
    finally:
        os.close(state)
    exported, is_whole, place = said.rpartition(b"\0")
    place = place.removesuffix(b"\n")
    if is_whole:
        with _taking:
            take_variables(exported, environment, {os.fsencode(name) for name in env})
            if directory is None and place != begun_in:
                take_directory(place, runner)
    elif code == NOT_FOUND and program_of(b"bash", environment) is None:
        runner.tell(
            "there is no bash in this base image: use s.command([…]), or a base= that has it"
        )
    return code


def quoted(value: bytes) -> bytes:
    return b"'%b'" % value.replace(b"'", b"'\\''")


def take_variables(said: bytes, before: Environment, given: set[bytes]) -> None:
    """Those that bash has exported, changed or dropped, but for those `given` for this call."""
    now = variables_of(said)
    for name, value in now.items():
        if before.get(name) != value and name not in given and name not in OF_BASH:
            os.environb[name] = value
    for name in before.keys() - now.keys() - given:
        if NAME.fullmatch(name) and name not in OF_BASH:
            os.environb.pop(name, None)


def variables_of(said: bytes) -> Environment:
    """What `declare -px` says, without arrays, which no other process sees."""
    found = {}
    for line in DECLARED.finditer(said):
        name, plain, escaped = line.groups()
        if plain is not None:
            found[name] = re.sub(rb"""\\(["\\$`])""", rb"\1", plain)
        elif escaped is not None:
            found[name] = ESCAPED.sub(character_of, escaped)
    return found


def character_of(escape: re.Match[bytes]) -> bytes:
    text = escape.group(1)
    if text.isdigit():
        return bytes((int(text, 8) & 0xFF,))
    return ESCAPES.get(text, text)


def take_directory(path: bytes, runner: Runner = OF_CALLS) -> None:
    try:
        if path != os.getcwdb():
            os.chdir(path)
    except OSError as error:
        runner.tell(f"{os.fsdecode(path)}: {error.strerror}: this is still {os.getcwd()}")


def run(
    arguments: list[bytes],
    given: bytes | None,
    directory: str | None,
    environment: Environment,
    runner: Runner,
) -> int:
    """Its exit code, as the runner waits for it."""
    stdin = open_input(given)
    before = _mask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pid = start(arguments, directory, environment, (stdin, runner.out, runner.err), runner)
        return -pid if pid < 0 else runner.wait(pid, before)
    finally:
        _mask(signal.SIG_SETMASK, before)
        os.close(stdin)


def start(
    arguments: list[bytes],
    directory: str | None,
    environment: Environment,
    descriptors: tuple[int, int, int],
    runner: Runner | None,
) -> int:
    """The number of its process, or less than 0: the exit code of what cannot be started. Without a
    runner, what says why is raised instead.
    """
    name = arguments[0]
    programs = paths_of(name, environment)
    variables = tuple(b"%b=%b" % pair for pair in environment.items())
    place = None if directory is None else os.fsencode(directory)
    try:
        lifts = runner is not None and runner.lifts_cpu_limit
        pid: int = spawn(programs, tuple(arguments), variables, place, descriptors, -1, lifts)
        return pid
    except OSError as error:
        step, number = error.strerror, error.errno or 0
        if step == "chdir":
            raise OSError(number, os.strerror(number), directory) from None
        if step != "exec":
            raise
        if runner is None:
            raise OSError(number, os.strerror(number), os.fsdecode(name)) from None
        is_there = number not in (errno.ENOENT, errno.ENOTDIR)
        runner.tell(f"{os.fsdecode(name)}: {os.strerror(number) if is_there else 'not found'}")
        return -NOT_EXECUTABLE if is_there else -NOT_FOUND


def paths_of(name: bytes, environment: Environment) -> tuple[bytes, ...]:
    if b"/" in name:
        return (name,)
    path = environment.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    path += PLACES if name in SHELLS else []
    return tuple(os.path.join(one or b".", name) for one in path)


def program_of(name: bytes, environment: Environment) -> bytes | None:
    found = (path for path in paths_of(name, environment) if os.access(path, os.X_OK))
    return next(found, None)


def open_input(given: bytes | None) -> int:
    """What the command reads: a file of its own, since nobody is there to feed a pipe."""
    if given is None:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    return nameless_file(given)


def code_of(pid: int) -> int:
    """Waits for it."""
    try:
        status = os.waitpid(pid, 0)[1]
    except ChildProcessError:
        raise RuntimeError(LOST) from None
    return exit_code(status)


def exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else OF_SIGNAL - code


def end_tree(pid: int) -> int:
    """Kills a process and all that it has started (process_tree.h). Returns its exit code."""
    return exit_code(_end_tree(pid))


def end_all() -> None:
    """Kills all that this process has started, and what that has left to PID 1."""
    ours, begun = os.getpid(), begun_of(os.getpid())
    for _ in range(MOST_LOOKS):
        found = [(pid, *parent_and_begun(pid)) for pid in pids() if pid != ours]
        children = [pid for pid, parent, _ in found if parent == ours]
        left = [pid for pid, parent, at in found if parent == 1 and at >= begun]
        for pid in children:
            _end_tree(pid)
        for pid in left:  # until PID 1 has waited for them
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not children and not left:
            break
        time.sleep(PAUSE_SEC)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def begun_of(pid: int) -> int:
    """When it began, in ticks since the machine did; 0 where it has gone."""
    return parent_and_begun(pid)[1]


def parent_and_begun(pid: int) -> tuple[int, int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0, 0
