"""Precision of sums and softmaxes: fp32, or double for double inputs."""
from __future__ import annotations

import torch
from torch import Tensor

_WIDE = (torch.float32, torch.float64)
_PART = 1 << 22  # elements that are widened at a time


def wide_dtype(like: Tensor) -> torch.dtype:
    """Returns fp32, or the dtype of `like` if that is wider."""
    if like.dtype in _WIDE:
        return like.dtype
    return torch.promote_types(like.dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    return x if x.dtype in _WIDE else x.to(wide_dtype(x))


def autocast_now(device: torch.device, caches: bool | None = None
                 ) -> torch.autocast:
    """Returns a context that repeats the current autocast setting. `caches`:
    whether it caches casts of weights; None: as now."""
    kind = device.type
    return torch.autocast(kind, torch.get_autocast_dtype(kind),
                          torch.is_autocast_enabled(kind), caches)


def near(found: Tensor | None, wanted: Tensor | None, limit: float,
         least: float = 1e-12) -> bool:
    """Returns whether the norm of found - wanted is at most `least`, or at most
    `limit` (4 eps of the dtype if that is more) times the norm of `wanted`."""
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
