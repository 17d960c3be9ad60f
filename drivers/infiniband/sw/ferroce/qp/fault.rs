// SPDX-License-Identifier: GPL-2.0
//! Memory that is not there: pages of regions that are paged on demand.
//!
//! Packets are built and handled under the QP's lock, where nobody can wait for a page. So what meets
//! one that is absent is put aside, the QP's pager brings the page in, and it is done again:
//!
//! ```text
//!   to be sent     put back; nothing is built until the pager has been there
//!   came in        the packet is kept, and those that follow it; the pager hands them in again, in order
//! ```
//!
//! The peer sees nothing of it but time. A page that cannot be had (not mapped, not to be written to) is
//! noted as hopeless, and the access fails when it is made again.
//!
//! A fault may take as long as whatever is behind the page: the pager has a work item of its own on a queue
//! of its own, so that only QPs that wait for pages wait.

use super::{
    drive::Steps,
    inbound::{
        Inbound,
        InboundRun, //
    },
    now,
    world::World,
    QueuePair,
    State,
    BUDGET_WORK, //
};
use crate::{
    counters::PortCounter,
    prefetch::Advice,
    region::{
        self,
        Accessor,
        Request, //
    },
    uapi::access, //
};
use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    net::RxPacket,
    sync::{
        Errand,
        WorkTarget, //
    },
    umem::Fault, //
};
use roce::{
    env::MemoryError,
    types::{
        Instant,
        Qpn, //
    },
    wire::Packet, //
};

/// The most packets that wait for a page; what comes beyond is dropped, as if lost.
const MAX_WAITING: usize = 512;

/// An access that met absent memory.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) struct PageFault {
    pub(super) who: Accessor,
    pub(super) request: Request,
}

/// What a packet waits for.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Missing {
    Page(PageFault),
    /// A receive WQE, see [`super::receive_wait`].
    Receive,
}

impl Missing {
    pub(super) fn page(self) -> Option<PageFault> {
        match self {
            Self::Page(fault) => Some(fault),
            Self::Receive => None,
        }
    }
}

/// What of a QP waits for pages, and what for a receive WQE.
#[derive(Default)]
pub(super) struct Faults {
    /// What the packets wait for.
    receive: Option<Missing>,
    /// What transmission waits for.
    transmit: Option<PageFault>,
    /// Packets wait, or are being handed in again.
    stalled: bool,
    /// They are being handed in again.
    replaying: bool,
    /// The packet whose turn it is.
    current: Option<RxPacket>,
    /// Those behind it.
    waiting: KVec<RxPacket>,
    /// Accesses that will not succeed: of packets, and of transmission.
    hopeless: [Cell<Option<PageFault>>; 2],
}

impl Faults {
    /// Whether packets are to wait.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Whether nothing is to be built.
    pub(super) fn holds_transmission(&self) -> bool {
        self.transmit.is_some()
    }

    /// What the packets wait for.
    pub(super) fn missing(&self) -> Option<Missing> {
        self.receive
    }

    /// Packets that wait for a receive WQE are to be handed in again.
    pub(super) fn found_receive(&mut self) {
        self.receive = None;
    }

    /// The packet at hand waits; so do those that follow. Returns true.
    pub(super) fn stall(&mut self, missing: Missing) -> bool {
        self.receive = Some(missing);
        self.stalled = true;
        true
    }

    /// Transmission waits for a page.
    pub(super) fn hold_transmission(&mut self, fault: PageFault) {
        self.transmit = Some(fault);
    }

    /// Whether an access is known to fail. It is asked once.
    pub(super) fn is_hopeless(&self, fault: &PageFault) -> bool {
        let found = self.hopeless.iter().find(|cell| cell.get() == Some(*fault));
        if let Some(cell) = found {
            cell.set(None);
        }
        found.is_some()
    }

    /// Forgets what the QP waits for: it was reset. What waits is thrown away by whoever handles it.
    pub(super) fn reset(&mut self) {
        self.transmit = None;
        self.current = None;
        self.waiting.clear();
        for cell in &self.hopeless {
            cell.set(None);
        }
    }
}

