"""The pickle interpreter: what Python's own reads of data, and nothing at all of what is not data."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import pickletools
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pt_helpers import text, unpickled

from t7bridge import Limits
from t7bridge.errors import CorruptError, FormatError, LimitError, T7BridgeError, TruncatedError, UnsupportedError
from t7bridge.graph import UNSET, DefaultDict, PythonGlobal, PythonObject, TorchSize

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.binary(),
)
keys = st.one_of(scalars, st.tuples(scalars, scalars), st.frozensets(scalars, max_size=3))
values = st.recursive(
    st.one_of(scalars, st.binary().map(bytearray), st.sets(keys, max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(keys, inner),
        st.dictionaries(keys, inner).map(collections.OrderedDict),
    ),
    max_leaves=20,
)


def typed(value):
    """A value with the type of each part, and the order of the parts that have one."""
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(typed(part) for part in value)
    if isinstance(value, dict):
        return type(value), tuple((typed(key), typed(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(typed(part) for part in value)
    return type(value), repr(value)


def calls(module: str, name: str, argument: bytes = b"") -> bytes:
    """A pickle that calls a function with one argument."""
    return b"\x80\x02" + f"c{module}\n{name}\n".encode() + (argument or text("true")) + b"\x85R."


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(value=values)
def test_data_is_what_python_reads(protocol, value):
    """Builtins come out of every protocol as they went in: values, types and order."""
    read, foreign = unpickled(pickle.dumps(value, protocol))

    assert value == read
    assert typed(value) == typed(read)
    assert foreign == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sharing_and_cycles(protocol):
    """Shared objects stay shared, and a cycle stays a cycle."""
    shared: list[object] = [1]
    loop = {"self": None, "a": shared, "b": shared, "pair": (shared, shared)}
    loop["self"] = loop
    read, _ = unpickled(pickle.dumps(loop, protocol))

    assert read["self"] is read
    assert read["a"] is read["b"] is read["pair"][0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_collections(protocol):
    """Counters and default dicts are dicts; the factory is remembered and never used."""
    value = {"count": collections.Counter("aab"), "default": collections.defaultdict(list, {"k": [1]})}
    read, foreign = unpickled(pickle.dumps(value, protocol))

    assert read["count"] == {"a": 2, "b": 1}
    assert type(read["default"]) is DefaultDict
    assert read["default"] == {"k": [1]}
    assert read["default"].factory.path == "builtins.list"
    assert foreign == []


def test_large_values_cross_the_windows():
    """Texts, bytes and long lists are read across the pieces in which the file is read."""
    value = ["x" * 200_000, b"y" * 300_000, list(range(100_000)), "end", 2**4000]

    assert value == unpickled(pickle.dumps(value, 4))[0]
    assert value == unpickled(pickletools.optimize(pickle.dumps(value, 3)))[0]


def test_strings_of_python_2():
    """A `str` of Python 2 is text where it is UTF-8, else bytes."""
    assert unpickled(b"U\x03abc.")[0] == "abc"
    assert unpickled(b"T\x02\0\0\0\xff\xfe.")[0] == b"\xff\xfe"
    assert unpickled(b"S'a\\x41\\n'\n.")[0] == "aA\n"


def test_dicts_of_old_protocols():
    """LIST, DICT, INT and the other opcodes of protocols 0 and 1 are interpreted correctly."""
    assert unpickled(b"(lp0\nI01\naI00\naI7\na.")[0] == [True, False, 7]
    assert unpickled(b"(I1\nF2.5\nV\\u20ac\nL7L\nd.")[0] == {1: 2.5, "€": 7}
    assert unpickled(b"I1\nI2\n0.")[0] == 1
    assert unpickled(b"I5\n2\x86.")[0] == (5, 5)


EXPLOITS = {
    "os.system": calls("os", "system"),
    "posix.system": calls("posix", "system"),
    "builtins.eval": calls("builtins", "eval"),
    "builtins.exec": calls("__builtin__", "exec"),
    "subprocess.Popen": calls("subprocess", "Popen"),
    "pty.spawn": calls("pty", "spawn"),
    "importlib.import_module": calls("importlib", "import_module"),
    "runpy._run_code": calls("runpy", "_run_code"),
    "torch.hub.load": calls("torch.hub", "load"),
    "torch.load": calls("torch", "load"),
    "torch.nn.modules.os.system": calls("torch.nn.modules", "os.system"),
}


@pytest.mark.parametrize("name", EXPLOITS)
def test_nothing_is_called(name, monkeypatch):
    """A pickle that calls is an opaque object and a name to report; nothing is imported, nothing is run."""
    ran = []
    monkeypatch.setattr(os, "system", ran.append)
    before = set(sys.modules)
    read, foreign = unpickled(EXPLOITS[name])

    assert isinstance(read, PythonObject)
    assert read.args == ("true",)
    assert len(foreign) == 1
    assert not ran
    assert "pty" not in set(sys.modules) - before


def test_chains_of_calls():
    """A call of the result of a call is an opaque object in an opaque object."""
    getter = b"cbuiltins\ngetattr\n(cos\nsystem\n" + text("__call__") + b"tR"
    read, foreign = unpickled(b"\x80\x02" + getter + text("id") + b"\x85R.")

    assert isinstance(read.constructor, PythonObject)
    assert read.path == "<computed>"
    assert foreign == ["builtins.getattr", "os.system"]


def test_globals_of_protocol_4():
    """STACK_GLOBAL names are names only, with dots or without."""
    code = b"\x80\x04\x8c\x02os\x8c\x0bpath.exists\x93\x8c\x01x\x85R."
    read, foreign = unpickled(code)

    assert read.constructor.path == "os.path.exists"
    assert foreign == ["os.path.exists"]


def test_copyreg():
    """`copyreg` makes the object of its arguments: inert as well."""
    read, foreign = unpickled(b"ccopy_reg\n_reconstructor\n(cos\nthing\nc__builtin__\nobject\nNtR}b.")

    assert read.path == "os.thing"
    assert read.attributes == {}
    assert foreign == ["os.thing"]


def test_a_nested_pickle_is_bytes():
    """A pickle in a pickle is bytes that are not read."""
    read, foreign = unpickled(calls("pickle", "loads", b"C\x04abcd"))

    assert read.args == (b"abcd",)
    assert foreign == ["pickle.loads"]


class Plain:
    """An object of a class that is not known."""

    def __init__(self):
        self.weight, self.extra = [1, 2], None


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_opaque_objects_keep_everything(protocol):
    """Class, way of making, arguments, state, items and pairs of an unknown object are kept."""
    read, foreign = unpickled(pickle.dumps([Plain(), collections.deque([1, 2], 5)], protocol))

    assert read[0].path.endswith("Plain")
    assert (read[0].how, read[0].args) == ("newobj", ())
    assert read[0].attributes == {"weight": [1, 2], "extra": None}
    assert read[1].path == "collections.deque"
    assert read[1].items == [1, 2]
    assert len(foreign) == 1


def test_opaque_objects_without_state():
    """An object without a state is distinguished from one whose state is None."""
    assert unpickled(b"ca\nb\n)\x81.")[0].state is UNSET
    assert unpickled(b"ca\nb\n)\x81Nb.")[0].state is None


def test_opaque_objects_as_keys():
    """An object that is not known can be a key, by identity."""
    read, _ = unpickled(b"}ca\nb\n)\x81q\x01K\x01sh\x01K\x02s.")

    assert list(read.values()) == [2]
    assert isinstance(next(iter(read)), PythonObject)


@pytest.mark.slow
def test_deep_nesting():
    """Nesting does not use Python's stack."""
    depth = 300_000
    read, _ = unpickled(b"]" * depth + b"a" * (depth - 1) + b".")
    count = 0
    while read:
        read = read[0]
        count += 1

    assert count == depth - 1


