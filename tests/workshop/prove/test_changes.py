"""Changes of one weight or option that show in what Lua Torch computes, as it measured them itself, are found.

`testfiles/prove/changes.tsv` has a row for each: file, path, class, field, index of the weight, new value, and the
largest change of the output in units of 1e-5 + 1e-4 |output|.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers import TESTFILES
from prove_changes import recorded_input, replaced, shows

import t7bridge
from t7bridge import Storage, T7Reader, TorchObject
from t7bridge.nn.places import module_at
from t7bridge.workshop.prove.proof import LayerProof

ROWS = [line.split("\t") for line in (TESTFILES / "prove/changes.tsv").read_text().splitlines()]


def read(name: str) -> Any:
    """A recorded model."""
    return T7Reader(TESTFILES / "prove" / name).read_object()


def changed(row: list[str]) -> tuple[Any, TorchObject]:
    """The file of a row with its change, and the changed layer."""
    name, path, _, field, index, value, _ = row
    model = read(name)
    obj = module_at(model, path)
    assert obj is not None
    if index:
        tensor = obj[field]
        places = np.unravel_index(int(index), tensor.size)
        array = tensor.storage.array.copy()
        array[tensor.offset + sum(int(place) * step for place, step in zip(places, tensor.stride))] = float(value)
        replaced(model, tensor.storage, Storage.from_array(array))
    else:
        obj[field] = {"true": True, "false": False}.get(value) if value in ("true", "false") else float(value)
    return model, obj


@cache
def sound_layers(name: str) -> dict[str, LayerProof]:
    """The verdicts on the layers of a model without a change, by path."""
    proof = t7bridge.prove(read(name))
    assert proof.exit_code == 0, name
    return {layer.path: layer for layer in proof.layers}


def is_hidden(row: list[str], obj: TorchObject, layer: LayerProof) -> bool:
    """Whether no recorded value shows a change: of its layer there is none, or an activation in place made it zero."""
    name, path, *_ = row
    if layer.verdict == "not recorded":
        return True
    before = module_at(read(name), path)
    if "compared as one" not in layer.reason or before is None:
        return False
    return not shows(obj, before, recorded_input(read(name), path), behind=True)


def missed(rows: list[list[str]]) -> tuple[int, int, list[list[str]]]:
    """Counts of changes that were found and named and of those that no recorded value shows, and the missed ones."""
    found, hidden, left = 0, 0, []
    for row in rows:
        name, path, *_ = row
        sound_layer = sound_layers(name)[path]
        model, obj = changed(row)
        proof = t7bridge.prove(model)
        if proof.exit_code == 1 and path in [layer.path for layer in proof.of("differs")]:
            found += 1
        elif path in [layer.path for layer in proof.updated]:
            hidden += 1  # no other layer with weights is recorded: it looks like an update
        elif is_hidden(row, obj, sound_layer):
            hidden += 1
        else:
            left.append(row)
    return found, hidden, left


def test_the_list_is_what_lua_measured():
    """Every row shows in Lua, and weights and options of many classes are among them."""
    assert len(ROWS) >= 200
    assert all(float(row[6]) > 1 for row in ROWS)
    assert len({row[2] for row in ROWS}) >= 25
    assert len({row[3] for row in ROWS}) >= 15


@pytest.mark.slow
def test_every_sixth_change_is_found():
    """Of the list of changes every sixth, those that are recorded, is found and its layer named."""
    found, hidden, left = missed(ROWS[::6])
    assert left == []
    assert found >= 35
    assert hidden <= 4


@pytest.mark.fuzz
def test_200_changes_are_found():
    """Of the whole list, every change that shows in what the file holds is found and its layer named."""
    found, hidden, left = missed(ROWS)
    assert left == []
    assert found >= 220
    assert hidden <= 16
