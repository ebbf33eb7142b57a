"""Every verb on mutated files: no traceback, no control character, no half output, bounded CPU and memory.

`ACTIONS` lists the actions on a file, and their frequency: a verb that takes ten times as long has a smaller share.
Each
runs in the process like the command line (`cli.main`, with captured streams), or is a Python function.
`run.py verbs` calls `judge` for each number, in child processes.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import random
import re
import resource
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_mutate import mutate, overwrite

import t7bridge
from t7bridge import cli
from t7bridge.errors import T7BridgeError, T7BridgeWarning

TESTFILES = Path(__file__).resolve().parent.parent / "testfiles"
SECONDS, FACTOR, EXTRA_BYTES = 2.0, 8, 128 << 20
LARGEST_SEED = 6_000
_UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
FOLDER = Path(f"/dev/shm/t7bridge-fuzz-{os.getpid()}")
"""Folder of the inputs and outputs of a run; each child has its own inside."""


def _python(name: str) -> Callable[..., Any]:
    def call(*paths: Path) -> None:
        function: Any = t7bridge
        for part in name.split("."):
            function = getattr(function, part)
        function(*paths)

    return call


def _to_python(path: Path) -> None:
    value = t7bridge.load(path)
    if not isinstance(value, (tuple, list, dict, set, frozenset)):  # Python repeats shared values in its own
        repr(value)
    t7bridge.to_python(value)


def _to_torch(path: Path) -> None:
    t7bridge.to_torch(t7bridge.load(path))


_LUA = "torch.nn:Linear(4, 3)"
# name: (share, kind of seeds, arguments or a function). IN is the input, SEED the file that it was made from, OUT the
# stem of an output. Kinds: any, t7, model (a `.t7` with an nn module at its root), weights (its state dict).
ACTIONS: dict[str, tuple[float, str, Any]] = {
    "load": (60, "any", _python("load")),
    "to_python": (20, "any", _to_python),
    "to_torch": (10, "any", _to_torch),
    "state_dict": (20, "any", lambda path: t7bridge.state_dict(t7bridge.load(path))),
    "load_state_dict": (15, "any", _python("load_state_dict")),
    "torchfile": (40, "t7", _python("torchfile.load")),
    "load_module": (20, "model", _python("load_module")),
    "describe": (60, "any", "describe IN"),
    "inspect": (40, "any", "inspect IN"),
    "inspect --all": (25, "any", "inspect IN --all"),
    "inspect --stats": (25, "any", "inspect IN --stats"),
    "inspect --json": (25, "any", "inspect IN --json"),
    "inspect --input-shape": (10, "model", "inspect IN --input-shape 1x3x8x8"),
    "scan": (40, "any", "scan IN"),
    "scan --json": (20, "any", "scan IN --json"),
    "verify": (25, "any", "verify IN SEED"),
    "verify --quick": (30, "any", "verify IN SEED --quick"),
    "verify itself": (15, "any", "verify IN IN"),
    "diff": (30, "any", "diff IN SEED"),
    "diff --json": (15, "any", "diff IN IN --json"),
    "convert .pt": (30, "any", "convert IN OUT.pt"),
    "convert .t7": (40, "any", "convert IN OUT.t7"),
    "convert .safetensors": (20, "any", "convert IN OUT.safetensors"),
    "convert .npz": (20, "any", "convert IN OUT.npz"),
    "convert .h5": (10, "any", "convert IN OUT.h5"),
    "convert --mode tree": (20, "any", "convert IN OUT.pt --mode tree"),
    "convert legacy": (10, "any", "convert IN OUT.pt --pt-format legacy"),
    "convert torchscript": (10, "any", "convert IN OUT.pt --pt-format torchscript"),
    "convert ascii": (10, "any", "convert IN OUT.t7 --encoding ascii"),
    "convert other layout": (10, "any", "convert IN OUT.t7 --byte-order big --long-size 4"),
    "convert --nested": (10, "weights", "convert IN OUT.t7 --nested"),
    "convert --dtype": (10, "any", "convert IN OUT.pt --dtype bfloat16"),
    "convert --rename": (10, "weights", "convert IN OUT.h5 --rename weight=w"),
    "convert --strip": (10, "weights", "convert IN OUT.npz --strip 0"),
    "convert --shard-size": (10, "any", "convert IN OUT.safetensors --shard-size 100"),
    "convert --template": (15, "weights", "convert IN OUT.t7 --template MODEL"),
    "convert --compact": (5, "model", "convert IN OUT.pt --compact --allow-foreign"),
    "match": (20, "model", "match IN SEED"),
    "match --order": (5, "model", "match IN SEED --order --no-run"),
    "match -o": (15, "model", "match IN SEED -o OUT.pt"),
    "module": (30, "model", "module IN -o OUT"),
    "draw .svg": (15, "model", "draw IN -o OUT.svg"),
    "draw .html": (15, "model", "draw IN -o OUT.html"),
    "draw .dot": (10, "any", "draw IN -o OUT.dot"),
    "draw --json": (15, "any", "draw IN --json"),
    "prove": (20, "model", "prove IN"),
    "export": (15, "any", "export IN OUT.onnx"),
    "export .onnx": (0.1, "model", "export IN OUT.onnx --input 1x4"),
    "export .pt2": (0.1, "model", "export IN OUT.pt2 --input 1x4"),
    "lua": (8, "weights", f"lua|{_LUA}|IN|--input|1x4|-o|OUT"),
    "zoo": (10, "any", "zoo IN -o OUT --workers 0"),
    "zoo --verify": (4, "any", "zoo IN -o OUT --workers 0 --verify --to safetensors"),
    "zoo --module": (4, "model", "zoo IN -o OUT --workers 0 --module"),
}


@cache
def _seeds() -> dict[str, list[tuple[str, bytes]]]:
    """Return the seeds of each kind, with their suffixes."""
    found: dict[str, list[tuple[str, bytes]]] = {kind: [] for kind in ("any", "t7", "model", "weights")}
    for path in sorted(TESTFILES.glob("*/*")):
        if path.parent.name == "bad" or path.suffix not in (".t7", ".pt") or path.stat().st_size > LARGEST_SEED:
            continue
        seed = (path.suffix, path.read_bytes())
        found["any"].append(seed)
        if path.suffix == ".t7":
            found["t7"].append(seed)
            is_part = any(part in path.name for part in (".io.", ".grad.", ".dump."))
            if path.parent.name in ("nn", "rnn", "models", "legacy", "prove", "lua", "hostile") and not is_part:
                found["model"].append(seed)
    made = list(_containers(found["model"]))
    found["weights"] = [seed for seed in made if seed[0] == ".pt"]
    found["any"] += made
    return found


_MODELS: dict[bytes, bytes] = {}
"""The `.t7` from which a state dict of `_containers` was made."""


def _containers(models: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return the same weights in the other containers."""
    made = []
    folder = FOLDER / "made"
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, data in models[::6]:
        (folder / f"x{suffix}").write_bytes(data)
        for to in (".pt", ".safetensors", ".npz", ".h5"):
            with contextlib.suppress(T7BridgeError):
                t7bridge.convert(folder / f"x{suffix}", folder / f"y{to}", force=True)
                made.append((to, (folder / f"y{to}").read_bytes()))
                _MODELS[made[-1][1]] = data
    shutil.rmtree(folder)
    return [seed for seed in made if len(seed[1]) <= LARGEST_SEED]


