// SPDX-License-Identifier: GPL-2.0
//! States, attributes and what concerns both halves.

mod table;

use super::*;
use crate::{
    cqe::WcStatus,
    env::{
        MemoryError,
        QpEvent,
        Receive, //
    },
    testing::{
        ack,
        atomic_eth,
        attributes,
        packet,
        required,
        reth,
        Node,
        BASE,
        FIRST,
        RKEY, //
    },
    types::Srqn,
    wire::{
        Feth,
        Opcode,
        Selectivity,
        Syndrome,
        Transport, //
    },
    wqe::{
        AtomicOp,
        SendOp, //
    },
};
use std::{
    format,
    println,
    string::String, //
};

/// The legal transitions and their attributes; run with `--nocapture` to see all.
#[test]
fn table_of_transitions() {
    let mut table = String::new();
    for kind in [
        QpKind::Rc,
        QpKind::Uc,
        QpKind::Ud,
        QpKind::Gsi,
        QpKind::XrcIni,
        QpKind::XrcTgt,
    ] {
        for from in QpState::ALL {
            for to in QpState::ALL {
                if let Some(rule) = state::transition(kind, from, to) {
                    let pair = format!("{from:?} -> {to:?}");
                    table += &format!("{kind:?} {pair:<14} [{}]", rule.required);
                    table += &format!(" ({})\n", rule.allowed);
                    assert_eq!(rule.required.0 & rule.allowed.0, 0);
                }
            }
        }
    }
    println!("{table}");
    for line in [
        "Rc Reset -> Init  [ACCESS_FLAGS PKEY_INDEX PORT] ()",
        "Rc Init -> Rtr    [AV PATH_MTU RQ_PSN MIN_RNR_TIMER MAX_DEST_RD_ATOMIC DEST_QPN] \
         (ACCESS_FLAGS PKEY_INDEX ALT_PATH)",
        "Rc Rtr -> Rts     [TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC SQ_PSN] \
         (CUR_STATE ACCESS_FLAGS ALT_PATH MIN_RNR_TIMER PATH_MIG_STATE)",
        "Rc Rts -> Sqd     [] (EN_SQD_ASYNC_NOTIFY)",
        "Uc Reset -> Init  [ACCESS_FLAGS PKEY_INDEX PORT] ()",
        "Uc Init -> Rtr    [AV PATH_MTU RQ_PSN DEST_QPN] (ACCESS_FLAGS PKEY_INDEX ALT_PATH)",
        "Uc Rtr -> Rts     [SQ_PSN] (CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE)",
        "Uc Sqd -> Sqd     [] (ACCESS_FLAGS PKEY_INDEX PORT AV ALT_PATH PATH_MIG_STATE)",
        "Uc Sqe -> Rts     [] (CUR_STATE ACCESS_FLAGS)",
        "Ud Sqe -> Rts     [] (CUR_STATE QKEY)",
        "Gsi Reset -> Init  [PKEY_INDEX QKEY] ()",
        "XrcIni Reset -> Init  [ACCESS_FLAGS PKEY_INDEX PORT] ()",
        "XrcIni Init -> Rtr    [AV PATH_MTU RQ_PSN DEST_QPN] (ACCESS_FLAGS PKEY_INDEX ALT_PATH)",
        "XrcIni Rtr -> Rts     [TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC SQ_PSN] \
         (CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE)",
        "XrcIni Sqd -> Sqd     [] (ACCESS_FLAGS PKEY_INDEX PORT AV TIMEOUT RETRY_CNT RNR_RETRY \
         MAX_QP_RD_ATOMIC ALT_PATH PATH_MIG_STATE)",
        "XrcTgt Init -> Rtr    [AV PATH_MTU RQ_PSN MIN_RNR_TIMER MAX_DEST_RD_ATOMIC DEST_QPN] \
         (ACCESS_FLAGS PKEY_INDEX ALT_PATH)",
        "XrcTgt Rtr -> Rts     [TIMEOUT SQ_PSN] \
         (CUR_STATE ACCESS_FLAGS ALT_PATH MIN_RNR_TIMER PATH_MIG_STATE)",
        "XrcTgt Sqd -> Sqd     [] (ACCESS_FLAGS PKEY_INDEX PORT AV TIMEOUT ALT_PATH MIN_RNR_TIMER \
         MAX_DEST_RD_ATOMIC PATH_MIG_STATE)",
    ] {
        assert!(table.contains(line), "{line}");
    }
    let count = |kind: &str| table.lines().filter(|line| line.starts_with(kind)).count();
    let counts = ["Rc", "Uc", "Ud", "Gsi", "XrcIni", "XrcTgt"].map(count);
    assert_eq!(counts, [21, 22, 22, 22, 21, 21]);
}

