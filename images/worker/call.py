# SPDX-License-Identifier: Apache-2.0
"""What a call in the user process of a cell takes beyond the plainest one, which serving.cc does.

The frames are those of wire/cell_frame.h. The other side believes nothing of what is sent here,
since the code that is called may have replaced any of this. What could be broken by accident (a
patched clock, a closed stream) is bound at import. Nothing is imported on a call's path. One
thread.
"""

from __future__ import annotations

import _io
import atexit
import builtins
import errno
import gc
import io
import linecache
import logging
import marshal
import mmap
import opcode
import os
import pickle
import re
import resource
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Any, NoReturn

import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]
import dialogue as talk
import encode as encoding
import session
from _hutch_cell import (  # type: ignore[import-not-found,unused-ignore]
    CALL,
    IN_MEMFD,
    IN_PARTS,
    LIMIT_DISK,
    LIMIT_MEMORY,
    LIMIT_PIDS,
    MARSHAL,
    MAX_PAYLOAD,
    MEMFD,
    MOST_IN_PARTS,
    NEED,
    PART,
    PICKLE,
    PLAIN,
    PLAIN_KEPT,
    RAISED,
    RESULT,
    SECTIONS,
    STARTED,
    TOO_LARGE,
    UNENCODABLE,
    USAGE_SIZE,
)

NO_IDENTITY = bytes(32)
NO_TOOLS: Mapping[str, Any] = {}
PLAIN_MARK, PLAIN_KEPT_MARK = bytes((PLAIN,)), bytes((PLAIN_KEPT,))
LIMIT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ENOMEM)
# Modules whose `raise` passes on the error of a child process.
PASSES_ON = ("subprocess", "multiprocessing.pool", "concurrent.futures._base")
SCRATCH = ("/work", "/tmp", "/dev/shm")  # without namespaces they are three file systems

PICKLED = ("function", "chunk")  # modes in which the function comes as a pickle
SLOW_LOAD_NS = 20_000_000  # a load longer than this restarts the call's clock
BY_VALUE = "What came by value of a module that is not here."
MOST_LOOKED_INTO = 1024  # functions, and modules by value
# A program with one of these words may look for its own file, or start an interpreter that does.
LOOKERS = re.compile(
    r"\b(__file__|argv|billiard|coverage|doctest|dotenv|dynaconf|forkserver|icecream|inspect|joblib"
    r"|loky|line_profiler|linecache|memory_profiler|mpire|multiprocess|multiprocessing|n_jobs|numba"
    r"|pathos|pdb|ProcessPoolExecutor|pytest|rich|runpy|spawn|trace|traceback|unittest)\b"
)
MULTIPROCESSING = ("multiprocessing.process", "multiprocess.process", "billiard.process")
TEXTS = ("__main__", "program")  # the modules that a program's text, or a function's, runs as
BALLAST = 4 << 20  # bytes of address space, never touched: room to report a MemoryError in
RAISE = opcode.opmap["RAISE_VARARGS"]
COROUTINE = 0x80  # CO_COROUTINE of a code object's flags

# Whose files write how they end when they are closed.
PACKED = ("bz2", "gzip", "lzma", "zipfile")
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
INLINE = MAX_PAYLOAD - USAGE_SIZE
_lengths = Struct(f"<{SECTIONS}I")

_exit = os._exit
_close = os.close
_pwrite = os.pwrite
_loads = pickle.loads
_statvfs = os.statvfs
_errno_of: Any = vars(OSError)["errno"].__get__
_mro = type.__dict__["__mro__"].__get__
_space = type.__dict__["__dict__"].__get__
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


_not_loaded: list[Exception] = []  # what came of loading a function, the last one


def function_of(code: Any, tools: Mapping[str, Any] = NO_TOOLS) -> Any:
    """What the call of a function calls. `tools`: what its globals get, where they have none."""
    if code[0] != MARSHAL:
        try:
            function = _loads(code)
        except Exception as error:
            _not_loaded[:] = [error]
            raise
        publish(function)
        if tools and isinstance(function, types.FunctionType):
            add_names(function.__globals__, tools)
        return called(function)
    body, space, defaults = marshal.loads(memoryview(code)[1:])
    space["__builtins__"] = _builtins
    add_names(space, tools)
    return types.FunctionType(body, space, None, defaults)


