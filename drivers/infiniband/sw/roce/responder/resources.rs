// SPDX-License-Identifier: GPL-2.0
//! Requests of the peer that have responses of their own (READs and atomics): the replies that are
//! pending, and what it may ask for again.
//!
//! ```text
//!   PSNs   oldest of the last N requests                       expected
//!     ------+------------------------------------------------------+------
//!   too old |  may be asked for again                              | new
//!           |     [reply 0 ->    ]   [reply 1  ] [reply 2     ]    |
//!                    sent |  \_ pending, at most N, by PSN _/
//! ```
//!
//! N is `max_dest_rd_atomic`. The peer may ask again for any part of its last N requests, for READs
//! in other pieces than before if it likes. It has then gone back and will ask for all that follows
//! as well, so the reply to it takes the place of what is pending for the same PSNs. If all of it is
//! still to be sent anyway, nothing changes: then the request was delayed or duplicated on its way,
//! or is answered soon. A repetition of anything older cannot be honest and is dropped.
//!
//! A READ is read again. What an atomic operation found is remembered, and said again.

use crate::types::{
    Msn,
    Mtu,
    Psn,
    RKey,
    Srqn, //
};
use core::ops::DerefMut;

/// Storage for one READ or atomic request of the peer.
///
/// Make as many [`ReadSlot::default`]s for a [`crate::qp::Qp`] as its `max_dest_rd_atomic`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadSlot {
    /// A pending reply.
    reply: Reply,
    /// A request that may be repeated, in a ring of its own.
    request: Request,
}

/// A request that was executed.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    first: Psn,
    what: What,
}

/// What a request was, with what came of it if that may not be executed twice.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum What {
    /// READ.
    #[default]
    Read,
    /// An atomic operation, which found this value.
    Atomic {
        /// The value.
        original: u64,
    },
    /// ATOMIC WRITE or FLUSH; the reply is a READ response without payload.
    Placed,
}

/// A stream of READ response packets, or an atomic response.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reply {
    /// What it answers.
    pub(super) what: What,
    /// First PSN.
    pub(super) first: Psn,
    /// Number of packets.
    pub(super) packets: u32,
    /// Packets that have been handed out.
    pub(super) sent: u32,
    /// Where to read.
    pub(super) va: u64,
    /// The key that the peer gave.
    pub(super) rkey: RKey,
    /// The shared receive queue that an XRCETH named.
    pub(super) srq: Srqn,
    /// Bytes.
    pub(super) length: u32,
    /// MSN of the AETH.
    pub(super) msn: Msn,
    /// Repeats an earlier one.
    pub(super) repeated: bool,
}

impl Reply {
    /// PSN of the next packet.
    #[inline]
    pub(super) fn next(&self) -> Psn {
        self.first.add(self.sent)
    }

    /// The PSN after the last packet.
    #[inline]
    fn end(&self) -> Psn {
        self.first.add(self.packets)
    }

    /// The reply to a request of one packet that was executed.
    pub(super) fn to(what: What, psn: Psn, msn: Msn, repeated: bool) -> Self {
        Self {
            what,
            first: psn,
            packets: 1,
            msn,
            repeated,
            ..Self::default()
        }
    }

    /// The part that begins with packet `number`.
    fn tail(mut self, number: u32, mtu: Mtu) -> Self {
        let bytes = mtu.span(number);
        self.first = self.first.add(number);
        self.packets = self.packets.saturating_sub(number);
        self.sent = 0;
        self.va = self.va.wrapping_add(u64::from(bytes));
        self.length = self.length.saturating_sub(bytes);
        self
    }
}

/// The pending replies, in the order of their PSNs, and the requests that may be repeated.
pub(super) struct Resources<R> {
    slots: R,
    /// Index of the slot with the reply whose turn it is.
    head: usize,
    /// Pending replies.
    pending: usize,
    /// Index of the slot for the next request.
    next_request: usize,
    /// Requests that are remembered.
    requests: usize,
}

