"""Damaged `.pt` files: an error of this package or a value, and nothing else, in little time."""

from __future__ import annotations

import random
import zipfile

import pytest
from bounds import bounded
from helpers import corpus, name_of
from pt_helpers import described, members_of, zipped

from t7bridge.errors import CorruptError, FormatError, T7BridgeError
from t7bridge.formats.fields import parse_json
from t7bridge.formats.pt.pickle.context import _hash_of_64_bits

SMALL = [path for path in corpus("pt/*.pt") if path.stat().st_size < 3000 and "dtype_" not in path.name]
ZIPS = [path for path in corpus("pt/*.pt") if path.read_bytes()[:2] == b"PK" and "dtype_" not in path.name]


def outcome(data: bytes) -> str:
    """Return the outcome of reading and describing a file."""
    with bounded():
        try:
            described(data)
        except T7BridgeError as error:
            return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("path", SMALL, ids=name_of)
def test_every_truncation(path):
    """A file that ends anywhere before its end is an error; only the filling of a tar archive may be missing."""
    data = path.read_bytes()
    end = len(data.rstrip(b"\0")) if path.name.startswith("tar") else len(data)
    for length in range(0, end, 1 if len(data) < 1200 else 5):
        with pytest.raises(FormatError):
            described(data[:length])


def test_offsets_beyond_any_file(tmp_path):
    """An offset of 64 bits in a file on disk is an error like any other."""
    path = tmp_path / "far.pt"
    data = corpus("pt/state_dict.pt")[0].read_bytes()
    locator = data.rindex(b"PK\6\7")
    for offset in (len(data), 1 << 62, (1 << 64) - 1):
        path.write_bytes(data[: locator + 8] + offset.to_bytes(8, "little") + data[locator + 16 :])
        with pytest.raises(FormatError):
            described(path)


@pytest.mark.slow
def test_changed_bytes(subtests):
    """Bytes changed, cut out or put in."""
    for path in corpus("pt/*.pt"):
        with subtests.test(name_of(path)):
            data, random_ = path.read_bytes(), random.Random(path.name)
            for _ in range(40):
                changed = bytearray(data)
                for _ in range(random_.randint(1, 5)):
                    place = random_.randrange(len(changed))
                    kind = random_.random()
                    if kind < 0.5:
                        changed[place] = random_.randrange(256)
                    elif kind < 0.7:
                        changed[place : place + 4] = random_.choice(
                            [b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff\xff\xff\xff"]
                        )
                    elif kind < 0.85:
                        del changed[place : place + random_.randint(1, 20)]
                    else:
                        changed[place:place] = changed[place : place + random_.randint(1, 60)]
                outcome(bytes(changed))


@pytest.mark.parametrize("path", ZIPS, ids=name_of)
def test_changed_members(path):
    """Members of archives changed before they are packed, so that their CRCs are right."""
    members, random_ = members_of(path.read_bytes()), random.Random(path.name)
    for number in range(40):
        changed = dict(members)
        for name in random_.sample(sorted(members), 2) + [name for name in members if name.endswith("data.pkl")]:
            content = bytearray(changed[name])
            for _ in range(random_.randint(0, 3) if content else 0):
                content[random_.randrange(len(content))] = random_.choice([0, 1, 255, random_.randrange(256)])
            changed[name] = bytes(content)
        outcome(zipped(changed, zipfile.ZIP_DEFLATED if number % 4 == 0 else zipfile.ZIP_STORED))


def test_errors_name_file_and_place(tmp_path):
    """A message names the file, the position in it, the member, and the next step."""
    path = tmp_path / "cut.pt"
    source = corpus("pt/state_dict.pt")[0].read_bytes()
    path.write_bytes(source[:-100])
    with pytest.raises(FormatError) as caught:
        described(path)
    assert str(path) in str(caught.value)
    assert "download or copy it again" in str(caught.value)

    members = members_of(source)
    path.write_bytes(zipped({**members, "state_dict/data.pkl": members["state_dict/data.pkl"][:50]}))
    with pytest.raises(FormatError) as caught:
        described(path)
    assert caught.value.path == "state_dict/data.pkl"
    assert caught.value.offset is not None


def test_json_is_bounded_by_its_depth():
    """The same depth everywhere, whatever stack Python's own parser has; brackets in strings do not count."""
    text = b'{"[{\\"[": ' + b"[" * 499 + b'"]]}", "' + b"]" * 2000 + b'"' + b"]" * 499 + b"}"
    assert parse_json(text, "x")['[{"[']
    for deep in (b"[" * 501 + b"]" * 501, b'{"a":' * 600 + b"1" + b"}" * 600, b"[" * 100_000, b'["' + b'\\"' * 100_000):
        with bounded(), pytest.raises(CorruptError, match="x is not in PyTorch's format"):
            parse_json(deep, "x")


def test_integers_have_the_hash_of_64_bits():
    """Of this Python, which has them; a browser's has 32."""
    generator = random.Random(6)
    for _ in range(1000):
        number = generator.randrange(-(1 << 80), 1 << 80) * generator.choice([1, (1 << 61) - 1])
        assert _hash_of_64_bits(number) == hash(number)
    for number in (-1, -2, -(1 << 61), -(1 << 61) - 1):
        assert _hash_of_64_bits(number) == hash(number) == -2
