"""Values of numpy and torch as values of the graph, so that they can be saved; the public writers, which accept them.

Neither library is imported: such a value can exist only if the caller imported them.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from functools import cached_property
from typing import IO, Any, NoReturn, TypeVar

from ..errors import ModelError, UnsupportedError, WriteError
from ..formats.pt import writer as pt_writer
from ..formats.t7 import writer as t7_writer
from ..formats.t7.layout import T7Layout
from ..graph.dtypes import ELEMENT_TYPES, ElementType
from ..graph.lua import COMPOSITE
from ..graph.python import DefaultDict, Device, TorchConstant, TorchSize
from ..graph.storage import Elements, Storage
from ..graph.tensor import Tensor
from ..graph.walk import Path, Rebuilder, fill_dict, fill_list, objects
from ..io.output import FileOutput, Output
from ..io.source import PathLike
from ..text import counted, one_line
from .lua_tree import to_lua
from .tree import Tree


class Adopter(Rebuilder):
    """Rebuilds containers with values of numpy and PyTorch, which become those of the graph; sharing is preserved.

    Results are remembered between calls, so that the values of one file share memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._torch: Any = None
        self._numpy: Any = None
        self._storages: dict[int, Storage] = {}
        """The storage over PyTorch's memory, by its address."""

    def run(self, root: Any) -> Any:
        """Return the value without anything of torch or numpy in it; the value itself if neither is imported."""
        # Not imported here: a caller without them has no such values.
        self._torch = sys.modules.get("torch")
        self._numpy = sys.modules.get("numpy")
        if self._torch is None and self._numpy is None:
            return root
        return super().run(root)

    def make(self, value: Any, path: Path) -> Any:
        """Return a value of numpy or PyTorch as one of the graph, a new container to be filled; anything else as it is.

        A module becomes its state dict, an array of text or objects a list.
        """
        if self._numpy is not None and isinstance(value, self._numpy.ndarray):
            if not value.shape and value.dtype.kind == "O":  # around one object, which may be an array or tensor
                return self.make(value.item(), path)
            value = self._array(value)
        elif self._numpy is not None and isinstance(value, self._numpy.generic):
            value = value.item()
        elif self._torch is not None:
            value = self._from_torch(value)
        # What they became may be a container: the state dict of a module, the list of an array of objects.
        if isinstance(value, dict):
            return self._dict_to_fill(value)
        if type(value) is list:
            return fill_list(value)
        if type(value) is tuple:
            return fill_list(value, tuple)
        return value

    def _dict_to_fill(self, value: dict[Any, Any]) -> Any:
        """Return a new dict of the same class to be filled, with the attributes of an `OrderedDict`.

        A dict of another class is returned as it is, and nothing in it is rebuilt: only the writer knows whether its
        format has such a class.
        """
        result: dict[Any, Any]
        if isinstance(value, DefaultDict):
            result = DefaultDict(value.factory)
        elif type(value) is OrderedDict:
            result = OrderedDict()
            vars(result).update(vars(value))  # such as the `_metadata` of a state dict
        elif type(value) is dict:
            result = {}
        else:
            return value
        return fill_dict(result, value, value.values())

    def _from_torch(self, value: Any) -> Any:
        """Return a value of PyTorch as one of the graph, a module as its state dict; anything else as it is."""
        torch = self._torch
        if isinstance(value, torch.nn.Module):
            return value.state_dict()
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.Size):
            return TorchSize(value)
        if isinstance(value, torch.dtype):
            return TorchConstant("dtype", str(value).removeprefix("torch."))
        if isinstance(value, torch.device):
            return Device(value.type, value.index)
        return value

    def _array(self, array: Any) -> Any:
        """Return an array of numbers as a tensor, one of text or objects as a list, a single text as it is.

        Raises:
            UnsupportedError: no tensor has such elements, as dates.
        """
        if array.dtype.kind in "biufc":  # booleans and numbers
            return Tensor.from_numpy(array)
        if array.dtype.kind in "OSU":  # objects and text
            return array.tolist()
        element = ELEMENT_TYPES.get(array.dtype.name)  # types of ml_dtypes: bfloat16, float8
        if element is None:
            raise UnsupportedError(f"a numpy array of type {array.dtype} cannot be saved")
        # numpy itself has no such types: the storage has the elements as integers of the same size.
        flat = self._numpy.ascontiguousarray(array).reshape(-1).view(element.code)
        strides_of_shape = Tensor.from_numpy(flat.reshape(array.shape)).stride
        storage = Storage(element, flat.size, flat)
        return Tensor(element, storage, array.shape, strides_of_shape, is_scalar=not array.shape)

    def _tensor(self, tensor: Any) -> Tensor:
        """Return a tensor of PyTorch as one of the graph, over the same memory where that is possible.

        Raises:
            UnsupportedError: it is not dense, has no elements, or has elements of an unknown type.
        """
        torch = self._torch
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            raise UnsupportedError(
                "only dense tensors with elements can be saved", found=f"{tensor.layout} on {tensor.device}"
            )
        name = str(tensor.dtype).removeprefix("torch.")
        element = ELEMENT_TYPES.get(name)
        if element is None:
            raise UnsupportedError(f"a tensor of {name} cannot be saved")
        plain = tensor.detach().resolve_conj().resolve_neg()
        storage = self._storage(plain.untyped_storage(), element)
        return Tensor(
            element,
            storage,
            tuple(plain.shape),
            tuple(plain.stride()),
            plain.storage_offset(),
            is_scalar=plain.dim() == 0,
            # Results of operations require gradients too, but no file restores the operations.
            requires_grad=bool(tensor.requires_grad and tensor.is_leaf),
            is_parameter=isinstance(tensor, torch.nn.Parameter),
        )

    def _storage(self, memory: Any, element: ElementType) -> Storage:
        """Return a storage over the memory of an untyped storage of PyTorch; the same one for tensors that share it.

        Memory that is seen as two types is two storages: only that of the last type is remembered. Untyped storages
        of two lengths may begin at one address: if the longer one comes first, it serves both, else they are two.

        Args:
            memory: the untyped storage.
            element: the type of the elements of a tensor on it.
        """
        torch = self._torch
        address = memory.data_ptr()
        count = memory.nbytes() // element.itemsize
        storage = self._storages.get(address) if address else None  # all empty storages are at address 0
        if storage is not None and storage.element is element and storage.count >= count:
            return storage
        as_bytes = torch.empty(0, dtype=torch.uint8).set_(memory.cpu())
        # Bytes after the last whole element are in no tensor of this type.
        data = as_bytes[: count * element.itemsize].numpy().view(element.code)
        self._alive.append(memory)  # or its address could be given to other memory
        storage = Storage(element, count, data)
        self._storages[address] = storage
        return storage


