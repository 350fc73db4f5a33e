"""Numbers the rows of chunks for layers that number their rows themselves.

[Note: numbered rows] A layer may make positions itself, by
`torch.arange(x.shape[1])`: Llama 4 scales the queries of its layers without
RoPE from row 8,192 on. Within a chunk the numbers would start at 0 again, and
a probe of few rows could not detect it. So the probe runs such a layer as if
its rows started FAR into a sequence. If this changes the result, the layer's
chunks get their rows' numbers in the sequence from then on, and the probe
checks this at FAR, too.
"""
from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FAR = 1 << 20  # rows; beyond any threshold that a model has


class Numbered(TorchFunctionMode):
    """Makes `torch.arange` over all of a layer's rows begin at `first`.

    Attributes:
        met: whether there was such a call.
    """

    def __init__(self, rows: int, first: int):
        super().__init__()
        self._rows, self._first = rows, first
        self.met = False

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is not torch.arange or not self._is_of_rows(args, kwargs):
            return out
        self.met = True
        return out.add_(self._first)

    def _is_of_rows(self, args: tuple, kwargs: dict[str, Any]) -> bool:
        start, end, step = (*args, 1)[:3] if len(args) > 1 else (
            kwargs.get("start", 0), args[0] if args else kwargs.get("end"), 1)
        return (start, end, kwargs.get("step", step)) == (0, self._rows, 1)
