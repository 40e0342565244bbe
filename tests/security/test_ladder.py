# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (programs as text)
"""The main attacks on every rung: a cell, a container of its own, such a container where the host
lets nobody make namespaces ("bare"), gVisor. What a rung answers may differ; that it holds may not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import Outcome, PlatformNotSupportedError

REFUSED = {
    "EPERM",
    "EACCES",
    "EROFS",
    "ENOSYS",
    "ENOENT",
    "EINVAL",
    "ESRCH",
    "ENOTDIR",
    "ENODEV",
    "ENXIO",
}


Run = Callable[..., Outcome[Any]]


@pytest.fixture
def run(rung: str) -> Run:
    isolation = "container" if rung == "bare" else rung

    def run(source: str, **keywords: Any) -> Outcome[Any]:
        keywords.setdefault("timeout_sec", 30)
        return hutch.run(source, isolation=isolation, labels={"rung": rung}, **keywords)

    return run


PRELUDE = """
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(call, *args, **named):
    try:
        call(*args, **named)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "done"
def syscall(name, *args):
    ctypes.set_errno(0)
    if getattr(libc, name)(*args) >= 0:
        return "done"
    return errno.errorcode.get(ctypes.get_errno(), "?")
def tell(**found):
    print(json.dumps(found))
"""


def ask(run: Run, source: str, **keywords: Any) -> dict[str, Any]:
    outcome = run(PRELUDE + source, **keywords)
    assert outcome.status == "returned", outcome
    told: dict[str, Any] = json.loads(outcome.stdout)
    return told


# What is only looked at or tried is one program for each rung.
LOOKS = {
    "files": """
tell(refused={path: attempt(open, path + "/x", "w") for path in (
        "/", "/etc", "/usr", "/opt/python", "/opt/hutch", "/run", "/proc/sys/kernel")},
     over=[attempt(open, path, "w") for path in ("/etc/passwd", "/etc/hosts", sys.executable or "/x")],
     allowed=[attempt(open, path + "/x", "w") for path in ("/work", "/tmp", "/dev/shm")],
     cwd=os.getcwd())
""",
    "host's files": """
tell(seen=[attempt(os.listdir, path) for path in (
         "/root", "/home", "/var/lib/hutch", "/run/hutch/run", "/var/lib/containers")],
     secret=attempt(open, SECRET), allowed=len(os.listdir("/usr")))
""",
    "sockets": """
import stat
found = []
for top in ("/run", "/tmp", "/var", "/work", "/opt/hutch", "/dev"):
    for at, _, names in os.walk(top):
        for name in names:
            try:
                if stat.S_ISSOCK(os.lstat(os.path.join(at, name)).st_mode):
                    found.append(os.path.join(at, name))
            except OSError:
                pass
tell(found=found, environ=[k for k in os.environ if "HUTCH" in k])
""",
    "network": """
def connect(family, address):
    with socket.socket(family) as sock:
        sock.settimeout(3)
        return attempt(sock.connect, address)
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
client.sendall(b"x")
tell(out=[connect(socket.AF_INET, ("192.0.2.1", 80)), connect(socket.AF_INET, ("169.254.169.254", 80))],
     raw=attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1),
     packet=attempt(socket.socket, 17, socket.SOCK_RAW, 0),
     allowed=peer.recv(1).decode())
""",
    "privileges": """
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
tell(caps={status[name] for name in status if name.startswith("Cap")} == {"0" * 16},
     uid=[os.getuid(), os.geteuid(), os.getresuid()[2]],
     root=[attempt(os.setuid, 0), attempt(os.setgid, 0), attempt(os.setgroups, [0])],
     new=libc.prctl(39, 0, 0, 0, 0),
     chroot=attempt(os.chroot, "/tmp"), mount=syscall("mount", b"none", b"/tmp", b"tmpfs", 0, None),
     unshare=syscall("unshare", 0x10000000), hostname=attempt(socket.sethostname, "x"),
     node=attempt(lambda: (os.mknod("/tmp/memory", 0o20666, os.makedev(1, 1)), open("/tmp/memory", "rb"))),
     allowed=attempt(os.mkdir, "/tmp/mine"))
""",
    "memory": """
