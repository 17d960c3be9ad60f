// SPDX-License-Identifier: GPL-2.0
//! Unreliable Connection: requests that are not answered.
//!
//! ```text
//!     PSN of the packet       first or only of its message        middle or last
//!   ---------------------------------------------------------------------------------------
//!    expected                 a new message; what was not ended   goes on with the message,
//!                             is dropped                          or is dropped with it
//!    later, or far before     packets were lost: likewise         dropped
//!    a little before          came late or twice: dropped         dropped
//! ```
//!
//! Whatever goes wrong with a message drops the rest of it, and the next first packet starts over,
//! also if the last packet was the one that got lost. The receive WQE of a dropped message is used
//! for the next one.

use crate::{
    env::{
        Counter,
        Env, //
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
    wire::{
        NakCode,
        Operation,
        Packet, //
    },
};
use core::ops::DerefMut;

/// How far before the expected PSN a packet may be to have been overtaken on its way, or to have come
/// twice. What is further before tells of a gap of nearly 2^24 packets.
const LATE: u32 = 1024;

impl<R> Responder<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    //= IBA 9.8.2.2
    /// Handles a request packet on an unreliable connection.
    pub(crate) fn unreliable<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        if psn != self.expected {
            if psn.is_within(self.expected.sub(LATE), LATE) {
                env.count(Counter::DuplicateRequest);
                return Ok(());
            }
            env.count(Counter::OutOfSequence);
            self.message = Message::Idle;
        }
        self.expected = psn;
        if packet.bth.opcode.starts_message() {
            // The end of the one before may be missing.
            self.message = Message::Idle;
        } else if self.message == Message::Idle {
            env.count(Counter::DropSequence);
            self.expected = psn.next();
            return Ok(());
        }
        self.waits = false;
        let result = match packet.bth.opcode.operation() {
            Operation::Send => self.send(packet, ctx, env),
            Operation::Write => self.write(packet, ctx, env),
            Operation::ReadRequest
            | Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite
            | Operation::Cnp => self.refuse(NakCode::InvalidRequest, ctx, env),
        };
        // Nothing is answered, whatever the packet asks for.
        self.answer = Answer::None;
        if self.expected == psn && !self.waits {
            // It was not accepted.
            self.message = Message::Idle;
            self.expected = psn.next();
        }
        result
    }
}
