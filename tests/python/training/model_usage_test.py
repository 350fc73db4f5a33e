"""Tests calls, copies, changes and failures of a streamed model in user code.
"""

from __future__ import annotations

import copy
import gc
import inspect

import accelerate
import numpy as np
import peft
import pytest
import torch
from models import (
    VOCAB,
    Run,
    Wrapper,
    assert_same,
    batch,
    run,
    tiny,
    unstreamed,
)
from support import deep
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from transformers import LlamaForCausalLM

import sluice
from sluice.attention import masks


@pytest.fixture
def streamed(session):
    """Returns a function that streams a model until the test's end."""
    streams = []

    def make(model, **options):
        streams.append(sluice.stream(model, session=session, quiet=True,
                                     **{"chunk": 16, **options}))
        return streams[-1]

    yield make
    for stream in streams:
        stream.unstream()


def same_after(change, streamed, inputs=None, model=None, **options):
    """Streams a model, changes the model and a copy, and compares a step of
    both."""
    model, inputs = model or tiny(), inputs or batch()
    twin = copy.deepcopy(model)
    stream = streamed(model, **options)
    change(model)
    change(twin)
    assert_same(run(model, inputs), run(twin, inputs),
                unstreamed(twin, inputs, "sdpa"))
    assert stream.stats().host_bytes == 0
    return stream


# --- the head and its loss --------------------------------------------------

def mean_loss(logits, labels=None, vocab_size=None, shift_labels=None, **_):
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), shift_labels.flatten())


@pytest.mark.parametrize("early", [True, False])
def test_a_loss_that_takes_a_mean_is_exact_over_many_head_chunks(streamed,
                                                                 early):
    model = tiny(max_position_embeddings=1024)
    if early:
        model.loss_function = mean_loss
    same_after(lambda m: setattr(m, "loss_function", mean_loss), streamed,
               batch(length=600), model, chunk=256)


class Weighted(LlamaForCausalLM):
    def forward(self, input_ids=None, labels=None, weight=1.0, **more):
        out = super().forward((input_ids + 1) % 90, labels=labels, **more)
        out.loss = out.loss * weight
        return out


def test_a_forward_of_the_users_own_is_run(streamed):
    torch.manual_seed(0)
    same_after(lambda m: None, streamed, {**batch(), "weight": 3.0},
               Weighted(tiny().config).train())


@pytest.mark.parametrize("given", [
    {"num_items_in_batch": 77}, {"output_hidden_states": True},
    {"shift_labels": batch(seed=3)["labels"]},
    {"token_type_ids": torch.zeros(2, 75, dtype=torch.long)},
], ids=str)
def test_extra_arguments_of_trainers_are_exact(streamed, given):
    same_after(lambda m: None, streamed, {**batch(), **given})


def test_no_return_dict_gives_loss_and_logits(streamed):
    model = tiny()
    streamed(model)
    loss, logits = model(**batch(), return_dict=False)[:2]
    assert loss.dim() == 0 and logits.shape[:2] == (2, 75)


def test_inference_mode_has_the_plain_loss(streamed):
    model = tiny()
    expected = unstreamed(model, batch()).loss
    streamed(model)
    with torch.inference_mode():
        assert abs(float(model(**batch()).loss) - expected) < 1e-5


def test_fp16_gradients_keep_the_losss_scale(streamed):
    model = tiny().half()
    twin = copy.deepcopy(model)
    streamed(model)
    for each in model, twin:
        (each(**batch()).loss * 2 ** 14).backward()
    ours, theirs = model.lm_head.weight.grad, twin.lm_head.weight.grad
    assert (ours - theirs).norm() < 1e-2 * theirs.norm()


# --- masks ------------------------------------------------------------------

@pytest.mark.parametrize("at", [deep(-3), deep(1), 40])
def test_a_hole_in_a_mask_is_refused(streamed, at):
    model, inputs = tiny(), batch()
    streamed(model)
    inputs["attention_mask"] = torch.ones(2, 75, dtype=torch.long)
    inputs["attention_mask"][0, at] = 0
    with pytest.raises(sluice.Unsupported, match="holes"):
        model(**inputs)


@pytest.mark.parametrize("function", [
    lambda b, h, q, k: (k <= q) | ((k == 41) & (q == 40)),
    lambda b, h, q, k: (k <= q) & ~((k == 40) & (q == 60)),
    lambda b, h, q, k: (k <= q) & ~((h == 1) & (k < q - 5))])
def test_a_mask_that_is_wrong_in_one_place_is_refused(function):
    with pytest.raises(sluice.Unsupported):
        masks.find(function, 1, 70, 4, torch.device("cpu"))


def restarting():
    places = torch.cat([torch.arange(30), torch.arange(45)]).expand(2, -1)
    return {**batch(), "position_ids": places}


