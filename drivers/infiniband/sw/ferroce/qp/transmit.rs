// SPDX-License-Identifier: GPL-2.0
//! A turn of transmission: packets that are built under the QP's lock and sent without it.

use super::{
    sends::Payload,
    world::World,
    Core, //
};
use crate::{
    counters::{
        Counters,
        PortCounter, //
    },
    crc,
    port::Port, //
};
use kernel::prelude::*;
use rdma::net::{
    Flow,
    TxError,
    TxOutcome,
    TxPacket,
    TxQueue, //
};
use roce::{
    env::{
        Counter,
        MemoryError, //
    },
    run::{
        PayloadSource,
        Role,
        Run, //
    },
    types::Instant,
    wire::ICRC_LEN, //
};
use zerocopy::IntoBytes;

/// The most packets in one turn: what is built in one go under the lock.
const TURN_PACKETS: usize = 64;

/// The most runs in one turn.
const TURN_RUNS: usize = 16;

/// Why a packet was not built.
enum BuildError {
    Memory(MemoryError),
    Network(TxError),
}

/// Packets of one turn, and the runs that they belong to.
pub(super) struct Turn {
    queue: TxQueue,
    /// Runs with the number of their packets in `queue`.
    runs: [Option<(Run, u32)>; TURN_RUNS],
    /// UDP payload bytes of each packet in `queue`.
    lengths: [u16; TURN_PACKETS],
    /// One bit for each packet in `queue`: whether it goes to a multicast address.
    multicast: u64,
}

