# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=3072
"""Programs that others wrote for RDMA hardware: libfabric's and qperf."""

import re

import pytest

from testbed import Testbed, run, wait_until


@pytest.fixture(scope="module")
def bed():
    with Testbed(mtu=4200) as b:
        run(["modprobe", "rdma_ucm"])
        yield b


def figures(out, name):
    """The value of each line `name = value unit` in qperf's answer."""
    return [float(value) for value in re.findall(rf"^ +{name} +=  *([0-9.]+)", out, re.M)]


@pytest.mark.parametrize("options", [["-p", "verbs", "-e", "msg"], ["-p", "verbs;ofi_rxm", "-e", "rdm"]],
                         ids=["msg", "rdm"])
@pytest.mark.parametrize("version", [4, 6])
def test_libfabric(bed, options, version):
    """fi_pingpong over the verbs provider: connections, and reliable datagrams on top of these; the data is checked."""
    if version == 6:
        options = [*options, "-6"]
    server = bed.h1.start("fi_pingpong", *options, "-I", 10, "-c")
    server.wait_listening(47592)
    client = bed.h2.run("fi_pingpong", *options, "-I", 10, "-c", bed.h1.ip(version), timeout=90)
    assert server.wait(60).rc == 0, server.result()
    sizes = re.findall(r"^(\d+[km]?) +10 +=10 ", client.out, re.M)
    assert sizes == ["64", "256", "1k", "4k", "64k", "1m"], client


@pytest.mark.parametrize("test, figure", [("rc_bw", "bw"), ("rc_bi_bw", "bw"), ("rc_lat", "latency"),
                                          ("rc_rdma_read_bw", "bw"), ("rc_rdma_read_lat", "latency"),
                                          ("rc_rdma_write_bw", "bw"), ("rc_rdma_write_lat", "latency"),
                                          ("rc_rdma_write_poll_lat", "latency")])
def test_qperf(bed, test, figure):
    """qperf with connections by rdma_cm, which gives it addresses; without, it knows LIDs only, and RoCE has none."""
    server = bed.h1.start("qperf")
    server.wait_listening(19765)
    try:
        client = bed.h2.run("qperf", "-t", 2, "-m", 4096, "-cm", 1, bed.h1.ip4, test)
        values = figures(client.out, figure)
        assert len(values) == 1 and values[0] > 0 and "failed" not in client.out, client
    finally:
        server.kill()
        wait_until(lambda: bed.h1.run("pgrep", "-x", "qperf", check=False).rc == 1, 20, "qperf stays")
