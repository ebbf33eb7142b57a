"""Matched keys, ambiguous keys, and the user's mapping."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from t7bridge import PtReader, Tensor, match
from t7bridge.cli import main
from t7bridge.errors import FormatError, ModelError, TargetExistsError
from t7bridge.workshop.match import write_match


def state(**shapes: tuple[int, ...] | dict) -> dict[str, Tensor]:
    """A state dict of zeros: `a_weight=(2, 3)` is the key `a.weight`, and `a__b=(2, 3)` the key `a_b`."""
    return {
        key.replace("_", ".").replace("..", "_"): Tensor.from_numpy(np.zeros(shape, "f4"))
        for key, shape in shapes.items()
    }


def layers(*rows: tuple[str, int, int]) -> dict[str, Tensor]:
    """A state dict of linear layers: name, inputs, outputs."""
    found = {}
    for name, inputs, outputs in rows:
        found[f"{name}.weight"] = Tensor.from_numpy(np.zeros((outputs, inputs), "f4"))
        found[f"{name}.bias"] = Tensor.from_numpy(np.zeros(outputs, "f4"))
    return found


def sources(found) -> dict[str, str | None]:
    """The source of each key of the target that is decided."""
    return {pair.target: pair.source for pair in found.pairs}


# Two layers of the same shape behind others that changed their order: q may be a or b.
CROSSED = layers(("x", 8, 4), ("a", 8, 8), ("y", 8, 2), ("b", 8, 8))
TARGET = layers(("y", 8, 2), ("q", 8, 8), ("x", 8, 4), ("p", 8, 8))


def test_what_nothing_decides_is_listed():
    """Layers of one shape whose order nothing tells are ambiguous; the others are decided."""
    found = match(CROSSED, TARGET)
    assert not found.complete
    assert sources(found) == {f"{name}.{part}": f"{name}.{part}" for name in "yx" for part in ("weight", "bias")}
    assert [(group.source, group.target) for group in found.ambiguous] == [
        (("a.weight", "b.weight"), ("q.weight", "p.weight")),
        (("a.bias", "b.bias"), ("q.bias", "p.bias")),
    ]
    with pytest.raises(ModelError, match=r"ambiguous a\.weight, b\.weight = q\.weight, p\.weight"):
        found.state_dict(partial=True)


def test_one_pair_settles_it():
    """The line that the message proposes decides the module, and with it the other one."""
    proposed = match(CROSSED, TARGET).problems().partition("a line `")[2].partition("`")[0]
    assert proposed == "a.weight q.weight"
    found = match(CROSSED, TARGET, [tuple(proposed.split())])
    assert found.complete
    assert sources(found)["q.bias"] == "a.bias"
    assert sources(found)["p.weight"] == "b.weight"
    assert {pair.target: pair.why for pair in found.pairs}["q.bias"] == "map"


def test_names_decide():
    """Layers that look alike are paired by name if the names of all of them are the same on both sides."""
    renamed = layers(("y", 8, 2), ("b", 8, 8), ("x", 8, 4), ("a", 8, 8))
    found = match(CROSSED, renamed)
    assert found.complete
    assert sources(found) == {key: key for key in renamed}
    assert match(CROSSED, layers(("y", 8, 2), ("b", 8, 8), ("x", 8, 4), ("c", 8, 8))).ambiguous


def numbered(*names: str) -> dict[str, Tensor]:
    """Layers of one shape."""
    return layers(*((name, 4, 4) for name in names))


LIST = [f"layers.{number}" for number in range(12)]
DECIDED = {
    "natural order": (numbered(*sorted(LIST)), numbered(*(str(2 * number) for number in range(12))), "layers.10", "20"),
    "stated prefix": (
        numbered(*LIST),
        numbered(*(f"module.{name}" for name in sorted(LIST))),
        LIST[10],
        "module.layers.10",
    ),
    "a number inside": (numbered("b.1.fc", "b.0.fc"), numbered("0", "3"), "b.1.fc", "3"),
}


@pytest.mark.parametrize("case", DECIDED)
def test_numbers_decide(case):
    """The tenth layer of a list is the tenth one of another list, however the keys are sorted."""
    source, target, one, other = DECIDED[case]
    found = match(source, target)
    assert found.complete
    assert sources(found)[f"{other}.weight"] == f"{one}.weight"
    if case != "a number inside":
        assert sources(found)[next(iter(target))] is not None


OPEN = {
    "names": (numbered("head", "first", "second"), numbered("0", "2", "4")),
    "a list and one more": (numbered("head", *LIST), numbered(*map(str, range(13)))),
    "a list that is cut elsewhere": (numbered("head", *LIST), numbered("stem", *LIST)),
    "two lists": (numbered("a.0", "a.1", "b.0", "b.1"), numbered("0", "1", "2", "3")),
    "rows or columns": (numbered("a.0.0", "a.0.1", "a.1.0", "a.1.1"), numbered("b.0.1", "b.0.3", "b.2.1", "b.2.3")),
    "names with numbers": (numbered("up2", "up1"), numbered("0", "1")),
    "the same number": (numbered("a.1", "a.01"), numbered("b.1", "b.2")),
    "unequal lists": (numbered("a.0", "a.1", "a.2"), numbered("b.0", "b.1")),
}


@pytest.mark.parametrize("case", OPEN)
def test_order_decides_nothing(case, tmp_path, capsys):
    """Layers that look alike are listed, and nothing is written; --order takes the order of the keys, and says so."""
    source, target = OPEN[case]
    found = match(source, target)
    assert not found.complete
    assert not found.pairs
    with pytest.raises(ModelError, match="--map"):
        found.state_dict(partial=True)
    torch.save({key: torch.zeros(value.shape) for key, value in source.items()}, tmp_path / "s.pt")
    torch.save({key: torch.zeros(value.shape) for key, value in target.items()}, tmp_path / "t.pt")
    asked = ["match", str(tmp_path / "s.pt"), str(tmp_path / "t.pt"), "-o", str(tmp_path / "out.pt")]
    assert main(asked) == 1
    assert not (tmp_path / "out.pt").exists()
    assert "--order pairs them in the order of the keys" in capsys.readouterr().err
    assert main([*asked, "--order"]) == (case == "unequal lists")
    if case != "unequal lists":
        assert "keys are paired by their order alone" in capsys.readouterr().err
        found = match(source, target, order=True)
        assert [pair.source for pair in found.pairs] == list(source)
        assert {pair.why for pair in found.pairs} == {"order"}


def test_norms_before_or_after():
    """A block may begin with its norm on one side, and end with it on the other: only names cannot tell."""

    def net(*rows: tuple[str, str]) -> dict[str, Tensor]:
        found = {}
        for name, kind in rows:
            found |= layers((name, 4, 4)) if kind == "fc" else state(**{f"{name.replace('.', '_')}_weight": (4,)})
        return found

    after = net(("a", "norm"), ("b.0.fc", "fc"), ("b.0.norm", "norm"), ("b.1.fc", "fc"), ("b.1.norm", "norm"))
    before = net(("b.0.norm", "norm"), ("b.0.fc", "fc"), ("b.1.norm", "norm"), ("b.1.fc", "fc"), ("z", "norm"))
    found = match(after, before)
    assert sources(found) == {f"b.{n}.fc.{name}": f"b.{n}.fc.{name}" for n in (0, 1) for name in ("weight", "bias")}


class Chain(nn.Module):
    """Layers of one shape, called in an order of their own."""

    def __init__(self, *names: str, calls: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(4, 4))
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.calls:
            x = self._modules[name](x).tanh()
        return x


class Branches(nn.Module):
    """Branches that are joined, or added, in an order of their own."""

    def __init__(self, joined: str, is_sum: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.out = nn.Linear(4 if is_sum else 12, 2)
        self.joined, self.is_sum = joined, is_sum

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [self._modules[name](x) for name in self.joined]
        return self.out(outputs[0] + outputs[1] + outputs[2] if self.is_sum else torch.cat(outputs, 1))


def test_graphs_decide():
    """Of two models, layers at the same place in both graphs are paired, whatever they are called."""
    found = match(Chain("h", "f", "s", calls="fsh"), Chain("x", "y", "z", calls="zxy"))
    assert found.complete
    assert {pair.why for pair in found.pairs} == {"graph"}
    assert [sources(found)[f"{name}.weight"][0] for name in "zxy"] == list("fsh")
    found = match(Branches("abc"), Branches("cab"))
    assert not found.complete, "their names are the same, and say something else"
    alike = Branches("abc", is_sum=True)
    renamed = {key.replace("a.", "x.").replace("b.", "y."): value for key, value in alike.state_dict().items()}
    assert match(alike, renamed).ambiguous, "what is added has no order"
    assert match(Chain("a", "b", calls="ab"), Chain("c", "d", calls="dc").state_dict()).ambiguous, "one graph alone"


def test_ambiguous_ones_that_are_tied_make_no_difference():
    """If all candidates are the same memory, every answer is equivalent."""
    tied = dict(CROSSED)
    tied["b.weight"], tied["b.bias"] = tied["a.weight"], tied["a.bias"]
    found = match(tied, TARGET)
    assert found.complete
    assert found.state_dict()["p.weight"].storage is tied["a.weight"].storage


def test_unequal_numbers():
    """Three layers for two are listed, and the others are decided."""
    found = match(
        layers(("a", 4, 4), ("m", 4, 3), ("n", 3, 4), ("b", 4, 4), ("c", 4, 4)),
        layers(("a", 4, 4), ("m", 4, 3), ("n", 3, 4), ("d", 4, 4)),
    )
    assert sources(found) == {key: key for key in ("m.weight", "m.bias", "n.weight", "n.bias")}
    assert [group.source for group in found.ambiguous] == [
        tuple(f"{name}.{part}" for name in "abc") for part in ("weight", "bias")
    ]
    assert {group.reason for group in found.ambiguous} == {"there are 3 of them for 2"}


def test_another_head():
    """A classifier of another size is unmatched on both sides, and --partial keeps the target's."""
    source, target = layers(("0", 4, 4), ("1", 4, 10)), layers(("body", 4, 4), ("head", 4, 3))
    found = match(source, target)
    assert found.unmatched_source == ["1.weight", "1.bias"]
    assert found.unmatched_target == ["head.weight", "head.bias"]
    with pytest.raises(ModelError, match=r"- head\.weight"):
        found.state_dict()
    partial = found.state_dict(partial=True)
    assert list(partial) == list(target)
    assert partial["head.weight"] is target["head.weight"]
    assert partial["body.weight"] is source["0.weight"]


