"""What is chosen in a plan before it becomes source: which modules are one, and which become a class of torch.nn. A
plan is the modules of PyTorch for a Lua model, its specs. The plain class of a spec (`plain`) is the class of torch.nn
that does the same for each tensor with a batch dimension; where it is empty, the source includes the layer's own class.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from ..errors import UnsupportedError
from ..graph.tensor import Tensor, place_of, rows
from ..nn.mapping import SEQUENTIAL, ModuleSpec, Plan, specs_in
from ..nn.memory import use_copying_classes
from ..nn.places import Places
from ..nn.torch_nn import SAME, TORCH, argument_at
from .copied import remembers
from .flow import TOO_DEEP, USE_CONVERT
from .idioms import traits
from .owned import TensorsByModule

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
