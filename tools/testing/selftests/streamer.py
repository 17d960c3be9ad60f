# SPDX-License-Identifier: GPL-2.0
"""A process that sends numbers to an endpoint of another one, until it is killed: load that comes at any moment.

    with stream(bed.h1.dev, b):
        b.poll()  # Each message has eight bytes, and its number as immediate data.

As a program: streamer.py DEV PEER_DEV PEER_QPN PEER_PSN. Prints its own QP number and PSN.
"""

import contextlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import pyverbs.enums as e  # noqa: E402

from testbed import Job  # noqa: E402
from verbs import OK, Endpoint, Remote, status_name  # noqa: E402

DEPTH = 32


@contextlib.contextmanager
def stream(dev, taker):
    """Numbers that come from dev to an endpoint that is in RESET; it is connected here."""
    job = Job([sys.executable, __file__, dev, taker.dev, taker.qp.qp_num, taker.psn])
    try:
        job.wait_for("\n")
        taker.connect(Remote(dev, *map(int, job.out.split()[:2])))
        yield job
        assert job.proc.poll() is None, f"the sender ended: {job.result()}"
    finally:
        job.kill()


def main(dev, peer, qp_num, psn):
    a = Endpoint(dev, depth=DEPTH)
    print(a.qp.qp_num, a.psn, flush=True)
    a.connect(Remote(peer, int(qp_num), int(psn)))
    sent = done = 0
    while True:
        while sent - done < DEPTH:
            a.post(e.IBV_WR_SEND_WITH_IMM, 0, 8, wr_id=sent, imm=sent)
            sent += 1
        for wc in a.cq.poll(DEPTH)[1]:
            assert wc.status == OK, f"message {done}: {status_name(wc.status)}"
            done += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
