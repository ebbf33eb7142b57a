"""All benchmarks in one run: `python benchmarks` prints one table of ratios and writes `benchmarks.json`.

A ratio is our time divided by the other's, or the speed-up where the table says so; by the clock, and of processor
time, which other programs on the machine change less.

All candidates run alternately on the same files and the same disk. Needs torch and torchfile; the rows
against Lua Torch need its command: `--lua th`.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import files
import numpy as np
from attrs import asdict, define
from measure import Result, calls, commands

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
    """

    what: str
    against: str
    ratio: float
    cpu: float
    peak_mib: float = 0.0


def copying(folder: Path, runs: int) -> Iterator[Row]:
    """Large files, against `cp` and against current practice."""
    t7, pt = folder / "large.t7", folder / "large.pt"
    files.large(t7)
    first = commands(
        runs,
        cp=(folder / "copy", "cp", t7, folder / "copy"),
        ours=(pt, TOOL, "convert", t7, pt),
        theirs=(folder / "t.pt", sys.executable, Path(__file__).with_name("today.py"), t7, folder / "t.pt"),
    )
    subprocess.run([TOOL, "convert", "-q", "--force", t7, pt], check=True)
    (folder / "t.pt").unlink(missing_ok=True)
    yield Row(".t7 to .pt, 560 MB", "cp", *first["ours"].over(first["cp"]), first["ours"].peak_mib)
    yield Row("torchfile and torch.save", "cp", *first["theirs"].over(first["cp"]), first["theirs"].peak_mib)
    second = commands(
        runs,
        cp=(folder / "copy", "cp", pt, folder / "copy"),
        back=(folder / "back.t7", TOOL, "convert", pt, folder / "back.t7"),
        same=(folder / "same.t7", TOOL, "convert", t7, folder / "same.t7"),
        torch=(folder / "t.pt", sys.executable, Path(__file__).with_name("today.py"), pt, folder / "t.pt"),
    )
    for name, what in (("back", ".pt to .t7, 560 MB"), ("same", ".t7 to .t7, 560 MB")):
        yield Row(what, "cp", *second[name].over(second["cp"]), second[name].peak_mib)
    yield Row("torch.load and torch.save", "cp", *second["torch"].over(second["cp"]), second["torch"].peak_mib)
    for path in folder.iterdir():
        path.unlink()


def converting(folder: Path, runs: int) -> Iterator[Row]:
    """Elements that need conversion for the target, in pieces."""

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
        found = commands(runs, cp=(folder / "copy", "cp", written, folder / "copy"), ours=(target, *command))
        yield Row(what, "cp of the output", *found["ours"].over(found["cp"]), found["ours"].peak_mib)
        for path in folder.iterdir():
            path.unlink()


def loading(folder: Path, runs: int, lua: str | None) -> Iterator[Row]:
    """Many small objects, against torchfile and Lua Torch."""
    import torchfile

    import t7bridge

    makers: dict[str, tuple[Callable[[Path], None], str]] = {
        "numbers": (files.numbers, "a table of 300 000 numbers"),
        "records": (files.records, "40 000 records"),
        "tensors": (files.small_tensors, "50 000 small tensors"),
    }
    for name, (make, what) in makers.items():
        path = folder / f"{name}.t7"
        make(path)
        known = {"ours": lambda path=path: t7bridge.load(path)}
        if name != "tensors":  # torchfile compares every element of a list with the list, which fails for arrays
            known["torchfile"] = lambda path=path: torchfile.load(str(path))
        found = calls(runs, **known)
        if "torchfile" in found:
            yield faster(f"load {what}", "torchfile", found["ours"], found["torchfile"])
        value = t7bridge.load(path)
        saved = calls(runs, ours=lambda value=value: t7bridge.save(value, folder / "out.t7", force=True))
        if lua:
            times = lua_times(lua, path, runs)
            yield faster(f"load {what}", "Lua Torch", found["ours"], times["load"])
            yield faster(f"save {what}", "Lua Torch", saved["ours"], times["save"])


def texts(folder: Path, runs: int, lua: str) -> Iterator[Row]:
    """Decimal text, against Lua Torch: reading and writing all numbers."""
    import t7bridge
    from t7bridge import T7Layout, Tensor

    layout, out = T7Layout(encoding="ascii"), folder / "out.t7"
    for kind, count in (("f4", 2_000_000), ("f8", 1_000_000), ("i8", 2_000_000)):
        path = folder / f"text_{kind}.t7"
        drawn = np.random.default_rng(3).standard_normal(count)
        array = (drawn * 1e5).astype(kind) if kind == "i8" else drawn.astype(kind)
        t7bridge.save(Tensor.from_numpy(array), path, layout=layout)

        def save(array: np.ndarray = array) -> None:
            t7bridge.save(Tensor.from_numpy(array), out, force=True, layout=layout)

        found = calls(runs, load=lambda path=path: t7bridge.load(path).storage.array, save=save)
        times = lua_times(lua, path, runs, "ascii")
        for verb in ("load", "save"):
            what = f"{verb} {count:,} {array.dtype.name} as text".replace(",", " ")
            yield faster(what, "Lua Torch", found[verb], times[verb])
        path.unlink()


def lua_times(lua: str, path: Path, runs: int, encoding: str = "binary") -> dict[str, Result]:
    """Return the median times of Lua Torch's own `torch.load` and `torch.save` for a file."""
    script = Path(__file__).with_name("time.lua")
    run = subprocess.run([lua, script, path, str(runs), encoding], capture_output=True, text=True, check=True)
    load, save, load_cpu, save_cpu = map(float, run.stdout.split()[-4:])
    return {"load": Result((load,), (load_cpu,)), "save": Result((save,), (save_cpu,))}


