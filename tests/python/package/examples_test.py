"""The package's examples run, and their loss falls. Two run as a user types
them, the others in forks that have loaded their imports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support import PACKAGE, Loaded, environment

EXAMPLES = PACKAGE / "examples"
LOADED = ["trainer", "lora", "packed_sft"]
# command_line_test runs train_tiny. memory_over_a_step draws the README's
# picture.
ELSEWHERE = {"train_tiny", "memory_over_a_step"}


def ran(*arguments: str) -> str:
    return said_by(subprocess.run(
        [sys.executable, *arguments], text=True, env=environment(),
        capture_output=True, timeout=300))


def said_by(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert "sluice: " in done.stderr  # the line printed at attach
    return done.stdout


def assert_learned(said: str) -> None:
    losses = [float(x) for x in re.findall(r"loss'?:? '?([0-9.]+)", said)]
    assert len(losses) >= 2 and losses[-1] < losses[0] - 0.1, said


@pytest.fixture(scope="module")
def loaded():
    loaded = Loaded("models", "peft", "datasets", "trl.trainer.sft_trainer",
                    "transformers.trainer", "sluice.hf.transformers_model")
    yield loaded
    loaded.close()


@pytest.mark.parametrize("name", LOADED)
def test_an_example_runs_and_learns(name, loaded):
    assert_learned(said_by(loaded.run(EXAMPLES / f"{name}.py")))


def test_an_example_without_transformers_runs_and_learns():
    assert_learned(ran(str(EXAMPLES / "own_decoder.py")))


def test_the_example_of_fsdp_runs_on_two_ranks():
    said = ran("-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", "2", str(EXAMPLES / "fsdp.py"))
    assert_learned(said)
    assert "2 ranks" in said


def test_every_example_is_listed():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        *LOADED, *ELSEWHERE, "own_decoder", "fsdp"}
