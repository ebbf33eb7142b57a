"""A layer defined by a training program, as a live PyTorch module."""

import tempfile
from pathlib import Path

import numpy as np
import torch

import t7bridge
from t7bridge.layers import extent, number, param


@t7bridge.register_module(
    "my.Scale",
    params=(param("scale", field="gain"),),
    args=(extent("scale"), number("slope", 1.0)),
)
class Scale(torch.nn.Module):
    """Lua: `self.output:cmul(input, self.gain:expandAs(input)):mul(self.slope)`; `gain` is learned."""

    def __init__(self, features, slope):
        """Set the number of features and the slope."""
        super().__init__()
        self.slope = slope
        self.scale = torch.nn.Parameter(torch.ones(features))

    def forward(self, input):
        """Take (batch, features); return the same shape."""
        return input * self.scale * self.slope


gain = t7bridge.Tensor.from_numpy(np.array([1, 2, 3], dtype="float32"))
layer = t7bridge.TorchObject("my.Scale", 1, t7bridge.Table.of({"gain": gain, "slope": 2.0}))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "scale.t7"
    t7bridge.save(layer, path)
    module = t7bridge.load_module(path)

print(type(module).__name__, list(module.state_dict()))
print(module(torch.ones(1, 3)).tolist())
