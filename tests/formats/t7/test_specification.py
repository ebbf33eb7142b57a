"""The worked examples of `docs/format-t7.md` are files that the package reads and writes."""

from __future__ import annotations

import re

from helpers import ASCII, ROOT, TESTFILES, check_read_write, lines, read, written

DOCUMENT = (ROOT / "docs" / "format-t7.md").read_text()
EXAMPLES = re.findall(r"```\n(.*?)```", DOCUMENT.partition("## 13. ")[2], re.DOTALL)


def test_hexdump_is_the_corpus_file():
    """The bytes of the annotated hexdump are those of the named file, at the given offsets."""
    data = b""
    for line in EXAMPLES[0].splitlines():
        found = re.match(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} +)*)", line + " ")
        if found:
            assert int(found.group(1), 16) == len(data), line
            data += bytes.fromhex(found.group(2))
    assert data == (TESTFILES / "format" / "shared_tensor_and_storage.t7").read_bytes()


def test_ascii_example():
    """The example in ascii is the value in the document, and is written the same."""
    data = lines(EXAMPLES[1])
    value = check_read_write(data)
    assert value["x"].numpy().tolist() == [0.5, 2]
    assert value["y"] == b""
    assert written(read(data), ASCII) == data
