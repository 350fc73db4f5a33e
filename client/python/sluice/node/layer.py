"""Runs a decoder layer as one autograd node: the user's own module, chunk by
chunk ([Note: chunked module]), with attention over all chunks' k and v, which
are in host memory. In forward `over_chunks.Attend` computes attention; the
replay takes attention's results from the kept (o, lse).

[Note: run again]
Attention's k, v, o and lse of the first chunks need not be kept until backward:
causal rows see only earlier rows, so before its first replay a layer can run
its own forward once more on these chunks, from their inputs, in the first
forward's order. So these tensors exist for one layer at a time. For a fraction
f of the rows this costs f^2 of attention's forward and f of all other work.
"""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sluice.attention.blocks import Scores
from sluice.attention.exchange import attend
from sluice.attention.intervals import Intervals
from sluice.attention.over_chunks import Question, Site
from sluice.base import swapped
from sluice.base.argument_table import HANDED
from sluice.base.errors import NoAttention, Unsupported
from sluice.base.hashing import of_tensor
from sluice.node import calls, carried_state, chunked_module, skipped_products
from sluice.node.carried_state import Cache, Carried
from sluice.node.checked_chunks import TwoParts
from sluice.node.rows import Arguments, Leaf, Numbered, cut
from sluice.node.shared_tensors import Handing
from sluice.node.skipped_products import Following, Spared
from sluice.node.step import Step
from sluice.node.tape import Tape
from sluice.plan.products import Products

_running = threading.local()  # .call: the LayerCall that this thread runs


def running() -> LayerCall | None:
    """Returns the call of the streamed layer that this thread runs, if any."""
    return getattr(_running, "call", None)


def _first(out: Any) -> Any:
    """Returns the hidden states of a layer's output."""
    return out[0] if isinstance(out, (tuple, list)) else out


