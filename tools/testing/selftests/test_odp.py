# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=3072
"""Memory that is paged on demand: pages that are absent, appear, change and go while the device uses them."""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import struct
import traceback

import pyverbs.enums as e
import pytest
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.wr import SGE, RecvWR, SendWR

import uverbs
from datagram import GRH, Ud
from testbed import DRIVER, module_of, run, wait_until
from verbs import OK, Endpoint, pair, pattern

pytestmark = pytest.mark.differs_on_rxe("rxe has no implicit regions, and its pages are not marked dirty")

PAGE = 4096
ODP = e.IBV_ACCESS_ON_DEMAND
ALL = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC | ODP)
ACCESS_ERR, LOCAL_ERR = e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_LOC_PROT_ERR
NO_TIMER = {"timeout": 0, "access": ALL & ~ODP}

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
PROT_NONE = 0
MAP_FIXED, MADV_DONTNEED, MADV_PAGEOUT = 16, 4, 21
RW = mmap.PROT_READ | mmap.PROT_WRITE


def call(name, *args):
    if getattr(libc, name)(*args) == -1:
        raise OSError(ctypes.get_errno(), name)


class Range:
    """Anonymous memory at an address of its own, that can be unmapped in parts."""

    def __init__(self, length, prot=RW, addr=None, fd=-1, shared=False):
        flags = (MAP_FIXED if addr else 0) | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
        flags |= mmap.MAP_ANONYMOUS if fd < 0 else 0
        self.length = length
        self.addr = libc.mmap(addr, length, prot, flags, fd, 0)
        assert self.addr != ctypes.c_void_p(-1).value

    def read(self, off, length):
        return ctypes.string_at(self.addr + off, length)

    def write(self, off, data):
        ctypes.memmove(self.addr + off, data, len(data))

    def advise(self, advice=MADV_DONTNEED, off=0, length=None):
        call("madvise", ctypes.c_void_p(self.addr + off), ctypes.c_size_t(length or self.length - off), advice)

    def unmap(self, off=0, length=None):
        call("munmap", ctypes.c_void_p(self.addr + off), ctypes.c_size_t(length or self.length - off))

    def protect(self, prot, off=0, length=None):
        call("mprotect", ctypes.c_void_p(self.addr + off), ctypes.c_size_t(length or self.length - off), prot)


@pytest.fixture(params=["explicit", "implicit"])
def memory(request, ends):
    """For both ends, 1 MiB and a region that it is in."""
    found = []
    for end in ends:
        place = Range(1 << 20)
        if request.param == "implicit":
            mr = MR(end.pd, 0, ALL, implicit=True)
        else:
            mr = MR(end.pd, place.length, ALL, address=place.addr)
        found.append((place, mr))
    yield found
    for place, mr in found:
        mr.close()
        place.unmap()


def reconnect(ends):
    for end in ends:
        end.to_state(e.IBV_QPS_RESET)
        while end.cq.poll(1)[0]:
            pass
    ends[0].connect(ends[1], **NO_TIMER)
    ends[1].connect(ends[0], **NO_TIMER)


def rdma(end, opcode, local, remote, off, length, ends=None):
    """One RDMA operation between (Range, MR)s at the same offset; its status."""
    place, mr = local
    wr = SendWR(opcode=opcode, num_sge=1, sg=[SGE(place.addr + off, length, mr.lkey)])
    wr.set_wr_rdma(remote[1].rkey, remote[0].addr + off)
    end.qp.post_send(wr)
    status = end.done()
    if status != OK and ends:
        reconnect(ends)
    return status


def write(ends, memory, off, length):
    return rdma(ends[0], e.IBV_WR_RDMA_WRITE, memory[0], memory[1], off, length, ends)


def read(ends, memory, off, length):
    return rdma(ends[0], e.IBV_WR_RDMA_READ, memory[0], memory[1], off, length, ends)


