# SPDX-License-Identifier: Apache-2.0
"""Programs and functions given as text. The host never compiles the text; it is sent once, by hash.

`run` and `Program` give an Outcome for whatever the program does. An exit code of 0 is "returned",
another one is "died" with that `.exit_code`, an uncaught exception is "raised" (and, as from the
interpreter, exit code 1). Safe on any thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from hutch._options.checks import quoted
from hutch._options.described import described
from hutch._options.keywords import with_keywords
from hutch._options.options import NORMAL, Options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Unpack

    from hutch import _core
    from hutch._calls.echo import Streams
    from hutch._calls.future import SandboxFuture
    from hutch._calls.prepared_call import PreparedCall
    from hutch._calls.target import ProgramTarget, Target
    from hutch._options.described import Keywords
    from hutch._outcome import Outcome
    from hutch._program_files import Wanted
    from hutch._sandbox import SandboxedFunction

_FILENAMES = {  # by language
    "python": "program.py",
    "bash": "program.sh",
    "javascript": "program.js",
}
_FILES_LIMIT = 1 << 30  # bytes


class Program:
    """A program, to be run many times: each run in a fresh cell. `language`: "python", "bash",
    whose text is what `bash -c` is given, or "javascript", which Node runs. `filename`: what it is
    called, in tracebacks or as `$0`; of JavaScript, where it is put. A Python program that is
    called "-c" or "-" has no file, as of `python -c` and `python -`.
    """

    @described
    def __init__(
        self,
        source: str,
        *,
        language: str = "python",
        filename: str | None = None,
        **keywords: Unpack[Keywords],
    ) -> None:
        self._source = _checked_source(source, language)
        self._language = language
        self._filename = filename or _FILENAMES[language]
        self._options = _with_inline(source, with_keywords(NORMAL, keywords))
        self._text = _text(source, language, self._filename)
        self._target: ProgramTarget | None = None

    def run(
        self,
        *,
        stdin: str | bytes | None = None,
        args: Sequence[str] | str = (),
        files: Mapping[str, str | bytes] | None = None,
        fetch: Sequence[str] | str = (),
    ) -> Outcome[None]:
        """`stdin`: what it reads; `args`: `sys.argv[1:]`; `files`: put where it runs.

        `fetch`: paths and globs, relative to where it runs, of files that are read once it has
        ended, however it did: `outcome.files` has their content by path. They are at most 10,000
        and `result_mb` in all. What is no file there is left out; of a directory give a glob, as
        `plots/**`. Links are followed, within the sandbox. Raises ValueError with isolation
        "shared" and "gvisor".

            outcome = program.run(fetch=["report.csv", "plots/*.png"])
            report = outcome.files["report.csv"]
        """
        if fetch:
            return self._run_and_fetch(_given(args, stdin, files), fetch, None)
        if stdin is None and files is None and not args:
            return self._call_with_nothing()
        return self._call(_given(args, stdin, files), None)

    async def run_aio(
        self,
        *,
        stdin: str | bytes | None = None,
        args: Sequence[str] | str = (),
        files: Mapping[str, str | bytes] | None = None,
        fetch: Sequence[str] | str = (),
    ) -> Outcome[None]:
        """`run` without blocking the event loop. Cancelling the task kills the cell."""
        from hutch._calls.future import awaited
        from hutch._calls.loops import OnLoop

        asked = time.monotonic()
        given = _given(args, stdin, files)
        if fetch:
            from hutch._program_files import Wanted, checked

            return await fetched_aio(self, Wanted(checked(fetch)), given)
        wait_for = None
        if self._options.tools:
            from hutch._calls import awaited_call

            target = self._resolved()
            if awaited_call.is_needed(target):
                outcome = await awaited_call.call(target, (), given, echo=False, asked=asked)
                _hint_at_metadata(outcome, self._source)
                return outcome
            wait_for = OnLoop()
        return await awaited(
            lambda token: self._call(given, token, asked, wait_for),
            self._resolved(),
            lambda: self._parcel(given, asked),
        )

    def submit(
        self,
        *,
        stdin: str | bytes | None = None,
        args: Sequence[str] | str = (),
        files: Mapping[str, str | bytes] | None = None,
    ) -> SandboxFuture[Outcome[None]]:
        """A future of the Outcome."""
        from hutch._calls.future import submit

        asked = time.monotonic()
        given = _given(args, stdin, files)
        future: SandboxFuture[Any] = submit(
            lambda token: self._call(given, token, asked),
            unwrap=False,
            target=self._resolved(),
            prepare=lambda: self._parcel(given, asked),
        )
        return future

    def map(
        self,
        stdins: Iterable[str | bytes],
        *,
        args: Sequence[str] | str = (),
        files: Mapping[str, str | bytes] | None = None,
        concurrency: int | None = None,
        ordered: bool = True,
        retries: int = 0,
    ) -> Iterator[Outcome[None]]:
        """An Outcome for each input, bounded in flight; faults included."""
        from hutch._calls.map import ChunkRunner, Plan, run

        cells = self._options.pool.max_cells
        plan = Plan(concurrency, ordered, 1, "outcome", retries, cells)

        def run_chunk(items: list[tuple[Any, ...]], token: _core.Cancel) -> list[Outcome[Any]]:
            return [self._call(_given(args, items[0][0], files), token)]

        def prepare(items: list[tuple[Any, ...]]) -> PreparedCall:
            return self._parcel(_given(args, items[0][0], files), time.monotonic(), listed=True)

        runner = ChunkRunner(run_chunk, self._resolved(), prepare)
        return run(plan, ((stdin,) for stdin in stdins), runner)

    async def map_aio(
        self, stdins: Iterable[str | bytes], **settings: Any
    ) -> AsyncIterator[Outcome[None]]:
        """`map`, as an async iterator."""
        from hutch._calls.aio import iterate

        async for outcome in iterate(self.map(stdins, **settings)):
            yield outcome

    @described
    def options(self, **keywords: Unpack[Keywords]) -> Program:
        """The same program with these keywords in place of its own."""
        changed = Program(self._source, language=self._language, filename=self._filename)
        changed._options = _with_inline(self._source, with_keywords(self._options, keywords))
        return changed

    def __reduce__(self) -> Any:
        from hutch._carry.by_value import pickled_options

        given = pickled_options(self._options)
        return _loaded, (self._source, self._language, self._filename, given)

    def __repr__(self) -> str:
        return f"<hutch.Program {self._filename!r}, {len(self._source)} characters>"

    def _call_with_nothing(self) -> Outcome[None]:
        from hutch._calls import run

        target = self._resolved()
        fast = target.fast_outcome
        outcome: Any = NotImplemented if fast is None else fast.call(target, fast, (), {})
        if outcome is NotImplemented:
            outcome = run.call(target)
        _hint_at_metadata(outcome, self._source)
        return cast("Outcome[None]", outcome)

    def _call(
        self,
        given: dict[str, Any],
        token: _core.Cancel | None,
        asked: float | None = None,
        wait_for: Callable[[Any], Any] | None = None,
        streams: Streams | None = None,
    ) -> Outcome[None]:
        from hutch._calls import run

        target = self._resolved()
        outcome = run.call(
            target, (), given, cancel=token, asked=asked, wait_for=wait_for, streams=streams
        )
        _hint_at_metadata(outcome, self._source)
        return outcome

    def _run_and_fetch(
        self, given: dict[str, Any], fetch: Sequence[str] | str, streams: Streams | None
    ) -> Outcome[None]:
        from hutch import _program_files

        patterns = _program_files.checked(fetch)
        outcome = _program_files.run(self._resolved(), given, patterns, streams)
        _hint_at_metadata(outcome, self._source)
        return outcome

    def _parcel(
        self,
        given: dict[str, Any],
        asked: float,
        listed: bool = False,
    ) -> PreparedCall:
        from hutch._calls import run

        target = self._resolved()
        prepare = run.prepare(target, (), given, False, asked)
        finish = prepare.finish

        def finished(result: _core.CallResult, pool: Any) -> Any:
            outcome = finish(result, pool)
            _hint_at_metadata(outcome, self._source)
            return [outcome] if listed else outcome

        prepare.finish = finished
        return prepare

    def _resolved(self) -> ProgramTarget:
        if self._target is None:
            self._target = self._make_target(_nonce(self._options))
        return self._target

    def _make_target(self, nonce: str) -> ProgramTarget:
        if self._language == "javascript":
            from hutch._program_javascript import JavaScriptTarget

            return JavaScriptTarget(self._text, self._filename, self._options, nonce)
        from hutch._calls.target import ProgramTarget

        return ProgramTarget(self._text, "the program", self._options, nonce, self._filename)


def _loaded(source: str, language: str, filename: str, given: dict[str, Any]) -> Program:
    from hutch._options.pickled import unpacked

    made = Program(source, language=language, filename=filename)
    made._options = unpacked(given)
    return made


@described
def run(
    source: str,
    *,
    language: str = "python",
    stdin: str | bytes | None = None,
    args: Sequence[str] | str = (),
    files: Mapping[str, str | bytes] | None = None,
    fetch: Sequence[str] | str = (),
    filename: str | None = None,
    **keywords: Unpack[Keywords],
) -> Outcome[None]:
    """Runs a whole program in a fresh cell. `language`: "python", "bash" or "javascript".
    `dependencies="inline"` reads its PEP 723 metadata; where your packages come from an index other
    than PyPI, only with `allow_private_index=True`. `stdin`, `args`, `files`, `fetch`: as for
    `Program.run`. Raises only what Hutch itself failed at, and for bad keywords.

        outcome = hutch.run("open('a.txt', 'w').write('x')", fetch="*.txt")
        assert outcome.files == {"a.txt": b"x"}
    """
    program = _program(source, language, filename, keywords)
    return program.run(stdin=stdin, args=args, files=files, fetch=fetch)


_REMEMBERED = 64  # programs
_REMEMBERED_SIZE = 1 << 16  # characters of one
_recent: dict[Any, Program] = {}


def _program(source: str, language: str, filename: str | None, keywords: Any) -> Program:
    """The same Program for the same source and keywords, as long as it is cached."""
    given = [(name, tuple(x) if type(x) is list else x) for name, x in sorted(keywords.items())]
    key = (source, language, filename, *given)
    try:
        found = _recent.get(key)
    except TypeError:
        return Program(source, language=language, filename=filename, **keywords)
    if found is None:
        found = Program(source, language=language, filename=filename, **keywords)
        if len(source) <= _REMEMBERED_SIZE and not found._options.disable_cache:
            if len(_recent) >= _REMEMBERED:
                _recent.clear()
            _recent[key] = found
    return found


def run_into(
    streams: Streams,
    program: Program,
    *,
    stdin: str | bytes | None,
    args: Sequence[str],
    files: Mapping[str, str | bytes] | None,
    fetch: Sequence[str],
) -> Outcome[None]:
    """`program.run`, with `streams` to get what it prints. What they raise ends the program."""
    given = _given(args, stdin, files)
    if fetch:
        return program._run_and_fetch(given, fetch, streams)
    return program._call(given, None, streams=streams)


async def fetched_aio(program: Program, wanted: Wanted, given: Mapping[str, Any]) -> Outcome[None]:
    """Its Outcome with the files that are wanted. `given`: input_of() its input."""
    from hutch import _program_files

    outcome = await _program_files.run_aio(program._resolved(), dict(given), wanted)
    _hint_at_metadata(outcome, program._source)
    return outcome


def with_source(program: Program, source: str) -> Program:
    """Another program with the same keywords, which are not looked at again."""
    _checked_source(source, program._language)
    made = Program.__new__(Program)
    vars(made).update(vars(program))
    made._source = source
    made._text = _text(source, program._language, program._filename)
    made._target = program._resolved().with_source(made._text)
    return made


@described
async def run_aio(
    source: str,
    *,
    language: str = "python",
    stdin: str | bytes | None = None,
    args: Sequence[str] | str = (),
    files: Mapping[str, str | bytes] | None = None,
    fetch: Sequence[str] | str = (),
    filename: str | None = None,
    **keywords: Unpack[Keywords],
) -> Outcome[None]:
    """`run` without blocking the event loop. Cancelling the task kills the cell."""
    program = _program(source, language, filename, keywords)
    return await program.run_aio(stdin=stdin, args=args, files=files, fetch=fetch)


@described
def function(
    source: str, name: str, /, **keywords: Unpack[Keywords]
) -> SandboxedFunction[..., Any]:
    """The function `name` of a module given as text, as `@sandbox` would give it. The text is
    compiled inside a cell only. Raises TypeError or ValueError for what is no text or no name.

        double = hutch.function("def double(x): return 2 * x", "double", timeout_sec=5)
        assert double(21) == 42
    """
    _checked_source(source, "python")
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{quoted(name)} is not the name of a function")
    from hutch._sandbox import SandboxedFunction

    options = _with_inline(source, with_keywords(NORMAL, keywords))
    return SandboxedFunction(options, TextMaker(source, name))


class TextMaker:
    """Makes targets of the function `name` of a module given as text."""

    plain = None
    is_searched = True

    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name

    def __call__(self, options: Options, nonce: str) -> Target:
        from hutch._calls.target import TextTarget

        return TextTarget(self.source, self.name, _with_inline(self.source, options), nonce)


def _checked_source(source: str, language: str) -> str:
    if not isinstance(source, str):
        raise TypeError(f"a program is given as str, not {type(source).__name__}")
    if language not in _FILENAMES:
        known = ", ".join(f'"{name}"' for name in _FILENAMES)
        raise ValueError(f"language={quoted(language)} is not supported yet: {known} are")
    return source


def _text(source: str, language: str, filename: str) -> str:
    """As Python; JavaScript as it is."""
    if language != "bash":
        return source
    from hutch._program_bash import starter

    return starter(source, filename)


def _with_inline(source: str, options: Options) -> Options:
    if options.dependencies is not None:
        return options
    from hutch._options.requirements import inline_dependencies

    dependencies = inline_dependencies(source)
    if dependencies and not options.allow_private_index:
        from hutch._options import index

        index.refuse_private()
    return options._replace(dependencies=dependencies)


def _nonce(options: Options) -> str:
    import os

    return os.urandom(8).hex() if options.disable_cache else ""


def _given(
    args: Sequence[str] | str,
    stdin: str | bytes | None,
    files: Mapping[str, str | bytes] | None,
) -> dict[str, Any]:
    """The input, checked, as the cell reads it."""
    arguments = [args] if isinstance(args, str) else list(args)
    for item in arguments:
        if not isinstance(item, str) or "\0" in item:
            raise TypeError(f"args takes str without NUL characters, not {quoted(item)}")
    content = None if stdin is None else _bytes("stdin", stdin)
    if files is None:
        return {"args": arguments, "stdin": content}
    if not hasattr(files, "items"):
        raise TypeError(f"files takes a dict of names to content, not {type(files).__name__}")
    placed = {_relative(name): _bytes(f"files[{name!r}]", data) for name, data in files.items()}
    if sum(map(len, placed.values())) > _FILES_LIMIT:
        raise ValueError(f"files= holds more than {_FILES_LIMIT >> 20} MiB")
    return {"args": arguments, "stdin": content, "files": placed}


def _bytes(name: str, value: str | bytes) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{name} takes str or bytes, not {type(value).__name__}")


def _relative(name: str) -> str:
    import os

    path = os.fspath(name)
    parts = path.split("/") if isinstance(path, str) else []
    if not parts or path.startswith("/") or "\0" in path or ".." in parts or not parts[-1]:
        raise ValueError(f"files= has {quoted(name)}: names are relative to the working directory")
    return os.path.normpath(path)


def _hint_at_metadata(outcome: Outcome[Any], source: str) -> None:
    """Adds a hint for a missing module, where the source itself names its dependencies."""
    error = outcome.error
    if error is None or error.type != "ModuleNotFoundError" or "# /// script" not in source:
        return
    error.hint = 'the source names its dependencies: say dependencies="inline"'
    failure = outcome.exception()
    failure.hint = error.hint
    outcome.fail(failure)
