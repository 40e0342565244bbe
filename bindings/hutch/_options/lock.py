# SPDX-License-Identifier: Apache-2.0
"""Locks: every package with its version and hashes, as a pylock.toml (PEP 751) or as requirements.

Only what a build takes passes: an index's files with hashes, no path, directory or repository.
Pure functions.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from hutch._errors import RequirementError
from hutch._options.requirements import normalize

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HASH = re.compile(r"--hash[=\s]\s{0,100}(sha(?:256|384|512):[0-9a-fA-F]{64,128})")


def checked(text: str, name: str) -> str:
    """The lock, known to be one. Raises RequirementError."""
    if is_pylock(text):
        packages_of_pylock(text, name)
        return text
    lines = []
    for line in lines_of(text):
        if line.startswith("-"):
            if re.match(r"--(require-hashes|only-binary)\b", line):
                continue
            raise RequirementError(
                f"{name}: the option {line.split()[0]!r} is not allowed in a lock",
                hint="give where packages come from as index_url=",
            )
        lines.append(line)
    return of_lines(lines, name)


def is_pylock(text: str) -> bool:
    return re.search(r"(?m)^[ \t]*lock-version[ \t]*=", text) is not None


def of_lines(lines: Iterable[str], name: str) -> str:
    """Requirements with hashes, a line for each, in order."""
    locked = []
    for line in lines:
        hashes = _HASH.findall(line)
        requirement = normalize([_HASH.sub("", line)])[0]
        pinned = re.match(r"[a-z0-9-]+(\[[^\]]*\])?===?[^,*]+?(;.*)?$", requirement)
        if not hashes or pinned is None:
            raise RequirementError(
                f"{name}: {requirement!r} has no {'hash' if pinned else 'single version'}, and in "
                "a lock everything has one",
                hint="`hutch env lock` writes one, so does `uv pip compile --generate-hashes`",
                requirement=requirement,
            )
        locked.append(requirement + "".join(f" --hash={one.lower()}" for one in sorted(hashes)))
    if not locked:
        raise RequirementError(
            f"{name} locks nothing", hint="`hutch env lock` writes a lock of what you name"
        )
    return "".join(line + "\n" for line in sorted(locked))


_ANEW = "write it anew, as by `uv export --format pylock.toml`"


def packages_of_pylock(text: str, name: str) -> list[str]:
    """name==version of each package."""

    def refuse(what: str, hint: str = _ANEW) -> RequirementError:
        return RequirementError(f"{name}: {what}", hint=hint)

    try:
        lock = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(f"it is not valid TOML: {error}") from None
    if str(lock.get("lock-version", "")).split(".")[0] != "1":
        raise refuse(f"lock-version {lock.get('lock-version')!r} is not a known version")
    packages = lock.get("packages")
    if not isinstance(packages, list) or not packages:
        raise refuse("it locks nothing")
    return [_package(item, refuse) for item in packages]


def _package(item: Any, refuse: Any) -> str:
    package = item.get("name") if isinstance(item, dict) else None
    if not isinstance(package, str):
        raise refuse("a package has no name")
    for source in ("vcs", "directory", "archive"):
        if source in item:
            raise refuse(
                f"{package} comes from a {source}, which is not supported",
                "lock a release of an index",
            )
    files = [*item.get("wheels", []), *([item["sdist"]] if "sdist" in item else [])]
    if not files:
        raise refuse(f"{package} has no files")
    for file in files:
        hashes = file.get("hashes") if isinstance(file, dict) else None
        if not isinstance(hashes, dict) or not set(hashes) & {"sha256", "sha384", "sha512"}:
            raise refuse(f"a file of {package} has no SHA-2 hash")
        url = str(file.get("url", ""))
        if "path" in file or not re.match(r"https?://", url):
            raise refuse(f"a file of {package} is not an address that begins with https://")
        if re.match(r"https?://[^/]*@", url):
            raise refuse(
                f"the address of a file of {package} holds a user or password",
                "give them in ~/.netrc",
            )
    return f"{package}=={item.get('version', '')}"


def names_of(text: str) -> list[str]:
    """name==version of what a checked lock has."""
    if is_pylock(text):
        return packages_of_pylock(text, "the lock")
    return [_HASH.sub("", line).split(";")[0].strip() for line in text.splitlines() if line]


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
