# SPDX-License-Identifier: GPL-2.0
"""What things cost between two guests over virtio-net: ferroce, rxe and TCP. Run in both guests at once by scripts/lib/two-guests.

    two_guests.py far LINK MODE              does what the other one asks for, until it is told to end
    two_guests.py near LINK MODE [OPTIONS]   measures; writes /out/two-guests.md and /out/two-guests.json

A clock of instructions would run apart in two guests: the one that waits jumps to its next timer while the other works. So when
counted, the clock is time, and what is counted (by counter.c) are the instructions that both kernels execute, how long ever
they wait; without those of programs, some of which poll. What a run of three times the work takes more is put down to the work.
"""

import argparse
import itertools
import json
import os
import sys
import xmlrpc.client
import xmlrpc.server

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing/selftests"))

from bench import table  # noqa: E402
from counting import Counts  # noqa: E402
from rows import KIB, bandwidth, latency, tcp, tcp_of  # noqa: E402
from testbed import Host, Result, Testbed, rdma_links, run, sh, wait_until  # noqa: E402

KINDS = ("ferroce", "rxe")
PORT = 7000
PATIENT = ("-u", 18)
"""A second until something is sent again: an emulated guest may pause for longer than perftest's 67 ms."""


def rows(mtu):
    end = ", mtu 1500" * (mtu == 1500)
    long = [bandwidth(f"{what} 64 KiB{end}", "per byte", tool, 64 * KIB, *options, *PATIENT, iters=400, mtu=mtu, tcp=True)
            for what, tool, options in (("SEND", "ib_send_bw", ["-e"]), ("WRITE", "ib_write_bw", []), ("READ", "ib_read_bw", ["-e"]))]
    return long if mtu == 1500 else [
        *long,
        bandwidth("SEND 64 B", "per message", "ib_send_bw", 64, "-e", *PATIENT, iters=4000),
        latency("SEND 2 B, half a round trip", "ib_send_lat", 2, "-e", *PATIENT, iters=1000, messages=2),
    ]


class Guest(Host):
    """This guest, with its network interface; what begins with do_ is for the other one as well."""

    def __init__(self, number, counted):
        super().__init__(number, "tcp")
        self.ns, self.netdev, self.jobs = None, "eth0", []
        self.counts = Counts() if counted else None
        run(["modprobe", "virtio_net"])
        wait_until(lambda: os.path.exists("/sys/class/net/eth0"), 30, "no network interface")
        sh(f"ip link set eth0 mtu 4200 up; ip addr add {self.ip4}/24 dev eth0")

    def do_use(self, kind, mtu):
        """A device of this kind at this mtu; none for TCP."""
        for dev in rdma_links():
            self.delete_link(dev)
        wait_until(lambda: not rdma_links(), 60, "a link stays")
        run(["ip", "link", "set", "eth0", "mtu", str(mtu)])
        self.kind, self.dev = kind, f"{kind}{self.number}"
        if kind in KINDS:
            self.add_link()
            self.gid_index(self.ip4)
            Testbed.wait_active(self)

    def do_gid_index(self, ip):
        return self.gid_index(ip)

    def do_start(self, argv):
        self.jobs.append(self.start(*argv))
        return len(self.jobs) - 1

    def do_wait_listening(self, job, port):
        self.jobs[job].wait_listening(port)

    def do_wait(self, job, timeout):
        result = self.jobs[job].wait(timeout)
        return result.rc, result.out

    def do_kill(self, job):
        self.jobs[job].kill()

    def do_count(self):
        """Starts to count."""
        self.counts.begin()

    def do_counted(self):
        """Instructions of the kernel since then, as text: XML has no number for so many."""
        return str(self.counts.end_in_kernel())


class FarJob:
    """A program in the other guest, as testbed.Job."""

    def __init__(self, far, argv):
        self.far, self.argv = far, [str(a) for a in argv]
        self.number = far.start(self.argv)

    def wait_listening(self, port):
        self.far.wait_listening(self.number, port)

    def wait(self, timeout):
        return Result(self.argv, *self.far.wait(self.number, timeout))

    def kill(self):
        self.far.kill(self.number)


class Far(Host):
    """The other guest, as far as the rows want it."""

    def __init__(self, number):
        super().__init__(number, "tcp")
        self.server = xmlrpc.client.ServerProxy(f"http://{self.ip4}:{PORT}", allow_none=True)
        wait_until(self.answers, 300, "the other guest does not answer", step=0.5)

    def answers(self):
        try:
            return self.server.system.listMethods()
        except OSError:
            return None

    def use(self, kind, mtu):
        self.kind, self.dev = kind, f"{kind}{self.number}"
        self.server.use(kind, mtu)

    def gid_index(self, ip, timeout=30):
        return self.server.gid_index(ip)

    def start(self, *argv, **kw):
        return FarJob(self.server, argv)


