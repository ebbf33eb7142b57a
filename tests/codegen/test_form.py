"""Form of generated source: formatted, nothing unused, no repetition, names that are free."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TESTFILES, corpus, layer_files, read
from hypothesis import given
from hypothesis import strategies as st
from source_helpers import generate, run_source

from t7bridge import Table, Tensor, TorchObject
from t7bridge.codegen import apply, copied, expression, lines
from t7bridge.codegen.code import Construction, applied
from t7bridge.codegen.statements import Writer
from t7bridge.codegen.steps import Attribute, CodeBlock, Ref, Step
from t7bridge.errors import LimitError
from t7bridge.nn import REQUIRED, RESERVED, TORCH, find_modules
from t7bridge.nn.mapping import ModuleSpec


@cache
def architectures() -> dict[str, TorchObject]:
    """Networks of well-known shapes, by name."""
    return {name.decode(): case[b"module"] for name, case in read(TESTFILES / "architectures.t7").raw_items()}


def sources() -> dict[str, str]:
    """The source of every model and of every class, by a name for its file."""
    texts = {f"{name}.py": generate(module, name).text for name, module in architectures().items()}
    for path in corpus("models/*.t7") + corpus("nn/*.t7"):
        if not path.name.endswith((".io.t7", ".grad.t7")):
            for inside, module in find_modules(read(path)):
                texts[f"{path.stem}_{inside}.py".replace("root.", "")] = generate(module, inside).text
    for name, case in read(TESTFILES / "nn_options.t7").raw_items():
        texts[f"option_{name.decode()}.py"] = generate(case[b"module"]).text
    return texts


@pytest.mark.slow
def test_is_formatted_and_clean(tmp_path):
    """Ruff would change nothing in any of them, and finds no fault."""
    texts = sources()
    assert len(texts) > 600
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    ruff = str(Path(sys.executable).with_name("ruff"))
    for arguments in (["format", "--diff"], ["check", "--select", "E,F,I,W,B,UP,C4,SIM", "--ignore", "B905"]):
        run = subprocess.run([ruff, *arguments, "--isolated", "."], cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[:3000]


EXPRESSIONS = st.recursive(
    (st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9) | st.text("ab", max_size=30)).map(
        expression
    ),
    lambda inside: st.builds(
        lambda items, of: ast.Call(ast.Name("f"), items, []) if of is ast.Call else of(items),
        st.lists(inside, max_size=4),
        st.sampled_from([ast.List, ast.Tuple, ast.Call]),
    ),
    max_leaves=12,
)


@given(EXPRESSIONS, st.integers(1, 80), st.integers(0, 30), st.sampled_from(["value", "argument", "return", "several"]))
def test_lines_are_the_expression_wherever_they_end(node, length, indent, place):
    """Where a line ends changes nothing: no comma that makes a tuple is lost, no bracket moves."""
    name = "x" * length
    called = apply("f", **{name: node})
    statement = {
        "value": ast.Assign([ast.Name(name)], node),
        "argument": ast.Assign([ast.Name("y")], called),
        "return": ast.Return(node),
        "several": ast.Assign([ast.Tuple([ast.Name(name)] * (1 + indent % 3))], called),
    }[place]
    text = "\n".join(line[indent:] for line in lines(statement, indent))
    (parsed,) = ast.parse(text).body
    expected = ast.parse(ast.unparse(ast.fix_missing_locations(statement))).body[0]
    assert ast.dump(parsed) == ast.dump(expected), text


def test_returned_values_have_a_line_each():
    """What is returned as a tuple is not put on one line inside its brackets, as Ruff would change that."""
    names = ["a" * 28, "b" * 40, "c" * 6]
    statement = ast.Return(ast.Tuple([*map(ast.Name, names)]))
    assert lines(statement, 4) == ["    return (", *(f"        {name}," for name in names), "    )"]


def test_blocks_that_differ_in_numbers_are_one_class():
    """A residual network has a class for each kind of block, with parameters named after what they are given for."""
    text = generate(architectures()["resnet_bottleneck"]).text
    assert text.count("class Residual") == 2
    assert "def __init__(self, channels: int, out_channels: int) -> None:" in text
    assert "Residual2(8, 2)" in text


def test_repeated_calls_and_operators():
    """Operators and calls of torch are written as such, not as modules."""
    text = generate(architectures()["word_lstm"], lift=False).text
    assert "torch.sigmoid(" in text
    assert "class Graph" not in text
    assert "getattr" not in text
    assert "for " not in text.partition("class Model")[2]
    assert "self.decoder = nn.Linear(4, 7)" in text


def test_tied_weights_stay_tied(tmp_path):
    """A parameter that two layers have is one parameter; a branch that is shared is one module."""
    _, model = run_source(architectures()["tied"], tmp_path)
    assert len(list(model.parameters())) == len(list(model.named_parameters(remove_duplicate=False))) - 2
    text = generate(architectures()["triplet"]).text
    assert text.count("nn.Conv2d") == 1


def test_what_changes_its_input_keeps_its_turn(tmp_path):
    """A layer that changes a value in place is not moved past later readers of it."""
    text = generate(architectures()["wide_resnet"]).text
    assert "x = self.layers(input)\n        return self.body(x) + self.shortcut(x)" in text


def test_dropout_copies_only_where_others_could_tell():
    """Lua's dropout copies in evaluation: source has a class that does where a layer in place could write into it."""
    models = [case[b"module"] for _, case in read(TESTFILES / "match_models.t7").raw_items()]
    texts = [generate(module).text for module in (architectures()["pix2pix"], *models)]
    texts = [text for text in texts if "Dropout" in text]
    assert len(texts) == 2
    # Other layers work in place, but none could write into the output of the dropout.
    assert all("inplace=True" in text and "nn.Dropout(" in text and "class Dropout" not in text for text in texts)
    cases = [case for case in read(TESTFILES / "found_nets.t7").as_list() if case[b"text"].startswith(b"Dropout")]
    assert {case[b"text"]: "class Dropout" in generate(case[b"model"]).text for case in cases} == {
        b"Dropout, its input is changed later": True,
        b"Dropout and View, their input is changed later": True,
        b"Dropout, its output is changed": True,
        b"Dropout in place, its input goes elsewhere": False,
        b"Dropout in a graph, its input is changed later": True,
    }


