"""What a model is proved against: values recorded in its file, pairs of an input and an output, a second model. The
subject is the model that is proved; a recording is a table of an input and an output in another file.

The code of generated folders and of factories is the user's own, and is imported on the user's request.
May import conversion, formats, graph, nn and torchmodules.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ... import formats
from ...conversion.inputs import Inputs, parse_inputs
from ...conversion.template import torch_weights
from ...conversion.tree import to_torch as torch_values
from ...data import np
from ...errors import ModelError, T7BridgeError
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from ...io.source import add_input
from ...limits import Limits
from ...nn.output_shapes import Example, inputs_text
from ...nn.places import Places, choose_module, find_modules
from ...nn.registry import layer_of
from ...nn.state_dict import state_dict
from ...torchmodules.build import copy_module, live_module, load_weights, make_module
from ...torchmodules.factories import Factory
from .judge import judged
from .layer import LiveLayer, NotRunError, first_line, flat, in_double, to_doubles, to_torch
from .nodes import Node, element_counts
from .proof import AGREES, DIFFERS, NOT_RECORDED, LayerProof, Proof, Subject
from .recorded import Recorded, is_complete, own_parameters, recorded
from .rounding import UNIT, unit_of
from .two_models import TwoModels

FACTOR_OF_WHOLE = 10.0
"""Factor of the limit for a whole model: the errors of a hundred layers add up to those of one by the root of their
number."""

# Values recorded in the file


def recorded_values(value: Value, name: str, at: str | None, limits: Limits) -> Proof:
    """Return the verdicts on the models in a value; criterions, which record no target, are left out.

    Args:
        value: the content of a file.
        name: of the file.
        at: the path of the only model that is meant; `None` for all.
        limits: resource limits.
    """
    proof = Proof(name)
    models = find_modules(value)
    if at is not None or not models:
        # It raises the error if there is no model, or none there.
        models = [choose_module(value, at, name)]
    for path, module in models:
        entry = layer_of(module.class_name)
        if entry is None or entry.kind != "criterion":
            proof.layers += judged(module, path, limits)
            proof.layers += _not_run(module, path, proof.layers, limits)
    return proof


def _not_run(module: TorchObject, path: str, judged_layers: list[LayerProof], limits: Limits) -> list[LayerProof]:
    """Return the layers of a model that are in no run as not recorded, without containers and unknown classes.

    Args:
        module: the model.
        path: its path.
        judged_layers: those that have a verdict; each path is returned once, and none of these.
        limits: resource limits.
    """
    listed = {layer.path for layer in judged_layers}
    layers = []
    for place in Places(module, path, limits):
        if place.layer is None or place.layer.children or place.path in listed:
            continue
        listed.add(place.path)
        layer = LayerProof(place.path, place.obj.class_name, NOT_RECORDED)
        layer.parameters = own_parameters(place.obj)
        layers.append(layer)
    return layers


# References outside the file


def compared(subject: Subject, reference: Any, inputs: Inputs, factory: str | None) -> Proof:
    """Return the verdicts on a model by a reference outside its file.

    Args:
        subject: the model.
        reference: a pair of an input and an output, or a list of pairs, by which the model as a whole is compared; or
            a file, folder or module, see `prove`.
        inputs: of two models; empty if they are inferred.
        factory: returns the model of a state dict.
    """
    if isinstance(reference, (tuple, list)):
        pairs = reference if isinstance(reference, list) else [reference]
        return _by_pairs(subject, pairs)
    model, label = _opened(reference, factory, subject.limits)
    if isinstance(model, Table):
        return _by_recording(subject, model, label)
    return TwoModels(subject, in_double(model).eval(), label, inputs).proof()


def _by_pairs(subject: Subject, pairs: list[Any]) -> Proof:
    """Return the verdicts on the model as a whole, one by each pair of an input and an output.

    Args:
        subject: the model.
        pairs: each an input and the output that it should have, in any form of `_values`.

    Raises:
        ModelError: one of them is not a pair, or has no values.
    """
    if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
        raise ModelError("a reference is not a pair of an input and an output")
    limits = subject.limits
    recordings = [(_values(inputs, limits), _values(wanted, limits)) for inputs, wanted in pairs]
    layers = []
    for number, (inputs, wanted) in enumerate(recordings, 1):
        label = f"pair {number}"
        if not is_complete(inputs) or not is_complete(wanted):
            raise ModelError(f"{label} has no values to compare", expected="tensors of real numbers that are not empty")
        layers.append(_verdict_on_whole(subject, inputs, wanted, label))
    return Proof(subject.file, layers, "expected outputs")


def _values(value: Any, limits: Limits) -> Recorded:
    """Return a value of the user's as recorded values.

    Args:
        value: a tensor of PyTorch or Lua, an array, a Lua table, a list of these, or the path of a file with some.
        limits: resource limits of reading a file.

    Raises:
        ModelError: it is none of these, a shape, which has no values, or of a type that numpy lacks.
    """
    if isinstance(value, (list, tuple)):
        return [_values(item, limits) for item in value]
    if isinstance(value, torch.Tensor):
        try:
            value = value.detach().cpu().numpy()
        except (RuntimeError, TypeError) as error:  # bfloat16, sparse tensors
            raise ModelError(f"a tensor cannot be compared: {first_line(error)}", found=str(value.dtype)) from error
    if isinstance(value, np.ndarray):
        value = Tensor.from_numpy(value)
    if isinstance(value, (Tensor, Table)):
        return recorded(value)
    if not isinstance(value, Example):
        # A path: each tensor in its file becomes an example with a value.
        return _values(parse_inputs([value], limits=limits), limits)
    if value.value is None:
        raise ModelError("a shape has no values to compare", found=inputs_text(value), expected="a file such as in.t7")
    return recorded(value.value)


def _count_weights(model: TorchObject, path: str, limits: Limits) -> int:
    """Return the number of weights of a model, of tied ones once, without the statistics of normalizations."""
    state = state_dict(model, path, limits)
    weights = {}
    for key, tensor in state.tensors.items():
        param = state.origins[key].param
        if param is None or param.kind == "parameter":  # of a class without an entry, all tensors are weights
            weights[id(tensor)] = tensor
    return sum(tensor.numel for tensor in weights.values())


def _verdict_on_whole(subject: Subject, inputs: Recorded, wanted: Recorded, label: str) -> LayerProof:
    """Return the verdict on the model as a whole, run on one input in evaluation mode.

    Args:
        subject: the model.
        inputs: the input.
        wanted: the output that it should return.
        label: begins the reason.
    """
    parameters = _count_weights(subject.model, subject.path, subject.limits)
    # A model that does not run on the input differs, too.
    proof = LayerProof(subject.path, subject.model.class_name, DIFFERS, parameters=parameters)
    try:
        node = _run_whole(subject, inputs, wanted)
    except (NotRunError, T7BridgeError) as error:
        proof.reason = f"{label}: {error}"
        return proof
    expected = list(flat(to_torch(wanted)))
    difference = node.compare(expected, FACTOR_OF_WHOLE)
    proof.verdict = AGREES if difference.is_within_limit else DIFFERS
    proof.reason = "; ".join(filter(None, (label, difference.reason)))
    proof.set_numbers(difference, compared=sum(element_counts(expected)))
    return proof


def _run_whole(subject: Subject, inputs: Recorded, wanted: Recorded) -> Node:
    """Run a model in evaluation mode, and return what it has computed.

    Args:
        subject: the model.
        inputs: its input.
        wanted: the output that it should return, which shows the precision.

    Raises:
        NotRunError: it does not accept the input, or draws at random.
        T7BridgeError: it has no PyTorch module.
    """
    # The output has the precision in which Lua computed; an input may have fewer digits.
    unit = unit_of(wanted) or unit_of(inputs) or UNIT["float32"]
    layer = LiveLayer.build(subject.model, subject.path, unit, subject.limits)
    layer.module.eval()
    node = Node(run_number=0, unit=unit, layer=layer, inputs=to_doubles(inputs))  # the only run there is
    node.run()
    return node


def _by_recording(subject: Subject, table: Table, place: str) -> Proof:
    """Return the verdict on a model as a whole by a table of an input and an output.

    Args:
        subject: the model.
        table: the table, with the fields `input` and `output`.
        place: the name of its file, for messages.

    Raises:
        ModelError: it lacks one of the two.
    """
    inputs = recorded(table.get("input"))
    wanted = recorded(table.get("output"))
    if not is_complete(inputs) or not is_complete(wanted):
        raise ModelError("the file holds no recording", file=place, expected="a table with input and output")
    return Proof(subject.file, [_verdict_on_whole(subject, inputs, wanted, "the whole model")], "recorded outputs")


def _opened(reference: Any, factory: str | None, limits: Limits) -> tuple[nn.Module | Table, str]:
    """Return the live model of a reference, which may be changed, or the table of a recording, and its name.

    Args:
        reference: a module of PyTorch or Lua, a state dict, or the path of a file or of a folder with a `model.py`.
        factory: returns the module of a state dict.
        limits: resource limits.

    Raises:
        ModelError: it has no model, or only weights without a factory.
    """
    if isinstance(reference, nn.Module):
        return _copied(reference), type(reference).__name__
    if isinstance(reference, TorchObject):
        return live_module(reference, limits=limits), reference.class_name
    if isinstance(reference, Mapping) and factory is not None:
        return _from_factory(factory, torch_values(dict(reference)), factory), factory
    path = str(reference)
    name = os.path.basename(path.rstrip(os.sep))
    if isinstance(reference, (str, os.PathLike)) and os.path.isdir(reference):
        return _from_folder(path), name
    if factory is not None:
        return _from_factory(factory, torch_weights(reference, limits), path), name
    return _from_file(reference, path, name, limits)


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy of the user's module, which stays as it is: the copy is changed to double precision.

    Raises:
        ModelError: it holds something that cannot be copied.
    """
    try:
        return copy_module(module)
    except Exception as error:  # the user's classes may hold anything
        raise ModelError(f"the module cannot be copied: {type(error).__name__}: {first_line(error)}") from error


