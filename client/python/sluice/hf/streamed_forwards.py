"""Decides which forwards of a model are streamed and which run unstreamed, and
refuses those that would train unstreamed without a notice.

[Note: packed documents] Trainers pass `cu_seq_lens_q`, `cu_seq_lens_k` and
`seq_idx` for kernels of variable length, in addition to position_ids that
restart. transformers finds documents in position_ids, so the mask separates
them. The other arguments must agree with position_ids, and are removed from the
call: a layer that runs on one chunk could not use them. position_ids that jump
to a number other than 0 mark documents too, but only if no cache is made.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sluice.base import argument_table
from sluice.base.errors import Unsupported
from sluice.node.calls import Call
from sluice.node.streamed import Stream

# PEFT's adapters that pass keys and values to each layer, as a cache.
_GIVE_CACHES = frozenset({"PREFIX_TUNING", "CARTRIDGE"})
# Arguments with cumulative lengths [documents + 1] over all rows.
_LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k")


def input_of(given: dict[str, Any]) -> Tensor | None:
    ids = given.get("input_ids")
    return given.get("inputs_embeds") if ids is None else ids


def is_streamed(call: Call, stream: Stream, module: nn.Module,
                given: dict[str, Any]) -> bool:
    """Returns whether a call is streamed: in training, with labels, or without
    a cache. A call that passes a cache is not; in training it is refused."""
    x = input_of(given)
    if not isinstance(x, Tensor) or x.dim() < 2:
        return False
    for name in argument_table.those("cache"):
        if given.get(name) is not None:
            if module.training and torch.is_grad_enabled():
                raise Unsupported(module, f"{name} in training (PEFT's prefix "
                                  "tuning passes them)", "train without a "
                                  "cache: with LoRA, say, or prompt tuning; or "
                                  "unstream()")
            return False
    if module.training or call.has_labels:
        return True
    cache = argument_table.wants(module, given, "use_cache")
    if cache and given.get("use_cache") is None and torch.is_grad_enabled():
        stream.say_once(
            f"{type(module).__name__} is in eval mode and makes a cache: "
            "it is not streamed; pass use_cache=False, or call train()")
    return not cache


def refuse_call(module: nn.Module, given: dict[str, Any]) -> None:
    name = type(module).__name__
    if parametrize._cache_enabled:
        raise Unsupported(name, "parametrize.cached(): what is cached without "
                          "a gradient would be used with one", "leave it out")
    if argument_table.wants(module, given, "output_attentions"):
        raise Unsupported(name, "output_attentions", "leave it out")
    mask = given.get("attention_mask")
    if isinstance(mask, dict) or (isinstance(mask, Tensor) and mask.dim() != 2):
        raise Unsupported(
            name, "an attention_mask that is not [B, S]", "describe documents "
            "by position_ids that restart, padding by a 2-D mask")
    if isinstance(mask, Tensor):
        _check_mask(name, mask, input_of(given).shape[1])


def _check_mask(name: str, mask: Tensor, length: int) -> None:
    if mask.shape[1] != length:
        raise Unsupported(name, f"an attention_mask of {mask.shape[1]} columns "
                          f"for {length} tokens", "pass one per token")
    # In transformers each value but 0 marks a token. In a mask that is added to
    # scores other values mark keys to leave out, and models that compute
    # positions from a mask add the values up.
    other = mask[(mask != 0) & (mask != 1)]
    if other.numel():
        raise Unsupported(name, f"an attention_mask with {float(other[0]):g}, "
                          "neither 0 nor 1", "pass 1 for tokens and 0 for "
                          "padding: (mask == 0).long() if it adds to scores; "
                          "mark documents by position_ids that restart")


def refuse_adapters(model: nn.Module) -> None:
    active = getattr(model, "active_adapters", ())
    for name in active if isinstance(active, (list, tuple)) else ():
        kind = getattr(model.peft_config[name], "peft_type", None)
        kind = str(getattr(kind, "value", kind))
        if kind in _GIVE_CACHES:
            raise Unsupported(
                f"PEFT's adapter '{name}' ({kind.lower()})", "keys and values "
                "of its own, which come as a cache", "train with LoRA, say, "
                "or prompt tuning, whose rows are embeddings")


def take_documents(module: nn.Module, given: dict[str, Any]) -> Tensor | None:
    """Removes descriptions of documents from `given`, except position_ids.
    Returns the first row [B, S] of each row's document, if any. Raises
    `Unsupported` with an attention_mask, or without position_ids that agree."""
    said = {name: given.pop(name, None)
            for name in argument_table.those("packed")}
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


def parts_of(given: dict[str, Any], stream: Stream) -> Tensor | None:
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
            "documents are kept apart, as in transformers without a cache; "
            "pass use_cache=False to say so")
        return None
    row = torch.arange(begins.shape[1], device=begins.device)
    return torch.where(begins, row, 0).cummax(dim=1).values


def refuse_documents(module: nn.Module, given: dict[str, Any],
                     documents: Tensor | None) -> None:
    """Raises `Unsupported` if rows are packed, by `documents` or by
    position_ids: a state that layers carry does not end with a document, and
    layers that run whole may carry a state."""
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
    """Returns where documents begin, bool [B, S], as in transformers."""
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
