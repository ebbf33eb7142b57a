"""torchfile's own types for every file, and torchfile as a second reader."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchfile


import t7bridge
from t7bridge import load_as_torchfile
from t7bridge.formats import differences, read_t7

ROOT = Path(__file__).parents[2] / "testfiles"
FILES = [
    path
    for path in sorted(ROOT.glob("*/*.t7"))
    if path.parent.name not in ("bad", "found", "hostile")
    and not path.name.startswith(("stream", "object_custom_write"))
]


def by_name(path: Path) -> str:
    """A test's name for a file."""
    return f"{path.parent.name}/{path.name}"


def normal(value: Any) -> Any:
    """torchfile's values as data that compares: types, shapes, strides and elements."""
    seen: dict[int, int] = {}

    def convert(item: Any, depth: int) -> Any:
        if isinstance(item, np.ndarray):
            return ("array", item.dtype.str, item.shape, item.strides if item.size else (), item.tobytes())
        if isinstance(item, (list, dict, torchfile.TorchObject)):
            if id(item) in seen:
                return ("ref", seen[id(item)])
            seen[id(item)] = len(seen)
        if isinstance(item, torchfile.TorchObject):
            return ("object", item.torch_typename(), convert(item._obj, depth + 1))
        if isinstance(item, dict):
            return ("dict", [(convert(k, depth + 1), convert(v, depth + 1)) for k, v in item.items()])
        if isinstance(item, list):
            return ("list", [convert(v, depth + 1) for v in item])
        return (type(item).__name__, repr(item))

    return convert(value, 0)


# torchfile loses an entry where `true` and 1 are keys, and replaces lists that hold themselves.
LOST = ("table_mixed_keys.t7", "table_list_self.t7", "table_self.t7", "bool.t7")


@pytest.mark.parametrize("name", ["table_deep.t7", "table_deep.ascii.t7"])
def test_a_deep_file(name: str) -> None:
    """A file that is nested deeper than Python's recursion goes loads as torchfile's types."""
    levels, value = 0, load_as_torchfile(ROOT / "format" / name)
    while isinstance(value, list):
        value, levels = value[0], levels + 1
    assert levels == 1000


@pytest.mark.slow
def test_same_as_torchfile() -> None:
    """Every file loads as torchfile's types; torchfile reads most of the binary ones, and finds the same in each."""
    judged = same = 0
    for path in [path for path in FILES if "table_deep" not in path.name]:
        ours = normal(load_as_torchfile(path))
        content = read_t7(path)
        found = differences(path, content.roots[0], content.layout)
        assert not found, path.name
        if found is None:
            continue
        judged += 1
        if path.name in LOST:
            continue
        try:
            theirs = torchfile.load(str(path))
        except ValueError:  # with its list heuristic it compares a list with an array, which numpy refuses
            continue
        assert ours == normal(theirs), path.name
        same += 1
    assert judged > 700
    assert same > 500


def test_judge_notices(tmp_path: Path) -> None:
    """A value that is not the file's is noticed: elements, strings, numbers, classes, sharing."""
    path = ROOT / "format/shared_flat_parameters.t7"
    content = read_t7(path)
    for change in (
        lambda root: root["params"].storage.__setattr__("data", np.zeros(23)),
        lambda root: root["model"].__setattr__("class_name", "nn.Other"),
        lambda root: root["model"].fields.raw_keys.__setitem__(0, b"other"),
        lambda root: root["model"]["modules"].raw_values.__setitem__(2, root["model"]["modules"][1]),
    ):
        content = read_t7(path)
        change(content.roots[0])
        assert differences(path, content.roots[0], content.layout)


def test_negative_strides(tmp_path: Path) -> None:
    """Both readers' elements are compared from the first in memory on, and all of them."""
    path = tmp_path / "x.t7"
    numbers = t7bridge.Tensor.from_numpy(np.arange(6, dtype="f4"))
    backwards = t7bridge.Tensor(numbers.element, numbers.storage, (2, 3), (-3, 1), 3)
    t7bridge.save(backwards, path)
    content = read_t7(path)
    assert differences(path, content.roots[0], content.layout) == []
    other = t7bridge.Tensor.from_numpy(np.array([0, 1, 2, 3, 4, 7], dtype="f4"))
    changed = t7bridge.Tensor(other.element, other.storage, (2, 3), (-3, 1), 3)
    assert differences(path, changed, content.layout)


def test_a_number_and_the_boolean_that_replaces_it(tmp_path: Path) -> None:
    """Keys that are one in Python are no difference, in whatever order they are."""
    path = tmp_path / "x.t7"
    for keys in ([1.0, True], [True, 1.0], [0.0, False], [1.0, 2.0, False]):
        t7bridge.save(t7bridge.Table(keys, [5.0, 6.0, 7.0][: len(keys)]), path, force=True)
        content = read_t7(path)
        assert differences(path, content.roots[0], content.layout) == []


def test_options(tmp_path: Path) -> None:
    """The heuristics are torchfile's, and can be switched off."""
    path = ROOT / "format/table_nested.t7"

    assert load_as_torchfile(path)[b"list"] == [[1], [2, 3], []]
    assert isinstance(load_as_torchfile(path, use_int_heuristic=False)[b"list"], dict)
    raw = load_as_torchfile(path, use_list_heuristic=False)[b"list"]
    assert isinstance(raw, torchfile.hashable_uniq_dict)
    assert raw[2][1] == 2
    assert load_as_torchfile(io.BytesIO(path.read_bytes()), utf8_decode_strings=True)["a"]["b"]["c"]["d"] == 1


def test_sharing() -> None:
    """Tensors with one storage share memory, and the arrays are writeable, as torchfile's are."""
    value = load_as_torchfile(ROOT / "format/shared_evens.big.t7")

    value[b"numbers"][1] = 77
    assert value[b"evens"][0] == 77


def test_public_name() -> None:
    """The function is a public name."""
    assert t7bridge.load_as_torchfile is load_as_torchfile