def test_settled_without_counterpart():
    """`-` leaves keys of the source out and keeps keys of the target."""
    source, target = layers(("0", 4, 4), ("1", 4, 10)), layers(("body", 4, 4), ("head", 4, 3))
    found = match(source, target, [("1.", "-"), ("-", "head.")])
    assert found.complete
    assert [pair.why for pair in found.pairs] == ["shape", "shape", "kept", "kept"]


def test_own_values_of_a_module_but_for_a_key():
    """A line about a module is about the keys that no other line names, also where it keeps the target's values."""
    source, target = layers(("0", 4, 4), ("1", 4, 10)), layers(("body", 4, 4), ("head", 4, 10))
    for lines in ([("1.weight", "head.weight"), ("-", "head.")], [("-", "head."), ("1.weight", "head.weight")]):
        found = match(source, target, lines)
        assert sources(found) == {
            "body.weight": "0.weight", "body.bias": "0.bias", "head.weight": "1.weight", "head.bias": None,
        }  # fmt: skip


def test_a_bias_too_many():
    """A bias that the target lacks is listed, and the weight goes its way."""
    target = layers(("a", 4, 4))
    del target["a.bias"]
    found = match(layers(("0", 4, 4)), target)
    assert found.unmatched_source == ["0.bias"]
    assert sources(found) == {"a.weight": "0.weight"}


