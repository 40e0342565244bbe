# SPDX-License-Identifier: Apache-2.0
"""What pydantic does to the fields of a class when it validates them, as its schema says: whether
that acts on this process, and how often it may look at one value.
"""

from __future__ import annotations

import sys
import typing
import weakref
from typing import Any, Iterable, Iterator, NamedTuple

from hutch._results.types import field_hints, is_record, record_fields, resolved


class Validation(NamedTuple):
    """What pydantic does to the fields of a class. `acting`: the first field whose validation acts
    on the process it runs in, "" where there is none; `refusal`: why it is not validated, or "".
    `branches`: among how many choices a container may have to be tried at every level of nesting,
    where the types name themselves; 1 where they do not. `into_records`: pydantic looks into models
    that are built already. `extra`: what fields are annotated with that the class does not have.
    `paths`: the fields in whose annotation a `Path` is named.
    """

    acting: str = ""
    refusal: str = ""
    branches: int = 1
    into_records: bool = False
    extra: Any = Any
    paths: frozenset[str] = frozenset()


_ACTS = {
    "import_string": "imports the module that it names",
    "PathType.validate_file": "looks for a file of that name",
    "PathType.validate_directory": "looks for a directory of that name",
    "PathType.validate_new": "looks for a file of that name",
    "PathType.validate_socket": "looks for a socket of that name",
}
_NOT_WALKED = {"serialization", "metadata", "default", "cls", "config", "ref"}
_BY_NAME = {"fields", "choices"}  # their keys are the caller's
_validations: weakref.WeakKeyDictionary[type, Validation] = weakref.WeakKeyDictionary()


def validation(kind: type) -> Validation:
    """For a pydantic model or dataclass; empty for another class."""
    known = _validations.get(kind)
    if known is not None:
        return known
    if not hasattr(kind, "__pydantic_core_schema__"):
        if hasattr(kind, "__pydantic_model__"):
            return Validation(
                refusal=f"{kind.__qualname__} is a dataclass of pydantic 1, whose validation may "
                "import or look for what a cell names: make it one of pydantic 2 or of dataclasses"
            )
        return Validation()
    if getattr(kind, "__pydantic_complete__", True) is False:
        pydantic = sys.modules["pydantic"]
        if issubclass(kind, pydantic.BaseModel):
            kind.model_rebuild(raise_errors=False)  # type: ignore[attr-defined]
        else:
            pydantic.dataclasses.rebuild_dataclass(kind, raise_errors=False)
    if getattr(kind, "__pydantic_complete__", True) is False:
        return Validation(refusal=f"{kind.__qualname__} names types that are not defined yet")
    return _validations.setdefault(kind, _of_schema(kind))


def _of_schema(kind: type) -> Validation:
    acting = act = ""
    recursive = into_records = False
    unions: list[dict[Any, Any]] = []
    by_name: dict[Any, Any] = {}  # the schemas that others refer to
    visited: set[int] = set()
    stack: list[tuple[Any, str]] = [(kind.__pydantic_core_schema__, "")]  # type: ignore[attr-defined]
    while stack:
        node, path = stack.pop()
        if isinstance(node, (list, tuple)):
            stack.extend((item, path) for item in node)
        elif isinstance(node, dict):
            if id(node) in visited:
                continue
            visited.add(id(node))
            recursive = recursive or node.get("type") == "definition-ref"
            if node.get("type") == "union":
                unions.append(node)
            if isinstance(node.get("ref"), str):
                by_name[node["ref"]] = node
            config = node.get("config")
            if isinstance(config, dict):
                revalidates = config.get("revalidate_instances", "never") != "never"
                into_records = into_records or revalidates or bool(config.get("from_attributes"))
            for key, item in node.items():
                if key == "fields" and isinstance(item, dict):
                    stack.extend(
                        (field, f"{path}.{name}" if path else str(name))
                        for name, field in item.items()
                    )
                elif key == "fields" and isinstance(item, list):  # of a dataclass
                    for field in item:
                        name = field.get("name", "") if isinstance(field, dict) else ""
                        stack.append((field, f"{path}.{name}" if path else str(name)))
                elif key in _BY_NAME and isinstance(item, dict):
                    stack.extend((one, path) for one in item.values())
                elif key not in _NOT_WALKED:
                    stack.append((item, path))
        elif callable(node):
            does = _act_of_function(node)
            if does:
                acting, act = path or "root", does
    refusal = ""
    if acting:
        acting = f"{kind.__qualname__}.{acting}"
        refusal = (
            f"{acting} is of a type whose validation {act}, here, outside of the sandbox; what a "
            "cell returns may not make it do so"
        )
    branches = 1
    for union in unions if recursive else ():
        count = branches_of(union, by_name)
        if count > branches and meets_itself(union, by_name, into_records):
            branches = count
    extra = typing.get_args(_extra_hint(kind))
    extra_hint = extra[1] if len(extra) == 2 else Any
    hints = field_hints(kind)
    paths = frozenset(name for name, hint in hints.items() if _names_path(hint))
    return Validation(acting, refusal, branches, into_records, extra_hint, paths)


