# SPDX-License-Identifier: Apache-2.0
"""Lines of a session's code that are no Python: `!` begins a command for bash, and `%cd` goes to a
directory, as in IPython. Pure, but for change_directory() and the expressions of with_values().
"""

from __future__ import annotations

import os
import re
import string
import tokenize
from collections.abc import Iterator
from typing import Any

import pip_lines

# Of builtins: what these lines call.
BASH, CD, PIP = "__hutch_bash__", "__hutch_cd__", "__hutch_pip__"
# What is printed may be assigned: to names, attributes, items.
TARGET = r"[A-Za-z_][\w.]*(?:\[[^\]=\n]*\])?"
TARGETS = rf"{TARGET}(?:[ \t]*,[ \t]*{TARGET})*"
OF_PIP = r"%(?=(?:uv +)?pip3?\b)"
ANY = re.compile(rf"^[ \t]*(?:!|%cd\b|{OF_PIP}|{TARGETS}[ \t]*=[ \t]*!)", re.MULTILINE)
LINE = re.compile(rf"([ \t]*)(?:({TARGETS})[ \t]*=[ \t]*(?=!))?(!!?|%cd\b|{OF_PIP})[ \t]*(.*)")
NAMED = re.compile(r"\$(\$?[A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)*)")
# What would install something stays what it is, an error, before anything has run.
INSTALLS = re.compile(
    r"(?:sudo +)?(?:python3? +-m +)?(?:pip3?|conda|mamba|uv|apt|apt-get|npm)\b.*\b(?:install|add)\b"
)
LISTS = re.compile(r"(?:python3? +-m +)?(?:uv +)?(?:pip3?|conda|mamba) +(?:list|freeze|show)\b")
LISTED_BY_PYTHON = (
    "there is no pip inside: in Python, importlib.metadata.distributions() has the packages, each "
    "with its name and version"
)


def replaced(source: str, installs: bool = False) -> str:
    """As Python, with as many lines. `installs`: whether `pip install` is a line of that kind."""
    if ANY.search(source) is None:
        return source
    lines = source.split("\n")
    start = 0  # of the statement that lines[i] may belong to
    i = 0
    while i < len(lines):
        found = LINE.match(lines[i])
        indent, targets, sign, text = found.groups() if found else ("", None, "", "")
        call = called(targets, sign, text, installs) if found else ""
        if call and not is_open(lines[start:i]):
            end = i + 1
            while sign != "%cd" and lines[end - 1].endswith("\\") and end < len(lines):
                end += 1
            text = "\n".join([text, *lines[i + 1 : end]])
            made = f"{call}({text!r})"
            if targets is not None:
                made = f"{targets} = {BASH}({text!r}, True)"
            lines[i:end] = [indent + made, *[""] * (end - i - 1)]
            start = i = end
        else:
            i += 1
    return "\n".join(lines)


def called(targets: str | None, sign: str, text: str, installs: bool) -> str:
    """What such a line calls; "": it stays what it is."""
    if sign == "%cd":
        return CD
    if installs and targets is None and pip_lines.INSTALL.match(text):
        return PIP
    return BASH if sign != "%" and not INSTALLS.match(text) else ""


def is_open(lines: list[str]) -> bool:
    """Whether a string, a bracket or a statement goes on after these."""
    if not any(lines):
        return False

    def numbered() -> Iterator[str]:
        yield from (line + "\n" for line in lines)

    try:
        for _ in tokenize.generate_tokens(numbered().__next__):
            pass
    except tokenize.TokenError:
        return True
    except SyntaxError:
        return False
    return lines[-1].endswith("\\")


def with_values(text: str, names: dict[str, Any]) -> str:
    """With the values of Python's expressions in braces and of its names behind a `$`, as IPython
    puts them in: `$$` is a `$` of bash. Where one has no value, all is bash's own.
    """
    if "{" not in text and "$" not in text:
        return text
    try:
        return "".join(_pieces(text, names))
    except Exception:
        return text


def _pieces(text: str, names: dict[str, Any]) -> Iterator[str]:
    form = string.Formatter()
    for literal, field, spec, conversion in form.parse(text):
        yield NAMED.sub(lambda found: _value_of(found, names), literal)
        if field is not None:
            value = form.convert_field(eval(field, names), conversion)
            yield format(value, with_values(spec or "", names))


def _value_of(found: re.Match[str], names: dict[str, Any]) -> str:
    name, rest = found.groups()
    if name not in names:  # bash's own, or one behind `$$`
        return found[0].removeprefix("$") if name.startswith("$") else found[0]
    value = names[name]
    attributes = rest.split(".")[1:]
    while attributes and hasattr(value, attributes[0]):
        value = getattr(value, attributes.pop(0))
    return ".".join([str(value), *attributes])


def change_directory(text: str) -> None:
    """As IPython's %cd: to what is named, home, or with - where bash was before. Prints it."""
    text = text.strip()
    if text[:1] == text[-1:] and text[:1] in ("'", '"') and len(text) > 1:
        text = text[1:-1]
    before = os.getcwd()
    target = os.environ.get("OLDPWD", before) if text == "-" else os.path.expanduser(text or "~")
    os.chdir(target)
    os.environ["OLDPWD"] = before
    print(os.getcwd())
