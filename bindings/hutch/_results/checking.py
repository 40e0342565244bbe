# SPDX-License-Identifier: Apache-2.0
"""Whether a result is what its annotation promised. What cannot be judged is taken for `Any`."""

from __future__ import annotations

import collections
import collections.abc
import itertools
import sys
import typing
from typing import Any, Iterable

from hutch._results.types import UNION, field_hints, is_named, is_typed_dict, names_any

_CONTAINERS = (list, tuple, set, frozenset, dict)
_DICTS = {dict, collections.OrderedDict, collections.defaultdict, collections.Counter}
_DICTS |= {collections.abc.Mapping, collections.abc.MutableMapping}


class AnnotationMismatch(TypeError):
    """A value is not what its annotation says: `path` (like `result["rows"][2]`), `expected`,
    `got` (in words) and the name of its type; `named`: whether the annotation at that place names a
    class that travels by name.
    """

    def __init__(
        self, path: str, expected: str, got: str, type_name: str, named: bool = False
    ) -> None:
        super().__init__(f"{path} is {got}, annotated {expected}")
        self.path = path
        self.expected = expected
        self.got = got
        self.type_name = type_name
        self.named = named


def check(value: Any, annotation: Any, path: str = "result", raw_enums: bool = False) -> None:
    """Raises AnnotationMismatch where `value` is not of the (resolved) annotation. `raw_enums`: an
    enum's value may stand for its member.
    """
    fault = _Judge(raw_enums).fault(value, annotation)
    if fault is not None:
        raise fault.error_at(path)


class _Fault:
    """A value that is not what was promised: made for every choice of a union that does not fit, so
    put into words only for the one that is raised.
    """

    __slots__ = ("value", "expected", "got", "steps")

    def __init__(self, value: Any, expected: Any, got: str = "") -> None:
        self.value = value
        self.expected = expected
        self.got = got
        self.steps: list[tuple[str, Any, int]] = []  # how to come to it, the innermost first

    def error_at(self, path: str) -> AnnotationMismatch:
        path += "".join(_step(*step) for step in reversed(self.steps))
        name = type(self.value).__name__
        expected = _shown(self.expected)
        if self.got:
            return AnnotationMismatch(path, expected, self.got, name)
        article = "an" if name[0] in "aeiouAEIOU" else "a"
        got = "None" if self.value is None else f"{article} {name}"
        return AnnotationMismatch(path, expected, got, name, names_any(self.expected))


def _step(kind: str, container: Any, place: int) -> str:
    if kind == "item":
        return f"[{place}]"
    if kind == "key":
        return ".keys()"
    key = next(itertools.islice(container, place, None))
    return f"[{_quoted(key)}]"


