"""Every reason of a verdict, stated once: templates, and the names of those that a text was made from.

May import nothing of the package.
"""

from __future__ import annotations

import re

# Of layers that are not recorded
NO_INPUT = "its input is not recorded"
OVERWRITTEN = "its output was overwritten"
NOT_A_NUMBER = "its recorded output is not a number"
NEVER_COMPUTED = "its recorded output was never computed: it is zero, or next to zero"
STEP_BEFORE = "continues from the step before"
BY_GRADIENT = "its gradient was checked; {}"
OUTPUT_MISSING = "its output is not recorded"
# Of layers that are not checkable
WITH_DIFFERING = "compared together with {} only, which differs"
DRAWS = "draws at random, and the drawn values are not recorded"
NO_NOISE = "is random, and its random numbers are not recorded"
NOISE = "its recorded noise does not match its input"
STATE = "continues from a state that is not recorded"
ROUNDING = "rounding alone may change its output by more than 1 %"
MASKED = "parts of the last output were set to zero after the pass, as by a mask; the others agree"
NO_MODULE = "{} layer{} no PyTorch module ({}"
TOO_LARGE = "would return {} elements"
TOO_DEEP = "its modules are nested too deep for PyTorch"
NO_TARGET = "its target is not recorded"
OTHER_TARGET = "its gradient is of another pass, or does not determine the target"
# Of layers that agree
TOGETHER = "checked together with {}"
BEHIND = "compared after {}, which works in place"
REPAIRED = "agrees once {} is as Lua had it"
SAME_MODULE = "the same module as {}, which ran later"
OTHER_PASS = "its gradients are those of another pass"
FROM_FIELD = "its input was computed from its own fields"
FROM_OUTPUT = "its input was computed from its output, which has more numbers"
EXPONENTIAL = "Lua computes exponentials by a fast approximation"
THRESHOLD = "values at the threshold may be on either side"
COEFFICIENTS = "Lua keeps coefficients in the precision of its first run"
ADDED_ONE = "Lua adds 1 to an exponential before it takes the logarithm"
CANCELLED = "large terms cancel: the difference is within what rounding explains"
SINGLE = "Lua computes its coefficients in single precision"
# Of layers that are stale
STEPPED = "the weights moved after the last forward: a step of {} along {} explains {} of the difference"
MOVED = (
    "the weights moved after the last forward, as those of all layers do, in the direction of the recorded gradient "
    "(cosine {})"
)
MOVED_OTHERWISE = (
    "the weights moved after the last forward, as those of all layers do; not along the last gradient (cosine {}), as "
    "with momentum"
)
MOVED_UNTOLD = (
    "the weights moved after the last forward, as those of all layers do; no recorded gradient shows the direction"
)
BEFORE_UPDATE = "its gradient is that of weights before an update, as that of the other layers"
# Of layers that differ
UNFOLDED = "{} fits its unfolded input (the file has {})"
CONTRADICTS = "{} = {} does not fit its weight, which has {}"
SHAPE = "shape {}, recorded {}"
REFUSED = "does not accept the recorded input: {}"
JOINED = "the outputs of its modules do not fit along its dimension"
COUNT = "{} outputs, {} recorded"
STRANGE = "infinite or not a number on one side"
OPTION = "{} = {} agrees (the file has {})"
GATES = "the gates in the order {} agree (the file has {})"
WEIGHT = "{}{} was about {} larger in Lua (0-based, in PyTorch's layout)"
GRADIENT = "its gradient differs"
CONTAINS = "contains {}"
SCALED = "its {} in the file {} times as large as in Lua"
OFF = "a step of {} along {}, after the last forward, explains the other layers and not this one"
BESIDE = "beside a step of {} along {}, after the last forward"
AGAINST = "the difference does not lie along the recorded gradient (cosine {})"

APPROXIMATE = {
    **dict.fromkeys(("LogSoftMax", "SpatialLogSoftMax", "TreeNLLCriterion"), EXPONENTIAL),
    "HardShrink": THRESHOLD,
    "LogSigmoid": ADDED_ONE,
    **dict.fromkeys(
        (
            "LayerNormalization",
            "SpatialSubtractiveNormalization",
            "SpatialDivisiveNormalization",
            "SpatialContrastiveNormalization",
        ),
        COEFFICIENTS,
    ),
    "SpatialUpSamplingBilinear": SINGLE,
}
"""Classes whose outputs are only required to agree within 1e-4 and 1e-5, and why.

Source: TH 814ea4a `THLogAdd.c`, nn 8726825.
"""
EXPONENTIAL_ERROR = 3e-4
"""Largest error of the logarithm of a sum by the approximation of its exponentials.

Source: TH `THExpMinusApprox`, used by the LogSoftMax of releases before 2017.
"""

TABLE = {
    name: text
    for name, text in list(globals().items())
    if name.isupper() and isinstance(text, str) and not name.startswith("_")
}
"""All templates by name."""
_PATTERNS = {
    name: re.compile(".*".join(re.escape(part) for part in re.split(r"\{\}", text)), re.DOTALL)
    for name, text in TABLE.items()
}


def names_of(reason: str) -> list[str]:
    """Return the names of the templates used in a reason."""
    return [name for name, pattern in _PATTERNS.items() if pattern.search(reason)]
