"""The model's own head and loss over chunks of rows.

[Note: chunked head]
Logits of a million tokens do not fit anywhere. With `labels`, the causal
model's own forward is run once per chunk of rows with a stub in the place of
its base model, which hands out those rows of the real hidden states; so
whatever the head does (caps, scales, biases) is done. The loss is the
model's `loss_function` on labels shifted beforehand. Gradients are made
chunk by chunk in forward, so nothing of a chunk stays.
"""
from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers.modeling_outputs import CausalLMOutputWithPast

from sluice import calls, named, scoring, swapped
from sluice.adapters import (
    head_routers,
    logprobs,
    padded,
    routers,
    shared,
    units,
)
from sluice.adapters.head_loss import Labels, Loss
from sluice.adapters.held import Inside, check_base
from sluice.adapters.lazy_logits import logits
from sluice.adapters.stand_in import Recorded, Recorder, Stub
from sluice.calls import Call
from sluice.named import IGNORED
from sluice.replay import Slot, distinct
from sluice.step import current

if TYPE_CHECKING:
    from sluice.adapters.ends import Ends
    from sluice.adapters.ends_calls import Left
    from sluice.streamed import Stream

ROWS = 256  # per chunk at least: logits are its rows times the vocabulary
# More where the logits are no more than so many hidden states for each row of
# a layer's chunk, whose own products are more than that.
HIDDEN = 8
# With any other argument all rows go through the model's own head and loss.
_KNOWN = frozenset(named.those("loss"))


