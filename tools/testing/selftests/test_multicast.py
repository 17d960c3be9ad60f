# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=3072
"""Multicast: who gets a copy and who does not, what the wire shows, what interfaces listen to, limits and errors."""

import contextlib
import errno
import ipaddress
import json
import os
import re
import socket
import struct
from types import SimpleNamespace

import pyverbs.enums as e
import pytest
from pyverbs.addr import AH
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr

import uverbs
from capture import capture
from datagram import ALL, GRH, GROUPS, OTHER, QKEY, Ud, frame, gid, inject, inside, joined, next_handle, raw_gid
from testbed import Job, rdma_links, run, wait_until
from verbs import FULL_ACCESS, OK, Endpoint, pattern, status_name

BOTH = pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
HOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "holder.py")

pytestmark = pytest.mark.differs_on_rxe("it does not join the group, and does not give copies to its own host")


@contextlib.contextmanager
def qps(dev, count, qkey=QKEY, **opts):
    """QPs, each with a CQ and memory of its own."""
    with contextlib.ExitStack() as stack:
        out = []
        for _ in range(count):
            end = stack.enter_context(Endpoint(dev, **opts))
            out.append(Ud(end, qkey))
            stack.callback(out[-1].close)
        yield out


def memberships(host):
    """What the interface listens to: address of IP or Ethernet -> how many users (/proc/net/igmp, igmp6, dev_mcast)."""
    table = json.loads(host.run("ip", "-j", "maddr", "show", "dev", host.netdev).out)
    return {m.get("address") or m.get("link"): m.get("users", 1) for t in table for m in t["maddr"]}


def ethernet(group):
    """The Ethernet address of a group."""
    raw = ipaddress.ip_address(group).packed
    tail = bytes((0x33, 0x33)) + raw[12:] if len(raw) == 16 else bytes((1, 0, 0x5e, raw[1] & 0x7f)) + raw[2:]
    return tail.hex(":")


class Counted:
    """What the counters of a device have grown by since."""

    def __init__(self, host):
        self.host, self.before = host, host.counters()

    def __getitem__(self, name):
        return self.host.counters()[name] - self.before[name]

    def reaches(self, name, value):
        wait_until(lambda: self[name] >= value, 30, lambda: f"{name} is {self[name]} and not {value}")
        assert self[name] == value, name


@BOTH
def test_each_member_gets_a_copy(bed, ip):
    """Several QPs of one device, one of the sender's, none that is not attached; header and payload as sent."""
    group, other = GROUPS[ip], OTHER[ip]
    with qps(bed.h1.dev, 2) as (sender, local), qps(bed.h2.dev, 4) as far:
        *members, stranger = far
        for qp in (local, *members):
            qp.attach(group)
        stranger.attach(other)
        address = sender.group_address(group)
        sent, got = Counted(bed.h1), Counted(bed.h2)
        for size, imm in ((0, None), (1, 7), (4096, None), (333, 9)):
            data = pattern(size, size)
            sender.end.mr.write(data, size, 0)
            for qp in (sender, local, *far):
                qp.recv(8192, size + GRH)
            sender.send(address, None, size, imm=imm)
            assert sender.end.done() == OK
            for qp in (local, *members):
                wc = qp.end.poll()[0]
                assert (wc.status, wc.byte_len, wc.src_qp) == (OK, size + GRH, sender.qp.qp_num), status_name(wc.status)
                assert wc.wc_flags & e.IBV_WC_GRH
                assert not imm or wc.wc_flags & e.IBV_WC_WITH_IMM and wc.imm_data == imm
                assert qp.end.mr.read(size, 8192 + GRH) == data
                grh = qp.end.mr.read(GRH, 8192)
                source, target = ipaddress.ip_address(bed.h1.ip(ip)), ipaddress.ip_address(group)
                if ip == 4:
                    assert grh[20] == 0x45 and grh[32:] == source.packed + target.packed
                else:
                    assert grh[0] >> 4 == 6 and grh[8:] == source.packed + target.packed
        sender.end.nothing(0.2)
        stranger.end.nothing(0)
        # A packet counts once, however many get it.
        for name in ("rcvd_mcast_pkts", "rcvd_pkts"):
            assert (sent[name], got[name]) == (4, 4), name
        assert sent["sent_mcast_pkts"] == sent["sent_pkts"] == 4 and got["rdma_recvs"] == 12 and sent["rdma_recvs"] == 4
        address.close()


