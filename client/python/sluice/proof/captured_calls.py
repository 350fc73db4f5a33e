"""Records a model's calls of its layers, and finds the kinds of layers."""
from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sluice.base.argument_table import HANDED
from sluice.base.errors import Unsupported
from sluice.base.model_protocols import Model
from sluice.node import side_outputs
from sluice.node.replay import Buffers
from sluice.node.rows import check_hidden
from sluice.node.setting import hooks_of, plain_class
from sluice.node.step import Step, current
from sluice.node.streamed import Stream

TOKENS = 70  # two chunks of 24 rows and a partial one
# The remedy for a decoder that leaves layers out.
DROPS = "set layerdrop = 0 in the model's modules, if it drops layers by chance"


class Seen(NamedTuple):
    x: Tensor
    args: tuple
    kwargs: dict[str, Any]
    step: Step | None  # the step in which the masks in `args` were made


def probe_tokens(adapter: Model) -> Tensor:
    """Returns token ids [1, TOKENS], fewer if the model has fewer positions,
    without the padding token, which some models count."""
    config = adapter.decoder.config
    weight = getattr(adapter.decoder.get_input_embeddings(), "weight", None)
    if weight is None:
        raise Unsupported(adapter.decoder, "embeddings that are not one table")
    most = getattr(config, "max_position_embeddings", None) or TOKENS
    length = TOKENS if most < 1 else min(TOKENS, most)  # -1: unlimited
    ids = torch.arange(length) * 7 % max(1, weight.shape[0] - 4) + 3
    pad = getattr(config, "pad_token_id", None)
    ids[ids == pad] = 3 if pad != 3 else 4
    return ids[None].to(weight.device)


def capture(adapter: Model, stream: Stream, ids: Tensor,
            between: Callable[[dict[int, Seen]], None]
            ) -> tuple[dict[int, Seen], dict[int, Seen]]:
    """Returns each layer's arguments, by its index, in a plain and a streamed
    forward; calls `between(plain)` between both. Sets `stream.written`."""
    accepts = inspect.signature(type(adapter.entry).forward).parameters
    given: dict[str, Any] = {"input_ids": ids}
    if "use_cache" in accepts or any(
            p.kind is p.VAR_KEYWORD for p in accepts.values()):
        given["use_cache"] = False
    if side_outputs.ASKED in accepts:
        # The probe compares hidden states, not layers' other outputs.
        given[side_outputs.ASKED] = False
    inside: list[int] = []  # indices of layers that have not returned

    def run(into: dict[int, Seen],
            around: contextlib.AbstractContextManager) -> None:
        with torch.no_grad(), recorded(adapter.layers, stream, into,
                                       inside=inside), around:
            adapter.own_forward(adapter.entry)(**given)

    plain: dict[int, Seen] = {}
    chunked: dict[int, Seen] = {}
    held = {layer: Buffers(layer.modules()) for layer in adapter.layers}
    refusing(adapter.entry, "a forward on %d tokens fails" % ids.shape[1],
             lambda: run(plain, contextlib.nullcontext()))
    for layer, buffers in held.items():
        stream.written[layer] = buffers.written()
    between(plain)
    step = stream.begin(ids.shape[1], ids.device, adapter,
                        chunk=ids.shape[1], check=False, alone=True)
    try:
        refusing(adapter.entry, "its forward fails when streamed",
                 lambda: run(chunked, step.engaged()))
        step.forget_handed()
    except Unsupported as refused:
        refused.layer = inside[-1] if inside else None
        raise
    for index in range(len(adapter.layers)):
        if index not in plain or index not in chunked:
            raise Unsupported(f"layer {index}", "it is not called by the "
                              "decoder once per forward", DROPS)
        if HANDED in plain[index].kwargs:  # both trials get the same bits
            chunked[index].kwargs[HANDED] = plain[index].kwargs[HANDED]
    return plain, chunked