class _Judge:
    """Finds where one value is not what was promised, in time proportional to its size: nothing is
    put into words on the way, and no container is judged twice against one choice of a union.
    """

    def __init__(self, raw_enums: bool) -> None:
        self._raw_enums = raw_enums
        # What is known of the containers inside a container that a union is tried on.
        self._known: dict[tuple[int, int], tuple[Any, bool]] | None = None

    def fault(self, value: Any, annotation: Any) -> _Fault | None:
        if (
            annotation is Any
            or annotation is object
            or isinstance(annotation, (str, typing.ForwardRef))
        ):
            return None
        if annotation is None or annotation is type(None):
            return None if value is None else _Fault(value, annotation)
        origin = typing.get_origin(annotation)
        if origin is None:
            return self._plain(value, annotation, annotation)
        if origin in UNION:
            return self._union(value, annotation)
        if origin is typing.Literal:
            return self._literal(value, annotation)
        if origin is typing.Annotated or not isinstance(origin, type):
            # Annotated, Final, ClassVar, Required, NotRequired, ReadOnly: what they wrap; a generic
            # `type X[T] = …`: no more.
            arguments = typing.get_args(annotation)
            if arguments and not hasattr(origin, "__value__"):
                return self.fault(value, arguments[0])
            return None
        return self._generic(value, origin, annotation)

    def _union(self, value: Any, annotation: Any) -> _Fault | None:
        outermost = self._known is None
        if self._known is None:
            self._known = {}
        place = (id(value), id(annotation))
        known = self._known.get(place)
        if known is None:
            fits = any(self.fault(value, choice) is None for choice in annotation.__args__)
            if isinstance(value, _CONTAINERS) and not outermost:
                # With the annotation, so that no other one gets its id.
                self._known[place] = (annotation, fits)
        else:
            fits = known[1]
        if outermost:
            self._known = None
        return None if fits else _Fault(value, annotation)

    def _literal(self, value: Any, annotation: Any) -> _Fault | None:
        for x in typing.get_args(annotation):
            if type(value) is type(x) and value == x:
                return None
            if self._raw_enums and _is_raw(value) and _is_enum(type(x)) and value == x.value:
                return None
        return _Fault(value, annotation)

    def _generic(self, value: Any, origin: type, annotation: Any) -> _Fault | None:
        arguments = typing.get_args(annotation)
        if origin is tuple:
            return self._tuple(value, annotation, arguments)
        fault = self._plain(value, origin, annotation)
        if fault is not None:
            return fault
        kind = type(value)
        if origin in _DICTS and kind is dict:
            key_hint = arguments[0] if arguments else Any
            of_counter = origin is collections.Counter
            value_hint = int if of_counter else arguments[-1] if arguments else Any
            return self._items(value, key_hint, "key", value) or self._items(
                value.values(), value_hint, "value", value
            )
        if kind in (list, tuple, set, frozenset) and len(arguments) == 1:
            return self._items(value, arguments[0], "item", value)
        return None  # fields of a generic class of the user's own were checked as it was built

    def _tuple(self, value: Any, annotation: Any, arguments: tuple[Any, ...]) -> _Fault | None:
        if not isinstance(value, tuple):
            return _Fault(value, annotation)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return self._items(value, arguments[0], "item", value)
        if arguments == ((),):
            arguments = ()  # how tuple[()] is written before Python 3.11
        unpack = getattr(typing, "Unpack", None)
        if any(typing.get_origin(hint) is unpack for hint in arguments if hint is not None):
            return None
        if len(value) != len(arguments):
            return _Fault(value, annotation, f"a tuple of {len(value)} items")
        for i, (item, hint) in enumerate(zip(value, arguments)):
            fault = self.fault(item, hint)
            if fault is not None:
                fault.steps.append(("item", value, i))
                return fault
        return None

    def _items(self, values: Iterable[Any], hint: Any, step: str, container: Any) -> _Fault | None:
        if hint is Any or hint is object or isinstance(hint, typing.TypeVar):
            return None
        # At C speed: most containers hold few types, and most hints are plain classes.
        sure = _sure(hint)
        if sure and sure.issuperset(map(type, values)):
            return None
        for i, value in enumerate(values):
            if type(value) not in sure:
                fault = self.fault(value, hint)
                if fault is not None:
                    fault.steps.append((step, container, i))
                    return fault
        return None

    def _plain(self, value: Any, annotation: Any, shown: Any) -> _Fault | None:
        """Against a class, or something that is not one: a TypeVar, a NewType, an alias."""
        if isinstance(annotation, typing.TypeVar):
            bound = annotation.__bound__
            return None if bound is None else self.fault(value, bound)
        if not isinstance(annotation, type):
            for wrapped in ("__supertype__", "__value__"):
                if hasattr(annotation, wrapped):
                    return self.fault(value, getattr(annotation, wrapped))
            if annotation is getattr(typing, "LiteralString", str):
                annotation = str
            elif annotation in (getattr(typing, "NoReturn", None), getattr(typing, "Never", None)):
                return _Fault(value, shown)
            else:
                return None
        if is_typed_dict(annotation):
            return self._typed_dict(value, annotation)
        if _is_instance(value, annotation):
            return None
        if self._raw_enums and _is_raw(value) and _is_enum(annotation):
            return None
        return _Fault(value, shown)

    def _typed_dict(self, value: Any, annotation: Any) -> _Fault | None:
        if type(value) is not dict:
            return _Fault(value, annotation)
        hints = field_hints(annotation)
        for key in annotation.__required_keys__:
            if key not in value:
                return _Fault(value, annotation, f"a dict without {key!r}")
        for i, (key, item) in enumerate(value.items()):
            if key in hints:
                fault = self.fault(item, hints[key])
                if fault is not None:
                    fault.steps.append(("value", value, i))
                    return fault
            elif getattr(annotation, "__pydantic_config__", {}).get("extra") != "allow":
                return _Fault(value, annotation, f"a dict with {_quoted(key)}")
        return None


def _sure(hint: Any) -> frozenset[type]:
    """Classes whose direct instances are of the annotation, whatever they hold."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = hint.__origin__
    if hint is None:
        return frozenset((type(None),))
    choices = hint.__args__ if typing.get_origin(hint) in UNION else (hint,)
    return frozenset(
        choice
        for choice in choices
        if isinstance(choice, type)
        and typing.get_origin(choice) is None
        and not is_typed_dict(choice)
    )


def _is_enum(kind: type) -> bool:
    enum = sys.modules.get("enum")
    return enum is not None and isinstance(kind, type) and issubclass(kind, enum.Enum)


def _is_raw(value: Any) -> bool:
    return type(value) in (str, int, float, bytes, bool)


def _quoted(key: Any) -> str:
    if type(key) is str and key[:80].isprintable() and '"' not in key[:80]:
        return f'"{key[:80]}"'
    is_short = type(key) in (str, bool) or (type(key) is int and key.bit_length() <= 64)
    return repr(key if type(key) is not str else key[:80])[:80] if is_short else "…"


def _is_instance(value: Any, kind: type) -> bool:
    try:
        if isinstance(value, kind):
            return True
    except TypeError:
        return True  # a protocol that cannot be asked
    # What PEP 484 lets stand for one another, also as numpy has it; and what only changed its class
    # on the way.
    numpy = sys.modules.get("numpy")
    if kind in (float, complex) and isinstance(value, (int, float)):
        return True
    if numpy is not None and isinstance(value, numpy.generic):
        wider = {
            int: numpy.integer,
            float: (numpy.integer, numpy.floating),
            complex: numpy.number,
            bool: numpy.bool_,
        }
        return isinstance(value, wider.get(kind, ()))
    if kind in _DICTS:
        return type(value) is dict
    if kind.__name__ == "Parameter" and kind.__module__.startswith("torch."):
        return type(value).__name__ == "Tensor" and type(value).__module__ == "torch"
    pathlib = sys.modules.get("pathlib")
    if pathlib is not None and isinstance(value, pathlib.PurePath):
        return issubclass(kind, pathlib.PurePath)
    if kind.__module__.split(".")[0] == "pydantic" and not is_named(kind):
        return True  # a name for a constraint, as AwareDatetime: pydantic judges it
    if kind is getattr(typing, "Protocol", None) or getattr(kind, "_is_protocol", False):
        return True
    # A generator or iterator's items, which travel as a list only if the function made one, are no
    # match.
    return False


def _shown(annotation: Any) -> str:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation.__name__
    return repr(annotation).replace("typing.", "")[:200]
