# SPDX-License-Identifier: Apache-2.0
"""The posture of a cell: what the kernel says of each of its threads, against golden_posture.json.

Identity, capabilities, filters, namespaces, descriptors, mounts and limits, before user code has
done anything and after it has tried to change all of it. What differs between kernels is left out
(options of a file system that the kernel adds by itself; which files of /proc there are to mask).
To renew the golden list: HUTCH_WRITE_GOLDEN=1, and read the difference.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import Session, sandbox

GOLDEN = Path(__file__).parent / "golden_posture.json"
# A cell's walls are the same in a container of its own, and in one that was started ahead of its
# packages.
RUNGS = ("cell", "container", "spare")
SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/opt/", "/etc/ssl")
DEVICES = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}
TIMES = ("time", "time_for_children")  # names in /proc/PID/ns
BACKSTOP_PROCESSES = 16  # as images/worker/slot.cc
Posture = dict[str, Any]


def posture(struggle: bool) -> Posture:
    """Runs in the cell; `struggle`: after trying to change what it tells of."""
    import ctypes
    import os
    import resource
    import stat
    import threading

    stay = threading.Event()
    threads = []
    if struggle:
        libc = ctypes.CDLL(None)
        libc.prctl(8, 1, 0, 0, 0)  # keep capabilities
        libc.prctl(28, 0, 0, 0, 0)  # secure bits
        libc.prctl(47, 2, 21, 0, 0)  # raise an ambient capability
        libc.prctl(38, 0, 0, 0, 0)  # new privileges again
        libc.unshare(0x10000000)
        libc.mount(b"x", b"/tmp", b"tmpfs", 0, None)
        libc.umount2(b"/proc/cmdline", 2)
        libc.setgroups(1, ctypes.byref(ctypes.c_uint(0)))
        libc.setresuid(0, 0, 0)
        for limit in range(16):
            try:
                hard = resource.getrlimit(limit)[1]
                resource.setrlimit(limit, (resource.getrlimit(limit)[0], hard + 1))
            except (OSError, ValueError):
                pass
        for _ in range(3):
            threads.append(threading.Thread(target=stay.wait))
            threads[-1].start()

    def fields(path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for line in open(path):
            key, _, value = line.partition(":")
            if key.startswith("Cap") or key in ("NoNewPrivs", "Seccomp"):
                found[key] = int(value, 16)
            if key in ("Uid", "Gid"):
                found[key] = ["0" if part == "0" else "own" if part == mine[key] else part
                              for part in value.split()]  # fmt: skip
            if key == "Seccomp_filters":
                found[key] = int(value)
            if key == "Groups":
                found[key] = sorted({"own" if g == mine["Gid"] else g for g in value.split()})
        return found

    mine = {"Uid": str(os.getuid()), "Gid": str(os.getgid())}
    told: Posture = {
        "threads": [fields(f"/proc/self/task/{t}/status") for t in os.listdir("/proc/self/task")],
        "processes": sorted(p for p in os.listdir("/proc") if p.isdigit()),
    }
    for name, key in (("uid_map", "Uid"), ("gid_map", "Gid")):
        told[name] = [
            ["own" if part == mine[key] else part for part in line.split()]
            for line in open("/proc/self/" + name)
        ]
    # PID 1 of the cell: ours, with capabilities over nothing but the cell's own namespaces.
    told["init"] = {
        key: value for key, value in fields("/proc/1/status").items() if not key.startswith("Cap")
    }
    told["setgroups"] = open("/proc/self/setgroups").read().strip()
    told["namespaces"] = {
        kind: os.readlink("/proc/self/ns/" + kind) for kind in os.listdir("/proc/self/ns")
    }
    told["descriptors"] = {}
    for fd in sorted(os.listdir("/proc/self/fd")):
        try:
            target = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
        if not target.startswith("/proc/"):
            told["descriptors"][fd] = target.partition(":")[0]
    names = {getattr(resource, n): n for n in dir(resource) if n.startswith("RLIMIT_")}
    told["limits"] = {name: list(resource.getrlimit(n)) for n, name in sorted(names.items())}
    told["mounts"] = {}
    for line in open("/proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        place = left.split()
        kind, _, *above = right.split()
        shown = sorted(
            option
            for option in [*place[5].split(","), *",".join(above).split(",")]
            if option in ("ro", "rw", "nosuid", "nodev", "noexec")
            or option.startswith(("size=", "nr_inodes=", "lowerdir=", "upperdir="))
        )
        told["mounts"].setdefault(place[4], []).append(
            [kind, " ".join(dict.fromkeys(shown)), " ".join(place[6:])]
        )
    told["nodes"] = [path for path in told["mounts"] if stat.S_ISCHR(os.stat(path).st_mode)]
    told["process"] = {
        "working directory": os.getcwd(),
        "root": os.listdir("/"),
        "umask": os.umask(0o22),
        "session leader": os.getsid(0) == os.getpid(),
        "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
        "oom_score_adj": int(open("/proc/self/oom_score_adj").read()),
    }
    told["process"]["root"].sort()
    os.umask(0o22)
    stay.set()
    for thread in threads:
        thread.join()
    return told


look = sandbox(pids=32, memory_mb=256, disk_mb=32)(posture)


def on(rung: Any) -> Any:
    """`look` on that rung."""
    if rung != "spare":
        return look.options(isolation=rung)
    for attempt in range(20):  # another pool may take it first
        until(lambda: hutch.status()["spares"])
        taker = look.options(dependencies=["six"], env={"ATTEMPT": str(attempt)})
        if "-spare-" in (taker.run(False).worker_id or ""):
            return taker
    raise AssertionError("no spare served")


def shape(told: Posture) -> Posture:
    """What does not differ from call to call, kernel to kernel or worker to worker."""
    threads = told.pop("threads")
    told["thread"] = threads[0]
    assert all(thread == threads[0] for thread in threads), "one thread differs from the others"
    told["namespaces"] = sorted(told["namespaces"])
    del told["limits"]["RLIMIT_STACK"][1]  # the hard one is the host's
    data = told["limits"].pop("RLIMIT_DATA")
    assert 256 << 20 < data[0] < data[1] < 2 << 30
    if hutch.status()["enforcement"] == "cgroup":  # which counts them; this one is behind it
        limit = told["limits"]["RLIMIT_NPROC"]
        told["limits"]["RLIMIT_NPROC"] = [most - BACKSTOP_PROCESSES for most in limit]
    told["masked"] = sorted(
        path for path in told["mounts"] if path.startswith("/proc/") and len(path) > 6
    )
    for path in told["masked"]:
        assert all("ro" in options.split() for _, options, _ in told["mounts"].pop(path)), path
    told["shown"] = sorted(path for path in told["mounts"] if path.startswith(SHOWN))
    for path in told["shown"]:
        overlay = f"lowerdir={path}:/tmp/empty nodev nosuid ro"
        assert told["mounts"].pop(path) == [["overlay", overlay, ""]], path
    told["devices"] = sorted(path for path in told["mounts"] if path in DEVICES)
    # A node each, bound from the container's, which is bound from the host's.
    nodes = told.pop("nodes")
    for path in told["devices"]:
        (mount,) = told["mounts"].pop(path)
        assert path in nodes and mount[2] == "", path
        assert {"ro", "nosuid"} <= set(mount[1].split()), path
    return told


def golden() -> Posture:
    return dict(json.loads(GOLDEN.read_text()))


def compare(told: Posture) -> None:
    wanted = golden()
    # A kernel may have fewer files to mask and kinds of namespaces, an image fewer directories.
    for key in ("masked", "namespaces", "shown"):
        assert set(told.pop(key)) <= set(wanted.pop(key)), key
    assert told == wanted


@pytest.mark.wall("filter")
@pytest.mark.wall("capabilities")
@pytest.mark.wall("descriptors")
@pytest.mark.parametrize("rung", RUNGS)
def test_posture_is_the_golden_one(rung: Any) -> None:
    told = shape(on(rung)(False))
    if os.environ.get("HUTCH_WRITE_GOLDEN"):
        lines = [f'"{key}": {json.dumps(value, sort_keys=True)}' for key, value in told.items()]
        GOLDEN.write_text("{\n" + ",\n".join(sorted(lines)) + "\n}\n")
    compare(told)


@pytest.mark.wall("capabilities", "filter", "namespaces")
@pytest.mark.parametrize("rung", RUNGS)
def test_user_code_changes_nothing_of_it(rung: Any) -> None:
    """Threads that user code started are of the same posture; there were four."""
    told = on(rung)(True)
    assert len(told["threads"]) == 4
    compare(shape(told))


def test_a_difference_is_seen() -> None:
    """The comparison can fail: one bit of one capability of one thread."""
    told = look(True)
    told["threads"][2]["CapBnd"] = 1
    with pytest.raises(AssertionError):
        compare(shape(told))


def test_no_namespace_is_the_hosts_or_another_cells() -> None:
    here = {kind: os.readlink("/proc/self/ns/" + kind) for kind in os.listdir("/proc/self/ns")}
    one, two = look.submit(False), look.submit(False)
    seen = [dict(call.result()["namespaces"]) for call in (one, two)]
    for kind in here.keys() & {"user", "mnt", "pid", "ipc", "uts", "net", "cgroup", "time"}:
        assert here[kind] not in [cell[kind] for cell in seen], kind
    for kind in here.keys() & {"user", "mnt", "pid", "ipc", "uts", "net", "cgroup", "time"}:
        assert seen[0][kind] != seen[1][kind], kind


@pytest.mark.parametrize("when", ["first", "hundredth", "restarted", "in a container"])
def test_the_process_of_a_session_has_it_at_any_time(when: str) -> None:
    isolation: Any = "container" if when == "in a container" else "cell"
    with Session(pids=32, memory_mb=256, disk_mb=32, isolation=isolation) as s:
        for _ in range(99 if when == "hundredth" else 0):
            s.exec("pass")
        if when == "restarted":
            assert s.exec("import os; os._exit(1)").restarted
        for struggle in (False, True):
            told = shape(s.call(posture, struggle))
            # The kernel ends it before PID 1, with which the session's files would go.
            assert told["process"]["oom_score_adj"] == 900
            told["process"]["oom_score_adj"] = golden()["process"]["oom_score_adj"]
            if when == "restarted":
                assert told["processes"] == ["1", "3"]  # the second one has ended
                told["processes"] = golden()["processes"]
            compare(told)


# ---- what the code starts: programs of bash, what they start in turn, and every thread of Node

SCRIPT = (
    "import json, sys\nfrom typing import Any\nPosture = dict\n"
    + inspect.getsource(posture)
    + "print(json.dumps(posture(sys.argv[1] == 'struggle')))\n"
)
LIMITS: Any = {"pids": 32, "memory_mb": 256, "disk_mb": 32}
OWN = ("descriptors", "processes")  # of a process, not of what it may do
THREADS = """
import os
from pathlib import Path
found = {}
for process in Path("/proc").iterdir():
    if process.name.isdigit() and process.name not in ("1", str(os.getpid())):
        if (process / "comm").read_text() in ("node\\n", "MainThread\\n"):
            for task in (process / "task").iterdir():
                found[task.name] = (task / "status").read_text()
