# SPDX-License-Identifier: GPL-2.0
# guest: timeout=300 mem=2048
"""Extended reliable connections: domains, initiators, targets and their shared receive queues.

librxe has no functions for them, so all of it is done by commands and by hand in the rings; the programs of a test are
files of their own, most of them in one process.
"""

import contextlib
import errno
import gc
import itertools
import json
import os
import random
import signal
import struct
import time

import pytest

import uverbs
from capture import capture
from datagram import raw_gid
from rings import RC, SRQ_LIMIT, XRC_INI, XRC_TGT, Uverbs, destination
from test_memory import PAGE, Pages, fails
from testbed import Testbed, run, wait_until

pytestmark = pytest.mark.differs_on_rxe("has no XRC")

OK, LOC_QP_OP, FLUSHED, REM_ACCESS, REM_OP, RNR = 0, 2, 5, 10, 11, 13
WRITE, WRITE_IMM, SEND, SEND_IMM, READ, COMPARE_SWAP, FETCH_ADD, FLUSH, ATOMIC_WRITE = 0, 1, 2, 3, 4, 5, 6, 14, 15
ACCESS, ON_DEMAND = 1 | 2 | 4 | 8 | 256, 64
STATE, ACCESS_FLAGS, PKEY, PORT, AV, MTU, TIMEOUT, RETRY, RNR_RETRY, RQ_PSN, MAX_RD, MIN_RNR, SQ_PSN, MAX_DEST_RD, DEST_QPN = (
    1 << n for n in (0, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 20))
INIT, RTR, RTS, ERR = 1, 2, 3, 6
QP_FATAL, QP_ACCESS_ERR, SRQ_ERR, SRQ_LIMIT_REACHED, LAST_WQE = 1, 3, 14, 15, 16
ROOM = 4 * PAGE


@pytest.fixture(scope="module")
def bed():
    with Testbed(mtu=4200) as b:
        before = books(b)
        yield b
        gc.collect()  # What maps a ring keeps its file open.
        wait_until(lambda: books(b) == before, 20, lambda: f"left: {books(b)}, at first: {before}")


def books(bed):
    """What the devices have of each kind of object."""
    return [json.loads(run(["rdma", "-j", "resource", "show", h.dev]).out)[0] for h in bed.hosts]


class Program:
    """One opening of a device, with a domain of its own, a completion queue and memory."""

    def __init__(self, host, access=ACCESS):
        self.u, self.memory = Uverbs(host.dev), Pages(ROOM)
        self.pd = self.u.alloc_pd()
        self.cq, _, info = self.u.create_cq(64)
        self.completions = self.u.ring(info)
        self.mr, self.lkey, self.rkey = uverbs.reg_mr(self.u, self.pd, self.memory.addr, ROOM, self.memory.addr, access)

    def sge(self, off, length):
        return self.memory.addr + off, length, self.lkey

    def at(self, off=0):
        return self.memory.addr + off, self.rkey

    def done(self, timeout=20):
        return wait_until(self.completions.completion, timeout, "no completion")

    def events(self, *wanted):
        """These events come, each once, in any order."""
        seen = []
        wait_until(lambda: seen.extend(self.u.events()) or len(seen) >= len(wanted), 20, lambda: f"{seen} of {wanted}")
        assert sorted(kind for _, kind in seen) == sorted(wanted)


class Queue:
    """A shared receive queue of a program."""

    def __init__(self, program, xrcd, max_wr=16):
        self.program = program
        self.handle, self.number, info = program.u.create_xsrq(program.pd, xrcd, program.cq, max_wr)
        self.ring = program.u.ring(info)

    def recv(self, off=0, length=PAGE, wr_id=0):
        self.ring.post_recv(wr_id, [self.program.sge(off, length)])


