"""The facts that entries declare about classes of modules."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

import pytest
import torch
from helpers import TESTFILES, layer_files, walk

import t7bridge
import t7bridge.codegen
import t7bridge.nn.layers
from t7bridge import Table, TorchObject
from t7bridge.codegen import IDIOMS, LISTS
from t7bridge.errors import ModelError
from t7bridge.layers import (
    Call,
    Fields,
    Lua,
    RecurrentLayer,
    Row,
    Traits,
    becomes,
    layer_of,
    register_layer,
    registered_layers,
    unregister_layer,
)
from t7bridge.nn import LAYERS, Choice, ParamsOf, declared_traits, of_runtime, traits_of

CODEGEN = Path(t7bridge.codegen.__file__).parent


def class_named(target: str) -> type:
    """The class of a declaration."""
    home, _, name = target.rpartition(".")
    found = getattr(import_module(home), name)
    assert isinstance(found, type)
    return found


def test_a_declared_class_exists() -> None:
    """Traits are those of a class of modules: a slip in its name would lose them without a word."""
    for target in declared_traits():
        assert issubclass(class_named(target), torch.nn.Module), target


def test_classes_that_others_become_exist() -> None:
    """So do the classes that the facts about another name, and those of Lua that facts about one are declared for."""
    for facts in declared_traits().values():
        recurrent = facts.recurrent or RecurrentLayer("LSTM")
        named = (facts.typed, facts.connecting, facts.remembering, facts.stacking, recurrent.layer, recurrent.stateful)
        for name in filter(None, named):
            assert class_named(LAYERS + name)
        for name in filter(None, (facts.over_dim, facts.copying)):
            assert class_named(name)
    for layer in registered_layers().values():
        assert set(layer.in_lua) <= {*layer.names}


def test_every_entry_declares_its_classes() -> None:
    """PyTorch equivalents are data: a row, or a function with the classes that it may return; each of them exists."""
    for name, layer in registered_layers().items():
        assert isinstance(layer.params, (tuple, ParamsOf)), name
        for mapped in layer.modules.values():
            assert isinstance(mapped, (Row, Choice)), name
            targets = mapped.targets if isinstance(mapped, Choice) else (mapped.target,)
            assert all(issubclass(class_named(target), torch.nn.Module) for target in targets)


def test_only_declared_classes_are_made() -> None:
    """A function cannot return a class that its entry does not declare, so that the page of layers is complete."""

    @becomes("shape.View")
    def other(lua: Lua) -> Call:
        return Call(f"{LAYERS}shape.Reshape")

    with pytest.raises(AssertionError, match=r"shape\.Reshape is not declared"):
        other(Lua(TorchObject("my.View", 1, Table.of({}))))


@pytest.mark.slow
def test_entries_declare_the_tensors_that_they_find() -> None:
    """The names of tensors that depend on the fields are among those that the entry declares."""
    checked = set()
    paths = [
        *TESTFILES.glob("*.t7"),
        *TESTFILES.glob("nn/*.t7"),
        *TESTFILES.glob("rnn/*.t7"),
        *TESTFILES.glob("legacy/*.t7"),
    ]
    for path in paths:
        for obj in (visit.value for visit in walk(t7bridge.load(path)) if isinstance(visit.value, TorchObject)):
            layer = layer_of(obj.class_name)
            if layer is None or not isinstance(layer.params, ParamsOf):
                continue
            for param in layer.params_of(Fields(obj, "", layer.defaults)):
                assert any(fnmatchcase(param.name, name) for name in layer.params.names), (path, param.name)
                checked.add(obj.class_name)
    assert {"nn.FastLSTM", "nn.GRU", "inn.MeanSubtraction"} <= checked


def test_writers_exist_and_are_used() -> None:
    """Entries and the source writer agree on the names of writers: none is missing, none is left over."""
    named = {traits.written[0] for traits in declared_traits().values() if traits.written}
    assert named == {*IDIOMS, *LISTS, "flow"}


@pytest.mark.slow
def test_the_source_writer_knows_no_layer_by_name() -> None:
    """No string in codegen is a class of this package's layers; those are in the entries."""
    classes = {
        f"{path.stem}.{node.name}"
        for path in layer_files().values()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    assert len(classes) > 200, "the classes are found"
    found = {
        (path.name, node.value)
        for path in CODEGEN.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in classes
    }
    assert not found


def test_traits_come_and_go_with_their_entry() -> None:
    """An entry declares the traits of its class, once, and removes them with itself."""
    facts = Traits(takes_list=True, written=("fold", "+"))
    register_layer("my.Sum", "my.Total", module=of_runtime("my.Sum"), traits={"my.Sum": facts})
    try:
        assert traits_of(f"{LAYERS}my.Sum") == facts
        with pytest.raises(ModelError, match=r"traits of \S*my\.Sum are already declared"):
            register_layer("my.Other", module=of_runtime("my.Sum"), traits={"my.Sum": Traits()})
        assert traits_of("my.Sum") == Traits(), "a class of that name in a user's file is another one"
        unregister_layer("my.Sum")
        assert traits_of(f"{LAYERS}my.Sum") == facts, "its other name still has it"
    finally:
        unregister_layer("my.Sum")
        unregister_layer("my.Total")
    assert traits_of(f"{LAYERS}my.Sum") == Traits()
