# SPDX-License-Identifier: GPL-2.0
"""What things cost: ferroce, rxe and TCP side by side, in one guest. Run by scripts/bench; the rows are in rows.py.

In counted mode the guest has one processor, and its clock counts executed instructions: one is a nanosecond. So what
perftest takes for time is instructions, the same on every machine. In timed mode it is time.

    bench.py OUT [--rows NAME,...] [--kinds ferroce] [--scale 0.1] [--runs 2] [--no-plot] [--profile]

Writes OUT/results.json, OUT/table.md and OUT/*.svg; with --profile, what stages.py makes a profile of.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing/selftests"))

import counting  # noqa: E402
from impair import lossy  # noqa: E402
from rows import MIB, QPS, ROWS, SIZES, SWEEPS, scaling, sweep, tcp  # noqa: E402
from testbed import Testbed, module_of  # noqa: E402

KINDS = ("ferroce", "rxe", "siw")
LEAST = 0.1
"""With less iterations than this of what there should be, it is only shown that there are figures, without what takes long."""
PROFILED = ("WRITE 64 KiB", "SEND 64 B", "SEND 2 B, half a round trip")


def available():
    """The drivers that this kernel has."""
    kinds = [kind for kind in KINDS if subprocess.run(["modprobe", "-nq", module_of(kind)], check=False).returncode == 0]
    for kind in set(KINDS) - set(kinds):
        print(f"skip: {kind} (this kernel is built without it)", flush=True)
    return kinds


@contextlib.contextmanager
def prepared(bed, row):
    """The bed as the row wants it."""
    with contextlib.ExitStack() as stack:
        if row.loss:
            stack.enter_context(lossy(bed, row.loss))
        if not row.icrc:
            for host in bed.hosts:
                host.set_icrc("0")
                stack.callback(host.set_icrc, "1")
        yield


def measure(rows, kinds, once):
    """Calls once(bed, row, kind) for each, all kinds of a row's mtu within minutes of each other. What failed, as text."""
    failed = []
    for mtu in sorted({r.mtu for r in rows}, reverse=True):
        for kind in kinds:
            with Testbed(mtu=mtu, kinds=(kind, kind), links=kind in KINDS) as bed:
                for row in (r for r in rows if r.mtu == mtu and kind in r.kinds):
                    try:
                        with prepared(bed, row):
                            once(bed, row, kind)
                    except (AssertionError, RuntimeError) as why:
                        failed.append(f"{row.name}: {kind}")
                        print(f"{row.name}: {kind}: {why}", file=sys.stderr, flush=True)
    return failed


