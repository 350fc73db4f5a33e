"""Logits that are computed when they are read, after the head ran in chunks;
and log-probabilities for `sluice.logprobs`.

[Note: lazy logits] With labels, most callers read only the loss, and logits of
a long sequence fit nowhere. Other callers compute metrics, or their own loss,
from `out.logits`. So these logits are a tensor without memory, and a node of
the user's graph; the first operation on their values runs the head on all rows.
Until then the node holds the hidden states that the head needs. Backward of the
loss frees these, because it needs the device's memory.
"""
from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from transformers.modeling_outputs import CausalLMOutputWithPast

from sluice.base.errors import Unsupported
from sluice.base.model_protocols import Engaging
from sluice.base.precision import autocast_now
from sluice.hf import fsdp_units
from sluice.hf.ends import Left, Part
from sluice.hf.head import ROWS, Head
from sluice.node import chunked_module, scoring
from sluice.node.calls import Call
from sluice.node.replay import Slot
from sluice.node.scoring import Asked
from sluice.node.setting import Setting, is_of_fsdp
from sluice.node.step import Step

_aten = torch.ops.aten


class LazyLogits(Tensor):
    """Logits [B, S, V] that are computed when they are read. Copies and casts,
    as DDP and accelerate make them, are lazy too."""

    _make: Callable[[], Tensor] | None
    _value: Tensor | None = None
    _of: LazyLogits | None = None  # the original, if this is a copy
    _copies: list[tuple[weakref.ref[LazyLogits], Callable]]

    @staticmethod
    def __new__(cls, make: Callable[[], Tensor] | None, shape: tuple[int, ...],
                dtype: torch.dtype, device: torch.device) -> LazyLogits:
        self = Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=device)
        self._make, self._copies = make, []
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        of = args[0] if args and isinstance(args[0], cls) else None
        if of is not None and of._value is None and (
                func is _aten.clone.default or func is
                _aten._to_copy.default and list(kwargs) == ["dtype"]):
            return of._copy(functools.partial(func, **kwargs),
                            kwargs.get("dtype", of.dtype))
        out = func(*_read(args), **_read(kwargs))
        # An operation in place returns the tensor that was passed.
        return of if of is not None and out is of._value else out

    def _copy(self, function: Callable[[Tensor], Tensor],
              dtype: torch.dtype) -> LazyLogits:
        made = LazyLogits(None, self.shape, dtype, self.device)
        made._of = self
        self._copies.append((weakref.ref(made), function))
        return made

    def read(self) -> Tensor:
        """Returns the values, computed in the first call, without a graph."""
        with torch.no_grad():
            if self._of is not None:
                self._of.read()
            elif self._make is not None:
                self._fill(self._make())
        return self._value

    def _fill(self, value: Tensor) -> None:
        """Sets the values; first computes those of lazy copies from them."""
        for made, function in self._copies:
            copy = made()
            if copy is not None:
                copy._fill(function(value))
        self._make = self._of = None
        self._value, self._copies = value, []

    def __repr__(self, **_: Any) -> str:
        return f"<logits {tuple(self.shape)}, made when they are read>"


def _read(tree: Any) -> Any:
    return pytree.tree_map(
        lambda v: v.read() if isinstance(v, LazyLogits) else v, tree)


def _as_plain(name: str) -> Callable:
    return lambda self, *args, **kwargs: getattr(
        self.view(self.shape), name)(*args, **kwargs)


def _hooking(name: str) -> Callable:
    def hook(self: LazyLogits, *args: Any) -> Any:
        if args and is_of_fsdp(args[0]):
            return getattr(Tensor, name)(self, *args)
        raise _refusal(f"with {name}(): the loss is not computed from them")

    return hook


for _name in ("register_hook", "retain_grad"):
    setattr(LazyLogits, _name, _hooking(_name))

# These methods read memory without torch's dispatcher.
for _name in ("numpy", "tolist", "__array__", "__dlpack__", "__reduce_ex__",
              "__deepcopy__", "data_ptr", "untyped_storage"):
    setattr(LazyLogits, _name, _as_plain(_name))


