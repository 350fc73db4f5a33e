"""Tests what position_ids mean. In transformers the positions, the cache and
the mask together decide whether a row is one sequence or several documents."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from models import assert_same, batch, run, tiny, unstreamed
from support import deep
from torch import nn

import sluice
from sluice import Unsupported

LENGTH = 75
ROW = torch.arange(LENGTH)
DOCUMENTS = torch.cat([ROW[:30], ROW[:45]])
SKIPPED = torch.cat([ROW[:30], ROW[:45] + 300])
POSITIONS = {
    "none": None,
    "in order": ROW.expand(2, -1),
    "one row": ROW[None],
    "from 9": (ROW + 9).expand(2, -1),
    "documents": DOCUMENTS.expand(2, -1),
    "skipped": SKIPPED.expand(2, -1),  # positions with gaps, as in PoSE
    "skipped in one row": torch.stack([ROW, SKIPPED]),
    "zero in one row": torch.stack([DOCUMENTS, 0 * ROW]),
    "padded on the left": torch.stack([ROW, (ROW - 13).clamp(min=0)]),
    "padded on the right": torch.cat([ROW[:60], 0 * ROW[:15]]).expand(2, -1),
    "documents, skipped": torch.cat(
        [ROW[:30], ROW[:20], ROW[:25] + 300]).expand(2, -1),
}
CALLS = [
    call if call[1] is None or (call[2], call[3]) == (False, "loss")
    else deep(*call) for call in itertools.product(
        POSITIONS, (None, True, False), (False, True), ("loss", "decoder"))]


def call(positions, use_cache, masked, what):
    made = batch(length=LENGTH)
    if POSITIONS[positions] is not None:
        made["position_ids"] = POSITIONS[positions]
    if use_cache is not None:
        made["use_cache"] = use_cache
    if masked:
        made["attention_mask"] = torch.ones_like(made["input_ids"])
    if what == "decoder":
        del made["labels"]
    return made


class OwnLoss(nn.Module):
    """The user's own loss, computed from the decoder's output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        hidden = self.model.model(**inputs).last_hidden_state
        return SimpleNamespace(loss=hidden.square().mean())


def called(model, what):
    return model if what == "loss" else OwnLoss(model)


@pytest.fixture(scope="module")
def streamed():
    """One model for all calls, so that state which a call leaves behind shows
    in the next call."""
    model = tiny()
    stream = sluice.stream(model, chunk=16, quiet=True)
    yield model
    stream.unstream()


@pytest.mark.parametrize("positions, use_cache, masked, what", CALLS)
def test_gradients_are_the_models_own_or_the_call_is_refused(
        streamed, positions, use_cache, masked, what):
    inputs = call(positions, use_cache, masked, what)
    # The model's configuration has use_cache=True.
    makes_cache = use_cache is not False
    if makes_cache and not masked and positions in (
            "documents", "padded on the right"):
        # GUARANTEES.md: these positions mean documents.
        inputs["use_cache"] = False
    own = unstreamed(called(tiny(), what), inputs)
    inputs = call(positions, use_cache, masked, what)
    if makes_cache and not masked and positions in (
            "skipped", "skipped in one row", "zero in one row",
            "padded on the left", "documents, skipped"):
        with pytest.raises(Unsupported, match="elsewhere than at 0, or begin"):
            run(called(streamed, what), inputs)
    else:
        assert_same(run(called(streamed, what), inputs), own)


def test_unclear_positions_are_refused_in_a_call_that_probes_again():
    model = tiny()
    stream = sluice.stream(model, chunk=16, quiet=True)
    model.model.layers[0].mlp.register_forward_hook(lambda *given: None)
    with pytest.raises(Unsupported, match="elsewhere than at 0, or begin"):
        run(model, call("skipped", None, False, "loss"))
    stream.unstream()


def test_documents_are_reported_once(capsys):
    model = tiny()
    stream = sluice.stream(model, chunk=16)
    for _ in range(2):
        run(model, call("documents", None, False, "loss"))
    assert capsys.readouterr().err.count("documents are kept apart") == 1
    stream.unstream()
    stream = sluice.stream(model, chunk=16)
    run(model, call("documents", False, False, "loss"))
    run(model, call("in order", None, False, "loss"))
    assert "documents" not in capsys.readouterr().err
    stream.unstream()
