"""PyTorch modules as Lua models. That real Lua computes the same is recorded in testfiles/lua."""

from __future__ import annotations

import pytest
import torch
from lua_nets import module_of, same_outputs
from lua_values import Of
from torch import nn

import t7bridge
from t7bridge.errors import ModelError, TargetExistsError, UnsupportedError
from t7bridge.nn import Places
from t7bridge.workshop.lua.build import OPERATIONS


class Shared(nn.Module):
    """Changes in place: views by decomposed operations, results of changes, and copies that may be views."""

    def forward(self, x):
        x = x * 1
        part = x.chunk(2, 1)[1]
        x.hsplit(2)[0].add_(1)
        x.tensor_split([1, 3], 2)[1].mul_(2)
        changed = x[:, 1].add_(0.5)
        x.expand_as(x).sub_(0.25)
        x.transpose(1, 2).reshape(x.size(0), -1).zero_()  # a copy
        changed.mul_(-1)
        return [x * changed.real.unsqueeze(1), part]


def test_memory_is_shared_as_in_pytorch(tmp_path):
    """A change in place is seen by all that PyTorch shares the memory with."""
    same_outputs(Shared(), tmp_path / "m.t7", (torch.randn(2, 4, 4),))

    class Diagonal(nn.Module):
        def forward(self, x):
            x = x * 1
            x.diagonal(0, 1, 2).zero_()
            return x

    same_outputs(Diagonal(), tmp_path / "n.t7", (torch.randn(2, 4, 4),))


class Written(nn.Module):
    """Puts results into other tensors than those that they are computed from: a computed one, a constant, several."""

    def forward(self, x):
        first = x.sigmoid()
        second = x.tanh()
        constant = torch.zeros(3, 4)
        torch.add(first, 1, out=second)
        torch.mul(second, first, out=constant)
        return first * 2, second - 1, constant


def test_a_result_that_is_put_into_another_tensor_changes_no_operand(tmp_path):
    """Only the tensor that is passed as `out` is another one from there on; of a list, each tensor is changed."""
    same_outputs(Written(), tmp_path / "m.t7", (torch.randn(3, 4),))

    class Several(nn.Module):
        def forward(self, x):
            x = x.sigmoid()
            torch._foreach_add_([x], 1.0)
            return x * 2

    with pytest.raises(UnsupportedError, match="_foreach_add"):
        t7bridge.save_module(Several(), tmp_path / "n.t7", example_inputs=torch.randn(3, 4))


class Infinite(nn.Module):
    """Comparisons with infinity and with itself, logarithms of sums, and sums of masks."""

    def forward(self, x):
        masks = [x == -torch.inf, x != torch.inf, x >= torch.inf, x.isfinite(), (x > 0) + (x > 1), x.double() > 0]
        sums = [x.logsumexp(1, keepdim=True), torch.logaddexp(x, x.roll(1, 1)), x.logcumsumexp(1)]
        return [torch.stack([mask.float() for mask in masks], 1), torch.cat(sums, 1)]


def test_infinite_values_are_compared_and_added(tmp_path):
    """No difference of infinities becomes NaN in a mask or a sum; what PyTorch rounds before it adds is refused."""
    inf = torch.inf
    x = torch.tensor([[-inf, -inf, -inf, -inf], [3.0, -inf, inf, inf], [0.0, 2.0, 1.0, -1.0]])
    same_outputs(Infinite(), tmp_path / "m.t7", (x,))

    class Rounded(nn.Module):
        def forward(self, x):
            return x.sum(1, dtype=torch.int64)

    with pytest.raises(UnsupportedError, match="rounds to int64 before it adds"):
        t7bridge.save_module(Rounded(), tmp_path / "n.t7", example_inputs=x)


@pytest.mark.slow
def test_the_module_is_not_changed(tmp_path):
    """Saving changes neither the weights, nor the moving means, nor the mode of a module."""
    module, inputs = module_of("resnet")
    module.train()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=inputs)
    assert module.training
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_training_means_what_it_did(tmp_path):
    """Batch normalization and dropout are Lua's own layers, with momentum and probability."""
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=0.3), nn.Dropout(0.25))
    t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=torch.randn(3, 4))
    modules = t7bridge.load(tmp_path / "m.t7")["modules"]
    assert modules[2]["momentum"] == 0.3
    assert modules[3].class_name == "nn.Dropout"
    assert modules[3]["p"] == 0.25
    assert modules[3]["train"] is True


class Spectrum(nn.Module):
    """Transforms of cut and padded signals."""

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x, n=4) * torch.fft.fft(x, n=8)[..., :3], n=4)


def test_transforms_cut_and_pad(tmp_path):
    """A transform of another length than its dimension's is decomposed by PyTorch."""
    same_outputs(Spectrum(), tmp_path / "m.t7", (torch.randn(2, 3, 6),))


class Sine(nn.Module):
    """A function that nn lacks."""

    def forward(self, x):
        return x.sin()


@pytest.mark.parametrize(("write", "target"), [(t7bridge.write_lua, "."), (t7bridge.save_module, "m.t7")])
def test_no_model_is_left_where_its_classes_cannot_be_written(write, target, tmp_path):
    """An existing layers.lua is refused before a model that needs another one gets its name."""
    (tmp_path / "layers.lua").write_text("-- mine")
    with pytest.raises(TargetExistsError):
        write(Sine(), tmp_path / target, example_inputs=torch.randn(2, 3), allow=("layers",))
    assert [each.name for each in tmp_path.iterdir()] == ["layers.lua"]
    assert (tmp_path / "layers.lua").read_text() == "-- mine"


class Noisy(nn.Module):
    """Adds noise in training."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        if self.training and x.requires_grad:
            x = x + torch.randn_like(x)
        return nn.functional.dropout(self.layer(x), 0.5, training=self.training)


class Guarded(nn.Module):
    """Branches on the mode, and computes the same."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        if self.training:
            self.norm.momentum = 0.1
        return self.norm(x)


