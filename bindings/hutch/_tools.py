# SPDX-License-Identifier: Apache-2.0
"""Tools: functions of the host that a session's code may call, with arguments that are checked.

What arrives are plain data of the closed set of results. They are checked against the function's
annotations, and classes that these name are built, before the function is called. All of it comes
from a sandbox: nothing is built that may import, look for files, or take more time than its size.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import enum
import inspect
import threading
import types
import typing
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, Union

from hutch._results.types import validation

_PLAIN: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_DATA = (bytes,)
_ARRAYS = (list, tuple, set, frozenset)
_MOST_LATE = 16  # calls of one tool that took longer than its timeout_sec, and go on
_MOST_ERRORS = 20  # of a model, that are told in full


class ArgumentError(TypeError):
    """An argument that is not what it is annotated with. `steps`: where, the innermost first."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.steps: list[str] = []

    def __str__(self) -> str:
        return "".join(reversed(self.steps)) + " " + self.text


class Tool:
    """A function of the host, as a session's code sees it.

    `name`, `description`: by default the function's own, from its docstring. `max_calls`: in one
    exec. `approve(name, arguments) -> bool` is asked before each call. Each parameter needs an
    annotation; TypeError says which one lacks it, or cannot be checked.

    `timeout_sec`: how long one call may take; then TimeoutError is raised inside, and the code goes
    on. An async function is cancelled. Any other runs on a thread of its own, which goes on too, to
    its end; it cannot call the session.
    `output_schema`: a JSON schema of what it returns, to be shown; by default that of the return
    annotation, None where there is none or one that cannot be checked. What the function returns is
    checked against the annotation, where it can be.

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
        timeout_sec: float | None = None,
        output_schema: dict[str, Any] | None = None,
    ) -> None:
        if not callable(fn) or isinstance(fn, type):
            raise TypeError(f"a tool is a function, not {fn!r:.100}")
        self.fn = fn
        self.name: str = name or str(getattr(fn, "__name__", ""))
        if not self.name.isidentifier():
            raise ValueError(f"{self.name!r} is not a valid name of a tool: give it name=")
        self.description = description if description is not None else inspect.getdoc(fn) or ""
        self.max_calls = max_calls
        self.approve = approve
        if timeout_sec is not None and type(timeout_sec) not in (int, float):
            raise TypeError(f"timeout_sec takes a number of seconds, not {timeout_sec!r:.100}")
        if timeout_sec is not None and not 0 < timeout_sec <= threading.TIMEOUT_MAX:
            raise ValueError(f"timeout_sec={timeout_sec:g} is not above 0: None is no limit")
        self.timeout_sec = timeout_sec
        self._late: list[threading.Thread] = []  # of calls that took longer, and go on
        self.is_async = inspect.iscoroutinefunction(fn)
        self._signature = inspect.signature(fn)
        self._types = self._resolved()
        self.schema = self._schema()
        self.result_type: Any = Any  # what is checked
        self.output_schema = output_schema
        shared: dict[str, Any] = {}
        try:
            kind = typing.get_type_hints(fn, include_extras=True)["return"]
            schema = schema_of(kind, f"the result of {self.name}()", shared)
        except (KeyError, TypeError):
            return
        self.result_type = kind
        if output_schema is None:
            self.output_schema = {**schema, "$defs": shared} if shared else schema

    def stub(self) -> str:
        """As a function without a body, for prompts."""
        parameters = []
        for name, parameter in self._signature.parameters.items():
            stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
            text = f"{stars}{name}: {type_name(self._types[name])}"
            if parameter.default is not parameter.empty:
                text += f" = {plain(parameter.default)!r}"
            parameters.append(text)
        result = typing.get_type_hints(self.fn).get("return", Any)
        lines = [f"def {self.name}({', '.join(parameters)}) -> {type_name(result)}:"]
        if self.description:
            lines.append(f'    """{self.description}"""')
        return "\n".join([*lines, "    ..."])

    def invoke(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function with arguments that came from a sandbox. Raises TypeError or
        ValueError for wrong ones, PermissionError where `approve` refuses. What it returns is
        plain data; of an async function it is the coroutine.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error!s:.1000}") from None
        for name, value in bound.arguments.items():
            parameter = self._signature.parameters[name]
            kind = self._types[name]
            try:
                if parameter.kind is parameter.VAR_POSITIONAL:
                    built: Any = tuple(_items(((kind, one) for one in value), list))
                elif parameter.kind is parameter.VAR_KEYWORD:
                    built = _values(kind, value)
                else:
                    built = build(kind, value)
            except ArgumentError as error:
                error.steps.append(name)
                raise
            bound.arguments[name] = built
        if self.approve is not None and not self.approve(self.name, dict(bound.arguments)):
            raise PermissionError(f"this call of {self.name}() was not approved")
        if self.timeout_sec is None:
            return self.fn(*bound.args, **bound.kwargs)
        if self.is_async:
            return self._limited(self.fn(*bound.args, **bound.kwargs), self.timeout_sec)
        return self._on_a_thread(bound, self.timeout_sec)

    async def _limited(self, coroutine: Coroutine[Any, Any, Any], timeout: float) -> Any:
        task = asyncio.ensure_future(coroutine)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout)
        finally:
            task.cancel()
        if not done:
            raise self._too_long(timeout)
        return task.result()

    def _on_a_thread(self, bound: inspect.BoundArguments, timeout: float) -> Any:
        result: Future[Any] = Future()
        context = contextvars.copy_context()

        def run() -> None:
            try:
                result.set_result(context.run(self.fn, *bound.args, **bound.kwargs))
            except BaseException as error:
                result.set_exception(error)

        self._late = [one for one in self._late if one.is_alive()]
        if len(self._late) >= _MOST_LATE:
            raise RuntimeError(
                f"{self.name}() is busy: {_MOST_LATE} calls of it took longer than their "
                "timeout_sec and still run"
            )
        thread = threading.Thread(target=run, name=f"hutch-tool-{self.name}", daemon=True)
        thread.start()
        thread.join(timeout)
        if not result.done():
            self._late.append(thread)
            raise self._too_long(timeout)
        return result.result()

    def _too_long(self, timeout: float) -> TimeoutError:
        return TimeoutError(f"{self.name}() took longer than its timeout_sec={timeout:g}")

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
            schema_of(hints[name], f"{self.name}({name})", {})
            found[name] = hints[name]
        return found

    def _schema(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required = []
        shared: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            schema = schema_of(self._types[name], name, shared)
            if parameter.kind is parameter.VAR_POSITIONAL:
                schema = {"type": "array", "items": schema}
            elif parameter.kind is parameter.VAR_KEYWORD:
                schema = {"type": "object", "additionalProperties": schema}
            elif parameter.default is parameter.empty:
                required.append(name)
            else:
                schema = {**schema, "default": plain(parameter.default)}
            properties[name] = schema
        made: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
        return {**made, "$defs": shared} if shared else made


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


def plain(value: Any) -> Any:
    """What a tool returns, as data: dataclasses and models as dicts, enums as their values."""
    kind = type(value)
    if kind in _PLAIN or kind in _DATA:
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if kind is dict:
        return {plain(key): plain(one) for key, one in value.items()}
    if kind is list:
        return [plain(one) for one in value]
    if isinstance(value, tuple):
        return tuple(plain(one) for one in value)
    if dataclasses.is_dataclass(kind):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if callable(getattr(kind, "model_dump", None)):
        return plain(value.model_dump())
    if kind.__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return value.item()
    return value


def type_name(kind: Any) -> str:
    """For a stub: classes of the host's own are dicts to the sandbox."""
    found = bare(kind)
    if found is type(None):
        return "None"
    origin, args = typing.get_origin(found), typing.get_args(found)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if is_union(found):
        return " | ".join(map(type_name, args))
    if origin is not None:
        inside = ", ".join("..." if one is Ellipsis else type_name(one) for one in args)
        return f"{origin.__name__}[{inside}]" if inside else str(origin.__name__)
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return f"Literal[{', '.join(repr(one.value) for one in found)}]"
    if isinstance(found, type) and (is_model(found) or dataclasses.is_dataclass(found)):
        return "dict"
    return found.__name__ if isinstance(found, type) else str(found).replace("typing.", "")


