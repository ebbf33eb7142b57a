"""`load_state_dict`: the tensors of a file of any format, as PyTorch's `load_state_dict` takes them."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .. import formats
from ..conversion.checkpoints import chosen_state
from ..conversion.edits import Edits
from ..conversion.named_tensors import flatten
from ..conversion.naming import Renames
from ..conversion.request import Attempt
from ..conversion.targets import plain_value
from ..conversion.tree import DROPPED
from ..errors import LeftOutWarning, ModelError, RecordError, about_file
from ..formats.table import LUA, Document
from ..graph.storage import Storage
from ..graph.tensor import Tensor, torch_tensor
from ..io.platform import require_torch
from ..io.source import Readable
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Report
from ..text import listed, printable

if TYPE_CHECKING:
    import torch


def load_state_dict(
    source: Readable,
    at: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    *,
    rename: Renames = (),
    strip: Iterable[str] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> OrderedDict[str, torch.Tensor]:
    """Load the weights of a file of any format as PyTorch tensors, under the keys of `torch.nn.Module.load_state_dict`.

    Of a model of Lua Torch these are PyTorch's names, as `state_dict` makes them; of a checkpoint, the only state dict
    or module in it. Tensors that share memory in the file share it here, also after `dtype` and `device`. `_metadata`,
    by which PyTorch knows the versions of modules, is that of the file.

    Args:
        source: a path, an address, bytes, or a binary file object.
        at: the path of the state dict, or of the module, if there are several: `root.model`. Of dicts or lists of
            tensors inside one another the keys are joined with dots.
        device: where the tensors are: `"cuda"`, `"cpu"`, a `torch.device`.
        dtype: the type of all floating-point elements, `torch.float16`, `bfloat16` or `float32`, or its name; by
            default that of the file. Integers keep their types.
        rename: rules for the keys, as for `convert`: `{"features": "backbone.body"}`.
        strip: prefixes to leave out of the keys before: `"module"`.
        limits: resource limits.

    Returns:
        The tensors, in the order of the file, without gradients.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        NoModuleError: the file holds no state dict.
        ModelError: it holds several, and `at` names none of them; the message lists them. Or a rule renames nothing, or
            gives two keys one name.
        UnsupportedError: PyTorch is not installed, or has no such elements.

    Warns:
        LeftOutWarning: the state dict has entries that are not tensors; the warning names them.

    Example:
        >>> model.load_state_dict(load_state_dict("checkpoint.t7", at="root.model"))  # doctest: +SKIP
    """
    require_torch()
    with formats.open(source, limits=limits) as document, about_file(document.path):
        state = _state_of(document, at, limits)
        edits = Edits(rename, strip, None if dtype is None else str(dtype).removeprefix("torch."))
        tensors = _tensors_of(state, limits)
        named = edits.naming.renamed(tensors)
        edits.naming.check_used(tensors)
        return _in_torch(named, edits, device)


def _state_of(document: Document, at: str | None, limits: Limits) -> Any:
    """Return the only state dict of a file, or what is at a path, as a dict or list.

    Args:
        document: the file; narrowed to the state dict where it is chosen before it is converted.
        at: the path in the file.
        limits: resource limits.

    Raises:
        NoModuleError: the file holds no state dict.
        ModelError: it holds several, or there is nothing at `at`.
    """
    has_pt_record = document.spec.values == LUA and document.content.has_pt_record
    if has_pt_record and at is None:
        # The record, of the `.pt` that the file was made from, is about the whole value: that is restored first.
        value = _plain_value_of(document, limits)
        _path, state = chosen_state(value, None, document.path)
        return state
    # A path is one in the `.t7`; the value there is without the record, which `narrow` leaves behind.
    _path, state = chosen_state(document.value, at, document.path)
    if state is not document.roots:  # the whole of a file with several values
        document.narrow(state)  # so that nothing else is converted
    return _plain_value_of(document, limits)


def _plain_value_of(document: Document, limits: Limits) -> Any:
    """Return the value of a file as builtins with tensors in them, with state dicts in place of modules.

    Args:
        document: the file.
        limits: resource limits.
    """
    try:
        return _attempted_value(document, limits, trusts_records=True)
    except RecordError:
        # A record, that of the `.pt` or one in a module, contradicts the elements: the value is as if it had none.
        return _attempted_value(document, limits, trusts_records=False)


def _attempted_value(document: Document, limits: Limits, *, trusts_records: bool) -> Any:
    """Return the value of a file as `_plain_value_of`, with or without its records.

    Args:
        document: the file.
        limits: resource limits.
        trusts_records: whether the types and values that records state are used.

    Raises:
        RecordError: records are trusted, and one contradicts the elements.
    """
    attempt = Attempt(document.path, "", limits=limits, trusts_records=trusts_records, has_target=False)
    report = Report(document.path, target_format="pt")  # only the value is wanted
    return plain_value(document, attempt, report, unnamed_data=DROPPED)  # data of a module that no key names


def _tensors_of(state: Any, limits: Limits) -> OrderedDict[str, Tensor]:
    """Return the tensors of a state dict by their keys, with its `_metadata`, and warn of the rest.

    Args:
        state: a dict or list; of those inside it the keys are joined with dots.
        limits: resource limits.

    Raises:
        ModelError: there are none, or two get one key.
    """
    if isinstance(state, Tensor):
        raise ModelError("is a tensor, not a state dict", hint="Name what holds it.")
    flat = flatten(state, limits)
    tensors = _with_joined_names(flat.tensors)
    if not tensors:
        raise ModelError("holds no tensors")
    others = [".".join(name) for name, _ in flat.scalars]
    others += [path for paths in flat.left_out.values() for path in paths]
    if others:
        # At the line that calls `load_state_dict`.
        warnings.warn(f"not tensors, and left out: {listed(others, 10)}", LeftOutWarning, stacklevel=3)
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        tensors._metadata = metadata  # type: ignore[attr-defined]
    return tensors


def _with_joined_names(tensors: Mapping[tuple[str, ...], Tensor]) -> OrderedDict[str, Tensor]:
    """Return tensors by their keys, which are the steps of their names, joined with dots.

    Raises:
        ModelError: two get one key.
    """
    by_key: OrderedDict[str, Tensor] = OrderedDict()
    for name, tensor in tensors.items():
        key = ".".join(name)
        if key in by_key:  # a key with a dot, and keys of a dict inside: `a.b`, and `b` in `a`
            raise ModelError(f"two tensors have the key {printable(key)}", hint="Name what holds one of them.")
        by_key[key] = tensor
    return by_key


def _in_torch(
    tensors: OrderedDict[str, Tensor], edits: Edits, device: str | torch.device
) -> OrderedDict[str, torch.Tensor]:
    """Return tensors as PyTorch's, cast and on a device; those of one storage share memory.

    Args:
        tensors: by key; the result has their `_metadata`.
        edits: the type to which they are cast, if any.
        device: PyTorch's.
    """
    import torch

    result: OrderedDict[str, torch.Tensor] = OrderedDict()
    storages: dict[int, Any] = {}  # filled by `torch_tensor`: the memory of each storage on the CPU
    memory_on_device: dict[int, tuple[Storage, torch.Tensor]] = {}
    """The memory of each storage on the device, by identity."""
    torch_tensors: dict[int, torch.Tensor] = {}
    """By identity: a tensor under two names is one object, as in a state dict of PyTorch's tied modules."""
    is_cpu = torch.device(device).type == "cpu"
    for key, tensor in tensors.items():
        if id(tensor) not in torch_tensors:
            cast = tensor if edits.casts is None else edits.casts.tensor(tensor)
            on_cpu = torch_tensor(cast, storages).detach()
            torch_tensors[id(tensor)] = on_cpu if is_cpu else _on_device(cast, on_cpu, device, memory_on_device)
        result[key] = torch_tensors[id(tensor)]
    if hasattr(tensors, "_metadata"):
        result._metadata = tensors._metadata  # type: ignore[attr-defined]
    return result


def _on_device(
    tensor: Tensor,
    on_cpu: torch.Tensor,
    device: str | torch.device,
    memory_on_device: dict[int, tuple[Storage, torch.Tensor]],
) -> torch.Tensor:
    """Return a tensor on a device, where the memory of each storage is copied once.

    Args:
        tensor: the tensor of the graph, for its storage, sizes and strides.
        on_cpu: the same as PyTorch's.
        device: PyTorch's.
        memory_on_device: by identity of the storage: it, which stays alive, and its copy; receives new ones.
    """
    import torch

    storage = tensor.storage
    is_plain_view = tensor.extras is None and all(step >= 0 for step in tensor.stride)
    # Conjugated views and parts of other storages are not described by sizes and strides alone: each is copied.
    if storage is None or not is_plain_view or storage.base is not None:
        return on_cpu.to(device)
    if id(storage) not in memory_on_device:
        whole = torch.empty(0, dtype=on_cpu.dtype).set_(on_cpu.untyped_storage())
        memory_on_device[id(storage)] = (storage, whole.to(device))
    _storage, whole_on_device = memory_on_device[id(storage)]
    return whole_on_device.as_strided(tensor.size, tensor.stride, tensor.offset)
