# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=2560 nics=1
"""Between virtual machines: interfaces of virtio-net whose packets go through QEMU, a bridge and a tap device.

With offloads, the other side computes checksums and cuts up trains; without, nothing leaves the guest unfinished.
"""

import contextlib
import glob

import pytest

from testbed import Testbed, run, sh, wait_until
from transfer import transfer
from verbs import pair

KIB, MIB = 1 << 10, 1 << 20
NUMBERS = {"plain": 1, "offloads": 2}


def interfaces(link):
    """Names of a link's two, which tell by their addresses."""
    run(["modprobe", "virtio_net"], check=False)

    def find():
        found = {}
        for path in glob.glob("/sys/class/net/*/address"):
            with open(path) as f:
                found[f.read().strip()] = path.split("/")[-2]
        return [found.get(f"52:54:00:00:{NUMBERS[link]:02}:{n:02}") for n in (1, 2)]
    if link == "plain":
        wait_until(lambda: all(find()), what="no interfaces")
    names = find()
    if not all(names):
        pytest.skip("no tap devices or no bridges on this machine")
    return names


@pytest.fixture(scope="module", params=list(NUMBERS))
def link(request):
    return request.param


@pytest.fixture(scope="module")
def bed(link):
    with Testbed(mtu=4200, nics=interfaces(link)) as b:
        yield b


def feature(host, name):
    lines = host.run("ethtool", "-k", host.netdev).out.splitlines()
    return next(line.split()[1] for line in lines if line.strip().startswith(f"{name}:"))


@contextlib.contextmanager
def nothing_dropped(bed):
    """No packet comes in damaged or of the wrong length."""
    def drops():
        return [{n: h.counters()[n] for n in ("drop_bad_icrc", "drop_bad_length", "drop_bad_payload", "drop_truncated")} for h in bed.hosts]
    before = drops()
    yield
    assert drops() == before


def test_offloads(bed, link):
    """That there are those that this file is about."""
    for name in ("tx-checksumming", "tx-udp-segmentation"):
        assert feature(bed.h1, name) == ("on" if link == "offloads" else "off"), name


@pytest.mark.parametrize("op", ["send", "write", "read"])
@pytest.mark.parametrize("ip, mtu", [(4, 4096), (6, 1024)])
def test_data(bed, op, ip, mtu):
    with nothing_dropped(bed), pair(bed.h1.dev, bed.h2.dev, ip, length=4 * MIB, connect={"mtu": mtu}) as (a, b):
        transfer(a, b, op, 2 * MIB, [MIB, 300001, 64 * KIB])


@contextlib.contextmanager
def bridged(host):
    """The device of a host as that of a container has it: on a veth, which a bridge joins with the interface. A train that it
    sends reaches the interface as one buffer."""
    ns, dev, mtu = host.ns, host.netdev, 4200
    host.delete_link()
    sh(f"""ip -n {ns} link add name br0 type bridge mcast_snooping 0
           ip -n {ns} link add name cont type veth peer name port
           ip -n {ns} addr flush dev {dev}
           ip -n {ns} link set {dev} master br0
           ip -n {ns} link set port mtu {mtu} master br0 up
           ip -n {ns} link set br0 mtu {mtu} up
           ip -n {ns} addr add {host.ip4}/24 dev cont
           ip -n {ns} addr add {host.ip6}/64 dev cont nodad
           ip -n {ns} link set cont mtu {mtu} up""")
    host.add_link(netdev="cont")
    host.gid_index(host.ip4)
    host.gid_index(host.ip6)
    try:
        yield
    finally:
        host.delete_link()
        sh(f"""ip -n {ns} link del cont
               ip -n {ns} link del br0
               ip -n {ns} addr add {host.ip4}/24 dev {dev}
               ip -n {ns} addr add {host.ip6}/64 dev {dev} nodad""")
        host.add_link()
        host.gid_index(host.ip4)
        host.gid_index(host.ip6)


def packets_and_buffers(bed):
    """What the first host has sent so far: packets, and buffers that the interfaces have sent and received."""
    received = bed.h2.run("cat", f"/sys/class/net/{bed.h2.netdev}/statistics/rx_packets").out
    return bed.h1.counters()["sent_pkts"], bed.h1.buffers_sent(), int(received.split()[-1])


@pytest.mark.differs_on_rxe("each packet is a buffer")
@pytest.mark.parametrize("ip, mtu", [(4, 4096)])
def test_trains_through_a_bridge(bed, link, ip, mtu):
    """They cross the machine in one piece where both interfaces know of UDP segmentation, and are cut up elsewhere."""
    with bridged(bed.h1), nothing_dropped(bed):
        bed.h2.run("ip", "neigh", "flush", "dev", bed.h2.netdev)
        for op in ("send", "write"):
            before = packets_and_buffers(bed)
            with pair(bed.h1.dev, bed.h2.dev, ip, length=4 * MIB, connect={"mtu": mtu}) as (a, b):
                transfer(a, b, op, 2 * MIB, [MIB, 300001, 64 * KIB])
            packets, *buffers = (now - then for now, then in zip(packets_and_buffers(bed), before))
            for count in buffers:
                assert count < packets / 3 if link == "offloads" else count >= packets * 0.9, f"{op}: {packets} packets in {buffers} buffers"