class Pair:
    """An initiator at the first host, a target at the second, connected."""

    def __init__(self, bed, **connect):
        self.sender, self.taker = Program(bed.h1), Program(bed.h2)
        self.xrcd = self.taker.u.open_xrcd()
        s, t = self.sender, self.taker
        self.ini, self.ini_number, self.caps = s.u.create_qp(s.pd, s.cq, kind=XRC_INI, send=(16, 4), inline=64)
        self.sends = s.u.ring(s.u.qp_rings[1])
        self.tgt, self.tgt_number, _ = t.u.create_qp(self.xrcd, 0, kind=XRC_TGT)
        self.connect(bed, **connect)

    def connect(self, bed, rnr_retry=7, retry=7, access=ACCESS, psn=0xfffffa):
        index = [h.gid_index(h.ip4) for h in bed.hosts]
        gids = [raw_gid(h.ip4) for h in bed.hosts]
        to_target = destination(gids[1], index[0])
        to_initiator = destination(gids[0], index[1])
        ini, tgt = (self.sender.u, self.ini), (self.taker.u, self.tgt)
        for u, qp in (ini, tgt):
            u.modify_qp(qp, STATE | PKEY | PORT | ACCESS_FLAGS, state=INIT, port=1, access=access)
        path = AV | MTU | DEST_QPN | RQ_PSN
        # What each of them has no use for is not asked for, and is let through by the core.
        ini[0].modify_qp(ini[1], STATE | path, to=to_target, state=RTR, path_mtu=3, dest_qpn=self.tgt_number, rq_psn=7)
        tgt[0].modify_qp(tgt[1], STATE | path | MAX_DEST_RD | MIN_RNR, to=to_initiator, state=RTR, path_mtu=3,
                         dest_qpn=self.ini_number, rq_psn=psn, max_dest_rd=4, min_rnr_timer=1)
        ini[0].modify_qp(ini[1], STATE | TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD, state=RTS, timeout=14, retry=retry,
                         rnr_retry=rnr_retry, sq_psn=psn, max_rd=4)
        tgt[0].modify_qp(tgt[1], STATE | TIMEOUT | SQ_PSN, state=RTS, timeout=14, sq_psn=7)

    def post(self, opcode, srq, off=0, length=0, remote=None, operands=None, **kw):
        if operands is None:
            operands = struct.pack("QI", *remote) if remote else b""
        self.sends.post_send(opcode, [self.sender.sge(off, length)] if length else [], operands=operands,
                             srq=getattr(srq, "number", srq), **kw)
        self.sender.u.doorbell(self.ini)

    def does(self, *args, **kw):
        """Posts, and returns the status of the completion."""
        self.post(*args, **kw)
        return self.sender.done().status

    def sees(self, queue, length, opcode=128):
        """The receive completes at the queue's completion queue, in the name of the target."""
        wc = queue.program.done()
        assert (wc.status, wc.opcode, wc.byte_len) == (OK, opcode, length), wc
        assert (wc.qp_num, wc.src_qp) == (self.tgt_number, self.ini_number)
        return wc

    def state(self):
        return self.taker.u.query_qp(self.tgt)[0]

    def close(self):
        self.sender.u.__exit__()
        self.taker.u.__exit__()


@contextlib.contextmanager
def pair(bed, **kw):
    p = Pair(bed, **kw)
    try:
        yield p
    finally:
        p.close()


@pytest.fixture
def two(bed):
    with pair(bed) as p:
        yield p


@pytest.fixture
def inode(tmp_path):
    """A file that stands for a domain."""
    with open(tmp_path / "domain", "w", encoding="ascii") as f:
        yield f.fileno()


# Domains.

