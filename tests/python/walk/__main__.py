"""`python -m walk`: see README.md, or --help."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m walk",
        description="Judges sluice.stream on a tiny random model of every "
        "causal language model of transformers, on the CPU: exact, refused or "
        "unbuilt. Exits with status 1 if a model is wrong or failed.",
        epilog="examples:\n"
        "  python -m walk llama gpt2              two names, rows to stdout\n"
        "  python -m walk --plain-only            which models can be built\n"
        "  python -m walk --markdown walk/transformers-5.23.0.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", default=[])
    parser.add_argument(
        "--transformers-path", metavar="DIR",
        help="folder to import transformers from, before the installed one",
    )
    parser.add_argument("--json", metavar="FILE",
                        help="write all rows to FILE as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="write the table")
    parser.add_argument("--update", metavar="FILE",
                        help="replace these names' rows in the table FILE")
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="names judged at a time (default 1)")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S",
                        help="limit for each model, in seconds (default 120)")
    parser.add_argument("--plain-only", action="store_true",
                        help="build and run the plain models, stream nothing")
    parser.add_argument("--long", action="store_true",
                        help="8,400 tokens in chunks of 1,024 (long.py)")
    parser.add_argument("--trace", action="store_true",
                        help="print the traceback of each failure")
    return parser.parse_args()


class _Asked:
    """Tells whether a signal has arrived. The signals set a flag, because an
    exception that is raised while a child is forked would be lost."""

    def __init__(self, *signals: int):
        self.came = False
        for number in signals:
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.came = True

    def __call__(self) -> bool:
        return self.came


def _say(row, done: int, of: int, trace: bool) -> None:
    detail = row.reason
    if row.difference is not None:
        detail = f"{row.worst} {row.difference:.1e} {detail}"
    print(f"{done:3d}/{of} {row.name:26s} {row.verdict:8s}"
          f" {row.seconds:5.1f} s  {detail}"[:220], file=sys.stderr, flush=True)
    if trace and row.trace:
        print(row.trace, file=sys.stderr, flush=True)


def _update(path: str, row) -> None:
    from . import table

    with open(path, encoding="utf-8") as file:
        known = file.read()
    with open(path, "w", encoding="utf-8") as out:
        out.write(table.updated(known, [row]))


def _write(arguments: argparse.Namespace, rows: list, version: str) -> None:
    from . import table

    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            out.write(table.as_json(rows, version))
    if arguments.markdown:
        command = "python -m walk"
        if arguments.transformers_path:
            command += " --transformers-path DIR"
        if arguments.plain_only:
            command += " --plain-only"
        with open(arguments.markdown, "w", encoding="utf-8") as out:
            out.write(table.markdown(rows, version, command))


def main() -> int:
    arguments = _arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    if arguments.transformers_path:
        if not os.path.isdir(arguments.transformers_path):
            print(f"walk: no folder {arguments.transformers_path}; give the "
                  "one that holds transformers/", file=sys.stderr)
            return 2
        sys.path.insert(0, arguments.transformers_path)
    import warnings

    import torch
    import transformers

    from . import children, configs, judge, long, table

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    unknown = sorted(set(arguments.names) - set(configs.names()))
    if unknown:
        print(f"walk: transformers {transformers.__version__} has no causal "
              f"language model {', '.join(unknown)}", file=sys.stderr)
        return 2
    names = arguments.names or configs.names()
    configs.tiny("llama")  # imports what every child needs, once
    if not arguments.plain_only:
        import sluice.hf.transformers_model  # noqa: F401
    # Garbage collection in a child does not touch (copy) loaded objects.
    gc.freeze()
    rows: list[judge.Row] = []
    walk = children.rows(
        names,
        long.judge if arguments.long else lambda name: judge.judge(
            name, arguments.plain_only),
        lambda name: judge.Row(name, configs.class_name(name)),
        jobs=max(1, arguments.jobs),
        limit_s=arguments.timeout,
        stopped=_Asked(signal.SIGINT, signal.SIGTERM),
    )
    try:
        for row in walk:
            rows.append(row)
            if arguments.update:
                _update(arguments.update, row)
            _say(row, len(rows), len(names), arguments.trace)
    except KeyboardInterrupt:
        print(f"\nwalk: interrupted after {len(rows)} of {len(names)} names; "
              "--json and --markdown are not written", file=sys.stderr)
        return 130
    _write(arguments, rows, transformers.__version__)
    print(f"transformers {transformers.__version__}, {table.summary(rows)}")
    return 1 if any(row.verdict in judge.BAD for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
