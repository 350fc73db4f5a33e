"""Checks descriptions of packed documents. Trainers pass `cu_seq_lens_q`,
`cu_seq_lens_k` and `seq_idx` for kernels of variable length, in addition to
position_ids that restart.

transformers finds documents in position_ids, so the mask separates them. The
other descriptions must agree with position_ids, and are removed from the call:
a layer that runs on one chunk could not use them. position_ids that jump to a
number other than 0 mark documents too, but only if no cache is made.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sluice.base import argument_table
from sluice.base.errors import Unsupported
from sluice.node.streamed import Stream

# Cumulative lengths [documents + 1] over all rows; seq_idx is [B, S].
_LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k")


def take(module: str, given: dict[str, Any]) -> Tensor | None:
    """Removes the descriptions of documents other than position_ids from
    `given`. Returns the first row [B, S] of each row's document; None without
    such descriptions. Raises `Unsupported` if position_ids disagree or are
    missing, or if there is an attention_mask."""
    said = {name: given.pop(name, None) for name in argument_table.those("packed")}
    said = {name: value for name, value in said.items()
            if isinstance(value, Tensor)}
    if not said:
        return None
    name = next(iter(said))
    positions = given.get("position_ids")
    if positions is None:
        raise Unsupported(module, f"{name} without position_ids",
                          "pass position_ids that restart at each document")
    if given.get("attention_mask") is not None:
        raise Unsupported(module, f"{name} beside an attention_mask, with "
                          "which transformers does not look for documents",
                          "leave the attention_mask out")
    x = given.get("input_ids")
    x = given["inputs_embeds"] if x is None else x
    if positions.dim() != 2 or positions.shape[1] != x.shape[1]:
        raise Unsupported(module, f"{name} with position_ids of shape "
                          f"{tuple(positions.shape)}", "pass them as [B, S]")
    starts = _starts(positions.expand(x.shape[0], -1))
    for name, value in said.items():
        if not _agrees(name, value.to(starts.device), starts):
            raise Unsupported(
                module, f"{name}, which does not say what position_ids say: "
                f"{int(starts.sum())} documents that begin where positions do "
                "not go on by one", "make both from the same lengths")
    row = torch.arange(starts.shape[1], device=starts.device)
    return torch.where(starts, row, 0).cummax(dim=1).values


def skips(given: dict[str, Any], stream: Stream) -> Tensor | None:
    """Returns the first row [B, S] of each row's part if position_ids of a call
    that would make a cache jump to a number other than 0, or begin with several
    0; else None.

    Without a cache transformers takes such parts for documents that do not see
    each other. With a cache, or any attention_mask, it takes them for one
    sequence, as training on positions of longer sequences (PoSE) needs.
    Positions that restart at 0 mean documents, which are kept apart; several
    zeros at the beginning of a row do not.
    """
    positions = given.get("position_ids")
    if given.get("attention_mask") is not None or not isinstance(
            positions, Tensor) or positions.dim() != 2:
        return None
    begins = _starts(positions)
    begins[:, 0] = False
    if not bool(begins.any()):
        return None
    # Several zeros at a row's beginning are padding without a mask, or all of
    # its positions; not documents of one token.
    begins &= (positions != 0) | (positions.cummax(-1).values <= 0)
    if not bool(begins.any()):
        stream.say_once(
            "position_ids begin at 0 again, in a call that would make a cache: "
            "documents are kept apart, as transformers does without one "
            "(use_cache=False says so)")
        return None
    row = torch.arange(begins.shape[1], device=begins.device)
    return torch.where(begins, row, 0).cummax(dim=1).values


def refuse(module: str, given: dict[str, Any],
           documents: Tensor | None) -> None:
    """Raises `Unsupported` if rows are packed, by the `documents` of `take` or
    by position_ids: a state that layers carry does not end with a document, and
    layers that run whole may have one."""
    positions = given.get("position_ids")
    if documents is not None or (
            given.get("attention_mask") is None
            and isinstance(positions, Tensor) and positions.dim() == 2
            and bool(_starts(positions)[:, 1:].any())):
        raise Unsupported(module, "packed documents in layers that hand a "
                          "state along the sequence, or that run whole",
                          "give each document a row of its own, padded by an "
                          "attention_mask")


def _starts(positions: Tensor) -> Tensor:
    """Returns where documents begin, bool [B, S], as transformers finds
    them."""
    starts = torch.ones_like(positions, dtype=torch.bool)
    starts[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    return starts


def _agrees(name: str, said: Tensor, starts: Tensor) -> bool:
    if name in _LENGTHS:
        ends = torch.tensor([starts.numel()], device=starts.device)
        wanted = torch.cat([starts.flatten().nonzero()[:, 0], ends])
        return said.shape == wanted.shape and bool((said == wanted).all())
    if said.shape != starts.shape:
        return False
    other = torch.ones_like(starts)
    other[:, 1:] = said[:, 1:] != said[:, :-1]
    return bool((other == starts).all())
