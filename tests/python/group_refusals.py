"""Cases of groups.py in which a group of ranks refuses a model or a call, or
one rank fails. All ranks run each function."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from models import assert_same, batch, run, tiny
from torch import nn

import sluice

CHUNK = 16
MOE = dict(num_local_experts=4, num_experts_per_tok=2)


def other_rows(session, group) -> None:
    """If the ranks pass different rows, all ranks raise the same error, and
    the next step runs."""
    model, rank = tiny(), dist.get_rank(group)
    stream = sluice.stream(model, session=session, chunk=CHUNK, group=group,
                           quiet=True)
    good = batch()
    swapped = {n: t.flip(1) if rank else t for n, t in good.items()}
    longer = batch(length=75 + rank)
    masked = {**good, "attention_mask": torch.ones(2, 75)}
    short = batch(length=1) if rank else good
    relabelled = {**good, "labels": good["labels"] - rank}
    for inputs, said in (
            (swapped, "input_ids, labels"), (longer, "length.*'length': "),
            (masked if rank else good, "attention_mask"),
            (relabelled, "agree on labels"), (short, "length"),
            ({**good, "num_items_in_batch": 70 + rank}, "num_items_in_batch"),
            ({"input_ids": good["input_ids"]} if rank else good, "call")):
        with pytest.raises(sluice.Error, match=said):
            model(**inputs)
        assert stream.stats().host_bytes == 0
    with pytest.raises(sluice.Error, match="is_grad_enabled.*': "), (
            torch.set_grad_enabled(rank == 0)):
        model(**good)
    assert_same(run(model, good), run(model, good))
    stream.unstream()


def other_settings(session, group) -> None:
    rank = dist.get_rank(group)
    for own, said in ((dict(chunk=CHUNK + rank), "agree on chunk.*'chunk': 1"),
                      (dict(chunk=CHUNK, rerun=rank / 2),
                       "agree on rerun.*'rerun': 0")):
        model = tiny()
        sluice.stream(model, session=session, group=group, quiet=True, **own)
        with pytest.raises(sluice.Error, match=said):
            model(**batch())


def refused_models(session, group) -> None:
    """Each rank refuses these models by itself, before any collective."""
    for kind, changes, said in (
            ("roberta", dict(is_decoder=True, hidden_dropout_prob=0.0,
                             attention_probs_dropout_prob=0.0),
             "positions of its own"),
            ("llama", dict(hidden_size=24, num_attention_heads=3,
                           num_key_value_heads=1), "3 heads.*cannot share"),
            ("llama4_text", MOE, "all rows at once, under a group"),
            ("lfm2", dict(layer_types=["conv", "full_attention"]),
             "carries along the sequence, with a group"),
            ("bloom", {}, "ALiBi's, with a group"),
            ("gemma4_text", dict(
                num_hidden_layers=4, num_kv_shared_layers=2,
                layer_types=["sliding_attention", "full_attention"] * 2,
                hidden_size_per_layer_input=8, vocab_size_per_layer_input=97),
             "hand to later ones, with a group")):
        model = tiny(kind, **changes)
        with pytest.raises(sluice.Unsupported, match=said):
            sluice.stream(model, session=session, chunk=CHUNK, group=group)
    with pytest.raises(ValueError, match="at least one row for each"):
        sluice.stream(tiny(), session=session, chunk=1, group=group)


def forward_put_over(session, group) -> None:
    """A forward that replaces the model's after stream() is refused if it calls
    the decoder itself, because such a forward expects all rows."""
    model = tiny()
    sluice.stream(model, session=session, chunk=CHUNK, group=group,
                  quiet=True)
    own = model.forward
    model.forward = lambda input_ids, labels: model.model(input_ids)
    with pytest.raises(sluice.Unsupported, match="stream the model afterw"):
        model(**batch())
    model.forward = lambda **given: own(**given)
    assert model(**batch()).loss.item() > 0


def refused_calls(session, group) -> None:
    model = tiny()
    sluice.stream(model, session=session, chunk=CHUNK, group=group,
                  quiet=True)
    for more, said in (
            (dict(output_hidden_states=True), "output_hidden_states"),
            (dict(logits_to_keep=1), "logits_to_keep"),
            (dict(logits_to_keep=1, labels=None), "logits_to_keep")):
        with pytest.raises(sluice.Unsupported, match=said):
            model(**{**batch(), **more})


def one_rank_fails(session, group) -> None:
    """The rank that fails in forward or backward raises its own exception. The
    other ranks soon raise an Error that names this rank. Forward and backward
    are tried on separate groups."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for direction in ("forward", "backward"):
        apart = dist.new_group(list(range(size)))
        model = tiny()
        broken = Breaking(model.model.layers[1].mlp)
        stream = sluice.stream(model, session=session, chunk=CHUNK,
                               group=apart, quiet=True)
        run(model, batch())
        if rank == size - 1:
            broken.after = 2 if direction == "forward" else 7
        loss = None
        began = time.monotonic()
        with pytest.raises(ValueError if rank == size - 1 else sluice.Error,
                           match="it broke" if rank == size - 1 else
                           f"rank {size - 1} of the {size} that share the "
                           "sequence failed: ValueError: it broke"):
            loss = model(**batch()).loss
            assert direction == "backward"
            loss.backward()
        # Sooner than the group's timeout of 120 s.
        assert time.monotonic() - began < 60
        assert rank != size - 1 or broken.after == 0
        del loss
        assert stream.stats().host_bytes == 0
        stream.unstream()


class Breaking:
    """Makes a module raise in its `after`-th forward from now on; never if
    `after` is negative."""

    def __init__(self, module: nn.Module):
        self.after, self._own = -1, module.forward
        module.forward = self.forward

    def forward(self, *args):
        if self.after > 0:
            self.after -= 1
            if not self.after:
                raise ValueError("it broke")
        return self._own(*args)


REFUSALS = {f.__name__: f for f in (
    other_rows, other_settings, refused_models, refused_calls, forward_put_over,
    one_rank_fails)}
