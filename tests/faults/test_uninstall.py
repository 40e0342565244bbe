# SPDX-License-Identifier: Apache-2.0
"""The whole life of an installation, in a world of its own: other mounts, processes and users."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch.cli import inventory

HUTCH = str(Path(sys.executable).with_name("hutch"))
HOME = "/var/lib/hutch/state"
# What Hutch makes for root is made here alone; /etc is a copy, as users are made and removed.
WORLD = """
mount --make-rprivate /
mount -t proc proc /proc
cp -a /etc "$1/etc" && mount --bind "$1/etc" /etc
if id hutch >/dev/null 2>&1; then userdel hutch; fi
mkdir "$1/lib" && mount --bind "$1/lib" /var/lib
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 shm /dev/shm
export HOME="$1/home" && mkdir "$HOME"
shift
echo begun
exec sh -c "$@"
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[list[str]]:
    """The words before a command that runs there."""
    if os.geteuid() != 0:
        pytest.skip("a world of its own takes root")
    command = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-euc"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HUTCH_")}
    environment["HOME"] = f"{tmp_path}/home"
    with subprocess.Popen(
        [*command, WORLD, "sh", str(tmp_path), "sleep infinity"], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "begun\n"
            [first] = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
            enter = ["nsenter", "-t", first, "--mount", "--pid", "--ipc", "--", "env", "-i"]
            yield [*enter, *(f"{name}={value}" for name, value in environment.items())]
        finally:
            holder.kill()


def run(world: list[str], *command: str, **env: str) -> str:
    assignments = [f"{name}={value}" for name, value in env.items()]
    done = subprocess.run(
        [*world, *assignments, HUTCH, *command], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def left(world: list[str], tmp_path: Path) -> str:
    """What there is of Hutch's, or of a Podman's."""
    look = f"""
ls -d /var/lib/* /run/* /dev/shm/* {tmp_path}/home/.local/share/* {tmp_path}/o* \\
  /sys/fs/cgroup/hutch* 2>/dev/null
grep -l hutch /etc/passwd /etc/group /etc/subuid /etc/subgid
ps -eo args | grep -E '[p]odman|[c]onmon|[c]atatonit|[h]utch-agent'
true
"""
    done = subprocess.run([*world, "sh", "-c", look], capture_output=True, text=True, timeout=60)
    return done.stdout


def test_uninstall_leaves_nothing(world: list[str], tmp_path: Path) -> None:
    before = left(world, tmp_path)
    assert "hutch" not in before
    nothing = json.loads(run(world, "uninstall", "--dry-run", "--json"))
    assert nothing == [] and left(world, tmp_path) == before
    assert run(world, "run", "-c", "print(6 * 7)") == "42\n"
    other = {"HUTCH_HOME": "/var/lib/hutch/other"}  # found by what it has in /run
    assert run(world, "run", "-c", "print(6 * 7)", **other) == "42\n"
    named = "import hutch\nwith hutch.Session(id='kept') as s:\n    s.exec('x = 1')\n"
    subprocess.run([*world, sys.executable, "-c", named], check=True, timeout=300)
    made = subprocess.run([*world, "ls", HOME], capture_output=True, text=True).stdout
    assert set(made.split()) <= set(inventory.IN_STATE)
    run(world, "agent", "stop")

    def lasting() -> list[str]:  # the workers of the other agent come and go, with Podman's helpers
        lines = left(world, tmp_path).splitlines()
        is_helper = re.compile("conmon|podman").search
        return [one for one in lines if " system service " in one or not is_helper(one)]

    quiet = lasting()
    listed = json.loads(run(world, "uninstall", "--dry-run", "--json"))
    assert lasting() == quiet  # Podman's service was asked, and has ended again
    assert [one["what"] for one in listed if one["where"] in ("/run/hutch/run", HOME)] == [
        "agent and workers",
        "environments, log",
        "sockets, locks",
    ]
    sessions = f"{tmp_path}/home/.local/share/hutch/sessions"
    assert sessions in [one["where"] for one in listed]
    assert "kept" in run(world, "sessions", "list")

    said = run(world, "uninstall", "--yes", "--keep-sessions")
    assert "pip uninstall" in said
    assert left(world, tmp_path) == before + f"{tmp_path}/home/.local/share/hutch\n"
    assert "kept" in run(world, "sessions", "list")
    assert json.loads(run(world, "uninstall", "--yes", "--json"))["left"] == []
    assert left(world, tmp_path) == before
    assert run(world, "run", "-c", "print(6 * 7)") == "42\n"  # it can be installed again


ATTACKS = """
mkdir -m 755 /var/lib/other
mkdir -m 700 /var/lib/other/roots
as_hutch="setpriv --reuid hutch --regid hutch --clear-groups"
$as_hutch ln -s /var/lib/other /var/lib/hutch/link
# Each process is followed by another one before anybody can end it.
echo 'sh "$0" &' > /var/lib/forks
$as_hutch sh -c 'for _ in 1 2 3 4 5 6 7 8; do sh /var/lib/forks; done'
mkdir -p "$1/hutch"
echo "open('/var/lib/other/imported', 'w')" | tee "$1/hutch/__init__.py" > "$1/hutch/__main__.py"
"""


def test_nobody_leads_root_to_what_is_not_hutchs(world: list[str], tmp_path: Path) -> None:
    def there() -> str:
        look = "stat -c '%n %U' /var/lib/other/* /var/lib/other"
        return subprocess.run([*world, "sh", "-c", look], capture_output=True, text=True).stdout

    before = left(world, tmp_path)
    run(world, "podman", "ps")
    evil = str(tmp_path / "evil")
    subprocess.run([*world, "sh", "-ec", ATTACKS, "sh", evil], check=True, timeout=60)
    roots = there()
    assert "/var/lib/other/roots root" in roots
    home = "HUTCH_HOME=/var/lib/hutch/link/roots"
    start = [*world, home, HUTCH, "agent", "start"]
    done = subprocess.run(start, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3 and "cannot be reached by the user" in done.stderr
    assert there() == roots
    # A package of that name lies in the directory that root is in.
    uninstall = f"cd {evil} && exec {HUTCH} uninstall --yes"
    subprocess.run([*world, "sh", "-c", uninstall], check=True, timeout=300)
    assert there() == roots
    processes = subprocess.run([*world, "ps", "-eo", "args"], capture_output=True, text=True)
    assert "forks" not in processes.stdout
    subprocess.run([*world, "rm", "-r", "/var/lib/other", "/var/lib/forks"], check=True)
    assert left(world, tmp_path) == before


def test_a_second_uninstall_finishes_the_first(world: list[str], tmp_path: Path) -> None:
    before = left(world, tmp_path)
    run(world, "podman", "ps")
    run(world, "agent", "stop")
    # It was killed before the last that it does.
    subprocess.run([*world, "rm", "-rf", "/var/lib/hutch", "/run/hutch"], check=True)
    assert "hutch" in left(world, tmp_path)
    run(world, "uninstall", "--yes")
    assert left(world, tmp_path) == before


def test_prune_removes_what_is_old_and_used_by_nobody(world: list[str]) -> None:
    assert run(world, "run", "-c", "print(6 * 7)") == "42\n"
    assert run(world, "run", "--with", "six", "-c", "import six; print(1)") == "1\n"
    assert json.loads(run(world, "prune", "--json")) == []
    old = f"{HOME}/runtime/{'0' * 32}"
    make = f"mkdir {old}; touch {old}/file; chown -R hutch {old}; touch -d '40 days ago' {old}"
    subprocess.run([*world, "sh", "-ec", make], check=True)
    [one] = json.loads(run(world, "prune", "--dry-run", "--json"))
    assert (one["what"], one["name"]) == ("runtime", "0" * 32)
    assert "six" not in run(world, "prune", "--older-than", "0s")  # a pool has it
    runtimes = subprocess.run([*world, "ls", f"{HOME}/runtime"], capture_output=True, text=True)
    assert len(runtimes.stdout.split()) == 1 and "0" * 32 not in runtimes.stdout

    run(world, "agent", "restart")
    gone = json.loads(run(world, "prune", "--older-than", "0s", "--json"))
    assert [one["what"] for one in gone if "six" in one["name"]] == ["environment"]
    assert json.loads(run(world, "env", "--json")) == []
    run(world, "agent", "stop")
    assert "downloads" in run(world, "prune", "--cache")
    assert run(world, "run", "--with", "six", "-c", "import six; print(1)") == "1\n"


def test_before_a_first_call_commands_say_that_there_is_nothing(world: list[str]) -> None:
    for command in ("status", "ps", "version", "metrics", "doctor --quick", "uninstall --yes"):
        run(world, *command.split())
    done = subprocess.run([*world, HUTCH, "logs"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "the first call starts one" in done.stderr
