"""From a plan to steps, the data flow before anything has a name. A spec is a module of the plan; it becomes steps,
plain PyTorch (an idiom), or one step with a module of torch.nn, or of its own class, whose source the page includes.
Its traits are what the entry of its class declares: `flow`, what it does with its input and the modules inside;
`written`, the method of `Lists` or `Idioms` that writes it, and arguments; `block`, a name for a class of its steps.
The form of a value is what is known of its shape, nothing in `Form()`; its kind says whether it is a tensor or a list.
The plain class of a spec is the class of torch.nn that does the same for each tensor with a batch dimension. A
construction is the call that makes a module.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise

from ..data import define
from ..errors import ModelError, UnsupportedError
from ..limits import Budget, Limits
from ..nn import walk
from ..nn.fields import items_of
from ..nn.kinds import ANY, NEVER, NOTHING, TENSOR, Kind, Kinds, listed, many
from ..nn.mapping import OURS, SEQUENTIAL, GraphSpec, Link, ModuleSpec, first_module_in, last_module_in, specs_in
from ..nn.memory import MemoryEffects
from ..nn.pieces import CLASS_IN_TORCH_OF_CELL, CLASS_IN_TORCH_WITH_STATE
from ..nn.registry import tensor_shapes, traits_of
from ..nn.torch_nn import TORCH
from .code import TAKEN, Construction, Write, applied, dotted, formula, sequential, usable_name
from .copied import SourcePiece, defaults_of, pieces, remembers, reserved_names
from .idioms import (
    Idiom,
    attribute_base_name,
    copying,
    form_of_copy,
    function_of,
    idiom_of,
    torch_construction,
    traits,
)
from .names import attention_names
from .steps import (
    INPUT,
    PARTS,
    Attribute,
    BatchOrigin,
    CodeBlock,
    Form,
    Ref,
    Step,
    Value,
    certainly_same_shape,
    pick,
    refs,
)

TOO_DEEP = "the modules of this model are nested too deep to be written down"
USE_CONVERT = "`t7bridge convert` converts the weights."
_MOST_NESTED = 60
"""Maximum nesting of constructions; Python's parser allows 200 brackets."""
_MOST_OPERANDS = 50
"""Maximum operands of one expression; Python's parser fails at some thousand."""
SUM = ("fold", "+")
"""Writer of a layer that adds up the elements of a list."""


# Modules


