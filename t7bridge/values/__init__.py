"""Questions about values, whatever their format: compare, diff, describe, outline, widened types."""

from ..data import face

CAST_TYPES = ("float16", "bfloat16", "float32")
"""The types to which floating-point elements are rounded on request. For the options, which load no table."""

__getattr__ = face(
    __name__,
    {
        "compare": "Difference Comparer TensorDifference ValueComparer differences",
        "describe": "describe_lua describe_python json_pieces lua_json python_json",
        "summary": "outline",
        "widened": "is_exact narrow resolved restore_values widen wider_type",
    },
)
