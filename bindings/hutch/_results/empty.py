# SPDX-License-Identifier: Apache-2.0
"""`hutch.empty`: arrays that are born in shared memory, so that passing one copies nothing.

numpy is imported at the first call.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from hutch import _core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

_SMALLEST = 64 << 10  # bytes; below it an argument travels in the message itself


def empty(
    shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = float
) -> np.ndarray[Any, Any]:
    """A numpy array of zeros that reaches a sandboxed function without being copied.

    `shape`: an int or a sequence of ints; `dtype`: anything that `numpy.dtype` takes except
    objects. Use it where arguments are hundreds of megabytes: fill it in place, and pass it (or
    all of it in another shape, such as `x.reshape(-1)`). A slice is an ordinary argument, and is
    copied, since a sandbox must see nothing beyond what it was passed.

    The function gets it writable, and what it writes stays with it. The other way there is no
    copy: **while a call runs, it sees what you write to the array**; do not change it before the
    call has returned. After a fork, parent and child share it. Its memory is freed with the last
    array that refers to it, and when the calls that got it have ended.

    Raises TypeError or ValueError where numpy would, TypeError for a dtype that holds objects,
    ImportError without numpy, MemoryError when there is no room.

        import hutch

        @hutch.sandbox(dependencies=["numpy"])
        def total(x) -> float:
            return float(x.sum())

        x = hutch.empty((1000, 1000))
        x[:] = 0.5
        assert total(x) == 500_000
    """
    import numpy as np

    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError("an array in shared memory cannot hold objects")
    try:
        extents: tuple[int, ...] = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        extents = tuple(map(operator.index, shape))  # type: ignore[arg-type]
    if any(extent < 0 for extent in extents):
        raise ValueError("negative dimensions are not allowed")
    size = math.prod(extents) * kind.itemsize
    if size < _SMALLEST:
        return np.zeros(extents, kind)
    if size >= 1 << 62:
        raise MemoryError(f"an array of {size} bytes is larger than shared memory may be")
    try:
        memory = _core.SharedMemory(size)
    except _core.Error as error:
        raise MemoryError(
            f"there is no room for an array of {size} bytes: {error.message}"
        ) from None
    return np.frombuffer(memoryview(memory), np.uint8).view(kind).reshape(extents)


empty.__module__ = "hutch"
