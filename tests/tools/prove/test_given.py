"""Proofs against other files: pairs of inputs and outputs from Lua Torch, and what probes recorded there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import PATIENCE, TESTFILES, corpus, name_of

import t7bridge
from t7bridge import T7Reader, Table, TorchObject
from t7bridge.cli import main
from t7bridge.errors import ModelError, TargetExistsError
from t7bridge.formats.t7.writer import T7Writer
from t7bridge.nn.output_shapes import Example
from t7bridge.nn.places import module_at
from t7bridge.tools.prove import lua_literal, probe_source, write_probe

MODELS = [path for path in corpus("models/*.t7") if ".io." not in path.name and "cuda" not in path.name]
LUA = shutil.which("th") or ""
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
def test_what_a_probe_recorded_is_checked_to_the_last_layer(path: Path):
    """Probes that Lua Torch ran: every layer with weights agrees, and none differs."""
    model = TESTFILES / next(
        name
        for name in (f"models/{path.stem[7:]}.t7", f"rnn/{path.stem[7:]}.t7", f"nn/{path.stem[7:]}.t7")
        if (TESTFILES / name).exists()
    )
    proof = t7bridge.prove(model, against=path)
    assert proof.exit_code == 0, proof.sentence()
    assert {layer.verdict for layer in proof.layers if layer.parameters} == {"agrees"}
    assert not proof.of("not recorded")


def test_a_recording_of_another_model_is_refused(tmp_path: Path):
    """A probe of another model, or of other weights, proves nothing."""
    with pytest.raises(ModelError, match="another model"):
        t7bridge.prove(TESTFILES / "models/lenet_mm.t7", against=PROBED[0])
    t7bridge.save({"input": 1.0}, tmp_path / "half.t7")
    with pytest.raises(ModelError, match="not a probe's recording"):
        t7bridge.prove(TESTFILES / "models/lenet_mm.t7", against=tmp_path / "half.t7")


def test_an_option_that_differs_from_the_recording_is_found(tmp_path: Path):
    """A layer run by Lua with another option than in the file differs."""
    path = next(path for path in PROBED if "text_cnn" in path.name)
    model = T7Reader(TESTFILES / "models/text_cnn.t7").read_object()
    norm = module_at(model, "root.modules[2]")
    assert isinstance(norm, TorchObject)
    norm["dW"] = 2.0
    with open(tmp_path / "m.t7", "wb") as stream:
        T7Writer(stream).write_object(model)
    first = t7bridge.prove(tmp_path / "m.t7", against=path).first_divergent
    assert first is not None
    assert first.path == "root.modules[2]"
    assert "dW is 2" in first.reason


@pytest.mark.parametrize(("field", "sides"), [("iwidth", (5.0, 7.0)), ("margin", (float("nan"), float("nan")))])
def test_what_a_forward_notes_is_no_option(field: str, sides: tuple[float, float], tmp_path: Path):
    """The side of the last image, which pooling keeps in the module, may be another in the recording; NaN is NaN."""
    path = next(path for path in PROBED if "text_cnn" in path.name)
    model = T7Reader(TESTFILES / "models/text_cnn.t7").read_object()
    ran = T7Reader(path).read_object()
    for root, side in zip((model, ran["model"]), sides):
        root.fields[field] = side
    for name, value in (("m", model), ("ran", ran)):
        with open(tmp_path / f"{name}.t7", "wb") as stream:
            T7Writer(stream).write_object(value)
    assert t7bridge.prove(tmp_path / "m.t7", against=tmp_path / "ran.t7").exit_code == 0


def test_the_probe_quotes_nothing_unescaped(tmp_path: Path):
    """A key of a hostile file reaches the script as digits only."""
    evil = b'x"]; os.execute("touch /tmp/x") --\n'
    assert set(lua_literal(evil)[1:-1]) <= set("\\0123456789")
    text = probe_source(["nn"], [evil, 3.0], Example("", (2, 3)))
    assert "os.execute" not in text
    value = Table.of({evil: T7Reader(TESTFILES / "nn/Linear.t7").read_object()})
    with open(tmp_path / "evil.t7", "wb") as stream:
        T7Writer(stream).write_object(value)
    write_probe(tmp_path / "evil.t7", str(tmp_path / "probe.lua"))
    assert "execute" not in (tmp_path / "probe.lua").read_text()
    with pytest.raises(TargetExistsError):
        write_probe(tmp_path / "evil.t7", str(tmp_path / "probe.lua"))


def test_the_probe_asks_for_what_it_cannot_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A model that does not tell what it takes needs --shape; with it, the script draws that."""
    path, out = str(TESTFILES / "nn/Tanh.t7"), str(tmp_path / "p.lua")
    assert main(["prove", path, "--probe", out]) != 0
    assert "--input" in capsys.readouterr().err
    assert main(["prove", path, "--probe", out, "--shape", "2x7"]) == 0
    assert "local input = normal(2, 7)" in Path(out).read_text()


@pytest.mark.skipif(not LUA, reason="Lua Torch is not installed")
def test_probes_run_in_lua(tmp_path: Path):
    """Lua Torch runs a probe, and what it records agrees to the last layer."""
    model = TESTFILES / "models/unet_nngraph.t7"
    write_probe(model, str(tmp_path / "probe.lua"))
    subprocess.run(
        [LUA, str(tmp_path / "probe.lua"), str(model), str(tmp_path / "proof.t7")], check=True, timeout=PATIENCE
    )
    proof = t7bridge.prove(model, against=tmp_path / "proof.t7")
    assert {layer.verdict for layer in proof.layers} == {"agrees"}
