// SPDX-License-Identifier: GPL-2.0
//! What the consumer does to a QP while it is at work.

use crate::{
    pair,
    patient,
    pattern,
    sent,
    DELAY,
    KEY,
    ROUND_TRIP,
    VA, //
};
use roce::{
    cqe::WcStatus::Success,
    env::QpEvent,
    qp::{
        attr::QpAttr,
        state::{
            AttrMask,
            QpState, //
        },
        AttrError, //
    },
    types::Psn,
    wire::Operation,
    wqe::SendOp, //
};
use sim::pair::{
    Config,
    End, //
};

/// Attributes for SQD that ask for the event.
const DRAIN: QpAttr = QpAttr {
    state: QpState::Sqd,
    en_sqd_async_notify: true,
    ..QpAttr::new()
};

#[test]
//= IBA 10.3.1.5
//= type=test
fn draining_finishes_what_was_started() {
    let mut pair = pair(&patient());
    for wr_id in 0..3 {
        pair.receive(End::B, wr_id, 10_000);
    }
    pair.send(End::A, 0, SendOp::Send, &pattern(9000));
    let drain = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    pair.modify(End::A, &DRAIN, drain).unwrap();
    assert!(pair.a.qp.is_draining());
    pair.send(End::A, 1, SendOp::Send, &pattern(9000));
    pair.run(4 * ROUND_TRIP);
    // The first is complete, the second has not begun.
    assert_eq!(pair.sent(End::A), [(0, Success)]);
    assert_eq!(sent(&pair, End::A, Operation::Send).len(), 9);
    assert!(!pair.a.qp.is_draining());
    assert_eq!(pair.a.world.events, [QpEvent::SqDrained]);
    // The responder works on meanwhile.
    pair.receive(End::A, 0, 10);
    pair.send(End::B, 0, SendOp::Send, b"x");
    pair.run(2 * ROUND_TRIP);
    assert_eq!(pair.received(End::A), [(0, Success)]);
    // On it goes.
    pair.to_state(End::A, QpState::Rts).unwrap();
    pair.run(4 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(0, Success), (1, Success)]);
    assert_eq!(pair.received(End::B).len(), 2);
}

#[test]
fn draining_an_empty_queue_reports_at_once() {
    let mut pair = pair(&patient());
    let drain = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    pair.modify(End::A, &DRAIN, drain).unwrap();
    assert_eq!(pair.a.world.events, [QpEvent::SqDrained]);
}

#[test]
fn draining_survives_losses() {
    let mut pair = pair(&Config::default());
    pair.from_b.fate = sim::link::lose_first(1, crate::is_ack);
    pair.receive(End::B, 0, 10);
    pair.send(End::A, 0, SendOp::Send, b"x");
    let drain = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    pair.modify(End::A, &DRAIN, drain).unwrap();
    pair.run(10_000_000);
    assert_eq!(pair.sent(End::A), [(0, Success)]);
    assert_eq!(pair.a.world.events, [QpEvent::SqDrained]);
}

#[test]
fn a_new_connection_knows_nothing_of_the_old_one() {
    let (va, rkey) = (VA, KEY);
    // Requests are under way, then responses to them.
    for ns in [DELAY - 1, DELAY + 1] {
        let mut pair = pair(&patient());
        pair.receive(End::B, 0, 10_000);
        pair.send(End::A, 0, SendOp::Send, &pattern(9000));
        pair.send(End::A, 1, SendOp::Read { va, rkey }, &[0; 9000]);
        pair.run_for(ns);
        assert_eq!(pair.sent(End::A), []);
        // The new PSNs are far from the old ones.
        let config = Config {
            psn_a: Psn::new(0x40_0000),
            psn_b: Psn::new(0xc0_0000),
            ..patient()
        };
        for end in End::BOTH {
            pair.reconnect(end, &config);
        }
        pair.receive(End::B, 7, 10);
        pair.send(End::A, 8, SendOp::Send, b"new");
        pair.run(10 * ROUND_TRIP);
        assert_eq!(pair.sent(End::A), [(8, Success)]);
        assert_eq!(pair.received(End::B).last(), Some(&(7, Success)));
        let received = pair.b.world.received.last().unwrap();
        assert_eq!(received.memory.bytes[..3], *b"new");
        for end in End::BOTH {
            assert_eq!(pair.host(end).qp.state(), QpState::Rts);
        }
    }
}

#[test]
fn err_is_left_by_reset_only() {
    let mut pair = pair(&patient());
    pair.to_error(End::A);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
        let result = pair.to_state(End::A, state);
        assert!(matches!(
            result,
            Err(AttrError::Transition | AttrError::Missing(_))
        ));
    }
    let config = patient();
    for end in End::BOTH {
        pair.reconnect(end, &config);
    }
    pair.receive(End::B, 0, 10);
    pair.send(End::A, 0, SendOp::Send, b"x");
    pair.run(2 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(0, Success)]);
}
