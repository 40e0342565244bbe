# SPDX-License-Identifier: Apache-2.0
"""Marks: what a call does to all that it reaches is found by no other call, nor on the host.

What there is to reach is listed at run time, inside: devices, descriptors, namespaces, files of the
image and of the environment. One call tries every way to leave something there, and holds on to
what it could take; others look, at the same time and later, of the same worker and of another one.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from hutch import Pool, Tool, sandbox

pytestmark = pytest.mark.alone  # what it looks for are marks that others could leave

Seen = dict[str, Any]
ONE = Pool(max_cells=1)  # one slot


def places() -> list[str]:
    """What can be opened and may be the same inode for another call."""
    import os
    import sys

    found = ["/", "/proc", "/proc/self/exe", "/proc/version", "/proc/cmdline", "/proc/locks"]
    found += ["/proc/sys/kernel/random/boot_id", "/dev", sys.executable or "/proc/self/exe"]
    found += [f"/proc/self/ns/{kind}" for kind in sorted(os.listdir("/proc/self/ns"))]
    library = os.path.dirname(os.__file__)
    tops = ["/dev", "/etc", library, library + "/encodings", "/opt/env", "/usr/bin"]
    for top in tops:
        taken = 0
        for name in sorted(os.listdir(top) if os.path.isdir(top) else []):
            path = os.path.join(top, name)
            if taken < 20 and not os.path.islink(path) and path not in ("/dev/shm", "/dev/tty"):
                found.append(path)
                taken += 1
    return [path for path in dict.fromkeys(found) if os.access(path, os.R_OK)]


def peer() -> int:
    """A descriptor of the process at the other end of the call's socket, or -1."""
    import socket

    with socket.socket(fileno=os.dup(3)) as call:
        try:
            return call.getsockopt(socket.SOL_SOCKET, 77)
        except OSError:
            return -1


