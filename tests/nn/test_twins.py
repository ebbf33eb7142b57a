"""Layers of torch.nn, filled with converted weights, compute what Lua Torch computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import TESTFILES, read
from match_nets import Generator

from t7bridge import Tensor, TorchObject, state_dict
from t7bridge.layers import Fields, items_of

torch = pytest.importorskip("torch", reason="compares with the layers of torch.nn")
nn = torch.nn


def to_torch(tensor: Tensor) -> Any:
    """A tensor of PyTorch with its own memory."""
    return torch.from_numpy(np.array(tensor.numpy())).reshape(tensor.shape)


def run(name: str, make: Any, forward: Any = None) -> None:
    """Load the case's state dict strictly into the module that `make` builds, and compare with Lua's output."""
    root = read(str(TESTFILES / f"{name}.t7"))
    case = read(str(TESTFILES / f"{name}.io.t7"))
    module = make(Fields(root), root).eval()
    converted = {key: to_torch(tensor) for key, tensor in state_dict(root).tensors.items()}
    module.load_state_dict(converted, strict=True)
    given = case["input"]
    inputs = [to_torch(given)] if isinstance(given, Tensor) else [to_torch(item) for item in items_of(given)]
    with torch.no_grad():
        output = (forward or (lambda layer, *values: layer(*values)))(module, *inputs)
    np.testing.assert_allclose(output.numpy(), case["output"].numpy(), rtol=1e-4, atol=1e-5)


def size_of(root: TorchObject, field: str, dim: int) -> int:
    """An extent of one of the object's tensors."""
    return root[field].shape[dim]


def linear(fields: Fields, root: TorchObject) -> Any:
    """torch.nn.Linear."""
    out, size = root["weight"].shape
    return nn.Linear(size, out, bias=fields.has("bias"))


@pytest.mark.parametrize(
    "name", ["nn/Linear", "nn/Linear.vector", "nn/Linear.nobias", "rnn/LinearNoBias", "nn/SparseLinear"]
)
def test_linear(name):
    """Linear in all its kinds; the sparse one has other inputs, so only its keys are compared."""
    if name == "nn/SparseLinear":
        root = read(str(TESTFILES / f"{name}.t7"))
        assert {key: t.shape for key, t in state_dict(root).tensors.items()} == {"weight": (3, 10), "bias": (3,)}
        return
    run(name, linear)


def test_partial_linear():
    """PartialLinear is a Linear whose weight is in a lookup table inside."""
    run("nn/PartialLinear", lambda fields, root: nn.Linear(fields.integer("inputsize"), fields.integer("outputsize")))


def test_linear_weight_norm():
    """LinearWeightNorm: the weight that Lua cleared is computed again, and v and g keep PyTorch's names."""
    root = read(str(TESTFILES / "nn/LinearWeightNorm.t7"))
    case = read(str(TESTFILES / "nn/LinearWeightNorm.io.t7"))
    weights = {key: to_torch(tensor) for key, tensor in state_dict(root).tensors.items()}
    output = nn.functional.linear(to_torch(case["input"]), weights["weight"], weights["bias"])
    np.testing.assert_allclose(output.numpy(), case["output"].numpy(), rtol=1e-4, atol=1e-5)
    twin = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    twin.load_state_dict({key: weights[key] for key in ("weight_g", "weight_v", "bias")}, strict=True)
    np.testing.assert_allclose(twin.weight.detach().numpy(), weights["weight"].numpy(), rtol=1e-5)


def test_weight_norm():
    """WeightNorm leaves the weight of its child out of the file: it is computed from v and g."""
    root = read(str(TESTFILES / "nn/WeightNorm.t7"))
    case = read(str(TESTFILES / "nn/WeightNorm.io.t7"))
    result = state_dict(root)
    assert list(result.tensors) == ["g", "v", "0.weight", "0.bias"]
    weights = {key: to_torch(tensor) for key, tensor in result.tensors.items()}
    output = nn.functional.linear(to_torch(case["input"]), weights["0.weight"], weights["0.bias"])
    np.testing.assert_allclose(output.numpy(), case["output"].numpy(), rtol=1e-4, atol=1e-5)


def test_bilinear():
    """Bilinear has a list of two inputs in Lua."""
    run("nn/Bilinear", lambda fields, root: nn.Bilinear(3, 4, size_of(root, "weight", 0)))


