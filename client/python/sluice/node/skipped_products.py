"""Skips matrix products that a layer's second forward (replay) does not need.

[Note: spared products] A layer ends in a sum: the result of its last product,
an MLP's down projection, is added to the hidden states, and the gradient of a
sum needs none of its terms. So the replay skips this product. A stand-in takes
the result's place, autograd keeps the two factors, which are all that the
product's backward needs, and the layer's output is NaN but is not read. The
products that make attention's k and v are skipped too: these are in the host.
Replays that are compared with their first forwards skip nothing.

One replay of a layer tracks everything that is made of a product's values.
Later replays skip the product if its values, and all values computed from them
up to the layer's output or k and v, went only through operations that save none
of them for backward: sums, views, casts, and products with tensors that need no
gradient (RoPE). Nothing is skipped if the layer has an autograd function of the
user's own, which may save anything, or if hooks on saved tensors were active.

The result holds under the same `conditions`: the layer's plain attributes (also
whether it trains, which adapter is active), the hooks in it, and which of its
parameters and inputs need a gradient. A trained scale, for example, needs the
product that it scales for its own gradient; a frozen one does not. Values that
the conditions lack (a config, an argument, an element of the hidden states) may
also decide what the layer does. So each replay that skips products must have a
graph of the same kinds of nodes as a tracked one; otherwise it runs again, and
is tracked. This is not asked with a group: if one rank alone ran again, its
collectives would meet other ones.
"""
from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from sluice.attention.over_chunks import Attend
from sluice.base import swapped
from sluice.node import linears
from sluice.node.hidden_rows import stand_in
from sluice.node.replay import nodes
from sluice.plan.products import Mode, Place, Product, Products, storage

_aten = torch.ops.aten
# Matrix products, and which of their arguments are the factors.
_FACTORS = {_aten.mm.default: (0, 1), _aten.addmm.default: (1, 2)}
# Operations with a backward that needs no values of their inputs.
_TERMS = frozenset(
    {_aten.add.Tensor, _aten.view.default, _aten._unsafe_view.default,
     _aten.t.default, _aten.transpose.int, _aten.permute.default,
     _aten.expand.default, _aten.unsqueeze.default, _aten.squeeze.dim,
     _aten.clone.default, _aten._to_copy.default, _aten.neg.default,
     _aten.slice.Tensor, _aten.cat.default,})


def conditions(layer: nn.Module, attributes: Any, inputs: Iterable[Tensor]
               ) -> tuple:
    """Returns what decides which products a layer's replay needs; called in a
    replay, with the parameters' aliases. `attributes`: plain attributes,
    submodules and hooks; `inputs`: hidden states and other arguments."""
    return attributes, tuple(t.requires_grad for t in (
        *layer.parameters(), *inputs)), _hooks_on_saved()


def kinds_of(y: Tensor) -> frozenset[tuple]:
    """Returns the kinds of nodes in y's graph, each with the kinds that follow
    it. How many nodes there are may depend on the rows, as with experts."""
    return frozenset((type(node), *(type(following) for following, _ in
                                    node.next_functions)) for node in nodes(y))


@dataclass(frozen=True)
class Spared:
    """The products of one layer that are skipped, by their weights' names."""

    weights: frozenset[str]
    makes_kv: bool  # whether they make attention's k or v
    conditions: tuple  # conditions() of the replay that found them
    # kinds_of() the outputs of replays that found these products.
    graphs: frozenset[frozenset[tuple]]

    def joined(self, known: Spared | None) -> Spared:
        """Returns this one, with the graphs of `known` if that says the same.
        Chunks of a call may have unlike graphs: the first has no state before
        it, and the last may have one row."""
        if known is None or replace(known, graphs=self.graphs) != self:
            return self
        return replace(self, graphs=self.graphs | known.graphs)

    @contextlib.contextmanager
    def left_out(self, layer: nn.Module, products: Products
                 ) -> Iterator[Spared]:
        with contextlib.ExitStack() as stack:
            for name in self.weights:
                owner = layer.get_submodule(name.rpartition(".")[0])
                without = _UnmadeLinear if linears.is_plain(owner) else _Without
                stack.enter_context(swapped.attributes(
                    owner, forward=without(owner, products, name)))
            yield self


