"""Output shapes of the modules in a model, determined on the meta device, which computes nothing."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ModelError, T7BridgeError
from ..graph.lua import TorchObject
from ..limits import DEFAULT_LIMITS, Budget, Limits
from ..nn.example import Example, Examples
from .build import live_module

_STEPS_PER_CALL = 500
"""Steps of `Limits.work` that the call of a module on the meta device costs."""
Shapes = tuple[tuple[int, ...], ...]


def output_shapes(
    module: TorchObject, path: str, inputs: Examples, limits: Limits = DEFAULT_LIMITS
) -> dict[str, Shapes]:
    """Run a model and record the outputs' shapes of each module in it.

    Args:
        module: the nn module.
        path: its path in the file.
        inputs: shape of its input, with the batch dimension; a list for a table.
        limits: resource limits.

    Returns:
        The sizes of each tensor last returned, by the name of each module (`""` for the model).

    Raises:
        LimitError: modules are shared in such a way that running them takes much longer than reading the file.
        ModelError: the model does not accept such an input, or needs values that the meta device does not have.
        UnsupportedLayerError: layers of the model have no PyTorch module.
    """
    live = live_module(module, path, 1, limits).to("meta")
    found: dict[str, Shapes] = {}

    def record(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            items = output if isinstance(output, (list, tuple)) else [output]
            found[name] = tuple(tuple(each.shape) for each in items[:8] if isinstance(each, torch.Tensor))

        return hook

    modules = list(live.named_modules())
    budget = Budget(limits, "running the model to find its shapes", _STEPS_PER_CALL * len(modules))
    for name, each in modules:
        each.register_forward_pre_hook(lambda *_: budget.spend(_STEPS_PER_CALL))
        each.register_forward_hook(record(name))
    try:
        with torch.no_grad():
            live.eval()(_on_meta(inputs))
    except T7BridgeError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ModelError(
            "the model cannot be run to find its shapes",
            path=path,
            found=str(error).splitlines()[0][:200] if str(error) else type(error).__name__,
            hint=f"The input was {inputs_text(inputs)}; give another with --input-shape.",
        ) from error
    return found


def inputs_text(inputs: Examples, times: str = "x") -> str:
    """Return shapes as `--input-shape` takes them: `1x4`, or `[1x4, 1x20:int64]` for a table."""
    if isinstance(inputs, Example):
        return times.join(map(str, inputs.shape)) + (f":{inputs.dtype}" if inputs.dtype else "")
    return f"[{', '.join(inputs_text(each, times) for each in inputs)}]"


def _on_meta(inputs: Examples) -> Any:
    if not isinstance(inputs, Example):
        return [_on_meta(each) for each in inputs]
    dtype = getattr(torch, inputs.dtype, None) if inputs.dtype else torch.get_default_dtype()
    if not isinstance(dtype, torch.dtype):
        raise ModelError("an input has no type of PyTorch", found=inputs.dtype[:40], expected="float32, int64, …")
    return torch.empty(inputs.shape, device="meta", dtype=dtype)
