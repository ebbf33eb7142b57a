"""Operations on whole files: load, verify, diff, inspect, scan, module."""

from ..data import face

__getattr__ = face(
    __name__,
    {
        "modules": "one_module",
        "shapes": "Evaluation evaluate infer",
        "verify": "DiffReport",
        "view": "Fold folds_of shown",
    },
)
