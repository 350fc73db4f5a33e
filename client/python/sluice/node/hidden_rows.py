"""Hidden states [B, S, H] of all rows, written and read chunk by chunk: as one
tensor on the device, or as chunks in host memory behind a stand-in.

[Note: stand-ins]
With hidden states in the host, the tensors that layers pass to each other in
the user's graph, and their gradients, are stand-ins: tensors of the right
shape, dtype and device with one element in memory. The streamed layers find a
stand-in's chunks by its storage, and read each chunk once. The element is NaN,
so that a value computed from it cannot be mistaken for a result; such a value
has other storage, so the next layer refuses it.

If the user passes layers and a group, layers get and return stand-ins also
with hidden states on the device: the user's code between the layers must see
the shape of the whole sequence.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sluice.base.errors import Unsupported
from sluice.memory.arena import HostArena, HostTensor


def stand_in(shape: Sequence[int], dtype: torch.dtype,
             device: torch.device) -> Tensor:
    """Returns a tensor of this shape with one element in memory."""
    made = torch.empty_strided(tuple(shape), (0,) * len(shape), dtype=dtype,
                               device=device)
    # Torch's anomaly mode would report NaN, so there the element is 0.
    made.as_strided((1,), (1,)).fill_(
        0.0 if torch.is_anomaly_check_nan_enabled()
        and torch.is_anomaly_enabled() else float("nan"))
    return made


class DeviceRows:
    """All rows in one tensor on the device, accessed chunk by chunk."""

    def __init__(self, arena: HostArena, chunks: list[range],
                 tensor: Tensor | None = None):
        self._arena, self._chunks, self._tensor = arena, chunks, tensor

    def read(self, m: int) -> Tensor:
        rows = self._chunks[m]
        assert self._tensor is not None
        return self._tensor[:, rows.start:rows.stop]

    def keep(self, m: int) -> HostTensor:
        """Returns the chunk in the host, owned by the caller."""
        return self._arena.put(self.read(m))

    def write(self, m: int, part: Tensor) -> None:
        """part: [B, c, H]."""
        if self._tensor is None:
            self._tensor = part.new_empty(
                part.shape[0], self._chunks[-1].stop, *part.shape[2:])
        self.read(m).copy_(part)

    def prefetch(self, m: int) -> None:
        """Does nothing: all chunks are on the device."""

    def drop(self, m: int) -> None:
        """Does nothing: the tensor is freed as a whole."""

    def scale(self, factor: Tensor) -> None:
        self._tensor.mul_(factor)

    def tensor(self) -> Tensor:
        return self._tensor


class StandingRows(DeviceRows):
    """Rows on the device behind a stand-in; freed with this object."""

    def __init__(self, place: Standing):
        super().__init__(place.arena, place.chunks)
        self._place = place

    def tensor(self) -> Tensor:
        return self._place.standing(self, self._tensor.shape,
                                    self._tensor.dtype)


class HostRows:
    """Chunks in the host; freed with this object, or earlier by `drop`."""

    def __init__(self, place: InHost):
        self._place = place
        self._kept: list[HostTensor | None] = [None] * len(place.chunks)
        self._scale: Tensor | None = None

    def read(self, m: int) -> Tensor:
        part = self._place.arena.get(self._kept[m], self._place.device)
        return part if self._scale is None else part.mul_(self._scale)

    def keep(self, m: int) -> HostTensor:
        kept, self._kept[m] = self._kept[m], None
        return kept  # type: ignore[return-value]  # called once per chunk

    def write(self, m: int, part: Tensor) -> None:
        part = part.detach()
        self._shape, self._dtype = part.shape, part.dtype
        self._kept[m] = self._place.arena.put(part)

    def prefetch(self, m: int) -> None:
        self._place.arena.prefetch(self._kept[m], self._place.device)

    def drop(self, m: int) -> None:
        self._place.arena.drop(self.keep(m))

    def scale(self, factor: Tensor) -> None:
        """Multiplies later reads by `factor`, a scalar tensor."""
        self._scale = factor if self._scale is None else self._scale * factor

    def tensor(self) -> Tensor:
        """Returns a stand-in, valid until it is passed to `InHost.reading`."""
        return self._place.standing(self, self._shape, self._dtype)


# Keeps the hidden states of one step on the device, without stand-ins.
class OnDevice:
    def __init__(self, arena: HostArena, chunks: list[range]):
        self._arena, self.chunks = arena, chunks

    def reading(self, x: Tensor, name: str) -> DeviceRows:
        return DeviceRows(self._arena, self.chunks, x)

    def writing(self) -> DeviceRows:
        return DeviceRows(self._arena, self.chunks)


class Standing:
    """Keeps the hidden states of one step behind stand-ins, on the device.
    `length`: rows of a stand-in; None: those of the chunks."""

    def __init__(self, arena: HostArena, chunks: list[range],
                 device: torch.device, length: int | None = None):
        self.arena, self.chunks, self.device = arena, chunks, device
        self._length = length or chunks[-1].stop
        # By address of the storage, which the stored stand-in keeps reserved.
        self._standing: dict[int, tuple[Tensor, Rows]] = {}

    def reading(self, x: Tensor, name: str) -> Rows:
        """Removes and returns the rows behind the stand-in `x`, which can be
        read once. `name`: the module that reads them."""
        found = self._standing.pop(x.untyped_storage().data_ptr(), None)
        if found is None or found[0].shape != x.shape:
            raise Unsupported(
                name, "hidden states, or gradients of them, that are changed "
                "between layers or used twice", 'stream it with '
                'hidden="device" and without a group')
        return found[1]

    def writing(self) -> Rows:
        return StandingRows(self)

    def forget(self) -> None:
        """Frees unread rows, even if something still holds the step."""
        self._standing.clear()

    def standing(self, rows: Rows, shape: Sequence[int], dtype: torch.dtype
                 ) -> Tensor:
        """Returns a stand-in of this shape, but with `length` rows."""
        batch, _, *width = shape
        made = stand_in((batch, self._length, *width), dtype, self.device)
        # Detached, because this reference must not keep the graph.
        self._standing[made.untyped_storage().data_ptr()] = (
            made.detach(), rows)
        return made


# Keeps the hidden states of one step behind stand-ins, in the host.
class InHost(Standing):
    def writing(self) -> HostRows:
        return HostRows(self)


Rows = DeviceRows | HostRows


class Whole(torch.autograd.Function):
    """Joins the chunks behind a stand-in into one tensor [B, S, H] on the
    device: chunk m becomes its rows `rows[m]`; all other rows are 0."""

    @staticmethod
    def forward(ctx, place: Standing, rows: list[range], x: Tensor) -> Tensor:
        ctx.place, ctx.rows = place, rows
        return _joined(place, rows, x, "the decoder's output")

    @staticmethod
    def backward(ctx, dy: Tensor):
        return None, None, _parted(ctx.place, ctx.rows, dy)


class Parted(torch.autograd.Function):
    """Splits a tensor into chunks behind a stand-in: the reverse of `Whole`."""

    @staticmethod
    def forward(ctx, place: Standing, rows: list[range], x: Tensor) -> Tensor:
        ctx.place, ctx.rows = place, rows
        return _parted(place, rows, x)

    @staticmethod
    def backward(ctx, dy: Tensor):
        return None, None, _joined(ctx.place, ctx.rows, dy, "the layers' input")


def is_stand_in(x: Tensor) -> bool:
    return x.numel() > 1 and not any(x.stride())


def _joined(place: Standing, rows: list[range], x: Tensor, name: str) -> Tensor:
    source = place.reading(x, name)
    few = sum(map(len, rows)) < x.shape[1]
    out = (torch.zeros if few else torch.empty)(
        x.shape, dtype=x.dtype, device=x.device)
    for m, own in enumerate(rows):
        out[:, own.start:own.stop] = source.read(m)
        source.drop(m)
    return out


def _parted(place: Standing, rows: list[range], x: Tensor) -> Tensor:
    made = place.writing()
    for m, own in enumerate(rows):
        made.write(m, x[:, own.start:own.stop])
    return made.tensor()
