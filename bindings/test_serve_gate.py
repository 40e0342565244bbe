# SPDX-License-Identifier: Apache-2.0
"""Who a key belongs to, and what looking for it tells."""

from __future__ import annotations

import hmac
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.requests import Request

from hutch.serve import gate, settings
from hutch.serve.app import Server
from hutch.serve.gate import Refused, client_of
from hutch.serve.settings import Client, Settings

KEYS = {name: name * 20 for name in ("first", "middle", "last")}


@pytest.fixture
def known(tmp_path: Path) -> Settings:
    return settings.read(written(tmp_path, KEYS))


def written(folder: Path, keys: dict[str, str]) -> Path:
    path = folder / "agent.toml"
    tables = (f'[tenants.{name}]\nkey = "{key}"\n' for name, key in keys.items())
    path.write_text("".join(tables))
    return path


def asked(settings: Settings, *headers: tuple[str, str]) -> Client:
    pairs = [("Host", "localhost"), *headers]
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]
    return client_of(Request({"type": "http", "headers": raw}), settings)


def test_a_key_is_its_tenants(known: Settings) -> None:
    for name, key in KEYS.items():
        for header in (("Authorization", f"Bearer {key}"), ("Authorization", f"bearer {key}"),
                       ("X-API-Key", key)):  # fmt: skip
            assert asked(known, header).name == name
    other = ("Authorization", "Basic abc"), ("X-API-Key", KEYS["last"])
    assert asked(known, *other).name == "last"


WRONG = ["", "f", KEYS["first"][:-1], KEYS["first"] + "x", KEYS["first"].upper(),
         KEYS["first"] + KEYS["middle"], "x" * 60_000, "\xff\xfe", "first"]  # fmt: skip


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_key_is_nobodys(known: Settings, key: str) -> None:
    for header in (("Authorization", f"Bearer {key}"), ("X-API-Key", key), ("Authorization", key)):
        with pytest.raises(Refused, match="missing or not known") as refused:
            asked(known, header)
        assert refused.value.status == 401


def test_each_key_is_compared_with_all_whichever_it_is(
    known: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bytes, int]] = []
    compare = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        seen.append((one, len(other)))
        return compare(one, other)

    monkeypatch.setattr(gate.hmac, "compare_digest", counted)
    made = []
    for key in [*KEYS.values(), *WRONG]:
        seen.clear()
        try:
            asked(known, ("X-API-Key", key))
        except Refused:
            pass
        made.append([*seen])
    assert made == [[(digest, 32) for digest, _ in known.keys]] * len(made)


def test_a_key_may_stand_in_the_path(known: Settings) -> None:
    for name, key in KEYS.items():
        assert asked_from("10.0.0.9", known, key=key).name == name
    with pytest.raises(Refused, match="missing or not known"):
        asked_from("10.0.0.9", known, ("X-API-Key", KEYS["first"]), key="wrong")


def asked_from(
    peer: str | None, settings: Settings, *headers: tuple[str, str], key: str | None = None
) -> Client:
    given = (
        headers if any(name == "Host" for name, _ in headers) else (("Host", "localhost"), *headers)
    )
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in given]
    scope = {"type": "http", "headers": raw, "client": peer and (peer, 5),
             "path_params": {} if key is None else {"key": key}}  # fmt: skip
    return client_of(Request(scope), settings)


