"""Differences between a module in training and in evaluation, whose graph is the one that becomes a Lua model."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from ...data import define
from ...text import counted, listed
from .exporting import TORCH_FOLDER, Freedom, export_open, export_plainly, open_sizes, untraceable


@define(frozen=True)
class NoteOfClass:
    """A note on what a class of the user does otherwise in Lua.

    Attributes:
        path: of a module of the class; empty for the outermost one, and where it is not known or does not matter.
        class_name: the name of the class; empty if the note is not of one.
        text: the note.
    """

    path: str
    class_name: str
    text: str


_LAYERS_WITH_MODES = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU)
"""Layers that compute otherwise in training."""
_WITH_MODES = re.compile("dropout|norm|lstm|gru|rnn_|rrelu")
"""Names of operations that Lua's layers, too, compute otherwise in training."""


@define(frozen=True)
class Computation:
    """What a program computes, in a form that is equal for programs that compute the same.

    Attributes:
        operations: path of a module → its operations on tensors, with their numbers, without sizes.
        outputs: the operations whose values are returned, and the form of the outputs.
    """

    operations: dict[str, list[Any]]
    outputs: list[Any]


def computation_of(exported: ExportedProgram) -> Computation:
    """Return what a program computes."""
    return Computation(_operations_of(exported), _outputs_of(exported))


def _operations_of(exported: ExportedProgram) -> dict[str, list[Any]]:
    """Return path of a module → its operations on tensors, each with those of its numbers that tell modes apart."""
    operations: dict[str, list[Any]] = {}
    for node in _nodes_of(exported):
        if node.op != "call_function" or not _is_on_tensors(node):
            continue
        name = str(node.target)
        # A layer such as dropout takes its mode as a boolean, as Lua's has one: that is no difference.
        types = (float,) if _WITH_MODES.search(name) else (float, bool)
        # With defaults, which PyTorch leaves out of one graph and not of the other, if all of them are.
        arguments = _arguments_of(node) or (node.args, node.kwargs)
        numbers = [item for item in pytree.tree_leaves(arguments) if isinstance(item, types)]
        path, _ = _module_of(node)
        operations.setdefault(path, []).append((name, numbers))
    return operations


def _nodes_of(exported: ExportedProgram) -> Iterator[Any]:
    """Yield the nodes of a program, also those of blocks such as `with torch.no_grad()`."""
    for graph_module in exported.graph_module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            yield from graph_module.graph.nodes


def _is_on_tensors(node: Any) -> bool:
    """Return whether a call returns tensors, other than one whole number, as a count of batches is."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return value.dtype != torch.int64 or value.dim() > 0
    return isinstance(value, (tuple, list))


def _outputs_of(exported: ExportedProgram) -> list[Any]:
    """Return where the outputs come from, and last their form as text: one value, a tuple, a dict.

    An output that is a number is itself. Others are the origin of their node: the path of its module, its operation,
    and the number of its call among those of this operation in the module.
    """
    counts: Counter[tuple[str, str]] = Counter()
    origins: dict[Any, tuple[str, str, int]] = {}
    for node in exported.graph.nodes:
        name = node.name
        if node.op == "call_function":
            # Some operations have another name in training, as dropouts do: all of their names become one.
            name = _WITH_MODES.sub("mode", str(node.target))
        path, _ = _module_of(node)
        counts[path, name] += 1
        origins[node] = (path, name, counts[path, name])
    returned = next(node.args[0] for node in exported.graph.nodes if node.op == "output")
    kinds = [spec.kind for spec in exported.graph_signature.output_specs]
    outputs = [origins.get(item, item) for item, kind in zip(returned, kinds) if kind == OutputKind.USER_OUTPUT]
    return [*outputs, str(exported.call_spec.out_spec)]


def _module_of(node: Any) -> tuple[str, str]:
    """Return path and name of the class of the innermost module that a node belongs to; both empty if it is not known.

    In PyTorch's path, a second call of a module is `conv@1`.
    """
    stack = node.meta.get("nn_module_stack") or {"": ("", "")}
    path, class_name = [*stack.values()][-1]
    return str(path).partition("@")[0], str(class_name)


def sets_modes(exported: ExportedProgram) -> bool:
    """Return whether code outside of PyTorch's layers calls an operation in evaluation mode: `functional.dropout`."""
    classes = [class_name for _, class_name in map(_module_of, _nodes_in_evaluation(exported))]
    return not all(name.startswith("torch.nn.") for name in classes)


