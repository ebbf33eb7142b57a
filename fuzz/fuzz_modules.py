"""Mutated modules through `load_module` and `model.py`: both refuse, or both compute the same.

    python fuzz/fuzz_modules.py --count 20000
    python fuzz/fuzz_modules.py --input findings/module-1234.t7

Modules of the test files, recorded with inputs, get other options (also hostile ones), other inputs and other modules
around, next to and after them. A module that only `model.py` accepts is a difference, and so is another output.
Errors on one side only are refusals, and counted: `model.py` is written for batches where torch.nn requires them,
and does not run unused branches. `nn.Linear` of three dimensions, which only PyTorch accepts, is skipped.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers import TESTFILES, read
from hostile_fields import values
from runtime_helpers import as_torch, difference

from t7bridge import Table, Tensor, TorchObject
from t7bridge.codegen.generate import generate
from t7bridge.errors import T7BridgeError
from t7bridge.formats.t7.writer import T7Writer
from t7bridge.nn.places import find_modules
from t7bridge.torchmodules.build import live_module, materialize

_FILES = ("random_nn.t7", "random_expr.t7", "random_graph.t7", "found_nets.t7", "found_pages.t7", "found_windows.t7")
_MOST_ELEMENTS = 10**8
_MOST_OBJECTS = 60
"""Modules with more objects inside are skipped."""
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that PyTorch and Python raise for unsuitable inputs."""

Case = tuple[TorchObject, Any]


def module(name: str, /, **fields: Any) -> TorchObject:
    """Return an object of a class of nn."""
    return TorchObject(f"nn.{name}", 1, Table.of(fields))


def objects(value: Any) -> list[TorchObject]:
    """Yield all objects with fields in a value, each once."""
    found: dict[int, TorchObject] = {}
    seen: set[int] = set()
    stack = [value]
    while stack:
        each = stack.pop()
        if id(each) in seen or not isinstance(each, (Table, TorchObject)):
            continue
        seen.add(id(each))
        if isinstance(each, TorchObject) and isinstance(each.fields, Table):
            found[id(each)] = each
            stack += each.fields.raw_values
        elif isinstance(each, Table):
            stack += [*each.raw_keys, *each.raw_values]
    return list(found.values())


def copied(value: Any) -> Any:
    """Return a copy of objects and tables with their sharing and cycles; tensors are the same."""
    made: dict[int, Any] = {}
    stack = [value]
    while stack:
        each = stack.pop()
        if id(each) in made:
            continue
        if isinstance(each, Table):
            made[id(each)] = Table(list(each.raw_keys), list(each.raw_values))
            stack += [*each.raw_keys, *each.raw_values]
        elif isinstance(each, TorchObject) and isinstance(each.fields, Table):
            made[id(each)] = TorchObject(each.class_name, each.version, each.fields, each.payload)
            stack.append(each.fields)
    for each in made.values():
        if isinstance(each, TorchObject):
            each.fields = made[id(each.fields)]
        else:
            each.raw_keys[:] = [made.get(id(key), key) for key in each.raw_keys]
            each.raw_values[:] = [made.get(id(item), item) for item in each.raw_values]
    return made.get(id(value), value)


def seeds() -> list[Case]:
    """Return modules and their inputs."""
    found: list[Case] = []
    for name in _FILES:
        for record in read(TESTFILES / name).as_list():
            found.append((record[b"model"], record[b"input"]))
    for _, case in read(TESTFILES / "nn_options.t7").raw_items():
        if case.get(b"target") is None:
            found.append((case[b"module"], case[b"input"]))
    for path in sorted(TESTFILES.glob("nn/*.io.t7")):
        whole = path.with_name(path.name.replace(".io.t7", ".t7"))
        table = read(path)
        if whole.exists() and table.get("target") is None:
            for _, obj in find_modules(read(whole)):
                found.append((obj, table["input"]))
    return [case for case in found if len(objects(case[0])) <= _MOST_OBJECTS]


