"""Intercepts the matrix products of a layer below autograd, by a dispatch mode.
The products of one weight occur in the same order in a chunk's first forward
and in its replay. Products inside attention over chunks do not belong to the
layer, so the mode is paused there.

[Note: storages] A weight is identified by its storage, because a replay uses
aliases of the weight. A storage is identified by a weak reference, never by its
address: FSDP2 frees a weight's memory between forward and replay and allocates
it again elsewhere, perhaps where another weight was; copies made by autocast
are freed, and their memory is used for other tensors. While a weak reference to
a storage exists, no reference to another storage equals it.
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
# Operator -> index of the argument that may be a weight.
_PRODUCTS = {_aten.mm.default: 1, _aten.addmm.default: 2, _aten.bmm.default: 1,
             _aten.baddbmm.default: 2, _aten._grouped_mm.default: 1,
             _aten.linear.default: 1}


Place = tuple[str, int]  # weight's name, index among its products in a chunk


class Product(NamedTuple):
    function: Callable
    weight: str  # the weight's name within the layer
    shapes: tuple[torch.Size, ...]


class Products:
    """Recognizes products of one layer's weights, during one call."""

    def __init__(self, layer: nn.Module):
        # See [Note: storages].
        self._names = {storage(p): name for name, p in layer.named_parameters()}
        self._paused = False

    def paused(self) -> contextlib.AbstractContextManager:
        return swapped.attributes(self, _paused=True)

    def of(self, function: Callable, args: tuple) -> Product | None:
        if function not in _PRODUCTS or self._paused:
            return None
        name = self._names.get(storage(args[_PRODUCTS[function]]))
        return None if name is None else Product(
            function, name, tuple(a.shape for a in args
                                  if isinstance(a, Tensor)))

    def follow_cast(self, function: Callable, args: tuple, out: Any) -> None:
        """Gives a weight's cast, as autocast makes it, the weight's name."""
        if function is _aten._to_copy.default:
            name = self._names.get(storage(args[0]))
            if name is not None:
                self._names[storage(out)] = name


class Mode(TorchDispatchMode):
    """Counts the products of one chunk and replaces each by the result of
    `make(place, product, args, kwargs)`, or of a subclass's `met`."""

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

    def other(self, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


def storage(tensor: Tensor) -> StorageWeakRef | None:
    """Returns a key that is equal for views of one tensor, and for no other
    while the key is held; None for all sparse tensors."""
    return StorageWeakRef(tensor.untyped_storage()) if (
        tensor.layout is torch.strided) else None
