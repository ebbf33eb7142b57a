"""Decisions about a plan before generation: limits, which modules are one, and where plain PyTorch does not suffice.

It also checks, without PyTorch, whether the modules can be constructed, and whether their tensors fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from inspect import Signature
from typing import Any

from ..data import define
from ..errors import ModelError, UnsupportedError
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor, place_of
from ..limits import Budget, Limits
from ..nn.mapping import LAYERS, SEQUENTIAL, ModuleSpec, Plan, specs_in
from ..nn.memory import copy_as_lua
from ..nn.places import Places
from ..nn.registry import traits_of
from ..nn.torch_nn import SAME, TORCH, Refused, Shape, constructed, shape
from .copied import constructor, remembers
from .flow import TOO_DEEP, USE_CONVERT
from .idioms import traits

_MOST_DEEP = 250
"""Maximum nesting of modules."""
_MOST_COMPARED = 64
"""Maximum elements of a computed tensor that is compared by value; larger ones are compared by identity."""

Owned = dict[int, dict[str, Tensor]]
"""The tensors of each module by its own names for them, by the module's id."""


def check_depth(value: TorchObject, path: str, limits: Limits) -> None:
    """Refuse a model whose modules are nested too deep for Python to read the generated source.

    Raises:
        UnsupportedError: they are.
    """
    if any(place.depth >= _MOST_DEEP for place in Places(value, path, limits)):
        expected = f"at most {_MOST_DEEP} modules inside one another"
        raise UnsupportedError(TOO_DEEP, path=path, expected=expected, hint=USE_CONVERT)


def check_size(tensors: dict[str, Tensor], limits: Limits) -> None:
    """Refuse tensors that are much larger than the storages they view: a stride of 0 repeats endlessly.

    Raises:
        LimitError: together they exceed the storages by more bytes than the limit `work` allows.
    """
    budget = Budget(limits, "constructing the model")
    for key, tensor in tensors.items():
        storage = tensor.storage
        budget.allocate(tensor.numel * tensor.element.itemsize, storage.nbytes if storage else 0, key)


def size_of(root: ModuleSpec) -> int:
    """Count the modules, arguments and links of a plan."""
    total = 0
    for spec in specs_in(root):
        total += 1 + len(spec.args) + len(spec.kwargs) + len(spec.children)
        if spec.graph is not None:
            total += sum(1 + len(node.takes) for node in spec.graph.nodes) + len(spec.graph.outputs)
    return total


# Tensors


def owned_tensors(plan: Plan, tensors: dict[str, Tensor]) -> Owned:
    """Return the tensors of a state dict by the module that owns them."""
    owned: Owned = {}
    for key, tensor in tensors.items():
        spec, name = owner_of(plan, key)
        owned.setdefault(id(spec), {})[name] = tensor
    return owned


def owner_of(plan: Plan, key: str) -> tuple[ModuleSpec, str]:
    """Return the module that a key of a state dict leads to, and the name of the tensor there."""
    spec = plan.root
    while True:
        name, dot, rest = key.partition(".")
        if not dot or name not in spec.children:
            return spec, key
        spec, key = spec.children[name], rest


# Modules that are one


def unify_tied(plan: Plan, owned: Owned, computed: set[int]) -> None:
    """Merge modules that are identical, down to the memory of all their tensors, into one module at several places.

    Args:
        plan: the plan; it is modified.
        owned: the tensors of its modules.
        computed: the tensors, by id, that are not views of the file's memory; they are compared by content.
    """
    numbers: dict[Any, int] = {}
    first: dict[int, ModuleSpec] = {}

    def content(tensor: Tensor) -> Any:
        if not tensor.numel or (id(tensor) in computed and tensor.numel <= _MOST_COMPARED):
            return tensor.element.name, tensor.shape, tensor.numpy().tobytes()
        return id(tensor) if id(tensor) in computed else place_of(tensor)

    @cache
    def facts(spec: ModuleSpec) -> tuple[int, bool, bool]:
        """Return a number that only identical modules share, whether there are tensors, and any other state."""
        inside = {name: facts(child) for name, child in spec.children.items()}
        own = owned.get(id(spec), {})
        said = (spec.target, spec.plain, repr(spec.args), repr(sorted(spec.kwargs.items())))
        refers = tuple((name, id(other)) for name, other in spec.refers.items())
        views = tuple((name, content(tensor)) for name, tensor in own.items())
        children = tuple((name, number) for name, (number, _, _) in inside.items())
        number = numbers.setdefault((said, children, refers, views), len(numbers))
        has_tensors = bool(own) or any(has for _, has, _ in inside.values())
        return number, has_tensors, remembers(spec) or any(resumes for _, _, resumes in inside.values())

    for spec in specs_in(plan.root):
        for name, child in spec.children.items():
            number, has_tensors, resumes = facts(child)
            if has_tensors and not resumes:
                spec.children[name] = first.setdefault(number, child)


