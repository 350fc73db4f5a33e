"""`gradients`: compares a streamed step's loss and gradients on the GPU with
plain torch's autograd over the whole sequence on the CPU.

fp32: each parameter's gradient may differ by at most LIMIT of its norm. bf16:
all gradients together may differ from fp32's at most TIMES as much as those of
the same model in bf16 on the CPU, without streaming. An error such as a chunk
left out, used twice, or read too early makes a far larger difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import sluice
from sluice_verify.decoder import Decoder, Sizes, loss_of, seeded, twin
from sluice_verify.result import Failure, Result, in_one_line, say
from sluice_verify.streamed import device_of, streamed

LIMIT = 1e-4  # of a norm; fp32 rounds values by 1e-7, sums by 1e-6
TIMES = 2.0  # blocks round bf16 results once more (client/python)
EXPECTED = (f"fp32: within {LIMIT:g} of each gradient's norm; bf16: at most "
            f"{TIMES:g} times as far from fp32 as plain torch")

Gradients = dict[str, Tensor]


# Masks: bool [1, 1, S, S], True where a row sees a key; None for causal.


def causal(rows: int) -> None:
    """Returns None: torch has a flag for this mask (is_causal)."""


def window(rows: int) -> Tensor:
    """Returns a mask with which each row sees itself and the 23 rows before."""
    at = torch.arange(rows)
    apart = at[:, None] - at
    return ((apart >= 0) & (apart < 24))[None, None]


def documents(rows: int) -> Tensor:
    """Returns the mask of three packed documents, the first shorter than the
    other two. A row sees the rows of its document up to itself."""
    at = torch.arange(rows)
    document = (at >= rows // 5).int() + (at >= rows * 3 // 5).int()
    return ((at[:, None] >= at) & (document[:, None] == document))[None, None]


@dataclass(frozen=True)
class Case:
    mask: Callable[[int], Tensor | None]
    rows: int
    chunk: int
    hidden: str = "device"
    dtype: torch.dtype = torch.float32
    sizes: Sizes = Sizes()

    def __str__(self) -> str:
        values = self.sizes.value_width
        return (f"{self.mask.__name__}, {self.rows} rows in chunks of "
                f"{self.chunk}, heads of {self.sizes.width}, "
                f"{f'values of {values}, ' if values else ''}"
                f"{str(self.dtype).removeprefix('torch.')}, "
                f'hidden="{self.hidden}"')


WIDE = Sizes(hidden=128, heads=2, kv_heads=1, width=128, ffn=64, layers=1)
CASES = (
    *(Case(causal, 107, 32, hidden, dtype)
      for dtype in (torch.float32, torch.bfloat16)
      for hidden in ("device", "host")),
    Case(window, 107, 32),
    Case(window, 107, 32, "host"),
    Case(window, 107, 32, dtype=torch.bfloat16),  # flash masks windows itself
    Case(documents, 107, 32),
    Case(documents, 107, 32, "host", torch.bfloat16),
    Case(causal, 769, 256, sizes=WIDE),  # the last chunk has one row
    # No kernel supports these widths, so scores are materialised.
    Case(causal, 107, 32, sizes=Sizes(value_width=8)),
)


def check(result: Result, socket: str) -> None:
    found = result.value["cases"] = []
    torch.backends.cuda.matmul.allow_tf32 = False
    with sluice.Session(socket) as session:
        for case in CASES:
            say(str(case))
            try:
                apart = compare(session, case)
            except (sluice.Error, RuntimeError) as error:
                raise Failure(f"{case}: {in_one_line(error)}") from error
            found.append({"case": str(case), **apart})


def compare(session: sluice.Session, case: Case) -> dict[str, object]:
    """Compares two streamed steps with the CPU's; the second one runs on
    another stream and reuses the first one's memory. Returns the differences
    and the kernels of attention."""
    model = seeded(case.sizes)
    ids = torch.randint(case.sizes.vocabulary, (2, case.rows),
                        generator=torch.Generator().manual_seed(1))
    mask = case.mask(case.rows)
    exact = gradients(model, ids, mask)
    judge = _judge_fp32 if case.dtype == torch.float32 else _judge_rounded
    plain = gradients(twin(model, case.dtype), ids, mask) if (
        judge is _judge_rounded) else None
    model = twin(model, case.dtype)
    gpu = device_of(session)
    given = [None if t is None else t.to(gpu) for t in (ids, mask)]
    worst: dict[str, float] = {}
    with streamed(session, model, case.chunk, case.hidden, mask) as stream:
        here, side = torch.cuda.current_stream(gpu), torch.cuda.Stream(gpu)
        for each in here, side:
            each.wait_stream(here)
            with torch.cuda.stream(each):
                got = gradients(model, *given)
            for name, value in judge(case, got, exact, plain).items():
                worst[name] = max(worst.get(name, 0.0), value)
        here.wait_stream(side)
        stats = stream.stats()
        if not stats.blocks or stats.host_bytes:
            raise Failure(f"{case}: {stats.blocks} blocks of attention were "
                          f"streamed, and {stats.host_bytes} bytes of the "
                          "host are still held")
    return {**worst, "kernels": stats.kernels}


def gradients(model: Decoder, ids: Tensor, mask: Tensor | None) -> Gradients:
    """Returns a step's gradients by parameter, and its "loss", on the CPU."""
    model.zero_grad()
    loss = loss_of(model, ids, mask)
    loss.backward()
    return {"loss": loss.detach().float().cpu(),
            **{name: p.grad.float().cpu()
               for name, p in model.named_parameters()}}


def _judge_fp32(case: Case, got: Gradients, exact: Gradients,
                plain: Gradients | None) -> dict[str, float]:
    shares = {name: float((got[name] - wanted).norm() / wanted.norm())
              for name, wanted in exact.items()}
    # max() would ignore NaN, so the key makes NaN the largest.
    name = max(shares, key=lambda n: (shares[n] != shares[n], shares[n]))
    if not shares[name] <= LIMIT:
        raise Failure(f"{case}: {name} is {shares[name]:.2g} of its norm "
                      f"apart from plain torch's on the CPU, the limit is "
                      f"{LIMIT:g}")
    return {"worst_share_of_norm": shares[name]}


def _judge_rounded(case: Case, got: Gradients, exact: Gradients,
                   plain: Gradients) -> dict[str, float]:
    ours, theirs = (sum(float((each[name] - wanted).norm()) ** 2
                        for name, wanted in exact.items()) ** 0.5
                    for each in (got, plain))
    if not ours <= TIMES * theirs:
        raise Failure(f"{case}: all gradients together are {ours:.3g} apart "
                      f"from fp32's, plain torch's {theirs:.3g}, and the "
                      f"limit is {TIMES:g} times that")
    return {"times_plain_error": ours / theirs}
