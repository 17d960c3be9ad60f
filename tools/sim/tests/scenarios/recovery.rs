// SPDX-License-Identifier: GPL-2.0
//! Packets are lost, doubled, or late.

use crate::{
    is_ack,
    pair,
    pair_to_read,
    patient,
    pattern,
    sent,
    DELAY,
    KEY,
    ROUND_TRIP,
    VA, //
};
use fastrand::Rng;
use roce::{
    cqe::WcStatus,
    env::Counter,
    qp::state::QpState,
    types::Psn,
    wire::{
        NakCode,
        Opcode,
        Operation,
        Syndrome, //
    },
    wqe::{
        AtomicOp,
        LocalOp,
        SendOp,
        SendWqe, //
    }, //
};
use sim::{
    ladder::Ladder,
    link::{
        lose,
        lose_first,
        pick,
        Fate,
        Faults, //
    },
    pair::{
        Config,
        End,
        Pair, //
    },
    world::Region, //
};

#[test]
fn nothing_is_lost() {
    let mut pair = pair(&patient());
    pair.receive(End::B, 1, 100);
    pair.send(End::A, 7, SendOp::Send, b"hello");
    pair.run(ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)]);
    assert_eq!(pair.received(End::B), [(1, WcStatus::Success)]);
    assert_eq!(pair.ladder.sent(End::A).count(), 1);
    assert_eq!(pair.ladder.sent(End::B).count(), 1);
    assert_eq!(pair.next_event(), None);
}

#[test]
//= IBA 9.9.2.4.2
//= type=test
fn lost_last_ack() {
    let mut pair = pair(&Config::default());
    pair.from_b.fate = lose_first(1, is_ack);
    pair.receive(End::B, 1, 100);
    pair.send(End::A, 7, SendOp::Send, b"hello");
    pair.run(4 * 1_048_576 + 2 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)]);
    assert_eq!(pair.received(End::B), [(1, WcStatus::Success)]);
    assert_eq!(pair.a.world.counter(Counter::AckTimeout), 1);
    assert_eq!(pair.b.world.counter(Counter::DuplicateRequest), 1);
}

#[test]
//= IBA 9.7.5.1.1
//= type=test
fn a_lost_request_is_asked_for_at_once() {
    let mut pair = pair(&patient());
    pair.from_a.fate = lose_first(1, |p| p.bth.opcode == Opcode::RcSendMiddle);
    pair.receive(End::B, 1, 100_000);
    let bytes = pattern(20_000);
    pair.send(End::A, 7, SendOp::Send, &bytes);
    pair.run(3 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)]);
    assert_eq!(
        pair.b.world.received[0].memory.bytes[..bytes.len()],
        bytes[..]
    );
    let naks = sent(&pair, End::B, Operation::Acknowledge)
        .into_iter()
        .filter(|p| p.aeth.unwrap().syndrome == Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(naks.count(), 1);
    assert_eq!(pair.a.world.counter(Counter::AckTimeout), 0);
}

#[test]
fn a_request_lost_twice_needs_no_timer_if_others_follow() {
    let mut pair = pair(&patient());
    let psn = Psn::new(0x105);
    pair.from_a.fate = lose_first(2, move |p| p.bth.psn == psn);
    pair.receive(End::B, 1, 100_000);
    pair.send(End::A, 7, SendOp::Send, &pattern(20_000));
    pair.run(4 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)]);
    assert_eq!(pair.a.world.counter(Counter::AckTimeout), 0);
}

/// A READ of 10 packets whose responses with these numbers are lost once.
fn read_with_losses(lost: &'static [u32]) -> Pair {
    let mut pair = pair_to_read(&patient());
    let mut left = lost.to_vec();
    pair.from_b.fate = lose(move |p| {
        let number = p.bth.psn.since(Psn::new(0x100)) as u32;
        let index = left.iter().position(|n| *n == number);
        index.map(|i| left.remove(i)).is_some()
    });
    pair.send(
        End::A,
        7,
        SendOp::Read { va: VA, rkey: KEY },
        &[0; 10 * 1024 - 5],
    );
    pair
}

#[test]
fn a_lost_read_response_is_asked_for_at_once() {
    for lost in [&[0u32][..], &[3], &[8], &[3, 4, 5], &[1, 6]] {
        let mut pair = read_with_losses(lost);
        pair.run(4 * ROUND_TRIP);
        assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)], "{lost:?}");
        assert_eq!(pair.a.world.read_results, [pattern(10 * 1024 - 5)]);
        assert_eq!(pair.a.world.counter(Counter::AckTimeout), 0);
        assert!(pair.a.world.counter(Counter::ImpliedNak) >= 1);
    }
}

