"""One operation of the t7bridge of this Python: `work.py OPERATION PATH` prints seconds and processor seconds.

It runs once beforehand, which is not measured. In a process of its own, so that two releases are measured in turns.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import t7bridge


def operation_of(name: str, path: Path, folder: Path) -> Callable[[], object]:
    """Return what is measured; its preparations are done.

    Args:
        name: of the operation, as rows of the table begin.
        path: the file that it reads.
        folder: for what it writes.
    """
    if name == "load":
        return lambda: t7bridge.load(path)
    if name == "load deep":
        limits = t7bridge.Limits(depth=200_000)
        return lambda: t7bridge.load(path, limits=limits)
    if name == "load text":
        return lambda: t7bridge.load(path).storage.array
    if name == "save":
        value = t7bridge.load(path)
        return lambda: t7bridge.save(value, folder / "saved.t7", force=True)
    if name == "save text":
        # In memory: the text of a file would be copied.
        tensor = t7bridge.Tensor.from_numpy(t7bridge.load(path).numpy().copy())
        layout = t7bridge.T7Layout(encoding="ascii")
        return lambda: t7bridge.save(tensor, folder / "saved.t7", force=True, layout=layout)
    if name == "load_module":
        return lambda: t7bridge.load_module(path)
    if name == "save_module":
        import torch

        module = t7bridge.load_module(path).eval()
        example = torch.zeros(2, 4)  # of the layers that `files.flat_model` writes
        return lambda: t7bridge.save_module(module, folder / "saved.t7", example_inputs=example, force=True)
    if name == "inspect":
        return lambda: t7bridge.inspect(path)
    if name == "module":
        return lambda: t7bridge.write_module(path, folder / "module", force=True)
    if name == "draw":
        return lambda: t7bridge.draw(path, folder / "model.html", force=True)
    raise SystemExit(f"there is no operation {name}")


def main() -> None:
    """Run one operation twice."""
    name, path = sys.argv[1], Path(sys.argv[2])
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        work = operation_of(name, path, Path(folder))
        work()
        start = time.perf_counter()
        used = time.process_time()
        value = work()
        elapsed = time.perf_counter() - start
        print(elapsed, time.process_time() - used)
        del value  # after the measurement, as it takes time


if __name__ == "__main__":
    main()
