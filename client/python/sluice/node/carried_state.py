"""States that a layer hands along the sequence.

[Note: carried states]
In a gated delta rule, in Mamba-2 and in a short convolution a row depends on
those before it by a state of fixed size and by the last inputs of a
convolution. Such a layer of transformers takes both from the cache that
`generate` gives it, and leaves there what the next rows begin with. So each
chunk runs with a cache of ours: it answers what the chunk before has left and
notes what this one leaves. What a chunk began with is in the host until
backward; its second forward begins with leaves of that, and what these get as
gradients is the gradient of what the chunk before it leaves.

A layer takes one row for a token that is generated and writes its states in
place. So no chunk, and no part of one, has a single row, but where that is the
sequence. Chunks are whole blocks, as the layers' own loops have them, so that
rounding is the plain model's.
"""
from __future__ import annotations

import inspect
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sluice.base.argument_table import those
from sluice.base.errors import Unsupported
from sluice.memory.arena import HostArena
from sluice.memory.host_tensor import HostTensor

BLOCK = 64  # rows
LEAST = 2  # rows of a chunk

# What it is ("conv", "recurrent"), the layer's index in the cache and its own.
Key: TypeAlias = tuple[str, int, int]


def argument_of(layer: nn.Module) -> str | None:
    return next((name for name in inspect.signature(
        type(layer).forward).parameters if name in those("cache")), None)


def whole_blocks(rows: int) -> int:
    """So many rows or more."""
    return -(-rows // BLOCK) * BLOCK


class Cache:
    """What a layer takes for transformers' `Cache` (5.23, cache_utils), for
    one forward. It has the methods that layers call, and no others: what asks
    for more is refused.

    Attributes:
        after: what the layer left.
    """

    def __init__(self, before: dict[Key, Tensor]):
        self._before = before
        self.after: dict[Key, Tensor] = {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0
                       ) -> Tensor | None:
        """[B, channels, width], or None at the sequence's begin."""
        return self._before.get(("conv", layer_idx, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0
                            ) -> Tensor | None:
        """[B, ...], or None at the sequence's begin."""
        return self._before.get(("recurrent", layer_idx, state_idx))

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(self, conv_states: Tensor, layer_idx: int,
                          state_idx: int = 0,
                          conv_kernel_size: int | None = None) -> Tensor:
        """[B, channels, width + c] of the inputs of c rows [B, channels, c];
        at the sequence's begin these alone."""
        key = "conv", layer_idx, state_idx
        before = self._before.get(key)
        width = conv_kernel_size or conv_states.shape[-1]
        inputs = conv_states if before is None else torch.cat(
            [before, conv_states], dim=-1)
        self.after[key] = F.pad(inputs, (max(
            0, width - inputs.shape[-1]), 0))[..., -width:]
        return inputs

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int,
                               state_idx: int = 0) -> Tensor:
        self.after["recurrent", layer_idx, state_idx] = recurrent_states
        return recurrent_states

    def update(self, key_states: Tensor, value_states: Tensor,
               layer_idx: int) -> tuple[Tensor, Tensor]:
        """Called by attention beside a state: k, v of earlier rows are ours."""
        return key_states, value_states


class Carried:
    """The states of one call of a layer.

    Attributes:
        cache: of the chunk that runs, or ran last.
    """

    def __init__(self, layer: nn.Module, arena: HostArena,
                 device: torch.device):
        self._name = type(layer).__name__
        self._arena, self._device = arena, device
        self.argument = argument_of(layer) or ""
        self.cache = Cache({})
        # What each chunk began with.
        self._kept: list[dict[Key, HostTensor]] = []
        self._leaves: dict[Key, Tensor] = {}  # of the chunk replayed last
        self._gradients: dict[Key, Tensor] = {}  # of what the chunk leaves

    def first(self, m: int, keeps: bool) -> None:
        """Before the first forward of chunk `m`."""
        before = {key: state.contiguous() for key, state in
                  self.cache.after.items()} if m else {}
        if keeps:
            self._kept.append({key: self._arena.put(state)
                               for key, state in before.items()})
        self.cache = Cache(before)

    def again(self, m: int) -> None:
        """Before one that only makes attention's k, v, o and lse again."""
        self.cache = Cache(self._fetched(m))

    def second(self, m: int) -> None:
        """Before the replay of chunk `m`, after those of later chunks."""
        self._gradients = {}
        for key, leaf in self._leaves.items():
            if leaf.grad is not None:
                self._gradients[key] = leaf.grad
            elif leaf.requires_grad:
                raise Unsupported(
                    self._name, f"a {key[0]} state that it leaves, and that "
                    "its next rows do not begin with (Mamba-1 takes none)")
        self._leaves = {
            key: state.requires_grad_(state.is_floating_point())
            for key, state in self._fetched(m).items()}
        for host in self._kept.pop().values():
            self._arena.drop(host)
        if m:
            for host in self._kept[-1].values():
                self._arena.prefetch(host, self._device)
        self.cache = Cache(self._leaves)

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """What the replayed chunk left, and the gradient of that."""
        return [(self.cache.after[key], gradient) for key, gradient in
                self._gradients.items() if self.cache.after[key].requires_grad]

    def in_parts(self) -> dict[Key, Tensor]:
        """What a first part of the replayed chunk begins with."""
        return {key: leaf.detach() for key, leaf in self._leaves.items()}

    def release(self) -> None:
        """Gives back what is still in the host. Safe to call again."""
        while self._kept:
            for host in self._kept.pop().values():
                self._arena.drop(host)

    def _fetched(self, m: int) -> dict[Key, Tensor]:
        return {key: self._arena.get(host, self._device)
                for key, host in self._kept[m].items()}
