"""The products of matrices of a layer, met below autograd.

A dispatch mode sees each product of a chunk, those of one weight in the same
order in the first and in the second forward. Attention over chunks has
products of its own, which are not the layer's: around it the mode is paused.

[Note: storages] A weight is known by its storage, because a replay has aliases
of it; and the storage by a weak reference, never by its address. FSDP2 frees a
weight's memory between the two forwards and gets it anew elsewhere, perhaps
where another weight was; copies that autocast made are freed, and what comes
to lie there is no weight. As long as the reference is held, it is no other's.
"""
from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from sluice.base import swapped

_aten = torch.ops.aten
# Products, and which of their arguments is the weight, if one is.
_PRODUCTS = {_aten.mm.default: 1, _aten.addmm.default: 2, _aten.bmm.default: 1,
             _aten.baddbmm.default: 2, _aten._grouped_mm.default: 1,
             _aten.linear.default: 1}


Place = tuple[str, int]  # a weight's name, which of its products in a chunk


class Product(NamedTuple):
    function: Callable
    weight: str  # its name within the layer
    shapes: tuple[torch.Size, ...]


class Products:
    """What is a product of one layer's weights, during one call of it."""

    def __init__(self, layer: nn.Module):
        # See [Note: storages].
        self._names = {storage(p): name
                       for name, p in layer.named_parameters()}
        self._paused = False

    def paused(self) -> contextlib.AbstractContextManager:
        """Within, products are not the layer's own."""
        return swapped.attributes(self, _paused=True)

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
    """Counts the products of one chunk. What the product at a place of it is,
    `make` says, by the place, the product, args and kwargs, or a subclass."""

    def __init__(self, products: Products,
                 make: Callable[..., Any] | None = None):
        super().__init__()
        self._products = products
        if make is not None:
            self.met = make
        self._met: Counter[str] = Counter()  # by weight

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs, product = kwargs or {}, self._products.of(func, args)
        if product is None:
            out = self.other(func, args, kwargs)
            self._products.follow_cast(func, args, out)
            return out
        place = product.weight, self._met[product.weight]
        self._met[product.weight] += 1
        return self.met(place, product, args, kwargs)

    def other(self, func: Callable, args: tuple,
              kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


def storage(tensor: Tensor) -> StorageWeakRef:
    """Equal for views of one tensor, and for no other's while it is held."""
    return StorageWeakRef(tensor.untyped_storage())
