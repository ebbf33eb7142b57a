"""PyTorch's ONNX exporter, prepared once for all tests."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from torch.onnx._internal.exporter._registration import ONNXRegistry


@pytest.fixture(scope="session", autouse=True)
def operations_are_read_once() -> Iterator[None]:
    """Give each export a copy of one table of ONNX operations.

    For each export, PyTorch parses the source of a thousand functions for that table, which is half of the time of the
    export of a small model.
    """
    table_of = functools.cache(ONNXRegistry.from_torchlib)

    def copied(*version: int, **named_version: int) -> Any:
        table = copy.copy(table_of(*version, **named_version))
        table.functions = {target: list(translations) for target, translations in table.functions.items()}
        return table

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(copied))
        yield
