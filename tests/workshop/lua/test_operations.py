"""Each operation of the table: what is loaded from the saved case computes what PyTorch did, and has its gradients."""

from __future__ import annotations

import inspect
import json
import os
from functools import wraps

import pytest
import torch
from attrs import evolve
from lua_nets import flat
from lua_operations import CASES, allowed, case_of

import t7bridge
from t7bridge.errors import UnsupportedError
from t7bridge.workshop.lua import operations
from t7bridge.workshop.lua.build import OF_COMPLEX, OPERATIONS


class Diagonal(torch.nn.Module):
    """Doubles the diagonal of each matrix in place."""

    def forward(self, x):
        y = x + 0
        y.diagonal(0, 1, 2).mul_(2)
        return y


class Quotient(torch.nn.Module):
    """Divides and rounds."""

    def forward(self, x):
        return torch.div(x, 0.25, rounding_mode="floor") * x


# Cases that Lua has not recorded with the others, and what each may need: `testfiles/lua/values.t7` has quotients.
UNRECORDED = {
    "diagonal": (Diagonal(), [torch.randn(2, 3, 3)], ()),
    "alpha dropout": (
        torch.nn.Sequential(torch.nn.AlphaDropout(0.3), torch.nn.Tanh(), torch.nn.FeatureAlphaDropout(0.2)).eval(),
        [torch.randn(2, 5)],
        (),
    ),
    "quotient": (Quotient(), [torch.randn(2, 5)], ("layers",)),
}


