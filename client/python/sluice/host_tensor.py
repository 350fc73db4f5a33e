"""A tensor's bytes in the host, and what a tensor must be to get there."""

from __future__ import annotations

import torch

from sluice.errors import Error, Status

__all__ = ["HostTensor", "check_device", "flat", "is_on"]


class HostTensor:
    """A tensor's bytes in an arena; contiguous, whatever it was put from.

    Attributes: shape, dtype, nbytes (numel x itemsize). Only the arena's
    calls read or write it, and it lives until `HostArena.drop`, or until nobody
    holds it.
    """

    __slots__ = ("shape", "dtype", "nbytes", "_live", "_address", "_written",
                 "_read", "_ahead", "__weakref__")

    def __init__(self, shape: torch.Size, dtype: torch.dtype, nbytes: int,
                 address: int, live: object) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = nbytes
        self._live = live  # the arena's mark; None once dropped
        self._address = address
        self._written = 0  # ticket of the last copy into it
        self._read = 0  # ticket of the last copy out of it
        self._ahead: torch.Tensor | None = None  # prefetched

    def __repr__(self) -> str:
        state = "" if self._live else ", dropped"
        return f"<HostTensor {list(self.shape)} {self.dtype}{state}>"


def is_on(tensor: torch.Tensor, device: torch.device | str) -> bool:
    device = torch.device(device)
    return tensor.device == device or (device.index is None and
                                       tensor.device.type == device.type)


def check_device(tensor: torch.Tensor) -> None:
    if not tensor.is_cpu:
        raise Error(Status.UNIMPLEMENTED,
                    f"a tensor on {tensor.device}: this build streams on the "
                    "CPU, the simulated GPU: move the model there")


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The values contiguous in memory; `tensor` itself where they are."""
    check_device(tensor)
    if tensor.requires_grad:
        tensor = tensor.detach()  # to hold it must not hold its graph
    if tensor.is_conj() or tensor.is_neg():  # the bytes are not the values
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()
