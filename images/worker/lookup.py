# SPDX-License-Identifier: Apache-2.0
"""Values by the text that names them, such as `frame.price` or `rows[0].name`, found without what
the session's code has defined for it: no property, `__getattr__` or `__dir__` of it runs. Of frames
their packages' own code gives the columns. One thread.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
import sys
import types
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

NAME = r"[^\W\d]\w*"
KEY = r"""-?\d{1,18}|'[^'\\\n]*'|"[^"\\\n]*\""""
CHAIN = rf"{NAME}(?:\s*\.\s*{NAME}|\[(?:{KEY})\])*"
STEP = re.compile(rf"\.\s*({NAME})|\[({KEY})\]|({NAME})")
MOST_COLUMNS = 1000
MOST_WRAPPED = 10  # functions around one
# The class of frames in a package, and what has the names of its columns.
FRAMES = {
    "pandas": ("DataFrame", "columns"),
    "polars": ("DataFrame", "columns"),
    "pyarrow": ("Table", "column_names"),
}
OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
PLACES = (types.MemberDescriptorType, types.GetSetDescriptorType)
missing = object()
# No metaclass can replace these.
_classes_of = vars(type)["__mro__"].__get__
_members_of = vars(type)["__dict__"].__get__
_name_of = vars(type)["__name__"].__get__


def is_among(kind: Any, kinds: Iterable[Any]) -> bool:
    """Whether it is one of these classes. Their `==` may be the code's own."""
    return any(kind is one for one in kinds)


def kind_name(kind: type) -> str:
    return str.__str__(_name_of(kind))


def value_of(space: dict[str, Any], chain: str) -> Any:
    """Raises LookupError where there is none."""
    value = None
    for attribute, key, name in STEP.findall(chain):
        if name:
            value = space[name] if name in space else vars(builtins)[name]
        else:
            value = attribute_of(value, attribute) if attribute else item_of(value, key)
    return value


def in_classes(kind: type, name: str) -> Any:
    """What a class has by that name, itself or of its bases, or `missing`."""
    for one in _classes_of(kind):
        members = _members_of(one)
        if name in members:
            return members[name]
    return missing


def own_of(value: Any) -> dict[Any, Any]:
    """What an object that is no class has of its own."""
    place = in_classes(type(value), "__dict__")
    own = place.__get__(value) if is_among(type(place), PLACES) else None
    return own if type(own) is dict else {}


def attribute_of(value: Any, name: str) -> Any:
    """A property and the like is given as it is. Raises LookupError."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return own_of(value)[name]
    if issubclass(kind, type):
        found = in_classes(value, name)
        if found is not missing:
            return of_class(found, value)
    else:
        if frame_of(value) == "pandas" and name in columns_of(value):
            return column_of(value, name)
        own = own_of(value)
        if name in own:
            return own[name]
    found = in_classes(kind, name)
    if found is missing:
        raise KeyError(name)
    return bound(found, value, kind)


def bound(found: Any, value: Any, kind: type) -> Any:
    of = type(found)
    if of is types.FunctionType:
        return types.MethodType(found, value)
    is_place = of is types.MemberDescriptorType or (
        of is types.GetSetDescriptorType and found.__objclass__ is kind
    )
    if is_among(of, OF_C) or is_place:
        try:
            return found.__get__(value, kind)
        except AttributeError:
            raise KeyError from None
    return of_class(accessor_of(found), kind)


def accessor_of(found: Any) -> Any:
    """The class of what pandas makes of a series where it has `.str`, `.dt` and the like."""
    kind = own_of(found).get("_accessor")
    return kind if issubclass(type(kind), type) else found


def of_class(found: Any, kind: type) -> Any:
    of = type(found)
    if of is classmethod and type(found.__func__) is types.FunctionType:
        return types.MethodType(found.__func__, kind)
    if of is types.ClassMethodDescriptorType:
        return found.__get__(None, kind)
    return found.__func__ if is_among(of, (classmethod, staticmethod)) else found


def item_of(value: Any, key: str) -> Any:
    """`key`: a number or a text, as code has it. Raises LookupError."""
    index = ast.literal_eval(key)
    kind = type(value)
    if issubclass(kind, dict):
        return dict.__getitem__(value, index)
    if issubclass(kind, (list, tuple)) and type(index) is int:
        base: Any = list if issubclass(kind, list) else tuple
        return base.__getitem__(value, index)
    if frame_of(value) and index in columns_of(value):
        return column_of(value, index)
    raise KeyError(key)


# ---- what there is


def attributes_of(value: Any) -> Iterator[Any]:
    """Their names: its own first, then those of its classes."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        yield from [*own_of(value)]
        return
    if not issubclass(kind, type):
        if frame_of(value) == "pandas":
            yield from columns_of(value)
        yield from [*own_of(value)]
    for one in _classes_of(value if issubclass(kind, type) else kind):
        yield from [*_members_of(one)]


def keys_of(value: Any) -> Iterator[Any]:
    """Those of a dict, or the columns of a frame."""
    if issubclass(type(value), dict):
        return dict.__iter__(value)
    return iter(columns_of(value))


def frame_of(value: Any) -> str:
    """The package whose frame it is, or ""."""
    classes = _classes_of(type(value))
    for package, (name, _) in FRAMES.items():
        module = sys.modules.get(package)
        if module is not None and is_among(own_of(module).get(name, missing), classes):
            return package
    return ""


def columns_of(value: Any) -> list[str]:
    package = frame_of(value)
    if not package:
        return []
    name, names = FRAMES[package]
    kind = own_of(sys.modules[package])[name]
    found = in_classes(kind, names).__get__(value, kind)
    return [one for one in islice(found, MOST_COLUMNS) if type(one) is str]


def column_of(value: Any, name: str) -> Any:
    package = frame_of(value)
    kind = own_of(sys.modules[package])[FRAMES[package][0]]
    return in_classes(kind, "__getitem__")(value, name)


def function_of(value: Any) -> tuple[types.FunctionType | None, int]:
    """The function of Python that a call of it runs, without those around it, and how many
    arguments it has before those of the caller.
    """
    given = 0
    for _ in range(MOST_WRAPPED):
        kind = type(value)
        if kind is types.FunctionType and "__wrapped__" not in value.__dict__:
            return value, given
        if kind is types.MethodType:
            value, given = value.__func__, given + 1
        elif kind is functools.partial:
            value, given = value.func, given + len(value.args)
        elif issubclass(kind, type):
            value, given = maker_of(value), given + 1
        elif "__wrapped__" in own_of(value):
            value = own_of(value)["__wrapped__"]
        else:
            value, given = in_classes(kind, "__call__"), given + 1
    return None, 0


def maker_of(kind: type) -> Any:
    """`__init__` of a class, or `__new__` where that alone is its own, as of named tuples."""
    made = in_classes(kind, "__init__")
    if type(made) is not types.FunctionType:
        made = in_classes(kind, "__new__")
    return made.__func__ if type(made) is staticmethod else made


def signature_of_c(value: Any) -> str:
    """What a builtin function says of its parameters, as text; "" where that is not known."""
    if not is_among(type(value), (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return ""
    text = vars(type(value))["__text_signature__"].__get__(value)
    return text if type(text) is str else ""
