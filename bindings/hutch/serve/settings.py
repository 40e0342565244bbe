# SPDX-License-Identifier: Apache-2.0
"""What `hutch serve` reads from agent.toml: `[serve]`, and the keys of `[tenants]`."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields as dataclass_fields, replace
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, TypeAlias, Union

from hutch._options.options import NORMAL

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Network: TypeAlias = Union[IPv4Network, IPv6Network]

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, eq=False)
class Client:
    """Who asks. `labels` and `share` are of the tenant; "" is whoever needs no key. There is one
    for each, which is looked up by its identity, often in each request.
    """

    name: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    share: int = 1


@dataclass(frozen=True)
class Settings:
    """Each is a key of `[serve]`. Sizes are in MiB, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8080
    socket: str = ""  # the path of a Unix socket, in place of host and port
    workers: int = 1  # processes
    hosts: tuple[str, ...] = ()  # names in the Host header, beside addresses and this machine's own
    allow_from: tuple[str, ...] = ()  # networks of peers that need no key, as 10.0.0.0/8
    origins: tuple[str, ...] = ()  # web pages that may ask
    dependencies: tuple[str, ...] = ()  # of the programs
    isolation: str = "cell"
    allow_network: tuple[str, ...] = ()
    # Programs at once, in each process; beyond them each tenant that has none there may have one.
    concurrency: int = field(default_factory=lambda: 2 * (os.cpu_count() or 1))
    queue: int = 1000  # requests that wait for a turn, or for an answer under a key, of each client
    queue_sec: float = 60.0
    timeout_sec: float = 60.0  # the most that a request may ask for
    memory_mb: int = 1024  # likewise, and what it has if it asks for none
    body_mb: int = 64
    bodies_mb: int = 512  # of each client in each process: bodies, and as much of unread answers
    held_mb: int = 1024  # likewise of all clients, or less where the process may have less
    body_sec: float = 30.0  # to send it
    header_sec: float = 10.0  # to send what goes before it
    answer_sec: float = 60.0  # for the client to take some of its answer
    connections: int = 8192  # in each process; at the most half of them of one peer
    half_open: int = 6144  # of these, whose request is not there whole
    files: int = 10_000  # in one request
    drain_sec: float = 30.0  # for requests that run when the server is asked to end
    kept: int = 100_000  # idempotency keys of each client
    kept_mb: int = 64  # their answers
    kept_sec: float = 3600.0  # for how long
    log_requests: bool = False  # a line for each
    sessions: int = 64  # of each client, in each process
    session_idle_sec: float = 600.0  # the most that one may be unused
    label_sets: int = 16  # different labels of requests, of each client: each has its workers
    operators: tuple[str, ...] = ()  # tenants that see what all of them do, in /metrics
    keys: tuple[tuple[bytes, Client], ...] = ()  # SHA-256 of each key
    tenant_labels: tuple[str, ...] = ()  # names that choose a tenant, so no request's to set

    @property
    def address(self) -> str:
        return os.path.abspath(self.socket) if self.socket else f"{self.host}:{self.port}"

    def with_askers_of(self, other: Settings) -> Settings:
        """Who may ask, as the other says. A tenant of which only the key is another stays the same
        Client.
        """
        known = {(one.name, one.labels, one.share): one for _, one in self.keys}
        keys = tuple(
            (digest, known.get((one.name, one.labels, one.share), one))
            for digest, one in other.keys
        )
        return replace(self, keys=keys, **{name: getattr(other, name) for name in _OF_ASKERS})

    @cached_property
    def networks(self) -> tuple[Network, ...]:
        return tuple(map(ip_network, self.allow_from))

    @property
    def is_local(self) -> bool:
        return bool(self.socket) or self.host in LOOPBACK


_RANGES = {"port": (-1.0, 65535.0), "memory_mb": (63.0, 16777216.0), "workers": (0.0, 128.0)}
_OF_ASKERS = ("tenant_labels", "operators", "origins", "hosts", "allow_from")
_KEYS = {one.name for one in dataclass_fields(Settings)} - {"keys", "tenant_labels"}


