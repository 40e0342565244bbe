# SPDX-License-Identifier: Apache-2.0
"""What a call in the user process of a cell takes beyond the plainest one, which serving.cc does.

The frames are those of wire/cell_frame.h. The other side believes nothing of what is sent here,
since the code that is called may have replaced any of this. What could be broken by accident (a
patched clock, a closed stream) is bound at import. Nothing is imported on a call's path. One
thread.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import logging
import marshal
import mmap
import os
import pickle
import resource
import sys
import time
import types
import warnings
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any

import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]
import dialogue as talk
import ending
import failures
import javascript
import loading
import programs
import replies
import session
from _hutch_cell import (  # type: ignore[import-not-found,unused-ignore]
    CALL,
    MARSHAL,
    PICKLE,
    PLAIN,
    PLAIN_KEPT,
    SECTIONS,
    STARTED,
    flush_streams,
)

NO_IDENTITY = bytes(32)
PLAIN_MARK, PLAIN_KEPT_MARK = bytes((PLAIN,)), bytes((PLAIN_KEPT,))
PICKLED = ("function", "chunk")  # modes in which the function comes as a pickle
SLOW_LOAD_NS = 20_000_000  # a load longer than this restarts the call's clock
_lengths = Struct(f"<{SECTIONS}I")

_close = os.close
_loads = pickle.loads
_builtins = vars(builtins)


Meta = dict[str, Any]
# Meta data (as bytes where plain; None: the call's own), function, its code, whether plain.
Loaded = tuple[Any, Any, Any, bool]


def meta_of(data: Any) -> Meta:
    """Of a section, or of what was made of one before."""
    if isinstance(data, dict):
        return data
    loaded: Meta = _loads(data if data[0] == PICKLE else data[1:])
    return loaded


class Call:
    """One received call, or what is to be loaded before one: its arguments are not loaded yet.

    `loaded`: meta data, function and its code, where they are here already."""

    def __init__(
        self,
        sections: tuple[bytes | None, ...],
        descriptors: tuple[int, ...],
        loaded: Loaded | None = None,
    ) -> None:
        meta, function, arguments, places = sections
        self.descriptors = descriptors
        if meta is None:
            meta = self._map()
        if function is None:
            function = self._map()
        self.function: Any  # None: not loaded
        self.code: Any  # a pickle, text, or a Text
        known, self.function, self.code, _ = loaded or (meta, None, function, False)
        self.meta = meta_of(meta if known is None else known)
        self.tools: Mapping[str, Any] = loading.NO_TOOLS
        self.id = 0
        self._arguments: Any = self._map() if arguments is None else arguments
        self._places: Any = self._map() if places is None else places

    def load_function(self) -> Any:
        if self.function is None:
            self.function = loading.function_of(self.code, self.tools)
        return self.function

    def _map(self) -> Any:
        """The next descriptor's content."""
        fd, *rest = self.descriptors
        self.descriptors = tuple(rest)
        try:
            size = os.fstat(fd).st_size
            if size == 0:
                return bytearray()
            return mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        finally:
            _close(fd)

    def arguments(self, cell: Any) -> Any:
        """(args, kwargs), or of a chunk a list of those."""
        if not self._places:
            given = self._arguments
            if given[0] == PICKLE:
                return _loads(given)
            args = marshal.loads(given)
            return (args, {}) if type(args) is tuple else [(one, {}) for one in args]
        lent = cell.buffers_of(bytes(self._places), self.descriptors)
        return _loads(self._arguments, buffers=lent)