def faults(end):
    with open(f"/sys/class/infiniband/{end.dev}/ports/1/hw_counters/page_faults") as f:
        return int(f.read())


def test_absent_pages_come(ends, memory):
    """Each operation, into and out of pages that are not there, in one packet and in many."""
    (here, _), (there, _) = memory
    before = faults(ends[0]), faults(ends[1])
    for n, length in enumerate((1, 100, PAGE, 5 * PAGE + 7, 300000)):
        off = 3000 * n
        data = pattern(length, length)
        here.write(off, data)
        there.advise()
        assert write(ends, memory, off, length) == OK
        assert there.read(off, length) == data
        here.advise()
        assert read(ends, memory, off, length) == OK
        assert here.read(off, length) == data
        there.advise()
        assert read(ends, memory, off, length) == OK
        assert here.read(off, length) == bytes(length)
    assert faults(ends[0]) > before[0] and faults(ends[1]) > before[1]


def test_messages(ends, memory):
    """SEND between absent buffers, many at once, with pages that go all the time."""
    a, b = ends
    (here, mr_a), (there, mr_b) = memory
    size = 3 * PAGE + 100
    for turn in range(10):
        for i in range(8):
            here.write(i * 16384, pattern(size, f"{turn} {i}"))
            b.recv(sgl=[(there.addr - mr_b.buf + i * 16384, size)], mr=mr_b, wr_id=i)
        there.advise()
        if turn % 2:
            # Written back, so that the content stays; without swap it stays as well.
            here.advise(MADV_PAGEOUT)
        for i in range(8):
            a.send(sgl=[(here.addr - mr_a.buf + i * 16384, size)], mr=mr_a)
            if i == 4:
                there.advise(off=6 * 16384)
        assert [wc.status for wc in a.poll(8)] == [OK] * 8
        assert [(wc.status, wc.byte_len) for wc in b.poll(8)] == [(OK, size)] * 8
        for i in range(8):
            assert there.read(i * 16384, size) == pattern(size, f"{turn} {i}")


def test_unreliable_connections(bed):
    """What nobody would send again waits for its pages as well, sent from such and received into such."""
    size = 3 * PAGE + 100
    access = {"access": ALL & ~ODP & ~e.IBV_ACCESS_REMOTE_READ & ~e.IBV_ACCESS_REMOTE_ATOMIC}
    with pair(bed.h1.dev, bed.h2.dev, kind=e.IBV_QPT_UC, connect=access) as (a, b):
        here, there = Range(1 << 20), Range(1 << 20)
        mr_a, mr_b = (MR(end.pd, 1 << 20, ALL, address=place.addr) for end, place in ((a, here), (b, there)))
        before = faults(b)
        for n in range(8):
            off = n * 16384
            here.write(off, pattern(size, n))
            there.advise()
            if n % 2:
                here.advise(MADV_PAGEOUT)
                b.recv()
                a.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, sgl=[(here.addr - mr_a.buf + off, size)], mr=mr_a,
                       remote=(there.addr + off, mr_b.rkey))
            else:
                b.recv(sgl=[(there.addr - mr_b.buf + off, size)], mr=mr_b)
                a.send(sgl=[(here.addr - mr_a.buf + off, size)], mr=mr_a)
            assert (a.done(), b.done()) == (OK, OK)
            assert there.read(off, size) == pattern(size, n)
        assert faults(b) > before
        for thing in (mr_a, mr_b):
            thing.close()
        here.unmap()
        there.unmap()


