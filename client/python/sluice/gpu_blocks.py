"""One block of attention on a CUDA device, by one of ATen's kernels: for bf16
and fp16 cuDNN's on Hopper, else flash, efficient for fp32, or what `kernel` of
stream() asks for. See `blocks`, which has shapes and joins.

Flash and cuDNN take and give o in the dtype of q: a block's o is rounded to that
before it is joined, and so is the whole row's for backward, where the CPU's
blocks have both in fp32. The joins themselves are in fp32 as there.

[Note: efficient] In bf16 and fp16 its backward reads o itself, by a row stride
of heads * width whatever the tensor's is (o_strideM in torch's mem_eff_attention/
kernel_backward.h), and says nothing where o lies otherwise: an H100 gave a dq
that was 5 times its norm off. In fp32 torch multiplies o and do before the
kernel. So o comes in rows there, rows before heads; do is copied by torch, and
the strides of q, k and v are read.

[Note: cuDNN] Its operators do not look at what they are given: fp32 would be
read as fp16, and a backward's plan is kept by the sizes and strides of q, k and
v alone, so that another layout of o or do would be read by it wrongly. So dtypes
are refused here, and everything comes in one layout, rows before heads. One key
is refused by cuDNN, and goes to flash; so do windows, which torch does not hand
on to cuDNN. Seeds are not read without dropout, but Blackwell's path converts
them, and fails where there are none.
"""
from __future__ import annotations

import functools
import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sluice.errors import Unsupported
from sluice.intervals import Whole, Window
from sluice.precision import widened

Kernel = Literal["auto", "flash", "efficient", "cudnn"]

_HALVES = (torch.bfloat16, torch.float16)
_TAKES = {"flash": _HALVES, "efficient": (torch.float32, *_HALVES),
          "cudnn": _HALVES}
# Heads are a multiple of the one, at most so wide.
_WIDTH, _WIDEST = 8, {"flash": 256, "efficient": 256, "cudnn": 128}
_LSE_ROWS = 32  # the efficient kernel's log-sum-exp has a multiple of rows


def kernel_for(q: Tensor, keys: int, mask: Whole | Window, asked: Kernel
               ) -> str | None:
    """What computes a block of rows like q [B, H, c, D] and so many keys; None
    where there is no kernel. Raises `Unsupported` where one was asked for by its
    name and does not take such rows."""
    kernel = _by_itself(q) if asked == "auto" else asked
    refusal = _refusal(kernel, q)
    if refusal is not None:
        if asked == "auto":
            return None
        raise Unsupported(f"kernel {asked}", refusal, 'take kernel="auto"')
    if kernel == "cudnn" and (keys == 1 or isinstance(mask, Window)):
        return "flash"
    return None if kernel == "efficient" and isinstance(mask, Window) else (
        kernel)


def _by_itself(q: Tensor) -> str:
    """cuDNN's on a GPU of compute capability 9.0: on an H100, over 65,536 rows
    of 16 heads of 128, it had 741 TFLOP/s forward and 639 back, flash 376 and
    335 (`verify --python`, deploy/bundle/measured). No other GPU was asked."""
    if q.dtype not in _HALVES:
        return "efficient"
    hopper = _capability(q.device.index) == (9, 0)
    return "cudnn" if hopper and _refusal("cudnn", q) is None else "flash"


@functools.cache
def _capability(gpu: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(gpu)


def check_width(width: int, asked: Kernel) -> None:
    """Raises `Unsupported` for a kernel that was asked for by its name and does
    not take heads so wide."""
    refusal = None if asked == "auto" else _too_wide(asked, width)
    if refusal is not None:
        raise Unsupported(f"kernel {asked}", refusal, 'take kernel="auto"')


def _refusal(kernel: str, q: Tensor) -> str | None:
    if q.dtype not in _TAKES[kernel]:
        return f"attention in {str(q.dtype).removeprefix('torch.')}"
    return _too_wide(kernel, q.shape[-1])


def _too_wide(kernel: str, width: int) -> str | None:
    if width % _WIDTH == 0 and width <= _WIDEST[kernel]:
        return None
    return (f"heads of {width}: they are a multiple of {_WIDTH}, at most "
            f"{_WIDEST[kernel]}")


def forward(kernel: str, q: Tensor, k: Tensor, v: Tensor,
            mask: Whole | Window, scale: float) -> tuple[Tensor, Tensor]:
    """(o, lse) of the block alone, fp32."""
    causal = mask is Whole.CAUSAL
    if kernel == "flash":
        o, lse = torch.ops.aten._flash_attention_forward(
            *_rows_first(q, k, v), None, None, q.shape[2], k.shape[2], 0.0,
            causal, False, scale=scale, **_window(mask))[:2]
        return widened(o.transpose(1, 2)), lse
    if kernel == "cudnn":
        o, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(
            *_in_rows(q, k, v), None, True, 0.0, causal, False,
            scale=scale)[:2]
        return widened(o), lse.view(q.shape[:-1])
    o, lse = torch.ops.aten._scaled_dot_product_efficient_attention(
        *_alike(q, k, v), None, True, 0.0, causal, scale=scale)[:2]
    return widened(o), lse[:, :, :q.shape[2]]


def backward(kernel: str, do: Tensor, q: Tensor, k: Tensor, v: Tensor,
             o: Tensor, lse: Tensor, mask: Whole | Window, scale: float
             ) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of the block, given the whole row's o and lse."""
    causal, do, o = mask is Whole.CAUSAL, do.to(q.dtype), o.to(q.dtype)
    if kernel == "flash":
        found = torch.ops.aten._flash_attention_backward(
            *_rows_first(do, q, k, v, o), lse.contiguous(), None, None,
            q.shape[2], k.shape[2], 0.0, causal, None, None, scale=scale,
            **_window(mask))
        return tuple(g.transpose(1, 2) for g in found)
    if kernel == "cudnn":
        seed = torch.empty((), dtype=torch.long, device=q.device)
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            *_in_rows(do, q, k, v, o), lse.contiguous()[..., None], seed, seed,
            None, None, None, q.shape[2], k.shape[2], 0.0, causal, scale=scale)
    # The rows that are not there are infinite, and rows are contiguous.
    padded = F.pad(lse, (0, -lse.shape[2] % _LSE_ROWS),
                   value=math.inf).contiguous()
    [o] = _in_rows(o)
    dq, dk, dv, _ = (
        torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            do, *_alike(q, k, v), None, o, padded, None, None, 0.0,
            [True, True, True, False], causal, scale=scale))
    return dq, _per_group(dk, k.shape[1]), _per_group(dv, v.shape[1])


def _window(mask: Whole | Window) -> dict[str, int]:
    """As flash counts it; what is not said is without a bound."""
    if not isinstance(mask, Window):
        return {}
    return {"window_size_left": mask.left,
            "window_size_right": -1 if mask.right is None else mask.right}


def _rows_first(*tensors: Tensor) -> list[Tensor]:
    """[B, c, H, D], the last dimension contiguous."""
    return [_contiguous_rows(t).transpose(1, 2) for t in tensors]


def _in_rows(*tensors: Tensor) -> list[Tensor]:
    """[B, H, c, D] that lie as [B, c, H, D]; see the notes."""
    return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]


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
