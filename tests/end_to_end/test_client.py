# SPDX-License-Identifier: Apache-2.0
"""hutch.Client: what it gives equals what a local call gives, and nothing runs twice."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from http.server import BaseHTTPRequestHandler
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from support import HttpServer

import hutch
from hutch import _errors
from hutch._outcome import SandboxError
from hutch._remote import wire

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]


@pytest.fixture(scope="module")
def url(serving: Serving) -> Iterator[str]:
    with serving("--timeout-sec", "30") as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[hutch.Client]:
    with hutch.Client(url) as client:
        yield client


PROGRAMS = {
    "returned": "print(input())",
    "raised": "x = {}['y']",
    "own class": "class E(OSError): pass\nraise E('é\\n')",
    "syntax": "x = ",
    "exit": "import sys; print('a', file=sys.stderr); sys.exit(3)",
    "signal": "import os; os.kill(os.getpid(), 11)",
    "time": "print('x', flush=True)\nwhile True: pass",
    "memory": "x = b'x' * (1 << 31)",
    "output": "print('x' * (3 << 20))",
    "bytes": "import sys; sys.stdout.buffer.write(bytes(range(256)))",
}


def error_of(outcome: hutch.Outcome[Any]) -> Any:
    """All that it says but figures that are measured anew in each run."""
    if outcome.ok:
        return None
    error = outcome.exception()
    assert error.outcome is outcome
    details = dict(vars(error))
    del details["outcome"]
    details.pop("used", None)
    details["message"] = re.sub(r", [0-9.e+]+ (used|in use.*)", "", details["message"])
    return (type(error).__mro__, details, type(error.__cause__))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_outcome_is_as_a_local_one(client: hutch.Client, name: str) -> None:
    given: dict[str, Any] = {"stdin": "in", "timeout_sec": 2, "memory_mb": 128}
    with ThreadPoolExecutor(1) as threads:  # both at once
        asked = threads.submit(client.run, PROGRAMS[name], **given)
        local = hutch.run(PROGRAMS[name], **given)
        remote = asked.result()
    found = wire.from_wire(json.loads(json.dumps(wire.to_wire(local))))
    assert found == local and error_of(found) == error_of(local)
    assert error_of(remote) == error_of(local)
    for field in ("status", "value", "error", "limit", "signal", "exit_code", "stdout", "stderr",
                  "stdout_size", "stdout_truncated", "may_have_run"):  # fmt: skip
        assert getattr(remote, field) == getattr(local, field), field
    if not local.ok:
        with pytest.raises(type(local.exception())):
            remote.unwrap()


def test_every_error_travels() -> None:
    """With all that it says, as the class that it is."""
    kinds = [kind for kind in vars(_errors).values()
             if isinstance(kind, type) and issubclass(kind, SandboxError)]  # fmt: skip
    kinds = [*kinds, hutch.SandboxCancelled]
    # What sandboxed code raises is in the Outcome's `error`.
    raised = hutch.SandboxExecutionError
    kinds = [one for one in kinds if one is hutch.CommandError or not issubclass(one, raised)]
    assert {kind.__name__ for kind in kinds} == wire._DETAILS.keys()
    for kind in kinds:
        details = {name: f"<{name}>" for name in wire._DETAILS[kind.__name__]}
        error = kind("text", hint="way on", **details)
        found = wire.failure_from_wire(json.loads(json.dumps(wire.failure_to_wire(error))))
        assert type(found) is kind and vars(found) == vars(error)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"stdout": 3},
        {"usage": None},
        {"usage": {}},
        {"error": {"type": 1}},
        {"failure": {"type": "SystemExit", "message": "", "hint": ""}},
        {"timings": []},
        {"network": [1]},
        {"exit_code": "0"},
    ],
)
def test_what_is_no_outcome_is_refused(change: dict[str, Any]) -> None:
    good = json.loads(json.dumps(wire.to_wire(hutch.Outcome[Any]("died").fail(SandboxError("x")))))
    assert wire.from_wire(good).status == "died"
    with pytest.raises(ValueError):
        wire.from_wire({**good, **change})


def test_a_program_takes_what_a_local_one_takes(client: hutch.Client) -> None:
    text = "import sys; print(sys.argv[1:], open('d/f', 'rb').read(), sys.stdin.buffer.read())"
    given: dict[str, Any] = {"stdin": b"\xff", "args": ["a", "é"], "files": {"d/f": b"\0"}}
    program = client.Program(text, timeout_sec=5)
    assert program.run(**given).stdout == hutch.run(text, **given).stdout
    with pytest.raises(TypeError):
        program.run(args=[1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="names are relative"):
        program.run(files={"../x": ""})
    with pytest.raises(ValueError, match="30 at the most"):
        client.run("1", timeout_sec=31)
    with pytest.raises(ValueError, match="memory_mb must be one of"):
        client.run("1", memory_mb=100)


def test_map(client: hutch.Client) -> None:
    program = client.Program("n = int(input()); print(n * n); assert n != 5")
    found = list(program.map(map(str, range(40)), concurrency=8))
    assert [one.stdout for one in found] == [f"{n * n}\n" for n in range(40)]
    assert [one.ok for one in found] == [n != 5 for n in range(40)]
    mixed = ["print(1)", {"source": "print(input())", "stdin": "2"}]
    assert [one.stdout for one in client.map(mixed)] == ["1\n", "2\n"]
    with pytest.raises(ValueError, match="is its source, or a dict of"):
        list(client.map([{"code": "1"}]))
    endless = client.map("print(1)" for _ in iter(int, 1))
    assert next(endless).stdout == "1\n"
    endless.close()  # type: ignore[attr-defined]


def test_a_unix_socket(serving: Serving, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving("--socket", str(path)), hutch.Client(f"unix://{path}") as client:
        assert client.run("print(2)").stdout == "2\n"


def test_a_token(serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    import uvicorn

    from hutch.serve import make_app
    from hutch.serve.settings import read

    path = tmp_path / "agent.toml"
    path.write_text('[tenants.a]\nlabels = {t = "a"}\nkey = "kkkkkkkkkkkkkkkkkkkk"\n')
    listener = socket.create_server(("127.0.0.1", 0))
    where = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(make_app(read(path)), log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        assert hutch.Client(where, token="k" * 20).run("print(1)").stdout == "1\n"
        for token in (None, "k" * 19, "k" * 10_000):
            with pytest.raises(PermissionError, match="not known"):
                hutch.Client(where, token=token).run("print(1)")
    finally:
        server.should_exit = True
        thread.join()


class Fake:
    """A server that does with each request what `acts` says, and counts them."""

    def __init__(self, *acts: Any) -> None:
        self.asked: list[str | None] = []
        self.callers: list[tuple[str, int]] = []  # the connections that they came by
        self.waits, self.goes_on = threading.Event(), threading.Event()
        left = list(acts)
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                fake.asked.append(self.headers["idempotency-key"])
                fake.callers.append(self.client_address)
                act = left.pop(0) if len(left) > 1 else left[0]
                if act == "hang up":
                    self.close_connection = True
                    return
                if act == "hold":
                    fake.waits.set()
                    fake.goes_on.wait()
                    act = FINE
                status, found = act
                body = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *given: Any) -> None:
                pass

        self._server = HttpServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *given: object) -> None:
        self._server.shutdown()
        self._server.server_close()


FINE = (200, wire.to_wire(hutch.Outcome[Any]("returned")))
FULL = (429, {"message": "full"})


def test_a_server_that_is_not_there_is_passed_over() -> None:
    with Fake(FINE) as there:
        client = hutch.Client("http://127.0.0.1:9", there.url)
        assert all(one.ok for one in client.map(["1"] * 20)) and len(there.asked) == 20
    with pytest.raises(hutch.AgentUnavailable, match="cannot be reached") as nobody:
        hutch.Client("http://127.0.0.1:9").run("1")
    assert nobody.value.safe_to_retry and nobody.value.outcome is not None


def test_what_may_have_run_is_not_run_elsewhere() -> None:
    with Fake("hang up") as lost, Fake("hang up") as other:
        with pytest.raises(hutch.AgentUnavailable) as error:
            hutch.Client(lost.url, other.url).run("1")
        assert error.value.may_have_run and len(lost.asked) + len(other.asked) == 1
        found = list(hutch.Client(lost.url, other.url).map(["1"] * 10, retries=5))
        assert all(one.status == "fault" and one.may_have_run for one in found)
        assert len(lost.asked) + len(other.asked) == 11


def test_under_a_key_the_same_server_is_asked_again() -> None:
    with Fake("hang up", "hang up", FINE) as one, Fake("hang up", "hang up", FINE) as other:
        assert hutch.Client(one.url, other.url).run("1", key="k").ok
        assert sorted([one.asked, other.asked]) == [[], ["k"] * 3]


def test_who_has_no_room_is_passed_over() -> None:
    with Fake(FULL) as full, Fake(FINE) as free:
        client = hutch.Client(full.url, free.url)
        assert all(client.run("1").ok for _ in range(5))
        with pytest.raises(hutch.SandboxBusy):
            hutch.Client(full.url).run("1")
        found = list(hutch.Client(full.url).map(["1"], retries=3))
        assert len(full.asked) >= 5 and isinstance(found[0].exception(), hutch.SandboxBusy)


def test_each_call_goes_where_the_fewest_are_outstanding() -> None:
    with Fake(FINE) as one, Fake(FINE) as other:
        client = hutch.Client(one.url, other.url)
        client._servers.all[0].outstanding = 3  # as many wait there
        for _ in range(6):
            assert client.run("1").ok
        assert (len(one.asked), len(other.asked)) == (0, 6)
        client._servers.all[0].outstanding = 0
        assert client.run("1").ok and len(one.asked) == 1


class Raw:
    """A server that sends these bytes, whatever it is asked, for as long as they are read."""

    def __init__(self, pieces: Callable[[], Iterator[bytes]]) -> None:
        self.asked = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pieces = pieces
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as request, suppress(OSError):
                length = 0
                while (line := request.readline()) not in (b"\r\n", b""):
                    name, _, value = line.partition(b": ")
                    length = int(value) if name.lower() == b"content-length" else length
                request.read(length)
                self.asked += 1
                for piece in self._pieces():
                    connection.sendall(piece)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *given: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def answer(*headers: str, status: str = "200 OK") -> bytes:
    closing = "Connection: close"  # as Raw does, else another request may be sent to nobody
    return "\r\n".join([f"HTTP/1.1 {status}", closing, *headers, "", ""]).encode()


MIB = b"x" * (1 << 20)
CHUNKED = answer("Transfer-Encoding: chunked")
LONG_HEADER = b"x: " + b"x" * 60_000 + b"\r\n"
# Each goes on for 100 MiB.
ENDLESS: dict[str, Callable[[], Iterator[bytes]]] = {
    "of chunks": lambda: chain([CHUNKED], repeat(b"100000\r\n" + MIB + b"\r\n", 100)),
    "of one chunk": lambda: chain([CHUNKED, b"fffffffffffff\r\n"], repeat(MIB, 100)),
    "of a chunk below zero": lambda: chain([CHUNKED, b"-1\r\n"], repeat(MIB, 100)),
    "without a length": lambda: chain([answer()], repeat(MIB, 100)),
    "of a large length": lambda: chain([answer("Content-Length: 1" + "0" * 15)], repeat(MIB, 100)),
    "of interim answers": lambda: repeat(
        answer(status="100 Continue")[:-2] + LONG_HEADER + b"\r\n", 1700
    ),
    "of trailers": lambda: chain([CHUNKED, b"0\r\n"], repeat(LONG_HEADER, 1700)),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_no_more_of_an_answer_is_read_than_it_may_have(name: str) -> None:
    with Raw(ENDLESS[name]) as server, hutch.Client(server.url) as client:
        with pytest.raises(hutch.AgentUnavailable, match="it has more than 64 MiB") as error:
            client.run("1", key="k")
        assert error.value.may_have_run and error.value.outcome is not None
        assert server.asked == 1


def in_chunks(body: bytes) -> Iterator[bytes]:
    yield CHUNKED
    for at in range(0, len(body), 70_000):
        piece = body[at : at + 70_000]
        yield b"%x;extension\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\nx: y\r\n\r\n"


def test_a_large_answer_is_read_however_it_is_sent() -> None:
    """The harmless counterpart."""
    found = hutch.Outcome[Any]("returned", stdout="[1, " * 5_000_000)
    body = json.dumps(wire.to_wire(found)).encode()
    interim = answer(status="100 Continue")
    ways: list[Callable[[], Iterator[bytes]]] = [
        lambda: in_chunks(body),
        lambda: iter([interim, answer(f"Content-Length: {len(body)}"), body]),
        lambda: iter([answer("Connection: close"), body]),
    ]
    for way in ways:
        with Raw(way) as server, hutch.Client(server.url) as client:
            assert client.run("1").stdout == found.stdout


@pytest.mark.parametrize(
    "broken",
    [b"", b"\0\xff", b"HTTP/1.1 200 OK", answer("Content-Length: 5") + b"{}", CHUNKED + b"5\r\n{}",
     CHUNKED + b"-5\r\n{}", CHUNKED + b"x\r\n{}", b"HTTP/9.9 200 OK\r\n\r\n",
     answer(*["a: b"] * 1000), answer(status="abc")],
)  # fmt: skip
def test_an_answer_that_is_broken_is_none(broken: bytes) -> None:
    with Raw(lambda: iter([broken])) as server, hutch.Client(server.url) as client:
        with pytest.raises(hutch.AgentUnavailable, match=r"did not answer|cannot be read") as error:
            client.run("1")
        assert error.value.may_have_run


def in_a_child(work: Callable[[], bool]) -> bool:
    """Of a fork."""
    if (child := os.fork()) == 0:
        good = False
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            good = work()
        finally:
            os._exit(0 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_has_connections_of_its_own() -> None:
    with Fake(FINE) as there, hutch.Client(there.url) as client:
        assert client.run("1").ok
        assert in_a_child(lambda: client.run("1").ok and client.run("1").ok)
        assert client.run("1").ok
        parent, child, again, last = there.callers
        assert parent == last != child == again


def test_a_forked_child_may_call_while_its_parent_does() -> None:
    """Whatever the parent's threads hold, and whatever the child does with what it inherited."""
    with Fake("hold", FINE) as there, hutch.Client(there.url) as client:
        found = client.map(["1", "1"], concurrency=1)
        waiting = threading.Thread(target=lambda: outcomes.extend(found))
        outcomes: list[Any] = []
        waiting.start()
        assert there.waits.wait(60)

        def calls_and_closes() -> bool:
            fine = client.run("1").ok
            client.close()
            return fine

        with client._servers._lock:  # as one of those threads may at that moment
            assert in_a_child(calls_and_closes)
        there.goes_on.set()
        waiting.join()
        assert [one.ok for one in outcomes] == [True, True]