def prepare() -> None:
    """Load in the parent what each child would load again."""
    os.environ |= {"T7BRIDGE_TRACEBACK": "1", "LANGUAGE": "C"}  # argparse looks for its translations all the time
    import h5py  # noqa: F401
    import safetensors  # noqa: F401
    import torch
    import torch._dynamo  # some layers on the meta device load it, of which each child would

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("default", category=T7BridgeWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module="zipfile")
    seeds = _seeds()
    model = next(seed for seed in seeds["model"] if b"nn.Linear" in seed[1])
    for name in ACTIONS:
        if not name.startswith("export ."):
            _perform(name, model[0], model[1], model[1], FOLDER / "warm")
    # A verb's parser is the same each time, and takes longer than most inputs.
    cli.parser_for = cache(cli.parser_for)
    gc.freeze()  # PyTorch's objects are not looked at again by each child's collector
    _BASE[0] = _peak()


_BASE = [0]
"""The memory of the process before the inputs, or at the last finding: a peak never decreases."""


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def made(number: int, seed: str, only: str = "") -> tuple[str, str, bytes, bytes]:
    """Return the action, suffix, input and seed of a number.

    Args:
        number: of the input.
        seed: of the run.
        only: an action; if empty, one of all by their shares.
    """
    choose = random.Random(f"{seed} {number}")
    name = only or choose.choices(list(ACTIONS), [share for share, _, _ in ACTIONS.values()])[0]
    seeds = _seeds()[ACTIONS[name][1]]
    suffix, data = choose.choice(seeds)
    if data[:2] != b"PK" and choose.random() < 0.5:  # a file that is usually still readable
        return name, suffix, overwrite(data, choose), data
    others = [other for other in (choose.choice(seeds) for _ in range(8)) if other[0] == suffix]
    other = others[0][1] if others else data
    return name, suffix, mutate(data, other, choose), data


def judge(number: int, seed: str, only: str = "") -> str:
    """Perform the action of a number, and return `action|outcome|seconds|MiB|finding`."""
    name, suffix, data, original = made(number, seed, only)
    folder = FOLDER / f"{os.getpid()}"
    start, finding = time.process_time(), ""
    try:
        outcome, finding = _perform(name, suffix, data, original, folder)
    except BaseException:
        outcome, finding = "raised", traceback.format_exc(limit=-6)
    taken = time.process_time() - start
    grown = _peak() - _BASE[0]
    if taken > SECONDS:  # retry: other programs on the machine, or an import, may have taken the time
        start = time.process_time()
        with contextlib.suppress(Exception):
            _perform(name, suffix, data, original, folder / "again")
        again = time.process_time() - start
        if again > SECONDS:
            finding = finding or f"{taken:.1f} and {again:.1f} s of CPU"
    if grown > FACTOR * len(data) + EXTRA_BYTES:
        finding = finding or f"{grown >> 20} MiB for {len(data)} bytes"
        _BASE[0] = _peak()
    shutil.rmtree(folder, ignore_errors=True)
    return f"{name}|{outcome}|{taken:.3f}|{grown >> 20}|{finding}"


