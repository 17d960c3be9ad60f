# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=3072
"""Memory: registering anew, windows, DMA-BUFs, huge pages, and what is refused.

librxe has no function for registering anew, so these tests write the uverbs command themselves.
"""

import errno
import fcntl
import mmap
import os
import struct
import time

import pyverbs.enums as e
import pytest
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.wr import SendWR

import uverbs
from impair import qdisc
from verbs import FULL_ACCESS, OK, Endpoint, all_good, pair, pattern, status_name

pytestmark = pytest.mark.differs_on_rxe("rxe does not exchange memory, and does not hold packets against the bounds of windows")

PAGE = 4096
WRAPS = 2**64 - PAGE
NO_TIMER = {"timeout": 0}
BIND_ERR, ACCESS_ERR = e.IBV_WC_MW_BIND_ERR, e.IBV_WC_REM_ACCESS_ERR
LOCAL, REMOTE_READ, REMOTE_WRITE, ATOMIC, BIND = (
    e.IBV_ACCESS_LOCAL_WRITE, e.IBV_ACCESS_REMOTE_READ, e.IBV_ACCESS_REMOTE_WRITE, e.IBV_ACCESS_REMOTE_ATOMIC,
    e.IBV_ACCESS_MW_BIND)


@pytest.fixture
def end(ends):
    return ends[0]


class Pages:
    """Anonymous memory with an address."""

    def __init__(self, length, **kw):
        self.map = mmap.mmap(-1, length, **kw)
        self.view = (uverbs.ctypes.c_char * length).from_buffer(self.map)
        self.addr = uverbs.ctypes.addressof(self.view)

    def read(self, off, length):
        return self.view.raw[off:off + length]

    def write(self, off, data):
        self.map[off:off + len(data)] = data


def fails(code, call, *args, **kw):
    """The call fails with this errno."""
    with pytest.raises(OSError) as info:
        call(*args, **kw)
    assert info.value.errno == code, f"{errno.errorcode[info.value.errno]} instead of {errno.errorcode[code]}"


def reconnect(ends, access=FULL_ACCESS):
    """Through RESET back to RTS."""
    for end in ends:
        end.to_state(e.IBV_QPS_RESET)
        while end.cq.poll(1)[0]:
            pass
    ends[0].connect(ends[1], access=access, **NO_TIMER)
    ends[1].connect(ends[0], access=access, **NO_TIMER)


def write_status(ends, va, key, length=64):
    """How an RDMA WRITE from the first end to the second one ends."""
    a, _ = ends
    a.write(0, length, (va, key))
    status = a.done()
    if status != OK:
        reconnect(ends)
    return status


def rereg(end, flags, **kw):
    """Registers the MR of an endpoint anew; the keys stay."""
    assert uverbs.rereg_mr(end.ctx, end.mr.handle, flags, **kw) == (end.mr.lkey, end.mr.rkey)


# Registering anew.


def test_rereg_access(ends):
    """Rights that are taken away or given count for the next packet."""
    a, b = ends
    data = pattern(5000, "rereg")
    a.mr.write(data, 5000, 0)
    for access, wanted in ((LOCAL, e.IBV_WC_REM_ACCESS_ERR), (FULL_ACCESS, OK), (LOCAL | REMOTE_READ, e.IBV_WC_REM_ACCESS_ERR),
                           (LOCAL | REMOTE_WRITE, OK)):
        rereg(b, uverbs.ACCESS, access=access)
        b.mr.write(bytes(5000), 5000, 0)
        status = write_status(ends, *b.at(0), 5000)
        assert status == wanted, status_name(status)
        assert b.mr.read(5000, 0) == (data if wanted == OK else bytes(5000))


def test_rereg_pd(ends):
    """In another protection domain the keys are nobody's for this QP; back in the old one they work again."""
    a, b = ends
    with PD(b.ctx) as other:
        rereg(b, uverbs.PD, pd_handle=other.handle)
        assert write_status(ends, *b.at(0)) == e.IBV_WC_REM_ACCESS_ERR
        b.recv(0, 64)
        a.send(0, 64)
        assert a.done() == e.IBV_WC_REM_OP_ERR
        assert b.done() == e.IBV_WC_LOC_PROT_ERR
        reconnect(ends)
        # The domain is in use now.
        fails(errno.EBUSY, uverbs.command, b.ctx, 4, "=I", other.handle, answer=None)
        rereg(b, uverbs.PD, pd_handle=b.pd.handle)
        assert write_status(ends, *b.at(0)) == OK


