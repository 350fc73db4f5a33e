"""Runs layers plain, that is as without a stream: autograd keeps their tensors,
and nothing is replayed (client/python/DESIGN.md, "Layers that fit").

[Note: plain layers]
The first step is streamed, and so is each step of more tokens than any before
it, because its peak is not known. In other steps a layer runs plain if there is
room for the bytes that it and all later layers keep, and for the working memory
of one backward: as many bytes as the largest of these layers keeps (twice as
many if the model's attention writes scores out). The last layers are preferred:
their backward runs first, so their memory is free again when the streamed
layers' backward begins.

The first call of each kind of layer with a sequence of a new length runs under
saved_tensors_hooks, which measure what it keeps and drop all saved tensors once
they exceed the room. A layer is tried only if the bytes that its replay in
chunks saved, and the scores and masks [S, S] that the model's own attention
writes, suggest that it fits.
"""
from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from sluice.base.randomness import RandomState
from sluice.node.replay import Snapshot

STREAMED = object()  # returned if the layer, decoder or head must be streamed
_UNBOUNDED = sys.maxsize
_SPARE = 16  # 1 / _SPARE of a GPU's memory stays free, for fragmentation
# Room for a layer, for one that writes out scores [S, S], and for a head, in
# multiples of the bytes that each keeps. Working memory takes as much again, or
# twice as much if scores, or logits, have a softmax and a gradient.
_LAYER, _WRITES, _HEAD = 2, 3, 3
_REPLAYED = 0.875  # plain bytes per byte of a replay, which saves o in fp32

Written = Sequence[tuple[nn.Module, str]]  # buffers: owner, name


class Size(NamedTuple):
    """Bytes kept for backward: `nbytes`, or more than that if not `exact`."""

    nbytes: int
    exact: bool


@dataclass(eq=False)
class _Graph:
    """Lives as long as the autograd graph of layers or a head that ran plain.
    `nbytes`: bytes that the graph keeps; 0 once its backward has begun."""

    nbytes: int

    def over(self, *_: Any) -> None:
        self.nbytes = 0


class _Noting:
    """Measures what a forward saves in addition to `known` tensors. If `size`
    exceeds `limit`, it is not exact, and nothing is kept."""

    def __init__(self, known: Iterable[Tensor], limit: int):
        self._limit, self.size = limit, Size(0, True)
        self._seen = {t.untyped_storage().data_ptr() for t in known}
        self._boxes: list[list[Tensor]] = []  # tensors that the graph saved

    def run(self, own: Callable[[], Any]) -> Any:
        """Returns the result of `own`, or STREAMED if that saves more than the
        limit. `own` is not cut short: torch leaks a tensor if a hook raises."""
        with saved_tensors_hooks(self._pack, lambda box: box[0]):
            out = own()
        self._boxes.clear()
        return out if self.size.exact else STREAMED

    def _pack(self, tensor: Tensor) -> list[Tensor]:
        storage, box = tensor.untyped_storage(), [tensor]
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            nbytes = self.size.nbytes + storage.nbytes()
            self.size = Size(nbytes, nbytes <= self._limit)
        self._boxes.append(box)
        if not self.size.exact:
            for each in self._boxes:
                each.clear()
        return box


