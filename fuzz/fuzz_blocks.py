"""Blocks of random modules for `fuzz_sizes.py`: functions of PyTorch with random arguments.

Each function draws its arguments, and returns a function of one tensor and the layers that this uses. Most arguments
fit some sizes only; what does not fit the example is drawn again by the caller.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Drawn = tuple[Callable[..., Tensor], dict[str, nn.Module]]
"""A function of a block and a tensor, and the block's layers."""

WIDTH = 4
"""Channels of an image, features of a sequence."""

_CONSTANT_MODES = ("constant", "reflect", "replicate", "circular")
_LAYER_MODES = ("zeros", "reflect", "replicate", "circular")
_ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu6": F.relu6,
    "elu": lambda x: F.elu(x, 0.7),
    "celu": lambda x: F.celu(x, 1.3),
    "selu": F.selu,
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu of tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": lambda x: F.hardshrink(x, 0.4),
    "softshrink": lambda x: F.softshrink(x, 0.3),
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.2, -1.5),
    "softplus": lambda x: F.softplus(x, beta=2, threshold=3),
    "logsigmoid": F.logsigmoid,
    "erf": torch.erf,
    "expm1": lambda x: torch.expm1(x.clamp(-3, 3)),
    "log1p": lambda x: torch.log1p(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.5),
    "reciprocal": lambda x: torch.reciprocal(x.square() + 1),
    "power": lambda x: (x.abs() + 0.1) ** 1.7,
    "cube": lambda x: x.clamp(-3, 3) ** 3,
    "power of a number": lambda x: 1.3 ** x.clamp(-3, 3),
    "logit": lambda x: torch.logit(x.sigmoid(), 1e-3),
    "sign": lambda x: torch.sign(x - 0.123) * x,
    "clip": lambda x: x.clip(-0.4, 0.9),
    "clip below": lambda x: x.clamp(min=-0.3),
    "clip above": lambda x: x.clamp(max=0.6),
    "lerp": lambda x: torch.lerp(x, x * x, 0.3),
    "hypot": lambda x: torch.hypot(x, x + 1),
    "logaddexp": lambda x: torch.logaddexp(x, 1 - x),
    "maximum": lambda x: torch.maximum(x, x.flip(-1)),
    "minimum": lambda x: torch.minimum(x, 0.2 - x),
    "addcmul": lambda x: torch.addcmul(x, x, x + 1, value=0.2),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.abs() + 1, value=-0.4),
    "whole quotient": lambda x: x - x / 3 * 2 + 1,
    "subtracted": lambda x: torch.sub(x, x.abs(), alpha=0.7),
    "subtracted from": lambda x: torch.rsub(x, 2.0),
    "nan to number": lambda x: torch.nan_to_num(x),
    "masks": lambda x: ((x > 0.31) | (x < -0.47)).float() * x,
    "not": lambda x: x.masked_fill(~(x > 0.17), 0.6),
    "where": lambda x: torch.where((x > 0.11) & (x.flip(-1) < 0.83), x * 2, 1 - x),
    # By classes of `layers.lua`
    "sine": torch.sin,
    "cosine": lambda x: torch.cos(x * 2),
    "atan": torch.atan,
    "atan2": lambda x: torch.atan2(x, x.abs() + 1),
    "sinh": lambda x: torch.sinh(x.clamp(-3, 3)),
    "floor": lambda x: torch.floor(x * 2 + 0.137),
    "remainder": lambda x: torch.remainder(x * 3 + 0.137, 2.5),
    "fmod": lambda x: torch.fmod(x * 3 + 0.137, -2.5),
}


def elementwise(choose: random.Random) -> Drawn:
    """A function of each element."""
    function = _ELEMENTWISE[choose.choice([*_ELEMENTWISE])]
    return (lambda block, x: function(x)), {}


def _some_dims(choose: random.Random, rank: int) -> list[int]:
    """Return one or several dimensions but that of the batch, some counted from the end."""
    dims = choose.sample(range(1, rank), choose.choice((1, 1, 2, rank - 1)))
    return [dim - rank if choose.random() < 0.5 else dim for dim in dims]


