"""Changes of models that `prove` must find: one weight by a thousandth of its size, or one option of a layer.

A change counts only where it shows: where the layer, run on the input that Lua recorded, returns something else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from attrs import define
from helpers import TESTFILES

import t7bridge
from t7bridge import Storage, T7Reader, Table, Tensor, TorchObject
from t7bridge.nn import module_at
from t7bridge.workshop.prove import Proof

PROVE = TESTFILES / "prove"
OPTIONS: dict[str, Callable[[float], float]] = {
    "eps": lambda value: value * 10 if value > 1e-7 else 1e-3,
    "padW": lambda value: value + 1,
    "padH": lambda value: value + 1,
    "dW": lambda value: value + 1,
    "dH": lambda value: value + 1,
    "kW": lambda value: value + 1,
    "ceil_mode": lambda value: not value,
    "count_include_pad": lambda value: not value,
    "negval": lambda value: value * 1.3 + 0.01,
    "alpha": lambda value: value * 1.1,
    "threshold": lambda value: value + 0.3,
    "constant_scalar": lambda value: value + 0.01,
    "min_val": lambda value: value + 0.4,
    "dimension": lambda value: 3 - value if value < 3 else 1,
}


def read(name: str) -> Any:
    """A recorded model, or a checkpoint with one."""
    return T7Reader(PROVE / f"{name}.t7").read_object()


def at(value: Any, path: str) -> TorchObject:
    """The module at a path."""
    found = module_at(value, path)
    assert found is not None
    return found


@define
class Change:
    """One change: where, in what field, and what it was."""

    path: str
    field: str
    what: str


def shows(obj: TorchObject, before: TorchObject, given: Any, ratio: float = 2e-6, behind: bool = False) -> bool:
    """Return whether the output of a changed layer differs from before by more than float rounding hides.

    Args:
        obj: the changed layer.
        before: the layer as it was.
        given: its input.
        ratio: of the largest output that a change must exceed.
        behind: whether a layer in place came after it, so that the file has its outputs where these are not zero only.
    """
    from t7bridge.workshop.prove.layer import LiveLayer, NotRunError, flat

    try:
        old = list(flat(LiveLayer.build(before, "root", 2.0**-24).run(given)))
        new = list(flat(LiveLayer.build(obj, "root", 2.0**-24).run(given)))
    except (NotRunError, ValueError, NotImplementedError):
        return True
    kept = before.get("output")
    for one, two in zip(old, new):
        if one.shape != two.shape:
            return True
        change = (one - two).abs()
        if behind and isinstance(kept, Tensor) and kept.numel == change.numel():
            change = change * torch.from_numpy(kept.numpy() != 0).reshape(change.shape)
        if float(change.max()) > ratio * float(one.abs().max()):
            return True
    return False


def replaced(value: Any, old: Storage, new: Storage) -> None:
    """Give every tensor of a value that views one storage another."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor) and item.storage is old:
            item.storage = new
        elif isinstance(item, Table):
            stack += item.raw_values
        elif isinstance(item, TorchObject) and item.fields is not None:
            stack += item.fields.raw_values


def changes(path: Any, number: int, seed: int, options: bool) -> Iterator[tuple[Change, Proof]]:
    """Change one thing of a file that was sound, prove it, and do so again.

    Args:
        path: the file.
        number: how many changes.
        seed: of the choice.
        options: whether options are changed, not weights.
    """
    draw = random.Random(f"{seed} {path.name}")
    sound = t7bridge.prove(T7Reader(path).read_object())
    assert sound.exit_code == 0, sound.sentence()
    paths = [layer.path for layer in sound.layers if layer.verdict == "agrees" and layer.compared]
    paths = [one for one in paths if "gradient was checked" not in sound_reason(sound, one)]
    done = 0
    for _ in range(20 * number):
        if done == number or not paths:
            return
        value = T7Reader(path).read_object()
        place = draw.choice(paths)
        obj = module_at(value, place)
        if obj is None:
            continue
        change = _option(obj, place, draw) if options else _weight(value, obj, place, draw)
        if change is None:
            continue
        before = module_at(T7Reader(path).read_object(), place)
        given = recorded_input(value, place)
        behind = "compared as one" in sound_reason(sound, place)
        if given is None or before is None or not shows(obj, before, given, behind=behind):
            continue
        done += 1
        yield change, t7bridge.prove(value)


def sound_reason(proof: Proof, path: str) -> str:
    """The reason that a layer has for its verdict."""
    return next(layer.reason for layer in proof.layers if layer.path == path)


def recorded_input(value: Any, place: str) -> Any:
    """The input that a layer had in its last run, as far as the file still holds it."""
    from t7bridge.nn import find_modules
    from t7bridge.workshop.prove.layer import map_tensors, to_torch
    from t7bridge.workshop.prove.recorded import is_complete
    from t7bridge.workshop.prove.runs import runs

    for root, module in find_modules(value):
        for step in reversed(runs(module, root)):
            if step.path == place and is_complete(step.input):
                return map_tensors(to_torch(step.input), torch.Tensor.double)
    return None


def swap_gates(obj: TorchObject, gates: int, one: int, two: int) -> None:
    """Put the weights of two gates in each other's place, in a layer that keeps those of all in one matrix."""
    axis = 1 if obj.class_name in ("nn.SeqLSTM", "nn.SeqGRU") else 0
    for name in ("weight", "bias"):
        tensor = obj.get(name)
        if isinstance(tensor, Tensor) and tensor.numel:
            parts = np.split(tensor.numpy(), gates, axis if len(tensor.size) > 1 else 0)
            parts[one], parts[two] = parts[two], parts[one]
            joined = np.concatenate(parts, axis if len(tensor.size) > 1 else 0)
            obj[name] = Tensor.from_numpy(np.ascontiguousarray(joined))


def _option(obj: TorchObject, place: str, draw: random.Random) -> Change | None:
    gates = {"nn.SeqLSTM": 4, "nn.SeqGRU": 3}.get(obj.class_name)
    if gates is not None:
        one, two = draw.sample(range(gates), 2)
        swap_gates(obj, gates, one, two)
        return Change(place, "gates", f"{one} and {two} in each other's place")
    names = [name for name in OPTIONS if isinstance(obj.get(name), (float, bool))]
    if not names:
        return None
    name = draw.choice(names)
    old = obj.get(name)
    obj[name] = OPTIONS[name](old)
    return Change(place, name, f"{old} became {obj.get(name)}")


def _weight(value: Any, obj: TorchObject, place: str, draw: random.Random) -> Change | None:
    names = ("weight", "bias", "running_mean", "running_var")
    found = [name for name in names if isinstance(obj.get(name), Tensor) and obj.get(name).numel]
    if not found:
        return None
    name = draw.choice(found)
    tensor = obj.get(name)
    array = tensor.storage.array.copy()
    steps = [step * array.itemsize for step in tensor.stride]
    view = np.lib.stride_tricks.as_strided(array[tensor.offset :], tensor.size, steps)
    index = tuple(draw.randrange(extent) for extent in tensor.size)
    old = float(view[index])
    view[index] = old * 1.001
    replaced(value, tensor.storage, Storage.from_array(array))
    return Change(place, name, f"{list(index)} {old:.6g} became {float(view[index]):.6g}")
