"""Drawing of models: `layout` places the blocks, `pictures` and `page` write them, `drawing` has the verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data import face

if TYPE_CHECKING:
    from .drawing import draw as draw
    from .page import HEAD_OF_PAGE as HEAD_OF_PAGE
    from .page import is_page as is_page

__getattr__ = face(
    __name__,
    {
        "drawing": "draw",
        "page": "HEAD_OF_PAGE is_page",
    },
)
