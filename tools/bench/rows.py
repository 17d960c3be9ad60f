# SPDX-License-Identifier: GPL-2.0
"""What the bench measures, a row each; bench.py runs them."""

import concurrent.futures
import json
import re

import objects

KIB, MIB = 1 << 10, 1 << 20
LINE = re.compile(r"^ *(\d+) +(\d+)\s+([0-9.]+)\s+([0-9.]+)\s+([0-9.]+)", re.M)


def perftest(bed, tool, size, iters, *options, same=False, timeout=900):
    """perftest's table, as (size, third, fourth, fifth column). same: both ends on one device."""
    port = bed.port()
    client = bed.h1 if same else bed.h2
    iwarp = bed.h1.kind == "siw"

    def cmd(host):
        # With iWARP only rdma_cm makes connections.
        how = ["-R"] if iwarp else ["-x", host.gid_index(host.ip4)]
        return [tool, "-d", host.dev, *how, "-p", port, "-F", "-s", size, "-n", iters, *options]
    server = bed.h1.start(*cmd(bed.h1))
    if iwarp:
        server.wait_cm_listening(port)
    else:
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


def iperf3(bed, *amount):
    """iperf3 with writes of 64 KiB, for what `amount` says."""
    server = bed.h1.start("iperf3", "-s", "-1", "-p", 5201)
    server.wait_listening(5201)
    out = bed.h2.run("iperf3", "-c", bed.h1.ip4, "-p", "5201", "-l", "64K", *amount, "-J", timeout=600).out
    server.wait(60)
    return json.loads(out[out.index("{"):])["end"]["sum_received"]


def tcp(bed):
    """Two seconds of the guest's clock: bytes per second."""
    return iperf3(bed, "-t", "2")["bits_per_second"] / 8


def tcp_of(bed, size):
    """So many bytes."""
    iperf3(bed, "-n", str(size))


class Row:
    """One figure: measure(bed, n) returns it. Smaller is better, but for those in MiB/s. An iteration is `messages` of `size`
    bytes. loss: what netem does to both directions. icrc=False: off on both sides, which rxe cannot. iwarp: siw can do it as
    well. alone: no driver takes part. heavy: takes long, however few iterations there are."""

    def __init__(self, name, unit, measure, iters, size=None, messages=1, mtu=4200, loss=None, icrc=True, tcp=False, iwarp=False,
                 alone=False, heavy=False):
        self.name, self.unit, self.measure, self.iters = name, unit, measure, iters
        self.size, self.messages, self.mtu, self.loss, self.icrc, self.heavy = size, messages, mtu, loss, icrc, heavy
        self.kinds = ("ferroce",) * (not alone) + ("rxe",) * (icrc and not alone) + ("siw",) * iwarp + ("tcp",) * tcp + ("alone",) * alone


# What perftest says, in the row's unit: MiB/s, millions of messages per second, us. In counted mode its ns are instructions.
BANDWIDTH = {
    "per byte": lambda line: 1e9 / (line[2] * MIB),
    "per message": lambda line: 1e3 / line[3],
    "MiB/s": lambda line: line[2],
}


def bandwidth(name, unit, tool, size, *options, iters, qps=1, same=False, **kw):
    def measure(bed, n):
        return BANDWIDTH[unit](perftest(bed, tool, size, n, *options, *(("-q", qps) if qps > 1 else ()), same=same)[-1])
    return Row(name, unit, measure, iters, size, qps, **kw)


def latency(name, tool, size, *options, iters=500, messages=1, **kw):
    """Typical latency."""
    return Row(name, "per message", lambda bed, n: 1e3 * perftest(bed, tool, size, n, *options)[-1][3], iters, size, messages, **kw)


def long_messages(**kw):
    """64 KiB of each kind."""
    end = "".join([", mtu 1500"] * ("mtu" in kw) + [", no ICRC"] * ("icrc" in kw))
    return [bandwidth(f"{what} 64 KiB{end}", "per byte", tool, 64 * KIB, *options, iters=300, tcp="icrc" not in kw, iwarp="icrc" not in kw, **kw)
            for what, tool, options in (("SEND", "ib_send_bw", ["-e"]), ("WRITE", "ib_write_bw", []), ("READ", "ib_read_bw", ["-e"]))]


def pairs(count):
    """Some pairs of programs at once, each with a QP of its own: more of them get more done where there are CPUs for them."""
    def measure(bed, n):
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            jobs = [pool.submit(perftest, bed, "ib_send_bw", 64 * KIB, n, "-e") for _ in range(count)]
            return sum(job.result()[-1][2] for job in jobs)
    return Row(f"SEND 64 KiB, {count} QP{'s' * (count > 1)}, programs of their own", "MiB/s", measure, 300)


