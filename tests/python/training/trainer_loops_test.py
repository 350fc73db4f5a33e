"""Loops of Trainer, TRL and PEFT log in each step of a streamed model what they
log of the plain model. Adapters and packed documents are exact."""

from __future__ import annotations

import copy

import datasets
import pytest
import torch
from loops import Log, assert_equal_logs, rows, settings, tokenizer, train
from models import assert_same, batch, run, tiny, unstreamed
from peft import LoraConfig, get_peft_model
from support import deep
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    Trainer,
    TrainingArguments,
    masking_utils,
)
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    SFTConfig,
    SFTTrainer,
)

import sluice


def trainer(collator=None, **more):
    return lambda model, log: Trainer(
        model=model, args=TrainingArguments(**settings(**more)),
        train_dataset=rows(labels=True), callbacks=[log],
        data_collator=collator or DataCollatorForSeq2Seq(tokenizer()))


def sft(adapters=None, **more):
    return lambda model, log: SFTTrainer(
        model=model, train_dataset=rows(), processing_class=tokenizer(),
        args=SFTConfig(**settings(**{"max_length": 64, **more})),
        callbacks=[log], peft_config=adapters)


def words(first, count):
    return " ".join(f"w{3 + (first + 5 * i) % 90}" for i in range(count))


def grpo(model, log):
    """Prompts and batches are padded on the left."""
    def reward(completions, **_):
        return [float(sum(map(len, text.split()))) for text in completions]

    prompts = datasets.Dataset.from_list(
        [{"prompt": words(i, 4 + 3 * i)} for i in range(8)])
    return GRPOTrainer(
        model=model, reward_funcs=reward, train_dataset=prompts,
        args=GRPOConfig(**settings(
            max_steps=6, per_device_train_batch_size=4, num_generations=2,
            max_completion_length=9, beta=0.0)),
        processing_class=tokenizer(), callbacks=[log])


def dpo(model, log):
    pairs = datasets.Dataset.from_list([
        {"prompt": words(i, 6 + i), "chosen": " " + words(2 * i, 21 - i),
         "rejected": " " + words(3 * i, 9 + 2 * i)} for i in range(8)])
    return DPOTrainer(  # the reference is the model without its adapters
        model=model, train_dataset=pairs, callbacks=[log],
        args=DPOConfig(**settings()), processing_class=tokenizer(),
        peft_config=lora())


MOE = dict(num_local_experts=4, num_experts_per_tok=2)


def lora(**more):
    return LoraConfig(**{"r": 4, "lora_dropout": 0.0, "target_modules": [
        "q_proj", "down_proj"], **more})


# name -> (function that makes the trainer, whether stream() is called later)
LOOPS = {
    "trainer, accumulating, checkpointing": (trainer(
        gradient_accumulation_steps=2, gradient_checkpointing=True,
        max_grad_norm=0.5), False),
    "trainer, label smoothing": (trainer(label_smoothing_factor=0.1), False),
    "trainer, flattened": (trainer(DataCollatorWithFlattening(
        return_flash_attn_kwargs=True, return_seq_idx=True)), False),
    "sft, accumulating": (sft(gradient_accumulation_steps=2), False),
    "sft, then stream()": (sft(), True),
    "sft, packed": (sft(packing=True), False),
    "sft, padding-free": (sft(padding_free=True, max_length=None), False),
    "sft, its dft loss": (sft(loss_type="dft"), False),
    "sft, lora": (sft(lora()), False),
    "sft, lora, packed, then stream()": (sft(lora(), packing=True), True),
    "sft, lora on the embedding, head saved": (sft(lora(
        target_modules=["v_proj", "embed_tokens"],
        modules_to_save=["lm_head"])), False),
    "dpo": (dpo, False),
    "grpo": (grpo, False),
}


@pytest.mark.parametrize("name", LOOPS)
def test_each_step_logs_the_unstreamed_models_values(session, name):
    make, late = LOOPS[name]
    assert_equal_logs(train(make, session, late=late), train(make, None))


@pytest.mark.parametrize("share, late", [
    deep(0.0, False), (0.0, True), (0.3, False), deep(0.3, True)])
def test_router_losses_are_logged_as_unstreamed(session, late, share):
    make = sft(router_aux_loss_coef=share, max_steps=3)
    assert_equal_logs(train(make, session, tiny("mixtral", **MOE), late),
                      train(make, None, tiny("mixtral", **MOE)))


ADAPTERS = {
    "layers": lora(), "dora": lora(use_dora=True),
    "head": lora(target_modules=["lm_head", "o_proj"]),
    "embedding": lora(target_modules=["embed_tokens", "up_proj"]),
    "saved modules": lora(modules_to_save=["lm_head", "embed_tokens", "norm"]),
}


@pytest.mark.parametrize("name, late", [
    *((name, False) for name in ADAPTERS), ("saved modules", True),
    ("head", True), *(deep(name, True) for name in (
        "layers", "dora", "embedding"))])
def test_adapters_have_the_gradients_of_the_model_itself(session, name, late):
    def adapted(model):
        torch.manual_seed(1)
        model = get_peft_model(model, ADAPTERS[name])
        with torch.no_grad():  # half of a new adapter's weights are zero
            for key, parameter in model.named_parameters():
                if "lora_" in key:
                    parameter.copy_(torch.randn_like(parameter) * 0.1)
        return model

    inputs, model = batch(), tiny()
    expected = run(adapted(tiny()), inputs)
    if late:
        model = adapted(model)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    got = run(model if late else adapted(model), inputs)
    assert any(g is not None and g.any() for g in got.gradients.values())
    assert_same(got, expected)
    assert stream.stats().blocks > 0 and stream.stats().host_bytes == 0
    stream.unstream()