class SourceBuilder:
    """Makes the classes (`CodeBlock`) of a model's source, and collects the layers that it includes or imports.

    Attributes:
        blocks: all blocks made so far, those that others contain first.
        copied_pieces: the classes, functions and constants of this package that the source includes, by name; empty
            until `construct_by_own_class` adds some.
        foreign_imports: classes of others that it imports: the module and the name there, by the name in the source.
        budget: resource limits of generating.
        memory_effects: which modules write to their input, or return its memory.
        output_kind: returns the kind of the output of a module, for the module and the kind of its input.
        has_inplace: whether any module of the model changes its input in place.

    Args:
        shared_ids: the modules that occur at several places, by id.
        limits: resource limits.
        free_steps: steps of the budget that the size of the plan accounts for.
        has_inplace: whether any module of the model changes its input in place.
    """

    def __init__(self, shared_ids: set[int], limits: Limits, free_steps: int, has_inplace: bool) -> None:
        """Begin without classes, and with a budget in which the first steps (`free_steps`) cost nothing."""
        self.blocks: list[CodeBlock] = []
        self.copied_pieces: dict[str, SourcePiece] = {}  # by name
        self.foreign_imports: dict[str, tuple[str, str]] = {}  # name in the source → module, and name there
        self.budget = Budget(limits, "writing the model as source", free_steps)
        self.memory_effects = MemoryEffects()
        self.output_kind = Kinds(traits_of)
        self.has_inplace = has_inplace
        self._shared_ids = shared_ids
        """The modules that occur at several places, by id."""
        self._block_and_form: dict[int, tuple[CodeBlock, Form]] = {}
        """The class made for a module, and the form of its output, by the module's id."""

    def build_model(self, spec: ModuleSpec) -> None:
        """Add the class of the whole model, `Model`, to `blocks`, after the classes inside."""
        self._block_for(spec, Form(), ANY, "Model", is_whole_model=True)

    def build_criterion(self, spec: ModuleSpec) -> None:
        """Add the class `Model` of a criterion, its only module, to `blocks`; `forward` also takes the target."""
        block = CodeBlock(spec, "Model", is_whole_model=True)
        construction = self.construct_by_own_class(spec)
        # Some criterions, such as L1Cost, compare their input with nothing. A foreign class, which is no copied piece,
        # is called with a target, as its `forward` is not known.
        piece = self.copied_pieces.get(construction.name)
        takes_target = piece is None or piece.input_count > 1
        write = formula("lambda module, x: module(x, target)") if takes_target else applied
        body = Body(self, block, Form(), ANY)
        block.result = body.add_module(spec, construction, INPUT, name="criterion", form=Form(), write=write)
        self.blocks.append(block)

    def construct(self, spec: ModuleSpec, form: Form | None = None, kind: Kind = ANY) -> tuple[Construction, Form]:
        """Return the construction of a module, and the form of its output.

        Args:
            spec: the module.
            form: that of its input; nothing is known of it if `None`.
            kind: that of its input.

        Raises:
            UnsupportedError: the nesting is too deep for Python's parser.
        """
        self.budget.spend()
        if self.is_shared(spec):
            # It is used for several inputs, whose batches and extents may differ: only the rank holds for all.
            construction, form_of_output = self._simplest_module(spec, Form(), ANY)
            return construction, Form(form_of_output.rank)
        return self._simplest_module(spec, Form() if form is None else form, kind)

    def _simplest_module(self, spec: ModuleSpec, form: Form, kind: Kind) -> tuple[Construction, Form]:
        """Return the simplest construction of a module that is exact, and the form of its output.

        It is a module of torch.nn, else of a class with its steps, else of the layer's own class.

        Args:
            spec: the module.
            form: that of its input.
            kind: that of its input.
        """
        construction_and_form = self._torch_module(spec, form, kind)
        if construction_and_form is None:
            construction_and_form = self._module_of_own_class(spec, form, kind)
        construction, form_of_output = construction_and_form
        construction.depth = 1 + max((inner.depth for _, inner in construction.inner_modules()), default=0)
        _check_nesting(construction.depth, spec.path)
        return construction, form_of_output

    def _module_of_own_class(self, spec: ModuleSpec, form: Form, kind: Kind) -> tuple[Construction, Form]:
        """Return the construction of a module that torch.nn has not, and the form of its output.

        Its class is made of steps where it is a container that can be written so; otherwise it is the layer's own.

        Args:
            spec: the module.
            form: that of its input.
            kind: that of its input.
        """
        is_made_of_steps = spec.target == SEQUENTIAL or (traits(spec).block and self.can_be_steps(spec, kind))
        if not is_made_of_steps:
            return self.construct_by_own_class(spec), form_of_copy(spec, form)
        block, form_of_output = self._block_for(spec, form, kind, _block_base_name(spec))
        construction = Construction(block.base_name, spec=spec, block=block, original_block=block)
        return construction, form_of_output

    def _torch_module(self, spec: ModuleSpec, form: Form, kind: Kind) -> tuple[Construction, Form] | None:
        """Return the construction of a module of torch.nn, and the form of its output.

        It is `None` if no single module of torch.nn expresses the whole module.

        Args:
            spec: the module.
            form: that of its input.
            kind: that of its input.
        """
        if spec.target == SEQUENTIAL:
            return self._torch_sequential(spec, form, kind)
        # A layer may take a list where its plain class does not. What has no plain class takes none in Lua either.
        if spec.plain and kind.is_list:
            return None
        idiom = idiom_of(spec, form)
        if idiom is None or idiom.construction is None or idiom.has_operations:
            return None
        return idiom.construction, idiom.form

    def _torch_sequential(self, spec: ModuleSpec, form: Form, kind: Kind) -> tuple[Construction, Form] | None:
        """Return the construction of an `nn.Sequential`, and the form of its output.

        It is `None` if a module in it is better written as steps.

        Identities are left out, but one stands for a Sequential of nothing else. With `None`, what was noted for the
        modules before that one stays: `prepared` removes from `blocks` and `copied_pieces` what nothing uses.

        Args:
            spec: the Sequential.
            form: that of its input.
            kind: that of its input.
        """
        constructions = []
        for child in spec.children.values():
            if self._is_better_as_steps(child, form):
                return None
            construction, form = self.construct(child, form, kind)
            kind = self.output_kind(child, kind)
            if construction.name != "nn.Identity":
                constructions.append(construction)
        if not constructions:
            constructions = [Construction("nn.Identity")]
        return sequential(constructions, spec), form

    def _is_better_as_steps(self, spec: ModuleSpec, form: Form) -> bool:
        """Return whether a module is better written as steps of the class that contains it than as a module.

        Args:
            spec: the module.
            form: that of its input.
        """
        if _returns_list(spec) or _takes_list(spec):
            return True
        if spec.target.startswith("torch.nn."):
            return False
        idiom = idiom_of(spec, form)
        return idiom is not None and idiom.has_operations

    def _block_for(
        self, spec: ModuleSpec, form: Form, kind: Kind, base_name: str, is_whole_model: bool = False
    ) -> tuple[CodeBlock, Form]:
        """Return the class for a module, and the form of its output.

        It is made once, for the form and kind that are given first. Of the input of a module at several places, which
        is shared, nothing is known each time.

        Args:
            spec: the module.
            form: that of its input.
            kind: that of its input.
            base_name: the name of the class without a number.
            is_whole_model: whether it is the class of the whole model.
        """
        if id(spec) not in self._block_and_form:
            block = CodeBlock(spec, base_name, is_whole_model=is_whole_model)
            body = Body(self, block, form, kind)
            # `apply` would make a Sequential a module of the class that it becomes, which is this one.
            add_steps = body.sequence if spec.target == SEQUENTIAL else body.apply
            block.result = add_steps(spec, INPUT)
            # A list after `return` is written out like one among the operands of a step, which `add` charges.
            body.charge_list(block.result)
            # After the classes inside, which were added meanwhile.
            self.blocks.append(block)
            self._block_and_form[id(spec)] = (block, body.form(block.result))
        return self._block_and_form[id(spec)]

    def _imported_as(self, home: str, name: str) -> str:
        """Return the name under which the source imports a user's class, and note the import in `foreign_imports`.

        A class that is called as something that the source may have itself (`Softmax`, `Model`, `nn`), or as a class of
        another module, is imported under another name: otherwise one would take the place of the other.

        Args:
            home: the module that has the class.
            name: of the class there.
        """
        # Names that each source has or that are Python's, and those of the layers that a source may include.
        reserved = TAKEN | reserved_names()
        imported_name = name
        number = 1
        # A name that was given to this very class before is returned again.
        while imported_name in reserved or self.foreign_imports.get(imported_name, (home, name)) != (home, name):
            imported_name = f"Own{name}" if number == 1 else f"Own{name}{number}"
            number += 1
        self.foreign_imports[imported_name] = home, name
        return imported_name

    def construct_by_own_class(self, spec: ModuleSpec) -> Construction:
        """Return the construction of a layer by its own class, and of the modules in it.

        A class of this package is noted to be included in the source, any other to be imported.
        """
        home, _, name = spec.target.rpartition(".")
        if spec.target.startswith(OURS):
            self.copied_pieces.update((piece.name, piece) for piece in pieces(spec.target))
        else:
            dotted(spec.target)  # which refuses what is not a name of Python
            if not home:
                raise ModelError("the class is in no module", path=spec.path, found=spec.target)
            name = self._imported_as(home, name)
        positional, keywords = self._construct_children(spec)
        # There may be as many positional arguments as the file says; keywords are those of the entry.
        self.budget.spend(len(spec.args))
        # An argument with its default value is not written; the constructors of foreign classes are not known.
        defaults = defaults_of(self.copied_pieces[name]) if name in self.copied_pieces else {}
        return Construction(name, [*positional, *spec.args], {**keywords, **spec.kwargs}, defaults, spec=spec)

    def _construct_children(self, spec: ModuleSpec) -> tuple[list[Construction], dict[str, Construction]]:
        """Return the constructions of the modules in a module: its positional arguments, and those by keyword.

        Children named 0, 1, … are positional, and in this order in `children`.
        """
        positional: list[Construction] = []
        keywords: dict[str, Construction] = {}
        for key, child in spec.children.items():
            # For inputs of any form: what the class passes to them is not known here.
            construction, _form_of_output = self.construct(child)
            if key.isdigit():
                positional.append(construction)
            else:
                keywords[key] = construction
        return positional, keywords

    def can_be_steps(self, spec: ModuleSpec, kind: Kind) -> bool:
        """Return whether a container can be written as steps for an input of a kind.

        Not if the output of a module inside may be nothing (nil): Lua leaves it out of the list that the container
        returns, in which steps would have an element for it.
        """
        flow = traits(spec).flow
        child_count = len(spec.children)
        if flow is walk.parallel:  # a module for each element of the input
            outputs = self.output_kind(spec, kind).items
            if outputs is None:  # it is not known which of them are something
                return False
            # A list of unknown length is assumed to have an element for each module. Without one, a module gets
            # nothing, and steps cannot write what it returns for that.
            element_count = child_count if kind.items is None else len(kind.items)
            return len(outputs) <= element_count
        if flow is walk.branches and kind == ANY:
            # The input may be nothing: then steps are right if Lua fails, or if all modules return something even so.
            output = self.output_kind(spec, NOTHING)
            return output is NEVER or len(output.items or ()) == child_count
        return True

    def is_shared(self, spec: ModuleSpec) -> bool:
        """Return whether a module occurs at several places of the model."""
        return id(spec) in self._shared_ids


def _check_nesting(depth: int, path: str) -> None:
    """Refuse constructions that are nested deeper than Python's parser can read.

    Args:
        depth: of the nesting.
        path: of the outermost module, in Lua.
    """
    if depth > _MOST_NESTED:
        raise UnsupportedError(
            TOO_DEEP,
            path=path,
            expected=f"at most {_MOST_NESTED} modules inside one another",
            hint=USE_CONVERT,
        )


