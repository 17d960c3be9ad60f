# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=2048
"""Atomic operations, ATOMIC WRITE and FLUSH: results, rights, and that each is done once, whatever gets lost."""

import ctypes
import errno
import struct
import threading

import pyverbs.enums as e
import pytest
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.wr import SGE

from impair import lossy
from perftest import perftest
from verbs import FULL_ACCESS, OK, Endpoint, all_good, pair, pattern, status_name

ATOMIC_ACCESS = FULL_ACCESS | e.IBV_ACCESS_REMOTE_ATOMIC
MASK = (1 << 64) - 1
EX = (e.IBV_QP_EX_WITH_FLUSH | e.IBV_QP_EX_WITH_ATOMIC_WRITE | e.IBV_QP_EX_WITH_RDMA_WRITE |
      e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)


def atomics(bed, ip=4, *, access=ATOMIC_ACCESS, connect=None, **opts):
    """Two endpoints whose memory and queue pairs allow atomics."""
    return pair(bed.h1.dev, bed.h2.dev, ip, access=access, connect={"access": ATOMIC_ACCESS, **(connect or {})}, **opts)


def word(end, off):
    return struct.unpack("=Q", end.mr.read(8, off))[0]


def set_word(end, off, value):
    end.mr.write(struct.pack("=Q", value & MASK), 8, off)


def test_device_says_so(bed):
    with Endpoint(bed.h1.dev) as end:
        attr = end.ctx.query_device()
        assert attr.atomic_caps in (e.IBV_ATOMIC_HCA, e.IBV_ATOMIC_GLOB)


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_fetch_and_add(bed, ip):
    with atomics(bed, ip) as (a, b):
        expected = 5
        set_word(b, 64, expected)
        set_word(b, 56, MASK)
        set_word(b, 72, MASK)
        for n, add in enumerate((0, 1, 0x0123456789abcdef, MASK, 1 << 63, 1 << 63, 0xffffffff)):
            a.fetch_add(8 * n, b.at(64), add)
            wc = a.poll()[0]
            assert (wc.status, wc.byte_len, wc.opcode) == (OK, 8, e.IBV_WC_FETCH_ADD), status_name(wc.status)
            assert word(a, 8 * n) == expected
            expected = (expected + add) & MASK
            assert word(b, 64) == expected
        assert (word(b, 56), word(b, 72)) == (MASK, MASK), "neighbours"


def test_compare_and_swap(bed):
    with atomics(bed) as (a, b):
        set_word(b, 8, 1 << 40)
        for compare, swap, after in ((1, 2, 1 << 40), (1 << 40, 3, 3), (3, MASK, MASK), (0, 9, MASK)):
            before = word(b, 8)
            a.compare_swap(0, b.at(8), compare, swap)
            wc = a.poll()[0]
            assert (wc.status, wc.byte_len, wc.opcode) == (OK, 8, e.IBV_WC_COMP_SWAP), status_name(wc.status)
            assert (word(a, 0), word(b, 8)) == (before, after)


def test_result_in_pieces(bed):
    """The local list may have several entries, and more room than is needed."""
    with atomics(bed, sge=3) as (a, b):
        set_word(b, 0, 0x1122334455667788)
        a.fetch_add(0, b.at(0), 1, sgl=[(10, 3), (100, 4), (200, 1)])
        assert a.done() == OK
        assert a.mr.read(3, 10) + a.mr.read(4, 100) + a.mr.read(1, 200) == struct.pack("=Q", 0x1122334455667788)


def test_more_than_may_be_outstanding(bed):
    """Atomics and READs share the limit, and the order is kept."""
    with atomics(bed, depth=64, connect={"max_rd": 2, "max_dest_rd": 2}) as (a, b):
        set_word(b, 0, 0)
        for n in range(30):
            a.fetch_add(8 * n, b.at(0), 1, wr_id=n)
            a.read(4096 + 8 * n, 8, b.at(0), wr_id=100 + n)
        done = a.poll(60)
        all_good(done)
        for n in range(30):
            assert (word(a, 8 * n), word(a, 4096 + 8 * n) >= n + 1) == (n, True)


def test_fence(bed):
    """What follows with a fence sees the result."""
    with atomics(bed) as (a, b):
        set_word(b, 0, 77)
        set_word(a, 0, 0)
        a.fetch_add(0, b.at(0), 1)
        a.write(0, 8, b.at(64), flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE)
        assert [w.status for w in a.poll(2)] == [OK, OK]
        assert word(b, 64) == 77


@pytest.mark.parametrize("what", ["key", "bounds", "right", "qp_right", "inline"])
def test_refused(bed, what):
    access = FULL_ACCESS if what == "right" else ATOMIC_ACCESS
    qp_access = FULL_ACCESS if what == "qp_right" else ATOMIC_ACCESS
    with atomics(bed, access=access, connect={"access": qp_access}, inline=64) as (a, b):
        set_word(b, 0, 1)
        address, key = b.at(0)
        if what == "key":
            key ^= 1
        elif what == "bounds":
            address += 1 << 16
        wanted = {"qp_right": e.IBV_WC_REM_INV_REQ_ERR, "inline": e.IBV_WC_LOC_QP_OP_ERR}.get(what, e.IBV_WC_REM_ACCESS_ERR)
        a.fetch_add(0, (address, key), 1, flags=e.IBV_SEND_SIGNALED | (e.IBV_SEND_INLINE if what == "inline" else 0))
        assert a.done() == wanted
        assert word(b, 0) == 1
        assert a.state() == e.IBV_QPS_ERR


