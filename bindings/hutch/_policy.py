"""Options: what the keywords of `@sandbox` and of programs mean, checked once, as a frozen value.

Each bad value is refused when it is given, by an error that names the keyword, the value and what
is allowed: ValueError, or TypeError for what is no value of its kind. Nothing is dropped silently:
a keyword that is not there yet is refused too. Immutable; safe on any thread.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType
    from typing import Literal, TypedDict

    from hutch._environment import Environment

    class Keywords(TypedDict, total=False):
        """The keywords of `@sandbox`, `.options`, `hutch.run`, `Program` and `function`."""

        dependencies: Iterable[str] | str
        environment: Environment | None
        modules: Iterable[ModuleType | str | os.PathLike[str]] | ModuleType | str
        preload: Iterable[str] | str | None
        setup: Callable[[], object] | None
        timeout_sec: float | None
        queue_sec: float
        build_sec: float
        cpu_sec: float | None
        memory_mb: int
        cpus: float
        pids: int
        disk_mb: int
        output_mb: float
        result_mb: float
        env: Mapping[str, str]
        isolation: Literal["cell", "shared"]
        max_calls: int
        max_age_sec: float
        pool: Pool
        disable_cache: bool
        policy: Literal["normal"]
        labels: Mapping[str, str]
        echo: bool | None
        on_stdout: Callable[[str], object] | None
        on_stderr: Callable[[str], object] | None
        key: str | None


_MAX_CALLS = {"cell": 10_000, "shared": 100}  # the defaults
_YEAR = 366 * 86400.0
_TIB = 1 << 20  # in MiB


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _number(name: str, value: Any, low: float, high: float, *, zero: bool = False) -> float:
    """A finite number above `low` (or equal, if `zero`) up to `high`."""
    if isinstance(value, (bool, str, bytes)) or not (
        hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
    ):
        raise TypeError(f"{name} takes a number, not {type(value).__name__}: {_shown(value)}")
    number = float(value)
    if number != number:
        raise ValueError(f"{name} is NaN: give a number")
    if number < low or (number == low and not zero):
        bound = "0 or more" if zero else f"more than {low:g}"
        raise ValueError(f"{name}={_shown(value)} is too small: it must be {bound}")
    if number > high:
        raise ValueError(f"{name}={_shown(value)} is too large: it can be at most {high:g}")
    return number


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, float) and value == value and abs(value) < 1e18 and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        if isinstance(value, float):
            raise ValueError(f"{name}={value!r} is no whole number")
        raise TypeError(f"{name} takes a whole number, not {type(value).__name__}: {_shown(value)}")
    number = value.__index__()
    if number < low:
        raise ValueError(f"{name}={number} is too small: it must be {low} or more")
    if number > high:
        raise ValueError(f"{name}={_shown(number)} is too large: it can be at most {high}")
    return cast(int, number)


class Pool:
    """How many cells are kept. `warm`: ready ahead of calls ("auto": by demand); `max_cells`: at
    once (None: what the host bears); `idle_sec`: how long an unused worker stays.
    """

    __slots__ = ("warm", "max_cells", "idle_sec")

    def __init__(
        self,
        warm: int | Literal["auto"] = "auto",
        max_cells: int | None = None,
        idle_sec: float = 300,
    ) -> None:
        if warm != "auto":
            warm = _whole("Pool(warm=)", warm, 0, 10_000)
        if max_cells is not None:
            max_cells = _whole("Pool(max_cells=)", max_cells, 1, 100_000)
        self.warm: int | Literal["auto"] = warm
        self.max_cells = max_cells
        self.idle_sec = _number("Pool(idle_sec=)", idle_sec, 0, _YEAR, zero=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pool):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return (self.warm, self.max_cells, self.idle_sec)

    def __repr__(self) -> str:
        return f"Pool(warm={self.warm!r}, max_cells={self.max_cells}, idle_sec={self.idle_sec:g})"


class Options(NamedTuple):
    """Checked keywords; the defaults are the preset "normal"."""

    dependencies: tuple[str, ...] | None = ()  # normalized; None: "inline", to be read by a program
    allow_sdists: bool = False
    modules: tuple[Any, ...] = ()
    preload: tuple[str, ...] | None = None
    setup: Callable[[], object] | None = None
    timeout_sec: float | None = 30.0
    queue_sec: float = 60.0
    build_sec: float = 600.0
    cpu_sec: float | None = None
    memory_mb: int = 1024
    cpus: float = 1.0
    pids: int = 64
    disk_mb: int = 256
    output_mb: float = 1.0
    result_mb: float = 512.0
    env: tuple[tuple[str, str], ...] = ()
    isolation: str = "cell"
    max_calls: int = 10_000  # of a worker; of a shared cell 100
    max_age_sec: float = 3600.0
    pool: Pool = Pool()
    disable_cache: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    echo: bool | None = None
    on_stdout: Callable[[str], object] | None = None
    on_stderr: Callable[[str], object] | None = None
    key: str | None = None

    def changed(self, keywords: Mapping[str, Any]) -> Options:
        """These options with the keywords, checked, in place of some."""
        if not keywords:
            return self
        fields: dict[str, Any] = {}
        for name, value in keywords.items():
            if name == "environment":
                fields.update(_environment(value, keywords))
            elif name in _LATER:
                _refuse_later(name, value)
            elif name in _CHECKS:
                fields[name] = _CHECKS[name](name, value)
            else:
                raise TypeError(_unknown(name))
        options = self._replace(**fields)
        if options.isolation != self.isolation and "max_calls" not in fields:
            if self.max_calls == _MAX_CALLS[self.isolation]:
                options = options._replace(max_calls=_MAX_CALLS[options.isolation])
        if options.disk_mb > options.memory_mb:
            if "disk_mb" in fields:
                raise ValueError(
                    f"disk_mb={options.disk_mb} is more than memory_mb={options.memory_mb}: "
                    "scratch lies in memory and is part of it; raise memory_mb= too"
                )
            options = options._replace(disk_mb=options.memory_mb)
        return options


def _optional_sec(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, float) and value == float("inf"):
        raise ValueError(f"{name}=inf: say {name}=None for no limit")
    return _number(name, value, 0, _YEAR)


def _sec(name: str, value: Any) -> float:
    if value is None:
        raise TypeError(f"{name} takes a number of seconds; it cannot be None")
    return _number(name, value, 0, _YEAR)


def _wait_sec(name: str, value: Any) -> float:
    return _number(name, value, 0, _YEAR, zero=True)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} takes text, not {type(value).__name__}: {_shown(value)}")
    if "\0" in value:
        raise ValueError(f"{name} holds a NUL character")
    return value


def _pairs(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not hasattr(value, "items"):
        raise TypeError(f"{name} takes a dict of str to str, not {type(value).__name__}")
    pairs = []
    for key, item in value.items():
        key = _text(f"a name in {name}", key)
        if not key or "=" in key:
            raise ValueError(f"{name} has the name {key!r}: a name is not empty and holds no '='")
        pairs.append((key, _text(f"{name}[{key!r}]", item)))
    return tuple(sorted(pairs))


def _items(name: str, value: Any) -> tuple[Any, ...]:
    """A sequence; what is no iterable, or is text, is one item."""
    if value is None:
        return ()
    if isinstance(value, (str, os.PathLike)) or not hasattr(value, "__iter__"):
        return (value,)
    if isinstance(value, (bytes, dict)):
        raise TypeError(f"{name} takes a list, not {type(value).__name__}")
    return tuple(value)


def _dependencies(name: str, value: Any) -> tuple[str, ...] | None:
    items = _items(name, value)
    if not items:
        return ()
    if items == ("inline",):
        return None
    from hutch._requirements import normalize

    return normalize(items)


def _modules(name: str, value: Any) -> tuple[Any, ...]:
    import types

    items = _items(name, value)
    for item in items:
        if not isinstance(item, (str, os.PathLike, types.ModuleType)):
            raise TypeError(
                f"{name} takes modules, their names or their paths, not {type(item).__name__}"
            )
    return items


def _preload(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    items = _items(name, value)
    for item in items:
        if not all(part.isidentifier() for part in _text(name, item).split(".")):
            raise ValueError(f"{name} takes names of modules, and {_shown(item)} is none")
    return items


def _callable(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise TypeError(f"{name} takes a function, not {type(value).__name__}")
    return value


def _isolation(name: str, value: Any) -> str:
    if value in ("cell", "shared") and isinstance(value, str):
        return value
    if value in ("container", "gvisor"):
        raise ValueError(
            f'{name}={value!r} is not supported yet: "cell" is the strongest that is there'
        )
    raise ValueError(f'{name}={_shown(value)}: it is "cell" or "shared"')


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} takes True or False, not {_shown(value)}")
    return value


def _pool(name: str, value: Any) -> Pool:
    if not isinstance(value, Pool):
        raise TypeError(f"{name} takes a hutch.Pool, not {type(value).__name__}")
    return value


def _mb(low: int) -> Callable[[str, Any], int]:
    return lambda name, value: _whole(name, value, low, _TIB)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "dependencies": _dependencies,
    "modules": _modules,
    "preload": _preload,
    "setup": _callable,
    "timeout_sec": _optional_sec,
    "queue_sec": _wait_sec,
    "build_sec": _sec,
    "cpu_sec": _optional_sec,
    "memory_mb": _mb(16),  # less does not hold an interpreter
    "cpus": lambda name, value: _number(name, value, 0, 4096),
    "pids": lambda name, value: _whole(name, value, 1, 1 << 15),
    "disk_mb": _mb(1),
    "output_mb": lambda name, value: _number(name, value, 0, 4096, zero=True),
    "result_mb": lambda name, value: _number(name, value, 0, 65536),
    "env": _pairs,
    "isolation": _isolation,
    "max_calls": lambda name, value: _whole(name, value, 1, 1 << 40),
    "max_age_sec": _sec,
    "pool": _pool,
    "disable_cache": _flag,
    "labels": _pairs,
    "echo": lambda name, value: None if value is None else _flag(name, value),
    "on_stdout": _callable,
    "on_stderr": _callable,
    "key": lambda name, value: None if value is None else _text(name, value),
}

# Keywords that are settled but not there yet: the value that asks for nothing, and what holds now.
_LATER: dict[str, tuple[tuple[object, ...], str]] = {
    "allow_network": (
        ((), [], set(), frozenset(), None),
        "a call has no network: pass data in as arguments",
    ),
    "mounts": (
        ({}, None),
        "no directory of the host is inside: pass content as arguments or files=",
    ),
    "secrets": (({}, None), "there is no network inside that a secret could be sent to"),
    "tools": (
        ((), [], set(), frozenset(), None),
        "a call cannot call back: pass data in, and results out",
    ),
    "base": ((None,), "the base is made from this interpreter"),
    "policy": (("normal", None), 'only policy="normal" is there; give each limit by its keyword'),
    "client": ((None,), "a process talks to one agent; HUTCH_SOCKET says which"),
}


def _environment(value: object, keywords: Mapping[str, Any]) -> dict[str, Any]:
    if value is None:
        return {}
    from hutch._environment import Environment

    if not isinstance(value, Environment):
        raise ValueError(
            f"environment={_shown(value)} is not supported yet: give an Environment(...)"
        )
    if keywords.get("dependencies"):
        raise ValueError("give either dependencies= or environment=, not both")
    return {"dependencies": value.dependencies, "allow_sdists": value.allow_sdists}


def _refuse_later(name: str, value: object) -> None:
    nothing, instead = _LATER[name]
    if not any(type(value) is type(item) and value == item for item in nothing):
        raise ValueError(f"{name}={_shown(value)} is not supported yet: {instead}")


def _unknown(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, [*_CHECKS, *_LATER, "environment"], 1)
    return f"unknown keyword {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


NORMAL = Options()
