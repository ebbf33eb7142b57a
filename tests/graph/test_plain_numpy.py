"""What takes numpy's place where there is none gives the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ROOT

from t7bridge.graph import plain_numpy as plain

CODES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
REAL = CODES[:-2]


def pair(array: np.ndarray) -> tuple[np.ndarray, plain.ndarray]:
    """An array, and the same one without numpy."""
    kind = plain.dtype(array.dtype.str)
    return array, plain.ndarray(bytearray(array.tobytes()), kind, array.shape)


def numbers(code: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random elements, with what is special of floats."""
    generator = np.random.default_rng(seed)
    if code == "?":
        return generator.integers(0, 2, shape).astype("?")
    if code[0] in "iu":
        bounds = np.iinfo(code)
        return generator.integers(bounds.min, bounds.max, shape, dtype=code, endpoint=True)
    with np.errstate(all="ignore"):
        array = (generator.standard_normal(shape) * 10.0 ** generator.integers(-6, 6, shape)).astype(code)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan]
    flat = array.reshape(-1)
    flat[: len(special)] = special[: flat.size]
    return array


def same(ours: Any, theirs: Any) -> None:
    """Assert that types, shapes and bytes are the same; NaNs of arithmetic may have any sign."""
    theirs = np.asarray(theirs)
    ours = plain.asarray(ours)
    assert ours.dtype.str == theirs.dtype.str
    assert ours.shape == theirs.shape
    own = np.frombuffer(ours.tobytes(), theirs.dtype).reshape(theirs.shape)
    equal = (own == theirs) | ((own != own) & (theirs != theirs))
    assert equal.all(), (own[~equal], theirs[~equal])


def test_types_convert_as_numpy_has_it(subtests: pytest.Subtests) -> None:
    """Each type to each other one: integers wrap, floats are rounded to even, bytes change their order."""
    for source, target in product(CODES, CODES):
        with subtests.test(f"{source} to {target}"), np.errstate(all="ignore"):
            theirs, ours = pair(numbers(source, (40,)))
            if source[0] in "fc" and target[0] in "iu":  # beyond the type, the machine decides
                theirs, ours = pair(np.arange(-100, 100, 7).astype(source) / 2)
                theirs, ours = (theirs, ours) if target[0] == "i" else pair(np.arange(0, 100, 7).astype(source) / 2)
            if source[0] == "c" and target[0] != "c":
                theirs = theirs.real
                theirs, ours = pair(theirs)
            same(ours.astype(target), theirs.astype(target))
            same(ours.astype(f">{target}" if target != "?" else target), theirs.astype(f">{target}"))
    large = np.array([2**24 + 1, 2**53 + 1, 2**60 + 2**35 + 1, -(2**62) - 2**37, 2**63 - 1], "i8")
    theirs, ours = pair(large)
    same(ours.astype("f4"), theirs.astype("f4"))
    same(ours.astype("f8"), theirs.astype("f8"))
    halves, ours = pair(np.arange(1 << 16, dtype="u2").view("f2"))
    assert ours.astype("f4").tobytes() == halves.astype("f4").tobytes() or np.isnan(halves).any()
    same(ours.astype("f4"), halves.astype("f4"))


def test_arithmetic_is_that_of_numpy(subtests: pytest.Subtests) -> None:
    """Types of results, rounding, wrapping, and division by zero."""
    operations = {
        "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
        "==": lambda a, b: a == b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b,
    }  # fmt: skip
    for one, other in product(REAL[1:], REAL[1:]):
        with np.errstate(all="ignore"):
            a, own_a = pair(numbers(one, (5, 4), 1))
            b, own_b = pair(numbers(other, (4,), 2))
            for sign, operation in operations.items():
                with subtests.test(f"{one} {sign} {other}"):
                    same(operation(own_a, own_b), operation(a, b))
            with subtests.test(f"{one} and {other}"):
                same(plain.maximum(own_a, own_b), np.maximum(a, b))
                same(plain.where(own_b < own_b + own_b, own_a, own_b), np.where(b < b + b, a, b))
                assert plain.result_type(own_a, own_b).str == np.result_type(a, b).str
                assert plain.can_cast(one, other) == np.can_cast(one, other)
            if one[0] == "f":
                same(own_a / own_b, a / b)
                same(own_a * 2.5, a * a.dtype.type(2.5))
                same(own_a**2, a**2)
                same(plain.sqrt(own_a), np.sqrt(a))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 3, 0), (2, 0, 3)])
