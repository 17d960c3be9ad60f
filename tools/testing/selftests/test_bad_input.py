# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=2048
"""Each verb with each of its arguments wrong, by commands that no library looks at first.

A row says what is wrong, and the errno. After each of them: nothing is left of the attempt, and nothing has changed.
Attributes of queue pairs (all of them, in all states) are in test_qp_attributes, DMA-BUFs and registering anew with more
of their own in test_memory, advice about memory in test_odp.
"""

import ctypes
import errno
import json
import mmap
import os
import struct

import pytest

import uverbs
from datagram import raw_gid
from kmsg import nothing_logged
from rings import RC, SRQ_LIMIT, SRQ_MAX_WR, UC, UD, UNMAPPED, XRC_INI, XRC_TGT, Uverbs, destination
from test_memory import ATOMIC, LOCAL, PAGE, REMOTE_WRITE, WRAPS, Pages, UdmaBuf
from testbed import run

pytestmark = pytest.mark.differs_on_rxe("other errnos, and answers that do not fit")

MAX_CQE, MAX_WR = (1 << 20) - 1, (1 << 20) - 1
EINVAL, ENOENT, EFAULT, EBUSY, ENOSPC, EBADF, EOPNOTSUPP = (
    errno.EINVAL, errno.ENOENT, errno.EFAULT, errno.EBUSY, errno.ENOSPC, errno.EBADF, errno.EOPNOTSUPP)
FAR = 0xffffffff
GROUP = bytes(10) + b"\xff\xff\xe0\0\1\2"
KERNEL = 0xffff888000000000
"""An address of the kernel's map of all memory."""
ON_DEMAND, HUGETLB, FLUSH_GLOBAL, FLUSH_PERSISTENT = 64, 128, 256, 512
RESET, INIT, RTR, RTS = range(4)
STATE, ACCESS_FLAGS, PKEY_INDEX, PORT, QKEY, AV, ALT_PATH, PATH_MIG_STATE, RATE_LIMIT = (
    1, 8, 16, 32, 64, 128, 1 << 14, 1 << 18, 1 << 25)
PATH_MTU, RQ_PSN, SQ_PSN, DEST_QPN = 1 << 8, 1 << 12, 1 << 16, 1 << 20


class World:
    """A program with one object of each kind, of which `gone` had another, and another program, `foreign`."""

    def __init__(self, host):
        self.dev, self.page = host.dev, Pages(4 * PAGE)
        self.sgid_index = host.gid_index(host.ip4)
        self.gid = raw_gid(host.ip4)
        self.u, self.other = Uverbs(host.dev), Uverbs(host.dev)
        self.have = self.one_of_each(self.u)
        self.uc = self.u.create_qp(self.have["pd"], self.have["cq"], kind=UC)[0]
        self.ud = self.u.create_qp(self.have["pd"], self.have["cq"], kind=UD)[0]
        self.xsrq = self.u.create_xsrq(self.have["pd"], self.have["xrcd"], self.have["cq"])[0]
        self.gone = self.one_of_each(self.u)
        self.remove(self.u, self.gone)
        for _ in range(64):  # so that the handles of the other program are none here
            self.other.alloc_pd()
        self.foreign = self.one_of_each(self.other)
        # A page that can be written, one that can be read, and one that is not there.
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        edge = mmap.mmap(-1, 3 * PAGE)
        self.edge = (edge, (ctypes.c_char * (3 * PAGE)).from_buffer(edge))
        self.writable = ctypes.addressof(self.edge[1])
        self.read_only = self.writable + PAGE
        libc.mprotect(ctypes.c_void_p(self.read_only), ctypes.c_size_t(2 * PAGE), mmap.PROT_READ)
        self.last = self.books()

    def one_of_each(self, u):
        made = {"pd": u.alloc_pd(), "cq": u.create_cq(31)[0]}
        made["srq"] = u.create_srq(made["pd"], 31)[0]
        made["xrcd"] = u.open_xrcd()
        made["qp"] = u.create_qp(made["pd"], made["cq"])[0]
        made["ah"] = u.create_ah(made["pd"], dgid=self.gid, sgid_index=self.sgid_index)
        made["mr"] = uverbs.reg_mr(u, made["pd"], self.page.addr, PAGE, self.page.addr, LOCAL)[0]
        made["mw"] = uverbs.alloc_mw(u, made["pd"], 2)[0]
        return made

    @staticmethod
    def remove(u, made):
        uverbs.dealloc_mw(u, made["mw"])
        for kind in ("mr", "ah", "qp", "srq", "xrcd", "cq", "pd"):
            u.destroy(kind, made[kind])

    def close(self):
        """What is there can be removed, so it is as it was."""
        for qp in (self.uc, self.ud):
            self.u.destroy("qp", qp)
        self.u.destroy("srq", self.xsrq)
        self.remove(self.u, self.have)
        self.u.__exit__()
        self.other.__exit__()

    def books(self):
        shown = json.loads(run(["rdma", "-j", "resource", "show", self.dev]).out)[0]
        with open("/proc/self/status") as f:
            pinned = next(line for line in f if line.startswith("VmPin"))
        return ({kind: n for kind, n in shown.items() if not kind.startswith("if")}, pinned,
                self.u.query_srq(self.have["srq"]),
                [self.u.query_qp(qp) for qp in (self.have["qp"], self.uc, self.ud)])

    # Verbs with all of their arguments good, but for those that are given.

    def ah(self, **wrong):
        args = {"pd": self.have["pd"], "dgid": self.gid, "sgid_index": self.sgid_index, **wrong}
        return self.u.create_ah(args.pop("pd"), **args)

    def reg(self, **wrong):
        at = self.page.addr
        args = {"pd": self.have["pd"], "start": at, "length": PAGE, "va": at, "access": LOCAL, **wrong}
        return uverbs.reg_mr(self.u, *args.values())

    def rereg(self, mr=None, flags=uverbs.ACCESS, **wrong):
        args = {"start": self.page.addr, "length": PAGE, "pd_handle": self.have["pd"], "access": LOCAL, **wrong}
        return uverbs.rereg_mr(self.u, self.have["mr"] if mr is None else mr, flags, **args)

    def qp(self, **wrong):
        args = {"pd": self.have["pd"], "send_cq": self.have["cq"], **wrong}
        return self.u.create_qp(args.pop("pd"), args.pop("send_cq"), **args)

    def to_init(self, mask=0, without=0, **wrong):
        values = {"state": INIT, "port": 1, **wrong}
        self.u.modify_qp(self.have["qp"], (STATE | PKEY_INDEX | PORT | ACCESS_FLAGS | mask) & ~without, **values)


