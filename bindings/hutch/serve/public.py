# SPDX-License-Identifier: Apache-2.0
"""What a client is told of a fault of Hutch. Where there are others to separate, no more than what
it is: its text may tell of the host, and is in the server's log.
"""

from __future__ import annotations

from typing import TypeVar

from hutch._errors import (
    DependencyInstallError,
    SandboxBusy,
    SandboxError,
    SandboxStartupError,
    SessionBusy,
    SessionNotFound,
)
from hutch.serve.log import SERVER
from hutch.serve.settings import Settings

E = TypeVar("E", bound=SandboxError)
_TEXT = "Hutch failed on this server"
_PLAIN = (SandboxBusy, SessionBusy, SessionNotFound)  # tell of nothing but the request


def public(error: E, settings: Settings) -> E:
    """The error, or one of its class with a text of the server's own."""
    is_fault = isinstance(error, (SandboxStartupError, DependencyInstallError))
    if not is_fault or isinstance(error, _PLAIN) or error.message.startswith(_TEXT):
        return error
    kind = type(error)
    SERVER.warning(f"{kind.__name__}: %s", error)
    if settings.is_local and not settings.keys:
        return error
    text = f"{_TEXT} ({kind.__name__}): its log says why"
    if isinstance(error, SandboxStartupError):
        return kind(text, may_have_run=error.may_have_run)
    return kind(text)
