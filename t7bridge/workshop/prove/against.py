"""What a model is proved against: values recorded in its file, pairs of an input and an output, a second model.

The code of generated folders and of factories is the user's own, and is imported on the user's request.
May import conversion, formats, graph, nn and torchmodules.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import zipfile
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from attrs import evolve
from torch import nn

from ... import formats
from ...conversion.inputs import Inputs, parse_inputs
from ...conversion.template import torch_weights
from ...conversion.tree import to_torch as torch_values
from ...data import define, np
from ...errors import ModelError, T7BridgeError
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from ...io.source import add_input
from ...limits import Limits
from ...nn.output_shapes import Example, inputs_text
from ...nn.places import Places, choose_module, find_modules
from ...nn.plan import build_plan
from ...nn.registry import layer_of
from ...nn.state_dict import state_dict
from ...torchmodules.build import live_module, load_weights, make_module
from ...torchmodules.factories import Factory
from ...torchmodules.layers.recurrent import MaskZero
from ..cells import Recurrence, recognized, recurrence
from .inputs import fitting_inputs, guess_inputs
from .judge import Node, judged
from .layer import LiveLayer, NotRunError, doubles, drawn, flat, in_double, to_doubles, to_torch
from .proof import AGREES, DIFFERS, NOT_RECORDED, LayerProof, Proof
from .rounding import TINY, UNIT, Deviation, measure, unit_of
from .runs import Recorded, is_whole, own_parameters, recorded
from .trace import Comparison, Step, compare, normalizes

WHOLE = 10.0
"""Factor of the limit for a whole model: the errors of a hundred layers add up to those of one by the root of their
number."""
_STEPS = 7
"""Of the sequences for recurrent models."""
_BATCH = 3
"""Number of these sequences."""
_SIDES = (224, 299)
"""Heights and widths of the inputs of models of ImageNet."""
_OTHER_SIZES = ((-13, -22), (13, 10))
"""What is added to height and width for a second input: one somewhat smaller, and one larger, that are no squares."""

# Values recorded in the file


def recorded_values(value: Value, name: str, at: str | None, limits: Limits) -> Proof:
    """Return the verdicts on the models in a value; criterions, which record no target, are left out."""
    proof = Proof(name)
    models = find_modules(value)
    if at is not None or not models:
        models = [choose_module(value, at, name)]
    for path, module in models:
        entry = layer_of(module.class_name)
        if entry is None or entry.kind != "criterion":
            proof.layers += judged(module, path, limits)
            proof.layers += _not_run(module, path, {layer.path for layer in proof.layers}, limits)
    return proof


def _not_run(module: TorchObject, path: str, listed: set[str], limits: Limits) -> list[LayerProof]:
    """Return the layers of a model that are in no run.

    Args:
        module: the model.
        path: its path.
        listed: the paths of the others.
        limits: resource limits.
    """
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


@define
class Subject:
    """A model that is proved against a reference outside its file.

    Attributes:
        model: the model.
        path: its path in the file.
        name: the file's name.
        limits: resource limits.
    """

    model: TorchObject
    path: str
    name: str
    limits: Limits

    def against(self, reference: Any, inputs: Inputs, factory: str | None) -> Proof:
        """Return the verdicts; see `prove`."""
        if isinstance(reference, (tuple, list)):
            pairs = reference if isinstance(reference, list) else [reference]
            return self._pairs(pairs)
        model, label = self._opened(reference, factory)
        if isinstance(model, Table):
            return self._recording(model, label)
        return self._second(in_double(model).eval(), label, inputs)

    def _pairs(self, pairs: list[Any]) -> Proof:
        """Return the verdicts by pairs of an input and an output."""
        if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
            raise ModelError("a reference is not a pair of an input and an output")
        recordings = [(self._values(inputs), self._values(wanted)) for inputs, wanted in pairs]
        layers = []
        for number, (inputs, wanted) in enumerate(recordings, 1):
            layers.append(self._whole(inputs, wanted, f"pair {number}"))
        return Proof(self.name, layers, "expected outputs")

    def _values(self, value: Any) -> Recorded:
        """Return a value of the user's as recorded values; other objects are read as `--input` is."""
        if isinstance(value, (list, tuple)):
            return [self._values(item) for item in value]
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().numpy()
        if isinstance(value, np.ndarray):
            value = Tensor.from_numpy(value)
        if isinstance(value, Example):
            value = value.value
        if isinstance(value, (Tensor, Table)):
            return recorded(value)
        return self._values(parse_inputs([value], limits=self.limits))

    def _whole(self, inputs: Recorded, wanted: Recorded, label: str) -> LayerProof:
        """Return the verdict on the model as a whole, run on one input in evaluation mode."""
        # Tied tensors count once.
        tensors = {id(tensor): tensor for tensor in state_dict(self.model, self.path, self.limits).tensors.values()}
        count = sum(tensor.numel for tensor in tensors.values())
        proof = LayerProof(self.path, self.model.class_name, DIFFERS, parameters=count)
        try:
            unit = unit_of(wanted) or unit_of(inputs) or UNIT["float32"]
            layer = LiveLayer.build(self.model, self.path, unit, self.limits)
            layer.module.eval()
            node = Node(0, unit, layer, to_doubles(inputs))
            node.run()
        except (NotRunError, T7BridgeError) as error:
            proof.reason = f"{label}: {error}"
            return proof
        expected = doubles(to_torch(wanted))
        difference = node.compare(expected, WHOLE)
        proof.verdict = AGREES if difference.excess <= 1 else DIFFERS
        proof.reason = "; ".join(filter(None, (label, difference.reason)))
        _write(proof, difference, expected)
        return proof

    def _recording(self, table: Table, place: str) -> Proof:
        """Return the verdict by a table of an input and an output."""
        inputs = recorded(table.get("input"))
        wanted = recorded(table.get("output"))
        if not is_whole(inputs) or not is_whole(wanted):
            raise ModelError("the file holds no recording", file=place, expected="a table with input and output")
        return Proof(self.name, [self._whole(inputs, wanted, "the whole model")], "recorded outputs")

    def _opened(self, reference: Any, factory: str | None) -> tuple[nn.Module | Table, str]:
        """Return the live model of a reference, or the table of a recording, and its name."""
        if isinstance(reference, nn.Module):
            return reference, type(reference).__name__
        if isinstance(reference, TorchObject):
            return live_module(reference, limits=self.limits), reference.class_name
        if isinstance(reference, Mapping) and factory is not None:
            return _from_factory(factory, torch_values(dict(reference)), factory), factory
        path = str(reference)
        name = os.path.basename(path.rstrip(os.sep))
        if isinstance(reference, (str, os.PathLike)) and os.path.isdir(reference):
            return _from_folder(path), name
        if factory is not None:
            return _from_factory(factory, torch_weights(reference, self.limits), path), name
        document = formats.open(reference, limits=self.limits)
        if document.spec.values == formats.LUA:
            value = document.first
            if isinstance(value, Table) and ("input" in value or "output" in value):
                return value, path
            place, model = choose_module(value, None, document.path)
            return live_module(model, place, limits=self.limits), name
        if _is_torchscript(reference):
            return torch.jit.load(reference), name  # type: ignore[no-untyped-call]
        hint = "Name its constructor: --module package:factory."
        raise ModelError("a state dict is not a model without its code", file=document.path, hint=hint)

    def _second(self, other: nn.Module, name: str, inputs: Inputs) -> Proof:
        """Run two models on the same inputs, and compare the outputs of the layers with weights, and of the whole."""
        problem = None
        what = self._recurrence()
        if what is not None and what.states != () and not inputs:
            try:
                return self._over_steps(other, name, what)
            except ModelError as error:  # it may take one step, as the Lua model does
                problem = error
        mine = in_double(live_module(self.model, self.path, limits=self.limits))
        comparison, specs, differences = self._in_two_sizes(mine, other, name, inputs)
        if comparison.theirs.error and problem is not None:
            raise problem
        proof = Proof(self.name, against=f"layers of {name}", reference=name, differences=differences)
        proof.misplaced = comparison.misplaced
        for step in comparison.mine.steps:
            is_repeated = bool(proof.layers) and proof.layers[-1].path == step.place
            if step.largest and not is_repeated:
                proof.layers.append(_layer(step, comparison, mine.get_submodule(step.place)))
        mode = "evaluation mode"
        if normalizes(mine):
            mode = "evaluation and training mode"
            in_training = compare(mine, other, name, drawn(mine, specs[0]), training=True)
            new = [text for text in in_training.differences if text not in differences]
            proof.differences = differences + [f"in training, {text}" for text in new]
        proof.modes = f"{' and '.join(map(inputs_text, specs))} in {mode}"
        whole = LayerProof("root", type(mine).__name__, DIFFERS if proof.differences else AGREES, runs=0)
        deviation = _deviation(doubles(comparison.theirs.result), comparison.mine.result)
        _write(whole, deviation, comparison.mine.result)
        whole.reason = f"the whole; {deviation.reason}" if deviation.reason else "the whole"
        proof.layers.append(whole)
        return proof

    def _recurrence(self) -> Recurrence | None:
        """Return what the model is, if it is recurrent."""
        state = state_dict(self.model, self.path, self.limits, own_keys=True)
        plan = build_plan(self.model, self.path, 0, self.limits, state)
        return recurrence(recognized(plan, state).plan.root)

    def _in_two_sizes(
        self, mine: nn.Module, other: nn.Module, name: str, inputs: Inputs
    ) -> tuple[Comparison, list[Any], list[str]]:
        """Compare two models in evaluation mode on an input that both accept, and on one of another size.

        Returns:
            The comparison, the first that has a difference; the inputs; the differences on all of them.
        """
        specs = self._specs(inputs)
        for spec in specs:
            comparison = compare(mine, other, name, drawn(mine, spec), training=False)
            if not comparison.theirs.error:
                break
        differences = comparison.differences
        used = [spec]
        if inputs or comparison.misplaced:
            return comparison, used, differences
        # In one size, ceil mode, padding and adaptive pooling may make no difference.
        for height, width in _OTHER_SIZES:
            resized = _resized(spec, height, width)
            if resized == spec:
                continue
            try:
                other_size = compare(mine, other, name, drawn(mine, resized), training=False)
            except ModelError:
                continue
            # With an nn.View after a pooling of fixed size, a larger image is several.
            if other_size.theirs.error or _batches(other_size) != _batches(comparison):
                continue
            used.append(resized)
            new = [text for text in other_size.differences if text not in differences]
            if new:
                differences = differences + [f"in {inputs_text(resized)}, {text}" for text in new]
                comparison = other_size
            break
        return comparison, used, differences

    def _specs(self, inputs: Inputs) -> list[Any]:
        """Return the inputs that a second model may accept: the user's, or the smallest and those of ImageNet."""
        if inputs:
            return [parse_inputs(inputs, limits=self.limits)]
        specs = [fitting_inputs(self.model, self.path, self.limits)]
        for side in _SIDES:
            guess = guess_inputs(self.model, side)
            if guess is not None and guess not in specs:
                specs.append(guess)
        return specs

    def _over_steps(self, other: nn.Module, name: str, what: Recurrence) -> Proof:
        """Run two recurrent models on the same sequences, and compare what they return for each step."""
        mine = in_double(live_module(self.model, self.path, 0, self.limits, lift=True))
        if what.takes_tokens:
            spec = Example("", (_STEPS, _BATCH), bounds=(0, what.inputs - 1))
            inputs = drawn(mine, spec).long()
            forms = _forms_of_tokens(inputs, what.inputs, other, inputs_text(spec))
        else:
            spec = Example("", (_STEPS, _BATCH, what.inputs))
            inputs = drawn(mine, spec)
            forms = {inputs_text(spec): inputs}
        is_batch_first = _has_batch_first(mine)
        wanted = _outputs(mine, inputs, is_batch_first, what.states)
        form, outputs, difference = _same_outputs(other, forms, wanted)
        whole = LayerProof("root", type(mine).__name__, AGREES, runs=len(outputs))
        whole.parameters = sum(item.numel() for item in mine.parameters())
        _write(whole, _deviation([wanted[-len(outputs) :]], [outputs]), [outputs])
        proof = Proof(self.name, [whole], f"steps of {name}", reference=name, misplaced=difference is None)
        proof.modes = f"{form} from states of zero in evaluation mode"
        if difference is None:
            proof.differences = [f"the outputs differ by up to {whole.max_abs:.2g}"]
        elif difference:
            proof.differences = [f"at the end, {difference.format('the .t7', name)}"]
        elif not what.takes_tokens and any(isinstance(layer, MaskZero) for layer in mine.modules()):
            with_zeros = torch.cat([inputs, torch.zeros_like(inputs[:1])])
            wanted = _outputs(mine, with_zeros, is_batch_first)
            _, _, masked_difference = _same_outputs(other, {form: with_zeros}, wanted)
            if masked_difference != "":
                proof.differences = [f"for steps that are zeros, the .t7 returns zeros, and {name} does not"]
        whole.verdict = DIFFERS if proof.differences else AGREES
        return proof


