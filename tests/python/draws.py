"""Draws training by seed, and runs it streamed and plain.

A draw is a tiny model of transformers, settings of stream(), and two to four
training steps. Between the steps, and between a step's forwards and backwards,
weights are frozen and thawed, hooks and adapters come and go, and the model is
evaluated. A copy that is not streamed does the same. Losses and gradients must
be equal, or the stream must refuse the step by name; the draw then continues
with the next step, unless the refusal left out an operation.

    python draws.py --draw 17          repeats one draw and says what it does
    python draws.py --count 2000       draws 0 to 1,999
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import dataclasses
import functools
import gc
import math
import random
import sys
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import peft
import torch
from torch import nn
from torch.nn import functional
from walk import configs

import sluice

NAMES = (
    "llama mistral gemma2 gemma3_text qwen2 qwen3 mixtral qwen3_moe gpt2"
    " gpt_neo opt phi phi3 gpt_neox gpt_oss deepseek_v3 cohere llama4_text"
    " falcon starcoder2").split()
FIRST_TOKEN, LAST_TOKEN = 3, 80  # as in walk.plain
LIMIT = 1e-4  # of a difference, relative to the gradient's norm or the loss
LEAST = 1e-6  # least limit, relative to the norm of all gradients
RATE = 0.05
LAYERS = ("layers", "h")  # names of the decoder's list of layers
Operation = tuple  # a name in OPERATIONS, and its arguments


@dataclasses.dataclass(frozen=True)
class Call:
    """One forward: the arguments of the model."""

    seed: int
    rows: int
    length: int
    padded: str  # "", "left" or "right"
    loss: str  # "model", or "own", which is computed from the logits


@dataclasses.dataclass(frozen=True)
class Step:
    before: tuple[Operation, ...]
    calls: tuple[Call, ...]
    # Operations after the forwards, before the backward.
    between: tuple[Operation, ...]
    way: str  # order of two calls: "in turn", "together" or "threads"
    saved: str  # hooks on saved tensors: "" or a name in SAVED
    around: str  # where `saved` applies: "both", "forward" or "backward"
    updates: bool  # whether the weights are updated at the end


@dataclasses.dataclass(frozen=True)
class Draw:
    number: int
    name: str
    attention: str
    options: dict[str, Any]
    steps: tuple[Step, ...]


class Mismatch(Exception):
    """Results differ, or host bytes are left, although nothing was refused."""


# --- drawing ----------------------------------------------------------------


def drawn(number: int) -> Draw:
    draw = random.Random(number)
    options: dict[str, Any] = {
        "chunk": draw.choice([9, 13, 16, 24]),
        "check": draw.choice(["first", "first", "first", "always", "off"]),
        "policy": draw.choice(["recompute", "recompute", {
            "*": {"keep": 0.3, "swap": 0.4}}]),
        "hidden": draw.choice(["device", "device", "device", "host"]),
        "head": draw.choice(["rows", "rows", "rows", "whole"]),
        # Bytes for no plain layer, for some, or for all. A separate generator
        # draws them, so that no other drawn value depends on them.
        "hbm": random.Random(f"hbm {number}").choice(
            [0, 150_000, 400_000, 1 << 30]),
    }
    return Draw(number, NAMES[number % len(NAMES)],
                draw.choice(["eager", "sdpa"]), options,
                tuple(_step(draw) for _ in range(draw.randint(2, 4))))


def _step(draw: random.Random) -> Step:
    count = draw.choice([1, 2, 2])
    return Step(
        before=tuple(_operation(draw) for _ in range(
            draw.choice([0, 1, 1, 2]))),
        calls=tuple(_call(draw) for _ in range(count)),
        between=tuple(_operation(draw) for _ in range(
            draw.choice([0, 0, 0, 1]))),
        way=draw.choice(["in turn", "together", "threads"]),
        saved=draw.choice(["", "", "", *SAVED]),
        around=draw.choice(["both", "forward", "backward"]),
        updates=draw.random() < 0.7)


def _call(draw: random.Random) -> Call:
    return Call(draw.randrange(1 << 20), draw.choice([1, 2]),
                draw.randint(9, 47), draw.choice(["", "", "", "left", "right"]),
                draw.choice(["model", "model", "model", "own"]))


def _operation(draw: random.Random) -> Operation:
    name = draw.choice(["train"] * 4 + ["hook"] * 3 + ["unhook"] + [
        "adapters"] * 3 + ["evaluate"] * 3 + [
            "mode", "checkpoint"])
    if name == "evaluate":
        return name, _call(draw), draw.choice([
            "loss", "logits", "generate", "reference"])
    if name == "train":
        return name, draw.choice(list(TRAINED)), draw.randrange(1 << 20)
    if name == "hook":
        return (name, draw.choice(["layer", "inside", "inside", "outside"]),
                draw.choice(list(HOOKS)), draw.randrange(1 << 20))
    if name == "adapters":
        return name, draw.choice(list(ADAPTERS)), draw.randrange(1 << 20)
    return name, draw.random() < 0.5


# --- operations on a model --------------------------------------------------


class Trainee:
    """A model of a draw, with the hooks and adapters that were added to it."""

    def __init__(self, model: nn.Module, is_plain: bool = False):
        self.model = self.base = model
        self.is_plain = is_plain
        self.hooks: list[Any] = []
        self.operations = 0  # number of operations that began

    def operate(self, operations: tuple[Operation, ...]) -> None:
        for name, *given in operations:
            self.operations += 1
            OPERATIONS[name](self, *given)

    def layers(self) -> list[nn.Module]:
        return next(list(m) for name, m in self.base.named_modules()
                    if isinstance(m, nn.ModuleList)
                    and name.rpartition(".")[2] in LAYERS)


def _hash(text: str, seed: int) -> int:
    return zlib.crc32(f"{seed} {text}".encode())


TRAINED: dict[str, Callable[[str, torch.Tensor, int], bool]] = {
    "all": lambda name, p, seed: True,
    "half": lambda name, p, seed: _hash(name, seed) % 2 == 0,
    "vectors": lambda name, p, seed: p.dim() == 1,
    "matrices": lambda name, p, seed: p.dim() > 1,
    "MLPs": lambda name, p, seed: any(
        word in name for word in ("mlp", "fc", "feed_forward", "experts")),
    "attention": lambda name, p, seed: "att" in name,
    "a layer": lambda name, p, seed: f".{seed % 2}." in name,
    "outside": lambda name, p, seed: "norm" in name or "embed" in name or (
        "head" in name),
    "adapters": lambda name, p, seed: "lora" in name or "ia3" in name,
}


def train(trainee: Trainee, which: str, seed: int) -> None:
    """Makes the weights that `which` selects trainable and freezes the others;
    if `which` selects none, makes all trainable."""
    parameters = list(trainee.base.named_parameters())
    for everything in False, True:
        for name, p in parameters:
            p.requires_grad_(p.is_floating_point() and (
                everything or TRAINED[which](name, p, seed)))
        if any(p.requires_grad for _, p in parameters):
            return


def _first(value: Any, change: Callable) -> Any:
    """Applies `change` to the value's first tensor, if it is floating-point.
    """
    if isinstance(value, tuple):
        return (_first(value[0], change), *value[1:]) if value else value
    return change(value) if isinstance(value, torch.Tensor) and (
        value.is_floating_point()) else value


def _halve_gradient(y: torch.Tensor) -> torch.Tensor:
    if y.requires_grad:
        y.register_hook(lambda g: g * 0.5)
    return y


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "scale": lambda m: m.register_forward_hook(
        lambda _, args, y: _first(y, lambda t: t * 1.25)),
    "scale before": lambda m: m.register_forward_pre_hook(
        lambda _, args: _first(args, lambda t: t * 0.75)),
    "square": lambda m: m.register_forward_hook(
        lambda _, args, y: _first(y, lambda t: t + 0.1 * t * t)),
    "look": lambda m: m.register_forward_hook(
        lambda _, args, y: None),
    "gradient": lambda m: m.register_full_backward_hook(
        lambda _, grads, __: tuple(
            g * 1.5 if g is not None and g.is_floating_point() else None
            for g in grads)),
    "tensor": lambda m: m.register_forward_hook(
        lambda _, args, y: _first(y, _halve_gradient)),
    "weight": lambda m: next(p for p in m.parameters()).register_hook(
        lambda g: g * 1.5) if any(
            p.requires_grad for p in list(m.parameters())[:1]) else None,
    "all modules": lambda m: nn.modules.module.register_module_forward_hook(
        lambda each, args, y: y * 1.25 if each is m and isinstance(
            y, torch.Tensor) else None),
}


def hook(trainee: Trainee, place: str, kind: str, seed: int) -> None:
    layer = trainee.layers()[seed % 2]
    if place == "layer":
        module = layer
    elif place == "inside":
        inside = [m for m in layer.modules() if m is not layer]
        module = inside[_hash("inside", seed) % len(inside)]
    else:
        within = {m for each in trainee.layers() for m in each.modules()}
        outside = [m for m in trainee.base.modules() if m not in within
                   and isinstance(m, (nn.Linear, nn.Embedding))
                   or "norm" in type(m).__name__.lower() and m not in within]
        module = outside[_hash("outside", seed) % len(outside)]
    handle = HOOKS[kind](module)
    trainee.hooks += [] if handle is None else [handle]


def unhook(trainee: Trainee, last: bool) -> None:
    if trainee.hooks:
        trainee.hooks.pop(-1 if last else 0).remove()


def checkpoint(trainee: Trainee, on: bool) -> None:
    """Switches checkpointing on or off; a stream disables it in its forwards.
    The plain model never has it: torch would run a layer again in backward
    with hooks and scales that came after its forward.
    """
    if trainee.is_plain:
        return
    if on:
        trainee.base.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        trainee.base.gradient_checkpointing_disable()


def mode(trainee: Trainee, trains: bool) -> None:
    trainee.model.train(trains)


def _targets(trainee: Trainee, seed: int) -> list[str]:
    """Returns names, in the base model, of some linear modules of its layers.
    """
    within = {m for layer in trainee.layers() for m in layer.modules()}
    names = [name for name, m in trainee.base.named_modules()
             if m in within and type(m).__name__ in ("Linear", "Conv1D")
             and "lora_" not in name and ".base_layer" not in name]
    chosen = [name for name in names if _hash(name, seed) % 3 == 0]
    return chosen or names[:1]


def _add(config: type, **settings: Any) -> Callable[[Trainee, int], None]:
    def add(trainee: Trainee, seed: int) -> None:
        torch.manual_seed(seed)
        if isinstance(trainee.model, peft.PeftModel):
            name = f"a{len(trainee.model.peft_config)}"
            trainee.model.add_adapter(
                name, copy.copy(trainee.model.peft_config["default"]))
            trainee.model.set_adapter(name)
        else:
            trainee.model = peft.get_peft_model(trainee.base, config(
                target_modules=_targets(trainee, seed), **settings))
        with torch.no_grad():
            for name, p in trainee.base.named_parameters():
                if "ia3" in name:
                    p.mul_(1 + 0.2 * torch.rand_like(p))
    return add


def _choose(trainee: Trainee, seed: int) -> None:
    if isinstance(trainee.model, peft.PeftModel):
        names = sorted(trainee.model.peft_config)
        trainee.model.set_adapter(names[seed % len(names)])


def _switch(on: bool) -> Callable[[Trainee, int], None]:
    def switch(trainee: Trainee, seed: int) -> None:
        if isinstance(trainee.model, peft.PeftModel):
            tuner = trainee.model.base_model
            (tuner.enable_adapter_layers if on else
             tuner.disable_adapter_layers)()
    return switch


def _scale(trainee: Trainee, seed: int) -> None:
    for module in trainee.base.modules():
        for name in getattr(module, "scaling", ()) if isinstance(
                getattr(module, "scaling", None), dict) else ():
            module.scaling[name] *= 1.5


def _merge(trainee: Trainee, seed: int) -> None:
    if isinstance(trainee.model, peft.PeftModel):
        tuner = trainee.model.base_model
        (tuner.merge_adapter if seed % 2 else tuner.unmerge_adapter)()


def _unload(trainee: Trainee, seed: int) -> None:
    if isinstance(trainee.model, peft.PeftModel):
        trainee.model.merge_and_unload()
        trainee.model = trainee.base
        train(trainee, "all", seed)


LORA = dict(r=3, lora_dropout=0.0, init_lora_weights=False)
ADAPTERS: dict[str, Callable[[Trainee, int], None]] = {
    "add": _add(peft.LoraConfig, **LORA),
    "add DoRA": _add(peft.LoraConfig, use_dora=True, **LORA),
    "add IA3": _add(peft.IA3Config, feedforward_modules=[]),
    "choose": _choose,
    "disable": _switch(False),
    "enable": _switch(True),
    "scale": _scale,
    "merge": _merge,
    "unload": _unload,
}


def adapters(trainee: Trainee, what: str, seed: int) -> None:
    ADAPTERS[what](trainee, seed)


def evaluate(trainee: Trainee, call: Call, what: str) -> None:
    model = trainee.model
    trained = model.training
    model.eval()
    with torch.no_grad():
        inputs = arguments(call, what == "loss")
        if what == "reference" and isinstance(model, peft.PeftModel):
            with model.disable_adapter():
                model(**inputs)
        elif what == "generate":
            model.generate(input_ids=inputs["input_ids"][:, :9],
                           max_new_tokens=2, do_sample=False)
        else:
            model(**inputs)
    model.train(trained)


OPERATIONS: dict[str, Callable[..., None]] = {
    "train": train, "hook": hook, "unhook": unhook, "mode": mode,
    "adapters": adapters, "evaluate": evaluate, "checkpoint": checkpoint}


# --- steps ------------------------------------------------------------------


def _cast(t: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
    return (t.double() if t.is_floating_point() else t), t.dtype


SAVED: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
    "clone": lambda: torch.autograd.graph.saved_tensors_hooks(
        torch.clone, lambda t: t),
    "cast": lambda: torch.autograd.graph.saved_tensors_hooks(
        _cast, lambda kept: kept[0].to(kept[1])),
    "move": lambda: torch.autograd.graph.save_on_cpu(),
}


def arguments(call: Call, labels: bool = True) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(call.seed)
    ids = torch.randint(FIRST_TOKEN, LAST_TOKEN, (call.rows, call.length),
                        generator=generator)
    made = {"input_ids": ids}
    wanted = ids.clone()
    wanted[0, call.length // 3:call.length // 2] = -100
    if call.padded:
        mask = torch.ones_like(ids)
        gap = call.length // 4
        rows = slice(0, gap) if call.padded == "left" else slice(
            call.length - gap, call.length)
        mask[-1, rows] = 0
        wanted[-1, rows] = -100
        if call.padded == "left":
            # The last row of padding would predict this label.
            wanted[-1, gap] = -100
        made["attention_mask"] = mask
    return {**made, "labels": wanted} if labels else made


def loss_of(model: nn.Module, call: Call) -> torch.Tensor:
    given = arguments(call)
    if call.loss == "model":
        return model(**given).loss
    labels = given.pop("labels")
    logits = model(**given).logits[:, :-1].flatten(0, 1)
    return functional.cross_entropy(logits.float(), labels[:, 1:].flatten())


def forwards_and_backwards(trainee: Trainee, step: Step, threads: bool
                           ) -> list[float]:
    """Returns the losses of one step; adds its gradients to the existing ones.
    """
    def saved(half: str) -> contextlib.AbstractContextManager:
        return SAVED[step.saved]() if step.saved and step.around in (
            "both", half) else contextlib.nullcontext()

    def between() -> None:
        trainee.operate(step.between)

    def one(call: Call) -> float:
        with saved("forward"):
            loss = loss_of(trainee.model, call)
        between()
        with saved("backward"):
            loss.backward()
        return loss.item()

    if step.way == "together":
        with saved("forward"):
            losses = [loss_of(trainee.model, call) for call in step.calls]
        between()
        with saved("backward"):
            sum(i * loss for i, loss in enumerate(losses, 1)).backward()
        return [loss.item() for loss in losses]
    if step.way == "threads" and len(step.calls) > 1:
        return _in_threads(trainee, step, saved, between, threads)
    return [one(call) for call in step.calls]


def _in_threads(trainee: Trainee, step: Step, saved: Callable,
                between: Callable[[], None], threads: bool) -> list[float]:
    """Runs each call in its own thread or, without `threads`, one after the
    other. If the step has operations between forward and backward, all forwards
    end before a backward begins."""
    losses: dict[int, torch.Tensor] = {}
    errors: list[BaseException] = []

    def all_of(do: Callable[[int], None]) -> None:
        def caught(i: int) -> None:
            try:
                do(i)
            except BaseException as error:
                errors.append(error)

        if not threads:
            for i in range(len(step.calls)):
                do(i)
            return
        running = [threading.Thread(target=caught, args=(i,))
                   for i in range(len(step.calls))]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if errors:
            raise errors[0]

    def forward(i: int) -> None:
        with saved("forward"):
            losses[i] = loss_of(trainee.model, step.calls[i])

    def backward(i: int) -> None:
        with saved("backward"):
            losses[i].backward()

    def both(i: int) -> None:
        forward(i)
        backward(i)

    if step.between:
        all_of(forward)
        between()
        all_of(backward)
    else:
        all_of(both)
    return [losses[i].item() for i in range(len(losses))]


def gradients(trainee: Trainee) -> dict[str, torch.Tensor | None]:
    return {name: p.grad for name, p in trainee.base.named_parameters()}


def norm(found: dict[str, torch.Tensor | None]) -> float:
    return sum(float(g.double().norm()) ** 2 for g in found.values()
               if g is not None) ** 0.5


def differences(got: Trainee, losses: list[float], plain: Trainee,
                expected: list[float]) -> dict[str, float]:
    """Returns name -> difference / limit of losses and gradients that exceed
    their limit."""
    found = {}
    for i, (a, b) in enumerate(zip(losses, expected)):
        found[f"loss {i}"] = abs(a - b) / (LIMIT * abs(b))
    theirs = gradients(plain)
    whole, mine = norm(theirs), gradients(got)
    if set(mine) != set(theirs):
        raise Mismatch(f"parameters {set(mine) ^ set(theirs)}")
    for name, wanted in theirs.items():
        if wanted is None and mine[name] is None:
            continue
        zero = torch.zeros(())
        a = zero if mine[name] is None else mine[name].double()
        b = zero if wanted is None else wanted.double()
        found[name] = float((a - b).norm()) / max(
            LIMIT * float(b.norm()), LEAST * whole, 1e-30)
    return {name: far for name, far in found.items() if not far <= 1}


@dataclasses.dataclass
class Result:
    compared: int = 0  # number of compared steps
    refusals: list[str] = dataclasses.field(default_factory=list)
    unusable: list[str] = dataclasses.field(default_factory=list)


@functools.cache
def _built(name: str, attention: str) -> nn.Module:
    try:
        return configs.tiny(name, attention)
    except (ValueError, ImportError):  # gpt_oss has no SDPA
        return configs.tiny(name)


def is_refusal(error: BaseException) -> bool:
    return isinstance(error, (sluice.Unsupported, sluice.Error)) or (
        isinstance(error, RuntimeError) and str(error).startswith("sluice:"))


def run(draw: Draw, session: sluice.Session,
        say: Callable[..., None] = lambda *_: None) -> Result:
    """Runs a draw. Raises Mismatch, or any other failure of the streamed
    model."""
    result = Result()
    plain = Trainee(copy.deepcopy(_built(draw.name, draw.attention)), True)
    got = Trainee(copy.deepcopy(plain.model))
    try:
        stream = sluice.stream(got.model, session=session, quiet=True,
                               **draw.options)
    except sluice.Unsupported as refused:
        result.refusals.append(f"stream(): {refused}")
        return result
    try:
        for number, step in enumerate(draw.steps):
            say(number, step)
            _run_step(draw, step, plain, got, result, say)
            if plain.operations != got.operations:
                break  # the models are no longer alike
        # After a refusal, garbage and the queue of torch's autograd still
        # refer to graphs that hold host memory.
        for _ in range(3):
            torch.ones((), requires_grad=True).backward()
            gc.collect()
        if stream.stats().host_bytes:
            raise Mismatch(f"{stream.stats().host_bytes} host bytes are left")
    finally:
        stream.unstream()
        for handle in (*plain.hooks, *got.hooks):
            handle.remove()  # also removes hooks on all modules
    return result


def _run_step(draw: Draw, step: Step, plain: Trainee, got: Trainee,
              result: Result, say: Callable[..., None]) -> None:
    try:
        expected = _whole_step(plain, step, False)
    except Exception as error:  # plain torch cannot do this step
        result.unusable.append(f"{type(error).__name__}: {error}")
        expected = None
    try:
        losses = _whole_step(got, step, True)
    except Exception as error:
        if not is_refusal(error) and expected is not None:
            raise
        say("refused:", error)
        result.refusals.append(str(error))
        expected = None
    if expected is not None:
        far = differences(got, losses, plain, expected)
        if far:
            raise Mismatch(", ".join(
                f"{name} {limits:.3g} limits" for name, limits in sorted(
                    far.items(), key=lambda pair: -pair[1])[:8]))
        result.compared += 1
    if plain.operations == got.operations:
        _end_step(step, plain, got, expected is None)


def _whole_step(trainee: Trainee, step: Step, threads: bool) -> list[float]:
    trainee.operate(step.before)
    torch.manual_seed(7)
    return forwards_and_backwards(trainee, step, threads)


@torch.no_grad()
def _end_step(step: Step, plain: Trainee, got: Trainee, failed: bool) -> None:
    """Updates the weights if the step does so; then makes the weights and
    gradients of both models equal to the bit."""
    theirs = dict(plain.base.named_parameters())
    whole = norm(gradients(plain))
    for name, mine in got.base.named_parameters():
        if failed or step.updates:
            p = theirs[name]
            if not failed and p.grad is not None:
                p -= RATE / max(whole, 1.0) * p.grad
                mine.copy_(p)
            mine.grad = p.grad = None
        elif theirs[name].grad is not None and mine.grad is not None:
            mine.grad.copy_(theirs[name].grad)


# --- the command ------------------------------------------------------------


@dataclasses.dataclass
class Report:
    draws: int = 0
    compared: int = 0  # number of compared steps
    refused: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    said: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter)

    def __str__(self) -> str:
        return (f"{self.draws} draws: {self.compared} steps equal the plain "
                f"model's, {self.refused} refused by name, "
                f"{len(self.failures)} draws failed")


def run_all(numbers: Iterable[int], say: Callable[..., None] = print,
            until: float = math.inf) -> Report:
    """Runs the draws with these numbers on one daemon. Reports a failure with
    its number, and continues with the next draw."""
    report = Report()
    with sluice.Session() as session:
        for number in numbers:
            if time.monotonic() > until:
                break
            draw = drawn(number)
            report.draws += 1
            try:
                found = run(draw, session)
            except Exception as error:
                report.failures.append(
                    f"draw {number} ({draw.name}): {type(error).__name__}: "
                    f"{error}")
                say(report.failures[-1][:600])
                continue
            report.compared += found.compared
            report.refused += len(found.refusals)
            report.said.update(found.refusals)
            report.said.update(f"plain: {why}" for why in found.unusable)
    return report


def _one(number: int) -> int:
    draw = drawn(number)
    print(draw.name, draw.attention, draw.options)
    with sluice.Session() as session:
        try:
            print(run(draw, session, print))
        except Exception:
            traceback.print_exc()
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draw", type=int,
                        help="run this draw and describe it")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=math.inf,
                        help="begin no draw after so many seconds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    if given.draw is not None:
        return _one(given.draw)
    report = run_all(range(given.first, given.first + given.count),
                     functools.partial(print, flush=True),
                     time.monotonic() + given.seconds)
    for what, times in report.said.most_common():
        print(times, what[:300])
    print(report)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
