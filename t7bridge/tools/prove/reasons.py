"""Every reason of a verdict, stated once. May import nothing of the package."""

from __future__ import annotations

# Of layers that are not recorded
NO_INPUT = "its input is not recorded"
OVERWRITTEN = "its output was overwritten"
NOT_A_NUMBER = "its recorded output is not a number"
NEVER_COMPUTED = "its recorded output was never computed: it is zero, or next to zero"
STEP_BEFORE = "continues from the step before"
BY_GRADIENT = "its gradient was checked; {}"
OUTPUT_MISSING = "its output is not recorded"
# Of layers that are not checkable
WITH_ANOTHER = "compared together with {} only, which does not agree"
DRAWS = "draws at random, and the drawn values are not recorded"
STATE = "continues from a state that is not recorded"
ROUNDING = "rounding alone may change its output by more than 1 %"
MASKED = "parts of the last output were set to zero after the pass, as by a mask; the others agree"
TOO_LARGE = "would return {} elements"
TOO_DEEP = "its modules are nested too deep for PyTorch"
NO_TARGET = "its target is not recorded"
OTHER_TARGET = "its gradient is of another pass, or does not determine the target"
OTHER_BATCH = "its input and its output are of passes of {} and {} examples"
# Of layers that agree
TOGETHER = "checked together with {}"
BEHIND = "compared after {}, which works in place"
REPAIRED = "agrees once {} is as Lua had it"
SAME_MODULE = "the same module as {}, which ran later"
OTHER_PASS = "its gradients are those of another pass"
OTHER_MODE = "Lua ran it in {}; the model was saved in {}"
FROM_FIELD = "its input was computed from its own fields"
FROM_OUTPUT = "its input was computed from its output, which has more numbers"
EXPONENTIAL = "Lua computes exponentials by a fast approximation"
THRESHOLD = "values at the threshold may be on either side"
COEFFICIENTS = "Lua keeps coefficients in the precision of its first run"
ADDED_ONE = "Lua adds 1 to an exponential before it takes the logarithm"
CANCELLED = "large terms cancel: the difference is within what rounding explains"
SINGLE = "Lua computes its coefficients in single precision"
# Of layers whose weights moved
STEPPED = "the weights moved after the last forward: a step of {} along {} explains 100.0% of the difference"
MOVED = "the weights moved after the last forward, or the file was changed"
BEFORE_UPDATE = "its gradient is that of other weights"
# Of layers that differ
UNFOLDED = "{} fits its unfolded input (the file has {})"
CONTRADICTS = "{} = {} does not fit its weight, which has {}"
JOINED = "the outputs of its modules do not fit along its dimension"
SHAPE = "shape {}, recorded {}"
OPTION = "{} = {} agrees (the file has {})"
GRADIENT = "its gradient differs"
CONTAINS = "contains {}"
OFF = "a step of {} along {}, after the last forward, explains the other layers and not this one"
BESIDE = "beside a step of {} along {}, after the last forward, which explains the other layers and not this one"
NO_UPDATE = "no weights give the recorded output"

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
MOST_ROUNDING = 1e-2
"""Share of the largest output from which on agreement within rounding says nothing."""