def _is_torchscript(path: Any) -> bool:
    """Return whether a file is an archive of TorchScript."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _batches(comparison: Comparison) -> list[Any]:
    """Return the numbers of examples of the outputs."""
    return [item.shape[:1] for item in comparison.mine.result]


def _forms_of_tokens(inputs: torch.Tensor, count: int, model: nn.Module, shape: str) -> dict[str, torch.Tensor]:
    """Return the forms in which a model may take tokens, by words for them.

    Args:
        inputs: numbers of tokens from 0 on.
        count: of different tokens.
        model: the model.
        shape: of the inputs, in words.
    """
    if any(isinstance(layer, nn.Embedding) for layer in model.modules()):
        return {f"{shape} tokens": inputs, f"{shape} tokens counted from 1": inputs + 1}
    return {f"{shape} one-hot tokens": nn.functional.one_hot(inputs, count).double()}


def _has_batch_first(model: nn.Module) -> bool:
    """Return whether a layer of a model takes the batch first."""
    return any(getattr(layer, "batch_first", False) for layer in model.modules())


def _outputs(
    model: nn.Module, inputs: Any, is_turned: bool, states: Sequence[tuple[int, int, int]] | None = None
) -> torch.Tensor:
    """Return what a recurrent model returns for sequences, from states of zero: (steps, batch, features).

    Args:
        model: the model, of one step if it has states, otherwise over sequences.
        inputs: the sequences, (steps, batch, features), or numbers of tokens from 0 on.
        is_turned: whether the model takes the batch first, and returns it so.
        states: see `Recurrence`.

    Raises:
        ModelError: the model does not accept them.
    """
    try:
        with torch.no_grad():
            if states is not None:
                return _outputs_of_steps(model, inputs, states)
            batch = inputs.shape[1]
            if not is_turned:
                output = next(flat(model(inputs)))
                return output.reshape(-1, batch, output.shape[-1])
            output = next(flat(model(inputs.transpose(0, 1))))
            return output.reshape(batch, -1, output.shape[-1]).transpose(0, 1)
    except Exception as error:  # the user's code may raise anything
        first_line = (str(error).splitlines() or [""])[0]
        raise ModelError(f"a model does not accept sequences: {type(error).__name__}: {first_line[:200]}") from error


def _outputs_of_steps(model: nn.Module, inputs: Any, states: Sequence[tuple[int, int, int]]) -> torch.Tensor:
    """Return what a model of one step returns for sequences; see `_outputs`."""
    # The input and the output are at the places that no state has.
    places = range(len(states) + 1)
    input_place = ({*places} - {place for place, _, _ in states}).pop()
    output_place = ({*places} - {place for _, place, _ in states}).pop()
    value: dict[int, Any] = {}
    for place, _, size in states:
        value[place] = torch.zeros(inputs.shape[1], size, dtype=torch.float64)
    steps = []
    for step in inputs:
        value[input_place] = step
        result = model([value[place] for place in places])
        for state_input, state_output, _ in states:
            value[state_input] = result[state_output]
        steps.append(result[output_place])
    return torch.stack(steps)


def _same_outputs(
    model: nn.Module, forms: Mapping[str, torch.Tensor], wanted: torch.Tensor
) -> tuple[str, torch.Tensor, str | None]:
    """Return the outputs of a module over sequences, with the batch first or second, as it takes them.

    Args:
        model: the module.
        forms: the sequences, (steps, batch, …), by words for them.
        wanted: the outputs of another model.

    Returns:
        The words; the outputs of each step, or of the last; and what only `{0}`, the other model, or only `{1}`
        computes at the end; empty for nothing, `None` if that is not known.

    Raises:
        ModelError: the module does not accept the sequences, or returns something else.
    """
    # As its layers say, and else the other way round: the model may transpose.
    first = _has_batch_first(model)
    results: list[tuple[str, torch.Tensor]] = []
    problem = ModelError("the models do not return as many values for each step")
    for (form, inputs), is_turned in product(forms.items(), (first, not first)):
        try:
            output = _outputs(model, inputs, is_turned)
        except ModelError as error:
            if not results:
                problem = error
            continue
        # Some models return the last step alone.
        if output.shape[1:] == wanted.shape[1:] and len(output) in (1, len(wanted)):
            results.append((form, output))
    if not results:
        raise problem
    for form, output in results:
        difference = _difference_at_end(wanted[-len(output) :], output)
        if difference is not None:
            return form, output, difference
    return *results[0], None


def _difference_at_end(wanted: torch.Tensor, output: torch.Tensor) -> str | None:
    """Return what only one of two models computes at the end; see `_same_outputs`."""
    # In both directions: the limit depends on the largest value of the first.
    if _deviation([wanted], [output]).excess <= 1 or _deviation([output], [wanted]).excess <= 1:
        return ""
    for name in ("log_softmax", "softmax"):
        if _deviation([wanted], [getattr(output, name)(-1)]).excess <= 1:
            return f"{{0}} computes {name}, and {{1}} does not"
        if _deviation([output], [getattr(wanted, name)(-1)]).excess <= 1:
            return f"{{1}} computes {name}, and {{0}} does not"
    return None


def _write(proof: LayerProof, difference: Deviation, compared: list[torch.Tensor]) -> None:
    """Write the numbers of a comparison."""
    proof.max_abs = difference.max_abs
    proof.max_rel = difference.max_rel
    proof.excess = difference.excess
    proof.compared = sum(item.numel() for item in compared)


def _deviation(wanted: list[torch.Tensor], computed: list[torch.Tensor]) -> Deviation:
    """Compare values of two models that compute in double precision."""
    largest = max((float(item.abs().max()) for item in wanted if item.numel()), default=0.0)
    scales = [torch.full_like(item, 1e-10 * largest + TINY) for item in computed]
    return measure(wanted, computed, scales)


def _resized(spec: Any, height: int, width: int) -> Any:
    """Return an input whose images are higher and wider by some pixels; the same one if that is not possible."""
    if isinstance(spec, list):
        return [_resized(item, height, width) for item in spec]
    if len(spec.shape) < 4:
        return spec
    *outer, old_height, old_width = spec.shape
    if min(old_height + height, old_width + width) < 1:
        return spec
    return evolve(spec, shape=(*outer, old_height + height, old_width + width))


def _layer(step: Step, comparison: Comparison, layer: nn.Module) -> LayerProof:
    """Return the verdict on a layer with weights: on what it returns, by what the layer of the same weights returns."""
    partner = next((other for other in comparison.theirs.steps if other.largest == step.largest), None)
    proof = LayerProof(step.place or "root", type(layer).__name__, AGREES)
    proof.parameters = sum(item.numel() for item in layer.parameters(recurse=False))
    if partner is not None:
        proof.reason = f"{partner.place} in the other"
    outputs = comparison.mine.modules[step.place]
    if partner is None or outputs != comparison.theirs.modules.get(partner.place):
        proof.verdict = DIFFERS if comparison.differences else NOT_RECORDED
    return proof


def _from_folder(path: str) -> nn.Module:
    """Load the model of a folder written by `t7bridge module`: its `model.py` is imported."""
    source = os.path.join(path, "model.py")
    spec = importlib.util.spec_from_file_location("t7bridge_model_of_folder", source)
    if spec is None or spec.loader is None or not os.path.exists(source):
        raise ModelError("the folder holds no model.py", file=path)
    add_input(source)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        model: nn.Module = module.load()
        model.register_forward_hook(_without_state)
    except Exception as error:  # the user's code may raise anything
        text = (str(error).splitlines() or [""])[0][:200]
        raise ModelError(f"model.py returns no model: {type(error).__name__}: {text}", file=source) from error
    return model


def _without_state(model: nn.Module, inputs: Any, output: Any) -> Any:
    """Drop the state that a model returns, if it takes one: Lua's keeps it. A hook, for which `None` is no change."""
    return output[0] if isinstance(output, tuple) else None


def _from_factory(name: str, weights: dict[str, Any], path: str) -> nn.Module:
    """Call a factory and load weights into its module."""
    model = in_double(make_module(Factory.parse(name), fetch=False))
    load_weights(model, weights, path)  # in double precision, as those of Lua may be
    return model
