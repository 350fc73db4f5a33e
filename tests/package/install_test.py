#!/usr/bin/env python3
"""`cmake --install` installs what manifest.txt lists, and a program builds
against it: install_test.py BUILD"""

import gzip
import os
import re
import subprocess
import sys
import tempfile
import unittest

import installed
from installed import run

BUILD = sys.argv.pop()
ROOT = os.path.dirname(os.path.dirname(installed.HERE))


class Installed(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.prefix = folder.name + "/prefix"

    def test_installed_files_are_those_of_the_manifest(self):
        for component, wanted in installed.manifest(BUILD).items():
            prefix = f"{self.folder}/{component}"
            installed.install(BUILD, prefix, component)
            self.assertEqual(installed.files_below(prefix), wanted, component)
        whole = self.folder + "/whole"
        run("cmake", "--install", BUILD, "--prefix", whole)
        self.assertEqual(installed.files_below(whole),
                         set().union(*installed.manifest(BUILD).values()))

    def test_installed_files_name_no_folder_of_the_build(self):
        run("cmake", "--install", BUILD, "--prefix", self.prefix)
        for path in installed.files_below(self.prefix):
            if path.startswith("bin/") or re.search(r"\.so(\.|$)", path):
                headers = run("objdump", "-p", f"{self.prefix}/{path}")
                self.assertNotRegex(headers, "RPATH|RUNPATH", path)
                continue
            reader = gzip.open if path.endswith(".gz") else open
            with reader(f"{self.prefix}/{path}", "rt",
                        encoding="utf-8") as file:
                text = file.read()
            self.assertNotIn(BUILD, text, path)
            self.assertNotIn(ROOT, text, path)

    def test_the_unit_has_the_paths_of_its_prefix(self):
        installed.install(BUILD, self.prefix, "daemon")
        unit = self.prefix + "/lib/systemd/system/sluiced.service"
        with open(unit, encoding="ascii") as file:
            [start] = re.findall(r"^ExecStart=(.*)$", file.read(), re.M)
        self.assertEqual(start, f"{self.prefix}/bin/sluiced --config "
                                f"{self.prefix}/etc/sluice/sluiced.toml")
        run(f"{self.prefix}/bin/sluiced", "--config",
            f"{self.prefix}/etc/sluice/sluiced.toml", "--driver", "sim",
            "--runtime-dir", self.folder + "/run", "--check-config")

    def answer_of(self, program):
        """Checks what a client prints without a daemon."""
        said = subprocess.run(
            [program], text=True, capture_output=True, check=False,
            env={"LD_LIBRARY_PATH":
                 f"{self.prefix}/{installed.library_folder()}",
                 "SLUICE_SOCKET": self.folder + "/none.sock"})
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("ABI 6, no daemon: ", said.stdout)

    def test_a_program_builds_by_cmake(self):
        for component in "runtime", "dev":
            installed.install(BUILD, self.prefix, component)
        out = self.folder + "/out"
        run("cmake", "-S", installed.HERE + "/consumer", "-B", out,
            f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", out)
        self.answer_of(out + "/consumer")

    def test_a_program_builds_by_pkg_config(self):
        for component in "runtime", "dev":
            installed.install(BUILD, self.prefix, component)
        flags = run("pkg-config", "--cflags", "--libs", "sluice", env={
            **os.environ, "PKG_CONFIG_PATH":
            f"{self.prefix}/{installed.library_folder()}/pkgconfig"}).split()
        run("cc", "-Wall", "-Werror", installed.HERE + "/consumer/main.c",
            *flags, "-o", self.folder + "/consumer")
        self.answer_of(self.folder + "/consumer")


if __name__ == "__main__":
    unittest.main()
