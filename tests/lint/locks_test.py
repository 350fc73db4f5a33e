#!/usr/bin/env python3
"""Every removed lock is found: locks_test.py BUILD_DIR.

Takes real sources, removes one lock from a copy of each, and expects clang's
analysis to name the mutex that is no longer held. The untouched source must
pass, so that the complaint is about what was removed.
"""

import concurrent.futures
import json
import os
import sys
import tempfile
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../deploy/lint"))
import locks  # noqa: E402

# (source, the function it is in, the mutex): one per folder that has locks.
# The first lock after the function's head goes.
REMOVED = [
    ("client/copy/copy_lane.cc", "void CopyLane::Push(", "mutex_"),
    ("client/session/plan_inbox.cc", "PlanInbox::Await(", "mutex_"),
    ("client/torch/memory/region_allocator.cc",
     "void RegionAllocator::BeginSegment(", "region_mutex"),
    ("client/train/watch/console.cc", "void Console::Line(", "mutex_"),
    ("daemon/service/threads/task_thread.cc", "void TaskThread::Run(", "mutex_"),
    ("kernels/device/sim/stream.cc", "bool SimStream::Next(", "mutex_"),
    ("planner/memory/greedy.cc", "std::optional<Heat> Next(", "mutex_"),
]


def without_lock(text, function):
    """`text` without the first MutexLock after `function`."""
    start = text.index(function)
    at = text.index("MutexLock ", start)
    begin = text.rindex("\n", 0, at) + 1
    end = text.index("\n", at) + 1
    return text[:begin] + text[end:]


class RemovedLocks(unittest.TestCase):
    entries = {}

    def said(self, path, text):
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, os.path.basename(path))
            with open(copy, "w", encoding="utf-8") as file:
                file.write(text)
            return locks.complaints(self.entries[path], copy)

    def both(self, case):
        """What clang says of the source, and of it without the lock."""
        path, function, _ = case
        text = locks.read(os.path.join(locks.ROOT, path))
        return (self.said(path, text),
                self.said(path, without_lock(text, function)))

    def test_each_is_found(self):
        # A build without torch has not all of them.
        cases = [case for case in REMOVED
                 if case[0] in self.entries or "torch" not in case[0]]
        self.assertGreaterEqual(len(cases), 5)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for (path, _, mutex), (whole, without) in zip(
                    cases, pool.map(self.both, cases)):
                with self.subTest(path):
                    self.assertEqual(whole, "")
                    self.assertRegex(
                        without,
                        rf"requires holding mutex '[\w:>.-]*{mutex}'")

    def test_one_is_found_behind_a_precompiled_header(self):
        path, function, mutex = next(
            case for case in REMOVED if case[0].startswith("kernels/"))
        entry = self.entries[path]
        with (tempfile.TemporaryDirectory() as folder,
              concurrent.futures.ThreadPoolExecutor(1) as pool):
            headers = locks.Precompiled(folder)
            headers.make([entry], pool, shared=1)
            self.assertEqual(headers.complaints, [])
            header = headers.of(entry)
            self.assertIsNotNone(header)
            self.assertEqual(locks.complaints(entry, header=header), "")
            copy = os.path.join(folder, "stream.cc")
            with open(copy, "w", encoding="utf-8") as file:
                file.write(without_lock(locks.read(entry["file"]), function))
            self.assertIn(f"requires holding mutex '{mutex}'",
                          locks.complaints(entry, copy, header))


class Sight(unittest.TestCase):

    def test_goes_through_headers_and_survives_circles(self):
        files = {"a.cc": '#include "b.h"\n', "b.h": '#include "c.h"\n',
                 "c.h": f'#include "b.h"\n  #include "{locks.MUTEX}"\n',
                 "d.cc": '#include "e.h"\n#include <mutex>\n', "e.h": ""}
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                with open(os.path.join(root, name), "w",
                          encoding="utf-8") as file:
                    file.write(text)
            includes = locks.Includes(root)
            self.assertTrue(includes.sees_mutex("a.cc"))
            self.assertFalse(includes.sees_mutex("d.cc"))


class Elsewhere(unittest.TestCase):

    def test_only_what_a_build_has_compiled_since_is_left_out(self):
        flags = "-Wthread-safety -Werror"
        cases = {  # source: (flags, when it was compiled)
            "good.cc": (flags, 30), "older_than_a_header.cc": (flags, 15),
            "older_than_itself.cc": (flags, 25), "never.cc": (flags, None),
            "another.cc": ("-Wall -Werror", 30)}
        with tempfile.TemporaryDirectory() as build, unittest.mock.patch.object(
                locks, "ROOT", build):
            listed = []
            for name, (given, made) in cases.items():
                source = os.path.join(build, name)
                compiled = source + ".o"
                listed.append({"file": source, "directory": build,
                               "command": f"clang++ {given} -c {source} "
                                          f"-o {name}.o"})
                for path, when in (source, 10), (compiled, made):
                    if when is not None:
                        with open(path, "w", encoding="utf-8"):
                            pass
                        os.utime(path, (when, when))
            os.utime(os.path.join(build, "older_than_itself.cc"), (28, 28))
            with open(os.path.join(build, "compile_commands.json"), "w",
                      encoding="utf-8") as file:
                json.dump(listed, file)
            found = locks.analysed(build, since=20)
        self.assertEqual({os.path.basename(path) for path in found},
                         {"good.cc"})


if __name__ == "__main__":
    RemovedLocks.entries = locks.entries(sys.argv.pop(1))
    unittest.main()
