// SPDX-License-Identifier: GPL-2.0
//! Packets from the middle of a message, many at once.
//!
//! Whatever is not plainly right is refused here with nothing changed, and left to the way for single
//! packets, which finds out what is wrong.

use super::{
    has_right_length,
    resources::ReadSlot,
    Message,
    Responder, //
};
use crate::{
    env::Env,
    qp::Context,
    requester::MAX_MESSAGE,
    types::Psn,
    wire::{
        Operation,
        Packet, //
    }, //
};
use core::ops::DerefMut;

impl<R> Responder<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    /// The PSN of the next request.
    #[inline]
    pub(crate) const fn expected(&self) -> Psn {
        self.expected
    }

    /// Handles `count` packets from the middle of a SEND or WRITE, of which `packet` is the first, and
    /// expected. Returns false if that cannot be done at once.
    #[inline]
    pub(crate) fn middles<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        count: u32,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> bool {
        let Some(payload) = packet.payload_len.checked_mul(count) else {
            return false;
        };
        if !has_right_length(packet, ctx) {
            return false;
        }
        match (self.message, packet.bth.opcode.operation(), self.receive) {
            (Message::Send { length: placed }, Operation::Send, Some(receive)) => {
                let length = placed.saturating_add(payload);
                let fits = u64::from(length) <= receive.length && length <= MAX_MESSAGE;
                if !fits || env.write_receive(u64::from(placed), 0..payload).is_err() {
                    return false;
                }
                self.message = Message::Send { length };
            }
            (
                Message::Write {
                    rkey,
                    va,
                    left,
                    total,
                },
                Operation::Write,
                _,
            ) => {
                if payload >= left || env.write_remote(rkey, va, 0..payload).is_err() {
                    return false;
                }
                self.message = Message::Write {
                    rkey,
                    va: va.wrapping_add(u64::from(payload)),
                    left: left.wrapping_sub(payload),
                    total,
                };
            }
            (Message::Idle | Message::Send { .. } | Message::Write { .. }, _, _) => return false,
        }
        self.accept(packet, count);
        true
    }
}
