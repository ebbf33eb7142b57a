"""Modules of modules, besides torch.nn.Sequential."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Layer, joined, map_nested, up_to_none, with_batch

Link = tuple[int, tuple[int, ...]]
"""The number of a node, and the path to an element of its output; an empty path for all
of it.
"""


class Graph(nn.Sequential):
    """Modules connected as a directed acyclic graph.

    Args:
        modules: the modules by name.
        nodes: for each step the name of its module, or `None` for the identity, and its
            inputs: the numbers of other nodes and the selected elements of their
            outputs. Node 0 is the input, the first step node 1.
        outputs: the outputs, in the same form.
        returns_list: whether to return a list.
    """

    def __init__(
        self,
        modules: OrderedDict[str, nn.Module],
        *,
        nodes: tuple[tuple[str | None, tuple[Link, ...]], ...],
        outputs: tuple[Link, ...],
        returns_list: bool,
    ) -> None:
        super().__init__(modules)
        # For each node after the input: the name of its module, `None` for the
        # identity, and where its inputs come from.
        self.nodes = nodes
        self.outputs = outputs  # where they come from
        self.returns_list = returns_list  # else there is one output

    def forward(self, input: Any) -> Any:
        """Map the inputs to the outputs of the graph in Lua: one value, or a list."""
        values = [input]  # of each node, by its number
        for name, links in self.nodes:
            inputs = [self._fetch(values, link) for link in links]
            value = inputs[0] if len(inputs) == 1 else inputs
            if name is not None:
                value = self._modules[name](value)
            values.append(value)
        results = [self._fetch(values, link) for link in self.outputs]
        return results if self.returns_list else results[0]

    def _fetch(self, values: list[Any], link: Link) -> Any:
        """Return the output of a node, or the element of it that a path leads to."""
        node, path = link
        value = values[node]
        for index in path:
            value = value[index]
        return value


class Stateful(Graph):
    """A graph whose inputs after the first are states, and its outputs after the first
    the new ones. Arguments as for `Graph`.
    """

    def forward(self, input: Any, *states: Any) -> Any:
        """Take the input and states, `None` for those of a beginning; return the output
        and the new states.
        """
        # All outputs but the first are states.
        missing = [None] * (len(self.outputs) - 1 - len(states))
        return tuple(super().forward([input, *states, *missing]))


class Concat(nn.Sequential):
    """Applies each module to its input and concatenates the outputs.

    Args:
        modules: the modules.
        dim: the dimension, counted with the batch.
    """

    def __init__(self, *modules: nn.Module, dim: int) -> None:
        super().__init__(*modules)
        self.dim = dim

    def forward(self, input: Any) -> Tensor:
        """Return one tensor."""
        return joined([module(input) for module in self], self.dim)


class TypedConcat(Concat):
    """As `Concat`, for outputs of several element types.

    Args:
        modules, dim: as in `Concat`.
        dtype: the element type of the output.
    """

    def __init__(self, *modules: nn.Module, dim: int, dtype: str) -> None:
        super().__init__(*modules, dim=dim)
        self.dtype: torch.dtype = getattr(torch, dtype)

    def forward(self, input: Any) -> Tensor:
        """Return one tensor."""
        return joined([module(input) for module in self], self.dim, self.dtype)


class DepthConcat(nn.Sequential):
    """As `Concat`, for outputs of different sizes: smaller ones are centred among
    zeros.

    Args:
        modules: the modules.
        dim: the dimension, counted with the batch.
        dtype: the element type of the output; `None` for that of the modules' outputs.
    """

    def __init__(self, *modules: nn.Module, dim: int, dtype: str | None = None) -> None:
        super().__init__(*modules)
        self.dim = dim
        self.dtype: torch.dtype | None = getattr(torch, dtype) if dtype else None

    def forward(self, input: Any) -> Tensor:
        """Return one tensor, as large as the largest output in every other
        dimension.
        """
        outputs = [module(input) for module in self]
        shapes = [output.shape for output in outputs]
        largest = [max(extents) for extents in zip(*shapes)]
        padded = []
        for output in outputs:
            borders: list[int] = []
            # torch pads from the last dimension on.
            for dim in range(output.dim() - 1, -1, -1):
                missing = largest[dim] - output.size(dim)
                # The joined dimension is not padded; `self.dim` may be negative.
                if dim == self.dim % output.dim():
                    missing = 0
                borders += [missing // 2, missing - missing // 2]
            padded.append(F.pad(output, borders))
        return joined(padded, self.dim, self.dtype)


class ConcatTable(nn.Sequential):
    """Applies each module to its input."""

    def forward(self, input: Any) -> list[Any]:
        """Return the outputs of all modules, up to the first that is `None`."""
        return up_to_none([module(input) for module in self])


class ParallelTable(nn.Sequential):
    """Applies one module to each element of a list, or to `None` where there are fewer;
    other elements are ignored.
    """

    def forward(self, inputs: list[Any]) -> list[Any]:
        """Return the outputs of all modules, up to the first that is `None`."""
        outputs = []
        # Not `zip`: slices of a tensor, one at a time, may be changed in place.
        for index, module in enumerate(self):
            input = inputs[index] if index < len(inputs) else None
            outputs.append(module(input))
        return up_to_none(outputs)


class Parallel(nn.Sequential):
    """Applies one module to each slice of its input and concatenates the outputs.

    Args:
        modules: the modules.
        input_dim: the dimension of the slices.
        output_dim: the dimension along which outputs are concatenated.
        dtype: the element type of the output; `None` for that of the modules' outputs.
    """

    def __init__(
        self,
        *modules: nn.Module,
        input_dim: int,
        output_dim: int,
        dtype: str | None = None,
    ) -> None:
        super().__init__(*modules)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.dtype: torch.dtype | None = getattr(torch, dtype) if dtype else None

    def forward(self, input: Tensor) -> Tensor:
        """Return one tensor."""
        count = input.size(self.input_dim)
        slices = [input.select(self.input_dim, index) for index in range(count)]
        outputs = [self[index](part) for index, part in enumerate(slices)]
        return joined(outputs, self.output_dim, self.dtype)


class MapTable(nn.Sequential):
    """Applies the same module to each element of a list, or a clone of it.

    Modules inside that keep a state from call to call keep one for each element. So do
    the statistics of batch normalizations: those of elements without a module of their
    own begin as the first module's, and are not in the state dict.

    Args:
        modules: one for all elements; or for the first elements, and the first of these
            for the others.

    Attributes:
        state: for each element so far, the states of the modules inside; `None` before
            the first.
        statistics: the buffers of each element without a module of its own.
        most: the largest number of elements so far, or of modules.
    """

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.state: Any = None
        self.statistics: list[list[Tensor]] = []
        self.most = len(modules)

    def forward(self, inputs: list[Any]) -> list[Any]:
        """Return the output for each element; change `most`, `state` and
        `statistics`.
        """
        # Through `vars`: a page of source takes a class that assigns to `self` for one
        # with a state of its own, and what is set here is of the modules inside.
        # Like Lua's clones, elements of a longer list stay after a shorter one.
        vars(self)["most"] = max(self.most, len(inputs))
        statistics_places = self._statistics_places()
        self._add_statistics(statistics_places)
        state_places = self._state_places()
        states = self._states_of_elements(len(inputs), state_places)
        outputs = []
        for index, input in enumerate(inputs):
            # Most elements share the first module, which resumes from their states.
            for (module, name), value in zip(state_places, states[index]):
                vars(module)[name] = value
            outputs.append(self._output(index, input, statistics_places))
            states[index] = [getattr(module, name) for module, name in state_places]
        if state_places:  # else the elements have no states
            vars(self)["state"] = states
        return outputs

    def _states_of_elements(self, count: int, places: list[Any]) -> list[Any]:
        """Return the states before this call of at least `count` elements, each a list
        of values for the places.

        A new element begins like a clone of the first module.

        Args:
            count: number of elements.
            places: of the values, see `_state_places`.
        """
        states = self.state or []  # none before the first call, and after `forget`
        if states:
            state_of_new = states[0]
        else:  # what the file, or `forget`, left in the modules
            state_of_new = [getattr(module, name) for module, name in places]
        return states + [state_of_new] * (count - len(states))

    def _state_places(self) -> list[Any]:
        """Return the modules inside that keep something of their last call, each with
        the name of an attribute that has it.
        """
        # `hidden` is the state of a layer of torch.nn, `state` that of any other;
        # `trained_last` goes with both.
        return [
            (module, name)
            for module in self.modules()
            for name in ("state", "hidden", "trained_last")
            if module is not self and hasattr(module, name)
        ]

    def _statistics_places(self) -> list[Any]:
        """Return the modules in the first module that have statistics, each with the
        name of a buffer that has them.
        """
        if not len(self):
            return []
        return [
            (module, name)
            for module in self[0].modules()
            for name, _ in module.named_buffers(recurse=False)
        ]

    def _add_statistics(self, places: list[Any]) -> None:
        """In training, give each element that has neither a module nor statistics of
        its own copies of the first module's statistics.

        These are elements up to `most`: Lua cloned the module when it first saw so
        many.

        Args:
            places: of the statistics, see `_statistics_places`.
        """
        # An exported program has no place for more than the statistics of the module.
        if torch.compiler.is_compiling():
            return
        # In evaluation no statistics change, and those of the first will do.
        if not any(module.training for module, _ in places):
            return
        for _ in range(len(self) + len(self.statistics), self.most):
            copies = [module.get_buffer(name).clone() for module, name in places]
            self.statistics.append(copies)

    def _output(self, index: int, input: Any, places: list[Any]) -> Any:
        """Return the output for an element, with its own module or statistics.

        Args:
            index: of the element.
            input: the element.
            places: of the statistics in the first module, see `_statistics_places`.
        """
        if index < len(self):
            return self[index](input)
        # The first elements have modules of their own, the others may have statistics.
        number = index - len(self)
        if number >= len(self.statistics):  # not trained yet
            return self[0](input)
        return self._output_with(self.statistics[number], input, places)

    def _output_with(
        self, statistics: list[Tensor], input: Any, places: list[Any]
    ) -> Any:
        """Return the first module's output with other statistics than its own, which
        are replaced in the list by those after the call.

        Args:
            statistics: a tensor for each place.
            input: the input.
            places: of the statistics in the first module, see `_statistics_places`.
        """
        own = [module.get_buffer(name) for module, name in places]
        try:
            for (module, name), buffer in zip(places, statistics):
                setattr(module, name, buffer)
            output = self[0](input)
            statistics[:] = [module.get_buffer(name) for module, name in places]
        finally:
            for (module, name), buffer in zip(places, own):
                setattr(module, name, buffer)
        return output

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Change the type or device of the statistics too."""
        vars(self)["statistics"] = [[*map(fn, own)] for own in self.statistics]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


