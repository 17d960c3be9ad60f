// SPDX-License-Identifier: GPL-2.0
//! Extended reliable connections: whatever the link does, each message arrives once and whole at the
//! queue that it named, in order there, in memory of that queue's protection domain.

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
    env::QpEvent,
    qp::state::{
        QpKind,
        QpState, //
    },
    types::{
        RKey,
        Srqn, //
    },
    wqe::{
        AtomicOp,
        SendOp,
        SendWqe, //
    }, //
};

const QUEUES: u32 = 3;
/// Marks the number of what the peer reads.
const READABLE: u32 = 1 << 31;
const VA: u64 = 0x5000_0000;
/// Room that each message has in the memory of the peer and in a receive.
const ROOM: usize = 10_000;

/// What a world took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Messages that took a receive.
    pub received: u64,
    /// READs.
    pub reads: u64,
    /// Atomic operations.
    pub atomics: u64,
    /// Worlds that ended with a request for a queue of another domain.
    pub refused: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.reads += other.reads;
        self.atomics += other.atomics;
        self.refused += other.refused;
    }
}

/// The keys of a queue's domain: of what is written, of what is read, of what is counted.
fn keys(srq: u32) -> [RKey; 3] {
    [1, 2, 3].map(|kind| RKey((srq << 8) | kind))
}

/// A message of the initiator.
struct Message {
    srq: u32,
    op: SendOp,
    length: usize,
}

impl Message {
    fn random(number: u32, max: usize, rng: &mut Rng) -> Self {
        let srq = rng.u32(1..=QUEUES);
        let [written, read, counted] = keys(srq);
        let length = rng.usize(0..=ROOM.min(max));
        let va = VA + u64::from(number) * ROOM as u64;
        let imm = number.to_be_bytes();
        let (op, length) = match rng.u32(0..8) {
            0 => (SendOp::Write { va, rkey: written }, length),
            1 => {
                let rkey = written;
                (SendOp::WriteImm { va, rkey, imm }, length)
            }
            2 | 3 => (SendOp::Read { va: VA, rkey: read }, length),
            4 => {
                let (rkey, op) = (counted, AtomicOp::FetchAdd(1));
                (SendOp::Atomic { va: VA, rkey, op }, 8)
            }
            _ => (SendOp::SendImm(imm), length),
        };
        Self { srq, op, length }
    }

    fn takes_receive(&self) -> bool {
        matches!(self.op, SendOp::SendImm(_) | SendOp::WriteImm { .. })
    }
}

/// One world. The same seed is the same world.
///
/// # Panics
///
/// If anything is not as it should be; the packet ladder is printed on the way out.
pub fn run(seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed ^ 0x0005_8243);
    let rng = &mut rng;
    let mut pair = one_way::open(QpKind::XrcIni, seed, rng);
    let mtu = pair.a.qp.path_mtu();
    let count = rng.u32(1..40);
    for srq in 1..=QUEUES {
        let world = &mut pair.b.world;
        world.srqs.entry(srq).or_default();
        let [written, read, counted] = keys(srq);
        for (key, mut region) in [
            (written, Region::writable(VA, count as usize * ROOM)),
            (read, Region::readable(VA, payload(READABLE | srq, ROOM))),
            (counted, Region::words(VA, 1)),
        ] {
            region.srq = Srqn::new(srq);
            world.regions.insert(key.0, region);
        }
    }

    let mut sent = Vec::new();
    for number in 0..count {
        let message = Message::random(number, mtu.bytes() as usize * rng.usize(1..8), rng);
        let bytes = match message.op {
            SendOp::Read { .. } | SendOp::Atomic { .. } => vec![0; message.length],
            _ => payload(number, message.length),
        };
        let mut wqe = SendWqe::new(number.into(), message.op, message.length as u32);
        wqe.srq = Srqn::new(message.srq);
        one_way::post(&mut pair, wqe, bytes);
        // Sometimes late: the receiver is not ready.
        pair.run_for(rng.u64(0..=50_000));
        if message.takes_receive() {
            let memory = WriteOnce::new(ROOM);
            let (wr_id, invalid) = (number.into(), false);
            let queue = pair.b.world.srqs.get_mut(&message.srq).unwrap();
            queue.push_back(PostedReceive {
                wr_id,
                memory,
                invalid,
            });
        }
        sent.push(message);
    }
    pair.run(one_way::TIME_LIMIT);
    let mut outcome = check(&mut pair, &sent);

    // A queue of another domain: nothing of it is touched, and both ends learn of it.
    let srq = *rng.choice(&[0, QUEUES + 1, 0xff_ffff]).unwrap();
    let events = pair.b.world.events.len();
    one_way::mend(&mut pair, rng);
    let mut wqe = SendWqe::new(1 << 32, SendOp::Send, 10);
    wqe.srq = Srqn::new(srq);
    assert!(pair.post_send(End::A, wqe, payload(0, 10)));
    pair.run(one_way::TIME_LIMIT);
    let last = *pair.sent(End::A).last().unwrap();
    assert_eq!(last, (1 << 32, WcStatus::RemAccessErr));
    let told = &pair.b.world.events[events..];
    assert_eq!(told, [QpEvent::AccessErr, QpEvent::LastWqe]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
    outcome.refused += 1;
    outcome
}

fn check(pair: &mut Pair, sent: &[Message]) -> Outcome {
    let mut outcome = Outcome::default();
    check_sends(pair, sent.len());

    let world = &pair.b.world;
    let mut results = pair.a.world.read_results.iter();
    for srq in 1..=QUEUES {
        let arrived: Vec<_> = world
            .received
            .iter()
            .filter(|r| r.srq.get() == srq)
            .collect();
        let wanted = (0u32..).zip(sent);
        let wanted: Vec<_> = wanted
            .filter(|(_, m)| m.srq == srq && m.takes_receive())
            .collect();
        assert_eq!(arrived.len(), wanted.len(), "queue {srq}");
        for (received, (number, message)) in arrived.iter().zip(wanted) {
            let cqe = received.cqe;
            assert_eq!(cqe.status, WcStatus::Success);
            assert_eq!(cqe.data, RecvData::Imm(number.to_be_bytes()));
            assert_eq!(cqe.byte_len as usize, message.length);
            if !cqe.write_imm {
                let bytes = &received.memory.bytes[..message.length];
                assert!(bytes == payload(number, message.length), "SEND #{number}");
            }
            outcome.received += 1;
        }
        let counted = &world.regions[&keys(srq)[2].0].memory.bytes;
        let adds = sent.iter().filter(|m| m.srq == srq);
        let adds = adds
            .filter(|m| matches!(m.op, SendOp::Atomic { .. }))
            .count() as u64;
        assert_eq!(counted[..], adds.to_ne_bytes());
        outcome.atomics += adds;
    }
    for (number, message) in (0u32..).zip(sent) {
        let length = message.length;
        match message.op {
            SendOp::Write { .. } | SendOp::WriteImm { .. } => {
                let memory = &world.regions[&keys(message.srq)[0].0].memory.bytes;
                let bytes = &memory[number as usize * ROOM..][..length];
                assert!(bytes == payload(number, length), "WRITE #{number}");
            }
            SendOp::Read { .. } => {
                let bytes = payload(READABLE | message.srq, ROOM);
                assert_eq!(results.next().map(|r| r == &bytes[..length]), Some(true));
                outcome.reads += 1;
            }
            SendOp::Atomic { .. } => {
                results.next();
            }
            _ => {}
        }
    }
    outcome
}
