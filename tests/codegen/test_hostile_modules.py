"""Hostile `.t7` files as source: nothing of them runs, nothing is lost, nothing takes long."""

from __future__ import annotations

import ast
import functools
import random

import pytest
import torch
from bounds import bounded
from helpers import TESTFILES, read
from hostile_fields import RAN, STRINGS, cases, changed, outcome, tensor
from looping import new_folder
from source_helpers import generate, run_source

from t7bridge import Table, TorchObject, convert, load_module, save, verify, write_module
from t7bridge.codegen import SourceBuilder, apply, attribute, check_page, dotted, expression, formula, lines
from t7bridge.errors import LimitError, ModelError, T7BridgeError, UnsupportedError
from t7bridge.nn import find_modules

HOSTILE = TESTFILES / "hostile"
REFUSED = {
    row.split("`")[1]: row.split("refuses it: ")[1].rstrip(" |")
    for row in (HOSTILE / "README.md").read_text().splitlines()
    if "refuses it: " in row
}


def obj(name: str, /, **fields: object) -> TorchObject:
    """An object of a Lua class."""
    return TorchObject(name, 1, Table.of(fields))


def container(name: str, *modules: TorchObject, **fields: object) -> TorchObject:
    """A container with modules."""
    return obj(name, modules=Table.from_list([*modules]), **fields)


def linear(inputs: int, outputs: int) -> TorchObject:
    """An nn.Linear of ones."""
    return obj("nn.Linear", weight=tensor((outputs, inputs)), bias=tensor((outputs,)))


def node(*takes: Table, **fields: object) -> Table:
    """The data of a node of a graph: the data of the nodes that it takes, a module, the index that it selects."""
    return Table.of({**fields, "mapindex": Table.from_list([*takes])} if takes else fields)


def graph_of(*data: Table) -> TorchObject:
    """An nn.gModule of nodes in the order of their computation, the first the input, the last the output."""
    nodes = [obj("nngraph.Node", data=data_of_node) for data_of_node in data]
    modules = [data_of_node["module"] for data_of_node in data if "module" in data_of_node]
    return container("nn.gModule", *modules, innode=nodes[0], outnode=nodes[-1], forwardnodes=Table.from_list(nodes))


def test_no_class_is_left_of_modules_that_became_steps(tmp_path):
    """A Concat in a Sequential is steps of the class that an operator after it makes of the Sequential."""
    concat = container("nn.Concat", linear(4, 3), linear(4, 3), dimension=2.0)
    doubled = container("nn.Sequential", concat, obj("nn.MulConstant", constant_scalar=2.0), linear(6, 6))
    made, model = run_source(container("nn.Sequential", doubled, linear(6, 2)), tmp_path)
    assert [line for line in made.text.splitlines() if line.startswith("class ")] == [
        "class Block(nn.Module):",
        "class Model(nn.Module):",
    ]
    # Weights and biases of ones: 4 + 1, doubled, six of these + 1, and six of those + 1.
    assert model(torch.ones(1, 4)).tolist() == [[367.0, 367.0]]


def test_tied_normalizations_come_back(tmp_path):
    """Of modules with the same tensors, which are one in source, also the counters have keys: two that are computed."""
    shared = {name: tensor((3,)) for name in ("weight", "bias", "running_mean", "running_var")}
    options = {"eps": 1e-5, "momentum": 0.1, "affine": True, "nDim": 2.0}
    first, second = (obj("nn.BatchNormalization", **shared, **options) for _ in range(2))
    cell = read(TESTFILES / "architectures.t7")[b"word_lstm"][b"module"]
    model = container("nn.ConcatTable", cell, container("nn.Sequential", first, linear(3, 3), second))
    save(model, tmp_path / "model.t7")
    made, _ = run_source(model, tmp_path)
    assert made.keys["1.0.num_batches_tracked"] == made.keys["1.2.num_batches_tracked"]
    convert(tmp_path / "model.pt", tmp_path / "back.t7", template=tmp_path / "model.t7")
    assert verify(tmp_path / "model.t7", tmp_path / "back.t7").same
    live = load_module(tmp_path / "model.t7", lift=True)  # with the keys of the page, as it has recognized cells
    live.load_state_dict(torch.load(tmp_path / "model.pt"))


