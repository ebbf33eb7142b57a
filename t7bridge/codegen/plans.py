"""What is found, checked and chosen in a plan before it becomes source: which tensors its modules own, which
modules are one, which become a class of torch.nn, and whether all can be constructed.

A plan is the modules of PyTorch for a Lua model, its specs; the keys of its state dict lead through them: `0.2.weight`.
The plain class of a spec (`plain`) is the class of torch.nn that does the same for each tensor with a batch dimension;
where it is empty, the source includes the layer's own class.

Whether modules can be constructed, and their tensors fit, is found out without PyTorch. Arguments are bound to the
signature in a layer's source; which tensors a constructor makes, and what it refuses, are facts that `Traits` and
`torch_nn` declare. Nothing is allocated, and nothing of a file is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from inspect import BoundArguments, Parameter, Signature
from typing import Any

from ..data import define
from ..errors import ModelError, UnsupportedError
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.tensor import Tensor, place_of, rows
from ..nn.mapping import LAYERS, OURS, SEQUENTIAL, ModuleSpec, Plan, short_name, specs_in, way_to
from ..nn.memory import use_copying_classes
from ..nn.places import Places
from ..nn.registry import traits_of
from ..nn.torch_nn import SAME, TORCH, Refused, Shape, argument_at, constructed, shape
from .copied import constructor, remembers
from .flow import TOO_DEEP, USE_CONVERT
from .idioms import traits

# Tensors of modules

TensorsByModule = dict[int, dict[str, Tensor]]
"""The tensors of each module by its own names for them, by the module's id."""


def owned_tensors(plan: Plan, tensors: dict[str, Tensor]) -> TensorsByModule:
    """Return the tensors of a state dict by the id of the module that owns them, and by their names there.

    Args:
        plan: the plan of the model.
        tensors: its state dict.
    """
    owned: TensorsByModule = {}
    for key, tensor in tensors.items():
        spec, name = owner_of(plan, key)
        owned.setdefault(id(spec), {})[name] = tensor
    return owned


def owner_of(plan: Plan, key: str) -> tuple[ModuleSpec, str]:
    """Return the module that a key of the plan's state dict leads to, and the name of the tensor there: `weight`."""
    *_, (spec, _, name) = way_to(plan.root, key)
    return spec, name


# Choices

_MOST_DEEP = 250
"""Maximum nesting of modules."""
_MOST_COMPARED = 64
"""Maximum elements of a computed tensor that is compared by value; a larger one equals only itself."""


def check_depth(places: Places) -> None:
    """Refuse a model whose modules are nested too deep for Python to read the generated source.

    Raises:
        UnsupportedError: they are.
    """
    if any(place.depth >= _MOST_DEEP for place in places):
        expected = f"at most {_MOST_DEEP} modules inside one another"
        raise UnsupportedError(TOO_DEEP, path=places.path, expected=expected, hint=USE_CONVERT)


def size_of(root: ModuleSpec) -> int:
    """Count the modules, arguments and links of a plan."""
    total = 0
    for spec in specs_in(root):
        total += 1 + len(spec.args) + len(spec.kwargs) + len(spec.children)
        if spec.graph is not None:
            total += sum(1 + len(node.takes) for node in spec.graph.nodes) + len(spec.graph.outputs)
    return total


def unify_tied(plan: Plan, owned: TensorsByModule, computed: set[int]) -> None:
    """Merge modules that are identical, down to the memory of all their tensors, into one module at several places.

    Lua's clones with shared parameters are such modules: `module:clone('weight', 'bias')`.

    Args:
        plan: the plan; it is modified.
        owned: the tensors of its modules, by the module's id and by their names in it.
        computed: the tensors, by id, that are not views of the file's memory; small ones are compared by content.
    """
    modules = _OwnedModules(owned, computed)
    first_of_number: dict[int, ModuleSpec] = {}
    for spec in specs_in(plan.root):
        for name, child in spec.children.items():
            # Without tensors there is nothing to tie; of two states kept between calls one would overwrite the other.
            if modules.has_tensors(child) and not modules.has_state(child):
                spec.children[name] = first_of_number.setdefault(modules.number_of(child), child)