def test_index_base(tmp_path):
    """1-based numbers of Lua can become 0-based."""
    _, one = run_source(architectures()["sentences"], tmp_path)
    _, zero = run_source(architectures()["sentences"], tmp_path, index_base=0)
    words = torch.tensor([[1, 2, 3, 4, 5, 9]])
    assert torch.equal(one(words), zero(words - 1))


@pytest.mark.parametrize("name", sorted(TORCH))
def test_arguments_are_those_of_torch(name):
    """Names, order and defaults of the arguments that the table knows are PyTorch's own."""
    torch_class = getattr(torch.nn, name)
    in_table = TORCH[name].arguments
    if issubclass(torch_class, torch.nn.RNNBase):
        # Its classes take `*args`, which they pass to it; only one of them, RNN, has a nonlinearity.
        of_base = inspect.signature(torch.nn.RNNBase).parameters
        assert {*in_table} <= {*of_base, "nonlinearity"} - {"mode"}
        return
    parameters = inspect.signature(torch_class).parameters
    assert [*parameters][: len(in_table)] == [*in_table]
    for argument, default in in_table.items():
        declared = parameters[argument].default
        if default is REQUIRED:
            assert declared in (inspect.Parameter.empty, None)
        elif isinstance(declared, float):
            assert default == pytest.approx(declared)
        else:
            assert default == declared


def test_reserved_names_are_those_of_modules():
    """No layer is called as a method of every module is."""
    own = {name for name in dir(torch.nn.Sequential) if not name.startswith(("_", "register_"))}
    assert own <= RESERVED


