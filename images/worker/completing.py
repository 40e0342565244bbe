# SPDX-License-Identifier: Apache-2.0
"""How a text of code may go on: names, attributes, keys, modules and parameters. Nothing of the
text is run, and no module is imported. One thread.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import keyword
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import lookup
from lookup import CHAIN

MOST = 1000  # matches
MOST_LENGTH = 200  # characters of one
MOST_SEEN = 100_000  # names that are looked at
REACH = 2000  # characters before the end in which an expression may begin

NO_PART = r"(?<![\w.)\]}'\"])"  # whether it is no part of a longer expression
ATTRIBUTE = re.compile(rf"{NO_PART}({CHAIN})\s*\.\s*(\w*)\Z")
OF_TEXT = re.compile(r"\s*\.\s*(\w*)\Z")
NAMED = re.compile(r"(?:^|, )(\w+)(?=[=,)])")  # parameters of a signature as text
KEYED = re.compile(rf"{NO_PART}({CHAIN})\[\s*(?:\[[^\[\]]*)?\Z")
CALLED = re.compile(rf"{NO_PART}({CHAIN})\Z")
WORD = re.compile(r"\w*\Z")
OF_MODULE = re.compile(r"\s*from\s+(\w[\w.]*)\s+import\s+\(?(?:[\w\s]*,)*\s*(\w*)\Z")
MODULE = re.compile(r"\s*(?:from\s+|import\s+(?:[\w.\s]+,)*\s*)((?:\w[\w.]*)?)\Z")
TOKEN = re.compile(r"#[^\n]*|([A-Za-z]{0,2})(\"\"\"|'''|\"|')|[()\[\]{}\n;]")
BODY = {
    quote: re.compile(
        rf"(?:\\[\s\S]|(?!{quote})[^\\])*" if len(quote) == 3 else rf"(?:\\[\s\S]|[^\\\n{quote}])*"
    )
    for quote in ('"""', "'''", '"', "'")
}
SUFFIXES = tuple(importlib.machinery.all_suffixes())


class Place(NamedTuple):
    """Where a text ends. `statement`: where the last one begins. `brackets`: those that are open,
    with their places. `kind`, `quote`, `content`: of the string that it ends in, else "", "" and 0.
    `texts`: where each string ends that is whole, with its kind.
    """

    statement: int
    brackets: list[tuple[str, int]]
    kind: str = ""
    quote: str = ""
    content: int = 0
    in_comment: bool = False
    texts: dict[int, str] = {}


def end_of(text: str) -> Place:
    at = statement = 0
    brackets: list[tuple[str, int]] = []
    texts: dict[int, str] = {}
    while (token := TOKEN.search(text, at)) is not None:
        at = token.end()
        kind, quote = token.groups()
        if quote:
            body = BODY[quote].match(text, at)
            end = at if body is None else body.end()
            if end == len(text):
                return Place(statement, brackets, kind.lower(), quote, at)
            at = end + len(quote) if text.startswith(quote, end) else end
            texts[at] = kind.lower()
        elif token[0] in "([{":
            brackets.append((token[0], token.start()))
        elif token[0] in ")]}":
            del brackets[-1:]
        elif token[0][0] == "#":
            if at == len(text):
                return Place(statement, brackets, in_comment=True)
        elif not brackets or token[0] == ";":
            statement = at
    return Place(statement, brackets, texts=texts)


def complete(space: dict[str, Any], text: str) -> tuple[list[str], int]:
    """The matches, sorted, and where the text begins that each of them replaces."""
    place = end_of(text)
    if place.in_comment:
        return [], len(text)
    if place.quote:
        content = text[place.content :]
        inner = content.rfind("{")
        if "f" in place.kind and inner > content.rfind("}"):
            matches, start = complete(space, content[inner + 1 :])
            return matches, place.content + inner + 1 + start
        return keys(space, text, place, content), place.content
    statement = text[max(place.statement, len(text) - REACH) :]
    found = OF_MODULE.match(statement)
    if found is not None:
        return chosen(members(found[1]), found[2]), len(text) - len(found[2])
    found = MODULE.match(statement)
    if found is not None:
        package, _, prefix = found[1].rpartition(".")
        return chosen(modules(package, prefix), prefix), len(text) - len(prefix)
    reach = max(0, len(text) - REACH)
    found = ATTRIBUTE.search(text, reach)
    if found is not None:
        is_part = text[: found.start()].rstrip().endswith(".")
        known = iter(()) if is_part else attributes(space, found[1])
        return chosen(known, found[2]), found.start(2)
    found = OF_TEXT.search(text, reach)
    if found is not None and found.start() in place.texts:
        value = b"" if "b" in place.texts[found.start()] else ""
        return chosen(lookup.attributes_of(value), found[1]), found.start(1)
    prefix = WORD.search(text, reach)[0]  # type: ignore[index]
    start = len(text) - len(prefix)
    before = text[:start].rstrip() if place.brackets else text[:start]
    if before.endswith(".") or prefix[:1].isdigit():
        return [], start
    return chosen(names(space, text[:start], place), prefix), start


