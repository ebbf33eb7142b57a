"""What is known of each run of a model's layers: a verdict, which several runs may share, and numbers. A run is one
call of a module in Lua's last pass. Runs between two recorded values are compared as one, whose members they are.

A layer whose runs have other verdicts has the most important of them. May import graph and nn.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from ...data import define
from ...errors import LimitError, T7BridgeError, UnsupportedError
from .layer import NotRunError, RefusedError
from .nodes import element_counts
from .proof import AGREES, DIFFERS, NOT_RECORDED, VERDICTS, LayerProof
from .recorded import own_parameters, own_weights
from .rounding import Deviation
from .run import Run

OTHER_MODES = {
    True: "Lua ran it in evaluation; the model was saved in training",
    False: "Lua ran it in training; the model was saved in evaluation",
}
"""By whether the file says that it trains."""


@define(eq=False)
class Outcome:
    """What is known of one run of a layer: the verdict on it, and the numbers of the comparison.

    Attributes:
        run: the run.
        number: of the run: its place among all, from 0.
        verdict: one of `VERDICTS`; "not recorded" until it is decided.
        reason: why; empty where the verdict needs no words, or `input_note` says it.
        input_note: why the input is not known, or from which fields it follows; empty if it is recorded.
        difference: the numbers of the comparison; `None` if nothing was compared.
        compared: number of compared values; 0 if nothing was compared.
        runs: number of runs that it is about: 1, until the runs of one layer are counted together.
        depends_on_weights: whether the compared result depends on weights, those of any layer compared along. Where
            weights have no effect, as on an input of zeros, it is False.
        has_recorded_size: whether what is computed has as many elements as what is recorded: no update of weights
            changes that.
        gradient_agrees: whether the gradient with respect to its input agrees; `None` if that is not known.
        updated: whether an update of the weights explains that it differs.
    """

    run: Run
    number: int
    verdict: str = NOT_RECORDED
    reason: str = ""
    input_note: str = ""
    difference: Deviation | None = None
    compared: int = 0
    runs: int = 1
    depends_on_weights: bool = False
    has_recorded_size: bool = True
    gradient_agrees: bool | None = None
    updated: bool = False

    def decide(self, verdict: str, reason: str) -> None:
        """Set the verdict, and the reason for it."""
        self.verdict = verdict
        self.reason = reason

    def refuse(self, reason: str) -> None:
        """Set the verdict that the layer contradicts its recorded values, whatever its weights are."""
        self.decide(DIFFERS, reason)
        self.has_recorded_size = False
        self.difference = None

    def set_difference(self, difference: Deviation, recorded: list[torch.Tensor]) -> None:
        """Set the numbers of a comparison with recorded tensors."""
        self.difference = difference
        self.compared = sum(element_counts(recorded))

    def decide_as_part_of(self, outcome: Outcome) -> None:
        """Set the verdict and the numbers of another run, in whose comparison this one was compared, too."""
        self.decide(outcome.verdict, f"compared as one with {outcome.run.path}")
        self.difference = outcome.difference
        self.compared = outcome.compared
        self.depends_on_weights = outcome.depends_on_weights
        self.has_recorded_size = outcome.has_recorded_size

    def worst_first(self) -> tuple[int, bool, float]:
        """Return the key that sorts runs, the most important first: by verdict, then other sizes, then difference."""
        excess = 0.0 if self.difference is None else self.difference.excess
        return VERDICTS.index(self.verdict), self.has_recorded_size, -excess

    def proof(self) -> LayerProof:
        """Return the verdict as it is reported; a layer that is not recorded has no numbers."""
        reason = self.reason or self.input_note
        proof = LayerProof(self.run.path, self.run.obj.class_name, self.verdict, reason=reason)
        proof.parameters = own_parameters(self.run.obj)
        proof.has_weights = self.depends_on_weights
        proof.updated = self.updated
        proof.runs = self.runs
        if self.difference is not None and self.verdict != NOT_RECORDED:
            proof.set_numbers(self.difference, self.compared)
        return proof


def count_of(layers: list[Outcome], verdict: str) -> int:
    """Return the number of layers with a verdict."""
    return sum(layer.verdict == verdict for layer in layers)


def note_mode(layers: list[Outcome], before: list[Outcome]) -> None:
    """Note that Lua ran in the other mode those layers that agree only in that mode."""
    differing = {layer.run.path for layer in before if layer.verdict == DIFFERS}
    for layer in layers:
        mode = layer.run.obj.get("train")
        if layer.verdict == AGREES and layer.run.path in differing and isinstance(mode, bool):
            layer.reason = OTHER_MODES[mode]


def note_update(layers: list[Outcome]) -> None:
    """Note which layers differ because the weights were updated after the last forward pass, as training does.

    All layers with weights differ then, and a backward has run. An update changes no shape, nor layers without weights.

    Args:
        layers: the verdict on each layer; `updated` is set.
    """
    if all(layer.run.grad_input is None for layer in layers):
        return  # no backward has run
    weighted = [layer for layer in layers if layer.depends_on_weights]
    differing = [layer for layer in weighted if layer.verdict == DIFFERS]
    agreeing = [layer for layer in weighted if layer.verdict == AGREES]
    flat_storages = _flat_storages(layers)
    have_flat_parameters = all(_storages(layer) & flat_storages for layer in differing)
    if have_flat_parameters:
        # An optimizer updates these alone. Weights that are not among them were put into their layer later: that such a
        # layer agrees does not show that there was no update.
        agreeing = [layer for layer in agreeing if not _has_only_other_weights(layer, flat_storages)]
    if agreeing:
        return  # there was no update, which would have changed these layers, too
    for layer in differing:
        layer.updated = layer.has_recorded_size


def _has_only_other_weights(layer: Outcome, flat_storages: set[int]) -> bool:
    """Return whether a layer has weights of its own, none of them in the flat parameters; False for a container."""
    storages = _storages(layer)
    return bool(storages) and not storages & flat_storages


def _storages(layer: Outcome) -> set[int]:
    """Return the storages, by their ids, that hold a layer's own weights."""
    return {id(tensor.storage) for tensor in own_weights(layer.run.obj).values()}


