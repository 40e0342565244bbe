# SPDX-License-Identifier: Apache-2.0
"""An Outcome of a program as JSON and back, with the error that its `unwrap` raises: what
`hutch serve` answers and `hutch.Client` reads. Values; safe on any thread.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, get_args

from hutch import _errors
from hutch._errors import SandboxError, execution_error
from hutch._outcome import STAGES, ErrorInfo, NetworkRecord, Outcome, Status, Usage
from hutch._text import as_json

# The classes an error may have, and what each says beside its message and hint.
_DETAILS: dict[str, tuple[str, ...]] = {
    "SandboxError": (),
    "CommandError": ("exit_code",),
    "LimitExceeded": ("limit", "allowed", "used"),
    "SandboxTimeoutError": ("limit", "allowed", "used"),
    "SandboxMemoryError": ("limit", "allowed", "used"),
    "KeyValueLimit": ("limit", "allowed", "used"),
    "SnapshotError": (),
    "StorageError": (),
    "SandboxDied": ("signal", "exit_code"),
    "SandboxCancelled": (),
    "SerializationError": ("path", "type_name"),
    "DependencyInstallError": ("log", "requirement"),
    "RequirementError": ("log", "requirement"),
    "NetworkDenied": ("host", "port", "pattern"),
    "SandboxStartupError": ("may_have_run",),
    "SandboxBusy": ("may_have_run", "queued", "capacity", "waited_sec", "sessions"),
    "SessionBusy": ("may_have_run",),
    "SessionNotFound": ("may_have_run",),
    "AgentUnavailable": ("may_have_run",),
    "PlatformNotSupportedError": ("may_have_run",),
    "PodmanNotInstalledError": ("may_have_run",),
}
_EXECUTION = "SandboxExecutionError"  # made of the Outcome's own `error`
_OPTIONAL = (int, float, str, bool, type(None))
# What each field of an Outcome may be; those that are missing here are read on their own.
_FIELDS: dict[str, tuple[type, ...]] = {
    "limit": (str, type(None)),
    "signal": (int, type(None)),
    "exit_code": (int, type(None)),
    "stdout": (str,),
    "stderr": (str,),
    "stdout_size": (int,),
    "stderr_size": (int,),
    "stdout_truncated": (bool,),
    "stderr_truncated": (bool,),
    "call_id": (str,),
    "worker_id": (str,),
    "may_have_run": (bool,),
    "restarted": (bool,),
    "rolled_back": (bool,),
}
_RECORD: dict[str, type] = {
    "host": str,
    "port": int,
    "allowed": bool,
    "reason": str,
    "suggestion": str,
    "bytes_sent": int,
    "bytes_received": int,
    "count": int,
    "lost": bool,
    "bytes": int,
}
_FAR = 1 << 63  # a figure is below


def to_wire(outcome: Outcome[Any]) -> dict[str, Any]:
    """`Outcome.to_dict()`, and `failure`: the error of one that did not return."""
    return {
        **outcome.to_dict(),
        "failure": None if outcome.ok else failure_to_wire(outcome.exception()),
    }


def failure_to_wire(error: SandboxError) -> dict[str, Any]:
    name = type(error).__name__
    is_command = isinstance(error, _errors.CommandError)
    if isinstance(error, _errors.SandboxExecutionError) and not is_command:
        name = _EXECUTION
    found = {"type": name, "message": error.message, "hint": error.hint}
    for detail in _DETAILS.get(name, ()):
        found[detail] = as_json(getattr(error, detail))
    return found


def from_wire(found: Any) -> Outcome[Any]:
    """Raises ValueError for what is not an Outcome."""
    fields = _object(found, "the answer")
    status: Any = fields.get("status")
    if status not in get_args(Status):
        raise ValueError(f"its status is {str(status)[:100]!r}")
    outcome: Outcome[Any] = Outcome(status, fields.get("value"))
    for name, kinds in _FIELDS.items():
        setattr(outcome, name, _of_kind(fields, name, kinds))
    outcome.error = _error(fields.get("error"))
    outcome.usage = _usage(_object(fields.get("usage"), "its usage"))
    timings = _object(fields.get("timings"), "its timings")
    outcome.timings = {name: _sec(timings.get(name, 0.0), name) for name in STAGES}
    outcome.network = [_record(one) for one in _list(fields.get("network"))]
    outcome.display = [_object(one, "its display") for one in _list(fields.get("display"))]
    files = _object(fields.get("files", {}), "its files")
    outcome.files = {path: _content(one) for path, one in files.items()}
    if not outcome.ok:
        failure = failure_from_wire(fields.get("failure"), outcome)
        if status != "fault" and isinstance(failure, _errors.SandboxStartupError):
            raise ValueError(f"a call that ended as {status!r} has no {type(failure).__name__}")
        outcome.fail(failure)
    return outcome


def _content(text: Any) -> bytes:
    if type(text) is not str:
        raise ValueError("its files are no text")
    return base64.b64decode(text, validate=True)


def failure_from_wire(found: Any, outcome: Outcome[Any] | None = None) -> SandboxError:
    """The error as the local call would raise it. Raises ValueError for what is not one."""
    fields = _object(found, "its failure")
    name, message, hint = fields.get("type"), fields.get("message"), fields.get("hint")
    if type(message) is not str or type(hint) is not str:
        raise ValueError("its failure has no message")
    if name == _EXECUTION and outcome is not None and outcome.error is not None:
        return execution_error(outcome.error)
    if type(name) is not str or name not in _DETAILS:
        raise ValueError(f"its failure is a {str(name)[:100]!r}")
    details = {
        one: _of_kind(fields, one, _OPTIONAL)
        for one in _DETAILS[name]
        if type(fields.get(one)) in _OPTIONAL
    }
    return _class_of(name)(message, hint=hint, outcome=outcome, **details)


def _class_of(name: str) -> type[SandboxError]:
    if name == "SandboxCancelled":
        from hutch._cancelled import SandboxCancelled

        return SandboxCancelled
    found: type[SandboxError] = getattr(_errors, name)
    return found


def _error(found: Any) -> ErrorInfo | None:
    if found is None:
        return None
    fields = _object(found, "its error")
    kind, message, traceback, hint = (
        _of_kind(fields, name, (str,)) for name in ("type", "message", "traceback", "hint")
    )
    line = _of_kind(fields, "line", (int, type(None)))
    bases = _errors.builtin_names(fields.get("bases"))
    return ErrorInfo(kind, message, traceback, line, hint, bases)


def _usage(fields: Mapping[str, Any]) -> Usage:
    usage = Usage()
    for name in Usage.__slots__:
        usual = getattr(usage, name)
        if type(usual) is float:
            setattr(usage, name, _sec(fields.get(name), name))
        else:
            setattr(usage, name, _of_kind(fields, name, (type(usual),)))
    return usage


def _record(found: Any) -> NetworkRecord:
    fields = _object(found, "its network")
    return NetworkRecord((name, _of_kind(fields, name, (kind,))) for name, kind in _RECORD.items())


def _of_kind(fields: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> Any:
    value: Any = fields.get(name)
    if type(value) not in kinds:
        raise ValueError(f"its {name} is of the wrong type")
    if type(value) in (int, float) and not abs(value) < _FAR:
        raise ValueError(f"its {name} is beyond all figures")
    return value


def _sec(value: Any, name: str) -> float:
    return float(_of_kind({name: value}, name, (int, float)))


def _object(found: Any, what: str) -> dict[str, Any]:
    if type(found) is not dict:
        raise ValueError(f"{what} is not an object")
    return found


def _list(found: Any) -> list[Any]:
    return found if type(found) is list else []
