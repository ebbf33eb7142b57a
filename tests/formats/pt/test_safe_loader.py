"""`scan` takes and refuses what `torch.load(weights_only=True)` takes and refuses: each operation and use."""

from __future__ import annotations

import struct
import warnings

import pytest
from helpers import TESTFILES
from pt_helpers import text, zipped

import t7bridge

torch = pytest.importorskip("torch")

ORDERED = b"ccollections\nOrderedDict\n)R"
STORAGE = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x04tQ"
INTEGERS = STORAGE.replace(b"FloatStorage", b"LongStorage").replace(b"K\x04", b"K\x02")


def tensor(storage: bytes = STORAGE, requires_grad: bytes = b"\x89", offset: bytes = b"K\0") -> bytes:
    """A call of the function that builds a tensor of two elements."""
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset + b"K\2\x85K\1\x85" + requires_grad + ORDERED + b"tR"
    )


def subclass(cls: bytes, state: bytes) -> bytes:
    """A call of the function that builds a tensor of a class, with attributes."""
    inner = b"(" + STORAGE + b"K\0K\2\x85K\1\x85\x89" + ORDERED + b"t"
    function = b"ctorch._tensor\n_rebuild_from_type_v2\n"
    return function + b"(ctorch._utils\n_rebuild_tensor_v2\n" + cls + inner + state + b"tR"


TENSOR_CLASS = b"ctorch\nTensor\n"
PARAMETER = b"ctorch.nn.parameter\nParameter\n"
PICKLES = {
    # Operations
    "none": b"N",
    "numbers": b"(K\1M\1\2J\1\2\3\4G\0\0\0\0\0\0\0\0\x8a\x02\1\2t",
    "long4": b"\x8b\1\0\0\0\1",
    "text": text("\u20ac"),
    "short text": b"\x8c\1a",
    "bytes": b"C\1a",
    "old text": b"U\2ab",
    "old bytes": b"U\1\xff",
    "lists": b"](K\1e",
    "append": b"]K\1a",
    "tuples": b"K\1\x85K\2\x86K\3K\4\x87",
    "set": b"\x8f",
    "set items": b"\x8f(K\1\x90",
    "frozen": b"(K\1\x91",
    "dict": b"}(K\1K\2uK\3K\4s",
    "old dict": b"(K\1K\2d",
    "old list": b"(K\1l",
    "memo": b"]q\1h\1\x86",
    "memoize": b"]\x94",
    "old memo": b"]p1\n",
    "pop": b"K\1K\2" + b"0",
    "mark popped": b"K\1(K\2" + b"1",
    "twice": b"K\1" + b"2\x86",
    "line": b"I1\n",
    "frame": b"\x95\x01\0\0\0\0\0\0\0N",
    "below the mark": b"K\1(\x85",
    "two below the mark": b"K\1(K\2\x86",
    "mark left": b"K\1(K\2",
    "never numbered": b"h\1",
    "extension": b"\x82\1",
    "inst": b"(ibuiltins\nset\n",
    "obj": b"(cbuiltins\nset\no",
    "protocol 4": b"\x80\4N",
    "stack global": b"\x8c\x0bcollections\x8c\x07Counter\x93)R",
    # Names
    "another split": b"ctorch\nnn.parameter.Parameter\n",
    "python 2": b"c__builtin__\nset\n",
    "user": b"cUserDict\nCounter\n",
    "function": b"ctorch\nadd\n",
    "module": b"ctorch.nn.modules.linear\nLinear\n",
    "numpy": b"cnumpy\ndtype\n",
    "storage module": b"ctorch.storage\nFloatStorage\n",
    "old tensor": b"ctorch.tensor\n_rebuild_from_type_v2\n",
    "deque": b"ccollections\ndeque\n)R",
    "default": b"ccollections\ndefaultdict\n)R",
    # Calls
    "ordered": ORDERED,
    "counter": b"ccollections\nCounter\n)R",
    "size": b"ctorch\nSize\n(K\1K\2t\x85R",
    "size of text": b"ctorch\nSize\n(" + text("a") + b"t\x85R",
    "device": b"ctorch\ndevice\n" + text("cuda:1") + b"\x85R",
    "other device": b"ctorch\ndevice\n" + text("foo") + b"\x85R",
    "complex": b"cbuiltins\ncomplex\nK\1K\2\x86R",
    "sets": b"cbuiltins\nset\n](K\1e\x85R",
    "encode": b"c_codecs\nencode\n" + text("a") + text("latin1") + b"\x86R",
    "codec": b"c_codecs\nencode\n" + text("\u20ac") + text("latin1") + b"\x86R",
    "dtype called": b"ctorch\nfloat32\n)R",
    "storage called": b"ctorch\nFloatStorage\n]\x85R",
    "number called": b"K\1)R",
    "result called": ORDERED + b")R",
    "new": b"ccollections\nOrderedDict\n)\x81",
    "new function": b"ctorch._utils\n_rebuild_tensor\n)\x81",
    "new device": b"ctorch\ndevice\n" + text("cpu") + b"\x85\x81",
    "layout": b"ctorch.serialization\n_get_layout\n" + text("torch.sparse_coo") + b"\x85R",
    "getattr": b"cbuiltins\ngetattr\n(ccollections\nOrderedDict\n" + text("fromkeys") + b"tR",
    # Storages and tensors
    "tensor": tensor(),
    "outside": tensor(offset=b"K\3"),
    "negative": tensor(offset=b"J\xff\xff\xff\xff"),
    "gradient": tensor(requires_grad=b"\x88"),
    "gradient of text": tensor(requires_grad=text("yes")),
    "gradient of integers": tensor(INTEGERS, b"\x88"),
    "integers": tensor(INTEGERS),
    "storage": STORAGE,
    "short storage": tensor(STORAGE.replace(b"K\x04", b"K\x03")),
    "long storage": tensor(STORAGE.replace(b"K\x04", b"K\x05")),
    "legacy id": tensor(STORAGE.replace(b"tQ", b"NtQ")),
    "other id": b"(" + text("module") + b"K\1tQ",
    "text id": text("storage") + b"Q",
    "missing": tensor(STORAGE.replace(text("0"), text("1"))),
    "untyped": STORAGE.replace(b"ctorch\nFloat", b"ctorch.storage\nUntyped").replace(b"K\x04", b"K\x10"),
    "parameter": b"ctorch._utils\n_rebuild_parameter\n(" + tensor() + b"\x88" + ORDERED + b"tR",
    "parameter of integers": b"ctorch._utils\n_rebuild_parameter\n(" + tensor(INTEGERS) + b"\x88" + ORDERED + b"tR",
    "parameter class": PARAMETER + tensor() + b"\x85R",
    "new parameter": PARAMETER + tensor() + b"\x85\x81",
    "attributes": subclass(TENSOR_CLASS, b"}" + text("note") + b"K\1s"),
    "attribute": subclass(TENSOR_CLASS, b"}" + text("shape") + b"K\1s"),
    "number as state": subclass(TENSOR_CLASS, b"K\1"),
    "parameter by class": subclass(PARAMETER, b"}"),
    "not a tensor class": subclass(b"ccollections\nOrderedDict\n", b"}"),
    # States
    "ordered state": ORDERED + b"}" + text("a") + b"K\1sb",
    "no state": ORDERED + b"Nb",
    "set state": b"\x8f}K\1K\2sb",
    "dict state": b"}}b",
    "tensor state": tensor() + b"(" + STORAGE + b"K\0K\2\x85K\1\x85tb",
    "tensor attributes": tensor() + b"}" + text("a") + b"K\1sb",
    "items of ordered": ORDERED + b"K\1K\2s",
    "items of a list": b"]K\1K\2s",
    "appended to a tuple": b")K\1a",
    "key": b"}]K\1s",
}