def shared_specs(plan: Plan) -> set[int]:
    """Return the modules that occur at several places, or in several nodes of a graph, by id."""
    times: Counter[int] = Counter()
    applied: set[int] = set()
    for spec in specs_in(plan.root):
        times.update(id(child) for child in spec.children.values())
        if spec.graph is not None:
            nodes = Counter(node.module for node in spec.graph.nodes if node.module is not None)
            applied.update(id(spec.children[name]) for name, number in nodes.items() if number > 1)
    return {key for key, number in times.items() if number > 1} | applied


# Classes


def choose_classes(plan: Plan, shared: set[int]) -> None:
    """Keep layers' own classes where those of torch.nn refuse an input that Lua's accept, or do not copy as Lua's do.

    The plain class of a layer requires a batch dimension. A `View` without the dimensions of one
    example removes that of a batch of one, as in Lua; what follows it must accept single examples. A shared module
    may receive a tensor at one place and a list at another.
    """
    copy_as_lua(plan.root)
    lost = False
    for spec in specs_in(plan.root):
        facts = traits(spec)
        if spec.target == SEQUENTIAL:
            _flatten_views([*spec.children.values()])
        refuses_examples = spec.args != facts.plain_examples
        if refuses_examples and (lost or (id(spec) in shared and facts.may_take_list)):
            spec.plain = ""
        lost = lost or (facts.loses_batch and not spec.kwargs.get(facts.keeps_batch_if))


def _flatten_views(modules: list[ModuleSpec]) -> None:
    """Replace a `View(n)` by `Flatten` if the linear layer after it has n features, and so refuses anything else."""
    for at, spec in enumerate(modules):
        if traits(spec).written != ("view",) or len(spec.args) != 1:
            continue
        for following in modules[at + 1 :]:
            name = following.target.removeprefix("torch.nn.")
            if name == "Linear" and following.args[:1] == spec.args:
                spec.plain = "torch.nn.Flatten"
            if name not in TORCH or TORCH[name].rank != SAME:
                break


# Constructors: arguments are bound to the signature in a layer's source; tensors, and what a constructor refuses, are
# the facts that `Traits` and `torch_nn` declare. Nothing is allocated, and nothing of a file is run.


@define(eq=False)
class Inside:
    """A module among the arguments of a constructor.

    Attributes:
        spec: the module.
        tensors: the shapes of its own tensors.
    """

    spec: ModuleSpec
    tensors: Mapping[str, Shape]


def check_construction(plan: Plan, owned: Owned) -> None:
    """Refuse a plan whose modules could not be constructed, or whose tensors would not fit into them.

    Args:
        plan: the plan.
        owned: the tensors of its modules.

    Raises:
        ModelError: a constructor would raise, or a tensor is missing, unexpected or of another shape.
    """
    found = {key: {name: tensor.shape for name, tensor in own.items()} for key, own in owned.items()}
    known = [spec for spec in specs_in(plan.root) if spec.graph is None and _is_known(spec.target)]
    wanted = {}
    for spec in reversed(known):  # children first
        inside = {
            name: Inside(child, found.get(id(child), {})) for name, child in {**spec.children, **spec.refers}.items()
        }
        numbered = [module for name, module in inside.items() if name.isdigit()]
        named = {name: module for name, module in inside.items() if not name.isdigit()}
        try:
            wanted[id(spec)] = expected(spec.target, (*numbered, *spec.args), {**spec.kwargs, **named})
        except (ArithmeticError, LookupError, Refused, TypeError, ValueError) as error:
            raise ModelError(
                f"a {spec.class_name} cannot be made a {spec.target.removeprefix(LAYERS)}: {error}", path=spec.path
            ) from error
    for spec in known:
        tensors, modules = wanted[id(spec)]
        _check_modules(spec, {name: each.spec for name, each in modules.items()})
        _check_tensors(spec, tensors, found.get(id(spec), {}))


