# SPDX-License-Identifier: Apache-2.0
"""Sessions of `hutch serve`, by hutch.Client and by what it sends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from leaving_client import asked
from support import GVISOR, until

import hutch
from hutch import _status
from hutch._remote.wire import to_wire

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
STUBBORN = "import time\nwhile True:\n  try: time.sleep(60)\n  except BaseException: pass"


@pytest.fixture(scope="module", params=["cell", "container", GVISOR])
def url(request: pytest.FixtureRequest, serving: Serving) -> Iterator[str]:
    """Of two processes."""
    flags = ("--workers", "2", "--isolation", request.param, "--set", "sessions=8")
    with serving(*flags, "--with", "numpy") as (url, _):
        yield url


@pytest.fixture
def s(url: str) -> Iterator[Any]:
    with hutch.Client(url) as client, client.Session(files={"a.txt": "hello"}) as session:
        yield session


def test_names_and_files_live_on(s: Any) -> None:
    s.exec("x = 20\ndef f(): return x + 1")
    outcome = s.exec("print(open('a.txt').read()); f()")
    assert (outcome.value, outcome.stdout) == (21, "hello\n")
    s["x"] = (1, {2: b"\xff"})
    assert s["x"] == (1, {2: b"\xff"}) and s.exec("x[1][2]").value == b"\xff"
    assert s.get("none") is None and s.get("none", 3) == 3
    with pytest.raises(KeyError):
        s["none"]
    assert s.info()["execs"] == 3


ENDS = {
    "1 / 0": {},
    "1 +": {},
    "import time; time.sleep(9)": {"timeout_sec": 0.3},
    "import os; os._exit(3)": {},
}


def test_what_goes_wrong_is_what_it_is_on_this_host(s: Any) -> None:
    with pytest.raises(hutch.CommandError) as failed:
        s.bash("exit 3").unwrap()
    assert failed.value.exit_code == 3
    with hutch.Session() as local:
        for code, more in ENDS.items():
            one, other = s.exec(code, **more), local.exec(code, **more)
            assert (one.status, one.limit, one.exit_code) == (
                other.status, other.limit, other.exit_code)  # fmt: skip
            assert type(one.exception()).__name__ == type(other.exception()).__name__
            assert one.error.type == other.error.type


def test_a_value_that_is_no_data_is_shown(s: Any) -> None:
    outcome = s.exec("import numpy; numpy.zeros(2)")
    assert outcome.ok and outcome.value is None
    assert outcome.display == [{"text/plain": "array([0., 0.])"}]
    assert s.exec("len").value is None
    with pytest.raises(ValueError, match="'a' does not travel over HTTP"):
        s.exec("a = numpy.zeros(2)")
        s["a"]
    with pytest.raises(ValueError, match="does not travel over HTTP: it holds a object"):
        s["x"] = object()
    with pytest.raises(hutch.SerializationError):
        s.exec("def f(): pass")
        s["f"]


def test_pictures_are_bytes(s: Any) -> None:
    png = "display({'image/png': b'\\x89PNG'}, raw=True)"
    assert s.exec(png).display == [{"image/png": b"\x89PNG"}]


def test_files_and_commands(s: Any) -> None:
    s.files.write("d/x", b"\x00\xff")
    assert s.files.read_bytes("d/x") == b"\x00\xff" and s.files.list("d") == ["x"]
    assert s.bash("cat; wc -c < d/x", input="in\n").stdout.split() == ["in", "2"]
    s.files.delete("d")
    with pytest.raises(FileNotFoundError) as missing:
        s.files.read("d/x")
    assert missing.value.filename == f"{s.info()['cwd']}/d/x"
    with pytest.raises(OSError, match=r"Read-only file system|Permission denied"):
        s.files.write("/etc/x", "y")


def test_what_it_prints_is_heard_while_it_runs(s: Any) -> None:
    heard: list[str] = []
    outcome = s.exec("for i in range(3): print(i, flush=True)\n'end'", on_stdout=heard.append)
    assert "".join(heard) == "0\n1\n2\n" == outcome.stdout and outcome.value == "end"
    errors: list[str] = []
    s.exec("import sys; print('e', file=sys.stderr)", on_stderr=errors.append)
    assert "".join(errors) == "e\n"
    assert "".join(heard) == "0\n1\n2\n"


def test_what_a_callback_raises_ends_the_code(s: Any) -> None:
    def refuse(text: str) -> None:
        raise ValueError("mine")

    for number in range(10):
        with pytest.raises(ValueError, match="mine"):
            s.exec(f"x = {number}\nwhile True: print(x)", on_stdout=refuse)
        assert s.exec("x").value == number  # the interpreter is there, and free


def test_an_interrupt_is_heard(s: Any) -> None:
    heard = threading.Event()

    def interrupt() -> None:
        heard.wait(60)
        s.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    outcome = s.exec(
        "x = 5\nprint('runs', flush=True)\nimport time; time.sleep(50)",
        on_stdout=lambda text: heard.set(),
    )
    thread.join()
    assert outcome.error.type == "KeyboardInterrupt" and s.exec("x").value == 5


def test_a_second_call_meanwhile_is_refused_and_certainly_did_not_run(s: Any) -> None:
    heard = threading.Event()
    thread = threading.Thread(
        target=lambda: s.exec(
            "print(1, flush=True)\nimport time; time.sleep(50)", on_stdout=lambda _: heard.set()
        )
    )
    thread.start()
    heard.wait(60)
    for more in ({}, {"on_stdout": print}):
        with pytest.raises(hutch.SessionBusy) as busy:
            s.exec("1", **more)
        assert busy.value.safe_to_retry
    for _ in range(6):  # by either process
        answer = httpx.post(f"{s._url}/v1/sessions/{s.id}/exec", json={"code": "1"}, timeout=60)
        assert answer.status_code == 409 and "retry-after" in answer.headers
    s.interrupt()
    thread.join()


def test_it_begins_anew(s: Any) -> None:
    s.exec("x = 1")
    if s.info()["restartable"]:
        s.reset()
        assert s.files.list() == ["a.txt"]
    else:
        with pytest.raises(hutch.SandboxStartupError, match="cannot be replaced"):
            s.reset()
        s.reset(files=True)
    assert s.exec("x").error.type == "NameError"


def test_it_ends(url: str) -> None:
    client = hutch.Client(url)
    session = client.Session()
    session.exec("1")
    session.close()
    session.close()
    for ask in (lambda: session.exec("1"), session.info, lambda: session.files.list()):
        with pytest.raises(hutch.SessionNotFound):
            ask()
    with client.Session(idle_sec=3) as short:
        short.exec("1")
        process = int(short.id.partition("-")[0], 16)
        until(lambda: not any(one["pid"] == process for one in _status.sessions()))
        for _ in range(2):
            with pytest.raises(hutch.SessionNotFound):
                short.exec("1")


def test_one_that_nobody_uses_ends(serving: Serving) -> None:
    """Also if nobody ever did, as where its client left before it was answered."""
    with serving("--set", "sessions=3") as (url, _):
        with asked(url, "/v1/sessions", {"idle_sec": 0.3, "files": {"a": "eA=="}}):
            until(lambda: "_sessions 1" in httpx.get(f"{url}/metrics").text)
        sessions = [hutch.Client(url).Session(idle_sec=3) for _ in range(2)]
        sessions[0].exec("1")
        until(lambda: "_sessions 0" in httpx.get(f"{url}/metrics").text)
        for one in sessions:
            with pytest.raises(hutch.SessionNotFound):
                one.info()
        with hutch.Client(url).Session(idle_sec=3) as used:  # and one that is used does not
            assert used.exec("import time; time.sleep(4); 5").value == 5
            assert used.exec("6").value == 6


def test_a_streamed_exec_that_has_no_turn_is_refused_as_others_are(serving: Serving) -> None:
    with serving("--concurrency", "1", "--set", "queue_sec=0.3") as (url, _):
        busy, idle = hutch.Client(url).Session(), hutch.Client(url).Session()
        heard = threading.Event()
        thread = threading.Thread(target=lambda: busy.exec(
            "print(1, flush=True)\nimport time; time.sleep(50)", on_stdout=lambda _: heard.set()
        ))  # fmt: skip
        thread.start()
        heard.wait(60)
        for stream in (True, False):
            body = {"code": "1", "stream": stream}
            late = httpx.post(f"{url}/v1/sessions/{idle.id}/exec", json=body, timeout=60)
            assert late.status_code == 504 and "retry-after" in late.headers
        with pytest.raises(hutch.SandboxBusy):
            idle.exec("1", on_stdout=print)
        busy.interrupt()
        thread.join()


def test_each_process_answers_for_all(url: str) -> None:
    """Whichever is asked: a connection may be to any."""
    processes = set()
    for _ in range(30):
        with hutch.Client(url).Session() as session:
            processes.add(session.id.partition("-")[0])
            session.exec("x = 5")
            others = [hutch.Client(url) for _ in range(6)]
            for other in others:
                path = f"/v1/sessions/{session.id}/exec"
                answer = httpx.post(f"{url}{path}", json={"code": "x"}, timeout=60)
                assert answer.json()["value"] == 5
                other.close()
        if len(processes) == 2:
            return
    raise AssertionError("all sessions were in one process")


def test_who_leaves_ends_the_code_and_keeps_the_session(url: str, s: Any) -> None:
    s.exec("x = 1")
    with asked(url, f"/v1/sessions/{s.id}/exec", {"code": "x = 2; import time; time.sleep(60)"}):
        until(lambda: "_running 1" in httpx.get(f"{url}/metrics").text)
    until(lambda: "_running 0" in httpx.get(f"{url}/metrics").text)
    assert s.exec("x").value == 2
    with asked(url, f"/v1/sessions/{s.id}/exec", {"code": STUBBORN, "stream": True}):
        until(lambda: "_running 1" in httpx.get(f"{url}/metrics").text)
    until(lambda: "_running 0" in httpx.get(f"{url}/metrics").text)


def test_sessions_of_a_client_are_bounded(url: str) -> None:
    open_ones: list[Any] = []
    client = hutch.Client(url)
    try:
        with pytest.raises(hutch.SandboxBusy, match="this client has 8 sessions in this process"):
            for _ in range(20):
                open_ones.append(client.Session())
        assert len(open_ones) >= 8
        open_ones.pop().close()
    finally:
        for one in open_ones:
            one.close()
    client.Session().close()


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("", {"timeout_sec": 1e9}, "timeout_sec must be above 0, and 60 at the most"),
        ("", {"idle_sec": 0}, "idle_sec must be above 0"),
        ("", {"memory_mb": 3}, "memory_mb must be one of"),
        ("", {"dependencies": ["x"]}, "it takes files, timeout_sec, memory_mb"),
        ("/exec", {}, "code must be a text"),
        ("/exec", {"code": "1", "stream": 1}, "stream must be true or false"),
        ("/exec", {"code": "1", "x": 1}, "the request has 'x'"),
        ("/bash", {"code": "a\0"}, "NUL"),
        ("/get", {"name": 1}, "name must be a text"),
        ("/get", {"name": "a b"}, "which no variable can have"),
        ("/set", {"name": "if", "value": 1}, "which no variable can have"),
        ("/set", {"name": "x", "value": {"$int": []}}, "value: "),
        ("/files", {"write": {"x": 1}}, "must be a text in base64"),
        ("/files", {"read": "x"}, "must be a list of texts"),
        ("/reset", {"files": 1}, "files must be true or false"),
        ("/close", {"x": 1}, "it takes no fields"),
    ],
)
def test_a_wrong_request_is_refused(url: str, s: Any, path: str, body: Any, text: str) -> None:
    place = f"{url}/v1/sessions/{s.id}{path}" if path else f"{url}/v1/sessions"
    answer = httpx.post(place, json=body)
    assert answer.status_code == 422 and text in answer.json()["message"]


@pytest.mark.parametrize("id", ["x", "1-2", "ffffffff-00", "0-" + "0" * 32, "-1-0", "../health"])
def test_an_id_that_names_nothing_is_not_found(url: str, id: str) -> None:
    answer = httpx.post(f"{url}/v1/sessions/{id}/exec", json={"code": "1"})
    assert answer.status_code in (404, 405)


def test_a_session_of_a_process_that_was_killed_is_not_found(serving: Serving) -> None:
    with serving("--workers", "2") as (url, server):
        session = hutch.Client(url).Session()
        session.exec("1")
        pid = int(session.id.partition("-")[0], 16)
        assert Path(f"/proc/{pid}/stat").read_text().split()[3] == str(server.pid)
        heard = threading.Event()
        found: list[BaseException] = []

        def run() -> None:
            try:
                session.exec("print(1, flush=True)\nimport time; time.sleep(60)",
                             on_stdout=lambda _: heard.set())  # fmt: skip
            except hutch.SandboxError as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        heard.wait(60)
        os.kill(pid, signal.SIGKILL)
        thread.join(60)
        [error] = found
        assert isinstance(error, hutch.AgentUnavailable) and error.may_have_run
        with pytest.raises(hutch.SessionNotFound):
            session.exec("1")


def test_sessions_are_each_tenants_own(agent_toml: Callable[[str], None], serving: Serving) -> None:
    keys = {name: name * 20 for name in "ab"}
    agent_toml(
        "".join(
            f'[tenants.{name}]\nlabels = {{ team = "{name}" }}\nkey = "{key}"\n'
            for name, key in keys.items()
        )
    )
    with serving("--workers", "2") as (url, _):
        one = hutch.Client(url, token=keys["a"]).Session()
        assert one.exec("1").value == 1
        for _ in range(8):  # of each process
            for verb in ("exec", "info", "close", "interrupt"):
                path = f"{url}/v1/sessions/{one.id}/{verb}"
                body = {"code": "1"} if verb == "exec" else {}
                answer = httpx.post(path, json=body, headers={"X-API-Key": keys["b"]})
                assert answer.status_code == 404
                assert httpx.post(path, json=body).status_code == 401
        assert one.exec("1").value == 1


def test_an_answer_that_is_none_is_one_error(s: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may be hostile, or broken."""
    told = s.exec("1")

    def answering(found: Any) -> Any:
        body = json.dumps(found).encode()
        return lambda url, path, content, read, tell=None: read(200, body)

    good = json.loads(json.dumps(to_wire(told)))
    for id in (None, 5, "", "a b", "../x", "a\r\nHost: evil"):
        found = {"id": id}
        monkeypatch.setattr(
            s._servers, "ask_least_loaded", lambda *given, found=found: (s._url, found)
        )
        with pytest.raises(hutch.AgentUnavailable, match="no id of a session"):
            type(s)(s._servers, {})
    for value in ({"$int": "x"}, {"$evil": 1}):
        monkeypatch.setattr(s._servers, "ask_one", answering({**good, "value": value}))
        with pytest.raises(hutch.AgentUnavailable) as error:
            s.exec("1")
        assert error.value.may_have_run
    monkeypatch.undo()