def _block_base_name(spec: ModuleSpec) -> str:
    """Return the name of the class for a container, without a number, by what is in it."""
    traits_inside = [traits(child) for child in spec.children.values()]
    for layer, next_layer in pairwise(traits_inside):
        if layer.flow is walk.branches and next_layer.written == SUM:
            return "Residual"
    if any(layer.flow is walk.branches for layer in traits_inside):
        return "Branches"
    return traits(spec).block or "Block"


def _returns_list(spec: ModuleSpec) -> bool:
    """Return whether a module is known to return a list."""
    return traits(last_module_in(spec)).returns_list


def _takes_list(spec: ModuleSpec) -> bool:
    """Return whether a module is known to accept a list."""
    return traits(first_module_in(spec)).takes_list


# Steps of one class


class Body:
    """Adds the steps of `forward` to one class of the generated source (a `CodeBlock`). A value is a reference to the
    result of an earlier step, or to an element of it, or a list of values; step 0 is the input.

    Attributes:
        builder: the builder of the model.
        block: the class, which receives the steps; the builder sets its result.

    Args:
        builder: the builder of the model.
        block: the class, without steps.
        form: that of its input; of the whole model's, it is not used.
        kind: that of its input.
    """

    def __init__(self, builder: SourceBuilder, block: CodeBlock, form: Form, kind: Kind) -> None:
        """Add step 0 to the class: its input, of this form and kind, but of its own form in the whole model's class."""
        self.builder = builder
        self.block = block
        self._attribute_of: dict[int, Attribute] = {}
        """The attribute that holds a module, by the module's id."""
        self._element_forms: dict[Ref, Form] = {}
        """The form of each element of a list that was asked for. It is the same object each time: two forms are equal
        only if their origins are one object."""
        self._list_kinds: dict[int, tuple[Value, Kind]] = {}
        """The kinds of lists by their ids; with the list itself, which keeps its id from being used again."""
        if block.is_whole_model:
            # All inputs of the model are batches of one size, or none is.
            form = Form(origin=BatchOrigin(is_input=True))
        # Step 0 is the input, and is never written.
        block.steps.append(Step(applied, [], form=form, kind=kind))

    def form(self, value: Value) -> Form:
        """Return the form of a value, as far as it is known; of a list nothing is."""
        if not isinstance(value, Ref):
            return Form()
        step = self.step(value)
        if not value.path:
            return step.form
        if len(value.path) == 1 and step.element_form is not None:
            return step.element_form
        # Of any other element nothing is known but its origin: an input of the model, or one of its own.
        is_input_of_model = self.block.is_whole_model and value.is_in_input
        return self._element_forms.setdefault(value, Form(origin=BatchOrigin(is_input=is_input_of_model)))

    def kind(self, value: Value) -> Kind:
        """Return whether a value is a tensor or a list, as far as it is known; of each list that is found out once."""
        if not isinstance(value, Ref):
            if id(value) not in self._list_kinds:
                self._list_kinds[id(value)] = (value, listed(map(self.kind, value)))
            return self._list_kinds[id(value)][1]
        kind = self.step(value).kind
        for index in value.path:
            kind = kind.at(index)
        return kind

    def step(self, ref: Ref) -> Step:
        """Return the step that a reference leads to."""
        step = self.block.steps[ref.step]
        assert step is not None  # `tidy` merges steps into others later
        return step

    def add(self, step: Step) -> Ref:
        """Add a step, and return the reference to its result."""
        self.builder.budget.spend(1)
        for operand in step.operands:
            self.charge_list(operand)
        self.block.steps.append(step)
        return Ref(len(self.block.steps) - 1)

    def charge_list(self, value: Value) -> None:
        """Charge the budget for a list that is written out as a whole; a list that occurs in it twice counts twice."""
        if isinstance(value, list):
            for _ in refs(value):
                self.builder.budget.spend(1)

    def sequence(self, spec: ModuleSpec, value: Value) -> Value:
        """Apply the modules of a Sequential, one after another."""
        return Steps(self, spec, value).written()

    def apply(self, spec: ModuleSpec, value: Value, name: str = "", next_module: ModuleSpec | None = None) -> Value:
        """Add what applies a module to a value: steps, or the module itself; return its output.

        Args:
            spec: the module.
            value: its input.
            name: its name, up to a number; empty to derive it from its class.
            next_module: the module that uses its output, to help naming.
        """
        self.builder.budget.spend(1)
        if traits(spec).is_identity:
            return value
        if not self._becomes_another_class(spec):
            output = self._written_on_lists(spec, value, next_module)
            if output is not None:
                return output
            # No list goes through an nn.Sequential: its modules become steps here.
            is_for_lists = _returns_list(spec) or _takes_list(spec)
            if spec.target == SEQUENTIAL and is_for_lists:
                return self.sequence(spec, value)
        return self._apply_as_tensor(spec, value, name)

    def _becomes_another_class(self, spec: ModuleSpec) -> bool:
        """Return whether a module becomes a class of the page, other than this one, even if it could be steps here.

        A graph does, and a container that occurs at several places; not a layer on lists that has modules inside, whose
        entry says how it is `written`.
        """
        if spec is self.block.spec:
            return False
        facts = traits(spec)
        has_name_for_class = bool(facts.block)
        is_container = has_name_for_class or (bool(spec.children) and not facts.written)
        return is_container and (spec.graph is not None or self.builder.is_shared(spec))

    def _written_on_lists(self, spec: ModuleSpec, value: Value, next_module: ModuleSpec | None) -> Value | None:
        """Add the steps of a container or layer on lists, and return their output.

        `None` is returned, and nothing added, where its class is needed, and for a Sequential or any other layer.

        Args:
            spec: the module.
            value: its input.
            next_module: the module that uses its output, to help naming.
        """
        facts = traits(spec)
        # How the entry of the class has it written: the name of a method of `Lists`, or `BY_FLOW`.
        writer, *arguments = facts.written or ("",)
        if writer in LISTS:
            output: Value | None = getattr(Lists(self, spec, value), writer)(*arguments)
            return output
        is_by_flow = facts.transparent or writer == BY_FLOW
        # Of a Sequential, whose flow can be written too, the caller decides.
        if not is_by_flow or spec.target == SEQUENTIAL:
            return None
        return self._written_by_flow(spec, value, next_module)

    def _written_by_flow(self, spec: ModuleSpec, value: Value, next_module: ModuleSpec | None) -> Value | None:
        """Add the steps of a container by its flow, and return their output; `None`, and no steps, if it needs a class.

        Args:
            spec: the container.
            value: its input.
            next_module: the module that uses its output, to help naming.
        """
        try:
            # Each runs the flow once without adding steps, and refuses here what cannot be written.
            if spec.graph is not None:
                steps: Steps = GraphSteps(self, spec, spec.graph, value)
            else:
                steps = Steps(self, spec, value, next_module)
        except (ClassNeededError, *walk.FLOW_ERRORS):
            return None
        # Outside of `try`: a failure here leaves steps behind, and must not pass for a refusal.
        return steps.written()

    def add_concatenation(self, tensors: Value, dim: int) -> Ref:
        """Add a step that concatenates the elements of a list."""
        write = formula("lambda x: torch.cat(x, dim)", dim=dim)
        return self.add(Step(write, [tensors], form=self.form_of_concatenation(tensors)))

    def add_slices(self, tensor: Value, dim: int, name: str) -> Ref:
        """Add a step that returns the slices of a tensor along a dimension as a list, views of one shape.

        Args:
            tensor: the tensor.
            dim: the dimension, from 0, or from -1 backwards.
            name: a name for the variable of the list.
        """
        write = formula("lambda x: x.unbind(dim)", dim=dim)
        kind = many(TENSOR)
        return self.add(Step(write, [tensor], kind=kind, shares_memory=True, suggested_name=name, element_form=Form()))

    def form_of_concatenation(self, parts: Value) -> Form:
        """Return the form of concatenated values: their rank, if all have the same; the extents are not known."""
        if not isinstance(parts, list):
            return Form()
        ranks = {self.form(part).rank for part in parts}
        return Form(ranks.pop() if len(ranks) == 1 else None)

    def _apply_as_tensor(self, spec: ModuleSpec, value: Value, name: str) -> Value:
        """Add one step for a module, and return its output: the call of a module, or an expression in its place.

        Args:
            spec: the module, which is not written as steps on lists.
            value: its input.
            name: its name, up to a number; empty to derive it from its class.
        """
        form = self.form(value)
        kind = self.kind(value)
        idiom = idiom_of(spec, form)
        # A module of torch.nn with operations around it: `module(x.mT).mT`.
        if idiom is not None and idiom.construction is not None and idiom.has_operations:
            return self.add_module(spec, idiom.construction, value, name, idiom.form, idiom.write)
        # The layer's own class where its plain class will not do: that takes no list, and no single example, which a
        # model of this layer alone has to take.
        is_whole_class = spec is self.block.spec
        if spec.plain and (kind.is_list or is_whole_class):
            return self.add_module(spec, self.builder.construct_by_own_class(spec), value, name, Form())
        # An expression without a module.
        if idiom is not None and idiom.construction is None:
            return self._add_expression(spec, value, name, idiom)
        # The call of a module: of torch.nn, or, without an idiom, of a class of its own.
        construction, form_of_output = self.builder.construct(spec, form, kind)
        return self.add_module(spec, construction, value, name, form_of_output)

    def _add_expression(self, spec: ModuleSpec, value: Value, name: str, idiom: Idiom) -> Ref:
        """Add a step for a module in whose place an expression is written; if it works in place, the module for now.

        Args:
            spec: the module.
            value: its input.
            name: its name, up to a number; empty to derive it from its class.
            idiom: plain PyTorch for it, without a module.
        """
        write = idiom.write
        # Where the expression is a view, Lua's layer copies, which matters if another layer writes into its result.
        if self.builder.has_inplace and traits(spec).copies:
            write = copying(spec, write)
        if spec.kwargs.get("inplace"):
            return self.add_inplace_module(spec, value, name, idiom.form, write)
        shares_memory = self.builder.memory_effects.of(spec).shares
        return self.add(Step(write, [value], form=idiom.form, shares_memory=shares_memory))

    def add_inplace_module(
        self, spec: ModuleSpec, value: Value, name: str, form: Form, out_of_place: Write | None
    ) -> Ref:
        """Add a step that applies a layer that changes its input, by its own class.

        `tidy` may put an expression in its place, if nothing else reads the memory that the layer changes.

        Args:
            spec: the module.
            value: its input.
            name: its name, up to a number; empty to derive it from the name of its class.
            form: that of its output.
            out_of_place: makes that expression from the input; `None` if there is none.
        """
        ref = self.add_module(spec, self.builder.construct_by_own_class(spec), value, name, form)
        self.step(ref).out_of_place = out_of_place
        return ref

    def add_module(
        self, spec: ModuleSpec, construction: Construction, value: Value, name: str, form: Form, write: Write = applied
    ) -> Ref:
        """Add a step that applies a module.

        Args:
            spec: the module.
            construction: the call that makes it.
            value: its input.
            name: its name, up to a number; empty to derive it from the name of its class.
            form: that of its output.
            write: makes the expression from the module and the input.
        """
        step = self.step_of_module(spec, construction, value, name)
        step.form = form
        step.write = write
        return self.add(step)

    def step_of_module(self, spec: ModuleSpec, construction: Construction, value: Value, name: str) -> Step:
        """Return a step that calls a module, which the class stores now, if it does not yet; the caller adds the step.

        The form of its result is left unknown; the caller may set it, and operations around the call (`write`).

        Args:
            spec: the module.
            construction: the call that makes it.
            value: its input.
            name: its name, up to a number; empty to derive it from the name of its class.
        """
        attribute = self._attribute_for(spec, construction, name)
        effect = self.builder.memory_effects.of(spec)
        return Step(
            applied,
            [value],
            attribute=attribute,
            # `tidy` may put a function in the place of the module; but what several steps use stays a module.
            function=None if attribute.stays_separate else function_of(construction),
            kind=self.builder.output_kind(spec, self.kind(value)),
            inplace=effect.changes,
            shares_memory=effect.shares,
        )

    def _attribute_for(self, spec: ModuleSpec, construction: Construction, name: str) -> Attribute:
        """Return the attribute of the class that holds a module: the one of an earlier step, or a new one.

        Args:
            spec: the module.
            construction: the call that makes it, for a new one.
            name: the name of a new one, up to a number; empty to derive it from the name of its class.
        """
        if id(spec) in self._attribute_of:
            attribute = self._attribute_of[id(spec)]
            # Two steps call it now, so that it must not become part of the Sequential of one.
            attribute.stays_separate = True
            return attribute
        base_name = name or attribute_base_name(construction.name)
        attribute = Attribute(base_name, [construction], stays_separate=self.builder.is_shared(spec))
        self._attribute_of[id(spec)] = attribute
        self.block.attributes.append(attribute)
        return attribute


