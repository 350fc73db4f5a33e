"""Runs a module chunk by chunk as one autograd node.

[Note: chunked module]
Forward runs the module's own forward on each chunk of rows, without autograd,
and keeps only the module's input, in the host. Backward goes from the last
chunk to the first: it runs the module's forward again (the replay), with
autograd, then the chunk's backward. One chunk's activations exist at a time.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sluice.base.errors import Unsupported
from sluice.base.hashing import equal, of_tensor
from sluice.base.precision import autocast_now, wide_dtype
from sluice.base.randomness import RandomState
from sluice.memory.slabs import HostTensor
from sluice.node import calls
from sluice.node.hidden_rows import DeviceRows, HostRows, OnDevice
from sluice.node.replay import (
    Buffers,
    Gradients,
    Slot,
    Snapshot,
    distinct,
    slots,
)
from sluice.node.rows import Leaf, cut
from sluice.node.setting import Setting
from sluice.node.step import Step


class Modules(Protocol):
    """What a call runs: a module, or several."""

    def modules(self) -> Iterator[nn.Module]:
        """Yields all modules that have parameters or buffers of the call."""


class ChunkedCall:
    """One forward of a module over all rows, and its backward. Host memory is
    freed after backward, or with the object. Used by one thread at a time."""

    def __init__(self, step: Step, module: Modules, name: str,
                 chunks: list[range] | None = None):
        self.step, self.module, self.name = step, module, name
        # `chunks` is given only if hidden states are on the device.
        self.chunks = chunks or step.chunks
        self._places = step.hidden if chunks is None else OnDevice(
            step.arena, chunks)
        self.keeps = False  # whether a backward may come
        self.replays = False  # whether that backward has begun
        self._x: list[HostTensor] = []  # the input's chunks, in the host
        self._random: list[RandomState | None] = []
        self._buffers: list[Snapshot | None] = []
        # Hashes of the chunks to compare with their replays.
        self._fingerprints: dict[int, Tensor] = {}
        self._autocast: Any = None
        self._setting: Setting | None = None
        self._owners: list[nn.Module] = []  # modules with buffers
        # Whether forward, and so the replay, may replace buffers.
        self.may_replace = False
        # Tensors that a layer run whole returns beside y, and their gradients.
        self.more: Sequence[Tensor] = ()
        self.of_more: Sequence[Tensor] = ()

    # --- hooks for subclasses -----------------------------------------------

    def compute(self, m: int, x: Tensor | None, extra: list[Tensor]) -> Tensor:
        """Runs the module's own forward on chunk `m`; returns y [B, c, H']."""
        raise NotImplementedError

    def arguments(self) -> list[Leaf]:
        """Returns the arguments other than x that need a gradient."""
        return []

    def beside(self, m: int) -> list[tuple[Tensor, Tensor]]:
        """Returns (output, gradient) for outputs of `m`'s replay beside y."""
        return []

    def run_again(self) -> None:
        """Called before the first replay."""

    def compares_parts(self, m: int) -> bool:
        """Returns whether chunk `m` is also compared in two parts. A chunk that
        draws random numbers is not: its parts would draw others."""
        return self.is_compared(m) and self.step.checks.in_parts and (
            self._random[m] is None)

    def compare_parts(self, m: int, x: Tensor | None, y: Tensor, same: Tensor
                      ) -> bool:
        """Returns `same`. Raises `Unsupported` if chunk `m`, run from x in two
        parts, does not give y ([Note: two parts] in checked_chunks)."""
        return bool(same)

    def bits(self, y: Tensor) -> Tensor:
        """Returns int64 hashes of all outputs of a chunk."""
        return of_tensor(y)

    def release(self) -> None:
        """Frees what is still kept in the host. Idempotent."""
        while self._x:
            self.step.arena.drop(self._x.pop())

    def is_compared(self, m: int) -> bool:
        """Returns whether the replay of `m` must equal its first forward bit by
        bit; see [Note: checks] in checked_chunks."""
        return m in self._fingerprints

    def forward(self, x: Tensor | None, extra: list[Tensor],
                found: list[Slot]) -> Tensor:
        """Returns y [B, S, H'] for x [B, S, H]. x is None for the modules
        before the layers, which make the hidden states."""
        self._autocast = autocast_now(self.step.device)
        if self.keeps:
            self._setting = Setting(self.module, found, self.step.written_by(
                self.module))
        self._owners = [m for m in self.module.modules() if m._buffers]
        source = None if x is None else self._places.reading(x, self.name)
        y = self._places.writing()
        for m, rows in enumerate(self.chunks):
            part = None
            if source is not None:
                # Layers may view their input as [B * S, H].
                part = source.read(m).contiguous()
                if m + 1 < len(self.chunks):
                    source.prefetch(m + 1)
                if self.keeps:
                    self._keep(source, m)
                else:
                    source.drop(m)
            y.write(m, self._first_run(m, part, self._cut(extra, rows)))
        if self._x:
            # Running copies of x's chunks would keep all of x alive.
            self.step.arena.settle(self._x[-1])
        if self.keeps:
            self._setting.take_rewritten()
            if self._fingerprints:
                self._setting.note_elsewhere()
        else:
            self.release()
        return y.tensor()

    def _first_run(self, m: int, x: Tensor | None,
                   extra: list[Tensor]) -> Tensor:
        random = RandomState(self.step.device)
        held, version = Buffers(self._owners), version_of(x)
        before = Snapshot(self.step.written_by(self.module))
        y = self.compute(m, x, extra)
        self._random.append(random if random.moved() else None)
        self._buffers.append(before)
        self._check_buffers(held)
        if version_of(x) != version:
            raise Unsupported(self.name, "it writes its input in place")
        if self.keeps and self.step.checks.include(self.module, m,
                                                   len(self.chunks)):
            self._fingerprints[m] = self.bits(y)
        return y

    def _check_buffers(self, held: Buffers) -> None:
        known = self.step.written_by(self.module)
        new = [place for place in held.written(not self.may_replace)
               if place not in known]
        if new and self.keeps:
            raise Unsupported(self.name, f"it writes buffer '{new[0][1]}', but "
                              "did not when it was probed", "unstream and "
                              "stream the model again after a change to it")

    def _cut(self, extra: list[Tensor], rows: range) -> list[Tensor]:
        return [cut(leaf._replace(value=value), rows)
                for leaf, value in zip(self.arguments(), extra)]

    def backward(self, dy: Tensor, found: list[Slot], needs_x: bool
                 ) -> tuple[Tensor | None, list[Tensor | None], list]:
        """Replays the chunks; returns gradients of x, arguments, weights."""
        dy = self._places.reading(dy, self.name)
        dx = self._places.writing() if needs_x else None
        gradients, leaves = Gradients(found), self.arguments()
        of_arguments = [torch.zeros_like(leaf.value, dtype=wide_dtype(
            leaf.value)) for leaf in leaves]
        self.replays = True
        try:
            # engaged() takes the stream's turn, so no other forward sees the
            # aliases of the parameters.
            with self.step.engaged(), self._as_in_forward(), (
                    gradients.in_place()):
                self.run_again()
                for m in range(len(self.chunks) - 1, -1, -1):
                    part = self._backward_chunk(m, dy, needs_x, of_arguments)
                    if dx is not None:
                        dx.write(m, part)
        finally:
            self.release()
        if self._fingerprints:
            self.step.checks.passed()
        of_parameters, ranks = gradients.take(), self.step.ranks
        if ranks is not None:
            of_parameters = ranks.filled(of_parameters, distinct(found))
        return None if dx is None else dx.tensor(), [
            g.to(leaf.value.dtype) for g, leaf in zip(of_arguments, leaves)
        ], of_parameters

    @contextlib.contextmanager
    def _as_in_forward(self) -> Iterator[None]:
        """Within the block the module has the state of its forward; afterwards
        random state and the buffers that it writes are as before."""
        random = RandomState(self.step.device)
        now = Snapshot(self.step.written_by(self.module))
        try:
            self._setting.check()
            with self._setting.in_place():
                yield
        finally:
            random.restore()
            now.restore()

    def _backward_chunk(self, m: int, dy: DeviceRows | HostRows, needs_x: bool,
                        of_arguments: list[Tensor]) -> Tensor | None:
        """Replays chunk `m`, and runs its backward; returns dx [B, c, H]."""
        x, rows = self._input(m, needs_x), self.chunks[m]
        leaves = self.arguments()
        extra = [cut(leaf, rows).detach().requires_grad_() for leaf in leaves]
        self._restore(m)
        with torch.enable_grad(), self._autocast:
            y = self.compute(m, x, extra)
        if self.is_compared(m):
            same: Tensor | bool = equal(self.bits(y), self._fingerprints[m])
            if self.compares_parts(m):
                with torch.no_grad(), self._autocast:
                    same = self.compare_parts(m, x, y, same)
            if not same:
                raise RuntimeError(
                    f"sluice: chunk {m} of {self.name} computed other values "
                    "in its second forward than in its first: "
                    f"{self._setting.changed_elsewhere()}; change such things "
                    "after backward(), or do not stream this model")
        gradient = dy.read(m)
        dy.drop(m)
        if m:
            dy.prefetch(m - 1)
        # y has no graph if nothing that it depends on needs a gradient.
        roots = [(y, gradient)] if y.requires_grad else []
        roots += self.beside(m)
        if roots:
            torch.autograd.backward(*zip(*roots))
        for total, leaf, part in zip(of_arguments, leaves, extra):
            if part.grad is not None:
                cut(leaf._replace(value=total), rows).add_(part.grad)
        if x is None:
            return None
        self._drop_input()
        return torch.zeros_like(x) if x.grad is None else x.grad

    def _restore(self, m: int) -> None:
        """Restores random state and buffers from before `m`'s first run."""
        if self._random[m] is not None:
            self._random[m].restore()
        self._buffers[m].restore()

    def _keep(self, source: DeviceRows | HostRows, m: int) -> None:
        self._x.append(source.keep(m))

    def _drop_input(self) -> None:
        self.step.arena.drop(self._x.pop())

    def _input(self, m: int, needs_x: bool) -> Tensor | None:
        if not self._x:
            return None
        arena, device = self.step.arena, self.step.device
        if m:
            arena.prefetch(self._x[m - 1], device)
        return arena.get(self._x[m], device).requires_grad_(needs_x)


