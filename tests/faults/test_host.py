# SPDX-License-Identifier: Apache-2.0
"""The host lacks something, is full, or holds what others left: a clear error, or it just works."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hutch
from hutch import _core

CALL = "import hutch; print(hutch.run('print(6 * 7)').stdout, end='')"
FAILING = """
import hutch
try:
    hutch.run("pass")
except hutch.SandboxError as error:
    print(type(error).__name__, error.may_have_run, error, sep="|")
"""
INSTALL = "sudo apt-get install --no-install-recommends podman "
FIRST = {
    "run": "import hutch\nprint(hutch.run('print(1)').stdout)\n",
    "sandbox": "from hutch import sandbox\n@sandbox\ndef one(): return 1\none()\n",
    "submit": "import hutch\n@hutch.sandbox\ndef one(): return 1\none.submit().result()\n",
    "session": "import hutch\nwith hutch.Session() as s:\n    s.exec('1')\n",
    "asyncio": "import asyncio, hutch\nasync def main():\n"
    "    async with hutch.AsyncSession() as s:\n        await s.exec('1')\nasyncio.run(main())\n",
}
Without = Callable[..., subprocess.CompletedProcess[str]]


def python(source: str, *wrapper: str, **env: str) -> str:
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def instance(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """An instance of its own beside the one that all other tests use; nothing of it is left."""
    if os.geteuid() != 0:
        pytest.skip("the private mounts of these tests take root")
    home = f"/var/lib/hutch/test-{os.getpid()}"
    yield {"HUTCH_HOME": home}
    subprocess.run(
        [str(Path(sys.executable).with_name("hutch")), "stop"],
        env={**os.environ, "HUTCH_HOME": home},
        capture_output=True,
        timeout=120,
    )
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def without_podman(instance: dict[str, str], tmp_path: Path) -> Without:
    """Runs a command where there is no Podman."""
    absent = tmp_path / "absent"
    absent.write_text("")
    hide = f'mount --bind {absent} {shutil.which("podman")} && exec "$@"'

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", hide, "sh", *command],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **instance},
        )

    return run


def test_missing_podman_names_the_package(without_podman: Without) -> None:
    said = without_podman(sys.executable, "-c", FAILING)
    kind, may_have_run, text = said.stdout.split("|", 2)
    assert (kind, may_have_run) == ("PodmanNotInstalledError", "False")
    assert text.splitlines()[-1].startswith("  hint: " + INSTALL)


@pytest.mark.parametrize("how", ["run", "sandbox", "submit", "session", "asyncio"])
def test_a_script_without_podman_ends_in_the_command(
    without_podman: Without, tmp_path: Path, how: str
) -> None:
    script = tmp_path / "first.py"
    script.write_text(FIRST[how])
    said = without_podman(sys.executable, str(script))
    *frames, message, hint = said.stderr.splitlines()
    assert message == "hutch.PodmanNotInstalledError: Podman is not installed"
    assert hint.startswith("  hint: " + INSTALL)
    assert any(f"{script}" in line for line in frames), said.stderr
    assert not any("/hutch/" in line for line in frames), said.stderr


def test_a_hook_of_the_script_and_other_errors_are_left_alone(without_podman: Without) -> None:
    own = "import sys\nsys.excepthook = lambda kind, *_: print('own', kind.__name__)\n"
    said = without_podman(sys.executable, "-c", own + CALL).stdout
    assert said == "own PodmanNotInstalledError\n"
    later = f"try:\n    exec({CALL!r})\nexcept Exception:\n    pass\nhutch.run(7)"
    said = without_podman(sys.executable, "-c", "import hutch\n" + later).stderr
    assert "/hutch/" in said and "TypeError" in said.splitlines()[-1]


@pytest.mark.parametrize(
    "command", [["bench"], ["agent", "start"], ["env", "lock", "x"], ["podman", "ps"]]
)
def test_hutch_without_podman_says_the_command(without_podman: Without, command: list[str]) -> None:
    said = without_podman(str(Path(sys.executable).with_name("hutch")), *command)
    message, hint = said.stderr.splitlines()
    assert (said.returncode, said.stdout) == (3, "")
    assert message == "hutch: Podman is not installed"
    assert hint.startswith("  hint: " + INSTALL)


def test_the_doctor_without_podman_says_the_command(without_podman: Without) -> None:
    said = without_podman(str(Path(sys.executable).with_name("hutch")), "doctor")
    assert said.returncode == 1
    first, fix = said.stdout.splitlines()[:2]
    assert first == "FAIL podman: Podman is not installed"
    assert fix.startswith("     fix: " + INSTALL)


SYSTEMS = {
    "Debian 12": 'ID=debian\nVERSION_ID="12"\n',
    "Ubuntu 24.04": 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n',
    "Fedora": "ID=fedora\nVERSION_ID=42\n",
    "Rocky": 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.5"\n',
    "openSUSE": 'ID="opensuse-leap"\nID_LIKE="suse opensuse"\nVERSION_ID="16.0"\n',
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_page_on_installing_has_the_command_of_each_system(
    without_podman: Without, tmp_path: Path, system: str
) -> None:
    (tmp_path / "os-release").write_text(SYSTEMS[system])
    shown = f'mount --bind {tmp_path}/os-release /etc/os-release && exec "$@"'
    hutch_ = str(Path(sys.executable).with_name("hutch"))
    said = without_podman("sh", "-c", shown, "sh", hutch_, "doctor").stdout
    command = said.splitlines()[1].removeprefix("     fix: ")
    page = Path(__file__).parents[2] / "docs" / "install.md"
    assert command in page.read_text().splitlines()


def test_a_job_without_a_home_or_a_path_finds_them() -> None:
    """As of cron, or of a service."""
    home = [f"HUTCH_HOME={os.environ['HUTCH_HOME']}"] if "HUTCH_HOME" in os.environ else []
    assert python(CALL, "env", "-i", *home) == "42\n"
    assert python("import hutch; print(hutch.doctor()['ok'])", "env", "-i", *home) == "True\n"


def test_user_without_sub_ids_gets_the_command(instance: dict[str, str], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    mounts = f'mount --bind {empty} /etc/subuid && mount --bind {empty} /etc/subgid && exec "$@"'
    said = python(FAILING, "unshare", "--mount", "sh", "-c", mounts, "sh", **instance)
    kind, may_have_run, text = said.split("|", 2)
    assert (kind, may_have_run) == ("PlatformNotSupportedError", "False")
    assert "usermod" in text and "--add-subuids" in text


FORBID = """
import ctypes, struct

