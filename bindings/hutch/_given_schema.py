# SPDX-License-Identifier: Apache-2.0
"""Whether a tool's arguments are what a JSON schema says. The schema is the caller's own, and is
made ready once; the values come from a sandbox: no check takes more than so many steps, none of
which takes longer for a larger schema or value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from hutch._choices import NONE, Choices
from hutch._text import brief_repr

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list, tuple),
    "object": (dict,),
}
_NOTES = frozenset(
    "title description default examples format $schema $id $comment $defs definitions deprecated "
    "readOnly writeOnly contentEncoding contentMediaType discriminator".split()
)
_MOST_STEPS = 200_000
_DEEPEST = 200
_SHOWN = 100  # characters of a name
_CHARACTERS = 100  # of a text, for one step
_MOST_BITS = 4096  # of an int that is divided by a fraction


class NotValid(Exception):
    """`steps`: where, the innermost first."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.steps: list[str] = []


class _TooMuch(NotValid):
    pass


class Schema:
    """Raises TypeError or ValueError for one that cannot be checked, or is not of arguments."""

    def __init__(self, schema: Any) -> None:
        if not isinstance(schema, dict):
            kind = type(schema).__name__
            raise TypeError(f"input_schema= takes a JSON schema as a dict, not {kind}")
        if schema.get("type", "object") != "object":
            raise ValueError('input_schema= is of an object, {"type": "object", "properties": …}')
        self._ready = _Making(schema).ready(schema)

    def check(self, given: dict[str, Any]) -> None:
        """Raises NotValid."""
        _Check().value(self._ready, given)


