"""Copies and pickles of loaded values, and writing into their arrays: nothing depends on the file or is lost."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers import TESTFILES
from looping import new_folder

import t7bridge
from t7bridge.graph import UNSET
from t7bridge.values import differences

FILES = ["format/checkpoint.t7", "format/checkpoint.ascii.t7", "format/shared_flat_parameters.t7",
         "format/table_mixed_keys.t7", "format/table_tensor_key.t7", "format/table_cycle.t7", "format/tds_hash.t7",
         "models/resnet_small.t7", "pt/checkpoint_adam.pt", "pt/dtype_bfloat16.pt", "pt/views_overlap.pt"]  # fmt: skip


def copies(value):
    """A value as `copy` and `pickle` make it again."""
    return {"deepcopy": copy.deepcopy(value), "pickle": pickle.loads(pickle.dumps(value))}


def test_copies_are_independent_of_the_file(subtests, tmp_path):
    """A copy is the same value when the original is gone and its file too, element types are themselves."""
    for name in FILES:
        with subtests.test(name=name), new_folder(tmp_path) as folder:
            path = folder / name.rpartition("/")[2]
            shutil.copy(TESTFILES / name, path)
            value = t7bridge.load(path)
            repr(value)
            made = copies(value)
            del value
            os.remove(path)
            others = [
                t7bridge.open(TESTFILES / "format/tensor_float.t7") for _ in range(8)
            ]  # take the descriptor's number
            original = t7bridge.load(TESTFILES / name)
            for how, again in made.items():
                assert not list(differences(original, again)), how
            for other in others:
                other.close()


def test_pickles_in_another_process(tmp_path):
    """Another process reads a pickled value's elements, and not what has the same descriptor there."""
    value = t7bridge.load(TESTFILES / "format/tensor_float.t7")
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(value))
    code = (
        "import pickle, sys; held = [open(sys.argv[1], 'rb') for _ in range(9)]; print(pickle.load(held[0]).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.pickle"], capture_output=True, text=True)
    assert done.stdout.strip() == str(value.tolist())


def test_sharing_in_copies():
    """Tensors of one storage are views of one storage in a copy too, after their array was used as well."""
    value = t7bridge.load(TESTFILES / "format/shared_evens.t7")
    value.numbers.numpy()
    for again in copies(value).values():
        assert again.numbers.storage is again.evens.storage is not value.numbers.storage
        assert again.numbers.element is value.numbers.element
        again.evens.numpy()[:] = 0
        assert again.numbers.tolist() == [1, 0, 3, 0, 5, 0, 7, 0, 9]
    assert value.evens.tolist() == [2, 4, 6, 8]


def test_keys_in_copies():
    """Keys that are objects are found in a copy by the object that is the key there."""
    value = t7bridge.load(TESTFILES / "format/table_tensor_key.t7")
    list(value.items())
    for key in value.raw_keys:
        value[key]
    for again in copies(value).values():
        assert {again[key] for key in again.raw_keys} == {b"by tensor", b"by table"}


def test_the_missing_state_is_one():
    """The marker of a missing state is itself in copies."""
    assert copies(UNSET) == {"deepcopy": UNSET, "pickle": UNSET}
    assert copy.copy(UNSET) is UNSET


def test_open_files_are_not_copied():
    """A document is an open file, which no pickle has."""
    with (
        t7bridge.open(TESTFILES / "format/tensor_float.t7") as document,
        pytest.raises(TypeError, match=r"tensor_float\.t7 is an open file"),
    ):
        pickle.dumps(document.source)


def test_arrays_of_files_are_read_only(subtests):
    """Arrays of a file are read-only, as written values would be lost: numpy refuses, whatever the encoding."""
    for form in ["", ".big", ".ascii", ".long4"]:
        with subtests.test(form=form):
            value = t7bridge.load(TESTFILES / f"format/tensor_double{form}.t7")
            for array in (value.numpy(), np.asarray(value), value.storage.array, value[0].numpy()):
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 7
            again = copy.deepcopy(value)
            again.numpy()[...] = 7
            assert np.unique(again).tolist() == [7.0]
            assert value.torch().fill_(3).sum() == 3 * value.numel


def test_storages_are_arrays():
    """numpy makes an array of a storage's elements, in the type that was asked for."""
    value = t7bridge.load(TESTFILES / "format/storage_int.t7")
    assert np.asarray(value).dtype == "i4"
    assert np.asarray(value, "f8").tolist() == value.array.tolist()