def test_rereg_translation(ends):
    """The keys name the other memory from now on, by its address, and not the old one any more."""
    a, b = ends
    data = pattern(3 * PAGE, "trans")
    a.mr.write(data, len(data), 0)
    new = Pages(4 * PAGE)
    old_at = b.at(0)
    rereg(b, uverbs.TRANSLATION, start=new.addr + 100, length=3 * PAGE)
    assert write_status(ends, new.addr + 100, b.mr.rkey, 3 * PAGE) == OK
    assert new.read(0, 4 * PAGE) == bytes(100) + data + bytes(PAGE - 100)
    for va in (old_at[0], new.addr + 99, new.addr + 100 + 3 * PAGE - 63):
        assert write_status(ends, va, b.mr.rkey) == e.IBV_WC_REM_ACCESS_ERR
    assert b.mr.read(64, 0) == bytes(64)


def test_rereg_all_at_once(ends):
    """Translation, domain and rights, in each combination."""
    a, b = ends
    new = Pages(2 * PAGE)
    with PD(b.ctx) as other:
        for flags in range(1, 8):
            kw = {"pd_handle": other.handle, "access": LOCAL | REMOTE_READ}
            if flags & uverbs.TRANSLATION:
                kw.update(start=new.addr, length=PAGE)
            rereg(b, flags, **kw)
            va = new.addr if flags & uverbs.TRANSLATION else b.mr.buf
            allowed = not flags & (uverbs.PD | uverbs.ACCESS)
            assert (write_status(ends, va, b.mr.rkey) == OK) == allowed, flags
            rereg(b, 7, start=b.mr.buf, length=b.mr.length, pd_handle=b.pd.handle, access=FULL_ACCESS)
            assert write_status(ends, *b.at(0)) == OK


def test_rereg_atomic(ends):
    """The right to atomics goes and comes back."""
    a, b = ends

    def add():
        wr = a.work(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8)
        wr.set_wr_atomic(b.mr.rkey, b.mr.buf, 7)
        a.qp.post_send(wr)
        status = a.done()
        if status != OK:
            reconnect(ends, FULL_ACCESS | ATOMIC)
        return status

    reconnect(ends, FULL_ACCESS | ATOMIC)
    for access, wanted in ((LOCAL, ACCESS_ERR), (LOCAL | ATOMIC, OK), (FULL_ACCESS, ACCESS_ERR), (LOCAL | ATOMIC, OK)):
        rereg(b, uverbs.ACCESS, access=access)
        assert add() == wanted
    assert int.from_bytes(b.mr.read(8, 0), "little") == 14


def test_rereg_under_load(ends):
    """Messages that are under way when the memory is exchanged land whole in the one place or the other."""
    a, b = ends
    other = Pages(b.mr.length)
    a.mr.write(b"x" * 32768, 32768, 0)
    for i in range(40):
        a.write(0, 32768, b.at(0))
        rereg(b, 7, start=b.mr.buf, length=b.mr.length, pd_handle=b.pd.handle, access=FULL_ACCESS)
        assert a.done() == OK
    del other


