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
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from leaving_client import asked
from support import GVISOR, until

import hutch
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
    "time": (f"{WRITES}import time; time.sleep(60)", {"run_timeout": 3}, "TimeLimitExceeded"),
    "memory": (f"{WRITES}x = b'x' * (1 << 31)", {"memory_limit_MB": 64}, "Finished"),
    "signal": (f"{WRITES}import os; os.kill(os.getpid(), 9)", {}, "Finished"),
    "a stubborn one": (
        f"{WRITES}import time\nwhile True:\n  try: time.sleep(60)\n  except BaseException: pass",
        {"run_timeout": 3},
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
    assert slow == {"execution": None, "text": "", "exception_str": "the script took too long"}
    assert good["text"] == "0.5" and bad["text"] == "Error: ZeroDivisionError: division by zero"
    mixed = {"scripts": ["print(4)", "x"], "languages": ["python", "javascript"]}
    python, other = client.post("/execute_batch", json=mixed).json()
    assert python["text"] == "4\n" and "'javascript' is not supported" in other["exception_str"]
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
    for version in ("*", "3", "3.x", "3.10.0", "^3.9", ">=3.9.0", "v3.10.0", ">2 <4", "2||3.X"):
        run = execute(version=version, files=[program, data]).json()["run"]
        assert (run["code"], run["stdout"]) == (0, "b'\\xff\\x00'\n")
    for version in ("2.7", "", "30", "y", ">=3 <2", "<3", ">=4", "||", "3; 4"):
        refused = execute(version=version, files=[program, data])
        assert refused.status_code == 400 and "runtime is unknown" in refused.text
    for wrong in ({**program, "encoding": "hex"}, {**data, "encoding": "rot13"}, data):
        assert execute(files=[wrong]).status_code == 400


def test_piston_says_how_a_program_ended(client: httpx.Client) -> None:
    ends = {
        "print(1)": (0, None, None, None),
        "import sys; sys.exit(3)": (3, None, "RE", "Exited with error status 3"),
        "import os; os.kill(os.getpid(), 11)": (None, "SIGSEGV", "SG", "Caught fatal signal 11"),
    }
    for source, end in ends.items():
        body = {"language": "python", "version": "*", "files": [{"content": source}]}
        run = client.post("/api/v2/execute/", json=body).json()["run"]  # with a slash, as some do
        assert (run["code"], run["signal"], run["status"], run["message"]) == end
    named = [{"content": "import file1"}, {"name": "", "content": "print(5)"}]
    named[1]["name"] = ""  # is no name
    body = {"language": "python", "version": "*", "files": named}
    assert client.post("/api/v2/execute", json=body).json()["run"]["code"] == 1  # it is `file1`
    body["files"][0]["content"] = "exec(open('file1').read())"
    assert client.post("/api/v2/execute", json=body).json()["run"]["stdout"] == "5\n"
    wrong = client.post("/api/v2/execute", json={**body, "args": 5})
    assert wrong.status_code == 400 and "args" in wrong.json()["message"]


def test_what_is_cut_is_told(run_code: Any, client: httpx.Client) -> None:
    found = run_code(code="print('x' * 2_000_000)")["run_result"]
    assert found["stdout_truncated"] and not found["stderr_truncated"]
    body = {"language": "python", "files": [{"content": "print('x' * 2_000_000)"}]}
    run = client.post("/api/v2/execute", json=body).json()["run"]
    assert run["stdout_truncated"] and not run["stderr_truncated"] and run["code"] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [("/run_jupyter", {}), ("/run_jupyter", {"cells": ["1"], "kernel": "ir"}),
     ("/run_jupyter", {"cells": None}), ("/execute_batch", {"scripts": None}),
     ("/execute_batch", {}), ("/run_code", {}), ("/v1/run", {}), ("/v1/map", {})],
)  # fmt: skip
def test_a_request_without_what_it_asks_for_is_wrong(
    client: httpx.Client, path: str, body: Any
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 422 and answer.json()["status"] == "SandboxError"


@pytest.mark.parametrize("isolation", ["cell", GVISOR])
def test_nothing_that_a_program_prints_is_on_the_servers_own_output(
    serving: Serving, isolation: str
) -> None:
    """A client could write its log, or fill a pipe that nobody reads."""
    marks = "import sys; print('mark'); print('mark', file=sys.stderr); open('a', 'w')"
    bodies = {
        "/run_code": [{"code": marks}, {"code": marks, "fetch_files": ["a"]}],
        "/run_jupyter": [{"cells": [marks, f"display('mark')\n{marks}"]}],
        "/execute_batch": [{"scripts": [marks]}],
        "/api/v2/execute": [{"language": "python", "files": [{"content": marks}]}],
        "/v1/run": [{"source": marks}],
    }
    with serving("--isolation", isolation) as (url, server), httpx.Client(timeout=120) as client:
        for path, those in bodies.items():
            for body in those:
                answer = client.post(f"{url}{path}", json=body)
                assert answer.status_code == 200 and "mark" in answer.text
        session = client.post(f"{url}/v1/sessions", json={}).json()["id"]
        for verb in ("exec", "bash"):
            code = {"code": marks if verb == "exec" else "echo mark"}
            assert "mark" in client.post(f"{url}/v1/sessions/{session}/{verb}", json=code).text
        server.terminate()
        assert server.stderr is not None and "mark" not in server.stderr.read()


def test_a_fault_that_may_have_run_is_500_on_every_route(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And tells others than this machine's user nothing of the host."""
    import asyncio

    from hutch.serve.app import make_app

    said = "no agent on /var/lib/secret/agent.sock"
    bodies = {
        "/run_code": {"code": "1"},
        "/run_code?": {"code": "1", "fetch_files": ["x"]},
        "/run_jupyter": {"cells": ["1"]},
        "/api/v2/execute": {"language": "python", "files": [{"content": "1"}]},
        "/v1/run": {"source": "1"},
        "/v1/map": {"items": [{"source": "1"}]},
        "/execute_batch": {"scripts": ["1"]},
    }

    def failing(may_have_run: bool) -> Any:
        async def fail(*given: Any, **named: Any) -> Any:
            raise hutch.AgentUnavailable(said, may_have_run=may_have_run)

        return fail

    async def statuses(settings: serve_settings.Settings, ran: bool) -> dict[str, Any]:
        for place in ("runner.outcome_of", "runner.fetched_aio", "notebook.run_cells"):
            monkeypatch.setattr(f"hutch.serve.{place}", failing(ran))
        transport = httpx.ASGITransport(make_app(settings), client=("10.0.0.9", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://10.0.0.1") as client:
            found = {}
            for path, body in bodies.items():
                found[path] = await client.post(path, json=body)
            return found

    open_to_others = serve_settings.Settings(host="0.0.0.0", allow_from=("10.0.0.0/8",))
    for ran, status in ((True, 500), (False, 503)):
        for path, answer in asyncio.run(statuses(open_to_others, ran)).items():
            streamed = path in ("/v1/map", "/execute_batch")  # whose faults are each item's own
            assert answer.status_code == (200 if streamed else status), path
            assert "secret" not in answer.text and "AgentUnavailable" in answer.text, path
            assert ("retry-after" in answer.headers) == (status == 503 and not streamed)
    own = serve_settings.Settings(allow_from=("10.0.0.0/8",))
    for answer in asyncio.run(statuses(own, True)).values():
        assert "secret" in answer.text


WRONG_FLAGS = {
    ("--timeout-sec", "-5"): "timeout_sec in [serve] must be above 0",
    ("--workers", "-2"): "workers in [serve] must be above 0 and at most 128",
    ("--workers", "100000"): "workers in [serve] must be above 0 and at most 128",
    ("--concurrency", "0"): "concurrency in [serve] must be above 0",
    ("--memory-mb", "1"): "memory_mb in [serve] must be above 63",
    ("--port", "99999"): "port in [serve] must be above -1 and at most 65535",
    ("--set", "header_sec=nan"): "header_sec in [serve] must be above 0",
    ("--set", "drain_sec=inf"): "drain_sec in [serve] must be above 0",
    ("--set", "workers=1000"): "workers in [serve] must be above 0 and at most 128",
    ("--set", "queue=0"): "queue in [serve] must be above 0",
    ("--set", "allow_network=['http://x y']"): "http://x y",
    ("--with", "num py"): "num py",
    ("--set", "files='x'"): "files in [serve] takes a whole number",
}


@pytest.mark.parametrize("flags", WRONG_FLAGS, ids=" ".join)
def test_a_wrong_flag_is_refused_before_it_serves(flags: tuple[str, str]) -> None:
    command = [sys.executable, "-m", "hutch", "serve", "--socket", "/nowhere/s", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "serving on" not in done.stderr
    assert WRONG_FLAGS[flags] in done.stderr and "Traceback" not in done.stderr


def test_a_socket_goes_with_its_server_and_is_no_file_of_yours(
    serving: Serving, tmp_path: Path
) -> None:
    place = tmp_path / "socket"
    with serving("--socket", str(place)) as (_, server):
        transport = httpx.HTTPTransport(uds=str(place))
        with httpx.Client(transport=transport, base_url="http://x") as client:
            assert client.get("/health").status_code == 200
        server.terminate()
        assert server.wait(20) == 0
    assert not place.exists()
    place.write_text("mine")
    command = [sys.executable, "-m", "hutch", "serve", "--socket", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "it is there, and no socket" in done.stderr and place.read_text() == "mine"


def test_its_processes_end_with_their_parent(serving: Serving) -> None:
    with serving("--workers", "2") as (url, server):
        until(lambda: httpx.get(f"{url}/health").status_code == 200)
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        until(lambda: sum(map(waits_for_events, children)) == 2)  # and so each has begun
        serve = [one for one in children if waits_for_events(one)]
        server.kill()
        until(lambda: not any(Path(f"/proc/{one}").exists() for one in serve))


def waits_for_events(pid: str) -> bool:
    names = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    return "anon_inode:[eventpoll]" in names


def test_at_its_end_who_waits_is_refused_and_who_runs_is_told(serving: Serving) -> None:
    """So that nobody takes it for an answer: one may ask another server, and one may not."""
    flags = ("--concurrency", "1", "--set", "drain_sec=1", "--timeout-sec", "100")
    with serving(*flags) as (url, server):
        long = {"code": "import time; time.sleep(90)", "run_timeout": 100}
        with ThreadPoolExecutor(2) as threads, httpx.Client(base_url=url) as client:
            runs = threads.submit(httpx.post, f"{url}/run_code", json=long, timeout=60)
            until(lambda: running(client) == 1)
            waits = threads.submit(httpx.post, f"{url}/run_code", json=long, timeout=60)
            until(lambda: "hutch_serve_waiting 1" in client.get("/metrics").text)
            server.terminate()
            assert waits.result().status_code == 504 and "retry-after" in waits.result().headers
            answer = runs.result()
            assert answer.status_code == 500 and "may have run" in answer.json()["message"]
        assert server.wait(30) == 0


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
    for path in ("/v1/ping/", "/none", "/run_code"):  # the last by another method
        answer = client.get(path, headers={"host": "rebound.example.org"})
        assert answer.status_code == 421 and "rebound" in answer.json()["message"]
    simple = {"content-type": "text/plain"}
    assert client.post("/run_code", content=b'{"code": "1"}', headers=simple).status_code == 415
    refused = client.options("/run_code")
    assert refused.status_code == 405 and refused.headers["allow"] == "POST"
    missing = client.post("/none", json=body)
    assert missing.status_code == 404 and "GET / says what is" in missing.json()["message"]
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
