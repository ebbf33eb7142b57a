"""Comparison of a model's layers with the values that Lua Torch recorded in the same file."""

from ...data import face

__getattr__ = face(
    __name__,
    {
        "against": "NO_TARGET OTHER_TARGET",
        "judge": "MASKED RANDOM ROUNDING STATE",
        "probe": "fitting_inputs guess_inputs lua_literal probe_source write_probe",
        "proof": "CONVERSION FILE Proof",
        "prove": "try_proof",
    },
)
