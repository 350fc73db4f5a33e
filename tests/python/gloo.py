"""What the ranks of the tests share: a group on Gloo, whole gradients."""

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

# Importing torch and transformers anew takes longer than most cases.
FORK = multiprocessing.get_context("fork")


def run_ranks(world: int, work: Callable[..., None], *args: Any) -> NoReturn:
    """`work(rank, *args)` in a process per rank, of one thread; then the end
    of this one, with a status of 0 if all of theirs are."""
    torch.set_num_threads(1)
    gc.freeze()  # what is loaded is neither searched nor copied in the forks
    ranks = [FORK.Process(target=_forked, args=(work, rank, *args))
             for rank in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode for rank in ranks))


def _forked(work: Callable[..., None], *args: Any) -> None:
    # The first to ask torch for its threads makes a pool of the child's own;
    # two of autograd's at once found none ("Invalid thread pool!").
    torch.set_num_threads(1)
    work(*args)


def run_cases(rank: int, world: int, file: str, socket: str, job: str,
              cases: list[str], run: Callable[[str, sluice.Session], None],
              gpu: int = 0) -> None:
    """`run` each case as this rank of a new group, all ranks one by one."""
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
    """The gradient of all ranks; a collective where it is sharded."""
    return gradient.full_tensor() if isinstance(gradient, DTensor) else (
        gradient)
