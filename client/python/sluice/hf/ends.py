"""Runs a decoder's code before its first and after its last layer in chunks.

[Note: ends]
The code there is the decoder's own and unknown: embeddings that are scaled,
positions that are added, norms, dropout. So the decoder's own forward runs on
the rows of one chunk, with stand-ins for its layers: the first records its
input, or the last returns a chunk of the real last layer's output. `ends_trial`
finds out whether that is exact. In the forward over all rows the layers are
real, and the embedding is a stand-in with only shape and dtype. That forward
ends after the last layer if hidden states are in the host, or if the head runs
the code after the layers (`leaving`).
"""
from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from sluice.base import argument_table
from sluice.base.errors import Unsupported
from sluice.base.model_protocols import Model
from sluice.hf import fsdp_units as units
from sluice.hf import stand_in
from sluice.hf.changed_after_stream import Inside
from sluice.hf.stand_in import Instead, Output, Recorded
from sluice.node import chunked_module
from sluice.node.hidden_rows import InHost, Whole
from sluice.node.setting import unchanged
from sluice.node.step import Step
from sluice.node.streamed import Stream
from sluice.proof.captured_calls import DROPS

_DEALT, _CUT = argument_table.those("dealt"), argument_table.those("cut")
LEFT = "padding on the left"
_DEVICE = 'stream it with hidden="device"'


class Part:
    """The modules that one end runs: `owners`, the decoder first. `others` are
    modules that the forward over all rows runs too."""

    def __init__(self, owners: Sequence[nn.Module],
                 others: Sequence[nn.Module]):
        self._owners, self._others = owners, others
        self._inside = Inside(lambda: owners)

    def modules(self) -> Iterator[nn.Module]:
        return iter(self._owners)

    def units(self) -> list[nn.Module]:
        """Returns the owners that are FSDP2 units, without the decoder."""
        return [m for m in self._owners[1:] if isinstance(m, FSDPModule)]

    def has_changed(self) -> bool:
        """Returns whether an owner has a new hook or forward."""
        return self._inside.has_changed()

    def still(self) -> contextlib.AbstractContextManager:
        """Restores on exit what forwards on some rows change in `others`:
        rotary embeddings, for example, remember the longest sequence."""
        return unchanged(self._others, contents=False)


