// SPDX-License-Identifier: GPL-2.0
//! Datagrams: each is sent once, and of those that the link lets arrive exactly those are received that
//! the receive queue has room for and whose Q_Key is right, whole and behind a GRH. What cannot be sent fails in
//! its turn and, but on a GSI QP, brings what follows down with it until the QP leaves SQE.

use crate::{
    ladder::What,
    link::Fate,
    pair::{
        End,
        Pair, //
    },
    workload::{
        one_way,
        payload, //
    },
};
use fastrand::Rng;
use roce::{
    cqe::{
        RecvData,
        WcStatus, //
    },
    datagram::GRH_LEN,
    env::Counter,
    qp::{
        attr::QpAttr,
        state::{
            AttrMask,
            QpKind,
            QpState, //
        }, //
    },
    types::QKey,
    wire::Packet,
    wqe::{
        SendOp,
        SendWqe, //
    },
};
use std::collections::{
    BTreeMap,
    VecDeque, //
};

/// In a send WQE: the Q_Key of the QP.
const OWN_QKEY: QKey = QKey(1 << 31);
const GRH: usize = GRH_LEN as usize;

/// What a world took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Datagrams that went out.
    pub sent: u64,
    /// Those that were received, copies included.
    pub received: u64,
    /// Those of them that were copies.
    pub copies: u64,
    /// Those that found no receive, or one that is too small.
    pub no_receive: u64,
    /// Those with a wrong Q_Key.
    pub wrong_qkey: u64,
    /// Sends that failed.
    pub failed: u64,
    /// Sends that failed with another one.
    pub flushed: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.copies += other.copies;
        self.no_receive += other.no_receive;
        self.wrong_qkey += other.wrong_qkey;
        self.failed += other.failed;
        self.flushed += other.flushed;
    }
}

/// A world on its way.
struct Run {
    pair: Pair,
    /// Of each send of A's, in order: its length, and how it is to end.
    sends: Vec<(usize, WcStatus)>,
    /// The lengths of the buffers of B's receives.
    receives: Vec<usize>,
}

impl Run {
    fn mtu(&self) -> usize {
        self.pair.a.qp.path_mtu().bytes() as usize
    }

    fn receive(&mut self, length: usize) {
        let wr_id = self.receives.len() as u64;
        self.pair.receive(End::B, wr_id, length);
        self.receives.push(length);
    }

    /// Posts a datagram of A's; returns its number.
    fn send(&mut self, length: usize, qkey: QKey) {
        let number = self.sends.len() as u32;
        let wqe = wqe(End::B, number, length, qkey);
        one_way::post(&mut self.pair, wqe, payload(number, length));
        self.sends.push((length, WcStatus::Success));
    }

    /// Posts something of A's that cannot be sent.
    fn send_bad(&mut self, rng: &mut Rng) {
        let number = self.sends.len() as u32;
        let length = rng.usize(1..=self.mtu());
        let mut bad = wqe(End::B, number, length, OWN_QKEY);
        let status = match rng.u32(0..4) {
            0 => {
                bad.length = (self.mtu() + rng.usize(1..5000)) as u32;
                WcStatus::LocLenErr
            }
            1 => {
                bad.op = SendOp::Send;
                WcStatus::LocQpOpErr
            }
            2 => {
                bad.op = SendOp::Invalid(WcStatus::LocQpOpErr);
                WcStatus::LocQpOpErr
            }
            // Memory that is gone.
            _ => WcStatus::LocProtErr,
        };
        self.sends.push((length, status));
        let bytes = payload(number, bad.length as usize);
        if status != WcStatus::LocProtErr {
            return one_way::post(&mut self.pair, bad, bytes);
        }
        let pair = &mut self.pair;
        let slot = loop {
            let slot = pair.a.qp.next_slot();
            if let Some(slot) = slot {
                break slot;
            }
            assert!(pair.step(pair.now.after(1_000_000_000)), "stuck");
        };
        let now = pair.now;
        assert!(pair.a.post_send(now, &mut pair.ladder, bad, bytes));
        let data = pair.a.world.slots[slot as usize].as_mut();
        data.expect("just posted").broken = true;
        pair.a.transmit(now, &mut pair.ladder, &mut pair.from_a);
    }

