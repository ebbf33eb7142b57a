"""Pictures of models: everything is drawn once, nothing overlaps, arrows follow Lua's graph."""

import itertools
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from bounds import bounded
from helpers import ROOT

import t7bridge
from t7bridge import Table, Tensor, TorchObject
from t7bridge.cli import main
from t7bridge.errors import LimitError, ModelError, TargetExistsError, UnsupportedError
from t7bridge.nn import Block, Flow, blocks_of
from t7bridge.tools import Fold, folds_of, one_module, shown
from t7bridge.workshop.draw.boxes import Box
from t7bridge.workshop.draw.layout import lay_out
from t7bridge.workshop.draw.pictures import as_png

FILES = ROOT / "testfiles"
MODELS = [
    path
    for folder in ("models", "rnn", "legacy", "nn")
    for path in sorted((FILES / folder).glob("*.t7"))[:: 6 if folder == "nn" else 1]
    if not path.name.endswith((".io.t7", ".grad.t7"))
]


def blocks(path: Path, at: str | None = None) -> list[Block]:
    """All blocks of a model; none of a file without one, or with several."""
    try:
        inside, module = one_module(path, at)
    except ModelError:
        return []
    return blocks_of(module, inside)


def boxes(root: Box) -> Iterator[Box]:
    """A box and all boxes in it."""
    yield root
    for each in root.inside:
        yield from boxes(each)


def modules_in(value: object) -> Iterator[TorchObject]:
    """Modules that Lua's `modules` lists name, each place once."""
    assert isinstance(value, TorchObject)
    yield value
    inside = value.get("modules")
    for each in inside.raw_values if isinstance(inside, Table) else ():
        yield from modules_in(each)


def test_nothing_overlaps(subtests: pytest.Subtests) -> None:
    """Every block is inside the one around it, apart from its neighbours, and large enough for its text."""
    for path in MODELS:
        with subtests.test(f"{path.parent.name}/{path.name}"):
            found = blocks(path)
            if not found:
                assert path.parent.name in ("legacy", "models", "rnn")  # single layers always are models
                continue
            drawn = list(boxes(lay_out(found)))
            assert {id(box.block) for box in drawn} >= {id(block) for block in found}  # far ends are named twice
            for box in drawn:
                assert box.height >= box.header > 0
                for number, each in enumerate(box.inside):
                    assert box.x < each.x
                    assert each.x + each.width < box.x + box.width
                    assert box.y + box.header <= each.y
                    assert each.y + each.height < box.y + box.height
                    for other in box.inside[:number]:
                        assert (
                            other.x + other.width <= each.x
                            or each.x + each.width <= other.x
                            or other.y + other.height <= each.y
                            or each.y + each.height <= other.y
                        )


@pytest.mark.parametrize("name", ["resnet_small", "lenet_mm", "text_cnn", "dcgan_generator"])
def test_every_module_is_drawn(name: str) -> None:
    """As many blocks as Lua's lists have modules, in their order, named as in the state dict."""
    _, module = one_module(FILES / "models" / f"{name}.t7", None)
    found = blocks(FILES / "models" / f"{name}.t7")
    lua = [each.class_name for each in modules_in(module)]
    assert sorted(each.class_name for each in found if each.kind != "end") == sorted(lua)
    assert [each.name for each in found[0].inside] == [str(place) for place in range(len(found[0].inside))]


def test_flows_are_those_of_the_file() -> None:
    """The arrows of a graph are the `mapindex` of Lua's nodes; `selectindex` is the element that they carry."""
    path = FILES / "models" / "char_lstm_nngraph.t7"
    module = t7bridge.load(path)
    nodes = [node["data"] for node in module["forwardnodes"].raw_values]
    wanted = set()
    for data in nodes:
        if _hands_on(data, module):
            continue
        for place, source in enumerate(_sources(data), 1):
            picked = ""
            while _hands_on(source, module):
                picked = (f"[{int(source['selectindex']) - 1}]" if "selectindex" in source else "") + picked
                (source,) = _sources(source)
            number = str(place) if len(_sources(data)) > 1 else ""
            wanted.add((_id_of(source, module), _id_of(data, module), ": ".join(filter(None, (number, picked)))))

    graph = blocks(path)[0]
    names = [block.hint.rpartition(" ")[2] or block.lines[0] for block in graph.inside]
    found = {(names[flow.start], names[flow.end], flow.label) for flow in graph.flows}
    assert len(wanted) > 40
    assert found == wanted


