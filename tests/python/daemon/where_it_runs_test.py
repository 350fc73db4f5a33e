"""A private daemon starts in unusual environments: namespaces, cgroups, /proc
and system libraries that differ from a plain machine's."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import textwrap

import pytest
from private_daemon import PrivateDaemon
from support import await_true, environment, run

import sluice
from sluice.native.daemon import available_bytes, find_programs

MIB, GIB = 1 << 20, 1 << 30
COPIES = """
    import sluice, torch
    from sluice.memory.arena import HostArena
    with sluice.Session() as session:
        with HostArena(session) as arena:
            there = torch.arange(1 << 18, dtype=torch.int32)
            again = arena.get(arena.put(there), there.device)
            print(torch.equal(there, again))
"""


def run_in(*words, needs=None, code=COPIES):
    """Runs `code` through `words`: `unshare` with its options, or a shell that
    ends with exec "$@". Skips the test if the machine refuses unshare or mount.
    """
    if needs == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    ran = subprocess.run(
        [*words, sys.executable, "-c", textwrap.dedent(code)],
        env=environment(), text=True, capture_output=True, timeout=250)
    if ran.returncode and re.search(r"^(unshare|mount):", ran.stderr, re.M):
        pytest.skip(ran.stderr)
    return ran


def in_mounts(script):
    """Returns words for run_in that first run `script` in a new mount
    namespace."""
    return ["unshare", "--mount", "sh", "-c", script + ' && exec "$@"', "sh"]


# --- namespaces and /proc ---------------------------------------------------


@pytest.mark.parametrize("map_to", ["--map-root-user", "--map-current-user"])
def test_a_daemon_starts_where_only_its_user_is_mapped(map_to):
    """As in Apptainer and bwrap, where root's /tmp belongs to an unknown user.
    """
    if map_to == "--map-current-user" and os.geteuid() == 65534:
        pytest.skip("user 65534 looks like an unmapped user")
    ran = run_in("unshare", "--user", map_to)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_a_daemon_starts_where_proc_shows_only_processes():
    ran = run_in(*in_mounts("mount -t proc -o subset=pid proc /proc"),
                 needs="root")
    assert ran.stdout == "True\n", ran.stderr  # torch warns: no /proc/cpuinfo


REFUSES_PIDFDS = """
    import ctypes, struct
    load, is_not, refuse, allow = (0x20, 0, 0, 0), 0x15, 0x50001, 0x7fff0000
    rules = [load, (is_not, 1, 0, 434), \
(is_not, 0, 1, 424),  # open, send_signal
             (0x06, 0, 0, refuse), (0x06, 0, 0, allow)]
    text = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *rule) for rule in rules))
    fprog = struct.pack("@HP", len(rules), ctypes.addressof(text))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert prctl(22, 2, fprog, 0, 0) == 0, ctypes.get_errno()
"""


def test_a_daemon_starts_without_pidfds_or_says_so():
    ran = run_in("env", code=REFUSES_PIDFDS + COPIES)
    if "pidfd_open" in ran.stderr:  # a kernel before SO_PEERPIDFD
        assert "seccomp profile" in ran.stderr.splitlines()[-1]
    else:
        assert (ran.stdout, ran.stderr) == ("True\n", "")


# --- cgroups ----------------------------------------------------------------


def cgroups(root, membership, **files):
    """Makes a folder laid out like /proc and /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return str(root)


@pytest.mark.parametrize("where", ["job/step", "job", "."])
def test_the_limit_of_each_nested_cgroup_counts(tmp_path, where):
    root = cgroups(
        tmp_path, "1:name=systemd:/x\n0::/job/step\n",
        **{"job/step/memory.max": "max", "job/memory.max": "max",
           f"{where}/memory.max": 64 * MIB,
           f"{where}/memory.current": 24 * MIB,
           f"{where}/memory.stat": f"anon 1\ninactive_file {8 * MIB}"})
    assert available_bytes(root) == 48 * MIB


def test_in_cgroup_v1_the_memory_controllers_group_counts(tmp_path):
    root = cgroups(
        tmp_path, "5:cpu:/c\n4:memory:/job/step\n0::/\n",
        **{"cpu/c/memory.limit_in_bytes": 1,
           "memory/job/step/memory.limit_in_bytes": (1 << 63) - 4096,
           "memory/job/memory.limit_in_bytes": 64 * MIB,
           "memory/job/memory.usage_in_bytes": 24 * MIB})
    assert available_bytes(root) == 40 * MIB


def test_limits_are_found_in_a_containers_cgroup_mount(tmp_path):
    root = cgroups(
        tmp_path, "4:memory:/docker/12/step\n",
        **{"memory/memory.limit_in_bytes": 128 * MIB,
           "memory/memory.stat": f"hierarchical_memory_limit {96 * MIB}",
           "memory/step/memory.limit_in_bytes": 64 * MIB})
    assert available_bytes(root) == 64 * MIB
    (tmp_path / "sys/fs/cgroup/memory/step/memory.limit_in_bytes").unlink()
    # Now the limit of the group above the mount applies.
    assert available_bytes(root) == 96 * MIB


