"""Forms of the outputs of modules of torch.nn: dimensions and extents by the arguments of their constructors."""

from __future__ import annotations

from typing import Any

from .code import Construction, Lit
from .forms import Extent, Form, added, slid
from .torch_classes import SAME, TORCH

_OTHER = {"Embedding", "LSTM", "GRU", "RNN", "Unflatten", "GLU"}
"""Classes whose output has another shape than their input, but no rank of its own."""
_POOLS = {"MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool2d", "AvgPool3d"}
_CONVS = {"Conv1d", "Conv2d", "Conv3d"}
_PADS = {"ReflectionPad2d", "ReplicationPad2d", "ReplicationPad3d", "ZeroPad2d"}


def form_after(call: Construction, form: Form) -> Form:
    """Return the form of a module's output.

    Args:
        call: the construction of a module; outside of torch.nn nothing is known.
        form: that of its input.
    """
    name = call.name.removeprefix("nn.")
    known = TORCH.get(name)
    if known is None or not call.name.startswith("nn.") or name in _OTHER:
        return Form(form.rank if name == "GLU" else None)
    if known.rank == SAME:
        return form
    nodes = {**dict(zip(known.arguments, call.args)), **call.kwargs}
    given = {key: node.value for key, node in nodes.items() if isinstance(node, Lit)}
    try:
        return _computed(name, known.rank, given, form)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):
        return Form(known.rank)


def _computed(name: str, rank: int, given: dict[str, Any], form: Form) -> Form:
    if name == "Linear":
        taken = form.of_rank(1, 0, given["in_features"])
        return Form(1, taken.origin, (given["out_features"],))
    if name.startswith(("BatchNorm", "InstanceNorm")):
        return form.of_rank(rank, 0, given["num_features"]) if rank > 1 else Form(1)
    if name in _CONVS:
        taken = form.of_rank(rank, 0, given["in_channels"])
        return Form(rank, taken.origin, (given["out_channels"], *_windows(given, taken.extents[1:])))
    if name in _POOLS and not given.get("ceil_mode"):
        taken = form.of_rank(rank)
        return Form(rank, taken.origin, (taken.extents[0], *_windows(given, taken.extents[1:])))
    if name.startswith("Adaptive"):
        taken = form.of_rank(rank)
        sizes = _each(given["output_size"], rank - 1)
        inner = zip(sizes, taken.extents[1:])
        return Form(rank, taken.origin, (taken.extents[0], *(old if size is None else size for size, old in inner)))
    if name in _PADS:
        taken = form.of_rank(rank)
        # From the last dimension to the first, before and after each.
        borders = _each(given["padding"], 2 * (rank - 1))
        widths = [int(borders[at]) + int(borders[at + 1]) for at in range(0, len(borders), 2)]
        padded = zip(taken.extents[1:], reversed(widths))
        return Form(rank, taken.origin, (taken.extents[0], *(added(old, width) for old, width in padded)))
    return Form(rank)


def _each(value: Any, count: int) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple) else (value,) * count


def _windows(given: dict[str, Any], extents: tuple[Extent, ...]) -> list[Extent]:
    """Return the extents that windows leave of an input's."""
    count = len(extents)
    kernels = _each(given["kernel_size"], count)
    stride = given.get("stride")
    strides = kernels if stride is None else _each(stride, count)
    paddings, dilations = _each(given.get("padding", 0), count), _each(given.get("dilation", 1), count)
    return [slid(*each) for each in zip(extents, kernels, strides, paddings, dilations, strict=True)]
