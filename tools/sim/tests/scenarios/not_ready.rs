// SPDX-License-Identifier: GPL-2.0
//! The receiver has no receive WQE.

use crate::{
    pair,
    patient,
    pattern,
    KEY,
    ROUND_TRIP,
    VA, //
};
use roce::{
    cqe::WcStatus,
    env::Counter,
    qp::state::QpState,
    wqe::SendOp, //
};
use sim::pair::{
    Config,
    End, //
};

/// Code and nanoseconds of the waiting times that are tried.
const TIMERS: [(u8, u64); 5] = [
    (0, 655_360_000),
    (1, 10_000),
    (5, 60_000),
    (14, 1_280_000),
    (31, 491_520_000),
];

#[test]
//= IBA 9.7.5.2.8
//= type=test
fn waits_as_long_as_the_receiver_says() {
    for (min_rnr_timer, ns) in TIMERS {
        let config = Config {
            min_rnr_timer,
            ..patient()
        };
        let mut pair = pair(&config);
        pair.send(End::A, 7, SendOp::Send, b"hello");
        let start = pair.now;
        pair.run_for(ROUND_TRIP);
        pair.receive(End::B, 1, 10);
        pair.run(3 * ns + 10 * ROUND_TRIP);
        assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)]);
        let attempts: Vec<_> = pair.ladder.sent(End::A).map(|(t, _, _)| t).collect();
        assert_eq!(attempts.len(), 2);
        let waited = attempts[1].0 - start.0;
        assert!(waited >= ns && waited <= 2 * ns + ROUND_TRIP, "{waited}");
        assert_eq!(pair.b.world.counter(Counter::RnrSent), 1);
        assert_eq!(pair.a.world.counter(Counter::RnrReceived), 1);
        assert_eq!(pair.a.world.counter(Counter::AckTimeout), 0);
    }
}

#[test]
//= IBA 9.9.2.4.2
//= type=test
fn gives_up_after_the_retries() {
    for rnr_retry in [0, 1, 6] {
        let config = Config {
            rnr_retry,
            ..patient()
        };
        let mut pair = pair(&config);
        let (va, rkey) = (VA, KEY);
        let imm = [0; 4];
        pair.send(End::A, 6, SendOp::Write { va, rkey }, b"hello");
        pair.send(End::A, 7, SendOp::WriteImm { va, rkey, imm }, b"");
        pair.send(End::A, 8, SendOp::Send, b"hello");
        pair.run(10_000_000);
        assert_eq!(
            pair.sent(End::A),
            [
                (6, WcStatus::Success),
                (7, WcStatus::RnrRetryExcErr),
                (8, WcStatus::WrFlushErr),
            ]
        );
        assert_eq!(pair.a.qp.state(), QpState::Err);
        assert_eq!(pair.b.qp.state(), QpState::Rts);
        let naks = pair.b.world.counter(Counter::RnrSent);
        assert_eq!(naks, u64::from(rnr_retry) + 1);
        assert_eq!(pair.a.world.counter(Counter::RnrRetryExceeded), 1);
    }
}

#[test]
fn seven_means_for_ever() {
    let mut pair = pair(&patient());
    pair.send(End::A, 7, SendOp::Send, b"hello");
    pair.run_for(1_000_000);
    assert!(pair.b.world.counter(Counter::RnrSent) > 20);
    pair.receive(End::B, 1, 10);
    pair.run(1_000_000);
    assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)]);
}

#[test]
fn each_message_has_all_retries() {
    let config = Config {
        rnr_retry: 2,
        ..patient()
    };
    let mut pair = pair(&config);
    for wr_id in 0..5 {
        pair.send(End::A, wr_id, SendOp::Send, b"hello");
    }
    for wr_id in 0..5 {
        pair.run_for(ROUND_TRIP + 2_000);
        pair.receive(End::B, wr_id, 10);
    }
    pair.run(1_000_000);
    let all: Vec<_> = (0..5).map(|n| (n, WcStatus::Success)).collect();
    assert_eq!(pair.sent(End::A), all);
}

#[test]
fn the_last_packet_of_a_write_with_immediate_waits() {
    let mut pair = pair(&patient());
    let (va, rkey) = (VA, KEY);
    let bytes = pattern(5000);
    let imm = [9, 8, 7, 6];
    pair.send(End::A, 7, SendOp::WriteImm { va, rkey, imm }, &bytes);
    pair.run_for(100_000);
    pair.receive(End::B, 1, 0);
    pair.run(1_000_000);
    assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)]);
    let received = &pair.b.world.received[0].cqe;
    assert!(received.write_imm);
    assert_eq!(received.byte_len, 5000);
    // World checks that no byte was written twice.
    assert_eq!(pair.b.world.regions[&KEY.0].memory.bytes[..5000], bytes[..]);
}

#[test]
fn a_lost_rnr_nak_is_said_again() {
    let mut pair = pair(&Config::default());
    pair.from_b.fate = sim::link::lose_first(2, crate::is_ack);
    pair.send(End::A, 7, SendOp::Send, b"hello");
    pair.run_for(500_000);
    pair.receive(End::B, 1, 10);
    pair.run(10_000_000);
    assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)]);
}
