# SPDX-License-Identifier: GPL-2.0
# guest: timeout=1800 mem=3072
"""Programs that others wrote for RDMA hardware: libfabric's, UCX's, Open MPI and qperf."""

import os
import re

import pytest

from testbed import SLOW, Testbed, run, wait_until


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
        client = bed.h2.run("qperf", "-t", 2 * SLOW, "-m", 4096, "-cm", 1, bed.h1.ip4, test)
        values = figures(client.out, figure)
        assert len(values) == 1 and values[0] > 0 and "failed" not in client.out, client
    finally:
        server.kill()
        wait_until(lambda: bed.h1.run("pgrep", "-x", "qperf", check=False).rc == 1, 20, "qperf stays")


def ucx(host, version, transports):
    """Environment for UCX: this device, the GID of that kind of address, these transports and no other."""
    return {"UCX_NET_DEVICES": f"{host.dev}:1", "UCX_IB_GID_INDEX": str(host.gid_index(host.ip(version))),
            "UCX_TLS": transports, "UCX_LOG_LEVEL": "error"}


# Connections are made by datagrams, so the one needs the other.
RC, UD = "rc_verbs,ud_verbs", "ud_verbs"


@pytest.mark.differs_on_rxe("UCX takes the IPv4 header of a datagram for another one")
@pytest.mark.seconds(400)
@pytest.mark.parametrize("transports, version, test, size", [
    (RC, 4, "tag_lat", 64), (RC, 6, "tag_lat", 64), (RC, 4, "tag_bw", 1 << 18), (RC, 4, "ucp_get", 1 << 16),
    (UD, 4, "tag_lat", 64), (UD, 6, "tag_lat", 64), (UD, 4, "tag_bw", 100000)])
def test_ucx(bed, transports, version, test, size):
    options = ["ucx_perftest", "-P", 0, "-t", test, "-s", size, "-n", 20, "-w", 2]
    server = bed.h1.start(*options, env=ucx(bed.h1, version, transports))
    server.wait_listening(13337, 150)
    try:
        client = bed.h2.run(*options, bed.h1.ip4, env=ucx(bed.h2, version, transports), timeout=200)
        assert re.search(r"^Final: +20 ", client.out, re.M), client
        assert server.wait(60).rc == 0, server.result()
    finally:
        server.kill()


@pytest.mark.differs_on_rxe("UCX takes the IPv4 header of a datagram for another one")
@pytest.mark.seconds(500)
@pytest.mark.parametrize("transports", [RC, UD], ids=["rc", "ud"])
def test_mpi(bed, transports):
    """Open MPI over UCX. Its daemons talk over the loopback interface, so both ranks are in one namespace, on two devices."""
    run(["ip", "link", "set", "lo", "up"])
    settings = []
    for host in bed.hosts:
        env = {**ucx(host, 4, transports + ",self"), "UCX_IB_ROCE_REACHABILITY_MODE": "all"}
        settings.append(";".join(f"{k}={v}" for k, v in env.items()))
    program = f"{os.path.dirname(os.path.abspath(__file__))}/mpi_exchange.py"
    done = run(["mpirun", "--allow-run-as-root", "-n", 2, "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE",
                "--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any",
                "python3", program, *settings], timeout=450)
    assert {"rank 0 done", "rank 1 done"} <= set(done.out.splitlines()), done