class Ends:
    """The ends of one decoder, as `ends_trial` has found them."""

    def __init__(self, adapter: Model, stream: Stream):
        self.adapter, self.stream = adapter, stream
        self.decoder = adapter.decoder
        # What runs before the first and after the last layer; None: not cut.
        self.before: Part | None = None
        self.after: Part | None = None
        self.first = self.last = adapter.layers[0]
        # Whether position_ids 0, 1, … are passed if the caller passes none.
        self.says_positions = False
        # Computes the position_ids that are passed with a mask with zeros if
        # the caller passes none; None if the decoder computes them itself.
        self.counts: Callable[[Tensor], Tensor] | None = None
        # Arguments that may be cut into chunks; LEFT: a mask with left padding.
        self.takes = {"input_ids"}
        self.together = 1  # chunks at once, if hidden states are on the device
        self.modules: list[nn.Module] = []  # `outside()` in the trials
        self._left: list[Left] | None = None  # see `leaving`

    def run(self, step: Step, own: Callable, all_given: dict[str, Any]) -> Any:
        """Returns the output of the decoder's forward `own` with `all_given`,
        by name. The code before the layers runs in chunks if that is exact; so
        does the code after them if the forward ends there ([Note: ends])."""
        given = {name: value for name, value in all_given.items()
                 if value is not None and not (  # a mask without zeros
                     name == "attention_mask" and isinstance(value, Tensor)
                     and bool(value.all()))}
        why = self._refusal(given)
        if why is not None:
            if isinstance(step.hidden, InHost):
                raise Unsupported(self.decoder, f"{why} with "
                                  'hidden="host"', _DEVICE)
            return own(**all_given)
        given = self.with_positions(given)
        ended = None
        with contextlib.ExitStack() as stack:
            waiting = self._enter(stack, self._first(step, given))
            if isinstance(step.hidden, InHost) or self._left is not None:
                stack.enter_context(self.last.register_forward_hook(_end))
            try:
                out = own(**all_given)
            except Recorded as caught:  # leave at once: `caught` holds all rows
                ended = caught.args
        if waiting:
            raise Unsupported(self.decoder, "a forward that leaves its first "
                              "layer out", DROPS)
        if ended is not None:
            (y,) = ended
            return self._last(step, y, given)
        if isinstance(step.hidden, InHost):
            raise Unsupported(self.decoder, "a forward that leaves its last "
                              "layer out", _DEVICE)
        return out

    def with_positions(self, given: dict[str, Any]) -> dict[str, Any]:
        """Adds position_ids, if they must be computed from the whole mask."""
        mask = given.get("attention_mask")
        if self.counts is None or mask is None or "position_ids" in given:
            return given
        return {**given, "position_ids": self.counts(mask.long())}

    def _enter(self, stack: contextlib.ExitStack, x: Tensor) -> list[Tensor]:
        """Replaces the first layer's input by x, and the embedding by a
        stand-in: no embeddings are held while the layers run. Returns a list
        that is empty once the first layer has run."""
        waiting, dtype = [x], x.dtype  # x is freed once it is used

        def instead(layer: nn.Module, args: tuple, kwargs: dict) -> tuple:
            if args:
                return (waiting.pop(), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": waiting.pop()}

        stack.enter_context(self._embedding(dtype))
        stack.enter_context(self.first.register_forward_pre_hook(
            instead, prepend=True, with_kwargs=True))
        return waiting

    def _refusal(self, given: dict[str, Any]) -> str | None:
        """Returns what in this call or its modules prevents chunks, or None."""
        if self.before is None:
            return "what it computes outside of its layers"
        for wish in ("output_hidden_states", "output_attentions"):
            if argument_table.wants(self.decoder, given, wish):
                return wish
        if not argument_table.wants(self.decoder, given, "return_dict", True):
            return "return_dict=False"
        for name, value in given.items():
            if isinstance(value, (list, tuple, dict)) or (
                    isinstance(value, Tensor) and value.dim()
                    and name not in self.takes):
                return f"the argument '{name}'"
        mask = given.get("attention_mask")
        if mask is not None and LEFT not in self.takes and not bool(
                mask[:, 0].all()):
            return LEFT
        if self.modules != self.outside() or self.before.has_changed() or (
                self.after.has_changed()):
            return "modules or hooks that came after sluice.stream"
        # A forward that ends after its last layer would lose these hooks.
        if self.last._backward_hooks or self.last._backward_pre_hooks or (
                nn.modules.module._global_backward_hooks) or (
                nn.modules.module._global_backward_pre_hooks):
            return "backward hooks of the last layer"
        return None

    def units(self) -> list[nn.Module]:
        return [unit for part in (self.before, self.after)
                if part is not None for unit in part.units()]

    def outside(self) -> list[nn.Module]:
        """Returns the decoder's modules but its layers, the decoder first."""
        todo, found = [self.decoder], []
        while todo:
            module = todo.pop()
            found.append(module)
            if module is not self.adapter.layers:
                todo += [c for c in module._modules.values() if c is not None]
        return found

    @contextlib.contextmanager
    def leaving(self) -> Iterator[list[Left]]:
        """Inside, the decoder may return its last layer's output, unless a hook
        reads the decoder's output or the decoder is an FSDP2 unit. The list
        then has a `Left`: the head runs the code after the layers by chunks."""
        left: list[Left] = []
        if not self.decoder._forward_hooks and not isinstance(
                self.decoder, FSDPModule):
            self._left = left
        try:
            yield left
        finally:
            self._left = None

    def _first(self, step: Step, given: dict[str, Any]) -> Tensor:
        call = FirstCall(self, step, given)
        step.at_end.append(weakref.WeakMethod(call.settle))
        return units.through(self.before.units(), lambda _: chunked_module.run(
            call, None), given["input_ids"])

    def _last(self, step: Step, y: Any, given: dict[str, Any]) -> Any:
        """Returns the decoder's output for the last layer's output `y`."""
        as_tuple = isinstance(y, (tuple, list))
        hidden = y[0] if as_tuple else y
        left = Left(self, step, given, as_tuple)
        if self._left is not None:
            self._left.append(left)
            return Output(last_hidden_state=hidden)
        call = LastCall(left)
        hidden = units.through(self.after.units(),
                               lambda h: chunked_module.run(call, h), hidden)
        answer, call.answer = call.answer, None  # autograd keeps the call
        answer["last_hidden_state"] = Whole.apply(
            step.hidden, step.chunks, hidden)
        return answer

    def x_of(self, given: dict[str, Any], rows: range) -> Tensor:
        with self.before.still(), units.unhooked(self.before.units()):
            try:
                self._own(given, rows, stand_in.record)
            except Recorded as recorded:
                return recorded.args[0]
        raise Unsupported(self.decoder, "a forward that leaves all layers out",
                          DROPS)

    def answer_of(self, given: dict[str, Any], rows: range, y: Tensor,
                  as_tuple: bool) -> Any:
        """Returns the decoder's output for y [B, c, H] of the last layer."""
        with self.after.still(), units.unhooked(self.after.units()), (
                self._embedding(y.dtype)):
            return self._own(given, rows, lambda *_, **__: (
                (y,) if as_tuple else y))

    def _own(self, given: dict[str, Any], rows: range,
             instead: Callable) -> Any:
        """Runs the decoder's forward on rows; `instead` replaces layers."""
        mine = {name: _cut(name, value, rows) for name, value in given.items()}
        if self.says_positions and "position_ids" not in mine:
            mine["position_ids"] = torch.arange(
                rows.start, rows.stop, device=mine["input_ids"].device)[None]
        step = self.stream.begin(len(rows), mine["input_ids"].device,
                                 self.adapter, chunk=len(rows), check=False,
                                 alone=True)
        layers = self.adapter.layers
        with stand_in.in_place_of_layers(layers, (
                Instead(layer, instead) for layer in layers)), step.engaged():
            return self.adapter.own_forward(self.decoder)(**mine)

    def _embedding(self, dtype: torch.dtype
                   ) -> contextlib.AbstractContextManager:
        """Replaces the embedding by a stand-in in all of its places."""
        return stand_in.in_every_place(
            self.decoder.get_input_embeddings(), self.outside(),
            lambda base: stand_in.embedding(base, dtype))


class Left(NamedTuple):
    """The part of a decoder's forward after its layers."""

    ends: Ends
    step: Step  # has the hidden states for which stand-ins are passed
    given: dict[str, Any]
    as_tuple: bool

    def answer(self, hidden: Tensor, rows: range) -> Any:
        """Returns the decoder's output for rows of the last layer's output."""
        return self.ends.answer_of(self.given, rows, hidden, self.as_tuple)

    def rows(self, hidden: Tensor, rows: range) -> Tensor:
        return self.answer(hidden, rows)["last_hidden_state"]


class FirstCall(chunked_module.ChunkedCall):
    """One run of the code before the layers. As a row needs little memory, it
    covers several chunks at once unless hidden states are in the host."""

    def __init__(self, ends: Ends, step: Step, given: dict[str, Any]):
        joined = None if isinstance(step.hidden, InHost) else [
            range(step.chunks[a].start, step.chunks[a:a + ends.together][
                -1].stop) for a in range(0, len(step.chunks), ends.together)]
        assert ends.before is not None
        super().__init__(step, ends.before, "what comes before the layers of "
                         + type(ends.decoder).__name__, joined)
        self._ends, self._given = ends, given

    def settle(self) -> None:
        """Records buffers anew: the forward over all rows may write some."""
        if self.keeps:
            self._setting.take_buffers()

    def compute(self, m: int, x: None, extra: list[Tensor]) -> Tensor:
        return self._ends.x_of(self._given, self.chunks[m])


class LastCall(chunked_module.ChunkedCall):
    def __init__(self, left: Left):
        assert left.ends.after is not None
        super().__init__(left.step, left.ends.after, "what comes after the "
                         "layers of " + type(left.ends.decoder).__name__)
        self._left = left
        self.answer: Any = None

    def compute(self, m: int, x: Tensor, extra: list[Tensor]) -> Tensor:
        answer = self._left.answer(x, self.chunks[m])
        y = answer["last_hidden_state"]
        if not self.replays:
            answer["last_hidden_state"] = None
            self.answer = answer
        return y


def _end(module: nn.Module, args: tuple, y: Any) -> None:
    """Ends the forward after the last layer, with its output `y`."""
    raise Recorded(y)


def _cut(name: str, value: Any, rows: range) -> Any:
    if name not in _CUT or value.shape[_DEALT[name]] == 1:
        return value
    return value.narrow(_DEALT[name], rows.start, len(rows))
