"""A picture of the model in a file: `draw`."""

from __future__ import annotations

import os

from ...errors import ModelError
from ...io.output import FileOutput
from ...io.source import ByteSource, PathLike
from ...limits import DEFAULT_LIMITS, Limits
from ..load_module import one_module
from . import FORMATS
from .blocks import blocks_of
from .dot import as_dot
from .layout import lay_out
from .svg import as_svg


def draw(
    src: PathLike, dst: PathLike, at: str | None = None, *, force: bool = False, limits: Limits = DEFAULT_LIMITS
) -> int:
    """Draw the modules of a `.t7` file: what is in what, what flows where, and what each is in PyTorch.

    Layers that stand for no PyTorch module are drawn too, in red. A module that Lua has at several places is drawn at
    the first, and named at the others.

    Args:
        src: the `.t7` file.
        dst: the picture: `.svg`, or `.dot` for Graphviz.
        at: the path of the module where the file holds several: `root.protos.rnn`.
        force: whether an existing file is replaced.
        limits: what the file may cost.

    Returns:
        How many modules are drawn, those at several places as often.

    Raises:
        FormatError: the file is damaged, or is something else.
        ModelError: the file holds no module, or several and `at` names none of them; or `dst` is no picture.
        LimitError: the model is too large for a picture.
        UnsupportedError: grandalf is not installed, and the model has a graph.
        TargetExistsError: the picture exists and `force` is not set.
    """
    suffix = os.path.splitext(os.fspath(dst))[1].lower()
    if suffix not in FORMATS:
        raise ModelError(
            "pictures are .svg or .dot", file=os.fspath(dst), expected=f"a name that ends in {' or '.join(FORMATS)}"
        )
    with ByteSource.from_path(src) as source:
        trail, module = one_module(source, at, limits)
        blocks = blocks_of(module, trail, limits)
        if suffix == ".dot":
            text = as_dot(blocks)
        else:
            text = as_svg(lay_out(blocks), f"{os.path.basename(source.name)}, {trail}")
        with FileOutput(dst, force=force, inputs=(source,)) as output:
            output.write(text.encode("utf-8", "replace"))
    return sum(block.kind != "end" for block in blocks)