class _Making:
    """Of a schema as it is checked: what it refers to stands in its place, and what would be looked
    through for each value is found at once.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._made: dict[int, dict[str, Any]] = {}  # by the id of what they were made of

    def ready(self, schema: Any) -> Any:
        if type(schema) is bool:
            return schema
        if not isinstance(schema, dict):
            raise ValueError(f"input_schema= holds {schema!r:.100}, which is not a schema")
        if id(schema) in self._made:
            return self._made[id(schema)]
        found = self._made[id(schema)] = {}
        for name, of in schema.items():
            if name in ("$defs", "definitions"):
                self._all_named(name, of)
            elif name in _KEYWORDS:
                found[name] = self._one(name, of)
            elif name not in _NOTES and not name.startswith("x-"):
                raise ValueError(
                    f"input_schema= has {name!r}, which is not checked: leave it out, and check "
                    "that in the function"
                )
        return found

    def _one(self, name: str, of: Any) -> Any:
        keyword = _KEYWORDS[name]
        may_be = isinstance(of, keyword.kinds) and (type(of) is not bool or bool in keyword.kinds)
        if keyword.kinds and not may_be:
            raise ValueError(f"input_schema= has {name!r}: {of!r:.100}, which it cannot be")
        return keyword.make(self, of)

    def _all_named(self, name: str, of: Any) -> dict[str, Any]:
        if not isinstance(of, dict):
            raise ValueError(f"input_schema= has {name!r}: {of!r:.100}, which it cannot be")
        return {key: self.ready(one) for key, one in of.items()}

    def named(self, of: dict[str, Any]) -> dict[str, Any]:
        return self._all_named("properties", of)

    def listed(self, of: Any) -> list[Any]:
        return [self.ready(one) for one in of]

    def types(self, of: Any) -> tuple[str, ...]:
        kinds = tuple(dict.fromkeys([of] if isinstance(of, str) else of))
        for one in kinds:
            if one not in _TYPES:
                raise ValueError(f"input_schema= has an unknown type {one!r}")
        return kinds

    def referred(self, reference: str) -> Any:
        found = referred(self._root, reference)
        if found is None:
            raise ValueError(
                f"input_schema= refers to {reference!r:.100}, which is not in it: write it as "
                '"#/$defs/name"'
            )
        return self.ready(found)


def referred(root: Any, reference: str) -> Any:
    """What a `$ref` means; None: it is not there."""
    start, *steps = reference.split("/")
    found = root if start == "#" and steps else None
    for step in steps:
        found = found.get(step) if isinstance(found, dict) else None
    return found


class _Check:
    """Of one call's arguments."""

    def __init__(self) -> None:
        self._steps = 0

    def take(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise _TooMuch(_TOO_MUCH)

    def value(self, schema: Any, value: Any, depth: int = 0) -> None:
        """Raises NotValid."""
        self.take(1)
        if depth > _DEEPEST:
            raise _TooMuch(_TOO_MUCH)
        if schema is False:
            raise NotValid("is not expected")
        if schema is True or (value is None and schema.get("nullable")):
            return
        for name, of in schema.items():
            _KEYWORDS[name].check(self, of, value, schema, depth + 1)

    def tried(self, schemas: Iterable[Any], value: Any, depth: int) -> Iterator[NotValid | None]:
        """Of each, why the value is not what it says; None: it is."""
        for schema in schemas:
            try:
                self.value(schema, value, depth)
            except _TooMuch:
                raise
            except NotValid as error:
                yield error
            else:
                yield None

    def fits(self, schema: Any, value: Any, depth: int) -> bool:
        return next(self.tried([schema], value, depth)) is None

    def item(self, schema: Any, value: Any, depth: int, key: Any, form: str = "[{}]") -> None:
        try:
            self.value(schema, value, depth)
        except NotValid as error:
            error.steps.append(form.format(_shown(key)))
            raise


_TOO_MUCH = "is too large, or nested too deeply, to be checked"


def is_of(kind: str, value: Any) -> bool:
    if kind in ("integer", "number") and type(value) is bool:
        return False
    if kind == "integer" and type(value) is float:
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _type(_: _Check, of: Any, value: Any, *__: Any) -> None:
    if not any(is_of(kind, value) for kind in of):
        raise NotValid(f"must be {' or '.join(of)}, not {type(value).__name__}")


def _enum(check: _Check, of: Any, value: Any, *__: Any) -> None:
    check.take(of.others)
    if of.find(value) is NONE:
        raise NotValid(f"must be one of {of}")


def _any_of(check: _Check, of: Any, value: Any, _: Any, depth: int) -> None:
    first: NotValid | None = None
    for why_not in check.tried(of, value, depth):
        if why_not is None:
            return
        first = first or why_not
    if first is not None:
        raise first


def _one_of(check: _Check, of: Any, value: Any, _: Any, depth: int) -> None:
    why_not = [*check.tried(of, value, depth)]
    count = why_not.count(None)
    if count > 1:
        raise NotValid(f"is what {count} alternatives of its schema say, and may be of one alone")
    if count == 0 and why_not and why_not[0] is not None:
        raise why_not[0]


def _all_of(check: _Check, of: Any, value: Any, _: Any, depth: int) -> None:
    for one in of:
        check.value(one, value, depth)


def _not(check: _Check, of: Any, value: Any, _: Any, depth: int) -> None:
    if check.fits(of, value, depth):
        raise NotValid("is what its schema excludes")


def _if(check: _Check, of: Any, value: Any, schema: Mapping[str, Any], depth: int) -> None:
    branch = "then" if check.fits(of, value, depth) else "else"
    check.value(schema.get(branch, True), value, depth)


def _nothing(*_: Any) -> None:
    """It is looked at with another keyword."""


def _ref(check: _Check, of: Any, value: Any, _: Any, depth: int) -> None:
    check.value(of, value, depth)


def _properties(check: _Check, of: Any, value: Any, _: Any, depth: int) -> None:
    if type(value) is dict:
        fewer = of if len(of) < len(value) else value
        for name in fewer:
            if name in of and name in value:
                check.item(of[name], value[name], depth, name, ".{}")
            else:
                check.take(1)


def _required(check: _Check, of: Any, value: Any, *__: Any) -> None:
    if type(value) is dict:
        check.take(min(len(of), len(value)))
        for name in of:
            if name not in value:
                raise NotValid(f"has no {name!r}, which it needs")


def _names(check: _Check, of: Any, value: Any, _: Any, depth: int) -> None:
    if type(value) is dict:
        for name in value:
            check.item(of, name, depth, name, ", the name {!r},")


def _dependent(check: _Check, of: Any, value: Any, *__: Any) -> None:
    if type(value) is dict:
        for name in of.keys() & value.keys():
            check.take(len(of[name]))
            for other in of[name]:
                if other not in value:
                    raise NotValid(f"has no {other!r}, which {name!r} needs")


def _additional(check: _Check, of: Any, value: Any, schema: Mapping[str, Any], depth: int) -> None:
    if type(value) is dict:
        known = schema.get("properties", {})
        for name, one in value.items():
            if name in known:
                check.take(1)
            else:
                check.item(of, one, depth, name, "[{!r}]")


def _items(check: _Check, of: Any, value: Any, schema: Mapping[str, Any], depth: int) -> None:
    if type(value) in (list, tuple):
        for i in range(len(schema.get("prefixItems", ())), len(value)):
            check.item(of, value[i], depth, i)


def _prefix_items(check: _Check, of: Any, value: Any, _: Any, depth: int) -> None:
    if type(value) in (list, tuple):
        for i, (one, item) in enumerate(zip(of, value)):
            check.item(one, item, depth, i)


def _unique(check: _Check, of: Any, value: Any, *__: Any) -> None:
    if of and type(value) in _LISTS:
        seen: set[str] = set()
        for i, one in enumerate(value):
            text = _text_of(check, one)
            if text in seen:
                raise NotValid(f"has the item [{i}] twice")
            seen.add(text)


def _text_of(check: _Check, value: Any, depth: int = 0) -> str:
    """The same for what JSON takes for equal. Nobody can choose the hash of a text."""
    check.take(1)
    if depth > _DEEPEST:
        raise _TooMuch(_TOO_MUCH)
    if type(value) in _LISTS:
        return f"[{','.join(_text_of(check, one, depth + 1) for one in value)}]"
    if type(value) is dict:
        pairs = ((_text_of(check, name), _text_of(check, value[name], depth + 1)) for name in value)
        return f"{{{','.join(sorted(':'.join(pair) for pair in pairs))}}}"
    if type(value) is float and value.is_integer():
        value = int(value)
    try:
        text = hex(value) if type(value) is int else repr(value)
    except ValueError:  # as of a Fraction with more digits than Python writes out
        raise _TooMuch(_TOO_MUCH) from None
    check.take(len(text) // _CHARACTERS)
    return text


def _multiple(_: _Check, of: Any, value: Any, *__: Any) -> None:
    if type(value) in (int, float) and not _is_multiple(value, of):
        raise NotValid(f"must be a multiple of {of}, not {brief_repr(value)}")


def _is_multiple(value: Any, of: Any) -> bool:
    """Numbers count as they are written: 0.3 is three times 0.1."""
    if type(value) is int and type(of) is int:
        return value % of == 0
    if type(value) is int and value.bit_length() > _MOST_BITS:
        return False
    try:
        return (Fraction(repr(value)) / Fraction(repr(of))).denominator == 1
    except ValueError:  # infinite, or no number
        return False


def _length(kinds: tuple[type, ...], least: bool, what: str) -> Callable[..., None]:
    def check(_: _Check, of: Any, value: Any, *__: Any) -> None:
        if type(value) in kinds and (len(value) < of if least else len(value) > of):
            word = "least" if least else "most"
            raise NotValid(f"must have at {word} {of} {what}, not {len(value)}")

    return check


def _bound(holds: Callable[[Any, Any], bool], words: str) -> Callable[..., None]:
    def check(_: _Check, of: Any, value: Any, *__: Any) -> None:
        if type(value) in (int, float) and not holds(value, of):
            raise NotValid(f"must be {words} {of}, not {brief_repr(value)}")

    return check


def _shown(name: Any) -> str:
    return name[:_SHOWN] if type(name) is str else brief_repr(name)


def _same(_: _Making, of: Any) -> Any:
    return of


def _positive(_: _Making, of: Any) -> Any:
    if not 0 < of < float("inf"):
        raise ValueError(f"input_schema= has 'multipleOf': {of!r}, which it cannot be")
    return of


def _dependents(_: _Making, of: Any) -> Any:
    for name, others in of.items():
        if not isinstance(others, _LISTS):
            raise ValueError(
                f"input_schema= has 'dependentRequired': {{{name!r}: {others!r:.100}}}, "
                "which it cannot be"
            )
    return of


def _choices(_: _Making, of: Any) -> Choices:
    return Choices((one, one) for one in of)


_LISTS = (list, tuple)
_SCHEMAS = (dict, bool)
_COUNT = (int,)
_FIGURE = (int, float)


class _Keyword(NamedTuple):
    kinds: tuple[type, ...]  # what it may be; () is anything
    make: Callable[[_Making, Any], Any]  # as it is checked
    check: Callable[..., None]


_KEYWORDS: dict[str, _Keyword] = {
    "type": _Keyword((str, *_LISTS), _Making.types, _type),
    "enum": _Keyword(_LISTS, _choices, _enum),
    "const": _Keyword((), lambda making, of: _choices(making, [of]), _enum),
    "anyOf": _Keyword(_LISTS, _Making.listed, _any_of),
    "oneOf": _Keyword(_LISTS, _Making.listed, _one_of),
    "allOf": _Keyword(_LISTS, _Making.listed, _all_of),
    "not": _Keyword(_SCHEMAS, _Making.ready, _not),
    "if": _Keyword(_SCHEMAS, _Making.ready, _if),
    "then": _Keyword(_SCHEMAS, _Making.ready, _nothing),
    "else": _Keyword(_SCHEMAS, _Making.ready, _nothing),
    "nullable": _Keyword((bool,), _same, _nothing),
    "$ref": _Keyword((str,), _Making.referred, _ref),
    "properties": _Keyword((dict,), _Making.named, _properties),
    "required": _Keyword(_LISTS, _same, _required),
    "propertyNames": _Keyword(_SCHEMAS, _Making.ready, _names),
    "dependentRequired": _Keyword((dict,), _dependents, _dependent),
    "additionalProperties": _Keyword(_SCHEMAS, _Making.ready, _additional),
    "items": _Keyword(_SCHEMAS, _Making.ready, _items),
    "prefixItems": _Keyword(_LISTS, _Making.listed, _prefix_items),
    "uniqueItems": _Keyword((bool,), _same, _unique),
    "multipleOf": _Keyword(_FIGURE, _positive, _multiple),
    "minLength": _Keyword(_COUNT, _same, _length((str,), True, "characters")),
    "maxLength": _Keyword(_COUNT, _same, _length((str,), False, "characters")),
    "minItems": _Keyword(_COUNT, _same, _length(_LISTS, True, "items")),
    "maxItems": _Keyword(_COUNT, _same, _length(_LISTS, False, "items")),
    "minProperties": _Keyword(_COUNT, _same, _length((dict,), True, "properties")),
    "maxProperties": _Keyword(_COUNT, _same, _length((dict,), False, "properties")),
    "minimum": _Keyword(_FIGURE, _same, _bound(lambda value, of: value >= of, "at least")),
    "maximum": _Keyword(_FIGURE, _same, _bound(lambda value, of: value <= of, "at most")),
    "exclusiveMinimum": _Keyword(_FIGURE, _same, _bound(lambda value, of: value > of, "more than")),
    "exclusiveMaximum": _Keyword(_FIGURE, _same, _bound(lambda value, of: value < of, "less than")),
}
