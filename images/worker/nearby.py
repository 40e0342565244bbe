# SPDX-License-Identifier: Apache-2.0
"""Names that code may have meant, where it named a file or a column that is not there.

They are looked for where it failed, in bounded time, and only for a hint: the client takes them as
text. Nothing is imported before an error wants it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

MOST = 3  # names that are suggested
MOST_LENGTH = 200  # characters of one
MOST_SEEN = 2000  # names that are looked at
DEEPEST = 3  # directories below the one where it is looked
QUOTED = re.compile(r"'([^'\n]{1,200})'")


def near(error: BaseException) -> list[str]:
    """The nearest first; none where that is not known."""
    try:
        if isinstance(error, FileNotFoundError):
            return near_path(error.filename)
        if isinstance(error, KeyError):
            return near_key(error)
    except Exception:
        pass
    return []


def nearest(name: str, names: Iterator[str]) -> list[str]:
    from difflib import get_close_matches

    known: dict[str, str] = {}  # by what they are in small letters
    for count, one in enumerate(names):
        if count == MOST_SEEN:
            break
        if len(one) <= MOST_LENGTH and one.isprintable():
            known.setdefault(one.lower(), one)
    found = get_close_matches(name.lower(), known, MOST)
    return [known[one] for one in found]


def near_path(path: Any) -> list[str]:
    """Of the directory that it names, or else of the files below the working directory that have
    such a name.
    """
    if type(path) is not str or not 0 < len(path) <= 4096:
        return []
    above, name = os.path.split(path)
    if os.path.isdir(above or "."):
        found = nearest(name, iter(os.listdir(above or ".")))
        if found:
            return [os.path.join(above, one) for one in found]
    places: dict[str, str] = {}
    for place in below("."):
        places.setdefault(os.path.basename(place), place)
    return [places[one] for one in nearest(name, iter(places))]


def below(place: str) -> Iterator[str]:
    seen = 0
    for here, directories, files in os.walk(place):
        where = os.path.relpath(here, place)
        depth = 0 if where == "." else where.count("/") + 1
        if depth >= DEEPEST:
            directories.clear()
        for name in files:
            seen += 1
            if seen > MOST_SEEN:
                return
            yield os.path.normpath(os.path.join(where, name))


def near_key(error: KeyError) -> list[str]:
    """Of the labels of the pandas index in which it was looked for."""
    kind = getattr(sys.modules.get("pandas"), "Index", None)
    if kind is None:
        return []
    index = None
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, kind):
            index = owner
        trace = trace.tb_next
    if index is None or not error.args:
        return []
    key = error.args[0]
    wanted = QUOTED.findall(key)[:MOST] if type(key) is str else []
    names = wanted if wanted else [key] if type(key) is str else []
    labels = [one for one in index[:MOST_SEEN] if type(one) is str]
    return list(dict.fromkeys(one for name in names for one in nearest(name, iter(labels))))[:MOST]