def is_taken(path) -> bool:
    """Whether PyTorch's safe loader takes a file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        return False
    return True


def test_each_operation_and_use(subtests, tmp_path):
    """What is clean is what PyTorch takes, operation by operation."""
    verdicts = []
    for name, opcodes in PICKLES.items():
        with subtests.test(name):
            members = {"a/data.pkl": b"\x80\x02" + opcodes + b".", "a/version": b"3\n"}
            if b"Storage" in opcodes:
                members["a/data/0"] = struct.pack("<4f", 1, 2, 3, 4)
            (tmp_path / "x.pt").write_bytes(zipped(members))
            report = t7bridge.scan(tmp_path / "x.pt")
            verdicts.append(report.clean)
            assert report.clean == is_taken(tmp_path / "x.pt"), report
    assert 30 < sum(verdicts) < len(PICKLES) - 30


ARCHIVES = {
    "sound": {},
    "no version": {"a/version": None},
    "new version": {"a/version": b"11\n"},
    "version of text": {"a/version": b"three"},
    "outside": {"b/x": b"1"},
    "alignment": {"a/.storage_alignment": b"many"},
    "id": {"a/.data/serialization_id": b"\xff"},
}


def test_members_beside_the_value(subtests, tmp_path):
    """Members that PyTorch reads beside the value are those that it takes."""
    for name, changed in ARCHIVES.items():
        with subtests.test(name):
            members = {"a/data.pkl": b"\x80\x02}.", "a/version": b"3\n", **changed}
            (tmp_path / "x.pt").write_bytes(zipped({key: data for key, data in members.items() if data is not None}))
            assert t7bridge.scan(tmp_path / "x.pt").clean == is_taken(tmp_path / "x.pt") == (name == "sound")


@pytest.mark.slow
def test_files_of_pytorch(subtests):
    """Over all files, nothing is clean that PyTorch refuses; and what it takes of `torch.save` is clean."""
    for path in sorted(TESTFILES.glob("pt/*.pt")) + sorted(TESTFILES.glob("bad/*.pt")):
        with subtests.test(path.name):
            report = t7bridge.scan(path)
            if path.name.startswith(("torchscript_", "cpp_")):  # which C++ reads
                continue
            taken = is_taken(path)
            assert taken or not report.clean
            assert report.clean or not taken or path.parent.name == "bad", report


def test_files_without_a_value(tmp_path):
    """A plain pickle and a tar file are named, whatever is in them: the safe loader takes none."""
    (tmp_path / "x.pt").write_bytes(b"\x80\x02}.")
    for path in (tmp_path / "x.pt", TESTFILES / "pt/tar_state_dict.pt"):
        assert not is_taken(path)
        report = t7bridge.scan(path)
        assert "refused" in {finding.kind for finding in report.findings}
        assert report.remedy


def test_what_is_no_pickle_by_chance(tmp_path):
    """Elements that begin as a pickle are none, unless a name is in them; so are bytes after a value."""
    weights = b"\x80\x02" + b"\x94" * 14
    tensors = tensor().replace(b"K\2\x85", b"K\4\x85")
    members = {"a/data.pkl": b"\x80\x02" + tensors + b".", "a/version": b"3\n", "a/data/0": weights}
    (tmp_path / "x.pt").write_bytes(zipped(members))
    assert is_taken(tmp_path / "x.pt")
    assert t7bridge.scan(tmp_path / "x.pt").clean
    members["a/other"] = b"\x80\x02cos\nsystem\n)R"
    (tmp_path / "x.pt").write_bytes(zipped(members))
    assert [finding.name for finding in t7bridge.scan(tmp_path / "x.pt").findings][:1] == ["os.system"]
