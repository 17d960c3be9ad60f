# SPDX-License-Identifier: GPL-2.0
"""Allocations that fail when a test wants them to (CONFIG_FAULT_INJECTION, the debug kernel has it)."""

import contextlib
import gc
import itertools
import os

DEBUGFS = "/sys/kernel/debug"
KINDS = ("failslab", "fail_page_alloc")
OFF = {"probability": 0, "interval": 1, "times": 1, "space": 0, "verbose": 0, "task-filter": "N"}
MOST = 2000
"""More allocations and copies than any one action makes."""


def _set(kind, **values):
    for name, value in values.items():
        with open(f"{DEBUGFS}/{kind}/{name.replace('_', '-')}", "w") as f:
            f.write(str(value))


@contextlib.contextmanager
def any_allocation():
    """Make every allocation one that can fail: of slabs and of pages, those that may sleep, those of user pages."""
    for kind in KINDS:
        _set(kind, **OFF, ignore_gfp_wait="N")
    _set("fail_page_alloc", ignore_gfp_highmem="N", min_order=0)
    _set("fail_usercopy", verbose=0)
    try:
        yield
    finally:
        for kind in KINDS:
            _set(kind, **OFF, ignore_gfp_wait="Y")


@contextlib.contextmanager
def short_of_memory(percent):
    """Of the slab allocations that must not sleep, in whatever context, some fail."""
    _set("failslab", **{**OFF, "probability": percent, "times": -1}, ignore_gfp_wait="Y")
    try:
        yield
    finally:
        _set("failslab", **OFF)


class Nth:
    """Lets the n-th allocation that this thread makes from now on fail, once."""

    def __init__(self):
        self.fd = os.open("/proc/thread-self/fail-nth", os.O_RDWR)

    def arm(self, n):
        os.write(self.fd, b"%d" % n)

    def needed(self, action, undo):
        """How many allocations and copies the action makes."""
        far = 1 << 30
        self.arm(far)
        thing = action()
        left = int(os.pread(self.fd, 16, 0))
        os.write(self.fd, b"0")
        undo(thing)
        return far - left

    def disarm(self):
        """Whether none has failed since it was armed."""
        # What these two copy counts as well: if that fails, nothing has failed before.
        try:
            left = int(os.pread(self.fd, 16, 0))
        except OSError:
            return True
        with contextlib.suppress(OSError):
            os.write(self.fd, b"0")
        return left != 0


def each(action, undo=lambda thing: None, again=lambda: None, some=None):
    """The action with its first allocation failing, with its second, and so on until it needs no more.

    some: only about so many of its allocations: one half is its first ones, the other is spread over the rest.
    undo gets what the action returns when it succeeds in spite of the failure; again is called when it does not.
    Returns the errnos of the failures, in order.
    """
    nth, errnos = Nth(), []
    which = range(1, MOST)
    if some:
        first, all_of_them = some // 2, nth.needed(action, undo)
        stride = max(1, (all_of_them - first) // (some - first))
        which = itertools.chain(range(1, first), range(first, 2 * all_of_them, stride))
    gc.collect()
    gc.disable()
    try:
        for n in which:
            thing, failure = None, None
            nth.arm(n)
            try:
                thing = action()
            except Exception as why:  # whatever the library makes of it
                failure = why
            enough = nth.disarm()
            if failure is None:
                undo(thing)
            else:
                errno = getattr(failure, "error_code", None) or getattr(failure, "errno", None)
                assert errno and not enough, f"allocation {n} failing: {failure!r}"
                errnos.append(errno)
                again()
            if enough:
                return errnos
        raise AssertionError("more allocations than were tried")
    finally:
        gc.enable()
        os.close(nth.fd)
