# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=2048
"""Multicast between ferroce and the kernel's rxe, in both directions."""

import contextlib

import pytest

from datagram import GRH, GROUPS, Ud, inside, joined
from testbed import Testbed
from verbs import OK, Endpoint, pattern, status_name


@pytest.fixture(scope="module")
def bed():
    with Testbed(mtu=4200, kinds=("rxe", "ferroce")) as b:
        yield b


@pytest.mark.parametrize("sender", ["rxe", "ferroce"])
@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_data(bed, sender, ip):
    """What one sends to a group, the QPs of the other that are attached to it get."""
    source, target = (bed.h1, bed.h2) if sender == "rxe" else (bed.h2, bed.h1)
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(Endpoint(h.dev)) for h in (source, target))
        qp, members = Ud(a), [Ud(b), Ud(b)]
        for thing in (qp, *members):
            stack.callback(thing.close)
        address = qp.group_address(GROUPS[ip])
        stack.callback(address.close)
        if target.kind == "rxe":
            # It leaves it to others to join the group.
            stack.enter_context(inside(target))
            stack.enter_context(joined(target, GROUPS[ip]))
        for member in members:
            member.attach(GROUPS[ip])
        for size in (0, 1, 1000, 4096):
            data = pattern(size, size)
            a.mr.write(data, size, 0)
            for n, member in enumerate(members):
                member.recv(8192 * (n + 1), size + GRH, wr_id=n)
            qp.send(address, None, size)
            assert a.done() == OK
            for wc in b.poll(2):
                assert (wc.status, wc.byte_len, wc.src_qp) == (OK, size + GRH, qp.qp.qp_num), status_name(wc.status)
                assert wc.qp_num == members[wc.wr_id].qp.qp_num
                assert b.mr.read(size, 8192 * (wc.wr_id + 1) + GRH) == data
