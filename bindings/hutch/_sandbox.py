# SPDX-License-Identifier: Apache-2.0
"""`@sandbox` and what it makes: SandboxedFunction, a function that runs in a fresh cell.

Light to import: what pickles, packages and connects is imported at the first call. A
SandboxedFunction is immutable but for what it remembers; safe on any thread.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from hutch._errors import SandboxError
from hutch._options.checks import _whole
from hutch._options.described import described
from hutch._options.keywords import with_keywords
from hutch._options.options import NORMAL, Options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
    from types import CodeType, FunctionType
    from typing import Concatenate, Literal, ParamSpec

    from typing_extensions import Unpack

    from hutch._calls.future import SandboxFuture
    from hutch._calls.stream import AsyncSandboxedGenerator, SandboxedGenerator, Stream
    from hutch._calls.target import FunctionTarget, Target
    from hutch._calls.threads import CallThreads
    from hutch._carry.by_value import Maker, Parts
    from hutch._carry.functions import Carried
    from hutch._options.described import Keywords
    from hutch._outcome import Outcome

    P = ParamSpec("P")
    Q = ParamSpec("Q")
else:
    from typing import ParamSpec

    P = ParamSpec("P")

R = TypeVar("R")
T = TypeVar("T")
_INLINE = 'dependencies="inline" is for programs given as text'
_OF_THE_BYTES = (
    "dependencies",
    "environment",
    "modules",
    "refuse_secrets",
    "tools",
)  # options that its bytes depend on
_COROUTINE, _GENERATOR, _ASYNC_GENERATOR = 0x80, 0x20, 0x200  # of a code object's flags
_NO_SHARED = (
    'isolation="shared" is not supported for a generator function: its process serves many calls; '
    "leave isolation= out"
)


class SandboxedFunction(Generic[P, R]):
    """A function that runs in the sandbox when it is called. Made by `sandbox` or `function`."""

    __wrapped__: Callable[P, R]

    def __init__(
        self,
        options: Options,
        make_target: Maker,
        bound: tuple[Any, ...] = (),
        origin: SandboxedFunction[..., Any] | None = None,
    ) -> None:
        self._plain = make_target.plain
        self._options = options
        self._make_target = make_target
        self._bound = bound
        self._origin = origin  # what it was made from, by other options or for an instance
        self._target: Target | None = None
        self._stands_in: tuple[Any, Any] | None = None  # what stands for it in a pickle
        if self._plain is None:
            self.__name__ = self.__qualname__ = make_target.name
        else:
            import functools

            functools.update_wrapper(self, self._plain)

    # ---- what inspect asks of a function: whether it is a coroutine function, and the like ----

    @property
    def __code__(self) -> CodeType:
        return cast("CodeType", self._of_plain("__code__"))

    @property
    def __defaults__(self) -> tuple[Any, ...] | None:
        return cast("tuple[Any, ...] | None", self._of_plain("__defaults__"))

    @property
    def __kwdefaults__(self) -> dict[str, Any] | None:
        return cast("dict[str, Any] | None", self._of_plain("__kwdefaults__"))

    def _of_plain(self, name: str) -> Any:
        if self._plain is None:
            raise AttributeError(f"a function given as text has no {name} here")
        return getattr(self._plain, name)

    # ---- calling ----

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The value, or raises. Shows live what the function prints, unless `echo=False`."""
        target = self._target or self._resolved()
        given = (*self._bound, *args) if self._bound else args
        fast = target.fast_value
        try:
            if fast is not None:
                value: R = fast.call(target, fast, given, kwargs)
                if value is not NotImplemented:
                    return value
            from hutch._calls import run

            return cast(R, run.value(target, given, kwargs))
        except SandboxError as error:
            raise error.with_traceback(None)  # noqa: B904 (our frames tell its reader nothing)

    async def aio(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same without blocking the event loop. Cancelling the task kills the cell."""
        return cast(R, (await self._call_aio(args, kwargs, True)).unwrap())

    def run(self, /, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]:
        """An Outcome, whatever the function did. Shows nothing unless `echo=True`; raises only
        what Hutch itself failed at.
        """
        target = self._target or self._resolved()
        fast = target.fast_outcome
        if fast is not None:
            outcome: Any = fast.call(target, fast, (*self._bound, *args), kwargs)
            if outcome is not NotImplemented:
                return cast("Outcome[R]", outcome)
        return self._call(args, kwargs, False)

    async def run_aio(self, /, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]:
        """`run` without blocking the event loop."""
        return await self._call_aio(args, kwargs, False)

    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> SandboxFuture[R]:
        """A future at once. The arguments must not change before it is done."""
        return cast("SandboxFuture[R]", self._submit(args, kwargs))

    def local(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The plain call, unsandboxed, for debugging."""
        if self._plain is None:
            raise TypeError("a function given as text runs in the sandbox only")
        return cast(R, self._plain(*self._bound, *args, **kwargs))

    # ---- many calls ----

    @overload
    def map(
        self,
        xs: Iterable[Any],
        /,
        *more: Iterable[Any],
        concurrency: int | None = None,
        ordered: bool = True,
        chunksize: int = 1,
        on_error: Literal["raise"] = "raise",
        retries: int = 0,
    ) -> Iterator[R]: ...
    @overload
    def map(
        self,
        xs: Iterable[Any],
        /,
        *more: Iterable[Any],
        concurrency: int | None = None,
        ordered: bool = True,
        chunksize: int = 1,
        on_error: Literal["outcome"],
        retries: int = 0,
    ) -> Iterator[Outcome[R]]: ...
    def map(
        self,
        xs: Iterable[Any],
        /,
        *more: Iterable[Any],
        concurrency: int | None = None,
        ordered: bool = True,
        chunksize: int = 1,
        on_error: Literal["raise", "outcome"] = "raise",
        retries: int = 0,
    ) -> Iterator[Any]:
        """Calls it with each item (with several iterables: one of each), some at a time.

        `concurrency=None` follows what the host bears. `on_error="outcome"` yields Outcomes, faults
        included. `chunksize=n` lets n items share a fresh cell. Items are taken as calls come free.
        """
        return self.starmap(
            zip(xs, *more),
            concurrency=concurrency,
            ordered=ordered,
            chunksize=chunksize,
            on_error=on_error,
            retries=retries,
        )

    @overload
    def starmap(
        self,
        tuples: Iterable[Iterable[Any]],
        /,
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        chunksize: int = 1,
        on_error: Literal["raise"] = "raise",
        retries: int = 0,
    ) -> Iterator[R]: ...
    @overload
    def starmap(
        self,
        tuples: Iterable[Iterable[Any]],
        /,
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        chunksize: int = 1,
        on_error: Literal["outcome"],
        retries: int = 0,
    ) -> Iterator[Outcome[R]]: ...
    def starmap(
        self,
        tuples: Iterable[Iterable[Any]],
        /,
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        chunksize: int = 1,
        on_error: Literal["raise", "outcome"] = "raise",
        retries: int = 0,
    ) -> Iterator[Any]:
        """`map`, with each item being the positional arguments."""
        from hutch._calls.map import Plan, run, runner_for

        cells = self._options.pool.max_cells
        plan = Plan(concurrency, ordered, chunksize, on_error, retries, cells)
        runner = runner_for(self._resolved(), echo=plan.raises, values=plan.raises)
        bound = self._bound
        items = ((*bound, *item) for item in tuples) if bound else map(tuple, tuples)
        return run(plan, items, runner)

    @overload
    def map_aio(
        self,
        xs: Iterable[Any],
        /,
        *more: Iterable[Any],
        on_error: Literal["raise"] = "raise",
        **settings: Any,
    ) -> AsyncIterator[R]: ...
    @overload
    def map_aio(
        self,
        xs: Iterable[Any],
        /,
        *more: Iterable[Any],
        on_error: Literal["outcome"],
        **settings: Any,
    ) -> AsyncIterator[Outcome[R]]: ...
    def map_aio(
        self, xs: Iterable[Any], /, *more: Iterable[Any], **settings: Any
    ) -> AsyncIterator[Any]:
        """`map`, as an async iterator."""
        return self.starmap_aio(zip(xs, *more), **settings)

    @overload
    def starmap_aio(
        self,
        tuples: Iterable[Iterable[Any]],
        /,
        *,
        on_error: Literal["raise"] = "raise",
        **settings: Any,
    ) -> AsyncIterator[R]: ...
    @overload
    def starmap_aio(
        self,
        tuples: Iterable[Iterable[Any]],
        /,
        *,
        on_error: Literal["outcome"],
        **settings: Any,
    ) -> AsyncIterator[Outcome[R]]: ...
    async def starmap_aio(
        self, tuples: Iterable[Iterable[Any]], /, **settings: Any
    ) -> AsyncIterator[Any]:
        """`starmap`, as an async iterator."""
        from hutch._calls.aio import iterate

        iterator: Iterator[Any] = self.starmap(tuples, **settings)
        async for item in iterate(iterator):
            yield item

    # ---- the same function, changed ----

    @described
    def options(self, **keywords: Unpack[Keywords]) -> SandboxedFunction[P, R]:
        """The same function with these keywords in place of its own."""
        changed = with_keywords(self._options, keywords)
        if changed.dependencies is None and self._plain is not None:
            raise ValueError(_INLINE)
        return self._changed(changed, self._bound)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> SandboxedFunction[P, R]: ...
    @overload
    def __get__(
        self: SandboxedFunction[Concatenate[Any, Q], R], instance: object, owner: type | None = None
    ) -> SandboxedFunction[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance is an argument like any other, and is sent."""
        if instance is None:
            return self
        bound = self._changed(self._options, (*self._bound, instance))
        bound._target = self._resolved()
        return bound

    # ---- ahead of calls ----

    def warm(self, cells: int | None = None) -> int:
        """Builds the environment and fills the pool now; returns how many cells are ready."""
        from hutch._connect.connection import milliseconds, on_pool

        wanted = -1 if cells is None else _whole("cells", cells, 0, 10_000)
        timeout_ms = milliseconds(self._options.queue_sec)
        return on_pool(
            self._resolved().request,
            lambda connection, pool: connection.client.warm(pool.key, wanted, timeout_ms),
        )

    async def warm_aio(self, cells: int | None = None) -> int:
        """`warm` without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(self.warm, cells)

    def carries(self) -> list[Carried]:
        """What is sent with it: name, type, size in bytes; the function itself comes first."""
        if self._plain is None:
            raise TypeError("a function given as text carries its text only")
        return cast("FunctionTarget", self._resolved()).data.carries()

    def __repr__(self) -> str:
        return f"<sandboxed {getattr(self, '__qualname__', self._resolved().name)}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        """It goes as a plain function does: one of a module by name, one of `__main__` by name for
        pickle and by value for cloudpickle, one without a name by value.
        """
        from hutch._carry import by_value

        named = self._by_name()
        if named is not None and by_value.are_found_by_name(self.__module__):
            return named
        if self._stands_in is None:
            parts = by_value.Parts(self._make_target, self._options, self._bound)
            self._stands_in = by_value.stands_in(self, parts)
        found, content = self._stands_in
        return _found, (type(self), found), content, None, None, _fill

    def _by_name(self) -> Any:
        """How it is pickled by a name: its own, or that of what it was made from."""
        from hutch._carry import by_value

        origin: SandboxedFunction[..., Any] | None = self
        while origin is not None and not by_value.name_of(origin):
            origin = origin._origin
        if origin is None:
            return None
        if origin is self:
            return self.__qualname__
        same = self._options is origin._options
        options = None if same else by_value.pickled_options(self._options)
        return _made_from, (origin, options, by_value.pickled_instance(self._bound, self._options))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        """Itself, as of a plain function; a method is one of a copy of its instance."""
        if not self._bound:
            return self
        import copy

        return self._changed(self._options, copy.deepcopy(self._bound, memo))

    @staticmethod
    def __hutch_plain__(value: SandboxedFunction[Any, Any]) -> Any:
        """What it becomes in a cell: the plain function."""
        if value._plain is None:
            raise TypeError(
                "a function given as text cannot be used by another one: put them together"
            )
        if value._bound:
            from types import MethodType

            return MethodType(value._plain, value._bound[0])
        return value._plain

    # ---- how ----

    def _changed(self, options: Options, bound: tuple[Any, ...]) -> SandboxedFunction[P, R]:
        return type(self)(options, self._make_target, bound, self)

    def _resolved(self) -> Target:
        if self._target is None:
            import os

            nonce = os.urandom(8).hex() if self._options.disable_cache else ""
            self._target = self._make_target(self._options, nonce)
        return self._target

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], echo: bool) -> Outcome[Any]:
        from hutch._calls import run

        return run.call(self._resolved(), (*self._bound, *args), kwargs, echo=echo)

    async def _call_aio(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], echo: bool
    ) -> Outcome[Any]:
        from hutch._calls import run
        from hutch._calls.future import awaited
        from hutch._calls.loops import OnLoop

        asked = time.monotonic()
        target, arguments = self._resolved(), (*self._bound, *args)
        wait_for = None
        if self._options.tools:
            from hutch._calls import awaited_call

            if awaited_call.is_needed(target):
                return await awaited_call.call(target, arguments, kwargs, echo=echo, asked=asked)
            wait_for = OnLoop()
        return await awaited(
            lambda token: run.call(
                target,
                arguments,
                kwargs,
                echo=echo,
                cancel=token,
                asked=asked,
                wait_for=wait_for,
            ),
            target,
            lambda: run.prepare(target, arguments, kwargs, echo, asked),
        )

    def _submit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], threads: CallThreads | None = None
    ) -> SandboxFuture[Any]:
        from hutch._calls import run
        from hutch._calls.future import submit

        asked = time.monotonic()
        target, arguments = self._resolved(), (*self._bound, *args)
        return submit(
            lambda token: run.call(target, arguments, kwargs, echo=True, cancel=token, asked=asked),
            threads=threads,
            target=target if threads is None else None,
            prepare=lambda: run.prepare(target, arguments, kwargs, True, asked),
        )


class AsyncSandboxedFunction(SandboxedFunction[P, R]):
    """What an `async def` becomes: awaited by its caller, like the plain one."""

    async def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        return await self.aio(*args, **kwargs)

    @described
    def options(self, **keywords: Unpack[Keywords]) -> AsyncSandboxedFunction[P, R]:
        """The same function with these keywords in place of its own."""
        return cast("AsyncSandboxedFunction[P, R]", super().options(**keywords))

    @overload
    def __get__(
        self, instance: None, owner: type | None = None
    ) -> AsyncSandboxedFunction[P, R]: ...
    @overload
    def __get__(
        self: AsyncSandboxedFunction[Concatenate[Any, Q], R],
        instance: object,
        owner: type | None = None,
    ) -> AsyncSandboxedFunction[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return super().__get__(instance, owner)


class GeneratorFunction(SandboxedFunction[P, R]):
    """What a generator function becomes: called, it gives a lazy iterator."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> SandboxedGenerator[Any]:  # type: ignore[override]
        from hutch._calls.stream import SandboxedGenerator

        return SandboxedGenerator(self._stream(args, kwargs, None))

    @described
    def options(self, **keywords: Unpack[Keywords]) -> GeneratorFunction[P, R]:
        """The same function with these keywords in place of its own."""
        if keywords.get("isolation") == "shared":
            raise ValueError(_NO_SHARED)
        return cast("GeneratorFunction[P, R]", super().options(**keywords))

    def _stream(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], wait_for: Callable[[Any], Any] | None
    ) -> Stream:
        from hutch._calls import run
        from hutch._calls.stream import Stream

        asked = time.monotonic()
        target, arguments = self._resolved(), (*self._bound, *args)
        return Stream(
            lambda token, stream: run.call(
                target,
                arguments,
                kwargs,
                echo=True,
                cancel=token,
                asked=asked,
                wait_for=wait_for,
                stream=stream,
            )
        )

    def _call(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"{self!r} is a generator function: call it, and iterate over what it gives"
        )

    run = aio = run_aio = submit = _submit = map = starmap = _call


class AsyncGeneratorFunction(GeneratorFunction[P, R]):
    """What an async generator function becomes: called, it gives a lazy async iterator."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSandboxedGenerator[Any]:  # type: ignore[override]
        from hutch._calls.loops import OnLoop
        from hutch._calls.stream import AsyncSandboxedGenerator

        return AsyncSandboxedGenerator(self._stream(args, kwargs, OnLoop()))


class _Decorator:
    """`@sandbox(...)`: waits for its function."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> AsyncSandboxedFunction[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SandboxedFunction[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return make(function, self._options, depth=2)


@overload
def sandbox(
    function: Callable[P, Coroutine[Any, Any, T]], /, **keywords: Unpack[Keywords]
) -> AsyncSandboxedFunction[P, T]: ...
@overload
def sandbox(
    function: Callable[P, R], /, **keywords: Unpack[Keywords]
) -> SandboxedFunction[P, R]: ...
@overload
def sandbox(**keywords: Unpack[Keywords]) -> _Decorator: ...
@described
def sandbox(function: Callable[..., Any] | None = None, /, **keywords: Unpack[Keywords]) -> Any:
    """Makes a function run in a fresh, walled-off process: `@sandbox` or `@sandbox(timeout_sec=5)`.

        @sandbox(dependencies=["pandas"], timeout_sec=10)
        def mean(rows: list[dict]) -> float: ...

    Bad keywords are refused here, not at the first call, by a ValueError or TypeError that names
    the one that was meant. The function's code, what it captured, and your own modules travel with
    it; its result comes back as data. A call raises SandboxError, or a class of it, where the code
    failed, met a limit, or could not be run.
    """
    options = with_keywords(NORMAL, keywords)
    if function is None:
        return _Decorator(options)
    return make(function, options, depth=2)


def make(
    function: Callable[..., Any], options: Options, depth: int = 1
) -> SandboxedFunction[..., Any]:
    """`depth`: how many frames up the function was defined."""
    if isinstance(function, SandboxedFunction):
        raise TypeError(f"{function!r} is sandboxed already; use .options(...) to change it")
    if options.dependencies is None:
        raise ValueError(_INLINE)
    from types import FunctionType

    if type(function) is not FunctionType:
        from hutch._carry.functions import require_function

        function = require_function(function)
    plain = function
    maker = FunctionMaker(plain, _names_of_scope(plain, depth + 1))
    flags = plain.__code__.co_flags
    kind: type[SandboxedFunction[..., Any]] = SandboxedFunction
    if flags & _COROUTINE:
        kind = AsyncSandboxedFunction
    elif flags & (_GENERATOR | _ASYNC_GENERATOR):
        kind = GeneratorFunction if flags & _GENERATOR else AsyncGeneratorFunction
        if options.isolation == "shared":
            raise ValueError(_NO_SHARED)
    return kind(options, maker)


class FunctionMaker:
    """Makes targets of a function. `local_names`: what its return annotation may name that only
    the scope of its definition has.
    """

    def __init__(self, plain: FunctionType, local_names: dict[str, Any]) -> None:
        self.plain = plain
        self.name = plain.__name__
        self.is_searched = False
        self._local_names = local_names
        self._first: FunctionTarget | None = None

    def __call__(self, options: Options, nonce: str) -> Target:
        from hutch._calls.target import FunctionTarget

        first, data = self._first, None
        if first is not None:  # the bytes are shared while what they depend on is the same
            if all(getattr(first.options, x) == getattr(options, x) for x in _OF_THE_BYTES):
                data = first.data
        target = FunctionTarget(self.plain, options, nonce, self._local_names, data)
        if first is None:
            self._first = target
        return target

    def __reduce__(self) -> Any:
        from hutch._carry.by_value import named_by

        hint = self.plain.__annotations__.get("return")
        names = {**named_by(hint, self.plain.__globals__), **self._local_names}
        return FunctionMaker, (self.plain, names)


def _found(kind: type[SandboxedFunction[..., Any]], found: Any) -> SandboxedFunction[..., Any]:
    """What a pickle finds by the name, or else one that `_fill` fills. It is there before its
    content, which may refer to it.
    """
    return found if isinstance(found, SandboxedFunction) else kind.__new__(kind)


def _fill(
    made: SandboxedFunction[..., Any],
    content: SandboxedFunction[..., Any] | Parts | Callable[[], Parts],
) -> None:
    if isinstance(content, SandboxedFunction):
        vars(made).update(vars(content))
        return
    parts = content() if callable(content) else content
    SandboxedFunction.__init__(made, parts.options, parts.maker, parts.bound)


def _made_from(
    origin: SandboxedFunction[..., Any], given: dict[str, Any] | None, bound: tuple[Any, ...]
) -> SandboxedFunction[..., Any]:
    from hutch._options.pickled import unpacked

    options = origin._options if given is None else unpacked(given)
    return origin._changed(options, bound)


def _names_of_scope(function: FunctionType, depth: int) -> dict[str, Any]:
    """The names that a return annotation given as text may use, for a function inside another:
    the names of that scope which the text holds.
    """
    text = function.__annotations__.get("return") if "<locals>" in function.__qualname__ else None
    if not isinstance(text, str):
        return {}
    try:
        scope = sys._getframe(depth).f_locals
    except ValueError:
        return {}
    return {name: value for name, value in scope.items() if name in text}


sandbox_async = sandbox
