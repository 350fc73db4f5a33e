"""`throughput`: measures how fast torch's attention kernels and a streamed
step are, and which kernel makes a step fastest (`fastest`, per dtype, with the
argument that selects it). Figures are reported and not judged. The check fails
if a kernel in NEEDED does not run in its dtype, or if any kernel's numbers
differ from the CPU's. It reports why the other kernels do not run.

FLOP/s of kernels count causal attention as half of the square, and its backward
as 2.5 forwards, because a kernel recomputes scores. MFU is defined as in MEMO's
and FPDT's tables: recomputation does not count, so a backward is 2 forwards.
MFU is relative to the bf16 peak in the shipped profile of this GPU, and null
without a profile. Kernels run on random data, because a GPU draws less power on
constants. At the largest number of rows, a kernel is timed a second time after
it has run for WARM_S seconds, when the GPU is at its power limit.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

import sluice
from sluice_verify.decoder import Decoder, Sizes, loss_of, seeded
from sluice_verify.kernels import ASKED, BACKENDS, NEEDED, compare, short, why
from sluice_verify.result import Failure, Result, in_one_line, say
from sluice_verify.streamed import device_of, streamed

EXPECTED = ("flash attention in bf16, efficient in fp32 and streamed steps by "
            "them run, and all kernels give the CPU's numbers")
HEADS, WIDTH = 16, 128
FEWEST_ROWS, MOST_ROWS = 256, 65536
MOST_OF_A_STEP = 16384  # rows that fit the kit's host pool
CHUNK = 8192  # stream()'s default on a GPU
SLOW_S = 0.2  # rows are doubled until a run takes this long
WARM_S = 3.0
REPEATS = 3  # the minimum is used
# The model if the GPU has room for it; otherwise the small one.
LARGE = Sizes(hidden=2048, heads=16, kv_heads=4, width=128, ffn=5632)
SMALL = Sizes(hidden=256, heads=2, kv_heads=1, width=128, ffn=512)
ROOM = 8 << 30  # bytes of GPU memory that the large model needs


def check(result: Result, socket: str) -> None:
    peak = float(os.environ.get("SLUICE_VERIFY_PEAK_FLOPS", 0)) or None
    with sluice.Session(socket) as session:
        gpu = device_of(session)
        kernels: list[dict] = []
        steps: list[dict] = []
        result.value.update(peak_flops=peak, kernels=kernels, steps=steps)
        for name in BACKENDS:
            say(name)
            kernels.extend(_attention(name, gpu, peak))
        for kernel, dtype in ASKED:
            say(f"steps by {kernel} in {short(dtype)}")
            steps.extend({"kernel": kernel, "dtype": short(dtype), **each}
                         for each in _steps_or_why(session, kernel, dtype,
                                                   peak))
        result.value["fastest"] = fastest(steps)
        for line in result.value["fastest"].values():
            say(line)
    for row in kernels:
        needed = (row["kernel"], torch.bfloat16) in NEEDED
        if needed and "why_not" in row and row["rows"] == FEWEST_ROWS:
            raise Failure(f"{row['kernel']} attention: {row['why_not']}")


def _attention(name: str, gpu: torch.device, peak: float | None
               ) -> Iterator[dict]:
    """Yields a row for each length, until the kernel is slow or fails."""
    rows = FEWEST_ROWS
    while rows <= MOST_ROWS:
        row: dict = {"kernel": name, "rows": rows}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                forward, backward = _kernel_seconds(name, gpu, rows)
            except RuntimeError as error:
                yield {**row, "why_not": why(error, told)}
                return
        flops = 2.0 * rows * rows * HEADS * WIDTH
        row |= {"forward_s": forward, "backward_s": backward,
                "tokens_per_s": rows / (forward + backward),
                "forward_flops": flops / forward,
                "backward_flops": 2.5 * flops / backward,
                "mfu": peak and 3.0 * flops / (forward + backward) / peak}
        most = forward + backward > SLOW_S or rows == MOST_ROWS
        if most:
            forward, backward = _kernel_seconds(name, gpu, rows, WARM_S)
            row |= {"warm_forward_s": forward, "warm_backward_s": backward,
                    "warm_mfu": peak and 3.0 * flops / (forward + backward)
                    / peak}
        yield row
        if most:
            return
        rows *= 2


def _kernel_seconds(name: str, gpu: torch.device, rows: int,
                    after_s: float = 0.0) -> tuple[float, float]:
    """Returns the seconds of a causal forward and its backward, in bf16, after
    the kernel has run for `after_s` seconds."""
    q, k, v, gradient = (torch.randn(1, HEADS, rows, WIDTH, device=gpu,
                                     dtype=torch.bfloat16) for _ in range(4))
    for each in q, k, v:
        each.requires_grad_()
    made: list[torch.Tensor] = []

    def forward() -> None:
        with sdpa_kernel(BACKENDS[name]):
            made[:] = [F.scaled_dot_product_attention(q, k, v,
                                                      is_causal=True)]

    def backward() -> None:
        made[0].backward(gradient)

    before = 0.0
    while before < after_s:
        before += sum(_seconds(gpu, forward, backward))
    return tuple(map(min, zip(*(_seconds(gpu, forward, backward)
                                for _ in range(REPEATS + 1)))))


def _seconds(gpu: torch.device, *parts: Callable[[], None]) -> list[float]:
    """Returns the seconds of each part by the GPU's clock."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in (None, *parts)]
    stream = torch.cuda.current_stream(gpu)
    marks[0].record(stream)
    for part, mark in zip(parts, marks[1:]):
        part()
        mark.record(stream)
    stream.synchronize()
    return [max(a.elapsed_time(b), 1e-6) / 1e3
            for a, b in zip(marks, marks[1:])]


