#!/usr/bin/env python3
"""Makes what the tests under a booted systemd copy: make_rootfs.py BUILD FOLDER

The packages of BUILD, a next version of the daemon's, and a Debian with what
they need (rootfs_test.py).
"""

import os
import shutil
import sys

import rootfs_test


def main():
    build, folder = map(os.path.abspath, sys.argv[1:])
    if rootfs_test.skips():
        print("nothing is made: the tests that need it are skipped")
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    os.chmod(folder, 0o755)
    rootfs_test.prepare(build, folder)


if __name__ == "__main__":
    main()
