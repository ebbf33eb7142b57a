"""Proofs against values in other files: pairs of inputs and outputs, and recordings of a probe.

May import conversion, formats, graph, nn, values and torchmodules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import formats
from ...errors import ModelError, T7BridgeError
from ...graph.lua import Table, TorchObject, Value
from ...io.source import Readable
from ...lazy import np
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.places import module_at
from ...nn.state_dict import state_dict
from .proof import AGREES, DIFFERS, NOT_CHECKABLE, LayerProof, Proof
from .prove import chosen, complete, judged, lua_value, need_torch, values_in
from .values import Recorded, is_whole, recorded, unit_of

_WRITTEN = b"""
step rho nSharedClone nStep updateGradInputStep accGradParametersStep train output loss
iwidth iheight itime owidth oheight otime batchSize dimG numFwds summedFwdTime numBwds summedBwdTime
"""
_BOOKKEEPING = frozenset(_WRITTEN.split())
"""Numbers and flags that a probe, a forward or a backward writes, and that are no options.

Source: nn 8726825 `SpatialMaxPooling.lua`, `SpatialMaxUnpooling.lua`, `MixtureTable.lua`, `Profile.lua`.
"""


def prove_pairs(
    source: Readable,
    inputs: Sequence[Readable],
    expected: Sequence[Readable],
    at: str | None = None,
    *,
    limits: Limits = DEFAULT_LIMITS,
) -> Proof:
    """Compare the outputs of a model, in evaluation mode, with those in files.

    Args:
        source: the model, a `.t7`.
        inputs: files with one input each: a tensor or a table of tensors.
        expected: files with the output for each.
        at: the path of the model if the file contains several.
        limits: resource limits.

    Raises:
        ModelError: the numbers of inputs and outputs differ, or a file contains no tensors.
    """
    need_torch()
    if len(inputs) != len(expected):
        raise ModelError("each input needs an expected output", expected=f"{len(inputs)}", found=f"{len(expected)}")
    value, name = lua_value(source, limits)
    path, model = _one(value, name, at)
    proof = Proof(name, against="expected outputs")
    for number, (given, wanted) in enumerate(zip(inputs, expected), 1):
        pair = [values_in(one, limits) for one in (given, wanted)]
        proof.layers.append(whole_proof(model, path, pair[0], pair[1], limits, f"pair {number}"))
    return proof


def _one(value: Value, name: str, at: str | None) -> tuple[str, TorchObject]:
    found = chosen(value, name, at)
    if len(found) > 1:
        paths = ", ".join(path for path, _ in found[:50])
        raise ModelError("the file holds several modules", file=name, hint=f"Name one with --at: {paths}.")
    return found[0]


def whole_proof(
    model: TorchObject, path: str, given: Recorded, wanted: Recorded, limits: Limits, label: str
) -> LayerProof:
    """Return the verdict on a model as a whole, run on one input in evaluation mode."""
    from ...torchmodules.judging import measure
    from ...torchmodules.running import LiveLayer, NotRunError, doubles, mapped, outputs, rounding, to_torch

    layer_proof = LayerProof(path, model.class_name, NOT_CHECKABLE, parameters=_parameters(model, path, limits))
    unit = unit_of(wanted) or unit_of(given) or 2.0**-24
    try:
        layer = LiveLayer.build(model, path, unit, limits)
        layer.module.eval()
        value = mapped(to_torch(given), lambda item: item.double())
        got = outputs(layer, value)
        # Rounding grows from layer to layer, by at most a few times the effect of disturbing all of them once.
        scales = rounding(layer, value, got, outputs)
        difference = measure(doubles(to_torch(wanted)), got, scales, doubles(layer.run_single(value)), 10.0)
    except (NotRunError, T7BridgeError) as error:
        layer_proof.reason = f"{label}: {error}"
        return layer_proof
    good = difference.excess <= 1 or difference.close
    layer_proof.verdict = AGREES if good else DIFFERS
    layer_proof.max_abs, layer_proof.max_rel = difference.max_abs, difference.max_rel
    layer_proof.cosine, layer_proof.excess = (
        difference.cosine,
        min(difference.excess, 1.0 if good else difference.excess),
    )
    layer_proof.compared, layer_proof.reason = difference.count, "; ".join(filter(None, (label, difference.reason)))
    return layer_proof


def _parameters(model: TorchObject, path: str, limits: Limits) -> int:
    tensors = state_dict(model, path, limits).tensors
    return sum(tensor.numel for tensor in {id(one): one for one in tensors.values()}.values())


def prove_with(
    source: Readable, recording: Readable, at: str | None = None, *, limits: Limits = DEFAULT_LIMITS
) -> Proof:
    """Check a model against the recording of a probe: see `probe`.

    Args:
        source: the model, a `.t7`.
        recording: `proof.t7`, the table saved by the probe, or any table with `input` and `output`.
        at: the path of the model if the file contains several.
        limits: resource limits.

    Raises:
        ModelError: the file is not a recording, or is one of another model.
    """
    need_torch()
    value, name = lua_value(source, limits)
    other, place = lua_value(recording, limits)
    path, model = _one(value, name, at)
    if not isinstance(other, Table):
        raise ModelError("the file is not a probe's recording", file=place, expected="a table with input and output")
    given, wanted = recorded(other.get("input")), recorded(other.get("output"))
    ran = other.get("model")
    if not is_whole(given) or not is_whole(wanted):
        raise ModelError("the file is not a probe's recording", file=place, expected="a table with input and output")
    if not isinstance(ran, TorchObject):
        proof = Proof(name, against="recorded outputs")
        proof.layers.append(whole_proof(model, path, given, wanted, limits, "the whole model"))
        return proof
    _same_weights(model, ran, path, place, limits)
    after = recorded(other.get("gradOutput"))
    layers, stretches = judged(ran, path, limits, given, after if is_whole(after) else None)
    proof = Proof(name, complete(layers, ran, path, limits), stretches=stretches)
    _options_of(model, ran, path, proof, limits)
    return proof


def _same_weights(model: TorchObject, ran: TorchObject, path: str, place: str, limits: Limits) -> None:
    """Check that the model run in Lua has the weights of the file.

    Raises:
        ModelError: a tensor differs.
    """
    mine, theirs = state_dict(model, path, limits).tensors, state_dict(ran, path, limits).tensors
    for key in [*mine, *(key for key in theirs if key not in mine)]:
        one, other = mine.get(key), theirs.get(key)
        # Running statistics change in training; the probe of a recurrent model trains.
        if key.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked"):
            continue
        if one is None or other is None or one.shape != other.shape:
            raise ModelError("the recording is of another model", file=place, path=key)
        if not np.array_equal(one.numpy(), other.numpy().astype(one.numpy().dtype), equal_nan=True):
            raise ModelError("the recording is of a model with other weights", file=place, path=key)


def _options_of(model: TorchObject, ran: TorchObject, path: str, proof: Proof, limits: Limits) -> None:
    """Note the numbers in which a layer of the file differs from the one run in Lua."""
    for layer in proof.layers:
        if not layer.path.startswith(path):
            continue
        one, other = module_at(model, layer.path, path), module_at(ran, layer.path, path)
        if one is None or other is None:
            continue
        for name in [] if one.fields is None else one.fields.raw_keys:
            mine, theirs = one.get(name), other.get(name)
            both = isinstance(mine, (float, bool)) and type(mine) is type(theirs)
            if both and mine != theirs and name not in _BOOKKEEPING and layer.verdict != DIFFERS:
                shown = [f"{item:g}" if isinstance(item, float) else str(item).lower() for item in (mine, theirs)]
                layer.verdict = DIFFERS
                layer.reason = f"{name.decode('utf-8', 'replace')} is {shown[0]}, and was {shown[1]} in Lua"


def probe(
    source: Readable,
    out: str,
    at: str | None = None,
    *,
    shapes: Sequence[tuple[int, ...]] = (),
    force: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> None:
    """Write a Lua script that records the output of every layer of a model.

    Args:
        source: the model, a `.t7`.
        out: the script.
        at: the path of the model if the file contains several.
        shapes: of the inputs; inferred from the layers if empty.
        force: replace the script if it exists.
        limits: resource limits.

    Raises:
        ModelError: the inputs of the model cannot be inferred.
        TargetExistsError: the script exists.
    """
    from .probe import Draw, fitting_inputs, keys_to, packages_of, probe_source, write_probe

    need_torch()
    document = formats.open(source, limits=limits)
    if document.spec.values != formats.LUA:
        raise ModelError("Lua Torch reads .t7 files", file=document.path)
    path, model = _one(document.first, document.path, at)
    spec: Any = [Draw(shape) for shape in shapes]
    spec = (spec[0] if len(spec) == 1 else spec) if spec else fitting_inputs(model, path, limits)
    text = document.layout is not None and getattr(document.layout, "encoding", "") == "ascii"
    keys = keys_to(document.first, path)
    write_probe(out, probe_source(packages_of(model, path, limits), keys, spec, ascii_file=text), force)
