# SPDX-License-Identifier: Apache-2.0
"""Notebooks over HTTP: what their code answers, shows and leaves takes no more of the server than a
body may have, and is never a fault of it.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import GVISOR

FINDS = """
import gc, time
state = next(o for o in gc.get_objects() if type(o).__name__ == "State")
inside = type(state).execute.__globals__
"""
Serving = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def server(serving: Serving) -> Iterator[tuple[str, Any]]:
    with serving("--set", "body_mb=8", "--with", "numpy") as (url, process):
        yield url, process


@pytest.fixture(scope="module")
def client(server: tuple[str, Any]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server[0], timeout=120) as client:
        yield client


def run(client: httpx.Client, *cells: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/run_jupyter", json={"cells": cells, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    "code", ["lambda *a: 7", "lambda *a: time.sleep(10_000)", "lambda *a: ('ok', 1)"]
)
def test_code_that_keeps_its_files_is_no_fault_and_no_later(
    client: httpx.Client, code: str
) -> None:
    """Its client would give up long before the code does."""
    cell = FINDS + f"inside['session_files'].answer = {code}"
    found = run(client, cell, fetch_files=["a", "b"], total_timeout=3)
    assert found["status"] == "Success" and found["files"] == {}


def test_files_are_fetched_up_to_what_a_body_may_have(client: httpx.Client) -> None:
    cell = "import os\nfor name in 'ab': open(name, 'w').write('x')\nos.truncate('b', 50 << 20)"
    found = run(client, cell, fetch_files=["a", "b", "c"])
    assert found["files"] == {"a": base64.b64encode(b"x").decode()}


@pytest.mark.parametrize(
    "form", ["{'a': b'x'}", "[{1, 2}]", "{(1, 2): 1}", "[10**5000]", "[float('nan')]"]
)
def test_forms_that_json_has_not_are_shown_as_text(client: httpx.Client, form: str) -> None:
    found = run(client, f"display({{'application/json': {form}}}, raw=True)")
    assert found["status"] == "Success" and "application/json" in found["cells"][0]["display"][0]


def test_a_value_is_cut_with_a_word(client: httpx.Client) -> None:
    cells = ["'y' * 99_998", "'y' * 99_999", "['y' * 300_000]"]
    texts = [one["display"][0]["text/plain"] for one in run(client, *cells)["cells"]]
    assert texts[0] == repr("y" * 99_998)
    assert texts[1].endswith("y… (cut after 100,000 characters)") and len(texts[1]) < 100_100
    assert texts[2] == f"['{'y' * 200}'…]"


def test_what_is_shown_has_the_room_of_a_body(client: httpx.Client) -> None:
    show = "for _ in range(4): display({'text/plain': 'x' * 3_000_000}, raw=True)"
    answer = client.post("/run_jupyter", json={"cells": [show] * 4})
    assert answer.status_code == 200 and 6_000_000 < len(answer.content) < 9_000_000
    found = run(client, "display({'text/plain': 'x'}, raw=True)\nprint('y')\n[1, 2]")
    assert found["cells"][0]["display"] == [{"text/plain": "x"}, {"text/plain": "[1, 2]"}]
    assert found["cells"][0]["stdout"] == "y\n"


@pytest.fixture(scope="module", params=["cell", "container", GVISOR])
def on_rung(request: pytest.FixtureRequest, serving: Serving) -> Iterator[httpx.Client]:
    with (
        serving("--isolation", request.param, "--memory-mb", "128") as (url, _),
        httpx.Client(base_url=url, timeout=120) as client,
    ):
        yield client


def test_a_cell_that_exits_with_0_is_no_failure(client: httpx.Client) -> None:
    found = run(client, "print('said')\nexit()", "print('and on')")
    assert (found["status"], found["driver"]["status"]) == ("Success", "Finished")
    assert [(one["stdout"], one["error"]) for one in found["cells"]] == [
        ("said\n", []),
        ("and on\n", []),
    ]
    raised = run(client, "exit(3)", "print('and on')")
    assert raised["status"] == "Success" and raised["cells"][1]["stdout"] == "and on\n"
    assert raised["cells"][0]["error"][0]["ename"] == "SystemExit"


def test_cells_after_one_that_raised_run_as_in_a_notebook(client: httpx.Client) -> None:
    """As SandboxFusion does it, and tests it."""
    found = run(client, "a = 1", "assert False", "print(a)", "1 +", "a")
    assert (found["status"], found["driver"]["return_code"]) == ("Success", 0)
    errors = [[error["ename"] for error in one["error"]] for one in found["cells"]]
    assert errors == [[], ["AssertionError"], [], ["SyntaxError"], []]
    assert found["cells"][2]["stdout"] == "1\n"
    assert found["cells"][4]["display"] == [{"text/plain": "1"}]


def test_cells_that_have_no_time_left_say_so(client: httpx.Client) -> None:
    sleeps = "import time; time.sleep(60)"
    found = run(client, "x = 1", sleeps, "x", total_timeout=3)
    assert (found["status"], found["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    names = [[error["ename"] for error in one["error"]] for one in found["cells"]]
    assert names == [[], ["KeyboardInterrupt"], ["TimeoutError"]]
    assert "there was no time left" in found["cells"][2]["error"][0]["evalue"]
    found = run(client, "x = 1", sleeps, "print(x)", cell_timeout=3)  # there is
    assert (found["status"], found["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert found["cells"][2]["stdout"] == "1\n"


@pytest.mark.parametrize(
    ("cell", "shows"),
    [
        ("%matplotlib inline\nprint(1)", "1\n"),
        ("%%time\nprint(2)", "2\n"),
        ("%load_ext autoreload\n%autoreload 2\nprint(3)", "3\n"),
    ],
)
def test_lines_that_a_notebook_begins_with(client: httpx.Client, cell: str, shows: str) -> None:
    found = run(client, cell, "print('and on')")
    assert found["cells"][0]["stdout"].startswith(shows) and not found["cells"][0]["error"]


def test_an_install_is_refused_and_its_cell_goes_on(client: httpx.Client) -> None:
    """What it asks for may be there."""
    found = run(client, "!pip install numpy\nimport numpy", "%pip install -q x\nprint('and on')")
    assert found["status"] == "Success" and found["cells"][1]["stdout"] == "and on\n"
    for one in found["cells"]:
        assert "this server adds no packages" in one["stderr"] and not one["error"]


LATER = "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.5), {})).start()"
ENDS = {
    "exit": "import os; os._exit(3)",
    "signal": "import os; os.kill(os.getpid(), 9)",
    "memory": "x = b'x' * (1 << 31)",
    "time": "import time; time.sleep(99)",
    "unheard time": "import time\nwhile True:\n  try: time.sleep(9)\n  except BaseException: pass",
    "sockets": "import os; os.closerange(3, 100)",
}


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_the_code_is_no_fault(on_rung: httpx.Client, name: str) -> None:
    cells = ["print('said')", ENDS[name], "print('and on')"]
    script = {"scripts": [ENDS[name]], "timeout": 3}
    with ThreadPoolExecutor(2) as threads:  # both at once: some take all of their time
        batch = threads.submit(on_rung.post, "/execute_batch", json=script)
        found = run(on_rung, *cells, cell_timeout=3, fetch_files=["x"])
    assert len(found["cells"]) == 3
    first, second, third = found["cells"]
    assert first["stdout"] == "said\n" and second["error"]
    timed_out = "time" in name
    goes_on = not third["error"]
    assert goes_on == (name == "time") or name == "memory"  # which may be an exception
    assert third["stdout"] == ("and on\n" if goes_on else "")
    assert goes_on or third["error"][0]["ename"] == "DeadKernelError"
    assert found["status"] == ("Success" if goes_on and not timed_out else "Failed")
    assert found["driver"]["status"] == ("TimeLimitExceeded" if timed_out else "Finished")
    [one] = batch.result().json()
    assert ("took too long" in (one["exception_str"] or "")) == timed_out
    assert timed_out or one["execution"]["error"]["name"] in ("SystemError", "MemoryError")


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)", "b'x' * (1 << 31)"])
def test_what_ends_the_code_later_is_no_fault(on_rung: httpx.Client, end: str) -> None:
    """In a cell, between two, or while files are fetched."""
    later = LATER.format(end)
    many = [f"f{number}" for number in range(600)]
    assert run(on_rung, later, fetch_files=many)["status"] == "Success"
    found = run(on_rung, later, *["import time; time.sleep(0.01)"] * 30, fetch_files=["f"])
    assert found["status"] in ("Success", "Failed") and len(found["cells"]) == 31


def peak_mb(process: Any) -> int:
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) >> 10


@pytest.mark.parametrize("value", ["'x' * 80_000_000", "b'x' * 80_000_000", "[0.5] * 12_000_000"])
def test_a_value_that_is_larger_than_a_body_is_a_limit_and_never_here(
    server: tuple[str, Any], client: httpx.Client, value: str
) -> None:
    assert run(client, "'x' * 5_000_000", "1")["status"] == "Success"
    before = peak_mb(server[1])
    found = run(client, "print('said')", value, "1")
    assert found["status"] == "Success" and found["driver"]["status"] == "Finished"
    [error] = found["cells"][1]["error"]
    assert "too large to be shown" in error["evalue"] and not found["cells"][2]["error"]
    assert run(client, f"x = {value}", "len(x)")["status"] == "Success"
    [script] = client.post("/execute_batch", json={"scripts": [value]}).json()
    assert "too large to be shown" in script["execution"]["error"]["value"]
    assert peak_mb(server[1]) - before < 50


def test_a_file_that_is_larger_than_a_body_is_never_here(
    server: tuple[str, Any], client: httpx.Client
) -> None:
    assert run(client, "open('a', 'w').write('x')", fetch_files=["a"])["files"]
    before = peak_mb(server[1])
    cell = "import os\nfor name in 'ab': open(name, 'w').write('x')\nos.truncate('b', 300 << 20)"
    found = run(client, cell, fetch_files=["b", "a"])
    assert found["files"] == {"a": base64.b64encode(b"x").decode()}
    assert peak_mb(server[1]) - before < 50


@pytest.mark.parametrize(
    "value", ["numpy.zeros((2,) * 20, 'u1')", "10**5000", "[[0] * 9] * 99_999"]
)
def test_a_value_that_takes_long_to_show_keeps_nobody_waiting(
    client: httpx.Client, value: str
) -> None:
    waited = []
    over = threading.Event()

    def ping() -> None:
        while not over.is_set():
            begun = time.monotonic()
            client.get("/v1/ping")
            waited.append(time.monotonic() - begun)
            time.sleep(0.02)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        found = run(client, f"import numpy\n{value}")
    finally:
        over.set()
        thread.join()
    assert found["status"] == "Success" and max(waited) < 2
