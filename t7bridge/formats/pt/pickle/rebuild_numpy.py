"""Pickled numpy arrays, scalars and dtypes. numpy itself is not needed to read them.

Source: numpy 2.4 `numpy/_core/src/multiarray/methods.c` (`array_reduce`, `array_setstate`),
`descriptor.c` (`arraydescr_reduce`, `arraydescr_setstate`).
"""

from __future__ import annotations

from typing import Any

from ....errors import CorruptError
from ....graph.python import NumpyArray, NumpyDtype, NumpyScalar, PythonGlobal
from ..storages import shown
from .context import Context, Handler


def _dtype(context: Context, args: tuple[Any, ...]) -> Any:
    if not args or not isinstance(args[0], (str, bytes)):
        return NotImplemented
    code = args[0].decode("latin1") if isinstance(args[0], bytes) else args[0]
    if code[:1] in "<>=|":
        return NumpyDtype(code[1:], code[:1])
    return NumpyDtype(code)


def _reconstruct(context: Context, args: tuple[Any, ...]) -> Any:
    """Return an array without elements: its state follows."""
    cls = args[0] if args else None
    if not isinstance(cls, PythonGlobal):
        return NotImplemented
    return NumpyArray(NumpyDtype("i1"), (0,), False, b"", cls.path)


def _scalar(context: Context, args: tuple[Any, ...]) -> Any:
    if not args or not isinstance(args[0], NumpyDtype):
        return NotImplemented
    data = args[1] if len(args) > 1 else b""
    return NumpyScalar(args[0], data.encode() if isinstance(data, str) else data)


def _from_buffer(context: Context, args: tuple[Any, ...]) -> Any:
    if len(args) != 4 or not isinstance(args[0], (bytes, bytearray)) or not isinstance(args[1], NumpyDtype):
        return NotImplemented
    array = NumpyArray(args[1], (0,), args[3] == "F", b"")
    _fill(array, args[2], bytes(args[0]))
    return array


def set_numpy_state(value: NumpyArray | NumpyDtype, state: Any) -> None:
    """Set the state of an array or a dtype.

    Raises:
        CorruptError: the state is invalid.
    """
    if not isinstance(state, tuple):
        raise CorruptError("a numpy value receives a state that is not a tuple")
    if isinstance(value, NumpyDtype):
        order = state[1] if len(state) > 1 else None
        order = order.decode("latin1") if isinstance(order, bytes) else order
        if order not in ("<", ">", "=", "|"):
            raise CorruptError("a numpy dtype has no byte order", found=shown(order))
        value.order, value.state = order, state
        return
    if len(state) == 4:  # before version 1 of the layout
        state = (0, *state)
    if len(state) != 5 or not isinstance(state[2], NumpyDtype):
        raise CorruptError("a numpy array receives an invalid state", found=f"a tuple of {len(state)}")
    _, shape, value.dtype, fortran, data = state
    value.fortran = bool(fortran)
    # A string of Python 2 was already decoded as UTF-8, if valid.
    _fill(value, shape, data.encode() if isinstance(data, str) else data)


def _fill(array: NumpyArray, shape: Any, data: Any) -> None:
    if not isinstance(shape, (tuple, list)) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise CorruptError("a numpy array has no shape", found=f"{type(shape).__name__}")
    count = 1
    for extent in shape:
        count *= extent
    if isinstance(data, (bytes, bytearray)):
        width = array.dtype.itemsize
        if width and len(data) != count * width:
            raise CorruptError(
                "a numpy array's bytes do not fit its shape", expected=f"{count * width} bytes", found=f"{len(data)}"
            )
    elif not isinstance(data, list) or len(data) != count:
        raise CorruptError("a numpy array has no elements", expected=f"{count}", found=type(data).__name__)
    array.shape, array.data = tuple(shape), bytes(data) if isinstance(data, bytearray) else data


HANDLERS: dict[str, Handler] = {
    "numpy.dtype": _dtype,
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _from_buffer,
}
