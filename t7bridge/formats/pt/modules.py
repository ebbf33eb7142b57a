"""The state dict of a pickled module: from its attributes, without its class.

Source: PyTorch 2.13 `torch/nn/modules/module.py` `state_dict`, `_save_to_state_dict`.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from typing import Any

from attrs import field

from ...data import define
from ...errors import CorruptError, LimitError, UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES
from ...graph.python import MODULE_PARTS, PythonObject
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, STEPS_PER_NODE, Limits
from .storages import shown, span_of_bytes
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


@define(eq=False)
class MetModules:
    """The modules of a file that were turned into state dicts: repeated ones are charged to `Limits.work`.

    Attributes:
        limits: resource limits.
        seen: the identities of the modules.
        repeated: number of entries made from repeated modules.
    """

    limits: Limits = DEFAULT_LIMITS
    seen: set[int] = field(factory=set)
    repeated: int = 0

    def meet(self, module: PythonObject) -> None:
        """Count a module.

        Raises:
            LimitError: modules are repeated too often.
        """
        if id(module) in self.seen:
            attributes = attributes_of(module)
            self.repeated += 1 + sum(len(attributes[name]) for name in MODULE_PARTS)
            if self.repeated > self.limits.work // STEPS_PER_NODE:
                raise LimitError("the modules contain one another too often", limit="work", value=self.limits.work)
        self.seen.add(id(module))


@define
class _Entry:
    module: PythonObject
    prefix: str
    depth: int


def module_state_dict(
    module: Any,
    *,
    keep_parameters: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    met: MetModules | None = None,
) -> OrderedDict[str, Any]:
    """Return the state dict of a pickled `nn.Module`, in PyTorch's order and under PyTorch's names.

    Args:
        module: the inert object in the file.
        keep_parameters: whether the tensors stay parameters; `state_dict()` detaches them.
        limits: bound how often a shared module is repeated.
        met: the modules of the same file seen before, for one limit over all its state dicts.

    Raises:
        UnsupportedError: it is not a module.
        LimitError: its modules contain one another endlessly.
    """
    if not is_module(module):
        raise UnsupportedError("the value is not a module", found=shown(module))
    found: OrderedDict[str, Any] = OrderedDict()
    stack = [_Entry(module, "", 0)]
    met = met or MetModules(limits)
    while stack:
        entry = stack.pop()
        attributes = attributes_of(entry.module)
        met.meet(entry.module)
        if entry.depth > limits.module_depth:
            raise LimitError("the modules are nested too deep", limit="module_depth", value=limits.module_depth)
        transient = attributes.get("_non_persistent_buffers_set") or ()
        listed = isinstance(transient, (set, frozenset, list, tuple))
        transient = {name for name in transient if isinstance(name, str)} if listed else ()
        for kind in ("_parameters", "_buffers"):
            for name, value in attributes[kind].items():
                if value is None or (kind == "_buffers" and name in transient):
                    continue
                found[entry.prefix + _word(name)] = value if keep_parameters else detached(value)
        for name, value in _quantized_entries(entry.module, attributes).items():
            found[entry.prefix + name] = value
        inner = [
            _Entry(value, f"{entry.prefix}{_word(name)}.", entry.depth + 1)
            for name, value in attributes["_modules"].items()
            if is_module(value)
        ]
        stack.extend(reversed(inner))
    return found


def _word(name: Any) -> str:
    if type(name) is not str:
        raise CorruptError("a module has an attribute whose name is not text", found=shown(name))
    return name
