"""Runs head and loss of a causal model on chunks of rows, if that is exact."""
from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from sluice.base import argument_table, swapped
from sluice.base.argument_table import IGNORED
from sluice.base.randomness import undisturbed
from sluice.hf import head_loss, padding, routers
from sluice.hf.changed_after_stream import Inside, check_base
from sluice.hf.ends import Ends
from sluice.hf.head import Head
from sluice.hf.lazy_logits import logits, logprobs
from sluice.node import calls, plain_layers, scoring
from sluice.node.calls import Call
from sluice.node.step import current

# A call with an argument outside this set runs head and loss on all rows.
_KNOWN = frozenset(argument_table.those("loss"))


class Causal:
    """The streamed forward of a causal model. `renew` and `renew_head` repeat
    the trials of the layers and of the head after changes in them."""

    def __init__(self, causal: nn.Module, ends: Ends,
                 renew: Callable[[], None], renew_head: Callable[[], None]):
        self.causal, self._ends = causal, ends
        self._renew_layers, self._renew_head = renew, renew_head
        self.stream = ends.stream
        self.head = Head(causal, ends)
        # Whether the head is not a transformers language model's. A foreign
        # head may use any row.
        self._foreign = (not self.head.is_of_transformers()
                         or causal.get_output_embeddings() is None)
        self._loss_function = causal.loss_function
        self._whole: float | None = None  # the loss of the latest trial
        self._sums = self._changes = False
        self._inside = Inside(lambda: [
            m for m in self.head.modules() if m is not causal])

    @staticmethod
    def fits(causal: nn.Module, decoder: nn.Module) -> bool:
        """Returns whether `causal` has a loss, and `decoder` in its base."""
        base = causal._modules.get(getattr(causal, "base_model_prefix", ""))
        return (base is not None and causal is not decoder
                and any(m is decoder for m in base.modules())
                and callable(getattr(causal, "loss_function", None)))

    def _renew(self) -> None:
        self._renew_layers()
        if self._inside.has_changed():
            self._inside.take()
            self._renew_head()

    def forward(self) -> Callable:
        causal, head, stream = self.causal, self.head, self.stream
        accepts = inspect.signature(type(causal).forward)

        def forward(self_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            own = functools.partial(head.own, *args, **kwargs)
            with stream.turn:
                if current() is not None:
                    return own()
                check_base(causal, head.base, self._ends.decoder)
                given = calls.arguments_of(accepts, self_, args, kwargs)
                call = Call(stream.ranks,
                            argument_table.wants(causal, given, "use_cache"))
                with swapped.attributes(stream, call=call):
                    return self._answer(call, given, own)

        return forward

    def _answer(self, call: Call, given: dict[str, Any],
                own: Callable[[], Any]) -> Any:
        stream, asked = self.stream, scoring.asked()
        if given.get("labels") is not None or asked is not None:
            calls.refuse_transforms(self.causal)
            self._renew()
        if stream.head == "rows" and self._by_rows(given):
            if asked is not None:
                stream.agree("sluice.logprobs", asked.targets, {
                    **given, "labels": asked.targets,
                    "temperature": asked.temperature,
                    "entropy": asked.entropy})
                return logprobs(call, self.head, asked,
                                self.head.of_base(given))
            if self._can_chunk(given):
                return self._chunked(call, given, own)
        out = call.whole(given, own, self._foreign)
        padding.check_whole(call, stream, self._ends.adapter, _shifted(given),
                            self._foreign)
        return out

    def _by_rows(self, given: dict[str, Any]) -> bool:
        """Returns whether the probe covers the logits of this call."""
        kept = given.get("logits_to_keep", 0)
        return (isinstance(kept, int) and kept == 0
                and argument_table.wants(
                    self.causal, given, "return_dict", True)
                and not (routers.asked(self.causal, given)
                         and self.head.units())
                and _KNOWN.issuperset(name for name, value in given.items()
                                      if value is not None))

    def _can_chunk(self, given: dict[str, Any]) -> bool:
        """Returns whether the call's loss is a sum over rows, as probed."""
        weight = self.causal.get_output_embeddings().weight
        kind = weight.device.type
        # Gradients are computed before the loss is scaled: fp16 may underflow.
        half = torch.float16 in (weight.dtype, torch.get_autocast_dtype(
            kind) if torch.is_autocast_enabled(kind) else None)
        return (given.get("labels") is not None and not half
                and self.causal.loss_function == self._loss_function
                and self._sums_rows())

    def _sums_rows(self) -> bool:
        """Returns whether the loss function is a sum over rows divided by a
        count. Each call asks for one loss, and tries again if it is another
        one: a library may have replaced a function that the loss calls, and
        the user a value that it reads. A loss that changes by itself is not
        tried again, because a trial may change it."""
        cpu = torch.device("cpu")
        logits = torch.linspace(-9, 9, 32, dtype=torch.float32, device=cpu)
        logits = logits.view(1, 4, 8)
        labels = torch.tensor([[1, 5, 2, 7]], device=cpu)

        def of(a: int, b: int) -> float:
            # A count other than 4 tells a sum from a mean of the 4 rows.
            return float(self.causal.loss_function(
                logits=logits[:, a:b], labels=None,
                shift_labels=labels[:, a:b], vocab_size=8,
                num_items_in_batch=3))

        if self._changes:
            return False
        try:
            with torch.no_grad(), undisturbed(cpu):
                whole = of(0, 4)
                if whole != self._whole:
                    self._whole, self._changes = whole, of(0, 4) != whole
                    self._sums = not self._changes and abs(
                        whole - of(0, 1) - of(1, 4)) <= 2e-6 * abs(whole)
            return self._sums
        except Exception:  # unknown: the function needs other arguments
            return True

    def _chunked(self, call: Call, given: dict[str, Any],
                 own: Callable[[], Any]) -> CausalLMOutputWithPast:
        self.stream.agree("the loss", given["labels"], given, later=True)
        count = given.pop("num_items_in_batch", None)
        shifted = _shifted(given)
        given.pop("shift_labels", None)
        if count is None:
            count = (shifted != IGNORED).sum()
        leaving: contextlib.AbstractContextManager[list] = (
            self._ends.leaving() if self.head.base is self._ends.decoder else
            contextlib.nullcontext([]))
        with leaving as left:
            out = self.head.of_base({**given, "use_cache": False})
        if call.plain is not None and not self.head.is_sharded:
            answer = self._plain(call.plain, out, own)
            if answer is not plain_layers.STREAMED:
                return answer
        padding.check_labels(call.blind, shifted, self._ends.adapter)
        behind = left[0] if left else None
        loss = call.sum(head_loss.of(self.head, out[0], call.own(shifted),
                                     count, left=behind))
        made = logits(self.head, behind, out[0], loss,
                      (*shifted.shape, self.head.made[0]))
        if routers.asked(self.causal, given):
            return head_loss.with_routers(self.head, loss, made, out,
                                          given.get("attention_mask"))
        return CausalLMOutputWithPast(
            loss=loss, logits=made,
            hidden_states=getattr(out, "hidden_states", None))

    def _plain(self, plain: plain_layers.Forward, out: Any,
               own: Callable[[], Any]) -> Any:
        """Runs the model's own head over all rows of the base's output `out`.
        Returns STREAMED if it does not fit on the device beside the layers."""
        modules = list(self.head.modules())
        vocabulary = self.causal.get_output_embeddings().weight.shape[0]

        def known() -> list[Tensor]:
            return [out[0], *(t for m in modules for t in (
                *m._parameters.values(), *m._buffers.values()))]

        def head() -> Any:
            with self.head.after(out):
                return own()

        return plain.head(
            ("head", out[0].dtype, out[0].requires_grad,
             plain_layers.cast_of(out[0].device),
             tuple(p.requires_grad for m in modules
                   for p in m._parameters.values() if p is not None)),
            head, known, vocabulary * (4 + out[0].itemsize))


def _shifted(given: dict[str, Any]) -> Tensor | None:
    """Returns the shifted labels; None if rows have none (classifiers)."""
    shifted, labels = given.get("shift_labels"), given.get("labels")
    if shifted is None and isinstance(labels, Tensor) and labels.dim() == 2:
        shifted = argument_table.shifted(labels)
    return shifted
