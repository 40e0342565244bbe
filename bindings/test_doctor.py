# SPDX-License-Identifier: Apache-2.0
"""What the doctor checks beside what the launcher does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hutch import _containers_conf, _status
from hutch.cli.logs import error_in

LOG = """2026-01-02T03:04:05.678Z error agent: a worker died why="an older one"
2026-01-02T03:04:06.678Z error agent: it died worker=w why="Conmon invalid: \\"/dev/null\\": no"
2026-01-02T03:04:07.678Z warn agent: a worker could not be removed yet why="other"
"""


def test_the_null_device_has_to_take_what_everybody_writes(tmp_path: Path) -> None:
    assert _status._null_device("/dev/null")["ok"]
    file = tmp_path / "null"
    missing = _status._null_device(str(file))
    assert not missing["ok"] and "No such file" in missing["detail"]
    file.touch()
    plain = _status._null_device(str(file))
    assert not plain["ok"] and "not a device" in plain["detail"] and "mknod" in plain["fix"]


def test_the_cause_is_that_of_the_last_error_of_the_log() -> None:
    assert error_in(LOG) == 'Conmon invalid: "/dev/null": no'
    assert error_in("") == error_in("panic\n") == ""
    assert error_in("2026-01-02T03:04:05.678Z error agent: it ends").endswith("it ends")


CONF = {
    "": [],
    "[engine]\nnetwork_cmd_options = ['enable_ipv6=true']": [],
    "[engine]\nnetwork_cmd_options = ['allow_host_loopback=true']": ["allow_host_loopback=true"],
    "[network]\npasta_options = ['-T', 'none', '--udp-ns=none', '-a', '192.0.2.1']": [],
    "[network]\npasta_options = ['-T', 'auto', '--map-gw']": ["-T auto", "--map-gw"],
    "[network]\npasta_options = ['--tcp-ns=8080']": ["--tcp-ns=8080"],
    "[network]\npasta_options = 'x'": [],
    "no toml": [],
}


@pytest.mark.parametrize("text", CONF)
def test_a_loopback_that_is_opened_to_containers_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_containers_conf, "_SYSTEM", ())
    file = tmp_path / ".config" / "containers" / "containers.conf.d" / "mine.conf"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    found = list(_containers_conf.opened_loopback(str(tmp_path)))
    assert found == [(option, str(file)) for option in CONF[text]]


@pytest.mark.parametrize("kind", ["fifo", "endless", "deep"])
def test_a_hostile_file_of_settings_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "containers.conf"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    else:
        file.write_text("a = " + "[" * 100_000)
    assert _containers_conf._read(file) == {}
