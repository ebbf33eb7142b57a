"""Every leaf of a source is in the target or counted in a note: counted here by a walk of its own, for every target."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TESTFILES

import t7bridge
from t7bridge import Storage, state_dict
from t7bridge.errors import ModelError, UnknownFormatError, UnsupportedError
from t7bridge.graph import lua, python, tensor
from t7bridge.nn import find_modules

TARGETS = ("pt", "t7", "safetensors", "h5", "npz")
MODELS = sorted(path for path in (TESTFILES / "models").glob("*.t7") if not path.name.endswith((".io.t7", ".grad.t7")))
TENSOR = "tensor"


def leaves(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield kind and content of each string, number, truth value, None and tensor; a tensor by its sorted elements."""
    seen: set[Any] = set()
    kept: list[Any] = []
    stack = [root]
    while stack:
        value = stack.pop()
        if value is None or isinstance(value, (bool, int, float)):
            yield "number", None if value is None else repr(float(value))
        elif isinstance(value, (str, bytes, bytearray)):
            yield "text", value if isinstance(value, str) else bytes(value).decode("utf-8", "backslashreplace")
        elif id(value) not in seen:
            seen.add(id(value))
            kept.append(value)
            stack += inside(value)
            view = view_of(value)
            if view is not None and view not in seen:
                seen.add(view)
                found = value.torch().detach() if isinstance(value, t7bridge.Tensor) else torch.tensor(value.array)
                found = torch.view_as_real(found.resolve_conj()) if found.is_complex() else found
                yield TENSOR, np.sort(found.double().numpy(), axis=None).tobytes()


def view_of(value: Any) -> Any:
    """Return what identifies a tensor's memory; `None` for other values and tensors without elements."""
    if isinstance(value, t7bridge.Tensor) and value.numel and value.storage is not None:
        return id(value.storage), value.offset, value.size, value.stride
    return (id(value),) if isinstance(value, Storage) and value.count else None


def inside(value: Any) -> list[Any]:
    """Return the values directly inside a value; keys are not leaves."""
    if isinstance(value, lua.TorchObject):
        return list(value.fields.raw_values) if value.fields is not None else []
    if isinstance(value, lua.TdsHash):
        return list(value.content.raw_values)
    if isinstance(value, lua.Table):
        return list(value.raw_values)
    if isinstance(value, lua.TdsVec):
        return list(value.elements)
    if isinstance(value, lua.LuaFunction):
        return [value.code]
    if isinstance(value, python.PythonObject):
        state = [] if value.attributes or value.state is python.UNSET else [value.state]
        return [*value.attributes.values(), *state, value.args, value.items, value.pairs]
    if isinstance(value, python.NumpyArray) and not isinstance(value.data, list):
        made = t7bridge.to_python(value)
        return made.ravel().tolist() if made.dtype.kind in "SU" else [t7bridge.Tensor.from_numpy(made)]
    if isinstance(value, (python.NumpyScalar, python.NumpyArray)):
        return [t7bridge.to_python(value)] if isinstance(value, python.NumpyScalar) else value.data
    if isinstance(value, tensor.QuantizedTensor):
        return [value.tensor, value.scale, value.zero_point]
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else []


def content(path: Path) -> list[tuple[str, Any]]:
    """Return the leaves of a file and of its metadata; numbers of a `.npz` are arrays of at most one dimension."""
    with t7bridge.open(path) as document:
        found = [leaf for root in document.roots for leaf in leaves(root)]
        for text in document.metadata.values():
            try:
                found += leaves(json.loads(text))
            except ValueError:
                found += leaves(text)
    if path.suffix == ".npz":
        with np.load(path) as file:
            lists = [array.ravel().tolist() for array in file.values() if array.ndim < 2]
        found += [("number", repr(float(item))) for items in lists for item in items if not isinstance(item, complex)]
    return found


