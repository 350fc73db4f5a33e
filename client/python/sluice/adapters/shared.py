"""Head and loss of one rank's rows of sequences that several share."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sluice import randomness
from sluice.calls import Call


def loss(call: Call, of_rows: Callable[..., Tensor], hidden: Tensor,
         shifted: Tensor, count: Tensor | int) -> Tensor:
    """The loss () of the whole sequences: `of_rows(hidden, shifted, count)`
    of what the decoder gave, labels [B, S] that are shifted already."""
    part = of_rows(hidden, own_rows(call, shifted), count)
    return part if call.own_rows is None else call.ranks.sum(part)


def own_rows(call: Call, of_all: Tensor) -> Tensor:
    """[B, S] -> [B, rows that the decoder gave in its latest forward]."""
    if call.own_rows is None:
        return of_all
    return of_all.index_select(1, call.own_rows.to(of_all.device))


def of_all_rows(call: Call, found: Tensor, length: int) -> Tensor:
    """[B, own rows, n] -> [B, length, n], the same on each rank; a collective
    where rows were dealt. Of a loss that each rank makes of it, an average of
    gradients over all ranks is the whole sequence's."""
    if call.own_rows is None:
        return found
    whole = found.new_zeros(found.shape[0], length, found.shape[2])
    return call.ranks.sum(whole.index_copy(1, call.own_rows, found))


def whole(call: Call, given: dict[str, Any], own: Callable[[], Any],
          foreign: bool) -> Any:
    """The model's own forward where it does not run by rows. With labels, or
    where it is `foreign`, so that nothing is known of it, the decoder gives it
    all rows: its loss is the same on every rank, which draw the same random
    numbers behind the decoder."""
    kept = given.get("logits_to_keep", 0)
    if not (isinstance(kept, int) and kept == 0):
        call.needs_all = "logits_to_keep"
    call.has_labels = any(
        given.get(name) is not None for name in ("labels", "shift_labels"))
    with randomness.rejoined() as rejoin:
        call.rejoin = rejoin if foreign or call.has_labels else None
        return own()


def with_all_rows(call: Call, answer: Any, length: int) -> Any:
    """A decoder's answer, whose hidden states are those of its own rows, with
    those of all."""
    hidden = of_all_rows(call, answer[0], length)
    call.own_rows = None
    if isinstance(answer, dict):
        answer[next(iter(answer))] = hidden
        return answer
    return (hidden, *answer[1:])
