"""Measures the costs of one step: seconds, bytes and copies, by kind of layer.

[Note: seconds] All seconds are device time. For a simulated GPU that is host
time. For a real GPU, where the host only enqueues work, two events are recorded
around the work, and the time between them is read when the step is over.
"""
from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.cuda.streams import Event

from sluice.memory import compute_device
from sluice.memory.compute_device import Moment
from sluice.native.leases import CopyStats
from sluice.plan.products import Mode, Place, Product, Products

FROZEN = ".frozen"  # suffix of a kind of layers without a backward


@dataclass
class Cost:
    """Cost of one weight's products, summed over layers and chunks."""

    nbytes: int = 0
    seconds: float = 0.0
    count: int = 0
    spared: int = 0  # number of products that replays leave out

    @property
    def replayed_seconds(self) -> float:
        return self.seconds * max(0, self.count - self.spared) / self.count

    def took(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class Kind:
    layers: int = 0  # number of forwards
    backwards: int = 0  # number of backwards
    products: dict[str, Cost] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {
        "forward": 0.0, "backward": 0.0})
    out: Counter[str] = field(default_factory=Counter)  # bytes to the host
    back: Counter[str] = field(default_factory=Counter)  # bytes to the device

    def took(self, direction: str, seconds: float) -> None:
        self.seconds[direction] += seconds


@dataclass
class Measured:
    """Costs of a step that recomputes everything; see [Note: seconds]."""

    copied: Callable[[], CopyStats]  # totals over all steps so far
    device: torch.device
    # Kinds of layers by name. A layer that is frozen together with all layers
    # before it is of a separate kind (FROZEN): it has no backward.
    kinds: dict[str, Kind] = field(default_factory=dict)
    # Spans that are not read yet: begin, end, callback for the seconds.
    _spans: list[tuple[Event, Event,
                       Callable[[float], None]]] = field(default_factory=list)

    @contextlib.contextmanager
    def layer(self, kind: str, direction: str, keeps: bool) -> Iterator[None]:
        """Measures a whole "forward" or "backward" of a layer. `keeps`: whether
        the layer may have a backward."""
        sums = self._kind(kind if keeps else kind + FROZEN)
        before, start = self.copied(), compute_device.now(self.device)
        yield
        self.since(start, functools.partial(sums.took, direction))
        after = self.copied()
        sums.out[direction] += (after.gpu_to_host_bytes
                                - before.gpu_to_host_bytes)
        sums.back[direction] += (after.host_to_gpu_bytes
                                 - before.host_to_gpu_bytes)
        sums.layers += direction == "forward"
        sums.backwards += direction == "backward"

    def metering(self, kind: str, products: Products
                 ) -> contextlib.AbstractContextManager:
        """Measures the products of a chunk's first forward in a layer."""
        costs = self._kind(kind).products

        def met(place: Place, product: Product, args: tuple, kwargs: dict
                ) -> Any:
            cost = costs.setdefault(product.weight, Cost())
            start = compute_device.now(self.device)
            out = product.function(*args, **kwargs)
            self.since(start, cost.took)
            cost.nbytes += out.nbytes
            cost.count += 1
            return out

        return Mode(products, met)

    def spared(self, kind: str, weights: Iterable[str]) -> None:
        """Notes that a chunk's replay leaves out one product of each weight."""
        costs = self._kind(kind).products
        for weight in weights:
            costs[weight].spared += 1

    def since(self, start: Moment, told: Callable[[float], None]) -> None:
        """Calls `told` with the seconds since `start`: at once for a simulated
        GPU, in `read` for a real one."""
        end = compute_device.now(self.device)
        if isinstance(start, float):
            told(end - start)
        else:
            self._spans.append((start, end, told))

    def read(self) -> None:
        """Waits for a real GPU to end all open spans; reads them."""
        while self._spans:
            start, end, told = self._spans.pop()
            end.synchronize()
            told(start.elapsed_time(end) / 1e3)

    @property
    def whole(self) -> bool:
        """Whether each layer that is not frozen had a backward."""
        keeping = [kind for name, kind in self.kinds.items()
                   if not name.endswith(FROZEN)]
        return bool(keeping) and all(
            0 < kind.layers == kind.backwards for kind in keeping)

    def _kind(self, name: str) -> Kind:
        return self.kinds.setdefault(name, Kind())