def test_datagrams_for_others_go_on(bed):
    """Datagrams for two queue pairs travel in one buffer, and only one of the two waits for its pages."""
    count, size = 16, 200
    with Endpoint(bed.h1.dev) as x, Endpoint(bed.h2.dev) as y:
        a, b, c = Ud(x), Ud(y), Ud(y)
        place = Range(1 << 20)
        mr = MR(y.pd, place.length, ALL, address=place.addr)
        data = [pattern(size, n) for n in range(count)]
        x.mr.write(b"".join(data), count * size, 0)
        address = a.address(b)
        for n in range(0, count, 2):
            b.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(place.addr + n * PAGE, GRH + size, mr.lkey)]))
            c.recv(n * 1024, GRH + size)
        place.advise()
        works = [a.work(address, (b, c)[n % 2], size, off=n * size, imm=n) for n in range(count)]
        for work, following in zip(works, works[1:]):
            work.next_wr = following
        before = faults(y)
        a.qp.post_send(works[0])
        assert [wc.status for wc in x.poll(count)] == [OK] * count
        assert sorted(wc.imm_data for wc in y.poll(count)) == list(range(count))
        # The core keeps what it has read of the counters for 10 ms.
        wait_until(lambda: faults(y) > before, 10, "no page was absent")
        for n in range(0, count, 2):
            assert place.read(n * PAGE + GRH, size) == data[n]
            assert y.mr.read(size, n * 1024 + GRH) == data[n + 1]
        address.close()
        mr.close()
        for qp in (a, b, c):
            qp.close()
        place.unmap()


def test_atomics(ends, memory):
    """Atomics and their results in absent pages."""
    a, _ = ends
    (here, mr_a), (there, mr_b) = memory
    there.write(8, (5).to_bytes(8, "little"))
    for i in range(3):
        here.advise()
        wr = SendWR(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, num_sge=1, sg=[SGE(here.addr + 16, 8, mr_a.lkey)])
        wr.set_wr_atomic(mr_b.rkey, there.addr + 8, 10)
        a.qp.post_send(wr)
        assert a.done() == OK
        assert int.from_bytes(here.read(16, 8), "little") == 5 + 10 * i
    there.advise()
    wr.set_wr_atomic(mr_b.rkey, there.addr + 8, 10)
    a.qp.post_send(wr)
    assert a.done() == OK
    assert int.from_bytes(there.read(8, 8), "little") == 10


def test_holes(ends, memory):
    """What is not mapped is refused, at both ends and for each direction; what is around it is not."""
    (here, mr_a), (there, mr_b) = memory
    for place in (here, there):
        place.write(0, bytes(1 << 20))
    there.unmap(PAGE, PAGE)
    here.unmap(8 * PAGE, PAGE)
    for operation in (write, read):
        assert operation(ends, memory, PAGE + 5, 10) == ACCESS_ERR
        assert operation(ends, memory, PAGE - 5, 10) == ACCESS_ERR
        assert operation(ends, memory, 0, 4 * PAGE) == ACCESS_ERR
        assert operation(ends, memory, 8 * PAGE + 5, 10) == LOCAL_ERR
        assert operation(ends, memory, 7 * PAGE, 3 * PAGE) == LOCAL_ERR
        assert operation(ends, memory, 0, PAGE) == OK
        assert operation(ends, memory, 2 * PAGE, 6 * PAGE) == OK
    a, b = ends
    b.recv(sgl=[(there.addr - mr_b.buf + PAGE, 100)], mr=mr_b)
    a.send(0, 100)
    assert b.done() == LOCAL_ERR
    assert a.done() == e.IBV_WC_REM_OP_ERR
    reconnect(ends)
    # The hole is filled: the same access works.
    for place, off in ((there, PAGE), (here, 8 * PAGE)):
        Range(PAGE, addr=place.addr + off)
        assert write(ends, memory, off, PAGE) == OK


