// SPDX-License-Identifier: GPL-2.0
//! Worlds from seeds: a link, its faults, and messages in both directions at once.
//!
//! [`run`] makes one, lets it go on until everything has arrived, and checks that each message
//! arrived exactly once, in order, with the right bytes, and that each completion says so. In the
//! worlds of [`chaos`] things go wrong that no connection survives.

pub mod chaos;
pub mod datagram;
mod one_way;
mod placement;
pub mod srq;
pub mod unreliable;
pub mod xrc;

use crate::{
    link::Faults,
    pair::{
        Config,
        End,
        Pair, //
    },
    world::Region, //
};
use fastrand::Rng;
use placement::Placement;
use roce::{
    cqe::{
        RecvData,
        SendCqeOp,
        WcStatus, //
    },
    env::{
        Counter,
        QpEvent, //
    },
    qp::state::QpState,
    types::{
        Mtu,
        Psn,
        RKey, //
    },
    wqe::{
        AtomicOp,
        LocalOp,
        SendOp,
        SendWqe, //
    }, //
};
use std::ops::AddAssign;

/// Key of the memory that the peer reads.
const READABLE: RKey = RKey(0x0000_0101);
/// Key of the memory that the peer writes.
const WRITABLE: RKey = RKey(0x0000_0202);
/// First of the keys that the peer invalidates.
const WINDOWS: u32 = 0x0001_0000;
/// Key of nothing: good enough for accesses of no length.
const NO_KEY: RKey = RKey(0xdead_beef);
/// Some streams have all kinds of messages, some only one; see `Stream::push`.
const MIXES: [&[u32]; 8] = [
    &[0, 1, 2, 3, 4, 5],
    &[0, 1],
    &[3],
    &[5, 5, 0],
    &[3, 4, 5],
    &[PLACEMENT],
    &[3, 5, PLACEMENT],
    &[0, 1, 2, 3, 4, 5, PLACEMENT],
];
/// The kind of a message that is an atomic operation, an ATOMIC WRITE or a FLUSH.
const PLACEMENT: u32 = 6;
const READABLE_VA: u64 = 0x0000_7f12_3456_7001;
const WRITABLE_VA: u64 = 0xffff_fff0_0000_0003;
const READABLE_LEN: usize = 400 << 10;
/// The longest that a world may take, in nanoseconds: far more than any does.
const TIME_LIMIT: u64 = 120_000_000_000;

/// What a world took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Messages that arrived.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Virtual time, in nanoseconds.
    pub ns: u64,
    /// Times that a requester went back.
    pub retries: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// RNR NAKs.
    pub rnr: u64,
    /// Gaps in READ responses that were seen at once.
    pub implied_naks: u64,
    /// Duplicate requests.
    pub duplicates: u64,
}

impl AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.ns += other.ns;
        self.retries += other.retries;
        self.timeouts += other.timeouts;
        self.rnr += other.rnr;
        self.implied_naks += other.implied_naks;
        self.duplicates += other.duplicates;
    }
}

/// One send WQE and what is to come of it.
struct Message {
    wqe: SendWqe,
    /// Payload, or what a READ is to find.
    bytes: Vec<u8>,
}

impl Message {
    fn takes_receive(&self) -> bool {
        match self.wqe.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) | SendOp::WriteImm { .. } => {
                true
            }
            SendOp::Write { .. }
            | SendOp::Read { .. }
            | SendOp::Atomic { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. }
            | SendOp::Local(_)
            | SendOp::Invalid(_) => false,
            SendOp::Datagram { .. } => unreachable!(),
        }
    }
}

/// Operations that take no packet.
const LOCAL: [LocalOp; 3] = [LocalOp::Bind, LocalOp::Invalidate, LocalOp::Register];

/// One direction of the traffic.
struct Stream {
    from: End,
    messages: Vec<Message>,
    /// What the peer's memory is to hold in the end.
    written: Vec<u8>,
    placement: Placement,
    /// Buffers for the messages that take one.
    receives: Vec<usize>,
    posted: usize,
    posted_receives: usize,
    /// Messages posted at once, at most.
    burst: usize,
    /// Receives posted at once, at most.
    receive_burst: usize,
}

