"""Plain PyTorch for one module of a model (its spec), where it is exact. The form of a value is what is known of its
shape: its rank, the number of dimensions of one example (an element of a batch), their extents, and its origin: all
values of one origin are batches of one size, or none is. The plain class of a spec is the class of torch.nn that does
the same for each tensor with a batch dimension; empty if there is none.

A layer of Lua that counts from the front, batch or not, can be written with dimensions counted from the end if the rank
is known. Otherwise the layer's own class is included.

An entry of `nn/layers/` names the method of `Idioms` here, or of `Lists` in `flow`, that writes its class, and its
arguments (`Traits.written`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from math import prod
from typing import Any

from ..data import define
from ..nn.mapping import SEQUENTIAL, ModuleSpec
from ..nn.output_shapes import Arguments, Mismatch, same, slid
from ..nn.registry import Traits, traits_of
from ..nn.torch_nn import REQUIRED, SAME, TORCH, TorchClass
from .code import Construction, Write, applied, apply, dotted, formula, method
from .copied import constructor
from .steps import BatchOrigin, Form

# Modules of torch.nn

_SAME_FOR_ALL_AXES = {"kernel_size", "stride", "padding", "dilation", "output_padding", "output_size"}
"""Arguments for which one number means the same for all directions."""


def torch_construction(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], spec: ModuleSpec) -> Construction:
    """Return the construction of a module of torch.nn: required arguments by position, others by keyword.

    Args:
        name: the class, without `torch.nn`.
        args: its arguments by position.
        kwargs: its arguments by keyword.
        spec: the module of the plan, whose tensors the new module gets.
    """
    layer = TORCH.get(name)
    # Where the class's arguments are not known, or are fewer, those of the plan stay as they are.
    if layer is None or len(args) > len(layer.arguments):
        return Construction(f"nn.{name}", [*args], kwargs, spec=spec)
    given = {**dict(zip(layer.arguments, args)), **kwargs}
    _simplify(given, layer)
    # All in the order of the class's constructor, in which no required argument is missing (`check_construction`).
    defaults = {argument: default for argument, default in layer.arguments.items() if default is not REQUIRED}
    required = [argument for argument in layer.arguments if argument in given and argument not in defaults]
    keywords = {argument: given.get(argument, default) for argument, default in defaults.items()}
    # Arguments that the table of torch.nn does not have come last.
    keywords.update((argument, value) for argument, value in given.items() if argument not in layer.arguments)
    return Construction(
        f"nn.{name}",
        [given[argument] for argument in required],
        keywords,
        defaults,  # the call as text leaves out what has its default
        arg_names=tuple(required),
        spec=spec,
    )


def _simplify(arguments: dict[str, Any], layer: TorchClass) -> None:
    """Write arguments of a class of torch.nn in the shortest way, in the dictionary itself.

    Args:
        arguments: those that are given, by name.
        layer: the class.
    """
    # Of a pooling layer, `stride=None` is the default, and means the size of its kernel.
    is_kernel_by_default = layer.arguments.get("stride", REQUIRED) is None
    if is_kernel_by_default and arguments.get("stride") == arguments.get("kernel_size"):
        arguments["stride"] = None
    # One number reads better than a tuple of equal ones.
    for argument, value in arguments.items():
        if argument in _SAME_FOR_ALL_AXES and isinstance(value, tuple) and len(set(value)) == 1:
            arguments[argument] = value[0]


def attribute_base_name(class_name: str) -> str:
    """Return the name, without a number, of an attribute with a module of a class: `max_unpool` for `MaxUnpool`."""
    name = class_name.removeprefix("nn.")
    if class_name.startswith("nn.") and name in TORCH:
        return TORCH[name].base
    # Between `x` and `U` of MaxUnpool, and between `U` and `L` of GRULayer.
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return words.lower().rstrip("_0123456789")


def _form_of_output(construction: Construction, form: Form) -> Form:
    """Return the form of the output of a module of torch.nn.

    Args:
        construction: the construction of the module.
        form: that of its input. If it has the shape of its origin, the extent that the module requires of it is noted
            there, for all values of that shape.
    """
    layer = TORCH.get(construction.name.removeprefix("nn."))
    if layer is None or layer.rank is None:  # nothing is known of it
        return Form()
    if layer.rank == SAME:  # the output has the dimensions of the input, and with the rule `same` its extents
        return form if layer.output is same else Form(form.rank)
    if layer.extent is None or layer.output is None:  # its input may have any rank, or its rule is not known
        return Form(layer.rank)
    arguments = construction.arguments_by_name()
    # `layer.extent` names the argument that is the extent of an example's first dimension: channels or features.
    form_of_input = form.as_input_with_extent(layer.rank, dim=0, extent=arguments.get(layer.extent))
    try:
        extents = layer.output(Arguments((), arguments), form_of_input.extents)
    except (ArithmeticError, IndexError, Mismatch, TypeError, ValueError):  # arguments that the layer refuses
        return Form(layer.rank)
    return Form(layer.rank, form_of_input.origin, extents)


def function_of(construction: Construction) -> Write | None:
    """Return a function that makes the call of one of PyTorch's functions, equal to a module: `torch.relu(x)`.

    It is `None` if there is no such function, as for a class outside torch.nn, and a module that changes its input.
    """
    if not construction.name.startswith("nn."):
        return None
    layer = TORCH.get(construction.name.removeprefix("nn."))
    arguments = construction.arguments_by_name()
    if layer is None or not layer.function or arguments.get("inplace"):
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
        construction: a module of torch.nn; `None` if an expression suffices.
    """

    form: Form
    write: Write = applied
    construction: Construction | None = None

    @property
    def has_operations(self) -> bool:
        """Whether it is an expression, or has operations before or after its module: more than the call of one."""
        return self.write is not applied


