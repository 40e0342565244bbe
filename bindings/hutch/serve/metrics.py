# SPDX-License-Identifier: Apache-2.0
"""`GET /metrics`: the server's own figures, and of its agent's what whoever asks may see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hutch._status import PoolStatus, metrics_aio, status_aio
from hutch.serve.figures import Figures
from hutch.serve.settings import Client, Settings

_GAUGES = {  # of all processes
    "running": "Requests that run.",
    "waiting": "Requests that wait for their turn.",
    "connections": "Connections.",
    "half_open": "Connections whose request is not there whole.",
    "pipelined": "Requests behind another one of their connection.",
    "sessions": "Sessions that are open.",
}
_OF_POOL = re.compile(r'[a-z_]+\{pool="([0-9a-f]+)"')  # a sample's first label


async def text(figures: Figures, client: Client, settings: Settings) -> str:
    """All of it, where there are no keys, and for operators."""
    found = await metrics_aio()
    if settings.keys and client.name not in settings.operators:
        pools = (await status_aio()).get("pools", []) if found else []
        tenants = [one for _, one in settings.keys]
        found = of_pools(found, [one["key"] for one in pools if _is_of(client, one, tenants)])
    return own(figures) + found


def own(figures: Figures) -> str:
    lines = []
    for name, value in figures.gauges().items():
        lines += [
            f"# HELP hutch_serve_{name} {_GAUGES[name]}",
            f"# TYPE hutch_serve_{name} gauge",
            f"hutch_serve_{name} {value}",
        ]
    lines += [
        "# HELP hutch_serve_answers_total Answers, by their status.",
        "# TYPE hutch_serve_answers_total counter",
    ]
    for status, count in figures.answers().items():
        lines.append(f'hutch_serve_answers_total{{status="{status}"}} {count}')
    return "\n".join(lines) + "\n"


def of_pools(found: str, keys: Iterable[str]) -> str:
    """The agent's metrics without the samples of pools other than these: what is of no pool is of
    all calls.
    """
    own = tuple(keys)
    kept = []
    for line in found.split("\n"):
        pool = _OF_POOL.match(line)
        if pool is None or any(key.startswith(pool[1]) for key in own):
            kept.append(line)
    return "\n".join(kept)


def _is_of(client: Client, pool: PoolStatus, tenants: Iterable[Client]) -> bool:
    """Whether its calls are the client's: its labels are there, and not those of a tenant that is
    named by more of them. Without labels of its own, only a pool that has none.
    """
    labels = pool["labels"]
    if not client.labels:
        return not labels
    named = [one for one in tenants if _has(labels, one)]
    most = max((len(one.labels) for one in named), default=0)
    return _has(labels, client) and len(client.labels) == most


def _has(labels: Mapping[str, str], client: Client) -> bool:
    return all(labels.get(name) == value for name, value in client.labels)
