"""Lookup tables."""

from __future__ import annotations

from torch import Tensor, nn


class LookupTable(nn.Embedding):
    """torch.nn.Embedding whose rows may be 1-based, and indexed by numbers of any type.

    Args:
        num_embeddings: number of rows.
        embedding_dim: length of the rows.
        padding_idx: the row without gradient, 0-based.
        max_norm: maximum norm of a row; longer ones are rescaled when used.
        norm_type: p of that norm.
        scale_grad_by_freq: whether to divide gradients by the frequency of their rows.
        index_base: number of the first row.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        index_base: int = 1,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
        )
        self.index_base = index_base

    def forward(self, input: Tensor) -> Tensor:
        """Take (n) or (batch, n); return one dimension more."""
        return super().forward(input.long() - self.index_base)


class LookupTableMaskZero(nn.Embedding):
    """torch.nn.Embedding whose row 0 is set to zero before it is used; rows are indexed
    by numbers of any type.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (n) or (batch, n), of 0 to the number of rows less one; return one
        dimension more.
        """
        self.weight.data[0] = 0
        return super().forward(input.long())
