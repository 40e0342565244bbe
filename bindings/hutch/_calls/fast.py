# SPDX-License-Identifier: Apache-2.0
"""The fast path of a warm, waited-for call: made after a first one, see bindings/fast_call.h.

A target keeps the FastState that _core.FastCall asks for. Safe on any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from hutch import _core
from hutch._calls import outcomes
from hutch._calls.annotation import check
from hutch._calls.echo import Streams
from hutch._calls.target import FastState, Target
from hutch._carry.survey import MISSING
from hutch._connect import connection as connections
from hutch._connect.connection import SAFE_TO_REPEAT, PoolRequest, PreparedPool
from hutch._errors import SerializationError
from hutch._outcome import Outcome, Usage

_MIB = 1 << 20


def make(
    target: Target,
    code: _core.Function,
    meta: bytes,
    pool: PreparedPool,
    *,
    as_outcome: bool,
    again: Callable[..., Any],
) -> None:
    """Lets the target's next call take the fast path, where it may. `as_outcome`: its calls that
    give an Outcome, else those that give the value. `again`: makes a call the other way.
    """
    if as_outcome:
        target.fast_outcome, target.fast_outcome_key = None, (code, pool)
        target.fast_outcome = _state(target, code, meta, pool, as_outcome, again)
    else:
        target.fast_value, target.fast_value_key = None, (code, pool)
        target.fast_value = _state(target, code, meta, pool, as_outcome, again)


def _state(
    target: Target,
    code: _core.Function,
    meta: bytes,
    pool: PreparedPool,
    as_outcome: bool,
    again: Callable[..., Any],
) -> FastState | None:
    """None: each call has to go the other way."""
    watch = target.watch(code)
    connection = connections.ready()
    # A pool of another request depends on files, which are looked at for each call.
    if watch is None or connection is None or type(target.request) is not PoolRequest:
        return None
    name = target.request.name
    if connection.pools.get(name) is not pool or target.options.key is not None:
        return None
    if target.options.tools:
        return None
    annotation = target.annotation
    if annotation is Any or target.is_program:
        annotation = None
    elif type(annotation) is not type:
        annotation = ...  # no value has this type, so each is checked
    options = target.options
    call = _core.FastCall(
        hooks=_hooks(as_outcome, again),
        pool=_core.KnownPool(connection, connection.pools, name, pool),
        client=connection.client,
        key=pool.key,
        meta=meta,
        function=code,
        terms=target.terms,
        result_bytes=int(options.result_mb * _MIB),
        shows=_is_shown(target, as_outcome)
        or options.on_stdout is not None
        or options.on_stderr is not None,
        as_outcome=_core.AsOutcome(Outcome, Usage, pool.enforcement, target.is_program)
        if as_outcome
        else None,
    )
    types = {} if target.is_program else target.named_types
    return FastState(call, *watch, MISSING, types, annotation)


@lru_cache(None)
def _hooks(as_outcome: bool, again: Callable[..., Any]) -> _core.FastHooks:
    return _core.FastHooks(
        home=vars(connections),
        streams=lambda target: Streams(target.options, _is_shown(target, as_outcome)),
        check=check,
        conclude=outcomes.outcome_of if as_outcome else outcomes.concluded,
        failed=partial(_failed, again),
        not_as_said=SerializationError,
    )


def _is_shown(target: Target, as_outcome: bool) -> bool:
    return target.options.echo is True if as_outcome else target.options.echo is not False


def _failed(
    again: Callable[..., Any],
    target: Target,
    error: _core.Error,
    begun: float,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    code = error.code
    connection = connections.ready()
    if code in ("unavailable", "protocol") and connection is not None:
        connections.drop(connection)
    if code in SAFE_TO_REPEAT and not error.may_have_run:
        return again(target, args, kwargs)
    raise outcomes.failure(error, target, begun) from None