def _from_file(reference: Any, path: str, name: str, limits: Limits) -> tuple[nn.Module | Table, str]:
    """Return the live model in a file, or the table of a recording, and its name; see `_opened`.

    Args:
        reference: the path of a `.t7` or of a TorchScript archive.
        path: the same as a text, by which a recording is named.
        name: its last part, by which a model is named.
        limits: resource limits.

    Raises:
        ModelError: it has no model, or only weights.
    """
    document = formats.open(reference, limits=limits)
    if document.spec.values == formats.LUA:  # a `.t7`
        value = document.value
        if isinstance(value, Table) and ("input" in value or "output" in value):
            return value, path
        place, model = choose_module(value, at=None, file=document.path)
        return live_module(model, place, limits=limits), name
    if _is_torchscript(reference):
        return torch.jit.load(reference), name  # type: ignore[no-untyped-call]
    hint = "Name its constructor: --module package:factory."
    raise ModelError("a state dict is not a model without its code", file=document.path, hint=hint)


def _is_torchscript(path: Any) -> bool:
    """Return whether a file is an archive of TorchScript."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _from_folder(path: str) -> nn.Module:
    """Load the model of a folder written by `t7bridge module`: its `model.py` is imported."""
    source = os.path.join(path, "model.py")
    spec = importlib.util.spec_from_file_location("t7bridge_model_of_folder", source)
    if spec is None or spec.loader is None or not os.path.exists(source):
        raise ModelError("the folder holds no model.py", file=path)
    add_input(source)  # no output of the call may replace it
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        model: nn.Module = module.load()
        # A recurrent one written by `module` returns its state, too; Lua's, with which it is compared, does not.
        model.register_forward_hook(_without_state)
    except Exception as error:  # the user's code may raise anything
        text = f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(f"model.py returns no model: {text}", file=source) from error
    return model


def _without_state(model: nn.Module, inputs: Any, output: Any) -> Any:
    """Drop the state that a model returns besides its output: Lua's keeps it. A hook, for which `None` is no change."""
    if not isinstance(output, tuple):
        return None
    result, *_ = output
    return result


def _from_factory(name: str, weights: dict[str, Any], path: str) -> nn.Module:
    """Call a factory and load weights into its module.

    Args:
        name: of the factory, `package:name`.
        weights: the state dict.
        path: of the weights, for messages.
    """
    model = in_double(make_module(Factory.parse(name), fetch=False))  # pretrained weights would be replaced
    # Into a model of doubles: those of Lua may be doubles, and would be rounded.
    load_weights(model, weights, path)
    return model
