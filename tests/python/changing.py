"""The ranks of plans/plan_changes_test: a plan changes while its job trains.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from gloo import FORK, run_cases
from models import batch, tiny

import sluice

RANKS, CHUNK, LENGTH = 2, 128, 512
EXTENT = 4 << 20
LONG_S = 240.0  # limit of each wait, on a busy machine


class Loop:
    """Trains a tiny model on one rank; all_reduce sums the gradients."""

    def __init__(self, session: sluice.Session, policy: str):
        self.model = tiny(intermediate_size=192,
                          max_position_embeddings=LENGTH)
        self.session = session
        self.stream = sluice.stream(self.model, session=session, chunk=CHUNK,
                                    policy=policy)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.losses: list[float] = []
        self.weights: list[str] = []  # hash of all weights after each step
        self.swapped: list[float] = []  # sum of swap shares after each step

    def step(self) -> None:
        seed = 100 * len(self.losses) + dist.get_rank()
        loss = self.model(**batch(2, LENGTH, seed=seed)).loss
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        assert self.stream.stats().host_bytes == 0
        self.losses.append(loss.item())
        self.weights.append(hashlib.sha256(b"".join(
            p.detach().numpy().tobytes() for p in self.model.parameters()
        )).hexdigest())
        self.swapped.append(self.swaps())

    def swaps(self) -> float:
        if self.stream.plan is None:
            return 0.0
        assert self.stream.policy.shares == tuple(
            (c["name"], sluice.plan.policy.Share(c["keep"], c["swap"]))
            for c in self.stream.plan["classes"] if c["name"] != "streamed")
        return sum(share.swap for _, share in self.stream.policy.shares)

    def until(self, all_have: Callable[[], bool]) -> None:
        """Trains until `all_have()` is true on every rank."""
        ends = time.monotonic() + LONG_S
        while not every(all_have()):
            assert time.monotonic() < ends, f"not true within {LONG_S} s"
            self.step()

    def changes(self) -> list[int]:
        """Returns the steps after which the sum of swap shares differs from
        that after the step before."""
        return [i for i in range(1, len(self.swapped))
                if self.swapped[i] != self.swapped[i - 1]]

    def check_as(self, undisturbed: Loop) -> None:
        """Checks that losses and weights equal `undisturbed`'s to the bit, and
        that all ranks changed their plan at the same steps."""
        every_rank: list = [None] * RANKS
        dist.all_gather_object(every_rank, self.changes())
        assert every_rank == [self.changes()] * RANKS, every_rank
        steps = len(self.losses)
        while len(undisturbed.losses) < steps:
            undisturbed.step()
        assert undisturbed.losses[:steps] == self.losses
        assert undisturbed.weights[:steps] == self.weights


def every(own: bool) -> bool:
    told = torch.tensor(int(own))
    dist.all_reduce(told, dist.ReduceOp.MIN)
    return bool(told)


@contextlib.contextmanager
def another_job(loop: Loop, socket: str) -> Iterator[None]:
    """Runs another job until the context ends; rank 0 starts it."""
    with contextlib.nullcontext() if loop.session.rank else Other(socket):
        yield


class Other:
    """A job of one rank in its own process. It reports the longest steps on the
    node (Slow), so the daemon gives this job host memory of the first job."""

    def __init__(self, socket: str):
        self._end = FORK.Event()
        self._process = FORK.Process(target=_other, args=(socket, self._end))

    def __enter__(self) -> None:
        self._process.start()

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._process.join()
        assert self._process.exitcode == 0


def _other(socket: str, end) -> None:
    with sluice.Session(socket, job="other", gpu=RANKS) as session:
        model = tiny(intermediate_size=192, max_position_embeddings=LENGTH)
        stream = sluice.stream(model, session=session, chunk=CHUNK,
                               policy="plan")
        stream.planning._session = Slow(session)
        for step in range(4):
            model(**batch(6, LENGTH, seed=step)).loss.backward()
        assert stream.plan is not None
        end.wait(LONG_S)


class Slow:
    """A session that reports 100 times each measured duration, so that its
    job seems slower than the first job on any machine."""

    def __init__(self, session: sluice.Session):
        self._session = session

    def plan(self, profile: dict, **options) -> dict:
        profile = {name: 100 * value if name.endswith("_seconds") else value
                   for name, value in profile.items()}
        profile["classes"] = [
            {**c, "recompute_seconds": 100 * c["recompute_seconds"]}
            for c in profile["classes"]]
        return self._session.plan(profile, **options)

    def __getattr__(self, name):
        return getattr(self._session, name)


class Offered:
    """A session that offers the plans that a test makes (`tell`)."""

    def __init__(self, loop: Loop):
        self._session = loop.session
        self.told = None
        self.answers: list[tuple[int, bool, str]] = []

    def tell(self, number: int, part: dict) -> None:
        self.told = number, {"ranks": [
            {**part, "rank": rank} for rank in range(RANKS)]}

    def changed_plan(self):
        return self.told

    def answer_change(self, number, taken, note=""):
        self.answers.append((number, taken, note))
        if self.told is not None and self.told[0] == number:
            self.told = None

    def __getattr__(self, name):
        return getattr(self._session, name)


@contextlib.contextmanager
def offered(loop: Loop) -> Iterator[Offered]:
    """Replaces the daemon's offers by a test's until the context ends."""
    loop.stream.planning._session = made = Offered(loop)
    yield made
    loop.stream.planning._session = loop.session


def halved(plan: dict) -> dict:
    """Returns a plan that swaps half as much."""
    return {**plan, "classes": [
        c if c["name"] == "streamed" else {**c, "swap": c["swap"] / 2}
        for c in plan["classes"]]}


# --- cases, which one run executes in this order -----------------------------

def joins_and_leaves(loop: Loop, socket: str, daemon: int) -> None:
    """The swapped share and the leased memory shrink when another job joins.
    The share is as before when that job has left."""
    alone, leased = loop.swapped[-1], loop.stream.stats().host_leased_bytes
    with another_job(loop, socket):
        loop.until(lambda: loop.swaps() < alone)
        now = loop.stream.stats().host_leased_bytes
        # A lease that reuses idle extents may be larger than the plan's bytes.
        assert now < loop.stream.plan["host_bytes"] + EXTENT
        assert every(now <= leased) and not every(now == leased)
        loop.step()
    loop.until(lambda: loop.swaps() == alone)
    loop.step()


def different_plans(loop: Loop, socket: str, daemon: int) -> None:
    """No rank takes a plan before all ranks were offered the same plan."""
    before = loop.stream.plan
    with offered(loop) as offers:
        offers.tell(70 + loop.session.rank, halved(before))
        for _ in range(4):
            loop.step()
        assert not offers.answers and loop.stream.plan is before
        offers.tell(72, halved(before))
        for _ in range(3):
            loop.step()
    assert [(n, taken) for n, taken, _ in offers.answers] == [(72, True)]
    assert loop.stream.plan is not before


def one_refuses(loop: Loop, socket: str, daemon: int) -> None:
    """Rank 1 cannot lease the additional memory, so no rank takes the plan."""
    before, part = loop.stream.plan, halved(loop.stream.plan)
    leased = loop.stream.stats().host_leased_bytes
    part["host_bytes"] = (1 << 40 if loop.session.rank == 1 else
                          before["host_bytes"] + EXTENT)
    with offered(loop) as offers:
        offers.tell(70, part)
        for _ in range(4):
            loop.step()
    [(number, taken, why)] = offers.answers
    assert (number, taken) == (70, False)
    assert why.startswith("rank 1: ") and "RESOURCE_EXHAUSTED" in why
    assert loop.stream.plan is before
    assert loop.stream.stats().host_leased_bytes <= leased + EXTENT


def daemon_dies(loop: Loop, socket: str, daemon: int) -> None:
    """Training goes on if the daemon dies after it has offered a plan, before
    a step takes the plan."""
    with another_job(loop, socket):
        ends = time.monotonic() + LONG_S
        while not every(loop.session.changed_plan() is not None):
            assert time.monotonic() < ends
            time.sleep(0.05)
        if loop.session.rank == 0:
            os.kill(daemon, signal.SIGKILL)
        for _ in range(4):
            loop.step()


def work(rank: int, file: str, socket: str, daemon: int) -> None:
    with sluice.Session() as alone:
        undisturbed = Loop(alone, "recompute")

        def all_cases(_: str, session: sluice.Session) -> None:
            loop = Loop(session, "plan")
            loop.until(lambda: loop.stream.plan is not None)
            for case in (joins_and_leaves, different_plans, one_refuses,
                         daemon_dies):
                print("case:", case.__name__, flush=True)
                case(loop, socket, daemon)
            loop.check_as(undisturbed)
            loop.stream.unstream()

        run_cases(rank, RANKS, file, socket, "changing", ["one run"],
                  all_cases, gpu=rank)

