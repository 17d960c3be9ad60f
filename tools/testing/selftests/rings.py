# SPDX-License-Identifier: GPL-2.0
"""Verbs by hand, without a provider: commands written to the uverbs file, with any values whatever.

    with Uverbs("ferroce1") as u:
        pd = u.alloc_pd()
        srq, info = u.create_srq(pd, max_wr=10)

For what libibverbs would not let through. A command that the kernel refuses raises OSError.
"""

import ctypes
import fcntl
import glob
import mmap
import os
import struct
from collections import namedtuple

from testbed import run

COMMANDS = ["get_context", "query_device", "query_port", "alloc_pd", "dealloc_pd", "create_ah", "modify_ah", "query_ah",
            "destroy_ah", "reg_mr", "reg_smr", "rereg_mr", "query_mr", "dereg_mr", "alloc_mw", "bind_mw", "dealloc_mw",
            "create_comp_channel", "create_cq", "resize_cq", "destroy_cq", "poll_cq", "peek_cq", "req_notify_cq",
            "create_qp", "query_qp", "modify_qp", "destroy_qp", "post_send", "post_recv", "attach_mcast", "detach_mcast",
            "create_srq", "modify_srq", "query_srq", "destroy_srq", "post_srq_recv", "open_xrcd", "close_xrcd",
            "create_xsrq", "open_qp"]
"""enum ib_uverbs_write_cmds, in order."""

RC, UC, UD, XRC_INI, XRC_TGT = 2, 3, 4, 9, 10
SRQ_MAX_WR, SRQ_LIMIT = 1, 2
UNMAPPED = 0x1000
"""An address at which nothing is."""


class Info(ctypes.Structure):
    """struct mminfo: where a ring can be mapped."""
    _fields_ = [("offset", ctypes.c_uint64), ("size", ctypes.c_uint32), ("pad", ctypes.c_uint32)]


class Ring:
    """A ring as user space sees it (struct rxe_queue_buf), to be read and written at will."""

    def __init__(self, memory):
        self.memory = memory
        self.shift, self.mask = struct.unpack_from("II", self.memory, 0)

    @classmethod
    def mapped_by(cls, action):
        """The ring that the provider maps while it does something, and what that returns."""
        before = mappings()
        result = action()
        (start, end), = mappings() - before
        return cls((ctypes.c_char * (end - start)).from_address(start)), result

    def get(self, offset):
        return struct.unpack_from("I", self.memory, offset)[0]

    def put(self, offset, value):
        struct.pack_into("I", self.memory, offset, value)

    producer = property(lambda self: self.get(128), lambda self, value: self.put(128, value))
    consumer = property(lambda self: self.get(256), lambda self, value: self.put(256, value))

    def element(self, index):
        """Offset of an element."""
        return 384 + (index << self.shift)

    def post_recv(self, wr_id, sges=(), num_sge=None):
        """Writes a receive and publishes it; num_sge may lie."""
        at = self.element(self.producer)
        count = len(sges) if num_sge is None else num_sge
        total = sum(length for _, length, _ in sges)
        struct.pack_into("QIIIIIIII", self.memory, at, wr_id, 0, 0, total, total, 0, count, 0, 0)
        for n, (addr, length, lkey) in enumerate(sges):
            struct.pack_into("QII", self.memory, at + 40 + 16 * n, addr, length, lkey)
        self.producer = (self.producer + 1) & self.mask

    def post_send(self, opcode, sges=(), *, wr_id=0, flags=2, operands=b"", ex=bytes(4), srq=0, length=None):
        """Writes a send and publishes it; operands: the union's, srq: the queue at the peer, for XRC."""
        at = self.element(self.producer)
        total = sum(length for _, length, _ in sges) if length is None else length
        union = (operands.ljust(32, b"\0") + struct.pack("I", srq)).ljust(120, b"\0")
        head = struct.pack("QIII4s", wr_id, 0, opcode, flags, ex) + union + bytes(40)
        head += struct.pack("IIIIII", total, total, 0, len(sges), 0, 0)
        self.memory[at:at + 208 + 16 * len(sges)] = head + b"".join(struct.pack("QII", *sge) for sge in sges)
        self.producer = (self.producer + 1) & self.mask

    def completion(self):
        """The next completion, or None."""
        if self.consumer == self.producer:
            return None
        values = struct.unpack_from("QIIII4sIII", self.memory, self.element(self.consumer))
        self.consumer = (self.consumer + 1) & self.mask
        return Completion(*values[:3], *values[4:])


Completion = namedtuple("Completion", "wr_id status opcode byte_len ex qp_num src_qp flags")
"""struct ib_uverbs_wc, as far as it has something to say."""


def mappings():
    """Where this process has mapped uverbs files: pairs of start and end."""
    found = set()
    with open("/proc/self/maps") as f:
        for line in f:
            if "uverbs" in line:
                start, end = line.split()[0].split("-")
                found.add((int(start, 16), int(end, 16)))
    return found


