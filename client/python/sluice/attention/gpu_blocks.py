"""Chooses the kernel for one block of attention, and runs ATen's kernels for
CUDA devices. `blocks` describes the shapes and merges the blocks.

Flash and cuDNN take and return o in q's dtype. So each block's o is rounded to
that dtype before the merge in fp32, and the whole row's o before backward.

[Note: efficient] In bf16 and fp16 the backward of the efficient kernel reads o
with a row stride of heads * width, whatever the tensor's stride (o_strideM in
torch's mem_eff_attention/kernel_backward.h), and does not check that stride:
with another layout an H100 returned a dq with an error of 5 times its norm. So
o is passed with rows before heads in memory. torch copies `do`, and the kernel
reads the strides of q, k and v. In fp32 torch itself reads o, in any layout.

[Note: cuDNN] cuDNN's operators do not check their inputs: fp32 would be read
as fp16 (`kernel_for` refuses it), and plans of backward are cached by the
sizes and strides of q, k and v alone, so that another layout of o or do would
be misread. So all tensors have rows before heads in memory. Seeds are not read
without dropout, but Blackwell's path converts them and fails if they are
missing.
"""
from __future__ import annotations

import ctypes
import functools
import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import attention
from torch.nn import functional as F

from sluice.attention.intervals import Whole, Window
from sluice.base.errors import Status, Unsupported
from sluice.base.precision import widened
from sluice.native import abi, daemon

Kernel = Literal["auto", "flash", "efficient", "cudnn"]

CPU, SCORES = "flash on the CPU", "whole scores"
_LSE_ROWS = 32  # the efficient kernel pads lse to a multiple of so many rows


def kernel_for(asked: Kernel, device: torch.device, element_bytes: int,
               width: int, value_width: int, keys: int = 2, traits: int = 0
               ) -> str:
    """Returns the name of the kernel that computes a block, by the rule of
    sluice_attention_kernel (client/sluice.h), which sluice-train uses too.

    Args:
        element_bytes: bytes of an element; 0 if the dtypes of q and v differ.
        width, value_width: head dimensions of q and k, and of v.
        traits: flags `abi.BLOCK_...`.

    Raises:
        Unsupported: the kernel asked for by name does not support the dtype or
            the heads, or is cuDNN's in torch's deterministic mode.
    """
    capability = -1 if device.type == "cpu" else _capability(device.index)

    def chosen(asked: Kernel) -> str:
        return _chosen(asked, capability, element_bytes, width, value_width,
                       min(keys, 2), traits, _activated())

    if not _is_deterministic():
        return chosen(asked)
    if asked == "cudnn":
        raise Unsupported("kernel cudnn", "torch's deterministic mode",
                          'take kernel="auto"')
    kernel = chosen(asked)
    return chosen("flash") if kernel == "cudnn" else kernel


def _is_deterministic() -> bool:
    """Returns whether torch's deterministic mode is on. In it the backwards of
    flash and efficient are deterministic; torch counts cuDNN's as
    nondeterministic (sdp_utils.cpp, check_cudnn_deterministic)."""
    return torch.are_deterministic_algorithms_enabled() and (
        not torch.is_deterministic_algorithms_warn_only_enabled())


@functools.cache
def _chosen(asked: Kernel, capability: int, element_bytes: int, width: int,
            value_width: int, keys: int, traits: int, flash: int) -> str:
    library, name = daemon.load_library(), ctypes.c_char_p()
    status = library.attention_kernel(abi.AttentionBlock(
        kernel=asked.encode(), capability=capability, keys=keys,
        element_bytes=element_bytes, head_dim=width, value_dim=value_width,
        traits=traits, flash=flash), name)
    if status == Status.UNIMPLEMENTED:
        raise Unsupported(f"kernel {asked}", library.error(status).line,
                          'take kernel="auto"')
    library.check(status)
    assert name.value is not None
    return name.value.decode()


@functools.cache
def _capability(gpu: int) -> int:
    major, minor = torch.cuda.get_device_capability(gpu)
    return 10 * major + minor


def _activated() -> int:
    """Returns the version of FlashAttention that the user has activated by
    torch.nn.attention.activate_flash_attention_impl; 0: none."""
    active = getattr(attention, "current_flash_attention_impl", lambda: None)()
    return {"FA3": 3, "FA4": 4}.get(active or "", 0)


def forward(kernel: str, q: Tensor, k: Tensor, v: Tensor,
            mask: Whole | Window, scale: float) -> tuple[Tensor, Tensor]:
    causal = mask is Whole.CAUSAL
    if kernel.startswith("flash"):
        o, lse = torch.ops.aten._flash_attention_forward(
            *_rows_first(q, k, v), None, None, q.shape[2], k.shape[2], 0.0,
            causal, False, scale=scale, **_window(mask))[:2]
        return widened(o.transpose(1, 2)), lse
    if kernel == "cudnn":
        o, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(
            *_in_rows(q, k, v), None, True, 0.0, causal, False, scale=scale)[:2]
        return widened(o), lse.view(q.shape[:-1])
    o, lse = torch.ops.aten._scaled_dot_product_efficient_attention(
        *_alike(q, k, v), None, True, 0.0, causal, scale=scale)[:2]
    return widened(o), lse[:, :, :q.shape[2]]


def backward(kernel: str, do: Tensor, q: Tensor, k: Tensor, v: Tensor,
             o: Tensor, lse: Tensor, mask: Whole | Window, scale: float
             ) -> tuple[Tensor, Tensor, Tensor]:
    causal, do, o = mask is Whole.CAUSAL, do.to(q.dtype), o.to(q.dtype)
    if kernel.startswith("flash"):
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
    # The efficient kernel needs infinite lse in padding, and contiguous rows.
    padded = F.pad(lse, (0, -lse.shape[2] % _LSE_ROWS),
                   value=math.inf).contiguous()
    [o] = _in_rows(o)
    dq, dk, dv, _ = (
        torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            do, *_alike(q, k, v), None, o, padded, None, None, 0.0,
            [True, True, True, False], causal, scale=scale))
    return dq, _per_group(dk, k.shape[1]), _per_group(dv, v.shape[1])


def _window(mask: Whole | Window) -> dict[str, int]:
    if not isinstance(mask, Window):
        return {}
    return {"window_size_left": mask.left,
            "window_size_right": -1 if mask.right is None else mask.right}


def _rows_first(*tensors: Tensor) -> list[Tensor]:
    """Returns views [B, c, H, D] with a contiguous last dimension."""
    return [_contiguous_rows(t).transpose(1, 2) for t in tensors]


def _in_rows(*tensors: Tensor) -> list[Tensor]:
    """Returns tensors [B, H, c, D] that are [B, c, H, D] in memory."""
    return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _alike(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Repeats k and v for each head of q: efficient has no grouped heads."""
    group = q.shape[1] // k.shape[1]
    return [_contiguous_rows(t) for t in (
        q, *(t if group == 1 else t.repeat_interleave(group, dim=1)
             for t in (k, v)))]


def _per_group(x: Tensor, groups: int) -> Tensor:
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).sum(2)
