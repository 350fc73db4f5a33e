"""Attention of one chunk over the ranks of a group, by all-to-all exchanges of
rows for heads (DeepSpeed-Ulysses, section 3.1).

Each rank has its slice of the chunk with all heads. After `gather` it has the
whole chunk with its share of the heads, and attention runs as on one rank.
`scatter` undoes `gather`. Each is one all-to-all, and the gradient of the
other.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from sluice.attention.over_chunks import Attend, Question
from sluice.base.precision import wide_dtype
from sluice.ranks.groups import Ranks


def attend(ranks: Ranks | None, question: Question, q: Tensor, k: Tensor,
           v: Tensor, sinks: Tensor | None) -> Tensor:
    """Returns o [B, H, c, Dv] of this rank's rows of the question's chunk,
    given q [B, H, c, D]; k, v [B, Hkv, c, D or Dv]; sinks [H]. A collective
    unless `ranks` is None."""
    if ranks is None:
        return Attend.apply(question, q, k, v, sinks)
    sizes = [len(s) for s in ranks.slices(question.site.chunks[question.chunk])]
    needed = ranks.needed(q.shape[1], k.shape[1], q.device)
    q, k, v = _Gather.apply(ranks, sizes, needed, q, k, v)
    if sinks is not None:  # keeps the sinks of this rank's heads
        sinks = sinks.chunk(ranks.size)[ranks.rank]
    return _Scatter.apply(ranks, sizes, Attend.apply(question, q, k, v, sinks))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ranks: Ranks, sizes: list[int], needed: Tensor, q: Tensor,
                k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        ctx.kept = ranks, sizes, needed, k.shape[1]
        return tuple(gather(ranks, sizes, [q, k.index_select(1, needed),
                                           v.index_select(1, needed)]))

    @staticmethod
    @once_differentiable
    def backward(ctx, dq: Tensor, dk: Tensor, dv: Tensor):
        ranks, sizes, needed, kv_heads = ctx.kept
        dq, dk, dv = scatter(ranks, sizes, [dq, dk, dv])
        return (None, None, None, dq, _summed(dk, needed, kv_heads),
                _summed(dv, needed, kv_heads))


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ranks: Ranks, sizes: list[int], o: Tensor) -> Tensor:
        ctx.kept = ranks, sizes
        return scatter(ranks, sizes, [o])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx, do: Tensor):
        ranks, sizes = ctx.kept
        return None, None, gather(ranks, sizes, [do])[0]


def gather(ranks: Ranks, sizes: Sequence[int], parts: Sequence[Tensor]
           ) -> list[Tensor]:
    """Exchanges each part [B, P * h, own rows, D] -> [B, h, all rows, D];
    `sizes` has each rank's number of rows. A collective."""
    batch, rows = parts[0].shape[0], parts[0].shape[2]
    send = torch.cat([p.unflatten(1, (ranks.size, -1)).transpose(0, 1)
                      .reshape(ranks.size, -1) for p in parts], dim=1)
    per_row = send.shape[1] // rows
    received = send.new_empty(per_row * sum(sizes))
    ranks.wait(dist.all_to_all_single(
        received, send.view(-1), [per_row * n for n in sizes],
        [per_row * rows] * ranks.size, group=ranks.group, async_op=True),
        send.device)
    # `received` has, rank after rank, that rank's rows of each part.
    pieces: list[list[Tensor]] = [[] for _ in parts]
    at = 0
    for n in sizes:
        for i, part in enumerate(parts):
            shape = (batch, part.shape[1] // ranks.size, n, part.shape[3])
            count = shape[0] * shape[1] * n * shape[3]
            pieces[i].append(received[at:at + count].view(shape))
            at += count
    return [torch.cat(piece, dim=2) for piece in pieces]


def scatter(ranks: Ranks, sizes: Sequence[int], parts: Sequence[Tensor]
            ) -> list[Tensor]:
    """Undoes `gather`: [B, h, all rows, D] -> [B, P * h, own rows, D]. A
    collective."""
    batch, own = parts[0].shape[0], sizes[ranks.rank]
    send = torch.cat([piece.reshape(-1) for rows in zip(*(
        p.split(list(sizes), dim=2) for p in parts)) for piece in rows])
    per_row = send.numel() // sum(sizes)
    received = send.new_empty(ranks.size, per_row * own)
    ranks.wait(dist.all_to_all_single(
        received.view(-1), send, [per_row * own] * ranks.size,
        [per_row * n for n in sizes], group=ranks.group, async_op=True),
        send.device)
    found, at = [], 0
    for part in parts:
        count = batch * part.shape[1] * own * part.shape[3]
        piece = received[:, at:at + count].reshape(
            ranks.size, batch, part.shape[1], own, part.shape[3])
        found.append(piece.transpose(0, 1).flatten(1, 2))
        at += count
    return found


def _summed(parts: Tensor, of: Tensor, heads: int) -> Tensor:
    """Sums the gradients of copied heads in fp32; copy i is of head `of[i]`."""
    if parts.shape[1] == heads:
        return parts
    wide = wide_dtype(parts)
    total = parts.new_zeros(parts.shape[0], heads, *parts.shape[2:], dtype=wide)
    return total.index_add_(1, of, parts.to(wide)).to(parts.dtype)
