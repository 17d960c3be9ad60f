# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=3072
"""What goes over the wire: every opcode but those of XRC, its headers, and an ICRC that a second implementation agrees with."""

import contextlib
import ipaddress
import socket

import pyverbs.enums as e
import pytest
from pyverbs.mr import MW

from capture import capture, merged
from datagram import GRH, QKEY, Ud
from impair import drop_every
from test_atomics import ATOMIC_ACCESS, EX, PLACEMENT, post, set_word
from test_memory import BIND, LOCAL, REMOTE_WRITE, bound
from verbs import OK, Endpoint, pair, pattern

SIGNALED, SOLICITED, INLINE = e.IBV_SEND_SIGNALED, e.IBV_SEND_SOLICITED, e.IBV_SEND_INLINE


KEPT = []
"""Captures for a second opinion, in the end."""

UNRELIABLE = [e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM]


def every_operation(a, b, mtu, codes=(*UNRELIABLE, e.IBV_WR_RDMA_READ)):
    """SEND, WRITE and READ of one, two and three packets, every pad, with and without immediate data."""
    a.mr.write(pattern(20000, 1), 20000, 0)
    for n in (0, 1, 2, 3, 4, mtu - 1, mtu, mtu + 1, 2 * mtu + 2, 3 * mtu + 3):
        for code in codes:
            receives = code not in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ)
            if receives:
                b.recv(0, 20000)
            a.post(code, 1, n, remote=b.at(3), imm=0xa0b0c0d0)
            assert a.done() == OK
            if receives:
                assert b.done() == OK


ALL = {"SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_LAST_IMM", "SEND_ONLY", "SEND_ONLY_IMM", "WRITE_FIRST",
       "WRITE_MIDDLE", "WRITE_LAST", "WRITE_LAST_IMM", "WRITE_ONLY", "WRITE_ONLY_IMM", "READ_REQUEST",
       "READ_RESPONSE_FIRST", "READ_RESPONSE_MIDDLE", "READ_RESPONSE_LAST", "READ_RESPONSE_ONLY", "ACK"}
REQUESTS = {n for n in ALL if not n.startswith("READ_RESPONSE") and n != "ACK"}


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("mtu", [256, 1024, 4096])
def test_every_opcode(bed, mtu, ip):
    with pair(bed.h1.dev, bed.h2.dev, ip, connect={"mtu": mtu}) as (a, b):
        with capture(bed.h2, bed.h1) as cap:
            every_operation(a, b, mtu)
        packets = cap.checked()
        assert {p.name for p in packets} == ALL, cap.listing()
        assert {(p.name in REQUESTS, p.pad) for p in packets} == {(r, pad) for r in (True, False) for pad in range(4)}
        src, dst = ipaddress.ip_address(bed.h1.ip(ip)), ipaddress.ip_address(bed.h2.ip(ip))
        for p in packets:
            request = p.name in REQUESTS
            assert (p.src, p.dst) == ((src, dst) if request else (dst, src)), p
            assert p.qpn == (b if request else a).qp.qp_num, p
            assert p.pkey == 0xffff and p.df and not any(p.pad_bytes), p
            assert len(p.payload) <= mtu, p
            if p.name.endswith(("FIRST", "MIDDLE")):
                assert len(p.payload) == mtu, p
            if p.imm is not None:
                assert p.imm == socket.htonl(0xa0b0c0d0), p  # libibverbs takes it in network order.
            if p.va is not None:
                assert (p.va, p.rkey) == b.at(3) or p.dma_length == 0, p
            if p.syndrome is not None:
                assert p.syndrome >> 5 == 0, f"not an ACK: {p}"
        if mtu == 1024:
            KEPT.append(cap)


