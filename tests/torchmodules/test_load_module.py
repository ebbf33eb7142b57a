"""`load_module`: which module of a file, how indices count, and what it refuses."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import ROOT, TESTFILES, corpus, read, written

import t7bridge
from t7bridge import Table, Tensor, TorchObject
from t7bridge.errors import ModelError, T7BridgeError, UnsupportedError, UnsupportedLayerError
from t7bridge.nn import build_plan, find_modules, is_scratch
from t7bridge.nn.mapping import ModuleSpec, Plan
from t7bridge.nn.state_dict import Recorded, Run
from t7bridge.torchmodules import Factory, live_module
from t7bridge.torchmodules.build import fill, keep_keys

CASES = [path for path in corpus("nn/*.t7") if not path.name.endswith((".io.t7", ".grad.t7"))]


def linear():
    """A linear layer of the corpus."""
    return read(TESTFILES / "nn/Linear.t7")


def sequence(*modules):
    """An nn.Sequential."""
    return TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(list(modules))}))


def test_one_module_in_a_table():
    """A table that holds one module loads as that one."""
    module = t7bridge.load_module(TESTFILES / "models/training_checkpoint.t7")
    assert list(module.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_several_modules():
    """Of several modules one must be named; the error lists the paths."""
    data = written(Table.of({"generator": linear(), "critic": sequence(linear(), linear())}))
    with pytest.raises(ModelError, match=r"several modules.*root\.generator, root\.critic"):
        t7bridge.load_module(data)
    assert isinstance(t7bridge.load_module(data, at="root.generator"), torch.nn.Linear)
    assert len(t7bridge.load_module(data, at="root.critic")) == 2


def test_a_model_and_its_criterion():
    """A criterion next to the one model does not make the model ambiguous, and has a path of its own."""
    data = written(Table.of({"protos": Table.of({"rnn": linear(), "criterion": read(TESTFILES / "nn/L1Cost.t7")})}))
    assert isinstance(t7bridge.load_module(data), torch.nn.Linear)
    assert float(t7bridge.load_module(data, at="root.protos.criterion")(torch.tensor([-1.0, 2.0]))) == 3.0


def test_wrong_path():
    """A path that names no module is an error that lists those that do."""
    with pytest.raises(ModelError, match=r"no module at root\.net.*root\.model"):
        t7bridge.load_module(TESTFILES / "models/training_checkpoint.t7", at="root.net")


def test_no_module():
    """A file without modules is an error."""
    with pytest.raises(ModelError, match="holds no module"):
        t7bridge.load_module(TESTFILES / "format/nil.t7")


def test_checkpoint_of_pytorch():
    """Modules are not made from a .pt; the error names the format and how to load the weights."""
    with pytest.raises(UnsupportedError, match=r"is a PyTorch file; .*t7bridge convert .* torch\.load"):
        t7bridge.load_module(sorted((TESTFILES / "pt").glob("*.pt"))[0])


def test_index_base():
    """Rows and classes count from 1 as in Lua, or from 0 where that is asked for."""
    path = TESTFILES / "nn/LookupTable.t7"
    lua, python = t7bridge.load_module(path), t7bridge.load_module(path, index_base=0)
    assert type(python) is torch.nn.Embedding
    assert torch.equal(lua(torch.tensor([1.0, 10.0])), python(torch.tensor([0, 9])))
    scores = torch.randn(4, 3).log_softmax(1)
    loss = t7bridge.load_module(TESTFILES / "nn/ClassNLLCriterion.t7", index_base=0)
    wanted = torch.nn.functional.nll_loss(scores, torch.tensor([0, 2, 1, 0]))
    assert torch.allclose(loss(scores, torch.tensor([0, 2, 1, 0])), wanted)
    with pytest.raises(ModelError, match="0 or 1"):
        t7bridge.load_module(path, index_base=2)


def test_ignored_class_beyond_the_weights():
    """The class that does not count may be any number, such as the 255 of images, also where classes have weights."""
    weights = Tensor.from_numpy(np.array([1.0, 2.0, 3.0], "f4"))
    criterion = TorchObject("nn.ClassNLLCriterion", 1, Table.of({"weights": weights, "ignoreIndex": 255.0}))
    loss = t7bridge.load_module(written(criterion))
    scores = torch.randn(4, 3).log_softmax(1)
    classes = torch.tensor([1, 255, 3, 2])
    wanted = torch.nn.functional.nll_loss(scores, classes - 1, torch.tensor([1.0, 2.0, 3.0]), ignore_index=254)
    assert torch.allclose(loss(scores, classes), wanted)


def test_all_unsupported_layers_at_once():
    """Layers without a module are all listed, with paths and reasons, and none is skipped."""
    stranger = TorchObject("nn.Strange", 1, Table.of({"output": None, "gradInput": None}))
    broken = TorchObject("nn.Narrow", 1, Table.of({"dimension": 1.0}))
    data = written(sequence(linear(), stranger, sequence(stranger, broken)))
    with pytest.raises(UnsupportedLayerError, match="2 layers") as caught:
        t7bridge.load_module(data)
    assert [(path, name) for path, name, _ in caught.value.layers] == [
        ("root.modules[2]", "nn.Strange"),
        ("root.modules[3].modules[2].index", "nn.Narrow"),
    ]
    assert pickle.loads(pickle.dumps(caught.value)).layers == caught.value.layers


def test_containers_that_hold_no_module():
    """A value that is not a module in a module's place, and a container in itself, are listed too."""
    box = sequence(linear(), 3.0)
    box["modules"][3] = box
    with pytest.raises(UnsupportedLayerError) as caught:
        t7bridge.load_module(written(box))
    assert [reason for _, _, reason in caught.value.layers] == [
        "contains itself",
        "holds a float where a module belongs",
    ]