#[test]
fn codes_of_states() {
    for state in QpState::ALL {
        assert_eq!(QpState::from_code(state.code()), Some(state));
    }
    assert_eq!(QpState::from_code(7), None);
}

#[test]
fn modify_wants_exactly_the_right_attributes() {
    for to in QpState::ALL {
        for bit in 1..32 {
            let mut node = Node::reset(QpKind::Rc);
            let attr = QpAttr {
                state: to,
                ..attributes()
            };
            if state::transition(QpKind::Rc, QpState::Reset, to).is_none() {
                let result = node
                    .qp
                    .modify(node.now, &attr, AttrMask::STATE, &mut node.world);
                assert_eq!(result, Err(AttrError::Transition));
                continue;
            }
            let mask = required(QpKind::Rc, QpState::Reset, to);
            let flipped = AttrMask(mask.0 ^ (1 << bit));
            let result = node.qp.modify(node.now, &attr, flipped, &mut node.world);
            let bit = AttrMask(1 << bit);
            if bit == AttrMask::CUR_STATE {
                // RESET is right, but may not be given here.
                assert_eq!(result, Err(AttrError::NotAllowed(bit)));
            } else if mask.contains(bit) {
                assert_eq!(result, Err(AttrError::Missing(bit)));
            } else {
                assert_eq!(result, Err(AttrError::NotAllowed(bit)));
            }
            assert_eq!(node.qp.attr(), QpAttr::new());
        }
    }
}

/// An attribute, and what puts it out of range.
type Spoiled = (AttrMask, fn(&mut QpAttr));

#[test]
fn ranges_are_checked_and_nothing_is_taken_over() {
    let good = attributes();
    let bad: [Spoiled; 4] = [
        (AttrMask::DEST_QPN, |attr| attr.dest_qpn = 1 << 24),
        (AttrMask::RQ_PSN, |attr| attr.rq_psn = 1 << 24),
        (AttrMask::MIN_RNR_TIMER, |attr| attr.min_rnr_timer = 32),
        (AttrMask::MAX_DEST_RD_ATOMIC, |attr| {
            attr.max_dest_rd_atomic = 3
        }),
    ];
    for (mask, spoil) in bad {
        let mut node = Node::reset(QpKind::Rc);
        node.go(&good, QpState::Init);
        let before = node.qp.attr();
        let mut attr = good;
        attr.state = QpState::Rtr;
        spoil(&mut attr);
        let all = required(QpKind::Rc, QpState::Init, QpState::Rtr);
        let result = node.qp.modify(node.now, &attr, all, &mut node.world);
        assert_eq!(result, Err(AttrError::Range(mask)));
        assert_eq!(node.qp.attr(), before);
    }
    let bad: [Spoiled; 5] = [
        (AttrMask::SQ_PSN, |attr| attr.sq_psn = 1 << 24),
        (AttrMask::TIMEOUT, |attr| attr.timeout = 32),
        (AttrMask::RETRY_CNT, |attr| attr.retry_cnt = 8),
        (AttrMask::RNR_RETRY, |attr| attr.rnr_retry = 8),
        (AttrMask::MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = 129),
    ];
    for (mask, spoil) in bad {
        let mut node = Node::reset(QpKind::Rc);
        node.go(&good, QpState::Init);
        node.go(&good, QpState::Rtr);
        let mut attr = good;
        attr.state = QpState::Rts;
        spoil(&mut attr);
        let all = required(QpKind::Rc, QpState::Rtr, QpState::Rts);
        let result = node.qp.modify(node.now, &attr, all, &mut node.world);
        assert_eq!(result, Err(AttrError::Range(mask)));
        assert_eq!(node.qp.state(), QpState::Rtr);
    }
    // Also where the state does not change.
    let mut node = Node::rc();
    let mut attr = good;
    attr.min_rnr_timer = 77;
    let mask = AttrMask::MIN_RNR_TIMER;
    let result = node.qp.modify(node.now, &attr, mask, &mut node.world);
    assert_eq!(result, Err(AttrError::Range(mask)));
    attr.min_rnr_timer = 3;
    node.qp
        .modify(node.now, &attr, mask, &mut node.world)
        .unwrap();
    assert_eq!(node.qp.attr().min_rnr_timer, 3);
}

