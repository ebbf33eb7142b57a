"""The command line: exit codes, messages, and no traceback."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from forked import run_python
from helpers import PATIENCE, run_here

from t7bridge import Storage, Table, convert, load, save
from t7bridge.errors import OptionError

ROOT = Path(__file__).parents[1] / "testfiles"


def t7bridge(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    command = [str(Path(sys.executable).with_name("t7bridge")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_convert(tmp_path: Path) -> None:
    """A conversion prints one line and ends with 0."""
    run = t7bridge("convert", ROOT / "models/lenet_mm.t7", tmp_path / "x.pt")

    assert run.returncode == 0
    assert run.stdout.startswith(f"{tmp_path / 'x.pt'}: state dict, ")
    assert (tmp_path / "x.pt").exists()


def test_convert_json(tmp_path: Path) -> None:
    """The report is JSON on request."""
    run = run_here("convert", "--json", ROOT / "format/checkpoint.t7", tmp_path / "x.t7")

    report = json.loads(run.stdout)
    assert (report["source_format"], report["target_format"], report["mode"]) == ("t7", "t7", "copy")
    assert (ROOT / "format/checkpoint.t7").stat().st_size == report["target_bytes"] == report["source_bytes"]


def test_convert_options(tmp_path: Path) -> None:
    """Encoding, byte order and size of `long` are options."""
    run = run_here("convert", "--byte-order", "big", ROOT / "format/view_narrow.t7", tmp_path / "x.t7")

    assert run.returncode == 0
    assert (ROOT / "format/view_narrow.big.t7").read_bytes() == (tmp_path / "x.t7").read_bytes()


@pytest.mark.parametrize("name", ["checkpoint", "function_shared_upvalue", "table_deep", "tensor_float_special"])
def test_describe(name: str) -> None:
    """The description is Lua Torch's JSON, to the letter but for escapes."""
    run = t7bridge("describe", ROOT / f"format/{name}.t7")

    assert run.returncode == 0
    assert (ROOT / f"format/{name}.json").read_text() == run.stdout


def test_inspect() -> None:
    """The outline names classes, shapes and shared objects."""
    run = run_here("inspect", "--depth", 3, ROOT / "models/siamese_shared.t7")

    assert run.returncode == 0
    assert run.stdout.startswith("root: nn.")
    assert "tensor" in run.stdout
    assert run_here("inspect", ROOT / "models/siamese_shared.t7").stdout.startswith("file ")


