# SPDX-License-Identifier: Apache-2.0
"""Information: what a call can learn of the host, of its user, and of other calls."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hutch import sandbox

ALLOWED_ENVIRONMENT = {
    "HOME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "TMPDIR", "TZ", "USER", "LOGNAME", "PWD", "SHELL",
    "TERM", "MPLCONFIGDIR", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS", "POLARS_MAX_THREADS", "LOKY_MAX_CPU_COUNT", "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME", "MPLBACKEND", "SSL_CERT_FILE", "NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR",
    "container",
}  # fmt: skip


@pytest.fixture(scope="module")
def seen(probes: Callable[[str], dict[str, Any]], request: pytest.FixtureRequest) -> dict[str, Any]:
    os.environ["HUTCH_TEST_TOKEN"] = "of-the-host"
    request.addfinalizer(lambda: os.environ.pop("HUTCH_TEST_TOKEN", None))
    return probes("information")


def allowed(name: str) -> bool:
    return name in ALLOWED_ENVIRONMENT or name.startswith("PYTHON")


@pytest.mark.wall("environment")
def test_the_environment_is_a_short_list_of_our_own(seen: dict[str, Any]) -> None:
    assert [name for name in seen["environment"] if not allowed(name)] == []
    assert [name for name in seen["c_environment"] if not allowed(name)] == []
    assert "of-the-host" not in str(seen)


def test_environment_given_by_the_caller_is_there() -> None:
    """The harmless counterpart: what is given arrives."""

    @sandbox(env={"GREETING": "hello"})
    def greet() -> str:
        import os

        return os.environ["GREETING"]

    assert greet() == "hello"


@pytest.mark.wall("masks")
def test_telling_files_of_proc_are_masked(seen: dict[str, Any]) -> None:
    harmless = {
        "modules",
        "interrupts",
        "iomem",
        "ioports",
        "slabinfo",
        "vmallocinfo",
    }  # the kernel's own protection
    told = {
        k: v
        for k, v in seen["proc_files"].items()
        if v and not v.startswith("!") and k not in harmless
    }
    assert told == {}
    for name in ("iomem", "ioports"):
        rows = [
            row
            for row in seen["proc_files"].get(name, "").splitlines()[:-1]
            if not row.startswith("!")
        ]
        assert all("00000000-00000000" in row or "0000-0000" in row for row in rows), name


def test_there_is_no_sys(seen: dict[str, Any]) -> None:
    assert all(answer in ("ENOENT", "EACCES", []) for answer in seen["sys"].values())


@pytest.mark.wall("masks")
def test_names_of_the_host_are_not_known(seen: dict[str, Any]) -> None:
    names = seen["names"]
    assert names["hostname"] != socket.gethostname()
    assert names["cmdline"] == "" or names["cmdline"].startswith("!")
    assert names["machine-id"].count("!") == 2
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert names["boot_id"] != boot


def test_mounts_name_no_user_and_no_home(seen: dict[str, Any]) -> None:
    text = seen["mountinfo"]
    assert getpass.getuser() + "/" not in text or getpass.getuser() == "root"
    assert "/home/" not in text
    assert "podman" not in text


def test_only_a_loopback_of_its_own_is_listed(seen: dict[str, Any]) -> None:
    files = seen["network_files"]
    names = {row.split(":")[0].strip() for row in files["dev"].splitlines()[2:]}
    assert names <= {"lo"}
    for name in ("tcp", "tcp6", "udp"):
        assert len(files[name].splitlines()) <= 1, name
    assert [row for row in files["unix"].splitlines()[1:] if "/" in row.split()[-1]] == []
    assert len(files["route"].splitlines()) <= 1


@pytest.mark.wall("masks")
def test_the_load_of_the_machine_is_hidden_where_it_can_be(seen: dict[str, Any]) -> None:
    pressure = {k: v for k, v in seen["pressure"].items() if "pressure" in k}
    assert all(v == "" or v.startswith("!") for v in pressure.values())
    assert all(row.endswith((":/", "::/")) for row in seen["pressure"]["/proc/self/cgroup"].split())


@pytest.mark.wall("descriptors")
def test_descriptors_are_streams_and_one_socket(seen: dict[str, Any]) -> None:
    for fd, target in seen["descriptors"].items():
        if target.startswith("/proc/"):
            continue  # the directory that was being listed
        assert int(fd) <= 2 or target.startswith("socket:"), (fd, target)
    assert sum(target.startswith("socket:") for target in seen["descriptors"].values()) <= 1


def test_paths_of_the_host_are_not_in_python(seen: dict[str, Any]) -> None:
    paths = seen["python_paths"]
    here = str(Path(__file__).parent)
    for key in ("path", "traceback", "prefix"):
        assert here not in str(paths[key])
        assert "/home/" not in str(paths[key])
    assert str(Path.home()) not in str(paths["path"])


def test_the_image_names_nobody(seen: dict[str, Any]) -> None:
    text = str(seen["imprint"])
    assert socket.gethostname() not in text
    user = getpass.getuser()
    assert user == "root" or user not in text


@sandbox
def look_for(marker: bytes) -> int:
    """Counts copies of the reversed marker in every readable page of this process."""
    wanted = marker[::-1]
    count = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, mode = line.split()[:2]
            if mode[0] != "r" or "vvar" in line or "vsyscall" in line:
                continue
            begin, end = (int(part, 16) for part in span.split("-"))
            try:
                memory.seek(begin)
                data = memory.read(min(end - begin, 1 << 26))
            except (OSError, ValueError, OverflowError):
                continue
            count += data.count(wanted)
    return count


@sandbox
def remember(secret: bytes) -> int:
    globals()["kept"] = [bytes(secret) + bytes([n % 256]) for n in range(1000)]
    return len(secret)


@pytest.mark.wall("fresh")
def test_arguments_of_an_earlier_call_are_in_nobodys_memory() -> None:
    secret = os.urandom(24).hex().encode()
    for _ in range(5):
        assert remember(secret) == 48
    # It is sent backwards, so that the searcher's own arguments are no find; its copies are few.
    assert all(look_for(secret[::-1]) < 50 for _ in range(3))
