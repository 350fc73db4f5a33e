"""The phases of `./dev test`, `.ci/run` and `./dev test --deep`.

A phase is one command, or one run of CTest, with a time limit. The other
phases run even if a phase fails; only tests of programs that were not built
are skipped.
"""

import dataclasses
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
TIERS = ("test", "ci", "deep")


@dataclasses.dataclass(frozen=True)
class Phase:
    name: str
    tier: str  # first of TIERS that includes the phase
    limit: int  # seconds
    # A program and its arguments. If empty, CTest runs with `select`.
    command: tuple = ()
    # The build that the phase needs: a folder of build/, and its targets.
    preset: str = ""
    targets: tuple = ("all",)
    select: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)
    # Whether the tests are started as root, not as a plain user.
    as_root: bool = False
    # A command that starts CTest.
    under: tuple = ()
    # A folder of sanitizers' reports; each file in it is a failure.
    reports: str = ""


def dev(name, tier, limit, *words, **more):
    return Phase(name, tier, limit,
                 command=(os.path.join(ROOT, "dev"), *words), **more)


def build(name, tier, limit, preset, *targets):
    words = [word for target in targets for word in ("--target", target)]
    return dev(name, tier, limit, "build", preset, "--keep-going", *words)


def tests(name, tier, limit, preset, *select, **more):
    return Phase(name, tier, limit, preset=preset, select=select, **more)


# Poisoned memory shows reads of data that arrives late or was freed too early.
# The phases of the sanitizers poison memory.
POISON = {"SLUICE_POISON": "1"}
RACES = os.path.join(ROOT, "build/tsan/races")
TSAN_OPTIONS = ":".join([
    # Reports are written to files, so that the report of a daemon that a test
    # starts fails the phase even if the test passes.
    f"log_path={RACES}/race",
    f"suppressions={ROOT}/deploy/lint/races.supp",
    # Tests crash processes on purpose, and end processes while a thread plans.
    "handle_segv=0", "report_thread_leaks=0"])

PHASES = (
    dev("setup", "test", 1200, "setup", "base", "test", "python", "wheel"),
    dev("lint", "test", 180, "lint", "--quick"),
    build("build", "test", 2700, "release"),
    tests("tests", "test", 2700, "release", "-LE", "^(root|ci|deep)$"),
    tests("tests of root", "test", 300, "release", "-L", "^root$",
          "-LE", "^(ci|deep)$", as_root=True),
    # deep_programs are built only so that no change breaks them unnoticed.
    build("build for ci", "ci", 1500, "release", "ci_programs",
          "deep_programs"),
    # Runs as root, because it is not known which of these tests need root.
    tests("tests of ci", "ci", 1800, "release", "-L", "^ci$",
          "-LE", "^(root|deep)$", as_root=True,
          targets=("all", "ci_programs")),
    build("build for packages", "ci", 1800, "wheel", "kit_programs",
          "installable"),
    tests("tests of ci and root", "ci", 1200, "release", "-L", "^ci$",
          "-L", "^root$", "-LE", "^deep$", as_root=True,
          targets=("all", "ci_programs")),
    build("build for ASan", "ci", 1800, "asan", "sanitize_tests"),
    tests("ASan, UBSan", "ci", 600, "asan", "-L", "^sanitize$",
          environment=POISON, targets=("sanitize_tests",)),
    build("build for TSan", "ci", 1800, "tsan", "races_tests"),
    tests("TSan", "ci", 600, "tsan", "-L", "^races$", reports=RACES,
          targets=("races_tests",),
          # Clang 14's runtime does not support the address layout of newer
          # kernels.
          under=("setarch", "-R"),
          environment={**POISON, "TSAN_OPTIONS": TSAN_OPTIONS}),
    dev("locks", "ci", 300, "locks", preset="release"),
    # The readers of the daemon, its keeper and its clients. `./dev fuzz` also
    # runs the readers of sluicectl.
    dev("fuzz", "ci", 900, "fuzz", "--seconds", "3", "answer", "config",
        "http", "notification", "plan", "policy", "rows", "session", "state"),
    # Every source is compiled separately, which finds missing includes; tests
    # that compile mutants need this build.
    build("build each source", "deep", 5400, "dev", "all", "ci_programs"),
    tests("tests of deep", "deep", 10800, "release", "-L", "^deep$",
          "-LE", "^(root|bench)$", targets=("all", "deep_programs")),
    tests("tests of deep and root", "deep", 3600, "release", "-L", "^deep$",
          "-L", "^root$", as_root=True, targets=("all", "deep_programs")),
    tests("benches", "deep", 1800, "release", "-L", "^bench$"),
    build("build all for ASan", "deep", 2400, "asan"),
    tests("ASan, UBSan: all", "deep", 1800, "asan",
          "-L", "^(unit|conformance)$", environment=POISON),
    dev("clang-tidy", "deep", 7200, "lint", "--all"),
    dev("locks of tests", "deep", 1800, "locks", "--tests", preset="release"),
    dev("demo", "deep", 900, "demo"),
    dev("wheel matrix", "deep", 3600, "wheel", "--matrix"),
    dev("coverage", "deep", 7200, "coverage"),
    dev("mutants", "deep", 10800, "mutants"),
)


def of_tier(tier):
    return [phase for phase in PHASES
            if TIERS.index(phase.tier) <= TIERS.index(tier)]
