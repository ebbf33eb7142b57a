"""Generate text with the language model in this folder: python sample.py "Once upon a time" --length 500."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from model import load
from torch import Tensor

Step = Callable[[int], Tensor]
"""Takes the number of a token, from 0, and returns the scores of all tokens to follow it, one dimension."""


def step_by_step(model: Any, index_base: int, states: list[list[int]]) -> Step:
    """Return the step of a model that takes a token and states, and returns the new states and the scores.

    Args:
        model: the model.
        index_base: the model's number of the first token.
        states: the shape of each state, without the batch.
    """
    dtype = next(model.parameters()).dtype
    state = [torch.zeros(1, *size, dtype=dtype) for size in states]

    def step(token: int) -> Tensor:
        nonlocal state
        *state, scores = model([torch.tensor([token + index_base]), *state])
        following: Tensor = scores[0]
        return following

    return step


def over_sequences(model: Any, index_base: int) -> Step:
    """Return the step of a model that takes sequences of tokens and a state, and returns their scores and the state.

    Args:
        model: the model.
        index_base: the model's number of the first token.
    """
    state: Any = None

    def step(token: int) -> Tensor:
        nonlocal state
        scores, state = model(torch.tensor([[token + index_base]]), state)
        following: Tensor = scores[0, -1]
        return following

    return step


def split(text: str, tokens: list[str]) -> list[str]:
    """Split a text into tokens: words if tokens are words, else characters, or the bytes of those that are no token.

    Args:
        text: the text; what is no token is left out.
        tokens: all tokens.
    """
    vocabulary = set(tokens)
    if any(len(token) > 1 for token in tokens):
        return [word for word in text.split() if word in vocabulary]
    parts: list[str] = []
    for letter in text:
        if letter in vocabulary:
            parts.append(letter)
        else:
            # A byte that is no letter by itself is a token of one of these characters, as Python decodes it with
            # "surrogateescape".
            parts += [chr(0xDC00 + byte) for byte in letter.encode()]
    return [part for part in parts if part in vocabulary]


@torch.no_grad()
def generate(step: Step, tokens: list[str], start: list[str], length: int, temperature: float) -> list[str]:
    """Return tokens that follow a text.

    Args:
        step: passes one token to the model, which remembers those before.
        tokens: all tokens, by number.
        start: the text, of known tokens; if it is empty, the first token is random.
        length: number of tokens to return.
        temperature: 0 takes the most likely token each time; the higher, the more random.
    """
    numbers = {token: number for number, token in enumerate(tokens)}
    for token in start[:-1]:
        step(numbers[token])
    number = numbers[start[-1]] if start else int(torch.randint(len(tokens), ()))
    following = []
    for _ in range(length):
        scores = step(number).double()
        if temperature > 0:
            number = int(torch.multinomial((scores / temperature).softmax(-1), 1))
        else:
            number = int(scores.argmax())
        following.append(tokens[number])
    return following


def main() -> None:
    """Read the options, and write the text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", default="", help="the beginning of the text")
    parser.add_argument("--length", type=int, default=500, help="number of tokens (default: 500)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0: the most likely token (default: 1)")
    parser.add_argument("--seed", type=int, help="of the random numbers")
    options = parser.parse_args()
    if options.seed is not None:
        torch.manual_seed(options.seed)
    sampling = json.loads(Path(__file__).with_name("config.json").read_text(encoding="utf-8"))["sampling"]
    tokens = sampling["tokens"]
    states = sampling["states"]
    index_base = sampling["index_base"]
    model = load()
    # A model over sequences has no shapes of states: it begins with None.
    step = over_sequences(model, index_base) if states is None else step_by_step(model, index_base, states)
    has_words = any(len(token) > 1 for token in tokens)
    parts = options.text.split() if has_words else options.text
    unknown_parts = dict.fromkeys(part for part in parts if not split(part, tokens))
    if unknown_parts:
        sys.stderr.write(f"not in the vocabulary, left out: {', '.join(map(ascii, unknown_parts))}\n")
    start = split(options.text, tokens)
    following = generate(step, tokens, start, options.length, options.temperature)
    text = (" " if has_words else "").join([*start, *following])
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")


if __name__ == "__main__":
    main()
