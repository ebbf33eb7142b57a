"""quantized_cases.py OUTDIR: whole modules with quantized layers, as `torch.save` pickles them, and their state dicts.

OUTDIR/quantized_static.pt, quantized_dynamic.pt, quantized_embedding.pt     the modules
OUTDIR/X_state.pt                                                            their state dicts
"""
import sys, warnings
from pathlib import Path
import torch
import torch.ao.quantization as quantization
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv, self.relu, self.bare = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 1, bias=False)
        self.add, self.linear = nn.quantized.FloatFunctional(), nn.Linear(12, 2)

    def forward(self, x):
        x = self.relu(self.conv(self.quant(x)))
        return self.dequant(self.linear(self.add.add(x, self.bare(x)).flatten(1)))


def save(out, name, module):
    torch.save(module, out / f"{name}.pt"); torch.save(module.state_dict(), out / f"{name}_state.pt")


if __name__ == "__main__":
    warnings.simplefilter("ignore"); torch.manual_seed(0)
    out = Path(sys.argv[1]); out.mkdir(parents=True, exist_ok=True)
    torch.backends.quantized.engine = "fbgemm" if "fbgemm" in torch.backends.quantized.supported_engines else "qnnpack"
    net = Net().eval(); net.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
    quantization.fuse_modules(net, [["conv", "relu"]], inplace=True)
    prepared = quantization.prepare(net); prepared(torch.randn(4, 2, 4, 4))
    save(out, "quantized_static", quantization.convert(prepared))
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    save(out, "quantized_dynamic", quantization.quantize_dynamic(layers, {nn.Linear}, dtype=torch.qint8))
    bags = nn.Sequential(nn.EmbeddingBag(5, 4)); bags[0].qconfig = quantization.float_qparams_weight_only_qconfig
    save(out, "quantized_embedding", quantization.convert(quantization.prepare(bags)))
