"""The user's own decoder layers, without transformers, are exact or refused:
with a sample by stream(), without a sample by the first call."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.distributed as dist
from group_layers import graded
from models import Run, Wrapper, assert_same
from support import TESTS
from support import run as run_code
from titan import loss_of, titan, tokens
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import sluice

ROWS = {"freqs_cis": 0}


def streamed(model, session, sample=True, **options):
    return sluice.stream_layers(
        model.layers, session=session, quiet=True,
        sample=(lambda: model(tokens())) if sample else None,
        **{"rows": ROWS, "chunk": 16, **options})


@pytest.mark.parametrize("sample", [True, False], ids=["sample", "first call"])
@pytest.mark.parametrize("repeats", [True, False], ids=["repeat", "gqa"])
def test_gradients_are_the_models_own(session, sample, repeats):
    model = titan(repeats=repeats)
    expected = [graded(copy.deepcopy(model), tokens(2, n)) for n in (75, 100)]
    stream = streamed(model, session, sample, check="always")
    for n, wanted in zip((75, 100), expected):
        assert_same(graded(model, tokens(2, n)), wanted)
    stats = stream.stats()
    assert stats.steps == 2 and stats.blocks > 0 and stats.host_bytes == 0
    layers, kv, heads = 2, 32 if repeats else 16, 4
    per_row = layers * (4 * 32 + 2 * 4 * kv + 4 * 32 + 4 * heads)
    last = 100 - 6 * 16  # rows of the last chunk, which keeps no dk and dv
    assert stats.host_peak_bytes == 2 * (100 * (per_row + 8 * kv)
                                         - last * 8 * kv)
    stream.unstream()
    assert "forward" not in vars(model.layers["0"])
    assert_same(graded(model, tokens()), expected[0])


WINDOW = torch.ones(100, 100).tril().triu(-20).bool()[None, None]
DOCUMENTS = torch.block_diag(torch.ones(30, 30), torch.ones(70, 70)).tril(
    ).bool()[None, None]


@pytest.mark.parametrize("sample", [True, False], ids=["sample", "first call"])
@pytest.mark.parametrize("mask", [WINDOW, DOCUMENTS], ids=["window", "packed"])
def test_layers_may_be_given_a_mask(session, sample, mask):
    """If the probe used another step's tensor in place of the mask, every mask
    that is not causal would be refused."""
    model, ids = titan(), tokens(2, 100)
    model.mask = mask
    expected = graded(copy.deepcopy(model), ids)
    stream = sluice.stream(
        layers=model.layers, attention="sdpa", session=session, quiet=True,
        sample=(lambda: model(ids)) if sample else None, rows=ROWS, chunk=16)
    assert_same(graded(model, ids), expected)
    assert stream.stats().blocks > 0 and stream.stats().host_bytes == 0


@pytest.mark.parametrize("repeats", [True, False], ids=["repeat", "gqa"])
def test_hidden_states_in_the_host_are_exact(session, repeats):
    """Layers pass each other a stand-in with a storage of one element."""
    model = titan(repeats=repeats, layers=3)
    expected = graded(copy.deepcopy(model), tokens(2, 96))
    stream = streamed(model, session, check="always", hidden="host")
    seen = []
    model.layers["1"].register_forward_pre_hook(
        lambda m, args: seen.append(args[0]))
    assert_same(graded(model, tokens(2, 96)), expected)
    [between] = seen
    assert between.shape == (2, 96, 32) and between.isnan().all()
    assert between.untyped_storage().nbytes() == 4
    stats = stream.stats()
    assert stats.blocks > 0 and stats.host_bytes == 0
    layers, kv, heads, earlier = 3, 32 if repeats else 16, 4, 1 - 1 / 6
    assert stats.host_peak_bytes == 2 * 96 * (
        layers * (2 * 4 * kv + 4 * 32 + 4 * 32 + 4 * heads)
        + max(4 * 32, (4 * 32 + 8 * kv) * earlier))
    with torch.no_grad():
        whole_ = model(tokens(2, 96))
        stream.unstream()
        torch.testing.assert_close(whole_, model(tokens(2, 96)))


@pytest.mark.parametrize("given, word", [
    (dict(sample=False), "without a sample"),
    (dict(between=lambda h: h * 2), "changed between layers or used twice"),
    (dict(order=["0", "0"]), "the output of a layer after it")])
def test_unsupported_hidden_states_on_host_are_refused(session, given, word):
    model, given = titan(layers=2), {"sample": True, **given}
    with pytest.raises(sluice.Unsupported, match=word):
        stream = streamed(model, session, given["sample"], hidden="host")
        h = model.tok_embeddings(tokens())
        for name in given.get("order", ["0", "1"]):
            h = given.get("between", lambda h: h)(
                model.layers[name](h, model.freqs_cis))
    if given["sample"]:
        del h
        gc.collect()
        assert stream.stats().host_bytes == 0
        assert_same(graded(model, tokens()), graded(titan(), tokens()))


def test_a_forward_that_stops_early_is_a_step_of_its_own(session):
    model = titan()
    stream = streamed(model, session)
    model.layers["0"](model.tok_embeddings(tokens()), model.freqs_cis)
    assert_same(graded(model, tokens()), graded(titan(), tokens()))
    stats = stream.stats()
    assert (stats.steps, stats.host_bytes) == (2, 0)


class Shift(Wrapper):
    """Adds each token's features to the next token."""

    def forward(self, x):
        return self.inner(x) + F.pad(x, (0, 0, 1, -1))


def shifting():
    model = titan()
    model.layers["1"].feed_forward = Shift(model.layers["1"].feed_forward)
    return model


