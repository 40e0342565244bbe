# SPDX-License-Identifier: Apache-2.0
"""Packages of npm, from a registry of the test's own on this machine."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from package_server import PackageHandler, own_address, serving
from support import HttpServer

import hutch
from hutch import DependencyInstallError, Session

CREDENTIAL = "Bearer s3cret"
TOUCH = "require('fs').writeFileSync('ran', '')"
ESM = "export const kind = 'module'; export {version as inner} from 'tiny-inner'"

# Name, version, more of its package.json, files.
PACKAGES: list[tuple[str, str, dict[str, Any], dict[str, str]]] = [
    (
        "tiny",
        "1.0.0",
        {
            "main": "index.js",
            "exports": {".": {"import": "./index.mjs", "require": "./index.js"}},
            "dependencies": {"tiny-inner": "^2"},
            "bin": {"tiny-tool": "tool.js"},
            "scripts": {"preinstall": f'node -e "{TOUCH}"', "postinstall": f'node -e "{TOUCH}"'},
        },
        {
            "index.js": "exports.kind = 'common'; exports.inner = require('tiny-inner').version;"
            "exports.ran = require('fs').existsSync(__dirname + '/ran')",
            "index.mjs": ESM,
            "tool.js": "#!/usr/bin/env node\nconsole.log('tool')",
        },
    ),
    ("tiny", "0.9.0", {}, {"index.js": "exports.kind = 'old'"}),
    ("tiny-inner", "2.1.0", {}, {"index.js": "exports.version = '2.1.0'"}),
    ("@mine/tiny", "1.0.0", {}, {"index.js": "exports.kind = 'scoped'"}),
    ("wants-git", "1.0.0", {"dependencies": {"x": "git+https://127.0.0.1/x.git"}}, {}),
    ("wants-path", "1.0.0", {"dependencies": {"x": "file:/etc"}}, {}),
    ("leads-out", "1.0.0", {}, {"index.js": "", "../../../../left-outside.js": "1"}),
]


def tarball(name: str, version: str, more: dict[str, Any], files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    described = {"name": name, "version": version, **more}
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in {"package.json": json.dumps(described), **files}.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size, member.mode = len(text.encode()), 0o4755
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


class Registry(HttpServer):
    """`/` for everybody, `/private/` for who has the token."""

    def __init__(self) -> None:
        super().__init__((own_address(), 0), Handler)
        self.host = "{}:{}".format(*self.server_address[:2])
        self.url = f"http://{self.host}/"
        self.tarballs = {
            f"{name.replace('/', '-')}-{version}.tgz": tarball(name, version, more, files)
            for name, version, more, files in PACKAGES
        }

    def described(self, name: str, base: str) -> dict[str, Any] | None:
        versions: dict[str, Any] = {}
        for known, version, more, _ in PACKAGES:
            if known == name:
                file = f"{name.replace('/', '-')}-{version}.tgz"
                digest = base64.b64encode(hashlib.sha512(self.tarballs[file]).digest()).decode()
                dist = {"tarball": f"{base}files/{file}", "integrity": f"sha512-{digest}"}
                versions[version] = {"name": name, "version": version, **more, "dist": dist}
        latest = next(iter(versions), None)
        return versions and {
            "name": name,
            "dist-tags": {"latest": latest},
            "versions": versions,
        }


class Handler(PackageHandler):
    server: Registry
    content_type = "application/json"

    def do_GET(self) -> None:
        path, base = self.path.removeprefix("/"), self.server.url
        if path.startswith("private/"):
            if self.headers.get("Authorization") != CREDENTIAL:
                return self.answer(401, b"{}")
            path, base = path.removeprefix("private/"), base + "private/"
        if path.startswith("files/"):
            data = self.server.tarballs.get(path.removeprefix("files/"))
            return self.answer(200, data) if data is not None else self.answer(404, b"{}")
        found = self.server.described(path.replace("%2f", "/").replace("%2F", "/"), base)
        return self.answer(200, json.dumps(found).encode()) if found else self.answer(404, b"{}")


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving(Registry()) as server:
        yield server


@pytest.fixture(autouse=True)
def npmrc(registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The caller's settings of npm."""
    path = tmp_path / "npmrc"
    path.write_text(f"registry={registry.url}\n")
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(path))
    monkeypatch.setenv("NPM_CONFIG_GLOBALCONFIG", "/nonexistent")
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    return path


