"""Proofs against other files: pairs of inputs and outputs from Lua Torch, and models that it ran again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import TESTFILES, corpus, name_of

import t7bridge
from t7bridge import T7Reader
from t7bridge.cli import main
from t7bridge.errors import ModelError
from t7bridge.formats.t7.writer import T7Writer

MODELS = [path for path in corpus("models/*.t7") if ".io." not in path.name and "cuda" not in path.name]
PROBED = corpus("prove/probed_*.t7")


def split(path: Path, folder: Path) -> tuple[Path, Path]:
    """The input and the output of a recorded pair as files of their own."""
    table = T7Reader(str(path).replace(".t7", ".io.t7")).read_object()
    for name in ("input", "output"):
        with open(folder / f"{name}.t7", "wb") as stream:
            T7Writer(stream).write_object(table[name])
    return folder / "input.t7", folder / "output.t7"


@pytest.mark.slow
@pytest.mark.parametrize("path", MODELS, ids=name_of)
def test_pairs_from_lua_agree(path: Path, tmp_path: Path):
    """Each model of the corpus returns what Lua Torch returned for its input, from two files and from one."""
    given, wanted = split(path, tmp_path)
    references = (given, wanted), str(path).replace(".t7", ".io.t7")
    for proof in (t7bridge.prove(path, against=each) for each in references):
        assert proof.exit_code == 0, proof.layers[0].reason
        assert proof.layers[0].max_rel is not None
        assert proof.layers[0].max_rel < 1e-4


@pytest.mark.slow
def test_a_wrong_pair_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The output of another model, or as many outputs as inputs, is told."""
    path = TESTFILES / "models/lenet_mm.t7"
    given, _ = split(path, tmp_path)
    assert t7bridge.prove(path, against=(given, given)).exit_code == 1
    assert main(["prove", str(path), "--input", str(given), "--expect", str(given), "--expect", str(given)]) != 0
    assert "each input needs an expected output" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("path", PROBED, ids=name_of)
def test_a_model_that_lua_ran_and_saved_again(path: Path):
    """A model that was run in Lua and saved with what its layers recorded agrees."""
    proof = t7bridge.prove(path, "root.model")
    assert proof.exit_code == 0, proof.sentence()
    assert not proof.of("differs")
    assert proof.agreeing()


def test_a_table_without_an_output_is_refused(tmp_path: Path):
    """A recording is a table with an input and an output."""
    t7bridge.save({"input": 1.0}, tmp_path / "half.t7")
    with pytest.raises(ModelError, match="holds no recording"):
        t7bridge.prove(TESTFILES / "models/lenet_mm.t7", against=tmp_path / "half.t7")


@pytest.mark.parametrize("reference", [(1, 2, 3), (1,), [(1, 2, 3)], [1]])
def test_references_that_are_no_pairs(reference: object):
    """A reference of more or less than an input and an output is refused."""
    with pytest.raises(ModelError, match="not a pair of an input and an output"):
        t7bridge.prove(TESTFILES / "models/lenet_mm.t7", against=reference)


def test_a_pair_needs_values():
    """Of a shape there are no values to compare with what Lua computed, as input or as output."""
    for pair in (("2x1x32x32", torch.ones(2, 10)), (torch.ones(2, 1, 32, 32), "2x10")):
        with pytest.raises(ModelError, match="a shape has no values to compare"):
            t7bridge.prove(TESTFILES / "models/lenet_mm.t7", against=pair)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (torch.ones(0, 3), "pair 1 has no values to compare"),
        (torch.ones(2, 3, dtype=torch.complex64), "pair 1 has no values to compare"),
        ([torch.ones(2, 3), torch.ones(0)], "pair 1 has no values to compare"),
        (torch.ones(2, 3, dtype=torch.bfloat16), "a tensor cannot be compared: .*BFloat16"),
        (torch.eye(3).to_sparse(), "a tensor cannot be compared: .*Sparse"),
    ],
)
def test_tensors_that_cannot_be_compared(values: object, text: str):
    """Neither empty tensors nor types that Lua lacks are a difference: they are refused, as input and as output."""
    for pair in ((values, torch.ones(2, 3)), (torch.ones(2, 3), values)):
        with pytest.raises(ModelError, match=text):
            t7bridge.prove(TESTFILES / "models/lenet_mm.t7", against=pair)
