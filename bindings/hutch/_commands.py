# SPDX-License-Identifier: Apache-2.0
"""Commands of a session: `bash()` and `command()`. A mixin of Session and one of AsyncSession.

What a command replies comes from the sandbox: it may be anything.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hutch._background import AsyncProcess, Process, not_said
from hutch._calls.printed import Printed
from hutch._calls.session_call import Operation, SessionTarget
from hutch._errors import CommandError, SerializationError
from hutch._namespace import Namespace
from hutch._not_python import LISTED_BY_PYTHON
from hutch._options.checks import quoted
from hutch._outcome import ErrorInfo, Outcome
from hutch._text import MOST_TEXT, one_line, shortened
from hutch._twins import awaits, result_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._calls.target import Target
    from hutch._options.keyword_types import CallKeywords
    from hutch._options.options import Options

Input: TypeAlias = str | bytes | bytearray | memoryview | None
Path: TypeAlias = str | os.PathLike[str] | None
Environment: TypeAlias = Mapping[str, str] | None
Word: TypeAlias = str | bytes | os.PathLike[str]

T = TypeVar("T")
_MOST_OF_WORD = (1 << 17) - 1  # bytes: what Linux takes as one argument of a program
_FAR = 1 << 63  # the size of a file is below
_OF_SIGNAL = 128  # an exit code above it is that of a signal
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # exit codes
_INSTALLED_OUTSIDE = (
    "nothing is installed from inside: name the package outside, in dependencies=[…], or by "
    "Session.install(…)"
)
_NO_NETWORK_PROGRAM = (
    "the sandbox has no such program: where allow_network= opens a host, urllib.request of Python "
    "reaches it"
)
# What lists packages.
_LISTS = re.compile(r"\b(?:pip3?|conda|mamba) +(?:list|freeze|show)\b")
_JAVASCRIPT = 'JavaScript is run by Session.node(…) and language="javascript", not from a shell'
_INSTEAD = {
    **dict.fromkeys(
        ("pip", "pip3", "uv", "pipx", "conda", "mamba", "apt", "apt-get"), _INSTALLED_OUTSIDE
    ),
    **dict.fromkeys(("curl", "wget", "ssh", "scp", "ping"), _NO_NETWORK_PROGRAM),
    "node": _JAVASCRIPT,
    **dict.fromkeys(
        ("npm", "npx", "yarn", "pnpm"),
        f"{_JAVASCRIPT}; packages of npm come by node_dependencies=[…]",
    ),
    "sudo": "there is no other user inside, and no sudo",
}
# Of the last line of a program that is there, but lacks a part.
_LACKS = (
    (re.compile(r": No module named '?(?:pip|ensurepip|uv|conda)\b"), _INSTALLED_OUTSIDE),
    (
        re.compile(r"\bremote-\w+' is not a git command|remote helper for '"),
        "git speaks to no network inside: clone outside, and give the session the files by files= "
        "or s.files.upload()",
    ),
)
_MISSING = re.compile(r"(?:^|: )([\w.+-]+): (?:command )?not found$")


class CommandTarget(SessionTarget):
    """One command, with its limits. `printed`: what it prints, as bytes; None: nobody asked."""

    def __init__(self, verb: str, options: Options, what: Any, as_bytes: bool) -> None:
        super().__init__(options)
        self.name = "the command"
        self._verb = verb
        self._what = what
        self.printed = Printed(self.terms.output_bytes) if as_bytes else None
        self.conclude = self._conclude

    def _conclude(self, outcome: Outcome[Any]) -> None:
        """The reply is its exit code."""
        if self._verb == "wait":
            _take_output(outcome, self.terms.output_bytes)
        error = _error_of(outcome, self._what) if outcome.ok else None
        if self.printed is not None:
            streams: Any = outcome
            streams.stdout, streams.stderr = (bytes(kept) for kept in self.printed.kept)
            outcome.stdout_truncated, outcome.stderr_truncated = map(self.printed.truncated, (0, 1))
        if error is None:
            return
        outcome.status = "raised"
        outcome.error = ErrorInfo(type(error).__name__, error.message, hint=error.hint)
        if isinstance(error, CommandError):
            error.error = outcome.error
        outcome.fail(error)

    def with_keywords(self, keywords: str) -> str:
        said = super().with_keywords(keywords)
        return said.replace("exec(", f"{self._verb}(", 1)


class _CommandOperation(Operation):
    __slots__ = ()

    def source(self, target: Target) -> bytes:
        what = self.args[0]
        text = what if isinstance(what, str) else shlex.join(map(os.fsdecode, what))
        return text.encode("utf-8", "replace")


class Commands(Namespace):
    """The commands of a session."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[tuple[int, int], str] = {}  # as last heard of: what start() started

    @abstractmethod
    def _target(self, limits: Mapping[str, Any]) -> SessionTarget:
        """Of a call with these limits. Raises TypeError for what is not a limit of a call."""

    def bash(
        self,
        text: str,
        /,
        *,
        input: Input = None,
        cwd: Path = None,
        env: Environment = None,
        as_bytes: bool = False,
        **limits: Unpack[CallKeywords],
    ) -> Outcome[None]:
        """Runs the text as `bash -c` does, and returns when that bash has ended, whatever it has
        left in the background. The directory in which it ends, and the variables that it has
        exported, are those of the next command and of Python, except those given here.

        It runs beside whatever the session does, from other threads; 16 at once. Each begins with
        the directory and variables that there are then; of what several change, that of the last
        to end stays.

        `input`: what it reads; by default nothing, at once. `cwd`: where it runs, relative to the
        present directory. `env`: more variables. `as_bytes`: `stdout` and `stderr` of the Outcome
        are bytes. `limits`: `timeout_sec`, `cpu_sec`, `output_mb`, `on_stdout`, `on_stderr`,
        `echo`, for this command.

        The Outcome has `exit_code`: 127 for a program that is missing, 128 + n for one that signal
        n has killed. Other than 0, its status is "raised", and `unwrap()` raises CommandError. At a
        time limit the command is killed with all that it has started; what it printed until then
        is there. Raises what exec() raises, but SessionBusy only where 16 commands run.

            with Session() as s:
                s.bash("mkdir -p a && cd a && export WHO=me")
                assert s.bash("echo $WHO; basename $PWD").stdout == "me\\na\\n"
        """
        if not isinstance(text, str):
            raise TypeError(f"bash() takes text, not {type(text).__name__}")
        _require_word(os.fsencode(text), "the text of bash()")
        return self._command("bash", text, input, cwd, env, as_bytes, limits)

    def command(
        self,
        command: Sequence[Word] | str,
        /,
        *,
        input: Input = None,
        cwd: Path = None,
        env: Environment = None,
        as_bytes: bool = False,
        **limits: Unpack[CallKeywords],
    ) -> Outcome[None]:
        """Runs a program with arguments, without a shell; text is run by `sh -c`. Directory and
        variables stay as they are. Everything else is as in `bash()`.

        with Session() as s:
            assert s.command(["printf", "%s", "a b"]).stdout == "a b"
        """
        what = command if isinstance(command, str) else _words(command)
        for word in [what] if isinstance(what, str) else what:
            _require_word(os.fsencode(word), "a word of command()")
        return self._command("command", what, input, cwd, env, as_bytes, limits)

    def _command(
        self,
        verb: str,
        what: Any,
        given: Input,
        cwd: Path,
        env: Environment,
        as_bytes: bool,
        limits: Mapping[str, Any],
    ) -> Outcome[None]:
        target = CommandTarget(verb, self._target(limits).options, what, as_bytes)
        args = (what, _input(given), _directory(cwd), _variables(env))
        operation = _CommandOperation(self, verb, args=args, limits=limits, target=target)
        return self._run_command(operation)

    @abstractmethod
    def _run_command(self, operation: Operation) -> Outcome[None]:
        """Beside whatever the session does."""

    # ---- in the background

    def start(
        self, command: Sequence[Word] | str, /, *, cwd: Path = None, env: Environment = None
    ) -> Process:
        """Starts a program with its arguments, or a text for bash, which runs on between the calls
        of the session, and is listed by `processes()`. Raises SandboxExecutionError where it cannot
        be started.

            with Session() as s:
                server = s.start("read name; echo hello $name")
                server.write("you\\n")
                assert list(server.lines()) == ["hello you"]
                server.wait().unwrap()
        """
        what = command if isinstance(command, str) else _words(command)
        for word in [what] if isinstance(what, str) else what:
            _require_word(os.fsencode(word), "a word of start()")

        def started(reply: Any) -> Process:
            process = self._process(reply)
            self._running[process.key] = process.command
            return process

        return self.ask(started, "process.start", what, _directory(cwd), _variables(env))

    def processes(self) -> list[Process]:
        """Those that `start()` has started since its interpreter began, also those that ended."""

        def listed(reply: Any) -> list[Process]:
            if type(reply) is not list:
                raise not_said()
            if not all(type(one) is tuple and len(one) == 4 for one in reply):
                raise not_said()
            found = [self._process(one[:3]) for one in reply]
            going = {process.key for process, one in zip(found, reply) if one[3] is None}
            self._running = {one.key: one.command for one in found if one.key in going}
            return found

        return self.ask(listed, "process.list")

    def _process(self, reply: Any) -> Process:
        if type(reply) is not tuple or [type(one) for one in reply] != [int, int, str]:
            raise not_said()
        return Process(self, *reply)

    def ask(self, finish: Callable[[Any], T], verb: str, *args: Any) -> T:
        """What `finish` makes of what the session replies."""
        return self._verb(finish, verb, *args)

    def wait_for(
        self, process: tuple[int, int], command: str, timeout_sec: float | None
    ) -> Outcome[None]:
        """The Outcome of a program that `start()` started, once it has ended."""
        options = self._target({"timeout_sec": timeout_sec}).options
        target = CommandTarget("wait", options, command, False)
        args = (process, target.terms.output_bytes)

        def finish(outcome: Outcome[Any]) -> Outcome[None]:
            if outcome.exit_code is not None:
                self._running.pop(process, None)
            return outcome

        return self._do(finish, Operation(self, "process.wait", args=args, target=target))

    def tell(self, verb: str, process: tuple[int, int], command: str, *args: Any) -> None:
        """Beside whatever the session does, as commands run."""
        self._run_command(self._told(verb, process, command, *args)).unwrap()

    def _told(self, verb: str, process: tuple[int, int], command: str, *args: Any) -> Operation:
        target = CommandTarget(verb, self._target({}).options, command, False)
        return Operation(self, f"process.{verb}", args=(process, *args), target=target)


