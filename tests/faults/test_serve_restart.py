# SPDX-License-Identifier: Apache-2.0
"""The agent ends under the load of `hutch serve`: each request is answered, and none runs twice."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
# It names its process, as the host sees it.
PROGRAM = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b'{name}')  # PR_SET_NAME
time.sleep(0.5)
print('ran')
"""
CLIENTS, REQUESTS = 8, 8


class Watch:
    """Which processes of those names there were: each as its number and its start."""

    def __init__(self) -> None:
        self.seen: dict[str, set[tuple[str, str]]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.01):
            for entry in os.listdir("/proc"):
                if not entry.isdigit():
                    continue
                try:
                    stat = Path(f"/proc/{entry}/stat").read_text()
                except OSError:
                    continue
                name, _, rest = stat.partition("(")[2].rpartition(")")
                if name.startswith("hq"):
                    self.seen.setdefault(name, set()).add((entry, rest.split()[19]))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *given: object) -> None:
        self._over.set()
        self._thread.join()


def one_more(url: str, name: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/run", json={"source": PROGRAM.format(name=name)}, timeout=300)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to kill an agent of another user")
def test_an_agent_that_restarts_under_load(host: Any, serving: Serving) -> None:
    answers: dict[str, httpx.Response] = {}

    def ask(client: int) -> None:
        with httpx.Client(base_url=url, timeout=300) as http:
            for number in range(REQUESTS):
                name = f"hq{client}n{number}"
                body = {"source": PROGRAM.format(name=name)}
                answers[name] = http.post("/v1/run", json=body)

    with serving("--concurrency", "6", "--workers", "2") as (url, _), Watch() as watch:
        first = httpx.post(
            f"{url}/v1/run", json={"source": PROGRAM.format(name="hqx")}, timeout=300
        )
        assert first.json()["stdout"] == "ran\n", first.text
        threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
        for one in threads:
            one.start()
        for least in (CLIENTS, 4 * CLIENTS):
            while len(answers) < least:
                time.sleep(0.01)
            host.kill(host.agent_pid())
        for one in threads:
            one.join()
        last = one_more(url, "hqy")
        assert last.json()["stdout"] == "ran\n", last.text
    assert len(watch.seen["hqx"]) == 1 and len(answers) == CLIENTS * REQUESTS
    statuses = [one.status_code for one in answers.values()]
    print({status: statuses.count(status) for status in set(statuses)})
    for name, answer in answers.items():
        runs = len(watch.seen.get(name, ()))
        assert runs <= 1, (name, answer.text)
        if answer.status_code == 200:
            assert answer.json()["stdout"] == "ran\n" and runs == 1
        elif answer.status_code == 503:
            assert answer.headers["retry-after"] and runs == 0
        else:
            assert answer.status_code == 500 and "retry-after" not in answer.headers, answer.text
            assert answer.json()["may_have_run"]
    assert statuses.count(200) > len(statuses) // 2
