"""python -m sluice and the example, as typed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from models import tiny
from support import PACKAGE, environment


def sluice(*arguments, **changes):
    return subprocess.run([sys.executable, "-m", "sluice", *arguments],
                          env=environment(**changes), text=True,
                          capture_output=True, timeout=100)


def test_doctor_finds_everything_here():
    found = sluice("doctor")
    assert found.returncode == 0, found.stdout + found.stderr
    assert [line.split()[:2] for line in found.stdout.splitlines()] == [
        ["ok", what] for what in ("python", "torch", "transformers",
                                  "libsluice.so", "sluiced", "session")]


def test_doctor_says_what_is_missing_and_what_to_do(tmp_path):
    found = sluice("doctor", "--json", SLUICE_BIN_DIR=str(tmp_path))
    assert found.returncode == 1
    told = json.loads(found.stdout)
    assert not told["ok"]
    missing = {f["what"]: f["said"] for f in told["findings"] if not f["ok"]}
    assert set(missing) == {"libsluice.so", "sluiced", "session"}
    assert "./dev build" in missing["libsluice.so"]


@pytest.mark.parametrize("kind,changes,status,said", [
    ("llama", {}, 0, "can be streamed: 2 of its 2 layers"),
    ("llama", dict(attention_dropout=0.1), 1, "attention_dropout = 0"),
])
def test_probe_reads_a_config(tmp_path, kind, changes, status, said):
    tiny(kind, **changes).config.save_pretrained(tmp_path)
    found = sluice("probe", str(tmp_path))
    assert found.returncode == status, found.stdout + found.stderr
    assert said in found.stdout


def test_probe_of_an_empty_folder_says_so(tmp_path):
    found = sluice("probe", str(tmp_path))
    assert found.returncode == 1
    assert found.stderr.startswith("error: no config.json in ")
    assert len(found.stderr.splitlines()) == 1


def test_help_has_examples():
    found = sluice("--help")
    assert found.returncode == 0 and "examples:" in found.stdout


def test_the_example_trains():
    ran = subprocess.run(
        [sys.executable, PACKAGE / "examples" / "train_tiny.py", "3"],
        env=environment(), text=True, capture_output=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    losses = [float(line.split("loss ")[1].split(",")[0])
              for line in ran.stdout.splitlines()]
    assert len(losses) == 3 and losses[2] < losses[0]
