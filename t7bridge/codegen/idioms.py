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
        known: extents required by a layer, by the dimensions of one example and the index among them.
    """

    is_input: bool = False
    known: dict[tuple[int, int], int] = field(factory=dict)


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
        if self.rank not in (None, rank):
            return Form(rank).of_rank(rank, at, extent)
        if extent is not None and not self.extents:
            self.origin.known.setdefault((rank, at), extent)
        if self.extents:
            return self
        return Form(rank, self.origin, tuple((self.origin, rank, place) for place in range(rank)))

    def whole(self) -> tuple[int, ...] | None:
        """The extents of one example, if all are numbers."""
        found = tuple(_resolved(each) for each in self.extents)
        return found if found and all(isinstance(each, int) for each in found) else None


def _resolved(extent: Extent) -> Extent:
    if isinstance(extent, tuple) and len(extent) == 3 and isinstance(extent[0], BatchOrigin):
        return extent[0].known.get(extent[1:], extent)
    return extent


def alike(one: Form, other: Form) -> bool:
    """Return whether two values certainly have the same shape."""
    if one.origin is not other.origin and not (one.origin.is_input and other.origin.is_input):
        return False
    rank = one.rank if one.rank is not None else other.rank
    if rank is None:
        return one.origin is other.origin
    if any(each.rank not in (None, rank) for each in (one, other)):
        return False
    first, second = one.of_rank(rank).extents, other.of_rank(rank).extents
    return [*map(_resolved, first)] == [*map(_resolved, second)]


# Modules of torch.nn

_UNIFORM = {"kernel_size", "stride", "padding", "dilation", "output_padding", "output_size"}
"""Arguments for which one number means the same for all directions."""


def torch_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], spec: ModuleSpec) -> Construction:
    """Return the construction of a module of torch.nn: required arguments by position, others by keyword."""
    known = TORCH.get(name)
    if known is None or len(args) > len(known.arguments):
        return Construction(f"nn.{name}", [*args], kwargs, spec=spec)
    arguments = {**dict(zip(known.arguments, args)), **kwargs}
    if arguments.get("stride") is not None and known.arguments.get("stride", 1) is None:
        arguments["stride"] = None if arguments["stride"] == arguments["kernel_size"] else arguments["stride"]
    for argument, value in arguments.items():
        if argument in _UNIFORM and isinstance(value, tuple) and len(set(value)) == 1:
            arguments[argument] = value[0]
    required = tuple(argument for argument, default in known.arguments.items() if default is REQUIRED)
    optional = {argument: default for argument, default in known.arguments.items() if default is not REQUIRED}
    named = {**optional, **{argument: value for argument, value in arguments.items() if argument not in required}}
    places = tuple(argument for argument in required if argument in arguments)
    return Construction(f"nn.{name}", [arguments[each] for each in places], named, optional, places, spec)


def base_name(class_name: str) -> str:
    """Return the base name of an attribute with a module of a class: `max_unpool` for `MaxUnpool`."""
    short = class_name.removeprefix("nn.")
    if class_name.startswith("nn.") and short in TORCH:
        return TORCH[short].base
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", short).lower().rstrip("_0123456789")


def _form_after(call: Construction, form: Form) -> Form:
    """Return the form of the output of a module of torch.nn, by that of its input."""
    known = TORCH.get(call.name.removeprefix("nn."))
    if known is None or known.rank is None:
        return Form()
    if known.rank == SAME:
        return form if known.output is same else Form(form.rank)
    if known.extent is None or known.output is None:
        return Form(known.rank)
    taken = form.of_rank(known.rank, 0, call.named().get(known.extent))
    try:
        return Form(known.rank, taken.origin, known.output(Arguments((), call.named()), taken.extents))
    except (ArithmeticError, IndexError, Mismatch, TypeError, ValueError):
        return Form(known.rank)


def function_of(call: Construction) -> Write | None:
    """Return a function call equal to a module of torch.nn; `None` if none is preferable."""
    known = TORCH.get(call.name.removeprefix("nn."))
    arguments = call.named()
    if known is None or not known.function or not call.name.startswith("nn.") or arguments.get("inplace"):
        return None
    passed = [arguments[name] for name in known.passed]
    name = known.function
    return lambda x: method(x, name[1:], *passed) if name.startswith(".") else apply(name, x, *passed)


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
    found: Idiom | None = getattr(idioms, name)(*arguments) if name in IDIOMS else None
    return found


def form_of_copy(spec: ModuleSpec, form: Form) -> Form:
    """Return the output form of a layer whose own class is copied, if a class of torch.nn determines it."""
    name, *arguments = traits(spec).written or ("",)
    known = TORCH.get(arguments[0]) if name == "plain" else None
    if known is None or known.rank == SAME:
        return Form() if known is None else form
    return Form(known.rank)  # one example may gain a batch dimension


def copying(spec: ModuleSpec, write: Write) -> Write:
    """Return an expression whose result is contiguous and has memory of its own."""
    copied = "x.clone().contiguous()" if traits(spec).written == ("transpose",) else "x.clone()"
    return lambda x: formula(f"lambda x: {copied}")(write(x))


_CHAINED = 8
"""Maximum number of chained methods in one expression."""


class Idioms:
    """Writers of one module by the form of its input; each returns `None` if it has no exact equivalent."""

    def __init__(self, spec: ModuleSpec, form: Form) -> None:
        self._spec, self._form, self._args = spec, form, spec.args
        self._option = spec.kwargs.get
        self._dims: Any = spec.kwargs.get("n_input_dims")

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
        """Return a dimension of one example, from the end if its rank is known."""
        return dim - self._dims - added if self._dims is not None and dim >= 0 else dim

    def _is_beyond(self, dim: int) -> bool:
        """Return whether a dimension is not one of an example's."""
        return self._dims is not None and dim >= self._dims

    # Modules

    def softmax(self, name: str) -> Idiom | None:
        """Write a softmax: Lua's dimension is the first of 1 or 3, the second of 2 or 4.

        Counted from the end it is the same with and without a batch if one example has 1 or 3. Lua treats a sequence
        (time, features) as a batch, a volume as one of images.
        """
        return self.torch(name, -self._form.rank) if self._form.rank in (1, 3) else None

    def example_softmax(self) -> Idiom | None:
        """Write a softmax of the only dimension of one example."""
        return self.torch("LogSoftmax" if self._option("log") else "Softmax", -1) if self._form.rank == 1 else None

    def plain(self, name: str) -> Idiom | None:
        """Write classes of the runtime that differ from those of torch.nn only in accepting more inputs."""
        spec, facts = self._spec, traits(self._spec)
        examples = facts.plain_examples is not None and spec.args == facts.plain_examples
        if not spec.plain or (not examples and (self._form.rank or 0) < facts.plain_rank):
            return None
        return self.torch(spec.plain, *spec.args, **spec.kwargs)

    def _flattened(self, dims: int) -> Idiom:
        if dims == 1:
            return self.torch("Identity")
        extents = self._form.whole()
        # Of another origin if the extent is unknown: it is not one of the input's.
        after = Form(1) if extents is None else Form(1, self._form.origin, (prod(extents),))
        return Idiom(after, applied, torch_call("Flatten", (-dims,), {}, self._spec))

    def _unflattened(self) -> Idiom:
        after = Form(len(self._args), self._form.origin, self._args)
        return Idiom(after, applied, torch_call("Unflatten", (-1, self._args), {}, self._spec))

    def view(self) -> Idiom | None:
        """Write a view: exact if Lua knows the dimensions of one example; else a batch of one loses its batch there."""
        dims, size, extents = self._dims, self._args, self._form.whole()
        if not dims or self._form.rank != dims:
            return None
        fits = extents is not None and prod(extents) == prod(size)
        if len(size) == 1 and (size == (-1,) or self._spec.plain or fits):
            return self._flattened(dims)
        return self._unflattened() if dims == 1 and len(size) > 1 and fits else None

    def reshape(self) -> Idiom | None:
        """Write a reshape: Lua treats the input as a batch if its size, its first extent, or an option says so."""
        batched, extents, size = self._option("batch_mode"), self._form.whole(), self._args
        if batched and len(size) == 1 and (self._form.rank or 0) > 1:
            return Idiom(Form(1), applied, torch_call("Flatten", (1,), {}, self._spec))
        if batched is False or extents is None or prod(extents) != prod(size) or prod(size) < 2:
            return None
        if len(size) == 1 and (extents[0] != 1 or self._form.rank == 1) and not batched:
            return self._flattened(len(extents))
        return self._unflattened() if self._form.rank == 1 and len(size) > 1 else None

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
            symbol, constant = "-", -constant
        usual = formula(f"lambda x: x {symbol} constant", constant=constant)
        turned = formula("lambda x: constant - x", constant=constant)

        def write(x: ast.expr) -> ast.expr:
            if symbol == "+" and isinstance(x, ast.UnaryOp) and isinstance(x.op, ast.USub):
                return turned(x.operand)
            return usual(x)

        return Idiom(self._form, write)

    def unsqueeze(self) -> Idiom | None:
        """Write a new dimension of one example."""
        dim, dims = self._arguments("dim")[0], self._dims
        if self._is_beyond(dim - 1):
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
        if len(self._args) > _CHAINED or any(self._is_beyond(dim) for pair in self._args for dim in pair):
            return None

        def write(x: ast.expr) -> ast.expr:
            for pair in self._args:
                x = method(x, "transpose", *map(self._from_end, pair))
            return x

        return Idiom(Form(self._dims) if self._dims is not None and self._dims == self._form.rank else Form(), write)

    def narrow(self) -> Idiom | None:
        """Write a range along a dimension."""
        dim, start, length = self._arguments("dim", "start", "length")
        if start < 0 or length < 0:
            return None
        # A value that has a dimension of this number is a batch.
        form = self._form
        after = Form(1, form.origin, (length,)) if form.rank == 1 and dim in (1, -1) else Form(form.rank)
        return self._expression(after, "lambda x: x.narrow(dim, start, length)", dim=dim, start=start, length=length)

    def reduce(self, name: str, attribute: str = "") -> Idiom | None:
        """Write a reduction over one dimension."""
        dim, rank = self._arguments("dim")[0], self._form.rank
        # For a vector Lua returns one number in one dimension, PyTorch in none.
        if not rank or rank < 2 or self._dims not in (None, rank) or self._option("squeeze") is False:
            return None
        if self._is_beyond(dim):
            return None
        name = "mean" if self._option("average") else name
        template = f"lambda x: x.{name}(dim)" + f".{attribute}" * bool(attribute)
        # Without the first dimension, which may be the batch, every input has one less.
        return self._expression(Form(rank - 1 if self._dims or dim > 0 else None), template, dim=self._from_end(dim))

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
        taken, after = self._form.of_rank(2, 1, self._args[0]), Form(2)
        if len(self._args) > 2 and taken.extents:
            stride = self._args[3] if len(self._args) > 3 else self._option("stride", 1)
            sizes = [each[0] if isinstance(each, tuple) else each for each in (self._args[2], stride)]
            with suppress(Mismatch):  # a stride of 0, which fails when it is called
                after = Form(2, taken.origin, (slid(taken.extents[0], sizes[0], sizes[1], 0), self._args[1]))
        return Idiom(after, formula("lambda module, x: module(x.mT).mT"), call)


IDIOMS = frozenset(name for name in vars(Idioms) if not name.startswith("_") and name != "torch")
"""The names by which entries request plain PyTorch."""
