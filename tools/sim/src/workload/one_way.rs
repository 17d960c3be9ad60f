// SPDX-License-Identifier: GPL-2.0
//! Worlds in which A sends and B receives: how they open, how A posts, and how they end.

use crate::{
    link::Link,
    pair::{
        Config,
        End,
        Pair, //
    },
    workload::faults,
};
use fastrand::Rng;
use roce::{
    qp::state::QpKind,
    types::{
        Mtu,
        Psn, //
    },
    wqe::SendWqe, //
};

/// The longest that a world may go on once everything is posted, in nanoseconds.
pub(super) const TIME_LIMIT: u64 = 100_000_000_000;

/// A pair with queues, MTU and links by chance. `seed` decides what kind of faults the links have.
pub(super) fn open(kind: QpKind, seed: u64, rng: &mut Rng) -> Pair {
    let config = Config {
        kind,
        mtu: *rng.choice(&[Mtu::M256, Mtu::M1024, Mtu::M4096]).unwrap(),
        psn_a: Psn::new(0xff_ffff - rng.u32(0..300)),
        slots: *rng.choice(&[1, 2, 8, 32]).unwrap(),
        reads: *rng.choice(&[1, 2, 16]).unwrap(),
        delay_ns: rng.u64(100..20_000),
        max_run: *rng.choice(&[1, 2, 16, 64]).unwrap(),
        ..Config::default()
    };
    let mut pair = Pair::new(&config, seed);
    pair.batch = rng.usize(1..=16);
    if !kind.is_reliable() {
        // Nobody waits for an answer that might be late.
        pair.from_a.ps_per_byte = *rng.choice(&[0, 20, 100, 800]).unwrap();
        pair.from_a.queue = *rng.choice(&[4, 32, 128]).unwrap();
    }
    // A requester gives up after so many losses in a row: not all worlds are bad ones.
    for link in [&mut pair.from_a, &mut pair.from_b] {
        link.fate = faults(rng, seed).decide(rng.fork());
    }
    pair.a.congestion = *rng.choice(&[0, 0, 10, 100]).unwrap();
    pair
}

/// Posts a send of A's as soon as there is room for it.
pub(super) fn post(pair: &mut Pair, wqe: SendWqe, bytes: Vec<u8>) {
    while !pair.post_send(End::A, wqe, bytes.clone()) {
        assert!(pair.step(pair.now.after(1_000_000_000)), "stuck");
    }
}

/// From now on, nothing gets lost.
pub(super) fn mend(pair: &mut Pair, rng: &mut Rng) {
    for link in [&mut pair.from_a, &mut pair.from_b] {
        *link = Link::new(link.delay_ns, rng.fork());
    }
    pair.a.congestion = 0;
}