def test_a_session_finds_its_packages_by_require_and_import_from_any_directory() -> None:
    with Session(node_dependencies=["tiny"]) as s:
        assert s.node("const t = require('tiny'); [t.kind, t.inner]").value == ["common", "2.1.0"]
        assert s.node("import {kind, inner} from 'tiny'; [kind, inner]").value == [
            "module",
            "2.1.0",
        ]
        assert s.node("(await import('tiny')).kind").value == "module"
        s.files.write("deep/below/uses.mjs", "export {kind} from 'tiny'")
        assert s.node("(await import('./deep/below/uses.mjs')).kind").value == "module"
        assert s.node("process.chdir('/tmp'); require('tiny').kind").value == "common"
        child = "[process.execPath, '-p', 'require(`tiny`).kind']"
        source = f"const w = {child}; require('child_process').execFileSync(w[0], w.slice(1)) + ''"
        assert s.node(source).value == "common\n"


@pytest.mark.parametrize("isolation", ["cell", "container"])
def test_a_program_finds_its_packages(isolation: Any) -> None:
    source = "import {kind} from 'tiny'; import {createRequire} from 'module';" + (
        "console.log(kind, createRequire(import.meta.url)('@mine/tiny').kind)"
    )
    program = hutch.Program(
        source,
        language="javascript",
        filename="main.mjs",
        node_dependencies=["tiny", "@mine/tiny@^1"],
        isolation=isolation,
    )
    outcome = program.run()
    assert (outcome.stdout, outcome.stderr) == ("module scoped\n", "")


def test_packages_of_python_stand_beside_them() -> None:
    with Session(dependencies=["six"], node_dependencies=["tiny@0.9"]) as s:
        assert s.exec("import six; six.__name__").value == "six"
        assert s.node("require('tiny').kind").value == "old"


def test_no_script_runs_and_nothing_of_them_can_be_changed() -> None:
    with Session(node_dependencies=["tiny"]) as s:
        assert s.node("require('tiny').ran").value is False
        place = s.node("require.resolve('tiny')").unwrap()
        assert s.bash(f"echo x > {place}; echo x > $(dirname {place})/new").exit_code == 1
        assert s.bash(f"rm -r $(dirname {place}); ln -sfn /tmp /node_modules").exit_code != 0
        assert s.node("require('tiny').kind").value == "common"
        assert s.bash("find -L /node_modules -perm /7022").stdout == ""


def test_the_lock_is_kept_with_the_packages() -> None:
    with Session(node_dependencies=["tiny@*"]) as s:
        lock = json.loads(s.files.read("/opt/env/.node/package-lock.json"))
        entry = lock["packages"]["node_modules/tiny"]
        assert entry["version"] == "1.0.0" and entry["integrity"].startswith("sha512-")
    from hutch import _status

    listed = [item for item in _status.environments() if "tiny@*" in item["requirements"]]
    assert {"tiny-inner@2.1.0", "tiny@1.0.0"} <= {*listed[0]["packages"]}


def test_a_registry_with_a_token_is_the_callers_own(registry: Registry, npmrc: Path) -> None:
    private = f"http://{registry.host}/private/"
    npmrc.write_text(f"@mine:registry={private}\nregistry={registry.url}\n")
    with pytest.raises(DependencyInstallError, match="Unauthorized"):
        Session(node_dependencies=["@mine/tiny"]).node("1")
    with npmrc.open("a") as file:
        file.write(f"//{registry.host}/private/:_authToken=s3cret\n")
    with Session(node_dependencies=["@mine/tiny"]) as s:
        assert s.node("require('@mine/tiny').kind").value == "scoped"
        assert "s3cret" not in s.bash("cat /opt/env/.node/*.json").stdout


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("no-such-package-of-npm", "no-such-package-of-npm"),
        ("tiny@7", "No matching version found for tiny@7"),
        ("wants-git", "git repository"),
        ("wants-path", "wants x from 'file:/etc'"),
    ],
)
def test_what_cannot_be_installed_is_told_by_npms_own_sentence(wanted: str, told: str) -> None:
    with pytest.raises(DependencyInstallError, match=told) as caught:
        Session(node_dependencies=[wanted]).node("1")
    assert caught.value.hint or "refused" in str(caught.value)
    if "wants" not in wanted:
        assert caught.value.requirement in (wanted, f"{wanted}@*")


def test_no_file_of_a_package_lies_outside_of_it() -> None:
    with Session(node_dependencies=["leads-out"]) as s:
        found = s.bash("find /opt/env/ -name left-outside.js").stdout
        assert found in ("", "/opt/env/.node/node_modules/leads-out/left-outside.js\n")


def test_a_registry_that_is_not_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:9/")
    with pytest.raises(DependencyInstallError, match="ECONNREFUSED") as caught:
        Session(node_dependencies=["tiny"]).node("1")
    assert "could not be reached" in caught.value.hint
