"""State of one call of a streamed model, and refusals of calls: a second
backward, `create_graph`, torch.func transforms."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sluice.base import randomness
from sluice.base.errors import Unsupported
from sluice.node.plain_layers import Forward
from sluice.ranks.groups import Ranks

ONCE = ("sluice: the backward of a streamed model runs once; run its forward "
        "again instead of retain_graph=True")


@dataclass(eq=False)
class Call:
    """State of one call of a streamed model, of the causal model or of its
    decoder alone: what the caller requested, and results of the decoder's
    latest forward in the call."""

    ranks: Ranks | None  # that share the call's sequences
    makes_cache: bool  # whether the unstreamed model would make a cache
    has_labels: bool = False  # whether the model computes a loss of all rows
    needs_all: str | None = None  # an output for which own rows are not enough
    # Reseeds, so that all ranks draw the same random numbers from then on; set
    # only if the decoder must return the rows of all ranks.
    rejoin: Callable[[int, torch.device], None] | None = None
    own_rows: Tensor | None = None  # indices of the returned rows; None: all
    blind: Tensor | None = None  # bool [B or 1, S], padding that saw no key
    plain: Forward | None = None  # set if all layers of the decoder ran plain
    # agreement.Asked of the causal model, if the decoder's call compares it.
    outer: Any = None

    def whole(self, given: dict[str, Any], own: Callable[[], Any],
              foreign: bool) -> Any:
        """Runs the causal model's own forward, `own`, with a head that does not
        run by rows. With labels, or if the model is unknown (`foreign`), the
        decoder returns all rows, so that the loss and later random numbers are
        the same on every rank."""
        kept = given.get("logits_to_keep", 0)
        if not (isinstance(kept, int) and kept == 0):
            self.needs_all = "logits_to_keep"
        self.has_labels = any(given.get(name) is not None
                              for name in ("labels", "shift_labels"))
        with randomness.rejoined() as rejoin:
            self.rejoin = rejoin if foreign or self.has_labels else None
            return own()

    def own(self, of_all: Tensor) -> Tensor:
        """Selects the decoder's rows: [B, S] -> [B, rows it returned]."""
        return of_all if self.own_rows is None else of_all.index_select(
            1, self.own_rows.to(of_all.device))

    def sum(self, loss: Tensor) -> Tensor:
        """Returns the loss () of the whole sequences, given that of this rank's
        rows; a collective if rows were dealt to ranks."""
        return loss if self.own_rows is None else self.ranks.sum(loss)

    def all_rows(self, found: Tensor, length: int) -> Tensor:
        """Gathers [B, own rows, n] into [B, length, n], the same on each rank;
        a collective if rows were dealt to ranks. If each rank computes a loss
        from all rows, the ranks' average gradient is the whole sequence's."""
        if self.own_rows is None:
            return found
        whole = found.new_zeros(found.shape[0], length, found.shape[2])
        return self.ranks.sum(whole.index_copy(1, self.own_rows, found))

    def with_all_rows(self, answer: Any, length: int) -> Any:
        """Replaces this rank's rows in a decoder's output by all rows."""
        hidden, self.own_rows = self.all_rows(answer[0], length), None
        if isinstance(answer, dict):
            answer[next(iter(answer))] = hidden
            return answer
        return (hidden, *answer[1:])


def once(backward: Callable) -> Callable:
    """Makes a node's backward raise if second gradients are requested
    (create_graph): torch would silently omit them if dy needs no gradient."""
    inner = once_differentiable(backward)

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "sluice: create_graph=True: the gradients of a streamed model "
                "have no gradients of their own; leave it out, or unstream()")
        return inner(ctx, *gradients)

    return checked


def refuse_transforms(module: nn.Module) -> None:
    """Raises `Unsupported` within torch.func's grad, vjp, jvp and vmap, which
    cannot wrap chunks in host memory."""
    if torch._C._are_functorch_transforms_active():
        raise Unsupported(module, "a call within torch.func (grad, vjp, jvp, "
                          "vmap)", "use loss.backward() or torch.autograd.grad"
                          ", or unstream()")


class Standing:
    """Stands for a tensor that is not computed, mostly attention's weights."""


def arguments_of(signature: inspect.Signature, self_: Any, args: tuple,
                 kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments that a method call passes, by name."""
    bound = signature.bind_partial(self_, *args, **kwargs).arguments
    given: dict[str, Any] = {}
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.name not in bound:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(bound[parameter.name])
        else:
            given[parameter.name] = bound[parameter.name]
    return given
