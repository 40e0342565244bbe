# SPDX-License-Identifier: Apache-2.0
"""`POST /v1/run` and `/v1/map`: whole Outcomes, and what idempotency keys promise."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from leaving_client import asked
from support import until

from hutch.serve.gate import Refused
from hutch.serve.settings import Client, Settings

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
RANDOM = "import random; print(random.random())"
SLOW = "import time, random; time.sleep(2); print(random.random())"


@pytest.fixture(scope="module")
def url(serving: Serving) -> Iterator[str]:
    with serving("--timeout-sec", "30", "--workers", "2") as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=120) as client:
        yield client


@pytest.fixture
def key(request: pytest.FixtureRequest) -> dict[str, str]:
    return {"Idempotency-Key": f"{request.node.name} {time.monotonic()}"}


def lines(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_the_whole_outcome(client: httpx.Client) -> None:
    found = client.post("/v1/run", json={"source": "import sys; print(sys.argv)", "args": ["a"]})
    outcome = found.json()
    assert (outcome["status"], outcome["exit_code"], outcome["failure"]) == ("returned", 0, None)
    assert outcome["usage"]["peak_memory_bytes"] > 0 and outcome["stdout"].endswith("'a']\n")
    died = client.post("/v1/run", json={"source": "while True: pass", "timeout_sec": 0.5}).json()
    assert (died["status"], died["failure"]["type"]) == ("limit", "SandboxTimeoutError")


def test_bytes_go_in_as_base64(client: httpx.Client) -> None:
    body = {"source": "import sys; print(sys.stdin.buffer.read())", "stdin_base64": "/wA="}
    assert client.post("/v1/run", json=body).json()["stdout"] == "b'\\xff\\x00'\n"
    both = client.post("/v1/run", json={**body, "stdin": ""})
    assert both.status_code == 422 and "both" in both.text


def test_a_field_that_is_not_known_is_refused(client: httpx.Client) -> None:
    for path, body in {
        "/v1/run": {"source": "1", "timeout": 3},
        "/v1/map": {"source": "1", "items": [{"timeout_sec": 3}]},
    }.items():
        found = client.post(path, json=body)
        assert found.status_code == 422 and "'timeout" in found.json()["message"]
    found = client.post("/v1/run", json={"source": "1", "timeout_sec": 31})
    assert found.status_code == 422 and "30 at the most" in found.json()["message"]


def test_map_answers_each_item_in_order(client: httpx.Client) -> None:
    items: list[Any] = [{"stdin": str(number)} for number in range(20)]
    items[3] = {"stdin": "3", "source": "1 / 0"}
    items[4] = {"source": "print(open('f').read())", "files": {"f": "eA=="}}
    program = "import time\nn = int(input())\ntime.sleep(0.3 if n == 0 else 0)\nprint(n * 2)"
    found = lines(client.post("/v1/map", json={"source": program, "items": items}))
    assert [line["index"] for line in found] == list(range(20))
    said = [line["outcome"]["stdout"] for line in found]
    assert said[3:5] == ["", "x\n"] and found[3]["outcome"]["status"] == "raised"
    assert [said[n] for n in (0, 1, 2, *range(5, 20))] == [
        f"{n * 2}\n" for n in (0, 1, 2, *range(5, 20))
    ]
    found = lines(
        client.post("/v1/map", json={"source": program, "items": items, "ordered": False})
    )
    assert sorted(line["index"] for line in found) == list(range(20))
    assert all(line["outcome"]["stdout"] == said[line["index"]] for line in found)
    assert found[0]["index"] != 0


def wait_for_running(client: httpx.Client, count: int) -> None:
    line = f"\nhutch_serve_running {count}\n"
    until(lambda: line in client.get("/metrics").text, sec=40)  # before its time limit


def test_map_streams_and_ends_with_its_reader(serving: Serving) -> None:
    items = [{"source": "print(1)"}, {"source": "while True: pass"}]
    body = {"items": items, "timeout_sec": 60}
    with serving() as (url, _), httpx.Client(base_url=url, timeout=120) as client:
        with httpx.stream("POST", f"{url}/v1/map", json=body, timeout=120) as answer:
            lines_of_answer = answer.iter_lines()  # which closes the connection when it is freed
            assert json.loads(next(lines_of_answer))["outcome"]["stdout"] == "1\n"
            wait_for_running(client, 1)
        wait_for_running(client, 0)


def test_a_repeated_key_gives_the_first_answer(client: httpx.Client, key: dict[str, str]) -> None:
    first = client.post("/v1/run", json={"source": RANDOM}, headers=key)
    # Each on a connection of its own: both processes have the answer.
    again = [httpx.post(client.base_url.join("/v1/run"), json={"source": RANDOM}, headers=key)
             for _ in range(8)]  # fmt: skip
    assert {one.text for one in again} == {first.text}
    other = client.post("/v1/run", json={"source": RANDOM})
    assert other.json()["stdout"] != first.json()["stdout"]  # without a key it runs


def test_another_request_under_a_key_is_refused(client: httpx.Client, key: dict[str, str]) -> None:
    assert client.post("/v1/run", json={"source": RANDOM}, headers=key).status_code == 200
    for path, body in {
        "/v1/run": {"source": RANDOM + " "},
        "/v1/map": {"source": RANDOM, "items": [{}]},
    }.items():
        found = client.post(path, json=body, headers=key)
        assert found.status_code == 422 and "another request" in found.json()["message"]
    for wrong in ("é".encode() * 9, b"a" * 256, b""):
        headers = {b"Idempotency-Key": wrong}
        assert client.post("/v1/run", json={"source": RANDOM}, headers=headers).status_code == 400


def test_those_who_ask_at_once_share_one_run(client: httpx.Client, key: dict[str, str]) -> None:
    answers: list[httpx.Response] = []

    def ask() -> None:
        url = client.base_url.join("/v1/run")
        answers.append(httpx.post(url, json={"source": SLOW}, headers=key, timeout=120))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [one.status_code for one in answers] == [200] * 6
    assert len({one.json()["stdout"] for one in answers}) == 1


def test_who_hangs_up_finds_the_answer_under_the_key(
    client: httpx.Client, key: dict[str, str]
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/run", json={"source": SLOW}, headers=key, timeout=1)
    found = client.post("/v1/run", json={"source": SLOW}, headers=key)
    again = client.post("/v1/run", json={"source": SLOW}, headers=key)
    assert found.json()["status"] == "returned" and again.text == found.text


def test_a_map_that_is_cut_goes_on_where_it_was(client: httpx.Client, key: dict[str, str]) -> None:
    body = {"source": RANDOM, "items": [{}] * 12}
    with client.stream("POST", "/v1/map", json=body, headers=key) as answer:
        source = answer.iter_lines()
        begun = [json.loads(next(source)) for _ in range(3)]
    found = lines(client.post("/v1/map", json=body, headers=key))
    assert found[:3] == begun and len({line["outcome"]["stdout"] for line in found}) == 12
    assert lines(client.post("/v1/map", json=body, headers=key)) == found


def test_of_a_server_that_was_killed_nothing_runs_twice(
    serving: Serving, key: dict[str, str]
) -> None:
    body = {"source": "import time; time.sleep(600)"}
    with (
        serving("--timeout-sec", "900") as (url, server),
        httpx.Client(base_url=url) as client,
        asked(url, "/v1/run", body, key["Idempotency-Key"]),
    ):
        wait_for_running(client, 1)
        server.send_signal(signal.SIGKILL)
        server.wait()
    with serving("--timeout-sec", "900", "--port", url.rpartition(":")[2]) as (url, _):
        found = httpx.post(f"{url}/v1/run", json=body, headers=key, timeout=60)
        assert found.status_code == 500 and "may have run" in found.json()["message"]
        assert "retry-after" not in found.headers


def test_two_servers_do_not_share_keys(serving: Serving, key: dict[str, str]) -> None:
    with serving() as (one, _), serving() as (other, _):
        answers = [
            httpx.post(f"{url}/v1/run", json={"source": source}, headers=key, timeout=120).json()
            for url, source in ((one, "print('one')"), (other, "print('other')"))
        ]
    assert [answer.get("stdout") for answer in answers] == ["one\n", "other\n"]


def test_a_map_whose_answers_were_let_go_does_not_run_again(
    serving: Serving, key: dict[str, str]
) -> None:
    source = "import random; print(random.random(), 'x' * 800_000)"
    body = {"source": source, "items": [{}] * 4}
    with serving("--set", "kept_mb=2") as (url, _):
        first, again = (
            lines(httpx.post(f"{url}/v1/map", json=body, headers=key, timeout=120))
            for _ in range(2)
        )
    faults = [line["outcome"] for line in again if line["outcome"]["status"] == "fault"]
    assert 0 < len(faults) < 4 and all(one["may_have_run"] for one in faults)
    assert all(line in first for line in again if line["outcome"]["status"] != "fault")


def test_labels_go_beside_those_of_the_tenant(client: httpx.Client) -> None:
    body = {"source": "print(1)", "labels": {"run": "a"}}
    assert client.post("/v1/run", json=body).json()["status"] == "returned"
    for labels in ([1], {"a": 1}, {"": "a"}, {"a": "b" * 101}, {str(n): "a" for n in range(9)}):
        found = client.post("/v1/run", json={**body, "labels": labels})
        assert found.status_code == 422 and "labels" in found.json()["message"]


def test_requests_do_not_choose_a_tenant_or_make_workers_without_end(tmp_path: Path) -> None:
    import asyncio

    from hutch.serve.app import Server

    settings = Settings(label_sets=2, tenant_labels=("team",))
    own = Server(settings).own
    client = Client("a", (("team", "a"),))

    async def labelled(labels: Any) -> Any:
        return dict(own.labelled(client, labels).labels)

    async def work() -> None:
        assert await labelled({"x": "1", "team": "a"}) == {"x": "1", "team": "a"}
        with pytest.raises(Refused, match="chooses a tenant"):
            await labelled({"team": "b"})
        await labelled({"x": "2"})
        with pytest.raises(Refused, match="label_sets"):
            await labelled({"x": "3"})
        assert await labelled({"x": "1"}) == {"x": "1", "team": "a"}

    asyncio.run(work())
