# SPDX-License-Identifier: Apache-2.0
"""The names of a session, or of a child of one, and the running of code in them. One thread, but
for what the code starts itself.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import io
import linecache
import re
import sys
import tokenize
import types
from collections.abc import Callable, Iterable
from typing import Any

import protection
import returning

TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
COROUTINE = 0x80  # CO_COROUTINE of a code object's flags
LAST = "_"  # the value of the last exec that had one
EXIT_CODE = "_exit_code"  # of the last line that began with `!`
MOST_NAMES = 10_000  # that the client is given
PARSED_DEPTH = 3  # of a tree, in limits of recursion: as deep as a program's code may be
MOST_DEPTH = (1 << 31) - 1  # the largest limit of recursion
# The indentation of the first line that is neither blank nor a comment.
FIRST_CODE = re.compile(r"(?:[ \t\r\f]*(?:#[^\n]*)?\n)*([ \t]+)(?=[^ \t\r\n\f#])")
FEATURES = 0  # the flags of all that can be imported from __future__
for _name in __future__.all_feature_names:
    FEATURES |= getattr(__future__, _name).compiler_flag
_builtins = vars(builtins)
_missing = object()
_recursion_limit, _set_recursion_limit = sys.getrecursionlimit, sys.setrecursionlimit


class Names:
    """Those of a module that is `__main__` while code runs in them."""

    loop: Any = None  # of asyncio, for all

    def __init__(self) -> None:
        self.main = types.ModuleType("__main__")
        self.space = self.main.__dict__
        self.space["__builtins__"] = builtins
        self.space["__annotations__"] = {}
        self.own = {*self.space, LAST, EXIT_CODE}  # that are not listed
        self.reported: set[str] = set()
        self.looked_at = frozenset[Any]()  # what `space` had when `reported` was last compared
        self.flags = 0  # of the features that its code imported from __future__
        self.protected: dict[str, Any] = {}
        self.last: Any = _missing  # what LAST was set to

    def child(self) -> Names:
        """Others, which are what these are now."""
        made = Names()
        annotations = made.space["__annotations__"]
        made.space.update(self.space)
        made.space["__annotations__"] = annotations
        made.own, made.flags, made.last = {*self.own}, self.flags, self.last
        made.protected = {**self.protected}
        made.reported = set(made.listed()[:MOST_NAMES])
        return made

    def run_in(self, run: Callable[[], Any]) -> Any:
        """What it returns; meanwhile `__main__` has these names."""
        before = sys.modules.get("__main__")
        sys.modules["__main__"] = self.main
        try:
            return run()
        finally:
            if before is not None:
                sys.modules["__main__"] = before

    def listed(self) -> list[str]:
        names = [name for name in list(self.space) if type(name) is str and name not in self.own]
        return [name for name in names if not (name.startswith("__") and name.endswith("__"))]

    def news(self) -> list[str] | None:
        """The names, where they are not those that were reported before."""
        keys = frozenset(self.space)
        if keys == self.looked_at:
            return None
        self.looked_at = keys
        now = set(self.listed()[:MOST_NAMES])
        if now == self.reported:
            return None
        self.reported = now
        return sorted(now)

    # ---- for the client, who may replace what is protected

    def set(self, name: str, value: Any) -> None:
        self.space[name] = value
        if name in self.protected:
            self.protected[name] = value

    def delete(self, name: str) -> bool:
        """Whether it was there."""
        self.protected.pop(name, None)
        return self.space.pop(name, _missing) is not _missing

    def protect(self, names: Iterable[str]) -> list[str]:
        """All of these, or none where some are not there, which it returns."""
        names = list(names)
        absent = [name for name in names if name not in self.space]
        if not absent:
            self.protected.update((name, self.space[name]) for name in names)
        return absent

    def put_back(self) -> None:
        """What is protected, where it was replaced."""
        for name, value in list(self.protected.items()):
            if self.space.get(name, _missing) is value:
                continue
            self.space[name] = value
            try:
                print(f"{name} is protected: it has its value back", file=sys.stderr)
            except Exception:
                pass  # the code has closed or replaced it

    # ---- running code

    def execute(self, source: str, filename: str) -> Any:
        """Runs it; the value of its last expression, unless a semicolon follows. What has an
        `await` outside functions runs on a loop, all of it.
        """
        tree = self.parse(source, filename)
        if "return" in source and returning.has_return(tree):
            shows = not is_silenced(source)
            codes = [returning.code_of(tree, filename, shows, self.compile)]
        else:
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr) and not is_silenced(source):
                last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
            codes = [self.compile(tree, filename, "exec")] if tree.body else []
            if last is not None:
                codes.append(self.compile(last, filename, "eval"))
        value = None
        if any(code.co_flags & COROUTINE for code in codes):
            value = self.awaited(self.evaluate_on_loop(codes))
        else:
            for code in codes:
                value = eval(code, self.space)
        if value is not None and self.space.get(LAST, self.last) is self.last:
            self.space[LAST] = self.last = value
        return value

    async def evaluate_on_loop(self, codes: list[types.CodeType]) -> Any:
        value = None
        for code in codes:
            value = eval(code, self.space)
            if code.co_flags & COROUTINE:
                value = await value
        return value

    def parse(self, source: str, filename: str) -> ast.Module:
        tree: ast.Module = compile(
            source,
            filename,
            "exec",
            ast.PyCF_ONLY_AST | TOP_LEVEL_AWAIT | self.flags,
            dont_inherit=True,
        )
        if self.protected:
            self.refuse_bindings(tree, source, filename)
        return tree

    def refuse_bindings(self, tree: ast.Module, source: str, filename: str) -> None:
        found = protection.first_binding(tree, self.protected)
        if found is None:
            return
        line, name = found
        text = f"{name!r} is protected: it cannot be assigned, deleted or defined anew"
        shown = linecache.getline(filename, line)
        raise SyntaxError(text, (filename, line, None, shown))

    def compile(self, tree: Any, filename: str, mode: str) -> types.CodeType:
        limit = _recursion_limit()
        _set_recursion_limit(min(limit * PARSED_DEPTH, MOST_DEPTH))
        try:
            code: types.CodeType = compile(
                tree, filename, mode, TOP_LEVEL_AWAIT | self.flags, dont_inherit=True
            )
        finally:
            _set_recursion_limit(limit)
        self.flags |= code.co_flags & FEATURES
        return code

    def awaited(self, coroutine: Any) -> Any:
        import asyncio

        if Names.loop is not None and Names.loop.is_running():  # code that it runs waits for a tool
            loop = asyncio.new_event_loop()
            try:
                return run_to_end(loop, coroutine)
            finally:
                loop.close()
        if Names.loop is None or Names.loop.is_closed():
            Names.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(Names.loop)
        return run_to_end(Names.loop, coroutine)

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """With the session's globals; what the function brings of its own fills gaps."""
        if isinstance(function, types.FunctionType):
            for name, value in function.__globals__.items():
                self.space.setdefault(name, value)
            bound = types.FunctionType(
                function.__code__,
                self.space,
                function.__name__,
                function.__defaults__,
                function.__closure__,
            )
            bound.__kwdefaults__ = function.__kwdefaults__
            function = bound
        value = function(*args, **kwargs)
        return self.awaited(value) if isinstance(value, types.CoroutineType) else value


def run_to_end(loop: Any, coroutine: Any) -> Any:
    import asyncio

    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():  # it was interrupted, and would go on in the next one
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
        raise


def dedented(source: str) -> str:
    """Without the indentation of its first line of code, as where it was pasted from a block."""
    first = FIRST_CODE.match(source)
    if first is None:
        return source
    indent = first.group(1)
    lines = source.split("\n")
    return "\n".join(line.removeprefix(indent) for line in lines)


def is_silenced(source: str) -> bool:
    """Whether its last token is a semicolon."""
    if ";" not in source:
        return False
    last = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.OP or token.string.strip():
                if token.type != tokenize.COMMENT:
                    last = token.string
    except (tokenize.TokenError, SyntaxError):
        return False
    return last == ";"
