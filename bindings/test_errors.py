# SPDX-License-Identifier: Apache-2.0
"""Errors that a caller catches: by Hutch's class or by the builtin one, here and after a pickle."""

from __future__ import annotations

import builtins
import concurrent.futures
import pickle
import traceback
from typing import Any

import pytest

import hutch
from hutch import _core, _errors
from hutch._errors import execution_error, execution_error_class
from hutch._faults import from_core
from hutch._outcome import ErrorInfo, Outcome


def error_of(bases: list[str], kind: str = "MyError") -> hutch.SandboxExecutionError:
    info = ErrorInfo(kind, "of mine", "Traceback …\nMyError: of mine\n", 3, "", tuple(bases))
    return execution_error(info)


ALLOWED = [
    "ZeroDivisionError OverflowError AssertionError AttributeError ModuleNotFoundError KeyError",
    "IndexError NameError UnboundLocalError RuntimeError RecursionError NotImplementedError",
    "SyntaxError IndentationError TypeError ValueError UnicodeDecodeError UnicodeEncodeError",
]
NEVER = [
    "OSError FileNotFoundError TimeoutError ConnectionError MemoryError StopIteration EOFError",
    "StopAsyncIteration KeyboardInterrupt SystemExit GeneratorExit BaseException Exception",
    "BufferError ReferenceError Warning UserWarning BlockingIOError nonsense __import__ object",
]


@pytest.mark.parametrize("name", " ".join(ALLOWED).split())
def test_an_error_is_also_of_its_builtin_type(name: str) -> None:
    error = error_of([name, "Exception", "BaseException"])
    assert isinstance(error, getattr(builtins, name))
    assert isinstance(error, hutch.SandboxExecutionError)
    assert "of mine" in str(error)


@pytest.mark.parametrize("name", " ".join(NEVER).split())
def test_a_type_outside_the_closed_list_is_never_taken_on(name: str) -> None:
    error = error_of([name])
    assert type(error) is hutch.SandboxExecutionError
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and kind not in (Exception, BaseException, object):
        assert not isinstance(error, kind)


def test_callers_can_ask_for_the_kinds_that_no_except_of_theirs_catches() -> None:
    error = error_of(["FileNotFoundError", "OSError", "Exception", "BaseException"])
    for asked in (error, error.error):
        assert asked.builtin == "FileNotFoundError"
        assert asked.is_a(FileNotFoundError) and asked.is_a(OSError) and asked.is_a(Exception)
        assert not asked.is_a(ValueError) and not asked.is_a(PermissionError)
        for kind in (hutch.SandboxError, int, "OSError", None):
            with pytest.raises(TypeError, match="builtin exception class"):
                asked.is_a(kind)  # type: ignore[arg-type]


def test_what_a_cell_tells_as_bases_may_be_anything() -> None:
    told = ["KeyError", 3, "nonsense", "int", ["OSError"], "LookupError", None]
    assert _errors.builtin_names(told) == ("KeyError", "LookupError")
    assert _errors.builtin_names({"KeyError": 1}) == ()
    assert len(_errors.builtin_names(["OSError"] * 100_000)) <= 32
    assert error_of([]).builtin == "" and not error_of([]).is_a(Exception)


def test_the_closed_list_is_closed() -> None:
    for kind in _errors.ALLOWED.values():
        assert issubclass(kind, Exception)
        assert not issubclass(kind, (OSError, MemoryError, StopIteration, Warning))


def test_the_nearest_allowed_base_decides() -> None:
    assert isinstance(error_of(["KeyError", "LookupError"]), KeyError)
    assert isinstance(error_of(["OSError", "ValueError"]), ValueError)
    assert execution_error_class(["KeyError"]) is execution_error_class(["KeyError", "LookupError"])


def test_a_syntax_errors_message_is_printed() -> None:
    for kind in ("SyntaxError", "IndentationError"):
        error = execution_error(ErrorInfo(kind, "no \x1b such grammar", bases=(kind,)))
        for one in (error, pickle.loads(pickle.dumps(error))):
            printed = "".join(traceback.format_exception(one))
            assert f"{kind}: no \\x1b such grammar" in printed


