# SPDX-License-Identifier: Apache-2.0
"""Outcomes as values: shown, pickled, turned into JSON; and what a traceback explains."""

from __future__ import annotations

import ast
import dataclasses
import decimal
import fractions
import gc
import json
import pickle
import re
import weakref
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch._calls import outcomes
from hutch._calls.outcomes import note_fault
from hutch._connect import launcher
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


def test_text_is_what_a_terminal_would_show() -> None:
    outcome: Outcome[Any] = Outcome("returned", {"a": [1]}, stdout="out\n", stderr="warned")
    outcome.display = [{"text/plain": "shown"}, {"image/png": b"x"}, {"text/plain": b"no text"}]
    assert outcome.text == "out\nwarned\nshown\n{'a': [1]}"
    assert Outcome("returned").text == "" and Outcome("returned", "x").text == "'x'"
    assert raised().text == "out\nTraceback\nValueError: bad\nhint: do better"
    died: Outcome[Any] = Outcome("died", exit_code=3)
    assert died.fail(hutch.SandboxDied("it ended", hint="return")).text == (
        "it ended\n  hint: return"
    )
    said: Any = Outcome("returned", stdout_size=4)
    said.stdout = b"a\xff\x1b\n"  # of a command, where bytes were asked for
    assert said.text == "a\ufffd\\x1b"
    said.stdout_truncated = True
    assert said.text.endswith("\n… (of 4 bytes of stdout, the rest was not kept) …")


def test_text_and_report_tell_of_a_restart_once() -> None:
    outcome = raised()
    outcome.restarted = True
    for text in (outcome.text, str(outcome)):
        assert text.count("the interpreter was restarted: its names are lost, files stay") == 1
    assert outcome.error is not None
    outcome.error = ErrorInfo("SandboxDied", "exit code 3", hint="its names are lost (files stay)")
    assert outcome.text.count("names are lost") == 1
    assert "restarted" not in raised().text


def test_text_has_a_value_that_was_displayed_once() -> None:
    class Rich:
        def _repr_html_(self) -> str:
            return ""

        def __repr__(self) -> str:
            return "rich"

    outcome: Outcome[Any] = Outcome("returned", Rich())
    assert outcome.text == "rich"
    outcome.display = [{"text/html": "", "text/plain": "rich, inside"}]
    assert outcome.text == "rich, inside"
    outcome.value = 1
    assert outcome.text == "rich, inside\n1"


@dataclasses.dataclass
class Page:
    body: str


@pytest.mark.parametrize(
    ("outcome", "left_out"),
    [
        (Outcome("returned", stdout="x" * 30_000), 10_000),
        (Outcome("returned", "x" * 30_000), 10_002),
        (Outcome("returned", "x" * 100_000_000), 99_980_002),
        (Outcome("returned", b"x" * 100_000), 80_003),
        (Outcome("returned", "y", stdout="x" * 20_000), 4),
        (Outcome("returned", stdout="x" * 20_000), None),
        (Outcome("returned", [0] * 10_000), 10_000),
        (Outcome("returned", [0] * 1_000_000), None),
        (Outcome("returned", ["\0" * 100_000_000]), None),
        (Outcome("returned", Page("\0" * 100_000_000)), None),
        (Outcome("returned", stdout="\x1b" * 20_000), 15_000),
        (Outcome("returned", stdout="\u202e" * 1_000_000), 1_000_000 - 2 * 1666),
        (Outcome("returned", stdout="\x1b" * 5_000), None),
        (Outcome("returned", stdout="\x1b" + "x" * 20_000), 4),
    ],
)
def test_a_long_text_lacks_its_middle(outcome: Outcome[Any], left_out: int | None) -> None:
    text = outcome.text
    found = re.search(r"\n… \(([\d,]+) more characters left out\) …\n", text)
    assert (found and int(found[1].replace(",", ""))) == left_out
    assert 0 < len(text) - len(found[0] if found else "") <= 20_000


def test_the_end_of_a_long_text_is_its_error() -> None:
    outcome = raised()
    outcome.stdout = "begin" + "x" * 30_000
    assert outcome.text.startswith("begin") and outcome.text.endswith("hint: do better")


