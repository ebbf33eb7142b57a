"""What a model is proved against: values recorded in its file, pairs of values, the recording of a probe, a second
model.

The code of generated folders and of factories is the user's own, and is imported on the user's request.
May import conversion, formats, graph, nn and torchmodules.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ... import formats
from ...conversion.inputs import Inputs, parse_inputs
from ...conversion.template import torch_weights
from ...data import define
from ...errors import ModelError, T7BridgeError
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from ...io.source import add_input
from ...lazy import np
from ...limits import Limits
from ...nn.output_shapes import Example
from ...nn.places import Places, module_at
from ...nn.state_dict import state_dict
from ...torchmodules.build import live_module
from .criterions import is_criterion, prove_criterion
from .hypotheses import Direction, directions
from .judge import Judge
from .layer import LiveLayer, NotRunError, doubles, drawn, flat, mapped, outputs, rounding, to_torch
from .models import chosen
from .probe import fitting_inputs
from .proof import AGREES, DIFFERS, NOT_CHECKABLE, NOT_RECORDED, LayerProof, Proof, StretchProof
from .recorded import UNIT, Recorded, is_whole, recorded, unit_of
from .residual import measure
from .runs import may_be_undone, own_parameters, runs
from .verdicts import Vote

WHOLE = 10.0
"""Factor of the limit for a whole model: the errors of a hundred layers add up to those of one by the root of their
number."""
MANY = 20_000
"""Maximum number of layers of two models that are compared."""
_WRITTEN = frozenset(
    b"""
step rho nSharedClone nStep updateGradInputStep accGradParametersStep train output loss
iwidth iheight itime owidth oheight otime batchSize dimG numFwds summedFwdTime numBwds summedBwdTime
""".split()
)
"""Numbers and flags that a probe, a forward or a backward writes, and that are no options.