def test_the_remote_traceback_is_shown() -> None:
    error = error_of(["ValueError"])
    text = "".join(traceback.format_exception(error))
    assert "MyError: of mine" in text and "hutch.RemoteTraceback" in text
    assert error.traceback_str.startswith("Traceback")
    assert error.error_type == "MyError"


EXAMPLES: list[hutch.SandboxError] = [
    hutch.SandboxError("m", hint="h"),
    hutch.LimitExceeded("m", limit="pids", allowed=64, used=None),
    hutch.SandboxTimeoutError("m", limit="time", allowed=1.0, used=1.1),
    hutch.SandboxMemoryError("m", limit="memory"),
    hutch.SandboxDied("m", signal=11),
    hutch.SandboxCancelled("m"),
    hutch.SerializationError("m", path="result[0]", type_name="module"),
    hutch.DependencyInstallError("m", log="l", requirement="r"),
    hutch.RequirementError("m", requirement="r"),
    hutch.NetworkDenied("m"),
    hutch.SandboxStartupError("m", may_have_run=True),
    hutch.SandboxBusy("m", queued=3, capacity=4, waited_sec=1.0),
    hutch.AgentUnavailable("m"),
    hutch.PlatformNotSupportedError("m"),
    hutch.PodmanNotInstalledError("m", hint="apt"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_is_the_same_after_a_pickle(error: hutch.SandboxError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_execution_error_is_the_same_after_a_pickle() -> None:
    outcome: Outcome[Any] = Outcome(
        "raised", error=ErrorInfo("KeyError", "'k'", "Traceback", bases=("KeyError",))
    )
    assert outcome.error is not None
    error: Any = outcome.fail(execution_error(outcome.error)).exception()
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, KeyError) and again.error == error.error
    assert isinstance(again.__cause__, hutch.RemoteTraceback)
    assert again.outcome == outcome


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (hutch.SandboxTimeoutError, TimeoutError),
        (hutch.SandboxMemoryError, MemoryError),
        (hutch.SandboxCancelled, concurrent.futures.CancelledError),
        (hutch.SerializationError, TypeError),
        (hutch.AgentUnavailable, ConnectionError),
        (hutch.RequirementError, hutch.DependencyInstallError),
        (hutch.SandboxTimeoutError, hutch.LimitExceeded),
        (hutch.SandboxBusy, hutch.SandboxStartupError),
        (hutch.PodmanNotInstalledError, hutch.PlatformNotSupportedError),
        (hutch.PlatformNotSupportedError, hutch.SandboxStartupError),
    ],
)
def test_the_tree(kind: type, base: type) -> None:
    assert issubclass(kind, base) and issubclass(kind, hutch.SandboxError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("busy", hutch.SandboxBusy),
        ("unavailable", hutch.AgentUnavailable),
        ("version_mismatch", hutch.AgentUnavailable),
        ("install_failed", hutch.DependencyInstallError),
        ("worker_failed", hutch.SandboxStartupError),
        ("platform", hutch.PlatformNotSupportedError),
        ("podman_missing", hutch.PodmanNotInstalledError),
        ("cancelled", hutch.SandboxCancelled),
        ("never heard of", hutch.SandboxStartupError),
    ],
)
def test_each_code_has_its_class(code: str, kind: type[hutch.SandboxError]) -> None:
    error = from_core(_core.Error(code, "what happened", "what to do", False))
    assert type(error) is kind
    assert "what happened" in str(error) and error.hint == "what to do"


def test_a_fault_says_whether_the_call_may_have_run() -> None:
    lost = from_core(_core.Error("worker_failed", "lost", "", True))
    assert isinstance(lost, hutch.SandboxStartupError)
    assert lost.may_have_run and not lost.safe_to_retry and "may have run" in lost.hint
    busy = from_core(_core.Error("busy", "full", "", False))
    assert isinstance(busy, hutch.SandboxBusy) and busy.safe_to_retry


def test_an_install_error_names_the_requirement() -> None:
    text = "because pandsa was not found in the package registry"
    error = from_core(_core.Error("install_failed", text, "", False), pool=["pandsa>=1", "rich"])
    assert isinstance(error, hutch.DependencyInstallError)
    assert error.requirement == "pandsa>=1" and error.log == text