def test_packed_rows_without_a_cache_are_exact(streamed):
    same_after(lambda m: None, streamed, {**restarting(), "use_cache": False})


def test_packed_documents_are_separated_without_being_declared(streamed):
    """transformers mixes the documents if config.use_cache creates a cache."""
    model = tiny()
    expected = unstreamed(model, {**restarting(), "use_cache": False})
    streamed(model)
    assert_same(run(model, restarting()), expected)


# --- copies and changes -----------------------------------------------------

def test_a_copy_computes_with_its_own_weights_and_is_not_streamed(streamed):
    model = tiny()
    stream = streamed(model)
    twin, expected = copy.deepcopy(model), tiny()
    with torch.no_grad():
        for each in twin, expected:
            each.lm_head.weight.mul_(1.5)
    assert_same(run(twin, batch()), run(expected, batch()))
    assert stream.stats().steps == 0
    assert all(p.grad is None for p in model.parameters())


def test_a_copy_that_is_streamed_too_runs_its_head_by_rows(streamed):
    model = tiny()
    streamed(model)
    twin = copy.deepcopy(model)
    stream = streamed(twin)
    assert_same(run(twin, batch()), run(tiny(), batch()))
    assert stream.head == "rows" and stream.stats().blocks > 0


def test_stream_keeps_the_forwards_signature(streamed):
    model = tiny()
    before = inspect.signature(model.forward)
    streamed(model)
    assert inspect.signature(model.forward) == before


@pytest.mark.parametrize("frozen", [False, True])
def test_functional_call_is_exact_and_leaves_the_parameters(streamed, frozen):
    model = tiny()
    twin = copy.deepcopy(model)
    streamed(model, check="off")
    found = []
    for each in model, twin:
        own = dict(each.named_parameters())
        given = {n: (p.detach() * 1.1).requires_grad_(
            not frozen or "q_proj" in n) for n, p in own.items()}
        torch.func.functional_call(each, given, kwargs=batch()).loss.backward()
        assert all(p is own[n] for n, p in each.named_parameters())
        found.append({n: p.grad for n, p in given.items()})
    for name, gradient in found[1].items():
        assert gradient is None or (found[0][name] - gradient).norm() < (
            3e-5 * gradient.norm())


def test_eval_between_forward_and_backward_is_exact(streamed):
    results = []
    for model in tiny(), tiny():
        for layer in model.model.layers:
            layer.mlp.register_forward_hook(
                lambda module, args, y: y * (2 if module.training else 1))
        if not results:
            streamed(model, check="off")
        loss = model(**batch()).loss
        model.eval()
        loss.backward()
        results.append(model.model.layers[0].mlp.up_proj.weight.grad)
    assert torch.allclose(*results, rtol=1e-4, atol=1e-6)


def test_cached_parametrizations_are_refused(streamed):
    model = tiny()
    streamed(model)
    with parametrize.cached(), pytest.raises(sluice.Unsupported):
        model(**batch())


def test_the_first_step_that_trains_is_checked_first(streamed):
    model = tiny()
    stream = streamed(model)
    with torch.no_grad():
        model(**batch())
    model(**batch())  # a forward without a backward
    assert not stream.checks.has_passed
    run(model, batch())
    assert stream.checks.has_passed
    model.model.layers[0].mlp.register_forward_hook(
        lambda module, args, y: 2 * y)
    model(**batch())  # this call probes the layers again
    assert not stream.checks.has_passed


def in_place(model, backend):
    for layer in model.model.layers:
        layer.compile(backend=backend)
    return model


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("compiled", [
    torch.compile, in_place, lambda m, backend: accelerate.utils.
    compile_regions(m, backend=backend)], ids=["model", "layers", "regions"])
def test_a_compiled_model_is_exact_and_warns_that_it_runs_uncompiled(
        streamed, compiled, backend):
    model = tiny()
    expected = unstreamed(model, batch())
    stream = streamed(model)
    with pytest.warns(UserWarning, match="run uncompiled.*layer.mlp.compile"):
        compiled(model, backend=backend)(**batch()).loss.backward()
    assert_same(Run(expected.loss, {n: p.grad for n, p in
                                    model.named_parameters()}), expected)
    assert stream.stats().steps == 1
    torch._dynamo.reset()


def test_modules_in_layers_run_compiled(streamed):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    def compile_mlps(model):
        for layer in model.model.layers:
            layer.mlp.compile(backend=backend)

    torch._dynamo.reset()
    model = tiny()
    streamed(model)
    compile_mlps(model)
    assert_same(run(model, batch()), unstreamed(tiny(), batch()))
    assert graphs
    torch._dynamo.reset()


