"""Lua models as Python source that needs only PyTorch: plans become classes; layers that PyTorch lacks are included."""

from ..data import face

__getattr__ = face(
    __name__,
    {
        "code": "apply attribute dotted expression formula lines",
        "flow": "LISTS SourceBuilder",
        "generate": "Generated check_page",
        "idioms": "IDIOMS",
        "plans": "ModuleArgument constructed_parts",
    },
)
