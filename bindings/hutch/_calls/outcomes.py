# SPDX-License-Identifier: Apache-2.0
"""What a cell's reply means: the value or the error of an Outcome, in words for its caller.

Nothing in a reply is believed beyond its bytes: each field may be anything. Safe on any thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from hutch import _core
from hutch._calls.annotation import check
from hutch._calls.target import Target
from hutch._connect.connection import PreparedPool
from hutch._errors import (
    LimitExceeded,
    SandboxBusy,
    SandboxDied,
    SandboxError,
    SandboxMemoryError,
    SandboxStartupError,
    SandboxTimeoutError,
    SerializationError,
    builtin_names,
    execution_error,
)
from hutch._explain import hint_for
from hutch._faults import from_core
from hutch._hints import MOST_NEAR
from hutch._options.options import FIELDS, LIMITS
from hutch._outcome import STAGES, ErrorInfo, Outcome, Status, Usage
from hutch._results import types
from hutch._text import cut_in_middle

_MIB = 1 << 20


def note_fault(
    error: SandboxError,
    begun: float,
    pickled: float,
    known: float | None,
    asked: float | None = None,
) -> None:
    """Gives the error of a call that Hutch ended its Outcome, if it has none. The times are
    `asked`: when its caller asked, where it has been in a queue since; `begun`: when its pickling
    began; `pickled`: when that ended; `known`: when its pool was prepared.
    """
    if error.outcome is not None:
        return
    ran = isinstance(error, SandboxStartupError) and error.may_have_run
    timings = _timings_of_fault(error, begun, pickled, known, asked)
    outcome = Outcome[Any](_status_of(error), timings=timings, may_have_run=ran)
    error.outcome = outcome.fail(error)


def _timings_of_fault(
    error: SandboxError, begun: float, pickled: float, known: float | None, asked: float | None
) -> dict[str, float]:
    """Where the time went until it failed. A failure on the prepared pool counts as one stage:
    waiting, where no cell was free; running, where the call may have run; sending otherwise.
    """
    timings = dict.fromkeys(STAGES, 0.0)
    now = time.monotonic()
    timings["queue"] = 0.0 if asked is None else begun - asked
    timings["send"] = pickled - begun
    timings["environment"] = (now if known is None else known) - pickled
    if known is not None:
        if isinstance(error, SandboxBusy):
            last = "queue"
        else:
            ran = isinstance(error, SandboxStartupError) and error.may_have_run
            last = "run" if ran else "send"
        timings[last] += now - known
    return timings


def _status_of(error: SandboxError) -> Status:
    """Cancelled before it began, or failed by a fault."""
    from hutch._cancelled import SandboxCancelled

    return "cancelled" if isinstance(error, SandboxCancelled) else "fault"


def failure(error: _core.Error, target: Target, begun: float) -> SandboxError:
    """The error of a failure on the prepared pool, as `send` raises it."""
    failed = from_core(error, pool=target.request.spec["requirements"])
    note_fault(failed, begun, begun, begun)
    return failed


def concluded(
    target: Target,
    result: _core.CallResult,
    pool: PreparedPool,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """The value, or raises what `Outcome.unwrap` would."""
    return outcome_of(target, result, pool, args, kwargs).unwrap()


def outcome_of(
    target: Target,
    result: _core.CallResult,
    pool: PreparedPool,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Outcome[Any]:
    outcome = _without_receive_time(target, result, pool, args, kwargs)
    outcome.timings["receive"] = time.monotonic() - result.ended
    return outcome


def _without_receive_time(
    target: Target,
    result: _core.CallResult,
    pool: PreparedPool,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Outcome[Any]:
    outcome = measured(target, result, pool)
    if result.status == "returned":
        try:
            outcome.value = decoded(result, target, (args, kwargs))
            check(outcome.value, target)
        except SerializationError as error:
            return not_data(outcome, error)
        if target.is_program:
            outcome.exit_code = 0
        return outcome
    return denied(conclude(target, result, outcome), target)


def denied(outcome: Outcome[Any], target: Target) -> Outcome[Any]:
    """Reports what a failed call was refused before what it raised."""
    if not outcome.network:
        return outcome
    from hutch._calls.network_records import deny

    return deny(outcome, target.name)


def conclude(target: Target, result: _core.CallResult, outcome: Outcome[Any]) -> Outcome[Any]:
    """Sets the error of the Outcome of a call that did not return."""
    status = result.status
    if status == "raised":
        fields = _error_map(result)
        return raised(outcome, fields, target)
    if status == "unencodable":
        fields = _error_map(result)
        path = _str(fields, "path", _MOST_OF_NAME) or "result"
        type_name = _str(fields, "type", _MOST_OF_NAME) or "value"
        article = "an" if type_name[0] in "aeiouAEIOU" else "a"
        return not_data(
            outcome,
            SerializationError(
                f"{path} is {article} {type_name}, which cannot be returned from the sandbox",
                hint=_str(fields, "hint"),
                path=path,
                type_name=type_name,
            ),
        )
    if status == "limit":
        return limited(target, result, outcome)
    if status == "cancelled":
        from hutch._cancelled import SandboxCancelled

        return outcome.fail(SandboxCancelled(f"the call of {target.name} was cancelled"))
    if status == "died":
        return outcome.fail(_died(target, outcome, result.detail))
    return outcome.fail(SandboxStartupError(f"unknown status {status!r}", may_have_run=True))


def measured(target: Target, result: _core.CallResult, pool: PreparedPool) -> Outcome[Any]:
    """What was seen from outside."""
    outcome: Outcome[Any] = result.as_outcome(Outcome, Usage, pool.enforcement)
    if result.network:
        from hutch._calls.network_records import records

        outcome.network = records(result.network)
    return outcome


def decoded(result: _core.CallResult, target: Target, arguments: Any) -> Any:
    """The value. Classes that only the arguments name are looked for when one is missing."""
    payload = result.payload
    if payload is None:
        raise SerializationError("the reply holds no result", path="result")
    known = target.named_types
    allowed = int(target.options.result_mb * (1 << 20))
    try:
        return _core.decode(payload, payload.body_size, known, allowed)
    except _core.DecodeError as error:
        if type(error.__cause__).__name__ != "UnknownClass":
            raise not_decoded(error) from None
        more = types.named_types(target.annotation, [arguments[0], arguments[1]])
        if more.keys() <= known.keys():
            raise not_decoded(error) from None
    try:
        return _core.decode(payload, payload.body_size, more, allowed)
    except _core.DecodeError as error:
        raise not_decoded(error) from None


def not_decoded(error: _core.DecodeError) -> SerializationError:
    hint = "return plain data; a class of your own must be named by the return annotation"
    if "too much memory" in str(error):
        hint = (
            "return columns (lists of one type, arrays, bytes or a frame) instead of many small "
            "dicts and tuples, or raise result_mb: the values may take twice that"
        )
    return SerializationError(
        f"the result cannot be decoded: {error}",
        hint=hint,
        path=str(getattr(error, "path", "result")),
        type_name=getattr(error.__cause__, "type_name", ""),
    )


def not_data(outcome: Outcome[Any], error: SerializationError) -> Outcome[Any]:
    """Makes it the Outcome of a function that raised `error`: its result cannot be decoded, or does
    not match its annotation (then `value` is set all the same).
    """
    outcome.status = "raised"
    outcome.error = ErrorInfo("SerializationError", error.message, "", None, error.hint)
    return outcome.fail(error)


def raised(
    outcome: Outcome[Any], fields: dict[str, Any], target: Target | None = None
) -> Outcome[Any]:
    outcome.status = "raised"
    outcome.error = error_info(fields, target)
    if target is not None and target.is_program:
        outcome.exit_code = 1
    return outcome.fail(execution_error(outcome.error))


# The most characters kept of a cell's report of an error. Its own encoder caps each at 64 KiB.
_MOST_OF_TEXT = 65_536
_MOST_OF_TRACEBACK = 262_144
_MOST_OF_NAME = 1_000
_MOST_LINES = 1 << 31


def error_info(fields: dict[str, Any], target: Target | None = None, limit: str = "") -> ErrorInfo:
    """Reads an error map of a cell, every field of which may be anything. `limit`: the one hit."""
    kind = _str(fields, "type", _MOST_OF_NAME) or "Exception"
    message = _str(fields, "message")
    of_session = target is not None and target.is_session
    traceback = _str(fields, "traceback", _MOST_OF_TRACEBACK)
    options = None if target is None else target.options
    has_network = options is not None and bool(options.allow_network or options.secrets)
    line, bases = fields.get("line"), fields.get("bases")
    return ErrorInfo(
        kind,
        message,
        traceback,
        line if type(line) is int and 0 <= line < _MOST_LINES else None,
        _str(fields, "hint")
        or hint_for(
            kind,
            message,
            traceback,
            has_network=has_network,
            limit=limit,
            of_session=of_session,
            near=_texts(fields.get("near")),
            lost=() if target is None else target.lost,
        ),
        builtin_names(bases),
    )


def _texts(value: Any) -> list[str]:
    if type(value) is not list:
        return []
    return [one for one in value[:MOST_NEAR] if type(one) is str]


def _str(fields: dict[str, Any], name: str, most: int = _MOST_OF_TEXT) -> str:
    value = fields.get(name)
    if type(value) is not str:
        return ""
    if len(value) <= most:
        return value
    if name == "traceback":
        return cut_in_middle(value, most)  # the end says what was raised
    return f"{value[:most]}\n… ({len(value) - most:,} more characters left out) …\n"


def _error_map(result: _core.CallResult) -> dict[str, Any]:
    if result.payload is not None:
        try:
            fields = _core.decode(result.payload, result.payload.body_size, {})
        except _core.DecodeError:
            fields = None
        if type(fields) is dict:
            return fields
    return {"type": "Exception", "message": "(the cell's report of it cannot be read)"}


def limited(
    target: Target,
    result: _core.CallResult,
    outcome: Outcome[Any],
    no_files: bool | None = None,
) -> Outcome[Any]:
    """`no_files`: whether a disk limit is that of the number of files; None: as was reported."""
    limit, options, used = result.limit, target.options, result.usage
    place = ""
    if no_files is None:
        no_files = limit == "disk"  # if the warden ended it; the kernel refuses anything else
    if result.payload is not None and limit == "result":
        place = _str(_error_map(result), "path", _MOST_OF_NAME)
    elif result.payload is not None:
        fields = _error_map(result)
        no_files = no_files and fields.get("no_files") is True
        outcome.error = error_info(fields, target, limit)
    kind: type[LimitExceeded] = LimitExceeded
    amount: float | None = None
    keyword = LIMITS.get(limit, "")
    unit = FIELDS[keyword].unit if keyword else ""
    allowed = getattr(options, keyword) if keyword else None
    if limit == "time":
        kind, amount = SandboxTimeoutError, used.get("wall_sec")
    elif limit == "cpu_time":
        amount = used.get("cpu_sec")
    elif limit == "memory":
        kind, amount = SandboxMemoryError, _mib(used.get("peak_memory_bytes"))
    elif limit == "pids":
        amount = max(used.get("pids_peak") or 0, options.pids)
    elif limit == "disk" and not no_files:
        amount = options.disk_mb  # what was refused came on top
    elif limit == "result":
        amount = _mib(result.result_size)
    if limit in ("time", "cpu_time") and allowed is not None:
        amount = max(amount or 0.0, allowed)  # the limit was measured on another clock
    suggested: dict[str, Any] = {}
    if allowed is not None:
        suggested[keyword] = _doubled(allowed, amount if limit == "result" else None)
        if no_files:
            suggested = _for_more_files(allowed)
        elif limit == "disk" and suggested[keyword] > options.memory_mb:
            suggested["memory_mb"] = suggested[keyword]
    try:
        options.changed(suggested)
    except ValueError:
        suggested = {}  # there is no more to be had
    outcome.usage.suggested = suggested
    name = limit.replace("_", " ")
    message = f"{target.name} hit its {name} limit"
    if no_files:
        message += f": {_files(options.disk_mb):,} files allowed with disk_mb={allowed:g}"
    elif allowed is not None:
        message += f": {keyword}={allowed:g} allowed ({unit})"
        if limit == "memory" and amount is not None and amount < 0.9 * allowed:
            message += f", {amount:.3g} in use when it asked for more than was left"
        elif amount is not None:
            message += f", {amount:.3g} used"
    if place:
        message += f", by {place}"
    advice = ", ".join(f"{key}={value:g}" for key, value in suggested.items())
    advice = target.with_keywords(advice) if advice else ""
    hint = f"raise it, for instance {advice}" if advice else ""
    if no_files:
        more = f"raise disk_mb, for instance {advice}, or " if advice else ""
        hint = f"{more}make fewer files: there are 128 for each MiB of disk_mb, 65,536 at most"
    if place and not hint:
        hint = "return less: a value that is referred to many times is returned as many times"
    return outcome.fail(kind(message, hint=hint, limit=limit, allowed=allowed, used=amount))


_FILES_OF_A_MIB, _LEAST_FILES, _MOST_FILES = 128, 1024, 65536  # as images/worker/slot.cc has them


def _files(disk_mb: float) -> int:
    """How many a scratch of that size can hold."""
    return max(_LEAST_FILES, min(int(disk_mb * _FILES_OF_A_MIB), _MOST_FILES))


def _for_more_files(disk_mb: float) -> dict[str, Any]:
    if _files(disk_mb) == _MOST_FILES:
        return {}
    least, most = _LEAST_FILES // _FILES_OF_A_MIB, _MOST_FILES // _FILES_OF_A_MIB
    return {"disk_mb": min(max(int(2 * disk_mb), 2 * least), most)}


def _mib(size: Any) -> float | None:
    return size / _MIB if size else None


def _doubled(allowed: float, needed: float | None) -> float:
    twice = 2 * allowed
    if needed is not None and needed > twice:
        twice = float(int(needed * 1.25) + 1)
    return int(twice) if twice == int(twice) else twice


_SIGNAL_HINTS = {
    "SIGSEGV": "native code crashed; a newer version of the library may not",
    "SIGBUS": "native code crashed, or a mapped file was cut short",
    "SIGABRT": "native code gave up; stderr may say why",
    "SIGSYS": "it made a system call that no sandboxed code may make",
    "SIGILL": "a library was built for another processor",
}


_INSTEAD_OF_EXIT = (
    "return from the function instead of ending the process",
    "it ended its interpreter, whose names are lost (files stay): `return` ends the code alone",
)


def _died(target: Target, outcome: Outcome[Any], detail: str) -> SandboxDied:
    if detail:
        message = f"{target.name} was killed: {detail}"
        hint = "the socket of a call is the sandbox's own: leave descriptor 3 alone"
    elif outcome.signal is not None:
        import signal

        try:
            name = signal.Signals(outcome.signal).name
        except ValueError:
            name = f"signal {outcome.signal}"
        message, hint = f"{target.name} was killed by {name}", _SIGNAL_HINTS.get(name, "")
    else:
        message = f"{target.name} ended its process with exit code {outcome.exit_code}"
        hint = _INSTEAD_OF_EXIT[target.is_session]
        if target.is_program:
            hint = target.hint_of_exit(outcome.stderr)
    return SandboxDied(message, hint=hint, signal=outcome.signal, exit_code=outcome.exit_code)
