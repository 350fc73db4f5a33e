"""Kinds (see `arguments`) for arguments of torch's types."""
from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sluice.base.arguments import Kind, a

MODULE = a(nn.Module, "a torch.nn.Module")
# To a rank outside of a group torch gives an integer in place of the group.
GROUP = Kind(lambda v: isinstance(v, dist.ProcessGroup),
             "a torch.distributed group that this rank is in, as "
             "mesh['sp'].get_group() is")


def rows_of_tokens(said: str = "whole numbers [B, S]") -> Kind:
    return Kind(lambda v: isinstance(v, Tensor) and v.dim() == 2 and not (
        v.is_floating_point() or v.is_complex() or v.dtype == torch.bool),
        said)
