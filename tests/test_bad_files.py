"""Every file of `testfiles/bad` is refused for the reason that its README names, by everything that reads files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bounds import bounded
from helpers import ROOT, TESTFILES
from looping import new_folder

import t7bridge
from t7bridge import cli, errors

BAD = TESTFILES / "bad"
ROW = re.compile(r"\| `(.*?)` \| .* \| ([a-z, ]+) \| (\w+) \| (.*) \|")
ROWS = {match[1]: match.groups()[1:] for match in map(ROW.match, (BAD / "README.md").read_text().splitlines()) if match}
EXTRA_BYTES = 64 << 20


def test_table_and_folder_agree():
    """Every file of the folder has a row, and every row a file."""
    assert sorted(ROWS) == sorted(path.name for path in BAD.iterdir() if path.name != "README.md")
    assert len(ROWS) >= 140


@pytest.mark.slow
def test_files_are_those_that_the_script_makes(tmp_path):
    """The script makes the same files again, byte for byte, but for what other releases of zlib deflate otherwise."""
    script = (TESTFILES / "gen" / "bad_cases.py").read_text()
    (tmp_path / "gen").mkdir()
    (tmp_path / "gen" / "bad_cases.py").write_text(script)
    subprocess.run([sys.executable, tmp_path / "gen" / "bad_cases.py"], check=True)
    for path in BAD.iterdir():
        made = (tmp_path / "bad" / path.name).read_bytes()
        assert made == path.read_bytes() or "deflate" in path.name or path.name == "operations.pt", path.name


def actions(path: Path, folder: Path) -> dict[str, object]:
    """Operations on a file in Python."""
    return {
        "load": lambda: t7bridge.load(path),
        "describe": lambda: t7bridge.describe(path),
        "convert": lambda: t7bridge.convert(path, folder / "x.pt"),
        "convert to .t7": lambda: t7bridge.convert(path, folder / "x.t7"),
    }


@pytest.mark.slow
def test_refused_in_python(subtests, tmp_path):
    """Loading, describing and converting raise the error of the README, name the file, and leave nothing behind."""
    for name in ROWS:
        with subtests.test(name=name), new_folder(tmp_path) as folder:
            by, kind, words = ROWS[name]
            for action, run in actions(BAD / name, folder).items():
                if by != "all" and action.split()[0] not in by:
                    run()
                    continue
                with bounded(), pytest.raises(errors.T7BridgeError) as caught:
                    run()
                assert type(caught.value) is getattr(errors, kind), action
                assert words in str(caught.value), action
                assert caught.value.file.startswith(str(BAD / name)), action
                assert list(folder.iterdir()) == [], action


@pytest.mark.slow
def test_refused_on_the_command_line(subtests, tmp_path, capsys):
    """The command line prints the reason on one line, ends with 1, and leaves nothing behind."""
    for name in ROWS:
        with subtests.test(name=name), new_folder(tmp_path) as folder:
            by, _, words = ROWS[name]
            path = str(BAD / name)
            for verb in ("describe", "inspect", "convert"):
                if by != "all" and verb not in by:
                    continue
                code = cli.main([verb, path, *([str(folder / "x.pt")] if verb == "convert" else [])])
                out, err = capsys.readouterr()
                assert code == 2
                assert out == ""
                assert err.startswith("t7bridge: error: ")
                assert len(err.splitlines()) == 1
                assert words in err
                assert path in err
            assert not any(path.suffix != ".pt" for path in folder.iterdir())
            assert by != "all" or not list(folder.iterdir())


@pytest.mark.slow
def test_refused_by_a_process():
    """All of them in one process each verb knows: no traceback, nothing executed, and little memory."""
    marker = Path("/tmp/t7bridge-was-here")
    marker.unlink(missing_ok=True)
    code = (
        "import resource, sys\nfrom t7bridge import cli\n"
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "codes = [cli.main(['describe', path]) for path in sys.argv[1:]]\n"
        "print(set(codes), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)"
    )
    paths = [str(BAD / name) for name in ROWS]
    run = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True, cwd=ROOT)

    assert "Traceback" not in run.stderr
    codes, _, kilobytes = run.stdout.rpartition(" ")
    assert codes == "{2}"
    assert int(kilobytes) * 1024 < 8 * max(path.stat().st_size for path in BAD.iterdir()) + EXTRA_BYTES
    assert not marker.exists()


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name][1] == "ForbiddenGlobalError"])
def test_attacks_are_found_by_scan(name, capsys):
    """`scan` lists what an attack would call, where all other verbs only refuse it."""
    assert cli.main(["scan", "--json", str(BAD / name)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert any(finding["kind"] == "forbidden global" for report in found for finding in report["findings"])
