// SPDX-License-Identifier: GPL-2.0
//! A thousand worlds: everything arrives exactly once, in order, with the right bytes.
//!
//! `SEED=n cargo test -p sim --test seeds -- --nocapture` runs one again; `SEEDS=n..m` runs others
//! than the usual ones.

mod seeded;

use sim::workload;

#[test]
fn every_message_arrives_exactly_once_in_order() {
    let total = seeded::run(0..1000, workload::run, |sum, outcome| *sum += outcome);
    println!("{total:#?}");
    // The worlds are as bad as they are meant to be.
    if seeded::is_usual() {
        assert!(total.messages > 20_000, "few messages");
        assert!(total.retries > 1_000, "few retries");
        assert!(total.timeouts > 100, "few timeouts");
        assert!(total.rnr > 500, "few RNR NAKs");
        assert!(total.implied_naks > 100, "few gaps in READ responses");
        assert!(total.duplicates > 1_000, "few duplicates");
    }
}