def test_a_branch_for_training_is_reported(tmp_path):
    """A module whose graph is another in training is named once; one that only branches on `self.training` is not."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5, inplace=True), Noisy(), Guarded(), Noisy())
    report = t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=torch.randn(2, 3))
    (note,) = [note for note in report.notes if note.code == "left-out"]
    assert (note.level, note.path, note.class_name) == ("warning", "2", "Noisy")
    assert "at 2 places" in note.message


@pytest.mark.slow
def test_tied_weights_are_one_storage(tmp_path):
    """A tensor that two layers share is one storage in the file."""
    module, inputs = module_of("transformer")
    t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=inputs)
    found = {}
    for place in Places(t7bridge.load(tmp_path / "m.t7")):
        if place.obj.class_name in ("nn.LookupTable", "nn.Linear"):
            names = place.obj["t7bridge"]["weight"]
            if names["key"] in ("table.weight", b"table.weight"):
                found[place.obj.class_name] = place.obj["weight"].storage
    assert set(found) == {"nn.LookupTable", "nn.Linear"}
    assert found["nn.LookupTable"] is found["nn.Linear"]


class Sorting(nn.Module):
    def forward(self, x):
        y = x.sort(1)[0]
        return torch.sin(y) + x.cumprod(1)


class Branching(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


def test_everything_unsupported_is_listed(tmp_path):
    """All operations without a composition are named at once, each with its line."""
    with pytest.raises(UnsupportedError) as error:
        t7bridge.save_module(Sorting(), tmp_path / "m.t7", example_inputs=torch.randn(2, 3))
    text = str(error.value)
    assert "aten.sort" in text
    assert "aten.cumprod" in text
    assert "test_save_module.py:" in text
    assert "y = x.sort(1)[0]" in text
    assert not (tmp_path / "m.t7").exists()


def test_control_flow_by_data_is_refused(tmp_path):
    """A branch that depends on values is refused, not traced one way."""
    with pytest.raises(UnsupportedError, match="depends on data"):
        t7bridge.save_module(Branching(), tmp_path / "m.t7", example_inputs=torch.randn(2, 3))


def test_wrong_arguments(tmp_path):
    """A value that is not a module, and an existing target, are errors of their own."""
    with pytest.raises(ModelError, match=r"torch\.nn\.Module"):
        t7bridge.save_module({}, tmp_path / "m.t7", example_inputs=torch.randn(2, 3))
    (tmp_path / "m.t7").write_bytes(b"")
    with pytest.raises(TargetExistsError):
        t7bridge.save_module(nn.Linear(3, 2), tmp_path / "m.t7", example_inputs=torch.randn(2, 3))


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, slope):
        return -slope


class Counting(nn.Module):
    """Does what Lua does otherwise: a backward of its own, a buffer that changes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return Reversed.apply(self.layer(x)) * self.count


class FixedMode(nn.Module):
    """Calls a function whose mode is not that of the module."""

    def __init__(self, function):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.function = function

    def forward(self, x):
        return self.function(x, self.norm)


def _normed_in_evaluation(x, norm):
    return nn.functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=False)


OTHERWISE = {
    "backward": (Counting, "Reversed has its own backward"),
    "buffer": (Counting, "forward updates the buffer count"),
    "momentum": (lambda: nn.BatchNorm1d(4, momentum=None), "momentum=None, a cumulative average"),
    "statistics": (lambda: nn.InstanceNorm1d(4, track_running_stats=True), "uses those of the batch in training"),
    "frozen": (lambda: nn.Linear(4, 4).requires_grad_(False), "2 parameters with requires_grad=False"),
    "fixed norm": (
        lambda: FixedMode(_normed_in_evaluation),
        "1 operation of FixedMode that train() leaves in evaluation: batch_norm",
    ),
    "fixed dropout": (
        lambda: FixedMode(lambda x, norm: nn.functional.dropout(nn.functional.dropout(x, 0.4, False), 0.3, False)),
        "2 operations of FixedMode that train() leaves in evaluation: dropout, and 1 more",
    ),
    "fixed slopes": (lambda: FixedMode(lambda x, norm: nn.functional.rrelu(x)), "leaves in evaluation: rrelu"),
    "alpha dropout": (lambda: nn.AlphaDropout(0.3), "Lua has no alpha dropout: it is left out"),
    "alpha dropout of channels": (lambda: nn.FeatureAlphaDropout(0.3), "Lua has no alpha dropout: it is left out"),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_training_does_otherwise_is_a_warning(name, tmp_path):
    """What Lua does not do in training as PyTorch does is named."""
    make, text = OTHERWISE[name]
    inputs = torch.randn((3, 4, 5) if name == "statistics" else (3, 4))
    report = t7bridge.save_module(make(), tmp_path / "m.t7", example_inputs=inputs)
    assert any(text in note.message and note.level == "warning" for note in report.notes)


def test_modes_of_the_module_are_no_difference(tmp_path):
    """Functions that are given `self.training`, dropouts of nothing and PyTorch's layers have no warning."""

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.RReLU(), nn.Dropout(0.3), nn.AlphaDropout(0), nn.BatchNorm1d(4))

        def forward(self, x):
            x = nn.functional.dropout(self.layers(x), 0.2, self.training)
            return nn.functional.rrelu(nn.functional.dropout(x, 0, False), training=self.training)

    report = t7bridge.save_module(Plain(), tmp_path / "m.t7", example_inputs=torch.randn(3, 4))
    assert not [note for note in report.notes if note.level == "warning"]


def test_slopes_that_are_random_in_evaluation_are_named(tmp_path):
    """`nn.RReLU` of Lua takes the mean of its slopes in evaluation."""
    module = FixedMode(lambda x, norm: nn.functional.rrelu(x, training=True))
    report = t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=torch.randn(3, 4))
    assert any("random slopes in evaluation" in note.message for note in report.notes)


def test_half_inputs_have_half_gradients(tmp_path):
    """A model of 16-bit inputs begins with a copy from and, backward, to such tensors."""
    t7bridge.save_module(nn.Sequential(nn.Linear(4, 2)).half(), tmp_path / "m.t7", torch.randn(3, 4).half())
    copy = t7bridge.load(tmp_path / "m.t7")["modules"][1]
    assert (copy.class_name, copy["gradInput"].dtype) == ("nn.Copy", "float16")


