# SPDX-License-Identifier: Apache-2.0
"""What is shown of values that may be of any size."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from hutch._text import brief_repr, escape, escaped_ends, own_repr, shown

numpy = pytest.importorskip("numpy")


@pytest.mark.parametrize("value", [None, 1, "text", [1, {"a": (b"x",)}], {1: 2}, 0.5, {3}])
def test_a_small_value_is_shown_as_its_repr(value: Any) -> None:
    assert shown(value, 1000) == repr(value)


@pytest.mark.parametrize(
    "value",
    ["\0" * 50_000_000, [0] * 5_000_000, [10**5000], 10**5000, {1: [["x" * 9] * 999] * 999}],
    ids=["text", "list", "number in a list", "number", "nested"],
)
def test_a_large_value_is_shown_as_it_begins(value: Any) -> None:
    begun = time.process_time()
    assert 0 < len(shown(value, 1000)) <= 1000
    assert time.process_time() - begun < 0.5


def test_an_array_of_many_short_axes_is_not_spelled_out() -> None:
    begun = time.process_time()
    array = numpy.zeros((2,) * 22, "u1")
    assert own_repr(array) is None and brief_repr([array]) == "[<ndarray>]"
    assert shown(array, 1000) == "<ndarray>"
    assert time.process_time() - begun < 0.5
    # Others are, and those whose repr leaves out what is in the middle.
    for usual in (
        numpy.arange(3),
        numpy.zeros((3, 4, 5)),
        numpy.zeros(10**6),
        numpy.zeros((9,) * 4),
    ):
        assert own_repr(usual) == repr(usual)


@pytest.mark.parametrize("one", ["\x1b", "\x9b", "\u202e", "\udc80", "x", "é", "\t", "\n"])
def test_text_is_escaped_by_what_it_has_and_not_by_a_call_for_each_character(one: str) -> None:
    number = ord(one)
    controls = not one.isprintable() and one not in "\t\n"
    expected = (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}") if controls else one
    calls: list[str] = []
    sys.setprofile(lambda _, event, __: calls.append(event))
    try:
        escaped = escape(one * 1000)
    finally:
        sys.setprofile(None)
    assert escaped == expected * 1000 and len(calls) < 20


def test_the_ends_of_a_text_fit_once_they_are_escaped() -> None:
    assert escaped_ends("a\x1bb", 6) == "a\\x1bb"
    assert escaped_ends("a\x1b\x1bb", 8) == "a\n… (2 more characters left out) …\nb"
    assert escaped_ends("a\x1b\x1bb", 10) == "a\\x1b\\x1bb"
    assert escaped_ends("\r\n" * 3, 6) == "\n\n\n"
