# SPDX-License-Identifier: Apache-2.0
"""What a session does in the user process of its cell: runs code in names that last, and gets, sets
and lists them, and its files, for its client.

The other side believes nothing of what comes from here, since the code that runs may have replaced
any of it. One thread.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import stat
import sys
from collections.abc import Callable
from typing import Any

import added_packages
import background
import beside
import commands
import dialogue as talk
import ending
import failures
import importing
import javascript
import key_values
import looking
import magics
import nested
import pip_lines
import session_files
import shell_lines
import showing
import snapshots
from names import EXIT_CODE, Names, dedented

MOST_TEXT = 10_000  # characters of a value that is shown and not returned


class State:
    """Of the user process, once its session has begun."""

    def __init__(self, cell: Any, fd: int, flush: Callable[[], None], tools: Any, cwd: str) -> None:
        cell.take_interrupts()
        beside.begin()
        self.cwd = cwd
        self.snapshots = snapshots.Snapshots(cwd, self.end_all)
        names = Names()
        sys.modules["__main__"] = names.main
        self.spaces = {0: names}  # of the session, and of its children by their numbers
        self.dialogue = talk.Dialogue(cell, fd, flush)
        showing.add_display(self.dialogue)
        kv = key_values.KeyValues(self.dialogue)
        of_code = [tool for tool in tools if tool[0] != pip_lines.NAME]
        self.installs = [tool[-1] for tool in tools if tool[0] == pip_lines.NAME]
        names.space.update(talk.add_tools(self.dialogue, of_code, kv=kv))
        self.dialogue.acknowledges |= talk.BESIDE in self.installs
        names.own |= names.space.keys()
        vars(builtins)[shell_lines.BASH] = self.run_line
        vars(builtins)[shell_lines.CD] = shell_lines.change_directory
        vars(builtins)[shell_lines.PIP] = self.run_pip

    def names_of(self, meta: Any) -> Names:
        names = self.spaces.get(meta.get("space", 0))
        if names is None:
            raise RuntimeError("this child of the session has ended")
        return names

    def run_line(self, text: str, is_kept: bool = False) -> list[str] | None:
        """A line that begins with `!`, whose exit code is `_exit_code`, as in IPython. `is_kept`:
        what it prints is returned, as lines.
        """
        frame = sys._getframe(1)
        text = shell_lines.with_values(text, {**frame.f_globals, **frame.f_locals})
        out = session_files.nameless_file(b"") if is_kept else 1
        try:
            args: Any = (text, None, None, {})
            runner = commands.Runner(out)
            code = commands.answer("bash", self.cwd, self.dialogue.flush, args, runner)
            vars(sys.modules["__main__"])[EXIT_CODE] = code
            if code != 0 and shell_lines.LISTS.match(text) and not importlib.util.find_spec("pip"):
                runner.tell(shell_lines.LISTED_BY_PYTHON)
            if not is_kept:
                return None
            with open(out, "rb", closefd=False) as file:
                file.seek(0)
                return str(file.read(), "utf-8", "replace").splitlines()
        finally:
            if is_kept:
                os.close(out)

    def run_pip(self, text: str) -> None:
        """A line with `pip install`, whose exit code is `_exit_code`, as in IPython."""
        frame = sys._getframe(1)
        text = shell_lines.with_values(text, {**frame.f_globals, **frame.f_locals})
        ask = self.dialogue.ask_beside if talk.BESIDE in self.installs else self.dialogue.ask
        code = 0
        try:
            found = pip_lines.INSTALL.match(text)
            wanted = pip_lines.requirements_of(found[1] if found else "")
            print(pip_lines.said(wanted, ask("tool", pip_lines.NAME, [wanted], {})))
        except Exception as error:
            print(f"ERROR: {error}", file=sys.stderr)
            code = 1
        vars(sys.modules["__main__"])[EXIT_CODE] = code

    def execute(
        self, names: Names, source: str, filename: str, is_notebook: bool = False
    ) -> tuple[Any, list[str] | None]:
        if is_notebook:
            source = magics.replaced(source)
        try:
            value = names.execute(shell_lines.replaced(source, bool(self.installs)), filename)
        except (SystemExit, talk.StopExec) as error:
            if isinstance(error, SystemExit) and not ending.is_success(error.code):
                raise
            value = None
        finally:
            showing.show_figures(self.dialogue)
        if showing.is_rich(value):
            self.dialogue.say("display", showing.bundle_of(value))
        return value, names.news()

    def evaluate(self, source: str, args: Any) -> Any:
        """JavaScript."""

        def show(text: str) -> None:
            self.dialogue.say("display", {"text/plain": text})

        return javascript.answer(source, self.cwd, self.dialogue.flush, show, args)

    def end_all(self) -> None:
        """What is not of the names that come back: children, and processes."""
        self.spaces = {0: self.spaces[0]}
        with contextlib.suppress(OSError, ValueError):  # the code has waited for it
            javascript.forget()
        background.end_all()

    def put_back(self) -> None:
        for names in list(self.spaces.values()):
            names.put_back()

    def show(self, value: Any) -> None:
        """A value that is no data; one that is rich was shown already."""
        if not showing.is_rich(value):
            self.dialogue.say("display", {"text/plain": repr(value)[:MOST_TEXT]})

    def show_at_end(self, call_id: int, value: Any) -> None:
        self.dialogue.call_id = call_id
        try:
            self.show(value)
        finally:
            self.dialogue.end()


_state: State | None = None


def begin(
    cwd: str, cell: Any, fd: int, flush: Callable[[], None], tools: Any, protected: Any
) -> State:
    """In a fresh user process. One that is interrupted leaves nothing but what is done again."""
    global _state
    enter(cwd)
    importing.kept.root = cwd
    sys.argv = [""]
    if sys.path[:1] != [""]:
        sys.path.insert(0, "")
    added_packages.begin()
    state = State(cell, fd, flush, tools, cwd)
    state.spaces[0].protect(protected)
    _state = state
    return state


def enter(cwd: str) -> None:
    """Goes to the directory of the session, or to / where code of before has left none that can be
    entered: a session always begins, and each call of files says what is wrong.
    """
    allow_owner(cwd)
    try:
        os.makedirs(cwd, exist_ok=True)
        os.chdir(cwd)
    except OSError as error:
        commands.OF_CALLS.tell(f"{cwd}: {error.strerror}: the working directory is /")
        os.chdir("/")


def allow_owner(path: str) -> None:
    """Gives the user its rights to this directory and those above, which code of before may have
    taken: of the scratch, never of a mount.
    """
    with contextlib.suppress(OSError):
        scratch = os.stat("/tmp").st_dev
        for end in (i for i, letter in enumerate(path + "/") if letter == "/" and i):
            found = os.stat(path[:end])
            mode = stat.S_IMODE(found.st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU and found.st_dev == scratch:
                os.chmod(path[:end], mode | stat.S_IRWXU)


def prepare(
    call: Any,
    call_id: int,
    worker: Any,
    flush: Callable[[], None],
    remember: Callable[[str, str], None],
) -> Callable[[], Any]:
    """What it returns runs the call of the client's. Its result: (value, names or None)."""
    meta = call.meta
    if meta["verb"] == "program":
        return prepare_program(call, call_id, worker, flush)
    state = _state
    if state is None and meta.get("begin") is not None:
        cwd, tools, protected = meta["begin"]
        state = begin(cwd, worker.cell, worker.fd, flush, tools, protected)
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