class Sized(nn.Module):
    def forward(self, *inputs):
        return inputs[0] * 2, 5


def test_any_arguments_and_numbers(tmp_path):
    """A forward of `*inputs` keeps the batch open; a number that it returns is a tensor of one element."""
    report = t7bridge.save_module(Sized(), tmp_path / "m.t7", torch.randn(2, 3))
    assert [note.message for note in report.notes] == ["output 2 is a number: a tensor of one element in Lua"]
    outputs = t7bridge.load_module(tmp_path / "m.t7")(torch.ones(5, 3))
    assert outputs[0].shape == (5, 3)
    assert outputs[1] == 5


class Each(nn.Module):
    def forward(self, x):
        return torch.stack([x[place] * place for place in range(x.shape[0])])


def test_a_loop_over_the_batch_is_named(tmp_path):
    """A module that runs once for each example accepts that many examples only, which a note says."""
    report = t7bridge.save_module(Each(), tmp_path / "m.t7", torch.randn(2, 3))
    assert any("size of the batch is fixed" in note.message for note in report.notes)


def test_whole_numbers_are_floats(tmp_path):
    """Outputs of whole numbers are floats in Lua, which a note says."""
    report = t7bridge.save_module(_Cast(lambda x: x.long()), tmp_path / "m.t7", torch.randn(2, 3))
    assert any("output 1 has whole numbers as floats" in note.message for note in report.notes)


class Larger(nn.Module):
    def forward(self, x):
        return torch.topk(torch.sin(x), 2).values


def test_operations_on_refused_values_are_listed(tmp_path):
    """An operation without a composition is named, too, if its input is the value of another."""
    with pytest.raises(UnsupportedError, match=r"(?s)aten\.sin.*aten\.topk"):
        t7bridge.save_module(Larger(), tmp_path / "m.t7", torch.randn(2, 3))


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.07))
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x):
        return (x - self.mean) * self.scale.exp()


def test_state_is_state(tmp_path):
    """A parameter without dimensions keeps its shape; a buffer is a field that a template and a state dict set."""
    first, second, x = Temperature(), Temperature(), torch.randn(3, 4)
    second.load_state_dict({"scale": torch.tensor(0.5), "mean": torch.arange(4.0)})
    t7bridge.save_module(first, tmp_path / "m.t7", x)
    t7bridge.convert(tmp_path / "m.t7", tmp_path / "m.pt")
    assert all(torch.equal(value, first.state_dict()[key]) for key, value in torch.load(tmp_path / "m.pt").items())
    torch.save(second.state_dict(), tmp_path / "second.pt")
    t7bridge.convert(tmp_path / "second.pt", tmp_path / "second.t7", template=tmp_path / "m.t7")
    loaded = t7bridge.load_module(tmp_path / "m.t7")
    loaded.load_state_dict(second.state_dict())
    with torch.no_grad():
        for model in (loaded, t7bridge.load_module(tmp_path / "second.t7")):
            torch.testing.assert_close(model(x), second(x))


class Masked(nn.Linear):
    def forward(self, x):
        self.weight.data *= torch.ones(4, 4).tril()
        x = x * 1
        x.data = x.data * 3
        return super().forward(x)


class Clipped(nn.Linear):
    def forward(self, x):
        self.weight.data = self.weight.data.clamp(-0.1, 0.1)
        return super().forward(x)


@pytest.mark.parametrize("kind", [Masked, Clipped])
def test_parameters_changed_by_data(kind, tmp_path):
    """A weight whose `data` is changed in `forward` is changed in Lua, with a warning; a mask leaves its gradient."""
    module, x = kind(4, 4), torch.randn(3, 4)
    report = t7bridge.save_module(module, tmp_path / "m.t7", x)
    texts = ["the parameter weight"] + ["values by their data"] * (kind is Masked)
    for text in texts:
        assert any(f"forward changes {text}" in note.message for note in report.notes)
    loaded = t7bridge.load_module(tmp_path / "m.t7")
    output = loaded(x)
    torch.testing.assert_close(output, module(x))
    output.sum().backward()
    weights = [parameter for parameter in loaded.parameters() if parameter.numel() == 16]
    assert kind is Clipped or weights[0].grad.any()


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 3)

    def forward(self, x):
        return self.attention(x, x, x)


class Frozen(nn.Module):
    """Keeps its normalization in evaluation, as pretrained backbones of detectors do."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.norm(x)


def test_layers_that_stay_in_evaluation_are_reported(tmp_path):
    """`train()` of the module may leave some in evaluation; `training()` of Lua does not."""
    report = t7bridge.save_module(nn.Sequential(Frozen()), tmp_path / "m.t7", example_inputs=torch.randn(2, 3))
    (note,) = [note for note in report.notes if note.code == "left-out"]
    assert (note.level, note.path, note.class_name) == ("warning", "0.norm", "BatchNorm1d")


class OwnError(Exception):
    pass


class Raising(nn.Module):
    def forward(self, x):
        raise OwnError("for images only")


class Signed(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(("module", "found"), [(Raising(), "OwnError: for images only"), (Signed(), "on data")])
def test_what_forward_raises_is_named_with_its_line(module, found, tmp_path, capfd):
    """The user's exception, or PyTorch's, and the user's line; PyTorch prints nothing beside."""
    with pytest.raises(UnsupportedError, match=found) as caught:
        t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=torch.randn(2, 3))
    line = type(module).forward.__code__.co_firstlineno + 1
    assert f'test_save_module.py", line {line}' in str(caught.value)
    assert not capfd.readouterr().err


class Scaled(nn.Module):
    def forward(self, x, scale):
        return x * scale


