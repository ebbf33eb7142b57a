"""From a Lua model to the plan of its PyTorch modules.

May import graph, errors, limits and report. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

from attrs import evolve

from ..errors import ModelError, UnsupportedLayerError
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, Limits
from .graphs import graph_spec
from .mapping import LAYERS, Call, GraphSpec, Lua, ModuleSpec, Plan
from .places import MAX_DEPTH, Place
from .registry import layer_of, registered_layers, tensor_shapes, traits_of
from .state_dict import StateDict, state_dict

_MAX_LISTED = 500
"""Maximum number of layers listed in a message; the error itself has all of them."""


def build_plan(
    value: TorchObject,
    path: str = "root",
    index_base: int = 1,
    limits: Limits = DEFAULT_LIMITS,
    state: StateDict | None = None,
) -> Plan:
    """Plan the PyTorch modules of a Lua module.

    Args:
        value: the module or criterion.
        path: its path, for messages.
        index_base: the user's number of the first element, class or row: 1 as in Lua, or 0.
        limits: resource limits.
        state: its state dict under Lua's names, made with the same path and limits; made here if it is `None`.

    Raises:
        UnsupportedLayerError: there are layers without a PyTorch equivalent; it lists all of them.
        ModelError: the tensors of a layer do not match each other.
        LimitError: the model is nested or shared too much.
    """
    if state is None:
        state = state_dict(value, path, limits, own_keys=True)
    planner = _Planner(state, index_base)
    root = planner.run()
    if planner.unsupported:
        raise _error(list(planner.unsupported), planner.has_unknown_class)
    planner.check_shapes()
    return Plan(root, frozenset(planner.learned()))


def sketch(state: StateDict) -> tuple[ModuleSpec, list[tuple[str, str, str]]]:
    """Return as much of a plan as possible, for pictures, and the layers without a PyTorch module.

    Args:
        state: the state dict of the module or criterion, under Lua's names.

    Returns:
        The module of the plan, in which layers without a PyTorch module have an empty target; path, class in Lua and
        reason of each of these.

    Raises:
        LimitError: the model is nested or shared too much.
    """
    planner = _Planner(state, index_base=1)  # a picture is of Lua's model, whose numbers begin with 1
    return planner.run(), list(planner.unsupported)


def _similar(name: str) -> list[str]:
    """Return the registered classes whose names are like one that is not."""
    from difflib import get_close_matches

    return get_close_matches(name, registered_layers(), _CANDIDATES, _ALIKE)


class _Planner:
    """Makes the plan of one model.

    Args:
        state: its state dict, with the places of its modules.
        index_base: the user's number of the first element, class or row: 1 as in Lua, or 0.
    """

    def __init__(self, state: StateDict, index_base: int) -> None:
        assert state.places is not None  # only put together from others, or copied, it has none
        self._places = state.places
        self._state = state
        self._index_base = index_base
        self._specs: dict[int, ModuleSpec] = {}
        """The plan of each object, by its id."""
        self._childless: set[int] = set()
        """Objects, by id, whose arguments describe also the modules inside, which are not planned."""
        self._references: list[tuple[ModuleSpec, Mapping[str, TorchObject]]] = []
        """Modules, and the objects elsewhere in the model that their constructors receive."""
        self._remembering: set[int] = set()
        """Plans, by id, whose class became one that keeps values of its last pass for modules that refer to it."""
        self.unsupported: dict[tuple[str, str, str], None] = {}
        """Path, class and reason of each layer without a PyTorch module, in order."""
        self._similar = cache(_similar)
        """Known classes by an unknown one; searching them takes time, and a model has many objects of one class."""
        self.has_unknown_class = False
        """Whether a class has no entry."""
        self._shapes_by_prefix: dict[str, dict[str, tuple[int, ...]]] = {}
        """The shapes of the tensors of each place, by its prefix."""
        self._shapes_by_object: dict[int, dict[str, tuple[int, ...]]] = {}
        """The shapes of the tensors that each object's entry names, by its id."""
        self._planned_shapes: dict[int, dict[str, tuple[int, ...]]] = {}
        """The shapes with which each object was planned, by its id."""
        for key, tensor in state.items():
            prefix, _, name = key.rpartition(".")
            self._shapes_by_prefix.setdefault(f"{prefix}." if prefix else "", {})[name] = tensor.shape
            self._shapes_by_object.setdefault(id(state.origins[key].obj), {})[name] = tensor.shape

    def run(self) -> ModuleSpec:
        """Return the plan of the model; layers without a PyTorch module are in `unsupported`."""
        root = self._plan_places()
        # The walk over the places has noted these.
        for place, child in self._places.cycles:
            self._reject(place.path + child.path, child.value.class_name, "contains itself")
        for place, child in self._places.non_modules:
            reason = f"holds a {type(child.value).__name__} where a module belongs"
            self._reject(place.path + child.path, place.obj.class_name, reason)
        # References first: they may change the classes that the others ask for their traits.
        self._resolve_references()
        self._allow_overlapping_inputs()
        self._keep_penalties()
        self._choose_types()
        return root

    def _plan_places(self) -> ModuleSpec:
        """Plan each object at its first place, and return the plan of the root; all have their children."""
        # Places inside objects that are `_childless`, by id; held, so that no other place receives their id.
        not_planned: dict[int, Place] = {}
        for place in self._places:
            parent = place.parent
            if parent is not None and (id(parent.obj) in self._childless or id(parent) in not_planned):
                not_planned[id(place)] = place
                continue
            spec = self._specs.get(id(place.obj))
            if spec is None:
                spec = self._plan(place)
                self._specs[id(place.obj)] = spec
            if parent is not None:
                # An object at several places has its children at each, and they are the same.
                self._specs[id(parent.obj)].children.setdefault(place.name, spec)
        return self._specs[id(self._places.root)]

    def _allow_overlapping_inputs(self) -> None:
        """Wrap the in-place layers of a model that repeats tensors without copying, so that they accept such tensors.

        PyTorch refuses to change a tensor in place several of whose elements are the same memory; Lua does not.
        """
        if not any(traits_of(spec.target).repeats for spec in self._specs.values()):
            return
        for spec in self._specs.values():
            # `Overlapping` takes a tensor, no list. What is in place inside a container is wrapped itself.
            if spec.kwargs.get("inplace") and not spec.children and not traits_of(spec.target).takes_list:
                # The spec itself becomes the wrapper, as all its places refer to it. Only unpoolings have
                # references (`refers`), and none is in place.
                inner = evolve(spec, children={}, refers={})
                spec.target = f"{LAYERS}activation.Overlapping"
                spec.args = ()
                spec.kwargs = {}
                spec.plain = ""  # the layer's class of torch.nn: it would take the place of the wrapper
                spec.children["0"] = inner

    def _keep_penalties(self) -> None:
        """Let penalties be counted in branches that no output uses, to which Lua passes gradients of zeros.

        In a model with a penalty, layers that leave values out, such as a choice from a list, become classes that stay
        connected with these.
        """
        has_penalty = any(traits_of(spec.target).own_gradient for spec in self._specs.values())
        if not has_penalty:
            return
        for spec in self._specs.values():
            connecting_class = traits_of(spec.target).connecting
            if connecting_class:
                spec.target = LAYERS + connecting_class

    def _choose_types(self) -> None:
        """Set the element types of containers that join values, in a model with several element types.

        Lua copies all of them into one of the container's type, and PyTorch would promote them to a common one.
        """
        types: set[Any] = set()  # names of element types to which layers convert, which are arguments of these
        for spec in self._specs.values():
            if traits_of(spec.target).casts:
                types.update(value for value in (*spec.args, *spec.kwargs.values()) if value in ELEMENT_TYPES)
        if not types:
            return
        for spec in self._specs.values():
            typed_class = traits_of(spec.target).typed
            # The last output has the type of the container, even if it was emptied.
            output = spec.obj.get("output") if spec.obj is not None else None
            # A container of the only type to which layers convert stays as it is.
            if typed_class and isinstance(output, Tensor) and types != {output.element.name}:
                spec.target = LAYERS + typed_class
                spec.kwargs = {**spec.kwargs, "dtype": output.element.name}

    def _plan(self, place: Place) -> ModuleSpec:
        """Return the plan of a module without its children.

        Args:
            place: the first place of the module.

        Returns:
            A plan without a target if the module has no PyTorch module, which is noted in `unsupported`.
        """
        obj = place.obj
        # The path of a deep place is as long as the model is deep: of all of them together that would be too much.
        is_deep = place.depth > MAX_DEPTH
        path = f"{self._places.path}…{place.step} ({place.depth} deep)" if is_deep else place.path
        spec = ModuleSpec(target="", class_name=obj.class_name, obj=obj, path=path)
        construction = self._construction(place, path)
        if construction is None:
            return spec
        call, graph = construction
        spec.target = call.target
        spec.args = call.args
        # A graph has only its nodes as arguments.
        spec.kwargs = call.kwargs if graph is None else graph_arguments(graph)
        spec.plain = call.plain
        spec.graph = graph
        if call.childless:
            self._childless.add(id(obj))
        if call.refers:
            self._references.append((spec, call.refers))
        return spec

    def _construction(self, place: Place, path: str) -> tuple[Call, GraphSpec | None] | None:
        """Return how the module of a place is constructed, and the nodes of a graph.

        Args:
            place: the place.
            path: its path, for messages.

        Returns:
            `None` if it has no PyTorch module, which is noted in `unsupported`; in the pair `None` for all but graphs.
        """
        obj = place.obj
        if place.layer is None:
            self._reject_unknown(obj, path)
            return None
        mapped = place.layer.module_of(obj.class_name)
        if mapped is None:
            self._reject(path, obj.class_name, "has no PyTorch module yet")
            return None
        shapes = self._shapes_of(place)
        self._planned_shapes[id(obj)] = shapes  # for `check_shapes`
        above = Above(place)
        lua = Lua(obj, path, place.layer.defaults, shapes=shapes, index_base=self._index_base, above=above)
        try:
            call: Call = mapped(lua)
            graph = graph_spec(obj, path) if traits_of(call.target).is_graph else None
        except ModelError as error:
            self._reject(error.path or path, obj.class_name, _reason(error))
            return None
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # Fields of other types or sizes than the class's own.
            self._reject(path, obj.class_name, f"has inconsistent fields: {error}")
            return None
        return call, graph

    def _reject_unknown(self, obj: TorchObject, path: str) -> None:
        """Note in `unsupported` an object whose class has no entry, and in `has_unknown_class` that there is one.

        Args:
            obj: the object.
            path: of the object in the file.
        """
        self.has_unknown_class = True
        shapes = self._shapes_by_object.get(id(obj), {})
        self._reject(path, obj.class_name, unknown_class(obj, shapes, self._similar(obj.class_name)))

    def _shapes_of(self, place: Place) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of a place by name, of which a container around it may name some."""
        # The prefix of a deep place would be as long as its path.
        if place.depth > MAX_DEPTH:
            return self._shapes_by_object.get(id(place.obj), {})
        return self._shapes_by_prefix.get(place.prefix, {})

    def _resolve_references(self) -> None:
        """Set the modules elsewhere that constructors receive; these become classes that remember what is needed.

        An unpooling, for example, refers to a pooling, which remembers where its largest elements were.
        """
        for spec, references in self._references:
            for name, obj in references.items():
                other = self._specs.get(id(obj))
                if other is not None:
                    remembering_class = traits_of(other.target).remembering
                    # For a second reference the class was set by the first one.
                    if remembering_class:
                        other.target = LAYERS + remembering_class
                        self._remembering.add(id(other))
                if other is None or id(other) not in self._remembering:
                    self._reject(spec.path, spec.class_name, f"belongs to a {obj.class_name} outside of the model")
                    continue
                spec.refers[name] = other

    def _reject(self, path: str, class_name: str, reason: str) -> None:
        """Note in `unsupported` a layer without a PyTorch module.

        Args:
            path: of the layer in the file.
            class_name: its class in Lua.
            reason: the end of a sentence that begins with the class: `contains itself`.
        """
        self.unsupported[path, class_name, reason] = None

    def check_shapes(self) -> None:
        """Compare the tensors of all layers with the shapes that their arguments require.

        Raises:
            ModelError: one has another shape; its path is that of the layer and its name in the state dict.
        """
        for object_id, spec in self._specs.items():
            shapes = self._planned_shapes.get(object_id)
            if not shapes:  # no tensors, or no PyTorch module
                continue
            required = tensor_shapes(spec.target, spec.args, spec.kwargs)
            for name, shape in shapes.items():
                if name in required and required[name] != shape:
                    raise ModelError(
                        f"the {name} of a {spec.class_name} does not match its other tensors",
                        path=f"{spec.path}.{name}",
                        expected=f"the shape {list(required[name])}",
                        found=f"{list(shape)}",
                    )

    def learned(self) -> Iterator[str]:
        """Yield the keys of the state dict that are parameters."""
        for key, origin in self._state.origins.items():
            if origin.param is not None and origin.param.kind == "parameter":
                yield key


def _reason(error: ModelError) -> str:
    """Return the text of an error without its path: `is no size (expected 1; 0.5)`."""
    details = []
    if error.expected:
        details.append(f"expected {error.expected}")
    if error.found:
        details.append(error.found)
    return f"{error.message} ({'; '.join(details)})" if details else error.message


def graph_arguments(graph: GraphSpec) -> dict[str, Any]:
    """Return a graph as the arguments of `containers.Graph` of `torchmodules/layers`, by keyword."""
    return {
        "nodes": tuple((node.module, node.takes) for node in graph.nodes),
        "outputs": graph.outputs,
        "returns_list": graph.returns_list,
    }


class Above(Sequence[TorchObject]):
    """The objects that contain a place, the innermost first; determined on demand.

    Args:
        place: the place.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def __len__(self) -> int:
        return self._place.depth

    def __iter__(self) -> Iterator[TorchObject]:
        parent = self._place.parent
        while parent is not None:
            yield parent.obj
            parent = parent.parent

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def _error(layers: list[tuple[str, str, str]], has_unknown_class: bool) -> UnsupportedLayerError:
    """Return the error that lists layers without a PyTorch module.

    Args:
        layers: path, class and reason of each.
        has_unknown_class: whether a class has no entry, so that the user may register one.
    """
    classes = sorted({class_name for _, class_name, _ in layers})
    lines = [f"{path}: {class_name} {reason}" for path, class_name, reason in layers[:_MAX_LISTED]]
    if len(layers) > _MAX_LISTED:
        lines.append(f"and {len(layers) - _MAX_LISTED} more")
    layers_have = "layer has" if len(layers) == 1 else "layers have"
    hint = "`t7bridge convert` still writes their tensors."
    if has_unknown_class:
        hint = f"Register classes of your own with t7bridge.register_module, see docs/own-layers.md; {hint}"
    return UnsupportedLayerError(
        f"{len(layers)} {layers_have} no PyTorch module ({', '.join(classes)}):\n  " + "\n  ".join(lines),
        layers=tuple(layers),
        hint=hint,
    )


