# SPDX-License-Identifier: Apache-2.0
"""Files of problems and of samples: read, and checked before anything runs. Safe on any thread."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Problems = dict[str, dict[str, Any]]  # keys are task_name()
Fields = Mapping[str, tuple[type, ...]]

_MBPP_ID = re.compile(r"(?:mbpp/)?0*([0-9]{1,9})", re.IGNORECASE)


class BadInput(ValueError):
    """A file that cannot be used. `message` says what is wrong in it, `hint` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}\nhint: {hint}")
        self.message = message
        self.hint = hint


def task_name(given: Any) -> str | None:
    """By which a problem is found: of MBPP's numbers, 2, "2", "MBPP/2" and "Mbpp/2" are one. None
    for what is no name.
    """
    if type(given) is int:
        given = str(given) if 0 <= given < 1 << 30 else None
    if not isinstance(given, str):
        return None
    number = _MBPP_ID.fullmatch(given)
    return f"Mbpp/{number[1]}" if number else given


def read_problems(path: Path, fields: Fields, hint: str) -> Problems:
    """Those of a file, each an object with `fields`. Raises BadInput, with `hint` where it is
    another kind of file, and OSError.
    """
    problems: Problems = {}
    for place, one in _objects(path):
        name = task_name(one.get("task_id"))
        if name is None:
            raise BadInput(f"{place} has no task_id", hint)
        for field, kinds in fields.items():
            if not isinstance(one.get(field), kinds):
                wanted = " or ".join(dict.fromkeys(_NAMES[kind] for kind in kinds))
                raise BadInput(f"{place} has no {field!r} that is {wanted}", hint)
        problems[name] = one
    if not problems:
        raise BadInput(f"{path} has no problems", hint)
    return problems


def read_samples(path: Path, problems: Problems) -> list[dict[str, Any]]:
    """Those of a file: each has a `task_id` of `problems`, and a text called `completion` or
    `solution`. Raises BadInput and OSError.
    """
    hint = 'a sample is {"task_id": …, "completion": …}, or "solution" for a whole program'
    samples = []
    for place, one in _objects(path):
        name = task_name(one.get("task_id"))
        if name is None:
            raise BadInput(f"{place} has no task_id", hint)
        if name not in problems:
            known = ", ".join(map(repr, list(problems)[:3]))
            raise BadInput(
                f"{place}: no problem is {one['task_id']!r}",
                f"problems here are called {known} …: name their file with --problems",
            )
        for field in ("solution", "completion"):
            if field in one and not isinstance(one[field], str):
                raise BadInput(
                    f"{place}: its {field} is no text, but {_NAMES.get(type(one[field]), 'null')}",
                    "where a task has several, write one sample for each",
                )
        if "solution" not in one and "completion" not in one:
            raise BadInput(f"{place} has no completion and no solution", hint)
        samples.append(one)
    if not samples:
        raise BadInput(f"{path} has no samples", hint)
    return samples


_NAMES: dict[type, str] = {
    str: "text",
    list: "a list",
    dict: "an object",
    int: "a number",
    float: "a number",
    bool: "true or false",
}


def _objects(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(where it stands, object), of JSON lines or of one JSON list; both may be compressed."""
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig") as file:
            text: str = file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{path} is no whole gzip file: {error}", "get it again") from None
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} is not UTF-8: {error.reason}",
            "save it as UTF-8; of a compressed file the name ends in .gz",
        ) from None
    if text.lstrip()[:1] == "[":
        return [
            (f"{path}, item {number}", _checked(one, f"{path}, item {number}"))
            for number, one in enumerate(_parsed(text, str(path)), 1)
        ]
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"{path}:{number}"
            found.append((place, _checked(_parsed(line, place), place)))
    return found


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "it is read as JSON lines, one object a line, or as one JSON list of objects"
        raise BadInput(f"{place} is not JSON: {error}", hint) from None


def _checked(one: Any, place: str) -> dict[str, Any]:
    if not isinstance(one, dict):
        hint = 'an object begins with {, such as {"task_id": "HumanEval/0", …}'
        raise BadInput(f"{place} is not a JSON object", hint)
    return one
