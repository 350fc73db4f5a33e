"""Layers that fit on the device run plain, without recomputation. Any mixture
of plain and streamed layers has the plain model's gradients. Plain layers take
at most `hbm=` bytes."""

from __future__ import annotations

import copy
import itertools

import pytest
import titan
import torch
from group_layers import graded
from models import Run, assert_same, batch, run, tiny, wrap_mlps
from torch import nn
from torch.profiler import ProfilerActivity, profile

import sluice

LAYERS = 4
ENOUGH = 1 << 30
KINDS = {
    "llama": {}, "gemma2": dict(
        sliding_window=24, query_pre_attn_scalar=8,
        attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
    "qwen3_moe": dict(num_experts=4, num_experts_per_tok=2,
                      moe_intermediate_size=24, decoder_sparse_step=2),
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2,
                    router_aux_loss_coef=0.5),
}


class Rows:
    """Counts how many times each layer's MLP computes each row, per step."""

    def __init__(self, model: nn.Module):
        self.counts = [0.0] * len(model.model.layers)
        for index, layer in enumerate(model.model.layers):
            layer.mlp.register_forward_pre_hook(
                lambda _, args, i=index: self._count(i, args[0]))

    def _count(self, index: int, x: torch.Tensor) -> None:
        self.counts[index] += x.shape[0] * x.shape[1]

    def of(self, inputs: dict) -> list[float]:
        counts, self.counts = self.counts, [0.0] * len(self.counts)
        return [count / inputs["input_ids"].numel() for count in counts]


def model_of(kind: str = "llama", **changes) -> nn.Module:
    return tiny(kind, num_hidden_layers=LAYERS, **{
        **KINDS.get(kind, {}), **changes})


def kept(session: sluice.Session, model: nn.Module, inputs: dict
         ) -> int:
    """Returns the bytes that all layers keep if they run plain."""
    stream = sluice.stream(model, session=session, chunk=16, hbm=ENOUGH,
                           quiet=True)
    run(model, inputs)
    loss = model(**inputs).loss
    stats = stream.stats()
    assert stats.plain_layers == LAYERS and stats.host_bytes == 0
    loss.backward()
    assert stream.stats().plain_bytes == 0
    stream.unstream()
    return stats.plain_bytes


def room_for(count: int, of_all: int, eager: bool = True) -> int:
    """Returns the `hbm=` for `count` plain layers and for the memory that
    computing a layer takes."""
    return (count + 1 + eager) * of_all // LAYERS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", range(LAYERS + 1))
def test_each_mixture_has_the_plain_models_gradients(session, kind, count):
    """Includes padding, and losses of routers."""
    model, inputs = model_of(kind), batch()
    plain = copy.deepcopy(model)
    more = {"output_router_logits": True} if kind == "mixtral" else {}
    hbm = room_for(count, kept(session, copy.deepcopy(model), {
        **inputs, **more}))
    stream = sluice.stream(model, session=session, chunk=16, hbm=hbm,
                           quiet=True)
    for step in range(3):
        inputs = {**batch(seed=step), **more}
        if step == 2:
            inputs["attention_mask"] = torch.ones(2, 75, dtype=torch.long)
            inputs["attention_mask"][1, 60:] = 0
            inputs["labels"][1, 60:] = -100
        assert_same(run(model, inputs), run(plain, inputs))
        if kind == "llama" and step:
            assert stream.stats().plain_layers >= count
    assert stream.stats().plain_layers == count or kind != "llama"
    assert stream.stats().host_bytes == 0


def test_a_plain_layer_runs_once_and_the_last_layers_are_plain(session):
    """Streamed layers run twice. In the step that measures, the first layer is
    plain, too."""
    model, inputs = model_of(), batch()
    of_all, rows = kept(session, copy.deepcopy(model), inputs), Rows(model)
    for count in range(1, LAYERS + 1):
        stream = sluice.stream(model, session=session, chunk=16, check="off",
                               hbm=room_for(count, of_all), quiet=True)
        rows.of(inputs)
        run(model, inputs)
        assert rows.of(inputs) == [2] * LAYERS
        run(model, inputs)
        assert rows.of(inputs)[0] == 1
        for _ in range(2):
            run(model, inputs)
            assert rows.of(inputs) == [2] * (LAYERS - count) + [1] * count
        assert stream.stats().plain_layers == count
        stream.unstream()


