# SPDX-License-Identifier: Apache-2.0
"""What a program learns about the processors agrees with `cpus=`."""

from __future__ import annotations

import pytest

import hutch

TEXT = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
print(os.cpu_count(), multiprocessing.cpu_count(), len(os.sched_getaffinity(0)))
print(os.environ["OMP_NUM_THREADS"], ProcessPoolExecutor()._max_workers)
print(list(ThreadPoolExecutor().map(abs, [-1, 2])))
"""


@pytest.mark.parametrize("isolation", ["cell", "shared", "container", "gvisor"])
def test_processors_are_counted_as_cpus_says(isolation: object) -> None:
    outcome = hutch.run(TEXT, isolation=isolation)
    assert outcome.stdout == "1 1 1\n1 1\n[1, 2]\n", outcome


def test_more_processors_are_counted_where_more_are_given() -> None:
    outcome = hutch.run("import os; print(os.cpu_count())", cpus=2)
    assert outcome.stdout == "2\n", outcome


SERVER = """
import asyncio, http.server, sys, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").status)
async def child():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(5)", stdout=-1)
    return (await process.communicate())[0]
print(asyncio.run(child()))
started = threading.Event()
waiting = [threading.Thread(target=started.wait) for _ in range(20)]
[thread.start() for thread in waiting]
started.set()
[thread.join() for thread in waiting]
print(sum(thread.is_alive() for thread in waiting))
"""


@pytest.mark.parametrize("isolation", ["cell", "shared", "container", "gvisor"])
def test_threads_servers_and_children_run_together(isolation: object) -> None:
    outcome = hutch.run(SERVER, isolation=isolation)
    assert outcome.stdout == "200\nb'5\\n'\n0\n", outcome