class Worker(replies.Replies):
    """serving.cc calls what it does not do itself by these names."""

    def __init__(self, cell: Any, fd: int) -> None:
        super().__init__(cell, fd)
        self.keep = False
        self.another_follows = False
        self.limits_cpu = False  # a call before did, and a later one is to lift that
        self.dialogue: talk.Dialogue | None = None  # of calls that have tools, or yield
        self.tools: Mapping[str, Any] = loading.NO_TOOLS
        # By identity: ahead, or by earlier calls of a shared cell.
        self.loaded: dict[bytes, Loaded] = {}
        self.function_of = loading.function_of
        self.leave_fork = ending.leave_fork
        self.call_of = Call
        self.describe = failures.describe

    def serve_with(self, cpus: int) -> None:
        """Has serving.cc serve for this worker. `cpus`: how many a call may use."""
        own = (self, self.loaded, sys.modules, atexit._run_exitfuncs, logging._handlerList)  # type: ignore[attr-defined]
        python = (pickle.loads, marshal.loads, types.FunctionType, builtins, _builtins)
        self.cell.serve_with(*own, *python, cpus)

    def load(
        self,
        _: None,
        key: bytes,
        sections: tuple[bytes | None, ...],
        descriptors: tuple[int, ...],
    ) -> None:
        """Ahead of a call. Errors are ignored here: they occur again in the call."""
        try:
            call = Call(sections, descriptors)
            self.dialogue_of(call)
            if call.meta["mode"] in PICKLED:
                plain = sections[0] is not None and sections[0][0] != PICKLE
                self.loaded[key] = call.meta, call.load_function(), call.code, plain
            elif call.meta["mode"] == "program":
                programs.warm_up_text()
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # what is said of it is said in the call
                    text = programs.Text(call.code, programs.filename_of(call.meta))
                # program.cc writes no file.
                plain = not text.is_looked_for and self.dialogue is None
                if "node" in call.meta:
                    plain = False
                    if call.meta["ahead"]:
                        javascript.start_ahead(call.meta["node"])
                self.loaded[key] = None, None, text, plain
        except BaseException:
            pass

    def dialogue_of(self, call: Call) -> talk.Dialogue | None:
        """Where it has tools, or yields. Its tools can be imported from then on."""
        meta = call.meta
        if "tools" not in meta and "streams" not in meta:
            return None
        if self.dialogue is None:
            self.dialogue = talk.Dialogue(self.cell, self.fd, flush_streams)
            self.tools = talk.add_tools(self.dialogue, meta.get("tools", ()))
        call.tools = self.tools
        return self.dialogue

    def handle(
        self,
        call_id: int,
        key: bytes,
        sections: tuple[bytes | None, ...],
        descriptors: tuple[int, ...],
    ) -> None:
        cell = self.cell
        sources: dict[str, str] = {}
        try:
            call = Call(sections, descriptors, self.loaded.get(key))
            meta = call.meta
            call.id = call_id
            if meta["mode"] == "session":
                meta["sources"] = sources  # as they are, once it is prepared
            else:
                sources = meta.get("sources") or sources
            self.keep = "keep" in meta
            self.another_follows = self.keep and meta["mode"] != "session"
            dialogue = self.dialogue_of(call)
            run = self.prepare(call)
            if self.keep and meta["mode"] != "session":
                # What is not plain once is not later: its limits are held here.
                plain = sections[0] is not None and sections[0][:1] == PLAIN_KEPT_MARK
                self.loaded[key] = meta, call.function, call.code, plain
            if cell.loaded() > SLOW_LOAD_NS:
                cell.send(self.fd, STARTED, 0, call_id, 0, 0)
                cell.loaded()
            try:
                if dialogue is None:
                    value = run()
                else:
                    value = talking(dialogue, call_id, run, "streams" in meta)
            finally:
                flush_streams()
                cell.ran()
        except BaseException as error:
            if cell.is_fork():
                ending.leave_fork(error)
            self.reply_error(call_id, error, sources)
            return
        if cell.is_fork():
            ending.leave_fork(None)
        self.finish(call_id, value, meta)

    def finish(self, call_id: int, value: Any, meta: Any) -> None:
        meta = meta_of(meta)
        try:
            most = meta.get("result_bytes") or 1 << 62
            self.reply_value(call_id, value, most, meta if meta["mode"] == "session" else None)
        except BaseException as error:
            self.fail(call_id, error, meta)

    def fail(self, call_id: int, error: BaseException, meta: Any) -> None:
        self.reply_error(call_id, error, meta_of(meta).get("sources") or {})

    # ---- running ----

    def prepare(self, call: Call) -> Callable[[], Any]:
        """Loads what the call needs; what it returns runs it."""
        meta = call.meta
        if meta.get("env"):
            os.environ.update(meta["env"])
            time.tzset()
        if meta.get("cwd"):
            os.makedirs(meta["cwd"], exist_ok=True)
            os.chdir(meta["cwd"])
            programs.tell_directory()
        if meta.get("cpu_ms"):
            limit_cpu(meta["cpu_ms"] / 1000 + self.cell.cpu_used() / 1e6, self.keep)
            self.limits_cpu = True
        elif self.limits_cpu and meta["mode"] == "session":
            lift_cpu_limit()
            self.limits_cpu = False
        mode = meta["mode"]
        if mode == "program":
            return self.prepare_program(call)
        if mode == "session":
            return session.prepare(call, call.id, self, flush_streams, failures.remember_source)
        if "reads_sources" in meta:
            for filename, text in meta["sources"].items():
                failures.remember_source(filename, text)
        if mode == "function_source" and call.function is None:
            text = str(call.code, "utf-8", "surrogatepass")
            call.function = loading.called(
                loading.define(text, meta["name"], programs.filename_of(meta), call.tools)
            )
        function = call.load_function()
        if mode == "chunk" or meta.get("chunk"):
            calls = call.arguments(self.cell)
            return lambda: self.run_chunk(function, calls, meta.get("sources") or {}, [])
        args, kwargs = call.arguments(self.cell)
        return lambda: function(*args, **kwargs)

    def run_chunk(
        self,
        function: Callable[..., Any],
        calls: list[Any],
        sources: dict[str, str],
        results: list[Any],
    ) -> tuple[str, list[Any]]:
        """Makes the calls one after another in this cell, but for those that have results already.
        One that raises does not end the others, a limit ends all. ("ok", values), or ("each", for
        each call a pair of what became of it).
        """
        for args, kwargs in calls[len(results) :]:
            try:
                results.append(("ok", function(*args, **kwargs)))
            except Exception as error:
                if self.cell.is_fork() or (
                    isinstance(error, MemoryError) and failures.is_out_of_memory(error)
                ):
                    raise
                results.append(("error", failures.describe(error, sources)))
            if self.cell.is_fork():
                break  # the other calls are its parent's
        if any(kind == "error" for kind, _ in results):
            return "each", results
        return "ok", [value for _, value in results]

    def resume_chunk(
        self,
        function: Callable[..., Any],
        calls: list[Any],
        values: list[Any],
        error: Any,
        meta: Any,
    ) -> tuple[str, list[Any]]:
        """After these values were had and the next call raised that."""
        if not isinstance(error, Exception):
            raise error
        if isinstance(error, MemoryError) and failures.is_out_of_memory(error):
            raise error
        sources = meta_of(meta).get("sources") or {}
        results = [
            *(("ok", value) for value in values),
            ("error", failures.describe(error, sources)),
        ]
        pairs: list[tuple[Any, dict[str, Any]]] = [(args, {}) for args in calls]
        return "each", self.run_chunk(function, pairs, sources, results)[1]

    def prepare_program(self, call: Call) -> Callable[[], None]:
        meta = call.meta
        filename = programs.filename_of(meta)
        main = programs.fresh_main(filename)  # first: a SyntaxError is of its file
        loading.add_names(main.__dict__, call.tools)
        text = call.code
        if not isinstance(text, programs.Text):
            text = programs.Text(text, filename)
        given = call.arguments(self.cell)[1]
        if "javascript" in given:
            javascript.give_program(given["javascript"], meta["node"], given.get("node"))
        if given.get("files"):
            programs.write_files(given["files"])
        if text.is_looked_for:
            programs.write_program(filename, given.get("files") or {})
        sys.argv = [filename, *given.get("args", ())]
        sys.path.insert(0, os.getcwd())
        if given.get("stdin") is not None:
            programs.feed_stdin(given["stdin"], self.keep)
        code = text.compiled

        def run() -> None:
            try:
                exec(code, main.__dict__)
            except SystemExit as error:
                self.exit_program(error)
            except BaseException as error:
                self.fail_program(error)
                raise
            else:
                self.finish_program()

        return run

    def finish_program(self) -> None:
        ending.end_interpreter(self.another_follows)

    def exit_program(self, error: SystemExit) -> None:
        code = ending.exit_code_of(error.code)
        ending.end_interpreter(self.another_follows)
        ending.exit_unless_zero(code)

    def fail_program(self, error: BaseException) -> None:
        """Ends the interpreter after a program that raised. The error stays its outcome. After a
        limit there may be nothing left to end with, so that is only reported.
        """
        if self.cell.is_fork() or failures.limit_of(error, self.cell):
            return  # leave_fork() does it, or nobody
        try:
            if sys.excepthook is not sys.__excepthook__:
                sys.excepthook(type(error), error, failures.trace_of(error))
        except BaseException:
            ending.complain()
        self.finish_program()

    # ---- before the first call ----

    def warm_up(self) -> None:
        """Serves dummy calls that return, before the first real call, which then has few page
        faults. Calls that raise, or that run text, are left out: each cell would pay for them twice
        what it pays for all others. A call can observe nothing of it."""
        self.walk(_DUMMIES)

    def warm_up_all(self) -> None:
        """The same in the zygote, once for all cells, with every kind of call."""
        programs.warm_up_text()
        self.walk([*_MORE_DUMMIES, *_DUMMIES])

    def walk(self, dummies: list[bytes]) -> None:
        ours, theirs = self.cell.pair()
        fd, self.fd = self.fd, ours
        for dummy in dummies:
            self.cell.send(theirs, CALL, SECTIONS, 0, 0, 0, dummy)
            self.cell.serve_one(ours)
            self.cell.recv(theirs)
        self.fd = fd
        _close(ours)
        _close(theirs)


