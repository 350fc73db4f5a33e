"""What stands for the logits of a call whose head ran on chunks of rows.

[Note: absent logits] Trainers pass a model's outputs through code of others:
DDP and FSDP look for tensors in it, accelerate for half-precision ones,
Trainer takes all that is not None, users count places (`out[1]`). A None there
moves the places and says nothing when it is used. So it is a tensor of the
logits' shape without memory, and whatever reads it says why there is nothing.
"""
from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from sluice.errors import Unsupported


class AbsentLogits(Tensor):
    """Logits [B, S, V], fp32, that were never whole; holds no memory.

    Shape, type and device can be asked; anything that needs a value raises
    `Unsupported`.
    """

    @staticmethod
    def __new__(cls, shape: tuple[int, ...],
                device: torch.device) -> AbsentLogits:
        # fp32, whatever the head's is: accelerate widens half-precision ones.
        return Tensor._make_wrapper_subclass(
            cls, shape, dtype=torch.float32, device=device)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None) -> Any:
        if func is torch.ops.aten.clone.default:  # DDP, with a static graph
            return cls(args[0].shape, args[0].device)
        _refuse()

    def __repr__(self, **_: Any) -> str:
        return f"<logits {tuple(self.shape)} that were computed by rows>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse()

    # These read memory without asking torch's dispatcher.
    def numpy(self, **_: Any) -> NoReturn:
        _refuse()

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()

    def __dlpack__(self, **_: Any) -> NoReturn:
        _refuse()

    def tolist(self) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise Unsupported(
        "logits", "they were never whole: with labels, the head and the loss "
        "run on chunks of rows", "set head = 'whole' on what stream() "
        "returned (or pass it to stream) where they fit, leave the labels "
        "out, or ask sluice.logprobs for the labels' log-probabilities")


__all__ = ["AbsentLogits"]
