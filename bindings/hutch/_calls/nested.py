# SPDX-License-Identifier: Apache-2.0
"""What became of a call within another one, whose reply is a message of the outer one's code: it
may be anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hutch._calls.annotation import check
from hutch._calls.outcomes import conclude, decoded, not_data
from hutch._calls.printed import Printed
from hutch._calls.target import Target
from hutch._errors import SerializationError
from hutch._outcome import Outcome

_STATUSES = ("returned", "raised", "unencodable")


class _Payload(bytes):
    body_size: int


class Reply:
    """In the place of a CallResult."""

    def __init__(self, content: list[Any]) -> None:
        self.status = "raised"
        self.payload: _Payload | None = None
        if len(content) != 3:
            return
        status, data, body_size = content
        if (
            type(status) is not str
            or status not in _STATUSES
            or type(data) is not bytes
            or type(body_size) is not int
        ):
            return
        if 0 <= body_size <= len(data):
            self.status = status
            self.payload = _Payload(data)
            self.payload.body_size = body_size


def outcome_of(
    target: Target,
    reply: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    printed: Printed,
    display: list[dict[str, Any]],
) -> Outcome[Any]:
    outcome: Outcome[Any] = Outcome(
        "returned",
        stdout=printed.text(0),
        stderr=printed.text(1),
        stdout_size=printed.sizes[0],
        stderr_size=printed.sizes[1],
        stdout_truncated=printed.truncated(0),
        stderr_truncated=printed.truncated(1),
    )
    outcome.display = display
    if reply.status != "returned":
        return conclude(target, reply, outcome)
    try:
        outcome.value = decoded(reply, target, (args, kwargs))
        check(outcome.value, target)
    except SerializationError as error:
        return not_data(outcome, error)
    return outcome
