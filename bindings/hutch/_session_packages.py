# SPDX-License-Identifier: Apache-2.0
"""`Session.install`: packages that are added to a session that runs.

The builder makes an environment of what is asked for, in which whatever the session has already
keeps its version. What the session lacks of it is then sent to its scratch. Only the session's
process knows what it has (of an image, of earlier additions), so it is asked: a wrong answer makes
for packages that do not fit, in that session alone. On the host nothing of a package is run.
"""

from __future__ import annotations

import csv
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from hutch._calls.built import tree_of
from hutch._carry import trees
from hutch._carry.trees import Content, Entry
from hutch._errors import DependencyInstallError, SnapshotError
from hutch._options.environment import Environment
from hutch._options.requirements import normalize
from hutch._session_transfers import not_said
from hutch._text import brief_repr

if TYPE_CHECKING:
    from hutch._options.options import Options
    from hutch._restored import Dispensable
    from hutch._session_files import Send, SessionFiles
    from hutch._session_transfers import Ask

_PLACE = "/tmp/.packages"  # images/worker/added_packages.py has it too
_IN_THE_WAY = (
    *(errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS),
)
_PAGE = 4096  # bytes: of these a file of scratch is made
_MOST_KNOWN = 1000  # distributions: the builder takes no more constraints
_MOST_SAID = 20 * _MOST_KNOWN  # of which many may be known already
_MOST_RECORD = 64 << 20  # bytes
_MOST_SCRIPT = 64 << 10  # bytes; what is larger is sent as it is
_INFO = re.compile(r"(.+?)-([^-]+)\.dist-info")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_LONG_NUMBER = re.compile(r"[0-9]{19}")  # which no resolver reads
_STARTS_PYTHON = re.compile(rb"#!\S*python[\d.w]*[ \t]*\n")
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Added(NamedTuple):
    """name==version of each, and where they lie, or ""."""

    pins: list[str]
    place: str


_NONE = Added([], "")


class Packages:
    """Those that were added to a session. `pins`: name==version of each, which bring them back into
    a scratch that has not got them, and are in its snapshots.
    """

    def __init__(self, options: Options, files: SessionFiles) -> None:
        self.pins: tuple[str, ...] = ()
        self._options = options
        self._files = files

    def install(self, requirements: tuple[str, ...]) -> list[str]:
        """As one call of the session: name==version of what was added."""
        return self._files.within(lambda ask, send: self._add(requirements, ask, send)).pins

    def bring_back(self, pins: tuple[str, ...]) -> Added:
        """Within a call of parts: those and its own. Raises SnapshotError where these cannot be
        there; the session is then as it was.
        """
        wanted = tuple(dict.fromkeys((*pins, *self.pins)))
        if not wanted:
            return _NONE
        try:
            needed = requirements_of(wanted, self._options)
            added = self._files.within_call(lambda ask, send: self._add(needed, ask, send))
        except DependencyInstallError as error:
            raise SnapshotError(
                f"the packages that were added to the session cannot be added again: "
                f"{error.message}",
                hint="name what it needs in dependencies=; globals=False takes its files alone",
            ) from error
        self.pins = wanted
        return added

    @contextmanager
    def brought_back(
        self, pins: tuple[str, ...], dispensable: Dispensable
    ) -> Iterator[dict[str, str]]:
        """bring_back(), but for those of the dispensable ones that it gives, with why. What was
        added is taken away again where what is done with it fails.
        """
        before, left_out = self.pins, dict[str, str]()
        try:
            added = self.bring_back(pins)
        except SnapshotError as error:
            needed = tuple(pin for pin in pins if not dispensable.has_package(pin))
            if needed == pins:
                raise
            left_out = dict.fromkeys(set(pins) - set(needed), error.message)
            added = self.bring_back(needed)
        try:
            yield left_out
        except BaseException:
            self.pins = before
            if added.place:
                with suppress(Exception):
                    self._files.within_call(lambda ask, send: ask("drop packages", added.place))
            raise

    def _add(self, requirements: tuple[str, ...], ask: Ask, send: Send) -> Added:
        added = add(requirements, self._options, ask, send)
        self.pins = tuple(dict.fromkeys((*self.pins, *added.pins)))
        return added


def requirements_of(given: tuple[Any, ...], options: Options) -> tuple[str, ...]:
    """Raises RequirementError, TypeError."""
    if not given:
        raise TypeError('install() takes the names of packages, as in install("tabulate")')
    return normalize(given, options.environment is not None and options.environment.allow_urls)


