"""A decoder layer as one autograd node: the user's own module, run chunk by
chunk, with attention answered from host memory.

[Note: chunked layer]
Forward, without autograd: for each chunk of rows the layer's own forward; its
attention goes through `attention.Attend`. Only the layer's input stays, in
the host. Backward, from the last chunk to the first: the layer's own forward
again, now with autograd, its attention answered from the kept (o, lse); then
autograd through that one chunk. One chunk's activations exist at a time.
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sluice import calls
from sluice.attention import Attend, Question, Site
from sluice.errors import Unsupported
from sluice.randomness import RandomState
from sluice.replay import (Buffers, Gradients, Setting, Slot, Snapshot,
                           distinct, slots)
from sluice.rows import Arguments, cut

if TYPE_CHECKING:
    from sluice.blocks import Scores
    from sluice.intervals import Intervals
    from sluice.streaming import Step

_running = threading.local()  # .call: the layer that runs in this thread


def running() -> LayerCall | None:
    """The streamed layer whose forward this thread is in, if any."""
    return getattr(_running, "call", None)


class LayerCall:
    """One forward of one layer, and its backward.

    Belongs to the thread that runs it. What it keeps in the host is given
    back when backward is over, or when the call is dropped without one.
    """

    def __init__(self, step: Step, layer: nn.Module, own: Callable,
                 arguments: Arguments):
        self.step, self.layer, self.own = step, layer, own
        self.arguments = arguments
        self.keeps = False  # whether a backward may come
        self.returns_tuple = False
        self._chunk, self._replay = 0, False
        self._site, self._sites = 0, []
        self._x: list = []  # the input's chunks, in the host
        self._random: list[RandomState | None] = []
        self._buffers: list[Snapshot | None] = []
        self._hashes: list[int] = []
        self._autocast = None
        self._setting: Setting | None = None

    # --- forward ----------------------------------------------------------

    def forward(self, x: Tensor, extra: list[Tensor],
                found: list[Slot]) -> Tensor:
        """y [B, S, H] of x [B, S, H], without autograd."""
        self._autocast = torch.autocast(
            x.device.type, torch.get_autocast_dtype(x.device.type),
            torch.is_autocast_enabled(x.device.type))
        arena, chunks = self.step.arena, self.step.chunks
        for c in chunks if self.keeps else ():
            self._x.append(arena.put(x[:, c.start:c.stop]))
        if self.keeps:
            self._setting = Setting(self.layer, found)
        y, version = None, _version(x)
        for m, rows in enumerate(chunks):
            part = self._first_run(m, x[:, rows.start:rows.stop],
                                   self._cut(extra, rows))
            if y is None:
                y = part.new_empty(*x.shape[:2], *part.shape[2:])
            y[:, rows.start:rows.stop] = part
        if _version(x) != version:
            raise Unsupported(type(self.layer).__name__,
                              "it writes its input in place",
                              "do not stream this model")
        if self.step.check and self.keeps:
            self._hashes = [_hash(y[:, c.start:c.stop]) for c in chunks]
        if not self.keeps:
            self.release()
        return y

    def _first_run(self, m: int, x: Tensor, extra: list[Tensor]) -> Tensor:
        random = RandomState(x.device)
        held = Buffers(self.layer)
        before = Snapshot(self.step.written_by(self.layer))
        y = self._run(m, x, extra)
        self._random.append(random if random.moved() else None)
        self._buffers.append(before)
        self._check_buffers(held)
        return y

    def _check_buffers(self, held: Buffers) -> None:
        known = self.step.written_by(self.layer)
        new = [name for owner, name in held.written()
               if (owner, name) not in known]
        if new and self.keeps:
            raise Unsupported(
                type(self.layer).__name__, f"buffer '{new[0]}', which it did "
                "not write when it was probed", "stream the model again after "
                "what has changed in it")

    def _run(self, m: int, x: Tensor, extra: list[Tensor]) -> Tensor:
        """The layer's own forward on one chunk."""
        self._chunk, self._site = m, 0
        args, kwargs = self.arguments.chunk(self.step.chunks[m], extra)
        before, _running.call = running(), self
        try:
            with self.step.inside():
                out = self.own(x, *args, **kwargs)
        finally:
            _running.call = before
        if self._site == 0:
            raise Unsupported(
                type(self.layer).__name__, "a layer without attention through "
                "transformers' attention registry: it mixes tokens elsewhere, "
                "or has its attention written out", "do not stream this model")
        if self._site != len(self._sites):
            raise Unsupported(
                type(self.layer).__name__, f"{self._site} calls of attention "
                f"in chunk {m}, {len(self._sites)} before",
                "do not stream this model")
        return self._hidden_of(out, x)

    def _hidden_of(self, out: Any, x: Tensor) -> Tensor:
        self.returns_tuple = isinstance(out, (tuple, list))
        hidden = out[0] if self.returns_tuple else out
        more = [o for o in out[1:] if o is not None] if (
            self.returns_tuple) else []
        if more or not isinstance(hidden, Tensor) or (
                hidden.shape[:2] != x.shape[:2]):
            raise Unsupported(
                type(self.layer).__name__, "an output beside its hidden "
                "states [B, S, H]" if more else "an output that is not "
                "hidden states [B, S, H]", "switch such outputs off, or do "
                "not stream this model")
        return hidden

    def _cut(self, extra: list[Tensor], rows: range) -> list[Tensor]:
        return [cut(leaf._replace(value=value), rows) for leaf, value in zip(
            self.arguments.differentiable(), extra)]

    # --- attention, called by the layer while it runs ----------------------

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Intervals,
               scores: Scores, sinks: Tensor | None) -> Tensor:
        """o [B, H, c, Dv] of this chunk's q [B, H, c, D] and its own k, v
        [B, Hkv, c, D or Dv] with those of all chunks before."""
        if self._site == len(self._sites):
            self._sites.append(Site(self.step.arena, self.step.chunks))
        site = self._sites[self._site]
        self._site += 1
        return Attend.apply(Question(site, self._chunk, self._replay, mask,
                                     scores), q, k, v, sinks)

    @property
    def blocks_run(self) -> int:
        return sum(site.blocks_run for site in self._sites)

    # --- backward ---------------------------------------------------------

    def backward(self, dy: Tensor, found: list[Slot], shape: torch.Size,
                 dtype: torch.dtype, needs_x: bool
                 ) -> tuple[Tensor | None, list[Tensor | None], list]:
        """(dx, gradients of the arguments, gradients of the parameters)."""
        dx = dy.new_empty(shape, dtype=dtype) if needs_x else None
        gradients = Gradients(found)
        of_arguments = [torch.zeros_like(leaf.value, dtype=torch.promote_types(
            leaf.value.dtype, torch.float32))
            for leaf in self.arguments.differentiable()]
        random = RandomState(dy.device)
        now = Snapshot(self.step.written_by(self.layer))
        self._replay = True
        try:
            self._setting.check()
            with gradients.in_place(), self._setting.in_place():
                for m in range(len(self.step.chunks) - 1, -1, -1):
                    part = self._backward_chunk(m, dy, needs_x, of_arguments)
                    if dx is not None:
                        rows = self.step.chunks[m]
                        dx[:, rows.start:rows.stop] = (
                            0 if part is None else part)
        finally:
            random.restore()
            now.restore()
            self.release()
        return dx, [g.to(leaf.value.dtype) for g, leaf in zip(
            of_arguments, self.arguments.differentiable())], gradients.take()

    def _backward_chunk(self, m: int, dy: Tensor, needs_x: bool,
                        of_arguments: list[Tensor]) -> Tensor | None:
        rows, arena = self.step.chunks[m], self.step.arena
        x = arena.get(self._x[m], dy.device).requires_grad_(needs_x)
        if m:
            arena.prefetch(self._x[m - 1], dy.device)
        leaves = self.arguments.differentiable()
        extra = [cut(leaf, rows).detach().requires_grad_() for leaf in leaves]
        if self._random[m] is not None:
            self._random[m].restore()
        self._buffers[m].restore()
        with torch.enable_grad(), self._autocast, self.step.engaged():
            y = self._run(m, x, extra)
        if self._hashes and _hash(y) != self._hashes[m]:
            raise RuntimeError(
                f"sluice: chunk {m} of {type(self.layer).__name__} was not "
                "the same in its second forward: its gradient would be of "
                "another function; report this model, and do not stream it")
        if y.requires_grad:  # it may have what it does not use here
            torch.autograd.backward(y, dy[:, rows.start:rows.stop])
        for total, leaf, part in zip(of_arguments, leaves, extra):
            if part.grad is not None:
                cut(leaf._replace(value=total), rows).add_(part.grad)
        arena.drop(self._x.pop())
        return x.grad

    def release(self) -> None:
        """Gives back what is still kept in the host. Safe to call again."""
        for site in self._sites:
            site.release()
        while self._x:
            self.step.arena.drop(self._x.pop())

    def __del__(self):
        # A forward whose backward never came. The collector may run this in
        # the midst of the arena's own work: it is told later.
        kept = [*self._x, *(h for s in self._sites for h in s.kept())]
        self.step.abandoned.extend(kept)