def test_html_is_escaped() -> None:
    html = raised(message="<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


def shown(*bundles: dict[str, Any]) -> Outcome[Any]:
    outcome = Outcome[Any]("returned")
    outcome.display = list(bundles)
    return outcome


def test_a_notebook_shows_what_was_shown() -> None:
    page = shown(
        {"image/png": b"\x89PNG", "text/plain": "<Figure>"},
        {"image/svg+xml": "<svg onload='alert(1)'>"},
        {"text/html": '<script>alert(1)</script><b>"x"</b>'},
        {"text/plain": "<b>plain</b>"},
        {"image/png": "not bytes but text"},
        {"image/png": 5, "text/html": None, "text/plain": [1]},
    )._repr_html_()
    assert '<img src="data:image/png;base64,iVBORw=="' in page and "Figure" not in page
    assert "onload" not in page, "an SVG is a picture, whose scripts do not run"
    assert page.count("<iframe") == page.count('<iframe sandbox="" srcdoc="') == 1
    assert "<script" not in page and "&lt;b&gt;plain" in page
    assert "Content-Security-Policy" in page


def test_a_notebook_is_not_given_more_than_it_can_take() -> None:
    page = shown({"image/png": b"x" * (9 << 20)}, {"text/plain": "after"})._repr_html_()
    assert "see outcome.display" in page and len(page) < 1000
    page = shown(*[{"text/plain": "x" * (1 << 20)}] * 20)._repr_html_()
    assert "see outcome.display" in page and len(page) < 9 << 20


@pytest.mark.parametrize(("kind", "most"), [("text/html", 20), ("text/plain", 500)])
def test_a_notebook_is_given_a_bounded_number_of_things(kind: str, most: int) -> None:
    def count(number: int) -> tuple[int, bool]:
        page = shown(*[{kind: "a thing"}] * number)._repr_html_()
        return page.count("a thing"), "see outcome.display" in page

    assert count(most) == (most, False)
    assert count(most + 1) == (most, True)


@pytest.mark.parametrize("half", ["\ud800", "\udc80"])
def test_what_is_shown_can_be_written_as_utf8(half: str) -> None:
    outcome = shown({"text/plain": half}, {"text/html": half}, {"image/png": half})
    outcome.error = ErrorInfo("E", half, half)
    outcome.status = "raised"
    for text in (outcome.text, str(outcome), repr(outcome), outcome._repr_html_()):
        assert f"\\u{ord(half):04x}" in text.encode().decode()
    outcome.display = [{"text/plain": "\U0001f600"}]
    assert "\U0001f600" in outcome.text and "\U0001f600" in outcome._repr_html_()


def test_pictures_in_json_are_base64() -> None:
    told = json.loads(json.dumps(shown({"image/png": b"\x89PNG", "text/plain": "x"}).to_dict()))
    assert told["display"] == [{"image/png": "iVBORw==", "text/plain": "x"}]


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


class Large:
    pass


def test_an_outcome_and_its_error_are_freed_without_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        outcome: Outcome[Any] = Outcome("raised", Large())
        value = weakref.ref(outcome.value)
        refused = hutch.NetworkDenied("refused")
        refused.__cause__ = outcome.fail(hutch.SandboxDied("gone", signal=9)).exception()
        outcome.fail(refused)
        with pytest.raises(hutch.NetworkDenied) as caught:
            outcome.unwrap()
        error = caught.value
        assert error.outcome is outcome
        assert isinstance(error.__cause__, hutch.SandboxDied) and error.__cause__.signal == 9
        assert error.__cause__.outcome is outcome
        del caught, refused, error
        assert value() is not None
        del outcome
        assert value() is None
    finally:
        gc.enable()


def test_a_fault_and_its_outcome_are_freed_without_the_collector() -> None:
    gc.disable()
    try:
        error = hutch.SandboxBusy("busy")
        note_fault(error, 0.0, 0.0, None)
        assert error.outcome is not None and error.outcome.status == "fault"
        again = error.outcome.exception()
        assert type(again) is hutch.SandboxBusy and again.outcome is error.outcome
        error.outcome.value = Large()
        value = weakref.ref(error.outcome.value)
        del error, again
        assert value() is None
    finally:
        gc.enable()


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
        ("FileNotFoundError", "config", "^$"),
        ("ComputeError", "No such file or directory (os error 2): x.csv", "files="),
        ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "^$"),
        ("BlockingIOError", "mine", "^$"),
        ("PermissionError", "[Errno 1] Operation not permitted", "privilege"),
        ("PermissionError", "[Errno 13] Permission denied: 'x'", "^$"),
        ("PermissionError", "[Errno 13] Permission denied: '/tmp/x'", "^$"),
        ("PermissionError", "[Errno 13] Permission denied: '/usr/x'", "/tmp"),
        ("PermissionError", "you may not, says my app", "^$"),
        ("ConnectionError", "db down", "^$"),
        ("OSError", "[Errno 28] my quota", "^$"),
        ("OSError", "[Errno 28] No space left on device", "disk_mb="),
        ("OSError", "Not enough free space to write 64 bytes", "disk_mb="),
        ("OSError", "[Errno 24] Too many open files: 'x'", "1,024"),
        ("OSError", "out of pty devices", "pipes"),
        ("URLError", "<urlopen error [Errno 111] Connection refused>", "nothing listens"),
        ("ConnectionRefusedError", "[Errno 111] Connect call failed ('::1', 9)", "listens"),
    ],
)
def test_hints(kind: str, message: str, says: str) -> None:
    from hutch._explain import hint_for

    assert re.search(says, hint_for(kind, message))


def test_hints_know_every_directory_that_the_worker_calls_scratch() -> None:
    from hutch._hints import _is_elsewhere

    worker = Path(launcher.RUNTIME, "worker", "failures.py").read_text()
    told = re.search(r"^SCRATCH = (\(.*?\))", worker, re.M)
    assert told is not None
    directories = ast.literal_eval(told[1])
    assert directories and not any(_is_elsewhere(f"{path}/x") for path in directories)