impl Stream {
    fn new(from: End, config: &Config, rng: &mut Rng, readable: &[u8]) -> Self {
        let mut stream = Self {
            from,
            messages: Vec::new(),
            written: Vec::new(),
            placement: Placement::default(),
            receives: Vec::new(),
            posted: 0,
            posted_receives: 0,
            burst: rng.usize(1..=config.slots),
            receive_burst: *rng.choice(&[1, 1, 2, 4, 16, 1000]).unwrap(),
        };
        let mut budget = rng.usize(1..300 << 10);
        let kinds = *rng.choice(&MIXES).unwrap();
        for number in 0..rng.usize(1..50) {
            if rng.u32(0..10) == 0 {
                stream.push_local(number as u64, rng);
                continue;
            }
            let kind = *rng.choice(kinds).unwrap();
            if kind == PLACEMENT {
                let (op, bytes) = stream.placement.next(stream.written.len(), rng);
                stream.add(number as u64, op, bytes, rng);
                continue;
            }
            let length = length(rng, config.mtu).min(budget);
            budget -= length;
            stream.push(number as u64, kind, length, rng, readable);
        }
        stream
    }

    fn push(&mut self, number: u64, kind: u32, length: usize, rng: &mut Rng, readable: &[u8]) {
        let mut bytes: Vec<u8> = Vec::new();
        let imm = rng.u32(..).to_be_bytes();
        let va = WRITABLE_VA + self.written.len() as u64;
        // Without length, no key is needed.
        let rkey = if length == 0 && rng.bool() {
            NO_KEY
        } else {
            WRITABLE
        };
        let op = match kind {
            0 => SendOp::Send,
            1 => SendOp::SendImm(imm),
            2 => SendOp::SendInv(RKey(WINDOWS + number as u32)),
            3 => SendOp::Write { va, rkey },
            4 => SendOp::WriteImm { va, rkey, imm },
            _ => {
                let read_back = self.messages.iter().rposition(|m| {
                    matches!(m.wqe.op, SendOp::Write { .. }) && m.bytes.len() >= length
                });
                match read_back {
                    // What an earlier WRITE has left.
                    Some(index) if rng.bool() && length != 0 => {
                        let SendOp::Write { va, rkey } = self.messages[index].wqe.op else {
                            unreachable!()
                        };
                        bytes.extend_from_slice(&self.messages[index].bytes[..length]);
                        SendOp::Read { va, rkey }
                    }
                    _ => {
                        let offset = rng.usize(0..=READABLE_LEN - length);
                        bytes.extend_from_slice(&readable[offset..offset + length]);
                        let va = READABLE_VA + offset as u64;
                        let rkey = if rkey == WRITABLE { READABLE } else { rkey };
                        SendOp::Read { va, rkey }
                    }
                }
            }
        };
        if kind < 5 {
            bytes.resize(length, 0);
            rng.fill(&mut bytes);
        }
        if matches!(op, SendOp::Write { .. } | SendOp::WriteImm { .. }) {
            self.written.extend_from_slice(&bytes);
        }
        self.add(number, op, bytes, rng);
    }

    /// Adds a message with this payload, or with what it is to find.
    fn add(&mut self, number: u64, op: SendOp, bytes: Vec<u8>, rng: &mut Rng) {
        let length = bytes.len();
        let mut wqe = SendWqe::new(number, op, length as u32);
        wqe.signaled = rng.u32(0..4) != 0;
        wqe.solicited = rng.u32(0..4) == 0;
        wqe.fence = rng.u32(0..8) == 0;
        let message = Message { wqe, bytes };
        if message.takes_receive() {
            self.receives.push(match op {
                SendOp::WriteImm { .. } => rng.usize(0..10),
                _ => length + rng.usize(0..3) * rng.usize(0..5000),
            });
        }
        self.messages.push(message);
    }

    fn push_local(&mut self, number: u64, rng: &mut Rng) {
        let op = *rng.choice(&LOCAL).unwrap();
        let mut wqe = SendWqe::new(number, SendOp::Local(op), 0);
        wqe.signaled = rng.bool();
        wqe.fence = rng.u32(0..4) == 0;
        let bytes = Vec::new();
        self.messages.push(Message { wqe, bytes });
    }

