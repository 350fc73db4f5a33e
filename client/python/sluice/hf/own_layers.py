"""Streams the user's own decoder layers, without transformers. The layers call
torch for attention; embedding, head and loss are not touched.

[Note: between layers]
With hidden states in the host, or with a group, the first layer splits its
input into chunks of a rank's own rows, and the last layer joins its output of
all chunks and ranks. Between layers the user's code gets stand-ins of the whole
sequence ([Note: stand-ins] in hidden_rows).

The model around the layers is unknown, so stream() can run it only by `sample`.
Without a sample, the user's first call is probed.
"""
from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sluice.base import randomness, swapped
from sluice.base.arguments import need
from sluice.base.errors import Unsupported
from sluice.base.model_protocols import Layered, Patched
from sluice.hf import trial_results
from sluice.hf.changed_after_stream import Held, Inside, warn_of_hooks
from sluice.hf.fsdp_units import refuse_compiled, refuse_within
from sluice.hf.whole_calls import Call, rows_of
from sluice.node import calls, plain_layers, rows, whole_layers
from sluice.node import layer as layers_
from sluice.node.eager_attention import Cut
from sluice.node.hidden_rows import InHost, Parted, Standing, Whole, is_stand_in
from sluice.node.patch import Patch
from sluice.node.settings import LAYERS
from sluice.node.step import Step
from sluice.node.streamed import Stream
from sluice.proof import probe, trial
from sluice.proof.captured_calls import (
    TOKENS,
    Seen,
    by_kind,
    first_of_kind,
    recorded,
    refusing,
)
from sluice.proof.twin import Twin
from sluice.ranks.groups import indices

LEAST = 64  # rows, enough to show what a layer does

Layers: TypeAlias = nn.ModuleList | nn.ModuleDict | Iterable[nn.Module]