def read(path: Path | None = None, **given: Any) -> Settings:
    """Of the file, where there is one; `given` goes before it. Raises ValueError."""
    if path is None:
        from hutch import _core

        path = Path(_core.paths()["state_dir"]) / "agent.toml"
    table: dict[str, Any] = {}
    if path.exists():
        table = loads(path.read_text(), path)
    values = {**checked(table.get("serve", {}), path), **checked(given, "hutch serve")}
    tenants = table.get("tenants", {})
    keys = tuple(_keys(tenants, path))
    names = {name for one in tenants.values() for name in one.get("labels", {})}
    settings = replace(Settings(), **values, keys=keys, tenant_labels=tuple(sorted(names)))
    NORMAL.changed({"isolation": settings.isolation})  # refuses an unknown one before it serves
    if settings.isolation == "shared":
        raise ValueError(
            f'{path}: isolation in [serve] is "cell", "container" or "gvisor": "shared" keeps '
            "nothing of one client from the next"
        )
    for name in settings.operators:
        if name not in {client.name for _, client in keys}:
            raise ValueError(f"{path}: operators in [serve] has {name!r}, which has no key")
    for one in settings.allow_from:
        try:
            ip_network(one)
        except ValueError as error:
            raise ValueError(
                f"allow_from has {one!r}, which is no network such as 10.0.0.0/8: {error}"
            ) from None
    if not (settings.is_local or settings.keys or settings.allow_from):
        raise ValueError(
            f"any client of {settings.host} could run programs: give each client a key in "
            f"{path}, as key = in [tenants.NAME]; or say which networks need none, with "
            "--allow-from; or serve on 127.0.0.1 or a Unix socket"
        )
    return settings


def is_plain(text: str) -> bool:
    """May stand in a header."""
    return text.isascii() and text.isprintable() and " " not in text


def loads(text: str, where: Path | str) -> dict[str, Any]:
    """Raises ValueError."""
    try:
        found: dict[str, Any] = tomllib.loads(text)
        return found
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where} is not valid TOML: {error}") from None


def checked(table: Mapping[str, Any], path: Path | str) -> dict[str, Any]:
    values = {}
    usual = Settings()
    for name, value in table.items():
        if name not in _KEYS:
            raise ValueError(f"{path}: [serve] has no key {name}")
        kind = type(getattr(usual, name))
        if kind is tuple and isinstance(value, list) and all(type(one) is str for one in value):
            value = tuple(value)
        elif kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            known = {tuple: "a list of texts", str: "a text", int: "a whole number",
                     bool: "true or false"}  # fmt: skip
            raise ValueError(f"{path}: {name} in [serve] takes {known.get(kind, 'a number')}")
        if kind in (int, float):
            _check_range(name, value, path)
        values[name] = value
    return values


def _check_range(name: str, value: float, path: Path | str) -> None:
    least, most = _RANGES.get(name, (0.0, math.inf))
    if not (math.isfinite(value) and value > least and value <= most):
        bound = f" and at most {most:g}" if math.isfinite(most) else ""
        raise ValueError(f"{path}: {name} in [serve] must be above {least:g}{bound}")


def _keys(tenants: Mapping[str, Any], path: Path) -> list[tuple[bytes, Client]]:
    keys: list[tuple[bytes, Client]] = []
    for name, tenant in tenants.items():
        key = tenant.get("key")
        if key is None:
            continue
        if type(key) is not str or len(key) < 16 or not is_plain(key):
            raise ValueError(
                f"{path}: key in [tenants.{name}] must be a text of 16 or more ASCII letters, "
                "digits and signs, without spaces"
            )
        share = tenant.get("share", 1)
        if type(share) is not int or not 1 <= share <= 1000:
            raise ValueError(f"{path}: share in [tenants.{name}] must be from 1 to 1000")
        labels = tuple(sorted(tenant.get("labels", {}).items()))
        digest = hashlib.sha256(key.encode()).digest()
        for other in (client.name for known, client in keys if known == digest):
            raise ValueError(f"{path}: [tenants.{name}] has the key of [tenants.{other}]")
        keys.append((digest, Client(name, labels, share)))
    return keys
