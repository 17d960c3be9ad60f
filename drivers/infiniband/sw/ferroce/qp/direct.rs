// SPDX-License-Identifier: GPL-2.0
//! The short way to a peer that is a QP of the same device: packets that are never built.
//!
//! What would be a packet is handed over as what the protocol makes of its headers, and the place of its
//! payload. To the protocol, on both sides, nothing is different: PSNs, ACKs and NAKs, flow control,
//! counters. The payload is copied once, from the sender's memory to the receiver's.
//!
//! ```text
//!   sender, locked       runs, and what names their payload (or a copy, where that is not one piece
//!                        of pinned memory)
//!   no lock              the turn is the sender's: nobody overtakes it
//!   receiver, locked     packets are handled, payload is copied, answers become due
//!   no lock              completion handlers of the receiver
//!   no lock              once the sender has nothing more to send, the receiver takes a turn
//! ```
//!
//! Two QPs are never locked at once, and none waits for the other. A receiver that has to wait for a page
//! does not take the packet. That one and those that follow it within [`DETOUR_NS`] are built, and go through
//! the loopback interface: a packet can be kept until the page is there.

use super::{
    inbound::{
        Inbound,
        Payload, //
    },
    lane::Way,
    now,
    transmit::{
        read_payload,
        BuildError, //
    },
    world::World,
    Io,
    QueuePair,
    BUDGET_INLINE, //
};
use crate::{
    counters::PortCounter,
    region::{
        self,
        Request, //
    }, //
};
use core::ops::Range;
use kernel::sync::rcu;
use rdma::net::{
    OwnedIpHeader,
    Segments,
    TxError, //
};
use roce::{
    env::MemoryError,
    run::Run,
    types::{
        Instant,
        Qpn, //
    },
    wire::ICRC_LEN, //
};

/// So long packets are built after one was not taken, in nanoseconds.
const DETOUR_NS: u64 = 10_000_000;

/// After a turn, so many others follow at most, each of the peer of the one before; what is due then is
/// left to a work item.
const MAX_FOLLOWING: usize = 16;

/// The payload of a run, on its way.
pub(super) enum Cargo {
    None,
    /// Where it is, and the protection domain of those who sent it.
    Named(usize, Request),
    Copied(Segments),
}

/// How many datagrams were taken, and the bytes that they would have had as UDP payload.
pub(super) type Taken = (u32, u64);

impl World<'_> {
    /// Whether the peer is a QP of this device and packets to it need not be built.
    #[inline]
    pub(super) fn goes_directly(&mut self, now: Instant) -> bool {
        let qp = self.qp;
        if qp.kind.is_datagram() || self.io.detour.is_some_and(|until| now < until) {
            return false;
        }
        let Some(lane) = self.io.lanes.get(Way::Peer) else {
            return false;
        };
        qp.port.is_reached_by(&mut lane.flow) && qp.port.is_direct()
    }

    /// What the IP headers of packets to the peer would be.
    pub(super) fn direct_way(&mut self) -> Option<OwnedIpHeader> {
        let lane = self.io.lanes.get(Way::Peer)?;
        Some(lane.flow.headers_without_lengths().0.into())
    }
}

impl Io {
    /// A packet was not taken.
    pub(super) fn take_detour(&mut self, now: Instant) {
        self.detour = Some(now.after(DETOUR_NS));
    }
}

impl Cargo {
    /// The payload of `run`, and of how many of its packets that is.
    ///
    /// # Context
    ///
    /// Under the sender's lock.
    pub(super) fn load(world: &World<'_>, run: &Run) -> Result<(Self, u32), BuildError> {
        let length = run.payload_len();
        if length == 0 {
            return Ok((Self::None, run.count));
        }
        if let Ok((pd, request)) = world.named(run, 0, length) {
            let regions = &world.qp.port.regions;
            if region::with_pinned(regions, world.rcu, pd, &request, |_, _| ()).is_some() {
                return Ok((Self::Named(pd, request), run.count));
            }
        }
        let each = run.mtu.bytes().min(length);
        let mut copy = world
            .qp
            .port
            .segments
            .take(each, run.count)
            .ok_or(BuildError::Network(TxError::NoMemory))?;
        let room = copy.bytes().len() as u32;
        let fit = room.checked_div(each).unwrap_or(0).min(run.count).max(1);
        // If not all of it is to be had, at least the first packet may be.
        for count in [fit, 1] {
            let total = each.saturating_mul(count).min(length);
            let bytes = copy.bytes_mut().get_mut(..total as usize);
            match read_payload(world, run, 0, bytes.unwrap_or_default()) {
                Ok(()) => {
                    copy.truncate(total);
                    return Ok((Self::Copied(copy), count));
                }
                Err(error) if count == 1 => return Err(BuildError::Memory(error)),
                Err(_) => world.missing.set(None),
            }
        }
        Err(BuildError::Memory(MemoryError::Fault))
    }

