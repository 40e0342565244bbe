# SPDX-License-Identifier: Apache-2.0
"""What the caller's annotations say of a result: which classes it may hold.

`named_types` computes the closed set in which the decoder looks names up. Annotations are read
leniently: what cannot be resolved is taken for `Any`. Nothing here is imported but typing.
"""

from __future__ import annotations

import collections
import sys
import types
import typing
from typing import Any, Callable, Iterable

_ARGUMENT_ITEMS = 10_000  # values looked at among the arguments, and annotations visited
_MOST_KEPT = 1024  # classes and annotations of which something is remembered
UNION = {typing.Union, getattr(types, "UnionType", typing.Union)}


def return_annotation(
    function: Callable[..., Any], local_names: dict[str, Any] | None = None
) -> Any:
    """The resolved return annotation, or Any where there is none or it cannot be resolved.
    `local_names`: what was in scope where the function was defined, if that was inside another one.
    """
    raw = getattr(function, "__annotations__", {}).get("return", Any)
    names = {**getattr(function, "__globals__", {}), **(local_names or {}), **_free_names(function)}
    return resolved(raw, names)


def resolved(hint: Any, names: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["hint"]
    except Exception:
        return Any if isinstance(hint, str) else hint


def _free_names(function: Callable[..., Any]) -> dict[str, Any]:
    """What the function closes over: its annotation may name local classes."""
    found = {}
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    for name, cell in zip(code.co_freevars if code else (), cells or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            pass  # not yet assigned
    return found


_hints: dict[type, dict[str, Any]] = {}


def field_hints(kind: type, anew: bool = False) -> dict[str, Any]:
    """The resolved annotations of a class's fields; Any for what cannot be resolved. `anew`: what
    they name may have been defined since they were resolved.
    """
    fields = getattr(kind, "model_fields", None)
    if type(fields) is dict:
        return {
            name: getattr(field, "annotation", Any) for name, field in fields.items()
        }  # pydantic resolved them
    known = None if anew else _hints.get(kind)
    if known is None:
        known = _resolved_fields(kind)
        if len(_hints) >= _MOST_KEPT:
            _hints.clear()
        _hints[kind] = known
    return known


def _resolved_fields(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:
        merged: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            names = {**vars(sys.modules.get(base.__module__, typing)), kind.__name__: kind}
            for name, hint in base.__dict__.get("__annotations__", {}).items():
                merged[name] = resolved(hint, names)
        return merged


def wire_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def is_named(kind: type) -> bool:
    """Whether a class travels by name: an enum, dataclass, NamedTuple or pydantic model."""
    enum, pydantic = sys.modules.get("enum"), sys.modules.get("pydantic")
    return (
        any("__dataclass_fields__" in vars(base) for base in kind.__mro__)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        or (enum is not None and issubclass(kind, enum.Enum))
        or (pydantic is not None and issubclass(kind, pydantic.BaseModel))
    )


def is_record(kind: type) -> bool:
    """Whether it is a class of named fields: a dataclass, NamedTuple or pydantic model."""
    enum = sys.modules.get("enum")
    return is_named(kind) and not (enum is not None and issubclass(kind, enum.Enum))


def record_fields(value: Any) -> Iterable[tuple[str, Any]]:
    """Names and values of a record's fields."""
    if isinstance(value, tuple):
        return zip(getattr(value, "_fields", ()), value)
    fields = getattr(type(value), "model_fields", None)
    names = value.__dataclass_fields__ if fields is None else fields
    return ((name, getattr(value, name, None)) for name in names)


def named_types(annotation: Any, args: Iterable[Any] = ()) -> dict[str, type]:
    """The classes that a result may hold, by "module.qualname": those that the (resolved)
    annotation reaches, also through fields, and those of the arguments and of what the arguments
    hold.
    """
    found: dict[str, type] = {}
    _from_annotation(annotation, found)
    for kind in _classes_in(args):
        _from_annotation(kind, found)
    return found


def _from_annotation(annotation: Any, found: dict[str, type]) -> None:
    queue = [annotation]
    seen: set[int] = set()
    while queue and len(seen) < _ARGUMENT_ITEMS:
        hint = queue.pop()
        if id(hint) in seen:
            continue
        seen.add(id(hint))
        if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
            if is_named(hint):
                found[wire_name(hint)] = hint
                queue.extend(field_hints(hint, anew=True).values())
            elif is_typed_dict(hint):
                queue.extend(field_hints(hint, anew=True).values())
            pydantic_generic = getattr(hint, "__pydantic_generic_metadata__", None)
            if type(pydantic_generic) is dict:
                queue.extend(pydantic_generic.get("args", ()))
            continue
        if hasattr(hint, "__value__"):
            queue.append(hint.__value__)  # type X = …
        if hasattr(hint, "__supertype__"):
            queue.append(hint.__supertype__)
        if isinstance(hint, typing.TypeVar):
            queue.extend([hint.__bound__, *hint.__constraints__])
            continue
        if typing.get_origin(hint) is typing.Literal:
            queue.extend(type(value) for value in typing.get_args(hint))
            continue
        queue.append(typing.get_origin(hint))
        for argument in typing.get_args(hint):
            queue.extend(argument if isinstance(argument, list) else [argument])


def _classes_in(args: Iterable[Any]) -> list[type]:
    """The named classes among the arguments, looking into plain containers and named values, up to
    a bound.
    """
    queue = collections.deque(args)
    classes: dict[type, None] = {}
    seen: set[int] = set()
    looked = 0
    while queue and looked < _ARGUMENT_ITEMS:
        value = queue.popleft()
        looked += 1
        kind = type(value)
        if kind in (list, tuple, set, frozenset, dict):
            if id(value) not in seen:
                seen.add(id(value))
                room = _ARGUMENT_ITEMS - looked
                for i, item in enumerate(value):
                    if i >= room:
                        break
                    queue.append(item)
                    if kind is dict:
                        queue.append(value[item])
        elif isinstance(value, type):
            if is_named(value):
                classes[value] = None
        elif kind not in (int, float, str, bytes, bool, type(None)) and is_named(kind):
            classes[kind] = None
            if id(value) not in seen:
                seen.add(id(value))
                fields = (
                    value if isinstance(value, tuple) else getattr(value, "__dict__", {}).values()
                )
                queue.extend(fields)
    return list(classes)


def is_typed_dict(kind: Any) -> bool:
    return hasattr(kind, "__total__") and hasattr(kind, "__required_keys__")


# Whether an annotation names a class that travels by name, by its id; it is kept with the answer.
_naming: dict[int, tuple[Any, bool]] = {}


def names_any(annotation: Any) -> bool:
    known = _naming.get(id(annotation))
    if known is None:
        if len(_naming) >= _MOST_KEPT:
            _naming.clear()
        known = _naming[id(annotation)] = (annotation, bool(named_types(annotation)))
    return known[1]
