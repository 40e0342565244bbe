# SPDX-License-Identifier: Apache-2.0
"""Requirements files: the lines that pip takes, as an `Environment`.

Taken: requirements, hashes, `-r` and `-c` of files in the same directory or below it,
`-i`/`--index-url`, `--extra-index-url`, `-f`/`--find-links`; every other option is refused by name.
Pure but for the files read.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from hutch._environment import Environment
from hutch._errors import RequirementError
from hutch._requirements import normalize

_MOST_BYTES = 1 << 20
_MOST_FILES = 50
_OPTION = re.compile(
    r"(?P<name>-r|--requirement|-c|--constraint|-i|--index-url|--extra-index-url|-f|--find-links)"
    r"(?:\s*=\s*|\s+|(?<=-[rcif]))(?P<value>\S.*)"
)
_IGNORED = re.compile(r"--(require-hashes|prefer-binary|only-binary(\s+|=):all:)\s*")


class _Found(NamedTuple):
    requirements: list[str]
    constraints: list[str]
    index_url: list[str]
    extra_index_urls: list[str]
    find_links: list[str]
    files: list[str]


def read(path: str) -> Environment:
    """The environment that a file asks for. With hashes it is a lock. Raises RequirementError,
    OSError.
    """
    found = _Found([], [], [], [], [], [])
    place = os.path.realpath(path)
    _read(place, os.path.dirname(place), found, found.requirements)
    sources = {
        "index_url": found.index_url[-1] if found.index_url else None,
        "extra_index_urls": found.extra_index_urls,
        "find_links": found.find_links,
    }
    if any("--hash" in line for line in found.requirements):
        from hutch._lock import of_lines

        environment = Environment(**sources)  # type: ignore[arg-type]
        environment.lock = of_lines(found.requirements, path)
        return environment
    return Environment(
        found.requirements,
        constraints=found.constraints,
        **sources,  # type: ignore[arg-type]
    )


def constraints_of(path: str) -> tuple[str, ...]:
    """Those of a constraints file."""
    found = _Found([], [], [], [], [], [])
    place = os.path.realpath(os.path.expanduser(path))
    _read(place, os.path.dirname(place), found, found.requirements)
    return normalize([line.split(" --hash")[0] for line in found.requirements])


def lines_of(text: str) -> list[str]:
    """Without comments, and with lines that end in a backslash joined to the next."""
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = (_uncommented(line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def _uncommented(line: str) -> str:
    """A comment starts the line, or follows a space: a URL may hold a `#`."""
    start = line.find("#")
    while start > 0 and not line[start - 1].isspace():
        start = line.find("#", start + 1)
    return line if start < 0 else line[:start]


def _read(path: str, root: str, found: _Found, into: list[str]) -> None:
    if not path.startswith(root + "/"):
        raise RequirementError(
            f"{path} is not in the directory of the first file, {root}",
            hint="files that are named by -r or -c lie beside it or below it",
        )
    if path in found.files:
        return
    found.files.append(path)
    if len(found.files) > _MOST_FILES:
        raise RequirementError(f"more than {_MOST_FILES} files are read for {found.files[0]}")
    with open(path, encoding="utf-8-sig") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise RequirementError(f"{path} is larger than {_MOST_BYTES >> 20} MiB")
    for line in lines_of(text):
        if line.startswith("-"):
            _option(line, path, root, found, into)
        else:
            into.append(line)


def _option(line: str, path: str, root: str, found: _Found, into: list[str]) -> None:
    if _IGNORED.fullmatch(line):
        return  # that is so anyway
    match = _OPTION.fullmatch(line)
    if match is None:
        raise RequirementError(
            f"{path}: the option {line.split()[0]!r} is not taken",
            hint="requirements, -r, -c, -i, --extra-index-url and -f are; your own code goes in by "
            "modules=",
            requirement=line,
        )
    name, value = match["name"], match["value"].strip().strip("\"'")
    if name in ("-r", "--requirement", "-c", "--constraint"):
        below = os.path.realpath(os.path.join(os.path.dirname(path), value))
        target = into if name in ("-r", "--requirement") else found.constraints
        _read(below, root, found, target)
    elif name in ("-i", "--index-url"):
        found.index_url.append(value)
    elif name == "--extra-index-url":
        found.extra_index_urls.append(value)
    elif "://" in value:
        found.find_links.append(value)
    else:
        found.find_links.append(os.path.join(os.path.dirname(path), value))
