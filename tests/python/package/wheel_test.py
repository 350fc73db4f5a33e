"""Tests the wheel's contents, and the READMEs' commands as a user types them.

The environment of the wheel imports torch and transformers from the tests'
environment through a .pth file, which saves a download of 2.5 GB.
`./dev wheel --matrix` tests that pip finds suitable versions.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import zipfile

import pytest
from support import processes_of

TREE = pathlib.Path(__file__).resolve().parents[3]
DIST = TREE / "build" / "wheel" / "dist"
sys.path.insert(0, str(TREE / "deploy" / "wheel"))

import needs  # noqa: E402
import readme  # noqa: E402

GOOD = """
Dynamic Section:
  NEEDED               libm.so.6
  NEEDED               libc.so.6

Version References:
  required from libc.so.6:
    0x06969190 0x00 05 GLIBC_2.28
    0x06969185 0x00 03 GLIBC_2.2.5
"""


@pytest.mark.parametrize("was, put, said", [
    ("GLIBC_2.28", "GLIBC_2.29", "needs GLIBC_2.29, over GLIBC_2.28"),
    ("GLIBC_2.28", "GLIBCXX_3.4.21", "needs GLIBCXX_3.4.21"),
    ("GLIBC_2.28", "GLIBC_ABI_DT_RELR", "needs GLIBC_ABI_DT_RELR"),
    ("libm.so.6\n", "libstdc++.so.6\n", "needs libstdc++.so.6"),
    ("\nVersion", "  FLAGS                0x0000000000000010\n\nVersion",
     "has STATIC_TLS"),
    ("NEEDED               libc.so.6", "RUNPATH  /tmp", "has RUNPATH /tmp"),
])
def test_what_the_wheels_tag_forbids_is_found(
        was: str, put: str, said: str) -> None:
    assert not needs.problems_of("x", GOOD)
    [problem] = needs.problems_of("x", GOOD.replace(was, put, 1))
    assert said in problem


@pytest.fixture(scope="module")
def wheel() -> pathlib.Path:
    made = subprocess.run([TREE / "dev", "wheel"], capture_output=True,
                          text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    [path] = DIST.glob("*.whl")
    return path


def empty_environment(folder: pathlib.Path) -> dict[str, str]:
    """Makes an environment in `folder` without anything of the tree; returns
    its variables."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    theirs = pathlib.Path(sysconfig.get_path(
        "purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (theirs / "torch_of_the_tests.pth").write_text(
        sysconfig.get_path("purelib") + "\n")
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("SLUICE_", "PYTHON", "PIP_"))}
    return {**kept, "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "SLUICE_DAEMON_IDLE_S": "0"}


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> dict[str, str]:
    """An environment where the README's command has installed the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    made = empty_environment(folder / "environment")
    [install] = readme.install_lines(TREE / "client/python/README.md")
    done = subprocess.run(install, shell=True, cwd=wheel.parent, env=made,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def run(environment: dict[str, str], where: pathlib.Path, *words: str,
        ) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=where, env=environment,
                          capture_output=True, text=True)


def test_the_wheel_has_all_modules_and_programs(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    modules = {f"sluice/{path.relative_to(TREE / 'client/python/sluice')}"
               for path in (TREE / "client/python/sluice").rglob("*.py")}
    assert modules | {
        "sluice/py.typed", "sluice/bin/sluiced", "sluice/bin/sluice-worker",
        "sluice/bin/sluicectl", "sluice/lib/libsluice.so",
        "sluice/licenses/LICENSE", "sluice/licenses/THIRD_PARTY"} <= names


def test_the_wheel_uses_its_own_programs(environment, tmp_path) -> None:
    done = run(environment, tmp_path, "python", "-c",
               "import sluice.native.daemon as d; print(d.__file__); "
               "p = d.find_programs(); print(p.library, p.sluiced)")
    assert done.returncode == 0, done.stderr
    assert str(TREE) not in done.stdout
    assert "/sluice/lib/libsluice.so " in done.stdout
    assert "/sluice/bin/sluiced\n" in done.stdout


def test_doctor_finds_no_problem(environment, tmp_path) -> None:
    done = run(environment, tmp_path, "python", "-m", "sluice", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheels_sluicectl_answers_plan(environment, tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(
        model_type="llama", hidden_size=4096, intermediate_size=14336,
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256)))
    done = run(environment, tmp_path, "python", "-m", "sluice", "plan", ".",
               "--seq-len", "1M", "--gpus", "8", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["fits"]


def test_the_readmes_lines_train_a_model(environment, tmp_path) -> None:
    program = readme.program(TREE / "client/python/README.md")
    assert program == readme.program(TREE / "README.md")
    (tmp_path / "typed.py").write_text(program)
    done = run(environment, tmp_path, "python", "typed.py")
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(losses) >= 5 and losses[-1] < losses[0] - 0.5


def test_torchrun_runs_the_lines_in_two_ranks(environment, tmp_path) -> None:
    (tmp_path / "typed.py").write_text(
        readme.program(TREE / "client/python/README.md"))
    environment = {**environment, "TMPDIR": str(tmp_path),
                   "SLUICE_DAEMON_IDLE_S": "100"}
    done = run(environment, tmp_path, "python", "-m", "torch.distributed.run",
               "--standalone", "--nproc-per-node", "2", "typed.py")
    assert done.returncode == 0, done.stdout + done.stderr
    # The daemon of the ranks still runs, and the wheel's sluicectl finds it.
    status = run(environment, tmp_path, "sluicectl", "status", "--json")
    [pid] = processes_of(str(tmp_path))
    os.kill(pid, signal.SIGTERM)
    assert len(json.loads(status.stdout)["gpus"]) == 8, status.stderr


def test_the_main_readme_names_the_built_wheel(wheel) -> None:
    [install] = readme.install_lines(TREE / "README.md")
    assert (TREE / install.split()[-1]) == wheel


def test_the_wheels_daemon_serves_metrics(environment, tmp_path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[device]\ndriver = "sim"\n'
                      '[http]\nlisten = "127.0.0.1:0"\n')
    [sluiced] = pathlib.Path(environment["PATH"].split(":")[0]).parent.glob(
        "lib/python*/site-packages/sluice/bin/sluiced")
    with subprocess.Popen(
            [sluiced, "--config", config, "--runtime-dir", tmp_path / "run"],
            stdout=subprocess.PIPE, text=True) as daemon:
        try:
            ready = daemon.stdout.readline()
            page = f"http://{ready.split('http=')[1].strip()}/metrics"
            with urllib.request.urlopen(page) as answer:
                assert b"sluice_gpu_usable" in answer.read()
        finally:
            daemon.terminate()
