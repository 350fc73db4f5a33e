"""Models that are streamed before they have weights have the gradients of the
plain model once they get its weights. Offloaded weights are refused."""

from __future__ import annotations

import contextlib
import resource

import pytest
import torch
import transformers
from accelerate import cpu_offload
from gloo import run_ranks
from models import SIZES, assert_same, batch, run, tiny
from peft import LoraConfig, get_peft_model
from private_daemon import PrivateDaemon
from support import forked
from torch import nn
from unmade_weights import fill, on_meta, work

import sluice


def test_models_without_weights_get_the_plain_gradients(tmp_path):
    with contextlib.closing(PrivateDaemon(gpus=1)) as daemon:
        ranks = forked(lambda: run_ranks(
            2, work, 2, str(tmp_path / "group"), daemon.socket))
    assert ranks.returncode == 0, ranks.stdout + ranks.stderr


def test_weights_that_are_tied_again_are_trained_as_one(session):
    with torch.device("meta"):
        model = tiny(tie_word_embeddings=True)
    plain = tiny(tie_word_embeddings=True)
    stream = sluice.stream(model, session=session, chunk=16)
    model.to_empty(device="cpu")  # separates tied weights
    model.tie_weights()
    fill(model, plain)
    model.tie_weights()
    assert_same(run(model, batch()), run(plain, batch()))
    stream.unstream()


def test_adapters_are_streamed_before_they_have_weights(session):
    def adapted(model):
        torch.manual_seed(1)
        return get_peft_model(model, LoraConfig(
            r=4, init_lora_weights=False, target_modules=["q_proj"]))

    with torch.device("meta"):
        model = adapted(tiny())
    plain = adapted(tiny())
    stream = sluice.stream(model, session=session, chunk=16)
    fill(model, plain)
    assert_same(run(model, batch()), run(plain, batch()))
    stream.unstream()


class Mixing(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1e-2 * x.roll(1, 1)


def test_a_layer_that_mixes_rows_runs_whole_before_it_has_weights(session):
    model, plain = on_meta("llama"), tiny()
    for each in model, plain:
        for layer in each.model.layers:
            layer.mlp = Mixing(layer.mlp)
    stream = sluice.stream(model, session=session, chunk=16)
    [(kind, count)] = stream.whole
    assert "mixes tokens" in kind.why and count == 2
    fill(model, plain)
    assert_same(run(model, batch()), run(plain, batch()))


def test_offloaded_weights_are_refused_by_name(session):
    model = cpu_offload(tiny())
    with pytest.raises(sluice.Unsupported, match="without offloading"):
        sluice.stream(model, session=session, chunk=16)


def test_streaming_many_layers_without_weights_takes_little_memory(session):
    config = transformers.LlamaConfig(**{
        **SIZES, "num_hidden_layers": 80, "hidden_size": 512,
        "intermediate_size": 2048, "vocab_size": 128256})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config).train()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sluice.stream(model, session=session)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
             - before) << 10
    # The fp32 weights would take 1.55e9 bytes.
    assert grown < 40 * 4 * 4e6
