# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=2048
"""Datagrams: Q_Keys, the header before the payload, what does not fit, many destinations, ibv_ud_pingpong and perftest."""

import ipaddress
import re
import time

import pyverbs.enums as e
import pytest
from pyverbs.addr import AH
from pyverbs.pd import PD
from pyverbs.qp import QPAttr

from datagram import GRH, QKEY, Ud, deliver
from impair import lossy
from perftest import perftest
from verbs import OK, Endpoint, all_good, pattern

OF_THE_QP = 0x80000000


@pytest.fixture
def ends(bed):
    with Endpoint(bed.h1.dev) as x, Endpoint(bed.h2.dev) as y:
        a, b = Ud(x), Ud(y)
        yield a, b
        a.close()
        b.close()


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_data(bed, ends, ip):
    """Payload behind 40 bytes of header: the IPv6 header, or the IPv4 header in the last 20."""
    a, b = ends
    address = a.address(b, ip)
    for size in (0, 1, 2, 3, 4, 1023, 4096):
        for imm in (None, 0x12345678):
            wc = deliver(a, b, address, size, imm)
            assert wc.wc_flags & e.IBV_WC_GRH
            assert imm is None or wc.wc_flags & e.IBV_WC_WITH_IMM
            grh = b.end.mr.read(GRH, 8192)
            source, target = (ipaddress.ip_address(h.ip(ip)) for h in (bed.h1, bed.h2))
            if ip == 4:
                assert grh[20] == 0x45 and grh[32:] == source.packed + target.packed
            else:
                assert grh[0] >> 4 == 6 and grh[8:] == source.packed + target.packed
    address.close()


@pytest.mark.differs_on_rxe("it leaves the programs to guess")
@pytest.mark.parametrize("ip, code", [(4, 2), (6, 1)])
def test_header_is_told(ends, ip, code):
    """In the service level of the completion, as by adapters; UCX relies on it."""
    a, b = ends
    address = a.address(b, ip)
    b.recv(0, 200)
    a.send(address, b, 10)
    assert a.end.poll()[0].sl == 0 and b.end.poll()[0].sl == code
    address.close()


@pytest.mark.parametrize("of_peer, in_wr, of_qp, arrives", [
    (QKEY, QKEY, 1, True), (QKEY, QKEY + 1, QKEY, False), (QKEY, OF_THE_QP, QKEY, True), (QKEY, OF_THE_QP, QKEY + 1, False),
    (QKEY, OF_THE_QP | QKEY, QKEY + 1, False), (0, 0, QKEY, True)])
def test_qkey(bed, of_peer, in_wr, of_qp, arrives):
    """The peer's has to match; the top bit in the request stands for the QP's own."""
    with Endpoint(bed.h1.dev) as x, Endpoint(bed.h2.dev) as y:
        a, b = Ud(x, of_qp), Ud(y, of_peer)
        address = a.address(b)
        b.recv(0, 200)
        a.send(address, b, 10, qkey=in_wr)
        assert x.done() == OK
        if arrives:
            assert y.done() == OK
        else:
            y.nothing(0.2)
        assert a.state() == b.state() == e.IBV_QPS_RTS
        for thing in (address, a, b):
            thing.close()


def test_what_does_not_fit_hurts_nobody(ends):
    """A datagram without a receive, or larger than it, is dropped; the receive waits for one that fits."""
    a, b = ends
    address = a.address(b)
    a.send(address, b, 100)
    assert a.end.done() == OK
    time.sleep(0.1)
    b.recv(0, GRH + 50, wr_id=5)
    for size in (51, 4096, 100):
        a.send(address, b, size)
        assert a.end.done() == OK
    b.end.nothing(0.2)
    a.send(address, b, 50)
    assert a.end.done() == OK
    wc = b.end.poll()[0]
    assert (wc.wr_id, wc.status, wc.byte_len) == (5, OK, GRH + 50)
    assert b.state() == e.IBV_QPS_RTS and not b.end.events()
    address.close()