# Files that were found


def test_what_cannot_be_constructed_is_refused(subtests, tmp_path):
    """The error has the reason and the path, and neither a file nor a folder is left."""
    for name in sorted(REFUSED):
        with subtests.test(name=name), new_folder(tmp_path) as folder:
            with pytest.raises(ModelError, match=REFUSED[name]) as caught:
                write_module(HOSTILE / name, folder / "made" / "here")
            assert caught.value.path.startswith("root")
            assert list(folder.iterdir()) == []


def test_strings_and_numbers_stay_what_they_are(subtests, tmp_path):
    """A name or a number of a file is a literal of the page, and the page loads."""
    for name in ["module_select_code.t7", "module_select_key_code.t7", "module_selectindex.t7"]:
        with subtests.test(name=name), new_folder(tmp_path) as folder:
            with bounded():
                ((_, module),) = find_modules(read(HOSTILE / name))
                made, model = run_source(module, folder)
            index = module.get("index")
            if index is not None:
                constants = [node.value for node in ast.walk(ast.parse(made.text)) if isinstance(node, ast.Constant)]
                assert index.decode() in constants
                with pytest.raises((KeyError, TypeError, IndexError)):  # no list has such an element
                    model([torch.ones(2)])
            assert len(made.text) < 10_000


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (6.0, ModelError, "expected one of 2; found element 6"),
        (0.0, UnsupportedError, "selects something other than an element"),
        (-1.0, UnsupportedError, "selects something other than an element"),
    ],
)
def test_a_graph_that_takes_a_missing_element_is_refused(index, error, message):
    """The sixth element of a list of two is an error of the file, whatever asks for it; so are those before the first.

    Python would take an element from the end for these.
    """
    begin = node()
    branches = node(begin, module=container("nn.ConcatTable", obj("nn.Tanh"), obj("nn.Sigmoid")))
    selected = node(branches, selectindex=index)
    last = node(selected, module=obj("nn.Tanh"))
    end = node(last)
    with pytest.raises(error, match=message):
        generate(graph_of(begin, branches, selected, last, end), "root")


def test_a_softmax_of_nothing():
    """A node that takes nothing gets an empty list, as in Lua, and its input has no name."""
    begin = node()
    softmax = node(module=obj("nn.SoftMax"))
    weighted = node(softmax, begin, module=obj("nn.MM", transA=False, transB=False))
    end = node(weighted)
    assert "return self.softmax([]) @ input" in generate(graph_of(begin, softmax, weighted, end), "root").text


def of_states_of_a_cell(*select: dict[str, object]) -> str:
    """The statements of a graph that returns what some nodes select of the two states that a cell's class returns."""
    cell = read(TESTFILES / "cells.t7").as_list()[5][b"model"]
    begin = node()
    inputs = [node(begin, selectindex=index) for index in (1.0, 2.0, 3.0)]
    states = node(*inputs, module=cell)
    selected = [node(states, **fields) for fields in select]
    graph = graph_of(begin, *inputs, states, *selected, node(*selected))
    return generate(graph, "root").text.partition("class Model")[2]


def test_an_element_beyond_the_states_of_a_cell():
    """Where one is used that the cell's class does not return, its results have no names: the page fails there."""
    assert "return [x[0], x[2]]" in of_states_of_a_cell({"selectindex": 1.0}, {"selectindex": 3.0})


def test_a_state_of_a_cell_counted_from_the_end():
    """The last state, selected as element -1, is not the variable of a state that is not used."""
    assert "return self.graph([x1, x2, x3])[-1]" in of_states_of_a_cell({"module": obj("nn.SelectTable", index=-1.0)})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), [("module_names_inputs.t7", (2, 1, 8, 8)), ("module_nan.t7", (2, 3))])
