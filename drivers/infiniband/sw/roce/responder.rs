// SPDX-License-Identifier: GPL-2.0
//! The responder: executes the requests of the peer and answers them.
//!
//! ```text
//!                PSN against the expected one
//!        before        |  equal              |  after
//!   ------------------ | ------------------- | -----------------------
//!   duplicate:         | in order:           | early: dropped,
//!    SEND, WRITE: ACK  |  checks, placement  |  one sequence NAK a gap
//!    READ: again,      |     |               |
//!    atomic: same      |     |               |
//!    answer again      |     |               |
//!                      |     v               |
//!            message:  |  Idle ---first---> Send | Write ---last---> Idle
//!                      |     |
//!                      |     +-- no receive WQE: RNR NAK, nothing has changed
//!                      |     '-- error: NAK, QP goes into ERR
//! ```
//!
//! What is to be said is remembered as at most one [`Answer`] behind the READ replies that are
//! pending, since an ACK or NAK speaks for everything before it, and a READ response as well:
//!
//! ```text
//!   poll:  READ replies in order, then the answer
//! ```

mod atomic;
mod middles;
mod read;
mod refuse;
mod reply;
pub mod resources;
mod unreliable;

pub(crate) use refuse::failed_receive;

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
        Receive,
        RemoteAccess, //
    },
    qp::{
        Context,
        Failure, //
    },
    requester::MAX_MESSAGE,
    types::{
        Msn,
        Psn,
        RKey,
        Srqn, //
    },
    wire::{
        NakCode,
        Operation,
        Packet,
        Reth, //
    },
    wqe::RecvWqe,
};
use core::ops::DerefMut;
use resources::{
    ReadSlot,
    Resources, //
};

/// The message that is being received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Message {
    /// None.
    Idle,
    /// A SEND into the current receive WQE.
    Send {
        /// Bytes placed.
        length: u32,
    },
    /// An RDMA WRITE.
    Write {
        rkey: RKey,
        /// Where the next byte goes.
        va: u64,
        /// Bytes to come.
        left: u32,
        /// Bytes of the message.
        total: u32,
    },
}

/// What is to be said when all READ replies are out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Answer {
    /// Nothing.
    None,
    /// Everything before the expected PSN was executed.
    Ack,
    /// The expected PSN is missing, one that is after it has come.
    Sequence {
        /// It.
        ahead: Psn,
    },
    /// There is no receive WQE for the expected PSN.
    NotReady,
    /// The request with this PSN was refused.
    Refused { psn: Psn, code: NakCode },
}

/// Why packets after the expected one are dropped without another word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Silence {
    /// They are not.
    None,
    /// A sequence NAK was said.
    Gap {
        /// The last PSN beyond the gap.
        ahead: Psn,
    },
    /// An RNR NAK was said.
    NotReady,
}

/// The receive side of a QP.
pub(crate) struct Responder<R> {
    resources: Resources<R>,
    expected: Psn,
    msn: Msn,
    message: Message,
    /// What the XRCETH of the last request in order named.
    srq: Srqn,
    /// The current receive WQE: taken and not yet completed.
    pub(crate) receive: Option<RecvWqe>,
    answer: Answer,
    silence: Silence,
    /// The QP is in ERR because a request was refused, and the peer is still to be told.
    pub(crate) parting: bool,
    /// The packet at hand waits for a page, and comes again: nothing has become of it.
    waits: bool,
}

