"""Rewriting of exported programs: without changes in place and `with` blocks, and operations decomposed to others."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .exporting import is_tensor, quiet

DETACH = torch.ops.aten.detach.default


def make_functional(exported: ExportedProgram, operations: frozenset[str]) -> tuple[ExportedProgram, list[str]]:
    """Return a program without changes in place, and texts for the user of what it computes otherwise in Lua.

    Most are changes of a value that only they use, as by `ReLU(inplace=True)`: the same operation that returns a new
    value will do. Only if others remain, PyTorch rewrites the whole program, which takes four times as long as all else
    for a residual network.

    Args:
        exported: the program, whose graph is changed; another one may be returned in its place.
        operations: those that stay as they are: `aten.relu.default`.
    """
    graph = exported.graph
    _inline_blocks(exported.graph_module)  # first: what follows looks at one graph
    # Changes of `parameter.data`, as to clip a weight, leave it its gradient: they are not meant by the note.
    _undetach_parameters(exported)
    notes = []
    if any(value.target is DETACH for node in graph.nodes for value in _changed_values(node)):
        notes.append("forward changes values by their data: these have no gradient in Lua")
    _replace_changes(graph)
    graph.eliminate_dead_code(_is_needed)
    if not any(_changed_values(node) for node in graph.nodes):
        return exported, notes
    # PyTorch would leave out dropouts, which do nothing in evaluation. `operation_of` names the placeholders as them.
    for node in graph.nodes:
        node.target = _PLACEHOLDERS.get(node.target, node.target)
    exported.graph_module.recompile()
    return exported.run_decompositions(_decompositions_but(operations)), notes


def _is_needed(node: Any) -> bool:
    """Return whether a node stays: its value is used, it is no call, or it changes an argument that others use."""
    return bool(node.users) or node.op != "call_function" or bool(_changed_values(node))


# Changes in place


def _changed_values(node: Any) -> list[Any]:
    """Return the nodes whose values a node changes in place: the first argument of `relu_`, `out` of `add`; or none."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return []
    changed: list[Any] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        changed += [item for item in pytree.tree_leaves(value) if isinstance(item, torch.fx.Node)]
    return changed


def _replace_changes(graph: Any) -> None:
    """Replace changes in place by operations that return new values, as far as `_replace_change` can."""
    for node in [*graph.nodes]:
        if _changed_values(node):
            _replace_change(node)


def _replace_change(node: Any) -> None:
    """Replace a change in place by the operation that returns a new value, `relu_` by `relu`, if nothing else sees it.

    The call stays as it is if the changed value is an input, may share its memory with what it was made of or with
    what an earlier call made of it, or there is no such operation.
    """
    operation = _without_change(node.target)
    changed: Any = node.args[0] if node.args else None
    # Not one that is passed by name, nor several in a list.
    if operation is None or _changed_values(node) != [changed] or changed.op != "call_function":
        return
    nodes = [*node.graph.nodes]
    earlier = set(nodes[: nodes.index(node)])
    earlier_users = [user for user in changed.users if user in earlier]
    if _may_share_memory(changed) or any(_may_share_memory(user) for user in earlier_users):
        return
    node.target = operation
    # What takes the changed value after this node takes the new one; what took it before has seen the old one.
    for user in [*changed.users]:
        if user is not node and user not in earlier:
            user.replace_input_with(changed, node)


def _without_change(target: Any) -> Any:
    """Return the operation that returns what another writes to its argument: `aten.relu.default` for `aten.relu_`.

    `None` if there is none, as for `aten.add.out`, which changes another argument than it computes with.
    """
    name, _, overload = str(target).removeprefix("aten.").partition(".")
    if not name.endswith("_"):
        return None
    return getattr(getattr(torch.ops.aten, name.removesuffix("_"), None), overload, None)


