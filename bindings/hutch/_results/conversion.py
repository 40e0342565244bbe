# SPDX-License-Identifier: Apache-2.0
"""What pydantic may do with plain data of which it makes objects: whether that acts on this
process, and how much work it may be. Results are of the types that they are annotated with before
pydantic sees them (validating.py); arguments of tools are not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from hutch._results.validating import act_of, branches_of, children, meets_itself


class Conversion(NamedTuple):
    """`refusal`: why no data of a sandbox may be converted so, or "". `tries`: how often one value
    may be looked at, at most. `hashes`: whether other values than text may be put into sets, or be
    keys, for which code inside can choose those of one hash. `decimals`: whether numbers may be
    made Decimals.
    """

    refusal: str = ""
    tries: int = 1
    hashes: bool = False
    decimals: bool = False


# Nodes and functions that a short text may keep busy for long, or a long one for very long.
_BOUNDLESS = {
    "fraction": "a Fraction",
    "fraction_validator": "a Fraction",
    "json": "anything",
    "pattern_either_validator": "a regular expression",
    "pattern_str_validator": "a regular expression",
    "pattern_bytes_validator": "a regular expression",
}
_OF_ZONES = "validate_str_is_valid_iana_tz"  # a result has a ZoneInfo before pydantic sees it
_HASHED_SAFELY = {"str", "literal", "enum", "bool", "none"}


def conversion(schema: Any) -> Conversion:
    """By the core schema of a type."""
    nodes = list(_nodes(schema))
    by_name = {node["ref"]: node for node in nodes if isinstance(node.get("ref"), str)}
    unions = [node for node in nodes if node.get("type") == "union"]
    for node in nodes:
        refusal = _refusal(node, by_name)
        if refusal:
            return Conversion(refusal)
    most = max((len(union.get("choices", ())) for union in unions), default=1)
    tries = _tries(nodes, by_name) * max(most, 1)
    decimals = any(node.get("type") == "decimal" for node in nodes)
    return Conversion("", tries, any(map(_hashes, nodes)), decimals)


def _refusal(node: dict[Any, Any], by_name: dict[Any, Any]) -> str:
    act = act_of(node)
    if act:
        return f"a type in it {act}, here, outside of the sandbox"
    name = getattr(node.get("function"), "__name__", "")
    if name == _OF_ZONES:
        return "a type in it looks for the file of a time zone of that name: make it a str"
    if node.get("type") in _BOUNDLESS or name in _BOUNDLESS:
        what = _BOUNDLESS[name if name in _BOUNDLESS else node["type"]]
        return f"a type in it makes {what} of text, which may take any time: make it a str"
    if node.get("type") == "model" and node.get("custom_init"):
        return _refusal_of_init(node["cls"])
    is_many = node.get("type") == "union" and branches_of(node, by_name) > 1
    if is_many and meets_itself(node, by_name, into_records=True):
        return (
            "a union in it holds itself, and pydantic would try each choice at every level: tell "
            "them apart by a field, Annotated[A | B, Field(discriminator=…)]"
        )
    return ""


def _refusal_of_init(kind: Any) -> str:
    """Its own `__init__` is given the keys of the data, as of pydantic-settings, where one names a
    file that is read.
    """
    known = {"self", *kind.model_fields}
    for field in kind.model_fields.values():
        known |= {one for one in (field.alias, field.validation_alias) if isinstance(one, str)}
    try:
        parameters = inspect.signature(kind.__init__).parameters.values()
    except (TypeError, ValueError):
        return f"the parameters of {kind.__qualname__}.__init__ are not known"
    for one in parameters:
        takes_any = one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        if takes_any or one.name not in known:
            what = "any key" if takes_any else f"{one.name!r}, which is no field"
            return (
                f"{kind.__qualname__}.__init__ takes {what}, and would be given what code inside "
                "chooses: put what it does into a validator (@model_validator)"
            )
    return ""


def _hashes(node: dict[Any, Any]) -> bool:
    """A set of anything is made of numbers, too; keys of anything are those of a dict that is."""
    if node.get("type") in ("set", "frozenset"):
        return node.get("items_schema", {}).get("type") not in _HASHED_SAFELY
    if node.get("type") in ("dict", "counter"):
        return node.get("keys_schema", {}).get("type", "any") not in {*_HASHED_SAFELY, "any"}
    return False


def _tries(nodes: list[dict[Any, Any]], by_name: dict[Any, Any]) -> int:
    """The most choices that may be tried for a container, over all unions on a way to a value. No
    union with several lies on a way back to itself, so that this comes to an end.
    """
    found = {id(node): 1 for node in nodes}
    own = {id(node): _branches(node, by_name) for node in nodes}
    changed = True
    while changed:
        changed = False
        for node in reversed(nodes):
            below = max((found[id(one)] for one in _children(node, by_name)), default=1)
            if own[id(node)] * below > found[id(node)]:
                found[id(node)] = own[id(node)] * below
                changed = True
    return max(found.values(), default=1)


def _branches(node: dict[Any, Any], by_name: dict[Any, Any]) -> int:
    return branches_of(node, by_name) if node.get("type") == "union" else 1


def _children(node: dict[Any, Any], by_name: dict[Any, Any]) -> Iterator[dict[Any, Any]]:
    if node.get("type") == "definition-ref" and node.get("schema_ref") in by_name:
        yield by_name[node["schema_ref"]]
    stack = list(children(node))
    while stack:
        one = stack.pop()
        if isinstance(one, (list, tuple)):
            stack.extend(one)
        elif isinstance(one, dict):
            yield one


def _nodes(schema: Any) -> Iterator[dict[Any, Any]]:
    visited: set[int] = set()
    stack = [schema]
    while stack:
        node = stack.pop()
        if id(node) not in visited and isinstance(node, dict):
            visited.add(id(node))
            yield node
            stack.extend(_children(node, {}))