def test_read_only(ends, memory):
    """Pages that the program may only read are refused to writers, and given to readers."""
    (here, _), (there, _) = memory
    there.write(0, b"r" * PAGE)
    there.protect(mmap.PROT_READ)
    for _ in range(2):
        assert write(ends, memory, 0, 100) == ACCESS_ERR
        assert read(ends, memory, 0, PAGE) == OK
        assert here.read(0, PAGE) == b"r" * PAGE
        assert write(ends, memory, PAGE, 100) == ACCESS_ERR
    there.protect(RW)
    assert write(ends, memory, PAGE, 100) == OK
    # After it was written to, too.
    there.protect(mmap.PROT_READ)
    assert write(ends, memory, PAGE, 100) == ACCESS_ERR
    there.protect(PROT_NONE)
    assert read(ends, memory, 0, 100) == ACCESS_ERR
    there.protect(RW)


def test_the_mapping_changes(ends, memory):
    """Other memory at the same address is what is used from then on."""
    (here, _), (there, _) = memory
    for i in range(5):
        Range(1 << 20, addr=there.addr)
        there.write(0, bytes([i + 1]) * 100000)
        assert read(ends, memory, 0, 100000) == OK
        assert here.read(0, 100000) == bytes([i + 1]) * 100000


def test_fork(ends, memory):
    """After a fork the child keeps what was there, the parent sees what the peer writes."""
    (here, _), (there, _) = memory
    there.write(0, b"old" * 1000)
    here.write(0, b"new" * 1000)
    assert read(ends, memory, 8192, 100) == OK
    assert write(ends, memory, 16384, 100) == OK
    (start, go), (result, say) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(start, 1)
        os.write(say, there.read(0, 3))
        os._exit(0)
    assert write(ends, memory, 0, 3000) == OK
    assert there.read(0, 3000) == b"new" * 1000
    os.write(go, b"x")
    assert os.read(result, 3) == b"old"
    assert os.waitpid(child, 0)[1] == 0
    for fd in (start, go, result, say):
        os.close(fd)


def test_a_file_keeps_what_was_written(ends):
    """What a peer wrote to a mapped file is in the file, for whoever opens it."""
    a, b = ends
    fd = os.memfd_create("odp")
    os.ftruncate(fd, 16 * PAGE)
    place = Range(16 * PAGE, fd=fd, shared=True)
    with MR(b.pd, 16 * PAGE, ALL, address=place.addr) as mr:
        data = pattern(10 * PAGE, "file")
        a.mr.write(data, len(data), 0)
        a.write(0, len(data), (place.addr + 100, mr.rkey))
        assert a.done() == OK
        place.advise(MADV_PAGEOUT)
        assert os.pread(fd, len(data), 100) == data
        # The file gets shorter: what is beyond its end is a hole.
        os.ftruncate(fd, PAGE)
        a.write(0, 100, (place.addr + 2 * PAGE, mr.rkey))
        assert a.done() == ACCESS_ERR
        reconnect(ends)
        a.write(0, 100, (place.addr, mr.rkey))
        assert a.done() == OK
    place.unmap()
    os.close(fd)


def test_window(ends):
    """A memory window on memory that is paged."""
    a, b = ends
    place = Range(8 * PAGE)
    with MR(b.pd, 8 * PAGE, ALL | e.IBV_ACCESS_MW_BIND, address=place.addr) as mr:
        mw = MW(b.pd, e.IBV_MW_TYPE_2)
        wr = SendWR(opcode=e.IBV_WR_BIND_MW, num_sge=0, sg=None)
        wr.set_bind_wr(mw, MWBindInfo(mr, place.addr + PAGE, 2 * PAGE, e.IBV_ACCESS_REMOTE_WRITE))
        b.qp.post_send(wr)
        assert b.done() == OK
        a.mr.write(b"w" * 2 * PAGE, 2 * PAGE, 0)
        a.write(0, 2 * PAGE, (place.addr + PAGE, wr.rkey))
        assert a.done() == OK
        assert place.read(0, 4 * PAGE) == bytes(PAGE) + b"w" * 2 * PAGE + bytes(PAGE)
        mw.close()
    place.unmap()