impl Turn {
    pub(super) fn new() -> Self {
        Self {
            queue: TxQueue::new(),
            runs: [const { None }; TURN_RUNS],
            lengths: [0; TURN_PACKETS],
            multicast: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Makes the turn empty again.
    pub(super) fn clear(&mut self) {
        self.runs = [const { None }; TURN_RUNS];
        self.multicast = 0;
    }

    /// Builds what is due, up to the limits of a turn.
    ///
    /// # Context
    ///
    /// Under the QP's lock.
    pub(super) fn build(&mut self, core: &mut Core, world: &mut World<'_>, now: Instant) {
        if world.io.faults.holds_transmission() {
            return;
        }
        for entry in &mut self.runs {
            let room = TURN_PACKETS.saturating_sub(self.queue.len());
            if room == 0 {
                return;
            }
            let Some(run) = core.poll_transmit(now, room as u32, world) else {
                return;
            };
            let mut built = 0u32;
            let mut refused = None;
            while built < run.count {
                match build_packet(world, &run, built) {
                    Ok(mut packet) => {
                        let multicast = u64::from(packet.ip().is_multicast());
                        self.multicast |= multicast.wrapping_shl(self.queue.len() as u32);
                        if let Some(length) = self.lengths.get_mut(self.queue.len()) {
                            *length = packet.payload_mut().len() as u16;
                        }
                        self.queue.push(packet);
                    }
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                }
                built = built.wrapping_add(1);
            }
            match refused {
                None => {}
                Some(BuildError::Memory(MemoryError::NotResident)) => {
                    core.put_back(&run, built);
                    if let Some(fault) = world.fault.take() {
                        world.io.faults.hold_transmission(fault);
                        world.qp.pager.queue();
                    }
                    *entry = Some((run, built));
                    return;
                }
                Some(BuildError::Memory(error)) => {
                    core.payload_failed(&run, built, error, world);
                }
                Some(BuildError::Network(TxError::NoMemory | TxError::Congested)) => {
                    world.qp.port.counters.protocol(Counter::Congested);
                    core.congested(now, &run, built);
                }
                Some(BuildError::Network(_)) => {
                    // As if lost on the way: the timer asks again, and gives up in the end.
                    world.qp.port.counters.add(PortCounter::SendErrors, 1);
                }
            }
            *entry = Some((run, built));
        }
    }

    /// Hands the packets to the network stack.
    ///
    /// # Context
    ///
    /// Process or softirq context, no lock held.
    pub(super) fn send(&mut self, counters: &Counters) -> TxOutcome {
        let outcome = self.queue.send();
        let done = outcome.sent.saturating_add(outcome.lost) as usize;
        let bytes = self
            .lengths
            .iter()
            .take(done)
            .fold(0u64, |sum, length| sum.wrapping_add(u64::from(*length)));
        counters.add(PortCounter::SentPackets, u64::from(outcome.sent));
        counters.add(PortCounter::SentBytes, bytes);
        if self.multicast != 0 {
            let done = u64::MAX
                .checked_shl(done as u32)
                .map_or(u64::MAX, |rest| !rest);
            let count = (self.multicast & done).count_ones();
            counters.add(PortCounter::SentMulticast, u64::from(count));
        }
        if outcome.lost != 0 {
            counters.add(PortCounter::SendErrors, u64::from(outcome.lost));
        }
        if outcome.stopped.is_some() {
            counters.protocol(Counter::Congested);
        }
        outcome
    }

    /// Tells the protocol what was not sent.
    ///
    /// # Context
    ///
    /// Under the QP's lock.
    pub(super) fn report(&self, core: &mut Core, outcome: &TxOutcome, now: Instant) {
        if outcome.stopped.is_none() {
            return;
        }
        let mut left = outcome.sent.saturating_add(outcome.lost);
        let mut told = (false, false);
        for (run, built) in self.runs.iter().flatten() {
            if left >= *built {
                left = left.wrapping_sub(*built);
                continue;
            }
            // Each half goes back to the first packet of its own that was not sent.
            let told = match run.role {
                Role::Requester => &mut told.0,
                Role::Responder => &mut told.1,
            };
            if !*told {
                core.congested(now, run, left);
                *told = true;
            }
            left = 0;
        }
    }
}

/// Builds packet `index` of `run`, with its payload and ICRC.
fn build_packet(world: &mut World<'_>, run: &Run, index: u32) -> Result<TxPacket, BuildError> {
    let packet = run
        .packet(index)
        .ok_or(BuildError::Memory(MemoryError::Fault))?;
    let length = packet
        .header_len
        .saturating_add(packet.payload_len as usize)
        .saturating_add(usize::from(packet.pad))
        .saturating_add(ICRC_LEN);
    let mut buffer = new_buffer(world, run, length)?;
    let body = buffer.payload_mut();
    if let (Some(to), Some(from)) = (
        body.get_mut(..packet.header_len),
        packet.header.get(..packet.header_len),
    ) {
        to.copy_from_slice(from);
    }
    let end = packet
        .header_len
        .saturating_add(packet.payload_len as usize);
    if let Some(payload) = body.get_mut(packet.header_len..end) {
        read_payload(world, run, packet.payload_offset, payload).map_err(BuildError::Memory)?;
    }
    if let Some(pad) = body.get_mut(end..end.saturating_add(usize::from(packet.pad))) {
        pad.fill(0);
    }
    crc::seal(&mut buffer);
    Ok(buffer)
}

/// A buffer on the way to where `run` goes.
fn new_buffer(world: &mut World<'_>, run: &Run, length: usize) -> Result<TxPacket, BuildError> {
    let address = run.slot.and_then(|slot| world.io.slots.address(slot));
    if let Some(address) = address {
        let mut flow = datagram_flow(&world.qp.port, address.vector(), world.qp.qpn)
            .map_err(|_| BuildError::Network(TxError::NoRoute))?;
        return flow.build(length).map_err(BuildError::Network);
    }
    let flow = world
        .io
        .flow
        .as_mut()
        .ok_or(BuildError::Network(TxError::NoRoute))?;
    flow.build(length).map_err(BuildError::Network)
}

/// The way to the address of a datagram.
fn datagram_flow(
    port: &Port,
    vector: rdma::verbs::AddressVector,
    qpn: roce::types::Qpn,
) -> Result<Flow> {
    port.flow(&vector, qpn, qpn)
}

/// Fills `buf` from `offset` bytes on in the payload source of `run`.
fn read_payload(
    world: &World<'_>,
    run: &Run,
    offset: u32,
    buf: &mut [u8],
) -> Result<(), MemoryError> {
    if buf.is_empty() {
        return Ok(());
    }
    match run.source {
        PayloadSource::None => Err(MemoryError::Fault),
        PayloadSource::Remote { rkey, va } => {
            let va = va
                .checked_add(u64::from(offset))
                .ok_or(MemoryError::Access)?;
            world.read_remote(rkey, va, buf)
        }
        PayloadSource::Wqe { slot, offset: base } => {
            let at = base.checked_add(offset).ok_or(MemoryError::Access)?;
            match world.io.slots.payload(slot) {
                Payload::Inline(index) => world
                    .io
                    .sends
                    .read_inline(index, at, buf)
                    .map_err(|_| MemoryError::Fault),
                Payload::Stored => {
                    let stored = world.io.slots.list(slot).as_bytes();
                    let end = (at as usize).saturating_add(buf.len());
                    let stored = stored.get(at as usize..end).ok_or(MemoryError::Fault)?;
                    buf.copy_from_slice(stored);
                    Ok(())
                }
                Payload::Local(_) => Err(MemoryError::Fault),
                Payload::List => world.gather(world.io.slots.list(slot), u64::from(at), buf),
            }
        }
    }
}