def conv2d(fields: Fields, root: TorchObject) -> Any:
    """torch.nn.Conv2d with the fields' sizes; releases without padW had a field padding, or none."""
    padding = fields.integer("padding", 0)
    return nn.Conv2d(
        fields.integer("nInputPlane"),
        fields.integer("nOutputPlane"),
        (fields.integer("kH"), fields.integer("kW")),
        (fields.integer("dH"), fields.integer("dW")),
        (fields.integer("padH", padding), fields.integer("padW", padding)),
        (fields.integer("dilationH", 1), fields.integer("dilationW", 1)),
        bias=fields.has("bias"),
    )


@pytest.mark.parametrize(
    "name",
    [
        "nn/SpatialConvolution",
        "nn/SpatialConvolution.single",
        "nn/SpatialConvolution.nobias",
        "nn/SpatialConvolutionMM",
        "nn/SpatialDilatedConvolution",
        "legacy/conv_mm_padding",
        "legacy/conv_weight_2d",
        "rnn/SpatialConvolution.dpnn",
    ],
)
def test_conv2d(name):
    """Kernels of four dimensions, and the matrices of SpatialConvolutionMM and of old files."""
    run(name, conv2d)


def test_depthwise():
    """SpatialDepthWiseConvolution is a grouped convolution whose outputs are ordered by input plane."""

    def make(fields, root):
        planes, times = fields.integer("nInputPlane"), fields.integer("nOutputPlane")
        return nn.Conv2d(planes, planes * times, (3, 3), padding=(1, 1), groups=planes)

    def forward(module, values):
        # Lua takes the height of the input for its width (SpatialDepthWiseConvolution.c), so it reads 8 x 9.
        return module(values.reshape(2, 3, 8, 9))

    run("nn/SpatialDepthWiseConvolution", make, forward)


def full2d(fields: Fields, root: TorchObject) -> Any:
    """torch.nn.ConvTranspose2d."""
    return nn.ConvTranspose2d(
        fields.integer("nInputPlane"),
        fields.integer("nOutputPlane"),
        (fields.integer("kH"), fields.integer("kW")),
        (fields.integer("dH"), fields.integer("dW")),
        (fields.integer("padH", 0), fields.integer("padW", 0)),
        (fields.integer("adjH", 0), fields.integer("adjW", 0)),
    )


@pytest.mark.parametrize("name", ["nn/SpatialFullConvolution", "legacy/fullconv_without_adj"])
def test_transposed_conv2d(name):
    """SpatialFullConvolution has the input planes first, as ConvTranspose2d has."""
    run(name, full2d)


@pytest.mark.parametrize("name", ["nn/TemporalConvolution", "nn/TemporalConvolution.single"])
def test_conv1d(name):
    """TemporalConvolution keeps (out, kW * in) with the kernel's columns first; time comes before features."""

    def make(fields, root):
        sizes = fields.integer("inputFrameSize"), fields.integer("outputFrameSize")
        return nn.Conv1d(*sizes, fields.integer("kW"), fields.integer("dW"))

    run(name, make, lambda layer, values: layer(values.transpose(-1, -2)).transpose(-1, -2))


def test_row_convolution():
    """TemporalRowConvolution has one kernel for each feature; this one has features before time."""

    def make(fields, root):
        planes = fields.integer("inputFrameSize")
        return nn.Conv1d(planes, planes, fields.integer("kW"), groups=planes)

    run("nn/TemporalRowConvolution", make)


def volume(kind: Any, fields: Fields, **options: Any) -> Any:
    """torch.nn.Conv3d or ConvTranspose3d."""

    def triple(name: str, default: int | None = None) -> tuple[int, ...]:
        return tuple(fields.integer(f"{name}{axis}", default) for axis in "THW")

    sizes = fields.integer("nInputPlane"), fields.integer("nOutputPlane")
    if kind is nn.ConvTranspose3d:
        options["output_padding"] = triple("adj", 0)
    else:
        options["dilation"] = triple("dilation", 1)
    return kind(*sizes, triple("k"), triple("d"), triple("pad", 0), **options)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nn/VolumetricConvolution", "Conv3d"),
        ("nn/VolumetricDilatedConvolution", "Conv3d"),
        ("nn/VolumetricFullConvolution", "ConvTranspose3d"),
    ],
)
def test_conv3d(name, kind):
    """Volumetric convolutions: time, height, width in the weights, whatever the order of the constructor."""
    run(name, lambda fields, root: volume(getattr(nn, kind), fields))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nn/BatchNormalization", "BatchNorm1d"),
        ("nn/BatchNormalization.noaffine", "BatchNorm1d"),
        ("nn/SpatialBatchNormalization", "BatchNorm2d"),
        ("nn/VolumetricBatchNormalization", "BatchNorm3d"),
        ("legacy/bn_running_std", "BatchNorm2d"),
    ],
)
def test_batch_norm(name, kind):
    """Batch normalization of every rank, without weights, and with the running_std of old releases."""

    def make(fields, root):
        return getattr(nn, kind)(size_of(root, "running_mean", 0), fields.number("eps"), affine=fields.flag("affine"))

    run(name, make)