found
"""


def compare_program(printed: str) -> None:
    told: Posture = json.loads(printed)
    program = shape(told)
    wanted = golden()
    # It leads no session, is what the kernel ends first, and has nothing but what it prints to.
    assert not program["process"].pop("session leader")
    assert program["process"].pop("oom_score_adj") >= wanted["process"]["oom_score_adj"]
    program["process"] |= {
        key: wanted["process"][key] for key in ("session leader", "oom_score_adj")
    }
    assert set(program["descriptors"]) <= {"0", "1", "2"}, program["descriptors"]
    for key in OWN:
        program[key] = wanted[key]
    compare(program)


@pytest.fixture(params=["cell", "container"])
def s(request: pytest.FixtureRequest) -> Any:
    with Session(files={"look.py": SCRIPT}, isolation=request.param, **LIMITS) as session:
        yield session


@pytest.mark.wall("filter")
@pytest.mark.wall("capabilities")
@pytest.mark.parametrize("what", ["look", "struggle"])
@pytest.mark.parametrize(
    "text",
    [
        "python3 look.py {}",
        "sh -c 'setsid -w bash -lc \"python3 look.py {}\"'",
        "!python3 look.py {}",
    ],
)
def test_what_bash_starts_has_the_posture_of_the_code(s: Session, text: str, what: str) -> None:
    run = s.exec if text.startswith("!") else s.bash
    outcome = run(text.format(what))
    if "setsid" in text:  # which is what it is for
        told = json.loads(outcome.stdout)
        told["process"]["session leader"] = False
        compare_program(json.dumps(told))
    else:
        compare_program(outcome.stdout)


@pytest.mark.parametrize("what", ["look", "struggle"])
def test_a_program_of_bash_has_it(what: str) -> None:
    text = f"python3 look.py {what}"
    outcome = hutch.run(text, language="bash", files={"look.py": SCRIPT}, **LIMITS)
    compare_program(outcome.stdout)


def fields_of(status: str) -> dict[str, str]:
    return {name: value.strip() for name, value in re.findall(r"^(\w+):(.*)$", status, re.M)}


@pytest.mark.wall("filter")
@pytest.mark.wall("capabilities")
def test_every_thread_of_node_has_it(s: Session) -> None:
    """Also those that its code starts."""
    worker = "new (require('worker_threads').Worker)('setTimeout(() => 0, 60000)', {eval: true})"
    s.node(f"const up = {worker}; await new Promise((go) => up.once('online', go))").unwrap()
    threads: dict[str, str] = s.exec(THREADS).unwrap()
    assert len(threads) > 4
    own = fields_of(s.exec("open('/proc/self/status').read()").unwrap())
    for status in threads.values():
        told = fields_of(status)
        for name, value in golden()["thread"].items():
            if isinstance(value, int):
                assert int(told[name], 16) == value, name
            else:
                assert told[name] == own[name], name


@pytest.mark.parametrize("what", ["look", "struggle"])
def test_what_node_starts_has_it(s: Session, what: str) -> None:
    start = f"require('child_process').execFileSync('python3', ['look.py', '{what}'])"
    told = json.loads(s.node(f"{start}.toString()").unwrap())
    data = told["limits"]["RLIMIT_DATA"]  # up to the hard limit, for what its compiler reserves
    assert data[0] == data[1]
    data[0] -= 1
    compare_program(json.dumps(told))


# ---- slots ----


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the namespaces of others")
def test_a_slot_is_in_the_namespace_of_time_that_its_cells_get() -> None:
    """Where it is not, Linux 6.1 (Debian 12) makes no cell, which shares memory with it."""
    hutch.run("pass").unwrap()
    seen = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"zygote.py" in (process / "cmdline").read_bytes():
                seen.add(tuple(os.readlink(process / "ns" / name) for name in TIMES))
        except OSError:  # it has ended
            continue
    assert all(own == of_children for own, of_children in seen)
    assert len(seen) > 1, "no slot has one of its own"
