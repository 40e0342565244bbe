# SPDX-License-Identifier: Apache-2.0
"""What a call raised: which limit of the cell it is, if any, and the error as data."""

from __future__ import annotations

import errno
import io
import linecache
import opcode
import os
import re
import resource
import sys
import traceback
import types
from itertools import dropwhile, islice
from typing import Any

import encode as encoding
import nearby
from _hutch_cell import (  # type: ignore[import-not-found,unused-ignore]
    LIMIT_DISK,
    LIMIT_MEMORY,
    LIMIT_PIDS,
)

LIMIT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ENOMEM)
# Modules whose `raise` passes on the error of a child process.
PASSES_ON = ("subprocess", "multiprocessing.pool", "concurrent.futures._base")
SCRATCH = ("/work", "/tmp", "/dev/shm")  # without namespaces they are three file systems
TEXTS = ("__main__", "program")  # the modules that a program's text, or a function's, runs as
STRING = "<string>"  # what any text may be called
MARK = "\ufeff"  # a byte order mark, with which text of a file may begin
SUGGESTION = re.compile(r"\. Did you mean: '[^'\n]*'\?(?=\n\Z)")
FENCE = re.compile(r"^(?:```|~~~)\w*[ \t]*$", re.M)
RAISE = opcode.opmap["RAISE_VARARGS"]
PARSES = {"compile", "eval", "exec", "literal_eval", "parse"}
CALL_OF_PARSER = re.compile(rb"(?:\w+\s*\.\s*)*(?:compile|eval|exec|literal_eval|parse)\s*\(")
PARSER_BYTES = 64 << 20
ASYNCIO = os.path.join(os.path.dirname(os.__file__), "asyncio") + os.sep
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

_statvfs = os.statvfs
_errno_of: Any = vars(OSError)["errno"].__get__

not_loaded: list[Exception] = []  # what came of loading a function, the last one


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
            return not is_of_parser(error)
        error = error.__cause__ or error.__context__
    return False


def is_of_parser(error: BaseException) -> bool:
    """Whether Python's parser raised it, for code that is nested too deeply: a call of `compile`
    and its like failed, and most of the memory that may be reserved is left.
    """
    place = error.__traceback__
    if place is None:
        return False
    while place.tb_next is not None:
        place = place.tb_next
    code = place.tb_frame.f_code
    if not PARSES.intersection(code.co_names) or not calls_parser(code, place.tb_lasti):
        return False
    most = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return most == resource.RLIM_INFINITY or most - data_bytes() > PARSER_BYTES


def data_bytes() -> int:
    """What the process has reserved of what RLIMIT_DATA limits."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[5]) * resource.getpagesize()


def calls_parser(code: types.CodeType, place: int) -> bool:
    """Whether the instruction there calls what parses; before 3.11, and in our own files, whose
    lines are not at hand, whether it may.
    """
    if not opcode.opname[code.co_code[place]].startswith(("CALL", "PRECALL")):
        return False
    if sys.version_info < (3, 11) or code.co_filename.startswith(HERE):
        return True
    line, _, column, _ = next(islice(code.co_positions(), place // 2, None))
    text = linecache.getline(code.co_filename, line or 0).encode("utf-8", "surrogatepass")
    return CALL_OF_PARSER.match(text, column or 0) is not None


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
    more = suggestion(error)
    if more:
        report._str += more  # type: ignore[attr-defined]
    leave_out_own(report)
    line = report.stack[-1].lineno if report.stack else None
    own = {*sources, *(getattr(sys.modules.get(name), "__file__", None) for name in TEXTS)}
    for frame in report.stack:
        if frame.filename in own:
            line = frame.lineno
    if isinstance(error, SyntaxError) and error.filename in own:
        line = error.lineno
        if report.text is None and error.filename != STRING:
            report.text = linecache.getline(error.filename, line or 0) or None
    try:
        message = str(error)
    except Exception as second:
        message = f"(its text cannot be had: {type(second).__name__})"
    bases = encoding.builtin_bases(type(error))
    text = "".join(report.format())
    hint = ""
    if any(error is one for one in not_loaded) and not isinstance(
        error, (ImportError, MemoryError)
    ):
        message = f"{message} (before the function began, as what travels with it was loaded)"
        hint = "the function did not raise this: make inside it what cannot be loaded there"
    if isinstance(error, MemoryError) and raised_in(error) is None and is_of_parser(error):
        hint = "Python's parser gave up, not for want of memory: nest the expressions less deeply"
    if isinstance(error, SyntaxError) and comes_before_a_fence(
        sources.get(error.filename or "", ""), line
    ):
        hint = (
            "if lines of ``` are fences around the code, leave out these and the text around them"
        )
    fields = encoding.error_fields(type(error).__name__, message, text, line, hint, bases)
    if isinstance(error, (KeyError, FileNotFoundError)):
        fields["near"] = nearby.near(error)
    return fields


def comes_before_a_fence(source: str, line: int | None) -> bool:
    """Whether there is a fence of Markdown after the line of the error."""
    fence = FENCE.search(source)
    return fence is not None and source.count("\n", 0, fence.start()) + 1 > (line or 0)


def suggestion(error: BaseException) -> str:
    """What the interpreter adds to the text of a name that is nearly right. Before 3.12 it does so
    only where it prints the error itself.
    """
    if sys.version_info >= (3, 12) or type(error) not in (NameError, AttributeError):
        return ""
    printed = io.StringIO()
    before = sys.stderr
    try:
        sys.stderr = printed
        sys.__excepthook__(type(error), error.with_traceback(error.__traceback__), None)
    except BaseException:
        return ""
    finally:
        sys.stderr = before
    found = SUGGESTION.search(printed.getvalue())
    return found.group() if found else ""


def leave_out_own(report: traceback.TracebackException) -> None:
    """Removes the frames of the worker's own files, also from causes and contexts."""
    waiting, seen = [report], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        frames = list(dropwhile(is_around, one.stack))
        one.stack[:] = [frame for frame in frames if not frame.filename.startswith(HERE)]
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
        waiting += getattr(one, "exceptions", None) or []


def trace_of(error: BaseException) -> types.TracebackType | None:
    """From the first frame that is not the worker's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(HERE):
        trace = trace.tb_next
    return trace


def is_around(frame: traceback.FrameSummary) -> bool:
    """Whether it is the worker's, or the event loop's that the worker has run what is awaited."""
    return frame.filename.startswith(HERE) or frame.filename.startswith(ASYNCIO)


def remember_source(filename: str, text: str) -> None:
    # They end where those of a file do, and at no other character that separates lines of prose.
    lines = io.StringIO(text, None).readlines()
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"  # as the lines of a file have it, and so what inspect gives
    linecache.cache[filename] = (len(text), None, lines, filename)
