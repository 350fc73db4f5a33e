#!/usr/bin/env python3
"""bench-python: CPU seconds of a training step in Python, streamed beside plain.

    python_step.py --bin DIR --json FILE

One thread, in one process, in turns; the copies of the simulated GPU, which
its threads make on the CPU, are counted with the rest. Runs itself again in
the environment of deploy/setup/venv.txt, which has torch and transformers.
"""

import argparse
import json
import statistics
import sys
import time

import in_venv

ROUNDS = 7
CHUNK = 512
VOCAB = 2048
SHAPE = dict(vocab_size=VOCAB, hidden_size=256, intermediate_size=688,
             num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=1 << 20,
             use_cache=False)
TARGETS = {2048: 1.30, 4096: 1.15}  # times the plain model's CPU seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    if not in_venv.is_inside():
        return in_venv.again(arguments.bin)
    entries = [measured(length, target) for length, target in TARGETS.items()]
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(entries, file)
    return 0


def measured(length, target):
    """The entry of one length: medians over the rounds after the first."""
    plain, streamed, ids = models(length)
    pairs = [(seconds(plain, ids), seconds(streamed, ids))
             for _ in range(ROUNDS + 1)][1:]
    alone = statistics.median(a for a, _ in pairs)
    ours = statistics.median(b for _, b in pairs)
    return {"name": f"python step, {length} tokens",
            "value": statistics.median(b / a for a, b in pairs),
            "unit": "x plain", "target": target, "better": "lower",
            "detail": f"CPU seconds {ours:.3f} streamed in chunks of {CHUNK}, "
            f"{alone:.3f} plain (medians of {ROUNDS})"}


def models(length):
    """(plain model, the same streamed, ids [1, length])."""
    import copy

    import torch
    import transformers

    import sluice
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SHAPE)).train()
    streamed = copy.deepcopy(plain)
    sluice.stream(streamed, chunk=CHUNK)
    return plain, streamed, torch.randint(3, VOCAB, (1, length))


def seconds(model, ids):
    before = time.process_time()
    model(input_ids=ids, labels=ids).loss.backward()
    model.zero_grad()
    return time.process_time() - before


if __name__ == "__main__":
    sys.exit(main())
