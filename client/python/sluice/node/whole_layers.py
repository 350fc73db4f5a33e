"""Runs layers whole, one at a time, if they cannot be cut into chunks of rows.

[Note: whole layers]
Such a layer runs on all rows: in forward without autograd, and in backward once
more with autograd, as activation checkpointing with inputs in host memory does
(ALST, section 3.3). In between only its input is kept. If its attention goes
through transformers' registry or torch's function, the stream computes it chunk
by chunk, with k, v and results in the host. Otherwise the model's own attention
runs, with the model's own mask, made for this layer alone.

Outputs besides the hidden states, and tensors that the layer puts into a
dictionary that all layers are called with, are further outputs of its autograd
node, on the device; tensors that it finds in that dictionary are inputs.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sluice.attention.blocks import Scores
from sluice.attention.exchange import attend
from sluice.attention.intervals import Intervals
from sluice.attention.over_chunks import Question
from sluice.base.argument_table import PLAIN, those
from sluice.base.errors import Unsupported
from sluice.base.hashing import of_tensor
from sluice.node import calls
from sluice.node import layer as layers_
from sluice.node.hidden_rows import (
    DeviceRows,
    HostRows,
    OnDevice,
    Parted,
    Standing,
    Whole,
)
from sluice.node.layer import LayerCall
from sluice.node.rows import Arguments, Leaf, named_arguments
from sluice.node.step import Step, chunks_of

_MASKS = those("mask")


def call_of(step: Step, layer: nn.Module, own: Callable, x: Tensor,
            args: tuple, kwargs: dict[str, Any],
            declared: Mapping[str, int | None]) -> LayerCall:
    if layer in step.whole_layers:
        return WholeCall(step, layer, own, x, args, kwargs)
    return LayerCall(step, layer, own, Arguments(layer, step, args, kwargs,
                                                 declared))


def run(call: LayerCall, x: Tensor) -> Tensor:
    """Returns y of `call`'s layer, like `layer.run`. Hidden states behind a
    stand-in are joined before a whole layer, and split after it."""
    place, chunks = call.step.hidden, call.step.chunks
    if not isinstance(call, WholeCall) or not isinstance(place, Standing):
        return layers_.run(call, x)
    return Parted.apply(place, chunks, layers_.run(
        call, Whole.apply(place, chunks, x)))


# The arguments of a layer that runs whole.
class _Given(Arguments):
    hands = False

    def __init__(self, layer: nn.Module, step: Step, args: tuple,
                 kwargs: dict[str, Any], own: bool, has_rows: bool):
        self._step, self._own, self._positional = step, own, len(args)
        self._has_rows = has_rows  # x is [B, S, ...], as markers need it
        named = named_arguments(layer, args, kwargs)
        self._names = [name for name, _ in named]
        self.held = {i: value for i, (_, value) in enumerate(named)
                     if isinstance(value, MutableMapping)}
        self._leaves: list[Any] = []
        self._trees = []
        for i, (name, value) in enumerate(named):
            leaves, spec = pytree.tree_flatten(
                dict(value) if i in self.held else value)
            for leaf in leaves:
                if not isinstance(leaf, (Tensor, *PLAIN)):
                    raise Unsupported(layer, f"argument '{name}' of type "
                                      f"{type(leaf).__name__}, through which "
                                      "layers could hand tensors to each other")
            self._leaves += [self._with_marker(name, leaf) for leaf in leaves]
            self._trees.append(spec)

    def _with_marker(self, name: str, leaf: Any) -> Any:
        if self._own or not self._has_rows or name not in _MASKS or (
                not isinstance(leaf, Tensor) or self._step.is_marker(leaf)):
            return leaf
        marker = self._step.marker_of(leaf)
        return leaf if marker is None else marker

    def differentiable(self) -> list[Leaf]:
        return [Leaf("", leaf, None) for leaf in self._leaves
                if isinstance(leaf, Tensor) and leaf.requires_grad]

    def chunk(self, rows: range, replaced: list[Tensor]
              ) -> tuple[tuple, dict[str, Any]]:
        """Returns the arguments of all rows, with `replaced` in place of those
        that need a gradient, and the model's own masks for its attention."""
        others = iter(replaced)
        leaves = iter([
            next(others) if isinstance(leaf, Tensor) and leaf.requires_grad
            else self._step.own_mask(leaf) if self._own and isinstance(
                leaf, Tensor) and self._step.is_marker(leaf) else leaf
            for leaf in self._leaves])
        values = [pytree.tree_unflatten(
            [next(leaves) for _ in range(spec.num_leaves)], spec)
            for spec in self._trees]
        self._before = {i: (values[i], dict(values[i])) for i in self.held}
        return tuple(values[:self._positional]), dict(zip(
            self._names[self._positional:], values[self._positional:]))

    def put(self) -> list[tuple[int, Any, Any]]:
        """Returns dictionaries' new entries: (argument's index, key, value)."""
        return [(i, key, value)
                for i, (now, before) in self._before.items()
                for key, value in now.items()
                if key not in before or value is not before[key]]


