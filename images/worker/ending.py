# SPDX-License-Identifier: Apache-2.0
"""The end of a program: what it can observe of the interpreter's end, and its exit code."""

from __future__ import annotations

import _io
import atexit
import gc
import logging
import os
import sys
import traceback
import types
from typing import Any, NoReturn

from _hutch_cell import flush_streams  # type: ignore[import-not-found,unused-ignore]
from failures import leave_out_own

# Whose files write how they end when they are closed.
PACKED = ("bz2", "gzip", "lzma", "zipfile")

_exit = os._exit
_mro = type.__dict__["__mro__"].__get__
_space = type.__dict__["__dict__"].__get__
_kept: list[Any] = []  # until this process ends


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


def is_success(code: Any) -> bool:
    """Of a SystemExit: whether its exit code is 0. Prints no message."""
    return code is None or (issubclass(type(code), int) and int.__int__(code) == 0)


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


atexit.unregister(logging.shutdown)  # end_interpreter() calls it
