"""A case for each operation of the table: a function or module, and the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


class Case(nn.Module):
    """A function of tensors, with parameters `p0`, `p1`, … of given shapes."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.count = len(shapes)
        for number, shape in enumerate(shapes):
            self.register_parameter(f"p{number}", nn.Parameter(torch.randn(shape) / 2))

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs, *(getattr(self, f"p{number}") for number in range(self.count)))


class Held(nn.Module):
    """A module, and what is done with it and the inputs."""

    def __init__(self, inner: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self.inner, *inputs)


def _changed(x: Tensor, p: Tensor) -> Tensor:
    """Parts of a tensor changed in place: by a number, a parameter and another part."""
    x[:, :, :2] *= 2
    x[:, 0] = x[:, 2].clone() * p
    part = x[:, 1]
    part.add_(1)
    x[:, 2:, 1:].zero_()
    return x + part.unsqueeze(1)


def _turned(x: Tensor) -> Tensor:
    """A view of a view changed in place."""
    y = x.transpose(1, 2).reshape(2, 12) if not x.is_contiguous() else x.view(2, 2, 2, 3).transpose(1, 2)
    y[:, 1].mul_(3)
    out = torch.zeros(x.size(0), 4, 3)
    out[:, 1:3] = x[:, :2]
    out[:, 3].copy_(x[:, 0])
    return x + out


def _complex(x: Tensor, y: Tensor, p: Tensor) -> list[Tensor]:
    """Complex numbers from pairs, turned by constants and parameters, in parts, and joined."""
    turns = torch.polar(torch.ones(4, 3), torch.arange(12.0).view(4, 3))
    z = torch.view_as_complex(x.unflatten(2, (3, 2))) * turns
    w = (z * torch.view_as_complex(p) + z.conj() - y + (1 - 2j) - 0.5).transpose(1, 2).flip(1)
    return [
        torch.view_as_real(torch.cat([w, w[:, :1] * 2], 1)).flatten(2),
        (z * y).abs() + w.mean((1, 2), keepdim=True).real,
    ]


def _fourier(x: Tensor) -> list[Tensor]:
    """Fourier transforms, of windows too."""
    z = torch.fft.rfft2(x, norm="ortho")
    back = torch.fft.irfft2(z * (1 + 2j), s=x.shape[1:], norm="ortho") + torch.fft.irfft(z, n=6, norm="forward")
    ffts = torch.fft.fft2(x).real + torch.fft.ifft(torch.fft.fft(x, dim=1, norm="forward"), dim=1).imag
    parts = torch.ops.aten._fft_c2c(torch.ops.aten._fft_r2c(x, [1, 2], 2, False), [1], 0, True)
    short = torch.stft(x[:, 0], 4, 2, window=torch.hann_window(4), return_complex=True).abs()
    return [back, ffts + torch.fft.ifft(x).imag, torch.ops.aten._fft_c2r(parts[..., :4], [2], 1, 6), short]


def _replaced(x: Tensor, y: Tensor) -> Tensor:
    """Elements replaced by masks, at positions, and in strides."""
    x = x.clone()
    x[y > 0] = 0.5
    x[:, :, 0][x[:, :, 1] < 0] = -2.0
    x[:, [2, 0]] = y[:, 1:]
    out = torch.zeros(x.size(0), 6, 4)
    out[:, ::2], out[:, 1::2, 1::2] = x, y[:, :, :2]
    return out


