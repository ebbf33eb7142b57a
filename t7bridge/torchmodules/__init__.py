"""Live PyTorch modules from plans. The only package that imports torch for modules."""

from ..lazy import face

__getattr__ = face(
    __name__,
    {
        "build": "construct live_module materialize output_shapes",
        "export": "export_onnx export_pt2",
    },
)
