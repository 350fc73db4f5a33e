"""python -m sluice doctor | probe | plan | daemon: see --help."""
from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import pathlib
import subprocess
import sys

from sluice.base.errors import Error, Status

_EXAMPLES = """examples:
  python -m sluice doctor                    is everything there, does it work?
  python -m sluice doctor --socket /run/sluice/session.sock --json
  sluicectl doctor                           is the daemon's node set up well?
  python -m sluice probe ~/models/my-model   can this model be streamed?
  python -m sluice plan ~/models/my-model --seq-len 1M --gpus 8
  python -m sluice daemon                    runs sluiced until Ctrl-C
"""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 on success; 1 if a check or the command fails
    or the model cannot be streamed; 2 for wrong arguments or an unknown model
    shape; 3 if `plan` finds that training does not fit; 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Looks at a set-up or a model before a run.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor", help="what is installed, and whether a session works")
    doctor.add_argument("--socket", help="of the daemon; default: "
                        "$SLUICE_SOCKET, else the node's or this user's")
    probe = commands.add_parser(
        "probe", help="whether a model can be streamed exactly, and why not")
    probe.add_argument("model", metavar="MODEL_DIR",
                       help="a folder with the model's config.json; weights "
                       "are not read")
    plan = commands.add_parser(
        "plan", help="does training it fit, how fast, by the cost model; "
        "no GPU is needed")
    plan.add_argument("model", metavar="MODEL_DIR",
                      help="a folder with the model's config.json")
    plan.add_argument("--gpus", required=True, metavar="N",
                      help="GPUs in all, one rank on each")
    plan.add_argument("--seq-len", required=True, metavar="COUNT",
                      help="tokens: 131072, 128K, 1M")
    plan.add_argument("--hardware", default="h100-80g", metavar="NAME",
                      help="a shipped profile or a TOML file; default: "
                      "%(default)s")
    plan.add_argument("--compare", action="store_true",
                      help="also other methods on the same GPUs")
    commands.add_parser(
        "daemon", help="sluiced of this user on this node, until Ctrl-C: "
        "sessions that name no socket join it")
    for command in (doctor, probe, plan):
        command.add_argument("--json", action="store_true",
                             help="one JSON object on stdout")
    given = parser.parse_args(arguments)
    try:
        return {"doctor": _doctor, "probe": _probe, "plan": _plan,
                "daemon": _daemon}[given.command](given)
    except KeyboardInterrupt:
        return 130
    except (Error, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _doctor(given: argparse.Namespace) -> int:
    from sluice.doctor import examine
    found = []
    for finding in examine(given.socket):
        found.append(finding)
        if not given.json:
            mark = "ok  " if finding.ok else "FAIL"
            print(f"{mark}  {finding.what:<17} {finding.said}", flush=True)
    good = all(finding.ok for finding in found)
    if given.json:
        print(json.dumps({"ok": good, "findings": [
            dataclasses.asdict(f) for f in found]}))
    return 0 if good else 1


def _probe(given: argparse.Namespace) -> int:
    from sluice.verdict import verdict
    found = verdict(given.model)
    if given.json:
        print(json.dumps(dataclasses.asdict(found)))
    elif found.exact:
        print(f"{found.model}: can be streamed: {found.said}")
    else:
        print(f"{found.model}: cannot be streamed: {found.said}")
    return 0 if found.exact else 1


def _plan(given: argparse.Namespace) -> int:
    """Runs the planner, with the cost model of `stream(hidden="host")` under
    FSDP2. The planner refuses a model shape that it does not know, and names
    the field of config.json."""
    from sluice.base.arguments import PATH, need
    from sluice.native.daemon import find_programs
    need("plan", "folder", given.model, PATH)
    config = pathlib.Path(given.model) / "config.json"
    if not config.is_file():
        raise Error(Status.NOT_FOUND, f"no config.json in {given.model}: give "
                    "the folder that save_pretrained() wrote")
    words = [find_programs().need("sluicectl"), "plan", "train", "--engine",
             "python", "--model", str(config), "--hardware", given.hardware,
             "--gpus", given.gpus, "--seq-len", given.seq_len]
    words += ["--compare"] * given.compare + ["--json"] * given.json
    return subprocess.run(words).returncode


def _daemon(given: argparse.Namespace) -> int:
    from sluice.native import user_daemon
    words = user_daemon.command(user_daemon.folder_of_the_user())
    os.execv(words[0], words)


def run_sluiced() -> None:
    """Replaces this process by the wheel's `sluiced`."""
    _run("sluiced")


def run_sluicectl() -> None:
    """Replaces this process by `sluicectl` for the daemon that sessions use."""
    from sluice.native import user_daemon
    os.environ.setdefault("SLUICE_SOCKET", user_daemon.known_socket())
    _run("sluicectl")


def _run(program: str) -> None:
    from sluice.native.daemon import find_programs
    path = find_programs().need(program)
    os.execv(path, [program, *sys.argv[1:]])


def _main() -> int:
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            print("error: cannot write to standard output: "
                  f"{error.strerror}", file=sys.stderr)
        # Without this, the interpreter flushes stdout again and exits with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(_main())
