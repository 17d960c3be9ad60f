# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 smp=2 mem=3072
"""Completion queues: another size, at rest and under load; overflow; vectors; what is refused."""

import errno
import random
import time

import pyverbs.enums as e
import pytest
from pyverbs.cq import CQ
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPCap, QPInitAttr

from rings import Uverbs
from streamer import stream
from testbed import counters
from verbs import OK, Endpoint, pair, readable

MAX_CQE = (1 << 20) - 1


def refused(code, action, *args, **kw):
    """The call fails with this errno."""
    with pytest.raises((OSError, PyverbsRDMAError)) as why:
        action(*args, **kw)
    got = getattr(why.value, "error_code", None) or getattr(why.value, "errno", None)
    assert abs(got) == code, why.value


def fill(a, b, count, first=0):
    """count completions of sends that nobody has polled yet."""
    for n in range(first, first + count):
        a.write(0, 8, b.at(0), wr_id=n)
    settle(a, b)


def settle(a, b):
    """Wait until all that was posted is complete: a later READ on another queue pair of the same wire is."""
    probe_a, probe_b = Endpoint(a.dev), Endpoint(b.dev)
    probe_a.connect(probe_b)
    probe_b.connect(probe_a)
    for _ in range(3):
        probe_a.read(0, 8, probe_b.at(0))
        assert probe_a.done() == OK
    time.sleep(0.2)
    probe_a.close()
    probe_b.close()


@pytest.mark.parametrize("sizes", [(100,), (11,), (1000, 10, 63, 64, 10, MAX_CQE, 10)], ids=str)
def test_elements_move_along(bed, sizes):
    """Completions that wait in the queue are there, in order, once each, whatever its size became."""
    with pair(bed.h1.dev, bed.h2.dev, a={"cqe": 20}) as (a, b):
        # Not from the beginning of the ring.
        fill(a, b, 25 % a.cq.cqe)
        a.poll(25 % a.cq.cqe)
        fill(a, b, 10)
        for size in sizes:
            a.cq.resize(size)
            assert a.cq.cqe >= size
        assert [w.wr_id for w in a.poll(10)] == list(range(10))
        a.nothing(0.1)
        # And it goes on, to the last element.
        room = min(a.cq.cqe, 30)
        fill(a, b, room)
        assert [w.wr_id for w in a.poll(room)] == list(range(room))
        assert a.events() == []


def test_too_small_for_what_waits(bed):
    """EINVAL, and the queue is as it was: nothing lost, nothing twice."""
    with pair(bed.h1.dev, bed.h2.dev, a={"cqe": 40}) as (a, b):
        cqe = a.cq.cqe
        fill(a, b, 17)
        for size in (1, 2, 7, 15):
            refused(errno.EINVAL, a.cq.resize, size)
        assert a.cq.cqe == cqe
        a.cq.resize(17)
        assert [w.wr_id for w in a.poll(17)] == list(range(17))
        a.cq.resize(1)
        a.write(0, 8, b.at(0), wr_id=99)
        assert a.poll()[0].wr_id == 99


def test_armed_stays_armed(bed):
    with pair(bed.h1.dev, bed.h2.dev, channel=True) as (a, b):
        a.cq.req_notify()
        a.cq.resize(500)
        assert not readable(a.channel_fd, 0.1)
        a.write(0, 8, b.at(0))
        assert readable(a.channel_fd, 10)
        a.channel.get_cq_event(a.cq)
        a.cq.ack_events(1)
        assert a.done() == OK


@pytest.mark.parametrize("solicited", [False, True], ids=["any", "solicited"])
def test_event_after_resize(bed, solicited):
    """An event that is armed after the change of the size comes from the new ring."""
    with pair(bed.h1.dev, bed.h2.dev, channel=True) as (a, b):
        for n in range(5):
            b.cq.resize(40 + 100 * (n % 2))
            b.cq.req_notify(solicited)
            b.recv(0, 8)
            a.send(0, 8, flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED)
            assert readable(b.channel_fd, 10)
            b.channel.get_cq_event(b.cq)
            b.cq.ack_events(1)
            assert a.done() == OK and b.done() == OK


