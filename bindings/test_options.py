# SPDX-License-Identifier: Apache-2.0
"""Each bad keyword is refused when it is given, by an error that names it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

import hutch
from hutch import Executor, Policy, Program, Session, function, sandbox
from hutch._options.keywords import with_keywords
from hutch._options.options import NORMAL


def test_the_defaults_are_those_of_the_preset_normal() -> None:
    assert (NORMAL.timeout_sec, NORMAL.cpu_sec, NORMAL.queue_sec, NORMAL.build_sec) == (
        30,
        None,
        60,
        600,
    )
    assert (NORMAL.memory_mb, NORMAL.disk_mb, NORMAL.pids, NORMAL.cpus) == (1024, 256, 64, 1)
    assert (NORMAL.output_mb, NORMAL.result_mb) == (1, 512)
    assert (NORMAL.max_calls, NORMAL.max_age_sec) == (10_000, 3600)


NUMBERS = "timeout_sec queue_sec build_sec cpu_sec memory_mb cpus pids disk_mb output_mb result_mb"


@pytest.mark.parametrize("name", [*NUMBERS.split(), "max_calls", "max_age_sec"])
@pytest.mark.parametrize("bad", [-1, -0.5, math.nan, math.inf, "5", True, [1], 1e300, {}])
def test_a_bad_number_is_refused_and_named(name: str, bad: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        NORMAL.changed({name: bad})


@pytest.mark.parametrize("name", ["timeout_sec", "cpu_sec", "memory_mb", "pids", "disk_mb", "cpus"])
def test_zero_is_no_limit_that_can_be_meant(name: str) -> None:
    with pytest.raises(ValueError, match="too small"):
        NORMAL.changed({name: 0})


def test_none_means_unlimited_where_that_can_be() -> None:
    options = NORMAL.changed({"timeout_sec": None, "cpu_sec": None})
    assert options.timeout_sec is None and options.cpu_sec is None
    for name in ("memory_mb", "pids", "queue_sec", "max_age_sec"):
        with pytest.raises(TypeError, match=name):
            NORMAL.changed({name: None})


def test_infinity_is_refused_with_the_way_to_say_it() -> None:
    with pytest.raises(ValueError, match="timeout_sec=None"):
        NORMAL.changed({"timeout_sec": math.inf})


def test_a_whole_number_may_be_a_float_or_numpys() -> None:
    numpy = pytest.importorskip("numpy")
    options = NORMAL.changed({"memory_mb": 512.0, "pids": numpy.int64(8)})
    assert (options.memory_mb, options.pids) == (512, 8)
    with pytest.raises(ValueError, match="whole"):
        NORMAL.changed({"pids": 1.5})


def test_scratch_larger_than_memory_is_refused_or_follows() -> None:
    with pytest.raises(ValueError, match="memory_mb"):
        NORMAL.changed({"disk_mb": 2048})
    assert NORMAL.changed({"memory_mb": 64}).disk_mb == 64


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client", object()),
    ],
)
def test_what_is_not_there_yet_is_refused_and_never_dropped(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}=.* not supported yet"):
        NORMAL.changed({name: value})


def test_a_shared_cell_is_replaced_sooner_than_a_worker_unless_that_is_said() -> None:
    shared = NORMAL.changed({"isolation": "shared"})
    assert (shared.isolation, shared.max_calls) == ("shared", 100)
    assert shared.changed({"isolation": "cell"}) == NORMAL
    assert NORMAL.changed({"isolation": "shared", "max_calls": 7}).max_calls == 7
    for bad in ("Shared", "", None, 1, ["shared"]):
        with pytest.raises(ValueError, match=r'isolation=.*"gvisor" or "shared"'):
            NORMAL.changed({"isolation": bad})


def test_a_container_serves_one_call_and_no_other_number() -> None:
    container = NORMAL.changed({"isolation": "container"})
    assert (container.isolation, container.max_calls) == ("container", 1)
    assert container.changed({"isolation": "cell"}) == NORMAL
    assert NORMAL.changed({"isolation": "container", "max_calls": 1}) == container
    for number in (2, 10_000):
        for isolation in ("container", "gvisor"):
            with pytest.raises(ValueError, match=f"max_calls={number}: .*{isolation}.*one call"):
                NORMAL.changed({"isolation": isolation, "max_calls": number})


def test_gvisor_takes_no_mounts() -> None:
    with pytest.raises(ValueError, match=r"mounts=.*gvisor"):
        NORMAL.changed({"isolation": "gvisor", "mounts": {"/data": "."}})


def test_gvisor_has_no_network() -> None:
    with pytest.raises(ValueError, match=r"allow_network= .*gvisor"):
        NORMAL.changed({"isolation": "gvisor", "allow_network": ["example.org"]})


def test_asking_for_nothing_of_what_is_not_there_is_fine() -> None:
    nothing: dict[str, Any] = {"allow_network": (), "mounts": {}, "secrets": {}, "tools": ()}
    assert with_keywords(NORMAL, {**nothing, "isolation": "cell", "policy": "normal"}) == NORMAL
    assert NORMAL.changed({"allow_network": set(), "tools": frozenset()}) == NORMAL


def test_inline_dependencies_are_for_text_alone() -> None:
    for make in (
        lambda: sandbox(dependencies="inline")(lambda: 1),
        lambda: sandbox(lambda: 1).options(dependencies="inline"),
        lambda: Executor(dependencies="inline"),
    ):
        with pytest.raises(ValueError, match="inline"):
            make()
    text = function("# /// script\n# dependencies = ['a']\n# ///\ndef f(): ...\n", "f")
    assert text.options(dependencies="inline")._resolved().options.dependencies == ("a",)


def test_an_unknown_keyword_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match="did you mean 'timeout_sec'"):
        sandbox(timeout_secs=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("meant", "names"),
    [
        ("dependencies", "packages pip pip_install requirements libraries"),
        ("node_dependencies", "npm npm_packages"),
        ("timeout_sec", "timeout timeout_ms time_limit deadline"),
        ("memory_mb", "memory mem ram max_memory memory_limit mem_limit"),
        ("cpus", "cpu cpus_count num_cpus"),
        ("allow_network", "network internet allow_internet allow_internet_access"),
        ("env", "env_vars envs environment_variables"),
        ("mounts", "volumes binds mount"),
        ("setup", "initializer"),
    ],
)
def test_words_of_other_products_lead_to_the_keyword(meant: str, names: str) -> None:
    takers: tuple[Any, ...] = (
        sandbox,
        lambda **keywords: hutch.run("1", **keywords),
        lambda **keywords: function("def f(): ...", "f", **keywords),
        Program("1").options,
        Session,
        Executor,
    )
    for name, take in itertools.product(names.split(), takers):
        with pytest.raises(TypeError, match=f"unknown keyword '{name}'; did you mean '{meant}'"):
            take(**{name: 1})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu", "a sandbox has no GPU"),
        ("gpus", "a sandbox has no GPU"),
        ("input", "stdin="),
        ("workdir", "cwd="),
        ("num_gpus", "a sandbox has no GPU"),
        ("image", 'an OCI image is given by environment=Environment(base="…")'),
        ("python_version", "a sandbox has the Python of this process"),
        ("files", "take files="),
        ("keep_alive", "pool=Pool(idle_sec=…)"),
    ],
)
def test_a_word_that_no_keyword_stands_for_says_what_to_use(name: str, said: str) -> None:
    with pytest.raises(TypeError, match=f"unknown keyword '{name}': ") as caught:
        sandbox(**{name: 1})  # type: ignore[call-overload]
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["gpu", "gpus", "image", "packages", "clients", "nonsense"])
def test_a_name_that_is_near_none_is_not_guessed(name: str) -> None:
    with pytest.raises(TypeError) as caught:
        Policy(**{name: 1})  # type: ignore[misc]
    assert str(caught.value) == f"unknown field {name!r}"


def test_a_keyword_that_is_not_supported_is_not_suggested() -> None:
    with pytest.raises(TypeError) as caught:
        sandbox(clients=1)  # type: ignore[call-overload]
    assert str(caught.value) == "unknown keyword 'clients'"


@pytest.mark.parametrize(
    "keywords",
    [
        {"env": {"A": 1}},
        {"env": {"A=B": "x"}},
        {"env": {"": "x"}},
        {"env": {"A": "x\0"}},
        {"env": "A=B"},
        {"labels": ["x"]},
        {"preload": ["not a module"]},
        {"preload": [3]},
        {"setup": 3},
        {"modules": [3]},
        {"pool": 5},
        {"disable_cache": "yes"},
        {"echo": 1},
        {"on_stdout": "print"},
        {"key": 3},
        {"dependencies": {"pandas": 2}},
        {"dependencies": [3]},
    ],
)
def test_a_value_of_another_kind_is_refused(keywords: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(keywords)) + "|requirement"):
        NORMAL.changed(keywords)


def test_a_bare_text_is_one_item() -> None:
    options = NORMAL.changed({"dependencies": "Pandas >= 2", "preload": "json"})
    assert options.dependencies == ("pandas>=2",)
    assert options.preload == ("json",)


@pytest.mark.parametrize(
    "keywords", [{"warm": -1}, {"max_cells": 0}, {"idle_sec": math.nan}, {"warm": "many"}]
)
def test_a_pool_checks_its_numbers(keywords: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match="Pool"):
        hutch.Pool(**keywords)


def test_pools_are_values() -> None:
    assert hutch.Pool(warm=2) == hutch.Pool(warm=2, idle_sec=300.0) != hutch.Pool()
    assert len({hutch.Pool(), hutch.Pool()}) == 1


def test_bad_keywords_are_refused_when_decorating() -> None:
    with pytest.raises(ValueError, match="timeout_sec"):

        @sandbox(timeout_sec=-1)
        def f() -> None: ...

    with pytest.raises(hutch.RequirementError):

        @sandbox(dependencies=["-r requirements.txt"])
        def g() -> None: ...


@pytest.mark.parametrize("name", ["env", "labels"])
def test_bytes_that_are_not_utf8_are_refused_by_name(name: str) -> None:
    for pair in ({"a": "x\udc80"}, {"x\udc80": "a"}):
        with pytest.raises(ValueError, match=rf"{name}\S* is not UTF-8"):
            NORMAL.changed({name: pair})
    assert getattr(NORMAL.changed({name: {"a": "é\U0001f600"}}), name) == (("a", "é\U0001f600"),)
