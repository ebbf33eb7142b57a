"""From the calls of a program to the steps of Lua layers: each is computed now, built by the table, or refused."""

from __future__ import annotations

from math import inf, prod
from typing import Any

from attrs import field

from ...data import define, np
from ...errors import T7BridgeError, UnsupportedError
from . import whole
from .build import EMPTY, OF_COMPLEX, OPERATIONS, Builder, Operation, Wire, range_at_runtime
from .counts import extent_at_runtime
from .exporting import is_tensor
from .layers import LuaNode, WeightRef, make
from .sizes import CannotError, Extent, Relation, is_static
from .trace import CallRef, TracedCall, tree_leaves, tree_map
from .values import Complex, Const, Missing, OpenRange, Scaled, Stored

BY_PARTS = (
    *("alias", "contiguous", "detach", "dropout", "expand", "expand_as", "broadcast_to", "feature_dropout", "flatten"),
    *("positive", "reshape", "reshape_as", "squeeze", "to", "type_as", "unflatten", "unsqueeze", "view", "view_as"),
    *("select", "unbind", "slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split"),
    *("unsafe_chunk", "transpose", "permute", "t", "mT", "unfold", "cat", "stack", "clone", "repeat", "roll", "flip"),
    *("index_select", "add", "sub", "neg", "sum", "mean"),
)
"""Names of operations that act on the two parts of complex numbers alike."""
_BUILT_FOR_OPEN_EXTENTS = (
    *("zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "empty", "new_empty", "arange"),
    "slice",
)
"""Names of operations that have builders for an open extent: values without inputs, which may have the size of the
batch, and parts of constants."""
UNKNOWN = "Lua has no such operation, and no composition is known"
RANDOM = "draws random numbers, which no layer of nn does"


@define(frozen=True)
class _Problem:
    """An operation or output that Lua cannot express.

    Attributes:
        line: in the user's source; empty if it is not known.
        operation: `aten.sort.default`, or what else it is, in words.
        reason: why not.
    """

    line: str
    operation: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operation} at {self.line or 'an unknown line'}: {self.reason}"


