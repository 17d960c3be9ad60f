// SPDX-License-Identifier: GPL-2.0
//! Requests that are refused, and what becomes of the rest.

use crate::{
    pair,
    patient,
    KEY,
    LEN,
    ROUND_TRIP,
    VA, //
};
use roce::{
    cqe::WcStatus::{
        self,
        LocLenErr,
        LocProtErr,
        LocQpOpErr,
        RemAccessErr,
        RemInvReqErr,
        RemOpErr,
        Success,
        WrFlushErr, //
    },
    env::{
        Counter,
        QpEvent, //
    },
    qp::state::QpState,
    types::RKey,
    wqe::SendOp, //
};
use sim::{
    link::lose_first,
    pair::{
        End,
        Pair, //
    }, //
};

const BAD_KEY: RKey = RKey(0x78);

/// Both ends are in ERR.
fn assert_dead(pair: &Pair) {
    assert_eq!(pair.a.qp.state(), QpState::Err);
    assert_eq!(pair.b.qp.state(), QpState::Err);
}

#[test]
//= IBA 9.7.4.1.5
//= type=test
fn access_is_refused_in_one_round_trip() {
    let imm = [0; 4];
    let end = VA + LEN as u64;
    for op in [
        SendOp::Write {
            va: VA,
            rkey: BAD_KEY,
        },
        SendOp::WriteImm {
            va: VA,
            rkey: BAD_KEY,
            imm,
        },
        SendOp::Read {
            va: VA,
            rkey: BAD_KEY,
        },
        // One byte beyond either end.
        SendOp::Write {
            va: VA - 1,
            rkey: KEY,
        },
        SendOp::Write {
            va: end - 3999,
            rkey: KEY,
        },
        SendOp::Read {
            va: end - 3999,
            rkey: KEY,
        },
        SendOp::Read {
            va: u64::MAX - 10,
            rkey: KEY,
        },
    ] {
        let mut pair = pair(&patient());
        pair.receive(End::B, 1, 10);
        pair.receive(End::B, 2, 10);
        pair.send(End::A, 6, SendOp::Send, b"good");
        pair.send(End::A, 7, op, &[1; 4000]);
        pair.send(End::A, 8, SendOp::Send, b"late");
        pair.run(ROUND_TRIP);
        let expected = [(6, Success), (7, RemAccessErr), (8, WrFlushErr)];
        assert_eq!(pair.sent(End::A), expected, "{op:?}");
        assert_eq!(pair.received(End::B), [(1, Success), (2, WrFlushErr)]);
        assert_dead(&pair);
        assert!(pair.b.world.events.contains(&QpEvent::AccessErr));
        assert_eq!(pair.b.world.counter(Counter::AccessViolation), 1);
        assert_eq!(pair.b.world.regions[&KEY.0].memory.written(), 0);
    }
}

#[test]
fn rights_of_the_region_count() {
    for (read, op) in [
        (true, SendOp::Write { va: VA, rkey: KEY }),
        (false, SendOp::Read { va: VA, rkey: KEY }),
    ] {
        let mut pair = pair(&patient());
        let region = pair.b.world.regions.get_mut(&KEY.0).unwrap();
        (region.read, region.write) = (read, !read);
        pair.send(End::A, 7, op, &[1; 40]);
        pair.run(ROUND_TRIP);
        assert_eq!(pair.sent(End::A), [(7, RemAccessErr)]);
    }
}

#[test]
fn nothing_needs_no_key() {
    let mut pair = pair(&patient());
    let (va, rkey) = (u64::MAX, BAD_KEY);
    pair.send(End::A, 6, SendOp::Write { va, rkey }, b"");
    pair.send(End::A, 7, SendOp::Read { va, rkey }, b"");
    pair.run(2 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(6, Success), (7, Success)]);
}

