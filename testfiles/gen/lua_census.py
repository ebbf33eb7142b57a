"""Census of torchvision's classification and segmentation models: what stock Lua Torch computes on them, a line each.

    python testfiles/gen/lua_census.py th OUT.jsonl [MODEL[:float32] …]

`th` is Lua Torch with torch7, nn and nngraph. Weights are random; those that begin as zeros or nearly so, which would
hide what is behind them, are made uniform, and moving means and variances are those of one batch. Models are run in
float64, where the rounding of deep networks does not cover a wrong number, unless float32 is asked for.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

LIBRARY = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):  # what a build for other processors lacks
    LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import torchvision.models as models  # noqa: E402
from torchvision.models import segmentation  # noqa: E402

import t7bridge  # noqa: E402
from t7bridge import Table, Tensor  # noqa: E402

MODELS = (
    *("alexnet", "vgg11", "vgg11_bn", "vgg16", "vgg19_bn", "squeezenet1_0", "squeezenet1_1"),
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnext50_32x4d", "wide_resnet50_2"),
    *("densenet121", "densenet169", "densenet201", "googlenet", "inception_v3", "mobilenet_v2"),
    *("mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5", "mnasnet1_0", "shufflenet_v2_x0_5"),
    *("shufflenet_v2_x1_0", "efficientnet_b0", "efficientnet_b1", "efficientnet_v2_s", "regnet_x_400mf"),
    *("regnet_y_400mf", "regnet_y_800mf", "convnext_tiny", "convnext_small", "vit_b_16", "vit_b_32"),
    *("swin_t", "swin_v2_t", "maxvit_t", "fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50"),
    *("deeplabv3_resnet101", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"),
)
SIZES = {"inception_v3": 75, "vit_b_16": 224, "vit_b_32": 224, "maxvit_t": 224}


def built(name: str, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model with weights that hide nothing, and an input."""
    torch.manual_seed(1)
    if hasattr(segmentation, name):
        model = getattr(segmentation, name)(weights=None, weights_backbone=None)
    else:
        plain = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        model = getattr(models, name)(weights=None, **plain)
    size = SIZES.get(name, 64)
    for parameter in model.parameters():
        if parameter.detach().abs().max() < 1e-4:
            parameter.data.uniform_(-0.1, 0.1)
    norms = [inner for inner in model.eval().modules() if isinstance(inner, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum, norm.training = None, True
    if norms:
        with torch.no_grad():
            model(torch.randn(2, 3, size, size))
    for norm in norms:
        norm.momentum, norm.training = 0.1, False
    return model.to(dtype), torch.randn(1, 3, size, size, dtype=dtype)


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors of an output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in (value.values() if isinstance(value, dict) else value) for tensor in flat(item)]


def plain(tensor: torch.Tensor) -> Tensor:
    """A tensor as Lua has it."""
    return Tensor.from_numpy(tensor.detach().reshape(tensor.shape or (1,)).contiguous().numpy())


def packed(values: list[torch.Tensor]) -> object:
    """One tensor, or a table of several."""
    return plain(values[0]) if len(values) == 1 else Table.from_list([plain(value) for value in values])


def counted(name: str, dtype: torch.dtype, th: str) -> dict[str, Any]:
    """Save a model, run it in Lua, and return what was found."""
    model, value = built(name, dtype)
    line: dict[str, Any] = {"name": name, "dtype": str(dtype)[6:], "input": "x".join(map(str, value.shape))}
    with tempfile.TemporaryDirectory() as folder:
        start = time.time()
        t7bridge.save_module(model, f"{folder}/model.t7", example_inputs=value)
        line["export"] = round(time.time() - start, 1)
        outputs = flat(model(value.requires_grad_()))
        generator = torch.Generator().manual_seed(1)
        slopes = [torch.randn(output.shape, generator=generator, dtype=dtype) for output in outputs]
        torch.autograd.backward(outputs, slopes)
        assert value.grad is not None
        grads = {
            key: plain(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
            for key, parameter in model.named_parameters()
        }
        case = {"input": plain(value), "output": packed(outputs), "gradOutput": packed(slopes)}
        case |= {"gradInput": plain(value.grad), "gradients": Table.of(grads)}
        t7bridge.save(Table.of(case), f"{folder}/case.t7")
        line["largest"] = {"output": max(float(output.detach().abs().max()) for output in outputs)}
        line["largest"]["gradInput"] = float(value.grad.abs().max())
        del model, case, grads, outputs, value
        gc.collect()
        start = time.time()
        script = str(Path(__file__).with_suffix(".lua"))
        ran = subprocess.run(
            [th, script, f"{folder}/model.t7", f"{folder}/case.t7"], capture_output=True, text=True, check=False
        )
        line["lua"] = round(time.time() - start, 1)
    words = (ran.stdout.strip().splitlines() or [""])[-1].split()
    if len(words) == 4:
        line |= dict(zip(("output", "gradInput", "gradWeight", "saved"), map(float, words)))
        line["agrees"] = line["output"] < 1e-5 and max(line["gradInput"], line["gradWeight"]) < 1e-4
    else:
        line |= {"agrees": False, "error": (ran.stderr or ran.stdout)[-500:]}
    return line


if __name__ == "__main__":
    for asked in sys.argv[3:] or MODELS:
        called, _, kind = asked.partition(":")
        try:
            result = counted(called, getattr(torch, kind or "float64"), sys.argv[1])
        except t7bridge.T7BridgeError as error:
            result = {"name": called, "agrees": False, "error": str(error)}
        print(json.dumps(result), flush=True)
        with open(sys.argv[2], "a", encoding="utf-8") as log:
            log.write(json.dumps(result) + "\n")