def _act_of_function(function: Any) -> str:
    """What one of pydantic's own does to this process, or ""."""
    function = getattr(function, "func", function)  # of a partial
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", "")
    return _ACTS.get(name, "") if module.split(".")[0] == "pydantic" else ""


def act_of(node: dict[Any, Any]) -> str:
    """What validation by one node of a schema does to this process, or ""."""
    return _act_of_function(node.get("function"))


def children(node: dict[Any, Any]) -> Iterator[Any]:
    """What one node of a schema holds: nodes, and lists and tuples of these."""
    for key, item in node.items():
        if key in _BY_NAME and isinstance(item, dict):
            yield from item.values()
        elif key not in _NOT_WALKED:
            yield item


_SPARE_TRIES = 1024
_TRIES_OF_VALUE = 64
_LISTS = {"list", "tuple", "set", "frozenset", "generator", "call"}
_MAPS = {"dict", "typed-dict"}
_NO_CONTAINERS = {
    *("none", "bool", "int", "float", "decimal", "str", "bytes", "complex", "date", "time"),
    *("datetime", "timedelta", "literal", "enum", "uuid", "url", "multi-host-url"),
    *("is-instance", "is-subclass", "missing-sentinel"),
}


def branches_of(union: dict[Any, Any], by_name: dict[Any, Any]) -> int:
    """How many choices of a union may be tried on one container."""
    lists = maps = 0
    for choice in union.get("choices", ()):
        choice = choice[0] if isinstance(choice, tuple) else choice
        for _ in range(len(by_name) + 1):  # a reference may name another one
            if choice.get("type") != "definition-ref":
                break
            choice = by_name.get(choice.get("schema_ref"), {})
        form = choice.get("type")
        lists += form not in _MAPS and form not in _NO_CONTAINERS
        maps += form not in _LISTS and form not in _NO_CONTAINERS
    return max(lists, maps, 1)


def meets_itself(union: dict[Any, Any], by_name: dict[Any, Any], into_records: bool) -> bool:
    """Whether what a choice of the union holds may be of the union again. What belongs into a field
    of a model is a model that was built, into which pydantic does not look.
    """
    visited: set[int] = set()
    stack: list[Any] = list(union["choices"])
    while stack:
        node = stack.pop()
        if node is union:
            return True
        if isinstance(node, (list, tuple)):
            stack.extend(node)
        elif isinstance(node, dict) and id(node) not in visited:
            visited.add(id(node))
            if node.get("type") == "definition-ref":
                stack.append(by_name.get(node.get("schema_ref")))
            elif into_records or node.get("type") not in ("model", "dataclass"):
                stack.extend(children(node))
    return False


def _extra_hint(kind: type) -> Any:
    """How `__pydantic_extra__` is annotated."""
    for base in kind.__mro__:
        hint = vars(base).get("__annotations__", {}).get("__pydantic_extra__")
        if hint is not None:
            return resolved(hint, vars(sys.modules.get(base.__module__, typing)))
    return Any


def is_tried_often(values: Iterable[Any], seen: Validation) -> bool:
    """Whether pydantic may look at what these hold far more often than once, as it tries several
    choices at every level of nesting.
    """
    looked = tries = 0
    stack = [(value, 1) for value in values]
    while stack:
        value, times = stack.pop()
        looked += 1
        tries += times
        if tries > _SPARE_TRIES + _TRIES_OF_VALUE * (looked + len(stack)):
            return True
        held: Iterable[Any] = ()
        if isinstance(value, dict):
            held = value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            held = value
        elif seen.into_records and is_record(type(value)):
            held = (item for _, item in record_fields(value))
        stack.extend((item, times * seen.branches) for item in held)
    return False


def _names_path(annotation: Any) -> bool:
    pathlib = sys.modules["pathlib"]  # pydantic imported it
    if annotation is pathlib.Path or annotation is pathlib.PosixPath:
        return True
    return any(map(_names_path, typing.get_args(annotation)))
