"""The ranks of training/progress_test: one waits for the other, which is late,
and then fails. What each says on stderr is in FOLDER/RANK."""

from __future__ import annotations

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from gloo import run_cases
from models import batch, tiny
from torch import nn
from torch.distributed.fsdp import fully_shard

import sluice
from sluice.ranks import progress


def streamed(session: sluice.Session) -> tuple[nn.Module, sluice.Stream]:
    model = tiny()
    return model, sluice.stream(model, session=session, chunk=16,
                                stalled_s=2.0)


def waits(session: sluice.Session) -> None:
    model, stream = streamed(session)
    model.model.layers[1].mlp.register_forward_hook(
        lambda *_: dist.all_reduce(torch.ones(1)))
    dist.barrier()  # the other one may have begun later
    model(**batch())  # which probes it
    dist.barrier()
    print("probed", file=sys.stderr, flush=True)
    if dist.get_rank() == 0:
        time.sleep(5)  # its neighbour waits for it
    model(**batch())
    dist.barrier()
    stream.unstream()


def fails(session: sluice.Session) -> None:
    model, _ = streamed(session)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    model(**batch()).loss.backward()
    if dist.get_rank() == 1:
        mlp = model.model.layers[0].mlp
        mlp.register_forward_hook(  # not in the trial, which is of a twin
            lambda module, *_: 1 / 0 if module is mlp else None)
    try:
        model(**batch())
    except ZeroDivisionError:
        time.sleep(7)  # it lives on: its neighbour waits for it
        os._exit(0)
    except RuntimeError as error:  # once that process has ended
        print("ended:", error, file=sys.stderr, flush=True)
        os._exit(0)  # the group is broken


def work(rank: int, file: str, socket: str, folder: str) -> None:
    """One rank, in a process of its own."""
    sys.stderr = pathlib.Path(folder, str(rank)).open("w", buffering=1)
    progress.LOOK_S = 0.05
    cases = {"waits": waits, "fails": fails}
    run_cases(rank, 2, file, socket, "w", list(cases),
              lambda case, session: cases[case](session))