/// How a fault ended.
fn outcome(fault: &PageFault, result: Result) -> Option<PageFault> {
    match result {
        // The access is made again, and faults again if it has to.
        Ok(()) | Err(EAGAIN | EBUSY) => None,
        Err(_) => Some(*fault),
    }
}

/// Serves the faults of a QP. The lock is held for whatever is done with the QP, but not for the faults
/// themselves: the page may be one that only the end of the program brings, and that waits for the QP.
#[pin_data]
pub(super) struct Pager {
    #[pin]
    qp: Mutex<Option<Arc<QueuePair>>>,
}

impl Pager {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            qp <- kernel::new_mutex!(None, "ferroce_pager"),
        })
    }

    /// Gives it its QP.
    pub(super) fn attach(&self, qp: Arc<QueuePair>) {
        *self.qp.lock() = Some(qp);
    }

    /// From here on it does nothing with the QP any more.
    ///
    /// # Context
    ///
    /// Process context, may sleep.
    pub(super) fn dismiss(&self) {
        let qp = self.qp.lock().take();
        drop(qp);
    }
}

impl WorkTarget for Pager {
    fn run(&self) {
        loop {
            let wanted = match &*self.qp.lock() {
                Some(qp) => qp.wanted(),
                None => return,
            };
            let Some(wanted) = wanted else {
                return;
            };
            let failed = wanted.each_ref().map(|wanted| {
                let (fault, memory) = wanted.as_ref()?;
                outcome(fault, memory.as_ref()?.follow())
            });
            let faults = wanted.map(|wanted| wanted.map(|(fault, _)| fault));
            match &*self.qp.lock() {
                Some(qp) if qp.go_on(faults, failed) => {}
                _ => return,
            }
        }
    }
}

/// Accesses that wait, of packets and of transmission, and what is to be brought in for them.
type Wanted = [Option<(PageFault, Option<Advice>)>; 2];

impl World<'_> {
    /// Notes that an access met absent memory.
    ///
    /// # Errors
    ///
    /// [`MemoryError::NotResident`], or [`MemoryError::Access`] if the memory cannot be had.
    pub(super) fn not_resident<T>(&self, fault: PageFault) -> Result<T, MemoryError> {
        if self.io.faults.is_hopeless(&fault) {
            return Err(MemoryError::Access);
        }
        self.missing.set(Some(Missing::Page(fault)));
        Err(MemoryError::NotResident)
    }
}

impl QueuePair {
    /// Keeps the datagrams of a packet, of which the first waits for a page, as far as they are for this
    /// QP; returns what is behind them.
    ///
    /// # Context
    ///
    /// Softirq.
    pub(crate) fn put_aside(&self, mut packet: RxPacket) -> Option<RxPacket> {
        let ours = |bytes: &&[u8]| {
            let parsed = Packet::parse(bytes, bytes.len());
            parsed.is_ok_and(|parsed| parsed.bth.dest_qp == self.qpn)
        };
        let count = packet.payloads().take_while(ours).count();
        if packet.payloads().nth(count).is_none() {
            self.keep(Some(packet));
            return None;
        }
        self.keep(packet.first(count));
        packet.skip(count);
        Some(packet)
    }

    /// Keeps a packet, of which all datagrams are for this QP, until what it waits for is there.
    /// None: there was no memory to keep it.
    ///
    /// # Context
    ///
    /// Softirq.
    pub(super) fn keep(&self, mut packet: Option<RxPacket>) {
        let lost = packet.is_none();
        let missing = {
            let mut state = self.state.lock();
            let io = &mut state.io;
            if !io.dead && io.faults.waiting.len() < MAX_WAITING {
                if let Some(packet) = packet.take() {
                    // Out of memory, it is lost.
                    let _ = io.faults.waiting.push(packet, GFP_ATOMIC);
                    // The pager may have been there since the packet was told to wait.
                    io.faults.stalled = true;
                }
            }
            io.faults.receive
        };
        if lost || packet.is_some() {
            self.port.counters.add(PortCounter::DropPageFault, 1);
        }
        // For a receive WQE the timer looks.
        if missing != Some(Missing::Receive) {
            Errand::queue(&self.pager);
        }
    }

