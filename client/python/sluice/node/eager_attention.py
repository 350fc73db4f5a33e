"""Replaces attention that a layer computes with torch's functions, not through
transformers' registry: by F.scaled_dot_product_attention, or written out as
softmax(q k^T * scale + mask) v.

[Note: scores that are not computed]
A layer that computes a softmax makes no call for the stream to answer, and its
scores of all rows with all keys would not fit into memory. So the product of a
chunk's q and k is not computed: a `Scores` stands for it and records what the
layer does with it (a scale, a mask, the softmax). When the layer multiplies the
`Scores` with v, all arguments of an attention call are known. If the layer uses
the product for something else, it is computed then. Operations on scores that
attention over chunks does not support (a bias, a mask of unknown origin) are
refused.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sluice.attention import blocks
from sluice.attention.intervals import Intervals
from sluice.attention.masks import MASKED, find
from sluice.attention.over_chunks import one_dtype, refuse_dropout
from sluice.base.errors import Unsupported
from sluice.node.calls import Standing
from sluice.node.layer import running
from sluice.node.step import current
from sluice.plan.products import storage


class Cut(TorchFunctionMode):
    """Within the block, the stream computes the running layer's attention."""

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if any(issubclass(t, Scores) for t in types):
            return apply(func, args, kwargs)
        scores = product(func, args, kwargs)
        plain = None if scores is None else current().plain
        if plain is not None:
            plain.writes_scores()
        return func(*args, **kwargs) if scores is None else scores


def _attention(query: Tensor, key: Tensor, value: Tensor,
               attn_mask: Tensor | None = None, dropout_p: float = 0.0,
               is_causal: bool = False, scale: float | None = None,
               enable_gqa: bool = False) -> Tensor:
    """Stands in for F.scaled_dot_product_attention: returns o [B, H, c, Dv] for
    q [B, H, c, D], k [B, Hkv, c, D], v [B, Hkv, c, Dv] of one chunk."""
    call = running()
    name = type(call.module).__name__
    if dropout_p:
        refuse_dropout(call.module, dropout_p)
    if query.dim() != 4 or key.shape[2] != query.shape[2]:
        raise Unsupported(name, f"attention of q {tuple(query.shape)} to k "
                          f"{tuple(key.shape)} in one chunk")
    # Models pass no is_causal for a single row, which sees itself anyway; the
    # probe has checked calls with more rows.
    one = attn_mask is None and query.shape[2] == 1
    seen = current().mask_of(call.module, attn_mask, is_causal or one)
    scores = blocks.Scores(query.shape[-1] ** -0.5 if scale is None else scale)
    query, key, value = one_dtype(query, key, value)
    return call.attend(query, key, value, seen, scores, None)