MODIFY_QP = ["qkey", "rq_psn", "sq_psn", "dest_qpn", "access", "pkey_index", "alt_pkey_index", "state", "cur_state",
             "path_mtu", "path_mig_state", "en_sqd_async_notify", "max_rd", "max_dest_rd", "min_rnr_timer", "port", "timeout",
             "retry", "rnr_retry", "alt_port", "alt_timeout"]
"""struct ib_uverbs_modify_qp after the two addresses, the handle and the mask."""


def route_to(dgid=bytes(16), sgid_index=0, hops=64, tclass=0, flow=0, dlid=0, sl=0, path_bits=0, rate=0, is_global=1, port=1):
    """struct ib_uverbs_ah_attr."""
    return struct.pack("=16sIBBBxHBBBBBx", dgid, flow, sgid_index, hops, tclass, dlid, sl, path_bits, rate, is_global, port)


def destination(dgid=bytes(16), sgid_index=0, hops=64, tclass=0, flow=0, is_global=1, port=1):
    """struct ib_uverbs_qp_dest."""
    return struct.pack("=16sIHHBBBBBBBB", dgid, flow, 0, 0, sgid_index, hops, tclass, 0, 0, 0, is_global, port)


class Uverbs:
    def __init__(self, dev):
        run(["modprobe", "ib_uverbs"])
        node, = (p for p in glob.glob("/sys/class/infiniband_verbs/uverbs*")
                 if open(f"{p}/ibdev").read().strip() == dev)
        self.qp_rings = None  # receive and send ring of the QP that was made last
        self.fd = os.open(f"/dev/infiniband/{os.path.basename(node)}", os.O_RDWR | os.O_CLOEXEC)
        self.async_fd, self.vectors = struct.unpack("II", self.call("get_context", "", answer=8))
        fcntl.fcntl(self.async_fd, fcntl.F_SETFL, os.O_NONBLOCK)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.async_fd)
        os.close(self.fd)

    @property
    def cmd_fd(self):
        """As a pyverbs context calls it: the functions of uverbs.py take one of these, too."""
        return self.fd

    def call(self, name, layout, *values, answer=0, driver=b"", response=None):
        """A command with a response (u64) first, if it has an answer; returns the answer's bytes."""
        out = ctypes.create_string_buffer(max(answer, 8))
        head = struct.pack("Q", ctypes.addressof(out) if response is None else response) if answer else b""
        body = head + struct.pack("=" + layout, *values) + driver
        assert len(body) % 4 == 0 and answer % 4 == 0
        self.write(COMMANDS.index(name), body, answer)
        return out.raw[:answer]

    def write(self, number, body, answer):
        words = struct.pack("IHH", number, 2 + len(body) // 4, answer // 4)
        os.write(self.fd, words + body)

    def ex(self, number, body, answer=0, driver_answer=0, response=None):
        """An extended command, all of whose sizes are multiples of 8; returns the answer and the driver's after it."""
        size = answer + driver_answer
        out = ctypes.create_string_buffer(max(size, 8))
        where = 0 if not size else ctypes.addressof(out) if response is None else response
        head = struct.pack("=IHHQHHI", number | 1 << 31, len(body) // 8, answer // 8, where, 0, driver_answer // 8, 0)
        os.write(self.fd, head + body)
        return out.raw[:size]

    def ring(self, info):
        return Ring(mmap.mmap(self.fd, info.size, mmap.MAP_SHARED, offset=info.offset))

    def events(self):
        """Async events that are there: pairs of element and type."""
        try:
            data = os.read(self.async_fd, 4096)
        except BlockingIOError:
            return []
        return [struct.unpack_from("QI", data, at)[:2] for at in range(0, len(data), 16)]

    # Objects: handles are numbers. What comes from the driver follows C's answer.

    def alloc_pd(self, response=None):
        return struct.unpack("I", self.call("alloc_pd", "", answer=4, response=response))[0]

    def create_ah(self, pd, room=8, response=None, **route):
        """Returns the handle; what comes from the driver is left alone."""
        return struct.unpack_from("I", self.call("create_ah", "QII32s", 0, pd, 0, route_to(**route), answer=4 + room,
                                                 response=response))[0]

    def create_cq(self, cqe=16, vector=0, channel=-1, room=16, response=None):
        out = self.call("create_cq", "QIIiI", 0, cqe, vector, channel, 0, answer=8 + room, response=response)
        handle, cqe = struct.unpack_from("II", out)
        return handle, cqe, Info.from_buffer_copy(out[8:].ljust(16, b"\0"))

    def resize_cq(self, cq, cqe, room=16, response=None):
        out = self.call("resize_cq", "II", cq, cqe, answer=8 + room, response=response)
        return struct.unpack_from("I", out)[0], Info.from_buffer_copy(out[8:].ljust(16, b"\0"))

    def create_srq(self, pd, max_wr=16, max_sge=1, limit=0, room=24, response=None):
        """Returns the handle, (max_wr, max_sge), the ring's info and the number."""
        out = self.call("create_srq", "QIIII", 0, pd, max_wr, max_sge, limit, answer=16 + room, response=response)
        handle, max_wr, max_sge, _ = struct.unpack_from("IIII", out)
        info = Info.from_buffer_copy(out[16:].ljust(24, b"\0"))
        return handle, (max_wr, max_sge), info, struct.unpack_from("I", out.ljust(40, b"\0"), 32)[0]

    def open_xrcd(self, fd=-1, oflags=0, response=None):
        return struct.unpack("I", self.call("open_xrcd", "iI", fd, oflags, answer=4, response=response))[0]

    def create_xsrq(self, pd, xrcd, cq, max_wr=16, max_sge=1, kind=1, room=24, response=None):
        """Returns the handle, the number that peers name, and the ring's info."""
        out = self.call("create_xsrq", "QIIIIIIII", 0, kind, pd, max_wr, max_sge, 0, 0, xrcd, cq, answer=16 + room,
                        response=response)
        handle, _, _, number = struct.unpack_from("IIII", out)
        return handle, number, Info.from_buffer_copy(out[16:].ljust(16, b"\0"))

    def open_qp(self, xrcd, qpn, kind=XRC_TGT, response=None):
        """Returns the handle."""
        return struct.unpack_from("I", self.call("open_qp", "QIIB7x", 0, xrcd, qpn, kind, answer=32, response=response))[0]

    def modify_srq(self, srq, mask, max_wr=0, limit=0, address=None, driver=None):
        """Returns where the new ring is, if the size was changed."""
        info = Info()
        if driver is None:
            driver = struct.pack("Q", ctypes.addressof(info) if address is None else address)
        self.call("modify_srq", "IIII", srq, mask, max_wr, limit, driver=driver)
        return info

    def query_srq(self, srq):
        """(max_wr, max_sge, limit)"""
        return struct.unpack("IIII", self.call("query_srq", "II", srq, 0, answer=16))[:3]

    def create_qp(self, pd, send_cq, recv_cq=None, srq=None, kind=RC, send=(4, 1), recv=(4, 1), inline=0, room=32,
                  response=None):
        """Returns handle, number and (max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data)."""
        out = self.call("create_qp", "QIIIIIIIIIBBBB", 0, pd, send_cq, send_cq if recv_cq is None else recv_cq, srq or 0,
                        send[0], recv[0], send[1], recv[1], inline, 0, kind, int(srq is not None), 0,
                        answer=32 + room, response=response)
        handle, qpn, send_wr, recv_wr, send_sge, recv_sge, max_inline = struct.unpack_from("IIIIIII", out)
        self.qp_rings = [Info.from_buffer_copy(out[at:at + 16].ljust(16, b"\0")) for at in (32, 48)]
        return handle, qpn, (send_wr, recv_wr, send_sge, recv_sge, max_inline)

    def modify_qp(self, qp, mask, *, to=bytes(32), alternative=bytes(32), **values):
        """values: by the names in MODIFY_QP, all others are 0."""
        unknown = set(values) - set(MODIFY_QP)
        assert not unknown, unknown
        numbers = [values.get(name, 0) for name in MODIFY_QP]
        self.call("modify_qp", "32s32sIIIIIIIHH14B2x", to, alternative, qp, mask, *numbers)

    def query_qp(self, qp, mask=0, answer=128, response=None):
        """The state; and the access flags."""
        out = self.call("query_qp", "II", qp, mask, answer=answer, response=response)
        return out[108], struct.unpack_from("I", out, 100)[0]

    def doorbell(self, qp, wr_count=0, sge_count=0, wqe_size=128, more=b"", response=None):
        self.call("post_send", "IIII", qp, wr_count, sge_count, wqe_size, answer=4, driver=more, response=response)

    def ex_create_cq(self, cqe=16, vector=0, channel=-1, mask=0, flags=0, reserved=0, response=None):
        """Returns the handle."""
        body = struct.pack("=QIIiIII", 0, cqe, vector, channel, mask, flags, reserved)
        return struct.unpack_from("I", self.ex(COMMANDS.index("create_cq"), body, 16, 16, response))[0]

    def ex_create_qp(self, pd, cq, kind=RC, mask=0, flags=0, table=0, source=0, reserved=0, response=None):
        """Returns the handle."""
        body = struct.pack("=QIIIIIIIIIBBBBIIII", 0, pd, cq, cq, 0, 4, 4, 1, 1, 0, 0, kind, 0, reserved, mask, flags, table, source)
        return struct.unpack_from("I", self.ex(COMMANDS.index("create_qp"), body, 40, 32, response))[0]

    def destroy(self, what, handle, response=None):
        """what: pd, ah, cq, srq, qp, xrcd."""
        if what in ("pd", "ah", "mr", "xrcd"):
            name = {"pd": "dealloc_pd", "ah": "destroy_ah", "mr": "dereg_mr", "xrcd": "close_xrcd"}[what]
            self.call(name, "I", handle)
        else:
            answer = {"cq": 8, "srq": 4, "qp": 4}[what]
            self.call(f"destroy_{what}", "II", handle, 0, answer=answer, response=response)