    /// Calls `f` with the payload. `None` if it is not there any more.
    fn with<T>(
        &self,
        sender: &QueuePair,
        rcu: &rcu::Guard,
        f: impl FnOnce(Payload<'_>) -> T,
    ) -> Option<T> {
        match self {
            Self::None => Some(f(Payload::one(&[]))),
            Self::Copied(copy) => Some(f(Payload::one(copy.bytes()))),
            Self::Named(pd, request) => {
                let regions = &sender.port.regions;
                region::with_pinned(regions, rcu, *pd, request, |umem, offset| {
                    f(Payload::Memory {
                        umem,
                        offset,
                        length: request.length as usize,
                    })
                })
            }
        }
    }
}

impl QueuePair {
    /// Hands the first `count` packets of `run`, whose payload is `cargo`, to the peer, and returns how many
    /// are out of the sender's hands: taken by the peer, or lost.
    ///
    /// # Context
    ///
    /// Process or softirq context, no lock held.
    pub(super) fn hand_over(
        &self,
        ip: &OwnedIpHeader,
        run: &Run,
        count: u32,
        cargo: &Cargo,
    ) -> Taken {
        let rcu = rcu::read_lock();
        let Some(peer) = self.port.qps.get(&rcu, run.dest_qp.get()) else {
            let lost = u64::from(count);
            self.port.counters.add(PortCounter::DropNoQp, lost);
            return (count, 0);
        };
        let (mut done, mut bytes) = (0u32, 0u64);
        while done < count {
            let taken = cargo.with(self, &rcu, |payload| {
                peer.take_over(ip, run, done..count, &payload)
            });
            match taken.flatten() {
                Some((0, _)) => break,
                Some((taken, length)) => {
                    done = done.wrapping_add(taken);
                    bytes = bytes.wrapping_add(length);
                }
                // The memory or the peer has gone.
                None => done = count,
            }
        }
        (done, bytes)
    }

    /// Takes the packets `range` of `run`, which come from a QP of this device: all of them, up to one that
    /// has to wait for a page, or one behind which something is to be delivered first. What has become due
    /// is left to the sender, see [`Self::follow`]. `None` if this QP is gone.
    fn take_over(
        &self,
        ip: &OwnedIpHeader,
        run: &Run,
        range: Range<u32>,
        payload: &Payload<'_>,
    ) -> Option<Taken> {
        let counters = &self.port.counters;
        let (taken, _) = self.act(BUDGET_INLINE, |steps| {
            steps.defers = true;
            let (mut index, mut bytes) = (range.start, 0u64);
            if steps.io.faults.is_stalled() {
                return (0, 0);
            }
            steps.io.company.heard();
            let (_, world) = steps.next(None);
            let welcome = world.takes_from(&ip.get());
            let now = now();
            while index < range.end {
                let Some(mut packet) = run.as_received(index) else {
                    break;
                };
                // Where the payload of the packet is, and of `count` of them.
                let start = run.mtu.span(index) as usize;
                let each = packet.payload_len as usize;
                let part = |count: u32| {
                    let end = start.wrapping_add(each.wrapping_mul(count as usize));
                    payload.part(start..end)
                };
                let mut count = 1u32;
                if welcome && steps.core.awaits_middle(&packet) {
                    let (middles, asks) = run.middles(index);
                    let middles = middles.min(range.end.wrapping_sub(index));
                    if let Some(part) = part(middles).filter(|_| middles > 1) {
                        let ask_alone = core::mem::replace(&mut packet.bth.ack_req, asks);
                        let inbound = Inbound::direct(part, ip.get());
                        let (core, mut world) = steps.next(Some(&inbound));
                        if core.handle_middles(now, &packet, middles, &mut world) {
                            count = middles;
                        } else {
                            packet.bth.ack_req = ask_alone;
                        }
                    }
                }
                if count == 1 {
                    let Some(part) = part(1) else {
                        break;
                    };
                    let inbound = Inbound::direct(part, ip.get());
                    if self
                        .handle(steps, &inbound, now, &packet, welcome)
                        .is_some()
                    {
                        break;
                    }
                }
                let length = (packet.payload_offset as usize)
                    .wrapping_add(each)
                    .wrapping_add(usize::from(packet.bth.pad))
                    .wrapping_add(ICRC_LEN);
                bytes = bytes.wrapping_add((length as u64).wrapping_mul(u64::from(count)));
                index = index.wrapping_add(count);
                if steps.is_full() {
                    break;
                }
            }
            (index.wrapping_sub(range.start), bytes)
        })?;
        counters.add(PortCounter::ReceivedPackets, u64::from(taken.0));
        counters.add(PortCounter::ReceivedBytes, taken.1);
        Some(taken)
    }

    /// Lets QP `next` send what has become due when it was handed packets, and so on with the one that it
    /// hands packets to. One after the other, so that however they are connected, no stack grows.
    ///
    /// # Context
    ///
    /// Process or softirq context, no lock held.
    pub(super) fn follow(&self, mut next: Qpn, budget: u32) {
        let rcu = rcu::read_lock();
        for _ in 0..MAX_FOLLOWING {
            let Some(qp) = self.port.qps.get(&rcu, next.get()) else {
                return;
            };
            match qp.act(budget, |_| ()) {
                Some(((), Some(then))) => next = then,
                _ => return,
            }
        }
        if let Some(qp) = self.port.qps.get(&rcu, next.get()) {
            qp.kick();
        }
    }
}