@dataclass(frozen=True, eq=False)
class Scores(Standing):
    """Stands for scores [B, H, c, c], or [B * H, c, c], of one chunk's rows
    with its own keys, and after the softmax for attention's weights. Immutable.

    q is [B, H, c, D], or [B * H, c, D]; k like q, or with one head for all.
    """

    q: Tensor
    k: Tensor
    shape: torch.Size
    dtype: torch.dtype
    scale: float = 1.0
    heads: tuple[int, int] | None = None  # B and H of [B * H, ...], if known
    seen: tuple[Intervals, ...] = ()  # masks; a row sees their intersection
    times: Tensor | None = None  # zeros and ones that multiply the scores
    weights: bool = False  # whether the softmax was applied

    @property
    def device(self) -> torch.device:
        return self.q.device

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    # --- operations of layers on scores -------------------------------------

    def mul(self, other: Any) -> Any:
        factor = _number(other)
        if factor is not None and not self.weights and (
                factor > 0 or not self.seen):
            return replace(self, scale=self.scale * factor)
        if self._is_bare() and _is_zeros_and_ones(other):
            return replace(self, times=other)
        return self.computed("mul") * other

    def div(self, other: Any) -> Any:
        number = _number(other)
        if number is None or number == 0:
            return self.computed("div") / other
        return self.mul(1 / number)

    def add(self, other: Any) -> Any:
        if self.times is not None and _is_complement(other, self.times):
            return replace(self, times=None).masked(self.times)
        if not self.weights and self.times is None and (
                isinstance(other, Tensor) and current().is_marker(other)):
            return self.masked(other)
        if self._is_bare() and isinstance(other, Tensor):
            running().biased = True
        return self.computed("add") + other

    def where(self, seen: Tensor, other: Any) -> Any:
        """torch.where(seen, self, other)."""
        number = _number(other)
        if not self.weights and self.times is None and (
                number is not None and number <= MASKED and _is_mask(seen)):
            return self.masked(seen)
        return torch.where(seen, self.computed("where"), other)

    def maximum(self, other: Any) -> Any:
        number = _number(other)
        if number is not None and number <= torch.finfo(self.dtype).min:
            return self
        return torch.maximum(self.computed("maximum"), other)

    def softmax(self, dim: int | None = None, _stacklevel: int = 3,
                dtype: torch.dtype | None = None) -> Any:
        if dim in (-1, self.dim() - 1) and self.times is None and (
                not self.weights):
            return replace(self, weights=True, dtype=dtype or self.dtype)
        return torch.softmax(self.computed("softmax"), dim, dtype)

    def dropout(self, p: float = 0.5, training: bool = True,
                inplace: bool = False) -> Any:
        if p == 0 or not training:
            return self
        if self.weights:
            refuse_dropout(running().module, p)
        return torch.dropout(self.computed("dropout"), p, training)

    def to(self, *args: Any, **kwargs: Any) -> Scores:
        kinds = [v for v in (*args, *kwargs.values())
                 if isinstance(v, torch.dtype)]
        return replace(self, dtype=kinds[0]) if kinds else self

    def float(self) -> Scores:
        return self.to(torch.float32)

    def contiguous(self) -> Scores:
        return self

    def view(self, *shape: Any) -> Any:
        made = torch.empty(self.shape, device="meta").view(*shape).shape
        if made[-2:] != self.shape[-2:] or len(made) not in (3, 4):
            return self.computed("view").view(*shape)
        heads = tuple(made[:2]) if len(made) == 4 else self.heads
        return replace(self, shape=made, heads=heads)

    def matmul(self, v: Any) -> Any:
        """Returns attention's result in place of weights @ v."""
        if not self.weights:
            return self.computed("matmul") @ v
        if not self.seen:
            raise Unsupported(_layer(), "attention in both directions")
        q, k, v_ = (self._by_head(x) for x in (self.q, self.k, v))
        # Layers may compute scores in fp32 while v is narrower.
        q, k, v_ = one_dtype(q, k, v_.to(q.dtype))
        o = running().attend(q, k, v_, _all_of(self.seen),
                             blocks.Scores(self.scale), None)
        return o.to(v.dtype).reshape(*self.shape[:-1], v.shape[-1])

    bmm = __matmul__ = matmul
    max = maximum
    reshape = view
    __mul__ = __rmul__ = rmul = mul
    __truediv__ = true_divide = truediv = div
    __add__ = __radd__ = radd = add

    def masked(self, mask: Tensor) -> Scores:
        if mask.dim() > self.dim():  # it would add a dimension to the scores
            self.computed("add", never=True)
        here = current()
        found: Any = (
            here.mask_of(running().module, mask, False)
            if here.is_marker(mask) else _intervals_of(mask))
        return replace(self, seen=(*self.seen, found))

    def computed(self, name: str, never: bool = False) -> Tensor:
        """Computes the scores for the operation `name`. Raises `Unsupported` if
        they have a mask or a softmax already, or if `never`."""
        if never or not self._is_bare():
            raise Unsupported(
                _layer(), f"attention written out with '{name}' of its scores "
                "or weights, which never exist here",
                "load the model with attn_implementation='sdpa', if it has "
                "that, or do not stream it")
        # Not by a matrix product, which would be intercepted again.
        made = torch.einsum("...id,...jd->...ij", self.q, self.k) * self.scale
        return made.to(self.dtype).reshape(self.shape)

    def _is_bare(self) -> bool:
        return not self.seen and not self.weights and self.times is None

    def _by_head(self, x: Tensor) -> Tensor:
        """Returns [B * H, c, D] as [B, H, c, D], or with one head per batch row
        if B and H are not known; x itself if it is 4-D."""
        if x.dim() == 4:
            return x
        return x[:, None] if self.heads is None else x.view(
            *self.heads, *x.shape[-2:])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("_"):
            _refuse_in_place(name)
        return getattr(self.computed(name), name)

    def __setitem__(self, *_: Any) -> None:
        _refuse_in_place("[…] =")

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        return apply(func, args, kwargs or {})


