// SPDX-License-Identifier: GPL-2.0
//! A peer that serves READ requests slowly, one after the other, and each repetition anew: it is
//! busy with what nobody waits for any more, for longer than the retries would last. As rxe, it answers
//! no repetition that begins before an earlier one of the same request, or goes beyond that request.

use fastrand::Rng;
use roce::{
    cqe::WcStatus,
    qp::{
        attr::QpAttr,
        state::{
            self,
            AttrMask,
            QpKind,
            QpState, //
        },
        Qp,
        ReadSlot, //
    },
    types::{
        Instant,
        Mtu,
        Psn,
        Qpn,
        RKey, //
    },
    wire::{
        Aeth,
        Bth,
        NakCode,
        Opcode,
        Packet,
        Syndrome, //
    },
    wqe::{
        SendOp,
        SendWqe, //
    },
};
use sim::world::{
    SlotData,
    World, //
};
use std::collections::{
    BTreeMap,
    VecDeque, //
};

const MTU: Mtu = Mtu::M1024;
const SLOTS: usize = 16;
/// One way, in nanoseconds.
const DELAY: u64 = 300_000;

/// The responder.
struct Peer {
    expected: Psn,
    /// A sequence NAK was said.
    silent: bool,
    /// Requests that may be repeated: from where on, and up to where.
    known: Vec<(Psn, Psn)>,
    /// Requests in the order of their arrival: PSN, packets, bytes, packets done.
    queue: VecDeque<(Psn, u32, u32, u32)>,
    /// When it has time for the next packet.
    free: u64,
    /// What it takes for a packet, in nanoseconds.
    pace: u64,
}

impl Peer {
    fn take(&mut self, packet: &Packet) -> Option<Packet> {
        let reth = packet.reth.expect("only READ requests");
        let (psn, packets) = (packet.bth.psn, MTU.packets(reth.length));
        if psn != self.expected && !psn.is_before(self.expected) {
            let first = !std::mem::replace(&mut self.silent, true);
            let nak = Syndrome::Nak(NakCode::PsnSequence);
            return first.then(|| answer(Opcode::RcAcknowledge, self.expected, nak));
        }
        if psn == self.expected {
            self.expected = psn.add(packets);
            self.silent = false;
            self.known.push((psn, self.expected));
        } else {
            let known = |(from, end): &&mut (Psn, Psn)| {
                !psn.is_before(*from) && !end.is_before(psn.add(packets))
            };
            let (from, _) = self.known.iter_mut().find(known)?;
            *from = psn;
        }
        self.queue.push_back((psn, packets, reth.length, 0));
        None
    }

    fn serve(&mut self) -> Option<Packet> {
        let (psn, packets, length, done) = self.queue.front_mut()?;
        let number = *done;
        *done += 1;
        let opcode = match (number == 0, number + 1 == *packets) {
            (true, true) => Opcode::RcReadResponseOnly,
            (true, false) => Opcode::RcReadResponseFirst,
            (false, false) => Opcode::RcReadResponseMiddle,
            (false, true) => Opcode::RcReadResponseLast,
        };
        let mut packet = answer(opcode, psn.add(number), Syndrome::ACK);
        packet.payload_len = (*length - MTU.span(number)).min(MTU.bytes());
        if *done == *packets {
            self.queue.pop_front();
        }
        Some(packet)
    }
}

fn answer(opcode: Opcode, psn: Psn, syndrome: Syndrome) -> Packet {
    let mut packet = Packet::new(Bth::new(opcode, Qpn::new(0x11), psn));
    packet.aeth = opcode.has_aeth().then_some(Aeth {
        syndrome,
        msn: Default::default(),
    });
    packet
}

fn connected(world: &mut World, timeout: u8) -> Qp<Vec<SendWqe>, Vec<ReadSlot>> {
    let wqes = vec![SendWqe::new(0, SendOp::Send, 0); SLOTS];
    let reads = vec![ReadSlot::default(); 16];
    let mut qp = Qp::new(QpKind::Rc, Qpn::new(0x11), wqes, reads);
    let mut attr = QpAttr::new();
    attr.path_mtu = MTU;
    attr.max_rd_atomic = 16;
    attr.max_dest_rd_atomic = 16;
    attr.timeout = timeout;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let rule = state::transition(QpKind::Rc, attr.state, state).unwrap();
        attr.state = state;
        let mask = AttrMask::STATE | rule.required;
        qp.modify(Instant(0), &attr, mask, world).unwrap();
    }
    qp
}