def _with_empty(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Values without elements, as of a model without a class token."""
    none, rest = torch.split(x * p, [0, 3], 1)
    rest = rest + 1
    rest[:, 3:].mul_(2)
    return torch.cat([x[:, :0].tanh() * p, none + 1, rest, rest[:, :0]], 1) + none.sum(1, keepdim=True)


def _without_gradient(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        target = F.normalize(x @ w, dim=1)
    return x * target


class FrozenNorm(nn.Module):
    """A batch normalization of buffers only, as torchvision's for detection."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.linspace(0.5, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale.view(1, -1, 1, 1) + (self.bias - self.running_mean * scale).view(1, -1, 1, 1)


def _left_out(x: Tensor) -> Tensor:
    """Choices between a value and one that is NaN or infinite where it is left out."""
    logs = torch.where(x > 0, x.log(), torch.zeros_like(x)) + x.log().masked_fill(x <= 0, 0.5)
    far = x + float("inf")
    return logs + far.masked_fill(x < 99, 2.0) + torch.where(torch.tensor([True, True]), x, far)


_EQUALIZED = ((4, 3, 2, 2), (3, 16), (3, 1))
MASK = torch.tensor([[True, False, True, True], [False, True, True, False], [True, True, False, True]])
aten = torch.ops.aten


# Name → function, shapes of inputs, shapes of parameters. A shape that begins with "+" is of positive numbers.
class Decomposed(nn.Module):
    """Calls what decomposed programs consist of."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.up = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 2)

    def forward(self, x):
        aten, conv, norm, up = torch.ops.aten, self.conv, self.norm, self.up
        x = aten.convolution(x, conv.weight, conv.bias, [1, 2], [1, 0], [1, 1], False, [0, 0], 1)
        means = norm.running_mean, norm.running_var
        x = aten._native_batch_norm_legit_no_training(x, norm.weight, norm.bias, *means, 0.1, 1e-5)[0]
        x = x + aten.native_group_norm(x, norm.weight, norm.bias, x.shape[0], 4, x.shape[2] * x.shape[3], 2, 1e-5)[0]
        x = aten.native_dropout(aten.native_layer_norm(x, x.shape[1:], None, None, 1e-5)[0], 0.5, False)[0]
        return aten.convolution(x, up.weight, up.bias, [2, 1], [0, 0], [1, 1], True, [1, 0], 1)


CASES: dict[str, tuple[Any, ...]] = {
    "relu": (F.relu, (2, 5)),
    "relu_": (lambda x: F.relu(x * 2, inplace=True), (2, 5)),
    "sigmoid": (torch.sigmoid, (2, 5)),
    "tanh": (torch.tanh, (2, 5)),
    "elu": (lambda x: F.elu(x, 0.7), (2, 5)),
    "selu": (F.selu, (2, 5)),
    "celu": (lambda x: F.celu(x, 0.6), (2, 5)),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), (2, 5)),
    "rrelu": (nn.RReLU(), (2, 5)),
    "prelu": (F.prelu, (2, 5, 3, 3), (5,)),
    "prelu_one": (F.prelu, (2, 5), (1,)),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 0.8), (2, 5)),
    "relu6": (lambda x: F.relu6(x * 5), (2, 5)),
    "clamp": (lambda x: x.clamp(-0.3, 0.4), (2, 5)),
    "clamp_min": (lambda x: torch.clamp_min(x, 0.1), (2, 5)),
    "clamp_max": (lambda x: torch.clamp_max(x, 0.1) + x.clamp(max=0.5), (2, 5)),
    "threshold": (lambda x: F.threshold(x, 0.1, -2.0), (2, 5)),
    "silu": (F.silu, (2, 5)),
    "hardsigmoid": (lambda x: F.hardsigmoid(x * 3), (2, 5)),
    "hardswish": (lambda x: F.hardswish(x * 3), (2, 5)),
    "mish": (F.mish, (2, 5)),
    "gelu": (lambda x: F.gelu(x * 3), (4, 9)),
    "gelu_tanh": (lambda x: F.gelu(x * 3, approximate="tanh"), (4, 9)),
    "erf": (lambda x: torch.erf(x * 2), (4, 9)),
    "softplus": (lambda x: F.softplus(x, 2), (2, 5)),
    "log_sigmoid": (F.logsigmoid, (2, 5)),
    "hardshrink": (F.hardshrink, (2, 5)),
    "softshrink": (F.softshrink, (2, 5)),
    "softsign": (F.softsign, (2, 5)),
    "tanhshrink": (F.tanhshrink, (2, 5)),
    "glu": (lambda x: F.glu(x, 1), (2, 6, 3)),
    "exp": (torch.exp, (2, 5)),
    "expm1": (torch.expm1, (2, 5)),
    "log": (lambda x: torch.log(x.abs() + 1), (2, 5)),
    "log_other": (lambda x: torch.log1p(x.abs()) + torch.log2(x.abs() + 1) + torch.log10(x.abs() + 2), (2, 5)),
    "sqrt": (lambda x: torch.sqrt(x.abs() + 1), (2, 5)),
    "rsqrt": (lambda x: torch.rsqrt(x.abs() + 1), (2, 5)),
    "reciprocal": (lambda x: torch.reciprocal(x.abs() + 1), (2, 5)),
    "abs": (torch.abs, (2, 5)),
    "neg": (lambda x: -x, (2, 5)),
    "square": (torch.square, (2, 5)),
    "softmax_2": (lambda x: x.softmax(1), (2, 5)),
    "softmax_3": (lambda x: x.softmax(-1) + x.softmax(1), (2, 5, 3)),
    "softmax_4": (lambda x: x.softmax(1) + x.softmax(3), (2, 5, 3, 4)),
    "log_softmax": (lambda x: x.log_softmax(-1), (2, 5, 3)),
    "dropout": (lambda x: F.dropout(x, 0.3, False), (2, 5)),
    "feature_dropout": (lambda x: F.dropout2d(x, 0.3, False) + nn.Dropout1d().eval()(x[:, 0])[:, None], (2, 3, 4, 4)),
    "feature_dropout_3": (lambda x: F.dropout3d(x, 0.3, False), (2, 3, 4, 4, 2)),
    "add": (lambda x, y: x + y + 1, (2, 5), (2, 5)),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=2) + torch.add(1, x), "two", (2, 5), (2, 5)),
    "add_broadcast": (lambda x, y: x + y.sum(1, keepdim=True), "two", (2, 5), (2, 5)),
    "add_parameter": (lambda x, p: x + p, (2, 3, 4), (3, 1)),
    "add_inplace": (lambda x, p: (x * 1).add_(p), (2, 4), (4,)),
    "sub": (lambda x, p, q: (x - p) + (q - x) + (1 - x) + (x - 2), (2, 4), (4,), (4,)),
    "sub_two": (lambda x, y: x - y, "two", (2, 4), (2, 4)),
    "mul": (lambda x, p: x * p * 2 * x, (2, 3, 4), (1, 4)),
    "mul_self": (lambda x: x * x, (2, 5)),
    "mul_broadcast": (lambda x, y: x * y[:, :, None, None], "two", (2, 3, 4, 4), (2, 3)),
    "mul_scalar_parameter": (lambda x, p: x * p, (2, 3), ()),
    "div": (lambda x, y: x / (y.abs() + 1) + x / 3 + 2 / (x.abs() + 1), "two", (2, 4), (2, 4)),
    "div_parameter": (lambda x, p: x / (p * p + 1), (2, 4), (4,)),
    "maximum": (torch.maximum, "two", (2, 4), (2, 4)),
    "minimum": (torch.minimum, "two", (2, 4), (2, 4)),
    "pow": (lambda x: x**2 + x**3 + x.abs() ** 0.5, (2, 4)),
    "pow_number": (lambda x: 2**x, (2, 4)),
    "masked_fill": (lambda x: x.masked_fill(MASK, -1e4), (2, 3, 4)),
    "masked_softmax": (lambda x: x.masked_fill(MASK, float("-inf")).softmax(-1), (2, 3, 4)),
    "where": (lambda x: torch.where(MASK, x, 0.5) + torch.where(MASK, 1.0, x) + torch.where(MASK, x, x * 2), (2, 3, 4)),
    "masked_fill_wire": (lambda x: x.masked_fill(x > 0.2, -2.0) + x.masked_fill(x.abs() > 1, 0), (2, 3, 4)),
    "masked_fill_infinite": (lambda x: x.masked_fill(x > 0.9, float("-inf")).softmax(-1), (2, 3, 4)),
    "where_wire": (lambda x, y: torch.where(x > y, x * 2, y) + torch.where(x < 0, 0.5, y), "two", (2, 4), (2, 4)),
    "compare": (lambda x: x * (x > 0.1) + x.square() * (x <= -0.2).float() - (x >= 0.5).float(), (2, 9)),
    "compare_two": (lambda x, y: x * (x > y) + y * (x >= y) + (x < y).float(), "two", (2, 4), (2, 4)),
    "equal": (lambda x: (x == 2).float() * 3 + (x != 5).float() * x, "int", (2, 5)),
    "equal_floats": (lambda x: x * (x.relu() == 0) + (x.relu() != 0).float(), (2, 9)),
    "logic": (lambda x: x * ((x > 0) & ~(x > 1)) + ((x > 1) | (x < -1)).float() + ((x > 0) ^ (x > 0.5)) * x, (2, 9)),
    "sign": (lambda x: x.sign() * x.square() + torch.sign(x.relu()), (2, 9)),
    "broadcast_tensors": (lambda x, y: sum(torch.broadcast_tensors(x, y)), "two", (2, 1, 4), (2, 3, 1)),
    "in_place_part": (lambda x, p: _changed(x * 1, p), (2, 3, 4), (4,)),
    "in_place_chain": (lambda x: _turned(x * 1), (2, 4, 3)),
    "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y, dim=1), "two", (2, 5), (2, 5)),
    "pairwise_distance": (
        lambda x, y: F.pairwise_distance(x, y, 1.0) + F.pairwise_distance(x, y),
        "two",
        (2, 5),
        (2, 5),
    ),
    "weight_norm": (
        nn.Sequential(weight_norm(nn.Conv1d(3, 4, 2)), weight_norm(nn.ConvTranspose1d(4, 3, 2)), nn.Flatten()),
        (2, 3, 5),
    ),
    "weight_norm_linear": (nn.Sequential(weight_norm(nn.Linear(4, 3)), weight_norm(nn.Linear(3, 2), dim=None)), (2, 4)),
    "spectral_norm": (nn.Sequential(spectral_norm(nn.Conv2d(3, 4, 2)), nn.Flatten()), (2, 3, 3, 4)),
    "equalized": (lambda x, w, v, g: F.linear(F.conv2d(x, w * 0.3).flatten(1), v * g), (2, 3, 3, 3), *_EQUALIZED),
    "mv": (lambda x, a, p: x + torch.dot(torch.mv(a, p), p), (2, 3), (3, 3), (3,)),
    "transposed_twice": (
        lambda x, w: (F.linear(F.linear(x, w), w.t()) + (x @ w.t()) @ w) * w.t().sum(1),
        (2, 4),
        (3, 4),
    ),
    "whole": (lambda x, p: x + (x * 3).long() * p + (x * 2).to(torch.int32) + x.relu().bool() * p, (2, 9), (9,)),
    "stack_along": (lambda x, y: torch.hstack([x, y, torch.dstack([x, y]).flatten(1)]), "two", (2, 3), (2, 3)),
    "swapdims": (lambda x: x.swapdims(1, 2), (2, 3, 4)),
    "triangle": (lambda x: x.tril() + x.triu(1) * 2, (2, 3, 4)),
    "one_hot": (lambda x: F.one_hot(x, 8).float().mean(1), "int", (2, 5)),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.5), "two", (2, 3), (2, 3)),
    "addcdiv": (lambda x, y: torch.addcdiv(x, y, y.abs() + 1, value=2), "two", (2, 3), (2, 3)),
    "lerp": (lambda x, y, p: torch.lerp(x, y, 0.3) + torch.lerp(x, y, p), "two", (2, 3), (2, 3), (3,)),
    "attention_grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        *("three", (2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    ),
    "attention_shared": (
        lambda q, k, v, p: F.scaled_dot_product_attention(q, k, v) + F.scaled_dot_product_attention(q[:, :1], p, p),
        *("three", (2, 3, 6, 4), (2, 1, 5, 4), (2, 3, 5, 4), (1, 5, 4)),
    ),
    "empty": (lambda x, p: _with_empty(x, p), (2, 3, 4), (4,)),
    "no_grad": (lambda x, w: _without_gradient(x, w), (2, 4), (4, 4)),
    "convolution": (nn.Conv2d(3, 4, 3, 2, 1), (2, 3, 7, 8)),
    "convolution_1": (nn.Conv1d(3, 4, 3, 2, 1), (2, 3, 7)),
    "convolution_3": (nn.Conv3d(2, 3, (1, 2, 3), (1, 2, 1), (0, 1, 1)), (2, 2, 3, 4, 5)),
    "convolution_uneven": (nn.Conv2d(3, 4, (3, 2), (1, 2), (2, 1), bias=False), (2, 3, 7, 8)),
    "convolution_dilated": (nn.Conv2d(3, 4, 3, 1, 2, (2, 1)), (2, 3, 7, 8)),
    "convolution_dilated_1": (nn.Conv1d(3, 4, 3, 1, 2, 2), (2, 3, 7)),
    "convolution_dilated_3": (nn.Conv3d(2, 3, 2, 1, 1, 2), (2, 2, 3, 4, 5)),
    "convolution_grouped": (nn.Conv2d(6, 4, 3, 1, 1, groups=2), (2, 6, 5, 5)),
    "convolution_depthwise": (nn.Conv2d(4, 4, 3, 2, 1, groups=4), (2, 4, 6, 5)),
    "convolution_depthwise_square": (nn.Conv2d(4, 4, 3, 1, 1, groups=4, bias=False), (2, 4, 5, 5)),
    "convolution_depthwise_no_bias": (nn.Conv2d(4, 4, (1, 3), 1, (0, 1), groups=4, bias=False), (2, 4, 6, 5)),
    "convolution_depthwise_wide": (nn.Conv2d(4, 8, 3, 1, 1, groups=4), (2, 4, 6, 5)),
    "convolution_depthwise_1": (nn.Conv1d(4, 4, 3, 1, 1, groups=4), (2, 4, 6)),
    "convolution_same": (nn.Conv2d(3, 4, (4, 3), padding="same"), (2, 3, 5, 6)),
    "convolution_circular": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 5, 6)),
    "convolution_reflect": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 5, 6)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, 2, 1, 1), (2, 3, 4, 5)),
    "transposed_uneven": (nn.ConvTranspose2d(3, 4, (2, 3), (2, 1), (0, 1), bias=False), (2, 3, 4, 5)),
    "transposed_grouped": (nn.ConvTranspose2d(4, 6, 3, 2, groups=2), (2, 4, 4, 5)),
    "transposed_1": (nn.ConvTranspose1d(3, 4, 4, 2, 1), (2, 3, 5)),
    "transposed_3": (nn.ConvTranspose3d(2, 3, 3, 2, 1, 1), (2, 2, 3, 2, 3)),
    "max_pool": (nn.MaxPool2d(3, 2, 1), (2, 3, 7, 8)),
    "max_pool_ceil": (nn.MaxPool2d((2, 3), (2, 2), ceil_mode=True), (2, 3, 7, 8)),
    "max_pool_dilated": (nn.MaxPool2d(2, 1, 0, 2), (2, 3, 7, 8)),
    "max_pool_1": (nn.MaxPool1d(3, 2, 1), (2, 3, 8)),
    "max_pool_3": (nn.MaxPool3d((1, 2, 2), (1, 2, 1)), (2, 3, 2, 4, 5)),
    "avg_pool": (nn.AvgPool2d(3, 2, 1), (2, 3, 7, 8)),
    "avg_pool_exclude": (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (2, 3, 7, 8)),
    "avg_pool_1": (nn.AvgPool1d(2), (2, 3, 8)),
    "avg_pool_3": (nn.AvgPool3d((1, 2, 2)), (2, 3, 2, 4, 4)),
    "adaptive_avg_pool": (nn.AdaptiveAvgPool2d((3, 2)), (2, 3, 7, 5)),
    "adaptive_avg_pool_1": (nn.AdaptiveAvgPool1d(3), (2, 3, 8)),
    "adaptive_avg_pool_3": (nn.AdaptiveAvgPool3d((1, 2, 1)), (2, 3, 2, 4, 4)),
    "adaptive_max_pool": (nn.AdaptiveMaxPool2d((3, 2)), (2, 3, 7, 5)),
    "adaptive_max_pool_1": (nn.AdaptiveMaxPool1d(1), (2, 3, 8)),
    "batch_norm": (nn.BatchNorm1d(4), (3, 4)),
    "batch_norm_1": (nn.BatchNorm1d(4, momentum=0.2), (3, 4, 5)),
    "batch_norm_2": (nn.BatchNorm2d(4, 1e-3, affine=False), (3, 4, 2, 3)),
    "batch_norm_3": (nn.BatchNorm3d(4), (3, 4, 2, 3, 2)),
    "layer_norm": (nn.LayerNorm(6), (2, 3, 6)),
    "layer_norm_two": (nn.LayerNorm((3, 4), 1e-3), (2, 3, 4)),
    "layer_norm_plain": (nn.LayerNorm(6, elementwise_affine=False), (2, 6)),
    "rms_norm": (nn.RMSNorm(6), (2, 3, 6)),
    "group_norm": (nn.GroupNorm(2, 6), (2, 6, 3, 4)),
    "instance_norm": (nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 5)),
    "mean": (lambda x: x.mean((2, 3)) + x.mean((1, 3), keepdim=True)[:, 0, :3, 0], (2, 3, 4, 4)),
    "sum": (lambda x: x.sum(1) + x.sum(-1, keepdim=True), (2, 1, 4)),
    "amax": (lambda x: x.amax(2) - x.amin(2), (2, 3, 4)),
    "max_dim": (lambda x: x.max(1)[0] + x.min(1, keepdim=True).values[:, 0], (2, 3, 4)),
    "var": (lambda x: x.var(1) + x.std((1,), correction=0), (2, 5)),
    "cumulative": (lambda x: x.logcumsumexp(1) + x.cummax(2)[0] * x.cummin(-1).values, (2, 3, 4)),
    "complex": (_complex, "two", (2, 4, 6), (2, 4, 3), (4, 3, 2)),
    "fourier": (_fourier, (2, 5, 6)),
    "truth": (
        lambda x: [
            (x > 0).any(1).float() * x[:, 0],
            x * (x > -0.5).all(2, keepdim=True),
            (x * (x > 0)).any(1) * x[:, 0],
        ],
        (2, 3, 4),
    ),
    "batch_statistics": (
        lambda x, w, b: (
            F.batch_norm(x, None, None, w, b, training=True)
            + F.batch_norm(w[None, :, None] * b, None, None, training=True)
        ),
        (3, 4, 4),
        (4,),
        (4,),
    ),
    "distances": (
        lambda x, y, p: torch.cdist(x, p) + torch.cdist(x, y, p=1).sum(2, keepdim=True),
        "two",
        (2, 4, 3),
        (2, 2, 3),
        (5, 3),
    ),
    "lengths": (lambda x, y: torch.hypot(x, y).exp2() + torch.erfc(x), "two", (2, 5), (2, 5)),
    "diagonal": (
        lambda x: x.diagonal(1, 1, 3) + torch.einsum("biji->bji", x)[..., :3].transpose(1, 2)[:, :1],
        (2, 4, 3, 4),
    ),
    "same_even": (
        lambda x, w, v: F.conv2d(F.conv2d(x, w, padding="same"), v, padding="same", groups=4),
        (2, 3, 5, 6),
        (4, 3, 2, 4),
        (4, 1, 2, 2),
    ),
    "var_batch": (lambda x: x.var(0, correction=0) + x.std((0, 2), correction=0, keepdim=True) * x, (3, 2, 4)),
    "var_mean": (lambda x: torch.cat(torch.var_mean(x, (1,), correction=0), 1), (2, 5, 3)),
    "norm": (lambda x: F.normalize(x, dim=1) + F.normalize(x, p=1, dim=1), (2, 5)),
    "norm_3": (lambda x: x.norm(3, dim=1) + x.norm(float("inf"), 1), (2, 5)),
    "whole_extremum": (lambda x: x / x.max() - x.min(), (2, 5)),
    "logsumexp": (lambda x: x.logsumexp(1), (2, 5)),
    "linear": (nn.Linear(4, 3), (2, 4)),
    "linear_3": (nn.Linear(4, 3, bias=False), (2, 5, 4)),
    "linear_4": (nn.Linear(4, 3), (2, 2, 5, 4)),
    "matmul_parameter": (lambda x, p: x @ p, (2, 5, 4), (4, 3)),
    "matmul": (lambda x, y: x @ y, "two", (2, 5, 4), (2, 4, 3)),
    "matmul_4": (lambda x, y: x @ y.transpose(-1, -2), "two", (2, 2, 5, 4), (2, 2, 3, 4)),
    "matmul_vector": (lambda x, p: x @ p, (2, 5, 4), (4,)),
    "matmul_batch_parameter": (lambda x, p: x @ p, (2, 3, 5, 4), (3, 4, 2)),
    "bmm": (torch.bmm, "two", (2, 5, 4), (2, 4, 3)),
    "addmm": (lambda x, b, w: torch.addmm(b, x, w), (2, 4), (3,), (4, 3)),
    "bilinear_form": (nn.Bilinear(3, 4, 2), "two", (2, 3), (2, 4)),
    "einsum": (lambda x, y: torch.einsum("bqhd,bkhd->bhqk", x, y), "two", (2, 3, 2, 4), (2, 5, 2, 4)),
    "einsum_dots": (lambda x, p: torch.einsum("...d,de->...e", x, p), (2, 3, 4), (4, 5)),
    "einsum_three": (lambda x, p, q: torch.einsum("bi,ij,jk->bk", x, p, q), (2, 3), (3, 4), (4, 2)),
    "einsum_one": (lambda x: torch.einsum("bij->bji", x) * torch.einsum("bij->bi", x)[:, None], (2, 3, 4)),
    "einsum_outer": (
        lambda x, y: torch.einsum("bi,bj->bij", x, y) * torch.einsum("bi,bj->b", x, y)[:, None, None],
        "two",
        (2, 3),
        (2, 4),
    ),
    "tensordot": (lambda x, p: torch.tensordot(x, p, dims=1), (2, 3, 4), (4, 5)),
    "einsum_parameter": (lambda x, p: torch.einsum("bti,oi->bto", x, p), (2, 3, 4), (5, 4)),
    "attention": (F.scaled_dot_product_attention, "three", (2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 3)),
    "attention_causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *("three", (2, 5, 4), (2, 5, 4), (2, 5, 4)),
    ),
    "attention_mask": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=MASK, scale=0.3),
        *("three", (2, 3, 4), (2, 4, 4), (2, 4, 2)),
    ),
    "multihead": (Held(nn.MultiheadAttention(6, 2, batch_first=True), lambda m, x: m(x, x, x)[0]), (2, 4, 6)),
    "view": (lambda x: x.view(x.shape[0], -1).reshape(-1, 4, 3).flatten(1).unflatten(1, (2, 6)), (2, 3, 4)),
    "squeeze": (lambda x: x.squeeze(1).unsqueeze(2).squeeze(), (3, 1, 4)),
    "same": (lambda x: x.contiguous().clone().float(), (2, 4)),
    "detach": (lambda x: x * x.detach(), (2, 4)),
    "permute": (lambda x: x.permute(0, 2, 3, 1), (2, 3, 4, 5)),
    "transpose": (lambda x: x.transpose(1, 2).transpose(2, 3), (2, 3, 4, 5)),
    "turned": (lambda x: x[:, 0].mT, (2, 1, 3, 4)),
    "movedim": (lambda x: torch.movedim(x, 1, -1), (2, 3, 4, 5)),
    "expand": (lambda x: x.expand(-1, 3, 4) * 2, (2, 1, 4)),
    "expand_parameter": (lambda x, p: torch.cat([p.expand(x.shape[0], -1, -1), x], 1), (3, 2, 4), (1, 1, 4)),
    "select": (lambda x: x[:, 1] + x[:, -1], (2, 3, 4)),
    "slice": (lambda x: x[:, 1:3, :-1] + x[:, ::2, 1:], (2, 4, 3)),
    "slice_step": (lambda x: torch.cat([x[:, 0::2], x[:, 1::2]], 2), (2, 4, 3)),
    "narrow": (lambda x: x.narrow(1, 1, 2), (2, 4, 3)),
    "split": (lambda x: sum(part.mean(1) for part in (*x.split(2, 1), *x.split([1, 4], 1), *x.chunk(2, 1))), (2, 5, 3)),
    "unbind": (lambda x: torch.stack(x.unbind(1)[::-1], 2), (2, 3, 4)),
    "cat": (lambda x, y: torch.cat([x, y, x], 1), "two", (2, 3), (2, 4)),
    "stack": (lambda x, y: torch.stack([x, y], 1), "two", (2, 3), (2, 3)),
    "repeat": (lambda x: x.repeat(1, 2, 3), (2, 3, 4)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), (2, 3, 4)),
    "flip": (lambda x: x.flip(1), (2, 3, 4)),
    "roll": (lambda x: x.roll((1, -2), (1, 2)), (2, 3, 4)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (2, 8, 3, 4)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (2, 2, 4, 6)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), (2, 6, 3, 4)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), (2, 3, 4, 5)),
    "pad_value": (lambda x: F.pad(x, (1, 2, -1, 1), value=0.5), (2, 3, 4, 5)),
    "pad_reflect": (lambda x: F.pad(x, (1, 2, 1, 0), mode="reflect"), (2, 3, 4, 5)),
    "pad_reflect_1": (nn.ReflectionPad1d(2), (2, 3, 5)),
    "pad_replicate": (lambda x: F.pad(x, (1, 2, 1, 0), mode="replicate"), (2, 3, 4, 5)),
    "pad_replicate_3": (nn.ReplicationPad3d(1), (2, 2, 3, 2, 2)),
    "pad_aten": (
        lambda x: aten.reflection_pad2d(x, [1, 0, 2, 1]) + aten.replication_pad2d(x, [0, 1, 1, 2]),
        (2, 3, 4, 5),
    ),
    "pad_circular": (lambda x: F.pad(x, (1, 2), mode="circular"), (2, 3, 5)),
    "filled": (
        lambda x: x + torch.zeros(x.shape[0], 3) + torch.ones_like(x) + x.new_full((x.shape[0], 1), 2.0),
        (2, 3),
    ),
    "index": (lambda x: x[:, [2, 0, 0]], (2, 3, 4)),
    "index_parameter": (lambda x, p: x + p[torch.tensor([[2, 0], [1, 1]])].sum(-1), (2, 2, 2), (3, 4)),
    "index_many": (lambda x, p: x + p.exp()[torch.arange(600) % 7].view(3, 100, 4).mean(1), (2, 3, 4), (7, 2)),
    "index_several": (lambda x: x[:, [0, 2, 1], [[1], [-1]]], (2, 3, 4)),
    "index_put": (_replaced, "two", (2, 3, 4), (2, 3, 4)),
    "masked_select": (
        lambda x: (x @ x.t()).masked_select(torch.eye(3) < 1).view(3, -1).sum(1, keepdim=True) * x,
        (3, 2),
    ),
    "bucketize": (
        lambda x, p: (
            x * torch.bucketize(x, torch.tensor([-1.0, 0, 0.5])) + torch.searchsorted(p.detach(), x, right=True)
        ),
        (2, 3, 4),
        (1,),
    ),
    "data": (lambda x: x * x.data, (3, 4)),
    "index_select": (lambda x: x.index_select(1, torch.tensor([2, 1])), (2, 3, 4)),
    "embedding": (nn.Embedding(7, 3, padding_idx=2), "int", (2, 5)),
    "embedding_1": (nn.Embedding(7, 3), "int", (4,)),
    "embedding_3": (nn.Embedding(7, 3), "int", (2, 2, 2)),
    "embedding_places": (lambda x, p: x + F.embedding(torch.arange(x.shape[1]), p), (2, 3, 4), (5, 4)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (2, 3, 4, 5)),
    "nearest_uneven": (lambda x: F.interpolate(x, size=(6, 7)), (2, 3, 4, 5)),
    "nearest_1": (lambda x: F.interpolate(x, scale_factor=2), (2, 3, 5)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (2, 3, 4, 5)),
    "bilinear_size": (lambda x: F.interpolate(x, size=(3, 9), mode="bilinear"), (2, 3, 4, 5)),
    "bilinear_corners": (lambda x: F.interpolate(x, size=(6, 7), mode="bilinear", align_corners=True), (2, 3, 4, 5)),
    "bicubic": (lambda x: F.interpolate(x, size=(6, 7), mode="bicubic"), (2, 3, 4, 5)),
    "antialias": (lambda x: F.interpolate(x, size=(3, 9), mode="bilinear", antialias=True), (2, 3, 6, 5)),
    "antialias_cubic": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bicubic", antialias=True), (2, 3, 6, 8)),
    "bag_mean": (nn.EmbeddingBag(7, 3, mode="mean"), "int", (2, 5)),
    "bag_sum": (
        Held(nn.EmbeddingBag(7, 3, mode="sum"), lambda m, x: m(x.flatten(), torch.tensor([0, 5]))),
        "int",
        (2, 5),
    ),
    "bag_max": (nn.EmbeddingBag(7, 3, mode="max"), "int", (2, 5)),
    "bag_weighted": (
        Held(nn.EmbeddingBag(7, 3, mode="sum"), lambda m, x: m(x, per_sample_weights=x * 0.5)),
        "int",
        (2, 5),
    ),
    "cumsum": (lambda x: x.cumsum(1) + x.cumsum(-1) * 2, (2, 3, 4)),
    "prod": (lambda x: x.prod(1) + x.prod(2, keepdim=True).sum(1), (2, 3, 4)),
    "unfold": (lambda x: F.unfold(x, (2, 3), dilation=(2, 1), padding=(1, 2), stride=(1, 2)), (2, 3, 5, 6)),
    "windows": (
        lambda x: x.unfold(1, 2, 1) * 2 + x.unfold(1, 2, 1).unfold(2, 3, 1).sum(-1).sum(2, keepdim=True),
        (2, 3, 4),
    ),
    "clamp_elements": (
        lambda x, y, p: torch.clamp(x, min=p) + x.clamp(y.abs() - 1, y.abs()),
        "two",
        (2, 5),
        (2, 5),
        (5,),
    ),
    "logit": (lambda x: torch.logit(x.sigmoid()) + torch.logit(x, eps=0.1), (2, 5)),
    "logaddexp": (lambda x, y, p: torch.logaddexp(x, y * 9) + torch.logaddexp(p, x), "two", (2, 5), (2, 5), (5,)),
    "average_divisor": (lambda x: F.avg_pool2d(x, (2, 3), 2, 1, divisor_override=5), (2, 3, 5, 6)),
    "losses": (lambda x, y: F.mse_loss(x, y) + F.l1_loss(x, y, reduction="none"), "two", (2, 5), (2, 5)),
    "linear_1": (lambda x: F.interpolate(x, scale_factor=1.5, mode="linear"), (2, 3, 6)),
    "lstm": (Held(nn.LSTM(3, 4, 2, batch_first=True), lambda m, x: m(x)[0]), (2, 3, 3)),
    "lstm_both": (
        Held(nn.LSTM(3, 4, bidirectional=True, bias=False, batch_first=True), lambda m, x: m(x)[0]),
        (2, 3, 3),
    ),
    "lstm_state": (Held(nn.LSTM(3, 4, batch_first=True), lambda m, x: m(x)[1][1][0]), (2, 3, 3)),
    "lstm_time_first": (Held(nn.LSTM(3, 4), lambda m, x: m(x)[0]), (3, 2, 3)),
    "gru": (Held(nn.GRU(3, 4, 2, batch_first=True), lambda m, x: m(x)[0]), (2, 3, 3)),
    "gru_state": (Held(nn.GRU(3, 4, batch_first=True), lambda m, x, h: m(x, h[None])[0]), "two", (2, 3, 3), (2, 4)),
    "rnn_tanh": (Held(nn.RNN(3, 4, batch_first=True), lambda m, x: m(x)[0]), (2, 3, 3)),
    "rnn_relu": (Held(nn.RNN(3, 4, batch_first=True, nonlinearity="relu"), lambda m, x: m(x)[0]), (2, 3, 3)),
    "expand_learned": (lambda x, p: x + p.exp()[None] + (2 * p)[None].expand(x.shape[0], -1, -1), (3, 2, 4), (2, 4)),
    "lstm_cell": (Held(nn.LSTMCell(3, 4), lambda m, x: m(x)[0]), (2, 3)),
    "gru_cell": (Held(nn.GRUCell(3, 4), lambda m, x: m(x)), (2, 3)),
    "left_out": (_left_out, (3, 2)),
    "same_size": (lambda x: F.interpolate(x, size=x.shape[-2:]), (2, 3, 4, 4)),
    "elements": (lambda x, y, p: p.softmax(0)[0] * x + p.softmax(0)[1] * y, "two", (2, 3), (2, 3), (2,)),
    "number_twice": (lambda x, p: torch.sigmoid(p) * x + p * x.abs(), (2, 3), ()),
    "frozen_norm": (FrozenNorm(), (2, 3, 4, 5)),
    "detached_weight": (lambda x, p: F.linear(x, p.detach()) * F.linear(x, p), (2, 3), (3, 3)),
    "decomposed": (Decomposed(), (2, 3, 5, 7)),
}


class Kernels(nn.Module):
    """Convolutions by kernels that are computed from parameters, or are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.line = nn.Parameter(torch.randn(2, 4, 3))
        self.register_buffer("blur", torch.tensor([1.0, 2, 1]).outer(torch.tensor([1.0, 2, 1])).div(16)[None, None])

    def forward(self, x: Tensor) -> Tensor:
        w = self.conv.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-3)
        x = F.conv2d(x, self.blur.repeat(3, 1, 1, 1), groups=3, padding=1)
        x = F.conv2d(x, w, self.conv.bias, stride=(2, 1), padding=(0, 1), dilation=(1, 2))
        return F.conv1d(x.flatten(2), self.line * self.line.abs(), padding=1)


