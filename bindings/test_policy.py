# SPDX-License-Identifier: Apache-2.0
"""Policy, presets, TOML, `policy=`: what is given is what holds, or it is refused by name."""

from __future__ import annotations

import collections
import enum
import functools
import math
import os
import pickle
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import hutch
from hutch import Policy, sandbox
from hutch._carry import pickling
from hutch._options.keywords import with_keywords
from hutch._options.options import NORMAL, POLICY_FIELDS
from hutch._options.policy import Policy as SamePolicy


def options_of(function: Any) -> Any:
    return function._resolved().options


def limits(policy: Policy) -> tuple[Any, ...]:
    names = "timeout_sec cpu_sec memory_mb disk_mb pids result_mb".split()
    return tuple(getattr(policy, name) for name in names)


def test_the_presets_are_as_their_table_says() -> None:
    assert limits(Policy.strict()) == (5, 5, 256, 64, 16, 16)
    assert limits(Policy.normal()) == (30, None, 1024, 256, 64, 512)
    assert limits(Policy.permissive()) == (300, None, 4096, 2048, 512, 2048)
    assert Policy.strict().hard_limits and Policy.strict().refuse_secrets
    assert Policy.permissive().allow_sdists and not Policy.strict().allow_sdists
    assert not Policy.normal().hard_limits and Policy() == Policy.normal()


def test_a_policy_is_a_frozen_value() -> None:
    policy = Policy(timeout_sec=5, memory_mb=512)
    assert policy == Policy(memory_mb=512.0, timeout_sec=5.0) != Policy()  # type: ignore[typeddict-item]
    assert hash(policy) == hash(Policy(memory_mb=512, timeout_sec=5))
    assert repr(policy) == "Policy(timeout_sec=5.0, memory_mb=512)"
    assert pickle.loads(pickle.dumps(policy)) == policy
    with pytest.raises(AttributeError, match=r"replace\(memory_mb=...\)"):
        policy.memory_mb = 1024
    assert policy.memory_mb == 512
    assert policy.replace(memory_mb=64).memory_mb == 64 and policy.memory_mb == 512
    assert hutch.Policy is SamePolicy


def test_scratch_follows_memory_unless_both_are_given() -> None:
    assert Policy(memory_mb=64).disk_mb == 64
    assert Policy.strict().replace(memory_mb=32).disk_mb == 32
    with pytest.raises(ValueError, match="disk_mb=65 is more than memory_mb=64"):
        Policy(memory_mb=64, disk_mb=65)
    with pytest.raises(ValueError, match="disk_mb=512 is more than memory_mb=256"):
        Policy.strict().replace(disk_mb=512)


NUMBERS = "timeout_sec cpu_sec memory_mb cpus pids disk_mb result_mb max_calls max_age_sec".split()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("bad", [0, -1, 10**30, 10**400, math.nan, math.inf, "5", "5s", True, [1]])
def test_a_bad_limit_is_refused_and_named(name: str, bad: Any) -> None:
    for make in (Policy, Policy.strict().replace, lambda **k: sandbox(**k)(len)):
        with pytest.raises((ValueError, TypeError), match=name):
            make(**{name: bad})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("timeout", "'timeout_sec', in seconds"),
        ("timeout_ms", "'timeout_sec', in seconds"),
        ("timeout_seconds", "'timeout_sec', in seconds"),
        ("timeot_sec", "'timeout_sec', in seconds"),
        ("memory", "'memory_mb', in MiB"),
        ("memory_gb", "'memory_mb', in MiB"),
        ("max_memory_bytes", "'memory_mb', in MiB"),
        ("disk_gb", "'disk_mb', in MiB"),
        ("cpu_ms", "'cpu_sec', in seconds"),
        ("cpu_time", "'cpu_sec', in seconds"),
        ("cpu", "'cpus'"),
        ("cpu_count", "'cpus'"),
        ("max_pids", "'pids'"),
        ("processes", "'pids'"),
        ("result_bytes", "'result_mb', in MiB"),
        ("network", "'allow_network'"),
        ("max_age", "'max_age_sec', in seconds"),
        ("hard_limit", "'hard_limits'"),
    ],
)
def test_an_unknown_field_is_refused_with_what_was_meant(
    given: str, meant: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=f"unknown field '{given}'; did you mean {meant}"):
        Policy(**{given: 5})  # type: ignore[misc]
    path = tmp_path / "policy.toml"
    path.write_text(f"memory_mb = 64\n{given} = 5\n")
    with pytest.raises(ValueError, match=f"policy.toml: unknown field '{given}'; did you mean"):
        Policy.from_toml(path)
    if given != "hard_limit":
        with pytest.raises(TypeError, match=f"unknown keyword '{given}'; did you mean {meant}"):
            sandbox(**{given: 5})  # type: ignore[call-overload]


