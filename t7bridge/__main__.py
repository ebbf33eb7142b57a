"""Entry point of `python -m t7bridge` and of the command `t7bridge`."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

_COMPUTING = frozenset(("export", "lua", "match", "module", "prove", "zoo"))
"""Verbs that may run PyTorch, with the threads that it finds."""
_FEW_COLLECTIONS = (100_000, 20, 100)
"""Thresholds of the garbage collector: how many new objects before it looks at the young ones, of which Python has 700
or 2,000, and how often it does so before it looks at older ones."""


def run() -> NoReturn:
    """Run the command line in a process of its own.

    Python runs a garbage collection while modules are loaded and one more at exit: a tenth to a sixth of the time that
    a small file takes, and nothing is found. With PyTorch the one at exit stays, or triton would report leaked objects.
    """
    gc.set_threshold(*_FEW_COLLECTIONS)
    if _COMPUTING.isdisjoint(sys.argv[1:2]):
        # numpy's linear algebra, of which nothing is used, starts its threads when it is loaded: a third of the time.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from .cli import main

        code = main()
    except KeyboardInterrupt:  # while modules were loaded
        code = 130
    if "torch" not in sys.modules:
        gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    run()
