// SPDX-License-Identifier: GPL-2.0
//! READ requests of the peer: those that are being answered and the last ones that were.
//!
//! ```text
//!   slots, by age      ... 4     3     2     1     0
//!                       +-----+-----+-----+-----+-----+
//!     forgotten <---    |done |done |reply|waits|waits|  <--- push
//!                       +-----+-----+-----+-----+-----+
//!                                   \__ pending: 3 __/
//! ```
//!
//! The peer may ask again for any part of a READ that it has not seen completely: one of the last
//! `max_dest_rd_atomic` ones. Such a request sets the reply of its slot back; the younger replies
//! follow it again from where they were. A repetition of an older READ cannot be honest and is
//! dropped.

use crate::{
    env::{
        Counter,
        Env,
        RemoteAccess, //
    },
    qp::{
        Context,
        Failure, //
    },
    requester::MAX_MESSAGE,
    responder::{
        check,
        Answer,
        Message,
        Responder, //
    },
    types::{
        Msn,
        Psn,
        RKey, //
    },
    wire::{
        NakCode,
        Packet,
        Reth, //
    },
};
use core::ops::DerefMut;

/// One READ request of the peer: the PSNs it took, and the reply that is being streamed.
///
/// Storage for [`crate::qp::Qp`]: make as many [`ReadSlot::default`]s as the QP's
/// `max_dest_rd_atomic`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadSlot {
    /// First PSN of the request as it first came.
    first: Psn,
    /// The PSNs that it takes.
    packets: u32,
    /// What is being sent, or was sent last.
    pub(super) reply: Reply,
}

/// A stream of READ response packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reply {
    /// First PSN; later than that of the request after a partial repetition.
    pub(super) first: Psn,
    /// Number of packets.
    pub(super) packets: u32,
    /// Packets that have been handed out.
    pub(super) sent: u32,
    /// Where to read.
    pub(super) va: u64,
    /// The key that the peer gave.
    pub(super) rkey: RKey,
    /// Bytes.
    pub(super) length: u32,
    /// MSN of the AETH.
    pub(super) msn: Msn,
    /// Repeats an earlier one.
    pub(super) repeated: bool,
}

impl Reply {
    #[inline]
    fn is_done(&self) -> bool {
        self.sent >= self.packets
    }

    /// Whether the packet with this PSN belongs to it and has been handed out.
    #[inline]
    fn has_sent(&self, psn: Psn) -> bool {
        psn.is_within(self.first, self.sent)
    }
}

/// The slots, in a ring.
pub(super) struct ReadQueue<R> {
    slots: R,
    /// Index of the slot that is pushed next.
    next: usize,
    /// Slots that hold a request, from the youngest on.
    known: usize,
    /// Slots, from the youngest on, down to the oldest whose reply is not done.
    pending: usize,
}

impl<R> ReadQueue<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    pub(super) fn new(slots: R) -> Self {
        Self {
            slots,
            next: 0,
            known: 0,
            pending: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.next = 0;
        self.known = 0;
        self.pending = 0;
    }

    pub(super) fn replace(&mut self, slots: R) -> R {
        self.clear();
        core::mem::replace(&mut self.slots, slots)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.pending == 0
    }

    /// The slot of this age: 0 is the youngest.
    #[inline]
    fn by_age(&mut self, age: usize) -> Option<&mut ReadSlot> {
        let back = age.wrapping_add(1);
        let index = match self.next.checked_sub(back) {
            Some(index) => index,
            None => self.slots.len().checked_sub(back.wrapping_sub(self.next))?,
        };
        self.slots.get_mut(index)
    }

    /// Takes a new request, with room for `limit` of them. Returns false if there is none.
    pub(super) fn push(&mut self, reply: Reply, limit: usize) -> bool {
        let limit = limit.min(self.slots.len());
        if self.pending >= limit {
            // A repetition may be given up: the peer has gone on, or asks again.
            if !self.current().is_some_and(|reply| reply.repeated) {
                return false;
            }
            self.drop_current();
        }
        let Some(slot) = self.slots.get_mut(self.next) else {
            return false;
        };
        *slot = ReadSlot {
            first: reply.first,
            packets: reply.packets,
            reply,
        };
        self.next = self.next.wrapping_add(1);
        if self.next >= self.slots.len() {
            self.next = 0;
        }
        self.pending = self.pending.wrapping_add(1);
        self.known = self.known.wrapping_add(1).min(limit);
        true
    }