    /// Posts some of what is left. Returns whether anything is.
    fn act(&mut self, pair: &mut Pair, rng: &mut Rng) -> bool {
        for _ in 0..rng.usize(0..=self.receive_burst) {
            let Some(length) = self.receives.get(self.posted_receives) else {
                break;
            };
            pair.receive(self.from.other(), self.posted_receives as u64, *length);
            self.posted_receives += 1;
        }
        for _ in 0..rng.usize(0..=self.burst) {
            let Some(message) = self.messages.get(self.posted) else {
                break;
            };
            let bytes = match message.wqe.op {
                SendOp::Read { .. } | SendOp::Atomic { .. } => vec![0x55; message.bytes.len()],
                _ => message.bytes.clone(),
            };
            if !pair.post_send(self.from, message.wqe, bytes) {
                break;
            }
            self.posted += 1;
        }
        self.posted < self.messages.len() || self.posted_receives < self.receives.len()
    }

    fn is_done(&self, pair: &mut Pair) -> bool {
        pair.host(self.from).qp.retired() as usize == self.messages.len()
            && pair.host(self.from.other()).world.received.len() == self.receives.len()
    }

    fn check(&self, pair: &mut Pair) {
        let sender = pair.host(self.from);
        let locals = self.messages.iter().filter_map(|m| match m.wqe.op {
            SendOp::Local(op) => Some(op),
            _ => None,
        });
        assert!(locals.eq(sender.world.locals.iter().copied()));
        assert_eq!(sender.qp.state(), QpState::Rts);
        assert_eq!(sender.qp.retired() as usize, self.messages.len());
        let mut sent = sender.world.sent.iter();
        let mut read = sender.world.read_results.iter();
        for message in &self.messages {
            let op = message.wqe.op;
            if matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. }) {
                let found = read.next().expect("result of a READ or atomic operation");
                assert!(
                    *found == message.bytes,
                    "#{}: wrong result",
                    message.wqe.wr_id
                );
            }
            if !message.wqe.signaled {
                continue;
            }
            let cqe = sent.next().expect("completion of a send");
            assert_eq!(cqe.wr_id, message.wqe.wr_id);
            assert_eq!(cqe.status, WcStatus::Success);
            assert_eq!(cqe.byte_len, message.wqe.length);
            let op = match message.wqe.op {
                SendOp::Read { .. } => SendCqeOp::Read,
                SendOp::Atomic { op, .. } => match op {
                    AtomicOp::CompareSwap { .. } => SendCqeOp::CompareSwap,
                    AtomicOp::FetchAdd(_) => SendCqeOp::FetchAdd,
                },
                SendOp::AtomicWrite { .. } => SendCqeOp::AtomicWrite,
                SendOp::Flush { .. } => SendCqeOp::Flush,
                SendOp::Write { .. } | SendOp::WriteImm { .. } => SendCqeOp::Write,
                SendOp::Local(LocalOp::Bind) => SendCqeOp::Bind,
                SendOp::Local(LocalOp::Invalidate) => SendCqeOp::Invalidate,
                SendOp::Local(LocalOp::Register) => SendCqeOp::Register,
                _ => SendCqeOp::Send,
            };
            assert_eq!(cqe.op, op);
        }
        assert_eq!(sent.next(), None);

        let receiver = &pair.host(self.from.other()).world;
        let mut received = receiver.received.iter().enumerate();
        for message in self.messages.iter().filter(|m| m.takes_receive()) {
            let (number, got) = received.next().expect("completion of a receive");
            assert_eq!(got.cqe.wr_id, number as u64);
            assert_eq!(got.cqe.status, WcStatus::Success);
            assert_eq!(got.cqe.byte_len, message.wqe.length);
            assert_eq!(got.cqe.solicited, message.wqe.solicited);
            let (data, write_imm) = match message.wqe.op {
                SendOp::SendImm(imm) => (RecvData::Imm(imm), false),
                SendOp::WriteImm { imm, .. } => (RecvData::Imm(imm), true),
                SendOp::SendInv(rkey) => {
                    assert!(!receiver.regions.contains_key(&rkey.0));
                    (RecvData::Invalidated(rkey), false)
                }
                _ => (RecvData::None, false),
            };
            assert_eq!((got.cqe.data, got.cqe.write_imm), (data, write_imm));
            let length = if write_imm { 0 } else { message.bytes.len() };
            assert_eq!(got.memory.written(), length);
            assert!(
                got.memory.bytes[..length] == message.bytes[..length],
                "receive #{number}: wrong bytes"
            );
        }
        assert!(received.next().is_none(), "more than was sent");
        let memory = &receiver.regions[&WRITABLE.0].memory;
        assert_eq!(memory.written(), self.written.len());
        assert!(memory.bytes == self.written, "WRITE: wrong bytes");
        self.placement.check(receiver);
    }
}

