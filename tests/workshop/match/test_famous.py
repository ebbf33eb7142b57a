"""Published models, built and run by Lua Torch, as the PyTorch models of the same names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TESTFILES
from torch import nn

import t7bridge
from t7bridge.cli import main

FAMOUS = TESTFILES / "famous"


class Basic(nn.Module):
    """The block of torchvision's ResNet-18."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.downsample = shortcut if before != width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the branch to the shortcut."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.downsample(x))


def resnet18(stride: int = 2) -> nn.Module:
    """ResNet-18 with a sixteenth of the channels."""
    stages = [(4, 4, 1), (4, 8, stride), (8, 16, 2), (16, 32, 2)]
    blocks = [nn.Sequential(Basic(*stage), Basic(stage[1], stage[1], 1)) for stage in stages]
    stem = nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 62))


def alexnet() -> nn.Module:
    """torchvision's AlexNet with a sixteenth of the channels."""
    widths = [(3, 4, 11, 4, 2), (4, 12, 5, 1, 2), (12, 24, 3, 1, 1), (24, 16, 3, 1, 1), (16, 16, 3, 1, 1)]
    layers: list[nn.Module] = []
    for number, row in enumerate(widths):
        layers += [nn.Conv2d(*row), nn.ReLU(inplace=True)]
        if number in (0, 1, 4):
            layers.append(nn.MaxPool2d(3, 2))
    head = [nn.Flatten(), nn.Dropout(), nn.Linear(576, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(6), *head, nn.Linear(256, 62))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "factory", "net", "said"),
    [
        ("resnet18", "resnet18", resnet18, "in evaluation and training mode"),
        ("resnet18", "resnet18(1)", lambda: resnet18(1), "stride of Conv2d is (2, 2) in the .t7 and (1, 1) in "),
        (
            "alexnet_owt",
            "alexnet",
            alexnet,
            "but not the output of the model; at the end, the .t7 computes log_softmax",
        ),
    ],
)
def test_famous(name, factory, net, said, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The weights load strictly, and the model computes what Lua Torch did, or the difference is named."""
    out = tmp_path / "out.pt"
    code = main(
        ["match", str(FAMOUS / f"{name}.t7"), f"{__file__}:{factory}", "-o", str(out), "--input", "2x3x224x224"]
    )
    assert said in capsys.readouterr().err
    assert code == (name != "resnet18" or factory != "resnet18")
    model = net().eval()
    model.load_state_dict(torch.load(out), strict=True)
    recorded = t7bridge.load(FAMOUS / f"{name}.io.t7")
    with torch.no_grad():
        found = model(torch.from_numpy(recorded["input"].numpy().copy()))
    found = found.log_softmax(1) if name == "alexnet_owt" else found
    same = np.allclose(found.numpy(), recorded["output"].numpy(), rtol=1e-4, atol=1e-4)
    assert same == (factory != "resnet18(1)")
