"""Whole stretches: consecutive layers run from a recorded input to the last recorded output.

Single layers always start from Lua's numbers; a stretch shows how far differences grow until the output. May import
graph and torchmodules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field

from ...data import define
from ...errors import T7BridgeError
from ...graph.tensor import Tensor
from .memory import Memory
from .outcome import Outcome
from .proof import AGREES, DIFFERS, NOT_CHECKABLE, STALE, StretchProof
from .reasons import ROUNDING
from .values import Recorded, is_whole, leaves, region
from .visits import Step

if TYPE_CHECKING:
    from ...torchmodules.running import LiveLayer

ROOM = 20.0
"""Factor by which Lua's rounding errors may exceed those of single precision in PyTorch at the end of a stretch."""
MOST = 20
"""Maximum number of listed stretches."""


@define(eq=False)
class Far:
    """The value of a tensor if all layers since a recorded one were run in a chain.

    Attributes:
        exact: in double precision.
        rough: in Lua's precision.
        start: number of the first step.
        count: number of steps.
    """

    exact: Any
    rough: Any
    start: int
    count: int


@define(eq=False)
class Stretches:
    """Runs layers in a chain while single ones are checked.

    Attributes:
        steps: in order.
        memory: the recorded values that are still in the file.
    """

    steps: list[Step]
    memory: Memory
    _far: dict[Any, Far] = field(factory=dict, repr=False)
    _ends: dict[int, Far] = field(factory=dict, repr=False)

    def add(self, number: int, step: Step, layer: LiveLayer | None, given: Any) -> None:
        """Run a layer on the output of those before it.

        Args:
            number: of the step.
            step: the step.
            layer: the live layer; `None` for steps that only combine outputs.
            given: its input if nothing before it was run.
        """
        from ...torchmodules.running import NotRunError, flat, joined

        taken: list[Far] = []
        exact = self._input(step.glue if step.glue is not None else step.input, number, taken, False)
        rough = self._input(step.glue if step.glue is not None else step.input, number, taken[:], True)
        if not taken:
            exact, rough = given, given
        if exact is None or rough is None:
            self.forget(step)
            return
        try:
            if layer is None:
                dim = step.obj.get("dimension")
                got = [joined(one, int(dim) - 1) if taken else one for one in (exact, rough)]
            else:
                got = [layer.run(exact), layer.run_narrow(rough)]
        except (NotRunError, T7BridgeError):
            self.forget(step)
            return
        start = min((one.start for one in taken), default=number)
        count = 1 + max((one.count for one in taken), default=0)
        pair = [[item.double() for item in flat(one)] if one is not None else [] for one in got]
        targets = list(leaves(step.output))
        if len(targets) != len(pair[0]) or len(targets) != len(pair[1]):
            self.forget(step)
            return
        for storage, low, high in step.writes:
            for key in [key for key in self._far if isinstance(key, tuple) and key[0] == storage]:
                if key[1] <= high and low <= key[2]:
                    del self._far[key]
        for used in taken:
            for end in [end for end, far in self._ends.items() if far is used]:
                del self._ends[end]
        for target, one, other in zip(targets, *pair):
            if one.numel() == target.numel:
                far = Far(one.reshape(target.shape), other.reshape(target.shape), start, count)
                self._far[id(target)] = self._far[_key(target)] = far
                if len(targets) == 1 and is_whole(step.output) and self.memory.holds_output(step.output, number):
                    self._ends[number] = far

    def forget(self, step: Step) -> None:
        """Start anew after a layer that could not be run."""
        for tensor in leaves(step.output):
            self._far.pop(id(tensor), None)
            self._far.pop(_key(tensor), None)

    def _input(self, value: Recorded, number: int, taken: list[Far], rough: bool) -> Any:
        from ...torchmodules.running import to_torch

        if isinstance(value, list):
            parts = [self._input(item, number, taken, rough) for item in value]
            return None if any(part is None for part in parts) else parts
        if not isinstance(value, Tensor):
            return value
        far = self._far.get(id(value)) or self._far.get(_key(value))
        if far is not None:
            taken.append(far)
            return (far.rough if rough else far.exact).clone()
        if self.memory.written_after(value, number - 1):
            return None
        found = to_torch(value)
        return found if value.element.name == "int64" else found.double()

    def proofs(self, outcomes: list[Outcome]) -> list[StretchProof]:
        """Return the stretches that nothing continues, the longest first."""
        found = []
        for end, far in self._ends.items():
            if far.count > 1:
                found.append(self._proof(far, end, outcomes))
        return sorted(found, key=lambda one: -one.layers)[:MOST]

    def _proof(self, far: Far, end: int, outcomes: list[Outcome]) -> StretchProof:
        from ...torchmodules.judging import measure, squeezed
        from ...torchmodules.running import to_torch

        want = squeezed(to_torch(self.steps[end].output))
        size = float(want[0].abs().max()) if want[0].numel() else 0.0
        rough = float((far.rough - far.exact).abs().max()) if want[0].numel() else 0.0
        scale = far.exact.new_full(far.exact.shape, max(rough, 1e-16 * size, 1e-300) * ROOM / 15.0 / 0.3)
        difference = measure(want, [far.exact], [scale])
        inside = {outcome.verdict for outcome in outcomes[far.start : end + 1]}
        if difference.excess <= 1 or difference.close:
            verdict, reason = AGREES, ""
        elif DIFFERS in inside or STALE in inside:
            verdict, reason = (DIFFERS if DIFFERS in inside else STALE), ""
        else:
            verdict, reason = NOT_CHECKABLE, ROUNDING
        return StretchProof(
            self.steps[far.start].path,
            self.steps[end].path,
            far.count,
            verdict,
            difference.max_abs,
            difference.max_rel,
            difference.cosine,
            reason,
        )


def _key(tensor: Tensor) -> tuple[Any, ...]:
    storage, low, high = region(tensor)
    return storage, low, high, tensor.size, tensor.stride
