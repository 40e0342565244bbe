# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (programs as text)
"""A host that lets no container make namespaces: cells are refused with the reason, and
isolation="container" serves without them. Made here by worker files whose system call filter knows
no `unshare`; the agent takes them for one more version of its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import PlatformNotSupportedError, sandbox
from hutch._connect import launcher

NAMESPACES = ("unshare", "setns")


@pytest.fixture(scope="module", autouse=True)
def _forbidden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    runtime = tmp_path_factory.mktemp("runtime") / "_runtime"
    shutil.copytree(launcher.RUNTIME, runtime)
    profile = json.loads((runtime / "seccomp-worker.json").read_text())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in NAMESPACES]
    profile["syscalls"] = [rule for rule in profile["syscalls"] if rule["names"]]
    (runtime / "seccomp-worker.json").write_text(json.dumps(profile))
    own = launcher.RUNTIME
    launcher.RUNTIME = str(runtime)
    launcher.runtime_id.cache_clear()
    yield
    launcher.RUNTIME = own
    launcher.runtime_id.cache_clear()


def test_cells_are_refused_with_the_reason_and_what_to_do() -> None:
    with pytest.raises(PlatformNotSupportedError, match="namespaces for a slot") as caught:
        sandbox(lambda: 1, labels={"test": "refused"})()
    assert "isolation" in str(caught.value.hint) and not caught.value.may_have_run
    with pytest.raises(PlatformNotSupportedError):
        hutch.run("print(1)", labels={"test": "refused"})


def test_what_only_cells_can_have_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    asked: dict[str, Any] = {"allow_network": ["example.org"], "mounts": {"/data": str(tmp_path)}}
    for keyword, value in asked.items():
        labels = {"test": keyword}
        with pytest.raises(PlatformNotSupportedError) as caught:
            hutch.run("print(1)", isolation="container", labels=labels, **{keyword: value})
        assert f"{keyword}=" in str(caught.value.hint) and not caught.value.may_have_run


def test_containers_serve() -> None:
    square = sandbox(isolation="container")(lambda x: x * x)
    outcomes = list(square.map(range(4), on_error="outcome"))
    assert [outcome.unwrap() for outcome in outcomes] == [0, 1, 4, 9]
    assert len({outcome.worker_id for outcome in outcomes}) == 4
    assert hutch.run("print(input())", stdin="x", isolation="container").stdout == "x\n"


def test_exceptions_and_large_values_arrive() -> None:
    @sandbox(isolation="container")
    def turn(data: bytes) -> bytes:
        if not data:
            raise ValueError("nothing")
        return data[::-1]

    data = bytes(range(256)) * 4096
    assert turn(data) == data[::-1]
    with pytest.raises(ValueError, match="nothing"):
        turn(b"")


@pytest.mark.parametrize(
    ("source", "limit", "keywords"),
    [
        (
            "import mmap\nx = mmap.mmap(-1, 300 << 20)\nfor i in range(0, 300 << 20, 4096): x[i] = 1",
            "memory",
            {"memory_mb": 64, "disk_mb": 8},
        ),
        ("open('x', 'wb').write(b'x' * (20 << 20))", "disk", {"disk_mb": 8}),
        ("open('/tmp/x', 'wb').write(b'x' * (20 << 20))", "disk", {"disk_mb": 8}),
        (
            "import time\nfor i in range(10 ** 6): open(f'/tmp/{i}', 'w').close()",
            "disk",
            {"disk_mb": 8},
        ),
    ],
)
def test_limits_bite(source: str, limit: str, keywords: dict[str, float]) -> None:
    """Those that are not tried on this rung in security/test_ladder.py."""
    outcome = hutch.run(source, isolation="container", **keywords)  # type: ignore[arg-type]
    assert (outcome.status, outcome.limit) == ("limit", limit), outcome


@pytest.mark.parametrize(
    ("source", "signal"),
    [
        ("import os; os.kill(os.getpid(), 9)", 9),
        ("import os; os.kill(os.getpid(), 19)", 19),
        ("import os; os.abort()", 6),
    ],
)
def test_how_a_call_died_is_reported(source: str, signal: int | None) -> None:
    outcome = hutch.run(source, isolation="container", timeout_sec=20)
    assert outcome.status == "died"
    assert signal is None or outcome.signal == signal


def test_the_import_of_packages_counts_for_no_call(tmp_path: Path) -> None:
    (tmp_path / "slow_one.py").write_text(
        "import time\nend = time.process_time() + 1\nwhile time.process_time() < end: pass\n"
        "ballast = bytearray(100 << 20)\n"
    )

    @sandbox(
        isolation="container",
        modules=[tmp_path / "slow_one.py"],
        preload=["slow_one"],
        cpu_sec=0.9,
        memory_mb=64,
        disk_mb=8,
    )
    def use() -> int:
        import slow_one  # type: ignore[import-not-found]

        return len(slow_one.ballast)

    assert use() == 100 << 20


LOOK = """
import ctypes, os, socket, stat, json
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(result):
    return ctypes.get_errno() if result < 0 else 0
def tried(call, *args):
    try:
        call(*args)
    except OSError as error:
        return error.errno
    return 0
found = {}
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
found["caps"] = {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
found["no_new_privs"] = status["NoNewPrivs"]
found["filters"] = int(status.get("Seccomp_filters", 2))
found["fds"] = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
found["environ"] = sorted(os.environ)
found["unshare"] = errno_of(libc.unshare(0x10000000))
found["mount"] = errno_of(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
found["ptrace"] = errno_of(libc.ptrace(16, os.getppid(), 0, 0))
found["signal"] = tried(os.kill, 1, 9)
found["warden"] = [tried(open, f"/proc/1/{name}") for name in ("environ", "mem", "maps", "fd/3")]
found["root"] = [tried(open, path, "w") for path in ("/x", "/usr/x", "/opt/hutch/x", "/opt/python/x", "/run/hutch/x", "/etc/x")]
found["sockets"] = [os.path.join(at, name) for at, _, names in os.walk("/run") for name in names if stat.S_ISSOCK(os.lstat(os.path.join(at, name)).st_mode)]
sock = socket.socket()
found["network"] = sock.connect_ex(("192.0.2.1", 80))
found["host"] = socket.gethostname()
found["pids"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
print(json.dumps(found))
"""


def test_the_containers_own_walls_are_there() -> None:
    outcome = hutch.run(LOOK, isolation="container")
    found = json.loads(outcome.stdout)
    assert found["caps"] and found["no_new_privs"] == "1" and found["filters"] >= 2
    assert found["fds"] == [0, 1, 2, 3, 4]  # 4: of the listing itself
    assert not [name for name in found["environ"] if "HUTCH" in name]
    assert found["unshare"] in (1, 38) and found["mount"] == 1 and found["ptrace"] in (1, 38)
    assert found["signal"] in (0, 1)  # lost on PID 1, or refused by Landlock
    assert all(found["warden"]) and all(found["root"])
    assert found["sockets"] == [] and found["network"] == 101 and found["host"] == "cell"
    assert len(found["pids"]) == 2
