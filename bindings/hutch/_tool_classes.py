# SPDX-License-Identifier: Apache-2.0
"""Classes of the host's that a tool's arguments are made of: dataclasses, TypedDicts, pydantic
models, and what pydantic checks of `Annotated[…]`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any

from hutch._results.conversion import Conversion, conversion
from hutch._results.types import is_typed_dict
from hutch._results.validating import validation
from hutch._tool_data import default_in_schema
from hutch._tool_kinds import (
    ARRAYS,
    MOST_BITS,
    ArgumentError,
    ByText,
    Kind,
    Plain,
    Work,
    require_text_keys,
)

_MOST_ERRORS = 20  # of a model, that are reported in full
_MOST_HASHED = 2_000  # values for a model that puts other things than text into sets
_STEPS_OF_OBJECT = 4  # for the memory that one takes
_STEPS_OF_VALUE = 3  # for pydantic, which makes an error of each
_LENGTHS = {"minLength": "min", "maxLength": "max"}


class Record(Kind):
    """A dataclass or a TypedDict, made of a dict. `fields`: by name, each with whether it has to be
    there.
    """

    takes = frozenset([dict])

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._is_dict = is_typed_dict(kind)
        # Set once the Kinds of its fields are made:
        self.fields: dict[str, tuple[Kind, bool]] = {}
        self.descriptions: dict[str, str] = {}  # "": none
        self.text = kind.__name__

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        properties = {name: one.schema(shared) for name, (one, _) in self.fields.items()}
        for field in () if self._is_dict else dataclasses.fields(self._kind):
            if field.name in properties and field.default is not dataclasses.MISSING:
                properties[field.name] |= default_in_schema(field.default)
        for name, said in self.descriptions.items():
            properties[name] |= {"description": said} if said else {}
        required = [name for name, (_, is_required) in self.fields.items() if is_required]
        return {"type": "object", "properties": properties, "required": required}

    def build(self, value: Any, work: Work) -> Any:
        if type(value) is not dict:
            raise ArgumentError("must be dict, not {}", type(value).__name__)
        work.take(_STEPS_OF_OBJECT)
        require_text_keys(value)
        for key in value:
            if key not in self.fields:
                raise ArgumentError("has no field {!r:.100}", key)
        for key, (_, is_required) in self.fields.items():
            if is_required and key not in value:
                raise ArgumentError("has no field {!r}, which it needs", key)
        made = {}
        for key, one in value.items():
            work.take(1)
            try:
                made[key] = self.fields[key][0].build(one, work)
            except ArgumentError as error:
                error.steps.append("." + key)
                raise
        return made if self._is_dict else _guarded(lambda: self._kind(**made))


class Model(Kind):
    """A pydantic model, which gets the data as they came."""

    def __init__(self, kind: Any) -> None:
        seen = validation(kind)
        found = conversion(kind.__pydantic_core_schema__) if not seen.refusal else Conversion()
        refusal = seen.refusal or found.refusal
        if refusal:
            raise TypeError(f"{kind.__name__} cannot be built of what a sandbox sends: {refusal}")
        self._kind = kind
        self._found = found
        self._is_root = bool(getattr(kind, "__pydantic_root_model__", False))
        self.takes = None if self._is_root else frozenset([dict])
        self.text = kind.__name__

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        schema = dict(self._kind.model_json_schema())
        shared.update(schema.pop("$defs", {}))
        return schema

    def build(self, value: Any, work: Work) -> Any:
        if not self._is_root:
            if type(value) is not dict:
                raise ArgumentError("must be dict, not {}", type(value).__name__)
            require_text_keys(value)
        return _validated(self._kind.model_validate, value, self._found, work)


class Adapted(Kind):
    """Another type that pydantic makes, as of URLs, of text or a number."""

    takes = frozenset([str, int, float])

    def __init__(self, kind: Any) -> None:
        self._adapter, self._found = _adapter_of(kind)
        self.text = getattr(kind, "__name__", str(kind))

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        return _schema_of(self._adapter, shared)

    def build(self, value: Any, work: Work) -> Any:
        if type(value) not in (str, int, float):
            raise self.refuse(value)
        return _validated(self._adapter.validate_python, value, self._found, work)


class Models(Kind):
    """A union of models, of which pydantic takes the one that fits best, or that a field names."""

    def __init__(self, annotation: Any, choices: Sequence[Any]) -> None:
        self._adapter, self._found = _adapter_of(annotation)
        if not any(getattr(one, "__pydantic_root_model__", False) for one in choices):
            self.takes = frozenset([dict, type(None)] if type(None) in choices else [dict])
        self.text = " | ".join(getattr(one, "__name__", str(one)) for one in choices)

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        return _schema_of(self._adapter, shared)

    def build(self, value: Any, work: Work) -> Any:
        if self.takes is not None and type(value) not in self.takes:
            raise self.refuse(value)
        return _validated(self._adapter.validate_python, value, self._found, work)


class Checked(Kind):
    """What is built by an annotation, and then checked by its `Annotated[…, metadata]`."""

    def __init__(self, inner: Kind, kind: Any, metadata: list[Any]) -> None:
        self._inner = inner
        self.takes, self.text = inner.takes, inner.text
        # Other values were built already, and are not looked through once more.
        of = kind if isinstance(inner, (Plain, ByText)) else Any
        annotated: Any = typing.Annotated
        parts = (of, *metadata)
        self._adapter, self._found = _adapter_of(annotated[parts])

    def schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        schema = self._inner.schema(shared)
        found = _schema_of(self._adapter, shared)
        what = {"array": "Items", "object": "Properties"}.get(schema.get("type", ""))
        if what is not None:
            for name, bound in _LENGTHS.items():
                if name in found:
                    found[bound + what] = found.pop(name)
        return {**schema, **found}

    def build(self, value: Any, work: Work) -> Any:
        built = self._inner.build(value, work)
        work.take(self._found.tries)
        return _made(lambda: self._adapter.validate_python(built))


def _adapter_of(kind: Any) -> tuple[Any, Conversion]:
    """What validates by pydantic. Raises TypeError."""
    import pydantic

    try:
        adapter = pydantic.TypeAdapter(kind)
        adapter.json_schema()
    except Exception as error:
        raise TypeError(f"{kind!r:.200} cannot be checked: {error!s:.300}") from None
    found = conversion(adapter.core_schema)
    if found.refusal:
        raise TypeError(f"{kind!r:.200} cannot be built of what a sandbox sends: {found.refusal}")
    return adapter, found


def _schema_of(adapter: Any, shared: dict[str, Any]) -> dict[str, Any]:
    schema = dict(adapter.json_schema())
    shared.update(schema.pop("$defs", {}))
    return schema


def _validated(validate: Callable[[Any], Any], value: Any, found: Conversion, work: Work) -> Any:
    """What pydantic makes of the value, which is charged before."""
    _charge(value, found, work)
    return _made(lambda: validate(value))


def _charge(value: Any, found: Conversion, work: Work) -> None:
    count = 1
    stack = [value]
    while stack:
        one = stack.pop()
        if found.decimals and type(one) is int and one.bit_length() > MOST_BITS:
            raise ArgumentError("has an int of more than {} bits beside a Decimal", MOST_BITS)
        held = one.values() if type(one) is dict else one if type(one) in ARRAYS else ()
        count += len(held)
        work.take(found.tries * (len(held) * _STEPS_OF_VALUE + _STEPS_OF_OBJECT))
        if found.hashes and count > _MOST_HASHED:
            raise ArgumentError("is too large for a model with sets of other things than text")
        stack.extend(held)
        if found.decimals and type(one) is dict:
            stack.extend(key for key in one if type(key) is not str)


def _made(make: Callable[[], Any]) -> Any:
    """A ValueError is that of a validation. It is put into words when it is shown."""
    try:
        return _guarded(make)
    except ArgumentError:
        raise
    except ValueError as error:
        count = error.error_count() if hasattr(error, "error_count") else 1
        if count > _MOST_ERRORS:
            title = str(getattr(error, "title", "it"))
            raise ArgumentError("has {:,} errors for {:.100}", count, title) from None
        raise ArgumentError("is not valid: {!s:.2000}", error) from None


def _guarded(make: Callable[[], Any]) -> Any:
    """What a class of the caller's makes of the data. One that exits ends nothing of the host's."""
    try:
        return make()
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise ArgumentError("is not valid: {}", type(error).__name__) from None
