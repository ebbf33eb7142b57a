"""All benchmarks in one run: `python benchmarks` prints one table of ratios and writes `benchmarks.json`.

A ratio is our time divided by the other's, or the speed-up where the table says so; by the clock, and of processor
time, which other programs on the machine change less.

All candidates run alternately on the same files and the same disk. Needs torch and torchfile; the rows
against Lua Torch need its command: `--lua th`. Another release, in an environment of its own, is measured beside this
one: `--beside OTHER/bin/python`.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import files
import numpy as np
from attrs import asdict, define, evolve
from measure import Result, call, commands, work

TOOL = Path(sys.executable).with_name("t7bridge")
ROOT = Path(__file__).resolve().parents[1]
FRONT = {
    (".t7 to .pt, 560 MB", "cp"),
    ("torchfile and torch.save", "cp"),
    (".pt to .t7, 560 MB", "cp"),
    ("torch.load and torch.save", "cp"),
    ("load a table of 300 000 numbers", "torchfile, times faster"),
    ("load a table of 300 000 numbers", "Lua Torch, times faster"),
}
"""The rows that README shows, by operation and reference."""


@define(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: the operation.
        against: the reference.
        ratio: median of our times divided by that of the other, or the inverse where `against` says so.
        cpu: the same of processor time.
        peak_mib: the peak memory of our process, if it is one.
        beside: our processor time divided by that of the other release; `None` if there is none, or it cannot do this.
    """

    what: str
    against: str
    ratio: float
    cpu: float
    peak_mib: float = 0.0
    beside: float | None = None