def missing(source: Path, target: Path) -> list[tuple[str, Any]]:
    """Return the leaves of a source that a target has not; tensors may be cut or rearranged."""
    found = Counter(content(target))
    elements = {number for kind, data in found if kind == TENSOR for number in np.frombuffer(data)}
    left = []
    for kind, data in content(source):
        if found[kind, data]:
            found[kind, data] -= kind != TENSOR
        elif kind != TENSOR or not elements.issuperset(np.frombuffer(data)):
            left.append((kind, data))
    return left


def counted(report: t7bridge.Report) -> int:
    """Return the number of leaves that the notes of a report count as left out."""
    return sum(note.count for note in report.notes if note.code in ("left-out", "metadata"))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", TARGETS)
def test_every_leaf_is_accounted_for(suffix: str, tmp_path: Path) -> None:
    """Whatever a published kind of file holds is in the target, or the notes count it."""
    files = [*MODELS, *sorted((TESTFILES / "pt").glob("*.pt"))]
    converted = 0
    for source in files:
        target = tmp_path / f"{source.stem}.{suffix}"
        try:
            report = t7bridge.convert(source, target)
        except ModelError as error:
            if "no tensor" not in error.message:
                raise
            continue
        converted += 1
        left = [leaf for leaf in missing(source, target) if suffix != "t7" or leaf != ("number", None)]
        assert len(left) <= counted(report), (source.name, left[:3])
        target.unlink()
    assert converted > len(MODELS)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with a vocabulary, in fields of a model and of a layer inside it."""
    weight = t7bridge.Tensor.from_numpy(np.ones((2, 3), "f4"))
    words = {b"the": 1.0, b"caf\xc3\xa9": 2.0}
    gradient = t7bridge.Tensor.from_numpy(np.zeros((2, 3), "f4"))
    linear = {"weight": weight, "gradWeight": gradient, "names": lua.Table.from_list([b"a", b"b"])}
    layer = lua.TorchObject("nn.Linear", 1, lua.Table.of(linear))
    fields = {"modules": lua.Table.from_list([layer]), "words": lua.Table.of(list(words.items()))}
    model = lua.TorchObject("nn.Sequential", 1, lua.Table.of(fields))
    t7bridge.save(lua.Table.of({"model": model, "epoch": 3.0, "nets": lua.Table.from_list([model])}), tmp_path / "c.t7")
    t7bridge.save(model, tmp_path / "m.t7")
    return tmp_path / "c.t7"


def test_tables_of_a_module_are_beside_its_state_dict(checkpoint: Path, tmp_path: Path) -> None:
    """A vocabulary is beside the state dict of a checkpoint, and in the metadata of other formats."""
    report = t7bridge.convert(checkpoint, tmp_path / "c.pt")
    value = torch.load(tmp_path / "c.pt", weights_only=True)
    assert list(value["model"]) == ["0.weight"]
    assert value["model.words"] == {"the": 1, "café": 2}
    assert value["model.0.names"] == ["a", "b"]
    assert value["nets"][0] is value["model"]
    assert [(note.path, note.count) for note in report.notes if note.code == "beside"] == [
        ("root.model.words", 2),
        ("root.model.0.names", 2),
    ]
    (note,) = [note for note in report.notes if note.code == "left-out"]
    assert note.message.startswith("not part of a state dict: gradients: 1 tensor")
    checked = t7bridge.verify(checkpoint, tmp_path / "c.pt")
    assert not checked.differences
    assert checked.left_out == {str(checkpoint): [note.message]}


@pytest.mark.parametrize("suffix", TARGETS[2:])
def test_tables_of_a_module_are_metadata(checkpoint: Path, suffix: str, tmp_path: Path) -> None:
    """Also where the whole file is the module, its tables are in the metadata of formats of named tensors."""
    for source, prefix in ((checkpoint, "model."), (checkpoint.with_name("m.t7"), "")):
        report = t7bridge.convert(source, tmp_path / f"o.{suffix}", force=True)
        with t7bridge.open(tmp_path / f"o.{suffix}") as document:
            found = {name: json.loads(text) for name, text in document.metadata.items() if name != "format"}
            found |= t7bridge.load(tmp_path / "o.npz") if suffix == "npz" else {}
            assert found[f"{prefix}words.café"] == 2
            assert json.loads(document.metadata[f"{prefix}0.names.1"]) == "b"
        assert not [note.path for note in report.notes if note.level == "warning"]


def test_tables_without_a_place_are_named(checkpoint: Path, tmp_path: Path) -> None:
    """The state dict of a module that is the whole file stays pure; its tables are in a file, or named one by one."""
    report = t7bridge.convert(checkpoint.with_name("m.t7"), tmp_path / "m.pt")
    assert list(torch.load(tmp_path / "m.pt", weights_only=True)) == ["0.weight"]
    assert not [note for note in report.notes if note.level == "warning"]
    config = json.loads((tmp_path / "m.config.json").read_text())
    assert list(config["data"]) == ["words", "0.names"]
    report = t7bridge.convert(checkpoint.with_name("m.t7"), tmp_path / "m.pt", config=False, force=True)
    named = [(note.level, note.path, note.count) for note in report.notes if note.level == "warning"]
    assert named == [("warning", "root.words", 2), ("warning", "root.0.names", 2)]


def test_what_no_state_dict_has_is_no_difference(checkpoint: Path, tmp_path: Path) -> None:
    """`verify` states what the state dict of a file that is a module leaves out, and finds weights that are missing."""
    source, target = checkpoint.with_name("m.t7"), tmp_path / "o.pt"
    for first, second in ((source, target), (target, source)):
        t7bridge.convert(source, target, force=True)
        report = t7bridge.verify(first, second)
        assert not report.differences
        assert not report.same
        assert list(report.left_out) == [str(source)]
        texts = " ".join(report.left_out[str(source)])
        assert "root.words" in texts
        assert "root.0.names" in texts
        assert "gradients: 1 tensor" in texts
        torch.save({}, target)
        assert not t7bridge.verify(first, second).same


def test_scalars_of_checkpoints_stay_what_they_are(tmp_path: Path) -> None:
    """Floats that are integral stay floats, and bytes that are text stay bytes; also as values of other classes."""
    value = {"w": torch.ones(1), "x": 1.0, "l": [2.0, 3, b"abc"], "t": (1.0, np.float64(4.0)), "n": {"b": b"x"}}
    torch.save(value, tmp_path / "a.pt")
    t7bridge.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert repr(found) == repr({**value, "t": (1.0, 4.0)})
    read = t7bridge.to_python(t7bridge.load(tmp_path / "a.pt"))
    assert repr((read["x"], read["l"], read["n"])) == repr((value["x"], value["l"], value["n"]))


def test_functions_in_fields_are_counted(tmp_path: Path) -> None:
    """A function of Lua in a module is counted with the options."""
    layer = lua.TorchObject("nn.Tanh", 1, lua.Table.of({"hook": lua.LuaFunction(b"\x1bLJ", lua.Table())}))
    t7bridge.save(lua.Table.of({"model": layer, "t": t7bridge.Tensor.from_numpy(np.ones(2))}), tmp_path / "m.t7")
    report = t7bridge.convert(tmp_path / "m.t7", tmp_path / "m.pt")
    assert len(missing(tmp_path / "m.t7", tmp_path / "m.pt")) == counted(report) == 1


@pytest.mark.filterwarnings("ignore")
def test_values_behind_the_last_are_no_difference(tmp_path: Path) -> None:
    """Bytes after the last value of a `.t7` are stated where the other file is of another format."""
    (tmp_path / "m.t7").write_bytes((TESTFILES / "format/tensor_float.t7").read_bytes() + b"\x07\x00\x00")
    t7bridge.convert(tmp_path / "m.t7", tmp_path / "m.pt")
    report = t7bridge.verify(tmp_path / "m.t7", tmp_path / "m.pt")
    assert not report.differences
    assert list(report.left_out) == [str(tmp_path / "m.t7")]
    assert not t7bridge.verify(tmp_path / "m.t7", TESTFILES / "format/tensor_float.t7", independent=False).same


@pytest.mark.slow
def test_options_of_layers_are_no_data() -> None:
    """No table, string or number that a layer of nn, rnn and dpnn sets itself is taken for a user's data."""
    names = ("zoo_classes", "architectures", "nn_options", "rnn_options", "rnn2_options", "torch_rnn_options")
    files = [TESTFILES / f"{name}.t7" for name in names]
    found: set[tuple[str, str]] = set()
    for path in [*files, *sorted((TESTFILES / "nn").glob("*.t7")), *sorted((TESTFILES / "rnn").glob("*.t7"))]:
        for _, module in find_modules(t7bridge.load(path)):
            found |= {(module.class_name, name.rpartition(".")[2]) for name in state_dict(module).data}
    names_by_programs = {("onmt.GlobalAttention", "name")}
    assert found == names_by_programs | {("nn.LanguageModel", "idx_to_token"), ("nn.LanguageModel", "token_to_idx")}


