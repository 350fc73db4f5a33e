"""Decides which forwards of a model are streamed and which run unstreamed, and
refuses those that would train unstreamed without a notice."""
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


def input_of(given: dict[str, Any]) -> Tensor | None:
    ids = given.get("input_ids")
    return given.get("inputs_embeds") if ids is None else ids


def is_streamed(call: Call, stream: Stream, module: nn.Module,
                given: dict[str, Any]) -> bool:
    """Returns whether a call is streamed: in training, with labels, or if it
    makes no cache. Calls that are passed a cache are not; in training they
    raise `Unsupported`."""
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
    # transformers takes any value but 0 for a token, but in a mask that is
    # added to scores such values mark keys to leave out, and models that
    # compute positions from a mask add them up.
    other = mask[(mask != 0) & (mask != 1)]
    if other.numel():
        raise Unsupported(name, f"an attention_mask with {float(other[0]):g}, "
                          "neither 0 nor 1", "pass 1 for tokens and 0 for "
                          "padding, (mask == 0).long() of one that is added to "
                          "scores; tell documents by position_ids that restart")


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