def _reduced(choose: random.Random, rank: int) -> Drawn:
    dims = _some_dims(choose, rank)
    correction = choose.choice((0, 1, 2))
    order = choose.choice((1, 2, 3, 1.5, float("inf"), float("-inf")))
    reduce: Callable[[Tensor], Tensor] = choose.choice(
        (
            lambda x: x.mean(dims, keepdim=True),
            lambda x: x.sum(dims, keepdim=True),
            lambda x: x.amax(dims, keepdim=True),
            lambda x: x.amin(dims, keepdim=True),
            lambda x: x.var(dims, correction=correction, keepdim=True),
            lambda x: x.std(dims, correction=correction, keepdim=True),
            lambda x: x.logsumexp(dims, keepdim=True),
            lambda x: torch.linalg.vector_norm(x, order, dims, keepdim=True),
            lambda x: x.max(dims[0], keepdim=True).values,
            lambda x: x.min(dims[0], keepdim=True)[0],
            lambda x: (x > 0.21).any(dims[0], keepdim=True).float(),
            lambda x: (x > -0.83).float().mean(dims, keepdim=True),
        )
    )
    combine: Callable[[Tensor, Tensor], Tensor] = choose.choice(
        (lambda x, y: x + y, lambda x, y: y - x, lambda x, y: x * y, lambda x, y: x / (y.abs() + 1))
    )
    return (lambda block, x: combine(x, reduce(x))), {}


def _along_dimension(choose: random.Random, rank: int) -> Drawn:
    """A function along one dimension, which keeps all extents."""
    dim = _some_dims(choose, rank)[0]
    shift = choose.choice((1, 2, -1, -3))
    function: Callable[[Tensor], Tensor] = choose.choice(
        (
            lambda x: x.softmax(dim),
            lambda x: x.log_softmax(dim),
            lambda x: F.softmin(x, dim),
            lambda x: x.cumsum(dim),
            lambda x: x.flip(dim),
            lambda x: x.roll(shift, dim),
            lambda x: F.normalize(x, p=choose_order, dim=dim),
            lambda x: x.cummax(dim).values,
            lambda x: x.sort(dim, descending=shift > 0).values,
            lambda x: torch.logcumsumexp(x, dim),
            lambda x: x.clamp(-1.5, 1.5).cumprod(dim),
            lambda x: x.cumsum(dim) / x.shape[dim],
        )
    )
    choose_order = choose.choice((1, 2, 3))
    return (lambda block, x: function(x)), {}


def _sliced(choose: random.Random, rank: int) -> Drawn:
    """A slice of any dimension but the batch, or two that are combined."""
    dim = choose.randrange(1, rank)
    start = choose.choice((None, 0, 1, 2, -1, -2, -5))
    stop = choose.choice((None, None, 1, 3, 7, -1, -2, 40))
    step = choose.choice((None, None, None, 2, 3))
    index: tuple[Any, ...] = (slice(None),) * dim + (slice(start, stop, step),)
    place = choose.choice((0, 1, -1, -2))
    single = (slice(None),) * dim + (place,)
    way = choose.randrange(5)
    if way == 0:
        return (lambda block, x: torch.cat([x[index], x], dim)), {}
    if way == 1:
        return (lambda block, x: x + x[single].unsqueeze(dim)), {}
    if way == 2:
        return (lambda block, x: torch.cat([x[index], x[single].unsqueeze(dim - rank)], dim)), {}
    return (lambda block, x: x[index]), {}


def _assigned(choose: random.Random, rank: int) -> Drawn:
    """A tensor of which a part is changed in place."""
    dim = choose.randrange(1, rank)
    start = choose.choice((0, 1, 2, -2))
    stop = choose.choice((None, 3, -1))
    index = (slice(None),) * dim + (slice(start, stop),)
    way = choose.randrange(5)

    def function(block: Any, x: Tensor) -> Tensor:
        y = x * 1
        if way == 0:
            y[index] *= 2
        elif way == 1:
            y[index] = x[index].tanh()
        elif way == 2:
            y[index] += x.mean(dim, keepdim=True)
        elif way == 3:
            y[index] = 0.25
        else:
            y = torch.zeros_like(x)
            y[index] = x[index]
        return y

    return function, {}


