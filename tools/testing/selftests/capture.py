# SPDX-License-Identifier: GPL-2.0
"""Captures what passes one end of the wire: tcpdump, and tshark as a second opinion."""

import contextlib
import itertools
import os
import signal

import wire
from testbed import SCRATCH, run, wait_until

_numbers = itertools.count()


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
        """What tshark finds malformed, in error, or cannot decode as InfiniBand."""
        lines = run(["tshark", "-n", "-r", self.path, "-T", "fields", "-e", "frame.number", "-e", "_ws.malformed",
                     "-e", "_ws.expert.severity", "-e", "_ws.expert.message", "-e", "infiniband.bth.opcode",
                     "-e", "frame.protocols"], timeout=240).out.splitlines()
        rows = [line.split("\t") for line in lines if "\t" in line]
        assert len(rows) == len(self.packets), f"{len(rows)} packets by tshark, {len(self.packets)} in the file"
        out = []
        for number, malformed, severity, message, opcode, protocols in rows:
            severe = [s for s in severity.split(",") if s and int(s) >= 0x00600000]  # warning and error
            if malformed or severe or not opcode or "infiniband" not in protocols:
                out.append(f"packet {number}: {malformed} {message} {protocols}")
            elif int(opcode) != self.packets[int(number) - 1].opcode:
                out.append(f"packet {number}: opcode {opcode}")
        return out


@contextlib.contextmanager
def capture(host, expect=None):
    """Capture RoCE at a host's end of the wire. With expect, wait until so many packets are in the file."""
    os.makedirs(SCRATCH, exist_ok=True)
    path = f"{SCRATCH}/{next(_numbers)}.pcap"
    job = host.start("tcpdump", "-U", "-i", host.netdev, "-s", "0", "-B", "16384", "-w", path, "udp port 4791")
    job.wait_for("listening on")
    cap = Capture(path)
    try:
        yield cap
        if expect:
            wait_until(lambda: sum(1 for _ in wire.frames(path)) >= expect, 30,
                       lambda: f"{sum(1 for _ in wire.frames(path))} packets in the capture instead of {expect}")
        settle(path)
    finally:
        job.signal(signal.SIGINT)
        job.wait(30)
    assert "0 packets dropped by kernel" in job.out, job.out
    cap.packets = wire.roce_packets(path)


def settle(path):
    """Wait until the file does not grow any more: tcpdump reads its ring in its own time."""
    last = [-1, 0]

    def steady():
        size = os.path.getsize(path)
        last[1] = last[1] + 1 if size == last[0] else 0
        last[0] = size
        return last[1] >= 10
    wait_until(steady, 60, "the capture's file goes on growing", step=0.05)