def add_names(space: dict[str, Any], names: Mapping[str, Any]) -> None:
    for name, value in names.items():
        space.setdefault(name, value)


class Text:
    """A program, compiled."""

    def __init__(self, code: Any, filename: str) -> None:
        source = str(code, "utf-8")
        self.filename = filename
        remember_source(filename, source)
        self.is_looked_for = LOOKERS.search(source) is not None
        self.compiled = compile(source, filename, "exec", dont_inherit=True)


def filename_of(meta: Meta) -> str:
    return meta.get("filename") or "program.py"


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
        self.tools: Mapping[str, Any] = NO_TOOLS
        self.id = 0
        self._arguments: Any = self._map() if arguments is None else arguments
        self._places: Any = self._map() if places is None else places

    def load_function(self) -> Any:
        if self.function is None:
            self.function = function_of(self.code, self.tools)
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


class Worker:
    """`fd`: the call socket. serving.cc calls what it does not do itself by these names."""

    def __init__(self, cell: Any, fd: int) -> None:
        self.cell = cell
        self.fd = fd
        self.keep = False
        self.dialogue: talk.Dialogue | None = None  # of calls that have tools, or yield
        self.tools: Mapping[str, Any] = NO_TOOLS
        # By identity: ahead, or by earlier calls of a shared cell.
        self.loaded: dict[bytes, Loaded] = {}
        self.function_of = function_of
        self.leave_fork = leave_fork
        self.call_of = Call
        self.describe = describe

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
                warm_up_text()
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # what is said of it is said in the call
                    text = Text(call.code, filename_of(call.meta))
                # serving.cc writes no file.
                plain = not text.is_looked_for and self.dialogue is None
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
                leave_fork(error)
            self.reply_error(call_id, error, sources)
            return
        if cell.is_fork():
            leave_fork(None)
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
        if meta.get("cwd"):
            os.makedirs(meta["cwd"], exist_ok=True)
            os.chdir(meta["cwd"])
            tell_multiprocessing()
        if meta.get("cpu_ms"):
            limit_cpu(meta["cpu_ms"] / 1000 + self.cell.cpu_used() / 1e6, self.keep)
        elif meta["mode"] == "session":
            lift_cpu_limit()  # of the call before
        mode = meta["mode"]
        if mode == "program":
            return self.prepare_program(call)
        if mode == "session":
            return session.prepare(call, call.id, self, flush_streams, remember_source)
        if "reads_sources" in meta:
            for filename, text in meta["sources"].items():
                remember_source(filename, text)
        if mode == "function_source" and call.function is None:
            text = str(call.code, "utf-8", "surrogatepass")
            call.function = called(define(text, meta, call.tools))
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
        """One after another in this cell, those that have results already left out. What one
        raises is its own affair, but a limit ends all. ("ok", values), or ("each", pairs of what
        became of it).
        """
        for args, kwargs in calls[len(results) :]:
            try:
                results.append(("ok", function(*args, **kwargs)))
            except Exception as error:
                if self.cell.is_fork() or (
                    isinstance(error, MemoryError) and is_out_of_memory(error)
                ):
                    raise
                results.append(("error", describe(error, sources)))
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
        if isinstance(error, MemoryError) and is_out_of_memory(error):
            raise error
        sources = meta_of(meta).get("sources") or {}
        results = [*(("ok", value) for value in values), ("error", describe(error, sources))]
        pairs: list[tuple[Any, dict[str, Any]]] = [(args, {}) for args in calls]
        return "each", self.run_chunk(function, pairs, sources, results)[1]

    def prepare_program(self, call: Call) -> Callable[[], None]:
        meta = call.meta
        filename = filename_of(meta)
        main = fresh_main(filename)  # first: a SyntaxError is of its file
        add_names(main.__dict__, call.tools)
        text = call.code if isinstance(call.code, Text) else Text(call.code, filename)
        given = call.arguments(self.cell)[1]
        if given.get("files"):
            write_files(given["files"])
        if text.is_looked_for:
            write_program(filename, given.get("files") or {})
        sys.argv = [filename, *given.get("args", ())]
        sys.path.insert(0, os.getcwd())
        if given.get("stdin") is not None:
            feed_stdin(given["stdin"], self.keep)
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
        end_interpreter(self.keep)

    def exit_program(self, error: SystemExit) -> None:
        code = exit_code_of(error.code)
        end_interpreter(self.keep)
        exit_unless_zero(code)

    def fail_program(self, error: BaseException) -> None:
        """Ends the interpreter after a program that raised. The error stays its outcome. After a
        limit there may be nothing left to end with, so that is only reported.
        """
        if self.cell.is_fork() or limit_of(error, self.cell):
            return  # leave_fork() does it, or nobody
        try:
            if sys.excepthook is not sys.__excepthook__:
                trace = error.__traceback__
                while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
                    trace = trace.tb_next
                sys.excepthook(type(error), error, trace)
        except BaseException:
            complain()
        self.finish_program()

    # ---- replying ----

    def reply_value(
        self, call_id: int, value: Any, max_bytes: int, of_session: Meta | None = None
    ) -> None:
        """`of_session`: its meta data; the value is then the first of a pair."""
        cell = self.cell

        def path_of(error: Any) -> Any:
            return error.path.replace("result[0]", "result", 1) if of_session else error.path

        try:
            named = of_session is None or of_session["verb"] == "call"
            payload = encoding.encode(value, max_bytes, named)
        except encoding.Unencodable as error:
            instead = of_session and session.shown_instead(of_session, call_id, value)
            if instead:
                self.reply_value(call_id, instead, max_bytes, of_session)
                return
            fields = {
                "path": path_of(error),
                "type": error.type_name,
                "hint": error.hint,
                "message": str(error),
            }
            body = bytes(encoding.encode(fields, 1 << 24).body)
            cell.reply(self.fd, UNENCODABLE, 0, call_id, len(body), len(body), body)
            return
        except encoding.TooLarge as error:
            body = bytes(encoding.encode({"path": path_of(error)}, 1 << 24).body)
            cell.reply(self.fd, TOO_LARGE, 0, call_id, error.size, 0, body[:INLINE])
            return
        cell.encoded()
        size = payload.size
        if size <= INLINE:
            cell.reply(self.fd, RESULT, 0, call_id, size, size, payload.body)
        else:
            self.reply_large(call_id, RESULT, len(payload.body), size, payload.chunks())

    def reply_large(
        self,
        call_id: int,
        kind: int,
        body_size: int,
        size: int,
        chunks: Iterator[tuple[int, Any]],
    ) -> None:
        if size <= MOST_IN_PARTS:
            for part in joined(chunks):
                self.cell.send(self.fd, PART, 0, call_id, 0, size, part)
            self.cell.reply(self.fd, kind, IN_PARTS, call_id, body_size, size)
            return
        self.cell.send(self.fd, NEED, 0, call_id, size, 0)
        frame = self.cell.recv(self.fd)
        if frame is None:
            _exit(0)
        if frame[0] != MEMFD or len(frame[6]) != 1:
            self.cell.reply(self.fd, TOO_LARGE, 0, call_id, size, 0)
            return
        fd = frame[6][0]
        for offset, chunk in chunks:
            view = memoryview(chunk).cast("B")
            while view:
                written = _pwrite(fd, view[: 1 << 30], offset)
                view = view[written:]
                offset += written
        _close(fd)
        self.cell.reply(self.fd, kind, IN_MEMFD, call_id, body_size, size)

    def reply_error(self, call_id: int, error: BaseException, sources: dict[str, str]) -> None:
        limit = limit_of(error, self.cell)
        if limit:
            self.cell.hit_limit(limit)
            _ballast.close()
        no_files = limit == LIMIT_DISK and full_scratch() == "files"
        try:
            fields = describe(error, sources)
        except BaseException:
            traceback.clear_frames(error.__traceback__)
            bases = encoding.builtin_bases(type(error))
            fields = encoding.error_fields(type(error).__name__, "", "", None, "", bases)
        if no_files:
            fields["no_files"] = True
        body = encoding.encode_error(fields)
        if len(body) <= INLINE:
            self.cell.reply(self.fd, RAISED, 0, call_id, len(body), len(body), body)
        else:
            self.reply_large(call_id, RAISED, len(body), len(body), iter([(0, body)]))

    # ---- before the first call ----

    def warm_up(self) -> None:
        """Serves dummy calls that return, before the first real call, which then has few page
        faults. Calls that raise, or that run text, are left out: each cell would pay for them twice
        what it pays for all others. A call can observe nothing of it."""
        self.walk(_DUMMIES)

    def warm_up_all(self) -> None:
        """The same in the zygote, once for all cells, with every kind of call."""
        warm_up_text()
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