def test_layer_norm():
    """LayerNormalization has LayerNorm's weights, but subtracts a batch's means in the wrong order."""
    root = read(str(TESTFILES / "nn/LayerNormalization.t7"))
    case = read(str(TESTFILES / "nn/LayerNormalization.io.t7"))
    result = state_dict(root)
    twin = nn.LayerNorm(6, eps=1e-10)
    twin.load_state_dict({key: to_torch(tensor) for key, tensor in result.tensors.items()}, strict=True)
    values = case["input"].numpy()
    means = np.tile(values.mean(1), (6, 1)).reshape(3, 6)  # Replicate adds a first dimension, CSubTable takes any shape
    centred = values - means
    normal = centred / np.sqrt((centred**2).sum(1, keepdims=True) + 1e-10) * np.sqrt(6)
    output = normal * twin.weight.detach().numpy() + twin.bias.detach().numpy()
    np.testing.assert_allclose(output, case["output"].numpy(), rtol=1e-4, atol=1e-5)
    assert "torch.nn.LayerNorm" in result.notes[0].message


@pytest.mark.parametrize("name", ["nn/LookupTable", "nn/LookupTable.padding"])
def test_embedding(name):
    """LookupTable counts its rows from 1."""
    run(name, lambda fields, root: nn.Embedding(*root["weight"].shape), lambda layer, at: layer(at.long() - 1))


def test_embedding_with_zero():
    """LookupTableMaskZero has a row more, for index 0."""
    run(
        "rnn/LookupTableMaskZero",
        lambda fields, root: nn.Embedding(*root["weight"].shape, padding_idx=0),
        lambda layer, at: layer(at.long()),
    )


@pytest.mark.parametrize("name", ["nn/PReLU", "nn/PReLU.shared"])
def test_prelu(name):
    """PReLU with a slope for each plane and with one for all."""
    run(name, lambda fields, root: nn.PReLU(max(1, fields.integer("nOutputPlane"))))


def test_index_linear():
    """IndexLinear's weight is the table of an EmbeddingBag that sums."""
    root = read(str(TESTFILES / "nn/IndexLinear.t7"))
    case = read(str(TESTFILES / "nn/IndexLinear.io.t7"))
    weights = {key: to_torch(tensor) for key, tensor in state_dict(root).tensors.items()}
    keys, values = (to_torch(item) for item in items_of(case["input"]))
    bag = nn.functional.embedding_bag((keys - 1)[None], weights["weight"], mode="sum", per_sample_weights=values[None])
    expected = case["output"].numpy()
    np.testing.assert_allclose((bag + weights["bias"]).reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


def rnn_forward(module: Any, values: Any) -> Any:
    """The sequence of outputs."""
    return module(values)[0]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", ["rnn/SeqLSTM", "rnn/SeqLSTM.batchfirst", "rnn/SeqLSTMP"])
def test_lstm(name):
    """SeqLSTM's gates are i, f, o, g; PyTorch's i, f, g, o. SeqLSTMP projects its outputs."""

    def make(fields, root):
        hidden, out = fields.integer("hiddensize"), fields.integer("outputsize")
        return nn.LSTM(
            fields.integer("inputsize"),
            hidden,
            batch_first=fields.flag("batchfirst"),
            proj_size=out if "weightO" in root else 0,
        )

    run(name, make, rnn_forward)


def test_whole_networks_load_strictly():
    """Sequential networks load into torch.nn.Sequential under the same names, buffers included."""
    root = read(str(TESTFILES / "models/dcgan_generator.t7"))
    module = Generator().main.eval()
    module.load_state_dict({key: to_torch(tensor) for key, tensor in state_dict(root).tensors.items()}, strict=True)
    case = read(str(TESTFILES / "models/dcgan_generator.io.t7"))
    with torch.no_grad():
        output = module(to_torch(case["input"]))
    np.testing.assert_allclose(output.numpy(), case["output"].numpy(), rtol=1e-4, atol=1e-5)
    assert list(state_dict(root).tensors) == list(module.state_dict())
