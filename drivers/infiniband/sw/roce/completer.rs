// SPDX-License-Identifier: GPL-2.0
//! The completer: handles the responses to our requests and completes send WQEs.
//!
//! ```text
//!                 PSN in [unacked, sent)? no: stray, dropped
//!                          |
//!        +-----------------+------------------+---------------------+
//!       ACK             RNR NAK              NAK          READ or atomic response
//!        |                 |                  |                     |
//!   ack up to it    ack what is before   ack what is before   ack what is before
//!        |                 |                  |                     |
//!        |               wait         sequence: go back       place payload,
//!        |                            other: WQE fails        ack this PSN
//!        v                 v                  v                     v
//!   A READ whose responses are missing stops "ack": the gap is asked for again at once.
//! ```
//!
//! To *acknowledge* moves the oldest unacknowledged PSN forward and retires the WQEs that it
//! passes. Only READ responses move it over the PSNs of a READ; likewise for atomic operations,
//! ATOMIC WRITE and FLUSH, where the latter two are answered by a READ response without payload.

use crate::{
    cqe::WcStatus,
    env::{
        Counter,
        Env,
        MemoryError, //
    },
    qp::{
        Context,
        Failure, //
    },
    requester::{
        window,
        Requester, //
    },
    types::{
        Instant,
        Psn, //
    },
    wire::{
        NakCode,
        Opcode,
        Operation,
        Packet,
        Syndrome, //
    },
    wqe::{
        SendOp,
        SendWqe, //
    },
};
use core::ops::DerefMut;

