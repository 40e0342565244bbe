# SPDX-License-Identifier: Apache-2.0
"""`hutch run`: a program among programs. What stands after the script is the script's; bytes pass
unchanged into pipes and files, and on a terminal text is escaped; when nobody reads any more the
program is killed, and the exit code is 141, as a shell reports of one that SIGPIPE killed.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hutch._calls.echo import Streams
from hutch._connect.progress import escape
from hutch._options.options import NORMAL
from hutch.cli.commands import given_dependencies
from hutch.cli.output import as_json_line

FAILED = 1
UNREAD = 128 + signal.SIGPIPE
_MISSING = re.compile(r"No module named '?([A-Za-z_][\w.]*)'?\)?\n\Z")
USAGE = "hutch run [OPTION…] (SCRIPT | - | -c CODE | -m MODULE) [ARGUMENT…]"

# What hints say of keywords, as the options of this command.
_OF_KEYWORDS = (
    (r'dependencies=\["([^"]*)"\]', r'--with "\1"'),
    (r'modules=\["(\w+)"\]', r"--file \1.py"),
    (r'allow_network=\["([^"]*)"\]', r'--allow-network "\1"'),
    (r"\btimeout_sec=(?=\S)", "--timeout "),
    (r"\bmemory_mb=(?=\S)", "--memory "),
    (r"\bcpus=(?=\S)", "--cpus "),
    (r"\b((?:pids|disk_mb|cpu_sec|result_mb)=\S+)", r"\1 in a file for --policy"),
    (r"pass the content as an argument, or by files=", "give it by --file or --mount"),
    (r"give it stdin=", "pipe it in, or give it by < FILE"),
    (r"\bdependencies=", "--with"),
    (r"\ballow_network=", "--allow-network"),
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Those of `hutch run` alone."""
    command.usage = USAGE
    program = command.add_argument_group("program", "what stands after it is its own")
    program.add_argument("script", nargs="?", help="a file, or - for standard input")
    program.add_argument("-c", metavar="CODE", help="a program given here, as of python -c")
    program.add_argument(
        "-m", metavar="MODULE",
        help="a module inside the sandbox: of a dependency, the standard library or a --file",
    )  # fmt: skip
    command.add_argument(
        "--allow-private-index", action="store_true",
        help="let dependencies that the script itself names come from your own index",
    )  # fmt: skip
    command.add_argument(
        "--policy", metavar="PRESET|FILE", help="strict, normal, permissive, or a policy's TOML"
    )
    command.add_argument(
        "--timeout", type=float, metavar="SEC", help="limit on wall time; 0: unlimited"
    )
    command.add_argument("--memory", type=int, metavar="MIB", help="limit on memory")
    command.add_argument("--cpus", type=float, help="limit on CPUs, such as 0.5")
    command.add_argument(
        "--environment", metavar="PATH", help="a requirements.txt, pylock.toml or venv"
    )
    command.add_argument(
        "--mount", action="append", default=[], metavar="SOURCE:DESTINATION",
        help="show a file or directory in the sandbox, read-only; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="an environment variable"
    )
    command.add_argument(
        "--file", action="append", default=[], metavar="PATH", help="copy a file to where it runs"
    )
    command.add_argument(
        "--fetch", action="append", default=[], metavar="PATH|GLOB",
        help="copy what the program leaves there to the same path here; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--allow-network", action="append", default=[], metavar="HOST",
        help="what it may reach: host, host:port, *.host, a CIDR or *; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--secret", action="append", default=[], metavar="HOST:HEADER=[PREFIX ]VARIABLE",
        help="a header that is added to requests to the host, outside the sandbox; its value is "
        "that of your environment variable, such as api.example.org:Authorization=Bearer TOKEN",
    )  # fmt: skip


def divided(words: list[str], flags: Iterable[str]) -> tuple[list[str], list[str]]:
    """Options of Hutch's own, and what begins with the program. `flags`: options without a
    value.
    """
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        if word in ("-", "--") or _gives_program(word):
            break
        at += 1 if "=" in word or word in flags else 2
    return words[:at], words[at:]


def _gives_program(word: str) -> bool:
    """Whether it is `-c` or `-m`, alone or with its value in the same word."""
    return word[:2] in ("-c", "-m")


