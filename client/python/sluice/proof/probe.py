"""Checks that a model's layers compute the same in chunks as on all rows.

Each kind of layer of a twin runs twice on the same rows: as the model runs it,
and streamed, in three chunks or whole. Outputs, gradients of the input and of
the parameters, and buffers must agree. This finds layers that mix tokens
outside attention, auxiliary losses of layers, routers with a capacity, and
masks that differ from what they declare. Rows are also probed skewed (all of
them near one direction), because a capacity shows only if one expert is
crowded. Layers that draw random numbers are compared while torch's random
functions return fixed values (Still). Their replay must also be bitwise equal,
and their gradient must match finite differences of the output along the
gradient.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeVar

import torch
from torch import Tensor

from sluice.base import swapped
from sluice.base.argument_table import HANDED
from sluice.base.errors import Inexact, UnknownRows, Unsupported
from sluice.base.model_protocols import Layered, Model, WholeKind
from sluice.base.precision import near
from sluice.base.randomness import Still, undisturbed
from sluice.node.rows import FAR, Numbered
from sluice.node.streamed import Stream
from sluice.proof.captured_calls import (
    Seen,
    by_kind,
    capture,
    probe_tokens,
    refusal,
    refusing,
)
from sluice.proof.trial import (
    CHUNK,
    Result,
    carries,
    forward_whole,
    run_chunked,
    run_whole,
    weights,
    wide,
)

T = TypeVar("T")
# Relative to a norm: rounding gives 1e-6, a wrong mask or a lost loss 1e-1.
LIMIT = 1e-3
# Relative; outputs are well-conditioned, while some gradients are not.
OUTPUT_LIMIT = 2e-5
LEAST = 1e-9  # absolute; for gradients 1e-5 of their common norm, if larger
MOVE = 1e-3  # relative perturbation of rows; near ties of routers are 1e-6
SLOPE_LIMIT = 5e-2  # relative, of a gradient to finite differences in fp32
SQUARES = 1e-2  # a smaller share of bytes that grows with S^2 is noise


def probe(adapter: Model, stream: Stream, may_be_whole: bool = False) -> None:
    """Raises `Unsupported` for the first kind of layer that is not exact in
    chunks; with `may_be_whole` only if it is not exact when run whole either.
    `adapter` belongs to a twin."""
    while True:
        try:
            _probe(adapter, stream, probe_tokens(adapter))
            break
        except Unsupported as refused:
            if not may_be_whole or not make_whole(adapter, stream, refused):
                raise
    if stream.whole_layers:
        _weigh_all(adapter, stream)


def make_whole(adapter: Layered, stream: Stream, refused: Unsupported) -> bool:
    """Lets layers of the refused kind run whole, with Sluice's attention or, if
    that was tried, the model's own. Returns False if nothing is left to try."""
    # A whole layer gets its arguments whole: unknown rows do not matter.
    if refused.layer is None or (refused.has_remedy and not isinstance(
            refused, UnknownRows)):
        return False
    layer = adapter.layers[refused.layer]
    known = stream.whole_layers.get(layer)
    if known is not None:
        changed, known.own_attention = not known.own_attention, True
        return changed
    made = WholeKind(type(layer).__name__, f"{refused.module}: "
                     f"{refused.feature}")
    alike = next(k for k in by_kind(adapter.layers) if layer in k)
    stream.whole_layers.update(dict.fromkeys(alike, made))
    stream.numbered.difference_update(alike)
    return True


def weigh_whole(adapter: Layered, stream: Stream, index: int,
                trials: Sequence[Seen]) -> None:
    """Measures the bytes that a layer that runs whole saves for backward on the
    device, per token and pair of tokens; `trials`: two, the second longer."""
    held = []
    for seen in trials:
        saved: dict[int, int] = {}
        run_chunked(adapter, stream, index, wide(seen.x), seen, saved=saved)
        rows = seen.x.shape[1] if seen.step is None else seen.step.length
        held.append((rows, [n / rows for n in saved.values()]))
    (few, less), (many, more) = held
    # Compare tensor by tensor, unless a loop saves more tensors for more rows.
    # Tensors that do not grow, such as padded blocks, count per token.
    slope = sum(max(0.0, b - a) for a, b in (
        zip(less, more) if len(less) == len(more) else
        [(sum(less), sum(more))])) / (many - few)
    kind = stream.whole_layers[adapter.layers[index]]
    kind.bytes_per_pair = slope if slope * many > SQUARES * sum(more) else 0.0
    kind.bytes_per_token = round(sum(more) - kind.bytes_per_pair * many)


