"""Random networks made and run by Lua Torch, through `load_module` and `model.py`.

    th testfiles/gen/random_nets.lua graph 7 50 nets.t7
    python fuzz/fuzz_networks.py nets.t7 --findings findings
    python fuzz/fuzz_networks.py --th /path/to/th --kind graph --seed 1 --count 5000

Outputs in evaluation and in training are compared with Lua's, and for live modules gradients too (`--grads`). Exits
with
1 if there was a difference; the records are in the folder of findings, one file each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from copy import deepcopy
from inspect import signature
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from runtime_helpers import as_torch, copied, difference, gradient_difference

import t7bridge
from t7bridge.formats.t7.writer import T7Writer
from t7bridge.torchmodules.build import live_module

GENERATOR = Path(__file__).resolve().parent.parent / "testfiles" / "gen" / "random_nets.lua"


def records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file: fields by name, as the reader returns them."""
    value = t7bridge.T7Reader(path).read_object()
    listed = value.sequence() or [value]
    return [{key.decode(): item for key, item in record.raw_items()} for record in listed]


def outputs(make: Any, record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Compare the outputs of a module, created anew for each mode: yield mode and difference, if any."""
    for mode, wanted in (("eval", "output"), ("again", "again"), ("train", "trainOutput")):
        if record.get(wanted) is None:
            continue
        try:
            torch.manual_seed(0)
            module = make().train(mode == "train")
            if mode == "again":
                module(copied(as_torch(record["input"])))
            found = module(copied(as_torch(record["input"])))
            yield mode, difference(found, as_torch(record[wanted]))
        except Exception as error:
            yield mode, f"{type(error).__name__}: {str(error)[:200]}"
    more = zip(as_torch(record.get("moreInputs")) or (), as_torch(record.get("moreOutputs")) or ())
    try:
        module = make().eval()
        for number, (input, wanted_output) in enumerate(more, 1):
            try:
                with torch.no_grad():
                    why = difference(module(copied(input)), wanted_output)
            except RuntimeError as error:
                # A page stacks the steps of a sequence for torch.nn, of which there has to be one.
                if "stack expects a non-empty TensorList" not in str(error):
                    raise
                continue
            if why:
                yield f"input {number}", why
                break
    except Exception as error:
        yield "more", f"{type(error).__name__}: {str(error)[:200]}"
    refused = as_torch(record.get("refusedInputs")) or ()
    module = make().eval() if refused else None
    for number, input in enumerate(refused, 1):
        try:
            with torch.no_grad():
                module(copied(input))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            pass  # as Lua
        except Exception as error:
            yield f"refused input {number}", f"{type(error).__name__}: {str(error)[:200]}"


def gradients(make: Any, record: dict[str, Any]) -> str:
    """Compare the gradients of inputs and parameters, in training."""
    if record.get("gradInput") is None:
        return ""
    wanted = {key: as_torch(record.get(key)) for key in ("gradOutput", "gradInput", "gradParameters")}

    class Copied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = make().train()

        def forward(self, input: Any) -> Any:
            return self.inside(copied(input))

    try:
        why = gradient_difference(Copied(), as_torch(record["input"]), wanted)
        # Lua lists each clone's share of one gradient, and packs the gates of recurrent layers otherwise.
        return "" if " parameters for " in why else why
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"


class Carried(torch.nn.Module):
    """Passes the state of a model on from call to call, and forgets it after a change of mode, as rnn's layers do."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.states = model, ()

    def train(self, mode: bool = True) -> Carried:
        """Set the mode."""
        self.states = self.states if mode == self.training else ()
        return super().train(mode)

    def forward(self, input: Any) -> Any:
        """Return the output alone."""
        output, *self.states = self.model(input, *self.states)
        return output


def written(record: dict[str, Any], folder: Path) -> Any:
    """Return a function that loads the `model.py` of a record."""
    path = folder / "model.t7"
    with open(path, "wb") as output:
        T7Writer(output).write_object(record["model"])
    t7bridge.write_module(path, folder, force=True)
    # An import would take two pages of one second and one length for the same.
    source = folder / "model.py"
    page = ModuleType("model")
    page.__file__ = str(source)
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec", dont_inherit=True), vars(page))
    is_stateful = "state" in signature(page.Model.forward).parameters
    return (lambda: Carried(page.load())) if is_stateful else page.load


def check(path: Path, grads: bool, source: bool) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield number, record and difference of each record of a file that does not agree."""
    with tempfile.TemporaryDirectory() as folder:
        for number, record in enumerate(records(path), 1):
            whole = live_module(record["model"], "root")

            def live(module: Any = whole) -> Any:
                return deepcopy(module)

            for mode, why in outputs(live, record):
                if why:
                    yield number, record, f"live {mode}: {why}"
            if grads:
                why = gradients(live, record)
                if why:
                    yield number, record, f"live grads: {why}"
            if not source:
                continue
            try:
                make = written(record, Path(folder))
            except Exception as error:
                yield number, record, f"model.py: {type(error).__name__}: {str(error)[:200]}"
                continue
            for mode, why in outputs(make, record):
                if why:
                    yield number, record, f"model.py {mode}: {why}"


def keep(path: Path, number: int, record: dict[str, Any], folder: Path, why: str) -> None:
    """Write a record to a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    root = t7bridge.T7Reader(path).read_object()
    value = (root.sequence() or [root])[number - 1]
    target = folder / f"{path.stem}_{number}"
    with open(target.with_suffix(".t7"), "wb") as output:
        T7Writer(output).write_object(value)
    with open(target.with_suffix(".txt"), "a") as text:
        text.write(f"{why}\n{record['text'].decode()}\n")


def generated(options: argparse.Namespace, folder: Path) -> Iterator[Path]:
    """Generate files of fifty records with Lua."""
    for at in range(0, options.count, 50):
        seed = options.seed * 1_000_000 + at
        path = folder / f"{options.kind}_{seed}.t7"
        count = str(min(50, options.count - at))
        command = [options.th, str(GENERATOR), options.kind, str(seed), count, str(path), str(options.inputs)]
        if subprocess.run(command, capture_output=True, timeout=600).returncode == 0 and path.exists():
            yield path
            path.unlink()
        else:
            print(f"{options.kind} {seed}: Lua fails", flush=True)


def summary(tried: int, counts: dict[str, int], found: int) -> str:
    """Return the numbers of a run."""
    inputs, *others = counts.items()
    listed = ", ".join(f"{number} {what}" for what, number in others)
    return f"{tried} networks, {inputs[1]} inputs ({listed}), {found} differences"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--th", default="th", help="the interpreter of Lua Torch")
    parser.add_argument("--kind", default="nn", choices=("nn", "graph", "expr", "rnn", "lists"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=0, help="further inputs for each network")
    parser.add_argument("--grads", action="store_true", help="compare gradients too")
    parser.add_argument("--live", action="store_true", help="live modules only")
    parser.add_argument("--findings", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    tried = found = 0
    counts = dict.fromkeys(("inputs", "of other lengths", "refused by Lua"), 0)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for path in chain(options.files, generated(options, Path(folder))):
            listed = records(path)
            tried += len(listed)
            for record in listed:
                counts["inputs"] += 1 + len(as_torch(record.get("moreInputs")) or ())
                counts["of other lengths"] += int(record.get("lengths") or 0)
                counts["refused by Lua"] += len(as_torch(record.get("refusedInputs")) or ())
            for number, record, why in check(path, options.grads, not options.live):
                found += 1
                shown = " ".join(record["text"].decode("utf-8", "replace").split())
                print(f"{path.name}[{number}] {why} | {shown[:300]}", flush=True)
                if options.findings:
                    keep(path, number, record, options.findings, why)
            seconds = time.monotonic() - began
            print(f"{path.name}: {summary(tried, counts, found)}, {seconds:.0f} s", flush=True)
    print(summary(tried, counts, found), flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