/// Posts some of what is left, and lets some time go by. Returns whether anything was left.
fn act(pair: &mut Pair, streams: &mut [Stream], gap: u64, rng: &mut Rng) -> bool {
    let (mut left, mut posted) = (false, false);
    for stream in streams {
        let before = stream.posted + stream.posted_receives;
        left |= stream.act(pair, rng);
        posted |= stream.posted + stream.posted_receives != before;
    }
    if left && posted {
        pair.run_for(rng.u64(0..=gap));
    } else if left {
        // Whatever frees a slot; if nothing does, receives are missing.
        pair.step(pair.now.after(1_000_000));
    }
    left
}

/// A length for a message: the interesting ones often.
fn length(rng: &mut Rng, mtu: Mtu) -> usize {
    let mtu = mtu.bytes() as usize;
    match rng.u32(0..12) {
        0 => 0,
        1..=3 => rng.usize(1..9),
        4 | 5 => rng.usize(1..=mtu),
        6 => mtu,
        7 => mtu + 1,
        8 => mtu * rng.usize(1..20),
        9 => mtu * rng.usize(1..20) + rng.usize(1..4),
        10 => rng.usize(0..mtu * 40),
        _ => rng.usize(0..300 << 10),
    }
}

/// The payload of the message with this number.
fn payload(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::with_seed(number.into()).fill(&mut bytes);
    bytes
}

/// Both ends are well, and all of `count` sends of the first one have completed, in order.
fn check_sends(pair: &mut Pair, count: usize) {
    for end in End::BOTH {
        assert_eq!(pair.host(end).qp.state(), QpState::Rts);
        assert!(pair.host(end).world.events.is_empty());
    }
    let expected: Vec<_> = (0..count as u64).map(|n| (n, WcStatus::Success)).collect();
    assert_eq!(pair.sent(End::A), expected, "each send completes");
}

fn faults(rng: &mut Rng, seed: u64) -> Faults {
    let mut faults = Faults {
        late_ns: *rng.choice(&[1_000, 10_000, 100_000]).unwrap(),
        ..Faults::default()
    };
    match seed % 8 {
        0 => {}
        1 => faults.reorder = rng.u32(1..100),
        2 => faults.duplicate = rng.u32(1..200),
        3 => faults.loss = rng.u32(1..20),
        4 => {
            faults.loss = rng.u32(5..30);
            faults.burst = rng.u32(0..800);
        }
        5 => faults.damage = rng.u32(1..30),
        _ => {
            faults.loss = rng.u32(0..30);
            faults.burst = rng.u32(0..500);
            faults.duplicate = rng.u32(0..50);
            faults.reorder = rng.u32(0..50);
            faults.damage = rng.u32(0..20);
        }
    }
    faults
}

