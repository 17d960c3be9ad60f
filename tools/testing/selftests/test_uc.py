# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=2048
"""Unreliable connections: data, what is refused, and that whatever gets lost takes its own message along and no other."""

import re
import time

import pyverbs.enums as e
import pytest

from impair import drop_every, lossy
from perftest import perftest
from verbs import OK, all_good, pair, pattern, status_name

UC = e.IBV_QPT_UC
SEND_FIRST, SEND_MIDDLE, SEND_LAST, WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST = 32, 33, 34, 38, 39, 40


def connected(bed, ip=4, **opts):
    return pair(bed.h1.dev, bed.h2.dev, ip, kind=UC, **opts)


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_data(bed, ip):
    """SEND and WRITE, with and without immediate data, of all pads, in both directions."""
    with connected(bed, ip) as ends:
        for size in (0, 1, 2, 3, 4, 1023, 1024, 1025, 5000, 20001):
            for x, y in (ends, ends[::-1]):
                data = pattern(size, size)
                x.mr.write(data, size, 0)
                y.recv(30000, size + 10)
                x.send(0, size)
                assert x.done() == OK
                assert y.poll()[0].byte_len == size
                assert y.mr.read(size, 30000) == data
                x.write(0, size, y.at(30000))
                assert x.done() == OK
                y.recv(0, 0)
                x.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, 0, size, remote=y.at(30001), imm=0x12345678)
                assert x.done() == OK
                wc = y.poll()[0]
                assert (wc.status, wc.imm_data, wc.byte_len) == (OK, 0x12345678, size)
                assert y.mr.read(size, 30001) == data


def test_many_messages(bed):
    """More than fits a window: nothing waits for the peer, and without loss everything arrives, in order."""
    with connected(bed, depth=128, length=1 << 20, connect={"mtu": 4096}) as (a, b):
        data = pattern(1 << 19, 1)
        a.mr.write(data, 1 << 19, 0)
        for _ in range(4):
            for n in range(8):
                b.recv((1 << 19) + n * 65536, 65536, wr_id=n)
            for n in range(8):
                a.send(n * 65536, 65536, wr_id=n)
            assert [(w.wr_id, w.status) for w in a.poll(8)] == [(n, OK) for n in range(8)]
            assert [(w.wr_id, w.status) for w in b.poll(8)] == [(n, OK) for n in range(8)]
            assert b.mr.read(1 << 19, 1 << 19) == data


@pytest.mark.differs_on_rxe("a lost last packet of a WRITE makes rxe deaf")
@pytest.mark.parametrize("op, opcode", [("send", SEND_FIRST), ("send", SEND_MIDDLE), ("send", SEND_LAST),
                                        ("write", WRITE_FIRST), ("write", WRITE_MIDDLE), ("write", WRITE_LAST)])
def test_a_lost_packet_takes_its_message_along(bed, op, opcode):
    """Every third message loses a packet; all others arrive whole, and the receives are used in order."""
    size, count = 3000, 9
    with drop_every(bed.h2, opcode, 3), connected(bed, connect={"mtu": 1024}) as (a, b):
        for n in range(count):
            data = pattern(size, n)
            a.mr.write(data, size, 0)
            if op == "send":
                b.recv(8192, size, wr_id=n)
                a.send(0, size)
            else:
                b.mr.write(bytes(size), size, 8192)
                a.write(0, size, b.at(8192))
                # Tells that what came before is over.
                b.recv(0, 0, wr_id=n)
                a.post(e.IBV_WR_SEND_WITH_IMM, 0, 0, imm=n)
            all_good(a.poll(1 if op == "send" else 2))
            lost = n % 3 == 2
            if op == "send" and lost:
                b.nothing(0.1)
            else:
                wc = b.poll()[0]
                assert wc.status == OK, status_name(wc.status)
            whole = b.mr.read(size, 8192) == data
            assert whole != lost, n
        assert a.state() == b.state() == e.IBV_QPS_RTS


@pytest.mark.seconds(300)
def test_loss_reorder_and_duplicates(bed):
    """Of numbered messages some arrive: each at most once, whole, in order."""
    total = 400
    with lossy(bed, "delay 200us reorder 5% loss 5% duplicate 5%"), connected(bed, depth=64, length=1 << 20,
                                                                               connect={"mtu": 1024}) as (a, b):
        for n in range(32):
            b.recv(n * 4096, 4096, wr_id=n)
        seen, sent = [], 0
        while sent < total:
            burst = min(16, total - sent)
            for i in range(burst):
                number = sent + i
                size = 8 + number % 3000
                data = pattern(size, number)
                a.mr.write(data, size, 500000 + i * 4096)
                a.post(e.IBV_WR_SEND_WITH_IMM, 500000 + i * 4096, size, imm=number)
            all_good(a.poll(burst))
            sent += burst
            time.sleep(0.02)
            n, wcs = b.cq.poll(32)
            for wc in wcs:
                assert wc.status == OK, status_name(wc.status)
                number = wc.imm_data
                size = 8 + number % 3000
                assert wc.byte_len == size and b.mr.read(size, wc.wr_id * 4096) == pattern(size, number)
                seen.append(number)
                b.recv(wc.wr_id * 4096, 4096, wr_id=wc.wr_id)
        assert seen == sorted(set(seen)), "in order, each once"
        assert total // 4 < len(seen) < total
        assert a.state() == b.state() == e.IBV_QPS_RTS


