"""Shapes of a drawn model by running it on PyTorch's meta device, which allocates no memory."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ModelError, UnsupportedError
from ...graph.lua import TorchObject
from ...limits import Limits
from ...nn.example import Example, Examples
from ...nn.example_text import parse_shapes
from .blocks import Block, shape_text
from .infer import Shapes, guessed_inputs


def run_for_shapes(
    module: TorchObject, path: str, wanted: Sequence[int] | str, blocks: list[Block], limits: Limits
) -> Shapes:
    """Run a model for one input and set the resulting shapes in its blocks.

    Args:
        module: the model.
        path: its path in the file.
        wanted: the shape of its input; `"guess"`: one that its layers accept; or a text such as `[1x4,1x20:int64]`
            for a table of inputs.
        blocks: the model's.
        limits: resource limits.

    Raises:
        ModelError: the model does not accept such an input, or none can be guessed.
        UnsupportedError: PyTorch is not installed.
    """
    try:
        from ...torchmodules.shapes import inputs_text, output_shapes
    except ImportError as error:
        raise UnsupportedError("PyTorch is not installed", hint="pip install 't7bridge[torch]'") from error
    reason: ModelError | None = None
    guess = wanted == "guess"
    tried: list[Examples] = (
        [Example("", shape) for shape in guessed_inputs(blocks)]
        if guess
        else [parse_shapes(wanted) if isinstance(wanted, str) else Example("", tuple(wanted))]
    )
    for inputs in tried:
        try:
            found = output_shapes(module, path, inputs, limits)
        except ModelError as error:
            reason = error
            continue
        for block in blocks:
            block.shape = found.get(block.key, ()) if block.kind != "end" else ()
        text = inputs_text(inputs, "×")
        source = f"for an input of {text}" + (", a guess from the layers" if guess else "")
        return Shapes(text, shape_text(blocks[0].shape), source)
    raise reason or ModelError("the input's shape cannot be guessed", hint="Give it: --input-shape 1x3x224x224.")