@pytest.mark.parametrize("suffix", TARGETS)
@pytest.mark.parametrize("wrapped", [True, False])
def test_scalars_in_fields_of_modules(suffix: str, wrapped: bool, tmp_path: Path) -> None:
    """What a program sets on a stock layer, or its own class holds, arrives beside the state dict or is named."""
    weight = t7bridge.Tensor.from_numpy(np.ones((2, 3), "f4"))
    stock = {"train": False, "_type": b"torch.FloatTensor", "weight": weight, "bias": weight}
    layer = lua.TorchObject("nn.Linear", 1, lua.Table.of({**stock, "label": b"fc7"}))
    graph = {"modules": lua.Table.from_list([layer]), "name": b"net", "verbose": False, "nInputs": 1.0, "train": True}
    inner = lua.TorchObject("nn.gModule", 1, lua.Table.of(graph))
    fields = {"modules": lua.Table.from_list([inner]), "model_type": b"lstm", "rnn_size": 128.0, "tied": True}
    model = lua.TorchObject("my.Checkpoint", 1, lua.Table.of(fields))
    prefix = "model." if wrapped else ""
    t7bridge.save(lua.Table.of({"model": model}) if wrapped else model, tmp_path / "m.t7")
    report = t7bridge.convert(tmp_path / "m.t7", tmp_path / f"o.{suffix}", config=suffix != "pt")
    if suffix == "t7":
        return
    wanted = {"model_type": "lstm", "rnn_size": 128, "tied": True, "0.name": "net", "0.0.label": "fc7"}
    codes = {note.path: note.code for note in report.notes if note.code in ("beside", "left-out") and note.path}
    assert set(codes) == {f"root.{prefix}{name}" for name in wanted}
    assert ["options of layers: 4 values" in note.message for note in report.notes if "part of" in note.message] == [
        True
    ]
    if suffix == "pt":
        found = torch.load(tmp_path / "o.pt", weights_only=True)
        assert {key: found.get(f"model.{key}") for key in wanted} == (wanted if wrapped else dict.fromkeys(wanted))
    else:
        found = t7bridge.to_python(t7bridge.load(tmp_path / f"o.{suffix}"))
        with t7bridge.open(tmp_path / f"o.{suffix}") as document:
            found = {**found, **{key: json.loads(text) for key, text in document.metadata.items() if key != "format"}}
        assert {key: found[prefix + key] for key in wanted} == wanted
    assert not t7bridge.verify(tmp_path / "m.t7", tmp_path / f"o.{suffix}").differences


