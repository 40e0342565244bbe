# SPDX-License-Identifier: Apache-2.0
"""`Environment(base=…)` with real images: made here, named, pulled from a registry on this machine.

Real images: variants of the derived one, with something added, so that none comes from elsewhere.
"""

from __future__ import annotations

import glob
import hashlib
import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import HttpServer

import hutch
from hutch import Environment, sandbox
from hutch._connect import launcher

OWN = ".".join(map(str, sys.version_info[:2]))
LIBRARY = f"/opt/python/{sys.platlibdir}/python{OWN}"


def podman(*arguments: str, **more: Any) -> str:
    command = [launcher.PROGRAM, "--podman", "--", *arguments]
    done = subprocess.run(command, capture_output=True, **more)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode().strip()


def tar_of(files: dict[str, str], mode: int = 0o755) -> bytes:
    """An archive without padding: `podman cp` stops reading at the end marker."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(text), mode
            tar.addfile(info, io.BytesIO(text.encode()))
        end = tar.offset + 2 * tarfile.BLOCKSIZE
    return buffer.getvalue()[:end]


class Images:
    """Images of these tests, by names that nobody else has."""

    def __init__(self) -> None:
        hutch.run("pass")  # the derived one is there
        self.derived = f"localhost/hutch-base:{launcher.base_id()}"
        self._made: list[str] = []

    def name(self, what: str) -> str:
        self._made.append(f"localhost/hutch-test-{os.getpid()}:{what}")
        return self._made[-1]

    def variant(self, what: str, files: dict[str, str] | None = None, *changes: str) -> str:
        """The derived one with files and settings of its own."""
        name, container = self.name(what), f"hutch-test-{os.getpid()}-{what}"
        podman("create", "--name", container, "--network", "none", self.derived)
        try:
            if files:
                podman("cp", "-", f"{container}:/", input=tar_of(files))
            options = [word for change in changes for word in ("--change", change)]
            podman("commit", "--quiet", *options, container, name)
        finally:
            podman("rm", "--force", container)
        return name

    def imported(self, what: str, tar: bytes, *changes: str) -> str:
        options = [word for change in changes for word in ("--change", change)]
        name = self.name(what)
        podman("import", *options, "-", name, input=tar)
        return name

    def remove(self) -> None:
        command = [launcher.PROGRAM, "--podman", "--", "rmi", "--force"]
        for name in self._made:
            for _ in range(5):  # a container of it may just be on its way out
                if subprocess.run([*command, name], capture_output=True).returncode == 0:
                    break


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    made = Images()
    yield made
    hutch.close()
    made.remove()


@pytest.fixture(scope="module")
def variant(images: Images) -> str:
    return images.variant(
        "variant",
        {
            "app/model.txt": "weights",
            "app/volume/kept": "x",
            "opt/tool/bin/tool": "#!/bin/sh\necho tooled\n",
            "run/hutch/stolen": "x",
            # Where it is CPython's own Python, and where it is Debian's.
            f"{LIBRARY[1:]}/site-packages/of_image.py": "VALUE = 'of the image'\n",
            "opt/python/lib/python3/dist-packages/of_image.py": "VALUE = 'of the image'\n",
        },
        "ENV PATH=/opt/tool/bin:/opt/python/bin:/usr/bin:/bin",
        "ENV LEAKED=from-the-image",
        "VOLUME /app/volume",
        "WORKDIR /app",
        'ENTRYPOINT ["/bin/false"]',
        "USER root",
    )


def refusal(base: str, **more: Any) -> str:
    with pytest.raises(hutch.SandboxStartupError) as caught:
        hutch.run("pass", environment=Environment(base=base, **more))
    assert caught.value.hint, "it says what to do"
    assert not caught.value.may_have_run
    return str(caught.value)


def test_a_call_runs_on_the_image_that_is_named(variant: str) -> None:
    @sandbox(environment=Environment(base=variant))
    def look() -> tuple[str, str, str, str | None]:
        import subprocess

        from of_image import VALUE  # type: ignore[import-not-found]

        with open("/app/model.txt") as file:
            model = file.read()
        tooled = subprocess.run(["tool"], capture_output=True, text=True).stdout
        return model, tooled, VALUE, __import__("os").environ.get("LEAKED")

    assert look() == ("weights", "tooled\n", "of the image", None)


def test_the_derived_one_has_nothing_of_it(images: Images) -> None:
    @sandbox
    def look() -> bool:
        import os

        return os.path.exists("/app") or os.path.exists("/opt/tool")

    assert look() is False


def test_the_walls_are_the_same(variant: str) -> None:
    def probe() -> dict[str, object]:
        import os

        def refused(path: str) -> str:
            try:
                with open(path, "w"):
                    return "written"
            except OSError as error:
                return error.strerror or ""

        with open("/proc/self/status") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        with open("/proc/self/mountinfo") as file:
            writable = sorted(line.split()[4] for line in file if line.split()[5].startswith("rw,"))
        return {
            "status": [status[k] for k in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")],
            "filters": status["Seccomp_filters"],
            "run": os.listdir("/run"),
            "opt/hutch": os.path.exists("/opt/hutch"),
            "writable": writable,
            "root": [refused(path) for path in ("/new", "/usr/new", "/opt/new", "/etc/new")],
            "interfaces": os.listdir("/proc/self/net/dev_snmp6")
            if os.path.isdir("/proc/self/net/dev_snmp6")
            else [],
            "descriptors": len(os.listdir("/proc/self/fd")),
        }

    derived = sandbox(probe)()
    assert sandbox(environment=Environment(base=variant))(probe)() == derived

    def scribble() -> None:  # in the zygote, which sees the container as it is
        for path in ("/app/volume/new", "/usr/new", "/new"):
            try:
                open(path, "w")
            except OSError:
                continue
            raise AssertionError(f"{path} was written to")

    @sandbox(environment=Environment(base=variant), setup=scribble)
    def write() -> list[str]:
        said = []
        for path in ("/app/new", "/app/volume/new", "/opt/tool/new"):
            try:
                open(path, "w")
            except OSError as error:
                said.append(error.strerror or "")
        return said

    assert write() == ["Read-only file system"] * 3


def test_packages_are_installed_on_it_and_come_before_its_own(variant: str) -> None:
    @sandbox(environment=Environment(["six"], base=variant))
    def where() -> str:
        import six

        return str(six.__file__)

    assert where() == "/opt/env/six.py"


def test_another_image_by_the_same_name_is_another_environment(images: Images) -> None:
    def read(base: str) -> tuple[str, str]:
        function = hutch.function(
            "def solve():\n    return open('/app/x').read()",
            "solve",
            environment=Environment(base=base),
        )
        return function(), function.run().status

    name = images.variant("moved", {"app/x": "one"})
    again = images.name("again")
    podman("tag", name, again)
    assert read(name) == read(again) == ("one", "returned")
    images.variant("moved", {"app/x": "two"})
    hutch.close()  # what this process knows of the name
    assert read(name)[0] == "two"
    assert read(again)[0] == "one"


def test_an_image_without_python_is_refused(images: Images) -> None:
    empty = images.imported("empty", tar_of({"bin/hello": "x"}))
    assert "has no python3 in its PATH" in refusal(empty)


def test_a_python_that_does_not_run_is_refused(images: Images) -> None:
    broken = images.variant(
        "broken",
        {"odd/python3": "#!/bin/sh\nexit 3\n"},
        "ENV PATH=/odd:/opt/python/bin:/usr/bin:/bin",
    )
    assert "has a python3 that does not run" in refusal(broken)


def test_another_version_is_refused_with_both(images: Images) -> None:
    said = json.dumps({"python": "/odd/python3", "version": "3.9.18"})
    old = images.variant(
        "old",
        {"odd/python3": f"#!/bin/sh\nprintf '{said}\\n' > $4\n"},
        "ENV PATH=/odd:/opt/python/bin:/usr/bin:/bin",
    )
    text = refusal(old)
    assert f"{old} has Python 3.9.18, and the call needs {OWN}" in text
    assert "call from Python 3.9" in text


def test_an_image_that_is_not_there_is_refused() -> None:
    assert "is not there" in refusal("localhost/hutch-no-such-image:1")
    text = refusal("127.0.0.1:1/nobody/listens:1")
    assert "could not be pulled" in text and "connection refused" in text


def other_pythons() -> list[str]:
    names = [shutil.which(f"python3.{minor}") or "" for minor in range(10, 14)]
    names += glob.glob(os.path.expanduser("~/.pyenv/versions/3.1?.*/bin/python3"))
    return [name for name in names if name and f"3.{sys.version_info[1]}" not in name]


@pytest.fixture(scope="module")
def other(images: Images) -> tuple[str, str]:
    """An image with a Python of another version, and that version."""
    found = other_pythons()
    if not found:
        pytest.skip("there is no interpreter of another version on this host to make an image of")
    python = os.path.realpath(found[-1])
    derive = os.path.join(launcher.RUNTIME, "base", "derive.py")
    tar = subprocess.run([python, "-I", "-S", derive], capture_output=True, check=True).stdout
    told = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        check=True,
        text=True,
    )
    name = images.imported("other", tar, "ENV PATH=/opt/python/bin:/usr/bin:/bin")
    return name, told.stdout.strip()


def test_text_runs_on_another_version_where_that_is_said(other: tuple[str, str]) -> None:
    base, version = other
    assert f"and the call needs {OWN}" in refusal(base)
    environment = Environment(["six"], base=base, python=version)
    outcome = hutch.run("import six, sys; print(sys.version)", environment=environment)
    assert outcome.ok and outcome.stdout.startswith(version)
    solve = hutch.function(
        "def solve(x):\n    import sys\n    return x, '%d.%d' % sys.version_info[:2]",
        "solve",
        environment=environment,
    )
    assert solve([1]) == ([1], version)


def test_a_function_is_bytecode_and_needs_its_own_version(other: tuple[str, str]) -> None:
    base, version = other

    @sandbox(environment=Environment(base=base, python=version))
    def function() -> int:
        return 1

    with pytest.raises(ValueError, match="give it as text"):
        function()
    assert "the call needs" in refusal(base, python=f"{version}.999")


class Registry(http.server.BaseHTTPRequestHandler):
    """One image, as the registry API (version 2) gives it."""

    blobs: dict[str, bytes] = {}
    manifest = b""
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        parts = self.path.split("/")
        content = {
            "": b"{}",
            "manifests": self.manifest if "present" in parts else b"",
            "blobs": self.blobs.get(parts[-1], b""),
        }[parts[-2] if len(parts) > 3 else ""]
        self.send_response(200 if content else 404)
        kind = json.loads(self.manifest)["mediaType"] if "manifests" in parts else "text/plain"
        if not content:
            kind = "application/json"
            content = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def registry(images: Images) -> Iterator[str]:
    """Serves the derived image, whose layer is as large as any; `present` and `absent` there."""
    saved = subprocess.run(
        [launcher.PROGRAM, "--podman", "--", "save", "--format", "docker-archive", images.derived],
        capture_output=True,
        check=True,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(saved)) as tar:

        def content(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        described = json.loads(content("manifest.json"))[0]
        config = content(described["Config"])
        layers = [content(name) for name in described["Layers"]]

    def entry(kind: str, data: bytes) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        Registry.blobs[digest] = data
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    docker = "application/vnd.docker"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{docker}.distribution.manifest.v2+json",
        "config": entry(f"{docker}.container.image.v1+json", config),
        "layers": [entry(f"{docker}.image.rootfs.diff.tar", layer) for layer in layers],
    }
    Registry.manifest = json.dumps(manifest).encode()
    server = HttpServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    Registry.blobs.clear()


def test_an_image_is_pulled_from_a_registry_once(
    registry: str,
) -> None:
    name = f"{registry}/team/present:1"
    Registry.asked.clear()
    try:
        environment = Environment(base=name)
        assert hutch.run("print('pulled')", environment=environment).stdout == "pulled\n"
        assert any("/manifests/" in path for path in Registry.asked)
        Registry.asked.clear()
        hutch.close()
        assert hutch.run("print('there')", environment=environment).stdout == "there\n"
        assert Registry.asked == []
    finally:
        podman("untag", name, name)  # that name alone: without it, all


def test_what_a_registry_does_not_have_is_said(registry: str) -> None:
    text = refusal(f"{registry}/team/absent:1")
    assert "could not be pulled" in text and "check its name and tag" in text


def test_progress_is_reported(registry: str) -> None:
    from hutch._calls.target import TextTarget
    from hutch._connect.connection import current
    from hutch._options.options import NORMAL

    name = f"{registry}/team/present:2"
    target = TextTarget(
        "", "x", NORMAL.changed({"environment": Environment(base=name)}), "nonce-of-progress"
    )
    told: list[tuple[str, str]] = []
    heard: Callable[..., None] = lambda stage, text, *_: told.append((stage, text))  # noqa: E731
    try:
        current().client.prepare(target.request.spec, 60_000, heard)
    finally:
        podman("untag", name, name)  # that name alone: without it, all
    assert ("base", f"pulling {name}") in told


def test_a_lock_and_an_export_are_of_the_base(variant: str, tmp_path: Path) -> None:
    def cli(*arguments: str) -> str:
        command = [sys.executable, "-m", "hutch", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = json.loads(cli("env", "lock", "six", "--base", variant, "--json"))
    assert told["lock"].startswith("six==")
    archive = tmp_path / "image.tar"
    shown = json.loads(cli("env", "export", told["digest"], "-o", str(archive), "--json"))
    with open(archive, "rb") as file:
        podman("load", stdin=file)
    try:
        words = ["run", "--rm", "--network", "none", "--entrypoint", "python3", shown["image"]]
        said = podman(*words, "-c", "import six; print(open('/app/model.txt').read())")
        assert said == "weights"
    finally:
        podman("rmi", "--force", shown["image"])

    script = tmp_path / "script.py"
    script.write_text("import of_image; print(of_image.VALUE)")
    assert cli("run", "--base", variant, str(script)) == "of the image\n"
