"""Differences of two files, compared with PyTorch's computation."""

import json
import math
import shutil
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT
from looping import new_folder

import t7bridge
from t7bridge import Tensor
from t7bridge.cli import main
from t7bridge.nn.places import module_at
from t7bridge.tools import DiffReport
from t7bridge.values import Difference, TensorDifference

FILES = ROOT / "testfiles"
DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.complex128),
]


def save(path: Path, value: object) -> Path:
    """A `.pt` as PyTorch writes it."""
    torch.save(value, path)
    return path


def only(found: DiffReport) -> Difference:
    """The one difference there is."""
    (difference,) = found.differences
    return difference


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_are_those_of_pytorch(dtype: torch.dtype, tmp_path: Path) -> None:
    """The number of differing elements of each type, by how much and where."""
    rng = torch.Generator().manual_seed(3)
    a = (torch.rand(7, 11, 13, generator=rng) * 100).to(dtype)
    b = torch.where(torch.rand(a.shape, generator=rng) < 0.2, (torch.rand(a.shape, generator=rng) * 100).to(dtype), a)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    apart = (a.to(wide) - b.to(wide)).abs()

    found = only(t7bridge.diff(save(tmp_path / "a.pt", {"w": a}), save(tmp_path / "b.pt", {"w": b})))

    assert isinstance(found, TensorDifference)
    assert found.path == "root.w"
    assert (found.elements, found.differing) == (1001, int((apart > 0).sum()))
    assert found.largest == apart.max().item()
    assert apart[found.index] == apart.max()


def test_names_in_groups_with_dots_and_slashes_are_told_apart(tmp_path: Path) -> None:
    """`x.y` is not `y` in a group `x`, nor `c` in a group `a/b` what `b/c` is in a group `a`: all four are compared."""
    for name, differing in (("a", 3), ("b", 5)):
        one, two, three, four = (torch.tensor([number]) for number in (1, 2, differing, 4))
        values = {"x.y": one, "x": {"y": two}, "a/b": {"c": three}, "a": {"b/c": four}}
        t7bridge.convert(save(tmp_path / f"{name}.pt", values), tmp_path / f"{name}.h5")

    found = t7bridge.diff(tmp_path / "a.h5", tmp_path / "b.h5")

    assert found.tensors == 4
    assert isinstance(only(found), TensorDifference)


def test_tolerances_are_those_of_pytorch(tmp_path: Path) -> None:
    """`rtol` and `atol` mean what `torch.isclose` means by them."""
    rng = torch.Generator().manual_seed(4)
    a = torch.randn(40_000, generator=rng, dtype=torch.float64)
    a[:4] = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    b = a * (1 + torch.randn(a.shape, generator=rng) * 1e-3)
    b[3] = math.nan
    close = torch.isclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)

    first, second = save(tmp_path / "a.pt", a), save(tmp_path / "b.pt", b)
    found = only(t7bridge.diff(first, second, rtol=1e-3, atol=1e-4))

    assert isinstance(found, TensorDifference)
    assert found.differing == int((~close).sum()) > 1000
    assert (found.largest, found.index) == (math.inf, (3,))
    assert "most at [3]: 1 against nan" in found.message


@pytest.mark.parametrize(
    ("a", "b", "far"),
    [
        (torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]), 2.0**64),
        (torch.tensor([2**53]), torch.tensor([2**53 + 1]), 1.0),
        (torch.tensor([2**64 - 1], dtype=torch.uint64), torch.tensor([0], dtype=torch.uint64), 2.0**64),
        (torch.tensor([True, False]), torch.tensor([False, False]), 1.0),
    ],
    ids=["int64 ends", "beyond doubles", "uint64", "bool"],
)
def test_integers_are_subtracted_exactly(a: torch.Tensor, b: torch.Tensor, far: float, tmp_path: Path) -> None:
    """However large they are."""
    found = only(t7bridge.diff(save(tmp_path / "a.pt", a), save(tmp_path / "b.pt", b)))
    assert isinstance(found, TensorDifference)
    assert (found.differing, found.largest, found.index) == (1, far, (0,))


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:.*[Qq]uantiz")
def test_types_that_numpy_lacks(tmp_path: Path) -> None:
    """Complex numbers of two halves are numbers; of quantized tensors the integers are compared."""
    for make, far in (
        (lambda sign: torch.tensor([1 + sign * 2j], dtype=torch.complex32), 4.0),
        (lambda sign: torch.quantize_per_tensor(torch.tensor([float(sign)]), 0.5, 8, torch.quint8), 4.0),
    ):
        first, second = save(tmp_path / "a.pt", make(1)), save(tmp_path / "b.pt", make(-1))
        found = only(t7bridge.diff(first, second))
        assert isinstance(found, TensorDifference)
        assert found.largest == far
        assert t7bridge.diff(first, first).same


