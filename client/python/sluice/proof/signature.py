"""Computes signatures. Trials of a model hold for models of equal signature.

[Note: signatures]
A signature covers everything that a model computes with except the values of
weights: its classes, their functions and the functions of their files,
settings, configs, buffers, shapes, which weights are tied and which are
trained. Only a model made entirely of torch's and transformers' classes has
one, because the state of other objects, and what their functions read, is
unknown. A model with hooks, adapters or the user's modules is tried each time.
"""
from __future__ import annotations

import functools
import sys
from collections.abc import Hashable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.base.argument_table import PLAIN
from sluice.base.hashing import fingerprint
from sluice.node.patch import Patch
from sluice.node.setting import TORCHS, hooks_of, plain_class

_GLOBAL_HOOKS = [value for name, value in vars(nn.modules.module).items()
                 if name.startswith("_global_") and isinstance(value, dict)]


class _Opaque(Exception):
    """Part of the model is an object with unknown behaviour."""


def of(model: nn.Module) -> Hashable | None:
    """Returns the signature of `model`, or None if it has none."""
    if any(_GLOBAL_HOOKS):
        return None
    places: dict[int, int] = {}
    modules = dict(model.named_modules())
    try:
        found = tuple((path, _of_module(module, places))
                      for path, module in modules.items())
    except _Opaque:
        return None
    kinds = {kind for module in modules.values()
             for kind in plain_class(module).__mro__
             if kind not in nn.Module.__mro__}  # transformers adds to nn.Module
    return (found, *map(_functions, kinds), *map(_functions, {
        sys.modules[kind.__module__] for kind in kinds}),
        _functions(functional), torch.get_default_dtype())


def _functions(of: Any) -> Hashable:
    return frozenset((name, value) for name, value in vars(of).items()
                     if isinstance(value, (FunctionType, type)))


def _of_module(module: nn.Module, places: dict[int, int]) -> Hashable:
    if hooks_of(module):
        raise _Opaque
    kind = _known(plain_class(module))
    weights = tuple((name, tuple(p.shape), p.dtype, p.requires_grad,
                     places.setdefault(id(p), len(places))) for name,
                    p in module._parameters.items() if p is not None)
    return kind, weights, _of_items({
        **{name: value for name, value in vars(module).items()
           if name not in TORCHS and not isinstance(value, Patch)},
        **module._buffers})


def _of_items(items: dict) -> Hashable:
    return tuple((key, _of_value(value)) for key, value in items.items())


def _of_value(value: Any) -> Hashable:
    kind = type(value)
    if isinstance(value, PLAIN):
        return kind, value
    if isinstance(value, Tensor):
        if kind not in (Tensor, nn.Parameter):
            raise _Opaque
        return tuple(value.shape), value.dtype, (
            None if value.is_meta else fingerprint(value))
    if kind in (list, tuple):
        return kind, tuple(map(_of_value, value))
    if kind in (set, frozenset):
        return kind, frozenset(map(_of_value, value))
    if isinstance(value, dict):
        return kind, _of_items(value)
    if isinstance(value, (type, BuiltinFunctionType)) or (
            kind is FunctionType and value.__closure__ is None):
        return _known(value)
    if kind is functools.partial:
        return kind, *map(_of_value, (value.func, value.args, value.keywords))
    if kind is MethodType:
        return kind, _known(value.__func__), _known(type(value.__self__))
    if isinstance(value, nn.Module):
        return _known(plain_class(value))
    if hasattr(value, "to_dict"):  # a config
        return _known(kind), _of_items(vars(value))
    raise _Opaque


def _known(value: Any) -> Any:
    if str(value.__module__).partition(".")[0] not in ("torch", "transformers"):
        raise _Opaque
    return value
