# SPDX-License-Identifier: Apache-2.0
"""What `allow_network` and `secrets` take, and what a record of the proxy makes of an Outcome."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import hutch
from hutch import NetworkDenied, Policy, SandboxError, SandboxStartupError, Secret
from hutch._calls.network_records import deny, records
from hutch._options.network import revealed
from hutch._options.options import NORMAL
from hutch._outcome import ErrorInfo, Outcome


def allowed(value: Any) -> tuple[str, ...]:
    return NORMAL.changed({"allow_network": value}).allow_network


def test_entries_are_kept_in_normal_form_sorted_and_once() -> None:
    assert allowed(["B.example.org.", "a.example", "b.example.org", "a.example:8080"]) == (
        "a.example",
        "a.example:8080",
        "b.example.org",
    )
    assert allowed(["10.1.2.3/8", "*", "*.x.example:8443"]) == (
        "*",
        "*.x.example:8443",
        "10.0.0.0/8",
    )


def test_text_is_one_entry_and_nothing_is_none() -> None:
    assert allowed("api.example.org") == ("api.example.org",)
    for nothing in ((), [], None, set()):
        assert allowed(nothing) == ()


def test_names_of_other_scripts_are_compared_as_idna_writes_them() -> None:
    assert allowed("bücher.example") == allowed("xn--bcher-kva.example") != ()
    assert allowed("*.BÜCHER.example:444") == ("*.xn--bcher-kva.example:444",)


@pytest.mark.parametrize(
    "entry",
    [
        "https://example.org",
        "example.org/path",
        "user@example.org",
        "example.org:0",
        "example.org:99999",
        "a b",
        "",
        "..",
        "*x.org",
        "10.0.0.0/99",
        "exam\0ple.org",
        "ex%61mple.org",
        "a." + "é" * 80 + ".org",
    ],
)
def test_an_entry_that_is_no_host_is_refused_by_an_error_that_names_it(entry: str) -> None:
    with pytest.raises(ValueError, match="allow_network=") as caught:
        allowed(["fine.example", entry])
    assert repr(entry)[:20] in str(caught.value)
    assert "host:port" in str(caught.value)


def test_the_forms_that_an_error_names_are_those_of_the_page_and_are_taken() -> None:
    with pytest.raises(ValueError) as caught:
        allowed("a b")
    said = str(caught.value).rpartition("give ")[2].removesuffix(", or *").split(", ")
    named = {text.rpartition(" ")[2] for text in said} | {"*"}
    assert {"host", "host:port", "*.host", "*.host:port", "10.1.0.0/16"} < named
    page = (Path(__file__).parents[1] / "docs" / "network.md").read_text()
    table = page[page.index("| entry | opens |") :].partition("\n\n")[0]
    shown = re.findall(r'`"([^"]+)"`', table)
    for entry in [*shown, *(form.replace("port", "443") for form in named)]:
        assert allowed(entry), entry
    hosts = (re.sub(r"[a-z]+(\.[a-z]+)+", "host", entry) for entry in shown)
    shapes = {re.sub(r"(?<=host):\d+$", ":port", text) for text in hosts}
    assert named <= shapes


def test_what_is_no_text_is_a_type_error() -> None:
    for bad in ([1], b"a.example", {"a.example": 1}, [None]):
        with pytest.raises(TypeError, match="allow_network"):
            allowed(bad)


def test_a_shared_cell_has_no_network() -> None:
    with pytest.raises(ValueError, match='isolation="shared"'):
        NORMAL.changed({"allow_network": "a.example", "isolation": "shared"})


def secrets(value: Any) -> Any:
    return NORMAL.changed({"secrets": value}).secrets


def test_a_secret_is_revealed_to_nobody_but_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "t0ps3cret")
    given = Secret.from_env("A_TOKEN", prefix="Bearer ", paths="/v1", methods=["get"])
    kept = secrets({"API.example.org": {"Authorization": given}})
    assert revealed(kept) == [
        {
            "host": "api.example.org",
            "header": "Authorization",
            "value": "Bearer t0ps3cret",
            "paths": ["/v1"],
            "methods": ["GET"],
        }
    ]
    for secret in (given, Secret("t0ps3cret")):
        for shown in (repr(secret), str(secret), f"{secret}", repr(kept), repr({1: secret})):
            assert "t0ps3cret" not in shown


def test_a_secret_is_carried_nowhere() -> None:
    secret = Secret("t0ps3cret")
    for carry in (pickle.dumps, cloudpickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be sent"):
            carry(secret)


def test_a_function_that_captures_a_secret_is_refused() -> None:
    secret = Secret("t0ps3cret")

    @hutch.sandbox
    def f() -> str:
        return repr(secret)

    with pytest.raises(TypeError) as caught:
        f()
    assert "t0ps3cret" not in str(caught.value)


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    kept = secrets({"a.example": {"X": Secret.from_env("NO_SUCH_TOKEN")}})
    with pytest.raises(ValueError, match="NO_SUCH_TOKEN"):
        revealed(kept)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ({"*.example.org": {"X": Secret("x")}}, ValueError, "full hostnames"),
        ({"a.example:443": {"X": Secret("x")}}, ValueError, "full hostnames"),
        ({"10.0.0.1": {"X": Secret("x")}}, ValueError, "full hostnames"),
        ({"a.example": {"X": "plain"}}, TypeError, "hutch.Secret"),
        ({"a.example": Secret("x")}, TypeError, "host"),
        (["a.example"], TypeError, "host"),
    ],
)
def test_bad_secrets_are_refused(value: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        secrets(value)


def test_a_path_of_a_secret_begins_with_a_slash() -> None:
    with pytest.raises(ValueError, match="begins with"):
        Secret("x", paths=["v1"])


def test_a_policys_toml_names_the_variable_and_never_the_value(tmp_path: Path) -> None:
    policy = Policy(
        allow_network=["a.example", "*.b.example:8443"],
        secrets={"a.example": {"X-Key": Secret.from_env("A_TOKEN", "p ", paths=["/v1"])}},
    )
    path = tmp_path / "policy.toml"
    path.write_text(policy.to_toml())
    assert Policy.from_toml(path) == policy
    with pytest.raises(ValueError, match="not written down"):
        policy.replace(secrets={"a.example": {"X": Secret("t0ps3cret")}}).to_toml()
    path.write_text('[secrets."a.example"]\nX = {value = "x"}\n')
    with pytest.raises(ValueError, match="value"):
        Policy.from_toml(path)


REFUSED = ("evil.example", 443, False, "not in allow_network", "evil.example:443", 0, 0, 2)
REACHED = ("a.example", 443, True, "", "", 10, 20, 1)


def failed(told: list[Any], status: Any = "raised", limit: str | None = None) -> Outcome[Any]:
    outcome: Outcome[Any] = Outcome(status, error=ErrorInfo("OSError", "no"), limit=limit)
    outcome.network = records(told)
    return deny(outcome, "f")


def test_a_call_that_failed_and_was_refused_a_host_is_denied_by_name() -> None:
    outcome = failed([REACHED, REFUSED])
    with pytest.raises(NetworkDenied, match=r"evil\.example:443") as caught:
        outcome.unwrap()
    error = caught.value
    assert (error.host, error.port, error.pattern) == ("evil.example", 443, "evil.example:443")
    assert "allow_network=['evil.example:443']" in error.hint
    assert error.outcome is outcome
    assert outcome.error is not None and outcome.error.type == "OSError"
    again = pickle.loads(pickle.dumps(error))
    assert (again.host, str(again)) == (error.host, str(error))
    assert isinstance(failed([REFUSED], "limit", "time").exception(), NetworkDenied)


def test_without_a_refusal_in_the_record_nothing_is_denied() -> None:
    assert not isinstance(failed([REACHED]).exception(), NetworkDenied)
    assert not isinstance(failed([REFUSED], "limit", "memory").exception(), NetworkDenied)
    assert not isinstance(failed([REFUSED], "died").exception(), NetworkDenied)


LOST = ("", 0, False, "the egress process ended", "", 0, 0, 1, True)


@pytest.mark.parametrize(
    ("status", "limit"),
    [("raised", None), ("died", None), ("limit", "time"), ("limit", "cpu_time")],
)
def test_a_call_that_failed_without_its_network_is_a_fault(status: Any, limit: str | None) -> None:
    outcome = failed([REACHED, REFUSED, LOST], status, limit)
    assert (outcome.status, outcome.limit, outcome.safe_to_retry) == ("fault", None, False)
    assert outcome.network_lost == "the egress process ended"
    error = outcome.exception()
    assert isinstance(error, SandboxStartupError) and error.may_have_run
    assert "the egress process ended" in str(error)
    assert isinstance(error.__cause__, SandboxError)
    assert outcome.error is not None and outcome.error.type == "OSError"
    again = pickle.loads(pickle.dumps(outcome))
    assert (again.status, again.network_lost) == ("fault", outcome.network_lost)
    assert outcome.to_dict()["network_lost"] == outcome.network_lost
    assert "network lost" in repr(outcome)


def test_what_a_lost_network_does_not_explain_stays_what_it_is() -> None:
    memory = failed([LOST], "limit", "memory")
    assert (memory.status, memory.limit) == ("limit", "memory")
    assert memory.network_lost == "the egress process ended"
    assert failed([REACHED]).network_lost == failed([REFUSED]).network_lost == ""


def test_records_are_data_with_names() -> None:
    record = records([REACHED])[0]
    assert (record.host, record["port"], record.allowed, record.bytes) == (
        "a.example",
        443,
        True,
        30,
    )
    told = failed([REACHED]).to_dict()["network"]
    assert told[0]["bytes_received"] == 20 and type(told[0]) is dict