class _OwnedModules:
    """Modules with their tensors. Those with one number are identical, down to the memory of all their tensors.

    Args:
        owned: the tensors of modules, by the module's id and by their names in it.
        computed: the tensors, by id, that are not views of the file's memory.
    """

    def __init__(self, owned: TensorsByModule, computed: set[int]) -> None:
        self._owned = owned
        self._computed = computed
        self._number_of_description: dict[Any, int] = {}
        # Each module is asked for several times: as a child, and in the modules around it.
        self.has_tensors = cache(self._has_tensors)
        self.has_state = cache(self._has_state)
        self.number_of = cache(self._number_of)

    def _has_tensors(self, spec: ModuleSpec) -> bool:
        """Return whether a module, or one inside it, has tensors."""
        return bool(self._owned.get(id(spec))) or any(map(self.has_tensors, spec.children.values()))

    def _has_state(self, spec: ModuleSpec) -> bool:
        """Return whether a module, or one inside it, keeps more than its tensors between calls."""
        return remembers(spec) or any(map(self.has_state, spec.children.values()))

    def _number_of(self, spec: ModuleSpec) -> int:
        """Return the number of a module, by how it is constructed, what is in it, and its tensors."""
        construction = (spec.target, spec.plain, repr(spec.args), repr(sorted(spec.kwargs.items())))
        children = tuple((name, self.number_of(child)) for name, child in spec.children.items())
        # Modules that it only refers to are at other places of the plan, and must be the same ones.
        refers = tuple((name, id(other)) for name, other in spec.refers.items())
        tensors = tuple((name, self._identity_of(tensor)) for name, tensor in self._owned.get(id(spec), {}).items())
        description = (construction, children, refers, tensors)
        next_number = len(self._number_of_description)
        return self._number_of_description.setdefault(description, next_number)

    def _identity_of(self, tensor: Tensor) -> Any:
        """Return a key that is equal for two tensors only if they may be one: of their memory, or of their content."""
        is_computed = id(tensor) in self._computed
        if tensor.numel and not is_computed:
            return place_of(tensor)
        # Computed tensors have memory of their own each, even if in the file their layers are one: small ones, such as
        # the counters of batch normalizations, are compared by content. So are tensors of no elements.
        if tensor.numel > _MOST_COMPARED:
            return id(tensor)
        return tensor.element.name, tensor.shape, b"".join(rows(tensor))


def shared_specs(plan: Plan) -> set[int]:
    """Return the modules that occur at several places, or in several nodes of a graph, by id."""
    place_counts: Counter[int] = Counter()
    in_several_nodes: set[int] = set()
    for spec in specs_in(plan.root):
        place_counts.update(id(child) for child in spec.children.values())
        if spec.graph is not None:
            node_counts = Counter(node.module for node in spec.graph.nodes if node.module is not None)
            in_several_nodes.update(id(spec.children[name]) for name, count in node_counts.items() if count > 1)
    at_several_places = {identity for identity, count in place_counts.items() if count > 1}
    return at_several_places | in_several_nodes


