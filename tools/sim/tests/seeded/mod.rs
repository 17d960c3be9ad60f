// SPDX-License-Identifier: GPL-2.0
//! Runs something for many seeds, on all CPUs.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::{
    ops::Range,
    panic::{
        catch_unwind,
        resume_unwind, //
    },
    sync::atomic::{
        AtomicU64,
        Ordering, //
    }, //
};

/// Whether nobody asked for other seeds than the usual ones.
pub(crate) fn is_usual() -> bool {
    std::env::var_os("SEED").is_none() && std::env::var_os("SEEDS").is_none()
}

/// The seeds that the environment asks for.
fn seeds(usual: Range<u64>) -> Range<u64> {
    if let Ok(seed) = std::env::var("SEED") {
        let seed = seed.parse().expect("SEED is a number");
        return seed..seed + 1;
    }
    let Ok(range) = std::env::var("SEEDS") else {
        return usual;
    };
    let (first, last) = range.split_once("..").expect("SEEDS is n..m");
    first.parse().expect("a number")..last.parse().expect("a number")
}

/// Runs `one` for each seed and adds up what comes of it. Stops at the first panic.
pub(crate) fn run<T: Default + Send>(
    usual: Range<u64>,
    one: impl Fn(u64) -> T + Sync + std::panic::RefUnwindSafe,
    add: impl Fn(&mut T, T) + Sync,
) -> T {
    let seeds = seeds(usual);
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut total = T::default();
    std::thread::scope(|scope| {
        let work = || {
            let mut sum = T::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end {
                    return sum;
                }
                match catch_unwind(|| one(seed)) {
                    Ok(outcome) => add(&mut sum, outcome),
                    // It has said why. The others need not go on.
                    Err(panic) => {
                        next.store(seeds.end, Ordering::Relaxed);
                        resume_unwind(panic);
                    }
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(sum) => add(&mut total, sum),
                Err(panic) => resume_unwind(panic),
            }
        }
    });
    total
}