@pytest.mark.differs_on_rxe("a datagram longer than the MTU completes with success; errors lead into ERR")
@pytest.mark.parametrize("what", ["length", "key"])
def test_errors_lead_into_sqe(ends, what):
    a, b = ends
    address = a.address(b)
    b.recv(0, 4096)
    b.recv(4096, 4096)
    a.send(address, b, 10, wr_id=1)
    if what == "length":
        a.send(address, b, 4097, wr_id=2)
    else:
        a.send(address, b, 10, wr_id=2, lkey=a.end.mr.lkey ^ 1)
    a.send(address, b, 10, wr_id=3)
    wanted = e.IBV_WC_LOC_LEN_ERR if what == "length" else e.IBV_WC_LOC_PROT_ERR
    assert [(w.wr_id, w.status) for w in a.end.poll(3)] == [(1, OK), (2, wanted), (3, e.IBV_WC_WR_FLUSH_ERR)]
    assert a.state() == e.IBV_QPS_SQE
    a.qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS, port_num=1), e.IBV_QP_STATE)
    a.send(address, b, 20, wr_id=4)
    assert a.end.done() == OK
    assert [w.byte_len for w in b.end.poll(2)] == [GRH + 10, GRH + 20]
    address.close()


def test_address_of_another_domain(ends):
    """An address handle is good in its own protection domain alone; the queue pair goes on."""
    a, b = ends
    with PD(a.end.ctx) as other:
        own = a.address(b)
        foreign = AH(other, attr=a.end.path(b.end.gid(b.end.gid_index(4)), a.end.gid_index(4)))
        b.recv(0, 200, wr_id=1)
        a.send(foreign, b, 10)
        assert a.end.done() == e.IBV_WC_LOC_QP_OP_ERR
        b.end.nothing(0.1)
        assert a.state() == e.IBV_QPS_SQE
        a.qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS, port_num=1), e.IBV_QP_STATE)
        a.send(own, b, 10)
        assert a.end.done() == OK and b.end.poll()[0].wr_id == 1
        foreign.close()
        own.close()


def test_many_destinations(bed, ends):
    """One QP sends to many, over IPv4 and IPv6 in turn; each gets its own."""
    a, b = ends
    peers = [b] + [Ud(b.end) for _ in range(7)]
    addresses = {ip: a.address(b, ip) for ip in (4, 6)}
    for n, peer in enumerate(peers):
        peer.recv(n * 256, 256, wr_id=n)
    for n, peer in enumerate(peers):
        a.send(addresses[4 if n % 2 else 6], peer, 10 + n, imm=n)
    all_good(a.end.poll(8))
    got = {w.wr_id: w for w in b.end.poll(8)}
    for n, peer in enumerate(peers):
        assert (got[n].qp_num, got[n].byte_len, got[n].imm_data) == (peer.qp.qp_num, GRH + 10 + n, n)
    for peer in peers[1:]:
        peer.close()
    for address in addresses.values():
        address.close()