def test_weights_that_do_not_fit():
    """Weights that contradict one another are an error, not a wrong model."""
    layer = linear()
    layer["bias"] = layer["weight"]
    with pytest.raises(ModelError, match="not match"):
        t7bridge.load_module(written(layer))


def test_shared_module_is_one_module():
    """A module that Lua has at two places is one module at two places, with the keys of both."""
    layer = linear()
    module = t7bridge.load_module(written(sequence(layer, layer)))
    assert module[0] is module[1]
    assert list(module.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.slow
def test_deep_nesting():
    """Plans are made without recursion; what PyTorch cannot nest so deep is an error."""
    box = linear()
    for _ in range(3000):
        box = sequence(box)
    assert build_plan(box).root.class_name == "nn.Sequential"
    with pytest.raises(UnsupportedError, match="nested too deep"):
        live_module(box)


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, -1.0, 0.0, 0.5, 1e300, float("nan"), b"text", True, Table()], ids=repr)
def test_damaged_fields(value):
    """For any value of a field, the module is made or the error is one of ours."""
    made = refused = asked = 0
    for path in CASES:
        whole = find_modules(read(path))[0][1]
        for name in list(whole.fields.raw_keys):
            if is_scratch(name.decode()) and value is not None:
                continue  # what no module is made from: one value for all
            kept = whole[name]
            whole[name] = value
            asked += 1
            try:
                assert isinstance(live_module(whole), torch.nn.Module)
                made += 1
            except T7BridgeError as error:
                refused += "root" in str(error)
            whole[name] = kept
    assert made > 100
    assert refused > 100
    assert made + refused == asked, "every error says where"


def test_double_stays_double():
    """Weights keep the element type of the file."""
    value = find_modules(read(TESTFILES / "legacy/windows_long4_model.t7"))[0][1]
    wanted = value["weight"].element.name
    assert str(t7bridge.load_module(TESTFILES / "legacy/windows_long4_model.t7").weight.dtype) == f"torch.{wanted}"