class _Program(NamedTuple):
    source: str
    name: str  # sys.argv[0]
    arguments: list[str]
    is_stdin: bool = False


def run(options: argparse.Namespace) -> int:
    import hutch
    from hutch._program import run_into

    source, name, arguments, is_stdin = _program(options.program)
    keywords = _keywords(options, source)
    files = {os.path.basename(path): _content(path) for path in options.file}
    stdin = None
    if not is_stdin and sys.stdin is not None and not sys.stdin.isatty():
        stdin = sys.stdin.buffer.read()
    program = hutch.Program(source, filename=name, **keywords)
    given: dict[str, Any] = {"stdin": stdin, "args": arguments, "fetch": options.fetch}
    given["files"] = files or None
    output = _Output()
    try:
        if options.json:
            outcome = program.run(**given)
            output.feed(0, as_json_line(outcome.to_dict()).encode())
            return _exit_code(outcome)
        outcome = run_into(output, program, **given)
    except OSError as error:
        if error is not output.failed:
            raise
        if isinstance(error, BrokenPipeError):
            return UNREAD
        print(f"hutch: the output cannot be written: {error.strerror}", file=sys.stderr)
        return FAILED
    if not outcome.ok:
        _explain(outcome, name)
    try:
        _write(outcome.files)
    except OSError as error:
        print(f"hutch: a file of --fetch cannot be written: {error}", file=sys.stderr)
        return FAILED
    return _exit_code(outcome)


def _write(files: Mapping[str, bytes]) -> None:
    """Each takes its place once it is whole, also that of a link, which is not followed. Nor is one
    above it, as the program chose the names.
    """
    from hutch._carry import beneath

    for path, content in files.items():
        with beneath.new_file_here(path) as file:
            left = memoryview(content)
            while left:
                left = left[os.write(file, left) :]


class _Output(Streams):
    """What the program prints, on the command's own streams. One that is no terminal gets the bytes
    as they are, and an OSError of it is raised, which ends the program.
    """

    def __init__(self) -> None:
        super().__init__(NORMAL, True)
        self._files = [_binary(stream) for stream in (sys.stdout, sys.stderr)]
        self.failed: OSError | None = None

    def feed(self, stream: int, data: bytes) -> None:
        file = self._files[stream]
        if file is None:
            super().feed(stream, data)
            return
        left = memoryview(data)
        try:
            while left:
                written = file.write(left)
                if written is None:  # another program has made it non-blocking
                    select.select([], [file], [])
                left = left[written or 0 :]
        except OSError as error:
            self.failed = error
            raise


def _binary(stream: Any) -> Any:
    """Its file, without a buffer: what could not be written is not tried again at exit. None: text
    is to be written there, or nothing, as it is closed.
    """
    if stream is None or stream.isatty() or not hasattr(stream, "buffer"):
        return None
    stream.flush()
    return getattr(stream.buffer, "raw", stream.buffer)


def _program(words: list[str]) -> _Program:
    """What the words name, from the program on: it, and its arguments. A `--` that follows the
    program is left out.
    """
    if not words or words == ["--"]:
        raise ValueError(f"name a program: {USAGE}")
    first, *rest = words
    option = first[:2] if _gives_program(first) else ""
    if option:
        rest = [first[2:], *rest] if first[2:] else rest
        if not rest:
            raise ValueError(f"{option} needs {'CODE' if option == '-c' else 'MODULE'}: {USAGE}")
    if option or first == "--":
        first, *rest = rest
    if rest[:1] == ["--"]:
        del rest[0]
    if option == "-c":
        try:
            first.encode()
        except UnicodeEncodeError:
            raise ValueError("-c takes CODE in UTF-8, which this is not") from None
        return _Program(first, "-c", rest)
    if option == "-m":
        return _Program(f"__import__('runpy')._run_module_as_main({first!r})", "-m", rest)
    if first == "-":
        return _Program(sys.stdin.read(), "-", rest, True)
    return _Program(_decoded(_content(first)), os.path.basename(first), rest)


