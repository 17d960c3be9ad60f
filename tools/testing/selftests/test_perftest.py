# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=3072
"""perftest's RC programs: all sizes, many queue pairs, inline, events. What counts is that they end well, not how fast."""

import pytest

from perftest import TOOLS, perftest
from testbed import Testbed

BW = [t for t in TOOLS if t.endswith("_bw")]


@pytest.mark.parametrize("tool, ip", [(t, 4) for t in TOOLS] + [("ib_send_bw", 6), ("ib_read_lat", 6)])
def test_all_sizes(bed, tool, ip):
    perftest(bed, tool, "-a", "-n", 5, ip=ip)


@pytest.mark.parametrize("qps", [2, 12])
@pytest.mark.parametrize("tool", BW)
def test_queue_pairs(bed, tool, qps):
    perftest(bed, tool, "-q", qps, "-n", 20, "-s", 8192)


@pytest.mark.parametrize("tool", BW)
def test_both_ways(bed, tool):
    perftest(bed, tool, "-b", "-n", 20, "-s", 20000)


@pytest.mark.parametrize("tool, size", [("ib_send_lat", 1), ("ib_write_lat", 33), ("ib_send_bw", 512), ("ib_write_bw", 100)])
def test_inline(bed, tool, size):
    perftest(bed, tool, "-I", 512, "-s", size, "-n", 50)


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_send_lat", "ib_read_bw", "ib_read_lat"])
def test_events(bed, tool):
    perftest(bed, tool, "-e", "-n", 50, "-s", 5000)


@pytest.mark.parametrize("tool, size", [("ib_send_lat", 1), ("ib_write_lat", 3), ("ib_read_lat", 33), ("ib_send_lat", 1025),
                                        ("ib_write_lat", 4097), ("ib_read_lat", 65537), ("ib_write_lat", 99999)])
def test_odd_sizes(bed, tool, size):
    perftest(bed, tool, "-s", size, "-n", 10)


@pytest.mark.parametrize("mtu", [256, 512, 2048])
def test_path_mtu(bed, mtu):
    perftest(bed, "ib_send_bw", "-m", mtu, "-s", 30001, "-n", 10)


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_write_bw"])
def test_depths(bed, tool):
    """One work request outstanding at a time, and more than a thousand; a CQE for each, and for every fiftieth."""
    perftest(bed, tool, "-t", 1, "-n", 50, "-s", 64)
    perftest(bed, tool, "-t", 512, "-n", 700, "-s", 64)
    perftest(bed, tool, "-Q", 1, "-n", 100, "-s", 64)


@pytest.mark.parametrize("outs", [1, 16])
def test_outstanding_reads(bed, outs):
    perftest(bed, "ib_read_bw", "-o", outs, "-n", 50, "-s", 10000)


def test_post_lists(bed):
    """Several work requests posted at once."""
    perftest(bed, "ib_send_bw", "-l", 8, "-n", 64, "-s", 2000)
    perftest(bed, "ib_write_bw", "-l", 8, "-n", 64, "-s", 2000)


def test_two_programs_at_once(bed):
    """Two connections at the same time through the same two devices."""
    jobs = []
    for tool in ("ib_write_bw", "ib_read_bw"):
        port = bed.port()
        common = ["-x", bed.h1.gid_index(bed.h1.ip4), "-p", port, "-F", "-n", 200, "-s", 65536]
        server = bed.h1.start(tool, "-d", bed.h1.dev, *common)
        server.wait_listening(port)
        jobs += [server, bed.h2.start(tool, "-d", bed.h2.dev, *common, bed.h1.ip4)]
    results = [j.wait(200) for j in jobs]
    assert all(r.rc == 0 for r in results), "\n".join(map(str, results))


def test_small_mtu():
    """Last, since a bed of its own ends the one of the others."""
    with Testbed(mtu=1500) as small:
        for tool in BW:
            perftest(small, tool, "-n", 10, "-s", 100001)