def test_file_is_not_needed_any_more(tmp_path):
    """The module has its weights in its own memory; the file may go, and training does not write to it."""
    path = tmp_path / "model.t7"
    data = (TESTFILES / "nn/Linear.t7").read_bytes()
    path.write_bytes(data)
    module = t7bridge.load_module(path)
    with torch.no_grad():
        module.weight.zero_()
    assert path.read_bytes() == data


@pytest.mark.slow
def test_without_torch():
    """If PyTorch is not installed, the error names the package to install."""
    code = (
        "import sys; sys.modules['torch'] = None; import t7bridge\n"
        "try: t7bridge.load_module(sys.argv[1])\n"
        "except t7bridge.T7BridgeError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(TESTFILES / "nn/Linear.t7")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "pip install 'torch>=2.6'" in found.stdout


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Unsqueeze", {"pos": 0.0, "numInputDims": 1.0}),
        ("Unsqueeze", {"pos": -1.0}),
        ("NarrowTable", {"offset": -1.0, "length": 1.0}),
        ("JoinTable", {"dimension": 0.0, "nInputDims": 1.0}),
        ("Sum", {"dimension": 0.0, "nInputDims": 1.0}),
        ("SelectTable", {"index": 0.0}),
    ],
)
def test_positions_of_zero_are_refused(name, fields):
    """Lua adds the batch to 0, or raises an error; Unsqueeze and NarrowTable do not count from the end."""
    with pytest.raises(UnsupportedLayerError, match="a position from 1"):
        live_module(TorchObject(f"nn.{name}", 1, Table.of(fields)))


@pytest.mark.parametrize(("kind", "name"), [("Function", "set_grad_enabled"), ("Function", "pow"), ("Binary", "save")])
def test_functions_are_those_of_the_layer_in_lua(kind: str, name: str):
    """A name in a file is not looked up in PyTorch, where the function would be called with the input."""
    with pytest.raises(UnsupportedLayerError, match=r"expected one of (sin|atan2), "):
        live_module(TorchObject(f"pt.{kind}", 1, Table.of({"name": name})))


def test_weights_with_negative_strides():
    """PyTorch has none, so they are copied, whether other tensors share the memory or not."""
    both = Tensor.from_numpy(np.arange(6.0).reshape(3, 2))
    layer = TorchObject("nn.Linear", 1, Table.of({"weight": both[1::-1, ::-1], "bias": both[2]}))
    assert live_module(layer).weight.tolist() == [[3, 2], [1, 0]]


@pytest.mark.parametrize("arguments", ["1) + (2", "1)(2", "**{'a': 1}", "{[]: 1}", "*[1]", "(" * 5000 + ")" * 5000])
def test_arguments_of_factories_are_literals(arguments: str):
    with pytest.raises(ModelError, match="are Python literals"):
        Factory.parse(f"nets.py:Net({arguments})")


def test_factories_that_cannot_be_imported(tmp_path):
    """Importing a file runs it, and a name may be none that Python can import."""
    (tmp_path / "net.py").write_text("1 / 0")
    for name in (f"{tmp_path / 'net.py'}:Net", ".net:Net"):
        with pytest.raises(ModelError, match="cannot be imported"):
            Factory.parse(name).load()


def test_a_transposed_tensor_has_no_rest():
    """A recorded tensor whose transpose a layer holds is that transpose, whatever the file has beside it."""
    layer = torch.nn.Linear(2, 3, bias=False)
    whole = Run("weight", start=0, count=6, transposed=True)
    record = Recorded(["w"], sizes={"w": (2, 3)}, pieces={"w": [whole]})
    keep_keys(layer, record, {"w": torch.zeros(2, 3)})
    assert torch.equal(layer.state_dict()["w"], layer.weight.t())


