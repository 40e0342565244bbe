# SPDX-License-Identifier: Apache-2.0
"""A secret's header through a whole cell: what the server gets, and that nobody else has the value.

The servers are this test's own, on loopback, with a certificate authority of its own that
agent.toml names. A secret's host is spoken to at port 443: the test needs that port of 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import Secret, sandbox

LOOPBACK = "127.0.0.0/8"  # lets "localhost" resolve to what it does
VALUE = "t0p-" + secrets.token_hex(16)


class Server:
    """Keeps the head of each request; answers with a redirect where the path asks for one."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self.listener, self.tls = listener, tls
        self.port: int = listener.getsockname()[1]
        self.heads: list[str] = []
        self.redirect_to = ""
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=[connection], daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        try:
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            data = b""
            while b"\r\n\r\n" not in data:
                part = connection.recv(65536)
                if not part:
                    return
                data += part
            head = data.partition(b"\r\n\r\n")[0].decode("latin-1")
            self.heads.append(head)
            status = "200 OK"
            if " /elsewhere" in head.splitlines()[0]:
                status = f"302 Found\r\nLocation: {self.redirect_to}"
            connection.sendall(
                f"HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".encode()
            )
        except OSError:
            pass
        finally:
            connection.close()

    def header(self, name: str) -> str | None:
        """Of the newest request; None: it had none."""
        for line in self.heads[-1].splitlines()[1:]:
            if line.lower().startswith(name.lower() + ":"):
                return line.partition(":")[2].strip()
        return None


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_certificates(directory: Path) -> None:
    """ca.pem, of nobody's; cert.pem and key.pem of it for localhost; stranger.pem, another's."""
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for name in ("ca", "stranger"):
        openssl("req", "-x509", *new_key, "-keyout", f"{directory}/{name}.key", "-out",
                f"{directory}/{name}.pem", "-subj", f"/CN={name}", "-days", "2")  # fmt: skip
    (directory / "ext").write_text("subjectAltName=DNS:localhost\n")
    openssl("req", *new_key, "-keyout", f"{directory}/key.pem", "-out", f"{directory}/csr.pem",
            "-subj", "/CN=localhost")  # fmt: skip
    openssl("x509", "-req", "-in", f"{directory}/csr.pem", "-CA", f"{directory}/ca.pem", "-CAkey",
            f"{directory}/ca.key", "-CAcreateserial", "-out", f"{directory}/cert.pem", "-days", "2",
            "-extfile", f"{directory}/ext")  # fmt: skip


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    made = Path(tempfile.mkdtemp(prefix="hutch-secrets-"))
    made.chmod(0o755)  # Podman's user reads what is in it
    make_certificates(made)
    for name in ("ca.pem", "stranger.pem"):
        (made / name).chmod(0o644)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def api(directory: Path) -> Iterator[Server]:
    """Stands for the host that the secret is of: TLS at localhost:443."""
    deadline = time.monotonic() + 120
    while True:
        try:
            listener = socket.create_server(("127.0.0.1", 443), backlog=64)
            break
        except PermissionError:
            pytest.skip("a secret's host is at port 443, and this user may not listen there")
        except OSError:
            if time.monotonic() > deadline:
                pytest.skip("a secret's host is at port 443, and somebody else listens there")
            time.sleep(0.5)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    yield Server(listener, tls)
    listener.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    """A server without TLS on the same host."""
    made = Server(socket.create_server(("127.0.0.1", 0)))
    yield made
    made.listener.close()


@pytest.fixture(scope="module")
def trust(configuring: Any) -> Iterator[Callable[[Path | str], None]]:
    """Has the agent trust the certificates of that file."""
    with configuring() as write:
        yield lambda path: write(f'[host]\nca_bundle = "{path}"\n')


@pytest.fixture(autouse=True, scope="module")
def trusted(directory: Path, trust: Callable[[Path | str], None]) -> None:
    trust(directory / "ca.pem")