class AsyncCommands:
    """The same, awaited."""

    _of: Commands  # whose methods give awaitables

    @awaits(Commands.bash)
    async def bash(
        self,
        text: str,
        /,
        *,
        input: Input = None,
        cwd: Path = None,
        env: Environment = None,
        as_bytes: bool = False,
        **limits: Unpack[CallKeywords],
    ) -> Outcome[None]:
        return await result_of(
            self._of.bash, text, input=input, cwd=cwd, env=env, as_bytes=as_bytes, **limits
        )

    @awaits(Commands.command)
    async def command(
        self,
        command: Sequence[Word] | str,
        /,
        *,
        input: Input = None,
        cwd: Path = None,
        env: Environment = None,
        as_bytes: bool = False,
        **limits: Unpack[CallKeywords],
    ) -> Outcome[None]:
        return await result_of(
            self._of.command, command, input=input, cwd=cwd, env=env, as_bytes=as_bytes, **limits
        )

    @awaits(Commands.start)
    async def start(
        self, command: Sequence[Word] | str, /, *, cwd: Path = None, env: Environment = None
    ) -> AsyncProcess:
        return AsyncProcess(await result_of(self._of.start, command, cwd=cwd, env=env))

    @awaits(Commands.processes)
    async def processes(self) -> list[AsyncProcess]:
        return [AsyncProcess(one) for one in await result_of(self._of.processes)]


