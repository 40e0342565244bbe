# SPDX-License-Identifier: Apache-2.0
"""allow_network with the real thing: programs that know nothing of proxies reach what is allowed.

The servers are this test's own, on loopback; a name resolves there only because 127.0.0.0/8 is in
the list too.
"""

from __future__ import annotations

import http.server
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import HttpServer

import hutch
from hutch import NetworkDenied, sandbox

LOOPBACK = "127.0.0.0/8"  # lets "localhost" resolve to what it does


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"hello {self.path}".encode()
        if self.path.startswith("/size/"):
            body = bytes(int(self.path.rpartition("/")[2]))
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "http://elsewhere.example:8080/")
        else:
            self.send_response(200)
        self.server.seen.append(dict(self.headers))  # type: ignore[attr-defined]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *_: object) -> None:
        pass


class Server(HttpServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[dict[str, str]] = []


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server()
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def web() -> Iterator[int]:
    """The port of an HTTP server."""
    with serving() as server:
        yield server.server_port


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The port of an HTTPS server for "localhost", and the PEM of who signed for it."""
    directory = tmp_path_factory.mktemp("tls")
    make_certificate(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    with serving(context) as server:
        yield server.server_port, (directory / "cert.pem").read_text()


def make_certificate(directory: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        + ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", directory / "key.pem"]
        + ["-addext", "subjectAltName=DNS:localhost", "-out", directory / "cert.pem"],
        check=True,
        capture_output=True,
    )


def get(url: str) -> bytes:
    import urllib.request

    with urllib.request.urlopen(url, timeout=10) as response:
        return bytes(response.read())


def fetch(port: int, **keywords: Any) -> Any:
    return sandbox(get, allow_network=[f"localhost:{port}", LOOPBACK], timeout_sec=20, **keywords)


def test_an_allowed_host_is_reached_by_its_name_and_recorded(web: int) -> None:
    outcome = fetch(web).run(f"http://localhost:{web}/x")
    assert outcome.unwrap() == b"hello /x"
    [record] = outcome.network
    assert (record.host, record.port, record.allowed) == ("localhost", web, True)
    assert record.bytes_sent > 20 and record.bytes_received > 20
    assert outcome.to_dict()["network"][0]["host"] == "localhost"


def test_every_call_has_a_record_of_its_own(web: int) -> None:
    function = fetch(web)
    outcomes = list(
        function.map([f"http://localhost:{web}/{i}" for i in range(6)], on_error="outcome")
    )
    assert [outcome.unwrap() for outcome in outcomes] == [b"hello /%d" % i for i in range(6)]
    assert [record.count for outcome in outcomes for record in outcome.network] == [1] * 6
    assert function.submit(f"http://localhost:{web}/y").result() == b"hello /y"


def test_another_host_is_refused_and_the_error_names_what_would_allow_it(web: int) -> None:
    @sandbox(allow_network=["*.allowed.example", LOOPBACK], timeout_sec=20)
    def reach(url: str) -> bytes:
        import urllib.request

        return bytes(urllib.request.urlopen(url, timeout=10).read())

    with pytest.raises(NetworkDenied) as caught:
        reach("http://other.example:8080/")
    assert caught.value.pattern == "other.example:8080"
    assert caught.value.hint == "allow_network=['other.example:8080'] would allow it"
    outcome = reach.run("http://other.example:8080/")
    assert outcome.error is not None and "Error" in outcome.error.type
    [record] = outcome.network
    assert (record.host, record.port, record.allowed) == ("other.example", 8080, False)


def test_a_server_of_its_own_is_not_asked_through_the_proxy() -> None:
    @sandbox(allow_network=["*.allowed.example", LOOPBACK], timeout_sec=20)
    def ask() -> list[tuple[str, bytes]]:
        import http.server
        import os
        import socket
        import threading
        import urllib.request

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"own")

        assert os.environ["HTTP_PROXY"]
        server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hosts = ["0.0.0.0", "127.0.0.1", "localhost", socket.gethostname()]
        port = server.server_address[1]
        return [(x, urllib.request.urlopen(f"http://{x}:{port}").read()) for x in hosts]

    outcome = ask.run()
    assert [said for _, said in outcome.unwrap()] == [b"own"] * 4 and not outcome.network


def test_a_refusal_that_the_function_lives_with_is_recorded_and_no_error(web: int) -> None:
    @sandbox(allow_network=["*.allowed.example", LOOPBACK], timeout_sec=20)
    def tolerant(url: str) -> str:
        import urllib.request

        try:
            urllib.request.urlopen(url, timeout=10)
        except OSError as error:
            return str(error)
        return "reached"

    outcome = tolerant.run("http://other.example/")
    assert outcome.ok and outcome.value is not None and "403" in outcome.value
    assert [record.allowed for record in outcome.network] == [False]


def test_a_name_that_resolves_into_a_private_network_is_refused(web: int) -> None:
    with pytest.raises(NetworkDenied):
        sandbox(get, allow_network=[f"localhost:{web}"], timeout_sec=20)(f"http://localhost:{web}/")


def test_a_redirect_elsewhere_is_refused(web: int) -> None:
    outcome = fetch(web).run(f"http://localhost:{web}/elsewhere")
    assert isinstance(outcome.exception(), NetworkDenied)
    assert {record.host: record.allowed for record in outcome.network} == {
        "localhost": True,
        "elsewhere.example": False,
    }


def test_calls_without_a_network_still_have_none() -> None:
    @sandbox
    def look() -> dict[str, Any]:
        import os
        import socket

        found: dict[str, Any] = {
            "proxies": [name for name in os.environ if "PROXY" in name.upper()]
        }
        for address in (("127.63.0.1", 3128), ("127.64.0.1", 443), ("127.64.0.1", 80)):
            try:
                socket.create_connection(address, timeout=2)
                found[str(address)] = "reached"
            except OSError as error:
                found[str(address)] = type(error).__name__
        found["hosts"] = open("/etc/hosts").read()
        return found

    outcome = look.run()
    found = outcome.unwrap()
    assert found.pop("proxies") == [] and "127.64" not in found.pop("hosts")
    assert set(found.values()) == {"ConnectionRefusedError"}
    assert outcome.network == []


def test_tls_is_end_to_end(tls: tuple[int, str]) -> None:
    port, authority = tls

    @sandbox(allow_network=[f"localhost:{port}", LOOPBACK], timeout_sec=20)
    def secure(port: int, authority: str) -> tuple[bytes, str]:
        import http.client
        import ssl

        context = ssl.create_default_context(cadata=authority)
        connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=10)
        connection.request("GET", "/tls")
        issuer = dict(pair[0] for pair in connection.sock.getpeercert()["issuer"])
        return connection.getresponse().read(), issuer["commonName"]

    assert secure(port, authority) == (b"hello /tls", "localhost")


def test_a_request_and_its_answer_may_be_large(web: int) -> None:
    @sandbox(allow_network=[f"localhost:{web}", LOOPBACK], timeout_sec=25)
    def large(port: int) -> tuple[int, bool]:
        import http.client

        connection = http.client.HTTPConnection("localhost", port, timeout=20)
        connection.request("GET", f"/size/{20 << 20}")
        size = len(connection.getresponse().read())
        sent = bytes(range(256)) * (8 << 12)
        connection.request("POST", "/", body=sent)
        return size, connection.getresponse().read() == sent[::-1]

    outcome = large.run(web)
    assert outcome.unwrap() == (20 << 20, True)
    assert sum(record.bytes for record in outcome.network) >= 36 << 20


def test_socks_and_connect_reach_the_same_and_refuse_the_same(web: int) -> None:
    @sandbox(allow_network=[f"localhost:{web}", LOOPBACK], timeout_sec=20)
    def by_proxy(port: int, other: int) -> dict[str, bytes]:
        import os
        import socket
        import struct
        import urllib.parse

        proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
        place = (proxy.hostname, proxy.port)
        request = b"GET /p HTTP/1.0\r\nHost: localhost\r\n\r\n"
        answers = {}

        def read(s: socket.socket) -> bytes:
            return b"".join(iter(lambda: s.recv(65536), b""))

        for name, to in (("connect", port), ("connect refused", other)):
            with socket.create_connection(place, timeout=10) as s:
                s.sendall(
                    f"CONNECT localhost:{to} HTTP/1.1\r\nHost: localhost:{to}\r\n\r\n".encode()
                )
                head = s.recv(4096)
                answers[name] = head.split(b"\r\n")[0]
                if b" 200 " in head:
                    s.sendall(request)
                    answers[name] = read(s)
        for name, to in (("socks", port), ("socks refused", other)):
            with socket.create_connection(place, timeout=10) as s:
                s.sendall(b"\5\1\0")
                assert s.recv(2) == b"\5\0"
                s.sendall(b"\5\1\0\3\x09localhost" + struct.pack(">H", to))
                reply = s.recv(10)
                answers[name] = reply[:2]
                if reply[1] == 0:
                    s.sendall(request)
                    answers[name] = read(s)
        return answers

    outcome = by_proxy.run(web, web + 1 if web < 65535 else web - 1)
    answers = outcome.unwrap()
    assert answers["connect"].endswith(b"hello /p") and answers["socks"].endswith(b"hello /p")
    assert b"403" in answers["connect refused"]
    assert answers["socks refused"] == b"\5\2"
    assert sorted(record.allowed for record in outcome.network) == [False, True]


CLIENTS = ["requests", "httpx", "aiohttp"]


def test_the_clients_that_people_use_work_unchanged(web: int, tls: tuple[int, str]) -> None:
    port, authority = tls

    @sandbox(
        dependencies=CLIENTS,
        allow_network=[f"localhost:{web}", f"localhost:{port}", LOOPBACK],
        timeout_sec=30,
        memory_mb=512,
    )
    def clients(port: int, secure: int, authority: str) -> dict[str, str]:
        import asyncio
        import pathlib
        import ssl

        import aiohttp
        import httpx
        import requests

        pathlib.Path("ca.pem").write_text(authority)
        context = ssl.create_default_context(cadata=authority)
        plain, tls = f"http://localhost:{port}/c", f"https://localhost:{secure}/c"

        async def ask() -> list[str]:
            async with aiohttp.ClientSession(trust_env=True) as session:
                answers = []
                for url in (plain, tls):
                    async with session.get(url, ssl=context) as response:
                        answers.append(await response.text())
                return answers

        answers = dict(zip(("aiohttp", "aiohttp tls"), asyncio.run(ask())))
        answers["requests"] = requests.get(plain, timeout=10).text
        answers["requests tls"] = requests.get(tls, timeout=10, verify="ca.pem").text
        answers["httpx"] = httpx.get(plain).text
        answers["httpx tls"] = httpx.get(tls, verify=context).text
        return answers

    assert set(clients(web, port, authority).values()) == {"hello /c"}


def test_programs_have_a_network_too(web: int) -> None:
    outcome = hutch.run(
        f"import urllib.request\nprint(urllib.request.urlopen('http://localhost:{web}/z').read())",
        allow_network=[f"localhost:{web}", LOOPBACK],
    )
    assert outcome.stdout == "b'hello /z'\n"
    assert [record.port for record in outcome.network] == [web]


def test_a_worker_of_its_own_has_a_network_too(web: int) -> None:
    function = fetch(web, isolation="container")
    assert function(f"http://localhost:{web}/w") == b"hello /w"


def test_calls_with_other_lists_share_no_cell(web: int) -> None:
    with serving() as other:
        first, second = fetch(web), fetch(other.server_port)
        assert first(f"http://localhost:{web}/1") == b"hello /1"
        assert second(f"http://localhost:{other.server_port}/2") == b"hello /2"
        with pytest.raises((NetworkDenied, hutch.SandboxError)):
            second(f"http://localhost:{web}/3")


@pytest.mark.skipif(os.geteuid() != 0, reason="port 443 is root's")
def test_a_secret_is_never_sent_to_a_server_that_does_not_prove_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificate(tmp_path)
    monkeypatch.setenv("A_TOKEN", "t0ps3cret")
    received: list[bytes] = []
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", 443))
        except OSError:
            pytest.skip("port 443 is in use here")
        listener.listen()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                    with context.wrap_socket(connection, server_side=True) as secure:
                        received.append(secure.recv(4096))
                except (OSError, ValueError):
                    if listener.fileno() < 0:
                        return

        threading.Thread(target=accept, daemon=True).start()
        secret = hutch.Secret.from_env("A_TOKEN", prefix="Bearer ")
        function = sandbox(
            get,
            allow_network=LOOPBACK,
            secrets={"localhost": {"Authorization": secret}},
            timeout_sec=20,
        )
        outcome = function.run("http://localhost/")
        listener.shutdown(socket.SHUT_RDWR)  # the thread in accept() would keep the port
    assert not outcome.ok
    assert received == []
    assert "t0ps3cret" not in repr(outcome.to_dict())
