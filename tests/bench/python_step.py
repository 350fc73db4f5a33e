#!/usr/bin/env python3
"""bench-python: CPU seconds of a training step in Python.

    python_step.py --bin DIR --json FILE

Compares streamed models, with no, some or all layers plain, with the plain
model, checkpointing and `sluice-train`. All models take turns in one process
with one thread. The copies of the simulated GPU, which its threads make on the
CPU, are counted, too. The program runs itself again in the environment of
deploy/setup/venv.txt, which has torch and transformers.
"""

import array
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import in_venv

ROUNDS = 7
CHUNK = 512
VOCAB = 2048
SHAPE = dict(vocab_size=VOCAB, hidden_size=256, intermediate_size=688,
             num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=1 << 20,
             use_cache=False)
# Tokens -> limit, as a multiple of the plain model's CPU seconds.
TARGETS = {2048: 1.30, 4096: 1.15}
# Least tokens/s of models that fit, as a multiple of the plain model's.
FITS_TARGET = 0.98
FITS = 1024, 2048
TRAINER_TARGET = 1.1  # limit as a multiple of sluice-train's CPU seconds
TRAINER_TOKENS = 4096
PARTS_ROUNDS = 5
# Parts of a step's CPU time, and the ATen operators that belong to each.
PARTS = {
    "products": {"mm", "addmm", "addmm_", "bmm", "linear"},
    "attention": {"_scaled_dot_product_flash_attention_for_cpu",
                  "_scaled_dot_product_flash_attention_for_cpu_backward"},
    "copies": {"cat", "copy_", "clone", "_to_copy", "empty", "empty_like",
               "empty_strided", "zeros", "zeros_like", "new_empty", "new_full",
               "new_zeros", "full", "fill_", "zero_", "slice_backward"},
    "views": {"view", "_unsafe_view", "t", "transpose", "permute", "slice",
              "select", "narrow", "split", "split_with_sizes", "as_strided",
              "expand", "unsqueeze", "squeeze", "detach", "alias"},
}
# Steps of two runs. The difference of the runs' CPU seconds excludes the start
# and the first step.
STEPS = 3, 9
TRAINER_ROUNDS = 5


def entries_of(folder):
    entries = [measured(length, target) for length, target in TARGETS.items()]
    for length in FITS:
        entries += fitting(length)
    entries.append(beside_checkpointing(max(TARGETS)))
    entries.append(beside_trainer(os.path.join(folder, "sluice-train")))
    return entries


def measured(length, target):
    """Returns the entry of one length: medians over the rounds after the
    first."""
    plain, streamed, ids = models(length)
    pairs = in_turns((plain, streamed), ids)
    beside, own = (least(side) for side in zip(*(
        (parts_of(plain, ids), parts_of(streamed, ids))
        for _ in range(PARTS_ROUNDS))))
    told = ", ".join(f"{part} {1e3 * own[part]:.0f} for "
                     f"{1e3 * beside[part]:.0f}" for part in own)
    alone = statistics.median(a for a, _ in pairs)
    ours = statistics.median(b for _, b in pairs)
    return {"name": f"python step, {length} tokens",
            "value": statistics.median(b / a for a, b in pairs),
            "unit": "x plain", "target": target, "better": "lower",
            "detail": f"CPU seconds {ours:.3f} streamed in chunks of {CHUNK}, "
            f"{alone:.3f} plain (medians of {ROUNDS}); milliseconds, streamed "
            f"for plain (each the least of {PARTS_ROUNDS}): {told}"}


def in_turns(models_, ids, before=1):
    """Returns the CPU seconds of a step of each model in each of ROUNDS
    rounds, after `before` rounds that are not counted."""
    return [[seconds(model, ids) for model in models_]
            for _ in range(before + ROUNDS)][before:]


