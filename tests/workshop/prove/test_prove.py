"""`prove` against models that Lua Torch ran and saved with its outputs: sound ones, updated ones, changed ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers import TESTFILES, corpus, name_of
from prove_changes import changes, replaced

import t7bridge
from t7bridge import Storage, T7Reader, Table, TorchObject
from t7bridge.cli import main
from t7bridge.formats.t7.writer import T7Writer
from t7bridge.graph.walk import walk
from t7bridge.nn.places import module_at
from t7bridge.workshop.prove import Proof

PUBLISHED = os.environ.get("T7BRIDGE_PUBLISHED", "")
SOUND = [*corpus("prove/*.train.t7"), *corpus("prove/*.eval.t7")]
STALE = corpus("prove/*.stale.t7")


def unexplained(proof: Proof) -> list[tuple[str, str]]:
    """The layers that differ though no update of the weights explains it."""
    return [(layer.path, layer.reason) for layer in proof.unexplained]


@pytest.mark.slow
@pytest.mark.parametrize("path", SOUND, ids=name_of)
def test_sound_models_agree(path: Path):
    """Every recorded pair of a model that Lua Torch left as it ran agrees within 1e-4 and 1e-5."""
    proof = t7bridge.prove(path)
    assert proof.exit_code == 0, proof.sentence()
    assert not proof.of("differs")
    assert proof.agreeing()
    for layer in proof.agreeing():
        assert layer.max_abs is not None
        assert layer.max_rel is not None
        assert layer.max_abs <= 1e-5 or layer.max_rel <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("path", STALE, ids=name_of)
def test_weights_that_moved_after_the_last_forward(path: Path):
    """A model saved after an update: all its layers with weights differ, and that is what is said."""
    proof = t7bridge.prove(path)
    assert proof.exit_code == 0, proof.sentence()
    assert proof.sentence().endswith("the weights were updated after the last forward pass, as training does")
    assert all(layer.updated and layer.has_weights for layer in proof.of("differs"))
    before = path.with_name(path.name.replace(".stale.", ".train."))
    known = {layer.path: layer for layer in t7bridge.prove(before).layers} if before.exists() else {}
    for layer in proof.of("agrees"):
        if layer.path in known:
            assert known[layer.path].verdict == "agrees"


@pytest.mark.slow
def test_nothing_is_left_unchecked_in_training():
    """In the ResNet, with its in-place additions and activations, all layers are checked."""
    proof = t7bridge.prove(TESTFILES / "prove/resnet.train.t7")
    assert {layer.verdict for layer in proof.layers} == {"agrees"}
    assert proof.summary()["parameters_checked"] == proof.summary()["parameters"] > 500


@pytest.mark.slow
@pytest.mark.parametrize("options", [False, True], ids=["weight", "option"])
@pytest.mark.parametrize("name", ["lenet.train", "mlp.eval", "inception.train", "graph.train", "mlp_double.eval"])
def test_a_change_is_found_and_named(name: str, options: bool):
    """One weight changed by a thousandth of its size, or one option, is found, and its layer is named."""
    tried = 0
    for change, proof in changes(TESTFILES / f"prove/{name}.t7", 2, 3, options):
        tried += 1
        assert proof.exit_code == 1, change
        assert change.path in [layer.path for layer in proof.of("differs")], change
    assert tried or options


@pytest.mark.fuzz
def test_changes_at_random_are_found():
    """Of 200 changes, half of weights and half of options, in all models, every one that shows is found and named."""
    missed, tried = [], 0
    for seed in range(20):
        for path in SOUND:
            for options in (False, True):
                for change, proof in changes(path, 1, seed, options):
                    tried += 1
                    if change.path not in [layer.path for layer in proof.of("differs")]:
                        missed.append((path.name, change))
            if tried >= 200:
                break
        if tried >= 200:
            break
    assert tried >= 200
    assert not missed


@pytest.mark.slow
def test_exit_code_0(capsys: pytest.CaptureFixture[str]):
    """All agrees; JSON lists the layers."""
    assert main(["prove", str(TESTFILES / "prove/lenet.train.t7"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["differs"] == 0
    assert found["summary"]["agrees"] == 11
    assert {"path", "class", "verdict", "max_abs", "max_rel"} <= set(found["layers"][0])


@pytest.mark.slow
def test_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Something differs, and is named."""
    value = T7Reader(TESTFILES / "prove/lenet.train.t7").read_object()
    conv = module_at(value, "root.modules[4]")
    assert conv is not None
    array = conv["weight"].storage.array.copy()
    array[7] *= 1.001
    replaced(value, conv["weight"].storage, Storage.from_array(array))
    with open(tmp_path / "bad.t7", "wb") as stream:
        T7Writer(stream).write_object(value)
    assert main(["prove", str(tmp_path / "bad.t7")]) == 1
    text = capsys.readouterr().out
    assert "differs       3   nn.SpatialConvolution  root.modules[4]" in text
    layers = "root.modules[4], nn.SpatialConvolution and root.modules[5], nn.ReLU"
    assert f"{layers}, do not compute what Lua recorded, while 9" in text


