# SPDX-License-Identifier: GPL-2.0
"""uverbs commands written by hand: what the kernel offers and librxe has no function for, and arguments that libibverbs
would not let through.

A command that fails raises OSError with the kernel's errno.
"""

import ctypes
import fcntl
import os
import struct

REG_MR, REREG_MR, DEREG_MR, ALLOC_MW, DEALLOC_MW = 9, 11, 13, 14, 16
ATTACH_MCAST, DETACH_MCAST = 30, 31

TRANSLATION, PD, ACCESS = 1, 2, 4


def command(ctx, number, layout, *values, answer=0, response=None):
    """Writes a command whose first field is the address of an answer of so many bytes; returns the answer.

    answer=None: the command has no such field. response: another address, where the answer is lost.
    """
    kept = ctypes.create_string_buffer(answer or 8)
    body = b"" if answer is None else struct.pack("=Q", ctypes.addressof(kept) if response is None else response)
    body += struct.pack(layout, *values)
    header = struct.pack("=IHH", number, (8 + len(body)) // 4, (answer or 0) // 4)
    os.write(ctx.cmd_fd, header + body)
    return kept.raw[:answer or 0]


def reg_mr(ctx, pd_handle, start, length, va, access):
    """Returns handle, lkey, rkey."""
    return struct.unpack("=III", command(ctx, REG_MR, "=QQQII", start, length, va, pd_handle, access, answer=12))


def dereg_mr(ctx, handle):
    command(ctx, DEREG_MR, "=I", handle, answer=None)


def rereg_mr(ctx, handle, flags, *, start=0, length=0, va=None, pd_handle=0, access=0, response=None):
    """Returns lkey, rkey."""
    va = start if va is None else va
    return struct.unpack("=II", command(ctx, REREG_MR, "=IIQQQII", handle, flags, start, length, va, pd_handle, access,
                                        answer=8, response=response))


def alloc_mw(ctx, pd_handle, kind):
    """Returns handle, rkey."""
    return struct.unpack("=II", command(ctx, ALLOC_MW, "=IB3x", pd_handle, kind, answer=8))


def dealloc_mw(ctx, handle):
    command(ctx, DEALLOC_MW, "=I", handle, answer=None)


def attach_mcast(ctx, qp_handle, gid):
    """gid: 16 bytes."""
    command(ctx, ATTACH_MCAST, "=16sIHH", gid, qp_handle, 0, 0, answer=None)


def detach_mcast(ctx, qp_handle, gid):
    command(ctx, DETACH_MCAST, "=16sIHH", gid, qp_handle, 0, 0, answer=None)


# The same by ioctl: an attribute is (id, length, data), data a value, or the address of what is longer than 8 bytes.

VERBS_IOCTL = 0xc0181b01
MANDATORY, VALID_OUTPUT = 1, 2
OBJECT_MR = 7
ADVISE_MR_METHOD, REG_DMABUF_MR_METHOD = 2, 4


def ioctl(ctx, obj, method, attrs):
    """Returns the data of the attributes as the kernel left it."""
    buf = bytearray(struct.pack("=HHHHQII", 24 + 16 * len(attrs), obj, method, len(attrs), 0, 14, 0))
    for number, length, data in attrs:
        buf += struct.pack("=HHHHQ", number, length, MANDATORY, 0, data % 2**64)
    fcntl.ioctl(ctx.cmd_fd, VERBS_IOCTL, buf)
    return [struct.unpack_from("=Q", buf, 24 + 16 * i + 8)[0] for i in range(len(attrs))]


def advise_mr(ctx, pd_handle, advice, flags, sges):
    """sges: (address, length, lkey)."""
    raw = b"".join(struct.pack("=QII", *sge) for sge in sges)
    held = ctypes.create_string_buffer(raw, len(raw))
    ioctl(ctx, OBJECT_MR, ADVISE_MR_METHOD, [(0, 0, pd_handle), (1, 8, advice), (2, 4, flags),
                                             (3, len(raw), ctypes.addressof(held))])


def reg_dmabuf_mr(ctx, pd_handle, fd, offset, length, iova, access, lkey_to=None, rkey_to=None):
    """Returns handle, lkey, rkey. lkey_to, rkey_to: other addresses, where they are lost."""
    keys = (ctypes.c_uint32 * 2)()
    at = ctypes.addressof(keys)
    out = ioctl(ctx, OBJECT_MR, REG_DMABUF_MR_METHOD,
                [(0, 0, 0), (1, 0, pd_handle), (2, 8, offset), (3, 8, length), (4, 8, iova), (5, 4, fd),
                 (6, 4, access), (7, 4, at if lkey_to is None else lkey_to), (8, 4, at + 4 if rkey_to is None else rkey_to)])
    return out[0] & 0xffffffff, keys[0], keys[1]
