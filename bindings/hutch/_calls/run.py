# SPDX-License-Identifier: Apache-2.0
"""One call, waited for: its bytes are made, its pool is prepared, it is sent and answered.

outcomes.py says what the reply means. A failure of Hutch itself is raised as an exception whose
`.outcome` has the status "fault". Blocks; safe on any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hutch import _core
from hutch._calls.annotation import check
from hutch._calls.echo import Streams, streams_of
from hutch._calls.outcomes import concluded, decoded, outcome_of
from hutch._calls.prepared_call import PreparedCall
from hutch._calls.target import Target
from hutch._calls.times import Times
from hutch._connect.connection import Connection, PreparedPool, on_pool
from hutch._errors import SandboxError, SerializationError
from hutch._outcome import Outcome

if TYPE_CHECKING:
    from hutch._calls.dialogue import Dialogue
    from hutch._calls.stream import Stream


def call(
    target: Target,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    echo: bool = False,
    cancel: _core.Cancel | None = None,
    asked: float | None = None,
    wait_for: Callable[[Any], Any] | None = None,
    stream: Stream | None = None,
    streams: Streams | None = None,
) -> Outcome[Any]:
    """`echo`: whether it shows what is printed, where the options do not say. `asked`: when the
    caller asked for it, by time.monotonic, where that was before now: it has been in a queue.
    `wait_for`: what runs coroutines of async tools. `stream`: gets what a generator yields.
    `streams`: get what is printed, in place of those that the options ask for.
    """
    if target.options.key is not None:
        from hutch._calls import idempotency

        return idempotency.once(
            target.options.key,
            target,
            cancel,
            lambda: _call(
                target, args, kwargs or {}, echo, cancel, asked, wait_for, stream, streams
            ),
        )
    return _call(target, args, kwargs or {}, echo, cancel, asked, wait_for, stream, streams)


def value(target: Target, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the function returned, or raises what `Outcome.unwrap` would. Shows what it prints. An
    Outcome is made only where something went wrong.
    """
    if target.options.key is not None:
        return call(target, args, kwargs, echo=True).unwrap()
    begun = time.monotonic()
    code = target.code()
    arguments, buffers = target.pickle(args, kwargs)
    meta = target.meta(code)
    result, pool = send(target, code, arguments, buffers, meta, echo=True, begun=begun)
    if result.status == "returned":
        try:
            returned = decoded(result, target, (args, kwargs))
            check(returned, target)
        except SerializationError:
            pass
        else:
            if target.fast_value_key != (code, pool):
                from hutch._calls import fast

                fast.make(target, code, meta, pool, as_outcome=False, again=value)
            return returned
    return concluded(target, result, pool, args, kwargs)


def prepare(
    target: Target,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    echo: bool,
    asked: float,
) -> PreparedCall:
    """The same call, to be in flight without a thread. `asked`: since when its time counts."""
    code = target.code()
    pickled = target.pickle(args, kwargs)
    return PreparedCall(
        target,
        code,
        target.meta(code),
        pickled,
        echo,
        asked,
        lambda result, pool: outcome_of(target, result, pool, args, kwargs),
    )


def _call(
    target: Target,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    echo: bool,
    cancel: _core.Cancel | None,
    asked: float | None,
    wait_for: Callable[[Any], Any] | None,
    stream: Stream | None,
    streams: Streams | None,
) -> Outcome[Any]:
    begun = time.monotonic()
    code = target.code()
    arguments, buffers = target.pickle(args, kwargs)
    sent = target.meta(code)
    result, pool = send(
        target,
        code,
        arguments,
        buffers,
        sent,
        echo=echo,
        begun=begun,
        cancel=cancel,
        asked=asked,
        wait_for=wait_for,
        stream=stream,
        streams=streams,
    )
    outcome = outcome_of(target, result, pool, args, kwargs)
    # The fast path waits for a call, and shows nothing.
    if (
        not echo
        and streams is None
        and cancel is None
        and asked is None
        and outcome.ok
        and target.fast_outcome_key != (code, pool)
    ):
        from hutch._calls import fast

        fast.make(target, code, sent, pool, as_outcome=True, again=call)
    return outcome


def send(
    target: Target,
    code: _core.Function,
    arguments: bytes,
    buffers: Sequence[Any],
    meta: bytes,
    *,
    echo: bool,
    begun: float,
    cancel: _core.Cancel | None = None,
    asked: float | None = None,
    wait_for: Callable[[Any], Any] | None = None,
    stream: Stream | None = None,
    streams: Streams | None = None,
) -> tuple[_core.CallResult, PreparedPool]:
    """`begun`: when the pickling began. The result has all timings but "receive"."""
    options = target.options
    if streams is None:
        streams = streams_of(options, echo)
    talk: Dialogue | None = None
    if options.tools or stream is not None:
        from hutch._calls.dialogue import of_call

        talk = of_call(target, wait_for, stream)
    times = Times(begun, asked)

    def work(connection: Connection, pool: PreparedPool) -> tuple[_core.CallResult, PreparedPool]:
        since = times.sending()
        result = connection.client.call(
            pool.key,
            meta,
            code,
            arguments,
            buffers,
            target.terms,
            cancel,
            None if streams is None else streams.feed,
            since,
            None if talk is None else talk.answer,
            stream is not None,
        )
        return times.note(result, pool), pool

    try:
        done = on_pool(target.request, work)
    except SandboxError as error:
        times.note_fault(error)
        raise
    if streams is not None:
        streams.finish()
    if talk is not None and talk.raised is not None:
        raise talk.raised
    return done
