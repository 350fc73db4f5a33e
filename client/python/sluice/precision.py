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


def near(found: Tensor | None, wanted: Tensor | None, limit: float,
         least: float = 1e-12) -> bool:
    """Whether two tensors differ by no more than the limit, or the precision of
    their type, of the norm of what is wanted, or by no more than `least`."""
    if found is None or wanted is None or found.shape != wanted.shape:
        return found is wanted
    if wanted.is_floating_point():
        limit = max(limit, 4 * torch.finfo(wanted.dtype).eps)
    wide = torch.promote_types(wanted.dtype, torch.float64)  # or complex
    found, wanted = found.detach().to(wide), wanted.detach().to(wide)
    return bool((found - wanted).norm() <= (limit * wanted.norm()).clamp(
        min=least))