class _Without:
    """Runs a module's forward without the product of one of its weights."""

    def __init__(self, owner: nn.Module, products: Products, weight: str):
        self._owner, self._own = owner, owner.forward
        self._products, self._weight = products, weight

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with Mode(self._products, self._met):
            return self._own(*args, **kwargs)

    def _met(self, place: Place, product: Product, args: tuple,
             kwargs: dict[str, Any]) -> Tensor:
        if product.weight != self._weight or product.function not in _FACTORS:
            return product.function(*args, **kwargs)
        a, b = (args[i] for i in _FACTORS[product.function])
        return stand_in((a.shape[0], b.shape[1]), a.dtype, a.device)


class _UnmadeLinear(_Without):
    """`_Without` for plain linear layers, without a dispatch mode's cost."""

    def __call__(self, input: Tensor) -> Tensor:
        layer = self._owner
        return linears.Product.apply(
            input, layer.weight, layer.bias, _unmade) if (
                linears.is_plain_call(layer, input)) else (
                    super().__call__(input))


def _unmade(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns a stand-in for x @ weight.T + bias."""
    return stand_in((*x.shape[:-1], weight.shape[0]), x.dtype, x.device)


class Following(Mode):
    """Tracks one replay of a chunk; `found` returns what may be skipped."""

    def __init__(self, layer: nn.Module, conditions: tuple):
        super().__init__(Products(layer))
        self._conditions = conditions
        self._count: Counter[str] = Counter()
        self._needed: set[str] = set()
        self._in_kv: set[str] = set()
        # By storage: the products that its values are made of.
        self._made_of: dict[StorageWeakRef, set[str]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        of = self._of(args, kwargs)
        if _hooks_on_saved() is not None:
            self._needed |= set(self._count)
        if func not in _TERMS and not self._is_scaled(func, args):
            self._needed |= of
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if of:
            self._note(out, of)
        return out

    def met(self, place: Place, product: Product, args: tuple,
            kwargs: dict[str, Any]) -> Tensor:
        out = product.function(*args, **kwargs)
        self._count[product.weight] += 1
        if product.function in _FACTORS:
            self._note(out, {product.weight})
        else:
            self._needed.add(product.weight)
        return out

    def attends(self, k: Tensor, v: Tensor) -> None:
        self._in_kv |= self._of(k, v)

    def found(self, y: Tensor) -> Spared:
        """Returns the products to skip, given the layer's output."""
        for node in nodes(y):
            if not isinstance(node, BackwardCFunction):
                continue
            if not node._forward_cls.__module__.startswith("sluice."):
                self._needed |= set(self._count)
            saved = node.saved_tensors
            if node._forward_cls is Attend:  # k, v are in the host
                saved = saved[:1] + saved[3:]
            self._needed |= self._of(saved)
        weights = frozenset(
            name for name, count in self._count.items()
            if count == 1 and name not in self._needed)
        return Spared(weights, not self._in_kv.isdisjoint(weights),
                      self._conditions, frozenset([kinds_of(y)]))

    def _is_scaled(self, func: Any, args: tuple) -> bool:
        """Returns whether `func` scales by a value that needs no gradient."""
        if func is not _aten.mul.Tensor:
            return False
        mine, other = args if self._of(args[0]) else args[::-1]
        return not self._of(other) and not (
            isinstance(other, Tensor) and other.requires_grad)

    def _of(self, *values: Any) -> set[str]:
        return set().union(*(self._made_of.get(storage(t), ()) for t in
                             pytree.tree_leaves(values)
                             if isinstance(t, Tensor)))

    def _note(self, out: Any, of: set[str]) -> None:
        for tensor in pytree.tree_leaves(out):
            if isinstance(tensor, Tensor):
                known = self._made_of.setdefault(storage(tensor), set())
                known |= of


def _hooks_on_saved() -> Any:
    """Returns the innermost active hooks on tensors that autograd saves."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)
