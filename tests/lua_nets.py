"""Networks as people write them in PyTorch, small, and a case for each operation of the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import t7bridge


class Basic(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        down = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))
        self.down = down if stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.layer1 = nn.Sequential(Basic(4, 4), Basic(4, 4))
        self.layer2 = Basic(4, 6, 2)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.LeakyReLU(0.2))
        self.b = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.up = nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(a)
        y = torch.cat([a, self.up(b)], 1)
        return (self.out(y) + F.interpolate(b[:, :2], scale_factor=2, mode="bilinear")).softmax(1)


class Language(nn.Module):
    def __init__(self, kind: str, both: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=0)
        self.rnn = getattr(nn, kind)(6, 5, num_layers=2, batch_first=True, dropout=0.2, bidirectional=both)
        self.out = nn.Linear(10 if both else 5, 11)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.out(self.rnn(self.table(x))[0]), dim=-1)


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.spread = nn.Linear(10, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.body(x))
        return {"mean": self.mean(h), "spread": (0.5 * self.spread(h)).exp()}


class Transformer(nn.Module):
    """Tied embeddings, learned positions, a causal mask in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(13, 8)
        self.places = nn.Parameter(torch.randn(1, 5, 8) / 4)
        layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 13, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("mask", torch.full((5, 5), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.table(x) + self.places, mask=self.mask))


class Free(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.scale = nn.Linear(6, 8), nn.Parameter(torch.rand(8))
        self.register_buffer("shift", torch.arange(8.0))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        p, q = ((self.a(x) - self.shift) * self.scale).chunk(2, dim=1)
        z = torch.stack([p, q.clamp(min=0)], dim=1).mean(1)
        return torch.cat([z, y[:, 1:3]], 1).pow(2), [(z - y.sum(1, keepdim=True)).abs(), 2 / (1 + z * z)]


class Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.g = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.d, self.s, self.e = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.d(self.g(F.hardswish(self.c(x)))))
        return y * torch.sigmoid(self.e(F.relu(self.s(y.mean((2, 3), keepdim=True)))))


def _dcgan() -> nn.Module:
    up = nn.ConvTranspose2d
    return nn.Sequential(up(5, 8, 4), nn.BatchNorm2d(8), nn.ReLU(True), up(8, 3, 4, 2, 1, groups=1), nn.Tanh())


NETS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3), nn.LogSoftmax(1)),
        torch.randn(5, 4),
    ),
    "lenet": lambda: (
        nn.Sequential(nn.Conv2d(1, 4, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(144, 10)),
        torch.randn(2, 1, 16, 16),
    ),
    "resnet": lambda: (ResNet(), torch.randn(2, 3, 16, 16)),
    "unet": lambda: (UNet(), torch.randn(1, 1, 8, 8)),
    "dcgan": lambda: (_dcgan(), torch.randn(2, 5, 1, 1)),
    "lstm": lambda: (Language("LSTM"), torch.randint(0, 11, (2, 4))),
    "gru": lambda: (Language("GRU", True), torch.randint(0, 11, (3, 3))),
    "vae": lambda: (VAE(), torch.randn(3, 10)),
    "transformer": lambda: (Transformer(), torch.randint(0, 13, (2, 5))),
    "free": lambda: (Free(), (torch.randn(3, 6), torch.randn(3, 4))),
    "squeeze": lambda: (Squeeze(), torch.randn(2, 3, 6, 6)),
}


def module_of(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network in evaluation mode, with moving means that are not those of a new one, and its inputs."""
    torch.manual_seed(3)
    module, inputs = NETS[name]()
    for inner in module.modules():
        if isinstance(inner, nn.modules.batchnorm._BatchNorm):
            inner.running_mean.normal_(0, 0.2)
            inner.running_var.uniform_(0.5, 2)
    return module.eval(), inputs if isinstance(inputs, tuple) else (inputs,)


def flat(value: Any) -> list[Tensor]:
    """The tensors of an output, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in (value.values() if isinstance(value, dict) else value) for tensor in flat(item)]


def same_outputs(module: nn.Module, path: Path, inputs: tuple[Tensor, ...]) -> nn.Module:
    """Save, load and compare; return the loaded module."""
    t7bridge.save_module(module, path, example_inputs=inputs)
    return loaded_with_same_outputs(module, path, inputs)


def loaded_with_same_outputs(module: nn.Module, path: Path, inputs: tuple[Tensor, ...]) -> nn.Module:
    """Load a saved module and compare; return the loaded module."""
    with torch.no_grad():
        want = flat(module(*inputs))
    again = t7bridge.load_module(path)
    with torch.no_grad():
        got = flat(again(inputs[0] if len(inputs) == 1 else list(inputs)))
    assert [tuple(tensor.shape) for tensor in got] == [tuple(tensor.shape) for tensor in want]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    return again