def traits(spec: ModuleSpec) -> Traits:
    """Return the traits that an entry declares of the class of a module."""
    return traits_of(spec.target)


def idiom_of(spec: ModuleSpec, form: Form) -> Idiom | None:
    """Return plain PyTorch for a module, by the form of its input; `None` if there is none.

    There is none for a Sequential, whose modules are written one by one.
    """
    if spec.target == SEQUENTIAL:
        return None
    if spec.target.startswith("torch.nn."):
        return _module_of_torch(spec, form, spec.target, spec.args, spec.kwargs)
    name, *arguments = traits(spec).written or ("",)
    if name not in IDIOMS:
        return None
    idiom: Idiom | None = getattr(Idioms(spec, form), name)(*arguments)
    return idiom


def _module_of_torch(
    spec: ModuleSpec, form: Form, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Idiom:
    """Return a module of torch.nn as an idiom.

    Args:
        spec: the module of the plan.
        form: that of its input.
        name: the class, with `torch.nn.` or without.
        args: its arguments by position.
        kwargs: its arguments by keyword.
    """
    construction = torch_construction(name.removeprefix("torch.nn."), args, dict(kwargs), spec)
    return Idiom(_form_of_output(construction, form), applied, construction)


def form_of_copy(spec: ModuleSpec, form: Form) -> Form:
    """Return the output form of a layer whose own class is copied, from the form of its input.

    It is known only of a layer that is `like` a class of torch.nn and written as that where its input allows it
    (`Idioms.plain`): both return the same.
    """
    facts = traits(spec)
    layer = TORCH.get(facts.like)
    if layer is None or facts.written != ("plain",):
        return Form()
    if layer.rank == SAME:  # it returns the shape of its input
        return form
    return Form(layer.rank)  # of another origin: one example may gain a batch dimension


def copying(spec: ModuleSpec, write: Write) -> Write:
    """Return a function that makes an expression whose result is a copy: contiguous, and in memory of its own.

    Args:
        spec: the module.
        write: makes the module's expression, whose result is copied.
    """
    # The clone of a transposed tensor has its strides.
    copied = "x.clone().contiguous()" if traits(spec).written == ("transpose",) else "x.clone()"
    return lambda x: formula(f"lambda x: {copied}")(write(x))


_MOST_CHAINED = 8
"""Maximum number of chained methods in one expression."""


class Idioms:
    """Writers of one module as plain PyTorch: a method for each name in `Traits.written`.
    Each returns `None` if, for an input of this form, it has no exact equivalent. A module of Lua that knows the number
    of dimensions of one example (`_example_dims`) counts dimensions within an example, else among all of its input.

    Args:
        spec: the module.
        form: that of its input.
    """

    def __init__(self, spec: ModuleSpec, form: Form) -> None:
        """Keep the module and the form of its input at hand for the methods."""
        self._spec = spec
        self._input_form = form
        self._args = spec.args
        self._keyword = spec.kwargs.get  # returns `None` for an argument that is not given
        self._example_dims: Any = spec.kwargs.get("n_input_dims")
        """The dimensions of one example, if Lua's module knows them (`setNumInputDims`)."""

    def _torch(self, name: str, *args: Any, **kwargs: Any) -> Idiom:
        """Write a module of torch.nn, of this class and with these arguments."""
        return _module_of_torch(self._spec, self._input_form, name, args, kwargs)

    def _expression(self, form: Form, template: str, **values: Any) -> Idiom:
        """Return an expression as an idiom.

        Args:
            form: that of its result.
            template: a lambda of the input, see `formula`.
            **values: literals for the names in it.
        """
        return Idiom(form, formula(template, **values))

    def _arguments(self, *names: str) -> list[Any]:
        """Return the first arguments of the module, given by position or by name; `None` for missing ones.

        Args:
            *names: of all arguments by position up to the last that is asked for, in order.
        """
        by_name = {**dict(zip(names, self._args)), **self._spec.kwargs}
        return [by_name.get(name) for name in names]

    def _from_end(self, dim: int, added: int = 0) -> int:
        """Return a dimension of one example as a negative number from the end, which holds with and without a batch.

        A layer that does not know the dimensions of one example counts those of its input: then it stays as it is.

        Args:
            dim: the dimension, 0-based; negative from the end.
            added: the number of dimensions that the output has more than the input.
        """
        if self._example_dims is None or dim < 0:
            return dim
        output_dims = self._example_dims + added
        from_end: int = dim - output_dims
        return from_end

    def _is_beyond_example(self, dim: int) -> bool:
        """Return whether a dimension is not one of an example's."""
        return self._example_dims is not None and dim >= self._example_dims

    # Modules

    def softmax(self, name: str) -> Idiom | None:
        """Write a softmax over the dimension that Lua chooses: of 1 or 3 dimensions the first, of 2 or 4 the second.

        For examples of 1 or 3 dimensions, that is their first, with a batch or without. `None` is returned for
        examples of any other rank.

        Args:
            name: the class of torch.nn: `Softmax`, `LogSoftmax`, `Softmin`.
        """
        rank = self._input_form.rank
        if rank not in (1, 3):
            return None
        first_of_example = -rank
        return self._torch(name, first_of_example)

    def example_softmax(self) -> Idiom | None:
        """Write a softmax of the only dimension of one example."""
        if self._input_form.rank != 1:
            return None
        return self._torch("LogSoftmax" if self._keyword("log") else "Softmax", -1)

    def plain(self) -> Idiom | None:
        """Write a class of this package that differs from one of torch.nn only in accepting more inputs, as that one.

        `None` is returned where the module needs to accept them: where its `plain` is empty, or the input may have
        examples of too few dimensions.
        """
        spec = self._spec
        facts = traits(spec)
        if not spec.plain:
            return None
        # With these arguments the class of torch.nn accepts examples of any dimensions: PReLU with one weight.
        takes_any_rank = facts.plain_examples is not None and spec.args == facts.plain_examples
        # Of fewer dimensions it would refuse them, or take them for a batch; 0 if the dimensions are not known.
        rank = self._input_form.rank or 0
        if rank < facts.plain_rank and not takes_any_rank:
            return None
        return self._torch(spec.plain, *spec.args, **spec.kwargs)

    def _flattened(self, dims: int) -> Idiom:
        """Write the merging of the last `dims` dimensions, all of one example, into one: with and without a batch."""
        if dims == 1:
            return self._torch("Identity")
        extents = self._input_form.known_extents()
        # Of another origin: what a later layer requires of this one extent, it does not require of the input's.
        after = Form(1)
        if extents is not None:
            after = Form(1, self._input_form.origin, (prod(extents),))
        return Idiom(after, applied, torch_construction("Flatten", (-dims,), {}, self._spec))

    def _unflattened(self) -> Idiom:
        """Write the splitting of the only dimension of one example into those of the module's arguments."""
        after = Form(len(self._args), self._input_form.origin, self._args)
        return Idiom(after, applied, torch_construction("Unflatten", (-1, self._args), {}, self._spec))

    def view(self) -> Idiom | None:
        """Write a view as the merging of all dimensions of one example, or the splitting of its only one.

        `None` is returned if Lua does not know the dimensions of one example, so that a batch of one loses its batch,
        if the input has others, and if the view may change the number of examples.
        """
        dims = self._example_dims
        sizes = self._args  # of one example of the output
        if not dims or self._input_form.rank != dims:
            return None
        extents = self._input_form.known_extents()
        # Never if a size is -1, which stands for any number: the product is negative.
        keeps_elements = extents is not None and prod(extents) == prod(sizes)
        if len(sizes) == 1:
            # `_flatten_views` sets the plain class where a linear layer after the view requires this size.
            is_whole_example = sizes == (-1,) or keeps_elements or bool(self._spec.plain)
            return self._flattened(dims) if is_whole_example else None
        # `Unflatten` splits one dimension.
        if keeps_elements and dims == 1:
            return self._unflattened()
        return None

    def reshape(self) -> Idiom | None:
        """Write a reshape: Lua treats the input as a batch if its option, or else the input's size, says so.

        `None` is returned where that cannot be told from what is known of the input, or PyTorch has no module for it.
        """
        batch_mode = self._keyword("batch_mode")  # as in Lua: true, false, or nil, by the size of the input
        if batch_mode is False:  # any input is one example, a batch of them too
            return None
        sizes = self._args  # of one example of the output
        rank = self._input_form.rank or 0  # 0 if it is not known
        if batch_mode and len(sizes) == 1:
            if rank < 2:  # an input of one dimension, as an example may be, has none after the first
                return None
            # Whatever the dimensions after the first are, they become one.
            return Idiom(Form(1), applied, torch_construction("Flatten", (1,), {}, self._spec))
        # Without the option, Lua takes for one example what has exactly the elements of the output, and not 1 as its
        # first extent, which is a batch of one; for a batch anything else. So examples must have these elements, and
        # another extent first.
        extents = self._input_form.known_extents()
        if extents is None or prod(extents) != prod(sizes) or extents[0] == 1:
            return None
        if len(sizes) == 1:
            return self._flattened(rank)
        # `Unflatten` splits one dimension.
        return self._unflattened() if rank == 1 else None

    # Expressions

    def expression(self, template: str, keeps_form: bool = True) -> Idiom | None:
        """Write an expression of `x` and of the arguments of the layer's constructor, by their names.

        `None` is returned if the class has no constructor of its own, so that its arguments have no known names.

        Args:
            template: the expression: `x.pow(exponent)`. It may name only arguments that each such layer is given:
                defaults are not filled in.
            keeps_form: whether the output has the form of the input; otherwise nothing is known of it.
        """
        signature, _ = constructor(self._spec.target)
        if signature is None:
            return None
        values_by_name = signature.bind(*self._args, **self._spec.kwargs).arguments
        form_of_output = self._input_form if keeps_form else Form()
        return self._expression(form_of_output, f"lambda x: {template}", **values_by_name)

    def cast(self) -> Idiom:
        """Write a conversion to an element type."""
        return self._expression(self._input_form, "lambda x: x.to(kind)", kind=dotted(f"torch.{self._args[0]}"))

    def operator(self, symbol: str) -> Idiom | None:
        """Write an operator, `+` or `*`, with the module's constant as its second operand; `None` if that is a tensor.

        Args:
            symbol: the operator.
        """
        constant = self._args[0]
        if not isinstance(constant, (int, float)):  # one number for each feature
            return None
        if symbol == "*" and constant == -1:
            return self._expression(self._input_form, "lambda x: -x")
        if symbol == "+" and constant < 0:
            symbol = "-"
            constant = -constant
        operation = formula(f"lambda x: x {symbol} constant", constant=constant)
        difference = formula("lambda x: constant - x", constant=constant)

        def write(x: ast.expr) -> ast.expr:
            """Return `x + constant`; of `-x + 1`, which reads better so, `1 - x`."""
            if symbol == "+" and isinstance(x, ast.UnaryOp) and isinstance(x.op, ast.USub):
                return difference(x.operand)
            return operation(x)

        return Idiom(self._input_form, write)

    def unsqueeze(self) -> Idiom | None:
        """Write a new dimension of one element.

        `None` is returned if Lua counts the dimensions of one example, and the new one is not among or next to these.
        """
        (dim,) = self._arguments("dim")  # that of the output, 0-based
        dims = self._example_dims
        if dims is not None and dim > dims:
            return None
        after = Form()
        if dims is not None and dims == self._input_form.rank:
            after = Form(dims + 1)
        return self._expression(after, "lambda x: x.unsqueeze(dim)", dim=self._from_end(dim, added=1))

    def squeeze(self) -> Idiom | None:
        """Write the removal of a dimension of one element, where PyTorch removes the same.

        `None` is returned for all dimensions at once, for one counted within an example, and where the dimension may be
        the only one, which Lua keeps.
        """
        (dim,) = self._arguments("dim")
        # Written only where the layer counts the dimensions of its input, as PyTorch does.
        if dim is None or self._example_dims is not None:
            return None
        # Of an example of one dimension it may be the only one, which PyTorch removes.
        if (self._input_form.rank or 0) < 2:
            return None
        return self._expression(Form(), "lambda x: x.squeeze(dim)", dim=dim)

    def replicate(self) -> Idiom | None:
        """Write a replication along a new dimension if it is one of one element.

        `None` is returned for more times, which need the shape of the input, and for a dimension counted within an
        example, which depends on whether there is a batch.
        """
        times, dim = self._arguments("times", "dim")
        if times != 1 or self._example_dims is not None:
            return None
        return self._expression(Form(), "lambda x: x.unsqueeze(dim)", dim=dim or 0)  # the first by default

    def transpose(self) -> Idiom | None:
        """Write exchanges of dimensions, one call each; `None` for very many, or for dimensions that no example has.

        The arguments of the module are pairs of dimensions, 0-based, of one example if Lua knows its dimensions.
        """
        if len(self._args) > _MOST_CHAINED:
            return None
        if any(self._is_beyond_example(first) or self._is_beyond_example(second) for first, second in self._args):
            return None

        def write(x: ast.expr) -> ast.expr:
            """Return the chain of calls `x.transpose(1, 2).transpose(0, 1)`."""
            for pair in self._args:
                x = method(x, "transpose", *map(self._from_end, pair))
            return x

        keeps_rank = self._example_dims is not None and self._example_dims == self._input_form.rank
        return Idiom(Form(self._example_dims) if keeps_rank else Form(), write)

    def narrow(self) -> Idiom | None:
        """Write a range along a dimension; `None` with negative numbers, which have another meaning in PyTorch."""
        dim, start, length = self._arguments("dim", "start", "length")
        if start < 0 or length < 0:
            return None
        form = self._input_form
        after = Form(form.rank)  # of another origin: its extents are others
        # An example of one dimension has it as -1, and in a batch as 1, which fails without a batch.
        is_of_only_dimension = form.rank == 1 and dim in (1, -1)
        if is_of_only_dimension:
            after = Form(1, form.origin, (length,))
        return self._expression(after, "lambda x: x.narrow(dim, start, length)", dim=dim, start=start, length=length)

    def reduce(self, name: str, attribute: str = "") -> Idiom | None:
        """Write a reduction over one dimension.

        `None` is returned where the input may be a vector, the dimension depends on the input, or the output keeps it.

        Args:
            name: the method of tensors: `sum`, `max`, `min`; a `sum` that averages in Lua becomes `mean`.
            attribute: what its result has the output in: `values`; empty if it is the output.
        """
        (dim,) = self._arguments("dim")  # 0-based, of one example if Lua knows its dimensions, else of the input
        rank = self._input_form.rank
        # An example may be a vector, for which Lua returns one number in one dimension, PyTorch in none.
        if rank is None or rank < 2:
            return None
        # A layer of Lua that is set to examples of other dimensions takes an example for a batch, or the reverse.
        counts_other_examples = self._example_dims is not None and self._example_dims != rank
        if counts_other_examples or self._is_beyond_example(dim):
            return None
        if self._keyword("squeeze") is False:  # the output keeps the dimension
            return None
        name = "mean" if self._keyword("average") else name
        template = f"lambda x: x.{name}(dim)"
        if attribute:  # `max` and `min` return values and indices
            template += f".{attribute}"
        # The first dimension of the input may be that of the batch: without it, the rank of an example is not known.
        is_of_example = self._example_dims is not None or dim > 0
        after = Form(rank - 1) if is_of_example else Form()
        return self._expression(after, template, dim=self._from_end(dim))

    def pool_in_time(self) -> Idiom:
        """Write a maximum over windows of a sequence, whose features are last in Lua."""
        size, stride = self._args
        strides = "" if size == stride else ", stride=stride"
        return self._expression(Form(2), f"lambda x: F.max_pool1d(x.mT, size{strides}).mT", size=size, stride=stride)

    # Modules with operations around them

    def look_up(self) -> Idiom:
        """Write an embedding of numbers from 1, or from `index_base`, by one of torch.nn, whose numbers are from 0."""
        kwargs = dict(self._spec.kwargs)
        base = kwargs.pop("index_base", 1)
        numbers = "x.long() - base" if base else "x.long()"
        # The rank is not known, as that of the input is not. The origin is another, as the output has a dimension more
        # than the input: what a later layer requires of its extents is not required of the input's. But as the input,
        # the output is a batch where inputs of the model are.
        after = Form(origin=BatchOrigin(is_input=self._input_form.origin.is_input))
        construction = torch_construction("Embedding", self._args, kwargs, self._spec)
        return Idiom(after, formula(f"lambda module, x: module({numbers})", base=base), construction)

    def outputs(self) -> Idiom | None:
        """Write a recurrent layer that begins each sequence from zeros, and returns only the outputs.

        `None` is returned if it keeps its state between sequences: then it has no plain class.
        """
        if not self._spec.plain:
            return None
        # The plain class has no such option, and does not remember.
        options = {name: value for name, value in self._spec.kwargs.items() if name != "remember"}
        construction = torch_construction(self._spec.plain.removeprefix("torch.nn."), self._args, options, self._spec)
        return Idiom(Form(2), formula("lambda module, x: module(x)[0]"), construction)

    def conv_in_time(self) -> Idiom:
        """Write a convolution over a sequence, (time, features), by one of torch.nn, which takes the transpose."""
        construction = torch_construction("Conv1d", self._args, dict(self._spec.kwargs), self._spec)
        in_channels, out_channels, kernel, stride = self._arguments(
            "in_channels", "out_channels", "kernel_size", "stride"
        )
        form_of_input = self._input_form.as_input_with_extent(rank=2, dim=1, extent=in_channels)
        time, _features = form_of_input.extents
        stride = 1 if stride is None else stride
        try:
            steps = slid(time, _of_only_axis(kernel), _of_only_axis(stride), padding=0)
        except Mismatch:  # a stride of 0, which fails when it is called
            after = Form(rank=2)
        else:
            after = Form(2, form_of_input.origin, (steps, out_channels))
        return Idiom(after, formula("lambda module, x: module(x.mT).mT"), construction)


def _of_only_axis(argument: Any) -> Any:
    """Return the number that an argument of a layer with windows over one axis is, or the only one in a tuple."""
    return argument[0] if isinstance(argument, tuple) else argument


IDIOMS = frozenset(name for name in vars(Idioms) if not name.startswith("_"))
"""The names by which entries request plain PyTorch."""