    /// What the QP waits for. None once it is dead.
    fn wanted(&self) -> Option<Wanted> {
        let faults = {
            let state = self.state.lock();
            let State { io, .. } = &*state;
            if io.dead {
                return None;
            }
            let receive = io.faults.receive.and_then(Missing::page);
            [receive, io.faults.transmit]
        };
        Some(faults.map(|fault| fault.map(|fault| (fault, self.find(&fault)))))
    }

    /// Goes on with what has waited for these accesses, some of which cannot succeed. Returns whether
    /// something waits again.
    ///
    /// # Context
    ///
    /// Process context.
    fn go_on(
        &self,
        [receive, transmit]: [Option<PageFault>; 2],
        failed: [Option<PageFault>; 2],
    ) -> bool {
        let stalled = {
            let mut state = self.state.lock();
            let faults = &mut state.io.faults;
            for (cell, failed) in faults.hopeless.iter().zip(failed) {
                cell.set(failed);
            }
            // Another one may have come up meanwhile.
            if faults.receive == receive.map(Missing::Page) {
                faults.receive = None;
            }
            if faults.transmit == transmit {
                faults.transmit = None;
            }
            faults.stalled
        };
        if stalled {
            self.replay();
        }
        let _ = self.drive(BUDGET_WORK, |_, _| ());
        let state = self.state.lock();
        let faults = &state.io.faults;
        // What waits for a receive WQE is the timer's matter.
        let received = match faults.receive {
            None => !faults.stalled,
            Some(missing) => missing == Missing::Receive,
        };
        !received || faults.transmit.is_some()
    }

    /// The memory that an access is to.
    fn find(&self, fault: &PageFault) -> Option<Advice> {
        let writes = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        let kind = match fault.request.rights & writes {
            0 => Fault::Read,
            _ => Fault::Write,
        };
        let rcu = rcu::read_lock();
        // If it may not be accessed any more, that is found out when the access is made again.
        let found = region::locate(&self.port.regions, &rcu, &fault.who, &fault.request);
        let (backing, offset) = found.ok()?;
        self.port.counters.add(PortCounter::PageFaults, 1);
        Some(Advice {
            backing,
            offset,
            length: usize::try_from(fault.request.length).unwrap_or(usize::MAX),
            fault: kind,
        })
    }

    /// Hands in the packets that have waited, until one has to wait again. Does nothing if somebody else is at
    /// it.
    ///
    /// # Context
    ///
    /// Process or softirq context, no lock held.
    pub(super) fn replay(&self) {
        if core::mem::replace(&mut self.state.lock().io.faults.replaying, true) {
            return;
        }
        while let Some(mut packet) = self.next_of_waiting() {
            let mut again = false;
            while let Some((taken, waits)) =
                self.drive_steps(BUDGET_WORK, |steps| self.take_in(steps, &packet, None))
            {
                packet.skip(taken);
                again = waits;
                if waits || taken == 0 {
                    break;
                }
            }
            let mut state = self.state.lock();
            if again {
                state.io.faults.current = Some(packet);
            } else if let Some(cell) = state.io.faults.hopeless.first() {
                cell.set(None);
            }
        }
    }

    /// The first packet of those that have waited, if they are not to wait again.
    fn next_of_waiting(&self) -> Option<RxPacket> {
        let mut state = self.state.lock();
        let faults = &mut state.io.faults;
        let mut next = None;
        if faults.receive.is_none() {
            next = match faults.current.take() {
                Some(packet) => Some(packet),
                None => faults.waiting.remove(0).ok(),
            };
            // Without one, packets are handled as they come from here on.
            faults.stalled = next.is_some();
        }
        faults.replaying = next.is_some();
        let waits_for_page = faults.receive.and_then(Missing::page).is_some();
        drop(state);
        if waits_for_page {
            // It may be the timer that found out.
            Errand::queue(&self.pager);
        }
        next
    }

