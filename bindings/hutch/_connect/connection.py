# SPDX-License-Identifier: Apache-2.0
"""This process's connection to the agent: finds or starts it, and prepares pools on it.

One Connection a process, shared by its threads; a forked child makes its own. The agent's name for
a pool is kept by the pool's specification, so that a warm call asks the agent for nothing. A call
that may have run is never repeated; one that certainly did not is repeated once, on a new agent if
need be.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hutch import _core
from hutch._callers import callers_level
from hutch._errors import SandboxError, SandboxStartupError
from hutch._faults import from_core
from hutch._text import escape

T = TypeVar("T")


class PreparedPool:
    """A pool that is prepared on the agent. `key`: its name there."""

    __slots__ = (
        "key",
        "enforcement",
        "digest",
        "lock",
        "notes",
        "built",
        "build_sec",
        "worker_sec",
    )

    def __init__(self, reply: Mapping[str, Any]) -> None:
        self.key: str = reply["key"]
        self.enforcement = str(reply.get("enforcement", ""))
        self.digest = str(reply.get("digest", ""))
        self.lock = reply.get("lock", "")
        self.notes = reply.get("notes", [])
        self.built = bool(reply.get("built", False))
        self.build_sec = float(reply.get("build_sec", 0.0))
        self.worker_sec = float(reply.get("worker_sec", 0.0))


class PoolRequest:
    """What prepares a pool: its specification, made when first wanted, and its name for a cache.
    Values; compared by identity.
    """

    def __init__(self, make: Callable[[], _core.PoolSpec], what: str, build_sec: float) -> None:
        self._make = make
        self._spec: _core.PoolSpec | None = None
        self._name = ""
        self.what = what
        self.build_sec = build_sec

    @property
    def spec(self) -> _core.PoolSpec:
        if self._spec is None:
            self._spec = self._make()
        return self._spec

    def make_ready(self, progress: Callable[[str, str, float, float], None]) -> None:
        """Puts files that the agent will look for in their place."""

    @property
    def name(self) -> str:
        """The same for equal specifications."""
        if not self._name:
            import hashlib

            self._name = hashlib.sha256(repr(sorted(self.spec.items())).encode()).hexdigest()
        return self._name


class Connection:
    """A live client and the pools that were prepared through it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.client = connect(start=True)
        self.pools: dict[str, PreparedPool] = {}
        self.driver: Any = None  # of its calls in flight, once there are any
        self.driver_lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def pool(self, request: PoolRequest) -> PreparedPool:
        """The prepared pool; builds its environment if it is the first to ask."""
        name = request.name
        found = self.pools.get(name)
        if found is not None:
            return found
        lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            found = self.pools.get(name)
            if found is None:
                found = self._prepare(request)
                self.pools[name] = found
            return found

    def environment(self, request: PoolRequest) -> PreparedPool:
        """The pool's environment, with no pool on it: its key is ""."""
        return self._prepare(request, no_pool=True)

    def _prepare(self, request: PoolRequest, no_pool: bool = False) -> PreparedPool:
        from hutch._connect.progress import Progress

        timeout_ms = milliseconds(request.build_sec)
        with Progress(request.what) as progress:
            for attempt in range(3):
                try:
                    request.make_ready(progress)
                    reply = self.client.prepare(request.spec, timeout_ms, progress, no_pool)
                    pool = PreparedPool(reply)
                    _report_preload(pool.notes, request.spec)
                    return pool
                except _core.Error as error:
                    if error.code not in _FIXED_BY_INSTALL or attempt == 2:
                        raise
                    progress.close()
                    _install(request)
        raise AssertionError("unreachable")

    def forget(self, request: PoolRequest) -> None:
        self.pools.pop(request.name, None)

    def close(self) -> None:
        self.client.close()


def _report_preload(notes: Any, spec: _core.PoolSpec) -> None:
    """Reports what a worker says about its start: raises where `setup=` failed, and warns of a
    module of `preload=` that does not load. The text comes from a sandbox.
    """
    import json
    import warnings

    for note in notes:
        try:
            reply = json.loads(note)
        except ValueError:
            continue  # a sentence about the environment
        if type(reply) is not dict:
            continue
        if spec["setup"] and isinstance(reply.get("setup"), str):
            raise SandboxStartupError(
                f"setup= failed: {reply['setup']}",
                hint="it runs in the sandbox, once for each worker, with what dependencies= names",
            )
        skipped = reply.get("skipped")
        for name in spec["preload"] or ():
            reason = skipped.get(name) if type(skipped) is dict else None
            if isinstance(reason, str):
                text = f"preload= has {name!r}, which is not loaded ahead: {escape(reason)}"
                warnings.warn(text, UserWarning, stacklevel=callers_level())


_lock = threading.Lock()
_current: Connection | None = None


def current() -> Connection:
    """The connection of this process; starts the agent where none runs."""
    global _current
    found = _current  # a forked child has none: see _after_fork
    if found is not None:
        return found
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = Connection()
        return _current


