"""The facts that entries declare about classes of modules."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest
import torch

import t7bridge.codegen
import t7bridge.nn.layers
from t7bridge.codegen.idioms import WRITERS
from t7bridge.codegen.lists import FLOWS
from t7bridge.errors import ModelError
from t7bridge.nn.mapping import LAYERS, of_runtime
from t7bridge.nn.registry import register_layer, unregister_layer
from t7bridge.nn.traits import Traits, declared_traits, traits_of

CODEGEN = Path(t7bridge.codegen.__file__).parent


def class_named(target: str) -> type:
    """The class of a declaration."""
    home, _, name = (target if target.startswith("torch.") else LAYERS + target).rpartition(".")
    found = getattr(import_module(home), name)
    assert isinstance(found, type)
    return found


@pytest.mark.parametrize("target", declared_traits())
def test_a_declared_class_exists(target: str) -> None:
    """Traits are those of a class of modules: a slip in its name would lose them without a word."""
    assert issubclass(class_named(target), torch.nn.Module)


def test_writers_exist_and_are_used() -> None:
    """Entries and the source writer agree on the names of writers: none is missing, none is left over."""
    named = {traits.written[0] for traits in declared_traits().values() if traits.written}
    assert named == {*WRITERS, *FLOWS}


def test_the_source_writer_knows_no_layer_by_name() -> None:
    """No string in codegen is a class of `torchmodules/layers`; those are in the entries."""
    home = CODEGEN.parent / "torchmodules" / "layers"
    classes = {
        f"{path.stem}.{node.name}"
        for path in home.glob("*.py")
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
    """An entry declares the traits of its class, once, and takes them along."""
    facts = Traits(takes_list=True, written=("fold", "+"))
    register_layer("my.Sum", "my.Total", module=of_runtime("my.Sum"), traits={"my.Sum": facts})
    try:
        assert traits_of(f"{LAYERS}my.Sum") == facts
        with pytest.raises(ModelError, match=r"traits of my\.Sum are declared already"):
            register_layer("my.Other", traits={"my.Sum": Traits()})
        unregister_layer("my.Sum")
        assert traits_of(f"{LAYERS}my.Sum") == facts, "its other name still has it"
    finally:
        unregister_layer("my.Sum")
        unregister_layer("my.Total")
    assert traits_of(f"{LAYERS}my.Sum") == Traits()
