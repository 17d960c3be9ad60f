# SPDX-License-Identifier: GPL-2.0
"""RC and UC queue pairs through pyverbs, for tests that post their own work and look at each completion.

One process opens both devices, so a test holds both ends:

    with pair("ferroce1", "ferroce2") as (a, b):
        b.recv(0, 4096)
        a.send(0, 4096)
        assert a.done() == OK and b.done() == OK
"""

import contextlib
import os
import random
import select
import time
from collections import Counter

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from testbed import SLOW, gids

OK = e.IBV_WC_SUCCESS
FULL_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
MTU = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}
STATUS = {getattr(e, n): n[len("IBV_WC_"):] for n in dir(e) if n.startswith("IBV_WC_") and (
    n.endswith("_ERR") or n == "IBV_WC_SUCCESS")}

RTR_MASK = (e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN |
            e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER)
RTS_MASK = (e.IBV_QP_STATE | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_SQ_PSN |
            e.IBV_QP_MAX_QP_RD_ATOMIC)
UC_RTR_MASK = RTR_MASK & ~(e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER)
UC_RTS_MASK = e.IBV_QP_STATE | e.IBV_QP_SQ_PSN
INIT_MASK = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS


def status_name(status):
    return STATUS.get(status, str(status))


def all_good(done):
    """Each completion is one of success; if not, it says how many are of which status."""
    assert all(w.status == OK for w in done), str(Counter(status_name(w.status) for w in done))


def pattern(length, seed):
    """Bytes that differ from place to place and from seed to seed."""
    return random.Random(seed).randbytes(length)


