"""Classes that only ran on graphics cards, compared with loops written after their sources.

No such card and no Lua output is at hand: imagine-nn 6fed930, cuda-convnet2.torch ac3d213 and bnn.torch e974791 are the
specification. Lua's indices count from 1 throughout.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from t7bridge import Table, Tensor, TorchObject, state_dict
from t7bridge.torchmodules import live_module


def obj(name: str, **fields: object) -> TorchObject:
    """An object with these fields; numbers as Lua has them, arrays as tensors."""

    def value(item: object) -> object:
        if isinstance(item, np.ndarray):
            return Tensor.from_numpy(item)
        return float(item) if isinstance(item, int) and not isinstance(item, bool) else item

    return TorchObject(name, 1, Table.of({key: value(item) for key, item in fields.items()}))


def random(*shape: int) -> np.ndarray:
    """Numbers of a normal distribution, the same in every run."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f4")


def same(got: torch.Tensor, wanted: np.ndarray) -> None:
    """They have one shape and agree."""
    assert tuple(got.shape) == wanted.shape
    assert np.allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("second", [True, False])
def test_roi_pooling(second):
    """A grid of maxima over each box; in the second version boxes end before their last row and column."""
    images = random(2, 3, 9, 11)
    boxes = np.array(
        [[1, 3, 1, 12, 9], [2, 5, 5, 5, 5], [2, 11, 7, 20, 17], [1, -30, 2, -20, 8], [1, 2.5, 2, 17, 12]], "f4"
    )
    module = live_module(obj("inn.ROIPooling", W=3, H=2, spatial_scale=0.5, **({"v2": True} if second else {})))
    wanted = np.zeros((len(boxes), 3, 2, 3), "f4")
    for number, box in enumerate(boxes):
        image = images[int(box[0]) - 1]
        left, top, right, bottom = (int(math.copysign(math.floor(abs((c - 1) * 0.5) + 0.5), c - 1)) for c in box[1:])
        right, bottom = right - second, bottom - second
        height, width = (
            np.float32(max(bottom - top + 1, 1)) / np.float32(2),
            np.float32(max(right - left + 1, 1)) / np.float32(3),
        )
        rows, columns = np.arange(3, dtype="f4") * height, np.arange(4, dtype="f4") * width
        for plane, row, column in itertools.product(range(3), range(2), range(3)):
            y1, y2 = (min(max(int(f) + top, 0), 9) for f in (np.floor(rows[row]), np.ceil(rows[row + 1])))
            x1, x2 = (min(max(int(f) + left, 0), 11) for f in (np.floor(columns[column]), np.ceil(columns[column + 1])))
            cell = image[plane, y1:y2, x1:x2]
            wanted[number, plane, row, column] = cell.max() if cell.size else 0
    same(module([torch.from_numpy(images), torch.from_numpy(boxes)]), wanted)


def test_stochastic_pooling():
    """Elements weighted by their share of the window; in training one of them."""
    images = np.abs(random(2, 3, 8, 9))
    module = live_module(obj("inn.SpatialStochasticPooling", kW=3, kH=2, dW=2, dH=3))
    windows = {
        (row, column): images[:, :, 3 * row : 3 * row + 2, 2 * column : 2 * column + 3].reshape(2, 3, -1)
        for row, column in itertools.product(range(3), range(4))
    }
    wanted = np.zeros((2, 3, 3, 4), "f4")
    for (row, column), window in windows.items():
        wanted[:, :, row, column] = (window**2).sum(-1) / window.sum(-1)
    same(module(torch.from_numpy(images)), wanted)
    drawn = module.train()(torch.from_numpy(images)).numpy()
    for (row, column), window in windows.items():
        assert (window == drawn[:, :, row, column, None]).any(-1).all()
    assert module(torch.zeros(1, 1, 4, 4)).eq(0).all()


