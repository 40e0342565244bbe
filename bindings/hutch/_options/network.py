# SPDX-License-Identifier: Apache-2.0
"""What a call may reach: entries of `allow_network`, and secrets.

Entries are read by the parser that the proxy decides with (`_core.egress_rule`). Values; safe on
any thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from hutch import _core
from hutch._options.checks import _items, _text, quoted, unknown, without_credentials


def allow_network(name: str, value: Any) -> tuple[str, ...]:
    """The entries in their normal form, sorted."""
    entries = set()
    for item in _items(name, value):
        if not isinstance(item, str):
            raise TypeError(
                f"{name} takes text, not {type(item).__name__}: {quoted(item)}; {_forms()}"
            )
        try:
            entries.add(_core.egress_rule(_ascii(item)))
        except _core.Error as error:
            given, why = quoted(without_credentials(item)), without_credentials(error.message)
            raise ValueError(f"{name}={given}: {why}; {error.hint}") from None
        except UnicodeError:
            raise ValueError(f"{name}={quoted(item)} is not a valid hostname; {_forms()}") from None
    return tuple(sorted(entries))


def _forms() -> str:
    """Those that an entry may have, as the parser says them."""
    try:
        _core.egress_rule("")
    except _core.Error as error:
        return error.hint
    raise AssertionError("the parser takes an empty entry")


def _ascii(text: str) -> str:
    """A name of another script as IDNA writes it."""
    if text.isascii():
        return text
    host, colon, port = text.partition(":")
    star = "*." if host.startswith("*.") else ""
    return star + host[len(star) :].encode("idna").decode("ascii") + colon + port


class Secret:
    """A value that the proxy adds to requests as a header. The sandboxed code can use it; it cannot
    read it.

        @sandbox(secrets={"api.example.org": {"Authorization": Secret.from_env("TOKEN")}})

    `paths`: prefixes of the URLs' paths that it is for ("/v1" is for "/v1" and "/v1/x"); `methods`:
    such as "GET". Default: all of that host. It is shown by nothing, and cannot be pickled.
    """

    __module__ = "hutch"

    __slots__ = ("_value", "_env", "prefix", "paths", "methods")

    def __init__(
        self,
        value: str,
        *,
        prefix: str = "",
        paths: Sequence[str] | str = (),
        methods: Sequence[str] | str = (),
    ) -> None:
        self._env = ""
        self._value = value
        if not isinstance(value, str) or not value:
            raise TypeError("Secret takes the value as text that is not empty")
        self._limit(prefix, paths, methods)

    @classmethod
    def from_env(
        cls,
        name: str,
        prefix: str = "",
        *,
        paths: Sequence[str] | str = (),
        methods: Sequence[str] | str = (),
    ) -> Secret:
        """The value of an environment variable of this process, read at the first call; `prefix` is
        put before it. A variable that is not set then is a ValueError.
        """
        secret = cls.__new__(cls)
        secret._env, secret._value = _text("Secret.from_env", name), ""
        if not name or "=" in name:
            raise ValueError(f"Secret.from_env({name!r}): that is not the name of a variable")
        secret._limit(prefix, paths, methods)
        return secret

    def _limit(self, prefix: str, paths: Any, methods: Any) -> None:
        self.prefix = _text("Secret(prefix=)", prefix)
        self.paths = tuple(_text("Secret(paths=)", item) for item in _items("paths", paths))
        self.methods = tuple(
            _text("Secret(methods=)", item).upper() for item in _items("methods", methods)
        )
        for path in self.paths:
            if not path.startswith("/"):
                raise ValueError(f"Secret(paths={path!r}): a path begins with '/'")

    def _reveal(self) -> str:
        """The header's value, for the agent."""
        value = self._value
        if self._env:
            value = os.environ.get(self._env, "")
            if not value:
                raise ValueError(
                    f"Secret.from_env({self._env!r}): that environment variable is not set: set it "
                    "before the call"
                )
        return self.prefix + value

    def _key(self) -> tuple[Any, ...]:
        return (self._env, self._value, self.prefix, self.paths, self.methods)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Secret.from_env({self._env!r})" if self._env else "Secret(…)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a Secret cannot be sent anywhere: the proxy adds it to requests; pass it by secrets="
        )

    def to_fields(self) -> dict[str, Any]:
        """As a policy's TOML names it: by the variable, never by the value."""
        if not self._env:
            raise ValueError("a Secret's value is not written down: use Secret.from_env(...)")
        fields: dict[str, Any] = {"env": self._env}
        for name in ("prefix", "paths", "methods"):
            if getattr(self, name):
                fields[name] = getattr(self, name)
        return fields


Secrets = tuple[tuple[str, tuple[tuple[str, Secret], ...]], ...]


def secrets(name: str, value: Any) -> Secrets:
    """`{host: {header: Secret}}` as sorted pairs; a Secret may be a table of a policy's TOML."""
    if value is None:
        return ()
    hosts = []
    for host, headers in _pairs(name, value):
        normal = _core.normal_host(_host(name, host))
        if not normal:
            raise ValueError(
                f"{name} has {quoted(host)}: it takes full hostnames, without port or '*'"
            )
        pairs = []
        for header, secret in _pairs(f"{name}[{host!r}]", headers):
            if isinstance(secret, Mapping):
                secret = _from_fields(secret)
            if not isinstance(secret, Secret):
                raise TypeError(
                    f"{name}[{host!r}] takes a hutch.Secret as value, not {type(secret).__name__}: "
                    "Secret.from_env(...) reads it from a variable"
                )
            pairs.append((_text(f"a header in {name}", header), secret))
        hosts.append((normal, tuple(sorted(pairs, key=lambda pair: pair[0]))))
    return tuple(sorted(hosts, key=lambda pair: pair[0]))


def _host(name: str, host: Any) -> str:
    try:
        return _ascii(_text(f"a host in {name}", host))
    except UnicodeError:
        return ""


def _pairs(name: str, value: Any) -> list[tuple[Any, Any]]:
    if hasattr(value, "items"):
        return list(value.items())
    if isinstance(value, tuple) and all(isinstance(x, tuple) and len(x) == 2 for x in value):
        return list(value)
    raise TypeError(
        f"{name} takes {{host: {{header: Secret}}}}, with a dict where {type(value).__name__} is"
    )


def _from_fields(fields: Mapping[str, Any]) -> Secret:
    given = dict(fields)
    for name in given:
        if name not in ("env", "prefix", "paths", "methods"):
            raise ValueError(
                unknown("field of a secret", name, ("env", "prefix", "paths", "methods"))
            )
    if "env" not in given:
        raise ValueError(
            'a secret names its variable: {env = "TOKEN"}; its value is not written down'
        )
    return Secret.from_env(given.pop("env"), **given)


def revealed(given: Secrets) -> list[dict[str, Any]]:
    """As the agent is sent them."""
    return [
        {
            "host": host,
            "header": header,
            "value": secret._reveal(),
            "paths": list(secret.paths),
            "methods": list(secret.methods),
        }
        for host, headers in given
        for header, secret in headers
    ]