def test_a_tensor_with_a_rest_has_no_gradient():
    """A recorded tensor of which a layer holds a part only is a copy, also where PyTorch keeps parameters."""
    layer = torch.nn.Linear(2, 3, bias=False)
    part = Run("weight", start=0, count=6)
    record = Recorded(["w"], sizes={"w": (8,)}, pieces={"w": [part]})
    keep_keys(layer, record, {"w": torch.zeros(8)})
    whole = layer.state_dict(keep_vars=True)["w"]
    assert not whole.requires_grad
    assert torch.equal(whole[:6], layer.weight.flatten())


def test_order_of_what_does_not_fit():
    """What does not fit is said in PyTorch's order: missing keys, unexpected ones, then other shapes."""
    tensors = {name: Tensor.from_numpy(np.ones((2, 2), "f4")) for name in ("weight", "other")}
    plan = Plan(ModuleSpec("torch.nn.Linear", (2, 3)))
    with pytest.raises(ModelError, match=r"(?s)layers: Missing.*bias.*Unexpected.*other.*size mismatch for weight"):
        fill(torch.nn.Linear(2, 3), tensors, plan)


def linear_with_record():
    """A live linear layer whose state dict has recorded keys, and the transpose of its weight."""
    layer = linear()
    rows, columns = layer["weight"].size
    sizes = {"weight": (columns, rows), "bias": (rows,)}
    parts = {
        name: Table.of({"key": f"its.{name}", "size": Table.from_list([float(extent) for extent in size])})
        for name, size in sizes.items()
    }
    parts["weight"]["transposed"] = True
    layer["t7bridge"] = Table.of(parts)
    layer["t7bridge_state_dict"] = Table.of({"keys": Table.from_list([b"its.weight", b"its.bias"])})
    module = live_module(layer)
    weights = {key: value.clone() for key, value in module.state_dict().items()}
    assert {key: tuple(value.shape) for key, value in weights.items()} == {
        f"its.{name}": size for name, size in sizes.items()
    }
    return module, weights


@pytest.mark.parametrize("kernel", [torch.ones(2, 3), torch.ones(6), torch.ones(12), 5.0])
def test_recorded_tensors_of_other_shapes_are_refused(kernel):
    """As PyTorch does, under the recorded key; nothing else is said to be missing, and the layer keeps its weights."""
    module, weights = linear_with_record()
    module.load_state_dict(weights)
    with pytest.raises(RuntimeError, match=r"its\.weight") as caught:
        module.load_state_dict({**weights, "its.weight": kernel})
    assert "issing" not in str(caught.value)
    assert torch.equal(module.state_dict()["its.weight"], weights["its.weight"])


def test_state_dicts_without_some_recorded_keys():
    """With `strict=False` what is there is loaded; what is missing has the recorded name."""
    module, weights = linear_with_record()
    changed = {"its.weight": weights["its.weight"] + 1}
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "its\.bias"\. $'):
        module.load_state_dict(changed)
    module, weights = linear_with_record()
    result = module.load_state_dict({**changed, "more": torch.ones(1)}, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["its.bias"], ["more"])
    assert torch.equal(module.state_dict()["its.weight"], changed["its.weight"])
    assert torch.equal(module.state_dict()["its.bias"], weights["its.bias"])


def test_state_dicts_with_the_layers_own_keys():
    """They are loaded as they are, inside another module too."""
    module, weights = linear_with_record()
    own = {"0.weight": weights["its.weight"].t() + 1, "0.bias": weights["its.bias"] + 1}
    torch.nn.Sequential(module).load_state_dict(own)
    assert torch.equal(module.state_dict()["its.weight"], weights["its.weight"] + 1)


def test_an_empty_recorded_state_dict():
    """A module without tensors of its own may be layers that hold constants."""
    layer = linear()
    layer["t7bridge_state_dict"] = Table.of({"keys": Table.from_list([])})
    module = live_module(layer)
    assert module.state_dict() == {}
    module.load_state_dict({})