/// Reads `total` bytes, four messages at a time, from a peer that takes `pace` for each packet.
/// Returns the packets that came for each that was needed, in per cent, the statuses, and the time.
fn read(total: u32, pace: u64, loss: u32, seed: u64, timeout: u8) -> (u64, Vec<WcStatus>, u64) {
    let mut rng = Rng::with_seed(seed);
    let mut world = World {
        slots: vec![None; SLOTS],
        ..World::default()
    };
    let mut qp = connected(&mut world, timeout);
    let mut peer = Peer {
        expected: Psn::default(),
        silent: false,
        known: Vec::new(),
        queue: VecDeque::new(),
        free: 0,
        pace,
    };
    // What is on its way, by time: to the peer, or to us.
    let mut wire: BTreeMap<(u64, u64), (bool, Packet)> = BTreeMap::new();
    let (mut now, mut count, mut left, mut came) = (0u64, 0u64, total, 0u64);
    let (mut posted, mut retired) = (0, 0);
    loop {
        while left != 0 && posted < u64::from(qp.retired()) + 4 {
            let length = left.min(100_003);
            let slot = qp.next_slot().unwrap() as usize;
            world.slots[slot] = Some(SlotData {
                bytes: vec![0; length as usize],
                broken: false,
                read: true,
            });
            let op = SendOp::Read {
                va: 0,
                rkey: RKey(1),
            };
            qp.post(SendWqe::new(posted, op, length)).unwrap();
            posted += 1;
            left -= length;
        }
        while let Some(run) = qp.poll_transmit(Instant(now), 64, &mut world) {
            for index in 0..run.count {
                let tx = run.packet(index).unwrap();
                let packet = Packet::parse(&tx.header[..tx.header_len], tx.header_len + 4).unwrap();
                if rng.u32(0..1000) >= loss {
                    count += 1;
                    wire.insert((now + DELAY, count), (true, packet));
                }
            }
        }
        while retired != qp.retired() {
            world.slots[retired as usize % SLOTS] = None;
            retired += 1;
        }
        if qp.state() != QpState::Rts || (left == 0 && posted == u64::from(qp.retired())) {
            break;
        }
        let arrival = wire.keys().next().map(|(time, _)| *time);
        let serve = (!peer.queue.is_empty()).then_some(peer.free);
        let timer = qp.poll_timeout().map(|t| t.0);
        now = now.max(
            [arrival, serve, timer]
                .into_iter()
                .flatten()
                .min()
                .expect("stuck"),
        );
        assert!(now < 600_000_000_000, "no end");
        if serve.is_some_and(|t| t <= now) {
            peer.free = now + peer.pace;
            let packet = peer.serve().unwrap();
            if rng.u32(0..1000) >= loss {
                count += 1;
                wire.insert((now + DELAY, count), (false, packet));
            }
        }
        while let Some(entry) = wire.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (to_peer, packet) = entry.remove();
            if to_peer {
                let idle = peer.queue.is_empty();
                if let Some(nak) = peer.take(&packet) {
                    count += 1;
                    wire.insert((now + DELAY, count), (false, nak));
                }
                if idle {
                    peer.free = peer.free.max(now);
                }
            } else {
                came += u64::from(packet.bth.opcode != Opcode::RcAcknowledge);
                world.payload = vec![0; packet.payload_len as usize];
                qp.handle_packet(Instant(now), &packet, &mut world);
            }
        }
        if timer.is_some_and(|t| t <= now) {
            qp.handle_timeout(Instant(now), &mut world);
        }
    }
    let needed = u64::from(total) / u64::from(MTU.bytes());
    let statuses = world.sent.iter().map(|c| c.status).collect();
    (came * 100 / needed, statuses, now)
}

#[test]
fn a_busy_peer_is_not_a_dead_one() {
    for (pace, timeout) in [
        (100_000, 12),
        (500_000, 12),
        (1_500_000, 12),
        (1_500_000, 10),
    ] {
        let mut worst = 0;
        for seed in 0..20 {
            let (came, statuses, _) = read(2 << 20, pace, 10, seed, timeout);
            assert!(
                statuses.iter().all(|s| *s == WcStatus::Success),
                "pace {pace} timeout {timeout} seed {seed}: {statuses:?}"
            );
            worst = worst.max(came);
        }
        println!("pace {pace} timeout {timeout}: at worst {worst} % of the packets came");
        assert!(
            worst < 400,
            "pace {pace} timeout {timeout}: {worst} % of the packets"
        );
    }
}

#[test]
fn a_dead_one_is_found_in_time() {
    // 16.8 ms, once and seven times more.
    let (came, statuses, took) = read(1 << 20, 1, 1000, 1, 12);
    assert_eq!((came, statuses), (0, vec![WcStatus::RetryExcErr]));
    assert!(took <= 8 * (4096 << 12), "{took} ns");
}