tell(written=[attempt(open, path, "w") for path in (
         "/proc/self/oom_score_adj", "/proc/thread-self/oom_score_adj", "/proc/self/clear_refs")],
     score=open("/proc/self/oom_score_adj").read().strip())
""",
    "others": """
import signal, re
def secrets(pid):
    try:
        return re.findall("TOKEN=[0-9a-f]", open(f"/proc/{pid}/environ").read())
    except OSError:
        return []
def is_socket(pid, fd):
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket")
    except OSError:
        return False
other = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
child = os.fork()
if child == 0:
    signal.pause()
tell(trace=[syscall("ptrace", 16, pid, 0, 0) for pid in other],
     memory=[attempt(open, f"/proc/{pid}/mem", "rb") for pid in other],
     tokens=[secrets(pid) for pid in other],
     channels=[attempt(open, f"/proc/{pid}/fd/{fd}", "r+b", buffering=0)
               for pid in other for fd in range(3, 30) if is_socket(pid, fd)],
     stopped=[attempt(os.kill, pid, 19) for pid in other],
     killed=[attempt(os.kill, pid, 9) for pid in other],
     allowed=attempt(os.kill, child, 9), still=[os.path.exists(f"/proc/{pid}") for pid in other])
""",
}
EACH = """
answers = {}
for name, source in LOOKS.items():
    exec(source, {**globals(), "tell": lambda **found: answers.update({name: found})})
tell(**answers)
"""
Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def known() -> dict[str, Told]:
    return {}


@pytest.fixture
def told(run: Run, rung: str, known: dict[str, Told], tmp_path: Path) -> Told:
    if rung not in known:
        (tmp_path / "secret").write_text("host")
        names = f"LOOKS, SECRET = {LOOKS!r}, {str(tmp_path / 'secret')!r}\n"
        known[rung] = ask(run, names + EACH)
    return known[rung]


# ---- files


def test_nothing_outside_the_scratch_can_be_written(told: Told) -> None:
    found = told["files"]
    assert set(found["refused"].values()) <= REFUSED, found["refused"]
    assert set(found["over"]) <= REFUSED
    assert found["allowed"] == ["done"] * 3 and found["cwd"] == "/work"


def test_the_hosts_files_are_not_there(told: Told) -> None:
    found = told["host's files"]
    assert set(found["seen"]) <= REFUSED and found["secret"] in REFUSED
    assert found["allowed"] > 0


def test_no_socket_of_ours_can_be_found(told: Told) -> None:
    found = told["sockets"]
    assert found == {"found": [], "environ": []}


def test_filling_the_scratch_ends_at_its_size(run: Run) -> None:
    outcome = run("open('x', 'wb').write(b'x' * (40 << 20))", disk_mb=16)
    assert (outcome.status, outcome.limit) == ("limit", "disk"), outcome


# ---- the network


def test_there_is_no_network_but_loopback(told: Told) -> None:
    found = told["network"]
    assert set(found["out"]) <= {"ENETUNREACH", "EHOSTUNREACH", "EPERM"}, found
    assert found["raw"] != "done" and found["packet"] != "done"
    assert found["allowed"] == "x"


# ---- processes and privileges


def test_no_privilege_is_there_and_none_can_be_had(told: Told) -> None:
    found = told["privileges"]
    assert found["caps"] and 0 not in found["uid"] and found["new"] == 1
    refused = [
        *found["root"],
        *(found[name] for name in ("chroot", "mount", "unshare", "hostname", "node")),
    ]
    assert set(refused) <= REFUSED, found
    assert found["allowed"] == "done"


def test_nobody_else_can_be_traced_signalled_or_read(told: Told) -> None:
    found = told["others"]
    assert "done" not in found["trace"] + found["memory"] + found["channels"], found
    assert not any(found["tokens"])
    assert all(found["still"]) and found["allowed"] == "done"


def test_killing_everything_ends_this_call_only(run: Run) -> None:
    outcome = run("import os, signal\ntry: os.kill(-1, 9)\nexcept OSError: pass\nos.abort()")
    assert outcome.status == "died" and outcome.signal in (6, 9), outcome
    assert run("print(1)").stdout == "1\n"


# ---- state


def test_a_call_leaves_nothing_for_the_next(run: Run) -> None:
    source = """
import builtins
tell(seen=[getattr(builtins, "mark", None), os.path.exists("/tmp/mark"), os.path.exists("/dev/shm/mark"),
           os.environ.get("MARK")])