class ClassNeededError(Exception):
    """A module cannot be written as steps: its class is needed."""


class StepDomain(walk.Domain[Value]):
    """The operations of a container on values of generated source: results of steps, and lists of these. A container
    describes what it does by its flow, which calls these methods (see `walk.Domain`).

    What it cannot write raises `ClassNeededError`. What the call of a module inside does is defined by the two
    subclasses: a container is run twice, once by `Trial` to see whether it can be written, then by `Steps`.

    Args:
        body: the class that receives the steps.
        spec: the module that is written.
        value: its input.
    """

    def __init__(self, body: Body, spec: ModuleSpec, value: Value) -> None:
        self._body = body
        self._spec = spec
        self._value = value

    def tensor(self) -> Value:
        """Refuse a tensor that the container computes itself, not by a module inside."""
        raise ClassNeededError

    def items(self, values: Sequence[Value]) -> Value:
        """Return a list."""
        return list(values)

    def many(self, values: Sequence[Value]) -> Value:
        """Refuse a list of unknown length."""
        raise ClassNeededError

    def item(self, value: Value, index: int | str, dim: int | None = None) -> Value:
        """Return an element of a list; refuse a slice of a tensor, or an element that a list has not.

        Args:
            value: the list: of values, or a result, of which any element is taken to be there.
            index: of the element, from 0, or from -1 backwards; or its name in a table of Lua.
            dim: that of slices; `None` for an element.
        """
        if dim is not None:
            raise ClassNeededError
        if isinstance(value, list):
            is_there = isinstance(index, int) and -len(value) <= index < len(value)
            if not is_there:
                raise ClassNeededError
        return pick(value, index)

    def length(self, value: Value, dim: int | None = None) -> int | None:
        """Return the number of elements of a list; `None` if it is not known."""
        if dim is not None:  # the number of slices of a tensor
            raise ClassNeededError
        items = self._body.kind(value).items
        return None if items is None else len(items)

    def is_list(self, value: Value) -> bool | None:
        """Return whether a value is a list; `None` if it is not known."""
        kind = self._body.kind(value)
        if kind.is_list:
            return True
        return False if kind == TENSOR else None

    def elements(self, value: Value, count: int) -> list[Value]:
        """Return the first elements of a list, at most those that it is known to have."""
        items = self._body.kind(value).items
        if items is not None:
            count = min(count, len(items))
        return [pick(value, number) for number in range(count)]

    def merge(self, value: Value, dims: int, apply: Callable[[Value], Value]) -> Value:
        """Refuse a change of the dimensions around a module."""
        raise ClassNeededError

    def steps(self, value: Value, apply: Callable[[Value], Value]) -> Value:
        """Refuse a loop."""
        raise ClassNeededError

    def repeat(self, times: int | None, apply: Callable[[], Value]) -> Value:
        """Refuse a loop."""
        raise ClassNeededError

    def reversed(self, value: Value) -> Value:
        """Return the elements of a list in the opposite order."""
        if not isinstance(value, list):
            raise ClassNeededError
        return super().reversed(value)