def joined(chunks: Iterator[tuple[int, Any]]) -> Iterator[bytearray]:
    """The bytes of chunks, which are at these offsets, in pieces that fit a frame. Each is to be
    used before the next one is asked for."""
    piece = bytearray()
    end = 0
    for offset, chunk in chunks:
        for content in (bytes(offset - end), chunk):
            view = memoryview(content).cast("B")
            end += len(view)
            while view:
                taken = min(len(view), MAX_PAYLOAD - len(piece))
                piece += view[:taken]
                view = view[taken:]
                if len(piece) == MAX_PAYLOAD:
                    yield piece
                    del piece[:]
    if piece:
        yield piece


_ballast = mmap.mmap(-1, BALLAST, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def limit_of(error: BaseException, cell: Any) -> int:
    """Which limit of the cell an uncaught exception is, or 0. What a `raise` statement made is any
    error, whatever it says. An error whose own code raises as it is examined is no limit.
    """
    try:
        limit: int = _limit_of(error, cell)
        return limit
    except BaseException:
        return 0


def _limit_of(error: BaseException, cell: Any) -> Any:
    if isinstance(error, MemoryError):
        return LIMIT_MEMORY if is_out_of_memory(error) else 0
    number = _errno_of(error) if issubclass(type(error), OSError) else None
    if type(number) is not int:  # any object may stand there, and compare as it likes
        number = None
    no_thread = isinstance(error, RuntimeError) and is_text(error.args, "can't start new thread")
    if number not in LIMIT_ERRORS and not no_thread:
        return 0
    if raised_in(error) not in (None, *PASSES_ON):
        return 0
    if number in (errno.ENOSPC, errno.EDQUOT):
        return LIMIT_DISK if full_scratch() else 0
    if number != errno.ENOMEM and not cell.can_fork():
        return LIMIT_PIDS
    if number == errno.EAGAIN or has_own_memory_limit():
        return 0
    return LIMIT_MEMORY


def is_text(arguments: Any, text: str) -> bool:
    """Whether the arguments of an exception are just this text; no other object is compared."""
    return len(arguments) == 1 and type(arguments[0]) is str and arguments[0] == text


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an allocation failed for the call's limit; a MemoryError that Python code raised is
    any error.
    """
    if has_own_memory_limit():
        return False
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) and raised_in(error) is None:
            return True
        error = error.__cause__ or error.__context__
    return False


def has_own_memory_limit() -> bool:
    """Whether the code gave itself less address space than it was given memory to reserve."""
    own, given = (resource.getrlimit(one)[0] for one in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return own != resource.RLIM_INFINITY and (given == resource.RLIM_INFINITY or own < given)


def raised_in(error: BaseException) -> str | None:
    """The name of the module whose `raise` statement made it; None: none did."""
    place = error.__traceback__
    if place is None:
        return None
    while place.tb_next is not None:
        place = place.tb_next
    # Compiled code may have a frame without any bytecode.
    if place.tb_frame.f_code.co_code[max(place.tb_lasti, 0) :][:1] != bytes((RAISE,)):
        return None
    name = place.tb_frame.f_globals.get("__name__")
    return name if type(name) is str else ""


def full_scratch() -> str:
    """Of what the scratch has none left, "blocks" or "files"; "" where there is room, as in one
    whose files were removed since. A file may be of another file system.
    """
    for path in SCRATCH:
        try:
            status = _statvfs(path)
        except OSError:
            continue
        if status.f_blocks and status.f_bfree == 0:
            return "blocks"
        if status.f_files and status.f_ffree == 0:
            return "files"
    return ""


def describe(error: BaseException, sources: dict[str, str]) -> dict[str, Any]:
    """The error as data: the user's own frames only, with the lines of files that are not here."""
    for filename, text in sources.items():
        remember_source(filename, text)
    report = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    leave_out_own(report)
    line = report.stack[-1].lineno if report.stack else None
    own = {*sources, *(getattr(sys.modules.get(name), "__file__", None) for name in TEXTS)}
    for frame in report.stack:
        if frame.filename in own:
            line = frame.lineno
    if isinstance(error, SyntaxError) and error.filename in own:
        line = error.lineno
    try:
        message = str(error)
    except Exception as second:
        message = f"(its text cannot be had: {type(second).__name__})"
    bases = encoding.builtin_bases(type(error))
    text = "".join(report.format())
    hint = ""
    if any(error is one for one in _not_loaded) and not isinstance(
        error, (ImportError, MemoryError)
    ):
        message = f"{message} (before the function began, as what travels with it was loaded)"
        hint = "the function did not raise this: make inside it what cannot be loaded there"
    return encoding.error_fields(type(error).__name__, message, text, line, hint, bases)


def talking(dialogue: talk.Dialogue, call_id: int, run: Callable[[], Any], streams: bool) -> Any:
    """Runs it with its tools, or sends what it yields."""
    dialogue.begin(call_id)
    try:
        value = run()
        return talk.send_items(dialogue, value) if streams else value
    finally:
        if dialogue.pid == os.getpid():
            dialogue.end()


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is called for it: a coroutine function is run to its end."""
    if not getattr(getattr(function, "__code__", None), "co_flags", 0) & COROUTINE:
        return function
    import asyncio

    return lambda *args, **kwargs: asyncio.run(function(*args, **kwargs))


def leave_out_own(report: traceback.TracebackException) -> None:
    """Removes the frames of the worker's own files, also from causes and contexts."""
    waiting, seen = [report], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_HERE)]
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
        waiting += getattr(one, "exceptions", None) or []


