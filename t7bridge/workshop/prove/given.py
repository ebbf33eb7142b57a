"""Inputs of layers that follow from their own fields, where no layer's output is their input.
Convolutions keep the unfolding of theirs: a matrix with a column for each place of the kernel, of all pixels under it.

The rows of a lookup table are found in its output. The input of a linear layer with more outputs than inputs is solved
for. May import graph.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...data import define
from ...graph.tensor import Tensor
from ...nn.registry import in_lua_of
from .layer import Compute, LiveLayer, RefusedError, Values, outputs, to_doubles
from .recorded import Recorded

FROM_FIELD = "its input was computed from its own fields"
FROM_OUTPUT = "its input was computed from its output, which has more numbers"
_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_MOST_ELEMENTS = 1 << 26
"""Maximum number of elements of a matrix: 512 MiB in double precision."""
_WORST_CONDITION = 1e4
"""Largest condition number of equations that are solved: with it half of the seven digits of a float are left."""
_MOST_TIMES_LARGER = 64
"""Times that an image may be larger than its unfolding: as with kernels of 1 x 1 and steps of 8."""
_SCATTER_AND_GATHER: dict[int, tuple[Any, Any]] = {2: (F.conv_transpose2d, F.conv2d), 3: (F.conv_transpose3d, F.conv3d)}
"""By the number of the kernel's dimensions: what adds up pixels of windows to an image, and what reads them from it."""
_OTHER_PADDINGS = range(5)
_OTHER_STRIDES = range(1, 5)
"""Paddings and strides that are tried to show that the unfolded input was made with others than those of the file."""


@define(frozen=True)
class Derived:
    """An input that follows from other fields of its layer.

    Attributes:
        inputs: the input; or the recorded output, if `function` solves for the input.
        reason: where it comes from, in words.
        function: computes the output of the layer from `inputs`.
    """

    inputs: Values
    reason: str
    function: Compute = outputs


def check_kernel(layer: LiveLayer) -> None:
    """Compare the extents of a convolution's kernel with those of its weights.

    Raises:
        RefusedError: the two differ.
    """
    if not isinstance(layer.module, _CONVOLUTIONS):
        return
    # PyTorch's order is time, height, width. One without a time has two: `zip` ends there.
    for name, extent in zip(("kW", "kH", "kT"), reversed(layer.module.kernel_size)):
        size = layer.obj.get(name)
        if isinstance(size, float) and size != extent:
            raise RefusedError(f"{name} = {size:g} does not fit its weight, which has {extent}")


def derived_input(layer: LiveLayer, output: Recorded, is_intact: bool) -> Derived | None:
    """Return the input of a layer as its other fields determine it; `None` if they do not.

    Args:
        layer: the layer.
        output: its recorded output.
        is_intact: whether that is in the file as it was computed.

    Raises:
        RefusedError: the fields contradict one another.
    """
    # A list is of several outputs; a tensor without dimensions is of none of these layers.
    if not isinstance(output, Tensor) or not output.ndim or output.numel > _MOST_ELEMENTS:
        return None
    facts = in_lua_of(layer.obj)
    if facts.first_row is not None and is_intact:  # a lookup table, whose entry states Lua's number of its first row
        rows = _rows(layer, to_doubles(output), facts.first_row)
        return Derived(rows, FROM_FIELD) if rows is not None else None
    if type(layer.module) is nn.Linear and is_intact and _is_solvable(layer, to_doubles(output)):
        # No input is returned: `nearest_outputs` solves for it, and computes the output from that.
        return Derived(to_doubles(output), FROM_OUTPUT, function=nearest_outputs)
    unfolding = layer.obj.get("finput")
    if facts.unfolds and isinstance(unfolding, Tensor) and isinstance(layer.module, _CONVOLUTIONS):
        # Of the output only the sizes are used, which one that was overwritten has, too.
        image = _image_of_unfolding(layer.module, to_doubles(unfolding), to_doubles(output))
        return Derived(image, FROM_FIELD) if image is not None else None
    return None