@pytest.fixture
def without_icrc(bed):
    for host in bed.hosts:
        host.set_icrc("0")
    yield
    for host in bed.hosts:
        host.set_icrc("1")


def test_without_icrc(bed, without_icrc):
    test_many_with_one_call(bed, 4)


@BOTH
def test_many_with_one_call(bed, ip):
    """Datagrams that may share a buffer on their way: each member gets each of them once, on both hosts."""
    count, room = 16, 512
    with qps(bed.h1.dev, 2) as (sender, local), qps(bed.h2.dev, 2) as far:
        members = (local, *far)
        address = sender.group_address(GROUPS[ip])
        got = Counted(bed.h2)
        data = pattern(count * room, ip)
        sender.end.mr.write(data, len(data), 0)
        for qp in members:
            qp.attach(GROUPS[ip])
            for n in range(count):
                qp.recv(n * room, room, wr_id=n)
        wrs = [sender.work(address, None, 301, off=n * room, imm=n, wr_id=n) for n in range(count)]
        for wr, following in zip(wrs, wrs[1:]):
            wr.next_wr = following
        sender.qp.post_send(wrs[0])
        assert [(w.wr_id, w.status) for w in sender.end.poll(count)] == [(n, OK) for n in range(count)]
        for qp in members:
            assert [(w.wr_id, w.imm_data, w.byte_len) for w in qp.end.poll(count)] == [(n, n, GRH + 301) for n in range(count)]
            for n in range(count):
                assert qp.end.mr.read(301, n * room + GRH) == data[n * room:n * room + 301]
            qp.end.nothing(0)
        assert got["rcvd_pkts"] == got["rcvd_mcast_pkts"] == count and got["drop_bad_icrc"] == 0
        address.close()


@BOTH
def test_own_multicasts(bed, ip):
    """A sender that is attached gets its own; one that is not does not, whoever else on its host is."""
    with qps(bed.h1.dev, 1) as (qp,):
        address = qp.group_address(GROUPS[ip])
        for attached in (False, True, False):
            if attached:
                qp.attach(GROUPS[ip])
            qp.recv(0, 200)
            qp.send(address, None, 100, wr_id=5)
            wcs = qp.end.poll(2 if attached else 1)
            assert all(wc.status == OK for wc in wcs)
            qp.end.nothing(0.2)
            if attached:
                qp.detach(GROUPS[ip])
        address.close()


@BOTH
def test_what_does_not_match(bed, ip):
    """A Q_Key that does not match, a QP that is not ready, one without receives: only they miss it."""
    with qps(bed.h1.dev, 1) as (sender,), qps(bed.h2.dev, 3) as (good, closed, empty), qps(bed.h2.dev, 1, QKEY + 1) as (wrong,):
        far = (good, closed, empty, wrong)
        for qp in far:
            qp.attach(GROUPS[ip])
        for qp in (good, closed, wrong):
            qp.recv(0, 200)
        closed.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR, port_num=1), e.IBV_QP_STATE)
        assert closed.end.poll()[0].status == e.IBV_WC_WR_FLUSH_ERR
        count = Counted(bed.h2)
        address = sender.group_address(GROUPS[ip])
        sender.send(address, None, 100)
        assert sender.end.done() == OK and good.end.done() == OK
        for name in ("drop_bad_qkey", "drop_qp_state", "drop_no_receive"):
            count.reaches(name, 1)
        for qp in (closed, empty, wrong):
            qp.end.nothing(0)
        address.close()


