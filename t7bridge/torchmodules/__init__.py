"""Live PyTorch modules from plans. The only package that imports torch for modules."""

from ..data import face

__getattr__ = face(
    __name__,
    {
        "build": "construct example factories_in live_module make_module materialize output_shapes skeleton",
        "factories": "Factory is_factory",
        "wiring": "INPUT Wiring wiring_of",
    },
)
