// SPDX-License-Identifier: GPL-2.0
//! The world around a QP while its lock is held: memory, queues, completions, events.
//!
//! Nothing outside is called from here. Handlers that become due are noted in [`Effects`] and
//! called once the lock is dropped.

use super::{
    fault::Missing,
    inbound::{
        Inbound,
        Payload, //
    },
    memory::length,
    sends,
    Core,
    Io,
    QueuePair, //
};
use crate::{
    completion::CompletionQueue,
    region,
    uapi::access,
    xrc::{
        XrcName,
        XrcQueue, //
    }, //
};
use core::{
    cell::Cell,
    ops::Range, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Full,
            Relaxed, //
        },
        barrier,
        rcu,
        ArcBorrow, //
    }, //
};
use rdma::{
    net::IpHeader,
    verbs::{
        NetworkHeader,
        QpEvent as VerbsEvent,
        SrqEvent,
        Wc,
        WcExtra,
        WcOpcode,
        WcStatus as VerbsStatus, //
    }, //
};
use roce::{
    cqe::{
        RecvCqe,
        RecvData,
        SendCqe,
        SendCqeOp,
        WcStatus, //
    },
    env::{
        Counter,
        CqOverflow,
        Env,
        MemoryError,
        QpEvent,
        Receive,
        RemoteAccess, //
    },
    qp::state::{
        QpKind,
        QpState, //
    },
    types::{
        Instant,
        RKey,
        Srqn, //
    },
    wire::{
        Feth,
        Selectivity, //
    },
    wqe::{
        AtomicOp,
        LocalOp, //
    }, //
};

/// What is due once the QP's lock is dropped.
#[derive(Default)]
pub(super) struct Effects {
    notify_send: bool,
    notify_recv: bool,
    overflow_send: bool,
    overflow_recv: bool,
    /// Of the receive queue that the QP shares.
    receives_low: bool,
    receives_broken: bool,
    /// The queue that the receives above are about, if a request named it. Only one at a time: see
    /// [`Self::is_full`].
    xrc: Option<XrcName>,
    /// One bit for each [`QpEvent`].
    events: u8,
}

/// Which header came with a datagram, as adapters tell in the service level of its completion.
const L3_IPV6: u8 = 1;
const L3_IPV4: u8 = 2;

/// Events in the order of their bits in [`Effects::events`].
const EVENTS: [(QpEvent, VerbsEvent); 6] = [
    (QpEvent::CommEst, VerbsEvent::CommEst),
    (QpEvent::SqDrained, VerbsEvent::SqDrained),
    (QpEvent::ReqErr, VerbsEvent::ReqErr),
    (QpEvent::AccessErr, VerbsEvent::AccessErr),
    (QpEvent::Fatal, VerbsEvent::Fatal),
    // Behind all others: the consumer may destroy the QP.
    (QpEvent::LastWqe, VerbsEvent::LastWqeReached),
];

impl Effects {
    /// Whether something is due for a queue that a request named: the next request may name another.
    pub(super) fn is_full(&self) -> bool {
        self.xrc.is_some()
    }

    /// What is due for the queue that a request named, if it still exists.
    fn deliver_xrc(&self, qp: &QueuePair, name: XrcName) {
        let rcu = rcu::read_lock();
        let found = qp.port.xrc_queues.get(&rcu, name.number);
        let Some(xrc) = found.filter(|xrc| xrc.name == name) else {
            return;
        };
        if self.overflow_recv {
            xrc.cq.report_overflow();
        }
        if self.receives_broken {
            xrc.receives.report(SrqEvent::Error);
        }
        if self.receives_low {
            xrc.receives.report(SrqEvent::LimitReached);
        }
        if self.notify_recv {
            xrc.cq.notify();
        }
    }

    /// Whether nothing is due.
    #[inline]
    fn is_empty(&self) -> bool {
        let handlers = self.notify_send | self.notify_recv;
        let overflows = self.overflow_send | self.overflow_recv;
        let receives = self.receives_low | self.receives_broken;
        !(handlers | overflows | receives) && self.xrc.is_none() && self.events == 0
    }

