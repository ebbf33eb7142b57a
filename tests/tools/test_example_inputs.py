"""Example inputs: shapes, tables in brackets and files become the tree of a model's inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge import Table, Tensor
from t7bridge.conversion import leaves, parse_inputs
from t7bridge.errors import LimitError, ModelError
from t7bridge.nn import Examples


def names(tree: Examples) -> Any:
    """The names in the tree's lists."""
    return [names(each) for each in tree] if isinstance(tree, list) else tree.name


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((1, 3), "input"),
        ("2x3", "input"),
        (["image=2x3"], "image"),
        (["2x3", "mask=2"], ["input1", "mask"]),
        ("[2x3]", ["input1"]),
        ("[2x3, [4x5,hidden=6:int64]]", ["input1", ["input2_1", "hidden"]]),
        (["[2x3,2x4]", "[[5]]"], [["input1_1", "input1_2"], [["input2_1_1"]]]),
    ],
)
def test_trees(given, wanted):
    """One text is a tensor, several or brackets are tables, and each tensor has a name of its own."""
    assert names(parse_inputs(given)) == wanted


def test_shapes_types_and_ranges():
    """Sizes, types and ranges are those that were written."""
    found = list(leaves(parse_inputs("[2x3,[4:int64,5:int64:1..9,6:-2..2]]")))
    assert [(each.shape, each.dtype, each.bounds) for each in found] == [
        ((2, 3), "", None),
        ((4,), "int64", None),
        ((5,), "int64", (1, 9)),
        ((6,), "", (-2, 2)),
    ]
    for text in ("1,3,8,8", "1×3×8×8", "1x3x8x8"):
        assert [each.shape for each in leaves(parse_inputs(text))] == [(1, 3, 8, 8)]


@pytest.mark.parametrize(
    "given",
    [
        *("[2x3", "2x3]", "[2x3]]", "[2x3][4]", "[2x3 4]", "[,2]", "[2,]", "[]", "[[],[]]", "[a]", "[0x2]", "2xx3", ""),
        *("2:int64:9..1", "2:1..", "a=b=2"),
        *("[" * 50 + "2" + "]" * 50, "[2x3,a=1,a=1]", "9" * 5000, "[/etc/passwd]"),
    ],
)
def test_refused(given):
    """A text that is not a shape or a table of shapes is an error that quotes a part of it."""
    with pytest.raises(ModelError) as caught:
        parse_inputs([given])
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("given", [5, [None], [1.5], [object()], b"1x3", [[]], [[[1, 2]]], [b"1x3"]])
def test_neither_texts_nor_sizes(given):
    """A value of another type is an error too."""
    with pytest.raises(ModelError, match="not a shape"):
        parse_inputs(given)


def test_sizes_of_numpy():
    """Sizes that numpy computed are integers, too."""
    sizes = tuple(np.array([1, 3]) * 2)
    assert [each.shape for each in leaves(parse_inputs(sizes))] == [(2, 6)]
    assert [each.shape for each in leaves(parse_inputs([sizes, (1, 4)]))] == [(2, 6), (1, 4)]
    for rows in ([np.array([2, 6])], [np.array([2, 6]), np.array([1, 4])], np.array([[2, 6], [1, 4]])):
        assert [each.shape for each in leaves(parse_inputs(rows))] == [(2, 6), (1, 4)][: len(rows)]


def test_files(tmp_path):
    """A file's tensor is the input, with its type; a table of tensors is a table of inputs."""
    record = t7bridge.load(TESTFILES / "nn" / "MixtureTable.io.t7")
    path = tmp_path / "in.t7"
    t7bridge.save(record["input"], path)
    tree = parse_inputs(str(path))
    assert names(tree) == ["input1", ["input2_1", "input2_2"]]
    first = next(iter(leaves(tree)))
    assert first.value is not None
    np.testing.assert_array_equal(first.value.numpy(), record["input"][1].numpy())


def test_files_of_any_format(tmp_path):
    """A file of any format is an input, with a name of its own too; names of arrays are names of inputs."""
    a, b = np.zeros((2, 3), "f4"), np.ones(4, "i8")
    np.savez(tmp_path / "a.npz", a)
    np.savez(tmp_path / "ab.npz", first=a, second=b)
    t7bridge.save([a, b], tmp_path / "ab.pt")
    assert [each.shape for each in leaves(parse_inputs(str(tmp_path / "a.npz")))] == [(2, 3)]
    assert names(parse_inputs([f"image={tmp_path / 'a.npz'}", "5"])) == ["image", "input2"]
    assert names(parse_inputs(str(tmp_path / "ab.npz"))) == ["first", "second"]
    found = list(leaves(parse_inputs(str(tmp_path / "ab.pt"))))
    assert [(each.shape, each.dtype) for each in found] == [((2, 3), "float32"), ((4,), "int64")]


def test_files_without_tensors(tmp_path):
    """A file that holds something else is refused with its name."""
    path = tmp_path / "in.t7"
    t7bridge.save({"a": 1}, path)
    with pytest.raises(ModelError, match=r"in\.t7: the file holds neither a tensor nor a table of tensors"):
        parse_inputs(str(path))


def test_tables_that_share_tables(tmp_path):
    """A file of 30 tables, each of which holds the next one twice, is not read as 2^30 tensors."""
    table: Any = Tensor.from_numpy(np.zeros((1, 2)))
    for _ in range(30):
        table = Table.from_list([table, table])
    t7bridge.save(table, tmp_path / "in.t7")
    with pytest.raises(LimitError, match=r"in\.t7: reading the tables of an input"):
        parse_inputs(str(tmp_path / "in.t7"))
