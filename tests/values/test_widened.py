"""Elements that Lua does not have, as elements that it has, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pt_helpers import torch_type

from t7bridge import Storage, Tensor
from t7bridge.errors import CorruptError
from t7bridge.graph import ELEMENT_TYPES, Derived, Span, TextSpan
from t7bridge.io import ByteSource
from t7bridge.values import is_exact, narrow, resolved, restore_values, widen, wider_type

FLOAT8 = [name for name in ELEMENT_TYPES if name.startswith("float8")]
OTHERS = [name for name, element in ELEMENT_TYPES.items() if not element.lua]
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def stored(name: str, data: bytes, order: str = "little") -> Storage:
    """A storage on bytes."""
    element = ELEMENT_TYPES[name]
    return Storage(
        element, len(data) // element.itemsize, Span(ByteSource.from_bytes(data), 0, element.itemsize, order)
    )


def content(storage: Storage, order: str = "little") -> bytes:
    """A storage's bytes."""
    return b"".join(storage.chunks(order))


def torch_values(name: str, data: bytes) -> torch.Tensor:
    """Return PyTorch's view of bytes."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(torch_type(name))


@pytest.mark.parametrize("name", FLOAT8)
def test_every_float8(name: str) -> None:
    """All 256 patterns are PyTorch's numbers, and come back as the same patterns."""
    data = bytes(range(256))
    wide, ratio, exact = widen(stored(name, data))

    wanted = torch_values(name, data).to(torch.float32).numpy()
    assert (ratio, exact) == (1, True)
    assert np.array_equal(wide.array, wanted, equal_nan=True)
    numbers = ~np.isnan(wanted)
    assert np.array_equal(wide.array.view("u4")[numbers], wanted.view("u4")[numbers])  # -0 as well
    assert content(narrow(wide, ELEMENT_TYPES[name])) == data


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_every_16_bit_pattern(name: str) -> None:
    """All 65 536 patterns of bfloat16 are PyTorch's numbers and come back, nans with their bits; Lua has float16."""
    data = np.arange(65536, dtype="<u2").tobytes()
    storage = stored(name, data)
    wide, _, exact = widen(storage)

    assert exact
    assert np.array_equal(wide.array, torch_values(name, data).float().numpy(), equal_nan=True)
    assert content(narrow(wide, ELEMENT_TYPES[name])) == data
    assert (wide is storage) == (name == "float16")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["span", "big", "array", "derived"])
def test_there_and_back(subtests: pytest.Subtests, kind: str) -> None:
    """The bytes come back wherever the elements were, in one piece or in several."""
    for name in OTHERS:
        with subtests.test(name=name):
            element = ELEMENT_TYPES[name]
            count = 300_001 if element.itemsize < 8 else 140_001
            random = np.random.default_rng(1)
            data = random.integers(0, 256, count * element.itemsize, "u1")
            if name == "bool":
                data &= 1
            if name == "uint64":
                data[7::8] &= 0x7F
            storage = stored(name, data.tobytes())
            if kind == "big":
                half = max(1, element.itemsize // 2) if name.startswith("complex") else element.itemsize
                swapped = data.reshape(-1, half)[:, ::-1]
                if name == "complex32":  # a reader gives these in little-endian order
                    swapped = data.reshape(-1, half)
                storage = stored(name, swapped.tobytes(), "little" if name == "complex32" else "big")
            elif kind == "array":
                storage = Storage(element, count, storage.array)
            elif kind == "derived":
                storage = Storage(element, count, Derived(storage, lambda array: array))

            wide, ratio, exact = widen(storage)

            assert exact
            assert wide.element is wider_type(element)
            assert wide.count == ratio * count
            assert wide.nbytes == len(content(wide))
            assert content(narrow(wide, element)) == data.tobytes()
            back = Storage(
                wide.element,
                wide.count,
                Span(ByteSource.from_bytes(content(wide, "big")), 0, wide.element.itemsize, "big"),
            )
            assert content(narrow(back, element)) == data.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["complex32", "complex64", "complex128"])
def test_pairs_in_text(name: str, tmp_path: Path) -> None:
    """The parts of complex numbers in a text, read in pieces, are combined again."""
    numbers = torch.arange(400_000.0) % 1000
    text = " ".join(str(int(number)) for number in numbers.tolist()).encode()
    (tmp_path / "x").write_bytes(text)
    wide = wider_type(ELEMENT_TYPES[name])
    with ByteSource.from_path(tmp_path / "x") as source:
        storage = Storage(wide, len(numbers), TextSpan(source, 0, len(text)))
        found = content(narrow(storage, ELEMENT_TYPES[name]))

    pairs = torch.view_as_complex(numbers.reshape(-1, 2)).to(getattr(torch, name))
    assert torch.equal(torch.view_as_real(torch_values(name, found)), torch.view_as_real(pairs))