def test_memo_bombs():
    """A huge memo index costs one entry."""
    assert unpickled(b"Nr\xff\xff\xff\xff" + b"j\xff\xff\xff\xff\x86.")[0] == (None, None)
    assert unpickled(b"Np999999999999\ng999999999999\n\x86.")[0] == (None, None)


@pytest.mark.parametrize(
    "code",
    [b"X\xff\xff\xff\x7fab", b"B\xff\xff\xff\xffab", b"\x8e" + b"\xff" * 7 + b"\x7fab", b"\x95" + b"\xff" * 8 + b"N."],
    ids=["text", "bytes", "bytes8", "frame"],
)
def test_counts_are_checked_against_the_file(code):
    """A count beyond the end of the file is an error before anything is made."""
    with pytest.raises(TruncatedError):
        unpickled(code)


@pytest.mark.parametrize(
    "code", [b"\x8b\xff\xff\xff\x7f", b"\x8b\xff\xff\xff\xff", b"\x8b\0\x10\0\0" + b"\1" * 4096 + b"."]
)
def test_huge_integers(code):
    """An integer of more bytes than any real one has is refused."""
    with pytest.raises(LimitError):
        unpickled(code)


def test_sets_are_charged_to_all_bytes_of_the_pickle():
    """As many as their bytes explain are read, also near the end; empty ones of one byte each are refused."""
    sets = [{number} for number in range(50_000)]
    value, _ = unpickled(pickle.dumps(sets, protocol=4))
    assert value == sets
    with pytest.raises(LimitError, match="more empty sets than its size accounts for"):
        unpickled(b"(" + b"\x8f" * 100_000 + b"l.")
    with pytest.raises(LimitError, match="too many operations"):
        unpickled(b"(" + b"\x8f" * 1000 + b"l.", limits=Limits(pickle_operations=2000))