class Head:
    """What is left of a causal model without its base model."""

    def __init__(self, causal: nn.Module, decoder: nn.Module, stream: Stream,
                 ends: Ends):
        self.causal, self.decoder, self.stream = causal, decoder, stream
        self._ends = ends
        self.adds_routers = False  # known to; see head_routers
        self.made: tuple[int, torch.dtype]  # of its latest logits
        self.places = _places(causal, decoder)
        self.place = self.places[0]  # (parent, name) of what it calls
        # What the user or accelerate put in the place of it counts too.
        self.own = vars(causal).get("forward") or functools.partial(
            type(causal).forward, causal)
        # Where that is not a language model's, as transformers writes it, it
        # may look at any row.
        self._foreign = (not self.is_of_transformers()
                         or causal.get_output_embeddings() is None)
        self._loss_function = causal.loss_function

    def tried(self, try_it: Callable[[Head], None]) -> None:
        """`try_it` finds out how it runs; again where something in it is new
        since then."""
        self._try, self._inside = try_it, Inside(self._new)
        try_it(self)

    def _renew(self) -> None:
        self._ends.adapter.renew(self.stream)
        if self._inside.has_changed():
            self._inside.take()
            with self.stream.probing_again():
                self._try(self)

    def _new(self) -> list[nn.Module]:
        return [m for m in self.modules() if m is not self.causal]

    @staticmethod
    def fits(causal: nn.Module, decoder: nn.Module) -> bool:
        """Whether it is a model with a head, whose base model holds the
        decoder."""
        base = causal._modules.get(getattr(causal, "base_model_prefix", ""))
        return (base is not None and causal is not decoder
                and any(m is decoder for m in base.modules())
                and callable(getattr(causal, "loss_function", None)))

    def is_of_transformers(self) -> bool:
        """A forward of the user's may tell calls apart in ways that a probe
        does not meet."""
        own = type(self.causal).forward
        return getattr(self.own, "func", None) is own and (
            own.__module__.startswith("transformers."))

    def forward(self) -> Callable:
        causal = self.causal
        accepts = inspect.signature(type(causal).forward)

        def forward(self_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            own = functools.partial(self.own, *args, **kwargs)
            with self.stream.turn:
                if current() is not None:
                    return own()
                check_base(causal, self._base, self.decoder)
                given = calls.arguments_of(accepts, self_, args, kwargs)
                call = Call(self.stream.ranks,
                            named.wants(causal, given, "use_cache"))
                with swapped.attributes(self.stream, call=call):
                    return self._answer(call, given, own)

        return forward

    def _answer(self, call: Call, given: dict[str, Any],
                own: Callable[[], Any]) -> Any:
        stream, asked = self.stream, scoring.asked()
        if given.get("labels") is not None or asked is not None:
            calls.refuse_transforms(type(self.causal).__name__)
            self._renew()
        if stream.head == "rows" and self._by_rows(given):
            if asked is not None:
                stream.agree("sluice.logprobs", asked.targets, {
                    **given, "labels": asked.targets,
                    "temperature": asked.temperature,
                    "entropy": asked.entropy})
                return logprobs.answer(call, self, asked, self._of_base(given))
            if self._can_chunk(given):
                return self._chunked(call, given)
        out = shared.whole(call, given, own, self._foreign)
        padded.check_whole(call, stream, self._ends.adapter, _shifted(given),
                           IGNORED, self._foreign)
        return out

    def _by_rows(self, given: dict[str, Any]) -> bool:
        """Whether the call's logits are made of its rows as was probed."""
        kept = given.get("logits_to_keep", 0)
        return (isinstance(kept, int) and kept == 0
                and named.wants(self.causal, given, "return_dict", True)
                and not (routers.asked(self.causal, given) and self._units())
                and _KNOWN.issuperset(name for name, value in given.items()
                                      if value is not None))

    def _can_chunk(self, given: dict[str, Any]) -> bool:
        """Whether its loss too is a sum over rows that was probed."""
        weight = self.causal.get_output_embeddings().weight
        kind = weight.device.type
        # Gradients are made before the loss is scaled: fp16 has no room.
        half = torch.float16 in (weight.dtype, torch.get_autocast_dtype(
            kind) if torch.is_autocast_enabled(kind) else None)
        return (given.get("labels") is not None and not half
                and self.causal.loss_function == self._loss_function
                and self._loss_adds_up())

    def _loss_adds_up(self) -> bool:
        """Whether the loss function still is a sum over rows divided by a
        given count: what it calls may be replaced, for all models."""
        logits = torch.linspace(-1, 1, 32).view(1, 4, 8)
        labels = torch.tensor([[1, 5, 2, 7]])

        def of(a: int, b: int) -> float:
            return float(self.causal.loss_function(
                logits=logits[:, a:b], labels=None,
                shift_labels=labels[:, a:b], vocab_size=8,
                num_items_in_batch=4))

        try:
            with torch.no_grad():
                whole = of(0, 4)
                return abs(whole - of(0, 1) - of(1, 4)) <= 1e-4 * abs(whole)
        except Exception:  # it needs what these logits do not have
            return True

    def _chunked(self, call: Call, given: dict[str, Any]
                 ) -> CausalLMOutputWithPast:
        self.stream.agree("the loss", given["labels"], given)
        count = given.pop("num_items_in_batch", None)
        shifted = _shifted(given)
        given.pop("shift_labels", None)
        if count is None:
            count = (shifted != IGNORED).sum()
        leaving: contextlib.AbstractContextManager[list] = (
            self._ends.leaving() if self._base is self.decoder else
            contextlib.nullcontext([]))
        with leaving as left:
            out = self._of_base({**given, "use_cache": False})
        padded.check_labels(call.blind, shifted, IGNORED, self._ends.adapter)
        behind = left[0] if left else None
        loss = shared.loss(call, functools.partial(
            self.loss, left=behind), out[0], shifted, count)
        made = logits(self, behind, out[0], loss,
                      (*shifted.shape, self.made[0]))
        if routers.asked(self.causal, given):
            return head_routers.answer(self, loss, made, out,
                                       given.get("attention_mask"))
        return CausalLMOutputWithPast(
            loss=loss, logits=made,
            hidden_states=getattr(out, "hidden_states", None))

    def _of_base(self, given: dict[str, Any]) -> Any:
        """What the base model returns to the model's own forward, with
        whatever that does to the inputs before."""
        with self._instead(Recorder(self._base)) as base:
            try:
                self.own(**given)
            except Recorded:
                pass
        return base.output

    def loss(self, hidden: Tensor, shifted: Tensor, count: Tensor | int,
             chunk: int | None = None, left: Left | None = None) -> Tensor:
        """The loss () of hidden [B, S, H] against labels [B, S] that are
        shifted already: the sum over rows divided by `count`. With `left`,
        `hidden` is what the last layer answered."""
        chunk = chunk or self.rows_at_once(hidden.shape[-1])

        def by_rows(h: Tensor) -> Tensor:
            found = self.slots()  # of FSDP2's units: whole only by now
            if left is not None:
                found += left.slots()
            return Loss.apply(
                self, Labels(shifted, count, chunk), left, found,
                torch.is_grad_enabled(), h, *distinct(found))

        return self.through_units(by_rows, hidden,
                                  left.units() if left else ())

    def rows_at_once(self, width: int) -> int:
        vocabulary = self.causal.get_output_embeddings().weight.shape[0]
        chunk = self.stream.chunk
        return max(ROWS, min(chunk, HIDDEN * width * chunk // vocabulary))

    def through_units(self, by_rows: Callable[[Tensor], Tensor],
                      hidden: Tensor, more: Sequence[nn.Module] = ()
                      ) -> Tensor:
        """`by_rows(hidden)` with the FSDP2 units of the head gathered."""
        for unit in (*self._units(), *more):
            by_rows = functools.partial(units.through, unit, by_rows)
        return by_rows(hidden)

    def rows(self, hidden: Tensor, shifted: Tensor,
             count: Tensor | int) -> Tensor:
        """The part of some rows in the loss."""
        logits = self.logits(hidden)
        self.made = logits.shape[-1], logits.dtype
        return self.causal.loss_function(
            logits=logits, labels=None, shift_labels=shifted.contiguous(),
            vocab_size=logits.shape[-1], num_items_in_batch=count)

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, c, V] of some rows."""
        with self.stub(hidden) as base, units.unhooked(self._units()):
            logits = self.own(inputs_embeds=hidden, use_cache=False,
                              **self.no_routers).logits
        if not base.called:
            raise RuntimeError("the head does not call its base model")
        return logits

    @property
    def no_routers(self) -> dict[str, bool]:
        """Where the config asks for their logits, which rows do not have."""
        return {routers.ASKED: False} if routers.asked(self.causal, {}) else {}

    @contextlib.contextmanager
    def _instead(self, module: nn.Module) -> Iterator[nn.Module]:
        """The base model's place is taken."""
        parent, name = self.place
        with swapped.items((parent._modules, name, module)):
            yield module

    @property
    def is_sharded(self) -> bool:
        """Whether the model, or a layer, is an FSDP2 unit."""
        return any(isinstance(m, FSDPModule) for m in (
            self.causal, *self._ends.adapter.layers))

    @property
    def _base(self) -> nn.Module:
        parent, name = self.place
        return parent._modules[name]

    def stub(self, hidden: Tensor, noted: Sequence[Tensor] | None = None):
        return self._instead(Stub(self._base, hidden, noted))

    def modules(self) -> Iterator[nn.Module]:
        base = set(self._base.modules())
        return (m for m in self.causal.modules() if m not in base)

    def _units(self) -> list[nn.Module]:
        """The head's modules that are FSDP2 units; the model itself is one
        around all of it."""
        return [m for m in self.modules()
                if isinstance(m, FSDPModule) and m is not self.causal]

    def slots(self) -> list[Slot]:
        """The head's trainable parameters: a tied one is the embedding's."""
        return [Slot(owner, name, parameter)
                for owner in self.modules()
                for name, parameter in owner._parameters.items()
                if parameter is not None and parameter.requires_grad]


def _shifted(given: dict[str, Any]) -> Tensor | None:
    """The label of each row [B, S]: what the token after it is. None where
    rows have none: a classifier's are [B]."""
    shifted, labels = given.get("shift_labels"), given.get("labels")
    if shifted is None and isinstance(labels, Tensor) and labels.dim() == 2:
        shifted = named.shifted(labels)
    return shifted


def _places(causal: nn.Module, decoder: nn.Module
            ) -> list[tuple[nn.Module, str]]:
    """(parent, name) of what a head may call: the base model, or past it the
    decoder that lies in there."""
    found = [(causal, causal.base_model_prefix)]
    found += [(parent, name) for parent in causal.modules()
              for name, child in parent._modules.items()
              if child is decoder and parent is not causal]
    return found
