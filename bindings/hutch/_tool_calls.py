# SPDX-License-Identifier: Apache-2.0
"""One call of a tool: its arguments, which came from a sandbox, checked and built; whether it is
approved; the call of the function.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from hutch import _given_schema
from hutch._tool_kinds import ArgumentError, Kind, Work, items_of, values_of
from hutch._tool_late import LateCalls
from hutch._tools import Tool

_ANY = Kind()


class ToolCall:
    """Raises TypeError or ValueError for arguments that are not those of the tool."""

    def __init__(self, tool: Tool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._tool = tool
        work = Work()
        try:
            work.take(len(args) + len(kwargs))
        except ArgumentError as error:
            error.steps.append(f"{tool.name}()")
            raise
        try:
            self._bound = tool.signature.bind(*args, **kwargs)
        except TypeError as error:
            names = "" if tool.given is None or not args else ", ".join(tool.schema["properties"])
            more = f": its arguments are passed by name ({names:.1000})" if names else ""
            raise TypeError(f"{tool.name}(): {error!s:.1000}{more}") from None
        if tool.given is not None:
            self._check(tool.given)
        for name, value in self._bound.arguments.items():
            try:
                self._bound.arguments[name] = self._built(name, value, work)
            except ArgumentError as error:
                error.steps.append(name)
                raise

    def _check(self, schema: _given_schema.Schema) -> None:
        given: dict[str, Any] = {}
        for name, value in self._bound.arguments.items():
            if self._tool.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                given.update(value)
            else:
                given[name] = value
        try:
            schema.check(given)
        except _given_schema.NotValid as error:
            raised = ArgumentError(str(error))
            raised.steps = error.steps or [f"{self._tool.name}()"]
            raised.steps[-1] = raised.steps[-1].removeprefix(".")
            raise raised from None

    def _built(self, name: str, value: Any, work: Work) -> Any:
        parameter = self._tool.signature.parameters[name]
        kind = self._tool.kinds.get(name, _ANY)
        if parameter.kind is parameter.VAR_POSITIONAL:
            return tuple(items_of(((kind, one) for one in value), work))
        if parameter.kind is parameter.VAR_KEYWORD:
            return values_of(kind, value, work)
        return kind.build(value, work)

    def approval(self) -> Any:
        """What `approve` says, or what has to be awaited for that; True without."""
        approve = self._tool.approve
        return approve is None or approve(self._tool.name, dict(self._bound.arguments))

    def require_approved(self, said: Any) -> None:
        """Raises PermissionError for anything but True."""
        if said is not True:
            raise PermissionError(f"this call of {self._tool.name}() was not approved")

    def run(self, late: LateCalls | None = None) -> Any:
        """Calls the function. Raises RuntimeError where too many calls are `late`, those of a
        session (None: of functions). Of an async function it is the coroutine.
        """
        tool = self._tool
        if tool.timeout_sec is None:
            return self.apply()
        if tool.is_async:
            return self._limited(self.apply(), tool.timeout_sec)
        return self._on_a_thread(tool.timeout_sec, late or tool.late)

    def apply(self) -> Any:
        """Calls the function, however long it takes."""
        try:
            return self._tool.fn(*self._bound.args, **self._bound.kwargs)
        except GeneratorExit:  # which would end the coroutine that calls it
            raise RuntimeError(f"{self._tool.name}() raised GeneratorExit") from None

    async def _limited(self, coroutine: Coroutine[Any, Any, Any], timeout: float) -> Any:
        """Where it is cancelled, or late, it is waited for until it has ended: it may clean up."""
        task = asyncio.ensure_future(coroutine)
        try:
            await asyncio.wait({task}, timeout=timeout)
            is_late = not task.done()
        finally:
            task.cancel()
            while not task.done():
                try:
                    await asyncio.wait({task})
                except asyncio.CancelledError:  # once more
                    task.cancel()
        if is_late:
            if not task.cancelled():
                task.exception()  # which nobody asks for
            raise self.too_long()
        return task.result()

    def _on_a_thread(self, timeout: float, late: LateCalls) -> Any:
        result: Future[Any] = Future()
        context = contextvars.copy_context()
        name = self._tool.name

        def run() -> None:
            try:
                result.set_result(context.run(self.apply))
            except BaseException as error:
                result.set_exception(error)

        late.require_room(name)
        thread = threading.Thread(target=run, name=f"hutch-tool-{name}", daemon=True)
        thread.start()
        thread.join(timeout)
        if not result.done():
            late.add(name, thread)
            raise self.too_long()
        return result.result()

    def too_long(self) -> TimeoutError:
        tool = self._tool
        return TimeoutError(f"{tool.name}() took longer than its timeout_sec={tool.timeout_sec:g}")
