"""Compares attention by blocks, which are merged by their log-sum-exp, with
attention over all keys at once."""

from __future__ import annotations

import sys

import pytest
import torch
from support import ROOT

from sluice.attention import blocks, whole_scores
from sluice.attention.intervals import Between, Whole, Window
from sluice.node.step import chunks_of

sys.path.insert(0, str(ROOT / "tests" / "bench"))
import counting

B, H = 2, 4


def inputs(heads_kv, d, dv, length, dtype=torch.float64):
    torch.manual_seed(0)
    return (torch.randn(B, H, length, d, dtype=dtype),
            torch.randn(B, heads_kv, length, d, dtype=dtype),
            torch.randn(B, heads_kv, length, dv, dtype=dtype))


def whole(q, k, v, seen, scores, sinks=None):
    """Computes attention by its definition, with autograd."""
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
    if rows == keys and (block == square).all():
        return Whole.CAUSAL
    return between(block[None])


def between(seen):
    """Returns the intervals of seen [B or 1, c, n]; each row sees one interval
    of keys, or nothing."""
    key, count = torch.arange(seen.shape[2]), seen.shape[2]
    return Between(torch.where(seen, key, count).amin(-1) + 5,
                   torch.where(seen, key, -1).amax(-1) + 5, 5)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("heads_kv,d,dv", [(4, 8, 8), (2, 8, 8), (1, 8, 4)])
def test_merged_blocks_equal_attention_over_all_keys(
        heads_kv, d, dv, window, softcap, sinks):
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


def test_a_block_without_visible_keys_changes_nothing():
    q, k, v = inputs(2, 8, 8, 6, torch.float32)
    scores = blocks.Scores(1.0)
    o, lse = blocks.forward(q, k, v, Whole.CAUSAL, scores)
    before = o.clone(), lse.clone()
    nothing = between(torch.zeros(1, 6, 6, dtype=torch.bool))
    lse = blocks.merge(o, lse, *blocks.forward(q, k, v, nothing, scores))
    assert torch.equal(o, before[0]) and torch.equal(lse, before[1])
    for gradient in blocks.backward(torch.ones_like(o), q, k, v, o, lse,
                                    nothing, scores):
        assert not gradient.any()


def test_the_first_block_of_a_row_may_have_no_visible_key():
    q, k, v = inputs(2, 8, 8, 6, torch.float32)
    scores = blocks.Scores(1.0)
    nothing = between(torch.zeros(1, 6, 6, dtype=torch.bool))
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


# Number of fp64 scores that fit: from less than a row's to more than all rows'.
@pytest.mark.parametrize("room", [1, 40, 300, 2000, 5000, 1 << 20])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("mask", ["full", "causal", "window", "behind", "blind",
                                  "each its own"])
def test_whole_scores_are_the_same_in_strips(monkeypatch, room, softcap, mask):
    """Covers each kind of mask, also rows that see nothing."""
    monkeypatch.setattr(whole_scores, "BYTES", 8 * room)
    monkeypatch.setattr(whole_scores, "_ROWS", 7)
    rows, keys = 19, {"full": 23, "behind": 11}.get(mask, 19)
    at, key = torch.arange(rows)[:, None], torch.arange(keys)
    told, seen = {
        "full": (Whole.FULL, at * 0 + key >= 0),
        "causal": (Whole.CAUSAL, key <= at),
        "window": (Window(3, 0), (key <= at) & (key >= at - 3)),
        "behind": (Window(2, None), key >= at + keys - rows - 2),
        "blind": (Window(12, -9), (key <= at - 9) & (key >= at - 12)),
        "each its own": (None, (key <= at) & (key >= at - 3) & (at != 4)),
    }[mask]
    if told is None:
        seen = torch.stack([seen, key <= at])
        told = between(seen)
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, heads, count, width, dtype=torch.float64)
               for heads, count, width in ((H, rows, 8), (2, keys, 8),
                                           (2, keys, 4)))
    scores = blocks.Scores(0.4, softcap)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    every = seen.view(-1, 1, rows, keys).expand(B, H, -1, -1)
    some = every.any(-1, keepdim=True)
    # The softmax of rows that see nothing is NaN, so these rows see all keys
    # here.
    expected = whole(*leaves, every | ~some, scores) * some
    do = torch.randn_like(expected)
    o, lse = blocks.forward(q, k, v, told, scores)
    torch.testing.assert_close(o, expected)
    assert torch.equal(lse == -torch.inf, ~some[..., 0])
    for got, wanted in zip(
            blocks.backward(do, q, k, v, o, lse, told, scores),
            torch.autograd.grad(expected, leaves, do)):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("shape", [
    (1, 1, 128, 8192, 8192), (1, 128, 1, 8192, 8192), (2, 8, 4, 65536, 65536),
    (3, 5, 2, 100, 7), (1, 2, 4, 8192, 1), (64, 2, 2, 1024, 1024)])
@pytest.mark.parametrize("element", [4, 8])
def test_a_strips_bytes_are_bounded_for_any_chunk(shape, element):
    batch, groups, share, rows, keys = shape
    covered = torch.zeros(batch, groups, rows, dtype=torch.uint8)
    for strip in whole_scores.strips(*shape, element):
        part = covered[strip]
        assert 0 < part.numel() * share * keys * element <= whole_scores.BYTES
        part += 1
    assert (covered == 1).all()


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_memory_does_not_depend_on_the_chunk(monkeypatch, softcap):
    """Measures the peak memory without inputs and outputs."""
    monkeypatch.setattr(whole_scores, "BYTES", 1 << 18)
    scores, counter = blocks.Scores(0.4, softcap), counting.Counter()

    def most(call, *inputs):
        before = counter.used_bytes
        counter.reset_peak()
        found = call(*inputs, Whole.CAUSAL, scores)
        peak = counter.peak_bytes - before
        return found, peak - sum(t.nbytes for t in found)

    for rows in (512, 2048):  # all scores would take 8 and 128 MiB
        q, k, v = inputs(2, 8, 4, rows, torch.float32)
        found, forward = most(blocks.forward, q, k, v)
        _, backward = most(blocks.backward, torch.ones_like(found[0]), q, k, v,
                           *found)
        capped = softcap is not None
        # Half of BYTES more is for the mask and the strip's copies of q, k, v.
        assert forward <= (1.5 + capped) * whole_scores.BYTES, forward
        assert backward <= (2.5 + capped) * whole_scores.BYTES, backward
