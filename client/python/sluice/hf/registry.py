"""The attention and mask functions that transformers knows as `sluice`. This
package changes nothing else in transformers globally. Models call the functions
only while a step is engaged (`step.Step.engaged`)."""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    and_masks,
    padding_mask_function,
)

from sluice.attention import blocks, masks
from sluice.attention.intervals import Intervals
from sluice.attention.over_chunks import one_dtype, refuse_dropout
from sluice.base import argument_table
from sluice.base.errors import Unsupported
from sluice.node import layer, step

NAME = "sluice"

_SAID = argument_table.those("said")


def register() -> None:
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
              attention_mask: Tensor | None, scaling: float | None = None,
              dropout: float = 0.0, sliding_window: int | None = None,
              softcap: float | None = None, s_aux: Tensor | None = None,
              is_causal: bool | None = None, **rest: Any
              ) -> tuple[Tensor, None]:
    """transformers' attention interface: q [B, H, c, D], k [B, Hkv, c, D] and v
    [B, Hkv, c, Dv] of one chunk -> ([B, c, H, Dv], None)."""
    call, here = layer.running(), step.current()
    name = type(module).__name__
    if call is None or here is None:
        raise Unsupported(name, "attention outside the decoder layers, or in a "
                          "layer whose forward came after sluice.stream",
                          "unstream(), change the model, and stream it again")
    if dropout:
        refuse_dropout(module, dropout)
    if rest.get("output_attentions"):
        raise Unsupported(name, "output_attentions",
                          "attention weights never exist here; leave it out")
    unknown = [k for k, v in rest.items() if v is not None and k not in _SAID]
    if unknown:
        raise Unsupported(name, f"attention's argument '{unknown[0]}'")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    seen = here.mask_of(module, attention_mask, bool(is_causal))
    _check_shapes(name, query, key, sliding_window, seen)
    query, key, value = one_dtype(query, key, value)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    o = call.attend(query, key, value, seen,
                    blocks.Scores(float(scale), softcap), s_aux)
    return o.transpose(1, 2).contiguous(), None


def mask(batch_size: int, mask_function, attention_mask: Tensor | None = None,
         **rest: Any) -> Tensor:
    """transformers' mask interface: returns a marker of the intervals of the
    model's `mask_function` (see [Note: mask markers] in step)."""
    here = step.current()
    if here is None:
        raise Unsupported("attention mask", "a mask outside a streamed step")
    here.asked = True
    # While `own` runs, the configs name the model's own attention.
    own_function, config = mask_function, rest["config"]

    def own() -> Any:
        return ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation](
            batch_size=batch_size, mask_function=own_function,
            attention_mask=attention_mask, **rest)

    if attention_mask is not None and not bool(attention_mask.all()):
        seen = attention_mask.to(torch.bool)
        if _has_holes(seen):
            raise Unsupported(
                "attention_mask", "zeros between ones (holes)", "pad at the "
                "ends of rows, or leave the padding out of the batch")
        mask_function = and_masks(mask_function, padding_mask_function(seen))
    heads = getattr(config, "num_attention_heads", None) or 1
    find = functools.partial(masks.find, mask_function, batch_size, here.length,
                             int(heads), here.device, here.padding)
    if masks.is_pure(mask_function) and here.padding is None:
        find = functools.partial(here.found_once, (
            mask_function.__code__, batch_size, here.length, heads), find)
    return here.marker(batch_size, find, own)


def _has_holes(seen: Tensor) -> bool:
    """Returns whether a row of seen [B, S] has False between two True."""
    told = seen.int()
    before = told.cummax(1).values
    after = told.flip(1).cummax(1).values.flip(1)
    return bool((before + after > told + 1).any())


def _check_shapes(name: str, query: Tensor, key: Tensor,
                  window: int | None, seen: Intervals) -> None:
    if key.shape[2] != query.shape[2]:
        raise Unsupported(name, f"{query.shape[2]} rows of q against "
                          f"{key.shape[2]} of k in one chunk")
    if window is not None and seen.widest > window:
        raise Unsupported(
            name, f"a sliding_window of {window} whose mask reaches "
            f"{seen.widest} tokens back: its attention implementations "
            "disagree", "set config.sliding_window to what is meant")