def pointwise(choose: random.Random) -> TorchObject:
    """Return a layer that accepts any tensor."""
    inplace, number = choose.random() < 0.4, choose.choice((-1.0, 0.5, 2.0))
    dim, dims = float(choose.randint(1, 3)), choose.choice((None, 1.0, 2.0, 3.0))
    some: dict[str, Any] = {} if dims is None else {"nInputDims": dims}
    inner_dims: dict[str, Any] = {} if dims is None else {"numInputDims": dims}
    return choose.choice(
        (
            lambda: module("ReLU", threshold=0.0, val=0.0, inplace=inplace),
            lambda: module("LeakyReLU", negval=0.1, inplace=inplace),
            lambda: module("AddConstant", constant_scalar=number, inplace=inplace),
            lambda: module("MulConstant", constant_scalar=number, inplace=inplace),
            lambda: module("Tanh"),
            lambda: module("Square"),
            lambda: module("Abs"),
            lambda: module(choose.choice(("SoftMax", "LogSoftMax", "SoftMin"))),
            lambda: module("Identity"),
            lambda: module("Contiguous"),
            lambda: module("Select", dimension=dim, index=1.0),
            lambda: module("Narrow", dimension=dim, index=1.0, length=1.0),
            lambda: module("Sum", dimension=dim, sizeAverage=inplace, squeeze=True, **some),
            lambda: module("Max", dimension=dim, **some),
            lambda: module("Squeeze", **inner_dims),
            lambda: module("Unsqueeze", pos=dim, **inner_dims),
            lambda: module("Replicate", nfeatures=2.0, dim=dim),
            lambda: module("Transpose", permutations=Table.from_list([Table.from_list([1.0, dim])]), **inner_dims),
            lambda: module("PReLU", nOutputPlane=0.0, weight=Tensor.from_numpy(torch.full((1,), 0.3).numpy())),
            lambda: module("PReLU", nOutputPlane=2.0, weight=Tensor.from_numpy(torch.full((2,), 0.3).numpy())),
        )
    )()


def container(name: str, *modules: TorchObject, **fields: Any) -> TorchObject:
    """Return a container with modules."""
    return module(name, modules=Table.from_list([*modules]), **fields)


def surrounded(obj: TorchObject, choose: random.Random) -> TorchObject:
    """Return a module among others."""
    way = choose.randrange(6)
    if way == 0:
        return container("Sequential", pointwise(choose), obj)
    if way == 1:
        return container("Sequential", obj, pointwise(choose), pointwise(choose))
    combine = module(choose.choice(("CAddTable", "CMulTable", "CSubTable", "CMaxTable")), inplace=choose.random() < 0.3)
    if way == 2:
        return container("Sequential", container("ConcatTable", obj, pointwise(choose)), combine)
    if way == 3:
        behind = container("Sequential", obj, pointwise(choose))
        return container("Sequential", container("ConcatTable", behind, obj), combine, pointwise(choose))
    if way == 4:
        parts = container("Sequential", obj, container("ConcatTable", pointwise(choose), pointwise(choose)))
        return container("Sequential", parts, combine)
    split = module("SplitTable", dimension=float(choose.randint(1, 3)))
    some = choose.choice((module("SelectTable", index=1.0), combine, module("JoinTable", dimension=1.0)))
    return container("Sequential", obj, split, some, pointwise(choose))


def mutate(obj: TorchObject, choose: random.Random, others: list[Case]) -> TorchObject:
    """Return a module with some field of some object in it changed."""
    obj = copied(obj)
    each = choose.choice(objects(obj))
    names = [key for key in each.fields.raw_keys if isinstance(key, bytes)]
    if not names:
        return obj
    name = choose.choice(names)
    old = each.fields.get(name)
    new: Any = choose.choice(list(values(others[0][0])))
    if isinstance(old, bool):
        new = not old
    elif isinstance(old, float) and choose.random() < 0.8:
        new = choose.choice((old + 1, old - 1, -old, 0.0, 1.0, 2.0, 3.0, 0.5))
    elif isinstance(old, Table) and old.sequence() and choose.random() < 0.8:
        listed = list(old.as_list())
        way, at = choose.randrange(4), choose.randrange(len(listed))
        if way == 0:
            listed.append(listed[at])
        elif way == 1:
            del listed[at]
        elif way == 2:
            choose.shuffle(listed)
        else:
            listed[at] = pointwise(choose) if isinstance(listed[at], TorchObject) else 2.0
        new = Table.from_list(listed)
    elif isinstance(old, TorchObject):
        new = choose.choice((pointwise(choose), choose.choice(others)[0], new))
    each.fields[name.decode("utf-8", "replace")] = new
    return obj


def input_of(value: Any, choose: random.Random) -> Any:
    """Return the recorded input, or another: one example, a batch of one, an extra dimension."""
    found = as_torch(value)
    if not isinstance(found, torch.Tensor) or choose.random() < 0.6:
        return found
    way = choose.randrange(4)
    if way == 0 and found.dim() > 1:
        return found[0]
    if way == 1 and found.dim() > 0:
        return found[:1]
    return found[None] if way == 2 else found


def fresh(value: Any) -> Any:
    """Return the tensors of nested lists, cloned."""
    return value.clone() if isinstance(value, torch.Tensor) else [fresh(v) for v in value] if _is_list(value) else value


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def page_of(obj: TorchObject) -> torch.nn.Module:
    """Return the model from the generated source of a module, with its weights."""
    made = generate(obj, "root")
    page = types.ModuleType("model")
    page.__file__ = str(TESTFILES / "none.py")
    exec(compile(made.text, "model.py", "exec", dont_inherit=True), page.__dict__)
    model = page.Model()
    tensors = materialize(made.tensors)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model