@define(eq=False)
class TrialCall:
    """A call of a module inside a container, in a trial.

    Attributes:
        child: the name of the module in the container.
        value: its input.
        is_for_each: whether the container applies this module, or copies of it, to each element of a list.
    """

    child: str
    value: Value
    is_for_each: bool = False


class Trial(StepDomain):
    """A run of the flow of a container that adds no step, but records which modules are called with what. `Steps` runs
    the same flow later, with the same calls in the same order: the number of a call, from 0, is the same in both.

    Outputs of calls are references with negative numbers, which no step has: -1 for that of the first call.

    Attributes:
        calls: the calls of modules inside, in order.
        branch_calls: the numbers of the calls whose outputs are elements, or parts, of the container's.
        splits_input: whether the container returns a list of what two modules return for its whole input.
        repeated_children: the names of modules that are called for each element of a list, or several times.
        receivers: by the number of a call, the name of the module that receives its output.

    Raises:
        ClassNeededError: the container cannot be written as steps.
    """

    def __init__(self, body: Body, spec: ModuleSpec, value: Value) -> None:
        """Run the flow, which calls the methods below; raise if its steps would not do what the class does."""
        super().__init__(body, spec, value)
        self.calls: list[TrialCall] = []
        """The calls of modules inside, in order."""
        self.branch_calls: set[int] = set()
        """The numbers of the calls whose outputs are elements, or parts, of the container's output."""
        flow = traits(spec).flow
        assert flow is not None
        output: Value = flow(spec, value, self)  # which fills both
        if isinstance(output, list):
            self._note_branches(output)
        self._check_calls_for_each()
        # Lua leaves what is nothing out of a list of outputs, which needs the class.
        if self._may_return_nothing() and not body.builder.can_be_steps(spec, body.kind(value)):
            raise ClassNeededError
        # Added up, two such branches are a residual block: `body` and `shortcut`.
        is_list_of_two = isinstance(output, list) and len(output) == 2
        self.splits_input = is_list_of_two and self._has_two_branches_on_input()
        self.repeated_children = self._repeated_children()
        self.receivers = self._receivers()
        """By the number of a call, the module that receives its output."""

    def _has_two_branches_on_input(self) -> bool:
        """Return whether the branches are calls 0 and 1, and these are the only calls on the input of the container."""
        # By identity: on the very input, not on a list that is equal.
        calls_on_input = {number for number, call in enumerate(self.calls) if call.value is self._value}
        return self.branch_calls == {0, 1} and calls_on_input == {0, 1}

    def _check_calls_for_each(self) -> None:
        """Refuse modules that cannot be called for all elements of a list, for each of which Lua has a copy of them."""
        called_before: set[str] = set()
        for call in self.calls:
            if call.is_for_each:
                _check_can_be_one_for_all(self._spec.children[call.child], call.child in called_before)
            called_before.add(call.child)

    def _repeated_children(self) -> set[str]:
        """Return the names of the modules that are called for each element of a list, or several times."""
        counts = Counter(call.child for call in self.calls)
        return {call.child for call in self.calls if call.is_for_each or counts[call.child] > 1}

    def _receivers(self) -> dict[int, str]:
        """Return the names of the modules that receive outputs, the last of several, by the number of the call.

        A module that takes only an element of an output is none: it does not say what the whole is for.
        """
        return {
            _call_of(call.value): call.child
            for call in self.calls
            if isinstance(call.value, Ref) and _is_output(call.value) and not call.value.path
        }

    def _may_return_nothing(self) -> bool:
        """Return whether elements of the output may be nothing, as far as the input may be."""
        flow = traits(self._spec).flow
        if flow is walk.parallel:  # elements of its input may be
            return True
        # The input of the model itself is something, and so are results of steps.
        is_input_of_inner_class = self._value == INPUT and not self._body.block.is_whole_model
        return flow is walk.branches and is_input_of_inner_class

    def is_input_that_was_list(self, value: Value) -> bool:
        """Return whether a value is the class's input, of unknown kind, that was a list when Lua last ran the model.

        It may then be taken for a list. Asked only by containers that return a list for a list (`stack`): their last
        output is still in their fields.
        """
        is_unknown_input = value == INPUT and self._body.kind(value) == ANY
        if not is_unknown_input or self._spec.obj is None:
            return False
        return bool(items_of(self._spec.obj.get("output")))

    def length(self, value: Value, dim: int | None = None) -> int | None:
        """Return the number of elements of a list; that of an output is not known yet."""
        _check_is_no_output(value)
        return super().length(value, dim)

    def is_list(self, value: Value) -> bool | None:
        """Return whether a value is a list; of an output that is not known yet."""
        _check_is_no_output(value)
        return super().is_list(value)

    def elements(self, value: Value, count: int) -> list[Value]:
        """Return the first elements of a list; those of an output are not known yet."""
        _check_is_no_output(value)
        return super().elements(value, count)

    def concat(self, values: Sequence[Value], dim: int, *, pads: bool = False) -> Value:
        """Note that the concatenated outputs are branches, and return a tensor."""
        if pads:
            raise ClassNeededError
        self._note_branches(values)
        return Ref(_OF_SEVERAL_CALLS)

    def stack(self, value: Value, apply: Callable[[Value], Value]) -> Value:
        """Record the calls of modules by a function of the stacked tensors of a list, and return an unknown value.

        Args:
            value: the list.
            apply: the function, which calls modules inside; what it returns is not used.

        Raises:
            ClassNeededError: the value may be no list, or layers write into their input.
        """
        # The slices have the memory of one tensor, in Lua each has its own: no layer may write into them.
        if self._body.builder.has_inplace:
            raise ClassNeededError
        if not (self._body.kind(value).is_list or self.is_input_that_was_list(value)):
            raise ClassNeededError
        # Neither the stacked tensor nor the list of slices is the output of one call.
        apply(Ref(_OF_SEVERAL_CALLS))
        return Ref(_OF_SEVERAL_CALLS)

    def each(self, value: Value, apply: Callable[[int, Value], Value], different: int) -> Value:
        """Record the calls of one module, or of copies of it, for all elements of a list.

        Args:
            value: the list.
            apply: applies a module of the container, given by its number from 0, to an element.
            different: how many first elements have a module of their own number; further ones have the first's, 0.
        """
        if not isinstance(value, list):
            raise ClassNeededError
        first_call = len(self.calls)
        output = super().each(value, apply, different)
        for call in self.calls[first_call:]:
            call.is_for_each = True
        return output

    def call(self, spec: ModuleSpec, child: str, value: Value, node: int | None = None) -> Value:
        """Record a call of a module inside, and return a reference that stands for its output.

        Args:
            spec: the container.
            child: the name of the module in it.
            value: its input.
            node: of a graph, the number of the node that calls it; not used.

        Raises:
            ClassNeededError: the container calls too many modules.
        """
        number = len(self.calls)
        if number == _MOST_CALLS:
            raise ClassNeededError
        self.calls.append(TrialCall(child, value))
        return _output_of(number)

    def _note_branches(self, outputs: Sequence[Value]) -> None:
        """Note which of these values are outputs of calls."""
        self.branch_calls |= {_call_of(output) for output in outputs if isinstance(output, Ref) and _is_output(output)}


