"""`docs/format-pt.md` agrees with PyTorch's files and with the package."""

from __future__ import annotations

import io
import pickle
import re
import zipfile

import torch
from helpers import ROOT
from pt_helpers import members_of, saved

from t7bridge import PtReader
from t7bridge.formats import (
    ALIGNMENT_BYTES,
    ALIGNMENT_MEMBER,
    BYTEORDER_MEMBER,
    DATA_MEMBER,
    FORMAT_MEMBER,
    ID_MEMBER,
    RECORD_MEMBER,
    VERSION_MEMBER,
)

DOCUMENT = (ROOT / "docs" / "format-pt.md").read_text()


def test_magic_number():
    """A file of the magic number begins with the bytes and the integer of the document."""
    file = io.BytesIO()
    torch.save({"a": torch.ones(2)}, file, _use_new_zipfile_serialization=False)
    data = file.getvalue()
    given = re.search(r"`(80 02 8a [0-9a-f ]+)`", DOCUMENT)
    assert given is not None
    assert data.startswith(bytes.fromhex(given[1]))
    assert hex(pickle.loads(data[:15])) in DOCUMENT
    assert PtReader(data).read()["a"].numpy().tolist() == [1, 1]


def test_members():
    """Every member that this PyTorch writes is in the table, and every name that the package knows is."""
    section = DOCUMENT.partition("## 3. ")[2].partition("## 4. ")[0]
    for name in members_of(saved({"a": torch.ones(2)})):
        below = name.partition("/")[2]
        assert f"`{re.sub(r'^data/.*', 'data/KEY', below)}`" in section, name
    names = (DATA_MEMBER, BYTEORDER_MEMBER, FORMAT_MEMBER, ALIGNMENT_MEMBER,
             ID_MEMBER, VERSION_MEMBER, RECORD_MEMBER)  # fmt: skip
    assert all(f"`{name}`" in section for name in names)
    data = saved({"a": torch.ones(2)})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = next(info for info in archive.infolist() if "/data/" in info.filename)
    start = info.header_offset + 30 + int.from_bytes(data[info.header_offset + 26 :][:2], "little")
    start += int.from_bytes(data[info.header_offset + 28 :][:2], "little")
    assert start % ALIGNMENT_BYTES == 0


def test_modules_exist():
    """Every module that the document names is there."""
    named = set(re.findall(r"`(formats/[a-z0-9_/]+\.py)`", DOCUMENT))
    assert len(named) >= 6
    assert all((ROOT / "t7bridge" / name).exists() for name in named)


def test_files_of_deepspeed_and_fsdp_load():
    """The fields of DeepSpeed's model states and of a full FSDP checkpoint are plain values and tensors."""
    state = torch.nn.Linear(3, 2).state_dict()
    deepspeed = {
        "module": state, "buffer_names": [], "optimizer": None, "lr_scheduler": None, "global_steps": 7,
        "param_shapes": [{name: tensor.shape for name, tensor in state.items()}], "dp_world_size": 1,
        "ds_config": {"zero_optimization": {"stage": 0}, "train_batch_size": 4}, "ds_version": "0.14.0",
        "csr_tensor_module_names": set(), "skipped_steps": 0,
    }  # fmt: skip
    optimizer = {"state": {name: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)} for name in state},
                 "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": list(state)}]}  # fmt: skip
    found = PtReader(saved({"deepspeed": deepspeed, "fsdp": {"model": state, "optim": optimizer}})).read()

    assert found["deepspeed"]["module"]["weight"].numpy().tolist() == state["weight"].tolist()
    assert found["deepspeed"]["param_shapes"][0]["weight"] == (2, 3)
    assert found["fsdp"]["optim"]["state"]["bias"]["exp_avg"].numpy().tolist() == [1, 1]
    assert found["fsdp"]["optim"]["param_groups"][0]["params"] == ["weight", "bias"]