@pytest.mark.parametrize("what", ["misaligned", "length", "room"])
def test_what_the_provider_refuses(bed, what):
    """Through the extended interface librxe lets pass what it checks elsewhere."""
    with atomics(bed, ex=EX) as (a, b):
        set_word(b, 0, 1)
        length = {"length": 7, "room": 64}.get(what, 8)
        post(a, "wr_atomic_fetch_add", b.mr.rkey, b.mr.buf + 4 * (what == "misaligned"), 1, sge=(0, length))
        assert a.done() == {"misaligned": e.IBV_WC_REM_INV_REQ_ERR, "length": e.IBV_WC_LOC_LEN_ERR, "room": OK}[what]
        assert word(b, 0) == (2 if what == "room" else 1)


def exact_sum(a, b):
    """Many additions to one word: each is done once, and each result is the one of its turn."""
    set_word(b, 0, 0)
    total = 0
    for _ in range(20):
        for n in range(32):
            a.fetch_add(8 * n, b.at(0), n + 1)
        done = a.poll(32, 120)
        all_good(done)
        for n in range(32):
            assert word(a, 8 * n) == total
            total += n + 1
    assert word(b, 0) == total


@pytest.mark.seconds(300)
def test_sum_is_exact_with_loss(bed):
    """Whatever gets lost or comes twice: each is done once, and each result is the one of its turn."""
    with lossy(bed, "delay 100us loss 5% duplicate 3% reorder 5%"), \
            atomics(bed, depth=64, connect={"timeout": 12}) as (a, b):
        exact_sum(a, b)


@pytest.mark.seconds(300)
def test_atomic_towards_everybody(bed):
    """Queue pairs in both directions and a thread of this process add to the same word at once."""
    try:
        libatomic = ctypes.CDLL("libatomic.so.1")
    except OSError:
        libatomic = None
    assert libatomic, "no libatomic in the guest"
    add = libatomic["__atomic_fetch_add_8"]
    add.argtypes, add.restype = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int], ctypes.c_uint64
    rounds, local = 30, 200_000
    with atomics(bed, depth=64) as (a, b):
        more = [(a, b)]
        for _ in range(3):
            ends = Endpoint(a.dev, share=a), Endpoint(b.dev, share=b)
            for x, y in (ends, ends[::-1]):
                x.connect(y, access=ATOMIC_ACCESS)
            more.append(ends)
        set_word(b, 0, 0)

        def own():
            for _ in range(local):
                add(b.mr.buf, 1, 5)
        thread = threading.Thread(target=own)
        thread.start()
        for _ in range(rounds):
            for x, y in more:
                for n in range(8):
                    x.fetch_add(8 * n, b.at(0), 1)
            all_good(a.poll(8 * len(more)))
        thread.join()
        assert word(b, 0) == local + rounds * 8 * len(more)
        for ends in more[1:]:
            for end in ends:
                end.close()


def test_compare_and_swap_loop_of_two(bed):
    """Two queue pairs take turns with nothing but compare and swap: a lock that both respect."""
    with atomics(bed) as (a, b):
        ends = Endpoint(a.dev, share=a), Endpoint(b.dev, share=b)
        for x, y in (ends, ends[::-1]):
            x.connect(y, access=ATOMIC_ACCESS)
        set_word(b, 0, 0)
        value = 0
        for n in range(100):
            first, second = (a, ends[0]) if n % 2 else (ends[0], a)
            first.compare_swap(0, b.at(0), value, value + 1)
            second.compare_swap(8, b.at(0), value, value + 2)
            all_good(a.poll(2))
            won = [word(a, 0) == value, word(a, 8) == value]
            assert won.count(True) == 1, "exactly one of them wins"
            value = word(b, 0)
        for end in ends:
            end.close()


# ATOMIC WRITE and FLUSH: only through the extended interface of QPs.

PLACEMENT = FULL_ACCESS | e.IBV_ACCESS_FLUSH_GLOBAL


def placement(bed, *, access=PLACEMENT, qp_access=PLACEMENT, **connect):
    return pair(bed.h1.dev, bed.h2.dev, access=access, ex=EX, connect={"access": qp_access, **connect})


def post(end, name, *args, sge=None, flags=e.IBV_SEND_SIGNALED):
    """One request through the extended interface; sge is (offset, length) in the MR."""
    qp = end.qp
    qp.wr_start()
    qp.wr_id, qp.wr_flags = 1, flags
    getattr(qp, name)(*args)
    if sge:
        qp.wr_set_sge(SGE(end.mr.buf + sge[0], sge[1], end.mr.lkey))
    qp.wr_complete()