def fastest(steps: list[dict]) -> dict[str, str]:
    """Returns per dtype the kernel that is fastest at the largest number of
    rows at which all kernels ran, with the argument that selects it."""
    ran: dict[str, dict[str, dict[int, float]]] = {}
    for step in steps:
        if "why_not" not in step:
            ran.setdefault(step["dtype"], {}).setdefault(
                step["kernel"], {})[step["rows"]] = step["seconds"]
    told = {}
    for dtype, kernels in ran.items():
        common = set.intersection(*map(set, kernels.values()))
        if not common:
            continue
        rows = max(common)
        (best, least), *others = sorted(
            ((name, taken[rows]) for name, taken in kernels.items()),
            key=lambda each: each[1])
        told[dtype] = (
            f"{dtype}: {best} is the fastest at {rows} rows" + "".join(
                f", {taken / least:.2f} times as fast as {name}"
                for name, taken in others) +
            f": sluice-train --attention {best} --dtype {dtype}, or "
            f"sluice.stream(model, kernel=\"{best}\")")
    return told


def _steps_or_why(session: sluice.Session, kernel: str, dtype: torch.dtype,
                  peak: float | None) -> Iterator[dict]:
    """Yields the measured steps of a kernel, and the reason if it does not run.
    Raises `Failure` if a kernel in NEEDED does not run, or if the numbers
    differ from the CPU's."""
    try:
        compare(kernel, dtype)
        yield from _steps(session, kernel, dtype,
                          peak if dtype == torch.bfloat16 else None)
    except (sluice.Error, sluice.Unsupported, RuntimeError) as error:
        if (kernel, dtype) in NEEDED:
            raise Failure(f"a step by {kernel} attention: "
                          f"{in_one_line(error)}") from error
        yield {"why_not": in_one_line(error)}


def _steps(session: sluice.Session, kernel: str, dtype: torch.dtype,
           peak: float | None) -> Iterator[dict]:
    gpu = device_of(session)
    large = torch.cuda.get_device_properties(gpu).total_memory >= ROOM
    sizes = LARGE if large else SMALL
    model = seeded(sizes).to(gpu, dtype)
    with streamed(session, model, CHUNK, "device", kernel=kernel):
        rows = FEWEST_ROWS
        while rows <= MOST_OF_A_STEP:
            ids = torch.arange(rows, device=gpu)[None] % sizes.vocabulary
            taken = min(_seconds(gpu, lambda ids=ids: _step(model, ids))[0]
                        for _ in range(REPEATS))
            yield {"rows": rows, "hidden": sizes.hidden, "seconds": taken,
                   "tokens_per_s": rows / taken,
                   "mfu": peak and _flops(model, rows) / taken / peak}
            if taken > SLOW_S:
                return
            rows *= 2


def _step(model: Decoder, ids: torch.Tensor) -> None:
    model.zero_grad()
    loss_of(model, ids).backward()


def _flops(model: Decoder, rows: int) -> float:
    sizes = model.sizes
    weights = sum(p.numel() for name, p in model.named_parameters()
                  if "embedding" not in name)
    return 6.0 * weights * rows + (
        3.0 * 2.0 * rows * rows * sizes.heads * sizes.width * sizes.layers)