class _Call(chunked_module.ChunkedCall):
    """Runs the head over all rows, [B, S, H] -> [B, S, V]."""

    def __init__(self, head: Head, left: Left | None, hidden: Tensor):
        step = head.stream.begin(
            hidden.shape[1], hidden.device, Engaging(),
            chunk=head.rows_at_once(hidden.shape[-1]), alone=True)
        of_decoder = left.ends.after.modules() if left else ()
        super().__init__(step, Part([*head.modules(), *of_decoder], ()),
                         type(head.causal).__name__)
        self._head, self._left = head, left
        self._waiting: tuple | None = None  # arguments of `make`

    def forward(self, x: Tensor, extra: list[Tensor],
                found: list[Slot]) -> Tensor:
        # Casts that are made below torch's dispatcher have no graph, so later
        # forwards must not find them in a cache.
        self._waiting = (autocast_now(x.device, caches=False), x.detach(),
                         extra, found)
        self._version = chunked_module.version_of(x)
        self._setting = Setting(self.module, found, [])
        width, dtype = self._head.made
        return LazyLogits(self.make, (*x.shape[:2], width), dtype, x.device)

    def compute(self, m: int, x: Tensor, extra: list[Tensor]) -> Tensor:
        return self._head.logits(x if self._left is None else self._left.rows(
            x, self.chunks[m]))

    def make(self) -> Tensor:
        """Computes the logits that `forward` has deferred. Raises `Unsupported`
        if what they are computed from was freed, sharded or changed."""
        if self._waiting is None:
            raise _refusal("after backward() of the loss, which frees what "
                           "they are made of", "read them before it")
        autocast, x, extra, found = self._waiting
        if any(isinstance(slot.owner._parameters[slot.name], DTensor)
               for slot in found):
            raise _refusal("of weights that are sharded by now")
        turn = self._head.stream.turn
        try:
            with turn:
                self._setting.check()
        except RuntimeError:
            self._version = -1
        if self._version != chunked_module.version_of(x):
            raise _refusal("after weights, buffers or hidden states were "
                           "changed", "read them before optimizer.step()")
        self._waiting = None
        with turn, autocast, self._setting.in_place():
            return super().forward(x, extra, found)

    def backward(self, *args: Any) -> Any:
        if self._waiting is not None:
            with torch.no_grad():
                self.make()
        return super().backward(*args)

    def forget(self) -> None:
        """Frees the hidden states; `make` raises from now on."""
        self._waiting = None


def logits(head: Head, left: Left | None, hidden: Tensor, loss: Tensor,
           shape: tuple[int, ...]) -> Tensor:
    """Returns logits of `shape`, computed when they are read. `hidden` [B,
    rows, H] is the decoder's output or, with `left`, its last layer's."""
    if head.stream.ranks is not None or head.stream.in_host or (
            torch.is_grad_enabled() and head.is_sharded):
        def refuse() -> Tensor:
            raise _refusal('with hidden="host", with a group, or for a loss '
                           "of a model that is sharded")
        return LazyLogits(refuse, shape, head.made[1], hidden.device)
    call = _Call(head, left, hidden)
    if loss.requires_grad:
        forget = weakref.WeakMethod(call.forget)
        loss.register_hook(lambda _: (act := forget()) and act())
    return chunked_module.run(call, hidden)


class _Logprobs(chunked_module.ChunkedCall):
    """Computes log p, and entropies if asked: [B, S, H] -> [B, S, 1 or 2]."""

    def __init__(self, step: Step, head: Head, asked: Asked, targets: Tensor):
        super().__init__(step, head, type(head.causal).__name__)
        self._head, self._asked, self._targets = head, asked, targets

    def compute(self, m: int, x: Tensor, extra: list[Tensor]) -> Tensor:
        rows = self.step.chunks[m]
        targets = self._targets[:, rows.start:rows.stop]
        return self._asked.of(self._head.logits(x), targets)


def logprobs(call: Call, head: Head, asked: Asked, base: Any
           ) -> CausalLMOutputWithPast:
    """Returns log-probabilities as `logits`. `base` is the decoder's output."""
    hidden: Tensor = base[0]
    targets = call.own(asked.targets)
    if targets.shape != hidden.shape[:2]:
        raise scoring.wrong_shape(asked.targets, hidden.shape[:2])
    step = head.stream.begin(hidden.shape[1], hidden.device, Engaging(),
                             chunk=ROWS, alone=True)
    asked.answered = True
    found = fsdp_units.through(head.units(), lambda h: chunked_module.run(
        _Logprobs(step, head, asked, targets), h), hidden)
    return CausalLMOutputWithPast(logits=call.all_rows(
        found, asked.targets.shape[1]))


def _refusal(what: str, remedy: str | None = None) -> Unsupported:
    whole = ("set head = 'whole' on what stream() returned (or pass it to "
             "stream) where they fit, leave the labels out, or ask "
             "sluice.logprobs for the labels' log-probabilities")
    return Unsupported(
        "logits", "with labels, head and loss run on chunks of rows, and "
        f"logits are made when they are read, but not {what}",
        whole if remedy is None else f"{remedy}, or {whole}")