def fitting(length):
    """Returns the entries of a model with room for all layers and of a model
    with room for one layer: tokens/s relative to the plain model's."""
    plain, streamed, ids = models(length)
    _, fits, _ = models(length, hbm=1 << 30)
    for _ in range(2):
        seconds(fits, ids)
    loss = fits(input_ids=ids, labels=ids).loss
    kept = stats(fits).plain_bytes  # bytes that all layers and the head keep
    del loss
    ways = {"streamed": streamed, "one": models(
        length, hbm=kept // SHAPE["num_hidden_layers"] * 2)[1], "all": fits}
    # The first three rounds are not counted, because the package still
    # measures.
    rounds = in_turns((plain, *ways.values()), ids, before=3)
    alone, *each = (statistics.median(side) for side in zip(*rounds))
    counts = [stats(model).plain_layers for model in ways.values()]
    told = ", ".join(f"{spent:.3f} with {count}" for spent, count in zip(
        each, counts))
    return [{
        "name": f"python step, {length} tokens, {counts[at]} of "
        f"{SHAPE['num_hidden_layers']} layers plain",
        "value": statistics.median(r[0] / r[1 + at] for r in rounds),
        "unit": "x plain tokens/s", "target": target, "better": "higher",
        "detail": f"CPU seconds by layers that run plain: {told}; {alone:.3f} "
        f"without a stream (medians of {ROUNDS})"}
        for at, target in ((1, None), (2, FITS_TARGET))]


def stats(model):
    import sluice
    return sluice.of(model).stats()


def beside_checkpointing(length):
    """Returns the entry of a model that does not fit, compared with a model
    that recomputes every layer."""
    other, streamed, ids = models(length)
    other.gradient_checkpointing_enable({"use_reentrant": False})
    pairs = in_turns((other, streamed), ids)
    theirs, ours = (statistics.median(side) for side in zip(*pairs))
    return {"name": f"python step, {length} tokens, checkpointing",
            "value": statistics.median(b / a for a, b in pairs),
            "unit": "x checkpointed", "target": None, "better": "lower",
            "detail": f"CPU seconds {ours:.3f} streamed in chunks of {CHUNK}, "
            f"{theirs:.3f} by checkpointing with use_reentrant=False (medians "
            f"of {ROUNDS})"}


def beside_trainer(program):
    """Returns the comparison with sluice-train on the same shape, in turns:
    both clip gradients, use AdamW, and recompute what they do not keep."""
    import torch
    _, streamed, ids = models(TRAINER_TOKENS)
    optimizer = torch.optim.AdamW(streamed.parameters(), 1e-3, fused=True)

    def step():
        before = time.process_time()
        streamed(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(streamed.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - before

    step()
    pairs = [(trainer_seconds(program),
              statistics.median(step() for _ in range(3)))
             for _ in range(TRAINER_ROUNDS)]
    theirs, ours = (statistics.median(side) for side in zip(*pairs))
    return {"name": f"python step, {TRAINER_TOKENS} tokens, trainer",
            "value": statistics.median(b / a for a, b in pairs),
            "unit": "x sluice-train", "target": TRAINER_TARGET,
            "better": "lower", "detail": f"CPU seconds {ours:.3f} streamed, "
            f"{theirs:.3f} sluice-train, both in chunks of {CHUNK} (medians "
            f"of {TRAINER_ROUNDS})"}


def trainer_seconds(program):
    """Returns the CPU seconds of one step of sluice-train, including its
    daemon's."""
    few, many = (_trainer_run(program, steps) for steps in STEPS)
    return (many - few) / (STEPS[1] - STEPS[0])


def _trainer_run(program, steps):
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "tokens.bin")
        draw = random.Random(1)
        with open(data, "wb") as file:
            array.array("H", [draw.randrange(3, VOCAB) for _ in range(
                4 * TRAINER_TOKENS)]).tofile(file)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [program, "train", "--private", "--method", "sluice", "--arch",
             "llama", "--layers", str(SHAPE["num_hidden_layers"]), "--hidden",
             str(SHAPE["hidden_size"]), "--heads",
             str(SHAPE["num_attention_heads"]), "--kv-heads",
             str(SHAPE["num_key_value_heads"]), "--ffn",
             str(SHAPE["intermediate_size"]), "--vocab", str(VOCAB),
             "--seq-len", str(TRAINER_TOKENS), "--chunk", str(CHUNK),
             "--alpha", "0", "--no-keep", "--threads", "1", "--hbm", "256MiB",
             "--host", "1GiB", "--data", data, "--token-bytes", "2",
             "--steps", str(steps)],
            check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime
            - before.ru_utime - before.ru_stime)


def models(length, **options):
    """Returns (plain model, a streamed copy, ids [1, length])."""
    import copy

    import torch
    import transformers

    import sluice
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SHAPE)).train()
    streamed = copy.deepcopy(plain)
    sluice.stream(streamed, chunk=CHUNK, **options)
    return plain, streamed, torch.randint(3, VOCAB, (1, length))


def parts_of(model, ids):
    """Returns CPU seconds of a step by part. A step under a dispatch mode
    gives the seconds of PARTS and of the other operators. A step without it
    gives the seconds of the main thread ("own") and of other threads, which
    make the simulated GPU's copies."""
    from torch.utils._python_dispatch import TorchDispatchMode
    found = dict.fromkeys([*PARTS, "element-wise"], 0.0)

    class Clock(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            before = time.thread_time()
            out = func(*args, **(kwargs or {}))
            spent = time.thread_time() - before
            name = func.overloadpacket.__name__
            found[next((part for part, names in PARTS.items()
                        if name in names), "element-wise")] += spent
            return out

    before = time.thread_time()
    whole = seconds(model, ids)
    own = time.thread_time() - before
    with Clock():
        seconds(model, ids)
    return {**found, "other threads": whole - own, "own": own}


def least(rounds):
    """Returns the least of each part over the rounds. "rest" is the main
    thread's time outside of operators: Python and torch's bookkeeping."""
    found = {part: min(r[part] for r in rounds) for part in rounds[0]}
    own, others = found.pop("own"), found.pop("other threads")
    return {"rest": own - sum(found.values()), **found,
            "other threads": others}


def seconds(model, ids):
    before = time.process_time()
    model(input_ids=ids, labels=ids).loss.backward()
    model.zero_grad()
    return time.process_time() - before


if __name__ == "__main__":
    sys.exit(in_venv.main(__doc__, entries_of))
