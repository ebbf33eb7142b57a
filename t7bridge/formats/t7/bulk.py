"""Many numbers at once, by numpy: imported when a table is long enough to pay off."""

from __future__ import annotations

from array import array

from ...lazy import np


def number_entries(data: memoryview, sign: str) -> tuple[array[float], array[float]]:
    """Decode leading number → number entries of a table.

    Args:
        data: whole entries of 24 bytes each: tag, double, tag, double.
        sign: byte order, `<` or `>`.

    Returns:
        The keys and the values up to the first entry of another kind; as arrays, since extending a list by a list
        counts references to each number twice, which takes half as long as creating them.
    """
    entry = np.dtype(
        [("key_tag", sign + "i4"), ("key", sign + "f8"), ("value_tag", sign + "i4"), ("value", sign + "f8")]
    )
    entries = np.frombuffer(data, entry)
    other = (entries["key_tag"] != 1) | (entries["value_tag"] != 1) | np.isnan(entries["key"])
    count = int(other.argmax()) if other.any() else len(entries)
    keys, values = (entries[name][:count].astype("f8") for name in ("key", "value"))
    return array("d", keys.tobytes()), array("d", values.tobytes())


def single_spaces(line: bytes) -> int:
    """Return the number of spaces on a line; -1 if two are adjacent."""
    is_space = np.frombuffer(line, "u1") == 0x20
    return -1 if (is_space[1:] & is_space[:-1]).any() else int(np.count_nonzero(is_space))