@pytest.mark.slow
def test_verify(tmp_path: Path) -> None:
    """Equal files end with 0, others with 1 and the differences."""
    same = t7bridge("verify", ROOT / "format/checkpoint.t7", ROOT / "format/checkpoint.big.t7")
    other = t7bridge("verify", ROOT / "format/view_select.t7", ROOT / "format/view_narrow.t7")

    assert (same.returncode, same.stdout.splitlines()[-1]) == (0, "the same")
    independent = t7bridge("verify", "--independent", ROOT / "format/checkpoint.t7", ROOT / "format/checkpoint.t7")
    assert "torchfile" in independent.stdout
    assert other.returncode == 1
    assert "root" in other.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty. It was cut short or damaged: copy or download it again."),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\x1f\x8b\x08\x00\x00\x00", "gunzip"),
        (b"\x03\x00\x00\x00\x01\x00\x00\x00\xff\xff\xff\x7f", "byte 12"),
        (b"garbage\xff garbage", "tag"),
        (b"1,2,3\n4,5,6\n", "is text, which"),
        (b"a,b\n", "is text, which"),
        (b"0.5 1.5\n", "is text, which"),
        ("# A model\n\nIt was trained on flowers in Zürich.\n".encode(), "does not read. t7bridge reads"),
        (b'"""A net."""\n\nimport torch\n\nclass Net(torch.nn.Module): ...\n', "t7bridge lua FILE.py:CLASS"),
        (b"What we learned\nfrom the first day on, and why\nimport the weights by hand.\n", "is text, which"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'></svg>", "a picture"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "a picture"),
        (b"\x08\x07\x12\x07pytorch\x1a\x052.0.0", "an ONNX model"),
    ],
)
def test_bad_input(content: bytes, words: str, tmp_path: Path) -> None:
    """A bad file causes one line that describes it, exit code 2, and no traceback or output."""
    bad = tmp_path / "model.t7"
    bad.write_bytes(content)

    for run in (run_here("convert", bad, tmp_path / "x.pt"), run_here("describe", bad), run_here("inspect", bad)):
        assert run.returncode == 2
        assert words in run.stderr
        assert len(run.stderr.splitlines()) == 1
        assert run.stderr.startswith("t7bridge: error: ")
        assert run.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["model.t7"]


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is an error of one line."""
    run = run_here("describe", tmp_path / "nothing.t7")

    assert run.returncode == 2
    assert "No such file" in run.stderr
    assert len(run.stderr.splitlines()) == 1

    (tmp_path / "nothing_at_all.t7").touch()
    assert f"Did you mean {tmp_path / 'nothing_at_all.t7'}?" in run_here("describe", tmp_path / "nothing_all.t7").stderr
    assert "nothing_at_all.t7:Net --input SHAPE" in run_here("inspect", f"{tmp_path}/nothing_at_all.t7:Net").stderr


def test_a_folder(tmp_path: Path) -> None:
    """Every verb for one file names the verb for folders."""
    for verb, *rest in (["inspect"], ["convert", "x.pt"], ["module", "-o", "x"], ["draw", "-o", "x.svg"], ["prove"]):
        run = run_here(verb, tmp_path, *rest)
        assert run.returncode == 2
        assert run.stderr.endswith("t7bridge zoo FOLDER -o OUT converts all files of a folder.\n")


def test_a_path_without_its_root(tmp_path: Path) -> None:
    """`modules[1]` is `root.modules[1]`."""
    run = run_here("convert", ROOT / "models/lenet_mm.t7", tmp_path / "x.pt", "--at", "modules[1]")
    assert run.stdout.startswith(f"{tmp_path / 'x.pt'}: state dict, 2 tensors")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["convert"],
        ["diff", "a", "b", "--rtol", "x"],
        ["convert", "a.t7"],
        ["describe", "--frob", "x"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    """Wrong usage ends with 2."""
    run = run_here(*arguments)

    assert run.returncode == 2
    assert "usage" in run.stderr
    assert len(run.stderr.splitlines()) == 2 or not arguments
    assert "invalid _" not in run.stderr


def test_a_verb_is_missing() -> None:
    """Options without a verb, and a verb that does not exist, are wrong usage in words."""
    for arguments in (["-q"], ["--json", "inspect"]):
        run = run_here(*arguments)
        assert run.returncode == 2
        assert run.stderr.endswith("t7bridge: error: a VERB comes first; t7bridge --help lists them\n")
    assert "unknown verb 'nothing'" in run_here("help", "nothing").stderr


def test_help() -> None:
    """Help and version end with 0; each verb has help of its own."""
    assert "convert" in run_here("--help").stdout
    assert run_here("--version").stdout.startswith("t7bridge ")
    for verb in ("convert", "describe", "inspect", "verify"):
        run = run_here(verb, "--help")
        assert run.returncode == 0
        assert "usage: t7bridge " + verb in run.stdout


def test_closed_pipe() -> None:
    """A reader that goes away ends the program without a traceback."""
    command = f"{Path(sys.executable).with_name('t7bridge')} describe {ROOT / 'format/table_records.t7'} | head -c 10"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert run.stderr == ""


@pytest.mark.slow
def test_full_disk(tmp_path: Path) -> None:
    """If the output cannot grow, the error is one line and no file is left."""
    source = ROOT / "models/resnet_small.t7"
    # The shell's limit counts blocks of 1024 bytes; the signal that goes with it is ignored by Python.
    command = f"ulimit -f 8; {Path(sys.executable).with_name('t7bridge')} convert {source} {tmp_path / 'x.pt'}"
    # Python before 3.13 keeps a compiled module of which it could write a part.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environment)

    assert run.returncode == 2
    assert "cannot be written" in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_permission(tmp_path: Path) -> None:
    """A folder that is not there is an error of one line."""
    run = run_here("convert", ROOT / "format/nil.t7", tmp_path / "no" / "x.t7")

    assert run.returncode == 2
    assert "cannot be written" in run.stderr


def test_imports() -> None:
    """Describing a small file imports neither numpy, torch nor torchfile: it starts as fast as Python."""
    code = (
        "import sys; from t7bridge.cli import main; "
        f"main(['describe', {str(ROOT / 'format/object_linear.t7')!r}]); "
        "print(sorted({'numpy', 'torch', 'torchfile', 'zipfile'} & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))

    assert run.stderr.strip() == "[]"


def test_few_longs_are_converted_without_numpy(tmp_path: Path) -> None:
    """Longs are written with 4 bytes and back, and to a `.pt`, without numpy, and without the meaning of layers."""
    longs = Storage.from_array(np.array([3, -(2**31), 2**31 - 1]))
    save(longs, tmp_path / "longs.t7")
    code = (
        "import sys; from t7bridge import cli; "
        "assert cli.main(['convert', '--long-size', '4', 'longs.t7', 'short.t7']) == 0; "
        "assert cli.main(['convert', '--long-size', '8', 'short.t7', 'back.t7']) == 0; "
        "assert cli.main(['convert', 'longs.t7', 'longs.pt']) == 0; "
        "print({'numpy', 't7bridge.nn'} & set(sys.modules), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stderr == "set()\n"
    assert (tmp_path / "short.t7").read_bytes()[-12:] == struct.pack("<3i", 3, -(2**31), 2**31 - 1)
    assert (tmp_path / "back.t7").read_bytes() == (tmp_path / "longs.t7").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals(number: signal.Signals, tmp_path: Path) -> None:
    """A run stopped by a signal leaves nothing behind, and has the signal's exit code."""
    source = tmp_path / "large.t7"
    count = 1 << 28
    head = b"".join(
        (
            struct.pack("<ii", 4, 1), struct.pack("<i3si17s", 3, b"V 1", 17, b"torch.FloatTensor"),
            struct.pack("<iqqq", 1, count, 1, 1),
            struct.pack("<ii", 4, 2), struct.pack("<i3si18s", 3, b"V 1", 18, b"torch.FloatStorage"),
            struct.pack("<q", count),
        )
    )  # fmt: skip
    with open(source, "wb") as file:  # a sparse gigabyte: converting it takes long enough to be stopped
        file.write(head)
        file.truncate(len(head) + 4 * count)
    command = [sys.executable, "-m", "t7bridge", "convert", source, tmp_path / "x.pt"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    written = 0
    while written < 1 << 20 and process.poll() is None:  # while it still imports, Python itself may lose the exception
        time.sleep(0.01)
        written = sum(path.stat().st_size for path in tmp_path.glob(".t7bridge-*.tmp"))
    process.send_signal(number)

    assert process.wait(PATIENCE) == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["large.t7"]


@pytest.mark.skipif(shutil.which("nohup") is None, reason="there is no nohup")
def test_nohup_is_kept(tmp_path: Path) -> None:
    """A signal that the parent process ignores stays ignored."""
    code = (
        "import signal; from t7bridge.cli import main; "
        f"main(['describe', {str(ROOT / 'format/nil.t7')!r}]); "
        "print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    )
    run = subprocess.run(["nohup", sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.splitlines()[-1] == "True"


@pytest.mark.slow
def test_output_in_ascii(tmp_path: Path) -> None:
    """A terminal that knows only ascii gets escapes, not an error."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = t7bridge("convert", ROOT / "format/nil.t7", tmp_path / "世界.t7", env=environment)

    assert run.returncode == 0
    assert "\\u4e16" in run.stdout

    run = t7bridge("inspect", ROOT / "models/training_checkpoint.t7", env=environment)
    assert "  0      nn.Linear      Linear(4 > 3)  1x3             15\n" in run.stdout


@pytest.mark.slow
def test_standard_input_is_named(tmp_path: Path) -> None:
    """An error about `-` is not about a temporary file; a closed one is an error."""
    empty = t7bridge("inspect", "-", stdin=subprocess.DEVNULL)
    assert empty.stderr.startswith("t7bridge: error: standard input: is empty.")
    closed = subprocess.run(
        ["bash", "-c", '"$0" -m t7bridge inspect - <&-', sys.executable], capture_output=True, text=True, check=False
    )
    assert closed.stderr == "t7bridge: error: standard input: is closed\n"


def test_names_are_escaped(tmp_path: Path) -> None:
    """Control characters in a file's name do not reach the terminal."""
    bad = tmp_path / "a\x1b[31m\nb.t7"
    bad.write_bytes(b"")
    run = t7bridge("describe", bad)

    assert run.returncode == 2
    assert "\x1b" not in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_zeros(tmp_path: Path) -> None:
    """A file of zeros, as left by broken downloads, is not silently read as values."""
    (tmp_path / "z.t7").write_bytes(bytes(1000))
    run = run_here("convert", tmp_path / "z.t7", tmp_path / "z.pt")

    assert run.returncode == 2
    assert "nil, accounts for next to nothing of the file" in run.stderr
    assert "found 996 bytes more" in run.stderr


def test_options_that_do_not_apply(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """An option that has no meaning for the formats is an error that names it as it was typed, and its formats."""
    lenet, source = ROOT / "models/lenet_mm.t7", tmp_path / "in.pt"
    convert(lenet, source)
    for arguments, messages in (
        (
            ["--nested", "--encoding", "ascii", lenet, "x.pt"],
            ["--nested does not", "--encoding does not", "to .t7"],
        ),
        (["--dtype=float16", lenet, "x.t7"], ["--dtype does not apply from .t7 to .t7"]),
        (["--shard-size", "2GB", source, "x.npz"], ["--shard-size does not", "it is for conversions to .safetensors"]),
        (["--as", "tree", source, "x.t7"], ["--as does not apply"]),
        (["--no-config", source, "x.h5"], ["--no-config does not apply"]),
        (["--strip", "modul", source, "x.pt"], ["--strip modul renames nothing; the keys are 0.weight"]),
        (["--rename", "a=b", source, "x.t7"], ["--rename a=b renames nothing; the keys are 0.weight"]),
        (
            ["--rename", "a=b", "--as", "tree", lenet, "x.pt"],
            ["--rename does not apply in mode tree"],
        ),
    ):
        with subtests.test(arguments[0]):
            run = run_here("convert", *arguments[:-1], tmp_path / str(arguments[-1]))
            assert run.returncode == 2
            for message in messages:
                assert message in run.stderr
            assert os.listdir(tmp_path) == ["in.pt"]
    # Python has the names of its arguments.
    with pytest.raises(OptionError, match=r": strip modul renames nothing"):
        convert(source, tmp_path / "x.pt", strip="modul")


def test_options_that_exclude_one_another(subtests: pytest.Subtests) -> None:
    """What would be left out without a word is an error: an outline has no JSON, and a proof one reference."""
    path = ROOT / "models/lenet_mm.t7"
    commands = {
        "--json, --stats does not apply": ["inspect", path, "--all", "--json", "--stats"],
        "--input-shape does not apply": ["inspect", path, "--depth", 2, "--input-shape", "1x1x32x32"],
        "one of these: --with or a second model": ["prove", path, path, "--with", "io.t7"],
        "one of these: --with or --expect": ["prove", path, "--input", "x.t7", "--expect", "y.t7", "--with", "io.t7"],
    }
    for message, command in commands.items():
        with subtests.test(message):
            run = run_here(*command)
            assert (run.returncode, run.stdout) == (2, "")
            assert message in run.stderr


def test_options_of_match_that_do_not_apply() -> None:
    """Those of an output, of a target, and of libraries."""
    lenet = ROOT / "models/lenet_mm.t7"
    for arguments, message in (
        (
            ["--dtype", "float16", lenet, lenet],
            "--dtype does not apply without -o",
        ),
        (["--target-at", "root", lenet], "--target-at does not apply without TARGET"),
        (
            ["--among", "nets.py", lenet, lenet],
            "--among does not apply with TARGET",
        ),
        (
            ["--strip", "modul", lenet, lenet],
            "--strip modul renames nothing",
        ),
    ):
        run = run_here("match", *arguments)
        assert (run.returncode, message in run.stderr) == (2, True), run.stderr


@pytest.mark.slow
def test_module(tmp_path: Path) -> None:
    """A model becomes two files that need only PyTorch; what cannot become one is listed, and nothing is written."""
    run = run_here("module", ROOT / "models/char_lstm_nngraph.t7", "-o", tmp_path / "new" / "lstm")
    assert run.returncode == 0
    assert sorted(os.listdir(tmp_path / "new" / "lstm")) == ["model.pt", "model.py"]
    code = "import sys; sys.modules['t7bridge'] = None; import model; print(type(model.load()).__name__)"
    alone = run_python("-c", code, folder=tmp_path / "new" / "lstm")
    assert alone.stdout == "Model\n", alone.stderr

    again = run_here("module", ROOT / "models/char_lstm_nngraph.t7", "-o", tmp_path / "new" / "lstm")
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert run_here("module", ROOT / "models/lenet_mm.t7", "-o", tmp_path / "new" / "lstm", "--force").returncode == 0
    assert "nn.Conv2d" in (tmp_path / "new" / "lstm" / "model.py").read_text()

    unknown = run_here("module", ROOT / "rnn/Serial.t7", "-o", tmp_path / "other")
    assert unknown.returncode == 2
    assert "\n  root.modules: nn.Serial holds a bytes where a module belongs. " in unknown.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_module_of_several(tmp_path: Path) -> None:
    """A file with several modules becomes a folder each, and the message names them; `--at` chooses one."""
    protos = Table.of({"rnn": load(ROOT / "models/lenet_mm.t7"), "cnn": load(ROOT / "nn/Linear.t7")})
    save(Table.of({"protos": protos}), tmp_path / "two.t7")
    run = run_here("module", tmp_path / "two.t7", "-o", tmp_path / "both")
    assert run.returncode == 0
    assert "2 models, a folder each: protos.rnn, protos.cnn" in run.stderr
    assert "nn.Linear" in (tmp_path / "both/protos.cnn/model.py").read_text()
    run = run_here("module", tmp_path / "two.t7", "-o", tmp_path / "x", "--at", "root.protos.cnn")
    assert run.returncode == 0
    assert "nn.Linear" in (tmp_path / "x" / "model.py").read_text()
