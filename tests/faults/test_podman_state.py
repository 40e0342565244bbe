# SPDX-License-Identifier: Apache-2.0
"""What Podman knows is lost, stale or used up: a call works all the same, or says what is wrong.

Each test has a machine of its own: namespaces for processes and mounts in which Podman's user has a
home, a run directory and a /dev/shm that nobody else has, kept from one boot of it to the next. Its
end kills every process, as a power cut would. Podman itself is the real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch import _core

PRELUDE = r"""
import json, os, signal, subprocess, sys
import hutch

UID = os.stat("/run/hutch").st_uid
TMP = "/run/hutch/libpod/tmp/"
HUTCH = os.path.join(os.path.dirname(sys.executable), "hutch")

def podman(*arguments):
    done = subprocess.run([HUTCH, "podman", *arguments], capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()

def call(label="", **more):
    # In a worker that no call before had: Podman is needed for it. What broke off as its service
    # was killed is reported as safe to repeat, and is repeated.
    for attempt in range(5):
        try:
            return hutch.run("print(6 * 7)", labels={"worker": label}, **more).stdout.strip()
        except hutch.SandboxStartupError as error:
            assert not error.may_have_run, error
            failed = error
    raise failed

def pids(program):
    found = []
    for name in os.listdir("/proc"):
        try:
            command = open(f"/proc/{name}/cmdline").read().replace("\0", " ")
            if name.isdigit() and command.startswith(program):
                found.append(int(name))
        except OSError:
            pass
    return found

def kill(program):
    victims = pids(program)
    assert victims, program
    for pid in victims:
        os.kill(pid, signal.SIGKILL)

SERVICE = "/usr/bin/podman system service"
"""


class Machine:
    def __init__(self, place: Path) -> None:
        self.place = place
        owner = _core.paths()
        for name in ("home", "run"):
            (place / name).mkdir(mode=0o700)
            os.chown(place / name, int(owner["uid"]), int(owner["gid"]))

    def boot(self, script: str) -> str:
        """What the script prints; the machine is up for as long as it runs."""
        env = {k: v for k, v in os.environ.items() if k != "HUTCH_HOME"}
        mounts = (
            f"mount --bind {self.place}/home /var/lib/hutch && "
            f"mount --bind {self.place}/run /run/hutch && "
            'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec "$@"'
        )
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
             mounts, "sh", sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            capture_output=True, text=True, timeout=300, env=env,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("a machine of its own takes root")
    if not _core.paths()["service_user"]:
        pytest.skip("Podman's user is not Hutch's own")
    place = Path(tempfile.mkdtemp(prefix="hutch-machine-", dir="/var/tmp"))
    place.chmod(0o755)
    made = Machine(place)
    assert made.boot("print(call())") == "42"
    yield made
    shutil.rmtree(place, ignore_errors=True)


def test_a_run_directory_of_another_boot_is_no_obstacle(machine: Machine) -> None:
    """Everything in it names processes and a /dev/shm that are gone."""
    assert (machine.place / "run" / "libpod" / "tmp" / "alive").exists()
    assert machine.boot("print(call('a'), call('b'))") == "42 42"


def test_an_empty_run_directory_is_no_obstacle(machine: Machine) -> None:
    """As after a reboot where it is a tmpfs: storage knows of containers, the run directory not."""
    for entry in (machine.place / "run").iterdir():
        shutil.rmtree(entry)
    assert machine.boot("print(call('a'), call('b'))") == "42 42"


def test_a_dead_pause_process_and_a_stale_pid_are_no_obstacle(machine: Machine) -> None:
    said = machine.boot("""
        call()
        kill("catatonit -P")
        open(TMP + "pause.pid", "w").write("1")  # somebody else's
        print(call("warm service"))
        kill(SERVICE)
        print(call("new service"))
    """)
    assert said.split() == ["42", "42"]


def test_lost_lock_files_and_tmp_are_no_obstacle(machine: Machine) -> None:
    said = machine.boot("""
        call()
        os.unlink(f"/dev/shm/libpod_rootless_lock_{UID}")
        print(call("warm service"))
        kill(SERVICE)
        print(call("new service"), call("and another"))
        subprocess.run("mount -t tmpfs -o mode=1777 tmpfs /tmp", shell=True, check=True)
        print(call("no tmp"))
    """)
    assert said.split() == ["42"] * 4


def test_everything_stopped_or_pruned_by_the_user_is_made_again(machine: Machine) -> None:
    said = machine.boot("""
        call()
        podman("stop", "--all", "--time", "0")
        print(call(), call("stopped"))
        podman("system", "prune", "--all", "--force", "--volumes")
        print(call(), call("pruned"))
        podman("rm", "--all", "--force", "--time", "0")
        podman("system", "prune", "--all", "--force", "--volumes")
        print(call(), call("removed"))
    """)
    assert said.split() == ["42"] * 6


def test_a_reset_by_the_user_is_reported_and_everything_is_made_again(machine: Machine) -> None:
    """Podman's own database goes with it, under the feet of its service."""
    said = machine.boot("""
        call()
        podman("system", "reset", "--force")
        for attempt in range(5):
            try:
                print(call(f"{attempt}"))
                break
            except hutch.SandboxStartupError as error:
                assert str(error) and not error.may_have_run, error
                hutch.close()
    """)
    assert said == "42"


def test_locks_used_up_by_others_are_reported_and_needed_for_new_workers_alone(
    machine: Machine,
) -> None:
    """Each container and each volume has one of Podman's 2048 locks. Hutch makes no volume."""
    said = machine.boot("""
        import http.client, socket
        from hutch import _core
        call()
        print(podman("volume", "ls", "--quiet") == "")

        class Podman(http.client.HTTPConnection):
            def connect(self):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.connect(_core.paths()["run_dir"] + "/podman/podman.sock")

        def fill():
            service = Podman("d")
            for made in range(5000):
                service.request("POST", "/v4.0.0/libpod/volumes/create", body="{}",
                                headers={"Content-Type": "application/json"})
                answer = service.getresponse()
                if answer.status != 201:
                    return made, answer.read().decode()
                answer.read()
            return made, "no end of locks"

        made, why = fill()
        print(made > 1000, "num_locks" in why)
        print(call())  # its worker is there
        for attempt in range(5):  # one may have been started ahead
            try:
                hutch.run("print(1)", labels={"worker": f"new {attempt}"})
            except hutch.SandboxStartupError as error:
                print("num_locks" in str(error), error.may_have_run)
                break
            fill()
        print(call())
        podman("volume", "prune", "--force")
        print(call("after it"))
    """)
    assert said.splitlines() == ["True", "True True", "42", "True False", "42", "42"]


RUNC = shutil.which("runc", path="/usr/sbin:/usr/bin:/sbin:/bin")


@pytest.mark.skipif(RUNC is None, reason="Debian's runc is not installed")
def test_containers_made_by_runc_have_the_same_walls(machine: Machine) -> None:
    """Under crun's name: Podman asks this machine's settings which one to start."""
    here = Path(__file__).parent.parent
    attacks = [
        "posture.py::test_posture_is_the_golden_one",
        "posture.py::test_user_code_changes_nothing_of_it",
        "files.py::test_writing_outside_the_scratch_hits_a_read_only_root",
        "files.py::test_the_root_cannot_be_changed",
        "kernel.py::test_dangerous_system_calls_are_refused",
        "network.py::test_nothing_outside_can_be_reached",
        "processes.py::test_a_cell_sees_only_its_own_processes",
    ]
    tests = [f"{here}/security/test_{attack}" for attack in attacks]
    said = machine.boot(f"""
        subprocess.run("mount --bind {RUNC} /usr/bin/crun", shell=True, check=True)
        def tried(*command):
            done = subprocess.run(command, capture_output=True, text=True, cwd="{here.parent}")
            return done.stdout if done.returncode == 0 else done.stdout + " failed"
        print(tried("crun", "--version").split()[0])
        print(call("runc"))
        limits = dict(labels={{"of": "runc"}}, timeout_sec=1, memory_mb=64)
        for source in ("while True: pass", "x = bytearray(1 << 30)"):
            outcome = hutch.run(source, **limits)
            print(outcome.status, outcome.limit)
        said = tried(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *{tests!r})
        print(said if " passed" not in said or " failed" in said else "passed")
    """)
    assert said.splitlines() == [
        "runc", "42", "limit time", "limit memory", "passed",
    ]  # fmt: skip


def test_workers_are_of_the_image_that_was_looked_up_whatever_its_name_means(
    machine: Machine,
) -> None:
    said = machine.boot("""
        call()
        def images():
            listed = json.loads(podman("ps", "--format", "json"))
            return {c["ImageID"] for c in listed}
        (image,) = images()
        name = podman("images", "--format", "{{.Repository}}:{{.Tag}}").split()[0]
        podman("untag", name)
        told = call("untagged")
        # A worker that is started from now on may be of the image that was derived again.
        again = podman("images", "--no-trunc", "--quiet", name).removeprefix("sha256:")
        print(told, image in images() and images() <= {image, again})
        podman("rmi", "--all", "--force")  # and its containers
        print(call("removed"), call("again"), len(images()) == 1)
        print("pulled" if "docker.io" in podman("images") else "none pulled")
    """)
    assert said.splitlines() == ["42 True", "42 42 True", "none pulled"]
