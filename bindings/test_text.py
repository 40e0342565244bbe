# SPDX-License-Identifier: Apache-2.0
"""What is shown of values that may be of any size."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hutch._text import brief_repr, own_repr, shown

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
