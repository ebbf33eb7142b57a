"""Makes `testfiles/bad/`: one small file for each kind of damage and each attack, and the table in its README.

Every file is put together here byte by byte, by nothing of t7bridge. Run it as `python testfiles/gen/bad_cases.py`.
The attacks would run `touch /tmp/t7bridge-was-here` at worst.
"""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

BAD = Path(__file__).resolve().parent.parent / "bad"
CASES: list[tuple[str, bytes, str, str, str, str]] = []
"""Name, bytes, what it is, who refuses it, class of the error, words of its message."""


def case(name: str, data: bytes, what: str, error: str, words: str, by: str = "all") -> None:
    """Note one file."""
    CASES.append((name, data, what, by, error, words))


# Lua Torch's format, little-endian with 8-byte longs


def ints(*values: int) -> bytes:
    """4-byte integers."""
    return struct.pack(f"<{len(values)}i", *values)


def longs(*values: int) -> bytes:
    """8-byte integers."""
    return struct.pack(f"<{len(values)}q", *values)


def string(data: bytes) -> bytes:
    """A length and bytes."""
    return ints(len(data)) + data


def lua_string(data: bytes) -> bytes:
    """A tagged string."""
    return ints(2) + string(data)


def number(value: float) -> bytes:
    """A tagged number."""
    return ints(1) + struct.pack("<d", value)


def torch_object(index: int, name: bytes, version: bytes = b"V 1") -> bytes:
    """The head of an object."""
    return ints(4, index) + string(version) + string(name)


def storage(index: int, count: int, data: bytes = b"", kind: bytes = b"Float") -> bytes:
    """A storage; the count may lie."""
    return torch_object(index, b"torch." + kind + b"Storage") + longs(count) + data


def lua_tensor(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, behind: bytes, dims: int | None = None
) -> bytes:
    """A FloatTensor, object 1; what is behind its offset is given."""
    head = torch_object(1, b"torch.FloatTensor") + ints(len(size) if dims is None else dims)
    return head + longs(*size, *stride, offset) + behind


FOUR = storage(2, 4, bytes(16))
SOUND_T7 = lua_tensor((2, 2), (2, 1), 1, FOUR)


