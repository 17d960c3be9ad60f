// SPDX-License-Identifier: GPL-2.0
//! The requester: turns send WQEs into request packets, and keeps those that are not yet
//! acknowledged.
//!
//! ```text
//!  WQEs   head            next       started      tail        free-running numbers
//!          |               |            |           |         slot = number mod capacity
//!  --------+---------------+------------+-----------+------
//!  retired | being sent or | to be sent | posted, no|
//!          | acknowledged  | again      | PSN yet   |
//!
//!  PSNs   unacked        cursor        sent       unassigned
//!  ---------+---------------+------------+-----------+-----
//!  done     | in flight     | was sent   | started,  | of WQEs that are
//!           |               | before     | not sent  | not started
//!
//!            post            poll           acknowledged
//!   (posted) -----> started ------> in flight ----------> retired
//!                      ^               | timer, NAK, gap
//!                      '---------------' rewind: next = head, cursor = unacked
//! ```
//!
//! A READ takes the PSNs of its response. It is asked for in pieces, each by a READ request of its
//! own; see [`window`]. Atomics, ATOMIC WRITE and FLUSH have a response of one packet: they are
//! bounded by `max_rd_atomic` like READs, and repeated like them if no response comes.
//!
//! A local operation takes none; see [`local`].

mod fail;
mod local;
mod rd_atomic;
mod retransmit;
#[cfg(test)]
mod tests;
pub mod window;

pub(crate) use retransmit::earlier;

use crate::{
    cqe::{
        SendCqe,
        SendCqeOp,
        WcStatus, //
    },
    env::{
        Counter,
        Env, //
    },
    qp::{
        Context,
        Failure, //
    },
    run::{
        Form,
        PayloadSource,
        Role,
        Run, //
    },
    types::{
        Instant,
        Psn, //
    },
    wire::Reth,
    wqe::{
        AtomicOp,
        LocalOp,
        SendOp,
        SendWqe,
        ATOMIC_LENGTH, //
    },
};
use core::ops::DerefMut;
use window::Window;

/// How many of these slots can be used: a power of two, or 0.
fn usable(slots: &[SendWqe]) -> u32 {
    u32::try_from(slots.len())
        .unwrap_or(1 << 31)
        .checked_ilog2()
        .map_or(0, |log| 1u32.wrapping_shl(log))
}

/// Longest message, in bytes.
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// The send side of a QP.
pub(crate) struct Requester<S> {
    slots: S,
    /// Usable slots, a power of two or 0.
    capacity: u32,
    /// Oldest WQE that is not retired.
    pub(crate) head: u32,
    /// WQE of the next packet.
    pub(crate) next: u32,
    /// First WQE without PSNs.
    pub(crate) started: u32,
    /// Number of the next WQE to be posted.
    pub(crate) tail: u32,
    /// PSNs of `next` that are behind the cursor.
    position: u32,
    /// Oldest PSN that is not acknowledged.
    pub(crate) unacked: Psn,
    /// First PSN that was never sent.
    pub(crate) sent: Psn,
    /// First PSN that belongs to no WQE.
    pub(crate) unassigned: Psn,
    /// Requests in flight that have responses of their own.
    pub(crate) rd_atomics: u32,
    /// WQEs that are started and not retired, and have responses of their own.
    rd_atomic_wqes: u32,
    /// Where a READ was last asked for again in the middle of a piece.
    pub(crate) read_restart: Option<Psn>,
    pub(crate) retry: retransmit::Retry,
    pub(crate) window: Window,
}

