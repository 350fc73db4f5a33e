"""The device on which a session computes, and its current stream.

The memory of a simulated GPU is CPU memory, and the calling thread computes. A
real GPU is torch's CUDA device with the session's UUID, and compute is what is
enqueued on torch's current stream of the calling thread.

[Note: streams] Each copy and each wait looks up torch's current stream:
autograd runs a node's backward on a thread of its own, on the stream of the
node's forward. If that stream has changed, the old stream first waits for all
copies that hold memory, and the new stream waits for the old. So the new stream
is ordered after everything that the old one waited for, and reads host bytes
only after the old stream's gradients were written there. Memory that is freed
is no longer in use, on whichever stream it was allocated. A step that stays on
one stream has no extra waits.
"""
from __future__ import annotations

import time
from typing import TypeAlias

import torch
from torch import nn
from torch.cuda.streams import Event

from sluice.base.errors import Error, Status, Unsupported
from sluice.native.session import Session

Moment: TypeAlias = "float | Event"  # host's time, or an event in a stream


def device_of(session: Session) -> torch.device:
    """Returns torch's device for the session's GPU. Raises `Error`
    UNIMPLEMENTED for a real GPU if torch has no CUDA."""
    ordinal = session.limits().device
    if ordinal is None:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Error(Status.UNIMPLEMENTED,
                    f"device cuda: GPU {session.gpu} of the daemon is a real "
                    "one, and this torch sees no CUDA device: install a torch "
                    "that is built for CUDA")
    return torch.device("cuda", ordinal)


def current_stream(device: torch.device) -> int:
    """Returns torch's current stream of this thread, as a CUstream."""
    return torch._C._cuda_getCurrentRawStream(device.index)


def now(device: torch.device) -> Moment:
    """Returns the moment that this thread's compute has reached: the host's
    time or, on a real GPU, a timed event of the current stream."""
    if device.type == "cpu":
        return time.perf_counter()
    event = Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def await_compute(device: torch.device) -> None:
    """Blocks the host until torch's current stream has done its work. Call it
    before a lease ends that this work uses."""
    if device.type != "cpu":
        torch.cuda.current_stream(device).synchronize()


def check_device(found: torch.device | str, device: torch.device) -> None:
    """Raises `Error` UNIMPLEMENTED if `found` is not the session's device."""
    found = torch.device(found)
    if found == device or (found.index is None and found.type == device.type):
        return
    raise Error(Status.UNIMPLEMENTED, f"a tensor on {found}: " + (
        "the session's GPU is simulated, and its memory is the CPU's: move "
        "the model there, or open a Session of a daemon with driver = \"cuda\""
        if device.type == "cpu" else
        f"the session's GPU is {device}: move the model there"))


def check_parameters(module: nn.Module, device: torch.device) -> None:
    for parameter in module.parameters():
        if not parameter.is_meta:
            check_device(parameter.device, device)


def check_kernel(device: torch.device, kernel: str) -> None:
    if kernel != "auto" and device.type == "cpu":
        raise Unsupported(
            "device cpu", f"kernel = {kernel!r}: a kernel of real GPUs, and "
            "this session's is simulated", "leave kernel out")