def t7_cases() -> None:
    """Damage and attacks in `.t7` files."""
    case("empty.t7", b"", "no bytes at all", "TruncatedError", "is empty")
    case(
        "html.t7",
        b"<!DOCTYPE html>\n<html><body>404</body></html>\n",
        "what a failed download leaves",
        "UnknownFormatError",
        "an HTML page",
    )
    case(
        "lfs.t7",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        "a pointer of Git LFS",
        "UnknownFormatError",
        "git lfs pull",
    )
    case("noise.t7", b"\x5a\xa5" * 64, "bytes that are nothing", "CorruptError", "unknown type tag")
    case(
        "cut.t7",
        SOUND_T7[:-1],
        "cut off before the last byte",
        "TruncatedError",
        "a count claims more than the file holds",
    )
    case(
        "cut_text.t7",
        b"4\n1\n3\nV 1\n17\ntorch.FloatTens",
        "ascii, cut off inside a class name",
        "TruncatedError",
        "a count claims more than the file holds",
    )
    case(
        "tag_unknown.t7",
        ints(3, 1, 1) + number(1) + ints(99),
        "a type tag that does not exist",
        "CorruptError",
        "unknown type tag 99",
    )
    case("table_negative.t7", ints(3, 1, -1), "a table of -1 entries", "CorruptError", "a negative count")
    case(
        "table_huge.t7",
        ints(3, 1, 2**31 - 1) + number(1),
        "a table of 2 147 483 647 entries in 36 bytes",
        "TruncatedError",
        "a count claims more than the file holds",
    )
    case(
        "table_key_nan.t7",
        ints(3, 1, 1) + number(float("nan")) + number(1),
        "nan as a key",
        "CorruptError",
        "a table key is nan",
    )
    case("table_key_nil.t7", ints(3, 1, 1) + ints(0) + number(1), "nil as a key", "CorruptError", "a table key is nil")
    case(
        "boolean_two.t7",
        ints(3, 1, 1) + number(1) + ints(5, 2),
        "a boolean that is 2",
        "CorruptError",
        "a boolean is neither 0 nor 1",
    )
    case(
        "string_negative.t7",
        ints(3, 1, 1) + number(1) + ints(2, -5) + b"abcde",
        "a string of -5 bytes",
        "CorruptError",
        "a negative count",
    )
    case(
        "string_huge.t7",
        ints(3, 1, 1) + number(1) + ints(2, 2**31 - 1) + b"abcde",
        "a string of 2 GiB in a file of 33 bytes",
        "TruncatedError",
        "a count claims more than the file holds",
    )
    case(
        "reference_missing.t7",
        ints(3, 1, 1) + number(1) + ints(3, 7, 0),
        "a reference to an object that was never written",
        "CorruptError",
        "a reference to an object that is not in the file",
    )
    case(
        "reference_type.t7",
        ints(3, 1, 1) + number(1) + ints(4, 1),
        "a table referred to as an object",
        "CorruptError",
        "has the wrong type",
    )
    case(
        "class_version.t7",
        torch_object(1, b"nn.Linear", b"V 99999999999"),
        "a class version of 11 digits",
        "CorruptError",
        "is not a class version",
    )
    case(
        "class_name_control.t7",
        torch_object(1, b"nn.\x1b[31mLinear") + ints(3, 2, 0),
        "a class name that would colour a terminal",
        "CorruptError",
        "is not a class name",
    )
    case(
        "class_name_utf8.t7",
        torch_object(1, b"nn.\xff\xfe") + ints(3, 2, 0),
        "a class name that is not UTF-8",
        "CorruptError",
        "is not a class name",
    )
    case(
        "object_without_fields.t7",
        torch_object(1, b"nn.Linear") + number(1),
        "an object whose fields are a number",
        "CorruptError",
        "is not followed by a table of fields",
    )
    case(
        "dimensions_negative.t7",
        lua_tensor((), (), 1, FOUR, dims=-1),
        "a tensor of -1 dimensions",
        "CorruptError",
        "is not a valid number of dimensions",
    )
    case(
        "dimensions_huge.t7",
        lua_tensor((), (), 1, FOUR, dims=2**30),
        "a tensor of 1 073 741 824 dimensions",
        "CorruptError",
        "is not a valid number of dimensions",
    )
    case(
        "size_negative.t7",
        lua_tensor((-2, 2), (2, 1), 1, FOUR),
        "a negative size",
        "CorruptError",
        "a size is negative",
    )
    case(
        "stride_negative.t7",
        lua_tensor((2, 2), (-2, 1), 1, FOUR),
        "a negative stride, which reaches before the storage",
        "CorruptError",
        "before the first",
    )
    case(
        "offset_zero.t7",
        lua_tensor((2, 2), (2, 1), 0, FOUR),
        "an offset of 0, where Lua counts from 1",
        "CorruptError",
        "its offset is -1",
    )
    case(
        "offset_beyond.t7",
        lua_tensor((1,), (1,), 5, FOUR),
        "an offset behind the storage's end",
        "CorruptError",
        "reaches element 4",
    )
    case(
        "view_beyond.t7",
        lua_tensor((5,), (1,), 1, FOUR),
        "a view of 5 elements on a storage of 4",
        "CorruptError",
        "reaches element 4",
    )
    case(
        "view_overflow_32.t7",
        lua_tensor((65536, 65537), (65536, 1), 1, FOUR),
        "sizes × strides beyond 2³²",
        "CorruptError",
        "is not a view of its storage",
    )
    case(
        "view_overflow_64.t7",
        lua_tensor((2**32, 2**32), (2**32, 2**31), 1, FOUR),
        "sizes × strides beyond 2⁶³: a sum that would wrap around to less than 4",
        "CorruptError",
        "is not a view of its storage",
    )
    case(
        "size_overflow.t7",
        lua_tensor((2**63 - 1, 2), (1, 1), 1, FOUR),
        "a size of 2⁶³ - 1",
        "CorruptError",
        "is not a view of its storage",
    )
    case(
        "storage_negative.t7",
        lua_tensor((2, 2), (2, 1), 1, storage(2, -4, bytes(16))),
        "a storage of -4 elements",
        "CorruptError",
        "a negative count",
    )
    case(
        "storage_beyond_end.t7",
        lua_tensor((2, 2), (2, 1), 1, storage(2, 5, bytes(16))),
        "a storage that ends one element behind the file",
        "TruncatedError",
        "a count claims more than the file holds",
    )
    case(
        "storage_overflow.t7",
        lua_tensor((2, 2), (2, 1), 1, storage(2, 2**62, bytes(16))),
        "a storage of 2⁶² elements: a number of bytes that would wrap around to 0",
        "TruncatedError",
        "a count claims more than the file holds",
    )
    case(
        "storage_of_other_type.t7",
        lua_tensor((2, 2), (2, 1), 1, storage(2, 4, bytes(32), b"Double")),
        "a FloatTensor on a DoubleStorage",
        "CorruptError",
        "a tensor's storage is another object",
    )
    case(
        "storage_is_itself.t7",
        lua_tensor((2, 2), (2, 1), 1, ints(4, 1)),
        "a tensor that is its own storage",
        "CorruptError",
        "a tensor's storage is another object",
    )
    case(
        "storage_is_a_table.t7",
        lua_tensor((2, 2), (2, 1), 1, ints(3, 2, 0)),
        "a tensor on a table",
        "CorruptError",
        "a tensor's storage is another object",
    )
    case(
        "tds_huge.t7",
        torch_object(1, b"tds.Vec", b"V 0") + longs(2**60) + number(1),
        "a tds.Vec of 2⁶⁰ entries",
        "TruncatedError",
        "a count claims more than the file holds",
    )
    case(
        "function_huge.t7",
        ints(8, 1, 2**30) + b"\x1bLJ\x02",
        "a function with 1 GiB of bytecode in a file of 16 bytes",
        "TruncatedError",
        "a count claims more than the file holds",
    )
    gpu = torch_object(1, b"nn.GPU")
    case(
        "payload_cycle.t7",
        gpu + ints(4, 1) + ints(4, 1),
        "nn.GPU, which writes two objects: both are the nn.GPU itself",
        "CorruptError",
        "the fields of a nn.GPU are not a table",
    )
    nested = b"".join(torch_object(index, b"nn.GPU") for index in range(1, 71))
    case(
        "payload_deep.t7",
        nested + ints(0),
        "70 nn.GPU, each in the payload of the one before",
        "LimitError",
        "the limit payload_depth",
    )
    case(
        "generator_cut.t7",
        torch_object(1, b"torch.Generator") + bytes(100),
        "a generator with 100 of its 5 056 bytes",
        "TruncatedError",
        "a count claims more than the file holds",
    )
    zipped = zip_of([("a/data.pkl", b"\x80\x02}."), ("a/version", b"3\n")])
    case(
        "polyglot_zip.t7",
        SOUND_T7 + zipped,
        "a .t7 with a zip archive of PyTorch behind its value",
        "CorruptError",
        "and a zip archive by its last",
    )


# Zip archives, by hand


def said(data: bytes, **said_too: int | bytes) -> dict:
    """What both headers of a member say of its bytes; `said_too` goes on, and lies."""
    size = len(data)
    return {"flags": 0, "method": 0, "crc": zlib.crc32(data), "packed": size, "size": size, "extra": b"", **said_too}


def local(own: bytes, data: bytes, **change: int | bytes) -> bytes:
    """A local header and the bytes; `change` lies."""
    f = said(data, **{"name": own, **change})
    return (
        b"PK\x03\x04"
        + struct.pack(
            "<5H3I2H",
            20,
            f["flags"],
            f["method"],
            0,
            0,
            f["crc"],
            f["packed"],
            f["size"],
            len(f["name"]),
            len(f["extra"]),
        )
        + f["name"]
        + f["extra"]
        + data
    )


def central(name: bytes, data: bytes, where: int, **change: int | bytes) -> bytes:
    """An entry of the directory."""
    f = said(data, **{"at": where, "attributes": 0, **change})
    return (
        b"PK\x01\x02"
        + struct.pack(
            "<6H3I5H2I",
            20,
            20,
            f["flags"],
            f["method"],
            0,
            0,
            f["crc"],
            f["packed"],
            f["size"],
            len(name),
            len(f["extra"]),
            0,
            0,
            0,
            f["attributes"],
            f["at"],
        )
        + name
        + f["extra"]
    )


