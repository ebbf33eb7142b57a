"""Context: the state of the file being read that the call of a global may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....graph.python import PythonGlobal
from ....graph.tensor import Tensor
from ....limits import DEFAULT_LIMITS, Limits
from ..storages import StorageTable
from .budget import Work

Handler = Callable[[Any, tuple[Any, ...]], Any]
"""Returns the value of a call, or `NotImplemented` where it has no meaning and stays an opaque object."""


class Context:
    """State shared by the calls in a file's pickles.

    Args:
        storages: the storages of the file.
        nested: reads a whole PyTorch file that stands in a pickle as bytes.
        limits: resource limits.
        size: bytes of the file, which bound what it can hold.

    Attributes:
        work: what calls may copy.
        tensors: the tensors that `torch.jit._pickle.build_tensor_from_id` numbers.
        handlers: of the globals that the file names, by identity.
    """

    def __init__(
        self,
        storages: StorageTable,
        nested: Callable[[bytes], Any] | None = None,
        limits: Limits = DEFAULT_LIMITS,
        size: int = 0,
    ) -> None:
        self.storages = storages
        self.nested = nested
        self.limits = limits
        self.size = size
        self.work = Work(size)
        self.tensors: list[Tensor] = []
        self.handlers: dict[int, Handler] = {}

    def handler_of(self, value: Any) -> Handler | None:
        """Return the handler for a call of a value, None where the call has no meaning."""
        return self.handlers.get(id(value)) if type(value) is PythonGlobal else None
