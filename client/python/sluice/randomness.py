"""The random state of a chunk: kept where the chunk drew from it.

A layer that drops out or samples draws other numbers when its forward runs a
second time, and the gradient would be of another function. So each chunk
that moved a generator keeps the state from before it; the replay starts from
that state, and what the user draws afterwards is as if there had been none.
"""
from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class RandomState:
    """The states of the CPU's generator and of the one of `device`."""

    def __init__(self, device: torch.device):
        self._device = device
        self._cpu = torch.get_rng_state()
        self._own = _module(device).get_rng_state(device) if _has_own(
            device) else None

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._own is not None:
            _module(self._device).set_rng_state(self._own, self._device)

    def number(self) -> int:
        """32 bits of it."""
        return zlib.crc32(bytes(self._cpu.tolist()))

    def moved(self) -> bool:
        """Whether anything was drawn since this was taken."""
        now = RandomState(self._device)
        return not _same(self._cpu, now._cpu) or not _same(self._own, now._own)


@contextlib.contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """What is drawn inside leaves no trace outside."""
    before = RandomState(device)
    try:
        yield
    finally:
        before.restore()


@contextlib.contextmanager
def apart(rank: int, device: torch.device) -> Iterator[None]:
    """Inside, each rank of a group draws numbers of its own, although all may
    have been seeded alike. Outside, what is drawn next is another number if
    some were drawn inside, the same on ranks that were the same before."""
    before = RandomState(device)
    _seed(before.number() * 4096 + rank, device)
    began = RandomState(device)
    try:
        yield
    finally:
        _leave(before, began, device)


@contextlib.contextmanager
def rejoined() -> Iterator[Callable[[int, torch.device], None]]:
    """Inside, ranks that call what this yields with the same seed draw the
    same numbers from there on. Outside as with `apart`."""
    left: list[tuple[RandomState, RandomState, torch.device]] = []

    def begin(seed: int, device: torch.device) -> None:
        before = RandomState(device)
        _seed(seed, device)
        left.append((before, RandomState(device), device))

    try:
        yield begin
    finally:
        while left:
            _leave(*left.pop())


class Still(TorchDispatchMode):
    """Inside, torch's random functions give always the same and draw nothing,
    so that a layer that drops out or samples can be compared with itself."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        constant = _CONSTANTS.get(func.overloadpacket.__name__)
        if constant is None:
            return func(*args, **(kwargs or {}))
        state = RandomState(torch.device("cpu"))
        out = func(*args, **(kwargs or {}))
        state.restore()
        if constant == "likeliest":
            return args[0].topk(out.shape[-1]).indices
        return out.fill_(constant)


# What each gives in the place of its random numbers. Dropout is made of
# bernoulli_ outside of CUDA.
_CONSTANTS = {
    "bernoulli_": 1, "bernoulli": 1, "rand": 0.5, "rand_like": 0.5,
    "uniform_": 0.5, "uniform": 0.5, "randn": 0.3, "randn_like": 0.3,
    "normal_": 0.3, "normal": 0.3, "exponential_": 1.0, "exponential": 1.0,
    "randint": 0, "randint_like": 0, "multinomial": "likeliest",
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


def _seed(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)
    if _has_own(device):
        _module(device).manual_seed(seed)


def _module(device: torch.device):
    return torch.get_device_module(device)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or torch.equal(a, b)
