"""Plain PyTorch for the runtime's layers, where it is exact.

The rank of a value is the number of dimensions of one example of it: 3 for images, in a batch or not. A layer of
Lua that counts from the front, batch or not, can be written with dimensions counted from the end if the rank is known.
Otherwise the layer's own class is included. The form of a value is its rank, and more if that is known: Lua adds
tensors of equal counts in memory order; PyTorch's `a + b` is the same only if both have one shape, as `alike` proves.

An entry of `nn/layers/` names the method of `Idioms` here, or of `Lists` in `flow`, that writes its class, and its
arguments (`Traits.written`).
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from math import prod
from typing import Any

from attrs import field

from ..data import define
from ..nn.mapping import SEQUENTIAL, ModuleSpec
from ..nn.output_shapes import Arguments, Extent, Mismatch, same, slid
from ..nn.registry import Traits, traits_of
from ..nn.torch_nn import REQUIRED, SAME, TORCH
from .code import Construction, Write, applied, apply, dotted, formula, method
from .copied import constructor

# Shapes


@define(eq=False)
class BatchOrigin:
    """Source of the batch dimension of values: all of one origin have it, with the same extent, or none has.

    Attributes:
        is_input: whether it is an input of the whole model. All of these are batches, or none is.
        required: extents required by a layer, by the dimensions of one example and the index among them.
    """

    is_input: bool = False
    required: dict[tuple[int, int], int] = field(factory=dict)


@define(frozen=True)
class Form:
    """Shape of a value, as far as it is known.

    Attributes:
        rank: dimensions of one example; `None` if unknown. The value has one more if it is a batch.
        origin: the source of its batch dimension.
        extents: those of one example; empty if they are unknown, or the input's own.
    """

    rank: int | None = None
    origin: BatchOrigin = field(factory=BatchOrigin)
    extents: tuple[Extent, ...] = ()

    def of_rank(self, rank: int, at: int = 0, extent: int | None = None) -> Form:
        """Return the form of the input of a layer for examples of `rank` dimensions.

        Args:
            rank: the dimensions of one example.
            at: the one whose extent the layer knows.
            extent: that extent.
        """
        if self.rank not in (None, rank):  # a value of another origin
            return Form(rank).of_rank(rank, at, extent)
        if self.extents:
            return self
        if extent is not None:
            self.origin.required.setdefault((rank, at), extent)
        # Extents of the origin: numbers once a layer knows them, equal to one another in any case.
        return Form(rank, self.origin, tuple((self.origin, rank, place) for place in range(rank)))

    def whole(self) -> tuple[int, ...] | None:
        """The extents of one example, if all are numbers."""
        extents = tuple(_resolved(extent) for extent in self.extents)
        if not extents or not all(isinstance(extent, int) for extent in extents):
            return None
        return extents


def _resolved(extent: Extent) -> Extent:
    """Return the number for an extent of an origin, if a layer knows it."""
    if isinstance(extent, tuple) and len(extent) == 3 and isinstance(extent[0], BatchOrigin):
        origin, *key = extent
        return origin.required.get(tuple(key), extent)
    return extent


def alike(one: Form, other: Form) -> bool:
    """Return whether two values certainly have the same shape."""
    # Both are batches of one size, or none of them is a batch.
    if one.origin is not other.origin and not (one.origin.is_input and other.origin.is_input):
        return False
    rank = one.rank if one.rank is not None else other.rank
    if rank is None:  # nothing else is known
        return one.origin is other.origin
    if other.rank not in (None, rank):
        return False
    extents = [_resolved(extent) for extent in one.of_rank(rank).extents]
    other_extents = [_resolved(extent) for extent in other.of_rank(rank).extents]
    return extents == other_extents


# Modules of torch.nn

_UNIFORM = {"kernel_size", "stride", "padding", "dilation", "output_padding", "output_size"}
"""Arguments for which one number means the same for all directions."""


def torch_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], spec: ModuleSpec) -> Construction:
    """Return the construction of a module of torch.nn: required arguments by position, others by keyword."""
    layer = TORCH.get(name)
    if layer is None or len(args) > len(layer.arguments):
        return Construction(f"nn.{name}", [*args], kwargs, spec=spec)
    arguments = {**dict(zip(layer.arguments, args)), **kwargs}
    # The stride of a pooling layer is None by default, which means the size of its kernel.
    is_kernel_by_default = layer.arguments.get("stride", 1) is None
    if is_kernel_by_default and arguments.get("stride") is not None and arguments["stride"] == arguments["kernel_size"]:
        arguments["stride"] = None
    for argument, value in arguments.items():
        if argument in _UNIFORM and isinstance(value, tuple) and len(set(value)) == 1:
            arguments[argument] = value[0]
    defaults = {argument: default for argument, default in layer.arguments.items() if default is not REQUIRED}
    positions = tuple(
        argument for argument, default in layer.arguments.items() if default is REQUIRED and argument in arguments
    )
    # All optional ones by keyword, in PyTorch's order; those with their defaults are not written.
    keywords = dict(defaults)
    keywords.update((argument, value) for argument, value in arguments.items() if argument not in positions)
    values = [arguments[argument] for argument in positions]
    return Construction(f"nn.{name}", values, keywords, defaults, positions, spec)


def base_name(class_name: str) -> str:
    """Return the base name of an attribute with a module of a class: `max_unpool` for `MaxUnpool`."""
    name = class_name.removeprefix("nn.")
    if class_name.startswith("nn.") and name in TORCH:
        return TORCH[name].base
    # Between `x` and `U` of MaxUnpool, and between `U` and `L` of GRULayer.
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return words.lower().rstrip("_0123456789")


def _form_after(call: Construction, form: Form) -> Form:
    """Return the form of the output of a module of torch.nn, by that of its input."""
    layer = TORCH.get(call.name.removeprefix("nn."))
    if layer is None or layer.rank is None:
        return Form()
    if layer.rank == SAME:
        return form if layer.output is same else Form(form.rank)
    if layer.extent is None or layer.output is None:
        return Form(layer.rank)
    # Of the first dimension of one example, its channels or features, the layer knows the extent.
    form_of_input = form.of_rank(layer.rank, 0, call.named().get(layer.extent))
    try:
        extents = layer.output(Arguments((), call.named()), form_of_input.extents)
    except (ArithmeticError, IndexError, Mismatch, TypeError, ValueError):
        return Form(layer.rank)
    return Form(layer.rank, form_of_input.origin, extents)


def function_of(call: Construction) -> Write | None:
    """Return a function call equal to a module of torch.nn; `None` if none is preferable."""
    layer = TORCH.get(call.name.removeprefix("nn."))
    arguments = call.named()
    if layer is None or not layer.function or not call.name.startswith("nn.") or arguments.get("inplace"):
        return None
    passed = [arguments[name] for name in layer.passed]
    name = layer.function
    if name.startswith("."):  # a method: `.flatten`
        return lambda x: method(x, name[1:], *passed)
    return lambda x: apply(name, x, *passed)


# Idioms


@define(frozen=True)
class Idiom:
    """Plain PyTorch for a module.

    Attributes:
        form: the form of its output.
        write: makes the expression from the module, if any, and its input.
        call: a module of torch.nn; `None` if an expression suffices.
    """

    form: Form
    write: Write = applied
    call: Construction | None = None


def traits(spec: ModuleSpec) -> Traits:
    """Return the traits that an entry declares of the class of a module."""
    return traits_of(spec.target)


def idiom_of(spec: ModuleSpec, form: Form) -> Idiom | None:
    """Return plain PyTorch for a module, by the form of its input; `None` if there is none."""
    if spec.target == SEQUENTIAL:
        return None
    idioms = Idioms(spec, form)
    if spec.target.startswith("torch.nn."):
        return idioms.torch(spec.target, *spec.args, **spec.kwargs)
    name, *arguments = traits(spec).written or ("",)
    if name not in IDIOMS:
        return None
    idiom: Idiom | None = getattr(idioms, name)(*arguments)
    return idiom


def form_of_copy(spec: ModuleSpec, form: Form) -> Form:
    """Return the output form of a layer whose own class is copied, if a class of torch.nn determines it."""
    name, *arguments = traits(spec).written or ("",)
    layer = TORCH.get(arguments[0]) if name == "plain" else None
    if layer is None:
        return Form()
    if layer.rank == SAME:
        return form
    return Form(layer.rank)  # of another origin: one example may gain a batch dimension


def copying(spec: ModuleSpec, write: Write) -> Write:
    """Return an expression whose result is contiguous and has memory of its own."""
    copied = "x.clone().contiguous()" if traits(spec).written == ("transpose",) else "x.clone()"
    return lambda x: formula(f"lambda x: {copied}")(write(x))


_CHAINED = 8
"""Maximum number of chained methods in one expression."""


class Idioms:
    """Writers of one module by the form of its input; each returns `None` if it has no exact equivalent."""

    def __init__(self, spec: ModuleSpec, form: Form) -> None:
        self._spec = spec
        self._form = form
        self._args = spec.args
        self._option = spec.kwargs.get
        self._dims: Any = spec.kwargs.get("n_input_dims")
        """The dimensions of one example, if Lua's module knows them (`setNumInputDims`)."""

    def torch(self, name: str, *args: Any, **kwargs: Any) -> Idiom:
        """Write a module of torch.nn."""
        call = torch_call(name.removeprefix("torch.nn."), args, kwargs, self._spec)
        return Idiom(_form_after(call, self._form), applied, call)

    def _expression(self, form: Form, template: str, **values: Any) -> Idiom:
        return Idiom(form, formula(template, **values))

    def _arguments(self, *names: str) -> list[Any]:
        """Return the arguments of a call in order; `None` for missing ones."""
        return [self._args[at] if at < len(self._args) else self._option(name) for at, name in enumerate(names)]

    def _from_end(self, dim: int, added: int = 0) -> int:
        """Return a dimension of one example, from the end if its rank is known.

        Args:
            dim: the dimension, 0-based.
            added: the number of dimensions that the layer adds.
        """
        if self._dims is None or dim < 0:
            return dim
        from_end: int = dim - self._dims - added
        return from_end

    def _is_beyond(self, dim: int) -> bool:
        """Return whether a dimension is not one of an example's."""
        return self._dims is not None and dim >= self._dims

    # Modules

    def softmax(self, name: str) -> Idiom | None:
        """Write a softmax: Lua's dimension is the first of 1 or 3, the second of 2 or 4.

        Counted from the end it is the same with and without a batch if one example has 1 or 3. Lua treats a sequence
        (time, features) as a batch, a volume as one of images.
        """
        if self._form.rank not in (1, 3):
            return None
        return self.torch(name, -self._form.rank)

    def example_softmax(self) -> Idiom | None:
        """Write a softmax of the only dimension of one example."""
        if self._form.rank != 1:
            return None
        return self.torch("LogSoftmax" if self._option("log") else "Softmax", -1)

    def plain(self, name: str) -> Idiom | None:
        """Write classes of the runtime that differ from those of torch.nn only in accepting more inputs."""
        spec = self._spec
        facts = traits(spec)
        takes_examples = facts.plain_examples is not None and spec.args == facts.plain_examples
        has_rank = (self._form.rank or 0) >= facts.plain_rank
        if not spec.plain or not (takes_examples or has_rank):
            return None
        return self.torch(spec.plain, *spec.args, **spec.kwargs)

    def _flattened(self, dims: int) -> Idiom:
        """Write one dimension for all of one example, counted from the end: with and without a batch."""
        if dims == 1:
            return self.torch("Identity")
        extents = self._form.whole()
        # Of another origin if the extent is unknown: it is not one of the input's.
        after = Form(1) if extents is None else Form(1, self._form.origin, (prod(extents),))
        return Idiom(after, applied, torch_call("Flatten", (-dims,), {}, self._spec))

    def _unflattened(self) -> Idiom:
        """Write several dimensions for the only one of one example."""
        after = Form(len(self._args), self._form.origin, self._args)
        return Idiom(after, applied, torch_call("Unflatten", (-1, self._args), {}, self._spec))

    def view(self) -> Idiom | None:
        """Write a view: exact if Lua knows the dimensions of one example; else a batch of one loses its batch there."""
        dims = self._dims
        size = self._args
        if not dims or self._form.rank != dims:
            return None
        extents = self._form.whole()
        keeps_example = extents is not None and prod(extents) == prod(size)
        if len(size) == 1 and (size == (-1,) or self._spec.plain or keeps_example):
            return self._flattened(dims)
        if dims == 1 and len(size) > 1 and keeps_example:
            return self._unflattened()
        return None

    def reshape(self) -> Idiom | None:
        """Write a reshape: Lua treats the input as a batch if its size, its first extent, or an option says so."""
        is_batch = self._option("batch_mode")  # true, false, or nil: by the size of the input
        size = self._args
        extents = self._form.whole()
        if is_batch and len(size) == 1 and (self._form.rank or 0) > 1:
            return Idiom(Form(1), applied, torch_call("Flatten", (1,), {}, self._spec))
        # Without an option, an input of exactly the elements of the result is one example, but not one of one element.
        if is_batch is False or extents is None or prod(extents) != prod(size) or prod(size) < 2:
            return None
        # An example whose first extent is 1 would be a batch of one.
        may_be_batch_of_one = extents[0] == 1 and self._form.rank != 1
        if len(size) == 1 and not may_be_batch_of_one and not is_batch:
            return self._flattened(len(extents))
        if len(size) > 1 and self._form.rank == 1:
            return self._unflattened()
        return None

    # Expressions

    def expression(self, template: str, keeps_form: bool = True) -> Idiom | None:
        """Write an expression of `x` and of the arguments of the layer's constructor, by their names."""
        signature = constructor(self._spec.target)[0]
        if signature is None:
            return None
        values = signature.bind(*self._args, **self._spec.kwargs).arguments
        return self._expression(self._form if keeps_form else Form(), f"lambda x: {template}", **values)

    def cast(self) -> Idiom:
        """Write a conversion to an element type."""
        return self._expression(self._form, "lambda x: x.to(kind)", kind=dotted(f"torch.{self._args[0]}"))

    def operator(self, symbol: str) -> Idiom | None:
        """Write an operator with a constant."""
        constant = self._args[0]
        if not isinstance(constant, (int, float)):
            return None
        if symbol == "*" and constant == -1:
            return self._expression(self._form, "lambda x: -x")
        if symbol == "+" and constant < 0:
            symbol = "-"
            constant = -constant
        operation = formula(f"lambda x: x {symbol} constant", constant=constant)
        difference = formula("lambda x: constant - x", constant=constant)

        def write(x: ast.expr) -> ast.expr:
            # `-x + 1` reads better as `1 - x`.
            if symbol == "+" and isinstance(x, ast.UnaryOp) and isinstance(x.op, ast.USub):
                return difference(x.operand)
            return operation(x)

        return Idiom(self._form, write)

    def unsqueeze(self) -> Idiom | None:
        """Write a new dimension of one example."""
        dim = self._arguments("dim")[0]
        dims = self._dims
        if self._is_beyond(dim - 1):  # the new dimension may come after the last
            return None
        after = Form(dims + 1) if dims is not None and dims == self._form.rank else Form()
        return self._expression(after, "lambda x: x.unsqueeze(dim)", dim=self._from_end(dim, 1))

    def squeeze(self) -> Idiom | None:
        """Write the removal of a dimension of one element; Lua keeps the only one."""
        dim = self._arguments("dim")[0]
        if dim is None or self._dims is not None or (self._form.rank or 0) < 2:
            return None
        return self._expression(Form(), "lambda x: x.squeeze(dim)", dim=dim)

    def replicate(self) -> Idiom | None:
        """Write a new dimension of one element."""
        times, dim = self._arguments("times", "dim")
        if times != 1 or self._dims is not None:
            return None
        return self._expression(Form(), "lambda x: x.unsqueeze(dim)", dim=dim or 0)

    def transpose(self) -> Idiom | None:
        """Write exchanges of dimensions."""
        if len(self._args) > _CHAINED:
            return None
        if any(self._is_beyond(first) or self._is_beyond(second) for first, second in self._args):
            return None

        def write(x: ast.expr) -> ast.expr:
            for pair in self._args:
                x = method(x, "transpose", *map(self._from_end, pair))
            return x

        keeps_rank = self._dims is not None and self._dims == self._form.rank
        return Idiom(Form(self._dims) if keeps_rank else Form(), write)

    def narrow(self) -> Idiom | None:
        """Write a range along a dimension."""
        dim, start, length = self._arguments("dim", "start", "length")
        if start < 0 or length < 0:
            return None
        form = self._form
        after = Form(form.rank)
        # The only dimension of a vector: a value that has a dimension 1 is a batch of them.
        if form.rank == 1 and dim in (1, -1):
            after = Form(1, form.origin, (length,))
        return self._expression(after, "lambda x: x.narrow(dim, start, length)", dim=dim, start=start, length=length)

    def reduce(self, name: str, attribute: str = "") -> Idiom | None:
        """Write a reduction over one dimension."""
        dim = self._arguments("dim")[0]
        rank = self._form.rank
        # For a vector Lua returns one number in one dimension, PyTorch in none.
        if not rank or rank < 2:
            return None
        if self._dims not in (None, rank) or self._option("squeeze") is False or self._is_beyond(dim):
            return None
        name = "mean" if self._option("average") else name
        template = f"lambda x: x.{name}(dim)"
        if attribute:  # `max` and `min` return values and indices
            template += f".{attribute}"
        # The first dimension may be that of the batch: then an example keeps its rank.
        is_of_example = self._dims or dim > 0
        return self._expression(Form(rank - 1 if is_of_example else None), template, dim=self._from_end(dim))

    def pool_in_time(self) -> Idiom:
        """Write a maximum over windows of a sequence, whose features are last in Lua."""
        size, stride = self._args
        strides = "" if size == stride else ", stride=stride"
        return self._expression(Form(2), f"lambda x: F.max_pool1d(x.mT, size{strides}).mT", size=size, stride=stride)

    # Modules with operations around them

    def look_up(self) -> Idiom:
        """Write an embedding of numbers from 1."""
        kwargs = dict(self._spec.kwargs)
        base = kwargs.pop("index_base", 1)
        numbers = "x.long() - base" if base else "x.long()"
        after = Form(origin=BatchOrigin(is_input=self._form.origin.is_input))
        call = torch_call("Embedding", self._args, kwargs, self._spec)
        return Idiom(after, formula(f"lambda module, x: module({numbers})", base=base), call)

    def outputs(self) -> Idiom | None:
        """Write a recurrent layer that begins each sequence from zeros, and returns only the outputs."""
        if not self._spec.plain:
            return None
        options = {name: value for name, value in self._spec.kwargs.items() if name != "remember"}
        call = torch_call(self._spec.plain.removeprefix("torch.nn."), self._args, options, self._spec)
        return Idiom(Form(2), formula("lambda module, x: module(x)[0]"), call)

    def conv_in_time(self) -> Idiom:
        """Write a convolution over a sequence, whose features are last in Lua."""
        call = torch_call("Conv1d", self._args, dict(self._spec.kwargs), self._spec)
        form_of_input = self._form.of_rank(2, 1, self._args[0])  # (time, features)
        after = Form(2)
        if len(self._args) > 2 and form_of_input.extents:
            features = self._args[1]
            kernel = self._args[2]
            stride = self._args[3] if len(self._args) > 3 else self._option("stride", 1)
            kernel = kernel[0] if isinstance(kernel, tuple) else kernel
            stride = stride[0] if isinstance(stride, tuple) else stride
            with suppress(Mismatch):  # a stride of 0, which fails when it is called
                steps = slid(form_of_input.extents[0], kernel, stride, 0)
                after = Form(2, form_of_input.origin, (steps, features))
        return Idiom(after, formula("lambda module, x: module(x.mT).mT"), call)


IDIOMS = frozenset(name for name in vars(Idioms) if not name.startswith("_") and name != "torch")
"""The names by which entries request plain PyTorch."""