def _grid(x: Tensor, y: Tensor) -> Tensor:
    """An image at the places of a grid, in all modes, and turned by a matrix."""
    turned = F.affine_grid(y[:, 0, :2, :3].reshape(-1, 2, 3), [2, 2, 3, 4], align_corners=True)
    made = F.grid_sample(x, turned, align_corners=True).sum((2, 3), keepdim=True)
    for mode in ("bilinear", "nearest"):
        for padding, align in (("zeros", False), ("border", True)):
            made = made + F.grid_sample(x, y.permute(0, 2, 3, 1) * 1.1, mode, padding, align)
    return made


def _in_order(x: Tensor) -> list[Tensor]:
    """Sorted elements and their indices."""
    largest, (least, places) = x.topk(2, 1)[0], x.topk(2, 1, largest=False)
    return [x.sort(1)[0], largest * places + least, x.sort(2, descending=True)[1] * x, x.median(1)[0]]


def _indexed(x: Tensor, y: Tensor) -> list[Tensor]:
    """Elements at computed indices, replaced and added."""
    order, first = y.argsort(1), y.argmax(1)
    rows = x.index_select(1, y.sum(0).argsort()[:2])
    changed = x.scatter(1, order[:, :2], y[:, :2]) + x.scatter_add(1, (order > 1).long(), y)
    changed = changed + x.scatter(1, order[:, 1:2], 3.0)
    return [x.gather(1, order) + changed, rows, F.one_hot(first, 4) * x, x[:, y.sum(0).argmin().reshape(1)]]


