"""Helpers for the ranks of tests: a group on Gloo, and unsharded gradients."""

from __future__ import annotations

import contextlib
import datetime
import gc
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import sluice

# Ranks are forked, because imports take longer than most cases.
FORK = multiprocessing.get_context("fork")


def run_ranks(world: int, work: Callable[..., None], *args: Any) -> NoReturn:
    """Runs `work(rank, *args)` in a process per rank, on one thread. Then exits
    this process, with status 0 if all ranks have status 0."""
    torch.set_num_threads(1)
    gc.freeze()  # garbage collection in a fork does not touch loaded objects
    ranks = [FORK.Process(target=_forked, args=(work, rank, *args))
             for rank in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode for rank in ranks))


def _forked(work: Callable[..., None], *args: Any) -> None:
    # The first thread that uses torch's thread pool creates it in the child. If
    # two autograd threads did so at the same time, they would fail ("Invalid
    # thread pool!"), so this thread creates it.
    torch.set_num_threads(1)
    work(*args)


def run_cases(rank: int, world: int, file: str, socket: str, job: str,
              cases: list[str], run: Callable[[str, sluice.Session], None],
              gpu: int = 0) -> None:
    """Calls `run` for each case as this rank of a new group; a barrier
    separates the cases."""
    with _rank(rank, world, file), sluice.Session(
            socket, job=job, rank=rank, world=world, gpu=gpu) as session:
        for case in cases:
            print("case:", case, flush=True)
            run(case, session)
            dist.barrier()


@contextlib.contextmanager
def _rank(rank: int, world: int, file: str) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{file}", rank=rank,
                            world_size=world,
                            timeout=datetime.timedelta(seconds=120))
    yield
    dist.destroy_process_group()


def whole(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the unsharded gradient; this is a collective if it is sharded.
    """
    return gradient.full_tensor() if isinstance(gradient, DTensor) else (
        gradient)
