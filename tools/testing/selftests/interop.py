# SPDX-License-Identifier: GPL-2.0
"""The driver under test against the kernel's own rxe, IPv4 and IPv6: the cases, for a bed with one of each kind.

Both modules are loaded; each has the RoCE port of its own network namespace.
"""

import re

import pyverbs.enums as e
import pytest

from impair import lossy
from perftest import TOOLS, perftest
from transfer import transfer
from testbed import DRIVER
from verbs import OK, pair, pattern

PEER = "rxe"
MIB = 1 << 20


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("events", [False, True], ids=["polling", "events"])
@pytest.mark.parametrize("size", [1, 1023, 4097, MIB])
def test_pingpong(bed, size, events, ip):
    port, iters = bed.port(), 20 if size < MIB else 4

    def cmd(host):
        return ["ibv_rc_pingpong", "-d", host.dev, "-g", host.gid_index(host.ip(ip)), "-p", port, "-s", size,
                "-n", iters, "-r", iters, "-c", *(["-e"] if events else [])]
    for r in bed.pair(cmd(bed.h1), cmd(bed.h2) + [bed.h1.ip4], port):
        assert re.search(rf"^{size * iters * 2} bytes in ", r.out, re.M) and "invalid data" not in r.out, r


@pytest.mark.parametrize("tool", TOOLS)
def test_all_sizes(bed, tool):
    perftest(bed, tool, "-a", "-n", 5, ip=4 if tool.endswith("_bw") else 6)


@pytest.mark.parametrize("tool", [t for t in TOOLS if t.endswith("_bw")])
def test_queue_pairs_and_both_ways(bed, tool):
    perftest(bed, tool, "-q", 4, "-b", "-n", 20, "-s", 20001)


@pytest.mark.parametrize("tool, size", [("ib_send_lat", 1), ("ib_write_lat", 33), ("ib_send_bw", 200), ("ib_write_bw", 100)])
def test_inline(bed, tool, size):
    perftest(bed, tool, "-I", 200, "-s", size, "-n", 50)


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_send_lat", "ib_read_bw", "ib_read_lat"])
def test_events(bed, tool):
    perftest(bed, tool, "-e", "-n", 50, "-s", 5000)


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_data(bed, op, ip):
    """Every byte compared, with all pads."""
    with pair(bed.h1.dev, bed.h2.dev, ip, length=4 * MIB, connect={"mtu": 4096}) as (a, b):
        transfer(a, b, op, 3 * MIB, [0, 1, 2, 3, 5, 4095, 4097, 10001, 200003])


@pytest.mark.seconds(400)
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_data_with_loss(bed, op):
    """Both understand each other's NAKs, repetitions and duplicates."""
    with lossy(bed), pair(bed.h1.dev, bed.h2.dev, length=MIB, connect={"mtu": 1024, "timeout": 12}) as (a, b):
        transfer(a, b, op, 4 * MIB, [65536, 1, 100003, 4096])


def test_immediate_and_solicited(bed):
    with pair(bed.h1.dev, bed.h2.dev) as ends:
        for x, y in (ends, ends[::-1]):
            for code in (e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM):
                for n in (0, 7, 3000):
                    data = pattern(n, n)
                    x.mr.write(data, n, 0)
                    y.recv(10000, 3000)
                    x.post(code, 0, n, remote=y.at(10000), imm=0x12345678, flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED)
                    assert x.done() == OK
                    wc = y.poll()[0]
                    assert (wc.status, wc.imm_data, wc.byte_len) == (OK, 0x12345678, n)
                    assert y.mr.read(n, 10000) == data


def test_errors_are_understood(bed):
    """Receiver not ready, remote access and invalid request, in both directions."""
    # rxe answers a message longer than the receive with a remote operational error.
    too_long = {DRIVER: e.IBV_WC_REM_INV_REQ_ERR, PEER: e.IBV_WC_REM_OP_ERR}
    for swap in (False, True):
        def fresh(**connect):
            devs = (bed.h2.dev, bed.h1.dev) if swap else (bed.h1.dev, bed.h2.dev)
            return pair(*devs, connect={"timeout": 0, **connect})
        with fresh(rnr_retry=1, min_rnr_timer=10) as (a, b):
            a.send(0, 8)
            assert a.done() == e.IBV_WC_RNR_RETRY_EXC_ERR
        with fresh() as (a, b):
            a.write(0, 8, (b.mr.buf, b.mr.rkey ^ 0x100))
            assert a.done() == e.IBV_WC_REM_ACCESS_ERR
        with fresh() as (a, b):
            b.recv(0, 100)
            a.send(0, 5000)
            receiver = bed.h1 if swap else bed.h2
            assert a.done() == too_long[receiver.kind]
