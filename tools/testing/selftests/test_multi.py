# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=3072
"""Many queue pairs, several devices, and a network that changes under them."""

import contextlib

import pyverbs.enums as e
import pytest

from capture import capture
from testbed import Host, Testbed, counters, gid_of, gids, run, wait_until
from transfer import transfer
from verbs import OK, RTR_MASK, RTS_MASK, Endpoint, all_good, pair, pattern

MIB = 1 << 20
SIZES = [1, 4096, 10001, 65536]


def connect_by(a, b, index_a, index_b, **kw):
    """Connect by the given entries of the GID tables."""
    for x, y, mine, theirs in ((a, b, index_a, index_b), (b, a, index_b, index_a)):
        x.to_init()
        x.qp.modify(x.rtr_attr(y.gid(theirs), mine, y.qp.qp_num, y.psn, **kw.get("rtr", {})), RTR_MASK)
        x.qp.modify(x.rts_attr(**kw.get("rts", {})), RTS_MASK)


# Loopback.

@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_one_device_to_itself(bed, op, ip):
    with pair(bed.h1.dev, bed.h1.dev, ip, length=MIB) as (a, b):
        transfer(a, b, op, MIB, SIZES)


def test_queue_pair_to_itself(bed):
    """A queue pair may be its own peer."""
    end = Endpoint(bed.h1.dev)
    end.connect(end)
    data = pattern(5000, 1)
    end.mr.write(data, 5000, 0)
    end.recv(10000, 5000)
    end.send(0, 5000)
    all_good(end.poll(2))
    assert end.mr.read(5000, 10000) == data
    end.read(20000, 5000, end.at(0))
    assert end.done() == OK
    assert end.mr.read(5000, 20000) == data
    end.close()


def test_pingpong_on_one_device(bed):
    for ip in (bed.h1.ip4, bed.h1.ip6):
        port = bed.port()
        cmd = ["ibv_rc_pingpong", "-d", bed.h1.dev, "-g", bed.h1.gid_index(ip), "-p", port, "-n", 50, "-c"]
        server = bed.h1.start(*cmd)
        server.wait_listening(port)
        client = bed.h1.run(*cmd, "127.0.0.1")
        assert "bytes in" in client.out and server.wait(30).rc == 0


def test_loopback_stays_inside(bed):
    """Nothing of a conversation of a device with itself is seen on the wire."""
    with capture(bed.h1, bed.h2) as cap, pair(bed.h1.dev, bed.h1.dev) as (a, b):
        transfer(a, b, "write", 100000, [10000])
    assert not cap.packets, cap.listing()


@pytest.fixture
def second(bed):
    """A second wire between the hosts, w1 and w2, with devices of their own: two devices on each host."""
    ends = []
    run(["ip", "link", "add", "w1", "netns", "h1", "type", "veth", "peer", "name", "w2", "netns", "h2"])
    for h in bed.hosts:
        other = Host(h.number, h.kind)
        other.netdev, other.dev = f"w{h.number}", f"second{h.number}"
        other.ip4, other.ip6 = f"10.1.0.{h.number}", f"fd01::{h.number}"
        other.run("ip", "link", "set", other.netdev, "mtu", "4200", "up")
        other.run("ip", "addr", "add", f"{other.ip4}/24", "dev", other.netdev)
        other.run("ip", "addr", "add", f"{other.ip6}/64", "dev", other.netdev, "nodad")
        other.add_link()
        ends.append(other)
    for other in ends:
        other.gid_index(other.ip4)
        other.gid_index(other.ip6)
        Testbed.wait_active(other)
    yield ends
    for other in ends:
        other.delete_link(check=False)
    run(["ip", "-n", "h1", "link", "delete", "w1"], check=False)


@pytest.mark.differs_on_rxe("packets that come in by lo belong to no device")
@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_two_devices_of_one_host(bed, second, op, ip):
    if ip == 4:
        # The RDMA core looks for the hardware address on the wire of the device, where nobody answers for this host.
        for host, other in ((bed.h1, second[0]), (second[0], bed.h1)):
            host.run("ip", "neigh", "replace", other.ip4, "lladdr", other.mac(), "dev", host.netdev)
    with pair(bed.h1.dev, second[0].dev, ip, length=MIB) as (a, b):
        transfer(a, b, op, MIB, SIZES)


