# SPDX-License-Identifier: Apache-2.0
"""What code can be run in: the names of a session, or those of a child of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hutch import _core
from hutch._calls.target import GENERATOR, FunctionTarget, Target
from hutch._options.checks import quoted
from hutch._outcome import Outcome

if TYPE_CHECKING:
    from hutch._options.options import Options

_NO_CODE = _core.Function(b"")


class SessionFunctionTarget(FunctionTarget):
    """A function that is called in a session, whose reply is a pair."""

    @property
    def annotation(self) -> Any:
        of_value = FunctionTarget.annotation.fget(self)  # type: ignore[attr-defined]
        return Any if of_value is Any else tuple[of_value, Any]  # type: ignore[valid-type]


class Namespace(ABC):
    """Names that last from one call to the next, with code that uses them."""

    _space = 0  # its number inside
    _options: Options

    def __init__(self) -> None:
        self._known_names: list[str] = []

    @abstractmethod
    def _do(
        self,
        verb: str,
        code: _core.Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limits: Mapping[str, Any],
        target: Target | None,
    ) -> Outcome[Any]:
        """One call. The Outcome's value is what the verb gave."""

    @abstractmethod
    def child(self) -> Namespace:
        """Names of their own, in the same session: it has those that there are now, and what its
        code assigns, defines or deletes is its own. The values are shared, as are files, tools,
        limits, and the rule of one call at a time. It ends with the interpreter.
        """

    # ---- running code

    def exec(self, source: str, **limits: Any) -> Outcome[Any]:
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
        return self._do("exec", code, (), {}, limits, None)

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
                f"call() takes no generator function: let {function.__name__}() return a list, or "
                "sandbox it by itself"
            )
        target = SessionFunctionTarget(function, self._options, "", {})
        return self._do("call", target.code(), args, kwargs, {}, target).unwrap()

    # ---- names

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or `default`."""
        found, value = self._verb("get", _name(name))
        return value if found == "ok" else default

    def set(self, name: str, value: Any) -> None:
        """Also of a name that is protected, whose value this is from then on."""
        self._verb("set", _name(name), value)

    def delete(self, name: str) -> None:
        """Also of a name that is protected, which it then is no longer. Raises KeyError where
        there is no such name.
        """
        if not self._verb("delete", _name(name)):
            raise KeyError(name)

    def names(self) -> list[str]:
        """Those that its code has made, in the order in which it made them."""
        found = self._verb("names")
        return [name for name in found if isinstance(name, str)] if type(found) is list else []

    def has(self, name: str) -> bool:
        return _name(name) in self.names()

    def protect(self, *names: str) -> None:
        """A guard against accidents: code that assigns, deletes or defines one of these anew is not
        run, and raises SyntaxError. One that is replaced by other means, as by `globals()`, is put
        back after the call. Raises KeyError where there is no such name.
        """
        absent = self._verb("protect", *map(_name, names))
        if absent:
            raise KeyError(*(absent if type(absent) is list else ()))

    def __getitem__(self, name: str) -> Any:
        found, value = self._verb("get", _name(name))
        if found != "ok":
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _verb(self, verb: str, *args: Any) -> Any:
        return self._do(verb, _NO_CODE, args, {}, {}, None).unwrap()


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {type(name).__name__}")
    if not name.isidentifier():
        raise ValueError(f"{quoted(name)} is not a valid name of a variable")
    return name