def _decoded(content: bytes) -> str:
    """As Python reads a script: a byte order mark is left out, and a coding line is followed."""
    import codecs
    import io
    import tokenize

    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError as error:
        raise ValueError(f"the script is not Python source: {error}") from None
    try:
        if codecs.lookup(encoding).name not in ("idna", "punycode"):  # which take quadratic time
            return content.decode(encoding)
    except LookupError:  # it is none of text
        pass
    raise ValueError(f"the script is not Python source: encoding: {encoding}")


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _keywords(options: argparse.Namespace, source: str) -> dict[str, Any]:
    from hutch._options.requirements import inline_dependencies, inline_metadata

    given = given_dependencies(options)
    inline = inline_dependencies(source) if inline_metadata(source) is not None else ()
    if inline and not options.allow_private_index:
        from hutch._options import index

        index.refuse_private()
    keywords: dict[str, Any] = {"dependencies": [*inline, *given]}
    if options.environment and keywords["dependencies"]:
        raise ValueError("--environment: give it, or --with and the script's own requirements")
    if options.environment or options.base or options.python:
        from hutch.cli.environments import wanted

        keywords["environment"] = wanted(options, keywords.pop("dependencies"))
    others = {
        "policy": options.policy,
        "mounts": _mounts(options.mount),
        "memory_mb": options.memory,
        "cpus": options.cpus,
        "env": _env(options.env),
        "allow_network": options.allow_network,
        "secrets": _secrets(options.secret),
    }
    # What is not given is the policy's.
    keywords.update((name, x) for name, x in others.items() if x is not None and x not in ([], {}))
    if options.timeout is not None:
        keywords["timeout_sec"] = options.timeout or None
    return keywords


def _mounts(items: Sequence[str]) -> dict[str, str]:
    mounts = {}
    for item in items:
        source, sign, destination = item.rpartition(":")
        if not sign or not source:
            raise ValueError(f"--mount {item}: write SOURCE:DESTINATION, such as ./data:/data")
        mounts[destination] = source
    return mounts


def _env(items: Sequence[str]) -> dict[str, str]:
    env = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign:
            raise ValueError(f"--env {item}: write NAME=VALUE")
        env[name] = value
    return env


def _secrets(items: Sequence[str]) -> dict[str, dict[str, Any]]:
    from hutch import Secret

    secrets: dict[str, dict[str, Any]] = {}
    for item in items:
        host, _, rest = item.partition(":")
        header, _, value = rest.partition("=")
        prefix, space, variable = value.rpartition(" ")
        if not host or not header or not variable:
            raise ValueError(
                "--secret takes HOST:HEADER=VARIABLE, such as "
                "'api.example.org:Authorization=Bearer TOKEN' for the environment variable TOKEN"
            )
        secrets.setdefault(host, {})[header] = Secret.from_env(variable, prefix + space)
    return secrets


def _explain(outcome: Any, name: str) -> None:
    error = outcome.error
    if outcome.status == "raised" and error is not None:
        text = error.traceback or f"{error.type}: {error.message}"
        hint = error.hint
    elif outcome.status == "died" and outcome.exit_code is not None:
        # The program's own way to end; for `-m`, that of a module that is not there, too.
        missing = _MISSING.search(outcome.stderr) if name == "-m" else None
        if missing is not None:
            from hutch._explain import hint_for

            _print_hint(hint_for("ModuleNotFoundError", f"No module named {missing[1]!r}", ""))
        return
    else:
        failure = outcome.exception()
        text, hint = f"hutch: {failure.message}", failure.hint
    for line in text.rstrip().splitlines():
        print(escape(line), file=sys.stderr)
    _print_hint(hint)


def _print_hint(hint: str) -> None:
    if hint:
        print(f"hint: {escape(in_options(hint))}", file=sys.stderr)


def in_options(hint: str) -> str:
    """A hint that names keywords, with this command's options instead."""
    for pattern, option in _OF_KEYWORDS:
        hint = re.sub(pattern, option, hint)
    return hint


def _exit_code(outcome: Any) -> int:
    if outcome.status == "limit":
        return 124 if outcome.limit == "time" else 137
    if outcome.signal is not None:
        return 128 + int(outcome.signal)
    if outcome.exit_code is not None:
        return int(outcome.exit_code)
    return 0 if outcome.ok else 1
