# SPDX-License-Identifier: Apache-2.0
"""Code of a session that has a `return` outside functions. It runs as the body of a function whose
names are all global, so that `with`, `except` and `finally` meet the `return` as in any function.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator
from typing import Any

import protection

NO_STATEMENTS = (*protection.SCOPES, ast.expr)  # of the code of a module are in these
OF_A_MODULE = ("STORE_NAME", "DELETE_NAME")
OF_ANY = ("STORE_GLOBAL", "DELETE_GLOBAL")
COROUTINE = 0x80  # CO_COROUTINE of a code object's flags
NAME = "<module>"
# compile() of a tree, with the flags of the session.
Compile = Callable[[Any, str, str], types.CodeType]


def has_return(tree: ast.Module) -> bool:
    return any(isinstance(field[i], ast.Return) for field, i in statements(tree))


def code_of(tree: ast.Module, filename: str, shows: bool, compile: Compile) -> types.CodeType:
    """What is evaluated in its place, with the value of the `return`, or of the last expression if
    it `shows`. Changes the tree. Raises SyntaxError for what no code of a module may have.
    """
    checked = without_returns(tree, lambda: compile(tree, filename, "exec"))
    for field, i in list(statements(tree)):
        field[i] = in_function(field[i])
    body = tree.body
    last = body[-1]
    if shows and isinstance(last, ast.Expr):
        body[-1] = ast.copy_location(ast.Return(last.value), last)
    names = sorted(names_of(checked, OF_A_MODULE))
    if names:
        body.insert(0, ast.copy_location(ast.Global(names), body[0]))
    parameters = ast.parse("lambda: 0", mode="eval").body.args  # type: ignore[attr-defined]
    kind: Any = ast.AsyncFunctionDef if checked.co_flags & COROUTINE else ast.FunctionDef
    function = kind(NAME, parameters, body, [])
    function.type_params = []  # which 3.12 wants
    tree.body = [ast.copy_location(function, body[0])]
    made = compile(tree, filename, "exec")
    code: types.CodeType = next(one for one in codes_in(made) if one.co_name == NAME)
    return code


def statements(tree: ast.AST) -> Iterator[tuple[list[Any], int]]:
    """Where each statement stands that is in no function or class: in a list, at a place."""
    waiting = [tree]
    while waiting:
        for _, field in ast.iter_fields(waiting.pop()):
            if not isinstance(field, list):
                continue
            for i, child in enumerate(field):
                if isinstance(child, ast.stmt):
                    yield field, i
                if isinstance(child, ast.AST) and not isinstance(child, NO_STATEMENTS):
                    waiting.append(child)


def without_returns(tree: ast.Module, use: Callable[[], types.CodeType]) -> types.CodeType:
    """What `use` returns while an expression stands in place of each `return`."""
    found = [(field, i, field[i]) for field, i in statements(tree)]
    found = [one for one in found if isinstance(one[2], ast.Return)]
    for field, i, node in found:
        value = node.value or ast.copy_location(ast.Constant(None), node)
        field[i] = ast.copy_location(ast.Expr(value), node)
    try:
        return use()
    finally:
        for field, i, node in found:
            field[i] = node


def in_function(node: ast.stmt) -> ast.stmt:
    """What does in a function with global names what this does in a module."""
    if isinstance(node, ast.AnnAssign) and node.simple:
        made = ast.Pass() if node.value is None else ast.Assign([node.target], node.value)
    elif isinstance(node, ast.ImportFrom) and node.module == "__future__":
        made = ast.Pass()  # the session has its flags
    elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        text = f"exec({ast.unparse(node)!r}, globals())"
        made = ast.parse(text).body[0]  # type: ignore[assignment]
    else:
        return node
    return ast.copy_location(made, node)


def names_of(code: types.CodeType, kinds: tuple[str, ...]) -> set[str]:
    """The names that it binds or deletes in its module."""
    import dis

    found = {one.argval for one in dis.get_instructions(code) if one.opname in (*kinds, *OF_ANY)}
    for inner in codes_in(code):
        found |= names_of(inner, ())
    return found


def codes_in(code: types.CodeType) -> list[types.CodeType]:
    return [one for one in code.co_consts if isinstance(one, types.CodeType)]
