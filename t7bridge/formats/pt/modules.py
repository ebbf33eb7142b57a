"""The state dict of a pickled module: from its attributes, without its class.

Source: PyTorch 2.13 `torch/nn/modules/module.py` `state_dict`, `_save_to_state_dict`.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from typing import Any

from ...errors import CorruptError, UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES
from ...graph.python import MODULE_PARTS, PythonObject
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, Limits
from ..fields import shown
from .storages import span_of_bytes
from .torchscript import VisitedModules as VisitedModules
from .torchscript import detached

_QUANTIZED = re.compile(r"torch\.(?:ao\.)?nn\.(?:intrinsic\.)?quantized\.")
_SCRIPT_OBJECT = "torch.ScriptObject"
_CONV_STATE = (
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "transposed", "output_padding"),
    *("groups", "padding_mode", "weight", "bias", "scale", "zero_point", "training"),
)
"""The items of the state of a quantized convolution."""


def is_module(value: Any) -> bool:
    """Return whether a value is a pickled `nn.Module`: an object of any class with parameters, buffers and modules."""
    return isinstance(value, PythonObject) and (value.is_module or _is_quantized_conv(value))


def _is_quantized_conv(value: PythonObject) -> bool:
    state = value.state
    return isinstance(state, tuple) and len(state) == len(_CONV_STATE) and bool(_QUANTIZED.match(value.path))


def attributes_of(module: PythonObject) -> dict[str, Any]:
    """Return the attributes of a module, also of a quantized convolution, whose state is a tuple."""
    if not _is_quantized_conv(module):
        return module.attributes
    return {**{part: {} for part in MODULE_PARTS}, **dict(zip(_CONV_STATE, module.state))}


def _quantized_entries(module: PythonObject, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return what a quantized layer adds to its state dict: unpacked weights, scale and zero point.

    Source: PyTorch 2.13 `torch/ao/nn/quantized/modules/` and `dynamic/modules/rnn.py`, `_save_to_state_dict`;
    `ATen/native/quantized/cpu/fbgemm_utils.cpp`, the pickled forms of packed parameters.
    """
    made: dict[str, Any] = {}
    if not _QUANTIZED.match(module.path):
        return made
    if _is_quantized_conv(module):
        made = {"weight": attributes["weight"], "bias": attributes["bias"]}
    for name, value in attributes.items():
        if name in ("scale", "zero_point") and type(value) in (int, float):
            made[name] = _scalar(value)
        elif isinstance(value, PythonObject) and value.path == _SCRIPT_OBJECT:
            if "dtype" in attributes:
                made["dtype"] = attributes["dtype"]
            made[name] = _unpacked(value)
    return made


def _unpacked(value: PythonObject) -> Any:
    """Return the weights in packed parameters as PyTorch's state dict has them: weight and bias, or an embedding's."""
    state, name = value.state if isinstance(value.state, tuple) and len(value.state) == 2 else (None, "")
    if isinstance(name, str) and isinstance(state, tuple):
        if name.endswith("LinearPackedParamsBase"):
            return state
        if name.endswith("EmbeddingPackedParamsBase") and len(state) > 1 and isinstance(state[1], list) and state[1]:
            return state[1][0]
    return value


def _scalar(value: float) -> Tensor:
    """Return a number as `torch.tensor` does."""
    element = ELEMENT_TYPES["float32" if isinstance(value, float) else "int64"]
    try:
        data = struct.pack("<f" if isinstance(value, float) else "<q", value)
    except (struct.error, OverflowError) as error:
        raise CorruptError("a quantized module has a scale or zero point out of range", found=shown(value)) from error
    return Tensor(element, Storage(element, 1, span_of_bytes(data, element.itemsize)), is_scalar=True)


def module_state_dict(
    module: Any,
    *,
    keep_parameters: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    visited: VisitedModules | None = None,
) -> OrderedDict[str, Any]:
    """Return the state dict of a pickled `nn.Module`, in PyTorch's order and under PyTorch's names.

    Args:
        module: the inert object in the file.
        keep_parameters: whether the tensors stay parameters; `state_dict()` detaches them.
        limits: bound how often a shared module is repeated.
        visited: the modules of the same file seen before, for one limit over all its state dicts.

    Raises:
        UnsupportedError: it is not a module.
        LimitError: its modules contain one another endlessly.
    """
    if not is_module(module):
        raise UnsupportedError("the value is not a module", found=shown(module))
    found: OrderedDict[str, Any] = OrderedDict()
    for prefix, content in (visited or VisitedModules(limits)).walk(module, _content):
        for name, value, is_plain in content:
            found[prefix + name] = detached(value) if is_plain and not keep_parameters else value
    return found


def _content(module: PythonObject) -> Any:
    """Return the tensors of a module (name, value, whether `state_dict()` detaches it), its submodules, and a count."""
    attributes = attributes_of(module)
    transient = attributes.get("_non_persistent_buffers_set") or ()
    listed = isinstance(transient, (set, frozenset, list, tuple))
    transient = {name for name in transient if isinstance(name, str)} if listed else ()
    content = [
        (_word(name), value, True)
        for kind in ("_parameters", "_buffers")
        for name, value in attributes[kind].items()
        if value is not None and not (kind == "_buffers" and name in transient)
    ]
    content += [(name, value, False) for name, value in _quantized_entries(module, attributes).items()]
    inner = [(_word(name), value) for name, value in attributes["_modules"].items() if is_module(value)]
    return content, inner, sum(len(attributes[name]) for name in MODULE_PARTS)


def _word(name: Any) -> str:
    if type(name) is not str:
        raise CorruptError("a module has an attribute whose name is not text", found=shown(name))
    return name
