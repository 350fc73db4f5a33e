"""Configuration fields that single models need besides those of fields.py, and
models that cannot be built."""

from __future__ import annotations

_TWO_ROPES = {
    kind: {"rope_type": "default", "rope_theta": 10_000.0}
    for kind in ("sliding_attention", "full_attention")
}

# An indexer chooses tokens. Its budget is so small that it leaves tokens out.
_INDEXER = {
    "eos_token_id": 2,
    "indexer_kv_heads": 1,
    "indexer_budget": 24,
    "indexer_compress_ratio": 4,
    # Embeddings by hashed n-grams, in one layer (counted from 1).
    "ple_layer_ids": [1],
    "ngram_vocab_size_base": 101,
    "heads_per_ngram": 2,
    "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 1,
    "hc_lowrank": 8,
}

# Heads have another size in layers with full attention. That size is an
# argument of the configuration, but not a field.
_GEMMA4 = {"global_head_dim": 16, "num_kv_shared_layers": 2}

# Layers with a window have separate sizes, which are passed in addition to the
# fields.
_DOTS = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 12,
    "swa_qk_nope_head_dim": 8,
    "swa_qk_rope_head_dim": 4,
    "swa_v_head_dim": 8,
}

# name -> fields of its configuration. A nested dictionary has the fields of a
# nested configuration.
EXCEPTIONS: dict[str, dict[str, object]] = {
    # Without this list no layer has attention.
    "bamba": {"attn_layer_indices": [1, 3]},
    # The byte encoder and decoder refer to the width of the model between
    # them.
    "blt": {
        "encoder_hash_byte_group_vocab": 101,
        "encoder_config": {"hidden_size_global": 32},
        "decoder_config": {"hidden_size_global": 32},
    },
    # Its default rotary parameters lack the kinds of its layers.
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": _TWO_ROPES,
    },
    # Its nested configurations have fields that are at the top in other models.
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10_000.0},
        "ffn_config": {"moe_top_k": 2},
    },
    "dots3_note": _DOTS,
    "dots3_note_text": _DOTS,
    # Widths of the state space; their products must agree.
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8},
    "mamba2": {"num_heads": 8},
    # The last layers use keys and values of earlier layers.
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
    },
    "gemma4_text": {**_GEMMA4, "hidden_size_per_layer_input": 8},
    "gemma4_unified_text": _GEMMA4,
    "gemma4": {"text_config": {**_GEMMA4, "hidden_size_per_layer_input": 8}},
    "gemma4_unified": {"text_config": _GEMMA4},
    # git's loss needs a picture. This picture is one patch and a class token.
    "git": {"vision_config": {"image_size": 16, "patch_size": 16}},
    "got_ocr2": {"vision_config": {"image_size": 64}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    # transformers 4 has no default list of kinds.
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_offset": 1},
    # Without a list of kinds all layers of lfm2 have attention, and lfm2_moe's
    # layers have no kind.
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"zero_expert_num": 2},
    # transformers 4 requires the kind of the rotary embedding.
    "mllama": {"rope_scaling": {"rope_type": "default"}},
    "mega": {"is_decoder": True},
    "qwen4_exp": _INDEXER,
    "qwen4_exp_text": _INDEXER,
    # 75 tokens are whole chunks of 15; hashes are drawn from a seed.
    "reformer": {
        "is_decoder": True,
        "attn_layers": ["local", "lsh", "local", "lsh"],
        "axial_pos_embds": False,
        "local_attn_chunk_length": 15,
        "lsh_attn_chunk_length": 15,
        "hash_seed": 1,
        "num_buckets": 4,
    },
    "roc_bert": {
        "shape_vocab_size": 97,
        "shape_embed_dim": 16,
        "pronunciation_vocab_size": 97,
        "pronunciation_embed_dim": 16,
    },
    # One of its languages must be the default.
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}

# Models that cannot be made or trained on the CPU without a hub, and why.
UNBUILT: dict[str, str] = {
    "gemma3n": "its vision tower needs the packages timm and PIL",
    "gemma4_assistant": (
        "drafts from another model's keys and values: no tokens in, no loss"
    ),
    "gemma4_unified_assistant": (
        "drafts from another model's keys and values: no tokens in, no loss"
    ),
}

# Further models that transformers 4 cannot make or train, and why.
UNBUILT_4: dict[str, str] = {
    "qdqbert": "needs the package pytorch-quantization",
    "speech_to_text_2": (
        "deprecated, cannot be initialised: _init_weights reads a weight that"
        " its position embedding does not have"
    ),
    "transfo-xl": (
        "deprecated, its forward raises: it calls Tensor.type_as with dtype="
    ),
    "xlstm": (
        "its native training kernel raises: it calls a tensor (vecM_k_combine)"
    ),
}

# Encoders with a language-model head, which are causal only as decoders.
ENCODERS = frozenset(
    "bert bert-generation big_bird camembert data2vec-text electra ernie"
    " megatron-bert qdqbert rembert roberta roberta-prelayernorm roc_bert"
    " roformer xlm xlm-roberta xlm-roberta-xl xlnet xmod".split()
)

# Kinds that cannot be found in a configuration (see kinds.py).
KINDS: dict[str, str] = {
    "mamba": "state space",
    "mamba2": "state space",
    "falcon_mamba": "state space",
    "rwkv": "state space",
    "xlstm": "state space",
    "speech_to_text_2": "encoder-decoder",
    "transfo-xl": "decoder",
    "gemma4_assistant": "decoder",
    "gemma4_unified_assistant": "decoder",
    "mega": "hybrid",
    "musicgen": "encoder-decoder",
    "musicgen_melody": "encoder-decoder",
}


def unbuilt(name: str) -> str | None:
    """Returns why the installed transformers cannot build `name`, or None."""
    import transformers

    if transformers.__version__.startswith("4.") and name in UNBUILT_4:
        return UNBUILT_4[name]
    return UNBUILT.get(name)


def arguments(name: str, ids, labels) -> dict[str, object]:
    """Returns the model's arguments for tokens `ids` and `labels`, [B, S]."""
    import torch

    if name.startswith("musicgen"):
        # Two codebooks: rows of ids one after the other, labels [B, S, 2].
        return {
            "input_ids": ids.repeat_interleave(2, dim=0),
            "labels": torch.stack([labels, labels.roll(1, dims=1)], dim=-1),
        }
    batch = {"input_ids": ids, "labels": labels}
    if name == "git":  # its loss skips the picture's tokens
        pictures = torch.linspace(-1, 1, 2 * 3 * 16 * 16)
        batch["pixel_values"] = pictures.view(2, 3, 16, 16)
    return batch