    /// Calls the handlers that are due.
    ///
    /// # Context
    ///
    /// Process or softirq context, no lock held.
    #[inline]
    pub(super) fn deliver(self, qp: &QueuePair) {
        if !self.is_empty() {
            self.call(qp);
        }
    }

    /// [`Self::deliver`], where something is due.
    #[inline(never)]
    fn call(self, qp: &QueuePair) {
        let send_cq = qp.send_cq.as_deref();
        let recv_cq = qp.recv_cq.as_deref();
        if let Some(cq) = send_cq.filter(|_| self.overflow_send) {
            cq.report_overflow();
        }
        if let Some(cq) = recv_cq.filter(|_| self.overflow_recv) {
            cq.report_overflow();
        }
        if self.receives_broken {
            qp.receives.report(SrqEvent::Error);
        }
        if self.receives_low {
            qp.receives.report(SrqEvent::LimitReached);
        }
        if let Some(cq) = send_cq.filter(|_| self.notify_send) {
            cq.notify();
        }
        // One queue for both directions is told once.
        let told = |cq: &CompletionQueue| {
            self.notify_send && send_cq.is_some_and(|send| core::ptr::eq(send, cq))
        };
        if let Some(cq) = recv_cq.filter(|cq| self.notify_recv && !told(cq)) {
            cq.notify();
        }
        if let Some(name) = self.xrc {
            self.deliver_xrc(qp, name);
        }
        if self.events != 0 {
            for (bit, (_, event)) in EVENTS.iter().enumerate() {
                if self.events & 1u8.wrapping_shl(bit as u32) != 0 {
                    qp.notifier.event(*event);
                }
            }
        }
    }
}

/// [`Env`] over this driver's queues and regions.
pub(super) struct World<'a> {
    pub(super) qp: &'a QueuePair,
    pub(super) io: &'a mut Io,
    pub(super) rcu: &'a rcu::Guard,
    /// The packet at hand, if any.
    inbound: Option<&'a Inbound<'a>>,
    effects: &'a mut Effects,
    /// The queue that the packet at hand names, if it does.
    pub(super) xrc: Option<ArcBorrow<'a, XrcQueue>>,
    /// What was absent when it was last looked for.
    pub(super) missing: Cell<Option<Missing>>,
}

impl<'a> World<'a> {
    pub(super) fn new(
        qp: &'a QueuePair,
        io: &'a mut Io,
        rcu: &'a rcu::Guard,
        inbound: Option<&'a Inbound<'a>>,
        effects: &'a mut Effects,
    ) -> Self {
        Self {
            qp,
            io,
            rcu,
            inbound,
            effects,
            xrc: None,
            missing: Cell::new(None),
        }
    }

    /// Tells the state to those who post without the QP's lock. Before the queues are looked at:
    /// then whoever posts after that look sees the state, by the lock of the queue.
    pub(super) fn publish(&self, core: &Core) {
        let state = core.state().code();
        if self.qp.state_code.load(Relaxed) != state {
            self.qp.state_code.store(state, Relaxed);
        }
    }

    /// What follows every step: slots go back to user space, the timer is set.
    pub(super) fn settle(&mut self, core: &Core) {
        self.io.sends.release(core.retired());
        self.publish(core);
        let flushing = core.state() == QpState::Err;
        let mut next = core.poll_timeout();
        if flushing && self.io.receives.comes_without_doorbell() {
            // Receives that are posted from now on come without a doorbell.
            let late = Instant(rdma::time::now_ns()).after(self.io.late_interval);
            next = Some(next.map_or(late, |next| next.min(late)));
        }
        if self.io.faults.missing() == Some(Missing::Receive) {
            let look = self.io.receive_wait.look();
            next = Some(next.map_or(look, |next| next.min(look)));
        }
        if let Some(Instant(ns)) = next {
            self.qp.timer.start_at(ns);
        }
    }

