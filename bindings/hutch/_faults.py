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

        return SandboxCancelled(text or "cancelled", **given)
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
    if error.may_have_run and not given["hint"]:
        given["hint"] = "the call may have run: repeat it only if that does no harm"
    kind = kinds.get(code, SandboxStartupError)
    return kind(text, may_have_run=error.may_have_run, **given)


def _named(text: str, requirements: Any) -> str | None:
    """The requirement that the installer's sentence names, if it is just one."""
    import re

    names = {re.split(r"[^A-Za-z0-9._-]", item, maxsplit=1)[0]: item for item in requirements or ()}
    words = set(re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", text.lower()))
    found = [item for name, item in names.items() if name.lower() in words]
    return found[0] if len(found) == 1 else None