def event_fds():
    """This process' file descriptors on which verbs events arrive."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "infinibandevent" in os.readlink(f"/proc/self/fd/{fd}"):
                found.add(int(fd))
        except OSError:
            pass
    return found


def readable(fd, timeout):
    return bool(select.select([fd], [], [], timeout)[0])


class Endpoint:
    """A device opened, with one PD, CQ, MR and QP. share: take all but the QP from another endpoint; ex: make a QPEx with
    these operations; srq: the receives of this QP and of those that share come from a shared receive queue of that size."""

    def __init__(self, dev, *, length=1 << 16, depth=32, cqe=None, sge=1, inline=0, access=FULL_ACCESS,
                 channel=False, sq_sig_all=False, share=None, kind=e.IBV_QPT_RC, ex=0, srq=0):
        self.dev, self.owner, self.kind = dev, share is None, kind
        if share:
            self.ctx, self.async_fd, self.pd, self.mr = share.ctx, share.async_fd, share.pd, share.mr
            self.channel, self.channel_fd, self.cq = share.channel, share.channel_fd, share.cq
            self.srq = share.srq
        else:
            before = event_fds()
            self.ctx = Context(name=dev)
            self.async_fd = (event_fds() - before).pop()
            self.pd = PD(self.ctx)
            before = event_fds()
            self.channel = CompChannel(self.ctx) if channel else None
            self.channel_fd = (event_fds() - before).pop() if channel else None
            self.cq = CQ(self.ctx, cqe or 2 * depth, None, self.channel, 0)
            self.mr = MR(self.pd, length, access)
            self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=srq, max_sge=sge))) if srq else None
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=sge, max_recv_sge=sge, max_inline_data=inline)
        work = {"qp_type": kind, "scq": self.cq, "rcq": self.cq, "cap": cap, "sq_sig_all": int(sq_sig_all),
                "srq": self.srq}
        if ex:
            mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            self.qp = QPEx(self.ctx, QPInitAttrEx(**work, pd=self.pd, send_ops_flags=ex, comp_mask=mask), None)
        else:
            self.qp = QP(self.pd, QPInitAttr(**work), None)
        self.psn = random.getrandbits(24)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.qp.close()
        for thing in () if not self.owner else (self.srq, self.mr, self.cq, self.channel, self.pd, self.ctx):
            if thing is not None:
                thing.close()

    # Connection.

    def gid_index(self, ip_version):
        """The index of an IPv4 GID, or of an IPv6 one that is not link-local."""
        for i, gid in gids(self.dev).items():
            v4 = gid.startswith("0000:0000:0000:0000:0000:ffff")
            if v4 == (ip_version == 4) and not gid.startswith("fe80"):
                return i
        raise AssertionError(f"no IPv{ip_version} GID on {self.dev}")

    def gid(self, index):
        return self.ctx.query_gid(1, index)

    def to_init(self, access=FULL_ACCESS):
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attr.pkey_index = 0
        attr.qp_access_flags = access
        self.qp.modify(attr, INIT_MASK)

    def path(self, dgid, sgid_index, tclass=0, hop_limit=64, flow_label=0, sl=0):
        route = GlobalRoute(dgid=dgid, sgid_index=sgid_index, hop_limit=hop_limit, flow_label=flow_label)
        route.traffic_class = tclass
        return AHAttr(port_num=1, is_global=1, gr=route, sl=sl)

    def rtr_attr(self, dgid, sgid_index, dest_qpn, rq_psn, *, mtu=1024, max_dest_rd=16, min_rnr_timer=1, **path):
        attr = QPAttr(qp_state=e.IBV_QPS_RTR, port_num=1)
        attr.ah_attr = self.path(dgid, sgid_index, **path)
        attr.path_mtu = MTU[mtu]
        attr.dest_qp_num = dest_qpn
        attr.rq_psn = rq_psn
        attr.max_dest_rd_atomic = max_dest_rd
        attr.min_rnr_timer = min_rnr_timer
        return attr

    def rts_attr(self, *, timeout=14, retry=7, rnr_retry=7, max_rd=16):
        attr = QPAttr(qp_state=e.IBV_QPS_RTS, port_num=1)
        attr.timeout, attr.retry_cnt, attr.rnr_retry = timeout, retry, rnr_retry
        attr.sq_psn = self.psn
        attr.max_rd_atomic = max_rd
        return attr

    def connect(self, peer, ip=4, *, access=FULL_ACCESS, rts=True, timeout=14, retry=7, rnr_retry=7, max_rd=16, **rtr):
        """INIT, RTR and, with rts, RTS, towards another endpoint. Where all is slow, the timeout (0: none) is longer."""
        timeout = timeout and timeout + SLOW.bit_length() - 1
        self.to_init(access)
        self.qp.modify(self.rtr_attr(peer.gid(peer.gid_index(ip)), self.gid_index(ip), peer.qp.qp_num, peer.psn, **rtr),
                       RTR_MASK if self.kind == e.IBV_QPT_RC else UC_RTR_MASK)
        if rts:
            self.qp.modify(self.rts_attr(timeout=timeout, retry=retry, rnr_retry=rnr_retry, max_rd=max_rd),
                           RTS_MASK if self.kind == e.IBV_QPT_RC else UC_RTS_MASK)

    def state(self):
        return self.qp.query(e.IBV_QP_STATE)[0].qp_state

    def to_state(self, state):
        self.qp.modify(QPAttr(qp_state=state, port_num=1), e.IBV_QP_STATE)

    # Work. An offset and a length name a piece of the MR; sgl a list of (offset, length).

    def sges(self, off, length, sgl=None, mr=None, lkey=None):
        mr = mr or self.mr
        return [SGE(mr.buf + o, n, mr.lkey if lkey is None else lkey) for o, n in (sgl or [(off, length)])]

    def recv(self, off=0, length=0, wr_id=0, sgl=None, mr=None, lkey=None):
        sg = self.sges(off, length, sgl, mr, lkey)
        wr = RecvWR(wr_id=wr_id, num_sge=len(sg), sg=sg)
        wr.num_sge = len(sg) if sgl or length else 0
        (self.srq or self.qp).post_recv(wr)

    def work(self, opcode, off=0, length=0, *, wr_id=0, flags=e.IBV_SEND_SIGNALED, remote=None, imm=0, sgl=None,
             mr=None, lkey=None):
        """A send work request; remote is (address, rkey)."""
        sg = self.sges(off, length, sgl, mr, lkey)
        wr = SendWR(wr_id=wr_id, opcode=opcode, num_sge=len(sg), imm_data=imm, sg=sg, send_flags=flags)
        wr.num_sge = len(sg) if sgl or length else 0
        if remote:
            wr.set_wr_rdma(remote[1], remote[0])
        return wr

    def post(self, opcode, *args, **kw):
        self.qp.post_send(self.work(opcode, *args, **kw))

    def send(self, off=0, length=0, **kw):
        self.post(e.IBV_WR_SEND, off, length, **kw)

    def write(self, off, length, remote, **kw):
        self.post(e.IBV_WR_RDMA_WRITE, off, length, remote=remote, **kw)

    def read(self, off, length, remote, **kw):
        self.post(e.IBV_WR_RDMA_READ, off, length, remote=remote, **kw)

    def fetch_add(self, off, remote, add, **kw):
        self._atomic(e.IBV_WR_ATOMIC_FETCH_AND_ADD, off, remote, add, 0, **kw)

    def compare_swap(self, off, remote, compare, swap, **kw):
        self._atomic(e.IBV_WR_ATOMIC_CMP_AND_SWP, off, remote, compare, swap, **kw)

    def _atomic(self, opcode, off, remote, compare_add, swap, **kw):
        wr = self.work(opcode, off, 8, **kw)
        wr.set_wr_atomic(remote[1], remote[0], compare_add, swap)
        self.qp.post_send(wr)

    def at(self, off=0, mr=None):
        """The remote address of a place in the MR, for the peer's RDMA."""
        mr = mr or self.mr
        return mr.buf + off, mr.rkey

    # Completions.

    def poll(self, count=1, timeout=60):
        """Exactly count completions, or an AssertionError with those that came."""
        got, end = [], time.monotonic() + timeout * SLOW
        while len(got) < count:
            n, wcs = self.cq.poll(count - len(got))
            got += wcs
            if not n:
                assert time.monotonic() < end, (f"{len(got)} of {count} completions on {self.dev} within {timeout * SLOW} s: "
                                                f"{[(w.wr_id, status_name(w.status)) for w in got]}")
                time.sleep(0.001)
        return got

    def done(self, timeout=60):
        """The status of the next completion."""
        return self.poll(1, timeout)[0].status

    def nothing(self, seconds=0.3):
        """No completion comes for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            n, wcs = self.cq.poll(1)
            assert not n, f"unexpected completion: {wcs[0]}"
            time.sleep(0.005)

    def events(self, timeout=0):
        """Async events that are there within timeout, as numbers; each is acknowledged."""
        out = []
        while readable(self.async_fd, timeout if not out else 0):
            event = self.ctx.get_async_event()
            out.append(event.event_type)
            event.ack()
        return out

    def wait_event(self, wanted, timeout=30):
        seen, end = [], time.monotonic() + timeout * SLOW
        while wanted not in seen:
            left = end - time.monotonic()
            assert left > 0, f"no async event {wanted} on {self.dev}, but {seen}"
            seen += self.events(left)
        return seen


class Remote:
    """The other end of a connection when it is in another process."""

    gid, gid_index = Endpoint.gid, Endpoint.gid_index

    def __init__(self, dev, qp_num, psn):
        self.dev, self.ctx, self.qp, self.qp_num, self.psn = dev, Context(name=dev), self, qp_num, psn


@contextlib.contextmanager
def pair(dev_a, dev_b, ip=4, *, a=None, b=None, connect=None, a_connect=None, b_connect=None, **opts):
    """Two connected endpoints. opts go to both Endpoints, a and b (dicts) to one; likewise for Endpoint.connect."""
    with contextlib.ExitStack() as stack:
        ends = []
        for dev, own in ((dev_a, a), (dev_b, b)):
            ends.append(Endpoint(dev, **{**opts, **(own or {})}))
            stack.callback(ends[-1].close)
        for end, peer, own in ((ends[0], ends[1], a_connect), (ends[1], ends[0], b_connect)):
            end.connect(peer, ip, **{**(connect or {}), **(own or {})})
        yield ends