@define(frozen=True)
class Bench:
    """What all benchmarks of a run have in common.

    Attributes:
        folder: for files, empty at the beginning of each part.
        runs: how often each candidate runs; the median counts.
        lua: the command of Lua Torch, if there is one.
        beside: the Python that has another release of t7bridge, if one is measured, too.
    """

    folder: Path
    runs: int
    lua: str | None = None
    beside: Path | None = None

    def commands(self, runs: int = 0, **named: Sequence[object]) -> dict[str, Result]:
        """Run commands alternately; those of ours also with the other release, as `NAME beside`.

        Args:
            runs: of each; as many as usual by default.
            named: by name a file to remove beforehand, and the command line.
        """
        others = {}
        if self.beside is not None:
            other = self.beside.with_name(TOOL.name)
            for name, (target, program, *arguments) in named.items():
                if program == TOOL:
                    others[_beside(name)] = (target, other, *arguments)
        return commands(runs or self.runs, {**named, **others}, may_fail=set(others))

    def work(self, operation: str, path: Path, **others: Callable[[], Result]) -> dict[str, Result]:
        """Run an operation of `work.py`, as `ours`, and with the other release, as `ours beside`.

        Args:
            operation: its name.
            path: the file that it reads.
            others: what is measured in turns with it, by name: functions that run something once.
        """
        candidates = {"ours": partial(work, sys.executable, operation, path), **others}
        if self.beside is not None:
            candidates[_beside("ours")] = partial(work, self.beside, operation, path)
        turns: dict[str, list[Result]] = {name: [] for name in candidates}
        for _ in range(self.runs):
            for name, measured in list(candidates.items()):
                try:
                    turns[name].append(measured())
                except SystemExit:
                    if name != _beside("ours"):
                        raise
                    del candidates[name]  # a release that has no such function
        return {name: Result.of(turns[name]) for name in candidates}

    def empty(self) -> None:
        """Remove the files of a part."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _beside(name: str) -> str:
    return f"{name} beside"


def row_of(what: str, against: str, results: dict[str, Result], name: str, reference: str) -> Row:
    """Return a row of ratios.

    Args:
        what: the operation.
        against: the reference, for readers.
        results: measurements by name.
        name: ours.
        reference: the one by which it is divided.
    """
    ours = results[name]
    ratio, cpu = ours.over(results[reference])
    return Row(what, against, ratio, cpu, ours.peak_mib, beside_of(results, name))


def beside_of(results: dict[str, Result], name: str) -> float | None:
    """Return our processor time divided by that of the other release, if it was measured."""
    other = results.get(_beside(name))
    return None if other is None else results[name].cpu / other.cpu


def copying(bench: Bench) -> Iterator[Row]:
    """Large files, against `cp` and against current practice."""
    folder = bench.folder
    t7, pt = folder / "large.t7", folder / "large.pt"
    today = Path(__file__).with_name("today.py")
    files.large(t7)
    results = bench.commands(
        cp=(folder / "copy", "cp", t7, folder / "copy"),
        ours=(pt, TOOL, "convert", t7, pt),
        theirs=(folder / "t.pt", sys.executable, today, t7, folder / "t.pt"),
    )
    yield row_of(".t7 to .pt, 560 MB", "cp", results, "ours", "cp")
    yield row_of("torchfile and torch.save", "cp", results, "theirs", "cp")
    subprocess.run([TOOL, "convert", "-q", "--force", t7, pt], check=True)
    (folder / "t.pt").unlink(missing_ok=True)
    results = bench.commands(
        cp=(folder / "copy", "cp", pt, folder / "copy"),
        back=(folder / "back.t7", TOOL, "convert", pt, folder / "back.t7"),
        same=(folder / "same.t7", TOOL, "convert", t7, folder / "same.t7"),
        torch=(folder / "t.pt", sys.executable, today, pt, folder / "t.pt"),
    )
    yield row_of(".pt to .t7, 560 MB", "cp", results, "back", "cp")
    yield row_of(".t7 to .t7, 560 MB", "cp", results, "same", "cp")
    yield row_of("torch.load and torch.save", "cp", results, "torch", "cp")
    bench.empty()


def converting(bench: Bench) -> Iterator[Row]:
    """Elements that need conversion for the target, in pieces."""
    folder = bench.folder

    def big(path: Path) -> None:
        files.large(path, order=">")

    def long(path: Path) -> None:
        files.large(path, kind="Long")

    def short_long(path: Path) -> None:
        files.large(path, kind="Long", long_size=4)

    def few_longs(path: Path) -> None:
        files.large(path, 3, kind="Long")

    cases: tuple[tuple[Callable[[Path], None], str, str, dict[str, str]], ...] = (
        (big, "s.t7", "big-endian .t7 to .pt, 560 MB", {"to": "pt"}),
        (big, "s.t7", "big-endian .t7 to little-endian, 560 MB", {"to": "t7", "byte-order": "little"}),
        (files.large, "s.t7", "little-endian .t7 to big-endian, 560 MB", {"to": "t7", "byte-order": "big"}),
        (long, "s.t7", "longs to 4 bytes, 1.1 GB to 560 MB", {"to": "t7", "long-size": "4"}),
        (few_longs, "s.t7", "longs to 4 bytes, 240 MB to 120 MB", {"to": "t7", "long-size": "4"}),
        (short_long, "s.t7", "longs to 8 bytes, 560 MB to 1.1 GB", {"to": "t7", "long-size": "8"}),
        (files.bfloat16, "s.pt", "bfloat16 .pt to float32 .t7, 280 MB to 560 MB", {"to": "t7"}),
        (files.ascii_text, "s.t7", "ascii .t7 to .pt, 20 MB", {"to": "pt"}),
    )
    for make, name, what, options in cases:
        source, target = folder / name, folder / f"out.{options['to']}"
        command = [TOOL, "convert", "-q", *(f"--{option}={value}" for option, value in options.items()), source, target]
        make(source)
        subprocess.run(command, check=True)
        written = target.rename(folder / "written")
        results = bench.commands(cp=(folder / "copy", "cp", written, folder / "copy"), ours=(target, *command))
        yield row_of(what, "cp of the output", results, "ours", "cp")
        bench.empty()


def loading(bench: Bench) -> Iterator[Row]:
    """Many small objects, against torchfile and Lua Torch."""
    import torchfile

    makers: dict[str, tuple[Callable[[Path], None], str]] = {
        "numbers": (files.numbers, "a table of 300 000 numbers"),
        "records": (files.records, "40 000 records"),
        "tensors": (files.small_tensors, "50 000 small tensors"),
    }
    for name, (make, what) in makers.items():
        path = bench.folder / f"{name}.t7"
        make(path)
        others = {}
        if name != "tensors":  # torchfile compares every element of a list with the list, which fails for arrays
            others["torchfile"] = lambda path=path: call(lambda: torchfile.load(str(path)))
        loaded = bench.work("load", path, **others)
        if others:
            yield faster(f"load {what}", "torchfile", loaded, loaded["torchfile"])
        if bench.lua:
            times = lua_times(bench.lua, path, bench.runs)
            yield faster(f"load {what}", "Lua Torch", loaded, times["load"])
            yield faster(f"save {what}", "Lua Torch", bench.work("save", path), times["save"])
    bench.empty()


def texts(bench: Bench) -> Iterator[Row]:
    """Decimal text, against Lua Torch: reading and writing all numbers."""
    import t7bridge
    from t7bridge import T7Layout, Tensor

    if not bench.lua:
        return
    for kind, count in (("f4", 2_000_000), ("f8", 1_000_000), ("i8", 2_000_000)):
        path = bench.folder / f"text_{kind}.t7"
        drawn = np.random.default_rng(3).standard_normal(count)
        array = (drawn * 1e5).astype(kind) if kind == "i8" else drawn.astype(kind)
        t7bridge.save(Tensor.from_numpy(array), path, layout=T7Layout(encoding="ascii"))
        times = lua_times(bench.lua, path, bench.runs, "ascii")
        for verb in ("load", "save"):
            what = f"{verb} {count:,} {array.dtype.name} as text".replace(",", " ")
            yield faster(what, "Lua Torch", bench.work(f"{verb} text", path), times[verb])
    bench.empty()


def lua_times(lua: str, path: Path, runs: int, encoding: str = "binary") -> dict[str, Result]:
    """Return the median times of Lua Torch's own `torch.load` and `torch.save` for a file."""
    script = Path(__file__).with_name("time.lua")
    run = subprocess.run([lua, script, path, str(runs), encoding], capture_output=True, text=True, check=True)
    load, save, load_cpu, save_cpu = map(float, run.stdout.split()[-4:])
    return {"load": Result((load,), (load_cpu,)), "save": Result((save,), (save_cpu,))}


