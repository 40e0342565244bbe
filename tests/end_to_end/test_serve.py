# SPDX-License-Identifier: Apache-2.0
"""`hutch serve`, as its clients see it."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from leaving_client import asked
from support import until

from hutch.serve import settings as serve_settings

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]


@pytest.fixture(scope="module")
def url(serving: Serving) -> Iterator[str]:
    with serving("--timeout-sec", "30") as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=120) as client:
        yield client


@pytest.fixture
def run_code(client: httpx.Client) -> Callable[..., dict[str, Any]]:
    def run(**fields: Any) -> dict[str, Any]:
        answer = client.post("/run_code", json={"language": "python", **fields})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    return run


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.parametrize(
    ("code", "status", "result"),
    [
        ("print(input())", "Success", ("Finished", 0, "given\n")),
        ("import sys; sys.exit(0)", "Success", ("Finished", 0, "")),
        ("print('x'); import sys; sys.exit(3)", "Failed", ("Finished", 3, "x\n")),
        ("print('x'); 1 / 0", "Failed", ("Finished", 1, "x\n")),
        ("x = ", "Failed", ("Finished", 1, "")),
        ("import os; os.kill(os.getpid(), 11)", "Failed", ("Finished", -11, "")),
        ("x = b'x' * (1 << 31)", "Failed", ("Finished", -9, "")),
        ("print('x', flush=True)\nwhile True: pass", "Failed", ("TimeLimitExceeded", None, "x\n")),
    ],
)
def test_run_code(run_code: Any, code: str, status: str, result: tuple[Any, ...]) -> None:
    found = run_code(code=code, stdin="given", run_timeout=2, memory_limit_MB=256)
    run = found["run_result"]
    assert (found["status"], found["compile_result"], found["message"]) == (status, None, "")
    assert (run["status"], run["return_code"], run["stdout"]) == result
    if "1 / 0" in code:
        assert run["stderr"].endswith("ZeroDivisionError: division by zero\n")


def test_files_go_in_and_out(run_code: Any) -> None:
    code = "import sys\ndata = open('in/x').read()\nopen('y', 'w').write(data * 2)\nsys.exit(5)"
    files = {"in/x": encoded(b"ab"), "absent": None}
    found = run_code(code=code, files=files, fetch_files=["y", "in/x", "never"])
    assert found["files"] == {"y": encoded(b"abab"), "in/x": encoded(b"ab")}
    assert (found["status"], found["run_result"]["return_code"]) == ("Failed", 5)


WRITES = "open('a[1].txt', 'w').write('a'); print('part')\n"
MEETS = {
    "time": (f"{WRITES}import time; time.sleep(60)", {"run_timeout": 1}, "TimeLimitExceeded"),
    "memory": (f"{WRITES}x = b'x' * (1 << 31)", {"memory_limit_MB": 64}, "Finished"),
    "signal": (f"{WRITES}import os; os.kill(os.getpid(), 9)", {}, "Finished"),
    "a stubborn one": (
        f"{WRITES}import time\nwhile True:\n  try: time.sleep(60)\n  except BaseException: pass",
        {"run_timeout": 1},
        "TimeLimitExceeded",
    ),
}


@pytest.mark.parametrize("name", MEETS)
def test_files_and_what_was_printed_come_back_however_a_program_ends(
    run_code: Any, name: str
) -> None:
    code, limits, status = MEETS[name]
    found = run_code(code=code, fetch_files=["./a[1].txt", "a1.txt"], **limits)
    assert found["files"] == {"./a[1].txt": encoded(b"a")}  # a path is no pattern
    result = found["run_result"]
    assert (found["status"], result["status"], result["stdout"]) == ("Failed", status, "part\n")


def test_files_that_are_too_large_are_left_out(serving: Serving) -> None:
    code = (
        "for name, size in (('a', 1), ('b', 3 << 20), ('c', 2)): open(name, 'w').write('x' * size)"
    )
    with serving("--set", "body_mb=2") as (url, _):
        body = {"code": code, "fetch_files": ["b", "a", "c"]}
        found = httpx.post(f"{url}/run_code", json=body, timeout=60).json()
    assert found["status"] == "Success" and set(found["files"]) == {"a", "c"}


def test_a_pytest_program(run_code: Any) -> None:
    good = run_code(code="def test_it(): assert True", language="pytest", run_timeout=30)
    assert good["status"] == "Success" and "1 passed" in good["run_result"]["stdout"]
    bad = run_code(code="def test_it(): assert False", language="pytest", run_timeout=30)
    assert (bad["status"], bad["run_result"]["return_code"]) == ("Failed", 1)
    two = "def test_a(): pass\ndef test_b(): assert 0"
    found = run_code(code=two, language="pytest", args=["-k", "test_a"], run_timeout=30)
    assert found["status"] == "Success" and "1 deselected" in found["run_result"]["stdout"]


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import sys; print(*sys.argv[1:])"),
        ("bash", 'echo "$@"'),
        ("nodejs", "console.log(...process.argv.slice(2))"),
    ],
)
def test_a_program_has_its_arguments(run_code: Any, language: str, code: str) -> None:
    for more in ({}, {"fetch_files": ["x"]}):
        found = run_code(code=code, language=language, args=["a", "b c"], run_timeout=30, **more)
        assert found["run_result"]["stdout"] == "a b c\n"


def test_a_bash_program(run_code: Any) -> None:
    found = run_code(code='read x; echo "$x"; ls y; exit 3', language="bash", stdin="a\n",
                     files={"y": encoded(b"")})  # fmt: skip
    assert (found["status"], found["run_result"]["return_code"]) == ("Failed", 3)
    assert found["run_result"]["stdout"] == "a\ny\n"
    found = run_code(code="echo a | tr a b > y", language="bash", fetch_files=["y"])
    assert (found["status"], found["files"]) == ("Success", {"y": encoded(b"b\n")})


def test_a_program_for_node(run_code: Any) -> None:
    source = "const fs = require('fs'); console.log(fs.readFileSync('y', 'utf8').length)"
    found = run_code(code=source, language="nodejs", files={"y": encoded(b"abc")}, run_timeout=30)
    assert (found["status"], found["run_result"]["stdout"]) == ("Success", "3\n")
    found = run_code(code="throw new Error('wrong')", language="nodejs", run_timeout=30)
    assert found["status"] == "Failed" and "wrong" in found["run_result"]["stderr"]
    source = "require('fs').writeFileSync('y', 'out')"
    found = run_code(code=source, language="nodejs", fetch_files=["y"], run_timeout=30)
    assert found["files"] == {"y": encoded(b"out")}


def test_a_text_that_bash_cannot_be_given_is_refused(client: httpx.Client) -> None:
    answer = client.post("/run_code", json={"language": "bash", "code": "echo \0"})
    assert answer.status_code == 422 and "zero byte" in answer.text


def test_another_language_is_no_answer(run_code: Any) -> None:
    found = run_code(code="puts 1", language="ruby")
    assert found["status"] == "SandboxError" and "ruby" in found["message"]
    assert found["run_result"] is None


def test_run_jupyter(client: httpx.Client) -> None:
    body = {
        "cells": [
            "x = open('f').read(); x * 2",
            "print(x); open('g', 'w').write('out')",
            "1 / 0",
            "2",
        ],
        "files": {"f": encoded(b"ab")},
        "fetch_files": ["g"],
    }
    found = client.post("/run_jupyter", json=body).json()
    first, second, third, fourth = found["cells"]
    assert found["status"] == "Success" and fourth["display"] == [{"text/plain": "2"}]
    assert found["files"] == {"g": encoded(b"out")}
    assert first["display"] == [{"text/plain": "'abab'"}]
    assert second["stdout"] == "ab\n"
    assert third["error"][0]["ename"] == "ZeroDivisionError"
    slow = {"cells": ["1", "while True: pass"], "cell_timeout": 0.5}
    found = client.post("/run_jupyter", json=slow).json()
    assert found["driver"]["status"] == "TimeLimitExceeded"


def test_execute_batch(client: httpx.Client) -> None:
    scripts = ["print('said'); 0.5", "1 / 0", "while True: pass"]
    body = {"scripts": scripts, "languages": ["python"] * 3, "timeout": 1, "request_timeout": 30}
    good, bad, slow = client.post("/execute_batch", json=body).json()
    assert good["execution"]["results"] == [{"text": "0.5", "is_main_result": True}]
    assert good["execution"]["logs"]["stdout"] == ["said\n"]
    assert bad["execution"]["error"]["name"] == "ZeroDivisionError"
    assert slow == {"execution": None, "exception_str": "the script took too long"}
    refused = client.post("/execute_batch", json={"scripts": scripts, "languages": ["python"]})
    assert refused.status_code == 422 and "1 languages for 3 scripts" in refused.text


def test_piston(client: httpx.Client) -> None:
    (runtime,) = client.get("/api/v2/runtimes").json()
    program = "import sys, other\nprint(input(), sys.argv[1], other.x)\nsys.exit(4)"
    files = [{"content": program}, {"name": "other.py", "content": "x = 7"}]
    body = {**runtime, "files": files, "stdin": "in", "args": ["a"], "run_timeout": 5000}
    run = client.post("/api/v2/execute", json=body).json()["run"]
    assert (run["code"], run["signal"], run["output"]) == (4, None, "in a 7\n")
    slow = {**runtime, "files": [{"content": "while True: pass"}], "run_timeout": 500}
    run = client.post("/api/v2/execute", json=slow).json()["run"]
    assert (run["code"], run["signal"], run["status"]) == (None, "SIGKILL", "TO")
    assert client.post("/api/v2/execute", json={**body, "language": "go"}).status_code == 400


def test_pistons_encodings_and_versions(client: httpx.Client) -> None:
    def execute(**body: Any) -> httpx.Response:
        return client.post("/api/v2/execute", json={"language": "python", **body})

    data = {"name": "d", "content": "ff00", "encoding": "hex"}
    text = base64.b64encode(b"print(open('d', 'rb').read())").decode()
    program = {"content": text, "encoding": "base64"}
    for version in ("*", "3", "3.x", "3.10.0", "^3.9"):
        run = execute(version=version, files=[program, data]).json()["run"]
        assert (run["code"], run["stdout"]) == (0, "b'\\xff\\x00'\n")
    for version in ("2.7", "", "30", "x", ">=3 <2"):
        refused = execute(version=version, files=[program, data])
        assert refused.status_code == 400 and "runtime is unknown" in refused.text
    for wrong in ({**program, "encoding": "hex"}, {**data, "encoding": "rot13"}, data):
        assert execute(files=[wrong]).status_code == 400


def test_the_whole_outcome(client: httpx.Client) -> None:
    found = client.post("/v1/run", json={"source": "import sys; print(sys.argv)", "args": ["a"]})
    outcome = found.json()
    assert (outcome["status"], outcome["exit_code"]) == ("returned", 0)
    assert outcome["usage"]["peak_memory_bytes"] > 0 and outcome["stdout"].endswith("'a']\n")


def test_no_web_page_reaches_it(client: httpx.Client) -> None:
    body = {"code": "print(1)"}
    for headers in ({"origin": "https://example.org"}, {"origin": "null"}):
        assert client.post("/run_code", json=body, headers=headers).status_code == 403
        assert client.get("/metrics", headers=headers).status_code == 403
    for host in (
        "rebound.example.org",
        "[localhost].example.org",
        "[::1].example.org",
        "a@localhost",
    ):
        assert client.post("/run_code", json=body, headers={"host": host}).status_code == 421
    assert client.get("/v1/ping", headers={"host": "[::1]:8080"}).status_code == 200
    assert client.get("/v1/ping/", headers={"host": "rebound.example.org"}).status_code == 404
    simple = {"content-type": "text/plain"}
    assert client.post("/run_code", content=b'{"code": "1"}', headers=simple).status_code == 415
    assert client.options("/run_code").status_code == 405
    assert "access-control-allow-origin" not in client.post("/run_code", json=body).headers


def test_it_says_how_it_is(client: httpx.Client) -> None:
    assert client.get("/v1/ping").json() == "pong"
    assert client.get("/health").json() == {"status": "ok"}
    metrics = client.get("/metrics").text
    assert 'hutch_serve_answers_total{status="200"}' in metrics and "hutch_calls_total" in metrics


def answers(url: str) -> int:
    """As whichever process is asked counts them."""
    text = httpx.get(f"{url}/metrics").text
    return int(text.split('\nhutch_serve_answers_total{status="200"} ')[1].split()[0])


def test_every_process_tells_what_all_have_answered(serving: Serving) -> None:
    with serving("--workers", "2") as (url, server):
        for _ in range(20):  # each on a connection of its own
            assert httpx.post(f"{url}/run_code", json={"code": "1"}, timeout=60).status_code == 200
        assert {answers(url) for _ in range(12)} == {20}
        pids = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        serves = [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(serves[0]), signal.SIGKILL)  # what it has answered stays counted
        until(lambda: not Path(f"/proc/{serves[0]}").exists())
        assert {answers(url) for _ in range(12)} == {20}


def running(client: httpx.Client) -> int:
    text = client.get("/metrics").text
    return int(text.split("\nhutch_serve_running ")[1].split()[0])


def test_a_client_that_goes_away_ends_its_program(url: str, client: httpx.Client) -> None:
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"code": "import time; time.sleep(25)", "run_timeout": 28}).encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /run_code HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        until(lambda: running(client) == 1)
    until(lambda: running(client) == 0, sec=20)  # before it ends by itself


def test_who_comes_to_a_full_queue_is_informed(serving: Serving) -> None:
    flags = ("--concurrency", "1", "--queue", "2", "--timeout-sec", "300")
    with serving(*flags) as (url, _), httpx.Client(base_url=url, timeout=60) as client:
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(httpx.post(f"{url}/run_code", json={"code": "1"}, timeout=120))

        with asked(url, "/run_code", {"code": "import time; time.sleep(300)"}):
            until(lambda: running(client) == 1)
            threads = [threading.Thread(target=ask) for _ in range(7)]
            for one in threads:
                one.start()
            until(lambda: len(answers) == 5)
        for one in threads:  # who left gave its turn to those that waited
            one.join()
        assert [one.status_code for one in answers] == [429] * 5 + [200] * 2
        assert all(one.headers["retry-after"] for one in answers[:5])


def test_it_ends_what_runs_before_it_ends(serving: Serving) -> None:
    with serving("--timeout-sec", "20") as (url, server):
        answers = []

        def ask() -> None:
            answers.append(
                httpx.post(
                    f"{url}/run_code",
                    json={"code": "import time; time.sleep(2); print(3)"},
                    timeout=60,
                )
            )

        thread = threading.Thread(target=ask)
        thread.start()
        with httpx.Client(base_url=url, timeout=60) as client:
            until(lambda: running(client) == 1)
        server.send_signal(signal.SIGTERM)
        thread.join()
        assert answers[0].json()["run_result"]["stdout"] == "3\n"
        assert server.wait(20) in (0, -signal.SIGTERM)


def test_several_processes_serve_one_unix_socket(serving: Serving, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with serving("--socket", path, "--workers", "2") as (where, _):
        assert path in where
        assert os.stat(path).st_mode & 0o777 == 0o600
        transport = httpx.HTTPTransport(uds=path)
        with httpx.Client(transport=transport, base_url="http://any", timeout=60) as client:

            def served() -> bool:
                try:
                    found = client.post("/run_code", json={"code": "print(1)"}).json()
                except httpx.TransportError:
                    return False
                return bool(found["status"] == "Success")

            until(served)
        second = subprocess.run(
            [sys.executable, "-m", "hutch", "serve", "--socket", path],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert second.returncode == 2 and "another server is there" in second.stderr


def test_another_address_needs_keys(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    with pytest.raises(ValueError, match="give each client a key"):
        serve_settings.read(path, host="0.0.0.0")
    tenant = '[tenants.a]\nlabels = {t = "a"}\nkey = "kkkkkkkkkkkkkkkkkkkk"\n'
    path.write_text("[serve]\nqueue = 5\n" + tenant)
    found = serve_settings.read(path, host="0.0.0.0")
    assert found.queue == 5 and found.keys[0][1].labels == (("t", "a"),)
    for text, why in {
        "[serve]\nqeue = 5": "no key qeue",
        "[serve]\nqueue = '5'": "queue in .serve. takes a whole number",
        "[serve]\nqueue = 0": "must be above 0",
        "[serve]\nkeys = []": "no key keys",
        "[serve": "not valid TOML",
        "[tenants.a]\nkey = 'short'": "16 or more",
    }.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=why):
            serve_settings.read(path)