def choose_classes(plan: Plan, shared: set[int]) -> None:
    """Clear the plain class of modules where it might refuse an input, and choose classes that copy where Lua's do.

    A plain class refuses lists, which a shared module may receive at one place and tensors at another; and single
    examples, which a module may receive after one that removes the batch dimension of a batch of one.

    Args:
        plan: the plan; the classes of its modules are changed in place.
        shared: the modules that occur at several places, by id.
    """
    use_copying_classes(plan.root)
    # True from the first layer on that may lose it, for all modules after that in the order of the plan: whether they
    # take its output is not followed.
    batch_may_be_lost = False
    for spec in specs_in(plan.root):  # containers before what is in them
        # Before the views in it are visited, whose plain class is set here, and may be cleared then.
        if spec.target == SEQUENTIAL:
            _flatten_views([*spec.children.values()])
        may_receive_list = id(spec) in shared and traits(spec).may_take_list
        may_receive_example = batch_may_be_lost and not _plain_class_takes_examples(spec)
        if may_receive_list or may_receive_example:
            spec.plain = ""
        if _may_lose_batch(spec):
            batch_may_be_lost = True


def _plain_class_takes_examples(spec: ModuleSpec) -> bool:
    """Return whether the plain class of a module takes single examples, too, as PReLU with one weight."""
    facts = traits(spec)
    return facts.plain_examples is not None and spec.args == facts.plain_examples


def _may_lose_batch(spec: ModuleSpec) -> bool:
    """Return whether a module may return a batch of one without the batch dimension, as Lua's `View` does.

    Some layers have an argument that prevents it: for a `View`, the dimensions of one example.
    """
    facts = traits(spec)
    keeps_batch = bool(facts.keeps_batch_if) and bool(spec.kwargs.get(facts.keeps_batch_if))
    return facts.loses_batch and not keeps_batch


def _flatten_views(modules: list[ModuleSpec]) -> None:
    """Make `Flatten` the plain class of a `View(n)` if the linear layer after it takes n features.

    As that refuses any other number, an example has n elements.

    Args:
        modules: those of a Sequential, in order; such views are changed in place.
    """
    for position, spec in enumerate(modules):
        if traits(spec).written != ("view",) or len(spec.args) != 1:
            continue
        # The first layer after it that does not keep the shape decides.
        for following in modules[position + 1 :]:
            name = following.target.removeprefix("torch.nn.")
            # The first argument of a linear layer is the number of features that it takes.
            if name == "Linear" and spec.args == (argument_at(following, 0),):
                spec.plain = "torch.nn.Flatten"
            keeps_shape = name in TORCH and TORCH[name].rank == SAME
            if not keeps_shape:
                break


# Construction


@define(eq=False)
class ModuleArgument:
    """A module among the arguments of a constructor that is checked, not called.

    Attributes:
        spec: the module.
        tensors: the shapes of its own tensors.
    """

    spec: ModuleSpec
    tensors: Mapping[str, Shape]


def check_construction(plan: Plan, owned: TensorsByModule) -> None:
    """Refuse a plan whose modules could not be constructed, or whose tensors would not fit into them.

    Args:
        plan: the plan.
        owned: the tensors of its modules, by the module's id and by their names in it.

    Raises:
        ModelError: a constructor would raise, or a tensor is missing, unexpected or of another shape.
    """
    shapes: dict[int, dict[str, Shape]] = {}
    """The shapes of the tensors that each module has in the file, by the module's id."""
    for identity, tensors in owned.items():
        shapes[identity] = {name: tensor.shape for name, tensor in tensors.items()}
    # Not graphs, whose constructors take their nodes, nor classes of which nothing is known.
    specs = [spec for spec in specs_in(plan.root) if spec.graph is None and _is_known(spec.target)]
    parts: dict[int, _Parts] = {}
    """What the constructor of each module makes, by the module's id."""
    for spec in reversed(specs):  # children first, so that the innermost error is the one reported
        parts[id(spec)] = _parts_of(spec, shapes)
    # When all can be constructed: outer modules first, in the order of the state dict.
    for spec in specs:
        shapes_made, modules_stored = parts[id(spec)]
        _check_modules(spec, {name: module.spec for name, module in modules_stored.items()})
        _check_tensors(spec, shapes_made, shapes.get(id(spec), {}))


_Parts = tuple[dict[str, Shape], dict[str, ModuleArgument]]
"""What a constructor makes: the shapes of tensors, and the modules that it stores, by name."""


