"""Rows of padding, by a call's 2-D attention_mask.

[Note: blind rows]
Padding on the left leaves rows that see no key. Nothing that sees a key sees
them, so they matter only to a loss that counts what they answer; the last of
them answers for the first token after the padding. Here their attention is 0,
as torch's is. transformers' eager attention makes the mean of all values of
it, those of later tokens too: where a label asks for that, it is refused.
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

# How models that are told no positions count them by a mask [B, S]. Which of
# them one does is found by running it (`ends_trial`).
COUNTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda mask: mask.cumsum(1) * mask - 1,
    lambda mask: (mask.cumsum(1) - 1).masked_fill(mask == 0, 1),
    lambda mask: (mask.cumsum(1) - 1).clamp(min=0),
)


def rows(mask: Tensor | None) -> Tensor | None:
    """Where a mask [B, S] is zero, bool; None where it says nothing."""
    if mask is None or bool(mask.all()):
        return None
    return ~mask.to(torch.bool)


def answers_as_torch(adapter: Model) -> bool:
    """Whether rows that see no key have attention 0 in the model itself."""
    return adapter.way == "registry" and (
        adapter.decoder.config._attn_implementation == "sdpa")


def check_labels(blind: Tensor | None, shifted: Tensor | None, adapter: Model
                 ) -> None:
    """Raises `Unsupported` where a row [B or 1, S] of `blind` has a label
    [B, S] and the model's own attention makes something else of such rows."""
    if blind is None or shifted is None or shifted.shape[-1] != (
            blind.shape[-1]) or answers_as_torch(adapter):
        return
    if bool((blind.to(shifted.device) & (shifted != IGNORED)).any()):
        raise _counted(adapter, "labels of")


def watch(adapter: Model, step: Step, blind: Tensor | None, hidden: Tensor
          ) -> None:
    """A loss of the decoder's answer [B, S, …] may count such rows, which only
    its gradient shows: raises `Unsupported` in backward."""
    if blind is None or not hidden.requires_grad or is_stand_in(hidden) or (
            hidden.shape[1] != blind.shape[-1]) or answers_as_torch(adapter):
        return

    def check(gradient: Tensor) -> None:
        # A loss that has overflown counts every row.
        rows = (gradient.isfinite() & (gradient != 0)).flatten(2).any(-1)
        with step.telling():
            if bool((rows & blind.to(rows.device)).any()):
                raise _counted(adapter, "a loss that counts")

    hidden.register_hook(check)


def check_whole(call: Call, stream: Stream, adapter: Model,
                shifted: Tensor | None, foreign: bool) -> None:
    """After a call in which head and loss ran whole. The gradient says which
    rows were counted by a head that is not a language model's."""
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
        "after padding on the left is answered by one", "set the labels of "
        "padding and of the first token after it to -100 (in a loss of your "
        "own leave such rows out), or load the model with "
        "attn_implementation='sdpa'")
