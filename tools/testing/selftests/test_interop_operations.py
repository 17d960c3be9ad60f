# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=3072
"""The driver under test against the kernel's own rxe, as requester and as responder: what test_interop_client.py leaves out.

Atomics, ATOMIC WRITE, UC, UD, memory windows and SEND with invalidate, shared receive queues, and connections by rdma_cm, for
which the GSI QPs of both have to understand each other.

FLUSH is not here: rxe computes its ICRC over the packet twice, so each drops what the other sends.
"""

import contextlib
import re
import struct

import pyverbs.enums as e
import pytest
from pyverbs.mr import MW, MWBind, MWBindInfo

from datagram import Ud, deliver
from impair import drop_every, lossy
from perftest import perftest
from test_atomics import EX, atomics, exact_sum, post, set_word, word
from test_cm import connect
from test_memory import ACCESS_ERR, BIND, LOCAL, REMOTE_READ, REMOTE_WRITE, bound
from test_uc import SEND_LAST, SEND_MIDDLE, WRITE_LAST
from testbed import DRIVER, Testbed, run
from verbs import FULL_ACCESS, OK, Endpoint, all_good, pair, pattern

PEER = "rxe"


@pytest.fixture(scope="module", params=[(DRIVER, PEER), (PEER, DRIVER)], ids=["requester", "responder"])
def bed(request):
    """The requester is on h1."""
    with Testbed(mtu=4200, kinds=request.param) as b:
        b.requester = request.param[0]
        yield b


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_atomics(bed, ip):
    with atomics(bed, ip) as (a, b):
        expected = 7
        set_word(b, 8, expected)
        for n in range(20):
            a.fetch_add(8 * n, b.at(8), n)
            assert a.done() == OK
            assert word(a, 8 * n) == expected
            expected += n
            a.compare_swap(8 * n, b.at(8), expected, expected + 5)
            assert a.done() == OK
            assert word(a, 8 * n) == expected
            expected += 5
            a.compare_swap(8 * n, b.at(8), expected + 1, 0)
            assert a.done() == OK
            assert word(b, 8) == word(a, 8 * n) == expected


@pytest.mark.seconds(300)
def test_atomics_with_loss(bed):
    """The sum is exact, and each result is the one of its turn."""
    with lossy(bed), atomics(bed, depth=64, connect={"timeout": 12}) as (a, b):
        exact_sum(a, b)


def test_atomics_mixed_with_reads(bed):
    with atomics(bed, depth=64, connect={"max_rd": 4, "max_dest_rd": 4}) as (a, b):
        set_word(b, 0, 0)
        for n in range(30):
            a.fetch_add(8 * n, b.at(0), 1)
            a.read(4096, 5000, b.at(8192))
        done = a.poll(60)
        all_good(done)
        assert [word(a, 8 * n) for n in range(30)] == list(range(30))


def test_atomic_errors(bed):
    with atomics(bed) as (a, b):
        a.fetch_add(0, (b.mr.buf, b.mr.rkey ^ 0x100), 1)
        assert a.done() == e.IBV_WC_REM_ACCESS_ERR
    with atomics(bed, access=FULL_ACCESS) as (a, b):
        a.fetch_add(0, b.at(0), 1)
        assert a.done() == e.IBV_WC_REM_ACCESS_ERR
    with atomics(bed, connect={"access": FULL_ACCESS}) as (a, b):
        a.fetch_add(0, b.at(0), 1)
        assert a.done() == e.IBV_WC_REM_INV_REQ_ERR


def test_atomic_write(bed):
    with pair(bed.h1.dev, bed.h2.dev, ex=EX) as (a, b):
        for n in range(20):
            data = pattern(8, n)
            post(a, "wr_atomic_write", b.mr.rkey, b.mr.buf + 8 * n, data)
            assert a.done() == OK
            assert b.mr.read(8, 8 * n) == data


