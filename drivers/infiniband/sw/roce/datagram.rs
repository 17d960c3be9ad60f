// SPDX-License-Identifier: GPL-2.0
//! Unreliable Datagram and the General Services Interface: one packet a message, no answer.
//!
//! ```text
//!  requester   posted ---poll---> handed out --transmitted--> complete
//!                ^  |                |  | payload unreadable
//!                |  | invalid        |  v
//!                |  '----> complete in error: UD goes into SQE, GSI goes on
//!                '----- egress full -'
//!
//!  responder   Q_Key right? receive WQE large enough? GRH and payload are placed; else dropped
//! ```
//!
//! A datagram is complete when it has been handed to the network: the driver says so with
//! [`crate::qp::Qp::transmitted`].

#[cfg(test)]
mod tests;

use crate::{
    cqe::{
        RecvCqe,
        RecvData,
        WcStatus, //
    },
    env::{
        Counter,
        Env,
        MemoryError,
        QpEvent,
        Receive, //
    },
    qp::{
        attr::GSI_QKEY,
        state::QpKind,
        Context,
        Failure, //
    },
    requester::Requester,
    responder::{
        failed_receive,
        resources::ReadSlot,
        Responder, //
    },
    run::{
        Form,
        PayloadSource,
        Role,
        Run, //
    },
    types::{
        QKey,
        Qpn, //
    },
    wire::{
        Operation,
        Packet, //
    },
    wqe::{
        SendOp,
        SendWqe, //
    },
};
use core::ops::DerefMut;

/// Bytes of Global Routing Header before the payload of a received datagram.
pub const GRH_LEN: u32 = 40;

/// In a send WQE: use the QP's own Q_Key.
const QKEY_OF_QP: u32 = 1 << 31;

/// What a datagram WQE wants.
struct Datagram {
    dest: Qpn,
    qkey: QKey,
    imm: Option<[u8; 4]>,
}