# One call of a streamed layer: its forward over all chunks, and its backward.
class LayerCall(chunked_module.ChunkedCall):
    def __init__(self, step: Step, layer: nn.Module, own: Callable,
                 arguments: Arguments):
        super().__init__(step, layer, type(layer).__name__)
        self.own, self._arguments = own, arguments
        # Number of outputs after y in the layer's tuple; None: no tuple.
        self._beside: int | None = None
        self._chunk = self._site = 0  # indices: chunk, its next attend()
        self.biased = False  # a bias was added to possible scores
        self._rows = step.chunks[0]  # the rows that the running forward has
        # `_parts` is set in a compared replay, `_compared` while a part runs.
        self._parts: TwoParts | None = None
        self._compared: tuple[TwoParts, range] | None = None
        self._batch = 0  # number of sequences
        self._side = step.sides.get(layer)
        self._sites: list[Site] = []
        self._kind = step.kinds.get(layer, "")
        self._policy = step.policy.of_kind(self._kind)
        watched = self._policy.shares or step.measured is not None
        self._products = Products(layer) if watched else None
        self._tape: Tape | None = None
        # The products that the layer's replays skip, once known.
        self._spared: tuple[Spared, Products] | None = None
        self._following: Following | None = None  # tracks the running replay
        self._without_kv = False  # whether this replay skips k or v
        self._again = False  # see [Note: run again]
        self.rerun = step.rerun
        # See [Note: carried states] in carried_state.
        self._carried = Carried(layer, step.arena, step.device) if (
            layer in step.carriers) else None
        # See [Note: handed tensors] in shared_tensors.
        self.handing = Handing(step.handed) if arguments.hands else None

    def forward(self, *args: Any) -> Tensor:
        with self._timed("forward"):
            y = super().forward(*args)
        if self.keeps:
            for site in self._sites:
                for m in range(self.rerun):
                    site.forget(m)
        return y

    def run_again(self) -> None:
        """Recomputes attention of the first chunks; see [Note: run again]."""
        arena, device = self.step.arena, self.step.device
        with torch.no_grad(), self._autocast, swapped.attributes(
                self, _again=True, replays=False):
            for m in range(self.rerun):
                if m + 1 < self.rerun:
                    arena.prefetch(self._x[m + 1], device)
                self._restore(m)
                self.compute(m, arena.get(self._x[m], device), [
                    cut(leaf, self.chunks[m]) for leaf in self.arguments()])

    def backward(self, *args: Any) -> Any:
        with self._timed("backward"):
            found = super().backward(*args)
        if self.handing is not None:
            self.handing.collect()
        if self.step.plain is not None:
            self.step.plain.replayed()
        if self.step.progress is not None:
            self.step.progress.done(self.module)
        return found

    def _timed(self, direction: str) -> contextlib.AbstractContextManager:
        if self.step.measured is None:
            return contextlib.nullcontext()
        return self.step.measured.layer(self._kind, direction, self.keeps)

    def arguments(self) -> list[Leaf]:
        return self._arguments.differentiable()

    def compute(self, m: int, x: Tensor, extra: list[Tensor]) -> Tensor:
        self._chunk, self._batch = m, len(x)
        if self.step.progress is not None:
            self.step.progress.move(
                self.step, "backward" if self.replays or self._again else
                "forward", self.module, m)
        self._rows = self.step.chunks[m]
        if self.replays and self.compares_parts(m):
            self._parts = TwoParts.of(
                self.step.chunks, m, 1 if self._carried is None else
                carried_state.LEAST)
        if self._carried is not None:
            self._begin_states(self._carried, m)
        if self.handing is not None:
            self.handing.begin(m, not (self.replays or self._again),
                               self.replays)
        with self._taping(m, x.device), self._weighing():
            out = self._run_sparing(x, extra)
        if self._site == 0 and self.biased:
            raise Unsupported(self.name, "a bias that is added to attention's "
                              "scores, as ALiBi's")
        if self._site == 0 and not (self.step.carriers
                                    or self.step.whole_layers):
            raise NoAttention(self.name, "a layer without attention, through "
                              "transformers' registry, torch's or written out")
        if self._site != len(self._sites):
            raise Unsupported(self.name, f"{self._site} calls of attention in "
                              f"chunk {m}, {len(self._sites)} before")
        y = self._hidden_of(out, x)
        if self._side is not None and not (self.replays or self._again):
            self._side.keep(m, len(x))
        return y

    def _run_sparing(self, x: Tensor, extra: list[Tensor]) -> Any:
        """Runs a chunk. A replay skips products, and runs again if its graph is
        not the one for which they were found."""
        self._site = 0
        with self._noting(), self._sparing(x, extra) as how:
            out = self._run(x, extra)
            if self._side is not None:
                out = self._side.without(out)
        y = _first(out)
        if isinstance(how, Following):
            self.step.spared[self.module] = how.found(y).joined(
                self.step.spared.get(self.module))
            self._following = None
        elif isinstance(how, Spared) and self.step.ranks is None and (
                skipped_products.kinds_of(y) not in how.graphs):
            self._following = Following(self.module, how.conditions)
            self._spared = None
            self._restore(self._chunk)
            return self._run_sparing(x, extra)
        return out

    def _weighing(self) -> contextlib.AbstractContextManager:
        """Measures what a replay saves for backward (plain_layers)."""
        if self.step.plain is None or not self.replays:
            return contextlib.nullcontext()
        return self.step.plain.weighing(self.module,
                                        self._batch * len(self._rows))

    def _begin_states(self, states: Carried, m: int) -> None:
        if self.replays:
            states.second(m)
        elif self._again:
            states.again(m)
        else:
            states.first(m, self.keeps)

    def _states(self) -> dict[carried_state.Key, Tensor]:
        """Returns the states that the latest chunk left for the next one."""
        return {} if self._carried is None else self._carried.cache.after

    def bits(self, y: Tensor) -> Tensor:
        return torch.stack([of_tensor(y), *map(of_tensor,
                                               self._states().values())])

    def _run(self, x: Tensor, extra: list[Tensor],
             cache: Cache | None = None) -> Any:
        args, kwargs = self._arguments.chunk(self._rows, extra)
        if self._carried is not None:
            kwargs[self._carried.argument] = cache or self._carried.cache
        if self.handing is not None:
            kwargs[HANDED] = self.handing
        with self.as_running(), self.step.inside(), self._numbering():
            return self.own(x, *args, **kwargs)

    def as_running(self) -> contextlib.AbstractContextManager:
        return swapped.attributes(_running, call=self)

    def compare_parts(self, m: int, x: Tensor, y: Tensor, same: Tensor) -> bool:
        parts, self._parts = self._parts, None
        assert parts is not None  # the replay created them
        cache = None
        for part in parts:
            if self._carried is not None:
                cache = Cache(self._carried.in_parts() if cache is None else
                              cache.after)
            self._rows = self.step.chunks[m][part.start:part.stop]
            self._site = 0
            with swapped.attributes(self, _compared=(parts, part)), (
                    contextlib.nullcontext() if self.handing is None else
                    swapped.attributes(self.handing, part=part)):
                out = self._run(
                    x.detach()[:, part.start:part.stop].contiguous(),
                    [cut(leaf, self._rows) for leaf in self.arguments()], cache)
            parts.compare(part, _first(out), y)
        if cache is not None:
            parts.compare_states(cache.after, self._states(), y)
        return parts.check(self.name, m, same)

    def _noting(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if self._side is None else (
            self._side.watching())

    def _numbering(self) -> contextlib.AbstractContextManager:
        """See [Note: numbered rows] in rows."""
        if self.module not in self.step.numbered:
            return contextlib.nullcontext()
        within = self._rows.start - self.step.chunks[self._chunk].start
        return Numbered(len(self._rows), self.step.first_row + within + (
            self.step.own[self._chunk].start))

    def beside(self, m: int) -> list[tuple[Tensor, Tensor]]:
        pair = None if self._side is None else self._side.pair(m, self._batch)
        return [*([] if pair is None else [pair]), *(
            pair for of in (self._carried, self.handing) if of is not None
            for pair in of.pairs())]

    def _sparing(self, x: Tensor, extra: list[Tensor]
                 ) -> contextlib.AbstractContextManager:
        """Skips products in a replay, or finds products that later replays can
        skip; see [Note: spared products] in skipped_products."""
        self._without_kv = False
        if not self.replays:
            return contextlib.nullcontext()
        if self._following is not None:  # the chunk runs again
            return self._following
        if self._spared is None:
            known = self.step.spared.get(self.module)
            conditions = skipped_products.conditions(
                self.module, self._setting.attributes, (x, *extra))
            if known is None or known.conditions != conditions:
                self._following = Following(self.module, conditions)
                return self._following
            self._spared = known, Products(self.module)
        known, products = self._spared
        if self.is_compared(self._chunk) or not known.weights:
            return contextlib.nullcontext()
        if self.step.measured is not None:
            self.step.measured.spared(self._kind, known.weights)
        self._without_kv = known.makes_kv
        if known.makes_kv:
            for site in self._sites:
                site.prefetch(self._chunk, self.step.device)
        return known.left_out(self.module, products)

    def _taping(self, m: int, device: torch.device
                ) -> contextlib.AbstractContextManager:
        if not self.keeps or self._products is None or self._again:
            return contextlib.nullcontext()
        if self.step.measured is not None:
            return (contextlib.nullcontext() if self.replays else
                    self.step.measured.metering(self._kind, self._products))
        if self._tape is None:
            self._tape = Tape(self._policy, self.step.arena,
                              self._products, len(self.step.chunks))
        return (self._tape.answering(m, device) if self.replays else
                self._tape.recording(m))

    def _hidden_of(self, out: Any, x: Tensor) -> Tensor:
        is_tuple = isinstance(out, (tuple, list))
        self._beside = len(out) - 1 if is_tuple else None
        hidden = _first(out)
        more = [o for o in out[1:] if o is not None and not isinstance(
            o, calls.Standing)] if is_tuple else []
        if more or not isinstance(hidden, Tensor) or (
                hidden.shape[:2] != x.shape[:2]):
            raise Unsupported(
                self.name, "an output beside its hidden states [B, S, H]"
                if more else "an output that is not hidden states [B, S, H]",
                "switch such outputs off, or do not stream this model")
        return hidden

    # --- attention, called by the layer while it runs ----------------------

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Intervals,
               scores: Scores, sinks: Tensor | None) -> Tensor:
        """Returns o [B, H, c, Dv] of this chunk's q [B, H, c, D] over its own
        k, v [B, Hkv, c, D or Dv] and those of all earlier chunks."""
        site = self._next_site()
        if self._compared is not None:
            parts, part = self._compared
            return parts.attend(part, self._site - 1, q, k, v)
        if self._following is not None:
            self._following.attends(k, v)
        self.step.attended.add((q.shape[1], k.shape[1], q.shape[3], v.shape[3]))
        with (contextlib.nullcontext() if self._products is None else
              self._products.paused()):
            o = attend(self.step.ranks, Question(
                site, self._chunk, self.replays, mask, scores,
                self._without_kv), q, k, v, sinks)
        if self._parts is not None:
            self._parts.note(q, k, v, o)
        return o

    def _next_site(self) -> Site:
        if self._site == len(self._sites):
            self._sites.append(Site(self.step.arena, self.step.whole,
                                    self.step.kernel))
        self._site += 1
        return self._sites[self._site - 1]

    def answer(self, y: Tensor) -> Any:
        """Returns hidden states y as the layer does: alone, or in a tuple."""
        return y if self._beside is None else (y, *[None] * self._beside)

    @property
    def heads(self) -> list[tuple[int, int]]:
        """For each call of attention: heads of q, heads of k and v."""
        return [site.heads for site in self._sites]

    def release(self) -> None:
        if self._tape is not None:
            self._tape.release()
        for site in self._sites:
            site.release()
        if self._carried is not None:
            self._carried.release()
        super().release()

    @property
    def rows_of_chunk(self) -> int:
        return len(self._rows)

    @property
    def blocks_run(self) -> int:
        return sum(site.blocks_run for site in self._sites)

    @property
    def kernels(self) -> set[str]:
        return set().union(*(site.kernels for site in self._sites))


def run(call: LayerCall, x: Tensor) -> Tensor:
    """Returns y [B, S, H] of the layer, as one node of the user's graph."""
    y = chunked_module.run(call, x)
    call.step.blocks_run += call.blocks_run
    call.step.kernels |= call.kernels
    return y
