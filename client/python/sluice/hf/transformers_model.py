"""Patches a transformers model: its decoder layers, its decoder, its head. Only
instances are patched, and only their `forward`; `detach` undoes the patches.
The attention implementation is `sluice` only while a step is engaged, so
generate, evaluation with a cache and saving see the model as it was."""
from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from sluice.base import argument_table, swapped
from sluice.base.errors import UnknownRows, Unsupported
from sluice.base.model_protocols import Model, WholeKind
from sluice.hf import (
    dealing_trial,
    ends_trial,
    head_loss,
    padding,
    registry,
    routers,
    streamed_forwards,
    trial_results,
)
from sluice.hf.causal import Causal
from sluice.hf.causal_twin import Parts, Twins, around, find_decoder
from sluice.hf.changed_after_stream import (
    Held,
    Inside,
    refuse_values_of_calls,
    warn_of_hooks,
)
from sluice.hf.dealing import Dealing
from sluice.hf.ends import Ends
from sluice.hf.fsdp_units import refuse_compiled, refuse_within
from sluice.hf.head import Head
from sluice.node import calls, plain_layers, rows, whole_layers
from sluice.node import layer as layers_
from sluice.node.eager_attention import Cut
from sluice.node.patch import Patch
from sluice.node.step import Step, current
from sluice.node.streamed import Stream
from sluice.proof import probe, signature
from sluice.proof.captured_calls import by_kind, first_of_kind, probe_tokens

registry.register()

_ATTENTION = "_attn_implementation_internal"  # an attribute of configs
# Tried twins of this process, by signature and settings of their models.
_known: dict[Hashable, Adapter] = {}


def adapter_of(model: nn.Module) -> Adapter:
    streamed_forwards.refuse_adapters(model)
    causal = model.get_base_model() if hasattr(model, "peft_config") else model
    made = Adapter(Parts(causal, *find_decoder(causal)))
    made.refuse_setup()
    return made


