"""Handle of a tensor's bytes in host memory; makes tensors ready for copies.
"""

from __future__ import annotations

import torch


class HostTensor:
    """A tensor's bytes in an arena; contiguous, also if their source was not.

    Attributes: shape, dtype, nbytes (numel x itemsize). Only calls of the
    arena read or write the bytes. They are held until `HostArena.drop`, or
    until nothing refers to this object.
    """

    __slots__ = ("shape", "dtype", "nbytes", "_live", "_address", "_written",
                 "_read", "_ahead", "_stream", "__weakref__")

    def __init__(self, shape: torch.Size, dtype: torch.dtype, nbytes: int,
                 address: int, live: object) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = nbytes
        self._live = live  # the arena's mark; None after `drop`
        self._address = address
        self._written = 0  # ticket of the last copy into it
        self._read = 0  # ticket of the last copy out of it
        self._ahead: torch.Tensor | None = None  # prefetched
        self._stream: int | None = None  # torch's stream of the prefetch

    def __repr__(self) -> str:
        state = "" if self._live else ", dropped"
        return f"<HostTensor {list(self.shape)} {self.dtype}{state}>"


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values, detached and contiguous in memory; a copy only if
    needed."""
    if tensor.requires_grad:
        tensor = tensor.detach()  # holding it must not hold its graph
    if tensor.is_conj() or tensor.is_neg():  # the bytes are not the values
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()