def check(name, path):
    """Outputs and gradients of inputs and weights are those of PyTorch."""
    module, inputs, allow = UNRECORDED[name] if name in UNRECORDED else (*case_of(name), allowed(name))
    t7bridge.save_module(module, path, example_inputs=inputs, allow=allow, force=True)
    again = t7bridge.load_module(path)
    results = []
    for one, packed in ((module, False), (again, True)):
        own = [value.clone().requires_grad_(value.is_floating_point()) for value in inputs]
        outputs = flat(one(own if len(own) > 1 else own[0]) if packed else one(*own))
        total = sum((output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum() for output in outputs)
        if total.requires_grad:
            total.backward()
        results.append((outputs, [value.grad for value in own if value.is_floating_point()]))
    (want, slopes), (got, own_slopes) = results
    for a, b in zip([*got, *own_slopes], [*want, *slopes], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class Search(torch.nn.Module):
    """Counts boundaries below values."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return torch.searchsorted(torch.tensor([3.0, 1.0, 2.0]).sort().values, x, **self.options) * 1.0


class Edges(torch.nn.Module):
    """Counts boundaries of a buffer."""

    def __init__(self, edges):
        super().__init__()
        self.register_buffer("edges", torch.tensor(edges))

    def forward(self, x):
        return torch.bucketize(x, self.edges) * 1.0


class Enlarged(torch.nn.Module):
    """Repeats elements of images, by factors that are not the quotient of the sizes."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return torch.nn.functional.interpolate(x, scale_factor=self.factor)


class Variances(torch.nn.Module):
    """Divides by 0."""

    def forward(self, x):
        return torch.var(x, 1, correction=6)


class Windows(torch.nn.Module):
    """Transforms windows of ones, the half of which is 0."""

    def forward(self, x):
        return torch.stft(x, 8, win_length=4, center=False, return_complex=True).abs()


def test_sides_of_a_search_are_those_of_pytorch(subtests, tmp_path):
    """`side` counts as `right` does."""
    path = tmp_path / "model.t7"
    x = torch.tensor([[0.0, 1.0, 1.5, 3.0, 4.0]])
    for options in ({"side": "left"}, {"side": "right"}, {"right": True}, {}):
        with subtests.test(options=options):
            module = Search(**options)
            t7bridge.save_module(module, path, example_inputs=[x], force=True)
            assert torch.equal(t7bridge.load_module(path)(x).float(), module(x))


class ScaledUnits(torch.nn.Module):
    """Scales negative elements of its input."""

    def forward(self, x):
        return torch.ops.aten.elu(x, 1.5, 1.2, 0.5)


def test_exponential_units_scale_negative_inputs_only(tmp_path):
    """The third number of `aten.elu` is for what is negative."""
    path = tmp_path / "model.t7"
    x = torch.linspace(-2, 2, 9).view(1, 9)
    t7bridge.save_module(ScaledUnits(), path, example_inputs=[x])
    torch.testing.assert_close(t7bridge.load_module(path)(x), ScaledUnits()(x))


def test_nearest_elements_are_those_of_pytorch(subtests, tmp_path):
    """PyTorch goes by a stated factor, but where the sizes are doubled."""
    path = tmp_path / "model.t7"
    x = torch.arange(8.0).view(1, 2, 2, 2)
    for factor in (1.2, 2.4, 3.0, 3.4, (3.4, 3.0), (2.0, 3.0)):
        with subtests.test(factor=factor):
            module = Enlarged(factor)
            t7bridge.save_module(module, path, example_inputs=[x], force=True)
            assert torch.equal(t7bridge.load_module(path)(x), module(x))


class Converted(torch.nn.Module):
    """Multiplies by its input, as one element type and then another, and by its weight as the last one."""

    def __init__(self, *dtypes):
        super().__init__()
        self.dtypes = dtypes
        self.weight = torch.nn.Parameter(torch.tensor([0.0, 1.5, -2.25, 0.5]))

    def forward(self, x):
        value = x
        for dtype in self.dtypes:
            value = value.to(dtype)
        return x * value * self.weight.to(self.dtypes[-1])


class FilledAndConverted(torch.nn.Module):
    """Multiplies by a number for each example, as whole numbers and as a mask."""

    def forward(self, x):
        numbers = torch.full((x.shape[0], 1), 2.5)
        return x * numbers.int() + numbers.bool()


class ComparedWithFractions(torch.nn.Module):
    """Compares whole numbers with fractions, one of which is a parameter."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.5]))

    def forward(self, x):
        masks = [x > 1.5, x < 0.25, x >= -0.5, x <= 0.3, x == 0.5, x != 0.5, (x > 0) > 0.5, x > self.weight]
        return torch.stack([mask.float() for mask in masks])


@pytest.mark.slow
def test_whole_numbers_are_compared_with_fractions(tmp_path):
    """Their difference is not a whole number: masks are 0 and 1 all the same."""
    path = tmp_path / "model.t7"
    module = ComparedWithFractions()
    x = torch.tensor([[-2, -1, 0, 1, 2]])
    t7bridge.save_module(module, path, example_inputs=[x], force=True)
    assert torch.equal(t7bridge.load_module(path)(x), module(x))


class SamePosition(torch.nn.Module):
    """Takes, and replaces, the same position as often as there are examples."""

    def __init__(self, put):
        super().__init__()
        self.put = put

    def forward(self, x):
        positions = torch.full((x.shape[0],), -1)
        rows = x.t()
        return rows.index_put((positions,), rows[:1] * 2) if self.put else rows[positions] * 2


@pytest.mark.slow
def test_positions_that_are_repeated_for_each_example(subtests, tmp_path):
    """One constant stands for all of them."""
    path = tmp_path / "model.t7"
    for put in (False, True):
        with subtests.test(put=put):
            module = SamePosition(put)
            x = torch.randn(3, 4)
            t7bridge.save_module(module, path, example_inputs=[x], force=True)
            torch.testing.assert_close(t7bridge.load_module(path)(x), module(x))


class RealWindows(torch.nn.Module):
    """Transforms windows to pairs of real numbers, whose signs it leaves out."""

    def forward(self, x):
        return torch.stft(x, 8, window=torch.hann_window(8), center=False, return_complex=False).abs()


@pytest.mark.filterwarnings("ignore:stft with return_complex=False")
@pytest.mark.slow
def test_conversions_of_elements_are_those_of_pytorch(subtests, tmp_path):
    """Whole numbers become masks of 0 and 1, also those of parameters; pairs of `stft` are real numbers."""
    path = tmp_path / "model.t7"
    x = torch.tensor([[0.0, 1.5, -2.25, 3.0], [0.9, -0.9, 4.5, 0.0]])
    cases = [(Converted(*dtypes), x) for dtypes in ((torch.int64, torch.bool), (torch.int32,), (torch.bool,))]
    cases += [(FilledAndConverted(), x), (RealWindows(), torch.randn(2, 24))]
    for module, example in cases:
        with subtests.test(module=str(module), dtypes=getattr(module, "dtypes", None)):
            t7bridge.save_module(module, path, example_inputs=[example], force=True)
            torch.testing.assert_close(t7bridge.load_module(path)(example), module(example), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_single_images_are_pooled(subtests, tmp_path):
    """Without a batch, the channels of an image are not the rows of signals."""
    path = tmp_path / "model.t7"
    nn = torch.nn
    cases = [
        (nn.AdaptiveAvgPool2d((3, 2)), (3, 6, 8)),
        (nn.AdaptiveMaxPool2d(2), (3, 6, 8)),
        (nn.AdaptiveAvgPool3d(2), (3, 6, 8, 4)),
        (nn.AvgPool2d(3, 2, 1), (3, 6, 8)),
        (nn.MaxPool2d(1, 2), (3, 6, 8)),
        (nn.AvgPool1d(2), (3, 6)),
        (nn.MaxPool1d(2), (3, 6)),
    ]
    for module, shape in cases:
        with subtests.test(module=str(module)):
            x = torch.randn(shape)
            t7bridge.save_module(module, path, example_inputs=[x], force=True)
            torch.testing.assert_close(t7bridge.load_module(path)(x), module(x))


@pytest.mark.parametrize(
    ("module", "x", "message"),
    [
        (torch.nn.ConvTranspose2d(3, 2, 1), torch.rand(3, 6, 8), "the input is not a batch"),
        (Search(sorter=torch.tensor([0, 1, 2])), torch.rand(1, 5), "the boundaries are not sorted"),
        (Edges([2.0, 1.0]), torch.rand(1, 5), "the boundaries are not sorted"),
        (Edges([1.0, float("nan")]), torch.rand(1, 5), "the boundaries are not sorted"),
        (Windows(), torch.rand(2, 16), "the window is shorter than the transform"),
        (Variances(), torch.rand(2, 5), "no more elements than its divisor is less"),
    ],
)
def test_options_without_layers_are_refused(module, x, message, tmp_path):
    """An option that changes what is computed is built or refused, and never ignored."""
    with pytest.raises(UnsupportedError, match=message):
        t7bridge.save_module(module, tmp_path / "model.t7", example_inputs=[x])


# Arguments of ATen's operations that no builder has to take. Of some, the shape of the result has all.
OF_SHAPE = """size sizes shape dim start_dim end_dim other self keepdim end output_size implicit
    split_size split_sizes chunks sections"""
# The others choose types, memory and algorithms; evaluation has no `train` and no random numbers; windows of `stft`
# have its size.
WITHOUT_EFFECT = """dtype layout device pin_memory memory_format non_blocking copy half_to_float out_int32
    compute_mode sorted stable sparse sparse_grad cudnn_enable cudnn_enabled train generator
    align_to_window"""


def test_builders_take_all_arguments_that_matter():
    """What a builder has no parameter for does not change the elements of the result."""
    assert operations.shape  # which fills the table
    needless = {*OF_SHAPE.split(), *WITHOUT_EFFECT.split()}
    for table in (OPERATIONS, OF_COMPLEX):
        for name, entry in table.items():
            library, packet, overload = name.split(".")
            operation = getattr(getattr(getattr(torch.ops, library), packet), overload, None)
            if operation is None:  # of another version of PyTorch
                continue
            _, *parameters = inspect.signature(entry.build).parameters.values()  # the first is the builder
            if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
                continue
            by_position = sum(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters)
            names = [argument.name for argument in operation._schema.arguments[by_position:]]
            taken = {parameter.name for parameter in parameters}
            assert needless.issuperset(set(names) - taken), name


SHARDS = 6


@pytest.fixture
def without_cached_shapes():
    """PyTorch keeps the shapes of operations for a trace, which has each operation once here: 15 % of the time."""
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.usefixtures("without_cached_shapes")
def test_operations(subtests, tmp_path, tmp_path_factory, monkeypatch, shard):
    """Each case computes what PyTorch does, and each entry of the table is used by one."""
    assert operations.shape  # which fills the table
    used = set()

    def counted(entry):
        @wraps(entry.build)
        def build(*args, **kwargs):
            used.add(entry.names)
            return entry.build(*args, **kwargs)

        return evolve(entry, build=build)

    for table in (OPERATIONS, OF_COMPLEX):
        for name, entry in list(table.items()):
            monkeypatch.setitem(table, name, counted(entry))

    monkeypatch.setattr("t7bridge.workshop.lua.trace.notes_on_modes", lambda *args: [])  # test_save_module.py
    for name in [*CASES, *UNRECORDED][shard::SHARDS]:
        with subtests.test(name):
            check(name, tmp_path / "m.t7")
    assert not {entry.names for entry in OPERATIONS.values()} - used_by_all(used, shard, tmp_path_factory)


def used_by_all(used, shard, tmp_path_factory):
    """Return the entries that all shards used; while others run, in this or another worker, every entry."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers of this run
    (folder / f"operations.{shard}.new").write_text(json.dumps(sorted(used)))
    (folder / f"operations.{shard}.new").rename(folder / f"operations.{shard}.json")
    finished = list(folder.glob("operations.*.json"))
    if len(finished) < SHARDS:
        return {entry.names for entry in OPERATIONS.values()}
    return {tuple(names) for path in finished for names in json.loads(path.read_text())}


class TransposedKernel(torch.nn.Module):
    """Convolves signals with a matrix that is transposed to a kernel."""

    def __init__(self, convolve):
        super().__init__()
        self.convolve = convolve
        self.weight = torch.nn.Parameter(torch.randn(5, 3))
        self.bias = torch.nn.Parameter(torch.randn(1 if convolve is torch.conv1d else 3))

    def forward(self, x):
        return self.convolve(x, self.weight[None].mT, self.bias)


@pytest.mark.slow
def test_transposed_kernels_of_signals_are_transposed_by_the_model(tmp_path):
    """No layer holds them: the height that a signal gets is between the two dimensions that are exchanged."""
    for convolve, channels in ((torch.conv1d, 3), (torch.conv_transpose1d, 1)):
        module = TransposedKernel(convolve).eval()
        x = torch.randn(2, channels, 9)
        with pytest.raises(UnsupportedError, match="the weight is computed, or is not a parameter"):
            t7bridge.save_module(module, tmp_path / "refused.t7", [x])
        path = tmp_path / f"{convolve.__name__}.t7"
        t7bridge.save_module(module, path, [x], allow=("layers",), force=True)
        torch.testing.assert_close(t7bridge.load_module(path)(x), module(x), rtol=1e-5, atol=1e-5)
