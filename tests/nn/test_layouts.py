"""Layout changes: views wherever a view can express them, and an inverse for each."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from t7bridge import Storage, Tensor, TorchObject
from t7bridge.errors import ModelError
from t7bridge.graph import FLOAT32
from t7bridge.layers import FIRST, REST, BlockOrder, Fields, Merge, Narrow, Permute, Reshape
from t7bridge.nn import DeviationToVariance, apply_layout, reshape, undo_layout, view

NO_FIELDS = Fields(TorchObject("nn.Test"))


def tensor_of(*size: int, order: tuple[int, ...] | None = None) -> Tensor:
    """The numbers from 0 on, with the dimensions in another order in memory."""
    base = Tensor.from_numpy(np.arange(int(np.prod(size)), dtype="f4").reshape(size))
    order = order or tuple(range(len(size)))
    return Tensor(
        FLOAT32, base.storage, tuple(base.size[dim] for dim in order), tuple(base.stride[dim] for dim in order)
    )


SHAPES = [(24,), (2, 12), (4, 6), (2, 3, 4), (1, 24), (24, 1), (2, 1, 3, 1, 4), (6, 4), (3, 8), (8, 3)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_view_agrees_with_numpy(subtests, order):
    """`view` has numpy's elements, and is a view in exactly those cases in which numpy needs no copy."""
    for shape in SHAPES:
        with subtests.test(shape=shape):
            source = tensor_of(2, 3, 4, order=order)
            array = source.numpy()
            shown = view(source, shape)
            expected = array.reshape(shape)
            assert (shown is not None) == np.shares_memory(array, expected)
            if shown is not None:
                shown.check()
                assert shown.storage is source.storage
                np.testing.assert_array_equal(shown.numpy(), expected)
            np.testing.assert_array_equal(reshape(source, shape).numpy(), expected)


@pytest.mark.parametrize(("shape", "other"), [((1, 0), (0,)), ((0, 3), (3, 0)), ((0,), (2, 0))], ids=str)
def test_view_without_elements(shape, other):
    """A tensor without elements takes any shape that has none either."""
    source = Tensor.from_numpy(np.zeros(shape, "f4"))
    shown = view(source, other)
    assert shown is not None
    shown.check()
    assert shown.numpy().shape == other


def test_view_of_repeated_elements():
    """A tensor that `expand` made stays a view, and never becomes as big as it looks."""
    storage = Storage.from_array(np.ones(1, "f4"))
    wide = Tensor(FLOAT32, storage, (10**6, 10**6), (0, 0))
    shown = view(wide, (10**3, 10**9))
    assert shown is not None
    assert shown.storage is storage
    with pytest.raises(ModelError, match="repeats the elements"):
        BlockOrder((1, 0)).apply(wide, NO_FIELDS)


LAYOUTS = {
    "kernel": ((4, 18), (Reshape((FIRST, REST, 3, 2)),)),
    "temporal": ((4, 6), (Reshape((FIRST, 3, REST)), Permute((0, 2, 1)))),
    "turned": ((2, 3, 4), (Permute((2, 0, 1)),)),
    "depthwise": ((2, 3, 4), (Merge((1, 0, 2), (REST, 1, 4)),)),
    "gates": ((8, 2), (BlockOrder((0, 1, 3, 2)),)),
    "lstm": ((3, 8), (Permute((1, 0)), BlockOrder((2, 0, 3, 1)))),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_have_an_inverse(name):
    """Undoing a layout restores the same Lua tensor."""
    size, layout = LAYOUTS[name]
    source = tensor_of(*size)
    changed = apply_layout(layout, source, NO_FIELDS)
    back = undo_layout(layout, changed, source, NO_FIELDS)
    assert back.size == source.size
    np.testing.assert_array_equal(back.numpy(), source.numpy())


def test_deviation_and_variance():
    """running_std holds 1 / sqrt(variance + eps); both directions."""
    fields = Fields(TorchObject("nn.BatchNormalization"), "root", {"eps": 1e-3})
    variance = np.array([0.5, 1, 2], "f4")
    source = Tensor.from_numpy((variance + 1e-3) ** -0.5)
    step = DeviationToVariance()
    changed = step.apply(source, fields)
    np.testing.assert_allclose(changed.numpy(), variance, rtol=1e-5)
    np.testing.assert_allclose(step.undo(changed, source.size, fields).numpy(), source.numpy(), rtol=1e-6)


def test_parts_are_views():
    """A part of a tensor starts at its own offset in the same storage."""
    source = tensor_of(4, 6)
    part = Narrow(0, 1, REST).apply(source, NO_FIELDS)
    assert (part.storage, part.offset, part.size) == (source.storage, 6, (3, 6))
    with pytest.raises(ModelError, match="too small"):
        Narrow(0, 3, 2).apply(source, NO_FIELDS)


def test_wrong_shapes_are_refused():
    """A kernel whose fields contradict its number of elements, and a tensor that does not fit back into Lua's model."""
    with pytest.raises(ModelError, match="cannot have this shape"):
        Reshape((FIRST, 5, 3)).apply(tensor_of(4, 18), NO_FIELDS)
    with pytest.raises(ModelError, match="another shape"):
        undo_layout((Permute((1, 0)),), tensor_of(3, 2), tensor_of(3, 2), NO_FIELDS)
