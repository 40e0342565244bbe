# SPDX-License-Identifier: Apache-2.0
"""What tenants of one `hutch serve` see of one another."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from hutch.serve import make_app, settings

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
