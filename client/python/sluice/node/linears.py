"""Runs linear layers in a replay so that the gradients of their weights are
added up inside the matrix product.

[Note: added inside] Autograd creates a gradient of each weight for each chunk
and adds it to the sum. A chunk has few rows, so these passes over memory of the
weight's size take long compared with the products. So plain linear layers run
in a replay as `Product`: in its backward the matrix product itself adds to
torch's own sum, `.grad` of the weight's alias. The gradient is returned to
torch instead if no sum exists (first chunk), if the weight is no leaf or has a
hook, and within torch.autograd.grad.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sluice.base import swapped


# The forward of a plain linear layer in a replay.
class Linear:
    def __init__(self, layer: nn.Linear):
        self._layer = layer

    def __call__(self, input: Tensor) -> Tensor:
        layer = self._layer
        return Product.apply(input, layer.weight, layer.bias, F.linear) if (
            is_plain_call(layer, input)) else nn.Linear.forward(layer, input)


class Product(torch.autograd.Function):
    """Autograd function of x @ weight.T + bias, computed by `make`."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None,
                make: Callable) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = make(x, weight, bias)
        # The layer may write y in place, which torch refuses for a view.
        return torch.ops.aten._unsafe_view(y, y.shape) if y._is_view() else y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        rows = dy.reshape(-1, dy.shape[-1])
        return ((rows @ weight).view(x.shape) if of_x else None,
                _of_weight(ctx, rows, x, weight) if of_weight else None,
                rows.sum(0) if of_bias else None, None)


def _of_weight(ctx: Product, rows: Tensor, x: Tensor, weight: Tensor
               ) -> Tensor | None:
    """Returns the weight's gradient, or None if it was added to `.grad`."""
    x = x.reshape(-1, x.shape[-1])
    if not weight.is_leaf or weight.grad is None or (
            weight._backward_hooks or weight._post_accumulate_grad_hooks
            or not _would_be_added(ctx)):
        return rows.t() @ x
    weight.grad.addmm_(rows.t(), x)
    return None


def _would_be_added(ctx: Product) -> bool:
    """Returns whether torch would add the gradient to `.grad`."""
    try:
        return torch._C._will_engine_execute_node(ctx.next_functions[1][0])
    except RuntimeError:  # raised within torch.autograd.grad
        return False


def in_place(owners: Iterable[nn.Module]) -> contextlib.AbstractContextManager:
    """Within the block, plain linear layers among `owners` run as `Linear`."""
    return swapped.items(*(
        (vars(m), "forward", Linear(m)) for m in dict.fromkeys(owners)
        if is_plain(m) and "forward" not in vars(m)))


def is_plain(module: nn.Module) -> bool:
    return type(module) is nn.Linear and isinstance(
        vars(module).get("forward"), (Linear, type(None))) and (
        type(module.weight) in (Tensor, nn.Parameter))


def is_plain_call(layer: nn.Linear, x: Tensor) -> bool:
    """Returns whether the call has no cast, transform, tracing or subclass."""
    return type(x) in (Tensor, nn.Parameter) and (
        x.dtype == layer.weight.dtype) and not (
            torch.is_autocast_enabled(x.device.type)
            or torch._C._are_functorch_transforms_active()
            or torch.compiler.is_compiling())
