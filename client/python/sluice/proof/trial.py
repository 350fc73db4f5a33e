"""Runs a layer of a twin plain and streamed on the same rows."""
from __future__ import annotations

import contextlib
import gc
import random
import sys
import weakref
from collections import UserDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sluice.base.argument_table import HANDED
from sluice.base.errors import Unsupported
from sluice.base.model_protocols import Layered
from sluice.base.randomness import RandomState, Still
from sluice.node.carried_state import Cache, argument_of
from sluice.node.replay import Buffers, leaves
from sluice.node.rows import Numbered
from sluice.node.setting import unchanged
from sluice.node.shared_tensors import ROWS
from sluice.node.step import Step
from sluice.node.streamed import Stream
from sluice.node.whole_layers import call_of, run
from sluice.proof.captured_calls import Seen
from sluice.proof.twin import wide

CHUNK = 24


class Result(NamedTuple):
    y: Tensor
    gradients: dict[str, Tensor | None]  # by "input" and parameter names
    buffers: dict[str, Tensor]
    drew: bool  # whether the layer drew random numbers


def run_whole(adapter: Layered, index: int, x: Tensor, seen: Seen, name: str,
              scale: float, numbered: Numbered | None = None) -> Result:
    """Runs the layer with the model's own attention; `numbered` numbers its
    rows. Raises `Unsupported` if the layer draws numbers of Python or numpy,
    uses weights that are no parameters, or keeps a tensor with its graph."""
    layer, own = adapter.layers[index], own_of(adapter, index)
    args, kwargs = _wide_all((seen.args, seen.kwargs))
    handed = kwargs.get(HANDED)
    arguments = [v for v in pytree.tree_leaves((args, kwargs, [
        *_handed(handed).values()])) if isinstance(v, Tensor)]
    mark = _Mark()
    alive = weakref.ref(mark)

    def forward(h: Tensor) -> Tensor:
        with numbered or contextlib.nullcontext():
            y = _first(own(
                _Marked.apply(h, mark),  # noqa: F821, deleted after the call
                *args, **kwargs))
        for end in leaves(y):
            if not any(end is t for t in (h, *layer.parameters(), *arguments)):
                raise Unsupported(
                    name, f"a tensor of shape {tuple(end.shape)} that needs a "
                    "gradient and is no parameter of the layer",
                    "register it as a parameter of a module in the layer")
        return y

    python = _python_random()
    with _afresh(layer):
        result = _result(layer, x, forward, scale, handed)
        kwargs.pop(HANDED, None)  # holds tensors that the layer put there
        if python != _python_random():
            raise Unsupported(name, "random numbers of Python or numpy, which "
                              "a replay would draw again", "use torch's")
        del mark, forward, handed
        if alive() is not None:
            gc.collect()
        if alive() is not None:
            raise Unsupported(
                name, "a tensor with its graph that is kept after its forward,"
                " by a hook or an attribute: here it would have none",
                "do not make losses of what is inside of layers, or do not "
                "stream this model")
    return result


class _Mark:
    """Lives as long as something holds the graph of the layer's input."""


class _Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, mark: _Mark) -> Tensor:
        ctx.mark = mark
        return x.clone()

    @staticmethod
    def backward(ctx, dy: Tensor):
        return dy, None


def run_chunked(adapter: Layered, stream: Stream, index: int, x: Tensor,
                seen: Seen, scale: float = 1.0, first: int = 0,
                saved: dict[int, int] | None = None) -> Result:
    """Runs the layer streamed, in three chunks or, if the stream says so,
    whole. Rows are numbered from `first`. If the layer runs whole, `saved`
    gets the bytes that autograd saves, by storage."""
    layer, own = adapter.layers[index], own_of(adapter, index)
    step = stream.begin(x.shape[1] if seen.step is None else seen.step.length,
                        x.device, adapter, chunk=CHUNK, check=True, alone=True)
    step.first_row, step.saved = first, saved
    if seen.step is not None:
        step.adopt(seen.step)
    args, kwargs = _wide_all((seen.args, seen.kwargs))
    whole = layer in stream.whole_layers
    if not whole:
        step.handed.adopt(kwargs.get(HANDED) or {}, step.chunks)

    def streamed(h: Tensor) -> Tensor:
        call = call_of(step, layer, own, h, args, kwargs, stream.rows)
        with step.engaged():
            y = _first(call.answer(run(call, h)))
        if call.handing is not None:
            for key in call.handing.left:
                _weigh(step, key, scale)
        if stream.ranks is not None:
            for heads, kv_heads in call.heads:
                stream.ranks.check_heads(type(layer).__name__, heads, kv_heads)
        return y

    with _afresh(layer):
        made = _result(layer, x, streamed, scale,
                       kwargs.get(HANDED) if whole else None)
    for key in step.handed.keys():
        chunks = [step.handed.take(key, m) for m in range(len(step.chunks))]
        made.gradients.update(_handed({key: [
            torch.cat(parts, ROWS) for parts in zip(*chunks)]}))
    step.forget_handed()
    return made


