"""Comparison of graphs finds every kind of difference, and nothing where there is none."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from t7bridge import LuaFunction, Storage, Table, TdsHash, TdsVec, Tensor, TorchObject
from t7bridge.formats import read_t7
from t7bridge.graph import ELEMENT_TYPES, FLOAT32, Span, TensorExtras
from t7bridge.io import ByteSource
from t7bridge.values import Comparer, ValueComparer, differences

ROOT = Path(__file__).parents[2] / "testfiles/format"


def floats(*numbers: float) -> Tensor:
    """A float tensor."""
    return Tensor.from_numpy(np.array(numbers, "f4"))


FILES = [path for path in sorted(ROOT.glob("*.json")) if path.stem != "object_custom_write"]  # needs its class


@pytest.mark.slow
def test_file_equals_itself(subtests: pytest.Subtests) -> None:
    """A file read twice is the same; in another encoding too."""
    for path in FILES:
        with subtests.test(path.stem):
            value = read_t7(path.with_suffix(".t7")).roots[0]
            for other in sorted(ROOT.glob(f"{path.stem}.*t7")):
                assert differences(value, read_t7(other).roots[0]) == []


@pytest.mark.parametrize(
    ("a", "b", "path"),
    [
        (1.0, 2.0, "root"),
        (0.0, -0.0, "root"),
        (1.0, 1, "root"),
        (True, 1.0, "root"),
        (b"a", "a", "root"),
        (None, False, "root"),
        (Table.of({"a": 1.0}), Table.of({"a": 2.0}), "root.a"),
        (Table.of({"a": 1.0}), Table(), "root.a"),
        (Table(), Table.of({"b": 1.0}), "root.b"),
        (Table([True], [1.0]), Table([1.0], [1.0]), "root[True]"),
        (Table([Table()], [1.0]), Table([Table()], [2.0]), "root[<Table>]"),
        (Table(), {}, "root"),
        (TorchObject("nn.A"), TorchObject("nn.B"), "root"),
        (TorchObject("nn.A", 1), TorchObject("nn.A", 2), "root"),
        (TorchObject("nn.A", payload=1), TorchObject("nn.A", payload=2), "root<payload>"),
        (LuaFunction(b"x"), LuaFunction(b"y"), "root"),
        (LuaFunction(b"x", Table.of({"a": 1.0})), LuaFunction(b"x", Table()), "root<upvalues>.a"),
        (TdsVec([1.0]), TdsVec([2.0]), "root[1]"),
        (TdsVec([1.0]), TdsVec([]), "root"),
        (TdsHash(Table.of({"a": 1.0})), TdsHash(), "root.a"),
        (floats(1, 2), floats(1, 3), "root.storage"),
        (floats(1, 2), floats(1, 2, 3), "root"),
        (floats(1, 2), Tensor.from_numpy(np.array([1, 2])), "root"),
        ([1, 2], [1, 3], "root[1]"),
        ((1,), [1], "root"),
        ({"a": [1]}, {"a": [2]}, "root.a[0]"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_differences(a: object, b: object, path: str) -> None:
    """A difference is found where it is, in both directions."""
    assert path in {found.path for found in differences(a, b)}
    assert path in {found.path for found in differences(b, a)}


def test_nan_equals_nan() -> None:
    """A nan is the same as a nan."""
    assert differences(float("nan"), float("nan")) == []


def test_sharing() -> None:
    """An object that is shared on one side only is a difference; so is shared memory."""
    inner = Table()
    shared, separate = Table.of({"a": inner, "b": inner}), Table.of({"a": Table(), "b": Table()})
    storage = Storage.from_array(np.zeros(2, "f4"))
    views = [Tensor(storage.element, storage, (2,), (1,)) for _ in range(2)]
    copies = [floats(0, 0), floats(0, 0)]

    assert differences(shared, separate)
    assert differences(separate, shared)
    assert differences(views, copies)
    assert differences(copies, views)
    assert differences(views, views) == []


@pytest.mark.slow
def test_cycles_and_depth() -> None:
    """Cycles end, and depth costs no recursion."""

    def chain() -> Table:
        root = Table.of({"end": 1.0})
        for _ in range(50_000):
            root = Table([1.0], [root])
        root["self"] = root
        return root

    a, b = chain(), chain()
    assert differences(a, b) == []


def test_views_of_equal_memory() -> None:
    """Another offset or stride of the same elements is a difference."""
    storage = Storage.from_array(np.zeros(9, "f4"))
    base = Tensor(storage.element, storage, (2,), (1,), 0)

    assert differences(base, Tensor(storage.element, storage, (2,), (2,), 0))
    assert differences(base, Tensor(storage.element, storage, (2,), (1,), 3))


def found(a: object, b: object) -> list[str]:
    """All differences, as printed."""
    return [str(difference) for difference in differences(a, b)]


def test_storages_that_differ() -> None:
    """Storages outside of tensors, and those of equal views, differ by type, count and elements; each reported once."""
    short, long, other, wide = (
        Storage.from_array(np.array(numbers, kind))
        for numbers, kind in (([1, 2], "f4"), ([1, 2, 3], "f4"), ([1, 3], "f4"), ([1, 2], "f8"))
    )
    assert found(short, long) == ["root: number of elements 2 against 3"]
    assert found(short, other) == ["root: 1 of 2 elements differ, by at most 1 at [1]: 2 against 3"]
    assert found(short, wide) == ["root: type 'float32' against 'float64'"]
    views = [Tensor(storage.element, storage, (1,), (1,)) for storage in (short, long)]
    assert found(*views) == ["root.storage: number of elements 2 against 3"]


def test_another_object_of_two() -> None:
    """The third place refers to the first object on one side and to the second on the other."""
    one, two, same, other = [1], [2], [1], [2]
    assert found([one, two, one], [same, other, other]) == ["root[2]: refers to another object"]


@pytest.mark.parametrize("kind", [TdsHash, TdsVec])
def test_versions_of_tds(kind: type) -> None:
    """A container of tds has a class version, which counts as one of an object of nn does."""
    assert found(kind(version=1), kind(version=2))
    assert found(kind(version=2), kind(version=2)) == []


def test_messages_are_short() -> None:
    """Long values are cut; values without a short text are shown by class."""
    (message,) = found("a" * 100, "b" * 100)
    assert message == f"root: '{'a' * 56}… against '{'b' * 56}…"
    assert found("a" * 58, "b")[0] == f"root: '{'a' * 58}' against 'b'"
    (message,) = found(1 << 100_000, 0)
    assert message.startswith("root: 0x1000")
    assert len(message) < 100
    assert found(TdsVec([]), Table()) == ["root: tds.Vec against a table"]
    assert found({}, OrderedDict()) == ["root: a dict against an OrderedDict"]


def test_places_of_two_files(tmp_path: Path) -> None:
    """Elements at the same place of two files are compared; at one place of one file they are one another's."""
    sources = []
    for number, content in enumerate((b"\0\0\x80\x3f" * 2, b"\0\0\0\x40" * 2)):
        (tmp_path / str(number)).write_bytes(content)
        sources.append(ByteSource.open(tmp_path / str(number))[0])

    def storage(source: ByteSource, offset: int = 0) -> Storage:
        return Storage(FLOAT32, 1, Span(source, offset, 4))

    one, two = sources
    message = "root: its element differs, by at most 1 at [0]: 1 against 2"
    assert [str(each) for each in Comparer().run(storage(one), storage(two))] == [message]
    assert Comparer().run(storage(one), storage(one)) == []
    assert Comparer().run(storage(one), storage(one, 4)) == []
    for source in sources:
        source.close()