def from_to(bed, packets, ip, requests):
    """Addresses and flags of packets: requests come from h1."""
    src, dst = ipaddress.ip_address(bed.h1.ip(ip)), ipaddress.ip_address(bed.h2.ip(ip))
    for p in packets:
        assert (p.src, p.dst) == ((src, dst) if p.name in requests else (dst, src)), p
        assert p.pkey == 0xffff and p.df and not any(p.pad_bytes), p


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_placement(bed, ip):
    """Atomic operations, ATOMIC WRITE, FLUSH, and SEND with invalidate of one and of three packets."""
    access = PLACEMENT | ATOMIC_ACCESS
    with pair(bed.h1.dev, bed.h2.dev, ip, connect={"access": access}, ex=EX | e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
              b={"access": access | BIND | LOCAL}) as (a, b), contextlib.ExitStack() as stack:
        data = pattern(3000, 1)
        a.mr.write(data, 3000, 0)
        set_word(b, 64, 0x1122334455667788)
        keys = [bound(b, stack.enter_context(MW(b.pd, e.IBV_MW_TYPE_2)), 4096 * n, 4096, REMOTE_WRITE) for n in (1, 2)]
        va, key = b.at(64)
        number = b.qp.qp_num
        with capture(bed.h2, bed.h1) as cap:
            post(a, "wr_atomic_fetch_add", key, va, 0x0102030405060708, sge=(8000, 8))
            post(a, "wr_atomic_cmp_swp", key, va, 0x122436485a6c7e90, 0xfedcba9876543210, sge=(8000, 8))
            post(a, "wr_atomic_write", key, va + 8, data[:8])
            post(a, "wr_flush", key, va, 16, e.IBV_FLUSH_GLOBAL, e.IBV_FLUSH_RANGE)
            post(a, "wr_flush", key, 0, 0, e.IBV_FLUSH_GLOBAL, e.IBV_FLUSH_MR)
            assert [w.status for w in a.poll(5)] == [OK] * 5
            for n, window in zip((5, 2050), keys):
                b.recv(30000, 4096)
                a.post(e.IBV_WR_SEND_WITH_INV, 0, n, imm=window)
                assert (a.done(), b.done()) == (OK, OK)
                assert b.mr.read(n, 30000) == data[:n]
    packets = cap.checked()
    requests = [p for p in packets if p.qpn == number]
    assert [p.name for p in requests] == ["FETCH_ADD", "COMPARE_SWAP", "ATOMIC_WRITE", "FLUSH", "FLUSH", "SEND_ONLY_INV", "SEND_FIRST",
                                          "SEND_MIDDLE", "SEND_LAST_INV"], cap.listing()
    from_to(bed, packets, ip, {p.name for p in requests})
    add, swap, write, flush, flush_all = requests[:5]
    assert (add.va, add.rkey, add.swap_add, add.compare, add.payload) == (va, key, 0x0102030405060708, 0, b"")
    assert (swap.va, swap.rkey, swap.swap_add, swap.compare, swap.payload) == (
        va, key, 0xfedcba9876543210, 0x122436485a6c7e90, b"")
    assert (write.va, write.rkey, write.dma_length, write.payload) == (va + 8, key, 8, data[:8])
    assert (flush.va, flush.rkey, flush.dma_length, flush.flush, flush.payload) == (va, key, 16, (0, 1), b"")
    assert (flush_all.rkey, flush_all.flush, flush_all.payload) == (key, (1, 1), b"")
    assert [p.inv for p in requests[5:]] == [keys[0], None, None, keys[1]]
    assert [p.original for p in cap.of("ATOMIC_ACK")] == [0x1122334455667788, 0x1122334455667788 + 0x0102030405060708]
    assert [(p.name, p.payload) for p in packets if p.name.startswith("READ_RESPONSE")] == [("READ_RESPONSE_ONLY", b"")] * 3
    KEPT.append(cap)


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_unreliable_connection(bed, ip):
    """Every UC opcode; none asks for an answer, and there is none."""
    with pair(bed.h1.dev, bed.h2.dev, ip, kind=e.IBV_QPT_UC) as (a, b):
        with capture(bed.h2, bed.h1) as cap:
            every_operation(a, b, 1024, UNRELIABLE)
        packets = cap.checked()
        assert {p.name for p in packets} == REQUESTS - {"READ_REQUEST"}, cap.listing()
        from_to(bed, packets, ip, REQUESTS)
        first = packets[0].psn
        for n, p in enumerate(packets):
            assert p.transport == "UC" and p.qpn == b.qp.qp_num and not p.ackreq, p
            assert p.psn == (first + n) & 0xffffff, p
            assert p.imm is None or p.imm == socket.htonl(0xa0b0c0d0), p
            assert p.va is None or (p.va, p.rkey) == b.at(3) or p.dma_length == 0, p
        KEPT.append(cap)


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_datagrams(bed, ip):
    """UD, with and without immediate data, all pads, up to a whole packet; the Q_Key given, or the queue pair's own."""
    with Endpoint(bed.h1.dev) as a, Endpoint(bed.h2.dev) as b, contextlib.ExitStack() as stack:
        own = [Ud(end) for end in (a, b)]
        for qp in own:
            stack.callback(qp.close)
        x, y = own
        address = x.address(y, ip)
        stack.callback(address.close)
        sizes = (0, 1, 2, 3, 4, 1025, 4096)
        data = pattern(4096, 1)
        a.mr.write(data, 4096, 0)
        with capture(bed.h2, bed.h1) as cap:
            for n in sizes:
                for imm, qkey in ((None, QKEY), (0xa0b0c0d0, 0x80000000)):
                    y.recv(0, GRH + 4096)
                    x.send(address, y, n, imm=imm, qkey=qkey)
                    assert (a.done(), b.done()) == (OK, OK)
                    assert b.mr.read(n, GRH) == data[:n]
        packets = cap.checked()
        assert [(p.name, p.payload) for p in packets] == [
            (name, data[:n]) for n in sizes for name in ("SEND_ONLY", "SEND_ONLY_IMM")], cap.listing()
        from_to(bed, packets, ip, {"SEND_ONLY", "SEND_ONLY_IMM"})
        for p in packets:
            assert (p.transport, p.qpn, p.src_qp, p.qkey, p.ackreq) == ("UD", y.qp.qp_num, x.qp.qp_num, QKEY, False), p
            assert p.imm in (None, socket.htonl(0xa0b0c0d0)), p
        KEPT.append(cap)