def _rearranged(choose: random.Random, rank: int) -> Drawn:
    """Elements in other places."""
    dims = [*range(1, rank)]
    order = [0, *choose.sample(dims, len(dims))]
    one, other = choose.sample(dims, 2)
    dim = choose.choice(dims)
    places = [choose.randrange(WIDTH) for _ in range(WIDTH)]
    count = choose.choice((2, 2, 3))
    back = [order.index(place) for place in range(rank)]
    function: Callable[[Tensor], Tensor] = choose.choice(
        (
            lambda x: x.permute(order),
            lambda x: x.permute(order).softmax(-1).permute(back),
            lambda x: x.transpose(one, other) * 2,
            lambda x: x.movedim(one, other),
            lambda x: x.index_select(dim, torch.tensor(places)),
            lambda x: x[:, places] if rank == 4 else x[..., places],
            lambda x: torch.stack([x, x * 2], dim).mean(dim),
            lambda x: torch.stack([x, -x], dim + 1).flatten(dim, dim + 1),
            lambda x: torch.cat([part * 2 for part in x.split(count, dim)], dim),
            lambda x: torch.cat(x.chunk(count, dim)[::-1], dim),
            lambda x: x.repeat(*[count if place == dim else 1 for place in range(rank)]),
            lambda x: x.repeat_interleave(count, dim),
            lambda x: x.unflatten(dim, (-1, count)).flatten(dim, dim + 1),
            lambda x: x.unflatten(dim, (count, -1)).amax(dim),
            lambda x: x.unfold(dim, count, 1).mean(-1),
            lambda x: x.unfold(dim, 3, count).sum(-1),
            lambda x: x.narrow(dim, 1, count),
            lambda x: x.flatten(1).unflatten(1, x.shape[1:]) + 1,
            lambda x: x.flatten(1)[:, : 2 * WIDTH].reshape(x.shape[0], WIDTH, -1, *[1] * (rank - 3)),
            lambda x: x.unsqueeze(dim).expand(*x.shape[:dim], count, *x.shape[dim:]).sum(dim),
            lambda x: x.topk(count, dim).values,
            lambda x: x.take_along_dim(x.argmax(dim, keepdim=True), dim) + x,
            lambda x: x.diff(dim=dim),
            lambda x: (
                torch.outer(x.flatten(1).mean(1), torch.ones(WIDTH)).view(x.shape[0], WIDTH, *[1] * (rank - 2))
                + x.mean(tuple(dims), keepdim=True)
            ),
        )
    )
    return (lambda block, x: function(x)), {}


