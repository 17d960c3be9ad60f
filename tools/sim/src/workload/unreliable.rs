// SPDX-License-Identifier: GPL-2.0
//! Unreliable connections: whatever the link does, what arrives arrives whole, in order and at most
//! once, every send completes, and when the link is good again everything arrives.

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
    world::Region, //
};
use fastrand::Rng;
use roce::{
    cqe::{
        RecvData,
        WcStatus, //
    },
    qp::state::QpKind,
    types::RKey,
    wqe::{
        SendOp,
        SendWqe, //
    }, //
};

const KEY: RKey = RKey(0x0000_0505);
const VA: u64 = 0x5000_0001;
/// Room that each message has in the memory of the peer and in a receive.
const ROOM: usize = 20_000;

/// What a world took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Messages that were sent and take a receive.
    pub sent: u64,
    /// Those of them that arrived.
    pub arrived: u64,
    /// WRITEs of which something arrived, and all that did.
    pub writes: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.arrived += other.arrived;
        self.writes += other.writes;
    }
}

/// One world. The same seed is the same world.
///
/// # Panics
///
/// If anything is not as it should be; the packet ladder is printed on the way out.
pub fn run(seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed ^ 0x5563);
    let rng = &mut rng;
    let mut pair = one_way::open(QpKind::Uc, seed, rng);
    let mtu = pair.a.qp.path_mtu();
    let count = rng.usize(1..60);
    // A message that is lost may be written in part, and its place is not used again.
    let region = Region::writable(VA, count * ROOM);
    pair.b.world.regions.insert(KEY.0, region);
    // The receive of a message that is lost serves for another one.
    pair.b.world.lenient = true;

    let mut sent = Vec::new();
    for number in 0..count as u32 {
        let packets = rng.usize(1..12);
        let length = rng.usize(0..=ROOM.min(mtu.bytes() as usize * packets));
        let imm = number.to_be_bytes();
        let va = VA + u64::from(number) * ROOM as u64;
        let op = match rng.u32(0..4) {
            0 => SendOp::Write { va, rkey: KEY },
            1 => SendOp::WriteImm { va, rkey: KEY, imm },
            _ => SendOp::SendImm(imm),
        };
        if pair.b.world.receives.len() < 2 && rng.u32(0..10) != 0 {
            pair.receive(End::B, number.into(), ROOM);
        }
        let bytes = payload(number, length);
        let wqe = SendWqe::new(number.into(), op, length as u32);
        one_way::post(&mut pair, wqe, bytes);
        sent.push((op, length));
        pair.run_for(rng.u64(0..=200_000));
    }
    pair.run(one_way::TIME_LIMIT);

    // A good link: the next message arrives.
    one_way::mend(&mut pair, rng);
    pair.receive(End::B, 1 << 32, ROOM);
    let last = count as u32;
    pair.send(
        End::A,
        last.into(),
        SendOp::SendImm(last.to_be_bytes()),
        &payload(last, ROOM),
    );
    pair.run(one_way::TIME_LIMIT);
    sent.push((SendOp::SendImm(last.to_be_bytes()), ROOM));

    check(&mut pair, &sent)
}

fn check(pair: &mut Pair, sent: &[(SendOp, usize)]) -> Outcome {
    let mut outcome = Outcome::default();
    check_sends(pair, sent.len());

    let world = &pair.b.world;
    let memory = &world.regions[&KEY.0].memory.bytes;
    let arrived = |number: usize, length: usize| {
        let start = number * ROOM;
        memory[start..start + length] == payload(number as u32, length)
    };
    let mut previous = None;
    for received in &world.received {
        assert_eq!(received.cqe.status, WcStatus::Success);
        let RecvData::Imm(imm) = received.cqe.data else {
            panic!("no number");
        };
        let number = u32::from_be_bytes(imm) as usize;
        assert!(previous < Some(number), "twice, or out of order: {number}");
        previous = Some(number);
        let (op, length) = sent[number];
        assert_eq!(received.cqe.byte_len as usize, length);
        assert_eq!(
            received.cqe.write_imm,
            matches!(op, SendOp::WriteImm { .. })
        );
        if received.cqe.write_imm {
            assert!(arrived(number, length), "WRITE #{number}");
        } else {
            let buffer = &received.memory.bytes[..length];
            assert!(buffer == payload(number as u32, length), "SEND #{number}");
        }
        outcome.arrived += 1;
    }
    assert_eq!(previous, Some(sent.len() - 1), "the QP went deaf");
    for (number, (op, length)) in sent.iter().enumerate() {
        match op {
            SendOp::Write { .. } if *length != 0 => {
                outcome.writes += u64::from(arrived(number, *length));
            }
            SendOp::Write { .. } => {}
            _ => outcome.sent += 1,
        }
    }
    outcome
}
