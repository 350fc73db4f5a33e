"""Memory of this process in the place of leased memory, for trials: they run on
other devices than a session's, and no other job need know of their few rows."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sluice.memory.arena import HostArena


class ProcessMemory(HostArena):
    def __init__(self, device: torch.device):
        self.device = device

    def put(self, tensor: Tensor) -> Any:
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    def get(self, host: Any, device: Any) -> Tensor:
        return host.clone()

    def add(self, host: Any, tensor: Tensor) -> None:
        host += tensor.detach()

    def prefetch(self, host: Any, device: Any) -> None:
        pass

    def settle(self, host: Any) -> None:
        pass

    def drop(self, host: Any) -> None:
        pass
