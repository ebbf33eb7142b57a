"""Shared helpers for live modules: Lua's recorded values as torch tensors, and comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from helpers import read

from t7bridge import Table, Tensor
from t7bridge.layers import items_of

RTOL, ATOL = 1e-4, 1e-5


def as_torch(value: Any) -> Any:
    """Tensors as torch's, tables with the keys 1 to n as lists."""
    if isinstance(value, Tensor):
        return torch.from_numpy(value.numpy().copy())
    if isinstance(value, Table):
        return [as_torch(item) for item in value.sequence() or []]
    return value


def recorded(path: Path, kind: str) -> dict[str, Any]:
    """Return Lua's recording for a case: `io` or `grad`."""
    table = read(path.with_suffix(f".{kind}.t7"))
    return {str(key): as_torch(value) for key, value in table.items()}


def difference(got: Any, wanted: Any, rtol: float = RTOL, atol: float = ATOL) -> str:
    """Return where two outputs differ, or nothing."""
    if isinstance(wanted, list):
        if not isinstance(got, (list, tuple)) or len(got) != len(wanted):
            return f"{type(got).__name__} for a table of {len(wanted)}"
        return "".join(difference(a, b, rtol, atol) for a, b in zip(got, wanted))
    if isinstance(wanted, float):
        number = float(got.detach())
        return "" if math.isclose(number, wanted, rel_tol=rtol, abs_tol=atol) else f"{number} for {wanted}"
    if got.shape != wanted.shape:
        return f"{tuple(got.shape)} for {tuple(wanted.shape)}"
    if not torch.allclose(got.detach().double(), wanted.double(), rtol=rtol, atol=atol, equal_nan=True):
        return f"off by {(got.double() - wanted.double()).abs().max():.3g}"
    return ""


def run(module: torch.nn.Module, case: dict[str, Any]) -> Any:
    """Return the output of a module for the input of a case, and of a criterion for input and target.

    A page that takes its state returns it, too, in a tuple.
    """
    output = module(case["input"], case["target"]) if "target" in case else module(case["input"])
    return output[0] if isinstance(output, tuple) else output


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, (list, tuple)) else []


def gradient_difference(module: torch.nn.Module, input: Any, wanted: dict[str, Any]) -> str:
    """Return where the gradients of inputs and parameters differ from Lua's, or nothing.

    Parameters are compared by the sums of their gradients' absolute values, as layouts differ.
    """
    inputs = [tensor for tensor in leaves(input) if tensor.is_floating_point()]
    for tensor in inputs:
        tensor.requires_grad_()
    pairs = zip(leaves(module(input)), leaves(wanted["gradOutput"]))
    live = [(output, gradient.to(output.dtype).reshape(output.shape)) for output, gradient in pairs]
    live = [(output, gradient) for output, gradient in live if output.requires_grad]
    if live:
        torch.autograd.backward(*zip(*live))
    given = [tensor for tensor in leaves(wanted["gradInput"]) if tensor.is_floating_point()]
    for tensor, gradient in zip(inputs, given):
        if tensor.grad is not None and gradient.numel() == tensor.numel():
            why = difference(tensor.grad.flatten(), gradient.flatten(), 1e-3, 1e-4)
            if why:
                return f"gradInput {why}"
    mine = sorted(float(parameter.grad.abs().sum()) for parameter in module.parameters() if parameter.grad is not None)
    theirs = sorted(
        float(gradient.abs().sum()) for gradient in leaves(wanted.get("gradParameters")) if gradient.numel()
    )
    if theirs and len(mine) != len(theirs):
        return f"{len(mine)} parameters for {len(theirs)}"
    if theirs and not torch.allclose(torch.tensor(mine), torch.tensor(theirs), rtol=1e-3, atol=1e-3):
        return f"gradParameters {mine} for {theirs}"
    return ""


# What gen/rnn_options.lua records: several calls of one module


def calls(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a case, and what was done between them."""
    return [{key.decode(): value for key, value in call.raw_items()} for call in items_of(case["calls"])]


def tell(module: torch.nn.Module, mask: Any) -> None:
    """Pass a mask to the modules inside that use one."""
    for inside in module.children():
        if hasattr(inside, "set_zero_mask"):
            inside.set_zero_mask(mask)
        else:
            tell(inside, mask)


def do(module: torch.nn.Module, call: dict[str, Any]) -> None:
    """Do between two calls what Lua did."""
    word = call["say"].decode()
    if word == "mask":
        tell(torch.nn.ModuleList([module]), as_torch(call["mask"]))
    elif word in ("forget", "resetStates"):
        for part in module.modules():
            if hasattr(part, "forget"):
                part.forget()
    else:
        assert word in ("training", "evaluate")
        module.train(word == "training")


# What gen/cells.lua records: steps whose state is carried


def placed(value: Any, path: str) -> Any:
    """Return what is at a path of numbers from 1 in nested lists; the empty path is the value itself."""
    for key in filter(None, path.split(".")):
        value = value[int(key) - 1]
    return value


def replaced(value: Any, path: str, to: Any) -> Any:
    """Return nested lists with another element at a path."""
    if not path:
        return to
    key, _, below = path.partition(".")
    index = int(key) - 1
    return [*value[:index], replaced(value[index], below, to), *value[index + 1 :]]


def steps_of(module: Any, record: dict[str, Any]) -> Iterator[tuple[int, Any]]:
    """Run a module over all steps of a record; yield number and output of each."""
    rows = {str(path): as_torch(tensor) for path, tensor in record["steps"].items()}
    carry = {str(to): (at if isinstance(at := record["carry"][to], str) else at.decode()) for to in record["carry"]}
    now = as_torch(record["inputs"])
    count = max(int(step) for step in record["outputs"])
    for step in range(1, count + 1):
        if step > 1:
            for path, tensor in rows.items():
                now = replaced(now, path, tensor[step - 1])
        with torch.no_grad():
            output = module(copied(now))
        yield step, output
        for to, path in carry.items():
            now = replaced(now, to, placed(output, path))


def copied(value: Any) -> Any:
    """Return the tensors of nested lists, cloned: in-place layers write to their inputs."""
    return value.clone() if isinstance(value, torch.Tensor) else [copied(item) for item in value]


def step_differences(module: Any, record: dict[str, Any], rtol: float = 0.0, atol: float = 1e-5) -> list[str]:
    """Return where the outputs over all steps differ from Lua's."""
    wanted = {int(step): as_torch(record["outputs"][step]) for step in record["outputs"]}
    found = {step: output for step, output in steps_of(module, record) if step in wanted}
    compared = ((step, difference(found[step], wanted[step], rtol, atol)) for step in sorted(wanted))
    return [f"step {step}: {why}" for step, why in compared if why]
