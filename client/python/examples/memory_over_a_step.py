"""Draws memory over one training step: plain, checkpointed, streamed.

    PYTHONPATH=client/python SLUICE_BIN_DIR=build/release/bin \
      python client/python/examples/memory_over_a_step.py OUT.svg

A curve shows the bytes that torch's allocator has in use, less those in use
when the step began (torch.profiler). So it contains the gradients, but not the
parameters. Time is the fraction of the step that has passed, because seconds on
a CPU with one thread say nothing about a GPU.
"""
from __future__ import annotations

import json
import sys
import tempfile

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

import sluice

TOKENS, CHUNK = 4096, 256
WIDTH, HEIGHT, LEFT, TOP = 720, 260, 60, 40  # pixels of the plot
COLOURS = {"plain": "#b3402f", "checkpointed": "#c98a1b", "streamed": "#23689b"}


def one_step(way: str) -> tuple[list[tuple[float, float]], str]:
    """Runs a step; returns its curve [(fraction of the step, MiB)] and a
    caption."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=2048, hidden_size=128, intermediate_size=352,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4))
    model.train()
    said = ""
    if way == "checkpointed":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    stream = sluice.stream(model, chunk=CHUNK) if way == "streamed" else None
    ids = torch.randint(2048, (1, TOKENS))

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad()

    step()  # warm-up: allocates what all later steps reuse
    with profile(activities=[ProfilerActivity.CPU],
                 profile_memory=True) as profiled:
        step()
    if stream:
        peak = stream.stats().host_peak_bytes / 2**20
        said = f", and {peak:.1f} MiB of leased host memory"
        stream.unstream()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        events = [(event["ts"], event["args"]["Total Allocated"])
                  for event in json.load(open(file.name))["traceEvents"]
                  if event.get("name") == "[memory]"]
    first, last = events[0][0], events[-1][0]
    base = events[0][1]
    curve = [((time - first) / (last - first), (total - base) / 2**20)
             for time, total in events]
    return curve, f"{way}: {max(mib for _, mib in curve):.1f} MiB{said}"


def thinned(curve: list[tuple[float, float]],
            parts: int = 240) -> list[tuple[float, float]]:
    """Returns the maximum of each of `parts` equal parts of the step, so that
    no peak is lost."""
    most: dict[int, float] = {}
    for share, mib in curve:
        part = min(int(share * parts), parts - 1)
        most[part] = max(most.get(part, 0.0), mib)
    return [(part / parts, most[part]) for part in sorted(most)]


def picture(steps: dict[str, tuple[list[tuple[float, float]], str]]) -> str:
    top = max(mib for curve, _ in steps.values() for _, mib in curve)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
        f'height="{HEIGHT + 120}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT + 120}" fill="white"/>',
        f'<text x="{LEFT}" y="22">Memory over one step: Llama, 4 layers of '
        f'128, {TOKENS:,} tokens, fp32; MiB beyond the parameters</text>']
    for i in range(5):
        y = TOP + HEIGHT - HEIGHT * i / 4
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.0f}" y2="{y:.0f}" '
            f'stroke="#ddd"/><text x="{LEFT - 8}" y="{y + 4:.0f}" '
            f'text-anchor="end">{top * i / 4:.0f}</text>')
    for line, (way, (curve, said)) in enumerate(steps.items()):
        points = " ".join(
            f"{LEFT + share * (WIDTH - LEFT - 20):.0f},"
            f"{TOP + HEIGHT - HEIGHT * mib / top:.1f}"
            for share, mib in thinned(curve))
        y = TOP + HEIGHT + 26 + 18 * line
        parts += [
            f'<polyline points="{points}" fill="none" stroke-width="1.5" '
            f'stroke="{COLOURS[way]}"/>',
            f'<rect x="{LEFT}" y="{y - 10}" width="12" height="12" '
            f'fill="{COLOURS[way]}"/><text x="{LEFT + 20}" y="{y}">{said}'
            "</text>"]
    return "\n".join(parts) + "\n</svg>\n"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: memory_over_a_step.py OUT.svg")
    torch.set_num_threads(1)
    steps = {way: one_step(way) for way in COLOURS}
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write(picture(steps))
    for _, said in steps.values():
        print(said)


if __name__ == "__main__":
    main()