class Room:
    """Limits the device memory that plain runs of one stream keep; the caller
    holds the stream's lock. `hbm`: limit in bytes; None: what streamed steps
    leave on a GPU. `say` prints a message for the user."""

    def __init__(self, hbm: int | None, device: torch.device,
                 say: Callable[[str], object]):
        self.device, self.say = device, say
        self._hbm = _UNBOUNDED if hbm is None else hbm
        self._graphs: WeakSet[_Graph] = WeakSet()
        self.count = 0  # layers that ran plain in the latest forward
        self.forget()

    def forget(self) -> None:
        """Makes the next step streamed, and discards all measured sizes."""
        self._tokens = 0  # largest number of tokens in a streamed step
        self._peak = 0  # largest number of bytes of a streamed step on a GPU
        # By kind of layer: bytes per row that its replays save.
        self.rows: dict[int, float] = {}
        self.parts = _LAYER
        # By key of a plain run, then by (batch, length).
        self._sizes: dict[Hashable, dict[tuple[int, int], Size]] = {}
        # By key of a decoder in which all layers ran plain: the layers' keys.
        self.all: dict[Hashable, list[Hashable]] = {}

    @property
    def kept(self) -> int:
        """Bytes that graphs keep for pending backwards."""
        return sum(graph.nbytes for graph in list(self._graphs))

    def begin(self, kinds: Iterable[Sequence[nn.Module]],
              layers: Sequence[nn.Module], shape: Sequence[int]) -> Forward:
        batch, length, *_ = shape
        known = batch * length <= self._tokens
        self.count = 0
        return Forward(self, {layer: i for i, alike in enumerate(kinds)
                              for layer in alike}, list(layers),
                       (batch, length), self._left() if known else 0, known)

    def _left(self) -> int:
        left = self._hbm - self.kept
        if self.device.type == "cpu":
            return left
        free, total = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(
            self.device))
        unused = reserved - torch.cuda.memory_allocated(self.device)
        return min(left, min(free, allowed - reserved) + unused - self._peak
                   - total // _SPARE)

    def streamed(self, tokens: int, nbytes: int) -> None:
        """Records `nbytes`, the memory that a streamed step took."""
        self._tokens = max(self._tokens, tokens)
        self._peak = max(self._peak, nbytes)

    def find(self, key: Hashable, shape: tuple[int, int]) -> Size | None:
        """Returns the size noted for this length or up to 1/8 above it."""
        batch, length = shape
        return min(((s, size) for (b, s), size in self._sizes.get(
            key, {}).items() if b == batch and length <= s <= length * 9 // 8),
            default=(0, None))[1]

    def note(self, key: Hashable, shape: tuple[int, int], size: Size) -> None:
        self._sizes.setdefault(key, {})[shape] = size

    def keeps(self, y: Tensor, nbytes: int) -> None:
        if y.grad_fn is not None:
            graph = _Graph(nbytes)
            y.grad_fn.register_prehook(graph.over)
            self._graphs.add(graph)

    def ran_out(self, keys: Iterable[Hashable], shape: tuple[int, int]) -> None:
        """Makes runs of these keys in that shape streamed from now on."""
        for key in keys:
            self.note(key, shape, Size(_UNBOUNDED, False))
        self.say("out of device memory where layers ran plain: in sequences "
                 "of that length they are streamed from now on; hbm= says how "
                 "many bytes plain layers may take")


# Decides which layers run plain in one forward of the decoder.
class Forward:
    def __init__(self, room: Room, kinds: dict[nn.Module, int],
                 layers: list[nn.Module], shape: tuple[int, int], left: int,
                 known: bool):
        self._room, self._kinds, self._layers = room, kinds, layers
        self._shape, self._left = shape, left
        self._keys: dict[nn.Module, Hashable] = {}
        self._to_weigh = set() if known else set(kinds.values())
        self._measures = not known and room.device.type != "cpu"
        if self._measures:
            torch.cuda.reset_peak_memory_stats(room.device)
            self._before = torch.cuda.memory_allocated(room.device)

    def replayed(self) -> None:
        """Records the peak so far, after a streamed layer's backward."""
        self._room.streamed(
            self._shape[0] * self._shape[1], torch.cuda.max_memory_allocated(
                self._room.device) - self._before if self._measures else 0)

    @contextlib.contextmanager
    def weighing(self, layer: nn.Module, rows: int) -> Iterator[None]:
        """Measures what a replay saves per row, once per kind of layer."""
        kind = self._kinds[layer]
        if kind not in self._to_weigh:
            yield
            return
        self._to_weigh.remove(kind)
        saved = {p.untyped_storage().data_ptr(): 0 for p in (
            *layer.parameters(), *layer.buffers())}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            saved.setdefault(storage.data_ptr(),
                             min(tensor.nbytes, storage.nbytes()))
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            yield
        self._room.rows[kind] = max(self._room.rows.get(kind, 0.0),
                                    sum(saved.values()) / rows)

    def writes_scores(self) -> None:
        """Records that the model's own attention writes scores out."""
        self._room.parts = _WRITES

    def layer(self, layer: nn.Module, x: Tensor, given: Any,
              own: Callable[[], Any], written: Written,
              scores: Callable[[bool], int] = lambda _: 0) -> Any:
        """Returns the result of `own`, the layer's own forward of x [B, S, H]
        and arguments `given`, or STREAMED. `scores` returns the bytes of
        tensors [S, S] that the layer's attention makes, given whether it writes
        scores."""
        if self._left <= 0:
            return STREAMED
        if not self._keys:
            self._keys = dict(_keys(self._layers, self._kinds, x))
        key = self._keys[layer]
        size = self._room.find(key, self._shape)
        if size is None:
            rows = self._room.rows.get(self._kinds[layer], 0.0)
            least = int(_REPLAYED * rows * math.prod(self._shape)) + scores(
                self._room.parts == _WRITES)
        elif size.exact and self._wanted(self._known(
                self._keys[each] for each in self._layers[
                    self._layers.index(layer):])) > self._left:
            return STREAMED
        out = self._tried(key, own, written, self._room.parts, lambda: [
            *layer.parameters(), *layer.buffers(), *pytree.tree_leaves(given)],
            least if size is None else 0)
        self._room.count += out is not STREAMED
        return out

    def _known(self, keys: Iterable[Hashable]) -> list[int]:
        """Returns, where known, the bytes that layers of these keys keep."""
        sizes = (self._room.find(key, self._shape) for key in keys)
        return [size.nbytes for size in sizes if size and size.exact]

    def _wanted(self, known: list[int]) -> int:
        """Returns the room needed by layers that keep these bytes."""
        return sum(known) + (self._room.parts - 1) * max(known)

    def layers(self, key: Hashable, own: Callable[[], Any], written: Written
               ) -> Any:
        """Returns the result of `own`, the decoder's own forward, if all layers
        fit and have all run plain under that `key`, else STREAMED."""
        keys = self._room.all.get(key, ())
        known = self._known(keys)
        if not keys or len(known) < len(keys) or (
                self._wanted(known) > self._left):
            return STREAMED
        out = self._run(keys, own, written, sum(known))
        self._room.count = 0 if out is STREAMED else len(keys)
        return out

    def head(self, key: Hashable, own: Callable[[], Any],
             known: Callable[[], list], row: int) -> Any:
        """Returns the result of `own`, the head's own forward of all rows, or
        STREAMED if it does not fit. `row`: minimum bytes kept per row."""
        return self._tried(key, own, (), _HEAD, known,
                           row * math.prod(self._shape))

    def over(self, key: Hashable) -> None:
        count, of = self._room.count, len(self._layers)
        if count == of:
            self._room.all[key] = list(self._keys.values())
        if count:
            self._room.say(f"{count} of {of} layers run plain, not streamed")

    def _tried(self, key: Hashable, own: Callable[[], Any], written: Written,
               parts: int, known: Callable[[], list], least: int) -> Any:
        """Runs `own` if there is room for `parts` times the bytes that it keeps
        (at least `least`, until measured); else returns STREAMED."""
        size = self._room.find(key, self._shape)
        if (least if size is None else size.nbytes) * parts > self._left:
            return STREAMED
        if size is not None and size.exact:
            return self._run([key], own, written, size.nbytes)
        return self._run([key], own, written, _Noting(
            (t for t in known() if isinstance(t, Tensor)),
            self._left // parts))

    def _run(self, keys: Sequence[Hashable], own: Callable[[], Any],
             written: Written, kept: int | _Noting) -> Any:
        """Runs `own`; returns STREAMED, with random state and buffers restored,
        if it runs out of memory. `kept`: bytes of its graph, or their meter."""
        random, before = RandomState(self._room.device), Snapshot(written)
        try:
            if isinstance(kept, _Noting):
                out, size = kept.run(own), kept.size
                self._room.note(keys[0], self._shape, size)
            else:
                out, size = own(), Size(kept, True)
        except torch.OutOfMemoryError:
            out, self._left = STREAMED, 0
            self._room.ran_out(keys, self._shape)
        if out is STREAMED:
            random.restore()
            before.restore()
        else:
            self._left -= size.nbytes
            self._room.keeps(out if isinstance(out, Tensor) else out[0],
                             size.nbytes)
        return out


def _keys(layers: Iterable[nn.Module], kinds: dict[nn.Module, int], x: Tensor
          ) -> Iterator[tuple[nn.Module, Hashable]]:
    """Yields a key for each layer. Layers with equal keys keep the same bytes.
    `x`: the first layer's input."""
    needs, cast = x.requires_grad, cast_of(x.device)
    for layer in layers:
        trained = tuple(p.requires_grad for p in layer.parameters())
        yield layer, (kinds.get(layer), layer.training, trained, x.dtype,
                      needs, cast)
        needs = needs or any(trained)


def cast_of(device: torch.device) -> torch.dtype | None:
    return torch.get_autocast_dtype(device.type) if (
        torch.is_autocast_enabled(device.type)) else None