def look(own_kernel: bool) -> Seen:
    """Runs in a cell: what it can tell of everything that it reaches, and leaves as it was.

    gVisor makes its devices when a container starts, and does not tell whom signals go to.
    """
    import ctypes
    import fcntl
    import os
    import stat
    import struct

    def ask(call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except OSError as error:
            return error.errno

    def locks(fd: int) -> list[Any]:
        found: list[Any] = [ask(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)]
        ask(fcntl.flock, fd, fcntl.LOCK_UN)
        for command in (36, fcntl.F_GETLK):  # F_OFD_GETLK
            for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
                told = ask(fcntl.fcntl, fd, command, struct.pack("hhqqi4x", kind, 0, 0, 0, 0))
                found.append(struct.unpack("hhqqi4x", told)[:4] if type(told) is bytes else told)
        return found

    seen: Seen = {}
    for path in places():
        fd = ask(os.open, path, os.O_RDONLY | os.O_NONBLOCK)
        info = os.fstat(fd)
        seen[path] = [locks(fd), ask(fcntl.fcntl, fd, 1035, bytes(8)), ask(os.listxattr, fd)]
        # A worker's uid is its own.
        seen[path] += [info.st_mode, info.st_uid == os.getuid(), info.st_gid == os.getgid()]
        # Of a slot's own files and of /proc the times are those when they were made.
        device = stat.S_ISCHR(info.st_mode) and not own_kernel
        if device or path.startswith(("/usr", "/opt")):
            seen[path] += [info.st_mtime_ns]
        os.close(fd)
    for fd in (0, 1, 2, 3):
        flags = [fcntl.fcntl(fd, command) for command in (3, 11, 9)]
        seen[f"descriptor {fd}"] = flags[: 2 if own_kernel else 3] + locks(fd)
    other = peer()
    seen["peer"] = other if other < 0 else locks(other)
    libc = ctypes.CDLL(None)
    seen["semaphores"] = libc.semget(4711, 1, 0)
    return seen


def leave() -> dict[str, list[str]]:
    """Runs in a cell: tries every way to leave a mark there, and holds what it could take until
    the tool answers.
    """
    import ctypes
    import fcntl
    import os
    import struct

    done: dict[str, list[str]] = {}

    def attempt(way: str, place: str, call: Any, *args: Any) -> bool:
        try:
            call(*args)
        except OSError:
            return False
        done.setdefault(way, []).append(place)
        return True

    def lock(kind: int, start: int) -> bytes:
        return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, 3, 0)

    def mark(fd: int, place: str) -> None:
        if not attempt("flock", place, fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
            attempt("shared flock", place, fcntl.flock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
            attempt(f"open-file lock {kind}", place, fcntl.fcntl, fd, 37, lock(kind, 7))
            attempt(f"process's lock {kind}", place, fcntl.fcntl, fd, fcntl.F_SETLK, lock(kind, 20))
        for command, value in (("lease", (1024, 0)), ("events", (1026, 0x8000003F))):
            attempt(command, place, fcntl.fcntl, fd, *value)
        for command in (1036, 1038):
            attempt("hint", place, fcntl.fcntl, fd, command, struct.pack("Q", 3))

    taken = []
    for path in places():
        for mode in (os.O_RDONLY, os.O_RDWR):
            try:
                taken.append(os.open(path, mode | os.O_NONBLOCK))
            except OSError:
                continue
            mark(taken[-1], path)
        attempt("times", path, os.utime, path, (4711, 4711))
        attempt("now", path, os.utime, path)
        attempt("attribute", path, os.setxattr, path, "user.mark", b"x")
        attempt("mode", path, os.chmod, path, 0o600)
        attempt("owner", path, os.chown, path, os.getuid(), os.getgid())
    for fd in (0, 1, 2):
        place = f"descriptor {fd}"
        mark(fd, place)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK | os.O_APPEND
        attempt("flags", place, fcntl.fcntl, fd, fcntl.F_SETFL, flags)
        attempt("owner of signals", place, fcntl.fcntl, fd, fcntl.F_SETOWN, os.getpid())
        attempt("signal", place, fcntl.fcntl, fd, 10, 37)
    other = peer()
    if other >= 0:
        mark(other, "peer")
    ctypes.CDLL(None).semget(4711, 1, 0o1666)
    held()  # type: ignore[name-defined]  # noqa: F821
    return done


def difference(before: Seen, now: Seen) -> Seen:
    return {
        place: (before.get(place), now.get(place))
        for place in before.keys() | now.keys()
        if before.get(place) != now.get(place)
    }


@pytest.mark.parametrize(
    "rung",
    [
        pytest.param(
            "cell",
            marks=[
                pytest.mark.wall("locks"),
                pytest.mark.wall("devices"),
                pytest.mark.wall("overlays"),
            ],
        ),
        "container",
        "gvisor",
    ],
)
def test_no_mark_of_a_call_is_found_by_another(rung: Any, hold: Any) -> None:
    gvisor = rung == "gvisor"
    if gvisor and shutil.which("runsc") is None:
        pytest.skip("gVisor's runsc is not installed: apt-get install runsc")
    marker = sandbox(
        leave, isolation=rung, timeout_sec=120, env={"WORKER": "one"}, tools=[hold.tool]
    )
    lookers = {
        name: sandbox(look, isolation=rung, timeout_sec=120, env={"WORKER": name})
        for name in ("one", "two")
    }
    before = {name: looker(gvisor) for name, looker in lookers.items()}
    # One look is like another: else nothing below would mean anything.
    assert not difference(before["one"], lookers["one"](gvisor))
    marking = marker.submit()
    hold.await_begun()
    found = [(name, looker(gvisor)) for name, looker in lookers.items()]
    assert not marking.done()
    hold.release()
    done = marking.result()
    found += [(name, looker(gvisor)) for name, looker in lookers.items()]
    for name, seen in found:
        assert not difference(before[name], seen), (name, done)
    if not gvisor:
        # The harmless counterpart: its own can be locked, and shared locks can be had.
        assert "descriptor 1" in done["flock"]
        assert "/dev/null" in done["shared flock"]
        assert any(path.startswith("/usr/bin/") for path in done["flock"])


@pytest.mark.wall("stdin")
def test_the_next_call_of_a_slot_finds_no_mark() -> None:
    """Its descriptors above all: flags, owners and open-file locks belong to an open file."""
    settings: dict[str, Any] = {"pool": ONE, "timeout_sec": 60, "env": {"SLOT": "one"}}
    marker = sandbox(leave, tools=[Tool(lambda: True, name="held")], **settings)
    looker = sandbox(look, **settings)
    before = looker(False)
    done = marker()
    assert {"descriptor 0", "descriptor 1", "descriptor 2"} <= set(done["flags"])
    for _ in range(3):
        assert not difference(before, looker(False)), done


@pytest.mark.wall("devices")
def test_the_hosts_devices_keep_their_times() -> None:
    names = ["/dev/" + name for name in ("null", "zero", "full", "random", "urandom")]

    @sandbox
    def touch() -> list[int]:
        import os

        refused = []
        for name in names:
            try:
                os.utime(name)
                refused.append(0)
            except OSError as error:
                refused.append(error.errno or 0)
        return refused

    # Of the other times the last change is set by whoever starts a container.
    before = [(os.stat(name).st_mtime_ns, os.stat(name).st_atime_ns) for name in names]
    refused = touch()
    assert [(os.stat(name).st_mtime_ns, os.stat(name).st_atime_ns) for name in names] == before
    assert refused == [30] * 5  # EROFS


def test_devices_and_locks_of_ones_own_work() -> None:
    """The harmless counterpart."""

    @sandbox
    def use() -> dict[str, Any]:
        import fcntl
        import os
        import subprocess

        found: dict[str, Any] = {}
        with open("/dev/null", "w") as sink:
            found["null"] = sink.write("x")
        with open("/dev/null", "r+b") as sink:
            found["read null"] = sink.read()
        with open("/dev/zero", "rb") as zeros:
            found["zero"] = zeros.read(3)
        with open("/dev/urandom", "rb") as random:
            found["random"] = len(random.read(16))
        try:
            with open("/dev/full", "wb", buffering=0) as full:
                full.write(b"x")
        except OSError as error:
            found["full"] = error.errno
        ran = subprocess.run(["sh", "-c", "echo x >/dev/null; cat"], stdin=subprocess.DEVNULL)
        found["shell"] = ran.returncode
        with open("lock", "w") as mine:
            fcntl.flock(mine, fcntl.LOCK_EX)
            fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            child = os.fork()
            if child == 0:
                try:
                    with open("lock", "r+") as same:
                        fcntl.flock(same, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os._exit(7)
                os._exit(0)
            found["locked out"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            mine.write("x")
            mine.flush()
            os.fsync(mine.fileno())
            os.fdatasync(mine.fileno())
        os.utime("lock", (1, 1))
        found["times"] = os.stat("lock").st_mtime
        os.sync()
        found["stdin"] = os.read(0, 1)
        return found

    assert use() == {
        "null": 1, "read null": b"", "zero": b"\0\0\0", "random": 16, "full": 28, "shell": 0,
        "locked out": 7, "times": 1.0, "stdin": b"",
    }  # fmt: skip


@pytest.mark.wall("profile")
def test_no_call_writes_out_the_hosts_file_systems() -> None:
    """A descriptor that is none: the kernel would say so, were it asked."""

    @sandbox
    def flush() -> list[int]:
        import ctypes
        import os

        os.sync()
        libc = ctypes.CDLL(None, use_errno=True)
        return [libc.syncfs(fd) for fd in (-1, 4711, os.open("/", os.O_RDONLY))]

    assert flush() == [0, 0, 0]


@pytest.mark.wall("proc-writes")
def test_nothing_of_a_process_can_be_written_in_proc() -> None:
    """oom_score_adj above all: a call that lowers it lets its neighbours die in its place."""

    @sandbox
    def write() -> dict[str, list[str]]:
        import errno
        import os

        found: dict[str, list[str]] = {}
        for folder in ("/proc/self", f"/proc/self/task/{os.getpid()}", "/proc/thread-self"):
            for name in sorted(os.listdir(folder)):
                path = os.path.join(folder, name)
                if os.path.isdir(path) or os.path.islink(path) or name == "mem":
                    continue
                try:
                    os.close(os.open(path, os.O_WRONLY))
                    found.setdefault("opened", []).append(path)
                except OSError as error:
                    found.setdefault(errno.errorcode[error.errno or 0], []).append(path)
        child = os.fork()
        if child == 0:
            try:
                with open("/proc/self/oom_score_adj", "w") as file:
                    file.write("0")
            except OSError:
                os._exit(7)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
            found.setdefault("opened", []).append("a child's oom_score_adj")
        found["score"] = [open("/proc/self/oom_score_adj").read().strip()]
        return found

    told = write()
    assert "opened" not in told, told["opened"]
    assert told["score"] == ["800"]
    assert "/proc/self/oom_score_adj" in told["EROFS"]


def test_programs_that_look_at_proc_work() -> None:
    """The harmless counterpart."""

    @sandbox
    def read() -> list[Any]:
        import ctypes
        import os
        import subprocess

        ctypes.CDLL(None).prctl(15, b"renamed", 0, 0, 0)
        shown = subprocess.run(["sh", "-c", "echo x > /dev/stderr"], capture_output=True)
        return [
            open("/proc/self/comm").read().strip(),
            shown.stderr.decode().strip(),
            len(open("/proc/meminfo").read()) > 100,
            os.cpu_count() is not None,
        ]

    assert read() == ["renamed", "x", True, True]


# ---- the network of a slot


def network() -> dict[str, Any]:
    """Runs in a cell: what tells of somebody who used its network."""
    import os

    found: dict[str, Any] = {"netns": os.readlink("/proc/self/ns/net")}
    for name in ("snmp", "netstat", "snmp6"):
        counters: dict[str, int] = {}
        lines = [line.split() for line in open("/proc/net/" + name)]
        if name == "snmp6":
            counters = {line[0]: int(line[1]) for line in lines}
        else:
            for names, numbers in zip(lines[::2], lines[1::2], strict=True):
                counters |= {
                    names[0] + key: int(number)
                    for key, number in zip(names[1:], numbers[1:], strict=True)
                }
        settings = ("Ip:Forwarding", "Ip:DefaultTTL", "Tcp:Rto", "Tcp:MaxConn")
        found[name] = {k: n for k, n in counters.items() if n and not k.startswith(settings)}
    found["dev"] = [n for line in open("/proc/net/dev") if "lo:" in line for n in line.split()[1:]]
    found["used"] = open("/proc/net/sockstat").readline().split()[-1]
    for table in ("tcp", "tcp6", "udp", "udp6", "unix", "raw"):
        found[table] = len(open("/proc/net/" + table).readlines()) - 1
    return found


def is_unused(seen: Seen) -> bool:
    counted = [seen[name] for name in ("snmp", "netstat", "snmp6")]
    tables = [seen[name] for name in ("tcp", "tcp6", "udp", "udp6", "unix", "raw")]
    return not any(counted) and not any(tables) and set(seen["dev"]) == {"0"}


def use(how: str) -> str:
    """Runs in a cell, and tells the network namespace that it used."""
    import os
    import socket

    if how in ("127.0.0.1", "::1"):  # the server closes first, so its port stays in TIME_WAIT
        family = socket.AF_INET6 if ":" in how else socket.AF_INET
        with socket.socket(family) as server:
            server.bind((how, 8080))
            server.listen()
            with socket.socket(family) as client:
                client.connect((how, 8080))
                taken, _ = server.accept()
                client.send(b"x" * 100_000)
                taken.close()
    elif how == "udp":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x", ("127.0.0.1", 9))
    elif how == "refused":
        with socket.socket() as sock:
            sock.connect_ex(("127.0.0.1", 9))
    elif how == "no route":  # nothing of it passes any interface
        for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
            with socket.socket(family) as sock:
                sock.connect_ex((address, 9))
    elif how == "left behind":  # on its way to the caller when the call ends
        server = socket.socket()
        server.bind(("127.0.0.1", 8080))
        server.listen()
        with socket.socket(fileno=os.dup(3)) as call:
            socket.send_fds(call, [b"x"], [server.fileno()])
    return os.readlink("/proc/self/ns/net")


USES = ["127.0.0.1", "::1", "udp", "refused", "no route"]


# What a call leaves on its way is closed by its caller, sooner or later than the next cell is made.
@pytest.mark.parametrize(
    "how",
    [*(pytest.param(how, marks=pytest.mark.wall("renewal")) for how in USES), "left behind"],
)
def test_a_network_that_was_used_is_not_the_next_calls(how: str) -> None:
    user = sandbox(use, pool=ONE, env={"NET": how})
    looker = sandbox(network, pool=ONE, env={"NET": how})
    assert is_unused(looker())
    outcome = user.run(how)
    if how != "left behind":  # what it sends is no answer, and ends it
        assert outcome.status == "returned", outcome
    for _ in range(3):
        seen = looker()
        assert is_unused(seen), seen
        assert seen["netns"] != outcome.value


@pytest.mark.wall("renewal")
def test_a_port_that_a_call_served_can_be_bound_by_the_next_one() -> None:
    @sandbox(pool=ONE, env={"NET": "port"})
    def serve() -> bytes:
        import socket
        import threading

        server = socket.socket()  # no SO_REUSEADDR
        server.bind(("127.0.0.1", 8080))
        server.listen()

        def answer() -> None:
            taken, _ = server.accept()
            taken.sendall(b"hello")
            taken.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with socket.create_connection(("127.0.0.1", 8080)) as client:
            got = client.recv(10)
        thread.join()
        server.close()
        return got

    assert [serve() for _ in range(4)] == [b"hello"] * 4


def test_a_network_that_nobody_used_is_kept() -> None:
    """It costs those nothing who use none: counted, not timed."""

    @sandbox(pool=ONE, env={"NET": "kept"})
    def quiet(open_one: bool) -> str:
        import os
        import socket

        if open_one:
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 8080))
            socket.socketpair()
        return os.readlink("/proc/self/ns/net")

    seen = [quiet(n % 2 == 0) for n in range(6)]
    assert len(set(seen)) == 1, seen


@pytest.mark.wall("renewal")
def test_a_network_with_a_way_out_is_not_the_next_calls_either() -> None:
    """Whoever forwards there begins anew with it."""
    settings: dict[str, Any] = {
        "pool": ONE,
        "allow_network": ["example.net"],
        "env": {"NET": "out"},
    }
    user, looker = sandbox(use, **settings), sandbox(network, **settings)
    before = looker()
    used = user("127.0.0.1")
    after = looker()
    assert after.pop("netns") != used
    before.pop("netns")
    assert after == before
    assert before["tcp"] > 0  # the forwarder listens


def test_no_memory_is_shared_by_calls() -> None:
    @sandbox
    def shared_mappings() -> list[str]:
        return [line for line in open("/proc/self/maps") if line.split()[1].endswith("s")]

    # The page that lines are gathered in (images/worker/printing.h), each cell's own.
    pages = [line.split() for _ in range(4) for line in shared_mappings()]
    assert [(page[1], page[5:]) for page in pages] == [("rw-s", ["/dev/zero", "(deleted)"])] * 4
    assert len({page[4] for page in pages}) == 4
    sizes = {int(end, 16) - int(begin, 16) for begin, end in (page[0].split("-") for page in pages)}
    assert sizes == {4096}
