# SPDX-License-Identifier: Apache-2.0
"""Packages of which single modules are wanted, and of the rest nothing: it needs torch."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path


def bare(*names: str) -> None:
    """Makes each a package that imports nothing itself, and finds its modules where they are. The
    first is the outermost.
    """
    found = importlib.util.find_spec(names[0])
    assert found is not None and found.submodule_search_locations, f"there is no {names[0]}"
    for name in names:
        module = types.ModuleType(name)
        below = name.split(".")[1:]
        module.__path__ = [
            str(Path(place).joinpath(*below)) for place in found.submodule_search_locations
        ]
        sys.modules[name] = module
        if below:
            setattr(sys.modules[name.rpartition(".")[0]], below[-1], module)