@pytest.fixture(scope="module")
def world(bed):
    w = World(bed.h1)
    yield w
    w.close()


def refused(world, code, action):
    before = world.last
    with nothing_logged(), pytest.raises(OSError) as why:
        action()
    world.last = world.books()
    got = why.value.errno
    assert got == code, f"{errno.errorcode[got]} instead of {errno.errorcode[code]}"
    assert world.last == before


# Handles.

HANDLES = {
    # verb and argument: kind of object, call with a handle
    "dealloc_pd": ("pd", lambda w, h: w.u.destroy("pd", h)),
    "create_ah": ("pd", lambda w, h: w.ah(pd=h)),
    "destroy_ah": ("ah", lambda w, h: w.u.destroy("ah", h)),
    "reg_mr": ("pd", lambda w, h: w.reg(pd=h)),
    "reg_dmabuf_mr": ("pd", lambda w, h: uverbs.reg_dmabuf_mr(w.u, h, 0, 0, PAGE, 0, LOCAL)),
    "advise_mr": ("pd", lambda w, h: uverbs.advise_mr(w.u, h, 0, 1, [(w.page.addr, 1, 1)])),
    "rereg_mr": ("mr", lambda w, h: w.rereg(h)),
    "rereg_mr: domain": ("pd", lambda w, h: w.rereg(flags=uverbs.PD, pd_handle=h)),
    "dereg_mr": ("mr", lambda w, h: uverbs.dereg_mr(w.u, h)),
    "alloc_mw": ("pd", lambda w, h: uverbs.alloc_mw(w.u, h, 1)),
    "dealloc_mw": ("mw", lambda w, h: uverbs.dealloc_mw(w.u, h)),
    "resize_cq": ("cq", lambda w, h: w.u.resize_cq(h, 10)),
    "req_notify_cq": ("cq", lambda w, h: w.u.call("req_notify_cq", "II", h, 0)),
    "destroy_cq": ("cq", lambda w, h: w.u.destroy("cq", h)),
    "create_qp: domain": ("pd", lambda w, h: w.qp(pd=h)),
    "create_qp: for sends": ("cq", lambda w, h: w.qp(send_cq=h, recv_cq=w.have["cq"])),
    "create_qp: for receives": ("cq", lambda w, h: w.qp(recv_cq=h)),
    "create_qp: shared queue": ("srq", lambda w, h: w.qp(srq=h)),
    "query_qp": ("qp", lambda w, h: w.u.query_qp(h)),
    "modify_qp": ("qp", lambda w, h: w.u.modify_qp(h, STATE, state=RESET)),
    "destroy_qp": ("qp", lambda w, h: w.u.destroy("qp", h)),
    "post_send": ("qp", lambda w, h: w.u.doorbell(h)),
    "attach_mcast": ("qp", lambda w, h: uverbs.attach_mcast(w.u, h, GROUP)),
    "detach_mcast": ("qp", lambda w, h: uverbs.detach_mcast(w.u, h, GROUP)),
    "create_srq": ("pd", lambda w, h: w.u.create_srq(h)),
    "query_srq": ("srq", lambda w, h: w.u.query_srq(h)),
    "modify_srq": ("srq", lambda w, h: w.u.modify_srq(h, SRQ_LIMIT, limit=1)),
    "destroy_srq": ("srq", lambda w, h: w.u.destroy("srq", h)),
    "close_xrcd": ("xrcd", lambda w, h: w.u.destroy("xrcd", h)),
    "create_xsrq: domain": ("pd", lambda w, h: w.u.create_xsrq(h, w.have["xrcd"], w.have["cq"])),
    "create_xsrq: completions": ("cq", lambda w, h: w.u.create_xsrq(w.have["pd"], w.have["xrcd"], h)),
}


@pytest.mark.parametrize("wrong", ["none", "gone", "foreign", "another kind"])
@pytest.mark.parametrize("verb", HANDLES)
def test_handle(world, verb, wrong):
    kind, call = HANDLES[verb]
    handle = {"none": FAR, "gone": world.gone[kind], "foreign": world.foreign[kind],
              "another kind": world.have["cq" if kind == "pd" else "pd"]}[wrong]
    refused(world, EINVAL if wrong == "another kind" else ENOENT, lambda: call(world, handle))