def test_operations_are_limited():
    """A pickle with more operations than allowed stops."""
    with pytest.raises(LimitError, match=r"at most 1 000 \(the limit pickle_operations\)"):
        unpickled(b"]" * 2000 + b".", Limits(pickle_operations=1000))


def test_exponential_sharing_costs_nothing():
    """A value whose expansion has 2^200 parts is as small as its pickle."""
    assert len(unpickled(b"]q\x00" + b"0h\x00h\x00\x86q\x00" * 200 + b".")[0]) == 2


def test_exponential_keys():
    """A key that would take 2^200 steps to hash is refused."""
    key = b"K\x01q\x00" + b"0h\x00h\x00\x86q\x00" * 200

    for code in (b"}" + key + b"Ns.", b"}(" + key + b"Nu.", b"\x8f(" + key + b"\x90.", b"(" + key + b"\x91."):
        with pytest.raises(LimitError):
            unpickled(code)


@pytest.mark.slow
def test_deep_keys():
    """A key that would overflow the interpreter's stack when hashed is refused."""
    with pytest.raises(LimitError):
        unpickled(b"}" + b")" + b"\x85" * 200_000 + b"Ns.")


@pytest.mark.parametrize("key", [b"]", b"}", b"\x8f", b"]\x85", b"\x96\0\0\0\0\0\0\0\0"])
def test_keys_that_cannot_be_hashed(key):
    """A list as a key is an error of the file."""
    with pytest.raises(CorruptError, match="is a key"):
        unpickled(b"}" + key + b"Ns.")


@pytest.mark.parametrize(
    "code",
    [
        b".",
        b"0.",
        b"t.",
        b"R.",
        b"h\x05.",
        b"\x93.",
        b"K\x01K\x02a.",
        b"(K\x01u.",
        b"}(K\x01u.",
        b"K\x01Nb}b.",
        b"\xff",
    ],
)
def test_damaged_pickles(code):
    """Opcodes that do not fit what is there are errors of the file."""
    with pytest.raises(FormatError):
        unpickled(code)


@pytest.mark.parametrize("code", [b"\x82\x01.", b"\x83\x01\0.", b"\x84\x01\0\0\0.", b"\x97.", b"\x80\x06N."])
def test_what_points_outside_is_refused(code):
    """Extension codes, out-of-band buffers and unknown protocols are named in the error."""
    with pytest.raises(UnsupportedError):
        unpickled(code)


def test_every_truncation_is_an_error():
    """A pickle that ends anywhere before its end is an error of this package."""
    value = {"a": [1, 2.5, "x", b"y", None, True], 3: (1, {4}), "big": 2**70, "o": collections.OrderedDict(k=1)}
    for protocol in PROTOCOLS:
        code = pickle.dumps(value, protocol)
        for length in range(len(code)):
            with pytest.raises(FormatError):
                unpickled(code[:length])


@given(code=st.binary(max_size=200), protocol=st.sampled_from([b"", b"\x80\x02", b"\x80\x04"]))
def test_any_bytes(code, protocol):
    """Arbitrary bytes result in a value or an error of this package."""
    with contextlib.suppress(T7BridgeError):
        unpickled(protocol + code)


def test_errors_say_where():
    """An error names the place in the file."""
    with pytest.raises(CorruptError) as caught:
        unpickled(b"\x80\x02NN\xfe.")

    assert caught.value.offset == 4
    assert "0xfe is not an operation of a pickle" in str(caught.value)