def test_two_wires_at_once(bed, second):
    """Each device uses its own netdev and counts for itself."""
    before = [counters(d) for d in (bed.h1.dev, second[0].dev)]
    with pair(bed.h1.dev, bed.h2.dev, length=MIB) as (a, b), pair(second[0].dev, second[1].dev, length=MIB) as (c, d):
        transfer(a, b, "write", MIB, SIZES)
        transfer(c, d, "read", 2 * MIB, SIZES)
    after = [counters(d) for d in (bed.h1.dev, second[0].dev)]
    sent = [y["sent_bytes"] - x["sent_bytes"] for x, y in zip(before, after)]
    received = [y["rcvd_bytes"] - x["rcvd_bytes"] for x, y in zip(before, after)]
    assert sent[0] > MIB > sent[1] and received[1] > 2 * MIB and received[0] < MIB, (sent, received)


def test_wrong_device_is_not_reached(bed, second):
    """A packet for the queue pair number of one device that arrives at the other: nobody takes it."""
    a, b, wrong = Endpoint(bed.h1.dev), Endpoint(bed.h2.dev), Endpoint(second[1].dev)
    wrong.connect(a)
    a.to_init()
    a.qp.modify(a.rtr_attr(b.gid(b.gid_index(4)), a.gid_index(4), wrong.qp.qp_num + 100, wrong.psn), RTR_MASK)
    a.qp.modify(a.rts_attr(timeout=12, retry=1), RTS_MASK)
    wrong.recv(0, 100)
    a.send(0, 8)
    assert a.done() == e.IBV_WC_RETRY_EXC_ERR
    wrong.nothing(0.1)
    for end in (a, b, wrong):
        end.close()


# Counters.

def test_counters_move(bed):
    """Packets, bytes and messages of known work."""
    with pair(bed.h1.dev, bed.h2.dev, connect={"mtu": 1024, "timeout": 20}) as (a, b):
        x, y = counters(a.dev), counters(b.dev)
        b.recv(0, 10240)
        a.send(0, 10240)
        assert a.done() == OK and b.done() == OK
        x2, y2 = counters(a.dev), counters(b.dev)
    assert x2["sent_pkts"] - x["sent_pkts"] == 10 and y2["rcvd_pkts"] - y["rcvd_pkts"] == 10
    assert 1 <= y2["sent_pkts"] - y["sent_pkts"] <= 10
    assert x2["sent_bytes"] - x["sent_bytes"] >= 10240 and y2["rcvd_bytes"] - y["rcvd_bytes"] >= 10240
    assert x2["rdma_sends"] - x["rdma_sends"] == 1 and y2["rdma_recvs"] - y["rdma_recvs"] == 1


def test_counters_of_trouble(bed):
    """Receiver not ready and retries exceeded are counted where they happen."""
    before = counters(bed.h1.dev), counters(bed.h2.dev)
    with pair(bed.h1.dev, bed.h2.dev, connect={"rnr_retry": 1, "min_rnr_timer": 5, "timeout": 0}) as (a, b):
        a.send(0, 8)
        assert a.done() == e.IBV_WC_RNR_RETRY_EXC_ERR
    with pair(bed.h1.dev, bed.h2.dev, connect={"retry": 1, "timeout": 10}) as (a, b):
        b.qp.close()
        a.send(0, 8)
        assert a.done() == e.IBV_WC_RETRY_EXC_ERR
    after = counters(bed.h1.dev), counters(bed.h2.dev)
    for side, name in ((0, "rcvd_rnr_err"), (0, "retry_rnr_exceeded_err"), (0, "retry_exceeded_err"), (1, "send_rnr_err")):
        assert after[side][name] > before[side][name], name


# Many queue pairs.