@pytest.mark.slow
def test_inputs_without_dimensions(tmp_path):
    """Lua has a number as a tensor of one element; a loaded model takes both."""
    inputs = torch.randn(3, 4), torch.tensor(0.3)
    t7bridge.save_module(Scaled(), tmp_path / "m.t7", example_inputs=inputs)
    model = t7bridge.load_module(tmp_path / "m.t7")
    assert torch.equal(model(list(inputs)), inputs[0] * inputs[1])
    assert torch.equal(model([inputs[0], inputs[1].reshape(1)]), inputs[0] * inputs[1])


@pytest.mark.slow
def test_the_first_dimension_may_be_time(tmp_path):
    """The first dimension may not be the batch: the model takes more steps, or a note says otherwise."""
    torch.manual_seed(1)
    module, inputs = TimeFirst().eval(), (torch.randn(4, 2, 6),)
    same_outputs(module, tmp_path / "m.t7", inputs)
    report = t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=inputs, force=True)
    if not any("size of the batch is fixed" in note.message for note in report.notes):
        other = torch.randn(5, 2, 6)
        got, wanted = t7bridge.load_module(tmp_path / "m.t7")(other), module(other)
        torch.testing.assert_close(got[0], wanted[0], rtol=1e-4, atol=1e-5)


def test_sizes_of_whole_numbers_are_checked_as_floats(tmp_path):
    """The layers that check sizes are floats, which Lua's do not take another type: the copy comes first."""
    module = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(6, 2))
    report = t7bridge.save_module(module, tmp_path / "m.t7", torch.randint(0, 9, (2, 3)))
    assert any("any x 3; Lua refuses others" in note.message for note in report.notes)
    kinds = [place.obj.class_name for place in Places(t7bridge.load(tmp_path / "m.t7"))]
    assert kinds.index("nn.Copy") < kinds.index("nn.ConcatTable")


def test_pooling_has_no_window_behind_its_input(tmp_path):
    """In ceil mode, with strides larger than the kernel and no padding, Lua's layers have one, and PyTorch has none."""
    images = torch.randn(2, 3, 8, 9)
    pools = [
        nn.MaxPool2d((1, 2), (3, 4), ceil_mode=True),
        nn.MaxPool2d((1, 3), 3, ceil_mode=True),
        nn.MaxPool2d(2, (3, 6), dilation=(1, 3), ceil_mode=True),
        nn.AvgPool2d((2, 1), (5, 4), ceil_mode=True, count_include_pad=False),
        nn.LPPool2d(2, (1, 2), (2, 5), ceil_mode=True),
    ]
    for number, pool in enumerate(pools):
        t7bridge.save_module(pool, tmp_path / f"{number}.t7", images)
        torch.testing.assert_close(t7bridge.load_module(tmp_path / f"{number}.t7")(images), pool(images))
    t7bridge.save_module(pools[0], tmp_path / "single.t7", images[0])
    torch.testing.assert_close(t7bridge.load_module(tmp_path / "single.t7")(images[0]), pools[0](images[0]))
    with_indices = nn.MaxPool2d((1, 2), (3, 4), ceil_mode=True, return_indices=True)
    with pytest.raises(UnsupportedError, match="behind the input"):
        t7bridge.save_module(with_indices, tmp_path / "indices.t7", images, allow=("layers",))


class Taken(nn.Module):
    def forward(self, x):
        return x.take_along_dim(x.argmax(1, keepdim=True), 1)


def test_batch_that_pytorch_fixes_is_the_example_s(tmp_path):
    """PyTorch's own rule for an operation may fix the batch of the trace, which is of two where the example has one."""
    rows = torch.randn(1, 5, 4)
    t7bridge.save_module(Taken(), tmp_path / "m.t7", rows, allow=("layers",))
    assert torch.equal(t7bridge.load_module(tmp_path / "m.t7")(rows), Taken()(rows))


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2


class Rolled(nn.Module):
    def forward(self, x):
        return x.roll(1, 0)


class Paired(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0] // 2, 2, -1).sum(1)


def test_a_batch_of_one_is_not_that_of_the_trace(tmp_path):
    """PyTorch's decomposition may fix a batch of two, with which a batch of one is traced."""
    rows = torch.randn(1, 4)
    t7bridge.save_module(Rolled(), tmp_path / "m.t7", example_inputs=rows)
    assert torch.equal(t7bridge.load_module(tmp_path / "m.t7")(rows), Rolled()(rows))


