"""Cases of groups.py that check more than a model's loss and gradients. All
ranks run each function."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from group_refusals import CHUNK, REFUSALS
from models import Run, Wrapper, assert_same, batch, run, tiny
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaModel

import sluice
from sluice.ranks.groups import Ranks

LEARNED = dict(n_embd=32, n_layer=2, n_head=4, n_positions=512,
               attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)

PLACES = ("device", "host")  # places of hidden states


def host_bytes(session, group) -> None:
    """Each rank's host bytes are exactly those of DESIGN.md's formula, for a
    whole number of chunks."""
    size, layers, hidden, kv, heads, tokens, chunks = (
        dist.get_world_size(group), 3, 32, 8, 4, 128, 4)
    replicas = size  # copies of the one kv head
    per_token = layers * (2 * 4 * replicas * kv + 4 * hidden + 4 * hidden
                          + 4 * heads) / size
    earlier, gradient = 1 - 1 / chunks, 8 * replicas * kv / size
    for place, more in (
            ("device", gradient * earlier),
            ("host", max(4 * hidden / size,
                         (4 * hidden / size + gradient) * earlier))):
        model = tiny(num_hidden_layers=layers, num_key_value_heads=1)
        stream = sluice.stream(model, session=session, chunk=tokens // chunks,
                               group=group, quiet=True, hidden=place)
        stream.reset_stats()
        model(**batch(1, tokens)).loss.backward()
        assert stream.stats().host_peak_bytes == tokens * (per_token + more)
        assert stream.stats().host_bytes == 0
        stream.unstream()


def whole_head(session, group) -> None:
    """With head="whole" every rank computes the loss of all rows."""
    for place in PLACES:
        model, inputs = tiny(), batch()
        expected = run(model, inputs)
        stream = sluice.stream(model, session=session, chunk=CHUNK,
                               group=group, quiet=True, head="whole",
                               hidden=place)
        assert model(**inputs).logits.shape[:2] == (2, 75)
        got = run(model, inputs)
        assert stream.stats().blocks > 0 and stream.stats().host_bytes == 0
        _assert_mean_is(model, group, got.loss, expected)
        stream.unstream()


def evaluation(session, group) -> None:
    model, inputs = tiny().eval(), batch()
    ids = inputs["input_ids"]
    with torch.no_grad():
        loss = model(**inputs).loss
        words = model.generate(ids[:, :9], max_new_tokens=4, do_sample=False)
        stream = sluice.stream(model, session=session, chunk=CHUNK,
                               group=group, quiet=True)
        torch.testing.assert_close(model(**inputs).loss, loss)
        assert stream.stats().steps == 1
        assert torch.equal(words, model.generate(
            ids[:, :9], max_new_tokens=4, do_sample=False))
        assert stream.stats().steps == 1


def logprobs(session, group) -> None:
    """Every rank has the log-probabilities of all rows, and the gradients are
    those of the whole sequence."""
    model, inputs = tiny(), batch()
    weights = torch.randn(2, 75, generator=torch.Generator().manual_seed(1))

    def found():
        model.zero_grad()
        out = sluice.logprobs(model, **inputs, entropy=True)
        sum(((o * weights).sum() for o in out)).backward()
        return out, {n: p.grad.clone() for n, p in model.named_parameters()}

    plain, expected = found()
    stream = sluice.stream(model, session=session, chunk=CHUNK, group=group,
                           quiet=True)
    ours, _ = found()
    assert stream.stats().steps == 1
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    _assert_mean_is(model, group, 0.0, Run(0.0, expected))


class Embedded(LlamaModel):
    """Passes each layer a detached tensor that is computed from the embeddings
    and scaled in place, as some models do."""

    def forward(self, input_ids=None, inputs_embeds=None, **kwargs):
        embeds = self.embed_tokens(input_ids)
        more = embeds.detach() * 0.5
        more *= 3.0
        return super().forward(inputs_embeds=embeds, per_layer_input=more,
                               **kwargs)


class Adding(Wrapper):
    def forward(self, hidden_states, per_layer_input=None, **kwargs):
        return self.inner(hidden_states, **kwargs) + per_layer_input


def made_of_embeddings(session, group) -> None:
    """Arguments of layers may be computed from the embedding's output."""
    model, inputs = tiny(), batch()
    model.model.__class__ = Embedded
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = Adding(layer)
    expected = run(copy.deepcopy(model), inputs)
    with pytest.raises(sluice.Unsupported, match='with hidden="host"'):
        sluice.stream(model, session=session, chunk=CHUNK, group=group,
                      quiet=True, hidden="host")
    sluice.stream(model, session=session, chunk=CHUNK, group=group,
                  quiet=True)
    _assert_mean_is(model, group, run(model, inputs).loss, expected)