@define(eq=False)
class ProgramBuilder(Builder):
    """Builds all calls of a program as steps of a Lua graph, and collects what Lua cannot express.

    A value that Lua does not have is a `Missing`, so that the calls that take it can be judged, too.

    Attributes:
        problems: what Lua cannot express; `run` raises one error for all.
        scalar_outputs: numbers of the outputs without dimensions, from 1, which have one of extent 1 in Lua; `run` sets
            it.
        used: names of the values that calls take or the program returns: a random one is refused only if it is used.
            `run` sets it before it builds any call.
    """

    problems: list[_Problem] = field(factory=list)
    scalar_outputs: list[int] = field(factory=list)
    used: set[str] = field(factory=set)

    def run(self) -> tuple[list[LuaNode], list[LuaNode]]:
        """Build all calls of the program.

        Returns:
            The input steps and the output steps; those between are in `steps`.

        Raises:
            UnsupportedError: operations that cannot be expressed, all of them.
        """
        for text in self.program.changed:
            self.remark(text, warning=True)
        self.used = self._names_of_used_values()
        inputs = self._inputs()
        self._set_values_before_calls()
        for call in self.program.calls:  # each takes values of earlier ones
            self.call = call
            self.env[call.name] = self._value_of(call)
        outputs = self._outputs()
        if self.problems:
            raise self._error_of_problems()
        return inputs, outputs

    def _names_of_used_values(self) -> set[str]:
        """Return the names of the values that calls take or the program returns."""
        names: set[str] = set()
        for arguments in [*(call.args for call in self.program.calls), self.program.outputs]:
            names.update(item.name for item in tree_leaves(arguments) if isinstance(item, CallRef))
        return names

    def _set_values_before_calls(self) -> None:
        """Set the values that are known before any call: tensors of the state dict, and constants."""
        for name, (key, learned) in self.program.stored.items():
            shape = tuple(self.program.state[key].shape)
            self.env[name] = Stored(WeightRef(key, start=0, size=shape), shape, learned)
        for name, value in self.program.constants.items():
            self.env[name] = Const(value, tuple(value.shape)) if is_tensor(value) else value

    def _error_of_problems(self) -> UnsupportedError:
        """Return the error that lists all problems, each once."""
        texts = dict.fromkeys(map(str, self.problems))
        count = f"{len(texts)} operation{'s' if len(texts) > 1 else ''}"
        lines = "".join(f"\n  {text}" for text in texts)
        return UnsupportedError(f"{count} of the module cannot be expressed with nn and nngraph{lines}")

    def _inputs(self) -> list[LuaNode]:
        """Return the steps of the inputs, and set their values: floats, behind a copy where an input has others."""
        inputs = []
        for index, (name, shape) in enumerate(self.program.inputs.items()):
            step = LuaNode(None, shape=shape, index=index)
            inputs.append(step)
            value = Wire(self, step, shape)
            dtype = self.program.dtypes[name]
            # Lua has no bfloat16, and takes floats for it; whole numbers and masks are longs.
            if dtype not in ("float32", "float64", "bfloat16"):
                # The gradient of a copy has the type that the copy takes: half ones for half inputs.
                source = "torch.HalfTensor" if dtype == "float16" else "torch.LongTensor"
                value = value >> make("nn.Copy", source, "torch.FloatTensor")
            self.env[name] = value
        return inputs

    def _outputs(self) -> list[LuaNode]:
        """Return the steps of the values that the program returns, with notes of what is another value in Lua.

        Outputs that Lua cannot have are added to the problems; `None`s are left out. A constant or a tensor of the
        state dict becomes a step here, as if the last call, which is still `self.call`, had made it.
        """
        outputs: list[LuaNode] = []
        for item in self.program.outputs:
            dtype = self.program.dtypes.get(item.name, "") if isinstance(item, CallRef) else ""
            value = self._output_or_none(item, dtype)
            if value is None:
                continue
            number = len(outputs) + 1  # as Lua counts
            if isinstance(value, (int, float, Extent)):
                self.remark(f"output {number} is a number: a tensor of one element in Lua")
                value = self._tensor_of_number(value)
            if dtype.startswith("int"):  # uint8 and masks are floats, too, but never beyond what is exact
                self.remark(f"output {number} has whole numbers as floats, exact up to {whole.EXACT_FLOAT}")
            outputs.append(self.wire(value).step)
            if value.shape == ():
                self.scalar_outputs.append(number)
        return outputs

    def _tensor_of_number(self, number: Any) -> Const | Wire:
        """Return a number as a tensor without dimensions; an extent is counted when the model runs, if layers can."""
        count = extent_at_runtime(self, number) if isinstance(number, Extent) else None
        if isinstance(count, Wire):
            return Wire(self, count.step, ())
        return self.constant(np.array(float(number)))

    def _output_or_none(self, item: Any, dtype: str) -> Any:
        """Return the value of an output; `None`, with a note or a problem, if Lua does not return it.

        Args:
            item: the output: a `CallRef`, a number, an `Extent`, a `Relation`, a text or `None`.
            dtype: its element type in PyTorch, `float32`; empty for what is no tensor.
        """
        value = _output_or_missing(self.env[item.name] if isinstance(item, CallRef) else item, dtype)
        if value is None:
            self.remark("an output that is None is left out: those after it move up")
            return None
        if isinstance(value, OpenRange):
            return range_at_runtime(self, value)
        if isinstance(value, Relation):
            value = _decided(value)
        if not isinstance(value, Missing):
            return value
        if value.reason:  # if not, it is among the problems already
            self.problems.append(_Problem(line="", operation="the output", reason=value.reason))
        return None

    # Calls

    def _value_of(self, call: TracedCall) -> Any:
        """Build a call and return its value; if it cannot be built, add to the problems and return a `Missing`.

        No problem ends the building, so that one error can list all of a program. The value is `None` for a call that
        computes a size, or asserts something of sizes.
        """
        entry = OPERATIONS.get(call.op)
        missing_values = self._missing_arguments(call)
        if missing_values:
            self._add_problems_of_arguments(call, entry, missing_values)
            return Missing("", call.shape)
        args = tree_map(lambda item: self.env[item.name] if isinstance(item, CallRef) else item, call.args)
        if call.op == "operator.getitem":
            results, number = args.values()
            return results[number]
        if not _is_on_tensors(call):
            return None  # its value, a number of sizes, is an `Extent` in the arguments of others
        if 0 in call.shape:  # an open extent is not 0, which needs no condition
            return self.empty(call.shape)
        return self._built_or_missing(call, entry, args)

    def _add_problems_of_arguments(self, call: TracedCall, entry: Operation | None, missing: list[Missing]) -> None:
        """Add to the problems why a call lacks arguments, and why it could not be built if it had them.

        Args:
            call: the call.
            entry: its operation in the table; `None` if there is none.
            missing: the arguments that Lua does not have.
        """
        # A value that a call failed to build has an empty reason: it is among the problems already. One that no call
        # builds, as a further result that Lua's layer does not return, is a problem of each call that takes it.
        reasons = [value.reason for value in missing]
        if _is_on_tensors(call):
            reasons.append(self._refusal(entry))  # empty if it could be built
        self.problems += [self._problem(reason) for reason in reasons if reason]

    def _built_or_missing(self, call: TracedCall, entry: Operation | None, args: dict[str, Any]) -> Any:
        """Return the value of a call by `_build`; if it fails, add to the problems and return a `Missing`."""
        try:
            return self._build(call, entry, args)
        except CannotError as error:
            self.problems.append(self._problem(str(error)))
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            # A builder is written for the arguments that it knows, and fails in any way with others.
            if isinstance(error, T7BridgeError):
                raise
            self.problems.append(self._problem(f"with these arguments no composition is known ({error})"))
        return Missing("", call.shape)

    def _missing_arguments(self, call: TracedCall) -> list[Missing]:
        """Return the arguments of a call that are `Missing`, also those inside lists.

        The value of a call with several results is not looked into: an `operator.getitem` may take one that is there.
        """
        values = [self.env[item.name] for item in tree_leaves(call.args) if isinstance(item, CallRef)]
        return [value for value in values if isinstance(value, Missing)]

    def _problem(self, reason: str) -> _Problem:
        """Return the current call, `self.call`, as a problem with a reason.

        Of an operation that PyTorch has decomposed, the reason names the part that fails.
        """
        if self.call.origin:
            return _Problem(self.call.line, self.call.origin, f"{self.call.op}: {reason}")
        return _Problem(self.call.line, self.call.op, reason)

    def _refusal(self, entry: Operation | None) -> str:
        """Return why an operation of the table, or one that is not in it, cannot be expressed; empty if it can."""
        if entry is None:
            return RANDOM if self.call.is_random else UNKNOWN
        if not self._is_allowed(entry):
            return f"nn has no such layer; --allow {entry.package} writes one"
        return ""

    def _is_allowed(self, entry: Operation) -> bool:
        """Return whether the user allows what an operation needs besides nn and nngraph."""
        return not entry.package or entry.package in self.allow

    def _build(self, call: TracedCall, entry: Operation | None, args: dict[str, Any]) -> Any:
        """Return the value of a call on tensors whose arguments are all there: computed now, or by layers.

        Args:
            call: the call.
            entry: its operation in the table; `None` if the table lacks it, which constants do not need.
            args: the arguments by name, with the values of other calls in place of their `CallRef`s.

        Raises:
            CannotError: it cannot be expressed.
        """
        args = self._simpler_args(call, entry, args)
        if call.is_random and call.name not in self.used:  # as the mask of a dropout that does nothing: no problem
            return Missing()
        # Before the table is asked: PyTorch computes any operation on constants. Random values are drawn in each run.
        if not call.is_random and self._can_be_computed_now(call, args):
            return self.compute(args)
        # Only now: PyTorch takes complex tensors, and the builders their real and imaginary parts.
        args = tree_map(_as_real_and_imaginary, args)
        if any(isinstance(value, (Complex, complex)) for value in tree_leaves(args)):
            return self._of_complex(call, entry, args)
        if entry is None or not self._is_allowed(entry):
            raise CannotError(self._refusal(entry))
        self._refuse_inexact_whole_numbers(call)
        return _in_shape_of_call(call, entry, entry.call(self, args))

    def _simpler_args(self, call: TracedCall, entry: Operation | None, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call, with those kinds of values as wires that few operations take as they are.

        These kinds are an `OpenRange`, which is counted when the model runs, and a `Scaled`, which is multiplied. See
        `_build` for the arguments.
        """
        if not call.op.startswith(("aten.index.", "aten.embedding_bag")):  # these have layers for a range
            args = tree_map(lambda item: range_at_runtime(self, item) if isinstance(item, OpenRange) else item, args)
        if entry is None or not entry.scaled:
            args = tree_map(lambda item: self.wire(item) if isinstance(item, Scaled) else item, args)
        return args

    def _can_be_computed_now(self, call: TracedCall, args: dict[str, Any]) -> bool:
        """Return whether all arguments of a call are constants, and PyTorch can compute its value from them now.

        Args:
            call: the current call, `self.call`, which is not random.
            args: its arguments by name, which are values and no `CallRef`s.
        """
        values = tree_leaves(args)
        if any(isinstance(value, (Wire, Stored, Scaled, Complex)) for value in values):
            return False
        has_open_extent = any(isinstance(item, Extent) for item in [*values, *tree_leaves(call.shape)])
        # Their builders leave the extent open. To compute others, it is fixed as in the example.
        if has_open_extent and self.kind in _BUILT_FOR_OPEN_EXTENTS:
            return False
        # The builders keep a constant as small as it is; PyTorch would need all of its elements.
        return not any(isinstance(value, Const) and value.shape != tuple(value.value.shape) for value in values)

    # Whole numbers

    def _refuse_inexact_whole_numbers(self, call: TracedCall) -> None:
        """Refuse a value of whole numbers that may not be exact as floats; else note its least and largest in `bounds`.

        The call is the current one, whose operation `kind` is.

        Raises:
            CannotError: a product may be too large, or the type has few bits and wraps around.
        """
        dtype = self.program.dtypes.get(call.name, "")
        if not dtype.startswith(("int", "uint")):
            return
        is_double = self.program.is_double
        low, high = self._bounds_of_value(call)
        reason = whole.refusal(self.kind, dtype, (low, high), is_double)
        if reason:
            raise CannotError(reason)
        # A sum may be beyond what floats hold exactly. It is taken to be within, as inputs are.
        largest = whole.exact_up_to(is_double)
        self.bounds[call.name] = (max(low, -largest), min(high, largest))

    def _bounds_of_value(self, call: TracedCall) -> whole.Bounds:
        """Return the bounds of the value of the current call, `self.call`, by those of its operands."""
        names = whole.OPERANDS_OF.get(self.kind, whole.OPERANDS)
        operands = [call.args[name] for name in names if call.args.get(name) is not None]
        count_of_terms = self._count_of_terms(operands[0] if operands else None)
        # Last, where `whole.bounds_of` expects it: the factor of a term of a sum.
        if call.args.get("alpha", 1) != 1:
            operands.append(call.args["alpha"])
        bounds_of_operands = []
        for item in tree_leaves(operands):
            bounds = self._bounds_of_operand(item)
            if bounds is not None:
                bounds_of_operands.append(bounds)
        return whole.bounds_of(self.kind, bounds_of_operands, count_of_terms)

    def _count_of_terms(self, first_operand: Any) -> float:
        """Return how many elements of its first operand the current operation adds at most for one of the result.

        A sum may add all of them, and a product of matrices those of a row. Infinite if that depends on the inputs.

        Args:
            first_operand: a `CallRef` or a number, or a list of these; `None` if there is none.
        """
        extents: list[Any] = []
        for item in tree_leaves(first_operand):
            if isinstance(item, CallRef):  # a tensor; any other operand is one number
                shape = self.env[item.name].shape
                extents += shape[-1:] if self.kind in whole.MATRIX_PRODUCTS else shape
        return prod(extents) if is_static(extents) else inf

    def _bounds_of_operand(self, item: Any) -> whole.Bounds | None:
        """Return the bounds of the elements of an operand; `None` if it is neither a number nor a tensor.

        That is so of an `Extent`, which the builder of the operation fixes, so that the program is built again with a
        number in its place; and of an item of a list that is `None`.

        Args:
            item: the operand, or an item of one that is a list.
        """
        if isinstance(item, (int, float)):
            return item, item
        if not isinstance(item, CallRef):
            return None
        value = self.env[item.name]
        if isinstance(value, Const) and value.value.numel() and not value.value.is_complex():
            array = value.array()
            return float(array.min()), float(array.max())
        if item.name in self.bounds:  # the value of an earlier call
            return self.bounds[item.name]
        return whole.of_type(self.program.dtypes.get(item.name, ""), self.program.is_double)

    # Complex numbers

    def _of_complex(self, call: TracedCall, entry: Operation | None, args: dict[str, Any]) -> Any:
        """Build a call on complex numbers: by the entry for these, or by that for real numbers, once for each part.

        What the user allows is not asked here: no entry that this uses has a `package`.

        Args:
            call: the call.
            entry: its operation in the table; `None` if there is none.
            args: its arguments by name, at least one of which is a `Complex` or a complex number.

        Raises:
            CannotError: there is no entry, or it does not act on both parts alike.
        """
        entry_of_complex = OF_COMPLEX.get(call.op)
        if entry_of_complex is not None:
            return entry_of_complex.call(self, args)
        if entry is None or self.kind not in BY_PARTS:
            raise CannotError("no composition for complex numbers is known")
        return self._by_parts(entry, args)

    def _by_parts(self, entry: Operation, args: dict[str, Any]) -> Any:
        """Build the current call once for the real parts of its arguments, and once for the imaginary ones.

        Args:
            entry: its operation, which acts on both parts alike.
            args: its arguments by name.
        """
        real_args = tree_map(lambda item: item.real if isinstance(item, (Complex, complex)) else item, args)
        imag_args = tree_map(_imaginary_or_same, args)
        # The imaginary part of a real operand is 0, also of a number. Those that are not operands, by ATen's names of
        # these, are dimensions and the like, and the same for both parts.
        for name in ("self", "other"):
            if name in args and not isinstance(args[name], (Complex, complex)):
                imag_args[name] = 0.0
        real = entry.call(self, real_args)
        imag = entry.call(self, imag_args)
        if isinstance(real, list):
            return [Complex(*pair) for pair in zip(real, imag)]
        return Complex(real, imag)


def _is_on_tensors(call: TracedCall) -> bool:
    """Return whether a call is of tensors: not an item of several results, nor arithmetic or an assertion of sizes."""
    return not call.op.startswith(("operator.", "aten.sym_", "aten._assert"))


def _in_shape_of_call(call: TracedCall, entry: Operation, value: Any) -> Any:
    """Return what a builder returned as the value of its call.

    A tensor of one element becomes one without dimensions, where the call has that; a first result becomes a list with
    a `Missing` for each of the others.

    Args:
        call: the call, with the shape of its value.
        entry: its operation.
        value: what the operation's `build` returned.
    """
    if isinstance(value, Wire) and call.shape == () and value.shape == (1,):
        return Wire(value.b, value.step, ())  # Lua has no tensors without dimensions
    returns_several = bool(call.shape) and isinstance(call.shape[0], tuple)
    if returns_several and not isinstance(value, list):
        # Lua has only the first of them.
        return [value, *(Missing(entry.missing) for _ in call.shape[1:])]
    return value


def _as_real_and_imaginary(value: Any) -> Any:
    """Return a complex constant as a `Complex` of two real ones; other values unchanged."""
    if not isinstance(value, Const) or not value.value.is_complex():
        return value
    return Complex(Const(value.value.real, value.shape), Const(value.value.imag, value.shape))


def _imaginary_or_same(value: Any) -> Any:
    """Return the imaginary part of a tensor or a complex number, 0 for a real tensor; other values unchanged."""
    if isinstance(value, (Complex, complex)):
        return value.imag
    return 0.0 if isinstance(value, (Wire, Const, Stored)) else value


def _decided(relation: Relation) -> bool | Missing:
    """Return whether a comparison of sizes holds in the example, and so always; a `Missing` if no example tells."""
    try:
        return bool(relation)
    except CannotError as error:
        return Missing(str(error))


def _output_or_missing(value: Any, dtype: str) -> Any:
    """Return an output, or a `Missing` for one that Lua does not have: a text, complex numbers, or without elements.

    Args:
        value: of any kind; `None` stays.
        dtype: its element type in PyTorch, `float32`; empty for what is no tensor.
    """
    if isinstance(value, str):
        return Missing("a text, and no tensor")
    # What is computed from inputs has elements (see `Emitter.emit`), and an input may be returned as it is.
    if isinstance(value, (Const, Stored)) and 0 in value.shape:
        return Missing(EMPTY)
    if dtype.startswith("complex") and not isinstance(value, Missing):
        return Missing("complex numbers")
    return value