OWN_NETWORK = Settings(host="0.0.0.0", allow_from=("10.0.0.0/8", "fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "settings", "may"),
    [
        ("127.0.0.1", Settings(), True),
        ("127.8.8.8", Settings(), True),
        ("::1", Settings(), True),
        ("::ffff:127.0.0.1", Settings(), True),
        ("10.0.0.9", Settings(), False),
        ("::ffff:10.0.0.9", Settings(), False),
        ("testclient", Settings(), False),
        (None, Settings(), False),
        (None, Settings(socket="/run/x"), True),
        ("127.0.0.1", OWN_NETWORK, True),
        ("10.0.0.9", OWN_NETWORK, True),
        ("::ffff:10.0.0.9", OWN_NETWORK, True),
        ("fd00::9", OWN_NETWORK, True),
        ("11.0.0.9", OWN_NETWORK, False),
        ("fe80::1%eth0", OWN_NETWORK, False),
        (None, OWN_NETWORK, False),
    ],
)
def test_who_has_no_key_is_a_peer_that_needs_none(
    peer: str | None, settings: Settings, may: bool
) -> None:
    """Whatever it says of itself."""
    says = ("X-Forwarded-For", "127.0.0.1"), ("Forwarded", "for=10.0.0.9"), ("X-Real-Ip", "::1")
    if may:
        assert asked_from(peer, settings, *says) == asked_from(peer, settings)
    else:
        with pytest.raises(Refused, match=r"allow_from in \[serve\] of agent.toml does not"):
            asked_from(peer, settings, *says)


def test_a_network_may_go_without_the_key_that_others_need(known: Settings) -> None:
    both = replace(known, allow_from=("10.0.0.0/8",))
    assert asked_from("10.0.0.9", both).name == ""
    assert asked_from("10.0.0.9", both, ("X-API-Key", KEYS["last"])).name == "last"
    for peer, headers in (("127.0.0.1", ()), ("10.0.0.9", (("X-API-Key", "wrong"),))):
        with pytest.raises(Refused, match="missing or not known"):
            asked_from(peer, both, *headers)


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("10.0.0.5:8080", True),
        ("[fd00::5]:80", True),
        ("localhost", True),
        (socket.gethostname().upper(), True),
        ("named.internal", True),
        ("rebound.example.org", False),
        ("10.0.0.5.example.org", False),
        ("[::1].example.org", False),
        ("", False),
    ],
)
def test_who_has_no_key_asks_for_an_address_or_a_name_of_ours(
    known: Settings, name: str, may: bool
) -> None:
    """A name that only a page's own DNS has for this machine is not one; a page has no key."""
    served = replace(OWN_NETWORK, hosts=("named.internal",))
    if may:
        assert asked_from("10.0.0.9", served, ("Host", name)).name == ""
    else:
        with pytest.raises(Refused, match=r"hosts in \[serve\] of agent.toml does not name"):
            asked_from("10.0.0.9", served, ("Host", name))
    key = ("X-API-Key", KEYS["first"])
    assert asked_from("10.0.0.9", known, ("Host", name), key).name == "first"


def test_a_network_is_one(tmp_path: Path) -> None:
    for wrong in ("10.0.0.1/8", "10.0.0.0/33", "lan", ""):
        with pytest.raises(ValueError, match="which is no network such as"):
            settings.read(tmp_path / "agent.toml", host="0.0.0.0", allow_from=(wrong,))
    with pytest.raises(ValueError, match=r"could run programs: .*--allow-from"):
        settings.read(tmp_path / "agent.toml", host="0.0.0.0")


def test_what_is_read_again_is_who_may_ask(tmp_path: Path) -> None:
    before = settings.read(written(tmp_path, KEYS))
    path = written(tmp_path, {"first": "other" * 9, "new": "new" * 9, "middle": KEYS["middle"]})
    path.write_text(f"[serve]\nhosts = ['x']\nqueue = 3\noperators = ['new']\n{path.read_text()}")
    after = before.with_askers_of(settings.read(path))
    assert (after.hosts, after.operators, after.queue) == (("x",), ("new",), before.queue)
    of_before = {one.name: one for _, one in before.keys}
    of_after = {one.name: one for _, one in after.keys}
    assert of_after.keys() == {"first", "new", "middle"}
    assert of_after["first"] is of_before["first"] and of_after["middle"] is of_before["middle"]
    assert asked(after, ("X-API-Key", "other" * 9)) is of_before["first"]
    with pytest.raises(Refused, match="missing or not known"):
        asked(after, ("X-API-Key", KEYS["first"]))


def test_what_is_read_again_holds_for_all_that_ask_the_settings(tmp_path: Path) -> None:
    server = Server(Settings())
    after = settings.read(written(tmp_path, KEYS))
    server.reload(lambda: after)
    for one in (server, server.own, server._sessions, server._runner):
        assert {client.name for _, client in one.settings.keys} == KEYS.keys()

    def refused() -> Settings:
        raise ValueError("agent.toml is wrong")

    server.reload(refused)
    assert server.settings.keys


def test_two_tenants_have_two_keys(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[tenants.other\] has the key of \[tenants.first\]"):
        settings.read(written(tmp_path, {**KEYS, "other": KEYS["first"]}))


def test_an_isolation_that_there_is_not_is_refused_before_it_serves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="isolation='docker': it is \"cell\", "):
        settings.read(tmp_path / "agent.toml", isolation="docker")
    with pytest.raises(ValueError, match='"shared" keeps nothing of one client from the next'):
        settings.read(tmp_path / "agent.toml", isolation="shared")
    assert settings.read(tmp_path / "agent.toml", isolation="container").isolation == "container"
