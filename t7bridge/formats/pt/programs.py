"""Programs whose pickles are not PyTorch's, by what a pickle names: what the file is, and what its values mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import UnsupportedError
from ...report import Note

_PROGRAMS = {
    "sklearn": "scikit-learn",
    "keras": "Keras",
    "tensorflow": "TensorFlow",
    "paddle": "PaddlePaddle",
    "mxnet": "MXNet",
    "chainer": "Chainer",
    "lasagne": "Lasagne",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
    "catboost": "CatBoost",
    "gensim": "gensim",
    "pandas": "pandas",
    "joblib": "joblib",
}
"""Programs by their Python packages; of several the first is named."""
_PADDLE_NAMES = "StructuredToParameterName@@"
"""The entry of PaddlePaddle's state dicts that maps keys to the names of its own parameters.

Source: PaddlePaddle 2.6 `python/paddle/framework/io.py` `_build_saved_state_dict`.
"""


def program_of(foreign: Iterable[str], value: Any) -> str:
    """Return the program that wrote a pickle; empty if nothing in it says so.

    Args:
        foreign: the names of classes and functions in it that have no meaning here.
        value: what it holds.
    """
    if isinstance(value, dict) and _PADDLE_NAMES in value:
        return "PaddlePaddle"
    packages = {name.partition(".")[0] for name in foreign}
    for package, program in _PROGRAMS.items():
        if package in packages:
            return program
    return ""


def note_on(program: str) -> Note:
    """Return the note for a user who converts the pickle of another program."""
    text = f"the file is a pickle of {program}, whose arrays and settings are data here; only {program} runs it"
    if program == "PaddlePaddle":  # whose state dicts are used as they are, but for this
        text = (
            "the file is a state dict of PaddlePaddle: its linear layers have weights of (in, out), PyTorch's (out, in)"
        )
    return Note("info", path="", message=text, code="foreign-name", class_name=program)


def refuse_joblib(foreign: Iterable[str], file: str, cause: Exception) -> None:
    """Refuse a file of joblib, in which arrays stand between the opcodes of the pickle; return for any other file.

    Args:
        foreign: the names of classes and functions that were read before the failure.
        file: its path.
        cause: why it could not be read as a pickle.

    Raises:
        UnsupportedError: it is a file of joblib.
    """
    if any(name.partition(".")[0] == "joblib" for name in foreign):
        first_class = _first_class_of_another(foreign)
        raise UnsupportedError(
            f"is a file of joblib, as scikit-learn's models are stored, with arrays inside its pickle{first_class}",
            file=file,
            hint="Load it with joblib.load in the program that wrote it, and save its arrays with numpy.savez.",
        ) from cause


def _first_class_of_another(foreign: Iterable[str]) -> str:
    """Return `: CLASS`, the first class of another program, for the end of a message; empty if there is none."""
    for name in foreign:
        if name.partition(".")[0] not in ("joblib", "numpy"):
            return f": {name[:80]}"
    return ""
