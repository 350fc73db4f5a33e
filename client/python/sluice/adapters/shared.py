"""Head and loss of one rank's rows of sequences that several share."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from sluice.streaming import Stream


def loss(stream: Stream, of_rows: Callable[..., Tensor], hidden: Tensor,
         shifted: Tensor, count: Tensor | int) -> Tensor:
    """The loss () of the whole sequences: `of_rows(hidden, shifted, count)`
    of what the decoder gave, labels [B, S] that are shifted already."""
    part = of_rows(hidden, own_rows(stream, shifted), count)
    return part if stream.own_rows is None else stream.ranks.sum(part)


def own_rows(stream: Stream, of_all: Tensor) -> Tensor:
    """[B, S] -> [B, rows that the decoder gave in its latest forward]."""
    if stream.own_rows is None:
        return of_all
    return of_all.index_select(1, stream.own_rows.to(of_all.device))


def of_all_rows(stream: Stream, found: Tensor, length: int) -> Tensor:
    """[B, own rows, n] -> [B, length, n], the same on each rank; a collective
    where rows were dealt. Of a loss that each rank makes of it, an average of
    gradients over all ranks is the whole sequence's."""
    if stream.own_rows is None:
        return found
    whole = found.new_zeros(found.shape[0], length, found.shape[2])
    return stream.ranks.sum(whole.index_copy(1, stream.own_rows, found))


def whole(stream: Stream, given: dict[str, Any], own: Callable[[], Any]
          ) -> Any:
    """The model's own forward where it does not run by rows. It says what of
    it needs all rows, so that the decoder deals none of them."""
    what = None
    if given.get("labels") is not None:
        what = "a loss that the model makes of all rows at once"
    elif not (isinstance(given.get("logits_to_keep", 0), int)
              and given.get("logits_to_keep", 0) == 0):
        what = "logits_to_keep"
    stream.needs_all = what
    try:
        return own()
    finally:
        stream.needs_all = None