@BOTH
def test_detach_stops(bed, ip):
    """A QP that is detached gets no more; the others of the group do, and it still gets what is sent to itself."""
    with qps(bed.h1.dev, 1) as (sender,), qps(bed.h2.dev, 2) as (stays, leaves):
        group, direct = sender.group_address(GROUPS[ip]), sender.address(leaves, ip)
        for qp in (stays, leaves):
            qp.attach(GROUPS[ip])
            for n in range(4):
                qp.recv(256 * n, 256)
        sender.send(group, None, 10)
        assert sender.end.done() == stays.end.done() == leaves.end.done() == OK
        leaves.detach(GROUPS[ip])
        sender.send(group, None, 20)
        assert sender.end.done() == stays.end.done() == OK
        sender.send(direct, leaves, 30)
        assert sender.end.done() == OK
        assert leaves.end.poll()[0].byte_len == GRH + 30
        leaves.end.nothing(0.1)
        leaves.attach(GROUPS[ip])
        sender.send(group, None, 40)
        assert sender.end.done() == stays.end.done() == OK
        assert leaves.end.poll()[0].byte_len == GRH + 40
        group.close()
        direct.close()


@BOTH
def test_what_nobody_is_attached_to(bed, ip):
    """Packets for a group that only another program of the host listens to are dropped and counted; and without that
    program, the host does not take them."""
    with qps(bed.h1.dev, 1) as (sender,), qps(bed.h2.dev, 1) as (member,):
        address = sender.group_address(OTHER[ip])
        member.attach(GROUPS[ip])
        member.recv(0, 200)
        count = Counted(bed.h2)
        with inside(bed.h2), joined(bed.h2, OTHER[ip]):
            sender.send(address, None, 100)
            assert sender.end.done() == OK
            count.reaches("drop_no_group", 1)
        sender.send(address, None, 100)
        assert sender.end.done() == OK
        member.end.nothing(0.2)
        assert count["drop_no_group"] == 1 and count["rcvd_pkts"] == 0
        address.close()


def test_forged_packets(bed):
    """Wrong ICRC, wrong partition, number and address that do not go together, another transport: dropped, each counted once,
    however many are attached."""
    group = GROUPS[4]
    h1, h2 = bed.h1, bed.h2
    with qps(h2.dev, 2) as members:
        for qp in members:
            qp.attach(group)
            qp.recv(0, 200)
            qp.recv(256, 200)
        count = Counted(h2)
        qpn = members[0].qp.qp_num
        inject(h1, frame(h1.ip4, group, spoil=1), frame(h1.ip4, group, qpn=qpn), frame(h1.ip4, h2.ip4, mac=h2.mac()),
               frame(h1.ip4, group, pkey=0x1234), frame(h1.ip4, group, pkey=0x7fff, payload=b"good"))
        for qp in members:
            wc = qp.end.poll()[0]
            assert (wc.status, wc.byte_len, qp.end.mr.read(4, GRH)) == (OK, GRH + 4, b"good")
            qp.end.nothing(0)
        assert (count["drop_bad_icrc"], count["drop_bad_address"], count["drop_bad_pkey"]) == (1, 2, 2)
        assert count["rcvd_pkts"] == count["rcvd_mcast_pkts"] == 2


def test_trains(bed):
    """Datagrams of a group that come as one buffer are looked at one by one."""
    UDP_SEGMENT = 103
    with qps(bed.h2.dev, 2) as members, inside(bed.h1), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for qp in members:
            qp.attach(GROUPS[4])
        index = socket.if_nametoindex(bed.h1.netdev)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("=4s4si", bytes(4), bytes(4), index))
        s.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 64)
        count = Counted(bed.h2)
        bodies = [frame(bed.h1.ip4, GROUPS[4], qpn=qpn, payload=bytes(40))[42:] for qpn in (ALL, 5, ALL)]
        assert {len(b) for b in bodies} == {64}
        s.sendto(b"".join(bodies), (GROUPS[4], 4791))
        # Nobody can know what the ICRC would have to be: of source port and identification the kernel decides.
        count.reaches("drop_bad_icrc", 2)
        assert count["drop_bad_address"] == 1


