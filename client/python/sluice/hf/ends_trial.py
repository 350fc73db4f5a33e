"""Checks that a decoder's ends, its code before the first and after the last
layer, give the same results in chunks as over all rows.

The decoder runs once unchanged, in train mode. In chunks the first layer's
input, the decoder's output and the gradients must be the same, and the streamed
decoder's output must not depend on whether its ends run in chunks. If any of
this fails, the ends run whole, and hidden states in the host are refused. For a
decoder that draws random numbers, torch's random functions return fixed values
(Still), which slows every call of torch.
"""
from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base import swapped
from sluice.base.errors import Unsupported
from sluice.base.precision import near
from sluice.base.randomness import RandomState, Still
from sluice.hf import padding, routers
from sluice.hf.ends import LEFT, Ends, FirstCall, LastCall, Left, Part
from sluice.node import chunked_module
from sluice.node.replay import Buffers, distinct, leaves, slots
from sluice.node.step import chunks_of
from sluice.proof.captured_calls import probe_tokens
from sluice.proof.trial import weights

CHUNK = 24
LIMIT = 2e-5  # difference by norm in fp32; row-wise code differs by 0
GRADIENT_LIMIT = 1e-4
TOGETHER = 4


def probe(ends: Ends) -> None:
    """Sets the attributes of `ends` by trials of its decoder. Raises
    `Unsupported` if the stream has hidden="host" and chunks are not exact."""
    decoder, in_host = ends.decoder, ends.stream.hidden == "host"
    why = "what it computes before its first layer or after its last"
    try:
        if ends.adapter.entry is not decoder:
            raise ValueError("the model around it makes its masks")
        same = _try(ends)
    except Exception as error:  # user code may fail on rows of a trial
        same, why = False, f"{why} ({type(error).__name__}: {error})"
    if not same:
        ends.before = ends.after = None
        if in_host:
            raise Unsupported(decoder, f'{why}, with hidden="host": it is '
                              "not the same by chunks of rows", 'stream it '
                              'with hidden="device"')
    ends.together = TOGETHER


class _Seen:
    def __init__(self, ends: Ends, ids: Tensor):
        self.before: list[nn.Module] = []
        self.after: list[nn.Module] = []
        self.order: list[nn.Module] = []
        self.x: Tensor | None = None
        self.y: Any = None
        # Layers make router logits, the ends do not.
        off = {routers.ASKED: False} if routers.asked(ends.decoder, {}) else {}
        with torch.no_grad(), contextlib.ExitStack() as stack:
            for module in ends.outside()[1:]:
                stack.enter_context(module.register_forward_pre_hook(
                    self._outside))
            for layer in ends.adapter.layers:
                stack.enter_context(layer.register_forward_pre_hook(
                    self._entered, with_kwargs=True))
                stack.enter_context(layer.register_forward_hook(self._left))
            self.answer = ends.adapter.own_forward(ends.decoder)(
                input_ids=ids, use_cache=False, **off)
        self.as_tuple = isinstance(self.y, (tuple, list))
        if self.as_tuple:
            self.y = self.y[0]  # type: ignore[index]  # a hook has set it

    def _outside(self, module: nn.Module, args: tuple) -> None:
        (self.after if self.order else self.before).append(module)

    def _entered(self, layer: nn.Module, args: tuple, kwargs: dict) -> None:
        self.order.append(layer)
        self.after = []  # code between layers belongs to no end
        if self.x is None:
            self.x = args[0] if args else kwargs["hidden_states"]

    def _left(self, layer: nn.Module, args: tuple, y: Any) -> None:
        self.y = y


def _try(ends: Ends) -> bool:
    ids = probe_tokens(ends.adapter)
    ids = torch.cat([ids, ids.flip(1)])
    held, before = Buffers(ends.outside()), RandomState(ids.device)
    seen = _Seen(ends, ids)
    if not before.moved():
        return _chunks_are_same(ends, ids, seen, held)
    with Still():
        return _chunks_are_same(ends, ids, _Seen(ends, ids), held)


def _chunks_are_same(ends: Ends, ids: Tensor, seen: _Seen,
                     held: Buffers) -> bool:
    if held.written() or not isinstance(seen.answer, dict) or any(
            isinstance(v, (Tensor, tuple)) for k, v in seen.answer.items()
            if k != "last_hidden_state"):
        return False
    before, after = (_with_parts(ends, m) for m in (seen.before, seen.after))
    ends.first, ends.last = seen.order[0], seen.order[-1]
    ends.before = Part([ends.decoder, *before], before)
    ends.after = Part([ends.decoder, *after], before)
    ends.modules = ends.outside()
    given = {"input_ids": ids, "use_cache": False}
    ends.says_positions = False
    if not _first_is_same(ends, given, seen.x):
        ends.says_positions = True
        if not _first_is_same(ends, given, seen.x):
            return False
    if not _last_is_same(ends, given, seen):
        return False
    _try_arguments(ends, ids)
    for slot in slots(Part(ends.outside(), ())):
        if slot.parameter.is_floating_point():
            slot.parameter.requires_grad_()
    if not _gradients_are_same(ends, given, seen):
        return False
    return _streams_the_same(ends, ids)


