"""Comparison of two files across formats and encodings, also by other readers."""

from pathlib import Path

import pytest
import torch
from helpers import TESTFILES
from looping import new_folder

import t7bridge
from t7bridge.errors import FormatError
from t7bridge.formats import PtWriter
from t7bridge.graph import PythonGlobal
from t7bridge.tools.verify import differences_from_torch

ROOT = Path(__file__).parents[2] / "testfiles"
T7 = [path for path in sorted(ROOT.glob("format/*.t7")) if not path.name.startswith(("stream", "object_custom_write"))]
PT = sorted(ROOT.glob("pt/*.pt"))


def by_name(path: Path) -> str:
    """A test's name for a file."""
    return path.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"mode": "tree"}, {"mode": "tree", "record": False}], ids=["auto", "tree", "bare"]
)
def test_t7_against_its_pt(subtests: pytest.Subtests, options: dict[str, object], tmp_path: Path) -> None:
    """A `.pt` made from a `.t7` holds the same, with and without the record, in both orders."""
    for path in T7 + sorted(ROOT.glob("models/*.t7")):
        with subtests.test(by_name(path)), new_folder(tmp_path) as folder:
            t7bridge.convert(path, folder / "x.pt", **options)  # type: ignore[arg-type]

            assert t7bridge.verify(path, folder / "x.pt").differences == []
            assert t7bridge.verify(folder / "x.pt", path).differences == []


@pytest.mark.slow
@pytest.mark.parametrize("record", [True, False])
def test_pt_against_its_t7(subtests: pytest.Subtests, record: bool, tmp_path: Path) -> None:
    """A `.t7` made from a `.pt` holds the same, with and without the record, in both orders."""
    for path in PT:
        with subtests.test(by_name(path)), new_folder(tmp_path) as folder:
            t7bridge.convert(path, folder / "x.t7", record=record)

            assert t7bridge.verify(path, folder / "x.t7").differences == []
            assert t7bridge.verify(folder / "x.t7", path).differences == []


def test_pytorch_agrees() -> None:
    """PyTorch's safe loader reads most of its own files, and finds no difference in any."""
    judged = 0
    for path in PT:
        report = t7bridge.verify(path, path, independent=True)
        assert report.same, path.name
        judged += report.readers[str(path)] == ["torch"]
    assert judged > 70


