"""`sluice.stream`: runs a model's decoder layers chunk by chunk."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch import nn

from sluice.attention import gpu_blocks
from sluice.base.argument_table import MODULE
from sluice.base.arguments import NONE, invalid, takes
from sluice.base.errors import Unsupported
from sluice.base.model_protocols import Patched
from sluice.memory import compute_device
from sluice.native.session import Session
from sluice.node import carried_state, settings
from sluice.node.plain_layers import Room
from sluice.node.settings import Fields, StreamConfig
from sluice.node.streamed import Stream
from sluice.plan.planned import Planning
from sluice.plan.policy import Policy
from sluice.proof.captured_calls import kind_names
from sluice.ranks import board, progress
from sluice.ranks.groups import Ranks
from sluice.ranks.peer_watch import PeerWatch

if TYPE_CHECKING:
    from sluice.hf.own_layers import Layers, OwnLayers
    from sluice.hf.transformers_model import Adapter

_streams: WeakSet[Stream] = WeakSet()  # all streams of this process


@takes("stream", model=MODULE | NONE)
def stream(model: nn.Module | None = None,
           config: StreamConfig | None = None, **fields: Any) -> Stream:
    """Runs the decoder layers of a model chunk by chunk, with k, v,
    attention's results and the layers' inputs in host memory.

    Pass a model of transformers as `model`. Pass the layers of any other model
    to `stream_layers`: each layer takes hidden states [B, S, H] as its first
    argument, calls causal attention and returns hidden states; embedding, head
    and loss are not changed.

    The model's class, its parameters, `generate`, saving and loading stay the
    same. Training forwards (and other forwards without a cache) are streamed;
    with `labels` the head and the loss run on chunks of rows too, and `logits`
    are computed when they are read.

    Streaming a streamed model again ends its former stream, as `unstream()`
    does.

    Args:
      model: a decoder of transformers that calls attention through the
        attention registry (also as a PEFT model).
      config: a `StreamConfig`; arguments override its fields.
      layers: instead of `model`: the decoder layers in order.
      attention: "sdpa", required with `layers`, which either call
        F.scaled_dot_product_attention(is_causal=True) or compute products and
        a softmax themselves.
      sample: with `layers`: runs the model on 64 tokens or more, such as
        `lambda: model(ids)`; stream() probes the layers on that call. Without
        a sample, the first call with at least 64 rows probes the layers and may
        refuse them, and shorter calls before it are not streamed. Required
        with a group and with hidden="host".
      session: a session with the node's daemon, which `unstream()` leaves
        open. None: `Session()` on the model's device, closed by `unstream()`.
      chunk: rows per chunk (None: 1024, on a real GPU 8192); "auto": measured
        in stream(), as `Stream.chunk_choice` and the line at attach explain.
        All ranks of a job use the choice of the first rank that measures.
      batch: with chunk="auto": sequences per batch and rank for which the
        chunk is measured; steps may have other batch sizes.
      rows: further layer arguments that have rows: name -> dimension of the
        rows. A table with a row per position may have more rows than the
        sequence. Dimension None: each chunk gets the whole argument.
      policy: what backward does with a layer's matrix products:
        "recompute", or a dict from names of weights or modules in the layer
        (`fnmatch` patterns) to the fractions of chunks kept on the device and
        swapped to the host: {"mlp.*": {"keep": 0.25, "swap": 0.5}}; "plan":
        from the third training step on the daemon's plan (`Stream.plan`).
      check: which chunks' replays are compared bit by bit with their first
        forwards and, up to rounding, with a run in two parts: "first": all in
        the first step, then one per kind of layer and step; "always": all;
        "off": none.
      min_tokens: sequences of fewer tokens are not streamed.
      head: "whole": also with labels, the model's own head and loss run over
        all rows at once, with logits [B, S, vocabulary]; see `Stream.head`.
      group: a process group of ranks that share each sequence: pass the same
        whole rows to every rank, and each rank computes its part of them; see
        [Note: shared sequences] in shards.
      hidden: where hidden states between layers, and their gradients, are
        kept: "device", or "host" (in chunks) for sequences of which not even
        one [B, S, H] should be on the device.
      rerun: the fraction f (0 to 1) of a sequence's first tokens for which
        backward computes k, v and attention's results again, a layer at a
        time, instead of keeping them in the host. It costs f^2 of attention's
        forward and f of all other work of layers ([Note: run again] in layer).
      kernel: for attention's blocks on a real GPU: "flash" or "cudnn" (bf16
        and fp16), "efficient", or "auto". For fp32 "auto" is efficient. For
        bf16 and fp16 it is cudnn on GPUs of compute capability 9.0 if heads
        are at most 128 wide and there are no documents or windows, else flash.
        After torch.nn.attention.activate_flash_attention_impl("FA4") flash is
        "flash (FA4)". `Stats.kernels` names the kernels of a step. stream()
        refuses a kernel that does not support the model's heads; a step
        refuses one that does not support its dtype. No kernel supports an
        interval of keys for each row, a softcap, or heads of v of another width
        than k's: for these the scores are written to memory.
      hbm: bytes of device memory for the tensors of layers that run plain, that
        is without recomputation and copies, as without a stream (see
        [Note: plain layers] in plain_layers). None: on a real GPU what the
        first step's peak leaves free, else 0. With a group or hidden="host"
        all layers are streamed.
      stalled_s: seconds without progress to a next chunk after which each
        rank reports its position on stderr.
      quiet: prints nothing on stderr: no line at attach, no progress of long
        steps, no report of a stall.

    Raises:
      Unsupported: the model, or how it is set up, cannot be streamed exactly;
        the message names the module, the feature and the remedy. Nothing was
        changed, except that a former stream of this model has ended.
      Invalid: an argument has an invalid value; nothing was changed.
      Error: there is no daemon, another rank of this node uses another
        daemon, or there is not enough memory.
    """
    how = Fields.of(config, fields)
    planned = how.policy == "plan"
    policy = Policy() if planned else Policy.of(how.policy)
    ranks = Ranks.of(how.group, settings.rows_at_first(how.chunk))
    adapter = _adapter(model, how)
    policy.check(name for layer in adapter.layers
                 for name, _ in layer.named_parameters())
    for former in [s for s in _streams if _streams_same(s._adapter, adapter)]:
        former.unstream()
    made = Stream(how.session or Session(device=next((
        p.device for layer in adapter.layers for p in layer.parameters()
        if not p.is_meta), None)), how, policy, ranks)
    device = made.arena.device
    try:
        board.check_daemon(made.session.socket)
        if how.chunk is None and device.type != "cpu":
            made.chunk = settings.AT_FIRST_ON_GPU
        compute_device.check_kernel(device, how.kernel)
        for layer in adapter.layers:
            compute_device.check_parameters(layer, device)
        adapter.attach(made)
        if made.head == "rows":
            made.head = how.head
        if how.chunk == "auto":
            made.choose_chunk(next(p for layer in adapter.layers
                                   for p in layer.parameters()), how.batch)
        if made.carriers:
            block = carried_state.BLOCK  # a chunk is a multiple of it
            made.chunk = -(-made.chunk // block) * block
        if planned and made.whole_layers:
            raise Unsupported(adapter.name, 'policy="plan" with layers that '
                              "run whole", 'stream it with policy="recompute"')
        for _, _, width, _ in made.attended:
            gpu_blocks.kernel_for(how.kernel, device, 2, width, width)
        made.kernel = how.kernel
        made.reset_stats()  # drops what the probe has counted
        if planned:
            made.planning = Planning(made.session, kind_names(adapter.layers),
                                     how.quiet)
        made.peers = PeerWatch.of(ranks, made.session, device)
        if ranks is None and how.hidden == "device" and (
                how.hbm if device.type == "cpu" else how.hbm != 0):
            made.room = Room(how.hbm, device, made.say_once)
        elif how.hbm:
            made.say_once("hbm: with a group, or hidden='host', all layers are "
                          "streamed")
        made._adapter = adapter
        _streams.add(made)
        if not how.quiet:
            made.progress = progress.Progress(adapter.layers, how.stalled_s)
            print(_attached(made, adapter), file=sys.stderr)
        made.say_whole()
    except BaseException:
        adapter.detach()
        made._close()
        raise
    return made


def stream_layers(layers: Layers, config: StreamConfig | None = None,
                  **fields: Any) -> Stream:
    """Streams decoder layers that belong to no model of transformers: calls
    `stream` with the arguments `layers` and `attention`."""
    return stream(None, config, layers=layers, attention="sdpa", **fields)


@takes("of", model=MODULE)
def of(model: nn.Module) -> Stream | None:
    """Returns the stream of `model`, or of the model that it wraps (PEFT, DDP,
    torch.compile) or holds; None if there is none.

    Raises:
      Invalid: `model` holds several streamed models.
    """
    found = _streams_in(model)
    if len(found) > 1:
        raise invalid(f"of: {type(model).__name__} holds {len(found)} streamed "
                      "models: pass one of them")
    return found[0] if found else None


@takes("unstream", model=MODULE)
def unstream(model: nn.Module) -> None:
    """Ends every stream of `model` or of models that it wraps or holds, by
    `Stream.unstream()`. Does nothing to a model that is not streamed."""
    for found in _streams_in(model):
        found.unstream()


def _streams_in(model: nn.Module) -> list[Stream]:
    modules = set(model.modules())
    return [s for s in _streams if s._adapter is not None
            and not modules.isdisjoint(s._adapter.layers)]


def _streams_same(former: Patched | None, adapter: Patched) -> bool:
    return former is not None and list(former.layers) == list(
        adapter.layers) and getattr(former, "causal", None) is getattr(
        adapter, "causal", None)


def _adapter(model: nn.Module | None, how: Fields) -> Adapter | OwnLayers:
    if (model is None) == (how.layers is None) or (
            (how.layers is None) != (how.attention is None)) or (
            how.sample is not None and how.layers is None):
        raise invalid("stream: pass a model, or layers=… and attention='sdpa'"
                      ", with a sample=… or without")
    if how.layers is None:
        from sluice.hf import transformers_model  # imports transformers
        return transformers_model.adapter_of(model)
    from sluice.hf.own_layers import OwnLayers
    return OwnLayers(how.layers, how.sample)


def _attached(made: Stream, adapter: Patched) -> str:
    head = {"rows": "head and loss by rows", "none": "no head streamed",
            "whole": "head and loss whole"}[made.head]
    device, kernel = made.arena.device, made.kernel
    where = made.session.socket + (
        ", where GPUs are simulated" if device.type == "cpu" else "")
    shared = "" if made.ranks is None else (
        f" dealt to {made.ranks.size} ranks")
    chosen = "" if made.chunk_choice is None else f" ({made.chunk_choice})"
    widths = next(((w, v) for _, _, w, v in made.attended), (8, 8))
    by = "" if device.type == "cpu" else (
        f", attention by {gpu_blocks.kernel_for(kernel, device, 2, *widths)}")
    if by and kernel == "auto":
        by += f" (fp32: {gpu_blocks.kernel_for(kernel, device, 4, *widths)})"
    again = "" if made.rerun == 0 else (
        f", the first {made.rerun:.0%} run again in backward")
    states = sum(layer in made.carriers for layer in adapter.layers)
    handing = f", {states} of which hand states on," if states else ""
    whole = sum(count for _, count in made.whole)
    handing += f" {whole} of which run whole," if whole else ""
    return (f"sluice: {adapter.name}: {len(adapter.layers)} layers{handing} in "
            f"chunks of {made.chunk} rows{chosen}{shared}{by}{again}, {head}; "
            f"host memory from {where}")