def test_no_receive(bed):
    """A message without a receive is lost, the next one with one arrives."""
    with connected(bed) as (a, b):
        a.send(0, 5000)
        assert a.done() == OK
        time.sleep(0.1)
        b.recv(0, 5000)
        b.nothing(0.1)
        a.send(0, 100)
        assert a.done() == OK
        assert b.poll()[0].byte_len == 100


def test_what_the_peer_refuses_is_silent(bed):
    """Too long for the receive, a wrong key, no right: neither side is told, and both go on."""
    with connected(bed) as (a, b):
        b.recv(0, 100)
        a.send(0, 5000)
        a.write(0, 100, (b.mr.buf, b.mr.rkey ^ 0x100))
        a.write(0, 100, (b.mr.buf + (1 << 16), b.mr.rkey))
        assert [w.status for w in a.poll(3)] == [OK] * 3
        b.nothing(0.2)
        assert not b.events()
        a.send(0, 50)
        assert a.done() == OK
        assert b.poll()[0].byte_len == 50
        assert a.state() == b.state() == e.IBV_QPS_RTS


@pytest.mark.differs_on_rxe("the QP goes into ERR instead of SQE")
@pytest.mark.parametrize("what", ["read", "atomic", "invalidate", "key"])
def test_what_it_does_not_have(bed, what):
    """Completes in error, in its turn; the QP is then in SQE, from where it goes on."""
    with connected(bed) as (a, b):
        a.write(0, 8, b.at(0), wr_id=1)
        if what == "read":
            a.read(0, 8, b.at(0), wr_id=2)
        elif what == "atomic":
            a.fetch_add(0, b.at(0), 1, wr_id=2)
        elif what == "invalidate":
            a.post(e.IBV_WR_SEND_WITH_INV, 0, 8, wr_id=2, imm=b.mr.rkey)
        else:
            a.send(0, 8, wr_id=2, lkey=a.mr.lkey ^ 1)
        a.send(0, 8, wr_id=3)
        done = [(w.wr_id, w.status) for w in a.poll(3)]
        wanted = e.IBV_WC_LOC_PROT_ERR if what == "key" else e.IBV_WC_LOC_QP_OP_ERR
        assert done == [(1, OK), (2, wanted), (3, e.IBV_WC_WR_FLUSH_ERR)]
        assert a.state() == e.IBV_QPS_SQE
        a.to_state(e.IBV_QPS_RTS)
        b.recv(0, 100)
        a.send(0, 77, wr_id=4)
        assert a.done() == OK
        assert b.poll()[0].byte_len == 77


def test_drained(bed):
    from pyverbs.qp import QPAttr
    with connected(bed, connect={"mtu": 256}, length=1 << 20) as (a, b):
        a.write(0, 300000, b.at(0))
        attr = QPAttr(qp_state=e.IBV_QPS_SQD, port_num=1)
        attr.en_sqd_async_notify = 1
        a.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
        a.wait_event(e.IBV_EVENT_SQ_DRAINED)
        assert a.done() == OK


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("options", [[], ["-e"], ["-m", 256], ["-s", 1], ["-s", 100001]],
                         ids=["polling", "events", "mtu256", "one_byte", "odd"])
def test_pingpong(bed, options, ip):
    port, n = bed.port(), 20

    def cmd(host):
        return ["ibv_uc_pingpong", "-d", host.dev, "-g", host.gid_index(host.ip(ip)), "-p", port, "-n", n, *options]
    for r in bed.pair(cmd(bed.h1), cmd(bed.h2) + [bed.h1.ip4], port):
        assert re.search(r"^\d+ bytes in ", r.out, re.M) and f"\n{n} iters in" in r.out, r


@pytest.mark.parametrize("tool, options", [
    ("ib_send_bw", ["-a"]), ("ib_send_bw", ["-s", 33]), ("ib_send_bw", ["-s", 20001, "-q", 4]), ("ib_send_bw", ["-b"]),
    ("ib_send_lat", ["-s", 33]), ("ib_send_lat", ["-s", 100001]), ("ib_write_bw", ["-s", 33]),
    ("ib_write_bw", ["-s", 100001, "-q", 4]), ("ib_write_lat", ["-s", 33]), ("ib_write_lat", ["-s", 100001]),
    ("ib_send_lat", ["-I", 100, "-s", 77])])
def test_perftest(bed, tool, options):
    perftest(bed, tool, "-c", "UC", "-n", 10, *options)


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_send_lat"])
def test_perftest_events(bed, tool):
    perftest(bed, tool, "-c", "UC", "-e", "-n", 50, "-s", 5000)