@pytest.mark.parametrize("suffix", TARGETS)
def test_attributes_that_are_no_names(suffix: str, tmp_path: Path) -> None:
    """What a module's `__dict__` has under a key that is no text is named like the rest."""
    module = torch.nn.Linear(3, 2)
    module.__dict__[("a", 1)] = 5
    torch.save(module, tmp_path / "m.pt")
    report = t7bridge.convert(tmp_path / "m.pt", tmp_path / f"o.{suffix}")
    assert any("('a', 1)" in f"{note.path} {note.message}" for note in report.notes)


def test_a_field_beside_a_key_of_its_name(tmp_path: Path) -> None:
    """A field arrives also where the checkpoint has a key of that name."""
    layer = lua.TorchObject("nn.Tanh", 1, lua.Table.of({"name": b"inner"}))
    t7bridge.save(lua.Table.of({"model": layer, "model.name": b"outer"}), tmp_path / "m.t7")
    t7bridge.convert(tmp_path / "m.t7", tmp_path / "m.pt")
    found = torch.load(tmp_path / "m.pt", weights_only=True)
    assert (found["model.name"], found["model.name~2"]) == ("outer", "inner")


class Labelled(torch.nn.Module):
    """A module with a table and an array that no state dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.inner.label = "first"
        self.rate = 0.75
        self.actions = np.array([[0, 1], [1, 0]], np.int16)
        self.labels = {"no": 0, "yes": 1}


@pytest.mark.parametrize("suffix", TARGETS)
@pytest.mark.parametrize("wrapped", [True, False])
def test_arrays_of_pickled_modules(suffix: str, wrapped: bool, tmp_path: Path) -> None:
    """A numpy array and a table in attributes of a module of a user's class are in every target, or named."""
    module = Labelled()
    torch.save({"net": module} if wrapped else module, tmp_path / "m.pt")
    report = t7bridge.convert(tmp_path / "m.pt", tmp_path / f"o.{suffix}")
    found = Counter(content(tmp_path / f"o.{suffix}"))
    array = (TENSOR, np.array([0, 0, 1, 1.0]).tobytes())
    named = {note.path for note in report.notes if note.code == "left-out" and note.level == "warning"}
    if suffix in ("safetensors", "h5", "npz"):  # whose tensors are weights
        with t7bridge.open(tmp_path / f"o.{suffix}") as document:
            assert document.metadata["net.actions" if wrapped else "actions"] == "[[0, 1], [1, 0]]"
        assert not named
    elif wrapped or suffix != "pt":
        assert found[array] == 1
        assert found["text", "first"] == found["number", "0.75"] == 1
        assert not named
    else:
        assert not found[array]
        assert not named
        config = json.loads((tmp_path / "o.config.json").read_text())
        data = {"actions": [[0, 1], [1, 0]], "labels": {"no": 0, "yes": 1}, "rate": 0.75, "inner.label": "first"}
        assert config["data"].items() >= data.items()