def test_a_map_that_a_forked_child_drops_goes_on_in_its_parent() -> None:
    with Fake(FINE, "hold", FINE) as there, hutch.Client(there.url) as client:
        found = client.map(["1", "1"], concurrency=2, ordered=False)
        assert next(found).ok and there.waits.wait(60)

        def drops() -> bool:
            found.close()  # type: ignore[attr-defined]
            return True

        assert in_a_child(drops)
        there.goes_on.set()
        assert [one.ok for one in found] == [True]


@pytest.mark.parametrize(
    "url", ["", "localhost:80", "ftp://a", "http://", "http://a/?q", "unix://a"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a server"):
        hutch.Client(url)


GREENLETS = """
import sys, threading, time, types
monkey = types.ModuleType("gevent.monkey")
monkey.is_module_patched = lambda name: name == "threading"
sys.modules["gevent.monkey"] = monkey
waits, wait = [], threading.Event.wait
threading.Event.wait = lambda self, seconds=None: (waits.append(seconds), wait(self, seconds))[1]
def sleep(seconds): raise RuntimeError("gevent need not have patched it")
time.sleep = sleep
import hutch
program = hutch.Program("import time; time.sleep(0.2); print('ran')")
program.run()
assert program.submit().result().stdout == "ran\\n"
short = [one for one in waits if one is not None and one < 1]
print(len(short) > 1)
"""


def test_calls_in_flight_are_polled_where_a_thread_is_a_greenlet() -> None:
    """With a real gevent: tests/outside."""
    done = subprocess.run([sys.executable, "-c", GREENLETS], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
