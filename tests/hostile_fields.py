"""Every field of every class with every kind of hostile value, and the outcome as source."""

from __future__ import annotations

import math
import os
import random
import tempfile
import types
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TESTFILES, corpus, read
from source_helpers import generate

from t7bridge import Storage, Table, Tensor, TorchObject
from t7bridge.errors import T7BridgeError
from t7bridge.graph import FLOAT32
from t7bridge.layers import Fields, registered_layers
from t7bridge.nn import Places, find_modules, is_scratch
from t7bridge.torchmodules import materialize

RAN = Path(tempfile.gettempdir(), f"t7bridge-ran-{os.getpid()}")
"""The file that the strings would make if they ran."""
_CODE = f"__import__('pathlib').Path('{RAN}').touch()"
STRINGS = (
    _CODE,
    f"'+{_CODE}+'",
    f'"+{_CODE}+"',
    f"\\'+{_CODE}+'",
    f'\\"]+[{_CODE}]#',
    "{0}{1}{m}'\"{x!r}%s$x",
    f'"""\n{_CODE}\n"""',
    f"x\n    {_CODE}",
    "\x00\u2028\ud800\U000e0041",
    "self",
    "inputs",
    "\ufb01",
    "class",
    "__class__",
    "weight",
    "a" * 5000,
)
NUMBERS = (
    *(float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 0.5, 1.0, -1.0, 2.0, -2.0, 3.0, 7.0, 100.3),
    *(1e9, -1e9, 2.0**31, 2.0**53, 1e18, 1e300, -1e300),
)


def values(other: TorchObject) -> Iterator[Any]:
    """The kinds of hostile values; `other` is an object of another class."""
    yield from (text.encode("utf-8", "surrogatepass") for text in STRINGS)
    yield from NUMBERS
    yield from (True, False, None, other)
    yield Table.from_list([])
    yield Table.from_list([1e9, -1.0, float("nan")])
    yield Table.from_list([_CODE.encode(), Table.from_list([2.0])])
    yield Table.from_list([other, other])
    yield Table.of({"size": 1e9, _CODE: 1.0})
    yield tensor((0,))
    yield tensor((7,))
    yield tensor((2, 3, 1, 1))
    yield Tensor(FLOAT32, Storage.from_array(_ones(1)), (1 << 30,), (0,))
    yield Storage.from_array(_ones(3).astype("i8") * -5)


def _ones(count: int) -> Any:
    import numpy

    return numpy.ones(count, "f4")


def tensor(size: tuple[int, ...]) -> Tensor:
    """A contiguous tensor of ones."""
    return Tensor.from_numpy(_ones(int(torch.Size(size).numel())).reshape(size))


def samples() -> dict[str, TorchObject]:
    """A small object of every class of the registry; of classes that no test file has, one that is guessed.

    It is the smallest of the files of single layers and models, and else of the long lists of cases, which take most of
    the time to read: one is read only if it names a class that is still missing.
    """
    found: dict[str, tuple[float, TorchObject]] = {}
    names = registered_layers()
    for path in [*corpus("nn/*.t7", "models/*.t7", "rnn/*.t7"), *corpus("*.t7")]:
        if path.stat().st_size > 4 << 20 or path.name.endswith((".io.t7", ".grad.t7")):
            continue
        if path.parent == TESTFILES:
            content = path.read_bytes()
            if not any(name.encode() in content for name in names if name not in found):
                continue
        for _, module in find_modules(read(path)):
            for place in Places(module):
                size = len(list(place.obj.fields)) * 10
                smallest, _ = found.get(place.obj.class_name, (math.inf, None))
                if size < smallest:  # before the modules inside are counted, which takes longer
                    size += _size(place.obj)
                if size < smallest:
                    found[place.obj.class_name] = (size, place.obj)
    linear = found["nn.Linear"][1]
    grown = {name: guessed(name, linear) for name in names if name not in found}
    return grown | {name: obj for name, (_, obj) in sorted(found.items())}


def asked(obj: TorchObject) -> set[str]:
    """The fields of an object that are looked up when its source is written."""
    found: set[str] = set()
    looked_up = Fields.get

    def get(self: Fields, path: str) -> Any:
        if self.obj is obj:
            found.update(each.partition(".")[0] for each in path.split("|"))
        return looked_up(self, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fields, "get", get)
        with suppress(T7BridgeError):
            generate(obj, "root")
    return found


def guessed(name: str, linear: TorchObject) -> TorchObject:
    """An object of a class that no test file has, with values for the fields that are looked up."""
    made = TorchObject(name, 1, Table.of({}))
    guesses = (1.0, tensor((2, 2)), tensor((2,)), Table.from_list([2.0, 2.0]), Table.from_list([linear]), linear, b"x")
    for _ in range(12):
        missing = sorted(asked(made) - set(made.fields))
        tried = [changed(made, missing[0], guess) for guess in guesses] if missing else []
        if not tried:
            break
        made = max(tried, key=lambda obj: (outcome(obj) == "loaded", len(asked(obj))))
    return made


def _size(obj: TorchObject) -> int:
    """Return the number of modules in a module."""
    return sum(1 for _ in Places(obj))


def changed(obj: TorchObject, field: str, value: Any) -> TorchObject:
    """A copy of an object with another value in one of its fields."""
    fields = Table.of(list(obj.fields.raw_items()))
    fields[field] = value
    return TorchObject(obj.class_name, obj.version, fields)


def cases(seed: int = 1, count: int | None = None) -> list[tuple[str, str, Any, TorchObject]]:
    """Class, field, value and object of each case; some of them, chosen at random, where a count is given."""
    found = []
    objects = samples()
    linear = objects["nn.Linear"]
    reads = {"dim", "size", "index", "p", "name", "mode", "inplace", "weight", "bias", "modules", "nInputDims"}
    for name, obj in objects.items():
        own = list(obj.fields)
        fields = {key for key in own if isinstance(key, str) and not is_scratch(key) and key != "_type"}
        for field in sorted(fields | asked(obj) | (reads if len(fields) < 3 else set())):
            found += [(name, field, value, obj) for value in values(linear)]
    random.Random(seed).shuffle(found)
    return found if count is None else found[:count]


def outcome(obj: TorchObject) -> str:
    """Return the outcome of an object: `refused`, or `loaded` for a page that constructs and loads its weights.

    Raises:
        AssertionError: the error has no path, or the page does not load.
    """
    try:
        made = generate(obj, "root")
    except T7BridgeError as error:
        return "refused" if error.path or getattr(error, "layers", ()) else f"refused without a path: {error}"
    module = types.ModuleType("model")
    module.__file__ = str(TESTFILES / "none.py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(made.text, "model.py", "exec", dont_inherit=True), module.__dict__)
        model = module.Model()
        model.load_state_dict(materialize(made.tensors), strict=True)
    return "loaded"
