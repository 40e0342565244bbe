# SPDX-License-Identifier: Apache-2.0
"""Why a value is not written: the errors, their hints, and the way to what is refused.

The rest of the encoder is in encode.py.
"""

from __future__ import annotations

from typing import Any, Iterable

MAX_DEPTH = 128
TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep: return it flattened"

_HINTS = {
    "coroutine": "await it, or make the function `async def` and return what it awaits",
    "generator": "return list(…) of it",
    "async_generator": "collect it with `[x async for x in …]` and return the list",
    "function": "code does not travel back: return its results, or its source as str",
    "method": "code does not travel back: call it and return its result",
    "builtin_function_or_method": "code does not travel back: call it and return its result",
    "module": "return the values that you need from it",
    "TextIOWrapper": "return its content, `f.read()`",
    "BufferedReader": "return its content, `f.read()`",
    "BufferedWriter": "close it and return the file's content as bytes",
    "BufferedRandom": "return its content as bytes",
    "FileIO": "return its content, `f.read()`",
    "BytesIO": "return its content, `f.getvalue()`",
    "StringIO": "return its content, `f.getvalue()`",
    "memoryview": "return bytes(…) of it",
    "array": "return list(…) of it",
    "deque": "return list(…) of it",
    "dict_keys": "return list(…) of it",
    "dict_values": "return list(…) of it",
    "dict_items": "return list(…) of it",
    "mappingproxy": "return dict(…) of it",
    "Figure": "save it into an io.BytesIO with `savefig` and return the bytes",
    "plotly.graph_objs._figure.Figure": "return `fig.to_json()`, or `fig.to_html()`",
    "Chart": "return `chart.to_json()`",
    "DataArray": "return `x.to_pandas()`, or `x.values`",
    "DuckDBPyRelation": "return `x.fetchall()` or `x.df()`",
    "Row": "return `dict(x)`",
    "csr_matrix": "return its parts (`data`, `indices`, `indptr`), or `toarray()`",
}


_BUILTINS = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)


# Types of data of which only values beyond some bounds are refused.
_BOUNDED = ("int", "range", "decimal.Decimal", "fractions.Fraction")


class Unencodable(Exception):
    """A value that is not in the closed set: `path` (like `result["models"][2]`), `type_name`,
    `hint`.
    """

    def __init__(self, path: str, type_name: str, hint: str) -> None:
        super().__init__(path, type_name, hint)
        self.path = path
        self.type_name = type_name
        self.hint = hint
        self.steps: list[str] = []  # innermost first, until the encoder joins them into `path`
        self.around: set[int] = (
            set()
        )  # ids of the containers that a value nested too deeply lies in

    def __str__(self) -> str:
        article = "an" if self.type_name[0] in "aeiouAEIOU" else "a"
        return f"{self.path} is {article} {self.type_name}: {self.hint}"

    def is_data(self) -> bool:
        """Whether it is only too large."""
        return self.type_name in _BOUNDED

    def leave(self, container: Any) -> None:
        """Called for each container, from the innermost: one met again holds itself; the outermost
        such is named.
        """
        if self.hint is not TOO_DEEP and not self.around:
            return
        if id(container) in self.around:
            self.type_name = name_of(type(container))
            self.hint = (
                f"a {self.type_name} that holds itself has no end: return ids in place of objects"
            )
            self.steps.clear()
        self.around.add(id(container))


class TooLarge(Exception):
    """The encoded value is larger than allowed: at least `size` bytes. `path`: of what is large."""

    def __init__(self, size: int, path: str = "") -> None:
        super().__init__(size)
        self.size = min(size, 1 << 62)
        self.path = path


def step_in_list(items: Iterable[Any], item: Any) -> str:
    if type(items) in (set, frozenset):
        return "{…}"
    return next((f"[{i}]" for i, x in enumerate(items) if x is item), "[?]")


def step_in_dict(mapping: dict[Any, Any], item: Any) -> str:
    for key, value in dict.items(mapping):
        if value is item:
            if type(key) is str and len(key) <= 64:
                return '["' + key.replace("\\", "\\\\").replace('"', '\\"') + '"]'
            if (type(key) is int and key.bit_length() < 64) or key is None or type(key) is bool:
                return f"[{key}]"
            return f"[<{name_of(type(key))}>]"
        if key is item:
            break
    return ".keys()"


def name_of(kind: type) -> str:
    module, name = kind.__module__, kind.__qualname__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def hint_of(kind: type) -> str:
    """What to return in place of a value of this type, which is not written."""
    if issubclass(kind, type):
        return "a class does not travel back: return an instance's data, or its name as str"
    if issubclass(kind, BaseException):
        return "raise it, or return str(…) of it"
    for name in (name_of(kind), kind.__name__):
        if name in _HINTS:
            return _HINTS[name]
    for base in _BUILTINS:
        if issubclass(kind, base):
            name = base.__name__
            return f"a subclass of {name} would lose what it adds: return {name}(…) of it"
    if hasattr(kind, "__next__"):
        return "return list(…) of it"
    return "return plain data: a dict of its fields, a dataclass, numbers, text, bytes"


def path_for_caller(meta: Any, path: str) -> str:
    """Where in a value of a session its caller finds a part of what was encoded: a pair, whose
    first is the value; of `get`, which has a name in `meta`, the second of the first.
    """
    if "name" in meta:
        return path.replace("result[0][1]", meta["name"], 1)
    return path.replace("result[0]", "result", 1)