def test_tensors_without_memory_are_compared_by_their_shapes() -> None:
    """With `torch.distributed.tensor` imported, PyTorch's safe loader reads a `DTensor`, which has no memory itself."""
    pytest.importorskip("torch.distributed.tensor")
    path = ROOT / "distributed" / "rank1.pt"
    report = t7bridge.verify(path, path, independent=True)
    assert report.same
    assert report.readers[str(path)] == ["torch"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"w": torch.ones(3)}, "root.w.storage"),
        ({"w": torch.zeros(4)}, "root.w"),
        ({"w": torch.zeros(3, dtype=torch.float64)}, "root.w"),
        ({"w": torch.nn.Parameter(torch.zeros(3))}, "root.w"),
        ({"w": torch.zeros(6)[::2]}, "root.w"),
        ({"v": torch.zeros(3)}, "root.w"),
        ({"w": torch.zeros(3), "n": 1}, "root.n"),
        ([torch.zeros(3)], "root"),
        ({"w": torch.zeros(1).expand(3)}, "root.w"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_differences(change: object, path: str, tmp_path: Path) -> None:
    """A difference of any kind is found where it is."""
    torch.save({"w": torch.zeros(3)}, tmp_path / "a.pt")
    torch.save(change, tmp_path / "b.pt")

    report = t7bridge.verify(tmp_path / "a.pt", tmp_path / "b.pt")

    assert not report.same
    assert path in {found.path for found in report.differences}


def test_sharing_is_a_difference(tmp_path: Path) -> None:
    """Tensors that share memory in one file and not in the other differ."""
    base = torch.zeros(4)
    torch.save([base[:2], base[2:]], tmp_path / "a.pt")
    torch.save([torch.zeros(4)[:2], torch.zeros(4)[2:]], tmp_path / "b.pt")

    assert not t7bridge.verify(tmp_path / "a.pt", tmp_path / "b.pt").same


def test_one_weight(tmp_path: Path) -> None:
    """A single changed number in a weight of a converted model is found, with its path."""
    t7bridge.convert(ROOT / "models/lenet_mm.t7", tmp_path / "x.pt", mode="tree")
    value = torch.load(tmp_path / "x.pt", weights_only=True)
    value["modules"][3]["weight"][0, 0] = 123
    torch.save(value, tmp_path / "y.pt")

    report = t7bridge.verify(tmp_path / "y.pt", ROOT / "models/lenet_mm.t7")

    assert [found.path for found in report.differences] == ["root.modules[3].weight.storage"]


def test_a_storage_of_a_state_dict_is_named_as_its_tensor(tmp_path: Path) -> None:
    """What differs in the memory of a key has the name of the key, and what of it."""
    source = TESTFILES / "models" / "lenet_mm.t7"
    t7bridge.convert(source, tmp_path / "half.pt", dtype="float16")
    names = [found.name for found in t7bridge.verify(source, tmp_path / "half.pt").differences]
    assert names[:2] == ["0.weight", "0.weight.storage"]


def test_wrong_crc(tmp_path: Path) -> None:
    """A byte that was damaged in an archive is noticed by its CRC."""
    data = bytearray((ROOT / "pt/state_dict.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.pt").write_bytes(data)

    with pytest.raises(FormatError, match="CRC"):
        t7bridge.verify(tmp_path / "bad.pt", ROOT / "pt/state_dict.pt")


def test_damaged_file(tmp_path: Path) -> None:
    """A file that cannot be read is an error, not a difference."""
    (tmp_path / "bad.t7").write_bytes(b"\x03\0\0\0\x01\0\0\0\x05\0\0\0")

    with pytest.raises(FormatError):
        t7bridge.verify(ROOT / "format/nil.t7", tmp_path / "bad.t7")


def test_report_is_data() -> None:
    """The report becomes JSON."""
    report = t7bridge.verify(ROOT / "format/table_list.t7", ROOT / "format/table_list.ascii.t7", independent=True)

    data = report.as_dict()
    assert data["same"] is True
    assert list(data["readers"].values()) == [["torchfile"], []]


def test_what_pytorch_reads_otherwise(tmp_path: Path) -> None:
    """Each difference of our value and PyTorch's has its path, and what PyTorch has; what is inside is not compared."""
    torch.save(
        {"list": [1, 2], "kind": [1], "number": 1, "shape": torch.ones(2), "bits": torch.ones(2)}, tmp_path / "x.pt"
    )
    value = t7bridge.load(tmp_path / "x.pt")
    assert differences_from_torch(tmp_path / "x.pt", value) == []
    torch.save({"bits": torch.zeros(2), "shape": torch.ones(3)}, tmp_path / "other.pt")
    value.update(t7bridge.load(tmp_path / "other.pt"), list=[1, 2, 3], kind={}, number=1.0)
    assert differences_from_torch(tmp_path / "x.pt", value) == [
        "root.list: PyTorch has 2 items where here are 3",
        "root.kind: PyTorch has a list where here is a dict",
        "root.number: PyTorch has 1 for 1.0",
        "root.shape: PyTorch has ('float32', (2,), False, False, False) for ('float32', (3,), False, False, False)",
        "root.bits: PyTorch has different elements",
    ]


def test_pytorch_is_not_shown_long_names(tmp_path, monkeypatch):
    """PyTorch, whose message about a name takes quadratic time, is used only if all names are short."""
    asked = []
    monkeypatch.setattr("t7bridge.tools.verify.differences_from_torch", lambda path, value: asked.append(path))
    for size in (1000, 1001):
        path = tmp_path / f"{size}.pt"
        with open(path, "wb") as file:
            writer = PtWriter(file, allow_foreign=True)
            writer.write(PythonGlobal("package", "x" * (size - len("package."))))
            writer.finish()
        assert not t7bridge.verify(path, path, independent=True).differences
        assert (str(path) in map(str, asked)) == (size == 1000)
