"""Masks: bool [1, 1, S, S], True where a row sees a key; None for causal."""

from __future__ import annotations

import torch
from torch import Tensor


def causal(rows: int) -> None:
    """Returns None: torch has a flag for this mask (is_causal)."""


def window(rows: int) -> Tensor:
    """Returns a mask with which each row sees itself and the 23 rows before."""
    at = torch.arange(rows)
    apart = at[:, None] - at
    return ((apart >= 0) & (apart < 24))[None, None]


def documents(rows: int) -> Tensor:
    """Returns the mask of three packed documents of unequal lengths, none as
    long as a chunk. A row sees the rows of its document up to itself."""
    at = torch.arange(rows)
    document = (at >= rows // 5).int() + (at >= rows * 3 // 5).int()
    return ((at[:, None] >= at) & (document[:, None] == document))[None, None]
