// SPDX-License-Identifier: GPL-2.0
//! Worlds that go wrong: dishonest or broken ends never make the other one break its word.
//!
//! `SEED=n` runs one again, `SEEDS=n..m` others than the usual ones, as in `seeds.rs`.

mod seeded;

use sim::workload::chaos::{
    self,
    Tally, //
};

fn add(sum: &mut Tally, tally: Tally) {
    for (outcome, count) in tally {
        *sum.entry(outcome).or_default() += count;
    }
}

#[test]
fn what_goes_wrong_is_reported_once_and_in_order() {
    let tally = seeded::run(0..500, |seed| chaos::run(seed, 0), add);
    println!("{tally:#?}");
    if !seeded::is_usual() {
        return;
    }
    // Everything that can happen does.
    for outcome in [
        "success",
        "flushed",
        "local length",
        "local operation",
        "local protection",
        "invalidation",
        "overflow",
        "remote access",
        "remote invalid request",
        "remote operation",
        "retries exceeded",
        "RNR retries exceeded",
    ] {
        assert!(tally.contains_key(outcome), "no {outcome}");
    }
}

#[test]
fn a_hostile_peer_harms_nobody_but_the_connection() {
    let forgery = |seed| if seed % 2 == 0 { 20 } else { 300 };
    let tally = seeded::run(0..500, |seed| chaos::run(seed, forgery(seed)), add);
    println!("{tally:#?}");
}
