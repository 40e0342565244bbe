# SPDX-License-Identifier: Apache-2.0
"""Who may ask: keys, and the Host and Origin of a request."""

from __future__ import annotations

import hashlib
import hmac
import re

from starlette.requests import Request

from hutch.serve.settings import LOOPBACK, Client, Settings

_NOBODY = Client()
_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::\d*)?")


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
    hosts = request.headers.getlist("host")
    name = _without_port(hosts[0]) if len(hosts) == 1 else ""
    if not settings.socket and name not in (*LOOPBACK, settings.host, *settings.hosts):
        raise Refused(421, f"hosts in [serve] of agent.toml does not name {name[:200]!r}")
    if without_key or not settings.keys:
        return _NOBODY
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        key = request.headers.get("x-api-key", "")
    found = _tenant_of(key, settings)
    if found is None:
        raise Refused(401, "the key is missing or not known", {"WWW-Authenticate": "Bearer"})
    return found


def _tenant_of(key: str, settings: Settings) -> Client | None:
    """The time that it takes depends on the length of the key that was sent, which its sender
    knows, and on how many keys there are: its digest is compared with that of each, to the end, and
    both are of one length. Who could measure how much of two digests is the same would learn of a
    digest, and not of a key.
    """
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
    found: Client | None = None
    for known, client in settings.keys:
        if hmac.compare_digest(known, digest):
            found = client
    return found


def _without_port(host: str) -> str:
    found = _HOST.fullmatch(host)
    return (found[1] or found[2] or "" if found else host).lower()
