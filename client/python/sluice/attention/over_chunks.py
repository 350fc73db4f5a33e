"""A layer's attention over chunks: k, v, o and lse live in host memory, and
blocks are merged by lse (FPDT, section 4; FlashAttention-2, section 3.1).

In forward k_m and v_m of chunk m go to the host, q_m walks the chunks 0 .. m
of k, v, and o_m and lse_m go to the host. Backward runs from the last chunk to
the first, so that dk_m and dv_m are complete after the walk of chunk m: every
later chunk has added its part in the host, in fp32.
"""
from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sluice.attention import blocks
from sluice.attention.gpu_blocks import Kernel
from sluice.attention.intervals import Intervals, Piece
from sluice.base.errors import Unsupported
from sluice.base.precision import wide_dtype, widened
from sluice.memory.arena import HostArena, HostTensor


@dataclass
class Site:
    """One call site of attention in a layer, during one forward and its
    backward. It keeps host tensors by chunk, which `release` frees."""

    arena: HostArena
    chunks: list[range]
    kernel: Kernel = "auto"  # requested for blocks on a GPU
    blocks_run: int = 0
    kernels: set[str] = field(default_factory=set)  # kernels that ran
    heads: tuple[int, int] = (0, 0)  # heads of q, of k and v, on this rank
    # k and v in one copy: [B, Hkv, c, D + Dv].
    kv: dict[int, HostTensor] = field(default_factory=dict)
    widths: tuple[int, int] = (0, 0)  # D, Dv
    # The bytes of lse [B, H, c], then of o [B, c, H, Dv].
    o: dict[int, HostTensor] = field(default_factory=dict)
    # dk and dv from later chunks, summed in fp32.
    dkv: dict[int, HostTensor] = field(default_factory=dict)

    def release(self) -> None:
        for kept in (self.kv, self.o, self.dkv):
            while kept:
                self.arena.drop(kept.popitem()[1])

    def forget(self, chunk: int) -> None:
        for kept in (self.kv, self.o):
            self.arena.drop(kept.pop(chunk))

    def prefetch(self, chunk: int, device: torch.device) -> None:
        self.arena.prefetch(self.kv[chunk], device)

    def fetch(self, chunk: int, device: torch.device) -> tuple[Tensor, ...]:
        return self.arena.get(self.kv[chunk], device).split_with_sizes(
            self.widths, -1)

    def keep_o(self, chunk: int, o: Tensor, lse: Tensor) -> None:
        """Keeps o, in the dtype of q or in lse's wide dtype, and lse."""
        self.o[chunk] = self.arena.put(torch.cat([
            part.reshape(-1).view(torch.uint8)
            for part in (lse, o.transpose(1, 2))]))

    def fetch_o(self, chunk: int, q: Tensor) -> tuple[Tensor, Tensor]:
        rows, wide = q.shape[:-1], wide_dtype(q)  # B, H, c
        both = self.arena.get(self.o[chunk], q.device)
        nbytes = rows.numel() * wide.itemsize
        lse, o = both.split_with_sizes((nbytes, both.numel() - nbytes))
        o = o.view(wide if o.numel() == nbytes * self.widths[1] else q.dtype)
        return o.view(rows[0], rows[2], rows[1], -1).transpose(1, 2), (
            lse.view(wide).view(rows))

    def add(self, chunk: int, dk: Tensor, dv: Tensor) -> None:
        """Adds to the gradients of an earlier chunk's k and v."""
        if chunk not in self.dkv:
            both = torch.cat((widened(dk), widened(dv)), -1)
        else:
            both = self._with(chunk, dk, dv)
        self.dkv[chunk] = self.arena.put(both)

    def prefetch_sums(self, chunk: int, device: torch.device) -> None:
        """Prefetches the sums for `add` or `whole` of the chunk."""
        if chunk in self.dkv:
            self.arena.prefetch(self.dkv[chunk], device)

    def whole(self, chunk: int, dk: Tensor, dv: Tensor) -> tuple[Tensor, ...]:
        """Returns this chunk's own gradients plus those from later chunks."""
        if chunk not in self.dkv:
            return dk, dv
        return self._with(chunk, dk, dv).split_with_sizes(self.widths, -1)

    def _with(self, chunk: int, dk: Tensor, dv: Tensor) -> Tensor:
        """Removes the chunk's sums from the host; returns them plus dk, dv."""
        both = self.arena.get(self.dkv[chunk], dk.device)
        for total, part in zip(both.split_with_sizes(self.widths, -1),
                               (dk, dv)):
            total += part
        self.arena.drop(self.dkv.pop(chunk))
        return both