    /// Whether a packet with this header may be for this QP: if that is connected, it comes from its
    /// peer, to the address that it is connected from.
    pub(super) fn takes_from(&self, ip: &IpHeader<'_>) -> bool {
        if self.qp.kind.is_datagram() {
            return true;
        }
        let Some(av) = &self.io.av else {
            return false;
        };
        match ip {
            IpHeader::V4(ip) => {
                av.v4
                    && ip.get(12..16) == av.dgid.get(12..16)
                    && ip.get(16..20) == av.sgid.get(12..16)
            }
            IpHeader::V6(ip) => {
                !av.v4
                    && ip.get(8..24) == Some(av.dgid.as_slice())
                    && ip.get(24..40) == Some(av.sgid.as_slice())
            }
        }
    }

    /// The shared receive queue with this number in the XRC domain of the QP.
    pub(super) fn xrc_queue(&self, srq: Srqn) -> Option<ArcBorrow<'a, XrcQueue>> {
        let found = self.qp.port.xrc_queues.get(self.rcu, srq.get())?;
        (Some(found.xrcd) == self.qp.xrcd).then_some(found)
    }

    /// Whether the packet at hand can be kept, to be handled later.
    pub(super) fn is_kept(&self) -> bool {
        self.inbound.is_some_and(|inbound| inbound.can_wait())
    }

    /// The payload at hand.
    fn payload(&self) -> Result<Payload<'a>, MemoryError> {
        self.inbound
            .map(|inbound| inbound.payload)
            .ok_or(MemoryError::Fault)
    }

    /// A completion of this QP with the fields that both directions have.
    fn wc(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode, byte_len: u32) -> Wc {
        Wc {
            wr_id,
            status: verbs_status(status),
            opcode,
            byte_len,
            qp_num: self.qp.qpn.get(),
            port_num: 1,
            ..Wc::default()
        }
    }
}

