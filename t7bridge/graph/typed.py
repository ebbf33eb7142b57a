"""The type of what a loaded value holds, for type checkers: nothing of it exists when a program runs.

A file decides what a field is. A checker knows of a `Field` that it may be looked into, as tables and objects are, and
what a tensor has; `isinstance` narrows it to one of the classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, ValuesView

    import numpy as np
    import torch as pytorch

    from .lua import Key

    class Field:
        """Any value of a file: a table, an object, a tensor, a number, text, or nothing."""

        shape: tuple[int, ...]
        dtype: str
        ndim: int
        nbytes: int
        numel: int
        class_name: str

        def __getattr__(self, name: str) -> Field: ...
        def __getitem__(self, key: Any) -> Field: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...
        def __eq__(self, other: object) -> bool: ...
        def __hash__(self) -> int: ...
        def __contains__(self, key: object) -> bool: ...
        def __iter__(self) -> Iterator[Any]: ...
        def __len__(self) -> int: ...
        def __float__(self) -> float: ...
        def __int__(self) -> int: ...
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...
        def get(self, key: Any, default: Any = None) -> Field:
            """The value of a key, or `default`."""

        def keys(self) -> KeysView[Key]:
            """The keys."""

        def values(self) -> ValuesView[Field]:
            """The values."""

        def items(self) -> ItemsView[Key, Field]:
            """Keys and values."""

        def as_list(self) -> list[Field]:
            """The values of 1, 2, 3, …"""

        def numpy(self) -> np.ndarray:
            """The elements as a numpy array."""

        def torch(self) -> pytorch.Tensor:
            """The elements as a PyTorch tensor."""

        def tolist(self) -> list[Any]:
            """The elements as Python values."""

        def item(self) -> bool | int | float | complex:
            """The one element as a Python value."""

        def decode(self) -> str:
            """The text of a string."""

else:
    Field = Any