def _nodes_in_evaluation(exported: ExportedProgram) -> Iterator[Any]:
    """Yield the calls whose argument `train` or `training` is false, but for dropouts of nothing or that Lua lacks."""
    for node in _nodes_of(exported):
        arguments = _arguments_of(node)
        is_training = arguments.get("train", arguments.get("training", True))
        is_in_lua = arguments.get("p") != 0 and "alpha_dropout" not in str(node.target)
        if is_training is False and is_in_lua:
            yield node


def _arguments_of(node: Any) -> dict[str, Any]:
    """Return the arguments of a call of one of PyTorch's operations by their names, defaults included."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return {}
    names = [argument.name for argument in schema.arguments]
    defaults = {argument.name: argument.default_value for argument in schema.arguments}
    return {**defaults, **dict(zip(names, node.args)), **node.kwargs}


@contextlib.contextmanager
def reads_of_mode() -> Iterator[set[str]]:
    """Collect the names of the functions outside of PyTorch that read the attribute `training` of a module, in a set.

    The attribute is a property of `nn.Module` meanwhile.
    """
    readers: set[str] = set()

    def read(module: nn.Module) -> bool:
        """Return the mode of a module, as the attribute does, and note the function that reads it."""
        code = sys._getframe(1).f_code  # of the function that reads it
        if not code.co_filename.startswith(TORCH_FOLDER):
            readers.add(code.co_name)
        return bool(vars(module).get("training"))

    def write(module: nn.Module, value: bool) -> None:
        """Set the mode of a module, as `train` and `eval` do."""
        vars(module)["training"] = value

    original = vars(nn.Module).get("training")  # PyTorch only declares it, for its values are in the objects
    nn.Module.training = property(read, write)  # type: ignore[assignment]
    try:
        yield readers
    finally:
        if original is None:
            del nn.Module.training
        else:
            nn.Module.training = original


def notes_on_modes(module: nn.Module, inputs: tuple[Any, ...], evaluated: Computation | None) -> list[NoteOfClass]:
    """Return notes on what a module does in training that its Lua model does not: one for each class of modules.

    Args:
        module: in evaluation mode, in which it is left.
        inputs: the example inputs.
        evaluated: what it computes in that mode; `None` if training cannot differ, so that it is not traced.
    """
    # A module may override `train` to leave some of its layers in evaluation: its own `train` is asked, and undone.
    module.train()
    paths_left_in_evaluation = []
    for path, inner in module.named_modules():
        if isinstance(inner, _LAYERS_WITH_MODES) and not inner.training:
            paths_left_in_evaluation.append(path)
    module.eval()
    notes = []
    if evaluated is not None:
        notes = _differences_in_training(module, inputs, evaluated, paths_left_in_evaluation)
    if paths_left_in_evaluation:
        first_path = paths_left_in_evaluation[0]
        kind = type(module.get_submodule(first_path)).__name__
        count = counted(len(paths_left_in_evaluation), "layer")
        names = listed(paths_left_in_evaluation, 1)
        text = f"Lua's training() changes {count} that train() leaves in evaluation: {names}"
        notes.append(NoteOfClass(first_path, kind, text))
    return notes


def _differences_in_training(
    module: nn.Module, inputs: tuple[Any, ...], evaluated: Computation, paths_left_in_evaluation: list[str]
) -> list[NoteOfClass]:
    """Return notes on the classes that compute, or return, otherwise in training than in evaluation, or in Lua.

    Args:
        module: in evaluation mode, in which it is left.
        inputs: the example inputs.
        evaluated: what it computes in that mode.
        paths_left_in_evaluation: of layers that have a note, as the module's `train` does not change them.
    """
    try:
        exported = _export_in_training(module, inputs)
    except Exception as error:  # the user's code may raise any
        text = "the graph of training cannot be traced; that of evaluation is written"
        return [NoteOfClass("", type(module).__name__, f"{text} ({untraceable(error).found[:200]})")]
    trained = computation_of(exported)
    notes = []
    for kind, paths in _differing_paths(module, evaluated.operations, trained.operations).items():
        text = f"the forward of {kind} computes otherwise in training; the graph of evaluation is written"
        if len(paths) > 1:
            text += f" (at {counted(len(paths), 'place')})"
        notes.append(NoteOfClass(paths[0], kind, text))
    # Other operations explain other outputs: these are a difference of their own only without any.
    if not notes and evaluated.outputs != trained.outputs:
        kind = type(module).__name__
        text = f"the forward of {kind} returns other outputs in training; those of evaluation are written"
        notes.append(NoteOfClass("", kind, text))
    return [*notes, *_notes_on_fixed_modes(module, exported, paths_left_in_evaluation)]


def _notes_on_fixed_modes(
    module: nn.Module, trained: ExportedProgram, paths_left_in_evaluation: list[str]
) -> list[NoteOfClass]:
    """Return notes on operations that stay in evaluation when the module is in training: one for each class of modules.

    Args:
        module: the outermost module.
        trained: its program in training.
        paths_left_in_evaluation: of layers that have a note already.
    """
    modules = dict(module.named_modules())
    operations: dict[str, list[str]] = {}
    paths: dict[str, str] = {}
    for node in _nodes_in_evaluation(trained):
        path, _ = _module_of(node)
        if path in paths_left_in_evaluation:
            continue
        kind = type(modules.get(path, module)).__name__
        paths.setdefault(kind, path)
        operations.setdefault(kind, []).append(str(node.target).split(".")[1])
    notes = []
    for kind, names in operations.items():
        count = counted(len(names), "operation")
        text = f"Lua's training() changes {count} of {kind} that train() leaves in evaluation: {listed(names, 1)}"
        notes.append(NoteOfClass(paths[kind], kind, text))
    return notes


def _export_in_training(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Return the program of a module in training mode; raise what its code raises in it.

    Args:
        module: in evaluation mode, in which it is left.
        inputs: the example inputs.
    """
    ignored: list[str] = []  # classes with a backward of their own, of which the export in evaluation has told
    module.train()
    try:
        with open_sizes():
            exported = export_open(module, inputs, ignored, Freedom.ALL)
            if exported is None:  # no size can be left open
                exported = export_plainly(module, inputs, dynamic_shapes=None, own_backwards=ignored)
            return exported
    finally:
        module.eval()


