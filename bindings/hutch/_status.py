# SPDX-License-Identifier: Apache-2.0
"""What runs and whether it works: status, metrics, doctor, close.

Dicts as JSON would have them. `status`, `metrics` and `doctor(prove=False)` start and change
nothing.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, TypedDict, cast

from hutch import _core
from hutch._connect import connection, launcher
from hutch._errors import SandboxError
from hutch._faults import from_core

if TYPE_CHECKING:
    from collections.abc import Callable


class PoolStatus(TypedDict):
    """The warm workers of one environment under one policy, and the calls that they served.

    Counts are since the agent began. `p50_ms`, `p99_ms`: of whole calls in the last five to ten
    minutes, milliseconds, at most a quarter off; None where there were none.
    """

    key: str
    digest: str  # of its environment
    requirements: list[str]
    labels: dict[str, str]
    memory_mb: int
    isolation: str  # "cell" "container" "gvisor"; cells of isolation="shared" are those of "cell"
    workers: list[str]  # names of their containers
    slots: int  # places for cells
    ready: int  # cells that are parked
    depth: int  # how many are to be parked, as the rate of calls is
    leased: int  # cells that a client holds, in use or ahead of a call
    sessions: int  # of those, which are sessions
    waiting: int  # calls in the queue
    calls: int  # that ended
    outcomes: dict[str, int]  # of those: by status, limits as "limit:memory"
    calls_per_sec: float  # in the last ten seconds
    hit_rate: float | None  # share of calls whose client held a cell already
    p50_ms: float | None
    p99_ms: float | None
    refused: int  # calls for which no cell came free in time
    cells_made: int
    worker_starts: int
    worker_failures: int
    rotations: int  # workers replaced by a fresh one
    start_failures: int  # in a row, until now
    last_failure: str


class _Running(TypedDict):
    running: bool


class Status(_Running, total=False):
    """The agent's state. Only `running` is set where no agent runs."""

    version: str
    wire_version: int
    generation: str
    pid: int
    uptime_sec: float
    calls: int
    clients: int
    leases: int
    sessions: int  # that are open
    sessions_max: int  # that may be open at once; 0: no bound
    spares: int  # workers started ahead for no pool yet
    builds: int
    builds_failed: int
    memory_bytes: int  # of the agent's own process
    descriptors: int
    pressure: float  # on the host, from 0 to 1: at 1 cells are made only for those who wait
    enforcement: str  # of limits: "cgroup" or "watchdog"
    enforcement_note: str  # what keeps it from being "cgroup"; "" where it is
    stopping: bool
    pools: list[PoolStatus]


def status() -> Status:
    """The agent's state, and that of its pools and their calls. Starts nothing.

    For instance `hutch.status().get("pools", [])`: where no agent runs there are none. Raises
    SandboxError where one runs and does not answer within 10 s.
    """
    text = _asked(lambda client: client.status())
    if text is None:
        return {"running": False}
    return cast(Status, {**json.loads(text), "running": True})


async def status_aio() -> Status:
    """`status` without blocking the event loop."""
    import asyncio

    return await asyncio.to_thread(status)


class SessionStatus(TypedDict):
    """One open session, of any process that uses the agent. Times are in seconds."""

    id: str  # as `Session.id`
    lease: int  # the agent's own number for it, as in its log
    uid: int  # of the process that has it, as it says itself
    pid: int
    worker: str  # name of its container
    pool: str  # the first digits of its key
    age_sec: float
    unused_sec: float  # since its last call ended, at most a second off; 0 while one runs
    idle_sec: float | None  # after so long without use it is ended; None: never
    calls: int  # that ended: code, names, files
    state: str  # "starting" "running" "idle" "ending"


def sessions() -> list[SessionStatus]:
    """The sessions that are open, the oldest first; [] where no agent runs. Starts nothing.

    Raises SandboxError where an agent runs and does not answer within 10 s.
    """
    found: list[SessionStatus] = json.loads(_asked(lambda client: client.sessions()) or "[]")
    return found


def metrics() -> str:
    """The agent's metrics in Prometheus' text format (0.0.4); "" where no agent runs.

    Durations are in seconds, memory in bytes; everything counts from the agent's start. Raises
    SandboxError where an agent runs and does not answer within 10 s. For instance
    `print(hutch.metrics())`, or an HTTP handler that answers with it.
    """
    return _asked(lambda client: client.metrics()) or ""


async def metrics_aio() -> str:
    """`metrics` without blocking the event loop."""
    import asyncio

    return await asyncio.to_thread(metrics)


def metrics_json() -> list[dict[str, Any]]:
    """The same as families: name, type, help, and samples with name, labels and value."""
    found: list[dict[str, Any]] = json.loads(_asked(lambda client: client.metrics(True)) or "[]")
    return found


def _asked(ask: Callable[[_core.Client], str]) -> str | None:
    """The answer of the running agent; None where none runs."""
    return connection.on_existing(ask)


def environments() -> list[dict[str, Any]]:
    """The environments in the store. Starts the agent."""
    try:
        answer = json.loads(connection.ensure_current().client.environments())
    except _core.Error as error:
        raise from_core(error) from None
    found = answer.get("environments", []) if isinstance(answer, dict) else answer
    return [item for item in found if isinstance(item, dict)]


