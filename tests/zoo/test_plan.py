"""The files of a zoo, and the names of their outputs."""

import os
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from helpers import corpus, name_of

from t7bridge import T7BridgeError
from t7bridge.errors import ModelError
from t7bridge.zoo import Journal, OutputNames, find_inputs, kind_of, safe_name


def fill(folder: Path, *names: str) -> Path:
    """Files without content that matters."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def names(*sources: object, output: object = "") -> list[str]:
    """The names of the inputs, sorted."""
    with closing(Journal("")) as journal, journal.transaction():
        journal.list_inputs(find_inputs([str(source) for source in sources], str(output)))
        return [item.name for item, _ in journal.inputs()]


def left_out(folder: Path, *include: str) -> tuple[list[str], dict[str, int]]:
    """The names of the inputs in a folder, and what is left out."""
    counts: Counter[str] = Counter()
    found = sorted(item.name for item in find_inputs([str(folder)], "", include, counts))
    return found, dict(counts)


def outputs(*wanted: str, taken: tuple[str, ...] = ()) -> dict[str, str]:
    """The names of outputs of `.t7` inputs."""
    with closing(Journal("")) as journal:
        names = OutputNames(journal, lambda kind: ".pt")
        for name in wanted:
            names.note_wanted_name(name, "t7")
        for name in taken:
            names.reserve(name)
        return {name: names.choose_name(name, "t7") for name in wanted}


def test_one_folder(tmp_path: Path) -> None:
    """One folder has names relative to it, sorted, without hidden files and the output folder."""
    fill(tmp_path, "b/net.t7", "a.t7", ".hidden.t7", ".git/x.t7", "out/a.pt", "b/c/d.t7")

    assert names(tmp_path, output=tmp_path / "out") == ["a.t7", "b/c/d.t7", "b/net.t7"]


def test_several_folders(tmp_path: Path) -> None:
    """Of several folders each adds its own name, numbered if two have the same."""
    fill(tmp_path, "x/models/net.t7", "y/models/net.t7", "z/net.t7")

    found = names(tmp_path / "x/models", tmp_path / "y/models", tmp_path / "z")
    assert found == ["models-2/net.t7", "models/net.t7", "z/net.t7"]


def test_single_files(tmp_path: Path) -> None:
    """Files named one by one have names below the folder that holds all of them."""
    fill(tmp_path, "m/a/net.t7", "m/b/net.t7")

    assert names(tmp_path / "m/a/net.t7", tmp_path / "m/b/net.t7") == ["a/net.t7", "b/net.t7"]
    assert names(tmp_path / "m/a/net.t7") == ["net.t7"]


def test_pattern(tmp_path: Path) -> None:
    """A pattern has names relative to the folder of its first wildcard."""
    fill(tmp_path, "m/a/net.t7", "m/b/net.t7", "m/b/net.txt", "n/net.t7")

    assert names(tmp_path / "m/*/net.t7") == ["a/net.t7", "b/net.t7"]
    assert names(tmp_path / "**/*.t7") == ["m/a/net.t7", "m/b/net.t7", "n/net.t7"]
    # Folders that a recursive pattern matches are listed, too; where it matches all that is in them, by itself.
    assert names(tmp_path / "**/a") == ["m/a/net.t7"]
    assert names(tmp_path / "**/[mb]") == names(tmp_path / "m**") == ["m/a/net.t7", "m/b/net.t7", "m/b/net.txt"]
    assert names(tmp_path / "**") == names(tmp_path / "**/*") == names(tmp_path)


def test_links(tmp_path: Path) -> None:
    """A link to a file is followed; one to a folder is not, as it may go round."""
    fill(tmp_path, "m/net.t7")
    (tmp_path / "m/round").symlink_to(tmp_path / "m")
    (tmp_path / "m/other.t7").symlink_to(tmp_path / "m/net.t7")
    (tmp_path / "m/nothing.t7").symlink_to(tmp_path / "nowhere")

    assert names(tmp_path / "m") == ["net.t7", "other.t7"]
    assert left_out(tmp_path / "m")[1] == {"folder_links": 1, "broken_links": 1}
    assert names(tmp_path / "m/*.t7") == ["net.t7", "other.t7"]
    with pytest.raises(T7BridgeError, match="is a link to a file that does not exist"):
        names(tmp_path / "m/nothing.t7")


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """Hidden files and folders, special files and names that no pattern fits are counted, not just skipped."""
    fill(tmp_path, "a.t7", "b.pt", "c/d.t7", "c/e.txt", ".hidden", ".git/x.t7", ".git/y.t7")
    os.mkfifo(tmp_path / "pipe")

    assert left_out(tmp_path)[1] == {"hidden": 2, "special": 1}
    assert left_out(tmp_path, "*.t7") == (["a.t7", "c/d.t7"], {"hidden": 2, "special": 1, "not_included": 2})
    assert left_out(tmp_path, "c/*.t7", "*.pt") == (["b.pt", "c/d.t7"], {"hidden": 2, "special": 1, "not_included": 2})
    assert left_out(tmp_path, "C/*")[0] == []
    assert [item.name for item in find_inputs([str(tmp_path / "b.pt")], "", ["*.t7"])] == ["b.pt"]


def test_refused_sources(tmp_path: Path) -> None:
    """Missing and special files are not sources."""
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(T7BridgeError, match="no such file or folder"):
        names(tmp_path / "nothing.t7")
    with pytest.raises(T7BridgeError, match="not a regular file"):
        names(tmp_path / "pipe")


def test_same_name_twice(tmp_path: Path) -> None:
    """Two inputs that would be called the same are refused, not mixed."""
    fill(tmp_path, "a/z/net.t7", "z/net.t7", "k.t7")

    with pytest.raises(ModelError, match=r"two inputs have the name z/net\.t7"):
        names(tmp_path / "a/z", tmp_path / "k.t7", tmp_path / "z/net.t7")


def test_output_names() -> None:
    """Known suffixes are replaced, others stay."""
    assert outputs("a.t7", "b.net", "c.v1", "d", "e.PTH", "f.pth.tar", ".t7") == {
        "a.t7": "a.pt", "b.net": "b.pt", "c.v1": "c.v1.pt", "d": "d.pt", "e.PTH": "e.pt",
        "f.pth.tar": "f.pt", ".t7": ".t7.pt",
    }  # fmt: skip


def test_colliding_names() -> None:
    """If two outputs would have one name, up to case, both keep their own suffix."""
    assert outputs("a.t7", "A.net") == {"a.t7": "a.t7.pt", "A.net": "A.net.pt"}
    assert outputs("a.t7", "a.t7.t7") == {"a.t7": "a.pt", "a.t7.t7": "a.t7.pt"}
    assert outputs("a.net", taken=("a.pt",)) == {"a.net": "a.net.pt"}
    assert outputs("a.t7", "a.net", taken=("a.t7.pt",)) == {"a.t7": "a.t7.2.pt", "a.net": "a.net.pt"}
    assert outputs("m.t7", "m.pt/x.t7") == {"m.t7": "m.t7.pt", "m.pt/x.t7": "m.pt/x.pt"}


@pytest.mark.parametrize(
    ("inside", "safe"),
    [("../../etc/x", "__/__/etc/x"), ("/abs/x", "abs/x"), ("a\\..\\x", "a/__/x"), ("a/./b", "a/b"), ("", "_")],
)
def test_names_stay_in_the_folder(inside: str, safe: str) -> None:
    """No member of an archive gets a name outside the output folder."""
    assert safe_name(inside) == safe


def test_found_by_content(subtests: pytest.Subtests) -> None:
    """Every file of the corpus is known by its first bytes."""
    for path in corpus("format/*.t7", "legacy/*.t7", "pt/*.pt"):
        with subtests.test(name_of(path)), path.open("rb") as file:
            assert kind_of(file.read(512)) == path.suffix[1:]


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"hello world",
        b"import torch\n",
        b"12 apples\n",
        b"\x89PNG\r\n\x1a\n",
        b"\x7fELF\x02\x01\x01",
        b"{}",
        b"# a",
    ],
)
def test_foreign_content(head: bytes) -> None:
    """A file that is neither is not mistaken for one."""
    assert kind_of(head) == ""
