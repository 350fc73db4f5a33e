"""The ranks of training/progress_test. In the first case rank 0 is late and
rank 1 waits. In the second case rank 1 fails and rank 0 waits. Each rank's
stderr goes to FOLDER/RANK."""

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
    dist.barrier()  # the ranks may begin at different times
    model(**batch())  # this call probes the model
    dist.barrier()
    print("probed", file=sys.stderr, flush=True)
    if dist.get_rank() == 0:
        time.sleep(5)  # rank 1 waits
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
        mlp.register_forward_hook(  # raises, but not in the probe's copy
            lambda module, *_: 1 / 0 if module is mlp else None)
    try:
        model(**batch())
    except ZeroDivisionError:
        time.sleep(7)  # stays alive while rank 0 waits
        os._exit(0)
    except RuntimeError as error:  # raised after rank 1 has ended
        print("ended:", error, file=sys.stderr, flush=True)
        os._exit(0)  # the group is broken


def work(rank: int, file: str, socket: str, folder: str) -> None:
    sys.stderr = pathlib.Path(folder, str(rank)).open("w", buffering=1)
    progress.LOOK_S = 0.05
    cases = {"waits": waits, "fails": fails}
    run_cases(rank, 2, file, socket, "w", list(cases),
              lambda case, session: cases[case](session))