def test_storage_does_not_count(tmp_path: Path) -> None:
    """Strides, offsets and sharing are `verify`'s business; a view of the same values is not a difference here."""
    base = torch.arange(24.0).reshape(4, 6)
    first = save(tmp_path / "a.pt", {"t": base.t(), "tied": [base, base], "wide": torch.ones(1).expand(9, 9)})
    second = save(
        tmp_path / "b.pt",
        {"t": base.t().contiguous(), "tied": [base.clone(), base.clone()], "wide": torch.ones(9, 9)},
    )

    assert t7bridge.diff(first, second).same
    assert not t7bridge.verify(first, second).same


def test_a_shared_tensor_is_named_at_each_place(tmp_path: Path) -> None:
    """Tied weights that were trained differ at both of their places."""
    base, other = torch.zeros(3), torch.ones(3)
    report = t7bridge.diff(
        save(tmp_path / "a.pt", {"x": base, "y": base}), save(tmp_path / "b.pt", {"x": other, "y": other})
    )
    assert [found.path for found in report.differences] == ["root.x", "root.y"]


def test_a_scalar_has_no_index(tmp_path: Path) -> None:
    """A tensor without dimensions is one number."""
    found = only(t7bridge.diff(save(tmp_path / "a.pt", torch.tensor(1.5)), save(tmp_path / "b.pt", torch.tensor(4.0))))
    assert str(found) == "root: its element differs, by at most 2.5: 1.5 against 4"


def test_a_scalar_that_became_infinite(tmp_path: Path) -> None:
    """An infinite distance is not named."""
    found = only(
        t7bridge.diff(save(tmp_path / "a.pt", torch.tensor(1.0)), save(tmp_path / "b.pt", torch.tensor(math.inf)))
    )
    assert str(found) == "root: its element differs: 1 against inf"


def test_elements_smaller_than_a_byte(tmp_path: Path) -> None:
    """Types of 4 and 8 bits differ in type, whatever their elements."""
    weight = torch.ones(2, 4)
    paths = []
    for dtype in (torch.quint4x2, torch.quint8):
        rows = torch.quantize_per_channel(weight, torch.ones(2), torch.zeros(2), 0, dtype)
        paths.append(save(tmp_path / f"{dtype}.pt", {"w": rows}))
    four, eight = paths
    assert any("quint4x2" in str(found) for found in t7bridge.diff(four, eight).differences)
    assert any("quint4x2" in str(found) for found in t7bridge.diff(eight, four).differences)
    assert t7bridge.diff(four, four).same


def test_huge_views_of_little(tmp_path: Path) -> None:
    """A view that repeats its elements is not walked: 10^12 of them would take an hour."""
    huge = torch.zeros(2).as_strided((10**6, 10**6), (0, 0))
    other = torch.ones(2).as_strided((10**6, 10**6), (0, 0))
    again = torch.zeros(2).as_strided((10**6, 10**6), (0, 0), 1)
    path = save(tmp_path / "a.pt", huge)

    assert t7bridge.diff(path, path).same
    assert "its element differs" in only(t7bridge.diff(path, save(tmp_path / "b.pt", other))).message
    assert t7bridge.diff(path, save(tmp_path / "c.pt", again)).same  # the elements that a view repeats are compared
    rows = torch.zeros(10).as_strided((10**5, 10), (0, 1))
    columns = torch.zeros(10**5).as_strided((10**5, 10), (1, 0))
    found = only(t7bridge.diff(save(tmp_path / "d.pt", rows), save(tmp_path / "e.pt", columns.expand(10**5, 10))))
    assert "repeat elements in other ways" in found.message