def test_64_queue_pairs(bed):
    """All of them busy at once, in both directions, each with bytes of its own."""
    with pair(bed.h1.dev, bed.h2.dev, length=MIB, depth=8, cqe=2048) as (a, b):
        more = []
        for _ in range(63):
            ends = Endpoint(a.dev, share=a, depth=8), Endpoint(b.dev, share=b, depth=8)
            ends[0].connect(ends[1])
            ends[1].connect(ends[0])
            more.append(ends)
        data = pattern(64 * 8000, 1)
        a.mr.write(data, len(data), 0)
        b.mr.write(bytes(MIB), MIB, 0)
        for i, (x, y) in enumerate([(a, b)] + more):
            y.recv(8000 * i, 4000)
            x.send(8000 * i, 4000)
            x.write(8000 * i + 4000, 4000, y.at(8000 * i + 4000))
            y.read(600000 + 1000 * i, 1000, x.at(8000 * i))
        done = a.poll(128, 120) + b.poll(128, 120)
        all_good(done)
        assert b.mr.read(len(data), 0) == data
        assert all(b.mr.read(1000, 600000 + 1000 * i) == data[8000 * i:8000 * i + 1000] for i in range(64))
        numbers = {x.qp.qp_num for pair_ in [(a, b)] + more for x in pair_[:1]}
        assert len(numbers) == 64
        for ends in more:
            for end in ends:
                end.close()


def test_queue_pair_numbers_are_not_reused_at_once(bed):
    """A late packet must not meet a new owner of its number."""
    end = Endpoint(bed.h1.dev)
    seen = [end.qp.qp_num]
    for _ in range(20):
        other = Endpoint(end.dev, share=end)
        seen.append(other.qp.qp_num)
        other.close()
    end.close()
    assert len(set(seen)) == len(seen), seen
    assert all(2 <= n < 1 << 24 for n in seen)


# The network changes.

def works(a, b):
    transfer(a, b, "write", 200000, [50000])


def test_peer_gets_another_mac(bed):
    """The neighbour's hardware address changes: the connection goes on."""
    with pair(bed.h1.dev, bed.h2.dev, length=MIB, connect={"timeout": 17}) as (a, b):
        works(a, b)
        old = bed.h2.mac()
        try:
            bed.h2.run("ip", "link", "set", bed.h2.netdev, "address", "02:00:00:00:12:34")
            bed.h1.run("ip", "neigh", "flush", "dev", bed.h1.netdev)
            works(a, b)
            works(b, a)
        finally:
            bed.h2.run("ip", "link", "set", bed.h2.netdev, "address", old)
            bed.h1.run("ip", "neigh", "flush", "dev", bed.h1.netdev)
        works(a, b)


def test_route_by_a_gateway(bed):
    """The peer's address lies behind a gateway, and then behind another one: the hardware address follows the route."""
    far = "10.9.9.9"
    bed.h2.run("ip", "addr", "add", f"{far}/32", "dev", bed.h2.netdev)
    bed.h2.run("ip", "link", "add", "gw", "link", bed.h2.netdev, "type", "macvlan", "mode", "bridge")
    bed.h2.run("ip", "addr", "add", "10.0.0.77/32", "dev", "gw")
    bed.h2.run("ip", "link", "set", "gw", "up")
    a, b = Endpoint(bed.h1.dev, length=MIB), Endpoint(bed.h2.dev, length=MIB)
    try:
        bed.h1.run("ip", "route", "add", f"{far}/32", "via", bed.h2.ip4, "dev", bed.h1.netdev)
        connect_by(a, b, bed.h1.gid_index(bed.h1.ip4), bed.h2.gid_index(far), rts={"timeout": 17})
        works(a, b)
        bed.h1.run("ip", "neigh", "replace", "10.0.0.78", "lladdr", bed.h2.mac(), "dev", bed.h1.netdev)
        with capture(bed.h1, bed.h2) as cap:
            bed.h1.run("ip", "route", "replace", f"{far}/32", "via", "10.0.0.78", "dev", bed.h1.netdev)
            works(a, b)
        assert cap.packets
        # A gateway with a hardware address of nobody: what is sent now goes there.
        bed.h1.run("ip", "neigh", "replace", "10.0.0.79", "lladdr", "02:00:00:00:99:99", "dev", bed.h1.netdev)
        with capture(bed.h1, bed.h2) as cap:
            bed.h1.run("ip", "route", "replace", f"{far}/32", "via", "10.0.0.79", "dev", bed.h1.netdev)
            a.write(0, 100, b.at(0))
            a.nothing(0.3)
            bed.h1.run("ip", "route", "replace", f"{far}/32", "via", bed.h2.ip4, "dev", bed.h1.netdev)
            assert a.done(60) == OK
        assert any(p.frame[:6].hex() == "020000009999" for p in cap.packets), cap.listing()
    finally:
        a.close()
        b.close()
        bed.h1.run("ip", "route", "delete", f"{far}/32", check=False)
        bed.h2.run("ip", "link", "delete", "gw", check=False)
        bed.h2.run("ip", "addr", "delete", f"{far}/32", "dev", bed.h2.netdev)


