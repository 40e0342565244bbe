# SPDX-License-Identifier: Apache-2.0
"""An ordinary user of a stock system, who comes by `su -`: no compiler, no systemd, no
XDG_RUNTIME_DIR. What docs/install.md and the README tell them to type works.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from installation import DIST, ROOT, examples, system

pytestmark = [
    pytest.mark.wheels,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("debootstrap"),
        reason="another system's tree takes root and debootstrap",
    ),
]

SYSTEMS = {
    "debian-12": "python3",
    "debian-13": "python3",
    "ubuntu-24.04": "python3",
    "debian-newest": "python3.14",
}
SESSION = """
import hutch

with hutch.Session() as session:
    session.exec("total = 40")
    print(session.exec("print(total + 2)").stdout, end="")
"""
ENVIRONMENT = """
from hutch import Environment, sandbox

@sandbox(environment=Environment(["six"], constraints=["six<2"]))
def major() -> int:
    import six
    return int(six.__version__.split(".")[0])

print(major())
"""


PAGE = (ROOT / "docs" / "install.md").read_text()
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.S | re.M)
REMOVE = """
for user in ada bob cyd dan eve fay; do
  umount --lazy /home/$user || :
  userdel --force --remove $user || :
done
"""
RUN = ".venv/bin/hutch run -c 'print(6 * 7)'"


@dataclass
class User:
    """Somebody in one system."""

    inside: tuple[str, ...]
    python: str
    name: str = "ada"

    def root(self, text: str) -> None:
        """Lines of a shell of root's."""
        subprocess.run([*self.inside, "sh", "-euc", text], check=True, capture_output=True)

    def has_disk(self, place: str, options: str) -> None:
        """From now on: a disk that root has mounted for this user."""
        options += f",mode=0700,uid=$(id -u {self.name})"
        self.root(f"mkdir -p {place}; mount -t tmpfs -o {options} tmpfs {place}")

    def types(self, text: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Runs lines of a shell after a login, with `given` as their input."""
        return subprocess.run(
            [*self.inside, "su", "-", self.name, "-c", f"set -eu\n{text}"],
            input=given,
            capture_output=True,
            text=True,
            timeout=500,
        )

    def sees(self, text: str, given: str = "") -> str:
        """The same where it has to end well: what it prints."""
        done = self.types(text, given)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=SYSTEMS)
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    """After `pip install hutch` of the wheels in dist/."""
    with system(request.param) as inside:
        ada = User(inside, SYSTEMS[request.param])
        ada.root(f"{REMOVE}useradd --create-home --shell /bin/bash ada")
        ada.sees(f"{ada.python} -m venv .venv")
        ada.sees(
            "export CC=/bin/false CXX=/bin/false PIP_ONLY_BINARY=hutch,hutch-runtime\n"
            f"time .venv/bin/pip install --quiet --find-links {DIST} hutch"
        )
        yield ada
        ada.types(".venv/bin/hutch agent stop")
        ada.root(REMOVE)


def test_there_is_nothing_that_a_login_of_systemd_brings(user: User) -> None:
    assert user.sees('echo "${XDG_RUNTIME_DIR-none}"; id -un') == "none\nada\n"
    assert user.types("test -e /run/systemd/system").returncode != 0


def test_the_examples_of_the_readme_run(user: User) -> None:
    said = [user.sees(".venv/bin/python -", one) for one in examples()]
    wanted = ["{'age': 35.5}\n", "raised ZeroDivisionError in line 1\n", "3.5\n"]
    assert said == wanted


def test_the_server_of_the_readme_answers(user: User) -> None:
    install, serve = re.findall(
        r"^(pip install .*serve.*|hutch serve .*?) *(?:#.*)?$", README, re.M
    )
    post = """
import http.client, json, time
body = json.dumps({"code": "import numpy; print(6 * 7)", "language": "python"})
while True:
    server = http.client.HTTPConnection("localhost", 8080)
    try:
        server.request("POST", "/run_code", body, {"Content-Type": "application/json"})
        break
    except ConnectionRefusedError:
        time.sleep(0.1)  # until it listens
print(json.load(server.getresponse())["run_result"]["stdout"], end="")
"""
    lines = f"""
export CC=/bin/false PIP_ONLY_BINARY=:all:
ln -sfn {DIST} dist
.venv/bin/{install} --quiet
.venv/bin/{serve} >served.log 2>&1 &
trap "kill $!; wait" EXIT
.venv/bin/python -
"""
    assert user.sees(lines, post) == "42\n"


def test_the_doctor_finds_nothing_that_is_needed(user: User) -> None:
    said = user.sees(".venv/bin/hutch doctor")
    assert "FAIL" not in said


def test_a_session_keeps_what_it_was_told(user: User) -> None:
    assert user.sees(".venv/bin/python -", SESSION) == "42\n"


def test_an_environment_is_built(user: User) -> None:
    assert user.sees(".venv/bin/python -", ENVIRONMENT) == "1\n"


def test_a_program_is_run_by_the_command(user: User) -> None:
    assert user.sees(".venv/bin/hutch run -c 'print(6 * 7)'") == "42\n"


def test_the_agents_end_leaves_no_container_and_no_process(user: User) -> None:
    user.sees(".venv/bin/hutch run -c 'pass'\n.venv/bin/hutch agent stop")
    assert user.sees("podman ps --all --quiet") == ""
    list_all = "for each in /proc/[0-9]*; do tr '\\0' ' ' <$each/cmdline; echo; done"
    left = subprocess.run([*user.inside, "sh", "-c", list_all], capture_output=True, text=True)
    assert [line for line in left.stdout.splitlines() if "hutch" in line or "conmon" in line] == []


def test_a_build_from_source_says_in_one_line_what_it_lacks(user: User) -> None:
    """There is no compiler, and no header of Python or of a library."""
    sources = next(DIST.glob("hutch-*.tar.gz"))
    failed = user.types(f".venv/bin/pip wheel --quiet --no-deps --wheel-dir built {sources}")
    said = [line for line in failed.stderr.splitlines() if "hutch cannot be built" in line]
    assert len(said) == 1, failed.stderr
    command = "sudo apt-get install --no-install-recommends g++ libcereal-dev pkg-config "
    assert command in said[0] and said[0].endswith(" python3-dev"), said


def test_a_job_of_cron_runs_it(user: User) -> None:
    """It has neither a HOME nor a PATH."""
    assert user.sees(f"exec env -i {RUN}") == "42\n"


def test_two_users_run_it_at_once(user: User) -> None:
    user.root("chmod 755 /home/ada; useradd --create-home --shell /bin/bash bob")
    bob = replace(user, name="bob")
    with ThreadPoolExecutor(2) as both:
        said = list(both.map(lambda one: one.sees(f"/home/ada/{RUN}"), [user, bob]))
    assert said == ["42\n", "42\n"]
    bob.sees("/home/ada/.venv/bin/hutch agent stop")
    assert user.sees(RUN) == "42\n"


def test_a_disk_that_is_mounted_later_is_used_where_nothing_runs(user: User) -> None:
    """And a function without packages needs no room for them."""
    user.sees(f"{RUN}\n.venv/bin/hutch agent stop")
    user.has_disk("/mnt/later", "size=60m")
    later = f"HUTCH_HOME=/mnt/later/hutch {RUN}"
    assert user.sees(later) == "42\n"
    user.sees("HUTCH_HOME=/mnt/later/hutch .venv/bin/hutch agent stop")


def test_where_something_runs_the_line_to_paste_helps(user: User) -> None:
    user.sees(RUN)
    user.has_disk("/mnt/last", "size=200m")
    last = f"HUTCH_HOME=/mnt/last/hutch {RUN}"
    failed = user.types(last)
    message, hint = failed.stderr.splitlines()[-2:]
    assert "Podman does not see /mnt/last/hutch: it was mounted after" in message, failed.stderr
    command = hint.partition("call again: ")[2]
    user.sees(f".venv/bin/{command}")
    assert user.sees(last) == "42\n"
    user.sees("HUTCH_HOME=/mnt/last/hutch .venv/bin/hutch agent stop")


@pytest.mark.parametrize(
    ("disk", "said"),
    [
        ("size=40m", "the disk is full: "),
        ("ro", "Read-only file system"),
    ],
)
def test_a_home_that_is_small_or_read_only_is_one_sentence(
    user: User, disk: str, said: str
) -> None:
    user.has_disk("/mnt/bad", disk)
    failed = user.types(f"HUTCH_HOME=/mnt/bad/hutch {RUN}")
    user.root("umount --lazy /mnt/bad")
    message, hint = failed.stderr.splitlines()[-2:]
    assert (failed.returncode, said in message) == (3, True), failed.stderr
    assert hint.startswith("  hint: "), failed.stderr


def test_images_that_find_no_room_are_one_sentence(user: User) -> None:
    """The home of a user for whom Podman has no image yet."""
    cyd = replace(user, name="cyd")
    user.root("chmod 755 /home/ada; useradd --create-home --shell /bin/bash cyd")
    cyd.has_disk("/home/cyd", "size=80m")
    failed = cyd.types(f"/home/ada/{RUN}")
    message, hint = failed.stderr.splitlines()[-2:]
    assert "the disk that Podman keeps its images on is full" in message, failed.stderr
    assert "free some space" in hint


def test_hybrid_cgroups_are_one_sentence(user: User) -> None:
    user.root("chmod 755 /home/ada; useradd --create-home --shell /bin/bash dan")
    hybrid = "mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/unified && "
    hybrid += 'mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified && exec "$@"'
    inside = (*user.inside, "unshare", "--mount", "sh", "-euc", hybrid, "sh")
    failed = replace(user, name="dan", inside=inside).types(f"/home/ada/{RUN}")
    message, hint = failed.stderr.splitlines()[-2:]
    assert "the layout of cgroups is hybrid" in message, failed.stderr
    assert "OCI" not in failed.stderr
    assert "systemd.unified_cgroup_hierarchy=1" in hint


def test_the_commands_of_the_install_page_run_in_their_order(user: User) -> None:
    eve = replace(user, name="eve")
    user.root("useradd --create-home --shell /bin/bash eve")
    eve.sees(f"ln -s {DIST} dist; mkdir bin; ln -s $(command -v {user.python}) bin/python3")
    given = "export PATH=~/bin:$PATH CC=/bin/false PIP_FIND_LINKS=dist\n"
    blocks = [block for block in BLOCKS if not block.startswith("sudo ")]
    assert len(blocks) == 3
    for block in blocks:
        eve.sees(given + block)
    assert eve.sees("ls .venv/bin/hutch; ls -A .local/share") == ".venv/bin/hutch\n"


def test_uninstall_leaves_nothing(user: User) -> None:
    """Neither files nor processes; pip has a cache, and the virtual environment is the user's."""
    fay = replace(user, name="fay")
    user.root("useradd --create-home --shell /bin/bash fay")
    fay.sees(f"{user.python} -m venv .venv; .venv/bin/pip install -q --find-links {DIST} hutch")
    fay.sees(f"{RUN}\nHUTCH_HOME=/home/fay/other {RUN}")
    listed = fay.sees(".venv/bin/hutch uninstall --dry-run")
    assert "/home/fay/.local/share/hutch" in listed and "/home/fay/other" in listed
    said = fay.sees(".venv/bin/hutch uninstall --yes")
    fay.sees(f"{said.splitlines()[-1]} --yes")
    assert fay.types("test -e .venv/bin/hutch").returncode != 0
    files = "find /home/fay /run /dev/shm /tmp -user fay -not -path '/home/fay/.venv*'"
    files += " -not -path '/home/fay/.cache*' -not -name '.bash*' -not -name .profile"
    left = subprocess.run([*user.inside, "sh", "-c", files], capture_output=True, text=True)
    assert set(left.stdout.split()) <= {"/home/fay", "/home/fay/.local", "/home/fay/.local/share"}
    owned = 'for p in /proc/[0-9]*; do [ "$(stat -c %U $p)" != fay ] || cat $p/cmdline; done'
    left = subprocess.run([*user.inside, "sh", "-c", owned], capture_output=True, text=True)
    assert left.stdout == ""