@pytest.mark.parametrize("suffix", TARGETS[2:])
def test_numpy_arrays_of_checkpoints(suffix: str, tmp_path: Path) -> None:
    """Arrays and scalars of numpy are tensors and numbers of every format."""
    state = np.random.default_rng(3).integers(0, 1 << 32, 624, np.uint32)
    torch.save({"rng": ("MT19937", state, np.float64(0.5)), "t": torch.ones(2)}, tmp_path / "c.pt")
    t7bridge.convert(tmp_path / "c.pt", tmp_path / f"o.{suffix}")
    found = Counter(content(tmp_path / f"o.{suffix}"))
    assert found[TENSOR, np.sort(state).astype("f8").tobytes()] == 1
    assert found["number", "0.5"] == 1
    assert found["text", "MT19937"] == 1


@pytest.mark.parametrize("source", TARGETS[2:])
@pytest.mark.parametrize("suffix", TARGETS)
def test_strings_of_metadata(source: str, suffix: str, tmp_path: Path) -> None:
    """Strings and None of metadata are in formats that have such; elsewhere `convert` and `verify` name them."""
    value = {"w": torch.ones(2, 2), "name": "net", "none": None, "list": ["a", None]}
    torch.save(value, tmp_path / "v.pt")
    t7bridge.convert(tmp_path / "v.pt", tmp_path / f"v.{source}")
    report = t7bridge.convert(tmp_path / f"v.{source}", tmp_path / f"o.{suffix}")
    left = [note.count for note in report.notes if note.code == "metadata"]
    assert left == [] if suffix in TARGETS[2:] else left[0] >= 4
    for first, second in ((f"v.{source}", f"o.{suffix}"), (f"o.{suffix}", f"v.{source}")):
        checked = t7bridge.verify(tmp_path / first, tmp_path / second)
        assert not checked.differences
        assert checked.same == (not left)
        assert bool(checked.left_out) is bool(left)
    torch.save({**value, "name": "other"}, tmp_path / "c.pt")
    assert not t7bridge.verify(tmp_path / f"v.{source}", tmp_path / "c.pt").same


