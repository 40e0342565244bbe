# SPDX-License-Identifier: Apache-2.0
"""What a client of `hutch serve` is told of a fault."""

from __future__ import annotations

import pytest

from hutch import _errors
from hutch._errors import SandboxError
from hutch.serve.public import public
from hutch.serve.settings import Client, Settings

SAID = "/var/lib/secret has no room"
KEYED = Settings(keys=((b"x" * 32, Client("a")),))


@pytest.mark.parametrize("settings", [KEYED, Settings(host="0.0.0.0", allow_from=("10.0.0.0/8",))])
@pytest.mark.parametrize(
    "kind", ["AgentUnavailable", "DependencyInstallError", "PlatformNotSupportedError"]
)
def test_others_are_told_the_class(
    settings: Settings, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = getattr(_errors, kind)(SAID, hint=SAID)
    if isinstance(error, _errors.SandboxStartupError):
        error.may_have_run = True
    told = public(error, settings)
    assert type(told) is type(error) and kind in told.message
    assert "secret" not in f"{told}{told.hint}" and SAID in caplog.text
    assert getattr(told, "may_have_run", True)
    assert public(told, settings) is told


@pytest.mark.parametrize(
    "error",
    [
        _errors.SandboxBusy(SAID),
        _errors.SessionNotFound(SAID),
        _errors.LimitExceeded(SAID),
        _errors.SandboxExecutionError(SAID),
    ],
)
def test_what_is_of_the_request_is_told_as_it_is(error: SandboxError) -> None:
    assert public(error, KEYED) is error


def test_who_has_the_machine_is_told_all() -> None:
    error = _errors.AgentUnavailable(SAID)
    assert public(error, Settings()) is error