def warm_up_text() -> None:
    """Runs the parts that only programs, and functions given as text, need."""
    main, here = sys.modules["__main__"], sys.path[:]
    sys.path.insert(0, os.getcwd())
    space = fresh_main("program.py").__dict__
    remember_source("program.py", _TEXT)
    exec(compile(_TEXT, "program.py", "exec", dont_inherit=True), space)
    del linecache.cache["program.py"]
    sys.modules["__main__"], sys.path[:] = main, here


def remember_source(filename: str, text: str) -> None:
    lines = text.splitlines(True)
    linecache.cache[filename] = (len(text), None, lines, filename)


def define(source: str, meta: dict[str, Any], tools: Mapping[str, Any]) -> Any:
    """The function of that name, after the text ran once as a module that is not `__main__`."""
    filename = filename_of(meta)
    remember_source(filename, source)
    module = types.ModuleType("program")
    module.__file__ = filename
    sys.modules["program"] = module
    add_names(module.__dict__, tools)
    exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
    try:
        return module.__dict__[meta["name"]]
    except KeyError:
        raise NameError(f"the source defines no {meta['name']!r}") from None


_written: set[str] = set()  # the files of programs that ran in this process


def write_program(filename: str, given: dict[str, Any]) -> None:
    """Writes the program to the file of its name in the working directory, unless there is one. An
    earlier program's, in a shared cell, is none. `given`: the caller's files."""
    path = os.path.abspath(filename)
    if not path.startswith(os.getcwd() + os.sep):
        return
    try:
        if path in _written and path not in map(os.path.abspath, given):
            os.unlink(path)
    except OSError:
        pass  # it is gone
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x", encoding="utf-8", newline="") as file:
            _written.add(path)
            file.write("".join(linecache.getlines(filename)))
    except OSError:
        pass  # there is one, or no room: as a program whose file was deleted


