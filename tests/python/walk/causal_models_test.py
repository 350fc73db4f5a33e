"""Tests the walk over transformers' causal models: its tables, a walk over a
few models, and wrong gradients and losses that the walk must find."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
import transformers
from support import DEEP, environment

from walk import children, compare, configs, judge, plain

WALK = pathlib.Path(__file__).resolve().parent
TABLES = {
    # version of transformers -> (least number of exact rows, least number of
    # exact rows with all layers by chunks, most decoder-only rows not exact)
    "5.24.0": (186, 158, 7),
    "5.23.0": (180, 153, 6),
    "4.57.1": (129, 103, 6),
}
# Models with grouped and shared heads, QK norm, windows, caps, sinks, latent
# attention, mixtures of experts, learned positions, eager attention, their own
# masks, token selection, or layers that pass on keys and values or a state; and
# decoders of an encoder model and of an encoder-decoder. Models that
# gradients/stream_test covers run here only with SLUICE_DEEP=1.
QUICK = (
    "bart bert deepseek_v32 falcon gemma3 gemma4_text gpt_neo llama openai-gpt"
    " opt qwen3_moe qwen3_next starcoder2 xglm"
    + DEEP * " deepseek_v3 gemma2 gpt2 gpt_oss"
).split()


def table(version: str) -> dict[str, list[str]]:
    """Returns name -> cells of the committed table; each name occurs once."""
    text = (WALK / f"transformers-{version}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE)
    twice = [n for n, k in collections.Counter(n for n, _ in rows).items()
             if k > 1]
    assert not twice, f"named more than once: {twice}"
    return {name: re.split(r" \| ", cells) for name, cells in rows}


def verdicts(version: str) -> dict[str, str]:
    return {name: cells[2].strip() for name, cells in table(version).items()}


def walk(*arguments: str, timeout_s: float = 280,
         **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "walk", *arguments], cwd=WALK.parent, text=True,
        env=environment(**changes), capture_output=True, timeout=timeout_s)


def test_the_table_names_every_name_of_the_installed_mapping_once():
    version = transformers.__version__
    if version not in TABLES:
        pytest.skip(f"no table of transformers {version}; python -m walk "
                    f"--markdown walk/transformers-{version}.md makes one")
    assert sorted(table(version)) == configs.names()


@pytest.mark.parametrize("version", TABLES)
def test_no_model_in_a_table_is_wrong_and_few_are_unbuilt(version):
    found = collections.Counter(verdicts(version).values())
    assert set(found) <= {judge.EXACT, judge.REFUSED, judge.UNBUILT}, found
    exact, by_chunks, others = TABLES[version]
    assert found[judge.EXACT] >= exact
    assert sum(cells[2] == judge.EXACT and "layers whole: " not in cells[-1]
               for cells in table(version).values()) >= by_chunks
    rest = {name: cells[-1] for name, cells in table(version).items()
            if cells[2] != judge.EXACT and cells[1] in (
                "decoder", "hybrid", "state space")}
    assert len(rest) <= others and all(rest.values()), rest
    unbuilt = [name for name, cells in table(version).items()
               if cells[2] == judge.UNBUILT and cells[1] in (
                   "decoder", "hybrid")]
    assert len(unbuilt) <= 10, unbuilt


def test_a_quick_walk_agrees_with_the_committed_table(tmp_path):
    version = transformers.__version__
    known = verdicts(version if version in TABLES else "5.23.0")
    told = tmp_path / "rows.json"
    found = walk("--json", str(told), *QUICK)
    assert found.returncode == 0, found.stdout + found.stderr
    rows = json.loads(told.read_text())["rows"]
    assert {row["name"]: row["verdict"] for row in rows} == {
        name: known[name] for name in QUICK}
    assert all(row["blocks"] > 0 or row["whole"] for row in rows
               if row["verdict"] == judge.EXACT)


def test_a_name_unknown_to_transformers_is_a_one_line_error():
    found = walk("lama")
    assert found.returncode == 2
    assert len(found.stderr.splitlines()) == 1 and "lama" in found.stderr


def test_an_interrupted_walk_writes_nothing_and_leaves_no_child(tmp_path):
    told = tmp_path / "rows.json"
    with subprocess.Popen(
        [sys.executable, "-m", "walk", "--plain-only", "--json", str(told)],
        cwd=WALK.parent, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:
        process.stderr.readline()  # the first row has been printed
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert "interrupted after" in process.stderr.read()
    assert not told.exists()


# --- errors that the walk must find -----------------------------------------


@pytest.fixture(scope="module")
def llama():
    """Returns the steps of a plain llama: {batch: {attention: step}}."""
    return {left_out: judge.plain_steps("llama", left_out)
            for left_out in judge.BATCHES}


def altered(step: plain.Step, name: str, by) -> plain.Step:
    gradients = dict(step.gradients)
    gradients[name] = by(gradients[name])
    return plain.Step(step.loss, gradients, step.buffers, step.draws)


@pytest.mark.parametrize("by", [
    lambda g: g * 1.001, torch.zeros_like, lambda g: g * float("nan"),
    lambda g: None,
], ids=["scaled", "zero", "nan", "missing"])
def test_a_wrong_gradient_is_found(llama, by):
    own = compare.own_differences(list(llama.values()))
    eager, name = llama["few"]["eager"], "model.norm.weight"
    assert not compare.worst(eager, own, eager).exceeds()
    worst = compare.worst(eager, own, altered(eager, name, by))
    assert worst.exceeds() and worst.name == name


def test_a_wrong_loss_is_found(llama):
    own = compare.own_differences(list(llama.values()))
    eager = llama["few"]["eager"]
    off = plain.Step(eager.loss * 1.001, eager.gradients, {}, False)
    worst = compare.worst(eager, own, off)
    assert worst.exceeds() and worst.name == "loss"


def test_a_buffer_counted_twice_is_found(llama):
    eager = llama["few"]["eager"]
    a = plain.Step(eager.loss, {}, {"count": torch.tensor([2])}, False)
    b = plain.Step(eager.loss, {}, {"count": torch.tensor([4])}, False)
    assert compare.moved_buffer(a, a) is None
    assert compare.moved_buffer(a, b) == "count"


def test_disagreeing_plain_attentions_do_not_raise_the_limit(llama):
    off = {"few": dict(llama["few"])}
    off["few"]["sdpa"] = altered(
        off["few"]["eager"], "model.norm.weight", lambda g: 2 * g)
    row = judge.Row("llama", "LlamaForCausalLM")
    own, attention = judge.yardstick(row, off)
    assert attention == "sdpa" and max(own.values()) == 0 and row.reason


def test_one_small_gradient_that_differs_is_no_disagreement(llama):
    name = "model.layers.0.input_layernorm.weight"
    steps = {"few": {
        "eager": altered(llama["few"]["eager"], name, lambda g: 1e-4 * g),
        "sdpa": altered(llama["few"]["eager"], name, lambda g: 1.01e-4 * g)}}
    own, attention = judge.yardstick(judge.Row("llama", "Llama"), steps)
    assert attention == "eager" and own[name] == pytest.approx(0.01, rel=0.01)


def rows_of(function, limit_s: float = 30) -> list[judge.Row]:
    return list(children.rows(
        ["a", "b"], function, lambda name: judge.Row(name, "A"), jobs=1,
        limit_s=limit_s))


def test_a_crash_fails_one_row():
    def crash(name):
        if name == "a":
            os.abort()
        return judge.Row(name, "B", verdict=judge.EXACT)

    a, b = rows_of(crash)
    assert a.verdict == judge.FAILED and f"signal {signal.SIGABRT}" in a.reason
    assert b.verdict == judge.EXACT


def test_a_hang_becomes_a_failed_row():
    a, b = rows_of(lambda name: time.sleep(60), limit_s=0.3)
    assert a.verdict == b.verdict == judge.FAILED
    assert "not done after 0.3 s" in a.reason
