"""`load_module`: a model of a `.t7` as a live PyTorch module; and the choice of a model in a file, for all verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import formats
from ..codegen.generate import generate
from ..data import collector_paused
from ..errors import ModelError, UnsupportedError
from ..formats.pt.writer import device_mapper
from ..formats.table import Document
from ..graph.lua import TorchObject
from ..io.platform import require_torch
from ..io.source import ByteSource, Readable, inputs_protected
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.places import choose_module
from ..nn.state_dict import Recorded

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..formats.pt.writer import MapLocation


def load_module(
    source: Readable,
    at: str | None = None,
    *,
    index_base: int = 1,
    map_location: MapLocation | torch.device = None,
    lift: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> nn.Module:
    """Load a model of a `.t7` file as a live PyTorch module, in evaluation mode.

    The module has the inputs and outputs of the Lua module: tensors in Lua's shapes, and lists for tables. It can be
    trained, and its `state_dict()` has the keys that `convert` writes. A criterion is called with input and target.

    Args:
        source: a path, bytes, or a binary file object.
        at: the path of the module, if the file holds several or one inside another is requested: `root.protos.rnn`,
            `root.model.modules[3]`.
        index_base: number of the first class, row or element: 1 as in Lua, or 0.
        map_location: the device of its parameters: `"cuda"`, a `torch.device`, a mapping such as `{"cuda:0":
            "cuda:1"}`, or a function that receives the device in the file (`cuda:0` for Cuda tensors) and returns one,
            or `None` for the CPU. By default the CPU.
        lift: whether recurrent cells that are recognized in graphs become modules such as `torch.nn.LSTMCell`; the
            keys of its state dict are then those of the `model.pt` that `write_module` writes.
        limits: resource limits.

    Returns:
        A `torch.nn.Module`, its parameters in the element types of the file.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        ModelError: the file holds no module, or several and `at` names none of them; the message lists them.
        UnsupportedLayerError: layers of the model have no PyTorch equivalent; it lists all of them.
        UnsupportedError: the file is not a `.t7`, PyTorch is not installed, or has no such device.

    Example:
        >>> model = load_module("model.t7")  # doctest: +SKIP
        >>> model(torch.randn(1, 3, 224, 224))  # doctest: +SKIP
    """
    if index_base not in (0, 1):
        raise ModelError("the first element is number 0 or 1", expected="index_base=0 or 1", found=f"{index_base}")
    with inputs_protected(), collector_paused():
        path, module = one_module(source, at, limits)
        require_torch()
        from ..torchmodules.build import live_module

        place = None  # all on the CPU
        if map_location is not None:
            if not (callable(map_location) or isinstance(map_location, Mapping)):
                map_location = str(map_location)  # of a `torch.device`
            place = device_mapper(map_location, keep_device=False)

        def keys_of_model_file() -> Recorded:
            """Return the record by which the module's state dict gets the keys of the `model.pt` of `write_module`."""
            # `live_module` calls it only if cells were recognized: generating takes time.
            return generate(module, path, index_base=index_base, limits=limits, only_keys=True).record()

        return live_module(module, path, index_base, limits, place, lift, keys_of_model_file)


def one_module(
    source: Readable | ByteSource, at: str | None, limits: Limits = DEFAULT_LIMITS
) -> tuple[str, TorchObject]:
    """Return the path of the selected module of a `.t7` file, and the module.

    Args:
        source: a path, bytes, a binary file object, or an open `ByteSource`.
        at: the path of the module if the file holds several.
        limits: resource limits.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        NoModuleError: the file holds no module.
        ModelError: it holds several and `at` names none of them; the message lists them.
        UnsupportedError: the file is not a `.t7`.
    """
    document = lua_document(source, limits)
    return choose_module(document.value, at, document.path)


def lua_document(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a `.t7` file to take a module from it, and warn if it is incomplete.

    Args:
        source: a path, bytes, a binary file object, or an open `ByteSource`.
        limits: resource limits.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        UnsupportedError: the file is not a `.t7`.
    """
    document = formats.open(source, limits=limits)
    if document.spec.values != formats.LUA:
        import shlex

        raise UnsupportedError(
            f"is {document.title}; modules are made from files of Lua Torch, which hold their layers",
            file=document.path,
            hint=f"t7bridge convert {shlex.quote(document.path)} weights.pt writes the weights for torch.load.",
        )
    document.source.read_all()  # all weights are needed: a file at an address is read in large ranges from here
    document.warn(stacklevel=5)  # at the line that calls the verb
    return document
