#!/usr/bin/env python3
"""groff reads the man pages without a warning, and each shell offers the right
completions: documents_test.py BUILD"""

import glob
import gzip
import re
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

    def text(self, page):
        with gzip.open(page, "rt", encoding="utf-8") as file:
            return file.read()

    def test_man_pages_are_read_without_a_warning(self):
        pages = glob.glob(self.share + "/man/man*/*")
        self.assertEqual(len(pages), 4)
        for page in pages:
            shown = subprocess.run(["groff", "-man", "-ww", "-Tascii"],
                                   input=self.text(page), check=True,
                                   capture_output=True, text=True)
            self.assertEqual(shown.stderr, "", page)
            self.assertIn("KEYS" if page.endswith(".5.gz") else "OPTIONS",
                          shown.stdout.upper())

    def test_the_man_page_of_sluicectl_has_its_commands(self):
        text = self.text(self.share + "/man/man1/sluicectl.1.gz")
        for command in "budget set", "plan train", "evict", "undrain":
            self.assertIn(f".SS sluicectl {command}\n", text)
        self.assertIn(r".B \-\-job TEXT", text)

    def known_to_the_reader(self, toml):
        """Returns the keys that sluiced offers in place of `zzz`, an unknown
        key."""
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(toml)
            file.flush()
            done = subprocess.run(
                [BUILD + "/bin/sluiced", "--config", file.name,
                 "--check-config"], capture_output=True, text=True, check=False)
        [known] = re.findall(r"unknown key 'zzz' .*; known: (.*)\n",
                             done.stderr)
        return known.split(", ")

    def test_the_page_of_the_configuration_has_every_key(self):
        page = self.text(self.share + "/man/man5/sluiced.toml.5.gz")
        told = [line.replace("\\-", "-") for line in page.splitlines()
                if line.startswith(".B [")]
        tables = self.known_to_the_reader("zzz = 1\n")
        self.assertGreater(len(tables), 10)
        wanted = [(f"[{table}]", f"[{table}]\nzzz = 1\n") for table in tables]
        wanted += [(name, name + "\nzzz = 1\n")
                   for name in ("[[bandwidth.user]]", "[[budgets.job]]")]
        wanted += [(name, name + "\nlinks = [{zzz = 1}]\n")
                   for name in ("[sim]", "[cuda]")]
        for name, toml in wanted:
            lines = " ".join(line for line in told if name + " " in line
                             or name.replace("]", ".") in line)
            for key in self.known_to_the_reader(toml):
                bytes_key = re.sub("_memory$", "_bytes", key)
                self.assertRegex(lines, rf"\b({key}|{bytes_key})\b",
                                 f"{name} {key}")

    def bash(self, *words):
        """Returns the completions of the last word."""
        listed = " ".join(f"'{word}'" for word in words)
        path = f"{self.share}/bash-completion/completions/{words[0]}"
        function = "_" + words[0].replace("-", "_")
        return set(run("bash", "-c", f"source {path}; COMP_WORDS=({listed}); "
                       f"COMP_CWORD={len(words) - 1}; {function}; "
                       'printf "%s\\n" "${COMPREPLY[@]}"').split())

    def zsh(self, *words):
        listed = " ".join(f"'{word}'" for word in words)
        path = f"{self.share}/zsh/vendor-completions/_{words[0]}"
        # zsh's line editor does not run here, so a function in place of its
        # _describe prints the completions.
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
                (["sluicectl", "--admin", "budget", "set", "--jo"], {"--job"}),
                (["sluicectl", "budget", "--j"], {"--json"}),
                (["sluiced", "--c"],
                 {"--config", "--check-config", "--check-state"}),
                (["sluiced-keeper", "--p"], {"--program"})):
            for shell in self.bash, self.zsh, self.fish:
                with self.subTest(shell=shell.__name__, words=words):
                    self.assertEqual(shell(*words), wanted)

    def test_bash_offers_no_words_for_a_file(self):
        self.assertEqual(self.bash("sluiced", "--config", ""), set())


if __name__ == "__main__":
    unittest.main()