def test_advise(ends, memory):
    """Advice brings pages in, so that nothing faults; what cannot be is said if one waits for it."""
    a, b = ends
    (here, mr_a), (there, mr_b) = memory
    flush = 1
    fetch, fetch_write, present = (e._IBV_ADVISE_MR_ADVICE_PREFETCH, e._IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                                   e._IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)

    def advise(advice, flags, off, length, key=None, end=b, place=there, mr=mr_b):
        # librxe has no function for it.
        uverbs.advise_mr(end.ctx, end.pd.handle, advice, flags, [(place.addr + off, length, key or mr.lkey)])

    here.write(0, bytes(300000))
    write(ends, memory, 0, 300000)
    for advice, prepare in ((fetch_write, there.advise), (present, lambda: there.write(0, bytes(300000)))):
        there.advise()
        prepare()
        advise(advice, flush, 0, 300000)
        before = faults(b)
        assert write(ends, memory, 0, 300000) == OK
        assert faults(b) == before
    advise(fetch, 0, 0, 1 << 20)
    advise(present, flush, 0, 1 << 20)
    there.unmap(PAGE, PAGE)
    for advice, code in ((fetch, errno.EFAULT), (fetch_write, errno.EFAULT), (present, None)):
        advise(advice, 0, 0, 1 << 20)
        refused(code, advise, advice, flush, 0, 1 << 20)
    refused(errno.ENOENT, advise, fetch, flush, 0, 100, key=0xffffff00)
    refused(errno.EINVAL, advise, fetch, flush, 0, 100, key=b.mr.lkey)
    refused(errno.EOPNOTSUPP, advise, 77, flush, 0, 100)
    refused(errno.EINVAL, advise, fetch, 2, 0, 100)
    with PD(b.ctx) as pd, MR(pd, PAGE, ALL, address=there.addr) as foreign, \
            MR(b.pd, PAGE, e.IBV_ACCESS_REMOTE_READ | ODP, address=there.addr) as reader:
        refused(errno.ENOENT, advise, fetch, flush, 0, 100, key=foreign.lkey)
        refused(errno.EPERM, advise, fetch_write, flush, 0, 100, key=reader.lkey)
        refused(errno.EINVAL, advise, fetch, flush, 0, PAGE + 1, key=reader.lkey)
        advise(fetch, flush, 0, PAGE, key=reader.lkey)
    Range(PAGE, addr=there.addr + PAGE)


def refused(code, call, *args, **kw):
    if code is None:
        call(*args, **kw)
        return
    with pytest.raises(OSError) as info:
        call(*args, **kw)
    assert info.value.errno == code, f"{info.value}: not {errno.errorcode[code]}"


def test_registration_refused(ends):
    """Nothing needs to be mapped to be registered, but ranges and rights have to make sense."""
    _, b = ends
    MR(b.pd, 1 << 40, ALL, address=PAGE).close()
    for length, access, addr in ((0, ALL, PAGE), (PAGE, e.IBV_ACCESS_REMOTE_WRITE | ODP, PAGE),
                                 (2 * PAGE, ALL, 2**64 - PAGE),
                                 (PAGE, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_HUGETLB, PAGE)):
        with pytest.raises(Exception):
            MR(b.pd, length, access, address=addr)


def test_caps(ends):
    """What the device says of itself."""
    caps = ends[0].ctx.query_device_ex().odp_caps
    assert caps.general_caps == e.IBV_ODP_SUPPORT | e.IBV_ODP_SUPPORT_IMPLICIT
    for bit in ("SEND", "RECV", "WRITE", "READ", "ATOMIC", "SRQ_RECV"):
        assert caps.rc_odp_caps & getattr(e, f"IBV_ODP_SUPPORT_{bit}"), bit
    assert caps.uc_odp_caps == (e.IBV_ODP_SUPPORT_SEND | e.IBV_ODP_SUPPORT_RECV | e.IBV_ODP_SUPPORT_SRQ_RECV |
                                e.IBV_ODP_SUPPORT_WRITE)
    assert caps.ud_odp_caps == e.IBV_ODP_SUPPORT_SEND | e.IBV_ODP_SUPPORT_RECV | e.IBV_ODP_SUPPORT_SRQ_RECV


