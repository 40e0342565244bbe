# SPDX-License-Identifier: Apache-2.0
"""What each keyword is, its type and a sentence with its unit: for type checkers, `help()` and
`inspect.signature()`. Values; safe on any thread.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from hutch._options.keyword_types import (
    LimitKeywords,
    OutputKeywords,
    PolicyKeywords,
    SentKeywords,
)
from hutch._options.options import NORMAL

if TYPE_CHECKING:
    import inspect
    import os
    from collections.abc import Callable, Iterable, Mapping
    from types import FunctionType, ModuleType

    from hutch._options.environment import Environment
    from hutch._options.options import Pool
    from hutch._options.policy import Policy
    from hutch._tools import Tool

F = TypeVar("F", bound="Callable[..., Any]")
HEADING = "Keywords of @sandbox:"


class Keywords(PolicyKeywords, OutputKeywords, total=False):
    """The keywords of `@sandbox`, `.options`, `hutch.run`, `Program` and `function`."""

    dependencies: Iterable[str] | str
    node_dependencies: Iterable[str] | str
    allow_private_index: bool
    environment: Environment | str | os.PathLike[str] | None
    modules: Iterable[ModuleType | str | os.PathLike[str]] | ModuleType | str
    preload: Iterable[str] | str | None
    setup: Callable[[], object] | None
    pool: Pool
    disable_cache: bool
    policy: Policy | str | os.PathLike[str] | None
    labels: Mapping[str, str]
    key: str | None
    tools: Iterable[Callable[..., Any] | Tool]


# In the order in which they are shown.
SAID = {
    "dependencies": 'Packages that the sandbox has, as requirements; "inline": those that a '
    "program's own PEP 723 metadata names.",
    "timeout_sec": "Seconds that a call may take, from the start of the function; None: no limit.",
    "cpu_sec": "Seconds of CPU time of all processes of a call together; None: no limit.",
    "memory_mb": "MiB of all processes of a call, shared memory and scratch together.",
    "cpus": "CPUs that a call may use at once; half a one is 0.5.",
    "pids": "Processes and threads of a call at once.",
    "disk_mb": "MiB of scratch: working directory, /tmp and /dev/shm; a part of memory_mb.",
    "output_mb": "MiB of what is printed that are kept; what is more is cut.",
    "result_mb": "MiB of the encoded result.",
    "queue_sec": "Seconds that a call waits for a cell; then it raises SandboxBusy.",
    "build_sec": "Seconds that the environment may take to be built.",
    "policy": 'A preset ("strict", "normal", "permissive"), a Policy or the path of a TOML file: '
    "what holds where the keywords beside it say nothing.",
    "isolation": 'What a call has for itself: a process ("cell"), a container ("container"), a '
    'kernel in user space ("gvisor"); "shared": a process that serves many calls.',
    "allow_network": 'Hosts that can be reached, as "api.example.org" or "db.example.org:5432".',
    "secrets": "Headers by host that are added to requests outside, where the code cannot read "
    "them.",
    "mounts": "Files and directories of the host, by their paths inside; read-only, unless a Mount "
    "says otherwise.",
    "env": "Variables of the environment inside.",
    "tools": "Functions of the host that the code may call.",
    "modules": "Modules of your own that travel with the code: modules, their names or paths.",
    "environment": "Packages in more detail than dependencies: an Environment, or the path of a "
    "requirements.txt, a pylock.toml or a virtual environment.",
    "node_dependencies": 'Packages of npm for JavaScript, as "lodash@4".',
    "allow_private_index": 'Whether dependencies="inline" may come from an index other than PyPI.',
    "preload": "Modules that a worker imports ahead of calls; None: those of the dependencies.",
    "setup": "A function that is called inside once, ahead of the calls of a worker.",
    "check_result": "Whether a result that is not as annotated is an error, not a warning.",
    "echo": "Whether what is printed is shown live; None: by f(), not by run().",
    "on_stdout": "Gets the text that is printed on stdout, as it comes.",
    "on_stderr": "Gets the text that is printed on stderr, as it comes.",
    "key": "Names one call of this process, which is never repeated: a later one with the same key "
    "gets its outcome.",
    "labels": "Names and values by which agent.toml has quotas, and the audit log tells calls.",
    "pool": "How many cells are kept ready, and for how long.",
    "max_calls": "Calls that a worker serves before another one takes its place; 1 with isolation "
    '"container" and "gvisor"; with "shared" 100, of a cell.',
    "max_age_sec": "Seconds after which another worker takes a worker's place.",
    "disable_cache": "Whether its environment is built anew, for it alone.",
}


class Keyword:
    """`type`: as it is written; `default`: as a caller would give it."""

    __slots__ = ("name", "type", "default", "said")

    def __init__(self, name: str, type: str, default: Any, said: str) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.said = said


@cache
def keywords() -> tuple[Keyword, ...]:
    """All of them, in the order in which they are shown."""
    types = {
        **SentKeywords.__annotations__,
        **LimitKeywords.__annotations__,
        **OutputKeywords.__annotations__,
        **PolicyKeywords.__annotations__,
        **Keywords.__annotations__,
    }

    def default_of(name: str) -> Any:
        kept = getattr(NORMAL, name, None)
        return {} if kept == () and types[name].startswith("Mapping") else kept

    return tuple(Keyword(name, types[name], default_of(name), SAID[name]) for name in SAID)


def described(function: F) -> F:
    """Has `help()` and `inspect.signature()` name the keywords of a function that ends in
    `**keywords`.
    """
    return _described(function, ())


def described_without(*refused: str) -> Callable[[F], F]:
    """The same, of a function that refuses some of them."""
    return lambda function: _described(function, refused)


def _described(function: F, refused: tuple[str, ...]) -> F:
    own = function.__doc__ or ""
    indents = [len(line) - len(line.lstrip()) for line in own.split("\n")[1:] if line.strip()]
    indent = "\n" + " " * min(indents, default=0)
    lines = [own.rstrip(), "", HEADING, ""]
    taken = [one for one in keywords() if one.name not in refused]
    for one in taken:
        lines += (f"{one.name}: {one.type} = {one.default!r}", f"    {one.said}")
    function.__doc__ = indent.join(lines)
    vars(function)["__signature__"] = Signature(function, taken)
    return function


class Signature:
    """Stands for the inspect.Signature of a function, with its keywords, which is made when it is
    asked for: to import `inspect` takes longer than all of hutch.
    """

    def __init__(self, function: Callable[..., Any], taken: list[Keyword]) -> None:
        self._function = function
        self._taken = taken
        self._made: inspect.Signature | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        import inspect

        return inspect.Signature

    def __getattr__(self, name: str) -> Any:
        return getattr(self._signature(), name)

    def __str__(self) -> str:
        return str(self._signature())

    def __repr__(self) -> str:
        return repr(self._signature())

    def __eq__(self, other: object) -> bool:
        return self._signature() == other

    def __hash__(self) -> int:
        return hash(self._signature())

    def _signature(self) -> inspect.Signature:
        if self._made is None:
            import inspect

            own = inspect.signature(_copy(self._function))
            *parameters, _ = own.parameters.values()  # the last one is **keywords
            parameters += [
                inspect.Parameter(
                    one.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=one.default,
                    annotation=one.type,
                )
                for one in self._taken
            ]
            self._made = own.replace(parameters=parameters)
        return self._made


def _copy(function: Any) -> FunctionType:
    """Without what is set on it."""
    from types import FunctionType

    names = (function.__name__, function.__defaults__, function.__closure__)
    made = FunctionType(function.__code__, function.__globals__, *names)
    made.__kwdefaults__, made.__annotations__ = function.__kwdefaults__, function.__annotations__
    return made
