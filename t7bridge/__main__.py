"""`python -m t7bridge`, and what the command `t7bridge` runs."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line in a process of its own.

    Python looks for cyclic garbage while modules are loaded and once more at the end: a tenth to a sixth of the time
    that a small file needs, and nothing is found.
    """
    gc.set_threshold(100_000, 20, 100)
    try:
        from .cli import main

        code = main()
    except KeyboardInterrupt:  # while modules were loaded
        code = 130
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    run()