def _weigh_all(adapter: Model, stream: Stream) -> None:
    ids, trials = probe_tokens(adapter), []
    for length in (ids.shape[1] // 2, ids.shape[1]):
        trials.append(capture(adapter, stream, ids[:, :length],
                              lambda plain: None)[1])
    for kind in by_kind(adapter.layers):
        if kind[0] in stream.whole_layers:
            index = list(adapter.layers).index(kind[0])
            weigh_whole(adapter, stream, index, [
                seen[index] for seen in trials])


def _probe(adapter: Model, stream: Stream, ids: Tensor) -> None:
    plain, streamed = capture(adapter, stream, ids, functools.partial(
        _find_carriers, adapter, stream))
    layers = list(adapter.layers)
    stream.checks.kinds = kinds = by_kind(layers)
    for index in (layers.index(kind[0]) for kind in kinds):
        try:
            probe_layer(adapter, stream, index, plain[index], streamed[index])
        except Unsupported as refused:
            refused.layer = index
            raise
    if stream.ranks is not None:
        refusing(adapter.decoder, "it fails on a rank's rows",
                 lambda: adapter.check_dealing(ids, CHUNK))
    _call_model(adapter, stream, ids)


def on_devices(stream: Stream, name: str, own: torch.device,
               try_: Callable[[torch.device], T]) -> T:
    """Returns `try_(device)` for the CPU; for `own` if code fails on a CPU."""
    why = Unsupported("", "")
    for device in dict.fromkeys((torch.device("cpu"), own)):
        try:
            found = try_(device)
        except Unsupported as refused:
            why = refused
            if why.__cause__ is None:
                break
            continue
        if device.type != "cpu":
            stream.warn_once(f"{name} was tried on {device}: on the CPU {why}")
        return found
    raise why


@contextlib.contextmanager
def trying(device: torch.device) -> Iterator[None]:
    """Fixes the seed, enables gradients and disables autocast for trials on a
    device. Restores the random state."""
    # Trials on the CPU ignore a default device that the user has set.
    default = device if device.type == "cpu" else contextlib.nullcontext()
    with undisturbed(device), default, torch.autocast(
            device.type, enabled=False), torch.inference_mode(False), (
            torch.enable_grad()):
        torch.manual_seed(1)
        yield


def _call_model(adapter: Model, stream: Stream, ids: Tensor) -> None:
    """Raises `Unsupported` if a call of the whole model fails only when it is
    streamed, for example because its decoder gets unsupported arguments."""
    def call() -> None:
        with torch.no_grad():
            adapter.causal(input_ids=ids, use_cache=False)

    with swapped.attributes(stream, ranks=None):  # no collectives
        try:
            call()
        except Unsupported:
            raise
        except Exception as error:
            try:
                with swapped.attributes(stream, min_tokens=ids.shape[1] + 1):
                    call()  # runs unstreamed
            except Exception:  # fails unstreamed too: ids are not enough for it
                return
            raise refusal(adapter.causal, "its forward fails when streamed",
                          error) from error


def probe_layer(adapter: Layered, stream: Stream, index: int, plain: Seen,
                streamed: Seen) -> None:
    name = f"layer {index} ({type(adapter.layers[index]).__name__})"
    if adapter.layers[index] not in stream.whole_layers:
        refusing(name, "it fails on its own", lambda: _find_numbered(
            adapter, stream, index, plain))
    skewed = plain.x.mean(dim=1, keepdim=True) + 0.05 * (
        plain.x - plain.x.mean(dim=1, keepdim=True))
    # With scale 0 only the layer's own losses give gradients.
    trials = [("", plain.x, 1.0, 0), ("", plain.x, 0.0, 0),
              (" with skewed rows", skewed, 1.0, 0)]
    if adapter.layers[index] in stream.numbered:
        trials.append((" far into a sequence", plain.x, 1.0, FAR))
    moved = False  # whether this trial's rows are perturbed
    while trials:
        what, x, scale, first = trials.pop(0)

        def alone(x: Tensor = x, scale: float = scale, first: int = first
                  ) -> Result:
            return refusing(name, "it fails on its own", lambda: run_whole(
                adapter, index, wide(x), plain, name, scale,
                Numbered(x.shape[1], first) if first else None))

        def both(x: Tensor = x, scale: float = scale, first: int = first
                 ) -> tuple[Result, Result]:
            return alone(), refusing(
                name, f"it fails when it runs on {CHUNK} of {x.shape[1]} rows",
                lambda: run_chunked(adapter, stream, index, wide(x), streamed,
                                    scale, first))

        whole = cut = None  # frees gigabytes of the previous trial
        whole, cut = both()
        still: contextlib.AbstractContextManager = contextlib.nullcontext()
        if whole.drew:
            still = Still()
            if scale:
                _compare_slopes(adapter, stream, index, wide(x), streamed,
                                name, cut)
            whole = cut = None
            with still:
                whole, cut = both()
            if whole.drew:
                raise Unsupported(name, "random numbers that do not come from "
                                  "torch's usual functions")
        if not near(cut.y, whole.y, OUTPUT_LIMIT, LEAST):
            if not moved:
                # Rounding may send a row to another expert, but hardly
                # twice: try again with perturbed rows.
                trials.insert(0, (what, x + MOVE * x.std() * torch.randn_like(
                    x), scale, first))
                moved = True
                continue
            with still:
                nudged = alone(wide(x) * (1 + 2 ** -22))
            _refuse_output(name + what, whole, cut, nudged)
        moved = False
        _compare(name + what, whole, cut)


def _refuse_output(name: str, whole: Result, cut: Result,
                   nudged: Result) -> NoReturn:
    """Raises `Unsupported` for an output that differs in chunks. `nudged` is
    the result for an input that was changed by about a rounding error."""
    apart, own = _apart(whole.y, cut.y), _apart(whole.y, nudged.y)
    if own > OUTPUT_LIMIT:
        raise Unsupported(
            name, f"its output differs by {apart:.1e} when its rows run in "
            f"chunks, and by {own:.1e} when its input differs by rounding: it "
            "rounds what it computes with, as dynamic quantisation of "
            "activations does", "quantise weights alone, or do not stream "
            "this model")
    raise Inexact(name, f"its output differs by {apart:.1e} when its rows run "
                  "in chunks: it mixes tokens outside attention")


def _find_numbered(adapter: Layered, stream: Stream, index: int,
                   seen: Seen) -> None:
    """Adds the layer's kind to `stream.numbered` if it numbers its rows; see
    [Note: numbered rows] in rows."""
    layer, numbered = adapter.layers[index], Numbered(seen.x.shape[1], 0)
    alike = next(kind for kind in stream.checks.kinds if layer in kind)
    stream.numbered.difference_update(alike)
    with numbered:
        first = forward_whole(adapter, index, seen)
    differ = -FAR if numbered.backwards else 0
    for far in (FAR, -FAR) if numbered.met and not differ else ():
        with contextlib.suppress(Exception), Numbered(seen.x.shape[1], far):
            # If large numbers raise an error, they index the layer's own rows.
            if not near(forward_whole(adapter, index, seen), first,
                        OUTPUT_LIMIT, LEAST):
                differ = differ or far
    if differ < 0:
        raise Unsupported(f"layer {index} ({type(layer).__name__})", "row "
                          "numbers that it counts from the sequence's end")
    if differ:
        stream.numbered.update(alike)


def _find_carriers(adapter: Model, stream: Stream,
                   plain: dict[int, Seen]) -> None:
    """Sets `stream.carriers` to the layers that carry a state along the
    sequence; see [Note: carried states] in carried_state."""
    stream.carriers.clear()
    layers = list(adapter.layers)
    if stream.ranks is not None and any(
            seen.kwargs.get(HANDED) for seen in plain.values()):
        raise Unsupported(adapter.decoder, "keys and values that layers hand "
                          "to later ones, with a group", "stream this model "
                          "without group=")
    for kind in by_kind(layers):
        index = layers.index(kind[0])
        if index in plain and kind[0] not in stream.whole_layers and carries(
                adapter, index, plain[index]):
            stream.carriers.update(kind)
            if stream.ranks is not None:
                raise Unsupported(
                    f"layer {index} ({type(kind[0]).__name__})", "a state "
                    "that it carries along the sequence, with a group",
                    "stream this model without group=")


def _compare(name: str, whole: Result, cut: Result) -> None:
    norm = sum(float(g.norm()) ** 2 for g in whole.gradients.values()
               if g is not None) ** 0.5
    for key, expected in whole.gradients.items():
        got = cut.gradients.get(key)
        if expected is None and got is None:
            continue
        expected = torch.zeros_like(got) if expected is None else expected
        got = torch.zeros_like(expected) if got is None else got
        if not near(got, expected, LIMIT, max(1e-5 * norm, LEAST)):
            raise Unsupported(
                name, f"the gradient of '{key}' differs by "
                f"{_apart(expected, got):.1e} when its rows run in chunks: "
                "it counts rows, or adds a loss of its own",
                "switch that off, or do not stream this model")
    for key, expected in whole.buffers.items():
        if not near(cut.buffers[key], expected, LIMIT, LEAST):
            raise Unsupported(name, f"its buffer '{key}' differs when its rows "
                              "run in chunks")


def _compare_slopes(adapter: Layered, stream: Stream, index: int, x: Tensor,
                    seen: Seen, name: str, cut: Result) -> None:
    """Raises `Unsupported` if the input's gradient does not match finite
    differences of the output along that gradient."""
    direction = cut.gradients["input"]
    assert direction is not None
    step = 1e-2 * float(x.norm()) / float(direction.norm())

    def value(at: Tensor) -> float:
        with torch.no_grad():
            y = run_chunked(adapter, stream, index, at, seen).y
        return float((y.double() * weights(y).double()).sum())

    slope = (value(x + step * direction) - value(x - step * direction)) / (
        2 * step)
    expected = float(direction.double().norm()) ** 2
    if abs(slope - expected) > SLOPE_LIMIT * expected:
        raise Unsupported(name, "it draws random numbers, and its gradient is "
                          f"{abs(slope - expected) / expected:.0%} off the "
                          "slope of its output when its rows run in chunks")


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / (a.double().norm() + 1e-30))