#[test]
fn the_current_state_is_checked() {
    let mut node = Node::rc();
    let mut attr = attributes();
    attr.state = QpState::Rts;
    attr.cur_state = QpState::Sqd;
    let mask = AttrMask::STATE | AttrMask::CUR_STATE;
    let result = node.qp.modify(node.now, &attr, mask, &mut node.world);
    assert_eq!(result, Err(AttrError::CurrentState));
    attr.cur_state = QpState::Rts;
    let result = node.qp.modify(node.now, &attr, mask, &mut node.world);
    assert_eq!(result, Ok(()));
}

#[test]
fn query_returns_what_was_set() {
    let node = Node::rc();
    let expected = QpAttr {
        state: QpState::Rts,
        ..attributes()
    };
    assert_eq!(node.qp.attr(), expected);
}

#[test]
fn sends_are_taken_only_where_they_can_go() {
    let mut node = Node::reset(QpKind::Rc);
    let attr = attributes();
    let wqe = SendWqe::new(1, SendOp::Send, 0);
    for state in [QpState::Init, QpState::Rtr] {
        assert_eq!(node.qp.post(wqe), Err(PostError::State));
        node.go(&attr, state);
    }
    assert_eq!(node.qp.post(wqe), Err(PostError::State));
    node.go(&attr, QpState::Rts);
    assert_eq!(node.qp.post(wqe), Ok(0));
}

#[test]
fn drains_what_was_started() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 1000);
    let run = node.poll(2).unwrap();
    assert_eq!(run.count, 2);
    node.post(2, SendOp::Send, 5);
    let mut attr = attributes();
    attr.state = QpState::Sqd;
    attr.en_sqd_async_notify = true;
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    node.qp
        .modify(node.now, &attr, mask, &mut node.world)
        .unwrap();
    assert!(node.qp.is_draining());
    assert_eq!(node.sent().len(), 2);
    assert!(node.world.events.is_empty());
    node.handle(ack(103));
    assert_eq!(node.world.events, [QpEvent::SqDrained]);
    assert!(!node.qp.is_draining());
    assert!(node.sent().is_empty());
    node.go(&attr, QpState::Rts);
    assert_eq!(node.ladder(), [(Opcode::RcSendOnly, 104, 5)]);
    // Nothing was started: drained at once.
    let mut node = Node::rc();
    node.qp
        .modify(node.now, &attr, mask, &mut node.world)
        .unwrap();
    assert_eq!(node.world.events, [QpEvent::SqDrained]);
    // Not asked for: no event.
    let mut node = Node::rc();
    node.go(&attr, QpState::Sqd);
    assert!(node.world.events.is_empty());
}

#[test]
fn err_flushes_in_order_and_in_bounds() {
    let mut node = Node::rc();
    for id in 0..5 {
        node.post(id, SendOp::Send, 5);
        node.world.receive(10 + id, 100);
    }
    node.sent();
    node.handle(packet(Opcode::RcSendFirst, 100, 256));
    node.handle(ack(100));
    let mut silent = SendWqe::new(5, SendOp::Send, 5);
    silent.signaled = false;
    node.qp.post(silent).unwrap();
    // 100 bytes are too few for the SEND: it fails the QP.
    assert_eq!(node.qp.state(), QpState::Err);
    assert_eq!(node.world.recvs[0].status, WcStatus::LocLenErr);
    node.go(&attributes(), QpState::Err);
    assert!(node.sent().is_empty());
    while node.qp.flush(node.now, &mut node.world, 2) {}
    let sends: std::vec::Vec<_> = node.world.sends.iter().map(|cqe| cqe.wr_id).collect();
    assert_eq!(sends, [0, 1, 2, 3, 4, 5]);
    assert_eq!(node.world.sends[5].status, WcStatus::WrFlushErr);
    let recvs: std::vec::Vec<_> = node.world.recvs.iter().map(|cqe| cqe.wr_id).collect();
    assert_eq!(recvs, [10, 11, 12, 13, 14]);
    assert_eq!(node.qp.retired(), 6);
}

