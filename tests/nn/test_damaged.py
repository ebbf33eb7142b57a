"""Models whose fields were swapped, emptied or replaced still have a state dict."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers import corpus, read, walk

from t7bridge import Table, Tensor, TorchObject, state_dict
from t7bridge.errors import LimitError
from t7bridge.nn import find_modules

FILES = [path for path in corpus("nn/*.t7", "models/*.t7", "rnn/*.t7") if path.suffixes == [".t7"]]
ODD = [None, True, 0.0, -1.0, 1e308, float("nan"), float("inf"), 2.5, b"x", b"", Table()]
KEYS = [1.0, 2.0, b"weight", b"bias", b"modules", b"v", b"kW", True, float("nan")]
SHAPES = [(0,), (1,), (3, 2), (2, 3, 4, 5), ()]
CLASSES = ["nn.WeightNorm", "nn.LSTM", "nn.SeqLSTM", "cudnn.LSTM", "nn.gModule", "nn.PartialLinear", "my.Layer"]


def damage(root: object, rng: random.Random) -> None:
    """Change a few fields, keys and class names of a model."""
    values = [visit.value for visit in walk(root)]
    objects = [value for value in values if isinstance(value, TorchObject)]
    tables = [value if isinstance(value, Table) else value.fields for value in values if isinstance(value, Table)]
    tables += [value.fields for value in objects if value.fields]
    for _ in range(rng.randint(1, 6)):
        table = rng.choice([table for table in tables if len(table)])
        place = rng.randrange(len(table))
        kind = rng.randrange(5)
        if kind == 0:
            table.raw_values[place] = rng.choice(ODD)
        elif kind == 1:
            table.raw_values[place] = rng.choice(values)
        elif kind == 2:
            table.raw_values[place] = Tensor.from_numpy(
                np.zeros(rng.choice(SHAPES), rng.choice(["f4", "f2", "i8", "u1"]))
            )
        elif kind == 3:
            table.raw_keys[place] = rng.choice(KEYS)
            table._index = None
        elif objects:
            rng.choice(objects).class_name = rng.choice(CLASSES)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_models(seed):
    """For any values of the fields, only limits stop it, and every tensor lies in its storage."""
    rng, checked, limited = random.Random(seed), 0, 0
    for _ in range(25):
        root = read(str(rng.choice(FILES)))
        damage(root, rng)
        try:
            for path, module in find_modules(root):
                for tensor in state_dict(module, path).tensors.values():
                    tensor.check()
                    checked += 1
        except LimitError:
            limited += 1
    assert checked > 5
    assert limited < 5
