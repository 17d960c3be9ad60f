// SPDX-License-Identifier: GPL-2.0
//! How the responder fails: the NAK, the completion in error, the event, the flush.

use crate::{
    cqe::{
        RecvCqe,
        RecvData,
        WcStatus, //
    },
    env::{
        Counter,
        Env,
        QpEvent,
        Receive, //
    },
    qp::{
        Context,
        Failure, //
    },
    responder::{
        resources::ReadSlot,
        Answer,
        Message,
        Responder, //
    },
    types::Psn,
    wire::NakCode,
    wqe::RecvWqe,
};
use core::ops::DerefMut;

impl<R> Responder<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    /// Refuses the expected packet. A QP that is not reliable drops it, and goes on.
    pub(super) fn refuse<E: Env + ?Sized>(
        &mut self,
        code: NakCode,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        self.fail_receive(WcStatus::RemInvReqErr, code, ctx, env)
    }

    /// Refuses the expected packet. A receive WQE that was taken for its message completes with
    /// this status; without one, an event tells of it.
    ///
    /// A QP that is not reliable fails only if the receive WQE itself is to blame. Else it drops the
    /// packet; the WQE waits for another message.
    pub(super) fn fail_receive<E: Env + ?Sized>(
        &mut self,
        status: WcStatus,
        code: NakCode,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let failure = self.refuse_at(self.expected, code, ctx, env);
        let local = matches!(status, WcStatus::LocProtErr | WcStatus::LocQpOpErr);
        if !ctx.kind.is_reliable() && !local {
            return Ok(());
        }
        let Some(receive) = self.receive.take() else {
            return Err(failure);
        };
        env.complete_receive(failed_receive(receive.wr_id, status, ctx))?;
        Err(Failure::Completed)
    }

    /// Refuses the packet with this PSN.
    pub(super) fn refuse_at<E: Env + ?Sized>(
        &mut self,
        psn: Psn,
        code: NakCode,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Failure {
        if ctx.kind.is_reliable() {
            self.answer = Answer::Refused { psn, code };
            self.parting = true;
        }
        self.message = Message::Idle;
        match code {
            NakCode::RemoteAccess => {
                env.count(Counter::AccessViolation);
                Failure::Event(QpEvent::AccessErr)
            }
            NakCode::InvalidRequest | NakCode::InvalidRd | NakCode::PsnSequence => {
                env.count(Counter::InvalidRequest);
                Failure::Event(QpEvent::ReqErr)
            }
            NakCode::RemoteOperational => Failure::Event(QpEvent::Fatal),
        }
    }

    /// The next receive WQE was malformed.
    pub(super) fn bad_receive<E: Env + ?Sized>(
        &mut self,
        wr_id: u64,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        // Its length does not matter: it only completes.
        self.receive = Some(RecvWqe { wr_id, length: 0 });
        let code = NakCode::RemoteOperational;
        self.fail_receive(WcStatus::LocQpOpErr, code, ctx, env)
    }

    /// The receive queue is broken: no completion can tell, an event does.
    pub(super) fn broken_receives<E: Env + ?Sized>(
        &mut self,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        Err(self.refuse_at(self.expected, NakCode::RemoteOperational, ctx, env))
    }

    /// Completes the current receive, if there is one, with a flush error. What else is in a queue
    /// that is shared belongs to the other QPs.
    pub(crate) fn flush_current<E: Env + ?Sized>(&mut self, ctx: &Context<'_>, env: &mut E) {
        if let Some(receive) = self.receive.take() {
            let status = WcStatus::WrFlushErr;
            let _ = env.complete_receive(failed_receive(receive.wr_id, status, ctx));
        }
    }

    /// Completes up to `max` receives with a flush error. Returns whether there may be more.
    pub(crate) fn flush<E: Env + ?Sized>(
        &mut self,
        ctx: &Context<'_>,
        env: &mut E,
        max: u32,
    ) -> bool {
        for _ in 0..max {
            let wr_id = match self.receive.take() {
                Some(receive) => receive.wr_id,
                None => match env.take_receive() {
                    Receive::Wqe(receive) => receive.wr_id,
                    Receive::Invalid { wr_id } => wr_id,
                    Receive::Empty | Receive::Soon | Receive::Broken => return false,
                },
            };
            let _ = env.complete_receive(failed_receive(wr_id, WcStatus::WrFlushErr, ctx));
        }
        true
    }
}

/// The completion of a receive WQE that failed.
pub(crate) fn failed_receive(wr_id: u64, status: WcStatus, ctx: &Context<'_>) -> RecvCqe {
    RecvCqe {
        wr_id,
        status,
        write_imm: false,
        byte_len: 0,
        data: RecvData::None,
        src_qp: ctx.dest_qp(),
        solicited: true,
    }
}