def _of_sizes(choose: random.Random, rank: int) -> Drawn:
    """A function of the extents as numbers."""
    dim = choose.randrange(rank)
    bound = choose.choice((7, 9, 12))
    function: Callable[[Tensor], Tensor] = choose.choice(
        (
            lambda x: x / x.shape[dim],
            lambda x: x * (x.shape[dim] + 1),
            lambda x: x + x.sum() / x.numel(),
            lambda x: x / x.shape[dim] ** 0.5,
            lambda x: x * (2 if x.shape[dim] % 2 else 3),
            lambda x: x if x.shape[dim] <= bound else x.narrow(dim, x.shape[dim] - bound, bound),
            lambda x: x + torch.arange(x.shape[-1]) / 10,
            lambda x: x * torch.linspace(0, 1, x.shape[-1]),
            lambda x: x + torch.ones(x.shape[-2], x.shape[-1]).tril(),
            lambda x: x.reshape(-1, x.shape[-1]).mean(1).view(x.shape[:-1])[..., None] + x,
            lambda x: x.new_full(x.shape, 0.5) + x,
            lambda x: x.sum(dim, keepdim=True) / max(x.shape[dim] - 1, 1) + x,
            lambda x: x[..., : x.shape[-1] // 2 * 2].reshape(*x.shape[:-1], -1, 2).mean(-1),
            lambda x: x[..., x.shape[-1] // 2 :],
            lambda x: x + torch.eye(x.shape[-1]).sum(0),
        )
    )
    return (lambda block, x: function(x)), {}


# Of images alone


def convolution(choose: random.Random) -> Drawn:
    """A convolution."""
    kernel = (choose.randint(1, 4), choose.randint(1, 4))
    stride = (choose.randint(1, 3), choose.randint(1, 3))
    padding: Any = (choose.randint(0, 2), choose.randint(0, 2))
    if choose.random() < 0.15:
        stride = (1, 1)
        padding = choose.choice(("same", "valid"))
    layer = nn.Conv2d(
        WIDTH,
        WIDTH,
        kernel,
        stride,
        padding,
        dilation=choose.choice((1, 1, 2, (1, 3))),
        groups=choose.choice((1, 1, 2, WIDTH)),
        bias=choose.random() < 0.7,
        padding_mode=choose.choice(("zeros", "zeros", *_LAYER_MODES)),
    )
    return (lambda block, x: block.l(x)), {"l": layer}


def transposed_convolution(choose: random.Random) -> Drawn:
    """A transposed convolution."""
    stride = choose.randint(1, 3)
    layer = nn.ConvTranspose2d(
        WIDTH,
        WIDTH,
        (choose.randint(1, 4), choose.randint(1, 4)),
        stride,
        choose.randint(0, 1),
        output_padding=choose.randrange(stride),
        groups=choose.choice((1, 1, 2, WIDTH)),
        bias=choose.random() < 0.7,
        dilation=choose.choice((1, 1, 2)),
    )
    return (lambda block, x: block.l(x)), {"l": layer}


def pooling(choose: random.Random) -> Drawn:
    """Pooling over windows."""
    kernel = (choose.randint(1, 4), choose.randint(1, 4))
    stride = choose.choice((None, 1, 2, 3, (1, 2), (3, 1)))
    padding = [choose.randint(0, extent // 2) for extent in kernel]
    ceil = choose.random() < 0.5
    dilation = choose.choice((1, 1, 1, 2))
    includes_padding = choose.random() < 0.5
    divisor = choose.choice((None, None, None, 3))
    order = choose.choice((1, 2, 3))
    function: Callable[[Tensor], Tensor] = choose.choice(
        (
            lambda x: F.max_pool2d(x, kernel, stride, padding, dilation, ceil),
            lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil, includes_padding, divisor),
            lambda x: F.lp_pool2d(x.abs() + 0.1, order, kernel, stride or kernel, ceil),
        )
    )
    return (lambda block, x: function(x)), {}


def adaptive_pooling(choose: random.Random) -> Drawn:
    """Pooling to a given size."""
    size = choose.choice((1, 2, 3, 5, (1, 4), (3, 2), (None, 1), (2, None), (None, 3)))
    function = choose.choice((F.adaptive_avg_pool2d, F.adaptive_max_pool2d))
    return (lambda block, x: function(x, size)), {}


def padding(choose: random.Random) -> Drawn:
    """Padding, also negative."""
    amounts = [choose.choice((0, 0, 1, 1, 2, 3, -1)) for _ in range(choose.choice((2, 4)))]
    mode = choose.choice(_CONSTANT_MODES)
    if mode != "constant":
        amounts = (amounts + amounts)[:4]
    value = choose.choice((0.0, 0.5, -1.0))
    if mode == "constant":
        return (lambda block, x: F.pad(x, amounts, mode, value)), {}
    return (lambda block, x: F.pad(x, amounts, mode)), {}


def resizing(choose: random.Random) -> Drawn:
    """Interpolation."""
    mode = choose.choice(("nearest", "nearest", "bilinear", "bilinear", "bicubic", "area", "nearest-exact"))
    options: dict[str, Any] = {"mode": mode}
    if mode in ("bilinear", "bicubic"):
        options["align_corners"] = choose.random() < 0.5
    way = choose.randrange(4)
    if way == 0:
        options["scale_factor"] = choose.choice((2, 3, 2.0, (2, 1), (1, 3)))
    elif way == 1:
        options["scale_factor"] = choose.choice((0.5, 1.5, 0.75, (0.5, 2)))
    elif way == 2:
        options["size"] = choose.choice(((10, 10), (5, 7), (1, 1), (16, 24)))
    if way == 3:
        return (lambda block, x: x + F.interpolate(x[:, :, ::2, ::2], size=x.shape[2:], **options)), {}
    return (lambda block, x: F.interpolate(x, **options)), {}


def of_images(choose: random.Random) -> Drawn:
    """Other functions of images."""
    number = choose.choice((2, 2, 3))
    function: Callable[[Tensor], Tensor] = choose.choice(
        (
            lambda x: F.pixel_shuffle(x, 2).repeat(1, WIDTH, 1, 1),
            lambda x: F.pixel_unshuffle(x, number)[:, :WIDTH],
            lambda x: F.channel_shuffle(x, 2),
            lambda x: F.local_response_norm(x, number),
            lambda x: F.unfold(x, number, padding=1).mean(1)[:, None, None].expand(-1, WIDTH, -1, -1),
            lambda x: F.fold(F.unfold(x, number, stride=number), x.shape[2:], number, stride=number),
            lambda x: torch.einsum("bchw,bdhw->bcd", x, x).softmax(-1)[..., None] @ x.mean((2, 3))[:, None, None],
            lambda x: torch.einsum("bchw,bchv->bcwv", x, x),
            lambda x: x @ x.transpose(2, 3),
            lambda x: x.flatten(2).transpose(1, 2).softmax(-1).transpose(1, 2).view(x.shape),
            lambda x: F.cosine_similarity(x, x.flip(2), 1)[:, None] + x,
            lambda x: F.glu(torch.cat([x, x + 1], 1), 1),
            lambda x: x.mean((2, 3))[:, :, None, None] + x,
            lambda x: x.amax((-1, -2), keepdim=True).expand_as(x) - x,
            lambda x: x * (x == x.amax((2, 3), keepdim=True)).float(),
        )
    )
    return (lambda block, x: function(x)), {}


def norm_of_images(choose: random.Random) -> Drawn:
    """A normalization with random statistics and weights."""
    is_affine = choose.random() < 0.5
    layer: Any = choose.choice(
        (
            lambda: nn.BatchNorm2d(WIDTH, eps=1e-3, affine=is_affine),
            lambda: nn.InstanceNorm2d(WIDTH, affine=is_affine, track_running_stats=choose.random() < 0.5),
            lambda: nn.GroupNorm(choose.choice((1, 2, WIDTH)), WIDTH, affine=is_affine),
            lambda: nn.PReLU(choose.choice((1, WIDTH))),
            lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(WIDTH, WIDTH, 1)),
        )
    )()
    randomize(layer)
    return (lambda block, x: block.l(x)), {"l": layer}


# Of sequences alone


def of_sequences(choose: random.Random) -> Drawn:
    """Functions of sequences."""
    kernel = choose.randint(1, 3)
    function: Callable[[Tensor], Tensor] = choose.choice(
        (
            lambda x: F.scaled_dot_product_attention(x, x, x),
            lambda x: F.scaled_dot_product_attention(x, x, x.cumsum(1), is_causal=True),
            lambda x: F.scaled_dot_product_attention(x, x, x, scale=0.3),
            lambda x: torch.bmm(x, x.transpose(1, 2)).softmax(-1).bmm(x),
            lambda x: torch.einsum("btc,bsc->bts", x, x) @ x / x.shape[1],
            lambda x: torch.cdist(x, x).unsqueeze(-1).mean(2) + x,
            lambda x: F.avg_pool1d(x.transpose(1, 2), kernel, 1, kernel // 2).transpose(1, 2),
            lambda x: F.max_pool1d(x.transpose(1, 2), kernel, kernel, ceil_mode=True).transpose(1, 2),
            lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), kernel).transpose(1, 2),
            lambda x: F.interpolate(x.transpose(1, 2), scale_factor=2, mode="linear").transpose(1, 2),
            lambda x: F.pad(x, (0, 0, kernel, 0)),
            lambda x: F.pad(x.transpose(1, 2), (1, kernel - 1), mode="replicate").transpose(1, 2),
            lambda x: x[:, -1:] + x,
            lambda x: x[:, :1].expand(-1, x.shape[1], -1) * x,
            lambda x: torch.cat([x[:, :1] * 0, x[:, :-1]], 1),
            lambda x: x.masked_fill((x.abs().amax(2, keepdim=True) > 1.13), 0.1),
            lambda x: F.glu(torch.cat([x, x.flip(1)], 2)),
            lambda x: torch.baddbmm(x, x @ x.transpose(1, 2), x, beta=0.5, alpha=0.1),
            lambda x: x.reshape(-1, WIDTH).view(x.shape[0], -1, WIDTH).cumsum(1),
            lambda x: x.reshape(x.shape[0], -1).view(x.shape[0], x.shape[1], 2, -1).transpose(2, 3).reshape(x.shape),
        )
    )
    return (lambda block, x: function(x)), {}


def layer_of_sequences(choose: random.Random) -> Drawn:
    """A layer of sequences."""
    has_bias = choose.random() < 0.6
    kernel = choose.randint(1, 3)
    is_first = choose.random() < 0.5

    def conv() -> Drawn:
        layer = nn.Conv1d(
            WIDTH, WIDTH, kernel, choose.randint(1, 2), choose.randint(0, 2), choose.randint(1, 2),
            groups=choose.choice((1, 2, WIDTH)), bias=has_bias, padding_mode=choose.choice(_LAYER_MODES),
        )  # fmt: skip
        return (lambda block, x: block.l(x.transpose(1, 2)).transpose(1, 2)), {"l": layer}

    def transposed() -> Drawn:
        layer = nn.ConvTranspose1d(WIDTH, WIDTH, kernel, 2, output_padding=choose.randint(0, 1), bias=has_bias)
        return (lambda block, x: block.l(x.transpose(1, 2)).transpose(1, 2)), {"l": layer}

    def norm() -> Drawn:
        layer = choose.choice((nn.LayerNorm, nn.RMSNorm))(WIDTH, elementwise_affine=has_bias)
        randomize(layer)
        return (lambda block, x: block.l(x)), {"l": layer}

    def batch_norm() -> Drawn:
        layer = nn.BatchNorm1d(WIDTH, affine=has_bias)
        randomize(layer)
        return (lambda block, x: block.l(x.transpose(1, 2)).transpose(1, 2)), {"l": layer}

    def recurrent() -> Drawn:
        cls = choose.choice((nn.LSTM, nn.GRU, nn.RNN))
        layer = cls(WIDTH, WIDTH // 2, choose.choice((1, 1, 2)), bias=has_bias, batch_first=True, bidirectional=True)
        return (lambda block, x: block.l(x)[0]), {"l": layer}

    def final_state() -> Drawn:
        layer = choose.choice((nn.GRU, nn.RNN))(WIDTH, WIDTH, bias=has_bias, batch_first=True)
        return (lambda block, x: x + block.l(x)[1].transpose(0, 1)), {"l": layer}

    def attention() -> Drawn:
        layer = nn.MultiheadAttention(WIDTH, 2, bias=has_bias, batch_first=True)
        return (lambda block, x: block.l(x, x, x, need_weights=is_first)[0]), {"l": layer}

    def encoder() -> Drawn:
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 6, dropout=0, batch_first=True, norm_first=is_first, activation=choose.choice(("relu", "gelu"))
        )
        return (lambda block, x: block.l(x)), {"l": layer}

    def linear() -> Drawn:
        layer = nn.Linear(WIDTH, WIDTH, bias=has_bias)
        return (lambda block, x: F.linear(x, block.l.weight.t(), block.l.bias)), {"l": layer}

    def bilinear() -> Drawn:
        layer = nn.Bilinear(WIDTH, WIDTH, WIDTH, bias=has_bias)
        return (lambda block, x: block.l(x, x.flip(1))), {"l": layer}

    makers = (conv, transposed, norm, batch_norm, recurrent, final_state, attention, encoder, linear, bilinear)
    return choose.choice(makers)()


# Of rows of features alone, whose other dimension is the batch


def of_rows(choose: random.Random) -> Drawn:
    """Functions of rows, some of which combine the examples of the batch."""
    count = choose.randint(1, WIDTH)
    order = choose.choice((1, 2))
    function: Callable[[Tensor], Tensor] = choose.choice(
        (
            lambda x: torch.cat([x, x[:, :count]], 1)[:, :WIDTH],
            lambda x: x[:, [2, 0, 1, 3]],
            lambda x: x @ x.t() @ x,
            lambda x: x - x.mean(0, keepdim=True),
            lambda x: x.softmax(0),
            lambda x: F.normalize(x, dim=0),
            lambda x: x.chunk(2, 1)[0].repeat(1, 2),
            lambda x: x.view(-1, 2, 2).transpose(1, 2).reshape(-1, WIDTH),
            lambda x: x[:, None, :].expand(-1, 3, -1).sum(1),
            lambda x: (x[:, :, None] * x[:, None, :]).sum(2),
            lambda x: x * x.new_tensor([1.0, 2.0, 3.0, 4.0]),
            lambda x: torch.stack(x.unbind(1)[::-1], 1),
            lambda x: x.cumsum(0),
            lambda x: x.flip(0),
            lambda x: x.T.softmax(0).T,
            lambda x: x.amax(0) + x,
            lambda x: F.pairwise_distance(x, x.flip(1), p=order, keepdim=True) + x,
            lambda x: F.one_hot(x.argmax(1), WIDTH) * x,
            lambda x: x.gather(1, x.argsort(1)),
            lambda x: x.addmm(x, torch.eye(WIDTH), beta=0.5, alpha=2),
            lambda x: torch.cat((x, x), 0)[: x.shape[0]],
            lambda x: torch.outer(x[:, 0], x[0]) + x,
            lambda x: torch.tril(x) + x.triu(1),
            lambda x: x.roll(1, 0),
            lambda x: x[1:],
            lambda x: x[::2],
            lambda x: x[-1:] + x,
        )
    )
    return (lambda block, x: function(x)), {}


def layer_of_rows(choose: random.Random) -> Drawn:
    """A layer of rows."""
    is_affine = choose.random() < 0.5
    layer = choose.choice(
        (
            lambda: nn.Linear(WIDTH, WIDTH, bias=is_affine),
            lambda: nn.BatchNorm1d(WIDTH, affine=is_affine),
            lambda: nn.LayerNorm(WIDTH, elementwise_affine=is_affine),
            lambda: nn.PReLU(WIDTH),
        )
    )()
    randomize(layer)
    return (lambda block, x: block.l(x)), {"l": layer}


# Of signals alone, whose second dimension are the channels


def of_signals(choose: random.Random) -> Drawn:
    """Functions of signals."""
    kernel = choose.randint(1, 4)
    stride = choose.randint(1, 3)
    padding = choose.randint(0, kernel // 2)
    is_ceil = choose.random() < 0.5
    has_corners = choose.random() < 0.5
    amounts = [choose.choice((0, 1, 2, -1)), choose.choice((0, 1, 3, -2))]
    mode = choose.choice(_CONSTANT_MODES)
    function: Callable[[Tensor], Tensor] = choose.choice(
        (
            lambda x: F.max_pool1d(x, kernel, stride, padding, choose_dilation, is_ceil),
            lambda x: F.avg_pool1d(x, kernel, stride, padding, is_ceil, has_corners),
            lambda x: F.lp_pool1d(x.abs() + 0.1, 2, kernel, stride, is_ceil),
            lambda x: F.adaptive_max_pool1d(x, kernel),
            lambda x: F.adaptive_avg_pool1d(x, kernel + 1),
            lambda x: F.pad(x, amounts, mode=mode),
            lambda x: F.interpolate(x, scale_factor=stride, mode="linear", align_corners=has_corners),
            lambda x: F.interpolate(x, size=2 * kernel + 1),
            lambda x: x.unfold(2, kernel, stride).amax(3),
            lambda x: x.softmax(2) @ x.transpose(1, 2) @ x,
            lambda x: x.view(x.shape[0], 2, 2, -1).transpose(1, 2).flatten(1, 2),
            lambda x: F.local_response_norm(x, kernel),
            lambda x: x.cumsum(2) / torch.arange(1, x.shape[2] + 1),
            lambda x: torch.cat([x, x.mean(2, keepdim=True)], 2),
            lambda x: F.conv1d(x, torch.ones(WIDTH, 1, 3) / 3, padding=1, groups=WIDTH),
            lambda x: F.conv1d(x.reshape(-1, 1, x.shape[2]), torch.tensor([[[1.0, -0.97]]])).view(
                x.shape[0], WIDTH, -1
            ),
        )
    )
    choose_dilation = choose.choice((1, 1, 2))
    return (lambda block, x: function(x)), {}


def layer_of_signals(choose: random.Random) -> Drawn:
    """A layer of signals."""
    kernel = choose.randint(1, 4)
    stride = choose.randint(1, 3)
    padding = choose.randint(0, kernel // 2)
    groups = choose.choice((1, 2, WIDTH))
    is_affine = choose.random() < 0.5
    extra = choose.randrange(stride)
    dilation = choose.randint(1, 3)
    mode = choose.choice(_LAYER_MODES)
    layer: Any = choose.choice(
        (
            lambda: nn.Conv1d(WIDTH, WIDTH, kernel, stride, padding, dilation, groups, is_affine, padding_mode=mode),
            lambda: nn.ConvTranspose1d(WIDTH, WIDTH, kernel, stride, padding, extra, groups, is_affine),
            lambda: nn.BatchNorm1d(WIDTH, affine=is_affine),
            lambda: nn.InstanceNorm1d(WIDTH, affine=is_affine, track_running_stats=extra > 0),
            lambda: nn.GroupNorm(2, WIDTH, affine=is_affine),
        )
    )()
    randomize(layer)
    return (lambda block, x: block.l(x)), {"l": layer}


# Of volumes alone


def of_volumes(choose: random.Random) -> Drawn:
    """Functions of volumes."""
    kernel = [choose.randint(1, 3) for _ in range(3)]
    stride = [choose.randint(1, 2) for _ in range(3)]
    padding = [choose.randint(0, extent // 2) for extent in kernel]
    is_ceil = choose.random() < 0.5
    includes_padding = choose.random() < 0.5
    amounts = [choose.choice((0, 1, 2, -1)) for _ in range(choose.choice((2, 4, 6)))]
    size = choose.choice((1, 2, (1, 2, 3), (None, 1, 2)))
    function: Callable[[Tensor], Tensor] = choose.choice(
        (
            lambda x: F.max_pool3d(x, kernel, stride, padding, 1, is_ceil),
            lambda x: F.avg_pool3d(x, kernel, stride, padding, is_ceil, includes_padding),
            lambda x: F.avg_pool3d(x, kernel, stride),
            lambda x: F.adaptive_avg_pool3d(x, size),
            lambda x: F.pad(x, amounts, value=0.5),
            lambda x: F.pad(x, [1, 0, 1, 1, 0, 1], mode="replicate"),
            lambda x: F.interpolate(x, scale_factor=2),
            lambda x: x.mean((2, 3, 4), keepdim=True).sigmoid() * x,
            lambda x: x.flatten(2, 3).max(2, keepdim=True).values[:, :, None] + x,
            lambda x: x.select(2, 0)[:, :, None] + x,
            lambda x: (
                x.transpose(1, 2).flatten(0, 1).mean((2, 3)).view(x.shape[0], -1, WIDTH, 1, 1).transpose(1, 2) + x
            ),
        )
    )
    return (lambda block, x: function(x)), {}


def layer_of_volumes(choose: random.Random) -> Drawn:
    """A layer of volumes."""
    kernel = tuple(choose.randint(1, 3) for _ in range(3))
    stride = tuple(choose.randint(1, 2) for _ in range(3))
    padding = tuple(choose.randint(0, 1) for _ in range(3))
    extra = tuple(choose.randrange(step) for step in stride)
    groups = choose.choice((1, 2, WIDTH))
    is_affine = choose.random() < 0.5
    mode = choose.choice(("zeros", *_LAYER_MODES))
    layer: Any = choose.choice(
        (
            lambda: nn.Conv3d(WIDTH, WIDTH, kernel, stride, padding, 1, groups, is_affine, padding_mode=mode),
            lambda: nn.ConvTranspose3d(WIDTH, WIDTH, kernel, stride, padding, extra, groups, is_affine),
            lambda: nn.BatchNorm3d(WIDTH, affine=is_affine),
            lambda: nn.InstanceNorm3d(WIDTH, affine=is_affine),
            lambda: nn.GroupNorm(groups, WIDTH, affine=is_affine),
        )
    )()
    randomize(layer)
    return (lambda block, x: block.l(x)), {"l": layer}


def randomize(layer: nn.Module) -> None:
    """Give parameters and running statistics other values than those at the start."""
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.4, 1.6)


_OF_IMAGES: tuple[Callable[[random.Random], Drawn], ...] = (
    convolution,
    convolution,
    transposed_convolution,
    pooling,
    pooling,
    adaptive_pooling,
    padding,
    resizing,
    of_images,
    norm_of_images,
)
_MAKERS: dict[str, tuple[Callable[[random.Random], Drawn], ...]] = {
    "image": _OF_IMAGES,
    "sequence": (of_sequences, of_sequences, layer_of_sequences, layer_of_sequences),
    "rows": (of_rows, of_rows, layer_of_rows),
    "signal": (of_signals, layer_of_signals),
    "volume": (of_volumes, layer_of_volumes),
}
RANKS = {"image": 4, "sequence": 3, "rows": 2, "signal": 3, "volume": 5}
"""Kinds of inputs → their number of dimensions, the first of which is the batch."""
_OF_ANY = (_reduced, _along_dimension, _sliced, _assigned, _rearranged, _of_sizes)


def drawn(choose: random.Random, kind: str) -> tuple[str, Drawn]:
    """Return a block of inputs of a kind with random arguments, and a name for it."""
    way = choose.random()
    if way < 0.5:
        maker = choose.choice(_MAKERS[kind])
        return maker.__name__, maker(choose)
    if way < 0.65 or kind == "rows":  # the others need two dimensions behind the batch
        return "elementwise", elementwise(choose)
    of_any = choose.choice(_OF_ANY)
    return of_any.__name__.strip("_"), of_any(choose, RANKS[kind])