def test_mtu_shrinks_and_grows(bed):
    """Packets larger than the link are lost, not fatal: with the old MTU back in time, the work completes."""
    with pair(bed.h1.dev, bed.h2.dev, length=MIB, connect={"mtu": 4096, "timeout": 18, "retry": 7}) as (a, b):
        works(a, b)
        bed.h1.run("ip", "link", "set", bed.h1.netdev, "mtu", "1500")
        try:
            a.write(0, 50000, b.at(0))
            a.nothing(0.5)
        finally:
            bed.h1.run("ip", "link", "set", bed.h1.netdev, "mtu", "4200")
        assert a.done(60) == OK
        works(a, b)


def test_link_flaps(bed):
    """Down and up again within the time that the retries give: nothing is lost but time."""
    with pair(bed.h1.dev, bed.h2.dev, length=MIB, connect={"timeout": 18, "retry": 7}) as (a, b):
        for _ in range(3):
            bed.h2.run("ip", "link", "set", bed.h2.netdev, "down")
            a.write(0, 50000, b.at(0))
            bed.h2.run("ip", "link", "set", bed.h2.netdev, "up")
            assert a.done(60) == OK
        bed.h2.run("ip", "addr", "replace", f"{bed.h2.ip6}/64", "dev", bed.h2.netdev, "nodad")
        bed.h2.gid_index(bed.h2.ip6)


def test_address_goes(bed):
    """The address of a connected queue pair is removed: its work ends with an error, and it can be destroyed."""
    bed.h1.run("ip", "addr", "add", "10.0.0.50/24", "dev", bed.h1.netdev)
    a, b = Endpoint(bed.h1.dev), Endpoint(bed.h2.dev)
    connect_by(a, b, bed.h1.gid_index("10.0.0.50"), bed.h2.gid_index(bed.h2.ip4), rts={"timeout": 12, "retry": 2})
    a.write(0, 100, b.at(0))
    assert a.done() == OK
    bed.h1.run("ip", "addr", "delete", "10.0.0.50/24", "dev", bed.h1.netdev)
    a.write(0, 100, b.at(0))
    assert a.done() != OK
    a.close()
    b.close()
    wait_until(lambda: gid_of("10.0.0.50") not in gids(bed.h1.dev).values(), 20, "the GID stays")


def test_duplicate_address_detection(bed):
    """An IPv6 address that has to pass the check first becomes a GID that works."""
    new = {1: "fd00::a1", 2: "fd00::a2"}
    for h in bed.hosts:
        h.run("sysctl", "-qw", f"net.ipv6.conf.{h.netdev}.accept_dad=1")
        h.run("ip", "addr", "add", f"{new[h.number]}/64", "dev", h.netdev)
    try:
        a, b = Endpoint(bed.h1.dev, length=MIB), Endpoint(bed.h2.dev, length=MIB)
        for h in bed.hosts:
            wait_until(lambda: "tentative" not in h.run("ip", "-6", "addr", "show", "dev", h.netdev).out, 30, "tentative",
                       step=0.2)
        connect_by(a, b, *(h.gid_index(new[h.number]) for h in bed.hosts))
        works(a, b)
        a.close()
        b.close()
    finally:
        for h in bed.hosts:
            h.run("ip", "addr", "delete", f"{new[h.number]}/64", "dev", h.netdev)
            h.run("sysctl", "-qw", f"net.ipv6.conf.{h.netdev}.accept_dad=0")


