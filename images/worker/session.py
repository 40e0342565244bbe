# SPDX-License-Identifier: Apache-2.0
"""What a session does in the user process of its cell: runs code in names that last, and gets, sets
and lists them, and its files, for its client.

The other side believes nothing of what comes from here, since the code that runs may have replaced
any of it. One thread.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import io
import os
import sys
import tokenize
import types
from collections.abc import Callable
from typing import Any

import dialogue as talk
import session_files

TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
COROUTINE = 0x80  # CO_COROUTINE of a code object's flags
RETURN = "__hutch_return__"  # of builtins: what a `return` outside a function raises
MOST_NAMES = 10_000  # that the client is told of
MOST_TEXT = 10_000  # characters of a value that is shown and not returned
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_FEATURES = [getattr(__future__, name).compiler_flag for name in __future__.all_feature_names]
_builtins = vars(builtins)


class Return(BaseException):
    """Ends the code of an exec with a value."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value


class Names:
    """The names of a session: those of its `__main__`."""

    def __init__(self) -> None:
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        main.__dict__["__annotations__"] = {}
        sys.modules["__main__"] = main
        _builtins[RETURN] = Return
        self.space = main.__dict__
        self.own = {*self.space}
        self.told: set[str] = set()
        self.flags = 0  # of the features that its code imported from __future__
        self.loop: Any = None

    def listed(self) -> list[str]:
        names = [name for name in list(self.space) if type(name) is str and name not in self.own]
        return [name for name in names if not (name.startswith("__") and name.endswith("__"))]

    def news(self) -> list[str] | None:
        """The names, where they are not those that were told before."""
        now = set(self.listed()[:MOST_NAMES])
        if now == self.told:
            return None
        self.told = now
        return sorted(now)

    def execute(self, source: str, filename: str) -> Any:
        """Runs it; the value of its last expression, unless a semicolon follows."""
        tree = self.parse(source, filename)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not is_silenced(source):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        codes = [self.compile(tree, filename, "exec")] if tree.body else []
        if last is not None:
            codes.append(self.compile(last, filename, "eval"))
        value = None
        try:
            for code in codes:
                value = self.evaluate(code)
        except Return as ended:
            value = ended.value
        return value

    def parse(self, source: str, filename: str) -> ast.Module:
        tree: ast.Module = compile(
            source,
            filename,
            "exec",
            ast.PyCF_ONLY_AST | TOP_LEVEL_AWAIT | self.flags,
            dont_inherit=True,
        )
        if "return" in source:
            replace_returns(tree)
        return tree

    def compile(self, tree: Any, filename: str, mode: str) -> types.CodeType:
        code: types.CodeType = compile(
            tree, filename, mode, TOP_LEVEL_AWAIT | self.flags, dont_inherit=True
        )
        for feature in _FEATURES:
            self.flags |= code.co_flags & feature
        return code

    def evaluate(self, code: types.CodeType) -> Any:
        value = eval(code, self.space)
        return self.awaited(value) if code.co_flags & COROUTINE else value

    def awaited(self, coroutine: Any) -> Any:
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # it was interrupted, and would go on in the next one
                task.cancel()
                self.loop.run_until_complete(asyncio.wait([task]))
            raise

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


