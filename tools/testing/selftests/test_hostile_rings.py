# SPDX-License-Identifier: GPL-2.0
# guest: timeout=400 smp=2 mem=3072
"""Programs that write what they like into the rings that they share with the kernel."""

import contextlib
import ctypes
import mmap
import os
import sys

import pytest
import pyverbs.enums as e
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPCap, QPInitAttr

import scribbler
from kmsg import nothing_logged
from rings import Ring, mappings
from testbed import wait_until
from verbs import OK, Endpoint, pair


@pytest.mark.parametrize("seed", range(2))
def test_rings_written_at_random(bed, seed):
    """Random words in the rings, while messages arrive and the queues change their size: the program may crash, nobody else."""
    with nothing_logged(), pair(bed.h1.dev, bed.h2.dev) as (a, b):
        for turn in range(3):
            job = bed.h1.start(sys.executable, scribbler.__file__, bed.h1.dev, bed.h2.dev, 10 * seed + turn, 4)
            job.wait_for("connected", 120)
            with contextlib.suppress(AssertionError):
                job.wait(30)
            job.kill()
            # A bystander's connection works on.
            b.recv(0, 64)
            a.send(0, 8)
            assert a.done() == OK and b.done() == OK


def test_a_broken_receive_ring_begins_anew(bed):
    """An index that is none breaks the queue of a queue pair, until the program resets that and the index."""
    with Endpoint(bed.h1.dev) as a, Endpoint(bed.h2.dev) as b:
        b.qp.close()
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=b.cq, rcq=b.cq, cap=QPCap(max_send_wr=8, max_recv_wr=200))
        before = mappings()
        b.qp = QP(b.pd, init, None)
        found = [Ring((ctypes.c_char * (end - start)).from_address(start)) for start, end in mappings() - before]
        ring, = (ring for ring in found if ring.mask == 255)
        for status in (e.IBV_WC_REM_OP_ERR, OK):
            a.connect(b, timeout=0)
            b.connect(a, timeout=0)
            b.recv(0, 64)
            if status != OK:
                good, ring.producer = ring.producer, 1 << 20
            a.send(0, 8)
            assert a.done() == status
            if status == OK:
                assert b.done() == OK
                break
            ring.producer = good
            for end in (a, b):
                end.to_state(e.IBV_QPS_RESET)
                while end.cq.poll(1)[0]:
                    pass


def with_send_ring(dev, depth):
    """An endpoint, its send ring and where that lies; only its elements have 256 bytes."""
    before = mappings()
    end = Endpoint(dev, depth=depth)
    found = [(Ring((ctypes.c_char * (e - s)).from_address(s)), s, e - s) for s, e in mappings() - before]
    (ring, start, length), = (f for f in found if f[0].shift == 8)
    return end, ring, start, length


def test_pages_of_a_ring_that_are_not_there(bed):
    """Sends in pages that nobody has written to are sends of nothing; pages that the program takes away harm it alone."""
    with nothing_logged(), Endpoint(bed.h2.dev) as b:
        a, ring, start, length = with_send_ring(bed.h1.dev, 60)
        assert length == 5 * mmap.PAGESIZE
        with a:
            a.connect(b)
            b.connect(a)
            # An element of zeros is an RDMA WRITE of no bytes that does not report.
            ring.producer = 50
            b.recv(0, 64)
            a.send(0, 8)
            assert a.done() == OK and b.done() == OK
            wait_until(lambda: ring.consumer == 51, 10, lambda: f"{ring.consumer} of 51 were taken")
            libc = ctypes.CDLL(None, use_errno=True)
            MADV_REMOVE = 9
            rest = ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(length - mmap.PAGESIZE)
            for _ in range(4):
                assert libc.madvise(*rest, MADV_REMOVE) == 0, os.strerror(ctypes.get_errno())
                for _ in range(20):
                    with contextlib.suppress(PyverbsError):
                        a.send(0, 8)
                    a.cq.poll(16)
        with pair(bed.h1.dev, bed.h2.dev) as (c, d):
            d.recv(0, 64)
            c.send(0, 8)
            assert c.done() == OK and d.done() == OK
