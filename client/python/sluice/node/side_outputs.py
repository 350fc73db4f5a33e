"""Records a layer's outputs besides its hidden states if the model uses them.

[Note: sides]
A router's logits, from which the model computes a loss that balances experts,
come out of the middle of a layer. They are recorded chunk by chunk and joined
into one tensor on the device, with few numbers per row. The layers' nodes
return only hidden states; so the recorded tensors join the user's graph behind
the last layer, in a node that runs its backward before those of all layers.
That node stores the gradients in the layers' `Side`s, and each chunk's replay
gets its part of them.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base.errors import Unsupported

ASKED = "output_router_logits"  # argument of models, field of configs


class Side:
    """Output `index` of a layer's submodule, or of the layer, in one step."""

    def __init__(self, layer: nn.Module, module: nn.Module, index: int,
                 chunks: list[range]):
        self._module, self._index, self._chunks = module, index, chunks
        self.is_own = module is layer
        self._seen: list[Tensor] = []
        self._parts: list[Tensor] = []  # [B, c, E]
        self._flat = False  # whether the module makes [B * c, E]
        self.gradient: Tensor | None = None  # [B, S, E]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._seen.clear()
        if self.is_own:  # the layer's forward runs without the layer's hooks
            yield
            return
        with self._module.register_forward_hook(self._note):
            yield

    def _note(self, module: nn.Module, args: tuple, out: Any) -> None:
        self._seen.append(out[self._index] if isinstance(
            out, (tuple, list)) else out)

    def without(self, out: Any) -> Any:
        """Records output `index`, if it is not None; returns the other ones."""
        if not self.is_own:
            return out
        if not isinstance(out, (tuple, list)) or len(out) < 2:
            raise Unsupported(self._module, "no output beside its hidden "
                              "states", "leave its logits out")
        if out[self._index] is not None:
            self._note(self._module, (), out)
        at = self._index % len(out)
        return (*out[:at], *out[at + 1:])

    @property
    def is_silent(self) -> bool:
        """Whether the layer returned None in all chunks."""
        return self.is_own and not self._parts

    def keep(self, m: int, batch: int) -> None:
        if self._seen or not self.is_own:
            self._parts.append(self._of_chunk(m, batch).detach())

    def keep_whole(self, batch: int, length: int) -> None:
        """Records a forward of all rows, with its autograd graph."""
        self._chunks = [range(length)]
        if self._seen or not self.is_own:
            self._parts.append(self._of_chunk(0, batch))

    def pair(self, m: int, batch: int) -> tuple[Tensor, Tensor] | None:
        """Returns what the replay of chunk `m` made, and its gradient."""
        if self.gradient is None:
            return None
        with torch.enable_grad():
            made = self._of_chunk(m, batch)
        rows = self._chunks[m]
        return (made, self.gradient[:, rows.start:rows.stop]) if (
            made.requires_grad) else None

    def _of_chunk(self, m: int, batch: int) -> Tensor:
        rows = len(self._chunks[m])
        name = type(self._module).__name__
        if len(self._seen) != 1:
            raise Unsupported(name, f"{len(self._seen)} calls of a router in "
                              "one chunk", "leave its logits out")
        [made] = self._seen
        self._seen.clear()  # it may hold the chunk's graph
        self._flat = made.dim() == 2
        if made.shape[:-1] not in ((batch * rows,), (batch, rows)):
            raise Unsupported(name, f"logits of shape {tuple(made.shape)} for "
                              f"{batch} x {rows} rows", "leave them out")
        return made.reshape(batch, rows, -1)

    def whole(self) -> Tensor:
        """Returns all rows, as the module does: [B * S, E] or [B, S, E]."""
        if len(self._parts) != len(self._chunks):
            raise Unsupported(self._module, "a router that did not run",
                              "leave its logits out")
        made = torch.cat(self._parts, 1)
        self._parts.clear()
        return made.flatten(0, 1) if self._flat else made


class Joined(torch.autograd.Function):
    """Joins y and the sides' tensors behind the last layer ([Note: sides])."""

    @staticmethod
    def forward(ctx, sides: Sequence[Side], y: Tensor, *noted: Tensor
                ) -> tuple[Tensor, ...]:
        ctx.sides, ctx.batch = sides, y.shape[0]
        return y.view_as(y), *(n.view_as(n) for n in noted)

    @staticmethod
    def backward(ctx, dy: Tensor, *gradients: Tensor):
        for side, gradient in zip(ctx.sides, gradients):
            side.gradient = gradient.reshape(ctx.batch, -1, gradient.shape[-1])
        # Only tensors of layers that ran plain have a graph of their own.
        return None, dy, *(gradient if needed else None for gradient, needed in
                           zip(gradients, ctx.needs_input_grad[2:]))