def table(rows, found):
    def mean(values):
        return sum(values) / len(values) if values else None

    def show(value, unit):
        return "-" if value is None else f"{value:,.2f}" if unit == "per byte" else f"{value:,.0f}"
    siw = any("siw" in figures for figures in found.values())
    head = ["work", "unit", "ferroce", "rxe", *["siw"] * siw, "TCP", "rxe / ferroce", "ferroce / TCP", "noise"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        ours, rxe, iwarp, over_tcp, alone = (mean(found[row.name].get(k, [])) for k in ("ferroce", "rxe", "siw", "tcp", "alone"))
        better = None if not ours or not rxe else (ours / rxe if row.unit == "MiB/s" else rxe / ours)
        noise = max((max(v) / min(v) - 1 for v in found[row.name].values() if len(v) > 1), default=0)
        cells = [row.name, row.unit, *(show(v, row.unit) for v in (alone if ours is None else ours, rxe, *[iwarp] * siw, over_tcp)),
                 "-" if better is None else f"{better:.1f} x", "-" if not over_tcp or not ours else f"{ours / over_tcp:.1f} x", f"{noise:.0%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def gnuplot(out, name, title, xlabel, ylabel, curves, axes="xy"):
    """OUT/name.svg; curves: {title: [(x, y)]}."""
    blocks = "\n".join(f'$d{i} << EOD\n' + "\n".join(f"{x} {y}" for x, y in points) + "\nEOD"
                       for i, points in enumerate(curves.values()))
    drawn = ", ".join(f'$d{i} with linespoints title "{t}"' for i, t in enumerate(curves))
    subprocess.run(["gnuplot"], input=f'{blocks}\nset terminal svg size 800,500\nset output "{out}/{name}.svg"\nset logscale {axes}\n'
                   f'set title "{title}"\nset xlabel "{xlabel}"\nset ylabel "{ylabel}"\nset grid\nset key outside below\nplot {drawn}\n',
                   text=True, check=True)


def plots(out, kinds, scale):
    """Cost against the size of a message, per message and per byte; OUT/sizes.json has the figures."""
    messages = {}
    sizes = SIZES if scale >= LEAST else SIZES[::6]
    for kind in kinds:
        with Testbed(mtu=4200, kinds=(kind, kind)) as bed:
            for what in SWEEPS:
                messages[f"{what}, {kind}"] = [(size, sweep(bed, what, size, scale)) for size in sizes]
                print(f"sizes: {what}, {kind}: {messages[f'{what}, {kind}']}", flush=True)
    with open(f"{out}/sizes.json", "w") as f:
        json.dump(messages, f, indent=1)
    gnuplot(out, "per-message", "RC, path MTU 4096", "bytes of a message", "ns (instructions when counted) per message", messages)
    gnuplot(out, "per-byte", "RC, path MTU 4096", "bytes of a message", "ns (instructions when counted) per byte",
            {title: [(size, cost / size) for size, cost in points] for title, points in messages.items()})


def plot_scaling(out, kinds, found):
    """Cost of a message against the number of QPs, from the rows about that."""
    curves = {kind: [(qps, sum(v) / len(v)) for qps in QPS if (v := found.get(scaling(qps).name, {}).get(kind))] for kind in kinds}
    if all(len(c) == len(QPS) for c in curves.values()):
        gnuplot(out, "scaling", "SEND 64 B, 16 in flight on each QP", "QPs", "ns (instructions when counted) per message", curves, "x")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--rows", help="only rows whose name contains one of these, parted by commas")
    p.add_argument("--kinds", default=",".join(available()))
    p.add_argument("--scale", type=float, default=1, help="of the iterations")
    p.add_argument("--runs", type=int, default=2)
    p.add_argument("--no-plot", action="store_true")
    p.add_argument("--profile", action="store_true")
    args = p.parse_args()
    kinds = args.kinds.split(",")
    os.makedirs(args.out, exist_ok=True)
    if args.rows:
        rows = [r for r in ROWS if any(w in r.name for w in args.rows.split(","))]
    else:
        rows = [r for r in ROWS if not args.profile or r.name in PROFILED]
    if args.scale < LEAST:
        rows = [r for r in rows if not r.heavy]
    if not rows:
        sys.exit(f"no row is named like {args.rows}")
    if args.profile:
        profile = counting.Profile(args.out)
        # What siw has sent it does not tell.
        failed = measure(rows, [kind for kind in kinds if kind != "siw"], lambda bed, row, kind: profile.take(bed, row, kind, args.scale))
        profile.end()
        sys.exit("not counted: " + "; ".join(failed) if failed else 0)

    found = {r.name: {} for r in rows}

    def once(bed, row, kind):
        for _ in range(args.runs):
            value = tcp_in(row, tcp(bed)) if kind == "tcp" else row.measure(bed, max(int(row.iters * args.scale), 5))
            found[row.name].setdefault(kind, []).append(value)
            print(f"{row.name}: {kind} {value:.2f} {row.unit}", flush=True)
    failed = measure(rows, [*kinds, "tcp", "alone"], once)
    with open(f"{args.out}/results.json", "w") as f:
        json.dump([{"work": r.name, "unit": r.unit, "figures": found[r.name]} for r in rows], f, indent=1)
    text = table(rows, found)
    with open(f"{args.out}/table.md", "w") as f:
        f.write(text)
    print(text)
    plot_scaling(args.out, kinds, found)
    if not args.no_plot:
        plots(args.out, kinds, args.scale)
    if failed:
        sys.exit("no figures for " + "; ".join(failed))


def tcp_in(row, bytes_per_second):
    """What a row says, of TCP."""
    return bytes_per_second / MIB if row.unit == "MiB/s" else 1e9 / bytes_per_second


if __name__ == "__main__":
    main()
