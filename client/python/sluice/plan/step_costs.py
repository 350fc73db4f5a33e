"""What one step of a stream costs: its layers' seconds, bytes and copies, each
kind of layers by itself.

[Note: seconds] They are the device's. A simulated GPU's are the host's. The
host only enqueues what a real one computes, so there two events are enqueued
around it, and asked how far they were apart once the step is over.
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

FROZEN = ".frozen"  # ends the name of a kind of layers without a backward


@dataclass
class Cost:
    """The cost of one weight's products, summed over the layers."""

    nbytes: int = 0
    seconds: float = 0.0
    count: int = 0
    spared: int = 0  # of them, which replays leave out

    @property
    def replayed_seconds(self) -> float:
        """Seconds of those that are computed again; see `spared`."""
        return self.seconds * max(0, self.count - self.spared) / self.count

    def took(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class Kind:
    layers: int = 0  # forwards, of which each may have a backward, or none
    backwards: int = 0
    products: dict[str, Cost] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {
        "forward": 0.0, "backward": 0.0})
    out: Counter[str] = field(default_factory=Counter)  # bytes to the host
    back: Counter[str] = field(default_factory=Counter)

    def took(self, direction: str, seconds: float) -> None:
        self.seconds[direction] += seconds


@dataclass
class Measured:
    """A step that computes all of it again; see [Note: seconds]."""

    copied: Callable[[], CopyStats]  # so far, by all steps
    device: torch.device
    # By name. Layers that are frozen, with all before them, are a kind of
    # their own: they keep nothing, and only their forward takes time.
    kinds: dict[str, Kind] = field(default_factory=dict)
    # Spans that are not read yet: begin, end, what is told the seconds.
    _spans: list[tuple[Event, Event,
                       Callable[[float], None]]] = field(default_factory=list)

    @contextlib.contextmanager
    def layer(self, kind: str, direction: str, keeps: bool) -> Iterator[None]:
        """Around a layer's whole "forward" or "backward"; `keeps`: its
        backward may come."""
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
        """Around the first forward of one chunk of a layer."""
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
        """A replay of one chunk of a layer leaves out the products of these
        weights, one each."""
        costs = self._kind(kind).products
        for weight in weights:
            costs[weight].spared += 1

    def since(self, start: Moment, told: Callable[[float], None]) -> None:
        """`told` is given the seconds, on a real GPU by `read`."""
        end = compute_device.now(self.device)
        if isinstance(start, float):
            told(end - start)
        else:
            self._spans.append((start, end, told))

    def read(self) -> None:
        """Waits for the step on a real GPU; its seconds are there then."""
        while self._spans:
            start, end, told = self._spans.pop()
            end.synchronize()
            told(start.elapsed_time(end) / 1e3)

    @property
    def whole(self) -> bool:
        """A backward of each layer that keeps something for it."""
        keeping = [kind for name, kind in self.kinds.items()
                   if not name.endswith(FROZEN)]
        return bool(keeping) and all(
            0 < kind.layers == kind.backwards for kind in keeping)

    def _kind(self, name: str) -> Kind:
        return self.kinds.setdefault(name, Kind())
