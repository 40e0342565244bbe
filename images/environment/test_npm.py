# SPDX-License-Identifier: Apache-2.0
"""What the install step decides of npm by itself: which packages it refuses, and what it tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def npm(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("npm")


GOOD = {"resolved": "https://h/a-1.tgz", "integrity": "sha512-x"}


@pytest.mark.parametrize(
    ("place", "entry"),
    [
        ("", {"dependencies": {"a": "^1 || >=2 <3", "b": "latest"}}),
        ("node_modules/a", GOOD),
        ("node_modules/a", {**GOOD, "dependencies": {"b": "npm:@scope/c@1.x", "d": ""}}),
        ("node_modules/a/node_modules/b", {"inBundle": True}),
    ],
)
def test_what_comes_from_a_registry_is_taken(npm: ModuleType, place: str, entry: Any) -> None:
    assert npm.wants_stranger(place, entry) == npm.is_stranger(place, entry) == ""


@pytest.mark.parametrize(
    "entry",
    [
        {**GOOD, "dependencies": {"b": "git+ssh://git@h/b"}},
        {**GOOD, "dependencies": {"b": "me/b"}},
        {**GOOD, "optionalDependencies": {"b": "https://h/b.tgz"}},
        {**GOOD, "peerDependencies": {"b": "file:../../b"}},
        {**GOOD, "dependencies": {"b": "b.tgz"}},
        {**GOOD, "dependencies": {"b": "npm:me/b"}},
        {"resolved": "file:../b", "link": True},
        {"resolved": "git+ssh://h/a", "integrity": "x"},
        {"resolved": "https://h/a-1.tgz"},
        {"integrity": "x"},
        [],
    ],
)
def test_what_comes_from_elsewhere_is_refused(npm: ModuleType, entry: Any) -> None:
    place = "node_modules/a"
    assert npm.wants_stranger(place, entry) or npm.is_stranger(place, entry)


def test_npms_own_sentence_is_told(npm: ModuleType) -> None:
    log = (
        "npm error code E404\n"
        "npm error 404 Not Found - GET https://h/nosuch - Not found\n"
        "npm error 404\n"
        "npm error 404  'nosuch@*' is not in this registry.\n"
        "npm error 404\n"
        "npm error 404 Note that you can also install from a\n"
        "npm error 404 tarball, folder, http url, or git folder.\n"
        "npm error A complete log of this run can be found in: /tmp/x\n"
    )
    assert npm.sentence(log) == (
        "Not Found - GET https://h/nosuch - Not found\n'nosuch@*' is not in this registry."
    )
    log = (
        "npm error code ECONNREFUSED\nnpm error syscall connect\nnpm error errno ECONNREFUSED\n"
        "npm error FetchError: request to http://h/a failed, reason: connect ECONNREFUSED\n"
        "npm error     at ClientRequest.<anonymous> (/x.js:1:2) {\n"
        "npm error   code: 'ECONNREFUSED',\nnpm error }\n"
        "npm error If you are behind a proxy, please make sure that the 'proxy' config is set\n"
    )
    assert npm.sentence(log) == (
        "FetchError: request to http://h/a failed, reason: connect ECONNREFUSED"
    )
    log = (
        "npm error code ETARGET\nnpm error notarget No matching version found for tiny@7.\n"
        "npm error notarget In most cases you or one of your dependencies are requesting\n"
        "npm error notarget a package version that doesn't exist.\n"
    )
    assert npm.sentence(log).startswith("No matching version found for tiny@7.")
    assert "git repository" in npm.sentence("npm error syscall spawn git\n")
    assert npm.sentence("killed\n") == "killed"


def test_a_lock_that_is_none_has_no_packages(npm: ModuleType, tmp_path: Path) -> None:
    (tmp_path / ".node").mkdir()
    assert list(npm.installed(str(tmp_path))) == []
    for text in ("[]", "{", '{"packages": []}', "[" * 100_000):
        (tmp_path / ".node" / "package-lock.json").write_text(text)
        assert list(npm.installed(str(tmp_path))) == []
    (tmp_path / ".node" / "package-lock.json").write_text(
        '{"packages": {"": {}, "node_modules/@a/b": {"version": "1.0"}, "node_modules/x": 1}}'
    )
    assert list(npm.installed(str(tmp_path))) == ["@a/b@1.0"]