def _may_share_memory(node: Any) -> bool:
    """Return whether the value of a node may share memory with an argument of its operation."""
    if node.op == "output":  # of the graph, which has no value of its own
        return False
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # an input or a function of Python, of which nothing is known
        return True
    if any(result.alias_info is not None for result in schema.returns):  # a view
        return True
    # Operations that PyTorch composes of others may return their argument, as dropout in evaluation does.
    is_composed = torch._C._dispatch_has_kernel_for_dispatch_key(node.target.name(), "CompositeImplicitAutograd")
    return bool(is_composed) and str(node.target) not in _ALWAYS_NEW


_ALWAYS_NEW = frozenset(
    {
        "aten.batch_norm.default",
        "aten.layer_norm.default",
        "aten.group_norm.default",
        "aten.linear.default",
        "aten.conv1d.default",
        "aten.conv2d.default",
        "aten.conv3d.default",
        "aten.conv_transpose2d.input",
        "aten.matmul.default",
        "aten.max_pool2d.default",
        "aten.softmax.int",
        "aten.log_softmax.int",
    }
)
"""Composed operations that return a new value always."""


def _undetach_parameters(exported: ExportedProgram) -> None:
    """Use parameters themselves in place of their `data`, if that is changed, as by a mask: they have gradients.

    In the graph, `data` is the detached parameter. All that is detached of such a parameter is replaced.

    Args:
        exported: the program, whose graph is changed.
    """
    names = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.PARAMETER}
    changed = {value for node in exported.graph.nodes for value in _changed_values(node)}
    detached = [node for node in exported.graph.nodes if node.target is DETACH]
    changed_by_data = {node.args[0] for node in detached if node in changed}
    for node in detached:
        source = node.args[0]
        if source in changed_by_data and source.name in names:
            node.replace_all_uses_with(source)
            exported.graph.erase_node(node)


# Dropouts in evaluation, which PyTorch leaves out when it rewrites a program