def _rows(layer: LiveLayer, output: torch.Tensor, first: int) -> torch.Tensor | None:
    """Return the numbers of the rows of a lookup table that are closest to the outputs; `None` if they are not found.

    Args:
        layer: the lookup table.
        output: its recorded output, whose last dimension is that of a row.
        first: Lua's number of the first row.

    Returns:
        Numbers counted as Lua does, as doubles, of the shape of the output without its last dimension.
    """
    table: Any = layer.module.weight
    # With maxNorm Lua scales the rows that it chooses, in the table itself.
    if output.shape[-1] != table.shape[-1] or layer.obj.get("maxNorm") is not None:
        return None
    rows = output.reshape(-1, output.shape[-1])
    if len(rows) * len(table) > _MOST_ELEMENTS or not bool(rows.isfinite().all()):
        return None
    nearest = torch.cdist(rows, table).argmin(1)
    # Where zeros would be closer than the closest row, the output is not of this table.
    is_worse_than_zeros = (table[nearest] - rows).square().sum(1) > rows.square().sum(1)
    if bool(is_worse_than_zeros.any()):
        return None
    # Of one index Lua returns one row, a vector.
    one_index = (1,)
    return (nearest + first).double().reshape(output.shape[:-1] or one_index)


def _is_solvable(layer: LiveLayer, output: torch.Tensor) -> bool:
    """Return whether a linear layer has more outputs than inputs, and its weights determine the inputs by these.

    Args:
        layer: the layer.
        output: its recorded output, whose last dimension is that of the features.
    """
    weight: Any = layer.module.weight
    count_of_outputs, count_of_inputs = weight.shape
    # From as many outputs as inputs some input follows always, whatever the weights are.
    if count_of_outputs != output.shape[-1] or count_of_outputs <= count_of_inputs:
        return False
    if not weight.isfinite().all() or not output.isfinite().all():
        return False
    singular_values = torch.linalg.svdvals(weight)
    largest = singular_values[0]
    smallest = singular_values[-1]
    return bool(smallest * _WORST_CONDITION > largest)


def nearest_outputs(layer: LiveLayer, value: Values) -> list[torch.Tensor]:
    """Return the outputs of a linear layer that are closest to recorded ones, for the input that is solved for.

    If Lua computed with other weights, no input has the recorded output: then the closest one differs from it.

    Args:
        layer: the layer, of more outputs than inputs.
        value: the recorded output, whose last dimension is that of the features.
    """
    # In a run with errors, `tensors` has the weights with these, which take the place of the layer's own.
    tensors = {**dict(layer.module.named_parameters()), **layer.tensors}
    weight = tensors["weight"].double()
    bias = tensors.get("bias", torch.zeros(())).double()
    output = value.double()
    columns = (output - bias).reshape(-1, weight.shape[0]).T
    inputs = torch.linalg.lstsq(weight, columns).solution
    return [((weight @ inputs).T + bias).reshape(output.shape)]


def _image_of_unfolding(conv: Any, unfolding: torch.Tensor, output: torch.Tensor) -> torch.Tensor | None:
    """Return the image whose unfolding a convolution keeps; `None` if that is of another image than the output.

    Args:
        conv: the live convolution.
        unfolding: (channels * positions in the kernel, places of the kernel), before it perhaps a batch.
        output: the recorded output, (channels, places...), before it perhaps a batch.

    Raises:
        RefusedError: it is the unfolding by another padding or other strides than those of the file.
    """
    rank = len(conv.kernel_size)
    if output.dim() not in (rank + 1, rank + 2):
        return None  # it is not the output of a convolution
    places = output.shape[-rank:]
    batch = output.shape[: -rank - 1]  # without the dimension of the channels
    positions = prod(conv.kernel_size)
    count_of_elements = prod(batch) * conv.in_channels * positions * prod(places)
    if count_of_elements > _MOST_ELEMENTS:
        return None
    if unfolding.numel() != count_of_elements or unfolding.shape[-1] != prod(places):
        return None  # it is of another pass than the output: the buffer has what was unfolded last
    # Each channel is unfolded by itself, and counts as an image.
    unfolding_by_channels = unfolding.reshape(-1, positions, *places)
    images = _images_of_unfolding(unfolding_by_channels, conv.kernel_size, conv.stride, conv.padding)
    if images is None:
        _refuse_other_options(conv, unfolding_by_channels)
        return None
    extents = images.shape[2:]
    return images.reshape(*batch, conv.in_channels, *extents)


