# SPDX-License-Identifier: GPL-2.0
# guest: timeout=300 mem=2048
"""As many objects as the device says that it has, and one more: ENOMEM, nothing left of the attempt, room again at once.

The module is loaded with a small limit (max_objects), so that it can be reached.
"""

import errno
import json

import pytest
from pyverbs.device import Context

import uverbs
from datagram import raw_gid
from rings import Uverbs, route_to
from test_lifecycle import of_our_module
from test_memory import LOCAL, Pages
from testbed import DRIVER, Testbed, module_of, run

pytestmark = pytest.mark.skipif(DRIVER == "rxe", reason="its limits are too large to be reached")

LIMIT = 20


@pytest.fixture(scope="module")
def bed():
    with Testbed(links=False) as b:
        run(["modprobe", "-r", module_of(DRIVER)])
        run(["modprobe", module_of(DRIVER), f"max_objects={LIMIT}"])
        b.h1.add_link()
        b.h1.gid_index(b.h1.ip4)
        yield b
        b.h1.delete_link()
        run(["modprobe", "-r", module_of(DRIVER)])


def books(dev):
    """Objects of each kind, the kernel's included; pinned memory; areas of the kernel's memory that are ours."""
    shown = json.loads(run(["rdma", "-j", "resource", "show", dev]).out)[0]
    with open("/proc/self/status") as f:
        pinned = next(line for line in f if line.startswith("VmPin"))
    return {kind: n for kind, n in shown.items() if not kind.startswith("if")}, pinned, of_our_module()


class Maker:
    """A program with what is needed to make one of anything."""

    def __init__(self, u, page, host):
        self.u, self.page, self.host = u, page, host
        self.pd, self.cq = u.alloc_pd(), u.create_cq()[0]

    def make(self, kind):
        """A handle, and a number that the device names the object by."""
        u, page = self.u, self.page
        if kind == "pd":
            return u.alloc_pd()
        if kind == "cq":
            return u.create_cq()[0]
        if kind == "qp":
            return u.create_qp(self.pd, self.cq)[0]
        if kind == "ud":
            return u.create_qp(self.pd, self.cq, kind=4)[0]
        if kind == "srq":
            return u.create_srq(self.pd)[0]
        if kind == "mr":
            return uverbs.reg_mr(u, self.pd, page.addr, 4096, page.addr, LOCAL)[0]
        if kind == "mw":
            return uverbs.alloc_mw(u, self.pd, 2)[0]
        return u.create_ah(self.pd, **self.host)

    def destroy(self, kind, handle):
        if kind == "mw":
            uverbs.dealloc_mw(self.u, handle)
        elif kind == "mr":
            uverbs.dereg_mr(self.u, handle)
        else:
            self.u.destroy("qp" if kind == "ud" else kind, handle)

    def all_that_fit(self, kind):
        made = []
        while len(made) <= LIMIT:
            try:
                made.append(self.make(kind))
            except OSError as why:
                assert why.errno == errno.ENOMEM, f"{kind} {len(made) + 1}: {errno.errorcode[why.errno]}"
                return made
        raise AssertionError(f"{len(made)} of {LIMIT}")

    def one_too_many(self, kind):
        with pytest.raises(OSError) as why:
            self.make(kind)
        assert why.value.errno == errno.ENOMEM, errno.errorcode[why.value.errno]


@pytest.fixture
def maker(bed):
    page = Pages(4096)
    host = {"dgid": raw_gid(bed.h1.ip4), "sgid_index": bed.h1.gid_index(bed.h1.ip4)}
    assert len(route_to(**host)) == 32
    with Uverbs(bed.h1.dev) as u:
        yield Maker(u, page, host)


def test_long_queues(bed, maker):
    """Queues for as many as C rxe's may be; what nobody writes to costs nothing."""
    u, most = maker.u, (1 << 20) - 1
    for depth, sges in ((40000, 1), (most, 32)):
        for kind in (2, 4):
            u.destroy("qp", u.create_qp(maker.pd, maker.cq, kind=kind, send=(depth, sges), recv=(depth, sges))[0])
        u.destroy("srq", u.create_srq(maker.pd, depth, sges)[0])
    with Context(name=bed.h1.dev) as ctx:
        attr = ctx.query_device()
        assert attr.max_qp_wr >= most and attr.max_srq_wr >= most


KINDS = ["pd", "cq", "qp", "ud", "srq", "mr", "mw", "ah"]


def test_reported(bed):
    """What the device says is what it was told."""
    with Context(name=bed.h1.dev) as ctx:
        attr = ctx.query_device()
        told = {n: getattr(attr, n) for n in ("max_qp", "max_cq", "max_srq", "max_pd", "max_mr", "max_mw", "max_ah")}
        assert set(told.values()) == {LIMIT}, told


@pytest.mark.parametrize("kind", KINDS)
def test_one_too_many(bed, maker, kind):
    idle = books(bed.h1.dev)
    kernel_domains = idle[0]["pd"] - 1  # the other one is the maker's
    in_books = {"ud": "qp"}.get(kind, kind)
    # Those of the kernel and of the maker count. Windows and regions have one limit, and of those that the kernel has for
    # itself (one for each of its domains) the core keeps no books, nor of address handles.
    others = {"mr": kernel_domains, "mw": kernel_domains}.get(kind, idle[0].get(in_books, 0))
    for _ in range(3):
        made = maker.all_that_fit(kind)
        assert len(made) + others == LIMIT
        full = books(bed.h1.dev)
        for _ in range(5):
            maker.one_too_many(kind)
        assert books(bed.h1.dev) == full, "something is left of what failed"
        # One goes, one comes, and not two.
        for n in (0, LIMIT // 2, -1):
            maker.destroy(kind, made.pop(n % len(made)))
            made.append(maker.make(kind))
            maker.one_too_many(kind)
        # Others have room.
        for other in KINDS:
            same = {"ud": "qp", "mw": "mr"}
            if same.get(other, other) != same.get(kind, kind):
                maker.destroy(other, maker.make(other))
        for handle in made:
            maker.destroy(kind, handle)
        assert books(bed.h1.dev) == idle


@pytest.mark.parametrize("kind", KINDS)
def test_limit_of_all_programs(bed, maker, kind):
    """It counts for the device, not for a program; what a program had is free when it ends."""
    before = books(bed.h1.dev)
    with Uverbs(bed.h1.dev) as u:
        other = Maker(u, maker.page, maker.host)
        count = len(other.all_that_fit(kind))
        maker.one_too_many(kind)
    assert books(bed.h1.dev) == before
    made = maker.all_that_fit(kind)
    # The other one had a PD and a CQ besides.
    assert len(made) == count + (kind in ("pd", "cq"))
    for handle in made:
        maker.destroy(kind, handle)
