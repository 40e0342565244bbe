# SPDX-License-Identifier: Apache-2.0
"""Files of a snapshot take the place of those that are there, or do not, wherever that is ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exchanging
import pytest

STAGED = ".staged"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in {"a": "old", "d/b": "old", "d/c": "old", f"{STAGED}/a": "new"}.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


def files(place: Path) -> dict[str, str]:
    return {
        str(one.relative_to(place)): one.read_text() for one in place.rglob("*") if one.is_file()
    }


OLD = {"a": "old", "d/b": "old", "d/c": "old"}


def ends_at(number: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """The step of that number is not done."""
    count = 0

    def step(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            raise KeyboardInterrupt
        return real(*args)

    return step


def test_all_of_them_are_exchanged(place: Path) -> None:
    exchanging.exchange(str(place), STAGED)
    exchanging.finish(str(place), STAGED)
    assert files(place) == {"a": "new"} and os.listdir(place) == ["a"]


@pytest.mark.parametrize("number", range(1, 5))
def test_what_is_ended_before_is_undone(
    place: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", ends_at(number, os.rename))
        with pytest.raises(KeyboardInterrupt):
            exchanging.exchange(str(place), STAGED)
    exchanging.undo(str(place), STAGED)
    assert files(place) == OLD and sorted(os.listdir(place)) == ["a", "d"]


@pytest.mark.parametrize("number", [1, 2])
def test_what_is_ended_once_it_was_done_stays(
    place: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what was there is removed in part."""
    exchanging.exchange(str(place), STAGED)
    with monkeypatch.context() as patched:
        patched.setattr(exchanging, "remove", ends_at(number, exchanging.remove))
        with pytest.raises(KeyboardInterrupt):
            exchanging.finish(str(place), STAGED)
    exchanging.undo(str(place), STAGED)
    assert files(place) == {"a": "new"} and os.listdir(place) == ["a"]
