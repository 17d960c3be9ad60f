# SPDX-License-Identifier: GPL-2.0
# guest: timeout=400 smp=2 mem=3072
"""Programs that write what they like into the rings that they share with the kernel."""

import contextlib
import sys

import pytest

import scribbler
from kmsg import nothing_logged
from testbed import Testbed
from verbs import OK, pair


@pytest.fixture(scope="module")
def bed():
    with Testbed(mtu=4200) as b:
        yield b


@pytest.mark.parametrize("seed", range(2))
def test_rings_written_at_random(bed, seed):
    """Random words in the rings, while messages arrive and the queues change their size: the program may crash, nobody else."""
    with nothing_logged(), pair(bed.h1.dev, bed.h2.dev) as (a, b):
        rounds = 0
        for turn in range(3):
            job = bed.h1.start(sys.executable, scribbler.__file__, bed.h1.dev, bed.h2.dev, 10 * seed + turn, 4)
            with contextlib.suppress(AssertionError):
                job.wait(30)
            job.kill()
            rounds += job.out.count("connected")
            # A bystander's connection works on.
            b.recv(0, 64)
            a.send(0, 8)
            assert a.done() == OK and b.done() == OK
        assert rounds >= 3, job.result()
