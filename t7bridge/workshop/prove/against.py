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
from contextlib import suppress
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


def _not_run(module: TorchObject, path: str, known: set[str], limits: Limits) -> list[LayerProof]:
    """Return the layers of a model that are in no run.

    Args:
        module: the model.
        path: its path.
        known: the paths of the others.
        limits: resource limits.
    """
    layers = []
    for place in Places(module, path, limits):
        if place.layer is not None and not place.layer.children and place.path not in known:
            known.add(place.path)
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
            if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
                raise ModelError("a reference is not a pair of an input and an output")
            found = [(self._values(one), self._values(wanted)) for one, wanted in pairs]
            layers = [self._whole(*pair, f"pair {number}") for number, pair in enumerate(found, 1)]
            return Proof(self.name, layers, "expected outputs")
        opened, label = self._opened(reference, factory)
        if isinstance(opened, Table):
            return self._recording(opened, label)
        return self._second(in_double(opened).eval(), label, inputs)

    def _values(self, value: Any) -> Recorded:
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
        tensors = {id(one): one for one in state_dict(self.model, self.path, self.limits).tensors.values()}
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
        inputs, wanted = recorded(table.get("input")), recorded(table.get("output"))
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
        path, name = str(reference), os.path.basename(str(reference).rstrip(os.sep))
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
        if zipfile.is_zipfile(reference):
            with zipfile.ZipFile(reference) as archive:
                if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                    return torch.jit.load(reference), name  # type: ignore[no-untyped-call]
        hint = "Name its constructor: --module package:factory."
        raise ModelError("a state dict is not a model without its code", file=document.path, hint=hint)

    def _second(self, other: nn.Module, name: str, inputs: Inputs) -> Proof:
        """Run two models on the same inputs, and compare the outputs of the layers with weights, and of the whole."""
        state = state_dict(self.model, self.path, self.limits, own_keys=True)
        what = recurrence(recognized(build_plan(self.model, self.path, 0, self.limits, state), state).plan.root)
        problem = None
        if what is not None and what.states != () and not inputs:
            try:
                return self._over_steps(other, name, what)
            except ModelError as error:  # it may take one step, as the Lua model does
                problem = error
        mine = in_double(live_module(self.model, self.path, limits=self.limits))
        found, sizes, differences = self._in_two_sizes(mine, other, name, inputs)
        if found.theirs.error and problem is not None:
            raise problem
        proof = Proof(self.name, against=f"layers of {name}", reference=name, differences=differences)
        proof.misplaced = found.misplaced
        for step in found.mine.steps:
            if step.largest and all(layer.path != step.place for layer in proof.layers[-1:]):
                proof.layers.append(_layer(step, found, mine.get_submodule(step.place)))
        whole = LayerProof("root", type(mine).__name__, AGREES, reason="the whole", runs=0)
        mode = "evaluation and training mode" if normalizes(mine) else "evaluation mode"
        proof.modes = f"{' and '.join(map(inputs_text, sizes))} in {mode}"
        if normalizes(mine):
            later = compare(mine, other, name, drawn(mine, sizes[0]), training=True).differences
            later = [f"in training, {text}" for text in later if text not in differences]
            proof.differences += later
        whole.verdict = DIFFERS if proof.differences else AGREES
        want, got = found.theirs.result, found.mine.result
        off = _off(doubles(want), got)
        _write(whole, off, got)
        whole.reason = "; ".join(filter(None, (whole.reason, off.reason)))
        proof.layers.append(whole)
        return proof

    def _in_two_sizes(
        self, mine: nn.Module, other: nn.Module, name: str, inputs: Inputs
    ) -> tuple[Comparison, list[Any], list[str]]:
        """Compare two models in evaluation mode on an input that both accept, and on one of another size.

        Returns:
            The comparison, the first that has a difference; the inputs; the differences on all of them.
        """
        if inputs:
            specs: list[Any] = [parse_inputs(inputs, limits=self.limits)]
        else:
            # The smallest, and those of models of ImageNet.
            specs = [fitting_inputs(self.model, self.path, self.limits)]
            for side in (224, 299):
                guess = guess_inputs(self.model, side)
                if guess is not None and guess not in specs:
                    specs.append(guess)
        found = None
        for spec in specs:
            found = compare(mine, other, name, drawn(mine, spec), training=False)
            if not found.theirs.error:
                break
        assert found is not None
        differences, sizes = found.differences, [spec]
        if inputs or found.misplaced:
            return found, sizes, differences
        # In one size, ceil mode, padding and adaptive pooling may make no difference.
        # Images somewhat smaller, and larger, and no squares.
        for height, width in ((-13, -22), (13, 10)):
            other_size = _resized(spec, height, width)
            if other_size == spec:
                continue
            with suppress(ModelError):
                more = compare(mine, other, name, drawn(mine, other_size), training=False)
                # With an nn.View after a pooling of fixed size, a larger image is several.
                batches = [[item.shape[:1] for item in each.mine.result] for each in (found, more)]
                if not more.theirs.error and batches[0] == batches[1]:
                    sizes.append(other_size)
                    later = [text for text in more.differences if text not in differences]
                    differences = differences + [f"in {inputs_text(other_size)}, {text}" for text in later]
                    found = more if later else found
                    break
        return found, sizes, differences

    def _over_steps(self, other: nn.Module, name: str, what: Recurrence) -> Proof:
        """Run two recurrent models on the same sequences, and compare what they return for each step."""
        mine = in_double(live_module(self.model, self.path, 0, self.limits, lift=True))
        features = () if what.takes_tokens else (what.inputs,)
        spec = Example("", (_STEPS, _BATCH, *features), bounds=(0, what.inputs - 1) if what.takes_tokens else None)
        inputs, shown = drawn(mine, spec), inputs_text(spec)
        forms = {shown: inputs}
        if what.takes_tokens:
            inputs = inputs.long()
            forms = {f"{shown} one-hot tokens": nn.functional.one_hot(inputs, what.inputs).double()}
            if any(isinstance(layer, nn.Embedding) for layer in other.modules()):
                forms = {f"{shown} tokens": inputs, f"{shown} tokens counted from 1": inputs + 1}
        wanted = _outputs(mine, inputs, _has_batch_first(mine), what.states)
        text, found, ends = _same_outputs(other, forms, wanted)
        is_masked = ends == "" and not what.takes_tokens and any(isinstance(each, MaskZero) for each in mine.modules())
        if is_masked:
            inputs = torch.cat([inputs, torch.zeros_like(inputs[:1])])
            is_masked = _same_outputs(other, {text: inputs}, _outputs(mine, inputs, _has_batch_first(mine)))[2] != ""
        whole = LayerProof("root", type(mine).__name__, AGREES, runs=len(found))
        whole.parameters = sum(item.numel() for item in mine.parameters())
        _write(whole, _off([wanted[-len(found) :]], [found]), [found])
        proof = Proof(self.name, [whole], f"steps of {name}", reference=name, misplaced=ends is None)
        proof.modes = f"{text} from states of zero in evaluation mode"
        if ends is None:
            proof.differences = [f"the outputs differ by up to {whole.max_abs:.2g}"]
        elif ends:
            proof.differences = [f"at the end, {ends.format('the .t7', name)}"]
        elif is_masked:
            proof.differences = [f"for steps that are zeros, the .t7 returns zeros, and {name} does not"]
        whole.verdict = DIFFERS if proof.differences else AGREES
        return proof


