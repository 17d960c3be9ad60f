// SPDX-License-Identifier: GPL-2.0
//! A thousand worlds of unreliable connections; see [`sim::workload::unreliable`].
//!
//! `SEED=n` and `SEEDS=n..m` as for the test `seeds`.

mod seeded;

use sim::workload::unreliable;

#[test]
fn what_arrives_is_whole_and_in_order() {
    let total = seeded::run(0..1000, unreliable::run, |sum, outcome| *sum += outcome);
    println!("{total:#?}");
    if seeded::is_usual() {
        assert!(total.arrived > total.sent / 2, "few messages arrived");
        assert!(
            total.arrived < total.sent * 99 / 100,
            "few messages were lost"
        );
        assert!(total.writes > 1_000, "few WRITEs");
    }
}