def _hands_on(data: Table, graph: TorchObject) -> bool:
    """Return whether a node only passes its input, or an element of it, through, as those of `split`."""
    ends = (graph["innode"]["data"], graph["outnode"]["data"])
    return "module" not in data and not any(data is end for end in ends)


def _sources(data: Table) -> list[Table]:
    """Return the inputs of a node, in order. `mapindex` maps each back to its number as well."""
    found = data.get("mapindex") or Table()
    return [value for key, value in found.items() if isinstance(key, int)]


def _id_of(data: Table, graph: TorchObject) -> str:
    """Return the picture's name of a node: the path of its module, or the end of the graph that it is."""
    if "module" in data:
        place = [id(module) for module in graph["modules"].raw_values].index(id(data["module"])) + 1
        return f"root.modules[{place}]"
    return "input" if data is graph["innode"]["data"] else "output"


def test_shared_modules_are_named(tmp_path: Path) -> None:
    """A module at two places is drawn at the first, and the second refers to it."""
    shared = TorchObject("nn.Tanh")
    layers = Table.from_list([shared, TorchObject("nn.Sigmoid"), shared])
    t7bridge.save(TorchObject("nn.Sequential", 1, Table.of({"modules": layers})), tmp_path / "x.t7")
    found = blocks(tmp_path / "x.t7")
    assert [(block.title, block.mark, block.lines) for block in found[1:]] == [
        ("Tanh", "", []),
        ("Sigmoid", "", []),
        ("Tanh", "again", ["the same as 0"]),
    ]


def test_one_weight_is_counted_once(tmp_path: Path) -> None:
    """Its block has the number of parameters, and not that of elements beside it."""
    t7bridge.draw(FILES / "nn/Mul.t7", tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert "1 parameter" in text
    assert "1 element" not in text


def test_layers_without_a_module_are_red(tmp_path: Path) -> None:
    """They do not stop the picture, wherever they are."""
    strange = TorchObject("nn.NobodyKnows", 1, Table.of({"modules": Table.from_list([TorchObject("nn.Tanh")])}))
    model = TorchObject(
        "nn.Sequential", 1, Table.of({"modules": Table.from_list([strange, TorchObject("nn.Sigmoid")])})
    )
    t7bridge.save(model, tmp_path / "x.t7")

    assert t7bridge.draw(tmp_path / "x.t7", tmp_path / "x.svg").modules >= 3
    marks = [(block.title, block.mark) for block in blocks(tmp_path / "x.t7")[1:3]]
    assert marks == [("nn.NobodyKnows", "unmapped"), ("Sigmoid", "")]
    assert "no PyTorch module" in (tmp_path / "x.svg").read_text()


def test_names_of_strangers_are_text(tmp_path: Path) -> None:
    """For any name of a class, the picture is XML that contains it, and runs nothing."""
    t7bridge.save(TorchObject('nn.<script>"&', 1, Table.of({"output": 1.0, "gradInput": 1.0})), tmp_path / "x.t7")
    t7bridge.draw(tmp_path / "x.t7", tmp_path / "x.svg")
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    assert not [each for each in root.iter() if each.tag.endswith("script")]
    texts = [each.text for each in root.iter() if each.tag.endswith("}text")]
    assert texts[0] == 'nn.<script>"&'
    shutil.copy(tmp_path / "x.t7", tmp_path / "<b>\x07&.t7")
    t7bridge.draw(tmp_path / "<b>\x07&.t7", tmp_path / "y.svg")
    title = ElementTree.parse(tmp_path / "y.svg").getroot()[0].text
    assert title == "<b>\\x07&.t7, root"
    t7bridge.draw(tmp_path / "x.t7", tmp_path / "x.dot")
    assert '<script>\\"&' in (tmp_path / "x.dot").read_text()


def test_data_for_programs_is_whole(tmp_path: Path) -> None:
    """`.dot` and `.json` have every module and every arrow: repeated ones, and more than a picture has room for."""
    same = [TorchObject("nn.Tanh", 1, Table.of({})) for _ in range(50)]
    names = ("Tanh", "Sigmoid", "Abs", "Exp")
    others = [TorchObject(f"nn.{names[at * at // 7 % 4]}", 1, Table.of({})) for at in range(1500)]
    model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(same + others)}))
    t7bridge.save(model, tmp_path / "x.t7")
    for suffix in ("dot", "json"):
        t7bridge.draw(tmp_path / "x.t7", tmp_path / f"x.{suffix}")
    text = (tmp_path / "x.dot").read_text()
    assert len(re.findall(r"^ *n\d+ \[", text, re.MULTILINE)) == 1550
    assert len(re.findall(r"^ *n\d+ -> n\d+;", text, re.MULTILINE)) == 1549
    graph = json.loads((tmp_path / "x.json").read_text())
    assert len(graph["nodes"]) == 1551
    assert len(graph["nodes"][0]["edges"]) == 1549


