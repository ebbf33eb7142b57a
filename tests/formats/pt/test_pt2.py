"""Archives of torch.export: what `torch.export.load` sees, in the layouts of all releases."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pt_helpers import members_of, saved, zipped

from t7bridge import PtReader
from t7bridge.errors import CorruptError, UnsupportedError


class Net(torch.nn.Module):
    """Tied, transposed and half-precision weights, buffers that are not saved, and constants of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 3)
        self.tied = self.first.weight
        self.turned = torch.nn.Parameter(torch.randn(5, 3).t())
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("scale", torch.randn(3).half())
        self.register_buffer("hidden", torch.ones(3), persistent=False)
        self.constant = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.first(x)) * self.scale + self.hidden + self.constant + torch.tensor([1.0, 2.0, 3.0])
        return y @ self.turned + (x @ self.tied.t()).sum()


pytestmark = pytest.mark.slow  # each needs a program that torch.export has made


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    """The network, exported."""
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Net().eval(), (torch.randn(2, 4),))


@pytest.fixture(scope="module")
def archive(program: torch.export.ExportedProgram) -> bytes:
    """The archive that this release of PyTorch writes."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, file)
    return file.getvalue()


def assert_same(found: object, wanted: torch.Tensor) -> None:
    """A tensor has the element type, sizes, strides, offset and values that PyTorch's has."""
    assert str(wanted.dtype).removeprefix("torch.") == found.element.name
    assert (found.size, found.stride, found.offset) == (wanted.shape, wanted.stride(), wanted.storage_offset())
    assert np.array_equal(found.numpy(), wanted.detach().numpy())


def test_state_dict_is_that_of_pytorch(archive):
    """Weights, buffers and constants are those that `torch.export.load` sees, in its order; tied weights stay tied."""
    program = torch.export.load(io.BytesIO(archive))
    reader = PtReader(archive)
    value = reader.read()

    assert reader.kind == "pt2"
    tensors = {name: each for name, each in program.constants.items() if isinstance(each, torch.Tensor)}
    assert list(value) == [*program.state_dict, *(f"constants.{name}" for name in tensors)]
    for name, wanted in program.state_dict.items():
        assert_same(value[name], wanted)
    assert value["tied"].storage is value["first.weight"].storage
    assert list(reader.attributes) == list(tensors)
    for name, wanted in tensors.items():
        assert_same(reader.attributes[name], wanted)
        assert_same(value[f"constants.{name}"], wanted)


def test_release_2_7(program):
    """In 2.7 weights and constants are two files of torch.save. Weights stay in the archive."""
    members = {
        "m/archive_format": b"pt2",
        "m/models/model.json": b"{}",
        "m/data/weights/model.pt": saved(dict(program.state_dict)),
        "m/data/constants/model.pt": saved(dict(program.constants)),
    }
    reader = PtReader(zipped(members))
    value = reader.read()
    for name, wanted in program.state_dict.items():
        assert_same(value[name], wanted)
        assert value[name].storage.data.source is reader.source


@pytest.mark.parametrize("suffix", ["pt", "json"])
def test_releases_2_1_to_2_6(program, suffix):
    """Until 2.6 the parts were in a zip archive of Python's, under other names."""
    members = {
        "version": b"8.2",
        "serialized_exported_program.json": b"{}",
        f"serialized_state_dict.{suffix}": saved(dict(program.state_dict)),
        f"serialized_constants.{suffix}": saved(dict(program.constants)),
    }
    reader = PtReader(zipped(members, zipfile.ZIP_DEFLATED))
    value = reader.read()
    assert reader.kind == "pt2"
    assert [name for name in value if not name.startswith("constants.")] == list(program.state_dict)
    assert set(reader.attributes) == set(program.constants)


def test_what_is_left_out_is_named(archive):
    """The notes name the constants, which get keys of their own, the example inputs, the graph and unread payloads."""
    members = members_of(archive)
    folder = next(name for name in members if name.endswith("weight_0")).removesuffix("weight_0")
    reader = PtReader(zipped({**members, folder + "weight_77": b"12345678"}))
    reader.read()
    notes = " ".join(map(str, reader.notes))

    for wanted in ("constants.hidden", "data/sample_inputs/", "models/model.json", "weight_77", "(8 bytes)"):
        assert wanted in notes


def test_constants_keep_out_of_each_others_way(program):
    """A weight that is called as a constant would be keeps its key."""
    members = {
        "m/archive_format": b"pt2",
        "m/models/model.json": b"{}",
        "m/data/weights/model.pt": saved({"constants.a": torch.ones(1)}),
        "m/data/constants/model.pt": saved({"a": torch.zeros(2), "constants.a": torch.zeros(3)}),
    }
    value = PtReader(zipped(members)).read()
    assert {name: tensor.size for name, tensor in value.items()} == {
        "constants.a": (1,), "constants.constants.a": (2,), "constants.constants.constants.a": (3,)
    }  # fmt: skip


def test_constants_of_other_kinds_are_named(archive):
    """An object of a custom class is left out with a note, and the weights are read."""
    members = members_of(archive)
    name = next(name for name in members if name.endswith("_constants_config.json"))
    config = json.loads(members[name])
    config["config"]["lookup"] = {
        "path_name": "custom_obj_0",
        "is_param": False,
        "use_pickle": True,
        "tensor_meta": None,
    }
    members[name] = json.dumps(config).encode()
    members[name.rpartition("/")[0] + "/custom_obj_0"] = b"not looked at"
    reader = PtReader(zipped(members))

    assert "first.weight" in reader.read()
    assert any(note.level == "warning" and note.path == "constants.lookup" for note in reader.notes)


def changed(archive: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The archive with a changed entry of `first.weight`."""
    members = members_of(archive)
    name = next(name for name in members if name.endswith("_weights_config.json"))
    config = json.loads(members[name])
    change(config["config"]["first.weight"])
    members[name] = json.dumps(config).encode()
    return zipped(members)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"path_name": "weight_99"}, CorruptError, "not in the archive"),
        ({"path_name": None}, CorruptError, "not in the archive"),
        ({"sizes": [{"as_int": 1 << 40}, {"as_int": 4}]}, CorruptError, "not a view"),
        ({"storage_offset": {"as_int": 9}}, CorruptError, "not a view"),
        ({"sizes": [{"as_expr": {"expr_str": "s0"}}]}, UnsupportedError, "size is not a number"),
        ({"dtype": 99}, UnsupportedError, "unknown type"),
        ({"dtype": [7]}, UnsupportedError, "unknown type"),
        ({"layout": 1}, UnsupportedError, "not strided"),
        ({"tensor_meta": 5}, CorruptError, "expected an object"),
    ],
    ids=str,
)
def test_damaged_entries(archive, fields, error, message):
    """An entry that contradicts the archive is refused."""

    def change(entry: dict[str, Any]) -> None:
        for key, value in fields.items():
            (entry if key in entry else entry["tensor_meta"])[key] = value

    with pytest.raises(error, match=message):
        PtReader(changed(archive, change)).read()


def test_compiled_code_only():
    """An archive without a program, such as AOTInductor's, has no weights to read, and the error says so."""
    with pytest.raises(UnsupportedError, match="only compiled code"):
        PtReader(zipped({"m/archive_format": b"pt2", "m/data/aotinductor/model/x.so": b"\x7fELF"})).read()
