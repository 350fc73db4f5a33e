#!/usr/bin/env python3
"""Every rule of check_python.py must be able to fail."""

import unittest

import check_python


def found(module, text):
    path = check_python.PACKAGE + module.replace(".", "/") + ".py"
    return list(check_python.check_python({path: text}))


class Order(unittest.TestCase):

    def test_imports_go_down_only(self):
        for text in ("from sluice.errors import Error\n",
                     "from sluice import _native, handle as ends\n",
                     "import sluice.daemon\nimport os\n"):
            self.assertEqual(found("session", text), [])
            [line] = found("errors", text.splitlines()[0])[:1]
            self.assertIn(":1: errors must not import", line)
        for module, text in (
                ("session", "from sluice.arena import HostArena\n"),
                ("session", "from sluice import arena as memory\n"),
                ("session", "import sluice.arena\n"),
                ("layer", "from sluice.adapters import hf\n"),
                ("adapters.registry", "from sluice.adapters.hf import A\n")):
            with self.subTest(text):
                [line] = found(module, text)
                self.assertIn(f"{module} must not import", line)

    def test_what_loads_later_is_free(self):
        for text in ("if TYPE_CHECKING:\n    from sluice.arena import A\n",
                     "def f():\n    from sluice.adapters import hf\n"):
            self.assertEqual(found("session", text), [])

    def test_the_package_itself_imports_everything(self):
        self.assertEqual(found("__init__",
                               "from sluice.streaming import stream\n"), [])

    def test_a_new_module_is_asked_about(self):
        [line] = found("gizmo", "")
        self.assertIn("gizmo is not in ORDER", line)


class Packages(unittest.TestCase):

    def test_a_session_needs_no_torch(self):
        for text in ("import torch\n", "    import torch.nn as nn\n",
                     "from torch import nn\n"):
            self.assertEqual(found("arena", text), [])
            self.assertEqual(len(found("session", text)), 1)

    def test_transformers_is_the_adapters(self):
        text = "def f():\n    from transformers.cache_utils import Cache\n"
        self.assertEqual(found("adapters.hf", text), [])
        self.assertEqual(len(found("layer", text)), 1)
        self.assertEqual(len(found("__init__", text)), 1)


if __name__ == "__main__":
    unittest.main()
