#!/usr/bin/env python3
"""Measures the cost of pinned host memory, by each way to make it.

    gpu_host.py --bin DIR --json FILE [--small]

Measures seconds per GiB of the daemon's leases (fresh, and leased again), of
cudaHostAlloc, and of a memfd, with and without huge pages: 1 to 32 threads
touch its pages, then the same process and a second one register the memfd.
Meanwhile another process runs a loop of small kernels: the loop's longest pause
shows whether pinning stalls the GPU's other users. `--small`: 64 MiB, on the
CPU, without pinning.
"""

import concurrent.futures
import contextlib
import ctypes
import functools
import mmap
import os
import subprocess
import sys
import time

import figures
import gpu_python
import in_venv
import node

GIB = 1 << 30
# Environment variable with "cuda" or "cpu", which child processes read, too.
DEVICE = "SLUICE_BENCH_DEVICE"


def has_gpu():
    return os.environ[DEVICE] == "cuda"


def registered(buffer, size):
    """Pins `size` bytes at `buffer`; the returned context manager unpins them.
    Does nothing without a GPU."""
    if not has_gpu():
        return contextlib.nullcontext()
    runtime, address = torch.cuda.cudart(), ctypes.addressof(buffer)
    code = runtime.cudaHostRegister(address, size, 1)
    if int(code) != 0:
        sys.exit(f"error: cudaHostRegister: {code}")
    stack = contextlib.ExitStack()
    stack.callback(runtime.cudaHostUnregister, address)
    return stack


def touch(view, threads):
    """Writes one byte of each page with `threads` threads."""
    part = -(-len(view) // threads)

    def write(start):
        ctypes.memset(ctypes.addressof(view) + start, 1,
                      min(part, len(view) - start))

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(0, len(view), part)))


def of_memfd(size, threads, huge):
    """Returns (seconds to touch, seconds to touch and register, seconds to
    register in a second process) for a memfd of `size` bytes."""
    fd = os.memfd_create("bench-gpu")
    os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    if huge:
        memory.madvise(mmap.MADV_HUGEPAGE)
    buffer = (ctypes.c_char * size).from_buffer(memory)
    at = time.monotonic()
    touch(buffer, threads)
    touched = time.monotonic() - at
    with registered(buffer, size):
        own = time.monotonic() - at
        other = subprocess.run(
            [sys.executable, __file__, "--register", str(fd), str(size)],
            pass_fds=[fd], check=True, capture_output=True, text=True)
    del buffer
    memory.close()
    os.close(fd)
    return touched, own, float(other.stdout)


def register(fd, size):
    """Registers the memfd `fd` and prints how many seconds this takes. Runs in
    the second process of `of_memfd`; the first has touched the pages."""
    memory = mmap.mmap(fd, size)
    buffer = (ctypes.c_char * size).from_buffer(memory)
    if has_gpu():
        torch.cuda.init()
    at = time.monotonic()
    with registered(buffer, size):
        print(time.monotonic() - at)


@contextlib.contextmanager
def beside_kernels():
    """Runs a loop of kernels in another process. Yields a function that ends
    the loop and returns the longest time between two kernels, in seconds."""
    with subprocess.Popen([sys.executable, __file__, "--loop"], text=True,
                          stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as loop:
        assert loop.stdout.readline() == "ready\n"

        def ended():
            return float(loop.communicate("end\n")[0])

        yield ended
        loop.kill()


def loop():
    values = torch.ones(256, device=os.environ[DEVICE])
    values.sum().item()
    print("ready", flush=True)
    import select
    longest, last = 0.0, time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        values.sum().item()
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    print(longest)


def measured(results, name, size, run):
    """Adds a row with the result of `run`, which returns seconds, or seconds
    and a detail."""
    with beside_kernels() as ended:
        took = run()
        pause = ended()
    took, detail = took if isinstance(took, tuple) else (took, "")
    results.add(f"pinned memory, {name}", took * GIB / size, "s/GiB",
                f"{size / GIB:.3g} GiB{detail}; another process' kernels were "
                f"{1e3 * pause:.1f} ms apart at most")


def leases(results, session, sizes):
    def leased(size):
        at = time.monotonic()
        held.append(session.lease_host(size))
        return time.monotonic() - at

    held = []
    for size in sizes:
        measured(results, f"lease of {size >> 20} MiB, fresh", size,
                 functools.partial(leased, size))
    for each in held:
        each.free()
    measured(results, f"lease of {sizes[-1] >> 20} MiB, again", sizes[-1],
             lambda: leased(sizes[-1]))
    held[-1].free()


def allocated(size):
    at = time.monotonic()
    torch.empty(size, dtype=torch.uint8, pin_memory=has_gpu())
    return time.monotonic() - at


def memfds(results, size, counts):
    def run(threads, huge):
        touched, own, other = of_memfd(size, threads, huge)
        return own, (f", {touched:.2f} s of them to touch the pages; "
                     f"registered in a second process in {other:.2f} s")

    for threads in counts:
        for huge in (False, True):
            measured(results, f"memfd, {threads} threads"
                     f"{', huge pages' if huge else ''}", size,
                     functools.partial(run, threads, huge))


def main():
    parser = figures.parser(__doc__)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    os.environ[DEVICE] = "cpu" if arguments.small else "cuda"
    sizes, counts = [GIB, 8 * GIB, 24 * GIB], (1, 4, 8, 16, 32)
    if arguments.small:
        sizes, counts = [8 << 20, 64 << 20], (4,)
    results = figures.Results(arguments.json, arguments.small)
    with node.daemon(os.path.abspath(arguments.bin),
                     gpu_python.CONFIGS[os.environ[DEVICE]]) as runtime:
        with sluice.Session(os.path.join(runtime, "session.sock"),
                            job="bench") as session:
            leases(results, session, sizes)
    measured(results, "cudaHostAlloc", sizes[1],
             lambda: allocated(sizes[1]))
    memfds(results, sizes[1], counts)


if __name__ == "__main__":
    in_venv.enter()
    import torch

    import sluice
    if sys.argv[1] == "--loop":
        loop()
    elif sys.argv[1] == "--register":
        register(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
