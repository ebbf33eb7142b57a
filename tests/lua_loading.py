"""PyTorch modules whose state dicts `loader.lua` puts into Lua models; `testfiles/gen/lua_loader.lua` has those."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)
        self.fc = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))).flatten(1))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.table = nn.Parameter(torch.rand(4)), nn.Embedding(7, 4)
        self.parts = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 2, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        return self.parts["b"](self.parts["a"](self.table(x.long() - 1) * self.scale))


class Outputs(nn.Module):
    """A recurrent layer without its last states."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.rnn = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x, (x.new_full((len(x), 4), 0.1), x.new_full((len(x), 4), 0.2)))[0]


NETS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "net": lambda: (Net(), torch.randn(2, 3, 6, 6)),
    "steps": lambda: (nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 5))), torch.randn(2, 3)),
    "time": lambda: (nn.Sequential(nn.Conv1d(3, 4, 2)), torch.randn(2, 3, 6)),
    "depth": lambda: (nn.Sequential(nn.Conv2d(3, 6, 3, groups=3)), torch.randn(2, 3, 5, 5)),
    "scaled": lambda: (Scaled(), torch.randint(1, 8, (5,)).float()),
    "lstm": lambda: (Outputs(nn.LSTM(3, 4, 2)), torch.randn(5, 2, 3)),
    "lstm_plain": lambda: (Outputs(nn.LSTM(3, 4, bias=False)), torch.randn(5, 2, 3)),
    "lstm_both": lambda: (Outputs(nn.LSTM(3, 4, bidirectional=True)), torch.randn(5, 2, 3)),
    "lstm_projected": lambda: (Outputs(nn.LSTM(3, 4, proj_size=2)), torch.randn(5, 2, 3)),
    "cell": lambda: (Cell(), torch.randn(2, 3)),
}


def net_of(name: str) -> tuple[nn.Module, Tensor]:
    """A module in evaluation mode with moving means of its own, and its input."""
    torch.manual_seed(5)
    module, value = NETS[name]()
    for inner in module.modules():
        if isinstance(inner, nn.modules.batchnorm._BatchNorm):
            inner.running_mean.normal_(0, 0.2)
            inner.running_var.uniform_(0.5, 2)
    return module.eval(), value
