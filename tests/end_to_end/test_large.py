# SPDX-License-Identifier: Apache-2.0
"""Large arguments and results: the values, whose memory they are, and that none of it piles up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import sandbox

np: Any = pytest.importorskip("numpy")

MIB = 1 << 20


@sandbox(dependencies=["numpy"])
def sums(*arrays: Any) -> list[float]:
    return [float(array.sum()) for array in arrays]


@sandbox(dependencies=["numpy"])
def doubled(array: Any) -> Any:
    array *= 2
    return array


@sandbox
def echo(data: Any) -> Any:
    return data


@pytest.mark.parametrize("size", [65_535, 65_536, 1_000_001, 20 * MIB + 3])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_come_and_go_unchanged(kind: Any, size: int) -> None:
    data = kind(os.urandom(size))
    back = echo(data)
    assert type(back) is kind and back == data


@sandbox
def looked_at(first: bytes, second: bytes) -> list[Any]:
    import copy
    import ctypes
    import pickle

    told: list[Any] = []
    for data in (first, second, copy.copy(first), copy.deepcopy(second)):
        assert type(data) is bytes and pickle.loads(pickle.dumps(data)) == data
        assert {data: 1}[bytes(bytearray(data))] == 1 and data in (first, second)
        assert (data + b"more")[-5:-3] == data[-1:] + b"m"
        ends_in_zero = ctypes.c_char_p(data).value == data
        told.append([ends_in_zero, len(data), data.count(b"a"), data[::-1][0]])
    del first, second, data
    return told


@pytest.mark.parametrize("size", [65_536, 65_537, 69_631, 1_000_000])
def test_a_large_bytes_is_one_like_any_other(size: int) -> None:
    first, second = b"a" * size, b"ab" * size
    expected = [[True, size, size, ord("a")], [True, 2 * size, size, ord("b")]]
    assert looked_at(first, second) == expected * 2


def test_arguments_of_every_size_follow_each_other() -> None:
    for size in (100_000, 5 * MIB, 90_000, 4 * MIB, 4 * MIB + 1, 64 * 1024, 5 * MIB):
        data = bytes([size % 251]) * size
        assert echo(data) == data


def test_arrays_are_writable_and_private_both_ways() -> None:
    array = np.arange(500_000, dtype=np.float64)
    back = doubled(array)
    assert back[-1] == 999_998 and array[-1] == 499_999
    back += 1
    assert back[0] == 1


def test_an_empty_array_is_the_functions_own_too() -> None:
    array = hutch.empty((500, 1000))
    assert not array.any() and array.dtype == float and array.flags.writeable
    array[:] = 1.5
    assert doubled(array)[0, 0] == 3
    assert array[0, 0] == 1.5
    array[:] = 2  # filled again, and lent again
    assert sums(array, array, array.reshape(-1), array[:250], array.T) == [
        1e6,
        1e6,
        1e6,
        5e5,
        1e6,
    ]


def test_more_empty_arrays_than_a_frame_has_descriptors() -> None:
    arrays = [hutch.empty(10_000) for _ in range(20)]
    for i, array in enumerate(arrays):
        array[:] = i
    assert sums(*arrays) == [i * 10_000.0 for i in range(20)]


def test_empty_takes_what_numpy_takes() -> None:
    assert hutch.empty(10).shape == (10,)
    assert hutch.empty((0, 5)).shape == (0, 5)
    assert hutch.empty((100, 1000), "U3").dtype == np.dtype("U3")
    assert hutch.empty([300, 300], np.int32).shape == (300, 300)
    with pytest.raises(ValueError, match="negative"):
        hutch.empty(-1)
    with pytest.raises(TypeError):
        hutch.empty(10, object)
    with pytest.raises(TypeError):
        hutch.empty(1.5)  # type: ignore[arg-type]
    with pytest.raises(MemoryError):
        hutch.empty(1 << 61)


def test_empty_gives_its_memory_back() -> None:
    array = hutch.empty(MIB)
    view = array[10:]
    (name,) = (line for line in _maps() if _covers(line, array.ctypes.data))
    del array
    assert name in _maps()
    del view
    assert name not in _maps()


def _maps() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "hutch" in line]


def _covers(line: str, address: int) -> bool:
    first, end = (int(part, 16) for part in line.split()[0].split("-"))
    return first <= address < end


@sandbox(dependencies=["numpy"], memory_mb=300)
def handle(array: Any, copies: int, change: bool, seconds: float = 0.2) -> float:
    import time

    if change:
        array += 1
    kept = [array.copy() for _ in range(copies)]
    time.sleep(seconds)  # the memory is looked at every 20 ms, by who may be kept waiting
    return float(array.sum() + len(kept))


def test_lent_memory_counts_where_it_is_written_to() -> None:
    array = np.ones(200 * MIB // 8)
    assert handle.run(array, 0, False).ok
    assert handle.run(array, 1, False).ok, "200 of 300 MiB, and 200 that were lent"
    assert handle.run(array, 0, True).ok, "200 of 300 MiB, of the cell's own"
    both = handle.run(array, 1, True, 20)
    assert both.limit == "memory", both


def test_an_argument_larger_than_the_memory_limit_twice_over_hits_it() -> None:
    outcome = handle.run(np.ones(700 * MIB // 8), 0, False)
    assert outcome.limit == "memory"
    small = echo.options(memory_mb=64)
    assert small.run(bytes(200 * MIB)).limit == "memory"
    assert small.run(b"small").ok


def used() -> tuple[int, int]:
    """Descriptors, and KiB of memory, shared memory in it."""
    text = Path("/proc/self/smaps_rollup").read_text()
    kib = int(text.split("\nPss:")[1].split()[0])
    return len(os.listdir("/proc/self/fd")), kib


def test_a_loop_of_large_calls_does_not_grow() -> None:
    array = np.ones(12_500_000)
    for _ in range(3):
        sums(array)
    descriptors, kib = used()
    for _ in range(30):
        assert sums(array) == [12_500_000.0]

    def is_as_before() -> bool:
        """But for a few segments, and cells leased ahead: there is not one for each call."""
        assert sums(np.ones(3)) == [3.0]  # a call hears which cells are gone
        after = used()
        return after[0] <= descriptors + 20 and after[1] <= kib + 2 * 110_000

    until(is_as_before, "what was lent to calls that are over is never given back")