@dataclass(frozen=True)
class Question:
    """The arguments of one attention call, except for its tensors."""

    site: Site
    chunk: int
    replay: bool  # the layer's second forward: o and lse are in the host
    mask: Intervals
    scores: blocks.Scores
    # In a replay: k and v were not computed again; fetch them from the host.
    without_kv: bool = False


class Attend(torch.autograd.Function):
    """Computes o [B, H, c, Dv] of q [B, H, c, D] over all keys that q sees.

    Forward keeps what backward needs in `question.site`. Backward returns the
    gradients of q, of this chunk's own k and v, and of the sinks [H].
    """

    @staticmethod
    def forward(ctx, question: Question, q: Tensor, k: Tensor, v: Tensor,
                sinks: Tensor | None) -> Tensor:
        site, m = question.site, question.chunk
        if question.replay:
            o, lse = site.fetch_o(m, q)
            if question.without_kv:
                k, v = site.fetch(m, q.device)
            ctx.question = question
            ctx.save_for_backward(q, k, v, o, lse, sinks)
            # A copy, because the layer may write into the result.
            return o.to(q.dtype, copy=True)
        with _as_written(q):
            return _forward(question, q, k, v, sinks).to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, do: Tensor):
        question = ctx.question
        q, k, v, o, lse, sinks = ctx.saved_tensors
        with _as_written(q):
            dq, dk, dv = _backward(
                question, do if do.stride(-1) == 1 else do.contiguous(), q, k,
                v, o, lse)
        ds = None if sinks is None else blocks.sink_backward(
            do, o, lse, sinks).to(sinks.dtype)
        return None, dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), ds


def _as_written(q: Tensor) -> contextlib.AbstractContextManager:
    """Switches autocast off, which would compute a block's scores in bf16."""
    if not torch.is_autocast_enabled(q.device.type):
        return contextlib.nullcontext()
    return torch.autocast(q.device.type, enabled=False)