def test_in_use(world):
    """What others need cannot be removed under them."""
    u, have = world.u, world.have
    refused(world, EBUSY, lambda: u.destroy("pd", have["pd"]))
    refused(world, EBUSY, lambda: u.destroy("cq", have["cq"]))
    target = world.qp(pd=have["xrcd"], kind=XRC_TGT)[0]
    world.last = world.books()
    refused(world, EBUSY, lambda: u.destroy("xrcd", have["xrcd"]))
    u.destroy("qp", target)
    world.last = world.books()


# Where the answer goes.

ANSWERS = {
    # verb: bytes of the core's answer, bytes of the driver's, call with an address and room for the driver's
    "alloc_pd": (4, 0, lambda w, at, room: w.u.alloc_pd(response=at)),
    "create_ah": (4, 8, lambda w, at, room: w.u.create_ah(w.have["pd"], room, at, dgid=w.gid, sgid_index=w.sgid_index)),
    "reg_mr": (12, 0, lambda w, at, room: uverbs.command(w.u, uverbs.REG_MR, "=QQQII", w.page.addr, PAGE, w.page.addr,
                                                         w.have["pd"], LOCAL, answer=12, response=at)),
    "alloc_mw": (8, 0, lambda w, at, room: uverbs.command(w.u, uverbs.ALLOC_MW, "=IB3x", w.have["pd"], 2, answer=8, response=at)),
    "create_cq": (8, 16, lambda w, at, room: w.u.create_cq(10, room=room, response=at)),
    "resize_cq": (8, 16, lambda w, at, room: w.u.resize_cq(w.have["cq"], 10, room=room, response=at)),
    "create_qp": (32, 32, lambda w, at, room: w.qp(room=room, response=at)),
    "create_qp, shared queue": (32, 32, lambda w, at, room: w.qp(room=room, response=at, srq=w.have["srq"])),
    "create_qp, UD": (32, 32, lambda w, at, room: w.qp(room=room, response=at, kind=UD)),
    "create_qp, XRC initiator": (32, 32, lambda w, at, room: w.qp(room=room, response=at, kind=XRC_INI)),
    "create_qp, XRC target": (32, 0, lambda w, at, room: w.qp(pd=w.have["xrcd"], room=room, response=at, kind=XRC_TGT)),
    "open_xrcd": (4, 0, lambda w, at, room: w.u.open_xrcd(response=at)),
    "create_xsrq": (16, 24, lambda w, at, room: w.u.create_xsrq(w.have["pd"], w.have["xrcd"], w.have["cq"], room=room,
                                                               response=at)),
    "query_qp": (128, 0, lambda w, at, room: w.u.query_qp(w.have["qp"], response=at)),
    "create_srq": (16, 24, lambda w, at, room: w.u.create_srq(w.have["pd"], room=room, response=at)),
    "query_srq": (16, 0, lambda w, at, room: w.u.call("query_srq", "II", w.have["srq"], 0, answer=16, response=at)),
    # The rights that it has already: what is done stays done.
    "rereg_mr": (8, 0, lambda w, at, room: w.rereg(response=at)),
    "post_send": (4, 0, lambda w, at, room: w.u.doorbell(w.have["qp"], response=at)),
    "ex create_cq": (16, 16, lambda w, at, room: w.u.ex_create_cq(response=at)),
    "ex create_qp": (40, 32, lambda w, at, room: w.u.ex_create_qp(w.have["pd"], w.have["cq"], response=at)),
}


