# SPDX-License-Identifier: Apache-2.0
"""Makes the function of a call of what came for it, as a pickle, as code or as text."""

from __future__ import annotations

import builtins
import functools
import marshal
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import failures
from _hutch_cell import MARSHAL  # type: ignore[import-not-found,unused-ignore]

NO_TOOLS: Mapping[str, Any] = {}
BY_VALUE = "What came by value of a module that is not here."
MOST_LOOKED_INTO = 1024  # functions, and modules by value
CACHED = type(functools.lru_cache(int))  # what a function with a cache is
COROUTINE = 0x80  # CO_COROUTINE of a code object's flags

_loads = pickle.loads
_builtins = vars(builtins)


def function_of(code: Any, tools: Mapping[str, Any] = NO_TOOLS) -> Any:
    """What the call of a function calls. `tools`: what its globals get, where they have none."""
    if code[0] != MARSHAL:
        try:
            function = _loads(code)
        except Exception as error:
            failures.not_loaded[:] = [error]
            raise
        publish(function)
        if tools and isinstance(function, types.FunctionType):
            add_names(function.__globals__, tools)
        return called(function)
    body, space, defaults = marshal.loads(memoryview(code)[1:])
    space["__builtins__"] = _builtins
    add_names(space, tools)
    return types.FunctionType(body, space, None, defaults)


def add_names(space: dict[str, Any], names: Mapping[str, Any]) -> None:
    for name, value in names.items():
        space.setdefault(name, value)


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is called for it: a coroutine function is run to its end."""
    if not getattr(getattr(function, "__code__", None), "co_flags", 0) & COROUTINE:
        return function
    import asyncio

    return lambda *args, **kwargs: asyncio.run(function(*args, **kwargs))


def define(source: str, name: str, filename: str, tools: Mapping[str, Any]) -> Any:
    """The function of that name, after the text ran once as a module that is not `__main__`."""
    source = source.removeprefix(failures.MARK)
    failures.remember_source(filename, source)
    module = types.ModuleType("program")
    module.__file__ = filename
    sys.modules["program"] = module
    add_names(module.__dict__, tools)
    exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
    try:
        return module.__dict__[name]
    except KeyError:
        raise NameError(f"the source defines no {name!r}") from None


def publish(function: Any) -> None:
    """What came by value stands in its module under its own name, so that it can be pickled by
    that name, as it is where a child process was forked. It is found in what functions refer to,
    and in modules by value and classes that are found there.
    """
    waiting: list[Any] = [function]
    seen: dict[int, Any] = {}
    while waiting and len(seen) < MOST_LOOKED_INTO:
        space = waiting.pop()
        if id(space) in seen:
            continue
        seen[id(space)] = space
        if type(space) is not dict:
            around = getattr(space, "__globals__", None)
            if type(around) is not dict or is_of_import(around):
                continue
            waiting.append(around)
            space = closure_of(space)
        for name, value in list(space.items()):
            if type(value) is types.ModuleType:
                if not is_of_import(vars(value)):
                    waiting.append(vars(value))
                continue
            if isinstance(value, types.FunctionType):
                waiting.append(value)
            elif isinstance(value, CACHED):
                waiting.append(getattr(value, "__wrapped__", None))
            elif not isinstance(value, type):
                continue
            if value.__qualname__ != name or type(value.__module__) is not str:
                continue
            module = module_by_value(value.__module__)
            if module is not None:
                setattr(module, name, value)
                # A new interpreter would look for __main__'s.
                if space.get("__name__") == value.__module__ != "__main__" and "__file__" in space:
                    module.__dict__.setdefault("__file__", space["__file__"])
                if isinstance(value, type):
                    waiting += [one for one in map(method_of, vars(value).values()) if one]


def is_of_import(space: dict[str, Any]) -> bool:
    """Whether these are the globals of a module that was imported."""
    module = sys.modules.get(str(space.get("__name__")))
    return getattr(module, "__dict__", None) is space


def closure_of(function: Any) -> dict[str, Any]:
    """What a function refers to of those around it."""
    if not isinstance(function, types.FunctionType):
        return {}
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            pass  # not assigned yet
    return found


def method_of(value: Any) -> types.FunctionType | None:
    """The function that stands in a class as this."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    return value if isinstance(value, types.FunctionType) else None


def module_by_value(name: str) -> types.ModuleType | None:
    """`__main__`, or a module of that name that is made here with its parents; None: there is one
    that was imported.
    """
    module = sys.modules.get(name)
    if module is None:
        module = sys.modules[name] = types.ModuleType(name, BY_VALUE)
        parent, _, last = name.rpartition(".")
        above = module_by_value(parent) if parent else None
        if above is not None:
            above.__dict__.setdefault("__path__", [])
            above.__dict__.setdefault(last, module)
    return module if name == "__main__" or module.__doc__ is BY_VALUE else None
