"""Update the arguments in `t7bridge/nn/torch_nn.txt` from the installed PyTorch: names, order and defaults.

A line keeps as many arguments as it has: further ones are never used. Lines that change appear on the terminal.

Run: python docs/generate_torch_nn.py
"""

from __future__ import annotations

from inspect import Parameter, signature
from pathlib import Path

import torch

TABLE = Path(__file__).resolve().parent.parent / "t7bridge/nn/torch_nn.txt"
ARGUMENTS = 4
"""The column of the arguments."""


def arguments(name: str, known: str) -> str:
    """Return as many arguments of a class as are known; one without default there is always given."""
    kind = getattr(torch.nn, name)
    words = known.split()
    if issubclass(kind, torch.nn.RNNBase):
        return known  # whose signature is that of all three
    found = list(signature(kind).parameters.values())[: len(words)]
    return " ".join(
        each.name if each.default is Parameter.empty or "=" not in word else f"{each.name}={each.default!r}"
        for each, word in zip(found, words, strict=True)
    )


def main() -> None:
    """Write the table again."""
    lines = TABLE.read_text("ascii").splitlines()
    for at, line in enumerate(lines):
        columns = line.split("|")
        if line.startswith("#") or not columns[ARGUMENTS:]:
            continue
        known = columns[ARGUMENTS].strip()
        columns[ARGUMENTS] = f" {arguments(columns[0].strip(), known)} "
        updated = "|".join(columns).rstrip()
        if updated != line:
            print(updated)
        lines[at] = updated
    TABLE.write_text("\n".join(lines) + "\n", "ascii")


if __name__ == "__main__":
    main()
