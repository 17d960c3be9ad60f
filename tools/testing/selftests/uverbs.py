# SPDX-License-Identifier: GPL-2.0
"""uverbs commands written by hand: what the kernel offers and librxe has no function for, and arguments that libibverbs
would not let through.

A command that fails raises OSError with the kernel's errno.
"""

import ctypes
import os
import struct

REG_MR, REREG_MR, DEREG_MR, ALLOC_MW, DEALLOC_MW = 9, 11, 13, 14, 16

TRANSLATION, PD, ACCESS = 1, 2, 4


def command(ctx, number, layout, *values, answer=0):
    """Writes a command whose first field is the address of an answer of so many bytes; returns the answer.

    answer=None: the command has no such field.
    """
    response = ctypes.create_string_buffer(answer or 8)
    body = b"" if answer is None else struct.pack("=Q", ctypes.addressof(response))
    body += struct.pack(layout, *values)
    header = struct.pack("=IHH", number, (8 + len(body)) // 4, (answer or 0) // 4)
    os.write(ctx.cmd_fd, header + body)
    return response.raw[:answer or 0]


def reg_mr(ctx, pd_handle, start, length, va, access):
    """Returns handle, lkey, rkey."""
    return struct.unpack("=III", command(ctx, REG_MR, "=QQQII", start, length, va, pd_handle, access, answer=12))


def dereg_mr(ctx, handle):
    command(ctx, DEREG_MR, "=I", handle, answer=None)


def rereg_mr(ctx, handle, flags, *, start=0, length=0, va=None, pd_handle=0, access=0):
    """Returns lkey, rkey."""
    va = start if va is None else va
    return struct.unpack("=II", command(ctx, REREG_MR, "=IIQQQII", handle, flags, start, length, va, pd_handle, access,
                                        answer=8))


def alloc_mw(ctx, pd_handle, kind):
    """Returns handle, rkey."""
    return struct.unpack("=II", command(ctx, ALLOC_MW, "=IB3x", pd_handle, kind, answer=8))


def dealloc_mw(ctx, handle):
    command(ctx, DEALLOC_MW, "=I", handle, answer=None)
