"""Stores products of a layer's first forward for its second (replay).

[Note: tape]
The first forward of a chunk stores its products as the policy says; the replay
gets them, bit for bit, in a way that autograd does not notice. Attention over
chunks has its own store. A product that its layer changes in place afterwards
is dropped from the store, and recomputed.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from sluice.memory.arena import HostArena
from sluice.memory.slabs import HostTensor
from sluice.plan.policy import Action, Policy
from sluice.plan.products import Mode, Place, Product, Products, storage

_COLLECTIVE = "c10d"  # schemas of collectives do not say what they write


class Tape:
    """The stored products of one call of one layer. Backward frees them chunk
    by chunk; `release` frees all that are left."""

    def __init__(self, policy: Policy, arena: HostArena, products: Products,
                 chunks: int):
        self.policy, self._arena, self.products = policy, arena, products
        # By chunk: place -> (product, stored value).
        self._stored: list[dict[Place, tuple[Product, Tensor | HostTensor]]
                           ] = [{} for _ in range(chunks)]

    @property
    def chunks(self) -> int:
        return len(self._stored)

    def recording(self, chunk: int) -> contextlib.AbstractContextManager:
        return _Recorder(self, chunk)

    @contextlib.contextmanager
    def answering(self, chunk: int, device: torch.device) -> Iterator[None]:
        """Within the block the replay gets each stored product once."""
        for _, value in self._stored[chunk - 1].values() if chunk else ():
            if isinstance(value, HostTensor):
                self._arena.prefetch(value, device)
        def answered(place: Place, product: Product, args: tuple, kwargs: dict
                     ) -> Tensor:
            answer = self.answer(chunk, place, product, device)
            return (product.function(*args, **kwargs) if answer is None else
                    answer)

        with Mode(self.products, answered):
            yield
        self._drop(chunk)

    def release(self) -> None:
        for chunk in range(self.chunks):
            self._drop(chunk)

    def _drop(self, chunk: int) -> None:
        while self._stored[chunk]:
            self.forget(chunk, next(iter(self._stored[chunk])))

    def store(self, chunk: int, place: Place, product: Product, out: Tensor
              ) -> bool:
        """Stores a product if the policy says so; returns whether it did."""
        action = self.policy.share(product.weight).action(chunk, self.chunks)
        if action is not Action.RECOMPUTE:
            self._stored[chunk][place] = product, (
                out if action is Action.KEEP else self._arena.put(out))
        return action is not Action.RECOMPUTE

    def forget(self, chunk: int, place: Place) -> None:
        _, value = self._stored[chunk].pop(place)
        if isinstance(value, HostTensor):
            self._arena.drop(value)

    def answer(self, chunk: int, place: Place, product: Product,
               device: torch.device) -> Tensor | None:
        """Returns the product stored at this place, if it has the same shapes
        and function: torch may fold dimensions differently in the replay."""
        stored, value = self._stored[chunk].get(place, (None, None))
        if stored != product:
            return None
        if isinstance(value, HostTensor):
            return self._arena.get(value, device)
        del self._stored[chunk][place]  # the layer may write it from now on
        return value


# Stores products of a first forward, until the layer changes them in place.
class _Recorder(Mode):

    def __init__(self, tape: Tape, chunk: int):
        super().__init__(tape.products)
        self.tape, self.chunk = tape, chunk
        # By storage of a stored product: its place.
        self._places: dict[StorageWeakRef, Place] = {}

    def met(self, place: Place, product: Product, args: tuple,
            kwargs: dict) -> Tensor:
        out = product.function(*args, **kwargs)
        if self.tape.store(self.chunk, place, product, out):
            self._places[storage(out)] = place
        return out

    def other(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if self._places and (func._schema.is_mutable
                             or func.namespace == _COLLECTIVE):
            for written in _written(func, args, kwargs):
                place = self._places.pop(storage(written), None)
                if place is not None:
                    self.tape.forget(self.chunk, place)
        return func(*args, **kwargs)


def _written(func: Any, args: tuple, kwargs: dict) -> Iterator[Tensor]:
    for i, argument in enumerate(func._schema.arguments):
        alias = argument.alias_info
        if func.namespace == _COLLECTIVE or (alias and alias.is_write):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (v for v in pytree.tree_leaves(value)
                        if isinstance(v, Tensor))
