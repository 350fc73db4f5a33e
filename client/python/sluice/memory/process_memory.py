"""An arena in the process's own memory, for trials: they may run on another
device than the session's, and their few rows need no lease."""
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
