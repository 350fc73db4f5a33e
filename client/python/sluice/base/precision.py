"""In which precision sums and softmaxes are: fp32, double where that comes."""
from __future__ import annotations

import torch
from torch import Tensor

_WIDE = (torch.float32, torch.float64)
_PART = 1 << 22  # elements at a time, which are widened


def wide_dtype(like: Tensor) -> torch.dtype:
    """fp32, or what `like` has where that is wider."""
    if like.dtype in _WIDE:
        return like.dtype
    return torch.promote_types(like.dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    """x in its wide dtype; x itself where it has that."""
    return x if x.dtype in _WIDE else x.to(wide_dtype(x))


def autocast_now(device: torch.device) -> torch.autocast:
    """Autocast as it is in force."""
    kind = device.type
    return torch.autocast(kind, torch.get_autocast_dtype(kind),
                          torch.is_autocast_enabled(kind))


def near(found: Tensor | None, wanted: Tensor | None, limit: float,
         least: float = 1e-12) -> bool:
    """Whether two tensors differ by no more than the limit, or the precision of
    their type, of the norm of what is wanted, or by no more than `least`."""
    if found is None or wanted is None or found.shape != wanted.shape:
        return found is wanted
    if wanted.is_floating_point():
        limit = max(limit, 4 * torch.finfo(wanted.dtype).eps)
    wide = torch.promote_types(wanted.dtype, torch.float64)  # or complex
    apart = norm = 0.0
    for f, w in zip(*(t.detach().reshape(-1).split(_PART)
                      for t in (found, wanted))):
        apart += float((f.to(wide) - w.to(wide)).norm()) ** 2
        norm += float(w.to(wide).norm()) ** 2
    return apart ** 0.5 <= max(limit * norm ** 0.5, least)
