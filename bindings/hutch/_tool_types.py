# SPDX-License-Identifier: Apache-2.0
"""Annotations of tools: what each is called, and the Kind that checks and builds its arguments."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

from hutch._results.types import is_typed_dict
from hutch._tool_classes import Adapted, Checked, Model, Models, Record
from hutch._tool_kinds import (
    ARRAYS,
    Array,
    ByText,
    Choice,
    FixedTuple,
    Kind,
    Mapping,
    Plain,
    Union,
)

_ALLOWED = (
    "take str, int, float, bool, None, bytes, datetime, date, time, Decimal, UUID, Path or Any; "
    "list, tuple, set and dict of these; Literal, unions, enums, dataclasses, TypedDicts and "
    "pydantic models"
)
_ABSTRACT: dict[Any, type] = {
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}
_WRAPPERS = ("Required", "NotRequired", "ReadOnly")  # of a TypedDict's fields
# Metadata of annotated_types that pydantic checks; it passes over others in silence.
_BOUNDS = {"Gt", "Ge", "Lt", "Le", "Interval", "MultipleOf", "MinLen", "MaxLen", "Len", "Predicate"}


def kind_of(annotation: Any, where: str) -> Kind:
    """Raises TypeError for an annotation by which nothing can be checked. `where`: its place, for
    that.
    """
    return _Making(where).kind(annotation)


class _Making:
    """Of the Kind of one annotation."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._open: list[Any] = []  # classes whose fields are being made

    def kind(self, annotation: Any) -> Kind:
        found = bare(annotation)
        if typing.get_origin(found) is typing.Annotated:
            return self._annotated(found)
        if found is Any:
            return Kind()
        if found is None:
            found = type(None)
        origin, args = typing.get_origin(found), typing.get_args(found)
        if is_union(found):
            return self._union(args)
        if origin is Literal:
            return Choice(found)
        wanted = _ABSTRACT.get(origin or found, origin or found)
        if wanted in ARRAYS:
            return self._array(wanted, args)
        if wanted is dict:
            if args and bare(args[0]) not in (str, Any):
                raise TypeError(f"{self._where}: the keys of a dict must be annotated as str")
            return Mapping(self.kind(args[1]) if args else Kind(), bool(args))
        if isinstance(found, type):
            return self._class(found)
        raise self._refused(found)

    def _union(self, choices: tuple[Any, ...]) -> Kind:
        models = [one for one in choices if is_model(bare(one))]
        if len(models) < 2:
            return Union([self.kind(one) for one in choices])
        for one in models:
            self.kind(one)
        together = self._checked(lambda: Models(typing.Union[tuple(models)], models))
        others = [self.kind(one) for one in choices if one not in models]
        return Union([together, *others]) if others else together

    def _array(self, make: Any, args: tuple[Any, ...]) -> Kind:
        items = [self.kind(one) for one in args if one is not Ellipsis]
        if make is tuple and items and Ellipsis not in args:
            return FixedTuple(items)
        return Array(make, items[0] if items else Kind(), bool(items))

    def _class(self, kind: Any) -> Kind:
        if kind in Plain.names:
            return Plain(kind)
        if kind in ByText.kinds:
            return ByText(kind)
        if issubclass(kind, enum.Enum):
            return Choice(kind)
        try:
            if is_model(kind):
                return Model(kind)
            if is_typed_dict(kind) or dataclasses.is_dataclass(kind):
                return self._record(kind)
            if hasattr(kind, "__get_pydantic_core_schema__"):
                return Adapted(kind)
        except TypeError as error:
            raise self._at(error) from None
        raise self._refused(kind)

    def _record(self, kind: Any) -> Kind:
        if kind in self._open:
            raise TypeError(
                f"{kind.__name__} holds itself, which is not supported: make it a pydantic model"
            )
        self._open.append(kind)
        record = Record(kind)
        for name, (annotation, is_required) in fields_of(kind).items():
            record.fields[name] = (self.kind(annotation), is_required)
            record.descriptions[name] = description_of(annotation)
        self._open.pop()
        return record

    def _annotated(self, annotation: Any) -> Kind:
        of, *metadata = typing.get_args(annotation)
        checks = [one for one in metadata if self._is_check(one)]
        if not checks:
            return self.kind(of)
        if any(getattr(one, "discriminator", None) is not None for one in checks):
            choices = typing.get_args(of)
            return self._checked(lambda: Models(annotation, choices))
        inner = self.kind(of)
        return self._checked(lambda: Checked(inner, of, checks))

    def _checked(self, make: Callable[[], Kind]) -> Kind:
        """By pydantic."""
        try:
            return make()
        except ImportError:
            raise TypeError(
                f"{self._where}: its Annotated[…] is checked by pydantic, which is not installed"
            ) from None
        except TypeError as error:
            raise self._at(error) from None

    def _is_check(self, one: Any) -> bool:
        if _text_of(one) is not None:
            return False
        module, name = type(one).__module__.split(".")[0], type(one).__name__
        if name == "FieldInfo":
            self._require_no_default(one)
            return True
        if module == "pydantic" or (module == "annotated_types" and name in _BOUNDS):
            return True
        if hasattr(one, "__get_pydantic_core_schema__"):
            return True
        raise TypeError(
            f"{self._where}: {one!r:.200} in Annotated[…] is not checked: leave it out, or give "
            "pydantic's Field(…), bounds of annotated_types, or a validator"
        )

    def _require_no_default(self, field: Any) -> None:
        if not field.is_required():
            raise TypeError(
                f"{self._where}: a default in Annotated[…, Field(…)] has no effect: write it as "
                "that of the parameter"
            )
        if field.alias is not None or field.validation_alias is not None:
            raise TypeError(f"{self._where}: an alias in Annotated[…, Field(…)] has no effect")

    def _at(self, error: TypeError) -> TypeError:
        text = str(error)
        return TypeError(text if text.startswith(self._where) else f"{self._where}: {text}")

    def _refused(self, annotation: Any) -> TypeError:
        return TypeError(
            f"{self._where}: {annotation!r} is not an annotation by which an argument can be "
            f"checked: {_ALLOWED}"
        )


def fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Of a dataclass or a TypedDict: the annotation of each, and whether it has to be given."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if not is_typed_dict(kind):
        return {
            one.name: (hints[one.name], _is_required(one))
            for one in dataclasses.fields(kind)
            if one.init
        }
    made = {}
    for name, hint in hints.items():
        wrappers = _wrappers_of(hint)
        is_required = name in kind.__required_keys__
        if "Required" in wrappers or "NotRequired" in wrappers:
            is_required = "Required" in wrappers
        made[name] = (hint, is_required)
    return made


def description_of(annotation: Any) -> str:
    """What its `Annotated[…]` says of it: a text, Doc(…), or Field(description=…)."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return ""
    said = [_text_of(one) or getattr(one, "description", None) for one in annotation.__metadata__]
    return next((one for one in said if isinstance(one, str)), "")


def _text_of(metadata: Any) -> str | None:
    found = metadata if isinstance(metadata, str) else getattr(metadata, "documentation", None)
    return found if isinstance(found, str) else None


def type_name(kind: Any, of_class: Callable[[type], str] = lambda _: "dict") -> str:
    """As in a signature. `of_class`: what a class of the host's own is called, which is a dict to
    the sandbox.
    """
    found = plain_type(kind)
    if found is type(None) or found is None:
        return "None"
    origin, args = typing.get_origin(found), typing.get_args(found)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if is_union(found):
        return " | ".join(type_name(one, of_class) for one in args)
    if origin is not None:
        inside = ", ".join("..." if one is Ellipsis else type_name(one, of_class) for one in args)
        return f"{origin.__name__}[{inside}]" if inside else str(origin.__name__)
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return f"Literal[{', '.join(repr(one.value) for one in found)}]"
    if isinstance(found, type) and is_record(found):
        return of_class(found)
    if found in ByText.kinds and found.__module__ == "pathlib":
        return "str"
    return found.__name__ if isinstance(found, type) else str(found).replace("typing.", "")


def bare(annotation: Any) -> Any:
    """Without what only names it, or belongs to a field of a TypedDict."""
    while True:
        if _wrapper_of(annotation):
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):  # NewType
            annotation = annotation.__supertype__
        elif hasattr(annotation, "__value__") and not typing.get_args(annotation):  # type X = …
            annotation = annotation.__value__
        else:
            return annotation


def plain_type(annotation: Any) -> Any:
    """Without what is only checked of it, too."""
    found = bare(annotation)
    while typing.get_origin(found) is typing.Annotated:
        found = bare(typing.get_args(found)[0])
    return found


def _wrapper_of(annotation: Any) -> str:
    name = getattr(typing.get_origin(annotation), "_name", "")
    return name if name in _WRAPPERS else ""


def _wrappers_of(annotation: Any) -> set[str]:
    found: set[str] = set()
    while True:
        if typing.get_origin(annotation) is not typing.Annotated:
            if not _wrapper_of(annotation):
                return found
            found.add(_wrapper_of(annotation))
        annotation = typing.get_args(annotation)[0]


def is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and callable(getattr(kind, "model_json_schema", None))


def is_record(kind: Any) -> bool:
    """A class that is made of a dict."""
    return is_model(kind) or is_typed_dict(kind) or dataclasses.is_dataclass(kind)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