def talking(dialogue: talk.Dialogue, call_id: int, run: Callable[[], Any], streams: bool) -> Any:
    """Runs it with its tools, or sends what it yields."""
    dialogue.begin(call_id)
    try:
        value = run()
        return talk.send_items(dialogue, value) if streams else value
    finally:
        if dialogue.pid == os.getpid():
            dialogue.end()


def limit_cpu(seconds: float, more_to_come: bool) -> None:
    """A backstop of the warden's own count: whole seconds, rounded up. `more_to_come`: a later call
    raises it again.
    """
    whole = int(seconds) + 1
    most = resource.RLIM_INFINITY if more_to_come else whole + 1
    resource.setrlimit(resource.RLIMIT_CPU, (whole, most))


def lift_cpu_limit() -> None:
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def add_site_builtins() -> None:
    """What `site`, which is not loaded here, gives to every program."""
    import _sitebuiltins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()


def _dummy(function: bytes, args: bytes, plain: bool) -> bytes:
    meta = pickle.dumps({"mode": "function", "sources": {}}, 5)
    sections = [PLAIN_MARK + meta if plain else meta, function, args, b""]
    return NO_IDENTITY + _lengths.pack(*map(len, sections)) + b"".join(sections)


def _make_dummies() -> tuple[list[bytes], list[bytes]]:
    """For each cell, and for the zygote."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "def bad(x): return x // 0\n"
        "def make():\n"
        "    def good(x: int, y: str = '') -> dict:\n"
        '        """As most functions are."""\n'
        "        return {'x': [2.0 * x]}\n"
        "    return good\n",
        space,
    )
    good, bad = cloudpickle.dumps(space["make"](), 5), cloudpickle.dumps(space["bad"], 5)
    args = pickle.dumps(((1,), {}), 5)
    short = eval("lambda x: 2 * x").__code__
    code = bytes((MARSHAL,)) + marshal.dumps((short, {"__name__": "__main__"}, None), 2)
    more = [_dummy(bad, args, True), _dummy(good, args, False)]
    return [_dummy(good, args, True), _dummy(code, marshal.dumps((1,)), True)], more


_DUMMIES, _MORE_DUMMIES = _make_dummies()
# Tracebacks look for the lines of every frame, ours too, in files that no cell has.
failures.remember_source(Worker.handle.__code__.co_filename, "\n")
gc.collect()
