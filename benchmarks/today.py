"""Current practice: `today.py SOURCE.t7 TARGET.pt` with torchfile, `today.py SOURCE.pt TARGET.pt` with PyTorch."""

from __future__ import annotations

import sys

import torch

source, target = sys.argv[1:]
if source.endswith(".t7"):
    import torchfile

    loaded = torchfile.load(source)
    value = {key.decode(): torch.from_numpy(array) for key, array in loaded.items()}
else:
    value = torch.load(source, weights_only=True)
torch.save(value, target)
