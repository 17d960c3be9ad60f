# SPDX-License-Identifier: GPL-2.0
# guest: timeout=1500 mem=3072
"""Connections by rdma_cm: the connection manager speaks over the GSI QP, and programs of rdma-core drive it."""

import json
import os
import re
import signal
import time

import pytest

from perftest import rows
from testbed import DRIVER, Testbed, cm_ids, cm_listens, counters, module_loaded, module_of, rdma_links, run, sysfs, wait_until

RDMACM = ["python3", f"{os.path.dirname(os.path.abspath(__file__))}/rdmacm.py"]
VERSIONS = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture(scope="module")
def bed():
    with Testbed(mtu=4200) as b:
        run(["modprobe", "rdma_ucm"])
        yield b


def start_server(host, argv, port):
    """Start a program and wait until it listens for connections."""
    server = host.start(*argv)
    wait_until(lambda: cm_listens(port) or server.proc.poll() is not None, 60,
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


def objects(dev):
    """How many objects of each kind a device has, those of the kernel included."""
    shown = json.loads(run(["rdma", "-j", "resource", "show", dev]).out)[0]
    return {kind: n for kind, n in shown.items() if not kind.startswith("if")}


@pytest.fixture
def nothing_left(bed):
    """Whatever the test does, all objects are gone after it."""
    before = [objects(h.dev) for h in bed.hosts]
    yield
    wait_until(lambda: [objects(h.dev) for h in bed.hosts] == before, 60,
               lambda: f"{before} before, now {[objects(h.dev) for h in bed.hosts]}")


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


@pytest.mark.parametrize("tool, version, qps", [("ib_send_bw", 4, 4), ("ib_write_lat", 4, 1), ("ib_read_bw", 6, 4)])
def test_perftest_by_cm(bed, tool, version, qps):
    """perftest with -R: the manager connects its queue pairs, and carries what it otherwise exchanges over TCP."""
    port, ip = bed.port(), bed.h1.ip(version)
    options = ["-R", "-F", "-p", port, "-n", 50, "-s", 5000, *(["-q", qps] if qps > 1 else [])]
    _, client = connect(bed, [tool, *options, *(["--ipv6-addr"] if version == 6 else [])],
                        [tool, *options, *(["--ipv6-addr"] if version == 6 else []), ip], port)
    assert [size for size, _ in rows(client.out)] == [5000], client


# Many, and those that come to nothing.

def many(bed, ip, count, at_a_time, *mode):
    """What a server and a client saw of `count` connections."""
    port = bed.port()
    server = start_server(bed.h1, [*RDMACM, "serve", ip, port, count, *mode], port)
    client = bed.h2.run(*RDMACM, "connect", ip, port, count, at_a_time, timeout=900)
    return json.loads(server.wait(60).out), json.loads(client.out)


@VERSIONS
@pytest.mark.seconds(1000)
def test_many_at_a_time(bed, nothing_left, version):
    """2,000 connections over IPv4, 200 over IPv6, 64 at a time; each answer belongs to its request."""
    count = 2000 if version == 4 else 200
    server, client = many(bed, bed.h1.ip(version), count, 64)
    assert client["failed"] == {} and client["most"] == 64, client
    assert client["ESTABLISHED"] == client["DISCONNECTED"] == count, client
    # Who disconnects at once may be heard of so before the last message of his connect: the manager handles each in a work
    # item of its own. ESTABLISHED is left out then.
    assert server["CONNECT_REQUEST"] == server["DISCONNECTED"] == count >= server["ESTABLISHED"] > count // 2, server


def test_one_after_the_other(bed, nothing_left):
    server, client = many(bed, bed.h1.ip4, 100, 1)
    assert client["failed"] == {} and client["ESTABLISHED"] == server["DISCONNECTED"] == 100, (server, client)


@VERSIONS
def test_rejected(bed, nothing_left, version):
    """The program on the other side says no (reason 28: consumer), and why in private data."""
    server, client = many(bed, bed.h1.ip(version), 8, 4, "reject")
    assert client["failed"] == {"REJECTED 28": 8}, client
    assert server == {"CONNECT_REQUEST": 8}


@VERSIONS
def test_nobody_listens(bed, nothing_left, version):
    """The manager of the other side answers at once (reason 8: invalid service ID)."""
    client = json.loads(bed.h2.run(*RDMACM, "connect", bed.h1.ip(version), bed.port(), 4, 4).out)
    assert client["failed"] == {"REJECTED 8": 4} and client["seconds"] < 20, client


@pytest.mark.seconds(400)
def test_peer_away(bed, nothing_left):
    """The host is there but its device is not: the manager asks 15 times more, then the peer is unreachable (ETIMEDOUT)."""
    bed.h1.delete_link()
    try:
        client = json.loads(bed.h2.run(*RDMACM, "connect", bed.h1.ip4, bed.port(), 2, 2, timeout=300).out)
        assert client["failed"] == {"UNREACHABLE -110": 2}, client
    finally:
        bed.h1.add_link()
        bed.h1.gid_index(bed.h1.ip4)
        bed.h1.gid_index(bed.h1.ip6)


@pytest.mark.parametrize("victim", ["client", "server"])
def test_killed_while_connecting(bed, nothing_left, victim):
    """A program dies in the middle of 64 connects. Nothing of it stays; the other one can be ended, and others connect."""
    port, ip = bed.port(), bed.h1.ip4
    for pause in (0.3, 1.0, 2.5):
        server = start_server(bed.h1, [*RDMACM, "serve", ip, port, 10000], port)
        client = bed.h2.start(*RDMACM, "connect", ip, port, 10000, 64)
        wait_until(lambda: objects(bed.h2.dev)["qp"] > 8, 60, "no connection")
        time.sleep(pause)
        first, second = (client, server) if victim == "client" else (server, client)
        first.kill()
        time.sleep(0.3)
        second.kill()
    server, client = many(bed, ip, 20, 10)
    assert client["failed"] == {}, client


# The device goes.

def test_link_deleted_under_connections(bed):
    """Programs are told that the device goes, and end; deleting does not wait for their connections."""
    ip = bed.h1.ip4
    server = start_server(bed.h1, ["rping", "-s", "-a", ip], 7174)
    client = bed.h2.start("rping", "-c", "-a", ip)
    busy = counters(bed.h2.dev)["rdma_sends"]
    wait_until(lambda: counters(bed.h2.dev)["rdma_sends"] > busy + 20, 60, "no pings")
    since = time.monotonic()
    bed.h2.delete_link()
    assert time.monotonic() - since < 60
    client.wait(60)
    server.signal(signal.SIGINT)
    server.kill()
    bed.h2.add_link()
    bed.h2.gid_index(bed.h2.ip4)
    connect(bed, ["rping", "-s", "-a", ip, "-C", 3], ["rping", "-c", "-a", ip, "-C", 3], 7174)


def test_module_unloaded_under_connections(bed):
    """Last: both devices go at once, in the middle of connects."""
    port, ip = bed.port(), bed.h1.ip4
    server = start_server(bed.h1, [*RDMACM, "serve", ip, port, 10000], port)
    client = bed.h2.start(*RDMACM, "connect", ip, port, 10000, 64)
    wait_until(lambda: objects(bed.h2.dev)["qp"] > 8, 60, "no connection")
    run(["modprobe", "-r", module_of(DRIVER)])
    assert not module_loaded(DRIVER) and rdma_links() == []
    server.kill()
    client.kill()