def test_atomic_write(bed):
    with placement(bed) as (a, b):
        for n in range(20):
            data = pattern(8, n)
            post(a, "wr_atomic_write", b.mr.rkey, b.mr.buf + 8 * n, data)
            wc = a.poll()[0]
            assert (wc.status, wc.opcode) == (OK, e.IBV_WC_ATOMIC_WRITE), status_name(wc.status)
            assert b.mr.read(8, 8 * n) == data


@pytest.mark.parametrize("what", ["misaligned", "key", "right", "qp_right"])
def test_atomic_write_refused(bed, what):
    no_write = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ
    with placement(bed, access=no_write if what == "right" else PLACEMENT,
                   qp_access=no_write if what == "qp_right" else PLACEMENT) as (a, b):
        set_word(b, 0, 1)
        post(a, "wr_atomic_write", b.mr.rkey ^ (what == "key"), b.mr.buf + 4 * (what == "misaligned"), bytes(8))
        wanted = e.IBV_WC_REM_INV_REQ_ERR if what in ("misaligned", "qp_right") else e.IBV_WC_REM_ACCESS_ERR
        assert a.done() == wanted
        assert word(b, 0) == 1


@pytest.mark.seconds(300)
def test_atomic_write_with_loss(bed):
    """The last one of each word is what stays: none is done late once more."""
    with lossy(bed, "delay 100us loss 5% duplicate 3% reorder 5%"), placement(bed, timeout=12) as (a, b):
        for n in range(40):
            for i in range(8):
                post(a, "wr_atomic_write", b.mr.rkey, b.mr.buf + 8 * (i % 2), struct.pack("=Q", n << 8 | i))
            all_good(a.poll(8, 120))
            assert (word(b, 0), word(b, 8)) == (n << 8 | 6, n << 8 | 7)


@pytest.mark.parametrize("level", [e.IBV_FLUSH_RANGE, e.IBV_FLUSH_MR], ids=["range", "mr"])
def test_flush(bed, level):
    with placement(bed) as (a, b):
        data = pattern(60000, 1)
        a.mr.write(data, 60000, 0)
        post(a, "wr_rdma_write", b.mr.rkey, b.mr.buf, sge=(0, 60000), flags=0)
        post(a, "wr_flush", b.mr.rkey, b.mr.buf, 60000, e.IBV_FLUSH_GLOBAL, level)
        wc = a.poll()[0]
        assert (wc.status, wc.opcode) == (OK, e.IBV_WC_FLUSH), status_name(wc.status)
        assert b.mr.read(60000, 0) == data
        # All of a region has no length.
        if level == e.IBV_FLUSH_MR:
            post(a, "wr_flush", b.mr.rkey, 12345, 1 << 30, e.IBV_FLUSH_GLOBAL, level)
            assert a.done() == OK


@pytest.mark.parametrize("what, wanted", [
    ("bounds", e.IBV_WC_REM_ACCESS_ERR), ("key", e.IBV_WC_REM_ACCESS_ERR), ("right", e.IBV_WC_REM_ACCESS_ERR),
    ("persistent", e.IBV_WC_REM_INV_REQ_ERR), ("nothing", e.IBV_WC_REM_INV_REQ_ERR),
    ("qp_right", e.IBV_WC_REM_INV_REQ_ERR)])
def test_flush_refused(bed, what, wanted):
    with placement(bed, access=FULL_ACCESS if what == "right" else PLACEMENT,
                   qp_access=FULL_ACCESS if what == "qp_right" else PLACEMENT) as (a, b):
        kind = {"persistent": e.IBV_FLUSH_PERSISTENT, "nothing": 0}.get(what, e.IBV_FLUSH_GLOBAL)
        length = (1 << 16) + 1 if what == "bounds" else 8
        post(a, "wr_flush", b.mr.rkey ^ (what == "key"), b.mr.buf, length, kind, e.IBV_FLUSH_RANGE)
        assert a.done() == wanted


def test_no_region_for_persistence(bed):
    """Ordinary memory loses what is in it with the power."""
    with Endpoint(bed.h1.dev) as end:
        with pytest.raises(PyverbsRDMAError) as failure:
            MR(end.pd, 4096, FULL_ACCESS | e.IBV_ACCESS_FLUSH_PERSISTENT)
        assert failure.value.error_code == errno.EINVAL


@pytest.mark.parametrize("tool", ["ib_atomic_bw", "ib_atomic_lat"])
@pytest.mark.parametrize("kind", ["CMP_AND_SWAP", "FETCH_AND_ADD"])
def test_perftest(bed, tool, kind):
    perftest(bed, tool, "-A", kind, "-n", 50)


@pytest.mark.parametrize("options", [["-q", 4, "-b"], ["-e"], ["-o", 1]], ids=["qps_both_ways", "events", "one_outstanding"])
def test_perftest_options(bed, options):
    perftest(bed, "ib_atomic_bw", "-n", 50, *options)
