# SPDX-License-Identifier: GPL-2.0
"""Holds an RDMA device open while it is removed, and tells what the program saw.

    holder.py DEV idle       the device only
    holder.py DEV objects    PD, CQ, completion channel, MR, QP
    holder.py DEV groups     datagram QPs that are attached to the groups of datagram.py
    holder.py DEV traffic    a connection to itself that moves data all the time

Prints "ready"; then waits for the removal (an async event DEVICE_FATAL, or a verb that fails), tries to use and to
destroy what it has, and prints "done".
"""

import os
import select
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import pyverbs.enums as e  # noqa: E402
from pyverbs.device import Context  # noqa: E402
from pyverbs.mr import MR  # noqa: E402
from pyverbs.pd import PD  # noqa: E402
from pyverbs.pyverbs_error import PyverbsError  # noqa: E402

from datagram import GROUPS, OTHER, Ud  # noqa: E402
from verbs import FULL_ACCESS, Endpoint, event_fds  # noqa: E402


def say(*words):
    print(*words, flush=True)


def attempt(name, action):
    try:
        action()
        say(name, "worked")
        return True
    except PyverbsError as why:
        say(name, "failed:", why)
        return False


def wait_for_removal(ctx, end, fd, seconds=120):
    """Until the kernel tells of the removal; with traffic, keep it going meanwhile.

    Other events come first when the network interface goes: of the GIDs that go with its addresses, of the port.
    """
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        ready, _, _ = select.select([fd], [], [], 0 if end else 0.2)
        if ready:
            event = ctx.get_async_event()
            say("event", event.event_type)
            event.ack()
            if event.event_type == e.IBV_EVENT_DEVICE_FATAL:
                return True
        elif end:
            try:
                end.recv(0, 4096)
                end.write(0, 30000, end.at(30000), flags=0)
                end.send(0, 4096)
                limit = time.monotonic() + 5
                got = 0
                while got < 2 and time.monotonic() < limit:
                    got += end.cq.poll(2)[0]
            except PyverbsError as why:
                say("traffic stops:", why)
                end = None
    return False


def main():
    dev, what = sys.argv[1:]
    end = None
    if what == "idle":
        before = event_fds()
        ctx = Context(name=dev)
        fd = (event_fds() - before).pop()
    else:
        end = Endpoint(dev, channel=True)
        ctx, fd = end.ctx, end.async_fd
        if what == "traffic":
            end.connect(end, timeout=12)
        elif what == "groups":
            held = [Ud(end), Ud(end)]
            for qp in held:
                for group in (*GROUPS.values(), *OTHER.values()):
                    qp.attach(group)
                for i in range(8):
                    qp.recv(64 * i, 64)
        else:
            end.to_init()
            for i in range(8):
                end.recv(64 * i, 64)
            end.cq.req_notify()
    say("ready")
    assert wait_for_removal(ctx, end if what == "traffic" else None, fd), "nobody tells of the removal"
    assert not attempt("query", lambda: ctx.query_port(1)), "the device is gone but answers"
    assert not attempt("alloc_pd", lambda: PD(ctx)), "the device is gone but makes objects"
    if end:
        attempt("reg_mr", lambda: MR(end.pd, 4096, FULL_ACCESS))
        attempt("poll", lambda: end.cq.poll(4))  # In user space alone: the ring is still mapped.
        attempt("recv", lambda: end.recv(0, 64))
        attempt("send", lambda: end.send(0, 64))
        attempt("notify", lambda: end.cq.req_notify())
        attempt("to_error", lambda: end.to_state(e.IBV_QPS_ERR))
        attempt("close", end.close)
    else:
        attempt("close", ctx.close)
    say("done")
    # Whatever of pyverbs could not be destroyed must not be destroyed again by its finalisers.
    sys.stdout.flush()
    os._exit(0)


main()
