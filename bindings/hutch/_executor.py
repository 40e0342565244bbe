# SPDX-License-Identifier: Apache-2.0
"""A concurrent.futures.Executor over the sandbox."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor as _Executor, Future
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hutch._calls.future import SandboxFuture
from hutch._calls.threads import THREADS, CallThreads
from hutch._options.checks import _whole
from hutch._options.described import described
from hutch._options.keywords import with_keywords
from hutch._options.options import NORMAL
from hutch._program import TextMaker
from hutch._sandbox import SandboxedFunction, make

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._options.described import Keywords

R = TypeVar("R")
_PLACEHOLDER = getattr(functools, "Placeholder", object())  # Python 3.14 has it
# This module is not inside, so it is text.
_ANY = """
def call(function, /, *args, **kwargs):
    return function(*args, **kwargs)
"""


class Executor(_Executor):
    """A concurrent.futures.Executor whose calls run in the sandbox.

    `max_workers`: calls in flight at once; more wait their turn here. A program that ends waits for
    what it has submitted, as with the executors of concurrent.futures.
    """

    @described
    def __init__(self, max_workers: int | None = None, **keywords: Unpack[Keywords]) -> None:
        if max_workers is None:
            max_workers = min(THREADS, 2 * (os.cpu_count() or 1))
        self._threads = CallThreads(_whole("max_workers", max_workers, 1, 10_000))
        self._options = with_keywords(NORMAL, keywords)
        if self._options.dependencies is None:
            raise ValueError('dependencies="inline" is for programs given as text')
        self._functions: dict[Any, SandboxedFunction[..., Any]] = {}
        self._any = SandboxedFunction[..., Any](self._options, TextMaker(_ANY, "call"))
        self._is_shut_down = False
        self._begin()
        _executors.add(self)

    def _begin(self) -> None:
        """With no calls, in this process."""
        self._lock = threading.Lock()
        self._futures: set[SandboxFuture[Any]] = set()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> SandboxFuture[R]:
        """A future at once. `fn`: any callable that can be pickled. What it holds, such as the
        arguments of a `functools.partial` or the instance of a method, is sent like arguments.

            executor.submit(functools.partial(round, ndigits=1), 2.71).result()  # 2.7
        """
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            sandboxed, args, kwargs = self._taken_apart(fn, args, kwargs)
            future: SandboxFuture[R] = sandboxed._submit(args, kwargs, self._threads)
            self._futures.add(future)
        future.add_done_callback(self._forget)
        return future

    def _taken_apart(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[SandboxedFunction[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The function in it, and what it is called with."""
        while True:
            if type(fn) is MethodType:
                fn, args = fn.__func__, (fn.__self__, *args)
            elif type(fn) is functools.partial and not any(x is _PLACEHOLDER for x in fn.args):
                fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
            else:
                break
        if isinstance(fn, SandboxedFunction):
            return fn, args, kwargs
        if type(fn) is FunctionType:
            found = self._functions.get(fn)
            if found is None:
                found = self._functions[fn] = make(fn, self._options)
            return found, args, kwargs
        if not callable(fn):
            raise TypeError(f"submit takes what can be called, not {type(fn).__name__}")
        return self._any, (fn, *args), kwargs

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(cast("SandboxFuture[Any]", future))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._is_shut_down = True
            futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                if not future.running():
                    future.cancel()
        if wait:
            from concurrent.futures import wait as wait_for

            wait_for(futures)


_executors = weakref.WeakSet[Executor]()


def _after_fork() -> None:
    """The calls in flight are the parent's."""
    for executor in list(_executors):
        executor._begin()


os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    """Waits for all that was submitted, and for what is called when it is done. Runs before calls
    are cancelled (_calls/future.py), which was registered earlier.
    """
    for executor in list(_executors):
        executor.shutdown()
        executor._threads.finish()


atexit.register(_at_exit)