PROGRAMS = {
    "below its range": (Doubled(), torch.export.Dim("batch", min=4, max=10), 3),
    "above its range": (Doubled(), torch.export.Dim("batch", min=4, max=10), 11),
    "odd": (Paired(), torch.export.Dim.AUTO, 3),
    "half of one is nothing": (Paired(), torch.export.Dim.AUTO, 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_not_converted_for_sizes_that_it_refuses(name, tmp_path):
    """The example has to meet the conditions that the user stated, and those of the code."""
    module, rows, batch = PROGRAMS[name]
    program = torch.export.export(module, (torch.randn(4, 4),), dynamic_shapes=({0: rows},))
    with pytest.raises(ModelError, match="other sizes than the example"):
        t7bridge.save_module(program, tmp_path / "m.t7", example_inputs=torch.randn(batch, 4))


def test_circular_padding_crops_first(tmp_path):
    """Of negative and positive numbers the first crop, and the second repeat what is left, as in PyTorch."""
    images = torch.randn(2, 3, 5, 6)
    for number, amounts in enumerate(((2, -1, -1, 2), (-2, 3, 1, -1), (1, 2, 2, 1), (-1, -2, 0, 3))):
        module = nn.CircularPad2d(amounts)
        t7bridge.save_module(module, tmp_path / f"{number}.t7", images)
        assert torch.equal(t7bridge.load_module(tmp_path / f"{number}.t7")(images), module(images))
    with pytest.raises(UnsupportedError, match="more elements than are left"):
        t7bridge.save_module(nn.CircularPad2d((4, -3, 0, 0)), tmp_path / "more.t7", images)


class Losses(nn.Module):
    def forward(self, x, y):
        return (x - y).square().mean(), x.sum(1), (x * y).sum()


def test_numbers_are_numbers_again(tmp_path):
    """Outputs without dimensions, of which Lua has one element each, have none where they are loaded."""
    same_outputs(Losses(), tmp_path / "m.t7", (torch.randn(3, 4), torch.randn(3, 4)))
    assert tuple(t7bridge.load(tmp_path / "m.t7")["t7bridge_state_dict"]["scalars"].values()) == (1, 3)


class _Cast(torch.nn.Module):
    """A layer, and a change of the type of its outputs."""

    def __init__(self, cast):
        super().__init__()
        self.layer, self.cast = torch.nn.Linear(3, 2), cast

    def forward(self, x):
        return self.cast(self.layer(x))


def test_bits_of_another_type(tmp_path):
    """Numbers read as the bits of another type are refused, and not turned into that type."""
    inputs = (torch.randn(2, 3),)
    with pytest.raises(UnsupportedError, match=r"aten\.view\.dtype .*reads the bits of float32 as int32"):
        t7bridge.save_module(_Cast(lambda x: x.view(torch.int32)), tmp_path / "m.t7", example_inputs=inputs)
    assert not (tmp_path / "m.t7").exists()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_rounding_is_reported(tmp_path, name):
    """Parts of half precision are computed without the rounding, which the report says; the values agree roughly."""
    module, inputs = _Cast(lambda x: x.to(getattr(torch, name)).float() * 2).eval(), (torch.randn(2, 3),)
    report = t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=inputs)
    assert any(f"{name} parts are computed in the element type" in note.message for note in report.notes)
    torch.testing.assert_close(t7bridge.load_module(tmp_path / "m.t7")(*inputs), module(*inputs), rtol=0.01, atol=0.01)


@pytest.mark.slow
def test_inference_leaves_out_gradients(tmp_path):
    """The model without gradients is half the size, in evaluation mode, and computes the same."""
    module, inputs = module_of("unet")
    t7bridge.save_module(module.train(), tmp_path / "all.t7", inputs)
    t7bridge.save_module(module, tmp_path / "m.t7", inputs, inference=True)
    smaller = (tmp_path / "all.t7").stat().st_size - (tmp_path / "m.t7").stat().st_size
    assert smaller > 0.9 * sum(value.nbytes for value in module.parameters())
    places = [place.obj for place in Places(t7bridge.load(tmp_path / "m.t7"))]
    assert not any(name in obj for obj in places for name in ("gradWeight", "gradBias"))
    assert all(obj["train"] is False for obj in places)
    again = t7bridge.load_module(tmp_path / "m.t7")
    with torch.no_grad():
        torch.testing.assert_close(again(*inputs), module.eval()(*inputs))


class RelativePositions(nn.Module):
    """Biases of a matrix of positions, looked up by their distance, for each head."""

    def __init__(self):
        super().__init__()
        self.biases = nn.Parameter(torch.randn(3, 64))
        places = torch.stack(torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")).flatten(1)
        self.index = (places[:, :, None] - places[:, None]).abs().mul(torch.tensor([[[8]], [[1]]])).sum(0)

    def forward(self, x):
        return x[:, None] + self.biases[:, self.index]


def test_relative_positions_are_looked_up(tmp_path):
    """The file has a number for each element looked up, not a table of ones and zeros; gradients are PyTorch's."""
    module, x = RelativePositions(), torch.randn(2, 64, 64)
    t7bridge.save_module(module, tmp_path / "m.t7", x)
    assert (tmp_path / "m.t7").stat().st_size < 60_000
    again = t7bridge.load_module(tmp_path / "m.t7")
    slope = torch.randn(2, 3, 64, 64)
    found = []
    for each in (module, again):
        made = each(x)
        made.backward(slope)
        found.append((made.detach(), next(each.parameters()).grad))
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1].view(3, 64), found[0][1])


class CausalMask(nn.Module):
    """A mask of two dimensions, added to values of four."""

    def forward(self, x):
        return (x + torch.full(x.shape[-2:], -1e4).triu(1)).softmax(-1)


def test_large_constants_are_stored_once(tmp_path):
    """A constant is expanded by the model where it is used with more elements than it has."""
    x = torch.randn(1, 8, 128, 128)
    same_outputs(CausalMask(), tmp_path / "m.t7", (x,))
    assert (tmp_path / "m.t7").stat().st_size < 2 * 4 * 128 * 128


class Repeated(nn.Module):
    """Layers that view their input in another shape, of repeated values, some detached; and one that does not."""

    def __init__(self):
        super().__init__()
        self.layer, self.rnn = nn.Linear(4, 4), nn.GRU(4, 4, batch_first=True)

    def forward(self, x):
        wide = x.unsqueeze(1).expand(-1, 4, -1)
        image = x[:, :, None, None].expand(-1, -1, 2, 2)
        parts = [self.layer(wide), wide.softmax(-1), self.rnn(wide)[0], wide.detach().flatten(1).view(-1, 4, 4)]
        return [*parts, nn.functional.pixel_shuffle(image, 2), wide.relu()]


def test_repeated_values_are_made_contiguous(tmp_path):
    """Lua's layers view memory, which values repeated by strides of 0 do not have; others take these as they are."""
    same_outputs(Repeated(), tmp_path / "m.t7", (torch.randn(3, 4),))
    t7bridge.write_lua(Repeated(), tmp_path / "lua", example_inputs=torch.randn(3, 4))
    assert (tmp_path / "lua" / "model.lua").read_text().count("nn.Contiguous") == 5


RANDOM = {
    "rand": lambda x: x + torch.rand(6),
    "randperm": lambda x: x[:, torch.randperm(6)],
    "bernoulli": lambda x: x * torch.full((6,), 0.5).bernoulli(),
    "normal_": lambda x: x + torch.zeros(6).normal_(),
    "randn": lambda x: x + torch.randn(x.shape[0], 6),
    "exponential_": nn.functional.gumbel_softmax,
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_refused(name, tmp_path):
    """Numbers that PyTorch draws in each run are not drawn once and stored."""
    module = nn.Sequential(nn.Linear(6, 6), _Cast(RANDOM[name]))
    module[1].layer = nn.Identity()
    with pytest.raises(UnsupportedError, match=rf"aten\.{name.strip('_')}\w*\..*draws random numbers"):
        t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=torch.randn(2, 6))