@BOTH
def test_wire(bed, ip):
    """Ethernet address, traffic class, time to live; a hop limit of 0 does not keep a packet in the host."""
    with qps(bed.h1.dev, 1) as (sender,):
        with capture(bed.h2, bed.h1) as cap:
            for tclass, hops in ((0, 64), (0xb8, 1), (4, 255), (0x20, 0)):
                address = sender.group_address(GROUPS[ip], tclass=tclass, hop_limit=hops)
                sender.send(address, None, 100)
                assert sender.end.done() == OK
                address.close()
        packets = cap.checked()
        assert [(p.tclass, p.hops) for p in packets] == [(0, 64), (0xb8, 1), (4, 255), (0x20, 1)]
        for p in packets:
            assert (p.qpn, str(p.dst), p.frame[:6].hex(":")) == (ALL, GROUPS[ip], ethernet(GROUPS[ip]))
        assert not cap.tshark_complaints()


@BOTH
def test_memberships(bed, ip):
    """The interface listens to a group from the first attach to the last detach, and IP and Ethernet both know."""
    group, other = GROUPS[ip], OTHER[ip]
    before = memberships(bed.h2)
    assert group not in before
    with qps(bed.h2.dev, 2) as (a, b):
        a.attach(group)
        once = memberships(bed.h2)
        assert once == {**before, group: 1, ethernet(group): 1}
        b.attach(group)
        assert memberships(bed.h2) == once
        b.attach(other)
        assert memberships(bed.h2) == {**once, other: 1, ethernet(other): 1}
        b.detach(other)
        a.detach(group)
        assert memberships(bed.h2) == once
        b.detach(group)
        assert memberships(bed.h2) == before


def test_interface_down_and_up(bed):
    """An interface that was down meanwhile still listens."""
    with qps(bed.h1.dev, 1) as (sender,), qps(bed.h2.dev, 1) as (member,):
        for ip in (4, 6):
            member.attach(GROUPS[ip])
        bed.h2.run("ip", "link", "set", bed.h2.netdev, "down")
        bed.h2.run("ip", "link", "set", bed.h2.netdev, "up")
        bed.h2.run("ip", "addr", "add", f"{bed.h2.ip6}/64", "dev", bed.h2.netdev, "nodad")
        for host in bed.hosts:
            bed.wait_active(host)
            host.gid_index(host.ip6)
        for ip in (4, 6):
            address = sender.group_address(GROUPS[ip])
            member.recv(0, 200)
            sender.send(address, None, 100)
            assert sender.end.done() == OK and member.end.done() == OK
            address.close()


def test_mtu_shrinks_and_grows(bed):
    """Members stay members; what does not fit any more fails at its sender."""
    with qps(bed.h1.dev, 1) as (sender,), qps(bed.h2.dev, 1) as (member,):
        addresses = [sender.group_address(GROUPS[ip]) for ip in (4, 6)]
        for ip in (4, 6):
            member.attach(GROUPS[ip])
        try:
            for mtu, code, sizes in ((1500, 3, (1024,)), (4200, 5, (1024, 4096)), (1500, 3, ())):
                for host in bed.hosts:
                    host.run("ip", "link", "set", host.netdev, "mtu", mtu)
                wait_until(lambda: all(qp.end.ctx.query_port(1).active_mtu == code for qp in (sender, member)), 30,
                           f"not MTU {code} everywhere")
                for address in addresses:
                    for size in sizes:
                        member.recv(0, GRH + size)
                        sender.send(address, None, size)
                        assert sender.end.done() == OK
                        wc = member.end.poll()[0]
                        assert (wc.status, wc.byte_len) == (OK, GRH + size)
            sender.send(addresses[0], None, 1025)
            assert sender.end.done() == e.IBV_WC_LOC_LEN_ERR
        finally:
            for host in bed.hosts:
                host.run("ip", "link", "set", host.netdev, "mtu", bed.mtu)
        for address in addresses:
            address.close()