def _assert_mean_is(model, group, loss: float, expected: Run) -> None:
    """Checks that the average of the gradients over the group is as expected.
    """
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
    assert_same(Run(loss, {n: p.grad for n, p in model.named_parameters()}),
                expected)


def own_head(session, group) -> None:
    """The decoder alone is streamed, with the user's own head and loss."""
    for place in PLACES:
        _own_head(session, group, place)
    model = tiny()
    ids = batch(length=1)["input_ids"]
    labels = torch.full_like(ids, -100)
    stream = sluice.stream(model.model, session=session, chunk=CHUNK,
                           group=group, quiet=True)
    local = stream.shard(ids, labels)  # a single row is not split
    model.model(ids)
    assert torch.equal(local.input_ids, ids) and local.count == 0


def _own_head(session, group, place) -> None:
    model, inputs = tiny(), batch()
    ids = inputs["input_ids"]
    stream = sluice.stream(model.model, session=session, chunk=CHUNK,
                           group=group, quiet=True, hidden=place)
    local = stream.shard(ids, inputs["labels"])
    h = model.model(ids).last_hidden_state
    loss = local.mean(F.cross_entropy(
        model.lm_head(h).flatten(0, 1), local.shift_labels.flatten(),
        reduction="sum"))
    loss.backward()
    own = local.position_ids
    assert own.shape[1] in (37, 38) and torch.equal(
        local.input_ids, ids.index_select(1, own[0]))
    stream.unstream()
    _assert_mean_is(model, group, loss.item(),
                    run(copy.deepcopy(model), inputs))


def loaders(session, group) -> None:
    """Every rank gets the batches of all ranks in turn, although one rank has
    more batches."""
    rank = dist.get_rank(group)
    own = torch.utils.data.DataLoader(
        torch.arange(10 * rank, 10 * rank + 6 + 2 * rank), batch_size=2)
    found = sluice.same_rows(own, group)
    for _ in range(2):
        assert [b.tolist() for b in found] == [
            [0, 1], [10, 11], [2, 3], [12, 13], [4, 5], [14, 15], [16, 17]]
    assert len(found) == 2 * len(own) and found.batch_size == 2


def gradients_of_other_ranks(session, group) -> None:
    """A parameter that only some ranks used has a gradient on all ranks."""
    # The second argument: a chunk with one row for each rank.
    ranks = Ranks.of(group, dist.get_world_size(group))
    rank = dist.get_rank(group)
    ones, like = torch.ones(2), [torch.empty(2), torch.empty(3)]
    used, unused = ranks.filled([None if rank else ones, None], like)
    assert unused is None and used.tolist() == [1 - rank] * 2


def failures_of_an_earlier_stream(session, group) -> None:
    """A failure of one stream is not reported by the group's next stream."""
    earlier = Ranks.of(group, CHUNK)
    if dist.get_rank(group) == 1:
        with pytest.raises(ValueError), earlier.telling():
            raise ValueError("it broke")
    dist.barrier(group)
    later = Ranks.of(group, CHUNK)
    later._look()
    if dist.get_rank(group) == 0:
        with pytest.raises(sluice.Error, match="rank 1 .* it broke"):
            earlier._look()


def random_numbers(session, group) -> None:
    """Ranks with the same seed drop different elements. Each rank drops the
    same elements again in its replay, and all ranks have the same random state
    afterwards."""
    model = tiny("gpt2", **{**LEARNED, "embd_pdrop": 0.5, "resid_pdrop": 0.5})
    dropped = []
    model.transformer.h[0].mlp.dropout.register_forward_hook(
        lambda m, a, out: dropped.append(out[0, :8] == 0))
    sluice.stream(model, session=session, chunk=CHUNK, group=group,
                  check="always", quiet=True)
    dropped.clear()  # drop the probe's masks
    torch.manual_seed(5)
    model(**batch(1, 64)).loss.backward()
    mine = torch.stack(dropped).to(torch.uint8)
    assert torch.equal(mine[:4], mine[4:].flip(0))  # the replay is in reverse
    everyones = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(everyones, mine, group=group)
    assert not torch.equal(*everyones)
    states = [torch.empty_like(torch.get_rng_state()) for _ in range(2)]
    dist.all_gather(states, torch.get_rng_state(), group=group)
    assert torch.equal(*states)


BEHAVIOURS = {f.__name__: f for f in (
    host_bytes, whole_head, evaluation, logprobs, made_of_embeddings, own_head,
    loaders, gradients_of_other_ranks, failures_of_an_earlier_stream,
    random_numbers)} | REFUSALS
