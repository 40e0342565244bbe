# SPDX-License-Identifier: Apache-2.0
"""What code in a cell can import of Hutch's: `sandbox_utils`.

A cell's file system has none of the worker's files, so the zygote keeps the bytecode as bytes. It
becomes modules only where it is imported. A package of the environment that has the same name
comes first.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import marshal
import os
import sys
from typing import Any

PACKAGE = "sandbox_utils"
HEAD = 16  # bytes of a file of bytecode, before it
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), PACKAGE)


def bytecode_of(path: str) -> bytes:
    """As it was made when the file was installed (images/base/bytecode.py), or is made here."""
    try:
        with open(importlib.util.cache_from_source(path), "rb") as file:
            found = file.read()
        if found.startswith(importlib.util.MAGIC_NUMBER):
            return found[HEAD:]
    except OSError:
        pass
    with open(path, "rb") as file:
        return marshal.dumps(compile(file.read(), path, "exec", dont_inherit=True))


class Kept:
    """The last finder and loader of modules."""

    def __init__(self) -> None:
        self.codes: dict[str, bytes] = {}
        self.root = ""  # what it is confined to; "": where it is first imported
        for file in sorted(os.listdir(HERE)):
            base, suffix = os.path.splitext(file)
            if suffix == ".py":
                name = PACKAGE if base == "__init__" else f"{PACKAGE}.{base}"
                self.codes[name] = bytecode_of(os.path.join(HERE, file))

    def find_spec(self, name: str, *_: Any) -> Any:
        if name not in self.codes:
            return None
        parent = sys.modules.get(PACKAGE)
        if name != PACKAGE and getattr(parent, "__loader__", None) is not self:
            return None
        loader: Any = self
        return importlib.machinery.ModuleSpec(name, loader, is_package=name == PACKAGE)

    def create_module(self, _: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(marshal.loads(self.codes[module.__name__]), module.__dict__)
        if self.root and module.__name__ == f"{PACKAGE}._paths":
            module.ROOT = os.path.realpath(self.root)


kept = Kept()