def test_vlan(bed):
    """A group of a VLAN: somebody has joined it on the VLAN's interface, as rdma_cm does, and the device below has the QP."""
    group = GROUPS[4]

    def sent_by(netdev):
        return int(bed.h1.run("cat", f"/sys/class/net/{netdev}/statistics/tx_packets").out.split()[-1])
    for h in bed.hosts:
        h.run("ip", "link", "add", "link", h.netdev, "name", "vl7", "type", "vlan", "id", "7")
        h.run("ip", "addr", "add", f"10.7.0.{h.number}/24", "dev", "vl7")
        h.run("ip", "link", "set", "vl7", "up")
    try:
        source = bed.h1.gid_index("10.7.0.1")
        with inside(bed.h2), qps(bed.h1.dev, 1) as (sender,), qps(bed.h2.dev, 2) as (member, stranger), \
                joined(SimpleNamespace(netdev="vl7"), group):
            before = sent_by("vl7")
            member.attach(group)
            end = sender.end
            address = AH(end.pd, attr=end.path(gid(group), source))
            for qp in (member, stranger):
                qp.recv(0, GRH + 600)
            data = pattern(600, 7)
            end.mr.write(data, 600, 0)
            sender.send(address, None, 600)
            assert end.done() == OK
            wc = member.end.poll()[0]
            assert (wc.status, wc.byte_len, wc.src_qp) == (OK, GRH + 600, sender.qp.qp_num)
            assert member.end.mr.read(600, GRH) == data
            stranger.end.nothing(0.2)
            assert sent_by("vl7") > before
            address.close()
    finally:
        for h in bed.hosts:
            h.run("ip", "link", "delete", "vl7")


def fails(action, why):
    with pytest.raises((OSError, PyverbsRDMAError)) as caught:
        action()
    code = caught.value.errno if isinstance(caught.value, OSError) else caught.value.error_code
    assert code == why, caught.value


def test_errors(bed):
    with qps(bed.h2.dev, 1) as (qp,):
        for gid in (bed.h1.ip4, bed.h1.ip6, "fe80::1", "255.255.255.255", "::"):
            fails(lambda: qp.attach(gid), errno.EINVAL)
            fails(lambda: qp.detach(gid), errno.EINVAL)
        # Another type of QP.
        handle = next_handle(qp.end.ctx)
        with Endpoint(bed.h2.dev, share=qp.end) as rc:
            fails(lambda: uverbs.attach_mcast(rc.ctx, handle, raw_gid(GROUPS[4])), errno.EINVAL)
        # Another protocol than that of the source address.
        for ip in (4, 6):
            fails(lambda: qp.group_address(GROUPS[ip], source=10 - ip), errno.EINVAL)
        # Not attached, attached twice, and destroyed while it is attached.
        for ip in (4, 6):
            fails(lambda: qp.detach(GROUPS[ip]), errno.EINVAL)
            qp.attach(GROUPS[ip])
            qp.attach(GROUPS[ip])
            fails(lambda: qp.detach(OTHER[ip]), errno.EINVAL)
            fails(qp.qp.close, errno.EBUSY)
            qp.detach(GROUPS[ip])
            fails(lambda: qp.detach(GROUPS[ip]), errno.EINVAL)


def nth_group(n):
    return f"239.2.{n // 256}.{n % 256}"


