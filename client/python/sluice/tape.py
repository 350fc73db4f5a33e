"""Products of a layer's first forward that its second one need not compute.

[Note: tape]
Below autograd, a dispatch mode sees each product of matrices of a chunk, in
the same order in both forwards. In the first it stores what the policy says;
in the second it answers those with what was stored, bit for bit, and autograd
above it never knows. Attention over chunks has its own store and is not seen.
A product that its layer changes in place afterwards is not stored any more:
what is no longer itself is computed again.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sluice.host_tensor import HostTensor
from sluice.policy import Action, Policy

if TYPE_CHECKING:
    from sluice.arena import HostArena

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


class Tape:
    """The stored products of one call of one layer; belongs to its thread.

    Memory on the device and in the host is given back chunk by chunk as
    backward comes by, the rest by `release`.
    """

    def __init__(self, policy: Policy, arena: HostArena, layer: nn.Module,
                 chunks: int):
        self.policy, self._arena = policy, arena
        # Names by storage: FSDP2 refills it, a replay has aliases of it.
        self._names = {p.untyped_storage().data_ptr(): name
                       for name, p in layer.named_parameters()}
        # By chunk: the place in the order of products -> what is stored.
        self._stored: list[dict[int, tuple[Product, Tensor | HostTensor]]] = [
            {} for _ in range(chunks)]
        self._paused = False

    @property
    def chunks(self) -> int:
        return len(self._stored)

    def recording(self, chunk: int) -> contextlib.AbstractContextManager:
        """Around the first forward of a chunk."""
        return _Recorder(self, chunk)

    @contextlib.contextmanager
    def answering(self, chunk: int, device: torch.device) -> Iterator[None]:
        """Around the second; afterwards the chunk's products are gone."""
        for _, value in self._stored[chunk - 1].values() if chunk else ():
            if isinstance(value, HostTensor):
                self._arena.prefetch(value, device)
        with _Answerer(self, chunk, device):
            yield
        self._drop(chunk)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within, products are not the layer's own."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def kept(self) -> list[HostTensor]:
        """All that is in the host."""
        return [value for stored in self._stored
                for _, value in stored.values()
                if isinstance(value, HostTensor)]

    def release(self) -> None:
        """Safe to call again."""
        for chunk in range(self.chunks):
            self._drop(chunk)

    def _drop(self, chunk: int) -> None:
        while self._stored[chunk]:
            self.forget(chunk, next(iter(self._stored[chunk])))

    # --- what the modes call ------------------------------------------------

    def product(self, function: Callable, args: tuple) -> Product | None:
        """What this call is the product of, if it is one of a weight."""
        if function not in _PRODUCTS or self._paused:
            return None
        name = self._names.get(_storage(args[_PRODUCTS[function]]))
        return None if name is None else Product(
            function, name, tuple(a.shape for a in args
                                  if isinstance(a, Tensor)))

    def casts(self, function: Callable, args: tuple, out: Any) -> None:
        """Autocast multiplies with copies of the weights."""
        if function is _aten._to_copy.default:
            name = self._names.get(_storage(args[0]))
            if name is not None:
                self._names[_storage(out)] = name

    def store(self, chunk: int, place: int, product: Product, out: Tensor
              ) -> bool:
        """Whether the policy wants it."""
        action = self.policy.share(product.weight).action(chunk, self.chunks)
        if action is not Action.RECOMPUTE:
            self._stored[chunk][place] = product, (
                out if action is Action.KEEP else self._arena.put(out))
        return action is not Action.RECOMPUTE

    def forget(self, chunk: int, place: int) -> None:
        _, value = self._stored[chunk].pop(place)
        if isinstance(value, HostTensor):
            self._arena.drop(value)

    def answer(self, chunk: int, place: int, product: Product,
               device: torch.device) -> Tensor | None:
        """None where it is to be computed: it was not stored, or torch folds
        products otherwise where there is autograd."""
        stored, value = self._stored[chunk].get(place, (None, None))
        if stored != product:
            return None
        if isinstance(value, HostTensor):
            return self._arena.get(value, device)
        del self._stored[chunk][place]  # the layer may write it by now
        return value


class _Mode(TorchDispatchMode):
    """Counts the products of one chunk."""

    def __init__(self, tape: Tape, chunk: int):
        super().__init__()
        self.tape, self.chunk, self._next = tape, chunk, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs, product = kwargs or {}, self.tape.product(func, args)
        if product is None:
            out = self.other(func, args, kwargs)
            self.tape.casts(func, args, out)
            return out
        place, self._next = self._next, self._next + 1
        return self.met(place, product, args, kwargs)

    def other(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        return func(*args, **kwargs)

    def met(self, place: int, product: Product, args: tuple,
            kwargs: dict) -> Tensor:
        raise NotImplementedError


class _Recorder(_Mode):

    def __init__(self, tape: Tape, chunk: int):
        super().__init__(tape, chunk)
        self._places: dict[int, int] = {}  # of what is stored, by storage

    def met(self, place: int, product: Product, args: tuple,
            kwargs: dict) -> Tensor:
        out = product.function(*args, **kwargs)
        if self.tape.store(self.chunk, place, product, out):
            self._places[_storage(out)] = place
        return out

    def other(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        if self._places and func._schema.is_mutable:
            for written in _written(func, args, kwargs):
                place = self._places.pop(_storage(written), None)
                if place is not None:
                    self.tape.forget(self.chunk, place)
        return func(*args, **kwargs)


class _Answerer(_Mode):

    def __init__(self, tape: Tape, chunk: int, device: torch.device):
        super().__init__(tape, chunk)
        self._device = device

    def met(self, place: int, product: Product, args: tuple,
            kwargs: dict) -> Tensor:
        answer = self.tape.answer(self.chunk, place, product, self._device)
        return (product.function(*args, **kwargs) if answer is None else
                answer)


def _written(func: Callable, args: tuple, kwargs: dict) -> Iterator[Tensor]:
    """The tensors that this operator changes."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (v for v in pytree.tree_leaves(value)
                        if isinstance(v, Tensor))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


__all__ = ["Tape"]