def request(url: str, method: str = "GET", headers: dict[str, str] | None = None) -> Any:
    """The status and the body; a redirect is followed, as urllib does."""
    import urllib.error
    import urllib.request

    asked = urllib.request.Request(url, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def with_secret(*allowed: str, **restrictions: Any) -> Any:
    secret = Secret(VALUE, prefix="Bearer ", **restrictions)
    return sandbox(
        request,
        secrets={"localhost": {"Authorization": secret}},
        allow_network=[LOOPBACK, *allowed],
        timeout_sec=60,
    )


def test_the_header_arrives_over_tls_in_place_of_the_cells_own(api: Server) -> None:
    outcome = with_secret().run("http://localhost/v1/x?y", "GET", {"Authorization": "mine"})
    assert outcome.unwrap() == (200, b"ok")
    assert api.heads[-1].startswith("GET /v1/x?y HTTP/1.1")
    assert api.header("Authorization") == f"Bearer {VALUE}"
    assert api.header("Host") == "localhost"
    assert "mine" not in api.heads[-1]
    (record,) = outcome.network
    assert (record.host, record.port, record.allowed) == ("localhost", 80, True)


def test_without_the_secret_the_program_speaks_tls_itself_or_not_at_all(
    api: Server, directory: Path
) -> None:
    """The harmless counterpart: with https:// the proxy sees only bytes, and adds nothing."""

    def by_https(ca: str) -> int:
        import ssl
        import urllib.request

        context = ssl.create_default_context(cadata=ca)
        with urllib.request.urlopen("https://localhost/v1", context=context, timeout=20) as answer:
            return int(answer.status)

    secret = Secret(VALUE, prefix="Bearer ")
    reach = sandbox(
        by_https,
        secrets={"localhost": {"Authorization": secret}},
        allow_network=["localhost", LOOPBACK],
        timeout_sec=60,
    )
    assert reach((directory / "ca.pem").read_text()) == 200
    assert api.header("Authorization") is None


def test_no_header_goes_where_there_is_no_tls(api: Server, plain: Server) -> None:
    allowed = f"localhost:{plain.port}"
    assert with_secret(allowed)(f"http://localhost:{plain.port}/v1") == (200, b"ok")
    assert plain.header("Authorization") is None
    api.redirect_to = f"http://localhost:{plain.port}/after"
    assert with_secret(allowed)("http://localhost/elsewhere") == (200, b"ok")
    assert api.header("Authorization") == f"Bearer {VALUE}"  # of the request that was redirected
    assert plain.heads[-1].startswith("GET /after") and plain.header("Authorization") is None


def test_no_header_follows_a_redirect_to_another_host(api: Server, plain: Server) -> None:
    other = socket.gethostname()
    try:
        if not socket.gethostbyname(other).startswith("127."):
            raise OSError
    except OSError:
        pytest.skip("this machine's own name is no second name for its loopback")
    api.redirect_to = f"http://{other}:{plain.port}/after"
    before = len(plain.heads)
    status, body = with_secret()("http://localhost/elsewhere")
    assert status == 403 and b"is not in allow_network" in body and len(plain.heads) == before
    assert with_secret(f"{other}:{plain.port}")("http://localhost/elsewhere") == (200, b"ok")
    assert plain.heads[-1].startswith("GET /after") and plain.header("Authorization") is None


def test_paths_and_methods_limit_what_the_secret_goes_with(api: Server) -> None:
    limited = with_secret(paths=["/v1"], methods=["GET"])
    for url, method, has in [
        ("http://localhost/v1/x", "GET", True),
        ("http://localhost/v1", "GET", True),
        ("http://localhost/v1/x", "DELETE", False),
        ("http://localhost/v10", "GET", False),
        ("http://localhost/v2/x", "GET", False),
        ("http://localhost/v1/../v2", "GET", False),
        ("http://localhost/v1/%2e%2e/v2", "GET", False),
    ]:
        assert limited(url, method) == (200, b"ok")
        assert (api.header("Authorization") == f"Bearer {VALUE}") == has, (url, method)


def test_a_server_that_nobody_trusts_gets_nothing(
    api: Server, directory: Path, trust: Callable[[Path], None]
) -> None:
    before = len(api.heads)
    trust(directory / "stranger.pem")
    try:
        status, body = with_secret()("http://localhost/v1")
    finally:
        trust(directory / "ca.pem")
    assert status == 502 and b"its certificate is not trusted" in body
    assert len(api.heads) == before
    assert with_secret()("http://localhost/v1") == (200, b"ok")  # a changed file holds at once


def test_a_bundle_that_is_not_there_is_said_and_mended_by_one(
    api: Server, directory: Path, trust: Callable[[Path], None]
) -> None:
    trust(directory / "gone.pem")
    try:
        outcome = with_secret().run("http://localhost/v1")
    finally:
        trust(directory / "ca.pem")
    assert not outcome.ok
    assert "gone.pem" in " ".join(record.reason for record in outcome.network)
    assert with_secret()("http://localhost/v1") == (200, b"ok")
    assert api.header("Authorization") == f"Bearer {VALUE}"


def find_secrets(url: str, planted: str = "") -> dict[str, Any]:
    """Where in this cell anything is that looks as the value does. Nothing here knows it."""
    import glob
    import re
    import urllib.request

    with urllib.request.urlopen(url, timeout=20) as answer:
        status = answer.status
    looks = re.compile(rb"t0p" + rb"-[0-9a-f]{32}")
    found, searched = [], 0
    for name in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(name, "rb") as file:
                text = file.read()
        except OSError:
            continue
        found += [name] * len(looks.findall(text))
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            area, rights = line.split()[:2]
            begin, end = (int(part, 16) for part in area.split("-"))
            try:
                memory.seek(begin)
                while begin < end and rights[0] == "r":
                    text = memory.read(min(end - begin, 1 << 22))
                    begin += len(text)
                    searched += len(text)
                    found += [line] * bool(looks.search(text))
            except (OSError, OverflowError, ValueError):
                continue
    return {"status": status, "found": found, "searched": searched, "planted": len(planted)}


def test_the_value_is_with_nobody_but_the_proxy(api: Server) -> None:
    from hutch import _core

    search = sandbox(
        find_secrets,
        secrets={"localhost": {"Authorization": Secret(VALUE, prefix="Bearer ")}},
        allow_network=[LOOPBACK],
        timeout_sec=60,
    )
    outcome = search.run("http://localhost/v1")
    value = outcome.unwrap()
    assert api.header("Authorization") == f"Bearer {VALUE}"
    assert value["status"] == 200 and value["searched"] > 4 << 20 and value["found"] == []
    other = "-".join(["t0p", secrets.token_hex(16)])  # what is there is found
    assert search("http://localhost/v1", other)["found"]

    texts = {
        "the Outcome": json.dumps(outcome.to_dict(), default=str) + repr(outcome) + str(outcome),
        "the agent's status": repr(hutch.status()),
        "the processes": processes(),
    }
    home = Path(str(_core.paths()["state_dir"]))
    for file in [*home.glob("audit/*"), *home.glob("*.log"), *home.glob("*.toml")]:
        texts[str(file)] = file.read_text(errors="replace")
    assert any("audit" in name for name in texts)
    ours = f"label=hutch.instance={_core.paths()['instance'] or 'default'}"
    listed = hutch_podman("ps", "-aq", "--no-trunc", "--filter", ours).split()
    assert listed
    texts["the containers' specs"] = hutch_podman("inspect", *listed)
    texts["the logs of the containers"] = hutch_podman("logs", *listed)
    assert [name for name, text in texts.items() if VALUE in text] == []


def processes() -> str:
    """Arguments and environments of every process; of this one, who knows the value, none."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        if directory.name == str(os.getpid()):
            continue
        for name in ("cmdline", "environ"):
            try:
                found.append((directory / name).read_bytes())
            except OSError:
                continue
    return b"\n".join(found).decode(errors="replace")


def hutch_podman(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("hutch")), "podman", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + done.stderr
