"""What a model calls its layers with, plain and streamed, for the probe."""
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

TOKENS = 70  # in chunks of 24: the last one is a rest


class Seen(NamedTuple):
    x: Tensor
    args: tuple
    kwargs: dict[str, Any]
    step: Step | None  # that has made the masks among them


def probe_tokens(adapter: Model) -> Tensor:
    """ids [1, TOKENS], without the padding token, which some models count."""
    config = adapter.decoder.config
    weight = getattr(adapter.decoder.get_input_embeddings(), "weight", None)
    if weight is None:
        raise Unsupported(adapter.decoder, "embeddings that are not one table")
    most = getattr(config, "max_position_embeddings", None) or TOKENS
    length = TOKENS if most < 1 else min(TOKENS, most)  # -1: any number
    ids = torch.arange(length) * 7 % max(1, weight.shape[0] - 4) + 3
    pad = getattr(config, "pad_token_id", None)
    ids[ids == pad] = 3 if pad != 3 else 4
    return ids[None].to(weight.device)


def capture(adapter: Model, stream: Stream, ids: Tensor,
            between: Callable[[dict[int, Seen]], None]
            ) -> tuple[dict[int, Seen], dict[int, Seen]]:
    """What layers are called with, plain, as `between` sees, and streamed."""
    accepts = inspect.signature(type(adapter.entry).forward).parameters
    given: dict[str, Any] = {"input_ids": ids}
    if "use_cache" in accepts or any(
            p.kind is p.VAR_KEYWORD for p in accepts.values()):
        given["use_cache"] = False
    if side_outputs.ASKED in accepts:
        # What layers answer beside hidden states is not probed.
        given[side_outputs.ASKED] = False
    inside: list[int] = []  # layers that have not returned

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
                              "decoder once per forward")
        if HANDED in plain[index].kwargs:  # the same to the bit
            chunked[index].kwargs[HANDED] = plain[index].kwargs[HANDED]
    return plain, chunked


@contextlib.contextmanager
def recorded(layers: Iterable[nn.Module], stream: Stream,
             into: dict[int, Seen], first: str = "hidden_states",
             inside: list[int] | None = None) -> Iterator[None]:
    """What the layers are called with meanwhile; `first` is the name of
    their first argument, `inside` gets those that have not returned."""
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
    """For each layer the first with its classes, shapes and settings."""
    kinds: dict[str, int] = {}
    return [kinds.setdefault(_kind(layer), index)
            for index, layer in enumerate(layers)]


def kind_names(layers: Iterable[nn.Module]) -> dict[nn.Module, str]:
    """By its class and the first layer of the kind: "LlamaDecoderLayer.0"."""
    layers = list(layers)
    return {layer: f"{type(layer).__name__}.{first}"
            for layer, first in zip(layers, first_of_kind(layers))}


def _kind(layer: nn.Module) -> str:
    parts = []
    for name, module in layer.named_modules():
        # transformers' own modules use it to find their cache; a user's may
        # do what they like with it.
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
    """What tells apart how two modules compute that have it as an attribute:
    a number, what a function does; the type of any other value."""
    if isinstance(value, (tuple, list)):
        return [_setting(v) for v in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    if callable(value) and not isinstance(value, (nn.Module, type)):
        return _code(value)
    return id(type(value))


def _code(function: Any) -> Any:
    """The same for the same function bound to other modules."""
    function = getattr(function, "own", function)  # of a Patch
    bound: list[Any] = []
    if isinstance(function, functools.partial):
        bound = [*function.args, *function.keywords.values()]
        function = function.func
    function = getattr(function, "__func__", function)
    with contextlib.suppress(ValueError):  # a cell that is empty yet
        bound += [cell.cell_contents for cell in
                  getattr(function, "__closure__", None) or ()]
    return [id(getattr(function, "__code__", function)),
            *(v for v in bound if isinstance(v, (bool, int, float, str)))]


def refusing(name: Any, what: str, action: Callable[[], Any]) -> Any:
    """Whatever the user's code raises on rows it never saw is a refusal."""
    try:
        return action()
    except Unsupported:
        raise
    except Exception as error:
        raise refusal(name, what, error) from error


def refusal(name: Any, what: str, error: Exception) -> Unsupported:
    name = name if isinstance(name, str) else type(name).__name__
    return Unsupported(
        name, f"{what} ({type(error).__name__}: "
        f"{str(error).splitlines()[0] if str(error) else ''})")