def test_a_bias_too_few():
    """A bias that the source lacks is zero beside a matrix or kernel, which then compute the same, and noted."""
    source = layers(("0", 4, 3), ("1", 3, 2))
    del source["0.bias"]
    found = match(source, layers(("a", 4, 3), ("b", 3, 2)))
    assert found.complete
    assert {pair.target: (pair.source, pair.why) for pair in found.pairs if "bias" in pair.target} == {
        "a.bias": (None, "zero"), "b.bias": ("1.bias", "shape"),
    }  # fmt: skip
    assert found.state_dict()["a.bias"].tolist() == [0, 0, 0]
    assert [note.message for note in found.report.notes] == ["1 biases are zero, as the source has none: a.bias"]
    assert not match(state(a_weight=(3,)), state(b_weight=(3,), b_bias=(3,))).complete, "a norm is no matrix"


@pytest.mark.parametrize("order", ["pqr", "rqp"])
def test_biases_of_some_ambiguous_layers(order):
    """Biases that only some of the ambiguous layers have are ambiguous, too, whichever layer comes first."""
    source = layers(("a", 2, 2), ("b", 2, 2), ("c", 2, 2))
    target = layers(*((name, 2, 2) for name in order))
    del source["c.bias"], target["p.bias"], target["q.bias"]
    found = match(source, target)
    assert [set(group.source) for group in found.ambiguous] == [
        {"a.weight", "b.weight", "c.weight"}, {"a.bias", "b.bias"},
    ]  # fmt: skip
    assert not found.unmatched_source
    assert not found.unmatched_target


