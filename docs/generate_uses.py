"""Make the first table of `docs/live-modules.md`: what PyTorch does with live modules and with `model.py`.

    python docs/generate_uses.py

A test makes the table again, so that each cell is what happened.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

import t7bridge

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/live-modules.md"
MARKS = "<!-- uses -->\n", "<!-- end of uses -->\n"
MODELS = {
    "unet_nngraph": "a U-Net of nngraph",
    "char_lstm_nngraph": "a step of a char-rnn, with a table of states",
    "lenet_mm": "a LeNet, whose `nn.Reshape` tells batches by the number of elements",
}
Arguments = tuple[Any, ...]


def check(computed: Any, expected: Any) -> None:
    """Compare outputs, however they are nested.

    Raises:
        ValueError: they differ.
    """
    pairs = zip(tree_leaves(computed), tree_leaves(expected), strict=True)
    if not all(torch.allclose(one, other, atol=1e-4) for one, other in pairs):
        raise ValueError("computes something else")


def deepcopy(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Return what a deep copy computes."""
    return copy.deepcopy(model)(*arguments)


def trained(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Train with a part frozen, and load the state dict strictly into a copy."""
    fresh = copy.deepcopy(model)
    model.train()
    next(model.parameters()).requires_grad_(False)
    optimizer = torch.optim.SGD([part for part in model.parameters() if part.requires_grad], 1e-3)
    sum(leaf.square().mean() for leaf in tree_leaves(model(*copy.deepcopy(arguments)))).backward()
    optimizer.step()
    model.eval()
    fresh.load_state_dict(model.state_dict(), strict=True)
    check(fresh(*copy.deepcopy(arguments)), model(*copy.deepcopy(arguments)))
    return None


def fx(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Trace symbolically, and take the value of a node in the middle."""
    return _taken(torch.fx.symbolic_trace(model), model, arguments)


class Leaves(torch.fx.Tracer):
    """A tracer that follows modules only into those that have others inside."""

    def is_leaf_module(self, module: torch.nn.Module, name: str) -> bool:
        """Return whether a call of the module is a node."""
        return not any(module.children())


def fx_leaves(model: torch.nn.Module, arguments: Arguments) -> Any:
    """As `fx`, with each layer as a node."""
    return _taken(torch.fx.GraphModule(model, Leaves().trace(model)), model, arguments)


def _taken(traced: torch.fx.GraphModule, model: torch.nn.Module, arguments: Arguments) -> Any:
    expected = model(*copy.deepcopy(arguments))
    check(traced(*copy.deepcopy(arguments)), expected)
    nodes = [node for node in traced.graph.nodes if node.op == "call_module"]
    output = next(node for node in traced.graph.nodes if node.op == "output")
    output.args = (nodes[len(nodes) // 2],)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    traced(*arguments)
    return expected


def script(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Return what a scripted module computes."""
    return torch.jit.script(model)(*arguments)


def trace(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Return what a module traced by an example computes."""
    with torch.no_grad():
        return torch.jit.trace(model, copy.deepcopy(arguments))(*arguments)


def compiled(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Return what a compiled module computes: its whole graph is captured, and not compiled by the compiler for C++."""
    torch._dynamo.reset()
    return torch.compile(model, backend="eager", fullgraph=True)(*arguments)


def export(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Return what an exported program computes."""
    return torch.export.export(model, copy.deepcopy(arguments)).module()(*arguments)


def export_batch(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Return what a program for any batch computes."""
    return _dynamic(model, arguments, 1)


def export_image(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Return what a program for any batch, height and width computes."""
    return _dynamic(model, arguments, 4)


def _dynamic(model: torch.nn.Module, arguments: Arguments, dims: int) -> Any:
    leaves, tree = tree_flatten(arguments)
    if dims > 1 and all(leaf.dim() < dims for leaf in leaves):
        return None  # no images
    places = [0] if dims == 1 else [0, 2, 3]
    shapes = [dict.fromkeys(places, torch.export.Dim.AUTO) for _ in leaves]
    program = torch.export.export(model, copy.deepcopy(arguments), dynamic_shapes=tree.unflatten(shapes))
    larger = [torch.cat([leaf, leaf]) for leaf in leaves]
    if dims > 1:  # twice the height and width, too
        larger = [leaf.repeat(1, 1, 2, 2) for leaf in larger]
    twice = tree.unflatten(larger)
    check(program.module()(*copy.deepcopy(twice)), model(*copy.deepcopy(twice)))
    return program.module()(*arguments)


def quantized(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Run with weights of 8 bits, which are near enough if nothing fails."""
    torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear, torch.nn.LSTMCell})(*arguments)
    return None


def quantized_fx(model: torch.nn.Module, arguments: Arguments) -> Any:
    """Quantize layers and what is between them, after a run that observes their ranges."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    prepared = prepare_fx(model, get_default_qconfig_mapping(), arguments)
    prepared(*copy.deepcopy(arguments))
    convert_fx(prepared)(*arguments)
    return None


USES: dict[str, Callable[[torch.nn.Module, Arguments], Any]] = {
    "`copy.deepcopy`, EMA copies": deepcopy,
    "training, frozen layers, `load_state_dict(strict=True)`": trained,
    "`torch.compile`": compiled,
    "`torch.export`": export,
    "`torch.export`, any batch": export_batch,
    "`torch.export`, any batch, height and width": export_image,
    "`torch.jit.trace`, under `torch.no_grad()`": trace,
    "`torch.ao.quantization.quantize_dynamic`": quantized,
    "`torch.fx.symbolic_trace`": fx,
    "`torch.fx`, each layer a node": fx_leaves,
    "`prepare_fx`, `convert_fx` of `torch.ao.quantization`": quantized_fx,
    "`torch.jit.script`": script,
}


def example(name: str) -> Any:
    """Return the input of a model that Lua recorded."""
    return t7bridge.to_torch(t7bridge.load(ROOT / f"testfiles/models/{name}.io.t7")["input"])


def program(name: str, folder: str) -> torch.nn.Module:
    """Return the model of the program that `module` writes."""
    t7bridge.write_module(ROOT / f"testfiles/models/{name}.t7", Path(folder, name))
    spec = importlib.util.spec_from_file_location(f"page_{name}", Path(folder, name, "model.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where TorchScript looks for its names
    spec.loader.exec_module(module)
    return module.load()  # type: ignore[no-any-return]


def works(use: Callable[..., Any], model: torch.nn.Module, arguments: Arguments) -> bool:
    """Return whether a tool takes a model, and what comes of it computes the same."""
    model = copy.deepcopy(model)
    expected = model(*copy.deepcopy(arguments))
    try:
        computed = use(model, copy.deepcopy(arguments))
        if computed is not None:
            check(computed, expected)
    except Exception:  # of any tool
        return False
    return True


def results(folder: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return for each use the models that do not work: live, and as programs."""
    failing: dict[str, tuple[list[str], list[str]]] = {use: ([], []) for use in USES}
    for name in MODELS:
        value = example(name)
        forms = (t7bridge.load_module(ROOT / f"testfiles/models/{name}.t7"), program(name, folder))
        for place, model in enumerate(forms):
            for text, use in USES.items():
                if not works(use, model, (value,)):
                    failing[text][place].append(name)
    return failing


def cell(failing: list[str]) -> str:
    """Return the text of a cell."""
    if not failing:
        return "yes"
    return "no" if len(failing) == len(MODELS) else f"yes, but not {', '.join(failing)}"


def table() -> str:
    """Return the table."""
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                failing = results(folder)
    finally:
        logging.disable(logging.NOTSET)
    rows = [f"| {use} | {cell(live)} | {cell(page)} |" for use, (live, page) in failing.items()]
    return "\n".join(["| | `load_module` | `model.py` of `module` |", "| --- | --- | --- |", *rows, ""])


def write_between(marks: tuple[str, str], lines: str) -> None:
    """Replace what is between two marks of the page."""
    start, end = marks
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{start}{lines}{end}{after}", "utf-8")


def main() -> None:
    """Write the table into the page."""
    write_between(MARKS, table())


if __name__ == "__main__":
    main()
