"""Decides which changed plan the ranks of a job take, and at which step.

The daemon of a node tells each rank separately, at slightly different moments,
perhaps of different plans if one follows soon after another. The ranks of the
node must take a plan together, or not at all (daemon/core/planning/README.md).

[Note: horizons] The ranks agree without a collective. At the beginning of each
step, a rank that was offered a plan writes on the job's board: the plan,
whether it can take it, and its horizon, the next step, which it will not begin
before it has looked at the board again. The write after which all ranks name
the same plan also records the decision: all take the plan at the largest
horizon, or none does if one of them cannot. No rank is beyond its horizon, so
each reads the decision in time. No rank ever waits: while ranks name different
plans, or one has not been told or has ended, every step runs as before. A job
that is offered no plan writes nothing.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.ranks.board import Board, Value

# Numbers streams: the board still has the decisions of streams that ended.
_streams = itertools.count()


@dataclass(frozen=True)
class Offer:
    """A changed plan that the daemon offers to this rank.

    Attributes:
        plan: the daemon's number of the plan.
        ranks: the job's ranks on this node, this one included.
        refusal: one line why this rank cannot take it; "": it can.
    """

    plan: int
    ranks: Sequence[int]
    refusal: str = ""


@dataclass(frozen=True)
class Decision:
    plan: int
    refusal: str  # "": the plan is taken


class Changes:
    """Decides on the changed plans of one stream, one after the other. All
    ranks of the job must make their streams in the same order.

    Args:
        job, rank: those of the session.
        board: called when there is something to write; returns None if the
            ranks of the job cannot communicate.
    """

    def __init__(self, job: str, rank: int,
                 board: Callable[[], Board | None] = Board.of_job):
        self._job, self._rank, self._board = job, rank, board
        self._stream = next(_streams)
        self._decided = 0  # number of decisions, the same on all ranks
        self._open: Offer | None = None  # written and not decided yet

    def step(self, number: int, offer: Offer | None) -> Decision | None:
        """Returns the decision that takes effect at step `number`, or None. To
        be called at the beginning of each step; steps have the same numbers on
        all ranks. `offer` is the newest one; it stays until it is decided."""
        # What this rank has written binds it until it writes a newer offer.
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
        except RuntimeError as error:  # the rank with the store has ended
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
    """Returns the board's value after `rank` writes; see [Note: horizons]."""
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
