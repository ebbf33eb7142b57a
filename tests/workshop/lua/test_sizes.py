"""Extents of the inputs: free ones compute what PyTorch does, others are an error when the model runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import t7bridge
from t7bridge.errors import UnsupportedError


class Divided(nn.Module):
    def forward(self, x):
        return x.sum(1) / x.shape[1]


class LastStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 2, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0][:, -1]


class Pooled(nn.Module):
    """Free where `kind` is 1, one size where it is 0."""

    def __init__(self, kind=1, groups=1):
        super().__init__()
        self.kind = kind
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=groups))

    def forward(self, x):
        x = self.layers(x)
        return F.adaptive_avg_pool2d(x, 1) if self.kind else F.avg_pool2d(x, x.shape[2:]).sum((2, 3))


class TwoScales(nn.Module):
    """Its images have even sides."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 3, 2, 2)

    def forward(self, x):
        return torch.cat([x, self.up(F.max_pool2d(x, 2))], 1)


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 2)

    def forward(self, x):
        return self.layer(x.flatten(1))


class Gated(nn.Module):
    """Channels are scaled by what is in them anywhere, and parts are cut from each side."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = x * x.mean((2, 3), keepdim=True).sigmoid() + x.mean(1, keepdim=True)
        return self.layer(x[:, :, 1:, 2:-1])


class Sums(nn.Module):
    def forward(self, x, y):
        return x + y


class Of(nn.Module):
    """A function of tensors, with a convolution and an embedding for it."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.layer, self.rows = nn.Conv2d(1, 2, 3, 2), nn.Embedding(9, 4)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def as_tensorflow(self, x):
    """Convolve with the padding that TensorFlow calls SAME."""
    pads = [max((-(-extent // 2) - 1) * 2 + 3 - extent, 0) for extent in x.shape[2:]]
    return self.layer(F.pad(x, [part for pad in reversed(pads) for part in (pad // 2, pad - pad // 2)]))


def halved_if_large(self, x):
    return F.avg_pool2d(F.avg_pool2d(x, 2) if x.shape[-1] > 12 else x, 4)


def filled(self, x):
    made = torch.zeros(x.shape[0], 6)
    made[:, :2] = x[:, :2]
    made[:, 2:4].fill_(3.0)
    return made.std(1), made


def heads(self, x):
    """Return the attention of two heads."""
    parts = x.unflatten(2, (2, 2)).transpose(1, 2)
    weights = (parts @ parts.transpose(2, 3) / 2).softmax(3)
    return (weights @ parts).transpose(1, 2).flatten(2)


def causal(self, x):
    """Return the attention of two heads to what is before."""
    parts = x.unflatten(2, (2, 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(parts, parts, parts, is_causal=True).transpose(1, 2).flatten(2)


def triangle(self, x):
    """Return sums of steps by two masks: added before a softmax, and multiplied."""
    above = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), 1)
    below = torch.tril(x @ x.transpose(1, 2), -1)
    return (x @ x.transpose(1, 2) + above).softmax(2) @ x + below @ x


def transformed(self, x):
    """A transform and back, which PyTorch decomposes only for inputs of which the batch alone is open."""
    return torch.fft.irfft2(torch.fft.rfft2(x, norm="ortho") * (1 + 2j), s=x.shape[1:], norm="ortho")


SOURCES = {
    "tensorflow": (as_tensorflow, [(2, 1, 12, 12)], "any x 1 x 2n x 2m", [[(1, 1, 8, 14)]], [[(2, 1, 12, 13)]]),
    "branch": (halved_if_large, [(2, 1, 8, 8)], "any x 1 x any x n<=12", [[(1, 1, 16, 12)]], [[(2, 1, 8, 16)]]),
    "cut": (lambda self, x: x[:, :9] * 2, [(2, 6)], "any x n<=9", [[(3, 8)], [(1, 9)]], [[(2, 10)]]),
    "before": (lambda self, x: torch.cat([x[:, -7:2], x], 1), [(2, 5)], "any x n<=7", [[(3, 4)], [(1, 7)]], [[(2, 8)]]),
    "empty": (lambda self, x: torch.cat([x[:, :-7], x], 1), [(2, 5)], "any x n<=7", [[(3, 4)], [(1, 7)]], [[(2, 8)]]),
    "behind": (lambda self, x: torch.cat([x[:, 7:], x], 1), [(2, 5)], "any x n<=7", [[(3, 4)], [(1, 7)]], [[(2, 8)]]),
    "unchanged": (lambda self, x: torch.slice_scatter(x, x[:, 3:2], 1, 3, 2), [(2, 5)], "", [[(3, 8)]], []),
    "multiple": (lambda self, x: F.pad(x, (0, -x.shape[1] % 4)), [(2, 6)], "any x 4n+2", [[(3, 10)]], [[(2, 8)]]),
    "single": (lambda self, x: x * 3 if x.shape[0] == 1 else x, [(2, 6)], "n>=2 x any", [[(3, 5)]], [[(1, 6)]]),
    "filled": (filled, [(2, 5)], "any x n>=2", [[(1, 7)]], [[(4, 1)]]),
    "transforms": (transformed, [(2, 5, 6)], "any x 5 x 6", [[(3, 5, 6)], [(1, 5, 6)]], [[(2, 5, 8)]]),
    "squares": (lambda self, x: x + x.transpose(1, 2), [(2, 5, 5)], "any x n x n", [[(1, 4, 4)]], [[(2, 3, 4)]]),
    "range": (
        lambda self, x: x * torch.arange(x.shape[1]),
        [(2, 5)],
        "any x n<=4096",
        [[(3, 7)], [(1, 1)]],
        [[(1, 4097)]],
    ),
    "area": (lambda self, x: x.sum((2, 3)) / (x.shape[2] * x.shape[3]), [(2, 3, 4, 5)], "", [[(1, 3, 6, 2)]], []),
    "positions": (
        lambda self, x: x + self.rows(torch.arange(x.shape[1]).unsqueeze(0)),
        [(2, 5, 4)],
        "any x n<=4096 x 4",
        [[(3, 7, 4)], [(1, 9, 4)]],
        [[(1, 10, 4)]],
    ),
    "first rows": (
        lambda self, x: x + self.rows.weight[: x.shape[1]] * self.rows.weight[None, 0, :],
        [(2, 5, 4)],
        "any x n<=9 x 4",
        [[(3, 7, 4)], [(1, 9, 4)]],
        [[(1, 10, 4)]],
    ),
    "causal": (causal, [(2, 5, 4)], "any x n<=4096 x 4", [[(3, 7, 4)], [(1, 1, 4)]], []),
    "triangle": (triangle, [(2, 5, 4)], "any x n<=4096 x any", [[(3, 7, 6)]], []),
    "squeezed": (
        lambda self, x: x.mean(2).squeeze().sum(0),
        [(3, 4, 5)],
        "n>=2 x m>=2 x any",
        [[(2, 2, 9)]],
        [[(1, 4, 5)], [(3, 1, 5)]],
    ),
    "squeezed batch": (
        lambda self, x: x.squeeze((0, 2)) * 2,
        [(3, 4, 1)],
        "n>=2 x any x 1",
        [[(2, 1, 1)]],
        [[(1, 4, 1)]],
    ),
    "heads": (heads, [(2, 5, 4)], "any x any x 4", [[(3, 7, 4)], [(1, 1, 4)]], [[(2, 5, 6)]]),
}

CASES = {
    "divided": (Divided, [(2, 4)], "", [[(3, 4)], [(2, 6)], [(1, 1)]], []),
    "steps": (LastStep, [(2, 3, 3)], "any x 3 x 3", [[(1, 3, 3)]], [[(2, 4, 3)], [(2, 6, 3)]]),
    "free": (Pooled, [(2, 3, 8, 8)], "", [[(2, 3, 9, 13)], [(4, 3, 8, 8)]], [[(2, 4, 8, 8)]]),
    "kernel": (lambda: Pooled(0), [(2, 3, 6, 6)], "any x 3 x 6 x 6", [[(1, 3, 6, 6)]], [[(2, 3, 4, 9)]]),
    "square": (lambda: Pooled(1, 4), [(2, 3, 8, 8)], "any x 3 x n x n", [[(1, 3, 11, 11)]], [[(2, 3, 8, 9)]]),
    "even": (TwoScales, [(2, 3, 8, 8)], "any x 3 x 2n x 2m", [[(1, 3, 6, 10)]], [[(1, 3, 5, 6)]]),
    "gate": (Gated, [(2, 4, 6, 7)], "any x 4 x any x any", [[(3, 4, 5, 9)]], [[(2, 3, 6, 7)]]),
    "instance": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4)),
        [(2, 3, 6, 8)],
        "",
        [[(1, 3, 9, 5)]],
        [[(2, 4, 6, 8)]],
    ),
    "signal": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.MaxPool1d(2)), [(2, 3, 8)], "", [[(3, 3, 13)]], []),
    "pair": (Sums, [(2, 5), (2, 5)], "any x n, any x n", [[(3, 7), (3, 7)]], [[(2, 6), (3, 4)]]),
    "flat": (Flat, [(2, 3, 4)], "any x 3 x 4", [], [[(2, 3, 8)], [(2, 4, 3)]]),
}


CASES.update({name: (partial(Of, function), *rest) for name, (function, *rest) in SOURCES.items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_other_sizes_are_right_or_refused(name: str, tmp_path: Path) -> None:
    """The note and `model.lua` state the sizes; PyTorch and the saved model agree in all that are free."""
    make, example, text, right, wrong = CASES[name]
    torch.manual_seed(1)
    module = make().eval()
    report = t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=tuple(map(torch.randn, example)))
    stated = [note.message for note in report.notes if note.code == "fixed-sizes"]
    assert len(stated) == bool(text)
    assert all(f" {text};" in message for message in stated)
    model = t7bridge.load_module(tmp_path / "m.t7").eval()
    for sizes in [example, *right]:
        inputs = [torch.randn(size) for size in sizes]
        torch.testing.assert_close(
            model(inputs if len(inputs) > 1 else inputs[0]), module(*inputs), rtol=1e-5, atol=1e-5
        )
    for sizes in wrong:
        with pytest.raises(Exception, match=r"size|shape|channels|range|invalid|exceeds|divi"):
            model(inputs if len(inputs := [*map(torch.randn, sizes)]) > 1 else inputs[0])


class Few(nn.Module):
    """Computes otherwise for few examples."""

    def forward(self, x):
        return x.tanh() if x.shape[0] < 5 else x.sigmoid()


def test_an_example_without_elements_is_refused(tmp_path: Path) -> None:
    """The source compares the size of a batch without examples, which Lua does not have."""
    with pytest.raises(UnsupportedError, match="without elements"):
        t7bridge.save_module(Few(), tmp_path / "m.t7", example_inputs=torch.zeros(0, 3))


class Unused(nn.Linear):
    """Returns a buffer without elements, too."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("unused", torch.zeros(0, 3))

    def forward(self, x):
        return super().forward(x), self.unused


def test_a_tensor_without_elements_as_an_output_is_refused(tmp_path: Path) -> None:
    """It is among the problems that are listed, as one that is computed is."""
    with pytest.raises(UnsupportedError, match=r"the output .*without elements"):
        t7bridge.save_module(Unused(), tmp_path / "m.t7", example_inputs=torch.ones(2, 3))


class Replaced(nn.Module):
    """Replaces all rows by a parameter, whose width PyTorch does not compare with theirs when it traces that."""

    def __init__(self):
        super().__init__()
        self.row = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.index_put(x, (torch.tensor([0, 1]),), self.row)


def test_a_parameter_is_repeated_to_its_own_extents_only(tmp_path: Path) -> None:
    """The rows have as many elements as the parameter, and not its first element repeated."""
    module = Replaced()
    report = t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=torch.randn(2, 4))
    assert any("2 x 4;" in note.message for note in report.notes)
    x = torch.randn(2, 4)
    torch.testing.assert_close(t7bridge.load_module(tmp_path / "m.t7")(x), module(x))


class Rolled(nn.Module):
    """Rolls all elements, for which PyTorch decomposes the operation for one number of them."""

    def forward(self, x):
        return x.reshape(-1).roll(1, 0)


def test_a_decomposition_may_fix_the_last_open_size(tmp_path: Path) -> None:
    """The size is then stated and refused otherwise, though no extent of the exported program is open any more."""
    report = t7bridge.save_module(Rolled(), tmp_path / "m.t7", example_inputs=torch.randn(3, 4))
    assert any("3 x 4;" in note.message for note in report.notes)
    x = torch.randn(3, 4)
    model = t7bridge.load_module(tmp_path / "m.t7")
    torch.testing.assert_close(model(x), Rolled()(x))
    with pytest.raises(RuntimeError, match="size"):
        model(torch.randn(5, 4))


class TwoOtherwise(nn.Module):
    """Treats a batch of two otherwise, as which a batch of one is exported first."""

    def forward(self, x):
        return x.sigmoid() if x.shape[0] == 2 else x.tanh()


def test_a_batch_of_one_is_converted_as_such(tmp_path: Path) -> None:
    """Though the batch is fixed, as a graph has only one of the branches."""
    x = torch.randn(1, 4)
    report = t7bridge.save_module(TwoOtherwise(), tmp_path / "m.t7", example_inputs=x)
    assert any("1 x any;" in note.message for note in report.notes)
    torch.testing.assert_close(t7bridge.load_module(tmp_path / "m.t7")(x), x.tanh())


def test_squeeze_drops_the_batch_of_an_example_of_one(tmp_path: Path) -> None:
    """The batch is fixed then, and a warning tells how to keep it."""
    x = torch.randn(1, 4, 3)
    module = Of(lambda self, x: x.mean(2).squeeze().softmax(0))
    report = t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=x)
    assert any("with two examples" in note.message and note.level == "warning" for note in report.notes)
    assert any("1 x 4 x 3;" in note.message for note in report.notes)
    found = t7bridge.load_module(tmp_path / "m.t7")(x)
    assert found.shape == (4,)
    torch.testing.assert_close(found, module(x))


def test_a_number_of_each_example_keeps_the_batch(tmp_path: Path) -> None:
    """What is squeezed to no dimensions for one example is one element in Lua."""
    module = Of(lambda self, x: torch.sigmoid(x.sum(1, keepdim=True).squeeze() * 2))
    report = t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=torch.randn(3, 4))
    assert not [note for note in report.notes if note.code == "fixed-sizes"]
    model = t7bridge.load_module(tmp_path / "m.t7")
    for batch in (1, 2):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(model(x), module(x).reshape(batch))


def test_a_batch_of_one_beside_a_larger_one_is_repeated(tmp_path: Path) -> None:
    """The trace has two examples of each input, which are not one batch for that: the model takes the example."""
    inputs = [torch.randn(2, 5), torch.randn(1, 5)]
    report = t7bridge.save_module(Sums(), tmp_path / "m.t7", example_inputs=tuple(inputs))
    assert any("2 x 5, 1 x 5;" in note.message for note in report.notes)
    model = t7bridge.load_module(tmp_path / "m.t7")
    torch.testing.assert_close(model(inputs), Sums()(*inputs))
    with pytest.raises(RuntimeError):
        model([inputs[0], inputs[0]])


def test_two_batches_of_one_stay_open(tmp_path: Path) -> None:
    """Equal batches are one size, in the example as in the trace of two examples."""
    report = t7bridge.save_module(Sums(), tmp_path / "m.t7", example_inputs=(torch.randn(1, 5), torch.randn(1, 5)))
    assert any("any x n, any x n;" in note.message for note in report.notes)
    inputs = [torch.randn(3, 4), torch.randn(3, 4)]
    torch.testing.assert_close(t7bridge.load_module(tmp_path / "m.t7")(inputs), Sums()(*inputs))


class Nested(nn.Module):
    """Decides by a quotient of a quotient, which grows by 1 with each 25 elements."""

    def forward(self, x):
        return x.tanh() if (x.shape[1] // 5 + 3) // 5 <= 24 else x.sigmoid()


def test_sizes_far_beyond_the_example_are_limited(tmp_path: Path) -> None:
    """The first size of the other branch is found, though it is many periods of the divisors from the example."""
    report = t7bridge.save_module(Nested(), tmp_path / "m.t7", example_inputs=torch.randn(2, 31))
    assert any("any x n<=609;" in note.message for note in report.notes)
    model = t7bridge.load_module(tmp_path / "m.t7")
    x = torch.randn(3, 609)
    torch.testing.assert_close(model(x), x.tanh())
    with pytest.raises(IndexError):
        model(torch.randn(3, 610))


class Even(nn.Module):
    """Decides by the width of an image, of which the layer that checks it has the pooled one, 4 for 8 and for 9."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        y = self.layer(F.max_pool2d(x, (1, 2)))
        return y.tanh() if x.shape[3] % 2 == 0 else y.sigmoid()


def test_a_layer_behind_a_pooling_does_not_check_the_size_before_it(tmp_path: Path) -> None:
    """The model refuses the width of the other branch, and not only those that the layer refuses."""
    module = Even()
    x = torch.randn(2, 3, 5, 9)
    t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=x[..., :8])
    model = t7bridge.load_module(tmp_path / "m.t7")
    torch.testing.assert_close(model(x[..., :8]), module(x[..., :8]))
    with pytest.raises(RuntimeError):
        model(x)


class Means(nn.Module):
    """Decides by the numbers of examples of two inputs, whose means alone meet in a layer."""

    def forward(self, x, y):
        z = x.mean(0) + y.mean(0)
        return z.tanh() if x.shape[0] == y.shape[0] else z.sigmoid()


def test_batches_that_no_layer_compares_are_compared(tmp_path: Path) -> None:
    """The model refuses unequal numbers of examples, for which the module has another branch."""
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    t7bridge.save_module(Means(), tmp_path / "m.t7", example_inputs=(x, y))
    model = t7bridge.load_module(tmp_path / "m.t7")
    torch.testing.assert_close(model([x, y]), Means()(x, y))
    with pytest.raises(RuntimeError):
        model([x, y[:2]])


class Chosen(nn.Module):
    """Multiplies by a number that a function of the last extent chooses."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return x * self.function(x.shape[2])


CHOICES = {
    "rest": lambda extent: 2 if extent % 2 else 3,
    "not": lambda extent: 3 if not extent % 2 else 2,
    "difference": lambda extent: 2 if bool(extent - 6) else 3,
    "and": lambda extent: extent % 3 and 7,
    "any": lambda extent: 2 if any([extent % 2, extent % 3]) else 3,
}


@pytest.mark.parametrize("name", CHOICES)
def test_numbers_of_sizes_are_asked_for_their_truth(name: str, tmp_path: Path) -> None:
    """Python asks an open size whether it is 0, as for `if height % 2`: the model is for sizes with that answer."""
    module = Chosen(CHOICES[name])
    t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=torch.randn(2, 3, 5))
    again = t7bridge.load_module(tmp_path / "m.t7")
    accepted = []
    for extent in range(3, 10):
        x = torch.randn(2, 3, extent)
        try:
            found = again(x)
        except (RuntimeError, ValueError, IndexError):
            continue
        accepted.append(extent)
        torch.testing.assert_close(found, module(x))
    assert 5 in accepted
