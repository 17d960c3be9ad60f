# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=2048 pmem=64 debug=0
# Its kernel has no FS_DAX, without which such memory cannot be mapped.
"""FLUSH for persistence: memory that keeps its contents without power (here: memory of which the guest is told so)."""

import ctypes
import errno
import glob
import mmap
import os

import pyverbs.enums as e
import pytest
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.wr import SGE

from testbed import run, wait_until
from verbs import FULL_ACCESS, OK, pair, pattern

ND = "/sys/bus/nd"
TRACE = "/sys/kernel/tracing"
SIZE = 4 << 20
PERSISTENT = (FULL_ACCESS | e.IBV_ACCESS_REMOTE_ATOMIC | e.IBV_ACCESS_FLUSH_GLOBAL |
              e.IBV_ACCESS_FLUSH_PERSISTENT)
EX = e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_FLUSH | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD


def put(path, text):
    with open(path, "w", encoding="ascii") as f:
        f.write(text)


@pytest.fixture(scope="module")
def dax():
    """A device that maps persistent memory: only such pages may stay pinned, those of a file may not."""
    run(["modprobe", "-a", "nd_e820", "nd_pmem", "dax_pmem", "device_dax"])
    wait_until(lambda: os.path.exists(f"{ND}/devices/namespace0.0"), 30, "no persistent memory in this guest")
    wait_until(lambda: glob.glob("/dev/pmem*"), 30, "nobody took the persistent memory")
    put(f"{ND}/drivers/nd_pmem/unbind", "namespace0.0")
    put(f"{ND}/devices/dax0.0/mode", "ram")
    put(f"{ND}/devices/dax0.0/align", str(2 << 20))
    put(f"{ND}/devices/dax0.0/uuid", "7f1c1b9e-5b1c-4b39-9d1e-0f3a9d3a0c11")
    put(f"{ND}/devices/dax0.0/namespace", "namespace0.0")
    put(f"{ND}/drivers/dax_pmem/bind", "dax0.0")
    wait_until(lambda: os.path.exists("/dev/dax0.0"), 30, "no /dev/dax0.0")
    fd = os.open("/dev/dax0.0", os.O_RDWR)
    memory = mmap.mmap(fd, SIZE)
    yield memory
    os.close(fd)


def address(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def post(end, name, *args, length=0):
    qp = end.qp
    qp.wr_start()
    qp.wr_id, qp.wr_flags = 1, e.IBV_SEND_SIGNALED
    getattr(qp, name)(*args)
    if length:
        qp.wr_set_sge(SGE(end.mr.buf, length, end.mr.lkey))
    qp.wr_complete()


def persistent_pair(bed):
    return pair(bed.h1.dev, bed.h2.dev, ex=EX, connect={"access": PERSISTENT})


def test_capability(bed):
    with persistent_pair(bed) as (a, _):
        assert a.ctx.query_device_ex().device_cap_flags_ex & 1 << 39


@pytest.mark.parametrize("level", [e.IBV_FLUSH_RANGE, e.IBV_FLUSH_MR], ids=["range", "region"])
@pytest.mark.parametrize("kind", [e.IBV_FLUSH_PERSISTENT, e.IBV_FLUSH_PERSISTENT | e.IBV_FLUSH_GLOBAL])
def test_flush(bed, dax, kind, level):
    with persistent_pair(bed) as (a, b), MR(b.pd, SIZE, PERSISTENT, address=address(dax)) as mr:
        for n, (at, length) in enumerate([(0, 8), (4095, 2), (SIZE - 50000, 50000)]):
            data = pattern(length, n)
            a.mr.write(data, length, 0)
            post(a, "wr_rdma_write", mr.rkey, address(dax) + at, length=length)
            post(a, "wr_flush", mr.rkey, address(dax) + at, length, kind, level)
            assert [w.status for w in a.poll(2)] == [OK, OK]
            assert dax[at:at + length] == data


@pytest.mark.differs_on_rxe("rxe writes back when it is asked to")
def test_written_back(bed, dax):
    """Each byte that a peer writes, and each word that it changes, is written back from the caches, once."""
    put(f"{TRACE}/kprobe_events", "p:wb arch_wb_cache_pmem size=%si:u64")
    try:
        with persistent_pair(bed) as (a, b), MR(b.pd, SIZE, PERSISTENT, address=address(dax)) as mr, \
                MR(b.pd, SIZE, FULL_ACCESS, address=address(dax)) as other:
            put(f"{TRACE}/events/kprobes/wb/enable", "1")
            post(a, "wr_rdma_write", other.rkey, address(dax), length=1000)
            post(a, "wr_rdma_write", mr.rkey, address(dax) + 100, length=10000)
            post(a, "wr_atomic_fetch_add", mr.rkey, address(dax) + 16, 5, length=8)
            post(a, "wr_flush", mr.rkey, 0, 0, e.IBV_FLUSH_PERSISTENT, e.IBV_FLUSH_MR)
            assert [w.status for w in a.poll(4)] == [OK] * 4
            put(f"{TRACE}/events/kprobes/wb/enable", "0")
        with open(f"{TRACE}/trace", encoding="ascii") as f:
            sizes = [int(line.split("size=")[1]) for line in f if "size=" in line]
        assert sum(sizes) == 10008, sizes
    finally:
        put(f"{TRACE}/events/enable", "0")
        put(f"{TRACE}/kprobe_events", "")


@pytest.mark.parametrize("what, wanted", [("bounds", e.IBV_WC_REM_ACCESS_ERR), ("right", e.IBV_WC_REM_ACCESS_ERR),
                                          ("qp_right", e.IBV_WC_REM_INV_REQ_ERR)])
def test_refused(bed, dax, what, wanted):
    access = FULL_ACCESS | e.IBV_ACCESS_FLUSH_GLOBAL
    with pair(bed.h1.dev, bed.h2.dev, ex=EX, connect={"access": access if what == "qp_right" else PERSISTENT}) as (a, b), \
            MR(b.pd, SIZE, access if what == "right" else PERSISTENT, address=address(dax)) as mr:
        post(a, "wr_flush", mr.rkey, address(dax), SIZE + (what == "bounds"), e.IBV_FLUSH_PERSISTENT, e.IBV_FLUSH_RANGE)
        assert a.done() == wanted


def refused(action):
    with pytest.raises(PyverbsRDMAError) as why:
        action()
    return why.value.error_code


def test_memory_that_is_not(bed, dax):
    """EINVAL for memory that loses its contents, and for pages that come and go."""
    with persistent_pair(bed) as (a, _):
        assert refused(lambda: MR(a.pd, 4096, PERSISTENT)) == errno.EINVAL
        assert refused(lambda: MR(a.pd, 4096, PERSISTENT | e.IBV_ACCESS_ON_DEMAND, address=address(dax))) == errno.EINVAL
