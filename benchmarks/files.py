"""Benchmark files, written here byte by byte, independently of the programs under test, but for a model of layers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

TENSORS, ELEMENTS = 14, 10_000_000
"""The number of weights of VGG-16, 560 MB."""


def _string(text: bytes) -> bytes:
    return struct.pack("<i", len(text)) + text


def _number(value: float) -> bytes:
    return struct.pack("<id", 1, value)


def large(
    path: Path,
    tensors: int = TENSORS,
    elements: int = ELEMENTS,
    order: str = "<",
    kind: str = "Float",
    long_size: int = 8,
) -> None:
    """A table of tensors, each with a storage of its own."""
    rng = np.random.default_rng(1)
    long = {4: "i", 8: "q"}[long_size]
    dtype = np.dtype({"Float": "f4", "Long": f"i{long_size}"}[kind]).newbyteorder(order)
    with path.open("wb") as file:
        file.write(struct.pack(f"{order}iii", 3, 1, tensors))
        for number in range(tensors):
            name, index = b"layer%02d" % number, 2 * number + 2
            file.write(struct.pack(f"{order}ii", 2, len(name)) + name)
            for position, text in ((index, f"torch.{kind}Tensor"), (index + 1, f"torch.{kind}Storage")):
                file.write(struct.pack(f"{order}iii", 4, position, 3) + b"V 1")
                file.write(struct.pack(f"{order}i", len(text)) + text.encode())
                if position == index:
                    file.write(struct.pack(f"{order}i5{long}", 2, elements // 1000, 1000, 1000, 1, 1))
            file.write(struct.pack(f"{order}{long}", elements))
            (rng.random(elements) * 1000).astype(dtype).tofile(file)


def bfloat16(path: Path) -> None:
    """A state dict of bfloat16 tensors, made by PyTorch."""
    import torch

    torch.manual_seed(1)
    torch.save({f"layer{number:02}": torch.randn(ELEMENTS).bfloat16() for number in range(TENSORS)}, path)


def ascii_text(path: Path, elements: int = 2_000_000) -> None:
    """One tensor of floats as decimal numbers."""
    rng = np.random.default_rng(2)
    with path.open("w") as file:
        file.write(f"4\n1\n3\nV 1\n17\ntorch.FloatTensor\n1\n{elements}\n1\n1\n4\n2\n3\nV 1\n18\ntorch.FloatStorage\n")
        file.write(f"{elements}\n" + " ".join(f"{value:.8g}" for value in rng.random(elements)) + "\n")


def numbers(path: Path, count: int = 300_000) -> None:
    """A table of numbers."""
    entries = b"".join(_number(key + 1) + _number(key * 0.5) for key in range(count))
    path.write_bytes(struct.pack("<iii", 3, 1, count) + entries)


def records(path: Path, count: int = 40_000) -> None:
    """A table of tables `{id, name, flag, score}`."""
    parts = [struct.pack("<iii", 3, 1, count)]
    for key in range(count):
        parts.append(_number(key + 1) + struct.pack("<iii", 3, key + 2, 4))
        parts.append(struct.pack("<i", 2) + _string(b"id") + _number(key))
        parts.append(struct.pack("<i", 2) + _string(b"name") + struct.pack("<i", 2) + _string(b"item%d" % key))
        parts.append(struct.pack("<i", 2) + _string(b"flag") + struct.pack("<ii", 5, key % 2))
        parts.append(struct.pack("<i", 2) + _string(b"score") + _number(key / 7))
    path.write_bytes(b"".join(parts))


def small_tensors(path: Path, count: int = 50_000) -> None:
    """A table of tensors of 3 x 4 floats."""
    tensor = _string(b"V 1") + _string(b"torch.FloatTensor") + struct.pack("<iqqqqq", 2, 3, 4, 4, 1, 1)
    storage = _string(b"V 1") + _string(b"torch.FloatStorage") + struct.pack("<q12f", 12, *range(12))
    parts = [struct.pack("<iii", 3, 1, count)]
    for key in range(count):
        parts.append(_number(key + 1) + struct.pack("<ii", 4, 2 * key + 2) + tensor)
        parts.append(struct.pack("<ii", 4, 2 * key + 3) + storage)
    path.write_bytes(b"".join(parts))


def flat_model(path: Path, count: int) -> None:
    """A sequence of layers, every other one with weights, written by t7bridge."""
    from t7bridge import Table, Tensor, TorchObject, save

    modules = Table()
    for number in range(count):
        layer = TorchObject("nn.Linear" if number % 2 == 0 else "nn.Tanh")
        if number % 2 == 0:
            layer[b"weight"] = Tensor.from_numpy(np.full((4, 4), number, "f4"))
            layer[b"bias"] = Tensor.from_numpy(np.zeros(4, "f4"))
        modules[float(number + 1)] = layer
    model = TorchObject("nn.Sequential")
    model[b"modules"] = modules
    save(model, path, force=True)


def nested(path: Path, depth: int) -> None:
    """Tables inside tables."""
    parts = [struct.pack("<iii", 3, level + 1, 1) + _number(1) for level in range(depth)]
    path.write_bytes(b"".join(parts) + _number(0))


def sparse(path: Path, gigabytes: int = 10) -> None:
    """Write a sparse tensor file of the given gigabytes: zeros that were never written."""
    elements = gigabytes * 10**9 // 4
    head = struct.pack("<ii", 4, 1) + _string(b"V 1") + _string(b"torch.FloatTensor")
    head += struct.pack("<iqqq", 1, elements, 1, 1) + struct.pack("<ii", 4, 2)
    head += _string(b"V 1") + _string(b"torch.FloatStorage") + struct.pack("<q", elements)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 4 * elements)