def test_what_is_no_part_of_a_policy_is_refused() -> None:
    for name in ("dependencies", "labels", "policy", "setup"):
        with pytest.raises(TypeError, match=f"unknown field '{name}'"):
            Policy(**{name: ()})  # type: ignore[misc]


# ---- policy=


def test_a_preset_gives_every_limit_and_keywords_override_it() -> None:
    function = sandbox(lambda: 1, policy="strict", timeout_sec=60, env={"A": "b"})
    assert limits(options_of(function)) == (60, 5, 256, 64, 16, 16)
    assert options_of(function).env == (("A", "b"),)
    assert options_of(function).hard_limits


def test_the_order_of_keywords_makes_no_difference() -> None:
    one = with_keywords(NORMAL, {"timeout_sec": 60, "policy": "strict"})
    assert one == with_keywords(NORMAL, {"policy": "strict", "timeout_sec": 60})


def test_a_policy_replaces_the_one_before_and_leaves_the_rest() -> None:
    function = sandbox(lambda: 1, memory_mb=64, labels={"a": "b"}, queue_sec=3)
    for policy in ("permissive", Policy.permissive()):
        changed = options_of(function.options(policy=policy))
        assert limits(changed) == limits(Policy.permissive())
        assert changed.labels == (("a", "b"),) and changed.queue_sec == 60
    assert options_of(function.options(policy=None)) == options_of(function)
    assert options_of(function.options(policy="normal")).memory_mb == 1024


def test_an_isolation_of_a_policy_brings_its_rotation() -> None:
    shared = Policy(isolation="shared")
    assert shared.max_calls == 100 and options_of(sandbox(len_, policy=shared)).max_calls == 100
    assert options_of(sandbox(len_, policy=shared, isolation="cell")).max_calls == 10_000


def len_() -> int:
    return 0


def test_an_environment_says_itself_whether_it_builds_from_source() -> None:
    assert options_of(sandbox(len_, policy="permissive")).allow_sdists
    environment = hutch.Environment(["docopt"])
    assert not options_of(sandbox(len_, policy="permissive", environment=environment)).allow_sdists


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("stirct", "not a preset.*did you mean 'strict'"),
        ("", "not a preset"),
        (5, "not int"),
        ({"timeout_sec": 5}, "not dict"),
        (["strict"], "not list"),
    ],
)
def test_a_policy_that_is_none_is_refused(bad: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"policy.*{words}"):
        sandbox(policy=bad)


# ---- TOML


def test_a_file_is_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "untrusted.toml"
    path.write_text(
        'preset = "strict"\ntimeout_sec = 2.5\ncpu_sec = "unlimited"\n[env]\nLANG = "C.UTF-8"\n'
    )
    wanted = Policy.strict().replace(timeout_sec=2.5, cpu_sec=None, env={"LANG": "C.UTF-8"})
    for place in (path, str(path)):
        assert Policy.from_toml(place) == wanted
        assert options_of(sandbox(len_, policy=place)).timeout_sec == 2.5
    assert wanted.env == {"LANG": "C.UTF-8"}


def test_an_empty_file_is_the_normal_policy(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("")
    assert Policy.from_toml(path) == Policy()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("timeout_sec = ", "is not valid TOML"),
        ("memory_mb = 64\nmemory_mb = 65", "is not valid TOML"),
        ("a = '\xff'", "is not valid TOML"),
        ('memory_mb = "512"', "memory_mb takes a whole number"),
        ("memory_mb = 0", "memory_mb=0 is too small"),
        ("timeout_sec = nan", "timeout_sec is NaN"),
        ("timeout_sec = inf", "timeout_sec"),
        ("hard_limits = 1", "hard_limits takes True or False"),
        ('preset = "stric"', "preset is one of strict, normal, permissive"),
        ("memory_mb = 64\ndisk_mb = 128", "disk_mb=128 is more than memory_mb=64"),
        ('memory_mb = "unlimited"', "memory_mb takes a whole number"),
        ("[limits]\nmemory_mb = 64", "unknown field 'limits'"),
        ("dependencies = ['a']", "unknown field 'dependencies'"),
    ],
)
def test_a_bad_file_is_refused_by_its_name(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"bad\.toml.*{words}"):
        Policy.from_toml(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.toml"):
        sandbox(policy=str(tmp_path / "absent.toml"))


NAMES = st.text(min_size=1).filter(lambda name: "=" not in name and "\0" not in name)
VALUES = st.text().filter(lambda value: "\0" not in value)
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "timeout_sec": st.none() | st.floats(0.001, 1e6),
        "cpu_sec": st.none() | st.integers(1, 10**6),
        "memory_mb": st.integers(16, 1 << 20),
        "cpus": st.floats(0.01, 4096),
        "pids": st.integers(1, 1 << 15),
        "output_mb": st.floats(0, 4096),
        "isolation": st.sampled_from(["cell", "shared"]),
        "hard_limits": st.booleans(),
        "env": st.dictionaries(NAMES, VALUES, max_size=4),
    },
)


