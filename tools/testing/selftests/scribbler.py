# SPDX-License-Identifier: GPL-2.0
"""A hostile program: writes random words into all the rings that it shares with the kernel, while messages arrive and the
queues change their size.

    scribbler.py DEV PEER_DEV SEED SECONDS

It may well crash, for the provider believes what is in the rings; the kernel must not. Prints "connected" in each round.
"""

import ctypes
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import pyverbs.enums as e  # noqa: E402
from pyverbs.pyverbs_error import PyverbsError  # noqa: E402
from pyverbs.srq import SrqAttr  # noqa: E402

from rings import mappings  # noqa: E402
from verbs import Endpoint  # noqa: E402

# Offsets of the words that matter most: indices, geometry, and the first elements.
HEADER = [0, 4, 128, 256]
VALUES = [0, 1, 2, 3, 31, 63, 64, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff]


def attempt(action, *args):
    try:
        return action(*args)
    except PyverbsError:
        return None


def scribble(rng, rings):
    """One word somewhere; most of them are put right again, so that the provider lives a little longer."""
    start, end = rng.choice(rings)
    offset = rng.choice(HEADER) if rng.random() < 0.5 else rng.randrange(384, min(end - start, 4096), 4)
    word = ctypes.c_uint32.from_address(start + offset)
    old = word.value
    word.value = rng.choice(VALUES) if rng.random() < 0.7 else rng.getrandbits(32)
    if rng.random() < 0.9:
        time.sleep(rng.choice([0, 0, 0.001]))
        word.value = old


def one_round(rng, dev, peer):
    before = mappings()
    b = Endpoint(peer, srq=32, cqe=64)
    rings = sorted(mappings() - before)
    a = Endpoint(dev, cqe=256, depth=64)
    others = [Endpoint(peer, share=b), Endpoint(dev, share=a)]
    for x, y in ((a, b), (others[1], others[0])):
        x.connect(y, timeout=8, retry=1, rnr_retry=1)
        y.connect(x, timeout=8, retry=1, rnr_retry=1)
    stop = threading.Event()

    def resize():
        while not stop.is_set():
            attempt(b.cq.resize, rng.choice([1, 31, 64, 200]))
            attempt(b.srq.modify, SrqAttr(max_wr=rng.choice([1, 20, 32, 100])), e.IBV_SRQ_MAX_WR)
            attempt(b.srq.modify, SrqAttr(srq_limit=rng.choice([0, 1, 10])), e.IBV_SRQ_LIMIT)
    thread = threading.Thread(target=resize)
    if rng.random() < 0.5:
        thread.start()
    print("connected", flush=True)
    for n in range(40):
        attempt(b.recv, 0, 64, n)
        for x in (a, others[1], b):
            attempt(x.send, 0, 8)
        # What was mapped before a change of the size may be gone.
        for _ in range(3):
            known = [r for r in mappings() if r in rings or r not in before]
            scribble(rng, known)
        attempt(a.cq.poll, 16)
        attempt(b.cq.poll, 16)
    stop.set()
    if thread.ident:
        thread.join()
    for end in (*others, a, b):
        attempt(end.close)


def main(dev, peer, seed, seconds):
    rng = random.Random(int(seed))
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        one_round(rng, dev, peer)


if __name__ == "__main__":
    main(*sys.argv[1:])
