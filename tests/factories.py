"""A library of models, as `match` asks them: small nets like ResNet, DenseNet and Inception, with factories."""

from __future__ import annotations

import torch
from match_nets import Basic, Bottleneck, conv
from torch import nn


class ResNet(nn.Module):
    """A residual network of one block a stage."""

    def __init__(
        self, block: type[nn.Module] = Basic, widths: tuple[int, ...] = (4, 8, 12), num_classes: int = 5
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(3, widths[0], 3), nn.BatchNorm2d(widths[0])
        before = (widths[0], *widths)
        self.layers = nn.ModuleList([block(one, other, 2) for one, other in zip(before, widths)])
        self.fc = nn.Linear(widths[-1], num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        for layer in self.layers:
            x = layer(x)
        return self.fc(x.mean((2, 3)))


class DenseNet(nn.Module):
    """A densely connected network: each layer gets all earlier outputs."""

    def __init__(self, growth: int = 4, layers: int = 3, num_classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        widths = [8 + growth * number for number in range(layers)]
        self.dense = nn.ModuleList(
            [
                nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, growth, 3, padding=1, bias=False))
                for width in widths
            ]
        )
        self.norm, self.classifier = nn.BatchNorm2d(widths[-1] + growth), nn.Linear(widths[-1] + growth, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.dense:
            x = torch.cat([x, layer(x)], 1)
        return self.classifier(torch.relu(self.norm(x)).mean((2, 3)))


class Inception(nn.Module):
    """Parallel branches, and a second classifier for training."""

    def __init__(self, num_classes: int = 5, aux_logits: bool = True) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Conv2d(2, 6, 3, padding=1))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(3, 5, 1))
        if aux_logits:
            self.aux = nn.Linear(15, num_classes)
        self.fc = nn.Linear(15, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.one(x), self.three(x), self.pool(x)], 1)
        return self.fc(torch.relu(x).mean((2, 3)))


class NeedsValues(nn.Module):
    """A module whose constructor reads what it has just made, which the meta device cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(int(torch.ones(3).sum()), 2))


def resnet(weights: str | None = "the internet", num_classes: int = 5) -> ResNet:
    """A factory that would download weights by default."""
    if weights is not None:
        raise OSError("no network")
    return ResNet(num_classes=num_classes)


def resnet_bottleneck(num_classes: int = 5) -> nn.Module:
    return ResNet(Bottleneck, (8, 16, 24), num_classes)


def densenet():
    return DenseNet()


def inception(**kwargs: int) -> Inception:
    return Inception(**kwargs)


def train():
    """Not a factory: it must not be called."""
    raise SystemExit("trained")


def broken() -> nn.Module:
    raise ValueError("no such option")


def no_module() -> nn.Module:
    return 3  # type: ignore[return-value]
