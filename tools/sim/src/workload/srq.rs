// SPDX-License-Identifier: GPL-2.0
//! Shared receive queues: several connections whose receives come from one queue, which is filled up
//! when it runs low, or too late. Whatever the links do, each message arrives once and whole, in order on its
//! connection, and no receive is lost or used twice; also if one of the connections fails.

use crate::{
    pair::{
        End,
        Pair, //
    },
    workload::{
        check_sends,
        one_way,
        payload, //
    },
    world::{
        PostedReceive,
        Region,
        WriteOnce, //
    }, //
};
use fastrand::Rng;
use roce::{
    cqe::{
        RecvData,
        WcStatus, //
    },
    env::Counter,
    qp::state::{
        QpKind,
        QpState, //
    },
    types::{
        Instant,
        RKey, //
    },
    wqe::{
        SendOp,
        SendWqe, //
    }, //
};
use std::collections::{
    BTreeSet,
    VecDeque, //
};

const KEY: RKey = RKey(0x0000_0707);
const VA: u64 = 0x5000_0000;
/// Room that each message has in the memory of the peer and in a receive.
const ROOM: usize = 10_000;
const TIME_LIMIT: u64 = 300_000_000_000;

/// What a world took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Messages that took a receive.
    pub received: u64,
    /// Times that the queue said that it runs low.
    pub limits: u64,
    /// RNR NAKs: the queue was empty.
    pub rnr: u64,
    /// Connections that failed.
    pub failed: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.limits += other.limits;
        self.rnr += other.rnr;
        self.failed += other.failed;
    }
}

/// The queue, and those who take from it.
struct Shared {
    pairs: Vec<Pair>,
    queue: VecDeque<PostedReceive>,
    posted: u64,
    /// So many receives are posted, `late` nanoseconds after there are less than `limit`.
    limit: usize,
    refill: u64,
    late: u64,
    /// When they will be.
    due: Option<Instant>,
    limits: u64,
}

impl Shared {
    fn post(&mut self, count: u64) {
        for _ in 0..count {
            self.queue.push_back(PostedReceive {
                wr_id: self.posted,
                memory: WriteOnce::new(ROOM),
                invalid: false,
            });
            self.posted += 1;
        }
    }

    /// Does `action` to a pair while its receiver has the queue, then looks how much is left of it.
    fn with<T>(&mut self, index: usize, action: impl FnOnce(&mut Pair) -> T) -> T {
        let pair = &mut self.pairs[index];
        std::mem::swap(&mut self.queue, &mut pair.b.world.receives);
        let result = action(pair);
        std::mem::swap(&mut self.queue, &mut pair.b.world.receives);
        let now = pair.now;
        if self.due.is_none() && self.queue.len() < self.limit {
            self.limits += 1;
            self.due = Some(now.after(self.late));
        }
        result
    }

    /// Lets the next thing happen, at most at `until`. Returns whether anything did.
    fn step(&mut self, until: Instant) -> bool {
        let events = self.pairs.iter().enumerate();
        let next = events
            .filter_map(|(index, pair)| pair.next_event().map(|at| (at.0, index)))
            .min();
        let next = next.filter(|(at, _)| *at <= until.0);
        if let Some(due) = self.due {
            if due.0 <= next.map_or(until.0, |(at, _)| at) {
                self.due = None;
                self.post(self.refill);
                return true;
            }
        }
        let Some((at, index)) = next else {
            return false;
        };
        self.with(index, |pair| pair.step(Instant(at)))
    }
}

struct Message {
    op: SendOp,
    length: usize,
}

impl Message {
    fn random(number: u32, max: usize, rng: &mut Rng) -> Self {
        let imm = number.to_be_bytes();
        let (va, rkey) = (VA + u64::from(number) * ROOM as u64, KEY);
        let op = match rng.u32(0..4) {
            0 => SendOp::Write { va, rkey },
            1 => SendOp::WriteImm { va, rkey, imm },
            _ => SendOp::SendImm(imm),
        };
        let length = rng.usize(0..=ROOM.min(max));
        Self { op, length }
    }

    fn takes_receive(&self) -> bool {
        !matches!(self.op, SendOp::Write { .. })
    }
}

/// What the message `number` of a pair has in it.
fn bytes_of(pair: usize, number: usize, message: &Message) -> Vec<u8> {
    payload(((pair << 16) | number) as u32, message.length)
}

