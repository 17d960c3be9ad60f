// SPDX-License-Identifier: GPL-2.0
//! A turn of transmission: packets that are built under the QP's lock and sent without it.

use super::{
    direct::Cargo,
    fault::Missing,
    lane::{
        Lane,
        Way, //
    },
    sends::Payload,
    world::World,
    Core,
    Io,
    QueuePair, //
};
use crate::{
    counters::PortCounter,
    region::Backing, //
};
use kernel::prelude::*;
use rdma::{
    net::{
        OwnedIpHeader,
        TxError,
        TxOutcome,
        TxQueue,
        TxTrain, //
    },
    sync::Errand, //
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
    types::{
        Instant,
        Qpn, //
    },
    wire::{
        Packet,
        ICRC_LEN, //
    }, //
};
use zerocopy::IntoBytes;

/// The most packets in one turn, what is built in one go under the lock: four trains of the usual ones on
/// Ethernet, with 1,024 bytes of payload.
const TURN_PACKETS: u32 = 248;

/// The most datagrams: see [`Turn::multicast`].
const TURN_DATAGRAMS: u32 = 64;

/// The most bytes of payload in one turn: a few trains.
const TURN_BYTES: u32 = 60 << 12;

/// A packet of so many bytes is built like one of a train, also if it is alone: their memory is not
/// cleared first.
const LONG_PACKET: usize = 512;

/// The most runs in one turn.
const TURN_RUNS: usize = 32;

/// Why a packet was not built.
pub(super) enum BuildError {
    Memory(MemoryError),
    Network(TxError),
}

/// Packets that are built.
struct Packets {
    queue: TxQueue,
    /// The train that the next packet may join; it comes after those in `queue`.
    train: Option<TxTrain>,
    /// The number of the way that the train goes.
    lane: u64,
    /// Packets get an ICRC.
    icrc: bool,
    /// Packets in both.
    count: u32,
    /// One bit for each packet: whether it goes to a multicast address.
    multicast: u64,
}

/// Packets of one turn, and the runs that they belong to.
pub(super) struct Turn {
    packets: Packets,
    /// The first `used` count. The protocol writes them here: they are large, and not moved about.
    runs: [Option<Run>; TURN_RUNS],
    /// How many packets of each were built.
    built: [u32; TURN_RUNS],
    /// Packets are not built, but handed to another QP of the device; they would have had this header.
    direct: Option<OwnedIpHeader>,
    /// Then: the payload of each of the runs. Not an array, which each turn would initialise and drop.
    cargo: KVec<Cargo>,
    used: usize,
    /// The protocol had nothing more to send.
    is_all: bool,
}

impl Turn {
    pub(super) fn new() -> Self {
        Self {
            packets: Packets {
                queue: TxQueue::new(),
                train: None,
                lane: 0,
                icrc: true,
                count: 0,
                multicast: 0,
            },
            // Not a constant array: all of that would be copied, not only the tags.
            runs: core::array::from_fn(|_| None),
            built: [0; TURN_RUNS],
            used: 0,
            is_all: false,
            direct: None,
            cargo: KVec::new(),
        }
    }

    /// Whether the protocol had nothing to send. If all of what it had was lost on the way here, the
    /// turn is not over: the protocol waits to hear that it is out.
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The QP of this device that packets were handed to.
    pub(super) fn handed_to(&self) -> Option<Qpn> {
        self.direct?;
        let run = self.runs.first()?.as_ref()?;
        Some(run.dest_qp)
    }

    /// Makes the turn empty again.
    pub(super) fn clear(&mut self) {
        self.direct = None;
        self.cargo.clear();
        self.packets.count = 0;
        self.packets.multicast = 0;
        self.used = 0;
        self.is_all = false;
    }

