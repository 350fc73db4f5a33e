"""Blocks joined by their lse, against attention over all keys at once."""

from __future__ import annotations

import pytest
import torch
from sluice import blocks
from sluice.intervals import Whole
from sluice.step import chunks_of

B, H = 2, 4


def inputs(heads_kv, d, dv, length, dtype=torch.float64):
    torch.manual_seed(0)
    return (torch.randn(B, H, length, d, dtype=dtype),
            torch.randn(B, heads_kv, length, d, dtype=dtype),
            torch.randn(B, heads_kv, length, dv, dtype=dtype))


def whole(q, k, v, seen, scores, sinks=None):
    """Attention as its definition, with autograd."""
    k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * scores.scale
    if scores.softcap is not None:
        s = scores.softcap * torch.tanh(s / scores.softcap)
    s = s.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks[None, :, None, None].expand(B, H, s.shape[2], 1)
        s = torch.cat([s, column], -1)
    return torch.softmax(s, -1)[..., :k.shape[2]] @ v


def of(seen, rows, keys):
    block = seen[..., rows.start:rows.stop, keys.start:keys.stop]
    if block.all():
        return Whole.FULL
    square = torch.ones(len(rows), len(keys), dtype=torch.bool).tril()
    return Whole.CAUSAL if rows == keys and (block == square).all() else block


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("heads_kv,d,dv", [(4, 8, 8), (2, 8, 8), (1, 8, 4)])
def test_forward_and_backward(heads_kv, d, dv, window, softcap, sinks):
    length, chunk = 19, 6
    q, k, v = inputs(heads_kv, d, dv, length)
    rows = torch.arange(length)
    seen = rows[:, None] >= rows
    if window:
        seen &= rows[:, None] - rows < window
    scores = blocks.Scores(d ** -0.5, softcap)
    sink = torch.randn(H, dtype=q.dtype) if sinks else None
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    leaf = sink.clone().requires_grad_() if sinks else None
    expected = whole(*leaves, seen, scores, leaf)
    do = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves + [leaf] * sinks, do)

    chunks = chunks_of(length, chunk)
    got = [torch.zeros_like(t) for t in (q, k, v)]
    ds = torch.zeros(H, dtype=q.dtype)
    for m in chunks:
        def part(x, at):
            return x[:, :, at.start:at.stop]
        o, lse = blocks.forward(part(q, m), part(k, m), part(v, m),
                                of(seen, m, m), scores)
        for i in chunks[:chunks.index(m)]:
            lse = blocks.merge(o, lse, *blocks.forward(
                part(q, m), part(k, i), part(v, i), of(seen, m, i), scores))
        if sinks:
            lse = blocks.sink(o, lse, sink)
            ds += blocks.sink_backward(part(do, m), o, lse, sink)
        torch.testing.assert_close(o, part(expected, m))
        for i in chunks[:chunks.index(m) + 1]:
            parts = blocks.backward(
                part(do, m).contiguous(), part(q, m), part(k, i), part(v, i),
                o, lse, of(seen, m, i), scores)
            for total, gradient, at in zip(got, parts, (m, i, i)):
                total[:, :, at.start:at.stop] += gradient
    for gradient, expected in zip([*got, ds], wanted):
        torch.testing.assert_close(gradient, expected)


def test_a_block_whose_rows_see_nothing_changes_nothing():
    q, k, v = inputs(2, 8, 8, 6, torch.float32)
    scores = blocks.Scores(1.0)
    o, lse = blocks.forward(q, k, v, Whole.CAUSAL, scores)
    before = o.clone(), lse.clone()
    nothing = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    lse = blocks.merge(o, lse, *blocks.forward(q, k, v, nothing, scores))
    assert torch.equal(o, before[0]) and torch.equal(lse, before[1])
    for gradient in blocks.backward(torch.ones_like(o), q, k, v, o, lse,
                                    nothing, scores):
        assert not gradient.any()


def test_a_row_may_see_nothing_at_first():
    q, k, v = inputs(2, 8, 8, 6, torch.float32)
    scores = blocks.Scores(1.0)
    nothing = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    o, lse = blocks.forward(q, k, v, nothing, scores)
    assert not o.any() and (lse == -torch.inf).all()
    lse = blocks.merge(o, lse, *blocks.forward(q, k, v, Whole.FULL, scores))
    expected = blocks.forward(q, k, v, Whole.FULL, scores)
    torch.testing.assert_close((o, lse.float()), expected)


@pytest.mark.parametrize("count", [128, 129, 300, 512, 513])
def test_a_causal_block_is_the_same_in_strips(count):
    q, k, v = inputs(2, 8, 8, count)
    scores = blocks.Scores(8 ** -0.5)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    expected = whole(*leaves, torch.ones(
        count, count, dtype=torch.bool).tril(), scores)
    do = torch.randn_like(expected)
    o, lse = blocks.forward(q, k, v, Whole.CAUSAL, scores)
    torch.testing.assert_close(o, expected)
    for gradient, wanted in zip(
            blocks.backward(do, q, k, v, o, lse, Whole.CAUSAL, scores),
            torch.autograd.grad(expected, leaves, do)):
        torch.testing.assert_close(gradient, wanted)
