# SPDX-License-Identifier: GPL-2.0
"""The kernel's log, read from a point on."""

import os
import re

COMPLAINT = re.compile(
    r"WARNING:|BUG:|Oops|Call Trace|general protection|KASAN|KCSAN|UBSAN|kmemleak|refcount_t|"
    r"possible (?:recursive|circular) locking|inconsistent lock state|INFO: task .* blocked|rcu: INFO|"
    r"soft lockup|hard LOCKUP|scheduling while atomic|sleeping function called|unregister_netdevice: waiting|"
    r"Objects remaining|ODEBUG|page allocation failure|rust_kernel: panicked|stack-protector")
"""What no test may leave in the log."""


class Kmsg:
    """Records that were logged after this object was made."""

    def __init__(self):
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.fd, 0, os.SEEK_END)

    def records(self):
        """(level, text) of each record since the last call."""
        out = []
        while True:
            try:
                head, _, text = os.read(self.fd, 8192).decode(errors="replace").partition(";")
            except BlockingIOError:
                return out
            except BrokenPipeError:  # The ring has overwritten what was not read yet.
                continue
            out.append((int(head.split(",")[0]) & 7, text.split("\n")[0]))

    def close(self):
        os.close(self.fd)


def complaints(records):
    return [text for _, text in records if COMPLAINT.search(text)]