    /// Whether the protocol had no more to send when this was built: then what comes up later is found by
    /// whoever brings it up.
    pub(super) fn is_all(&self) -> bool {
        self.is_all
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
        self.packets.icrc = world.qp.port.uses_icrc();
        if world.goes_directly(now) {
            let flags = GFP_NOWAIT | __GFP_NOWARN;
            // Without memory for that, packets are built.
            if self.cargo.reserve(TURN_RUNS, flags).is_ok() {
                self.direct = world.direct_way();
            }
        }
        let most = match world.qp.kind.is_datagram() {
            true => TURN_DATAGRAMS,
            false => TURN_PACKETS,
        };
        let mut bytes = 0u32;
        for (entry, done) in self.runs.iter_mut().zip(&mut self.built) {
            if core.is_idle() {
                self.is_all = true;
                break;
            }
            let full = core.path_mtu().packets(TURN_BYTES.saturating_sub(bytes));
            let room = most.saturating_sub(self.packets.count).min(full);
            if room == 0 || bytes >= TURN_BYTES {
                break;
            }
            core.next_run(now, room, world, entry);
            let Some(run) = entry else {
                break;
            };
            bytes = bytes.saturating_add(run.payload_len());
            let (built, refused) = match self.direct {
                None => self.packets.build_run(core, world, run),
                Some(_) => self.packets.load(world, run, &mut self.cargo),
            };
            *done = built;
            self.used = self.used.wrapping_add(1);
            match refused {
                None if built < run.count => {
                    core.put_back(run, built);
                    break;
                }
                None => {}
                Some(BuildError::Memory(MemoryError::NotResident)) => {
                    core.put_back(run, built);
                    if let Some(fault) = world.missing.take().and_then(Missing::page) {
                        world.io.faults.hold_transmission(fault);
                        Errand::queue(&world.qp.pager);
                    }
                    break;
                }
                Some(BuildError::Memory(error)) => {
                    core.payload_failed(run, built, error, world);
                }
                Some(BuildError::Network(TxError::NoMemory | TxError::Congested)) => {
                    world.qp.port.counters.protocol(Counter::Congested);
                    core.congested(now, run, built);
                }
                Some(BuildError::Network(_)) => {
                    // As if lost on the way: the timer asks again, and gives up in the end.
                    world.qp.port.counters.add(PortCounter::SendErrors, 1);
                }
            }
        }
        self.packets.close_train();
    }

    /// Hands the packets to the network stack.
    ///
    /// # Context
    ///
    /// Process or softirq context, no lock held.
    pub(super) fn send(&mut self, qp: &QueuePair) -> TxOutcome {
        let outcome = match &self.direct {
            None => self.packets.queue.send(),
            Some(ip) => self.hand_over(qp, ip),
        };
        let counters = &qp.port.counters;
        counters.add(PortCounter::SentPackets, u64::from(outcome.sent));
        counters.add(PortCounter::SentBytes, outcome.bytes);
        if self.packets.multicast != 0 {
            let done = outcome.sent.saturating_add(outcome.lost);
            let done = u64::MAX.checked_shl(done).map_or(u64::MAX, |rest| !rest);
            let count = (self.packets.multicast & done).count_ones();
            counters.add(PortCounter::SentMulticast, u64::from(count));
        }
        if outcome.lost != 0 {
            counters.add(PortCounter::SendErrors, u64::from(outcome.lost));
        }
        if outcome.stopped.is_some() && self.direct.is_none() {
            counters.protocol(Counter::Congested);
        }
        outcome
    }

    /// The runs, each with the number of its packets that were built.
    fn runs(&self) -> impl Iterator<Item = (&Run, u32)> {
        let runs = self.runs.iter().take(self.used).flatten();
        runs.zip(self.built.iter().copied())
    }

    /// Hands the packets to the peer, up to the first that it does not take.
    fn hand_over(&self, qp: &QueuePair, ip: &OwnedIpHeader) -> TxOutcome {
        let mut outcome = TxOutcome::default();
        for ((run, count), cargo) in self.runs().zip(&self.cargo) {
            let (done, bytes) = qp.hand_over(ip, run, count, cargo);
            outcome.sent = outcome.sent.wrapping_add(done);
            outcome.bytes = outcome.bytes.wrapping_add(bytes);
            if done < count {
                outcome.stopped = Some(TxError::Congested);
                break;
            }
        }
        outcome
    }

    /// Tells the protocol what was not sent, if that stopped.
    ///
    /// # Context
    ///
    /// Under the QP's lock.
    pub(super) fn report(&self, core: &mut Core, io: &mut Io, outcome: &TxOutcome, now: Instant) {
        if self.direct.is_some() {
            io.take_detour(now);
        }
        let mut left = outcome.sent.saturating_add(outcome.lost);
        let mut told = (false, false);
        for (run, built) in self.runs() {
            if left >= built {
                left = left.wrapping_sub(built);
                continue;
            }
            // Each half goes back to the first packet of its own that was not sent.
            let told = match run.role {
                Role::Requester => &mut told.0,
                Role::Responder => &mut told.1,
            };
            if !core::mem::replace(told, true) {
                match self.direct {
                    None => core.congested(now, run, left),
                    Some(_) => {
                        core.put_back(run, left);
                    }
                }
            }
            left = 0;
        }
    }
}