def test_half_a_pair() -> None:
    """An odd number of parts is damage."""
    storage = Storage(ELEMENT_TYPES["float32"], 3, np.ones(3, "f4"))

    with pytest.raises(CorruptError, match="left over"):
        content(narrow(storage, ELEMENT_TYPES["complex64"]))


def test_complex_is_pairs() -> None:
    """The real part comes first."""
    for name, wide_name in (("complex32", "float16"), ("complex64", "float32"), ("complex128", "float64")):
        data = bytes(torch.tensor([1 - 2j, 0.5j]).to(getattr(torch, name)).untyped_storage().tolist())
        wide, ratio, _ = widen(stored(name, data))
        assert (wide.element.name, ratio) == (wide_name, 2)
        assert wide.array.tolist() == [1, -2, 0, 0.5]


def test_unsigned_integers() -> None:
    """Unsigned numbers keep their value; where one is beyond int64 all are doubles, and no way leads back."""
    assert widen(stored("uint16", b"\xff\xff"))[0].array.tolist() == [65535]
    assert widen(stored("uint32", b"\xff\xff\xff\xff"))[0].array.tolist() == [2**32 - 1]
    fits, _, exact = widen(stored("uint64", (2**63 - 1).to_bytes(8, "little")))
    assert (fits.element.name, fits.array.tolist(), exact) == ("int64", [2**63 - 1], True)
    beyond, _, exact = widen(stored("uint64", b"\1" + bytes(7) + b"\xff" * 8))
    assert (beyond.element.name, beyond.array.tolist(), exact) == ("float64", [1, 2.0**64], False)


@pytest.mark.parametrize("name", ["bfloat16", "uint16", "uint32", "bool", *FLOAT8])
def test_only_numbers_of_the_type_are_narrowed(name: str) -> None:
    """An element comes back exactly, or is refused: whether PyTorch's type has the number decides."""
    random = np.random.default_rng(2)
    dtype = torch_type(name)
    if dtype.is_floating_point:
        changed = (random.standard_normal(60) * np.exp(random.uniform(-12, 5, 60))).astype("f4")
        exact = torch_values(name, bytes(range(0, 256, 2))).float().numpy()
        exact = exact[~np.isnan(exact)]
        changed = np.concatenate((changed, exact, [0.0, -0.0, 1e38, np.inf, -np.inf])).astype("f4")
    else:
        wide = wider_type(ELEMENT_TYPES[name])
        changed = np.array([0, 1, 2, 255, 70001, 65535, -1, -2, 2**31 - 1, 1 << 40]).astype(wide.code)
    answers = set()
    for number in changed:
        one = np.array([number])
        back = torch.from_numpy(one).to(dtype).to(torch.from_numpy(one).dtype).numpy()
        has = back.tobytes() == one.tobytes()
        narrowed = narrow(Storage.from_array(one), ELEMENT_TYPES[name])
        answers.add(has)
        assert is_exact(narrowed) == has, number
        if has:
            assert (
                torch_values(name, content(narrowed)).to(torch.from_numpy(one).dtype).numpy().tobytes() == one.tobytes()
            )
    assert answers == {True, False}


def test_a_nan_that_was_changed_is_refused() -> None:
    """A nan with bits that the narrower type has not is no number of that type."""
    odd = Storage.from_array(np.array([0x7FC12345], "u4").view("f4"))
    assert not any(is_exact(narrow(odd, ELEMENT_TYPES[name])) for name in ["bfloat16", *FLOAT8])


def test_unsigned_64_bits_have_no_sign() -> None:
    """A negative number is not one of uint64, though its bits are."""
    for number in (5, -1):
        storage = Storage.from_array(np.array([number], "i8"))
        assert is_exact(narrow(storage, ELEMENT_TYPES["uint64"])) == (number > 0)


@pytest.mark.parametrize("name", ["complex32", "complex64", "complex128", "float32"])
def test_resolved(name: str) -> None:
    """Conjugation and sign are carried out piece by piece, as PyTorch does it."""
    one = (
        torch.tensor([1 + 2j, -3j, 0.5 + 0j]).to(getattr(torch, name)) if name != "float32" else torch.tensor([1.0, -2])
    )
    storage = stored(name, bytes(one.untyped_storage().tolist()))
    both = torch.complex128 if one.is_complex() else torch.float64

    for conj in (False, True):
        for neg in (False, True):
            wanted = (one.to(both).conj() if conj else one.to(both)) * (-1 if neg else 1)
            found = torch_values(name, content(resolved(storage, conj, neg))).to(both)
            assert torch.equal(found, wanted.resolve_conj())


@pytest.mark.parametrize("recorded", ['{"a": []}', '{"a": {}}', '{"a": 1}', "[1]", "1e999"])
def test_a_record_of_something_else_is_ignored(recorded: str) -> None:
    """The metadata of a file may say anything about a tensor."""
    value = {"a": Tensor.from_numpy(np.zeros(2, "f4"))}
    for key in ("t7bridge.numbers", "t7bridge.elements"):
        assert restore_values(value, {key: recorded}, check=True) == (value, [])
