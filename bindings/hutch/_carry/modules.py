# SPDX-License-Identifier: Apache-2.0
"""The caller's own packages for `modules=`: names and files, as they will be importable inside.

Pure reading; nothing is imported but what is named as a module that is not loaded yet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

_LIMIT = 64 << 20  # bytes in all: they travel with the pool's specification
_SKIPPED = ("__pycache__", ".")  # how a name begins; hidden files are of tools, or hold secrets


def names_of(items: Iterable[Any]) -> frozenset[str]:
    """The top-level names under which the items will be importable."""
    return frozenset(os.path.basename(_place(item)).removesuffix(".py") for item in items)


def files_of(items: Iterable[Any]) -> dict[str, bytes]:
    """Relative path to content. Raises ValueError for what is not a module, or is too large."""
    files: dict[str, bytes] = {}
    size = 0
    for item in items:
        place = _place(item)
        for path, relative in _walk(place):
            with open(path, "rb") as file:
                content = file.read()
            size += len(content)
            if size > _LIMIT:
                raise ValueError(
                    f"modules= holds more than {_LIMIT >> 20} MiB, with {path}: "
                    "pass large data by mounts="
                )
            files[relative] = content
    return files


def _walk(place: str) -> Iterable[tuple[str, str]]:
    top = os.path.basename(place)
    if os.path.islink(place) and (
        not _is_source(place) or _leads_away(place, os.path.dirname(place))
    ):
        raise ValueError(
            f"modules= has {place!r}, a link to {os.path.realpath(place)!r}, which is hidden or "
            "not Python source: name the file or directory itself"
        )
    if os.path.isfile(place):
        yield place, top
        return
    for directory, directories, files in os.walk(place):
        directories[:] = sorted(name for name in directories if not name.startswith(_SKIPPED))
        for name in sorted(files):
            path = os.path.join(directory, name)
            if name.startswith(_SKIPPED) or name.endswith((".pyc", ".pyo")):
                continue
            if os.path.isfile(path) and not (os.path.islink(path) and _leads_away(path, place)):
                yield path, os.path.join(top, os.path.relpath(path, place))


def _leads_away(link: str, place: str) -> bool:
    """Whether a link in `place` is to something that does not travel by itself: a hidden file, or
    one outside that is not source. The author of a package may not be allowed to read what the
    caller may."""
    target, base = os.path.realpath(link), os.path.realpath(place)
    parts = os.path.relpath(target, base).split(os.sep)
    if any(part.startswith(".") for part in parts if part != ".."):
        return True
    return ".." in parts and not _is_source(link)


def _is_source(link: str) -> bool:
    """Whether it is a link to a directory, or to Python source under a name that says so."""
    target = os.path.realpath(link)
    return os.path.isdir(target) or (link.endswith(".py") and target.endswith(".py"))


def _place(item: Any) -> str:
    """The directory of a package, or the file of a module; always of a top-level one."""
    if isinstance(item, ModuleType):
        return _place_of_name(item.__name__)
    text: str = os.fspath(item)
    looks_like_name = isinstance(item, str) and all(p.isidentifier() for p in text.split("."))
    if looks_like_name and not os.path.isdir(text):
        return _place_of_name(text)
    place = os.path.abspath(text)
    if os.path.isdir(place) or (os.path.isfile(place) and place.endswith(".py")):
        name = os.path.basename(place).removesuffix(".py")
        if not name.isidentifier():
            raise ValueError(f"modules= has {text!r}, whose name cannot be imported: rename it")
        return place
    raise ValueError(
        f"modules= has {text!r}, which is neither a package's directory nor a .py file"
    )


def _place_of_name(name: str) -> str:
    import importlib.util

    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        raise ValueError(f"modules= has {top!r}, which is part of Python and always there")
    module = sys.modules.get(top)
    file = getattr(module, "__file__", None)
    paths: list[str] = list(getattr(module, "__path__", ()))
    if module is None:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise ValueError(f"modules= has {name!r}, but no such module is installed here")
        file, paths = spec.origin, list(spec.submodule_search_locations or ())
    if paths:
        return os.path.abspath(paths[0])
    if isinstance(file, str) and file.endswith(".py"):
        return os.path.abspath(file)
    raise ValueError(
        f"modules= has {name!r}, which is not Python source: name its package in dependencies="
    )
