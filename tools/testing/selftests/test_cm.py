# SPDX-License-Identifier: GPL-2.0
# guest: timeout=1500 smp=2 mem=3072
"""Connections by rdma_cm: the connection manager speaks over the GSI QP, and programs of rdma-core drive it."""

import re

import pytest

from testbed import Testbed, counters, run, sysfs, wait_until

VERSIONS = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture(scope="module")
def bed():
    with Testbed(mtu=4200) as b:
        run(["modprobe", "rdma_ucm"])
        yield b


def cm_ids():
    """Lines of `rdma resource show cm_id`, those of kernel users included."""
    return run(["rdma", "resource", "show", "cm_id"]).out.splitlines()


def listens(port):
    return any("LISTEN" in line and re.search(rf":{port}\b", line) for line in cm_ids())


def start_server(host, argv, port):
    """Start a program and wait until it listens for connections."""
    server = host.start(*argv)
    wait_until(lambda: listens(port) or server.proc.poll() is not None, 60,
               lambda: f"nobody listens on {port}: {cm_ids()}\n{server.result()}")
    assert server.proc.poll() is None, str(server.result())
    return server


def connect(bed, server, client, port, stays=False):
    """Run a server on h1 and a client on h2; both must end well, the server by itself unless it stays."""
    s = start_server(bed.h1, server, port)
    try:
        c = bed.h2.run(*client, timeout=120, check=False)
        assert c.rc == 0, f"--- server\n{s.result()}\n--- client\n{c}"
        if stays:
            return s.result(), c
        r = s.wait(60)
        assert r.rc == 0, f"--- server\n{r}\n--- client\n{c}"
        return r, c
    finally:
        s.kill()


def test_manager_at_work(bed):
    """The connection manager has taken the port; it says so in the port's capabilities (IsConnectionManagement)."""
    for h in bed.hosts:
        assert int(sysfs(h.dev, "ports/1/cap_mask"), 16) & 1 << 16


@VERSIONS
def test_rping(bed, version):
    ip = bed.h1.ip(version)
    connect(bed, ["rping", "-s", "-a", ip, "-C", 20, "-V", "-S", 3000], ["rping", "-c", "-a", ip, "-C", 20, "-V", "-S", 3000],
            7174)


def test_rping_qp_of_its_own(bed):
    """The program takes its QP through the states itself, with the attributes that the manager names."""
    ip = bed.h1.ip4
    connect(bed, ["rping", "-s", "-a", ip, "-C", 5, "-V", "-q"], ["rping", "-c", "-a", ip, "-C", 5, "-V", "-q"], 7174)


@VERSIONS
@pytest.mark.parametrize("size", [0, 1, 4097, 100000])
def test_ucmatose(bed, version, size):
    args = ["-c", 4, "-C", 10, "-S", size]
    ip = bed.h1.ip(version)
    connect(bed, ["ucmatose", "-b", ip, *args], ["ucmatose", "-s", ip, *args], 7471)


def test_ucmatose_tos(bed):
    ip = bed.h1.ip4
    connect(bed, ["ucmatose", "-b", ip], ["ucmatose", "-s", ip, "-t", 104, "-a", 16], 7471)


@VERSIONS
@pytest.mark.parametrize("size", [1, 4096])
def test_udaddy(bed, version, size):
    args = ["-c", 4, "-C", 10, "-S", size]
    ip = bed.h1.ip(version)
    connect(bed, ["udaddy", "-b", ip, *args], ["udaddy", "-s", ip, *args], 7174)


def test_cmtime(bed):
    """(This program knows IPv4 alone.)"""
    ip = bed.h1.ip4
    connect(bed, ["cmtime", "-b", ip, "-c", 50], ["cmtime", "-s", ip, "-c", 50], 7471)


@VERSIONS
def test_rdma_client(bed, version):
    ip = bed.h1.ip(version)
    connect(bed, ["rdma_server", "-s", ip], ["rdma_client", "-s", ip], 7471)


def test_rdma_xclient(bed):
    connect(bed, ["rdma_xserver", "-c", "r"], ["rdma_xclient", "-c", "r", "-s", bed.h1.ip4], 7471)


@VERSIONS
@pytest.mark.parametrize("tool", ["rstream", "riostream"])
def test_rsockets(bed, tool, version):
    """Streams over RDMA, with the received bytes compared; the protocol writes with immediate data."""
    for options in (["-S", 1, "-C", 10, "-I", 10, "-T", "v"], ["-S", 40000, "-C", 10, "-I", 2, "-T", "v"],
                    ["-S", 999, "-C", 10, "-I", 5, "-T", "v", "-T", "n"]):
        ip = bed.h1.ip(version)
        connect(bed, [tool, "-b", ip, *options], [tool, "-s", ip, *options], 7471)


def test_rcopy(bed, tmp_path):
    data = bytes(range(256)) * 4000 + b"the end"
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(data)
    connect(bed, ["rcopy"], ["rcopy", source, f"{bed.h1.ip4}:{target}"], 7427, stays=True)
    assert target.read_bytes() == data


@pytest.mark.differs_on_rxe("counts no unicast packets")
def test_performance_counters(bed):
    """`ports/1/counters`: what performance management says of the port is what the driver counted."""
    def performance(dev, name):
        return int(sysfs(dev, f"ports/1/counters/{name}"))
    before = counters(bed.h1.dev)
    ip = bed.h1.ip4
    connect(bed, ["rping", "-s", "-a", ip, "-C", 3], ["rping", "-c", "-a", ip, "-C", 3], 7174)
    for h in bed.hosts:
        def agrees():
            own = counters(h.dev)
            return own == counters(h.dev) and all(performance(h.dev, name) == value for name, value in {
                "port_xmit_data": own["sent_bytes"] // 4, "port_rcv_data": own["rcvd_bytes"] // 4,
                "port_xmit_packets": own["sent_pkts"], "port_rcv_packets": own["rcvd_pkts"],
                "unicast_xmit_packets": own["sent_pkts"] - own["sent_mcast_pkts"],
                "unicast_rcv_packets": own["rcvd_pkts"] - own["rcvd_mcast_pkts"],
                "port_xmit_discards": own["send_err"], "port_rcv_errors": own["drop_bad_icrc"],
                "multicast_xmit_packets": 0, "multicast_rcv_packets": 0, "symbol_error": 0,
            }.items())
        # A late ACK may come between two readings.
        wait_until(agrees, 20, lambda: f"{h.dev}: {counters(h.dev)}")
    assert counters(bed.h1.dev)["sent_bytes"] > before["sent_bytes"]