def test_domains(bed, inode):
    """A domain of its own, or one that all who open the same file share."""
    with Uverbs(bed.h1.dev) as u, Uverbs(bed.h1.dev) as v:
        assert struct.unpack_from("I", u.call("query_device", "", answer=176), 60)[0] & 1 << 20
        own = [u.open_xrcd() for _ in range(3)]
        fails(errno.EAGAIN, u.open_xrcd, inode)
        fails(errno.EBADF, u.open_xrcd, 999)
        first = u.open_xrcd(inode, os.O_CREAT)
        fails(errno.EINVAL, v.open_xrcd, inode, os.O_CREAT | os.O_EXCL)
        second = v.open_xrcd(inode)
        # The target is in the domain, not in the program: the other one sees it, also when the first has closed it.
        tgt, number, _ = u.create_qp(first, 0, kind=XRC_TGT)
        fails(errno.EBUSY, u.destroy, "xrcd", first)
        opened = v.open_qp(second, number)
        for wrong in ((own[0], number), (first, number + 1)):
            fails(errno.EINVAL, u.open_qp, *wrong)
        fails(errno.EINVAL, v.open_qp, second, number, XRC_INI)
        u.destroy("qp", tgt)
        u.destroy("xrcd", first)
        assert v.query_qp(opened)[0] == 0
        v.modify_qp(opened, STATE | PKEY | PORT | ACCESS_FLAGS, state=INIT, port=1)
        assert v.query_qp(opened)[0] == INIT
        fails(errno.EBUSY, v.destroy, "xrcd", second)
        v.destroy("qp", opened)
        v.destroy("xrcd", second)
        fails(errno.EAGAIN, v.open_xrcd, inode)
        for xrcd in own:
            u.destroy("xrcd", xrcd)


def test_what_they_are_made_of(two):
    """An initiator has no receive queue and a target none at all; neither takes posts that it has no use for."""
    send_wr, recv_wr, _, recv_sge, inline = two.caps
    assert send_wr >= 16 and inline >= 64 and (recv_wr, recv_sge) == (0, 0)
    s, t = two.sender, two.taker
    assert s.u.qp_rings[0].size == 0 and t.u.qp_rings[0].size == t.u.qp_rings[1].size == 0
    fails(errno.EINVAL, t.u.doorbell, two.tgt)
    # One request in the command itself.
    fails(errno.EINVAL, t.u.doorbell, two.tgt, 1, more=struct.pack("QIIII", 0, 0, SEND, 2, 0).ljust(128, b"\0"))
    queue = Queue(t, two.xrcd)
    # What is for ordinary queue pairs and what is for these do not mix.
    fails(errno.EINVAL, t.u.create_qp, t.pd, t.cq, srq=queue.handle, kind=RC)
    t.u.create_qp(two.xrcd, 0, kind=XRC_TGT, srq=queue.handle)
    fails(errno.EBUSY, t.u.destroy, "cq", t.cq)
    fails(errno.EBUSY, t.u.destroy, "pd", t.pd)
    fails(errno.EBUSY, t.u.destroy, "xrcd", two.xrcd)


# Traffic.