    /// Something that cannot be sent, and what happens to those behind it. A GSI QP minds nothing.
    fn stumble(&mut self, rng: &mut Rng) {
        self.send_bad(rng);
        let follow = rng.usize(0..4);
        for _ in 0..follow {
            self.send(rng.usize(0..=self.mtu()), OWN_QKEY);
        }
        if self.pair.a.qp.kind() == QpKind::Gsi {
            return;
        }
        let first = self.sends.len() - follow;
        for (_, status) in &mut self.sends[first..] {
            *status = WcStatus::WrFlushErr;
        }
        let (pair, posted) = (&mut self.pair, self.sends.len());
        while pair.a.qp.state() != QpState::Sqe || pair.a.world.sent.len() != posted {
            assert!(pair.step(pair.now.after(1_000_000_000)), "stuck");
        }
    }

    /// Out of SQE again.
    fn recover(&mut self, rng: &mut Rng) {
        if self.pair.a.qp.kind() == QpKind::Gsi {
            return;
        }
        let mut attr = QpAttr {
            cur_state: QpState::Sqe,
            ..self.pair.a.qp.attr()
        };
        attr.state = QpState::Rts;
        let optional = *rng.choice(&[AttrMask::NONE, AttrMask::CUR_STATE]).unwrap();
        let mask = AttrMask::STATE | optional;
        self.pair.modify(End::A, &attr, mask).expect("out of SQE");
    }
}

fn wqe(to: End, number: u32, length: usize, qkey: QKey) -> SendWqe {
    let op = SendOp::Datagram {
        dest: to.qpn(),
        qkey,
        imm: Some(number.to_be_bytes()),
    };
    let mut wqe = SendWqe::new(number.into(), op, length as u32);
    wqe.solicited = number % 3 == 0;
    wqe
}

/// One world. The same seed is the same world.
///
/// # Panics
///
/// If anything is not as it should be; the packet ladder is printed on the way out.
pub fn run(seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed ^ 0x5564);
    let rng = &mut rng;
    let kind = *rng.choice(&[QpKind::Ud, QpKind::Ud, QpKind::Gsi]).unwrap();
    let pair = one_way::open(kind, seed, rng);
    let qkey = pair.a.qp.attr().qkey;
    let mut run = Run {
        pair,
        sends: Vec::new(),
        receives: Vec::new(),
    };
    let mtu = run.mtu();
    let starving = rng.u32(0..3);
    for _ in 0..rng.usize(1..80) {
        if rng.u32(0..4) >= starving {
            // Some are too small for the longest datagrams, a few for any.
            run.receive(match rng.u32(0..200) {
                0 => rng.usize(0..GRH),
                1..=20 => GRH + rng.usize(0..=mtu),
                _ => GRH + mtu,
            });
        }
        match rng.u32(0..20) {
            0 => {
                run.stumble(rng);
                run.recover(rng);
            }
            1 => run.send(rng.usize(0..=mtu), QKey(rng.u32(0..1 << 31) ^ 0x10)),
            2 => run.send(mtu, OWN_QKEY),
            3 => run.send(0, qkey),
            _ => run.send(rng.usize(0..=mtu), qkey),
        }
        run.pair.run_for(rng.u64(0..=30_000));
    }
    run.pair.run(one_way::TIME_LIMIT);

    // A good link: nothing gets lost any more, and in SQE the QP still receives.
    one_way::mend(&mut run.pair, rng);
    run.stumble(rng);
    run.pair.receive(End::A, 0, GRH + mtu);
    let sent = wqe(End::A, 7, mtu, OWN_QKEY);
    assert!(run.pair.post_send(End::B, sent, payload(7, mtu)));
    run.pair.run(one_way::TIME_LIMIT);
    assert_eq!(run.pair.received(End::A), [(0, WcStatus::Success)]);
    run.recover(rng);
    run.send(mtu, qkey);
    run.pair.run(one_way::TIME_LIMIT);
    check(&mut run)
}

