"""Twins: copies of a model's modules with weights of their own, for trials.

[Note: twins]
Trials run on a twin in fp32, on the CPU if the model's code works there, so the
user's model may be on `meta`, may be sharded, and may fill its GPU. A twin has
the model's classes, attributes, hooks, instance forwards, buffers and choice of
trained parameters. It has no class or hook of FSDP2 and no forward of Sluice's.

- Weights are copied if the model has them whole. Else the twin draws random
  ones that hide no fault: not 0, not 1, and not so small that their effect is
  lost in the residual stream.
- Parameters of layers with the same path and shape share memory.
- Buffers, and tensors in attributes, are copied. On `meta` they have no
  values, and the twin takes those that the model's constructor makes.
- Other objects in attributes of layers are copied. Those in attributes of
  other modules, and variables of closures, are shared with the model.
"""
from __future__ import annotations

import contextlib
import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torch.distributed.tensor import DTensor

from sluice.base.errors import Unsupported
from sluice.node.patch import Patch
from sluice.node.setting import is_of_fsdp, plain_class

NOISE = 0.1  # added to drawn vectors
_HALVES = (torch.bfloat16, torch.float16)
_LEFT_OUT = frozenset({"_parameters", "_compiled_call_impl"})


class Twin:
    """Twins of `roots` and of all modules in them.

    Args:
        device: where the tensors of the twins are.
        layers: parameters of these with one path and shape share memory.
        known: replacements of objects, by id.
        idle: modules that trials do not run; they get no memory.
        vocabulary: (tokens, fewer): outside the layers a dimension of size
            `tokens` shrinks to `fewer`; None: nothing shrinks.
        constructed: returns a module like the given one, with buffers' values.
        forwards: the former instance forward, or None, of each module on which
            Sluice has set a forward.
    """

    def __init__(self, roots: Iterable[nn.Module], device: torch.device,
                 layers: Sequence[nn.Module] = (),
                 known: dict[int, Any] | None = None,
                 idle: Collection[nn.Module] = (),
                 vocabulary: tuple[int, int] | None = None,
                 constructed: Callable[[nn.Module], Any] | None = None,
                 forwards: Mapping[nn.Module, Any] = {}):
        self._device, self._idle = device, idle
        self._vocabulary, self._constructed = vocabulary, constructed
        self._known, self._forwards = known or {}, forwards
        self._within = {module: path for layer in layers
                        for path, module in layer.named_modules()}
        # Weights of layers, by path, shape and type.
        self._shared: dict[tuple, Tensor] = {}
        self.drawn: list[tuple[nn.Module, Tensor]] = []  # (owner, weight)
        modules = list(dict.fromkeys(m for r in roots for m in r.modules()))
        for module in modules:
            self._known[id(module)] = object.__new__(plain_class(module))
        for module in modules:  # parameters first: attributes may hold them
            vars(self[module])["_parameters"] = {
                name: self._parameter(module, name, parameter)
                for name, parameter in module._parameters.items()}
        for module in modules:
            self._fill(module, self[module])

    def __getitem__(self, module: nn.Module) -> Any:
        return self._known[id(module)]

    def initialise(self, init: Callable[[nn.Module], object]) -> None:
        """Initialises drawn weights such that each has a visible effect:
        applies `init` to the modules with drawn vectors, and adds noise to the
        vectors; draws matrices again such that they keep a vector's norm."""
        with torch.no_grad():
            for owner in dict.fromkeys(owner for owner, weight in self.drawn
                                       if weight.dim() < 2):
                try:
                    init(owner)
                except Exception:  # init may be the user's, or fail on a twin
                    continue
            for _, weight in self.drawn:
                if weight.dim() < 2:
                    weight.add_(torch.randn_like(weight), alpha=NOISE)
                else:
                    weight.normal_(std=weight.shape[-1] ** -0.5)

    def _fill(self, module: nn.Module, twin: nn.Module) -> None:
        made = vars(twin)
        for name, value in vars(module).items():
            if name in _LEFT_OUT:
                continue
            if name == "_buffers":
                made[name] = {n: self._tensor(module, n, b)
                              for n, b in value.items()}
            elif isinstance(value, Tensor):
                made[name] = self._tensor(module, name, value)
            elif name == "forward" and module in self._forwards:
                if self._forwards[module] is not None:
                    made[name] = self._value(self._forwards[module], module)
            elif name == "gradient_checkpointing":
                made[name] = False
            elif name.endswith("_hooks") and isinstance(value, dict):
                made[name] = self._value(type(value)(
                    (key, hook) for key, hook in value.items()
                    if not is_of_fsdp(hook)), module)
            else:
                made[name] = self._value(value, module)
        if isinstance(module, OptimizedModule):
            made["forward"] = self[module._orig_mod]
        if self._vocabulary is not None and module not in self._within:
            fit_vocabulary(twin, self._vocabulary)

    def _value(self, value: Any, owner: nn.Module) -> Any:
        """Returns `value` with twins in place of modules, at any depth."""
        kind = type(value)
        within = functools.partial(self._value, owner=owner)
        if id(value) in self._known:
            return self._known[id(value)]
        if isinstance(value, Patch):
            return within(value.own)
        if isinstance(value, Tensor) and not value.is_meta:
            return self._copied(value)
        if kind is MethodType:
            return MethodType(value.__func__, within(value.__self__))
        if kind is functools.partial:
            made = functools.partial(within(value.func), *map(
                within, value.args), **within(value.keywords))
            vars(made).update(within(vars(value)))
            return made
        if kind in (list, tuple, set):
            return kind(map(within, value))
        if kind in (dict, OrderedDict):
            return kind((key, within(v)) for key, v in value.items())
        if owner in self._within:
            with contextlib.suppress(Exception):  # shared if a copy fails
                return copy.deepcopy(value, self._known)
        return value

    def _parameter(self, owner: nn.Module, name: str,
                   parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None:
            return None
        if id(parameter) not in self._known:  # known already if it is tied
            self._known[id(parameter)] = nn.Parameter(self._weight(
                owner, name, parameter), parameter.requires_grad)
        return self._known[id(parameter)]

    def _weight(self, owner: nn.Module, name: str, weight: Tensor) -> Tensor:
        dtype = torch.float32 if weight.dtype in _HALVES else weight.dtype
        shape = self._cut(owner, weight.shape)
        if owner in self._idle:
            return torch.zeros((), dtype=dtype, device=self._device).expand(
                shape)
        place = (self._within[owner], name, shape, dtype, type(weight)) if (
            owner in self._within) else None
        if place in self._shared:
            return self._shared[place]
        if weight.is_meta or isinstance(weight, DTensor):
            if not dtype.is_floating_point:
                raise Unsupported(f"{name} of {type(owner).__name__}", "a "
                                  f"weight of {dtype} that has no values yet",
                                  "stream the model when it has its weights")
            made = torch.empty(shape, dtype=dtype, device=self._device)
            if made.dim() < 2:
                made.fill_(1)
            self.drawn.append((self[owner], made))
        else:
            made = self._copied(self._narrowed(owner, weight.detach()))
        if place is not None:
            self._shared[place] = made
        return made

    def _tensor(self, owner: nn.Module, name: str,
                tensor: Tensor | None) -> Tensor | None:
        """Returns the twin of a buffer or of a tensor in an attribute."""
        if tensor is None:
            return None
        if id(tensor) in self._known:
            return self._known[id(tensor)]
        found = tensor
        if tensor.is_meta and owner not in self._idle:
            like = self._constructed and self._constructed(owner)
            found = getattr(like, name, tensor)
            if found.is_meta or found.shape != tensor.shape:
                raise Unsupported(
                    f"{name} of {type(owner).__name__}", "a buffer on the meta "
                    "device that the model's constructor does not make",
                    "stream the model when it has its weights")
        self._known[id(tensor)] = made = (
            torch.zeros((), dtype=tensor.dtype).expand(tensor.shape) if
            owner in self._idle else self._copied(self._narrowed(
                owner, found)))
        return made

    def _copied(self, tensor: Tensor) -> Tensor:
        return wide(tensor.detach().to(self._device, copy=True)
                    ).requires_grad_(tensor.requires_grad)

    def _narrowed(self, owner: nn.Module, tensor: Tensor) -> Tensor:
        for dim, size in enumerate(self._cut(owner, tensor.shape)):
            if size < tensor.shape[dim]:
                tensor = tensor.narrow(dim, 0, size)
        return tensor

    def _cut(self, owner: nn.Module, shape: Sequence[int]) -> tuple[int, ...]:
        if self._vocabulary is None or owner in self._within:
            return tuple(shape)
        tokens, fewer = self._vocabulary
        return tuple(fewer if n == tokens else n for n in shape)


def fit_vocabulary(of: Any, vocabulary: tuple[int, int]) -> None:
    tokens, fewer = vocabulary
    for name, value in vars(of).items():
        if type(value) is int and value == tokens and (
                "vocab" in name or name == "num_embeddings"):
            vars(of)[name] = fewer
        elif name == "padding_idx" and value is not None and value >= fewer:
            vars(of)[name] = None  # trials do not use that token


def wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in _HALVES else x


class Hollow(torch.overrides.TorchFunctionMode):
    """Inside, constructors make buffers, but no memory for weights."""

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)
