"""Masks that a layer has as a buffer [..., M, M], and takes a part of."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sluice.intervals import Intervals
from sluice.layer import running
from sluice.masks import MASKED, find
from sluice.step import current


def is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool and (
        current().is_marker(value) or intervals_of(value) is not None)


def is_zeros_and_ones(value: Any) -> bool:
    return intervals_of(value) is not None and bool(
        ((value == 0) | (value == 1)).all())


def is_complement(value: Any, times: Tensor) -> bool:
    """It is 0 where `times` is 1, and masks where that is 0."""
    return isinstance(value, Tensor) and value.shape == times.shape and bool(
        torch.where(times == 0, value <= MASKED, value == 0).all())


def intervals_of(view: Any) -> Intervals | None:
    """The mask of all rows, where `view` is the first rows and keys of a
    buffer [..., M, M] of the layer that runs."""
    if not isinstance(view, Tensor) or view.dim() < 2:
        return None
    for buffer in running().module.buffers():
        if buffer.dim() >= 2 and _begins(view, buffer):
            break
    else:
        return None
    square = buffer.view(buffer.shape[-2:])
    here = current()
    if min(square.shape) < here.length:
        return None
    return here.once(("buffer", buffer.data_ptr()), lambda: find(
        lambda batch, head, row, key: square[row, key] != 0, 1, here.length,
        1, here.device))


def _begins(view: Tensor, buffer: Tensor) -> bool:
    rows = running().rows_of_chunk
    return (view.data_ptr() == buffer.data_ptr()
            and view.dtype == buffer.dtype
            and buffer.numel() == buffer.shape[-1] * buffer.shape[-2]
            and view.numel() == rows * rows
            and view.shape[-2:] == (rows, rows)
            and view.stride()[-2:] == buffer.stride()[-2:])