#[test]
fn a_lost_last_read_response_shows_when_anything_follows() {
    let mut pair = read_with_losses(&[9]);
    pair.receive(End::B, 1, 10);
    pair.send(End::A, 8, SendOp::Send, b"x");
    pair.run(3 * ROUND_TRIP);
    assert_eq!(
        pair.sent(End::A),
        [(7, WcStatus::Success), (8, WcStatus::Success)]
    );
    assert_eq!(pair.a.world.read_results, [pattern(10 * 1024 - 5)]);
    assert_eq!(pair.a.world.counter(Counter::AckTimeout), 0);
}

#[test]
fn a_lost_last_read_response_costs_a_timeout_if_nothing_follows() {
    let mut pair = read_with_losses(&[9]);
    pair.run(5 * 67_108_864);
    assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)]);
    assert_eq!(pair.a.world.counter(Counter::AckTimeout), 1);
    // Only what was missing is read again.
    let requests = sent(&pair, End::A, Operation::ReadRequest);
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].reth.unwrap().length, 1024 - 5);
    assert_eq!(requests[1].reth.unwrap().va, VA + 9 * 1024);
}

#[test]
fn a_lost_read_request_is_asked_for_when_another_follows() {
    let mut pair = pair_to_read(&patient());
    pair.from_a.fate = lose_first(1, |p| p.bth.opcode == Opcode::RcReadRequest);
    for wr_id in 1..=3 {
        pair.send(
            End::A,
            wr_id,
            SendOp::Read { va: VA, rkey: KEY },
            &[0; 3000],
        );
    }
    pair.run(3 * ROUND_TRIP);
    assert_eq!(pair.a.world.read_results, vec![pattern(3000); 3]);
    assert_eq!(pair.a.world.counter(Counter::AckTimeout), 0);
}

#[test]
fn long_reads_with_losses_need_no_timer() {
    let config = Config {
        psn_a: Psn::new(0xff_fff0),
        ..patient()
    };
    let mut pair = pair_to_read(&config);
    let mut count = 0;
    pair.from_b.fate = lose(move |p| {
        count += 1;
        count % 29 == 13 && p.bth.opcode == Opcode::RcReadResponseMiddle
    });
    pair.send(
        End::A,
        7,
        SendOp::Read { va: VA, rkey: KEY },
        &[0; 64 << 10],
    );
    pair.send(
        End::A,
        8,
        SendOp::Read { va: VA, rkey: KEY },
        &[0; 64 << 10],
    );
    pair.run(30 * ROUND_TRIP);
    assert_eq!(pair.a.world.read_results, vec![pattern(64 << 10); 2]);
    assert_eq!(pair.a.world.counter(Counter::AckTimeout), 0);
}

#[test]
//= IBA 9.9.2.4.2
//= type=test
fn total_loss_ends_after_the_retries() {
    for retry_cnt in [0, 1, 7] {
        let config = Config {
            retry_cnt,
            ..Config::default()
        };
        let mut pair = pair(&config);
        pair.from_a.fate = lose(|_| true);
        pair.send(End::A, 7, SendOp::Send, b"hello");
        pair.send(End::A, 8, SendOp::Send, b"hello");
        let start = pair.now;
        pair.run(100_000_000);
        assert_eq!(
            pair.sent(End::A),
            [(7, WcStatus::RetryExcErr), (8, WcStatus::WrFlushErr)]
        );
        assert_eq!(pair.a.qp.state(), QpState::Err);
        assert_eq!(pair.a.world.counter(Counter::RetryExceeded), 1);
        let attempts = pair
            .ladder
            .sent(End::A)
            .filter(|(_, p, _)| p.bth.psn == Psn::new(0x100));
        assert_eq!(attempts.count(), usize::from(retry_cnt) + 1);
        // Each attempt waits between the timeout and four times that.
        let took = pair.now.0 - start.0;
        let attempts = u64::from(retry_cnt) + 1;
        assert!(took >= attempts * 1_048_576, "{took}");
        assert!(took <= attempts * 4 * 1_048_576, "{took}");
    }
}

