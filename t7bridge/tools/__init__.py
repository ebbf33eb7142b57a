"""Operations on whole files: load, verify, diff, scan, match, draw."""

from ..data import face

__getattr__ = face(
    __name__,
    {
        "draw.blocks": "Block Flow blocks_of",
        "draw.layout": "Box lay_out",
        "draw.shapes": "Evaluation evaluate infer",
        "draw.view": "Fold folds_of shown",
        "match.result": "write_match",
        "match.sides": "gate_orders",
        "modules": "loader_source one_module",
        "prove.layer": "LiveLayer NotRunError flat mapped to_torch",
        "prove.proof": "Proof",
        "prove.runs": "is_whole runs",
        "verify": "DiffReport",
    },
)
