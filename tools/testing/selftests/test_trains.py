# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=2048
"""Packets that travel as one buffer, and the same ones cut up on the way or sent one by one.

All that may differ is how many buffers there are.
"""

import pyverbs.enums as e
import pytest

from impair import qdisc, single_packets
from transfer import transfer
from verbs import OK, all_good, pair, pattern

KIB = 1 << 10
MIB = 1 << 20


def sent(bed, op, ip, mtu):
    """Moves data with an operation. Returns buffers and packets of the side that sends it."""
    source = bed.h2 if op == "read" else bed.h1
    before = source.buffers_sent(), source.counters()["sent_pkts"]
    with pair(bed.h1.dev, bed.h2.dev, ip, length=4 * MIB, connect={"mtu": mtu}) as (a, b):
        transfer(a, b, op, 4 * MIB, [MIB, 300001, 64 * KIB])
    return source.buffers_sent() - before[0], source.counters()["sent_pkts"] - before[1]


@pytest.mark.differs_on_rxe("each packet is a buffer")
@pytest.mark.parametrize("op", ["send", "write", "read"])
@pytest.mark.parametrize("ip, mtu", [(4, 4096), (6, 1024)])
def test_trains_are_used(bed, op, ip, mtu):
    many, packets = sent(bed, op, ip, mtu)
    assert many < packets / 3, f"{packets} packets in {many} buffers"


@pytest.mark.parametrize("op", ["send", "write", "read"])
@pytest.mark.parametrize("ip", [4, 6])
def test_single_packets(bed, op, ip):
    """The switch that ends it."""
    with single_packets():
        many, packets = sent(bed, op, ip, 4096)
    assert many >= packets, f"{packets} packets in {many} buffers"


@pytest.mark.parametrize("op", ["send", "write", "read"])
@pytest.mark.parametrize("ip", [4, 6])
def test_cut_up_by_the_kernel(bed, op, ip):
    """What is cut up after it was handed over carries the right identification, lengths and ICRC."""
    bad = [h.counters()["drop_bad_icrc"] for h in bed.hosts]
    # A token bucket cuts up what is longer than it is deep.
    with qdisc(bed.hosts, "tbf rate 8gbit burst 5000 limit 100000000"):
        many, packets = sent(bed, op, ip, 1024)
    assert many > packets / 2, f"{packets} packets in {many} buffers"
    assert [h.counters()["drop_bad_icrc"] for h in bed.hosts] == bad


@pytest.mark.differs_on_rxe("each packet is a buffer")
def test_short_messages_travel_together(bed):
    """Messages that are posted with one call."""
    count, size = 96, 64
    data = pattern(count * size, 1)
    with pair(bed.h1.dev, bed.h2.dev, depth=count) as (a, b):
        a.mr.write(data, len(data), 0)
        before = bed.h1.buffers_sent(), bed.h1.counters()["sent_pkts"]
        for i in range(count):
            b.recv(i * size, size)
        wrs = [a.work(e.IBV_WR_SEND, i * size, size, wr_id=i) for i in range(count)]
        for wr, following in zip(wrs, wrs[1:]):
            wr.next_wr = following
        a.qp.post_send(wrs[0])
        assert [(w.wr_id, w.status) for w in a.poll(count)] == [(i, OK) for i in range(count)]
        all_good(b.poll(count))
        assert b.mr.read(len(data), 0) == data
        many, packets = bed.h1.buffers_sent() - before[0], bed.h1.counters()["sent_pkts"] - before[1]
    assert many < packets / 3, f"{packets} packets in {many} buffers"


@pytest.mark.parametrize("op", ["send", "write", "read"])
@pytest.mark.parametrize("ip", [4, 6])
def test_loopback(bed, op, ip):
    """Within one device, through the loopback interface."""
    bed.h1.set_switch("direct", "0")
    try:
        with pair(bed.h1.dev, bed.h1.dev, ip, length=4 * MIB, connect={"mtu": 4096}) as (a, b):
            transfer(a, b, op, 4 * MIB, [MIB, 100003])
    finally:
        bed.h1.set_switch("direct", "1")
