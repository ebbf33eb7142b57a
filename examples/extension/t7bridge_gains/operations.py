"""The operation `gains::scale` as a layer of Lua's nn."""

from t7bridge.lua import make, operation


@operation("gains::scale", "nn.MulConstant")
def scale(b, input, factor):
    """Multiply by a number."""
    return b.emit(make("nn.MulConstant", factor), input)