def _take_output(outcome: Outcome[Any], most: int) -> None:
    """Of one that has ended, whose reply has it, up to `most` bytes of each stream. What else has
    printed meanwhile is not its.
    """
    if not outcome.ok:
        return
    reply = outcome.value
    if type(reply) is not list or [type(one) for one in reply] != [int, bytes, int, bytes, int]:
        return
    code, out, out_size, err, err_size = reply
    for data, size in ((out, out_size), (err, err_size)):
        if len(data) > most or not len(data) <= size < _FAR:
            return  # and so it has no exit code
    outcome.value, outcome.stdout_size, outcome.stderr_size = code, out_size, err_size
    outcome.stdout, outcome.stderr = (one.decode("utf-8", "backslashreplace") for one in (out, err))
    outcome.stdout_truncated = outcome.stdout_size > len(out)
    outcome.stderr_truncated = outcome.stderr_size > len(err)


def _error_of(outcome: Outcome[Any], what: Any) -> CommandError | SerializationError | None:
    """Takes the exit code from the reply. None: it is 0."""
    code, outcome.value = outcome.value, None
    if type(code) is not int or not 0 <= code < 256:
        return not_said()
    outcome.exit_code = code
    if code == 0:
        return None
    said = next((line for line in reversed(outcome.stderr.splitlines()) if line.strip()), "")
    name = os.fsdecode(what[0]) if isinstance(what, list) else what
    message = f"{shortened(one_line(name), 80)} ended with exit code {code}"
    message += f" ({_signal(code)})" if _signal(code) else ""
    message += f": {shortened(one_line(said), MOST_TEXT)}" if said else ""
    words = " ".join(map(os.fsdecode, what)) if isinstance(what, list) else what
    return CommandError(message, hint=_hint(code, said, words), exit_code=code)