@pytest.mark.slow
def test_exit_code_2(capsys: pytest.CaptureFixture[str]):
    """Nothing could be checked; a hint says how to record it."""
    assert main(["prove", str(TESTFILES / "models/lenet_mm.t7")]) == 2
    out, err = capsys.readouterr()
    assert "nothing is proved, as nothing in the file could be checked" in out
    assert "model:forward(input)" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place", "field", "value"),
    [
        ("dilated.train", "root.modules[2]", "eps", 1e-5),
        ("lenet.train", "root.modules[6]", "ceil_mode", False),
        ("dilated.train", "root.modules[4]", "padW", 2.0),
        ("dilated.train", "root.modules[3]", "negval", 0.3),
    ],
)
def test_the_layer_of_a_changed_option_is_named(name: str, place: str, field: str, value: object):
    """The layer whose option was changed differs."""
    model = T7Reader(TESTFILES / f"prove/{name}.t7").read_object()
    obj = module_at(model, place)
    assert obj is not None
    obj[field] = value
    proof = t7bridge.prove(model)
    assert proof.exit_code == 1
    assert place in [path for path, _ in unexplained(proof)]


@pytest.mark.slow
def test_recorded_pairs_of_the_corpus_agree():
    """Whatever outputs the rest of the corpus still holds agrees, or has a reason that is known here."""
    checked = 0
    lists = [TESTFILES / f"{name}.t7" for name in ("rnn_options", "rnn2_options", "torch_rnn_options", "zoo_classes")]
    for path in [*corpus("rnn/*.t7", "models/*.t7"), *lists]:
        if ".io." in path.name:
            continue
        proof = t7bridge.prove(path)
        checked += len(proof.agreeing())
        assert unexplained(proof) == [], path.name
    assert checked > 600


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED, reason="T7BRIDGE_PUBLISHED names no folder with published files")
def test_recorded_pairs_of_published_files_agree():
    """Published files, in a folder that the environment names: each recorded pair agrees, or has a known reason."""
    checked = 0
    for path in sorted(Path(PUBLISHED).iterdir()):
        try:
            proof = t7bridge.prove(path)
        except (t7bridge.T7BridgeError, OSError):
            continue  # of another format, or without modules
        checked += len(proof.agreeing())
        assert unexplained(proof) == [], path.name
    assert checked > 600


def test_several_models_or_one():
    """A checkpoint's models are proved one after the other, or the one that is asked for."""
    path = TESTFILES / "prove/checkpoint.eval.t7"
    assert not any(layer.path.startswith("root.criterion") for layer in t7bridge.prove(path).layers)
    alone = t7bridge.prove(path, "root.model")
    assert all(layer.path.startswith("root.model") for layer in alone.layers)
    with pytest.raises(t7bridge.T7BridgeError, match=r"no module at root\.other"):
        t7bridge.prove(path, "root.other")


@pytest.mark.parametrize("dimension", [float("nan"), float("inf"), -1.0, 1e300, 99.0])
@pytest.mark.parametrize("kept", [True, False])
def test_damaged_concat(dimension: float, kept: bool):
    """A Concat without modules, or of a dimension that no tensor has, does not agree, and is no error."""
    model = T7Reader(TESTFILES / "prove/inception.train.t7").read_object()
    found = [visit.value for visit in walk(model) if isinstance(visit.value, TorchObject)]
    concat = next(value for value in found if "Concat" in value.class_name)
    concat["dimension"] = dimension
    if not kept:
        concat["modules"] = Table.of([])
    proof = t7bridge.prove(model)
    assert proof.first_divergent is not None
    assert proof.first_divergent.path == "root.modules[3]"