def _parts_of(spec: ModuleSpec, shapes: dict[int, dict[str, Shape]]) -> _Parts:
    """Return what the constructor of a module makes, or refuse the module if it would raise.

    Args:
        spec: the module.
        shapes: the shapes of the tensors that each module has in the file, by the module's id.
    """
    modules = {**spec.children, **spec.refers}
    arguments = {name: ModuleArgument(module, shapes.get(id(module), {})) for name, module in modules.items()}
    # A `Sequential` has numbered children, which are positional arguments.
    numbered = [module for name, module in arguments.items() if name.isdigit()]
    named = {name: module for name, module in arguments.items() if not name.isdigit()}
    try:
        return constructed_parts(spec.target, (*numbered, *spec.args), {**spec.kwargs, **named})
    except (ArithmeticError, LookupError, Refused, TypeError, ValueError) as error:
        raise ModelError(
            f"a {spec.class_name} cannot be made a {short_name(spec.target)}: {error}", path=spec.path
        ) from error


def _is_known(target: str) -> bool:
    """Return whether a class is one of this package or of torch.nn; the tensors of others are unknown."""
    return target.startswith(OURS) or target.removeprefix("torch.nn.") in TORCH


def constructed_parts(target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Parts:
    """Return the shapes of the tensors, and the modules inside, of a module constructed with these arguments, by name.

    Args:
        target: a class of this package's layers, or of torch.nn whose arguments are known.
        args: positional arguments; each module is a `ModuleArgument`.
        kwargs: arguments by keyword, likewise.

    Raises:
        Refused, ArithmeticError, LookupError, TypeError, ValueError: the constructor would raise.
    """
    signature, base = constructor(target)
    if signature is None:  # that of a class of torch.nn, which stores no modules
        return constructed(base, args, kwargs), {}
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    modules = _stored_modules(signature, bound.arguments, base == "Sequential")
    if "dtype" in signature.parameters:
        _check_element_type(signature.parameters["dtype"], bound.arguments["dtype"])
    return _tensors_of(target, bound), modules


def _tensors_of(target: str, bound: BoundArguments) -> dict[str, Shape]:
    """Return the shapes of the tensors that the constructor of a class of this package makes, by name.

    Args:
        target: the class.
        bound: the arguments.
    """
    facts = traits_of(target)
    if facts.shapes is not None:  # as its entry says, else as those of the class that it is like
        sizes = facts.shapes(*bound.args, **bound.kwargs)
    elif facts.like:
        sizes = constructed(facts.like, *_arguments_of(facts.like, bound))
    else:
        return {}
    return {name: shape(size) for name, size in sizes.items()}


def _check_element_type(parameter: Parameter, dtype: Any) -> None:
    """Refuse an argument that names no element type; none is needed where the layer has a default, `None`."""
    may_be_none = parameter.default is None  # which keeps the type of the input
    if may_be_none and not dtype:
        return
    if dtype not in ELEMENT_TYPES:
        raise Refused(f"torch has no element type {dtype!r:.40}")


def _arguments_of(like: str, bound: BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return those arguments of a constructor that a class of torch.nn has too, by position and by keyword.

    Args:
        like: the class of torch.nn: `LSTM`.
        bound: the arguments.
    """
    kinds = {parameter.kind for parameter in bound.signature.parameters.values()}
    if Parameter.VAR_POSITIONAL in kinds:  # a constructor with `*args` passes them to that of torch.nn
        return bound.args, bound.kwargs
    parameters = TORCH[like].arguments
    return (), {name: value for name, value in bound.arguments.items() if name in parameters}


def _stored_modules(
    signature: Signature, arguments: Mapping[str, Any], is_sequential: bool
) -> dict[str, ModuleArgument]:
    """Return the modules that a constructor stores: a `Sequential` numbers them, others use the parameter's name.

    Args:
        signature: of the constructor; its annotations say which parameters are modules.
        arguments: the argument of each parameter; a tuple for `*args`, a dict for `**kwargs`.
        is_sequential: whether the class is a `Sequential`.

    Raises:
        Refused: an argument that should be a module is none, or the other way round.
    """
    modules: dict[str, ModuleArgument] = {}
    for name, argument in arguments.items():
        parameter = signature.parameters[name]
        for key, value in _values_of(parameter, argument).items():
            _check_is_module_or_not(parameter, key, value)
            if not isinstance(value, ModuleArgument):
                continue
            if is_sequential and _is_for_modules(parameter):
                # `key` is the place in `*args`, which differs if modules before these are stored by name.
                modules[str(len(modules))] = value
            else:
                modules[key] = value
    return modules


def _is_for_modules(parameter: Parameter) -> bool:
    """Return whether a parameter is annotated as a module: `nn.Module`, `nn.Module | None`."""
    return "nn." in parameter.annotation


def _check_is_module_or_not(parameter: Parameter, key: int | str, value: Any) -> None:
    """Refuse a module for a parameter of another type, and anything else for one of modules but its default.

    Args:
        parameter: the parameter.
        key: its name, or the place or keyword of the value among those that it receives.
        value: a value that it receives.
    """
    if isinstance(value, ModuleArgument):
        if not _is_for_modules(parameter) and parameter.annotation != "Any":
            raise Refused(f"the argument {key} is a module")
    elif _is_for_modules(parameter) and value is not parameter.default:  # `None` where the module is optional
        raise Refused(f"the argument {key} is no module")


def _values_of(parameter: Parameter, argument: Any) -> Mapping[Any, Any]:
    """Return the values that a parameter receives, by its name; those of `*args` by number, of `**kwargs` by keyword.

    Args:
        parameter: the parameter.
        argument: its argument; a tuple for `*args`, a dict for `**kwargs`.
    """
    if parameter.kind is parameter.VAR_POSITIONAL:
        return dict(enumerate(argument))
    if parameter.kind is parameter.VAR_KEYWORD:
        keywords: dict[str, Any] = argument
        return keywords
    return {parameter.name: argument}


def _check_modules(spec: ModuleSpec, stored: Mapping[str, ModuleSpec]) -> None:
    """Refuse a class that accepts other modules than those inside, or stores them under other names.

    Args:
        spec: the module.
        stored: the modules that its constructor stores, by the names under which it does.
    """
    inside = spec.children
    for name in {**inside, **stored}:
        # A module that it only refers to is inside another.
        if stored.get(name) is not inside.get(name) and name not in spec.refers:
            raise ModelError(
                f"a {spec.class_name} does not hold the modules that a {short_name(spec.target)} takes",
                path=spec.path,
                expected=f"the modules {', '.join(stored) or 'none'}",
                found=", ".join(inside) or "none",
            )


def _check_tensors(spec: ModuleSpec, required: Mapping[str, Shape], shapes: Mapping[str, Shape]) -> None:
    """Refuse tensors that are missing, unexpected, or of another shape than the constructor's.

    Args:
        spec: the module.
        required: the shapes of the tensors that its constructor makes, by name.
        shapes: those of the tensors that it has in the file, by name.
    """
    facts = traits_of(spec.target)
    hint = ""
    if spec.target.startswith(LAYERS) and facts.shapes is None and not facts.like:
        hint = "The traits of its class in t7bridge/nn/layers declare no `shapes`."
    for name in {**required, **shapes}:
        if required.get(name) != shapes.get(name):
            raise ModelError(
                f"the weights do not fit the layer: {spec.class_name} as {short_name(spec.target)}",
                path=f"{spec.path}.{name}",
                expected=f"the shape {required[name]}" if name in required else "no such tensor",
                found=f"{shapes[name]}" if name in shapes else "no such tensor",
                hint=hint,
            )