def _with_parts(ends: Ends, called: list[nn.Module]) -> list[nn.Module]:
    """Returns the called modules and the modules in them, without layers."""
    outside = set(ends.outside())
    return [part for part in dict.fromkeys(
        part for module in called for part in module.modules())
        if part in outside and part is not ends.decoder]


def _first_is_same(ends: Ends, given: dict[str, Any], x: Tensor) -> bool:
    given = ends.with_positions(given)
    with torch.no_grad():
        parts = [ends.x_of(given, rows) for rows in _chunks(x)]
    return near(torch.cat(parts, 1), x, LIMIT)


def _last_is_same(ends: Ends, given: dict[str, Any], seen: _Seen) -> bool:
    with torch.no_grad():
        parts = [ends.answer_of(given, rows, seen.y[:, rows.start:rows.stop],
                                seen.as_tuple)["last_hidden_state"]
                 for rows in _chunks(seen.y)]
    return near(torch.cat(parts, 1), seen.answer["last_hidden_state"], LIMIT)


def _try_arguments(ends: Ends, ids: Tensor) -> None:
    """Finds which other arguments may be cut into chunks: positions of
    documents, and masks with padding on either side, if needed with positions
    computed from the mask."""
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    right, left = torch.ones_like(ids), torch.ones_like(ids)
    right[1, -9:] = left[1, :9] = 0
    _try_argument(ends, ids, "position_ids", "position_ids", positions % 31)
    for ends.counts in (None, *padding.COUNTS):
        _try_argument(ends, ids, "attention_mask", "attention_mask", right)
        _try_argument(ends, ids, LEFT, "attention_mask", left)
        if "attention_mask" in ends.takes:
            return
        ends.takes.discard(LEFT)
    ends.counts = None


def _try_argument(ends: Ends, ids: Tensor, what: str, name: str,
                  value: Tensor) -> None:
    given = {"input_ids": ids, "use_cache": False, name: value}
    said = ends.says_positions
    try:
        # The run over all rows gets no positions from `says_positions`.
        ends.says_positions = False
        with torch.no_grad():
            plain = ends.x_of(given, range(ids.shape[1]))
        ends.says_positions = said
        if _first_is_same(ends, given, plain):
            ends.takes.add(what)
    except Exception:  # e.g. the decoder has no such argument
        ends.says_positions = said


def _gradients_are_same(ends: Ends, given: dict[str, Any], seen: _Seen) -> bool:
    """Compares autograd's gradients over all rows with the chunked nodes'."""
    rows = range(seen.x.shape[1])
    device = seen.x.device

    def whole_last(y: Tensor) -> Tensor:
        return ends.answer_of(given, rows, y, seen.as_tuple)[
            "last_hidden_state"]

    def step():
        return ends.stream.begin(len(rows), device, ends.adapter, chunk=CHUNK,
                                 check=True, alone=True)

    y = seen.y
    for part, inputs, whole, by_chunks in (
            (ends.before, [], lambda: ends.x_of(given, rows),
             lambda: chunked_module.run(FirstCall(ends, step(), given), None)),
            (ends.after, [y.clone().requires_grad_()], whole_last,
             lambda h: chunked_module.run(LastCall(Left(
                 ends, step(), given, seen.as_tuple)), h))):
        wanted = [*inputs, *distinct(slots(part))]
        out = whole(*inputs)
        if not all(any(end is t for t in wanted) for end in leaves(out)):
            return False  # `out` depends on a weight of an unknown module
        if not out.requires_grad:
            continue
        pairs = [torch.autograd.grad(o, wanted, weights(o), allow_unused=True)
                 for o in (out, by_chunks(*inputs))]
        if not all(near(a, b, GRADIENT_LIMIT) for a, b in zip(*pairs)):
            return False
    return True


def _streams_the_same(ends: Ends, ids: Tensor) -> bool:
    """Compares streamed outputs with the ends run whole and run by chunks."""
    stream, answers = ends.stream, []
    parts = ends.before, ends.after
    settings = [((None, None), False), (parts, False)]
    settings += [(parts, True)] if stream.hidden == "host" else []
    for (before, after), in_host in settings:
        # ranks=None: the ends are compared without collectives.
        with torch.no_grad(), swapped.attributes(
                ends, before=before, after=after), swapped.attributes(
                stream, chunk=CHUNK, in_host=in_host, ranks=None):
            answers.append(ends.decoder(
                input_ids=ids, use_cache=False)["last_hidden_state"])
    return all(near(answer, answers[0], LIMIT) for answer in answers[1:])


def _chunks(x: Tensor) -> list[range]:
    return chunks_of(x.shape[1], CHUNK)