class Adapter(Model):
    """The patches of one model, or of its twin."""

    def __init__(self, parts: Parts):
        super().__init__()
        self.causal, self.decoder, self.layers, self._is_small = parts
        self.name = type(self.causal).__name__
        # The decoder, or a multimodal model around it that makes its masks.
        self.entry = self.decoder
        # Configs of decoder and layers: an image tower keeps its attention.
        self.configs = list({id(m.config): m.config for m in (
            self.decoder, *(m for layer in self.layers
                            for m in layer.modules()))
            if isinstance(getattr(m, "config", None),
                          PretrainedConfig)}.values())
        self.way = "registry"
        # Attention implementations of the configs before a step was engaged.
        self._own_attention: list[tuple] = []
        self.logits_last = False  # whether layers return router logits last
        self.dealing: Dealing | None = None  # set with a group
        self._inside: Inside | None = None  # of the layers; None in a twin
        self._head: Head | None = None
        self._entered = False  # whether the entry's patched forward runs
        self._held = Held.by(self.decoder, self.layers)

    # --- attaching ----------------------------------------------------------

    def attach(self, stream: Stream) -> None:
        """Runs trials on a twin and patches the model by what they found.
        Raises `Unsupported` if the model cannot be streamed exactly."""
        if len(set(self.layers)) < len(self.layers):
            raise Unsupported(self.decoder, "a layer that is run several times")
        tried = self._as_tried(stream)
        self.logits_last, self.way = tried.logits_last, tried.way
        self._patch_layers(stream)
        self._patch_entry(stream, self._here(tried, tried.entry))
        self._take_layers(stream, tried)
        if self.dealing is not None and tried.dealing is not None:
            trial_results.of_dealing(self.dealing, tried.dealing,
                                     self._like(tried))
        trial_results.of_ends(self.ends, tried.ends)
        stream.in_host = stream.hidden == "host"
        if tried._head is not None:
            self._patch_causal(stream)
            self._take_head(tried)

    def _as_tried(self, stream: Stream) -> Adapter:
        """Returns a tried twin, perhaps of a model with the same signature."""
        made = signature.of(self.causal)
        key = (made, frozenset(stream.rows.items()), stream.hidden,
               stream.ranks and stream.ranks.size)
        tried = _known.get(key) or self._on_twins(stream, Adapter.try_all)
        if made is not None:
            _known[key] = tried
        return tried

    def _on_twins(self, stream: Stream,
                  try_: Callable[[Adapter, Stream], None]) -> Adapter:
        """Returns the twin, small or whole, on which `try_` passed."""
        twins = Twins(self.causal, self.decoder, self.layers, {
            module: patch.before for module, patch in self._patches.items()})

        def tried(small: bool, device: torch.device) -> Adapter:
            trials = stream.for_trials(device)
            with probe.trying(device), twins.made(small, device) as parts:
                made = self._twin(parts)
                trials.whole_layers.update(trial_results.whole(
                    stream, self.layers, made.layers))
                try_(made, trials)
            trials.forget()
            return made

        def of_any_size(device: torch.device) -> Adapter:
            *small, whole = twins.sizes()
            for size in small:
                with contextlib.suppress(Unsupported):
                    return tried(size, device)
            return tried(whole, device)

        return probe.on_devices(stream, self.name, stream.arena.device,
                                of_any_size)

    def _twin(self, parts: Parts) -> Adapter:
        made = Adapter(parts)
        made.entry = made._here(self, self.entry)
        made.way, made.logits_last = self.way, self.logits_last
        return made

    def _here(self, other: Adapter, module: nn.Module) -> nn.Module:
        """Returns this model's module at the path of `module` in `other`."""
        return self.causal.get_submodule(next(
            path for path, m in other.causal.named_modules() if m is module))

    def _like(self, tried: Adapter) -> Callable[[int], int]:
        """Maps a layer's index to one of the same kind in the twin `tried`."""
        first, count = first_of_kind(self.layers), len(tried.layers)
        return lambda index: index if index < count else first[index]

    def _patch_layers(self, stream: Stream) -> None:
        self._warn = stream.warn_once
        for layer in self.layers:
            self._patch(layer, self._layer_forward(stream))
        self.ends = Ends(self, stream)

    def _patch_entry(self, stream: Stream, entry: nn.Module) -> None:
        self.entry = entry
        self._patch(entry, self._entry_forward(stream),
                    lambda: stream.say_once(
                        f"a copy of {self.name} is not streamed: stream() it "
                        "too, if it is to be"))

    def _patch_causal(self, stream: Stream) -> Head:
        causal = Causal(self.causal, self.ends,
                        functools.partial(self.renew, stream),
                        functools.partial(self._renew_head, stream))
        self._patch(self.causal, causal.forward())
        self._head = causal.head
        return causal.head

    def _take_layers(self, stream: Stream, tried: Adapter) -> None:
        trial_results.of_layers(stream, self.layers, tried.ends.stream,
                                tried.layers, self._like(tried))
        stream.checks.kinds = by_kind(self.layers)
        self._inside = Inside.of(self.layers)
        warn_of_hooks(self.layers, self._warn)

    def _take_head(self, tried: Adapter) -> None:
        assert self._head is not None and tried._head is not None
        parent, name = tried._head.place
        self._head.place = self._here(tried, parent), name
        self.ends.stream.found_head(tried.ends.stream.head)

    # --- trials, of a twin --------------------------------------------------

    def try_all(self, stream: Stream) -> None:
        self.logits_last = routers.answered_last(self)
        self._patch_layers(stream)
        if routers.asked(self.decoder, {}):
            routers.find(self)
        self._try_all_layers(stream)
        if self._has_pictures_as_rows():
            self._refuse_small(True)
            self._run_all_whole(stream)
        # With a group, ends run whole unless hidden states are in the host.
        if stream.ranks is None or stream.hidden == "host":
            ends_trial.probe(self.ends)
            self._refuse_small(self.ends.before is None)
        if Causal.fits(self.causal, self.decoder):
            head_loss.probe(self._patch_causal(stream))
        elif stream.ranks is not None and "labels" in inspect.signature(
                type(self.causal).forward).parameters:
            raise Unsupported(self.name, "a loss that the model makes of all "
                              "rows at once, under a group", "stream its base "
                              "model, and make the loss of st.shard()'s labels")
        self._refuse_small(stream.head == "whole")

    def try_layers(self, stream: Stream) -> None:
        """Tries the layers, with attention intercepted in the known `way`."""
        self._patch_layers(stream)
        self._patch_entry(stream, self.entry)
        probe.probe(self, stream)

    def try_head(self, stream: Stream) -> None:
        self._warn, self.ends = stream.warn_once, Ends(self, stream)
        head_loss.probe(self._patch_causal(stream))
        self._refuse_small(stream.head == "whole")

    def _refuse_small(self, runs_whole: bool) -> None:
        """Refuses a small twin if a part `runs_whole`: the same part of a whole
        twin may run in chunks."""
        if self._is_small and runs_whole:
            raise Unsupported(self.name, "what is not the same by rows")

    def _try_all_layers(self, stream: Stream) -> None:
        """Tries to run all layers in chunks; if that fails, some whole."""
        try:
            return self._try_ways(stream)
        except UnknownRows as unknown:
            refused = self._tried_with_rows(stream, unknown)
            if isinstance(refused, UnknownRows):
                raise refused from None
        except Unsupported as other:
            refused = other
        self._try_whole(stream, refused)

    def _tried_with_rows(self, stream: Stream,
                         unknown: UnknownRows) -> Unsupported:
        """Tries the dimensions in which the unknown argument may have rows.
        Returns a refusal with the remedy that passed, or the clearest one."""
        refusals: list[Unsupported] = []
        for dim in (*unknown.dims, None):
            with swapped.attributes(stream, rows={**stream.rows,
                                                  unknown.argument: dim}):
                try:
                    self._try_ways(stream)
                    said = {name: d for name, d in stream.rows.items()
                            if name not in rows.ROWS}
                    return UnknownRows(unknown.module, unknown.feature,
                                       f"pass rows={said!r} to stream(), which "
                                       "was tried and is exact")
                except UnknownRows as other:
                    refused = self._tried_with_rows(stream, other)
                    if isinstance(refused, UnknownRows):
                        return refused
                    refusals.append(refused)
                except Unsupported as other:
                    refusals.append(other)
        return min(refusals, key=operator.attrgetter("vagueness"))

    def _try_whole(self, stream: Stream, refused: Unsupported) -> None:
        """Finds which layers run whole; raises `refused` if none may."""
        if refused.layer is None or refused.has_remedy:
            raise refused
        if stream.ranks is not None:
            raise Unsupported(refused.module, f"{refused.feature}, with a "
                              "group", "stream it without group=, where such "
                              "layers may run whole") from refused.__cause__
        self._try_ways(stream, may_be_whole=True)
        kind = stream.whole_layers.get(self.layers[refused.layer])
        if kind is not None:  # the clearest reason
            kind.why = f"{refused.module}: {refused.feature}"

    def _try_ways(self, stream: Stream, may_be_whole: bool = False) -> None:
        """Finds the way in which attention is intercepted, in the decoder or in
        a model around it, or raises the first of the least vague refusals.

        The order is: transformers' registry; attention that a layer writes
        out; if the model was loaded with SDPA, its calls of torch's attention
        with the model's own mask. With `may_be_whole`, ways in which no layer
        runs in chunks and some layers have the model's own attention come last,
        the way with the fewest such layers first.
        """
        ways = ["registry", "written out"]
        if self.decoder.config._attn_implementation == "sdpa":
            ways.append("sdpa")
        if may_be_whole:
            ways.append("own")
        refusals: list[Unsupported] = []
        last: list[tuple[int, Callable[[], None]]] = []
        for entry in (self.decoder, *around(self.decoder, self.causal)):
            for way in ways:
                if way == "own" and last:
                    break  # no better than those in `last`
                stream.whole_layers.clear()
                try:
                    self._try_so(stream, entry, way, may_be_whole)
                except Unsupported as refused:
                    refusals.append(refused)
                    continue
                whole = dict(stream.whole_layers)
                own = sum(kind.own_attention for kind in whole.values())
                if not own or not whole.keys() >= set(self.layers):
                    return
                self._patches.pop(entry).undo()
                last.append((own, functools.partial(
                    self._try_so, stream, entry, way, True, whole)))
        if last:
            return min(last, key=lambda one: one[0])[1]()
        raise min(refusals, key=operator.attrgetter("vagueness"))

    def _try_so(self, stream: Stream, entry: nn.Module, way: str,
                may_be_whole: bool,
                whole: Mapping[nn.Module, WholeKind] | None = None) -> None:
        self.way = way
        stream.whole_layers.update(whole or {})
        self._patch_entry(stream, entry)
        try:
            probe.probe(self, stream, may_be_whole)
        except BaseException:
            self._patches.pop(entry).undo()
            raise

    def renew(self, stream: Stream) -> None:
        """Tries the layers again if modules or hooks in them have changed."""
        if self._inside is None or not self._inside.has_changed():
            return
        refuse_values_of_calls(self.layers)
        try:
            with stream.probing_again():
                tried = self._on_twins(stream, Adapter.try_layers)
        except Unsupported as refused:
            if refused.has_remedy:
                raise
            raise Unsupported(refused.module, refused.feature, "undo the "
                              "change, or unstream() and stream the model "
                              "again, where such a layer may run whole"
                              ) from refused
        self._take_layers(stream, tried)

    def _renew_head(self, stream: Stream) -> None:
        with stream.probing_again():
            self._take_head(self._on_twins(stream, Adapter.try_head))

    def check_dealing(self, ids: Tensor, chunk: int) -> None:
        assert self.dealing is not None
        dealing_trial.check(self.dealing, ids, chunk)

    def _patch(self, module: nn.Module, forward: Callable,
               copied: Callable[[], object] | None = None) -> None:
        self._patches[module] = Patch(module, forward, self._warn, copied)

    def engage(self) -> contextlib.AbstractContextManager:
        """Makes attention and masks Sluice's; switches checkpointing off."""
        switched = [] if self.way in ("sdpa", "own") else self.configs
        own = [(vars(config), _ATTENTION, config._attn_implementation)
               for config in switched]
        if own and own[0][2] != registry.NAME:
            self._own_attention = own
        return swapped.items(*((vars(config), _ATTENTION, registry.NAME)
                               for config in switched), *self._checkpointing())

    def _checkpointing(self) -> list[tuple[dict[str, Any], str, bool]]:
        """Returns items for `swapped.items` that switch off the activation
        checkpointing of Trainer: neither streamed nor plain layers need it."""
        return [(vars(module), "gradient_checkpointing", False)
                for module in (self.entry, self.decoder, *self.layers)
                if getattr(module, "gradient_checkpointing", False)]

    def own_attention(self) -> contextlib.AbstractContextManager:
        return swapped.items(*self._own_attention)

    def inside(self) -> contextlib.AbstractContextManager:
        return (contextlib.nullcontext() if self.way in ("registry", "own")
                else Cut())

    # --- the forwards -------------------------------------------------------

    def _layer_forward(self, stream: Stream) -> Callable:
        def forward(self_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            step, own = current(), self.own_forward(self_)
            if step is None or layers_.running() is not None:
                if step is None:
                    self._warn_of_bypass(stream, self_, (*args, kwargs.get(
                        "hidden_states"))[0])
                return own(*args, **kwargs)
            if args:
                x, args = args[0], args[1:]
            else:
                x = kwargs.pop("hidden_states", None)
            whole = self_ in step.whole_layers
            if not whole:
                rows.check_hidden(self_, x)
            refuse_within(self_)
            if step.plain is not None:
                out = self._plain(step, self_, x, args, kwargs)
                if out is not plain_layers.STREAMED:
                    return out
            if not whole and x.shape[1] != step.rows:
                raise Unsupported(self_, f"{x.shape[1]} rows in a layer of a "
                                  f"sequence of {step.rows}")
            if step.arguments is not None:
                args, kwargs = step.arguments(self_, args, kwargs)
            kwargs = routers.asking(step, self_, kwargs)
            call = whole_layers.call_of(step, self_, own, x, args, kwargs,
                                        stream.rows)
            y = whole_layers.run(call, x)
            if step.sides and self_ is self.layers[-1]:
                y = routers.joined(step, y)
            return call.answer(y)

        return forward

    def _warn_of_bypass(self, stream: Stream, layer: nn.Module, x: Any
                        ) -> None:
        """Warns once if the layer trains on x without the decoder's patch."""
        # In backward the user's checkpointing runs layers again.
        backward = torch._C._current_graph_task_id() != -1
        if not self._entered and not backward and layer.training and (
                torch.is_grad_enabled() and isinstance(x, Tensor)
                and x.dim() > 1 and x.shape[1] >= stream.least_rows):
            self._warn(f"a {type(layer).__name__} trains unstreamed: it was not"
                       f" called by the forward of {type(self.entry).__name__} "
                       "that was streamed; unstream(), change the model, and "
                       "stream it again")

    def _plain(self, step: Step, layer: nn.Module, x: Tensor, args: tuple,
               kwargs: dict[str, Any]) -> Any:
        """Returns the output of the layer run plain, or STREAMED if it does not
        fit or shares keys and values with layers that may be streamed."""
        side = step.sides.get(layer)
        if step.plain is None or argument_table.HANDED in kwargs:
            return plain_layers.STREAMED

        def own() -> Any:
            with step.own_attention(), (contextlib.nullcontext() if
                                        side is None else side.watching()):
                mine, named_ = step.unmarked((args, kwargs))
                out = self.own_forward(layer)(x, *mine, **routers.asking(
                    step, layer, named_))
            return out if side is None else side.without(out)

        ways = [value for _, _, value in self._own_attention] or [
            config._attn_implementation for config in self.configs]
        if "eager" in ways:  # eager attention writes all scores to memory
            step.plain.writes_scores()
        out = step.plain.layer(
            layer, x, (args, kwargs), own, step.written_by(layer),
            lambda writes: step.scores_bytes((args, kwargs), writes, x))
        if out is plain_layers.STREAMED:
            return out
        if side is not None:
            side.keep_whole(*x.shape[:2])
        if step.sides and layer is self.layers[-1]:
            y, *more = out if isinstance(out, (tuple, list)) else (out,)
            y = routers.joined(step, y)
            return y if isinstance(out, Tensor) else (y, *more)
        return out

    def _all_plain(self, own: Callable, given: dict[str, Any]) -> Any:
        with swapped.items(*self._checkpointing()):
            return own(**given)

    def _state(self, x: Tensor) -> Hashable:
        """Returns a key that is equal for calls in which layers keep the same
        tensors for backward; x is ids [B, S] or embeddings [B, S, H]."""
        return (x.dtype, x.requires_grad, plain_layers.cast_of(x.device),
                tuple(layer.training for layer in self.layers),
                tuple((p.dtype, p.requires_grad)
                      for p in self.decoder.parameters()))

    def _entry_forward(self, stream: Stream) -> Callable:
        accepts = inspect.signature(type(self.entry).forward)
        if stream.ranks is not None:
            self.dealing = Dealing(self, self.ends, accepts.parameters)

        def forward(self_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with stream.turn, swapped.attributes(self, _entered=True):
                return streamed(self_, *args, **kwargs)

        def streamed(self_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            own = self.own_forward(self_)
            given = calls.arguments_of(accepts, self_, args, kwargs)
            if current() is not None:
                return own(*args, **kwargs)
            call = stream.call or calls.Call(
                stream.ranks, argument_table.wants(self_, given, "use_cache"))
            call.own_rows = call.blind = call.plain = None
            if not streamed_forwards.is_streamed(call, stream, self_, given):
                return own(*args, **kwargs)
            calls.refuse_transforms(self_)
            self._held.check()
            self.renew(stream)
            x = streamed_forwards.input_of(given)
            seed = stream.agree("the decoder", x, given)
            if x.shape[1] < stream.least_rows:
                return own(*args, **kwargs)
            streamed_forwards.refuse_call(self_, given)
            documents = streamed_forwards.take_documents(self_, given)
            if stream.carriers or stream.whole_layers:
                streamed_forwards.refuse_documents(self_, given, documents)
            if stream.ranks is not None:
                self._refuse_foreign(stream)
                self.dealing.refuse(call, given)
            parts = None if not call.makes_cache else (
                streamed_forwards.parts_of(given, stream))
            if "use_cache" in accepts.parameters:
                given["use_cache"] = False
            step = stream.begin(x.shape[1], x.device, self)
            step.documents = documents
            step.parts = parts
            step.padding = padding.rows(given.get("attention_mask"))
            key = plain = None
            if documents is None and parts is None:
                plain = stream.plain(step, self.layers, x.shape)
            if plain is not None:
                key = self._state(x)
            # Skipped if an end is an FSDP2 unit: all ranks must gather units in
            # one order, and on a rank with longer rows the layers may not fit.
            if plain is not None and not self.ends.units():
                out = plain.layers(
                    key, functools.partial(self._all_plain, own, given), [
                        place for layer in self.layers
                        for place in step.written_by(layer)])
                if out is not plain_layers.STREAMED:
                    call.plain = plain
                    return out
            if routers.asked(self_, given):
                routers.note(step, self)
                # transformers' own recorder would record single chunks.
                given[routers.ASKED] = False
            with step.engaged():
                out = self.ends.run(step, own, given) if (
                    step.ranks is None) else self.dealing.forward(
                        call, step, given)
            stream.ended(step)
            if plain is not None:
                plain.over(key)
            call.blind = step.blind
            out = routers.answered(call, step, out, x.shape)
            if call.rejoin is not None and call.own_rows is not None:
                out = call.with_all_rows(out, x.shape[1])
                call.rejoin(seed, x.device)
            padding.watch(self, step, call.blind if call.blind is None else
                          call.own(call.blind), out[0])
            return out

        return forward

    def _has_pictures_as_rows(self) -> bool:
        """Returns whether images become rows of the decoder, as in the model
        Git. The loss then skips these rows, and so fails without images."""
        if "pixel_values" not in inspect.signature(
                type(self.decoder).forward).parameters:
            return False
        ids = probe_tokens(self)
        try:
            with torch.no_grad(), swapped.attributes(
                    self.ends.stream, ranks=None):
                self.causal(input_ids=ids, labels=ids)
        except Exception:
            return True
        return False

    def _run_all_whole(self, stream: Stream) -> None:
        """Makes all layers run whole: rows of images have a different mask."""
        what = "pictures that become rows of the decoder"
        if stream.ranks is not None:
            raise Unsupported(self.decoder, what)
        self._patches.pop(self.entry).undo()
        whole = {layer: made for kind in by_kind(self.layers)
                 for made in [WholeKind(type(kind[0]).__name__, what, True)]
                 for layer in kind}
        self._try_so(stream, self.decoder, "own", True, whole)

    def _refuse_foreign(self, stream: Stream) -> None:
        """Raises `Unsupported` if a forward that was put over the streamed one
        calls the decoder: with a group it would get this rank's rows only."""
        patch = self._patches.get(self.causal)
        if patch is not None and stream.call is None and (
                vars(self.causal).get("forward") is not patch):
            raise Unsupported(
                self.name, "a forward that was put over the streamed one and "
                "calls the decoder by itself, under a group", "stream the "
                "model afterwards (of TRL: trainer.model, before train())")

    def refuse_setup(self) -> None:
        self._held.check()
        for index, layer in enumerate(self.layers):
            refuse_compiled(index, layer)
        for name, module in self.causal.named_modules():
            kind = type(module)
            for package in ("bitsandbytes", "liger_kernel"):
                if kind.__module__.startswith(package):
                    raise Unsupported(f"{name} ({kind.__name__})",
                                      f"a module of {package}",
                                      f"load the model without {package}")
        rows.check_parameters(self.causal)