def test_rereg_refused(ends):
    """What fails changes nothing."""
    a, b = ends
    handle, ctx = b.mr.handle, b.ctx
    hole = Pages(2 * PAGE)
    for code, flags, kw in (
            (errno.EINVAL, 0, {}),
            (errno.EOPNOTSUPP, 8, {}),
            (errno.EINVAL, uverbs.ACCESS, {"access": REMOTE_WRITE}),
            (errno.EINVAL, uverbs.ACCESS, {"access": ATOMIC}),
            (errno.EINVAL, uverbs.TRANSLATION, {"start": hole.addr, "length": 0}),
            (errno.EINVAL, uverbs.TRANSLATION, {"start": hole.addr, "length": PAGE, "va": hole.addr + 1}),
            (errno.EINVAL, uverbs.TRANSLATION, {"start": 2**64 - PAGE, "length": 2 * PAGE}),
            (errno.EINVAL, uverbs.TRANSLATION, {"start": hole.addr, "length": PAGE, "va": 2**64 - PAGE}),
            (errno.EFAULT, uverbs.TRANSLATION, {"start": PAGE, "length": PAGE}),
            (errno.ENOENT, uverbs.PD, {"pd_handle": 0xffff}),
            (errno.EFAULT, 7, {"start": PAGE, "length": PAGE, "pd_handle": b.pd.handle, "access": FULL_ACCESS})):
        fails(code, uverbs.rereg_mr, ctx, handle, flags, **kw)
        assert write_status(ends, *b.at(0)) == OK, (flags, kw)
    fails(errno.ENOENT, uverbs.rereg_mr, ctx, 0xffff, uverbs.ACCESS, access=LOCAL)
    # The handle of another object is none of a region.
    fails(errno.EINVAL, uverbs.rereg_mr, ctx, b.pd.handle, uverbs.ACCESS, access=LOCAL)