def starting(bench: Bench) -> Iterator[Row]:
    """What each verb costs for a small file, most of which is its start, and opening a large one."""
    import t7bridge

    folder = bench.folder
    model = ROOT / "testfiles" / "models" / "resnet_small.t7"
    weights = folder / "resnet.pt"
    t7bridge.convert(model, weights, force=True)
    verbs: dict[str, list[object]] = {
        "--version": ["--version"],
        "--help": ["--help"],
        "zoo --help": ["zoo", "--help"],
        "describe a small file": ["describe", model],
        "inspect a small file": ["inspect", model],
        "scan a small file": ["scan", weights],
        "convert a small file": ["convert", "--force", model, folder / "converted.pt"],
        "verify a small file": ["verify", "--quick", model, weights],
        "module of a small file": ["module", "--force", model, "-o", folder / "module"],
    }
    results = bench.commands(
        3 * bench.runs,
        numpy=(folder / "none", sys.executable, "-c", "import numpy"),
        **{name: (folder / "none", TOOL, *arguments) for name, arguments in verbs.items()},
    )
    for name in verbs:
        yield row_of(name, "import numpy", results, name, "numpy")
    huge = folder / "huge.t7"
    files.sparse(huge)
    opened = bench.work("load", huge)
    ours = opened["ours"]
    yield Row("load a file of 10 GB", "50 ms", ours.median / 0.05, ours.cpu / 0.05, beside=beside_of(opened, "ours"))
    bench.empty()


