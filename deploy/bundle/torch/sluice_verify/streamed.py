"""Streams a decoder of this kit on the session's GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

import sluice
from sluice_verify.decoder import Decoder

PROBED = 70  # rows, as in the package's own probe


@contextlib.contextmanager
def streamed(session: sluice.Session, model: Decoder, chunk: int, hidden: str,
             mask: Tensor | None = None,
             kernel: str = "auto") -> Iterator[sluice.Stream]:
    """Context manager that moves the model to the GPU and streams it. `mask`:
    an example of the mask [1, 1, S, S] of later calls, or None; `kernel`: the
    argument of stream()."""
    gpu = device_of(session)
    model.to(gpu)
    ids = torch.zeros(1, PROBED, dtype=torch.long, device=gpu)
    few = None if mask is None else mask[..., :PROBED, :PROBED].to(gpu)
    stream = sluice.stream(
        layers=model.layers, attention="sdpa", session=session, chunk=chunk,
        hidden=hidden, kernel=kernel, hbm=0, quiet=True,
        sample=lambda: model(ids, few))
    try:
        yield stream
    finally:
        stream.unstream()


def device_of(session: sluice.Session) -> torch.device:
    """Returns the session's device, which is a real GPU in the kit."""
    return torch.device("cuda", session.limits().device)
