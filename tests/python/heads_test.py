"""Heads that are not a language model's run as the models' own."""

from __future__ import annotations

import copy

import pytest
import sluice
from heads import HEADS, graded, tiny_with
from models import assert_same


@pytest.mark.parametrize("hidden", ["device", "host"])
@pytest.mark.parametrize("name", HEADS)
def test_gradients_are_the_models_own(session, name, hidden):
    head, inputs = HEADS[name]
    model = tiny_with(head)
    twin, twins = copy.deepcopy(model), []
    for attention in ("eager", "sdpa"):
        twin.set_attn_implementation(attention)
        twins.append(graded(twin, inputs))
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           check="always", hidden=hidden)
    assert_same(graded(model, inputs), *twins)
    assert stream.stats().blocks > 0 and stream.stats().host_bytes == 0
