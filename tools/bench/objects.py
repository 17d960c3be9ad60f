# SPDX-License-Identifier: GPL-2.0
"""What objects cost: memory of the kernel, registration, connections; and what nothing can do without. For rows.py."""

import ctypes
import json
import mmap
import os
import time

from pyverbs.cq import CQ
from pyverbs.mr import MR

import testbed
from testbed import run
from verbs import FULL_ACCESS, Endpoint

RDMACM = ["python3", f"{os.path.dirname(testbed.__file__)}/rdmacm.py"]


IN_USE = ("Slab", "VmallocUsed", "Shmem", "PageTables", "Percpu", "KernelStack")


def kernel_memory():
    """Bytes that the kernel has in use for objects. What is free says less: freed pages stay with the CPU for a while."""
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")
    with open("/proc/meminfo") as f:
        return 1024 * sum(int(line.split()[1]) for line in f if line.split(":")[0] in IN_USE)


def memory_of(make, close):
    """Bytes of the kernel for what make() returns and close() takes back."""
    # As much as is measured comes first: that takes up what others have left half used.
    first = make()
    before = kernel_memory()
    things = make()
    used = kernel_memory() - before
    close(things)
    close(first)
    return used


def connected(bed, count, depth):
    """Endpoints in pairs, connected: (those on the one device, those on the other), the owners of the rest first."""
    owners = [Endpoint(host.dev, depth=depth) for host in (bed.h1, bed.h2)]
    ends = [[owner] + [Endpoint(owner.dev, depth=depth, share=owner) for _ in range(count - 1)] for owner in owners]
    for a, b in zip(*ends):
        a.connect(b)
        b.connect(a)
    return ends


def close(ends):
    for side in ends:
        for end in reversed(side):
            end.close()


def qp_memory(bed, count):
    """Bytes of the kernel for each connected, idle RC QP with 128 WQEs each way."""
    return memory_of(lambda: connected(bed, count, 128), close) / (2 * count)


def connection(bed, count):
    """ns to make two RC QPs, connect them by modify_qp, and destroy them again."""
    close(connected(bed, 2, 16))
    owners = [Endpoint(host.dev, depth=16) for host in (bed.h1, bed.h2)]
    start = time.monotonic_ns()
    for _ in range(count):
        a, b = (Endpoint(owner.dev, depth=16, share=owner) for owner in owners)
        a.connect(b)
        b.connect(a)
        close([[a], [b]])
    taken = time.monotonic_ns() - start
    close([[owner] for owner in owners])
    return taken / count


def registration(size):
    """ns to register so many bytes of memory that is there, and to give them back."""
    def measure(bed, count):
        with Endpoint(bed.h1.dev) as end, mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            for at in range(0, size, os.sysconf("SC_PAGE_SIZE")):
                memory[at] = 1
            view = ctypes.c_char.from_buffer(memory)
            start = time.monotonic_ns()
            for _ in range(count):
                MR(end.pd, size, FULL_ACCESS, address=ctypes.addressof(view)).close()
            taken = time.monotonic_ns() - start
            del view
        return taken / count
    return measure


def close_all(things):
    for thing in things:
        thing.close()


def cq_memory(bed, count):
    with Endpoint(bed.h1.dev) as end:
        return memory_of(lambda: [CQ(end.ctx, 256, None, None, 0) for _ in range(count)], close_all) / count


def mr_memory(bed, count):
    """Of small regions of memory that is there anyway."""
    with Endpoint(bed.h1.dev, length=4096) as end:
        return memory_of(lambda: [MR(end.pd, 4096, FULL_ACCESS, address=end.mr.buf) for _ in range(count)], close_all) / count


def rdma_cm(bed, count):
    """ns for a connection that is made and ended through librdmacm, both sides."""
    run(["modprobe", "rdma_ucm"])
    port = bed.port()
    server = bed.h1.start(*RDMACM, "serve", bed.h1.ip4, port, count)
    try:
        server.wait_cm_listening(port)
        told = json.loads(bed.h2.run(*RDMACM, "connect", bed.h1.ip4, port, count, 1, timeout=300).out)
        server.wait(60)
    finally:
        server.kill()
    if told["failed"]:
        raise RuntimeError(f"connections failed: {told}")
    return 1e9 * told["seconds"] / count


def floor(bed, rounds):
    """ns per byte of two copies and two CRCs (floor.c), with no driver at all."""
    run(["insmod", "/build/tools/bench/floor.ko", f"rounds={rounds}"])
    try:
        with open("/sys/module/floor/parameters/ps_per_byte") as f:
            return int(f.read()) / 1000
    finally:
        run(["rmmod", "floor"])
