"""The rooms of the package and who may import whom, read from the imports themselves."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from helpers import ROOT

from t7bridge.data import define
from t7bridge.formats import FORMATS
from t7bridge.layers import registered_layers

PACKAGE = ROOT / "t7bridge"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room → the rooms that it may import, apart from itself. `formats` and `workshop` are split: a format must not know
# another one, and a room of the workshop enters another one by its door only.
FLOOR = {"data", "errors", "extensions", "limits", "report", "text"}
GRAPH = FLOOR | {"io", "graph"}
LEAVES = {"formats/table", "formats/fields"}
"""What every format may import: the table of formats, with what reading results in, and checked fields."""
HOMES = {f"formats/{spec.home.partition('.')[0]}" for spec in FORMATS.values()}
ALL_FORMATS = LEAVES | HOMES | {"formats", "formats/named", "formats/torchfile"}
CORE = GRAPH | ALL_FORMATS | {"values", "nn", "torchmodules", "codegen", "conversion", "tools"}
ALLOWED: dict[str, set[str]] = {
    "workshop": set(),
    **dict.fromkeys(HOMES, GRAPH | LEAVES | {"formats/named"}),
    **{room: {"data"} for room in FLOOR},
    "errors": {"text"},
    "extensions": {"errors"},
    "limits": {"data", "errors"},
    "report": {"data", "errors", "text"},
    "io": {"data", "errors"},
    "graph": {"data", "errors", "limits", "text", "io"},
    "values": GRAPH,
    "formats": GRAPH | LEAVES | {"formats/named", "formats/pt", "values"},  # of values the element types
    "formats/shards": GRAPH | LEAVES | {"formats"},  # its parts may be of any format
    "formats/table": {"data", "errors", "extensions", "io", "report"},
    "formats/fields": GRAPH,
    "formats/named": GRAPH | {"values"},  # tied tensors are compared
    "formats/npz": GRAPH | LEAVES | {"formats/named", "formats/pt"},  # of pt its zip archives
    "formats/torchfile": GRAPH | {"formats/t7", "torchfile"},
    "torchfile": GRAPH | {"formats/t7"},
    "nn": GRAPH | {"values"},
    "lua": {"workshop/lua"},  # its public names, as `layers` has those of nn: for other packages, imported by no room
    "layers": {"data", "errors", "graph", "nn", "torchmodules"},
    "torchmodules": GRAPH | {"nn"},
    "codegen": GRAPH | {"nn"},
    "conversion": GRAPH | ALL_FORMATS | {"values", "nn", "codegen"},
    "tools": CORE,
    "zoo": CORE | {"workshop/draw", "workshop/prove"},
    "workshop/cells": GRAPH | {"nn"},
    "workshop/draw": CORE | {"workshop/cells"},
    "workshop/export": CORE,
    "workshop/lua": CORE,
    "workshop/match": CORE | {"workshop/cells"},
    "workshop/packages": {"data", "extensions", "layers"},  # a package itself only `layers`, see below
    "workshop/prove": CORE | {"workshop/cells"},
}
SPLIT = {"formats", "workshop"}
MOST_IN_A_DOOR = 10
TOP = {"cli", "__main__", "__init__"}

# The modules that need numpy from their first line: imported by others only when arrays are wanted.
NUMPY_MODULES = {"graph/decimals.py", "formats/hdf5/child.py"}
# Libraries of the extras, and their only importers.
OPTIONAL = {
    "safetensors": "formats/safetensors.py",
    "h5py": "formats/hdf5/file.py formats/hdf5/child.py",
    "fsspec": "io/addresses.py",
    "onnxruntime": "workshop/export/exporters.py",
    "onnxscript": "workshop/export/exporters.py",
    "distributed": "zoo/workers.py",
    "rich": "cli/zoo.py",
    "cairosvg": "workshop/draw/pictures.py",
}
# Programs of processes of their own, which import what they need at once.
PROGRAMS = {"formats/hdf5/child.py"}
# What makes values of torch, and imports it when one is asked for.
TORCH_VALUES = {"tools/verify.py", "tools/state_dicts.py", "graph/tensor.py", "conversion/tree.py"}
# What traces and makes modules of torch for Lua; imported only once such a module is there.
TORCH_MODULES = {f"workshop/lua/{name}.py" for name in ("exporting", "functional", "sizes", "trace", "training")}
TORCH_MODULES |= {"workshop/lua/checks.py", "workshop/export/exporters.py"}
# What judges values by modules of torch; imported once `prove` has found PyTorch.
PACKAGE_CLASSES = sorted(PACKAGE.glob("workshop/packages/*/modules.py"))
"""The PyTorch classes of Lua packages."""
TORCH_MODULES |= {str(path.relative_to(PACKAGE)) for path in PACKAGE_CLASSES}
PROVING = ("against", "calls", "digests", "given", "inputs", "judge", "layer", "nodes", "outcome", "rounding")
PROVING += ("over_steps", "side_by_side", "two_models")
TORCH_MODULES |= {f"workshop/prove/{name}.py" for name in PROVING}


def room_of(path: Path) -> str:
    """`graph` of t7bridge/graph/walk.py, `errors` of t7bridge/errors.py, `formats/t7` of formats/t7/reader.py."""
    return room_in([*path.relative_to(PACKAGE).parts[:-1], *([] if path.stem == "__init__" else [path.stem])])


def room_in(names: list[str]) -> str:
    """The room of a module, from the names on the way to it in the package."""
    if not names:
        return "__init__"
    home = PACKAGE.joinpath(*names[:2])
    # A folder or a file of `formats` is a room; of `workshop` only a folder is.
    is_file = names[0] == "formats" and home.with_suffix(".py").is_file()
    nested = names[0] in SPLIT and len(names) > 1 and (home.is_dir() or is_file)
    return "/".join(names[:2]) if nested else names[0]


@define(frozen=True)
class Facts:
    """The statements of a file that the tests ask about.

    Attributes:
        imports: import statements anywhere in it, each with whether it runs when the file itself is imported, and
            whether it never runs, being under `if TYPE_CHECKING:`.
    """

    imports: list[tuple[ast.Import | ast.ImportFrom, bool, bool]]


@cache
def facts(path: Path) -> Facts:
    """Read a file's tree once for all tests."""
    imports = []
    stack: list[tuple[ast.AST, bool, bool]] = [(ast.parse(path.read_text()), True, False)]
    while stack:
        node, at_start, never = stack.pop()
        kind = type(node)
        if kind is ast.Import or kind is ast.ImportFrom:
            imports.append((node, at_start, never))
            continue
        if kind is ast.If and type(node.test) is ast.Name and node.test.id == "TYPE_CHECKING":
            stack += [(inner, at_start, True) for inner in node.body]
            stack += [(inner, at_start, never) for inner in node.orelse]
            continue
        if kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
            at_start = False
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, (ast.stmt, ast.excepthandler, ast.match_case)):  # no expression holds an import
                stack.append((inner, at_start, never))
    return Facts(imports)


