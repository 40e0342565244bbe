# SPDX-License-Identifier: Apache-2.0
"""Builder for tensors of torch (see build.py, whose rules hold here).

As arrays do, a tensor refers to the payload where that is writable and private to the result.
"""

from __future__ import annotations

from typing import Any

from hutch._results.build_arrays import MOST_EMPTY, items_of, writable
from hutch._results.fields import need, want

_SIZES = {"bool": 1, "bfloat16": 2, "complex64": 8, "complex128": 16}
_SIZES |= {f"{u}int{8 * n}": n for u in ("", "u") for n in (1, 2, 4, 8)}
_SIZES |= {f"float{8 * n}": n for n in (2, 4, 8)}


def tensor(dtype: Any, shape: Any, raw: Any) -> Any:
    size = _SIZES.get(want(dtype, str))
    if size is None:
        raise ValueError(f"{dtype[:80]!r} is not a dtype of a tensor that can be returned")
    items, slots = items_of(shape, 64)
    if items * size != len(want(raw, bytes, memoryview)):
        raise ValueError("a tensor's bytes do not fit its shape")
    if items == 0 and slots > MOST_EMPTY:
        raise ValueError("a tensor without items has too large an extent")
    torch = need("torch", "a tensor")
    kind = getattr(torch, dtype, None)
    if type(kind) is not torch.dtype:
        raise ValueError(f"the torch that is installed here has no {dtype}: install a newer one")
    if items == 0:
        return torch.empty(shape, dtype=kind, device="cpu")
    raw = writable(raw)
    if dtype == "bool" and int(torch.frombuffer(raw, dtype=torch.uint8).max()) > 1:
        raise ValueError("a bool tensor holds other bytes than 0 and 1")
    return torch.frombuffer(raw, dtype=kind).reshape(shape)