def _perform(name: str, suffix: str, data: bytes, original: bytes, folder: Path) -> tuple[str, str]:
    """Return the outcome, and the finding, if any."""
    _, _, action = ACTIONS[name]
    folder.mkdir(parents=True, exist_ok=True)
    path, seed = folder / f"in{suffix}", folder / f"seed{suffix}"
    path.write_bytes(data)
    if isinstance(action, str) and "SEED" in action:
        seed.write_bytes(original)
    model = folder / "model.t7"
    if isinstance(action, str) and "MODEL" in action:
        model.write_bytes(_MODELS.get(original, original))
    results = folder / "results"
    results.mkdir(exist_ok=True)
    if not isinstance(action, str):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", T7BridgeWarning)
            try:
                action(path)
            except T7BridgeError as error:
                return "refused", _unsafe(str(error))
        return "done", ""
    words = action.split("|") if "|" in action else action.split()
    paths = {"IN": path, "SEED": seed, "MODEL": model}
    arguments = [str(paths.get(word, word)).replace("OUT", str(results / "out"), 1) for word in words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    said, errors = out.getvalue(), err.getvalue()
    wrong = _unsafe(said) or _unsafe(errors)
    if "Traceback" in errors or "internal error" in errors or "out of memory" in errors:
        wrong = wrong or f"said {errors[:2000]}"
    left = sorted(each.name for each in results.iterdir())
    if any(each.endswith(".tmp") for each in left) or (code == 2 and left and not name.startswith("zoo")):
        wrong = wrong or f"left {left} with code {code}"
    if code not in (0, 1, 2):
        wrong = wrong or f"ended with {code}"
    return str(code), wrong


def _unsafe(text: str) -> str:
    found = _UNSAFE.search(text)
    return f"says {found[0]!r} in {text[max(0, found.start() - 80) : found.end() + 80]!r}" if found else ""


def one(path: Path, name: str, seed: Path | None = None) -> int:
    """Perform one action on one file, for a finding."""
    prepare()
    data = path.read_bytes()
    print(_perform(name, path.suffix, data, seed.read_bytes() if seed else data, FOLDER / "one"))
    shutil.rmtree(FOLDER, ignore_errors=True)
    return 0


def run(count: int, seed: str, findings: Path, only: str = "", first: int = 0) -> int:
    """Judge the requested number of inputs, print a table of the actions, and keep the findings.

    Returns:
        1 if there was a finding, else 0.
    """
    from fuzz_workers import in_workers

    prepare()
    table: dict[str, list[Any]] = {}
    found, began, last = 0, time.monotonic(), time.monotonic()
    for number, answer in in_workers(
        count, lambda number: judge(number, seed, only), first=first, block=2000, seconds=6.0, nbytes=2 << 30
    ):
        name, outcome, taken, grown, finding = (
            answer.split("|", 4)
            if answer.count("|") >= 4
            else (made(number, seed, only)[0], "killed", "10", "0", answer)
        )
        row = table.setdefault(name, [0, 0, 0, 0.0, 0.0, 0, 0])
        row[0] += 1
        row[1] += outcome in ("done", "0")
        row[2] += outcome == "1"
        row[3] += float(taken)
        row[4] = max(row[4], float(taken))
        row[5] = max(row[5], int(grown))
        if finding:
            row[6] += 1
            found += 1
            _, suffix, data, original = made(number, seed, only)
            findings.mkdir(parents=True, exist_ok=True)
            stem = findings / f"{name.replace(' ', '_')}-{number}"
            stem.with_name(f"{stem.name}{suffix}").write_bytes(data)
            stem.with_name(f"{stem.name}.seed{suffix}").write_bytes(original)
            print(f"{stem}{suffix}: {finding}", file=sys.stderr, flush=True)
        if time.monotonic() - last > 60:
            last = time.monotonic()
            print(f"{sum(row[0] for row in table.values())} in {last - began:.0f} s, {found} findings", flush=True)
    print(f"{'action':24} {'inputs':>8} {'done':>7} {'found':>6} {'ms':>7} {'worst s':>8} {'MiB':>5} findings")
    for name in ACTIONS:
        if name in table:
            inputs, done, differ, taken, worst, grown, wrong = table[name]
            print(
                f"{name:24} {inputs:8} {done:7} {differ:6} {1000 * taken / inputs:7.2f} {worst:8.2f} {grown:5} {wrong}"
            )
    total = sum(row[0] for row in table.values())
    print(f"verbs: {total} inputs in {time.monotonic() - began:.0f} s, {found} findings", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    return 1 if found else 0
