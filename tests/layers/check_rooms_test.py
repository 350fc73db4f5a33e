#!/usr/bin/env python3
"""Each rule of check_rooms.py reports its violations."""

import unittest

import check_rooms


def rooms(path, *headers):
    text = "".join(f'#include "{h}"\n' for h in headers)
    return list(check_rooms.check_rooms({path: text}))


class Rooms(unittest.TestCase):

    def test_includes_go_down_only(self):
        self.assertEqual(rooms("client/torch/stream/a.cc",
                               "client/torch/math/a.h", "client/torch/x.h",
                               "client/torch/stream/b.h", "client/copy/a.h",
                               "planner/stream/shapes.h"), [])
        for path, header in (
                ("client/torch/math/a.cc", "client/torch/stream/b.h"),
                ("client/torch/memory/a.h", "client/torch/ranks/b.h"),
                ("client/torch/stream/a.h", "client/torch/run/b.h"),
                ("client/torch/x.h", "client/torch/ranks/b.h"),
                ("client/torch/memory/a.h", "client/torch/x.h"),
                ("client/copy/a.cc", "client/session/session.h"),
                ("client/session/a.h", "client/sluice.h"),
                ("client/train/data/a.cc", "client/train/rank.h")):
            found = rooms(path, header)
            self.assertEqual(len(found), 1, (path, header))
            self.assertIn(f"must not include {header}", found[0])

    def test_a_layers_own_folder_may_include_every_room(self):
        self.assertEqual(rooms("client/train/trainer.cc",
                               "client/train/data/corpus.h",
                               "client/train/check/check.h"), [])

    def test_a_room_that_is_not_listed_is_reported(self):
        [found] = rooms("client/train/report/a.cc")
        self.assertIn("client/train/report is not in ROOMS", found)
        self.assertEqual(rooms("client/torch/cuda/a.cc"), [])

    def test_the_table_has_no_circle(self):
        seen = set()
        left = dict(check_rooms.ROOMS)
        while left:
            free = [r for r, uses in left.items() if set(uses) <= seen]
            self.assertTrue(free, left)
            seen |= set(free)
            for room in free:
                del left[room]


if __name__ == "__main__":
    unittest.main()
