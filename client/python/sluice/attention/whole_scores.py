"""Eager attention for blocks that no kernel supports: writes the scores of all
keys of a row to memory. `blocks` describes the shapes and merges the blocks.

[Note: strips of scores] The scores of a block in fp32 take 256 MiB per head for
8,192 rows and keys. So some rows of some heads are computed at a time, a strip
with at most BYTES of scores. Forward holds one tensor of that size, backward
two, and a softcap needs one more. Each also holds the strip's q, k and v in
fp32, and a mask of a few bytes for each score of one head. A strip's rows are
multiplied only with the keys that the mask reaches. Heads that share k and v
are rows of one product, so k and v are never repeated, and backward's product
sums their gradients.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sluice.attention.intervals import Between, Whole, Window
from sluice.base.precision import wide_dtype

BYTES = 256 << 20  # limit in bytes of a strip's scores, over all its heads
# Limit of a strip's rows. To fit into BYTES a strip first gets fewer heads, and
# then fewer rows, because with fewer rows k and v are read more often. Under a
# window, more rows reach more keys: on a CPU strips of 256 rows took a third of
# the time of 1024 rows with a window of 256 keys, and as long without a window.
_ROWS = 256
_UNSEEN = -math.inf

Mask = Whole | Window | Between


@dataclass(frozen=True)
class Scores:
    """How products of q and k become scores."""

    scale: float
    softcap: float | None = None  # tanh(score / softcap) * softcap


class Strip(NamedTuple):
    """Some rows of some heads; `groups` are heads of k and v."""

    batch: slice
    groups: slice
    rows: slice

    def of(self, x: Tensor, groups: int) -> Tensor:
        """Returns a view [b, g, heads that share k and v, r, d] of `x`."""
        return x.unflatten(1, (groups, -1))[self.batch, self.groups, :,
                                            self.rows]


def strips(batch: int, groups: int, share: int, rows: int, keys: int,
           element: int) -> Iterator[Strip]:
    """Yields the strips of a block; see [Note: strips of scores]. `groups`:
    heads of k and v; `share`: heads of q for each; `element`: bytes of a
    score. The smallest strip, one row of one group, may exceed BYTES."""
    room = max(1, BYTES // (element * share * keys))  # rows of one group
    tall = min(rows, _ROWS, room)
    wide = min(groups, room // tall)
    deep = min(batch, room // (tall * wide)) if wide == groups else 1
    for b, g, r in itertools.product(range(0, batch, deep),
                                     range(0, groups, wide),
                                     range(0, rows, tall)):
        yield Strip(slice(b, min(b + deep, batch)),
                    slice(g, min(g + wide, groups)),
                    slice(r, min(r + tall, rows)))


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scores: Scores
            ) -> tuple[Tensor, Tensor]:
    """Returns (o, lse) over this block's keys; (0, -inf) if a row sees none."""
    batch, heads, rows, _ = q.shape
    wide, groups = wide_dtype(q), k.shape[1]
    # o is [B, c, H, Dv] in memory, as layers need it.
    o = q.new_empty(batch, rows, heads, v.shape[-1], dtype=wide).transpose(1, 2)
    lse = q.new_empty(batch, heads, rows, 1, dtype=wide)
    for strip in _strips_of(q, k):
        at, seen = _reached(mask, strip, q, k)
        s = _scores(_scaled(strip.of(q, groups), scores), k[at].to(wide),
                    seen, scores)[0]
        top = s.amax(-1, keepdim=True)
        # exp(-inf - -inf) is NaN: subtract 0 in a row that sees no key.
        p = s.sub_(top.masked_fill(top == _UNSEEN, 0.0)).exp_()
        total = p.sum(-1, keepdim=True)
        strip.of(lse, groups).copy_(total.log() + top)
        # A row that sees a key has a total of at least 1, exp(0).
        strip.of(o, groups).copy_(
            _product(p, v[at].to(wide)).div_(total.clamp_(min=1.0)))
        del s, p  # free them before the next strip
    return o, lse.squeeze(-1)


def backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor,
             lse: Tensor, mask: Mask, scores: Scores
             ) -> tuple[Tensor, Tensor, Tensor]:
    wide, groups = wide_dtype(q), k.shape[1]
    dq = torch.empty_like(q, dtype=wide)
    dk, dv = (torch.zeros_like(x, dtype=wide) for x in (k, v))
    for strip in _strips_of(q, k):
        at, seen = _reached(mask, strip, q, k)
        rows, keys = _scaled(strip.of(q, groups), scores), k[at].to(wide)
        s, bent = _scores(rows, keys, seen, scores)
        known = strip.of(lse[..., None], groups)
        p = s.sub_(known.masked_fill(known == _UNSEEN, 0.0)).exp_()
        given, kept = (strip.of(x, groups).to(wide) for x in (do, o))
        dv[at].add_(_over_rows(p, given))
        ds = _product(given, v[at].to(wide).transpose(-1, -2))
        ds.sub_((given * kept).sum(-1, keepdim=True)).mul_(p)
        del s, p
        if bent is not None:
            ds.mul_(bent.square_().neg_().add_(1.0))
        dk[at].add_(_over_rows(ds, rows))  # `rows` are scaled already
        strip.of(dq, groups).copy_(_product(ds, keys).mul_(scores.scale))
        del ds, bent
    return dq, dk, dv


def _strips_of(q: Tensor, k: Tensor) -> Iterator[Strip]:
    groups = k.shape[1]
    return strips(q.shape[0], groups, q.shape[1] // groups, q.shape[2],
                  k.shape[2], wide_dtype(q).itemsize)


def _reached(mask: Mask, strip: Strip, q: Tensor, k: Tensor
             ) -> tuple[tuple[slice, ...], Tensor | None]:
    """Returns the index of the part of k [B, Hkv, n, D] that the strip's mask
    reaches, and the mask of that part, bool [b or 1, 1, 1, r, n'], or None if
    every row sees all of it."""
    count, rows = k.shape[2], range(q.shape[2])[strip.rows]
    keys, seen = range(count), None
    if isinstance(mask, Between):
        seen = mask.seen(strip.batch, rows, keys)
    elif mask is not Whole.FULL:
        window = Window(count, 0) if mask is Whole.CAUSAL else mask
        own = count - q.shape[2]  # the first row's own key
        keys = window.reach(rows, keys, own)
        seen = window.seen(rows, keys, own, q.device)
    return ((strip.batch, strip.groups, slice(keys.start, keys.stop)),
            None if seen is None else seen[:, :, None])


def _scaled(rows: Tensor, scores: Scores) -> Tensor:
    return rows.to(wide_dtype(rows)) * scores.scale


def _scores(rows: Tensor, keys: Tensor, seen: Tensor | None, scores: Scores
            ) -> tuple[Tensor, Tensor | None]:
    """Returns the scores [b, g, share, r, n'], -inf for unseen keys; and, with
    a softcap, tanh(score / softcap)."""
    s, bent = _product(rows, keys.transpose(-1, -2)), None
    if scores.softcap is not None:
        bent = s.div_(scores.softcap).tanh_()
        s = bent * scores.softcap
    return (s if seen is None else s.masked_fill_(~seen, _UNSEEN)), bent


def _product(rows: Tensor, other: Tensor) -> Tensor:
    """[b, g, share, r, m] and [b, g, m, d] -> [b, g, share, r, d]."""
    return (rows.flatten(2, 3) @ other).unflatten(2, rows.shape[2:4])


def _over_rows(one: Tensor, other: Tensor) -> Tensor:
    """[b, g, share, r, m] and [b, g, share, r, d] -> [b, g, m, d]."""
    return one.flatten(2, 3).transpose(-1, -2) @ other.flatten(2, 3)
