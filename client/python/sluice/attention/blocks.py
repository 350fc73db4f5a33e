"""Computes one block of attention (some rows against some keys) and merges
blocks by their log-sum-exp.

Shapes in this file: q [B, H, c, D]; k [B, Hkv, n, D]; v [B, Hkv, n, Dv]; o [B,
H, c, Dv] and lse [B, H, c], both fp32; a mask is an `intervals.Whole`,
`Window` or `Between`.

`kernel_of` chooses what computes a block: ATen's flash kernel for CPUs, which
reads grouped k, v without copies; a CUDA kernel of ATen (`gpu_blocks`); or
`whole_scores`, if no kernel supports the block.

[Note: strips] The CPU kernel walks whole tiles of 512 keys, also in a causal
block: for 512 rows it computes everything above the diagonal too. So a causal
block of at most 512 rows runs in strips of rows, each with the keys up to its
last row. This changes no bit of o and lse; for 512 rows the forward takes 0.75
of the time, the backward 0.76. Below 192 rows the kernel halves the height of
its tiles, so shorter strips compute less but take longer.
"""
from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from sluice.attention import gpu_blocks, whole_scores
from sluice.attention.gpu_blocks import CPU, SCORES, Kernel
from sluice.attention.intervals import Between, Whole, Window
from sluice.attention.whole_scores import Mask, Scores
from sluice.base.precision import wide_dtype, widened
from sluice.native import abi

# Kernels with a backward that reads o in fp32, not in q's dtype.
READ_WIDE = {CPU, SCORES}
_NOTHING = -math.inf  # lse of a row that has seen no key
# _STRIP: rows of a strip. _CUT: a block with more rows is not cut, because its
# tiles have 256 rows, and the kernel skips most tiles that no row sees.
_STRIP, _CUT = 192, 512


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scores: Scores,
            asked: Kernel = "auto", part: bool = False
            ) -> tuple[Tensor, Tensor]:
    """Returns (o, lse) over this block's keys; (0, -inf) if a row sees none."""
    kernel = kernel_of(q, k, v, mask, scores, asked, part)
    if kernel not in (SCORES, CPU):
        return gpu_blocks.forward(
            kernel, q, k, v, mask,  # type: ignore[arg-type]
            scores.scale)
    if kernel == CPU:
        run = _strips if _is_cut(q, mask) else _flash
        q, k, v = _wide(q, k, v)
        return run(q, k, v, mask, scores.scale)
    return whole_scores.forward(q, k, v, mask, scores)


def backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor,
             lse: Tensor, mask: Mask, scores: Scores, asked: Kernel = "auto",
             part: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients (dq, dk, dv) of one block, given o and lse of the
    *whole* rows (FlashAttention-2, algorithm 2: blocks are independent)."""
    kernel = kernel_of(q, k, v, mask, scores, asked, part)
    if kernel not in (SCORES, CPU):
        return gpu_blocks.backward(
            kernel, do, q, k, v, o, lse, mask,  # type: ignore[arg-type]
            scores.scale)
    if kernel == CPU:
        run = _strips_backward if _is_cut(q, mask) else _flash_backward
        do, q, k, v = _wide(do, q, k, v)
        return run(do, q, k, v, o, lse, mask, scores.scale)
    return whole_scores.backward(do, q, k, v, o, lse, mask, scores)


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Mask | Tensor, scale: float
           ) -> tuple[Tensor, Tensor]:
    """Runs the CPU kernel. A tensor `mask` [c, n] is added to the scores."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, mask is Whole.CAUSAL, scale=scale,
        attn_mask=mask if isinstance(mask, Tensor) else None)


def _flash_backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor,
                    lse: Tensor, mask: Mask | Tensor, scale: float
                    ) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        do, q, k, v, o, lse, 0.0, mask is Whole.CAUSAL, scale=scale,
        attn_mask=mask if isinstance(mask, Tensor) else None)


def _is_cut(q: Tensor, mask: Mask) -> bool:
    return mask is Whole.CAUSAL and _STRIP < q.shape[2] <= _CUT


def _strips(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float
            ) -> tuple[Tensor, Tensor]:
    found = [_flash(q[:, :, rows], k[:, :, :rows.stop], v[:, :, :rows.stop],
                    mask, scale) for rows, mask in _cut(q)]
    # o is [B, c, H, Dv] in memory, as the kernel returns it and layers need it.
    return (torch.cat([o.transpose(1, 2) for o, _ in found], 1).transpose(
        1, 2), torch.cat([lse for _, lse in found], 2))