_STEPS, _BATCH = 7, 3
"""Of the sequences for recurrent models."""


def _has_batch_first(model: nn.Module) -> bool:
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
    batch = inputs.shape[1]
    try:
        with torch.no_grad():
            if states is None:
                output = next(flat(model(inputs.transpose(0, 1) if is_turned else inputs)))
                rows = output.reshape(*((batch, -1) if is_turned else (-1, batch)), output.shape[-1])
                return rows.transpose(0, 1) if is_turned else rows
            taken, returned = ({row[side] for row in states} for side in (0, 1))
            places = [({*range(len(states) + 1)} - each).pop() for each in (taken, returned)]
            value: Any = {at: torch.zeros(batch, size, dtype=torch.float64) for at, _, size in states}
            steps = []
            for step in inputs:
                value[places[0]] = step
                result = model([value[at] for at in range(len(value))])
                value.update({at: result[to] for at, to, _ in states})
                steps.append(result[places[1]])
            return torch.stack(steps)
    except Exception as error:  # the user's code may raise anything
        text = (str(error).splitlines() or [""])[0][:200]
        raise ModelError(f"a model does not accept sequences: {type(error).__name__}: {text}") from error


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
    first = _has_batch_first(model)
    found: list[tuple[str, torch.Tensor]] = []
    problem = ModelError("the models do not return as many values for each step")
    for (text, inputs), is_turned in product(forms.items(), (first, not first)):
        try:
            output = _outputs(model, inputs, is_turned)
        except ModelError as error:
            problem = error if not found else problem
            continue
        if output.shape[1:] == wanted.shape[1:] and len(output) in (1, len(wanted)):
            found.append((text, output))
    if not found:
        raise problem
    for (text, output), name, who in product(found, ("", "log_softmax", "softmax"), (0, 1)):
        both = wanted[-len(output) :], output
        other = getattr(both[1 - who], name)(-1) if name else both[1 - who]
        if _off([both[who]], [other]).excess <= 1:
            return text, output, f"{{{who}}} computes {name}, and {{{1 - who}}} does not" if name else ""
    return *found[0], None


