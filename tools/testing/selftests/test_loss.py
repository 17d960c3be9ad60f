# SPDX-License-Identifier: GPL-2.0
# guest: timeout=1200 mem=3072
"""Data arrives once, in order and whole over a wire that loses, reorders and duplicates, and through a full queue."""

import contextlib

import pyverbs.enums as e
import pytest

from impair import NETEM, drop_every, dropped, lossy, short_queue, single_packets
from transfer import SLOTS, burst, transfer
from verbs import OK, all_good, pair, pattern

MIB = 1 << 20

SEND_MIDDLE, SEND_LAST, SEND_ONLY, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY = 1, 2, 4, 7, 8, 10
READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY, ACK = 12, 13, 14, 15, 16, 17


@pytest.mark.seconds(400)
@pytest.mark.parametrize("op, ip", [("send", 4), ("write", 4), ("read", 4), ("send", 6), ("write", 6), ("read", 6)])
def test_64_mib(bed, op, ip):
    """Over IPv4 single packets get lost, over IPv6 whole trains of them."""
    total = 64 * MIB if ip == 4 else 16 * MIB
    single = single_packets() if ip == 4 else contextlib.nullcontext()
    # A few hundred trains, of which one in a hundred might well be none.
    words = NETEM if ip == 4 else NETEM.replace("loss 1%", "loss 5%")
    with pair(bed.h1.dev, bed.h2.dev, ip, length=SLOTS * MIB, connect={"mtu": 4096}) as (a, b), single, lossy(bed, words):
        transfer(a, b, op, total, [MIB, MIB - 3, MIB, 300001])
        lost = [dropped(h) for h in bed.hosts]
        assert any(lost), lost


@pytest.mark.seconds(400)
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_small_messages(bed, op):
    """Many short messages: each loss hits another kind of packet, first, middle, last, only and acknowledgement."""
    with pair(bed.h1.dev, bed.h2.dev, length=SLOTS * 65536, connect={"mtu": 256, "timeout": 12}) as (a, b), \
            lossy(bed, "delay 200us reorder 5% loss 3% duplicate 3%"):
        transfer(a, b, op, MIB, [100, 256, 257, 700, 1, 5000, 0, 2048])


@pytest.mark.seconds(400)
def test_mixed_work(bed):
    """SEND, WRITE and READ in turn on one queue pair, in both directions at once, with loss."""
    with pair(bed.h1.dev, bed.h2.dev, length=MIB, connect={"mtu": 1024, "timeout": 12}) as ends, lossy(bed):
        for round_ in range(20):
            sent = []
            for x, y in (ends, ends[::-1]):
                data = pattern(60000, f"{x.dev}{round_}")
                x.mr.write(data, 60000, 0)
                sent.append(data)
                y.recv(100000, 20000)
            for x, y in (ends, ends[::-1]):
                x.send(0, 20000, wr_id=1)
                x.write(20000, 20000, y.at(120000), wr_id=2)
                x.read(200000, 20000, y.at(40000), wr_id=3)
            for i, x in enumerate(ends):
                done = x.poll(4, 120)
                all_good(done)
                assert [w.wr_id for w in done if w.wr_id] == [1, 2, 3]
                mine, peers = sent[i], sent[1 - i]
                assert x.mr.read(20000, 200000) == peers[40000:], f"READ, round {round_}"
                del mine
            for i, x in enumerate(ends):
                assert x.mr.read(40000, 100000) == sent[1 - i][:40000], f"SEND and WRITE, round {round_}"


@pytest.mark.differs_on_rxe("a packet that the queue refuses ends the queue pair")
@pytest.mark.seconds(400)
@pytest.mark.parametrize("op, ip", [("send", 4), ("write", 4), ("read", 4), ("write", 6)])
def test_short_egress_queue(bed, op, ip):
    """Back-pressure slows the queue pair down and never kills it."""
    with pair(bed.h1.dev, bed.h2.dev, ip, length=SLOTS * MIB, connect={"mtu": 4096}) as (a, b), short_queue(bed):
        transfer(a, b, op, 16 * MIB, [MIB, 4096, 500001])


