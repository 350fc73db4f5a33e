"""Changed plans: which one the ranks of a job take, and at which step.

The daemon of a node tells each rank of a job by itself, at slightly different
moments, perhaps of different plans where one follows soon after another. The
ranks of the node take a plan together, or none does (daemon/core/README.md).

[Note: horizons] They agree without a collective. A rank that was offered a
plan writes on the job's board, at the beginning of each of its steps, which
one, whether it can take it, and its horizon: the next step, which it promises
not to begin before it has looked at the board again. The rank that writes last
so that all name the same plan decides in the same write: all take it at the
largest of their horizons, or, where one cannot, no rank does. No rank is
beyond its horizon, so each reads the decision in time; and none ever waits:
while ranks were told of different plans, or one has not been told or has
ended, every step runs as before. A job that is offered nothing writes nothing.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.ranks.board import Board, Value

# The board still has the decisions of a stream that was ended.
_streams = itertools.count()


@dataclass(frozen=True)
class Offer:
    """A plan that this rank was told of.

    Attributes:
        plan: the daemon's number of it.
        ranks: of the job on this node, this one among them.
        refusal: why this rank cannot take it, in a line; "": it can.
    """

    plan: int
    ranks: Sequence[int]
    refusal: str = ""


@dataclass(frozen=True)
class Decision:
    plan: int
    refusal: str  # "": it is taken


class Changes:
    """The changed plans of one stream and its job, decided on one after the
    other. All ranks make their streams in one order.

    Args:
        job, rank: of the session.
        board: asked when there is something to write; None: ranks of this job
            cannot tell each other anything.
    """

    def __init__(self, job: str, rank: int,
                 board: Callable[[], Board | None] = Board.of_job):
        self._job, self._rank, self._board = job, rank, board
        self._stream = next(_streams)
        self._decided = 0  # so many, by all ranks alike
        self._open: Offer | None = None  # written, not decided

    def step(self, number: int, offer: Offer | None) -> Decision | None:
        """What this rank's step `number` begins with; steps are counted alike
        on all ranks. `offer` is the newest; it stays until it is decided."""
        # What this rank has written binds it until it wrote something newer.
        offer = self._open = offer or self._open
        if offer is None:
            return None
        if list(offer.ranks) == [self._rank]:
            return self._over(offer.plan, offer.refusal)
        try:
            board = self._board()
            if board is None:
                return self._over(offer.plan, offer.refusal or (
                    "torch.distributed is not initialised, by which the ranks "
                    "could agree on a step"))
            told = board.update(self._key(offer), lambda told: _written(
                told, self._rank, offer, number + 1))
        except RuntimeError as error:  # the store of a rank that has ended
            return self._over(offer.plan, f"the job's store fails: {error}")
        if told["step"] is None or number < told["step"]:
            return None
        return self._over(told["plan"], told["refusal"])

    def _key(self, offer: Offer) -> str:
        ranks = ".".join(map(str, sorted(offer.ranks)))
        return f"plan/{self._job}/{ranks}/{self._stream}/{self._decided}"

    def _over(self, plan: int, refusal: str) -> Decision:
        self._decided += 1
        self._open = None
        return Decision(plan, refusal)


def _written(told: Value | None, rank: int, offer: Offer, horizon: int
             ) -> Value:
    """The board after `rank` wrote; see [Note: horizons]."""
    told = told or {"offers": {}, "step": None}
    if told["step"] is not None:  # decided
        return told
    offers = {**told["offers"], str(rank): {
        "plan": offer.plan, "refusal": offer.refusal, "horizon": horizon}}
    every = list(offers.values())
    if len(every) < len(offer.ranks) or any(
            one["plan"] != offer.plan for one in every):
        return {"offers": offers, "step": None}
    refusals = [f"rank {r}: {one['refusal']}" for r, one in sorted(
        offers.items()) if one["refusal"]]
    return {"offers": offers, "plan": offer.plan,
            "refusal": "; ".join(refusals),
            "step": max(one["horizon"] for one in every)}