    /// Handles the datagrams of a packet, from the first one on: up to one that is for another QP, one that
    /// has to wait for a page, or one behind which something is to be delivered first. `first` is what
    /// the first one says, if it was looked at. Returns how many were handled, and whether one has to wait.
    pub(super) fn take_in(
        &self,
        steps: &mut Steps<'_>,
        packet: &RxPacket,
        mut first: Option<&Packet>,
    ) -> (usize, bool) {
        let counters = &self.port.counters;
        let crc = steps.io.heard_flow.of(&self.port, packet);
        let now = now();
        let multicast = packet.ip().is_multicast();
        let addressed = if multicast { Qpn::MULTICAST } else { self.qpn };
        steps.io.company.heard();
        let (_, world) = steps.next(None);
        let welcome = world.takes_from(&packet.ip());
        let (mut taken, mut waits) = (0usize, false);
        let (mut packets, mut received, mut singly) = (0u64, 0u64, 0u32);
        let mut payloads = packet.payloads();
        loop {
            let piece = payloads.piece();
            let Some(bytes) = payloads.next() else {
                break;
            };
            // Headers are large: those that are known are not copied.
            let mut own = None;
            let parsed = match first.take() {
                Some(known) => Ok(known),
                None => Packet::parse_into(&mut own, bytes, bytes.len()),
            };
            let parsed = match parsed {
                Ok(parsed) => parsed,
                Err(error) => {
                    counters.unparsed(error);
                    taken = taken.wrapping_add(1);
                    continue;
                }
            };
            if parsed.bth.dest_qp != addressed {
                break;
            }
            let id = packet.first_id().wrapping_add(taken as u16);
            let crc = crc.map(|crc| crc.of_length(bytes.len()));
            if crc.is_some_and(|crc| !crc.matches(bytes, id)) {
                counters.add(PortCounter::DropBadIcrc, 1);
                taken = taken.wrapping_add(1);
                continue;
            }
            let mut count = 1usize;
            if let Some(left) = singly.checked_sub(1) {
                singly = left;
            } else if welcome && steps.core.awaits_middle(parsed) {
                let run = InboundRun::new(piece, bytes.len(), id, *parsed, crc.as_ref());
                count = self.handle_run(steps, packet, now, &run, id);
                // Looking at all that is left again and again would take quadratic time.
                if count == 1 {
                    singly = run.count / 2;
                }
            }
            if let Some(others @ 1..) = count.checked_sub(1) {
                let _ = payloads.nth(others.wrapping_sub(1));
            } else {
                let inbound = Inbound::new(packet, bytes, bytes.len(), id, parsed);
                if let Some(missing) = self.handle(steps, &inbound, now, parsed, welcome) {
                    waits = steps.io.faults.stall(missing);
                    break;
                }
            }
            taken = taken.wrapping_add(count);
            packets = packets.wrapping_add(count as u64);
            received = received.wrapping_add(count.wrapping_mul(bytes.len()) as u64);
            if steps.is_full() {
                break;
            }
        }
        // A copy that has waited was counted when it came in.
        if !multicast {
            counters.add(PortCounter::ReceivedPackets, packets);
            counters.add(PortCounter::ReceivedBytes, received);
        }
        (taken, waits)
    }

    /// Handles a run of datagrams of `packet`; `id` is the IPv4 identification of the first. Returns how
    /// many were handled: all, or 1 if the first is to be handled alone.
    #[inline]
    fn handle_run(
        &self,
        steps: &mut Steps<'_>,
        packet: &RxPacket,
        now: Instant,
        run: &InboundRun<'_>,
        id: u16,
    ) -> usize {
        if run.count > 1 {
            let inbound = Inbound::new(packet, run.bytes, run.length, id, &run.first);
            let (core, mut world) = steps.next(Some(&inbound));
            if core.handle_middles(now, &run.first, run.count, &mut world) {
                return run.count as usize;
            }
        }
        1
    }

    /// Handles one datagram with the right ICRC; returns what it has to wait for, if anything. It is
    /// dropped if it is not `welcome`.
    #[inline]
    pub(super) fn handle(
        &self,
        steps: &mut Steps<'_>,
        inbound: &Inbound<'_>,
        now: Instant,
        parsed: &Packet,
        welcome: bool,
    ) -> Option<Missing> {
        let (core, mut world) = steps.next(Some(inbound));
        if welcome {
            core.handle_packet(now, parsed, &mut world);
        } else {
            self.port.counters.add(PortCounter::DropBadAddress, 1);
        }
        world.missing.take()
    }
}