def remove_environment(digest: str) -> bool:
    try:
        return connection.ensure_current().client.remove_environment(digest)
    except _core.Error as error:
        raise from_core(error) from None


def doctor(prove: bool = True) -> dict[str, Any]:
    """Each prerequisite as {"name", "ok", "required", "detail", "fix"}, and "ok" for all that are
    required. `prove`: also runs a call, and one into its memory limit, if the rest is well.
    """
    try:
        report: dict[str, Any] = json.loads(launcher.capture("--doctor"))
    except _core.Error as error:
        raise from_core(error) from None
    checks = [dict(check) for check in report.get("checks", [])]
    checks = [_judged(check) for check in checks]
    checks.append(_null_device("/dev/null"))
    checks.append(_loopback())
    ok = all(check["ok"] for check in checks if check["required"])
    if prove and ok:
        for prove_it in (_prove_cell, _prove_memory_limit, _enforcement):
            check = prove_it()
            checks.append(check)
            if check["required"] and not check["ok"]:
                ok = False
                break
    return {"ok": ok, "checks": checks}


async def doctor_aio(prove: bool = True) -> dict[str, Any]:
    """`doctor` without blocking the event loop."""
    import asyncio

    return await asyncio.to_thread(doctor, prove)


PROOFS = ("a call", "the memory limit", "limits of a call")  # the agent has a part in them

_PROBE = """
def answer():
    return 42

def devour():
    hoard = []
    while True:
        hoard.append(bytearray(8 << 20))
"""


def _judged(check: dict[str, Any]) -> dict[str, Any]:
    from hutch import _apparmor

    if check["name"] != "user namespaces":
        return check
    try:
        paths = _core.paths()
    except _core.Error:
        paths = None
    return _apparmor.judged(check, paths)


def _null_device(path: str) -> dict[str, Any]:
    """Podman's conmon writes to it, as the user whose Podman it is."""
    import stat

    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        mode, detail = 0, f"{path}: {error.strerror}"
    else:
        detail = f"{path} has the rights {stat.filemode(mode)}: not everybody can write to it"
    ok = stat.S_ISCHR(mode) and mode & 0o666 == 0o666
    if ok:
        return _proof(path, True, "everybody can write to it")
    if mode and not stat.S_ISCHR(mode):
        detail = f"{path} is not a device: Podman starts nothing"
        return _proof(path, False, detail, f"rm {path}; mknod -m 666 {path} c 1 3   (as root)")
    return _proof(path, False, detail, f"chmod 666 {path}   (as root)")


def _loopback() -> dict[str, Any]:
    """What installs packages has a network; cells have none but by `allow_network=`."""
    from hutch import _containers_conf

    try:
        home = str(_core.paths()["home"])
    except _core.Error:
        home = "/nonexistent"
    found = [f"{option} in {file}" for option, file in _containers_conf.opened_loopback(home)]
    detail = "what installs packages reaches nothing on it"
    if found:
        detail = f"what installs packages reaches what listens on it: {', '.join(found)}"
    fix = "remove that option, unless containers are to reach it" if found else ""
    return {**_proof("the host's loopback", not found, detail, fix), "required": False}


def _prove_cell() -> dict[str, Any]:
    from hutch._program import function

    try:
        outcome = function(_PROBE, "answer").run()
    except SandboxError as error:
        return _proof(PROOFS[0], False, error.message, error.hint)
    if outcome.ok and outcome.value == 42:
        milliseconds = 1000 * sum(
            outcome.timings.get(name, 0.0) for name in ("send", "run", "receive")
        )
        return _proof(PROOFS[0], True, f"a cell answered in {milliseconds:.2f} ms")
    return _proof(PROOFS[0], False, repr(outcome))


def _prove_memory_limit() -> dict[str, Any]:
    from hutch._program import function

    try:
        outcome = function(_PROBE, "devour", memory_mb=128, timeout_sec=20).run()
    except SandboxError as error:
        return _proof(PROOFS[1], False, error.message, error.hint)
    peak = outcome.usage.peak_memory_bytes / (1 << 20)
    detail = (
        f"memory_mb=128 ended a call at {peak:.0f} MiB ({outcome.usage.enforcement or 'own watch'})"
    )
    if outcome.status == "limit" and outcome.limit == "memory":
        return _proof(PROOFS[1], True, detail)
    return _proof(PROOFS[1], False, repr(outcome))


def _enforcement() -> dict[str, Any]:
    """What the agent measured when it tried each limit at its start."""
    answer = status()
    hard = answer.get("enforcement") == "cgroup"
    detail = "memory, processes and CPU share are the kernel's own, each tried"
    if not hard:
        detail = f"the warden watches every 20 ms: {answer.get('enforcement_note', '')}"
    check = _proof(PROOFS[2], hard, detail)
    return {**check, "required": False}


def _proof(name: str, ok: bool, detail: str, fix: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "required": True, "detail": detail, "fix": fix}


def close() -> None:
    """Closes this process's connection. The next call opens another one."""
    connection.close()


async def close_aio() -> None:
    """`close`, as a coroutine."""
    import asyncio

    await asyncio.to_thread(close)