def peak(step) -> int:
    """Returns the most bytes in use by torch's allocator during a step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True
                 ) as profiled:
        step()
    made = sorted((event.start_ns(), event.nbytes()) for event in
                  profiled.profiler.kineto_results.events()
                  if event.name() == "[memory]")
    return max(itertools.accumulate(nbytes for _, nbytes in made))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_plain_layers_take_no_more_than_hbm(session, attention):
    """The limit is on memory in addition to a step with all layers streamed.
    """
    model, inputs = model_of(hidden_size=64, intermediate_size=128), batch(
        1, 512)
    model.set_attn_implementation(attention)
    of_all = kept(session, copy.deepcopy(model), inputs)

    def of(hbm: int) -> tuple[int, int]:
        stream = sluice.stream(model, session=session, chunk=64, hbm=hbm,
                               check="off", quiet=True)
        run(model, inputs)
        most = max(peak(lambda: run(model, inputs)) for _ in range(3))
        count = stream.stats().plain_layers
        stream.unstream()
        return most, count

    alone, none = of(0)
    assert none == 0
    for count in range(LAYERS + 1):
        hbm = room_for(count, of_all, attention == "eager")
        took, plain = of(hbm)
        assert plain == count and took - alone <= hbm, (count, took - alone)


def test_the_number_of_plain_layers_follows_the_length(session):
    """A step with more tokens than any step before it is streamed. The bytes
    that layers keep are known per length, so a longer step has fewer plain
    layers."""
    model, short, long = model_of(), batch(2, 33), batch(2, 75)
    plain = copy.deepcopy(model)
    of_all = kept(session, copy.deepcopy(model), long)
    hbm = room_for(2, of_all)
    stream = sluice.stream(model, session=session, chunk=16, hbm=hbm,
                           quiet=True)
    seen = []
    for inputs in (short, short, long, short, long, batch(2, 74), batch(1, 75),
                   batch(1, 149), batch(1, 151), short):
        expected = run(plain, inputs)
        loss = model(**inputs).loss
        assert stream.stats().plain_bytes <= hbm
        model.zero_grad()
        loss.backward()
        assert_same(Run(loss.item(), {n: p.grad for n, p in
                                      model.named_parameters()}), expected)
        seen.append(stream.stats().plain_layers)
    assert seen[0] == seen[2] == seen[8] == 0
    assert seen[1] == seen[3] == seen[9] == LAYERS
    # In the step that measures, the first layer is plain, too.
    assert seen[4] in (2, 3) and seen[5] == 2 and seen[6] == LAYERS


def test_forwards_before_a_backward_share_the_room(session):
    model, inputs = model_of(), [batch(seed=seed) for seed in range(3)]
    plain = copy.deepcopy(model)
    of_all = kept(session, copy.deepcopy(model), inputs[0])
    hbm = room_for(LAYERS + 1, of_all)
    stream = sluice.stream(model, session=session, chunk=16, hbm=hbm,
                           head="whole", quiet=True)
    for _ in range(2):
        run(model, inputs[0])
    for way in (plain, model):
        way.zero_grad()
    counts, losses = [], []
    for each in inputs:
        losses.append(model(**each).loss)
        counts.append(stream.stats().plain_layers)
        assert stream.stats().plain_bytes <= hbm
    assert counts == [LAYERS, 1, 0]
    with torch.no_grad():  # an evaluation streams, and keeps nothing
        model(**inputs[1])
    sum(losses).backward()
    sum(plain(**each).loss for each in inputs).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        assert (ours.grad - theirs.grad).norm() <= 1e-5 * theirs.grad.norm()
    assert stream.stats().plain_bytes == stream.stats().host_bytes == 0
    loss = model(**inputs[0]).loss
    assert stream.stats().plain_bytes > 0
    del loss
    assert stream.stats().plain_bytes == 0


class Dropout(nn.Module):
    """Wraps an MLP; records its dropout mask, or applies a given mask."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.seen, self.given = inner, [], None

    def forward(self, x):
        y = self.inner(x)
        if self.given is not None:
            return y * self.given
        mask = torch.nn.functional.dropout(torch.ones_like(y), 0.3)
        self.seen.append(mask)
        return y * mask