class TwoGuests:
    """Both guests, as rows.py wants a Testbed."""

    def __init__(self, counted):
        self.h2 = Guest(2, counted)
        self.h1 = Far(1)
        self._ports = itertools.count(18601)
        self.warm = set()

    def port(self):
        return next(self._ports)

    def use(self, kind, mtu):
        self.h1.use(kind, mtu)
        self.h2.do_use(kind, mtu)

    def instructions(self, work, *args):
        """What both kernels execute for some work."""
        self.h1.server.count()
        self.h2.do_count()
        work(self, *args)
        return int(self.h2.do_counted()) + int(self.h1.server.counted())


def counted(bed, row, kind, n):
    """Instructions per byte or message. Of TCP: per byte, of as many bytes as the row has."""
    work = (lambda bed, n: tcp_of(bed, n * row.size)) if kind == "tcp" else row.measure
    program = kind == "tcp" or row.name.split(",")[0]
    if program not in bed.warm:
        # The first time, files come into the guest.
        work(bed, 10)
        bed.warm.add(program)
    more = bed.instructions(work, 3 * n) - bed.instructions(work, n)
    return more / (2 * n * (row.size if row.unit == "per byte" else row.messages))


def timed(bed, row, kind, n):
    return 1e9 / tcp(bed) if kind == "tcp" else row.measure(bed, n)


def near(args):
    bed = TwoGuests(args.mode == "counted")
    offloads = bed.h2.run("ethtool", "-k", "eth0").out
    for feature in ("tx-checksumming", "tx-tcp-segmentation", "tx-udp-segmentation", "rx-gro-hw"):
        print(next((line.strip() for line in offloads.splitlines() if f"{feature}:" in line), f"{feature}: unknown"), flush=True)
    todo = [row for mtu in (4200, 1500) for row in rows(mtu) if any(w in row.name for w in args.rows.split(","))]
    found = {row.name: {} for row in todo}
    failed = []
    for mtu in (4200, 1500):
        for kind in (*KINDS, "tcp"):
            bed.use(kind, mtu)
            for row in (r for r in todo if r.mtu == mtu and kind in r.kinds):
                if kind == "tcp" and row.name.split()[0] != "SEND":
                    found[row.name][kind] = found[row.name.replace(row.name.split()[0], "SEND", 1)].get(kind, [])
                    continue
                n = max(int(row.iters * args.scale), 10)
                try:
                    for _ in range(args.runs):
                        value = (counted if args.mode == "counted" else timed)(bed, row, kind, n)
                        found[row.name].setdefault(kind, []).append(value)
                        print(f"{row.name}: {kind} {value:.2f} {row.unit}", flush=True)
                except (AssertionError, RuntimeError, xmlrpc.client.Fault) as why:
                    failed.append(f"{row.name}: {kind}")
                    print(f"{row.name}: {kind}: {why}", file=sys.stderr, flush=True)
    bed.h1.server.end()
    unit = "instructions of both kernels" if args.mode == "counted" else "ns; without KVM an indication at most"
    text = f"Two guests over virtio-net, {args.link} ({unit}):\n\n{table(todo, found)}"
    print(text)
    with open("/out/two-guests.md", "w") as f:
        f.write(text)
    with open("/out/two-guests.json", "w") as f:
        json.dump([{"work": r.name, "unit": r.unit, "figures": found[r.name]} for r in todo], f, indent=1)
    if failed:
        sys.exit("no figures for " + "; ".join(failed))


def far(args):
    guest = Guest(1, args.mode == "counted")
    server = xmlrpc.server.SimpleXMLRPCServer((guest.ip4, PORT), allow_none=True, logRequests=False)
    server.register_introspection_functions()
    for name in dir(guest):
        if name.startswith("do_"):
            server.register_function(getattr(guest, name), name[len("do_"):])
    ended = []
    server.register_function(lambda: ended.append(True), "end")
    while not ended:
        server.handle_request()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("side", choices=("far", "near"))
    p.add_argument("link")
    p.add_argument("mode", choices=("counted", "timed"))
    p.add_argument("--rows", default="", help="only rows whose name contains one of these, parted by commas")
    p.add_argument("--scale", type=float, default=1, help="of the iterations")
    p.add_argument("--runs", type=int, default=2)
    args = p.parse_args()
    (far if args.side == "far" else near)(args)


if __name__ == "__main__":
    main()
