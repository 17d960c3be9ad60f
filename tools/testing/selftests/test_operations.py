# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=3072
"""Each RC operation, posted by hand and checked byte by byte: sizes, gather lists, inline, signalling, order, events."""

import pyverbs.enums as e
import pytest

from verbs import OK, all_good, pair, pattern, readable, status_name

LENGTH = 1 << 18
SIGNALED, FENCE, SOLICITED, INLINE = (e.IBV_SEND_SIGNALED, e.IBV_SEND_FENCE, e.IBV_SEND_SOLICITED, e.IBV_SEND_INLINE)


@pytest.fixture(scope="module", params=[(4, 1024), (6, 4096), (4, 256)], ids=lambda p: f"ipv{p[0]}-mtu{p[1]}")
def ends(bed, request):
    """Two connected endpoints that the tests of one path MTU share: none of them may break the connection."""
    ip, mtu = request.param
    with pair(bed.h1.dev, bed.h2.dev, ip, length=LENGTH, sge=32, inline=512, channel=True, connect={"mtu": mtu}) as p:
        yield p


def fill(end, seed, length=LENGTH):
    data = pattern(length, seed)
    end.mr.write(data, length, 0)
    return data


def got(end, off, length):
    return end.mr.read(length, off)


def clear(end):
    end.mr.write(bytes(LENGTH), LENGTH, 0)


def expect_only(end, off, data):
    """data stands at off, and not one byte beside it was touched."""
    whole = got(end, 0, LENGTH)
    assert whole[off:off + len(data)] == data
    assert not any(whole[:off]) and not any(whole[off + len(data):])


SIZES = [0, 1, 2, 3, 4, 5, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 1027, 4094, 4095, 4096, 4097, 8192, 12289,
         65535, 65536, 100003]