def is_live(value: Any) -> bool:
    """Return whether a value is a live PyTorch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def adopt(value: Any) -> Any:
    """Return a value in which numpy's and torch's arrays, tensors and modules are values of the graph.

    Args:
        value: builtins, arrays, tensors, modules (which become their state dicts), and values of the graph.

    Returns:
        The value itself if neither numpy nor torch is imported. Memory is shared, with offsets and strides of torch's
        tensors; an array that is not contiguous is copied.

    Raises:
        UnsupportedError: no file can hold the elements or the layout of an array or tensor.
    """
    return Adopter().run(value)


_LUA_TYPES = (*COMPOSITE, type(None), bool, int, float, str, bytes)
"""The types of values that the writer of a `.t7` takes as they are."""


class _ClosedStream:
    """Takes the place of a closed writer's stream: any use is an error that says so."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _closed_error()


def _closed_error() -> ModelError:
    """Return the error for writing with a closed writer."""
    return ModelError("the writer is closed", hint="Write everything before close(), or inside the `with` block.")


_Writer = TypeVar("_Writer", bound="_FileWriter")


class _FileWriter:
    """Base of the public writers: a file at a path is created, and takes its name when the writer is closed."""

    _output: Output
    """Where a subclass writes: to the file, or to the target itself."""
    _file: FileOutput | None = None
    """The file that is created for a path; `None` if the target is an open one."""
    _is_closed = True  # until there is a file

    def _opened(self, target: PathLike | IO[bytes] | Output, force: bool) -> IO[bytes] | Output:
        """Return the target, or the file that is created for it if it is a path; the writer is open from here on."""
        self._is_closed = False
        if not isinstance(target, (str, os.PathLike)):
            return target
        self._file = FileOutput(target, force=force)
        return self._file

    @cached_property
    def _adopter(self) -> Adopter:
        """One for all values, so that tensors of different values share memory in the file as in Python."""
        return Adopter()

    def _write_rest(self) -> None:
        """Write what the file has after its values."""
        raise NotImplementedError

    def _has_unwritten(self) -> bool:
        """Return whether values would be lost if the writer ended without `close`."""
        raise NotImplementedError

    def _mark_closed(self) -> None:
        """Accept nothing more. A subclass lets go of what it has kept, too."""
        self._is_closed = True

    def close(self) -> None:
        """Complete the file: one at a path takes its name. Closing again does nothing.

        Raises:
            ModelError: of a `.pt`: nothing was written.
            TargetExistsError: the name was taken meanwhile.
            WriteError: the disk reports an error.
        """
        if self._is_closed:
            return
        try:
            self._write_rest()
            self._mark_closed()
            if self._file is not None:
                self._file.commit()
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        """Close without a file at the path."""
        self._mark_closed()
        if self._file is not None:
            self._file.discard()

    def __repr__(self) -> str:
        name = self._output.name or "a stream"
        state = "closed" if self._is_closed else "not closed"
        return one_line(self, f"{name}: {self._written()}, {state}")

    def _written(self) -> str:
        """Return how much the file has, in words."""
        return counted(self._output.position, "byte")

    def __enter__(self: _Writer) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()

    def __del__(self) -> None:
        """Warn of a file that will not be there, if the writer ends without `close`."""
        if self._is_closed:
            return
        has_unwritten = self._has_unwritten()  # before `_discard`, which empties the writer
        self._discard()
        if has_unwritten:  # Python prints an error that is raised here, which nobody can catch
            raise WriteError(
                "was not written, as its writer was never closed",
                file=self._output.name or "a .pt file",  # a `.t7` in a stream is written already
                hint="Call close(), or write inside `with`.",
            )


