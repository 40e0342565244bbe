# SPDX-License-Identifier: Apache-2.0
"""Finds where a module's code binds or unbinds names of the module, from its syntax. Names that it
replaces by other means (`globals()`, `setattr`, `import *`, other modules) are not found.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def first_binding(tree: ast.Module, names: Collection[str]) -> tuple[int, str] | None:
    """The line at which the first of these names is bound or unbound, and that name."""
    wanted = frozenset(names)
    found: list[tuple[int, str]] = []
    # Each node with those of the names that a binding in its scope binds for the module.
    waiting: list[tuple[ast.AST, frozenset[str]]] = [(tree, wanted)]
    while waiting:
        node, here = waiting.pop()
        found += [(getattr(node, "lineno", 0), name) for name in bound_by(node) if name in here]
        inside = body_of(node)
        there = wanted & declared_global(inside)
        within = {id(one) for one in inside}
        for child in ast.iter_child_nodes(node):
            if not is_own_target(node, child):
                waiting.append((child, there if id(child) in within else here))
    return min(found, default=None)


def bound_by(node: ast.AST) -> list[str | None]:
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, DEFINITIONS):
        return [node.name]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.split(".")[0]]
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return [node.name]
    if isinstance(node, ast.MatchMapping):
        return [node.rest]
    return []


def body_of(node: ast.AST) -> list[ast.AST]:
    """What is in a scope of its own."""
    if not isinstance(node, SCOPES):
        return []
    return [node.body] if isinstance(node, ast.Lambda) else [*node.body]


def is_own_target(node: ast.AST, child: ast.AST) -> bool:
    """Of a comprehension, whose names are its own; of an annotation that assigns nothing."""
    if isinstance(node, ast.comprehension):
        return child is node.target
    return isinstance(node, ast.AnnAssign) and node.value is None and child is node.target


def declared_global(body: list[ast.AST]) -> set[str]:
    """In this scope, but not in those in it."""
    found: set[str] = set()
    waiting = [*body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif not isinstance(node, (*SCOPES, ast.expr)):
            waiting += ast.iter_child_nodes(node)
    return found