impl<R> Resources<R>
where
    R: DerefMut<Target = [ReadSlot]>,
{
    pub(super) fn new(slots: R) -> Self {
        Self {
            slots,
            head: 0,
            pending: 0,
            next_request: 0,
            requests: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.head = 0;
        self.pending = 0;
        self.next_request = 0;
        self.requests = 0;
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

    /// `index` or, if that is beyond the end, as many slots from the start.
    #[inline]
    fn wrap(&self, index: usize) -> usize {
        index.checked_sub(self.slots.len()).unwrap_or(index)
    }

    /// The pending reply with this number; 0 is the one whose turn it is.
    #[inline]
    fn reply(&mut self, number: usize) -> Option<&mut Reply> {
        let index = self.wrap(self.head.wrapping_add(number));
        self.slots.get_mut(index).map(|slot| &mut slot.reply)
    }

    /// The reply whose turn it is.
    #[inline]
    pub(super) fn current(&mut self) -> Option<&mut Reply> {
        if self.pending == 0 {
            return None;
        }
        self.reply(0)
    }

    /// The current reply is done.
    #[inline]
    pub(super) fn pop(&mut self) {
        if let Some(left) = self.pending.checked_sub(1) {
            self.pending = left;
            self.head = self.wrap(self.head.wrapping_add(1));
        }
    }

    /// Makes room for a new request. Returns false if `limit` of them are pending.
    pub(super) fn make_room(&mut self, limit: usize) -> bool {
        self.pending < limit.min(self.slots.len()) || self.give_up_repetition()
    }

    /// Takes a new request, for which there is room; `limit` of them may be repeated.
    pub(super) fn push(&mut self, reply: Reply, limit: usize) {
        if let Some(free) = self.reply(self.pending) {
            *free = reply;
            self.pending = self.pending.wrapping_add(1);
        }
        if let Some(slot) = self.slots.get_mut(self.next_request) {
            slot.request = Request {
                first: reply.first,
                what: reply.what,
            };
        }
        self.next_request = self.wrap(self.next_request.wrapping_add(1));
        self.requests = self
            .requests
            .wrapping_add(1)
            .min(limit)
            .min(self.slots.len());
    }

    /// Drops the first reply that repeats an earlier one: the peer has gone on, or asks again.
    fn give_up_repetition(&mut self) -> bool {
        for number in 0..self.pending {
            if self.reply(number).is_some_and(|reply| reply.repeated) {
                self.remove(number);
                return true;
            }
        }
        false
    }

    fn remove(&mut self, number: usize) {
        for at in number.wrapping_add(1)..self.pending {
            let Some(moved) = self.reply(at).copied() else {
                return;
            };
            if let Some(place) = self.reply(at.wrapping_sub(1)) {
                *place = moved;
            }
        }
        self.pending = self.pending.saturating_sub(1);
    }

    /// Puts a reply before the one with this number; the last one goes if there is no room.
    fn insert(&mut self, number: usize, reply: Reply) {
        let mut moved = reply;
        for at in number..=self.pending.min(self.slots.len().saturating_sub(1)) {
            if let Some(place) = self.reply(at) {
                core::mem::swap(place, &mut moved);
            }
        }
        self.pending = self.pending.wrapping_add(1).min(self.slots.len());
    }

    /// Whether the peer may ask again for these PSNs, which are all before `expected`.
    pub(super) fn may_repeat(&self, first: Psn, packets: u32, expected: Psn) -> bool {
        match self.request(self.requests) {
            Some(Request { first: oldest, .. }) => {
                let end = first.offset_from(oldest).wrapping_add(packets);
                end <= expected.offset_from(oldest)
            }
            None => false,
        }
    }

    /// What came of the request of one packet with this PSN, if it may be repeated.
    pub(super) fn result(&self, psn: Psn) -> Option<What> {
        (1..=self.requests)
            .filter_map(|back| self.request(back))
            .find(|request| request.first == psn)
            .map(|request| request.what)
    }

    /// The last request but `back - 1`, if it is remembered.
    fn request(&self, back: usize) -> Option<Request> {
        if back == 0 || back > self.requests {
            return None;
        }
        let index = match self.next_request.checked_sub(back) {
            Some(index) => index,
            None => self
                .next_request
                .wrapping_add(self.slots.len())
                .wrapping_sub(back),
        };
        self.slots.get(index).map(|slot| slot.request)
    }

    /// Whether the replies that are pending bring all of these PSNs.
    pub(super) fn will_bring(&mut self, first: Psn, packets: u32) -> bool {
        let mut missing = packets;
        let mut psn = first;
        for number in 0..self.pending {
            let Some(reply) = self.reply(number) else {
                break;
            };
            let (next, end) = (reply.next(), reply.end());
            if psn.is_within(next, end.offset_from(next)) {
                missing = missing.saturating_sub(end.offset_from(psn));
                psn = end;
            }
            if missing == 0 {
                return true;
            }
        }
        false
    }

    /// Puts a reply in its place, instead of what is pending for the same PSNs.
    pub(super) fn repeat(&mut self, reply: Reply, mtu: Mtu) {
        let end = reply.end();
        let mut number = 0;
        while number < self.pending {
            let Some(other) = self.reply(number) else {
                return;
            };
            if !reply.first.is_before(other.end()) {
                // It is before; the peer seems to have it.
                number = number.wrapping_add(1);
            } else if !other.next().is_before(end) {
                break;
            } else if end.is_before(other.end()) && !other.first.is_before(reply.first) {
                *other = other.tail(end.offset_from(other.first), mtu);
                break;
            } else {
                self.remove(number);
            }
        }
        self.insert(number, reply);
    }
}