@pytest.mark.parametrize("keep", [False, True])
def test_accelerates_wrapper_can_be_added_and_removed(streamed, keep):
    """accelerate wraps the model's forward. A copy of the wrapped model must
    compute with its own weights."""
    model = tiny()
    expected = unstreamed(model, batch())
    takes = inspect.signature(model.forward)
    stream = streamed(model)
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    wrapped = accelerator.prepare(model)
    wrapped(**batch()).loss.backward()
    twin = copy.deepcopy(wrapped)
    with torch.no_grad():
        twin.lm_head.weight.zero_()
    assert abs(float(twin(**batch()).loss) - float(np.log(VOCAB))) < 1e-4
    assert stream.stats().steps == 1
    own = accelerator.unwrap_model(wrapped, keep_fp32_wrapper=keep)
    assert own is model and inspect.signature(own.forward) == takes
    found = run(own, batch())
    assert stream.stats().steps == 2
    if not keep:
        assert_same(found, expected)
    stream.unstream()
    assert own(**batch()).logits.isfinite().all()
    accelerate.state.AcceleratorState._reset_state(True)


# --- hooks ------------------------------------------------------------------

def with_hooks(model, calls):
    layer = model.model.layers[1]
    layer.register_forward_hook(lambda *_: calls.append("layer"))
    layer.mlp.register_forward_hook(lambda *_: calls.append("mlp"))


@pytest.mark.parametrize("late", [False, True])
def test_hooks_inside_layers_warn_that_they_run_per_chunk(session, late):
    model, calls = tiny(), []
    if late:
        sluice.stream(model, session=session, chunk=16, quiet=True)
    with_hooks(model, calls)
    with pytest.warns(UserWarning, match="'mlp' of LlamaDecoderLayer has hooks"
                      ".*each chunk.*once per forward"):
        if late:
            run(model, batch())
        else:
            sluice.stream(model, session=session, chunk=16, quiet=True)
    calls.clear()
    assert_same(run(model, batch()), unstreamed(tiny(), batch()))
    assert calls.count("layer") == 1
    assert calls.count("mlp") >= 2 * 5  # 5 chunks in forward, 5 in backward


# --- the handle -------------------------------------------------------------

@pytest.mark.parametrize("wrap", [
    lambda m: m, lambda m: Wrapper(m), torch.compile,
    lambda m: peft.get_peft_model(m, peft.LoraConfig(target_modules=[
        "q_proj"]))], ids=["itself", "wrapped", "compiled", "peft"])
def test_a_dropped_handle_is_found_again_by_its_model(session, wrap):
    model = tiny()
    assert sluice.of(model) is None
    made = sluice.stream(model, session=session, chunk=16, quiet=True)
    wrapped = wrap(model)
    assert sluice.of(wrapped) is made and sluice.of(model.lm_head) is None
    assert sluice.of(copy.deepcopy(model)) is None
    sluice.unstream(wrapped)
    sluice.unstream(wrapped)
    assert sluice.of(model) is None and "forward" not in vars(model)


def test_streaming_a_model_again_replaces_its_stream(streamed):
    model = tiny()
    twin = copy.deepcopy(model)
    first = streamed(model)
    second = streamed(model, chunk=24)
    assert sluice.of(model) is second and second.chunk == 24
    assert_same(run(model, batch()), unstreamed(twin, batch()),
                unstreamed(twin, batch(), "sdpa"))
    assert first.stats().steps == 0 and second.stats().steps == 1


def test_layers_of_another_streamed_model_are_refused_with_a_way_out(streamed):
    model = tiny()
    stream = streamed(model)
    with pytest.raises(sluice.Unsupported, match=r"sluice.unstream\(model\)"):
        streamed(model.model)
    assert sluice.of(model.model) is stream
    sluice.unstream(model.model)
    assert sluice.of(nn.ModuleList([model, tiny()])) is None
    other = tiny()
    streamed(model.model), streamed(other)
    with pytest.raises(sluice.Invalid, match="holds 2 streamed models"):
        sluice.of(nn.ModuleList([model, other]))


# --- failures ---------------------------------------------------------------

@pytest.mark.parametrize("error, call", [
    (RuntimeError, 1), deep(RuntimeError, 5), (RuntimeError, 6),
    deep(RuntimeError, 9), (RuntimeError, 10),
    *(deep(KeyboardInterrupt, call) for call in (1, 5, 9, 10)),
    (KeyboardInterrupt, 6)])
def test_an_exception_in_a_layer_leaves_no_host_bytes(streamed, error, call):
    def fail(module, args):
        fail.calls += 1
        if fail.calls == call:
            raise error("told to")

    def break_it(model):
        if "forward" not in vars(model):
            return
        fail.calls = 0
        hook = model.model.layers[1].mlp.register_forward_pre_hook(fail)
        with pytest.raises(error):
            run(model, batch())
        hook.remove()
        gc.collect()

    same_after(break_it, streamed)