class OwnLayers(Patched):
    def __init__(self, layers: Layers, sample: Callable[[], Any] | None):
        super().__init__()
        self._held = Held.of(layers)
        self.layers = list(layers.values() if isinstance(
            layers, nn.ModuleDict) else layers)
        need("stream", "layers", self.layers, LAYERS)
        self.name = type(self.layers[0]).__name__
        self._sample = sample
        self._index = {layer: i for i, layer in enumerate(self.layers)}
        self._kind: list[int] = []  # per layer: index of the first of its kind
        self._probed: set[int] = set()  # kinds that were probed
        self._stale = False  # whether layers have changed since the probe
        self._whole = False  # whether the sample runs, with layers unstreamed
        # The current step, and the index of the layer that it has run last.
        self._step: tuple[Step, int] | None = None
        # This rank's rows of the step's arguments; see `rows_of`.
        self._cuts: dict[int, tuple[Tensor, Tensor]] = {}
        self._refuse_setup()

    def _of_step(self) -> Step:
        assert self._step is not None
        return self._step[0]

    def attach(self, stream: Stream) -> None:
        for layer in self.layers:
            self._patches[layer] = Patch(layer, self._forward(stream, layer),
                                         stream.warn_once)
        self._kind = first_of_kind(self.layers)
        if self._sample is None and (stream.hidden == "host"
                                     or stream.ranks is not None):
            raise Unsupported(
                self.name, 'hidden="host", or a group, of layers without a '
                "sample: a layer that was not probed yet would get stand-ins "
                "of hidden states", "pass sample=lambda: model(ids)")
        self._insides = [Inside.of([layer]) for layer in self.layers]
        self._probe_all(stream)
        stream.in_host = stream.hidden == "host"

    def inside(self) -> contextlib.AbstractContextManager:
        return Cut()

    # --- the forward --------------------------------------------------------

    def _forward(self, stream: Stream, layer: nn.Module) -> Callable:
        first = _first(layer)

        def forward(self_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            own = self.own_forward(self_)
            if self._whole or layers_.running() is not None:
                return own(*args, **kwargs)
            x, more, named = (args[0], args[1:], kwargs) if args else (
                kwargs.get(first), (), {k: v for k, v in kwargs.items()
                                        if k != first})
            rows.check_hidden(self_, x)
            refuse_within(self_)
            index, length = self._index[self_], x.shape[1]
            if self._stale or self._insides[index].has_changed():
                self._renew(stream)
            known = self._kind[index] in self._probed
            if length < (stream.least_rows if known else LEAST):
                return own(*args, **kwargs)
            calls.refuse_transforms(self_)
            if not known:
                self._probe(stream, self._kind[index],
                            Seen(x.detach(), more, named, None), index)
            try:
                return streamed(self_, own, index, x, more, named)
            except BaseException:
                self._end_step(stream)
                raise

        def streamed(layer: nn.Module, own: Callable, index: int, x: Tensor,
                     more: tuple, named: dict[str, Any]) -> Any:
            step, x = self._begun(stream, index, x)
            if step.ranks is not None:
                own_rows = step.once("own rows", lambda: indices(
                    step.own, step.device))
                more, named = rows_of(layer, step, own_rows, self._cuts,
                                      stream.rows, Call(more, named))
            if step.plain is not None:
                with step.turn:
                    out = step.plain.layer(
                        layer, x, (more, named), lambda: own(
                            x, *more, **named), step.written_by(layer),
                        lambda writes: step.scores_bytes((), writes, x))
                if out is not plain_layers.STREAMED:
                    self._ended(stream, index)
                    return out
            call = whole_layers.call_of(step, layer, own, x, more, named,
                                        stream.rows)
            with step.engaged(), self._apart(step):
                y = whole_layers.run(call, x)
            y = self._ran(stream, index, y)
            return call.answer(y)

        return forward

    def _begun(self, stream: Stream, index: int, x: Tensor
               ) -> tuple[Step, Tensor]:
        """Returns the step of a call of layer `index`, and its input. A new
        length, or a layer not after the last one called, begins a step."""
        step, last = self._step or (None, -1)
        if step is None or step.length != x.shape[1] or index <= last:
            self._end_step(stream)
            self._held.check()
            stands = stream.in_host or stream.ranks is not None
            if stands and is_stand_in(x):
                raise Unsupported(
                    f"layer {index} ({self.name})", "it is called with the "
                    "output of a layer after it", "stream layers that are "
                    'called in their order, with hidden="device" and without '
                    "a group")
            stream.agree("layers", x, {"hidden_states": x})
            step = stream.begin(x.shape[1], x.device, self)
            stream.plain(step, self.layers, x.shape)
            if stands:
                place: type[InHost] | type[Standing] = (
                    InHost if stream.in_host else Standing)
                step.hidden = place(
                    step.arena, step.chunks, step.device, step.length)
                x = Parted.apply(step.hidden, step.own, x)
        self._step = step, index
        return step, x

    def _end_step(self, stream: Stream) -> None:
        """Ends the step, and frees the hidden states that it holds."""
        if self._step is not None:
            (step, _), self._step, self._cuts = self._step, None, {}
            stream.ended(step)
            if isinstance(step.hidden, Standing):
                step.hidden.forget()

    def _apart(self, step: Step) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if step.ranks is None else (
            randomness.apart(step.ranks.rank, step.device))

    def _ran(self, stream: Stream, index: int, y: Tensor) -> Tensor:
        if index < len(self.layers) - 1:
            return y
        step = self._of_step()
        if isinstance(step.hidden, Standing):
            y = Whole.apply(step.hidden, step.own, y)
        if step.ranks is not None:
            with step.telling():
                y = step.ranks.sum(y)
        self._ended(stream, index)
        return y

    def _ended(self, stream: Stream, index: int) -> None:
        """Ends the step after its last layer."""
        if index == len(self.layers) - 1:
            if self._of_step().plain is not None:
                self._of_step().plain.over(None)
            self._end_step(stream)

    # --- the probe ----------------------------------------------------------

    def _probe_all(self, stream: Stream) -> None:
        """Probes a layer of each kind by the sample, if there is one."""
        warn_of_hooks(self.layers, stream.warn_once)
        stream.checks.kinds = by_kind(self.layers)
        if self._sample is not None:
            for index, seen in self._seen(stream).items():
                if index == self._kind[index]:
                    self._probe(stream, index, seen)
        self._take()

    def _take(self) -> None:
        for inside in self._insides:
            inside.take()

    def _renew(self, stream: Stream) -> None:
        self._stale = True
        self._probed.clear()
        self._kind = first_of_kind(self.layers)
        with stream.probing_again():
            self._probe_all(stream)
        self._stale = False

    def _seen(self, stream: Stream) -> dict[int, Seen]:
        seen: dict[int, Seen] = {}
        with swapped.attributes(self, _whole=True), torch.no_grad(), recorded(
                self.layers, stream, seen, _first(self.layers[0])):
            assert self._sample is not None
            self._sample()
        for index in range(len(self.layers)):
            if index not in seen:
                raise Unsupported(f"layer {index}", "the sample does not call "
                                  "it", "pass sample=lambda: model(ids)")
        if seen[0].x.shape[1] < LEAST:
            raise Unsupported(
                "sample", f"it runs {seen[0].x.shape[1]} rows, which do not "
                "show what a layer does", f"run {LEAST} or more")
        return seen

    def _probe(self, stream: Stream, kind: int, seen: Seen,
               index: int | None = None) -> None:
        """Probes layer `index`, or the first of `kind`, on rows of `seen`."""
        at = kind if index is None else index
        seen = self._first_rows(stream, self.layers[at], seen)
        its, twin = probe.on_devices(
            stream, f"layer {at} ({self.name})", seen.x.device,
            functools.partial(self._tried, stream, at, seen))
        alike = [layer for layer, k in zip(self.layers, self._kind)
                 if k == kind]
        trial_results.of_layers(stream, alike, its, [twin], lambda _: 0)
        stream.say_whole()
        self._probed.add(kind)

    def _tried(self, stream: Stream, index: int, seen: Seen,
               device: torch.device) -> tuple[Stream, nn.Module]:
        """Probes a twin of the layer in a separate stream; returns both."""
        layer = self.layers[index]
        name = f"layer {index} ({self.name})"
        with probe.trying(device):
            twin = Twin([layer], device, [layer],
                        forwards={layer: self._patches[layer].before})
            twin.initialise(lambda module: module.reset_parameters())
            tried = _Tried(self, index, twin[layer].train())
            mine, seen = stream.for_trials(device), _there(name, seen, device)
            mine.checks.kinds = [[twin[layer]]]
            mine.written[twin[layer]] = refusing(
                name, f"it fails on {seen.x.shape[1]} rows",
                lambda: trial.written_by(tried, index, seen))
            while True:
                try:
                    probe.probe_layer(tried, mine, index, seen, seen)
                    break
                except Unsupported as refused:
                    refused.layer = index
                    if (stream.ranks is not None or refused.has_remedy
                            or not probe.make_whole(tried, mine, refused)):
                        raise
            if mine.whole_layers:
                probe.weigh_whole(tried, mine, index, [self._first_rows(
                    mine, twin[layer], seen, TOKENS // 2), seen])
            return mine, twin[layer]

    def _first_rows(self, stream: Stream, layer: nn.Module,
                    seen: Seen, most: int = TOKENS) -> Seen:
        x = seen.x
        step = stream.begin(x.shape[1], x.device, self, check=False, alone=True)
        arguments = rows.Arguments(layer, step, seen.args, seen.kwargs,
                                   stream.rows)
        few = range(min(most, x.shape[1]))
        args, kwargs = arguments.chunk(few, [
            rows.cut(leaf, few).detach().requires_grad_()
            for leaf in arguments.differentiable()])
        # Other steps do not know this step's mask markers: return masks.
        args, kwargs = pytree.tree_map(
            lambda value, own: value[..., :len(few), :len(few)] if (
                isinstance(own, Tensor) and step.is_marker(own)) else own,
            (seen.args, seen.kwargs), (args, kwargs))
        return Seen(x[:, :len(few)], args, kwargs, None)

    def _refuse_setup(self) -> None:
        for index, layer in enumerate(self.layers):
            refuse_compiled(index, layer)
            rows.check_parameters(layer)
        if len(self._index) < len(self.layers):
            raise Unsupported(self.name, "a layer that is run several times")


class _Tried(Layered):
    """One layer of a twin, at the index of its original."""

    def __init__(self, of: OwnLayers, index: int, layer: nn.Module):
        self.name, self.layers = of.name, [layer] * (index + 1)

    def inside(self) -> contextlib.AbstractContextManager:
        return Cut()

    def own_forward(self, module: nn.Module) -> Callable:
        return vars(module).get("forward") or functools.partial(
            type(module).forward, module)


def _there(name: str, seen: Seen, device: torch.device) -> Seen:
    if seen.x.is_meta:
        raise Unsupported(name, "a sample on the meta device",
                          "give the model its weights before stream()")
    return Seen(*pytree.tree_map(
        lambda t: t.detach().to(device).requires_grad_(t.requires_grad)
        if isinstance(t, Tensor) else t, tuple(seen)))


def _first(layer: nn.Module) -> str:
    """Returns the name of the layer's first argument, the hidden states."""
    names = list(inspect.signature(type(layer).forward).parameters)
    return names[1] if len(names) > 1 else ""