@pytest.mark.seconds(300)
def test_atomic_write_with_loss(bed):
    if bed.requester == PEER:
        pytest.skip("rxe repeats an ATOMIC WRITE with address 0")
    with lossy(bed), pair(bed.h1.dev, bed.h2.dev, ex=EX, connect={"timeout": 12}) as (a, b):
        for n in range(60):
            for i in range(8):
                post(a, "wr_atomic_write", b.mr.rkey, b.mr.buf + 8 * (i % 2), struct.pack("=Q", n << 8 | i))
            all_good(a.poll(8, 120))
            assert (word(b, 0), word(b, 8)) == (n << 8 | 6, n << 8 | 7)


@pytest.mark.parametrize("tool", ["ib_atomic_bw", "ib_atomic_lat"])
@pytest.mark.parametrize("kind", ["CMP_AND_SWAP", "FETCH_AND_ADD"])
def test_atomic_perftest(bed, tool, kind):
    perftest(bed, tool, "-A", kind, "-n", 50)


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_uc_data(bed, ip):
    with pair(bed.h1.dev, bed.h2.dev, ip, kind=e.IBV_QPT_UC) as ends:
        for size in (0, 1, 2, 3, 4, 1024, 1025, 20001):
            for x, y in (ends, ends[::-1]):
                data = pattern(size, size)
                x.mr.write(data, size, 0)
                y.recv(30000, size)
                x.send(0, size)
                assert x.done() == OK and y.poll()[0].byte_len == size
                assert y.mr.read(size, 30000) == data
                y.recv(0, 0)
                x.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, 0, size, remote=y.at(30001), imm=77)
                assert x.done() == OK and y.poll()[0].imm_data == 77
                assert y.mr.read(size, 30001) == data


@pytest.mark.parametrize("op, opcode", [("send", SEND_MIDDLE), ("send", SEND_LAST), ("write", WRITE_LAST)])
def test_uc_lost_packet(bed, op, opcode):
    """The driver under test as responder goes on after whatever packet of rxe got lost."""
    if bed.requester == DRIVER:
        pytest.skip("rxe as responder goes deaf")
    with drop_every(bed.h2, opcode, 3), pair(bed.h1.dev, bed.h2.dev, kind=e.IBV_QPT_UC) as (a, b):
        for n in range(9):
            data = pattern(3000, n)
            a.mr.write(data, 3000, 0)
            if op == "send":
                b.recv(8192, 3000)
                a.send(0, 3000)
                assert a.done() == OK
            else:
                a.write(0, 3000, b.at(8192))
                b.recv(0, 0)
                a.post(e.IBV_WR_SEND_WITH_IMM, 0, 0, imm=n)
                assert [w.status for w in a.poll(2)] == [OK, OK]
            if op == "send" and n % 3 == 2:
                b.nothing(0.1)
            else:
                assert b.done() == OK
            assert (b.mr.read(3000, 8192) == data) == (n % 3 != 2)


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_write_bw"])
def test_uc_perftest(bed, tool):
    perftest(bed, tool, "-c", "UC", "-n", 20, "-s", 20001)


def test_atomics_count_with_the_access_of_the_peer(bed):
    """Both directions at once, on one word of each side."""
    with atomics(bed, depth=64) as ends:
        for end in ends:
            set_word(end, 0, 0)
        for _ in range(5):
            for x, y in (ends, ends[::-1]):
                for n in range(8):
                    x.fetch_add(64 + 8 * n, y.at(0), 1)
            for x in ends:
                all_good(x.poll(8))
        assert [word(end, 0) for end in ends] == [40, 40]


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_ud_data(bed, ip):
    """Both ways, all pads, with and without immediate data; the header in front of the payload is the sender's."""
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(Endpoint(h.dev)) for h in bed.hosts]
        qps = [Ud(end) for end in ends]
        for qp in qps:
            stack.callback(qp.close)
        for x, y in (qps, qps[::-1]):
            address = x.address(y, ip)
            stack.callback(address.close)
            for size in (0, 1, 2, 3, 1025, 4096):
                for imm in (None, 0x12345678):
                    deliver(x, y, address, size, imm)


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("program", ["ud", "srq"])
def test_more_pingpongs(bed, program, ip):
    port = bed.port()

    def cmd(host):
        return [f"ibv_{program}_pingpong", "-d", host.dev, "-g", host.gid_index(host.ip(ip)), "-p", port, "-n", 20]
    for r in bed.pair(cmd(bed.h1), cmd(bed.h2) + [bed.h1.ip4], port):
        assert re.search(r"^\d+ bytes in ", r.out, re.M), r


