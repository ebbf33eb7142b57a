"""A folder for each of many like cases inside one test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`; removed when the case has passed, kept when it has not."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    yield folder
    shutil.rmtree(folder)