def _handed(tensors: Any) -> dict[str, Tensor]:
    return {f"{HANDED}.{key}.{i}": tensor for key, values in (
        tensors or {}).items() for i, tensor in enumerate(values)}


def _weigh(step: Step, key: Hashable, scale: float) -> None:
    chunks = [step.handed.get(key, m) for m in range(len(step.chunks))]
    whole = [scale * weights(torch.cat(parts, ROWS)) for parts in zip(*chunks)]
    for m, rows in enumerate(step.chunks):
        step.handed.add(key, m, [w.narrow(ROWS, rows.start, len(rows))
                                 for w in whole])


def forward_whole(adapter: Layered, index: int, seen: Seen) -> Tensor:
    """Returns the layer's output, with fixed random values (Still)."""
    with Still(), _afresh(adapter.layers[index]):
        return _forward(adapter, index, seen)


def carries(adapter: Layered, index: int, seen: Seen) -> bool:
    """Returns whether the layer leaves a state in a cache that it is passed."""
    argument, cache = argument_of(adapter.layers[index]), Cache({})
    if argument is None:
        return False
    try:
        with _afresh(adapter.layers[index]):
            _forward(adapter, index, seen._replace(
                kwargs={**seen.kwargs, argument: cache}))
    except Exception:  # it needs another cache, or arguments with it
        return False
    return bool(cache.after)


def written_by(adapter: Layered, index: int, seen: Seen
               ) -> list[tuple[nn.Module, str]]:
    held = Buffers(adapter.layers[index].modules())
    with _afresh(adapter.layers[index]):
        _forward(adapter, index, seen)
        return held.written()


def _forward(adapter: Layered, index: int, seen: Seen) -> Tensor:
    args, kwargs = _wide_all((seen.args, seen.kwargs))
    with torch.no_grad():
        return _first(own_of(adapter, index)(wide(seen.x), *args, **kwargs))


@contextlib.contextmanager
def _afresh(layer: nn.Module) -> Iterator[None]:
    """Restores the layer's state at the end, for its next run."""
    then = [(module, set(vars(module))) for module in layer.modules()]
    with unchanged(layer.modules()):
        yield
    for module, names in then:
        for name in vars(module).keys() - names:
            del vars(module)[name]


def _result(layer: nn.Module, x: Tensor, forward: Callable[[Tensor], Tensor],
            scale: float, handed: Any = None) -> Result:
    """Runs `forward` on `x`; returns its output, and gradients of a sum over it
    and the tensors that the layer puts into `handed`, with fixed random weights
    times `scale`. Every call draws the same numbers."""
    torch.manual_seed(2)
    before = RandomState(x.device)
    leaf, taken = x.clone().requires_grad_(), _handed(handed)
    with torch.enable_grad():
        y = forward(leaf)
        drew = before.moved()
        names = [n for n, p in layer.named_parameters() if p.requires_grad]
        made = [y, *(t for name, t in _handed(handed).items()
                     if t is not taken[name])]
        found = torch.autograd.grad(
            made, [leaf, *(layer.get_parameter(n) for n in names),
                   *taken.values()],
            [scale * weights(t) for t in made], allow_unused=True)
    return Result(y.detach(), dict(zip(["input", *names, *taken], found)),
                  {n: b.clone() for n, b in layer.named_buffers()}, drew)


def weights(y: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(y.shape, generator=generator).to(y)


def own_of(adapter: Layered, index: int) -> Callable:
    """Returns the layer's forward from before streaming, bound to the layer."""
    own = adapter.own_forward(adapter.layers[index])
    if getattr(own, "__func__", None) is None and getattr(
            own, "func", None) is None:
        raise Unsupported(f"layer {index}", "a forward on the instance that is"
                          " no method of it", "make it one (types.MethodType)")
    return own


def _wide_all(tree: Any) -> Any:
    return pytree.tree_map(
        lambda v: wide(v) if isinstance(v, Tensor) else {
            key: [wide(t).detach().requires_grad_() for t in tensors]
            for key, tensors in v.items()} if isinstance(v, UserDict) else v,
        tree)


def _first(out: Any) -> Tensor:
    return out[0] if isinstance(out, (tuple, list)) else out


def _python_random() -> tuple:
    if "numpy" not in sys.modules:
        return random.getstate(), ()
    kind, keys, *rest = sys.modules["numpy"].random.get_state()
    return random.getstate(), (kind, keys.tobytes(), *rest)
