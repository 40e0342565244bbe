# SPDX-License-Identifier: Apache-2.0
"""Who may ask: keys, the address of the peer, and the Host and Origin of a request."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from typing import Any

from starlette.requests import Request

from hutch.serve.settings import LOOPBACK, Client, Settings

_NOBODY = Client()
_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::\d*)?")


class Refused(Exception):
    """A request that is not served. `headers`: of the answer; `more`: fields of its body."""

    def __init__(
        self,
        status: int,
        text: str,
        headers: dict[str, str] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers or {}
        self.more = more or {}


def client_of(request: Request, settings: Settings, without_key: bool = False) -> Client:
    """Raises Refused. A key may be in a header, or in the path where a client can send no header.
    Who has none must be a peer that needs none, and no web page: its Origin is refused, and so is a
    name that only its DNS has for this machine. A page knows no key.
    """
    origin = request.headers.get("origin")
    if origin is not None and origin not in settings.origins:
        raise Refused(403, f"origins in [serve] of agent.toml does not name {origin[:200]!r}")
    hosts = request.headers.getlist("host")
    if settings.keys and not without_key:
        key = _key_of(request)
        found = _tenant_of(key, settings)
        if found is not None:
            return found
        if key:
            raise _unknown_key()
    name = _without_port(hosts[0]) if len(hosts) == 1 else ""
    if not _is_on_socket(request, settings) and not _is_ours(name, settings):
        raise Refused(421, f"hosts in [serve] of agent.toml does not name {name[:200]!r}")
    if not without_key:
        _require_peer(request, settings)
    return _NOBODY


def _require_peer(request: Request, settings: Settings) -> None:
    """That whoever has no key needs none."""
    peer = _address(request.client.host) if request.client is not None else None
    if peer is not None and any(peer in network for network in settings.networks):
        return
    if settings.keys:
        raise _unknown_key()
    if _is_on_socket(request, settings) or (peer is not None and peer.is_loopback):
        return
    who = "a peer without an address" if peer is None else str(peer)
    raise Refused(403, f"allow_from in [serve] of agent.toml does not name {who}")


def _is_on_socket(request: Request, settings: Settings) -> bool:
    """On the Unix socket of this user, which no page and no other machine reaches."""
    return bool(settings.socket) and request.client is None


def _unknown_key() -> Refused:
    return Refused(401, "the key is missing or not known", {"WWW-Authenticate": "Bearer"})


def _key_of(request: Request) -> str:
    """ "": there is none."""
    in_path: str | None = request.path_params.get("key")
    if in_path is not None:
        return in_path
    kind, space, key = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return key
    if kind and not space:  # as clients of Piston send it
        return kind
    return request.headers.get("x-api-key", "")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if found.version == 6 else None
    return found if mapped is None else mapped


def _is_ours(name: str, settings: Settings) -> bool:
    """Whether a page of others cannot have this name: an address is found by no DNS."""
    known = (*LOOPBACK, settings.host, *settings.hosts)
    if name in known or _address(name) is not None:
        return True
    return not settings.is_local and name == socket.gethostname().lower()


def tenant_named(name: str, settings: Settings) -> Client | None:
    """None: it has no key any more."""
    if not name:
        return _NOBODY
    return next((one for _, one in settings.keys if one.name == name), None)


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