def growing(bench: Bench) -> Iterator[Row]:
    """Growth of the time for ten times the size."""
    folder = bench.folder
    cases: dict[str, tuple[Callable[[Path, int], None], int, str]] = {
        "numbers": (files.numbers, 300_000, "load"),
        "records": (files.records, 40_000, "load"),
        "tensors": (files.small_tensors, 20_000, "load"),
        "levels": (files.nested, 9_000, "load deep"),
    }
    for name, (make, count, operation) in cases.items():
        yield growth(bench, operation, make, count, f"load {10 * count} {name}", f"{count} {name}")
    small, large = folder / "large1.t7", folder / "large10.t7"
    files.large(small, 14, 1_000_000)
    files.large(large, 14, 10_000_000)
    results = bench.commands(
        one=(folder / "out.pt", TOOL, "convert", small, folder / "out.pt"),
        ten=(folder / "out.pt", TOOL, "convert", large, folder / "out.pt"),
    )
    yield row_of("convert 560 MB", "56 MB", results, "ten", "one")
    bench.empty()


def growth(bench: Bench, operation: str, make: Callable[[Path, int], None], count: int, what: str, against: str) -> Row:
    """Return the row of an operation of `work.py` on a file of ten times the size of another.

    Args:
        bench: what measures.
        operation: its name.
        make: writes a file of so many parts.
        count: parts of the smaller file.
        what: the operation, for readers.
        against: the smaller file, for readers.
    """
    once, tenfold = bench.folder / "once.t7", bench.folder / "tenfold.t7"
    make(once, count)
    make(tenfold, 10 * count)
    results = bench.work(operation, tenfold, once=partial(work, sys.executable, operation, once))
    return row_of(what, against, results, "ours", "once")


def verbs(bench: Bench) -> Iterator[Row]:
    """Comparing large files, and growth of the time for ten times the layers."""
    large, converted = bench.folder / "large.t7", bench.folder / "large.pt"
    files.large(large)
    subprocess.run([TOOL, "convert", "-q", "--force", large, converted], check=True)
    results = bench.commands(
        verify=(bench.folder / "none", TOOL, "verify", large, converted),
        diff=(bench.folder / "none", TOOL, "diff", large, converted),
    )
    yield row_of("verify, 560 MB", "diff", results, "verify", "diff")
    for name in ("load_module", "inspect", "module", "draw"):
        yield growth(bench, name, files.flat_model, 500, f"{name}, 5 000 layers", "500 layers")
    # PyTorch's exporter takes most of the time.
    yield growth(bench, "save_module", files.flat_model, 50, "save_module, 500 layers", "50 layers")
    bench.empty()