QPS = {1: 5000, 8: 1000, 64: 200, 1024: 50}
"""Numbers of QPs for the rows about scaling, and iterations of each of them."""


def scaling(qps):
    """The same depth for each QP, however many there are."""
    return bandwidth(f"SEND 64 B, {qps:,} QP{'s' * (qps > 1)}, 16 in flight", "per message", "ib_send_bw", 64, "-e", "-t", 16, "-r", 16,
                     qps=qps, iters=QPS[qps], heavy=qps > 100)


SIZES = [2, 3, 64, 255, 1 * KIB, 4 * KIB, 4 * KIB + 1, 16 * KIB, 65535, 64 * KIB, 256 * KIB, 1 * MIB, MIB + 1, 8 * MIB]
"""Sizes of a message for the plots: powers of two, and some that are not."""

SWEEPS = {"SEND": ("ib_send_bw", "-e"), "WRITE": ("ib_write_bw",), "READ": ("ib_read_bw", "-e")}


def sweep(bed, what, size, scale):
    """What one message of this size costs."""
    n = max(int(scale * min(1000, max(16 * MIB // size, 5))), 5)
    tool, *options = SWEEPS[what]
    return 1e3 / perftest(bed, tool, size, n, *options)[-1][3] if size < 4 * KIB else \
        1e9 * size / (perftest(bed, tool, size, n, *options)[-1][2] * MIB)


ROWS = [
    Row("two copies and two CRCs, without a driver", "per byte", objects.floor, 300, alone=True),
    *long_messages(),
    *long_messages(mtu=1500),
    *long_messages(icrc=False),
    bandwidth("SEND 64 KiB, polling", "per byte", "ib_send_bw", 64 * KIB, iters=300),
    bandwidth("SEND 64 KiB, loopback in a device", "per byte", "ib_send_bw", 64 * KIB, "-e", iters=300, same=True),
    bandwidth("SEND 64 B", "per message", "ib_send_bw", 64, "-e", iters=5000, iwarp=True),
    bandwidth("SEND 64 B, polling", "per message", "ib_send_bw", 64, iters=5000),
    *(scaling(qps) for qps in QPS),
    *(pairs(count) for count in (1, 2, 4)),
    bandwidth("SEND 64 B, UD", "per message", "ib_send_bw", 64, "-e", "-c", "UD", iters=5000),
    bandwidth("SEND 64 B, UC", "per message", "ib_send_bw", 64, "-e", "-c", "UC", iters=5000),
    latency("SEND 2 B, half a round trip", "ib_send_lat", 2, "-e", messages=2, iwarp=True),
    latency("READ 8 B", "ib_read_lat", 8, "-e", iwarp=True),
    latency("READ 8 B, polling", "ib_read_lat", 8),
    latency("FETCH_ADD", "ib_atomic_lat", 8, "-A", "FETCH_AND_ADD", "-e"),
    latency("CMP_SWAP", "ib_atomic_lat", 8, "-A", "CMP_AND_SWAP", "-e"),
    latency("CMP_SWAP, polling", "ib_atomic_lat", 8, "-A", "CMP_AND_SWAP"),
    Row("idle RC QP, 128 WQEs each way", "bytes", objects.qp_memory, 256),
    Row("idle CQ of 256 entries", "bytes", objects.cq_memory, 512),
    Row("MR of 4 KiB", "bytes", objects.mr_memory, 1024),
    Row("two RC QPs, connected and destroyed", "each", objects.connection, 100),
    Row("connections by rdma_cm, one after the other", "each", objects.rdma_cm, 100),
    Row("registration of 4 KiB", "each", objects.registration(4 * KIB), 200),
    Row("registration of 1 MiB", "each", objects.registration(MIB), 50),
    Row("registration of 64 MiB", "each", objects.registration(64 * MIB), 5),
    Row("registration of 1 GiB", "each", objects.registration(1024 * MIB), 5, heavy=True),
    *(bandwidth(f"{what} 1 MiB, {loss} loss", "MiB/s", tool, MIB, "-e", iters=iters, loss=f"loss {loss.replace(' ', '')}", tcp=True)
      for what, tool in (("READ", "ib_read_bw"), ("SEND", "ib_send_bw")) for loss, iters in (("0.1 %", 60), ("1 %", 30))),
]