@pytest.mark.parametrize("name", ["p.weight", "c.weight"])
def test_ambiguous_keys_are_those_of_their_side(name):
    """A key without a counterpart is listed, too, if the other side has an ambiguous key of this name."""
    two = layers(("a", 2, 2), ("b", 2, 2))
    found = match({**two, name: torch.zeros(5, 3)}, layers(("p", 2, 2), ("q", 2, 2)))
    assert found.unmatched_source == [name]
    found = match(layers(("p", 2, 2), ("q", 2, 2)), {**two, name: torch.zeros(5, 3)})
    assert found.unmatched_target == [name]


def test_keys_of_one_name_are_not_told_apart_by_it():
    """`weight` and `.weight` are of modules without a name and with an empty one: both have no name."""
    state_dict = {"weight": torch.zeros(2, 2), ".weight": torch.zeros(2, 2)}
    found = match(state_dict, dict(reversed(state_dict.items())))
    assert [group.source for group in found.ambiguous] == [("weight", ".weight")]


def test_a_mapped_module_is_closed():
    """Unpaired parts of a pair of modules, on either side, are not paired with anything outside."""
    one = match(state(m_weight=(2, 2), m_extra=(3,), other=(3,)), state(n_weight=(2, 2), p=(3,)), [("m.", "n.")])
    assert sources(one) == {"n.weight": "m.weight", "p": "other"}
    assert one.unmatched_source == ["m.extra"]
    two = match(state(m_weight=(2, 2), q=(3,)), state(n_weight=(2, 2), n_extra=(3,), p=(3,)), [("m.", "n.")])
    assert sources(two) == {"n.weight": "m.weight", "p": "q"}
    assert two.unmatched_target == ["n.extra"]


def test_counts_of_ambiguous_layers():
    """Batch counts of ambiguous layers are neither listed nor left over."""

    def norms(*rows):
        found = {}
        for name, size in rows:
            found |= {f"{name}.{key}": value for key, value in nn.BatchNorm2d(size).state_dict().items()}
        return found

    found = match(norms(("x", 4), ("a", 8), ("y", 2), ("b", 8)), norms(("y", 2), ("q", 8), ("x", 4), ("p", 8)))
    assert len(found.ambiguous) == 4
    assert not any("num_batches_tracked" in key for group in found.ambiguous for key in group.source)
    assert found.unmatched_source == found.unmatched_target == []
    assert not any("derived" in note.message for note in found.report.notes)


