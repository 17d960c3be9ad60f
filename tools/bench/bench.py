# SPDX-License-Identifier: GPL-2.0
"""What things cost: ferroce, rxe and TCP side by side, in one guest. Run by scripts/bench.

In counted mode the guest has one processor, and its clock counts executed instructions: one is a nanosecond. So what
perftest takes for time is instructions, the same on every machine. In timed mode it is time.

    bench.py OUT [--rows NAME,...] [--scale 0.1] [--runs 2]

Writes OUT/results.json, OUT/table.md and, where gnuplot is, OUT/*.svg.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing/selftests"))

import objects  # noqa: E402
from impair import lossy  # noqa: E402
from testbed import Testbed  # noqa: E402

KINDS = ("ferroce", "rxe")
MIB = 1 << 20
LINE = re.compile(r"^ *(\d+) +(\d+)\s+([0-9.]+)\s+([0-9.]+)\s+([0-9.]+)", re.M)


def perftest(bed, tool, size, iters, *options, same=False, timeout=900):
    """perftest's table, as (size, third, fourth, fifth column). same: both ends on one device."""
    port = bed.port()
    client = bed.h1 if same else bed.h2

    def cmd(host):
        sizes = ["-a"] if size == "all" else ["-s", size]
        return [tool, "-d", host.dev, "-x", host.gid_index(host.ip4), "-p", port, "-F", *sizes, "-n", iters, *options]
    server = bed.h1.start(*cmd(bed.h1))
    server.wait_listening(port)
    job = client.start(*cmd(client), bed.h1.ip4)
    try:
        out = job.wait(timeout).out
        server.wait(60)
    finally:
        job.kill()
        server.kill()
    rows = [(int(m[1]), *(float(m[i]) for i in (3, 4, 5))) for m in LINE.finditer(out)]
    if not rows:
        raise RuntimeError(f"{tool}: no figures:\n{out}")
    return rows


class Row:
    """One figure. measure(bed, n) returns it; smaller is better, but for those in MiB/s."""

    def __init__(self, name, unit, measure, iters, mtu=4200, loss=None):
        self.name, self.unit, self.measure, self.iters, self.mtu, self.loss = name, unit, measure, iters, mtu, loss


def per_byte(tool, size, *options, **kw):
    """ns per byte of a bandwidth test: in counted mode instructions."""
    return lambda bed, n: 1e9 / (perftest(bed, tool, size, n, *options, **kw)[-1][2] * MIB)


def per_message(tool, size, *options, **kw):
    """ns per message, from perftest's millions of messages per second."""
    return lambda bed, n: 1e3 / perftest(bed, tool, size, n, *options, **kw)[-1][3]


def latency(tool, size, *options, **kw):
    """Typical latency in ns."""
    return lambda bed, n: 1e3 * perftest(bed, tool, size, n, *options, **kw)[-1][3]


def rate(tool, size, *options, **kw):
    return lambda bed, n: perftest(bed, tool, size, n, *options, **kw)[-1][2]


ROWS = [
    Row("SEND 64 KiB", "per byte", per_byte("ib_send_bw", 65536, "-e"), 300),
    Row("WRITE 64 KiB", "per byte", per_byte("ib_write_bw", 65536), 300),
    Row("READ 64 KiB", "per byte", per_byte("ib_read_bw", 65536, "-e"), 300),
    Row("SEND 64 KiB, mtu 1500", "per byte", per_byte("ib_send_bw", 65536, "-e"), 200, mtu=1500),
    Row("WRITE 64 KiB, mtu 1500", "per byte", per_byte("ib_write_bw", 65536), 200, mtu=1500),
    Row("READ 64 KiB, mtu 1500", "per byte", per_byte("ib_read_bw", 65536, "-e"), 200, mtu=1500),
    Row("SEND 64 KiB, loopback in a device", "per byte", per_byte("ib_send_bw", 65536, "-e", same=True), 200),
    Row("SEND 64 B", "per message", per_message("ib_send_bw", 64, "-e"), 5000),
    Row("SEND 64 B, 64 QPs", "per message", per_message("ib_send_bw", 64, "-e", "-q", 64), 200),
    Row("SEND 64 B, 1,024 QPs", "per message", per_message("ib_send_bw", 64, "-e", "-q", 1024, "-t", 16, "-r", 16), 50),
    Row("SEND 64 B, UD", "per message", per_message("ib_send_bw", 64, "-e", "-c", "UD"), 5000),
    Row("SEND 64 B, UC", "per message", per_message("ib_send_bw", 64, "-e", "-c", "UC"), 5000),
    Row("SEND 2 B, half a round trip", "per message", latency("ib_send_lat", 2, "-e"), 500),
    Row("READ 8 B", "per message", latency("ib_read_lat", 8, "-e"), 500),
    Row("FETCH_ADD", "per message", latency("ib_atomic_lat", 8, "-A", "FETCH_AND_ADD", "-e"), 500),
    Row("idle RC QP, 128 WQEs each way", "bytes", objects.qp_memory, 256),
    Row("two RC QPs, connected and destroyed", "each", objects.connection, 100),
    Row("registration of 4 KiB", "each", objects.registration(4096), 200),
    Row("registration of 1 MiB", "each", objects.registration(MIB), 50),
    Row("registration of 64 MiB", "each", objects.registration(64 * MIB), 5),
    Row("registration of 1 GiB", "each", objects.registration(1024 * MIB), 5),
    Row("READ 1 MiB, 0.1 % loss", "MiB/s", rate("ib_read_bw", MIB, "-e"), 60, loss="loss 0.1%"),
    Row("READ 1 MiB, 1 % loss", "MiB/s", rate("ib_read_bw", MIB, "-e"), 30, loss="loss 1%"),
    Row("SEND 1 MiB, 0.1 % loss", "MiB/s", rate("ib_send_bw", MIB, "-e"), 60, loss="loss 0.1%"),
    Row("SEND 1 MiB, 1 % loss", "MiB/s", rate("ib_send_bw", MIB, "-e"), 30, loss="loss 1%"),
]


