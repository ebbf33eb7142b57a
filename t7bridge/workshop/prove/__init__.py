"""Proof that layers compute what Lua Torch recorded. Imports torch when it is asked to prove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data import face

if TYPE_CHECKING:
    from .proof import NOTE as NOTE
    from .proof import Proof as Proof
    from .proving import prove as prove
    from .proving import try_proof as try_proof

__getattr__ = face(
    __name__,
    {
        "proof": "NOTE Proof",
        "proving": "prove try_proof",
    },
)
