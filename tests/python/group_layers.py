"""Cases of groups.py with the user's own layers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from gloo import whole
from models import Run, Wrapper, assert_same, batch, tiny
from titan import loss_of, titan, tokens
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import sluice

CHUNK = 16


def graded(model, ids) -> Run:
    model.zero_grad()
    loss = loss_of(model, ids)
    loss.backward()
    return Run(loss.item(), {n: whole(p.grad)
                             for n, p in model.named_parameters()})


def mean(run: Run, group) -> Run:
    """Returns the mean over the ranks of gradients that are not reduced yet.
    """
    for gradient in run.gradients.values():
        dist.all_reduce(gradient, group=group)
        gradient /= dist.get_world_size(group)
    return run


def streamed(model, session, group, **options):
    return sluice.stream(
        layers=model.layers, attention="sdpa", session=session, quiet=True,
        group=group, chunk=CHUNK, check="always",
        **{"sample": lambda: model(tokens()), "rows": {"freqs_cis": 0},
           **options})


def own_layers(session, group) -> None:
    """Every rank has the loss and logits of all rows."""
    for place in ("device", "host"):
        model = titan(layers=3)
        plain = copy.deepcopy(model)
        stream = streamed(model, session, group, hidden=place)
        for length in (75, 65, 7, 1, 100):
            ids = tokens(2, length)
            if length == 1:
                torch.testing.assert_close(model(ids), plain(ids))
                continue
            assert_same(mean(graded(model, ids), group), graded(plain, ids))
        assert stream.stats().blocks > 0 and stream.stats().host_bytes == 0
        with torch.no_grad():
            torch.testing.assert_close(model(tokens()), plain(tokens()))
        stream.unstream()


def own_layers_sharded(session, group) -> None:
    """The gradients that FSDP2 averages equal those of the plain model."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for place in ("device", "host"):
        model, ids = titan(layers=3), tokens(2, 75)
        model.tok_embeddings.requires_grad_(False)
        expected = graded(copy.deepcopy(model), ids)
        streamed(model, session, group, hidden=place)
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert_same(graded(model, ids), expected)


class Turned(Wrapper):
    """A layer that indexes the RoPE table by itself. Its input is scaled by
    two tensors that need a gradient: `scale` and, per row, `of_rows`."""

    def forward(self, x, freqs_cis, positions, scale, of_rows):
        return self.inner(x * scale * of_rows, freqs_cis[positions])


class Turning(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = titan()
        self.layers = nn.ModuleDict({n: Turned(layer) for n, layer in
                                     self.inner.layers.items()})
        del self.inner.layers
        self.scale = nn.Parameter(torch.full((32,), 1.5))
        self.of_rows = nn.Parameter(torch.linspace(0.5, 1.5, 75)[:, None])

    def forward(self, ids):
        x, at = self.inner.tok_embeddings(ids), torch.arange(ids.shape[1])
        of_rows = self.of_rows[:ids.shape[1]][None]
        for layer in self.layers.values():
            x = layer(x, self.inner.freqs_cis[:x.shape[1]], at, self.scale,
                      of_rows)
        return self.inner.output(self.inner.norm(x))


def own_layers_arguments(session, group) -> None:
    model = Turning()
    expected = graded(copy.deepcopy(model), tokens())
    streamed(model, session, group, rows={
        "freqs_cis": None, "positions": 0, "of_rows": 1})
    assert_same(mean(graded(model, tokens()), group), expected)


def own_layers_refused(session, group) -> None:
    """All ranks refuse the same calls, and the next step runs."""
    with pytest.raises(sluice.Unsupported, match="without a sample"):
        streamed(titan(), session, group, sample=None)
    model, rank = titan(), dist.get_rank(group)
    stream = streamed(model, session, group)
    for ids, said in ((tokens(seed=rank), "agree on hidden_states"),
                      (tokens(2, 75 + rank), "length")):
        with pytest.raises(sluice.Error, match=said):
            model(ids)
        assert stream.stats().host_bytes == 0
    doubled = model.layers["1"].register_forward_pre_hook(
        lambda m, args: (args[0] * 2, *args[1:]))
    with pytest.raises(sluice.Unsupported, match="changed between layers"):
        model(tokens())
    doubled.remove()
    assert_same(mean(graded(model, tokens()), group),
                graded(titan(), tokens()))


class Dropping(Wrapper):
    def __init__(self, inner):
        super().__init__(inner)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.inner(x))


def own_layers_random_numbers(session, group) -> None:
    """Each rank draws random numbers of its own, and draws the same numbers
    again in the replay."""
    model, dropped = titan(), []
    for layer in model.layers.values():
        layer.feed_forward = Dropping(layer.feed_forward)
    model.layers["0"].feed_forward.dropout.register_forward_hook(
        lambda m, a, out: dropped.append(out[0, :8] == 0))
    streamed(model, session, group)
    dropped.clear()  # drop the probe's masks
    torch.manual_seed(5)
    loss_of(model, tokens(2, 64)).backward()
    mine = torch.stack(dropped).to(torch.uint8)
    assert torch.equal(mine[:4], mine[4:].flip(0))
    everyones = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(everyones, mine, group=group)
    assert not torch.equal(*everyones)


def router_logits(session, group) -> None:
    """Every rank has the router logits of all rows, also without a loss."""
    for length in (75, 67, 1):
        inputs = batch(2, length)
        model = tiny("mixtral", num_local_experts=4, num_experts_per_tok=2,
                     output_router_logits=True)
        with torch.no_grad():
            expected = model(**inputs)
        sluice.stream(model, session=session, chunk=CHUNK, group=group,
                      quiet=True)
        for labelled in (True, False):
            found = model(**inputs if labelled else {
                "input_ids": inputs["input_ids"]})
            torch.testing.assert_close(found.router_logits,
                                       expected.router_logits, rtol=1e-4,
                                       atol=1e-5)
            torch.testing.assert_close(found.aux_loss, expected.aux_loss)


LAYERS = {f.__name__: f for f in (
    own_layers, own_layers_sharded, own_layers_arguments, own_layers_refused,
    own_layers_random_numbers, router_logits)}