builtins.mark = 1
for path in ("/tmp/mark", "/dev/shm/mark"):
    open(path, "w").close()
os.environ["MARK"] = "1"
if os.fork() == 0:
    os.setsid()
    import time
    time.sleep(600)
    os._exit(0)
"""
    for _ in range(2):
        assert ask(run, source) == {"seen": [None, False, False, None]}


# ---- resources


@pytest.mark.parametrize(
    ("source", "limit", "keywords"),
    [
        ("import time; time.sleep(60)", "time", {"timeout_sec": 1}),
        ("while True: pass", "time", {"timeout_sec": 1}),
        ("while True: pass", "cpu_time", {"cpu_sec": 1, "timeout_sec": 20}),
        ("x = bytearray(600 << 20)", "memory", {"memory_mb": 128, "disk_mb": 16}),
        (
            "import os, time\nfor _ in range(4):\n if os.fork() == 0: break\n"
            "x = bytearray(60 << 20)\ntime.sleep(20)",
            "memory",
            {"memory_mb": 128, "disk_mb": 16},
        ),
        ("import os, time\nwhile True:\n if os.fork() == 0: time.sleep(60)", "pids", {"pids": 8}),
    ],
)
def test_limits_end_the_call(run: Run, source: str, limit: str, keywords: dict[str, Any]) -> None:
    outcome = run(source, **keywords)
    assert (outcome.status, outcome.limit) == ("limit", limit), outcome


def test_what_is_within_the_limits_returns(run: Run) -> None:
    """The harmless counterpart, within all of them."""
    source = (
        "import os\nprint(open('x', 'wb').write(b'x' * (4 << 20)))\nif os.fork() == 0: os._exit(0)"
    )
    limits = {"timeout_sec": 20, "cpu_sec": 1, "memory_mb": 128, "disk_mb": 16, "pids": 8}
    assert run(source, **limits).stdout == "4194304\n"


def test_a_flood_of_output_is_cut(run: Run) -> None:
    outcome = run("import sys\nfor _ in range(200): sys.stdout.write('x' * 100_000)", output_mb=0.5)
    assert outcome.ok and outcome.stdout_truncated and outcome.stdout_size == 20_000_000


def test_gvisor_is_named_with_the_command_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shutil.which("runsc") is not None:
        pytest.skip("gVisor's runsc is installed here")
    with pytest.raises(PlatformNotSupportedError, match="runsc") as caught:
        hutch.run("pass", isolation="gvisor")
    assert "apt-get install" in str(caught.value.hint)


# ---- meetings


LOOK = """
import fcntl
devices = ["/dev/" + name for name in ("null", "zero", "full", "random", "urandom")]
def lock(path, how):
    taken.append(os.open(path, os.O_RDONLY))
    return attempt(fcntl.flock, taken[-1], how | fcntl.LOCK_NB)
taken = []
exclusive = {path: lock(path, fcntl.LOCK_EX) for path in [*devices, "/proc/self/ns/time"]
             if os.path.exists(path)}
"""


@pytest.mark.parametrize("rung", ["bare"], indirect=True)  # test_marks.py has the others
def test_no_mark_on_what_is_the_hosts_is_found_by_another_call(run: Run, hold: Any) -> None:
    look = LOOK + "tell(found=exclusive)"
    mark = (
        LOOK
        + "[lock(path, fcntl.LOCK_SH) for path, how in exclusive.items() if how != 'done']\n"
        + "held(); tell()"
    )
    before = ask(run, look)["found"]
    with ThreadPoolExecutor(1) as threads:
        marking = threads.submit(ask, run, mark, tools=[hold.tool], timeout_sec=120)
        hold.await_begun()
        meanwhile = ask(run, look)["found"]
        assert not marking.done()
        hold.release()
        marking.result()
    assert meanwhile == before
    assert {before[path] for path in before if path.startswith("/dev")} == {"EAGAIN"}


def test_a_call_goes_before_anything_of_the_host_when_memory_is_short(
    told: Told, rung: str
) -> None:
    if rung == "gvisor":  # what it tells of is not the host's
        return
    assert set(told["memory"]["written"]) == {"EROFS"}
    assert told["memory"]["score"] == "800"
