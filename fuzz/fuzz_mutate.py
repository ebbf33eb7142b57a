"""Format-aware mutations of bytes: integers, words of text, members of archives."""

from __future__ import annotations

import io
import random
import struct
import zipfile

_INTEGERS = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 1,
    2**63,
)
_WORDS = (
    b"0",
    b"-1",
    b"1",
    b"3",
    b"4",
    b"8",
    b"99999999999999999999",
    b"nan",
    b"inf",
    b"1e999",
    b"0x10",
    b"-0",
    b"2147483648",
)
_TAGS = (
    b"\0\0\0\0",
    b"\1\0\0\0",
    b"\2\0\0\0",
    b"\3\0\0\0",
    b"\4\0\0\0",
    b"\5\0\0\0",
    b"\6\0\0\0",
    b"\7\0\0\0",
    b"\10\0\0\0",
)
_OPCODES = b"(.0123456789FGIJKLMNPQRSTUVXZ]abcdeghijlopqrstu})" + bytes(range(0x80, 0x97))
_LARGEST = 200_000


def mutate(data: bytes, other: bytes, choose: random.Random) -> bytes:
    """Return a file with one to six changes.

    Args:
        data: the file.
        other: another file, from which pieces may be copied.
        choose: selects the changes.
    """
    if data[:2] == b"PK" and choose.random() < 0.6:
        changed = _member_changed(data, other, choose)
        if changed is not None:
            return changed
    result = bytearray(data)
    for _ in range(choose.choice((1, 1, 1, 2, 3, 6))):
        _change(result, other, choose)
    return bytes(result[:_LARGEST])


def overwrite(data: bytes, choose: random.Random) -> bytes:
    """Return a file with one changed bit, byte or number, and all else in place."""
    result = bytearray(data)
    place, kind = choose.randrange(max(1, len(data))), choose.randrange(4)
    if kind == 0:
        result[place] ^= 1 << choose.randrange(8)
    elif kind == 1:
        result[place] = choose.randrange(256)
    else:
        width = choose.choice((4, 8))
        place -= place % 4
        value = choose.choice(_INTEGERS) * choose.choice((1, 1, -1))
        if kind == 3:
            value = int.from_bytes(result[place : place + width], "little") + choose.choice((-1, 1, -2, 2, 16))
        result[place : place + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return bytes(result[: len(data)])


def _change(data: bytearray, other: bytes, choose: random.Random) -> None:
    place = choose.randrange(len(data) + 1)
    kind = choose.randrange(12)
    if kind == 0 and data:
        data[place % len(data)] ^= 1 << choose.randrange(8)
    elif kind == 1 and data:
        data[place % len(data)] = choose.randrange(256)
    elif kind == 2:
        code = choose.choice(["<i", ">i", "<q", ">q", "<h", "B"])
        width = struct.calcsize(code)
        value = choose.choice(_INTEGERS) * choose.choice((1, 1, -1)) & ((1 << 8 * width) - 1)
        data[place : place + width] = value.to_bytes(width, "big" if code[0] == ">" else "little")
    elif kind == 3:
        del data[place : place + choose.choice((1, 2, 4, 8, 12, choose.randrange(1, 200)))]
    elif kind == 4:
        stop = place + choose.randrange(1, 64)
        data[place:place] = data[place:stop] * choose.choice((1, 1, 2, 20))
    elif kind == 5:
        start = choose.randrange(len(other) + 1)
        piece = other[start : start + choose.choice((4, 8, 24, 100, 1000))]
        data[place : place + (len(piece) if choose.random() < 0.5 else 0)] = piece
    elif kind == 6:
        del data[place:]
    elif kind == 7:
        data[place : place + 4] = choose.choice(_TAGS)
    elif kind == 8:
        data[place : place + choose.randrange(2)] = bytes((choose.choice(_OPCODES),))
    elif kind == 9:
        _change_word(data, place, choose)
    elif kind == 10:
        step = place & ~3  # keep aligned data aligned
        start = choose.randrange(len(data) + 1) & ~3
        data[step : step + 4] = data[start : start + 4]
    else:
        value = int.from_bytes(data[place : place + 4], "little") + choose.choice((-1, 1, -2, 2, 16))
        data[place : place + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")


def _change_word(data: bytearray, place: int, choose: random.Random) -> None:
    start = max(data.rfind(b"\n", 0, place), data.rfind(b" ", 0, place)) + 1
    ends = [end for end in (data.find(b"\n", start), data.find(b" ", start)) if end >= 0]
    data[start : min(ends, default=len(data))] = choose.choice(_WORDS)


def _member_changed(data: bytes, other: bytes, choose: random.Random) -> bytes | None:
    """Return an archive with a changed member and its correct CRC, to test more than the CRC."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:  # Python's reader refuses archives of testfiles/bad in many ways
        return None
    if not members:
        return None
    names = [
        number
        for number, (name, _) in enumerate(members)
        if name.endswith((".pkl", ".json", ".py", "byteorder", "record"))
    ]
    chosen = choose.choice(names) if names and choose.random() < 0.85 else choose.randrange(len(members))
    content = bytearray(members[chosen][1])
    for _ in range(choose.choice((1, 1, 2, 4))):
        _change(content, other, choose)
    members[chosen] = (members[chosen][0], bytes(content[:_LARGEST]))
    file = io.BytesIO()
    with zipfile.ZipFile(
        file, "w", choose.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()