# unshare and clone with CLONE_NEWUSER: EPERM; clone3: ENOSYS, as where it is not known.
ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x50001, 0x50026
program = [
    (0x20, 0, 0, 0), (0x15, 0, 1, 435), (0x06, 0, 0, ENOSYS), (0x15, 1, 0, 272), (0x15, 0, 3, 56),
    (0x20, 0, 0, 16), (0x45, 0, 1, 0x10000000), (0x06, 0, 0, EPERM), (0x06, 0, 0, ALLOW),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
assert ctypes.CDLL(None).prctl(22, 2, filter) == 0
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter has its numbers")
def test_forbidden_user_namespaces_are_named(instance: dict[str, str]) -> None:
    """As a sysctl or AppArmor forbids them, for what this test starts only."""
    said = python(FORBID + FAILING, **instance)
    kind, may_have_run, text = said.split("|", 2)
    assert (kind, may_have_run) == ("PlatformNotSupportedError", "False")
    assert "does not let a container make namespaces" in text and "hutch doctor" in text
    whole = 'import hutch; print(hutch.run("print(6 * 7)", isolation="container").stdout, end="")'
    assert python(FORBID + whole, **instance) == "42\n"
    doctor = subprocess.run(
        [sys.executable, "-c", FORBID + "import hutch; print(hutch.doctor())"],
        env={**os.environ, **instance},
        capture_output=True,
        text=True,
    )
    assert "user namespaces" in doctor.stdout and "not permitted" in doctor.stdout


def test_full_disk_is_said_and_mended_by_space(instance: dict[str, str]) -> None:
    home = instance["HUTCH_HOME"]
    owner = _core.paths()
    tiny = (
        f"install -d -o {owner['uid']} -g {owner['gid']} -m 0700 {home} && mount -t tmpfs "
        f"-o size=4m,mode=0700,uid={owner['uid']},gid={owner['gid']} "
        f'tmpfs {home} && exec "$@"'
    )
    said = python(FAILING, "unshare", "--mount", "sh", "-c", tiny, "sh", **instance)
    _, may_have_run, text = said.split("|", 2)
    assert may_have_run == "False"
    assert "space" in text.lower() or "full" in text.lower(), text
    subprocess.run(
        [str(Path(sys.executable).with_name("hutch")), "stop"],
        env={**os.environ, **instance},
        check=True,
        capture_output=True,
    )
    assert python(CALL, **instance) == "42\n"  # the same instance, now on the large disk


def test_a_home_that_is_read_only_is_said(instance: dict[str, str]) -> None:
    home = instance["HUTCH_HOME"]
    locked = f'mkdir {home} && mount -t tmpfs -o ro,mode=0777 tmpfs {home} && exec "$@"'
    said = python(
        FAILING, "unshare", "--mount", "sh", "-c", locked, "sh", HUTCH_HOME=f"{home}/inside"
    )
    kind, may_have_run, text = said.split("|", 2)
    assert (kind, may_have_run) == ("PlatformNotSupportedError", "False")
    assert "Read-only file system" in text and "HUTCH_HOME" in text


def test_a_home_that_root_made_is_refused_with_the_line_that_gives_it_away(
    instance: dict[str, str],
) -> None:
    home = instance["HUTCH_HOME"]
    os.mkdir(home, 0o755)
    text = python(FAILING, **instance).split("|", 2)[2]
    uid = _core.paths()["uid"]
    assert f"{home} belongs to uid 0, not to {uid}" in text
    assert f"hint: as root: chown -h {uid} {home}; or " in text
    os.chown(home, uid, -1)
    assert python(CALL, **instance) == "42\n"


def test_a_home_that_podman_does_not_see_is_named(instance: dict[str, str]) -> None:
    """On a disk that was mounted when containers of that user ran already."""
    home = instance["HUTCH_HOME"]
    hutch.run("pass")
    owner = _core.paths()
    options = f"size=300m,mode=0700,uid={owner['uid']},gid={owner['gid']}"
    later = f'mkdir {home} && mount -t tmpfs -o {options} tmpfs {home} && exec "$@"'
    said = python(FAILING, "unshare", "--mount", "sh", "-c", later, "sh", **instance)
    _, may_have_run, text = said.split("|", 2)
    assert may_have_run == "False"
    assert f"Podman does not see {home}: it was mounted after" in text
    assert "hint: stop them, then call again: hutch podman stop --all" in text


def test_stale_socket_is_replaced() -> None:
    hutch.agent.stop()
    path = _core.paths()["agent_socket"]
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(path)
    os.chown(path, _core.paths()["uid"], _core.paths()["gid"])
    stale.close()  # the file stays, and nobody listens
    assert python(CALL) == "42\n"


def test_two_installations_share_one_agent(tmp_path: Path) -> None:
    """Another version of the worker files, as another venv would bring it, beside ours."""
    other = tmp_path / "hutch"
    shutil.copytree(Path(hutch.__file__).parent, other)
    with (other / "_runtime" / "worker" / "call.py").open("a") as file:
        file.write("\nVERSION = 'another'\n")
    before = hutch.status()["generation"]
    which = "import hutch; print(hutch.__file__); " + CALL.partition("; ")[2]
    path, answer = python(which, PYTHONPATH=str(tmp_path)).splitlines()
    assert path.startswith(str(tmp_path)) and answer == "42"
    assert python(CALL) == "42\n"
    assert hutch.run("print(1)").stdout == "1\n"
    assert hutch.status()["generation"] == before


def test_stopped_agent_leaves_nothing_behind(instance: dict[str, str]) -> None:
    assert python(CALL, **instance) == "42\n"
    home = instance["HUTCH_HOME"]
    command = [str(Path(sys.executable).with_name("hutch"))]
    run_dir = python("from hutch import _core; print(_core.paths()['run_dir'])", **instance).strip()
    label = python("from hutch import _core; print(_core.paths()['instance'])", **instance).strip()
    subprocess.run(
        [*command, "stop"], env={**os.environ, **instance}, check=True, capture_output=True
    )
    listed = subprocess.run(
        [*command, "podman", "ps", "--all", "--quiet"]
        + ["--filter", f"label=hutch.instance={label}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout == ""
    sockets = [str(p) for p in Path(run_dir).rglob("*") if p.is_socket()]
    assert sockets == []
    mine = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if run_dir.encode() in text or (home.encode() in text and b"hutch-" in text):
                mine.append(text)
    assert mine == []
    assert home not in Path("/proc/self/mountinfo").read_text()