@pytest.mark.parametrize("late", [False, True])
def test_an_adapter_of_a_tied_head_is_exact(session, late):
    def adapted(model):
        torch.manual_seed(1)
        return get_peft_model(model, lora(
            target_modules=["embed_tokens", "v_proj"],
            init_lora_weights=False))

    model = tiny("qwen2", tie_word_embeddings=True)
    expected = run(adapted(copy.deepcopy(model)), batch())
    model = adapted(model) if late else model
    sluice.stream(model, session=session, chunk=16, quiet=True)
    assert_same(run(model if late else adapted(model), batch()), expected)


def test_adapters_with_dropout_have_the_gradient_of_their_drawn_masks(session):
    """Compares with finite differences along the gradient, with the same random
    numbers."""
    torch.manual_seed(1)
    model = get_peft_model(tiny().double(), lora(
        lora_dropout=0.3, init_lora_weights=False)).double()
    sluice.stream(model, session=session, chunk=16, check="always", quiet=True)
    state = torch.get_rng_state()
    run(model, batch())
    trained = [p for p in model.parameters() if p.requires_grad]
    directions = [p.grad.clone() for p in trained]

    def loss(step):
        torch.set_rng_state(state)
        with torch.no_grad():
            for weight, direction in zip(trained, directions):
                weight.add_(step * direction)
            found = model(**batch()).loss.item()
            for weight, direction in zip(trained, directions):
                weight.sub_(step * direction)
        return found

    slope = (loss(2e-2) - loss(-2e-2)) / 4e-2
    expected = sum(float(d.norm()) ** 2 for d in directions)
    assert abs(slope - expected) <= 1e-3 * expected


# --- packed documents -------------------------------------------------------

def packed(**changes):
    """Returns a batch [1, 75] with three documents, described as flattening
    collators do."""
    cut = torch.tensor([0, 20, 21, 75], dtype=torch.int32)
    lengths = cut.diff().tolist()
    return {**batch(1), "use_cache": False, "cu_seq_lens_q": cut,
            "cu_seq_lens_k": cut, "max_length_q": 54, "max_length_k": 54,
            "position_ids": torch.cat([torch.arange(n) for n in lengths])[
                None],
            "seq_idx": torch.repeat_interleave(torch.arange(
                3, dtype=torch.int32), cut.diff())[None], **changes}


def test_documents_are_exact_by_positions_and_by_lengths(session):
    model = tiny()
    expected = unstreamed(model, packed())
    apart = unstreamed(model, {**batch(1), "use_cache": False})
    # The documents make a difference.
    assert abs(apart.loss - expected.loss) > 1e-3
    sluice.stream(model, session=session, chunk=16)
    assert_same(run(model, packed()), expected)
    again = packed()
    both = {**batch(2), "use_cache": False, "position_ids": again[
        "position_ids"].expand(2, -1), "cu_seq_lens_q": torch.cat([
            again["cu_seq_lens_q"][:-1], 75 + again["cu_seq_lens_q"]])}
    assert_same(run(model, both), unstreamed(model, both))


def test_a_callback_streams_each_training_until_its_end(session):
    model, log = tiny(), Log()
    loop = Trainer(
        model=model, args=TrainingArguments(**settings()),
        train_dataset=rows(labels=True),
        data_collator=DataCollatorForSeq2Seq(tokenizer()),
        callbacks=[sluice.SluiceCallback(
            sluice.StreamConfig(chunk=24), session=session, quiet=True), log])
    expected = train(trainer(), None, copy.deepcopy(model))
    for _ in range(2):
        log.said.clear()
        loop.train()
        assert sluice.of(model) is None and "forward" not in vars(model)
        assert [said["sluice_steps"] for said in log.said[:-1]] == list(
            range(1, len(log.said)))
        assert all(said["sluice_host_peak_bytes"] > 0
                   for said in (*log.said, *loop.state.log_history))
        if _ == 0:
            assert_equal_logs(log.said, expected)


@pytest.fixture(scope="module")
def streamed():
    """One model for all calls that are refused."""
    model = tiny()
    stream = sluice.stream(model, chunk=16, quiet=True)
    yield model, stream
    stream.unstream()


@pytest.mark.parametrize("change,names", [
    (dict(position_ids=None), "cu_seq_lens_q without position_ids"),
    (dict(position_ids=torch.arange(75)[None]), "cu_seq_lens_q, which does"),
    (dict(cu_seq_lens_k=torch.tensor([0, 20, 75])), "cu_seq_lens_k, which"),
    (dict(seq_idx=torch.zeros(1, 75)), "seq_idx, which does not say"),
    (dict(attention_mask=torch.ones(1, 75)), "beside an attention_mask"),
], ids=str)
def test_descriptions_of_documents_that_disagree_are_refused(
        streamed, change, names):
    model, stream = streamed
    with pytest.raises(sluice.Unsupported, match=names):
        model(**packed(**change))
    assert stream.stats().host_bytes == 0


def test_a_mask_without_the_documents_is_refused(session, monkeypatch):
    model = tiny()
    sluice.stream(model, session=session, chunk=16)
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices",
                        lambda positions: None)
    with pytest.raises(sluice.Unsupported, match="keep packed documents"):
        model(**packed())
