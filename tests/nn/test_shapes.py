"""Tensors that do not fit their layer are refused with their path, before a module or its source is made."""

from __future__ import annotations

import pytest
import torch
from helpers import TESTFILES, corpus, name_of, read, written

import t7bridge
from t7bridge import Tensor
from t7bridge.errors import ModelError
from t7bridge.layers import Arguments, Mismatch
from t7bridge.nn import TORCH, build_plan, tensor_shapes, traits_of
from t7bridge.torchmodules import construct
from t7bridge.torchmodules.layers import shape as layers

CASES = [path for path in corpus("nn/*.t7", "rnn/*.t7") if not path.name.endswith((".io.t7", ".grad.t7"))]


def test_declared_shapes_agree_with_pytorch(subtests):
    """The shapes that an entry declares are those of the tensors that PyTorch's own constructor makes."""
    for path in [path for path in CASES if path.name != "Serial.t7"]:
        with subtests.test(name_of(path)):
            stack = [build_plan(read(path)).root]
            while stack:
                spec = stack.pop()
                stack += spec.children.values()
                wanted = tensor_shapes(spec.target, spec.args, spec.kwargs)
                if not wanted:
                    continue
                made = construct(spec)
                own = {**dict(made.named_parameters(recurse=False)), **dict(made.named_buffers(recurse=False))}
                for name, tensor in own.items():
                    assert tuple(tensor.shape) == wanted.get(name, tuple(tensor.shape)), (spec.target, name)


