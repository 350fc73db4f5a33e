"""A layer's attention over chunks: k, v, o and lse in host memory, blocks
joined by their lse (FPDT, section 4; FlashAttention-2, section 3.1).

Forward, for the chunk m of rows: k_m and v_m go to the host; q_m walks the
chunks 0 .. m of k, v; o_m and lse_m go to the host. Backward comes from the
last chunk to the first, so that when the walk of chunk m is over, dk_m and
dv_m are whole: every later chunk has added its part already, in the host, in
fp32.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sluice import blocks
from sluice.intervals import Intervals, Piece
from sluice.precision import widened

if TYPE_CHECKING:
    from sluice.arena import HostArena, HostTensor


@dataclass
class Site:
    """One place of a layer where it calls attention, during one forward of
    the layer and its backward. Lists are by chunk; all of it is host memory
    that `release` gives back."""

    arena: HostArena
    chunks: list[range]
    blocks_run: int = 0
    heads: tuple[int, int] = (0, 0)  # of q, of k and v, on this rank
    k: list[HostTensor] = field(default_factory=list)  # [B, Hkv, c, D]
    v: list[HostTensor] = field(default_factory=list)  # [B, Hkv, c, Dv]
    o: list[HostTensor] = field(default_factory=list)  # [B, H, c, Dv], fp32
    lse: list[HostTensor] = field(default_factory=list)  # [B, H, c], fp32
    dk: dict[int, HostTensor] = field(default_factory=dict)  # fp32
    dv: dict[int, HostTensor] = field(default_factory=dict)

    def release(self) -> None:
        for kept in (self.k, self.v, self.o, self.lse):
            while kept:
                self.arena.drop(kept.pop())
        for sums in (self.dk, self.dv):
            while sums:
                self.arena.drop(sums.popitem()[1])

    def prefetch(self, chunk: int, device: torch.device) -> None:
        self.arena.prefetch(self.k[chunk], device)
        self.arena.prefetch(self.v[chunk], device)

    def fetch(self, chunk: int, device: torch.device) -> tuple[Tensor, Tensor]:
        return (self.arena.get(self.k[chunk], device),
                self.arena.get(self.v[chunk], device))

    def add(self, sums: dict[int, HostTensor], chunk: int,
            part: Tensor) -> None:
        if chunk in sums:
            self.arena.add(sums[chunk], part)
        else:
            sums[chunk] = self.arena.put(widened(part))

    def whole(self, sums: dict[int, HostTensor], chunk: int,
              own: Tensor | None, like: Tensor) -> Tensor:
        """What the later chunks left for this one, and its own part."""
        total = torch.zeros_like(widened(like)) if own is None else widened(own)
        if chunk in sums:
            total = total + self.arena.get(sums[chunk], like.device)
            self.arena.drop(sums.pop(chunk))
        return total


@dataclass(frozen=True)
class Question:
    """What one call of attention asks for, beside its tensors."""

    site: Site
    chunk: int
    replay: bool  # o and lse are kept already
    mask: Intervals
    scores: blocks.Scores

    def walk(self, backwards: bool = False) -> list[tuple[int, list[Piece]]]:
        """The chunks of k, v that some row of this chunk sees, and what its
        rows see of them."""
        rows = self.site.chunks[self.chunk]
        seen = [(i, self.mask.pieces(rows, self.site.chunks[i]))
                for i in range(self.chunk + 1)]
        seen = [(i, pieces) for i, pieces in seen if pieces]
        return seen[::-1] if backwards else seen


class Attend(torch.autograd.Function):
    """o [B, H, c, Dv] of q [B, H, c, D] against all keys that its rows see.

    Forward keeps what backward needs in `question.site`; backward gives the
    gradients of q, of this chunk's own k and v, and of the sinks [H].
    """

    @staticmethod
    def forward(ctx, question: Question, q: Tensor, k: Tensor, v: Tensor,
                sinks: Tensor | None) -> Tensor:
        site, m = question.site, question.chunk
        if question.replay:
            o = site.arena.get(site.o[m], q.device)
            lse = site.arena.get(site.lse[m], q.device)
        else:
            o, lse = _forward(question, q, k, v, sinks)
        ctx.question = question
        ctx.save_for_backward(q, k, v, o, lse, sinks)
        return o.to(q.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx, do: Tensor):
        question = ctx.question
        q, k, v, o, lse, sinks = ctx.saved_tensors
        dq, dk, dv = _backward(question, do.contiguous(), q, k, v, o, lse)
        ds = None if sinks is None else blocks.sink_backward(
            do, o, lse, sinks).to(sinks.dtype)
        return None, dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), ds


def one_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Under autocast RoPE leaves q and k in fp32 and v in bf16."""
    kind = q.device.type
    if torch.is_autocast_enabled(kind):
        wanted = torch.get_autocast_dtype(kind)
    elif q.dtype != v.dtype or k.dtype != v.dtype:
        wanted = v.dtype
    else:
        return q, k, v
    return q.to(wanted), k.to(wanted), v.to(wanted)