class Counting(http.server.BaseHTTPRequestHandler):
    """A server of a folder, by ranges, that counts its requests."""

    protocol_version = "HTTP/1.1"
    folder = Path()
    requests = 0

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer."""
        Counting.requests += 1
        data = (self.folder / self.path.strip("/")).read_bytes()
        size = len(data)
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.send_response(206 if part else 200)
        if part:
            first, last = int(part[1]), min(int(part[2]), size - 1)
            data = data[first : last + 1]
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET


def addresses(bench: Bench) -> Iterator[Row]:
    """Requests for files at addresses: counts, the same in every run."""
    import t7bridge

    folder = Counting.folder = bench.folder
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for verb, megabytes in (("inspect", 1), ("convert", 50)):
            files.large(folder / "far.t7", 20, megabytes * 50_000 // 4)
            Counting.requests = 0
            url = f"http://127.0.0.1:{server.server_port}/far.t7"
            if verb == "inspect":
                t7bridge.inspect(url)
            else:
                t7bridge.convert(url, folder / "far.pt", force=True)
            yield Row(f"{verb} of {megabytes} MB at an address", "a request", Counting.requests, Counting.requests)
        server.shutdown()
    bench.empty()


def faster(what: str, against: str, results: dict[str, Result], theirs: Result) -> Row:
    """Return a row with the speed-up from our time to theirs."""
    ratio, cpu = theirs.over(results["ours"])
    return Row(what, f"{against}, times faster", ratio, cpu, beside=beside_of(results, "ours"))


def machine() -> str:
    """Return a description of the machine."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{os.cpu_count()} x {model or platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown, with a column for the other release if one was measured."""
    has_other = any(row.beside is not None for row in rows)
    head = ["what", "against", "ratio", "of CPU time", "peak memory"]
    lines = ["| --- | --- | ---: | ---: | ---: |"]
    if has_other:
        head.append("CPU time of the other release = 1")
        lines[0] += " ---: |"
    for row in rows:
        memory = f"{row.peak_mib:.0f} MiB" if row.peak_mib else ""
        cells = [row.what, row.against, f"{row.ratio:.2f}", f"{row.cpu:.2f}", memory]
        if has_other:
            cells.append("" if row.beside is None else f"{row.beside:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([f"| {' | '.join(head)} |", *lines])


def front(rows: list[Row]) -> list[Row]:
    """Return the rows that README shows, which leave out the other release."""
    return [evolve(row, beside=None) for row in rows if (row.what, row.against) in FRONT]


def version_of(python: Path) -> str:
    """Return the version of t7bridge in the environment of a Python."""
    command = [python.absolute(), "-c", "import t7bridge; print(t7bridge.__version__)"]
    # Elsewhere than in a copy of the sources, which would be imported instead.
    done = subprocess.run(command, cwd=python.parent, capture_output=True, text=True, check=True)
    return done.stdout.strip()


_BEGIN, _END = "<!-- benchmarks -->\n", "<!-- end of benchmarks -->\n"


def insert(page: Path, text: str) -> None:
    """Replace what stands between the marks of a page."""
    before, found, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not found or not end:
        raise SystemExit(f"{page} has no lines {_BEGIN.strip()} and {_END.strip()}")
    page.write_text(f"{before}{_BEGIN}{text}{_END}{after}")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(prog="python benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="number of runs; the median counts")
    parser.add_argument("--folder", help="folder for the files; selects the disk measured")
    parser.add_argument("--json", default="benchmarks.json", help="file for the results")
    parser.add_argument("--lua", help="the command of Lua Torch, for the rows against it")
    parser.add_argument("--beside", type=Path, help="the Python of an environment with another release of t7bridge")
    parser.add_argument(
        "--write", action="store_true", help="write the table to docs/performance.md, and a part to README.md"
    )
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        bench = Bench(Path(name), options.runs, options.lua, options.beside)
        for part in (copying, converting, starting, growing, verbs, addresses, loading, texts):
            rows += part(bench)
    load = os.getloadavg()[1]
    commit = subprocess.run(
        ["git", "-C", Path(__file__).parent, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    about = {"day": time.strftime("%Y-%m-%d"), "machine": machine(), "commit": commit, "runs": options.runs}
    results = {**about, "load": load, "rows": [asdict(row) for row in rows]}
    Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    head = f"Medians of {options.runs} runs of commit {commit or 'unknown'} on {about['day']}, {about['machine']}, "
    head += f"load average {load:.1f}."
    other = f" The other release: {version_of(options.beside)}." if options.beside else ""
    text = f"{head}{other}\n\n{table(rows)}\n"
    print(text, end="")
    if options.write:
        insert(ROOT / "docs/performance.md", text)
        insert(ROOT / "README.md", f"{head}\n\n{table(front(rows))}\n")


if __name__ == "__main__":
    main()
