# SPDX-License-Identifier: Apache-2.0
"""What programs ask of the system: files, devices, interfaces, memory that is only reserved."""

from __future__ import annotations

import json
import os
import textwrap
from typing import Any

import pytest

import hutch

RUNGS = ["cell", "shared", "container", "gvisor"]


def ran(text: str, **options: Any) -> str:
    outcome = hutch.run(textwrap.dedent(text), **options)
    assert outcome.ok, outcome
    return outcome.stdout


# What each prints.
TEXTS = {
    "files are renamed and linked between directories": (
        """
        import os, shutil, tempfile
        os.makedirs("a/deep"), os.makedirs("b")
        open("a/one", "w").write("1")
        os.rename("a/one", "b/two")
        os.link("b/two", "a/three")
        os.symlink("../b/two", "a/four")
        shutil.move("a/deep", "b/deep")
        os.replace("a/three", "b/deep/three")
        with tempfile.TemporaryDirectory() as other:
            shutil.move("b/deep/three", other)
            print(open(other + "/three").read(), sorted(os.listdir("b")))
        print(open("a/four").read())
    """,
        "1 ['deep', 'two']\n1\n",
    ),
    "what is not there is reported as by an older kernel": (
        """
        import ctypes, errno, os
        libc = ctypes.CDLL(None, use_errno=True)
        for call in (lambda: libc.inotify_init1(0), lambda: libc.memfd_create(b"x", 0)):
            print(call(), errno.errorcode[ctypes.get_errno()])
    """,
        "-1 ENOSYS\n-1 ENOSYS\n",
    ),
    "descriptors are waited for by every call that there is for it": (
        """
        import select, socket
        one, other = socket.socketpair()
        other.send(b"x")
        poll, epoll = select.poll(), select.epoll()
        poll.register(one, select.POLLIN)
        epoll.register(one, select.EPOLLIN)
        ready = select.select([one], [], [], 5)[0]
        print(ready == [one], len(poll.poll(5000)), len(epoll.poll(5)))
        print(select.select([], [], [], 0.01))
    """,
        "True 1 1\n([], [], [])\n",
    ),
    "ports have names": (
        """
        import socket
        print(socket.getservbyname("https", "tcp"), socket.getservbyport(80, "tcp"))
        print(socket.getaddrinfo("127.0.0.1", "https")[0][4])
    """,
        "443 http\n('127.0.0.1', 443)\n",
    ),
}
ALL = """
import contextlib, io, json
printed = {}
for name, text in TEXTS.items():
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(text, {"__name__": "__main__"})
    printed[name] = said.getvalue()
print(json.dumps(printed))
"""


@pytest.fixture(scope="module", params=RUNGS)
def printed(request: pytest.FixtureRequest) -> dict[str, str]:
    """By one program for each rung."""
    texts = {name: textwrap.dedent(text) for name, (text, _) in TEXTS.items()}
    if not os.path.exists("/etc/services"):
        del texts["ports have names"]
    found: dict[str, str] = json.loads(ran(f"TEXTS = {texts!r}\n{ALL}", isolation=request.param))
    return found


@pytest.mark.parametrize("what", TEXTS)
def test_what_programs_ask_is_there(what: str, printed: dict[str, str]) -> None:
    if what not in printed:
        pytest.skip("the host has no such names")
    assert printed[what] == TEXTS[what][1]


@pytest.mark.parametrize("isolation", ["cell", "shared", "container"])
def test_standard_output_has_names(isolation: Any) -> None:
    text = """
        import os, subprocess, sys
        for path in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
            with open(path, "w") as file:
                file.write(path + "\\n")
        with open("/dev/stderr", "a") as file:
            file.write("error\\n")
        subprocess.run(["sh", "-c", "echo child | tee /dev/stderr > /dev/stdout"], check=True)
        for path in ("/dev/stdout", "/dev/stderr"):
            try:
                os.open(path, os.O_RDONLY)
            except PermissionError:
                print("not to be read")
    """
    outcome = hutch.run(textwrap.dedent(text), isolation=isolation)
    assert outcome.ok, outcome
    assert outcome.stdout == (
        "/dev/stdout\n/dev/fd/1\n/proc/self/fd/1\nchild\nnot to be read\nnot to be read\n"
    )
    assert outcome.stderr == "error\nchild\n"


