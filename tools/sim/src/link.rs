// SPDX-License-Identifier: GPL-2.0
//! One direction of a link: bandwidth, delay, a queue before it, and what befalls packets on it.

use fastrand::Rng;
use roce::{
    types::Instant,
    wire::Packet, //
};
use std::{
    collections::BTreeMap,
    fmt, //
};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// It arrives.
    Arrives,
    /// It does not.
    Lost,
    /// It arrives twice, the second time so many nanoseconds later.
    Twice(u64),
    /// It arrives so many nanoseconds late; others may overtake it.
    Late(u64),
    /// It arrives with a bit changed, or cut.
    Damaged,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arrives => Ok(()),
            Self::Lost => f.write_str("  (lost)"),
            Self::Twice(ns) => write!(f, "  (twice, {ns} ns apart)"),
            Self::Late(ns) => write!(f, "  ({ns} ns late)"),
            Self::Damaged => f.write_str("  (damaged)"),
        }
    }
}

/// The most packets lost in a row: fewer than half the retries, so that no connection may fail.
const LONGEST_BURST: u32 = 3;

/// Chances out of 1000 that something befalls a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Lost.
    pub loss: u32,
    /// After a loss, the next one is lost too.
    pub burst: u32,
    /// Arrives twice.
    pub duplicate: u32,
    /// Arrives late.
    pub reorder: u32,
    /// Arrives damaged.
    pub damage: u32,
    /// How late at most, in nanoseconds.
    pub late_ns: u64,
}

impl Faults {
    /// Decides by chance what becomes of each packet.
    pub fn decide(self, mut rng: Rng) -> Decide {
        let mut lost = 0;
        Box::new(move |_, _| {
            let mut chance = |per_mille| rng.u32(0..1000) < per_mille;
            let loses = match lost {
                0 => chance(self.loss),
                LONGEST_BURST.. => false,
                _ => chance(self.burst),
            };
            if loses {
                lost += 1;
                return Fate::Lost;
            }
            lost = 0;
            let (twice, late, damaged) = (
                chance(self.duplicate),
                chance(self.reorder),
                chance(self.damage),
            );
            let ns = rng.u64(0..=self.late_ns);
            match (twice, late, damaged) {
                (true, _, _) => Fate::Twice(ns),
                (false, true, _) => Fate::Late(ns),
                (false, false, true) => Fate::Damaged,
                (false, false, false) => Fate::Arrives,
            }
        })
    }
}

/// What becomes of each packet, by time and contents.
pub type Decide = Box<dyn FnMut(Instant, &Packet) -> Fate>;

/// Lets happen `fate` to those packets that `which` picks.
pub fn pick(fate: Fate, mut which: impl FnMut(&Packet) -> bool + 'static) -> Decide {
    Box::new(
        move |_, packet| {
            if which(packet) {
                fate
            } else {
                Fate::Arrives
            }
        },
    )
}

/// Loses the packets that `which` picks.
pub fn lose(which: impl FnMut(&Packet) -> bool + 'static) -> Decide {
    pick(Fate::Lost, which)
}

/// Loses the first `count` packets that `which` picks.
pub fn lose_first(mut count: u32, mut which: impl FnMut(&Packet) -> bool + 'static) -> Decide {
    lose(move |packet| {
        let picked = count != 0 && which(packet);
        count -= u32::from(picked);
        picked
    })
}

/// One direction.
pub struct Link {
    /// Propagation delay in nanoseconds.
    pub delay_ns: u64,
    /// Picoseconds that a byte takes; 0: none.
    pub ps_per_byte: u64,
    /// Packets that fit the queue before it.
    pub queue: usize,
    /// What becomes of each packet.
    pub fate: Decide,
    /// When the packets in the queue will have left it, in order.
    departures: std::collections::VecDeque<Instant>,
    in_flight: BTreeMap<(Instant, u64), Vec<u8>>,
    count: u64,
    rng: Rng,
}

impl Link {
    /// A perfect link with this delay.
    pub fn new(delay_ns: u64, rng: Rng) -> Self {
        Self {
            delay_ns,
            ps_per_byte: 0,
            queue: usize::MAX,
            fate: Box::new(|_, _| Fate::Arrives),
            departures: Default::default(),
            in_flight: BTreeMap::new(),
            count: 0,
            rng,
        }
    }

    /// Whether the queue has no room.
    pub fn is_full(&mut self, now: Instant) -> bool {
        while self.departures.front().is_some_and(|t| *t <= now) {
            self.departures.pop_front();
        }
        self.departures.len() >= self.queue
    }

    /// Sends a frame; says what becomes of it.
    pub fn send(&mut self, now: Instant, packet: &Packet, frame: Vec<u8>) -> Fate {
        let fate = (self.fate)(now, packet);
        let start = self.departures.back().map_or(now, |t| now.max(*t));
        let departure = start.after(frame.len() as u64 * self.ps_per_byte / 1000);
        if departure > now {
            self.departures.push_back(departure);
        }
        let arrival = departure.after(self.delay_ns);
        match fate {
            Fate::Arrives => self.arrive(arrival, frame),
            Fate::Lost => {}
            Fate::Twice(ns) => {
                self.arrive(arrival, frame.clone());
                self.arrive(arrival.after(ns), frame);
            }
            Fate::Late(ns) => self.arrive(arrival.after(ns), frame),
            Fate::Damaged => {
                let frame = self.damage(frame);
                self.arrive(arrival, frame);
            }
        }
        fate
    }

    /// When the next frame arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.keys().next().map(|(time, _)| *time)
    }

    /// Takes the next frame that has arrived.
    pub fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        let entry = self.in_flight.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// Frames on their way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn arrive(&mut self, time: Instant, frame: Vec<u8>) {
        self.count += 1;
        self.in_flight.insert((time, self.count), frame);
    }

    fn damage(&mut self, mut frame: Vec<u8>) -> Vec<u8> {
        if self.rng.u32(0..8) == 0 {
            frame.truncate(self.rng.usize(0..frame.len()));
        } else {
            let byte = self.rng.usize(0..frame.len());
            frame[byte] ^= 1 << self.rng.u32(0..8);
        }
        frame
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("delay_ns", &self.delay_ns)
            .field("ps_per_byte", &self.ps_per_byte)
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