impl<S> Requester<S>
where
    S: DerefMut<Target = [SendWqe]>,
{
    pub(crate) fn new(slots: S) -> Self {
        let capacity = usable(&slots);
        Self {
            slots,
            capacity,
            head: 0,
            next: 0,
            started: 0,
            tail: 0,
            position: 0,
            unacked: Psn::default(),
            sent: Psn::default(),
            unassigned: Psn::default(),
            rd_atomics: 0,
            rd_atomic_wqes: 0,
            read_restart: None,
            retry: retransmit::Retry::default(),
            window: Window::default(),
        }
    }

    /// Usable slots.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Moves to larger storage and returns the old one; returns the new one if it is not larger.
    pub(crate) fn set_slots(&mut self, slots: S) -> S {
        let capacity = usable(&slots);
        if capacity <= self.capacity {
            return slots;
        }
        let old = core::mem::replace(&mut self.slots, slots);
        let before = core::mem::replace(&mut self.capacity, capacity);
        let mut number = self.head;
        while number != self.tail {
            let from = usize::try_from(number & before.wrapping_sub(1)).unwrap_or(usize::MAX);
            if let (Some(wqe), Some(to)) = (old.get(from), self.wqe_mut(number)) {
                *to = *wqe;
            }
            number = number.wrapping_add(1);
        }
        old
    }

    /// Forgets all WQEs.
    pub(crate) fn reset(&mut self) {
        self.head = 0;
        self.next = 0;
        self.started = 0;
        self.tail = 0;
        self.position = 0;
        self.rd_atomics = 0;
        self.rd_atomic_wqes = 0;
        self.start(Psn::default());
        self.stop();
    }

    /// Ready to send, with this PSN first.
    pub(crate) fn start(&mut self, psn: Psn) {
        self.unacked = psn;
        self.sent = psn;
        self.unassigned = psn;
        self.read_restart = None;
        self.window = Window::default();
    }

    /// No more timers.
    pub(crate) fn stop(&mut self) {
        self.retry = retransmit::Retry::default();
    }

    /// The slot of WQE `number`.
    #[inline]
    pub(crate) fn slot(&self, number: u32) -> u32 {
        number & self.capacity.wrapping_sub(1)
    }

    #[inline]
    pub(crate) fn wqe(&self, number: u32) -> Option<SendWqe> {
        let slot = usize::try_from(self.slot(number)).ok()?;
        self.slots.get(slot).copied()
    }

    #[inline]
    fn wqe_mut(&mut self, number: u32) -> Option<&mut SendWqe> {
        let slot = usize::try_from(self.slot(number)).ok()?;
        self.slots.get_mut(slot)
    }

    /// The slot of the next WQE, if one is free.
    #[inline]
    pub(crate) fn next_slot(&self) -> Option<u32> {
        (self.tail.wrapping_sub(self.head) < self.capacity).then(|| self.slot(self.tail))
    }

    #[inline]
    pub(crate) fn post(&mut self, wqe: SendWqe) -> Option<u32> {
        let slot = self.next_slot()?;
        *self.wqe_mut(self.tail)? = wqe;
        self.tail = self.tail.wrapping_add(1);
        Some(slot)
    }

    /// Whether WQE `number` is posted and not retired.
    #[inline]
    fn is_live(&self, number: u32) -> bool {
        number.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head)
    }

    /// Whether all WQEs that were started are retired.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.head == self.started
    }

    /// Whether no WQE is posted.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// PSN of the next packet.
    #[inline]
    pub(crate) fn cursor(&self) -> Psn {
        if self.next == self.started {
            return self.unassigned;
        }
        self.wqe(self.next)
            .map_or(self.unassigned, |wqe| wqe.first_psn.add(self.position))
    }

    /// The next requests to send, at most `max` packets: they go to `run`.
    #[inline]
    pub(crate) fn poll<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        max: u32,
        ctx: &Context<'_>,
        env: &mut E,
        run: &mut Option<Run>,
    ) -> Result<(), Failure> {
        let (wqe, room) = loop {
            if max == 0 || self.next == self.tail || self.retry.is_waiting(now) {
                return Ok(());
            }
            let room = self.window.room(self.cursor().offset_from(self.unacked));
            if room == 0 || (self.next == self.started && !self.start_next(ctx, env)?) {
                return Ok(());
            }
            let Some(wqe) = self.wqe(self.next) else {
                return Ok(());
            };
            if wqe.error.is_some() {
                return self.fail_if_first(env);
            }
            if wqe.packets != 0 {
                break (wqe, room);
            }
            self.next = self.next.wrapping_add(1);
            self.position = 0;
            self.complete_local(env)?;
        };
        let left = wqe.packets.saturating_sub(self.position);
        let psn = wqe.first_psn.add(self.position);
        let mtu = ctx.attr.path_mtu;
        let mut expects = true;
        let (form, source, count, psns) = match wqe.op {
            SendOp::Read { va, rkey } => {
                if self.rd_atomics == 0 && psn == self.sent {
                    self.window.set_piece(ctx.attr.max_rd_atomic);
                }
                let psns = self.window.piece_after(self.position).min(left);
                // A repetition may be larger than the window has become.
                if (psns > room && psn != self.unacked) || !self.take_rd_atomic(ctx) {
                    return Ok(());
                }
                if !window::may_meet(self.position) {
                    self.read_restart = Some(psn);
                }
                let offset = mtu.span(self.position);
                let reth = Reth {
                    va: va.wrapping_add(u64::from(offset)),
                    rkey,
                    length: wqe.length.saturating_sub(offset).min(mtu.span(psns)),
                };
                (Form::ReadRequest { reth }, PayloadSource::None, 1, psns)
            }
            SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => {
                if !self.take_rd_atomic(ctx) {
                    return Ok(());
                }
                let (form, source) = self.request(&wqe);
                (form, source, 1, 1)
            }
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::SendInv(_)
            | SendOp::Write { .. }
            | SendOp::WriteImm { .. }
            | SendOp::Datagram { .. }
            | SendOp::Local(_)
            | SendOp::Invalid(_) => {
                let count = left.min(max).min(room);
                let ack_end = self.asks(&wqe);
                let ack_mask = match self.window.ack_mask() {
                    // That is soon enough.
                    mask if ack_end && wqe.packets <= mask => u32::MAX,
                    mask => mask,
                };
                let last = psn.add(count.wrapping_sub(1)).get();
                expects = last & ack_mask == ack_mask || (ack_end && count == left);
                if expects {
                    self.retry.asked();
                } else if ctx.kind.is_reliable() {
                    self.retry.unasked(now);
                }
                let form = Form::Message {
                    op: wqe.op,
                    position: self.position,
                    packets: wqe.packets,
                    length: wqe.length,
                    solicited: wqe.solicited,
                    ack_mask,
                    ack_end,
                };
                let source = if wqe.length == 0 {
                    PayloadSource::None
                } else {
                    PayloadSource::Wqe {
                        slot: self.slot(self.next),
                        offset: mtu.span(self.position),
                    }
                };
                (form, source, count, count)
            }
        };
        *run = Some(Run {
            psn,
            count,
            slot: Some(self.slot(self.next)),
            role: Role::Requester,
            source,
            mtu,
            dest_qp: ctx.dest_qp(),
            srq: wqe.srq,
            transport: ctx.kind.transport(),
            form,
            wqe: self.next,
            sent_before: self.sent,
            epoch: ctx.epoch,
        });
        self.position = self.position.wrapping_add(psns);
        if self.position >= wqe.packets {
            self.next = self.next.wrapping_add(1);
            self.position = 0;
        }
        if expects && ctx.kind.is_reliable() {
            let last = psn.add(psns.wrapping_sub(1));
            self.retry.expects(now, last, psn == self.sent);
        }
        self.sent = self.sent.later(psn.add(psns));
        self.retry.arm(now, ctx.attr);
        Ok(())
    }

    //= IBA 9.7.5.1.2
    /// Whether the last packet of the next WQE asks for an ACK: somebody waits for its completion,
    /// or slots become scarce. Others are acknowledged with the packets after them, or by
    /// [`Self::ask_again`].
    #[inline]
    fn asks(&self, wqe: &SendWqe) -> bool {
        let in_flight = self.next.wrapping_sub(self.head);
        wqe.signaled || self.retry.asks || in_flight >= self.capacity.wrapping_shr(1)
    }

    /// Gives the next WQE its PSNs, if it may start now. A WQE that cannot be carried out gets its
    /// error instead.
    #[inline]
    fn start_next<E: Env + ?Sized>(
        &mut self,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<bool, Failure> {
        let (first_psn, is_clear) = (self.unassigned, self.rd_atomic_wqes == 0);
        let Some(wqe) = self.wqe_mut(self.next) else {
            return Ok(false);
        };
        //= IBA 10.3.1.5
        //= IBA 10.8.3.3
        if ctx.is_draining() || (wqe.fence && !is_clear) {
            return Ok(false);
        }
        if wqe.error.is_none() {
            wqe.error = local_error(wqe, ctx);
        }
        if wqe.error.is_some() {
            return self.fail_if_first(env).map(|()| false);
        }
        if let SendOp::Local(op) = wqe.op {
            return self.start_local(op, env);
        }
        wqe.first_psn = first_psn;
        wqe.packets = ctx.attr.path_mtu.packets(wqe.length);
        let is_rd_atomic = wqe.op.is_rd_atomic();
        self.unassigned = first_psn.add(wqe.packets);
        self.rd_atomic_wqes = self.rd_atomic_wqes.wrapping_add(u32::from(is_rd_atomic));
        self.started = self.next.wrapping_add(1);
        Ok(true)
    }

    /// What was handed out to an unreliable connection has been sent, which is all that there is to
    /// wait for.
    pub(crate) fn transmitted<E: Env + ?Sized>(&mut self, env: &mut E) -> Result<(), Failure> {
        self.complete_sent(env)?;
        self.unacked = self.cursor();
        self.fail_if_first(env)
    }

    /// Completes the WQEs that were handed out.
    pub(crate) fn complete_sent<E: Env + ?Sized>(&mut self, env: &mut E) -> Result<(), Failure> {
        while self.head != self.next {
            self.complete_head(WcStatus::Success, env)?;
        }
        Ok(())
    }

    /// Retires the WQE at the head, with a completion if it wants one, and with it local operations
    /// that waited for it.
    #[inline]
    pub(crate) fn complete_head<E: Env + ?Sized>(
        &mut self,
        status: WcStatus,
        env: &mut E,
    ) -> Result<(), Failure> {
        self.retire_head(status, env)?;
        if status == WcStatus::Success {
            self.complete_local(env)?;
        }
        Ok(())
    }

    #[inline]
    fn retire_head<E: Env + ?Sized>(
        &mut self,
        status: WcStatus,
        env: &mut E,
    ) -> Result<(), Failure> {
        if self.head == self.tail {
            return Ok(());
        }
        let Some(wqe) = self.wqe(self.head) else {
            return Ok(());
        };
        if wqe.op.is_rd_atomic() && self.head != self.started {
            self.rd_atomic_wqes = self.rd_atomic_wqes.saturating_sub(1);
            self.read_restart = None;
        }
        let retired = self.head;
        self.head = retired.wrapping_add(1);
        if self.next == retired {
            self.next = self.head;
            self.position = 0;
        }
        if self.started == retired {
            self.started = self.head;
        }
        let op = match wqe.op {
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::SendInv(_)
            | SendOp::Datagram { .. }
            | SendOp::Invalid(_) => SendCqeOp::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => SendCqeOp::Write,
            SendOp::Read { .. } => SendCqeOp::Read,
            SendOp::Local(LocalOp::Bind) => SendCqeOp::Bind,
            SendOp::Local(LocalOp::Invalidate) => SendCqeOp::Invalidate,
            SendOp::Local(LocalOp::Register) => SendCqeOp::Register,
            SendOp::Atomic { op, .. } => match op {
                AtomicOp::CompareSwap { .. } => SendCqeOp::CompareSwap,
                AtomicOp::FetchAdd(_) => SendCqeOp::FetchAdd,
            },
            SendOp::AtomicWrite { .. } => SendCqeOp::AtomicWrite,
            SendOp::Flush { .. } => SendCqeOp::Flush,
        };
        if status == WcStatus::Success {
            if op == SendCqeOp::Send {
                env.count(Counter::Sends);
            }
            if !wqe.signaled {
                return Ok(());
            }
        }
        env.retired(self.head);
        env.complete_send(SendCqe {
            wr_id: wqe.wr_id,
            status,
            op,
            byte_len: wqe.length,
        })?;
        Ok(())
    }

    /// Puts the cursor on the oldest PSN that is not acknowledged.
    pub(crate) fn rewind(&mut self) {
        self.retry.asked();
        self.retry.forget_trip();
        self.next = self.head;
        self.position = 0;
        self.rd_atomics = 0;
        self.catch_up();
    }

    /// Moves the cursor forward over what is acknowledged.
    #[inline]
    pub(crate) fn catch_up(&mut self) {
        if self.next != self.head || self.head == self.started {
            return;
        }
        if let Some(wqe) = self.wqe(self.head) {
            let done = self.unacked.offset_from(wqe.first_psn);
            self.position = self.position.max(done.min(wqe.packets));
        }
    }

    /// Puts the cursor back on packet `index` of a run, which was not sent. Returns the number of
    /// its WQE if that is still there.
    pub(crate) fn unsend(&mut self, run: &Run, index: u32) -> Option<u32> {
        let live = self.is_live(run.wqe)
            && run.wqe.wrapping_sub(self.head) < self.started.wrapping_sub(self.head);
        if !live {
            return None;
        }
        let psn = run.psn.add(index);
        self.sent = match psn.is_before(self.sent) {
            true => psn.later(run.sent_before).later(self.unacked),
            false => self.sent,
        };
        if psn.is_before(self.cursor()) {
            let first = self.wqe(run.wqe)?.first_psn;
            self.next = run.wqe;
            self.position = psn.offset_from(first);
            self.catch_up();
            self.recount_rd_atomics();
        }
        if self.cursor() == self.unacked {
            self.retry.disarm();
        }
        Some(run.wqe)
    }
}

/// Why a WQE cannot be sent on a connected QP.
fn local_error(wqe: &SendWqe, ctx: &Context<'_>) -> Option<WcStatus> {
    match wqe.op {
        SendOp::Invalid(status) => Some(status),
        SendOp::Datagram { .. } => Some(WcStatus::LocQpOpErr),
        SendOp::Local(_) => None,
        op if op.is_rd_atomic() && ctx.attr.max_rd_atomic == 0 => Some(WcStatus::LocQpOpErr),
        SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } => {
            (wqe.length != ATOMIC_LENGTH).then_some(WcStatus::LocLenErr)
        }
        SendOp::Flush { .. } => (wqe.length != 0).then_some(WcStatus::LocLenErr),
        SendOp::SendInv(_) if !ctx.kind.is_reliable() => Some(WcStatus::LocQpOpErr),
        SendOp::Send
        | SendOp::SendImm(_)
        | SendOp::SendInv(_)
        | SendOp::Write { .. }
        | SendOp::WriteImm { .. }
        | SendOp::Read { .. } => (wqe.length > MAX_MESSAGE).then_some(WcStatus::LocLenErr),
    }
}
