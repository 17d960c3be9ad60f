# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 smp=2 mem=3072 debug=1
"""Memory runs out: each verb with each of its allocations and copies failing gives an errno, and leaves nothing behind.

What is left behind is found by kmemleak at the end of the file, and here by the books: pinned pages, objects, devices.
"""

import contextlib
import ctypes
import errno
import os
import re
import socket
import struct

import pytest

import pyverbs.enums as e
from pyverbs.addr import AH
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

import uverbs
from datagram import raw_gid
from faults import any_allocation, each, short_of_memory
from rings import Uverbs
from testbed import DRIVER, Testbed, rdma_links, run, wait_until
from verbs import FULL_ACCESS, INIT_MASK, RTR_MASK, RTS_MASK, Endpoint, pair, pattern

NO_MEMORY = {errno.ENOMEM, errno.EFAULT}
"""The counter of /proc/thread-self/fail-nth counts copies from and to the program as well; those fail with EFAULT."""


@pytest.fixture(scope="module")
def bed():
    with Testbed() as bed:
        yield bed


@pytest.fixture
def failing():
    with any_allocation():
        yield


def pinned():
    with open("/proc/self/status") as f:
        return int(re.search(r"^VmPin:\s+(\d+)", f.read(), re.M)[1])


def objects(dev):
    """What the core's resource tracking has of a device, with the number of each kind."""
    return run(["rdma", "resource", "show", dev]).out


def checked(bed, action, undo=lambda thing: thing.close(), allowed=NO_MEMORY):
    """each(), at least one failure, and the books as before."""
    undo(action())  # what is allocated once only
    before = objects(bed.h1.dev), pinned()
    errnos = each(action, undo)
    assert errnos, "nothing failed: is the fault injection on?"
    assert set(errnos) <= allowed, [errno.errorcode.get(n, n) for n in errnos]
    assert (objects(bed.h1.dev), pinned()) == before


def test_open(bed, failing):
    # The library says ENODEV or the like when it finds no driver for what it could not read.
    checked(bed, lambda: Context(name=bed.h1.dev), allowed=NO_MEMORY | {errno.ENODEV, errno.ENOSYS, errno.EOPNOTSUPP})


def test_pd(bed, failing):
    with Context(name=bed.h1.dev) as ctx:
        checked(bed, lambda: PD(ctx))


@pytest.mark.parametrize("events", [False, True])
def test_cq(bed, failing, events):
    with Context(name=bed.h1.dev) as ctx:
        channel = CompChannel(ctx) if events else None
        checked(bed, lambda: CQ(ctx, 300, None, channel, 0))


def test_mr(bed, failing):
    with Context(name=bed.h1.dev) as ctx, PD(ctx) as pd:
        buffer = MR(pd, 1 << 18, FULL_ACCESS)
        checked(bed, lambda: MR(pd, (1 << 18) - 100, FULL_ACCESS, address=buffer.buf + 50))


@pytest.mark.parametrize("kind", ["RC", "UD"])
def test_qp(bed, failing, kind):
    with Context(name=bed.h1.dev) as ctx, PD(ctx) as pd, CQ(ctx, 100) as cq:
        cap = QPCap(max_send_wr=200, max_recv_wr=200, max_send_sge=4, max_recv_sge=4)
        init = QPInitAttr(qp_type=getattr(e, f"IBV_QPT_{kind}"), scq=cq, rcq=cq, cap=cap)
        checked(bed, lambda: QP(pd, init, None))


def test_ah(bed, failing):
    end = Endpoint(bed.h1.dev)
    attr = end.path(end.gid(end.gid_index(4)), end.gid_index(4))
    # ENOBUFS: there was no room for the neighbour.
    checked(bed, lambda: AH(end.pd, attr=attr), allowed=NO_MEMORY | {errno.ENOBUFS})
    end.close()


def test_modify_qp(bed, failing):
    """A transition that fails leaves the QP in the state before, and works the next time."""
    a, b = Endpoint(bed.h1.dev), Endpoint(bed.h2.dev)
    gid, index = b.gid(b.gid_index(4)), a.gid_index(4)
    init = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
    init.qp_access_flags = FULL_ACCESS
    rtr, rts = a.rtr_attr(gid, index, b.qp.qp_num, b.psn), a.rts_attr()
    steps = [(e.IBV_QPS_INIT, init, INIT_MASK), (e.IBV_QPS_RTR, rtr, RTR_MASK), (e.IBV_QPS_RTS, rts, RTS_MASK)]
    before = e.IBV_QPS_RESET
    for state, attr, mask in steps:
        seen = []

        def back():
            # To RESET, and on to where this step starts.
            a.to_state(e.IBV_QPS_RESET)
            for other, its, its_mask in steps:
                if other == state:
                    break
                a.qp.modify(its, its_mask)

        errnos = each(lambda: a.qp.modify(attr, mask), lambda _: back(), lambda: seen.append(a.state()))
        assert set(errnos) <= NO_MEMORY and set(seen) <= {before}, (state, errnos, seen)
        a.qp.modify(attr, mask)
        before = state
    a.close()
    b.close()


