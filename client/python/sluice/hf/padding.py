"""Handles padding, which a call's 2-D attention_mask describes.

[Note: blind rows]
Left padding leaves rows that see no key. No row with keys sees them, so they
matter only to a loss that counts their output; the last of them predicts the
first token after the padding. Here their attention is 0, as in torch's SDPA.
transformers' eager attention averages all values for them, also of later
tokens; with such a model, a call in which such a row has a label is refused.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sluice.base.argument_table import IGNORED
from sluice.base.errors import Unsupported
from sluice.base.model_protocols import Model
from sluice.node.calls import Call
from sluice.node.hidden_rows import is_stand_in
from sluice.node.step import Step
from sluice.node.streamed import Stream

# Ways in which models compute positions from a mask [B, S] if none are passed;
# `ends_trial` finds a model's way.
COUNTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda mask: mask.cumsum(1) * mask - 1,
    lambda mask: (mask.cumsum(1) - 1).masked_fill(mask == 0, 1),
    lambda mask: (mask.cumsum(1) - 1).clamp(min=0),
)


def rows(mask: Tensor | None) -> Tensor | None:
    """Returns where a mask [B, S] is zero, bool; None if it has no zeros."""
    if mask is None or bool(mask.all()):
        return None
    return ~mask.to(torch.bool)


def answers_as_torch(adapter: Model) -> bool:
    """Returns whether rows that see no key have attention 0 in the model."""
    return adapter.way == "registry" and (
        adapter.decoder.config._attn_implementation == "sdpa")


def check_labels(blind: Tensor | None, shifted: Tensor | None, adapter: Model
                 ) -> None:
    """Raises `Unsupported` if a row [B or 1, S] of `blind` has a label [B, S]
    and the model's own attention computes something else for such rows."""
    if blind is None or shifted is None or shifted.shape[-1] != (
            blind.shape[-1]) or answers_as_torch(adapter):
        return
    if bool((blind.to(shifted.device) & (shifted != IGNORED)).any()):
        raise _counted(adapter, "labels of")


def watch(adapter: Model, step: Step, blind: Tensor | None, hidden: Tensor
          ) -> None:
    """Makes backward raise `Unsupported` if a loss of the decoder's output [B,
    S, …] counts blind rows, which only the gradient shows."""
    if blind is None or not hidden.requires_grad or is_stand_in(hidden) or (
            hidden.shape[1] != blind.shape[-1]) or answers_as_torch(adapter):
        return

    def check(gradient: Tensor) -> None:
        # A loss that overflowed has non-finite gradients in every row.
        rows = (gradient.isfinite() & (gradient != 0)).flatten(2).any(-1)
        with step.telling():
            if bool((rows & blind.to(rows.device)).any()):
                raise _counted(adapter, "a loss that counts")

    hidden.register_hook(check)


def check_whole(call: Call, stream: Stream, adapter: Model,
                shifted: Tensor | None, foreign: bool) -> None:
    """Checks labels after a call in which head and loss ran whole. For a head
    of unknown kind (`foreign`) labels do not show which rows count: `watch`
    checks the gradient, and without gradients a warning is printed."""
    if not foreign:
        check_labels(call.blind, shifted, adapter)
    elif call.blind is not None and not torch.is_grad_enabled() and (
            not answers_as_torch(adapter)):
        stream.say_once(
            "rows of padding on the left, which attend to no key, answer as "
            "with attn_implementation='sdpa' here: a loss that counts them is "
            "another one than the model's")


def _counted(adapter: Model, what: str) -> Unsupported:
    return Unsupported(
        adapter.name, f"{what} rows that attend to no key: the first token "
        "after padding on the left is predicted by one", "set the labels of "
        "padding and of the first token after it to -100 (in a loss of your "
        "own leave such rows out), or load the model with "
        "attn_implementation='sdpa'")