def test_under_load(bed):
    """Another process sends all the time, while the queue grows and shrinks: each completion comes once, in order."""
    b = Endpoint(bed.h2.dev, depth=64, cqe=128)
    with stream(bed.h1.dev, b) as sender:
        rng = random.Random(2)
        posted = got = sizes = 0
        end = time.monotonic() + 12
        while time.monotonic() < end or got < posted:
            assert time.monotonic() < end + 60, (sizes, got, posted, b.events(), b.state(), sender.result(),
                                                 counters(b.dev))
            if time.monotonic() < end:
                while posted - got < 48:
                    b.recv(0, 64, wr_id=posted)
                    posted += 1
                # Never smaller than what may come.
                b.cq.resize(rng.choice([48, 50, 63, 64, 200, 5000, 100000]))
                sizes += 1
            for wc in b.cq.poll(rng.choice([1, 7, 16, 64]))[1]:
                assert (wc.wr_id, wc.status, wc.imm_data) == (got, OK, got), f"{wc} instead of {got}"
                got += 1
        assert sizes > 20 and got > 100, (sizes, got)
        # The first message may come before the queue pair is in RTS.
        assert set(b.events()) <= {e.IBV_EVENT_COMM_EST}
    b.close()


@pytest.mark.differs_on_rxe("each completion without room is reported, and a send's is lost")
def test_overflow_is_told_once(bed):
    """All queue pairs of a queue that overflows end in error; the queue tells once, and takes nothing any more."""
    small = {"cqe": 4, "depth": 64}
    with pair(bed.h1.dev, bed.h2.dev, a=small, b={"depth": 64}, connect={"timeout": 12, "retry": 1}) as (a, b):
        a2, b2 = Endpoint(a.dev, share=a, depth=64), Endpoint(b.dev, share=b, depth=64)
        a2.connect(b2)
        b2.connect(a2)
        for end in (a, a2):
            for n in range(20):
                end.write(0, 8, b.at(0), wr_id=n)
        stop = time.monotonic() + 20
        while a.state() != e.IBV_QPS_ERR or a2.state() != e.IBV_QPS_ERR:
            assert time.monotonic() < stop
            time.sleep(0.05)
        seen = a.events(1) + a.events(0.3)
        assert seen.count(e.IBV_EVENT_CQ_ERR) == 1, seen
        assert seen.count(e.IBV_EVENT_QP_FATAL) == 2, seen
        refused(errno.EINVAL, a.cq.resize, 100)
        a2.close()
        b2.close()


def test_vectors(bed):
    """One for each possible CPU; events come by each of them."""
    with Uverbs(bed.h1.dev) as u:
        first, _, last = open("/sys/devices/system/cpu/possible").read().strip().partition("-")
        assert u.vectors == int(last or first) + 1
        for vector in range(u.vectors):
            u.destroy("cq", u.create_cq(vector=vector)[0])
        refused(errno.EINVAL, u.create_cq, vector=u.vectors)
        refused(errno.EINVAL, u.create_cq, vector=0xffffffff)
    with pair(bed.h1.dev, bed.h2.dev, channel=True) as (a, b):
        for vector in range(a.ctx.num_comp_vectors):
            cq = CQ(a.ctx, 10, None, a.channel, vector)
            qp, a.qp = a.qp, QP(a.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap()), None)
            b.to_state(e.IBV_QPS_RESET)
            a.connect(b)
            b.connect(a)
            cq.req_notify()
            a.write(0, 8, b.at(0))
            assert readable(a.channel_fd, 10)
            a.channel.get_cq_event(cq)
            cq.ack_events(1)
            a.qp.close()
            a.qp = qp
            cq.close()


def test_destroy_while_in_use(bed):
    with Uverbs(bed.h1.dev) as u:
        pd, cq, other = u.alloc_pd(), u.create_cq()[0], u.create_cq()[0]
        qp = u.create_qp(pd, cq, other)[0]
        for queue in (cq, other):
            refused(errno.EBUSY, u.destroy, "cq", queue)
            u.resize_cq(queue, 100)
        u.destroy("qp", qp)
        for queue in (cq, other):
            u.destroy("cq", queue)


def test_old_ring_is_let_go(bed):
    """A ring that was replaced cannot be mapped any more, and one that is mapped is without effect."""
    with Uverbs(bed.h1.dev) as u:
        cq, _, info = u.create_cq(31)
        old = u.ring(info)
        for size in (63, 7, 255):
            cqe, new = u.resize_cq(cq, size)
            assert cqe == size and new.offset != info.offset
            with pytest.raises(OSError):
                u.ring(info)
            info = new
        assert old.mask == 31
        assert u.ring(info).mask == 255
