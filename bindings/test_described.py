# SPDX-License-Identifier: Apache-2.0
"""`help()` and `inspect.signature()` name every keyword, with what it means."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from typing import Any

import pytest

import hutch
from hutch._options.described import SAID, keywords
from hutch._options.keywords import with_keywords
from hutch._options.options import KEYWORDS, NORMAL

TAKE_ALL: list[Callable[..., Any]] = [
    hutch.sandbox,
    hutch.run,
    hutch.run_aio,
    hutch.function,
    hutch.Program,
    hutch.Program.options,
    hutch.Executor,
    hutch.SandboxedFunction.options,
    hutch.AsyncSandboxedFunction.options,
]
SESSIONS: list[Callable[..., Any]] = [hutch.Session, hutch.AsyncSession]


@pytest.mark.parametrize("takes", [*TAKE_ALL, *SESSIONS], ids=lambda one: one.__qualname__)
def test_signature_and_help_name_each_keyword(takes: Callable[..., Any]) -> None:
    wanted = [one for one in keywords() if one.name != "key" or takes not in SESSIONS]
    signature = inspect.signature(takes)
    found = list(signature.parameters.values())[-len(wanted) :]
    assert [(one.name, one.annotation, one.default) for one in found] == [
        (one.name, one.type, one.default) for one in wanted
    ]
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in found)
    text = " ".join(pydoc.plaintext.document(takes).replace("|", " ").split())
    for one in wanted:
        shown = f"{one.name}: {one.type} = {one.default!r} {one.said}"
        assert " ".join(shown.replace("|", " ").split()) in text


def test_a_functions_own_parameters_and_docstring_stay_first() -> None:
    names = list(inspect.signature(hutch.run).parameters)
    assert names[:7] == ["source", "language", "stdin", "args", "files", "fetch", "filename"]
    assert inspect.signature(hutch.run).return_annotation == "Outcome[None]"
    text = inspect.getdoc(hutch.run) or ""
    assert text.startswith("Runs a whole program in a fresh cell.")
    assert "\n    outcome = hutch.run(" in text and "\ntimeout_sec: float | None = 30.0\n" in text
    assert str(inspect.signature(hutch.Program)).startswith("(source: 'str', *, language")


def test_a_signature_is_one_for_those_who_use_it() -> None:
    signature = inspect.signature(hutch.sandbox)
    assert isinstance(signature, inspect.Signature)
    assert signature == inspect.signature(hutch.sandbox) != inspect.signature(hutch.run)
    assert repr(signature).startswith("<Signature (function:")
    assert "timeout_sec" in signature.bind(timeout_sec=3).arguments
    with pytest.raises(TypeError, match="timeout_secs"):
        signature.bind(timeout_secs=3)


def test_every_keyword_is_said_with_its_unit() -> None:
    assert {*SAID} == {*KEYWORDS} - {"client"}  # which is refused, as it is not there yet
    for name, text in SAID.items():
        assert text.endswith(".")
        assert text.startswith("Seconds ") == name.endswith("_sec")
        assert text.startswith("MiB ") == name.endswith("_mb")


def test_defaults_that_are_shown_are_those_that_hold() -> None:
    for one in keywords():
        assert with_keywords(NORMAL, {one.name: one.default}) == NORMAL, one.name
