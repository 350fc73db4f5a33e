"""A rank's rows of shared sequences for the user's own loss, and a loader that
gives all ranks of a group the same batches.

[Note: shared sequences]
With a group of P ranks, `loss` is the mean over the labels of the whole
sequences, the same on each rank. A parameter's gradient on one rank is P times
the contribution of that rank's rows, so that the *average* over the ranks, as
DDP and FSDP2 compute it, is the gradient of `loss`. Without DDP and FSDP2,
average over the group:

    for p in model.parameters():
        torch.distributed.all_reduce(p.grad, group=group)
        p.grad /= P

Without `labels` the model returns the output of this rank's own rows.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sluice.base import argument_table
from sluice.base.argument_table import GROUP, ROWS_OF_TOKENS
from sluice.base.arguments import NONE, Kind, a, invalid, takes
from sluice.ranks.groups import Ranks

SHARDED = {"input_ids": ROWS_OF_TOKENS, "labels": ROWS_OF_TOKENS | NONE,
           "position_ids": ROWS_OF_TOKENS | NONE}


@dataclass(frozen=True)
class Shard:
    """One rank's rows of whole sequences [B, S], in the order of a streamed
    model's output. Without a group, or if the sequence is too short to be
    dealt, these are all rows.

    `mean` computes the loss of the whole sequences.
    """

    input_ids: Tensor  # [B, own rows]
    position_ids: Tensor  # [1 or B, own rows], positions in the whole sequence
    shift_labels: Tensor | None  # [B, own rows]; -100: ignored
    count: Tensor | None  # (): number of labels but -100, in all rows
    _ranks: Ranks | None = field(repr=False)

    @takes("Shard.mean", total=Kind(
        lambda v: isinstance(v, Tensor) and v.dim() == 0
        and v.is_floating_point(), "the sum over this rank's rows, a tensor "
        "of one number"))
    def mean(self, total: Tensor) -> Tensor:
        """Returns the loss () of the whole sequences, given the sum () over
        this rank's rows. Its gradients are those of a streamed model's own
        loss. A collective."""
        if self.count is None:
            raise invalid("Shard.mean: shard() was given no labels to count")
        if self._ranks is not None:
            total = self._ranks.sum(total)
        return total / self.count


def shard(ranks: Ranks | None, own: Tensor | None, input_ids: Tensor,
          labels: Tensor | None, position_ids: Tensor | None) -> Shard:
    """Returns the rows `own` (None: all) of whole sequences [B, S], with labels
    shifted before the rows are cut."""
    _check_shapes(input_ids, labels, position_ids)
    if position_ids is None:
        position_ids = torch.arange(input_ids.shape[1],
                                    device=input_ids.device)[None]
    shifted = None if labels is None else argument_table.shifted(labels)
    count = None if labels is None else (
        shifted != argument_table.IGNORED).sum()

    def cut(rows: Tensor | None) -> Tensor | None:
        return rows if rows is None or own is None else rows.index_select(
            1, own.to(rows.device))

    return Shard(cut(input_ids), cut(position_ids), cut(shifted), count,
                 None if own is None else ranks)


def _check_shapes(input_ids: Tensor, labels: Tensor | None,
                  position_ids: Tensor | None) -> None:
    batch, length = input_ids.shape
    for name, rows, batches in (("labels", labels, (batch,)),
                                ("position_ids", position_ids, (1, batch))):
        if rows is not None and (rows.shape[0] not in batches
                                 or rows.shape[1] != length):
            raise invalid(f"shard: {name} of shape {tuple(rows.shape)}: as "
                          f"input_ids, {tuple(input_ids.shape)}")


class same_rows:
    """A loader that gives all ranks of a group the same batches.

    Loaders of data parallel training give each rank different batches. This
    one gives every rank of the group the batches of all ranks' loaders in
    turn, so that the ranks together train on each batch once:

        for batch in sluice.same_rows(loader, group): …

        class Shared(Trainer):
            def get_train_dataloader(self):
                return sluice.same_rows(super().get_train_dataloader(), group)

    Batches are sent between ranks as pickled objects, so their tensors should
    be on the CPU. The length is the loader's times the size of the group;
    other attributes are the loader's. Iterating is a collective.
    """

    @takes("same_rows", loader=a(Iterable, "a loader of batches"),
           group=GROUP)
    def __init__(self, loader: Iterable[Any], group: dist.ProcessGroup):
        self._loader, self._group = loader, group

    def __iter__(self) -> Iterator[Any]:
        size = dist.get_world_size(self._group)
        rank = dist.get_rank(self._group)
        own, more = iter(self._loader), True
        while more:
            more = False
            found = next(((True, batch) for batch in own), (False, None))
            for source in range(size):
                told: list[Any] = [found if source == rank else None]
                dist.broadcast_object_list(told, group=self._group,
                                           group_src=source)
                some, batch = told[0]
                more |= some
                if some:
                    yield batch

    @property
    def batch_sampler(self) -> same_rows | None:
        """Indices of the batches. A Trainer that resumes within an epoch makes
        another loader of them, which must not be this rank's own."""
        own = self._loader.batch_sampler  # type: ignore[attr-defined]
        return None if own is None else same_rows(own, self._group)

    def __len__(self) -> int:
        loader: Any = self._loader  # TypeError if it has no length
        return len(loader) * dist.get_world_size(self._group)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)