class SharedParallelTable(Layer):
    """Applies the same module to each element of a list.

    Args:
        unit: the module.
    """

    unit: nn.Module

    def forward(self, inputs: list[Any]) -> list[Any]:
        """Return the output for each element."""
        return [self.unit(inputs[index]) for index in range(len(inputs))]


class Bottle(nn.Sequential):
    """Lets a module accept additional dimensions: leading ones are merged into one for
    it.

    Args:
        module: the module.
        n_input_dims: dimensions of its input.
        n_output_dims: dimensions of its output.
    """

    def __init__(
        self, module: nn.Module, n_input_dims: int = 2, n_output_dims: int = 2
    ) -> None:
        super().__init__(module)
        self.n_input_dims = n_input_dims
        self.n_output_dims = n_output_dims

    def forward(self, input: Tensor) -> Tensor:
        """Return the output of the module, with the leading dimensions as they were."""
        # So many dimensions become the first one of the module's input.
        leading = input.dim() - self.n_input_dims + 1
        if leading <= 1:
            not_merged: Tensor = self[0](input)
            return not_merged
        output: Tensor = self[0](input.flatten(0, leading - 1))
        return output.reshape(*input.shape[:leading], *output.shape[1:])


class Batched(nn.Sequential):
    """Modules in sequence that see a batch, of one where they are given one image."""

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same dimensions."""
        return with_batch(super().forward, input, 4)


class DontCast(nn.Sequential):
    """A module that keeps its own element type inside a model of another.

    Args:
        module: the module.
        inside: the type to which inputs are converted; `None` to leave them.
        outside: the type to which outputs are converted; `None` to leave them.
    """

    def __init__(
        self, module: nn.Module, inside: str | None = None, outside: str | None = None
    ) -> None:
        super().__init__(module)
        self.inside = inside
        self.outside = outside

    def forward(self, input: Any) -> Any:
        """Return the output of the module."""
        return self._cast(self[0](self._cast(input, self.inside)), self.outside)

    def _cast(self, value: Any, dtype: str | None) -> Any:
        if dtype is None:
            return value
        return map_nested(lambda part: part.to(getattr(torch, dtype)), value)


class WeightNorm(nn.Sequential):
    """A module whose weight is g * v / |v|: a length and a direction for each output.

    Args:
        module: a module with a `weight`, which becomes a buffer.
        dim: the dimension of the outputs in the weight.
        length_shape: of g: (outputs) or (outputs, 1).
        direction_shape: of v: (outputs, all other extents together).
        lua_shape: the shape of Lua's weight; `None` if it is that of the module's.
        order: the permutation that makes the module's weight of Lua's, after this is
            viewed in the shape that it has then; `None` if the view is the weight.
    """

    def __init__(
        self,
        module: nn.Module,
        dim: int,
        length_shape: tuple[int, ...],
        direction_shape: tuple[int, int],
        lua_shape: tuple[int, ...] | None = None,
        order: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(module)
        self.dim = dim  # of Lua's weight
        self.lua_shape = lua_shape  # `None`: the shape of the module's weight
        self.order = order  # of Lua's dimensions there; `None`: the same
        weight = module.weight
        assert isinstance(weight, Tensor)
        # No parameter: it is computed from g and v, which are learned.
        del module.weight
        module.register_buffer("weight", weight.detach())
        self.g = nn.Parameter(torch.ones(length_shape))
        self.v = nn.Parameter(torch.ones(direction_shape))

    def forward(self, input: Any) -> Any:
        """Return the output of the module with the weight computed from g and v."""
        buffer = self[0].weight
        assert isinstance(buffer, Tensor)
        shape = buffer.shape
        lua_weight = self._lua_weight(self.lua_shape or tuple(shape))
        if self.order is None:
            weight = lua_weight.reshape(shape)
        else:
            # The shape that becomes the module's by the permutation.
            unpermuted = [shape[self.order.index(dim)] for dim in range(len(shape))]
            weight = lua_weight.reshape(unpermuted).permute(self.order)
        # As in Lua, the weight is kept, though it is computed.
        with torch.no_grad():
            buffer.copy_(weight)
        return torch.func.functional_call(self[0], {"weight": weight}, (input,))

    def _lua_weight(self, shape: tuple[int, ...]) -> Tensor:
        """Return the weight in Lua's shape; a row of v has what is of one output."""
        length = (self.v.square().sum(1) + 1e-4).sqrt()  # as in Lua, never 0
        rows = self.v * (self.g.reshape(-1) / length)[:, None]
        others = [extent for dim, extent in enumerate(shape) if dim != self.dim]
        return rows.reshape(shape[self.dim], *others).movedim(0, self.dim)


class SpatialClassifier(nn.Sequential):
    """Applies a module for rows of features at every position of an image.

    Args:
        module: the module.
        spatial: whether the outputs become an image again, or stay rows.
    """

    def __init__(self, module: nn.Module, spatial: bool = True) -> None:
        super().__init__(module)
        self.spatial = spatial

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, h, w); return (m, h, w), or (h * w, m)."""
        rows: Tensor = self[0](input.flatten(1).t())
        if self.spatial:
            return rows.t().reshape(-1, *input.shape[1:])
        return rows