def leaves(root: Box) -> list[Box]:
    """The boxes without others in them."""
    return [root] if not root.inside else [leaf for inner in root.inside for leaf in leaves(inner)]


@pytest.mark.parametrize("name", ["unet_nngraph", "resnet_small", "char_lstm_nngraph"])
def test_pictures_have_the_theme_of_pages(name: str) -> None:
    """The colours of a picture are those of the page, and no label is over another text."""
    drawing = t7bridge.draw(FILES / "models" / f"{name}.t7")
    picture, kinds = drawing.svg(), {box.block.category for box in leaves(drawing.layout())} - {"end"}
    colours = dict(re.findall(r"--k-(\w+):(#\w+)", drawing.html()))
    assert {colours[kind] for kind in kinds} == set(re.findall(r'class="tint" fill="([^"]*)"', picture))
    assert "var(" not in picture
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="(t|s|s first)">([^<]*)<', picture)
    wide = [(float(x), float(y), len(text) * 11 * 0.55, kind) for x, y, kind, text in found]
    spans = [(x - w / 2 * (kind != "s first"), y, w, kind == "s first") for x, y, w, kind in wide]
    for (x, y, w, label), (x2, y2, w2, label2) in itertools.combinations(spans, 2):
        assert not (label or label2) or abs(y - y2) >= 11 or x + w <= x2 or x2 + w2 <= x, (x, y, x2, y2)


