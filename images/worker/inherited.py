# SPDX-License-Identifier: Apache-2.0
"""What packages that the zygote imports ahead leave in it, and what a cell, its fork, is to have of
that: hooks of forks, exit handlers, open files, generators of random numbers.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import stat
import sys
from collections.abc import Callable
from typing import Any

# Whose files are the same in each cell, and can only be read there.
SHARED = ("/opt/", "/usr/", "/lib/", "/lib64/", "/etc/")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
LOWEST = 10  # number of a descriptor that a package may hold


class ForkHooks:
    """What modules register with os.register_at_fork() from now on.

    The interpreter runs them for forks of user code; slots run them from here when they make a
    cell. Those of `threading` and `logging` are left out: they renew locks that another thread may
    have held, and cost half as much as the fork.
    """

    LEFT_OUT = ("threading", "logging")

    def __init__(self) -> None:
        self.before: tuple[Any, ...] = ()
        self.parent: tuple[Any, ...] = ()
        self.child: tuple[Any, ...] = ()
        self._register = os.register_at_fork
        os.register_at_fork = self.register

    def register(self, **hooks: Any) -> None:
        self._register(**hooks)
        kept = {
            name: hook
            for name, hook in hooks.items()
            if getattr(hook, "__module__", None) not in self.LEFT_OUT
        }
        if "before" in kept:
            self.before = (kept["before"], *self.before)  # the last one first
        if "after_in_parent" in kept:
            self.parent += (kept["after_in_parent"],)
        if "after_in_child" in kept:
            self.child += (kept["after_in_child"],)

    def end(self) -> None:
        os.register_at_fork = self._register


def of_library(module: object) -> bool:
    """Whether a module of that name is the standard library's, and not what imports others."""
    name = module.partition(".")[0] if isinstance(module, str) else ""
    return name in sys.stdlib_module_names and "importlib" not in name


class ExitHandlers:
    """What modules register with atexit from now on is for the end of this process, not of a call.

    The standard library's own handlers stay: they end what a call begins with it.
    """

    def __init__(self) -> None:
        self._register = atexit.register
        self._others: list[Any] = []
        atexit.register = self.register

    def register(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        # An extension has no frame of its own: then this is importlib's.
        by = sys._getframe(1).f_globals.get("__name__")
        if not of_library(by) or not of_library(getattr(function, "__module__", None)):
            self._others.append(function)
        return self._register(function, *args, **kwargs)

    def end(self) -> None:
        atexit.register = self._register
        for function in self._others:
            atexit.unregister(function)
        weakref = sys.modules.get("weakref")
        for finalizer in list(weakref.finalize._registry) if weakref is not None else ():
            finalizer.atexit = False


class Descriptors:
    """What packages that were imported ahead hold open.

    A cell closes all that is not its own. A file that it could open itself, to read, it opens anew:
    at the same offset and under the same number, so that neither an offset nor a lock is shared
    with other cells. Nothing else that is open here can be had in a cell.
    """

    def __init__(self) -> None:
        # The lowest numbers are a slot's and a cell's own.
        self._low: list[int] = []
        while not self._low or self._low[-1] < LOWEST - 1:
            self._low.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        self._ours = self._numbers()

    @staticmethod
    def _numbers() -> set[int]:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                fcntl.fcntl(int(name), fcntl.F_GETFD)
            except OSError:  # that of the listing
                continue
            found.add(int(name))
        return found

    def kinds(self) -> list[str]:
        """What is open that no cell can have, for a person."""
        return [
            os.readlink(f"/proc/self/fd/{fd}")[:60]
            for fd in sorted(self._numbers() - self._ours)
            if self._file(fd) is None
        ]

    def _file(self, fd: int) -> tuple[str, int, os.stat_result] | None:
        """Path, flags and status of what a cell can open anew."""
        path, status = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd)
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        if stat.S_ISCHR(status.st_mode):
            return (path, access, status) if path in DEVICES else None
        if not stat.S_ISREG(status.st_mode) or access != os.O_RDONLY:
            return None
        if not path.startswith(SHARED):
            return None
        try:
            there = os.lstat(path)
        except OSError:
            return None
        return (path, access, status) if os.path.samestat(there, status) else None

    def remember(self) -> bool:
        """Whether there is anything for each cell to open anew."""
        self._held = []
        for fd in sorted(self._numbers() - self._ours):
            file = self._file(fd)
            if file is not None:
                regular = stat.S_ISREG(file[2].st_mode)
                offset = os.lseek(fd, 0, os.SEEK_CUR) if regular else 0
                self._held.append((fd, os.get_inheritable(fd), offset, *file))
        for fd in self._low:
            os.close(fd)
        return bool(self._held)

    def open_anew(self) -> None:
        """In a cell. Its file system is another one than this process's: device and inode number
        say nothing, but what lies there is read-only and the same.
        """
        for number, inheritable, offset, path, access, known in self._held:
            if is_open(number):
                continue  # it is the cell's own
            try:
                fd = os.open(path, access | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            os.set_inheritable(number, inheritable)
            if not is_same(os.fstat(number), known):
                os.close(number)
            elif offset:
                os.lseek(number, offset, os.SEEK_SET)


def is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def is_same(one: os.stat_result, other: os.stat_result) -> bool:
    fields = ("st_mode", "st_size", "st_mtime_ns", "st_rdev")
    return all(getattr(one, name) == getattr(other, name) for name in fields)


class Generators:
    """The generators of random numbers that packages make while they are imported, and do not seed
    with anything of their own: each cell seeds them anew, or all calls would draw the same."""

    def __init__(self) -> None:
        self.unseeded: dict[int, Any] = {}
        self.end: Callable[[], None] = lambda: None
        self.seed: Any = None

    def begin(self) -> None:
        import random

        original = self.seed = random.Random.seed

        def seed(generator: Any, a: Any = None, version: int = 2) -> None:
            original(generator, a, version)
            if a is None:
                self.unseeded[id(generator)] = generator
            else:
                self.unseeded.pop(id(generator), None)

        random.Random.seed = seed  # type: ignore[assignment,method-assign]
        self.end = functools.partial(setattr, random.Random, "seed", original)

    def seed_anew(self) -> None:
        for generator in self.unseeded.values():
            self.seed(generator)
