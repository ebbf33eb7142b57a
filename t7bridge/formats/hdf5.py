"""HDF5 files from the graph, by h5py. The only importer of h5py.

Dicts and lists become groups, tensors data sets: `/model/0.weight`. Numbers and strings are attributes of the root
group, as JSON. bfloat16, which HDF5 does not have, becomes float32, which holds the same values.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np

from ..errors import UnsupportedError, WriteError
from ..graph.tensor import Tensor
from ..io.disk import temporary_name
from ..io.source import PathLike
from ..report import Report
from .safetensors import note_sharing


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise UnsupportedError("h5py is not installed", hint="pip install 't7bridge[hdf5]'") from error
    return h5py


def write_hdf5(
    path: PathLike, tensors: dict[tuple[str, ...], Tensor], attributes: dict[str, str], report: Report
) -> None:
    """Write tensors as an HDF5 file, without times in it, so that the same input gives the same bytes.

    Args:
        path: of the file; one that is there is replaced.
        tensors: by the steps to each.
        attributes: strings by name.
        report: gets a note where tensors that shared memory no longer do.

    Raises:
        UnsupportedError: h5py is not installed, or HDF5 has no such elements.
        WriteError: the disk refuses.
    """
    h5py = _h5py()
    target = os.fspath(path)
    temporary = os.path.join(os.path.dirname(target), temporary_name())
    note_sharing(tensors, report)
    try:
        with h5py.File(temporary, "w", track_order=True) as file:
            for steps, tensor in tensors.items():
                file.create_dataset(_path(steps), data=_array(tensor, ".".join(steps)), track_times=False)
            for name, text in attributes.items():
                file.attrs[name.replace("\0", "_")] = text
        os.replace(temporary, target)
    except (OSError, ValueError, RuntimeError) as error:  # h5py raises these for what HDF5 refuses
        raise WriteError(f"cannot be written as HDF5: {error}", file=target) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _path(steps: tuple[str, ...]) -> str:
    """The place of a data set. A slash inside a name would be a group, and an empty name or a dot is none."""
    parts = [step.replace("/", "_").replace("\0", "_") for step in steps]
    return "/" + "/".join(f"_{part}" if part in ("", ".", "..") else part for part in parts)


def _array(tensor: Tensor, trail: str) -> np.ndarray:
    if tensor.element.name == "bfloat16":
        wide = tensor.array.astype(np.uint32) << 16
        return wide.view(np.float32)
    if not tensor.element.native:
        raise UnsupportedError(f"HDF5 has no elements of type {tensor.element.name}", trail=trail)
    return tensor.array


def hdf5_differences(path: PathLike, tensors: dict[tuple[str, ...], Tensor]) -> list[str]:
    """Read a file with h5py, and compare with what should be in it.

    Raises:
        UnsupportedError: h5py is not installed.
    """
    h5py = _h5py()
    found = []
    with h5py.File(path, "r") as file:
        for steps, tensor in tensors.items():
            name, wanted = _path(steps), _array(tensor, ".".join(steps))
            data = file.get(name)
            if data is None:
                found.append(f"{name} is missing")
            elif (data.shape, data.dtype) != (wanted.shape, wanted.dtype):
                found.append(f"{name} is {data.dtype} of shape {data.shape}")
            elif data[()].tobytes() != wanted.tobytes():
                found.append(f"{name} has other elements")
    return found