def one_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Casts to one dtype: under autocast RoPE returns fp32, and v is bf16."""
    kind = q.device.type
    if torch.is_autocast_enabled(kind):
        wanted = torch.get_autocast_dtype(kind)
    elif q.dtype != v.dtype or k.dtype != v.dtype:
        wanted = v.dtype
    else:
        return q, k, v
    return q.to(wanted), k.to(wanted), v.to(wanted)


def _forward(question: Question, q: Tensor, k: Tensor, v: Tensor,
             sinks: Tensor | None) -> Tensor:
    """Returns o in fp32, which the caller owns."""
    site, m = question.site, question.chunk
    site.heads = q.shape[1], k.shape[1]
    site.widths = k.shape[-1], v.shape[-1]
    site.kv[m] = site.arena.put(torch.cat((k, v), -1))
    seen = None  # o and lse (in double) over the keys so far
    kernels: set[str] = set()
    walk = question.mask.seen(site.chunks, m)
    for n, (i, pieces) in enumerate(walk):
        if n + 1 < len(walk) and walk[n + 1][0] < m:
            site.prefetch(walk[n + 1][0], q.device)
        ki, vi = (k, v) if i == m else site.fetch(i, q.device)
        for piece in pieces:
            seen = _with_piece(question, piece, seen, q, ki, vi, kernels)
    site.blocks_run += len(walk)
    site.kernels |= kernels
    # Rows of padding may see no key at all.
    o, lse = blocks.nothing(q, v) if seen is None else seen
    if sinks is not None:
        lse = blocks.sink(o, lse, sinks)
    rounded = sinks is None and not kernels & blocks.READ_WIDE
    site.keep_o(m, o.to(q.dtype) if rounded else o, lse.to(o.dtype))
    return o


def _with_piece(question: Question, piece: Piece,
                seen: tuple[Tensor, Tensor] | None, q: Tensor, k: Tensor,
                v: Tensor, kernels: set[str]) -> tuple[Tensor, Tensor]:
    """Returns (o, lse) of `seen` and `piece`; adds the kernel to `kernels`."""
    b, r, c, mask = piece
    site = question.site
    kernels.add(blocks.kernel_of(q, k[b, :, c], v, mask, question.scores,
                                 site.kernel, not piece.is_whole_block))
    if piece.is_whole_block:
        o, lse = blocks.forward(q, k, v, mask, question.scores, site.kernel)
        return (o, lse.double()) if seen is None else (
            seen[0], blocks.merge(*seen, o, lse))
    o, lse = blocks.nothing(q, v) if seen is None else seen
    lse[b, :, r] = blocks.merge(
        o[b, :, r], lse[b, :, r], *blocks.forward(
            q[b, :, r], k[b, :, c], v[b, :, c], mask, question.scores,
            site.kernel, part=True))
    return o, lse


def _backward(question: Question, do: Tensor, q: Tensor, k: Tensor, v: Tensor,
              o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    site, m = question.site, question.chunk
    dq = own = None
    walk = question.mask.seen(site.chunks, m)[::-1]
    for n, (i, pieces) in enumerate(walk):
        if n + 1 < len(walk):
            site.prefetch(walk[n + 1][0], q.device)
        else:
            site.prefetch_sums(m, q.device)
        if i != m:  # the sums arrive while the block that adds to them runs
            site.prefetch_sums(i, q.device)
        ki, vi = (k, v) if i == m else site.fetch(i, q.device)
        dq, gk, gv = _block_backward(question, pieces, dq, do, q, ki, vi, o,
                                     lse)
        if i == m:
            own = gk, gv
        else:
            site.add(i, gk, gv)
    if dq is None:
        dq = torch.zeros_like(q)
    if own is None:
        own = torch.zeros_like(k), torch.zeros_like(v)
    dk, dv = site.whole(m, *own)
    site.forget(m)
    return dq, dk, dv


def _block_backward(question: Question, pieces: list[Piece], dq: Tensor | None,
                    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor,
                    lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `dq` plus this block's dq, and dk, dv of the block."""
    if len(pieces) == 1 and pieces[0].is_whole_block:
        gq, gk, gv = blocks.backward(do, q, k, v, o, lse, pieces[0].mask,
                                     question.scores, question.site.kernel)
        return widened(gq) if dq is None else dq.add_(gq), gk, gv
    dq = torch.zeros_like(widened(q)) if dq is None else dq
    dk, dv = torch.zeros_like(widened(k)), torch.zeros_like(widened(v))
    for b, r, c, mask in pieces:
        gq, gk, gv = blocks.backward(
            do[b, :, r], q[b, :, r], k[b, :, c], v[b, :, c], o[b, :, r],
            lse[b, :, r], mask, question.scores, question.site.kernel,
            part=True)
        dq[b, :, r].add_(gq)
        dk[b, :, c].add_(gk)
        dv[b, :, c].add_(gv)
    return dq, dk, dv


def refuse_dropout(module: nn.Module, p: float) -> NoReturn:
    """Raises `Unsupported` for attention dropout in `module` or in one of its
    modules, and names where it is set. A config is read only when a model is
    made, so for an existing model the remedy names modules."""
    parts = list(module.modules())
    places = [(name, type(part).__name__) for part in parts for name, value in (
        *vars(part).items(), *((f"{n}.p", getattr(child, "p", None))
                               for n, child in part._modules.items()))
        if "drop" in name and value == p]
    fields = [name for part in parts if hasattr(part, "config")
              for name, value in vars(part.config).items()
              if "drop" in name and value == p]
    remedies = []
    if places:
        # Dropout outside attention may have the same value, so names with "att"
        # come first. Some modules have the value in two attributes.
        ranks = {place: ("att" in place[0], "att" in place[1].lower())
                 for place in places}
        best, (_, kind) = max((rank, place) for place, rank in ranks.items())
        names = dict.fromkeys(name for (name, of), rank in ranks.items()
                              if rank == best and of == kind)
        remedies.append(f"set {' = '.join(names)} = 0 in each {kind} of the "
                        "model")
    if fields:
        name = max(fields, key=lambda field: "att" in field)
        remedies.append(f"load the model with {name} = 0")
    raise Unsupported(type(module).__name__, f"attention dropout of {p:g}",
                      ", or ".join(remedies or ["switch it off"]))