def publish(function: Any) -> None:
    """What came by value stands in its module under its own name, so that it can be pickled by
    that name, as it is where a child process was forked. It is found in what functions refer to,
    and in modules by value and classes that are found there.
    """
    waiting: list[Any] = [function]
    seen: dict[int, Any] = {}
    while waiting and len(seen) < MOST_LOOKED_INTO:
        space = waiting.pop()
        if id(space) in seen:
            continue
        seen[id(space)] = space
        if type(space) is not dict:
            around = getattr(space, "__globals__", None)
            if type(around) is not dict or is_of_import(around):
                continue
            waiting.append(around)
            space = closure_of(space)
        for name, value in list(space.items()):
            if type(value) is types.ModuleType:
                if not is_of_import(vars(value)):
                    waiting.append(vars(value))
                continue
            if isinstance(value, types.FunctionType):
                waiting.append(value)
            elif not isinstance(value, type):
                continue
            if value.__qualname__ != name or type(value.__module__) is not str:
                continue
            module = module_by_value(value.__module__)
            if module is not None:
                setattr(module, name, value)
                # A new interpreter would look for __main__'s.
                if space.get("__name__") == value.__module__ != "__main__" and "__file__" in space:
                    module.__dict__.setdefault("__file__", space["__file__"])
                if isinstance(value, type):
                    waiting += [one for one in map(method_of, vars(value).values()) if one]