def _check_can_be_one_for_all(inside: ModuleSpec, is_called_before: bool) -> None:
    """Refuse a module that cannot be called for all elements of a list, for each of which Lua has a copy of it.

    Args:
        inside: the module.
        is_called_before: whether it was called for an element already.
    """
    # It has to be one module, and a module for lists would be steps instead.
    if _returns_list(inside) or _takes_list(inside):
        raise ClassNeededError
    # Each copy has a state and statistics of its own; the statistics for the first element are those of the module.
    if any(map(remembers, specs_in(inside))):
        raise ClassNeededError
    if is_called_before and any(map(_keeps_statistics, specs_in(inside))):
        raise ClassNeededError


_OF_SEVERAL_CALLS = -(10**9)
"""In a trial, the number of what a container computes of several outputs; beyond all that calls have."""
_MOST_CALLS = 100_000
"""Maximum number of calls in one container, so that `_OF_SEVERAL_CALLS` is the output of none."""


def _output_of(call: int) -> Ref:
    """Return the output of a call in a trial, by its number from 0."""
    return Ref(-1 - call)


def _call_of(output: Ref) -> int:
    """Return the number of the call in a trial that returned an output."""
    return -1 - output.step


def _is_output(value: Value) -> bool:
    """Return whether a value is an output in a trial; when steps are added, a list or a result takes its place."""
    return isinstance(value, Ref) and value.step < 0


def _check_is_no_output(value: Value) -> None:
    """Refuse a question about an output in a trial, of which nothing is known."""
    if _is_output(value):
        raise ClassNeededError


class Steps(StepDomain):
    """Adds the steps of a container, or of a layer that rearranges lists, to a class, after a `Trial` of the same flow.

    Args:
        body: the class that receives the steps.
        spec: the module.
        value: its input.
        next_module: the module that uses its output, to help naming.

    Raises:
        ClassNeededError: its class is needed; nothing was added.
    """

    def __init__(self, body: Body, spec: ModuleSpec, value: Value, next_module: ModuleSpec | None = None) -> None:
        """Run a trial, which adds nothing but raises `ClassNeededError` if steps cannot do; `written` adds them."""
        super().__init__(body, spec, value)
        self._trial = Trial(body, spec, value)
        self._next_module = next_module
        self._call_count = 0
        """Number of calls so far, which is the number of the next one, as in the trial."""

    def written(self) -> Value:
        """Run the flow of the container, which adds the steps; return its output."""
        flow = traits(self._spec).flow
        assert flow is not None
        output: Value = flow(self._spec, self._value, self)
        return output

    def item(self, value: Value, index: int | str, dim: int | None = None) -> Value:
        """Return an element of a list.

        Args:
            value: the list.
            index: of the element, from 0, or from -1 backwards; or its name in a table of Lua.
            dim: `None`, as the trial refuses slices of tensors.

        Raises:
            ModelError: what a module inside returns has no such element.
        """
        try:
            return super().item(value, index, dim)
        except ClassNeededError as error:
            # The trial did not know what modules inside return. Now that steps are written, it is too late for a class.
            assert isinstance(value, list)  # of a result, any element is taken to be there
            place = repr(index)
            if isinstance(index, int) and index >= 0:
                place = str(index + 1)  # Lua counts from 1, or from -1 backwards
            raise ModelError(
                "takes an element of a list that has no such element",
                path=self._spec.path,
                expected=f"one of {len(value)}",
                found=f"element {place}",
            ) from error

    def elements(self, value: Value, count: int) -> list[Value]:
        """Return the first elements of a list; those of the input of a class get names."""
        if value == INPUT:
            items = self._body.kind(value).items
            if items is None:
                # Lua's containers ignore elements for which they have no module.
                self._name_input_elements(count, ignores_further=True)
            else:
                self._name_input_elements(len(items))  # all are unpacked, used or not
        return super().elements(value, count)

    def concat(self, values: Sequence[Value], dim: int, *, pads: bool = False) -> Value:
        """Add a step that concatenates tensors; `pads` is false, as the trial refuses it."""
        return self._body.add_concatenation(list(values), dim)

    def stack(self, value: Value, apply: Callable[[Value], Value]) -> Value:
        """Add steps that stack the tensors of a list, apply a function to that one tensor, and list its slices.

        Args:
            value: the list.
            apply: the function, which adds steps of its own between the two.
        """
        body = self._body
        if self._trial.is_input_that_was_list(value):
            # As it is stacked, it has to be one from here on.
            body.step(INPUT).kind = many(TENSOR)
        stacked = body.add(Step(formula("lambda x: torch.stack(x)"), [value], kind=TENSOR))
        output = apply(stacked)
        return body.add_slices(output, dim=0, name="outputs")

    def call(self, spec: ModuleSpec, child: str, value: Value, node: int | None = None) -> Value:
        """Add what applies a module inside to a value: steps, or the module itself; return its output.

        Args:
            spec: the container.
            child: the name of the module in it.
            value: its input.
            node: `None`; see `GraphSteps` for graphs.
        """
        # What the trial recorded of its call of this number holds here: it ran the same flow.
        number = self._call_count
        self._call_count += 1
        inside = spec.children[child]
        if child in self._trial.repeated_children:
            return self._call_repeated(inside, value)
        # By the module that takes the output branches are named: `body` and `shortcut` if that adds them up.
        receiver = self._trial.receivers.get(number)
        next_module = None if receiver is None else spec.children[receiver]
        return self._body.apply(inside, value, name=self._branch_name(number), next_module=next_module)

    def _call_repeated(self, inside: ModuleSpec, value: Value) -> Value:
        """Add the call of a module inside that is called several times, with inputs of any form; return its output."""
        # So without steps of its own, and with an output of which nothing is known.
        construction, _form_of_output = self._body.builder.construct(inside)
        if construction.name == "nn.Identity":  # left out, as by `Body.apply`
            return value
        return self._body.add_module(inside, construction, value, name="", form=Form())

    def _branch_name(self, number: int) -> str:
        """Return the name of the module of a call if it is a branch: `branch`, or in a sum of two `body` or `shortcut`.

        It is empty for any other call, whose module is named after its class.

        Args:
            number: of the call.
        """
        if number not in self._trial.branch_calls:
            return ""
        is_residual = self._next_module is not None and traits(self._next_module).written == SUM
        if not is_residual or not self._trial.splits_input:
            return "branch"
        # The branches are calls 0 and 1 (`splits_input`), and are added up. The one of more modules is the body, of two
        # equal ones the first; the other is the shortcut, mostly an identity or one convolution.
        first, second = (_size_of(self._spec.children[call.child]) for call in self._trial.calls[:2])
        number_of_body = 0 if first >= second else 1
        return "body" if number == number_of_body else "shortcut"

    def _name_input_elements(self, count: int, ignores_further: bool = False) -> None:
        """Note a use of the input by its elements, which then have names of their own.

        Args:
            count: number of elements that are used.
            ignores_further: whether the input may have more.
        """
        block = self._body.block
        is_first_use = block.input_count == 0
        if is_first_use or not ignores_further:  # one use of exactly as many elements decides for all
            block.ignores_further_inputs = ignores_further
        block.input_count = max(count, block.input_count)