def end(count: int, length: int, start: int, comment: bytes = b"") -> bytes:
    """The end of an archive."""
    return b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, count, count, length, start, len(comment)) + comment


def zip_of(
    members: list[tuple[str, bytes]],
    locals_: dict[str, dict] | None = None,
    centrals: dict[str, dict] | None = None,
    data: dict[str, bytes] | None = None,
) -> bytes:
    """An archive of stored members; what is said of some of them may lie, and other bytes may stand there."""
    body, directory = b"", b""
    for name, content in members:
        at = len(body)
        shown = (data or {}).get(name, content)
        body += local(
            name.encode("utf-8", "surrogateescape"),
            shown,
            **{"crc": zlib.crc32(content), "packed": len(shown), "size": len(shown), **(locals_ or {}).get(name, {})},
        )
        directory += central(
            name.encode("utf-8", "surrogateescape"),
            shown,
            at,
            **{"crc": zlib.crc32(content), **(centrals or {}).get(name, {})},
        )
    return body + directory + end(len(members), len(directory), len(body))


# Pickles, by hand


def text(value: str) -> bytes:
    """A string."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def integer(value: int) -> bytes:
    """An integer of up to 8 bytes."""
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def numbers(values: tuple[int, ...]) -> bytes:
    """A tuple of integers."""
    return b"(" + b"".join(map(integer, values)) + b"t"


def pt_tensor(
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int = 0,
    count: int = 4,
    key: str = "0",
    kind: str = "FloatStorage",
) -> bytes:
    """A tensor as `torch.save` writes it."""
    saved = (
        b"(" + text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text(key) + text("cpu") + integer(count) + b"tQ"
    )
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + saved
        + integer(offset)
        + numbers(size)
        + numbers(stride)
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def pt(pickle: bytes, elements: bytes = bytes(16), **lies: dict) -> bytes:
    """A checkpoint in a zip archive."""
    return zip_of([("a/data.pkl", b"\x80\x02" + pickle + b"."), ("a/data/0", elements), ("a/version", b"3\n")], **lies)


SOUND = b"}" + text("w") + pt_tensor((2, 2), (2, 1)) + b"s"
TOUCH = "touch /tmp/t7bridge-was-here"


def pickle_cases() -> None:
    """Pickles that attack whoever executes them, and damaged ones."""
    refused = "ForbiddenGlobalError"
    system = b"cposix\nsystem\n" + text(TOUCH) + b"\x85R"
    case("call_system.pt", pt(system), "REDUCE of posix.system", refused, "names posix.system, which runs code")
    case(
        "call_in_dict.pt",
        pt(b"}(" + text("w") + pt_tensor((2, 2), (2, 1)) + text("x") + system + b"u"),
        "the same beside a sound tensor",
        refused,
        "names posix.system, which runs code",
    )
    case(
        "call_eval.pt",
        pt(b"c__builtin__\neval\n" + text("1") + b"\x85R"),
        "REDUCE of eval, by the name that Python 2 had",
        refused,
        "names builtins.eval, which runs code",
    )
    case(
        "call_popen.pt",
        pt(b"csubprocess\nPopen\n" + text("true") + b"\x85\x81"),
        "NEWOBJ of subprocess.Popen",
        refused,
        "names subprocess.Popen, which runs code",
    )
    case(
        "call_inst.pt",
        pt(b"(" + text(TOUCH) + b"iposix\nsystem\n"),
        "INST of posix.system",
        refused,
        "names posix.system, which runs code",
    )
    case(
        "call_obj.pt",
        pt(b"(cposix\nsystem\n" + text(TOUCH) + b"o"),
        "OBJ of posix.system",
        refused,
        "names posix.system, which runs code",
    )
    stack_global = b"\x8c\x05posix\x8c\x06system\x93" + text(TOUCH) + b"\x85R"
    case(
        "call_stack_global.pt",
        pt(stack_global),
        "STACK_GLOBAL of posix.system",
        refused,
        "names posix.system, which runs code",
    )
    dotted = b"\x8c\x0ctorch._utils\x8c\tos.system\x93" + text(TOUCH) + b"\x85R"
    case(
        "call_dotted.pt",
        pt(dotted),
        "os.system by a dotted name through torch._utils",
        refused,
        "names torch._utils.os.system, which runs code",
    )
    case(
        "call_build.pt",
        pt(b"c__main__\nNet\n)\x81}" + text("__reduce__") + b"cposix\nsystem\nsb"),
        "posix.system in the state of an object",
        refused,
        "names posix.system, which runs code",
    )
    case(
        "call_hub.pt",
        pt(b"ctorch.hub\nload\n(" + text("evil/repo") + text("model") + b"tR"),
        "a call of torch.hub.load, which downloads code",
        refused,
        "names torch.hub.load, which runs code",
    )
    inner = (
        b"c_codecs\nencode\n(" + text("\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.") + text("latin1") + b"tR"
    )
    case(
        "call_nested_file.pt",
        pt(b"ctorch.storage\n_load_from_bytes\n" + inner + b"\x85R"),
        "a file inside the pickle whose pickle calls posix.system",
        refused,
        "names posix.system, which runs code",
    )
    case(
        "call_protocol_0.pt",
        b"cposix\nsystem\n(S'" + TOUCH.encode() + b"'\ntR.",
        "a plain pickle of protocol 0 that calls posix.system",
        refused,
        "names posix.system, which runs code",
    )
    magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
    case(
        "call_legacy.pt",
        magic + b"\x80\x02}.\x80\x02" + system + b".\x80\x02].",
        "posix.system in the format of PyTorch 0.2 to 1.5",
        refused,
        "names posix.system, which runs code",
    )
    case(
        "call_in_facts.pt",
        magic + b"\x80\x02" + system + b".\x80\x02}.\x80\x02].",
        "posix.system in the pickle of facts about the machine, which nothing needs",
        refused,
        "names posix.system, which runs code",
    )
    case(
        "extension_code.pt", pt(b"\x82\x01"), "a class by an extension code", "UnsupportedError", "by an extension code"
    )
    case(
        "buffer.pt", pt(b"\x97"), "data in a buffer outside the file", "UnsupportedError", "in buffers outside the file"
    )
    case("opcode_unknown.pt", pt(b"\xff"), "an opcode that does not exist", "CorruptError", "0xff is not an operation")
    case("protocol_unknown.pt", pt(b"\x80\x09N"), "a pickle of protocol 9", "UnsupportedError", "of protocol 9")
    case("stack_empty.pt", pt(b"R"), "a call without a function", "CorruptError", "pops from an empty stack")
    case(
        "memo_missing.pt",
        pt(b"h\x05"),
        "a reference to what was never numbered",
        "CorruptError",
        "which it never numbered",
    )
    case(
        "pickle_cut.pt",
        zip_of([("a/data.pkl", b"\x80\x02}X\x05\x00\x00\x00ab"), ("a/version", b"3\n")]),
        "a pickle that ends inside a string",
        "TruncatedError",
        "the pickle ends in the middle",
    )
    case(
        "string_beyond.pt",
        pt(b"\x8e" + struct.pack("<Q", 2**63)),
        "bytes of 2⁶³ in a pickle of 20",
        "TruncatedError",
        "the pickle ends in the middle",
    )
    case(
        "string_utf8.pt",
        pt(b"X\x02\x00\x00\x00\xff\xfe"),
        "text that is not UTF-8",
        "CorruptError",
        "the pickle is damaged",
    )
    case(
        "integer_long.pt",
        pt(b"\x8b" + struct.pack("<i", 4096) + b"\xff" * 4096),
        "an integer of 4 096 bytes, whose decimal digits take quadratic time",
        "LimitError",
        "an integer of too many bytes",
    )
    case("key_list.pt", pt(b"}]Ns"), "a list as a key", "CorruptError", "is a key")
    shared = b")" + b"2\x86" * 40
    case(
        "key_bomb.pt",
        pt(b"}" + shared + b"Ns"),
        "a tuple as a key that is shared 2⁴⁰ times: a hash that never ends",
        "LimitError",
        "a tuple used as a key",
    )
    deep_key = b")" + b"\x85" * 5000
    case(
        "key_deep.pt",
        pt(b"}" + deep_key + b"Ns"),
        "a tuple nested 5 000 deep as a key: a hash that overflows the stack",
        "LimitError",
        "a tuple used as a key",
    )
    state_loop = b"c__main__\nNet\n)\x81}b}b"
    case(
        "state_twice.pt",
        pt(state_loop),
        "an object that receives its state twice",
        "CorruptError",
        "receives its state twice",
    )
    hidden = b"ccollections\nOrderedDict\n)R}" + text("keys") + b"Nsb"
    case(
        "state_hides.pt",
        pt(hidden),
        "an OrderedDict whose attribute `keys` hides the method",
        "CorruptError",
        "receives an attribute 'keys'",
    )


def tensor_cases() -> None:
    """Tensors in `.pt` files that are none."""
    view = "is not a view of its storage"
    case("size_negative.pt", pt(pt_tensor((-2, 2), (2, 1))), "a negative size", "CorruptError", "a size is negative")
    case(
        "stride_negative.pt",
        pt(pt_tensor((2, 2), (-2, 1))),
        "a negative stride, which PyTorch does not have",
        "CorruptError",
        "out of range",
    )
    case("offset_negative.pt", pt(pt_tensor((2,), (1,), -1)), "a negative offset", "CorruptError", "its offset is -1")
    case("view_beyond.pt", pt(pt_tensor((5,), (1,))), "a view of 5 elements on a storage of 4", "CorruptError", view)
    case(
        "view_overflow.pt",
        pt(pt_tensor((2**32, 2**32), (2**32, 2**31))),
        "sizes × strides beyond 2⁶³",
        "CorruptError",
        view,
    )
    case("size_overflow.pt", pt(pt_tensor((2**64, 1), (1, 1))), "a size of 2⁶⁴", "CorruptError", "out of range")
    case(
        "dimensions.pt",
        pt(pt_tensor((1,) * 1001, (1,) * 1001)),
        "1 001 dimensions",
        "LimitError",
        "the limit dimensions",
    )
    case(
        "storage_short.pt",
        pt(pt_tensor((2, 3), (3, 1), count=6)),
        "a storage of 6 elements whose member has 16 bytes",
        "TruncatedError",
        "has fewer bytes than the pickle says",
    )
    case(
        "storage_missing.pt",
        pt(pt_tensor((2, 2), (2, 1), key="7")),
        "a storage without a member",
        "CorruptError",
        "the archive has no member a/data/7",
    )
    case(
        "storage_negative.pt",
        pt(pt_tensor((2, 2), (2, 1), count=-4)),
        "a storage of -4 elements",
        "CorruptError",
        "has no key, location or count",
    )
    case(
        "storage_key_path.pt",
        pt(pt_tensor((2, 2), (2, 1), key="../../../etc/passwd")),
        "a storage whose key is a path out of the archive",
        "CorruptError",
        "the archive has no member",
    )
    case(
        "storage_class.pt",
        pt(pt_tensor((2, 2), (2, 1), kind="QuantumStorage")),
        "a storage of a class that does not exist",
        "CorruptError",
        "unknown class",
    )
    magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."
    saved = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + integer(4) + b"NtQ"
    value = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
        + saved
        + integer(0)
        + numbers((2, 2))
        + numbers((2, 1))
        + b"\x89NtR."
    )
    keys = b"\x80\x02]" + text("0") + b"a."
    case(
        "legacy_short.pt",
        magic + value + keys + longs(4) + bytes(15),
        "0.2 to 1.5: a storage that ends one byte behind the file",
        "TruncatedError",
        "ends inside a storage",
    )
    case(
        "legacy_count.pt",
        magic + value + keys + longs(2**62) + bytes(16),
        "0.2 to 1.5: a storage whose count is not the tensor's",
        "CorruptError",
        "has another size than its tensors claim",
    )
    case(
        "legacy_missing.pt",
        magic + value + b"\x80\x02]." + bytes(16),
        "0.2 to 1.5: a tensor whose storage is not listed",
        "CorruptError",
        "has tensors whose storages are missing",
    )


def zip_cases() -> None:
    """Archives that contradict themselves."""
    sound = pt(SOUND)
    directory = sound.index(b"PK\x01\x02")
    tail = sound.index(b"PK\x05\x06")
    case(
        "zip_cut.pt", sound[:-1], "cut off before the last byte", "TruncatedError", "the archive's directory is missing"
    )
    case("zip_empty.pt", end(0, 0, 0), "an archive without members", "UnknownFormatError", "not one of PyTorch")
    case(
        "zip_other.pt",
        zip_of([("word/document.xml", b"<x/>")]),
        "a document of a word processor",
        "UnknownFormatError",
        "not one of PyTorch",
    )
    case(
        "crc_pickle.pt",
        pt(SOUND, data={"a/data.pkl": b"\x80\x02}" + text("v") + (b"\x80\x02" + SOUND + b".")[9:]}),
        "a pickle in which one byte was changed",
        "CorruptError",
        "does not have its CRC-32",
    )
    case(
        "crc_weights.pt",
        pt(SOUND, data={"a/data/0": bytes(15) + b"\x01"}),
        "weights in which one byte was changed",
        "CorruptError",
        "CRC-32",
        "describe, convert",
    )
    case(
        "member_twice.pt",
        zip_of(
            [
                ("a/data.pkl", b"\x80\x02" + SOUND + b"."),
                ("a/data/0", bytes(16)),
                ("a/data/0", b"\x01" * 16),
                ("a/version", b"3\n"),
            ]
        ),
        "two members of one name: readers differ in which they take",
        "CorruptError",
        "occurs twice in the archive",
    )
    case(
        "pickle_twice.pt",
        zip_of([("a/data.pkl", b"\x80\x02}."), ("a/data.pkl", b"\x80\x02cposix\nsystem\n."), ("a/version", b"3\n")]),
        "two pickles, one harmless and one not",
        "CorruptError",
        "occurs twice in the archive",
    )
    first = local(b"a/data.pkl", b"\x80\x02" + SOUND + b".")
    inside = local(b"a/data/0", bytes(16))
    both = local(b"a/data.pkl", b"\x80\x02" + SOUND + b"." + inside)
    entries = central(b"a/data.pkl", b"\x80\x02" + SOUND + b"." + inside, 0) + central(
        b"a/data/0", bytes(16), len(first)
    )
    case(
        "overlap.pt",
        both + entries + end(2, len(entries), len(both)),
        "a member inside another",
        "CorruptError",
        "overlaps what follows it",
    )
    same = central(b"a/data.pkl", b"\x80\x02}.", 0) + central(b"a/data/0", b"\x80\x02}.", 0)
    body = local(b"a/data.pkl", b"\x80\x02}.")
    case(
        "same_place.pt",
        body + same + end(2, len(same), len(body)),
        "two members with the same offset",
        "CorruptError",
        "two members have the same offset",
    )
    case(
        "directory_name.pt",
        pt(SOUND, locals_={"a/data/0": {"name": b"a/data/9"}}),
        "a name in the local header that is not that of the directory",
        "CorruptError",
        "differently by its own header and by the directory",
    )
    case(
        "directory_size.pt",
        pt(SOUND, locals_={"a/data/0": {"size": 99}}),
        "a size in the local header that is not that of the directory",
        "CorruptError",
        "differently by its own header and by the directory",
    )
    case(
        "directory_method.pt",
        pt(SOUND, locals_={"a/data/0": {"method": 8}}),
        "a method in the local header that is not that of the directory",
        "CorruptError",
        "differently by its own header and by the directory",
    )
    case(
        "directory_crc.pt",
        pt(SOUND, locals_={"a/data.pkl": {"crc": 1}}),
        "a CRC in the local header that is not that of the directory",
        "CorruptError",
        "differently by its own header and by the directory",
    )
    case(
        "directory_offset.pt",
        pt(SOUND, centrals={"a/data/0": {"at": 3}}),
        "an offset in the directory where no header is",
        "CorruptError",
        "overlaps what follows it",
    )
    case(
        "directory_beyond.pt",
        pt(SOUND, centrals={"a/data/0": {"at": 2**31}}),
        "an offset in the directory behind the file's end",
        "CorruptError",
        "overlaps what follows it",
    )
    case(
        "directory_moved.pt",
        sound[:tail] + end(3, tail - directory, directory - 1),
        "a directory that is not where the end record says",
        "CorruptError",
        "the archive's directory is not where it should be",
    )
    case(
        "directory_count.pt",
        sound[:tail] + end(4, tail - directory, directory),
        "an end record that counts one entry more",
        "CorruptError",
        "the archive's directory is not where it should be",
    )
    case(
        "directory_many.pt",
        sound[:tail] + end(65535, tail - directory, directory),
        "an end record that counts 65 535 entries",
        "CorruptError",
        "the archive's directory is not where it should be",
    )
    case(
        "split.pt",
        sound[:tail] + b"PK\x05\x06" + struct.pack("<4H2IH", 1, 0, 3, 3, tail - directory, directory, 0),
        "one of several disks",
        "UnsupportedError",
        "split over several files",
    )
    case(
        "encrypted.pt",
        pt(SOUND, locals_={"a/data.pkl": {"flags": 1}}, centrals={"a/data.pkl": {"flags": 1}}),
        "an encrypted member",
        "UnsupportedError",
        "is encrypted",
    )
    case(
        "method.pt",
        pt(SOUND, locals_={"a/data.pkl": {"method": 12}}, centrals={"a/data.pkl": {"method": 12}}),
        "a member compressed by bzip2",
        "UnsupportedError",
        "is compressed by method 12",
    )
    case(
        "zip64_missing.pt",
        pt(SOUND, centrals={"a/data/0": {"size": 0xFFFFFFFF}}),
        "a size that should be in a zip64 field, and no such field",
        "CorruptError",
        "has no zip64 sizes",
    )
    absurd = struct.pack("<2HQ", 1, 8, 2**63)
    case(
        "zip64_size.pt",
        pt(
            SOUND,
            centrals={
                "a/data/0": {
                    "size": 0xFFFFFFFF,
                    "packed": 0xFFFFFFFF,
                    "extra": struct.pack("<2H2Q", 1, 16, 2**63, 2**63),
                }
            },
        ),
        "a size of 2⁶³ in a zip64 field",
        "CorruptError",
        "overlaps what follows it",
    )
    case(
        "zip64_offset.pt",
        pt(SOUND, centrals={"a/data/0": {"at": 0xFFFFFFFF, "extra": absurd}}),
        "an offset of 2⁶³ in a zip64 field",
        "CorruptError",
        "overlaps what follows it",
    )
    record = b"PK\x06\x06" + struct.pack("<Q2H2I4Q", 44, 45, 45, 0, 0, 2**60, 2**60, tail - directory, directory)
    locator = b"PK\x06\x07" + struct.pack("<IQI", 0, tail, 1)
    case(
        "zip64_count.pt",
        sound[:tail] + record + locator + end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        "2⁶⁰ entries in a zip64 end record",
        "CorruptError",
        "the archive's directory is not where it should be",
    )
    case(
        "zip64_locator.pt",
        sound[:tail] + b"PK\x06\x07" + struct.pack("<IQI", 0, 2**62, 1) + sound[tail:],
        "a zip64 end record at 2⁶²",
        "CorruptError",
        "the archive's directory is damaged",
    )
    zeros = deflated(bytes(1 << 20))
    case(
        "deflate_more.pt",
        packed(zeros, 16),
        "a member that inflates to 1 MiB and claims 16 bytes",
        "CorruptError",
        "inflates to more than its size",
    )
    case(
        "deflate_less.pt",
        packed(deflated(bytes(8)), 16),
        "a member that inflates to 8 bytes and claims 16",
        "CorruptError",
        "does not end with its deflated bytes",
    )
    case(
        "deflate_ratio.pt",
        packed(deflated(bytes(16)), 1 << 40),
        "a member that claims a terabyte: more than deflate can reach",
        "CorruptError",
        "claims a size that its packed bytes cannot have",
    )
    case(
        "deflate_bomb.pt",
        packed(deflated(bytes(257 << 20)), 257 << 20),
        "a member of 260 kB that inflates to 257 MiB",
        "LimitError",
        "the limit inflate_ratio",
    )
    case(
        "deflate_damaged.pt",
        packed(b"\xff" * 20, 16),
        "deflated bytes that are none",
        "CorruptError",
        "cannot be inflated",
    )
    case(
        "byteorder.pt",
        zip_of([("a/data.pkl", b"\x80\x02}."), ("a/byteorder", b"middle"), ("a/version", b"3\n")]),
        "a byte order that does not exist",
        "CorruptError",
        "has no known byte order",
    )
    case(
        "name_utf8.pt",
        zip_of([("a/data.pkl", b"\x80\x02" + SOUND + b"."), ("a/data/\udcff\udcfe", bytes(16)), ("a/version", b"3\n")]),
        "a member's name that is not UTF-8",
        "CorruptError",
        "the archive has no member a/data/0",
    )
    pickled = b"\x80\x02}." + zip_of([("a/data.pkl", b"\x80\x02}."), ("a/version", b"3\n")])
    case(
        "polyglot_pickle.pt",
        pickled,
        "a pickle by its first bytes, a zip archive by its last",
        "CorruptError",
        "and a zip archive by its last",
    )


def deflated(data: bytes) -> bytes:
    """Bytes as archives have them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def packed(data: bytes, size: int) -> bytes:
    """A checkpoint whose storage is deflated and claims a size."""
    wide = size >= 0xFFFFFFFF
    says = {
        "method": 8,
        "size": 0xFFFFFFFF if wide else size,
        "extra": struct.pack("<2HQ", 1, 8, size) if wide else b"",
        "crc": 0,
    }
    pickle = b"\x80\x02}" + text("w") + pt_tensor((2, 2), (2, 1)) + b"s."
    return zip_of(
        [("a/data.pkl", pickle), ("a/data/0", data), ("a/version", b"3\n")], {"a/data/0": says}, {"a/data/0": says}
    )