/// The number of a datagram.
fn number(packet: &Packet) -> u32 {
    u32::from_be_bytes(packet.imm.expect("number of a datagram"))
}

fn check(run: &mut Run) -> Outcome {
    let mut outcome = Outcome::default();
    let pair = &mut run.pair;
    for end in End::BOTH {
        assert_eq!(pair.host(end).qp.state(), QpState::Rts);
        assert!(pair.host(end).world.events.is_empty());
    }
    let ends = run.sends.iter().map(|(_, status)| *status);
    let wanted: Vec<_> = (0u64..).zip(ends).collect();
    assert_eq!(pair.sent(End::A), wanted, "each send completes");
    for (_, status) in wanted {
        outcome.flushed += u64::from(status == WcStatus::WrFlushErr);
        outcome.failed += u64::from(status != WcStatus::Success);
    }
    outcome.failed -= outcome.flushed;

    // Each goes out once, in order, and nothing else does.
    let mut copies = BTreeMap::new();
    let good = (0u32..).zip(&run.sends);
    let mut good = good.filter(|(_, (_, status))| *status == WcStatus::Success);
    let mut psn = None;
    for (_, packet, fate) in pair.ladder.sent(End::A) {
        assert_eq!(good.next().map(|(n, _)| n), Some(number(&packet)));
        assert!(psn.is_none_or(|psn| packet.bth.psn == psn));
        psn = Some(packet.bth.psn.next());
        copies.insert(
            number(&packet),
            match fate {
                Fate::Lost => (0, true),
                Fate::Arrives | Fate::Late(_) => (1, true),
                Fate::Twice(_) => (2, true),
                // What routers may change may be damaged.
                Fate::Damaged => (1, false),
            },
        );
        outcome.sent += 1;
    }
    assert_eq!(good.next(), None, "not sent");

    // What B makes of what arrives: a receive that is too small waits for a datagram that fits.
    let qkey = pair.b.qp.attr().qkey;
    let mut posted = VecDeque::new();
    let mut received = pair.b.world.received.iter();
    for (_, _, what) in pair.ladder.entries().iter().filter(|e| e.1 == End::B) {
        let packet = match what {
            What::PostedReceive(wr_id) => {
                posted.push_back(*wr_id);
                continue;
            }
            What::Arrived(packet) => packet,
            _ => continue,
        };
        let (left, _) = copies.get_mut(&number(packet)).expect("was sent");
        assert_ne!(*left, 0, "more copies than the link made");
        *left -= 1;
        outcome.copies += u64::from(*left == 1);
        let length = run.sends[number(packet) as usize].0;
        let room = posted.front().map(|wr_id| run.receives[*wr_id as usize]);
        if packet.deth.expect("DETH").qkey != qkey {
            outcome.wrong_qkey += 1;
            continue;
        }
        if room.is_none_or(|room| room < GRH + length) {
            outcome.no_receive += 1;
            continue;
        }
        outcome.received += 1;
        let got = received.next().expect("a datagram that fits is received");
        assert_eq!(Some(got.cqe.wr_id), posted.pop_front());
        assert_eq!(got.cqe.status, WcStatus::Success);
        assert_eq!(got.cqe.byte_len as usize, GRH + length);
        assert_eq!(got.cqe.src_qp, End::A.qpn());
        assert_eq!(got.cqe.data, RecvData::Imm(number(packet).to_be_bytes()));
        assert_eq!(got.cqe.solicited, number(packet) % 3 == 0);
        assert_eq!(got.memory.written(), GRH + length);
        let (grh, bytes) = got.memory.bytes.split_at(GRH);
        assert_eq!(grh, [0x67; GRH]);
        assert!(bytes[..length] == payload(number(packet), length), "bytes");
    }
    assert!(received.next().is_none(), "more than arrived");
    let lost = copies.values().any(|(left, sure)| *sure && *left != 0);
    assert!(!lost, "lost by nobody");
    let world = &pair.b.world;
    assert_eq!(world.counter(Counter::DropNoReceive), outcome.no_receive);
    assert_eq!(world.counter(Counter::DropQKey), outcome.wrong_qkey);
    assert_eq!(world.counter(Counter::Receives), outcome.received);
    outcome
}
