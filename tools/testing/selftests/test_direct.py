# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=3072
"""The short way between queue pairs of one device, on which packets are not built: what holds for packets holds there."""

import pyverbs.enums as e
import pytest
from pyverbs.mr import MR

# These run once more, with both ends on one device; `bed` and `ends` are those below.
from test_atomics import (test_atomic_write, test_atomic_write_refused, test_compare_and_swap, test_fetch_and_add,  # noqa: F401
                          test_flush, test_more_than_may_be_outstanding, test_refused, test_result_in_pieces)
from test_errors import (silent, test_everything_outstanding_is_flushed, test_local_protection,  # noqa: F401
                         test_message_longer_than_the_receive, test_peer_in_error_is_silent, test_peer_without_the_queue_pair,
                         test_queue_pair_forbids, test_receive_into_forbidden_memory, test_remote_access, test_reset_forgets,
                         test_rnr_does_not_undo_what_came_before, test_rnr_retry_zero, test_rnr_until_a_receive_comes,
                         test_work_before_the_error_stands, test_write_imm_with_a_bad_key_takes_no_receive)
from test_odp import (ALL, ODP, memory, test_absent_pages_come, test_holes, test_messages, test_read_only,  # noqa: F401
                      test_the_mapping_changes, test_window)
from test_operations import (test_32_pieces, test_both_ways_at_once, test_fence, test_inline, test_inline_gather,  # noqa: F401
                             test_order_of_mixed_work, test_reads_beyond_the_limit_wait, test_sizes)
from test_uc import test_data, test_many_messages  # noqa: F401
from test_xrc import test_receiver_not_ready  # noqa: F401
from testbed import Testbed
from transfer import burst, transfer
from verbs import OK, Endpoint, all_good, pair, pattern

pytestmark = pytest.mark.differs_on_rxe("builds them")

MIB = 1 << 20


@pytest.fixture(scope="module")
def bed():
    """Both hosts are one, and both devices are."""
    with Testbed(mtu=4200) as b:
        hosts = b.hosts
        b.h2, b.hosts = b.h1, (b.h1, b.h1)
        yield b
        b.h2, b.hosts = hosts[1], hosts


@pytest.fixture
def ends(bed):
    connect = {"timeout": 0, "access": ALL & ~ODP}
    with pair(bed.h1.dev, bed.h1.dev, length=1 << 18, sge=32, inline=512, channel=True, connect=connect) as p:
        yield p


def on_lo(bed):
    """Buffers that went through the loopback interface."""
    return int(bed.h1.run("cat", "/sys/class/net/lo/statistics/tx_packets").out.split()[-1])


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_no_packets(bed, op, ip):
    """Nothing is seen on the loopback interface, and all is counted as if it were; with the switch off, all is there."""
    counts, seen = [], []
    try:
        for on in "10":
            bed.h1.set_switch("direct", on)
            # Whatever was to come of earlier tests is over.
            with pair(bed.h1.dev, bed.h1.dev, ip, length=2 * MIB, connect={"mtu": 4096}) as (a, b):
                before, buffers = bed.h1.counters(), on_lo(bed)
                transfer(a, b, op, MIB, [100003, 7, 65536])
                after = bed.h1.counters()
                seen.append(on_lo(bed) - buffers)
            counts.append({name: after[name] - before[name] for name in ("sent_pkts", "rcvd_pkts", "sent_bytes", "rcvd_bytes")})
    finally:
        bed.h1.set_switch("direct", "1")
    assert seen[0] == 0 and seen[1] > 20, seen
    for one in counts:
        assert one["sent_pkts"] == one["rcvd_pkts"] >= MIB / 4096 and one["sent_bytes"] == one["rcvd_bytes"] >= MIB
    # ACKs may be more or fewer.
    assert abs(counts[0]["sent_pkts"] - counts[1]["sent_pkts"]) < 40, counts


@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_switched_under_way(bed, op):
    with pair(bed.h1.dev, bed.h1.dev, length=2 * MIB) as (a, b):
        try:
            for on in "0101":
                bed.h1.set_switch("direct", on)
                burst(a, b, op, 16, 9001)
        finally:
            bed.h1.set_switch("direct", "1")


def test_unaligned(ends):
    """Pages of the source and of the destination do not begin at the same byte."""
    a, b = ends
    for skip in (0, 1, 2047, 4095):
        data = pattern(50001, skip)
        a.mr.write(data, len(data), 3)
        a.write(3, len(data), b.at(70000 + skip))
        assert a.done() == OK
        assert b.mr.read(len(data), 70000 + skip) == data


def test_the_source_is_gone(bed):
    """Memory that is deregistered while the message waits to be sent again is found missing by its sender."""
    with pair(bed.h1.dev, bed.h1.dev, connect={"min_rnr_timer": 20}) as (a, b):
        mr = MR(a.pd, 5000, e.IBV_ACCESS_LOCAL_WRITE)
        a.send(0, 5000, mr=mr)
        mr.close()
        b.recv(0, 5000)
        assert a.done() == e.IBV_WC_LOC_PROT_ERR
        b.nothing()


def test_peer_destroyed(bed):
    """The peer goes while messages wait for its receives."""
    with pair(bed.h1.dev, bed.h1.dev, connect={"timeout": 10, "retry": 2, "min_rnr_timer": 12}) as (a, b):
        for _ in range(8):
            a.send(0, 20000)
        b.qp.close()
        got = [w.status for w in a.poll(8)]
        assert got == [e.IBV_WC_RETRY_EXC_ERR] + [e.IBV_WC_WR_FLUSH_ERR] * 7


def test_chain(bed):
    """Each QP of a long ring is connected to the next, which is connected to another: answers go astray, and nothing else
    happens. Each hands packets to the next in the same call."""
    count = 60
    first = Endpoint(bed.h1.dev)
    ring = [first] + [Endpoint(bed.h1.dev, share=first) for _ in range(count - 1)]
    try:
        for end, following in zip(ring, ring[1:] + ring[:1]):
            end.psn = first.psn
            end.to_init()
        for end, following in zip(ring, ring[1:] + ring[:1]):
            end.connect(following, timeout=10, retry=1)
        for end in ring:
            end.read(0, 4096, first.at(8192))
        assert {w.status for w in first.poll(count)} <= {e.IBV_WC_RETRY_EXC_ERR, e.IBV_WC_WR_FLUSH_ERR, e.IBV_WC_BAD_RESP_ERR, OK}
    finally:
        for end in reversed(ring):
            end.close()


def test_traffic_both_ways_with_many(bed):
    """Many connections at once, each in both directions."""
    first = Endpoint(bed.h1.dev, length=4 * MIB, depth=256)
    ends = [first] + [Endpoint(bed.h1.dev, share=first) for _ in range(15)]
    try:
        for a, b in zip(ends[::2], ends[1::2]):
            a.connect(b)
            b.connect(a)
        data = pattern(65536, 1)
        first.mr.write(data, len(data), 0)
        for n, end in enumerate(ends):
            end.write(0, len(data), first.at((n + 1) * 65536), wr_id=n)
        all_good(first.poll(len(ends)))
        for n in range(len(ends)):
            assert first.mr.read(len(data), (n + 1) * 65536) == data
    finally:
        for end in reversed(ends):
            end.close()
