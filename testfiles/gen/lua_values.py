"""Models of tests/lua_values.py for lua_values.lua: python testfiles/gen/lua_values.py FOLDER, and then
th testfiles/gen/lua_values.lua FOLDER testfiles/lua/values.t7
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from lua_values import VALUES, Of

import t7bridge

folder = Path(sys.argv[1])
folder.mkdir(parents=True)
for name, (function, inputs) in VALUES.items():
    (folder / name).mkdir()
    t7bridge.write_lua(Of(function).eval(), folder / name, inputs, allow=("layers",))
    t7bridge.save_module(
        Of(function).eval(), folder / name / "model.t7", example_inputs=inputs, allow=("layers",), force=True
    )
    t7bridge.save([t7bridge.Tensor.from_numpy(value.numpy()) for value in inputs], folder / name / "input.t7")
(folder / "names.txt").write_text("".join(f"{name}\n" for name in VALUES))
