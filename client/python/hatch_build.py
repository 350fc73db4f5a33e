"""Adds the programs staged by `./dev wheel` to the wheel, tagged with their
platform. The wheel has no Python extension, so it serves every Python 3."""

import os
import pathlib

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Programs(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":  # uses the programs of the tree's build
            return
        stage = os.environ.get("SLUICE_WHEEL_STAGE")
        if not stage:
            raise RuntimeError("a wheel of sluice holds sluiced and "
                               "libsluice.so: make it with ./dev wheel")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ['SLUICE_WHEEL_PLATFORM']}"
        for path in sorted(pathlib.Path(stage).rglob("*")):
            if path.is_file():
                name = path.relative_to(stage).as_posix()
                build_data["force_include"][str(path)] = f"sluice/{name}"
