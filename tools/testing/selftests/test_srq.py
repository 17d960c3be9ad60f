# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 smp=2 mem=3072
"""Shared receive queues: sizes, many queue pairs of both transports, limit, resizing, errors, events."""

import contextlib
import errno
import os
import random
import re
import signal
import time

import pyverbs.enums as e
import pytest
from pyverbs.addr import AH
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SendWR

from perftest import perftest
from rings import Ring, Uverbs
from streamer import stream
from testbed import counters
from verbs import OK, Endpoint, all_good, pair, pattern

LAST_WQE = e.IBV_EVENT_QP_LAST_WQE_REACHED
LIMIT_REACHED = e.IBV_EVENT_SRQ_LIMIT_REACHED
ROOM = 4096


@contextlib.contextmanager
def crowd(bed, count, srq, *, depth=64, connect=None, **opts):
    """count connected pairs; those of the second device take their receives from one queue of srq entries."""
    with contextlib.ExitStack() as stack:
        ends = []
        for dev, own in ((bed.h1.dev, {}), (bed.h2.dev, {"srq": srq})):
            first = Endpoint(dev, length=max(srq, 64) * ROOM, depth=depth, cqe=4 * max(srq, depth), **own, **opts)
            stack.callback(first.close)
            rest = [Endpoint(dev, share=first, depth=depth) for _ in range(count - 1)]
            for end in rest:
                stack.callback(end.close)
            ends.append([first] + rest)
        for a, b in zip(*ends):
            a.connect(b, **(connect or {}))
            b.connect(a, **(connect or {}))
        yield ends


def refused(code, action, *args, **kw):
    """The call fails with this errno."""
    with pytest.raises((OSError, PyverbsRDMAError)) as why:
        action(*args, **kw)
    got = getattr(why.value, "error_code", None) or getattr(why.value, "errno", None)
    assert abs(got) == code, why.value


# Sizes.

@pytest.mark.parametrize("max_wr, max_sge", [(1, 1), (1, 0), (100, 3), (1000, 32)])
def test_sizes(bed, max_wr, max_sge):
    """What is granted is at least what was asked for and at most what the device has; the query says the same."""
    with Uverbs(bed.h1.dev) as u:
        srq, granted, info, _ = u.create_srq(u.alloc_pd(), max_wr, max_sge)
        ring = u.ring(info)
        assert granted[0] >= max_wr and granted[1] == max(max_sge, 1)
        assert ring.mask == granted[0] and 1 << ring.shift >= 40 + 16 * max_sge
        assert u.query_srq(srq) == (*granted, 0)


def test_largest(bed):
    end = Endpoint(bed.h1.dev)
    dev = end.ctx.query_device()
    srq = SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=dev.max_srq_wr, max_sge=dev.max_srq_sge)))
    attr = srq.query()
    assert (attr.max_wr, attr.max_sge) == (dev.max_srq_wr, dev.max_srq_sge)
    srq.close()
    end.close()


def test_numbers_differ(bed):
    with Uverbs(bed.h1.dev) as u:
        pd = u.alloc_pd()
        numbers = [u.create_srq(pd)[3] for _ in range(10)]
        assert len(set(numbers)) == 10 and 0 not in numbers


# Traffic.

@pytest.mark.parametrize("count, messages", [(1, 200), (16, 25), (64, 5)])
def test_many_queue_pairs(bed, count, messages):
    """Messages of all sizes on all connections at once: each takes one receive, and every byte is right."""
    with crowd(bed, count, 256) as (senders, takers):
        a, b = senders[0], takers[0]
        order = [n for n in range(count) for _ in range(messages)]
        random.Random(count).shuffle(order)
        by_number = {t.qp.qp_num: n for n, t in enumerate(takers)}
        for slot in range(256):
            b.recv(slot * ROOM, ROOM, wr_id=slot)
        used, got = [0] * count, [0] * count
        for start in range(0, len(order), 32):
            batch = order[start:start + 32]
            for place, n in enumerate(batch):
                data = message(n, used[n])
                a.mr.write(data, len(data), place * ROOM)
                senders[n].send(place * ROOM, len(data), wr_id=n)
                used[n] += 1
            all_good(a.poll(len(batch)))
            seen = set()
            for wc in b.poll(len(batch)):
                n = by_number[wc.qp_num]
                want = message(n, got[n])
                got[n] += 1
                assert (wc.status, wc.byte_len) == (OK, len(want))
                assert wc.wr_id not in seen, f"receive {wc.wr_id} was used twice"
                seen.add(wc.wr_id)
                assert b.mr.read(len(want), wc.wr_id * ROOM) == want, f"message {got[n]} of connection {n} is changed"
            for slot in seen:
                b.recv(slot * ROOM, ROOM, wr_id=slot)
        assert got == [messages] * count
        b.nothing(0.1)