def test_structure(tmp_path: Path) -> None:
    """Keys, shapes, types and plain values."""
    first = save(tmp_path / "a.pt", {"gone": 1, "shape": torch.zeros(2), "type": torch.zeros(2), "n": 1, "s": "x"})
    second = save(
        tmp_path / "b.pt",
        {"shape": torch.zeros(3), "type": torch.zeros(2).double(), "n": 1.0, "s": "y", "new": [1, 2]},
    )
    found = [str(each) for each in t7bridge.diff(first, second).differences]
    assert found == [
        "root.gone: is missing in the second",
        "root.new: is missing in the first",
        "root.shape: shape (2,) against (3,)",
        "root.type: type 'float32' against 'float64'",
        "root.s: 'x' against 'y'",
    ]


def test_nothing_in_common(tmp_path: Path) -> None:
    """More differences than values."""
    first, second = save(tmp_path / "a.pt", {"a": 1, "b": 2}), save(tmp_path / "b.pt", {"c": 1})
    assert [each.path for each in t7bridge.diff(first, second).differences] == ["root.a", "root.b", "root.c"]


def test_other_weights_against_a_lua_model(tmp_path: Path) -> None:
    """A state dict of another model is compared with the state dict, key by key, though most keys are not there."""
    source = FILES / "models" / "resnet_small.t7"
    report = t7bridge.diff(source, save(tmp_path / "b.pt", OrderedDict({"0.bias": torch.zeros(4), "x": torch.ones(2)})))
    paths = {found.path for found in report.differences}
    assert report.tensors == 1
    assert {"root['0.bias']", "root['0.weight']", "root.x"} <= paths


def test_trained_weights_against_their_lua_model(tmp_path: Path) -> None:
    """A Lua model's weights and their PyTorch conversion are compared key by key, in either order."""
    source = FILES / "models" / "lenet_mm.t7"
    t7bridge.convert(source, tmp_path / "model.pt")
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    report = t7bridge.diff(source, tmp_path / "model.pt")
    assert not report.differences
    assert not report.same  # only the Lua model has gradients
    assert "gradients" in report.left_out[str(source)][0]
    key = next(iter(weights))
    with torch.no_grad():
        weights[key].view(-1)[5] += 0.5
    save(tmp_path / "tuned.pt", weights)

    for pair in ((source, tmp_path / "tuned.pt"), (tmp_path / "tuned.pt", source)):
        found = only(t7bridge.diff(*pair))
        assert isinstance(found, TensorDifference)
        assert key in found.path
        assert found.differing == 1
        assert found.largest == pytest.approx(0.5)


SAMPLE = sorted(FILES.glob("format/*.t7"))[::7] + sorted(FILES.glob("pt/*.pt"))[::3]
# Several values, or a class that must be registered first.
OTHERS = ("stream", "object_custom_write")


