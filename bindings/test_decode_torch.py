# SPDX-License-Identifier: Apache-2.0
"""torch's tensors as arguments and results: equal with dtype and shape; hostile forms refused."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hutch import _core
from hutch._carry import arguments
from hutch._results import checking

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_decode_arrays import encode, mark, payload, refused, round_trip

try:
    import torch
except ImportError:
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")

DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 "
    "float16 float32 float64 bfloat16 complex64 complex128".split()
)


def same(one: Any, other: Any) -> bool:
    return type(one) is torch.Tensor and one.dtype == other.dtype and torch.equal(one, other)


@needs_torch
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0,), (3, 0, 2), (300, 400)], ids=str)
def test_a_tensor_comes_back_equal_with_its_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(120_000) % 100)[: torch.Size(shape).numel()].reshape(shape)
    tensor = tensor.to(getattr(torch, dtype))
    result = round_trip([tensor])[0]
    assert same(result, tensor) and result.is_contiguous() and not result.requires_grad
    assert result.device.type == "cpu"


def views() -> dict[str, Any]:
    whole = torch.arange(24.0).reshape(2, 3, 4)
    turned = torch.tensor([1 + 2j, 3 - 4j])
    return {
        "transposed": whole.permute(2, 0, 1),
        "slice": whole[:, 1:, ::2],
        "expanded": torch.tensor([1.5]).expand(4, 3),
        "conjugate": turned.conj(),
        "negative": turned.conj().imag,
        "channels last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "not a number": torch.tensor([float("inf"), -0.0]),
    }


@needs_torch
@pytest.mark.parametrize("name", views() if torch else [])
def test_a_view_travels_as_its_values(name: str) -> None:
    tensor = views()[name]
    assert same(round_trip((tensor,))[0], tensor.resolve_conj().resolve_neg())


@needs_torch
def test_a_parameter_and_what_has_a_gradient_arrive_as_tensors_without() -> None:
    held = torch.nn.Linear(3, 2)
    result = round_trip(held.state_dict() | {"weight": held.weight, "twice": held.weight * 2})
    assert same(result["weight"], held.weight.detach()) and same(result["bias"], held.bias.detach())
    assert same(result["twice"], held.weight.detach() * 2)
    assert not any(tensor.requires_grad for tensor in result.values())


@needs_torch
def test_a_large_tensor_refers_to_a_writable_payload_and_copies_a_readonly_one() -> None:
    tensor = torch.arange(100_000)
    whole, body_size = payload([tensor, tensor])
    start = torch.frombuffer(whole, dtype=torch.uint8).data_ptr()
    first, second = _core.decode(whole, body_size, {})
    assert start < first.data_ptr() < start + len(whole) and first.data_ptr() % 16 == 0
    first[0] = 77  # private: its copy and the sender's are not touched
    assert second[0] == 0 and tensor[0] == 0
    frozen = bytes(whole)
    _core.decode(frozen, body_size, {})[0][0] = 5
    assert frozen == bytes(whole[:body_size]) + frozen[body_size:]
    assert _core.decode(frozen, body_size, {})[1][0] == 0


@needs_torch
def test_a_payload_lives_as_long_as_its_tensor() -> None:
    result = _core.decode(*payload(torch.full((100_000,), 7)), {})
    others = [bytearray(1_000_000) for _ in range(8)]
    assert bool((result == 7).all()) and others


def refusals() -> dict[str, Any]:
    class Own(torch.Tensor):
        pass

    return {
        "to_dense": torch.eye(3).to_sparse(),
        "x.to_dense": torch.eye(3).to_sparse_csr(),
        "no values": torch.zeros(3, device="meta"),
        "dequantize": torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.quint8),
        "as_subclass": torch.zeros(3).as_subclass(Own),
        "unbind": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        "torch.float32": torch.zeros(3, dtype=torch.complex32),
        "state_dict": torch.nn.Linear(1, 1),
    }


@needs_torch
@pytest.mark.filterwarnings("ignore")  # quantized and nested ones are not there to stay
def test_what_does_not_travel_says_what_to_do() -> None:
    for hint, value in refusals().items():
        with pytest.raises(encode.Unencodable, match=re.escape(hint)) as caught:
            encode.encode({"m": [value]}, 1 << 20)
        assert caught.value.path == 'result["m"][0]'


@needs_torch
def test_a_tensor_of_another_device_says_what_to_do() -> None:
    class Elsewhere:
        is_nested = False
        device = torch.device("cuda")

    with pytest.raises(encode.Unencodable, match=re.escape("x.cpu()")):
        encode.encode_arrays._tensor(encode.Encoder(1 << 20), Elsewhere())


@needs_torch
def test_a_tensor_that_is_too_large_is_refused_before_it_is_copied() -> None:
    with pytest.raises(encode.TooLarge):
        encode.encode(torch.zeros(1).expand(1 << 40), 1 << 20)


# Seen before torch is asked for, so on any host.
@pytest.mark.parametrize(
    ("dtype", "shape", "raw"),
    [
        ("float32", [2], b"1234567"),
        ("float32", [2], b"123456789"),
        ("complex32", [1], b"1234"),
        ("nn", [1], b"1"),
        ("", [1], b"1"),
        (b"int8", [1], b"1"),
        (None, [1], b"1"),
        ("int8", (1,), b"1"),
        ("int8", None, b"1"),
        ("int8", [1.0], b"1"),
        ("int8", [True], b"1"),
        ("int8", ["1"], b"1"),
        ("int8", [-1, -1], b"1"),
        ("int8", [1] * 65, b"1"),
        ("int8", [1 << 62, 0], b""),
        ("int8", [1 << 31, 2, 0], b""),
        ("int8", [1 << 40], b""),
        ("int8", [1 << 61, 1 << 61, 1 << 61], b"1"),
        ("int8", [1], "1"),
        ("int8", [1], None),
        ("int8", [1], bytearray(b"1")),
        ("int8", [1], [1]),
    ],
)
def test_malformed_tensors_are_refused(dtype: Any, shape: Any, raw: Any) -> None:
    assert "torch is not installed" not in refused(0x55, dtype, shape, raw)


def test_fields_that_miss_or_are_too_many_are_refused() -> None:
    refused(0x55)
    refused(0x55, "int8", [1])
    refused(0x55, "int8", [1], b"1", None)


def test_a_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "install torch" in refused(0x55, "int8", [1], b"1")


@needs_torch
def test_a_bool_of_other_bytes_is_refused() -> None:
    assert "other bytes" in refused(0x55, "bool", [3], b"\0\1\2")


@needs_torch
def test_a_dtype_that_this_torch_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "uint16")
    assert "has no uint16" in refused(0x55, "uint16", [1], b"12")


@needs_torch
def test_many_small_tensors_meet_the_budget() -> None:
    one = mark(0x55, "bool", [], b"\1")
    body = b"\xc1\x01\xdd" + (1 << 20).to_bytes(4, "big") + one * (1 << 20)
    with pytest.raises(_core.DecodeError, match="memory"):
        _core.decode(body, len(body), {})


@needs_torch
def test_torch_is_imported_for_a_tensor_only_and_numpy_is_not_needed() -> None:
    whole, body_size = payload([torch.arange(3), torch.arange(100_000)])
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from hutch import _core\n"
        "assert _core.decode(b'\\xc1\\x01\\xc0', 3, {}) is None and 'torch' not in sys.modules\n"
        f"small, large = _core.decode(bytearray(sys.stdin.buffer.read()), {body_size}, {{}})\n"
        "assert small.tolist() == [0, 1, 2] and int(large.sum()) == 4999950000\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], input=whole, check=True)


@needs_torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_argument_travels_by_its_own_bytes(dtype: str) -> None:
    whole = (torch.arange(1_000_000) % 100).to(getattr(torch, dtype))
    for tensor, beside in ((whole, 1), (whole[5:9].reshape(2, 2), 0), (whole[:0], 0)):
        data, buffers = arguments.pickle_arguments(None, (tensor,), {})
        assert len(buffers) == beside and len(data) < 1000
        (result,), _ = pickle.loads(data, buffers=map(bytearray, buffers))
        assert same(result, tensor)


@needs_torch
def test_an_argument_keeps_what_it_is_beyond_its_values() -> None:
    leaf = torch.rand(3, requires_grad=True)
    named = torch.rand(3)
    named.label = "own"
    layer = torch.nn.Linear(2, 3)
    given = (leaf, named, layer.weight, torch.eye(3).to_sparse(), layer)
    data, buffers = arguments.pickle_arguments(None, given, {})
    (leaf2, named2, weight, sparse, layer2), _ = pickle.loads(data, buffers=buffers)
    assert leaf2.requires_grad and torch.equal(leaf2, leaf) and named2.label == "own"
    assert type(weight) is torch.nn.Parameter and weight.requires_grad
    assert sparse.is_sparse and torch.equal(layer2.weight, weight) and layer2.weight is weight


@needs_torch
@pytest.mark.parametrize("name", views() if torch else [])
def test_a_view_is_an_argument_as_its_values(name: str) -> None:
    tensor = views()[name]
    data, buffers = arguments.pickle_arguments(None, (tensor,), {})
    (result,), _ = pickle.loads(data, buffers=buffers)
    assert same(result, tensor.resolve_conj().resolve_neg())


@needs_torch
def test_annotations_that_name_tensors_are_met_by_them() -> None:
    tensor = torch.zeros(2)
    checking.check(tensor, torch.Tensor)
    checking.check({"a": [tensor]}, dict[str, list[torch.Tensor]])
    checking.check(tensor, torch.nn.Parameter)  # as which it cannot arrive
    for hint in (torch.nn.Linear, torch.Size, torch.dtype):
        with pytest.raises(checking.AnnotationMismatch):
            checking.check(tensor, hint)
    with pytest.raises(checking.AnnotationMismatch):
        checking.check(1, torch.Tensor)
    with pytest.raises(checking.AnnotationMismatch):
        checking.check(1, torch.nn.Parameter)
