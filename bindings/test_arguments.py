# SPDX-License-Identifier: Apache-2.0
"""Arguments as bytes, and what cannot be: refused by name, before anything is sent."""

from __future__ import annotations

import marshal
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch._carry.arguments import OUT_OF_BAND, pickle_arguments, pickle_chunk


def target(first: Any, second: Any = None, *, third: Any = None) -> None: ...


def back(args: tuple[Any, ...], **kwargs: Any) -> tuple[Any, Any, int]:
    data, buffers = pickle_arguments(target, args, kwargs)
    if data[:1] != b"\x80":  # no pickle
        return marshal.loads(data), {}, len(buffers)
    got = pickle.loads(data, buffers=[bytearray(memoryview(b)) for b in buffers])
    return got[0], got[1], len(buffers)


def test_plain_values_arrive_equal() -> None:
    args = (1, "x", [1.5, {"a": {2}}], None, b"y")
    assert back(args, third=(3,)) == (args, {"third": (3,)}, 0)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_large_bytes_go_out_of_band_and_arrive_as_they_were(kind: type) -> None:
    value = kind(b"ab" * OUT_OF_BAND)
    (got,), _, buffers = back((value,))
    assert got == value and type(got) is kind and buffers == 1


def test_small_bytes_stay_in() -> None:
    assert back((b"x" * (OUT_OF_BAND - 1),))[2] == 0


def test_arrays_from_64_kib_on_go_out_of_band() -> None:
    numpy = pytest.importorskip("numpy")
    small, large = numpy.arange(10), numpy.arange(OUT_OF_BAND)
    (one, two), _, buffers = back((small, [large]))
    assert (one == small).all() and (two[0] == large).all() and buffers == 1
    two[0][0] = 5
    assert large[0] == 0, "private"


def test_an_array_that_is_not_contiguous_arrives_equal() -> None:
    numpy = pytest.importorskip("numpy")
    strided = numpy.arange(4 * OUT_OF_BAND).reshape(2, -1)[:, ::2]
    (got,), _, _ = back((strided,))
    assert (got == strided).all()


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ((threading.Lock(),), {}, "first"),
        ((1, threading.Lock()), {}, "second"),
        ((1,), {"third": [threading.Lock()]}, "third"),
        ((1, 2, threading.Lock()), {}, "argument 3"),
        ((iter([]) and (x for x in []),), {}, "first"),
    ],
)
def test_an_argument_that_cannot_be_pickled_is_named(
    args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> None:
    with pytest.raises(hutch.SerializationError, match=f"argument '{name}'") as caught:
        pickle_arguments(target, args, kwargs)
    assert isinstance(caught.value, TypeError) and caught.value.path == name


def test_an_open_file_is_refused_rather_than_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("secret")
    for mode in ("r", "rb", "w"):
        with (
            open(path, mode) as file,
            pytest.raises(hutch.SerializationError, match="argument 'first'"),
        ):
            pickle_arguments(target, (file,), {})


class Refuses:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("in reduce")


def test_what_an_arguments_own_reduce_raises_is_reported() -> None:
    with pytest.raises(hutch.SerializationError, match="in reduce"):
        pickle_arguments(target, (Refuses(),), {})


def test_a_list_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(hutch.SerializationError):
        pickle_arguments(target, (deep,), {})


def test_a_list_that_holds_itself_arrives_so() -> None:
    loop: list[Any] = []
    loop.append(loop)
    (got,), _, _ = back((loop,))
    assert got[0] is got


def test_a_chunk_names_the_argument_too() -> None:
    with pytest.raises(hutch.SerializationError, match="argument 'first'"):
        pickle_chunk(target, [(1,), (threading.Lock(),)])
    data, _ = pickle_chunk(target, [(1,), (2,)])
    assert marshal.loads(data) == [(1,), (2,)]
    data, _ = pickle_chunk(target, [(1,), ([2],)])
    assert pickle.loads(data) == [((1,), {}), (([2],), {})]
