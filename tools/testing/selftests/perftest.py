# SPDX-License-Identifier: GPL-2.0
"""Runs perftest's programs between the hosts of a bed and checks the table that they print."""

import re

TOOLS = ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat"]
ALL_SIZES = [2 ** i for i in range(1, 24)]


def rows(out):
    """(size, iterations) of each line of the table. The figures beside them are no test: an emulator's clock is not."""
    return [(int(size), int(n)) for size, n in re.findall(r"^ *(\d+) +(\d+) +(?:[0-9.]+|-?inf|-?nan) ", out, re.M)]


def perftest(bed, tool, *options, ip=4, timeout=240):
    """One run, well ended at both sides, with one line of the client's table for each size."""
    port = bed.port()

    def cmd(host):
        return [tool, "-d", host.dev, "-x", host.gid_index(host.ip(ip)), "-p", port, "-F", *options]
    rs, rc = bed.pair(cmd(bed.h1), cmd(bed.h2) + [bed.h1.ip4], port, timeout)
    for r in (rs, rc):
        # "on port ..." says why a run failed; the tools print it and do not always exit with an error.
        assert not re.search(r"completion with error|Failed|Couldn't|Unable", r.out), f"--- server\n{rs}\n--- client\n{rc}"
    sizes = [size for size, _ in rows(rc.out)]
    assert sizes == ALL_SIZES if "-a" in options else len(sizes) == 1, rc
