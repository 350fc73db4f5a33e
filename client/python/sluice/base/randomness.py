"""Saves and restores random states. Each chunk that advanced a generator keeps
the state from before it, and its replay starts from that state: with other
numbers the gradient would be that of another function. The replay does not
change what the user draws later."""
from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class RandomState:
    """A snapshot of the generators of the CPU and of `device`."""

    def __init__(self, device: torch.device):
        self._device = device
        self._cpu = torch.get_rng_state()
        self._own = torch.get_device_module(device).get_rng_state(
            device) if _has_own(device) else None

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._own is not None:
            torch.get_device_module(self._device).set_rng_state(
                self._own, self._device)

    def number(self) -> int:
        return zlib.crc32(bytes(self._cpu.tolist()))

    def moved(self) -> bool:
        """Returns whether a number was drawn since this snapshot."""
        now = RandomState(self._device)
        return not _same(self._cpu, now._cpu) or not _same(self._own, now._own)


@contextlib.contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    before = RandomState(device)
    try:
        yield
    finally:
        before.restore()


@contextlib.contextmanager
def apart(rank: int, device: torch.device) -> Iterator[None]:
    """Inside, each rank of a group draws different numbers, even with one seed.
    On exit the former state is restored, and advanced by one draw if a number
    was drawn: ranks with equal states before have equal states after."""
    with rejoined() as begin:
        begin(RandomState(device).number() * 4096 + rank, device)
        yield


@contextlib.contextmanager
def rejoined() -> Iterator[Callable[[int, torch.device], None]]:
    """Yields a function that reseeds: ranks that call it with the same seed
    draw the same numbers from then on. On exit states are as after `apart`."""
    left: list[tuple[RandomState, RandomState, torch.device]] = []

    def begin(seed: int, device: torch.device) -> None:
        before = RandomState(device)
        torch.default_generator.manual_seed(seed)
        if _has_own(device):
            torch.get_device_module(device).default_generators[
                device.index].manual_seed(seed)
        left.append((before, RandomState(device), device))

    try:
        yield begin
    finally:
        while left:
            _leave(*left.pop())


class Still(TorchDispatchMode):
    """Makes torch's random functions return fixed values and draw nothing, so
    that a layer that draws can be compared with itself."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten.native_dropout.default:
            x, p = args[:2]
            return x * (1 / (1 - p)), torch.ones_like(x, dtype=torch.bool)
        still = _STILL.get(func.overloadpacket.__name__.rstrip("_"))
        if still is None:
            return func(*args, **kwargs)
        state = RandomState(next((a.device for a in args if isinstance(
            a, Tensor)), torch.device(kwargs.get("device") or "cpu")))
        out = func(*args, **kwargs)
        state.restore()
        given = {**{a.name: a.default_value for a in func._schema.arguments
                    if a.has_default_value()},
                 **{a.name: value for a, value in zip(
                     func._schema.arguments, args)}, **kwargs}
        return out.copy_(torch.as_tensor(still(given, out)))


# Maps each random function to its fixed result. The result depends on the
# function's arguments, so that a comparison notices arguments that depend on
# the number of rows. Dropout calls bernoulli_, on CUDA native_dropout.
_STILL: dict[str, Callable[[dict, Tensor], Any]] = {
    "bernoulli": lambda given, out: 1,
    "rand": lambda given, out: 0.5,
    "rand_like": lambda given, out: 0.5,
    "uniform": lambda given, out: (
        0.25 * given["from"] + 0.75 * given["to"]),
    "randn": lambda given, out: 0.3,
    "randn_like": lambda given, out: 0.3,
    "normal": lambda given, out: given["mean"] + 0.3 * given["std"],
    "exponential": lambda given, out: 1 / given["lambd"],
    "randint": lambda given, out: given.get("low", 0),
    "randint_like": lambda given, out: given.get("low", 0),
    "multinomial": lambda given, out: given["self"].topk(
        out.shape[-1]).indices,
}


def _leave(before: RandomState, began: RandomState,
           device: torch.device) -> None:
    moved = began.moved()
    before.restore()
    if moved:
        torch.rand(())
        if _has_own(device):
            torch.rand((), device=device)


def _has_own(device: torch.device) -> bool:
    return device.type not in ("cpu", "meta")


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or torch.equal(a, b)