@settings(deadline=None, max_examples=50)
@given(POLICIES)
def test_what_is_written_is_read_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]
) -> None:
    policy = Policy(**fields)
    path = tmp_path_factory.getbasetemp() / "round.toml"
    path.write_text(policy.to_toml(), "utf-8")
    assert Policy.from_toml(path) == policy


def test_all_fields_are_written() -> None:
    text = Policy.strict().replace(env={"A": "b"}, mounts={"/data": __file__}).to_toml()
    assert all(name in text for name in POLICY_FIELDS)


# ---- strict


def test_strict_refuses_a_function_that_carries_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "s3cr3t-of-the-host"
    monkeypatch.setenv("SERVICE_TOKEN", token)

    @sandbox(policy=Policy(refuse_secrets=True))
    def f() -> int:
        return len(token)

    with pytest.raises(hutch.SerializationError, match="SERVICE_TOKEN") as caught:
        f()
    assert token not in str(caught.value)
    assert "SERVICE_TOKEN" in next(item for item in f.carries() if item.name == "token").warning


def test_what_is_no_secret_is_carried_under_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "s3cr3t-of-the-host")
    word = "something-else"

    @sandbox(policy="strict")
    def f() -> int:
        return len(word)

    assert f._resolved().code().sha256  # type: ignore[union-attr]


def test_strict_finds_a_secret_in_plain_data_and_in_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "s3cr3t-of-the-host")
    settings_ = {"api": [{"token": b"s3cr3t-of-the-host"}]}
    policy = Policy(refuse_secrets=True)

    def f() -> int:
        return len(settings_)

    with pytest.raises(hutch.SerializationError, match=r"settings_ holds the value of .*SERVICE"):
        sandbox(f, policy=policy)()
    with pytest.raises(hutch.SerializationError, match="setup= would carry a secret"):
        sandbox(len_, policy=policy, setup=f)._resolved()._setup()


class Holder:
    """A class of this file, which travels by value."""

    token = ""


@pytest.mark.parametrize(
    "make",
    [
        lambda token: types.SimpleNamespace(token=token),
        lambda token: collections.namedtuple("Settings", "token")(token),
        lambda token: collections.defaultdict(str, token=token),
        lambda token: collections.OrderedDict(token=token),
        lambda token: types.MappingProxyType({"token": token}),
        lambda token: functools.partial(len, token),
        lambda token: enum.Enum("Keys", {"A": token}),
        lambda token: [[[[[[token]]]]]],
        lambda token: {"Authorization": "Bearer " + token},
        lambda token: f"https://user:{token}@example.org/",
        lambda token: type("Made", (), {"token": token}),
        lambda token: set_on(Holder(), "token", token),
        lambda token: set_on(types.FunctionType((lambda: 1).__code__, {}), "__doc__", token),
    ],
)
def test_strict_finds_a_secret_wherever_it_is(
    make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "s3cr3t-of-the-host")
    held = make("s3cr3t-of-the-host")
    harmless = make("another-text-here")

    def f() -> str:
        return str(held)

    def g() -> str:
        return str(harmless)

    policy = Policy(refuse_secrets=True)
    with pytest.raises(hutch.SerializationError, match="SERVICE_TOKEN") as caught:
        sandbox(f, policy=policy)()
    assert "s3cr3t" not in str(caught.value)
    with pytest.warns(UserWarning, match="SERVICE_TOKEN"):
        sandbox(f)._resolved().code()
    assert sandbox(g, policy=policy)._resolved().code().sha256


def test_a_text_of_the_code_is_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Though a variable happens to hold the same, or a path that others begin with."""
    monkeypatch.setenv("STAGE", "production")
    monkeypatch.setenv("SOME_NAME", "a_text_of_the_code")
    monkeypatch.setenv("PROJECT_DIRECTORY", str(tmp_path))
    place = str(tmp_path / "data")

    def a_text_of_the_code() -> bool:
        return place != "production"

    made = sandbox(a_text_of_the_code, policy=Policy(refuse_secrets=True))
    assert made._resolved().code().sha256


def test_the_environment_itself_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    from os import environ

    monkeypatch.setenv("SERVICE_TOKEN", "s3cr3t-of-the-host")

    def f() -> int:
        return len(environ)

    code = sandbox(f, policy=Policy(refuse_secrets=True))._resolved().code()
    assert code.sha256
    assert b"s3cr3t" not in pickling.dumps((environ, os.environb, f))
    loaded = pickle.loads(pickling.dumps((environ, os.environb)))
    assert loaded[0] is os.environ and loaded[1] is os.environb


def set_on(target: Any, name: str, value: Any) -> Any:
    setattr(target, name, value)
    return target