def test_computes_what_the_live_module_does(name, shape, tmp_path):
    """Names that a page uses for itself, and constants that are not numbers, change no result."""
    ((_, module),) = find_modules(read(HOSTILE / name))
    _, model = run_source(module, tmp_path)
    torch.manual_seed(0)
    inputs = torch.randn(shape)
    live = load_module(HOSTILE / name)
    with torch.no_grad():
        torch.testing.assert_close(model(inputs.clone()), live(inputs.clone()), equal_nan=True)


# Every field of every class


def _outcomes(chosen_cases):
    """Return how many objects with a hostile value in a field are refused, and how many become a page that loads.

    No other outcome is allowed, and no text among the values may run: each would make the file `RAN`.
    """
    eval(STRINGS[0])
    assert RAN.exists(), "the strings do make the file where they run"
    RAN.unlink()
    counts = {"refused": 0, "loaded": 0}
    for name, field, value, sample in chosen_cases:
        try:
            happened = outcome(changed(sample, field, value))
        except Exception as error:
            pytest.fail(f"{name}.{field} = {value!r:.80}: {type(error).__name__}: {error}")
        assert happened in counts, f"{name}.{field} = {value!r:.80}: {happened}"
        counts[happened] += 1
    assert not RAN.exists()
    return counts


@pytest.mark.slow
def test_hostile_values_in_fields():
    """A value in any field is refused with its path, or the page parses, constructs and loads its weights."""
    counts = _outcomes(cases(seed=3, count=600))
    assert min(counts.values()) > 50


@pytest.mark.fuzz
def test_hostile_values_in_all_fields():
    """The same of every field of every class of the registry with every kind of value."""
    assert sum(_outcomes(cases()).values()) > 10_000


# Names


def named_chain(*names: str) -> TorchObject:
    """A graph of a chain of linear layers, whose nodes have names; the weights are 2, 3, … in turn, the biases 1."""
    chain_of_nodes = [node()]
    for weight, name in enumerate(names, 2):
        module = linear(2, 2)
        module["weight"].storage.array[:] = float(weight)
        annotations = Table.of({"name": name.encode("utf-8", "surrogatepass")})
        chain_of_nodes.append(node(chain_of_nodes[-1], module=module, annotations=annotations))
    return graph_of(*chain_of_nodes, node(chain_of_nodes[-1]))


NAMES = [
    ("fi", "\ufb01"),  # one name for Python
    ("inputs", "input", "self", "torch", "nn", "F"),
    ("class", "\U0001d41d\U0001d41e\U0001d41f", "None", "print", "float", "list"),
    ("__class__", "_modules", "forward", "parameters", "weight", "Model", "load"),
    ("x", "x1", "y", "x\u2028y", "\ud800", "a" * 5000),
    ("1", "0", "a.b", "self.x = 1\n", "{0}", "{m}"),
]


def test_names_of_nodes(subtests, tmp_path):
    """For any names of nodes, every layer is present once, in its place, and the page computes the same."""
    for names in NAMES:
        with subtests.test(repr(names)), new_folder(tmp_path) as folder:
            _, model = run_source(named_chain(*names), folder)
            assert len(list(model.parameters())) == 2 * len(names)
            expected = torch.ones(1, 2)
            for weight, _ in enumerate(names, 2):
                expected = expected @ torch.full((2, 2), float(weight)) + 1
            assert torch.equal(model(torch.ones(1, 2)), expected)


# Files that ask for much


def deep() -> TorchObject:
    """Containers inside one another."""
    model = obj("nn.Identity")
    for _ in range(3000):
        model = container("nn.Sequential", model)
    return model


def double() -> TorchObject:
    """A module that holds itself twice, 60 times."""
    model = obj("nn.Identity")
    for _ in range(60):
        model = container("nn.Sequential", container("nn.ConcatTable", model, model), obj("nn.CAddTable"))
    return model


def lists() -> TorchObject:
    """A value that becomes two, 40 times."""
    twice = [container("nn.ConcatTable", obj("nn.Identity"), obj("nn.Identity")) for _ in range(40)]
    return container("nn.Sequential", *twice)