def _flat_storages(layers: list[Outcome]) -> set[int]:
    """Return the storages, by their ids, that hold weights of several layers, as `getParameters` makes them."""
    # A set, as layers that share their weights begin at the same element of a storage, and count once.
    first_elements_by_storage: dict[int, set[int]] = defaultdict(set)
    for layer in layers:
        for storage, first_element in _first_elements(layer).items():
            first_elements_by_storage[storage].add(first_element)
    # A storage with weights of one layer alone may be that layer's own.
    return {storage for storage, first_elements in first_elements_by_storage.items() if len(first_elements) > 1}


def _first_elements(layer: Outcome) -> dict[int, int]:
    """Return the first element of a layer's weights in each of their storages, by the storage's id."""
    first_elements: dict[int, int] = {}
    for tensor in own_weights(layer.run.obj).values():
        storage = id(tensor.storage)
        first_elements[storage] = min(tensor.offset, first_elements.get(storage, tensor.offset))
    return first_elements


def by_path(outcomes: list[Outcome]) -> list[Outcome]:
    """Return one verdict for each layer, the most important of its runs; equal ones are counted together.

    Args:
        outcomes: of all runs; the counts in some of them are changed, so they are of no use afterwards.
    """
    layers: dict[str, Outcome] = {}
    for outcome in outcomes:
        path = outcome.run.path
        if path not in layers:
            layers[path] = outcome
            continue
        # The worse one stands for the layer; of two with one verdict it counts for both.
        worse, better = sorted((outcome, layers[path]), key=Outcome.worst_first)
        if worse.verdict == better.verdict:
            worse.runs += better.runs
            worse.compared += better.compared
        layers[path] = worse
    return list(layers.values())


def decide_by_error(outcome: Outcome, error: NotRunError | T7BridgeError | RecursionError) -> None:
    """Decide on a run by the error that its layer raised.

    Args:
        outcome: receives the verdict.
        error: raised when the layer was built, or run.
    """
    if isinstance(error, RefusedError):  # a `NotRunError`, too
        outcome.refuse(str(error))
    elif isinstance(error, NotRunError):
        outcome.decide(NOT_RECORDED, str(error))
    elif isinstance(error, (UnsupportedError, LimitError)):
        # Not the file's fault: it has no PyTorch module, or is too big.
        outcome.decide(NOT_RECORDED, error.message)
    elif isinstance(error, T7BridgeError):
        outcome.refuse(error.message)  # its fields are inconsistent
    else:
        outcome.decide(NOT_RECORDED, "its modules are nested too deep for PyTorch")


def reason_with_others(outcome: Outcome, members: list[Outcome]) -> str:
    """Return what is known of the input of a run, and the layers that are compared as one with it.

    Args:
        outcome: that of the run.
        members: those of the runs that are compared as one, itself among them.
    """
    others = [member.run.path for member in members if member is not outcome]
    together = f"compared as one with {', '.join(dict.fromkeys(others))}" if others else ""
    return "; ".join(filter(None, (outcome.input_note, together)))
