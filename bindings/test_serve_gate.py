# SPDX-License-Identifier: Apache-2.0
"""Who a key belongs to, and what looking for it tells."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest
from starlette.requests import Request

from hutch.serve import gate, settings
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


def test_two_tenants_have_two_keys(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[tenants.other\] has the key of \[tenants.first\]"):
        settings.read(written(tmp_path, {**KEYS, "other": KEYS["first"]}))


def test_an_isolation_that_there_is_not_is_refused_before_it_serves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="isolation='docker': it is \"cell\", "):
        settings.read(tmp_path / "agent.toml", isolation="docker")
    assert settings.read(tmp_path / "agent.toml", isolation="container").isolation == "container"