impl<S> Requester<S>
where
    S: DerefMut<Target = [SendWqe]>,
{
    /// The next datagram to send.
    pub(crate) fn poll_datagram<E: Env + ?Sized>(
        &mut self,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<Option<Run>, Failure> {
        // A GSI QP goes on after a WQE in error; each turn retires one.
        while self.next != self.tail && !ctx.is_draining() {
            let Some(wqe) = self.wqe(self.next) else {
                break;
            };
            match check(&wqe, ctx) {
                Ok(datagram) => return Ok(Some(self.start_datagram(&wqe, &datagram, ctx))),
                // It fails in its turn.
                Err(_) if self.next != self.head => break,
                Err(status) => self.fail_datagram(status, ctx, env)?,
            }
        }
        Ok(None)
    }

    fn start_datagram(&mut self, wqe: &SendWqe, datagram: &Datagram, ctx: &Context<'_>) -> Run {
        let number = self.next;
        let slot = self.slot(number);
        let psn = self.unassigned;
        self.unassigned = psn.next();
        self.next = number.wrapping_add(1);
        self.started = self.next;
        let qkey = if datagram.qkey.0 & QKEY_OF_QP != 0 {
            ctx.attr.qkey
        } else {
            datagram.qkey
        };
        Run {
            psn,
            count: 1,
            slot: Some(slot),
            role: Role::Requester,
            source: match wqe.length {
                0 => PayloadSource::None,
                _ => PayloadSource::Wqe { slot, offset: 0 },
            },
            mtu: ctx.attr.path_mtu,
            dest_qp: datagram.dest,
            srq: wqe.srq,
            transport: ctx.kind.transport(),
            form: Form::Datagram {
                qkey,
                src_qp: ctx.qpn,
                imm: datagram.imm,
                length: wqe.length,
                solicited: wqe.solicited,
            },
            wqe: number,
            sent_before: psn,
            epoch: ctx.epoch,
        }
    }

    /// Completes the WQE at the head with an error.
    fn fail_datagram<E: Env + ?Sized>(
        &mut self,
        status: WcStatus,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        self.complete_head(status, env)?;
        match ctx.kind {
            QpKind::Gsi => Ok(()),
            //= IBA 10.3.1.6
            QpKind::Ud | QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => {
                Err(Failure::SendQueue)
            }
        }
    }

    /// The datagram of a run, and those after it, were not sent. Returns whether that is news.
    pub(crate) fn unsend_datagram(&mut self, run: &Run) -> bool {
        let news = run.wqe.wrapping_sub(self.head) < self.next.wrapping_sub(self.head);
        if news {
            self.next = run.wqe;
            self.started = run.wqe;
            self.unassigned = run.psn;
        }
        news
    }

    /// The payload of a run could not be read.
    pub(crate) fn datagram_failed<E: Env + ?Sized>(
        &mut self,
        run: &Run,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        if !self.unsend_datagram(run) {
            return Ok(());
        }
        // Those before it were handed out earlier; nobody will come back to them.
        self.complete_sent(env)?;
        self.fail_datagram(WcStatus::LocProtErr, ctx, env)
    }
}

/// Why a WQE cannot be sent as a datagram.
fn check(wqe: &SendWqe, ctx: &Context<'_>) -> Result<Datagram, WcStatus> {
    match wqe.op {
        SendOp::Datagram { dest, qkey, imm } => {
            if wqe.length > ctx.attr.path_mtu.bytes() {
                return Err(WcStatus::LocLenErr);
            }
            Ok(Datagram { dest, qkey, imm })
        }
        SendOp::Invalid(status) => Err(status),
        SendOp::Send
        | SendOp::SendImm(_)
        | SendOp::SendInv(_)
        | SendOp::Write { .. }
        | SendOp::WriteImm { .. }
        | SendOp::Read { .. }
        | SendOp::Atomic { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush { .. }
        | SendOp::Local(_) => Err(WcStatus::LocQpOpErr),
    }
}

impl<R> Responder<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    /// Handles a datagram.
    pub(crate) fn datagram<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let Some(deth) = packet.deth else {
            env.count(Counter::DropTransport);
            return Ok(());
        };
        let qkey = match ctx.kind {
            QpKind::Gsi => GSI_QKEY,
            QpKind::Ud | QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => ctx.attr.qkey,
        };
        if deth.qkey != qkey || packet.bth.opcode.operation() != Operation::Send {
            env.count(Counter::DropQKey);
            return Ok(());
        }
        // A WQE that was too small for one datagram waits for a smaller one.
        let receive = match self.receive {
            Some(receive) => receive,
            None => match env.take_receive() {
                Receive::Wqe(receive) => receive,
                Receive::Empty | Receive::Soon => {
                    env.count(Counter::DropNoReceive);
                    return Ok(());
                }
                Receive::Invalid { wr_id } => {
                    env.complete_receive(failed_receive(wr_id, WcStatus::LocQpOpErr, ctx))?;
                    return Err(Failure::Completed);
                }
                Receive::Broken => return Err(Failure::Event(QpEvent::Fatal)),
            },
        };
        self.receive = Some(receive);
        let length = packet.payload_len.saturating_add(GRH_LEN);
        if u64::from(length) > receive.length {
            env.count(Counter::DropNoReceive);
            return Ok(());
        }
        let mut placed = env.write_grh();
        if placed.is_ok() && packet.payload_len != 0 {
            placed = env.write_receive(u64::from(GRH_LEN), 0..packet.payload_len);
        }
        if placed == Err(MemoryError::NotResident) {
            return Ok(());
        }
        self.receive = None;
        if placed.is_err() {
            let status = WcStatus::LocProtErr;
            env.complete_receive(failed_receive(receive.wr_id, status, ctx))?;
            return Err(Failure::Completed);
        }
        env.complete_receive(RecvCqe {
            wr_id: receive.wr_id,
            status: WcStatus::Success,
            write_imm: false,
            byte_len: length,
            data: packet.imm.map_or(RecvData::None, RecvData::Imm),
            src_qp: deth.src_qp,
            solicited: packet.bth.solicited,
        })?;
        env.count(Counter::Receives);
        Ok(())
    }
}
