"""Replaces attention that a layer computes with torch: by
F.scaled_dot_product_attention, or by matrix products (`eager_attention`).

Models that do not call attention through transformers' registry, or that make
their own masks, still call torch for causal attention. Inside a streamed layer
the stream computes the results of those calls here.
"""
from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sluice.attention import blocks
from sluice.attention.over_chunks import one_dtype, refuse_dropout
from sluice.base.errors import Unsupported
from sluice.node import eager_attention
from sluice.node.layer import running
from sluice.node.step import current


class Cut(TorchFunctionMode):
    """Within the block, the stream computes the running layer's attention."""

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if any(issubclass(t, eager_attention.Scores) for t in types):
            return eager_attention.apply(func, args, kwargs)
        scores = eager_attention.product(func, args, kwargs)
        plain = None if scores is None else current().plain
        if plain is not None:
            plain.writes_scores()
        return func(*args, **kwargs) if scores is None else scores


def _attention(query: Tensor, key: Tensor, value: Tensor,
               attn_mask: Tensor | None = None, dropout_p: float = 0.0,
               is_causal: bool = False, scale: float | None = None,
               enable_gqa: bool = False) -> Tensor:
    """Stands in for torch's scaled_dot_product_attention, for q [B, H, c, D],
    k [B, Hkv, c, D], v [B, Hkv, c, Dv] of one chunk: [B, H, c, Dv]."""
    call = running()
    name = type(call.module).__name__
    if dropout_p:
        refuse_dropout(call.module, dropout_p)
    if query.dim() != 4 or key.shape[2] != query.shape[2]:
        raise Unsupported(name, f"attention of q {tuple(query.shape)} to k "
                          f"{tuple(key.shape)} in one chunk")
    # Models do not pass is_causal for a single row, which sees itself either
    # way; the probe has checked calls with more rows.
    one = attn_mask is None and query.shape[2] == 1
    seen = current().mask_of(call.module, attn_mask, is_causal or one)
    scores = blocks.Scores(query.shape[-1] ** -0.5 if scale is None else scale)
    query, key, value = one_dtype(query, key, value)
    return call.attend(query, key, value, seen, scores, None)
