# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 smp=2 mem=3072
"""Memory: registering anew, and what is refused.

librxe has no function for registering anew, so these tests write the uverbs command themselves.
"""

import errno
import mmap
import os

import pyverbs.enums as e
import pytest
from pyverbs.mr import MR
from pyverbs.pd import PD

import uverbs
from testbed import Testbed
from verbs import FULL_ACCESS, OK, pair, pattern, status_name

PAGE = 4096
NO_TIMER = {"timeout": 0}
LOCAL, REMOTE_READ, REMOTE_WRITE, ATOMIC, BIND = (
    e.IBV_ACCESS_LOCAL_WRITE, e.IBV_ACCESS_REMOTE_READ, e.IBV_ACCESS_REMOTE_WRITE, e.IBV_ACCESS_REMOTE_ATOMIC,
    e.IBV_ACCESS_MW_BIND)


@pytest.fixture(scope="module")
def bed():
    with Testbed(mtu=4200) as b:
        yield b


@pytest.fixture
def ends(bed):
    with pair(bed.h1.dev, bed.h2.dev, connect=NO_TIMER) as p:
        yield p


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


def reconnect(ends):
    """From the error state back to RTS."""
    for end in ends:
        end.to_state(e.IBV_QPS_RESET)
        while end.cq.poll(1)[0]:
            pass
    ends[0].connect(ends[1], **NO_TIMER)
    ends[1].connect(ends[0], **NO_TIMER)


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


# Bad input.

WRAPS = 2**64 - PAGE


def test_reg_mr_refused(end):
    """Each argument of a registration out of range: its errno, and nothing registered."""
    ctx, pd = end.ctx, end.pd.handle
    page = Pages(PAGE)
    at = page.addr
    for code, args in (
            (errno.EINVAL, (pd, at, 0, at, LOCAL)),
            (errno.EINVAL, (pd, at, PAGE, at + 8, LOCAL)),
            (errno.EINVAL, (pd, at, PAGE, at, REMOTE_WRITE)),
            (errno.EINVAL, (pd, at, PAGE, at, ATOMIC)),
            (errno.EINVAL, (pd, at, PAGE, at, 1 << 30)),
            (errno.EINVAL, (pd, WRAPS, 2 * PAGE, WRAPS, LOCAL)),
            (errno.EINVAL, (pd, at, PAGE, WRAPS + at % PAGE, LOCAL)),
            (errno.EINVAL, (pd, at, 2**64 - 1, at, LOCAL)),
            (errno.EFAULT, (pd, 0, PAGE, 0, LOCAL)),
            (errno.EFAULT, (pd, 2**63, PAGE, 2**63, LOCAL)),
            (errno.ENOENT, (0xffff, at, PAGE, at, LOCAL)),
            (errno.EINVAL, (end.mr.handle, at, PAGE, at, LOCAL))):
        fails(code, uverbs.reg_mr, ctx, *args)
    handle, _, _ = uverbs.reg_mr(ctx, pd, at, PAGE, at, LOCAL)
    uverbs.dereg_mr(ctx, handle)
    fails(errno.ENOENT, uverbs.dereg_mr, ctx, handle)
    fails(errno.EINVAL, uverbs.dereg_mr, ctx, pd)


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
