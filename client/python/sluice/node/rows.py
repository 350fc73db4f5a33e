"""Finds which of a layer's arguments have rows, and along which dimension. An
argument is refused if a dimension of it is as long as the sequence and its name
is not known.

[Note: numbered rows] A layer may make positions itself, by
`torch.arange(x.shape[1])`: Llama 4 scales the queries of its layers without
RoPE from row 8,192 on. Within a chunk these positions would start at 0 again,
which a probe of few rows could not detect. So the probe runs such a layer as if
its rows started FAR into a sequence. If this changes the result, the layer's
chunks get their rows' numbers in the sequence; the probe tests those at FAR.
A layer that only the numbers from -FAR on change, or that numbers rows from the
last one on, compares them with the number of rows, which a chunk does not have.
"""
from __future__ import annotations

import inspect
from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from sluice.base import argument_table
from sluice.base.argument_table import PLAIN
from sluice.base.errors import UnknownRows, Unsupported

# Rows; beyond any threshold that a model has. Odd, as rows may alternate.
FAR = (1 << 20) + 1
ROWS: Mapping[str, int] = argument_table.those("rows")
_MASKS, _CACHES = argument_table.those("mask"), argument_table.those("cache")


class Leaf(NamedTuple):
    """One tensor or value among the arguments."""

    name: str  # name of its argument
    value: Any
    dim: int | None  # dimension of rows; None: each chunk gets the whole value
    marker: bool = False  # mask marker: each chunk gets [..., c, c] of it


class Arguments:
    """The arguments of one call other than the hidden states, flattened. Leaves
    that need a gradient are inputs of the layer's autograd node."""

    def __init__(self, layer: nn.Module, step: Any, args: tuple,
                 kwargs: dict[str, Any], declared: Mapping[str, int | None]):
        self._positional = len(args)
        # See [Note: handed tensors] in shared_tensors.
        self.hands = isinstance(kwargs.get(argument_table.HANDED),
                                MutableMapping)
        if self.hands:
            kwargs = {**kwargs, argument_table.HANDED: None}
        self._specs, self.leaves = [], []
        for name, value in named_arguments(layer, args, kwargs):
            if isinstance(value, dict):
                raise Unsupported(layer, f"argument '{name}', a dictionary "
                                  "through which layers hand tensors to each "
                                  "other")
            leaves, spec = pytree.tree_flatten(value)
            self._specs.append((name, spec))
            self.leaves += [leaf_of(layer, name, leaf, step, step.rows,
                                    declared) for leaf in leaves]
        self._needs_grad = [needs_grad(leaf.value) for leaf in self.leaves]

    def chunk(self, rows: range, replaced: list[Tensor | None]
              ) -> tuple[tuple, dict[str, Any]]:
        """Returns (args, kwargs) of `rows`, with `replaced` in place of the
        leaves that need a gradient."""
        given = iter(replaced)
        values = [next(given) if needs else cut(leaf, rows)
                  for leaf, needs in zip(self.leaves, self._needs_grad)]
        out, at = [], 0
        for name, spec in self._specs:
            part = values[at:at + spec.num_leaves]
            out.append((name, part[0] if spec.is_leaf() else
                        pytree.tree_unflatten(part, spec)))
            at += spec.num_leaves
        return (tuple(value for _, value in out[:self._positional]),
                dict(out[self._positional:]))

    def differentiable(self) -> list[Leaf]:
        return [leaf for leaf, needs in zip(self.leaves, self._needs_grad)
                if needs]


def cut(leaf: Leaf, rows: range) -> Any:
    """Returns the given rows of a leaf; all of it if it has one row or none."""
    if leaf.marker:
        return leaf.value[..., :len(rows), :len(rows)]
    if leaf.dim is None or leaf.value.shape[leaf.dim] == 1:
        return leaf.value
    return leaf.value.narrow(leaf.dim, rows.start, len(rows))


def check_hidden(layer: nn.Module, hidden: Any) -> None:
    if not isinstance(hidden, Tensor) or hidden.dim() != 3:
        what = (f"hidden states of shape {tuple(hidden.shape)}" if isinstance(
            hidden, Tensor) else f"hidden states as {type(hidden).__name__}")
        raise Unsupported(layer, f"{what}, of which only [B, S, H] can be cut "
                          "into chunks of rows")