def test_destroy(bed, failing):
    """Destruction needs no memory, or can be tried again; when only the answer gets lost, the object is gone."""
    host, memory = bed.h1, ctypes.create_string_buffer(8192)
    with Uverbs(host.dev) as u:
        pd, cq, address = u.alloc_pd(), u.create_cq(31)[0], ctypes.addressof(memory)
        makers = {"pd": u.alloc_pd, "cq": lambda: u.create_cq(31)[0], "srq": lambda: u.create_srq(pd, 31)[0],
                  "qp": lambda: u.create_qp(pd, cq)[0],
                  "ah": lambda: u.create_ah(pd, dgid=raw_gid(host.ip4), sgid_index=host.gid_index(host.ip4)),
                  "mr": lambda: uverbs.reg_mr(u, pd, address, 8192, address, FULL_ACCESS)[0]}
        before = objects(host.dev), pinned()
        for kind, make in makers.items():
            handle = [make()]

            def renew(_=None):
                handle[0] = make()

            def destroy_again():
                with contextlib.suppress(FileNotFoundError):  # ENOENT: there is no such handle any more
                    u.destroy(kind, handle[0])
                renew()
            errnos = each(lambda: u.destroy(kind, handle[0]), renew, destroy_again)
            assert errnos and set(errnos) <= NO_MEMORY, (kind, errnos)
            u.destroy(kind, handle[0])
        assert (objects(host.dev), pinned()) == before


# `rdma link add` and `delete`, in this thread so that its allocations are counted: RDMA_NLDEV_CMD_* and
# RDMA_NLDEV_ATTR_* of include/uapi/rdma/rdma_netlink.h.
NETLINK_RDMA, NLDEV, NEWLINK, DELLINK = 20, 5 << 10, 3, 4
DEV_INDEX, DEV_NAME, NDEV_NAME, LINK_TYPE = 1, 2, 51, 65
REQUEST_ACK = 5


class Nldev:
    def __init__(self):
        self.sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA)
        self.sock.settimeout(60)

    def request(self, command, attributes):
        body = b""
        for kind, value in attributes:
            data = struct.pack("=I", value) if isinstance(value, int) else value.encode() + b"\0"
            body += struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)
        self.sock.send(struct.pack("=IHHII", 16 + len(body), NLDEV + command, REQUEST_ACK, 1, 0) + body)
        error = struct.unpack_from("=i", self.sock.recv(4096), 16)[0]
        if error:
            raise OSError(-error, "nldev")


@pytest.fixture
def spare():
    run(["ip", "link", "add", "spare0", "type", "dummy"])
    run(["ip", "link", "set", "spare0", "up"])
    yield "spare0"
    run(["ip", "link", "delete", "spare0"])


def exists(dev):
    """Without a program: it is asked after each of hundreds of allocations."""
    return os.path.exists(f"/sys/class/infiniband/{dev}")


def index_of(dev):
    return int(re.search(r"^(\d+):", run(["rdma", "dev", "show", dev]).out)[1])


def test_link_add(bed, spare, failing):
    nldev = Nldev()

    def add():
        nldev.request(NEWLINK, [(DEV_NAME, "fi0"), (LINK_TYPE, DRIVER), (NDEV_NAME, spare)])
        return True

    def delete(_=None):
        if exists("fi0"):
            run(["rdma", "link", "delete", "fi0"])

    delete(add())
    # ENOBUFS: the acknowledgement could not be allocated; ENFILE: the socket. The driver's own allocations come first;
    # nearly all of the tens of thousands after them are the core's, which fails in one place for us.
    errnos = each(add, delete, delete, some=160)
    assert len(errnos) > 5 and set(errnos) <= NO_MEMORY | {errno.ENOBUFS, errno.ENFILE}, errnos
    wait_until(lambda: "fi0" not in rdma_links(), 30, "fi0 is still there")


def test_link_delete(bed, spare, failing):
    nldev = Nldev()

    def add(_=None):
        if not exists("fi0"):
            run(["rdma", "link", "add", "fi0", "type", DRIVER, "netdev", spare])
        current[0] = index_of("fi0")

    current = [0]
    add()
    errnos = each(lambda: nldev.request(DELLINK, [(DEV_INDEX, current[0])]), add, add)
    assert set(errnos) <= NO_MEMORY | {errno.ENOBUFS}, errnos
    if exists("fi0"):
        run(["rdma", "link", "delete", "fi0"])


@pytest.mark.parametrize("percent", [1, 10])
def test_data(bed, percent):
    """Allocations of the network stack and of the driver fail in any context: it takes longer, and all arrives."""
    size, count = 30000, 20
    with pair(bed.h1.dev, bed.h2.dev, length=size * 2, connect={"timeout": 12}) as (a, b):
        with short_of_memory(percent):
            for n in range(count):
                data = pattern(size, n)
                a.mr.write(data, size, 0)
                b.recv(0, size)
                a.send(0, size)
                assert a.poll()[0].status == e.IBV_WC_SUCCESS and b.poll()[0].status == e.IBV_WC_SUCCESS
                assert b.mr.read(size, 0) == data
                a.read(size, size, b.at(0))
                assert a.poll()[0].status == e.IBV_WC_SUCCESS
                assert a.mr.read(size, size) == data
