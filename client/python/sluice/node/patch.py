"""Replaces the forward of one module instance."""
from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sluice.base.errors import Unsupported

_UNCOMPILED = (
    "a streamed model and its layers run uncompiled; torch.compile of them, "
    "and accelerate's compile_regions, change nothing: compile modules "
    "inside of the layers instead, as layer.mlp.compile()")


class Patch:
    """Replaces `module.forward` until `undo`. `own` is the former forward;
    `before` the former instance attribute `forward`, or None.

    A patch is not a method, because methods are copied with a module, and a
    copy of a streamed model must not be streamed. It has `__func__` for code
    that treats it as a method (accelerate wraps the function of a method, and
    binds it again).
    """

    def __init__(self, module: nn.Module, forward: Callable,
                 warn: Callable[[str], object],
                 copied: Callable[[], object] | None = None):
        """`copied` is called when the module is copied or pickled."""
        self.module, self._forward = module, torch.compiler.disable(forward)
        self._uncompiled = torch.compiler.disable(lambda: warn(_UNCOMPILED))
        self._copied = copied or (lambda: None)
        self.before = vars(module).get("forward")
        if isinstance(self.before, Patch):
            raise Unsupported(module, "it is streamed already", "call "
                              "sluice.unstream(model) before")
        self.own = self.before or functools.partial(
            type(module).forward, module)
        # Trainer and generate inspect which arguments the model takes.
        takes = self.__signature__ = inspect.signature(self.own)
        self.__self__ = module

        def function(self_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self._of(self_)(*args, **kwargs)

        function.__signature__ = takes.replace(parameters=[  # type: ignore
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY),
            *takes.parameters.values()])
        self.__func__ = function
        module.forward = self

    def _of(self, module: nn.Module) -> Callable:
        """Returns the forward of `module`, which may be a copy. A copy that
        shares the weights (compile_regions) is streamed, because its own
        modules would run unstreamed; other copies are not."""
        if module is self.module:
            return self
        mine, others = (next(m.parameters(), None) for m in (
            self.module, module))
        if mine is others:
            self._uncompiled()
            return self
        self._copied()
        return functools.partial(type(module).forward, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            self._uncompiled()
        return self._forward(self.module, *args, **kwargs)

    def undo(self) -> None:
        """Restores the former forward, unless a later one replaced this."""
        if vars(self.module).get("forward") is self:
            del self.module.forward
            if self.before is not None:
                self.module.forward = self.before
        self._forward = lambda _, *args, **kwargs: self.own(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable:
        self._copied()
        copied = copy.deepcopy(self.module, memo)
        if self.before is not None:
            return copy.deepcopy(self.before, memo)
        return types.MethodType(type(copied).forward, copied)

    def __reduce__(self):
        self._copied()
        return getattr, (self.module, "forward")