#[test]
fn a_lost_nak_is_said_again() {
    let mut pair = pair(&patient());
    pair.from_b.fate = lose_first(1, crate::is_ack);
    let (va, rkey) = (VA, BAD_KEY);
    pair.send(End::A, 7, SendOp::Write { va, rkey }, b"hello");
    pair.run(20 * 67_108_864);
    // The responder is in ERR and drops what comes: the requester cannot learn why.
    assert!(matches!(
        pair.sent(End::A)[..],
        [(7, WcStatus::RetryExcErr | RemAccessErr)]
    ));
}

#[test]
//= IBA 9.7.4.1.6
//= type=test
fn a_message_that_is_too_long() {
    for (room, length) in [(10, 11), (0, 1), (1024, 1025), (3000, 60_000)] {
        let mut pair = pair(&patient());
        pair.receive(End::B, 1, room);
        pair.receive(End::B, 2, 100);
        pair.send(End::A, 7, SendOp::Send, &vec![1; length]);
        pair.run(2 * ROUND_TRIP);
        assert_eq!(pair.received(End::B), [(1, LocLenErr), (2, WrFlushErr)]);
        assert_eq!(pair.sent(End::A), [(7, RemInvReqErr)]);
        assert_dead(&pair);
    }
}

#[test]
fn memory_of_the_responder_fails() {
    for op in [
        SendOp::Write { va: VA, rkey: KEY },
        SendOp::Read { va: VA, rkey: KEY },
    ] {
        let mut pair = pair(&patient());
        pair.b.world.regions.get_mut(&KEY.0).unwrap().broken = true;
        pair.send(End::A, 7, op, &[1; 40]);
        pair.run(ROUND_TRIP);
        assert!(matches!(
            pair.sent(End::A)[..],
            [(7, RemOpErr | RemAccessErr)]
        ));
        assert_dead(&pair);
    }
}

#[test]
fn memory_of_the_requester_fails() {
    let mut pair = pair(&patient());
    pair.receive(End::B, 1, 10_000);
    pair.receive(End::B, 2, 10_000);
    // Nothing goes out until the third is posted.
    pair.from_a.queue = 0;
    pair.send(End::A, 6, SendOp::Send, b"good");
    pair.send(End::A, 7, SendOp::Send, &[1; 4000]);
    pair.send(End::A, 8, SendOp::Send, b"late");
    let data = pair.a.world.slots[1].as_mut().unwrap();
    data.broken = true;
    pair.from_a.queue = usize::MAX;
    pair.run(100 * ROUND_TRIP);
    assert_eq!(
        pair.sent(End::A),
        [(6, Success), (7, LocProtErr), (8, WrFlushErr)]
    );
    assert_eq!(pair.a.qp.state(), QpState::Err);
    assert_eq!(pair.received(End::B), [(1, Success)]);
}

#[test]
fn memory_for_a_read_response_fails() {
    let mut pair = pair(&patient());
    let (va, rkey) = (VA, KEY);
    pair.send(End::A, 7, SendOp::Read { va, rkey }, &[0; 4000]);
    pair.a.world.slots[0].as_mut().unwrap().broken = true;
    pair.run(2 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(7, LocProtErr)]);
    assert_eq!(pair.a.qp.state(), QpState::Err);
}

#[test]
fn an_invalid_wqe_fails_in_its_turn() {
    let mut pair = pair(&patient());
    pair.receive(End::B, 1, 10);
    pair.send(End::A, 6, SendOp::Send, b"good");
    pair.send(End::A, 7, SendOp::Invalid(LocQpOpErr), b"");
    pair.send(End::A, 8, SendOp::Send, b"late");
    // What was sent before may still come to a good end.
    pair.run(2 * ROUND_TRIP);
    assert_eq!(
        pair.sent(End::A),
        [(6, Success), (7, LocQpOpErr), (8, WrFlushErr)]
    );
    assert_eq!(pair.received(End::B), [(1, Success)]);
}

#[test]
fn a_key_that_cannot_be_invalidated() {
    let mut pair = pair(&patient());
    pair.receive(End::B, 1, 10);
    pair.send(End::A, 7, SendOp::SendInv(KEY), b"x");
    pair.run(ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(7, RemAccessErr)]);
    assert_ne!(pair.received(End::B), [(1, Success)]);
    assert_dead(&pair);
    assert!(pair.b.world.regions.contains_key(&KEY.0));
}

