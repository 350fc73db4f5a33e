"""The ranks of parallel/sharded_optimizer_test. Each trains a model under
FSDP2 with sluice.AdamW and with torch's AdamW, on data that differ per rank,
and compares the results."""

from __future__ import annotations

import copy
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gloo import run_cases
from models import batch, tiny
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import sluice
from sluice.memory import host_states

STEPS = 20


class Uneven(nn.Module):
    """A model with shards of unequal lengths, some of them empty."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 5)
        self.last = nn.Linear(5, 1)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).tanh()).square().mean()


def llama(session: sluice.Session | None) -> tuple[nn.Module, list]:
    model = tiny()
    if session is not None:
        sluice.stream(model, session=session, chunk=16, quiet=True)
    return model, list(model.model.layers)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int,
          steps: int = STEPS, first: int = 0) -> list[float]:
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1 / (1 + step))
    losses = []
    for step in range(first, first + steps):
        if isinstance(model, Uneven):
            draw = torch.Generator().manual_seed(97 * step + rank)
            loss = model(torch.randn(4, 7, generator=draw))
        else:
            loss = model(**batch(length=40, seed=97 * step + rank)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def sharded(model: nn.Module, units: list, **options) -> nn.Module:
    for unit in units:
        fully_shard(unit, **options)
    return fully_shard(model, **options)


def uneven() -> nn.Module:
    torch.manual_seed(0)
    return Uneven()


def same(one: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(),
                            strict=True):
        assert torch.equal(a.to_local(), b.to_local()), name


def same_states(one: torch.optim.Optimizer, other: torch.optim.Optimizer
                ) -> None:
    found, expected = one.state_dict()["state"], other.state_dict()["state"]
    assert found.keys() == expected.keys()
    for number, state in expected.items():
        for name, value in state.items():
            got = found[number][name]
            assert isinstance(got, DTensor) == isinstance(value, DTensor)
            if isinstance(value, DTensor):
                assert (got.shape, got.placements) == (value.shape,
                                                       value.placements)
                got, value = got.to_local(), value.to_local()
            assert torch.equal(got, value), (number, name)


# --- cases -------------------------------------------------------------------


def steps(rank: int, session: sluice.Session) -> None:
    """Trains a streamed model, and a model with shards of unequal lengths."""
    mixed = dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    for make, options in (uneven, {}), (uneven, mixed), (llama, {}):
        found = []
        for of in (lambda p: sluice.AdamW(p, lr=1e-2, session=session),
                   lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True)):
            model, units = (make(), []) if make is uneven else llama(session)
            model = sharded(model, units, **options)
            optimizer = of(model.parameters())
            found.append((train(model, optimizer, rank), model, optimizer))
        (ours, one, optimizer), (torchs, other, expected) = found
        assert ours == torchs
        same(one, other)
        same_states(optimizer, expected)
    lengths = {name: p.to_local().numel()
               for name, p in sharded(uneven(), []).named_parameters()}
    assert lengths["first.bias"] == (3, 2)[rank]
    # The shard of rank 1 is empty.
    assert lengths["last.bias"] == (1, 0)[rank]


def half(rank: int, session: sluice.Session) -> None:
    """bf16 shards equal fp32 masters rounded to bf16."""
    model, twin = sharded(uneven().bfloat16(), []), sharded(
        uneven().bfloat16().float(), [])
    ours = sluice.AdamW(model.parameters(), lr=1e-2, session=session)
    expected = torch.optim.AdamW(twin.parameters(), lr=1e-2, foreach=True)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(97 * step + rank)
        model(torch.randn(4, 7, generator=draw).bfloat16()).backward()
        for p, other in zip(model.parameters(), twin.parameters()):
            other.grad = None if p.grad is None else p.grad.float()
        for optimizer in ours, expected:
            optimizer.step()
            optimizer.zero_grad()
        for p, other in zip(model.parameters(), twin.parameters()):
            assert torch.equal(p.to_local(), other.to_local().bfloat16())
    kept = copy.deepcopy(get_optimizer_state_dict(model, ours))
    again = sluice.AdamW(model.parameters(), session=session)
    set_optimizer_state_dict(model, again, kept, options=StateDictOptions(
        strict=False))  # `unused` has no state
    same_states(again, ours)


def states(rank: int, session: sluice.Session) -> None:
    """sluice.AdamW and torch's load their own and each other's states."""
    host_states.BUCKET_BYTES = 4096
    makes = [lambda p: sluice.AdamW(p, lr=1e-2, session=session),
             lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True)]
    for how in (sharded_dict, full_dict, plain_dict, checkpoint):
        expected = None
        for first, second in ((0, 1), (1, 0), (0, 0), (1, 1)):
            model = sharded(*llama(None))
            optimizer = makes[first](model.parameters())
            train(model, optimizer, rank, 3)
            other = sharded(*llama(None))
            other.load_state_dict(model.state_dict())
            loaded = makes[second](other.parameters())
            how(model, optimizer, other, loaded)
            same_states(loaded, optimizer)
            losses = train(other, loaded, rank, 3, first=3)
            expected = expected or losses
            assert losses == expected, how.__name__


def sharded_dict(model, optimizer, other, loaded):
    set_optimizer_state_dict(other, loaded, copy.deepcopy(
        get_optimizer_state_dict(model, optimizer)))


def full_dict(model, optimizer, other, loaded):
    """Gathers the full state on rank 0, which broadcasts it to the others."""
    kept = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(
        full_state_dict=True, cpu_offload=True))
    set_optimizer_state_dict(other, loaded, kept, options=StateDictOptions(
        full_state_dict=True, broadcast_from_rank0=True))


def plain_dict(model, optimizer, other, loaded):
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def checkpoint(model, optimizer, other, loaded):
    """Saves and loads files with torch.distributed.checkpoint."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save(dict(optimizer=get_optimizer_state_dict(model, optimizer)),
             checkpoint_id=folder[0])
    into = get_optimizer_state_dict(other, loaded)
    dcp.load(dict(optimizer=into), checkpoint_id=folder[0])
    set_optimizer_state_dict(other, loaded, into)


def ddp(rank: int, session: sluice.Session) -> None:
    """DistributedDataParallel is refused before anything is leased."""
    model = nn.parallel.DistributedDataParallel(uneven(),
                                                find_unused_parameters=True)
    optimizer = sluice.AdamW(model.parameters(), session=session)
    model(torch.ones(4, 7)).backward()
    try:
        optimizer.step()
    except sluice.Unsupported as refused:
        # The parameters' lengths are rounded up to multiples of 32: 64, 32, 32
        # and 32.
        assert str(refused) == (
            "AdamW: DistributedDataParallel holds 46 parameters whole on each "
            "of 2 ranks: their states would take 1.19e-06 GiB of host memory "
            "per rank, 2.38e-06 GiB in all: shard the model with fully_shard "
            "(FSDP2), then they take 1.19e-06 GiB in all"), refused
    else:
        raise AssertionError("not refused")
    assert not optimizer.state
    # A model that this rank alone has is not refused.
    alone = sluice.AdamW(uneven().parameters(), session=session)
    for p in alone.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    alone.step()


def work(rank: int, world: int, file: str, socket: str, case: str) -> None:
    def run(case: str, session: sluice.Session) -> None:
        globals()[case](rank, session)

    run_cases(rank, world, file, socket, "optimizer", [case], run)
