"""The examples run and print their expected output."""

import shutil
import subprocess
from pathlib import Path

import pytest
from forked import run_python
from helpers import PATIENCE

import t7bridge

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    """An example prints the content of `expected/`."""
    run = run_python(path, folder=ROOT)

    assert run.stderr == ""
    assert (path.parent / "expected" / f"{path.stem}.txt").read_text() == run.stdout


def test_readme_lists_all() -> None:
    """The examples' own README names each of them."""
    text = (ROOT / "examples/README.md").read_text()
    assert EXAMPLES
    assert all(f"`{path.name}`" in text for path in EXAMPLES)
    assert all(f"`{path.name}`" in text for path in (ROOT / "examples/c").glob("*.c"))


COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
RUN = [
    "lenet_mm",
    "char_lstm_nngraph",
    "unet_nngraph",
    "resnet_small",
    "dcgan_generator",
    "gmodule_two_in_two_out",
    "autoencoder_flat",
    "training_checkpoint",
]


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_models_run_in_c(tmp_path: Path) -> None:
    """The C program, from the graph as data and a `.safetensors`, computes what Lua recorded, to 1e-5."""
    program = tmp_path / "run_graph"
    sources = sorted(map(str, (ROOT / "examples/c").glob("*.c")))
    flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([str(COMPILER), *flags, "-o", program, *sources, "-lm"], check=True, timeout=PATIENCE)
    graph, weights, values = (str(tmp_path / name) for name in ("x.json", "x.safetensors", "values.safetensors"))
    for name in RUN:
        model = ROOT / "testfiles/models" / f"{name}.t7"
        t7bridge.draw(model, graph, force=True)
        t7bridge.convert(model, weights, force=True)
        t7bridge.convert(model.with_suffix(".io.t7"), values, force=True)
        run = subprocess.run(
            [program, graph, weights, values], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert (run.returncode, run.stderr) == (0, ""), name
        assert run.stdout.count("largest difference") == (5 if "lstm" in name else 2 if "two_out" in name else 1)

    t7bridge.convert(ROOT / "testfiles/models/lenet_mm.t7", weights, force=True)
    run = subprocess.run(
        [program, graph, weights, values], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert run.returncode == 2
    assert "the weights have no" in run.stderr or "takes" in run.stderr
