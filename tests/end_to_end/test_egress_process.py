# SPDX-License-Identifier: Apache-2.0
"""`hutch-agent --egress` as a process of its own: this file plays its agent and its forwarder.

Each test runs in a network namespace that it makes, with a hosts file of its own, so that names,
port 443 and a certificate authority are the test's: nothing but this machine is spoken to.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hutch._core import FRAME_VERSION

AGENT = Path(sys.prefix).glob("lib/python*/site-packages/hutch/_runtime/hutch-agent")
HOSTS = "127.0.0.1 localhost api.test other.test\n10.99.0.1 private.test\n"
TOKEN = "s3cret-token"
FRAME = struct.Struct("<HBBIQQQ")
MAGIC, OPEN_STREAM, STREAM = 0x4348, 48, 49
PROXY_LISTENER = 0xFFFF
F_ADD_SEALS, ALL_SEALS = 1033, 0x0F


class Egress:
    """The process, as its agent and one cell's forwarder see it."""

    def __init__(self, directory: Path, ca: Path) -> None:
        path = str(directory / "egress.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(1)
        self.listener.settimeout(30)
        self.process = subprocess.Popen(
            [next(AGENT), "--egress", "--socket", path, "--ca", str(ca)],
            env={"HUTCH_TOKEN": "t0ken"},
        )
        self.control, _ = self.listener.accept()
        self.control.settimeout(30)
        assert self.receive() == {"is": "hello", "token": "t0ken"}
        self.next = 1

    def send(self, message: dict[str, Any], *descriptors: int) -> None:
        memfd = os.memfd_create("message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(memfd, json.dumps(message).encode())
        fcntl.fcntl(memfd, F_ADD_SEALS, ALL_SEALS)
        socket.send_fds(self.control, [b"J"], [memfd, *descriptors])
        os.close(memfd)

    def receive(self) -> dict[str, Any]:
        _, descriptors, _, _ = socket.recv_fds(self.control, 2, 2)
        with os.fdopen(descriptors[0], "rb") as file:
            file.seek(0)
            return json.load(file)  # type: ignore[no-any-return]

    def add(self, *allow: str, secrets: list[dict[str, Any]] | None = None) -> None:
        self.send({"is": "policy", "id": 1, "allow_network": allow, "secrets": secrets or []})
        self.forwarder, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.forwarder.settimeout(30)
        self.send({"is": "add", "cell": 1, "policy": 1}, theirs.fileno())
        theirs.close()

    def open(self, listener: int) -> socket.socket | None:
        version = FRAME_VERSION
        self.forwarder.send(FRAME.pack(MAGIC, version, OPEN_STREAM, listener, self.next, 0, 0))
        self.next += 1
        frame, descriptors, _, _ = socket.recv_fds(self.forwarder, FRAME.size, 1)
        if FRAME.unpack(frame)[2] != STREAM:
            return None
        stream = socket.socket(fileno=descriptors[0])
        stream.settimeout(30)
        return stream

    def records(self) -> list[dict[str, Any]]:
        self.send({"is": "close", "cell": 1})
        records: list[dict[str, Any]] = self.receive()["records"]
        return records


def serve(listener: socket.socket, handle: Callable[[socket.socket], None]) -> None:
    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=guarded, args=(connection,), daemon=True).start()

    def guarded(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            handle(connection)

    threading.Thread(target=accept, daemon=True).start()


def listen(port: int, handle: Callable[[socket.socket], None]) -> int:
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    serve(listener, handle)
    bound: int = listener.getsockname()[1]
    return bound


def echo_heads(connection: socket.socket) -> None:
    """An HTTP server whose answers are the heads of the requests."""
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            part = connection.recv(65536)
            if not part:
                return
            data += part
        head, data = data.split(b"\r\n\r\n", 1)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head) + head)