def expected_psns(cap):
    """Every request takes the next PSN; a READ request takes as many as it has responses."""
    at = None
    for p in cap.of(*REQUESTS):
        assert at is None or p.psn == at, f"PSN {at} expected:\n{p}"
        count = max(1, -(-p.dma_length // 1024)) if p.name == "READ_REQUEST" else 1
        at = (p.psn + count) & 0xffffff


@pytest.mark.parametrize("first", [0, 0x7ffffe, 0xfffff8, 0xffffff])
def test_packet_sequence_numbers(bed, first):
    """PSNs count up through the top of their 24 bits; responses carry those of their requests; the MSN counts."""
    a, b = Endpoint(bed.h1.dev), Endpoint(bed.h2.dev)
    a.psn = b.psn = first
    a.connect(b)
    b.connect(a)
    with capture(bed.h1, bed.h2) as cap:
        every_operation(a, b, 1024)
    expected_psns(cap)
    assert cap.of(*REQUESTS)[0].psn == first
    responses = [p for p in cap.checked() if p.name.startswith("READ_RESPONSE")]
    wanted = []
    for p in cap.of("READ_REQUEST"):
        wanted += [(p.psn + i) & 0xffffff for i in range(max(1, -(-p.dma_length // 1024)))]
    assert [p.psn for p in responses] == wanted
    msns = [p.msn for p in cap.packets if p.msn is not None]
    assert msns == sorted(msns) and msns[-1] == 50, msns
    a.close()
    b.close()


def test_solicited_event_bit(bed):
    """Set in the last packet of a message that asks for it, and nowhere else."""
    with pair(bed.h1.dev, bed.h2.dev) as (a, b):
        with capture(bed.h1, bed.h2) as cap:
            for flags in (SIGNALED, SIGNALED | SOLICITED):
                for n in (10, 2500):
                    b.recv(0, 4096)
                    a.send(0, n, flags=flags)
                    assert a.done() == OK and b.done() == OK
        sends = [(p.name, p.solicited) for p in cap.checked() if p.name.startswith("SEND")]
        assert sends == [("SEND_ONLY", False), ("SEND_FIRST", False), ("SEND_MIDDLE", False), ("SEND_LAST", False),
                         ("SEND_ONLY", True), ("SEND_FIRST", False), ("SEND_MIDDLE", False), ("SEND_LAST", True)]


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_traffic_class_and_hop_limit(bed, ip):
    """DSCP from the queue pair's traffic class, the hop limit from the route, also in what the responder sends."""
    with pair(bed.h1.dev, bed.h2.dev, ip, connect={"tclass": 0x68}) as (a, b):
        with capture(bed.h1, bed.h2) as cap:
            every_operation(a, b, 1024)
    for p in cap.checked():
        assert p.tclass & 0xfc == 0x68, p
        assert p.hops == 64, p


def test_udp_source_ports(bed):
    """One queue pair keeps to one port (order in the network), many spread over many (paths in the network)."""
    with pair(bed.h1.dev, bed.h2.dev) as (a, b):
        more = []
        for _ in range(15):
            ends = Endpoint(a.dev, share=a), Endpoint(b.dev, share=b)
            ends[0].connect(ends[1])
            ends[1].connect(ends[0])
            more.append(ends)
        with capture(bed.h1, bed.h2) as cap:
            for x, y in [(a, b)] + more:
                for _ in range(3):
                    x.write(0, 100, y.at(0))
                    assert a.done() == OK
        ports = {}
        for p in cap.of("WRITE_ONLY"):
            ports.setdefault(p.qpn, set()).add(p.sport)
        assert len(ports) == 16 and all(len(s) == 1 for s in ports.values()), ports
        used = {s for group in ports.values() for s in group}
        assert len(used) >= 8 and all(0xc000 <= s <= 0xffff for s in used), sorted(used)
        for ends in more:
            for end in ends:
                end.close()


def nak_codes(cap):
    return [p.syndrome & 0x1f for p in cap.of("ACK") if p.syndrome >> 5 == 3]


def test_negative_acknowledgements(bed):
    """The syndromes of receiver not ready (with its timer) and of remote access errors."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"min_rnr_timer": 13, "rnr_retry": 0, "timeout": 0}) as (a, b):
        with capture(bed.h1, bed.h2) as cap:
            a.send(0, 8)
            assert a.done() == e.IBV_WC_RNR_RETRY_EXC_ERR
        acks = [p.syndrome for p in cap.checked() if p.name == "ACK"]
        assert acks == [0x20 | 13], cap.listing()
        KEPT.append(cap)
    with pair(bed.h1.dev, bed.h2.dev, connect={"timeout": 0}) as (a, b):
        with capture(bed.h1, bed.h2) as cap:
            a.write(0, 8, (b.mr.buf, b.mr.rkey ^ 0x100))
            assert a.done() == e.IBV_WC_REM_ACCESS_ERR
        assert nak_codes(cap) == [2], cap.listing()
        cap.checked()


@pytest.mark.differs_on_rxe("a remote operational error for some lengths")
def test_invalid_request(bed):
    """The syndrome for a message that the receive has no room for."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"timeout": 0}) as (a, b):
        b.recv(0, 10)
        with capture(bed.h1, bed.h2) as cap:
            a.send(0, 4000)
            assert a.done() == e.IBV_WC_REM_INV_REQ_ERR
        assert nak_codes(cap) == [1], cap.listing()
        cap.checked()


def test_sequence_error(bed):
    """One packet of a message lost: one NAK with the PSN that was expected, and the sender goes on from there."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"timeout": 0}) as (a, b):
        b.recv(0, 20000)
        with drop_every(bed.h2, 1, 7), capture(bed.h2, bed.h1) as cap:
            a.send(0, 10 * 1024)
            assert a.done() == OK and b.done() == OK
        sends = [p.psn for p in cap.checked() if p.name.startswith("SEND")]
        first = sends[0]
        lost = (first + 7) & 0xffffff
        again = len(sends) - 1 - sends[::-1].index(lost)
        naks = [(p.psn, p.syndrome) for p in cap.of("ACK") if p.syndrome >> 5 == 3]
        assert naks == [(lost, 0x60)], cap.listing()
        assert again > sends.index(lost), cap.listing()
        assert sends[again:] == [(lost + i) & 0xffffff for i in range(3)], cap.listing()


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_large_transfers(bed, ip):
    """Long trains, as they leave the device: each packet of them whole, in order and with its own ICRC."""
    with pair(bed.h1.dev, bed.h2.dev, ip, length=1 << 20, connect={"mtu": 4096, "timeout": 20}) as (a, b):
        data = pattern(1 << 20, 5)
        a.mr.write(data, 1 << 20, 0)
        with capture(bed.h2, bed.h1) as cap:
            a.write(0, 1 << 20, b.at(0))
            assert a.done(120) == OK
            a.read(0, 1 << 20, b.at(0))
            assert a.done(120) == OK
        cap.checked()
        writes = b"".join(p.payload for p in cap.packets if p.name.startswith("WRITE"))
        reads = b"".join(p.payload for p in cap.packets if p.name.startswith("READ_RESPONSE"))
        assert writes == data and reads == data


@pytest.mark.differs_on_rxe("has no such switch")
def test_icrc_can_be_switched_off(bed):
    """Then packets carry none and none is looked at; a side where it is on takes nothing from one where it is off."""
    data = pattern(10000, 3)
    try:
        with pair(bed.h1.dev, bed.h2.dev, kind=e.IBV_QPT_UC) as (a, b):
            a.mr.write(data, 10000, 0)
            b.recv(0, 10000)
            bed.h1.set_icrc("0")
            bad = bed.h2.counters()["drop_bad_icrc"]
            a.send(0, 100)
            assert a.done() == OK
            b.nothing(0.2)
            assert bed.h2.counters()["drop_bad_icrc"] == bad + 1
            bed.h2.set_icrc("n")
            with capture(bed.h2, bed.h1) as cap:
                a.send(0, 10000)
                assert (a.done(), b.done()) == (OK, OK)
            assert b.mr.read(10000, 0) == data
            assert cap.packets and all(p.icrc == bytes(4) for p in cap.packets), cap.listing()
            bed.h1.set_icrc("1")
            b.recv(0, 10000)
            with capture(bed.h2, bed.h1) as cap:
                a.send(0, 5000)
                assert (a.done(), b.done()) == (OK, OK)
            assert cap.checked()
            assert bed.h2.counters()["drop_bad_icrc"] == bad + 1
            with pytest.raises(OSError):
                bed.h1.set_icrc("2x")
    finally:
        bed.h1.set_icrc("1")
        bed.h2.set_icrc("1")
    assert open(f"/sys/class/infiniband/{bed.h2.dev}/icrc", encoding="ascii").read() == "1\n"


def test_second_opinion():
    """tshark finds nothing wrong in what was captured here, and reads the headers as wire.py does."""
    if not KEPT:
        pytest.skip("nothing was captured")
    assert not merged(KEPT).tshark_complaints()