/// One world. The same seed is the same world.
///
/// # Panics
///
/// If anything is not as it should be; the packet ladder is printed on the way out.
pub fn run(seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed ^ 0x0005_2971);
    let rng = &mut rng;
    let mut shared = Shared {
        pairs: Vec::new(),
        queue: VecDeque::new(),
        posted: 0,
        limit: rng.usize(1..20),
        refill: rng.u64(1..30),
        late: *rng.choice(&[0, 1_000, 100_000, 3_000_000]).unwrap(),
        due: None,
        limits: 0,
    };
    let mut plans = Vec::new();
    for index in 0..rng.usize(2..=4) {
        let mut pair = one_way::open(QpKind::Rc, seed + index as u64, rng);
        pair.b.share_receives();
        let count = rng.u32(1..30);
        let region = Region::writable(VA, count as usize * ROOM);
        pair.b.world.regions.insert(KEY.0, region);
        let most = pair.a.qp.path_mtu().bytes() as usize * rng.usize(1..8);
        let messages = (0..count).map(|number| Message::random(number, most, rng));
        plans.push(messages.collect::<Vec<_>>());
        shared.pairs.push(pair);
    }
    let failing = (rng.u32(0..3) == 0).then(|| (rng.usize(0..plans.len()), rng.usize(0..20)));
    let wanted = plans.iter().flatten().filter(|m| m.takes_receive()).count();
    if rng.bool() {
        shared.post(rng.u64(0..=wanted as u64));
    }

    let mut posted = vec![0usize; plans.len()];
    let mut failed = None;
    let mut turns = 0;
    while posted.iter().zip(&plans).any(|(n, plan)| *n < plan.len()) {
        let index = rng.usize(0..plans.len());
        let now = shared
            .pairs
            .iter()
            .map(|pair| pair.now.0)
            .max()
            .unwrap_or(0);
        if let Some(message) = plans[index].get(posted[index]) {
            let number = posted[index];
            let bytes = bytes_of(index, number, message);
            let wqe = SendWqe::new(number as u64, message.op, message.length as u32);
            if failed == Some(index)
                || shared.with(index, |pair| pair.post_send(End::A, wqe, bytes))
            {
                posted[index] += 1;
            }
        }
        let until = Instant(now + rng.u64(0..=50_000));
        while shared.step(until) {}
        for pair in &mut shared.pairs {
            pair.now = pair.now.max(until);
        }
        turns += 1;
        if let Some((victim, _)) = failing.filter(|(_, at)| failed.is_none() && turns > *at) {
            shared.with(victim, |pair| pair.to_error(End::B));
            shared.with(victim, |pair| pair.to_error(End::A));
            failed = Some(victim);
        }
        assert!(now < TIME_LIMIT, "stuck");
    }
    let end = Instant(TIME_LIMIT);
    while shared.step(end) {}

    check(&mut shared, &plans, failed)
}

fn check(shared: &mut Shared, plans: &[Vec<Message>], failed: Option<usize>) -> Outcome {
    let mut outcome = Outcome {
        limits: shared.limits,
        failed: failed.map_or(0, |_| 1),
        ..Outcome::default()
    };
    // Each receive that was posted is still there, or came back once.
    let mut seen = BTreeSet::new();
    let left = shared.queue.iter().map(|receive| receive.wr_id);
    let came = shared.pairs.iter().flat_map(|pair| &pair.b.world.received);
    for wr_id in left.chain(came.map(|received| received.cqe.wr_id)) {
        assert!(seen.insert(wr_id), "receive #{wr_id} twice");
    }
    assert_eq!(seen.len() as u64, shared.posted, "receives are lost");

    for (index, (pair, plan)) in shared.pairs.iter_mut().zip(plans).enumerate() {
        outcome.rnr += pair.b.world.counters[Counter::RnrSent as usize];
        let healthy = failed != Some(index);
        if healthy {
            check_sends(pair, plan.len());
        } else {
            assert_eq!(pair.b.qp.state(), QpState::Err);
        }
        let world = &pair.b.world;
        let numbered = plan.iter().enumerate();
        let mut wanted = numbered.filter(|(_, message)| message.takes_receive());
        let mut flushed = 0;
        for received in &world.received {
            if !healthy && received.cqe.status == WcStatus::WrFlushErr {
                // The one that it had taken; what is in the queue is not its own.
                flushed += 1;
                continue;
            }
            let (number, message) = wanted.next().expect("more messages than were sent");
            let cqe = received.cqe;
            assert_eq!(cqe.status, WcStatus::Success);
            assert_eq!(cqe.data, RecvData::Imm((number as u32).to_be_bytes()));
            assert_eq!(cqe.byte_len as usize, message.length);
            if !cqe.write_imm {
                let bytes = &received.memory.bytes[..message.length];
                assert!(bytes == bytes_of(index, number, message), "SEND #{number}");
            }
            outcome.received += 1;
        }
        assert!(flushed <= 1, "receives of others are flushed");
        assert!(!healthy || wanted.next().is_none(), "messages are lost");
        let memory = &world.regions[&KEY.0].memory.bytes;
        for (number, message) in plan.iter().enumerate().filter(|_| healthy) {
            if matches!(message.op, SendOp::Write { .. } | SendOp::WriteImm { .. }) {
                let bytes = &memory[number * ROOM..][..message.length];
                assert!(bytes == bytes_of(index, number, message), "WRITE #{number}");
            }
        }
    }
    outcome
}
