"""PyTorch as a second, independent reader of `.pt` files, if it is installed. Only its safe loader is used.

Imports torch inside the functions, as it is needed only to verify.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from typing import Any

from ..graph.storage import Storage
from ..graph.tensor import Tensor, TensorExtras
from ..graph.walk import Path, pairwise
from ..io.source import PathLike


def differences(path: PathLike, value: Any) -> list[str] | None:
    """Read a file with `torch.load(weights_only=True)` and compare with the value from `PtReader`.

    Args:
        path: of the file.
        value: the value from `PtReader`.

    Returns:
        The differences, each with its path; `None` if PyTorch is not installed or does not read the file safely.
    """
    try:
        import torch
    except ImportError:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # its safe loader refuses files in many ways; then it is not a reference for this one
        return None
    return _Comparer(torch).run(value, other)


class _Comparer:
    """Compares the values of both readers side by side; values that are not plain data are skipped."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._found: list[str] = []
        self._memory: dict[int, int] = {}
        self._seen: set[int] = set()

    def run(self, mine: Any, theirs: Any) -> list[str]:
        pairwise(mine, theirs, self._pair)
        return self._found

    def _pair(self, path: Path, a: Any, b: Any) -> Iterable[tuple[Any, Any, Any]]:
        if isinstance(a, Tensor):
            self._tensor(path, a, b)
        elif isinstance(a, (dict, list, tuple)):
            if id(a) not in self._seen:
                self._seen.add(id(a))
                return self._inside(path, a, b)
        elif isinstance(a, (bool, int, float, str, bytes, type(None))) and repr(a) != repr(b):
            self._found.append(f"{path}: PyTorch has {b!r:.60} for {a!r:.60}")
        return ()

    def _inside(self, path: Path, a: Any, b: Any) -> Iterable[tuple[Any, Any, Any]]:
        kind = dict if isinstance(a, dict) else list if isinstance(a, list) else tuple
        if not isinstance(b, kind) or len(a) != len(b):
            self._found.append(f"{path}: PyTorch has a {type(b).__name__} where here is a {type(a).__name__}")
            return ()
        if isinstance(a, dict) and isinstance(b, dict):
            return zip(a, a.values(), b.values())
        return zip(range(len(a)), a, b)

    def _tensor(self, path: Path, a: Tensor, b: Any) -> None:
        if not isinstance(b, self._torch.Tensor):
            self._found.append(f"{path}: PyTorch has a {type(b).__name__} for a tensor")
            return
        extras = a.extras or TensorExtras()
        mine = (a.element.name, a.shape, a.requires_grad, extras.conj, extras.neg)
        theirs = (str(b.dtype).removeprefix("torch."), tuple(b.shape), b.requires_grad, b.is_conj(), b.is_neg())
        if mine != theirs:
            self._found.append(f"{path}: PyTorch has {theirs} for {mine}")
        elif a.storage is not None and a.numel:
            if (a.stride, a.offset) != (b.stride(), b.storage_offset()):
                self._found.append(f"{path}: PyTorch has another stride or offset")
            self._storage(path, a.storage, b.untyped_storage())

    def _storage(self, path: Path, a: Storage, b: Any) -> None:
        known = self._memory.get(id(a))
        if known is None:
            self._memory[id(a)] = b.data_ptr()
            view = self._torch.empty(0, dtype=self._torch.uint8).set_(b).numpy()
            digest = hashlib.sha256()
            for chunk in a.chunks():
                digest.update(chunk)
            if digest.digest() != hashlib.sha256(view).digest():
                self._found.append(f"{path}: PyTorch has different elements")
        elif known != b.data_ptr():
            self._found.append(f"{path}: memory shared here is not shared in PyTorch")