def wide() -> TorchObject:
    """More values at a time than the 1000 that a method may have, side by side."""
    branches = [container("nn.Sequential", linear(1, 1), obj("nn.Sigmoid")) for _ in range(1200)]
    return container("nn.Concat", *branches, dimension=2.0)


def added() -> TorchObject:
    """More values at a time than the 1000 that a method may have, in one sum."""
    branches = [obj("nn.Sigmoid") for _ in range(1200)]
    return container("nn.Sequential", container("nn.ConcatTable", *branches), obj("nn.CAddTable"))


def selects() -> TorchObject:
    """Each value of a list, chosen by a layer of its own."""
    layers = [obj("nn.SelectTable", index=float(number)) for number in range(1, 2000)]
    return container("nn.Sequential", container("nn.ConcatTable", *layers), obj("nn.CAddTable"))


def chain() -> TorchObject:
    """Layers one after the other."""
    return container("nn.Sequential", *(obj("nn.Sigmoid") for _ in range(1500)))


@pytest.mark.slow
def test_work_is_bounded(subtests):
    """Generating takes time in proportion to the file, or is refused by a limit."""
    for bomb in (deep, double, lists, wide, added):
        with subtests.test(name=bomb.__name__):
            model = bomb()
            with bounded(), pytest.raises((LimitError, UnsupportedError)):
                generate(model)
    for long in (selects, chain):
        with subtests.test(name=long.__name__):
            model = long()
            with bounded():
                assert len(generate(model).text) < 100_000


# Different layers stay different


def test_layers_of_one_element_are_not_merged(subtests, tmp_path):
    """Layers that differ in a tensor of one element only keep each their own."""
    for name in ["nn.Mul", "nn.PReLU", "nn.Linear", "nn.Add"]:
        with subtests.test(name=name), new_folder(tmp_path) as folder:
            layers = []
            for number in range(2):
                shape = (1, 1) if name == "nn.Linear" else (1,)
                layer = obj(name, weight=tensor(shape), bias=tensor((1,)), nOutputPlane=0.0, scalar=True)
                layer["weight"].storage.array[:] = 3.0 + number
                layer["bias"].storage.array[:] = 5.0 + number
                layers.append(layer)
            _, model = run_source(container("nn.ConcatTable", *layers), folder)
            first, second = model(torch.full((2, 1), -2.0))
            assert not torch.equal(first, second)


def test_tensors_that_do_not_fit_are_refused():
    """A bias with more elements than outputs is refused, with its path, as `load_module` does."""
    model = container("nn.Sequential", obj("nn.Linear", weight=tensor((4, 3)), bias=tensor((7,))))
    with pytest.raises(ModelError, match="match") as caught:
        generate(model)
    assert caught.value.path == "root.modules[1].bias"


# The page is checked


PAGE = container("nn.Sequential", linear(2, 3), obj("nn.CMul", weight=tensor((3,))), obj("nn.Power", pow=2.0))
TAMPERED = {
    "an import": ("import torch\n", "import torch\nimport os\n"),
    "an alias": ("from torch import Tensor, nn", "from os import system as nn"),
    "a statement of the page": ("\n\ndef load(", "\n\nprint(1)\n\n\ndef load("),
    "a call in a forward": ("        return ", "        __import__('os')\n        return "),
    "a builtin": ("        return ", "        open('x')\n        return "),
    "an attribute": ("        return ", "        self.__class__\n        return "),
    "a function of torch": ("        return ", "        torch.hub\n        return "),
    "a lambda": ("        return ", "        x = lambda: 1\n        return "),
    "a name that is hidden": ("        return ", "        torch = 1\n        return "),
    "a layer that comes along": ("Return the shape of the input.", "Return another."),
    "a base class": ("class Model(nn.Module)", "class Model(nn.Linear)"),
    "an argument": ("weights: str | Path | None = None)", "weights: str | Path | None = None, os=1)"),
    "a default": ("weights: str | Path | None = None)", "weights: str | Path | None = open('x'))"),
    "an annotation": ("weights: str | Path | None = None)", "weights: open('x') = None)"),
    "a name in an annotation": ("weights: str | Path | None = None)", "weights: list[exit] = None)"),
    "what is returned": (") -> Model:", ") -> open('x'):"),
    "a keyword of a class": ("class Model(nn.Module)", "class Model(nn.Module, metaclass=print)"),
    "the left side of or": ("path = weights or", "path = open('x') or"),
    "a third side of or": ("path = weights or", "path = weights or open('x') or"),
    "another or": ("    return model.eval()", "    path = open('x') or path\n    return model.eval()"),
    "and": ("path = weights or", "path = weights and"),
    "a comprehension": ("        return ", "        [each for each in input]\n        return "),
    "no Python": ("        return ", "        return ("),
}