def message(connection, number):
    return pattern(1 + (connection * 131 + number * 977) % ROOM, connection * 1000 + number)


def test_write_with_immediate_takes_one(bed):
    with crowd(bed, 2, 16) as (senders, takers):
        a, b = senders[0], takers[0]
        for n in range(4):
            b.recv(n * ROOM, ROOM, wr_id=n)
        for n in range(4):
            senders[n % 2].post(e.IBV_WR_RDMA_WRITE_WITH_IMM, 0, 100, remote=b.at(20000), imm=n)
        all_good(a.poll(4))
        got = b.poll(4)
        assert [w.wr_id for w in got] == [0, 1, 2, 3] and all(w.status == OK for w in got)


def test_datagrams_and_connections_together(bed):
    """A UD queue pair and RC ones take from the same queue."""
    with crowd(bed, 2, 32) as (senders, takers):
        a, b = senders[0], takers[0]
        ud = [datagram_qp(a, None), datagram_qp(b, b.srq)]
        route = a.path(b.gid(b.gid_index(4)), a.gid_index(4))
        ah = AH(a.pd, attr=route)
        for n in range(30):
            b.recv(n * ROOM, ROOM, wr_id=n)
        for n in range(10):
            data = pattern(500 + n, n)
            a.mr.write(data, len(data), 0)
            if n % 2:
                senders[n % 4 // 2].send(0, len(data))
            else:
                wr = SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=a.sges(0, len(data)), send_flags=e.IBV_SEND_SIGNALED)
                wr.set_wr_ud(ah, ud[1].qp_num, 0x1234)
                ud[0].post_send(wr)
            assert a.done() == OK
            wc = b.poll()[0]
            head = 0 if n % 2 else 40
            assert (wc.status, wc.wr_id, wc.byte_len) == (OK, n, len(data) + head)
            assert b.mr.read(len(data), n * ROOM + head) == data
        for qp in ud:
            qp.close()
        ah.close()


def datagram_qp(end, srq):
    cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
    attr = QPAttr(port_num=1)
    attr.qkey = 0x1234
    return QP(end.pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=end.cq, rcq=end.cq, srq=srq, cap=cap), attr)


def test_empty_queue_is_not_ready(bed):
    """An empty queue makes the sender wait, and the receive that comes later is used."""
    with crowd(bed, 2, 16, connect={"min_rnr_timer": 1}) as (senders, takers):
        a, b = senders[0], takers[0]
        for n in range(2):
            senders[n].send(0, 8, wr_id=n)
        a.nothing(0.1)
        for n in range(2):
            b.recv(n * ROOM, ROOM, wr_id=n)
        assert sorted(w.wr_id for w in a.poll(2)) == [0, 1]
        all_good(b.poll(2))


def test_receives_on_the_queue_pair_are_refused(bed):
    """A queue pair with a shared queue has none of its own: its size is zero, and there is no ring to map."""
    with Uverbs(bed.h1.dev) as u:
        pd = u.alloc_pd()
        cq, _, _ = u.create_cq()
        srq = u.create_srq(pd)[0]
        handle, _, caps = u.create_qp(pd, cq, srq=srq, recv=(1 << 30, 1 << 30))
        assert caps[1] == 0 and caps[3] == 0
        u.destroy("qp", handle)


