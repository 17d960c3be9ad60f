// SPDX-License-Identifier: GPL-2.0
//! Worlds of extended reliable connections; see [`sim::workload::xrc`].
//!
//! `SEED=n` and `SEEDS=n..m` as for the test `seeds`.

mod seeded;

use sim::workload::xrc;

#[test]
fn each_message_arrives_once_at_its_queue() {
    let total = seeded::run(0..500, xrc::run, |sum, outcome| *sum += outcome);
    println!("{total:#?}");
    if seeded::is_usual() {
        assert!(total.received > 2_000, "few messages");
        assert!(total.reads > 1_000 && total.atomics > 500, "few READs");
        assert_eq!(total.refused, 500);
    }
}
