"""What there is and whether it works: status, doctor, close.

Dicts as JSON would have them. `status` and `doctor(prove=False)` start and change nothing.
"""

from __future__ import annotations

import json
from typing import Any

from hutch import _core
from hutch._errors import SandboxError, from_core


def status() -> dict[str, Any]:
    """The agent's state: `running`, and what the agent says of its pools and workers."""
    from hutch import _connection

    client = _connection.existing()
    if client is not None:
        try:
            told = json.loads(client.status())
            return {"running": True, **(told if isinstance(told, dict) else {"agent": told})}
        except _core.Error as error:
            if error.args[0] not in ("unavailable", "protocol"):
                raise from_core(error) from None
            _connection.close()
    return {"running": False}


async def status_aio() -> dict[str, Any]:
    import asyncio

    return await asyncio.to_thread(status)


def environments() -> list[dict[str, Any]]:
    """What is in the store. Starts the agent."""
    from hutch import _connection

    try:
        told = json.loads(_connection.ensure_current().client.environments())
    except _core.Error as error:
        raise from_core(error) from None
    found = told.get("environments", []) if isinstance(told, dict) else told
    return [item for item in found if isinstance(item, dict)]


def remove_environment(digest: str) -> bool:
    from hutch import _connection

    try:
        return _connection.ensure_current().client.remove_environment(digest)
    except _core.Error as error:
        raise from_core(error) from None


def doctor(prove: bool = True) -> dict[str, Any]:
    """Each prerequisite as {"name", "ok", "required", "detail", "fix"}, and "ok" for all that are
    required. `prove`: also really runs a cell and lets a memory limit bite, if the rest is well.
    """
    from hutch import _launcher

    try:
        report: dict[str, Any] = json.loads(_launcher.capture("--doctor"))
    except _core.Error as error:
        raise from_core(error) from None
    checks = [dict(check) for check in report.get("checks", [])]
    ok = bool(report.get("ok", False))
    if prove and ok:
        for check in (_prove_cell(), _prove_memory_limit()):
            checks.append(check)
            if not check["ok"]:
                ok = False
                break
    return {"ok": ok, "checks": checks}


async def doctor_aio(prove: bool = True) -> dict[str, Any]:
    import asyncio

    return await asyncio.to_thread(doctor, prove)


_PROBE = """
def answer():
    return 42

def devour():
    hoard = []
    while True:
        hoard.append(bytearray(8 << 20))
"""


def _prove_cell() -> dict[str, Any]:
    from hutch._program import function

    try:
        outcome = function(_PROBE, "answer").run()
    except SandboxError as error:
        return _proof("a call", False, error.message, error.hint)
    if outcome.ok and outcome.value == 42:
        milliseconds = 1000 * sum(
            outcome.timings.get(name, 0.0) for name in ("send", "run", "receive")
        )
        return _proof("a call", True, f"a cell answered in {milliseconds:.2f} ms")
    return _proof("a call", False, repr(outcome))


def _prove_memory_limit() -> dict[str, Any]:
    from hutch._program import function

    try:
        outcome = function(_PROBE, "devour", memory_mb=128, disk_mb=16, timeout_sec=20).run()
    except SandboxError as error:
        return _proof("the memory limit", False, error.message, error.hint)
    peak = outcome.usage.peak_memory_bytes / (1 << 20)
    detail = (
        f"memory_mb=128 ended a call at {peak:.0f} MiB ({outcome.usage.enforcement or 'own watch'})"
    )
    if outcome.status == "limit" and outcome.limit == "memory":
        return _proof("the memory limit", True, detail)
    return _proof("the memory limit", False, repr(outcome))


def _proof(name: str, ok: bool, detail: str, fix: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "required": True, "detail": detail, "fix": fix}


def close() -> None:
    """Closes this process's connection. The next call opens another one."""
    from hutch import _connection

    _connection.close()


async def close_aio() -> None:
    import asyncio

    await asyncio.to_thread(close)
