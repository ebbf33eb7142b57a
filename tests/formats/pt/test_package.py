"""Archives of torch.package: the values that PyTorch has in them, without the code."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pt_helpers import members_of, zipped
from torch.package import PackageExporter

import t7bridge
from t7bridge import PtReader
from t7bridge.errors import CorruptError, UnsupportedError


def packed(fill: Callable[[PackageExporter], object]) -> bytes:
    """An archive that PyTorch writes."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with PackageExporter(file) as exporter:
            exporter.extern("**")
            fill(exporter)
    return file.getvalue()


@pytest.fixture(scope="module")
def net() -> torch.nn.Module:
    """A model with tied weights and a buffer."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def test_state_dict(net):
    """A state dict has PyTorch's values, types and sharing; the source next to it is named but not read."""
    reader = PtReader(packed(lambda exporter: (
        exporter.save_pickle("model", "weights.pkl", net.state_dict()),
        exporter.save_source_string("evil", "raise SystemExit(3)"),
        exporter.save_text("notes", "a.txt", "x"),
    )))  # fmt: skip
    value = reader.read()

    assert reader.kind == "package"
    assert list(value) == list(net.state_dict())
    for name, wanted in net.state_dict().items():
        assert value[name].element.name == str(wanted.dtype).removeprefix("torch.")
        assert np.array_equal(value[name].numpy(), wanted.numpy())
    assert value["0.weight"].storage is value["2.weight"].storage
    assert "evil.py" in str(reader.notes[0])


def test_whole_model(net, tmp_path):
    """A pickled model becomes its state dict in a `.pt` that `torch.load` opens safely."""
    (tmp_path / "model.pt").write_bytes(packed(lambda exporter: exporter.save_pickle("model", "model.pkl", net)))
    t7bridge.convert(tmp_path / "model.pt", tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)

    assert list(found) == list(net.state_dict())
    for name, wanted in net.state_dict().items():
        assert torch.equal(found[name], wanted)


def test_several_values(net):
    """Several pickles are values by the names of their members, and share storages."""
    value = PtReader(packed(lambda exporter: (
        exporter.save_pickle("a", "x.pkl", {"w": net[0].weight.detach(), "n": [1, "two", None]}),
        exporter.save_pickle("a.b", "y.pkl", net[0].weight.detach()),
    ))).read()  # fmt: skip

    assert list(value) == ["a/x.pkl", "a/b/y.pkl"]
    assert value["a/x.pkl"]["n"] == [1, "two", None]
    assert value["a/b/y.pkl"].storage is value["a/x.pkl"]["w"].storage


def test_without_values_and_damaged(net, tmp_path: Path):
    """A package of code only, and one without a storage, are errors that say so."""
    with pytest.raises(UnsupportedError, match="without pickled values"):
        PtReader(packed(lambda exporter: exporter.save_source_string("m", "x = 1"))).read()
    members = members_of(packed(lambda exporter: exporter.save_pickle("m", "w.pkl", net.state_dict())))
    name = next(name for name in members if name.endswith(".data/0.storage"))
    with pytest.raises(CorruptError, match=r"0\.storage"):
        PtReader(zipped({key: data for key, data in members.items() if key != name})).read()
    unread = PtReader(zipped({**members, name.replace("0.storage", "77.storage"): b"1234"}))
    unread.read()
    assert "77.storage" in str(unread.notes)