def test_batch_counts():
    """Counts of batches are left out where the target has none, and zero where the source has none."""
    with_counts, without = nn.BatchNorm2d(3).state_dict(), nn.BatchNorm2d(3).state_dict()
    del without["num_batches_tracked"]
    with_counts["num_batches_tracked"] += 7
    assert list(match(with_counts, without).state_dict()) == list(without)
    found = match(without, with_counts)
    assert found.complete
    assert found.state_dict()["num_batches_tracked"].numpy() == 0
    assert "start at zero" in found.report.notes[0].message


def test_reshapes_that_layers_allow():
    """Extents of one, and kernels as matrices; nothing else of the same number of elements."""
    assert match(state(a_weight=(5, 3, 1, 1)), state(b_weight=(5, 3))).complete
    assert match(state(a_weight=(1, 6, 1, 1)), state(b_weight=(6,))).complete
    assert match(state(a_weight=(5, 12)), state(b_weight=(5, 3, 2, 2))).complete
    assert not match(state(a_weight=(6, 5, 3)), state(b_weight=(6, 1, 3, 5))).complete
    assert not match(state(a_weight=(5, 3)), state(b_weight=(3, 5))).complete
    assert not match(state(a_weight=(4, 4, 3, 1)), state(b_weight=(4, 4, 1, 3))).complete


def test_reshapes_are_noted():
    """Every reshape is in the report, and done in the result."""
    found = match(state(a_weight=(5, 12)), state(b_weight=(5, 3, 2, 2)))
    assert [note.message for note in found.report.notes] == ["a.weight as b.weight: [5, 12] becomes [5, 3, 2, 2]"]
    assert found.state_dict()["b.weight"].shape == (5, 3, 2, 2)


def test_own_names_of_parameters():
    """A parameter with a name of its own is found by its shape; usual names have their usual meaning."""
    assert sources(match(state(a_weight=(6,)), state(b_gamma=(6,)))) == {"b.gamma": "a.weight"}
    assert not match(state(a_bias=(6,)), state(b_weight=(6,))).complete


def test_a_target_that_ties_more():
    """Keys that the target ties get one tensor or none."""
    target = layers(("a", 4, 4), ("b", 4, 4), ("c", 4, 4))
    target["c.weight"] = target["b.weight"]
    found = match(layers(("a", 4, 4), ("b", 4, 4), ("c", 4, 4)), target)
    assert [(group.source, group.target) for group in found.ambiguous] == [
        (("b.weight", "c.weight"), ("b.weight", "c.weight"))
    ]
    assert "ties" in found.ambiguous[0].reason


def test_prefixes():
    """A prefix pairs what is below it, by structure, and with nothing else."""
    source = layers(("enc.0", 4, 4), ("enc.1", 4, 4), ("dec.0", 4, 4), ("dec.1", 4, 4))
    target = layers(("d.2", 4, 4), ("d.3", 4, 4), ("e.5", 4, 4), ("e.7", 4, 4))
    found = match(source, target, {"enc.": "e.", "dec.": "d."})
    assert found.complete
    assert sources(found)["e.7.weight"] == "enc.1.weight"
    assert sources(found)["d.2.bias"] == "dec.0.bias"


def test_one_module_for_two():
    """A module of the source may go to several of the target, which are tied then."""
    found = match(layers(("0", 4, 4)), layers(("a", 4, 4), ("b", 4, 4)), [("0.", "a."), ("0.", "b.")])
    result = found.state_dict()
    assert result["a.weight"] is result["b.weight"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.weight\n", "line 1 of the mapping is not a pair"),
        ("# all\n\na. b c\n", "line 3 of the mapping is not a pair"),
        ("x. q.weight\n", "line 1 of the mapping pairs a key with a module"),
        ("- -\n", "nothing with nothing"),
        ("nope q.weight\n", "the source has no nope"),
        ("x.weight nope\n", "the target has no nope"),
        ("x.weight q.weight\n", "x.weight does not match q.weight"),
        ("a.weight q.weight\nb.weight q.weight\n", "q.weight of the target is already paired"),
        ("a.weight q.weight\n- q.weight\n", "q.weight of the target is already paired"),
    ],
)
def test_wrong_mappings(tmp_path, text, message):
    """A mapping that cannot be followed is refused, with its line."""
    path = tmp_path / "map.txt"
    path.write_text(text)
    with pytest.raises((ModelError, FormatError), match=message):
        match(CROSSED, TARGET, path)