@pytest.mark.parametrize("name", sorted(TAMPERED))
def test_a_page_with_anything_else_in_it_is_refused(monkeypatch, name):
    """The check of the finished page refuses what this package does not write, wherever it came from."""
    before, after = TAMPERED[name]
    seen = []

    def tampered(text: str, builder: SourceBuilder, blocks: object, keys: object) -> None:
        check_page(text, builder, blocks, keys)
        assert before in text
        seen.append(name)
        check_page(text.replace(before, after, 1), builder, blocks, keys)

    monkeypatch.setattr("t7bridge.codegen.generate.check_page", tampered)
    with pytest.raises(ModelError, match=r"an unexpected construct|not Python"):
        generate(PAGE)
    assert seen


# Expressions


def _random_tree(rng: random.Random, depth: int) -> ast.expr:
    """Return an expression of operators, calls, lists and attributes."""
    if depth == 0:
        return rng.choice([*map(expression, (2.0, -2.0, 3, -1, "x" * 20)), *map(dotted, ("a", "b", "self.c" * 3))])
    inner = [_random_tree(rng, depth - 1) for _ in range(rng.randrange(1, 6))]
    kind = rng.randrange(6)
    if kind < 3:
        operator = formula(f"lambda x, y: x {'+-*'[kind]} y")
        return functools.reduce(operator, inner)
    if kind == 3:
        return attribute(inner[0], "real")
    return apply("torch.f", *inner, key=inner[0]) if kind == 4 else ast.List(inner)


@pytest.mark.slow
def test_lines_mean_what_their_trees_do():
    """Python reads an expression that is laid out over several lines as it was before."""
    rng = random.Random(5)
    long = 0
    for _ in range(1000):
        node = _random_tree(rng, rng.randrange(1, 5))
        text = "\n".join(lines(ast.Assign([dotted("a")], node), 0))
        assert ast.unparse(ast.parse(text)) == f"a = {ast.unparse(node)}".replace('"', "'")
        long += "\n" in text
    assert long > 400


def test_strings_are_literals(subtests):
    """A string reads as itself, on one line, in printable characters."""
    for value in ['"', "'", "\\", "\\'", '\\"', "'\"", "\n", "\u2028", "\x00", "\ud800", "é", "{x}", '"""', "a\\"]:
        with subtests.test(value=value):
            text = ast.unparse(expression(value))
            assert ast.literal_eval(text) == value
            assert text.isprintable()


def test_numbers_are_literals(subtests):
    """A number or tuple reads as itself."""
    for value in [float("nan"), float("inf"), float("-inf"), 1e300, -0.0, 10**30, True, None, (1,), ((), ("a", 2.5))]:
        with subtests.test(value=value):
            assert repr(eval(ast.unparse(expression(value)))) == repr(value)


def test_what_is_no_literal_is_refused(subtests):
    """Nothing else becomes source."""
    for value in [object(), b"bytes", [1], {"a": 1}, 1j, 10**500, "x".join]:
        with subtests.test(value=value), pytest.raises(T7BridgeError):
            expression(value)


def test_names_are_identifiers(subtests):
    """An invalid name is refused, wherever it is in the tree."""
    for name in ["a b", "class", "", "1a", "\ufb01", "a..b", "x;y", "a\n"]:
        with subtests.test(name=name):
            for make in (dotted, lambda each: attribute(dotted("x"), each), lambda each: apply("f", **{each: 1})):
                with pytest.raises(ModelError):
                    make(name)
