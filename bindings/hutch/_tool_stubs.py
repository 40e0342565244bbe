# SPDX-License-Identifier: Apache-2.0
"""Tools as they are shown: to a model, as the text of a function without a body, and to code
inside, by their parameters. Classes of the host's are TypedDicts there: code passes dicts.
"""

from __future__ import annotations

import inspect
import keyword
import textwrap
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from hutch._given_schema import referred
from hutch._tool_data import default_text
from hutch._tool_types import description_of, fields_of, is_model, plain_type, type_name

Parameter = tuple[str, int, str, typing.Optional[str]]  # name, kind, annotation, default as text

# How code inside calls it; the same as of images/worker/dialogue.py.
_PLAIN = 0
_AWAITED = 1
_BESIDE = 2
_DEEPEST = 20  # parts of a schema within one another
_OF_SCHEMA = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "array": "list",
    "object": "dict",
}


class Stub:
    """`parameters`, `result`: as text. `classes`: the texts of those that these name, by name."""

    def __init__(
        self,
        name: str,
        description: str,
        noted: dict[str, str],  # of parameters, by name, what the description does not say
        signature: inspect.Signature,
        types: dict[str, Any],  # of parameters that are annotated, and "return"
        given: dict[str, Any] | None,  # a schema that takes the place of annotations
        is_async: bool,
    ) -> None:
        self.name = name
        self.classes: dict[str, str] = {}
        self._kinds: dict[str, Any] = {}
        self._given = given
        by_dict = self._by_dict()
        self.description = "\n".join([description, *_lines(noted), *by_dict]).strip()
        self._types = types
        self._is_async = is_async
        self.parameters = list(self._parameters(signature, given))
        self.result = type_name(types.get("return", Any), self._class)

    def text(self) -> str:
        shown = []
        before = ""
        for name, kind, annotation, default in self.parameters:
            if before == "positional" and kind != inspect.Parameter.POSITIONAL_ONLY:
                shown.append("/")
            if kind == inspect.Parameter.KEYWORD_ONLY and before not in ("*", "keyword"):
                shown.append("*")
            before = {0: "positional", 2: "*", 3: "keyword"}.get(kind, "")
            stars = {2: "*", 4: "**"}.get(kind, "")
            shown.append(
                f"{stars}{name}: {annotation}" + ("" if default is None else f" = {default}")
            )
        if before == "positional":
            shown.append("/")
        define = "async def" if self._is_async else "def"
        lines = [f"{define} {self.name}({', '.join(shown)}) -> {self.result}:"]
        if self.description:
            lines.append(textwrap.indent(_quoted(self.description), "    "))
        return "\n".join([*(f"{one}\n" for one in self.classes.values()), *lines, "    ..."])

    def inside(self, beside: bool) -> tuple[str, str, list[Parameter], str, int]:
        """What is sent of it: name, documentation, parameters, result, and how it is called. Of a
        default no more than that there is one: it is the host's.
        """
        documentation = "\n\n".join([self.description, *self.classes.values()]).strip()
        parameters = [
            (name, kind, annotation, default and "...")
            for name, kind, annotation, default in self.parameters
        ]
        how = _BESIDE if self._is_async and beside else _AWAITED if self._is_async else _PLAIN
        return self.name, documentation, parameters, self.result, how

    def _parameters(
        self, signature: inspect.Signature, given: dict[str, Any] | None
    ) -> Iterator[Parameter]:
        for name, parameter in signature.parameters.items():
            if given is not None and parameter.kind is parameter.VAR_KEYWORD:
                yield from self._of_schema(given, signature)
                continue
            if name in self._types:
                annotation = type_name(self._types[name], self._class)
            else:
                annotation = self._text_of((given or {}).get("properties", {}).get(name))
            default = None
            if parameter.default is not parameter.empty:
                default = default_text(parameter.default)
            yield name, int(parameter.kind), annotation, default

    def _class(self, kind: type) -> str:
        fields = (
            (field, type_name(annotation, self._class), is_required, said)
            for field, annotation, is_required, said in _fields(kind)
        )
        return self._added(kind.__name__, kind, fields)

    def _added(self, name: str, kind: Any, fields: Iterable[tuple[str, str, bool, str]]) -> str:
        """Its name here. Where that is taken, or says nothing, it is a dict."""
        if self._kinds.setdefault(name, kind) is not kind or not _is_name(name):
            return "dict"
        if name in self.classes:
            return name
        self.classes[name] = ""  # it may name itself
        lines = [f"class {name}(TypedDict):"]
        for field, text, is_required, said in fields:
            note = f"  # {' '.join(said.split())}" if said else ""
            if not _is_name(field):
                lines.append(f"    # {field!r}: {text}{note}")
            else:
                text = text if is_required else f"NotRequired[{text}]"
                lines.append(f"    {field}: {text}{note}")
        if len(lines) == 1:
            lines.append("    pass")
        self.classes[name] = "\n".join(lines)
        return name

    def _text_of(self, schema: Any, depth: int = 0) -> str:
        """A part of a schema as an annotation, roughly."""
        if type(schema) is not dict or depth > _DEEPEST:
            return "Any"
        reference = schema.get("$ref")
        if type(reference) is str:
            found = referred(self._given, reference)
            return self._object(reference.rpartition("/")[2], found, depth)
        if type(schema.get("enum")) is list:
            return f"Literal[{', '.join(map(repr, schema['enum']))}]"
        if type(schema.get("properties")) is dict and type(schema.get("title")) is str:
            return self._object(schema["title"], schema, depth)
        kinds = schema.get("type")
        names = [kinds] if type(kinds) is str else kinds if type(kinds) is list else []
        texts = [_OF_SCHEMA.get(name, "Any") for name in names]
        if kinds == "array" and type(schema.get("items")) is dict:
            return f"list[{self._text_of(schema['items'], depth + 1)}]"
        for several in ("anyOf", "oneOf"):
            if not texts and type(schema.get(several)) is list:
                texts = [self._text_of(one, depth + 1) for one in schema[several]]
        return " | ".join(dict.fromkeys(texts)) or "Any"

    def _object(self, name: str, schema: Any, depth: int) -> str:
        properties = schema.get("properties") if type(schema) is dict else None
        if type(properties) is not dict:
            return self._text_of(schema, depth + 1)
        required = schema.get("required", ())
        fields = (
            (field, self._text_of(one, depth + 1), field in required, _said_of(one))
            for field, one in properties.items()
        )
        return self._added(name, schema, fields)

    def _of_schema(
        self, schema: dict[str, Any], signature: inspect.Signature
    ) -> Iterator[Parameter]:
        """Of a function that takes `**arguments`: what the schema names besides."""
        required = schema.get("required", [])
        properties = schema.get("properties", {})
        others = [name for name in properties if name not in signature.parameters]
        for name in sorted(others, key=lambda one: one not in required):
            if _is_name(name):
                default = None if name in required else "..."
                annotation = self._text_of(properties[name])
                yield name, int(inspect.Parameter.KEYWORD_ONLY), annotation, default
        is_open = schema.get("additionalProperties", True) is not False
        if is_open or not all(map(_is_name, properties)):
            name = "others"
            while name in properties or name in signature.parameters:
                name += "_"
            yield name, int(inspect.Parameter.VAR_KEYWORD), "Any", None

    def _by_dict(self) -> Iterator[str]:
        """How to pass what no parameter of Python can be called."""
        properties = (self._given or {}).get("properties", {})
        names = [name for name in properties if not _is_name(name)]
        if names:
            told = ", ".join(f"{name!r}: {self._text_of(properties[name])}" for name in names)
            yield f"\nPass these as **{{name: value}}: {told}"


