"""Random networks that Lua Torch ran and saved with what their layers recorded, through `prove`: no layer differs.

    python fuzz/fuzz_prove.py --th /path/to/th --kind graph --seed 1 --count 500 --findings findings

The networks are those of `fuzz_networks.py`. Lua leaves each in one of several states: after a pass forward in training
or in evaluation, forward and backward, or in evaluation after a pass in training. No weight was changed, so that a
layer that differs, or an update that is said to have been, is a finding; so is any error. Layers of which nothing is
recorded are counted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz_networks import generated, records

import t7bridge
from t7bridge.formats.t7.writer import T7Writer

_SCRIPT = """
require 'nn' require 'nngraph' require 'rnn'
local list = torch.load(arg[1])
torch.manualSeed(tonumber(arg[3]))
local function copied(value)
   if torch.isTensor(value) then return value:clone() end
   local list = {}
   for index, each in ipairs(value) do list[index] = copied(each) end
   return list
end
local function alike(value)
   if torch.isTensor(value) then return torch.randn(value:size()):typeAs(value) end
   local list = {}
   for index, each in ipairs(value) do list[index] = alike(each) end
   return list
end
local states = {'training', 'evaluation', 'backward', 'evaluation after training', 'mode set after training'}
local models = {}
for _, record in ipairs(list) do
   local state = states[torch.random(1, #states)]
   local model = record.model
   if state == 'evaluation' then model:evaluate() else model:training() end
   local works = pcall(function()
      local output = model:forward(copied(record.input))
      if state == 'backward' then
         model:zeroGradParameters()
         -- Layers in place may have changed the input of a second pass.
         local input = copied(record.input)
         output = model:forward(input)
         model:backward(input, alike(output))
      elseif state == 'evaluation after training' then
         model:evaluate()
         model:forward(copied(record.input))
      elseif state == 'mode set after training' then
         model:evaluate()
      end
   end)
   if works then models[#models + 1] = {model = model, state = state, text = record.text} end
end
torch.save(arg[2], models)
"""


def passed(options: argparse.Namespace, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the networks of a file after Lua has run them: each with its `model`, `state` and `text`."""
    script = path.with_name("pass.lua")
    script.write_text(_SCRIPT)
    target = path.with_name("passed.t7")
    subprocess.run([options.th, str(script), str(path), str(target), str(options.seed)], check=True)
    yield from records(target)


def judged(model: Any, counts: Counter[str]) -> str:
    """Prove a model; return what is wrong, empty if nothing is.

    Args:
        model: it.
        counts: receives the number of layers of each verdict.
    """
    try:
        proof = t7bridge.prove(model)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    for layer in proof.layers:
        counts[layer.verdict] += 1
    wrong = [*proof.unexplained, *proof.updated]
    return f"{len(wrong)} of {len(proof.layers)} layers, first {wrong[0]}" if wrong else ""


def main() -> int:
    """Run the command line; exit code 1 if there was a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--th", default="th", help="the interpreter of Lua Torch")
    parser.add_argument("--kind", default="nn", choices=("nn", "graph", "expr", "rnn", "lists"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--findings", type=Path)
    options = parser.parse_args()
    options.inputs = 0
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    tried = found = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in generated(options, Path(folder)):
            for number, record in enumerate(passed(options, path), 1):
                tried += 1
                why = judged(record["model"], counts)
                if not why:
                    continue
                found += 1
                shown = " ".join(record["text"].decode("utf-8", "replace").split())
                print(f"{path.name}[{number}] {record['state'].decode()}: {why} | {shown[:400]}", flush=True)
                if options.findings:
                    options.findings.mkdir(parents=True, exist_ok=True)
                    with open(options.findings / f"prove_{path.stem}_{number}.t7", "wb") as output:
                        T7Writer(output).write_object(record["model"])
            print(f"{path.name}: {tried} networks, {dict(counts)}, {found} findings", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