impl<R> Responder<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    pub(crate) fn new(reads: R) -> Self {
        Self {
            resources: Resources::new(reads),
            expected: Psn::default(),
            msn: Msn::default(),
            message: Message::Idle,
            srq: Srqn::default(),
            receive: None,
            answer: Answer::None,
            silence: Silence::None,
            parting: false,
            waits: false,
        }
    }

    /// Replaces the READ slots.
    pub(crate) fn set_read_slots(&mut self, reads: R) -> R {
        self.resources.replace(reads)
    }

    /// The most READs of the peer there is room for.
    pub(crate) fn read_slots(&self) -> usize {
        self.resources.len()
    }

    /// Ready to receive, with this PSN first.
    pub(crate) fn start(&mut self, psn: Psn) {
        self.stop();
        self.expected = psn;
        self.msn = Msn::default();
    }

    /// Has nothing more to say.
    pub(crate) fn stop(&mut self) {
        self.resources.clear();
        self.message = Message::Idle;
        self.answer = Answer::None;
        self.silence = Silence::None;
        self.parting = false;
    }

    /// Handles a request packet.
    #[inline]
    pub(crate) fn request<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        //= IBA 9.7.4.1.1
        if psn != self.expected {
            if psn.is_before(self.expected) {
                self.duplicate(packet, ctx, env);
            } else {
                self.early(psn, env);
            }
            return Ok(());
        }
        if let Some(srq) = packet.xrceth {
            if let Err(code) = self.select(srq, env) {
                return self.refuse(code, ctx, env);
            }
        }
        match packet.bth.opcode.operation() {
            Operation::Send => self.send(packet, ctx, env),
            Operation::Write => self.write(packet, ctx, env),
            Operation::ReadRequest => self.read_request(packet, ctx, env),
            Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
            | Operation::Flush => self.atomic_request(packet, ctx, env),
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Cnp => self.refuse(NakCode::InvalidRequest, ctx, env),
        }
    }

    //= IBA A14.3
    /// Turns to the shared receive queue that the packet names. All packets of a message name the same.
    fn select<E: Env + ?Sized>(&mut self, srq: Srqn, env: &mut E) -> Result<(), NakCode> {
        let under_way = self.message != Message::Idle || self.receive.is_some();
        if under_way && srq != self.srq {
            return Err(NakCode::InvalidRequest);
        }
        self.srq = srq;
        env.select_srq(srq).map_err(nak_code)
    }

    /// A packet from beyond a gap.
    ///
    /// One NAK is said for each gap. The PSNs of what was under way rise; if they fall, the peer
    /// has gone back, and the same packet was lost again.
    fn early<E: Env + ?Sized>(&mut self, psn: Psn, env: &mut E) {
        env.count(Counter::OutOfSequence);
        let speak = match self.silence {
            Silence::None => true,
            Silence::Gap { ahead } => psn.is_before(ahead),
            Silence::NotReady => {
                env.count(Counter::DropSequence);
                return;
            }
        };
        self.silence = Silence::Gap { ahead: psn };
        if speak {
            self.answer = Answer::Sequence { ahead: psn };
        } else {
            env.count(Counter::DropSequence);
        }
    }

    /// A packet that was executed before.
    fn duplicate<E: Env + ?Sized>(&mut self, packet: &Packet, ctx: &Context<'_>, env: &mut E) {
        env.count(Counter::DuplicateRequest);
        match packet.bth.opcode.operation() {
            Operation::Send | Operation::Write => {
                if self.answer == Answer::None {
                    self.answer = Answer::Ack;
                }
            }
            Operation::ReadRequest => self.read_again(packet, ctx, env),
            Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
            | Operation::Flush => self.atomic_again(packet, ctx, env),
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Cnp => env.count(Counter::DropSequence),
        }
    }

    /// A SEND packet in order.
    #[inline]
    fn send<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let opcode = packet.bth.opcode;
        let placed = match (self.message, opcode.starts_message()) {
            (Message::Idle, true) => 0,
            (Message::Send { length }, false) => length,
            (Message::Idle, false) | (Message::Send { .. }, true) | (Message::Write { .. }, _) => {
                return self.refuse(NakCode::InvalidRequest, ctx, env);
            }
        };
        if !has_right_length(packet, ctx) {
            return self.refuse(NakCode::InvalidRequest, ctx, env);
        }
        let receive = match self.receive {
            Some(receive) => receive,
            None => match env.take_receive() {
                Receive::Wqe(receive) => receive,
                Receive::Empty => {
                    self.not_ready(ctx, env);
                    return Ok(());
                }
                Receive::Soon => return Ok(()),
                Receive::Invalid { wr_id } => return self.bad_receive(wr_id, ctx, env),
                Receive::Broken => return self.broken_receives(ctx, env),
            },
        };
        self.receive = Some(receive);

        let length = placed.wrapping_add(packet.payload_len);
        if u64::from(length) > receive.length || length > MAX_MESSAGE {
            return self.fail_receive(WcStatus::LocLenErr, NakCode::InvalidRequest, ctx, env);
        }
        if packet.payload_len != 0 {
            let placement = env.write_receive(u64::from(placed), 0..packet.payload_len);
            if placement == Err(MemoryError::NotResident) {
                self.waits = true;
                return Ok(());
            }
            if placement.is_err() {
                return self.fail_receive(
                    WcStatus::LocProtErr,
                    NakCode::RemoteOperational,
                    ctx,
                    env,
                );
            }
        }
        if opcode.ends_message() {
            let data = match (packet.imm, packet.ieth) {
                (Some(imm), _) => RecvData::Imm(imm),
                (None, Some(rkey)) => {
                    if env.invalidate(rkey).is_err() {
                        return self.fail_receive(
                            WcStatus::MwBindErr,
                            NakCode::RemoteAccess,
                            ctx,
                            env,
                        );
                    }
                    RecvData::Invalidated(rkey)
                }
                (None, None) => RecvData::None,
            };
            self.complete(packet, receive, false, length, data, ctx, env)?;
            env.count(Counter::Receives);
        } else {
            self.message = Message::Send { length };
        }
        self.accept(packet, 1);
        Ok(())
    }

    /// An RDMA WRITE packet in order.
    #[inline]
    fn write<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let opcode = packet.bth.opcode;
        let payload = packet.payload_len;
        let (rkey, va, left, total) = match (self.message, packet.reth) {
            (Message::Idle, Some(reth)) if opcode.starts_message() => {
                //= IBA 9.7.4.1.5
                if !ctx.attr.access.remote_write || reth.length > MAX_MESSAGE {
                    return self.refuse(NakCode::InvalidRequest, ctx, env);
                }
                (reth.rkey, reth.va, reth.length, reth.length)
            }
            (
                Message::Write {
                    rkey,
                    va,
                    left,
                    total,
                },
                None,
            ) => (rkey, va, left, total),
            (Message::Idle | Message::Send { .. }, _) | (Message::Write { .. }, Some(_)) => {
                return self.refuse(NakCode::InvalidRequest, ctx, env);
            }
        };
        // The last packet brings exactly what is missing, the others bring less.
        let fits = match opcode.ends_message() {
            true => payload == left,
            false => payload < left,
        };
        if !fits || !has_right_length(packet, ctx) {
            return self.refuse(NakCode::InvalidRequest, ctx, env);
        }
        if let Some(reth) = packet.reth {
            if let Err(code) = check(&reth, RemoteAccess::Write, env) {
                return self.refuse(code, ctx, env);
            }
        }
        if packet.imm.is_some() && self.receive.is_none() {
            match env.take_receive() {
                Receive::Wqe(receive) => self.receive = Some(receive),
                Receive::Empty => {
                    self.not_ready(ctx, env);
                    return Ok(());
                }
                Receive::Soon => return Ok(()),
                Receive::Invalid { wr_id } => return self.bad_receive(wr_id, ctx, env),
                Receive::Broken => return self.broken_receives(ctx, env),
            }
        }
        if payload != 0 {
            if let Err(error) = env.write_remote(rkey, va, 0..payload) {
                if error == MemoryError::NotResident {
                    self.waits = true;
                    return Ok(());
                }
                return self.fail_receive(WcStatus::LocAccessErr, nak_code(error), ctx, env);
            }
        }
        if opcode.ends_message() {
            if let (Some(imm), Some(receive)) = (packet.imm, self.receive) {
                self.complete(packet, receive, true, total, RecvData::Imm(imm), ctx, env)?;
            }
        } else {
            self.message = Message::Write {
                rkey,
                va: va.wrapping_add(u64::from(payload)),
                left: left.wrapping_sub(payload),
                total,
            };
        }
        self.accept(packet, 1);
        Ok(())
    }

    /// The expected packet was executed; it takes `psns` PSNs.
    #[inline]
    fn accept(&mut self, packet: &Packet, psns: u32) {
        self.expected = self.expected.add(psns);
        self.silence = Silence::None;
        if packet.bth.opcode.ends_message() {
            self.message = Message::Idle;
            self.msn = self.msn.next();
        }
        let responds = match packet.bth.opcode.operation() {
            Operation::Send | Operation::Write => false,
            Operation::ReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
            | Operation::Flush => true,
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Cnp => false,
        };
        match self.answer {
            // Its own response speaks for what is before it.
            Answer::None | Answer::Ack | Answer::NotReady if responds => self.answer = Answer::None,
            Answer::None if packet.bth.ack_req => self.answer = Answer::Ack,
            Answer::NotReady => self.answer = Answer::Ack,
            Answer::None | Answer::Ack | Answer::Sequence { .. } | Answer::Refused { .. } => {}
        }
    }

    //= IBA 9.7.5.2.8
    /// There is no receive WQE for the expected packet.
    fn not_ready<E: Env + ?Sized>(&mut self, ctx: &Context<'_>, env: &mut E) {
        if !ctx.kind.is_reliable() {
            env.count(Counter::DropNoReceive);
            return;
        }
        env.count(Counter::RnrSent);
        self.answer = Answer::NotReady;
        self.silence = Silence::NotReady;
    }

    /// Completes the current receive WQE with success.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "all of a completion's")]
    fn complete<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        receive: RecvWqe,
        write_imm: bool,
        byte_len: u32,
        data: RecvData,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        self.receive = None;
        let completed = env.complete_receive(RecvCqe {
            wr_id: receive.wr_id,
            status: WcStatus::Success,
            write_imm,
            byte_len,
            data,
            src_qp: ctx.dest_qp(),
            solicited: packet.bth.solicited,
        });
        completed.map_err(|overflow| {
            self.refuse_at(self.expected, NakCode::RemoteOperational, ctx, env);
            overflow.into()
        })
    }
}

//= IBA 9.7.4.1.6
/// Whether the payload has a length that the opcode allows.
#[inline]
fn has_right_length(packet: &Packet, ctx: &Context<'_>) -> bool {
    let mtu = ctx.attr.path_mtu.bytes();
    let length = packet.payload_len;
    let opcode = packet.bth.opcode;
    match (opcode.starts_message(), opcode.ends_message()) {
        (true, true) => length <= mtu,
        (false, true) => length != 0 && length <= mtu,
        (true, false) | (false, false) => length == mtu,
    }
}

/// Checks the rights of a whole request.
#[inline]
fn check<E: Env + ?Sized>(reth: &Reth, access: RemoteAccess, env: &mut E) -> Result<(), NakCode> {
    //= IBA 9.7.4.1.5
    // A request for nothing needs no key.
    if reth.length == 0 {
        return Ok(());
    }
    env.check_remote(reth.rkey, reth.va, reth.length, access)
        .map_err(nak_code)
}

#[inline]
fn nak_code(error: MemoryError) -> NakCode {
    match error {
        MemoryError::Access => NakCode::RemoteAccess,
        MemoryError::Fault | MemoryError::NotResident => NakCode::RemoteOperational,
    }
}
