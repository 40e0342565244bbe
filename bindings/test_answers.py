# SPDX-License-Identifier: Apache-2.0
"""Whatever a server answers, it is an Outcome or the one error of an answer that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings as how, strategies as st

from hutch import AgentUnavailable, Outcome, SandboxError, SandboxStartupError
from hutch._outcome import ErrorInfo, NetworkRecord
from hutch._remote import wire
from hutch._remote.answers import outcome_of

FEW = how(derandomize=True, max_examples=300, deadline=None)


def whole() -> dict[str, Any]:
    """An answer that has something of everything."""
    outcome = Outcome[Any]("raised")
    outcome.error = ErrorInfo("KeyError", "x", "Traceback", 3, "", ("KeyError", "LookupError"))
    record = dict.fromkeys(wire._RECORD, 0)
    outcome.network = [NetworkRecord({**record, "host": "a", "reason": "", "suggestion": "",
                                      "allowed": True, "lost": False})]  # fmt: skip
    outcome.fail(SandboxError("x"))
    found: dict[str, Any] = json.loads(json.dumps(wire.to_wire(outcome)))
    return {**found, "failure": failure("SandboxBusy", queued=1)}


def failure(type: str, **details: Any) -> dict[str, Any]:
    return {"type": type, "message": "m", "hint": "", **details}


def places(found: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if before:
        yield before
    inner = found.items() if type(found) is dict else enumerate(found)
    for key, value in inner if type(found) in (dict, list) else ():
        if type(value) in (dict, list):
            yield from places(value, (*before, key))
        else:
            yield (*before, key)


HOSTILE = [None, True, -1, 10**400, -(10**400), 1e308, "", "x" * 1000, "\ud800", "SandboxDied",
           [], [[]], {}, {"a": []}, [{}] * 3, ["KeyError"] * 100]  # fmt: skip


@FEW
@given(
    st.sampled_from(list(places(whole()))),
    st.sampled_from(HOSTILE),
    st.sampled_from(["returned", "raised", "limit", "died", "fault"]),
)
def test_an_answer_is_an_outcome_or_cannot_be_read(
    place: tuple[Any, ...], value: Any, status: str
) -> None:
    found = {**whole(), "status": status}
    if status != "fault":
        found["failure"] = failure("SerializationError", path="p", type_name="t")
    inner: Any = found
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    try:
        outcome = outcome_of(200, json.dumps(found).encode())
    except SandboxError as error:
        if isinstance(error, AgentUnavailable) and "of status 200, cannot be read: " in str(error):
            assert error.may_have_run
            return
        assert found["status"] == "fault" and error.outcome is not None
        outcome = error.outcome
    assert str(outcome) and repr(outcome) and json.dumps(outcome.to_dict())
    if not outcome.ok:
        assert isinstance(outcome.exception(), SandboxError)
        assert type(str(outcome.exception())) is str


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"value": [%s]}' % b",".join([b"[]"] * 1_000_001), "holds more than 1000000 values"),
        (b'{"value": %s}' % (b'{"":' * 600_000), "holds more than|is not JSON"),
        (b"[" * 100_000, "is nested too deep"),
        (b'{"value": %s%s}' % (b"[" * 100, b"]" * 100), "nested more than 32 deep"),
        (b'{"value": %s}' % (b"1" * 100_000), "is not JSON"),
        (b'{"value": NaN}', "NaN is not a number"),
        (b'{"status": "returned", "status": "died"}', "there twice"),
        (b'{"status": "\xff"}', "is not UTF-8"),
        ('{"status": "returned"}'.encode("utf-16"), "is not UTF-8"),
        (b"[]", "is not a JSON object"),
        (b"", "is not JSON"),
    ],
)
def test_what_would_cost_more_than_it_is_long_cannot_be_read(body: bytes, why: str) -> None:
    with pytest.raises(AgentUnavailable, match=f"cannot be read: it .*({why})") as error:
        outcome_of(200, body)
    assert error.value.may_have_run
    with pytest.raises(ValueError, match=f"refuses the request: .*({why})"):
        outcome_of(400, body)


def test_what_a_program_printed_counts_as_one_value() -> None:
    """The harmless counterpart."""
    printed = '[{},"\\' * 2_000_000
    found = wire.to_wire(Outcome[Any]("returned", stdout=printed))
    assert outcome_of(200, json.dumps(found).encode()).stdout == printed


ENDS = {"raised": "SerializationError", "limit": "SandboxTimeoutError", "died": "SandboxDied"}


@pytest.mark.parametrize("status", [200, 500, 503])
def test_a_fault_is_never_an_answer(status: int) -> None:
    for kind in ("SandboxBusy", "AgentUnavailable", "DependencyInstallError"):
        found = {**whole(), "status": "fault", "failure": failure(kind)}
        with pytest.raises(SandboxError, match="m") as error:
            outcome_of(status, json.dumps(found).encode())
        assert type(error.value).__name__ == kind and error.value.outcome is not None


@pytest.mark.parametrize("status", [500, 503])
def test_an_answer_is_never_a_fault_that_did_not_run(status: int) -> None:
    for ended, kind in {**ENDS, "returned": "SandboxError"}.items():
        found = {**whole(), "status": ended, "failure": failure(kind)}
        with pytest.raises(AgentUnavailable, match="what a program answered") as error:
            outcome_of(status, json.dumps(found).encode())
        assert error.value.may_have_run
        assert outcome_of(200, json.dumps(found).encode()).status == ended


def test_what_a_program_ends_by_is_no_fault() -> None:
    for ended in ENDS:
        found = {**whole(), "status": ended, "failure": failure("SandboxBusy")}
        with pytest.raises(AgentUnavailable, match="has no SandboxBusy"):
            outcome_of(200, json.dumps(found).encode())


@pytest.mark.parametrize("status", [100, 204, 302, 399])
def test_a_status_that_refuses_nothing_may_have_run(status: int) -> None:
    with pytest.raises(AgentUnavailable, match="cannot be read") as error:
        outcome_of(status, b'{"message": "moved"}')
    assert error.value.may_have_run


def test_the_text_of_a_refusal_is_short_and_harmless_to_a_terminal() -> None:
    with pytest.raises(ValueError) as error:
        outcome_of(400, json.dumps({"message": "\x1b[2J" + "x" * 10_000}).encode())
    assert "\x1b" not in str(error.value) and len(str(error.value)) < 2100


OWN = {"status": "SandboxError", "message": "no room"}


@pytest.mark.parametrize(
    ("status", "body", "ran"),
    [
        (429, OWN, False),
        (503, OWN, False),
        (504, OWN, False),
        (500, OWN, True),
        (502, OWN, True),
        (429, b"<html>slow down</html>", False),
        (503, b"upstream connect error or disconnect/reset before headers", True),
        (504, b"<html>504 Gateway Time-out</html>", True),
        (504, {"message": "The upstream server is timing out"}, True),
        (502, b"", True),
        (599, b"\xff", True),
    ],
)
def test_what_a_proxy_says_may_have_run(status: int, body: Any, ran: bool) -> None:
    """It may have passed the request on before it gave up."""
    content = body if type(body) is bytes else json.dumps(body).encode()
    with pytest.raises(SandboxStartupError) as error:
        outcome_of(status, content)
    assert error.value.may_have_run is ran


@pytest.mark.parametrize("status", [200, 500, 503])
@pytest.mark.parametrize("said", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("kind", ["SandboxBusy", "AgentUnavailable", "SandboxStartupError"])
def test_that_a_fault_did_not_run_is_believed_where_all_of_the_answer_says_so(
    status: int, said: tuple[bool, bool], kind: str
) -> None:
    found = {**whole(), "status": "fault", "may_have_run": said[0]}
    found["failure"] = failure(kind, may_have_run=said[1])
    with pytest.raises(SandboxStartupError) as error:
        outcome_of(status, json.dumps(found).encode())
    assert error.value.may_have_run is (status != 503 or any(said))
    if status != 200:
        found = {"status": "SandboxError", "failure": found["failure"]}
        with pytest.raises(SandboxStartupError) as error:
            outcome_of(status, json.dumps(found).encode())
        assert error.value.may_have_run is (status != 503 or said[1])
