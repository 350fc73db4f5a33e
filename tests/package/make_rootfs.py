#!/usr/bin/env python3
"""Makes the files that tests under a booted systemd copy: make_rootfs.py BUILD
FOLDER

FOLDER gets the packages of BUILD, a next version of the daemon's package, and
a Debian with the packages on which BUILD's packages depend (booted.py).
"""

import os
import shutil
import sys

import booted


def main():
    build, folder = map(os.path.abspath, sys.argv[1:])
    if booted.skips():
        print("no Debian is made: the tests that need it are skipped")
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    os.chmod(folder, 0o755)
    booted.prepare(build, folder)


if __name__ == "__main__":
    main()
