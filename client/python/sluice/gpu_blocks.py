"""One plain block of attention on a CUDA device, by ATen's kernels: flash for
bf16 and fp16, efficient for fp32. See `blocks`, which has shapes and joins.

Flash takes and gives o in the dtype of q: a block's o is rounded to that before
it is joined, and so is the whole row's for backward, where the CPU's blocks
have both in fp32. The joins themselves are in fp32 as there.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from sluice.precision import widened

__all__ = ["backward", "fits", "forward"]

_FLASH = (torch.bfloat16, torch.float16)
_WIDTH, _WIDEST = 8, 256  # heads are a multiple of the one, at most the other
_LSE_ROWS = 32  # the efficient kernel's log-sum-exp has a multiple of rows


def fits(q: Tensor) -> bool:
    """Whether there is a kernel for rows like q [B, H, c, D]."""
    return q.device.type == "cuda" and q.shape[-1] % _WIDTH == 0 and (
        q.shape[-1] <= _WIDEST) and q.dtype in (*_FLASH, torch.float32)


def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
            ) -> tuple[Tensor, Tensor]:
    """(o, lse) of the block alone, fp32."""
    if q.dtype in _FLASH:
        o, lse = torch.ops.aten._flash_attention_forward(
            *_rows_first(q, k, v), None, None, q.shape[2], k.shape[2], 0.0,
            causal, False, scale=scale)[:2]
        return widened(o.transpose(1, 2)), lse
    o, lse = torch.ops.aten._scaled_dot_product_efficient_attention(
        *_alike(q, k, v), None, True, 0.0, causal, scale=scale)[:2]
    return o, lse[:, :, :q.shape[2]]


def backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor,
             lse: Tensor, causal: bool, scale: float
             ) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of the block, given the whole row's o and lse."""
    if q.dtype in _FLASH:
        found = torch.ops.aten._flash_attention_backward(
            *_rows_first(do.to(q.dtype), q, k, v, o.to(q.dtype)),
            lse.contiguous(), None, None, q.shape[2], k.shape[2], 0.0, causal,
            None, None, scale=scale)
        return tuple(g.transpose(1, 2) for g in found)
    # The rows that are not there are infinite.
    padded = F.pad(lse, (0, -lse.shape[2] % _LSE_ROWS), value=math.inf)
    dq, dk, dv, _ = (
        torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            do.to(q.dtype), *_alike(q, k, v), None, o, padded, None, None, 0.0,
            [True, True, True, False], causal, scale=scale))
    return dq, _per_group(dk, k.shape[1]), _per_group(dv, v.shape[1])


def _rows_first(*tensors: Tensor) -> list[Tensor]:
    """[B, c, H, D], the last dimension contiguous."""
    return [_contiguous_rows(t).transpose(1, 2) for t in tensors]


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _alike(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """As many heads everywhere: the kernel has no groups."""
    group = q.shape[1] // k.shape[1]
    return [_contiguous_rows(t) for t in (
        q, *(t if group == 1 else t.repeat_interleave(group, dim=1)
             for t in (k, v)))]


def _per_group(x: Tensor, groups: int) -> Tensor:
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).sum(2)
