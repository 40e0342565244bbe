# SPDX-License-Identifier: Apache-2.0
"""Node as a part of workers: every cell of such a worker executes the same file, which none of them
can change, move or hide, and whose bytes are in no memory of the caller's.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from hutch import Session
from hutch._calls import node

SCRIPT = """
import os, sys
from hutch import Session

def lent():
    places = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return [place for place in places if os.path.exists(place) and os.stat(place).st_size > 9 << 20]

isolation = sys.argv[1]
with Session(isolation=isolation, memory_mb=int(sys.argv[2])) as s:
    path = s.node("process.execPath").unwrap()
    assert not lent(), path
    assert s.node("const n = 1; n").value == 1 and s.node("throw 1").status == "raised"
    assert s.node("n + 1").value == 2
    if isolation != "gvisor":
        s.reset()
    assert s.node("process.execPath").unwrap() == path and not lent()
    assert s.command([path, "-p", "6 * 7"]).stdout == "42\\n"
    s["path"] = path
    refused = s.exec('''
import os
fd = os.open(path, os.O_RDONLY)
done = []
for attempt in (
    lambda: os.open(path, os.O_RDWR), lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR),
    lambda: os.fchmod(fd, 0o777), lambda: os.utime(fd), lambda: os.setxattr(fd, "user.x", b"x"),
    lambda: os.link(path, "/tmp/n"), lambda: os.rename(path, "/tmp/n"), lambda: os.unlink(path),
    lambda: open(os.path.dirname(path) + "/other", "w"),
):
    try: done.append(attempt())
    except OSError: pass
done, "node" in os.listdir("/opt/node"), "other" in os.listdir("/opt/node")
''')
    assert refused.value == ([], True, False), refused
    print(path)
"""


@pytest.mark.skipif(
    not node.is_of_everybody(), reason="this machine has an index of its own: Node is lent"
)
@pytest.mark.parametrize(
    ("isolation", "memory_mb"), [("cell", 291), ("container", 292), ("gvisor", 293)]
)
def test_a_worker_that_was_started_since_shows_it_read_only(isolation: str, memory_mb: int) -> None:
    """To a process that has no copy of its own, in a pool that nobody else has."""
    with Session() as s:
        s.node("1").unwrap()  # the machine has it
    for attempt in range(3):  # a worker that was made ahead may be older
        memory = str(memory_mb + 10 * attempt)
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, isolation, memory], capture_output=True, text=True
        )
        if ran.returncode == 0:
            break
    assert ran.stdout == "/opt/node/node\n", ran.stderr
