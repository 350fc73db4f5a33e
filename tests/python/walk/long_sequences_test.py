"""Every model that is exact at 75 tokens is exact at 8,400, in chunks of 1,024;
at most three models are refused at 8,400."""

from __future__ import annotations

import json

import transformers

from walk import judge
from walk.causal_models_test import TABLES, verdicts, walk


def test_long_sequences_are_exact_or_refused(tmp_path):
    version = transformers.__version__
    known = verdicts(version if version in TABLES else "5.23.0")
    names = [name for name, verdict in known.items()
             if verdict == judge.EXACT]
    told = tmp_path / "rows.json"
    found = walk("--long", "--timeout", "600", "--json", str(told), *names,
                 timeout_s=7000)
    rows = {row["name"]: row for row in json.loads(told.read_text())["rows"]}
    assert found.returncode == 0, found.stdout + found.stderr
    refused = {name for name, row in rows.items()
               if row["verdict"] == judge.REFUSED}
    assert len(rows) == len(names) and len(refused) <= 3, refused