def replace_returns(tree: ast.Module) -> None:
    """Makes each `return` that is in no function end the code with its value."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for _, field in ast.iter_fields(node):
            if not isinstance(field, list):
                continue
            for i, child in enumerate(field):
                if isinstance(child, ast.Return):
                    field[i] = raise_of(child)
                elif isinstance(child, ast.AST) and not isinstance(child, (*SCOPES, ast.expr)):
                    waiting.append(child)


def raise_of(node: ast.Return) -> ast.Raise:
    value = [] if node.value is None else [node.value]
    name = ast.Name(RETURN, ast.Load())
    made = ast.Raise(ast.Call(name, value, []), ast.Constant(None))
    return ast.fix_missing_locations(ast.copy_location(made, node))


# ---- what its client asks for


class State:
    """Of the user process, once its session has begun."""

    def __init__(self, cell: Any, fd: int, flush: Callable[[], None], tools: Any, cwd: str) -> None:
        cell.take_interrupts()
        self.cwd = cwd
        self.names = Names()
        self.dialogue = talk.Dialogue(cell, fd, flush)
        talk.add_display(self.dialogue)
        self.names.space.update(talk.add_tools(self.dialogue, tools))
        self.names.own |= self.names.space.keys()

    def execute(self, source: str, filename: str) -> tuple[Any, list[str] | None]:
        talk.prepare_figures(self.dialogue)
        try:
            value = self.names.execute(source, filename)
        finally:
            talk.show_figures(self.dialogue)
        if talk.is_rich(value):
            self.dialogue.say("display", talk.bundle_of(value))
        return value, self.names.news()

    def show(self, call_id: int, value: Any) -> None:
        """A value that is no data, at the end of its exec; one that is rich was shown already."""
        self.dialogue.call_id = call_id
        try:
            if not talk.is_rich(value):
                self.dialogue.say("display", {"text/plain": repr(value)[:MOST_TEXT]})
        finally:
            self.dialogue.end()


_state: State | None = None


def begin(cwd: str, cell: Any, fd: int, flush: Callable[[], None], tools: Any) -> State:
    """In a fresh user process."""
    global _state
    os.makedirs(cwd, exist_ok=True)
    os.chdir(cwd)
    sys.argv = [""]
    sys.path.insert(0, "")
    _state = State(cell, fd, flush, tools, cwd)
    return _state


def prepare(
    call: Any,
    call_id: int,
    worker: Any,
    flush: Callable[[], None],
    remember: Callable[[str, str], None],
) -> Callable[[], Any]:
    """What it returns runs the call of the client's. Its result: (value, names or None)."""
    meta = call.meta
    state = _state
    if meta.get("begin") is not None:
        cwd, tools = meta["begin"]
        state = begin(cwd, worker.cell, worker.fd, flush, tools)
    if state is None:
        raise RuntimeError("the session has not begun")
    run = verb_of(state, call, worker.cell, remember)
    dialogue = state.dialogue

    def talking() -> Any:
        dialogue.begin(call_id)
        try:
            return worker.cell.run_interruptible(call_id, run)
        finally:
            if dialogue.pid == os.getpid():
                dialogue.end()

    return talking


def verb_of(
    state: State, call: Any, cell: Any, remember: Callable[[str, str], None]
) -> Callable[[], Any]:
    meta, names = call.meta, state.names
    verb = meta["verb"]
    if verb == "exec":
        source = str(call.code, "utf-8", "surrogatepass")
        filename = f"<cell {meta['number']}>"
        remember(filename, source)
        meta["sources"][filename] = source
        return lambda: state.execute(source, filename)
    args, kwargs = call.arguments(cell)
    if verb == "call":
        function = call.load_function()
        return lambda: (names.call(function, args, kwargs), names.news())
    return lambda: (plain(state, verb, args), names.news())


def shown_instead(meta: Any, call_id: int, pair: Any) -> Any:
    """What is returned in place of a pair whose value is no data, which is shown; None: nothing."""
    if _state is None or meta["verb"] != "exec":
        return None
    _state.show(call_id, pair[0])
    return None, pair[1]


def plain(state: State, verb: str, args: Any) -> Any:
    names = state.names
    if verb == "get":
        name = args[0]
        return ("ok", names.space[name]) if name in names.space else ("missing", None)
    if verb == "set":
        names.space[args[0]] = args[1]
        return None
    if verb == "delete":
        return names.space.pop(args[0], RETURN) is not RETURN
    if verb == "names":
        return names.listed()
    return session_files.answer(verb.removeprefix("files."), state.cwd, args)
