# SPDX-License-Identifier: GPL-2.0
"""RoCEv2 packets from a capture file, decoded with nothing but the specification at hand.

Independent of the driver and of tshark: the invariant CRC is computed here over the raw bytes.
"""

import ipaddress
import struct
import zlib

RC_OPCODES = {
    0: "SEND_FIRST", 1: "SEND_MIDDLE", 2: "SEND_LAST", 3: "SEND_LAST_IMM", 4: "SEND_ONLY", 5: "SEND_ONLY_IMM",
    6: "WRITE_FIRST", 7: "WRITE_MIDDLE", 8: "WRITE_LAST", 9: "WRITE_LAST_IMM", 10: "WRITE_ONLY", 11: "WRITE_ONLY_IMM",
    12: "READ_REQUEST", 13: "READ_RESPONSE_FIRST", 14: "READ_RESPONSE_MIDDLE", 15: "READ_RESPONSE_LAST",
    16: "READ_RESPONSE_ONLY", 17: "ACK", 18: "ATOMIC_ACK", 19: "COMPARE_SWAP", 20: "FETCH_ADD", 22: "SEND_LAST_INV",
    23: "SEND_ONLY_INV", 28: "FLUSH", 29: "ATOMIC_WRITE"}
UC, UD, XRC = 0x20, 0x60, 0xa0
TRANSPORTS = {0: "RC", UC: "UC", UD: "UD", XRC: "XRC"}
OPCODES = RC_OPCODES | {UC | code: name for code, name in RC_OPCODES.items() if code < 12} | {
    UD | code: RC_OPCODES[code] for code in (4, 5)} | {XRC | code: name for code, name in RC_OPCODES.items()}

RETH = {"WRITE_FIRST", "WRITE_ONLY", "WRITE_ONLY_IMM", "READ_REQUEST", "FLUSH", "ATOMIC_WRITE"}
AETH = {"READ_RESPONSE_FIRST", "READ_RESPONSE_LAST", "READ_RESPONSE_ONLY", "ACK", "ATOMIC_ACK"}
RESPONSES = AETH | {"READ_RESPONSE_MIDDLE"}
ATOMIC = {"COMPARE_SWAP", "FETCH_ADD"}
IMM = {"SEND_LAST_IMM", "SEND_ONLY_IMM", "WRITE_LAST_IMM", "WRITE_ONLY_IMM"}
INV = {"SEND_LAST_INV", "SEND_ONLY_INV"}


class Malformed(Exception):
    """A packet that the specification does not allow."""


def check(condition, what):
    if not condition:
        raise Malformed(what)


def inet_checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xffff:
        total = (total & 0xffff) + (total >> 16)
    return total


def icrc(ip, udp, rest):
    """The invariant CRC (IBTA annex A17.3.3) of a packet whose bytes after the UDP header, less the CRC, are rest.

    What routers may change counts as ones: type of service, time to live and checksum of IPv4; traffic class, flow
    label and hop limit of IPv6; the UDP checksum; the byte of the BTH with FECN and BECN. In front, eight bytes of
    ones stand for the header of a local route.
    """
    ip, udp, rest = bytearray(ip), bytearray(udp), bytearray(rest)
    if ip[0] >> 4 == 4:
        ip[1] = ip[8] = ip[10] = ip[11] = 0xff
    else:
        ip[0] |= 0x0f
        ip[1] = ip[2] = ip[3] = ip[7] = 0xff
    udp[6] = udp[7] = 0xff
    rest[4] = 0xff
    return struct.pack("<I", zlib.crc32(bytes(8 * b"\xff" + ip + udp + rest)))