def test_none_comes_back_from_lua(tmp_path: Path) -> None:
    """None in lists and dicts comes back by the record; without one it is counted."""
    value = {"a": [None, 1, None], "b": None, "t": torch.ones(1)}
    torch.save(value, tmp_path / "v.pt")
    assert not t7bridge.convert(tmp_path / "v.pt", tmp_path / "v.t7").notes
    t7bridge.convert(tmp_path / "v.t7", tmp_path / "w.pt")
    back = torch.load(tmp_path / "w.pt", weights_only=True)
    assert (back["a"], back["b"]) == ([None, 1, None], None)
    report = t7bridge.convert(tmp_path / "v.pt", tmp_path / "v.t7", record=False, force=True)
    assert [(note.code, note.count) for note in report.notes] == [("left-out", 3)]


QUANTIZED = [TESTFILES / f"quantized/quantized_{name}.pt" for name in ("static", "dynamic", "embedding")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", QUANTIZED, ids=lambda path: path.stem)
def test_quantized_modules_have_pytorchs_state_dict(source: Path, tmp_path: Path) -> None:
    """A module with packed weights has the keys, weights, scales and zero points of PyTorch's own state dict."""
    t7bridge.convert(source, tmp_path / "o.pt")
    found = torch.load(tmp_path / "o.pt", weights_only=True)
    wanted = torch.load(source.with_name(f"{source.stem}_state.pt"), weights_only=True)
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        for one, other in zip(parts(found[key]), parts(value), strict=True):
            assert type(one) is type(other)
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    for suffix in TARGETS[1:]:
        report = t7bridge.convert(source, tmp_path / f"o.{suffix}")
        left = [leaf for leaf in missing(source, tmp_path / f"o.{suffix}") if leaf[0] == TENSOR]
        assert not left
        assert all(note.code != "left-out" or note.level == "info" for note in report.notes)


def parts(value: Any) -> list[Any]:
    """Return the parts of a value of a state dict."""
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("suffix", TARGETS)
def test_parts_of_divided_tensors_are_refused(suffix: str, tmp_path: Path) -> None:
    """The part that one process has of a tensor is no tensor; one that each process has whole is."""
    folder = TESTFILES / "distributed"
    for rank in (0, 1):
        with pytest.raises(UnsupportedError, match=rf"root.rows: holds the part that rank {rank} of 2") as caught:
            t7bridge.convert(folder / f"rank{rank}.pt", tmp_path / f"o.{suffix}")
        assert "dcp_to_torch_save" in str(caught.value)
    assert not list(tmp_path.iterdir())
    t7bridge.convert(folder / "copies.pt", tmp_path / f"o.{suffix}")
    assert (TENSOR, np.arange(6.0, 10).tobytes()) in content(tmp_path / f"o.{suffix}")


def test_a_distributed_checkpoint_names_the_function_that_joins_it() -> None:
    """A folder of `torch.distributed.checkpoint` is refused with PyTorch's function that makes one file of it."""
    with pytest.raises(UnsupportedError, match=r"format_utils\.dcp_to_torch_save\(FOLDER, FILE\) makes one file"):
        t7bridge.load(TESTFILES / "distributed/single")


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    """Files without an index are not one value."""
    for name in ("a.pt", "b.pt"):
        torch.save({"t": torch.ones(2)}, tmp_path / name)
    with pytest.raises(UnknownFormatError, match="is a folder, and no checkpoint in several files"):
        t7bridge.load(tmp_path)
