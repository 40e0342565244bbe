# SPDX-License-Identifier: Apache-2.0
"""A `return` outside functions, in code whose names are global."""

from __future__ import annotations

import ast
import asyncio
import types
from typing import Any

import pytest
import returning

FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
TRANSACTION = """
class Transaction:
    def __enter__(self): return self
    def __exit__(self, kind, *_): seen.append(kind); return True
"""


def compiled(tree: Any, filename: str, mode: str) -> types.CodeType:
    code: types.CodeType = compile(tree, filename, mode, FLAGS, dont_inherit=True)
    return code


def run(source: str, space: dict[str, Any] | None = None, shows: bool = True) -> Any:
    tree = compile(source, "<cell>", "exec", ast.PyCF_ONLY_AST | FLAGS)
    assert returning.has_return(tree)
    code = returning.code_of(tree, "<cell>", shows, compiled)
    value = eval(code, {} if space is None else space)
    return asyncio.run(value) if asyncio.iscoroutine(value) else value


@pytest.mark.parametrize(
    ("source", "value", "names"),
    [
        ("x = 1\nreturn x + 1", 2, {"x": 1}),
        ("x = 1\nif x: return", None, {"x": 1}),
        ("try: return 1\nexcept: x = 2\nfinally: y = 3", 1, {"y": 3}),
        ("for i in range(9):\n  if i == 3: return i\nelse: x = 1", 3, {"i": 3}),
        ("x: int = 5\ny: str\nreturn x", 5, {"x": 5}),
        ("from __future__ import annotations\nx: Missing = 5\nreturn x", 5, {"x": 5}),
        ("from math import *\nreturn floor(2.5)", 2, None),
        ("x = [i for i in range(3)]\nif (n := len(x)) == 3: return n", 3, {"n": 3, "x": [0, 1, 2]}),
        ("any((y := i) > 1 for i in range(9))\nreturn y", 2, {"y": 2}),
        ("x = 1\ndel x\nreturn 'x' in globals()", False, {}),
        ("x = 1\ndef f():\n  global x, z\n  x = z = 7\nf()\nreturn x, z", (7, 7), None),
        ("x = 1\nclass A:\n  y = x\n  def f(self): return x\nreturn A().f(), A.y", (1, 1), None),
        ("import os.path as p\nreturn p.sep", "/", None),
        ("match [1, 2]:\n  case [a, *rest]: return a, rest", (1, [2]), {"a": 1, "rest": [2]}),
        ("import asyncio\nreturn await asyncio.sleep(0, 'slept')", "slept", None),
        ("async def f():\n  return 7\nif 0: return 1\nawait f()", 7, None),
        ("if 0: return 1\n'shown'", "shown", {}),
        ("'first'\nif 1: return 1", 1, {}),
        ("while True:\n  with open('/dev/null') as f: return f.closed", False, None),
        ("def f():\n  return 1\nreturn f.__module__, f.__qualname__", (None, "f"), None),
    ],
)
def test_it_has_the_value_and_the_names(
    source: str, value: object, names: dict[str, object] | None
) -> None:
    space: dict[str, Any] = {}
    assert run(source, space) == value
    del space["__builtins__"]
    assert names is None or space == names


def test_a_context_is_left_as_by_any_return() -> None:
    seen: list[Any] = []
    assert run(TRANSACTION + "with Transaction(): return 1\n2", {"seen": seen}) == 1
    assert seen == [None]


def test_after_a_semicolon_nothing_is_shown() -> None:
    assert run("if 0: return 1\n2", shows=False) is None


def test_an_error_has_the_line_of_the_code() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("if 0:\n  return 1\n\n1 / 0")
    frame = caught.traceback[-1]
    assert (frame.lineno + 1, frame.name) == (4, "<module>")


@pytest.mark.parametrize(
    "source",
    ["return 1\nyield 2", "return 1\nbreak", "x = 1\ndef f(): nonlocal x\nreturn 1", "return *"],
)
def test_what_no_module_may_have_is_refused(source: str) -> None:
    with pytest.raises(SyntaxError):
        run(source)


def test_only_code_with_a_return_is_changed() -> None:
    for source in ("def f(): return 1", "class A:\n  def f(self): return 1", "lambda: 1", "x = 1"):
        assert not returning.has_return(ast.parse(source))
