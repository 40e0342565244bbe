"""Outcomes as values: shown, pickled, turned into JSON; and what a traceback explains."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

import hutch
from hutch._outcome import ErrorInfo, Outcome, Usage


def raised(kind: str = "ValueError", message: str = "bad") -> Outcome[Any]:
    error = ErrorInfo(kind, message, f"Traceback\n{kind}: {message}\n", 3, "do better")
    return Outcome("raised", error=error, stdout="out\n", stdout_size=4)


def test_a_value_is_unwrapped_and_a_failure_raised() -> None:
    assert Outcome("returned", 5).unwrap() == 5
    failure = hutch.SandboxDied("gone", signal=9)
    outcome: Outcome[Any] = Outcome("died", signal=9)
    outcome.fail(failure)
    with pytest.raises(hutch.SandboxDied) as caught:
        outcome.unwrap()
    assert caught.value.outcome is outcome


def test_repr_is_one_line_whatever_the_text() -> None:
    assert "\n" not in repr(raised(message="a\nb\nc"))
    assert len(repr(Outcome("returned", "x" * 10_000))) < 200
    assert "limit='time'" in repr(Outcome("limit", limit="time"))
    assert "signal=11" in repr(Outcome("died", signal=11))


def test_str_is_a_report() -> None:
    text = str(raised())
    assert "ValueError: bad" in text and "do better" in text and "out" in text


def test_html_is_escaped() -> None:
    html = raised(message="<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


@pytest.mark.parametrize(
    "value", [None, 1, 2.5, float("nan"), "x", b"y", [1, (2, {3})], {1: object()}, {"a": 1j}]
)
def test_every_outcome_becomes_json(value: Any) -> None:
    told = json.loads(json.dumps(Outcome("returned", value).to_dict(), allow_nan=False))
    assert told["status"] == "returned" and told["ok"] is True
    assert {"usage", "timings", "stdout", "error", "call_id", "may_have_run"} <= told.keys()


def test_an_outcome_is_equal_after_a_pickle() -> None:
    outcome = raised()
    outcome.fail(hutch.SandboxError("bad", hint="h"))
    again = pickle.loads(pickle.dumps(outcome))
    assert again == outcome
    assert again.exception().outcome is again


def test_whether_it_is_safe_to_retry_follows_from_whether_it_may_have_run() -> None:
    assert Outcome[Any]("fault", may_have_run=False).safe_to_retry
    assert not Outcome[Any]("died").safe_to_retry


def test_usage_suggests_nothing_by_default() -> None:
    assert Usage().suggested == {} and Outcome[Any]("returned").usage == Usage()


TRACEBACK = """\
Traceback (most recent call last):
  File "a.py", line 3, in <module>
    f()
  File "a.py", line 7, in f
    import sklearn
ModuleNotFoundError: No module named 'sklearn'
"""


def test_a_traceback_is_explained() -> None:
    info = hutch.explain("noise\n" + TRACEBACK)
    assert (info.type, info.line) == ("ModuleNotFoundError", 7)
    assert info.message == "No module named 'sklearn'"
    assert "scikit-learn" in info.hint


def test_the_last_of_several_tracebacks_counts() -> None:
    text = TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n"
    text += 'Traceback (most recent call last):\n  File "b.py", line 1, in g\n    x\nKeyError: 1\n'
    assert (hutch.explain(text).type, hutch.explain(text).line) == ("KeyError", 1)


@pytest.mark.parametrize("text", ["", "\n\n", "no traceback at all here", "Traceback", "x" * 99999])
def test_any_text_can_be_explained(text: str) -> None:
    assert isinstance(hutch.explain(text), hutch.ErrorInfo)


@pytest.mark.parametrize(
    ("kind", "message", "says"),
    [
        ("OSError", "[Errno 101] Network is unreachable", "no network"),
        ("socket.gaierror", "[Errno -3] Temporary failure in name resolution", "no network"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'x'", "files="),
        ("OSError", "[Errno 30] Read-only file system: '/x'", "/tmp"),
        ("ModuleNotFoundError", "No module named 'hutch'", "not inside"),
        ("ModuleNotFoundError", "No module named 'tkinter'", "part of Python"),
        ("EOFError", "EOF when reading a line", "stdin="),
        ("KeyError", "'x'", "^$"),
    ],
)
def test_hints(kind: str, message: str, says: str) -> None:
    from hutch._explain import hint_for

    assert pytest.importorskip("re").search(says, hint_for(kind, message))