#[test]
fn err_flushes_the_receive_of_a_broken_off_message() {
    let mut node = Node::rc();
    node.world.receive(1, 1000);
    node.world.receive(2, 1000);
    node.handle(packet(Opcode::RcSendFirst, 100, 256));
    node.go(&attributes(), QpState::Err);
    assert!(!node.qp.flush(node.now, &mut node.world, 16));
    let recvs: std::vec::Vec<_> = node.world.recvs.iter().map(|cqe| cqe.wr_id).collect();
    assert_eq!(recvs, [1, 2]);
}

//= type=test IBA 11.6.3
#[test]
fn err_leaves_a_shared_receive_queue_to_others() {
    let mut node = Node::rc();
    node.qp.share_receives();
    node.world.receive(7, 4096);
    node.world.receive(8, 4096);
    node.post(1, SendOp::Send, 5);
    node.handle(packet(Opcode::RcSendFirst, 100, 256));
    node.go(&attributes(), QpState::Err);
    assert!(node.world.events.is_empty());
    // First the sends, as far as allowed; then what was taken; then the event.
    while node.qp.flush(node.now, &mut node.world, 1) {}
    assert_eq!(node.world.sends.len(), 1);
    assert_eq!(node.world.recvs.len(), 1);
    assert_eq!(node.world.recvs[0].wr_id, 7);
    assert_eq!(node.world.recvs[0].status, WcStatus::WrFlushErr);
    assert_eq!(node.world.receives.len(), 1);
    assert_eq!(node.world.events, [QpEvent::LastWqe]);
    // Once, until the QP starts anew.
    assert!(!node.qp.flush(node.now, &mut node.world, 16));
    assert_eq!(node.world.events, [QpEvent::LastWqe]);
    node.go(&attributes(), QpState::Reset);
    node.go(&attributes(), QpState::Init);
    node.go(&attributes(), QpState::Err);
    assert!(!node.qp.flush(node.now, &mut node.world, 16));
    assert_eq!(node.world.events, [QpEvent::LastWqe, QpEvent::LastWqe]);
}

#[test]
fn a_broken_receive_queue_is_fatal() {
    let mut node = Node::rc();
    node.world.receives.push_back(Receive::Broken);
    node.handle(packet(Opcode::RcSendOnly, 100, 10));
    assert_eq!(node.qp.state(), QpState::Err);
    assert_eq!(node.world.events, [QpEvent::Fatal]);
    assert!(node.world.recvs.is_empty());
    // The peer is told.
    assert_eq!(node.sent().len(), 1);
    node.world.receives.push_back(Receive::Broken);
    assert!(!node.qp.flush(node.now, &mut node.world, 16));
}

#[test]
fn reset_starts_anew() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 1000);
    node.handle(reth(packet(Opcode::RcReadRequest, 100, 0), BASE, 500));
    let read = node.poll(64).unwrap();
    let send = node.poll(64).unwrap();
    node.go(&attributes(), QpState::Reset);
    assert_eq!(node.qp.attr(), QpAttr::new());
    assert_eq!(node.qp.retired(), 0);
    assert_eq!(node.qp.poll_timeout(), None);
    // What the driver still says about the old life is not heard.
    for run in [read, send] {
        node.qp.congested(node.now, &run, 0);
        node.qp
            .payload_failed(&run, 0, MemoryError::Access, &mut node.world);
    }
    assert_eq!(node.qp.state(), QpState::Reset);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        node.go(&attributes(), state);
    }
    assert!(node.sent().is_empty());
    assert!(node.world.sends.is_empty());
    node.post(2, SendOp::Send, 5);
    assert_eq!(node.ladder(), [(Opcode::RcSendOnly, 100, 5)]);
}