def test_random_numbers_that_do_not_count(tmp_path):
    """Their shape may count, dropout is a layer of Lua, and what evaluation does not draw is a constant."""

    def forward(x):
        dropout = nn.functional.dropout
        return x * torch.rand(6).shape[0] + dropout(torch.ones(2), 0.5, True) + dropout(torch.ones(2), 0.5, False)

    t7bridge.save_module(_Cast(forward), tmp_path / "m.t7", example_inputs=torch.randn(2, 3))
    kinds = [place.obj.class_name for place in Places(t7bridge.load(tmp_path / "m.t7"))]
    assert kinds.count("nn.Dropout") == 1


class M(nn.Module):
    """A class with the name of the table that model.lua returns."""

    def __init__(self, slope):
        super().__init__()
        self.layer, self.slope = nn.Linear(3, 3), nn.LeakyReLU(slope)

    def forward(self, x):
        return self.slope(self.layer(x)) * x + self.layer(x.tanh())


def test_booleans_are_numbers_and_names_are_free(tmp_path):
    """`True` is 1 where PyTorch takes a number; a function of model.lua does not have a name of the page itself."""
    module = nn.Sequential(M(True), M(False), M(0.5), nn.Threshold(False, True), nn.Hardtanh(False, True))
    same_outputs(module, tmp_path / "m.t7", (torch.randn(4, 3),))
    t7bridge.write_lua(module, tmp_path / "lua", example_inputs=torch.randn(4, 3))
    text = (tmp_path / "lua" / "model.lua").read_text()
    assert "local function M2(" in text
    assert "nn.Threshold(0, 1)" in text
    assert "nn.HardTanh(0)" in text
    assert "true)" not in text


class Adapted(nn.Module):
    """A module whose name ends like the package of `layers.lua`."""

    def __init__(self):
        super().__init__()
        self.adapt = nn.Sequential(nn.Linear(3, 2), nn.ReLU())

    def forward(self, x):
        return self.adapt(x)


def test_names_of_modules_are_not_classes_of_layers_lua(tmp_path):
    """`adapt.0`, the key of a layer, has no class of `layers.lua`, which model.lua would load without need."""
    t7bridge.write_lua(Adapted(), tmp_path / "lua", example_inputs=torch.randn(4, 3))
    assert "layers.lua" not in (tmp_path / "lua" / "model.lua").read_text()


class Counted(nn.Module):
    """Returns numbers and a range that depend on the size of the batch beside a tensor."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x), 3 * x.shape[0] - 1, x.shape[0] / 4, torch.arange(x.shape[0])


def test_numbers_of_sizes_are_outputs(tmp_path):
    """A size that is returned is counted when the model runs, and leaves the batch open."""
    module = Counted().eval()
    t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=torch.randn(2, 3))
    again = t7bridge.load_module(tmp_path / "m.t7")
    for batch in (1, 2, 7):
        x = torch.randn(batch, 3)
        _, whole, part, numbers = again(x)
        assert (float(whole), float(part), numbers.tolist()) == (3 * batch - 1, batch / 4, [*range(batch)])


def test_comparisons_of_sizes_are_outputs(subtests, tmp_path):
    """One that is returned is 1 or 0, as in the example, and the model refuses sizes for which it is not."""
    cases = [
        (lambda x: (x + 1, x.shape[0] > 2), 1.0, "n>=3 x any", (5, 4), (2, 4)),
        (lambda x: {"y": x + 1, "same": x.shape[0] == x.shape[1]}, 0.0, "3 x 4", (3, 4), (3, 3)),
        (lambda x: (x + 1, torch.sym_not(x.shape[1] % 2 == 0)), 0.0, "any x 2n", (1, 6), (3, 5)),
    ]
    for function, value, sizes, other, wrong in cases:
        with subtests.test(sizes):
            path = tmp_path / "m.t7"
            report = t7bridge.save_module(Of(function), path, example_inputs=torch.randn(3, 4), force=True)
            assert any(f" {sizes};" in note.message for note in report.notes)
            model = t7bridge.load_module(path)
            x = torch.randn(other)
            outputs = model(x)
            torch.testing.assert_close(outputs[0], x + 1)
            assert float(outputs[1]) == value
            with pytest.raises(Exception, match=r"size|shape|range|invalid"):
                model(torch.randn(wrong))


def test_texts_are_no_outputs(tmp_path):
    """A text that a module returns is refused as an output that Lua does not have."""
    with pytest.raises(UnsupportedError, match="a text"):
        t7bridge.save_module(_Cast(lambda x: (x, "name")), tmp_path / "m.t7", example_inputs=torch.randn(2, 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.full_like(x > 0, 3) + (x > 0).new_full((2, 2), 0.5) + (x > 0).fill_(7),
        lambda x: x + (x > 0).byte().fill_(2.7) + x.long().fill_(-2.7),
        lambda x: x + nn.functional.pad(x > 0, [1, -1], value=3.0) + nn.functional.pad(x.long(), [1, -1], value=2.7),
        lambda x: x + (x > 0).scatter(1, torch.tensor([[0], [1]]), 3),
    ],
    ids=["masks", "integers", "pad", "scatter"],
)
def test_numbers_are_converted_to_elements(function, tmp_path):
    """A mask that is filled with any number but 0 is 1, and integers drop its fraction."""
    module, x = _Cast(function), torch.randn(2, 3)
    t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=x, allow=("layers",))
    torch.testing.assert_close(t7bridge.load_module(tmp_path / "m.t7")(x), module(x))


class Doubles(nn.Module):
    """Numbers that floats do not have."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(3)

    def forward(self, x):
        mask = torch.tensor([True, False, False])
        return self.norm(x * 1e-7), x + torch.tensor([(1 << 24) + 1, 1 << 40, 3]), x.masked_fill(mask, 0.1)


