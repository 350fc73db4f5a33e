"""Turns a step's measured costs into a profile, and the daemon's plan for that
profile into a policy.

The daemon plans all ranks of its node together (planner/swap;
client/python/DESIGN.md, "What is computed again"). Layers with the same
classes, shapes, settings and frozen parameters (proof/captured_calls) are one
kind, with its own seconds, copies and fractions; the products of a weight are
one class of the kind. A plan keeps nothing on the device: the device's memory
is torch's, and the daemon cannot promise memory that it has not leased.
"""
from __future__ import annotations

import glob
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from sluice.base.errors import Error
from sluice.memory.arena import HostArena
from sluice.native.session import Session
from sluice.plan.plan_changes import Changes, Offer
from sluice.plan.policy import Policy, Share
from sluice.plan.step_costs import FROZEN, Kind, Measured

FORMAT, VERSION = "sluice.rank_profile", 2
BASE = "streamed"  # class of the data that every plan has in host memory


class Planning:
    """Plans one stream: lets one step warm up, measures the next, asks the
    daemon for a plan, and afterwards adopts the daemon's changed plans.

    A plan's memory is leased when the plan arrives; memory that a changed plan
    does not need is given back when that plan is adopted. A plan's fractions
    are fractions of the chunks, so that it also serves steps of other lengths.
    """

    def __init__(self, session: Session, kinds: Mapping[nn.Module, str],
                 quiet: bool):
        self._session = session
        self.kinds = kinds  # layer -> name of its kind
        self._quiet, self._steps = quiet, 0
        self._measured: Measured | None = None
        self._held = 0
        self.plan: dict[str, Any] | None = None  # this rank's part, if any
        self._profile: dict[str, Any] = {}  # from which the plan was made
        self.over = False
        self._changes = Changes(session.job, session.rank)
        # Changed plans that are not decided yet, by number: this rank's part,
        # and why it cannot adopt it ("" if it can).
        self._offered: dict[int, tuple[dict[str, Any], str]] = {}

    def begin(self, arena: HostArena) -> Measured | None:
        self._steps += 1
        if not self.over and self._steps > 1:
            self._measured = Measured(arena.copied, arena.device)
        return self._measured

    def forward_over(self, host_bytes: int) -> None:
        self._held = host_bytes

    def policy(self, arena: HostArena) -> Policy | None:
        """Asks the daemon for a plan after the first step that was measured
        completely, and returns its policy; else None. Without a plan, prints
        why, and the stream goes on recomputing."""
        if self._measured is None or not self._measured.whole:
            return None
        self._measured.read()
        asked = self._profile = profile(self._measured, self._held,
                                        arena.peak_bytes, self._session)
        try:
            plan = self._session.plan(asked, quiet=self._quiet)
        except Error as error:
            self._measured, self.over = None, True
            self._say(f"no plan, all is computed again: {error}")
            return None
        # Not reached if Ctrl-C ended the wait: the next step asks again.
        self._measured, self.over = None, True
        if plan["infeasible"]:
            self._say(f"no plan, all is computed again: {plan['infeasible']}")
            return None
        own = self.plan = self._own(plan)
        if not arena.used_bytes:
            # Memory that cannot be leased now is leased when it is needed.
            _refusal(lambda: arena.fit(own["host_bytes"]))
        self._say(line(own, asked))
        return policy_of(own)

    def changed(self, arena: HostArena) -> Policy | None:
        """Returns the policy of a changed plan if the ranks of the job adopt it
        at this step (see `plan_changes`), else None. Reports the decision to
        the daemon. Does nothing between a forward and its backward."""
        if self.plan is None or arena.used_bytes:
            return None
        decision = self._changes.step(self._steps, self._offer(arena))
        if decision is None:
            return None
        part, _ = self._offered.get(decision.plan, (None, ""))
        self._offered.clear()
        refusal = decision.refusal or (
            "" if part else "this rank was not told of it")
        step = f"step {self._steps + 1}"
        if refusal:
            self._say(f"{step}: on with the plan before, because the new one "
                      f"is refused: {refusal}")
        else:
            assert part is not None
            self.plan = part
            self._say(f"{step}: {line(part, self._profile)}")
        plan = self.plan
        # The ranks have decided, so errors are ignored.
        _refusal(lambda: arena.fit(plan["host_bytes"]))
        self._answer(decision.plan, refusal)
        return None if refusal else policy_of(plan)

    def _offer(self, arena: HostArena) -> Offer | None:
        """Returns the newest changed plan, if any, and whether this rank can
        adopt it: whether its additional host memory can be leased."""
        told = self._session.changed_plan()
        if told is None:
            return None
        number, plan = told
        if number not in self._offered:
            part = self._own(plan)
            self._offered[number] = part, _refusal(
                lambda: arena.reserve(part["host_bytes"]))
        return Offer(number, [r["rank"] for r in plan["ranks"]],
                     self._offered[number][1])

    def _own(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        return next(r for r in plan["ranks"] if r["rank"] == self._session.rank)

    def _answer(self, number: int, refusal: str) -> None:
        """Reports whether plan `number` was adopted; ignores errors."""
        _refusal(lambda: self._session.answer_change(
            number, not refusal, refusal or f"at step {self._steps + 1}"))

    def close(self) -> None:
        told = None if self._session.closed else self._session.changed_plan()
        if told is not None:
            self._answer(told[0], "the model is not streamed any more")

    def _say(self, what: str) -> None:
        if not self._quiet:
            print(f"sluice: {what}", file=sys.stderr)


def _refusal(act: Callable[[], object]) -> str:
    """Runs `act`; returns the line of its `Error`, "" if it succeeds."""
    try:
        act()
    except Error as error:
        return str(error)
    return ""


def profile(measured: Measured, held: int, peak: int, session: Session
            ) -> dict[str, Any]:
    """Returns the profile (proto/plan) of a step that recomputed everything,
    that held `held` host bytes after its forward, and at most `peak`."""
    kinds = measured.kinds
    several = len(kinds) > 1
    keeping = {name: kind for name, kind in kinds.items()
               if not name.endswith(FROZEN)}
    # A plan needs only the total, so `held` is spread evenly over the layers.
    each = _per(held, sum(kind.layers for kind in keeping.values()))
    classes = []
    for name, kind in keeping.items():
        own = [_class(BASE, each, 0.0, must_swap=True, traffic_in_fixed=True)]
        own += [_class(weight, _per(cost.nbytes, kind.layers),
                       cost.replayed_seconds / kind.layers)
                for weight, cost in sorted(kind.products.items())]
        classes += [{**c, "kind": name} if several else c for c in own]
    # A profile with one kind has no names of kinds.
    fields = {"kinds": [{"name": name, **_layers(kind)}
                        for name, kind in kinds.items()]
              } if several else _layers(*kinds.values())
    return {"format": FORMAT, "version": VERSION, "job": 0,
            "rank": session.rank, "gpu": session.gpu, "numa": 0, **fields,
            "segments": [], "classes": classes,
            "host_fixed": max(0, peak - held), "transient_capacity": 0,
            "keep_reserve": 0, "alpha": -1.0, "settled": False,
            "limited_by": ""}


def _per(total: int, layers: int) -> int:
    return -(-total // layers)


def _layers(kind: Kind) -> dict[str, Any]:
    fields: dict[str, Any] = {"layers": kind.layers, "resident_layers": 0}
    for direction, seconds in kind.seconds.items():
        fields[f"{direction}_layer_seconds"] = seconds / kind.layers
        for way, nbytes in (("d2h", kind.out), ("h2d", kind.back)):
            fields[f"{direction}_{way}_fixed"] = _per(nbytes[direction],
                                                      kind.layers)
    return fields


def _class(name: str, nbytes: int, seconds: float, *, must_swap: bool = False,
           traffic_in_fixed: bool = False) -> dict[str, Any]:
    return {"name": name, "bytes_per_layer": nbytes,
            "recompute_seconds": seconds, "must_swap": must_swap,
            "traffic_in_fixed": traffic_in_fixed, "shared": False,
            "can_keep": False, "keep": -1.0, "swap": -1.0, "why": ""}


def policy_of(plan: Mapping[str, Any]) -> Policy:
    return Policy(tuple(
        (_full(c, glob.escape(c["name"])), Share(c["keep"], c["swap"]))
        for c in plan["classes"] if c["name"] != BASE))


def _full(planned: Mapping[str, Any], name: str) -> str:
    return f"{planned['kind']}/{name}" if "kind" in planned else name


def line(plan: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    swapped = [f"{_full(c, c['name'])} {c['swap']:.2g}" for c in plan["classes"]
               if c["name"] != BASE and c["swap"] > 0]
    nbytes, seconds = recomputed(plan, asked)
    return (f"planned: swapped {', '.join(swapped) or 'nothing'}; "
            f"{plan['host_bytes'] / 2**30:.3g} GiB in host memory, "
            f"{nbytes / 2**30:.3g} GiB computed again in {seconds:.2g} s of a "
            f"step; limited by {plan['alpha_limited_by']}")


def recomputed(plan: Mapping[str, Any], asked: Mapping[str, Any]
               ) -> tuple[int, float]:
    """Returns the bytes of products that a step under this plan recomputes, and
    the seconds. `asked` is the profile for which the plan was made."""
    layers = {k["name"]: k["layers"] for k in asked.get("kinds", ())}
    costs = {(c.get("kind"), c["name"]): c for c in asked["classes"]}
    nbytes, seconds = 0.0, 0.0
    for c in plan["classes"]:
        cost = costs[c.get("kind"), c["name"]]
        again = (1 - c["keep"] - c["swap"]) * layers.get(
            c.get("kind"), asked.get("layers", 0))
        nbytes += again * cost["bytes_per_layer"]
        seconds += again * cost["recompute_seconds"]
    return round(nbytes), seconds