#[test]
fn progress_gives_the_retries_back() {
    let config = Config {
        retry_cnt: 2,
        ..Config::default()
    };
    let mut pair = pair(&config);
    // Each packet is lost twice.
    let mut last = None;
    let mut times = 0;
    pair.from_a.fate = lose(move |p| {
        times = if last == Some(p.bth.psn) {
            times + 1
        } else {
            1
        };
        last = Some(p.bth.psn);
        times <= 2
    });
    for wr_id in 0..6 {
        pair.receive(End::B, wr_id, 10);
        pair.send(End::A, wr_id, SendOp::Send, b"hello");
        pair.run(100_000_000);
    }
    assert_eq!(
        pair.sent(End::A),
        [0, 1, 2, 3, 4, 5].map(|n| (n, WcStatus::Success))
    );
}

#[test]
fn no_timeout_means_patience_without_end() {
    let config = Config {
        timeout: 0,
        ..Config::default()
    };
    let mut pair = pair(&config);
    pair.from_a.fate = lose_first(1, |_| true);
    pair.receive(End::B, 1, 10);
    pair.send(End::A, 7, SendOp::Send, b"hello");
    pair.run(1_000_000_000);
    assert_eq!(pair.sent(End::A), []);
    // Whatever comes next shows the gap.
    pair.receive(End::B, 2, 10);
    pair.send(End::A, 8, SendOp::Send, b"hello");
    pair.run(3 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [7, 8].map(|n| (n, WcStatus::Success)));
}

#[test]
fn everything_twice() {
    let config = Config {
        psn_a: Psn::new(0xff_fffe),
        ..patient()
    };
    let mut pair = pair(&config);
    pair.from_a.fate = pick(Fate::Twice(DELAY / 2), |_| true);
    pair.from_b.fate = pick(Fate::Twice(DELAY / 2), |_| true);
    let bytes = pattern(5000);
    let imm = [1, 2, 3, 4];
    pair.receive(End::B, 1, 5000);
    pair.receive(End::B, 2, 0);
    pair.send(End::A, 1, SendOp::Send, &bytes);
    let (va, rkey) = (VA, KEY);
    pair.send(End::A, 2, SendOp::WriteImm { va, rkey, imm }, &bytes);
    pair.send(End::A, 3, SendOp::Read { va, rkey }, &[0; 5000]);
    pair.run(20 * ROUND_TRIP);
    assert_eq!(pair.sent(End::A), [1, 2, 3].map(|n| (n, WcStatus::Success)));
    assert_eq!(
        pair.received(End::B),
        [1, 2].map(|n| (n, WcStatus::Success))
    );
    assert_eq!(pair.a.world.read_results, [bytes]);
    assert_eq!(pair.a.world.counter(Counter::AckTimeout), 0);
}

#[test]
fn ghosts_of_long_ago_change_nothing() {
    // A WRITE from before comes again when the memory has other contents.
    let mut pair = pair(&patient());
    let (va, rkey) = (VA, KEY);
    pair.from_a.fate = pick(Fate::Twice(1_000_000), |p| {
        p.bth.psn == Psn::new(0x100) || p.bth.psn == Psn::new(0x101)
    });
    pair.send(End::A, 1, SendOp::Write { va, rkey }, &[1; 8]);
    pair.send(End::A, 2, SendOp::Read { va, rkey }, &[0; 8]);
    pair.run_for(100_000);
    for wr_id in 3..8 {
        let op = SendOp::Write {
            va: va + wr_id * 8,
            rkey,
        };
        pair.send(End::A, wr_id, op, &[2; 8]);
    }
    pair.run(2_000_000);
    assert_eq!(
        pair.sent(End::A),
        [1, 2, 3, 4, 5, 6, 7].map(|n| (n, WcStatus::Success))
    );
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    assert_eq!(pair.b.qp.state(), QpState::Rts);
    assert_eq!(pair.b.world.counter(Counter::DuplicateRequest), 2);
}

