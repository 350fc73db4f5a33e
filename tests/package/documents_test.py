#!/usr/bin/env python3
"""Man pages that groff reads without a warning, and completions as each shell
gives them: documents_test.py BUILD"""

import glob
import subprocess
import sys
import tempfile
import unittest

import installed
from installed import run

BUILD = sys.argv.pop()


class Documents(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.share = folder.name + "/share"
        for component in "daemon", "ctl":
            installed.install(BUILD, folder.name, component)

    def test_man_pages_are_read_without_a_warning(self):
        pages = glob.glob(self.share + "/man/man*/*")
        self.assertEqual(len(pages), 3)
        for page in pages:
            shown = subprocess.run(["groff", "-man", "-ww", "-Tascii", page],
                                   capture_output=True, text=True, check=True)
            self.assertEqual(shown.stderr, "", page)
            self.assertIn("OPTIONS", shown.stdout.upper())

    def test_a_man_page_has_every_command(self):
        with open(self.share + "/man/man1/sluicectl.1",
                  encoding="utf-8") as file:
            text = file.read()
        for command in "budget set", "plan train", "evict", "undrain":
            self.assertIn(f".SS sluicectl {command}\n", text)
        self.assertIn(r".B \-\-job TEXT", text)

    def bash(self, *words):
        """What is offered for the last of the words."""
        listed = " ".join(f"'{word}'" for word in words)
        path = f"{self.share}/bash-completion/completions/{words[0]}"
        function = "_" + words[0].replace("-", "_")
        return set(run("bash", "-c", f"source {path}; COMP_WORDS=({listed}); "
                       f"COMP_CWORD={len(words) - 1}; {function}; "
                       'printf "%s\\n" "${COMPREPLY[@]}"').split())

    def zsh(self, *words):
        listed = " ".join(f"'{word}'" for word in words)
        path = f"{self.share}/zsh/vendor-completions/_{words[0]}"
        # Outside of a line that is edited: what it hands to zsh's own function.
        offered = run("zsh", "-fc", "_describe() { print -l -- $offered; }; "
                      f"words=({listed}); CURRENT={len(words)}; "
                      f"source {path}").splitlines()
        return {word.split(":")[0] for word in offered
                if word.startswith(words[-1])}

    def fish(self, *words):
        path = f"{self.share}/fish/vendor_completions.d/{words[0]}.fish"
        offered = run("fish", "--no-config", "-c", f"source {path}; "
                      f"complete -C '{' '.join(words)}'").splitlines()
        return {word.split("\t")[0] for word in offered}

    def test_every_shell_completes_the_same(self):
        for words, wanted in (
                (["sluicectl", "b"], {"bandwidth", "budget"}),
                (["sluicectl", "--so"], {"--socket"}),
                (["sluicectl", "plan", "v"], {"validate"}),
                (["sluicectl", "--admin", "budget", "set", "--j"], {"--job"}),
                (["sluicectl", "budget", "--j"], {"--json"}),
                (["sluiced", "--c"], {"--config", "--check-config", "--check-state"}),
                (["sluiced-keeper", "--p"], {"--program"})):
            for shell in self.bash, self.zsh, self.fish:
                with self.subTest(shell=shell.__name__, words=words):
                    self.assertEqual(shell(*words), wanted)

    def test_bash_offers_files_for_a_value(self):
        self.assertEqual(self.bash("sluiced", "--config", ""), set())


if __name__ == "__main__":
    unittest.main()
