"""The ranks of parallel/nodes_test: three ranks on two nodes, each node with
its own daemon, share sequences. Either a rank is killed, and each surviving
rank must end with an error that names the killed rank. Or the network between
the nodes is cut, and each rank must end with an error that names a rank of the
other node."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import threading
import time

import torch
import torch.distributed as dist
from models import batch, tiny
from torch import nn
from two_networks import TwoNetworks

import sluice
from sluice.ranks import board

NODES = (0, 0, 1)  # node of each rank
WORLD = len(NODES)
LIMIT_S = 10


def _cut(died: pathlib.Path) -> None:
    died.write_text(str(time.time()))
    subprocess.run(TwoNetworks.CUT, check=True)


def _die(died: pathlib.Path) -> None:
    died.write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(how: str, session: sluice.Session, died: pathlib.Path) -> None:
    """Cuts the network, or kills this rank in the call that `how` names."""
    if how == "cut":
        return _cut(died)
    if how == "compute":
        _die(died)
    threading.Timer(1, _die, [died]).start()
    if how == "lease":  # the second request waits for memory
        session.lease_host(session.limits().host_free_bytes - (4 << 20),
                           wait_s=100)
        session.lease_host(8 << 20, wait_s=100)
    else:
        # The other ranks wait in a collective of the stream.
        dist.all_reduce(torch.ones(1))
    time.sleep(100)


def work(rank: int, victim: int, how: str, port: int, sockets: list[str],
         folder: str, networks: TwoNetworks | None) -> None:
    node = NODES[rank]
    if networks is not None:
        networks.enter(node)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR=(
            "127.0.0.1" if networks is None else networks.ADDRESSES[0]),
        MASTER_PORT=str(port), LOCAL_RANK=str(rank - NODES.index(node)),
        LOCAL_WORLD_SIZE=str(NODES.count(node)))
    # check_daemon would refuse two daemons on one machine.
    board.check_daemon = lambda socket: None
    dist.init_process_group("gloo")
    died, armed = pathlib.Path(folder, "died"), False
    session = sluice.Session(sockets[node], job="nodes", rank=rank, world=WORLD,
                             local_world=NODES.count(node), gpu=0)
    model, inputs = tiny(hidden_size=48, num_attention_heads=6,
                         num_key_value_heads=3), batch(2, 48)

    def fails(module: nn.Module, args: tuple) -> None:
        if armed:
            _fail(how, session, died)

    model.model.layers[-1].mlp.register_forward_pre_hook(fails)
    sluice.stream(model, session=session, chunk=16, quiet=True,
                  group=dist.group.WORLD)
    model(**inputs).loss.backward()
    time.sleep(1)  # until all ranks are connected
    dist.barrier()
    armed = rank == victim
    try:
        model(**inputs).loss.backward()
    except sluice.base.errors.PeerFailed as failed:
        took = time.time() - float(died.read_text())
        print(f"rank {rank} after {took:.1f} s: {failed}", flush=True)
        named = 0 if how == "cut" and rank == victim else victim
        assert took < LIMIT_S and f"rank {named}" in str(failed), failed
        os._exit(0)
    raise AssertionError("nothing failed")