class T7Writer(_FileWriter, t7_writer.T7Writer):
    """Writes values to a `.t7` file, one after another, as Lua's `torch.DiskFile` does.

    An object already written becomes a reference to it, so that sharing and cycles are kept, between values too:
    objects of `t7bridge.graph` are the same if they are one object, tensors share memory if they do so in Python.
    Python's dicts and lists are written anew each time. The elements of storages are copied from their source to the
    output without being loaded into memory.

    A context manager. A file at a path appears under its name when the writer is closed; if the `with` block raises an
    error there is none. What is written to a file object is there after each call.

    Args:
        target: a path, or a binary file object, which stays open.
        layout: encoding, byte order, size of `long`.
        force: whether an existing file is replaced.
        referenced: `False` writes every object again at each occurrence, as `file:referenced(false)` does; sharing
            is lost, and cycles are refused.
        payloads: if given, storages are appended to it and their elements are omitted from the stream.

    Raises:
        TargetExistsError: the file exists and `force` is not set.
        WriteError: the file cannot be written; or, from Python's collector, it was never closed.

    Example:
        >>> with T7Writer("out.t7") as writer:
        ...     writer.write({"epoch": 3, "weights": np.zeros((2, 3), "f4")})
    """

    def __init__(
        self,
        target: PathLike | IO[bytes] | Output,
        layout: T7Layout | None = None,
        *,
        force: bool = False,
        referenced: bool = True,
        payloads: list[Storage] | None = None,
    ) -> None:
        self._checksums: dict[int, int] = {}
        """The CRC-32 of each storage in memory that was written, by identity: the writer keeps them alive."""
        super().__init__(self._opened(target, force), layout, referenced=referenced, payloads=payloads)

    def write(self, value: Any) -> None:
        """Write one value and everything inside it, after those before.

        Args:
            value: `None`, `bool`, `int`, `float`, `bytes`, `str` (as UTF-8), an object of `t7bridge.graph`, a numpy
                array, a torch tensor, a module (its state dict), or builtins of these, which become tables. A dict with
                `__class__` and `__version__`, as `tree` mode and `PtWriter` make it of a Torch object, becomes that
                object again. Tensors that share memory do so in the file.

        Raises:
            UnsupportedError: the value is none of these, or a tensor of a type that Lua Torch does not have.
            WriteError: a number does not fit into the layout, or the output cannot be written; or a tensor that was
                written before has other elements now: the file would refer to those that it had.
            ModelError: the writer is closed.
        """
        if not isinstance(value, _LUA_TYPES):
            value = self._adopter.run(value)  # an array or tensor is one of Lua's now
            if not isinstance(value, _LUA_TYPES):
                value = to_lua(value, objects=True).value
        if self._referenced:
            self._check_unchanged(value)
        super().write_object(value)

    def _check_unchanged(self, value: Any) -> None:
        """Refuse a tensor in memory that has changed since it was written, and remember those that are new.

        Raises:
            WriteError: one has changed.
        """
        for item in objects(value):
            # Elements that are read from a file do not change.
            if not isinstance(item, Storage) or isinstance(item.data, Elements):
                continue
            checksum = item.crc32()
            if self._checksums.setdefault(id(item), checksum) != checksum:
                raise WriteError(
                    "a tensor was changed since it was written to this file, which would refer to what it was then",
                    file=self._output.name,
                    hint="Write a copy of it each time, or T7Writer(…, referenced=False) without references.",
                )

    def write_object(self, value: Any) -> None:
        """Write one value, as `write` does; the name is that of Lua's method."""
        self.write(value)

    def _write_rest(self) -> None:
        """Write what is still in the buffer: values are written as they come."""
        self.flush()

    def _has_unwritten(self) -> bool:
        """Return whether something was written to a file that has no name yet; an open target has it already."""
        return self._file is not None and self._file.position > 0

    def _mark_closed(self) -> None:
        """Let any further use of the stream raise the error for a closed writer."""
        super()._mark_closed()
        self._stream: Any = _ClosedStream()


