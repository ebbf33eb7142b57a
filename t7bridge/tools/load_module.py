"""`load_module`: live PyTorch modules from the models in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import formats
from ..errors import ModelError, UnsupportedError
from ..graph.lua import TorchObject
from ..io.source import ByteSource, Readable
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.places import choose_module

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
    try:
        from ..torchmodules.build import live_module
    except ImportError as error:
        raise UnsupportedError("PyTorch is not installed", hint="pip install 't7bridge[torch]'") from error
    if index_base not in (0, 1):
        raise ModelError("the first element is number 0 or 1", expected="index_base=0 or 1", found=f"{index_base}")
    place = None
    if map_location is not None:
        from ..formats.pt.writer import placed

        location = map_location if callable(map_location) or isinstance(map_location, Mapping) else str(map_location)
        place = placed(location, keep_device=False)
    path, module = one_module(source, at, limits)
    return live_module(module, path, index_base, limits, place)


def one_module(
    source: Readable | ByteSource, at: str | None, limits: Limits = DEFAULT_LIMITS
) -> tuple[str, TorchObject]:
    """Return the selected module of a `.t7` file, with its path.

    Args:
        source: a path, bytes, a binary file object, or an open document.
        at: the path of the module if the file holds several.
        limits: resource limits.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        NoModuleError: the file holds no module.
        ModelError: it holds several and `at` names none of them; the message lists them.
        UnsupportedError: the file is not a `.t7`.
    """
    document = formats.open(source, limits=limits)
    if document.spec.values != formats.LUA:
        raise UnsupportedError(
            "modules are made from .t7 files",
            file=document.path,
            hint="A state dict in a .pt is loaded by torch.load(weights_only=True)."
            if document.format == "pt"
            else f"A {document.spec.suffix} holds tensors, but not their layers.",
        )
    document.warn(4)
    return choose_module(document.first, at, document.path)
