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
             mask: Tensor | None = None, kernel: str = "auto") -> Iterator[sluice.Stream]:
    """Context manager in which the model is on the GPU and streamed. Its mask,
    if any, is like `mask` [1, 1, S, S]; `kernel` is stream()'s."""
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
    """Returns the device. The kit's daemon has only real GPUs."""
    return torch.device("cuda", session.limits().device)
