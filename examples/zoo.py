"""Many files at once: the outcome of each, and a second run without work."""

import shutil
import tempfile
from pathlib import Path

import t7bridge

with tempfile.TemporaryDirectory() as folder:
    zoo, output = Path(folder, "zoo"), Path(folder, "converted")
    shutil.copytree("testfiles/models", zoo / "models")
    (zoo / "cut.t7").write_bytes(Path("testfiles/models/resnet_small.t7").read_bytes()[:100])
    (zoo / "notes.txt").write_text("what the models are for\n")

    report = t7bridge.convert_zoo(zoo, output, verify=True)
    print(report.counts)
    for failure in report.failures:
        print(f"{failure.names.first}: {failure.kind}: {failure.message}")

    again = t7bridge.convert_zoo(zoo, output, verify=True)
    print(f"converted now: {sum(again.now.values())}")
    print(sorted(path.name for path in output.iterdir() if path.name.startswith("report.")))