@pytest.mark.parametrize("pair", [("a.weight",), ("a.weight", None), None, "ab", ("a.weight", "b.weight", "xyz")])
def test_wrong_pairs(pair):
    """A pair of Python is refused as a line of a file is; it may state an order of gates, too."""
    state = {"a.weight": torch.zeros(2, 2)}
    with pytest.raises(FormatError, match="pair 1 of the mapping is not a pair"):
        match(state, {"b.weight": torch.zeros(2, 2)}, [pair])
    assert match(state, {"b.weight": torch.zeros(2, 2)}, [("a.weight", "b.weight", "ifog")]).complete


def test_mapping_that_is_no_text(tmp_path):
    """Bytes that are not UTF-8, and a missing file, are errors of ours."""
    path = tmp_path / "map.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="UTF-8"):
        match(CROSSED, TARGET, path)
    with pytest.raises(ModelError, match="No such file"):
        match(CROSSED, TARGET, tmp_path / "none.txt")


def test_mapping_that_is_too_long(tmp_path, monkeypatch):
    """A file that is cut inside of a character is too long, and not damaged."""
    monkeypatch.setattr("t7bridge.workshop.match.matching._MAX_BYTES", 4)
    path = tmp_path / "map.txt"
    path.write_text("# ab\u00e4", encoding="utf-8")
    with pytest.raises(FormatError, match="too long"):
        match(CROSSED, TARGET, path)


def saved(tmp_path, name: str, value) -> str:
    """A file of PyTorch's own."""
    path = tmp_path / name
    torch.save(value, path)
    return str(path)


SOURCE = OrderedDict(
    (f"{number}.{key}", value) for number in (0, 1) for key, value in nn.Linear(3, 3).state_dict().items()
)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: inner,
        lambda inner: {"state_dict": inner, "epoch": 3},
        lambda inner: {"model": inner, "optimizer": {"state": {}}},
        lambda inner: {"model": {"state_dict": inner}},
    ],
    ids=["bare", "state_dict", "model", "nested"],
)
def test_wrapped_targets(tmp_path, wrap):
    """Checkpoints contain their state dict, with any prefix."""
    net = nn.DataParallel(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)))
    target = saved(tmp_path, "target.pt", wrap(net.state_dict()))
    found = match(saved(tmp_path, "source.pt", SOURCE), target)
    assert list(found.state_dict()) == ["module.0.weight", "module.0.bias", "module.2.weight", "module.2.bias"]


def test_which_state_dict(tmp_path):
    """If a file holds several, the message lists them and --at selects one."""
    both = saved(tmp_path, "both.pt", {"netG": SOURCE, "netD": nn.Linear(2, 2).state_dict()})
    target = saved(tmp_path, "target.pt", nn.Linear(2, 2).state_dict())
    with pytest.raises(ModelError, match=r"several state dicts.*root\.netG, root\.netD"):
        match(both, target)
    assert match(both, target, at="root.netD").complete
    with pytest.raises(ModelError, match=r"no state dict at root\.netX"):
        match(both, target, at="root.netX")


def test_metadata_is_that_of_the_target(tmp_path):
    """Versions that strict loading looks at come from the target, so that nothing is loaded as of an older release."""
    target = saved(tmp_path, "target.pt", nn.BatchNorm1d(3).state_dict())
    source = saved(tmp_path, "source.pt", dict(nn.BatchNorm1d(3).state_dict()))
    out = tmp_path / "out.pt"
    write_match(match(source, target), out)
    loaded = torch.load(out, weights_only=True)
    assert loaded._metadata[""]["version"] == 2


