# SPDX-License-Identifier: Apache-2.0
"""Tools: functions of the host that a session's code may call, with arguments that are checked.

What arrives are plain data, from a sandbox. They are checked against the function's annotations, or
against a schema, and classes that the annotations name are built, before the function is called.
"""

from __future__ import annotations

import copy
import functools
import inspect
import keyword
import re
import threading
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from hutch import _given_schema
from hutch._tool_data import default_in_schema
from hutch._tool_descriptions import descriptions_of
from hutch._tool_kinds import Kind
from hutch._tool_late import LateCalls
from hutch._tool_stubs import Stub
from hutch._tool_types import description_of, kind_of

_API_NAME = re.compile(r"[a-zA-Z0-9_]{1,64}")


class Tool:
    """A function of the host, as a session's code sees it.

    `name`, `description`: by default the function's own, from its docstring. `max_calls`: in one
    exec. `approve(name, arguments)` is asked before each call, which is made only if it returns
    True; it may be async where the tool may be. Each parameter needs an annotation, or a place in
    `input_schema`; TypeError says which one lacks it, or cannot be checked. ValueError: a name that
    code cannot call it by, a schema that cannot be checked.

    `schema`: the JSON schema of its arguments, with what `Annotated[…]` and the docstring say of
    each, and bounds. `to_openai()`, `to_anthropic()` and `to_mcp()` are the tool for a model's API.

    `input_schema`: a JSON schema of its arguments, as an object, which takes the place of the one
    that follows from annotations. All arguments are checked against it; those whose parameters are
    annotated also against that, and only they are built. A function that takes `**arguments` gets
    what the schema names.
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
        approve: Callable[[str, dict[str, Any]], bool | Awaitable[bool]] | None = None,
        timeout_sec: float | None = None,
        input_schema: dict[str, Any] | None = None,
        output_schema: dict[str, Any] | None = None,
    ) -> None:
        if not callable(fn) or isinstance(fn, type):
            raise TypeError(f"a tool is a function, not {fn!r:.100}")
        self.fn = fn
        self.name: str = name or str(getattr(fn, "__name__", ""))
        if not self.name:
            kind = type(fn).__name__
            raise ValueError(f'{kind} objects have no name: Tool(…, name="search") gives one')
        if not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise ValueError(f"{self.name!r} is not a valid name of a tool: give it name=")
        annotated = _annotated(fn)
        if inspect.isgeneratorfunction(annotated) or inspect.isasyncgenfunction(annotated):
            raise TypeError(
                f"{self.name}() cannot be a tool: it is a generator, whose values arrive one by "
                "one: have it return them as a list"
            )
        self.description = inspect.getdoc(annotated) or "" if description is None else description
        self.max_calls = max_calls
        self.approve = approve
        if timeout_sec is not None and type(timeout_sec) not in (int, float):
            raise TypeError(f"timeout_sec takes a number of seconds, not {timeout_sec!r:.100}")
        if timeout_sec is not None and not 0 < timeout_sec <= threading.TIMEOUT_MAX:
            raise ValueError(f"timeout_sec={timeout_sec:g} is not above 0: None is no limit")
        self.timeout_sec = timeout_sec
        self.late = LateCalls()  # of functions
        self.asks_later = approve is not None and inspect.iscoroutinefunction(_annotated(approve))
        self.is_async = inspect.iscoroutinefunction(annotated)
        self.needs_loop = self.is_async or self.asks_later
        self.given = None if input_schema is None else _given_schema.Schema(input_schema)
        self._properties = {} if input_schema is None else input_schema.get("properties", {})
        try:
            self.signature = inspect.signature(fn)
        except ValueError:
            raise TypeError(
                f"{self.name}() cannot be a tool: its parameters are not known"
            ) from None
        self._types = self._resolved(annotated)
        self.kinds = dict(self._known())
        self._descriptions = self._described()
        self.schema = self._schema() if input_schema is None else input_schema
        self.result_type: Any = Any  # what is checked
        self.output_schema = output_schema
        shared: dict[str, Any] = {}
        try:
            result_type = self._types["return"]
            schema = kind_of(result_type, f"the result of {self.name}()").schema(shared)
        except (KeyError, TypeError):
            return
        self.result_type = result_type
        if output_schema is None:
            self.output_schema = {**schema, "$defs": shared} if shared else schema

    def __getstate__(self) -> dict[str, Any]:
        """All but what runs in this process."""
        here = ("late", "kinds")
        return {name: value for name, value in vars(self).items() if name not in here}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, late=LateCalls())
        self.kinds = dict(self._known())

    def stub(self) -> str:
        """As a function without a body, for prompts, after the classes that it names: code passes
        dicts for these.
        """
        return self._stub().text()

    def inside(self, beside: bool = False) -> tuple[Any, ...]:
        """What code inside is given of it, as plain data. `beside`: others may run at the same
        time, if it is async.
        """
        return self._stub().inside(beside)

    def to_openai(self) -> dict[str, Any]:
        """As OpenAI's chat completions take it in `tools=`; its Responses API takes the part
        `["function"]`, with a `"type": "function"` in it. ValueError: a name that no API takes.
        """
        function = {"name": self._api_name(), "description": self.description}
        return {"type": "function", "function": {**function, "parameters": self._copied_schema()}}

    def to_anthropic(self) -> dict[str, Any]:
        """As Anthropic's messages take it in `tools=`. ValueError: a name that no API takes."""
        about = {"name": self._api_name(), "description": self.description}
        return {**about, "input_schema": self._copied_schema()}

    def to_mcp(self) -> dict[str, Any]:
        """As a server of the Model Context Protocol lists it: with its `outputSchema` where that is
        of an object. ValueError: a name that no client takes.
        """
        about = {"name": self._api_name(), "description": self.description}
        made: dict[str, Any] = {**about, "inputSchema": self._copied_schema()}
        if self.output_schema is not None and self.output_schema.get("type") == "object":
            made["outputSchema"] = copy.deepcopy(self.output_schema)
        return made

    def _api_name(self) -> str:
        if not _API_NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r:.100} is no name for a model's API: give it name=, of at most 64 "
                "ASCII letters, digits and underscores"
            )
        return self.name

    def _copied_schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {}, **copy.deepcopy(self.schema)}

    def _stub(self) -> Stub:
        noted = {
            name: text
            for name, text in self._descriptions.items()
            if text not in " ".join(self.description.split())
        }
        about = (self.name, self.description, noted)
        given = None if self.given is None else self.schema
        return Stub(*about, self.signature, self._types, given, self.is_async)

    def _resolved(self, annotated: Any) -> dict[str, Any]:
        try:
            return typing.get_type_hints(annotated, include_extras=True)
        except Exception as error:
            raise TypeError(
                f"the annotations of {self.name}() cannot be resolved: {error}"
            ) from None

    def _known(self) -> Iterator[tuple[str, Kind]]:
        """Each parameter that is annotated. Raises TypeError for one that neither an annotation nor
        a schema describes.
        """
        for name, parameter in self.signature.parameters.items():
            if type(parameter.default).__name__ == "FieldInfo":
                raise TypeError(
                    f"{self.name}({name}): a default is not a Field(…): write "
                    f"{name}: Annotated[…, Field(…)] = the default"
                )
            if name in self._types:
                yield name, kind_of(self._types[name], f"{self.name}({name})")
            elif self.given is None:
                raise TypeError(
                    f"{self.name}() cannot be a tool: its parameter {name!r} has no annotation to "
                    "check arguments against"
                )
            elif name not in self._properties and parameter.kind is not parameter.VAR_KEYWORD:
                raise TypeError(
                    f"{self.name}() cannot be a tool: its parameter {name!r} has neither an "
                    "annotation nor a place in the properties of input_schema="
                )

    def _described(self) -> dict[str, str]:
        """What is said of each parameter, by its annotation or the docstring."""
        found = descriptions_of(self.description, self.signature.parameters)
        for name in self.signature.parameters:
            said = description_of(self._types.get(name))
            if said:
                found[name] = said
        for name, schema in self._properties.items():
            told = schema.get("description") if isinstance(schema, dict) else None
            if isinstance(told, str) and told:
                found[name] = told
        return found

    def _schema(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required = []
        shared: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            schema = self.kinds[name].schema(shared)
            if parameter.kind is parameter.VAR_POSITIONAL:
                schema = {"type": "array", "items": schema}
            elif parameter.kind is parameter.VAR_KEYWORD:
                schema = {"type": "object", "additionalProperties": schema}
            elif parameter.default is parameter.empty:
                required.append(name)
            else:
                schema = {**schema, **default_in_schema(parameter.default)}
            if name in self._descriptions:
                schema = {**schema, "description": self._descriptions[name]}
            properties[name] = schema
        made: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
        return {**made, "$defs": shared} if shared else made


def _annotated(fn: Any) -> Any:
    """The function whose annotations those of its parameters are."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn if inspect.isroutine(fn) else type(fn).__call__


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