    /// The age of the remembered request that this repetition is a part of; `None` if there is
    /// none, or if its answer is still to be sent anyway.
    pub(super) fn find_repeated(&mut self, first: Psn, packets: u32) -> Option<usize> {
        for age in 0..self.known {
            let slot = self.by_age(age)?;
            let offset = first.offset_from(slot.first);
            if offset < slot.packets {
                let fits = packets <= slot.packets.wrapping_sub(offset);
                let reply = &slot.reply;
                let again = reply.is_done() || reply.has_sent(first);
                return (fits && again).then_some(age);
            }
        }
        None
    }

    /// Sets the reply of a request back.
    pub(super) fn repeat(&mut self, age: usize, reply: Reply) {
        if let Some(slot) = self.by_age(age) {
            slot.reply = reply;
            self.pending = self.pending.max(age.wrapping_add(1));
        }
    }

    /// The reply whose turn it is.
    #[inline]
    pub(super) fn current(&mut self) -> Option<&mut Reply> {
        let age = self.pending.checked_sub(1)?;
        self.by_age(age).map(|slot| &mut slot.reply)
    }

    /// Goes on to the next reply if the current one is done.
    #[inline]
    pub(super) fn settle(&mut self) {
        while self.current().is_some_and(|reply| reply.is_done()) {
            self.pending = self.pending.wrapping_sub(1);
        }
        if self.current().is_none() {
            self.pending = 0;
        }
    }

    /// The packet with this PSN and those after it were not sent. Returns whether they belonged to
    /// a reply that still wants them.
    pub(super) fn unsend(&mut self, psn: Psn) -> bool {
        for age in 0..self.known {
            let Some(slot) = self.by_age(age) else {
                return false;
            };
            let reply = &mut slot.reply;
            if reply.has_sent(psn) {
                reply.sent = psn.offset_from(reply.first);
                self.pending = self.pending.max(age.wrapping_add(1));
                return true;
            }
        }
        false
    }

    /// Drops the current reply.
    pub(super) fn drop_current(&mut self) {
        if let Some(reply) = self.current() {
            reply.sent = reply.packets;
        }
        self.settle();
    }
}

impl<R> Responder<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    /// A READ request in order.
    pub(super) fn read_request<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) -> Result<(), Failure> {
        let reth = match packet.reth {
            Some(reth)
                if self.message == Message::Idle
                    && ctx.attr.access.remote_read
                    && reth.length <= MAX_MESSAGE =>
            {
                reth
            }
            Some(_) | None => return Err(self.refuse(NakCode::InvalidRequest, ctx, env)),
        };
        if let Err(code) = check(&reth, RemoteAccess::Read, env) {
            return Err(self.refuse(code, ctx, env));
        }
        let packets = ctx.attr.path_mtu.packets(reth.length);
        let mut reply = self.reply_to(packet.bth.psn, packets, &reth, false);
        reply.msn = self.msn.next();
        let limit = usize::from(ctx.attr.max_dest_rd_atomic);
        if !self.reads.push(reply, limit) {
            return Err(self.refuse(NakCode::InvalidRequest, ctx, env));
        }
        self.accept(packet, packets);
        Ok(())
    }

    /// A repeated READ request.
    pub(super) fn read_again<E: Env + ?Sized>(
        &mut self,
        packet: &Packet,
        ctx: &Context<'_>,
        env: &mut E,
    ) {
        let psn = packet.bth.psn;
        let Some(reth) = packet.reth.filter(|reth| reth.length <= MAX_MESSAGE) else {
            env.count(Counter::DropSequence);
            return;
        };
        let packets = ctx.attr.path_mtu.packets(reth.length);
        let Some(age) = self.reads.find_repeated(psn, packets) else {
            env.count(Counter::DropSequence);
            return;
        };
        let checked = match ctx.attr.access.remote_read {
            true => check(&reth, RemoteAccess::Read, env),
            false => Err(NakCode::InvalidRequest),
        };
        match checked {
            Ok(()) => self
                .reads
                .repeat(age, self.reply_to(psn, packets, &reth, true)),
            // It was good once. If the peer still waits for it, it learns of this; if this is a
            // ghost, nothing happens.
            Err(code) => match self.answer {
                Answer::None | Answer::Ack => self.answer = Answer::Refused { psn, code },
                Answer::Sequence { .. } | Answer::NotReady | Answer::Refused { .. } => {}
            },
        }
    }

    fn reply_to(&self, first: Psn, packets: u32, reth: &Reth, repeated: bool) -> Reply {
        Reply {
            first,
            packets,
            sent: 0,
            va: reth.va,
            rkey: reth.rkey,
            length: reth.length,
            msn: self.msn,
            repeated,
        }
    }
}
