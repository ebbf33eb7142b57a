"""One number as decimal text, as C prints it; needs no numpy, which `decimals` needs for whole arrays."""

from __future__ import annotations

import math


def number_text(value: float, digits: int) -> str:
    """A number as C's `%.17g` prints it on Linux, with `digits` digits: a nan keeps its sign."""
    if value != value:
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return f"{value:.{digits}g}"