def computed(model: torch.nn.Module, value: Any, train: bool, seed: int = 0) -> Any:
    """Return the output of a model, or its error."""
    torch.manual_seed(seed)
    try:
        with torch.no_grad():
            return model.train(train)(fresh(value))
    except _REFUSALS as error:
        return error


class _Dimensions:
    """Detects whether a linear layer received more dimensions than Lua's accepts."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.beyond = False
        for each in model.modules():
            if isinstance(each, torch.nn.Linear):
                each.register_forward_pre_hook(self._look)

    def _look(self, layer: torch.nn.Module, given: tuple[Any, ...]) -> None:
        self.beyond = self.beyond or (isinstance(given[0], torch.Tensor) and given[0].dim() > 2)


def disagreement(one: Any, other: Any) -> str:
    """Return where two outputs of the same structure differ."""
    if _is_list(one) != _is_list(other):
        return f"{type(one).__name__} for {type(other).__name__}"
    if _is_list(one):
        if len(one) != len(other):
            return f"{len(one)} outputs for {len(other)}"
        return "".join(disagreement(*pair) for pair in zip(one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.numel() > _MOST_ELEMENTS and one.shape == other.shape:
            return ""  # views of few elements, too large to compare
        return difference(one, other, 1e-4, 1e-5)
    return "" if type(one) is type(other) else f"{type(one).__name__} for {type(other).__name__}"


def verdict(obj: TorchObject, value: Any) -> str:
    """Return the verdict on a module: a word or two, and after a colon a difference."""
    made: list[Any] = []
    for make in (lambda: live_module(obj, "root"), lambda: page_of(obj)):
        try:
            made.append(make())
        except T7BridgeError as error:
            made.append(error)
    refused = [isinstance(each, T7BridgeError) for each in made]
    if all(refused):
        return "refused"
    if refused[1]:
        return "page refused"
    if refused[0]:
        return f"DIFFERENT: only the page is made: {made[0]}"
    live, page = made
    dimensions, answer = _Dimensions(live), "same"
    for train in (False, True):
        wanted, found = computed(live, value, train), computed(page, value, train)
        if dimensions.beyond:
            return "beyond Lua"
        errors = [isinstance(each, _REFUSALS) for each in (wanted, found)]
        if train and not any(errors) and disagreement(computed(live, value, True), wanted):
            break  # it is random, or stateful
        if errors[0] and errors[1]:
            answer = "neither runs"
        elif errors[1]:
            return f"page raises: {type(found).__name__}: {str(found)[:150]}"
        elif errors[0]:
            return f"page alone runs: {type(wanted).__name__}: {str(wanted)[:150]}"
        elif why := disagreement(found, wanted):
            if disagreement(computed(live, value, train, 1), wanted):
                return "other random numbers"  # drawn in another order, for another memory layout
            return f"DIFFERENT: {'train' if train else 'eval'} {why}"
    return answer


def cases(seed: int, count: int) -> Iterator[Case]:
    """Yield random modules and inputs."""
    choose = random.Random(seed)
    known = seeds()
    for _ in range(count):
        obj, value = choose.choice(known)
        if choose.random() < 0.6:
            obj = mutate(obj, choose, known)
        if choose.random() < 0.6:
            obj = surrounded(obj, choose)
        yield obj, input_of(value, choose)


def recorded(value: Any) -> Any:
    """Return tensors of torch as values of the graph."""
    return Tensor.from_numpy(value.numpy()) if isinstance(value, torch.Tensor) else value


def keep(obj: TorchObject, value: Any, folder: Path) -> Path:
    """Write a finding as a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = Table.from_list([recorded(each) for each in value]) if _is_list(value) else recorded(value)
    temporary = folder / "module.tmp"
    with open(temporary, "wb") as output:
        T7Writer(output).write_object(Table.of({"model": obj, "input": listed}))
    target = folder / f"module-{hashlib.sha256(temporary.read_bytes()).hexdigest()[:12]}.t7"
    temporary.replace(target)
    return target


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; exit code 1 if there was a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("--input", type=Path, help="one module and its input again")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.input:
        table = read(options.input)
        print(verdict(table["model"], as_torch(table["input"])))
        return 0
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for done, (obj, value) in enumerate(cases(options.seed, options.count), 1):
        try:
            answer = verdict(obj, value)
        except Exception as error:
            answer = f"DIFFERENT: {type(error).__name__}: {error}"
        counts[answer.partition(":")[0]] += 1
        if answer.startswith("DIFFERENT"):
            print(f"{keep(obj, value, options.findings)} {answer}", flush=True)
        elif answer.startswith(("page raises", "page alone")):
            print(f"{keep(obj, value, options.findings / 'raises')} {answer}", flush=True)
        if done % 1000 == 0:
            print(done, dict(counts), f"{time.monotonic() - began:.0f} s", flush=True)
    print(sum(counts.values()), dict(counts), flush=True)
    return 1 if counts["DIFFERENT"] else 0


if __name__ == "__main__":
    sys.exit(main())