def _said_of(schema: Any) -> str:
    said = schema.get("description") if type(schema) is dict else None
    return said if type(said) is str else ""


def _fields(kind: Any) -> Iterator[tuple[str, Any, bool, str]]:
    """Names as passed, annotations, whether each has to be there, and what is said of it."""
    if is_model(kind):
        for name, field in getattr(kind, "model_fields", {}).items():
            alias = field.validation_alias or field.alias
            passed = alias if isinstance(alias, str) else name
            required = field.is_required()
            yield passed, plain_type(field.annotation), required, field.description or ""
        return
    for name, (annotation, is_required) in fields_of(kind).items():
        yield name, annotation, is_required, description_of(annotation)


def _quoted(text: str) -> str:
    """As a docstring."""
    text = text.replace("\\", "\\\\")
    if '"""' in text or text.endswith('"'):
        text = text.replace('"', r"\"")
    return f'"""{text}' + ('\n"""' if "\n" in text else '"""')


def _lines(noted: dict[str, str]) -> Iterator[str]:
    if noted:
        yield "\nArgs:"
    for name, text in noted.items():
        yield f"    {name}: {' '.join(text.split())}"


def _is_name(name: str) -> bool:
    """Whether a parameter of Python may have it."""
    return name.isidentifier() and not keyword.iskeyword(name)