def _hint(code: int, said: str, words: str) -> str:
    """Of an exit code, the last line of stderr, and the command."""
    if code == _NOT_EXECUTABLE:
        return "it is there, but cannot be executed"
    if _LISTS.search(words) and re.search(r"not found$|No module named '?pip\b", said):
        return LISTED_BY_PYTHON
    if code != _NOT_FOUND:
        return next((hint for pattern, hint in _LACKS if pattern.search(said)), "")
    if not said.endswith((" not found", ": No such file or directory")):
        return ""  # 127 is also what bash ends with where set -u finds a variable unset
    missing = _MISSING.search(said)
    usual = "the sandbox has no such program: a package of dependencies= may bring it"
    return _INSTEAD.get(missing[1], usual) if missing else usual


def _signal(code: int) -> str:
    try:
        return signal.Signals(code - _OF_SIGNAL).name
    except ValueError:
        return ""


def _words(command: Any) -> list[str | bytes]:
    if isinstance(command, (bytes, Mapping)) or not isinstance(command, Sequence) or not command:
        raise TypeError(
            'command() takes a program and its arguments, as in ["git", "status"], or text for '
            f"sh, not {quoted(command)}"
        )
    words = []
    for word in command:
        if not isinstance(word, (str, bytes, os.PathLike)):
            raise TypeError(f"a word of command() is text, not {type(word).__name__}")
        words.append(os.fspath(word))
    return words


def _require_word(word: bytes, what: str) -> None:
    if b"\0" in word:
        raise ValueError(f"{what} has a zero byte, which arguments cannot contain: use input=")
    if len(word) > _MOST_OF_WORD:
        raise ValueError(
            f"{what} has {len(word):,} bytes: Linux takes at most {_MOST_OF_WORD:,}; give it as "
            "input=, or write it to a file by s.files.write()"
        )


def _input(given: Any) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        return given.encode("utf-8", "surrogateescape")
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    raise TypeError(f"input= takes text or bytes, not {type(given).__name__}")


def _directory(cwd: Any) -> str | None:
    path = os.fspath(cwd) if isinstance(cwd, os.PathLike) else cwd
    if path is not None and not isinstance(path, str):
        raise TypeError(f"cwd= takes a path inside, not {type(path).__name__}")
    if path is not None and (not path or "\0" in path):
        raise ValueError(f"cwd={quoted(path)}: a path is text without a zero byte, and not empty")
    return path


def _variables(env: Any) -> dict[str, str]:
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise TypeError(f"env= takes a dict of names and values, not {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env= takes text for names and values: {quoted({name: value})}")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(
                f"env={quoted({name: value})}: a name is not empty and has no =, and neither has a "
                "zero byte"
            )
    return dict(env)