def test_layers_have_one_name_each():
    """Pieces of different files can be combined in one source: no name is used twice."""
    seen: dict[str, str] = {}
    for home in layer_files():
        for name, piece in copied.pieces_in(home).items():
            assert seen.setdefault(name, piece.text) == piece.text, f"{name} is in two files"
    assert len(seen) > 200


@pytest.mark.parametrize(
    ("name", "remembers"),
    [
        ("recurrent.FastLSTM", True),
        ("sequence.MaskedSequencer", True),
        ("pooling.IndexedMaxPool2d", True),
        ("training.GradientReversal", False),
        ("shape.View", False),
    ],
)
def test_modules_that_remember_are_known(name, remembers):
    """Only modules that keep nothing from call to call may become one where their weights are tied."""
    assert any(piece.keeps_state for piece in copied.pieces(f"t7bridge.torchmodules.layers.{name}")) == remembers


def _block_of_cells(count: int) -> CodeBlock:
    """A class that calls one cell several times, and returns all states."""
    cell = Attribute("rnn", [Construction("RNNCell")], name="rnn")
    calls = [Step(applied, [Ref(0)], attribute=cell, result_names=("h",)) for _ in range(count)]
    states = [Ref(number) for number in range(1, count + 1)]
    return CodeBlock(ModuleSpec("Model"), "Model", steps=[Step(applied, []), *calls], result=states, attributes=[cell])


def test_element_type_of_a_page_is_the_first_of_equally_many():
    """A layer with two element types has the same page in each run, though sets of names have another order."""
    for first, second, cast in (("f8", "f4", ".double()"), ("f4", "f8", ""), ("f2", "f8", ".half()")):
        tensors = {"weight": Tensor.from_numpy(np.ones((2, 3), first)), "bias": Tensor.from_numpy(np.ones(2, second))}
        text = generate(TorchObject("nn.Linear", 1, Table.of(tensors))).text
        assert f"    model = Model(){cast}\n" in text


def test_element_type_of_a_container_is_not_that_of_what_is_inside():
    """A method that casts a container casts the modules inside, too, which get their own type back after it."""
    norm = read(TESTFILES / "nn" / "WeightNorm.t7")
    for name in ("g", "v"):
        norm[name] = Tensor.from_numpy(norm[name].numpy().astype("f2"))
    layers = [norm]
    for value in range(3):  # so that most tensors have float32
        tensors = {"weight": np.full((3, 3), value, "f4"), "bias": np.full(3, value, "f4")}
        fields = {name: Tensor.from_numpy(array) for name, array in tensors.items()}
        layers.append(TorchObject("nn.Linear", 1, Table.of(fields)))
    modules = Table.of([*enumerate(layers, 1)])
    text = generate(TorchObject("nn.Sequential", 1, Table.of({"modules": modules}))).text
    assert "    model.layers[0].half()\n    model.layers[0][0].float()\n" in text


def test_more_states_than_names():
    """A page with more states at a time than there are names for them is refused."""
    *calls, _ = Writer(_block_of_cells(1000)).statements
    assert len({ast.unparse(call.targets[0]) for call in calls}) == 1000
    with pytest.raises(LimitError, match="more than 1000 values at a time"):
        Writer(_block_of_cells(1001))


def test_imports_in_the_order_of_their_names():
    """Import statements of one module do not depend on the order of a set."""
    names = [("m", "Z", ""), ("m", "B", "OwnB"), ("m", "A", "")]
    expected = ["from m import A, Z", "from m import B as OwnB"]
    # What a set yields first depends on the hashes of the run.
    assert all(copied.import_lines(list(order)) == expected for order in permutations(names))


def test_imports_of_a_user_are_not_among_those_of_the_standard_library():
    """A module that Python does not have is in the group of PyTorch, as isort and Ruff order imports."""
    imports = [("my.layers", "Softmax", "OwnSoftmax"), ("torch", "", ""), ("pathlib", "Path", "")]
    expected = ["from pathlib import Path", "", "import torch", "from my.layers import Softmax as OwnSoftmax"]
    assert copied.import_lines(imports) == expected
