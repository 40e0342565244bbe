# SPDX-License-Identifier: Apache-2.0
"""Requirements files: the lines that pip takes, and what they ask for.

Taken: requirements, hashes, `-r` and `-c` of files in the same directory or below it,
`-i`/`--index-url`, `--extra-index-url`, `-f`/`--find-links`; every other option is refused by name.
Pure but for the files read.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from hutch._errors import RequirementError
from hutch._options.lock import lines_of
from hutch._options.requirements import normalize

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


class Contents(NamedTuple):
    """What a file asks for. `sources`: keywords of an Environment. `is_lock`: it has hashes."""

    requirements: list[str]
    constraints: list[str]
    sources: dict[str, Any]
    is_lock: bool


def read(path: str) -> Contents:
    """Raises OSError, RequirementError."""
    found = _Found([], [], [], [], [], [])
    place = os.path.realpath(path)
    _read(place, os.path.dirname(place), found, found.requirements)
    sources = {
        "index_url": found.index_url[-1] if found.index_url else None,
        "extra_index_urls": found.extra_index_urls,
        "find_links": found.find_links,
    }
    is_lock = any("--hash" in line for line in found.requirements)
    return Contents(found.requirements, found.constraints, sources, is_lock)


def constraints_of(path: str) -> tuple[str, ...]:
    """Those of a constraints file."""
    found = _Found([], [], [], [], [], [])
    place = os.path.realpath(os.path.expanduser(path))
    _read(place, os.path.dirname(place), found, found.requirements)
    return normalize([line.split(" --hash")[0] for line in found.requirements])


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
            f"{path}: the option {line.split()[0]!r} is not supported",
            hint="requirements, -r, -c, -i, --extra-index-url and -f are; pass your own code by "
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