#[test]
fn requests_and_replies_take_turns() {
    let mut node = Node::rc();
    node.post(1, SendOp::Send, 256 * 20);
    node.handle(reth(packet(Opcode::RcReadRequest, 100, 0), BASE, 256 * 20));
    let mut roles = std::vec::Vec::new();
    while let Some(run) = node.poll(8) {
        roles.push((run.is_requester(), run.count));
    }
    assert_eq!(
        roles,
        [
            (false, 8),
            (true, 8),
            (false, 8),
            (true, 8),
            (false, 4),
            (true, 4)
        ]
    );
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % sides
    }

    fn psn(&mut self) -> u32 {
        let near = FIRST + self.roll(80) as u32;
        match self.roll(8) {
            0 => self.roll(1 << 24) as u32,
            1 => near.wrapping_sub(90) & Psn::MASK,
            _ => near,
        }
    }

    fn length(&mut self) -> u32 {
        match self.roll(6) {
            0 => 0,
            1 => 256,
            2 => self.roll(1 << 32) as u32,
            _ => self.roll(3000) as u32,
        }
    }

    fn packet(&mut self) -> Packet {
        let opcode = loop {
            if let Some(opcode) = Opcode::from_u8(self.roll(0x2c) as u8) {
                break opcode;
            }
        };
        let payload = match (opcode.has_payload(), self.roll(3)) {
            (false, _) => 0,
            (true, 0) => self.roll(300) as u32,
            (true, _) => 256,
        };
        let mut packet = packet(opcode, self.psn(), payload);
        if opcode.has_reth() {
            let length = self.length();
            packet = reth(packet, BASE, length);
        }
        if opcode.has_atomic() {
            packet = atomic_eth(packet, BASE + 4 * self.roll(4), self.roll(3), 1);
        }
        if opcode.has_atomic_ack() {
            packet.atomic_ack = Some(self.roll(1000));
        }
        if opcode.has_feth() {
            packet.feth = Some(GLOBAL);
        }
        if let Some(aeth) = &mut packet.aeth {
            if let Ok(syndrome) = Syndrome::from_u8(self.roll(256) as u8) {
                aeth.syndrome = syndrome;
            }
        }
        packet
    }

    fn op(&mut self) -> SendOp {
        let (va, rkey) = (BASE, RKEY);
        match self.roll(10) {
            0 => SendOp::Send,
            7 => SendOp::Atomic {
                va,
                rkey,
                op: AtomicOp::FetchAdd(1),
            },
            8 => SendOp::AtomicWrite { va, rkey },
            9 => SendOp::Flush {
                va,
                rkey,
                length: 100,
                feth: GLOBAL,
            },
            1 => SendOp::SendInv(rkey),
            2 => SendOp::Write { va, rkey },
            3 => SendOp::Read { va, rkey },
            4 => SendOp::WriteImm {
                va,
                rkey,
                imm: [0; 4],
            },
            5 => SendOp::Datagram {
                dest: Qpn::new(2),
                qkey: crate::types::QKey(0),
                imm: None,
            },
            _ => SendOp::SendImm([0; 4]),
        }
    }
}

const GLOBAL: Feth = Feth {
    global: true,
    persistent: false,
    reserved: false,
    selectivity: Selectivity::Range,
};