def _write(proof: LayerProof, difference: Deviation, compared: list[torch.Tensor]) -> None:
    """Write the numbers of a comparison."""
    proof.max_abs = difference.max_abs
    proof.max_rel = difference.max_rel
    proof.excess = difference.excess
    proof.compared = sum(item.numel() for item in compared)


def _off(wanted: list[torch.Tensor], found: list[torch.Tensor]) -> Deviation:
    """Compare values of two models that compute in double precision."""
    largest = max((float(item.abs().max()) for item in wanted if item.numel()), default=0.0)
    return measure(wanted, found, [torch.full_like(item, 1e-10 * largest + TINY) for item in found])


def _resized(spec: Any, height: int, width: int) -> Any:
    if isinstance(spec, list):
        return [_resized(each, height, width) for each in spec]
    if len(spec.shape) < 4 or min(spec.shape[-2] + height, spec.shape[-1] + width) < 1:
        return spec
    return evolve(spec, shape=(*spec.shape[:-2], spec.shape[-2] + height, spec.shape[-1] + width))


def _layer(step: Step, found: Comparison, layer: nn.Module) -> LayerProof:
    """Return the verdict on a layer with weights: on what it returns, by what the layer of the same weights returns."""
    partner = next((other for other in found.theirs.steps if other.largest == step.largest), None)
    proof = LayerProof(step.place or "root", type(layer).__name__, AGREES)
    proof.parameters = sum(item.numel() for item in layer.parameters(recurse=False))
    if partner is not None:
        proof.reason = f"{partner.place} in the other"
    if partner is None or found.mine.modules[step.place] != found.theirs.modules.get(partner.place):
        proof.verdict = DIFFERS if found.differences else NOT_RECORDED
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
        made: nn.Module = module.load()
        # A model that takes its state returns it, too; Lua's keeps it.
        made.register_forward_hook(lambda *call: call[-1][0] if isinstance(call[-1], tuple) else None)
    except Exception as error:  # the user's code may raise anything
        text = (str(error).splitlines() or [""])[0][:200]
        raise ModelError(f"model.py returns no model: {type(error).__name__}: {text}", file=source) from error
    return made


def _from_factory(name: str, weights: dict[str, Any], path: str) -> nn.Module:
    """Call a factory and load weights into its module."""
    made = in_double(make_module(Factory.parse(name), fetch=False))
    load_weights(made, weights, path)  # in double precision, as those of Lua may be
    return made