Source: nn 8726825 `SpatialMaxPooling.lua`, `SpatialMaxUnpooling.lua`, `MixtureTable.lua`, `Profile.lua`.
"""


def recorded_values(value: Value, name: str, at: str | None, limits: Limits) -> Proof:
    """Return the verdicts on the models in a value."""
    proof = Proof(name)
    every = chosen(value, name, None)
    models = [module for _, module in every if not is_criterion(module)]
    steps = directions(value)
    for path, module in every if at is None else chosen(value, name, at):
        if is_criterion(module):
            proof.layers.append(prove_criterion(module, path, models, limits))
            continue
        layers, stretches = _judged(module, path, limits, steps=steps)
        proof.layers += layers
        proof.stretches += stretches
    return proof


def _judged(
    module: TorchObject,
    path: str,
    limits: Limits,
    given: Recorded = None,
    grad_output: Recorded = None,
    steps: Sequence[Direction] = (Direction(),),
) -> tuple[list[LayerProof], list[StretchProof]]:
    """Return the verdicts on all layers of one model, and on whole stretches of those that ran.

    Args:
        module: the model.
        path: its path.
        limits: resource limits.
        given: its input, if known.
        grad_output: the gradient with respect to its output, if known.
        steps: the directions of optimizers' last steps.
    """
    tried = []
    for undone in (False, True):
        found, lost = runs(module, path, given, grad_output, limits, undone)
        judge = Judge(found, lost, limits)
        layers = Vote(judge.judge(), list(steps), limits).decide()
        # Whether the last pass was a backward that restored in-place changes shows in how many layers agree.
        wrong = [layer.verdict for layer in layers if layer.verdict not in (AGREES, NOT_RECORDED)]
        tried.append((len(wrong), wrong.count(DIFFERS), layers, judge))
        if not wrong or not any(may_be_undone(run.obj) for run in found):
            break
    _, _, layers, judge = min(tried, key=lambda one: one[:2])
    known = {layer.path for layer in layers}
    for place in Places(module, path, limits):
        if place.layer is not None and not place.layer.children and place.path not in known:
            known.add(place.path)
            count = own_parameters(place.obj)
            layers.append(LayerProof(place.path, place.obj.class_name, NOT_RECORDED, parameters=count))
    return layers, judge.stretches()


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
            proof = Proof(self.name, against="expected outputs")
            for number, (given, wanted) in enumerate(pairs, 1):
                proof.layers.append(self._whole(self._values(given), self._values(wanted), f"pair {number}"))
            return proof
        if not isinstance(reference, nn.Module):
            label, found = str(reference), self._opened(reference, factory)
            if isinstance(found, Table):
                return self._recording(found, label)
            return self._second(found, os.path.basename(label.rstrip(os.sep)), inputs)
        return self._second(reference.double().eval(), type(reference).__name__, inputs)

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

    def _whole(self, given: Recorded, wanted: Recorded, label: str) -> LayerProof:
        """Return the verdict on the model as a whole, run on one input in evaluation mode."""
        tensors = {id(one): one for one in state_dict(self.model, self.path, self.limits).tensors.values()}
        count = sum(tensor.numel for tensor in tensors.values())
        proof = LayerProof(self.path, self.model.class_name, NOT_CHECKABLE, parameters=count)
        try:
            unit = unit_of(wanted) or unit_of(given) or UNIT["float32"]
            layer = LiveLayer.build(self.model, self.path, unit, self.limits)
            layer.module.eval()
            value = mapped(to_torch(given), torch.Tensor.double)
            got = outputs(layer, value)
            scales, single = rounding(layer, value, got, outputs), doubles(layer.run_single(value))
            off = measure(doubles(to_torch(wanted)), got, scales, single, WHOLE)
        except (NotRunError, T7BridgeError) as error:
            proof.reason = f"{label}: {error}"
            return proof
        good = off.excess <= 1 or off.close
        proof.verdict, proof.reason = AGREES if good else DIFFERS, "; ".join(filter(None, (label, off.reason)))
        proof.compare(off)
        proof.excess = min(off.excess, 1.0) if good else off.excess
        return proof

    # The recording of a probe

    def _recording(self, table: Table, place: str) -> Proof:
        given, wanted, ran = recorded(table.get("input")), recorded(table.get("output")), table.get("model")
        if not is_whole(given) or not is_whole(wanted):
            expected = "a table with input and output"
            raise ModelError("the file is not a probe's recording", file=place, expected=expected)
        if not isinstance(ran, TorchObject):
            return Proof(self.name, [self._whole(given, wanted, "the whole model")], "recorded outputs")
        self._check_weights(ran, place)
        after = recorded(table.get("gradOutput"))
        proof = Proof(self.name)
        proof.layers, proof.stretches = _judged(ran, self.path, self.limits, given, after if is_whole(after) else None)
        for layer in proof.layers:
            one, other = (module_at(root, layer.path, self.path) for root in (self.model, ran))
            for name in [] if one is None or other is None or one.fields is None else one.fields.raw_keys:
                mine, theirs = (module.get(name) for module in (one, other) if module is not None)
                both = isinstance(mine, (float, bool)) and type(mine) is type(theirs)
                if both and mine != theirs and name not in _WRITTEN and layer.verdict != DIFFERS:
                    shown = [f"{item:g}" if isinstance(item, float) else str(item).lower() for item in (mine, theirs)]
                    layer.verdict = DIFFERS
                    layer.reason = f"{name.decode('utf-8', 'replace')} is {shown[0]}, and was {shown[1]} in Lua"
        return proof

    def _check_weights(self, ran: TorchObject, place: str) -> None:
        """Check that the model run in Lua has the weights of the file.

        Raises:
            ModelError: a tensor differs.
        """
        mine, theirs = (state_dict(one, self.path, self.limits).tensors for one in (self.model, ran))
        for key in {**mine, **theirs}:
            # Running statistics change in training; the probe of a recurrent model trains.
            if key.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked"):
                continue
            one, other = mine.get(key), theirs.get(key)
            if one is None or other is None or one.shape != other.shape:
                raise ModelError("the recording is of another model", file=place, path=key)
            if not np.array_equal(one.numpy(), other.numpy().astype(one.numpy().dtype), equal_nan=True):
                raise ModelError("the recording is of a model with other weights", file=place, path=key)

    # A second model

    def _opened(self, reference: Any, factory: str | None) -> nn.Module | Table:
        """Return the live model that a file or a folder holds, or the table of a recording."""
        if isinstance(reference, (str, os.PathLike)) and os.path.isdir(reference):
            return _from_folder(os.fspath(reference))
        if factory is not None:
            return _from_factory(factory, torch_weights(reference, self.limits), str(reference))
        document = formats.open(reference, limits=self.limits)
        if document.spec.values == formats.LUA:
            value = document.first
            if isinstance(value, Table) and ("input" in value or "output" in value):
                return value
            path, model = chosen(value, document.path, None)[0]
            return live_module(model, path, limits=self.limits).double().eval()
        if zipfile.is_zipfile(reference):
            with zipfile.ZipFile(reference) as archive:
                if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                    return _as_module(torch.jit.load(reference), document.path)  # type: ignore[no-untyped-call]
        hint = "Name its constructor: --module package:factory."
        raise ModelError("a state dict is not a model without its code", file=document.path, hint=hint)

    def _second(self, other: nn.Module, name: str, inputs: Inputs) -> Proof:
        """Run two models on the same input and compare the outputs of the layers with weights, and of the whole.

        Layers correspond if both models have the same sequence of weight shapes; if they do not, only the whole is
        compared.
        """
        asked = parse_inputs(inputs, limits=self.limits) if inputs else None
        value = drawn(asked or fitting_inputs(self.model, self.path, self.limits), 1)
        mine = live_module(self.model, self.path, limits=self.limits).double().eval()
        rows, others = _outputs(mine, value), _outputs(other, value)
        if [row.kind for row in rows] != [row.kind for row in others]:
            rows, others = rows[-1:], others[-1:]
        proof = Proof(self.name, against=f"layers of {name}", reference=name)
        for row, partner in list(zip(rows, others))[:MANY]:
            want, got = doubles(partner.output), doubles(row.output)
            largest = max((float(item.abs().max()) for item in want if item.numel()), default=0.0)
            # Both run in double precision: of 10^6 terms only the order may differ, 10^6 units.
            off = measure(want, got, [torch.full_like(item, 1e-10 * largest + 1e-300) for item in got])
            verdict = AGREES if off.agrees else DIFFERS
            count = sum(item.numel() for item in row.layer.parameters(recurse=False))
            layer = LayerProof(row.name or "root", type(row.layer).__name__, verdict, parameters=count)
            where = f"{partner.name} in the other" if row.name else "the whole"
            layer.reason = "; ".join(filter(None, (where, off.reason)))
            layer.compare(off)
            proof.layers.append(layer)
        return proof


@define(eq=False)
class _Row:
    """The output of one layer; of the whole, with an empty name, at the end."""

    name: str
    kind: Any
    layer: nn.Module
    output: Any


def _outputs(module: nn.Module, value: Any) -> list[_Row]:
    found: list[_Row] = []
    names = {id(layer): name for name, layer in module.named_modules()}

    def keep(layer: nn.Module, _: Any, output: Any) -> None:
        kind = sorted(tuple(item.shape) for item in layer.parameters(recurse=False))
        found.append(_Row(names[id(layer)], kind, layer, mapped(output, torch.clone)))

    layers = [] if isinstance(module, torch.jit.ScriptModule) else list(module.modules())
    weighted = [layer for layer in layers if next(layer.parameters(recurse=False), None) is not None]
    handles = [layer.register_forward_hook(keep) for layer in weighted]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = module(mapped(value, torch.clone))
    except Exception as error:  # the user's code may raise anything
        raise ModelError(f"a model does not accept the input: {type(error).__name__}: {str(error)[:300]}") from error
    finally:
        for handle in handles:
            handle.remove()
    return [*found, _Row("", [], module, list(flat(result)))]


def _from_folder(path: str) -> nn.Module:
    """Load the model of a folder written by `t7bridge module`: its `model.py` is imported."""
    source = os.path.join(path, "model.py")
    spec = importlib.util.spec_from_file_location("t7bridge_model_of_folder", source)
    if spec is None or spec.loader is None or not os.path.exists(source):
        raise ModelError("the folder holds no model.py", file=path)
    add_input(source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _as_module(module.load(), source)


def _from_factory(factory: str, weights: dict[str, Any], path: str) -> nn.Module:
    """Call `package:name` and load weights into its result."""
    package, _, name = factory.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(package), name)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(f"{factory} cannot be imported: {error}", expected="package:factory") from error
    finally:
        sys.path.remove(os.getcwd())
    try:
        made.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise ModelError(f"the weights do not match: {str(error)[:300]}", file=path) from error
    return _as_module(made, factory)


def _as_module(made: Any, where: str) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise ModelError("the factory's result is not a torch.nn.Module", file=where, found=type(made).__name__)
    return made.double().eval()
