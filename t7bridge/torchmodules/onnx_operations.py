"""Operations that PyTorch's ONNX exporter or onnxruntime lacks, expressed in ONNX's own or by other layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .layers.linear import LookupTableMaskZero
from .layers.sequence import SeqLSTM, SteppedLSTM

_INT64 = 7
"""ONNX's number of the type, in `onnx.TensorProto`."""


def translations(op: Any) -> dict[Any, Callable[..., Any]]:
    """Return the ONNX nodes of operations, for `torch.onnx.export`'s `custom_translation_table`.

    Args:
        op: onnxscript's operators of one version.

    Source: https://onnx.ai/onnx/operators; https://docs.pytorch.org/docs/2.13/onnx_export.html.
    """

    def ints(*values: int) -> Any:
        return op.Constant(value_ints=list(values))

    def masked_select(self: Any, mask: Any) -> Any:
        """Keep the elements of a mask, in order: (count of them)."""
        flat = [
            op.Reshape(op.Expand(value, op.Shape(other)), ints(-1)) for value, other in ((self, mask), (mask, self))
        ]
        return op.Compress(*flat)

    def adaptive_max_pool2d(self: Any, output_size: Any) -> Any:
        """Return the maximum of each window; window i of n from floor(i·size/n) to ceil((i+1)·size/n)."""
        windows = [
            [(index * size // count, -(-(index + 1) * size // count)) for index in range(count)]
            for size, count in zip(self.shape[-2:], output_size)
        ]

        def window(rows: tuple[int, int], columns: tuple[int, int]) -> Any:
            part = op.Slice(self, ints(rows[0], columns[0]), ints(rows[1], columns[1]), ints(-2, -1))
            return op.ReduceMax(part, ints(-2, -1), keepdims=1)

        made = [op.Concat(*(window(rows, columns) for columns in windows[1]), axis=-1) for rows in windows[0]]
        output = op.Concat(*made, axis=-2)
        return output, op.Cast(output, to=_INT64)  # the indices, the second output, are unused

    aten = torch.ops.aten
    return {
        aten.masked_select.default: masked_select,
        aten.adaptive_max_pool2d.default: adaptive_max_pool2d,
    }


def replaced(module: nn.Module) -> nn.Module:
    """Return a module for evaluation with layers known to ONNX; the module itself is unchanged."""
    if not any(type(part) in _LAYERS for part in module.modules()):
        return module
    module = copy.deepcopy(module)
    if type(module) in _LAYERS:
        return _LAYERS[type(module)](module)
    for owner in list(module.modules()):
        for name, part in list(owner.named_children()):
            if type(part) in _LAYERS:
                setattr(owner, name, _LAYERS[type(part)](part))
    return module


def _leaky(layer: Any) -> nn.Module:
    """Replace RReLU: in evaluation the slope is the mean of the bounds."""
    return nn.LeakyReLU((layer.lower + layer.upper) / 2, inplace=layer.inplace).train(layer.training)


def _stepped(layer: Any) -> nn.Module:
    """Replace projected LSTMs, which ONNX lacks, by steps."""
    if not layer.proj_size:
        return layer  # type: ignore[no-any-return]
    made = SteppedLSTM(
        layer.input_size, layer.hidden_size, layer.proj_size, layer.batch_first, "", layer.remember, layer.state
    )
    made.load_state_dict(layer.state_dict())
    made.to(layer.weight_ih_l0.dtype).train(layer.training)
    return made


def _with_zeros(layer: Any) -> nn.Module:
    """Replace LookupTableMaskZero: row 0 is set to zero once, not by each call."""
    made = _Rows(layer.num_embeddings, layer.embedding_dim)
    made.weight = nn.Parameter(layer.weight.detach().clone())
    made.weight.data[0] = 0
    return made.train(layer.training)


class _Rows(nn.Embedding):
    """torch.nn.Embedding whose rows are indexed by numbers of any type."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.long())


_LAYERS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.RReLU: _leaky,
    SeqLSTM: _stepped,
    LookupTableMaskZero: _with_zeros,
}
