# SPDX-License-Identifier: Apache-2.0
"""Bytecode for the worker files, made once when they are installed.

    python3 -I -S bytecode.py OUT PLACE=DIRECTORY...

For every source file below DIRECTORY, which workers see as PLACE, OUT gets PLACE's path with the
bytecode that this interpreter reads instead of them. A worker's files lie on a read-only mount,
so it could never keep what it compiles: without this each start compiles them all again (25 to 40
ms). "Unchecked" (PEP 552): what is installed does not change. A file that does not compile is left
out; it then fails where it is used.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys


def compile_directory(out: str, place: str, directory: str) -> None:
    for here, _, names in os.walk(directory):
        seen = os.path.normpath(os.path.join(place, os.path.relpath(here, directory)))
        for name in sorted(names):
            if name.endswith(".py"):
                compile_file(out, os.path.join(seen, name), os.path.join(here, name))


def compile_file(out: str, seen: str, source: str) -> None:
    target = out + importlib.util.cache_from_source(seen, optimization="")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        py_compile.compile(
            source,
            cfile=target,
            dfile=seen,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    except (py_compile.PyCompileError, OSError):
        pass


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        where, _, source = argument.partition("=")
        compile_directory(sys.argv[1], where, source)
