"""The products of matrices of a layer, met below autograd.

A dispatch mode sees each product of a chunk, in the same order in the first
and in the second forward. Attention over chunks has products of its own, which
are not the layer's: around it the mode is paused.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
# Products, and which of their arguments is the weight, if one is.
_PRODUCTS = {_aten.mm.default: 1, _aten.addmm.default: 2, _aten.bmm.default: 1,
             _aten.baddbmm.default: 2, _aten._grouped_mm.default: 1,
             _aten.linear.default: 1}


class Product(NamedTuple):
    """What one product is the product of."""

    function: Callable
    weight: str  # its name within the layer
    shapes: tuple[torch.Size, ...]


class Products:
    """What is a product of one layer's weights, during one call of it."""

    def __init__(self, layer: nn.Module):
        # Names by storage: FSDP2 refills it, a replay has aliases of it.
        self._names = {storage(p): name
                       for name, p in layer.named_parameters()}
        self._paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within, products are not the layer's own."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def of(self, function: Callable, args: tuple) -> Product | None:
        if function not in _PRODUCTS or self._paused:
            return None
        name = self._names.get(storage(args[_PRODUCTS[function]]))
        return None if name is None else Product(
            function, name, tuple(a.shape for a in args
                                  if isinstance(a, Tensor)))

    def follow_cast(self, function: Callable, args: tuple, out: Any) -> None:
        """Autocast multiplies with copies of the weights."""
        if function is _aten._to_copy.default:
            name = self._names.get(storage(args[0]))
            if name is not None:
                self._names[storage(out)] = name


class Mode(TorchDispatchMode):
    """Counts the products of one chunk, and lets a subclass have them."""

    def __init__(self, products: Products):
        super().__init__()
        self._products, self._next = products, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs, product = kwargs or {}, self._products.of(func, args)
        if product is None:
            out = self.other(func, args, kwargs)
            self._products.follow_cast(func, args, out)
            return out
        place, self._next = self._next, self._next + 1
        return self.met(place, product, args, kwargs)

    def met(self, place: int, product: Product, args: tuple,
            kwargs: dict[str, Any]) -> Tensor:
        """What the product, the `place`-th of its chunk, is."""
        raise NotImplementedError

    def other(self, func: Callable, args: tuple,
              kwargs: dict[str, Any]) -> Any:
        """Any other operator."""
        return func(*args, **kwargs)


def storage(tensor: Tensor) -> int:
    """The same for views of one tensor, as long as it lives."""
    return tensor.untyped_storage().data_ptr()


__all__ = ["Mode", "Product", "Products", "storage"]