def test_rereg_read_only_memory(end):
    """Memory that was pinned for reading does not become writable by asking for the right."""
    fd = os.memfd_create("ro")
    os.ftruncate(fd, PAGE)
    view = mmap.mmap(fd, PAGE, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
    libc = uverbs.ctypes.CDLL(None)
    libc.mmap.restype = uverbs.ctypes.c_void_p
    addr = libc.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    view.close()
    handle, _, _ = uverbs.reg_mr(end.ctx, end.pd.handle, addr, PAGE, addr, REMOTE_READ)
    fails(errno.EACCES, uverbs.rereg_mr, end.ctx, handle, uverbs.ACCESS, access=LOCAL)
    uverbs.rereg_mr(end.ctx, handle, uverbs.ACCESS, access=0)
    uverbs.dereg_mr(end.ctx, handle)
    os.close(fd)


# Windows.

ZERO_BASED = e.IBV_ACCESS_ZERO_BASED


@pytest.fixture
def windows(bed):
    """Two connected endpoints; the MR of the second one has no remote rights, but may have windows."""
    with pair(bed.h1.dev, bed.h2.dev, connect=NO_TIMER, b={"access": LOCAL | BIND}) as p:
        yield p


def bind(end, mw, off, length, access, mr=None, va=None):
    """Posts a bind and returns its completion status and the new key; an unsuccessful one leaves the QP in error."""
    mr = mr or end.mr
    wr = SendWR(opcode=e.IBV_WR_BIND_MW, num_sge=0, sg=None)
    wr.set_bind_wr(mw, MWBindInfo(mr, mr.buf + off if va is None else va, length, access))
    end.qp.post_send(wr)
    return end.done(), wr.rkey


def bound(end, mw, off, length, access, **kw):
    """Binds and returns the key."""
    status, key = bind(end, mw, off, length, access, **kw)
    assert status == OK, status_name(status)
    return key


def invalidate(end, key):
    wr = SendWR(opcode=e.IBV_WR_LOCAL_INV, num_sge=0, sg=None)
    wr.imm_data = key
    end.qp.post_send(wr)
    return end.done()


def read_status(ends, va, key, length=64):
    a, _ = ends
    a.read(0, length, (va, key))
    status = a.done()
    if status != OK:
        reconnect(ends)
    return status


@pytest.mark.parametrize("kind", [e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2])
def test_window_bounds_and_rights(windows, kind):
    """A window has bounds and rights of its own, and each packet is held against them."""
    a, b = windows
    a.mr.write(b"w" * 16384, 16384, 0)
    with MW(b.pd, kind) as mw:
        key = bound(b, mw, 1000, 9000, REMOTE_WRITE)
        base = b.mr.buf
        assert key >> 8 == mw.rkey >> 8
        assert write_status(windows, base + 1000, key, 9000) == OK
        assert b.mr.read(16384, 0) == bytes(1000) + b"w" * 9000 + bytes(6384)
        if kind == e.IBV_MW_TYPE_2:
            # A window of type 2 is the QP's: one that was reset is still the same.
            assert write_status(windows, base + 1000, key, 1) == OK
        for va, length in ((base + 999, 2), (base + 999, 1), (base + 9999, 2), (base + 10000, 1), (base + 1000, 9001),
                           (base, 16384), (base + 2**63, 1), (2**64 - 1, 1)):
            assert write_status(windows, va, key, length) == ACCESS_ERR, (va - base, length)
        assert read_status(windows, base + 1000, key) == ACCESS_ERR
        assert write_status(windows, base + 1000, b.mr.rkey) == ACCESS_ERR
        assert write_status(windows, base + 9999, key, 1) == OK


def test_window_type1_again(windows):
    """Bound again, the old key is nobody's; bound to nothing, none is."""
    a, b = windows
    base = b.mr.buf
    with MW(b.pd, e.IBV_MW_TYPE_1) as mw:
        old = None
        for off, access in ((0, REMOTE_READ), (4096, REMOTE_READ | REMOTE_WRITE), (0, REMOTE_WRITE)):
            b.qp.bind_mw(mw, MWBind(MWBindInfo(b.mr, base + off, 4096, access), e.IBV_SEND_SIGNALED))
            assert b.poll()[0].opcode == e.IBV_WC_BIND_MW
            assert (read_status(windows, base + off, mw.rkey) == OK) == bool(access & REMOTE_READ)
            assert (write_status(windows, base + off, mw.rkey) == OK) == bool(access & REMOTE_WRITE)
            if old:
                assert read_status(windows, base + off, old) == ACCESS_ERR
            old = mw.rkey
        b.qp.bind_mw(mw, MWBind(MWBindInfo(b.mr, base, 0, 0), e.IBV_SEND_SIGNALED))
        assert b.done() == OK
        assert write_status(windows, base, mw.rkey) == ACCESS_ERR
        assert write_status(windows, base, old) == ACCESS_ERR


def test_window_type2_is_the_qps(windows):
    """Another QP of the same domain neither reaches a window of type 2 nor invalidates it; of type 1 it reaches it."""
    a, b = windows
    c, d = Endpoint(a.dev, share=a), Endpoint(b.dev, share=b)
    try:
        c.connect(d, **NO_TIMER)
        d.connect(c, **NO_TIMER)
        with MW(b.pd, e.IBV_MW_TYPE_1) as one, MW(b.pd, e.IBV_MW_TYPE_2) as two:
            key1, key2 = bound(b, one, 0, 4096, REMOTE_WRITE), bound(b, two, 0, 4096, REMOTE_WRITE)
            assert write_status((c, d), b.mr.buf, key1) == OK
            assert write_status((c, d), b.mr.buf, key2) == ACCESS_ERR
            assert invalidate(d, key2) == BIND_ERR
            reconnect((c, d))
            assert write_status(windows, b.mr.buf, key2) == OK
            assert invalidate(b, key2) == OK
            assert write_status(windows, b.mr.buf, key2) == ACCESS_ERR
            assert write_status(windows, b.mr.buf, key1) == OK
    finally:
        c.close()
        d.close()


def test_window_keeps_its_region(windows):
    """A region is neither deregistered nor registered anew while windows are bound to it."""
    a, b = windows
    mr = MR(b.pd, 8192, LOCAL | BIND)

    def bind_one(length):
        b.qp.bind_mw(one, MWBind(MWBindInfo(mr, mr.buf, length, REMOTE_READ), e.IBV_SEND_SIGNALED))
        assert b.done() == OK

    with MW(b.pd, e.IBV_MW_TYPE_1) as one, MW(b.pd, e.IBV_MW_TYPE_2) as two:
        bind_one(100)
        key = bound(b, two, 0, 100, REMOTE_READ, mr=mr)
        for _ in range(2):
            fails(errno.EBUSY, uverbs.dereg_mr, b.ctx, mr.handle)
            fails(errno.EBUSY, uverbs.rereg_mr, b.ctx, mr.handle, uverbs.ACCESS, access=LOCAL)
            assert read_status(windows, mr.buf, key) == OK
        bind_one(0)
        fails(errno.EBUSY, uverbs.dereg_mr, b.ctx, mr.handle)
        assert invalidate(b, key) == OK
        uverbs.rereg_mr(b.ctx, mr.handle, uverbs.ACCESS, access=LOCAL | BIND)
        bind_one(100)
        key = one.rkey
        assert read_status(windows, mr.buf, key) == OK
        fails(errno.EBUSY, uverbs.dereg_mr, b.ctx, mr.handle)
    # The windows are gone, one of them bound.
    assert read_status(windows, mr.buf, key) == ACCESS_ERR
    mr.close()


def test_window_invalidated_by_the_peer(windows):
    """SEND with invalidate ends a binding before the receive completes, and tells which."""
    a, b = windows
    with MW(b.pd, e.IBV_MW_TYPE_2) as mw:
        key = bound(b, mw, 0, 4096, REMOTE_WRITE)
        assert write_status(windows, b.mr.buf, key) == OK
        b.recv(0, 64)
        a.post(e.IBV_WR_SEND_WITH_INV, 0, 10, imm=key)
        wc = b.poll()[0]
        assert (wc.status, wc.byte_len, wc.imm_data) == (OK, 10, key)
        assert wc.wc_flags == e.IBV_WC_WITH_INV
        assert a.done() == OK
        assert write_status(windows, b.mr.buf, key) == ACCESS_ERR
        # What is not bound cannot be invalidated, and neither can a window of type 1.
        with MW(b.pd, e.IBV_MW_TYPE_1) as one:
            for bad in (key, bound(b, one, 0, 4096, REMOTE_WRITE)):
                b.recv(0, 64)
                a.post(e.IBV_WR_SEND_WITH_INV, 0, 10, imm=bad)
                assert a.done() == ACCESS_ERR
                assert b.done() == BIND_ERR
                reconnect(windows)


def test_window_zero_based(windows):
    """Addresses count from the start of the window, or of the region."""
    a, b = windows
    a.mr.write(b"z" * 100, 100, 0)
    with MW(b.pd, e.IBV_MW_TYPE_2) as mw:
        key = bound(b, mw, 5000, 100, REMOTE_WRITE | ZERO_BASED)
        assert write_status(windows, 0, key, 100) == OK
        assert b.mr.read(102, 4999) == b"\0" + b"z" * 100 + b"\0"
        for va, length in ((1, 100), (100, 1), (b.mr.buf + 5000, 1)):
            assert write_status(windows, va, key, length) == ACCESS_ERR
    page = Pages(PAGE)
    handle, _, rkey = uverbs.reg_mr(b.ctx, b.pd.handle, page.addr, PAGE, page.addr, FULL_ACCESS | ZERO_BASED)
    assert write_status(windows, 10, rkey, 50) == OK
    assert page.read(9, 52) == b"\0" + b"z" * 50 + b"\0"
    assert write_status(windows, page.addr, rkey) == ACCESS_ERR
    uverbs.dereg_mr(b.ctx, handle)


def test_window_at_once(windows):
    """A bind is done before the requests that follow it, without waiting for its completion."""
    a, b = windows
    a.mr.write(b"q" * 64, 64, 0)
    for _ in range(20):
        with MW(b.pd, e.IBV_MW_TYPE_2) as mw:
            wr = SendWR(opcode=e.IBV_WR_BIND_MW, num_sge=0, sg=None)
            wr.set_bind_wr(mw, MWBindInfo(b.mr, b.mr.buf, 64, REMOTE_WRITE))
            a.recv(128, 4)
            b.qp.post_send(wr)
            b.send(0, 4)
            assert b.done() == OK and a.done() == OK and b.done() == OK
            assert write_status(windows, b.mr.buf, wr.rkey) == OK
            assert invalidate(b, wr.rkey) == OK


def test_window_invalidated_under_reads(bed, windows):
    """READs that are under way get the right bytes or are refused; those that begin after the invalidation are refused."""
    a, b = windows
    data = pattern(60000, "inv")
    b.mr.write(data, len(data), 0)
    seen = set()
    # So slow that the requests come one by one.
    with qdisc([bed.h1], "netem rate 400kbit"):
        for turn in range(12):
            with MW(b.pd, e.IBV_MW_TYPE_2) as mw:
                key = bound(b, mw, 0, 60000, REMOTE_READ)
                a.mr.write(bytes(60000), 60000, 0)
                chain = [a.work(e.IBV_WR_RDMA_READ, 5000 * n, 5000, remote=(b.mr.buf + 5000 * n, key), wr_id=n)
                         for n in range(12)]
                for wr, following in zip(chain, chain[1:]):
                    wr.next_wr = following
                a.qp.post_send(chain[0])
                time.sleep(0.002 * turn)
                assert invalidate(b, key) == OK
                a.read(0, 8, (b.mr.buf, key), wr_id=12)
                done = a.poll(13)
                assert [w.wr_id for w in done] == list(range(13))
                good = [w.status for w in done].index(ACCESS_ERR)
                all_good(done[:good])
                assert all(w.status == e.IBV_WC_WR_FLUSH_ERR for w in done[good + 1:])
                assert a.mr.read(5000 * good, 0) == data[:5000 * good]
                seen.add(good)
            reconnect(windows)
    assert len(seen) > 1, seen


def test_window_refused(windows):
    """What a bind may not do ends in MW_BIND_ERR, and the window is as it was."""
    a, b = windows
    plain, reader = MR(b.pd, 4096, LOCAL), MR(b.pd, 4096, BIND)
    with PD(b.ctx) as pd, MR(pd, 4096, LOCAL | BIND) as foreign_mr, MW(pd, e.IBV_MW_TYPE_2) as foreign_mw, \
            MW(b.pd, e.IBV_MW_TYPE_1) as one, MW(b.pd, e.IBV_MW_TYPE_2) as two:
        key1 = bound(b, one, 0, 4096, REMOTE_WRITE)
        end = b.mr.buf + b.mr.length
        for mw in (one, two):
            for kw in ({"off": b.mr.length - 4095, "length": 4096}, {"off": -1, "length": 4096},
                       {"off": 0, "length": b.mr.length + 1}, {"va": end, "length": 1}, {"va": end - 1, "length": 2**64 - 1},
                       {"va": 2**64 - 1, "length": 2}, {"length": 2**64 - 1}, {"mr": plain}, {"mr": foreign_mr},
                       {"mr": reader}, {"access": REMOTE_WRITE | 64}, {"access": REMOTE_WRITE | 1 << 20}):
                kw = {"off": 0, "length": 4096, "access": REMOTE_WRITE, **kw}
                status, _ = bind(b, mw, **kw)
                assert status == BIND_ERR, (kw, status_name(status))
                reconnect(windows)
        assert bind(b, one, 0, 4096, REMOTE_WRITE | ZERO_BASED)[0] == BIND_ERR
        reconnect(windows)
        assert bind(b, two, 0, 0, REMOTE_WRITE)[0] == BIND_ERR
        reconnect(windows)
        assert bind(b, foreign_mw, 0, 4096, REMOTE_WRITE)[0] == BIND_ERR
        reconnect(windows)
        key2 = bound(b, two, 0, 4096, REMOTE_READ)
        assert bind(b, two, 0, 4096, REMOTE_WRITE)[0] == BIND_ERR
        reconnect(windows)
        assert write_status(windows, b.mr.buf, key1) == OK
        assert read_status(windows, b.mr.buf, key2) == OK
        # Keys that may not be invalidated.
        for key in (b.mr.lkey, key1, key2 ^ 1, 0, 0xffffffff):
            assert invalidate(b, key) == BIND_ERR, hex(key)
            reconnect(windows)
        # A window is no memory of one's own.
        b.send(0, 64, lkey=key2)
        assert b.done() == e.IBV_WC_LOC_PROT_ERR
    plain.close()
    reader.close()


# Memory that other drivers share.


class UdmaBuf:
    """A DMA-BUF made of a memfd, and the memfd mapped here."""

    CREATE = 0x40187542  # UDMABUF_CREATE

    def __init__(self, length, flags=0):
        memfd = os.memfd_create("udmabuf", os.MFD_ALLOW_SEALING)
        os.ftruncate(memfd, length)
        fcntl.fcntl(memfd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
        self.map = mmap.mmap(memfd, length)
        with open("/dev/udmabuf", "wb", buffering=0) as device:
            self.fd = fcntl.ioctl(device, self.CREATE, bytearray(struct.pack("=IIQQ", memfd, flags, 0, length)))
        os.close(memfd)


def test_dma_buf(ends):
    """A DMA-BUF is read and written by the peer, from an offset on, and outlives its file descriptor."""
    a, b = ends
    buf = UdmaBuf(64 * PAGE)
    data = pattern(20 * PAGE, "dmabuf")
    a.mr.write(data[:b.mr.length], min(len(data), a.mr.length), 0)
    size = min(len(data), a.mr.length)
    handle, lkey, rkey = uverbs.reg_dmabuf_mr(b.ctx, b.pd.handle, buf.fd, 4 * PAGE, 32 * PAGE, 0x10000, FULL_ACCESS)
    os.close(buf.fd)
    assert write_status(ends, 0x10000 + 100, rkey, size) == OK
    assert buf.map[:] == bytes(4 * PAGE + 100) + data[:size] + bytes(60 * PAGE - 100 - size)
    buf.map[5 * PAGE:5 * PAGE + 5] = b"hello"
    a.read(0, 5, (0x10000 + PAGE, rkey))
    assert a.done() == OK and a.mr.read(5, 0) == b"hello"
    b.post(e.IBV_WR_SEND, 0, 0, sgl=[(0x10000 + PAGE - b.mr.buf, 5)], lkey=lkey)
    a.recv(0, 5)
    assert a.done() == OK and b.done() == OK
    for va, length in ((0x10000 - 1, 1), (0x10000 + 32 * PAGE, 1), (0x10000 + 32 * PAGE - 1, 2)):
        assert write_status(ends, va, rkey, length) == ACCESS_ERR
    uverbs.dereg_mr(b.ctx, handle)
    assert write_status(ends, 0x10000, rkey, 1) == ACCESS_ERR


def test_dma_buf_refused(end):
    """What is no DMA-BUF, and what is not in it."""
    buf = UdmaBuf(4 * PAGE)
    with open("/dev/zero", "rb") as zero:
        for code, args in (
                (errno.EINVAL, (zero.fileno(), 0, PAGE, 0, LOCAL)),
                (errno.EBADF, (1000, 0, PAGE, 0, LOCAL)),
                (errno.EINVAL, (buf.fd, 0, 0, 0, LOCAL)),
                (errno.EINVAL, (buf.fd, 0, 4 * PAGE + 1, 0, LOCAL)),
                (errno.EINVAL, (buf.fd, 4 * PAGE, 1, 0, LOCAL)),
                (errno.EINVAL, (buf.fd, WRAPS, 2 * PAGE, 0, LOCAL)),
                (errno.EINVAL, (buf.fd, 0, PAGE, WRAPS, LOCAL)),
                (errno.EINVAL, (buf.fd, 0, PAGE, 1, LOCAL)),
                (errno.EINVAL, (buf.fd, 0, PAGE, 0, REMOTE_WRITE)),
                (errno.EINVAL, (buf.fd, 0, PAGE, 0, LOCAL | BIND))):
            fails(code, uverbs.reg_dmabuf_mr, end.ctx, end.pd.handle, *args)
    os.close(buf.fd)


def test_huge_pages(ends):
    """Pinned huge pages, written to across the border of two."""
    a, b = ends
    with open("/proc/sys/vm/nr_hugepages", "r+") as f:
        f.write("8")
    huge = Pages(4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
    data = pattern(60000, "huge")
    a.mr.write(data, len(data), 0)
    handle, _, rkey = uverbs.reg_mr(b.ctx, b.pd.handle, huge.addr, 4 << 20, huge.addr, FULL_ACCESS)
    assert write_status(ends, huge.addr + (2 << 20) - 30000, rkey, len(data)) == OK
    assert huge.read((2 << 20) - 30000, len(data)) == data
    uverbs.dereg_mr(b.ctx, handle)


def test_virtual_address_is_not_the_address(ends):
    """A region is named by the address that its owner chose, not by where it lies."""
    a, b = ends
    page = Pages(PAGE)
    handle, _, rkey = uverbs.reg_mr(b.ctx, b.pd.handle, page.addr, PAGE, 0x7000, FULL_ACCESS)
    a.mr.write(b"y" * 64, 64, 0)
    assert write_status(ends, 0x7000 + PAGE - 64, rkey) == OK
    assert page.read(PAGE - 64, 64) == b"y" * 64
    assert write_status(ends, page.addr, rkey) == e.IBV_WC_REM_ACCESS_ERR
    uverbs.dereg_mr(b.ctx, handle)
    assert write_status(ends, 0x7000, rkey) == e.IBV_WC_REM_ACCESS_ERR
