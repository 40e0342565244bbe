# SPDX-License-Identifier: Apache-2.0
"""Who may ask, and how much: keys, the Host and Origin of a request, its body."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from typing import Any

from starlette.requests import Request

from hutch.serve.settings import LOOPBACK, Client, Settings

_NOBODY = Client()


class Refused(Exception):
    """A request that is not served. `headers`: of the answer."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers or {}


def client_of(request: Request, settings: Settings, without_key: bool = False) -> Client:
    """Raises Refused. No web page of others reaches a server of this machine: its Origin is
    refused, and so is a name of this machine that only its DNS knows.
    """
    origin = request.headers.get("origin")
    if origin is not None and origin not in settings.origins:
        raise Refused(403, f"origins in [serve] of agent.toml does not name {origin[:200]!r}")
    name = _without_port(request.headers.get("host", ""))
    if not settings.socket and name not in (*LOOPBACK, settings.host, *settings.hosts):
        raise Refused(421, f"hosts in [serve] of agent.toml does not name {name[:200]!r}")
    if without_key or not settings.keys:
        return _NOBODY
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        key = request.headers.get("x-api-key", "")
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
    found: Client | None = None
    for known, client in settings.keys:  # all of them: the time does not tell which
        if hmac.compare_digest(known, digest):
            found = client
    if found is None:
        raise Refused(401, "the key is missing or not known", {"WWW-Authenticate": "Bearer"})
    return found


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


async def json_of(request: Request, settings: Settings) -> dict[str, Any]:
    """The body, a JSON object. Raises Refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "the body must be sent as application/json")
    try:
        body = await asyncio.wait_for(_body(request, settings.body_mb << 20), settings.body_sec)
    except (asyncio.TimeoutError, TimeoutError):
        raise Refused(408, f"the body was not sent within {settings.body_sec:g} s") from None
    try:
        found = json.loads(body, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Refused(400, f"the body is not JSON: {why[:500]}") from None
    if type(found) is not dict:
        raise Refused(400, "the body is not a JSON object")
    return found


async def _body(request: Request, most: int) -> bytes:
    parts = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Refused(413, f"the body is larger than {most >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is there twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number of JSON")
