# SPDX-License-Identifier: Apache-2.0
"""Environments from files, locks, virtual environments, and indexes with a password: against an
index of the test's own on this machine."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from package_server import PackageHandler, own_address, serving
from support import HttpServer

from hutch import DependencyInstallError, Environment, sandbox

NAME = "hutch-test-tiny"


def wheel(version: str) -> bytes:
    buffer = io.BytesIO()
    info = f"hutch_test_tiny-{version}.dist-info"
    files = {
        "hutch_test_tiny.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text)
    return buffer.getvalue()


# A build backend of the package's own: it needs nothing, and writes down what it can see.
BACKEND = """
import os, zipfile

def seen():
    found = {"environ": sorted(os.environ.items()), "files": {}, "user": os.getuid()}
    for path in ("/tmp/netrc", os.path.expanduser("~/.netrc"), "/proc/1/environ", "/etc/shadow"):
        try:
            found["files"][path] = open(path, "rb").read()
        except OSError as error:
            found["files"][path] = type(error).__name__
    found["store"] = sorted(os.listdir("/store"))
    found["run"] = os.path.exists("/run/hutch")
    return found

def build_wheel(directory, *_):
    info = "hutch_test_built-1.0.dist-info"
    files = {
        "hutch_test_built.py": f"SEEN = {seen()!r}\\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: hutch-test-built\\nVersion: 1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    name = "hutch_test_built-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name
"""


def sdist() -> bytes:
    buffer = io.BytesIO()
    project = "[build-system]\nrequires = []\nbuild-backend = 'own'\nbackend-path = ['.']\n"
    project += "[project]\nname = 'hutch-test-built'\nversion = '1.0'\n"
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: hutch-test-built\nVersion: 1.0\n",
        "pyproject.toml": project,
        "own.py": BACKEND,
    }
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"hutch_test_built-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


WHEELS = {f"hutch_test_tiny-{v}-py3-none-any.whl": wheel(v) for v in ("1.0", "2.0")}


FILES = {**WHEELS, "hutch_test_built-1.0.tar.gz": sdist()}


class Index(HttpServer):
    """`/simple/` for everybody, `/private/simple/` for who has the password."""

    def __init__(self) -> None:
        super().__init__((own_address(), 0), Handler)
        self.url = f"http://{self.server_address[0]}:{self.server_address[1]}"
        self.asked: list[tuple[str, str]] = []


class Handler(PackageHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        secret = "Basic " + base64.b64encode(b"me:s3cret").decode()
        path = self.path
        if path.startswith("/private/"):
            if self.headers.get("Authorization") != secret:
                return self.answer(401, b"", **{"WWW-Authenticate": "Basic"})
            path = path.removeprefix("/private")
        project = path.removeprefix("/simple/").strip("/").replace("-", "_")
        if path.startswith("/simple/") and any(name.startswith(project) for name in FILES):
            links = "".join(
                f'<a href="../../files/{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>'
                for name, data in FILES.items()
                if name.startswith(project)
            )
            return self.answer(200, f"<html><body>{links}</body></html>".encode())
        data = FILES.get(path.removeprefix("/files/"))
        return self.answer(200, data) if data is not None else self.answer(404, b"")


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with serving(Index()) as server:
        yield server


def version() -> str:
    import hutch_test_tiny

    return str(hutch_test_tiny.VERSION)


def test_an_index_of_ones_own_and_constraints(index: Index) -> None:
    newest = Environment([NAME], index_url=f"{index.url}/simple/")
    assert sandbox(version, environment=newest)() == "2.0"
    older = Environment([NAME], index_url=f"{index.url}/simple/", constraints=[f"{NAME}<2"])
    assert sandbox(version, environment=older)() == "1.0"


def test_a_password_reaches_the_index_and_nothing_that_is_kept(index: Index) -> None:
    address = index.url.replace("://", "://me:s3cret@") + "/private/simple/"
    environment = Environment([f"{NAME}==1.0"], index_url=address)
    assert "s3cret" not in repr(environment)
    assert sandbox(version, environment=environment)() == "1.0"
    assert any(authorization for path, authorization in index.asked if "private" in path)
    wrong = Environment([f"{NAME}==1.0"], index_url=address.replace("s3cret", "wr0ng"))
    with pytest.raises(DependencyInstallError) as raised:
        sandbox(version, environment=wrong, disable_cache=True)()
    assert "wr0ng" not in str(raised.value) + raised.value.log


def test_a_requirements_file_with_its_index_and_other_files(index: Index, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        f"-i {index.url}/simple/\n-r more/inner.txt  # a comment\n-c constraints.txt\n"
    )
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "inner.txt").write_text(f"{NAME} \\\n  >=1\n")
    (tmp_path / "constraints.txt").write_text(f"{NAME}<2\n")
    assert sandbox(version, environment=tmp_path / "requirements.txt")() == "1.0"


def hash_of(number: str) -> str:
    return hashlib.sha256(WHEELS[f"hutch_test_tiny-{number}-py3-none-any.whl"]).hexdigest()


def test_a_lock_is_installed_exactly_and_its_hashes_are_checked(
    index: Index, tmp_path: Path
) -> None:
    lock = tmp_path / "requirements.txt"
    for digest, fits in ((hash_of("1.0"), True), ("0" * 64, False)):
        lock.write_text(f"-i {index.url}/simple/\n{NAME}==1.0 \\\n    --hash=sha256:{digest}\n")
        call = sandbox(version, environment=str(lock))
        if fits:
            assert call() == "1.0"
        else:
            with pytest.raises(DependencyInstallError, match=r"(?i)hash"):
                call()


def test_a_pylock_is_installed_exactly_and_its_hashes_are_checked(
    index: Index, tmp_path: Path
) -> None:
    lock = tmp_path / "pylock.toml"
    for digest, fits in ((hash_of("1.0"), True), ("0" * 64, False)):
        lock.write_text(
            'lock-version = "1.0"\ncreated-by = "a test"\n\n[[packages]]\n'
            f'name = "{NAME}"\nversion = "1.0"\n'
            f'wheels = [{{ url = "{index.url}/files/hutch_test_tiny-1.0-py3-none-any.whl", '
            f'hashes = {{ sha256 = "{digest}" }} }}]\n'
        )
        call = sandbox(version, environment=lock)
        if fits:
            assert call() == "1.0"
        else:
            with pytest.raises(DependencyInstallError, match=r"(?i)hash"):
                call()


def test_an_address_is_installed_where_that_is_allowed(index: Index) -> None:
    wanted = f"{NAME} @ {index.url}/files/hutch_test_tiny-1.0-py3-none-any.whl"
    assert sandbox(version, environment=Environment([wanted], allow_urls=True))() == "1.0"


def test_a_directory_of_wheels_and_no_index_that_has_it(index: Index, tmp_path: Path) -> None:
    directory = tmp_path / "wheels"
    directory.mkdir()
    for name, data in WHEELS.items():
        (directory / name).write_bytes(data)
    environment = Environment(
        [NAME], find_links=directory, index_url=f"{index.url}/nothing/simple/"
    )
    assert sandbox(version, environment=environment)() == "2.0"


def test_a_virtual_environment_is_there_as_it_is_and_follows_its_changes(tmp_path: Path) -> None:
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    packages = next(place.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(io.BytesIO(WHEELS["hutch_test_tiny-1.0-py3-none-any.whl"])) as archive:
        archive.extractall(packages)
    call = sandbox(version, environment=place)
    assert call() == "1.0"
    (packages / "hutch_test_tiny.py").write_text("VERSION = '3.0, by hand'\n")
    assert call() == "3.0, by hand"


def test_a_build_script_sees_nothing_of_the_caller_and_runs_only_where_it_may(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret-of-the-caller")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/s3cret.sock")

    def look() -> dict[str, Any]:
        import hutch_test_built

        return dict(hutch_test_built.SEEN)

    source = {"dependencies": ["hutch-test-built"], "index_url": f"{index.url}/simple/"}
    with pytest.raises(DependencyInstallError, match="allow_sdists=True"):
        sandbox(look, environment=Environment(**source))()
    seen = sandbox(look, environment=Environment(**source, allow_sdists=True))()
    assert "s3cret" not in repr(seen)
    assert set(seen["files"].values()) <= {"FileNotFoundError", "PermissionError"} | {
        seen["files"]["/proc/1/environ"]
    }
    assert not {"SECRET_TOKEN", "SSH_AUTH_SOCK"} & {name for name, _ in seen["environ"]}
    assert not seen["run"]
    secret = f"{index.url}/private/simple/".replace("://", "://me:s3cret@")
    with pytest.raises(ValueError, match="build script could read"):
        sandbox(
            look, environment=Environment(**{**source, "index_url": secret}, allow_sdists=True)
        )()


def test_the_lock_command_writes_what_an_environment_takes(index: Index, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(f"-i {index.url}/simple/\n{NAME}<2\n")
    lock = tmp_path / "lock.txt"
    command = [sys.executable, "-m", "hutch", "env", "lock", "-r", "requirements.txt", "-o", lock]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert f"{NAME}==1.0" in lock.read_text() and hash_of("1.0") in lock.read_text()
    locked = Environment(lock=lock, index_url=f"{index.url}/simple/")
    assert sandbox(version, environment=locked)() == "1.0"


def test_an_exported_environment_is_an_image_with_the_packages(
    index: Index, tmp_path: Path
) -> None:
    environment = Environment([f"{NAME}==1.0"], index_url=f"{index.url}/simple/")
    sandbox(version, environment=environment)()
    from hutch import _status

    (digest,) = [
        str(item["digest"])
        for item in _status.environments()
        if item["requirements"] == [f"{NAME}==1.0"] and item["packages"]
    ][:1]
    archive = tmp_path / "image.tar"
    command = [sys.executable, "-m", "hutch", "env", "export", digest[:16], "-o", archive]
    subprocess.run(command, check=True)
    with tarfile.open(archive) as outer:

        def blob(digest: str) -> IO[bytes]:
            found = outer.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert found is not None
            return found

        assert "oci-layout" in outer.getnames()
        index = outer.extractfile("index.json")
        assert index is not None
        (image,) = json.load(index)["manifests"]
        layers = json.load(blob(image["digest"]))["layers"]
        with tarfile.open(fileobj=blob(layers[-1]["digest"])) as newest:  # on those of the base
            names = {name for name in newest.getnames() if "hutch_test_tiny.py" in name}
    assert len(layers) > 1 and names == {"opt/env/hutch_test_tiny.py"}
    assert os.path.getsize(archive) > 1 << 20