class PtWriter(_FileWriter, pt_writer.PtWriter):
    """Writes a `.pt` file that `torch.load(weights_only=True)` reads, also by memory map.

    Each storage is written once, with all its elements, so that sharing, offsets and strides are those of the
    values. Its bytes are copied from their source to the archive without being loaded into memory.

    A context manager. The archive is written when the writer is closed; if the `with` block raises an error there is
    none.

    Args:
        target: a path, or a binary file object, which stays open.
        force: whether an existing file is replaced.
        keep_device: whether tensors keep their device (`cuda:0`); otherwise all are on the CPU.
        place: the new device of tensors, by their old one, instead.
        allow_foreign: whether objects of other packages keep the names of their classes; otherwise they are written as
            plain data.

    Raises:
        TargetExistsError: the file exists and `force` is not set.
        WriteError: the file cannot be written; or, from Python's collector, it was never closed.

    Example:
        >>> with PtWriter("out.pt") as writer:
        ...     writer.write({"weight": np.zeros((2, 3), "f4")})
    """

    def __init__(
        self,
        target: PathLike | IO[bytes] | Output,
        *,
        force: bool = False,
        keep_device: bool = False,
        place: pt_writer.Place | None = None,
        allow_foreign: bool = False,
    ) -> None:
        self._accepted_values: list[Any] = []
        """The values of `write` so far, as the file will have them. Of several, `_write_rest` writes the list."""
        self._record: Any = None
        """The argument of `finish`."""
        output = self._opened(target, force)
        super().__init__(output, keep_device=keep_device, place=place, allow_foreign=allow_foreign)

    @cached_property
    def _tree(self) -> Tree:
        """One for all Lua values, so that what two values share is one object in the file."""
        return Tree()

    def write(self, value: Any) -> None:
        """Accept one value. `close` writes it, with the elements that its tensors have then.

        A file with several values holds the list of them, and shares what they share.

        Args:
            value: builtins, `OrderedDict`, `Tensor` and `Storage`, numpy arrays, torch tensors and modules (their state
                dicts), nested and shared in any way; or a Lua value, which becomes dicts and lists as in `tree` mode.

        Raises:
            UnsupportedError: the value contains something that the format cannot store.
            ModelError: the writer is closed.
        """
        if self._is_closed:
            raise _closed_error()
        python_value = self._python_value(self._adopter.run(value))
        super().write(python_value)  # which refuses what the format cannot hold
        self._accepted_values.append(python_value)

    def _python_value(self, value: Any) -> Any:
        """Return a value with dicts and lists in place of Lua's tables and objects."""
        if isinstance(value, COMPOSITE):
            return self._tree.run(value)
        from .targets import has_lua_objects

        if has_lua_objects(value):
            # Lua's objects in Python's dicts and lists: all becomes Lua's first, as `Tree` converts Lua's values only.
            return self._tree.run(to_lua(value).value)
        return value

    def finish(self, record: Any = None) -> None:
        """Write the file, and close the writer as `close` does; `record` as for the writer of one value."""
        self._record = record
        self.close()

    def _write_rest(self) -> None:
        """Write the archive with all values.

        Raises:
            ModelError: there are none.
        """
        if not self._accepted_values:
            raise ModelError("a .pt holds a value, and none was written")
        if len(self._accepted_values) > 1:
            super().write(self._accepted_values)  # in place of the last one
        super().finish(self._record)

    def _has_unwritten(self) -> bool:
        """Return whether there are values: all are written when the writer is closed."""
        return bool(self._accepted_values)

    def _written(self) -> str:
        """Return how much the file has, in words: values until it is closed, then bytes."""
        # All bytes are written at the end.
        return super()._written() if self._is_closed else counted(len(self._accepted_values), "value")

    def _mark_closed(self) -> None:
        """Let go of the values."""
        super()._mark_closed()
        self._accepted_values = []
