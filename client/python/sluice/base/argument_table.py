"""Table of the known arguments of models and layers, by name. It states which
dimension has rows, because a tensor's shape does not: another dimension may
happen to be as long as the sequence."""
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from sluice.base.arguments import Kind, a

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
IGNORED = -100  # label of a row that is left out of the loss
# Dictionary argument by which layers hand on tensors [B, heads, S, D].
HANDED = "shared_kv_states"

MODULE = a(nn.Module, "a torch.nn.Module")
# For a group that this rank is not in, torch returns an integer.
GROUP = Kind(lambda v: isinstance(v, dist.ProcessGroup),
             "a torch.distributed group that this rank is in, as "
             "mesh['sp'].get_group() is")
ROWS_OF_TOKENS = Kind(
    lambda v: isinstance(v, Tensor) and v.dim() == 2 and not (
        v.is_floating_point() or v.is_complex() or v.dtype == torch.bool),
    "whole numbers [B, S]")


class Argument(NamedTuple):
    """Properties of one argument."""

    # Dimension of the rows in a layer's argument: 1 for [B, S, ...]; negative
    # if the number of leading dimensions varies.
    rows: int | None = None
    # Dimension along which the ranks of a group split a decoder's argument.
    dealt: int | None = None
    cut: bool = False  # code before and after the layers may get a chunk of it
    mask: bool = False
    cache: bool = False  # a cache, which streaming does not support
    packed: bool = False  # only describes packed documents
    # Attention may ignore the argument: it is for other kernels or caches, or
    # repeats the mask.
    said: bool = False
    loss: bool = False  # the chunked head and loss support it
    agreed: bool = False  # the error names it if ranks pass different values


_SAID = Argument(said=True)
_BOTH = Argument(said=True, loss=True)
_CACHE = Argument(cache=True)
_MASK = Argument(mask=True)

ARGUMENTS: dict[str, Argument] = {
    "input_ids": Argument(dealt=1, cut=True, loss=True, agreed=True),
    "hidden_states": Argument(rows=1, agreed=True),
    "inputs_embeds": Argument(dealt=1, loss=True),
    "position_ids": Argument(-1, -1, True, said=True, loss=True, agreed=True),
    "cache_position": Argument(-1, -1, said=True, loss=True),
    "token_type_ids": Argument(-1, 1, said=True, loss=True),
    "attention_mask": Argument(dealt=1, cut=True, mask=True, loss=True,
                               agreed=True),
    "causal_mask": _MASK,
    "mask": _MASK,
    "position_embeddings": Argument(-2, said=True),  # two [B or 1, S, D]
    "position_embeddings_global": Argument(-2),
    "position_embeddings_local": Argument(-2),
    "rotary_pos_emb": Argument(-2),
    "sinusoidal_pos": Argument(-2),  # [1, 1, S, D]
    "attention_scaling": Argument(2),  # [B, 1, S, 1]: per row of the scores
    "per_layer_input": Argument(1),  # [B, S, width]
    "per_layer_inputs": Argument(1),
    "original_hidden_states": Argument(1),  # [B, S, H], embeddings
    "ple_input_ids": Argument(1),
    "conv_mask": Argument(1),  # [B, S], true for rows that are not padding
    "cache": _CACHE._replace(loss=True),  # transformers 5.24 and newer
    "past_key_values": _CACHE._replace(loss=True),
    "past_key_value": _CACHE,
    "layer_past": _CACHE,
    "cache_params": _CACHE,
    # Some decoders and layers receive labels and ignore them.
    "labels": Argument(-1, 1, said=True, loss=True, agreed=True),
    "shift_labels": _BOTH._replace(rows=-1, agreed=True),
    "num_items_in_batch": _BOTH._replace(agreed=True),
    "cu_seq_lens_q": Argument(packed=True, loss=True),
    "cu_seq_lens_k": Argument(packed=True, loss=True),
    "seq_idx": Argument(packed=True, loss=True),
    "max_length_q": _BOTH._replace(packed=True),
    "max_length_k": _BOTH._replace(packed=True),
    "use_cache": _BOTH,
    "return_dict": _BOTH,
    "logits_to_keep": _BOTH,
    "output_attentions": _BOTH,
    "output_hidden_states": _BOTH,
    "output_router_logits": _BOTH,
    "is_causal": _SAID,
    "layer_idx": _SAID,
    "target_dtype": _SAID,
    "deterministic": _SAID,
}


def those(what: str) -> dict[str, Any]:
    """Returns {argument: its field `what`} for the arguments that set it."""
    said = {name: getattr(known, what) for name, known in ARGUMENTS.items()}
    return {name: value for name, value in said.items()
            if value is not None and value is not False}


def wants(module: nn.Module, given: dict[str, Any], name: str,
          default: bool = False) -> bool:
    """Returns whether a call of a model switches `name` on: by the argument if
    it is given, else by the config, as in transformers."""
    said = given.get(name)
    return bool(getattr(module.config, name, default) if said is None else said)


def shifted(labels: Tensor) -> Tensor:
    """Returns [B, S]: in row i the label of row i + 1, in the last IGNORED."""
    return F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