def _of_each(x: Tensor, y: Tensor, p: Tensor) -> list[Tensor]:
    """Elements at indices of several dimensions, rows that are computed, and indices of maxima."""
    at, rows = y.argmax(1), torch.arange(x.size(0))
    values, places = x.max(1)
    rows_of = F.embedding(y.argsort(1), F.normalize(p, dim=1))
    return [x[rows, at], y[rows, at], p[at, y.argmin(1)] * values[:, 0], places * values, rows_of * x.sum()]


def _unpooled(x: Tensor) -> Tensor:
    """Maxima put back to their places."""
    values, places = F.max_pool2d(x, (2, 3), (2, 1), (1, 0), return_indices=True)
    made = F.max_unpool2d(values * 2, places, (2, 3), (2, 1), (1, 0), output_size=x.shape[2:])
    return made + F.max_unpool2d(*F.max_pool2d(x, 2, ceil_mode=True, return_indices=True), 2, output_size=x.shape[2:])


def _transposed(x: Tensor, y: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Transposed convolutions by kernels that are computed, or with dilation."""
    kernel = p * y.mean(0).view(4, 1, 1, 1)
    made = F.conv_transpose2d(x, kernel, y[0, :3], stride=(2, 1), padding=(1, 0), output_padding=(1, 0))
    made = made + F.conv_transpose2d(x, kernel.repeat(1, 2, 1, 1)[:, :3], groups=2, dilation=2)[:, :3, :6, :6]
    return made + F.conv_transpose1d(x.flatten(2), q, stride=3, padding=2, dilation=2)[:, :1, :36].view(2, 1, 6, 6)


def _each_its_own(x: Tensor, y: Tensor, p: Tensor) -> Tensor:
    """A kernel and bias for each example, which are groups."""
    batch, _, *size = x.shape
    kernels = (p * y[:, None, :, None, None]).flatten(0, 1)
    made = F.conv2d(x.reshape(1, -1, *size), kernels, y[:, :1].repeat(1, 2).flatten(), padding=1, groups=batch)
    return made.view(batch, 2, *size)


LAYERS: dict[str, Any] = {
    "function_each": (
        lambda x: x.sin() + x.cos() * 2 + (x / 3).tan() + x.sinh() + x.cosh() + x.asinh() + x.atan(),
        (2, 5),
    ),
    "function_bounded": (lambda x: (x.tanh() * 0.8).asin() + (x.sigmoid()).acos() + (x.tanh() * 0.8).atanh(), (2, 5)),
    "function_rounded": (
        lambda x: x * ((x * 3).floor() + (x * 3).ceil() * 2 + (x * 3).trunc() * 3) + (x * 2).round(),
        (2, 5),
    ),
    "function_pairs": (
        lambda x, y, p: [
            torch.atan2(x, y) + (x.abs() + 0.1) ** y + torch.pow(x.abs() + 0.2, p),
            torch.remainder(x, y) + torch.fmod(y, x) + torch.remainder(x, 0.3) + torch.fmod(x, 0.7),
            x.detach().floor_divide(0.3) * y,
        ],
        "two",
        (2, 5),
        (2, 5),
        (5,),
    ),
    "function_products": (lambda x: x.cumprod(1) + x.cumprod(-1) * 2, (2, 3, 4)),
    "function_sorted": (_in_order, (2, 3, 4)),
    "function_largest": (
        lambda x: [(x.argmax(1) + x.argmin(1)) * x[:, 0], x.argmax(2, keepdim=True) * x, x.median(2, keepdim=True)[0]],
        (2, 3, 4),
    ),
    "function_indices": (_indexed, "two", (3, 4), (3, 4)),
    "function_folded": (
        lambda x: F.fold(x, (5, 6), (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1)),
        (2, 12, 12),
    ),
    "function_sampled": (_grid, "two", (2, 3, 4, 5), (2, 2, 3, 4)),
    "function_kernels": (Kernels(), (2, 3, 8, 6)),
    "function_kernels_of_each": (_each_its_own, "two", (2, 3, 4, 5), (2, 3), (1, 2, 3, 3, 3)),
    "function_added": (
        lambda x, y: (
            x.index_add(1, y[0].argsort()[:2], y[:, :2, None] * x[:, 1:3], alpha=2)
            + torch.isnan(x.log()).float() * 2
            + torch.isinf(1 / x.relu())
        ),
        "two",
        (2, 4, 3),
        (2, 4),
    ),
    "function_of_each": (_of_each, "two", (3, 4, 2), (3, 4), (4, 4)),
    "function_transposed": (_transposed, "two", (2, 4, 3, 5), (2, 4), (4, 3, 3, 2), (4, 2, 3)),
    "function_unpooled": (_unpooled, (2, 2, 5, 6)),
}
"""Cases that need `--allow layers`."""
CASES |= LAYERS


def allowed(name: str) -> tuple[str, ...]:
    """What a case must allow."""
    return ("layers",) if name in LAYERS else ()


def case_of(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module and inputs of a case."""
    torch.manual_seed(len(name))
    function, *rest = CASES[name]
    count = {"two": 2, "three": 3}.get(rest[0], 1) if isinstance(rest[0], str) else 1
    integers = rest[0] == "int"
    shapes = rest[1:] if isinstance(rest[0], str) else rest
    inputs = tuple(torch.randint(0, 7, shape) if integers else torch.randn(shape) for shape in shapes[:count])
    module = deepcopy(function) if isinstance(function, nn.Module) else Case(function, *shapes[count:])
    for inner in module.modules():
        for parameter in inner.parameters(recurse=False):
            parameter.data.uniform_(-0.7, 0.7)
        if isinstance(inner, nn.modules.batchnorm._BatchNorm):
            inner.running_mean.uniform_(-0.5, 0.5)
            inner.running_var.uniform_(0.5, 2)
    return module.eval(), inputs