def ready() -> Connection | None:
    """The connection of this process, if it has one."""
    return _current


def existing() -> _core.Client | None:
    """A client of an agent that runs already; None where none does. Raises SandboxError for a place
    of it that can be none, such as a HUTCH_HOME without a slash.
    """
    found = _current
    if found is not None and found.pid == os.getpid():
        return found.client
    try:
        return connect(start=False)
    except _core.Error as error:
        if error.code == "invalid_argument":
            raise from_core(error) from None
        return None


def on_existing(work: Callable[[_core.Client], T]) -> T | None:
    """The answer of an agent that runs already; None where none does. `work` is repeated where the
    agent that this process was connected to has ended: another one may run. Raises SandboxError.
    """
    for _ in range(2):
        client = existing()
        if client is None:
            return None
        try:
            return work(client)
        except _core.Error as error:
            if error.code not in ("unavailable", "protocol"):
                raise from_core(error) from None
        found = _current
        if found is not None and found.client is client:
            drop(found)
    return None


def close() -> None:
    """Closes this process's connection; the next call opens another one."""
    global _current
    with _lock:
        found, _current = _current, None
    if found is not None and found.pid == os.getpid():
        found.close()


def drop(connection: Connection) -> None:
    """Forgets a connection whose agent is gone. Calls on it that still run are not ended."""
    global _current
    with _lock:
        if _current is connection:
            _current = None


def _after_fork() -> None:
    """In the child: the parent's socket is not ours, nor is a lock that another thread held."""
    global _current, _lock
    _lock = threading.Lock()
    parents, _current = _current, None
    if parents is not None:
        _kept.append(parents)  # never destroyed here: it belongs to the parent
        parents.client.abandon()


_kept: list[Connection] = []
os.register_at_fork(after_in_child=_after_fork)


def connect(start: bool) -> _core.Client:
    """A new client. Raises `_core.Error`."""
    try:
        return _connect(_core.paths())
    except _core.Error as error:
        # "platform": a place is missing that the launcher makes, such as root's service user.
        if not start or error.code not in ("unavailable", "platform"):
            raise
    from hutch._connect import launcher

    launcher.run("--start")
    return _connect(_core.paths())


def _connect(paths: Mapping[str, Any]) -> _core.Client:
    return _core.Client(*_listener(paths))


def _listener(paths: Mapping[str, Any]) -> tuple[str, int]:
    uid = int(paths["uid"]) if paths["service_user"] else -1
    return str(paths["agent_socket"]), uid


def stop_notice() -> _core.StopNotice:
    """Of the agent that runs. Raises `_core.Error`."""
    return _core.StopNotice(*_listener(_core.paths()))


def milliseconds(seconds: float) -> int:
    """Rounded up: a limit that is given is never 0, which means none."""
    return max(1, int(seconds * 1000 + 0.999))


def ensure_current() -> Connection:
    """`current`, raising SandboxError."""
    try:
        return current()
    except _core.Error as error:
        raise from_core(error) from None


def _install(request: PoolRequest) -> None:
    """Installs on the host what the agent lacks. Raises `_core.Error`."""
    from hutch._connect import launcher

    gvisor = request.spec["isolation"] == "gvisor"
    launcher.run("--install", *(("--gvisor", "yes") if gvisor else ()))


_FIXED_BY_INSTALL = ("missing_base", "missing_runtime", "podman_down")
SAFE_TO_REPEAT = ("unavailable", "unknown_pool", "worker_failed", *_FIXED_BY_INSTALL)


def environment_of(request: PoolRequest) -> PreparedPool:
    """What `request` would have installed. Raises SandboxError."""
    return on_pool(request, lambda _, environment: environment, Connection.environment)


def on_pool(
    request: PoolRequest,
    work: Callable[[Connection, PreparedPool], T],
    prepare: Callable[[Connection, PoolRequest], PreparedPool] = Connection.pool,
) -> T:
    """Runs `work` on the prepared pool. Repeats it once if it certainly had no effect: the agent
    had restarted, or the cell was lost before the call reached it. Raises SandboxError.
    """
    for attempt in range(2):
        building = True
        connection = ensure_current()
        try:
            pool = prepare(connection, request)
            building = False
            return work(connection, pool)
        except _core.Error as error:
            code, may_have_run = error.code, error.may_have_run
            if code in ("unavailable", "protocol"):
                drop(connection)
            elif code in _FIXED_BY_INSTALL and attempt == 0:
                connection.forget(request)  # its base may have to be pulled again
                _install(request)
            elif code == "unknown_pool":
                connection.forget(request)
            again = code in SAFE_TO_REPEAT and not may_have_run
            if attempt == 1 or not again or (building and code == "worker_failed"):
                spec = request.spec
                asked = [*spec["requirements"], *spec["node_requirements"]]
                failure: SandboxError = from_core(error, pool=asked, building=building)
                raise failure from None
    raise AssertionError("unreachable")