def is_of_import(space: dict[str, Any]) -> bool:
    """Whether these are the globals of a module that was imported."""
    module = sys.modules.get(str(space.get("__name__")))
    return getattr(module, "__dict__", None) is space


def closure_of(function: Any) -> dict[str, Any]:
    """What a function refers to of those around it."""
    if not isinstance(function, types.FunctionType):
        return {}
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            pass  # not assigned yet
    return found


def method_of(value: Any) -> types.FunctionType | None:
    """The function that stands in a class as this."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    return value if isinstance(value, types.FunctionType) else None


def module_by_value(name: str) -> types.ModuleType | None:
    """`__main__`, or a module of that name that is made here with its parents; None: there is one
    that was imported.
    """
    module = sys.modules.get(name)
    if module is None:
        module = sys.modules[name] = types.ModuleType(name, BY_VALUE)
        parent, _, last = name.rpartition(".")
        above = module_by_value(parent) if parent else None
        if above is not None:
            above.__dict__.setdefault("__path__", [])
            above.__dict__.setdefault(last, module)
    return module if name == "__main__" or module.__doc__ is BY_VALUE else None


def fresh_main(filename: str) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__file__ = filename
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    main.__dict__["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main


def write_files(files: dict[str, Any]) -> None:
    for name, content in files.items():
        directory = os.path.dirname(name)
        if directory:
            os.makedirs(directory, exist_ok=True)
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        with open(name, "wb") as file:
            file.write(data)


def feed_stdin(content: Any, anew: bool) -> None:
    """A real descriptor 0, so that child processes can read it too. `sys.stdin` looks there when it
    is read from, unless a package or `setup` took it away. `anew`: an earlier call may have read.
    """
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    try:
        fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # gVisor has no such files
        fd = os.open("/tmp/.stdin", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.unlink("/tmp/.stdin")
    os.write(fd, b"")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    _close(fd)
    now = vars(sys)["stdin"]
    if anew or now is not vars(sys)["__stdin__"] or now.closed:
        raw = io.BufferedReader(io.FileIO(0, closefd=False))
        sys.stdin = io.TextIOWrapper(raw, encoding="utf-8")


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


def tell_multiprocessing() -> None:
    """A child that it starts anew looks for the program where the parent was when it was imported:
    that was in the zygote, in another directory. Copies of it in other packages do the same."""
    for name in MULTIPROCESSING:
        process = sys.modules.get(name)
        if process is not None:
            process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]


def end_interpreter(keep: bool) -> None:
    """What a program can observe of the interpreter's end: threads are waited for, exit functions
    run, objects finalized. `keep`: another program follows in this process. An exception here is
    printed, and changes neither the outcome of the program nor what is still to be done.

    That of logging comes last, as it was registered first; where there is no handler but its own it
    would do nothing, at the cost of a third of a short program."""
    threading = sys.modules.get("threading")
    try:
        if threading is not None and (len(threading._active) > 1 or threading._threading_atexits):
            if keep:
                wait_for_threads(threading)
            else:
                threading._shutdown()
    except BaseException:
        complain()
    try:
        atexit._run_exitfuncs()
    except BaseException:
        complain()
    try:
        if len(logging._handlerList) > 1:  # type: ignore[attr-defined]
            logging.shutdown()
    except BaseException:
        complain()
    try:
        finalize_objects(keep)
    except BaseException:
        complain()


def complain() -> None:
    """Prints the error at hand, where that is possible."""
    try:
        traceback.print_exc()
    except BaseException:
        pass


def wait_for_threads(threading: Any) -> None:
    """As threading._shutdown(), which works once in a process, and after which no pool of threads
    or processes takes work."""
    for function in reversed(threading._threading_atexits):
        function()
    for name, flag in (("thread", "_shutdown"), ("process", "_global_shutdown")):
        pools = sys.modules.get("concurrent.futures." + name)
        if pools is not None:
            setattr(pools, flag, False)
    waiting = True
    while waiting:
        waiting = False
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
                waiting = True


_kept: list[Any] = []  # until this process ends


def finalize_objects(keep: bool) -> None:
    """Calls `__del__` of what the program leaves, closes its generators, and writes what its files
    hold back. Objects of the zygote are not looked at: they are frozen. Nothing is destroyed: the
    process ends, or with `keep` destroys them later, which ends them then. Classes are compared
    by their addresses, and looked into past their metaclasses, which may refuse, or lie."""
    try:
        young, middle = gc.get_objects(0), gc.get_objects(1)
        found = gc.get_objects(2)  # one list of them: there may be little memory left
        found += middle
        found += young
        kinds = {id(kind): kind for kind in map(type, found)}
        if not keep:
            ends = {place: end_of(kind) for place, kind in kinds.items()}
            ended = {place: end for place, end in ends.items() if end is not None}
            _kept.append(found)  # what others still referred to is not ended again when they let go
            for value in found if ended else ():
                if id(type(value)) in ended and not gc.is_finalized(value):
                    finalize(value, ended[id(type(value))])
        text = {place for place, kind in kinds.items() if is_derived(kind, _io._TextIOBase)}
        packed = {place for place, kind in kinds.items() if is_packed(kind)}
        files = {place for place, kind in kinds.items() if is_derived(kind, _io._IOBase)}
        for places in (text, packed, files - text - packed):  # as each writes to the next
            for value in found if places else ():
                if id(type(value)) in places:
                    write_out(value, places is packed)
    except MemoryError:
        pass


def end_of(kind: type) -> Any:
    """Its `__del__`, where that is a function; what closes a generator."""
    if kind is types.GeneratorType:
        return close_generator
    for base in _mro(kind):
        space = _space(base)
        if "__del__" in space:
            end = space["__del__"]
            return end if type(end) is types.FunctionType else None
    return None


def close_generator(value: Any) -> None:
    if not value.gi_running:
        value.close()


def is_derived(kind: type, base: type) -> bool:
    return any(one is base for one in _mro(kind))


def is_packed(kind: type) -> bool:
    module = _space(kind).get("__module__")
    return type(module) is str and module in PACKED


def finalize(value: Any, function: Any) -> None:
    try:
        function(value)
    except BaseException:
        try:
            what = value if function is close_generator else function
            print(f"Exception ignored in: {what!r}", file=sys.stderr)
        except BaseException:
            pass
        complain()


def write_out(file: Any, close: bool) -> None:
    try:
        file.close() if close else file.flush()
    except BaseException:
        pass  # it is closed, or there is no room


def exit_code_of(code: Any) -> int:
    """As the interpreter does: what is neither None nor an int is a message, though it equals 0.
    The message is printed before the interpreter ends."""
    if code is None:
        return 0
    if issubclass(type(code), int):
        code = int.__int__(code)
        return code if -(1 << 63) <= code < 1 << 63 else -1
    try:
        print(code, file=sys.stderr)
    except BaseException:
        pass
    return 1


def exit_unless_zero(code: int) -> None:
    if code == 0:
        return
    flush_streams()
    leave(code)


def leave_fork(error: BaseException | None) -> NoReturn:
    """Ends a process that the program forked and that came back from it, as the interpreter's end
    would: the reply to the call is its parent's."""
    code = 0
    try:
        if isinstance(error, SystemExit):
            code = exit_code_of(error.code)
        elif error is not None:
            report = traceback.TracebackException.from_exception(error)
            leave_out_own(report)
            print("".join(report.format()), end="", file=sys.stderr)
            code = 1
        end_interpreter(False)
        exit_unless_zero(code)
    finally:
        flush_streams()
        leave(0)


def leave(code: int) -> NoReturn:
    _exit(code & 0xFF)


def flush_streams() -> None:
    flush(sys.stdout)
    flush(sys.stderr)
    if sys.__stdout__ is not sys.stdout:
        flush(sys.__stdout__)
    if sys.__stderr__ is not sys.stderr:
        flush(sys.__stderr__)


def flush(stream: Any) -> None:
    try:
        if stream is not None:
            stream.flush()
    except BaseException:
        pass  # closed, replaced, or nobody reads: none of it may lose the result


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


_TEXT = "def f(x): return x + 1\ny = f(1)\n"
_DUMMIES, _MORE_DUMMIES = _make_dummies()
# Tracebacks look for the lines of every frame, ours too, in files that no cell has.
remember_source(Worker.handle.__code__.co_filename, "\n")
atexit.unregister(logging.shutdown)  # end_interpreter() calls it
gc.collect()
