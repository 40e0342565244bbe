# SPDX-License-Identifier: Apache-2.0
"""What the proxy recorded of a call's network, and what it means for the call's Outcome.

Values; safe on any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hutch._errors import NetworkDenied, SandboxStartupError
from hutch._outcome import NetworkRecord, Outcome


def records(rows: Sequence[tuple[Any, ...]]) -> list[NetworkRecord]:
    names = "host port allowed reason suggestion bytes_sent bytes_received count lost".split()
    found = [NetworkRecord(zip(names, record)) for record in rows]
    for record in found:
        record["bytes"] = record["bytes_sent"] + record["bytes_received"]
    return found


def deny(outcome: Outcome[Any], what: str) -> Outcome[Any]:
    """Makes a failed call that was refused a host a NetworkDenied. Only the proxy's record decides
    this, never the cell's report.
    """
    if outcome.network_lost:
        return _lost(outcome, what)
    refused = [record for record in outcome.network if not record["allowed"]]
    failed = outcome.status == "raised" or outcome.limit == "time"
    if not refused or not failed:
        return outcome
    first = refused[0]
    place = f"{first['host']}:{first['port']}" if first["port"] else first["host"] or "the network"
    patterns = list(dict.fromkeys(r["suggestion"] for r in refused if r["suggestion"]))
    message = f"{what} was refused {place}"
    if first["reason"]:
        message += f": {first['reason']}"
    if len(refused) > 1:
        message += f" (and {len(refused) - 1} more: see outcome.network)"
    hint = ""
    if patterns:
        hint = f"allow_network={patterns!r} would allow it"
    error = NetworkDenied(
        message, hint=hint, host=first["host"], port=first["port"], pattern=first["suggestion"]
    )
    error.__cause__ = outcome.exception()
    if outcome.error is not None:
        outcome.error.hint = hint or outcome.error.hint  # for who shows it to a model
    return outcome.fail(error)


def _lost(outcome: Outcome[Any], what: str) -> Outcome[Any]:
    """Makes a call that failed after its network did a fault, since that may be why. A limit on
    memory, processes or disk stays what it is.
    """
    failed = outcome.status in ("raised", "died") or outcome.limit in ("time", "cpu_time")
    if not failed:
        return outcome
    error = SandboxStartupError(
        f"{what} lost its network while it ran, and then failed: {outcome.network_lost}",
        hint="that may be why it failed; it has run: repeat it only if that does no harm",
        may_have_run=True,
    )
    error.__cause__ = outcome.exception()
    outcome.status, outcome.limit = "fault", None
    return outcome.fail(error)