_MAX_TENSORS = 6
"""Maximum number of tensors described in the reason for an unknown class."""
_CANDIDATES = 3
"""Maximum number of known classes of similar names whose fields are compared."""
_ALIKE = 0.75
"""Least similarity of names, of `difflib`: `nn.SpatialConvolutionX` has 0.98 with `nn.SpatialConvolution`."""


def unknown_class(obj: TorchObject, shapes: Mapping[str, tuple[int, ...]], similar: Iterable[str]) -> str:
    """Return the reason for which an object has no module: that its class has no entry, and what the object holds.

    Args:
        obj: the object.
        shapes: the shapes of its own tensors in the state dict, by their names there.
        similar: known classes with a similar name.
    """
    content: list[str] = []
    if shapes:
        tensors = [f"{name} {' x '.join(map(str, shape))}" for name, shape in islice(shapes.items(), _MAX_TENSORS)]
        if len(shapes) > _MAX_TENSORS:
            tensors.append("…")
        content.append(", ".join(tensors))
    similar_class = next((name for name in similar if _has_fields_of(obj, name, shapes)), "")
    if similar_class:
        content.append(f"all fields of {similar_class}")
    text = "is a class without an entry"
    return f"{text}; it has {' and '.join(content)}" if content else text


def _has_fields_of(obj: TorchObject, name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether an object could be one of a known class: it has all fields of that, and no other tensors.

    Args:
        obj: the object.
        name: the known class.
        shapes: the shapes of the object's own tensors in the state dict, by their names there.
    """
    layer = layer_of(name)
    module = layer.module_of(name) if layer else None
    if layer is None or module is None or layer.children is not None:
        return False
    lua = Lua(obj, path="", defaults=layer.defaults, shapes=shapes)
    try:
        parameters = {param.name for param in layer.params_of(lua) if param.kind == "parameter"}
        module(lua)  # raises if a field for its arguments is missing
    except (ModelError, ArithmeticError, LookupError, TypeError, ValueError):
        return False
    # The object has the class's parameters, of which only the bias may be missing, and no others.
    return parameters <= {*shapes, "bias"} and set(shapes) <= parameters
