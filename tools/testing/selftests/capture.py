# SPDX-License-Identifier: GPL-2.0
"""Captures what passes one end of the wire: tcpdump, and tshark as a second opinion."""

import contextlib
import itertools
import os
import signal

import wire
from testbed import ROCE_PORT, SCRATCH, run, wait_until

_numbers = itertools.count()
MARKER_PORT = 9

HEADERS = {"bth.opcode": "opcode", "bth.padcnt": "pad", "bth.destqp": "qpn", "bth.psn": "psn", "deth.q_key": "qkey", "deth.srcqp": "src_qp",
           "reth.va": "va", "reth.r_key": "rkey", "reth.dmalen": "dma_length", "atomiceth.swapdt": "swap_add",
           "atomiceth.cmpdt": "compare", "atomicacketh.origremdt": "original", "aeth.msn": "msn", "immdt": "imm", "ieth": "inv"}
"""What tshark calls a field of a header, and its name in wire.Packet."""


def number(field, text):
    """A field as tshark prints it, some of them twice; None if the packet has none."""
    text = text.split(",")[0]
    return int(text, 16 if field in ("immdt", "ieth") else 0) if text else None


class Capture:
    """The file of a capture, and after it has ended its packets."""

    def __init__(self, path):
        self.path = path
        self.packets = []

    def checked(self):
        """All packets; each must obey the specification and carry the right ICRC."""
        bad = [str(p) for p in self.packets if not p.icrc_ok()]
        assert not bad, "wrong ICRC:\n" + "\n".join(bad[:20])
        return self.packets

    def of(self, *names):
        return [p for p in self.packets if p.name in names]

    def listing(self, most=60):
        return "\n".join(map(str, self.packets[:most]))

    def tshark_complaints(self):
        """What tshark finds malformed, in error, or cannot decode as InfiniBand; and headers in which it reads something else
        than wire.Packet does."""
        # Only these dissectors: others guess that random payload is theirs, and then find it malformed.
        only = [w for p in ("eth", "ethertype", "ip", "ipv6", "udp", "infiniband", "data") for w in ("--enable-protocol", p)]
        columns = ["frame.number", "_ws.malformed", "_ws.expert.severity", "_ws.expert.message", "frame.protocols",
                   *(f"infiniband.{field}" for field in HEADERS)]
        lines = run(["tshark", "-n", "-r", self.path, "--disable-all-protocols", *only,
                     "-o", "infiniband.identify_payload:FALSE", "-o", "udp.ignore_ipv6_zero_checksum:TRUE",
                     "-Y", f"udp.port == {ROCE_PORT}", "-T", "fields",
                     *(word for column in columns for word in ("-e", column))], timeout=240).out.splitlines()
        rows = [line.split("\t") for line in lines if "\t" in line]
        assert len(rows) == len(self.packets), f"{len(rows)} packets by tshark, {len(self.packets)} in the file"
        out = []
        for packet, (frame, malformed, severity, message, protocols, *texts) in zip(self.packets, rows):
            severe = [s for s in severity.split(",") if s and int(s) >= 0x00600000]  # warning and error
            if malformed or severe or not texts[0] or "infiniband" not in protocols:
                out.append(f"packet {frame}: {malformed} {message} {protocols}")
                continue
            theirs = {field: number(field, text) for field, text in zip(HEADERS, texts)}
            ours = {field: getattr(packet, name) for field, name in HEADERS.items()}
            # Of XRC it knows the BTH only, and reads nothing behind it.
            read = [field for field in HEADERS if not packet.xrc or field.startswith("bth.")]
            if any(theirs[field] != ours[field] for field in read):
                out.append(f"packet {frame}: {packet}\n tshark {theirs}\n wire   {ours}")
        return out


def merged(captures):
    """Several captures as one: it takes tshark far longer to start, in an emulator, than to read them."""
    whole = Capture(f"{SCRATCH}/{next(_numbers)}.pcap")
    with open(whole.path, "wb") as out:
        for n, cap in enumerate(captures):
            with open(cap.path, "rb") as f:
                out.write(f.read()[24 if n else 0:])
            whole.packets += cap.packets
    return whole


@contextlib.contextmanager
def capture(host, peer):
    """Capture the RoCE traffic at a host's end of the wire, while the block runs.

    A datagram that is sent when the block is left marks the end: once it is in the file, so is all before it.
    """
    os.makedirs(SCRATCH, exist_ok=True)
    path = f"{SCRATCH}/{next(_numbers)}.pcap"
    # Whole trains of packets would be captured as one: what is looked at here is what the far end gets.
    for h in (host, peer):
        h.run("ethtool", "-K", h.netdev, "gso", "off", "gro", "off", "tx-udp-segmentation", "off", check=False)
    # Each place in the buffer is as large as the longest packet: the shorter that, the more places.
    job = host.start("tcpdump", "-U", "--immediate-mode", "-i", host.netdev, "-s", "10000", "-B", "16384", "-w", path,
                     f"udp port {ROCE_PORT} or udp port {MARKER_PORT}")
    job.wait_for("listening on")
    cap = Capture(path)
    try:
        yield cap
        mark_end(host, peer, path)
    finally:
        job.signal(signal.SIGINT)
        job.wait(30)
    assert "0 packets dropped by kernel" in job.out, job.out
    cap.packets = [wire.Packet(frame, t) for t, frame in wire.frames(path) if not is_marker(frame)]


def is_marker(frame):
    return frame[12:14] == b"\x08\x00" and frame[36:38] == MARKER_PORT.to_bytes(2, "big")


def mark_end(host, peer, path):
    script = f"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'end', ('{peer.ip4}', {MARKER_PORT}))"
    host.run("python3", "-S", "-c", script)
    wait_until(lambda: any(is_marker(f) for _, f in wire.frames(path)), 60, "the end of the capture", step=0.1)