def test_domain_of_the_queue(bed):
    """The lists of receives are in the domain of the queue, not in that of the queue pair that takes them."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"timeout": 0}) as (a, b):
        domain = PD(b.ctx)
        mr = MR(domain, ROOM, e.IBV_ACCESS_LOCAL_WRITE)
        srq = SRQ(domain, SrqInitAttr(SrqAttr(max_wr=8, max_sge=1)))
        other = Endpoint(b.dev, share=b)
        b.srq = other.srq = srq
        cap = QPCap(max_send_wr=8, max_send_sge=1)
        b.qp.close()
        b.qp = QP(b.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=b.cq, rcq=b.cq, srq=srq, cap=cap), None)
        a.to_state(e.IBV_QPS_RESET)
        a.connect(b, timeout=0)
        b.connect(a, timeout=0)
        a.mr.write(b"hello", 5, 0)
        b.recv(0, 64, wr_id=1, mr=mr)
        a.send(0, 5)
        assert a.done() == OK and b.done() == OK and mr.read(5, 0) == b"hello"
        b.recv(0, 64, wr_id=2)
        a.send(0, 5)
        assert b.done() == e.IBV_WC_LOC_PROT_ERR and a.done() == e.IBV_WC_REM_OP_ERR
        other.close()
        b.qp.close()
        srq.close()
        mr.close()
        domain.close()
        b.srq = None


# The limit.

def take(sender, taker, count):
    for _ in range(count):
        sender.send(0, 8)
        assert sender.done() == OK and taker.done() == OK


def test_limit_tells_once(bed):
    with crowd(bed, 2, 32) as (senders, takers):
        a, b = senders[0], takers[0]
        for n in range(10):
            b.recv(0, 8)
        b.srq.modify(SrqAttr(srq_limit=5), e.IBV_SRQ_LIMIT)
        assert b.srq.query().srq_limit == 5
        take(a, b, 5)
        assert b.events(0.1) == [] and b.srq.query().srq_limit == 5
        take(senders[1], b, 1)
        assert b.events(5) == [LIMIT_REACHED]
        assert b.srq.query().srq_limit == 0
        take(a, b, 3)
        assert b.events(0.1) == []
        for _ in range(10):
            b.recv(0, 8)
        b.srq.modify(SrqAttr(srq_limit=11), e.IBV_SRQ_LIMIT)
        take(a, b, 1)
        assert b.events(5) == [LIMIT_REACHED]


@pytest.mark.differs_on_rxe("the event comes with the next receive that is taken, which may be never")
def test_limit_that_is_reached_already(bed):
    with crowd(bed, 1, 32) as (_, (b,)):
        b.recv(0, 8)
        b.srq.modify(SrqAttr(srq_limit=2), e.IBV_SRQ_LIMIT)
        assert b.events(5) == [LIMIT_REACHED]
        b.srq.modify(SrqAttr(srq_limit=1), e.IBV_SRQ_LIMIT)
        assert b.events(0.1) == []


def test_limit_taken_back(bed):
    with crowd(bed, 1, 32) as ((a,), (b,)):
        for _ in range(4):
            b.recv(0, 8)
        b.srq.modify(SrqAttr(srq_limit=3), e.IBV_SRQ_LIMIT)
        b.srq.modify(SrqAttr(srq_limit=0), e.IBV_SRQ_LIMIT)
        take(a, b, 4)
        assert b.events(0.1) == []


# Another size.

@pytest.mark.parametrize("sizes", [(200,), (24,), (500, 24, 300, 20)], ids=str)
def test_resize_keeps_what_is_posted(bed, sizes):
    with crowd(bed, 1, 100) as ((a,), (b,)):
        # Not from the beginning of the ring.
        for _ in range(90):
            b.recv(0, 8)
        take(a, b, 90)
        for n in range(20):
            b.recv(n * ROOM, ROOM, wr_id=n)
        done = 0
        for size in sizes:
            take_in_order(a, b, done, 5)
            done += 5
            b.srq.modify(SrqAttr(max_wr=size), e.IBV_SRQ_MAX_WR)
            assert b.srq.query().max_wr >= size
            for n in range(5):
                b.recv(0, ROOM, wr_id=20 + done + n - 5)
        take_in_order(a, b, done, 20 - done)


def take_in_order(a, b, first, count):
    for n in range(first, first + count):
        data = pattern(100, n)
        a.mr.write(data, 100, 0)
        a.send(0, 100)
        assert a.done() == OK
        wc = b.poll()[0]
        assert (wc.wr_id, wc.status) == (n, OK)
        if n < 20:
            assert b.mr.read(100, n * ROOM) == data


def test_resize_below_what_is_posted(bed):
    """Too small a ring is refused, and nothing is lost."""
    with crowd(bed, 1, 64) as ((a,), (b,)):
        for n in range(20):
            b.recv(n * ROOM, ROOM, wr_id=n)
        for size in (1, 5, 14):
            refused(errno.EINVAL, b.srq.modify, SrqAttr(max_wr=size), e.IBV_SRQ_MAX_WR)
        assert b.srq.query().max_wr >= 64
        take_in_order(a, b, 0, 20)


@pytest.mark.differs_on_rxe("the new size is looked at before it is rounded up")
def test_resize_and_limit(bed):
    """Both at once or neither: a limit that the new size has no room for is refused with it."""
    with crowd(bed, 1, 64) as ((a,), (b,)):
        for _ in range(10):
            b.recv(0, 8)
        both = e.IBV_SRQ_MAX_WR | e.IBV_SRQ_LIMIT
        refused(errno.EINVAL, b.srq.modify, SrqAttr(max_wr=15, srq_limit=16), both)
        assert b.srq.query().max_wr >= 64
        b.srq.modify(SrqAttr(max_wr=15, srq_limit=8), both)
        attr = b.srq.query()
        assert (attr.max_wr, attr.srq_limit) == (15, 8)
        refused(errno.EINVAL, b.srq.modify, SrqAttr(srq_limit=16), e.IBV_SRQ_LIMIT)
        refused(errno.EINVAL, b.srq.modify, SrqAttr(max_wr=7), e.IBV_SRQ_MAX_WR)
        take(a, b, 3)
        assert b.events(5) == [LIMIT_REACHED]


def test_resize_under_load(bed):
    """Another process sends all the time, while the queue grows and shrinks: nothing is lost, doubled or out of order."""
    b = Endpoint(bed.h2.dev, srq=64, cqe=256)
    with stream(bed.h1.dev, b) as sender:
        rng = random.Random(1)
        posted = got = sizes = 0
        end = time.monotonic() + 10
        while time.monotonic() < end or got < posted:
            assert time.monotonic() < end + 60, (sizes, got, posted, b.events(), b.state(), sender.result(),
                                                 counters(b.dev))
            if time.monotonic() < end:
                while posted - got < 24:
                    b.recv(0, 64, wr_id=posted)
                    posted += 1
                b.srq.modify(SrqAttr(max_wr=rng.choice([24, 31, 32, 100, 700])), e.IBV_SRQ_MAX_WR)
                sizes += 1
            for wc in b.cq.poll(16)[1]:
                assert (wc.wr_id, wc.status, wc.imm_data) == (got, OK, got), f"{wc} instead of {got}"
                got += 1
        assert sizes > 20 and got > 100, (sizes, got)
    b.close()


# Errors.

def test_last_receive_of_a_queue_pair(bed):
    """In error, a queue pair leaves the receives to the others and says that it takes no more, once."""
    with crowd(bed, 2, 32) as (senders, takers):
        a, b = senders[0], takers[0]
        for n in range(8):
            b.recv(n * ROOM, ROOM, wr_id=n)
        take_in_order(a, b, 0, 2)
        b.to_state(e.IBV_QPS_ERR)
        assert b.events(5) == [LAST_WQE]
        b.to_state(e.IBV_QPS_ERR)
        assert b.events(0.3) == []
        b.nothing(0.1)
        take_in_order(senders[1], b, 2, 6)
        # Again after it was reset.
        b.to_state(e.IBV_QPS_RESET)
        b.to_init()
        b.to_state(e.IBV_QPS_ERR)
        assert b.events(5) == [LAST_WQE]


def test_last_receive_after_a_broken_off_message(bed):
    """What was taken for a message that never ends is flushed before the event comes."""
    with crowd(bed, 2, 32, connect={"timeout": 0}) as (senders, takers):
        a, b = senders[0], takers[0]
        b.recv(0, 64, wr_id=1)
        b.recv(ROOM, ROOM, wr_id=2)
        a.send(0, 1000)  # Too long: takes the receive, and fails.
        assert (b.poll()[0].status, a.done()) == (e.IBV_WC_LOC_LEN_ERR, e.IBV_WC_REM_INV_REQ_ERR)
        assert LAST_WQE in b.wait_event(LAST_WQE, 5)
        senders[1].send(0, 8)
        wc = b.poll()[0]
        assert (wc.wr_id, wc.status, wc.qp_num) == (2, OK, takers[1].qp.qp_num)


def test_last_receive_after_a_violation(bed):
    with crowd(bed, 1, 16, connect={"timeout": 0}) as ((a,), (b,)):
        b.recv(0, 8)
        a.write(0, 8, (b.mr.buf, 1))
        assert a.done() == e.IBV_WC_REM_ACCESS_ERR
        seen = b.wait_event(LAST_WQE, 5)
        assert seen == [e.IBV_EVENT_QP_ACCESS_ERR, LAST_WQE]


def test_malformed_receive(bed):
    """A receive with more pieces than allowed ends the queue pair that takes it, not the queue."""
    ring, b = srq_ring(bed)
    a = Endpoint(bed.h1.dev)
    others = Endpoint(a.dev, share=a), Endpoint(b.dev, share=b)
    for x, y in ((a, b), others):
        x.connect(y, timeout=0)
        y.connect(x, timeout=0)
    ring.post_recv(7, num_sge=1000)
    b.recv(0, 64, wr_id=8)
    a.send(0, 8)
    wc = b.poll()[0]
    assert (wc.wr_id, wc.status) == (7, e.IBV_WC_LOC_QP_OP_ERR) and a.done() == e.IBV_WC_REM_OP_ERR
    assert LAST_WQE in b.wait_event(LAST_WQE, 5)
    others[0].send(0, 8)
    wc = b.poll()[0]
    assert (wc.wr_id, wc.status) == (8, OK)
    for end in (*others, a, b):
        end.close()


def srq_ring(bed):
    """An endpoint with a shared queue, and the ring of that."""
    end = Endpoint(bed.h2.dev)
    end.qp.close()
    ring, end.srq = Ring.mapped_by(lambda: SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=16, max_sge=1))))
    cap = QPCap(max_send_wr=8, max_send_sge=1)
    end.qp = QP(end.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=end.cq, rcq=end.cq, srq=end.srq, cap=cap), None)
    return ring, end


@pytest.mark.differs_on_rxe("an index beyond the ring is masked")
def test_broken_ring(bed):
    """An index that is none breaks the queue: SRQ_ERR, once; queue pairs that want a receive end in error."""
    ring, b = srq_ring(bed)
    a = Endpoint(bed.h1.dev)
    others = Endpoint(a.dev, share=a), Endpoint(b.dev, share=b)
    for x, y in ((a, b), others):
        x.connect(y, timeout=0)
        y.connect(x, timeout=0)
    b.recv(0, 64)
    ring.producer = 1 << 20
    a.send(0, 8)
    assert a.done() == e.IBV_WC_REM_OP_ERR
    seen = b.wait_event(LAST_WQE, 5)
    assert sorted(seen) == sorted([e.IBV_EVENT_SRQ_ERR, e.IBV_EVENT_QP_FATAL, LAST_WQE])
    others[0].send(0, 8)
    assert a.done() == e.IBV_WC_REM_OP_ERR
    seen = b.wait_event(LAST_WQE, 5)
    assert sorted(seen) == sorted([e.IBV_EVENT_QP_FATAL, LAST_WQE])
    refused(errno.EINVAL, b.srq.query)
    refused(errno.EINVAL, b.srq.modify, SrqAttr(srq_limit=1), e.IBV_SRQ_LIMIT)
    refused(errno.EINVAL, b.srq.modify, SrqAttr(max_wr=100), e.IBV_SRQ_MAX_WR)
    for end in (*others, a, b):
        end.close()


def test_destroy_while_in_use(bed):
    with Uverbs(bed.h1.dev) as u:
        pd = u.alloc_pd()
        cq, _, _ = u.create_cq()
        srq = u.create_srq(pd)[0]
        qps = [u.create_qp(pd, cq, srq=srq)[0] for _ in range(2)]
        refused(errno.EBUSY, u.destroy, "srq", srq)
        u.destroy("qp", qps[0])
        refused(errno.EBUSY, u.destroy, "srq", srq)
        refused(errno.EBUSY, u.destroy, "pd", pd)
        u.destroy("qp", qps[1])
        u.destroy("srq", srq)
        u.destroy("cq", cq)
        u.destroy("pd", pd)


def test_killed_under_load(bed):
    """A process that dies with its queue in use leaves nothing."""
    before = os.popen("rdma resource show srq").read()
    child = os.fork()
    if child == 0:
        try:
            with crowd(bed, 8, 128) as (senders, takers):
                while True:
                    for n in range(16):
                        takers[0].recv(0, 64)
                        senders[n % 8].send(0, 64)
                    senders[0].cq.poll(64), takers[0].cq.poll(64)
        finally:
            os._exit(1)
    time.sleep(4)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the process ended by itself"
    assert os.popen("rdma resource show srq").read() == before


# Programs.

@pytest.mark.parametrize("extra", [(), ("-e",), ("-q", 1), ("-q", 32), ("-s", 1), ("-s", 70000), ("-r", 16, "-n", 200)],
                         ids=lambda x: "".join(map(str, x)) or "plain")
def test_pingpong(bed, extra):
    port = bed.port()

    def cmd(host):
        return ["ibv_srq_pingpong", "-d", host.dev, "-g", host.gid_index(host.ip4), "-p", port, "-n", 100, "-c", *extra]
    for r in bed.pair(cmd(bed.h1), cmd(bed.h2) + [bed.h1.ip4], port):
        assert re.search(r"^\d+ bytes in ", r.out, re.M) and "invalid data" not in r.out, r


@pytest.mark.parametrize("extra", [("-q", 8), ("-q", 2, "-b"), ("-c", "UD", "-q", 4, "-s", 1000)], ids=lambda x: "".join(map(str, x)))
def test_perftest(bed, extra):
    perftest(bed, "ib_send_bw", "--use-srq", "-n", 40, *(("-s", 9000) if "-s" not in extra else ()), *extra)
