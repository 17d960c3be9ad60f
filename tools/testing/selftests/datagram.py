# SPDX-License-Identifier: GPL-2.0
"""Datagram queue pairs through pyverbs, for tests that post their own work; and datagrams made by hand."""

import contextlib
import ipaddress
import os
import socket
import struct

import pyverbs.enums as e
from pyverbs.addr import AH, GID
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

import uverbs
import wire
from verbs import OK, pattern, status_name

QKEY = 0x11223344
GRH = 40
ALL = 0xffffff
"""The destination of datagrams to a multicast group."""

GROUPS = {4: "239.1.2.3", 6: "ff15::1:2:3"}
OTHER = {4: "239.1.2.4", 6: "ff15::1:2:4"}
"""Multicast groups, by version of IP."""


def raw_gid(ip):
    """The GID of an address."""
    addr = ipaddress.ip_address(ip)
    return addr.packed if addr.version == 6 else b"\0" * 10 + b"\xff\xff" + addr.packed


def gid(ip):
    raw = raw_gid(ip).hex()
    return GID(":".join(raw[i:i + 4] for i in range(0, 32, 4)))


def next_handle(ctx):
    """The handle that the next object of a context gets: the lowest that is free. pyverbs does not tell that of a QP."""
    with PD(ctx) as probe:
        return probe.handle


class Ud:
    """A datagram QP with the CQ and the memory of an endpoint."""

    def __init__(self, end, qkey=QKEY, depth=64):
        self.end, self.groups = end, set()
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=1, max_recv_sge=1)
        attr = QPAttr(port_num=1)
        attr.qkey = qkey
        self.handle = next_handle(end.ctx)
        self.qp = QP(end.pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=end.cq, rcq=end.cq, cap=cap), attr)

    def address(self, peer, ip=4, **path):
        end = self.end
        target = peer.end.gid(peer.end.gid_index(ip))
        return AH(end.pd, attr=end.path(target, end.gid_index(ip), **path))

    def group_address(self, group, source=None, **path):
        """The address of a multicast group; source: the version of IP, if not the group's."""
        version = source or ipaddress.ip_address(group).version
        return AH(self.end.pd, attr=self.end.path(gid(group), self.end.gid_index(version), **path))

    def attach(self, group):
        uverbs.attach_mcast(self.end.ctx, self.handle, raw_gid(group))
        self.groups.add(group)

    def detach(self, group):
        uverbs.detach_mcast(self.end.ctx, self.handle, raw_gid(group))
        self.groups.discard(group)

    def send(self, *args, **opts):
        self.qp.post_send(self.work(*args, **opts))

    def work(self, address, peer, length, *, off=0, qkey=QKEY, imm=None, wr_id=0, lkey=None):
        """peer=None: to all members of a group."""
        sge = SGE(self.end.mr.buf + off, length, self.end.mr.lkey if lkey is None else lkey)
        opcode = e.IBV_WR_SEND if imm is None else e.IBV_WR_SEND_WITH_IMM
        wr = SendWR(wr_id=wr_id, opcode=opcode, num_sge=1, sg=[sge], send_flags=e.IBV_SEND_SIGNALED, imm_data=imm or 0)
        wr.set_wr_ud(address, peer.qp.qp_num if peer else ALL, qkey)
        return wr

    def recv(self, off, length, wr_id=0):
        self.qp.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=[SGE(self.end.mr.buf + off, length, self.end.mr.lkey)]))

    def state(self):
        return self.qp.query(e.IBV_QP_STATE)[0].qp_state

    def close(self):
        for group in list(self.groups):
            self.detach(group)
        self.qp.close()


def deliver(x, y, address, size, imm=None):
    """A datagram of a pattern from x to y arrives, whole and behind room for a header; returns its completion."""
    data = pattern(size, size)
    x.end.mr.write(data, size, 0)
    y.recv(8192, size + GRH)
    x.send(address, y, size, imm=imm)
    assert x.end.done() == OK
    wc = y.end.poll()[0]
    assert (wc.status, wc.byte_len, wc.src_qp) == (OK, size + GRH, x.qp.qp_num), status_name(wc.status)
    assert imm is None or wc.imm_data == imm
    assert y.end.mr.read(size, 8192 + GRH) == data
    return wc


@contextlib.contextmanager
def inside(host):
    """What is opened in the block belongs to the network namespace of a host."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    other = os.open(f"/run/netns/{host.ns}", os.O_RDONLY)
    os.setns(other)
    try:
        yield
    finally:
        os.setns(own)
        os.close(own)
        os.close(other)


@contextlib.contextmanager
def joined(host, group):
    """A socket of this network namespace is a member of a group."""
    family = socket.AF_INET6 if ":" in group else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        index = socket.if_nametoindex(host.netdev)
        raw = ipaddress.ip_address(group).packed
        if family == socket.AF_INET:
            s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("=4s4si", raw, bytes(4), index))
        else:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, struct.pack("=16si", raw, index))
        yield s


def frame(source, target, qpn=ALL, *, mac=None, qkey=QKEY, pkey=0xffff, payload=b"", spoil=0):
    """An Ethernet frame with a SEND of a UD QP over IPv4; with spoil, its ICRC is wrong. mac: of the target, if that is not
    a group."""
    source, target = ipaddress.ip_address(source).packed, ipaddress.ip_address(target).packed
    mac = bytes.fromhex(mac.replace(":", "")) if mac else bytes((1, 0, 0x5e, target[1] & 0x7f)) + target[2:]
    body = struct.pack("!BBHIIII", 0x64, 0, pkey, qpn, 7, qkey, 0x99) + payload
    udp = struct.pack("!HHHH", 0xc123, 4791, 12 + len(body), 0)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 32 + len(body), 0, 0x4000, 64, 17, 0) + source + target
    ip = ip[:10] + struct.pack("!H", 0xffff ^ wire.inet_checksum(ip)) + ip[12:]
    crc = wire.icrc(ip, udp, body)
    return mac + bytes((2, 0, 0, 0, 0, 9)) + b"\x08\0" + ip + udp + body + bytes((crc[0] ^ spoil,)) + crc[1:]


def inject(host, *frames):
    """Sends frames by the wire of a host."""
    with inside(host), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as s:
        s.bind((host.netdev, 0))
        for f in frames:
            s.send(f)