def test_link_local_addresses(bed):
    """GID 0, the link-local one, works between neighbours."""
    with_ll = [next(i for i, g in gids(h.dev).items() if g.startswith("fe80")) for h in bed.hosts]
    a, b = Endpoint(bed.h1.dev, length=MIB), Endpoint(bed.h2.dev, length=MIB)
    connect_by(a, b, *with_ll)
    works(a, b)
    works(b, a)
    a.close()
    b.close()


def test_addresses_of_a_vlan(bed):
    """The address of a VLAN on the netdev is a GID of the device, and its packets carry the tag."""
    for h in bed.hosts:
        h.run("ip", "link", "add", "link", h.netdev, "name", "vl5", "type", "vlan", "id", "5")
        h.run("ip", "addr", "add", f"10.5.0.{h.number}/24", "dev", "vl5")
        h.run("ip", "link", "set", "vl5", "up")
    try:
        a, b = Endpoint(bed.h1.dev, length=MIB), Endpoint(bed.h2.dev, length=MIB)
        connect_by(a, b, *(h.gid_index(f"10.5.0.{h.number}") for h in bed.hosts))
        works(a, b)
        a.close()
        b.close()
    finally:
        for h in bed.hosts:
            h.run("ip", "link", "delete", "vl5")


# Other interfaces than Ethernet ones.

@contextlib.contextmanager
def devices_on(bed, number, make, netdev):
    """A device on each host, on an interface of its own that make(host, own) makes, with addresses of a network of its own."""
    ends = []
    with contextlib.ExitStack() as stack:
        for h in bed.hosts:
            own = Host(h.number, h.kind)
            own.netdev, own.dev = f"{netdev}{h.number}", f"{netdev}dev{h.number}"
            own.ip4 = f"10.{number}.0.{h.number}"
            stack.callback(own.run, "ip", "link", "delete", own.netdev, check=False)
            make(h, own)
            own.run("ip", "link", "set", own.netdev, "up")
            own.run("ip", "addr", "add", f"{own.ip4}/24", "dev", own.netdev)
            own.add_link()
            stack.callback(own.delete_link, check=False)
            ends.append(own)
        for own in ends:
            own.gid_index(own.ip4)
            Testbed.wait_active(own)
        yield ends


def test_over_a_tunnel(bed):
    """An interface that has no hardware address, for it ends in the other host."""
    run(["modprobe", "ip_gre"])

    def make(h, own):
        other = bed.h2 if h is bed.h1 else bed.h1
        own.run("ip", "link", "add", own.netdev, "type", "gre", "local", h.ip4, "remote", other.ip4, "ttl", "64")
    with devices_on(bed, 31, make, "tnl") as (x, y), pair(x.dev, y.dev, length=MIB) as (a, b):
        for op in ("send", "write", "read"):
            transfer(a, b, op, MIB, SIZES)


@pytest.mark.parametrize("mode", ["active-backup", "balance-xor"])
def test_bond(bed, mode):
    """A bond of two wires, of which one goes under a connection, and comes back, and then the other."""
    run(["modprobe", "bonding"])
    wires = [("bx1", "bx2"), ("by1", "by2")]
    for one, two in wires:
        run(["ip", "link", "add", one, "netns", "h1", "type", "veth", "peer", "name", two, "netns", "h2"])

    def make(h, own):
        own.run("ip", "link", "add", own.netdev, "type", "bond", "mode", mode, "miimon", "20")
        for wire in wires:
            own.run("ip", "link", "set", wire[h.number - 1], "master", own.netdev)
    try:
        with devices_on(bed, 32, make, "bond") as (x, y), \
                pair(x.dev, y.dev, length=MIB, connect={"timeout": 17, "retry": 7}) as (a, b):
            works(a, b)
            for wire in wires:
                x.run("ip", "link", "set", wire[0], "down")
                works(a, b)
                works(b, a)
                x.run("ip", "link", "set", wire[0], "up")
                for host, end in zip((x, y), wire):
                    wait_until(lambda: "MII Status: up" in host.run(
                        "sh", "-c", f"sed -n '/Interface: {end}/,/^$/p' /proc/net/bonding/{host.netdev}").out, 20, f"{end} stays down")
                works(a, b)
    finally:
        for one, _ in wires:
            run(["ip", "-n", "h1", "link", "delete", one], check=False)