# Tar archives, by hand


def tar_member(
    name: bytes, data: bytes, kind: bytes = b"0", link: bytes = b"", size: bytes | None = None, checksum: bool = True
) -> bytes:
    """A header and the bytes, filled up."""
    header = bytearray(512)
    header[: len(name)] = name
    header[100:136] = b"0000644\0" + b"0000000\0" * 2 + (b"%011o\0" % len(data) if size is None else size)
    header[136:148] = b"%011o\0" % 0
    header[148:156] = b" " * 8
    header[156:157] = kind
    header[157 : 157 + len(link)] = link
    header[257:265] = b"ustar\x0000"
    header[148:156] = b"%06o\0 " % (sum(header) + (0 if checksum else 1))
    return bytes(header) + data + bytes(-len(data) % 512)


def tar_cases() -> None:
    """The tar layout of PyTorch 0.1."""
    storages = (
        b"\x80\x02K\x01."
        + b"\x80\x02(K\x01"
        + text("cpu")
        + b"ctorch\nFloatStorage\nt."
        + longs(4)
        + bytes(16)
        + b"\x80\x02]."
    )
    tensors = (
        b"\x80\x02K\x01." + b"\x80\x02(K\x02K\x01ctorch\nFloatTensor\nt." + ints(2) + bytes(4) + longs(2, 2, 2, 1, 0)
    )
    value = b"\x80\x02}" + text("w") + text("2") + b"Qs."

    def tar(storages: bytes = storages, tensors: bytes = tensors, value: bytes = value, more: bytes = b"") -> bytes:
        parts = tar_member(b"sys_info", b"\x80\x02}.") + tar_member(b"pickle", value) + tar_member(b"tensors", tensors)
        return parts + tar_member(b"storages", storages) + more + bytes(1024)

    case(
        "tar_path.pt",
        tar(more=tar_member(b"../../../tmp/t7bridge-was-here", b"x")),
        "a member whose name climbs out of the folder",
        "CorruptError",
        "a member that would be unpacked elsewhere",
    )
    case(
        "tar_absolute.pt",
        tar(more=tar_member(b"/tmp/t7bridge-was-here", b"x")),
        "a member with an absolute name",
        "CorruptError",
        "a member that would be unpacked elsewhere",
    )
    case(
        "tar_link.pt",
        tar(more=tar_member(b"tensors", b"", b"2", b"/etc/passwd")),
        "a symbolic link",
        "CorruptError",
        "a link",
    )
    case(
        "tar_hard_link.pt",
        tar(more=tar_member(b"storages2", b"", b"1", b"storages")),
        "a hard link",
        "CorruptError",
        "a link",
    )
    case("tar_device.pt", tar(more=tar_member(b"null", b"", b"3")), "a device", "CorruptError", "not a file")
    case(
        "tar_twice.pt",
        tar(more=tar_member(b"pickle", b"\x80\x02}.")),
        "two members of one name",
        "CorruptError",
        "has a duplicate member",
    )
    case("tar_cut.pt", tar()[: -1024 - 500], "cut off inside a member", "TruncatedError", "ends inside a member")
    case(
        "tar_checksum.pt",
        tar_member(b"pickle", value, checksum=False) + bytes(1024),
        "a header whose checksum is wrong",
        "CorruptError",
        "has a damaged header",
    )
    case(
        "tar_size.pt",
        tar_member(b"pickle", value, size=b"9" * 12) + bytes(1024),
        "a size that is not an octal number",
        "CorruptError",
        "has no size",
    )
    case(
        "tar_size_huge.pt",
        tar_member(b"pickle", value, size=b"\x80" + b"\x7f" + b"\xff" * 10) + bytes(1024),
        "a size of 2⁸⁷",
        "CorruptError",
        "has no size",
    )
    case(
        "tar_pax_size.pt",
        tar_member(b"x", b"28 size=9999999999999999999\n", b"x") + tar(),
        "a size of 10¹⁹ in an extended header",
        "CorruptError",
        "has an extended header of an unusual name",
    )
    case(
        "tar_storage_short.pt",
        tar(storages.replace(longs(4), longs(400))),
        "a storage that ends behind its member",
        "TruncatedError",
        "ends inside a storage",
    )
    case(
        "tar_storage_negative.pt",
        tar(storages.replace(longs(4), longs(-4))),
        "a storage of -4 elements",
        "TruncatedError",
        "ends inside a storage",
    )
    case(
        "tar_view_beyond.pt",
        tar(tensors=tensors.replace(longs(2, 2, 2, 1, 0), longs(2, 2, 2, 1, 9))),
        "a tensor outside its storage",
        "CorruptError",
        "is not a view of its storage",
    )
    case(
        "tar_dimensions.pt",
        tar(tensors=tensors.replace(ints(2) + bytes(4), ints(2**30) + bytes(4))),
        "a tensor of 1 073 741 824 dimensions",
        "CorruptError",
        "a tensor has 1073741824 dimensions",
    )
    case(
        "tar_call.pt",
        tar(value=b"\x80\x02cposix\nsystem\n" + text(TOUCH) + b"\x85R."),
        "posix.system in the pickle",
        "ForbiddenGlobalError",
        "names posix.system, which runs code",
    )
    case(
        "tar_other.pt",
        tar_member(b"readme.txt", b"hello") + bytes(1024),
        "a tar archive of something else",
        "CorruptError",
        "has no member storages",
    )