def test_constants_of_doubles(tmp_path):
    """Whole numbers, those of masks and the eps of a type are those of doubles in a model of doubles."""
    module, x = Doubles().double(), torch.randn(2, 3).double()
    t7bridge.save_module(module, tmp_path / "m.t7", x)
    for got, want in zip(t7bridge.load_module(tmp_path / "m.t7")(x), module(x)):
        torch.testing.assert_close(got, want, rtol=1e-14, atol=0)


class HalfScale(nn.Module):
    """A layer behind a factor of 16 bits."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), nn.Parameter(torch.randn(3).half())

    def forward(self, x):
        return self.layer(x * self.scale)


@pytest.mark.parametrize("bits", [32, 64])
def test_half_weights_become_those_of_the_model(bits, tmp_path):
    """The note says which elements hold 16-bit weights: doubles in a model that has doubles elsewhere."""
    module = HalfScale()
    if bits == 64:
        module.layer.double()
    report = t7bridge.save_module(module, tmp_path / "m.t7", torch.randn(2, 3, dtype=module.layer.weight.dtype))
    assert any(f"16-bit weights become {bits}-bit ones" in note.message for note in report.notes)


class Positions(nn.Module):
    """Rows of constant indices, one of which has no gradient."""

    def __init__(self, **options):
        super().__init__()
        self.table = nn.Embedding(5, 3, **options)

    def forward(self, x):
        return x + self.table(torch.tensor([1, 1, 0, 4])) + self.table(torch.tensor(0))


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"scale_grad_by_freq": True}])
def test_rows_at_constant_indices(options, tmp_path):
    """A row of padding has no gradient in Lua either, and gradients of a row are scaled by its frequency."""
    module = Positions(**options)
    same_outputs(module, tmp_path / "m.t7", (torch.randn(2, 4, 3),))
    tables = [
        place.obj for place in Places(t7bridge.load(tmp_path / "m.t7")) if place.obj.class_name == "nn.LookupTable"
    ]
    assert tables
    assert all(table["paddingValue"] == ("padding_idx" in options) for table in tables)
    assert all(bool(table.get("shouldScaleGradByFreq")) == ("padding_idx" not in options) for table in tables)


class Grouped(nn.Module):
    def forward(self, query, key, value):
        return nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


@pytest.mark.parametrize(
    "shapes", [((4, 5, 2), (2, 6, 2), (2, 6, 2)), ((2, 3, 4, 5, 2), (2, 3, 2, 6, 2), (2, 3, 1, 6, 2))]
)
def test_heads_are_shared(shapes, tmp_path):
    """Queries share the heads of keys and of values, of any number of dimensions."""
    same_outputs(Grouped(), tmp_path / "m.t7", tuple(map(torch.randn, shapes)))


def test_layers_have_all_their_arguments(tmp_path):
    """A default that model.lua leaves out is one for the class in layers.lua too: `torch.sort` takes no nil."""
    module = _Cast(lambda x: x.sort(1)[0])
    report = t7bridge.write_lua(module, tmp_path / "lua", example_inputs=torch.randn(2, 3), allow=("layers",))
    assert "self.descending or false" in (tmp_path / "lua" / "layers.lua").read_text()
    assert report.target_bytes == sum(path.stat().st_size for path in (tmp_path / "lua").iterdir())


class Windows(nn.Module):
    """Windows of one channel of a scaled image."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x):
        return nn.functional.unfold((nn.functional.pixel_unshuffle(x, 2) * self.scale)[:, :1], 2, stride=2)


def test_windows_take_any_batch(tmp_path):
    """What an operation is composed of does not fix the batch."""
    x, module = torch.randn(2, 1, 14, 14), Windows()
    again = same_outputs(module, tmp_path / "m.t7", (x,))
    other = torch.randn(5, 1, 14, 14)
    torch.testing.assert_close(again(other), module(other), rtol=1e-4, atol=1e-5)


@pytest.fixture
def without_im2col(tmp_path):
    """The table of operations without one of them, afterwards as it was: its order is that of a page."""
    t7bridge.save_module(nn.ReLU(), tmp_path / "relu.t7", example_inputs=torch.randn(2, 3))  # fills the table
    before = dict(OPERATIONS)
    del OPERATIONS["aten.im2col.default"]
    yield
    OPERATIONS.clear()
    OPERATIONS.update(before)


@pytest.mark.usefixtures("without_im2col")
def test_a_batch_that_a_decomposition_fixes_is_named(tmp_path):
    """Where PyTorch's decomposition of an operation needs the batch, the model takes it or claims one batch only."""
    module = Windows()
    report = t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=torch.randn(2, 1, 14, 14))
    other = torch.randn(5, 1, 14, 14)
    if not any("the size of the batch is fixed" in note.message for note in report.notes):
        torch.testing.assert_close(t7bridge.load_module(tmp_path / "m.t7")(other), module(other), rtol=1e-4, atol=1e-5)


class Wave(nn.Module):
    """A function of a parameter, without an input in it."""

    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return x * self.phase.sin()


def test_functions_apply_to_parameters(tmp_path):
    """A layer of `layers.lua` takes a parameter as it takes a value that is computed."""
    inputs = (torch.randn(2, 5),)
    module = Wave().eval()
    t7bridge.save_module(module, tmp_path / "m.t7", inputs, allow=("layers",))
    again = t7bridge.load_module(tmp_path / "m.t7")
    torch.testing.assert_close(again(*inputs), module(*inputs))


class FromEnd(nn.Module):
    """Indices of one and of two dimensions, computed and constant, some of which count from the end."""

    def forward(self, x, y):
        rows = y.argmax(1)
        replaced = x.clone()
        replaced[:, rows - 3] = 7.0
        return [x[:, rows, rows - 3], x[:, rows - 4, torch.tensor([-1, 0, -2])], x[:, rows - 3], replaced]


