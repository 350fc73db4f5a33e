"""What one step of a stream costs: its layers' seconds, bytes and copies."""
from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sluice.leased import CopyStats
from sluice.products import Mode, Place, Product, Products


@dataclass
class Cost:
    """Of one weight's products, summed over all layers that have one."""

    nbytes: int = 0
    seconds: float = 0.0


@dataclass
class Copied:
    """Bytes to the host and from it."""

    out: int = 0
    back: int = 0


@dataclass
class Measured:
    """A step that computes everything again, while it runs. Its time is the
    host's: that is the device's where the GPU is simulated."""

    layers: int
    copied: Callable[[], CopyStats]  # so far, by all steps
    products: dict[str, Cost] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {
        "forward": 0.0, "backward": 0.0})
    copies: dict[str, Copied] = field(default_factory=lambda: {
        "forward": Copied(), "backward": Copied()})
    # Layers whose forward is over and whose backward may come (not those that
    # are frozen, with all before them), and whose backward is over.
    forwards: int = 0
    backwards: int = 0

    @contextlib.contextmanager
    def layer(self, direction: str) -> Iterator[None]:
        """Around a layer's whole "forward" or "backward"."""
        before, start = self.copied(), time.perf_counter()
        yield
        self.seconds[direction] += time.perf_counter() - start
        after, sums = self.copied(), self.copies[direction]
        sums.out += after.gpu_to_host_bytes - before.gpu_to_host_bytes
        sums.back += after.host_to_gpu_bytes - before.host_to_gpu_bytes
        self.forwards += direction == "forward"
        self.backwards += direction == "backward"

    def metering(self, products: Products
                 ) -> contextlib.AbstractContextManager:
        """Around the first forward of one chunk of a layer."""
        return _Meter(self, products)

    @property
    def whole(self) -> bool:
        """A backward of each layer that keeps something for it."""
        return 0 < self.forwards == self.backwards


class _Meter(Mode):

    def __init__(self, measured: Measured, products: Products):
        super().__init__(products)
        self._costs = measured.products

    def met(self, place: Place, product: Product, args: tuple,
            kwargs: dict) -> Any:
        start = time.perf_counter()
        out = product.function(*args, **kwargs)
        cost = self._costs.setdefault(product.weight, Cost())
        cost.seconds += time.perf_counter() - start
        cost.nbytes += out.nbytes
        return out


__all__ = ["Copied", "Cost", "Measured"]
