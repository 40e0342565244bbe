# SPDX-License-Identifier: Apache-2.0
"""Options: what the keywords of `@sandbox` and of programs mean, checked once, as a frozen value.

Each bad value is refused when it is given, by an error that names the keyword, the value and what
is allowed: ValueError, or TypeError for a value of the wrong type. Nothing is dropped silently: a
keyword that is not supported yet is refused too. Immutable; safe on any thread.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from hutch._options.checks import (
    _TIB,
    _YEAR,
    _flag,
    _items,
    _number,
    _optional_sec,
    _pairs,
    _sec,
    _text,
    _wait_sec,
    _whole,
    quoted,
    unknown,
)
from hutch._options.python_variables import _pairs_of_env

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Literal

    from hutch._options.environment import Environment
    from hutch._options.network import Secrets
    from hutch._tools import Tool


_MAX_CALLS = {"cell": 10_000, "container": 1, "gvisor": 1, "shared": 100}  # the defaults


class Pool:
    """How many cells are kept. `warm`: ready ahead of calls ("auto": by demand); `max_cells`: at
    once (None: what the host bears); `idle_sec`: how long an unused worker stays, if the agent's
    configuration does not end it before.
    """

    __module__ = "hutch"

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
    allow_private_index: bool = False  # for dependencies that a program names itself
    allow_sdists: bool = False
    environment: Environment | None = None  # where dependencies do not say it all
    node_dependencies: tuple[str, ...] = ()  # of npm: normalized
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
    check_result: bool = False  # a result that is not as annotated is an error, not a warning
    allow_network: tuple[str, ...] = ()  # normal forms
    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, Any], ...] = ()  # destinations with their Mounts
    secrets: Secrets = ()
    isolation: str = "cell"
    max_calls: int = 10_000  # of a worker; of a shared cell 100; of a container 1
    max_age_sec: float = 3600.0
    hard_limits: bool = False  # refuse a host that cannot enforce each limit hard
    refuse_secrets: bool = False  # to carry the value of an environment variable
    pool: Pool = Pool()
    disable_cache: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    echo: bool | None = None
    on_stdout: Callable[[str], object] | None = None
    on_stderr: Callable[[str], object] | None = None
    key: str | None = None
    tools: tuple[Tool, ...] = ()

    def changed(self, keywords: Mapping[str, Any]) -> Options:
        """These options with the keywords, checked, in place of some. `policy` is not among them:
        see `with_keywords`.
        """
        if not keywords:
            return self
        given: dict[str, Any] = {}
        for name, value in keywords.items():
            if name == "environment":
                continue
            if name in _NOT_YET_SUPPORTED:
                _refuse_unsupported(name, value)
            elif name in FIELDS and FIELDS[name].keyword:
                given[name] = FIELDS[name].check(name, value)
            else:
                raise TypeError(unknown("keyword", name, _MEANT, ALIASES, INSTEAD))
        if "environment" in keywords:
            given.update(_environment(keywords["environment"], keywords))
        elif "dependencies" in given:
            given["environment"] = None
        return self._with(given)

    def _with(self, given: Mapping[str, Any]) -> Options:
        """These with checked values in place of some. What goes with a value that is changed, and
        is not given itself, follows.
        """
        options = self._replace(**given)
        if options.isolation != self.isolation and "max_calls" not in given:
            if self.max_calls == _MAX_CALLS[self.isolation]:
                options = options._replace(max_calls=_MAX_CALLS[options.isolation])
        if options.isolation == "gvisor" and options.mounts:
            raise ValueError(
                'mounts= with isolation="gvisor" is not supported: what is mounted cannot be '
                "vetted on gVisor's kernel; pass content as arguments or files="
            )
        if options.isolation == "gvisor" and (options.allow_network or options.secrets):
            raise ValueError(
                'allow_network= and secrets= with isolation="gvisor" are not supported: nothing '
                'can be forwarded out of gVisor\'s kernel; isolation="container" has a network'
            )
        if options.isolation in ("container", "gvisor") and options.max_calls != 1:
            raise ValueError(
                f'max_calls={options.max_calls}: with isolation="{options.isolation}" each worker '
                "serves one call; leave max_calls= out"
            )
        if options.isolation == "shared" and (options.allow_network or options.secrets):
            raise ValueError(
                'allow_network= and secrets= do not go with isolation="shared": its process serves '
                "many calls, and which of them reached what is not known; leave isolation= out"
            )
        if options.tools and options.isolation == "shared":
            raise ValueError(
                'tools= with isolation="shared" is not supported: its process serves many calls; '
                "leave isolation= out"
            )
        if options.disk_mb > options.memory_mb:
            if "disk_mb" in given:
                raise ValueError(
                    f"disk_mb={options.disk_mb} is more than memory_mb={options.memory_mb}: "
                    "scratch lies in memory and is part of it; raise memory_mb= too"
                )
            options = options._replace(disk_mb=options.memory_mb)
        return options


def _dependencies(name: str, value: Any) -> tuple[str, ...] | None:
    items = _items(name, value)
    if not items:
        return ()
    if items == ("inline",):
        return None
    from hutch._options.requirements import normalize

    return normalize(items)


def _node_dependencies(name: str, value: Any) -> tuple[str, ...]:
    items = _items(name, value)
    if not items:
        return ()
    from hutch._options.node_packages import normalize

    return normalize(items)


def _mounts(name: str, value: Any) -> tuple[tuple[str, Any], ...]:
    if not value and value is not False:
        return ()
    from hutch._options.mounts import checked

    return checked(name, value)


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
            raise ValueError(f"{name} takes names of modules; {quoted(item)} is not one")
    return items


def _tools(name: str, value: Any) -> tuple[Tool, ...]:
    if not value and value is not False:
        return ()
    from hutch._tools import tools_of

    return tuple(tools_of(value).values())


def _callable(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise TypeError(f"{name} takes a function, not {type(value).__name__}")
    return value


def _isolation(name: str, value: Any) -> str:
    if isinstance(value, str) and value in _MAX_CALLS:
        return value
    raise ValueError(f'{name}={quoted(value)}: it is "cell", "container", "gvisor" or "shared"')


def _pool(name: str, value: Any) -> Pool:
    if not isinstance(value, Pool):
        raise TypeError(f"{name} takes a hutch.Pool, not {type(value).__name__}")
    return value


def _network() -> ModuleType:
    from hutch._options import network

    return network


def _whole_from(low: int, high: int) -> Callable[[str, Any], int]:
    return lambda name, value: _whole(name, value, low, high)


def _number_to(high: float, zero: bool = False) -> Callable[[str, Any], float]:
    return lambda name, value: _number(name, value, 0, high, zero=zero)


class Field(NamedTuple):
    """What is known of an option. `check(name, value)` returns the value as it is kept, or raises
    ValueError or TypeError. `policy`: it is a field of Policy; `keyword`: of @sandbox. `limit`,
    `unit`: how an outcome names the limit that it sets, and in what it is counted. `sent`: the
    agent is sent the value as it is kept, under the same name. `aliases`: what others call it,
    without the unit and without words that say nothing.
    """

    check: Callable[[str, Any], Any]
    policy: bool = False
    keyword: bool = True
    limit: str = ""
    unit: str = ""
    sent: bool = False
    aliases: tuple[str, ...] = ()


# Every option: the one list of them. Those of a policy stand in the order of its TOML.
FIELDS: dict[str, Field] = {
    "dependencies": Field(
        _dependencies,
        aliases=(
            "packages",
            "pip",
            "pip_packages",
            "pip_install",
            "requirements",
            "libraries",
            "libs",
        ),
    ),
    "node_dependencies": Field(
        _node_dependencies, aliases=("npm", "npm_packages", "node_packages")
    ),
    "allow_private_index": Field(_flag),
    "modules": Field(_modules),
    "preload": Field(_preload),
    "setup": Field(_callable, aliases=("initializer",)),
    "timeout_sec": Field(
        _optional_sec,
        policy=True,
        limit="time",
        unit="s",
        aliases=("wall", "time", "deadline", "execution_timeout"),
    ),
    "queue_sec": Field(_wait_sec, policy=True),
    "build_sec": Field(_sec, policy=True),
    "cpu_sec": Field(
        _optional_sec, policy=True, limit="cpu_time", unit="s of CPU time", aliases=("cpu_time",)
    ),
    # less memory does not hold an interpreter
    "memory_mb": Field(
        _whole_from(16, _TIB),
        policy=True,
        limit="memory",
        unit="MiB",
        sent=True,
        aliases=("memory", "mem", "ram"),
    ),
    "cpus": Field(
        _number_to(4096),
        policy=True,
        sent=True,
        aliases=("cpu", "cores", "cpu_cores", "cpu_count", "cpus_count", "num_cpus", "vcpus"),
    ),
    "pids": Field(
        _whole_from(1, 1 << 15),
        policy=True,
        limit="pids",
        unit="processes and threads",
        sent=True,
        aliases=("processes", "procs", "threads"),
    ),
    "disk_mb": Field(
        _whole_from(1, _TIB),
        policy=True,
        limit="disk",
        unit="MiB of scratch",
        sent=True,
        aliases=("disk", "scratch", "tmp"),
    ),
    "output_mb": Field(_number_to(4096, zero=True), policy=True, aliases=("stdout",)),
    "result_mb": Field(_number_to(65536), policy=True, limit="result", unit="MiB"),
    "check_result": Field(_flag, policy=True),
    "isolation": Field(_isolation, policy=True),
    "max_calls": Field(_whole_from(1, 1 << 40), policy=True),
    "max_age_sec": Field(_sec, policy=True, sent=True, aliases=("age",)),
    "allow_sdists": Field(_flag, policy=True, keyword=False),
    "hard_limits": Field(_flag, policy=True, keyword=False, sent=True),
    "refuse_secrets": Field(_flag, policy=True, keyword=False),
    "allow_network": Field(
        lambda *given: _network().allow_network(*given),
        policy=True,
        aliases=(
            "network",
            "network_access",
            "net",
            "hosts",
            "allowed_hosts",
            "internet",
            "internet_access",
            "allow_internet",
            "allow_internet_access",
        ),
    ),
    "env": Field(
        _pairs_of_env, policy=True, aliases=("environ", "env_vars", "envs", "environment_variables")
    ),
    "mounts": Field(_mounts, policy=True, aliases=("volumes", "binds", "mount")),
    "secrets": Field(lambda *given: _network().secrets(*given), policy=True),
    "pool": Field(_pool),
    "disable_cache": Field(_flag),
    "labels": Field(_pairs),
    "echo": Field(lambda name, value: None if value is None else _flag(name, value)),
    "on_stdout": Field(_callable),
    "on_stderr": Field(_callable),
    "key": Field(lambda name, value: None if value is None else _text(name, value)),
    "tools": Field(_tools),
}
POLICY_FIELDS = tuple(name for name, field in FIELDS.items() if field.policy)
SENT = tuple(name for name, field in FIELDS.items() if field.sent)
LIMITS = {field.limit: name for name, field in FIELDS.items() if field.limit}
ALIASES = {alias: name for name, field in FIELDS.items() for alias in field.aliases}
UNLIMITED = tuple(name for name, field in FIELDS.items() if field.check is _optional_sec)

# Keywords that are settled but not there yet: the value that asks for nothing, and what holds now.
_NOT_YET_SUPPORTED: dict[str, tuple[tuple[object, ...], str]] = {
    "client": ((None,), "a process talks to one agent; HUTCH_SOCKET says which"),
}

# What is said of keywords of other products that no keyword stands for.
INSTEAD = {
    **dict.fromkeys(
        ("image", "base_image", "container_image", "docker_image"),
        'an OCI image is given by environment=Environment(base="…")',
    ),
    **dict.fromkeys(
        ("python", "python_version"),
        "a sandbox has the Python of this process, or that of an image, which is given by "
        'environment=Environment(base="…")',
    ),
    **dict.fromkeys(
        ("gpu", "gpus", "gpu_count", "num_gpus", "cuda", "accelerator", "accelerators"),
        "a sandbox has no GPU",
    ),
    "files": "hutch.run(), .run() of a Program and Session take files=; a function takes their "
    "content as arguments, or directories of the host by mounts=",
    **dict.fromkeys(
        ("input", "input_data", "stdin", "stdin_data"),
        "hutch.run() and .run() of a Program take stdin=; a function takes arguments",
    ),
    **dict.fromkeys(
        ("cwd", "workdir", "work_dir", "working_dir", "working_directory"),
        "a Session takes cwd=, and so do its commands; functions and programs begin in a directory "
        "of their own",
    ),
    **dict.fromkeys(
        ("keep_alive", "keepalive", "idle_timeout"),
        "how long an unused one is kept is idle_sec= of a Session, and of functions and programs "
        "pool=Pool(idle_sec=…)",
    ),
}


def _environment(value: object, keywords: Mapping[str, Any]) -> dict[str, Any]:
    if value is None:
        return {}
    from hutch._options.environment import Environment

    if isinstance(value, (str, os.PathLike)):
        value = Environment.from_path(value)
    if not isinstance(value, Environment):
        raise TypeError(
            f"environment= takes an Environment(...) or the path of a requirements.txt, a "
            f"pylock.toml or a virtual environment, not {type(value).__name__}"
        )
    if keywords.get("dependencies"):
        raise ValueError("give either dependencies= or environment=, not both")
    return {
        "dependencies": value.dependencies,
        "allow_sdists": value.allow_sdists,
        "environment": value,
    }


def _refuse_unsupported(name: str, value: object) -> None:
    nothing, instead = _NOT_YET_SUPPORTED[name]
    if not any(type(value) is type(item) and value == item for item in nothing):
        raise ValueError(f"{name}={quoted(value)} is not supported yet: {instead}")


NORMAL = Options()
_MEANT = (*(name for name, field in FIELDS.items() if field.keyword), "environment", "policy")
KEYWORDS = (*_MEANT, *_NOT_YET_SUPPORTED)
