#!/usr/bin/env python3
"""Every removed lock is detected: locks_test.py BUILD_DIR.

Copies sources of the product, removes one lock from each copy, and expects
clang's analysis to name the mutex that is no longer held. locks.py and the
sanitizers' builds check the original sources.
"""

import concurrent.futures
import json
import os
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../deploy/lint"))
import commands
import locks

# (source, enclosing function, mutex): one per folder that has locks. The first
# lock of the function is removed.
REMOVED = [
    ("client/copy/copy_lane.cc", "void CopyLane::Push(", "mutex_"),
    ("client/session/session.cc", "PlanOr Await(", "mutex_"),
    ("client/torch/memory/region_allocator.cc",
     "void RegionAllocator::BeginSegment(", "region_mutex"),
    ("client/train/watch/rank_watch.cc", "void Console::Line(", "mutex_"),
    ("daemon/service/threads/task_thread.cc",
     "void TaskThread::RunAfter(", "mutex_"),
    ("kernels/device/sim/stream.cc", "bool SimStream::Next(", "mutex_"),
    ("planner/memory/greedy.cc", "std::optional<Heat> Next(", "mutex_"),
]


def without_lock(text, function):
    """Returns `text` without the first MutexLock of `function`."""
    start = text.index(function)
    at = text.index("MutexLock ", start)
    begin = text.rindex("\n", 0, at) + 1
    end = text.index("\n", at) + 1
    return text[:begin] + text[end:]


class RemovedLocks(unittest.TestCase):
    entry_of = {}  # source -> compile command
    folder = ""

    def said(self, case, made=None):
        """Returns clang's messages about the source without the lock."""
        path, function, _ = case
        copy = os.path.join(self.folder, os.path.basename(path))
        with open(copy, "w", encoding="utf-8") as file:
            file.write(without_lock(
                commands.read(os.path.join(commands.ROOT, path)), function))
        return locks.complaints(self.entry_of[path], [copy], made or {})

    def test_each_removed_lock_is_found(self):
        # A build without torch lacks some of the sources.
        cases = [case for case in REMOVED
                 if case[0] in self.entry_of or "torch" not in case[0]]
        self.assertGreaterEqual(len(cases), 5)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for (path, _, mutex), text in zip(
                    cases, pool.map(self.said, cases)):
                with self.subTest(path):
                    self.assertRegex(
                        text, rf"requires holding mutex '[\w:>.-]*{mutex}'")
                    self.assertEqual(text.count("error: "), text.count(
                        "[-Werror,-Wthread-safety"), text)

    def test_a_removed_lock_is_found_behind_a_precompiled_header(self):
        case = next(c for c in REMOVED if c[0].startswith("kernels/"))
        entry = self.entry_of[case[0]]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            made = locks.precompile([(entry, [case[0]])], self.folder, pool,
                                    shared=1)
            [header] = [future.result() for future in made.values()]
            self.assertEqual(header[0], "-include-pch")
            self.assertEqual(locks.complaints(entry, [case[0]], made), "")
            self.assertIn(f"requires holding mutex '{case[2]}'",
                          self.said(case, made))


class Files(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for module in commands, locks:
            patch = unittest.mock.patch.object(module, "ROOT", self.root)
            patch.start()
            self.addCleanup(patch.stop)

    def write(self, name, text="", when=None):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        if when is not None:
            os.utime(path, (when, when))
        return path

    def test_a_mutex_is_seen_through_cycles_of_headers(self):
        for name, text in {
                "a.cc": '#include "b.h"\n', "b.h": '#include "c.h"\n',
                "c.h": f'#include "b.h"\n  #include "{locks.MUTEX}"\n',
                "d.cc": '#include "e.h"\n#include <mutex>\n',
                "e.h": ""}.items():
            self.write(name, text)
        self.assertTrue(locks.sees_mutex("a.cc", {}))
        self.assertFalse(locks.sees_mutex("d.cc", {}))

    def test_sources_that_a_build_has_analysed_since_are_left_out(self):
        build = os.path.join(self.root, "build")
        flags = "-Wthread-safety -Werror"
        cases = {  # source: (flags, when it was compiled)
            "good.cc": (flags, 30), "older_than_a_header.cc": (flags, 15),
            "older_than_itself.cc": (flags, 25), "never.cc": (flags, None),
            "another.cc": ("-Wall -Werror", 30),
            "build/unity/batch.cc": (flags, 30)}
        listed = []
        for name, (given, made) in cases.items():
            batch = '#include "in_batch.cc"\n#include "later.cc"\n'
            source = self.write(name, batch if "unity" in name else "", 10)
            if made is not None:
                self.write(f"{name}.o", when=made)
            listed.append({"file": source, "directory": self.root, "command":
                           f"clang++ {given} -c {source} -o {name}.o"})
        self.write("in_batch.cc", when=10)
        self.write("later.cc", when=40)
        os.utime(os.path.join(self.root, "older_than_itself.cc"), (28, 28))
        self.write("build/compile_commands.json", json.dumps(listed))
        self.assertEqual(locks.analysed(build, since=20),
                         {"good.cc", "in_batch.cc"})


if __name__ == "__main__":
    RemovedLocks.entry_of = {
        path: entry for entry in commands.entries(sys.argv.pop(1))
        for path in commands.sources(entry)}
    with tempfile.TemporaryDirectory() as folder:
        RemovedLocks.folder = folder
        unittest.main()