class _Node(torch.autograd.Function):
    """The layer in the user's graph: inputs x, the arguments that need a
    gradient, and the parameters themselves, which FSDP2 refills in place."""

    @staticmethod
    def forward(ctx, call: LayerCall, found: list[Slot], extra: int,
                x: Tensor, *rest: Tensor) -> Tensor:
        ctx.call, ctx.found = call, found
        ctx.shape, ctx.dtype = x.shape, x.dtype
        return call.forward(x, list(rest[:extra]), found)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        call, ctx.call = ctx.call, None
        if call is None:
            raise RuntimeError(calls.ONCE)
        dx, of_arguments, of_parameters = call.backward(
            dy, ctx.found, ctx.shape, ctx.dtype, ctx.needs_input_grad[3])
        return None, None, None, dx, *of_arguments, *of_parameters


def run(call: LayerCall, x: Tensor) -> Tensor:
    """y [B, S, H] of the layer of `call`, one node of the user's graph."""
    found = slots(call.layer)
    extra, trainable = call.arguments.tensors, distinct(found)
    call.keeps = torch.is_grad_enabled() and bool(
        x.requires_grad or extra or trainable)
    try:
        y = _Node.apply(call, found, len(extra), x, *extra, *trainable)
    except BaseException:
        call.release()
        raise
    call.step.blocks_run += call.blocks_run
    return y


def _version(x: Tensor) -> int | None:
    return None if x.is_inference() else x._version


def _hash(y: Tensor) -> int:
    return torch.hash_tensor(y.detach().contiguous()).view(torch.int64).item()
