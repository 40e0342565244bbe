# SPDX-License-Identifier: Apache-2.0
"""How a pool is prepared, what is repeated and what never is: with an agent that is made up."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import pytest

import hutch
from hutch import _core
from hutch._calls import echo, run
from hutch._calls.target import TextTarget
from hutch._connect import connection, launcher
from hutch._connect.progress import Progress
from hutch._options import index
from hutch._options.options import NORMAL


def error(code: str, may_have_run: bool = False) -> _core.Error:
    return _core.Error(code, f"{code} happened", "", may_have_run)


class Agent:
    """Answers each request with what is next in its script, or well."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.prepares: list[_core.Error] = []
        self.calls: list[_core.Error] = []

    def prepare(self, spec: Any, timeout_ms: int, progress: Any, no_pool: bool) -> dict[str, Any]:
        self.log.append("prepare")
        if self.prepares:
            raise self.prepares.pop(0)
        return {"key": "k", "enforcement": "watchdog"}

    def call(self, *args: Any) -> Any:
        self.log.append("call")
        if self.calls:
            raise self.calls.pop(0)
        raise error("internal")

    def abandon(self) -> None:
        self.log.append("abandon")

    def close(self) -> None:
        self.log.append("close")


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    made = Agent()

    def connect(start: bool) -> Any:
        made.log.append("connect")
        return made

    def launch(verb: str) -> dict[str, Any]:
        made.log.append(verb)
        return {"ok": True}

    monkeypatch.setattr(connection, "connect", connect)
    monkeypatch.setattr(connection, "_current", None)
    monkeypatch.setattr(launcher, "run", launch)
    monkeypatch.setattr(launcher, "base_id", lambda: "0" * 32)
    monkeypatch.setattr(launcher, "runtime_id", lambda: "1" * 32)
    return made


def call() -> Any:
    return run.call(TextTarget("def f(): pass", "f", NORMAL, ""))


def test_a_missing_base_or_runtime_is_installed_and_asked_for_again(agent: Agent) -> None:
    agent.prepares = [error("missing_base"), error("missing_runtime")]
    with pytest.raises(hutch.SandboxStartupError):
        call()
    installed = ["prepare", "--install", "prepare", "--install", "prepare"]
    assert agent.log == ["connect", *installed, "call"]


def test_what_is_prepared_is_not_asked_for_again(agent: Agent) -> None:
    for _ in range(2):
        with pytest.raises(hutch.SandboxStartupError):
            call()
    assert agent.log.count("prepare") == 1


def test_a_call_that_may_have_run_is_never_repeated(agent: Agent) -> None:
    for code in ("unavailable", "worker_failed", "unknown_pool", "protocol"):
        agent.log.clear()
        agent.calls = [error(code, may_have_run=True)]
        with pytest.raises(hutch.SandboxStartupError) as caught:
            call()
        assert agent.log.count("call") == 1
        assert caught.value.may_have_run and not caught.value.safe_to_retry
        outcome = caught.value.outcome
        assert outcome is not None and outcome.status == "fault" and outcome.may_have_run


@pytest.mark.parametrize("code", ["unavailable", "worker_failed", "unknown_pool"])
def test_a_call_that_certainly_did_not_run_is_repeated_once(agent: Agent, code: str) -> None:
    agent.calls = [error(code), error(code), error(code)]
    with pytest.raises(hutch.SandboxStartupError) as caught:
        call()
    assert agent.log.count("call") == 2 and not caught.value.may_have_run
    assert agent.log.count("connect") == (2 if code == "unavailable" else 1)


def test_busy_is_not_repeated(agent: Agent) -> None:
    agent.calls = [error("busy")]
    with pytest.raises(hutch.SandboxBusy):
        call()
    assert agent.log.count("call") == 1


def test_an_install_failure_is_reported_and_not_repeated(agent: Agent) -> None:
    agent.prepares = [error("install_failed")]
    with pytest.raises(hutch.DependencyInstallError):
        call()
    assert agent.log == ["connect", "prepare"]


def test_a_forked_child_opens_its_own_connection(agent: Agent) -> None:
    parent = connection.current()
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writes, b"1" if connection.current() is not parent else b"0")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reads, 1) == b"1"
    os.close(reads)
    os.close(writes)
    assert connection.current() is parent


def test_echoed_text_does_not_talk_to_the_terminal() -> None:
    hostile = "a\x1b[2Jb\rc\x07\x9bd\u202ee\x00\x7f\tf\ng\r\nh"
    shown = echo.escape(hostile)
    assert shown == "a\\x1b[2Jb\\x0dc\\x07\\x9bd\\u202ee\\x00\\x7f\tf\ng\nh"


def test_a_character_cut_in_two_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    got: list[str] = []
    streams = echo.Streams(NORMAL.changed({"on_stdout": got.append}), True)
    for byte in "é€\n".encode():
        streams.feed(0, bytes([byte]))
    streams.feed(1, b"\xff")
    streams.feed(0, b"\xe2")
    streams.finish()
    assert capsys.readouterr() == ("é€\n\\xe2", "\\xff")
    assert "".join(got) == "é€\n\\xe2"


def test_a_closed_stdout_does_not_fail_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    streams = echo.Streams(NORMAL, True)
    streams.feed(0, b"x")


def test_progress_is_quiet_when_quick_and_plain_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HUTCH_LOG", raising=False)
    with Progress("pandas", terminal=False) as progress:
        progress("download", "x", 1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("hutch._connect.progress.QUIET_SEC", -1.0)
    with Progress("pandas", terminal=False) as progress:
        progress("download", "evil\x1b[2J", 1, 2)
        progress("download", "again", 2, 2)
        progress("install", "", 0, 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "hutch: pandas: download 50% evil\\x1b[2J"
    assert lines[1] == "hutch: pandas: install" and lines[2].startswith("hutch: pandas: ready")


def test_the_bar_on_a_terminal_is_drawn_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch._connect.progress.QUIET_SEC", -1.0)
    with Progress("pandas", terminal=True) as progress:
        progress("download [bold]", "[red]x", 1, 2)
        assert progress.shown


def test_index_settings_come_from_the_environment_and_files(tmp_path: Any) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://a.example\nextra-index-url =\n  b\n  c\n")
    env = {"PIP_CONFIG_FILE": str(config), "HOME": str(tmp_path)}
    found = index.settings(env)
    assert found["index_url"] == "https://a.example"
    assert found["extra_index_urls"] == "b c"
    assert index.settings({**env, "UV_INDEX_URL": "https://u"})["index_url"] == "https://u"
    assert index.settings({**env, "https_proxy": "http://p"})["https_proxy"] == "http://p"
    assert all(isinstance(value, str) for value in found.values())


def test_every_name_that_is_promised_is_there() -> None:
    for name in hutch.__all__:
        assert getattr(hutch, name) is not None
    assert set(hutch.__all__) <= set(dir(hutch))
    for module, names in hutch._PLACES.items():
        for name in names.split():
            assert name in hutch.__all__, f"{module}.{name}"
    with pytest.raises(AttributeError):
        _ = hutch.nonsense  # type: ignore[attr-defined]