def test_sums_without_elements(shape: tuple[int, ...]) -> None:
    """Each sum of no elements is 0, whatever the shape."""
    theirs, ours = pair(np.zeros(shape, "f4"))
    same(ours.sum(-1), theirs.sum(-1))
    same(ours.sum(-1, keepdims=True), theirs.sum(-1, keepdims=True))


@pytest.mark.parametrize("code", ["f4", "f8", "i4", "u1", "?"])
def test_sums_are_rounded_as_numpy_rounds(code: str) -> None:
    """All elements, or the last axis, of few and many."""
    for count in (0, 1, 7, 8, 9, 127, 128, 129, 136, 300, 1000):
        array = numbers(code, (3, count), count)
        array = np.where(np.isfinite(array), array, 1).astype(code)
        theirs, ours = pair(array)
        same(ours.sum(1), theirs.sum(1))
        same(ours.sum(1, keepdims=True), theirs.sum(1, keepdims=True))
        same(ours.sum(), theirs.reshape(-1).sum())
        if count and code[0] == "f":
            same(ours.mean(), theirs.reshape(-1).mean())
            same(ours.var(), theirs.reshape(-1).var())


@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, -2.0, -3.0, 309.0, 310.0, -309.0, 1.5, -1.5])
def test_powers_beyond_the_type_have_their_signs(exponent: float) -> None:
    """Odd powers of negative numbers are negative, of the negative zero too; others are not real, or positive."""
    theirs, ours = pair(np.array([0.0, -0.0, 1.0, -1.0, 10.0, -10.0, 1e300, -1e300, np.inf, -np.inf, np.nan]))
    with np.errstate(all="ignore"):
        same(ours**exponent, theirs**exponent)


def test_views_share_their_memory() -> None:
    """Slices, masks, numbers, strides, other types and shapes; writing to a view writes to the array."""
    theirs, ours = pair(numbers("f4", (4, 5, 6), 3))
    for index in (
        2,
        -1,
        (1, 2),
        (slice(1, 3), ..., 0),
        (None, 2),
        (slice(None, None, -2), 1),
        ...,
        (3, slice(5, 1, -1)),
    ):
        same(ours[index], theirs[index])

    same(ours.reshape(-1)[ours.reshape(-1) > 0], theirs.reshape(-1)[theirs.reshape(-1) > 0])
    same(ours.T.reshape(6, 20), theirs.T.reshape(6, 20))
    same(ours.reshape(20, 6, order="F"), theirs.reshape(20, 6, order="F"))
    same(ours.view("u2"), theirs.view("u2"))
    same(ours.byteswap(), theirs.byteswap())
    same(plain.moveaxis(ours, 0, 2), np.moveaxis(theirs, 0, 2))
    same(plain.concatenate([ours, ours]), np.concatenate([theirs, theirs]))
    same(plain.stack((ours[0], ours[1]), -1), np.stack((theirs[0], theirs[1]), -1))
    strided = np.lib.stride_tricks.as_strided
    same(plain.as_strided(ours, (3, 2), (24, 8)), strided(theirs, (3, 2), (24, 8)))
    for array in (ours, theirs):
        array[1, ::2] = 7
        array[2][array[2] > 0] = -1
        array[3, 1:3, ...] = array[0, 1:3]
    same(ours, theirs)
    assert ours.tolist() == theirs.tolist() or np.isnan(theirs).any()
    with pytest.raises(ValueError, match="read-only"):
        plain.frombuffer(b"abcd", "u1")[0] = 1