def add(requirements: tuple[str, ...], options: Options, ask: Ask, send: Send) -> Added:
    """Adds them to a session with these options. Raises DependencyInstallError, after which the
    session is as it was.
    """
    known: dict[str, str] = {}
    for name, version in _known(ask("distributions", _PLACE)):
        known.setdefault(name, version)  # the first is what is imported
        if len(known) > _MOST_KNOWN:
            raise DependencyInstallError(
                f"the session says that it has more than {_MOST_KNOWN:,} packages: none was added",
                hint="its code may have replaced what replies; reset() starts a fresh interpreter",
            )
    pins = [f"{name}=={version}" for name, version in known.items()]
    try:
        tree = _built(requirements, pins, options)
    except DependencyInstallError as error:
        held = [pin for pin in pins if _is_in(pin, error.message)]
        if held:
            error.hint = (
                f"the session has {', '.join(held[:3])}, and what it has stays: a new one can have "
                "others, by Session(dependencies=[…])"
            )
        raise
    added = {name: found for name, found in _distributions(tree) if name not in known}
    if not added:
        return _NONE
    made = f"{_PLACE}/.new-{secrets.token_hex(8)}"
    files = [one for _, info in added.values() for one in _files_of(tree, info)]
    size = sum(-(-one.status.st_size // _PAGE) * _PAGE for one in files)  # of scratch
    if size > options.disk_mb << 20:
        raise _too_large(size, options)
    entries = [one.entry(made) for one in files]
    more = f" and {len(requirements) - 3} more" if len(requirements) > 3 else ""
    what = f"install of {', '.join(requirements[:3])}{more}"
    try:
        send(what, entries)
        number = ask("take packages", made)
        if type(number) is not int:
            raise not_said()
    except BaseException as error:
        with suppress(Exception):
            ask("delete", made)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _too_large(size, options) from None
        if isinstance(error, OSError) and error.errno in _IN_THE_WAY:
            raise DependencyInstallError(
                f"the packages cannot be put into the session: {error.strerror}: "
                f"{brief_repr(error.filename)}",
                hint="its code has put something else there; reset(files=True) begins anew",
            ) from None
        raise
    found = sorted(f"{name}=={version}" for name, (version, _) in added.items())
    return Added(found, f"{_PLACE}/{number}")


def _is_in(pin: str, text: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(pin)}(?![\w.-])", text) is not None


def _known(reply: Any) -> Iterator[tuple[str, str]]:
    """Name and version of what the session has, as it says."""
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    if type(reply) is not list or len(reply) > _MOST_SAID:
        raise not_said()
    for pair in reply:
        if type(pair) is not tuple or [type(one) for one in pair] != [str, str]:
            raise not_said()
        name, version = pair
        if len(name) > 200 or len(version) > 200 or not _NAME.fullmatch(name):
            continue
        with suppress(InvalidVersion):
            if _LONG_NUMBER.search(version) is None:
                yield canonicalize_name(name), str(Version(version))


def _built(requirements: tuple[str, ...], pins: list[str], options: Options) -> str:
    """The directory of packages on the host, built if it is not there."""
    own = options.environment or Environment()
    wanted = Environment(
        requirements,
        python=own.python or None,
        index_url=own.index_url or None,
        extra_index_urls=own.extra_index_urls,
        find_links=own.find_links,
        constraints=[*own.constraints, *pins],
        allow_sdists=own.allow_sdists,
        allow_urls=own.allow_urls,
        base=own.base or None,
    )
    return tree_of(wanted, options)


def _distributions(tree: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """By name: its version, and the directory that describes it."""
    from packaging.utils import canonicalize_name

    for entry in sorted(os.listdir(tree)):
        found = _INFO.fullmatch(entry)
        if found:
            yield canonicalize_name(found[1]), (found[2], entry)


class _File(NamedTuple):
    """Of a package: `name`, by its path in the tree."""

    name: str
    path: str
    status: os.stat_result

    def entry(self, target: str) -> Entry:
        inside, size = f"{target}/{self.name}", self.status.st_size
        executable = self.status.st_mode & 0o100 != 0
        if self.name.startswith("bin/") and size <= _MOST_SCRIPT:
            with open(os.open(self.path, _READING), "rb") as file:
                content = file.read()
            # The interpreter that it names is that of an environment which is not there.
            content = _STARTS_PYTHON.sub(b"#!/usr/bin/env python3\n", content, count=1)
            return trees.of_bytes(inside, content, executable)
        return trees.file(inside, _opener(self.path), size, executable)


def _files_of(tree: str, info: str) -> Iterator[_File]:
    """What a distribution says that it consists of, but for what lies outside the tree."""
    record = os.path.join(tree, info, "RECORD")
    try:
        with open(os.open(record, _READING), encoding="utf-8", newline="") as file:
            names = [row[0] for row in csv.reader(file.read(_MOST_RECORD).splitlines()) if row]
    except (OSError, UnicodeError, csv.Error) as error:
        raise DependencyInstallError(
            f"{info}/RECORD, which says what the package consists of, cannot be read: {error}"
        ) from None
    for name in names:
        steps = name.split("/")
        if not all(trees.is_a_name(os.fsencode(step)) for step in steps):
            continue
        path = os.path.join(tree, name)
        with suppress(FileNotFoundError, NotADirectoryError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                yield _File(name, path, status)


def _opener(path: str) -> Callable[[], Content]:
    return lambda: trees.HostFile(os.open(path, _READING), path)


def _too_large(size: int, options: Options) -> DependencyInstallError:
    return DependencyInstallError(
        f"the packages take {size / (1 << 20):.1f} MiB of the session's disk, which has not so "
        f"much left of disk_mb={options.disk_mb}: nothing was added",
        hint="raise Session(disk_mb=…), or name them in Session(dependencies=[…]), where they take "
        "none",
    )
