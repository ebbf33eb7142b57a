"""A Lua model as a PyTorch state dict, and a tree of all fields converted back to the same bytes."""

import tempfile
from pathlib import Path

import t7bridge

source = Path("testfiles/models/resnet_small.t7")
with tempfile.TemporaryDirectory() as folder:
    report = t7bridge.convert(source, Path(folder, "resnet.pt"))
    print(report.mode)

    tree, back = Path(folder, "tree.pt"), Path(folder, "back.t7")
    t7bridge.convert(source, tree, mode="tree")
    t7bridge.convert(tree, back)
    print("the same bytes" if back.read_bytes() == source.read_bytes() else "other bytes")
