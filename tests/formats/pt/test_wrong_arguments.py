"""Known globals with invalid arguments and states: an error that says so, or an inert object."""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict

import pytest
from helpers import TESTFILES
from pt_helpers import storage_id, tensor, text, unpickled, zipped

from t7bridge import Limits, PtReader, Storage, Tensor
from t7bridge.errors import CorruptError, FormatError, LimitError, T7BridgeError, UnsupportedError
from t7bridge.formats import tar_members
from t7bridge.graph import NumpyArray, NumpyDtype, PythonObject, QuantizedTensor, SparseTensor
from t7bridge.io import ByteSource


def call(name: str, *arguments: bytes) -> bytes:
    """A call of a global."""
    module, _, own = name.rpartition(".")
    return f"c{module}\n{own}\n".encode() + b"(" + b"".join(arguments) + b"tR"


def archive(pickle: bytes, storage: bytes = bytes(64)) -> bytes:
    """A checkpoint with the storages, `0` and `1`, of 16 floats each, that its pickle names."""
    weights = {f"a/data/{key}": storage for key in (0, 1) if text(str(key)) in pickle}
    return zipped({"a/data.pkl": b"\x80\x02" + pickle + b".", **weights, "a/version": b"3\n"})


def value_of(pickle: bytes) -> object:
    """The value of a checkpoint with that storage."""
    return PtReader(archive(pickle)).read()


ONE, TWO, NONE, TRUE = b"K\1", b"K\2", b"N", b"\x88"
FLOATS = storage_id("FloatStorage", "0", 16)
GOOD = tensor(FLOATS, 0, (2, 2), (2, 1))
FLOAT32 = b"ctorch\nfloat32\n"
PAIR = b"(K\2K\2t"
V2, V3 = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tC\1btR"
DTYPE = b"cnumpy\ndtype\n(" + text("f4") + b"\x89\x88tR"