impl Packets {
    /// Builds the packets of `run`, and returns how many, and why not the others.
    #[inline]
    fn build_run(
        &mut self,
        core: &Core,
        world: &mut World<'_>,
        run: &Run,
    ) -> (u32, Option<BuildError>) {
        let mut built = 0u32;
        while built < run.count {
            let more = built.wrapping_add(1) < run.count || core.has_unsent() || core.owes_ack();
            match self.add(world, run, built, more) {
                Ok(added) => {
                    built = built.wrapping_add(added);
                    self.count = self.count.wrapping_add(added);
                }
                Err(error) => return (built, Some(error)),
            }
        }
        (built, None)
    }

    /// As [`Self::build_run`], for a run that is handed over: packets that are not among those returned may
    /// be so next time.
    fn load(
        &mut self,
        world: &World<'_>,
        run: &Run,
        loaded: &mut KVec<Cargo>,
    ) -> (u32, Option<BuildError>) {
        let (cargo, count, refused) = match Cargo::load(world, run) {
            Ok((cargo, count)) => (cargo, count, None),
            Err(error) => (Cargo::None, 0, Some(error)),
        };
        // There is room for that of each run, see `Turn::build`.
        let _ = loaded.push_within_capacity(cargo);
        self.count = self.count.wrapping_add(count);
        (count, refused)
    }

    /// Builds packets of `run` from `index` on, with their payload and ICRC, and returns how many: those
    /// that are alike, as far as they fit the train. `more` says whether another one is likely to
    /// follow the first.
    #[inline]
    fn add(
        &mut self,
        world: &mut World<'_>,
        run: &Run,
        index: u32,
        more: bool,
    ) -> Result<u32, BuildError> {
        let mut packet = run.start(index);
        run.complete(index, &mut packet);
        let length = (packet.payload_offset as usize)
            .saturating_add(packet.payload_len as usize)
            .saturating_add(usize::from(packet.bth.pad))
            .saturating_add(ICRC_LEN);
        let way = way(world, run)?;
        let Lane {
            number, multicast, ..
        } = *lane(world, way)?;
        let joins = |train: &TxTrain| self.lane == number && train.room(length) != 0;
        if !self.train.as_ref().is_some_and(joins) {
            self.close_train();
            if (more || length >= LONG_PACKET) && !multicast {
                let lane = lane(world, way)?;
                self.train = lane.flow.train(length).map_err(BuildError::Network)?;
                self.lane = number;
            }
        }
        if let Some(train) = &mut self.train {
            let count = run.alike(index).min(train.room(length));
            if let Some(mut segments) = world.qp.port.segments.take(length as u32, count) {
                let built = write_run(world, run, index, &packet, segments.bytes_mut(), length)?;
                segments.truncate(built.saturating_mul(length as u32));
                let seal = lane(world, way)?.seal(length, self.icrc);
                let mut id = train.segments() as u16;
                for body in each(segments.bytes_mut(), length) {
                    seal.put(body, id);
                    id = id.wrapping_add(1);
                }
                train
                    .push(segments, length as u32)
                    .map_err(BuildError::Network)?;
                return Ok(built);
            }
            self.close_train();
        }
        let mut buffer = lane(world, way)?
            .flow
            .build(length)
            .map_err(BuildError::Network)?;
        write(world, run, index, &packet, buffer.payload_mut())?;
        let seal = lane(world, way)?.seal(length, self.icrc);
        seal.put(buffer.payload_mut(), 0);
        self.multicast |= u64::from(multicast).wrapping_shl(self.count);
        self.queue.push(buffer);
        Ok(1)
    }

    /// Ends the train: what is built next comes after it.
    fn close_train(&mut self) {
        if self.train.is_none() {
            // Nothing is moved.
            return;
        }
        if let Some(train) = self.train.take() {
            if train.segments() != 0 {
                self.queue.push(train.finish());
            }
        }
    }
}

/// The way that a run takes: to the address of a datagram, or the connected peer.
#[inline]
fn way(world: &mut World<'_>, run: &Run) -> Result<Way, BuildError> {
    let address = run.slot.and_then(|slot| world.io.slots.address(slot));
    let Some(vector) = address.map(|address| address.vector()) else {
        return Ok(Way::Peer);
    };
    let qp = world.qp;
    world
        .io
        .lanes
        .find(&vector, || Lane::new(&qp.port, &vector, qp.qpn, qp.qpn))
        .map_err(|_| BuildError::Network(TxError::NoRoute))
}

/// The lane of a way.
#[inline]
fn lane<'a>(world: &'a mut World<'_>, way: Way) -> Result<&'a mut Lane, BuildError> {
    world
        .io
        .lanes
        .get(way)
        .ok_or(BuildError::Network(TxError::NoRoute))
}