def _refuse_other_options(conv: Any, unfolding: torch.Tensor) -> None:
    """Refuse an unfolding by another padding, or by other strides: the fields were changed after the pass.

    Nothing happens if it is that of no image by any of those that are tried.

    Args:
        conv: the live convolution.
        unfolding: by channels; see `_images_of_unfolding`.

    Raises:
        RefusedError: it is such an unfolding.
    """
    kernel = conv.kernel_size
    rank = len(kernel)
    for padding in product(_OTHER_PADDINGS, repeat=rank):
        if _images_of_unfolding(unfolding, kernel, conv.stride, padding) is not None:
            raise RefusedError("its unfolded input has another padding")
    for strides in product(_OTHER_STRIDES, repeat=rank):
        if _images_of_unfolding(unfolding, kernel, strides, conv.padding) is not None:
            raise RefusedError("its unfolded input has other steps")


def _images_of_unfolding(unfolding: Any, kernel: Any, strides: Any, padding: Any) -> torch.Tensor | None:
    """Return the images of one channel that have an unfolding; `None` if there are none.

    There are none if elements of the unfolding that are one pixel differ. `None`, too, for strides and paddings that no
    convolution has, and for images that are much larger.

    Args:
        unfolding: by channels: (images * channels, positions in the kernel, places of the kernel...).
        kernel: extents of the kernel, of two or three dimensions.
        strides: of the kernel.
        padding: pixels of zeros at each side.

    Returns:
        The images, (images * channels, 1, extents...), with zeros where no place of the kernel reads.
    """
    if min(strides) < 1 or min(padding) < 0 or _is_much_larger(unfolding, kernel, strides):
        return None
    scatter, gather = _SCATTER_AND_GATHER[len(kernel)]  # a transposed convolution, and a convolution
    # One kernel for each position: it moves this one pixel to its place in the image, or back.
    pixels = torch.eye(unfolding.shape[1], dtype=unfolding.dtype).reshape(-1, 1, *kernel)
    times_read = scatter(torch.ones_like(unfolding[:1]), pixels, stride=strides)
    # Each pixel is the mean of the elements that are this pixel.
    padded_images = scatter(unfolding, pixels, stride=strides) / times_read.clamp(min=1)
    images = _without_padding(padded_images, strides, padding)
    if images is None:
        return None
    # If these elements differ, or a pixel of the padding is not zero, the images have another unfolding.
    unfolding_of_images = gather(images, pixels, stride=strides, padding=padding)
    if unfolding_of_images.shape != unfolding.shape:
        return None
    is_same = torch.allclose(unfolding_of_images, unfolding, rtol=1e-12, atol=0)  # the mean of equal numbers rounds
    return images if is_same else None


def _is_much_larger(unfolding: torch.Tensor, kernel: Any, strides: Any) -> bool:
    """Return whether images are much larger than their unfolding, as where the kernel leaves out most pixels.

    Args:
        unfolding: by channels; see `_images_of_unfolding`.
        kernel: extents of the kernel.
        strides: of the kernel.
    """
    count, _, *places = unfolding.shape
    extents = [(place - 1) * stride + size for place, stride, size in zip(places, strides, kernel)]
    elements: int = count * prod(extents)
    return elements > _MOST_TIMES_LARGER * unfolding.numel()


def _without_padding(padded_images: torch.Tensor, strides: Any, padding: Any) -> torch.Tensor | None:
    """Return images without the zeros at their sides; `None` if nothing is left of them.

    A kernel may leave the last pixels of a row unread, fewer than a stride: they are added, as zeros, so that the image
    is the largest one that has this unfolding.

    Args:
        padded_images: the images as far as a kernel reads them, (images * channels, 1, extents...).
        strides: of the kernel.
        padding: pixels of zeros at each side.
    """
    added: list[int] = []  # pixels before and behind each dimension, the last one first; below 0 they are removed
    for size, stride, pad in zip(padded_images.shape[2:], strides, padding):
        before = -pad
        behind = stride - 1 - pad
        if size + before + behind < 1:
            return None
        added = [before, behind, *added]
    return F.pad(padded_images, added)