OPAQUE = {
    "OrderedDict with two arguments": call("collections.OrderedDict", ONE, TWO),
    "OrderedDict of a number": call("collections.OrderedDict", ONE),
    "OrderedDict of no pairs": call("collections.OrderedDict", b"](K\1K\2e"),
    "Counter of a list": call("collections.Counter", b"]"),
    "list of two": call("builtins.list", ONE, TWO),
    "set of a number": call("builtins.set", ONE),
    "bytearray of a number": call("builtins.bytearray", ONE),
    "bytes of a number": call("builtins.bytes", ONE),
    "complex of text": call("builtins.complex", text("x")),
    "encode of bytes": call("_codecs.encode", b"C\1x", text("latin1")),
    "newobj of nothing": call("copyreg.__newobj__"),
    "newobj_ex of one": call("copyreg.__newobj_ex__", ONE),
    "newobj of newobj": call("copyreg.__newobj__", b"ccopyreg\n__newobj__\n"),
    "Size of two": call("torch.Size", ONE, TWO),
    "device of a number": call("torch.device", ONE),
    "device of no number": call("torch.device", text("cuda:x")),
    "device of two numbers": call("torch.device", text("cuda:0"), ONE),
    "device with an index that is text": call("torch.device", text("cuda"), text("x")),
    "layout that does not exist": call("torch.serialization._get_layout", text("torch.round")),
    "file that is a number": call("torch.storage._load_from_bytes", ONE),
    "file without a storage": call("torch.storage._load_from_bytes", b"C\x04\x80\x02N."),
    "rebuild_tensor of three": call("torch._utils._rebuild_tensor", FLOATS, ONE, PAIR),
    "rebuild_tensor_v2 of three": call(V2, FLOATS, ONE, PAIR),
    "rebuild_tensor_v3 of three": call(V3, FLOATS, ONE, PAIR),
    "parameter of two": call("torch._utils._rebuild_parameter", GOOD, TRUE),
    "parameter of text": call("torch._utils._rebuild_parameter", text("x"), TRUE, NONE),
    "type of one": call("torch._tensor._rebuild_from_type_v2", ONE),
    "type by a foreign function": call(
        "torch._tensor._rebuild_from_type_v2", b"cmy\nf\n", b"ctorch\nTensor\n", b")", NONE
    ),
    "quantized of one": call("torch._utils._rebuild_qtensor", ONE),
    "quantized without a scheme": call(
        "torch._utils._rebuild_qtensor", FLOATS, b"K\0", PAIR, PAIR, b"(K\1K\1K\1t", TRUE, NONE
    ),
    "sparse of one": call("torch._utils._rebuild_sparse_tensor", ONE),
    "sparse of too many parts": call(
        "torch._utils._rebuild_sparse_tensor", b"ctorch\nsparse_coo\n", b"(K\1K\1K\1K\1K\1t"
    ),
    "numpy tensor of text": call("torch._utils._rebuild_device_tensor_from_numpy", ONE, FLOAT32, text("xla:0"), TRUE),
    "numpy tensor of objects": call(
        "torch._utils._rebuild_device_tensor_from_numpy",
        ARRAY + b"(K\1(K\0tcnumpy\ndtype\n(" + text("O8") + b"\x89\x88tR\x89]tb",
        FLOAT32,
        text("xla:0"),
        TRUE,
    ),
    "cpu tensor of another type": call(
        "torch._utils._rebuild_device_tensor_from_cpu_tensor", GOOD, b"ctorch\nint8\n", text("x"), TRUE
    ),
    "FloatTensor of text": call("torch.FloatTensor", text("x")),
    "FloatStorage of text": call("torch.FloatStorage", text("x")),
    "FloatStorage of lists": call("torch.FloatStorage", b"](](K\1ee"),
    "Parameter of text": call("torch.nn.parameter.Parameter", text("x")),
    "Variable of text": call("torch.autograd.variable.Variable", text("x")),
    "typed list of text": call("torch.jit._pickle.build_intlist", text("x")),
    "type tag of one": call("torch.jit._pickle.restore_type_tag", ONE),
    "tensor by a number that is none": call("torch.jit._pickle.build_tensor_from_id", TWO),
    "dtype of a number": call("numpy.dtype", ONE),
    "array of a number": call("numpy.core.multiarray._reconstruct", ONE),
    "scalar of a number": call("numpy.core.multiarray.scalar", ONE),
    "buffer of a number": call("numpy.core.numeric._frombuffer", ONE),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_calls_without_a_meaning_are_opaque(name):
    """A known global with invalid arguments becomes an object that describes the call."""
    assert isinstance(value_of(OPAQUE[name]), PythonObject)


ODD = storage_id("ByteStorage", "0", 63)
REFUSED = {
    "encode by a codec that runs something": (call("_codecs.encode", text("x"), text("zlib")), "no pickler uses"),
    "encode by a codec of another name": (call("_codecs.encode", b"C\1x", text("hex")), "no pickler uses"),
    "arguments that are not a tuple": (b"ccollections\nOrderedDict\n]R", "without a tuple of arguments"),
    "state of an OrderedDict": (b"ccollections\nOrderedDict\n)R]b", "a state that is not a dict"),
    "state of a number": (b"K\1}b", "receives a state, but has none"),
    "sizes of text": (call(V2, FLOATS, b"K\0", text("xx"), PAIR, TRUE, NONE), "sizes that are not integers"),
    "strides of text": (
        call(V2, FLOATS, b"K\0", PAIR, b"(" + text("x") + b"t", TRUE, NONE),
        "strides that are not integers",
    ),
    "offset of text": (call(V2, FLOATS, text("x"), PAIR, PAIR, TRUE, NONE), "an offset that is not an integer"),
    "storage of text": (call(V2, text("x"), b"K\0", PAIR, PAIR, TRUE, NONE), "a tensor has no storage"),
    "metadata": (call(V2, FLOATS, b"K\0", PAIR, b"(K\2K\1t", TRUE, NONE, b"}" + text("odd") + b"K\1s"), "metadata"),
    "element type": (call(V3, FLOATS, b"K\0", PAIR, PAIR, TRUE, NONE, ONE), "an unknown element type"),
    "quantized axis": (
        call(
            "torch._utils._rebuild_qtensor",
            storage_id("QInt8Storage", "1", 16),
            b"K\0",
            PAIR,
            b"(K\2K\1t",
            b"(ctorch\nper_channel_affine\n" + GOOD + GOOD + b"K\7t",
            TRUE,
            NONE,
        ),
        "channels along a missing dimension",
    ),
    "sparse without tensors": (
        call("torch._utils._rebuild_sparse_tensor", b"ctorch\nsparse_coo\n", b"(K\1K\1K\1t"),
        "no indices",
    ),
    "state with a storage of another type": (
        b"ctorch\nFloatTensor\n)R(" + storage_id("LongStorage", "0", 8) + b"K\0" + PAIR + b"(K\2K\1ttb",
        "a storage of another element type",
    ),
    "bytes as elements of 4 bytes": (call(V3, ODD, b"K\0", PAIR, PAIR, TRUE, NONE, FLOAT32), "not a whole number"),
    "state of an array": (ARRAY + b"]b", "a state that is not a tuple"),
    "state of an array of two": (ARRAY + b"(K\1K\2tb", "an invalid state"),
    "shape of an array": (ARRAY + b"(K\1" + text("x") + DTYPE + b"\x89C\0tb", "has no shape"),
    "elements of an array": (ARRAY + b"(K\1(K\3t" + DTYPE + b"\x89C\4abcdtb", "do not fit its shape"),
    "byte order of a dtype": (
        DTYPE + b"(K\3" + text("?") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb",
        "no byte order",
    ),
    "lists of no array": (call("torch.FloatTensor", b"](](K\1e](K\1K\2ee"), "lists that are not an array"),
    "persistent id that is text": (text("0") + b"Q", "does not name a storage"),
    "part that is none": (storage_id("FloatStorage", "0", 16, tail=text("x")), "part of a storage is invalid"),
    "what adds to a list": (b"](K\1\x90", "adds to a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_refused(name):
    """Contradictions are errors with a reason and the position."""
    opcodes, words = REFUSED[name]
    with pytest.raises(T7BridgeError, match=words) as caught:
        value_of(opcodes)
    assert caught.value.offset is not None


def test_states_of_old_releases():
    """Tensors that were pickled by their state: of four parts, of five, of a dict."""
    empty = b"ctorch\nFloatTensor\n)R"
    four = value_of(empty + b"(" + FLOATS + b"K\1" + PAIR + b"(K\2K\1ttb")
    assert isinstance(four, Tensor)
    assert (four.size, four.stride, four.offset) == ((2, 2), (2, 1), 1)
    five = value_of(empty + b"(" + GOOD + NONE + NONE + TRUE + b"\x89tb")
    assert isinstance(five, Tensor)
    assert five.size == (2, 2)
    assert five.requires_grad
    other = value_of(GOOD + b"}" + text("tag") + ONE + b"sb")
    assert isinstance(other, Tensor)
    assert other.extras is not None
    assert other.extras.state == {"tag": 1}


@pytest.mark.parametrize("tail", [b"\x81", b"}\x92"], ids=["NEWOBJ", "NEWOBJ_EX"])
def test_containers_created_without_their_initializer(tail):
    """NEWOBJ and NEWOBJ_EX call `__new__` alone, which ignores the items of a list."""
    made = b"cbuiltins\nlist\n](K\1K\2e\x85" + tail

    assert value_of(made) == pickle.loads(b"\x80\x04" + made + b".") == []


@pytest.mark.parametrize(("layout", "stays"), [("sparse_csr", False), ("strided", True), ("float32", True)])
def test_layouts_that_no_sparse_tensor_has(layout, stays):
    """A call of PyTorch's function for sparse tensors with another layout, which it refuses, stays inert."""
    parts = b"(" + GOOD * 3 + PAIR + b"t"
    value = value_of(call("torch._utils._rebuild_sparse_tensor", f"ctorch\n{layout}\n".encode(), parts))

    assert isinstance(value, PythonObject if stays else SparseTensor)


def test_rare_calls_that_have_a_meaning():
    """Calls that few files have."""
    assert value_of(call("builtins.dict", b"](K\1K\2\x86e")) == {1: 2}
    assert value_of(call("builtins.set")) == set()
    assert value_of(call("builtins.bytearray")) == bytearray()
    assert value_of(call("_codecs.encode", text("\u20ac"))) == "\u20ac".encode()
    assert value_of(call("_codecs.encode", text("\u00e9"), text("latin\x1f1"))) == b"\xe9"  # as CPython reads the name
    assert value_of(b"ccollections\nOrderedDict\n)RNb") == OrderedDict()
    assert isinstance(value_of(call("copyreg.__newobj__", b"cmy\nNet\n", ONE)), PythonObject)
    assert isinstance(value_of(call("torch.FloatTensor")), Tensor)
    assert isinstance(value_of(call("torch.FloatStorage")), Storage)
    assert value_of(call("torch.autograd.variable.Variable", GOOD)).size == (2, 2)
    assert value_of(call("torch._utils._rebuild_tensor", FLOATS, b"K\0", PAIR, b"(K\2K\1t")).size == (2, 2)
    moved = value_of(call("torch._utils._rebuild_device_tensor_from_cpu_tensor", GOOD, FLOAT32, text("xla:0"), TRUE))
    assert moved.device == "xla:0"
    parameter = b"ctorch.nn.parameter\nParameter\n"
    arguments = b"(" + FLOATS + b"K\0" + PAIR + b"(K\2K\1t\x89Nt"
    kept = call(
        "torch._tensor._rebuild_from_type_v2", b"ctorch._utils\n_rebuild_tensor_v2\n", parameter, arguments, NONE
    )
    assert value_of(kept).is_parameter
    dtype = value_of(call("numpy.dtype", text("<f4")))
    assert isinstance(dtype, NumpyDtype)
    assert (dtype.code, dtype.order) == ("f4", "<")
    old = value_of(ARRAY + b"((K\2t" + DTYPE + b"\x89C\x08abcdefghtb")
    assert isinstance(old, NumpyArray)
    assert old.shape == (2,)
    assert unpickled(b"(K\1K\2(00.")[0] == 1  # POP of a mark, and of a value
    assert unpickled(b"cmy\nBag\n)R(K\1K\2\x90.")[0].items == [1, 2]


TAR = TESTFILES / "pt"


def tar_file(**parts: bytes) -> bytes:
    """A file in the tar layout of 0.1."""
    storages = (
        b"\x80\x02K\1.\x80\x02(K\1"
        + text("cpu")
        + b"ctorch\nFloatStorage\nt."
        + struct.pack("<q", 4)
        + bytes(16)
        + b"\x80\x02]."
    )
    tensors = b"\x80\x02K\1.\x80\x02(K\2K\1ctorch\nFloatTensor\nt." + struct.pack("<i4x5q", 2, 2, 2, 2, 1, 0)
    members = {"pickle": b"\x80\x02" + text("2") + b"Q.", "tensors": tensors, "storages": storages, **parts}
    return b"".join(tar_member(name, data) for name, data in members.items()) + bytes(1024)


def tar_member(name: str, data: bytes, kind: bytes = b"0") -> bytes:
    """A header and the bytes."""
    header = bytearray(512)
    header[: len(name)] = name.encode()
    header[124:136] = b"%011o\0" % len(data)
    header[148:157] = b" " * 8 + kind
    header[257:265] = b"ustar\x0000"
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data + bytes(-len(data) % 512)


def test_the_tar_that_is_changed_below():
    """It is a valid file as it is."""
    assert PtReader(tar_file()).read().size == (2, 2)


STORAGE = b"\x80\x02(K\1" + text("cpu") + b"ctorch\nFloatStorage\nt." + struct.pack("<q", 1) + bytes(4)
VIEW = struct.pack("<i4x3q", 1, 1, 1, 0)
TAR_REFUSED = {
    "no count": ({"storages": b"\x80\x02N."}, "does not begin with a count"),
    "no storage": ({"storages": b"\x80\x02K\1.\x80\x02N."}, "has no key, location and class"),
    "class": ({"storages": b"\x80\x02K\1.\x80\x02(K\1" + text("cpu") + b"cmy\nStorage\nt."}, "an unknown class"),
    "twice": ({"storages": b"\x80\x02K\2." + STORAGE + STORAGE + b"\x80\x02]."}, "occurs twice"),
    "part": ({"storages": b"\x80\x02K\1." + STORAGE + b"\x80\x02](Ne."}, "part of a storage is invalid"),
    "parts": ({"storages": b"\x80\x02K\1." + STORAGE + b"\x80\x02N."}, "part of a storage is invalid"),
    "part of nothing": (
        {"storages": b"\x80\x02K\1." + STORAGE + b"\x80\x02]((K\3K\7K\0K\1te."},
        "part of a missing one",
    ),
    "no tensor": ({"tensors": b"\x80\x02K\1.\x80\x02N."}, "has no key, storage and class"),
    "tensor on nothing": ({"tensors": b"\x80\x02K\1.\x80\x02(K\2K\7Nt."}, "a missing storage"),
    "tensor on a tensor": (
        {"tensors": b"\x80\x02K\2.\x80\x02(K\2K\1Nt." + VIEW + b"\x80\x02(K\3K\2Nt." + VIEW},
        "a tensor is on a tensor",
    ),
    "numbers that end early": ({"tensors": b"\x80\x02K\1.\x80\x02(K\2K\1Nt." + VIEW[:8]}, "ends inside a tensor"),
    "a class that is none": ({"pickle": b"\x80\x02(K\1tQ."}, "names no class"),
    "a tensor that is none": ({"pickle": b"\x80\x02" + text("77") + b"Q."}, "a missing tensor"),
    "a key with two signs": ({"pickle": b"\x80\x02" + text("--5") + b"Q."}, "a missing tensor"),
}


@pytest.mark.parametrize("name", TAR_REFUSED)
def test_wrong_tars_are_refused(name):
    """A tar archive that PyTorch never writes is an error that says so."""
    parts, words = TAR_REFUSED[name]
    with pytest.raises(FormatError, match=words):
        PtReader(tar_file(**parts)).read()


def test_rare_tars():
    """A class with its source, an empty tensor, extended headers, and what is too much of them."""
    assert (
        PtReader(tar_file(pickle=b"\x80\x02(cmy\nNet\n" + text("net.py") + text("class Net") + b"tQ.")).read().path
        == "my.Net"
    )
    empty = b"\x80\x02K\1.\x80\x02(K\1" + text("cpu") + b"ctorch\nFloatStorage\nt." + bytes(8) + b"\x80\x02]."
    none = PtReader(
        tar_file(storages=empty, tensors=b"\x80\x02K\1.\x80\x02(K\2K\1Nt." + struct.pack("<i4xq", 0, 0))
    ).read()
    assert none.size == (0,)

    def members(data: bytes, **limits: int) -> dict[str, tuple[int, int]]:
        return tar_members(ByteSource.from_bytes(data), Limits(**limits))

    timed = tar_member("././@PaxHeader", b"20 mtime=1479600.25\n", b"x") + tar_file()
    assert list(members(timed)) == ["pickle", "tensors", "storages"]
    with pytest.raises(LimitError, match="an extended header of too many bytes"):
        members(tar_member("././@PaxHeader", bytes(2 << 20), b"x"))
    with pytest.raises(LimitError, match="the limit archive_members"):
        members(tar_file(), archive_members=2)


def _prefixed(name: str) -> bytes:
    """A header of an empty member whose name has a prefix."""
    header = bytearray(tar_member(name, b""))
    header[345:346] = b"a"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


TAR_DECEIVES = {
    "pax path": tar_member("././@PaxHeader", b"15 path=pickle\n", b"x") + tar_member("sys_info", b"N."),
    "pax size": tar_member("././@PaxHeader", b"10 size=9\n", b"x") + tar_member("sys_info", b"N."),
    "pax with an unknown length": tar_member("././@PaxHeader", b"99 mtime=1\n", b"x") + tar_member("sys_info", b"N."),
    "pax of all members": tar_member("././@PaxHeader", b"15 path=pickle\n", b"g"),
    "sparse pax": tar_member("././@PaxHeader", b"22 GNU.sparse.major=1\n", b"x") + tar_member("sys_info", b"N."),
    "GNU long name": tar_member("././@LongLink", b"pickle\0", b"L") + tar_member("sys_info", b"N."),
    "GNU long link": tar_member("././@LongLink", b"pickle\0", b"K") + tar_member("sys_info", b"N."),
    "sparse": tar_member("sys_info", b"", b"S"),
    "hard link": tar_member("sys_info", b"", b"1"),
    "contiguous": tar_member("sys_info", b"", b"7"),
    "unknown kind": tar_member("sys_info", b"", b"A"),
    "folder": tar_member("sys_info/", b"", b"0"),
    "duplicate": tar_member("pickle", b"N."),
    "prefix": _prefixed("sys_info"),
    "other member": tar_member("data", b"N."),
    "first bytes that are a pickle": tar_member("I1\n0cos\nsystem\n", b"N."),
}


@pytest.mark.parametrize("name", TAR_DECEIVES)
def test_tars_that_other_readers_read_differently(name):
    """What changes the name or size of a member in `tarfile`, and PyTorch never wrote, is refused, first or last."""
    for data in (TAR_DECEIVES[name] + tar_file(), tar_file()[:-1024] + TAR_DECEIVES[name] + bytes(1024)):
        with pytest.raises(FormatError):
            PtReader(data).read()


def test_sizes_in_base_256():
    """They are refused: PyTorch 0.1 wrote octal numbers."""
    data = bytearray(tar_file())
    data[124:136] = b"\x80" + int(data[124:135], 8).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    with pytest.raises(FormatError, match="has no size"):
        PtReader(bytes(data)).read()


def test_legacy_files_of_other_parts():
    """The format of 0.2 to 1.5 with something else where its parts are."""
    magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
    version, facts = b"\x80\x02M\xe9\x03.", b"\x80\x02}."
    for data, words in (
        (magic + version + facts + b"\x80\x02N.\x80\x02N.", "no list of storage keys"),
        (magic + version + facts + b"\x80\x02(" + text("module") + b"tQ.", "names a module that does not exist"),
        (magic + b"\x80\x02K\1." + facts, "a protocol that no release used"),
        (b"\x80\x02(" + text("storage") + b"tQ.", "refers to external data, which do not exist"),
    ):
        with pytest.raises(CorruptError, match=words):
            PtReader(data).read()


def test_json_archives_of_other_parts():
    """TorchScript of 1.0 with invalid numbers, attributes and scales; a quantized tensor."""

    def read(tensor_: str = "", attributes: bytes = b"\x80\x02).") -> object:
        head = '{"mainModule":{"parameters":[{"name":"w","tensorId":"0"}]},"tensors":[{"dims":["2"],"strides":["1"],'
        model = head + tensor_ + '"data":{"key":"t/0"}}]}'
        return PtReader(
            zipped(
                {"a/model.json": model.encode(), "a/attributes.pkl": attributes, "a/t/0": bytes(8), "a/version": b"2\n"}
            )
        ).read()

    quantized = read('"dataType":"UINT8","isQuantized":true,"scale":0.5,"zeroPoint":"3",')["w"]
    assert isinstance(quantized, QuantizedTensor)
    assert (quantized.scale, quantized.zero_point) == (0.5, 3)
    for words, arguments in (
        ("the field scale is invalid", ('"dataType":"UINT8","isQuantized":true,"scale":"x",',)),
        ("attributes are not a list", ('"dataType":"FLOAT",', b"\x80\x02N.")),
    ):
        with pytest.raises(CorruptError, match=words):
            read(*arguments)
    with pytest.raises(CorruptError, match="is not in PyTorch's format"):
        PtReader(zipped({"a/model.json": b"[]", "a/version": b"2\n"})).read()


def test_storages_by_key():
    """A storage by its key, and the errors of a file without archive for missing keys and members."""
    sound = archive(GOOD)
    with PtReader(sound) as reader:
        assert reader.storage("0").count == 16
        start, size = reader.member_span("a/data/0")
        assert (sound[start : start + size], size) == (bytes(64), 64)
        with pytest.raises(UnsupportedError, match="has no member"):
            reader.member_span("nothing")
    legacy = next(TESTFILES.glob("pt/state_dict.legacy.pt"))
    reader = PtReader(legacy)
    with pytest.raises(UnsupportedError, match="has no storage"):
        reader.storage("nothing")
    assert isinstance(reader.storage(next(iter(reader._storages.roots))), Storage)
    import zipfile

    deflated = PtReader(
        zipped({"a/data.pkl": b"\x80\x02N.", "a/data/0": bytes(64), "a/version": b"3\n"}, zipfile.ZIP_DEFLATED)
    )
    with pytest.raises(UnsupportedError, match="deflated only"):
        deflated.member_span("a/data/0")
