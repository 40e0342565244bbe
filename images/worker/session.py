# SPDX-License-Identifier: Apache-2.0
"""What a session does in the user process of its cell: runs code in names that last, and gets, sets
and lists them, and its files, for its client.

The other side believes nothing of what comes from here, since the code that runs may have replaced
any of it. One thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import dialogue as talk
import nested
import session_files
from names import Names

MOST_TEXT = 10_000  # characters of a value that is shown and not returned


class State:
    """Of the user process, once its session has begun."""

    def __init__(self, cell: Any, fd: int, flush: Callable[[], None], tools: Any, cwd: str) -> None:
        cell.take_interrupts()
        self.cwd = cwd
        names = Names()
        sys.modules["__main__"] = names.main
        self.spaces = {0: names}  # of the session, and of its children by their numbers
        self.dialogue = talk.Dialogue(cell, fd, flush)
        talk.add_display(self.dialogue)
        names.space.update(talk.add_tools(self.dialogue, tools))
        names.own |= names.space.keys()

    def names_of(self, meta: Any) -> Names:
        names = self.spaces.get(meta.get("space", 0))
        if names is None:
            raise RuntimeError("this child of the session has ended")
        return names

    def execute(self, names: Names, source: str, filename: str) -> tuple[Any, list[str] | None]:
        talk.prepare_figures(self.dialogue)
        try:
            value = names.execute(source, filename)
        finally:
            talk.show_figures(self.dialogue)
        if talk.is_rich(value):
            self.dialogue.say("display", talk.bundle_of(value))
        return value, names.news()

    def put_back(self) -> None:
        for names in list(self.spaces.values()):
            names.put_back()

    def show(self, value: Any) -> None:
        """A value that is no data; one that is rich was shown already."""
        if not talk.is_rich(value):
            self.dialogue.say("display", {"text/plain": repr(value)[:MOST_TEXT]})

    def show_at_end(self, call_id: int, value: Any) -> None:
        self.dialogue.call_id = call_id
        try:
            self.show(value)
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
        cwd, tools, protected = meta["begin"]
        state = begin(cwd, worker.cell, worker.fd, flush, tools)
        state.spaces[0].protect(protected)
    if state is None:
        raise RuntimeError("the session has not begun")
    for number in meta.get("ended", ()):
        state.spaces.pop(number, None)
    run = verb_of(state, call, worker.cell, remember)
    dialogue = state.dialogue

    def of_nested(one: Any) -> Callable[[], Any]:
        return verb_of(state, one, worker.cell, remember)

    def talking() -> Any:
        dialogue.begin(call_id, lambda order: nested.run(order, worker, of_nested, state.show))
        try:
            return worker.cell.run_interruptible(call_id, run)
        finally:
            if dialogue.pid == os.getpid():
                dialogue.end()

    return talking


def verb_of(
    state: State, call: Any, cell: Any, remember: Callable[[str, str], None]
) -> Callable[[], Any]:
    meta = call.meta
    names, verb = state.names_of(meta), meta["verb"]
    if verb == "exec":
        source = str(call.code, "utf-8", "surrogatepass")
        filename = f"<cell {meta['number']}>"
        remember(filename, source)
        meta["sources"][filename] = source

        def run() -> Any:
            return state.execute(names, source, filename)
    else:
        args, kwargs = call.arguments(cell)
        function = call.load_function() if verb == "call" else None

        def run() -> Any:
            if function is not None:
                return names.call(function, args, kwargs), names.news()
            return plain(state, names, verb, args), names.news()

    def in_names() -> Any:
        with names.current():
            try:
                return run()
            finally:
                state.put_back()

    return in_names


def shown_instead(meta: Any, call_id: int, pair: Any) -> Any:
    """What is returned in place of a pair whose value is no data, which is shown; None: nothing."""
    if _state is None or meta["verb"] != "exec":
        return None
    _state.show_at_end(call_id, pair[0])
    return None, pair[1]


def plain(state: State, names: Names, verb: str, args: Any) -> Any:
    if verb == "get":
        name = args[0]
        return ("ok", names.space[name]) if name in names.space else ("missing", None)
    if verb == "set":
        names.set(*args)
        return None
    if verb == "delete":
        return names.delete(args[0])
    if verb == "names":
        return names.listed()
    if verb == "protect":
        return names.protect(args)
    if verb == "child":
        state.spaces[args[0]] = names.child()
        return None
    return session_files.answer(verb.removeprefix("files."), state.cwd, args)