def prepare_program(
    call: Any, call_id: int, worker: Any, flush: Callable[[], None]
) -> Callable[[], Any]:
    """A whole program, which finds nothing of a session: that begins in the next process."""
    cell, (cwd, tools, _) = worker.cell, call.meta["begin"]
    enter(cwd)
    dialogue = talk.Dialogue(cell, worker.fd, flush)
    if tools:
        call.tools = talk.add_tools(dialogue, tools)
    run = worker.prepare_program(call)

    def talking() -> Any:
        dialogue.begin(call_id)
        try:
            cell.run_interruptible(call_id, run)
        finally:
            if dialogue.pid == os.getpid():
                dialogue.end()
        return None, None

    return talking


def verb_of(
    state: State, call: Any, cell: Any, remember: Callable[[str, str], None]
) -> Callable[[], Any]:
    meta = call.meta
    names, verb = state.names_of(meta), meta["verb"]
    if verb == "exec":
        source = dedented(str(call.code, "utf-8", "surrogatepass").removeprefix(failures.MARK))
        filename = f"<cell {meta['number']}>"
        remember(filename, source)
        meta["sources"][filename] = source

        def run() -> Any:
            return state.execute(names, source, filename, meta.get("notebook", False))
    else:
        args, kwargs = call.arguments(cell)
        if verb == "get":
            meta["name"] = args[0]
        function = call.load_function() if verb == "call" else None

        def run() -> Any:
            if function is not None:
                return names.call(function, args, kwargs), names.news()
            if verb == "node":
                return state.evaluate(str(call.code, "utf-8", "surrogatepass"), args), names.news()
            return plain(state, names, verb, args), names.news()

    def in_names() -> Any:
        try:
            return names.run_in(run)
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
    if verb in ("complete", "inspect", "variables"):
        return looking.answer(names, verb, args)
    if verb == "child":
        state.spaces[args[0]] = names.child()
        return None
    if verb == "node.shown":
        return javascript.is_shown()
    if verb.startswith("process."):
        verb = verb.removeprefix("process.")
        return background.answer(verb, state.cwd, state.dialogue.flush, args)
    if verb.startswith("state."):
        return state.snapshots.answer(names, verb.removeprefix("state."), args)
    return session_files.answer(verb.removeprefix("files."), state.cwd, args)
