"""Random checkpoints through `convert` and `verify`: what a conversion leaves out is what the comparison lists.

A `.pt` holds tensors of many types, shared and strided, plain values, shared containers, numpy's arrays, and objects
and modules of classes that only the file names. It is converted to every format in both modes: `verify` and `diff` then
find no difference, and list as missing exactly what the notes of the conversion named. `.pt → .t7 → .pt` returns the
values that PyTorch had, with state dicts for modules and dicts for objects, for `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import types
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import t7bridge
from t7bridge.errors import T7BridgeError

SUFFIXES = (".t7", ".pt", ".safetensors", ".h5", ".npz")
MODES = ("auto", "tree")
# In a .t7 every field is kept in any case: the mode is not for it.
JOBS = [(suffix, mode) for suffix in SUFFIXES for mode in MODES if (suffix, mode) != (".t7", "tree")]
LESS = frozenset({"left-out", "metadata", "precision", "trailing"})
"""The codes of notes about what the target does not show."""
_DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.float8_e4m3fn),
]
_NUMBERS = [
    0,
    1,
    -3,
    2**53 + 1,
    10**30,
    0.0,
    -0.0,
    1.5,
    3.0,
    1e300,
    float("inf"),
    float("nan"),
    True,
    False,
    193994056061335.0,
]
_TEXTS = ["", "cat", "ünïcode", "a.b", "x" * 300, "1"]


class Net(nn.Module):
    """A module of a class that no reader knows."""


class Thing:
    """An object of such a class."""


def own_classes() -> None:
    """Let pickle find the classes as `models.Net` and `models.Thing`."""
    module: Any = types.ModuleType("models")
    for cls in (Net, Thing):
        cls.__module__, cls.__qualname__ = "models", cls.__name__
        setattr(module, cls.__name__, cls)
    sys.modules["models"] = module


class Values:
    """Makes random values.

    Args:
        seed: of the random numbers.
    """

    def __init__(self, seed: str) -> None:
        self.choose = random.Random(seed)
        self.generator = torch.Generator().manual_seed(self.choose.randrange(2**31))
        self.containers: list[Any] = []
        self.tensors: list[torch.Tensor] = []

    def tensor(self) -> torch.Tensor:
        """Return a tensor, or a view of an earlier one."""
        choose = self.choose
        if self.tensors and choose.random() < 0.3:
            known = choose.choice(self.tensors)
            views = [known, known.reshape(-1)[1:], known.t() if known.dim() == 2 else known, known.detach()]
            return choose.choice(views)
        shape = choose.choice([(), (1,), (3,), (2, 3), (4, 2), (2, 1, 2), (0,), (0, 3)])
        made = (torch.rand(shape, generator=self.generator) * 100).to(choose.choice(_DTYPES))
        if made.dtype.is_floating_point and choose.random() < 0.2:
            made = nn.Parameter(made)
        if not made.requires_grad and made.dtype.itemsize > 1:
            self.tensors.append(made)
        return made

    def leaf(self) -> Any:
        """Return a value without parts."""
        choose = self.choose
        kind = choose.randrange(10)
        if kind < 5:
            return self.tensor()
        if kind < 8:
            return choose.choice([*_NUMBERS, None])
        return (
            choose.choice(_TEXTS)
            if kind == 8
            else choose.choice([b"\xff\x00", 2 + 1j, torch.float32, torch.Size([1, 2])])
        )

    def array(self) -> Any:
        """Return an array or number of numpy."""
        made = np.arange(6).reshape(2, 3).astype(self.choose.choice(["f4", "f8", "i8", "u1", "i2"]))
        return self.choose.choice([made, made.T, made[0, 1], np.array(["a", "bc"])])

    def module(self, depth: int) -> nn.Module:
        """Return a module with data in its attributes."""
        choose = self.choose
        module = Net()
        module.fc = nn.Linear(2, choose.randrange(1, 4))
        if choose.random() < 0.5:
            module.inner = nn.Sequential(nn.Conv1d(1, 2, 1), nn.BatchNorm1d(2))
        if choose.random() < 0.5:
            module.classes = choose.choice([["cat", "dog"], ("a", 1), {"cat": 0, "dog": [1, 2]}, "one", 3])
        if choose.random() < 0.4:
            module.anchors = torch.rand(3, generator=self.generator)
        if choose.random() < 0.4:
            module.table = self.array()
        if choose.random() < 0.3:
            module.register_buffer("mask", torch.ones(2), persistent=False)
        return module

    def thing(self, depth: int) -> Thing:
        """Return an object."""
        made = Thing()
        made.__dict__.update(
            {name: self.value(depth - 1) for name in ("size", "part", "_hidden")[: self.choose.randrange(4)]}
        )
        return made

    def value(self, depth: int) -> Any:
        """Return a value of at most some containers inside one another."""
        choose = self.choose
        kind = choose.randrange(20) if depth > 0 else 0
        if kind < 8:
            return self.leaf()
        if kind == 8:
            return self.array()
        if kind == 9:
            return self.module(depth)
        if kind == 10:
            return self.thing(depth)
        if kind == 11 and self.containers:
            return choose.choice(self.containers)
        if kind == 12:
            return choose.choice([{1, 2}, set(), frozenset({"a"})])
        items = [self.value(depth - 1) for _ in range(choose.randrange(4))]
        if kind in (13, 14):
            made: Any = items
        elif kind == 15:
            made = tuple(items)
        else:
            keys = choose.sample(["a", "b", "net", "a.b", "0", 3, "state dict"], len(items))
            made = choose.choice([dict, dict, OrderedDict])(zip(keys, items))
            if kind == 16:
                made = defaultdict(list, made)
        self.containers.append(made)
        return made

    def root(self) -> Any:
        """Return the value of a file: mostly a dict, as of a checkpoint."""
        kind = self.choose.randrange(6)
        if kind == 0:
            return self.module(2)
        if kind == 1:
            return self.value(3)
        return {name: self.value(3) for name in ("model", "epoch", "opt", "extra")[: self.choose.randrange(1, 5)]}


# What a reader of `.pt → .t7 → .pt` must find


def data_of(module: nn.Module) -> dict[str, Any]:
    """Return what the modules of this file have in no state dict."""
    attributes = [name for name in vars(module) if name in ("classes", "mean", "anchors", "table")]
    names = ["mask", *attributes]  # buffers come first
    return {name: getattr(module, name) for name in names if hasattr(module, name)}


def plain(value: Any) -> Any:
    """Return a value as a `.t7` and its way back have it: state dicts, dicts and tensors in place of other classes."""
    known: dict[int, Any] = {}

    def convert(item: Any, named: bool) -> Any:
        if isinstance(item, nn.Module):
            state = known.setdefault(id(item), OrderedDict(item.state_dict()))
            data = data_of(item)
            if named or not data:
                return state
            key = id(item), "whole"
            if key not in known:
                known[key] = {"state_dict": state, **{name: convert(part, True) for name, part in data.items()}}
            return known[key]
        if isinstance(item, np.ndarray):
            return item.tolist() if item.dtype.kind == "U" else torch.from_numpy(np.ascontiguousarray(item))
        if isinstance(item, np.generic):
            return item.item()
        if isinstance(item, frozenset):
            return set(item)  # which the safe loader knows
        if isinstance(item, torch.Size) or not isinstance(item, (dict, list, tuple, Thing)):
            return item
        if id(item) in known:
            return known[id(item)]
        if isinstance(item, tuple):
            return tuple(convert(part, False) for part in item)
        if isinstance(item, list):
            items = known[id(item)] = []
            items += [convert(part, False) for part in item]
            return items
        made: dict[Any, Any] = OrderedDict() if isinstance(item, OrderedDict) else {}
        known[id(item)] = made
        if isinstance(item, Thing):
            made["__class__"] = "models.Thing"
            item = vars(item)
        for key in item:
            made[key] = None
        for key, part in item.items():
            made[key] = convert(part, isinstance(key, str))
            if isinstance(part, nn.Module) and isinstance(key, str):
                made.update({f"{key}.{name}": convert(inner, True) for name, inner in data_of(part).items()})
        return made

    return convert(value, False)


def _bytes(tensor: torch.Tensor) -> bytes:
    if not tensor.numel():
        return b""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def unlike(a: Any, b: Any, path: str = "root") -> Iterator[str]:
    """Yield where two values of torch differ."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or (a.dtype, a.shape) != (b.dtype, b.shape):
            found = f"{getattr(b, 'dtype', type(b).__name__)} {getattr(b, 'shape', '')}"
            yield f"{path}: {found} for {a.dtype} {a.shape}"
        elif _bytes(a) != _bytes(b):
            yield f"{path}: other elements"
    elif type(a) is not type(b):
        yield f"{path}: {type(b).__name__} for {type(a).__name__}"
    elif isinstance(a, dict):
        if list(a) != list(b):
            yield f"{path}: keys {list(b)} for {list(a)}"
        for key in a.keys() & b.keys():
            yield from unlike(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            yield f"{path}: length {len(b)} for {len(a)}"
        for number, (one, other) in enumerate(zip(a, b)):
            yield from unlike(one, other, f"{path}[{number}]")
    elif repr(a) != repr(b):
        yield f"{path}: {b!r:.60} for {a!r:.60}"


# The comparisons


def sentences(report: Any) -> list[str]:
    """Return what the notes of a conversion say that its target does not show."""
    notes = [note for note in report.notes if note.code in LESS]
    if report.mode == "copy" and report.source_format == report.target_format == "t7":
        notes = [note for note in notes if note.code != "trailing"]  # a copy has them
    return sorted({f"{note.path}: {note.message}".removeprefix(": ") for note in notes})


def disagreement(source: Path, target: Path, mode: str) -> str:
    """Convert a file and compare; return how a comparison contradicts the notes, empty if none does.

    Args:
        source: a file of any format.
        target: the file to write.
        mode: of the conversion.
    """
    target.unlink(missing_ok=True)
    try:
        # The comparisons read nothing but the two files: data in a file beside a .pt are left out for them.
        options: dict[str, Any] = {"config": False} if target.suffix == ".pt" else {}
        report = t7bridge.convert(source, target, mode=mode, **options)
    except T7BridgeError:
        return ""
    said = sentences(report)
    reports = [t7bridge.verify(source, target), t7bridge.verify(target, source), t7bridge.diff(source, target)]
    for number, found in enumerate(reports):
        name = ("verify", "verify back", "diff")[number]
        if found.differences:
            return f"{name}: {found.differences[0]}"
        listed = sorted(found.left_out.get(str(source), []))
        if listed != said:
            missing = [text for text in said if text not in listed]
            added = [text for text in listed if text not in said]
            return f"{name}: does not list {missing[:1]}, lists {added[:1]}"
        if found.left_out.get(str(target)):
            return f"{name}: only in the target: {found.left_out[str(target)][0]}"
        if found.same != (not said):
            return f"{name}: same is {found.same}"
    return ""


def returned(source: Path, value: Any, folder: Path) -> str:
    """Convert a `.pt` to a `.t7` and back; return how PyTorch then reads another value, empty if it does not."""
    for path in (folder / "way.t7", folder / "back.pt"):
        path.unlink(missing_ok=True)
    t7bridge.convert(source, folder / "way.t7")
    report = t7bridge.convert(folder / "way.t7", folder / "back.pt")
    if report.mode != "record":
        return f"the record is not used: {[str(note) for note in report.notes][:2]}"
    back = torch.load(folder / "back.pt", weights_only=True)
    found = t7bridge.verify(folder / "way.t7", folder / "back.pt")
    if found.differences:
        return f"verify of the way back: {found.differences[0]}"
    return next(unlike(plain(value), back), "")


def judged(seed: str, folder: Path, jobs: list[tuple[str, str]] | None = None) -> list[str]:
    """Return the faults that a random value finds.

    Args:
        seed: of the value.
        folder: for files.
        jobs: suffixes and modes to try; all if `None`.
    """
    value = Values(seed).root()
    source = folder / "in.pt"
    torch.save(value, source)
    faults = [f"back: {fault}" for fault in [returned(source, value, folder)] if fault]
    for suffix, mode in jobs or JOBS:
        fault = disagreement(source, folder / f"out{suffix}", mode)
        if fault:
            faults.append(f"{suffix} {mode}: {fault}")
    return faults


def main(arguments: list[str] | None = None) -> int:
    """Run the comparisons; exit code 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--seconds", type=float, default=36000.0)
    parser.add_argument("--jobs", type=int, default=len(JOBS), help="conversions of each value, of nine")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    own_classes()
    stop = time.monotonic() + options.seconds
    choose = random.Random(options.seed)
    faults = done = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.count):
            jobs = choose.sample(JOBS, options.jobs)
            try:
                found = judged(f"{options.seed} {number}", Path(folder), jobs)
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            for fault in found:
                print(f"{number}: {fault}", flush=True)
            faults += bool(found)
            done += 1
            if time.monotonic() > stop:
                break
    print("comparisons", done, "values,", faults, "with faults", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