@pytest.mark.parametrize("tool, options", [("ib_send_bw", ["-s", 33]), ("ib_send_bw", ["-s", 4000, "-q", 4, "-b"]),
                                           ("ib_send_lat", ["-s", 1])])
def test_ud_perftest(bed, tool, options):
    perftest(bed, tool, "-c", "UD", "-n", 20, *options)


@pytest.mark.parametrize("kind", [e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2], ids=["type1", "type2"])
def test_windows(bed, kind):
    """WRITE and READ through a window, then neither: the owner, or with type 2 a SEND with invalidate, has taken the key away."""
    data = pattern(3000, 1)
    with pair(bed.h1.dev, bed.h2.dev, connect={"timeout": 0}, b={"access": LOCAL | BIND}) as (a, b), MW(b.pd, kind) as mw:
        access = REMOTE_WRITE | REMOTE_READ
        if kind == e.IBV_MW_TYPE_1:
            b.qp.bind_mw(mw, MWBind(MWBindInfo(b.mr, b.mr.buf + 1000, 9000, access), e.IBV_SEND_SIGNALED))
            assert b.done() == OK
            key = mw.rkey
        else:
            key = bound(b, mw, 1000, 9000, access)
        a.mr.write(data, 3000, 0)
        a.write(0, 3000, (b.mr.buf + 1001, key))
        a.read(4000, 3000, (b.mr.buf + 1001, key))
        all_good(a.poll(2))
        assert a.mr.read(3000, 4000) == b.mr.read(3000, 1001) == data
        if kind == e.IBV_MW_TYPE_1:
            # Bound to nothing: the key is gone.
            b.qp.bind_mw(mw, MWBind(MWBindInfo(b.mr, b.mr.buf, 0, 0), e.IBV_SEND_SIGNALED))
            assert b.done() == OK
        else:
            b.recv(20000, 64)
            a.post(e.IBV_WR_SEND_WITH_INV, 0, 10, imm=key)
            assert a.done() == OK
            wc = b.poll()[0]
            assert (wc.status, wc.byte_len, wc.imm_data) == (OK, 10, key)
            # rxe gives the flags of the kernel's interface to programs, where 8 is another one.
            assert wc.wc_flags == e.IBV_WC_WITH_INV or bed.h2.kind == PEER
        a.write(0, 8, (b.mr.buf + 1001, key))
        assert a.done() == ACCESS_ERR


def test_shared_receive_queue(bed):
    """Two connections whose receives come from one queue: each message whole, with the number of its connection."""
    with pair(bed.h1.dev, bed.h2.dev, b={"srq": 32}) as (a, b):
        more = Endpoint(a.dev, share=a), Endpoint(b.dev, share=b)
        more[0].connect(more[1])
        more[1].connect(more[0])
        ends = {b.qp.qp_num: a, more[1].qp.qp_num: more[0]}
        for n in range(16):
            b.recv(2048 * n, 2048, wr_id=n)
        for n in range(8):
            for number, sender in ends.items():
                data = pattern(2000, number + n)
                a.mr.write(data, 2000, 0)
                sender.send(0, 2000)
                assert a.done() == OK
                wc = b.poll()[0]
                assert (wc.status, wc.byte_len, wc.qp_num) == (OK, 2000, number)
                assert b.mr.read(2000, 2048 * wc.wr_id) == data
        for end in more:
            end.close()


@pytest.mark.parametrize("version", [4, 6])
def test_connections(bed, version):
    """By rdma_cm: connected queue pairs, and datagrams."""
    run(["modprobe", "rdma_ucm"])
    ip = bed.h1.ip(version)
    connect(bed, ["rping", "-s", "-a", ip, "-C", 10, "-V"], ["rping", "-c", "-a", ip, "-C", 10, "-V"], 7174)
    args = ["-c", 2, "-C", 5, "-S", 1000]
    connect(bed, ["udaddy", "-b", ip, *args], ["udaddy", "-s", ip, *args], 7174)