/// A world before it begins: a pair, its streams, and how long nothing is posted at most.
fn make(seed: u64, rnr_retry: u8, rng: &mut Rng) -> (Pair, [Stream; 2], u64) {
    let mtu = *rng
        .choice(&[Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096])
        .unwrap();
    let psn = |rng: &mut Rng| {
        Psn::new(match rng.u32(0..4) {
            0 | 1 => 0xff_ffff - rng.u32(0..300),
            2 => 0x80_0000 - rng.u32(0..300),
            _ => rng.u32(..),
        })
    };
    let mut config = Config {
        mtu,
        psn_a: psn(rng),
        psn_b: psn(rng),
        slots: *rng.choice(&[1, 2, 8, 32]).unwrap(),
        reads: rng.u8(1..=8),
        min_rnr_timer: rng.u8(1..=8),
        rnr_retry,
        delay_ns: rng.u64(100..20_000),
        max_run: *rng.choice(&[1, 2, 16, 64]).unwrap(),
        ..Config::default()
    };
    let ps_per_byte = *rng.choice(&[0, 20, 100, 800]).unwrap();
    let queue = *rng.choice(&[4, 32, 128]).unwrap();
    let faults = faults(rng, seed);
    // The time that a packet and its ACK may take, and a good deal more.
    let queueing = queue as u64 * (u64::from(mtu.bytes()) + 100) * ps_per_byte / 1000;
    let patience = 4 * (config.delay_ns + queueing + faults.late_ns);
    config.timeout = (1..31)
        .find(|code| 4096u64 << code > patience)
        .unwrap_or(31)
        + rng.u8(0..3);

    let mut pair = Pair::new(&config, seed);
    pair.batch = rng.usize(1..=16);
    for link in [&mut pair.from_a, &mut pair.from_b] {
        link.ps_per_byte = ps_per_byte;
        link.queue = queue;
        link.fate = faults.decide(rng.fork());
    }
    let congestion = *rng.choice(&[0, 0, 10, 100]).unwrap();
    pair.a.congestion = congestion;
    pair.b.congestion = congestion;

    let mut readable = vec![0; READABLE_LEN];
    rng.fill(&mut readable);
    let streams = End::BOTH.map(|from| Stream::new(from, &config, rng, &readable));
    for stream in &streams {
        let world = &mut pair.host(stream.from.other()).world;
        stream.placement.prepare(world);
        let regions = &mut world.regions;
        regions.insert(READABLE.0, Region::readable(READABLE_VA, readable.clone()));
        regions.insert(
            WRITABLE.0,
            Region::writable(WRITABLE_VA, stream.written.len()),
        );
        for message in &stream.messages {
            if let SendOp::SendInv(rkey) = message.wqe.op {
                regions.insert(rkey.0, Region::window());
            }
        }
    }

    let gap = *rng.choice(&[1, 10_000, 200_000]).unwrap();
    (pair, streams, gap)
}

/// One world. The same seed is the same world.
///
/// # Panics
///
/// If anything is not as it should be; the packet ladder is printed on the way out.
pub fn run(seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let rng = &mut rng;
    let (mut pair, mut streams, gap) = make(seed, 7, rng);
    let start = pair.now;
    let limit = start.after(TIME_LIMIT);
    loop {
        if act(&mut pair, &mut streams, gap, rng) {
            // There is more to post.
        } else if streams.iter().all(|s| s.is_done(&mut pair)) {
            break;
        } else {
            assert!(pair.next_event().is_some(), "stuck: nothing will happen");
            pair.step(limit);
        }
        assert!(pair.now < limit, "stuck: time is up");
        for end in End::BOTH {
            assert_eq!(pair.host(end).qp.state(), QpState::Rts, "{end:?}");
        }
    }
    let ns = pair.now.0 - start.0;
    // Stragglers and their answers; then all is quiet.
    pair.run(TIME_LIMIT);
    for stream in &streams {
        stream.check(&mut pair);
        let events = &pair.host(stream.from).world.events;
        assert!(
            events.iter().all(|e| *e == QpEvent::CommEst),
            "events: {events:?}"
        );
    }

    let count = |counter| pair.a.world.counter(counter) + pair.b.world.counter(counter);
    Outcome {
        messages: streams.iter().map(|s| s.messages.len() as u64).sum(),
        bytes: streams
            .iter()
            .flat_map(|s| &s.messages)
            .map(|m| m.bytes.len() as u64)
            .sum(),
        ns,
        retries: count(Counter::Retry),
        timeouts: count(Counter::AckTimeout),
        rnr: count(Counter::RnrSent),
        implied_naks: count(Counter::ImpliedNak),
        duplicates: count(Counter::DuplicateRequest),
    }
}