class Packet:
    """One frame; whatever the specification forbids raises Malformed."""

    def __init__(self, frame, time=0.0):
        self.time, self.frame = time, frame
        kind, self.l3 = struct.unpack("!H", frame[12:14])[0], frame[14:]
        check(kind in (0x0800, 0x86dd), f"ethertype {kind:#x}")
        self.version = 4 if kind == 0x0800 else 6
        if self.version == 4:
            self._ipv4()
        else:
            self._ipv6()
        sport, dport, length, self.udp_checksum = struct.unpack("!HHHH", self.udp)
        self.sport, self.dport = sport, dport
        check(length == len(self.udp) + len(self.body), f"UDP length {length}")
        check(dport == 4791, f"UDP port {dport}")
        self._bth()

    def _ipv4(self):
        b = self.l3
        check(b[0] == 0x45, f"IPv4 first byte {b[0]:#x}")
        self.tclass, total, self.ident, frag, self.hops, proto = b[1], *struct.unpack("!HHHBB", b[2:10])
        check(proto == 17, f"IP protocol {proto}")
        check(total <= len(b), f"IPv4 length {total} of {len(b)}")
        self.df = bool(frag & 0x4000)
        check(not frag & 0x3fff, "IP fragment")
        check(inet_checksum(b[:20]) == 0xffff, "IPv4 header checksum")
        self.src, self.dst = ipaddress.ip_address(b[12:16]), ipaddress.ip_address(b[16:20])
        self.ip, self.udp, self.body = b[:20], b[20:28], b[28:total]

    def _ipv6(self):
        b = self.l3
        first, length, nexth, self.hops = struct.unpack("!IHBB", b[:8])
        check(first >> 28 == 6, "IP version")
        check(nexth == 17, f"next header {nexth}")
        self.tclass, self.flow_label, self.df = first >> 20 & 0xff, first & 0xfffff, True
        check(40 + length <= len(b), f"IPv6 length {length} of {len(b)}")
        self.src, self.dst = ipaddress.ip_address(b[8:24]), ipaddress.ip_address(b[24:40])
        self.ip, self.udp, self.body = b[:40], b[40:48], b[48:40 + length]

    def _bth(self):
        b = self.body
        check(len(b) >= 16 and len(b) % 4 == 0, f"{len(b)} bytes after UDP")
        opcode, flags, self.pkey, qpn, psn = struct.unpack("!BBHII", b[:12])
        self.opcode, self.name = opcode, OPCODES.get(opcode, f"opcode {opcode:#x}")
        self.solicited, self.migreq, self.pad, tver = bool(flags & 0x80), bool(flags & 0x40), flags >> 4 & 3, flags & 15
        check(tver == 0, f"transport version {tver}")
        self.qpn, self.ackreq, self.psn = qpn & 0xffffff, bool(psn >> 31), psn & 0xffffff
        check(not qpn >> 24, f"reserved byte of the BTH {qpn >> 24:#x}")
        check(not psn >> 24 & 0x7f, "reserved bits beside AckReq")
        at = 12
        self.va = self.rkey = self.dma_length = self.syndrome = self.msn = self.imm = self.inv = self.srq = None
        self.qkey = self.src_qp = self.swap_add = self.compare = self.original = self.flush = None
        self.transport = TRANSPORTS.get(opcode & 0xe0)
        self.xrc = self.transport == "XRC"
        if self.xrc and self.name not in RESPONSES:
            self.srq, = struct.unpack("!I", b[at:at + 4])
            check(not self.srq >> 24, f"reserved byte of the XRCETH {self.srq >> 24:#x}")
            at += 4
        if self.transport == "UD":
            self.qkey, self.src_qp = struct.unpack("!II", b[at:at + 8])
            check(not self.src_qp >> 24, f"reserved byte of the DETH {self.src_qp >> 24:#x}")
            at += 8
        if self.name == "FLUSH":
            word, = struct.unpack("!I", b[at:at + 4])
            self.flush = word >> 4 & 3, word & 15  # Selectivity level, placement type.
            check(not word >> 6, f"reserved bits of the FETH {word:#x}")
            at += 4
        if self.name in RETH:
            self.va, self.rkey, self.dma_length = struct.unpack("!QII", b[at:at + 16])
            at += 16
        if self.name in AETH:
            word, = struct.unpack("!I", b[at:at + 4])
            self.syndrome, self.msn = word >> 24, word & 0xffffff
            at += 4
        if self.name in ATOMIC:
            self.va, self.rkey, self.swap_add, self.compare = struct.unpack("!QIQQ", b[at:at + 28])
            at += 28
        if self.name == "ATOMIC_ACK":
            self.original, = struct.unpack("!Q", b[at:at + 8])
            at += 8
        if self.name in IMM:
            self.imm, = struct.unpack("!I", b[at:at + 4])
            at += 4
        if self.name in INV:
            self.inv, = struct.unpack("!I", b[at:at + 4])
            at += 4
        check(len(b) >= at + 4 + self.pad, f"{self.name}: {len(b)} bytes are too few")
        self.payload = b[at:len(b) - 4 - self.pad]
        self.pad_bytes = b[len(b) - 4 - self.pad:len(b) - 4]
        self.icrc = b[-4:]
        check((len(self.payload) + self.pad) % 4 == 0, f"pad {self.pad} of {len(self.payload)} bytes")

    def icrc_ok(self):
        return self.icrc == icrc(self.ip, self.udp, self.body[:-4])

    def __repr__(self):
        return str(self)

    def __str__(self):
        return (f"{self.time:.6f} {self.src}:{self.sport} > {self.dst} {'' if self.transport == 'RC' else f'{self.transport} '}{self.name} qpn {self.qpn} psn {self.psn}"
                f"{' ack' if self.ackreq else ''}{' se' if self.solicited else ''} {len(self.payload)}+{self.pad} bytes"
                f"{'' if self.srq is None else f' srq {self.srq}'}"
                f"{'' if self.syndrome is None else f' syndrome {self.syndrome:#x} msn {self.msn}'}")


def frames(path):
    """(time, bytes) of each frame in a pcap file of Ethernet frames."""
    with open(path, "rb") as f:
        data = f.read()
    magic = data[:4]
    order = {b"\xd4\xc3\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">"}[magic]
    link, = struct.unpack(order + "I", data[20:24])
    assert link & 0xffff == 1, f"link type {link}"
    at = 24
    while at + 16 <= len(data):
        sec, usec, got, full = struct.unpack(order + "IIII", data[at:at + 16])
        frame = data[at + 16:at + 16 + got]
        if len(frame) < got:
            return
        assert got == full, "frame cut short by the capture"
        yield sec + usec / 1e6, frame
        at += 16 + got