@pytest.mark.parametrize("name", ["quint4x2", "quint2x4"])
def test_bytes_behind_packed_elements_are_not_compared(name):
    """Elements of less than a byte are compared by the bytes that hold them, whatever the storages have behind them."""
    element = ELEMENT_TYPES[name]
    count = 3 * (2 if name == "quint4x2" else 4)
    short, long, other = (
        Tensor(element, Storage(element, len(data), np.frombuffer(data, "u1")), (count,), (1,))
        for data in (b"\1\2\3", b"\1\2\3\4\5", b"\1\7\3")
    )
    assert not ValueComparer().run(short, long)
    assert not ValueComparer().run(long, short)
    assert len(ValueComparer().run(long, other)) == 1


def test_a_repeated_element_that_is_conjugated():
    storage = Storage.from_array(np.array([1 + 2j], "c8"))
    plain = Tensor(storage.element, storage, (10,), (0,))
    assert len(ValueComparer().run(plain, evolve(plain, extras=TensorExtras(conj=True)))) == 1


def test_infinite_tolerance_takes_finite_differences() -> None:
    """Of numbers as of tensors; an infinite difference exceeds it."""
    tolerant = {"atol": float("inf")}
    assert not ValueComparer(**tolerant).run(Table.of({"x": 1.0, "y": floats(1)}), Table.of({"x": 2.0, "y": floats(2)}))
    infinite = Table.of({"x": float("inf"), "y": floats(float("inf"))})
    assert len(ValueComparer(**tolerant).run(Table.of({"x": 1.0, "y": floats(1)}), infinite)) == 2
