"""Random PyTorch modules as Lua models at other sizes than the example's: real Lua computes the same, or refuses.

    python fuzz/fuzz_sizes.py --lua th --count 100 --sizes 20
    python fuzz/fuzz_sizes.py --lua th --drawn 0.8 --count 100     # most blocks with random arguments
    python fuzz/fuzz_sizes.py --lua th --seed 5 --only 17          # one module again

Modules are chains of blocks, many of which depend on sizes: padding to a multiple, branches, slices, sequences. Each is
saved with one example, and run by PyTorch and by Lua with inputs of other sizes. A size that only PyTorch takes is
refused, which is counted; one that only Lua takes is reported apart; another result is a difference. `load_module` and
`model.py` of the written model must compute the same, or refuse.
"""

from __future__ import annotations

import argparse
import random
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from fuzz_blocks import RANKS, WIDTH, drawn
from torch import Tensor, nn

import t7bridge
from t7bridge.data import define
from t7bridge.errors import T7BridgeError

_TOGETHER = 25
"""Models that one Lua process runs."""

_SHARE_OF_DOUBLES = 0.1
"""How many modules compute in double precision."""

_RATE = 0.05
"""Learning rate of the step of training."""

_SCRIPT = """
require 'nn' require 'nngraph'
-- The outputs in training, the gradient of the input, and the outputs in evaluation after a step of descent.
function trained(model, input)
   local parameters, gradients = model:getParameters()
   model:training()
   model:zeroGradParameters()
   local output = model:forward(input)
   local outputs = torch.isTensor(output) and {{output}} or output
   local results, weights = {{}}, {{}}
   for index, value in ipairs(outputs) do
      results[index] = value:clone():double()
      local count = value:nElement()
      weights[index] = (count > 1 and torch.linspace(-1, 1, count) or torch.Tensor{{-1}}):typeAs(value):viewAs(value)
   end
   results[#results + 1] = model:backward(input, torch.isTensor(output) and weights[1] or weights):clone():double()
   if parameters:dim() > 0 then parameters:add(-{rate}, gradients) end
   model:evaluate()
   output = model:forward(input)
   outputs = torch.isTensor(output) and {{output}} or output
   for _, value in ipairs(outputs) do results[#results + 1] = value:clone():double() end
   return results
end
for _, number in ipairs({{{numbers}}}) do
   local folder = '{folder}/' .. number .. '/'
   local classes = io.open(folder .. 'layers.lua')
   if classes then
      classes:close()
      dofile(folder .. 'layers.lua')
   end
   local case = torch.load(folder .. 'in.t7')
   local model = torch.load(folder .. 'model.t7')
   model:evaluate()
   local results = {{}}
   for place, input in ipairs(case) do
      if #input == 1 then input = input[1] end
      local works, output = pcall(function() return model:forward(input) end)
      if not works then
         results[place] = tostring(output):sub(1, 2000)
      else
         if torch.isTensor(output) then output = {{output}} end
         results[place] = {{}}
         for index, value in ipairs(output) do results[place][index] = value:clone():double() end
      end
   end
   torch.save(folder .. 'out.t7', results)
   if {grads} then
      local input = #case[1] == 1 and case[1][1] or case[1]
      local works, step = pcall(trained, model, input)
      torch.save(folder .. 'trained.t7', works and step or tostring(step):sub(1, 2000))
   end
end
"""


