"""Operations on whole files: load, verify, diff, scan, match, draw."""

from ..data import face

__getattr__ = face(
    __name__,
    {
        "draw": "Block Box Evaluation Flow Fold blocks_of evaluate folds_of infer lay_out shown",
        "match": "gate_orders longest_rising write_match",
        "modules": "loader_source one_module",
        "prove.layer": "LiveLayer NotRunError flat mapped to_torch",
        "prove.proof": "Proof",
        "prove.runs": "is_whole runs",
        "verify": "DiffReport",
    },
)