def test_what_numpy_refuses() -> None:
    """A dimension that is not there has numpy's error; an integer beyond int64 is a uint64."""
    theirs, ours = pair(numbers("f4", (2, 3)))
    for source, target in ((0, 999), (-3, 0), (2, 1)):
        with pytest.raises(ValueError, match="out of bounds") as wanted:
            np.moveaxis(theirs, source, target)
        with pytest.raises(ValueError, match="out of bounds") as error:
            plain.moveaxis(ours, source, target)
        assert str(error.value) == str(wanted.value)
        assert isinstance(error.value, IndexError)
    theirs, ours = pair(np.array([0, 2**63 - 1, 2**63, 2**64 - 1], "u8"))
    for number in (2**63 - 1, 2**63, 2**64 - 1):
        same(plain.asarray(number), np.asarray(number))
        same(ours >= number, theirs >= number)
        same(ours == number, theirs == number)


def test_numbers_of_several_kinds() -> None:
    """A list becomes an array of the type that has all its numbers."""
    for values in ([True, False], [True, 2], [1, 2.5], [1j, 2.5], [1, 2j, True]):
        same(plain.asarray(values), np.asarray(values))


VERBS = """
import contextlib, hashlib, io, json, sys
from pathlib import Path

def blocked(name):
    return name.partition(".")[0] in {names!r}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if blocked(name):
            raise ImportError(name)

sys.meta_path.insert(0, Blocker())
from t7bridge import cli

FOLDER = Path({folder!r})
results = {{}}

def verb(*arguments):
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = cli.main(list(map(str, arguments)))
        except SystemExit as error:
            code = error.code
    written = []
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file():
            written.append(hashlib.sha256(path.read_bytes()).hexdigest())
            path.unlink()
    text = output.getvalue().replace(str(FOLDER), "")
    results[" ".join(map(str, arguments)).replace(str(FOLDER), "")] = [code, text, written]

for file in map(Path, {files!r}):
    verb("inspect", file)
    verb("scan", file)
    verb("draw", file, "-o", FOLDER / "o.html")
    verb("module", file, "-o", FOLDER / "m")
    for suffix in (".pt", ".t7", ".npz", ".safetensors"):
        verb("convert", file, FOLDER / f"o{{suffix}}")
    verb("convert", file, FOLDER / "o.t7", "--encoding", "ascii")
    verb("diff", file, Path({files!r}[0]))
assert ("numpy" in sys.modules) == (not blocked("numpy"))
json.dump(results, open({target!r}, "w"))
"""


def compare_verbs(files: list[Path], folder: Path) -> int:
    """Run the verbs of the page with numpy and without; return how many results were the same, which all are."""
    results = []
    for number, names in enumerate(
        (["torch", "isal", "h5py", "ml_dtypes"], ["numpy", "torch", "isal", "h5py", "ml_dtypes"])
    ):
        work = folder / f"work{number}"
        work.mkdir()
        target = folder / f"{number}.json"
        program = folder / f"{number}.py"
        program.write_text(VERBS.format(names=names, folder=str(work), files=list(map(str, files)), target=str(target)))
        subprocess.run([sys.executable, program], cwd=ROOT, check=True)
        results.append(json.loads(target.read_text()))
    with_numpy, without = results
    for key, result in with_numpy.items():
        assert without[key] == result, key
    return len(with_numpy)


def corpus() -> list[Path]:
    """All files of the corpus that a verb may take."""
    suffixes = {".t7", ".pt", ".pth", ".npz", ".npy", ".safetensors", ".pt2"}
    return [path for path in sorted((ROOT / "testfiles").rglob("*")) if path.suffix in suffixes]


@pytest.mark.slow
def test_verbs_give_the_same_bytes(tmp_path: Path) -> None:
    """A part of the corpus; all of it is a long test."""
    assert compare_verbs(corpus()[5::97], tmp_path) > 100


@pytest.mark.fuzz
def test_verbs_give_the_same_bytes_for_all_files(tmp_path: Path) -> None:
    """Each file of the corpus through each verb of the page."""
    assert compare_verbs(corpus(), tmp_path) > 10_000
