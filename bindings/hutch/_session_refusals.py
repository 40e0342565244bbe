# SPDX-License-Identifier: Apache-2.0
"""What a session says to a call that it does not make. Pure; safe on any thread."""

from __future__ import annotations

from hutch._errors import AgentUnavailable, SandboxStartupError, SessionBusy

AGENT_GONE = "its agent is gone"  # why a session has ended


def _busy(text: str, hint: str) -> SessionBusy:
    return SessionBusy(text, hint=hint, may_have_run=False)


def busy() -> SessionBusy:
    return _busy(
        "the session is running another call",
        "wait for it, or use a second session",
    )


def too_many_commands(most: int) -> SessionBusy:
    return _busy(
        f"{most} commands of the session run already, which is the most",
        "wait for one of them, start programs by start(), or use a second session",
    )


def loop_is_busy() -> SessionBusy:
    return _busy(
        "the event loop of its AsyncSession is kept busy by other code",
        "have no code wait within a coroutine without an await",
    )


def commands_run() -> SessionBusy:
    return _busy(
        "commands of the session are running",
        "wait for them, or interrupt() them",
    )


def too_deep(most: int) -> SessionBusy:
    return _busy(
        f"{most} nested calls of the session run already, which is the most",
        "have the tool return, and run the code from outside",
    )


def of_the_parent() -> SandboxStartupError:
    return SandboxStartupError(
        "this session belongs to the parent of this process",
        hint="make another one in the child",
        may_have_run=False,
    )


def has_ended(why: str, may_have_run: bool = False) -> SandboxStartupError:
    """`may_have_run`: what the caller asked for."""
    kind = AgentUnavailable if why == AGENT_GONE else SandboxStartupError
    ran = "what it was asked for may have run; " if may_have_run else ""
    return kind(
        f"the session has ended: {why}",
        hint=f"{ran}start another one",
        may_have_run=may_have_run,
    )


def child_has_ended(why: str) -> SandboxStartupError:
    return SandboxStartupError(
        f"this child of the session has ended: {why}",
        hint="make another one with child()",
        may_have_run=False,
    )


def not_restartable() -> SandboxStartupError:
    return SandboxStartupError(
        "this session's interpreter cannot be replaced: its container is its sandbox",
        hint="reset(files=True) begins anew, without its files",
        may_have_run=False,
    )


def limit_within(name: str) -> TypeError:
    return TypeError(
        f"{name}= cannot be given where a tool calls: what runs within another call has the limits "
        "of that"
    )