def _differing_paths(
    module: nn.Module, evaluated: dict[str, list[Any]], trained: dict[str, list[Any]]
) -> dict[str, list[str]]:
    """Return class → paths of its modules that have other operations in training.

    A module that runs in training only is named once, and not the modules inside it.

    Args:
        module: the outermost module.
        evaluated: path of a module → its operations in evaluation, see `Computation`.
        trained: the same in training.
    """
    modules = dict(module.named_modules())
    differing: dict[str, list[str]] = {}
    prefixes_only_in_training: tuple[str, ...] = ()
    for path in sorted({*trained, *evaluated}):  # a module before those inside it
        if evaluated.get(path) == trained.get(path) or path.startswith(prefixes_only_in_training):
            continue
        if path not in evaluated:
            prefixes_only_in_training += (f"{path}.",)
        kind = type(modules.get(path, module)).__name__
        differing.setdefault(kind, []).append(path)
    return differing


def notes_on_gradients(modules: dict[str, nn.Module], parameters: dict[str, torch.Tensor]) -> list[NoteOfClass]:
    """Return what has another gradient in Lua: modules with hooks, and parameters that are not trained.

    Args:
        modules: by their paths.
        parameters: by their keys in the state dict.
    """
    notes = []
    for path, inner in modules.items():
        if inner._backward_hooks or inner._backward_pre_hooks:  # hooks of forward are in the graph
            kind = type(inner).__name__
            notes.append(NoteOfClass(path, kind, f"the backward hooks of a {kind} are not carried to Lua"))
    frozen = [key for key, parameter in parameters.items() if not parameter.requires_grad]
    if frozen:
        text = (
            counted(len(frozen), "parameter with requires_grad=False is", "parameters with requires_grad=False are")
            + f" trained in Lua, which has no such mark: {frozen[0]}"
        )
        if len(frozen) > 1:
            text += ", …"
        notes.append(NoteOfClass("", "", text))
    return notes


def dropout_of_attention(module: Any) -> float:
    """Return the probability of the dropout of the weights in a torch.nn.MultiheadAttention; 0 for other modules.

    In evaluation, which PyTorch traces, the module passes 0 to its operations. The recurrent modules pass their own.

    Args:
        module: the module that contains the call; `None` if there is none.
    """
    return module.dropout if isinstance(module, nn.MultiheadAttention) else 0.0