@pytest.mark.parametrize("path", MODELS[::3], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files(path: Path, tmp_path: Path) -> None:
    """The SVG is well-formed and has every text; the DOT declares each node that an arrow names, once."""
    if not blocks(path):
        return
    found = shown(blocks(path))
    t7bridge.draw(path, tmp_path / "x.svg")
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    texts = [each.text for each in root.iter() if each.tag.endswith("}text")]
    for block in found:
        assert {line for line in block.lines if not line.endswith(" elements")} <= set(texts)
    arrows = [each for each in root.iter() if each.tag.endswith("}path") and each.get("class") == "f"]
    assert len(arrows) == sum(len(block.arrows) for block in found)

    t7bridge.draw(path, tmp_path / "x.dot")
    text = re.sub(r'"(\\.|[^"\\])*"', '""', (tmp_path / "x.dot").read_text())
    assert text.count("{") == text.count("}")
    nodes = re.findall(r"^ *(n\d+) \[", text, re.MULTILINE)
    assert len(nodes) == len(set(nodes))
    edges = re.findall(r"^ *(n\d+) -> (n\d+)", text, re.MULTILINE)
    assert {node for edge in edges for node in edge} <= set(nodes)
    assert len(edges) == sum(len(block.arrows) for block in blocks(path))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes and messages; what exists is kept without --force, and a wrong suffix is wrong usage."""
    model, out = str(FILES / "models" / "unet_nngraph.t7"), str(tmp_path / "x.svg")
    assert main(["draw", model, "-o", out]) == 0
    assert capsys.readouterr().out == f"{out}: 15 modules, 802 parameters\n"
    before = Path(out).read_bytes()
    assert main(["draw", model, "-o", out]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["draw", model, "-o", out, "--force"]) == 0
    assert Path(out).read_bytes() == before  # the same input gives the same picture
    assert main(["draw", model, "-o", str(tmp_path / "x.gif")]) == 2
    with pytest.raises(ModelError):
        t7bridge.draw(model, tmp_path / "x.gif")
    with pytest.raises(TargetExistsError):
        t7bridge.draw(model, out)
    assert main(["draw", str(FILES / "format" / "view_select.t7"), "-o", str(tmp_path / "y.svg")]) == 2
    assert not (tmp_path / "y.svg").exists()


def test_graphs_without_nodes(tmp_path: Path) -> None:
    """A graph whose nodes are not in the file is drawn, and described, by its modules."""
    graph = chain(TorchObject("nn.Tanh", 1, Table.of({})), kind="nn.gModule")
    t7bridge.save(graph, tmp_path / "x.t7")
    assert [block.class_name for block in blocks(tmp_path / "x.t7")] == ["nn.gModule", "nn.Tanh"]
    t7bridge.draw(tmp_path / "x.t7", tmp_path / "x.svg")
    assert "nn.gModule" in str(t7bridge.inspect(tmp_path / "x.t7"))


def test_large_graphs_have_a_limit() -> None:
    """A model with more modules than a picture can show is refused with the number."""
    value = t7bridge.load(FILES / "models" / "resnet_small.t7")
    with pytest.raises(LimitError, match="at most 10"):
        blocks_of(value, "root", t7bridge.Limits(blocks=10))


def chain(*modules: TorchObject, kind: str = "nn.Sequential") -> TorchObject:
    """A container of Lua."""
    return TorchObject(kind, 1, Table.of({"modules": Table.from_list(list(modules))}))


def test_shapes_of_several_models_have_their_origin() -> None:
    """Shapes that are only a guess are marked so, whether one model is drawn or several are."""
    linear = TorchObject("nn.Linear", 1, Table.of({"weight": Tensor.from_numpy(np.ones((2, 3), "f4"))}))
    drawing = t7bridge.draw(Table.of({"first": linear, "second": chain(linear)}))
    data = drawing.graph()
    assert [node.get("output") for node in data["nodes"]] == [None, *[[[1, 2]]] * 3]
    assert data["shapes"] == "a guess from the layers"
    assert "shapes are a guess from the layers" in drawing.layout().texts


def test_modules_again_in_several_models() -> None:
    """A module that is in a model twice refers to its first place there; one that contains itself is none."""
    shared = TorchObject("nn.Tanh")
    in_itself = chain(shared, shared)
    in_itself["modules"][3] = in_itself
    drawing = t7bridge.draw(Table.of({"first": chain(shared, shared), "second": in_itself}))
    nodes = drawing.graph()["nodes"]
    found = {node["key"]: nodes[node["same_as"]]["key"] for node in nodes if "same_as" in node}
    assert found == {"first.1": "first.0", "second.1": "second.0"}


def test_modules_again_where_two_models_have_one_key() -> None:
    """A module that is in a model twice refers to that model, also if another one's keys are the same."""
    shared = TorchObject("nn.Tanh")
    inner = chain(TorchObject("nn.Sigmoid"), shared, shared)
    drawing = t7bridge.draw(Table.of({"a.b": chain(shared, shared, shared), "a": Table.of({"b": inner})}))
    for nodes in (drawing.graph()["nodes"], drawing._graph(drawing.pictured, {})["nodes"]):
        assert [(node["id"], node["same_as"]) for node in nodes if "same_as" in node] == [(3, 2), (4, 2), (8, 7)]


def residual() -> TorchObject:
    """A block with a skip."""
    return chain(
        chain(TorchObject("nn.Tanh"), TorchObject("nn.Identity"), kind="nn.ConcatTable"), TorchObject("nn.CAddTable")
    )


def test_repeated_blocks_are_one() -> None:
    """A run of equal blocks, or of equal sequences of blocks, is drawn once, with the number of all."""
    found = blocks_of(chain(TorchObject("nn.Sigmoid"), *[residual() for _ in range(23)]), "root")
    assert folds_of(found)[id(found[0])] == [Fold(1, 1, 23)]
    assert [(block.title, block.repeat) for block in shown(found)[0].inside] == [("Sigmoid", 1), ("Sequential", 23)]
    pairs = chain(*[TorchObject(f"nn.{name}") for _ in range(5) for name in ("Tanh", "Sigmoid")])
    found = blocks_of(pairs, "root")
    assert folds_of(found)[id(found[0])] == [Fold(0, 2, 5)]
    assert [(block.title, block.repeat) for block in shown(found)[1:]] == [("", 5), ("Tanh", 1), ("Sigmoid", 1)]


def graph(count: int, skip: int) -> list[Block]:
    """A graph of `count` residual blocks of four nodes, whose skips are from the block before or from further up."""
    root = Block("", "Graph", "graph")
    root.flows = [Flow(4 * count + 2, 0), Flow(0, 1)]
    for at in range(1, 4 * count + 1, 4):
        root.flows += [Flow(at, at + 1), Flow(at + 1, at + 2), Flow(at + 2, at + 3, "1"), Flow(at + 3, at + 4)]
        root.flows.append(Flow(max(at - skip, 0), at + 3, "2"))
    names = ["Linear", *["Tanh", "Linear", "Sigmoid", "CAddTable"] * count, "Softmax"]
    root.inside = [Block(str(number), name) for number, name in enumerate(names)]
    root.inside += [Block("", "", "end", lines=["input"]), Block("", "", "end", lines=["output"])]
    root.flows.append(Flow(4 * count + 1, 4 * count + 3))
    return [root, *root.inside]


def test_repeated_parts_of_graphs_are_one() -> None:
    """A run of equal parts with equal flows is one part, which names where the part before ends."""
    blocks = graph(12, 1)
    assert folds_of(blocks)[id(blocks[0])] == [Fold(1, 4, 12)]
    root = shown(blocks)[0]
    part = root.inside[1]
    assert [block.title for block in root.inside] == ["Linear", "", "Softmax", "", ""]
    assert [(flow.start, flow.end) for flow in root.flows] == [(3, 0), (0, 1), (1, 2), (2, 4)]
    assert (part.repeat, part.inside[4].lines) == (12, ["last 4: CAddTable"])
    ends = {(flow.start, flow.end, flow.label) for flow in part.flows}
    assert ends == {(0, 1, ""), (1, 2, ""), (2, 3, "1"), (4, 0, ""), (4, 3, "2")}
    longer = graph(12, 6)  # skips from within the block before the last
    assert folds_of(longer)[id(longer[0])] == [Fold(1, 8, 6)]
    crossed = graph(12, 1)
    crossed[0].flows.append(Flow(20, 31, "3"))
    assert Fold(1, 4, 12) not in folds_of(crossed)[id(crossed[0])]


def test_branches_are_flows() -> None:
    """Each branch of a ConcatTable or Concat lies between the container's input and its output."""
    found = blocks_of(residual(), "root")
    table = found[1]
    assert [block.title or block.lines[0] for block in table.inside] == ["Tanh", "Identity", "input", "table"]
    assert {(flow.start, flow.end) for flow in table.flows} == {(2, 0), (2, 1), (0, 3), (1, 3)}
    concat = chain(TorchObject("nn.Tanh"), TorchObject("nn.Identity"), kind="nn.Concat")
    concat["dimension"] = 2.0
    assert blocks_of(concat, "root")[0].inside[-1].lines == ["concat, dim 1"]


def test_page_holds_no_markup_of_the_file(tmp_path: Path) -> None:
    """For any strings of a file, the page has only its own scripts, and the graph in it reads back the same."""
    name = "nn.</script><script>alert(1)</script><!--\u2028"
    drawing = t7bridge.draw(TorchObject(name, 1, Table.of({"output": 1.0, "gradInput": 1.0})), tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    assert text.count("<script") == text.count("</script>") == 4
    assert "alert(1)</script>" not in text
    assert not re.search(r"""(src|href)=["']?http|url\(http|import\("http""", text)
    (data,) = re.findall(r'id="graph">(.*?)</script>', text)
    assert json.loads(data) == {**drawing.graph(), "contents": "1 module"}
    assert json.loads(data)["nodes"][0]["class"] == name.replace("\u2028", "\\u2028")


def test_graph_as_data(tmp_path: Path) -> None:
    """Nodes name their children, edges, weights and PyTorch classes; edges are between nodes of one container."""
    t7bridge.draw(FILES / "models" / "unet_nngraph.t7", tmp_path / "x.json", weights=True)
    graph = json.loads((tmp_path / "x.json").read_text())
    assert (graph["format"], graph["version"], graph["parameters"]) == ("t7bridge-graph", 2, 802)
    root = graph["nodes"][graph["root"]]
    assert all({start, end} <= set(root["children"]) for start, end, _ in root["edges"])
    conv = next(node for node in graph["nodes"] if node.get("key") == "1")
    assert (conv["torch"], conv["class"]) == ("torch.nn.Conv2d", "nn.SpatialConvolution")
    assert conv["argument_names"] == ["in_channels", "out_channels", "kernel_size"]
    weight = conv["weights"][0]
    module = t7bridge.load(FILES / "models" / "unet_nngraph.t7")["modules"][2]
    values = module["weight"].numpy()
    assert (weight["key"], weight["shape"]) == ("1.weight", list(values.shape))
    assert weight["statistics"]["min"] == values.min()
    assert sum(weight["statistics"]["bins"]) == values.size


def test_arguments_have_names() -> None:
    """Of classes of torch.nn, of ours, and of those that take any number of arguments."""
    names = ("View", "AddConstant", "Dropout")
    sizes = Tensor.from_numpy(np.asarray([2, 3, 4]))
    fields = [{"size": sizes, "numElements": 24.0}, {"constant_scalar": 1.0, "inplace": False}, {"p": 0.5, "v2": True}]
    made = [TorchObject(f"nn.{name}", 1, Table.of(own)) for name, own in zip(names, fields)]
    nodes = t7bridge.draw(chain(*made)).graph()["nodes"][1:]
    found = {node["title"]: node["argument_names"] for node in nodes}
    assert found == {"View": ["size"] * 3, "AddConstant": ["constant"], "Dropout": ["p"]}


def test_state_dicts_are_drawn_by_names(tmp_path: Path) -> None:
    """A `.pt` without a module is drawn by the nesting of its names; buffers are not parameters."""
    t7bridge.convert(FILES / "models" / "resnet_small.t7", tmp_path / "x.pt")
    drawing = t7bridge.draw(tmp_path / "x.pt", tmp_path / "x.html")
    assert drawing.blocks[0].parameters == 1421
    assert {block.key for block in drawing.blocks[0].inside} >= {"0", "1"}
    assert "iframe" in drawing._repr_html_()


@pytest.mark.slow
def test_long_chains_take_linear_time() -> None:
    """A chain of 6 000 different layers is laid out in columns in linear time, and a picture shows some hundreds."""
    layers = [TorchObject(f"nn.{('Tanh', 'Sigmoid', 'ReLU')[(n * n) % 7 % 3]}") for n in range(6000)]
    with bounded(150):
        root = lay_out(shown(blocks_of(chain(*layers), "root")))
    assert root.height < 30_000


@pytest.mark.slow
def test_nesting_beyond_the_limit_is_refused() -> None:
    """Modules that are nested so deep that their paths alone are many times the file are refused with the limit."""
    model = TorchObject("nn.Tanh")
    for _ in range(4000):
        model = chain(model)
    with pytest.raises(LimitError, match="nested too deep"):
        blocks_of(model, "root")


def test_shapes_of_pictures(tmp_path: Path) -> None:
    """Pictures show input and output: given shapes by PyTorch, others as a guess."""
    t7bridge.draw(FILES / "models" / "lenet_mm.t7", tmp_path / "x.json", input_shape=(2, 1, 32, 32))
    graph = json.loads((tmp_path / "x.json").read_text())
    assert (graph["input"], graph["output"], graph["shapes"]) == (
        [[2, 1, 32, 32]],
        [[2, 10]],
        "for an input of 2×1×32×32",
    )
    assert graph["nodes"][1]["output"] == [[2, 6, 28, 28]]
    drawing = t7bridge.draw(FILES / "models" / "lenet_mm.t7")
    assert "guess" in drawing.graph()["shapes"]
    assert "shapes are a guess from the layers" in drawing.svg()
    with pytest.raises(ModelError):
        t7bridge.draw(FILES / "models" / "lenet_mm.t7", input_shape=(2, 3, 32, 32))
    assert main(["draw", str(FILES / "models" / "lenet_mm.t7"), "--json", "--input-shape", "2x1x32x32"]) == 0


def test_pictures_fit_on_a_screen() -> None:
    """A still picture opens what can be read on one screen: a deep residual network, with its skips, and a cell."""
    stage = [chain(residual(), residual(), *[residual() for _ in range(count)]) for count in (3, 4, 23, 3)]
    kinds = ("Tanh", "Sigmoid", "ReLU", "Exp", "Abs")
    stage = [chain(TorchObject(f"nn.{kind}"), each) for kind, each in zip(kinds, stage)]
    drawing = t7bridge.draw(chain(*stage, *[TorchObject(f"nn.{kind}") for kind in kinds * 5]))
    text = drawing.svg()
    assert "Sequential  ×25" in text
    assert "1: Identity" in text
    cell = t7bridge.draw(FILES / "models" / "char_lstm_nngraph.t7").svg()
    for picture in (text, cell):
        found = re.search(r'width="(\d+)" height="(\d+)"', picture)
        assert found is not None
        assert int(found[1]) < 1880 / 0.5
        assert int(found[2]) < 960 / 0.5


def test_dense_graphs_are_bounded(tmp_path: Path) -> None:
    """A graph in which every node uses all before it, and passes its input to all, is drawn in seconds."""
    layers = chain(*[TorchObject("nn.Identity") for _ in range(400)], kind="nn.ConcatTable")
    model = chain(*[layers if not number else TorchObject("nn.CAddTable") for number in range(2)])
    for _ in range(3):
        model = chain(model, model, kind="nn.ConcatTable")
    with bounded():
        t7bridge.draw(model, tmp_path / "x.svg")
        t7bridge.draw(model, tmp_path / "x.html")


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("rsvg-convert", "chromium", "google-chrome"))), reason="there is no converter"
)
def test_png(tmp_path: Path) -> None:
    """A PNG has the size of the still picture, and more than one color."""
    drawing = t7bridge.draw(FILES / "models" / "siamese_shared.t7", tmp_path / "x.png")
    data = (tmp_path / "x.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    size = [int.from_bytes(data[at : at + 4], "big") for at in (16, 20)]
    found = re.search(r'width="(\d+)" height="(\d+)"', drawing.svg())
    assert found is not None
    assert size == pytest.approx([int(found[1]), int(found[2])], abs=1)
    assert len(data) > 5000


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda first, _: {"[odd] 'key'": first},
        lambda first, _: {"long " + "k" * 70: {"b": first}},
        lambda first, second: {"my net": first, "other": second},
        lambda first, second: {"nets": [first, second]},
    ],
)
def test_keys_are_those_of_files_made_of_the_whole(wrapped: Callable[..., object], tmp_path: Path) -> None:
    """Keys of models in tables are what `convert` calls their tensors, whatever the keys of the tables are."""
    models = []
    for _ in range(2):
        fields = {"weight": Tensor.from_numpy(np.ones((2, 3), "f4")), "bias": Tensor.from_numpy(np.ones(2, "f4"))}
        models.append(TorchObject("nn.Linear", 1, Table.of(fields)))
    source = tmp_path / "all.t7"
    t7bridge.save(wrapped(*models), source)
    t7bridge.convert(source, tmp_path / "all.npz")
    drawing = t7bridge.draw(source)
    keys = {drawing.prefix + ".".join(filter(None, (block.key, "weight"))) for block in drawing.blocks if block.weights}
    with np.load(tmp_path / "all.npz") as names:
        assert keys == {name for name in names if name.endswith("weight")}