def _forward(question: Question, q: Tensor, k: Tensor, v: Tensor,
             sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    site, m = question.site, question.chunk
    site.heads = q.shape[1], k.shape[1]
    site.k.append(site.arena.put(k))
    site.v.append(site.arena.put(v))
    o = lse = None
    walk = question.walk()
    for n, (i, pieces) in enumerate(walk):
        if n + 1 < len(walk) and walk[n + 1][0] < m:
            site.prefetch(walk[n + 1][0], q.device)
        ki, vi = (k, v) if i == m else site.fetch(i, q.device)
        for piece in pieces:
            b, r, c = piece.batch, piece.rows, piece.keys
            part = blocks.forward(q[b, :, r], ki[b, :, c], vi[b, :, c],
                                  piece.mask, question.scores)
            if o is None and piece.is_whole_block:
                o, lse = part
                continue
            if o is None:
                o, lse = blocks.nothing(q, v)
            lse[b, :, r] = blocks.merge(o[b, :, r], lse[b, :, r], *part)
    site.blocks_run += len(walk)
    if sinks is not None:
        lse = blocks.sink(o, lse, sinks)
    site.o.append(site.arena.put(o))
    site.lse.append(site.arena.put(lse))
    return o, lse


def _backward(question: Question, do: Tensor, q: Tensor, k: Tensor, v: Tensor,
              o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    site, m = question.site, question.chunk
    dq = own_k = own_v = None
    walk = question.walk(backwards=True)
    for n, (i, pieces) in enumerate(walk):
        if n + 1 < len(walk):
            site.prefetch(walk[n + 1][0], q.device)
        ki, vi = (k, v) if i == m else site.fetch(i, q.device)
        dq, gk, gv = _block_backward(question, pieces, dq, do, q, ki, vi, o,
                                     lse)
        if i == m:
            own_k, own_v = gk, gv
        else:
            site.add(site.dk, i, gk)
            site.add(site.dv, i, gv)
    dk = site.whole(site.dk, m, own_k, k)
    dv = site.whole(site.dv, m, own_v, v)
    for kept in (site.k, site.v, site.o, site.lse):
        site.arena.drop(kept.pop())
    return dq, dk, dv


def _block_backward(question: Question, pieces: list[Piece],
                    dq: Tensor | None, do: Tensor, q: Tensor, k: Tensor,
                    v: Tensor, o: Tensor, lse: Tensor
                    ) -> tuple[Tensor, Tensor, Tensor]:
    """(dq so far and of this block, dk, dv of this block)."""
    if len(pieces) == 1 and pieces[0].is_whole_block:
        gq, gk, gv = blocks.backward(do, q, k, v, o, lse, pieces[0].mask,
                                     question.scores)
        return widened(gq) if dq is None else dq.add_(gq), gk, gv
    dq = torch.zeros_like(widened(q)) if dq is None else dq
    dk, dv = torch.zeros_like(widened(k)), torch.zeros_like(widened(v))
    for b, r, c, mask in pieces:
        gq, gk, gv = blocks.backward(
            do[b, :, r], q[b, :, r], k[b, :, c], v[b, :, c], o[b, :, r],
            lse[b, :, r], mask, question.scores)
        dq[b, :, r] += gq
        dk[b, :, c] += gk
        dv[b, :, c] += gv
    return dq, dk, dv