def chosen(found: Iterable[Any], prefix: str) -> list[str]:
    """Those that begin so; what begins with `_` only where that does. What comes first is kept
    where there are too many.
    """
    kept: set[str] = set()
    for count, name in enumerate(found):
        if len(kept) == MOST or count == MOST_SEEN:
            break
        if type(name) is not str or not name.startswith(prefix) or len(name) > MOST_LENGTH:
            continue
        if name.removesuffix("=").isidentifier() and (prefix or name[0] != "_"):
            kept.add(name)
    return sorted(kept)


def names(space: dict[str, Any], before: str, place: Place) -> Iterator[Any]:
    if place.brackets and place.brackets[-1][0] == "(" and before.rstrip()[-1:] in ("(", ","):
        at = place.brackets[-1][1]
        called = CALLED.search(before, max(0, at - REACH), at)
        if called is not None:
            yield from parameters(space, called[1])
    yield from [*space]
    yield from keyword.kwlist
    yield from [*vars(builtins)]


def parameters(space: dict[str, Any], called: str) -> list[str]:
    try:
        value = lookup.value_of(space, called)
    except LookupError:
        return []
    function, given = lookup.function_of(value)
    if function is None:
        named = lookup.signature_of_c(value).rpartition("/")[2].removeprefix("(")
        return [f"{name}=" for name in NAMED.findall(named)]
    code = function.__code__
    first, end = max(given, code.co_posonlyargcount), code.co_argcount + code.co_kwonlyargcount
    return [f"{name}=" for name in code.co_varnames[first:end]]


def attributes(space: dict[str, Any], chain: str) -> Iterator[Any]:
    try:
        value = lookup.value_of(space, chain)
    except LookupError:
        return iter(())
    return lookup.attributes_of(value)


def keys(space: dict[str, Any], text: str, place: Place, prefix: str) -> list[str]:
    """The keys that may follow, as they stand in such a string."""
    before = place.content - len(place.quote) - len(place.kind)
    found = KEYED.search(text, max(0, before - REACH), before)
    chain = of_columns(text, place) if found is None else found[1]
    if not chain or "b" in place.kind:
        return []
    try:
        value = lookup.value_of(space, chain)
    except LookupError:
        return []
    kept: set[str] = set()
    for count, key in enumerate(lookup.keys_of(value)):
        if len(kept) == MOST or count == MOST_SEEN:
            break
        if type(key) is not str or len(key) > MOST_LENGTH // 2 or not key.isprintable():
            continue
        written = key.replace("\\", "\\\\").replace(place.quote[0], "\\" + place.quote[0])
        if written.startswith(prefix) and (written == key or "r" not in place.kind):
            kept.add(written)
    return sorted(kept)


def of_columns(text: str, place: Place) -> str:
    """The frame of whose columns one follows, as in `frame.loc[rows, "`, or ""."""
    for bracket, at in place.brackets[:-3:-1]:
        found = CALLED.search(text, max(0, at - REACH), at) if bracket == "[" else None
        if found is not None:
            chain, _, place_of = found[1].rpartition(".")
            return chain if place_of in ("loc", "at") and "," in text[at:] else ""
    return ""


# ---- modules


def members(module: str) -> Iterator[Any]:
    """What can be imported from it, as far as that is known without its import."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        yield from [*lookup.own_of(loaded)]
    yield from modules(module, "")


def modules(package: str, prefix: str) -> Iterator[str]:
    """Those in a package, or "": all that are in none."""
    places: Any = sys.path
    if package:
        loaded = sys.modules.get(package)
        places = None if loaded is None else lookup.own_of(loaded).get("__path__")
        if type(places) is not list:
            places = [
                os.path.join(one, *package.split(".")) for one in sys.path if type(one) is str
            ]
    else:
        yield from sorted(sys.stdlib_module_names)
    for place in places:
        if type(place) is str:
            yield from modules_at(place or ".", prefix)


def modules_at(place: str, prefix: str) -> Iterator[str]:
    try:
        found = os.listdir(place)
    except OSError:
        return
    for entry in found:
        name, dot, _ = entry.partition(".")
        if not name.startswith(prefix) or name == "__init__":
            continue
        if entry.endswith(SUFFIXES) if dot else os.path.isdir(os.path.join(place, entry)):
            yield name
