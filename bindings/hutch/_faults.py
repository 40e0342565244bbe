# SPDX-License-Identifier: Apache-2.0
"""What `_core` failed at, as the error that a caller catches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hutch._errors import (
    AgentUnavailable,
    DependencyInstallError,
    PlatformNotSupportedError,
    PodmanNotInstalledError,
    SandboxBusy,
    SandboxError,
    SandboxStartupError,
)

if TYPE_CHECKING:
    from hutch import _core


# What to do where the error itself does not say it, by its code.
_WAYS_ON = {
    "internal": "`hutch logs` has the details; if it happens again, please report it",
    "protocol": "`hutch logs` has the details; the next call starts the agent again if need be",
    "unavailable": "the next call starts the agent again; `hutch logs` shows its last lines",
    "version_mismatch": "install one version of hutch, then `hutch stop`",
    "timeout": "try again; if it happens again, `hutch logs` says what the agent waits for",
    "busy": "try again later, or start fewer calls at once",
    "unknown_pool": "call again: the pool is then prepared anew",
    "worker_failed": "`hutch logs` says why; `hutch doctor` checks the host",
    "podman": "`hutch doctor` checks the host; `hutch logs` has the details",
    "podman_down": "`hutch doctor` says what keeps Podman's service from starting",
    "missing_base": "call again: the base image is then installed anew",
    "missing_runtime": "call again: the worker's files are then installed anew",
    "platform": "`hutch doctor` names what this host lacks, and the command that fixes it",
}


def from_core(error: _core.Error, *, pool: Any = None, building: bool = False) -> SandboxError:
    """An error of `_core` as the class that a caller catches. `building`: it came while the
    environment was prepared. `pool`: the requirements, where known.
    """
    code, text, figures = error.code, error.message, error.figures
    given: dict[str, Any] = {"hint": error.hint}
    if code == "install_failed":
        return DependencyInstallError(text, log=text, requirement=_named(text, pool), **given)
    if code == "timeout" and building:
        given["hint"] = given["hint"] or "raise build_sec=, or call .warm() ahead of time"
        return DependencyInstallError(f"the environment was not ready in time: {text}", **given)
    if code == "cancelled":
        from hutch._cancelled import SandboxCancelled

        return SandboxCancelled(text or "the call was cancelled", **given)
    if error.may_have_run and not given["hint"]:
        given["hint"] = "the call may have run: repeat it only if that does no harm"
    given["hint"] = given["hint"] or _WAYS_ON.get(code, "")
    kinds: dict[str, type[SandboxStartupError]] = {
        "busy": SandboxBusy,
        "unavailable": AgentUnavailable,
        "protocol": AgentUnavailable,
        "version_mismatch": AgentUnavailable,
        "platform": PlatformNotSupportedError,
        "podman_missing": PodmanNotInstalledError,
    }
    if code == "busy" and figures:
        given["queued"] = int(figures["queued"])
        given["capacity"] = int(figures["capacity"])
        given["waited_sec"] = figures["waited_sec"]
        if "sessions" in figures:
            given["sessions"] = int(figures["sessions"])
    kind = kinds.get(code, SandboxStartupError)
    if issubclass(kind, PlatformNotSupportedError):
        from hutch._uncaught import show_briefly

        show_briefly()
    return kind(text, may_have_run=error.may_have_run, **given)


def _named(text: str, requirements: Any) -> str | None:
    """The requirement that the installer's sentence names, if it is just one."""
    import re

    names = {re.split(r"[^A-Za-z0-9._-]", item, maxsplit=1)[0]: item for item in requirements or ()}
    words = set(re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", text.lower()))
    found = [item for name, item in names.items() if name.lower() in words]
    return found[0] if len(found) == 1 else None