class _Node(torch.autograd.Function):
    """The call in the user's graph. Inputs are x, the arguments that need a
    gradient, and the parameters themselves, which FSDP2 refills in place."""

    @staticmethod
    def forward(ctx, call: ChunkedCall, found: list[Slot], extra: int,
                x: Tensor | None, *rest: Tensor) -> Any:
        ctx.call, ctx.found = call, found
        y = call.forward(x, list(rest[:extra]), found)
        if not call.more:
            return y
        ctx.mark_non_differentiable(*(t for t in call.more
                                      if not t.is_floating_point()))
        return y, *call.more

    @staticmethod
    @calls.once
    def backward(ctx, dy: Tensor, *of_more: Tensor):
        call, ctx.call = ctx.call, None
        if call is None:
            raise RuntimeError(calls.ONCE)
        call.of_more = of_more
        with call.step.telling():
            dx, of_arguments, of_parameters = call.backward(
                dy, ctx.found, ctx.needs_input_grad[3])
        return None, None, None, dx, *of_arguments, *of_parameters


def run(call: ChunkedCall, x: Tensor | None) -> Tensor:
    """Returns y [B, S, H'] of `call`, as one node of the user's graph."""
    found = slots(call.module)
    extra = [leaf.value for leaf in call.arguments()]
    trainable = distinct(found)
    call.keeps = torch.is_grad_enabled() and bool(
        extra or trainable or (x is not None and x.requires_grad))
    try:
        y = _Node.apply(call, found, len(extra), x, *extra, *trainable)
    except BaseException:
        call.release()
        raise
    if call.more:
        y, *call.more = y
    return y


def version_of(x: Tensor | None) -> int | None:
    """Returns x's version, which each write in place changes. None if x is
    None or an inference tensor, which has no version."""
    return None if x is None or x.is_inference() else x._version
