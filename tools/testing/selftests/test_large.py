# SPDX-License-Identifier: GPL-2.0
# guest: timeout=1200 mem=5120
"""The longest message there is: 2^31 bytes in one work request."""

import contextlib
import ctypes
import mmap
import os

import pyverbs.enums as e
import pytest

from pyverbs.mr import MR

from verbs import FULL_ACCESS, OK, pair, pattern, status_name

MESSAGE = 1 << 31
CHUNK = 61 << 20
"""What the message repeats; not a power of two, so that a piece in the wrong place shows."""

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
FAILED = ctypes.c_void_p(-1).value


def map_at(where, length, flags, fd):
    at = libc.mmap(where, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    assert at != FAILED, os.strerror(ctypes.get_errno())
    return at


@contextlib.contextmanager
def repeated(data):
    """An address range of MESSAGE bytes that shows data again and again, in the memory of one data."""
    fd = os.memfd_create("chunk")
    os.truncate(fd, len(data))
    os.pwrite(fd, data, 0)
    base = map_at(None, MESSAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, -1)
    for off in range(0, MESSAGE, len(data)):
        map_at(base + off, min(len(data), MESSAGE - off), mmap.MAP_SHARED | MAP_FIXED, fd)
    os.close(fd)
    yield base
    libc.munmap(base, MESSAGE)


@contextlib.contextmanager
def empty():
    """MESSAGE bytes of zeros."""
    with mmap.mmap(-1, MESSAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as m:
        view = (ctypes.c_char * MESSAGE).from_buffer(m)
        yield ctypes.addressof(view), m
        del view


@pytest.mark.seconds(600)
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_longest_message(bed, op):
    data = pattern(CHUNK, op)
    with repeated(data) as source, empty() as (target, memory), \
            pair(bed.h1.dev, bed.h2.dev, connect={"mtu": 4096, "timeout": 18}) as (a, b):
        src, dst = (b, a) if op == "read" else (a, b)
        with MR(src.pd, MESSAGE, FULL_ACCESS, address=source) as from_, MR(dst.pd, MESSAGE, FULL_ACCESS, address=target) as to:
            if op == "send":
                b.recv(0, MESSAGE, mr=to)
                a.send(0, MESSAGE, mr=from_)
            elif op == "write":
                a.write(0, MESSAGE, (to.buf, to.rkey), mr=from_)
            else:
                a.read(0, MESSAGE, (from_.buf, from_.rkey), mr=to)
            done = a.poll(1, 500)[0]
            assert done.status == OK, status_name(done.status)
            if op == "send":
                wc = b.poll()[0]
                assert (wc.status, wc.byte_len, wc.opcode) == (OK, MESSAGE, e.IBV_WC_RECV)
            for off in range(0, MESSAGE, CHUNK):
                n = min(CHUNK, MESSAGE - off)
                assert memory[off:off + n] == data[:n], f"the {n} bytes at {off} differ"


def test_longer_is_refused(bed):
    """One byte more than 2^31 completes in error at the sender, and the receiver hears nothing of it."""
    with repeated(pattern(CHUNK, 1)) as source, pair(bed.h1.dev, bed.h2.dev, sge=2) as (a, b), \
            MR(a.pd, MESSAGE, FULL_ACCESS, address=source) as mr:
        b.recv(0, 4096)
        a.send(sgl=[(0, MESSAGE), (0, 1)], mr=mr)
        assert a.done() == e.IBV_WC_LOC_LEN_ERR
        b.nothing()
