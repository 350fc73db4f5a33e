"""Finds where production code can be changed in one statement, and how: a
line's condition, value or call. C++ and Python are read line by line; a mutant
that does not compile is replaced by another."""

import ast
import dataclasses
import re

PRODUCTION = [*(f"{room}/*.{kind}" for kind in ("cc", "h") for room in (
    "client", "daemon", "kernels", "planner", "proto")),
              "client/python/sluice/*.py", ":!client/sluice.h"]
SWAPPED = [("<", "<="), ("<=", "<"), (">", ">="), (">=", ">"), ("==", "!="),
           ("!=", "=="), ("&&", "||"), (r"\|\|", "&&"), ("and", "or"),
           ("or", "and"), (r"\+", "-"), ("-", "+"), (r"\*", "+"), ("/", "*"),
           ("is not", "is"), ("is(?! not)", "is not")]
NAMES = [("std::min", "std::max"), ("std::max", "std::min"), ("true", "false"),
         ("false", "true"), ("min", "max"), ("max", "min"), ("True", "False"),
         ("False", "True")]
# Groups of each pattern: text before, the part that changes, text after.
FORMS = {
    "c++": {
        "condition": r"(\s+(?:\} else )?(?:if|while) \()(.+)"
                     r"(\)(?: \{| return\b.*;| continue;| break;)?)",
        "value": r"(\s+(?:return|.*[^=!<>] [-+]?=) )(.+)(;)",
        "call": r"(\s+)((?:[\w:]+(?:\.|->))*[\w:]+\(.*\)|"
                r"[\w.\->\[\]*]+ [-+|&]?= .+)(;)"},
    "python": {
        "condition": r"(\s+(?:el)?if )(.+)(:)",
        "value": r"(\s+(?:return|[\w.\[\]]+ [-+*]?=) )(.+)()",
        "call": r"(\s+)([\w.]+\(.*\)|\w+\.[\w.]+ [-+*]?= .+)()"}}


@dataclasses.dataclass(frozen=True)
class Site:
    path: str
    line: int
    old: str
    new: str
    planted: str  # the changed line, with ON in the place of the switch

    def __str__(self):
        return f"{self.path}:{self.line}: {self.old} => {self.new}"


def changed(part):
    """Yields the texts that `part` of a line may be replaced by."""
    for word, other in SWAPPED:
        for at in re.finditer(rf" {word} ", part):
            yield part[:at.start()] + f" {other} " + part[at.end():]
    for word, other in NAMES:
        for at in re.finditer(rf"(?<![\w:.]){word}\b", part):
            yield part[:at.start()] + other + part[at.end():]
    for at in re.finditer(r"(?<![\w.\"'%])\d+(?![\w.\"'])", part):
        yield part[:at.start()] + str(int(at.group()) + 1) + part[at.end():]


def of_line(path, number, line):
    cpp = not path.endswith(".py")
    # `_mm512`: not every machine can run AVX-512 code. `while (true)`: a
    # function has no return after an endless loop, so the condition must stay.
    if re.search(r"//|#|\"|constexpr|static|decltype|^\s+(using|for) |_mm512|"
                 r"while \(true\)", line):
        return
    for form, pattern in FORMS["c++" if cpp else "python"].items():
        match = re.fullmatch(pattern, line)
        if not match or match.group(2).count("(") != match.group(2).count(")"):
            continue
        before, part, after = match.groups()
        if form == "call":
            if not part.startswith(("return", "if ", "while ")):
                yield Site(path, number, part, "", before + (
                    f"{{ if (!ON) {part}; }}" if cpp
                    else f"if not ON: {part}"))
            continue
        both = "ON ? ({}) : ({})" if cpp else "({}) if ON else ({})"
        if form == "condition" and " = " not in part and ";" not in part:
            new = f"!({part})" if cpp else f"not ({part})"
            whole = f"static_cast<bool>({part})" if cpp else part
            yield Site(path, number, part, new,
                       before + both.format(new, whole) + after)
        for new in changed(part):
            yield Site(path, number, part, new,
                       before + both.format(new, part) + after)


def inside_strings(text):
    """Returns the line numbers of multi-line strings, such as docstrings."""
    return {line for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.Constant, ast.JoinedStr))
            and node.end_lineno > node.lineno
            for line in range(node.lineno, node.end_lineno + 1)}


def of(path, text):
    python = path.endswith(".py")
    without = inside_strings(text) if python else set()
    lines = text.split("\n")
    found = [site for i, line in enumerate(lines) if i + 1 not in without
             for site in of_line(path, i + 1, line)]
    if not python:
        return found
    return [site for site in found if compiles(lines, site)]


def compiles(lines, site):
    try:
        ast.parse(planted(site.path, "\n".join(lines), [(1, site)]))
    except SyntaxError:
        return False
    return True


def planted(path, text, numbered):
    """Returns `text` with each (number, site) planted behind its switch."""
    lines = text.split("\n")
    python = path.endswith(".py")
    switch = ('__import__("sluice_mutant").on({})' if python
              else "SluiceMutant({})")
    for number, site in numbered:
        lines[site.line - 1] = re.sub(
            r"\bON\b", switch.format(number), site.planted, count=1)
    if not python:
        lines.insert(0, '#include "tests/mutants/mutant.h"\n#line 1')
    return "\n".join(lines)
