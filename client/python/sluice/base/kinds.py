"""Kinds of arguments (`arguments`) that are torch's."""
from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sluice.base.arguments import Kind, a

MODULE = a(nn.Module, "a torch.nn.Module")
# A handle that torch gives to ranks outside of a group is a number.
GROUP = Kind(lambda v: isinstance(v, dist.ProcessGroup),
             "a torch.distributed group that this rank is in, as "
             "mesh['sp'].get_group() is")


def rows_of_tokens(said: str = "whole numbers [B, S]") -> Kind:
    return Kind(lambda v: isinstance(v, Tensor) and v.dim() == 2 and not (
        v.is_floating_point() or v.is_complex() or v.dtype == torch.bool),
        said)
