"""Decides which changed plan the ranks of a job adopt, and at which step.

A node's daemon offers a changed plan to each rank separately; if two changes
follow closely, ranks may even have different offers. The ranks of the node must
adopt a plan together, or not at all (daemon/core/planning/README.md).

[Note: horizons] The ranks agree without a collective. At the beginning of each
step, a rank that was offered a plan writes on the job's board: the plan,
whether it can adopt the plan, and its horizon: the number of the next step,
which the rank does not begin before it has read the board again. The write
after which all ranks name the same plan also records the decision: all adopt
the plan at the largest horizon, or none does if one of them cannot. No rank is
beyond its horizon, so each reads the decision in time, and none ever waits:
until then every step runs as before. A job that is offered no plan writes
nothing.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.ranks.board import Board, Value

# Numbers the streams, because the board keeps decisions of ended ones.
_streams = itertools.count()


@dataclass(frozen=True)
class Offer:
    """A changed plan that the daemon offers to this rank."""

    plan: int  # its number, from the daemon
    ranks: Sequence[int]  # the job's ranks on this node
    refusal: str = ""  # why this rank cannot adopt it; "" if it can


@dataclass(frozen=True)
class Decision:
    plan: int
    refusal: str  # "" if the plan is adopted


class Changes:
    """Decides on the changed plans of one stream, one after the other. All
    ranks of the job make their streams in the same order. `job`, `rank`: the
    session's; `board` returns the job's board, if its ranks can communicate."""

    def __init__(self, job: str, rank: int,
                 board: Callable[[], Board | None] = Board.of_job):
        self._job, self._rank, self._board = job, rank, board
        self._stream = next(_streams)
        self._decided = 0  # number of decisions, the same on all ranks
        self._open: Offer | None = None  # the undecided offer on the board

    def step(self, number: int, offer: Offer | None) -> Decision | None:
        """Returns the decision that takes effect at step `number`, or None.
        Call it at the beginning of each step, with equal numbers on all ranks.
        `offer`: the daemon's newest, or None; it is open until decided or
        replaced."""
        # An offer on the board binds this rank until it writes a newer one.
        offer = self._open = offer or self._open
        if offer is None:
            return None
        if list(offer.ranks) == [self._rank]:
            return self._over(offer.plan, offer.refusal)
        try:
            board = self._board()
            if board is None:
                return self._over(offer.plan, offer.refusal or (
                    "the ranks cannot agree on a step, because "
                    "torch.distributed is not initialised"))
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
    """Returns the board's value `told` with the offer of `rank` and, if all
    have offers of one plan now, the decision; see [Note: horizons]."""
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