def check_parameters(module: nn.Module) -> None:
    """Refuses weights that replays cannot read: split, quantised, offloaded."""
    gathered = {id(p) for unit in module.modules()
                if isinstance(unit, FSDPModule) for p in unit.parameters()}
    for name, parameter in module.named_parameters():
        if isinstance(parameter, DTensor):
            split = [p for p in parameter.placements if not p.is_replicate()]
            if len(split) > 1 or any(
                    mesh in ("tp", "cp", "ep") for mesh in
                    parameter.device_mesh.mesh_dim_names or ()):
                raise Unsupported(name, "a weight split by tensor parallelism",
                                  "stream the model without it")
            if id(parameter) not in gathered:
                raise Unsupported(name, "a sharded weight (DTensor) that no "
                                  "fully_shard gathers", "shard the model by "
                                  "fully_shard, or stream it without that")
        if type(parameter).__module__.startswith("bitsandbytes"):
            raise Unsupported(name, "a bitsandbytes weight",
                              "load the model without quantisation")
    for name, part in module.named_modules():
        if hasattr(part, "_hf_hook") and any(
            p.is_meta for p in part._parameters.values() if p is not None):
            raise Unsupported(name, "weights that accelerate's offloading "
                              "leaves elsewhere", "load the model without "
                              "offloading")


def needs_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def named_arguments(layer: nn.Module, args: tuple, kwargs: dict[str, Any]
                    ) -> list[tuple[str, Any]]:
    names = [p.name for p in inspect.signature(
                 type(layer).forward).parameters.values()
             if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][2:]
    names += [f"argument {i + 2}" for i in range(len(names), len(args))]
    return [*zip(names, args), *kwargs.items()]


def leaf_of(layer: nn.Module, name: str, value: Any, step: Any, length: int,
            declared: Mapping[str, int | None]) -> Leaf:
    """Returns the leaf of an argument's value. `length`: rows of the step."""
    module = type(layer).__name__
    if name in _CACHES and value is not None:
        raise Unsupported(module, f"a cache ('{name}')", "pass use_cache=False")
    if isinstance(value, Tensor) and step.is_marker(value):
        return Leaf(name, value, None, marker=True)
    if name in _MASKS:
        marker = step.marker_of(value) if isinstance(value, Tensor) else None
        if marker is not None:
            return Leaf(name, marker, None, marker=True)
        # A 2-D mask marks the padding rows for a layer without attention.
        return Leaf(name, value, 1 if isinstance(value, Tensor) and (
            value.dim() == 2 and value.shape[1] == length) else None)
    if isinstance(value, Tensor):
        return _tensor(module, name, value, length, declared)
    if not isinstance(value, PLAIN):
        raise Unsupported(
            module, f"argument '{name}' of type {type(value).__name__}, "
            "through which layers could hand tensors to each other")
    return Leaf(name, value, None)


def _tensor(module: str, name: str, value: Tensor, length: int,
            declared: Mapping[str, int | None]) -> Leaf:
    dim = declared.get(name)
    if dim is None:
        if name not in declared and length > 1 and length in value.shape:
            dims = [d for d, n in enumerate(value.shape) if n == length]
            unknown = UnknownRows(
                module, f"argument '{name}' of shape {tuple(value.shape)}, "
                f"which has the sequence's length {length} and is not known",
                f"if it has rows, say along which dimension: "
                f"stream(…, rows={{'{name}': {dims[0]}}})")
            unknown.argument, unknown.dims = name, tuple(dims)
            raise unknown
        return Leaf(name, value, None)
    if name == "position_ids" and value.dim() > 2:
        raise Unsupported(module, f"position_ids of shape "
                          f"{tuple(value.shape)} (M-RoPE)")
    has = value.shape[dim] if -value.dim() <= dim < value.dim() else 0
    # An argument that the user declares may be a table with unused rows.
    if has not in (1, length) and (name in ROWS or has < length):
        raise Unsupported(
            module, f"argument '{name}' of shape {tuple(value.shape)}, whose "
            f"dimension {dim} should be the sequence's {length} rows")
    return Leaf(name, value, dim)


class Numbered(TorchFunctionMode):
    """Adds `first` to `torch.arange` over as many numbers as a layer has rows.
    `met`: whether there was such a call; `backwards`: one that counts down."""

    def __init__(self, rows: int, first: int):
        super().__init__()
        self._rows, self._first = rows, first
        self.met = self.backwards = False

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is not torch.arange or len(out) != self._rows:
            return out
        step = kwargs.get("step", args[2] if len(args) > 2 else 1)
        self.met |= step == 1
        self.backwards |= step == -1
        return out.add_(self._first) if step == 1 else out