impl<S> Requester<S>
where
    S: DerefMut<Target = [SendWqe]>,
{
    /// Handles a response packet.
    #[inline]
    pub(crate) fn response<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        let operation = packet.bth.opcode.operation();
        // Whatever it is worth: the peer is at work on what was asked for.
        self.retry.heard |= operation == Operation::ReadResponse;
        let outstanding = self.sent.offset_from(self.unacked);
        if !psn.is_within(self.unacked, outstanding) {
            env.count(Counter::DropStrayResponse);
            return Ok(());
        }
        match (operation, packet.aeth) {
            (Operation::Acknowledge, Some(aeth)) => {
                self.acknowledge_packet(now, psn, aeth.syndrome, ctx, env)
            }
            (Operation::ReadResponse, _) => self.read_response(now, packet, ctx, env),
            (Operation::AtomicAcknowledge, _) => self.atomic_response(now, packet, ctx, env),
            (
                Operation::Acknowledge
                | Operation::Send
                | Operation::Write
                | Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Flush
                | Operation::AtomicWrite
                | Operation::Cnp,
                _,
            ) => {
                self.acknowledge(now, psn, ctx, env)?;
                Err(self.fail(WcStatus::BadRespErr, env))
            }
        }
    }

    /// An ACK or NAK for `psn`.
    #[inline]
    fn acknowledge_packet<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        psn: Psn,
        syndrome: Syndrome,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        // A NAK acknowledges what is before it, an ACK itself as well.
        let target = match syndrome {
            Syndrome::Ack { .. } => psn.next(),
            Syndrome::RnrNak { .. } | Syndrome::Nak(_) => psn,
        };
        if self.acknowledge(now, target, ctx, env)? != target {
            return self.gap(psn, env);
        }
        let code = match syndrome {
            Syndrome::Ack { .. } => return Ok(()),
            Syndrome::RnrNak { timer } => return self.receiver_not_ready(now, timer, ctx, env),
            Syndrome::Nak(code) => code,
        };
        let status = match code {
            NakCode::PsnSequence => {
                env.count(Counter::SeqNakReceived);
                return self.sequence_error(env);
            }
            NakCode::InvalidRequest | NakCode::InvalidRd => WcStatus::RemInvReqErr,
            NakCode::RemoteAccess => WcStatus::RemAccessErr,
            NakCode::RemoteOperational => WcStatus::RemOpErr,
        };
        Err(self.fail(status, env))
    }

    /// Acknowledges all PSNs before `target`, as far as no READ response is missing. Returns the
    /// first PSN that is not acknowledged.
    #[inline]
    fn acknowledge<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        target: Psn,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<Psn, Failure> {
        let before = self.unacked;
        while self.unacked != target && self.head != self.started {
            let Some(wqe) = self.wqe(self.head).filter(|wqe| !wqe.op.is_rd_atomic()) else {
                break;
            };
            if let Some(status) = wqe.error {
                return Err(self.fail(status, env));
            }
            let end = wqe.first_psn.add(wqe.packets);
            if target.is_before(end) {
                self.unacked = target;
                break;
            }
            self.unacked = end;
            self.complete_head(WcStatus::Success, env)?;
        }
        if self.unacked != before {
            self.window.grow(self.unacked.offset_from(before));
            self.progress(now, ctx);
            self.fail_if_first(env)?;
        }
        Ok(self.unacked)
    }

    /// A READ response packet.
    #[inline]
    fn read_response<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        if self.acknowledge(now, psn, ctx, env)? != psn {
            return self.gap(psn, env);
        }
        let Some((wqe, room)) = self.awaited().and_then(|wqe| match wqe.op {
            SendOp::Read { .. } => Some((wqe, wqe.length)),
            SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => Some((wqe, 0)),
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::SendInv(_)
            | SendOp::Write { .. }
            | SendOp::WriteImm { .. }
            | SendOp::Atomic { .. }
            | SendOp::Datagram { .. }
            | SendOp::Local(_)
            | SendOp::Invalid(_) => None,
        }) else {
            return Err(self.fail(WcStatus::BadRespErr, env));
        };
        let number = psn.offset_from(wqe.first_psn);
        let mtu = ctx.attr.path_mtu;
        let length = room.saturating_sub(mtu.span(number)).min(mtu.bytes());
        if packet.payload_len != length || !self.is_in_place(packet.bth.opcode, psn, number, &wqe) {
            return Err(self.fail(WcStatus::BadRespErr, env));
        }
        if length != 0 {
            let slot = self.slot(self.head);
            match env.write_send(slot, mtu.span(number), 0..length) {
                Ok(()) => {}
                // The packet comes again; what it acknowledged stays so.
                Err(MemoryError::NotResident) => return Ok(()),
                Err(MemoryError::Access | MemoryError::Fault) => {
                    return Err(self.fail(WcStatus::LocProtErr, env));
                }
            }
        }
        self.unacked = psn.next();
        let after = number.wrapping_add(1);
        let ends_piece = after >= wqe.packets || self.window.is_piece_end(after);
        if ends_piece && !self.cursor().is_before(self.unacked) {
            self.rd_atomics = self.rd_atomics.saturating_sub(1);
        }
        if after >= wqe.packets {
            self.complete_head(WcStatus::Success, env)?;
        }
        self.after_response(now, 1, ctx, env)
    }

    /// Handles `count` packets from the middle of a READ response, of which `packet` is the first, and
    /// the next one. Returns false if that cannot be done at once; else [`Self::after_response`] is due.
    #[inline]
    pub(crate) fn middles<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        count: u32,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> bool {
        let psn = packet.bth.psn;
        let Some(wqe) = self.awaited() else {
            return false;
        };
        let is_read = matches!(wqe.op, SendOp::Read { .. });
        let number = psn.offset_from(wqe.first_psn);
        let after = number.wrapping_add(count);
        let mtu = ctx.attr.path_mtu;
        let asked = self.sent.offset_from(self.unacked);
        if !is_read
            || packet.payload_len != mtu.bytes()
            || number == 0
            || after >= wqe.packets
            || count > asked
            || self.window.pieces(number, after.wrapping_add(1)) != 1
        {
            return false;
        }
        let slot = self.slot(self.head);
        let written = env.write_send(slot, mtu.span(number), 0..mtu.span(count));
        if written.is_err() {
            return false;
        }
        self.retry.heard = true;
        self.unacked = psn.add(count);
        true
    }

    /// So many packets of responses were taken.
    #[inline]
    pub(crate) fn after_response<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        count: u32,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        self.window.grow(count);
        self.progress(now, ctx);
        self.fail_if_first(env)
    }

    /// An atomic response.
    fn atomic_response<E: Env + ?Sized>(
        &mut self,
        now: Instant,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        if self.acknowledge(now, psn, ctx, env)? != psn {
            return self.gap(psn, env);
        }
        let is_atomic = |wqe: &SendWqe| matches!(wqe.op, SendOp::Atomic { .. });
        let (true, Some(original)) = (
            self.awaited().is_some_and(|w| is_atomic(&w)),
            packet.atomic_ack,
        ) else {
            return Err(self.fail(WcStatus::BadRespErr, env));
        };
        match env.write_result(self.slot(self.head), original) {
            Ok(()) => {}
            Err(MemoryError::NotResident) => return Ok(()),
            Err(MemoryError::Access | MemoryError::Fault) => {
                return Err(self.fail(WcStatus::LocProtErr, env));
            }
        }
        self.unacked = psn.next();
        if !self.cursor().is_before(self.unacked) {
            self.rd_atomics = self.rd_atomics.saturating_sub(1);
        }
        self.complete_head(WcStatus::Success, env)?;
        self.after_response(now, 1, ctx, env)
    }

    /// The oldest WQE, if it was sent: the one that the next response is for.
    #[inline]
    fn awaited(&self) -> Option<SendWqe> {
        if self.head == self.started {
            return None;
        }
        self.wqe(self.head)
    }

    /// Whether a READ response may have this opcode as packet `number` of the READ.
    ///
    /// A response starts and ends where a request did: at the places where pieces of some size
    /// meet, at the end of the READ, and where the READ was last asked for again.
    #[inline]
    fn is_in_place(&self, opcode: Opcode, psn: Psn, number: u32, wqe: &SendWqe) -> bool {
        let after = number.wrapping_add(1);
        let may_start = window::may_meet(number) || self.read_restart == Some(psn);
        let may_end = window::may_meet(after) || after >= wqe.packets;
        let must_start = number == 0;
        let must_end = after >= wqe.packets;
        match (opcode.starts_message(), opcode.ends_message()) {
            (true, true) => may_start && may_end,
            (true, false) => may_start && !must_end,
            (false, true) => !must_start && may_end,
            (false, false) => !must_start && !must_end,
        }
    }
}