@pytest.mark.parametrize(
    ("message", "where", "line", "limit", "says"),
    [
        (
            "[Errno 2] No such file or directory: 'git'",
            "_execute_child",
            "raise x",
            "",
            "no program",
        ),
        ("[Errno 2] No such file or directory: './a'", "_execute_child", "raise x", "", "files="),
        ("[Errno 2] No such file or directory: 'git'", "f", "open('git')", "", "files="),
        ("[Errno 2] No such file or directory", "f", "os.openpty()", "", "pipes"),
        ("[Errno 11] Resource temporarily unavailable", "f", "os.fork()", "pids", "pids="),
        ("[Errno 11] Resource temporarily unavailable", "f", "s.recv(1)", "", "^$"),
        ("can't start new thread", "start", "_start_new_thread(x)", "pids", "pids="),
        ("can't start new thread", "start", "_start_new_thread(x)", "memory", "^$"),
        ("can't start new thread", "f", "raise RuntimeError(text)", "", "^$"),
        ("[Errno 28] No space left on device", "f", "file.write(x)", "disk", "^$"),
    ],
)
def test_hints_by_what_raised_it(
    message: str, where: str, line: str, limit: str, says: str
) -> None:
    from hutch._explain import hint_for

    traceback = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\n'
    traceback += f'  File "b.py", line 7, in {where}\n    {line}\nX: {message}\n'
    hint = hint_for("OSError", message, traceback, limit=limit)
    assert pytest.importorskip("re").search(says, hint)


@pytest.mark.parametrize(
    "message",
    [
        "[Errno -3] Temporary failure in name resolution",
        "[Errno 101] Network is unreachable",
        "[Errno 111] Connection refused",
    ],
)
def test_no_hint_denies_a_network_that_was_given(message: str) -> None:
    from hutch._explain import hint_for

    assert "network" in hint_for("OSError", message)
    assert hint_for("OSError", message, has_network=True) == ""


HUGE = 1 << 100_000


@dataclasses.dataclass
class Record:
    number: int
    more: Any = None


@pytest.mark.parametrize(
    "value",
    [
        HUGE,
        -HUGE,
        [HUGE],
        {HUGE: HUGE},
        (1, {HUGE}),
        Record(HUGE),
        {"a": [Record(1, [HUGE])]},
        fractions.Fraction(HUGE, 3),
        range(HUGE),
        slice(HUGE),
        decimal.Decimal(1).scaleb(999_999),
        ["\x1b[2J"] * 100_000,
        [[[[[[[[[[1]]]]]]]]]] * 20_000,
        dict.fromkeys(range(100_000)),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_is_shown_shortly_and_becomes_json(value: Any) -> None:
    outcome = Outcome("returned", value)
    for text in (repr(outcome), str(outcome)):
        assert len(text) < 500 and text.isprintable()
    assert json.loads(json.dumps(outcome.to_dict(), allow_nan=False))["ok"] is True
    assert json.dumps(Outcome("raised", error=ErrorInfo("E", "m", line=HUGE)).to_dict())


@pytest.mark.parametrize(
    "value",
    [
        [1, (2,), {"a": {3}}, frozenset([4]), set(), (), b"x", 1.5, None],
        1 << 70,
        {"rows": [Record(1, "x")]},
        hutch.SandboxError("x"),
    ],
    ids=repr,
)
def test_a_small_value_is_shown_as_it_is(value: Any) -> None:
    assert f"value={repr(value)[:60]}" in repr(Outcome("returned", value))


def test_what_a_cell_says_of_an_error_is_capped_and_reported() -> None:
    told = {
        "type": "E" * 10**6,
        "message": "\x1b" * 40_000_000,
        "traceback": "t" * 20_000_000 + "ValueError: the end",
        "hint": "h" * 10**6,
        "line": HUGE,
        "bases": ["ValueError"] * 10**6,
    }
    outcome: Outcome[Any] = outcomes.raised(Outcome("raised"), told)
    error = outcome.error
    assert error is not None and error.line is None
    assert len(error.message) < 66_000 and "39,934,464 more characters" in error.message
    assert len(error.traceback) < 263_000 and error.traceback.endswith("ValueError: the end")
    assert "more characters left out" in error.traceback
    assert len(error.type) < 1100 and len(error.hint) < 66_000
    assert isinstance(outcome.exception(), ValueError)
    assert len(str(outcome.exception())) < 10**6 and len(repr(outcome)) < 1000
    assert json.dumps(outcome.to_dict())
    honest = {"type": "ValueError", "message": "no", "traceback": "Traceback…", "line": 3}
    assert outcomes.error_info(honest) == ErrorInfo("ValueError", "no", "Traceback…", 3, "")
    assert outcomes.error_info({"line": True, "type": 5, "message": None}).type == "Exception"
