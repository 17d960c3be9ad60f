// SPDX-License-Identifier: GPL-2.0
//! READ requests of the peer: the replies that are pending, and what it may ask for again.
//!
//! ```text
//!   PSNs   oldest of the last N requests                       expected
//!     ------+------------------------------------------------------+------
//!   too old |  may be asked for again                              | new
//!           |     [reply 0 ->    ]   [reply 1  ] [reply 2     ]    |
//!                    sent |  \_ pending, at most N, by PSN _/
//! ```
//!
//! N is `max_dest_rd_atomic`. The peer may ask again for any part of its last N READs, in other
//! pieces than before if it likes. It has then gone back and will ask for all that follows as well,
//! so the reply to it takes the place of what is pending for the same PSNs. If all of it is still to
//! be sent anyway, nothing changes: then the request was delayed or duplicated on its way, or is
//! answered soon. A repetition of anything older cannot be honest and is dropped.

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
        Mtu,
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

/// Storage for one READ request of the peer.
///
/// Make as many [`ReadSlot::default`]s for a [`crate::qp::Qp`] as its `max_dest_rd_atomic`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadSlot {
    /// A pending reply.
    reply: Reply,
    /// First PSN of a request, in a ring of its own.
    request: Psn,
}

/// A stream of READ response packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reply {
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
pub(super) struct ReadQueue<R> {
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

impl<R> ReadQueue<R>
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

    /// Takes a new request. Returns false if `limit` of them are pending.
    pub(super) fn push(&mut self, reply: Reply, limit: usize) -> bool {
        let limit = limit.min(self.slots.len());
        if self.pending >= limit && !self.give_up_repetition() {
            return false;
        }
        match self.reply(self.pending) {
            Some(free) => *free = reply,
            None => return false,
        }
        self.pending = self.pending.wrapping_add(1);
        if let Some(slot) = self.slots.get_mut(self.next_request) {
            slot.request = reply.first;
        }
        self.next_request = self.wrap(self.next_request.wrapping_add(1));
        self.requests = self.requests.wrapping_add(1).min(limit);
        true
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
        let back = self.requests;
        let index = match self.next_request.checked_sub(back) {
            Some(index) => index,
            None => self.wrap(
                self.next_request
                    .wrapping_add(self.slots.len())
                    .wrapping_sub(back),
            ),
        };
        match self.slots.get(index) {
            Some(slot) if back != 0 => {
                let end = first.offset_from(slot.request).wrapping_add(packets);
                end <= expected.offset_from(slot.request)
            }
            Some(_) | None => false,
        }
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
        if !self.reads.may_repeat(psn, packets, self.expected) {
            env.count(Counter::DropSequence);
            return;
        }
        if self.reads.will_bring(psn, packets) {
            return;
        }
        let checked = match ctx.attr.access.remote_read {
            true => check(&reth, RemoteAccess::Read, env),
            false => Err(NakCode::InvalidRequest),
        };
        match checked {
            Ok(()) => {
                let reply = self.reply_to(psn, packets, &reth, true);
                self.reads.repeat(reply, ctx.attr.path_mtu);
            }
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
