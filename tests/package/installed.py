"""Helpers of this folder's tests: an installation of a build in a folder, as
manifest.txt lists it."""

import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
# The build that `./dev package` packs; phase "build for packages" makes it.
PACKED = os.path.normpath(HERE + "/../../build/wheel")


def run(*words, **more):
    """Runs a command and returns its output. If the command fails, raises an
    exception that contains the output."""
    done = subprocess.run(words, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, **more)
    if done.returncode:
        raise AssertionError(f"{' '.join(words)}: status {done.returncode}\n"
                             f"{done.stdout}")
    return done.stdout


def cached(build, name):
    with open(build + "/CMakeCache.txt", encoding="utf-8") as cache:
        for line in cache:
            if line.startswith(name + ":"):
                return line.split("=", 1)[1].strip()
    raise AssertionError(f"no {name} in the cache of {build}")


def library_folder():
    triplet = run("gcc", "-print-multiarch").strip()
    return "lib/" + triplet if triplet else "lib"


def manifest(build):
    """Returns {component: its paths}."""
    wanted = {}
    replace = {"LIB": library_folder(),
               "BUILD": cached(build, "CMAKE_BUILD_TYPE").lower()}
    with open(HERE + "/manifest.txt", encoding="ascii") as file:
        for line in file:
            component, path, *_ = line.split() if line[0] != "#" else ("", "")
            if component:
                for name, value in replace.items():
                    path = path.replace(name, value)
                wanted.setdefault(component, set()).add(path)
    return wanted


def install(build, prefix, component):
    run("cmake", "--install", build, "--prefix", prefix,
        "--component", component)


def files_below(folder):
    return {os.path.relpath(os.path.join(path, name), folder)
            for path, _, names in os.walk(folder) for name in names}
