# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=3072
"""What goes wrong gets the status that the IBTA specification names, at both ends, at once, and nothing is left over.

Where a NAK has to end the work, the sender's timer is off (timeout=0): an answer that never comes is a failure.
"""

import random
import time

import pyverbs.enums as e
import pytest
from pyverbs.mr import MR
from pyverbs.pd import PD

from impair import lossy, single_packets
from kmsg import nothing_logged
from verbs import FULL_ACCESS, OK, Endpoint, pair, pattern, status_name

NO_TIMER = {"timeout": 0}
FLUSHED = e.IBV_WC_WR_FLUSH_ERR
ERR = e.IBV_QPS_ERR


@pytest.fixture(autouse=True)
def silent():
    """Whatever a program or a peer does wrong: it is counted or reported, and not written to the kernel's log."""
    with nothing_logged():
        yield


def names(*statuses):
    return [status_name(s) for s in statuses]


def assert_status(end, *allowed):
    got = end.done()
    assert got in allowed, f"{status_name(got)} instead of {names(*allowed)} on {end.dev}"


def assert_in_error(end, timeout=30):
    stop = time.monotonic() + timeout
    while end.state() != ERR:
        assert time.monotonic() < stop, f"{end.dev} stays in state {end.state()}"
        time.sleep(0.01)


# The peer's memory is out of bounds.

DEFECTS = ["unknown_key", "old_key", "foreign_pd", "below", "past_the_end", "over_the_end", "wraps", "mr_access"]


def remote_with(defect, b, op, keep):
    """An (address, key) that must be refused, for an operation of 4000 bytes."""
    va, rkey = b.at(0)
    end = va + b.mr.length
    if defect == "unknown_key":
        return va, rkey ^ 0x5500
    if defect == "old_key":
        mr = MR(b.pd, 8192, FULL_ACCESS)
        gone = mr.buf, mr.rkey
        mr.close()
        return gone
    if defect == "foreign_pd":
        keep.append(PD(b.ctx))
        keep.append(MR(keep[-1], 8192, FULL_ACCESS))
        return keep[-1].buf, keep[-1].rkey
    if defect == "mr_access":
        other = e.IBV_ACCESS_REMOTE_READ if op == "write" else e.IBV_ACCESS_REMOTE_WRITE
        keep.append(MR(b.pd, 8192, e.IBV_ACCESS_LOCAL_WRITE | other))
        return keep[-1].buf, keep[-1].rkey
    return {"below": va - 1, "past_the_end": end, "over_the_end": end - 3999, "wraps": 2**64 - 100}[defect], rkey