class GraphSteps(Steps):
    """Adds the steps of a graph to a class, and notes there how the user named its inputs, and which of them are lists.

    Args:
        body: the class that receives the steps.
        spec: the module that is the graph.
        graph: its data flow, in which 0 is the input, and nodes are numbered from 1.
        value: its input.

    Raises:
        ClassNeededError: its class is needed; nothing was added.
    """

    def __init__(self, body: Body, spec: ModuleSpec, graph: GraphSpec, value: Value) -> None:
        super().__init__(body, spec, value)
        self._graph = graph
        self._values: list[Value] = [value]
        """The input and the outputs of all nodes so far, by the number of the node."""
        self._names_of_attention = attention_names(spec, graph)
        """Names for outputs of nodes that the user did not name, by the number of the node."""

    def written(self) -> Value:
        """Run the flow of the graph, which adds the steps; return its output."""
        links = [link for node in self._graph.nodes for link in node.takes]
        links += self._graph.outputs
        # Each index of a path is written as a subscript.
        self._body.builder.budget.spend(sum(len(path) for _, path in links))
        self._name_used_inputs(links)
        output = super().written()
        # After the flow, which collects the values of the nodes that the links lead to.
        self._note_lists_in_input(links)
        return output

    def _name_used_inputs(self, links: list[Link]) -> None:
        """Give the elements of the graph's input names, if it is not used as a whole."""
        paths_in_input = [path for source, path in links if source == 0]
        if all(paths_in_input):  # an empty path is the input as a whole
            last_index = max((path[0] for path in paths_in_input), default=-1)
            self._name_input_elements(last_index + 1)

    def call(self, spec: ModuleSpec, child: str, value: Value, node: int | None = None) -> Value:
        """Add what applies the module of a node to a value: steps, or the module itself; return its output.

        Args:
            spec: the graph.
            child: the name of the module in it.
            value: its input.
            node: the number of the node, from 0 here.
        """
        assert node is not None
        # Under the user's name for the node, if there is any. A module of several nodes is a shared one.
        return self._body.apply(spec.children[child], value, name=usable_name(self._graph.nodes[node].name))

    def node(self, spec: ModuleSpec, number: int, value: Value) -> Value:
        """Name the output of a node of a graph as the user did, and return it unchanged.

        Args:
            spec: the graph.
            number: of the node, from 0 here.
            value: the output of the node's module.
        """
        node = self._graph.nodes[number]
        name = usable_name(node.name)
        passes_input = node.module is None or traits(spec.children[node.module]).is_identity
        if not passes_input:
            self._name_result(value, name or self._names_of_attention.get(number + 1, ""))
        elif name and isinstance(value, Ref) and value.is_in_input:
            # The node of an input of the graph, which the user named.
            self._body.block.input_names[value.path] = name
        self._values.append(value)
        return value

    def _name_result(self, value: Value, name: str) -> None:
        """Give the result of a step the name of a node; its module is not joined with others if it has that name.

        Elements of results, and lists of several, have no variable that could have it.
        """
        if not name or not isinstance(value, Ref) or value.path:
            return
        step = self._body.step(value)
        step.suggested_name = name
        step.is_node_name = True
        if step.attribute is not None and step.attribute.base_name == name:
            step.attribute.stays_separate = True

    def _note_lists_in_input(self, links: list[Link]) -> None:
        """Note which elements of the input are lists, and their lengths: a graph of Lua uses all elements of each.

        Args:
            links: those of the graph, whose flow has run.
        """
        list_lengths = self._body.block.list_lengths
        for source, path in links:
            value = self._values[source]  # an element of this value is taken, if the path is not empty
            # Only elements of the input itself are unpacked, so that deeper lists are not noted.
            if path and isinstance(value, Ref) and value.is_in_input and len(value.path) == 1:
                (index,) = value.path
                if isinstance(index, int):  # not an element with a name
                    list_lengths[index] = max(list_lengths.get(index, 0), path[0] + 1)


# Layers on lists


