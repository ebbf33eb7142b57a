"""Drawing of models: `blocks` makes the picture's content, `shapes` infers its shapes, `view` selects what is shown,
`layout` and `pictures` write it, `drawing` has the verb. Each module is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data import face

if TYPE_CHECKING:
    from .blocks import Block, Flow, blocks_of, group_of, models_in, shape_text, structure_blocks
    from .drawing import Drawing, check_picture, draw, draw_pair
    from .layout import Box, lay_out
    from .pictures import is_page
    from .shapes import Evaluation, Shapes, evaluate, infer, shapes_of
    from .view import Fold, branches_of, first_places, folds_of, shared_of, shown, skips_of

__all__ = [
    "Block",
    "Box",
    "Drawing",
    "Evaluation",
    "Flow",
    "Fold",
    "Shapes",
    "blocks_of",
    "branches_of",
    "check_picture",
    "draw",
    "draw_pair",
    "evaluate",
    "first_places",
    "folds_of",
    "group_of",
    "infer",
    "is_page",
    "lay_out",
    "models_in",
    "shape_text",
    "shapes_of",
    "shared_of",
    "shown",
    "skips_of",
    "structure_blocks",
]
__getattr__ = face(
    __name__,
    {
        "blocks": "Block Flow blocks_of group_of models_in shape_text structure_blocks",
        "drawing": "Drawing check_picture draw draw_pair",
        "layout": "Box lay_out",
        "pictures": "is_page",
        "shapes": "Evaluation Shapes evaluate infer shapes_of",
        "view": "Fold branches_of first_places folds_of shared_of shown skips_of",
    },
)