#[test]
fn a_malformed_receive() {
    let mut pair = pair(&patient());
    pair.receive(End::B, 1, 10);
    pair.b.world.receives[0].invalid = true;
    pair.send(End::A, 7, SendOp::Send, b"x");
    pair.run(ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(7, RemOpErr)]);
    assert_eq!(pair.received(End::B), [(1, LocQpOpErr)]);
    assert_dead(&pair);
}

#[test]
fn the_consumer_gives_up() {
    let mut pair = pair(&patient());
    for wr_id in 0..3 {
        pair.receive(End::A, wr_id, 10);
        pair.send(End::A, wr_id, SendOp::Send, b"x");
    }
    pair.to_error(End::A);
    let flushed = [0, 1, 2].map(|n| (n, WrFlushErr));
    assert_eq!(pair.sent(End::A), flushed);
    assert_eq!(pair.received(End::A), flushed);
    // What is posted later is flushed as well.
    pair.receive(End::A, 3, 10);
    pair.send(End::A, 3, SendOp::Send, b"x");
    assert_eq!(pair.sent(End::A).last(), Some(&(3, WrFlushErr)));
    assert_eq!(pair.received(End::A).last(), Some(&(3, WrFlushErr)));
    pair.run(100 * ROUND_TRIP);
    assert_eq!(pair.a.world.events, []);
}

/// The receiver gives up at any time while messages of several packets come in: each receive completes once, those
/// with success are the first ones, and what comes later completes nothing.
#[test]
fn an_error_amid_messages_completes_each_receive_once() {
    const COUNT: u64 = 8;
    let mut successes = std::collections::BTreeSet::new();
    for ns in (0..40_000).step_by(500) {
        let mut pair = pair(&patient());
        for link in [&mut pair.from_a, &mut pair.from_b] {
            link.ps_per_byte = 800;
        }
        for wr_id in 0..COUNT {
            pair.receive(End::B, wr_id, 5000);
            pair.send(End::A, wr_id, SendOp::Send, &[1; 3000]);
        }
        pair.run_for(ns);
        pair.to_error(End::B);
        let received = pair.received(End::B);
        let good = received.iter().filter(|r| r.1 == Success).count() as u64;
        let expected: Vec<_> = (0..COUNT)
            .map(|n| (n, if n < good { Success } else { WrFlushErr }))
            .collect();
        assert_eq!(received, expected, "after {ns} ns");
        pair.run(1_000_000_000);
        assert_eq!(pair.received(End::B), expected, "after {ns} ns");
        assert_eq!(pair.sent(End::A).len() as u64, COUNT);
        successes.insert(good);
    }
    assert!(successes.len() as u64 > COUNT / 2, "{successes:?}");
}

#[test]
fn a_full_completion_queue_ends_the_qp() {
    let mut pair = pair(&patient());
    pair.b.world.cq_room = Some(1);
    for wr_id in 0..3 {
        pair.receive(End::B, wr_id, 10);
        pair.send(End::A, wr_id, SendOp::Send, b"x");
    }
    pair.run(2 * ROUND_TRIP);
    assert_eq!(pair.received(End::B), [(0, Success)]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
    assert!(pair.b.world.events.contains(&QpEvent::Fatal));
    assert_eq!(pair.sent(End::A)[0], (0, Success));
    assert_eq!(pair.sent(End::A)[1], (1, RemOpErr));
}

#[test]
fn unsignaled_failures_are_reported() {
    let mut pair = pair(&patient());
    let op = SendOp::Write {
        va: VA,
        rkey: BAD_KEY,
    };
    for wr_id in 0..3 {
        let mut wqe = roce::wqe::SendWqe::new(wr_id, op, 4);
        wqe.signaled = false;
        assert!(pair.post_send(End::A, wqe, vec![0; 4]));
    }
    pair.run(ROUND_TRIP);
    assert_eq!(
        pair.sent(End::A),
        [(0, RemAccessErr), (1, WrFlushErr), (2, WrFlushErr)]
    );
}