def test_command_line(tmp_path, capsys):
    """The table, JSON, the exit codes, and a file that is not replaced unasked."""
    source, target = saved(tmp_path, "s.pt", SOURCE), saved(tmp_path, "t.pt", {"w.weight": torch.zeros(3, 3)})
    assert main(["match", source, target]) == 1
    shown = capsys.readouterr()
    assert "ambiguous 0.weight, 1.weight = w.weight" in shown.err
    assert main(["match", source, target, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ambiguous"][0]["target"] == ["w.weight"]

    settled = tmp_path / "map.txt"
    settled.write_text("1.weight w.weight  # the second one\n0. -\n1.bias -\n")
    out = tmp_path / "out.pt"
    assert main(["match", source, target, "--map", str(settled), "-o", str(out)]) == 0
    torch.testing.assert_close(torch.load(out, weights_only=True)["w.weight"], SOURCE["1.weight"])
    assert main(["match", source, target, "--map", str(settled), "-o", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["match", source, target, "--map", str(settled), "-o", target, "--force"]) == 2
    assert main(["match", source, target, "--map", str(settled)]) == 0
    assert "1.weight  w.weight  [3, 3] map" in capsys.readouterr().out


def test_nothing_is_written_unless_it_is_complete(tmp_path):
    """A match with something open leaves no file; --partial writes what is decided."""
    source, target = saved(tmp_path, "s.pt", SOURCE), saved(tmp_path, "t.pt", layered())
    out = tmp_path / "out.pt"
    assert main(["match", source, target, "-o", str(out)]) == 1
    assert not out.exists()
    assert main(["match", source, target, "-o", str(out), "--partial"]) == 0
    state = torch.load(out, weights_only=True)
    torch.testing.assert_close(state["head.weight"], layered()["head.weight"])


def layered() -> dict[str, torch.Tensor]:
    """The source's two layers and a head that it lacks."""
    return {
        "0.weight": torch.zeros(3, 3),
        "0.bias": torch.zeros(3),
        "1.weight": torch.zeros(3, 3),
        "1.bias": torch.zeros(3),
        "head.weight": torch.ones(7, 3),
    }


def test_output_needs_a_name_of_a_pt(tmp_path):
    """Only a `.pt` is written, and an input is never replaced."""
    source = saved(tmp_path, "s.pt", SOURCE)
    found = match(source, source)
    with pytest.raises(ModelError, match=r"written as a \.pt"):
        write_match(found, tmp_path / "out.t7")
    with pytest.raises(TargetExistsError, match="input file itself"):
        write_match(found, source, force=True)


def test_no_state_dict(tmp_path):
    """Values without tensors are refused."""
    with pytest.raises(ModelError, match="holds no state dict"):
        match(saved(tmp_path, "s.pt", {"epoch": 3}), SOURCE)
    with pytest.raises(ModelError, match="is not a state dict"):
        match(3, SOURCE)
    with pytest.raises(ModelError, match="holds no tensors"):
        match({}, SOURCE)


def test_unread_values(tmp_path):
    """Entries of the target that are not tensors are unchanged."""
    target = saved(tmp_path, "t.pt", {"0.weight": torch.zeros(3, 3), "0.bias": torch.zeros(3), "extra": "kept"})
    source = saved(tmp_path, "s.pt", nn.Linear(3, 3).state_dict())
    found = match(source, target)
    assert found.complete
    assert found.state_dict()["extra"] == "kept"
    out = tmp_path / "out.pt"
    write_match(found, out)
    assert list(PtReader(str(out)).read()) == ["0.weight", "0.bias", "extra"]


@pytest.mark.slow
def test_long_runs_are_decided_quickly():
    """Hundreds of layers of one size, a different number on each side, are listed without a table of everything."""
    found = match(layers(*((f"a.{n}", 4, 4) for n in range(2500))), layers(*((f"b.{n}", 4, 4) for n in range(2400))))
    assert len(found.ambiguous) == 2