def _placeholder(name: str) -> Any:
    """Return an operation `t7bridge::name` that PyTorch knows nothing of, in the place of a dropout with its arguments.

    PyTorch would leave out the dropout, which in evaluation does nothing, when it rewrites a program.
    """

    def forward(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """Return the input as it is, in new memory: PyTorch requires that of an operation that is not a view."""
        return input.clone()

    dropout = torch.library.custom_op(f"t7bridge::{name}", forward, mutates_args=())
    dropout.register_fake(lambda input, p, train: torch.empty_like(input))
    return dropout._opoverload


_PLACEHOLDERS = {
    getattr(torch.ops.aten, name).default: _placeholder(name)
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
}
"""Dropouts → the operations that stand for them while PyTorch rewrites a program."""
_DROPOUTS = {placeholder: dropout for dropout, placeholder in _PLACEHOLDERS.items()}


def operation_of(node: Any) -> Any:
    """Return the operation that a node of a rewritten program calls."""
    return _DROPOUTS.get(node.target, node.target)


# Blocks

_GRADIENTS = "wrap_with_set_grad_enabled"
_BLOCKS = (_GRADIENTS, "wrap_with_autocast")


def _inline_blocks(module: Any) -> None:
    """Put blocks such as `with torch.no_grad()` into the graph; what one without gradients returns is detached."""
    for node in [*module.graph.nodes]:
        if node.op == "call_function" and getattr(node.target, "__name__", "") in _BLOCKS:
            _inline_block(module, node)


def _inline_block(module: Any, node: Any) -> None:
    """Replace a block by the calls of its body.

    Args:
        module: the graph module, which is changed.
        node: the call of the block. Its arguments are the settings, the graph of its body, and the inputs of that.
    """
    # Behind the settings, whose number depends on the kind of block.
    body_position = next(number for number, item in enumerate(node.args) if getattr(item, "op", "") == "get_attr")
    body = getattr(module, node.args[body_position].target)
    inputs = node.args[body_position + 1 :]
    _inline_blocks(body)  # it may contain others
    with module.graph.inserting_before(node):
        results = _copy_body(body, inputs, module, prefix=f"{node.name}_")
        first_setting, *_ = node.args  # of a block for gradients: whether they are recorded
        if node.target.__name__ == _GRADIENTS and not first_setting:
            results = [_detached(module.graph, item) for item in results]
    for item in [*node.users]:  # `operator.getitem(block, number)`
        _, number = item.args
        item.replace_all_uses_with(results[number])
        module.graph.erase_node(item)
    module.graph.erase_node(node)


def _copy_body(body: Any, inputs: Any, module: Any, prefix: str) -> list[Any]:
    """Copy the nodes of a block's body to the outer graph, where it inserts nodes now; return its results as nodes.

    Args:
        body: the graph module of the body.
        inputs: the nodes of the outer graph that the body takes, in the order of its placeholders.
        module: the outer graph module; receives the nodes, and the attributes of the body.
        prefix: of the names of these attributes, as other blocks have some of the same names.
    """
    placeholders = [inner for inner in body.graph.nodes if inner.op == "placeholder"]
    values = dict(zip(placeholders, inputs))  # node of the body → node of the outer graph
    results: list[Any] = []
    for inner in body.graph.nodes:
        if inner.op == "get_attr":
            name = prefix + inner.target
            setattr(module, name, getattr(body, inner.target))
            values[inner] = module.graph.get_attr(name)
            values[inner].meta = dict(inner.meta)
        elif inner.op == "output":
            results = [values.get(item, item) for item in inner.args[0]]
        elif inner.op != "placeholder":
            values[inner] = module.graph.node_copy(inner, values.__getitem__)
    return results


def _detached(graph: Any, node: Any) -> Any:
    """Return a node of the detached value of another; the same node if the value has no gradient anyway."""
    value = node.meta.get("val")
    if not is_tensor(value) or not value.is_floating_point():
        return node
    detached = graph.call_function(DETACH, (node,))
    detached.meta = dict(node.meta)
    return detached


# Decompositions


@cache
def _decompositions_but(operations: frozenset[str]) -> dict[Any, Any]:
    """Return PyTorch's decompositions of all operations but some."""
    table = torch.export.default_decompositions().materialize()
    return {target: rule for target, rule in table.items() if str(target) not in operations}


def decompose(node: Any, operations: frozenset[str]) -> tuple[Any, list[Any]] | None:
    """Return a call as a graph of other calls, and the nodes that are its inputs; `None` if PyTorch has none.

    Args:
        node: the call.
        operations: those that stay as they are.

    Returns:
        The graph module, without changes in place where these can be replaced; and the arguments of the call that are
        nodes, in the order of the graph's placeholders.
    """
    arguments = pytree.tree_leaves((node.args, node.kwargs))
    inputs = [item for item in arguments if isinstance(item, torch.fx.Node)]
    graph_module = _trace_parts(node, inputs, operations)
    if graph_module is None:
        return None
    _replace_changes(graph_module.graph)
    parts = [inner for inner in graph_module.graph.nodes if inner.op == "call_function"]
    if any(part.target is node.target for part in parts):  # the call is a part of itself: PyTorch has no rule for it
        return None
    return graph_module, inputs


def _trace_parts(node: Any, inputs: list[Any], operations: frozenset[str]) -> Any:
    """Return the graph module of a call's decomposition; `None` if its rule needs values that only a run has.

    Args:
        node: the call.
        inputs: its arguments that are nodes, in order.
        operations: those that stay as they are.
    """
    flat_args, spec = pytree.tree_flatten((node.args, node.kwargs))

    def call_with(*values: Any) -> Any:
        """Call the operation with other values for its inputs."""
        remaining = iter(values)
        items = [next(remaining) if isinstance(item, torch.fx.Node) else item for item in flat_args]
        args, kwargs = pytree.tree_unflatten(items, spec)
        return node.target(*args, **kwargs)

    examples = [item.meta["val"] for item in inputs]  # tensors without elements, and numbers
    for _ in range(2):  # PyTorch 2.13's transforms fail where they limit a size for the first time, and work then
        try:
            with torch.no_grad(), quiet():
                return make_fx(call_with, decomposition_table=_decompositions_but(operations))(*examples)
        except Exception:
            continue
    return None