def limit_cases() -> None:
    """Files that are small and would cost much."""
    case(
        "operations.pt",
        bomb(b"0N" * 300_000),
        "600 000 operations in a deflated pickle of 600 bytes",
        "LimitError",
        "the limit inflated_operations",
    )
    levels = b"](K\x01K\x02e" + b"".join(
        b"q" + bytes([n]) + b"](h" + bytes([n]) + b"h" + bytes([n]) + b"e" for n in range(40)
    )
    case(
        "sharing_bomb.pt",
        zip_of([("a/data.pkl", b"\x80\x02" + levels + b"."), ("a/version", b"3\n")]),
        "a list that holds one list twice, 40 levels deep: 2⁴⁰ when told apart",
        "LimitError",
        "the limit work",
        "describe",
    )
    record = zip_of([("a/model.json", b'{"mainModule":' + b'{"submodules":[' * 3_000), ("a/version", b"2\n")])
    case(
        "json_deep.pt",
        record,
        "TorchScript of 1.0 whose JSON is nested 3 000 deep",
        "CorruptError",
        "model.json is not in PyTorch's format",
    )


def plain(pickle: bytes, **others: bytes) -> bytes:
    """A checkpoint of no tensors, whose pickle is given whole."""
    members = [("a/data.pkl", pickle), ("a/version", b"3\n")]
    return zip_of(members + [(name, content) for name, content in others.items()])


