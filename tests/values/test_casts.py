"""Floating-point elements in another type are those of PyTorch, bit for bit."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import t7bridge
from t7bridge.conversion.adopt import adopt
from t7bridge.errors import ModelError
from t7bridge.graph import ELEMENT_TYPES, plain_numpy
from t7bridge.graph.storage import Storage, part_of
from t7bridge.values import casts
from t7bridge.values.casts import Casts, is_float

NAMES = ("float16", "bfloat16", "float32")
NUMPY = (torch.float16, torch.float32, torch.float64)
FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of a tensor's elements; 0 for a NaN, whose bits differ between PyTorch's own kernels."""
    integers = tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()]).clone()
    integers[torch.isnan(tensor.float())] = 0
    return integers


def examples(seed: int) -> dict[str, torch.Tensor]:
    """All halves and bfloat16s, and random float32 and float64: bits, sizes, and numbers halfway between two others."""
    random = np.random.default_rng(seed)
    halves = np.arange(1 << 16, dtype="u2").view("f2")
    positive = random.integers(0, 0x7BFF, 20_000).astype("u2")
    between = (positive.view("f2").astype("f8") + (positive + 1).astype("u2").view("f2").astype("f8")) / 2
    middles = random.integers(0, 0x7F7F, 20_000).astype("u4") << 16 | 0x8000
    values = {
        "halves": halves.copy(),
        "bits of float32": random.integers(0, 1 << 32, 50_000, dtype="u4").view("f4"),
        "bits of float64": random.integers(0, 1 << 63, 50_000, dtype="u8").view("f8"),
        "sizes": random.standard_normal(50_000) * 10.0 ** random.integers(-10, 6, 50_000),
        # A float64 just beside such a number is rounded to it first, and then to the even neighbour.
        "between halves": np.concatenate([between, between * (1 + 1e-13), -between * (1 - 1e-13)]),
        "between bfloat16s": np.concatenate([middles, middles + 1, middles - 1]).astype("u4").view("f4"),
        "special": np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65519.9, 65520.0, 3.4e38, 1e-8]),
    }
    tensors = {name: torch.from_numpy(array) for name, array in values.items()}
    tensors["bfloat16"] = torch.from_numpy(np.arange(1 << 16, dtype="u2").view("i2").copy()).view(torch.bfloat16)
    for name in FLOAT8:
        tensors[name] = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
    return tensors


@pytest.mark.parametrize("seed", [4_401, 4_402])
def test_casts_are_those_of_pytorch(seed, subtests):
    """Each element has the bits that `Tensor.to` gives it; NaNs stay NaNs."""
    for name, tensor in examples(seed).items():
        for target in NAMES:
            with subtests.test(f"{name} to {target}"):
                source = tensor.float() if name in FLOAT8 else tensor
                expected = source.to(getattr(torch, target))
                result = Casts(target).tensor(adopt(tensor)).torch()
                assert result.dtype is expected.dtype
                assert torch.equal(torch.isnan(result), torch.isnan(expected))
                assert torch.equal(bits(result), bits(expected))


def test_casts_without_numpy(monkeypatch: pytest.MonkeyPatch):
    """What takes numpy's place in browsers gives the same bytes, except inside NaNs, and counts the same."""
    cases = {name: tensor.numpy()[-500:] for name, tensor in examples(4_403).items() if tensor.dtype in NUMPY}
    expected = {}
    for (name, array), target in product(cases.items(), NAMES):
        infinities: list[int] = []
        result = casts._cast_elements(target, infinities, array)
        # Elsewhere NaNs are compared by what they are, not by their bits.
        expected[name, target] = (result[~np.isnan(array)].tobytes(), infinities)
    monkeypatch.setattr(casts, "np", plain_numpy)
    for (name, target), (data, infinities) in expected.items():
        array = cases[name]
        elements = plain_numpy.ndarray(bytearray(array.tobytes()), plain_numpy.dtype(array.dtype.str), array.shape)
        counted: list[int] = []
        changed = casts._cast_elements(target, counted, elements).tobytes()
        width = len(changed) // len(array)
        result = np.frombuffer(changed, f"u{width}")[~np.isnan(array)]
        assert (result.tobytes(), counted) == (data, infinities), (name, target)


def test_nan_is_quiet_in_bfloat16():
    """Whatever bits a NaN has, those left are not those of infinity."""
    nans = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0x7F80FFFF], "u4").view("f4")
    cast = Casts("bfloat16").tensor(adopt(torch.from_numpy(nans)))
    assert cast.array.tolist() == [0x7FC0] * 4


def test_other_types_stay():
    """Integers, truth values and complex numbers are the same tensors; so is what has the type already."""
    for dtype in (torch.uint8, torch.int64, torch.bool, torch.complex64, torch.float16):
        tensor = adopt(torch.zeros(3, dtype=dtype))
        assert Casts("float16").tensor(tensor) is tensor
    assert not is_float(adopt(torch.zeros(1, dtype=torch.complex64)).element)


def test_views_stay_views():
    """Tensors of one storage share one afterwards, with offsets and strides."""
    whole = torch.arange(24, dtype=torch.float64)
    first, second = adopt([whole.view(4, 6).t(), whole[5:20:3]])
    cast = Casts("float32")
    one, other = cast.tensor(first), cast.tensor(second)
    assert one.storage is other.storage
    assert (one.stride, other.offset, other.stride) == ((1, 6), 5, (3,))
    assert np.array_equal(other.numpy(), whole[5:20:3].float().numpy())
    assert cast.counts == {"float64": 2}


def test_views_of_other_types_stay():
    """A storage is returned itself where neither it nor its base is cast, although these have different types."""
    base = adopt(torch.arange(2, dtype=torch.int32)).storage
    assert base is not None
    parts = Storage(ELEMENT_TYPES["int8"], 8, base.array.view("i1"), base=base)
    assert Casts("float16").storage(parts) is parts


def test_infinities_are_counted_once_read():
    """Finite elements that become infinite count, infinities and NaNs do not."""
    cast = Casts("float16")
    tensor = cast.tensor(adopt(torch.tensor([1.0, 7e4, -1e38, float("inf"), float("nan")])))
    assert cast.infinities == []
    tensor.numpy()
    assert sum(cast.infinities) == 2


def test_parts_are_read_alone():
    """A tensor that is a part of a large storage needs only the elements of that part."""
    storage = Casts("bfloat16").storage(adopt(torch.arange(1000.0)).storage)
    part = part_of(storage, 10, 5)
    assert part.data.origin.count == 5
    assert np.array_equal(part.array, Casts("bfloat16").storage(adopt(torch.arange(10.0, 15.0)).storage).array)


def test_large_elements_go_from_file_to_file(tmp_path: Path):
    """They are converted in pieces: the copy of a storage in a file is an extent of that file."""
    torch.save({"w": torch.zeros(1 << 19)}, tmp_path / "large.pt")
    with t7bridge.open(tmp_path / "large.pt") as document:
        cast = Casts("float16").storage(document.value["w"].storage)
        extent = cast.extent()
        assert extent is not None
        assert (extent.length, extent.nbytes) == (1 << 21, 1 << 20)


def test_an_unknown_type():
    """The error lists the types that there are."""
    with pytest.raises(ModelError, match="float16 or bfloat16 or float32"):
        Casts("int8")