/// Binding a window twice, or invalidating what is invalid already, would fail.
#[test]
fn local_operations_are_done_once_whatever_is_lost() {
    let (va, rkey) = (VA, KEY);
    let locals = [LocalOp::Bind, LocalOp::Invalidate, LocalOp::Invalidate];
    // Each of the three packets in turn, once and twice, and each of the answers.
    for (lost, times) in [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)] {
        for of_a in [true, false] {
            let mut pair = pair(&Config::default());
            let (mut count, mut left) = (0, times);
            let fate = lose(move |_| {
                count += 1;
                let hit = count > lost && left > 0;
                left -= u32::from(hit);
                hit
            });
            match of_a {
                true => pair.from_a.fate = fate,
                false => pair.from_b.fate = fate,
            }
            for wr_id in 0..2 {
                pair.receive(End::B, wr_id, 10);
            }
            pair.send(End::A, 0, SendOp::Send, b"one");
            pair.send(End::A, 1, SendOp::Local(locals[0]), b"");
            pair.send(End::A, 2, SendOp::Write { va, rkey }, b"two");
            pair.send(End::A, 3, SendOp::Local(locals[1]), b"");
            pair.send(End::A, 4, SendOp::Local(locals[2]), b"");
            pair.send(End::A, 5, SendOp::Send, b"three");
            pair.run(100_000_000);
            let done = [0, 1, 2, 3, 4, 5].map(|n| (n, WcStatus::Success));
            assert_eq!(pair.sent(End::A), done, "{lost} {times} {of_a}");
            let done = [0, 1].map(|n| (n, WcStatus::Success));
            assert_eq!(pair.received(End::B), done);
            assert_eq!(pair.a.world.locals, locals);
            // Where something has arrived before, it is known when an answer is overdue.
            assert!(pair.a.world.counter(Counter::Retry) > 0 || lost > 0);
        }
    }
}

#[test]
fn a_full_way_out_slows_down_and_kills_nothing() {
    let config = Config {
        retry_cnt: 0,
        ..patient()
    };
    let mut pair = pair(&config);
    for link in [&mut pair.from_a, &mut pair.from_b] {
        link.queue = 2;
        link.ps_per_byte = 800;
    }
    let bytes = pattern(60_000);
    let (va, rkey) = (VA, KEY);
    pair.send(End::A, 1, SendOp::Write { va, rkey }, &bytes);
    pair.send(End::A, 2, SendOp::Read { va, rkey }, &[0; 60_000]);
    pair.run(50_000_000);
    assert_eq!(pair.sent(End::A), [1, 2].map(|n| (n, WcStatus::Success)));
    assert_eq!(pair.a.world.read_results, [bytes]);
    assert_eq!(pair.a.world.counter(Counter::Retry), 0);
}

#[test]
fn a_way_out_that_is_full_for_a_while_does_not_cost_the_peer_its_connection() {
    let mut pair = pair(&Config::default());
    // Of the 8.4 ms that A waits for an ACK, B cannot send for 6.5.
    pair.from_b.queue = 0;
    pair.receive(End::B, 1, 10);
    pair.send(End::A, 7, SendOp::Send, b"hello");
    pair.run_for(6_500_000);
    pair.from_b.queue = usize::MAX;
    pair.run(10_000_000);
    assert_eq!(pair.sent(End::A), [(7, WcStatus::Success)]);
}

/// Each is carried out once, and finds what those before it have left.
#[test]
fn a_hundred_thousand_atomic_adds_with_losses() {
    const COUNT: u64 = 100_000;
    let mut pair = Pair::new(&Config::default(), 1);
    let word = Region::words(VA, 1);
    pair.b.world.regions.insert(KEY.0, word);
    let faults = Faults {
        loss: 50,
        burst: 300,
        ..Faults::default()
    };
    pair.from_a.fate = faults.decide(Rng::with_seed(1));
    pair.from_b.fate = faults.decide(Rng::with_seed(2));
    let add = SendOp::Atomic {
        va: VA,
        rkey: KEY,
        op: AtomicOp::FetchAdd(1),
    };
    for number in 0..COUNT {
        let wqe = SendWqe::new(number, add, 8);
        while !pair.post_send(End::A, wqe, vec![0; 8]) {
            assert!(pair.step(pair.now.after(1_000_000_000)), "stuck");
        }
        if number % 1000 == 0 {
            pair.ladder = Ladder::default();
        }
    }
    pair.run(10_000_000_000);
    let found = pair.a.world.read_results.iter();
    assert!(found.eq((0..COUNT)
        .map(u64::to_ne_bytes)
        .map(Vec::from)
        .collect::<Vec<_>>()
        .iter()));
    let word = &pair.b.world.regions[&KEY.0].memory.bytes;
    assert_eq!(word[..], COUNT.to_ne_bytes());
    assert!(
        pair.b.world.counter(Counter::DuplicateRequest) > 5_000,
        "few repetitions"
    );
}