@contextlib.contextmanager
def recorded(layers: Iterable[nn.Module], stream: Stream,
             into: dict[int, Seen], first: str = "hidden_states",
             inside: list[int] | None = None) -> Iterator[None]:
    """Inside, records in `into` each layer's arguments, by its index, and in
    `stream.returns_tuple` whether it returns a tuple. `first` names the layers'
    first argument; `inside`: indices of layers that have not returned."""
    inside = [] if inside is None else inside

    def hook(index: int):
        def record(module: nn.Module, args: tuple, kwargs: dict) -> None:
            kwargs = dict(kwargs)
            x = args[0] if args else kwargs.pop(first, None)
            if not isinstance(x, Tensor):
                check_hidden(module, x)
            if index in into:
                raise Unsupported(f"layer {index}", "it is called several "
                                  "times per forward")
            into[index] = Seen(x.detach(), tuple(args[1:]), kwargs, current())
            inside.append(index)
        return record

    def returned(module: nn.Module, _: tuple, out: Any) -> None:
        stream.returns_tuple[module] = isinstance(out, (tuple, list))
        inside.pop()

    with contextlib.ExitStack() as stack:
        for i, layer in enumerate(layers):
            stack.enter_context(layer.register_forward_pre_hook(
                hook(i), with_kwargs=True))
            stack.enter_context(layer.register_forward_hook(returned))
        yield


def by_kind(layers: Iterable[nn.Module]) -> list[list[nn.Module]]:
    layers = list(layers)
    kinds: dict[int, list[nn.Module]] = {}
    for layer, first in zip(layers, first_of_kind(layers)):
        kinds.setdefault(first, []).append(layer)
    return list(kinds.values())


def first_of_kind(layers: Iterable[nn.Module]) -> list[int]:
    """Returns for each layer the index of the first layer with the same
    classes, shapes and settings."""
    kinds: dict[str, int] = {}
    return [kinds.setdefault(_kind(layer), index)
            for index, layer in enumerate(layers)]


def kind_names(layers: Iterable[nn.Module]) -> dict[nn.Module, str]:
    """Names layers' kinds by class and first index: "LlamaDecoderLayer.0"."""
    layers = list(layers)
    return {layer: f"{type(layer).__name__}.{first}"
            for layer, first in zip(layers, first_of_kind(layers))}


def _kind(layer: nn.Module) -> str:
    parts = []
    for name, module in layer.named_modules():
        # transformers' modules use layer_idx only to find their cache.
        kind = plain_class(module)
        skip = {"layer_idx"} if kind.__module__.startswith(
            "transformers.") else set()
        settings = [(k, _setting(v)) for k, v in sorted(vars(module).items())
                    if k not in skip]
        shapes = [(n, tuple(p.shape), p.requires_grad)
                  for n, p in module._parameters.items() if p is not None]
        added = [_code(f) for f in (*hooks_of(module),
                                    vars(module).get("forward"))]
        parts.append((name, id(kind), settings, shapes, added))
    return repr(parts)


def _setting(value: Any) -> Any:
    """Returns a key of an attribute that is equal if two modules compute alike
    with it: a number or string, the code of a function, else the type."""
    if isinstance(value, (tuple, list)):
        return [_setting(v) for v in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    if callable(value) and not isinstance(value, (nn.Module, type)):
        return _code(value)
    return id(type(value))


def _code(function: Any) -> Any:
    """Returns the same value for one function bound to different modules."""
    function = getattr(function, "own", function)  # unwraps a Patch
    bound: list[Any] = []
    if isinstance(function, functools.partial):
        bound = [*function.args, *function.keywords.values()]
        function = function.func
    function = getattr(function, "__func__", function)
    with contextlib.suppress(ValueError):  # a cell is still empty
        bound += [cell.cell_contents for cell in
                  getattr(function, "__closure__", None) or ()]
    return [id(getattr(function, "__code__", function)),
            *(v for v in bound if isinstance(v, (bool, int, float, str)))]


def refusing(name: Any, what: str, action: Callable[[], Any]) -> Any:
    """Returns the result of `action`; raises any exception of it as
    `Unsupported`, because user code may fail on a trial's rows."""
    try:
        return action()
    except Unsupported:
        raise
    except Exception as error:
        raise refusal(name, what, error) from error


def refusal(name: Any, what: str, error: Exception) -> Unsupported:
    name = name if isinstance(name, str) else type(name).__name__
    return Unsupported(name, f"{what} ({type(error).__name__}: "
                       f"{str(error).splitlines()[0] if str(error) else ''})")
