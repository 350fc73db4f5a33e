"""Tests python -m sluice and an example. Each command runs once as a user
types it, and with invalid input in forks that have already loaded torch and
transformers."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys

import pytest
import support
import torch
from models import tiny
from support import PACKAGE, environment
from walk import configs

import sluice as package


def sluice(*arguments, **changes):
    return subprocess.run([sys.executable, "-m", "sluice", *arguments],
                          env=environment(**changes), text=True,
                          capture_output=True, timeout=100)


def forked(*arguments):
    """Runs the command in a fork. Returns what sluice() returns, ten times
    faster, because torch is already loaded."""
    from sluice.__main__ import main
    return support.forked(lambda: main(list(arguments)))


def test_doctor_finds_no_problem_here():
    found = sluice("doctor")
    assert found.returncode == 0, found.stdout + found.stderr
    lines = found.stdout.splitlines()
    assert all(line.startswith("ok    ") for line in lines)
    assert [line.split("  ")[2].strip() for line in lines[:7]] == [
        "python", "torch", "transformers", "CUDA of torch", "libsluice.so",
        "sluiced", "session"]
    assert lines[3].split()[4].startswith(torch.version.cuda or "none")
    # The remaining lines are sluicectl's checks of the machine.
    assert lines[7].split()[1] == "driver" and len(lines) == 15


def test_doctor_names_missing_parts_and_their_remedy(tmp_path):
    found = sluice("doctor", "--json", SLUICE_BIN_DIR=str(tmp_path))
    assert found.returncode == 1
    told = json.loads(found.stdout)
    assert not told["ok"]
    missing = {f["what"]: f["said"] for f in told["findings"] if not f["ok"]}
    assert set(missing) == {"libsluice.so", "sluiced", "session"}, missing
    assert "./dev build" in missing["libsluice.so"]


def test_both_doctor_commands_report_the_same_daemon():
    from private_daemon import PrivateDaemon

    from sluice.native.daemon import find_programs
    daemon = PrivateDaemon()

    def of_the_daemon(*arguments):
        return subprocess.run([find_programs().need("sluicectl"), *arguments],
                              env=environment(), text=True,
                              capture_output=True, timeout=100)

    def told(doctor):
        done = doctor("doctor", "--json", "--socket", daemon.socket)
        answer = json.loads(done.stdout)
        assert done.returncode == (0 if answer["ok"] else 1)
        found = {f["what"]: f for f in answer["findings"]}
        return found.get("daemon") or found["session"]

    doctors = (of_the_daemon, forked)
    try:
        assert [told(each)["ok"] for each in doctors] == [True, True]
        daemon.close()
        for each in doctors:
            gone = told(each)
            assert not gone["ok"] and daemon.socket in gone["said"], gone
    finally:
        daemon.close()


@pytest.mark.parametrize("kind,changes,status,said", [
    ("llama", {}, 0, "can be streamed: 2 layers of 1 kinds"),
    ("llama", dict(attention_dropout=0.1), 1, "attention_dropout = 0"),
    ("llama", dict(num_hidden_layers=30), 0, "streamed: 30 layers of 1 kinds"),
    ("gemma2", dict(num_hidden_layers=9), 0, "streamed: 9 layers of 2 kinds"),
    ("qwen3_moe", dict(num_hidden_layers=9, mlp_only_layers=[0, 1, 2],
                       num_experts=4, num_experts_per_tok=2,
                       moe_intermediate_size=24), 0,
     "streamed: 9 layers of 2 kinds"),
    # No field of this config lists the kinds of layers.
    ("mamba", {}, 0, "streamed: 2 layers (2 run whole) of 1 kinds"),
])
def test_probe_reads_a_config(tmp_path, kind, changes, status, said):
    tiny(kind, **changes).config.save_pretrained(tmp_path)
    found = forked("probe", str(tmp_path))
    assert found.returncode == status, found.stdout + found.stderr
    assert said in found.stdout


@pytest.mark.parametrize("name", ["gemma3", "moss_transcribe_diarize"])
def test_probe_reads_a_config_of_several_towers(tmp_path, name):
    configs.tiny_config(name).save_pretrained(tmp_path)
    found = forked("probe", str(tmp_path))
    assert found.returncode == 0, found.stdout + found.stderr


def test_probe_reports_a_config_without_a_model_in_one_line(tmp_path):
    configs.tiny_config("mllama").save_pretrained(tmp_path)
    found = forked("probe", str(tmp_path))
    assert found.returncode == 1 and found.stderr.startswith("error: ")
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("field, value", [
    ("hidden_size", "32"), ("num_hidden_layers", -2),
    ("num_attention_heads", 0), ("hidden_act", "none")])
def test_probe_reports_invalid_values_in_one_line(
        tmp_path, field, value):
    tiny().config.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()),
                                  field: value}))
    found = forked("probe", str(tmp_path))
    assert found.returncode == 1
    assert len((found.stdout + found.stderr).splitlines()) == 1


@pytest.mark.parametrize("command, words", [
    (["probe", ""], "folder = ''"), (["doctor", "--socket", ""], "socket"),
    (["plan", "", "--gpus", "8", "--seq-len", "1K"], "folder = ''")])
def test_an_empty_argument_is_refused(command, words):
    found = forked(*command)
    assert found.returncode == 1 and "Traceback" not in found.stderr
    assert words in found.stdout + found.stderr


@pytest.mark.parametrize("word, value", [
    ("--gpus", "0"), ("--gpus", "-1"), ("--gpus", "nan"), ("--gpus", ""),
    ("--gpus", "9" * 30), ("--seq-len", "0"), ("--seq-len", "-1K"),
    ("--seq-len", "1.5"), ("--seq-len", ""), ("--hardware", "")])
def test_plan_reports_invalid_numbers_in_one_line(tmp_path, word, value):
    tiny().config.save_pretrained(tmp_path)
    given = {"--gpus": "8", "--seq-len": "1K", word: value}
    found = forked("plan", str(tmp_path), *(
        f"{name}={told}" for name, told in given.items()))
    assert found.returncode == 2 and not found.stdout
    assert found.stderr.startswith("error: ")
    assert len(found.stderr.splitlines()) == 1


def test_probe_reports_an_empty_folder_in_one_line(tmp_path):
    found = sluice("probe", str(tmp_path))
    assert found.returncode == 1
    assert found.stderr.startswith("error: no config.json in ")
    assert len(found.stderr.splitlines()) == 1


def plan(folder, *more):
    return forked("plan", str(folder), "--gpus", "8", *more)


def test_plan_reads_a_config_and_says_whether_it_fits(tmp_path):
    tiny("llama").config.save_pretrained(tmp_path)
    found = sluice("plan", str(tmp_path), "--gpus", "8", "--seq-len", "64K",
                   "--json")
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["fits"] and told["settings"]["seq_len"] == 65536
    assert told["settings"]["engine"] == "python"
    found = plan(tmp_path, "--seq-len", "64K")
    assert "8 x h100-80g, 64K tokens, sluice: fits" in found.stdout


def test_a_plan_that_does_not_fit_has_its_own_exit_status(tmp_path):
    tiny("llama", num_hidden_layers=2).config.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    told = json.loads(config.read_text())
    told.update(num_hidden_layers=500, hidden_size=16384,
                intermediate_size=65536, num_attention_heads=128,
                num_key_value_heads=128, head_dim=128)
    config.write_text(json.dumps(told))
    assert plan(tmp_path, "--seq-len", "1M").returncode == 3


@pytest.mark.parametrize("kind, said", [
    ("mixtral", "8 experts"), ("gemma2", "attn_logit_softcapping"),
    ("phi", "model_type"), ("deepseek_v3", "n_routed_experts"),
    ("mistral", "sliding_window")])
def test_plan_refuses_an_unknown_model_shape(tmp_path, kind, said):
    tiny(kind).config.save_pretrained(tmp_path)
    found = plan(tmp_path, "--seq-len", "64K")
    assert found.returncode == 2 and not found.stdout
    assert found.stderr.startswith("error: ") and said in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_help_has_examples():
    found = sluice("--help")
    assert found.returncode == 0 and "examples:" in found.stdout


def test_help_does_not_load_torch():
    ran = subprocess.run(
        [sys.executable, "-c", "import sys, sluice.__main__\n"
         "try: sluice.__main__.main(['--help'])\n"
         "finally: sys.stderr.write(str('torch' in sys.modules))"],
        env=environment(), text=True, capture_output=True, timeout=100)
    assert "examples:" in ran.stdout and ran.stderr == "False"


def test_every_public_name_can_be_imported():
    assert set(package.__all__) == set(package._MODULES) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    assert not hasattr(package, "nothing")


def test_the_version_is_that_of_the_tree():
    tree = (PACKAGE.parents[1] / "CMakeLists.txt").read_text()
    assert f"project(sluice VERSION {package.__version__} " in tree


def test_the_example_trains(monkeypatch):
    example = str(PACKAGE / "examples" / "train_tiny.py")
    monkeypatch.setattr(sys, "argv", [example, "3"])
    ran = support.forked(lambda: runpy.run_path(example, run_name="__main__")
                         and 0)
    assert ran.returncode == 0, ran.stderr
    losses = [float(line.split("loss ")[1].split(",")[0])
              for line in ran.stdout.splitlines()]
    assert len(losses) == 3 and losses[2] < losses[0]