def test_a_full_cgroup_leaves_no_memory(tmp_path):
    root = cgroups(tmp_path, "0::/\n")
    assert available_bytes(root) > 0
    root = cgroups(tmp_path / "full", "0::/\n",
                   **{"memory.max": 64 * MIB, "memory.current": 65 * MIB})
    assert available_bytes(root) == 0


def test_a_private_daemon_keeps_to_a_parent_cgroups_limit():
    """Uses the machine's own /sys/fs/cgroup."""
    folder = next((folder for folder in ("/sys/fs/cgroup/memory",
                                         "/sys/fs/cgroup")
                   if os.access(folder + "/cgroup.procs", os.W_OK)), None)
    if folder is None:
        pytest.skip("this user may write to no cgroup")
    above = pathlib.Path(folder, f"sluice-test-{os.getpid()}")
    own = above / "own"
    own.mkdir(parents=True)
    try:
        limit = [file for name in ("memory.max", "memory.limit_in_bytes")
                 if (file := above / name).exists()]
        if not limit:
            pytest.skip("the cgroup has no memory controller")
        limit[0].write_text(str(2 * GIB))
        ran = run_in("sh", "-c", f'echo $$ > {own}/cgroup.procs && exec "$@"',
                     "sh", code="""
            import sluice
            print(sluice.Session().limits().host_total_bytes)
        """)
        assert 0 < int(ran.stdout) <= GIB, ran.stderr
    finally:
        await_true("all processes end",
                   lambda: not (own / "cgroup.procs").read_text())
        own.rmdir()
        above.rmdir()


# --- system libraries -------------------------------------------------------


def elf_hash(name):
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xf0)) & 0x0fffffff
    return struct.pack("<I", value)


def needing(path, old, new, made):
    """Makes a copy of a program or library. The copy needs version `new` of a
    system library, in place of `old`."""
    data = pathlib.Path(path).read_bytes()
    assert data.count(old) == 1 and data.count(elf_hash(old)) == 1
    made.write_bytes(data.replace(old, new).replace(elf_hash(old),
                                                    elf_hash(new)))
    made.chmod(0o755)
    return made


NEEDS_NEWER = rb"GLIBCXX_3.4.30", rb"GLIBCXX_3.4.99"


@pytest.mark.parametrize("old, new, remedy", [
    (*NEEDS_NEWER, "install the libstdc++ of GCC 12 or newer"),
    (b"GLIBC_2.34", b"GLIBC_2.99",
     "use a system with that glibc or a newer one, or the wheel")])
def test_an_old_system_library_is_named_with_its_version(
        tmp_path, old, new, remedy):
    needing(find_programs().library, old, new, tmp_path / "libsluice.so")
    ran = run("import sluice; sluice.Session()", SLUICE_BIN_DIR=str(tmp_path))
    line = ran.stderr.splitlines()[-1]
    name = "libstdc" if old in NEEDS_NEWER else "libc.so.6"
    assert line.startswith("sluice.Error: cannot load "), line
    assert re.search(rf"{name}\S* is too old: it ends at [\w.]+, and "
                     f"{new.decode()} is needed: {re.escape(remedy)}",
                     line), line


def test_an_old_system_library_of_the_daemon_is_named(tmp_path, monkeypatch):
    needing(find_programs().sluiced, *NEEDS_NEWER, tmp_path / "sluiced")
    monkeypatch.setenv("SLUICE_BIN_DIR", str(tmp_path))
    with pytest.raises(sluice.Error, match=r"did not start: \S+libstdc\S+ is "
                       "too old: .* install the libstdc"):
        PrivateDaemon(gpu_bytes=8 * MIB, host_bytes=16 * MIB)


# As in a program that embeds Python twice, or with two packages that bundle
# the library.
OPENS_TWICE = """
    import _ctypes, ctypes, sys
    from sluice.native import abi
    for path in sys.argv[1:]:
        library = ctypes.CDLL(path)
        options = abi.SessionOptions(
            socket=b"@SOCKET", job=b"a", world_size=1, local_ranks=1)
        session = ctypes.c_void_p()
        library.sluice_session_open(ctypes.byref(options),
                                    ctypes.byref(session))
        print(bool(session.value), flush=True)
        library.sluice_session_close(session)
        if path == sys.argv[1]:
            _ctypes.dlclose(library._handle)
"""


def test_the_library_can_be_reloaded_and_loaded_beside_a_copy(
        tmp_path, daemon):
    library = find_programs().library
    copy = shutil.copy(library, tmp_path / "copy.so")
    code = textwrap.dedent(OPENS_TWICE.replace("@SOCKET", daemon.socket))
    ran = subprocess.run([sys.executable, "-c", code, library, library, copy],
                         env=environment(), text=True, capture_output=True,
                         timeout=200)
    assert (ran.stdout, ran.stderr) == ("True\n" * 3, "")