def test_gone_with_the_program(bed):
    """A program that ends with faults and work under way leaves nothing."""
    for _ in range(5):
        child = os.fork()
        if not child:
            with pair(bed.h1.dev, bed.h2.dev, connect=NO_TIMER) as (a, b):
                place = Range(1 << 24)
                mr = MR(b.pd, 1 << 24, ALL, address=place.addr)
                for i in range(16):
                    a.write(0, 65536, (place.addr + i * 1000000, mr.rkey))
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


UFFDIO_API, UFFDIO_REGISTER, USERFAULTFD, MISSING = 0xc018aa3f, 0xc020aa00, 323, 1


def program_of_pages_that_never_come(bed, say, ends_well):
    """A program whose userfaultfd nobody serves: a message, and advice, wait for its pages. It says so on `say`. With
    `ends_well` it gives everything back by itself; else it waits to be killed, its userfaultfd the first that it opened,
    so the last that is closed."""
    uffd = libc.syscall(USERFAULTFD, os.O_CLOEXEC)
    assert uffd >= 0
    with pair(bed.h1.dev, bed.h2.dev, connect=NO_TIMER) as (a, b):
        assert uffd < b.ctx.cmd_fd
        place, other = Range(1 << 20), Range(1 << 20)
        fcntl.ioctl(uffd, UFFDIO_API, struct.pack("=QQQ", 0xaa, 0, 0))
        fcntl.ioctl(uffd, UFFDIO_REGISTER, struct.pack("=QQQQ", place.addr, place.length, MISSING, 0))
        before = faults(b)
        mr = MR(b.pd, place.length, ALL, address=place.addr)
        a.write(0, 64, (place.addr, mr.rkey))
        wait_until(lambda: faults(b) > before, 30)
        prefetch, background = e._IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0
        uverbs.advise_mr(b.ctx, b.pd.handle, prefetch, background, [(place.addr + 8 * PAGE, 64, mr.lkey)])
        # Both have been asked for.
        for _ in range(2):
            assert len(os.read(uffd, 32)) == 32
        # Whoever else gives advice is not held up.
        with PD(b.ctx) as pd, MR(pd, other.length, ALL, address=other.addr) as plain:
            uverbs.advise_mr(b.ctx, pd.handle, prefetch, background, [(other.addr, PAGE, plain.lkey)])
            there = (ctypes.c_ubyte * 1)()

            def is_there():
                call("mincore", ctypes.c_void_p(other.addr), ctypes.c_size_t(PAGE), there)
                return there[0] & 1

            wait_until(is_there, 30)
        if not ends_well:
            os.write(say, b"x")
            signal.pause()
        mr.close()
    os.write(say, b"x")


@pytest.mark.parametrize("ends_well", [True, False], ids=["closed", "killed"])
def test_pages_that_never_come(bed, ends_well):
    """Nobody waits for a page that only the end of the program brings: it ends, and so do its devices and the driver."""
    ready, say = os.pipe()
    child = os.fork()
    if not child:
        try:
            program_of_pages_that_never_come(bed, say, ends_well)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(say)
    try:
        assert os.read(ready, 1) == b"x"
        if not ends_well:
            # The device goes while the program has it.
            bed.h2.delete_link()
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(ready)
    status = wait_until(lambda: os.waitpid(child, os.WNOHANG)[0] and (True, ), 30, "the program stays")
    assert status
    if not ends_well:
        bed.h1.delete_link()
        run(["modprobe", "-r", module_of(DRIVER)])
        for host in bed.hosts:
            host.add_link()
        for host in bed.hosts:
            host.gid_index(host.ip4)
            bed.wait_active(host)
