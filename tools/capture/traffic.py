#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""traffic.py DEV_A DEV_B GID_PREFIX [placement]: one of every packet, between two RDMA devices of this host.

Opens both devices (RDMA namespaces shared), connects queue pairs between them and sends each
operation with payloads of every padding, one at a time, so that the order of packets is always
the same. GID_PREFIX picks the GIDs, e.g. "::ffff:" for IPv4. With "placement": only ATOMIC WRITE and FLUSH.
"""

import ipaddress
import random
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR

ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
          | e.IBV_ACCESS_REMOTE_ATOMIC | e.IBV_ACCESS_FLUSH_GLOBAL)
SIZE = 8192
MTU = 256
# Every padding, in one packet and in the last of several; nothing; full packets only.
SIZES = [0, 1, 2, 3, 4, 33, 255, 256, 257, 514, 771, 768]
SHORT_SIZES = [0, 1, 2, 3, 4, 255, 256]
QKEY = 0x11223344


class End:
    """One device with a memory region and a completion queue."""

    def __init__(self, name, prefix, seed):
        self.ctx = Context(name=name)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 64)
        self.mr = MR(self.pd, SIZE, ACCESS)
        self.mr.write(random.Random(seed).randbytes(SIZE), SIZE)
        for self.index in range(self.ctx.query_port(1).gid_tbl_len):
            self.gid = str(self.ctx.query_gid(1, self.index)).split("gid")[-1].strip(": ")
            if ipaddress.ip_address(self.gid) in ipaddress.ip_network(prefix):
                return
        sys.exit(f"{name}: no GID in {prefix}")

    def route(self, peer):
        """Address of the peer, as seen from here."""
        route = GlobalRoute(dgid=peer.ctx.query_gid(1, peer.index), sgid_index=self.index)
        return AHAttr(port_num=1, is_global=1, gr=route)

    def qp(self, kind):
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        attr.qp_access_flags = ACCESS
        return QP(self.pd, init, attr)

    def qp_ex(self):
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttrEx(
            qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1, pd=self.pd,
            send_ops_flags=e.IBV_QP_EX_WITH_FLUSH | e.IBV_QP_EX_WITH_ATOMIC_WRITE,
            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        return QPEx(self.ctx, init, attr)

    def sge(self, length):
        return [SGE(self.mr.buf, length, self.mr.lkey)]

    def completions(self, count):
        """Waits for so many completions."""
        got = []
        until = time.monotonic() + 10
        while len(got) < count:
            if time.monotonic() > until:
                sys.exit(f"{len(got)} completions instead of {count}")
            got += self.cq.poll()[1]
        return got


class Pair:
    """Two queue pairs, of one kind, that can talk to each other."""

    def __init__(self, a, b, kind, psn, ex=False):
        self.a, self.b, self.kind, self.psn = a, b, kind, psn
        self.qa, self.qb = (a.qp_ex(), b.qp_ex()) if ex else (a.qp(kind), b.qp(kind))
        if kind != e.IBV_QPT_UD:
            self.connect(self.qa, a, self.qb, b, psn, psn + 0x1000)
            self.connect(self.qb, b, self.qa, a, psn + 0x1000, psn)
        self.address = AH(a.pd, attr=a.route(b)) if kind == e.IBV_QPT_UD else None

    def connect(self, qp, end, peer_qp, peer, sq_psn, rq_psn):
        attr = QPAttr(port_num=1)
        attr.dest_qp_num = peer_qp.qp_num
        attr.path_mtu = e.IBV_MTU_256
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer = 12
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
        attr.qp_access_flags = ACCESS
        attr.sq_psn, attr.rq_psn = sq_psn & 0xffffff, rq_psn & 0xffffff
        attr.ah_attr = end.route(peer)
        qp.to_rts(attr)

    def receive(self):
        self.qb.post_recv(RecvWR(num_sge=1, sg=self.b.sge(SIZE)))

    def post(self, opcode, length=0, imm=0x01020304, flags=0, remote=None, atomic=None):
        wr = SendWR(opcode=opcode, num_sge=1, sg=self.a.sge(length),
                    send_flags=e.IBV_SEND_SIGNALED | flags, imm_data=imm)
        if remote:
            wr.set_wr_rdma(*remote)
        if atomic:
            wr.set_wr_atomic(*atomic)
        if self.address:
            wr.set_wr_ud(self.address, self.qb.qp_num, QKEY)
        self.qa.post_send(wr)

    def do(self, opcode, *args, receives=False, **kwargs):
        """One operation, to its end on both sides."""
        if receives:
            self.receive()
        self.post(opcode, *args, **kwargs)
        self.a.completions(1)
        if receives:
            self.b.completions(1)


def placement(a, b):
    """ATOMIC WRITE and FLUSH of both kinds, and one that is refused."""
    pair = Pair(a, b, e.IBV_QPT_RC, 0x4000, ex=True)
    qp, key, address = pair.qa, b.mr.rkey, b.mr.buf

    def post(call, *args):
        qp.wr_start()
        qp.wr_id, qp.wr_flags = 1, e.IBV_SEND_SIGNALED
        call(*args)
        qp.wr_complete()
        a.completions(1)
    post(qp.wr_atomic_write, key, address + 8, b"\x01\x02\x03\x04\x05\x06\x07\x08")
    post(qp.wr_flush, key, address + 3, 4097, e.IBV_FLUSH_GLOBAL, e.IBV_FLUSH_RANGE)
    post(qp.wr_flush, key, address, 0, e.IBV_FLUSH_GLOBAL, e.IBV_FLUSH_MR)
    post(qp.wr_flush, key, address, 77, e.IBV_FLUSH_GLOBAL | e.IBV_FLUSH_PERSISTENT, e.IBV_FLUSH_RANGE)


def main():
    network = sys.argv[3]
    a, b = End(sys.argv[1], network, 1), End(sys.argv[2], network, 2)
    there = (b.mr.rkey, b.mr.buf)
    if sys.argv[4:] == ["placement"]:
        placement(a, b)
        time.sleep(0.2)
        return

    rc = Pair(a, b, e.IBV_QPT_RC, 0xfffff0)
    for size in SIZES:
        rc.do(e.IBV_WR_SEND, size, receives=True)
        rc.do(e.IBV_WR_SEND_WITH_IMM, size, receives=True, flags=e.IBV_SEND_SOLICITED)
        rc.do(e.IBV_WR_RDMA_WRITE, size, remote=there)
        rc.do(e.IBV_WR_RDMA_WRITE_WITH_IMM, size, remote=there, receives=True)
        rc.do(e.IBV_WR_RDMA_READ, size, remote=there)
    rc.do(e.IBV_WR_ATOMIC_CMP_AND_SWP, 8, atomic=(b.mr.rkey, b.mr.buf + 16, 5, 6))
    rc.do(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, atomic=(b.mr.rkey, b.mr.buf + 16, 7, 0))

    # Not ready: the receive is posted 20 ms later.
    rc.post(e.IBV_WR_SEND, 77)
    time.sleep(0.02)
    rc.receive()
    a.completions(1)
    b.completions(1)

    # Refused: access, and an invalidation of a key that cannot be invalidated.
    bad = Pair(a, b, e.IBV_QPT_RC, 0x1000)
    bad.do(e.IBV_WR_RDMA_WRITE, 5, remote=(b.mr.rkey ^ 0xff, b.mr.buf))
    for size in (6, 300):
        invalidate = Pair(a, b, e.IBV_QPT_RC, 0x2000 + size)
        invalidate.receive()
        invalidate.post(e.IBV_WR_SEND_WITH_INV, size, imm=b.mr.rkey)
        time.sleep(0.2)
        a.cq.poll(16)
        b.cq.poll(16)

    uc = Pair(a, b, e.IBV_QPT_UC, 0x3000)
    for size in SIZES:
        uc.do(e.IBV_WR_SEND, size, receives=True)
        uc.do(e.IBV_WR_SEND_WITH_IMM, size, receives=True)
        uc.do(e.IBV_WR_RDMA_WRITE, size, remote=there)
        uc.do(e.IBV_WR_RDMA_WRITE_WITH_IMM, size, remote=there, receives=True)

    ud = Pair(a, b, e.IBV_QPT_UD, 0)
    for size in SHORT_SIZES:
        ud.do(e.IBV_WR_SEND, size, receives=True)
        ud.do(e.IBV_WR_SEND_WITH_IMM, size, receives=True)
    time.sleep(0.2)


main()