@pytest.mark.seconds(600)
@pytest.mark.differs_on_rxe("its limits are too high to be reached here")
def test_limits(bed):
    """As many groups, members of a group and members of all groups as the device says; all can be had again afterwards."""
    before = memberships(bed.h2)
    with Endpoint(bed.h2.dev) as end, contextlib.ExitStack() as stack:
        told = run(["ibv_devinfo", "-v", "-d", bed.h2.dev]).out
        groups, members, total = (int(re.search(rf"\b{name}:\s+(\d+)", told)[1]) for name in (
            "max_mcast_grp", "max_mcast_qp_attach", "max_total_mcast_qp_attach"))
        assert groups and members and total <= groups * members

        def make():
            qp = Ud(end, depth=1)
            stack.callback(qp.close)
            return qp
        some = [make() for _ in range(total // groups)]
        for qp in some:
            for n in range(groups):
                qp.attach(nth_group(n))
        extra = make()
        fails(lambda: extra.attach(nth_group(0)), errno.ENOMEM)
        some[0].detach(nth_group(0))
        fails(lambda: extra.attach(nth_group(groups)), errno.ENOMEM)
        extra.attach(nth_group(0))
        extra.detach(nth_group(0))
        for qp in some:
            for n in range(groups):
                if qp is not some[0] or n:
                    qp.detach(nth_group(n))
        assert memberships(bed.h2) == before
        many = [make() for _ in range(members)]
        for qp in many:
            qp.attach(GROUPS[6])
        fails(lambda: extra.attach(GROUPS[6]), errno.ENOMEM)
        many[0].detach(GROUPS[6])
        extra.attach(GROUPS[6])
        for qp in (extra, *many[1:]):
            qp.detach(GROUPS[6])
    assert memberships(bed.h2) == before


@BOTH
def test_memory_that_is_not_there(bed, ip):
    """Copies for memory that is paged on demand wait for their pages, each for its own."""
    on_demand = FULL_ACCESS | e.IBV_ACCESS_ON_DEMAND
    with qps(bed.h1.dev, 1) as (sender,), qps(bed.h2.dev, 3, access=on_demand) as paged, qps(bed.h2.dev, 1) as pinned:
        address = sender.group_address(GROUPS[ip])
        count = Counted(bed.h2)
        for qp in (*paged, *pinned):
            qp.attach(GROUPS[ip])
            for n in range(8):
                qp.recv(8192 * n, 4096 + GRH, wr_id=n)
        for n in range(8):
            sender.end.mr.write(pattern(4096, n), 4096, 0)
            sender.send(address, None, 4096)
            assert sender.end.done() == OK
        for qp in (*paged, *pinned):
            assert [(w.wr_id, w.status, w.byte_len) for w in qp.end.poll(8)] == [(n, OK, 4096 + GRH) for n in range(8)]
            for n in range(8):
                assert qp.end.mr.read(4096, 8192 * n + GRH) == pattern(4096, n)
            qp.end.nothing(0)
        assert count["page_faults"] >= 3 and count["rcvd_pkts"] == count["rcvd_mcast_pkts"] == 8
        assert count["drop_page_fault"] == 0
        address.close()


@pytest.mark.parametrize("options", [[], ["-c", 4, "-C", 50, "-S", 1000]], ids=["default", "many"])
def test_mckey(bed, options):
    """librdmacm's own program: joins by rdma_cm, on both hosts."""
    before = memberships(bed.h2)
    target = bed.h2.start("stdbuf", "-oL", "mckey", "-m", GROUPS[4], "-b", bed.h2.ip4, *options)
    target.wait_for("receiving data transfers")
    source = bed.h1.start("mckey", "-m", GROUPS[4], "-b", bed.h1.ip4, "-s", *options)
    for job in (source, target):
        r = job.wait(60)
        assert r.rc == 0 and "return status 0" in r.out, r
    wait_until(lambda: memberships(bed.h2) == before, 30, lambda: f"{memberships(bed.h2)} and not {before}")


def test_killed_program(bed):
    """What a program was attached to ends with it."""
    before = memberships(bed.h2)
    job = Job(["python3", HOLDER, bed.h2.dev, "groups"])
    job.wait_for("ready", 90)
    during = memberships(bed.h2)
    assert all(g in during and ethernet(g) in during for g in (*GROUPS.values(), *OTHER.values()))
    job.kill()
    wait_until(lambda: memberships(bed.h2) == before, 30, lambda: f"{memberships(bed.h2)} and not {before}")


@pytest.mark.differs_on_rxe("it tells of no removal here")
def test_link_goes(bed):
    """The link is deleted with QPs in groups: the interface listens to them no more. It may be made again."""
    before = memberships(bed.h2)
    job = Job(["python3", HOLDER, bed.h2.dev, "groups"])
    job.wait_for("ready", 90)
    assert GROUPS[4] in memberships(bed.h2)
    bed.h2.delete_link()
    assert bed.h2.dev not in rdma_links() and memberships(bed.h2) == before
    r = job.wait(90)
    assert r.rc == 0 and "done" in r.out, r
    bed.h2.add_link()
    bed.wait_active(bed.h2)
    with qps(bed.h1.dev, 1) as (sender,), qps(bed.h2.dev, 1) as (member,):
        bed.h2.gid_index(bed.h2.ip4)
        member.attach(GROUPS[4])
        member.recv(0, 200)
        address = sender.group_address(GROUPS[4])
        sender.send(address, None, 100)
        assert sender.end.done() == OK and member.end.done() == OK
        address.close()
