# SPDX-License-Identifier: Apache-2.0
"""Commands of a session, as users have them: `bash()`, `command()` and `start()`.

What a command replies comes from the sandbox: it may be anything.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from hutch._background import AsyncProcess, Process, not_said
from hutch._calls.session_call import Operation
from hutch._command_target import CommandTarget
from hutch._namespace import Namespace
from hutch._options.checks import quoted
from hutch._outcome import Outcome
from hutch._twins import awaits, result_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._calls.target import Target
    from hutch._options.keyword_types import CallKeywords
    from hutch._session_commands import CommandCalls

Input: TypeAlias = str | bytes | bytearray | memoryview | None
Path: TypeAlias = str | os.PathLike[str] | None
Environment: TypeAlias = Mapping[str, str] | None
Word: TypeAlias = str | bytes | os.PathLike[str]

_MOST_ENDED = 1000  # of those that start() started, at most, more than run
_MOST_LABEL = 1000  # characters, as images/worker/background.py has it
_MOST_OF_WORD = (1 << 17) - 1  # bytes: what Linux takes as one argument of a program


class _CommandOperation(Operation):
    __slots__ = ()

    def source(self, target: Target) -> bytes:
        what = self.args[0]
        text = what if isinstance(what, str) else shlex.join(map(os.fsdecode, what))
        return text.encode("utf-8", "replace")


class Commands(Namespace):
    """The commands of a session."""

    _commands: CommandCalls

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
        target = CommandTarget(verb, self._engine.target(limits).options, what, as_bytes)
        args = (what, _input(given), _directory(cwd), _variables(env))
        of = self._space
        operation = _CommandOperation(of, verb, args=args, limits=limits, target=target)
        return self._commands.run(operation)

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
            self._engine.running[process.key] = process.command
            return process

        return self._commands.ask(started, "process.start", what, _directory(cwd), _variables(env))

    def processes(self) -> list[Process]:
        """Those that `start()` has started since its interpreter began, also those that ended."""

        def listed(reply: Any) -> list[Process]:
            most = self._engine.options.pids + _MOST_ENDED
            if type(reply) is not list or len(reply) > most:
                raise not_said()
            if not all(type(one) is tuple and len(one) == 4 for one in reply):
                raise not_said()
            found = [self._process(one[:3]) for one in reply]
            going = {process.key for process, one in zip(found, reply) if one[3] is None}
            self._engine.running = {one.key: one.command for one in found if one.key in going}
            return found

        return self._commands.ask(listed, "process.list")

    def _process(self, reply: Any) -> Process:
        if type(reply) is not tuple or [type(one) for one in reply] != [int, int, str]:
            raise not_said()
        if len(reply[2]) > _MOST_LABEL:
            raise not_said()
        return Process(self._commands, self, *reply)


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
