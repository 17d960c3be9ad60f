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

use crate::types::{
    Msn,
    Psn,
    RKey, //
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
