# SPDX-License-Identifier: Apache-2.0
"""Packages of npm: what is asked for, as one sorted tuple of strings `name@range`, and where they
come from, by the caller's own npm settings.

Only names with a range of versions or a tag pass. Whatever npm would read as a path, an address, a
git repository or an option is refused here, in a sentence, before anything is started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hutch._errors import RequirementError

_COUNT = 512
_LENGTH = 512  # characters of one
_NAME = re.compile(r"(?:@[A-Za-z0-9_~][\w.~-]*/)?[A-Za-z0-9_~][\w.~-]*", re.ASCII)
_MOST_NAME = 214  # characters, as npm's own limit
_RANGE = re.compile(r"[A-Za-z0-9^~<>=*][A-Za-z0-9^~<>=*|+. _-]*", re.ASCII)
_OPTION = re.compile(r"\s-\S")  # "1.0 - 2.0" is a range
_ARCHIVE = re.compile(r"\.(?:tgz|tar|tar\.gz)\Z", re.IGNORECASE)
_HINT = "write it as 'lodash', 'lodash@4' or '@scope/name@^1.2'"

_SOURCE = re.compile(r"(?:@[\w.~-]+:)?registry", re.ASCII)
_CREDENTIAL = re.compile(r"//[\w.:/~%\[\]-]+:(?:_authToken|_auth|username|_password)", re.ASCII)
_VALUE = re.compile(r"[!-~]{1,8192}")  # of either


def normalize(items: Iterable[Any]) -> tuple[str, ...]:
    """The set that the items mean. Raises RequirementError, or TypeError for what is no str."""
    items = list(items)
    if len(items) > _COUNT:
        raise RequirementError(f"{len(items)} packages of npm; at most {_COUNT} are taken")
    wanted: dict[str, str] = {}
    for item in items:
        name, versions = _one(item)
        if wanted.setdefault(name, versions) != versions:
            raise RequirementError(
                f"{name} is asked for twice: as {wanted[name]} and as {versions}",
                hint="keep one of them",
                requirement=f"{name}@{versions}",
            )
    return tuple(f"{name}@{versions}" for name, versions in sorted(wanted.items()))


def _one(item: Any) -> tuple[str, str]:
    if not isinstance(item, str):
        raise TypeError(
            f"a package of npm is a str like 'lodash@4', not {type(item).__name__}: {item!r:.80}"
        )
    text = item.strip()
    name, at, versions = text.partition("@") if text[:1] != "@" else _scoped(text)
    versions = versions.strip() if at else "*"
    is_one = len(text) <= _LENGTH and len(name) <= _MOST_NAME and _NAME.fullmatch(name)
    is_range = _RANGE.fullmatch(versions) and not _OPTION.search(versions)
    if is_one and is_range and not _ARCHIVE.search(versions):
        return name, versions
    raise RequirementError(
        f"{text[:80]!r} is not the name of a package of npm with a version: options, paths, "
        "addresses and git repositories are refused",
        hint=_HINT,
        requirement=text[:80],
    )


def _scoped(text: str) -> tuple[str, str, str]:
    name, at, versions = text[1:].partition("@")
    return "@" + name, at, versions


def settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those of `PoolSpec["index"]` that are npm's: lines of an .npmrc that say where packages come
    from, those that let one in, and the certificates. Raises ValueError.
    """
    env = os.environ if environ is None else environ
    found = _read(env)
    sources, credentials = [], []
    for key, value in sorted(found.items()):
        if _SOURCE.fullmatch(key):
            if "@" in value.partition("://")[2].partition("/")[0]:
                raise ValueError(
                    f"npm's setting {key} holds a user or password: give them in ~/.npmrc, as "
                    "//host/:_authToken=... or as //host/:_auth=..."
                )
            sources.append(f"{key}={value}")
        elif _CREDENTIAL.fullmatch(key):
            credentials.append(f"{key}={value}")
    return {
        "npm_sources": "\n".join(sources),
        "npm_credentials": "\n".join(credentials),
        "npm_ca_bundle": _text(found.get("cafile", "")),
    }


def _read(env: Mapping[str, str]) -> dict[str, str]:
    """The settings of npm's files and then the environment's, the later ones over the earlier."""
    variables = {
        name[len("npm_config_") :].lower(): value
        for name, value in env.items()
        if name.lower().startswith("npm_config_") and value
    }
    home = env.get("HOME", "")
    found: dict[str, str] = {}
    for path in (
        variables.get("globalconfig", "/etc/npmrc"),
        variables.get("userconfig", os.path.join(home, ".npmrc")),
    ):
        found.update(_lines_of(path, env))
    for key in ("registry", "cafile"):
        if key in variables:
            found[key] = variables[key]
    return {key: value for key, value in found.items() if _VALUE.fullmatch(value)}


def _lines_of(path: str, env: Mapping[str, str]) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 20)
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip()[:1] not in ("#", ";"):
            plain = value.strip().strip("\"'")
            found[key.strip()] = re.sub(
                r"\$\{(\w+)\??\}", lambda match: env.get(match[1], ""), plain
            )
    return found


def _text(path: str) -> str:
    """What the file holds; the builder cannot see the path."""
    if not path or not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