@pytest.mark.differs_on_rxe("a packet that the queue refuses ends the queue pair")
@pytest.mark.seconds(400)
def test_short_egress_queue_shared(bed):
    """Eight queue pairs compete for the room in the queue; each of them comes through."""
    from verbs import Endpoint
    with pair(bed.h1.dev, bed.h2.dev, length=MIB, depth=64) as (a, b), short_queue(bed):
        more = []
        for _ in range(7):
            ends = Endpoint(a.dev, share=a), Endpoint(b.dev, share=b)
            ends[0].connect(ends[1])
            ends[1].connect(ends[0])
            more.append(ends)
        data = pattern(100000, 1)
        a.mr.write(data, 100000, 0)
        for x, y in [(a, b)] + more:
            for i in range(8):
                x.write(0, 100000, y.at(100000 * i))
        done = a.poll(64, 200)
        all_good(done)
        assert b.mr.read(800000, 0) == data * 8
        for ends in more:
            for end in ends:
                end.close()


# One packet lost, and no timer that could help: what notices the gap has to be the next packet.
#
# The n-th packet with this opcode is lost. A burst has at least n and, with the repetition, less than 2 n of them, and
# other packets follow the one that is lost.
@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("op, opcode, n, count, size", [
    ("send", SEND_MIDDLE, 7, 1, 9300), ("write", WRITE_MIDDLE, 7, 1, 9300), ("send", SEND_LAST, 4, 5, 3000),
    ("write", WRITE_LAST, 4, 5, 3000), ("send", SEND_ONLY, 4, 5, 100), ("write", WRITE_ONLY, 4, 5, 100)],
    ids=["send_middle", "write_middle", "send_last", "write_last", "send_only", "write_only"])
def test_gap_in_requests(bed, op, opcode, n, count, size, ip):
    """A NAK for the sequence error brings the lost request again."""
    with pair(bed.h1.dev, bed.h2.dev, ip, connect={"timeout": 0}) as (a, b), drop_every(bed.h2, opcode, n, ip) as lost:
        burst(a, b, op, count, size)
        assert lost() == 1


@pytest.mark.differs_on_rxe("lost responses are missed by the timer only")
@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("opcode, n, count, size", [
    (READ_FIRST, 4, 5, 3000), (READ_MIDDLE, 5, 1, 9000), (READ_LAST, 4, 5, 3000), (READ_ONLY, 4, 5, 100)],
    ids=["first", "middle", "last", "only"])
def test_gap_in_responses(bed, opcode, n, count, size, ip):
    """A response behind a gap makes the requester ask again at once, not when its timer ends."""
    with pair(bed.h1.dev, bed.h2.dev, ip, connect={"timeout": 0}) as (a, b), drop_every(bed.h1, opcode, n, ip) as lost:
        burst(a, b, "read", count, size)
        assert lost() == 1


@pytest.mark.parametrize("opcode, op, size", [(ACK, "write", 100), (ACK, "send", 100), (READ_ONLY, "read", 100),
                                              (READ_LAST, "read", 3000), (READ_REQUEST, "read", 3000),
                                              (SEND_LAST, "send", 3000)])
def test_timer_finds_the_lost_end(bed, opcode, op, size):
    """Nothing follows the lost packet, so the timer has to notice; the responder answers the repetition alike."""
    host = bed.h2 if opcode in (READ_REQUEST, SEND_LAST) else bed.h1
    # Every third: who goes back and sends two again would lose the same one of the two for ever.
    with drop_every(host, opcode, 3), pair(bed.h1.dev, bed.h2.dev, length=SLOTS * 65536,
                                           connect={"timeout": 16}) as (a, b):
        for _ in range(6):
            transfer(a, b, op, size, [size], timeout=60)


def test_dead_wire_comes_back(bed):
    """Everything is lost for a while: with retries left, the work goes on where it stopped."""
    import time
    with pair(bed.h1.dev, bed.h2.dev, length=SLOTS * MIB, connect={"timeout": 17, "retry": 7}) as (a, b):
        data = pattern(MIB, 1)
        a.mr.write(data, MIB, 0)
        with lossy(bed, "loss 100%"):
            a.write(0, MIB, b.at(0))
            time.sleep(1)  # One or two of the timer's periods of 0.54 s.
        assert a.done(60) == OK
        assert b.mr.read(MIB, 0) == data