def test_an_ordered_dict_keeps_only_harmless_attributes():
    """`_metadata` is kept; an attribute that would hide a method is an error."""
    start = b"ccollections\nOrderedDict\n)R}"

    assert unpickled(start + text("_metadata") + b"K\x01sb.")[0]._metadata == 1
    with pytest.raises(CorruptError):
        unpickled(start + text("items") + b"K\x01sb.")


def test_torch_size_and_constants():
    """Sizes, dtypes and devices are values; `torch.float` is `torch.float32`."""
    code = b"(ctorch\nSize\n(K\x02K\x03t\x85Rctorch\nfloat\nctorch\ndevice\n" + text("cuda") + b"K\x01\x86Rt."
    size, dtype, device = unpickled(code)[0]

    assert size == (2, 3)
    assert type(size) is TorchSize
    assert (dtype.kind, dtype.name) == ("dtype", "float32")
    assert str(device) == "cuda:1"


def test_classes_by_name_stay_names():
    """A class used as a value is its name."""
    read, foreign = unpickled(b"ctorch.nn.modules.linear\nLinear\n.")

    assert isinstance(read, PythonGlobal)
    assert read.path == "torch.nn.modules.linear.Linear"
    assert foreign == []


def test_bytes_with_a_count_are_not_made():
    """`bytearray(10**18)` is not a bytearray of that size, but a call that is not made."""
    big = b"\x8a\x08" + struct.pack("<q", 10**18)

    assert isinstance(unpickled(b"cbuiltins\nbytearray\n" + big + b"\x85R.")[0], PythonObject)
    assert isinstance(unpickled(b"cbuiltins\nbytes\n" + big + b"\x85R.")[0], PythonObject)


STRINGS = {
    "STRING": b"S'%s'\n",
    "BINSTRING": b"T%c\0\0\0%s",
    "SHORT_BINSTRING": b"U%c%s",
    "BINUNICODE": b"X%c\0\0\0%s",
    "SHORT_BINUNICODE": b"\x8c%c%s",
    "BINUNICODE8": b"\x8d%c\0\0\0\0\0\0\0%s",
    "BINBYTES": b"B%c\0\0\0%s",
    "SHORT_BINBYTES": b"C%c%s",
    "BINBYTES8": b"\x8e%c\0\0\0\0\0\0\0%s",
    "BYTEARRAY8": b"\x96%c\0\0\0\0\0\0\0%s",
    "UNICODE": b"V%s\n",
}


@pytest.mark.parametrize("code", STRINGS)
@pytest.mark.parametrize("length", [1, 2, 200])
def test_strings_of_every_opcode(code, length):
    """A string of each opcode, with others before and after it, is what CPython reads."""
    body = STRINGS[code].replace(b"%c", bytes([length])).replace(b"%s", b"x" * length)
    data = b"(K\x07" + body + b"K\x09" + body + b"t."
    wanted = pickle.loads(data)
    read, _ = unpickled(data)

    assert read == wanted
    assert [type(part) for part in read] == [type(part) for part in wanted]
    with pytest.raises(TruncatedError):
        unpickled(data[: -len(body) // 2])


def test_entries_of_opaque_objects():
    """All that is appended to an opaque object, or set in it, is kept in pairs and in order."""
    items = text("a") + b"K\x01" + text("b") + b"K\x02" + text("c") + b"K\x03"
    mapping, _ = unpickled(b"\x80\x02cmy.pkg\nMap\n)R(" + items + b"u.")
    listing, _ = unpickled(b"\x80\x02cmy.pkg\nList\n)R(K\x01K\x02K\x03e.")

    assert mapping.pairs == [("a", 1), ("b", 2), ("c", 3)]
    assert listing.items == [1, 2, 3]


@pytest.mark.parametrize("size", [300_000, 1_500_000])
def test_numbers_behind_large_values(size):
    """Behind texts that fill the window several times, positions are those of the file, in errors too."""
    data = b"\x80\x02(" + b"".join(text("y" * size) + b"K\x05" for _ in range(4)) + b"t"

    assert unpickled(data + b".")[0] == ("y" * size, 5) * 4
    with pytest.raises(FormatError) as caught:
        unpickled(data + b"\xff.")
    assert caught.value.offset == len(data)
