# SPDX-License-Identifier: Apache-2.0
"""What tenants of one `hutch serve` see of one another."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
import uvicorn
from support import until

from hutch import _core
from hutch.serve import make_app, settings

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]

TENANTS = {"one": {"team": "one"}, "other": {"team": "other"}, "part": {"team": "one", "of": "it"}}
RUN = {"source": "print(1)"}


def config(more: str = "") -> str:
    text = f"[serve]\n{more}\n"
    for name, labels in {**TENANTS, "all": {"team": "all"}}.items():
        pairs = ", ".join(f'{label} = "{value}"' for label, value in labels.items())
        text += f'[tenants.{name}]\nkey = "{name:-<20}"\nlabels = {{ {pairs} }}\n'
    return text


def key_of(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name:-<20}"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path = tmp_path_factory.mktemp("tenants") / "agent.toml"
    path.write_text(config('operators = ["all"]'))
    app = make_app(settings.read(path))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=120) as client:
            for name in TENANTS:
                body = {**RUN, "labels": {"run": f"secret of {name}"}}
                answer = client.post("/v1/run", json=body, headers=key_of(name))
                assert answer.status_code == 200, answer.text
            yield client
    finally:
        server.should_exit = True
        thread.join()


def metrics(client: httpx.Client, name: str) -> str:
    answer = client.get("/metrics", headers=key_of(name))
    assert answer.status_code == 200
    return answer.text


@pytest.mark.parametrize("name", TENANTS)
def test_metrics_show_a_tenant_its_own_labels_and_the_totals(
    client: httpx.Client, name: str
) -> None:
    found = metrics(client, name)
    for other in TENANTS:
        assert (f'label_run="secret of {other}"' in found) == (other == name)
    info = [line for line in found.split("\n") if line.startswith("hutch_pool_info{")]
    assert len(info) == 1
    pool = info[0].split('"')[1]
    calls = [line for line in found.split("\n") if line.startswith("hutch_calls_total{")]
    assert calls and all(f'pool="{pool}"' in line for line in calls)
    assert "\nhutch_leases " in found and "\nhutch_serve_answers_total{" in found


def test_metrics_show_an_operator_all(client: httpx.Client) -> None:
    found = metrics(client, "all")
    assert all(f'label_run="secret of {name}"' in found for name in TENANTS)
    assert client.get("/metrics").status_code == 401


def test_an_operator_has_a_key(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(config('operators = ["nobody"]'))
    with pytest.raises(ValueError, match="has 'nobody', which has no key"):
        settings.read(path)


def test_keys_are_read_again_and_may_stand_in_the_path(
    agent_toml: Callable[[str], None], serving: Serving
) -> None:
    """In each process, and what runs goes on. A client that can send no header needs none."""

    def of(key: str, more: str = "") -> str:
        return f'[tenants.a]\nlabels = {{ team = "a" }}\nkey = "{key * 20}"\n{more}'

    def status(key: str) -> int:
        place = f"{url}/key/{key * 20}/run_code"
        return httpx.post(place, json={"code": "print(1)"}, timeout=60).status_code

    agent_toml(of("a"))
    with serving("--workers", "2") as (url, server):
        assert [status("a"), status("b")] == [200, 401]
        slow = {"code": "import time; time.sleep(2); print('ran on')"}
        place = f"{url}/key/{'a' * 20}"
        with ThreadPoolExecutor(1) as thread:
            runs = thread.submit(httpx.post, f"{place}/run_code", json=slow, timeout=60)
            until(lambda: "_running 1" in httpx.get(f"{place}/metrics").text)
            session = httpx.post(f"{place}/v1/sessions", json={}).json()["id"]
            agent_toml(of("b", "share = 3\n"))
            server.send_signal(signal.SIGHUP)
            until(lambda: {status("b") for _ in range(12)} == {200})
            until(lambda: {status("a") for _ in range(12)} == {401})
        assert runs.result().json()["run_result"]["stdout"] == "ran on\n"
        place = f"{url}/key/{'b' * 20}/v1/sessions/{session}/exec"
        for _ in range(6):
            assert httpx.post(place, json={"code": "7"}, timeout=60).json()["value"] == 7


def test_what_its_agent_would_refuse_is_refused(
    agent_toml: Callable[[str], None], serving: Serving
) -> None:
    """At the start, and when the file is read again: then what it said before holds."""
    key = "b" * 20
    agent_toml(f'[tenants.b]\nlabels = {{ team = "b" }}\nkey = "{key}"\n')
    file = Path(str(_core.paths()["state_dir"])) / "agent.toml"
    with serving() as (url, server):
        until(lambda: httpx.get(f"{url}/health").status_code == 200)
        file.write_text("[tenants.c]\nkey = 'cccccccccccccccccccc'\n")
        server.send_signal(signal.SIGHUP)
        assert server.stderr is not None
        said = server.stderr.readline()
        assert "what it said before holds" in said and "[tenants.c] labels is missing" in said
        answer = httpx.post(f"{url}/run_code", json={"code": "1"}, headers={"X-API-Key": key})
        assert answer.status_code == 200
        command = [sys.executable, "-m", "hutch", "serve", "--port", "0"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode != 0 and "[tenants.c] labels is missing" in done.stderr
        assert "agent.toml:1" in done.stderr