# One call of a layer that runs whole; see [Note: whole layers].
class WholeCall(LayerCall):
    def __init__(self, step: Step, layer: nn.Module, own: Callable, x: Tensor,
                 args: tuple, kwargs: dict[str, Any]):
        kind, has_rows = step.whole_layers[layer], x.shape[1] == step.rows
        self._given = _Given(layer, step, args, kwargs, kind.own_attention,
                             has_rows)
        super().__init__(step, layer, own, self._given)
        self._by_model, self.rerun = kind.own_attention, 0
        self.may_replace = True  # e.g. a table that grows with the sequence
        self._carried = None
        self._rows = range(x.shape[1])
        self.chunks = [self._rows]
        self._places = OnDevice(step.arena, self.chunks)
        self._tree: tuple[Any, list[Any]] | None = None  # of the layer's output

    def compute(self, m: int, x: Tensor, extra: list[Tensor]) -> Tensor:
        self._site, self._batch = 0, len(x)
        if self.step.progress is not None:
            self.step.progress.move(
                self.step, "backward" if self.replays else "forward",
                self.module, m)
        # Torch chooses an attention kernel by whether a gradient is needed. So
        # a forward that is compared bit by bit runs with gradients.
        compared = self.keeps and not self.replays and (
            self.step.checks.include(self.module, m, 1))
        with self._noting(), self._weighing(), torch.set_grad_enabled(
                self.replays or compared):
            out = self._run(x.detach().requires_grad_() if compared else x,
                            extra)
        if self._side is not None:
            out = self._side.without(out)
            if not self.replays:
                self._side.keep(m, len(x))
        first, *_ = out if isinstance(out, (tuple, list)) else (out,)
        leaves, spec = pytree.tree_flatten((out, self._given.put()))
        strange = [leaf for leaf in leaves if not isinstance(
            leaf, (Tensor, calls.Standing, *PLAIN))]
        if strange or not isinstance(first, Tensor):
            raise Unsupported(self.name, "an output that is neither hidden "
                              "states nor tensors beside them")
        y, *self.more = [leaf if self.replays else leaf.detach()
                         for leaf in leaves if isinstance(leaf, Tensor)]
        self._tree = spec, [None if isinstance(leaf, Tensor) else (leaf,)
                            for leaf in leaves]
        return y

    def _run(self, x: Tensor, extra: list[Tensor], cache: Any = None) -> Any:
        with self.as_running(), (self.step.own_attention() if self._by_model
                                 else self.step.inside()):
            args, kwargs = self._given.chunk(self._rows, extra)
            return self.own(x, *args, **kwargs)

    def _weighing(self) -> contextlib.AbstractContextManager:
        saved = self.step.saved
        if saved is None or not self.replays:
            return super()._weighing()
        weights = {p.untyped_storage().data_ptr()
                   for module in self.module.modules()
                   for p in module._parameters.values() if p is not None}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Intervals,
               scores: Scores, sinks: Tensor | None) -> Tensor:
        """Runs attention chunk by chunk. The last chunk's backward runs first,
        as `Attend` needs it: autograd runs the newest ready node first."""
        if q.shape[2] != self.step.length:
            raise Unsupported(self.name, f"attention of {q.shape[2]} rows in "
                              f"a sequence of {self.step.length}")
        site = self._next_site()
        self.step.attended.add((q.shape[1], k.shape[1], q.shape[3], v.shape[3]))
        return torch.cat([
            attend(None, Question(site, m, self.replays, mask, scores),
                   q[:, :, rows.start:rows.stop],
                   k[:, :, rows.start:rows.stop],
                   v[:, :, rows.start:rows.stop], sinks)
            for m, rows in enumerate(self.step.whole)], 2)

    def answer(self, y: Tensor) -> Any:
        """Returns the layer's output; puts its entries into dictionaries."""
        assert self._tree is not None
        (spec, leaves), self._tree = self._tree, None
        tensors, self.more = iter([y, *self.more]), ()
        out, put = pytree.tree_unflatten(
            [next(tensors) if leaf is None else leaf[0] for leaf in leaves],
            spec)
        for i, key, value in put:
            self._given.held[i][key] = value
        return out

    def beside(self, m: int) -> list[tuple[Tensor, Tensor]]:
        made, self.more = self.more, ()
        return super().beside(m) + [
            (tensor, gradient) for tensor, gradient in zip(made, self.of_more)
            if tensor.requires_grad and gradient is not None]

    def bits(self, y: Tensor) -> Tensor:
        return torch.stack([of_tensor(y), *map(of_tensor, self.more)])

    def compares_parts(self, m: int) -> bool:
        return False

    def _keep(self, source: DeviceRows | HostRows, m: int) -> None:
        x = source.read(m)
        self._x = [self.step.arena.put(x[:, rows.start:rows.stop])
                   for rows in chunks_of(x.shape[1], len(self.step.chunks[0]))]

    def _drop_input(self) -> None:
        while self._x:
            self.step.arena.drop(self._x.pop())

    def _input(self, m: int, needs_x: bool) -> Tensor | None:
        arena, device = self.step.arena, self.step.device
        for host in self._x[1:]:
            arena.prefetch(host, device)
        return torch.cat([arena.get(host, device) for host in self._x],
                         1).requires_grad_(needs_x)
