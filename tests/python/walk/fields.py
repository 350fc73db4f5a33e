"""The table of sizes: the value of each configuration field, by its name.

A tiny model is made from the fields of its configuration class. A field that
is not listed here keeps its default. Fields that only one model has, or that
need another value in one model, are in `exceptions.py`.
"""

from __future__ import annotations

VOCAB = 97
HIDDEN = 32
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 8
WINDOW = 24
POSITIONS = 512
FFN = 48
MOE_FFN = 24
EXPERTS = 4


def _same(value: object, names: str) -> dict[str, object]:
    return dict.fromkeys(names.split(), value)


# If all layers are alike, two are enough. A model with several kinds of layers
# (see LAYER_PATTERN) has four.
LAYERS = (
    "num_hidden_layers num_layers n_layer n_layers decoder_layers"
    " encoder_layers num_encoder_layers num_decoder_layers num_blocks"
).split()

# A configuration with one of these fields has layers of several kinds.
LAYER_PATTERN = (
    "layer_types mlp_layer_types layers_block_type sliding_window_pattern"
    " attn_layer_period first_k_dense_replace num_dense_layers"
    " decoder_sparse_step moe_layer_start_index block_types attention_types"
    " interleave_moe_layer_step layer_group_size attn_layers"
).split()

# Lists with one kind per layer. A tiny model repeats the kinds of the released
# model in their order.
LAYER_KINDS = ("layer_types", "mlp_layer_types", "layers_block_type")

SIZES: dict[str, object] = {
    **_same(VOCAB, "vocab_size vocab_size_per_layer_input n_token"),
    **_same(
        HIDDEN,
        "hidden_size d_model d_embed n_embd emb_dim embedding_size"
        " embedding_dim"
        " word_embed_proj_dim input_embedding_size output_embedding_size"
        " cross_attention_hidden_size backbone_hidden_size",
    ),
    **_same(
        FFN,
        "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner"
        " ffn_hidden_size d_inner dff dim_ff feed_forward_size"
        " intermediate_size_mlp dense_intermediate_size"
        " prefix_dense_intermediate_size",
    ),
    **_same(
        MOE_FFN,
        "moe_intermediate_size shared_expert_intermediate_size"
        " shared_experts_intermediate_size shared_intermediate_size"
        " moe_shared_expert_intermediate_size expert_ffn_hidden_size",
    ),
    **_same(
        HEADS,
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads"
        " encoder_attention_heads num_encoder_attention_heads"
        " num_decoder_attention_heads attention_heads swa_num_attention_heads"
        " linear_num_value_heads linear_num_heads",
    ),
    **_same(
        KV_HEADS,
        "num_key_value_heads num_kv_heads swa_num_key_value_heads"
        " linear_num_key_heads num_global_key_value_heads",
    ),
    **_same(
        HEAD_DIM,
        "head_dim swa_head_dim kv_channels dim_head d_head attention_head_size"
        " linear_key_head_dim linear_value_head_dim linear_head_dim"
        " qk_nope_head_dim v_head_dim global_head_dim query_pre_attn_scalar"
        " index_head_dim indexer_head_dim mamba_head_dim mamba_d_head",
    ),
    **_same(
        POSITIONS,
        "max_position_embeddings n_positions n_ctx max_seq_len"
        " model_max_length max_target_positions context_length",
    ),
    # Shorter than the 75 tokens of a row, longer than a chunk of 16.
    **_same(
        WINDOW,
        "sliding_window sliding_window_size window_size local_attention"
        " attention_chunk_size attention_window_size keep_window_size"
        " index_topk",
    ),
    **_same(
        EXPERTS,
        "num_experts num_local_experts n_routed_experts moe_num_experts",
    ),
    **_same(
        2,
        "num_experts_per_tok moe_topk moe_k top_k_experts n_group",
    ),
    **_same(
        1,
        "topk_group n_shared_experts num_shared_experts moe_num_shared_experts"
        " first_k_dense_replace num_dense_layers max_window_layers"
        " moe_layer_start_index",
    ),
    **_same(
        2,
        "sliding_window_pattern global_attn_every_n_layers attn_layer_period"
        " full_attention_interval no_rope_layer_interval layer_group_size"
        " interleave_moe_layer_step",
    ),
    **_same(16, "kv_lora_rank q_lora_rank o_lora_rank lru_width"),
    **_same(4, "qk_rope_head_dim rotary_dim index_n_heads indexer_n_heads"),
    # Enables windows that a configuration has but does not use.
    "use_sliding_window": True,
    # State spaces and convolutions.
    **_same(16, "mamba_d_state state_size ssm_state_size mamba_d_ssm"),
    **_same(8, "mamba_n_heads mamba_num_heads"),
    **_same(2, "mamba_n_groups n_groups mamba_ngroups n_mamba_heads"),
    **_same(
        16, "mamba_chunk_size chunk_size local_attn_chunk_length"
        " lsh_attn_chunk_length block_size"
    ),
    "use_mamba_kernels": False,
    "num_codebooks": 2,
    # Caches and heads that the walk does not need.
    "use_cache": False,
    **_same(0, "num_mtp_layers num_nextn_predict_layers"),
}

# If a configuration has qk_rope_head_dim, attention is latent (MLA): every
# head has its own key, and rotary dimensions are part of head_dim.
LATENT = {"head_dim": 4, "num_key_value_heads": HEADS}

# Fields with these endings are set to zero, because otherwise a comparison with
# the plain model would need the same draws. Other tests cover dropout.
RANDOM_ENDINGS = (
    "dropout", "_pdrop", "dropout_prob", "dropout_p", "layerdrop",
    "router_jitter_noise", "input_jitter_noise",
)