def exchange(stream: socket.socket, request: bytes) -> bytes:
    stream.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        part = stream.recv(65536)
        if not part:
            return data
        data += part
    head, body = data.split(b"\r\n\r\n", 1)
    length = next(int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.startswith(b"Content-L"))
    while len(body) < length:
        body += stream.recv(65536)
    return head + b"\r\n\r\n" + body


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def make_certificate(directory: Path, name: str) -> tuple[Path, Path, Path]:
    """A certificate authority of the test's own, and a certificate of it for `name`."""
    ca, key = directory / "ca.pem", directory / "key.pem"
    ca_key, csr, cert = directory / "ca.key", directory / "csr.pem", directory / "cert.pem"
    ext = directory / "ext"
    ext.write_text(f"subjectAltName=DNS:{name}\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run("openssl", "req", "-x509", *new_key, "-keyout", str(ca_key), "-out", str(ca),
        "-subj", "/CN=test ca", "-days", "2")  # fmt: skip
    run("openssl", "req", *new_key, "-keyout", str(key), "-out", str(csr), "-subj", "/CN=x")
    run("openssl", "x509", "-req", "-in", str(csr), "-CA", str(ca), "-CAkey", str(ca_key),
        "-CAcreateserial", "-out", str(cert), "-days", "2", "-extfile", str(ext))  # fmt: skip
    return ca, cert, key


@contextlib.contextmanager
def world(directory: Path, *, name: str = "api.test") -> Iterator[Egress]:
    """A TLS server at 127.0.0.1:443 with a certificate for `name`, and the process."""
    hosts = directory / "hosts"
    hosts.write_text(HOSTS)
    nsswitch = directory / "nsswitch.conf"
    nsswitch.write_text("hosts: files\n")
    run("mount", "--bind", str(hosts), "/etc/hosts")
    run("mount", "--bind", str(nsswitch), "/etc/nsswitch.conf")
    with socket.socket() as s:  # lo up
        fcntl.ioctl(s, 0x8914, struct.pack("16sH14s", b"lo", 1, b""))
    ca, cert, key = make_certificate(directory, name)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    listen(443, lambda c: echo_heads(tls.wrap_socket(c, server_side=True)))
    egress = Egress(directory, ca)
    try:
        yield egress
    finally:
        egress.control.close()
        assert egress.process.wait(30) == 0  # it ends with its agent


def secret(**more: Any) -> dict[str, Any]:
    rule = {"host": "api.test", "header": "Authorization", "paths": [], "methods": []}
    return {**rule, "value": list(f"Bearer {TOKEN}".encode()), **more}


GET = b"GET /v1/x HTTP/1.1\r\nHost: api.test\r\nAuthorization: mine\r\n\r\n"


def secret_is_added_over_verified_tls(directory: Path) -> None:
    with world(directory) as egress:
        egress.add("127.0.0.0/8", secrets=[secret(paths=["/v1"], methods=["GET", "POST"])])
        stream = egress.open(0)
        assert stream is not None
        for _ in range(2):  # kept alive
            answer = exchange(stream, GET)
            assert f"Authorization: Bearer {TOKEN}".encode() in answer, answer
            assert b"mine" not in answer
        other = exchange(stream, GET.replace(b"/v1/", b"/v2/"))
        assert TOKEN.encode() not in other and b"Authorization: mine" in other
        refused = exchange(stream, GET.replace(b"Host: api.test", b"Host: other.test"))
        assert refused == b""
        (allowed,) = (r for r in egress.records() if r["port"] == 80)
        assert TOKEN not in json.dumps(allowed)


def secret_is_not_sent_to_a_server_without_its_certificate(directory: Path) -> None:
    with world(directory, name="other.test") as egress:
        egress.add("127.0.0.0/8", secrets=[secret()])
        stream = egress.open(0)
        assert stream is not None
        answer = exchange(stream, GET)
        assert answer.startswith(b"HTTP/1.1 502 "), answer
        assert b"certificate" in answer and TOKEN.encode() not in answer
        (record,) = egress.records()
        assert "certificate" in record["reason"]


