"""Rows of padding, by a call's 2-D attention_mask.

[Note: blind rows]
Padding on the left leaves rows that see no key. Nothing that sees a key sees
them, so they matter only to a loss that counts what they answer; the last of
them answers for the first token after the padding. Here their attention is 0,
as torch's is. transformers' eager attention makes the mean of all values of
it, those of later tokens too: where a label asks for that, it is refused.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sluice.errors import Unsupported

if TYPE_CHECKING:
    from sluice.adapters.hf import Adapter


def rows(mask: Tensor | None) -> Tensor | None:
    """Where a mask [B, S] is zero, bool; None where it says nothing."""
    if mask is None or bool(mask.all()):
        return None
    return ~mask.to(torch.bool)


def check_labels(blind: Tensor | None, shifted: Tensor | None, ignored: int,
                 adapter: Adapter) -> None:
    """Raises `Unsupported` where a row [B or 1, S] of `blind` has a label
    [B, S] and the model's own attention makes something else of such rows."""
    if blind is None or shifted is None or shifted.shape[-1] != (
            blind.shape[-1]):
        return
    if adapter.way == "registry" and (
            adapter.decoder.config._attn_implementation == "sdpa"):
        return
    if bool((blind.to(shifted.device) & (shifted != ignored)).any()):
        raise Unsupported(
            adapter.name, "labels of rows that attend to no key: the first "
            "token after padding on the left is one", "set the labels of "
            f"padding and of the first token after it to {ignored}, or load "
            "the model with attn_implementation='sdpa'")


__all__ = ["check_labels", "rows"]
