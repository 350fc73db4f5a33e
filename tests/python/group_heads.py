"""Heads that are not a language model's, of sequences that ranks share."""

from __future__ import annotations

import copy

import sluice
import torch.distributed as dist
from heads import HEADS, graded, tiny_with
from models import Run, assert_same


def other_heads(session, group) -> None:
    """They look at any row: each rank makes the same of all of them."""
    for name, (head, inputs) in HEADS.items():
        for place in ("device", "host"):
            model = tiny_with(head)
            twin, twins = copy.deepcopy(model), []
            for attention in ("eager", "sdpa"):
                twin.set_attn_implementation(attention)
                twins.append(graded(twin, inputs))
            stream = sluice.stream(model, session=session, chunk=16,
                                   group=group, quiet=True, hidden=place)
            got = graded(model, inputs)
            for gradient in got.gradients.values():
                dist.all_reduce(gradient, group=group)
                gradient /= dist.get_world_size(group)
            assert_same(got, *twins)
            assert stream.stats().blocks > 0, name
            stream.unstream()


BEHAVIOURS_OF_HEADS = {"other_heads": other_heads}
