"""Makes a tiny random model for each causal language model of transformers.

`names()` lists the names. `tiny(name)` builds a model on the CPU, without a
hub, in fp32. The model has about 10 K to 100 K parameters, dropout 0, and no
parameter at a value (0, 1) that would hide an error in its use.
"""

from __future__ import annotations

import dataclasses
import inspect

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

from . import fields
from .exceptions import ENCODERS, EXCEPTIONS


def names() -> list[str]:
    """Returns the sorted names of the installed transformers' mapping."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def class_name(name: str) -> str:
    """Returns the model class that the mapping has for `name`."""
    value = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]
    return value if isinstance(value, str) else value[0]


def config_class(name: str) -> type:
    """Returns the configuration class of the model class of `name`.

    If the mapping has a composite model (text, vision, audio), this may be the
    text model's class.
    """
    model_class = getattr(transformers, class_name(name))
    return model_class.config_class or CONFIG_MAPPING[name]


def defaults_of(cls: type) -> dict[str, object]:
    """Returns the fields of configuration class `cls` with their defaults."""
    if dataclasses.is_dataclass(cls):  # transformers 5
        common = transformers.PretrainedConfig
        common_fields = {f.name for f in dataclasses.fields(common)}
        return {
            f.name: None if f.default is dataclasses.MISSING else f.default
            for f in dataclasses.fields(cls)
            if f.name not in common_fields
        }
    signature = inspect.signature(cls.__init__)
    return {
        name: None if p.default is p.empty else p.default
        for name, p in signature.parameters.items()
        if name != "self" and p.kind is not p.VAR_KEYWORD
    }


def _is_token(name: str, default: object) -> bool:
    return name.endswith(("_token_id", "_token_index", "_id", "_index")) and (
        type(default) is int
    )


def _layer_kinds(released: object, name: str, layers: int) -> list | None:
    """Returns a list of `layers` kinds that repeats the kinds in the released
    configuration's list `name`, or None if that has fewer than two kinds."""
    kinds = list(dict.fromkeys(getattr(released, name, None) or ()))
    if len(kinds) < 2:
        return None
    return [kinds[i % len(kinds)] for i in range(layers)]


def _field(name: str, default: object, layers: int) -> object:
    """Returns the value that fields.py has for a field, or its default."""
    if name in fields.LAYERS:
        return layers
    if name in fields.SIZES:
        return fields.SIZES[name]
    if name.endswith(fields.RANDOM_ENDINGS) and default is not None:
        return type(default)(0)
    return default


def _nested(cls: type, released: object) -> dict[str, type]:
    """Returns the classes of the configurations nested in class `cls`."""
    found = {}
    for key, declared in getattr(cls, "sub_configs", {}).items():
        value = getattr(released, key, None)
        if isinstance(value, transformers.PretrainedConfig):
            found[key] = type(value)
        elif getattr(declared, "model_type", ""):  # empty for AutoConfig
            found[key] = declared
    return found


def tiny_fields(cls: type) -> dict[str, object]:
    """Returns the fields that fields.py sets in a configuration of `cls`."""
    defaults = defaults_of(cls)
    released = cls()
    layers = 4 if any(f in defaults for f in fields.LAYER_PATTERN) else 2
    chosen: dict[str, object] = {}
    token = fields.VOCAB - 1
    for name, default in defaults.items():
        value = _field(name, default, layers)
        if name in fields.LAYER_KINDS:
            value = _layer_kinds(released, name, layers)
        elif _is_token(name, default) and default >= fields.VOCAB:
            value, token = token, token - 1  # the walk's tokens are smaller
        if value is not default:
            chosen[name] = value
    if "qk_rope_head_dim" in defaults:
        chosen.update({k: v for k, v in fields.LATENT.items() if k in defaults})
    for key, nested in _nested(cls, released).items():
        if key in defaults:
            chosen[key] = tiny_fields(nested)
            chosen[key]["model_type"] = nested.model_type
    return chosen


def _merge(into: dict, more: dict) -> dict:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
    return into


def tiny_config(name: str) -> transformers.PretrainedConfig:
    """Returns the configuration of the tiny model for `name`."""
    cls = config_class(name)
    chosen = _merge(tiny_fields(cls), EXCEPTIONS.get(name, {}))
    if name in ENCODERS:
        chosen["is_decoder"] = True
    return cls(**chosen)


@torch.no_grad()
def _perturb(model: torch.nn.Module) -> None:
    """Moves every parameter off its initial value.

    Biases start at 0 and norm weights at 1: an error that drops or doubles
    them would not show.
    """
    for parameter in model.parameters():
        scale = 0.1 if parameter.dim() == 1 else 0.05
        parameter.add_(torch.randn_like(parameter) * scale)


def tiny(name: str, attention: str = "eager") -> torch.nn.Module:
    """Returns the tiny model for `name`, in fp32 and train mode.

    The same name gives the same weights, whatever the attention. Raises
    transformers' exception if the model cannot be made, and ValueError or
    ImportError if it does not have this attention.
    """
    torch.manual_seed(0)
    model_class = getattr(transformers, class_name(name))
    model = model_class._from_config(
        tiny_config(name), attn_implementation=attention
    )
    model = model.float()
    _perturb(model)
    return model.train()