@cache
def own_imports(path: Path) -> set[str]:
    """The rooms of the package that a file imports, anywhere in it, for typing too."""
    package = ["t7bridge", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node, _, _ in facts(path).imports:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "t7bridge" else [module]
        if (
            isinstance(node, ast.ImportFrom)
            and node.module is not None
            and len(names) == 1
            and names[0].removeprefix("t7bridge.") in SPLIT
        ):
            names = [f"{names[0]}.{alias.name}" for alias in node.names]  # `from ..formats import signatures`
        found |= {room_in(name.split(".")[1:]) for name in names if name.startswith("t7bridge.")}
    return found


@cache
def imported_files(path: Path) -> set[Path]:
    """The files of the package that a file imports, at its start, in a function or for types."""
    found = set()
    for node, _, _ in facts(path).imports:
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        for name in [alias.name for alias in node.names]:
            places = (base / f"{name}.py", base / name / "__init__.py", base.with_suffix(".py"), base / "__init__.py")
            found |= {next(place for place in places if place.is_file())}
    return found - {path}


@cache
def foreign_imports(path: Path, *, at_start: bool = False) -> set[str]:
    """The top-level names of other packages that a file imports; `at_start`: when it is imported itself."""
    found = set()
    for node, runs_at_start, never in facts(path).imports:
        if never or (at_start and not runs_at_start):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found - {"t7bridge"}


def name_of(path: Path) -> str:
    """A test's id for a file: `graph/walk.py`."""
    return str(path.relative_to(PACKAGE))


@pytest.mark.slow
def test_imports_point_down(subtests):
    """A file imports only its own room and the rooms below it."""
    for path in FILES:
        with subtests.test(name_of(path)):
            room, imported = room_of(path), own_imports(path)
            if room not in TOP:
                assert room in ALLOWED, f"{room} is a new room: say here what it may import"
                assert imported <= ALLOWED[room] | {room}, f"{room} imports {imported - ALLOWED[room] - {room}}"


SCRIPTS = sorted(path for folder in ("testfiles/gen", "fuzz", "benchmarks") for path in (ROOT / folder).glob("*.py"))


def test_programs_beside_the_package_import_what_exists(subtests):
    """Generators, fuzzers and benchmarks, which no test runs: each module of ours that they name is there."""
    assert len(SCRIPTS) > 20
    for path in SCRIPTS:
        named = set()
        for statement, _, _ in facts(path).imports:
            if isinstance(statement, ast.ImportFrom):
                named.add(statement.module or "")
            else:
                named |= {alias.name for alias in statement.names}
        with subtests.test(str(path.relative_to(ROOT))):
            for name in sorted(name for name in named if name.partition(".")[0] == "t7bridge"):
                home = ROOT.joinpath(*name.split("."))
                assert home.is_dir() or home.with_suffix(".py").is_file(), f"{name} has moved"


def test_no_circles():
    """No files import each other, at their start, in functions or for types."""
    imports = {path: imported_files(path) for path in FILES}
    reached = {}
    for path in FILES:
        stack, seen = list(imports[path]), set()
        while stack:
            other = stack.pop()
            if other not in seen:
                seen.add(other)
                stack += imports[other]
        reached[path] = seen
    circles = {
        frozenset(name_of(other) for other in reached[path] if path in reached[other])
        for path in FILES
        if path in reached[path]
    }
    assert not circles


def test_rooms_of_the_workshop_are_entered_by_their_doors(subtests):
    """Who imports a room of the workshop from outside takes names of its `__init__`, of which there are few."""
    workshop = PACKAGE / "workshop"
    for path in FILES:
        with subtests.test(name_of(path)):
            for other in imported_files(path):
                if workshop in other.parents and room_of(other) != room_of(path):
                    assert other.name == "__init__.py", f"{name_of(path)} imports {name_of(other)}"
    for door in sorted(workshop.glob("*/__init__.py")):
        with subtests.test(name_of(door)):
            offered = {
                alias.asname
                for node, _, never in facts(door).imports
                if never and isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            assert 0 < len(offered) <= MOST_IN_A_DOOR
            room = importlib.import_module(f"t7bridge.workshop.{door.parent.name}")
            for name in offered:
                assert hasattr(room, name)


def test_torch_and_torchfile_have_one_place_each(subtests):
    """Only torchmodules and what makes torch's values imports torch, and only formats/torchfile imports torchfile."""
    for path in FILES:
        with subtests.test(name_of(path)):
            imported = foreign_imports(path)
            if room_of(path) != "torchmodules" and name_of(path) not in TORCH_VALUES | TORCH_MODULES:
                assert "torch" not in imported
            elif name_of(path) in TORCH_VALUES:
                assert "torch" not in foreign_imports(path, at_start=True)
            if name_of(path) != "formats/torchfile.py":
                assert "torchfile" not in imported
            assert "pickle" not in imported, "nothing in a pickle is ever called"


def test_optional_libraries_have_one_place_each(subtests):
    """Each library that is not installed everywhere is imported by one module, and there when it is wanted."""
    for path in FILES:
        with subtests.test(name_of(path)):
            for library, home in OPTIONAL.items():
                if name_of(path) not in home.split():
                    assert library not in foreign_imports(path)
                elif name_of(path) not in PROGRAMS:
                    assert library not in foreign_imports(path, at_start=True)


LIBRARIES = {"__future__", "collections", "dataclasses", "math", "torch", "typing", "typing_extensions"}
"""What source may import that goes into other programs: torch, what torch requires, and the standard library."""


@pytest.mark.parametrize(
    "path", [*sorted((PACKAGE / "torchmodules" / "layers").glob("*.py")), *PACKAGE_CLASSES], ids=name_of
)
def test_layers_stand_alone(path):
    """The layers need torch, what torch requires and the standard library: their source goes into other programs."""
    assert {node.level for node, _, _ in facts(path).imports if isinstance(node, ast.ImportFrom)} <= {0, 1}
    assert foreign_imports(path) <= LIBRARIES


def test_packages_need_only_the_public_interface(subtests):
    """The files of a Lua package import `t7bridge.layers` and nothing else of ours, by public names alone."""
    paths = sorted(PACKAGE.glob("workshop/packages/*/*.py"))
    assert {path.name for path in paths} == {"__init__.py", "modules.py"}
    public = set(importlib.import_module("t7bridge.layers").__all__)
    for path in paths:
        with subtests.test(name_of(path)):
            assert own_imports(path) <= {"layers"}
            assert foreign_imports(path) <= LIBRARIES | {"numpy"}
            for node, _, _ in facts(path).imports:
                if isinstance(node, ast.ImportFrom) and node.module == "t7bridge.layers":
                    assert {alias.name for alias in node.names} <= public


def test_packages_have_the_prefixes_under_which_they_are_found():
    """Each folder is in the table of prefixes, and has classes with each of its prefixes and no others."""
    found: dict[str, set[str]] = {}
    for name, layer in registered_layers().items():
        home, _, folder = layer.home.rpartition(".")
        if home == "t7bridge.workshop.packages":
            found.setdefault(f"{name.partition('.')[0]}.", set()).add(folder)
    table = importlib.import_module("t7bridge.workshop.packages.table")
    assert {prefix: set(folders) for prefix, folders in table.PREFIXES.items()} == found
    folders = {path.parent.name for path in PACKAGE.glob("workshop/packages/*/__init__.py")}
    assert folders == set().union(*found.values())


def test_packages_are_imported_once_a_class_of_theirs_is_met():
    """The entries of nn need none of the packages; a class of one loads those that may have it, and not PyTorch."""
    code = """
import sys
from t7bridge.errors import ModelError
from t7bridge.layers import layer_of, register_layer, unregister_layer
def loaded():
    return {name.split(".")[3] for name in sys.modules if name.startswith("t7bridge.workshop.packages.")} - {"table"}
assert layer_of("nn.Linear") and layer_of("cudnn.SpatialConvolution") and not loaded()
assert layer_of("w2nn.ScaleTable") and loaded() == {"w2nn"}
assert layer_of("nn.Minus") and "nnx" in loaded() and "onmt" not in loaded()
assert layer_of("my.Own") is None and "onmt" not in loaded()
try:
    register_layer("onmt.LSTM")
except ModelError as error:
    assert "already registered" in str(error)
else:
    raise AssertionError("a name of a package that was not loaded is free")
unregister_layer("onmt.GRU")
assert layer_of("onmt.GRU") is None and layer_of("onmt.Network") is not None
register_layer("onmt.GRU")
assert layer_of("onmt.GRU").home == "__main__"
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_numpy_is_imported_when_it_is_wanted(subtests):
    """Only the modules that work on arrays import numpy when they are imported themselves."""
    for path in FILES:
        with subtests.test(name_of(path)):
            if name_of(path) in NUMPY_MODULES:
                continue
            assert "numpy" not in foreign_imports(path, at_start=True)


@pytest.mark.parametrize(
    "module", ["t7bridge", "t7bridge.formats.t7.reader", "t7bridge.formats.t7.writer", "t7bridge.values.describe"]
)
def test_reading_needs_neither_numpy_nor_torch(module):
    """Importing the package and its readers imports neither numpy nor torch nor torchfile."""
    code = f"import sys, {module}; print({{'numpy', 'torch', 'torchfile'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout == "set()\n"


def test_help_loads_no_attrs():
    """The list of the verbs, the help of those with the most options and a completion script start without attrs."""
    code = (
        "import contextlib, io, sys; from t7bridge.cli import main\n"
        "for arguments in (['--help'], ['convert', '--help'], ['zoo', '--help-all'], ['completion', 'bash']):\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as out: main(arguments)\n"
        "    print(len(out.getvalue()) > 500, 'attr' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "True False\n" * 4, done.stderr


def test_zoo_imports_tools_for_the_settings_that_need_them():
    """Importing the planner, as its help does, imports no tool: workers import those that their settings ask for."""
    code = "import sys, t7bridge.zoo; print([name for name in sys.modules if name.startswith('t7bridge.tools')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout == "[]\n"


CUTS = {"partition", "rpartition", "split", "rsplit", "endswith", "removesuffix", "replace", "find", "rfind"}
"""Methods of a text that may take the package from the name of a class."""
CUT_NAMES = {
    # The package is compared too, or the name is one of this package's own table of layers.
    "nn/registry.py": {"class_name.partition('.')"},
    "workshop/packages/table.py": {"class_name.partition('.')"},  # the name of an entry point
    "nn/texts.py": {"'.Volumetric' in fields.obj.class_name"},
    "nn/layers/pooling.py": {"'.Volumetric' in fields.obj.class_name"},
    # Names that are shown, imported or given to attributes, and decide nothing.
    "codegen/flow.py": {"spec.target.rpartition('.')"},
    "torchmodules/build.py": {"spec.target.rpartition('.')"},
    "nn/blocks.py": {
        "spec.target.rpartition('.')",
        "class_name.rpartition('.')",
        "'Conv' in spec.target",
        "spec.target.endswith('Linear')",
    },
}
"""Where a name of a class is cut, and why that is not a look-up by its bare name."""


def cut_names(path: Path) -> set[str]:
    """Return the expressions of a file that look at a part of the name of a class."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUTS:
            text = ast.unparse(node.func.value)
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
            text = ast.unparse(node.comparators[0])
        else:
            continue
        if text.removesuffix(")").endswith(("class_name", "spec.target", ".made.target")):
            found.add(ast.unparse(node))
    return found


def test_no_class_is_known_by_its_bare_name(subtests):
    """Another package's Tanh is not that of nn: facts come from the entry of the full name, see `entry_name`."""
    for path in FILES:
        with subtests.test(name_of(path)):
            assert cut_names(path) <= CUT_NAMES.get(name_of(path), set())


def test_look_ups_by_bare_names_are_found(tmp_path):
    """The test above sees the ways in which names were once cut."""
    source = (
        "known[obj.class_name.rpartition('.')[2]]\nspec.class_name.split('.')[-1] in TORCH\n'LSTM' in spec.target\n"
    )
    (tmp_path / "x.py").write_text(source)
    assert len(cut_names(tmp_path / "x.py")) == 3


NAMING = ("nn/layers/", "torchmodules/layers/", "workshop/lua/", "workshop/packages/", "formats/t7/releases_2010.py")
"""Where classes of Lua are named: their entries, their PyTorch classes, the way back, and the fields of 2010."""
NAMED = {
    # Of nn, those that are no layers of their own: the base, what `print` shows of a Sequential, and two classes that
    # write something before their fields.
    "formats/t7/reader.py": {"nn.DataParallelTable", "nn.GPU"},
    "nn/registry.py": {"nn.Module"},
    "nn/texts.py": {"nn.Sequential"},
    # Of ours, those that others become: nothing is decided by them.
    "nn/pieces.py": {"containers.Stateful"},
    "nn/plan.py": {"activation.Overlapping"},
    "workshop/cells/kinds.py": {
        "linear.Highway",
        *(f"recurrent.{name}Cell" for name in ("GRU", "LSTM", "PeepholeLSTM", "RNN", "ResetGRU")),
    },
}
"""Files that name classes besides, and why that is no fact about a layer."""


def named_classes(path: Path, lua: set[str], ours: set[str]) -> set[str]:
    """Return the classes that a file names in texts, but for docstrings: of Lua in full, or ours by family and name."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            names = set(re.findall(r"(?<![.\w])\w+\.[A-Z]\w*", node.value))  # `torch.nn.Tanh` is PyTorch's
            found |= names & (lua | ours)
    return found


@pytest.mark.slow
def test_classes_are_named_at_their_homes(subtests):
    """What class a layer is decides something only in its entry: others look up a trait by the full name."""
    lua = set(registered_layers())
    ours = {
        f"{path.stem}.{node.name}"
        for path in (PACKAGE / "torchmodules" / "layers").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    for path in FILES:
        if name_of(path).startswith(NAMING):
            continue
        with subtests.test(name_of(path)):
            # In the pages that `codegen` writes, `nn` is torch.nn.
            known = ours if room_of(path) == "codegen" else lua | ours
            named = named_classes(path, known, ours) - NAMED.get(name_of(path), set())
            assert not named


def test_named_classes_are_found(tmp_path):
    """The test above sees names in tables, tuples and f-strings, and neither docstrings nor classes of PyTorch."""
    source = '"""An nn.Tanh."""\nX = {"nn.Tanh": 1}, f"{LAYERS}shape.View", "torch.nn.Linear", ("cudnn.ReLU",)\n'
    (tmp_path / "x.py").write_text(source)
    found = named_classes(tmp_path / "x.py", {"nn.Tanh", "nn.Linear", "cudnn.ReLU"}, {"shape.View"})
    assert found == {"nn.Tanh", "cudnn.ReLU", "shape.View"}
