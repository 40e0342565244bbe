# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is in a session, wherever Ctrl-C comes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from hutch import SessionBusy, _session_turn
from hutch._session_cell import SessionCell
from hutch._session_turn import Surely, Turn


def interrupted_at(place: int, work: Callable[[], None]) -> bool:
    """Whether `work` comes so far: it is interrupted at that place of what it runs of the turn. The
    interpreter looks for signals where a function begins, and where one of C has returned.
    """
    left = place

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if frame.f_code.co_filename == _session_turn.__file__ and event in ("call", "c_return"):
            left -= 1
            if left == -1:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_ctrl_c_loses_no_turn_at_any_place() -> None:
    turn = Turn(SessionCell("a", 0))

    def take() -> None:
        with Surely(turn), turn:
            pass

    place = 0
    while interrupted_at(place, take):
        assert not turn.is_taken
        place += 1
    assert place > 8


def test_whoever_waits_has_the_next_turn_wherever_ctrl_c_ends_the_one_before() -> None:
    turn = Turn(SessionCell("a", 0), queue=True)
    had: list[int] = []

    def wait(place: int) -> None:
        with Surely(turn), turn:
            had.append(place)

    def take() -> None:
        with Surely(turn), turn:
            waits.start()
            while not turn._waiting:
                pass

    place, goes_on = 0, True
    while goes_on:
        waits = threading.Thread(target=wait, args=(place,), daemon=True)
        goes_on = interrupted_at(place, take)
        if waits.ident is not None:
            waits.join(60)
            assert had[-1] == place
        assert not turn.is_taken and not turn._waiting
        place += 1
    assert len(had) > 5


def test_one_that_is_refused_leaves_the_turn_to_whoever_has_it() -> None:
    turn = Turn(SessionCell("a", 0), queue=True)
    with Surely(turn), turn:
        with pytest.raises(SessionBusy), Surely(turn), turn:
            pass
        assert turn.is_taken
    assert not turn.is_taken
