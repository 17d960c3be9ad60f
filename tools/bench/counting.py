# SPDX-License-Identifier: GPL-2.0
"""Has the guest's blocks of code counted (counter.c) while rows of the bench run. For bench.py --profile.

Counting goes on for some time in the midst of a row's run, without start and end of the programs. How many messages went
through in that time is told by the packets that were sent. stages.py makes a profile of it, outside the guest.
"""

import ctypes
import json
import mmap
import os
import threading
import time

from testbed import module_loaded, wait_until

MARK = 0x7bad0000
MAP_FIXED_NOREPLACE = 0x100000
RET = b"\xc3"
KERNEL = 1 << 63
"""Where its addresses begin."""
LONGER = 10
"""So many times as many iterations as the bench takes for a figure."""
SECONDS = 0.1
"""For how long counting goes on: as many ns as instructions."""


class Counts:
    """The code that the plugin waits for, and how many files of counts it has written."""

    def __init__(self):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        at = libc.mmap(MARK, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
                       mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
        if at != MARK:
            raise RuntimeError(f"no page at {MARK:#x}, errno {ctypes.get_errno()}")
        ctypes.memmove(MARK, RET * mmap.PAGESIZE, mmap.PAGESIZE)
        self._to_zero, self._write = (ctypes.CFUNCTYPE(None)(MARK + at) for at in (0, 16))
        self._written = 0

    def begin(self):
        self._to_zero()

    def end(self):
        """The number of the file that has the counts since then."""
        self._write()
        self._written += 1
        return self._written - 1

    def of(self, seconds):
        """Counts for so long; the number of the file that has the counts."""
        self.begin()
        time.sleep(seconds)
        return self.end()

    def end_in_kernel(self):
        """Instructions that the kernel has executed since begin()."""
        name = f"/out/counts.{self.end()}"
        with open(name) as f:
            blocks = [line.split() for line in f.read().splitlines()]
        os.remove(name)
        return sum(int(size) * int(executed) for address, size, executed in blocks if int(address, 16) >= KERNEL)


def packets(bed):
    """How many both ends have sent so far."""
    return sum(host.counters()["sent_pkts"] for host in bed.hosts)


class Profile:
    """The rows that were counted, kept in OUT/counted.json."""

    def __init__(self, out):
        self.out, self.counts, self.rows = out, Counts(), []

    def take(self, bed, row, kind, scale):
        for host in bed.hosts:
            # Else a counter is as old as 10 ms.
            with open(f"/sys/class/infiniband/{host.dev}/ports/1/hw_counters/lifespan", "w") as f:
                f.write("0")
        iterations = int(row.iters * scale * LONGER)
        before = packets(bed)
        run = threading.Thread(target=row.measure, args=(bed, iterations))
        run.start()
        wait_until(lambda: packets(bed) > before + 100 or not run.is_alive(), 120, "nothing is sent", step=0.005)
        time.sleep(SECONDS / 4)
        first = packets(bed)
        counts = self.counts.of(SECONDS)
        last = packets(bed)
        run.join()
        end = packets(bed)
        if last <= first or end - last < (last - first) / 10:
            raise RuntimeError(f"too short a run: {before} packets before, {first} and {last} around the counting, {end} after")
        self.rows.append({"row": row.name, "kind": kind, "bytes": row.size, "counts": counts,
                          "messages": (last - first) / (end - before) * iterations * row.messages})
        print(f"{row.name}: {kind}: counted", flush=True)

    def end(self):
        """Keeps what tells functions by address as well: the kernel's symbols and its modules', and where ferroce was loaded."""
        with open("/proc/kallsyms") as f, open(f"{self.out}/kallsyms", "w") as copy:
            copy.write(f.read())
        module = None
        if module_loaded("ferroce"):
            with open("/sys/module/ferroce/sections/.text") as f:
                module = int(f.read(), 16)
        with open(f"{self.out}/counted.json", "w") as f:
            json.dump({"rows": self.rows, "module": module}, f, indent=1)
