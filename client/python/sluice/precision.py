"""In which precision sums and softmaxes are: fp32, double where that comes."""
from __future__ import annotations

import torch
from torch import Tensor

_WIDE = (torch.float32, torch.float64)


def wide_dtype(like: Tensor) -> torch.dtype:
    """fp32, or what `like` has where that is wider."""
    if like.dtype in _WIDE:
        return like.dtype
    return torch.promote_types(like.dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    """x in its wide dtype; x itself where it has that."""
    return x if x.dtype in _WIDE else x.to(wide_dtype(x))