@pytest.mark.parametrize(("groups", "stride", "padding", "size"), [(1, 1, 0, 6), (2, 2, 1, 7), (1, 3, 2, 8)])
def test_ccn2_convolution(groups, stride, padding, size):
    """The filter's rows are (in, kH, kW); windows may reach beyond the border."""
    weight, bias, images = random(4 // groups * 9, 16), random(16), random(4, size, size, 2)
    module = live_module(
        obj(
            "ccn2.SpatialConvolution",
            nInputPlane=4, nOutputPlane=16, kH=3, dH=stride, padding=padding, groups=groups, weight=weight, bias=bias,
        )
    )  # fmt: skip
    count = math.ceil((2 * padding + size - 3) / stride + 1)
    padded = np.pad(images, ((0, 0), (padding, padding + 9), (padding, padding + 9), (0, 0)))
    wanted = np.zeros((16, count, count, 2), "f4")
    for plane, row, column in itertools.product(range(16), range(count), range(count)):
        first = plane // (16 // groups) * (4 // groups)
        y, x = row * stride, column * stride
        window = padded[first : first + 4 // groups, y : y + 3, x : x + 3]
        kernel = weight[:, plane].reshape(-1, 3, 3, 1)
        wanted[plane, row, column] = (window * kernel).sum((0, 1, 2)) + bias[plane]
    same(module(torch.from_numpy(images)).detach(), wanted)


def test_ccn2_local():
    """A filter for each place, and as many offsets as planes."""
    weight, bias, images = random(16 * 4 * 9, 16), random(16 * 16), random(4, 6, 6, 2)
    fields = {"nInputPlane": 4, "nOutputPlane": 16, "kH": 3, "dH": 2, "padding": 1, "oH": 4}
    module = live_module(obj("ccn2.SpatialConvolutionLocal", **fields, weight=weight, bias=bias))
    padded = np.pad(images, ((0, 0), (1, 9), (1, 9), (0, 0)))
    wanted = np.zeros((16, 4, 4, 2), "f4")
    for plane, row, column in itertools.product(range(16), range(4), range(4)):
        kernel = weight.reshape(16, 4, 3, 3, 16)[row * 4 + column, ..., plane, None]
        window = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
        wanted[plane, row, column] = (window * kernel).sum((0, 1, 2)) + bias[plane]
    same(module(torch.from_numpy(images)).detach(), wanted)


@pytest.mark.parametrize(("kernel", "stride", "size"), [(3, 2, 7), (3, 2, 8), (2, 2, 7)])
def test_ccn2_pooling(kernel, stride, size):
    """Windows are cut off at the border, and means are of what is left."""
    images = random(4, size, size, 2)
    count = math.ceil((size - kernel) / stride + 1)
    largest, means = (np.zeros((4, count, count, 2), "f4") for _ in range(2))
    for row, column in itertools.product(range(count), repeat=2):
        y, x = row * stride, column * stride
        window = images[:, y : y + kernel, x : x + kernel]
        largest[:, row, column], means[:, row, column] = window.max((1, 2)), window.mean((1, 2))
    same(live_module(obj("ccn2.SpatialMaxPooling", kW=kernel, dW=stride))(torch.from_numpy(images)), largest)
    same(live_module(obj("ccn2.SpatialAvgPooling", kW=kernel, dW=stride))(torch.from_numpy(images)), means)


def test_ccn2_cross_max_pooling():
    """Maxima over windows of planes."""
    images = random(7, 3, 3, 2)
    wanted = np.stack([images[first : first + 3].max(0) for first in (0, 2, 4)])
    same(live_module(obj("ccn2.SpatialCrossMaxPooling", kD=3, dD=2))(torch.from_numpy(images)), wanted)
    wanted = np.stack([images[first : first + 4].max(0) for first in (0, 2, 4)])
    same(live_module(obj("ccn2.SpatialCrossMaxPooling", kD=4, dD=2))(torch.from_numpy(images)), wanted)


@pytest.mark.parametrize("size", [3, 4])
def test_ccn2_response_normalization(size):
    """Windows begin half their size before an element, across planes or in both directions of one."""
    images = random(6, 5, 5, 2)
    fields = {"size": size, "addScale": 0.3, "powScale": 0.75, "minDiv": 1.5}
    across, within = np.zeros_like(images), np.zeros_like(images)
    for plane in range(6):
        first = plane - size // 2
        sums = (images[max(0, first) : first + size] ** 2).sum(0)
        across[plane] = images[plane] * (1.5 + 0.3 * sums) ** -0.75
    for row, column in itertools.product(range(5), repeat=2):
        y, x = row - size // 2, column - size // 2
        sums = (images[:, max(0, y) : y + size, max(0, x) : x + size] ** 2).sum((1, 2))
        within[:, row, column] = images[:, row, column] * (1.5 + 0.3 * sums) ** -0.75
    same(live_module(obj("ccn2.SpatialCrossResponseNormalization", **fields))(torch.from_numpy(images)), across)
    same(live_module(obj("ccn2.SpatialResponseNormalization", **fields))(torch.from_numpy(images)), within)


def test_bnn_convolution():
    """32 signs in each number, lowest bit first; zeros and the border count as -1."""
    signs = np.where(random(5, 64, 3, 3) > 0, 1, -1)
    bits = (signs.reshape(5, -1, 32) > 0).astype("u8")
    packed = (bits << np.arange(32, dtype="u8")).sum(-1).astype("u4").view("i4")
    alphas, images = random(5), random(2, 64, 6, 5)
    images[0, 0] = 0
    layer = obj(
        "bnn.SpatialConvolution",
        nInputPlane=64, nOutputPlane=5, kW=3, kH=3, dW=2, dH=1, padW=1, padH=1, weight=packed, alphas=alphas,
    )  # fmt: skip
    padded = np.pad(np.where(images > 0, 1, -1), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
    wanted = np.zeros((2, 5, 6, 3), "f4")
    for row, column in itertools.product(range(6), range(3)):
        window = padded[:, None, :, row : row + 3, 2 * column : 2 * column + 3]
        wanted[:, :, row, column] = (window * signs[None]).sum((2, 3, 4)) * alphas
    same(live_module(layer)(torch.from_numpy(images)), wanted)
    origin = state_dict(layer).origins["weight"]
    back = origin.layout[0].undo(state_dict(layer).tensors["weight"], packed.shape, None)
    assert (back.numpy() == packed).all()


def sequence(*modules: TorchObject) -> TorchObject:
    """An nn.Sequential."""
    return TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(list(modules))}))