def test_computed_indices_count_from_the_end(tmp_path):
    """A negative index of a dimension is that of an element from its end, not of one in front of it."""
    x = torch.arange(60.0).reshape(3, 4, 5)
    y = torch.eye(4)[[1, 3, 2]]
    module = FromEnd().eval()
    t7bridge.save_module(module, tmp_path / "m.t7", (x, y), allow=("layers",))
    again = t7bridge.load_module(tmp_path / "m.t7")
    for value, wanted in zip(again([x, y]), module(x, y), strict=True):
        torch.testing.assert_close(value, wanted)


def test_windows_of_adaptive_max_pooling(tmp_path):
    """nn computes them in float: where they are others than PyTorch's, a plain pooling has them, or none.

    Real Lua computes what PyTorch does with the files that are written here; its adaptive layer does not.
    """
    for size, new_size, name in (
        ((7, 5), (3, 2), "nn.SpatialAdaptiveMaxPooling"),
        ((21, 19), 1, "nn.SpatialAdaptiveMaxPooling"),
        ((21, 25), (7, 5), "nn.SpatialMaxPooling"),
        ((19, 19), (19, 19), "nn.SpatialMaxPooling"),
    ):
        images = torch.randn(2, 3, *size)
        pool = nn.AdaptiveMaxPool2d(new_size)
        t7bridge.save_module(pool, tmp_path / "m.t7", images, force=True)
        assert name in [place.obj.class_name for place in Places(t7bridge.load(tmp_path / "m.t7"))], size
        assert torch.equal(t7bridge.load_module(tmp_path / "m.t7")(images), pool(images))
    with pytest.raises(UnsupportedError, match="has other windows"):
        t7bridge.save_module(nn.AdaptiveMaxPool2d((14, 3)), tmp_path / "no.t7", torch.randn(2, 3, 21, 21))


class MultiheadAttention(nn.Module):
    """Has the name of a module of torch.nn, and another `dropout`."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        query = self.query(x)
        return self.dropout(nn.functional.scaled_dot_product_attention(query, query, x))


def test_the_dropout_of_an_attention_is_told_by_class_and_not_by_name(tmp_path):
    """It is 0 in evaluation: the probability is that of the module, if it is torch.nn's.

    That module computes its weights by one operation if it returns them, as it does by default, and else by another.
    """
    heads = torch.randn(2, 1, 8)
    for module, inputs, probabilities in (
        (MultiheadAttention().eval(), torch.randn(2, 5, 8), [0.5]),
        (nn.LSTM(4, 3, num_layers=2, dropout=0.25).eval(), torch.randn(3, 2, 4), [0.25]),  # which has it in evaluation
        (nn.MultiheadAttention(8, 2, dropout=0.25).eval(), (heads, heads, heads), [0.25]),
        (nn.MultiheadAttention(8, 2, dropout=0.25).eval(), (heads, heads, heads, None, False), [0.25]),
    ):
        t7bridge.save_module(module, tmp_path / "m.t7", inputs, force=True)
        objects = [place.obj for place in Places(t7bridge.load(tmp_path / "m.t7"))]
        assert [obj["p"] for obj in objects if obj.class_name == "nn.Dropout"] == probabilities


class ActiveDropouts(nn.Module):
    """Drops values in evaluation, too: in an attention, or between recurrent layers."""

    def __init__(self, is_attention):
        super().__init__()
        self.is_attention = is_attention
        self.layers = nn.LSTM(4, 4, num_layers=2, dropout=0.25)

    def forward(self, x):
        if self.is_attention:
            return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.25)
        weights = self.layers._flat_weights
        states = torch.zeros(2, 2, 2, 4)
        return torch.lstm(x, (states[0], states[1]), weights, True, 2, 0.25, True, False, False)[0]


@pytest.mark.parametrize("is_attention", [True, False])
def test_dropouts_that_are_active_in_evaluation_are_noted(is_attention, tmp_path):
    """Lua's act in training only."""
    module = ActiveDropouts(is_attention).eval()
    report = t7bridge.save_module(module, tmp_path / "m.t7", torch.randn(3, 2, 4))
    assert any("active in evaluation too" in note.message for note in report.notes)


class ComparedWithNan(nn.Module):
    """Comparisons with a number that is NaN, and with a constant some of which is."""

    def forward(self, x):
        nan = float("nan")
        masks = [x == nan, x != nan, x >= nan, x < nan, x >= torch.tensor([nan, 1.0, 2.0])]
        return [mask * 1.0 for mask in masks]


def test_nothing_but_inequality_holds_with_nan(tmp_path):
    """Real Lua computes what PyTorch does with the file that is written here."""
    x = torch.tensor([[1.0, 1.0, 1.0], [3.0, 0.0, 2.0]])
    module = ComparedWithNan()
    t7bridge.save_module(module, tmp_path / "m.t7", x)
    *of_number, of_constant = t7bridge.load_module(tmp_path / "m.t7")(x)
    *wanted_of_number, wanted_of_constant = module(x)
    for mask, wanted in zip(of_number, wanted_of_number, strict=True):
        torch.testing.assert_close(mask.expand(wanted.shape), wanted)
    # PyTorch's ReLU of NaN is NaN, and Lua's is 0: the first column is 0 - 0 there.
    torch.testing.assert_close(of_constant[:, 1:], wanted_of_constant[:, 1:])
    objects = [place.obj for place in Places(t7bridge.load(tmp_path / "m.t7"))]
    constants = [obj["value"].numpy().ravel().tolist() for obj in objects if obj.class_name == "nn.Constant"]
    assert [1.0, 0.0, 0.0] in constants


def test_ceil_mode_of_dilated_volumes_is_read_by_lua(tmp_path):
    """Lua sets the ceil mode of an nn.VolumetricDilatedMaxPooling of class version 1 to false when it reads it."""
    pool = nn.MaxPool3d(2, 3, dilation=2, ceil_mode=True)
    volume = torch.randn(1, 1, 10, 10, 10)
    t7bridge.save_module(pool, tmp_path / "pool.t7", volume)
    assert t7bridge.load_module(tmp_path / "pool.t7")(volume).shape == pool(volume).shape == (1, 1, 4, 4, 4)
