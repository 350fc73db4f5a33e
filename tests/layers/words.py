#!/usr/bin/env python3
"""Limits the lines of comments and READMEs that call a program a person, and
the sentences of comments that begin with "Of": words.py ROOT [--list]

Such sentences hide their subject. The limits must not be raised."""

import argparse
import io
import re
import subprocess
import sys
import tokenize

PEOPLE = re.compile(
    r"\b(who|whose|whoever|nobody|somebody|everybody|anybody)\b", re.I)
OF = re.compile(r"(?:^|[.:] )Of [a-z]")
CPP = (".cc", ".h", ".cu", ".proto")
HASH = (".sh", ".cmake", "CMakeLists.txt", ".toml", ".in", ".txt")
MOST_PEOPLE, MOST_OF = 0, 0


def python_comments(text):
    """Yields (line, text) of comments and docstrings."""
    before = tokenize.INDENT
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
        elif token.type == tokenize.STRING and before in (
                tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE,
                tokenize.ENCODING):
            for i, line in enumerate(token.string.split("\n")):
                yield token.start[0] + i, line.strip(' "')
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type


def comments(path, text):
    if path.endswith(".py"):
        yield from python_comments(text)
        return
    mark = ("" if path.endswith(".md") else
            r"//+ ?" if path.endswith(CPP) else r"(?:^|\s)#+ ?")
    for i, line in enumerate(text.split("\n")):
        match = re.search(mark, line)
        if match:
            yield i + 1, line[match.end():]


def found(path, text):
    """Yields (line, kind, text) of what is counted."""
    ended, last = True, 0
    for number, comment in comments(path, text):
        if PEOPLE.search(comment):
            yield number, "people", comment
        starts = ended or number != last + 1
        if not path.endswith(".md") and any(
                match.start() > 0 or starts for match in OF.finditer(comment)):
            yield number, "of", comment
        ended, last = comment.rstrip().endswith((".", ":")), number


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    paths = subprocess.run(
        ["git", "-C", given.root, "ls-files", "-co", "--exclude-standard"],
        check=True, capture_output=True, text=True).stdout.split()
    counts = {"people": 0, "of": 0}
    for path in paths:
        if path.endswith((*CPP, *HASH, ".py", ".md")):
            with open(f"{given.root}/{path}", encoding="utf-8") as file:
                for line, kind, text in found(path, file.read()):
                    counts[kind] += 1
                    if given.list:
                        print(f"{path}:{line}: {kind}: {text.strip()}")
    print(f"people-words for programs: {counts['people']} lines, "
          f"{MOST_PEOPLE} at most; sentences that begin with Of: "
          f"{counts['of']}, {MOST_OF} at most")
    return int(counts["people"] > MOST_PEOPLE or counts["of"] > MOST_OF)


if __name__ == "__main__":
    sys.exit(main())
