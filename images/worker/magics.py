# SPDX-License-Identifier: Apache-2.0
"""Lines of a notebook's cell that are IPython's own, as Python or as lines of a session: those that
notebooks begin with. What is not known stays what it is, a SyntaxError with a hint. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import shell_lines

ANY = re.compile(r"^[ \t]*%", re.MULTILINE)
LINE = re.compile(r"([ \t]*)%(\w+)[ \t]*(.*)")
CELL = re.compile(r"\s*%%(\w+|!)[ \t]*(.*)")
# What sets how IPython shows or loads something.
SETTINGS = frozenset(
    ("matplotlib", "pylab", "load_ext", "reload_ext", "unload_ext", "autoreload", "aimport",
     "config", "precision", "colors", "xmode", "pprint", "warnings", "doctest_mode", "logoff")
)  # fmt: skip
# Commands of bash that need no `!` in IPython.
ALIASES = frozenset(("ls", "ll", "cat", "cp", "mv", "rm", "mkdir", "rmdir", "pwd", "head", "tail"))
SHELLS = frozenset(("bash", "sh", "script", "system", "sx", "!"))


def replaced(source: str) -> str:
    """As Python and lines of a session, with as many lines."""
    if ANY.search(source) is None:
        return source
    first = CELL.match(source)
    if first is not None:
        return of_cell(source, first)
    lines = source.split("\n")
    start = 0  # of the statement that lines[i] may belong to
    for i, line in enumerate(lines):
        found = LINE.match(line)
        made = of_line(found[2], found[3]) if found else None
        if found and made is not None and not shell_lines.is_open(lines[start:i]):
            lines[i] = found[1] + made
            start = i + 1
    return "\n".join(lines)


def of_line(name: str, text: str) -> str | None:
    """None: it stays what it is."""
    if name in SETTINGS:
        return "pass"
    if name == "time":
        return text or "pass"
    if name in ALIASES:
        return f"!{'ls -l' if name == 'll' else name} {text}"
    make = LINES.get(name)
    return None if make is None else make(text)


def of_env(text: str) -> str:
    name, _, value = text.partition("=") if "=" in text else text.partition(" ")
    if not text:
        return "dict(__import__('os').environ)"
    if not value:
        return f"__import__('os').environ.get({name.strip()!r})"
    return f"__import__('os').environ.update({{{name.strip()!r}: {value.strip()!r}}})"


def of_run(text: str) -> str | None:
    words = paths_of(text)
    for path in words[:1]:
        read = f"__import__('pathlib').Path({path!r}).read_text()"
        args = f"__import__('sys').argv.__setitem__(slice(None), {words!r})"
        return f"{args}; exec(compile({read}, {path!r}, 'exec'))"
    return None


LINES: dict[str, Callable[[str], str | None]] = {"env": of_env, "set_env": of_env, "run": of_run}


def paths_of(text: str) -> list[str]:
    """Its words that are no options."""
    try:
        return [word for word in shlex.split(text) if not word.startswith("-")]
    except ValueError:  # a quotation goes on
        return []


def of_cell(source: str, first: re.Match[str]) -> str:
    """`first`: its first line that is not empty."""
    name, text = first.groups()
    before = source[: first.start(1)].count("\n")
    body = source[first.end() :].removeprefix("\n")
    empty = "\n" * (before + 1)
    if name in ("time", "capture") and not paths_of(text):
        return empty + replaced(body)
    if name in SHELLS and (name != "script" or text.split()[:1] in (["bash"], ["sh"])):
        script = body.encode("utf-8", "surrogateescape")
        return f"{empty[1:]}__import__('subprocess').run(['bash'], input={script!r}, check=True);"
    if name in ("writefile", "file"):
        mode = "a" if text.startswith("-a ") else "w"
        body += "" if body.endswith("\n") else "\n"
        for path in paths_of(text)[:1]:
            said = f"print({'Appending to' if mode == 'a' else 'Writing'!r}, {path!r})"
            write = f"(lambda file: (file.write({body!r}), file.close()))(open({path!r}, {mode!r}))"
            return f"{empty[1:]}{write}; {said}"
    return source