def internet_sum(data):
    total = sum(data[i] << 8 | data[i + 1] for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total


@pytest.mark.differs_on_rxe("each packet is a buffer")
@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_datagrams_travel_together(bed, ends, ip):
    """Posted with one call, for two QPs at one address: they may share buffers, and each has the header that it would have alone."""
    a, b = ends
    count, room = 32, 512
    peers = [b, Ud(b.end)]
    address = a.address(b, ip)
    sizes = [301] * 8 + [17, 301] * 4 + [301] * 16
    data = pattern(count * room, 7)
    a.end.mr.write(data, len(data), 0)
    for n in range(count):
        peers[n // 3 % 2].recv(count * room + n * room, room, wr_id=n)
    wrs = [a.work(address, peers[n // 3 % 2], sizes[n], off=n * room, imm=n, wr_id=n) for n in range(count)]
    for wr, following in zip(wrs, wrs[1:]):
        wr.next_wr = following
    before = bed.h1.buffers_sent()
    a.qp.post_send(wrs[0])
    assert [(w.wr_id, w.status) for w in a.end.poll(count)] == [(n, OK) for n in range(count)]
    got = {w.wr_id: w for w in b.end.poll(count)}
    assert bed.h1.buffers_sent() - before < count / 2
    for n, size in enumerate(sizes):
        assert (got[n].status, got[n].byte_len, got[n].imm_data) == (OK, GRH + size, n)
        at = count * room + n * room
        assert b.end.mr.read(size, at + GRH) == data[n * room:n * room + size]
        grh = b.end.mr.read(GRH, at)
        udp = 8 + 12 + 8 + 4 + (size + 3 & ~3) + 4
        if ip == 4:
            assert int.from_bytes(grh[22:24], "big") == 20 + udp and internet_sum(grh[20:]) == 0xffff, grh.hex()
        else:
            assert int.from_bytes(grh[4:6], "big") == udp, grh.hex()
    peers[1].close()
    address.close()


@pytest.mark.parametrize("of", ["requests", "replies"])
def test_who_has_nothing_more_to_say_does_not_wait(bed, ends, of):
    """What is posted soon after other datagrams may wait for more; it is sent all the same if there are none."""
    a, b = ends
    address = a.address(b)
    for n in range(40):
        b.recv(n * 256, 256, wr_id=n)
    for n in range(20):
        # The second one comes soon after the first, and nobody posts a third.
        a.send(address, b, 10, imm=2 * n)
        a.send(address, b, 10, imm=2 * n + 1)
        if of == "requests":
            assert [w.status for w in a.end.poll(2)] == [OK] * 2
        assert [w.imm_data for w in b.end.poll(2)] == [2 * n, 2 * n + 1]
        if of == "replies":
            assert [w.status for w in a.end.poll(2)] == [OK] * 2
    address.close()


def test_loss_reorder_and_duplicates(bed, ends):
    """Datagrams may get lost, overtake each other or come twice, but what comes is right."""
    a, b = ends
    address = a.address(b)
    with lossy(bed, "delay 200us reorder 10% loss 10% duplicate 10%"):
        for n in range(32):
            b.recv(n * 1024, 1024, wr_id=n)
        seen = []
        for number in range(200):
            size = 1 + number % 900
            a.end.mr.write(pattern(size, number), size, 40000)
            a.send(address, b, size, off=40000, imm=number)
            assert a.end.done() == OK
            time.sleep(0.001)
            for wc in b.end.cq.poll(32)[1]:
                size = 1 + wc.imm_data % 900
                assert (wc.status, wc.byte_len) == (OK, GRH + size)
                assert b.end.mr.read(size, wc.wr_id * 1024 + GRH) == pattern(size, wc.imm_data)
                seen.append(wc.imm_data)
                b.recv(wc.wr_id * 1024, 1024, wr_id=wc.wr_id)
        assert 100 < len(set(seen)) < 200
    address.close()


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("options", [[], ["-e"], ["-s", 1], ["-s", 4000]], ids=["polling", "events", "one_byte", "4000"])
def test_pingpong(bed, options, ip):
    port, n = bed.port(), 20

    def cmd(host):
        return ["ibv_ud_pingpong", "-d", host.dev, "-g", host.gid_index(host.ip(ip)), "-p", port, "-n", n, *options]
    for r in bed.pair(cmd(bed.h1), cmd(bed.h2) + [bed.h1.ip4], port):
        assert re.search(r"^\d+ bytes in ", r.out, re.M) and f"\n{n} iters in" in r.out, r


@pytest.mark.parametrize("tool, options", [("ib_send_bw", ["-s", 33]), ("ib_send_bw", ["-s", 4000, "-q", 4]), ("ib_send_bw", ["-e"]),
                                           ("ib_send_bw", ["-b"]), ("ib_send_lat", ["-s", 1]), ("ib_send_lat", ["-I", 64, "-s", 50])])
def test_perftest(bed, tool, options):
    perftest(bed, tool, "-c", "UD", "-n", 20, *options)
