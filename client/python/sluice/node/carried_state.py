"""Keeps the states that a layer carries along the sequence.

[Note: carried states]
In a gated delta rule, Mamba-2 and a short convolution a row depends on earlier
rows through a state of fixed size and the last inputs of a convolution. In
transformers the layer reads both from the cache that `generate` passes, and
writes the next ones into it. So each chunk runs with a `Cache` of this module.
The states that a chunk starts from stay in the host until backward. The chunk's
replay starts from leaves with these values; their gradients belong to the
previous chunk's final states.

A layer that gets one row takes the code path for a generated token, which
writes its states in place. So no chunk, and no part of one, has a single row,
unless the sequence has only one. Each chunk but the last is a whole number of
blocks of BLOCK rows. The layers' own loops use the same blocks, so that results
are rounded as in the plain model.
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
from sluice.memory.slabs import HostTensor

BLOCK = 64  # rows
LEAST = 2  # minimum rows of the last chunk, and of a part of a chunk

# Kind ("conv", "recurrent"), index of the layer, index of the state in it.
Key: TypeAlias = tuple[str, int, int]


def argument_of(layer: nn.Module) -> str | None:
    return next((name for name in inspect.signature(
        type(layer).forward).parameters if name in those("cache")), None)


class Cache:
    """Stands in for transformers' `Cache` (5.24, cache_utils) during one
    forward of a layer, with only the methods that streamed layers call. A layer
    that calls another method runs whole. `after`: the layer's final states."""

    def __init__(self, before: dict[Key, Tensor]):
        self._before = before
        self.after: dict[Key, Tensor] = {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0
                       ) -> Tensor | None:
        """Returns [B, channels, width], or None at the sequence's start."""
        return self._before.get(("conv", layer_idx, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0
                            ) -> Tensor | None:
        """Returns [B, ...], or None at the sequence's start."""
        return self._before.get(("recurrent", layer_idx, state_idx))

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(self, conv_states: Tensor, layer_idx: int,
                          state_idx: int = 0,
                          conv_kernel_size: int | None = None) -> Tensor:
        """Records the new state. Returns [B, channels, width + c]: the earlier
        state, then the inputs of c rows; at the sequence's start the inputs."""
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

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int,
               **_: object) -> tuple[Tensor, Tensor]:
        """Returns k, v; attention over chunks adds those of earlier rows."""
        return key_states, value_states


class Carried:
    """The carried states of a layer's call; `cache`: the latest chunk's."""

    def __init__(self, layer: nn.Module, arena: HostArena,
                 device: torch.device):
        self._name = type(layer).__name__
        self._arena, self._device = arena, device
        self.argument = argument_of(layer) or ""
        self.cache = Cache({})
        self._kept: list[dict[Key, HostTensor]] = []  # start states, by chunk
        self._leaves: dict[Key, Tensor] = {}  # start states of the replay
        self._gradients: dict[Key, Tensor] = {}  # of the replay's final states

    def first(self, m: int, keeps: bool) -> None:
        """Sets the cache for the first forward of chunk `m`."""
        before = {key: state.contiguous() for key, state in
                  self.cache.after.items()} if m else {}
        if keeps:
            self._kept.append({key: self._arena.put(state)
                               for key, state in before.items()})
        self.cache = Cache(before)

    def again(self, m: int) -> None:
        """Sets the cache for a forward that recomputes k, v, o and lse."""
        self.cache = Cache(self._fetched(m))

    def second(self, m: int) -> None:
        """Sets the cache for the replay of chunk `m`; later chunks go first."""
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
        """Returns the replayed chunk's final states with their gradients."""
        return [(self.cache.after[key], gradient) for key, gradient in
                self._gradients.items() if self.cache.after[key].requires_grad]

    def in_parts(self) -> dict[Key, Tensor]:
        """Returns the start states of the replayed chunk's first part."""
        return {key: leaf.detach() for key, leaf in self._leaves.items()}

    def release(self) -> None:
        while self._kept:
            for host in self._kept.pop().values():
                self._arena.drop(host)

    def _fetched(self, m: int) -> dict[Key, Tensor]:
        return {key: self._arena.get(host, self._device)
                for key, host in self._kept[m].items()}