@pytest.mark.parametrize("isolation", RUNGS)
def test_what_is_printed_after_exec_is_kept(isolation: Any) -> None:
    text = """
        import os, sys
        print("before", flush=True)
        os.execv(sys.executable, [sys.executable, "-c", "print('after')"])
    """
    outcome = hutch.run(textwrap.dedent(text), isolation=isolation)
    assert outcome.stdout == "before\nafter\n", outcome


@pytest.mark.parametrize("isolation", RUNGS)
@pytest.mark.parametrize("end", ["", "raise SystemExit(3)"])
def test_a_child_that_outlives_its_program_keeps_nobody_waiting(isolation: Any, end: str) -> None:
    text = """
        import subprocess
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        subprocess.run(["echo", "waited for"])
    """
    outcome = hutch.run(textwrap.dedent(text) + end, isolation=isolation, timeout_sec=30)
    assert (outcome.limit, outcome.exit_code) == (None, 3 if end else 0), outcome
    assert outcome.stdout == "waited for\n"


@pytest.mark.parametrize("isolation", RUNGS)
def test_interfaces_are_listed(isolation: Any) -> None:
    text = """
        import psutil, socket
        print([name for _, name in socket.if_nameindex()], list(psutil.net_if_addrs()))
    """
    assert ran(text, dependencies=["psutil"], isolation=isolation) == "['lo'] ['lo']\n"


def test_a_server_of_zeromq_binds_to_a_port() -> None:
    text = """
        import zmq
        context = zmq.Context()
        here, there = context.socket(zmq.REP), context.socket(zmq.REQ)
        there.connect(f"tcp://127.0.0.1:{here.bind_to_random_port('tcp://127.0.0.1')}")
        there.send(b"ping")
        here.send(here.recv() + b" pong")
        print(there.recv().decode())
    """
    assert ran(text, dependencies=["pyzmq"]) == "ping pong\n"


@pytest.mark.parametrize("isolation", ["cell", "shared", "container"])
def test_memory_that_is_only_reserved_is_not_used(isolation: Any) -> None:
    text = """
        import mmap, numpy, threading
        kept = numpy.empty(3 << 27)  # 3 GB
        kept[0] = 1
        gate = threading.Event()
        threads = [threading.Thread(target=gate.wait) for _ in range(150)]
        for thread in threads:
            thread.start()
        gate.set()
        for thread in threads:
            thread.join()
        print(len(kept), len(threads))
    """
    options: dict[str, Any] = {"memory_mb": 1024, "pids": 200, "isolation": isolation}
    assert ran(text, dependencies=["numpy"], **options) == "402653184 150\n"
    try:
        ran("bytearray(1 << 40)", memory_mb=64)
    except AssertionError as error:
        assert "memory" in str(error)
    else:
        pytest.fail("a terabyte was reserved")


# Not on gVisor: its releases of 2022 (Debian 12) do not know AT_NO_AUTOMOUNT, which coreutils give.
@pytest.mark.parametrize("isolation", ["cell", "shared", "container"])
def test_commands_describe_files(isolation: Any) -> None:
    text = """
echo hello > a.txt; gzip -k a.txt; ls *.gz; ls -l | awk 'NR > 1 {print $1, $5, $9}'
stat -c '%n %s %F' a.txt; [ -s a.txt.gz ] && find . -name '*.gz' -print
du -b a.txt; wc -c a.txt
"""
    source = f"import subprocess\nsubprocess.run(['sh', '-c', {text!r}], check=True)"
    outcome = hutch.run(source, isolation=isolation)
    assert outcome.stderr == "" and outcome.stdout.splitlines() == [
        "a.txt.gz",
        "-rw-r--r-- 6 a.txt",
        "-rw-r--r-- 32 a.txt.gz",
        "a.txt 6 regular file",
        "./a.txt.gz",
        "6\ta.txt",
        "6 a.txt",
    ]


@pytest.mark.parametrize("isolation", RUNGS)
def test_the_stack_can_be_made_larger(isolation: Any) -> None:
    text = """
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sys.setrecursionlimit(10**6)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
print(depth(50_000), subprocess.run(["sh", "-c", "ulimit -s"], capture_output=True).stdout)
"""
    outcome = hutch.run(text, isolation=isolation, labels={"test": "stack"})
    assert outcome.stdout == "50000 b'unlimited\\n'\n"
