"""The kind of a model: decoder, hybrid, state space, encoder …

`decoder` and `hybrid` are decoder-only models. A hybrid has layers that mix
tokens by recurrence or convolution, in addition to or in place of attention.
"""

from __future__ import annotations

from . import configs
from .exceptions import ENCODERS, KINDS

DECODER_ONLY = ("decoder", "hybrid")

_RECURRENT_FIELDS = (
    "mamba_d_state", "ssm_state_size", "linear_conv_kernel_dim",
    "conv_L_cache", "short_conv_kernel_size", "lru_width", "linear_num_heads",
    "conv_kernel_size", "cca_time0",
)
_RECURRENT_LAYERS = {
    "linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba",
}


def kind_of(name: str) -> str:
    """Returns the kind of model `name`, by exceptions.py or its configuration.
    """
    if name in KINDS:
        return KINDS[name]
    if name in ENCODERS:
        return "encoder"
    config_class = configs.config_class(name)
    fields = configs.defaults_of(config_class)
    if "decoder_layers" in fields or "num_decoder_layers" in fields:
        return "encoder-decoder"
    config = config_class()
    text = getattr(config, "text_config", None) or config
    layers = set(getattr(text, "layer_types", None) or ())
    if layers & _RECURRENT_LAYERS or any(
        f in configs.defaults_of(type(text)) for f in _RECURRENT_FIELDS
    ):
        return "hybrid"
    return "decoder"
