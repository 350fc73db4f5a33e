"""Two ranks that share sequences, each on a fake GPU, over a fake of NCCL:

    cuda_group.py SOCKET FOLDER WHAT [WITHOUT]

WHAT names a function of this file. WITHOUT names what to leave out:
no_collective, or a function of cuda_step.
"""

from __future__ import annotations

import on_fakes  # noqa: F401, before torch

# isort: split

import copy
import datetime
import os
import pathlib
import signal
import sys
import time

import cuda_step
import torch
import torch.distributed as dist
from cuda_step import LENGTH, on, on_cpu
from gloo import run_ranks, whole
from models import Run, assert_same, batch, run, tiny
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import sluice
from sluice.ranks.groups import Ranks

RANKS = 2


def trained(session: sluice.Session, gpu: torch.device, steps: int = 2,
            sharded: bool = False, **options) -> sluice.Stream:
    """Trains a model on sequences that the ranks share. Each step must have
    the gradients of the plain model on the CPU."""
    model, inputs = tiny("qwen3"), batch(length=LENGTH)
    expected = run(copy.deepcopy(model), inputs)
    model.to(gpu)
    stream = sluice.stream(model, session=session, quiet=True,
                           group=dist.group.WORLD, **{"chunk": 16, **options})
    cuda_step.leave_out(stream.arena)
    if sharded:
        mesh = init_device_mesh("cuda", (RANKS,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    for _ in range(steps):
        assert_same(averaged(run(model, on(gpu, inputs)), sharded), expected)
    stats = stream.stats()
    assert stats.blocks > 0 and stats.host_bytes == 0, stats
    return stream


def averaged(found: Run, sharded: bool) -> Run:
    """Averages the gradients over the ranks, unless FSDP2 has already done so.
    """
    gradients = {name: whole(g) for name, g in found.gradients.items()}
    if not sharded:
        for gradient in gradients.values():
            dist.all_reduce(gradient, dist.ReduceOp.AVG)
    return on_cpu(Run(found.loss, gradients))


# --- functions that WHAT may name --------------------------------------------

def shared(session: sluice.Session, gpu: torch.device) -> None:
    trained(session, gpu).unstream()


def sharded(session: sluice.Session, gpu: torch.device) -> None:
    trained(session, gpu, sharded=True).unstream()
    trained(session, gpu, sharded=True, hidden="host").unstream()


def planned(session: sluice.Session, gpu: torch.device) -> None:
    stream = trained(session, gpu, 3, sharded=True, policy="plan")
    assert stream.plan is not None and stream.policy.shares, stream.plan
    stream.unstream()


def automatic(session: sluice.Session, gpu: torch.device) -> None:
    cuda_step.chunk_size.SIZES = (8, 16)
    trained(session, gpu, 1, sharded=True, chunk="auto").unstream()


def waits(session: sluice.Session, gpu: torch.device) -> None:
    """In the second step the host waits at most three times for the GPU."""
    model, inputs = tiny("qwen3").to(gpu), on(gpu, batch(length=LENGTH))
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           group=dist.group.WORLD)
    run(model, inputs)
    with cuda_step.Reads() as reads:
        model(**inputs).loss.backward()
    print(reads.lines, file=sys.stderr)
    assert 1 <= sum(reads.lines.values()) <= 3
    stream.unstream()


def failing(session: sluice.Session, gpu: torch.device, how: str) -> None:
    """Rank 1 fails in a layer of the second step or, if `how` is "left", before
    that step, while rank 0 waits in the user's own collective. Rank 1 raises an
    error if `how` is "raised"; otherwise it is killed. Rank 0 must raise
    PeerFailed within 5 s."""
    model, inputs = tiny("qwen3").to(gpu), on(gpu, batch(length=LENGTH))
    when, armed = pathlib.Path(sys.argv[2], "failed"), False

    def fails(module: nn.Module, args: tuple) -> None:
        if not armed:
            return
        when.write_text(str(time.time()))
        if how != "raised":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("it broke")

    model.model.layers[-1].mlp.register_forward_pre_hook(fails)
    sluice.stream(model, session=session, chunk=16, quiet=True,
                  group=dist.group.WORLD)
    run(model, inputs)
    armed = dist.get_rank() == 1
    try:
        if how == "left":
            fails(model, ())
            told = torch.ones(1, device=gpu)
            dist.all_reduce(told)
            told.item()
        else:
            run(model, inputs)
    except sluice.base.errors.PeerFailed as failed:
        took = time.time() - float(when.read_text())
        print(f"{took:.1f} s: {failed}", flush=True)
        assert dist.get_rank() == 0 and took < 5, took
        assert "rank 1" in str(failed), failed
    except ValueError as broke:
        assert dist.get_rank() == 1 and "it broke" in str(broke)
        time.sleep(6)  # rank 0 must notice before this process ends
    else:
        raise AssertionError("nothing failed")
    os._exit(0)


def killed(session: sluice.Session, gpu: torch.device) -> None:
    failing(session, gpu, "killed")


def killed_elsewhere(session: sluice.Session, gpu: torch.device) -> None:
    failing(session, gpu, "killed")


def left(session: sluice.Session, gpu: torch.device) -> None:
    failing(session, gpu, "left")


def raised(session: sluice.Session, gpu: torch.device) -> None:
    failing(session, gpu, "raised")


def work(rank: int, socket: str, folder: str, what: str, without: str
         ) -> None:
    if without == "no_collective":  # compute does not wait for collectives
        Ranks.wait = lambda *_: None
    elif without:
        cuda_step.leave_out = getattr(cuda_step, without)
    gpu, job = torch.device("cuda", rank), "sp"
    torch.cuda.set_device(gpu)
    if what == "killed_elsewhere":  # the daemon sees two jobs, as on two nodes
        job = f"node{rank}"
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", f"file://{folder}/group", rank=rank,
        world_size=RANKS, timeout=datetime.timedelta(seconds=120))
    with sluice.Session(socket, job=job, rank=rank, world=RANKS,
                        device=gpu) as session:
        globals()[what](session, gpu)
    dist.destroy_process_group()
    print("same", flush=True)


if __name__ == "__main__":
    run_ranks(RANKS, work, *sys.argv[1:4], (*sys.argv[4:], "")[0])
