"""A policy by the daemon's plan: what a step cost -> profile -> plan -> policy.

The daemon plans all ranks of its node together (planner/swap): what each swaps
so that the copies hide behind its compute, the links and the host memory
suffice, and the least is computed again. A weight's products are one class of
the profile, averaged over the layers; layers of several kinds are not told
apart beyond that. Nothing is kept on the device: its memory is torch's, and
the daemon cannot promise what it has not leased.
"""
from __future__ import annotations

import glob
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sluice.errors import Error
from sluice.leased import CopyStats
from sluice.measured import Measured
from sluice.policy import Policy, Share
from sluice.session import Session

FORMAT, VERSION = "sluice.rank_profile", 2
BASE = "streamed"  # the class of all that is in the host in any case


class Planning:
    """Of one stream: warm up for a step, measure the next, then plan once.

    A plan's fractions are parts of the chunks, so that it serves steps of
    other lengths too, if less well.
    """

    def __init__(self, session: Session, layers: int,
                 copied: Callable[[], CopyStats], quiet: bool):
        self._session, self._layers, self._copied = session, layers, copied
        self._quiet, self._steps = quiet, 0
        self._measured: Measured | None = None
        self._held = 0
        self.plan: dict[str, Any] | None = None  # this rank's, once there
        self.over = False

    def begin(self) -> Measured | None:
        """What is to be measured of the training step that begins."""
        self._steps += 1
        if not self.over and self._steps > 1:
            self._measured = Measured(self._layers, self._copied)
        return self._measured

    def forward_over(self, host_bytes: int) -> None:
        self._held = host_bytes

    def policy(self, host_peak_bytes: int) -> Policy | None:
        """The plan's, once, after a step that was measured whole; a daemon
        that has no plan leaves the stream as it is, and says why."""
        if self._measured is None or not self._measured.whole:
            return None
        measured, self._measured, self.over = self._measured, None, True
        try:
            plan = self._session.plan(profile(
                measured, self._held, host_peak_bytes, self._session))
        except Error as error:
            self._say(f"no plan, all is computed again: {error}")
            return None
        if plan["infeasible"]:
            self._say(f"no plan, all is computed again: {plan['infeasible']}")
            return None
        self.plan = next(r for r in plan["ranks"]
                         if r["rank"] == self._session.rank)
        self._say(line(self.plan))
        return policy_of(self.plan)

    def _say(self, what: str) -> None:
        if not self._quiet:
            print(f"sluice: {what}", file=sys.stderr)


def profile(measured: Measured, held: int, peak: int, session: Session
            ) -> dict[str, Any]:
    """The profile (proto/plan) of a step that computed everything again and
    had `held` host bytes after its forward, `peak` at most."""
    layers = measured.layers

    def per_layer(total: int) -> int:
        return -(-total // layers)

    fixed = {f"{direction}_{way}_fixed": per_layer(nbytes)
             for direction, copies in measured.copies.items()
             for way, nbytes in (("d2h", copies.out), ("h2d", copies.back))}
    classes = [_class(BASE, per_layer(held), 0.0, must_swap=True,
                      traffic_in_fixed=True)]
    classes += [_class(name, per_layer(cost.nbytes), cost.seconds / layers)
                for name, cost in sorted(measured.products.items())]
    return {"format": FORMAT, "version": VERSION, "job": 0,
            "rank": session.rank, "gpu": session.gpu, "numa": 0,
            "layers": layers, "resident_layers": 0, "segments": [],
            "classes": classes,
            **{f"{direction}_layer_seconds": seconds / layers
               for direction, seconds in measured.seconds.items()},
            **fixed, "host_fixed": max(0, peak - held),
            "transient_capacity": 0, "keep_reserve": 0, "alpha": -1.0,
            "settled": False, "limited_by": ""}


def _class(name: str, nbytes: int, seconds: float, *, must_swap: bool = False,
           traffic_in_fixed: bool = False) -> dict[str, Any]:
    return {"name": name, "bytes_per_layer": nbytes,
            "recompute_seconds": seconds, "must_swap": must_swap,
            "traffic_in_fixed": traffic_in_fixed, "shared": False,
            "can_keep": False, "keep": -1.0, "swap": -1.0, "why": ""}


def policy_of(plan: Mapping[str, Any]) -> Policy:
    """Of this rank's part of a plan."""
    return Policy(tuple(
        (glob.escape(c["name"]), Share(c["keep"], c["swap"]))
        for c in plan["classes"] if c["name"] != BASE))


def line(plan: Mapping[str, Any]) -> str:
    swapped = [f"{c['name']} {c['swap']:.2g}" for c in plan["classes"]
               if c["name"] != BASE and c["swap"] > 0]
    return (f"planned: swapped {', '.join(swapped) or 'nothing'}; the rest is "
            f"computed again; limited by {plan['alpha_limited_by']}")


__all__ = ["Planning", "policy_of", "profile"]
