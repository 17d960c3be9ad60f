# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=3072
"""Registering anew: every kind of region to every kind that it may become."""

import errno
import os

import pytest
from pyverbs.pd import PD

import uverbs
from test_memory import UdmaBuf
from test_odp import ACCESS_ERR, ALL, NO_TIMER, ODP, PAGE, Range, reconnect, refused  # NO_TIMER: for ends
from verbs import OK, pattern

pytestmark = pytest.mark.differs_on_rxe("rxe does not exchange memory, and has no implicit regions")


LENGTH = 64 * PAGE


class Place:
    """Memory to be registered anew as, or that was registered; a key names address va."""

    def __init__(self, kind):
        self.kind, self.buffer, self.place = kind, None, None
        if kind == "dma-buf":
            self.buffer = UdmaBuf(LENGTH)
        else:
            self.place = Range(LENGTH)
        self.start, self.length = {"implicit": (0, 2**64 - 1), "dma-buf": (0, LENGTH)}.get(kind) or (self.place.addr, LENGTH)
        self.access = (ALL if kind in ("explicit", "implicit") else ALL & ~ODP)
        self.va = 0x10000 if self.buffer else self.place.addr

    def register(self, end):
        if self.buffer:
            return uverbs.reg_dmabuf_mr(end.ctx, end.pd.handle, self.buffer.fd, 0, LENGTH, self.va, self.access)
        return uverbs.reg_mr(end.ctx, end.pd.handle, self.start, self.length, self.start, self.access)

    def fill(self, data):
        if self.buffer:
            self.buffer.map[:len(data)] = data
        else:
            self.place.write(0, data)

    def holds(self, data):
        return (self.buffer.map[:len(data)] if self.buffer else self.place.read(0, len(data))) == data

    def unmap(self):
        if self.buffer:
            os.close(self.buffer.fd)
        else:
            self.place.unmap()


def reaches(ends, place, key, allowed=True):
    """An RDMA WRITE and a READ get to that place, or neither does."""
    a, size = ends[0], 3 * PAGE
    data = pattern(size, place.va)
    place.fill(bytes(size))
    a.mr.write(data, size, 0)
    a.write(0, size, (place.va, key))
    status = a.done()
    assert (status, place.holds(data)) == ((OK, True) if allowed else (ACCESS_ERR, False)), (place.kind, status)
    if not allowed:
        reconnect(ends)
        return
    a.mr.write(bytes(size), size, 0)
    a.read(0, size, (place.va, key))
    assert a.done() == OK and a.mr.read(size, 0) == data


KINDS = ["pinned", "explicit", "implicit", "dma-buf"]


@pytest.mark.parametrize("before", KINDS)
def test_rereg_domain_and_rights(ends, before):
    """Without other memory: the domain, the rights, both; all is as it was where that is refused."""
    _, b = ends
    was, both = Place(before), uverbs.PD | uverbs.ACCESS
    handle, _, key = was.register(b)

    def again(flags, **kw):
        uverbs.rereg_mr(b.ctx, handle, flags, **{"pd_handle": b.pd.handle, "access": was.access, **kw})

    reaches(ends, was, key)
    with PD(b.ctx) as other:
        for flags, kw, allowed in ((uverbs.PD, {"pd_handle": other.handle}, False), (uverbs.PD, {}, True),
                                   (uverbs.ACCESS, {"access": was.access & (ODP | 1)}, False), (uverbs.ACCESS, {}, True),
                                   (both, {"pd_handle": other.handle}, False), (both, {}, True)):
            again(flags, **kw)
            reaches(ends, was, key, allowed)
        # Pages that are pinned do not begin to come and go by a right, nor the other way round.
        for flags in (uverbs.ACCESS, both):
            refused(errno.EINVAL, again, flags, access=was.access ^ ODP, pd_handle=other.handle)
            reaches(ends, was, key)
    uverbs.dereg_mr(b.ctx, handle)
    reaches(ends, was, key, False)
    was.unmap()


@pytest.mark.parametrize("after", ["pinned", "explicit", "implicit"])
@pytest.mark.parametrize("before", KINDS)
def test_rereg_other_memory(ends, before, after):
    """Other memory, of the same kind or of another; the keys stay, and the old memory is not reached any more."""
    _, b = ends
    was, new = Place(before), Place(after)
    handle, lkey, key = was.register(b)
    same = was.access & ODP == new.access & ODP
    with PD(b.ctx) as other:
        # With the rights that it has, the kind cannot change; with new ones, it can. So with another domain and back.
        for flags in (uverbs.TRANSLATION,) * same + (uverbs.TRANSLATION | uverbs.ACCESS, 7):
            domain = other if flags & uverbs.PD else b.pd
            reaches(ends, was, key)
            found = uverbs.rereg_mr(b.ctx, handle, flags, start=new.start, length=new.length, pd_handle=domain.handle,
                                    access=new.access)
            assert found == (lkey, key)
            reaches(ends, new, key, domain is b.pd)
            if after != "implicit":
                reaches(ends, was, key, False)
            uverbs.dereg_mr(b.ctx, handle)
            handle, lkey, key = was.register(b)
        # What fails leaves it as it was.
        for code, kw in ((errno.EINVAL, {"start": 2**64 - PAGE, "length": 2 * PAGE}),
                         (errno.EINVAL, {"start": new.start, "length": 0})):
            refused(code, uverbs.rereg_mr, b.ctx, handle, 7, **{"pd_handle": other.handle, "access": new.access, **kw})
            reaches(ends, was, key)
        uverbs.dereg_mr(b.ctx, handle)
    was.unmap()
    new.unmap()
