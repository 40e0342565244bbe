# SPDX-License-Identifier: Apache-2.0
"""Tools: functions of the host that a session's code may call, with arguments that are checked.

What arrives are plain data of the closed set of results. They are checked against the function's
annotations, and classes that these name are built, before the function is called.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union

_PLAIN: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_DATA = (bytes,)
_ARRAYS = (list, tuple, set, frozenset)


class Tool:
    """A function of the host, as a session's code sees it.

    `name`, `description`: by default the function's own, from its docstring. `max_calls`: in one
    exec. `approve(name, arguments) -> bool` is asked before each call. Each parameter needs an
    annotation; TypeError says which one lacks it, or cannot be checked.

        def search(query: str, limit: int = 5) -> list[str]:
            \"\"\"Finds pages.\"\"\"

        Tool(search).schema["properties"]["limit"]  # {"type": "integer", "default": 5}
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        max_calls: int | None = None,
        approve: Callable[[str, dict[str, Any]], bool] | None = None,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"a tool is a function, not {type(fn).__name__}")
        self.fn = fn
        self.name: str = name or str(getattr(fn, "__name__", ""))
        if not self.name.isidentifier():
            raise ValueError(f"{self.name!r} is not a valid name of a tool: give it name=")
        self.description = description if description is not None else inspect.getdoc(fn) or ""
        self.max_calls = max_calls
        self.approve = approve
        self._signature = inspect.signature(fn)
        self._types = self._resolved()
        self.schema = self._schema()

    def stub(self) -> str:
        """As a function without a body, for prompts."""
        signature = str(self._signature)
        lines = [f"def {self.name}{signature}:"]
        if self.description:
            lines.append(f'    """{self.description}"""')
        return "\n".join([*lines, "    ..."])

    def invoke(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function with arguments that came from a sandbox. Raises TypeError or
        ValueError for wrong ones, PermissionError where `approve` refuses.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        for name, value in bound.arguments.items():
            parameter = self._signature.parameters[name]
            kind = self._types[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                built: Any = tuple(build(kind, one, name) for one in value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                built = {key: build(kind, one, f"{name}[{key!r}]") for key, one in value.items()}
            else:
                built = build(kind, value, name)
            bound.arguments[name] = built
        if self.approve is not None and not self.approve(self.name, dict(bound.arguments)):
            raise PermissionError(f"this call of {self.name}() was not approved")
        return self.fn(*bound.args, **bound.kwargs)

    def _resolved(self) -> dict[str, Any]:
        try:
            hints = typing.get_type_hints(self.fn, include_extras=True)
        except Exception as error:
            raise TypeError(
                f"the annotations of {self.name}() cannot be resolved: {error}"
            ) from None
        found = {}
        for name in self._signature.parameters:
            if name not in hints:
                raise TypeError(
                    f"{self.name}() is no tool yet: its parameter {name!r} has no annotation, by "
                    "which an argument could be checked"
                )
            schema_of(hints[name], f"{self.name}({name})")
            found[name] = hints[name]
        return found

    def _schema(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required = []
        for name, parameter in self._signature.parameters.items():
            schema = schema_of(self._types[name], name)
            if parameter.kind is parameter.VAR_POSITIONAL:
                schema = {"type": "array", "items": schema}
            elif parameter.kind is parameter.VAR_KEYWORD:
                schema = {"type": "object", "additionalProperties": schema}
            elif parameter.default is parameter.empty:
                required.append(name)
            elif type(parameter.default) in _PLAIN:
                schema = {**schema, "default": parameter.default}
            properties[name] = schema
        return {"type": "object", "properties": properties, "required": required}


def tools_of(tools: Iterable[Callable[..., Any] | Tool]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    if callable(tools) or isinstance(tools, (str, Tool)):
        raise TypeError("tools= takes a list of functions or Tools")
    for one in tools:
        tool = one if isinstance(one, Tool) else Tool(one)
        if tool.name in found:
            raise ValueError(f"two tools have the name {tool.name!r}")
        found[tool.name] = tool
    return found


def schema_of(kind: Any, where: str) -> dict[str, Any]:
    """The JSON schema of an annotation. Raises TypeError for one that cannot be checked."""
    kind = _bare(kind)
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind in _DATA:
        return {"type": "string", "format": "binary"}
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(args)}
    if _is_union(kind):
        return {"anyOf": [schema_of(one, where) for one in args]}
    if kind in _ARRAYS or origin in _ARRAYS:
        items = [one for one in args if one is not Ellipsis]
        if (origin or kind) is tuple and items and Ellipsis not in args:
            return {"type": "array", "prefixItems": [schema_of(one, where) for one in items]}
        return {"type": "array", "items": schema_of(items[0], where) if items else {}}
    if kind is dict or origin is dict:
        if args and _bare(args[0]) is not str:
            raise TypeError(f"{where}: the keys of a dict must be annotated as str")
        return {
            "type": "object",
            "additionalProperties": schema_of(args[1], where) if args else {},
        }
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [one.value for one in kind]}
    if _is_model(kind):
        return dict(kind.model_json_schema())
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        fields = [one for one in dataclasses.fields(kind) if one.init]
        return {
            "type": "object",
            "properties": {one.name: schema_of(hints[one.name], where) for one in fields},
            "required": [one.name for one in fields if _is_required(one)],
        }
    raise TypeError(f"{where}: {kind!r} is not an annotation by which an argument can be checked")


def build(kind: Any, value: Any, where: str) -> Any:
    """The argument that this data stands for. Raises TypeError or ValueError."""
    kind = _bare(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind in _PLAIN or kind in _DATA:
        return _expect(type(value) is kind, kind, value, where)
    if origin is Literal:
        for one in args:
            if type(one) is type(value) and one == value:
                return value
        raise ValueError(f"{where} must be one of {', '.join(map(repr, args))}")
    if _is_union(kind):
        for one in args:
            try:
                return build(one, value, where)
            except (TypeError, ValueError):
                continue
        raise TypeError(f"{where}: {type(value).__name__} is none of {kind}")
    wanted: Any = origin or kind
    if wanted in _ARRAYS:
        _expect(type(value) in _ARRAYS, wanted, value, where)
        items = [one for one in args if one is not Ellipsis]
        if wanted is tuple and items and Ellipsis not in args:
            if len(value) != len(items):
                raise TypeError(f"{where} must have {len(items)} items, not {len(value)}")
            pairs: Iterable[tuple[Any, Any]] = zip(items, value)
        else:
            pairs = ((items[0] if items else Any, one) for one in value)
        return wanted(build(of, one, f"{where}[{i}]") for i, (of, one) in enumerate(pairs))
    if wanted is dict:
        _expect(type(value) is dict, dict, value, where)
        of = args[1] if args else Any
        for key in value if args else ():
            _expect(type(key) is str, str, key, f"a key of {where}")
        return {key: build(of, one, f"{where}[{key!r}]") for key, one in value.items()}
    if issubclass(wanted, enum.Enum):
        try:
            return wanted(value)
        except ValueError:
            raise ValueError(
                f"{where} must be one of {', '.join(repr(one.value) for one in wanted)}"
            ) from None
    _expect(type(value) is dict and all(type(key) is str for key in value), dict, value, where)
    if _is_model(wanted):
        return wanted.model_validate(value)
    hints = typing.get_type_hints(wanted)
    fields = {one.name: one for one in dataclasses.fields(wanted) if one.init}
    for key in value:
        if key not in fields:
            raise TypeError(f"{where} has no field {key!r}")
    return wanted(**{key: build(hints[key], one, f"{where}.{key}") for key, one in value.items()})


def _expect(holds: bool, kind: Any, value: Any, where: str) -> Any:
    if not holds:
        raise TypeError(f"{where} must be {kind.__name__}, not {type(value).__name__}")
    return value


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and callable(getattr(kind, "model_json_schema", None))


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
