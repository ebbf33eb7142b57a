"""Fuzz one reader, or all in turn: coverage-guided by atheris, or by mutations alone.

    python fuzz/run.py t7_binary --atheris -max_total_time=3600
    python fuzz/run.py all --count 100000
    python fuzz/run.py pickle --input findings/pickle-1234.bin
    python fuzz/run.py verbs --count 1000000 --seed 7
    python fuzz/run.py "verbs:convert .pt" --input findings/convert_.pt-1234.pt

Exits with 1 if there was a finding; the inputs are in `findings/`.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

SECONDS, FACTOR, EXTRA_BYTES = 2.0, 8, 64 << 20


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--atheris", action="store_true", help="further arguments go to libFuzzer")
    parser.add_argument("--count", type=int, default=100_000, help="inputs for each target")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--first", type=int, default=0, help="number of the first input, to continue a run")
    parser.add_argument("--input", type=Path, help="one file")
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    options, rest = parser.parse_known_args()
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=UserWarning, module="zipfile")  # duplicate names
    if options.target.partition(":")[0] == "verbs":
        import fuzz_verbs

        only = options.target.partition(":")[2]
        if options.input:
            return fuzz_verbs.one(options.input, only)
        return fuzz_verbs.run(options.count, options.seed, options.findings, only, options.first)
    if options.atheris:
        return _atheris(options.target, rest, options.findings)
    from fuzz_targets import TARGETS

    if options.input:
        print("accepted" if TARGETS[options.target](options.input.read_bytes()) else "refused")
        return 0
    names = list(TARGETS) if options.target == "all" else [options.target]
    return max(_mutations(name, options.count, options.seed, options.findings) for name in names)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _mutations(name: str, count: int, seed: str, folder: Path) -> int:
    from fuzz_mutate import mutate
    from fuzz_targets import TARGETS, seeds

    target, starts, choose = TARGETS[name], seeds(name), random.Random(seed)
    for data in starts:
        target(data)
    base = _peak()
    accepted, found, slowest, began = 0, 0, 0.0, time.perf_counter()
    for number in range(count):
        data = mutate(choose.choice(starts), choose.choice(starts), choose)
        reason, start = "", time.process_time()
        try:
            accepted += target(data)
        except Exception:
            reason = traceback.format_exc(limit=-4)
        taken = time.process_time() - start  # of this process, however busy the machine is
        slowest = max(slowest, taken)
        if taken > SECONDS:
            reason = reason or f"{taken:.1f} seconds"
        if _peak() - base > FACTOR * len(data) + EXTRA_BYTES:
            reason = reason or f"{(_peak() - base) >> 20} MiB for {len(data)} bytes"
            base = _peak()
        if reason:
            found += 1
            _keep(folder, name, data, f"{number}: {reason}")
    seconds = time.perf_counter() - began
    print(
        f"{name}: {count} inputs in {seconds:.0f} s, {accepted} accepted, {found} findings, slowest {slowest:.2f} s, "
        f"memory +{(_peak() - base) >> 20} MiB",
        flush=True,
    )
    return 1 if found else 0


def _keep(folder: Path, name: str, data: bytes, reason: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    print(f"{path}: {reason}", file=sys.stderr, flush=True)


def _atheris(name: str, arguments: list[str], folder: Path) -> int:
    import atheris

    with atheris.instrument_imports(include=["t7bridge"]):
        from fuzz_targets import TARGETS, seeds
    corpus = folder / f"corpus-{name}"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in seeds(name):
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    target = TARGETS[name]

    def one(data: bytes) -> None:
        target(data)

    # Instrumented code is some twenty times slower, so that 30 seconds are 2 without.
    limits = ["-timeout=30", "-rss_limit_mb=2048", "-max_len=65536", f"-artifact_prefix={folder}/{name}-"]
    atheris.Setup([sys.argv[0], *limits, *arguments, str(corpus)], one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
