"""Random recurrent cells made and run by Lua Torch, most with something changed, through what recognizes cells.

    python fuzz/fuzz_cells.py --th /path/to/th --seed 1 --count 2000 --findings findings
    python fuzz/fuzz_cells.py cells.t7

A module whose cells are recognized must compute what Lua did, and what it computes unrecognized, also after a step of
training; so must its `model.py`, whose weights must return to the original file's bytes. Exits with 1 if there was a
difference.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fuzz_networks import keep, records, written
from runtime_helpers import as_torch, copied, leaves, step_differences, steps_of

import t7bridge
from t7bridge.codegen.generate import generate
from t7bridge.torchmodules.build import live_module

GENERATOR = Path(__file__).resolve().parent.parent / "testfiles" / "gen" / "random_cells.lua"
EXACT = 1e-9


def cells_of(module: torch.nn.Module) -> Counter[str]:
    """Count the recognized cells of a module by class."""
    names = (type(each).__name__ for each in module.modules())
    return Counter(name for name in names if name.endswith("Cell") or "Highway" in name or "Attention" in name)


def trained(module: torch.nn.Module, record: dict[str, Any]) -> list[torch.Tensor]:
    """Return the gradients of the inputs, and the outputs after a step of training of all weights but biases.

    One bias of Lua is two in PyTorch, which learn twice as fast.
    """
    inputs = as_torch(record["inputs"])
    floating = [tensor.requires_grad_() for tensor in leaves(inputs) if tensor.is_floating_point()]
    outputs = [tensor for tensor in leaves(module(copied(inputs))) if tensor.requires_grad]
    loss = sum((tensor * torch.linspace(-1, 1, tensor.numel()).reshape(tensor.shape)).sum() for tensor in outputs)
    gradients: list[torch.Tensor] = []
    if outputs:
        loss.backward()  # type: ignore[union-attr]
        gradients = [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in floating]
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.grad is not None and "bias" not in name:
                parameter -= 0.1 * parameter.grad
        return gradients + leaves(module(copied(as_torch(record["inputs"]))))


def far(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> str:
    """Return where tensors differ, or nothing."""
    if [each.shape for each in found] != [each.shape for each in wanted]:
        return "other shapes"
    for number, (one, other) in enumerate(zip(found, wanted), 1):
        if not torch.allclose(one, other, rtol=EXACT, atol=EXACT, equal_nan=True):
            return f"tensor {number} off by {(one - other).abs().max():.3g}"
    return ""


def lacks_biases(record: dict[str, Any]) -> bool:
    """Return whether only some layers of a cell have a bias, which therefore stay."""
    notes = generate(record["model"], only_keys=True).notes
    return any("only some of its layers have a bias" in note.message for note in notes)


def attempt(what: str, check: Any) -> Iterator[str]:
    """Yield the first difference that a check returns, or its exception."""
    try:
        for why in check():
            yield f"{what}: {why}"
            break
    except Exception as error:
        yield f"{what}: {type(error).__name__}: {str(error)[:300]}"


def check(record: dict[str, Any], folder: Path, pages: bool, counts: Counter[str]) -> Iterator[str]:
    """Yield each difference of a record."""

    def plain() -> list[str]:
        return step_differences(live_module(record["model"], "root"), record, EXACT, EXACT)

    broken = list(attempt("unrecognized", plain))
    if broken:
        yield from broken
        return
    try:
        module = live_module(record["model"], "root", lift=True)
    except Exception as error:
        yield f"recognition: {type(error).__name__}: {str(error)[:300]}"
        return
    found, kind, expected = sum(cells_of(module).values()), record["kind"].decode(), record["expected"].decode()
    counts[f"{kind}: {expected}"] += 1
    counts[f"{kind}: {expected}, recognized"] += found == record["cells"]
    counts[f"{kind}: {expected}, some"] += 0 < found < record["cells"]
    if expected == "same" and found != record["cells"] and not lacks_biases(record):
        counts[f"{kind}: missed"] += 1
        if pages:
            yield f"missed: {found} of {record['cells']:.0f}"
    if found:
        yield from attempt("steps", lambda: step_differences(module, record, EXACT, EXACT))
        yield from attempt("training", lambda: training(record))
        yield from attempt("draws", lambda: draws(record))
    if pages and found:
        yield from attempt("page", lambda: page(record, folder))


def training(record: dict[str, Any]) -> Iterator[str]:
    """Compare both modules after a step of training, if layers in place allow it."""
    try:
        wanted = trained(live_module(record["model"], "root"), record)
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        return
    why = far(trained(live_module(record["model"], "root", lift=True), record), wanted)
    if why:
        yield why


def draws(record: dict[str, Any]) -> Iterator[str]:
    """Compare both modules in training, with the same random numbers."""
    outputs = []
    for lift in (False, True):
        module = live_module(record["model"], "root", lift=lift).train()
        torch.manual_seed(0)
        try:
            outputs.append(leaves([output for _, output in steps_of(module, record)]))
        except ValueError as error:
            if lift or "more than 1 value per channel" not in str(error):
                raise
            return
    why = far(*outputs)
    if why:
        yield why


def page(record: dict[str, Any], folder: Path) -> Iterator[str]:
    """Compare the `model.py` of a record, and its weights on their way back."""
    yield from step_differences(written(record, folder)(), record, EXACT, EXACT)
    back = folder / "back.t7"
    t7bridge.convert(folder / "model.pt", back, template=folder / "model.t7", force=True)
    if back.read_bytes() != (folder / "model.t7").read_bytes():
        yield "the way back has other bytes"


def generated(options: argparse.Namespace, folder: Path) -> Iterator[Path]:
    """Generate files of fifty records with Lua."""
    for at in range(0, options.count, 50):
        seed = options.seed * 1_000_000 + at
        path = folder / f"cells_{seed}.t7"
        command = [options.th, str(GENERATOR), str(seed), str(min(50, options.count - at)), str(path), *options.only]
        if subprocess.run(command, capture_output=True, timeout=600).returncode == 0 and path.exists():
            yield path
            path.unlink()
        else:
            print(f"{seed}: Lua fails", flush=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--th", default="th", help="the interpreter of Lua Torch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="kinds and changes, by their names in the generator")
    parser.add_argument("--live", action="store_true", help="live modules only")
    parser.add_argument("--findings", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    tried = found = 0
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for path in chain(options.files, generated(options, Path(folder))):
            for number, record in enumerate(records(path), 1):
                tried += 1
                changes = ", ".join(change.decode() for change in record["changes"].sequence() or []) or "unchanged"
                for why in check(record, Path(folder), not options.live, counts):
                    found += 1
                    text = f"{why} | {record['expected'].decode()}: {changes} | {record['text'].decode()}"
                    print(f"{path.name}[{number}] {text}", flush=True)
                    if options.findings:
                        keep(path, number, record, options.findings, f"{why} | {changes}")
            print(f"{tried} cells, {found} differences, {time.monotonic() - began:.0f} s", flush=True)
    for name in sorted(counts):
        print(f"{counts[name]:6} {name}")
    print(f"{tried} cells, {found} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