def tcp_per_byte(bed):
    """iperf3 with writes of 64 KiB, for two seconds of the guest's clock: ns per byte."""
    server = bed.h1.start("iperf3", "-s", "-1", "-p", 5201)
    server.wait_listening(5201)
    out = bed.h2.run("iperf3", "-c", bed.h1.ip4, "-p", "5201", "-l", "64K", "-t", "2", "-J").out
    server.wait(60)
    return 8e9 / json.loads(out[out.index("{"):])["end"]["sum_received"]["bits_per_second"]


def measure(rows, scale, runs):
    """{row: {kind: [figures]}}, all kinds of a row's mtu within minutes of each other."""
    found = {r.name: {} for r in rows}
    for mtu in sorted({r.mtu for r in rows}, reverse=True):
        for kind in KINDS:
            with Testbed(mtu=mtu, kinds=(kind, kind)) as bed:
                for row in (r for r in rows if r.mtu == mtu):
                    for _ in range(runs):
                        try:
                            with lossy(bed, row.loss) if row.loss else contextlib.nullcontext():
                                value = row.measure(bed, max(int(row.iters * scale), 5))
                        except (AssertionError, RuntimeError) as why:
                            print(f"{row.name}: {kind}: {why}", file=sys.stderr, flush=True)
                            continue
                        found[row.name].setdefault(kind, []).append(value)
                        print(f"{row.name}: {kind} {value:.2f} {row.unit}", flush=True)
        with Testbed(mtu=mtu, links=False) as bed:
            tcp = [tcp_per_byte(bed) for _ in range(runs)]
            print(f"TCP, mtu {mtu}: {tcp} per byte", flush=True)
            for row in (r for r in rows if r.mtu == mtu and r.unit == "per byte" and "loopback" not in r.name):
                found[row.name]["tcp"] = tcp
    return found


def table(rows, found):
    def mean(values):
        return sum(values) / len(values) if values else None

    def show(value, unit):
        return "-" if value is None else f"{value:,.2f}" if unit == "per byte" else f"{value:,.0f}"
    lines = ["| work | unit | ferroce | rxe | TCP | rxe / ferroce | ferroce / TCP | noise |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        ours, rxe, tcp = (mean(found[row.name].get(k, [])) for k in ("ferroce", "rxe", "tcp"))
        better = None if not ours or not rxe else (ours / rxe if row.unit == "MiB/s" else rxe / ours)
        noise = max((max(v) / min(v) - 1 for v in found[row.name].values() if len(v) > 1), default=0)
        lines.append(f"| {row.name} | {row.unit} | {show(ours, row.unit)} | {show(rxe, row.unit)} | {show(tcp, row.unit)} | "
                     f"{'-' if better is None else f'{better:.1f} x'} | {'-' if not tcp or not ours else f'{ours / tcp:.1f} x'} | {noise:.0%} |")
    return "\n".join(lines) + "\n"


def plot(out, scale):
    """Cost per byte against the size of a message."""
    for kind in KINDS:
        with Testbed(mtu=4200, kinds=(kind, kind)) as bed, open(f"{out}/{kind}.dat", "w") as f:
            for size, _, mib, _ in perftest(bed, "ib_send_bw", "all", max(int(20 * scale), 5), "-e"):
                if mib > 0:
                    f.write(f"{size} {1e9 / (mib * MIB)}\n")
    script = ('set terminal svg size 800,500; set output "size.svg"; set logscale xy; set xlabel "bytes of a SEND"; '
              'set ylabel "ns (instructions when counted) per byte"; set grid; '
              + "plot " + ", ".join(f'"{k}.dat" with linespoints title "{k}"' for k in KINDS))
    subprocess.run(["gnuplot", "-e", script], cwd=out, check=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--rows", help="only rows whose name contains one of these, parted by commas")
    p.add_argument("--scale", type=float, default=1, help="of the iterations")
    p.add_argument("--runs", type=int, default=2)
    p.add_argument("--no-plot", action="store_true")
    args = p.parse_args()
    rows = [r for r in ROWS if not args.rows or any(w in r.name for w in args.rows.split(","))]
    os.makedirs(args.out, exist_ok=True)
    found = measure(rows, args.scale, args.runs)
    with open(f"{args.out}/results.json", "w") as f:
        json.dump([{"work": r.name, "unit": r.unit, "figures": found[r.name]} for r in rows], f, indent=1)
    text = table(rows, found)
    with open(f"{args.out}/table.md", "w") as f:
        f.write(text)
    print(text)
    if not args.no_plot:
        plot(args.out, args.scale)
    missing = [f"{r.name}: {k}" for r in rows for k in KINDS if k not in found[r.name]]
    if missing:
        sys.exit("no figures for " + "; ".join(missing))


if __name__ == "__main__":
    main()
