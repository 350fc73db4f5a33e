"""`memory`: compares the memory of a streamed step with the promise.

The promise is the package's own (client/python/DESIGN.md, "A step"), because on
a GPU the package follows no plan of the daemon yet:
- a step uses a fixed number of bytes of host memory per token, exact to the
  byte;
- with hidden="host" the bytes that torch's allocator hands out, in
  addition to parameters and gradients, do not grow with the number of
  layers;
- the GPU's memory, as the driver counts it, is used by torch, by the
  lease and by contexts, and by nothing else.

When the process of a check has ended, verify/torch.cc checks that the daemon
has the whole lease back.
"""

from __future__ import annotations

import dataclasses

import torch

import sluice
from sluice_verify.decoder import Sizes, loss_of, seeded
from sluice_verify.result import Failure, Result, in_one_line, say
from sluice_verify.streamed import device_of, streamed

BATCH, ROWS, CHUNK = 1, 2048, 512
LAYERS = (1, 6)
FEWER = Sizes(hidden=256, heads=4, kv_heads=2, width=64, ffn=256,
              layers=LAYERS[0])
MORE = dataclasses.replace(FEWER, layers=LAYERS[1])
# Device memory that one more layer may add, in units of a hidden state of all
# rows. It excludes tensors that copies in flight keep alive (IN_FLIGHT). A
# layer of plain torch keeps ten such tensors or more.
LIMIT = 0.1
IN_FLIGHT = 2 * (2 << 20)  # bytes of copies in both directions (client/python)
NOISE = 16  # contexts and loaded modules use up to 1/NOISE of a GPU
EXPECTED = ("host bytes as promised, to the byte; more layers take no more of "
            "the device; the GPU's memory is torch's and the lease's")


def check(result: Result, socket: str) -> None:
    runs = result.value["runs"] = []
    try:
        for sizes in FEWER, MORE:
            say(f"{sizes.layers} layers")
            with sluice.Session(socket) as session:
                runs.append(step(session, sizes))
            judge(runs[-1])
    except (sluice.Error, RuntimeError) as error:
        raise Failure(in_one_line(error)) from error
    fewer, more = (run["torch_peak"] - run["parameters"] for run in runs)
    limit = int(LIMIT * _hidden(FEWER) * (LAYERS[1] - LAYERS[0])) + IN_FLIGHT
    result.value.update(grown=more - fewer, limit=limit)
    if not more - fewer <= limit:
        raise Failure(f"{LAYERS[1] - LAYERS[0]} layers more take "
                      f"{more - fewer} bytes more on the device, beside their "
                      f"weights; the limit is {limit}")


def step(session: sluice.Session, sizes: Sizes) -> dict[str, int]:
    """Returns the bytes of a second step, which is like all later ones."""
    gpu = device_of(session)
    model = seeded(sizes).to(gpu)
    ids = torch.arange(BATCH * ROWS, device=gpu).view(BATCH, ROWS) % 128
    with streamed(session, model, CHUNK, "host") as stream:
        for _ in range(2):
            model.zero_grad(set_to_none=False)
            torch.cuda.current_stream(gpu).synchronize()
            used = _used(gpu) - torch.cuda.memory_reserved(gpu)
            leased = session_leased(stream)
            stream.reset_stats()
            torch.cuda.reset_peak_memory_stats(gpu)
            loss_of(model, ids).backward()
        torch.cuda.current_stream(gpu).synchronize()
        grown = _used(gpu) - torch.cuda.memory_reserved(gpu) - used
        stats = stream.stats()
        return {
            "layers": sizes.layers, "tokens": BATCH * ROWS,
            "parameters": sum(2 * p.nbytes for p in model.parameters()),
            "torch_peak": torch.cuda.max_memory_allocated(gpu),
            "host_peak": stats.host_peak_bytes, "host_left": stats.host_bytes,
            "host_promised": promised(sizes),
            "leased": session_leased(stream),
            "beside_torch_and_lease": grown - session_leased(stream) + leased,
            "gpu": torch.cuda.mem_get_info(gpu)[1]}


def session_leased(stream: sluice.Stream) -> int:
    """Returns the GPU memory of the session's slots."""
    return stream.arena._slots.nbytes


def judge(run: dict[str, int]) -> None:
    where = f"{run['layers']} layers: "
    if run["host_peak"] != run["host_promised"] or run["host_left"]:
        raise Failure(f"{where}the host held {run['host_peak']} bytes and "
                      f"holds {run['host_left']} after the step; promised "
                      f"were {run['host_promised']}, and 0")
    if run["beside_torch_and_lease"] > run["gpu"] // NOISE:
        raise Failure(f"{where}{run['beside_torch_and_lease']} bytes of the "
                      "GPU more are neither torch's nor the lease's")


def promised(sizes: Sizes) -> int:
    """Returns the promised host bytes of an fp32 step with equal chunks."""
    hidden, kv = sizes.hidden, sizes.kv_heads * sizes.width
    layer = 2 * 4 * kv + 4 * hidden + 4 * sizes.heads * sizes.width + (
        4 * sizes.heads)
    earlier = ROWS - CHUNK  # rows that keep their sums
    between = max(4 * hidden * ROWS, (4 * hidden + 8 * kv) * earlier)
    return BATCH * (sizes.layers * layer * ROWS + between)


def _hidden(sizes: Sizes) -> int:
    return BATCH * ROWS * sizes.hidden * 4


def _used(gpu: torch.device) -> int:
    free, total = torch.cuda.mem_get_info(gpu)
    return total - free
