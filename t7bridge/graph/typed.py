"""The static type of loaded values, for type checkers only: it does not exist at run time.

The type of a field depends on the file. A checker may index a `Field`, as tables and objects are indexed, and use the
methods of a tensor; `isinstance` narrows it to one of the classes.
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
            """Return the value of a key, or `default`."""

        def keys(self) -> KeysView[Key]:
            """Return the keys."""

        def values(self) -> ValuesView[Field]:
            """Return the values."""

        def items(self) -> ItemsView[Key, Field]:
            """Return keys and values."""

        def as_list(self) -> list[Field]:
            """Return the values of 1, 2, 3, …"""

        def numpy(self) -> np.ndarray:
            """Return the elements as a numpy array."""

        def torch(self) -> pytorch.Tensor:
            """Return the elements as a PyTorch tensor."""

        def tolist(self) -> list[Any]:
            """Return the elements as Python values."""

        def item(self) -> bool | int | float | complex:
            """Return the only element as a Python value."""

        def decode(self) -> str:
            """Return the text of a string."""

else:
    Field = Any
