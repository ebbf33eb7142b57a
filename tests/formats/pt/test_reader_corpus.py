"""Every `.pt` of the corpus: reads with no option stated, and means what PyTorch saw in it."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
import torch
from helpers import corpus, name_of, storages
from pt_helpers import PT, described, golden, torch_describe

from t7bridge import PtReader
from t7bridge.formats import is_module, module_state_dict
from t7bridge.graph import QuantizedTensor, Span, SparseTensor
from t7bridge.values import describe_python

ALL = corpus("pt/*.pt")
WITH_JSON = [path for path in ALL if (path.parent / (path.name[:-3] + ".json")).exists()]
CPP = corpus("pt/cpp_*.pt")


def kind_of(path: Path) -> str:
    """Return the kind of a file of the corpus by its name."""
    if ".legacy" in path.name:
        return "legacy"
    known = {"tar": "tar", "torchscript": "torchscript", "cpp": "cpp"}
    return known.get(path.name.partition("_")[0], "zip")


def test_describes_what_pytorch_saw(subtests):
    """The description is that of PyTorch: values, types, order, sharing, views, every byte."""
    for path in WITH_JSON:
        with subtests.test(name_of(path)):
            assert golden(path) == described(path)


def test_knows_the_generation(subtests):
    """The release that wrote a file is detected from its content, also in memory."""
    for path in ALL:
        with subtests.test(name_of(path)):
            assert kind_of(path) == PtReader(path).kind == PtReader(path.read_bytes()).kind


def test_no_corpus_file_has_foreign_globals(subtests):
    """Everything in the files that PyTorch wrote of its own values has a meaning."""
    for path in ALL:
        with subtests.test(name_of(path)):
            reader = PtReader(path)
            reader.read()

            assert reader.foreign == []


def test_storages_stay_in_the_file(subtests):
    """No storage is read: each knows where its bytes are."""
    for path in ALL:
        with subtests.test(name_of(path)):
            reader = PtReader(path)

            for storage in storages(reader.read()):
                assert isinstance(storage.data, Span)
                assert storage.data.source is reader.source


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated")
@pytest.mark.parametrize("path", CPP, ids=name_of)
def test_archives_of_the_cpp_api(path):
    """Tensors and names are those that `torch.jit.load` sees; the attributes are there besides."""
    reader = PtReader(path)
    value = reader.read()
    state = collections.OrderedDict((name, item) for name, item in value.items() if name not in reader.attributes)

    assert torch_describe(collections.OrderedDict(torch.jit.load(path).state_dict())) == describe_python(state)


def test_attributes_of_an_optimizer():
    """Values of a C++ archive that are not tensors are data with a dotted name."""
    value = PtReader(PT / "cpp_adam.pt").read()

    assert value["pytorch_version"] == "1.5.0"
    assert value["param_groups.param_groups/0.options.betas"] == (0.9, 0.999)


def test_a_whole_module_gives_its_state_dict():
    """An `nn.Module` is an opaque object whose state dict is PyTorch's."""
    module = PtReader(PT / "whole_module.pt").read()
    theirs = torch.load(PT / "whole_module.pt", weights_only=False)

    assert is_module(module)
    assert module.path == "torch.nn.modules.container.Sequential"
    assert torch_describe(theirs.state_dict()) == describe_python(module_state_dict(module))
    assert all(item.is_parameter for item in module_state_dict(module, keep_parameters=True).values())


def test_a_cycle_reads():
    """A list that holds itself is a list that holds itself."""
    value = PtReader(PT / "cycle.pt").read()

    assert value["shared"][1] is value["shared"]


def test_a_sparse_tensor():
    """Indices, values and size of a sparse tensor are those that PyTorch has."""
    value = PtReader(PT / "sparse_coo.pt").read()
    theirs = torch.load(PT / "sparse_coo.pt")

    assert isinstance(value, SparseTensor)
    assert value.layout == "sparse_coo"
    assert value.size == (2, 2)
    assert value.indices.numpy().tolist() == theirs._indices().tolist()
    assert value.values.numpy().tolist() == theirs._values().tolist()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor():
    """A quantized tensor keeps its integers, scale and zero point."""
    value = PtReader(PT / "quantized.pt").read()
    theirs = torch.load(PT / "quantized.pt")

    assert isinstance(value, QuantizedTensor)
    assert (value.scheme, value.scale, value.zero_point) == (
        "per_tensor_affine",
        theirs.q_scale(),
        theirs.q_zero_point(),
    )
    assert value.tensor.numpy().tolist() == theirs.int_repr().tolist()
    assert torch_describe(theirs) == describe_python(value)


def test_conjugate_and_negative_views():
    """The bits that PyTorch keeps instead of computing are carried out for numpy."""
    value = PtReader(PT / "conj_neg.pt").read()
    theirs = torch.load(PT / "conj_neg.pt")

    assert value["conj"].numpy().tolist() == theirs["conj"].tolist()
    assert value["neg"].numpy().tolist() == theirs["neg"].tolist()