@pytest.mark.parametrize("op", ["send", "send_imm", "write", "write_imm", "read"])
def test_sizes(ends, op):
    """Every size around the edges of packets arrives whole, at its place, and nothing else is written."""
    a, b = ends
    for n in SIZES:
        src, dst = (b, a) if op == "read" else (a, b)
        data = fill(src, f"{op}{n}")
        clear(dst)
        off = 4 + n % 3
        if op.startswith("send") or op == "write_imm":
            b.recv(off, n + 1, wr_id=n)
        code = {"send": e.IBV_WR_SEND, "send_imm": e.IBV_WR_SEND_WITH_IMM, "write": e.IBV_WR_RDMA_WRITE,
                "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM, "read": e.IBV_WR_RDMA_READ}[op]
        remote = None if op.startswith("send") else b.at(off if op != "read" else 9)
        local = off if op == "read" else 9
        a.post(code, local, n, wr_id=1000 + n, remote=remote, imm=0x11220000 + n)
        done = a.poll()[0]
        assert (done.status, done.wr_id) == (OK, 1000 + n), (n, status_name(done.status))
        assert done.opcode == {"send": e.IBV_WC_SEND, "send_imm": e.IBV_WC_SEND, "read": e.IBV_WC_RDMA_READ}.get(
            op, e.IBV_WC_RDMA_WRITE)
        if op == "read":
            expect_only(a, off, data[9:9 + n])
            continue
        expect_only(b, off, data[9:9 + n])
        if op == "write":
            continue
        wc = b.poll()[0]
        assert (wc.status, wc.wr_id, wc.byte_len, wc.qp_num) == (OK, n, n, b.qp.qp_num)
        assert wc.opcode == (e.IBV_WC_RECV if op.startswith("send") else e.IBV_WC_RECV_RDMA_WITH_IMM)
        with_imm = op.endswith("imm")
        assert bool(wc.wc_flags & e.IBV_WC_WITH_IMM) == with_imm
        if with_imm:
            assert wc.imm_data == 0x11220000 + n
    a.nothing(0.05)
    b.nothing(0.05)


@pytest.mark.parametrize("op", ["write", "read", "write_imm"])
def test_no_length_needs_no_key(ends, op):
    """An RDMA operation of no bytes is not checked against any key."""
    a, b = ends
    if op == "write_imm":
        b.recv()
    code = {"write": e.IBV_WR_RDMA_WRITE, "read": e.IBV_WR_RDMA_READ, "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM}[op]
    a.post(code, 0, 0, remote=(0xdead, 0xbeef), imm=5)
    assert a.done() == OK
    if op == "write_imm":
        assert b.done() == OK


def pieces(sizes, gap):
    """(offset, length) of pieces with gaps between them."""
    out, at = [], 1
    for n in sizes:
        out.append((at, n))
        at += n + gap
    return out


@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_32_pieces(ends, op):
    """32 gather elements into 32 scatter elements, of sizes that cut packets anywhere, empty ones too."""
    a, b = ends
    out = pieces([(i * 397) % 1201 for i in range(32)], 5)
    total = sum(n for _, n in out)
    inn = pieces([total // 32 + (total % 32 if i == 31 else 0) for i in range(32)], 3)
    src, dst = (b, a) if op == "read" else (a, b)
    data = fill(src, op)
    clear(dst)
    if op == "send":
        b.recv(sgl=inn)
        a.post(e.IBV_WR_SEND, sgl=out)
        assert b.poll()[0].byte_len == total
        want = b"".join(data[o:o + n] for o, n in out)
        where = inn
    elif op == "write":
        a.post(e.IBV_WR_RDMA_WRITE, sgl=out, remote=b.at(7))
        want, where = b"".join(data[o:o + n] for o, n in out), [(7, total)]
    else:
        a.post(e.IBV_WR_RDMA_READ, sgl=inn, remote=b.at(7))
        want, where = data[7:7 + total], inn
    assert a.done() == OK
    whole = got(dst, 0, LENGTH)
    assert b"".join(whole[o:o + n] for o, n in where) == want
    mask = bytearray(whole)
    for o, n in where:
        mask[o:o + n] = bytes(n)
    assert not any(mask), "bytes between the pieces were written"


@pytest.mark.parametrize("size", [0, 1, 13, 64, 255, 512])
def test_inline(ends, size):
    """Inline data is taken when the work is posted: the buffer may be reused at once, and no key is needed."""
    a, b = ends
    data = fill(a, size)
    clear(b)
    a.send(0, size, flags=SIGNALED | INLINE, lkey=0)  # The receiver is not ready yet: sent again later.
    a.mr.write(bytes(512), 512, 0)
    b.recv(0, 512)
    assert a.done() == OK and b.poll()[0].byte_len == size
    expect_only(b, 0, data[:size])
    a.mr.write(data, 512, 0)
    a.write(0, size, b.at(600), flags=SIGNALED | INLINE)
    a.mr.write(bytes(512), 512, 0)
    assert a.done() == OK
    assert got(b, 600, size) == data[:size]


def test_inline_gather(ends):
    a, b = ends
    data = fill(a, "gather")
    b.recv(0, 512)
    a.post(e.IBV_WR_SEND, sgl=[(3, 7), (100, 1), (50, 200), (9, 0), (1000, 13)], flags=SIGNALED | INLINE)
    assert a.done() == OK and b.poll()[0].byte_len == 221
    assert got(b, 0, 221) == data[3:10] + data[100:101] + data[50:250] + data[1000:1013]


def test_unsignalled(ends):
    """Only work that asks for a completion gets one, and it stands for all before it: slots are free again."""
    a, b = ends
    for round_ in range(8):
        for i in range(20):
            b.recv(0, 16, wr_id=i)
        for i in range(19):
            a.send(0, 16, flags=0, wr_id=i)
        a.send(0, 16, wr_id=99)
        assert [w.wr_id for w in a.poll(1)] == [99], round_
        assert [w.wr_id for w in b.poll(20)] == list(range(20))
    a.nothing(0.05)


def test_order_of_mixed_work(ends):
    """Completions come in the order of posting, whatever the mix; WRITEs before a SEND are in place when it arrives."""
    a, b = ends
    fill(a, 1)
    fill(b, 2)
    for round_ in range(5):
        ids = []
        data = pattern(3000, round_)
        a.mr.write(data, 3000, 0)
        b.recv(0, 8)
        for i in range(6):
            a.write(0, 3000, b.at(10000 + 3000 * i), wr_id=len(ids))
            ids.append(len(ids))
            a.read(50000 + 3000 * i, 2999, b.at(60000), wr_id=len(ids))
            ids.append(len(ids))
        a.send(0, 8, wr_id=len(ids))
        ids.append(len(ids))
        assert b.done() == OK
        for i in range(6):
            assert got(b, 10000 + 3000 * i, 3000) == data, (round_, i)
        done = a.poll(len(ids))
        assert [w.wr_id for w in done] == ids and all(w.status == OK for w in done)


def test_fence(ends):
    """A fenced SEND waits for the READ before it, so it may send what the READ fetches."""
    a, b = ends
    for round_ in range(10):
        data = fill(b, round_)[:40000]
        clear(a)
        b.recv(100000, 40000)
        a.read(0, 40000, b.at(0), flags=0)
        a.send(0, 40000, flags=SIGNALED | FENCE)
        assert a.done() == OK and b.done() == OK
        assert got(b, 100000, 40000) == data


def test_reads_beyond_the_limit_wait(bed):
    """More READs posted than the peer has resources for: they take turns, and a SEND behind them keeps its place."""
    with pair(bed.h1.dev, bed.h2.dev, length=LENGTH, connect={"max_rd": 2, "max_dest_rd": 2}) as (a, b):
        data = fill(b, 3)
        b.recv(LENGTH - 8, 8)
        for i in range(20):
            a.read(5000 * i, 5000, b.at(5000 * i), wr_id=i)
        a.send(0, 8, wr_id=20)
        assert [(w.wr_id, w.status) for w in a.poll(21)] == [(i, OK) for i in range(21)]
        assert got(a, 0, 100000) == data[:100000]


def test_both_ways_at_once(ends):
    a, b = ends
    da, db = fill(a, 10), fill(b, 11)
    for i in range(12):
        a.recv(130000 + 8000 * i, 8000)
        b.recv(130000 + 8000 * i, 8000)
    for i in range(12):
        a.send(8000 * i, 8000)
        b.send(8000 * i, 8000)
    for end in ends:
        all_good(end.poll(24))
    assert got(b, 130000, 96000) == da[:96000]
    assert got(a, 130000, 96000) == db[:96000]


# Completion events.

def drain(end):
    while readable(end.channel_fd, 0):
        end.channel.get_cq_event(end.cq)
        end.cq.ack_events(1)


@pytest.mark.parametrize("which", ["send", "recv"])
def test_event_for_the_next_completion(ends, which):
    """One arming, one event: the second completion gives none until the queue is armed again."""
    a, b = ends
    end = a if which == "send" else b
    drain(end)
    end.cq.req_notify()
    for round_ in range(3):
        b.recv(0, 8)
        a.send(0, 8)
        assert readable(end.channel_fd, 30), round_
        end.channel.get_cq_event(end.cq)
        end.cq.ack_events(1)
        b.recv(0, 8)
        a.send(0, 8)
        a.poll(2)
        b.poll(2)
        assert not readable(end.channel_fd, 0.2), "an event without arming"
        end.cq.req_notify()
    drain(end)


def test_solicited_only(bed):
    """Armed for solicited completions, only a SEND that asks for the event gives one."""
    with pair(bed.h1.dev, bed.h2.dev, channel=True) as (a, b):
        b.cq.req_notify(True)
        b.recv(0, 8)
        a.send(0, 8)
        assert a.done() == OK and b.done() == OK
        assert not readable(b.channel_fd, 0.3), "an event for work that was not solicited"
        for post in (lambda: a.send(0, 8, flags=SIGNALED | SOLICITED),
                     lambda: a.post(e.IBV_WR_SEND_WITH_IMM, 0, 3000, flags=SIGNALED | SOLICITED),
                     lambda: a.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, flags=SIGNALED | SOLICITED, remote=b.at(0))):
            b.recv(0, 4096)
            post()
            assert readable(b.channel_fd, 30), "no event for solicited work"
            b.channel.get_cq_event(b.cq)
            b.cq.ack_events(1)
            assert a.done() == OK and b.done() == OK
            b.cq.req_notify(True)


@pytest.mark.differs_on_rxe("a flushed receive raises no solicited event")
def test_an_error_is_an_event_too(bed):
    """Also a queue that waits for solicited completions only is told of a failed one."""
    with pair(bed.h1.dev, bed.h2.dev, channel=True) as (a, b):
        b.cq.req_notify(True)
        b.recv(0, 8)
        b.to_state(e.IBV_QPS_ERR)
        assert readable(b.channel_fd, 30)
        assert b.done() == e.IBV_WC_WR_FLUSH_ERR


@pytest.mark.parametrize("depth", [1, 2, 7, 100])
def test_many_rounds_of_a_small_ring(bed, depth):
    """Rings and queues wrap, at each depth, with as much outstanding as they hold."""
    with pair(bed.h1.dev, bed.h2.dev, depth=depth) as (a, b):
        for i in range(0, 300 // depth + 3):
            for j in range(depth):
                b.recv(64 * j, 64, wr_id=i * depth + j)
            for j in range(depth):
                a.send(0, 48, wr_id=i * depth + j)
            ids = [i * depth + j for j in range(depth)]
            assert [w.wr_id for w in b.poll(depth)] == ids
            assert [w.wr_id for w in a.poll(depth)] == ids
