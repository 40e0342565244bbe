# SPDX-License-Identifier: Apache-2.0
"""What is awaited has the members of what is not, with the same parameters and docstrings."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest

import hutch
from hutch._async_session import AsyncChild
from hutch._async_session_files import AsyncSessionFiles
from hutch._background import AsyncProcess, Process
from hutch._session import Child
from hutch._session_files import SessionFiles

# Members that the other one does not have, and why.
ABSENT: dict[Any, dict[str, str]] = {
    hutch.Session: {},
    Child: {},
    SessionFiles: {
        "within": "for packages and snapshots",
        "within_call": "for packages and snapshots",
    },
    Process: {"key": "for its session"},
    hutch.KeyValues: {
        "part": "for answers to a cell",
        "waits_to_change": "for its twin",
    },
}
TWINS = [
    (hutch.Session, hutch.AsyncSession),
    (Child, AsyncChild),
    (SessionFiles, AsyncSessionFiles),
    (Process, AsyncProcess),
    (hutch.KeyValues, hutch.AsyncKeyValues),
]
NOT_AWAITED = {"interrupt", "info", "lines", "walk"}
OWN_DOCSTRING = {"interrupt", "info", "lines", "walk", "close"}


def public(one: Any) -> set[str]:
    return {name for name in dir(one) if not name.startswith("_")}


@pytest.mark.parametrize(("plain", "twin"), TWINS, ids=lambda one: one.__name__)
def test_each_method_has_a_twin_with_the_same_parameters(plain: Any, twin: Any) -> None:
    assert public(plain) - public(twin) == ABSENT[plain].keys()
    for name in sorted(public(plain) & public(twin)):
        method, awaited = getattr(plain, name), getattr(twin, name)
        if not inspect.isfunction(method):
            assert isinstance(awaited, property), name
            continue
        assert inspect.signature(method).parameters == inspect.signature(awaited).parameters, name
        assert inspect.iscoroutinefunction(awaited) or name in NOT_AWAITED, name
        said = inspect.getdoc(awaited)
        assert (said and said.startswith("To be awaited.")) or name in NOT_AWAITED, name
        if name not in OWN_DOCSTRING:
            assert said == f"To be awaited. {inspect.getdoc(method)}", name


def test_a_session_is_made_alike() -> None:
    made = inspect.signature(hutch.AsyncSession)
    assert made == inspect.signature(hutch.Session)
    assert "timeout_sec" in made.parameters and "idle_sec" in made.parameters
    text, other = hutch.AsyncSession.__doc__ or "", hutch.Session.__doc__ or ""
    assert other.partition("\n")[2] in text and "async with AsyncSession() as s:" in text


def test_a_made_session_shows_what_it_has() -> None:
    plain, awaited = hutch.Session(), hutch.AsyncSession()
    assert public(plain) - public(awaited) == ABSENT[hutch.Session].keys()
    assert {"read", "upload"} <= public(awaited.files)
    assert public(plain.files) - public(awaited.files) == {"part", *ABSENT[SessionFiles]}
    plain.close()


def test_what_a_class_does_not_have_is_a_mistake_that_is_named() -> None:
    with pytest.raises(TypeError, match="idle_secs"):
        hutch.AsyncSession(idle_secs=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="readd"):
        _ = hutch.AsyncSession().files.readd  # type: ignore[attr-defined]


# The number of members, inherited ones included, of those that may have more than forty.
LARGE = {"LoopDialogue": 49, "Options": 43}


def test_no_class_has_more_than_some_forty_members() -> None:
    large: dict[str, int] = {}
    for module in pkgutil.walk_packages(hutch.__path__, "hutch."):
        if module.name.startswith(("hutch._core", "hutch.serve", "hutch.__main__")):
            continue
        for one in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(one) and one.__module__ == module.name:
                own = [vars(of) for of in one.__mro__ if of.__module__.startswith("hutch")]
                members = {name for names in own for name in names if not name.startswith("__")}
                if len(members) > 40:
                    large[one.__name__] = len(members)
    assert large.keys() == LARGE.keys()
    assert all(number <= LARGE[name] for name, number in large.items()), large