class Block(nn.Module):
    """A function of values with layers of its own."""

    def __init__(self, name: str, function: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.function = function
        for key, layer in layers.items():
            self.add_module(key, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function."""
        return self.function(self, x)

    def extra_repr(self) -> str:
        """Return the name."""
        return self.name


def _padded_as_tensorflow(x: Tensor, kernel: int, stride: int) -> Tensor:
    pads = [max((-(-extent // stride) - 1) * stride + kernel - extent, 0) for extent in x.shape[2:]]
    return F.pad(x, [part for pad in reversed(pads) for part in (pad // 2, pad - pad // 2)])


def _padded_to_multiple(x: Tensor, number: int) -> Tensor:
    return F.pad(x, (0, -x.shape[-1] % number))


def _attended(block: Any, x: Tensor) -> Tensor:
    """Attention with two heads over the second dimension."""
    batch, steps, width = x.shape
    q, k, v = (part.view(batch, steps, 2, width // 2).transpose(1, 2) for part in block.line(x).chunk(3, 2))
    made = F.scaled_dot_product_attention(q, k, v)
    return x + made.transpose(1, 2).reshape(batch, steps, width)


def _filled(block: Any, x: Tensor) -> Tensor:
    made = torch.zeros_like(x)
    made[:, :2] = x[:, 1:3]
    made[:, 2:] += x[:, :2] * 2
    return made


def _placed(block: Any, x: Tensor) -> Tensor:
    return x + block.place(torch.arange(x.shape[1]))[None]


IMAGES: dict[str, Callable[[], Block]] = {
    "conv": lambda: Block("conv", lambda b, x: b.l(x), l=nn.Conv2d(WIDTH, WIDTH, 3, padding=1)),
    "strided": lambda: Block("strided", lambda b, x: b.l(x), l=nn.Conv2d(WIDTH, WIDTH, 3, 2, 1)),
    "depthwise": lambda: Block("depthwise", lambda b, x: b.l(x), l=nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)),
    "tensorflow": lambda: Block(
        "tensorflow", lambda b, x: b.l(_padded_as_tensorflow(x, 3, 2)), l=nn.Conv2d(WIDTH, WIDTH, 3, 2)
    ),
    "multiple": lambda: Block("multiple", lambda b, x: _padded_to_multiple(x, 4)),
    "pool": lambda: Block("pool", lambda b, x: F.max_pool2d(x, 2)),
    "ceil": lambda: Block("ceil", lambda b, x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True)),
    "mean": lambda: Block("mean", lambda b, x: F.avg_pool2d(x, 2)),
    "branch": lambda: Block("branch", lambda b, x: F.avg_pool2d(x, 2) if x.shape[-1] > 14 else x * 2),
    "one": lambda: Block("one", lambda b, x: x * 3 if x.shape[0] == 1 else x + 1),
    "cut": lambda: Block("cut", lambda b, x: x[:, :, :14]),
    "crop": lambda: Block("crop", lambda b, x: x[:, :, 1:, 1:-1]),
    "last": lambda: Block("last", lambda b, x: x[..., -3:]),
    "steps": lambda: Block("steps", lambda b, x: x[:, :, ::2]),
    "wide": lambda: Block("wide", lambda b, x: F.interpolate(x, scale_factor=2)),
    "smooth": lambda: Block("smooth", lambda b, x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "scales": lambda: Block("scales", lambda b, x: x + F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0)),
    "like": lambda: Block("like", lambda b, x: x + F.interpolate(F.max_pool2d(x, 2), size=x.shape[2:])),
    "gate": lambda: Block("gate", lambda b, x: x * x.mean((2, 3), keepdim=True).sigmoid()),
    "rows": lambda: Block("rows", lambda b, x: x - x.mean(3, keepdim=True) + x.amax(1, keepdim=True)),
    "group": lambda: Block("group", lambda b, x: b.l(x), l=nn.GroupNorm(2, WIDTH)),
    "instance": lambda: Block("instance", lambda b, x: b.l(x), l=nn.InstanceNorm2d(WIDTH, affine=True)),
    "batch": lambda: Block("batch", lambda b, x: b.l(x), l=nn.BatchNorm2d(WIDTH)),
    "spread": lambda: Block("spread", lambda b, x: x / (x.std((2, 3), keepdim=True) + 1)),
    "share": lambda: Block("share", lambda b, x: x / x.shape[2]),
    "soft": lambda: Block("soft", lambda b, x: x.flatten(2).softmax(2).view_as(x) + x),
    "shuffle": lambda: Block(
        "shuffle", lambda b, x: x.view(x.shape[0], 2, 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
    ),
    "blocks": lambda: Block(
        "blocks",
        lambda b, x: x.view(x.shape[0], WIDTH, x.shape[2] // 2, 2, x.shape[3] // 2, 2).mean((3, 5)),
    ),
    "flip": lambda: Block("flip", lambda b, x: x.flip(3) + x),
    "reflect": lambda: Block("reflect", lambda b, x: F.pad(x, (2, 1, 1, 2), mode="reflect")),
    "filled": lambda: Block("filled", _filled),
    "inplace": lambda: Block("inplace", lambda b, x: F.relu_(x * 1).add_(x[:, :1]).clamp_(max=2)),
    "turned": lambda: Block("turned", lambda b, x: x.transpose(2, 3)),
    "square": lambda: Block("square", lambda b, x: x + x.transpose(2, 3)),
    "counted": lambda: Block("counted", lambda b, x: x * x.new_ones(x.shape[0], 1, x.shape[2], x.shape[3])),
    "where": lambda: Block("where", lambda b, x: torch.where(x > 0.3, x, x.mean((2, 3), keepdim=True))),
    "normed": lambda: Block("normed", lambda b, x: F.normalize(x)),
    "squeezed": lambda: Block("squeezed", lambda b, x: x * x.mean((2, 3)).squeeze()[..., None, None]),
}
SEQUENCES: dict[str, Callable[[], Block]] = {
    "line": lambda: Block("line", lambda b, x: b.l(x), l=nn.Linear(WIDTH, WIDTH)),
    "norm": lambda: Block("norm", lambda b, x: b.l(x), l=nn.LayerNorm(WIDTH)),
    "attention": lambda: Block("attention", _attended, line=nn.Linear(WIDTH, 3 * WIDTH)),
    "encoder": lambda: Block(
        "encoder", lambda b, x: b.l(x), l=nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0, batch_first=True)
    ),
    "lstm": lambda: Block("lstm", lambda b, x: b.l(x)[0], l=nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "gru": lambda: Block("gru", lambda b, x: b.l(x)[0], l=nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "signal": lambda: Block(
        "signal", lambda b, x: b.l(x.transpose(1, 2)).transpose(1, 2), l=nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
    ),
    "halved": lambda: Block("halved", lambda b, x: F.max_pool1d(x.transpose(1, 2), 2).transpose(1, 2)),
    "averaged": lambda: Block("averaged", lambda b, x: F.avg_pool1d(x.transpose(1, 2), 2).transpose(1, 2)),
    "cut": lambda: Block("cut", lambda b, x: x[:, :9]),
    "last": lambda: Block("last", lambda b, x: x[:, -2:]),
    "even": lambda: Block("even", lambda b, x: x[:, ::2]),
    "shift": lambda: Block("shift", lambda b, x: torch.cat([x[:, 1:], x[:, :1]], 1)),
    "residual": lambda: Block("residual", lambda b, x: x - x.mean(1, keepdim=True)),
    "share": lambda: Block("share", lambda b, x: x.sum(1, keepdim=True) / x.shape[1] + x),
    "branch": lambda: Block("branch", lambda b, x: x * 2 if x.shape[1] > 8 else x.tanh()),
    "places": lambda: Block("places", _placed, place=nn.Embedding(40, WIDTH)),
    "sums": lambda: Block("sums", lambda b, x: x.cumsum(1)),
    "causal": lambda: Block("causal", lambda b, x: F.scaled_dot_product_attention(x, x, x, is_causal=True) + x),
    "masked": lambda: Block("masked", lambda b, x: x.masked_fill(x < 0, -0.5)),
    "products": lambda: Block("products", lambda b, x: torch.einsum("bij,bkj->bik", x, x).softmax(2) @ x),
    "twice": lambda: Block("twice", lambda b, x: torch.cat([x, x.flip(2)], 1)),
    "merged": lambda: Block("merged", lambda b, x: b.l(x.reshape(-1, WIDTH)).view(x.shape), l=nn.Linear(WIDTH, WIDTH)),
    "pairs": lambda: Block("pairs", lambda b, x: x.reshape(x.shape[0], -1, 2, WIDTH).mean(2)),
    "filled": lambda: Block("filled", lambda b, x: _started(x)),
    "weights": lambda: Block("weights", lambda b, x: (x.mean(2).softmax(1)[:, None] @ x) + x),
}


def _started(x: Tensor) -> Tensor:
    made = x.new_zeros(x.shape[0], x.shape[1], WIDTH)
    made[:, 1:] = x[:, :-1]
    return made


ENDS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "mean": lambda x: x.mean(tuple(range(2, x.dim()))) if x.dim() > 2 else x,
    "sum": lambda x: x.sum(1),
    "two": lambda x: (x, x.amax(-1)),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (2, 1)).flatten(1) if x.dim() == 4 else x.amax(1),
}


class Chain(nn.Module):
    """Blocks one after another."""

    def __init__(self, blocks: list[Block], end: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.end = end

    def forward(self, x: Tensor) -> Any:
        """Apply the blocks, and the end."""
        for block in self.blocks:
            x = block(x)
        return ENDS[self.end](x)


def module_of(choose: random.Random, share_drawn: float) -> tuple[Chain, list[int]]:
    """Return a random module and the sizes of its example.

    Args:
        choose: the source of randomness.
        share_drawn: the share of blocks with random arguments.
    """
    kind = choose.choices([*RANKS], _SHARES)[0]
    table = {"image": IMAGES, "sequence": SEQUENCES}.get(kind)
    blocks: list[Block] = []
    for _ in range(choose.randint(1, 4)):
        if table is None or choose.random() < share_drawn:
            name, (function, layers) = drawn(choose, kind)
            blocks.append(Block(name, function, **layers))
        else:
            blocks.append(table[choose.choice([*table])]())
    batch = choose.choice((1, 2, 3))
    extents = [choose.choice((4, 5, 6) if kind == "volume" else (8, 9, 12, 16)) for _ in range(RANKS[kind] - 2)]
    if kind == "image" and choose.random() < 0.5:
        extents[1] = extents[0]
    sizes = [batch, extents[0], WIDTH] if kind == "sequence" else [batch, WIDTH, *extents]
    ends = [*ENDS] if kind != "rows" else ["none"]  # which has no dimension to spare
    return Chain(blocks, choose.choice(ends)).eval(), sizes


_SHARES = (5, 3, 1, 1, 1)
"""How often each kind of inputs is drawn, in the order of `RANKS`."""


def other_sizes(sizes: list[int], choose: random.Random) -> list[int]:
    """Return other sizes of the example: batches, and extents but those of features."""
    features = 2 if len(sizes) == 3 and sizes[1] != WIDTH else 1
    extents = [
        extent if place == features else choose.choice((extent, extent + 1, extent + 2, 2 * extent, 7, 10, 13, 15, 18))
        for place, extent in enumerate(sizes)
    ]
    if choose.random() < 0.3 and len(sizes) == 4:
        extents[3] = extents[2]
    return [choose.randint(1, 4), *extents[1:]]


def listed(value: Any) -> list[Tensor]:
    """Return outputs as a list."""
    return [*value] if isinstance(value, (tuple, list)) else [value]


def results_of(model: nn.Module, inputs: list[Tensor]) -> list[Any]:
    """Return the outputs of a model for each input as a list; for one that it refuses, the error as text."""
    results: list[Any] = []
    for value in inputs:
        try:
            with torch.no_grad():
                results.append(listed(model(value.clone())))
        except Exception as error:  # PyTorch raises anything
            results.append(f"{type(error).__name__}: {error}")
    return results


def verdict(wanted: Any, found: Any) -> str:
    """Compare the outputs of two models, each a list, or the text of an error."""
    if isinstance(found, str):
        return "both refuse" if isinstance(wanted, str) else "refused"
    if isinstance(wanted, str):
        return "accepted alone"
    if len(found) != len(wanted):
        return "DIFFERENT: number of outputs"
    for mine, theirs in zip(wanted, found):
        if mine.numel() != theirs.numel() or (mine.dim() and mine.shape != theirs.shape):
            return f"DIFFERENT: shape {tuple(theirs.shape)} for {tuple(mine.shape)}"
        one = mine.double()
        other = theirs.double().reshape(mine.shape)
        tolerance = 1e-4 * max(1.0, _largest(one))
        if not torch.allclose(one, other, rtol=0, atol=tolerance, equal_nan=True):
            return f"DIFFERENT: by {(one - other).abs().max().item()}"
    return "right"


def _largest(tensor: Tensor) -> float:
    """Return the largest magnitude of the finite elements, 0 if there is none."""
    finite = tensor[tensor.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


@define
class Case:
    """A module that was saved, and what PyTorch computes.

    Args:
        number: of the module, with which the seed makes it again.
        module: the module.
        inputs: the example, and inputs of other sizes.
        wanted: the module's outputs for each.
        folder: with the Lua model.
        notes: what the report said of sizes.
    """

    number: int
    module: Chain
    inputs: list[Tensor]
    wanted: list[Any]
    folder: Path
    notes: str

    def judge(self, name: str, found: list[Any], counts: Counter[str]) -> None:
        """Compare the outputs of another model with the module's: count the verdicts, and print those that are wrong.

        Args:
            name: of that model.
            found: its outputs for each input.
            counts: receives the verdicts.
        """
        verdicts = [verdict(*pair) for pair in zip(self.wanted, found)]
        title = f"{self.number} {name} {[block.name for block in self.module.blocks]} {self.module.end}"
        sizes = [list(value.shape) for value in self.inputs]
        if verdicts[0] != "right":
            counts["example not right"] += 1
            why = found[0][:300] if isinstance(found[0], str) else ""
            print(f"{title}: EXAMPLE {sizes[0]}: {verdicts[0]} {why}", flush=True)
        for shape, answer in zip(sizes[1:], verdicts[1:]):
            counts[f"{name}: {answer.partition(':')[0]}"] += 1
            if answer.startswith(("DIFFERENT", "accepted alone")):
                print(f"{title}: {answer} example {sizes[0]} at {shape}; {self.notes}", flush=True)
            counts["DIFFERENT"] += answer.startswith("DIFFERENT")
        counts[f"{name}: modules with other sizes"] += "right" in verdicts[1:]


def made(number: int, options: argparse.Namespace, folder: Path, counts: Counter[str]) -> Case | None:
    """Make a module and save it; return `None` if PyTorch does not run it, or it has no Lua model.

    Args:
        number: of the module.
        options: of the command line.
        folder: of the new model.
        counts: receives what was not exported.
    """
    choose = random.Random(f"{options.seed} {number}")
    torch.manual_seed(choose.randrange(1 << 31))
    try:
        module, sizes = module_of(choose, options.drawn)
        dtype = torch.float64 if choose.random() < _SHARE_OF_DOUBLES else torch.float32
        module.to(dtype)
        example = torch.randn(sizes, dtype=dtype)
        with torch.no_grad():
            outputs = listed(module(example.clone()))
    except Exception:  # arguments that do not fit
        return None
    if not all(output.is_floating_point() and output.numel() and output.isfinite().all() for output in outputs):
        return None
    folder.mkdir()
    path = folder / "model.t7"
    names = [block.name for block in module.blocks]
    try:
        allow = ("layers",) if choose.random() < 0.6 else ()
        report = t7bridge.save_module(module, path, example_inputs=example, allow=allow)
    except T7BridgeError as error:
        counts["not exported"] += 1
        if options.show:
            print(number, "not exported", names, str(error)[:300].replace("\n", " "))
        return None
    except Exception as error:
        counts["DIFFERENT"] += 1
        print(f"{number} {names}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return None
    inputs = [example, *(torch.randn(other_sizes(sizes, choose), dtype=dtype) for _ in range(options.sizes))]
    notes = " ".join(note.message for note in report.notes if note.code == "fixed-sizes")
    t7bridge.save([[t7bridge.Tensor.from_numpy(value.numpy())] for value in inputs], folder / "in.t7")
    return Case(number, module, inputs, results_of(module, inputs), folder, notes)


def of_python(case: Case, counts: Counter[str]) -> None:
    """Compare the live module and the page of a case's Lua model with its module."""
    path = case.folder / "model.t7"
    try:
        live = t7bridge.load_module(path).eval()
        t7bridge.write_module(path, case.folder / "page")
    except T7BridgeError as error:
        counts["no module of it"] += 1
        print(f"{case.number} no module of it: {str(error)[:300]}", flush=True)
        return
    case.judge("live", results_of(live, case.inputs), counts)
    source = case.folder / "page" / "model.py"
    page = ModuleType("model")
    page.__file__ = str(source)
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec", dont_inherit=True), vars(page))
    case.judge("page", results_of(page.load(), case.inputs), counts)


def trained(module: nn.Module, example: Tensor) -> list[Tensor] | str:
    """Return what the Lua script's function of this name returns; the error as text if PyTorch cannot train here."""
    module = deepcopy(module).train()
    for inner in module.modules():
        if isinstance(inner, nn.modules.instancenorm._InstanceNorm) and inner.track_running_stats:
            return "Lua normalizes by the running statistics in training, too, of which a note tells"
        # nn's layer takes its running statistics for a batch of one, in training too.
        if isinstance(inner, nn.modules.batchnorm._BatchNorm) and len(example) == 1:
            inner.eval()
    example = example.clone().requires_grad_()
    try:
        outputs = listed(module(example))
        loss = sum((value.flatten() * torch.linspace(-1, 1, value.numel())).sum() for value in outputs)
        parameters = [*module.parameters()]
        gradient, *gradients = torch.autograd.grad(loss, [example, *parameters], allow_unused=True)
        with torch.no_grad():
            for parameter, direction in zip(parameters, gradients):
                if direction is not None:
                    parameter -= _RATE * direction
            after = listed(module.eval()(example))
    except Exception as error:  # such as a normalization of one value
        return f"{type(error).__name__}: {error}"
    return [value.detach() for value in (*outputs, torch.zeros_like(example) if gradient is None else gradient, *after)]


def judge_training(case: Case, counts: Counter[str]) -> None:
    """Compare a step of training in Lua with PyTorch's: count the verdict, and print one that is wrong."""
    found: Any = t7bridge.load(case.folder / "trained.t7")
    if isinstance(found, (str, bytes)):
        found = str(found)
    else:
        found = [torch.from_numpy(value.numpy().copy()) for value in found.as_list()]
    wanted = trained(case.module, case.inputs[0])
    if isinstance(wanted, str):
        counts["training: PyTorch refuses"] += 1
        return
    answer = verdict(wanted, found)
    counts[f"training: {answer.partition(':')[0]}"] += 1
    if answer == "right":
        return
    counts["DIFFERENT"] += 1
    parts = (
        [verdict([one], [other]) for one, other in zip(wanted, found)] if not isinstance(found, str) else found[:600]
    )
    names = [block.name for block in case.module.blocks]
    print(f"{case.number} training {names} {case.module.end}: {answer} {parts}", flush=True)


def of_lua(path: Path) -> list[Any]:
    """Return the outputs that the Lua script wrote for one model."""
    results: list[Any] = []
    for found in t7bridge.load(path).as_list():
        if isinstance(found, (str, bytes)):
            results.append(str(found))
        else:
            results.append([torch.from_numpy(value.numpy().copy()) for value in found.as_list()])
    return results


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; exit code 1 if there was a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lua", default="th", help="the command that runs a Lua script with Torch")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--sizes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drawn", type=float, default=0.5, help="share of blocks with random arguments")
    parser.add_argument("--grads", action="store_true", help="compare a step of training, too")
    parser.add_argument("--only", type=int, help="one module, by its number")
    parser.add_argument("--show", action="store_true", help="print what is not exported")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    began = time.monotonic()
    numbers = range(1, options.count + 1) if options.only is None else [options.only]
    # Lua runs the models of some at a time.
    for start in range(0, len(numbers), _TOGETHER):
        with tempfile.TemporaryDirectory() as folder:
            cases: list[Case] = []
            for number in numbers[start : start + _TOGETHER]:
                case = made(number, options, Path(folder) / str(number), counts)
                if case is not None:
                    cases.append(case)
                    of_python(case, counts)
            script = Path(folder) / "run.lua"
            listed_numbers = ", ".join(str(case.number) for case in cases)
            script.write_text(
                _SCRIPT.format(numbers=listed_numbers, folder=folder, rate=_RATE, grads=str(options.grads).lower())
            )
            subprocess.run([*shlex.split(options.lua), str(script)], check=True)
            for case in cases:
                case.judge("Lua", of_lua(case.folder / "out.t7"), counts)
                if options.grads:
                    judge_training(case, counts)
            counts["modules"] += len(cases)
        print(dict(counts), f"{time.monotonic() - began:.0f} s", flush=True)
    wrong = counts["DIFFERENT"] + counts["example not right"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
