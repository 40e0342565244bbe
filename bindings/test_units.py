# SPDX-License-Identifier: Apache-2.0
"""What `hutch serve --unit` prints is read by systemd as it is meant."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hutch.cli import units

PATHS: dict[str, Any] = {
    "service_user": False,
    "run_dir": "/run/user/1000/hutch",
    "state_dir": "/home/ada/.local/share/hutch",
    "agent_socket": "/run/user/1000/hutch/agent-1.sock",
}
OPTIONS = ["--port", "8080", "--with", "numpy", "--set", 'hosts = ["a b", "100%", "$HOME"]']
GENERATOR = shutil.which(
    "quadlet", path=f"/usr/libexec/podman:/usr/lib/podman:{os.environ.get('PATH', '')}"
)
needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="there is no systemd-analyze"
)
needs_generator = pytest.mark.skipif(
    GENERATOR is None, reason="there is no quadlet, which Podman 4.4 and newer have"
)


def printed(**more: Any) -> tuple[str, str]:
    given: dict[str, Any] = {"paths": PATHS, "home": "/home/ada", "python": sys.executable, **more}
    found = units.text(options=OPTIONS, drain_sec=30, image="localhost/hutch-serve", **given)
    first, second = found.split("# ~/.config/containers/systemd/hutch-serve.container\n")
    return first.split("\n", 1)[1], second


def keys_of(text: str) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line
            assert section not in found
            found[section] = {}
        elif line:
            name, equals, value = line.partition("=")
            assert equals and name.isalpha() and value
            found[section].setdefault(name, []).append(value)
    return found


def test_the_unit_runs_the_server() -> None:
    unit, _ = printed()
    service = keys_of(unit)["[Service]"]
    assert service["ExecStart"][0].startswith(f"{sys.executable} -m hutch serve --port 8080")
    assert '"hosts = [\\"a b\\", \\"100%%\\", \\"$$HOME\\"]"' in service["ExecStart"][0]
    assert service["TimeoutStopSec"] == ["40"] and "Environment" not in service
    chosen, _ = printed(chosen_home="/srv/a b")
    assert keys_of(chosen)["[Service]"]["Environment"] == ['"HUTCH_HOME=/srv/a b"']


def test_the_container_has_the_agents_socket_and_no_more() -> None:
    _, quadlet = printed(has_settings=True)
    container = keys_of(quadlet)["[Container]"]
    toml = "/home/ada/.local/share/hutch/agent.toml"
    assert container["Volume"] == ["/run/user/1000/hutch:/run/user/1000/hutch", f"{toml}:{toml}:ro"]
    assert "HUTCH_SOCKET=/run/user/1000/hutch/agent-1.sock" in container["Environment"]
    assert container["DropCapability"] == ["all"] and container["ReadOnly"] == ["true"]


def test_root_has_no_user_service() -> None:
    with pytest.raises(ValueError, match="belongs to an ordinary user"):
        printed(paths={**PATHS, "service_user": True})
    with pytest.raises(ValueError, match="control character"):
        printed(chosen_home="/a\nExecStart=/bin/sh")


def verdict(text: str, directory: Path) -> str:
    """What systemd says of a unit; "" where it takes it."""
    path = directory / "hutch-serve.service"
    path.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    return "\n".join(line for line in done.stderr.splitlines() if "hutch-serve" in line)


@needs_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit, _ = printed(chosen_home="/srv/a b")
    assert verdict(unit, tmp_path) == ""
    assert "Restrat" in verdict(unit.replace("Restart=", "Restrat="), tmp_path)


def generated(quadlet: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """What Podman's generator makes of a Quadlet file."""
    (directory / "hutch-serve.container").write_text(quadlet)
    return subprocess.run(
        [str(GENERATOR), "-dryrun", "-user"],
        env={"QUADLET_UNIT_DIRS": str(directory), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )


@needs_generator
def test_podman_makes_a_unit_of_the_quadlet_file(tmp_path: Path) -> None:
    _, quadlet = printed(chosen_home="/srv/a b", has_settings=True)
    done = generated(quadlet, tmp_path)
    assert done.returncode == 0, done.stderr
    (start,) = (line for line in done.stdout.splitlines() if line.startswith("ExecStart="))
    words = shlex.split(start.replace("%%", "%").replace("$$", "$"))
    at = words.index("localhost/hutch-serve")
    assert words[at + 1 :] == ["hutch", "serve", *OPTIONS]
    given = [pair for pair in itertools.pairwise(words) if pair[0] in ("--network", "-v")]
    toml = "/home/ada/.local/share/hutch/agent.toml"
    assert given == [
        ("--network", "host"),
        ("-v", "/run/user/1000/hutch:/run/user/1000/hutch"),
        ("-v", f"{toml}:{toml}:ro"),
    ]
    assert {"--read-only", "--security-opt=no-new-privileges", "--userns"} <= set(words)
    assert "HUTCH_HOME=/srv/a b" in words
    broken = generated(quadlet.replace("ReadOnly=", "ReadOnyl="), tmp_path)
    assert broken.returncode != 0 and "ReadOnyl" in broken.stderr


@needs_systemd
@needs_generator
def test_systemd_takes_what_podman_makes_of_the_quadlet_file(tmp_path: Path) -> None:
    _, quadlet = printed(chosen_home="/srv/a b", has_settings=True)
    head, _, unit = generated(quadlet, tmp_path).stdout.partition("\n")
    assert head == "---hutch-serve.service---"
    assert verdict(unit, tmp_path) == ""
