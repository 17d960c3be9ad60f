# SPDX-License-Identifier: GPL-2.0
# guest: timeout=300 mem=3072
"""Asynchronous events that have no test elsewhere: of queue pairs, of the port, of its addresses.

Elsewhere: SQ_DRAINED in test_qp_attributes, QP_ACCESS_ERR in test_errors, CQ_ERR in test_cq_resize, those of shared receive
queues and QP_LAST_WQE_REACHED in test_srq, DEVICE_FATAL in test_removal.
"""

import pyverbs.enums as e
import pytest

from verbs import OK, Endpoint, pair


def test_communication_established(bed):
    """The first packet in RTR tells, once."""
    with pair(bed.h1.dev, bed.h2.dev, b_connect={"rts": False}) as (a, b):
        for n in range(3):
            b.recv(0, 8)
        assert b.events(0.1) == []
        for n in range(3):
            a.send(0, 8)
            assert a.done() == OK and b.done() == OK
        assert b.events(5) == [e.IBV_EVENT_COMM_EST]
        assert a.events() == []


def test_no_such_event_in_rts(bed):
    with pair(bed.h1.dev, bed.h2.dev) as (a, b):
        b.recv(0, 8)
        a.send(0, 8)
        assert a.done() == OK and b.done() == OK
        assert b.events(0.2) == []


@pytest.mark.differs_on_rxe("there is no event")
def test_invalid_request(bed):
    """A request that the queue pair does not allow, and that no completion can tell of."""
    forbids = {"timeout": 0, "access": e.IBV_ACCESS_LOCAL_WRITE}
    with pair(bed.h1.dev, bed.h2.dev, connect=forbids) as (a, b):
        a.write(0, 8, b.at(0))
        assert a.done() == e.IBV_WC_REM_INV_REQ_ERR
        assert b.events(5) == [e.IBV_EVENT_QP_REQ_ERR]
        assert b.state() == e.IBV_QPS_ERR


@pytest.mark.differs_on_rxe("a send's completion that finds no room is lost")
def test_fatal(bed):
    """A completion without room: the queue tells of itself, and the queue pair too."""
    with pair(bed.h1.dev, bed.h2.dev, a={"cqe": 1, "depth": 8}) as (a, b):
        for n in range(4):
            a.write(0, 8, b.at(0))
        seen = a.wait_event(e.IBV_EVENT_QP_FATAL)
        seen += a.events(0.3)
        assert sorted(seen) == sorted([e.IBV_EVENT_CQ_ERR, e.IBV_EVENT_QP_FATAL])


def test_port(bed):
    """The port tells when the interface goes down and when it comes back."""
    end = Endpoint(bed.h1.dev)
    bed.h1.run("ip", "link", "set", bed.h1.netdev, "down")
    end.wait_event(e.IBV_EVENT_PORT_ERR)
    assert end.ctx.query_port(1).state == e.IBV_PORT_DOWN
    bed.h1.run("ip", "link", "set", bed.h1.netdev, "up")
    end.wait_event(e.IBV_EVENT_PORT_ACTIVE)
    assert end.ctx.query_port(1).state == e.IBV_PORT_ACTIVE
    end.close()
    bed.h1.run("ip", "addr", "replace", f"{bed.h1.ip6}/64", "dev", bed.h1.netdev, "nodad")


def test_addresses(bed):
    end = Endpoint(bed.h1.dev)
    for action in ("add", "del"):
        bed.h1.run("ip", "addr", action, "10.9.9.1/24", "dev", bed.h1.netdev)
        end.wait_event(e.IBV_EVENT_GID_CHANGE)
        end.events(0.3)
    end.close()