def framed(data: bytes, behind: bytes) -> bytes:
    """A pickle of protocol 4 whose frame ends after some bytes."""
    return b"\x80\x04\x95" + struct.pack("<Q", len(data)) + data + behind


def differential_cases() -> None:
    """Files of which other readers take another value than the bytes say, or read more than the value."""
    case_words = "occurs twice in the archive for PyTorch"
    members = [("a/DATA.PKL", b"\x80\x02cposix\nsystem\n" + text(TOUCH) + b"\x85R."), ("a/data.pkl", b"\x80\x02}.")]
    case(
        "case_pickle.pt",
        zip_of([*members, ("a/version", b"3\n")]),
        "two pickles whose names differ in case, of which PyTorch executes the first",
        "CorruptError",
        case_words,
    )
    weights = [("a/DATA/0", bytes(16)), ("a/data/0", b"\1" * 16), ("a/version", b"3\n")]
    case(
        "case_weights.pt",
        zip_of([("a/data.pkl", b"\x80\x02" + SOUND + b"."), *weights]),
        "two storages whose names differ in case, of which PyTorch loads the first",
        "CorruptError",
        case_words,
    )
    case(
        "case_byteorder.pt",
        zip_of([("a/data.pkl", b"\x80\x02" + SOUND + b"."), ("a/data/0", bytes(16)), ("a/BYTEORDER", b"big")]),
        "a byte order that PyTorch finds under another name",
        "CorruptError",
        "that differs in case from PyTorch's",
    )
    case(
        "name_zero.pt",
        zip_of([("a/data.pkl", b"\x80\x02}."), ("a/x\0y", b"1"), ("a/version", b"3\n")]),
        "a zero byte in a member's name",
        "CorruptError",
        "a zero byte in its name",
    )
    inner = plain(b"\x80\x02].")
    case(
        "two_ends.pt",
        plain(b"\x80\x02}.")[:-2] + struct.pack("<H", len(inner) + 1) + inner + b" ",
        "an archive in the comment of another, and readers disagree about which one counts",
        "CorruptError",
        "two ends",
    )
    crossed = "crosses the end of a frame"
    hidden = b"builtins\nprint\n" + text("x") + b"\x85R."
    for name, data, what in (
        ("frame_global.pt", framed(b"c__torch__.", hidden), "a GLOBAL whose module begins inside a frame"),
        ("frame_inst.pt", framed(b"(" + text("x") + b"icollections.", b"builtins\nprint\n."), "the same by INST"),
        ("frame_text.pt", framed(b"}Vweight", b"_g\nK\1s."), "a string that begins inside a frame"),
        ("frame_number.pt", framed(b"M\1", b"\2."), "a number that begins inside a frame"),
        ("frame_stop.pt", framed(b"}.}", b"."), "a STOP before the end of its frame"),
    ):
        case(name, plain(data), f"{what}: CPython drops that part", "CorruptError", crossed)
    case(
        "frame_inside.pt",
        plain(framed(b"}\x95" + struct.pack("<Q", 2) + b"0", b"}.")),
        "a frame that begins inside another",
        "CorruptError",
        "begins inside another",
    )
    for name, line, what in (
        ("number_octal.pt", b"I010\n", "010, which is 8 to CPython"),
        ("number_zero.pt", b"I1\x002\n", "a number with a zero byte inside, at which CPython stops"),
    ):
        case(name, plain(line + b"."), f"a number in text: {what}", "CorruptError", "not as Python writes it")
    refused = "ForbiddenGlobalError"
    attack = b"\x80\x02cposix\nsystem\n" + text(TOUCH) + b"\x85R."
    case("behind_stop.pt", plain(b"\x80\x02}." + attack), "a second pickle behind STOP", refused, "posix.system")
    case("behind_pickle.pt", b"\x80\x02}." + attack, "the same in a plain pickle", refused, "posix.system")
    magic = b"\x80\x02\x8b\x0a\0\0\0" + (0x1950A86A20F9469CFC6C).to_bytes(10, "little") + b"."
    case(
        "magic_long4.pt",
        magic + b"\x80\x02M\xe9\x03.\x80\x02}." + attack + b"\x80\x02].",
        "PyTorch's magic number by another opcode than PyTorch writes",
        refused,
        "posix.system",
    )
    for name, named in (
        ("call_f2py.pt", b"numpy.f2py.crackfortran\nmyeval\n"),
        ("call_load_library.pt", b"torch.ops\nload_library\n"),
        ("call_python2.pt", b"commands\ngetoutput\n"),
    ):
        shown = named.decode().strip().replace("\n", ".")
        case(name, plain(b"\x80\x02c" + named + text("1") + b"\x85R."), f"a call of {shown}", refused, shown)
    two = pt_tensor((4,), (1,)) + pt_tensor((4,), (1,), kind="IntStorage")
    case(
        "storage_two_classes.pt",
        pt(b"(" + two + b"t"),
        "one storage by two classes, of which PyTorch takes the first for both",
        "CorruptError",
        "named with two classes",
    )
    case(
        "weights_unread.pt",
        zip_of([("a/data.pkl", b"\x80\x02}."), ("a/data/0", bytes(16)), ("a/version", b"3\n")]),
        "an archive with weights to which its value does not refer",
        "CorruptError",
        "refers to none of them",
    )
    copies = b"cbuiltins\nbytearray\nq\0B" + struct.pack("<I", 9_000) + bytes(9_000) + b"\x85q\1R" + b"0h\0h\1R" * 4_000
    case(
        "copies.pt",
        bomb(copies),
        "9 000 bytes that 4 000 calls copy",
        "LimitError",
        "copies the same values over and over",
    )
    case(
        "folder_weights.pt",
        zip_of(
            [("a/data.pkl", b"\x80\x02" + SOUND + b"."), ("a/data/0", bytes(16)), ("a/version", b"3\n")],
            centrals={"a/data/0": {"attributes": 0x10}},
        ),
        "weights that are marked as a folder, for which PyTorch takes whatever is in memory",
        "CorruptError",
        "is marked as a folder",
    )
    encoded = b"}" + text("a") + b"c_codecs\nencode\n" + text("caf\u00e9") + text("utf-16") + b"\x86Rs"
    case(
        "bytes_codec.pt",
        zip_of([("a/data.pkl", b"\x80\x02" + encoded + b"."), ("a/version", b"3\n")]),
        "bytes as a text in UTF-16, which CPython would encode",
        "UnsupportedError",
        "in an encoding that no pickler uses",
    )
    modulus = (1 << 61) - 1
    for name, keys in {
        "keys_integers.pt": [b"\x8a\x0a" + (modulus * (k + 1)).to_bytes(10, "little") for k in range(1200)],
        "keys_complex.pt": [
            b"cbuiltins\ncomplex\nG" + struct.pack(">d", 1_000_003 * k) + b"G" + struct.pack(">d", -k) + b"\x86R"
            for k in range(1, 1201)
        ],
    }.items():
        case(
            name,
            b"\x80\x02}(" + b"N".join(keys) + b"Nu.",
            "a dict whose keys have one hash, so that filling it takes the square of their number",
            "LimitError",
            "have the same hash",
        )