def starting(folder: Path, runs: int) -> Iterator[Row]:
    """What each verb costs for a small file, most of which is its start, and opening a large one."""
    import t7bridge

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
    results = commands(
        3 * runs,
        numpy=(folder / "none", sys.executable, "-c", "import numpy"),
        **{name: (folder / "none", TOOL, *arguments) for name, arguments in verbs.items()},
    )
    for name in verbs:
        yield Row(name, "import numpy", *results[name].over(results["numpy"]), results[name].peak_mib)
    huge = folder / "huge.t7"
    files.sparse(huge)
    opened = calls(runs, ours=lambda: t7bridge.load(huge))["ours"]
    yield Row("load a file of 10 GB", "50 ms", opened.median / 0.05, opened.cpu / 0.05)
    huge.unlink()


def growing(folder: Path, runs: int) -> Iterator[Row]:
    """Growth of the time for ten times the size."""
    import t7bridge

    cases: dict[str, tuple[Callable[[Path, int], None], int]] = {
        "numbers": (files.numbers, 300_000),
        "records": (files.records, 40_000),
        "tensors": (files.small_tensors, 20_000),
        "levels": (files.nested, 9_000),
    }
    for name, (make, count) in cases.items():
        once, tenfold = folder / f"{name}1.t7", folder / f"{name}10.t7"
        make(once, count)
        make(tenfold, 10 * count)
        limits = t7bridge.Limits(depth=200_000)
        found = calls(
            runs,
            one=lambda path=once, limits=limits: t7bridge.load(path, limits=limits),
            ten=lambda path=tenfold, limits=limits: t7bridge.load(path, limits=limits),
        )
        yield Row(f"load {10 * count} {name}", f"{count} {name}", *found["ten"].over(found["one"]))
    small, large = folder / "large1.t7", folder / "large10.t7"
    files.large(small, 14, 1_000_000)
    files.large(large, 14, 10_000_000)
    found = commands(
        runs,
        one=(folder / "out.pt", TOOL, "convert", small, folder / "out.pt"),
        ten=(folder / "out.pt", TOOL, "convert", large, folder / "out.pt"),
    )
    yield Row("convert 560 MB", "56 MB", *found["ten"].over(found["one"]), found["ten"].peak_mib)


def verbs(folder: Path, runs: int) -> Iterator[Row]:
    """Comparing large files, and growth of the time for ten times the layers."""
    import t7bridge

    large, converted = folder / "large.t7", folder / "large.pt"
    files.large(large)
    subprocess.run([TOOL, "convert", "-q", "--force", large, converted], check=True)
    compared = commands(
        runs,
        verify=(folder / "none", TOOL, "verify", large, converted),
        diff=(folder / "none", TOOL, "diff", large, converted),
    )
    yield Row("verify, 560 MB", "diff", *compared["verify"].over(compared["diff"]), compared["verify"].peak_mib)
    once, tenfold = folder / "layers1.t7", folder / "layers10.t7"
    files.flat_model(once, 500)
    files.flat_model(tenfold, 5000)
    works: dict[str, Callable[[Path], object]] = {
        "load_module": t7bridge.load_module,
        "inspect": t7bridge.inspect,
        "module": lambda path: t7bridge.write_module(path, folder / "module", force=True),
        "draw": lambda path: t7bridge.draw(path, folder / "model.html", force=True),
    }
    for name, work in works.items():
        found = calls(runs, one=lambda work=work: work(once), ten=lambda work=work: work(tenfold))
        yield Row(f"{name}, 5 000 layers", "500 layers", *found["ten"].over(found["one"]))


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


def addresses(folder: Path, runs: int) -> Iterator[Row]:
    """Requests for files at addresses: counts, the same in every run."""
    import t7bridge

    Counting.folder = folder
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


def faster(what: str, against: str, ours: Result, theirs: Result) -> Row:
    """Return a row with the speed-up from two times."""
    return Row(what, f"{against}, times faster", *theirs.over(ours))


def machine() -> str:
    """Return a description of the machine."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{os.cpu_count()} x {model or platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    lines = ["| what | against | ratio | of CPU time | peak memory |", "| --- | --- | ---: | ---: | ---: |"]
    for row in rows:
        memory = f"{row.peak_mib:.0f} MiB" if row.peak_mib else ""
        lines.append(f"| {row.what} | {row.against} | {row.ratio:.2f} | {row.cpu:.2f} | {memory} |")
    return "\n".join(lines)


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
    parser.add_argument(
        "--write", action="store_true", help="write the table to docs/performance.md, and a part to README.md"
    )
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for part in (copying, converting, starting, growing, verbs, addresses):
            rows += part(folder, options.runs)
        rows += loading(folder, options.runs, options.lua)
        if options.lua:
            rows += texts(folder, options.runs, options.lua)
    load = os.getloadavg()[1]
    commit = subprocess.run(
        ["git", "-C", Path(__file__).parent, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    about = {"day": time.strftime("%Y-%m-%d"), "machine": machine(), "commit": commit, "runs": options.runs}
    results = {**about, "load": load, "rows": [asdict(row) for row in rows]}
    Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    head = f"Medians of {options.runs} runs of commit {commit or 'unknown'} on {about['day']}, {about['machine']}, "
    head += f"load average {load:.1f}."
    text = f"{head}\n\n{table(rows)}\n"
    print(text, end="")
    if options.write:
        insert(ROOT / "docs/performance.md", text)
        insert(ROOT / "README.md", f"{head}\n\n{table([row for row in rows if (row.what, row.against) in FRONT])}\n")


if __name__ == "__main__":
    main()
