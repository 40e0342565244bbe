# SPDX-License-Identifier: Apache-2.0
"""What code can be run in: the names of a session, or those of a child of it."""

from __future__ import annotations

import keyword
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from hutch import _core
from hutch._calls.session_call import Operation, Space
from hutch._calls.target import GENERATOR, FunctionTarget
from hutch._options.checks import quoted
from hutch._outcome import Outcome
from hutch._session_transfers import not_said

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._options.keyword_types import CallKeywords
    from hutch._session_engine import Engine

T = TypeVar("T")


class SessionFunctionTarget(FunctionTarget):
    """A function that is called in a session, whose reply is a pair."""

    is_session = True

    @property
    def annotation(self) -> Any:
        of_value = FunctionTarget.annotation.fget(self)  # type: ignore[attr-defined]
        return Any if of_value is Any else tuple[of_value, Any]  # type: ignore[valid-type]


class Namespace(ABC):
    """Names that last from one call to the next, with code that uses them."""

    _engine: Engine
    _space: Space

    @abstractmethod
    def child(self) -> Namespace:
        """Names of their own, in the same session: it has those that there are now, and what its
        code assigns, defines or deletes is its own. The values are shared, as are files, tools,
        limits, and the rule of one call at a time. It ends with the interpreter.
        """

    # ---- running code

    def exec(self, source: str, **limits: Unpack[CallKeywords]) -> Outcome[Any]:
        """Runs the text. The Outcome's value is that of its last expression, unless a semicolon
        follows it. `await` works outside functions; `return` there ends it with that value.
        `limits`: `timeout_sec`, `cpu_sec`, `output_mb`, `result_mb`, `on_stdout`, `on_stderr`,
        `echo`, for this call; TypeError where a tool calls it, within another call. Never raises
        for what the code did; raises SessionBusy while another call runs, and SandboxError where
        the session cannot go on.
        """
        if not isinstance(source, str):
            raise TypeError(f"exec() takes source text, not {type(source).__name__}")
        code = _core.Function(source.encode("utf-8", "surrogatepass"))
        return self._engine.do(_outcome, Operation(self._space, "exec", code, limits=limits))

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function of yours there, with these names as its globals. Returns the value, or
        raises what `Outcome.unwrap` would.
        """
        plain = getattr(type(function), "__hutch_plain__", None)
        function = plain(function) if plain is not None else function
        if not isinstance(function, FunctionType):
            raise TypeError(
                f"call() takes a Python function of yours, not {type(function).__name__}: what is "
                "there already is called by exec()"
            )
        if function.__code__.co_flags & GENERATOR:
            raise TypeError(
                f"call() cannot run a generator function: let {function.__name__}() return a list, "
                "or sandbox it by itself"
            )
        target = SessionFunctionTarget(function, self._engine.options, "", {})
        operation = Operation(self._space, "call", target.code(), args, kwargs, target=target)
        return self._engine.do(_unwrap, operation)

    # ---- names

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or `default`."""

        def value_of(reply: Any) -> Any:
            is_there, value = _found(reply)
            return value if is_there else default

        return self._verb(value_of, "get", _name(name))

    def set(self, name: str, value: Any) -> None:
        """Gives a name a value, also one that is protected, whose value this is from then on."""
        return self._verb(_nothing, "set", _name(name), value)

    def delete(self, name: str) -> None:
        """Deletes a name, also one that is protected, which it then is no longer. Raises KeyError
        where there is no such name.
        """

        def check(is_gone: Any) -> None:
            if type(is_gone) is not bool:
                raise not_said()
            if not is_gone:
                raise KeyError(name)
            self._space.protected.discard(name)

        return self._verb(check, "delete", _name(name))

    def names(self) -> list[str]:
        """Those that its code has made, in the order in which it made them."""
        return self._verb(_names, "names")

    def has(self, name: str) -> bool:
        """Whether there is such a name."""
        name = _name(name)
        return self._verb(lambda found: name in _names(found), "names")

    def protect(self, *names: str) -> None:
        """A guard against accidents: code that assigns, deletes or defines one of these anew is not
        run, and raises SyntaxError. One that is replaced by other means, as by `globals()`, is put
        back after the call. Raises KeyError where there is no such name.
        """

        def check(absent: Any) -> None:
            if type(absent) is not list:
                raise not_said()
            if absent:
                raise KeyError(*_names(absent))
            self._space.protected.update(names)

        return self._verb(check, "protect", *map(_name, names))

    def __getitem__(self, name: str) -> Any:
        def value_of(reply: Any) -> Any:
            is_there, value = _found(reply)
            if not is_there:
                raise KeyError(name)
            return value

        return self._verb(value_of, "get", _name(name))

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _verb(self, finish: Callable[[Any], T], verb: str, *args: Any) -> T:
        """What `finish` makes of what the session replies."""
        asked = Operation(self._space, verb, args=args)
        return self._engine.do(lambda outcome: finish(outcome.unwrap()), asked)


def _found(reply: Any) -> tuple[bool, Any]:
    """Whether there is a name, and its value: as the session says, which may be anything."""
    if type(reply) is not tuple or len(reply) != 2 or type(reply[0]) is not str:
        raise not_said()
    return reply[0] == "ok", reply[1]


def _outcome(outcome: Outcome[Any]) -> Outcome[Any]:
    return outcome


def _unwrap(outcome: Outcome[Any]) -> Any:
    return outcome.unwrap()


def _nothing(_: Any) -> None:
    pass


def _names(found: Any) -> list[str]:
    return [name for name in found if isinstance(name, str)] if type(found) is list else []


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {type(name).__name__}")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{quoted(name)} is not a valid name of a variable")
    return name