class Lists:
    """Writers of layers on lists as steps: a method for each name in `Traits.written`.
    Each adds steps and returns their output, or adds nothing and returns `None` where the class itself is needed:
    most need to know the elements of their input, which must be a list of values and not one value that is a list.

    Args:
        body: the class that receives the steps.
        spec: the module.
        value: its input.
    """

    def __init__(self, body: Body, spec: ModuleSpec, value: Value) -> None:
        self._body = body
        self._spec = spec
        self._value = value
        self._items = value if isinstance(value, list) else None
        """The elements of the input; `None` if it is one value."""

    def cell(self, letters: str) -> Value | None:
        """Apply a recurrent cell of torch.nn, or one of this package, which takes its input and state as a list.

        Cells are recognized in graphs, no class of Lua is one: a list of values is the input and each state.

        Args:
            letters: the names of its states, one letter each: `h`, or `hc` for an LSTM.

        Returns:
            The new state, or a list of both; `None` if the input is one value.
        """
        spec = self._spec
        if self._items is None:
            return None
        if spec.target not in CLASS_IN_TORCH_OF_CELL:
            construction = self._body.builder.construct_by_own_class(spec)
            write = applied  # to the whole list
        else:
            construction = torch_construction(CLASS_IN_TORCH_OF_CELL[spec.target], spec.args, dict(spec.kwargs), spec)
            # PyTorch's LSTM takes its two states as a tuple.
            states = "(h, c)" if letters == "hc" else "h"
            write = formula(f"lambda module, x, {', '.join(letters)}: module(x, {states})")
        recurrent = traits(spec).recurrent
        # `lstm`, `gru`, `rnn`; empty of a cell that PyTorch does not have, whose attribute is named after its class.
        attribute_name = TORCH[recurrent.kind].base if recurrent is not None else ""
        step = self._body.step_of_module(spec, construction, self._items, attribute_name)
        step.form = Form(rank=1)  # of each state: features, without time
        return self._add_with_results(step, write, tuple(letters))

    def recurrent(self) -> Value | None:
        """Apply a layer of torch.nn to sequences and a state; its outputs are named as any value, its state `state`.

        It returns both; nothing is added and `None` returned if the input is not a list of values.
        """
        if self._items is None:
            return None
        class_name = CLASS_IN_TORCH_WITH_STATE[self._spec.target]
        construction = torch_construction(class_name, self._spec.args, dict(self._spec.kwargs), self._spec)
        step = self._body.step_of_module(self._spec, construction, self._items, TORCH[class_name].base)
        step.form = Form(rank=2)  # time and features
        write = formula("lambda module, x, state: module(x, state)")
        return self._add_with_results(step, write, ("", "state"))

    def _add_with_results(self, step: Step, write: Write, result_names: tuple[str, ...]) -> Value:
        """Add a step of a module with a state, called with its input and state; return its result, or a list of them.

        Args:
            step: the step, whose operand is the list of these.
            write: `applied` if the module takes that list; else makes the expression from the module and each element.
            result_names: the names of variables for the results, one for each; empty for one without a name of its own.
        """
        step.write = write
        step.result_names = result_names
        if write is not applied:
            (items,) = step.operands
            assert isinstance(items, list)
            step.operands = items
        ref = self._body.add(step)
        if len(result_names) == 1:
            return ref
        return [Ref(ref.step, (index,)) for index in range(len(result_names))]

    # Lists to tensors

    def product(self) -> Value | None:
        """Write a product of two matrices.

        `None` is returned for anything but a list of two: then the class is constructed, and raises the error.
        """
        if self._items is None or len(self._items) != 2:
            return None
        transposes_first, transposes_second = self._spec.args
        first = "x.mT" if transposes_first else "x"
        second = "y.mT" if transposes_second else "y"
        return self._body.add(Step(formula(f"lambda x, y: {first} @ {second}"), [*self._items], form=Form(2)))

    def fold(self, symbol: str) -> Value | None:
        """Write an operator between all elements: `+` or `*`, or `-` or `/`, of which Lua has two operands.

        `None` is returned, and the class constructed, if the elements are not known, too many, or not two for `-`, `/`.

        Args:
            symbol: the operator.
        """
        items = self._items
        body = self._body
        if not items or len(items) > _MOST_OPERANDS:
            return None
        if symbol in ("-", "/") and len(items) != 2:
            return None
        form, *other_forms = map(body.form, items)  # the result has that of the first
        same_shapes = [certainly_same_shape(form, other) for other in other_forms]
        write = _written_between(symbol)
        if self._spec.kwargs.get("inplace"):
            # PyTorch's operator is the same only for one shape.
            out_of_place = _written_of_list(write) if all(same_shapes) else None
            return body.add_inplace_module(self._spec, items, name="", form=form, out_of_place=out_of_place)
        if len(items) == 1:  # Lua's layer, too, returns memory of its own
            return body.add(Step(formula("lambda x: x.clone()"), [*items], form=form))
        if all(same_shapes):
            return body.add(Step(write, [*items], form=form))
        # The first is an operand twice, as the expression uses it twice: what is used twice gets a variable.
        return body.add(Step(_written_with_reshapes(write, same_shapes), [items[0], *items], form=form))

    def extreme(self, comparison: str) -> Value | None:
        """Write the larger or smaller of two tensors; of equal elements the first receives the gradient.

        `None` is returned, and the class constructed, if they may be of different shapes, which Lua allows.

        Args:
            comparison: the method of tensors that is true where the second is taken: `gt` or `lt`.
        """
        if self._items is None or len(self._items) != 2:
            return None
        form, other_form = map(self._body.form, self._items)
        if not certainly_same_shape(form, other_form):
            return None
        # Both are operands twice, as the expression uses both twice: what is used twice gets a variable.
        write = formula(f"lambda x, y, again, once_more: torch.where(y.{comparison}(x), y, x)")
        return self._body.add(Step(write, [*self._items, *self._items], form=form))

    def _dimension(self, rank: int | None) -> int | None:
        """Return the dimension along which a layer splits or joins, as PyTorch counts it in any input of the layer.

        It is `None` if no one number is right both with and without a batch.

        Args:
            rank: the dimensions of one example of the input, or of what is joined; `None` if not known.
        """
        dim = int(self._spec.args[0])  # from 0, or from -1 backwards
        if dim < 0:  # from the end, a batch makes no difference
            return dim
        dims_of_example = self._spec.kwargs.get("n_input_dims")
        if dims_of_example is None:  # the layer counts as PyTorch does: all dimensions, also that of a batch
            return dim
        if dims_of_example != rank:  # what is one example for the layer may be a batch here, or the reverse
            return None
        from_end = dim - int(dims_of_example)
        return from_end if from_end < 0 else None  # else it is none of an example's

    def join(self) -> Value | None:
        """Write a concatenation; `None` if its dimension depends on the input."""
        dim = self._dimension(self._body.form_of_concatenation(self._value).rank)
        if dim is None:
            return None
        return self._body.add_concatenation(self._value, dim)

    # Lists

    def split(self) -> Value | None:
        """Write the slices of a tensor along a dimension; `None` if the dimension depends on the input.

        `None` also if any layer of the model writes into its input, as that may be such a slice.
        """
        dim = self._dimension(self._body.form(self._value).rank)
        # No layer may write into the results of `unbind`.
        if dim is None or self._body.builder.has_inplace:
            return None
        return self._body.add_slices(self._value, dim, PARTS)


def _written_between(symbol: str) -> Write:
    """Return a function that makes an expression of any number of operands with an operator between them."""
    operator = formula(f"lambda x, y: x {symbol} y")
    return lambda *operands: reduce(operator, operands)


def _written_of_list(write: Write) -> Write:
    """Return a function that makes an expression of operands that come as one list, as the layer in its place takes."""

    def write_elements(operands: ast.expr) -> ast.expr:
        """Return the expression of the elements of a list."""
        assert isinstance(operands, ast.List)
        return write(*operands.elts)

    return write_elements


def _written_with_reshapes(write: Write, same_shapes: list[bool]) -> Write:
    """Return a function that makes an expression of operands that get the shape of the first, if they may have another.

    Lua computes in the order of memory whatever the shapes; PyTorch by shapes.

    Args:
        write: makes the expression from the operands.
        same_shapes: of each operand after the first, whether it certainly has that shape.
    """
    reshaped = formula("lambda x, first: x.reshape_as(first)")

    def write_reshaped(first: ast.expr, first_again: ast.expr, *others: ast.expr) -> ast.expr:
        """Return the expression, in which the first operand occurs again in `reshape_as`, and so is given twice."""
        terms = [first_again]
        for operand, is_same_shape in zip(others, same_shapes):
            terms.append(operand if is_same_shape else reshaped(operand, first))
        return write(*terms)

    return write_reshaped


LISTS = frozenset(name for name in vars(Lists) if not name.startswith("_"))
"""The names by which entries request steps for layers on lists."""
BY_FLOW = "flow"
"""The name by which entries of containers request steps by their flow."""


def _keeps_statistics(spec: ModuleSpec) -> bool:
    """Return whether a module is a batch normalization that keeps running statistics."""
    return "running_mean" in tensor_shapes(spec.target, spec.args, spec.kwargs)


def _size_of(spec: ModuleSpec) -> int:
    """Return the number of modules in a module, with itself."""
    return 1 + sum(map(_size_of, spec.children.values()))
