"""Two models on the same input: each layer with weights against that of the other model with the same weights.
A layer of the second gets the input of its partner in the first, so that each difference is found where it arises.

May import graph and nn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import field
from torch import nn

from ...data import define
from ...errors import ModelError
from ...text import listed
from .calls import INPUT, Call, ModelRun, Operation, Origin, run_model, same_inputs
from .digests import match

_MOST_NAMED = 4
"""Operations that a text names."""
_AT_THE_END = "at the end"
"""The place between the last layers with weights and the output of the model."""


@define(eq=False)
class Comparison:
    """The differences of two models that ran on one input in one mode, each described where it arises. `mine` and `my_`
    are of the first model, that of Lua; `theirs` and `their_` of the second.

    Attributes:
        mine: the run of the first model.
        theirs: that of the second model, with the inputs of the first.
        label: the name of the second model.
        places_by_text: what differs, in words → the places where it does, none for the models as a whole; empty if all
            agrees. See `differences`.
        misplaced: whether layers get what others get in the first: their weights may be those of other layers, and
            comparing on another input would show nothing new.
        differing: the calls of the first model to which those of the second differ, in input or output, by id.

    `find_differences` sets the last three.
    """

    mine: ModelRun
    theirs: ModelRun
    label: str
    places_by_text: dict[str, list[str]] = field(factory=dict)
    misplaced: bool = False
    differing: set[int] = field(factory=set)

    @property
    def differences(self) -> list[str]:
        """What differs, in words, with the places where it does."""
        texts = []
        for text, places in self.places_by_text.items():
            if not places:
                texts.append(text)
            elif places == [_AT_THE_END]:
                texts.append(f"{_AT_THE_END}, {text}")
            else:
                texts.append(f"{text}: {listed(places)}")
        return texts

    def find_differences(self) -> None:
        """Compare what the layers and the models took and returned; see the class for what is set."""
        # Calls of the second model, by number, that returned other values. A value that comes from one of them differs
        # for that reason: nothing is said of it.
        wrong_calls: set[int] = set()
        for number, call in enumerate(self.theirs.calls):
            if call.partner is None:  # nothing to compare with; if it matters, what is made of its result differs
                continue
            if not call.origin.sources & wrong_calls:
                self._compare_inputs(call, call.partner)
            if not match(call.outputs, call.partner.outputs):
                wrong_calls.add(number)
                if call.ran_on_same_input:  # outputs for another input say nothing of the layer
                    self.differing.add(id(call.partner))
                    self._compare_layers(call.partner, call, _place_of(call, call.partner))
        if self.theirs.error:
            self._note(f"then {self.label} stops: {self.theirs.error}")
        elif not match(self.mine.digests, self.theirs.digests) and not self.theirs.origin.sources & wrong_calls:
            self._compare_origins(self.mine.origin, self.theirs.origin, _AT_THE_END)

    def _compare_inputs(self, call: Call, partner: Call) -> None:
        """Compare what both models give to a layer, before a wrong input of the second was replaced by the first's.

        Args:
            call: of the layer in the second model.
            partner: that in the first.
        """
        if same_inputs(partner, call):
            return
        self.differing.add(id(partner))
        if self._gets_input_of_another(call, partner):
            self.misplaced = True
        self._compare_origins(partner.origin, call.origin, f"before {_place_of(call, partner)}")

    def _gets_input_of_another(self, call: Call, partner: Call) -> bool:
        """Return whether a layer gets what another one, with weights of the same sizes, gets in the first model.

        Args:
            call: of the layer in the second model.
            partner: that in the first.
        """
        sizes = [weight.numel for weight in call.weights]
        for other in self.mine.calls:
            is_of_same_size = [weight.numel for weight in other.weights] == sizes
            if other is not partner and is_of_same_size and match(other.inputs, call.inputs):
                return True
        return False

    def _note(self, text: str, place: str = "") -> None:
        """Note a difference, and where it is; without a place it is one of the models as a whole."""
        places = self.places_by_text.setdefault(text, [])
        if place:
            places.append(place)

    def _note_options(self, name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any], place: str) -> bool:
        """Note the options of an operation or a layer that differ, and return whether there are any.

        Args:
            name: of the operation, or of the layer's class.
            mine: the options in the first model, by name; those that only one of the two has do not count.
            theirs: those in the second.
            place: where they are, in words.
        """
        differing = [option for option in mine if option in theirs and mine[option] != theirs[option]]
        for option in differing:
            values = f"{mine[option]} in the .t7 and {theirs[option]} in {self.label}"
            self._note(f"{option} of {name} is {values}", place)
        return bool(differing)

    def _compare_layers(self, mine: Call, theirs: Call, place: str) -> None:
        """Describe why two layers with the same weights return different values for the same input.

        Args:
            mine: the call of the layer in the first model.
            theirs: that in the second.
            place: where they are, in words.
        """
        has_options = self._note_options(
            type(theirs.layer).__name__, _options_of(mine.layer), _options_of(theirs.layer), place
        )
        if mine.bias is None and theirs.bias is not None:
            self._note(f"only {self.label} has a bias", place)
        elif mine.bias is not None and theirs.bias is None:
            self._note("only the .t7 has a bias", place)
        elif mine.bias != theirs.bias:
            self.misplaced = True
            self._note("the bias differs", place)
        elif not has_options:
            self._note(f"{self.label} computes another {type(mine.layer).__name__}", place)

    def _compare_origins(self, mine: Origin, theirs: Origin, where: str) -> None:
        """Describe what lies between two values that differ and the layers that they come from.

        Args:
            mine: the origin in the first model.
            theirs: that in the second.
            where: the values, in words.
        """
        if not self.theirs.calls:
            # No hook was called: the layers are those of TorchScript, or plain functions. What they take is not known,
            # and may be what others get in the first model.
            self.misplaced = True
            self._note(f"{self.label} returns another value than the .t7", where)
            return
        if mine.sources != self._partners_of_sources(theirs):
            self.misplaced = True
            sources = f"{self._places(self.mine, mine)} in the .t7 and {self._places(self.theirs, theirs)}"
            self._note(f"values come from {sources} in {self.label}", where)
        else:
            self._compare_operations(mine, theirs, where)

    def _partners_of_sources(self, theirs: Origin) -> set[int | None]:
        """Return the sources of a value of the second model, by the numbers of their partners in the first.

        `None` is among them for a layer without a partner.
        """
        numbers = {id(call): number for number, call in enumerate(self.mine.calls)}
        partners: set[int | None] = set()
        for source in theirs.sources:
            if source == INPUT:
                partners.add(INPUT)
            else:
                partners.add(numbers.get(id(self.theirs.calls[source].partner)))
        return partners

    def _compare_operations(self, mine: Origin, theirs: Origin, where: str) -> None:
        """Describe how the operations differ by which two values are made from the same layers' results.

        Args:
            mine: the origin in the first model.
            theirs: that in the second.
            where: the values, in words.
        """
        my_operations, their_operations = _without_common(mine.operations, theirs.operations)
        if self._note_options_of_chains(my_operations, their_operations, where):
            return
        my_names = [operation.name for operation in my_operations]
        their_names = [operation.name for operation in their_operations]
        if not my_names and not their_names:
            # The same operations on the same values, in another order, such as those of a concatenation.
            self.misplaced = True
            self._note(f"{self.label} takes another value than the .t7", where)
        elif not their_names:
            self._note(f"the .t7 computes {_chain(my_names)}, and {self.label} does not", where)
        elif not my_names:
            self._note(f"{self.label} computes {_chain(their_names)}, and the .t7 does not", where)
        else:
            text = f"the .t7 computes {_chain(my_names)} where {self.label} computes {_chain(their_names)}"
            self._note(text, where)

    def _note_options_of_chains(self, mine: list[Operation], theirs: list[Operation], where: str) -> bool:
        """Note the options that differ between operations of one name, and return whether there are any.

        The first operation of a name is compared with the first of that name, and so on; one too many has no partner.

        Args:
            mine: the operations of the first model, in order.
            theirs: those of the second.
            where: their place, in words.
        """
        differ = False
        for name in dict.fromkeys(operation.name for operation in mine):
            my_operations = [operation for operation in mine if operation.name == name]
            their_operations = [operation for operation in theirs if operation.name == name]
            for my_operation, their_operation in zip(my_operations, their_operations):
                my_options = dict(my_operation.options)
                their_options = dict(their_operation.options)
                differ |= self._note_options(name, my_options, their_options, where)
        return differ

    def _places(self, run: ModelRun, origin: Origin) -> str:
        """Name the layers that a value comes from; those of the second model with their places in the first, too.

        It is "nothing" for a value that depends on no layer with weights and not on the input.

        Args:
            run: that of either model; the sources are numbers of its calls.
            origin: of the value.
        """
        names = []
        for source in sorted(origin.sources):
            if source == INPUT:
                names.append("the input")
                continue
            call = run.calls[source]
            name = call.place or "the model"
            names.append(f"{name} ({call.partner.place})" if call.partner is not None else name)
        return listed(names) if names else "nothing"


def _place_of(call: Call, partner: Call) -> str:
    """Name a layer by its place in the second model, and in the first."""
    return f"{call.place or 'the model'} ({partner.place or 'root'})"


def _options_of(layer: nn.Module) -> dict[str, Any]:
    """Return what PyTorch lists as the constants of a module, by name, such as its stride and padding."""
    options = {}
    for name in getattr(layer, "__constants__", ()):
        value = getattr(layer, name, None)
        if not isinstance(value, torch.Tensor):
            options[name] = value
    return options


def _without_common(mine: list[Operation], theirs: list[Operation]) -> tuple[list[Operation], list[Operation]]:
    """Return two chains of operations without what both begin with, and without what both end with.

    Args:
        mine: the operations of the first model, in order.
        theirs: those of the second.
    """
    while mine and theirs and mine[0] == theirs[0]:
        mine = mine[1:]
        theirs = theirs[1:]
    while mine and theirs and mine[-1] == theirs[-1]:
        mine = mine[:-1]
        theirs = theirs[:-1]
    return mine, theirs


def _chain(names: list[str]) -> str:
    """Name operations that follow one another."""
    text = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{text} and {more} more operations" if more > 0 else text


def compare(mine: nn.Module, theirs: nn.Module, label: str, value: Any, training: bool) -> Comparison:
    """Compare two models.

    Args:
        mine: the first, which computes in double precision.
        theirs: the second, likewise.
        label: its name.
        value: the input.
        training: whether normalization is in training mode. Nothing else is, so that nothing is random.

    Raises:
        ModelError: the first does not accept the value, or computes something that is not finite.
    """
    first = run_model(mine, value, training)
    if first.error:
        raise ModelError(f"a model does not accept the input: {first.error}")
    if not first.is_finite:
        # As the logarithm of a number below 0: nothing behind it can be compared.
        raise ModelError("a model computes no finite numbers for the input", hint="Choose one: --input in.t7.")
    second = run_model(theirs, value, training, first)
    comparison = Comparison(first, second, label)
    comparison.find_differences()
    return comparison