def _is_known(target: str) -> bool:
    """Return whether a class is one of this package or of torch.nn; the tensors of others are unknown."""
    return target.startswith(LAYERS) or target.removeprefix("torch.nn.") in TORCH


def expected(
    target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Shape], dict[str, Inside]]:
    """Return the tensors and the children of a module constructed with these arguments, by name.

    Args:
        target: a class of this package's layers, or of torch.nn whose arguments are known.
        args: positional arguments; each module is an `Inside`.
        kwargs: arguments by keyword, likewise.

    Raises:
        Refused, ArithmeticError, LookupError, TypeError, ValueError: the constructor would raise.
    """
    signature, base = constructor(target)
    if signature is None:
        return constructed(base, args, kwargs), {}
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    modules = _held(signature, given.arguments, base == "Sequential")
    default = signature.parameters["dtype"].default if "dtype" in signature.parameters else None
    dtype = given.arguments.get("dtype")
    if (dtype or default is not None) and dtype not in ELEMENT_TYPES:
        raise Refused(f"torch has no element type {dtype!r:.40}")
    facts = traits_of(target)
    if facts.shapes is not None:
        tensors = facts.shapes(*given.args, **given.kwargs)
    elif facts.like:
        known = TORCH[facts.like].arguments
        tensors = constructed(facts.like, (), {key: each for key, each in given.arguments.items() if key in known})
    else:
        tensors = {}
    return {name: shape(size) for name, size in tensors.items()}, modules


def _held(signature: Signature, arguments: Mapping[str, Any], is_sequential: bool) -> dict[str, Inside]:
    """Return the modules that a constructor stores: a `Sequential` numbers them, others use the parameter's name."""
    modules: dict[str, Inside] = {}
    for name, argument in arguments.items():
        parameter = signature.parameters[name]
        declared = "nn." in parameter.annotation
        values: Mapping[Any, Any] = {name: argument}
        if parameter.kind is parameter.VAR_POSITIONAL:
            values = dict(enumerate(argument))
        elif parameter.kind is parameter.VAR_KEYWORD:
            values = argument
        for key, value in values.items():
            if isinstance(value, Inside) and (declared or parameter.annotation == "Any"):
                modules[str(len(modules)) if is_sequential and declared else key] = value
            elif isinstance(value, Inside) or (declared and value is not parameter.default):
                raise Refused(f"the argument {key} is {'no' if declared else 'a'} module")
    return modules


def _check_modules(spec: ModuleSpec, found: Mapping[str, ModuleSpec]) -> None:
    """Refuse a class that accepts other modules than those inside, or stores them under other names."""
    wanted = spec.children
    for name in {**wanted, **found}:
        if found.get(name) is not wanted.get(name) and name not in spec.refers:
            raise ModelError(
                f"a {spec.class_name} does not hold the modules that a {spec.target.removeprefix(LAYERS)} takes",
                path=spec.path,
                expected=f"the modules {', '.join(found) or 'none'}",
                found=", ".join(wanted) or "none",
            )


def _check_tensors(spec: ModuleSpec, wanted: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    for name in {**wanted, **found}:
        if wanted.get(name) != found.get(name):
            raise ModelError(
                f"the weights do not fit the layer: {spec.class_name} as {spec.target.removeprefix(LAYERS)}",
                path=f"{spec.path}.{name}",
                expected=f"the shape {wanted[name]}" if name in wanted else "no such tensor",
                found=f"{found[name]}" if name in found else "no such tensor",
            )
