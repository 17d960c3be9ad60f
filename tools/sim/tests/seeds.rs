// SPDX-License-Identifier: GPL-2.0
//! Thousand worlds: everything arrives exactly once, in order, with the right bytes.
//!
//! `SEED=n cargo test -p sim --test seeds -- --nocapture` runs one again, with the whole ladder;
//! `SEEDS=n..m` runs others than the usual ones.

use sim::workload::{
    self,
    Outcome, //
};
use std::{
    ops::Range,
    sync::atomic::{
        AtomicU64,
        Ordering, //
    }, //
};

const USUAL: Range<u64> = 0..1000;

#[test]
fn every_message_arrives_exactly_once_in_order() {
    if let Ok(seed) = std::env::var("SEED") {
        let seed = seed.parse().expect("SEED is a number");
        eprintln!("seed {seed}: {:?}", workload::run(seed));
        return;
    }
    let seeds = match std::env::var("SEEDS") {
        Ok(range) => {
            let (first, last) = range.split_once("..").expect("SEEDS is n..m");
            first.parse().expect("a number")..last.parse().expect("a number")
        }
        Err(_) => USUAL,
    };
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut total = Outcome::default();
    std::thread::scope(|scope| {
        let work = || {
            let mut sum = Outcome::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end {
                    return sum;
                }
                match std::panic::catch_unwind(|| workload::run(seed)) {
                    Ok(outcome) => sum += outcome,
                    // It has said why. The others need not go on.
                    Err(panic) => {
                        next.store(seeds.end, Ordering::Relaxed);
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(sum) => total += sum,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    println!("{total:#?}");
    // The worlds are as bad as they are meant to be.
    if seeds == USUAL {
        assert!(total.messages > 20_000, "few messages");
        assert!(total.retries > 1_000, "few retries");
        assert!(total.timeouts > 100, "few timeouts");
        assert!(total.rnr > 1_000, "few RNR NAKs");
        assert!(total.implied_naks > 100, "few gaps in READ responses");
        assert!(total.duplicates > 1_000, "few duplicates");
    }
}
