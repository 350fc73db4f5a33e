"""Passes tensors from a layer to later layers through host memory.

[Note: handed tensors]
Layers of Gemma-4 take the keys and values of an earlier layer from a dictionary
that all of them are called with. Each chunk gets a `Handing` instead. Backward
reaches the later layers first: the gradients of the tensors that they have
taken are summed in the host. The replay of the earlier layer uses the sums as
the gradients of the tensors that it puts.
"""
from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from sluice.base.precision import widened
from sluice.memory.arena import HostArena
from sluice.memory.slabs import HostTensor

ROWS = -2  # dimension of the rows: [B, heads, c, D]


class Handed:
    """Tensors put by a step's layers, and their gradients, by key and chunk."""

    def __init__(self, arena: HostArena, device: torch.device):
        self._arena, self._device = arena, device
        self._put: dict[tuple[Hashable, int], list[HostTensor]] = {}
        self._sums: dict[tuple[Hashable, int], list[HostTensor]] = {}

    def put(self, key: Hashable, m: int, tensors: Sequence[Tensor]) -> None:
        self._put[key, m] = [self._arena.put(t) for t in tensors]

    def get(self, key: Hashable, m: int) -> list[Tensor]:
        """Returns what a layer has put; raises KeyError if no layer has."""
        return self._fetched(self._put[key, m])

    def add(self, key: Hashable, m: int, gradients: Sequence[Tensor]) -> None:
        known = self._sums.get((key, m))
        if known is None:
            self._sums[key, m] = [self._arena.put(widened(g))
                                  for g in gradients]
        else:
            for host, gradient in zip(known, gradients):
                self._arena.add(host, widened(gradient))

    def take(self, key: Hashable, m: int) -> list[Tensor]:
        """Frees the tensors that were put, and returns their gradients; [] if
        no layer took them. Called once for each key and chunk."""
        self._drop(self._put.pop((key, m), []))
        hosts = self._sums.pop((key, m), [])
        found = self._fetched(hosts)
        self._drop(hosts)
        return found

    def keys(self) -> set[Hashable]:
        return {key for key, _ in self._put}

    def adopt(self, given: Mapping[Hashable, Sequence[Tensor]],
              chunks: Sequence[range]) -> None:
        for key, tensors in given.items():
            for m, rows in enumerate(chunks):
                self.put(key, m, [t.narrow(ROWS, rows.start, len(rows))
                                  for t in tensors])

    def _fetched(self, hosts: Sequence[HostTensor]) -> list[Tensor]:
        return [self._arena.get(host, self._device) for host in hosts]

    def _drop(self, hosts: Sequence[HostTensor]) -> None:
        for host in hosts:
            self._arena.drop(host)


class Handing:
    """The dictionary of one call of a layer, chunk by chunk, with only the
    operations that known layers use. `part`: the rows of the chunk that run,
    None: all; `left`: the keys that the layer has put."""

    def __init__(self, handed: Handed):
        self._handed = handed
        self._m, self._puts, self._replays = 0, False, False
        self._taken: dict[Hashable, tuple[Tensor, ...]] = {}
        self._made: dict[Hashable, tuple[Tensor, ...]] = {}
        self.part: range | None = None
        self.left: set[Hashable] = set()

    def begin(self, m: int, puts: bool, replays: bool) -> None:
        """Prepares a forward of chunk `m`: with `puts` the first forward, with
        `replays` a replay, with neither a rerun."""
        self.collect()
        self._m, self._puts, self._replays = m, puts, replays

    def collect(self) -> None:
        """Adds up gradients of taken tensors, after a replay's backward."""
        for key, taken in self._taken.items():
            if any(t.grad is not None for t in taken):
                self._handed.add(key, self._m, [
                    torch.zeros_like(t) if t.grad is None else t.grad
                    for t in taken])
        self._taken, self._made = {}, {}

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Returns what the replayed chunk put, each with its gradient."""
        return [(made, gradient.to(made.dtype))
                for key, tensors in self._made.items()
                for made, gradient in zip(tensors, self._handed.take(
                    key, self._m)) if made.requires_grad]

    def __getitem__(self, key: Hashable) -> tuple[Tensor, ...]:
        if self.part is not None:
            return tuple(t.detach().narrow(ROWS, self.part.start, len(
                self.part)) for t in self._taken[key])
        if not self._replays:
            return tuple(self._handed.get(key, self._m))
        if key not in self._taken:
            self._taken[key] = tuple(t.requires_grad_() for t in (
                self._handed.get(key, self._m)))
        return self._taken[key]

    def __setitem__(self, key: Hashable, tensors: tuple[Tensor, ...]) -> None:
        if self.part is not None:
            return
        if self._puts:
            self.left.add(key)
            self._handed.put(key, self._m, tensors)
        elif self._replays:
            self._made[key] = tensors