def _strips_backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor,
                     lse: Tensor, mask: Mask, scale: float
                     ) -> tuple[Tensor, Tensor, Tensor]:
    dq: list[Tensor] = []
    dk: Tensor | None = None
    dv: Tensor | None = None
    for rows, mask in reversed(_cut(q)):
        gq, gk, gv = _flash_backward(
            do[:, :, rows], q[:, :, rows], k[:, :, :rows.stop],
            v[:, :, :rows.stop], o[:, :, rows], lse[:, :, rows], mask, scale)
        dq.append(gq)
        if dk is None or dv is None:  # the last strip sees all keys
            dk, dv = gk, gv
        else:
            dk[:, :, :rows.stop].add_(gk)
            dv[:, :, :rows.stop].add_(gv)
    return torch.cat(dq[::-1], 2), dk, dv


def _cut(q: Tensor) -> list[tuple[slice, Mask | Tensor]]:
    count = q.shape[2]
    starts = range(0, count, _STRIP)
    last = starts[-1]
    seen = _of_last_strip(last, q.dtype, q.device)
    strips = [slice(a, min(a + _STRIP, count)) for a in starts]
    return [(rows, Whole.CAUSAL if not rows.start else
             seen[:rows.stop - rows.start, last - rows.start:][
                 :, :rows.stop]) for rows in strips]


@functools.lru_cache(maxsize=1)
def _of_last_strip(last: int, dtype: torch.dtype, device: torch.device
                   ) -> Tensor:
    """Returns the mask that is added to the scores of a whole strip of rows
    from `last` on. An earlier strip's mask is this one without its first
    columns. Cached, because all blocks of a step use the same mask."""
    return torch.full((_STRIP, last + _STRIP), _NOTHING, dtype=dtype,
                      device=device).triu_(last + 1)


def merge(o: Tensor, lse: Tensor, block_o: Tensor, block_lse: Tensor) -> Tensor:
    """Merges a block into the result of earlier blocks; changes `o` in place
    and returns the new lse, in double: backward computes exp(s - lse), so each
    rounding of lse would scale a whole row of probabilities."""
    # The block's weight in the merged row; NaN if the row has seen no key.
    part = torch.sigmoid(block_lse - lse).nan_to_num_(0.0)
    o.lerp_(block_o, part.to(o.dtype)[..., None])
    return torch.logaddexp(lse, block_lse.double())


def nothing(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (o, lse) of rows that have seen no key, for `merge`."""
    return (torch.zeros(*q.shape[:-1], v.shape[-1], dtype=wide_dtype(q),
                        device=q.device),
            torch.full(q.shape[:-1], _NOTHING, dtype=torch.float64,
                       device=q.device))


def sink(o: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Adds an attention sink [H], a score without a value, to each row's
    softmax. Changes `o` in place and returns the new lse."""
    column = sinks.to(lse.dtype)[None, :, None]
    total = torch.logaddexp(lse, column)
    o.mul_(torch.exp(lse - total)[..., None].to(o.dtype))
    return total


def sink_backward(do: Tensor, o: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    share = torch.exp(sinks.to(lse.dtype)[None, :, None] - lse)
    return -(share * (do.to(o.dtype) * o).sum(dim=-1)).sum(dim=(0, 2))


def kernel_of(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scores: Scores,
              asked: Kernel = "auto", part: bool = False) -> str:
    """Returns the kernel of a block or, if `part`, of a part of a block."""
    traits = (abi.BLOCK_PART * part
              | abi.BLOCK_WINDOW * isinstance(mask, Window)
              | abi.BLOCK_INTERVALS * isinstance(mask, Between)
              | abi.BLOCK_SOFTCAP * (scores.softcap is not None))
    return gpu_blocks.kernel_for(
        asked, q.device, q.element_size() if q.dtype == v.dtype else 0,
        q.shape[-1], v.shape[-1], k.shape[2], traits)


def _wide(*tensors: Tensor) -> list[Tensor]:
    """Widens the inputs of the CPU kernel. With bf16 inputs the kernel would
    round each block's result before the blocks are summed, an error that
    attention over all keys at once does not have."""
    return [widened(t) for t in tensors]