# The arguments and an input of each class of torch.nn whose output has another shape than its input.
OUTPUTS = {
    "Linear": ({"in_features": 5, "out_features": 4}, (3, 5)),
    "Conv1d": ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "stride": 2, "padding": 1}, (3, 2, 9)),
    "Conv2d": ({"in_channels": 2, "out_channels": 4, "kernel_size": (3, 2), "dilation": 2}, (3, 2, 9, 8)),
    "Conv3d": ({"in_channels": 2, "out_channels": 4, "kernel_size": 2, "groups": 2}, (2, 5, 6, 7)),
    "ConvTranspose1d": ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "stride": 2}, (3, 2, 9)),
    "ConvTranspose2d": (
        {"in_channels": 2, "out_channels": 4, "kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
        (3, 2, 5, 6),
    ),
    "ConvTranspose3d": ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "dilation": 2}, (1, 2, 4, 5, 6)),
    "MaxPool1d": ({"kernel_size": 3, "stride": 2}, (1, 2, 8)),
    "MaxPool2d": ({"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True}, (1, 2, 12, 13)),
    "MaxPool3d": ({"kernel_size": 2}, (1, 2, 5, 6, 7)),
    "AvgPool2d": ({"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}, (1, 2, 7, 8)),
    "AvgPool3d": ({"kernel_size": 2, "stride": 3}, (2, 5, 6, 7)),
    "LPPool2d": ({"norm_type": 2, "kernel_size": 3, "stride": 2}, (1, 2, 7, 8)),
    "AdaptiveAvgPool2d": ({"output_size": (3, None)}, (1, 2, 7, 8)),
    "AdaptiveMaxPool2d": ({"output_size": 2}, (1, 2, 7, 8)),
    "Embedding": ({"num_embeddings": 7, "embedding_dim": 3}, (2, 4)),
    "Flatten": ({"start_dim": 1, "end_dim": 2}, (2, 3, 4, 5)),
    "PixelShuffle": ({"upscale_factor": 2}, (1, 8, 3, 4)),
    "ReflectionPad2d": ({"padding": (1, 2, 3, 0)}, (1, 2, 7, 8)),
    "ReplicationPad2d": ({"padding": 2}, (1, 2, 7, 8)),
    "ReplicationPad3d": ({"padding": (1, 0, 2, 3, 1, 1)}, (1, 2, 5, 6, 7)),
    "ZeroPad2d": ({"padding": (0, 2, 3, 1)}, (2, 7, 8)),
    "Bilinear": ({"in1_features": 2, "in2_features": 3, "out_features": 4}, None),
    "GLU": ({}, None),
    "GRU": ({}, None),
    "LSTM": ({}, None),
    **{f"{name}Cell": ({}, None) for name in ("GRU", "LSTM", "RNN")},
    "RNN": ({}, None),
    "Unflatten": ({}, None),
}
SAME = {
    "BatchNorm1d": ({"num_features": 3}, (2, 3)),
    "BatchNorm2d": ({"num_features": 3}, (2, 3, 4, 5)),
    "BatchNorm3d": ({"num_features": 3}, (2, 3, 4, 5, 6)),
    "InstanceNorm2d": ({"num_features": 3}, (2, 3, 4, 5)),
    "LocalResponseNorm": ({"size": 2}, (2, 3, 4, 5)),
    "Threshold": ({"threshold": 0.5, "value": 1.0}, (2, 3)),
    **dict.fromkeys(("Softmax", "Softmin", "LogSoftmax"), ({"dim": 1}, (2, 3))),
}


def test_declared_outputs_agree_with_pytorch(subtests):
    """The rule of a class gives the shape that PyTorch's own module returns; one without a rule is named here."""
    for name in TORCH:
        with subtests.test(name=name):
            kwargs, given = OUTPUTS.get(name) or SAME.get(name, ({}, (2, 3, 4, 5)))
            rule = traits_of(f"torch.nn.{name}").output
            assert (rule is None) == (given is None)
            if rule is not None:
                value = torch.zeros(given, dtype=torch.long if name == "Embedding" else torch.float32)
                assert tuple(getattr(torch.nn, name)(**kwargs)(value).shape) == rule(Arguments((), kwargs), given)


def test_products_of_different_batches_are_refused():
    """nn.MM multiplies as many matrices as the other batch has; Lua refuses anything else."""
    rule = traits_of("t7bridge.torchmodules.layers.linear.MM").output
    assert rule(Arguments((False, True), {}), [(2, 3, 4), (2, 5, 4)]) == (2, 3, 5)
    with pytest.raises(Mismatch):
        rule(Arguments((), {}), [(1, 2, 2), (4, 2, 2)])


@pytest.mark.parametrize("name", ["MaxPool2d", "AvgPool2d"])
@pytest.mark.parametrize("ceil_mode", [True, False])
def test_windows_larger_than_the_input(name, ceil_mode, subtests):
    """A window that reaches beyond the input counts where their number is rounded up, as in PyTorch and Lua."""
    rule = traits_of(f"torch.nn.{name}").output
    for extent in range(1, 7):
        with subtests.test(extent=extent):
            kwargs = {"kernel_size": 5, "stride": 3, "ceil_mode": ceil_mode}
            shape = (1, extent, 6)
            try:
                expected = tuple(getattr(torch.nn, name)(**kwargs)(torch.zeros(shape)).shape)
            except RuntimeError:
                with pytest.raises(Mismatch):
                    rule(Arguments((), kwargs), shape)
            else:
                assert rule(Arguments((), kwargs), shape) == expected


@pytest.mark.parametrize(("args", "shape"), [((), (3,)), ((), ()), ((0, 5), (2, 3)), ((2, 1), (2, 3, 4))])
def test_dimensions_that_cannot_be_flattened_are_refused(args, shape):
    """The rule of Flatten refuses what PyTorch refuses."""
    with pytest.raises(Mismatch):
        traits_of("torch.nn.Flatten").output(Arguments(args, {}), shape)
    with pytest.raises((IndexError, RuntimeError)):
        torch.nn.Flatten(*args)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "shape"),
    [
        ("Transpose", ((0, 1),), {"n_input_dims": 3}, (2, 3)),
        ("Transpose", ((-1, 0),), {"n_input_dims": 3}, (2, 3)),
        ("Replicate", (2, 3), {}, (2, 3)),
        ("Select", (0, 2), {}, (2, 3)),
        ("Select", (1, -4), {}, (2, 3)),
    ],
)
def test_inputs_that_are_too_small_are_refused(name, args, kwargs, shape):
    """A rule refuses what the layer refuses: too few dimensions, or slices."""
    rule = traits_of(f"t7bridge.torchmodules.layers.shape.{name}").output
    with pytest.raises(Mismatch):
        rule(Arguments(args, kwargs), shape)
    with pytest.raises((IndexError, RuntimeError)):
        getattr(layers, name)(*args, **kwargs)(torch.zeros(shape))


def damaged(name: str, field: str, size: int) -> bytes:
    """A case whose field is replaced by zeros of another size, as a file."""
    root = read(TESTFILES / f"nn/{name}.t7")
    root.fields[field.encode()] = Tensor.from_numpy(torch.zeros(size).numpy())
    return written(root)


@pytest.mark.parametrize(
    ("name", "field", "size"),
    [
        ("Linear", "bias", 7),
        ("SpatialConvolution", "bias", 9),
        ("BatchNormalization", "bias", 2),
        ("SpatialFullConvolution", "bias", 11),
        ("TemporalConvolution", "bias", 1),
    ],
)
def test_other_sizes_are_refused(name, field, size, tmp_path):
    """`load_module` and `write_module` name the tensor, the shape it should have and the one it has."""
    path = tmp_path / "model.t7"
    path.write_bytes(damaged(name, field, size))
    for action in (lambda: t7bridge.load_module(path), lambda: t7bridge.write_module(path, tmp_path / "out")):
        with pytest.raises(ModelError, match="does not match") as caught:
            action()
        assert f"root.{field}" in str(caught.value)
        assert f"[{size}]" in str(caught.value)
    assert not (tmp_path / "out" / "model.py").exists()