@pytest.mark.parametrize("op", ["write", "read"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_remote_access(ends, op, defect):
    """One NAK ends the work and both queue pairs; the memory is as it was and the victim's owner gets an event."""
    a, b = ends
    keep = []
    before = pattern(b.mr.length, "guard")
    b.mr.write(before, len(before), 0)
    b.recv(0, 64)
    remote = remote_with(defect, b, op, keep)
    a.post(e.IBV_WR_RDMA_WRITE if op == "write" else e.IBV_WR_RDMA_READ, 0, 4000, remote=remote, wr_id=1)
    a.send(0, 8, wr_id=2)
    first, second = a.poll(2)
    assert names(first.status, second.status) == ["REM_ACCESS_ERR", "WR_FLUSH_ERR"]
    assert (first.wr_id, second.wr_id) == (1, 2)
    assert b.done() == FLUSHED
    assert b.mr.read(b.mr.length, 0) == before
    assert_in_error(a)
    assert_in_error(b)
    assert e.IBV_EVENT_QP_ACCESS_ERR in b.wait_event(e.IBV_EVENT_QP_ACCESS_ERR)
    for thing in reversed(keep):
        thing.close()


@pytest.mark.parametrize("op", ["write", "read"])
def test_queue_pair_forbids(bed, op):
    """The memory allows it, but the responder's queue pair was not opened for it."""
    only = e.IBV_ACCESS_LOCAL_WRITE | (e.IBV_ACCESS_REMOTE_READ if op == "write" else e.IBV_ACCESS_REMOTE_WRITE)
    with pair(bed.h1.dev, bed.h2.dev, connect=NO_TIMER, b_connect={"access": only}) as (a, b):
        b.mr.write(bytes(64), 64, 0)
        a.mr.write(b"x" * 64, 64, 0)
        a.post(e.IBV_WR_RDMA_WRITE if op == "write" else e.IBV_WR_RDMA_READ, 0, 64, remote=b.at(0))
        assert_status(a, e.IBV_WC_REM_INV_REQ_ERR, e.IBV_WC_REM_ACCESS_ERR)
        assert not any(b.mr.read(64, 0))
        assert a.mr.read(64, 0) == b"x" * 64
        assert_in_error(b)


@pytest.mark.differs_on_rxe("the receive completes with REM_ACCESS_ERR")
def test_write_imm_with_a_bad_key_takes_no_receive(ends):
    a, b = ends
    b.recv(0, 64, wr_id=5)
    a.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, 0, 64, remote=(b.mr.buf, b.mr.rkey ^ 0x100), imm=1)
    assert_status(a, e.IBV_WC_REM_ACCESS_ERR)
    wc = b.poll()[0]
    assert (wc.wr_id, status_name(wc.status)) == (5, "WR_FLUSH_ERR")


def test_work_before_the_error_stands(ends):
    """What was sent before the refused operation is done and complete at both ends."""
    a, b = ends
    for i in range(4):
        b.recv(256 * i, 256, wr_id=i)
        a.send(0, 200, wr_id=i)
    a.write(0, 8, (b.mr.buf, 1), wr_id=4)
    a.send(0, 8, wr_id=5)
    assert [(w.wr_id, *names(w.status)) for w in a.poll(6)] == [
        *((i, "SUCCESS") for i in range(4)), (4, "REM_ACCESS_ERR"), (5, "WR_FLUSH_ERR")]
    assert names(*(w.status for w in b.poll(4))) == ["SUCCESS"] * 4


def test_send_with_invalidate_of_a_plain_mr(ends):
    """A user's memory region is not invalidated by the peer: its receive fails, the key still works elsewhere."""
    a, b = ends
    b.recv(0, 64, wr_id=3)
    a.post(e.IBV_WR_SEND_WITH_INV, 0, 16, imm=b.mr.rkey)
    a.poll(1)  # The data was acknowledged or not before the key was looked at: either is allowed.
    wc = b.poll()[0]
    assert wc.wr_id == 3 and wc.status != OK
    assert_in_error(b)


# Our own memory is out of bounds.

@pytest.mark.differs_on_rxe("the failed request is flushed like the others")
@pytest.mark.parametrize("op", ["send", "write", "read"])
@pytest.mark.parametrize("defect", ["unknown_key", "foreign_pd", "over_the_end"])
def test_local_protection(ends, op, defect):
    """A gather or scatter element that is not ours to use: LOC_PROT_ERR, and the rest is flushed."""
    a, b = ends
    mr, keep, off, n = a.mr, [], 0, 4000
    lkey = None
    if defect == "unknown_key":
        lkey = mr.lkey ^ 0x5500
    elif defect == "foreign_pd":
        keep.append(PD(a.ctx))
        mr = MR(keep[-1], 8192, FULL_ACCESS)
        keep.append(mr)
    else:
        off = mr.length - 3999
    b.recv(0, 8192)
    code = {"send": e.IBV_WR_SEND, "write": e.IBV_WR_RDMA_WRITE, "read": e.IBV_WR_RDMA_READ}[op]
    a.post(code, off, n, remote=None if op == "send" else b.at(0), mr=mr, lkey=lkey, wr_id=1)
    a.send(0, 8, wr_id=2)
    assert [(w.wr_id, *names(w.status)) for w in a.poll(2)] == [(1, "LOC_PROT_ERR"), (2, "WR_FLUSH_ERR")]
    assert_in_error(a)
    for thing in reversed(keep):
        thing.close()


def test_read_into_memory_without_local_write(ends):
    a, b = ends
    ro = MR(a.pd, 4096, e.IBV_ACCESS_REMOTE_READ)
    a.read(0, 100, b.at(0), mr=ro)
    assert_status(a, e.IBV_WC_LOC_PROT_ERR)
    ro.close()


@pytest.mark.differs_on_rxe("the receiver's status is LOC_QP_OP_ERR")
@pytest.mark.parametrize("defect", ["unknown_key", "no_local_write"])
def test_receive_into_forbidden_memory(ends, defect):
    """The receiver's own fault: LOC_PROT_ERR there, a remote operational error for the sender."""
    a, b = ends
    ro = MR(b.pd, 4096, e.IBV_ACCESS_REMOTE_READ)
    if defect == "unknown_key":
        b.recv(0, 4096, lkey=b.mr.lkey ^ 0x5500)
    else:
        b.recv(0, 4096, mr=ro)
    a.send(0, 100)
    assert_status(a, e.IBV_WC_REM_OP_ERR)
    assert_status(b, e.IBV_WC_LOC_PROT_ERR)
    assert_in_error(b)
    ro.close()


# Lengths.

@pytest.mark.differs_on_rxe("the receiver's status is REM_INV_REQ_ERR")
@pytest.mark.parametrize("size, room", [(2, 1), (1024, 1023), (1025, 1024), (5000, 4999), (5000, 100), (1, 0)])
def test_message_longer_than_the_receive(ends, size, room):
    a, b = ends
    b.recv(0, room, wr_id=1)
    b.recv(0, 8192, wr_id=2)
    a.send(0, size)
    assert_status(a, e.IBV_WC_REM_INV_REQ_ERR)
    assert [(w.wr_id, *names(w.status)) for w in b.poll(2)] == [(1, "LOC_LEN_ERR"), (2, "WR_FLUSH_ERR")]
    assert_in_error(b)


# No receive posted.

RNR_MS = {0: 655.36, 16: 2.56, 20: 10.24, 25: 61.44, 28: 163.84}


def test_rnr_retry_zero(bed):
    """With no retry allowed, the first "receiver not ready" ends the work."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"timeout": 0, "rnr_retry": 0}) as (a, b):
        a.send(0, 8, wr_id=1)
        a.write(0, 8, b.at(0), wr_id=2)
        assert [(w.wr_id, *names(w.status)) for w in a.poll(2)] == [(1, "RNR_RETRY_EXC_ERR"), (2, "WR_FLUSH_ERR")]
        assert b.state() == e.IBV_QPS_RTS, "the receiver has done nothing wrong"


@pytest.mark.parametrize("code", RNR_MS)
def test_rnr_timer(bed, code):
    """The sender waits at least as long as the receiver asks for, each time."""
    retries = 1 if code == 0 else 3
    with pair(bed.h1.dev, bed.h2.dev, connect={"timeout": 0, "rnr_retry": retries, "min_rnr_timer": code}) as (a, b):
        start = time.monotonic()
        a.send(0, 8)
        assert_status(a, e.IBV_WC_RNR_RETRY_EXC_ERR)
        took = (time.monotonic() - start) * 1000
        assert took >= retries * RNR_MS[code], f"{took} ms"


def test_rnr_until_a_receive_comes(bed):
    """rnr_retry=7 is without end; the message arrives once, when there is room for it."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"rnr_retry": 7, "min_rnr_timer": 14}) as (a, b):
        data = pattern(5000, 1)
        a.mr.write(data, 5000, 0)
        a.send(0, 5000)
        a.nothing(0.5)
        b.recv(0, 5000)
        assert a.done() == OK and b.done() == OK
        assert b.mr.read(5000, 0) == data
        b.nothing(0.1)


def test_receives_that_come_soon(bed):
    """Messages wait a little for receives before the sender is told that there are none: each arrives once, in order."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"min_rnr_timer": 14}) as (a, b):
        for turn in range(60):
            count = 1 + turn % 4
            data = pattern(300 * count, turn)
            a.mr.write(data, len(data), 0)
            for i in range(count):
                a.send(300 * i, 300, wr_id=i)
            for i in range(count):
                b.recv(300 * i, 300, wr_id=i)
            for end in (a, b):
                assert [(w.wr_id, w.status) for w in end.poll(count)] == [(i, OK) for i in range(count)]
            assert b.mr.read(len(data), 0) == data


def test_rnr_does_not_undo_what_came_before(bed):
    """WRITEs in front of a SEND that has to wait are done once and complete."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"min_rnr_timer": 14}) as (a, b):
        a.mr.write(b"a" * 3000, 3000, 0)
        a.write(0, 3000, b.at(8000), wr_id=1)
        a.send(0, 8, wr_id=2)
        a.write(0, 3000, b.at(16000), wr_id=3)
        assert a.poll()[0].wr_id == 1
        assert b.mr.read(3000, 8000) == b"a" * 3000
        a.nothing(0.2)
        assert not any(b.mr.read(3000, 16000)), "later work overtook"
        b.recv(0, 8)
        assert [(w.wr_id, w.status) for w in a.poll(2)] == [(2, OK), (3, OK)]
        assert b.mr.read(3000, 16000) == b"a" * 3000


# Nobody answers.

def test_peer_without_the_queue_pair(bed):
    """retry_cnt tries after the first, then RETRY_EXC_ERR; the rest is flushed."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"timeout": 10, "retry": 2}) as (a, b):
        b.qp.close()
        start = time.monotonic()
        a.send(0, 8, wr_id=1)
        a.read(0, 8, b.at(0), wr_id=2)
        a.recv(0, 8, wr_id=3)
        done = {w.wr_id: status_name(w.status) for w in a.poll(3)}
        assert done == {1: "RETRY_EXC_ERR", 2: "WR_FLUSH_ERR", 3: "WR_FLUSH_ERR"}
        assert time.monotonic() - start >= 3 * 0.004
        assert_in_error(a)


@pytest.mark.differs_on_rxe("retry_cnt 7 is for ever")
@pytest.mark.parametrize("retry", [0, 1, 7])
def test_retry_count(bed, retry):
    """Every retry waits for the timer: at least retry + 1 of them pass. 7 is seven, not for ever."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"timeout": 14, "retry": retry}) as (a, b):
        b.to_state(e.IBV_QPS_RESET)
        start = time.monotonic()
        a.write(0, 8, b.at(0))
        assert_status(a, e.IBV_WC_RETRY_EXC_ERR)
        assert time.monotonic() - start >= (retry + 1) * 0.067


def test_peer_in_error_is_silent(bed):
    """A queue pair in ERR answers nothing."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"timeout": 10, "retry": 1}) as (a, b):
        b.recv(0, 64)
        b.to_state(ERR)
        assert b.done() == FLUSHED
        a.send(0, 8)
        assert_status(a, e.IBV_WC_RETRY_EXC_ERR)


# Flush.

def test_everything_outstanding_is_flushed(bed):
    """Each request gets exactly one completion, in order within its queue."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"min_rnr_timer": 14}) as (a, b):
        for i in range(10):
            a.send(0, 8, wr_id=i, flags=0 if i % 2 else e.IBV_SEND_SIGNALED)
            a.recv(0, 8, wr_id=100 + i)
        a.nothing(0.2)
        a.to_state(ERR)
        done = a.poll(20)
        assert all(w.status == FLUSHED for w in done), names(*(w.status for w in done))
        ids = [w.wr_id for w in done]
        assert [i for i in ids if i < 100] == list(range(10))
        assert [i for i in ids if i >= 100] == list(range(100, 110))
        a.nothing(0.1)


@pytest.mark.differs_on_rxe("a receive has no doorbell, and nothing looks for it in ERR")
def test_receives_posted_in_error(ends):
    a, _ = ends
    a.to_state(ERR)
    for i in range(5):
        a.recv(0, 8, wr_id=i)
        wc = a.poll()[0]
        assert (wc.wr_id, wc.status) == (i, FLUSHED)


def test_error_while_messages_arrive(bed):
    """At whatever moment the receiver gives up: each receive completes once, first those that got a message, in order,
    then those that did not; nothing completes later; and what is complete at the sender has arrived."""
    rng, count, seen = random.Random(3), 16, set()
    patient = {"timeout": 14, "retry": 0}
    with pair(bed.h1.dev, bed.h2.dev, depth=count, cqe=200, connect=patient) as (a, b), single_packets(), \
            lossy(bed, "delay 300us rate 20mbit"):
        for i in range(count):
            a.mr.write(bytes([i + 1]) * 3000, 3000, 3000 * i)
        for turn in range(20):
            for i in range(count):
                b.recv(4000 * i, 4000, wr_id=i)
            chain = [a.work(e.IBV_WR_SEND, 3000 * i, 3000, wr_id=i) for i in range(count)]
            for wr, following in zip(chain, chain[1:]):
                wr.next_wr = following
            a.qp.post_send(chain[0])
            time.sleep(rng.random() * 0.02)
            b.to_state(ERR)
            done = b.poll(count)
            good = sum(w.status == OK for w in done)
            assert [(w.wr_id, w.status) for w in done] == [(i, OK if i < good else FLUSHED) for i in range(count)], turn
            for i in range(good):
                assert b.mr.read(3000, 4000 * i) == bytes([i + 1]) * 3000
            sent = a.poll(count)
            assert [w.wr_id for w in sent] == list(range(count))
            assert sum(w.status == OK for w in sent) <= good
            b.nothing(0.02)
            seen.add(good)
            for x, y in ((a, b), (b, a)):
                x.to_state(e.IBV_QPS_RESET)
                x.connect(y, **patient)
            b.mr.write(bytes(4000 * count), 4000 * count, 0)
    assert len(seen) > 3, seen


def test_sends_posted_in_error(ends):
    a, _ = ends
    a.to_state(ERR)
    for i in range(5):
        a.send(0, 8, wr_id=i)
        wc = a.poll()[0]
        assert (wc.wr_id, wc.status) == (i, FLUSHED)


def test_reset_forgets(bed):
    """RESET drops all work without a completion, and the queue pair can be used again."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"min_rnr_timer": 14}) as (a, b):
        for i in range(5):
            a.send(0, 8, wr_id=i)
            a.recv(0, 8, wr_id=100 + i)
            b.recv(0, 8, wr_id=100 + i)
        a.to_state(e.IBV_QPS_RESET)
        b.to_state(e.IBV_QPS_RESET)
        while a.cq.poll(8)[0] or b.cq.poll(8)[0]:
            pass
        a.connect(b)
        b.connect(a)
        a.nothing(0.1)
        b.recv(0, 64, wr_id=7)
        a.send(0, 64, wr_id=8)
        assert (a.poll()[0].wr_id, b.poll()[0].wr_id) == (8, 7)


# The completion queue overflows.

@pytest.mark.differs_on_rxe("a send completion that finds no room is lost, and the queue pair goes on")
@pytest.mark.parametrize("which", ["send", "recv"])
def test_completion_queue_overflow(bed, which):
    """A completion without room is no silent loss: CQ_ERR on the queue, and the queue pair ends in error."""
    small, big = {"cqe": 4, "depth": 64}, {"cqe": 256, "depth": 64}
    with pair(bed.h1.dev, bed.h2.dev, a=small if which == "send" else big, b=small if which == "recv" else big,
              connect={"timeout": 12, "retry": 2}) as (a, b):
        victim = a if which == "send" else b
        for i in range(40):
            b.recv(0, 8, wr_id=i)
        for i in range(40):
            a.send(0, 8, wr_id=i)
        victim.wait_event(e.IBV_EVENT_CQ_ERR)
        assert_in_error(victim)
        assert victim.cq.cqe >= 4


def test_full_but_not_over(bed):
    """A queue that is filled to its last entry is no overflow."""
    with pair(bed.h1.dev, bed.h2.dev, a={"cqe": 8, "depth": 16}, b={"cqe": 64, "depth": 64}) as (a, b):
        n = a.cq.cqe
        for i in range(n):
            b.recv(0, 8)
            a.send(0, 8, wr_id=i, flags=e.IBV_SEND_SIGNALED)
        b.poll(n)
        assert [w.wr_id for w in a.poll(n)] == list(range(n))
        assert a.events(0.2) == []


def test_other_queue_pairs_live_on(bed):
    """An error ends one queue pair, not its neighbours on the same completion queue and memory."""
    with pair(bed.h1.dev, bed.h2.dev, connect=NO_TIMER) as (a, b):
        a2, b2 = Endpoint(a.dev, share=a), Endpoint(b.dev, share=b)
        a2.connect(b2, **NO_TIMER)
        b2.connect(a2, **NO_TIMER)
        a.write(0, 8, (b.mr.buf, 1))
        assert_status(a, e.IBV_WC_REM_ACCESS_ERR)
        b2.recv(0, 8)
        a2.send(0, 8)
        assert a.done() == OK and b.done() == OK
        a2.close()
        b2.close()