def bomb(pickle: bytes) -> bytes:
    """A checkpoint with a deflated pickle."""
    data = b"\x80\x02N" + pickle + b"."
    small = deflated(data)
    says = {"method": 8, "size": len(data), "crc": zlib.crc32(data)}
    return zip_of([("a/data.pkl", small), ("a/version", b"3\n")], {"a/data.pkl": says}, {"a/data.pkl": says})


HEAD = """# Files that must be refused

One small file for each kind of damage and each attack, put together byte by byte by `testfiles/gen/bad_cases.py`, which
also writes this page. Loading, describing, inspecting and converting each of them, in Python and on the command line,
gives the error of its row and nothing else: no traceback, exit code 2, no file left behind. `tests/test_bad_files.py`
holds that. The attacks are real: Python's own unpickler would run `touch /tmp/t7bridge-was-here`.

Refused by: where this is not `all`, the others take the file, as it costs them nothing: `load` and `inspect` do not read
weights, and only `describe` shows what is shared wherever it is met.

| file | what it is | refused by | error | words of its message |
| --- | --- | --- | --- | --- |
"""


def main() -> None:
    """Write the files and the table."""
    for make in (t7_cases, pickle_cases, tensor_cases, zip_cases, tar_cases, limit_cases, differential_cases):
        make()
    BAD.mkdir(exist_ok=True)
    assert len({name for name, *_ in CASES}) == len(CASES)
    page = io.StringIO()
    page.write(HEAD)
    for name, data, what, by, error, words in CASES:
        (BAD / name).write_bytes(data)
        page.write(f"| `{name}` | {what} | {by} | {error} | {words} |\n")
    (BAD / "README.md").write_text(page.getvalue())


if __name__ == "__main__":
    main()