def linear(rows: int, columns: int) -> TorchObject:
    """An nn.Linear."""
    return obj("nn.Linear", weight=random(rows, columns), bias=random(rows))


def test_deep_mask_and_sharp_mask():
    """Branches process the output of the trunk; refinement steps the outputs of its layers, the innermost first."""
    image = torch.from_numpy(random(2, 4))
    trunk, mask, score = sequence(linear(5, 4), linear(5, 5)), sequence(linear(6, 5)), linear(1, 5)
    deep = live_module(obj("nn.DeepMask", trunk=trunk, maskBranch=mask, scoreBranch=score))
    features = deep.trunk(image)
    assert [
        torch.equal(*pair) for pair in zip(deep(image), (deep.maskBranch(features), deep.scoreBranch(features)))
    ] == [True] * 2
    assert set(deep.state_dict()) >= {"trunk.0.weight", "maskBranch.0.bias", "scoreBranch.weight"}

    refs = Table()
    refs[0.0] = linear(5, 5)
    for number in (1, 2):
        refs[float(number)] = sequence(obj("nn.CAddTable"), linear(5, 5))
    skips = Table.from_list([2.0, 1.0])
    sharp = live_module(obj("nn.SharpMask", trunk=trunk, scoreBranch=score, maskBranchDM=mask, refs=refs, skpos=skips))
    first, second = sharp.trunk[0](image), sharp.trunk(image)
    wanted = sharp.ref2([first, sharp.ref1([second, sharp.ref0(second)])])
    assert torch.equal(sharp(image), wanted)


def test_embedding():
    """A table of rows, under the name that many programs had for it."""
    weight = random(4, 3)
    for name in ("nn.Embedding", "Embedding"):
        assert torch.equal(
            live_module(obj(name, weight=weight))(torch.tensor([1, 4])), torch.from_numpy(weight[[0, 3]])
        )


def test_older_imagine_nn():
    """Before 2015-12 a pyramid had an nn.Concat inside, and normalization in a plane an nn.Sequential."""
    images = torch.from_numpy(random(2, 3, 6, 6))
    views = [obj("nn.View", size=Table.from_list([-1.0]), numElements=-1, numInputDims=3) for _ in range(2)]
    pools = [obj("nn.SpatialAdaptiveMaxPooling", W=size, H=size) for size in (2, 1)]
    concat = obj("nn.Concat", dimension=1, modules=Table.from_list([sequence(*pair) for pair in zip(pools, views)]))
    pyramid = live_module(obj("inn.SpatialPyramidPooling", dimd=1, module=concat))
    parts = [torch.nn.functional.adaptive_max_pool2d(images, size).flatten(1) for size in (2, 1)]
    assert torch.equal(pyramid(images), torch.cat(parts, 1))
    inner = sequence(obj("nn.Square"))
    assert torch.equal(live_module(obj("inn.SpatialSameResponseNormalization", modules=inner))(images), images.square())