/// The same range, as slices want it.
fn indices(range: Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// The same status, as the RDMA core knows it.
fn verbs_status(status: WcStatus) -> VerbsStatus {
    match status {
        WcStatus::Success => VerbsStatus::Success,
        WcStatus::LocLenErr => VerbsStatus::LocLenErr,
        WcStatus::LocQpOpErr => VerbsStatus::LocQpOpErr,
        WcStatus::LocProtErr => VerbsStatus::LocProtErr,
        WcStatus::WrFlushErr => VerbsStatus::WrFlushErr,
        WcStatus::MwBindErr => VerbsStatus::MwBindErr,
        WcStatus::BadRespErr => VerbsStatus::BadRespErr,
        WcStatus::LocAccessErr => VerbsStatus::LocAccessErr,
        WcStatus::RemInvReqErr => VerbsStatus::RemInvReqErr,
        WcStatus::RemAccessErr => VerbsStatus::RemAccessErr,
        WcStatus::RemOpErr => VerbsStatus::RemOpErr,
        WcStatus::RetryExcErr => VerbsStatus::RetryExcErr,
        WcStatus::RnrRetryExcErr => VerbsStatus::RnrRetryExcErr,
    }
}

impl Env for World<'_> {
    fn select_srq(&mut self, srq: Srqn) -> Result<(), MemoryError> {
        self.xrc = self.xrc_queue(srq);
        self.xrc.map(|_| ()).ok_or(MemoryError::Access)
    }

    fn take_receive(&mut self) -> Receive {
        let (receive, event) = self.io.receives.take(self.xrc.as_deref());
        match receive {
            Receive::Empty if self.awaits_receive() => return Receive::Soon,
            _ => self.io.receive_wait.end(),
        }
        match event {
            None => return receive,
            Some(SrqEvent::LimitReached) => self.effects.receives_low = true,
            Some(SrqEvent::Error) => self.effects.receives_broken = true,
        }
        self.effects.xrc = self.xrc.map(|xrc| xrc.name);
        receive
    }

    fn write_receive(&mut self, offset: u64, payload: Range<u32>) -> Result<(), MemoryError> {
        let data = self.payload()?;
        let pd = self.receive_domain()?;
        self.scatter(pd, self.io.receives.list(), offset, &data, indices(payload))
    }

    fn write_grh(&mut self) -> Result<(), MemoryError> {
        let grh = self.inbound.ok_or(MemoryError::Fault)?.grh();
        let receives = &self.io.receives;
        let (pd, list) = (receives.pd(), receives.list());
        self.scatter(pd, list, 0, &Payload::one(&grh), 0..grh.len())
    }

    fn write_send(
        &mut self,
        slot: u32,
        offset: u32,
        payload: Range<u32>,
    ) -> Result<(), MemoryError> {
        let (data, payload) = (self.payload()?, indices(payload));
        let list = self.io.slots.list(slot);
        let pd = self.qp.accessor.pd;
        self.scatter(pd, list, u64::from(offset), &data, payload)
    }

    fn check_remote(
        &mut self,
        rkey: RKey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        let rights = match access {
            RemoteAccess::Read => access::REMOTE_READ,
            RemoteAccess::Write => access::REMOTE_WRITE,
        };
        let length = u64::from(length);
        self.with_region(self.remote_domain(), rkey.0, va, length, rights, |_, _| {
            Ok(())
        })
    }

    fn write_remote(
        &mut self,
        rkey: RKey,
        va: u64,
        payload: Range<u32>,
    ) -> Result<(), MemoryError> {
        let (data, payload) = (self.payload()?, indices(payload));
        let length = length(&payload) as u64;
        let (pd, rights) = (self.remote_domain(), access::REMOTE_WRITE);
        self.with_region(pd, rkey.0, va, length, rights, |region, at| {
            data.for_each(payload, |ahead, piece| {
                region.write(at.wrapping_add(ahead), piece)
            })
        })
    }

    fn write_result(&mut self, slot: u32, original: u64) -> Result<(), MemoryError> {
        let list = self.io.slots.list(slot);
        let original = original.to_ne_bytes();
        let data = Payload::one(&original);
        self.scatter(self.qp.accessor.pd, list, 0, &data, 0..original.len())
    }

    fn atomic(&mut self, rkey: RKey, va: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        let rights = access::REMOTE_ATOMIC;
        self.with_region(self.remote_domain(), rkey.0, va, 8, rights, |memory, at| {
            memory.atomic(at, op)
        })
    }

    fn atomic_write(
        &mut self,
        rkey: RKey,
        va: u64,
        payload: Range<u32>,
    ) -> Result<(), MemoryError> {
        let word = self.payload()?.part(indices(payload));
        let bytes = word.ok_or(MemoryError::Fault)?.read()?;
        let rights = access::REMOTE_WRITE;
        self.with_region(self.remote_domain(), rkey.0, va, 8, rights, |memory, at| {
            memory.atomic_write(at, bytes)
        })
    }

    fn flush(&mut self, rkey: RKey, va: u64, length: u32, feth: Feth) -> Result<(), MemoryError> {
        let rights = |wanted, right| if wanted { right } else { 0 };
        let rights = rights(feth.global, access::FLUSH_GLOBAL)
            | rights(feth.persistent, access::FLUSH_PERSISTENT);
        match feth.selectivity {
            Selectivity::Range => {
                let length = u64::from(length);
                self.with_region(self.remote_domain(), rkey.0, va, length, rights, |_, _| {
                    Ok(())
                })?;
            }
            Selectivity::Region | Selectivity::Reserved => {
                let table = &self.qp.port.regions;
                region::check_key(table, self.rcu, &self.remote_accessor(), rkey.0, rights)?;
            }
        }
        // What was written before is in the memory that all CPUs see. In regions that may be flushed for
        // persistence it is written back when it is written: a peer could ask for any number of bytes here.
        barrier::smp_mb(Full);
        Ok(())
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        let who = self.remote_accessor();
        region::invalidate(&self.qp.port.regions, self.rcu, &who, rkey.0, true)
    }

    fn local(&mut self, slot: u32, _op: LocalOp) -> Result<(), MemoryError> {
        let qp = self.qp;
        match self.io.slots.payload(slot) {
            sends::Payload::Local(operands) => {
                region::operate(&qp.port.regions, self.rcu, &qp.accessor, &operands)
            }
            sends::Payload::List | sends::Payload::Inline(_) | sends::Payload::Stored => {
                Err(MemoryError::Fault)
            }
        }
    }

    fn retired(&mut self, count: u32) {
        self.io.sends.release(count);
    }

    fn complete_send(&mut self, cqe: SendCqe) -> Result<(), CqOverflow> {
        let opcode = match cqe.op {
            SendCqeOp::Send => WcOpcode::Send,
            SendCqeOp::Write => WcOpcode::RdmaWrite,
            SendCqeOp::Read => WcOpcode::RdmaRead,
            SendCqeOp::Bind => WcOpcode::BindMw,
            SendCqeOp::Invalidate => WcOpcode::LocalInv,
            SendCqeOp::Register => WcOpcode::RegMr,
            SendCqeOp::CompareSwap => WcOpcode::CompSwap,
            SendCqeOp::FetchAdd => WcOpcode::FetchAdd,
            SendCqeOp::Flush => WcOpcode::Flush,
            SendCqeOp::AtomicWrite => WcOpcode::AtomicWrite,
        };
        let wc = self.wc(cqe.wr_id, cqe.status, opcode, cqe.byte_len);
        let solicited = cqe.status != WcStatus::Success;
        let Some(cq) = &self.qp.send_cq else {
            return Ok(());
        };
        let pushed = cq.push(&wc, &self.qp.notifier, solicited);
        self.io.company.told();
        match pushed {
            Ok(due) => self.effects.notify_send |= due,
            Err(ref overflow) => self.effects.overflow_send |= overflow.first,
        }
        pushed.map(|_| ()).map_err(|_| CqOverflow)
    }

    fn complete_receive(&mut self, cqe: RecvCqe) -> Result<(), CqOverflow> {
        let opcode = if cqe.write_imm {
            WcOpcode::RecvRdmaWithImm
        } else {
            WcOpcode::Recv
        };
        let mut wc = self.wc(cqe.wr_id, cqe.status, opcode, cqe.byte_len);
        wc.src_qp = cqe.src_qp.get();
        wc.extra = match cqe.data {
            RecvData::None => WcExtra::None,
            RecvData::Imm(imm) => WcExtra::Imm(imm),
            RecvData::Invalidated(rkey) => WcExtra::Invalidated(rkey.0),
        };
        if let (QpKind::Ud | QpKind::Gsi, Some(inbound)) = (self.qp.kind, self.inbound) {
            wc.grh = true;
            // RoCE has no service level. What adapters put there instead is the only thing that tells a
            // user program which header is in the first 40 bytes, and UCX drops what it takes for
            // the wrong one.
            let (header, sl) = match inbound.ip {
                IpHeader::V4(_) => (NetworkHeader::V4, L3_IPV4),
                IpHeader::V6(_) => (NetworkHeader::V6, L3_IPV6),
            };
            wc.network_hdr = Some(header);
            if self.qp.kind == QpKind::Ud {
                wc.sl = sl;
            }
            wc.vlan_id = inbound.vlan();
            wc.smac = inbound.source_mac();
        }
        let solicited = cqe.solicited || cqe.status != WcStatus::Success;
        let source = self.io.receives.finish();
        let pushed = match (source, &self.qp.recv_cq) {
            (Some(name), _) => {
                let found = self.xrc_queue(Srqn::new(name.number));
                let Some(xrc) = found.filter(|xrc| xrc.name == name) else {
                    // Destroyed, and with it what was posted to it.
                    return Ok(());
                };
                xrc.cq.push(&wc, &self.qp.notifier, solicited)
            }
            (None, Some(cq)) => cq.push(&wc, &self.qp.notifier, solicited),
            (None, None) => return Ok(()),
        };
        if !matches!(pushed, Ok(false)) && source.is_some() {
            self.effects.xrc = source;
        }
        match pushed {
            Ok(due) => self.effects.notify_recv |= due,
            Err(ref overflow) => self.effects.overflow_recv |= overflow.first,
        }
        pushed.map(|_| ()).map_err(|_| CqOverflow)
    }

    fn event(&mut self, event: QpEvent) {
        for (bit, (known, _)) in EVENTS.iter().enumerate() {
            if *known == event {
                self.effects.events |= 1u8.wrapping_shl(bit as u32);
            }
        }
    }

    fn count(&mut self, counter: Counter) {
        self.qp.port.counters.protocol(counter);
    }
}
