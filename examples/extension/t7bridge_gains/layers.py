"""The Lua class `gains.Gain`: its tensors and its PyTorch class, which is imported where a module is made."""

from t7bridge.layers import Traits, extent, number, of_class, param, register_layer, same

register_layer(
    "gains.Gain",
    params=(param("gain"),),
    module=of_class(".modules.Gain", extent("gain"), slope=number("slope", 1.0)),
    traits=Traits(output=same, shapes=lambda features, slope=1.0: {"gain": (features,)}),
    text="({slope:g})",
)