/// A peer that sends anything, a driver that reports anything: nothing panics, and each WQE
/// completes once and in order.
#[test]
fn nothing_can_break_it() {
    for seed in 1..400 {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let kind = match dice.roll(10) {
            0 => QpKind::Ud,
            1 => QpKind::Gsi,
            2 | 3 => QpKind::Uc,
            4 => QpKind::XrcIni,
            5 => QpKind::XrcTgt,
            _ => QpKind::Rc,
        };
        let mut node = Node::with(kind, &attributes());
        node.world.srqs = std::vec![Srqn::new(0), Srqn::new(1)];
        let mut runs = std::vec::Vec::new();
        let (mut posted, mut receives) = (0, 0);
        for _ in 0..400 {
            let start = node.qp.retired();
            match dice.roll(16) {
                0..=5 => {
                    let mut packet = dice.packet();
                    if kind.transport() == Transport::Xrc && dice.roll(20) != 0 {
                        packet.bth.opcode = packet.bth.opcode.over(Transport::Xrc);
                        let srq = Srqn::new(dice.roll(40) as u32 / 19);
                        packet.xrceth = packet.bth.opcode.has_xrceth().then_some(srq);
                    }
                    node.handle(packet);
                }
                6 | 7 => {
                    if node.qp.next_slot().is_some() {
                        let op = dice.op();
                        let length = match op {
                            SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } => 8,
                            SendOp::Flush { .. } => 0,
                            _ => dice.length(),
                        };
                        let mut wqe = SendWqe::new(posted, op, length);
                        wqe.fence = dice.roll(4) == 0;
                        if node.qp.post(wqe).is_ok() {
                            posted += 1;
                        }
                    }
                }
                8 | 9 => {
                    if let Some(run) = node.poll(1 + dice.roll(20) as u32) {
                        for index in 0..run.count {
                            crate::testing::parse(&run.packet(index).unwrap());
                        }
                        runs.push(run);
                    }
                }
                10 => {
                    node.later(dice.roll(100_000_000));
                    node.qp.handle_timeout(node.now, &mut node.world);
                }
                11 => {
                    node.world.receive(receives, dice.roll(2000));
                    receives += 1;
                }
                12 => {
                    if !runs.is_empty() {
                        let run = runs[dice.roll(runs.len() as u64) as usize];
                        let index = dice.roll(run.count.into()) as u32;
                        match dice.roll(20) {
                            0 => node.qp.payload_failed(
                                &run,
                                index,
                                MemoryError::Access,
                                &mut node.world,
                            ),
                            _ => node.qp.congested(node.now, &run, index),
                        }
                    }
                }
                13 => {
                    // What the QP waits for.
                    let psn = FIRST + node.qp.requester.unacked.offset_from(Psn::new(FIRST));
                    node.handle(ack(psn & Psn::MASK));
                }
                14 => {
                    node.qp.flush(node.now, &mut node.world, 3);
                    node.qp.transmitted(&mut node.world);
                }
                _ => {
                    let attr = QpAttr {
                        state: QpState::ALL[1 + dice.roll(6) as usize],
                        ..attributes()
                    };
                    let mask = AttrMask(dice.roll(1 << 21) as u32);
                    let mask = match dice.roll(2) {
                        0 => AttrMask::STATE,
                        _ => mask,
                    };
                    if attr.state != QpState::Err || dice.roll(10) == 0 {
                        let _ = node.qp.modify(node.now, &attr, mask, &mut node.world);
                    }
                }
            }
            let retired = node.qp.retired().wrapping_sub(start);
            assert!(retired <= 64, "seed {seed}");
            assert!(u64::from(node.qp.retired()) <= posted, "seed {seed}");
        }
        let attr = attributes();
        node.go(&attr, QpState::Err);
        while node.qp.flush(node.now, &mut node.world, 5) {}
        let ids = node.world.sends.iter().map(|cqe| cqe.wr_id);
        assert!(ids.eq(0..posted), "seed {seed}");
        let ids = node.world.recvs.iter().map(|cqe| cqe.wr_id);
        // What is left in a shared queue is for others.
        let left = match kind {
            QpKind::XrcTgt => node.world.receives.len() as u64,
            _ => 0,
        };
        assert!(ids.eq(0..receives - left), "seed {seed}");
    }
}

#[test]
fn odd_storage() {
    let slots = std::vec![SendWqe::new(0, SendOp::Send, 0); 5];
    let mut qp = Qp::new(
        QpKind::Rc,
        Qpn::new(1),
        slots,
        std::vec::Vec::<ReadSlot>::new(),
    );
    assert_eq!(qp.next_slot(), Some(0));
    assert!(qp
        .set_read_slots(std::vec![ReadSlot::default(); 3])
        .is_empty());
    let none = std::vec::Vec::<SendWqe>::new();
    let qp = Qp::new(
        QpKind::Rc,
        Qpn::new(1),
        none,
        std::vec::Vec::<ReadSlot>::new(),
    );
    assert_eq!(qp.next_slot(), None);
}
