# SPDX-License-Identifier: GPL-2.0
"""The kernel's log, read from a point on."""

import contextlib
import os
import re

COMPLAINT = re.compile(
    r"WARNING:|BUG:|Oops|Call Trace|general protection|KASAN|KCSAN|UBSAN|kmemleak(?!: Cannot allocate a scan area)|refcount_t|"
    r"possible (?:recursive|circular) locking|inconsistent lock state|INFO: task .* blocked|rcu: INFO|"
    r"soft lockup|hard LOCKUP|scheduling while atomic|sleeping function called|unregister_netdevice: waiting|"
    r"Objects remaining|ODEBUG|page allocation failure|rust_kernel: panicked|stack-protector")
"""What no test may leave in the log."""


OUT_OF_MEMORY = re.compile(r"vmalloc error: |percpu: allocation failed|FAULT_INJECTION: forcing")
"""What starts a stack dump that is no fault; it ends with </TASK>."""

LOCKS = "possible circular locking"
OTHERS_LOCKS = re.compile(r"\(nvmet_config_sem\)")
"""What is in a report of lockdep about locks of others alone: nvmet holds its semaphore while it destroys an rdma_cm ID,
whose lock it holds elsewhere while it takes that semaphore. Afterwards lockdep is off."""


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


OURS = re.compile(r"ferroce|rdma|infiniband|uverbs", re.I)
CRASH = re.compile(r"^[\w-]+\[\d+\]: segfault at |^traps: ")
"""A program's, which may well be in one of our libraries."""


@contextlib.contextmanager
def nothing_logged():
    """No message about RDMA, of whatever level."""
    log = Kmsg()
    yield
    said = [text for _, text in log.records() if OURS.search(text) and not CRASH.search(text)]
    log.close()
    assert not said, "\n".join(said)


def complaints(records):
    found, dump = [], None
    for _, text in records:
        if dump is None and (OUT_OF_MEMORY.search(text) or LOCKS in text):
            dump = []
        if dump is not None:
            dump.append(text)
            if "</TASK>" in text:
                found += [] if excused(dump) else filter(COMPLAINT.search, dump)
                dump = None
        elif COMPLAINT.search(text):
            found.append(text)
    if dump and not excused(dump):
        found += filter(COMPLAINT.search, dump)
    return found


def excused(dump):
    return OUT_OF_MEMORY.search(dump[0]) or any(map(OTHERS_LOCKS.search, dump))
