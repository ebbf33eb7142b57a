"""The PyTorch side of a match: architectures written by hand in common styles."""

from __future__ import annotations

import torch
from torch import nn


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size, without a bias."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Basic(nn.Module):
    """torchvision's BasicBlock; `first` defines the shortcut before the branch, `grouped` norms after convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, first: bool = False, grouped: bool = False) -> None:
        super().__init__()
        changes = inputs != outputs or stride != 1
        if changes and first:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        self.conv1 = conv(inputs, outputs, 3, stride)
        if grouped:
            self.conv2 = conv(outputs, outputs, 3)
        self.bn1 = nn.BatchNorm2d(outputs)
        if not grouped:
            self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        if changes and not first:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        short = self.downsample(x) if hasattr(self, "downsample") else x
        x = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(x)) + short)


class FlatBasic(nn.Module):
    """The same with the shortcut's layers next to the others, and before them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.changes = inputs != outputs or stride != 1
        if self.changes:
            self.conv_short = conv(inputs, outputs, 1, stride)
            self.norm_short = nn.BatchNorm2d(outputs)
        self.conv1, self.norm1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = conv(outputs, outputs, 3), nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        short = self.norm_short(self.conv_short(x)) if self.changes else x
        x = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(x)) + short)


class Bottleneck(nn.Module):
    """torchvision's Bottleneck, whose last convolution looks like its shortcut in the first block."""

    def __init__(self, inputs: int, outputs: int, stride: int, first: bool = False) -> None:
        super().__init__()
        inner = outputs // 4
        changes = inputs != outputs or stride != 1
        if changes and first:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        self.conv1, self.bn1 = conv(inputs, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv(inner, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv(inner, outputs, 1), nn.BatchNorm2d(outputs)
        if changes and not first:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        short = self.shortcut(x) if hasattr(self, "shortcut") else x
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return torch.relu(self.bn3(self.conv3(x)) + short)


class ResNet(nn.Module):
    """torchvision's ResNet without its pooling; `head_first` defines the classifier before everything else."""

    def __init__(self, block, widths=(4, 8, 8), head_first: bool = False, pool: int = 4, **options: bool) -> None:
        super().__init__()
        if head_first:
            self.fc = nn.Linear(widths[-1], 5)
        self.conv1, self.bn1 = conv(3, 4, 3), nn.BatchNorm2d(4)
        inputs = 4
        for stage, outputs in enumerate(widths, 1):
            blocks = []
            for number in range(2):
                blocks.append(block(inputs, outputs, 2 if stage > 1 and not number else 1, **options))
                inputs = outputs
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
        if not head_first:
            self.fc = nn.Linear(widths[-1], 5)
        self.pool = pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in (1, 2, 3):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(torch.nn.functional.avg_pool2d(x, self.pool).flatten(1))


class VGG(nn.Module):
    """torchvision's VGG; `convolutional` has its classifier as convolutions."""

    def __init__(self, convolutional: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for outputs in (4, 0, 4, 0, 6, 6, 0):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()] if outputs else [nn.MaxPool2d(2)]
            inputs = outputs or inputs
        self.features = nn.Sequential(*layers)
        self.convolutional = convolutional
        if convolutional:
            heads = nn.Conv2d(6, 8, 2), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 5, 1)
        else:
            heads = nn.Linear(24, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.classifier = nn.Sequential(heads[0], nn.ReLU(), nn.Dropout(), heads[1], nn.ReLU(), nn.Dropout(), heads[2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        return self.classifier(x if self.convolutional else x.flatten(1)).flatten(1)


class AllLinear(nn.Module):
    """The two last convolutions of a convolutional network as linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 6, 3, 2, 1), nn.Linear(6 * 64, 7), nn.Linear(7, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)).flatten(1))))


class Language(nn.Module):
    """An embedding, a recurrent module of two layers, and a decoder."""

    def __init__(self, cells: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Embedding(7, 4)
        if cells:
            self.lower, self.upper = nn.LSTM(4, 5), nn.LSTM(5, 5)
        else:
            self.rnn = nn.LSTM(4, 5, num_layers=2)
        self.cells = cells
        self.decoder = nn.Linear(5, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder(x.long() - 1)
        x = self.upper(self.lower(x)[0])[0] if self.cells else self.rnn(x)[0]
        return self.decoder(x)


class SameLayers(nn.Module):
    """Several layers of the same size, with meaningless names."""

    def __init__(self) -> None:
        super().__init__()
        self.z, self.y, self.x = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b, self.a = nn.Linear(3, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.z, self.y, self.x, self.b):
            x = torch.tanh(layer(x))
        return self.a(x)


class Siamese(nn.Module):
    """One network for two inputs; `twice` names it at two places, `head` is what follows."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        if twice:
            self.right = self.left

    def forward(self, pair: list[torch.Tensor]) -> torch.Tensor:
        right = getattr(self, "right", self.left)
        return nn.functional.pairwise_distance(self.left(pair[0]), right(pair[1]), eps=0.0)


class UNet(nn.Module):
    """A U-Net of one level."""

    def __init__(self) -> None:
        super().__init__()

        def double(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.final = nn.Conv2d(4, 2, 1)
        self.encoder = nn.ModuleList([double(1, 4), double(4, 8)])
        self.decoder = double(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.encoder[0](x)
        second = self.encoder[1](nn.functional.max_pool2d(first, 2))
        return self.final(self.decoder(torch.cat([first, self.up(second)], 1)))


class Generator(nn.Module):
    """A DCGAN generator as PyTorch's example has it."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(8, 6, 4),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 4, 4, 2, 1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x)