def test_every_operation(bed, two, inode):
    """Through one connection into the queues and the memory of two programs; and what of it is on the wire."""
    first, other = two.taker, Program(bed.h2)
    shared = first.u.open_xrcd(inode, os.O_CREAT)
    tgt, two.tgt_number, _ = first.u.create_qp(shared, 0, kind=XRC_TGT)
    two.tgt = tgt
    two.sender.u.modify_qp(two.ini, STATE, state=0)
    two.connect(bed)
    queues = [Queue(first, shared), Queue(other, other.u.open_xrcd(inode))]
    assert len({q.number for q in queues} | {0}) == 3
    data = random.Random(1).randbytes(ROOM)
    two.sender.memory.write(0, data)
    with capture(bed.h2, bed.h1) as cap:
        for n, queue in enumerate(queues):
            program, off = queue.program, 100 * n
            for opcode, length in ((SEND, 0), (SEND, 7), (SEND_IMM, 1025), (SEND, 3000)):
                queue.recv(wr_id=length)
                assert two.does(opcode, queue, off, length, ex=b"abcd") == OK
                wc = two.sees(queue, length)
                assert wc.wr_id == length and (opcode == SEND or (wc.ex, wc.flags & 2) == (b"abcd", 2))
                assert program.memory.read(0, length) == data[off:off + length]
            assert two.does(WRITE, queue, off, 2500, remote=program.at(5)) == OK
            queue.recv()
            assert two.does(WRITE_IMM, queue, off, 33, remote=program.at(8000), ex=b"wxyz") == OK
            assert two.sees(queue, 33, opcode=129).ex == b"wxyz"
            assert program.memory.read(5, 2500) == data[off:off + 2500]
            assert program.memory.read(8000, 33) == data[off:off + 33]
            assert two.does(READ, queue, 3 * PAGE, 2100, remote=program.at(5)) == OK
            assert two.sender.memory.read(3 * PAGE, 2100) == data[off:off + 2100]
            program.memory.write(PAGE, struct.pack("Q", 40))
            where, rkey = program.at(PAGE)
            for opcode, operand, found, then in ((FETCH_ADD, 2, 40, 42), (COMPARE_SWAP, 42, 42, 99)):
                operands = struct.pack("QQQI", where, operand, 99, rkey)
                assert two.does(opcode, queue, 3 * PAGE, 8, operands=operands) == OK
                assert two.sender.memory.read(3 * PAGE, 8) == struct.pack("Q", found)
                assert program.memory.read(PAGE, 8) == struct.pack("Q", then)
            assert two.does(ATOMIC_WRITE, queue, 0, 8, remote=program.at(PAGE)) == OK
            assert program.memory.read(PAGE, 8) == data[:8]
            flush = struct.pack("QIIBB", where, 0, rkey, 1, 0)
            assert two.does(FLUSH, queue, operands=flush) == OK
            two.sender.memory.write(3 * PAGE, data[3 * PAGE:])
    assert first.completions.completion() is None and other.completions.completion() is None
    packets = cap.checked()
    requests = [p for p in packets if p.qpn == two.tgt_number]
    assert all(p.xrc for p in packets) and all(p.srq is not None for p in requests), cap.listing()
    half = len(requests) // 2
    assert [p.srq for p in requests] == [queues[0].number] * half + [queues[1].number] * half
    assert [(p.name, p.payload) for p in requests[:4]] == [
        ("SEND_ONLY", b""), ("SEND_ONLY", data[:7]), ("SEND_FIRST", data[:1024]), ("SEND_LAST_IMM", data[1024:1025])]
    assert {p.name for p in packets} == {
        "SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_LAST_IMM", "SEND_ONLY", "WRITE_FIRST", "WRITE_MIDDLE", "WRITE_LAST",
        "WRITE_ONLY_IMM", "READ_REQUEST", "READ_RESPONSE_FIRST", "READ_RESPONSE_MIDDLE", "READ_RESPONSE_LAST", "FETCH_ADD",
        "COMPARE_SWAP", "ATOMIC_WRITE", "FLUSH", "READ_RESPONSE_ONLY", "ATOMIC_ACK", "ACK"}, cap.listing()
    assert not cap.tshark_complaints()
    # A key of one program with the queue of the other.
    assert two.does(WRITE, queues[0], 0, 8, remote=other.at()) == REM_ACCESS
    assert two.state() == ERR
    other.u.__exit__()


def test_many_at_once(two):
    """Messages for many queues in one train: each completes at its own, and each completion queue that waits is told."""
    queues = [Queue(two.taker, two.xrcd) for _ in range(8)]
    order = [random.Random(3).randrange(8) for _ in range(16)]
    for n, which in enumerate(order):
        queues[which].recv(wr_id=n)
    for n, which in enumerate(order):
        two.sends.post_send(SEND, [two.sender.sge(0, 100)], srq=queues[which].number, wr_id=n)
        if n % 4 == 3:
            two.sender.u.doorbell(two.ini)
            assert [two.sender.done().status for _ in range(4)] == [OK] * 4
    # One completion queue here: in the order of the connection.
    assert [two.taker.done().wr_id for _ in order] == list(range(16))