def schema_of(kind: Any, where: str, shared: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of an annotation, with what it refers to in `shared`. Raises TypeError for
    one that cannot be checked.
    """
    kind = bare(kind)
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind in _DATA:
        return {"type": "string", "format": "binary"}
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(args)}
    if is_union(kind):
        return {"anyOf": [schema_of(one, where, shared) for one in args]}
    if kind in _ARRAYS or origin in _ARRAYS:
        items = [one for one in args if one is not Ellipsis]
        if (origin or kind) is tuple and items and Ellipsis not in args:
            return {
                "type": "array",
                "prefixItems": [schema_of(one, where, shared) for one in items],
            }
        return {"type": "array", "items": schema_of(items[0], where, shared) if items else {}}
    if kind is dict or origin is dict:
        if args and bare(args[0]) is not str:
            raise TypeError(f"{where}: the keys of a dict must be annotated as str")
        return {
            "type": "object",
            "additionalProperties": schema_of(args[1], where, shared) if args else {},
        }
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [one.value for one in kind]}
    if isinstance(kind, type) and (is_model(kind) or dataclasses.is_dataclass(kind)):
        seen = validation(kind)
        if seen.acting or seen.refusal:
            raise TypeError(
                f"{where}: {kind.__name__} cannot be built of what a sandbox sends: "
                f"{seen.refusal or seen.acting}"
            )
    if is_model(kind):
        schema = dict(kind.model_json_schema())
        shared.update(schema.pop("$defs", {}))
        return schema
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        fields = [one for one in dataclasses.fields(kind) if one.init]
        return {
            "type": "object",
            "properties": {
                one.name: schema_of(hints[one.name], where, shared)
                | ({} if _is_required(one) else _default_of(one))
                for one in fields
            },
            "required": [one.name for one in fields if _is_required(one)],
        }
    raise TypeError(f"{where}: {kind!r} is not an annotation by which an argument can be checked")


def build(kind: Any, value: Any) -> Any:
    """The argument that this data stands for. Raises ArgumentError, or what a class of the
    caller's raises.
    """
    kind = bare(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind in _PLAIN or kind in _DATA:
        return _expect(type(value) is kind, kind, value)
    if origin is Literal:
        for one in args:
            if type(one) is type(value) and one == value:
                return value
        raise ArgumentError(f"must be one of {', '.join(map(repr, args))}")
    if is_union(kind):
        for one in args:
            try:
                return build(one, value)
            except (TypeError, ValueError):
                continue
        raise ArgumentError(f"must be {type_name(kind)}, not {type(value).__name__}")
    wanted: Any = origin or kind
    if wanted in _ARRAYS:
        _expect(type(value) in _ARRAYS, wanted, value)
        items = [one for one in args if one is not Ellipsis]
        if wanted is tuple and items and Ellipsis not in args:
            if len(value) != len(items):
                raise ArgumentError(f"must have {len(items)} items, not {len(value)}")
            return tuple(_items(zip(items, value), list))
        of = items[0] if items else Any
        return _items(((of, one) for one in value), wanted)
    if wanted is dict:
        _expect(type(value) is dict, dict, value)
        if not args:
            return value
        for key in value:
            _expect(type(key) is str, str, key)
        return _values(args[1], value)
    if issubclass(wanted, enum.Enum):
        for one in wanted:  # not by a call: that makes members of flags, for ever
            if type(one.value) is type(value) and one.value == value:
                return one
        raise ArgumentError(f"must be one of {', '.join(repr(one.value) for one in wanted)}")
    _expect(type(value) is dict and all(type(key) is str for key in value), dict, value)
    if is_model(wanted):
        return _model(wanted, value)
    hints = typing.get_type_hints(wanted)
    fields = {one.name: one for one in dataclasses.fields(wanted) if one.init}
    made = {}
    for key, one in value.items():
        if key not in fields:
            raise ArgumentError(f"has no field {key!r:.100}")
        try:
            made[key] = build(hints[key], one)
        except ArgumentError as error:
            error.steps.append("." + key)
            raise
    for key, field in fields.items():
        if key not in made and _is_required(field):
            raise ArgumentError(f"has no field {key!r}, which it needs")
    return wanted(**made)


def _items(pairs: Iterable[tuple[Any, Any]], make: Callable[[list[Any]], Any]) -> Any:
    made: list[Any] = []
    try:
        for kind, value in pairs:
            made.append(build(kind, value))
    except ArgumentError as error:
        error.steps.append(f"[{len(made)}]")
        raise
    return make(made)


def _values(kind: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    made = {}
    for key, one in value.items():
        try:
            made[key] = build(kind, one)
        except ArgumentError as error:
            error.steps.append(f"[{key!r:.100}]")
            raise
    return made


def _model(wanted: Any, value: dict[str, Any]) -> Any:
    try:
        return wanted.model_validate(value)
    except ValueError as error:
        count = error.error_count() if hasattr(error, "error_count") else 1
        if count > _MOST_ERRORS:
            raise ArgumentError(f"has {count:,} errors for {wanted.__name__}") from None
        raise ArgumentError(f"is not valid: {error!s:.2000}") from None


def _expect(holds: bool, kind: Any, value: Any) -> Any:
    if not holds:
        raise ArgumentError(f"must be {kind.__name__}, not {type(value).__name__}")
    return value


def bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType)


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and callable(getattr(kind, "model_json_schema", None))


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default_of(field: dataclasses.Field[Any]) -> dict[str, Any]:
    return {} if field.default is dataclasses.MISSING else {"default": plain(field.default)}