@pytest.mark.parametrize("hidden", ["device", "host"])
def test_row_mixing_layers_run_whole(session, hidden):
    model = shifting()
    expected = graded(copy.deepcopy(model), tokens(2, 96))
    stream = streamed(model, session, hidden=hidden)
    assert [(model.layers["1"] in stream.whole_layers, count)
            for _, count in stream.whole] == [(True, 1)]
    assert_same(graded(model, tokens(2, 96)), expected)
    assert stream.stats().host_bytes == 0


def test_row_mixing_layers_run_whole_from_the_first_call_without_a_sample(
        session):
    model = shifting()
    expected = graded(copy.deepcopy(model), tokens())
    stream = streamed(model, session, sample=False)
    model(tokens(2, 40))  # too short for the probe, so it is not streamed
    assert stream.stats().blocks == 0 and not stream.whole
    assert_same(graded(model, tokens()), expected)
    assert [count for _, count in stream.whole] == [1]
    assert stream.stats().host_bytes == 0


def test_a_table_without_declared_rows_is_refused_or_runs_whole(session):
    model = titan()
    expected = graded(copy.deepcopy(model), tokens())
    stream = streamed(model, session, rows={})
    assert "output differs" in stream.whole[0][0].why
    assert_same(graded(model, tokens()), expected)
    exact = titan()
    exact.freqs_cis = exact.freqs_cis[:75]
    with pytest.raises(sluice.Unsupported, match="rows={'freqs_cis': 0}"):
        streamed(exact, session, rows={})


@pytest.mark.parametrize("change,names", [
    (dict(is_causal=False), "attention in both directions"),
    (dict(dropout_p=0.1, is_causal=True), "dropout"),
    (dict(attn_mask=torch.ones(75, 75).tril().bool()), "mask tensor"),
], ids=["both directions", "dropout", "mask"])
def test_attention_that_is_not_causal_is_refused_or_runs_whole(session, change,
                                                               names):
    def attend(q, k, v, is_causal=False, enable_gqa=False):
        given = dict(change)
        if "attn_mask" in given:
            given["attn_mask"] = given["attn_mask"][:q.shape[2], :q.shape[2]]
        return F.scaled_dot_product_attention(
            q, k, v, enable_gqa=enable_gqa, **given)

    model = titan()
    model.layers["1"].attention.attend = attend
    if names == "dropout":
        with pytest.raises(sluice.Unsupported, match=names):
            streamed(model, session)
        return
    expected = graded(copy.deepcopy(model), tokens())
    stream = streamed(model, session)
    [(kind, count)] = stream.whole
    assert count == 1 and kind.own_attention and names in kind.why
    assert_same(graded(model, tokens()), expected)


def test_checkpointing_within_a_layer_is_refused(session):
    model = titan()
    streamed(model, session)
    model.layers["0"].attention = checkpoint_wrapper(
        model.layers["0"].attention)
    with pytest.raises(sluice.Unsupported, match="'attention' is checkp"):
        model(tokens())


def test_checkpointing_around_a_layer_is_exact(session):
    model = titan()
    expected = graded(copy.deepcopy(model), tokens())
    stream = streamed(model, session)
    for name in model.layers:
        model.layers[name] = checkpoint_wrapper(model.layers[name])
    loss = loss_of(model, tokens())
    loss.backward()
    got = Run(loss.item(), {n.replace("_checkpoint_wrapped_module.", ""):
                            p.grad for n, p in model.named_parameters()})
    assert_same(got, expected)
    assert stream.stats().host_bytes == 0


def test_a_short_sample_and_wrong_arguments_are_refused(session):
    model = titan()
    with pytest.raises(sluice.Unsupported, match="sample: it runs 20 rows"):
        sluice.stream(layers=model.layers, attention="sdpa", rows=ROWS,
                      session=session, sample=lambda: model(tokens(1, 20)))
    with pytest.raises(sluice.Unsupported, match="hidden states as list"):
        sluice.stream(layers=model.layers, attention="sdpa", rows=ROWS,
                      session=session, sample=lambda: model.layers["0"]([]))
    with pytest.raises(sluice.Unsupported, match="does not call it"):
        sluice.stream(layers=model.layers, attention="sdpa", rows=ROWS,
                      session=session, sample=lambda: None)
    for wrong in (dict(layers=model.layers), dict(attention="sdpa"), {},
                  dict(layers=model.layers, attention="flash")):
        with pytest.raises(ValueError):
            sluice.stream(session=session, **wrong)


def test_sharded_layers_are_exact(session, tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/group", rank=0,
                            world_size=1)
    try:
        model = titan()
        expected = graded(copy.deepcopy(model), tokens())
        streamed(model, session)
        late = titan()
        streamed(late, session, sample=False)
        for each in model, late:
            for layer in each.layers.values():
                fully_shard(layer)
            fully_shard(each)
        for each in model, late:
            assert_same(graded(each, tokens()), expected)
    finally:
        dist.destroy_process_group()


def test_transformers_is_not_needed():
    done = run_code(f"""
        import sys
        sys.modules["transformers"] = None  # an import of it fails
        sys.path.insert(0, {str(TESTS)!r})
        import sluice
        from titan import loss_of, titan, tokens
        model = titan()
        stream = sluice.stream(
            layers=model.layers, attention="sdpa", rows={{"freqs_cis": 0}},
            chunk=16, sample=lambda: model(tokens()))
        loss_of(model, tokens()).backward()
        print(stream.stats().blocks)
        """)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    assert "Block: 2 layers in chunks of 16 rows" in done.stderr