def test_buffers_that_are_paged_on_demand(bed):
    with pair(bed) as p:
        program, lazy = p.taker, Pages(ROOM)
        _, lkey, rkey = uverbs.reg_mr(program.u, program.pd, lazy.addr, ROOM, lazy.addr, ACCESS & ~256 | ON_DEMAND)
        queue = Queue(program, p.xrcd)
        p.sender.memory.write(0, b"lazy" * 500)
        queue.ring.post_recv(1, [(lazy.addr, 2000, lkey)])
        assert p.does(SEND, queue, 0, 2000) == OK
        p.sees(queue, 2000)
        assert p.does(WRITE, queue, 0, 2000, remote=(lazy.addr + PAGE, rkey)) == OK
        assert lazy.read(0, 2000) == lazy.read(PAGE, 2000) == b"lazy" * 500
        assert p.does(READ, queue, PAGE, 2000, remote=(lazy.addr + 2 * PAGE, rkey)) == OK
        assert p.sender.memory.read(PAGE, 2000) == bytes(2000)


# Errors.

def test_a_queue_that_is_none_of_the_domain(bed):
    """No such number, that of an ordinary queue, of another domain, of a queue that is gone: refused, and the target's
    maker is told. (Of who opened it later the core keeps no file for events.)"""
    for what in ("none", "zero", "ordinary", "foreign", "gone"):
        with pair(bed) as p:
            t = p.taker
            good = Queue(t, p.xrcd)
            good.recv()
            number = {"none": 0xffffff, "zero": 0}.get(what)
            if what == "ordinary":
                number = t.u.create_srq(t.pd)[3]
            elif what == "foreign":
                number = Queue(t, t.u.open_xrcd()).number
            elif what == "gone":
                gone = Queue(t, p.xrcd)
                number = gone.number
                t.u.destroy("srq", gone.handle)
            opened = t.u.open_qp(p.xrcd, p.tgt_number)
            assert p.does(SEND, number, 0, 8) == REM_ACCESS, what
            assert p.state() == t.u.query_qp(opened)[0] == ERR
            t.events(QP_ACCESS_ERR, LAST_WQE)
            assert t.completions.completion() is None and good.ring.consumer == 0
            # From RESET it can be used again.
            for u, qp in ((p.sender.u, p.ini), (t.u, opened)):
                u.modify_qp(qp, STATE, state=0)
            p.connect(bed)
            assert p.does(SEND, good, 0, 8) == OK
            p.sees(good, 8)


def test_receiver_not_ready(bed):
    with pair(bed, rnr_retry=0) as p:
        queue = Queue(p.taker, p.xrcd)
        assert p.does(SEND, queue, 0, 8) == RNR
        assert p.state() == RTS
    with pair(bed) as p:
        queue = Queue(p.taker, p.xrcd)
        p.post(SEND, queue, 0, 8)
        time.sleep(0.05)
        queue.recv()
        assert p.sender.done().status == OK
        p.sees(queue, 8)


def test_a_broken_queue(bed):
    """A ring with an index beyond its end: the queue fails, and with it the target."""
    with pair(bed) as p:
        queue, good = Queue(p.taker, p.xrcd), Queue(p.taker, p.xrcd)
        queue.ring.producer = queue.ring.mask + 9
        assert p.does(SEND, queue, 0, 8) == REM_OP
        p.taker.events(SRQ_ERR, QP_FATAL, LAST_WQE)
        assert p.state() == ERR
        good.recv()  # The other one is well.
        assert p.taker.u.query_srq(good.handle)


def test_limit(two):
    """The event of the queue that a message took from, and of no other."""
    queues = [Queue(two.taker, two.xrcd) for _ in range(2)]
    for queue in queues:
        for _ in range(3):
            queue.recv()
        two.taker.u.modify_srq(queue.handle, SRQ_LIMIT, limit=3)
    assert two.does(SEND, queues[1], 0, 8) == OK
    two.taker.events(SRQ_LIMIT_REACHED)
    assert [two.taker.u.query_srq(q.handle)[2] for q in queues] == [3, 0]
    two.taker.u.destroy("srq", queues[1].handle)
    assert two.does(SEND, queues[0], 0, 8) == OK
    two.taker.events(SRQ_LIMIT_REACHED)