def tls_of_the_cell_must_name_its_host(directory: Path) -> None:
    with world(directory) as egress:
        egress.add("127.0.0.0/8", "api.test:443", "*.test")
        client = ssl.create_default_context(cafile=str(directory / "ca.pem"))
        client.check_hostname = False

        def speak(stream: socket.socket | None, name: str | None) -> bytes:
            assert stream is not None
            with client.wrap_socket(stream, server_hostname=name) as tls:
                return exchange(tls, GET)

        assert b"200 OK" in speak(egress.open(0), "api.test")
        for name in ("other.test", None):
            with pytest.raises(OSError):
                speak(egress.open(0), name)
        stream = egress.open(PROXY_LISTENER)
        assert stream is not None
        stream.sendall(b"CONNECT other.test:443 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert stream.recv(4096).startswith(b"HTTP/1.1 200")
        with pytest.raises(OSError):
            speak(stream, "api.test")  # allowed by another rule, but not what was asked for
        refusals = [r for r in egress.records() if not r["allowed"]]
        assert {"other.test", "api.test"} == {r["host"] for r in refusals if r["host"]}
        assert any(r["suggestion"] == "other.test:443" for r in refusals)


def name_in_the_hosts_file_with_a_private_address_is_refused(directory: Path) -> None:
    with world(directory) as egress:
        egress.add("private.test", "api.test:443")
        assert egress.open(0) is None  # 10.99.0.1
        assert egress.open(2) is None  # 127.0.0.1: no network is named
        reasons = [r["reason"] for r in egress.records()]
        assert reasons[0] == "private.test resolves to 10.99.0.1: private (RFC 1918)"
        assert reasons[1] == "api.test resolves to 127.0.0.1: loopback"


class NameServer:
    """Answers every question with 127.0.0.1, but those of zones that never answer."""

    def __init__(self, known: set[str]) -> None:
        self.asked: list[str] = []
        self.known = known
        self.socket = socket.socket(type=socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            question, sender = self.socket.recvfrom(4096)
            labels, at = [], 12
            while question[at]:
                labels.append(question[at + 1 : at + 1 + question[at]].decode())
                at += 1 + question[at]
            name, kind = ".".join(labels).lower(), question[at + 1 : at + 3]
            self.asked.append(name)
            if name.endswith("silent.test"):
                continue
            known = name in self.known
            answer = known and kind == b"\0\1"
            head = question[:2] + (b"\x81\x80" if known else b"\x81\x83") + b"\0\1"
            head += (b"\0\1" if answer else b"\0\0") + b"\0\0\0\0"
            body = question[12 : at + 5]
            if answer:
                body += b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4\x7f\0\0\1"
            self.socket.sendto(head + body, sender)


@contextlib.contextmanager
def name_service(directory: Path, known: set[str]) -> Iterator[NameServer]:
    resolv = directory / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.1\nsearch evil.test corp.test\noptions ndots:5\n")
    run("mount", "--bind", str(resolv), "/etc/resolv.conf")
    (directory / "nsswitch.conf").write_text("hosts: files dns\n")
    yield NameServer(known)


def names_are_absolute(directory: Path) -> None:
    port = listen(0, echo_heads)
    with (
        world(directory) as egress,
        name_service(
            directory, {"found.test", "nothere.test.evil.test", "db.corp.test", "db.evil.test"}
        ) as server,
    ):
        hosts = [f"{name}:{port}" for name in ("found.test", "nothere.test", "db", "localhost")]
        egress.add(*hosts, "127.0.0.0/8")
        assert egress.open(0) is not None
        assert egress.open(1) is None  # and not what a search domain has of that name
        assert egress.open(2) is None
        assert egress.open(3) is not None  # the host's own file knows it
        assert set(server.asked) == {"found.test", "nothere.test", "db"}
        reasons = {record["host"]: record["reason"] for record in egress.records()}
        assert "did not resolve" in reasons["nothere.test"]
        assert "did not resolve" in reasons["db"]


def zones_that_never_answer_stop_one_call_alone(directory: Path) -> None:
    port = listen(0, echo_heads)
    with world(directory) as egress, name_service(directory, {"found.test"}) as server:
        egress.add("*.silent.test", f"found.test:{port}", "127.0.0.0/8")
        honest = egress.forwarder
        hostile = []
        for cell in range(2, 22):
            egress.forwarder, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            egress.send({"is": "add", "cell": cell, "policy": 1}, theirs.fileno())
            theirs.close()
            for n in range(8):
                stream = egress.open(PROXY_LISTENER)
                assert stream is not None
                request = f"CONNECT x{n}.c{cell}.silent.test:443 HTTP/1.1\r\nHost: x\r\n\r\n"
                stream.sendall(request.encode())
                hostile.append((egress.forwarder, stream))
        deadline = time.monotonic() + 30
        while len(set(server.asked)) < 36 and time.monotonic() < deadline:
            time.sleep(0.02)
        egress.forwarder = honest
        for _ in range(3):
            stream = egress.open(0)
            assert stream is not None
            assert b"200 OK" in exchange(stream, GET)
        for _, stream in hostile[:4]:
            assert stream.recv(4096).startswith(b"HTTP/1.1 50")  # in the end it is informed


def a_process_without_descriptors_to_spare_serves_everybody(directory: Path) -> None:
    """Where Podman may give few: nine calls that take all they can, and an honest one."""
    port = listen(0, echo_heads)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    with world(directory) as egress:
        egress.add("localhost:1", f"api.test:{port}", "127.0.0.0/8", "*.test")
        honest = egress.forwarder
        held = []
        counts = []
        for cell in range(2, 11):
            egress.forwarder, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            egress.send({"is": "add", "cell": cell, "policy": 1}, theirs.fileno())
            theirs.close()
            before = len(held)
            while stream := egress.open(PROXY_LISTENER):
                held.append((egress.forwarder, stream))
            counts.append(len(held) - before)
        assert min(counts) >= 8, counts
        egress.forwarder = honest
        kept = []
        for _ in range(5):
            stream = egress.open(1)
            assert stream is not None
            assert b"200 OK" in exchange(stream, GET)
            kept.append(stream)


def figures(directory: Path) -> None:
    """Prints what the proxy costs; asserts nothing of it."""

    def sink(connection: socket.socket) -> None:
        if connection.recv(1) == b"p":
            while connection.recv(1):
                connection.sendall(b"q")
        buffer = bytearray(1 << 20)
        while connection.recv_into(buffer):
            pass

    port = listen(0, sink)
    with world(directory) as egress:
        egress.add("127.0.0.0/8", f"api.test:{port}")

        def direct() -> socket.socket:
            return socket.create_connection(("127.0.0.1", port))

        def proxied() -> socket.socket:
            stream = egress.open(0)
            assert stream is not None
            return stream

        for name, connect in (("direct", direct), ("proxied", proxied)):
            opened = []
            for _ in range(200):
                begin = time.perf_counter()
                connection = connect()
                opened.append(time.perf_counter() - begin)
                connection.close()
            connection = connect()
            connection.sendall(b"p")
            trips = []
            for _ in range(2000):
                begin = time.perf_counter()
                connection.sendall(b"p")
                connection.recv(1)
                trips.append(time.perf_counter() - begin)
            connection.close()
            connection = connect()
            block, total = b"x" * (1 << 20), 1 << 30
            begin = time.perf_counter()
            for _ in range(total >> 20):
                connection.sendall(block)
            rate = total / (time.perf_counter() - begin) / 1e6
            connection.close()
            connect_us, trip_us = sorted(opened)[100] * 1e6, sorted(trips)[1000] * 1e6
            print(f"{name}: connect {connect_us:.0f} us, trip {trip_us:.0f} us, {rate:.0f} MB/s")


@pytest.mark.parametrize(
    "scenario",
    [
        secret_is_added_over_verified_tls,
        secret_is_not_sent_to_a_server_without_its_certificate,
        tls_of_the_cell_must_name_its_host,
        name_in_the_hosts_file_with_a_private_address_is_refused,
        names_are_absolute,
        zones_that_never_answer_stop_one_call_alone,
        a_process_without_descriptors_to_spare_serves_everybody,
    ],
)
def test(scenario: Callable[[Path], None], tmp_path: Path) -> None:
    result = subprocess.run(
        ["unshare", "-rnm", sys.executable, __file__, scenario.__name__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert result.returncode == 0, result.stdout + result.stderr


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
