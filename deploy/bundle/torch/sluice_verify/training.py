"""`training`: compares 50 steps of AdamW, streamed on the GPU, with the same
steps of plain torch on the CPU.

The CPU's curve is computed in the same process and not shipped, because another
version of torch draws and rounds differently. The same steps in fp64 on the CPU
measure the effect of rounding alone: the GPU's losses may differ from the CPU's
fp32 losses by at most TIMES the largest difference between fp32 and fp64.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import sluice
from sluice_verify.decoder import Decoder, loss_of, seeded, twin
from sluice_verify.result import Failure, Result, in_one_line, say
from sluice_verify.streamed import device_of, streamed

STEPS, BATCH, ROWS, CHUNK = 50, 2, 72, 40
RATE = 3e-3
TIMES = 100.0  # a GPU sums in another order, with another exp()
LEARNT = 0.7  # limit of the last loss, as a fraction of the first
EXPECTED = (f"{STEPS} losses at most {TIMES:g} times as far from the CPU's as "
            f"its own in fp64; the last one under {LEARNT:g} of the first")


def check(result: Result, socket: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    model = seeded()
    say("the CPU's curve")
    plain = list(trained(twin(model, torch.float32)))
    say("the CPU's curve in fp64")
    exact = list(trained(twin(model, torch.float64)))
    own = max(map(_apart, plain, exact))
    limit = TIMES * own
    got: list[float] = []
    result.value.update(cpu=plain, rounding=own, limit=limit, gpu=got)
    say("the GPU's curve")
    with sluice.Session(socket) as session:
        try:
            for loss in on_gpu(session, twin(model, torch.float32)):
                got.append(loss)
                judge(len(got) - 1, loss, plain[len(got) - 1], limit)
        except (sluice.Error, RuntimeError) as error:
            raise Failure(f"step {len(got)} of {STEPS}: {in_one_line(error)}"
                          ) from error
    if not got[-1] < LEARNT * got[0]:
        raise Failure(f"the loss went from {got[0]:.4g} to {got[-1]:.4g}: the "
                      f"last is to be under {LEARNT:g} of the first")


def judge(step: int, got: float, wanted: float, limit: float) -> None:
    apart = _apart(got, wanted)
    if not apart <= limit:
        raise Failure(f"step {step} of {STEPS}: the loss is {got:.6g} on the "
                      f"GPU and {wanted:.6g} on the CPU, {apart:.2g} of it "
                      f"apart; the limit is {limit:.2g}")


def _apart(one: float, other: float) -> float:
    """Returns the difference relative to `other`."""
    return abs(one - other) / other


def on_gpu(session: sluice.Session, model: Decoder) -> Iterator[float]:
    with streamed(session, model, CHUNK, "device") as stream:
        yield from trained(model, device_of(session))
        if not stream.stats().blocks:
            raise Failure("no block of attention was streamed")


def trained(model: Decoder, device: torch.device | str = "cpu"
            ) -> Iterator[float]:
    """Yields each step's loss, computed before its update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        loss = loss_of(model, text(step).to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss)


def text(step: int) -> Tensor:
    """Returns ids [BATCH, ROWS] with a pattern to learn: each id follows from
    the one before, except for one draw in eight."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(128, (BATCH, ROWS), generator=generator)
    free = torch.rand(BATCH, ROWS, generator=generator) < 1 / 8
    for row in range(1, ROWS):
        follows = (ids[:, row - 1] * 5 + 17) % 128
        ids[:, row] = torch.where(free[:, row], ids[:, row], follows)
    return ids