def test_bad_numbers_in_a_wqe(two):
    """A queue number of more than 24 bits never gets out."""
    queue = Queue(two.taker, two.xrcd)
    queue.recv()
    assert two.does(SEND, queue.number | 1 << 24, 0, 8) == LOC_QP_OP
    assert two.taker.completions.completion() is None and two.state() == RTS


# The end.

def test_in_every_order(bed):
    """Whatever is destroyed first, with messages under way: what is needed is busy, the rest goes, and nothing is left."""
    kinds = ("ini", "tgt", "srq", "cq", "pd", "xrcd")
    needed_by = {"xrcd": {"tgt", "srq"}, "cq": {"srq"}, "pd": {"srq"}}
    orders = list(itertools.permutations(kinds))
    random.Random(5).shuffle(orders)
    for order in orders[:6]:
        with pair(bed, rnr_retry=3, retry=1) as p:
            t, queue = p.taker, Queue(p.taker, p.xrcd)
            uverbs.dereg_mr(t.u, t.mr)
            for _ in range(4):
                queue.ring.post_recv(0, [])
            for _ in range(8):
                p.post(SEND, queue)
            left = {"ini": (p.sender.u, "qp", p.ini), "tgt": (t.u, "qp", p.tgt), "srq": (t.u, "srq", queue.handle),
                    "cq": (t.u, "cq", t.cq), "pd": (t.u, "pd", t.pd), "xrcd": (t.u, "xrcd", p.xrcd)}
            todo = list(order)
            while todo:
                kind = todo.pop(0)
                u, name, handle = left[kind]
                if needed_by.get(kind, set()) & left.keys():
                    fails(errno.EBUSY, u.destroy, name, handle)
                    todo.append(kind)
                else:
                    u.destroy(name, handle)
                    del left[kind]


def test_death_of_a_program(bed, inode):
    """The program that made the target and one of its queues is killed in the middle of a stream; the connection lives
    on for another program that has opened it."""
    with pair(bed) as p:
        maker, keeper = p.taker, Program(bed.h2)
        mine = keeper.u.open_xrcd(inode, os.O_CREAT)
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            try:
                doomed = Program(bed.h2)
                xrcd = doomed.u.open_xrcd(inode)
                number = doomed.u.create_qp(xrcd, 0, kind=XRC_TGT)[1]
                queue = Queue(doomed, xrcd, 64)
                for _ in range(40):
                    queue.recv()
                os.write(tell, struct.pack("II", number, queue.number))
                signal.pause()
            finally:
                os._exit(1)
        os.close(tell)
        p.tgt_number, doomed_queue = struct.unpack("II", os.read(told, 8))
        os.close(told)
        p.taker, p.tgt = keeper, keeper.u.open_qp(mine, p.tgt_number)
        p.sender.u.modify_qp(p.ini, STATE, state=0)
        p.connect(bed)
        queue = Queue(keeper, mine)
        for _ in range(8):
            p.post(SEND, doomed_queue, 0, 2000)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        # Its memory may go before its queue.
        statuses = [p.sender.done().status for _ in range(8)]
        assert set(statuses) <= {OK, REM_ACCESS, REM_OP, FLUSHED}, statuses
        if p.state() == ERR:
            for u, qp in ((p.sender.u, p.ini), (keeper.u, p.tgt)):
                u.modify_qp(qp, STATE, state=0)
            p.connect(bed)
        queue.recv()
        assert p.does(SEND, queue, 0, 8) == OK
        p.sees(queue, 8)
        assert p.does(SEND, doomed_queue, 0, 8) == REM_ACCESS
        maker.u.__exit__()