@pytest.mark.parametrize("where", ["nowhere", "null", "kernel", "read-only", "over the edge"])
@pytest.mark.parametrize("verb", ANSWERS)
def test_answer_to(world, verb, where):
    """The object that was made already goes again."""
    core, driver, call = ANSWERS[verb]
    # The last: the core's part can be written, the driver's cannot; without the latter, a half of the former.
    edge = world.read_only - (core if driver else core // 2)
    at = {"nowhere": UNMAPPED, "null": 0, "kernel": KERNEL, "read-only": world.read_only, "over the edge": edge}[where]
    # An extended command without an address is one that wants no answer, and this one has room for one.
    code = EINVAL if where == "null" and verb.startswith("ex ") else EFAULT
    refused(world, code, lambda: call(world, at, driver))


def test_answer_of_an_opened_queue(world):
    """The target that was opened is closed again; it is whose it was."""
    target, number, _ = world.qp(pd=world.have["xrcd"], kind=XRC_TGT)
    world.last = world.books()
    for at in (UNMAPPED, 0, KERNEL, world.read_only, world.read_only - 16):
        refused(world, EFAULT, lambda: world.u.open_qp(world.have["xrcd"], number, response=at))
    world.u.destroy("qp", target)
    world.last = world.books()


@pytest.mark.parametrize("kind", ["cq", "srq", "qp"])
def test_answer_of_an_end(world, kind):
    """What is destroyed is gone, even if the answer got lost."""
    u, have = world.u, world.have
    make = {"cq": lambda: u.create_cq(31)[0], "srq": lambda: u.create_srq(have["pd"], 31)[0], "qp": lambda: world.qp()[0]}[kind]
    for at in (UNMAPPED, 0, KERNEL, world.read_only):
        handle = make()
        with pytest.raises(OSError) as why:
            u.destroy(kind, handle, response=at)
        assert why.value.errno == EFAULT, errno.errorcode[why.value.errno]
        refused(world, ENOENT, lambda: u.destroy(kind, handle))


@pytest.mark.parametrize("key", ["lkey_to", "rkey_to"])
def test_keys_of_a_dma_buf(world, key):
    """One of the two keys has nowhere to go: the region goes again, and with it the buffer."""
    buf = UdmaBuf(4 * PAGE)
    for at in (UNMAPPED, 0, KERNEL, world.read_only):
        refused(world, EFAULT, lambda: uverbs.reg_dmabuf_mr(world.u, world.have["pd"], buf.fd, 0, PAGE, 0, LOCAL, **{key: at}))
    os.close(buf.fd)


@pytest.mark.parametrize("verb", [verb for verb, (_, driver, _) in ANSWERS.items() if driver and not verb.startswith("ex ")])
def test_answer_without_room(world, verb):
    """Too little room for the driver's part, from none to all but one word of it."""
    _, driver, call = ANSWERS[verb]
    for room in range(0, driver, 4):
        refused(world, EINVAL, lambda: call(world, None, room))


def test_commands_cut_short(world):
    """Fewer bytes than the command has, or than its head says; answers smaller than the core's."""
    u = world.u
    for number, size in ((3, 8), (5, 56), (9, 40), (18, 32), (24, 56), (26, 112), (32, 32), (40, 12)):
        for words in range(0, size // 4 - 1):
            refused(world, ENOSPC, lambda: u.write(number, bytes(4 * words), 512))
    with pytest.raises(OSError) as why:
        os.write(u.fd, b"\x03\0\0\0\x05\0\x01\0" + bytes(8))
    assert why.value.errno == EINVAL


# Values.

VALUES = {
    "create_ah: no such port": (EINVAL, lambda w: w.ah(port=2)),
    "create_ah: port 0": (EINVAL, lambda w: w.ah(port=0)),
    "create_ah: no such address of ours": (errno.ENODATA, lambda w: w.ah(sgid_index=255)),
    "create_ah: by LID": (EINVAL, lambda w: w.ah(is_global=0, dlid=5)),
    "create_ah: to no address": (EINVAL, lambda w: w.ah(dgid=bytes(16))),

    "reg_mr: no length": (EINVAL, lambda w: w.reg(length=0)),
    "reg_mr: other place in the page": (EINVAL, lambda w: w.reg(va=w.page.addr + 8)),
    "reg_mr: wraps": (EINVAL, lambda w: w.reg(start=WRAPS, va=WRAPS, length=2 * PAGE)),
    "reg_mr: virtual address wraps": (EINVAL, lambda w: w.reg(va=WRAPS)),
    "reg_mr: all there is": (EINVAL, lambda w: w.reg(length=2**64 - 1)),
    "reg_mr: as much as goes": (EFAULT, lambda w: w.reg(length=2**40)),
    "reg_mr: null": (EFAULT, lambda w: w.reg(start=0, va=0)),
    "reg_mr: kernel": (EFAULT, lambda w: w.reg(start=KERNEL, va=KERNEL)),
    "reg_mr: not canonical": (EFAULT, lambda w: w.reg(start=2**63, va=2**63)),
    "reg_mr: read-only, to be written": (EFAULT, lambda w: w.reg(start=w.read_only, va=w.read_only)),
    "reg_mr: ends in a hole": (EFAULT, lambda w: w.reg(start=UNMAPPED - PAGE, va=UNMAPPED - PAGE, length=2 * PAGE)),
    "reg_mr: unknown right": (EINVAL, lambda w: w.reg(access=1 << 10)),
    "reg_mr: unknown rights": (EINVAL, lambda w: w.reg(access=FAR)),

    "rereg_mr: nothing": (EINVAL, lambda w: w.rereg(flags=0)),
    "rereg_mr: unknown": (EOPNOTSUPP, lambda w: w.rereg(flags=8)),
    "rereg_mr: rights": (EINVAL, lambda w: w.rereg(access=REMOTE_WRITE)),
    "rereg_mr: unknown rights": (EINVAL, lambda w: w.rereg(access=1 << 10)),
    "rereg_mr: no length": (EINVAL, lambda w: w.rereg(flags=uverbs.TRANSLATION, length=0)),
    "rereg_mr: wraps": (EINVAL, lambda w: w.rereg(flags=uverbs.TRANSLATION, start=WRAPS, length=2 * PAGE)),
    "rereg_mr: nowhere": (EFAULT, lambda w: w.rereg(flags=uverbs.TRANSLATION, start=UNMAPPED)),

    "alloc_mw: no kind": (EINVAL, lambda w: uverbs.alloc_mw(w.u, w.have["pd"], 0)),
    "alloc_mw: unknown kind": (EINVAL, lambda w: uverbs.alloc_mw(w.u, w.have["pd"], 3)),

    "advise_mr: unknown": (EOPNOTSUPP, lambda w: uverbs.advise_mr(w.u, w.have["pd"], 3, 1, [(w.page.addr, 1, 1)])),
    "advise_mr: unknown flag": (EINVAL, lambda w: uverbs.advise_mr(w.u, w.have["pd"], 0, 2, [(w.page.addr, 1, 1)])),
    "advise_mr: no such key": (ENOENT, lambda w: uverbs.advise_mr(w.u, w.have["pd"], 0, 1, [(w.page.addr, 1, 1)])),

    "create_cq: nothing": (EINVAL, lambda w: w.u.create_cq(0)),
    "create_cq: too many": (EINVAL, lambda w: w.u.create_cq(MAX_CQE + 1)),
    "create_cq: far too many": (EINVAL, lambda w: w.u.create_cq(FAR)),
    "create_cq: no such vector": (EINVAL, lambda w: w.u.create_cq(vector=w.u.vectors)),
    "create_cq: no such channel": (EBADF, lambda w: w.u.create_cq(channel=999)),
    "create_cq: a channel that is none": (EBADF, lambda w: w.u.create_cq(channel=w.u.fd)),
    "resize_cq: to nothing": (EINVAL, lambda w: w.u.resize_cq(w.have["cq"], 0)),
    "resize_cq: too many": (EINVAL, lambda w: w.u.resize_cq(w.have["cq"], MAX_CQE + 1)),
    "resize_cq: far too many": (EINVAL, lambda w: w.u.resize_cq(w.have["cq"], FAR)),
    "poll_cq: by command": (EOPNOTSUPP, lambda w: w.u.call("poll_cq", "II", w.have["cq"], 1, answer=56)),

    "create_qp: type 0": (EINVAL, lambda w: w.qp(kind=0)),
    "create_qp: management": (EINVAL, lambda w: w.qp(kind=1)),
    "create_qp: raw IPv6": (EINVAL, lambda w: w.qp(kind=5)),
    "create_qp: raw packets": (EOPNOTSUPP, lambda w: w.qp(kind=8)),
    "create_qp: XRC initiator, too many sends": (EINVAL, lambda w: w.qp(kind=XRC_INI, send=(MAX_WR + 1, 1))),
    "create_qp: XRC target, without a domain": (EINVAL, lambda w: w.qp(kind=XRC_TGT)),
    "create_qp: XRC target, no such domain": (EINVAL, lambda w: w.qp(pd=FAR, kind=XRC_TGT)),
    "create_qp: XRC target, domain that is gone": (EINVAL, lambda w: w.qp(pd=w.gone["xrcd"], kind=XRC_TGT)),
    "create_qp: XRC target, foreign domain": (EINVAL, lambda w: w.qp(pd=w.foreign["xrcd"], kind=XRC_TGT)),
    "open_qp: no such number": (EINVAL, lambda w: w.u.open_qp(w.have["xrcd"], 5)),
    "open_qp: far from any": (EINVAL, lambda w: w.u.open_qp(w.have["xrcd"], FAR)),
    "open_qp: no such domain": (EINVAL, lambda w: w.u.open_qp(FAR, 5)),
    "open_qp: another type": (EINVAL, lambda w: w.u.open_qp(w.have["xrcd"], 5, RC)),
    "open_xrcd: no such file": (EBADF, lambda w: w.u.open_xrcd(999)),
    "open_xrcd: nobody has one of this file": (errno.EAGAIN, lambda w: w.u.open_xrcd(w.u.fd)),
    "create_qp: of the driver": (EOPNOTSUPP, lambda w: w.qp(kind=255)),
    "create_qp: unknown type": (EINVAL, lambda w: w.qp(kind=99)),
    "create_qp: too many sends": (EINVAL, lambda w: w.qp(send=(MAX_WR + 1, 1))),
    "create_qp: too many receives": (EINVAL, lambda w: w.qp(recv=(MAX_WR + 1, 1))),
    "create_qp: far too many sends": (EINVAL, lambda w: w.qp(send=(FAR, 1))),
    "create_qp: far too many receives": (EINVAL, lambda w: w.qp(recv=(FAR, 1))),
    "create_qp: long lists to send": (EINVAL, lambda w: w.qp(send=(4, 33))),
    "create_qp: long lists to receive": (EINVAL, lambda w: w.qp(recv=(4, 33))),
    "create_qp: far too long lists": (EINVAL, lambda w: w.qp(send=(4, FAR), recv=(4, FAR))),
    "create_qp: much inline data": (EINVAL, lambda w: w.qp(inline=513)),
    "create_qp: far too much inline data": (EINVAL, lambda w: w.qp(inline=FAR)),
    "create_qp: too many sends, shared queue": (EINVAL, lambda w: w.qp(send=(MAX_WR + 1, 1), srq=w.have["srq"])),

    "modify_qp: no such state": (EINVAL, lambda w: w.to_init(state=7)),
    "modify_qp: far from any state": (EINVAL, lambda w: w.to_init(state=255)),
    "modify_qp: no such current state": (EINVAL, lambda w: w.to_init(mask=2, cur_state=7)),
    "modify_qp: another current state": (EINVAL, lambda w: w.to_init(mask=2, cur_state=RTS)),
    "modify_qp: no such transition": (EINVAL, lambda w: w.to_init(state=RTS)),
    "modify_qp: something is missing": (EINVAL, lambda w: w.to_init(without=PORT)),
    "modify_qp: something is too much": (EINVAL, lambda w: w.to_init(mask=QKEY)),
    "modify_qp: nothing": (EINVAL, lambda w: w.u.modify_qp(w.uc, PORT, port=1)),
    "modify_qp: no such port": (EINVAL, lambda w: w.to_init(port=2)),
    "modify_qp: no such partition": (EINVAL, lambda w: w.to_init(pkey_index=1)),
    "modify_qp: limit of the rate": (EOPNOTSUPP, lambda w: w.to_init(mask=RATE_LIMIT)),
    "modify_qp: bits beyond all": (EOPNOTSUPP, lambda w: w.to_init(mask=1 << 31)),
    "modify_qp: other path, no port": (EINVAL, lambda w: w.to_init(mask=ALT_PATH)),
    "modify_qp: other path": (EINVAL, lambda w: w.to_init(mask=ALT_PATH, alt_port=1, alternative=destination(w.gid))),
    "modify_qp: migration of the path": (EOPNOTSUPP, lambda w: w.to_init(mask=PATH_MIG_STATE, path_mig_state=1)),
    "modify_qp: unknown migration of the path": (EOPNOTSUPP, lambda w: w.to_init(mask=PATH_MIG_STATE, path_mig_state=77)),
    "modify_qp: migration out of place": (EINVAL, lambda w: w.to_init(mask=PATH_MIG_STATE)),
    "modify_qp: address out of place": (EINVAL, lambda w: w.to_init(mask=AV, to=destination(w.gid, w.sgid_index))),
    "modify_qp: address of another port": (EINVAL, lambda w: w.to_init(mask=AV, to=destination(w.gid, port=3))),

    "attach_mcast: to one host": (EINVAL, lambda w: uverbs.attach_mcast(w.u, w.ud, w.gid)),
    "attach_mcast: to none": (EINVAL, lambda w: uverbs.attach_mcast(w.u, w.ud, bytes(16))),
    "attach_mcast: a connected one": (EINVAL, lambda w: uverbs.attach_mcast(w.u, w.have["qp"], GROUP)),
    "detach_mcast: what is not attached": (EINVAL, lambda w: uverbs.detach_mcast(w.u, w.ud, GROUP)),
    "detach_mcast: from one host": (EINVAL, lambda w: uverbs.detach_mcast(w.u, w.ud, w.gid)),

    "post_send: before RTS": (EINVAL, lambda w: w.u.doorbell(w.have["qp"])),
    "post_send: requests that are not there": (ENOSPC, lambda w: w.u.doorbell(w.have["qp"], wr_count=1)),
    "post_send: far too many": (ENOSPC, lambda w: w.u.doorbell(w.have["qp"], wr_count=FAR, sge_count=FAR, wqe_size=FAR)),
    "post_send: small requests": (EINVAL, lambda w: w.u.doorbell(w.have["qp"], wqe_size=16)),
    "post_send: a request, before RTS": (EINVAL, lambda w: w.u.doorbell(w.have["qp"], 1, more=bytes(8) + b"\2\0\0\0" * 30)),
    "post_recv: by command": (EOPNOTSUPP, lambda w: w.u.call("post_recv", "IIII16s", w.have["qp"], 1, 0, 16, bytes(16), answer=4)),
    "post_srq_recv: by command": (EOPNOTSUPP, lambda w: w.u.call("post_srq_recv", "IIII16s", w.have["srq"], 1, 0, 16, bytes(16),
                                                                answer=4)),

    "create_srq: no receives": (EINVAL, lambda w: w.u.create_srq(w.have["pd"], 0)),
    "create_srq: too many": (EINVAL, lambda w: w.u.create_srq(w.have["pd"], MAX_WR + 1)),
    "create_srq: far too many": (EINVAL, lambda w: w.u.create_srq(w.have["pd"], FAR)),
    "create_srq: long lists": (EINVAL, lambda w: w.u.create_srq(w.have["pd"], max_sge=33)),
    "create_srq: far too long lists": (EINVAL, lambda w: w.u.create_srq(w.have["pd"], max_sge=FAR)),
    "create_xsrq: no receives": (EINVAL, lambda w: w.u.create_xsrq(w.have["pd"], w.have["xrcd"], w.have["cq"], 0)),
    "create_xsrq: far too many": (EINVAL, lambda w: w.u.create_xsrq(w.have["pd"], w.have["xrcd"], w.have["cq"], FAR)),
    "create_xsrq: long lists": (EINVAL, lambda w: w.u.create_xsrq(w.have["pd"], w.have["xrcd"], w.have["cq"], max_sge=33)),
    "create_xsrq: no such XRC domain": (EINVAL, lambda w: w.u.create_xsrq(w.have["pd"], FAR, w.have["cq"])),
    "create_xsrq: foreign XRC domain": (EINVAL, lambda w: w.u.create_xsrq(w.have["pd"], w.foreign["xrcd"], w.have["cq"])),
    "create_xsrq: unknown kind": (EOPNOTSUPP, lambda w: w.u.create_xsrq(w.have["pd"], w.have["xrcd"], w.have["cq"], kind=9)),
    "create_xsrq: tag matching": (EOPNOTSUPP, lambda w: w.u.call("create_xsrq", "QIIIIIIII", 0, 2, w.have["pd"], 10, 1, 0, 4, 0,
                                                                w.have["cq"], answer=40)),
    "modify_srq: unknown": (EINVAL, lambda w: w.u.modify_srq(w.have["srq"], 4)),
    "modify_srq: limit beyond the size": (EINVAL, lambda w: w.u.modify_srq(w.have["srq"], SRQ_LIMIT, limit=32)),
    "modify_srq: limit far beyond": (EINVAL, lambda w: w.u.modify_srq(w.have["srq"], SRQ_LIMIT, limit=FAR)),
    "modify_srq: no receives": (EINVAL, lambda w: w.u.modify_srq(w.have["srq"], SRQ_MAX_WR, max_wr=0)),
    "modify_srq: too many": (EINVAL, lambda w: w.u.modify_srq(w.have["srq"], SRQ_MAX_WR, max_wr=MAX_WR + 1)),
    "modify_srq: no address": (EINVAL, lambda w: w.u.modify_srq(w.have["srq"], SRQ_MAX_WR, max_wr=8, driver=b"")),
    "modify_srq: half an address": (EINVAL, lambda w: w.u.modify_srq(w.have["srq"], SRQ_MAX_WR, max_wr=8, driver=b"1234")),
    "modify_srq: more than an address": (EOPNOTSUPP, lambda w: w.u.modify_srq(w.have["srq"], SRQ_MAX_WR, max_wr=8,
                                                                             driver=b"x" * 16)),
    "modify_srq: answer to nowhere": (EFAULT, lambda w: w.u.modify_srq(w.have["srq"], SRQ_MAX_WR, max_wr=8, address=UNMAPPED)),
    "modify_srq: answer to the kernel": (EFAULT, lambda w: w.u.modify_srq(w.have["srq"], SRQ_MAX_WR, max_wr=8, address=KERNEL)),
    "modify_srq: answer to read-only memory": (EFAULT, lambda w: w.u.modify_srq(w.have["srq"], SRQ_MAX_WR, max_wr=8,
                                                                               address=w.read_only)),
}


@pytest.mark.parametrize("row", VALUES)
def test_value(world, row):
    code, call = VALUES[row]
    refused(world, code, lambda: call(world))


# The extended commands: number, size of the command and of its answer.
EX_MODIFY_CQ = (57, 16, 0)
EX_OTHERS = {"create_flow": (50, 24, 8), "destroy_flow": (51, 8, 0), "create_wq": (52, 40, 24), "modify_wq": (53, 24, 0),
             "destroy_wq": (54, 8, 16), "create_rwq_ind_tbl": (55, 8, 16), "destroy_rwq_ind_tbl": (56, 8, 0)}
OBJECTS = {"flow action": 13, "device memory": 14, "counters": 15, "DMA handle": 17}
TIMESTAMP, IGNORE_OVERRUN = 1, 2
"""enum ib_uverbs_ex_create_cq_flags"""


def create_cq_by_ioctl(w, flags=0, cqe=16, vector=0, to=None):
    kept = ctypes.create_string_buffer(24)
    at = ctypes.addressof(kept)
    return uverbs.ioctl(w.u, 3, 0, [(0, 0, 0), (1, 4, cqe), (2, 8, 0), (4, 4, vector), (5, 4, flags),
                                    (6, 4, at if to is None else to), (4097, 16, at + 8)])[0]


EXTENDED = {
    "ex create_cq: timestamps": (EOPNOTSUPP, lambda w: w.u.ex_create_cq(flags=TIMESTAMP)),
    "ex create_cq: overruns ignored": (EOPNOTSUPP, lambda w: w.u.ex_create_cq(flags=IGNORE_OVERRUN)),
    "ex create_cq: unknown flags": (EOPNOTSUPP, lambda w: w.u.ex_create_cq(flags=FAR)),
    "ex create_cq: mask": (EINVAL, lambda w: w.u.ex_create_cq(mask=1)),
    "ex create_cq: reserved": (EINVAL, lambda w: w.u.ex_create_cq(reserved=1)),
    "ex create_cq: no such vector": (EINVAL, lambda w: w.u.ex_create_cq(vector=w.u.vectors)),
    "ex create_cq: nothing": (EINVAL, lambda w: w.u.ex_create_cq(cqe=0)),
    "ex create_cq: too many": (EINVAL, lambda w: w.u.ex_create_cq(cqe=MAX_CQE + 1)),
    "ioctl create_cq: timestamps": (EOPNOTSUPP, lambda w: create_cq_by_ioctl(w, TIMESTAMP)),
    "ioctl create_cq: overruns ignored": (EOPNOTSUPP, lambda w: create_cq_by_ioctl(w, IGNORE_OVERRUN)),
    "ioctl create_cq: unknown flag": (EINVAL, lambda w: create_cq_by_ioctl(w, 4)),
    "ioctl create_cq: nothing": (EINVAL, lambda w: create_cq_by_ioctl(w, cqe=0)),
    "ioctl create_cq: too many": (EINVAL, lambda w: create_cq_by_ioctl(w, cqe=MAX_CQE + 1)),
    "ioctl create_cq: no such vector": (EINVAL, lambda w: create_cq_by_ioctl(w, vector=w.u.vectors)),
    "ioctl create_cq: answer to nowhere": (EFAULT, lambda w: create_cq_by_ioctl(w, to=UNMAPPED)),
    **{f"ex create_qp: flag {bit}": (code, lambda w, bit=bit: w.u.ex_create_qp(w.have["pd"], w.have["cq"], flags=1 << bit))
       for code, bits in ((EOPNOTSUPP, (1, 2, 3, 4, 8, 9, 10, 11)), (EINVAL, (0, 5, 6, 7, 12, 31))) for bit in bits},
    "ex create_qp: unknown mask": (EINVAL, lambda w: w.u.ex_create_qp(w.have["pd"], w.have["cq"], mask=2)),
    "ex create_qp: table of queues": (EINVAL, lambda w: w.u.ex_create_qp(w.have["pd"], w.have["cq"], mask=1, table=1)),
    "ex create_qp: reserved": (EINVAL, lambda w: w.u.ex_create_qp(w.have["pd"], w.have["cq"], reserved=1)),
    "ex modify_cq: moderation": (EOPNOTSUPP, lambda w: extended(w, EX_MODIFY_CQ, struct.pack("=IIHHI", w.have["cq"], 1, 8, 8, 0))),
    "ex modify_cq: nothing": (EOPNOTSUPP, lambda w: extended(w, EX_MODIFY_CQ, struct.pack("=IIHHI", w.have["cq"], 0, 8, 8, 0))),
    **{f"ex {name}": (EOPNOTSUPP, lambda w, verb=verb: extended(w, verb)) for name, verb in EX_OTHERS.items()},
    **{f"ioctl {name}, method {method}": (errno.EPROTONOSUPPORT,
                                          lambda w, obj=obj, method=method: uverbs.ioctl(w.u, obj, method, [(0, 0, 0)]))
       for name, obj in OBJECTS.items() for method in (0, 1)},
    "ioctl: no such object": (errno.EPROTONOSUPPORT, lambda w: uverbs.ioctl(w.u, 99, 0, [])),
    "ioctl: no such method": (errno.EPROTONOSUPPORT, lambda w: uverbs.ioctl(w.u, 3, 99, [])),
    "ex: no such command": (EOPNOTSUPP, lambda w: extended(w, (62, 8, 0))),
    "create_qp: shared queue for extended connections": (EINVAL, lambda w: w.qp(srq=w.xsrq)),
}


def extended(w, verb, body=None):
    number, size, answer = verb
    w.u.ex(number, body or bytes(size), answer)


@pytest.mark.parametrize("row", EXTENDED)
def test_extended(world, row):
    code, call = EXTENDED[row]
    refused(world, code, lambda: call(world))


def test_send_by_command(world):
    """What is posted is in the ring: a request in the command is not done, and that is said."""
    u = world.u
    qp = u.create_qp(world.have["pd"], world.have["cq"], kind=UC)[0]
    u.modify_qp(qp, STATE | PKEY_INDEX | PORT | ACCESS_FLAGS, state=INIT, port=1)
    u.modify_qp(qp, STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN, state=RTR, path_mtu=3, dest_qpn=5,
                to=destination(world.gid, world.sgid_index))
    u.modify_qp(qp, STATE | SQ_PSN, state=RTS)
    u.doorbell(qp)
    with pytest.raises(OSError) as why:
        u.doorbell(qp, 1, more=bytes(128))
    assert why.value.errno == EINVAL
    u.destroy("qp", qp)


def rights_of_a_region(access):
    """The errno for a combination of rights; None: allowed."""
    if access & (REMOTE_WRITE | ATOMIC) and not access & LOCAL:
        return EINVAL
    if access & FLUSH_PERSISTENT:
        return EINVAL  # this memory is not
    if access & HUGETLB and not access & ON_DEMAND:
        return EINVAL
    return None


def test_rights(world):
    """Each combination of the rights that there are, for a new region and for one that is there; those that drivers may
    ignore change nothing."""
    before, optional = world.books(), 0x3ff << 20
    for access in range(1024):
        wanted = rights_of_a_region(access)
        for extra in (0, optional):
            try:
                uverbs.dereg_mr(world.u, world.reg(access=access | extra)[0])
                got = None
            except OSError as why:
                got = why.errno
            assert got == wanted, f"{access:#x}: {got} instead of {wanted}"
    assert world.books() == before


@pytest.mark.parametrize("kind", [RC, UC, UD])
def test_sizes_of_zero(world, kind):
    """Queues of nothing are queues of at least that."""
    handle, _, caps = world.qp(kind=kind, send=(0, 0), recv=(0, 0))
    assert all(n < 1 << 15 for n in caps)
    world.u.destroy("qp", handle)


# Mapping.

def test_mapping(world):
    """Where nothing can be mapped, more than there is, or privately; of another program, or what is gone."""
    u = world.u
    cq, _, info = u.create_cq(100)

    def refused_map(length, offset, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE, fd=u.fd):
        with pytest.raises(OSError) as why:
            mmap.mmap(fd, length, flags, prot, offset=offset)
        assert why.value.errno == EINVAL, errno.errorcode[why.value.errno]

    for length, offset in ((PAGE, 0), (info.size + PAGE, info.offset), (PAGE, info.offset + info.size + (1 << 30)),
                           (PAGE, 1 << 43), (info.size, info.offset + PAGE)):
        refused_map(length, offset)
    refused_map(info.size, info.offset, mmap.MAP_PRIVATE)
    refused_map(info.size, info.offset, mmap.MAP_PRIVATE, mmap.PROT_READ)
    with Uverbs(world.dev) as fresh:
        refused_map(info.size, info.offset, fd=fresh.fd)
    # The whole, the start, twice: fine.
    for length in (info.size, PAGE, info.size):
        mmap.mmap(u.fd, length, mmap.MAP_SHARED, offset=info.offset).close()
    u.destroy("cq", cq)
    refused_map(info.size, info.offset)
