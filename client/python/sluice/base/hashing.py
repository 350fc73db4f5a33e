"""Hashes of plain values and of tensors, the same in every process."""
from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64,
          16: torch.int64}  # by bytes per element
_PART = 1 << 22  # words hashed at a time; each needs several int64 temporaries


def of_values(value: Any) -> int:
    return zlib.crc32(repr(value).encode())


def of_tensor(values: Tensor) -> Tensor:
    """Returns an int64 () hash of the values' bits and order, on their device.
    Any change of one value changes the hash."""
    words = values.detach().contiguous().view(-1).view(
        _WORDS[values.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for i, part in enumerate(words.split(_PART)):
        places = torch.arange(i * _PART, i * _PART + len(part),
                              device=values.device)
        total += _mixed(places.mul_(-7046029254386353131).add_(part)).sum()
    return total


def fingerprint(values: Tensor) -> int:
    """Returns `of_tensor` as an int; waits for the device."""
    return int(of_tensor(values))


def equal(found: Tensor, wanted: Tensor) -> Tensor:
    """Returns on the device, as a bool (), whether two hashes are equal."""
    if found.shape != wanted.shape:
        return found.new_zeros((), dtype=torch.bool)
    return (found == wanted).all()


def _mixed(x: Tensor) -> Tensor:
    """Mixes each number's bits in place (Steele et al., splitmix64)."""
    x.bitwise_xor_(x >> 30).mul_(-4658895280553007687)
    x.bitwise_xor_(x >> 27).mul_(-7723592293110705685)
    return x.bitwise_xor_(x >> 31)