def test_picture_too_large_for_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """If only a browser could convert a picture, and it is too large for that, the error says so."""
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "rsvg-convert" else f"/bin/{program}")
    monkeypatch.setattr("t7bridge.workshop.draw.pictures._MOST_PIXELS", 10)
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    drawing = t7bridge.draw(FILES / "models" / "siamese_shared.t7")
    with pytest.raises(UnsupportedError, match="too large for the browser"):
        as_png(drawing.layout(), "a")


def _fail(**_arguments: object) -> bytes:
    raise ValueError("Invalid size")


@pytest.mark.parametrize(
    ("cairosvg", "words"),
    [
        (None, "no converter to .png is installed"),
        (OSError('no library called "cairo-2" was found'), "no converter to .png is installed"),
        (SimpleNamespace(svg2png=_fail), "this picture cannot be converted"),
    ],
)
def test_png_without_a_converter_that_works(cairosvg: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A converter that is missing, lacks its library or fails is our error, with what to do instead."""

    class Finder:
        """Raises the error of importing CairoSVG."""

        def find_spec(self, name: str, *_: object) -> None:
            if name == "cairosvg":
                raise cairosvg

    monkeypatch.setattr(shutil, "which", lambda program: None)
    if isinstance(cairosvg, OSError):
        monkeypatch.delitem(sys.modules, "cairosvg", raising=False)
        monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    else:
        monkeypatch.setitem(sys.modules, "cairosvg", cairosvg)
    drawing = t7bridge.draw(FILES / "models" / "siamese_shared.t7")
    with pytest.raises(UnsupportedError, match=words):
        as_png(drawing.layout(), "a")