def product(func: Callable, args: tuple, kwargs: dict[str, Any]
            ) -> Scores | None:
    """Returns a placeholder for the scores q k^T if this call computes them."""
    scale, biased = 1.0, False
    args = (*args, *(kwargs[name] for name in ("batch1", "batch2")
                     if name in kwargs))
    if func in _ADDING and len(args) == 3:
        biased = kwargs.get("beta", 1) != 0 and bool(args[0].any())
        scale, args = float(kwargs.get("alpha", 1)), args[1:]
    elif func not in _MULTIPLYING or len(args) != 2:
        return None
    q, k = args
    rows = running().rows_of_chunk
    if not isinstance(q, Tensor) or not isinstance(k, Tensor) or (
            q.dim() != k.dim()) or q.dim() not in (3, 4):
        return None
    if q.shape[-2] != rows or k.shape[-1] != rows or (
            q.shape[-1] != k.shape[-2]) or q.shape[0] != k.shape[0] or (
            q.dim() == 4 and k.shape[1] not in (1, q.shape[1])):
        return None
    if _is_weight(k):  # e.g. an expert's, as wide as the chunk is long
        return None
    if biased:
        running().biased = True
        return None
    return Scores(q, k.transpose(-1, -2),
                  torch.Size((*q.shape[:-1], rows)), q.dtype, scale,
                  heads=tuple(q.shape[:2]) if q.dim() == 4 else None)


def apply(func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Runs a torch function with `Scores` among its arguments: by their method
    if there is one, else on the computed scores."""
    name = getattr(func, "__name__", str(func))
    if name.endswith("_") and not name.endswith("__"):
        if isinstance(args[0], Scores):
            _refuse_in_place(name)
    else:
        name = name.strip("_")
    if name == "where" and len(args) == 3 and isinstance(args[1], Scores):
        return args[1].where(args[0], args[2])
    if isinstance(args[0], Scores) and name in _ANSWERED:
        return getattr(args[0], name)(*args[1:], **kwargs)
    if name in ("mul", "rmul", "add", "radd") and len(args) == 2:
        return getattr(args[1], name)(args[0])
    return func(*(a.computed(name) if isinstance(a, Scores) else a
                  for a in args), **kwargs)


_MULTIPLYING = frozenset({torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm,
                          Tensor.__matmul__})
_ADDING = frozenset({torch.baddbmm, Tensor.baddbmm})
_ANSWERED = frozenset(name for name, value in vars(Scores).items()
                      if callable(value) and not name.startswith("_"))


def _computing(name: str) -> Callable:
    return lambda self, *args: getattr(self.computed(name), name)(*args)


for _name in ("getitem", "len", "neg", "abs", "pow", "rpow", "sub", "rsub",
              "rtruediv", "rmatmul", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Scores, f"__{_name}__", _computing(f"__{_name}__"))


def _is_weight(x: Tensor) -> bool:
    memory = storage(x)
    return any(storage(p) == memory for p in running().module.parameters())


def _refuse_in_place(name: str) -> NoReturn:
    raise Unsupported(
        _layer(), f"'{name}' in place of what may be attention's scores, which"
        " never exist here", "write it out of place, or take another chunk")


def _layer() -> str:
    return running().name


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Tensor) and value.dim() == 0 and (
            not value.requires_grad):
        return float(value)
    return None


def _all_of(seen: tuple[Intervals, ...]) -> Intervals:
    """Returns the intersection of the masks, computed once per step."""
    whole = seen[0]
    for other in seen[1:]:
        if other is not whole:
            key = "both", id(whole), id(other)
            whole = current().once(key, functools.partial(
                whole.both, other, current().padding))
    return whole


# The masks below are slices of a buffer [..., M, M] of the layer.

def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool and (
        current().is_marker(value) or _intervals_of(value) is not None)


def _is_zeros_and_ones(value: Any) -> bool:
    return _intervals_of(value) is not None and bool(
        ((value == 0) | (value == 1)).all())


def _is_complement(value: Any, times: Tensor) -> bool:
    """Returns whether `value` is 0 where `times` is 1, else at most MASKED."""
    return isinstance(value, Tensor) and value.shape == times.shape and bool(
        torch.where(times == 0, value <= MASKED, value == 0).all())


def _intervals_of(view: Any) -> Intervals | None:
    """Returns the mask of all rows if `view` is the first rows and keys of a
    buffer [..., M, M] of the running layer; else None."""
    if not isinstance(view, Tensor) or view.dim() < 2:
        return None
    for buffer in running().module.buffers():
        if buffer.dim() >= 2 and _begins(view, buffer):
            break
    else:
        return None
    square = buffer.view(buffer.shape[-2:])
    here = current()
    if min(square.shape) < here.length:
        return None
    return here.once(("buffer", buffer.data_ptr()), lambda: find(
        lambda batch, head, row, key: square[row, key] != 0, 1, here.length,
        1, here.device))


def _begins(view: Tensor, buffer: Tensor) -> bool:
    rows = running().rows_of_chunk
    return (view.data_ptr() == buffer.data_ptr()
            and view.dtype == buffer.dtype
            and buffer.numel() == buffer.shape[-1] * buffer.shape[-2]
            and view.numel() == rows * rows
            and view.shape[-2:] == (rows, rows)
            and view.stride()[-2:] == buffer.stride()[-2:])