def test_every_file_is_like_itself(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """No file differs from its copy, whatever is in it."""
    for path in [path for path in SAMPLE if not path.name.startswith(OTHERS)]:
        with subtests.test(path.name), new_folder(tmp_path) as folder:
            assert t7bridge.diff(path, shutil.copy(path, folder)).same


@pytest.mark.parametrize(
    "shape", [(), (3,), (1 << 19,), (3, 1 << 18), (700, 900), (5, 1 << 17, 3), (1 << 10, 1, 1 << 10)]
)
def test_large_tensors_are_compared_whole(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Each changed element is found once, wherever it is and in whatever order the memory has it."""
    count = math.prod(shape)
    places = sorted({0, count // 3, count // 2, count - 1})
    changed = torch.zeros(count)
    changed[places] = torch.arange(1.0, len(places) + 1)
    changed = changed.reshape(shape)
    axes = tuple(reversed(range(len(shape))))
    index = tuple(map(int, np.unravel_index(places[-1], shape)))
    zeros = save(tmp_path / "a.pt", {"w": torch.zeros(shape)})
    for name, tensor in [("b.pt", changed), ("c.pt", changed.permute(axes).contiguous().permute(axes))]:
        difference = only(t7bridge.diff(zeros, save(tmp_path / name, {"w": tensor})))
        assert isinstance(difference, TensorDifference)
        assert (difference.differing, difference.elements, difference.largest) == (len(places), count, len(places))
        assert difference.index == index


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line a difference, a summary, exit codes as `diff` has them, and JSON that has no infinity."""
    first = save(tmp_path / "a.pt", {"w": torch.zeros(2, 2)})
    second = save(tmp_path / "b.pt", {"w": torch.tensor([[0, 0], [0.25, math.nan]])})

    assert main(["diff", str(first), str(first)]) == 0
    assert capsys.readouterr().out == "no difference; 1 tensor compared\n"
    assert main(["diff", str(first), str(second)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "root.w: 2 of 4 elements differ, most at [1, 1]: 0 against nan",
        "1 difference; 1 tensor compared",
    ]
    assert main(["diff", "--json", str(first), str(second)]) == 1
    report = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert report["differences"][0]["largest"] is None
    assert report["differences"][0]["index"] == [1, 1]
    assert main(["diff", str(first), str(tmp_path / "none.pt")]) == 2
    assert "none.pt" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["diff", "--rtol", "-1", str(first), str(second)])
    assert stopped.value.code == 2


def test_several_values_in_one_file(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """A `.t7` of several values compares with its conversion, in which they are a list."""
    for suffix in [".pt", ".safetensors", ".npz", ".h5"]:
        with subtests.test(suffix=suffix), new_folder(tmp_path) as folder:
            with open(folder / "two.t7", "wb") as file:
                writer = t7bridge.T7Writer(file)
                writer.write_object(t7bridge.Table.of({"w": Tensor.from_numpy(np.arange(3.0))}))
                writer.write_object(t7bridge.Table.of({"b": Tensor.from_numpy(np.arange(4.0))}))
            t7bridge.convert(folder / "two.t7", folder / f"o{suffix}", record=False)
            assert t7bridge.diff(folder / "two.t7", folder / f"o{suffix}").same
            assert t7bridge.verify(folder / "two.t7", folder / f"o{suffix}").same
            assert t7bridge.diff(folder / f"o{suffix}", folder / "two.t7").tensors == 2


@pytest.mark.parametrize("name", ["char_lstm_nngraph", "unet_nngraph", "gmodule_two_in_two_out", "siamese_shared"])
def test_weights_of_graphs_have_the_names_of_the_state_dict(tmp_path: Path, name: str) -> None:
    """Between two `.t7` too, whose first way to a layer is by nodes of the graph; in `verify` as well."""
    source = FILES / f"models/{name}.t7"
    state = t7bridge.state_dict(t7bridge.load(source))
    changed = {key: t7bridge.Tensor.from_numpy(tensor.numpy() + 1) for key, tensor in state.items()}
    t7bridge.save(changed, tmp_path / "changed.pt")
    t7bridge.convert(tmp_path / "changed.pt", tmp_path / "changed.t7", template=source)

    names = {difference.name for difference in t7bridge.diff(source, tmp_path / "changed.t7").differences}
    lua_keys = {key for key in state if not key.endswith("num_batches_tracked")}  # which Lua does not count
    assert names <= lua_keys
    # Of a weight that two layers share one name is enough.
    storages = {id(state[key].storage) for key in names}
    assert all(id(state[key].storage) in storages for key in lua_keys)
    of_storages = {difference.name for difference in t7bridge.verify(source, tmp_path / "changed.t7").differences}
    assert {name.removesuffix(".storage") for name in of_storages} <= names


def test_layers_have_the_names_of_inspect(tmp_path: Path) -> None:
    """Differences name the layer and its class as the table of `inspect`."""
    source = FILES / "models" / "resnet_small.t7"
    value = t7bridge.load(source)
    conv = module_at(value, "root.modules[4].modules[1].modules[1].modules[4]")
    assert conv is not None
    conv["weight"] = t7bridge.Tensor.from_numpy(conv["weight"].numpy() + 1)
    t7bridge.save(value, tmp_path / "b.t7")
    t7bridge.convert(tmp_path / "b.t7", tmp_path / "b.pt")
    rows = {row.path: (row.key, row.class_name) for row in t7bridge.inspect(source).layers}
    for name in ("b.t7", "b.pt"):
        found = only(t7bridge.diff(source, tmp_path / name))
        layer = (found.layer, found.class_name)
        assert layer == rows["root.modules[4].modules[1].modules[1].modules[4]"] == ("3.0.0.3", "nn.SpatialConvolution")
        assert str(found).startswith("3.0.0.3.weight (nn.SpatialConvolution): ")
        # What differs is named in the same way where sharing and strides count.
        faults = [str(each) for each in t7bridge.verify(source, tmp_path / name).differences]
        assert faults
        assert all(fault.startswith("3.0.0.3.weight") for fault in faults)