/// Writes packets of `run` from `index` on, of which `packet` is the first, to `bodies`: all of them but
/// their ICRC, each of `length` bytes. They are alike. Returns how many were written.
#[inline]
fn write_run(
    world: &World<'_>,
    run: &Run,
    index: u32,
    packet: &Packet,
    bodies: &mut [u8],
    length: usize,
) -> Result<u32, BuildError> {
    let count = bodies.len().checked_div(length).unwrap_or(0) as u32;
    if count > 1 {
        // Memory is looked up and checked once for all of them.
        let total = packet.payload_len.saturating_mul(count);
        let written = with_payload(world, run, run.mtu.span(index), total, |memory, at| {
            let (mut index, mut at) = (index, at);
            for body in each(bodies, length) {
                let header = run.bare_header(index).ok_or(MemoryError::Fault)?;
                let (to, rest) = body.split_first_chunk_mut().ok_or(MemoryError::Fault)?;
                *to = header;
                let payload = rest.get_mut(..packet.payload_len as usize);
                memory.read(at, payload.ok_or(MemoryError::Fault)?)?;
                at = at.wrapping_add(u64::from(packet.payload_len));
                index = index.wrapping_add(1);
            }
            Ok(())
        });
        if written.is_ok() {
            return Ok(count);
        }
        // One by one, it is seen which of them cannot be.
        world.missing.set(None);
    }
    let body = bodies
        .get_mut(..length)
        .ok_or(BuildError::Memory(MemoryError::Fault))?;
    write(world, run, index, packet, body)?;
    Ok(1)
}

/// The packets of `length` bytes that lie one behind the other in `bodies`.
#[inline]
fn each(mut bodies: &mut [u8], length: usize) -> impl Iterator<Item = &mut [u8]> {
    core::iter::from_fn(move || {
        let (body, rest) = core::mem::take(&mut bodies).split_at_mut_checked(length)?;
        bodies = rest;
        (!body.is_empty()).then_some(body)
    })
}

/// Writes the headers of `packet` to the front of `body`, and returns its payload and what follows that.
#[inline]
fn split<'a>(body: &'a mut [u8], packet: &Packet) -> Option<(&'a mut [u8], &'a mut [u8])> {
    let length = packet.emit(body);
    if length == 0 {
        return None;
    }
    let (_, rest) = body.split_at_mut_checked(length)?;
    rest.split_at_mut_checked(packet.payload_len as usize)
}

/// Calls `f` with the memory that has `length` bytes of payload of `run`, `offset` bytes into it, and
/// where they start in it.
///
/// # Errors
///
/// Those of `f`; if the bytes are not in one piece, or not to be had.
fn with_payload(
    world: &World<'_>,
    run: &Run,
    offset: u32,
    length: u32,
    f: impl FnOnce(&Backing, u64) -> Result<(), MemoryError>,
) -> Result<(), MemoryError> {
    let (pd, request) = world.named(run, offset, length)?;
    world.with_request(pd, request, f)
}

/// Writes all of packet `index` of `run` but its ICRC to `body`, which has just the right length.
#[inline]
fn write(
    world: &World<'_>,
    run: &Run,
    index: u32,
    packet: &Packet,
    body: &mut [u8],
) -> Result<(), BuildError> {
    let (payload, rest) = split(body, packet).ok_or(BuildError::Memory(MemoryError::Fault))?;
    read_payload(world, run, run.mtu.span(index), payload).map_err(BuildError::Memory)?;
    // Not a call for none or three bytes.
    let pad = rest.iter_mut().take(usize::from(packet.bth.pad));
    pad.for_each(|byte| *byte = 0);
    Ok(())
}

/// Fills `buf` from `offset` bytes on in the payload source of `run`.
pub(super) fn read_payload(
    world: &World<'_>,
    run: &Run,
    offset: u32,
    buf: &mut [u8],
) -> Result<(), MemoryError> {
    if buf.is_empty() {
        return Ok(());
    }
    match run.source {
        PayloadSource::None | PayloadSource::Remote { .. } => {
            let length = buf.len() as u32;
            with_payload(world, run, offset, length, |memory, at| {
                memory.read(at, buf)
            })
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
                    let stored = stored.get(at as usize..).ok_or(MemoryError::Fault)?;
                    let stored = stored.get(..buf.len()).ok_or(MemoryError::Fault)?;
                    buf.copy_from_slice(stored);
                    Ok(())
                }
                Payload::Local(_) => Err(MemoryError::Fault),
                Payload::List => world.gather(world.io.slots.list(slot), u64::from(at), buf),
            }
        }
    }
}