@pytest.mark.parametrize("count", [2, LAYERS])
def test_layers_drop_the_same_elements_in_backward(session, count):
    model, inputs = wrap_mlps(Dropout, model_of()), batch()
    of_all = kept(session, copy.deepcopy(model), inputs)
    sluice.stream(model, session=session, chunk=16, quiet=True,
                  hbm=room_for(count, of_all))
    run(model, inputs)
    run(model, inputs)
    drops = [layer.mlp for layer in model.model.layers]
    for drop in drops:
        drop.seen.clear()
    got, plain = run(model, inputs), copy.deepcopy(model)
    for drop, theirs in zip(drops, plain.model.layers):
        # The first 5 masks of a streamed layer are its forward's.
        chunks = 1 if len(drop.seen) == 1 else 5
        theirs.mlp.given = torch.cat(drop.seen[:chunks], 1)
    assert sum(len(drop.seen) == 1 for drop in drops) == count
    assert_same(got, run(plain, inputs))


def test_a_model_that_fits_draws_the_same_random_numbers(session):
    model, inputs = wrap_mlps(Dropout, model_of()), batch()
    plain = copy.deepcopy(model)
    sluice.stream(model, session=session, chunk=16, quiet=True, hbm=ENOUGH)
    for _ in range(3):
        run(model, inputs)
    torch.manual_seed(5)
    got = run(model, inputs)
    torch.manual_seed(5)
    expected = run(plain, inputs)
    assert got.loss == expected.loss
    assert all(torch.equal(got.gradients[name], gradient)
               for name, gradient in expected.gradients.items())


class Large(nn.Module):
    """Wraps an MLP; with `fails`, a whole sequence runs out of memory."""

    fails = False

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        y = self.inner(torch.nn.functional.dropout(x, 0.1))
        if self.fails and x.shape[1] > 16:
            raise torch.OutOfMemoryError("of this test")
        return y


@pytest.mark.parametrize("steps", [1, 2, 4])  # steps before memory runs out
def test_out_of_memory_falls_back_to_streaming(session, monkeypatch, capsys,
                                               steps):
    model, inputs = wrap_mlps(Large, model_of()), batch()
    stream = sluice.stream(model, session=session, chunk=16, hbm=ENOUGH)
    for _ in range(steps):
        run(model, inputs)
    monkeypatch.setattr(Large, "fails", True)
    torch.manual_seed(3)
    got = run(model, inputs)
    for _ in range(2):
        run(model, inputs)
        assert stream.stats().plain_layers == 0
    stream.unstream()
    monkeypatch.setattr(Large, "fails", False)
    assert capsys.readouterr().err.count("out of device memory") == 1
    sluice.stream(model, session=session, chunk=16, quiet=True)
    torch.manual_seed(3)
    assert_same(got, run(model, inputs))


def test_the_users_own_layers_run_plain_if_they_fit(session):
    model, ids = titan.Titan(), titan.tokens()
    plain = copy.deepcopy(model)
    stream = sluice.stream(
        layers=model.layers, attention="sdpa", rows={"freqs_cis": 0},
        session=session, chunk=16, quiet=True, hbm=ENOUGH,
        sample=lambda: model(ids))
    for count in (0, len(model.layers), len(model.layers)):
        assert_same(graded(model, ids), graded(plain, ids))
        assert stream.stats().plain_layers == count
